/* rpc/serve.h - what the serving side keeps: services, functions, requests, remembered replies, threads.
 *
 * A request whose function answers at once lives on the stack of its arrival and has only the fields up to `on_heap`. Every other
 * is on the heap:
 *
 *     arrived --> [fetching] --> [waits for a thread] --> begun --> answered --> over --> freed
 *                     \________________ cancelled ________________/
 *
 * The thread that sets `answered` first answers. `over`: the reply is on its way, or nobody wants it. The request is freed when
 * it is over, the program has released it, and nothing of ours refers to it. Everything that does not name a thread is
 * the driver's. */
#ifndef WEFTI_RPC_SERVE_H
#define WEFTI_RPC_SERVE_H

#include "rpc/state.h"
#include "rpc/stream.h"

/* --- once.c: calls that were made with `once`, and their replies ------------------------------------------------------ */

typedef struct rpc_once_client rpc_once_client_t;

/* A call that is known. */
typedef struct rpc_once_entry {
    rpc_once_client_t *client;
    uint64_t seq;
    rpc_request_t *request; /* that runs; NULL: it was answered */
    rpc_share_t *share;     /* of the peer that pays */
    wefti_list_t link;      /* of the client, in order of arrival */
    wefti_list_t age;       /* answered ones, oldest first */
    uint64_t until;         /* when it is forgotten */
    rpc_kept_t *reply;      /* NULL: it is not kept, only that it ran */
} rpc_once_entry_t;

/* What a service remembers. */
typedef struct rpc_book {
    wefti_map_t clients;             /* rpc_once_client_t by id */
    wefti_list_t age, idle;          /* entries that were answered; clients without entries: oldest first */
    uint32_t n, n_clients;           /* entries, clients */
    uint32_t max, max_clients;       /* at most so many of each; the same, unless the service says otherwise */
    uint32_t peer_max, peer_clients; /* and of one share; the same */
    uint64_t bytes;                  /* of replies */
    uint64_t remember_ns;
    uint64_t stay_ns;                /* how long clients without calls are known; at least remember_ns */
} rpc_book_t;

void wefti_once_init(rpc_book_t *b, uint32_t max, uint64_t remember_ns);
void wefti_once_free(rpc_book_t *b);
/* Find a call that came from the peer of that share. NEW: it is entered, and the caller sets entry->request.
 * RUNNING, ANSWERED: that one. GONE: it was forgotten, and may have run. FULL: no space for another, or not for that peer. */
typedef enum rpc_once_found { ONCE_NEW, ONCE_RUNNING, ONCE_ANSWERED, ONCE_GONE, ONCE_FULL } rpc_once_found_t;
rpc_once_found_t wefti_once_find(rpc_book_t *b, const rpc_once_t *id, rpc_share_t *share, uint64_t now,
                                 rpc_once_entry_t **entry_out);
/* It was answered with this message. A copy is kept if it takes no more than `space` bytes; its share pays for it. */
void wefti_once_answered(rpc_book_t *b, rpc_once_entry_t *e, rpc_msg_t *msg, uint64_t space, uint64_t now);
void wefti_once_forget(rpc_book_t *b, rpc_once_entry_t *e, uint64_t now); /* it certainly did not run: it may come again */
/* Forget what is old enough. Returns when to call it again; UINT64_MAX: there is nothing to forget. */
uint64_t wefti_once_age(rpc_book_t *b, uint64_t now);

/* --- pool.c: threads of a service ------------------------------------------------------------------------------------- */

typedef struct rpc_pool rpc_pool_t;
extern uint32_t wefti_rpc_pool_processors; /* 0: those of this process; tests say how many, so that threads spin or do not */
/* threads 0: there are none, and requests run one at a time in the progress of the service's runtime, for functions that are
 * `serial`. */
weft_status_t wefti_rpc_pool_new(weft_service_t *service, uint32_t threads, rpc_pool_t **pool_out);
/* Have a thread run it. False: too many wait already, or too many of its peer. */
bool wefti_rpc_pool_put(rpc_pool_t *pool, rpc_request_t *r, uint32_t most, uint32_t most_of_peer);
/* Call it off, if its function has not begun. True: the hold of the thread that would have run it is the caller's to drop.
 * *begun_out: its function was begun. */
bool wefti_rpc_pool_take_back(rpc_pool_t *pool, rpc_request_t *r, bool *begun_out);
uint32_t wefti_rpc_pool_waiting(rpc_pool_t *pool, uint32_t *running_out); /* requests that wait, and that run; any thread */
uint64_t wefti_rpc_pool_wakeups(const rpc_pool_t *pool); /* how often a thread that slept was called; any thread */
void wefti_rpc_pool_stop(rpc_pool_t *pool);        /* when the last thread is gone, wefti_rpc_service_step() is called */
bool wefti_rpc_pool_gone(const rpc_pool_t *pool);
void wefti_rpc_pool_undo(rpc_pool_t *pool);        /* nothing was put in: end its threads and free it. Any thread */
void wefti_rpc_pool_free(rpc_pool_t *pool);        /* its threads are gone. NULL is allowed */
/* The request whose function this thread runs for a pool, which keeps the request's runtime meanwhile; NULL: none. */
extern _Thread_local rpc_request_t *wefti_rpc_running __attribute__((tls_model("initial-exec")));

/* --- services and functions ------------------------------------------------------------------------------------------- */

/* What a service and its twins have together, up to its limits. */
struct rpc_total {
    _Atomic uint64_t under_way;  /* requests on the heap */
    _Atomic uint64_t bytes;
    _Atomic uint32_t refs;       /* budgets: one of each shard, which outlive their services */
};

/* A handle (base/handle.h): it is closed under rs->lock, then freed on the driver. The fields up to `instance` may be read for
 * ever. */
struct weft_service {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    char name[RPC_NAME], instance[RPC_NAME];
    rpc_state_t *rs;
    weft_service_opts_t opts;    /* with defaults filled in */
    uint64_t epoch;
    bool own;                    /* of the library itself: on no list */
    /* under rs->lock */
    wefti_list_t link;           /* rpc_state_t.services */
    wefti_list_t functions;      /* rpc_function_t.link, in the order they were added */
    uint32_t alive;              /* functions that are not freed, removed ones included */
    uint32_t next_number;
    bool ended;                  /* close was called: no more functions, callers do not find it */
    struct rpc_publication *publication; /* publish.c; NULL: it is not published */
    bool called;                 /* the close is on its way to the driver: not freed before it has arrived */
    /* the driver's */
    bool draining, closing;
    bool leaving;                /* publish.c: clients may not know yet that it drains, so it is not drained */
    uint32_t busy;               /* it is in use: not to be freed */
    wefti_list_t requests;       /* rpc_request_t.service_link */
    wefti_list_t drain_ops;
    rpc_ending_t close;
    rpc_pool_t *pool;            /* NULL: no threads. A twin has its service's */
    rpc_pool_t *serial;          /* for functions that are `serial`; NULL: there are none, or one shard. As `pool` */
    rpc_book_t book;
    rpc_budget_t *budget;
    uint32_t peer_requests, peer_queue; /* what one peer may have of them */
    wefti_timer_t forget;
    /* written by the driver, read by any thread */
    weft_service_stats_t stats;  /* under_way: requests on the heap that are not freed; bytes: the budget has them */
    uint64_t unanswered;         /* of those, the ones that are not over */
    rpc_total_t *total;          /* of it and its twins, as long as `budget`; NULL: there is one shard */
    /* twins.c. The program's service is the head's; each other shard has a twin of it, with the same functions */
    weft_service_t *of;          /* of a twin: the head's; NULL: it is that */
    struct rpc_twin *twins;      /* of the head's, by shard; NULL: there is one shard */
    uint32_t twins_left;         /* of them, not freed: the driver's */
};

/* Requests on the heap, of all shards. */
static inline uint64_t rpc_under_way(const weft_service_t *s)
{
    return s->total ? atomic_load_explicit(&s->total->under_way, memory_order_relaxed) : s->stats.under_way;
}
static inline void rpc_under_way_add(weft_service_t *s, int64_t n)
{
    rpc_count(&s->stats.under_way, n);
    if (s->total)
        atomic_fetch_add_explicit(&s->total->under_way, (uint64_t)n, memory_order_relaxed);
}

/* The service that the program knows. */
static inline weft_service_t *rpc_service_of(weft_service_t *s) { return s->of ? s->of : s; }

/* twins.c */
weft_status_t wefti_rpc_twins_open(weft_service_t *service); /* after an error those that were opened are there */
/* That of a shard: itself for the first. NULL: it is closed. Any thread. */
weft_service_t *wefti_rpc_twin(weft_service_t *service, uint32_t shard);
void wefti_rpc_twin_gone(weft_service_t *twin);              /* it is freed: tell its service */
weft_status_t wefti_rpc_twins_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                                  weft_function_opts_t *o);

/* The `user` of a function that several shards have. */
typedef struct rpc_owner {
    _Atomic uint32_t refs;       /* functions, of which the last hands it back */
} rpc_owner_t;

struct rpc_function {
    uint32_t check;
    uint16_t slot;
    bool plain;                  /* may run on the stack: no thread, no stream */
    bool oneway, threads, serial, fetch, streams;
    bool elsewhere;              /* it is `serial`, and of another shard than the first: it runs there */
    rpc_owner_t *owner;          /* of `user`, where several shards have it; NULL: it is this function's alone */
    uint32_t number;
    weft_function_fn fn;
    void *user;
    weft_service_t *service;
    const wefti_codec_t *args, *results;
    weft_sig_t *sig;
    weft_release_fn release;
    wefti_list_t link;           /* under rs->lock */
    uint32_t refs;               /* requests of it */
    _Atomic uint32_t orphans;    /* requests that programs have kept longer than the runtime: the last one frees it */
    bool removed, handed_back;
    rpc_ending_t remove;
};

static inline rpc_function_t *rpc_function(const rpc_state_t *rs, uint16_t slot)
{
    rpc_page_t page = atomic_load_explicit(&rs->functions[slot / RPC_PAGE], memory_order_acquire);
    return page ? atomic_load_explicit(&page[slot % RPC_PAGE], memory_order_acquire) : NULL;
}

/* rules.c. On the driver. */
weft_status_t wefti_rpc_rules_open(rpc_state_t *rs);
/* May the peer be bound to it? WEFT_ERR_PERMISSION, with a sentence for it, _NOMEM. Under rs->lock. */
weft_status_t wefti_rpc_rules_bind(rpc_state_t *rs, weft_ep_t *ep, const rpc_function_t *f);
/* The function of a call that did not find it: NULL, if it is not there or its caller is not bound to it. */
rpc_function_t *wefti_rpc_rules_find(const rpc_state_t *rs, const weft_ep_t *ep, uint16_t slot, uint32_t check);

/* share.c */
void wefti_rpc_budget_join(rpc_budget_t *budget, rpc_total_t *total); /* before anything is charged */
rpc_budget_t *wefti_rpc_budget_new(uint64_t bytes, uint32_t percent); /* percent: of it, for one peer. NULL: no memory */
void wefti_rpc_budget_leave(rpc_budget_t *budget);                    /* its service goes; shares keep it. NULL is allowed */
uint64_t wefti_rpc_budget_used(const rpc_budget_t *budget);           /* any thread */
uint64_t wefti_rpc_part(uint64_t whole, uint32_t percent);            /* rounded up: a part of 1 is 1 */

/* service.c */
static inline weft_status_t wefti_rpc_service_lock(const weft_service_t *service)
{
    return wefti_rpc_lock(service->rt, &service->handle, "service");
}
/* of: the service that it is a twin of; NULL: of none. */
weft_service_t *wefti_rpc_service_new(rpc_state_t *rs, const char *name, const char *instance, const weft_service_opts_t *opts,
                                      weft_service_t *of);
weft_status_t wefti_rpc_service_open(weft_runtime_t *rt, const char *name, const weft_service_opts_t *opts, weft_service_t *of,
                                     weft_service_t **service_out);
weft_status_t wefti_rpc_service_close(weft_service_t *service, weft_op_t *op); /* of one shard */
weft_status_t wefti_rpc_service_drain(weft_service_t *service, weft_op_t *op);
uint32_t wefti_rpc_service_load(weft_service_t *service); /* 0 idle to 1000 full: for the registry */
void wefti_rpc_service_remember(weft_service_t *service); /* the book changed */
void wefti_rpc_service_step(weft_service_t *service);     /* something ended: is it drained, or closed? It may be freed */
void wefti_rpc_services_shutdown(rpc_state_t *rs);
void wefti_rpc_services_free(rpc_state_t *rs);

/* function.c. own: of the library itself, with a name that begins with "weft.". */
weft_status_t wefti_rpc_function_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                                     const weft_function_opts_t *opts, bool own);
/* Under rs->lock: by its number, or by its name if that is 0. NULL: there is none. */
/* One that no service has yet. */
weft_status_t wefti_rpc_function_new(const char *signature, weft_function_fn fn, void *user, const weft_function_opts_t *o,
                                     bool own, rpc_function_t **f_out);
void wefti_rpc_function_free(rpc_function_t *f); /* NULL is allowed */
/* Can the service have it? It gets its number and its slot, and is nowhere yet. Under rs->lock, as is enter, which follows. */
weft_status_t wefti_rpc_function_fits(weft_service_t *service, rpc_function_t *f);
void wefti_rpc_function_enter(weft_service_t *service, rpc_function_t *f);
rpc_function_t *wefti_rpc_function_find(const weft_service_t *service, const char *name, uint32_t number);
void wefti_rpc_function_unref(rpc_function_t *f);
/* With the runtime: one more request is an orphan. An orphan was freed: any thread. */
void wefti_rpc_function_orphan(rpc_function_t *f);
void wefti_rpc_function_unorphan(rpc_function_t *f);
void wefti_rpc_functions_remove(weft_service_t *service); /* all of them; the service closes */

weft_status_t wefti_rpc_reflect(rpc_state_t *rs); /* add the functions of the library itself */

/* bind_answer.c: BIND came. */
void wefti_rpc_bind(rpc_state_t *rs, weft_am_t *am, const rpc_head_t *head);
/* publish.c, with drain and close; nothing if it is not published. lingers: weft_service_t.leaving may be set until clients have
 * heard of it; then wefti_rpc_service_step() is called. Without, the service is not touched after it returns. */
void wefti_rpc_unpublish(weft_service_t *service, bool lingers);

/* --- requests --------------------------------------------------------------------------------------------------------- */

/* WORK_BUSY: the driver works on it, and looks again before it turns to another. */
enum { WORK_ANSWER = 1, WORK_TELL = 2, WORK_LATE = 4, WORK_RELEASE = 8, WORK_BUSY = 16 };
enum { LEFT_BY_RUNTIME = 1, LEFT_BY_PROGRAM = 2 };
/* Of one that needs a thread: not there yet; waits for it; begun by it; found late by it; called off by the driver. */
enum { PLACE_NONE, PLACE_WAITS, PLACE_BEGUN, PLACE_LATE, PLACE_OFF };
#define RPC_SMALL (sizeof(rpc_kept_t) + 64) /* an answer that needs no memory of its own */

struct rpc_request {
    weft_request_t pub;          /* first, so that the two pointers are one */
    rpc_function_t *fn;
    weft_ep_t *ep;               /* NULL: its caller is gone */
    uint64_t call;
    rpc_request_t *moved;        /* of one on the stack that was kept: the one on the heap */
    weft_am_t *am;               /* of one on the stack */
    rpc_where_t where;
    uint64_t deadline;           /* of one on the heap: when, in fabric time; UINT64_MAX: none */
    _Atomic bool answered;
    bool on_heap;                /* the fields from here on are only there if it is */

    weft_runtime_t *rt;
    _Atomic uint32_t left;       /* LEFT_*: the runtime is closed. The last to leave frees it */
    _Atomic bool kept;           /* the program has it: set inside the function */
    _Atomic uint8_t place;       /* PLACE_*: who changes PLACE_WAITS decides what becomes of it */
    bool fetching, over, released, mapped;
    bool whole;                  /* its memory has space for `in` */
    bool waiting;                /* `answer` waits for the stream */
    uint32_t refs;               /* ours: a reply on its way, a fetch */
    _Atomic uint32_t coming;     /* fetches that sit in the inbox: any thread counts it up */
    _Atomic uint32_t holds;      /* of the program, and of the thread that runs it */
    _Atomic bool cancelled;
    _Atomic uint32_t work;       /* WORK_*: any thread */
    wefti_mpsc_node_t handed;    /* rpc_state_t.handed_in */
    rpc_in_t *in;
    rpc_share_t *share;          /* of the peer that pays for it */
    wefti_list_t ep_link, service_link;
    wefti_list_t wait_link;      /* rpc_share_t.waits */
    wefti_list_t spill_link;     /* rpc_line_t.spill: the next three belong to its writer */
    bool spilled;
    uint32_t ring_at;
    wefti_timer_t timer;
    rpc_kept_t *answer;          /* that waits for the driver, or for a stream */
    weft_op_t *answer_op;        /* of weft_request_reply_from(): the answer's pieces are borrowed until it completes */
    rpc_out_t *out;
    weft_op_t *fetch_op;
    rpc_once_entry_t *once;
    weft_cancel_fn on_cancel;    /* these three: under rs->lock */
    void *on_cancel_user;
    bool told;
};                               /* on the heap RPC_SMALL bytes follow: `answer`, if it is small; and `in`, if it fits */

static inline rpc_request_t *rpc_request(const weft_request_t *request)
{
    rpc_request_t *r = (rpc_request_t *)(uintptr_t)request;
    return r->moved ? r->moved : r;
}
/* Its function has begun, or will not. On the driver. */
static inline void rpc_request_waits_no_more(rpc_request_t *r)
{
    if (!wefti_list_linked(&r->wait_link))
        return;
    wefti_list_remove(&r->wait_link);
    r->share->waiting--;
}
static inline weft_runtime_t *rpc_request_rt(const rpc_request_t *r) { return r->on_heap ? r->rt : r->fn->service->rt; }

/* A failure as a message. ran: RPC_F_NOT_RUN, with RPC_F_UNBOUND or alone; RPC_F_MAYBE; or 0: the function answered. */
typedef struct rpc_no {
    unsigned ran;
    weft_code_t code;
    uint32_t category;
    int32_t value;
    const char *message;         /* NULL: none */
} rpc_no_t;
static inline rpc_no_t rpc_no(unsigned ran, weft_code_t code, const char *message)
{
    return (rpc_no_t){.ran = ran, .code = code, .message = message};
}
static inline rpc_no_t rpc_exhausted(const char *message)
{
    return rpc_no(RPC_F_NOT_RUN, WEFT_CODE_RESOURCE_EXHAUSTED, message);
}
static inline rpc_no_t rpc_no_memory(void) /* for results: the function has run */
{
    return rpc_no(0, WEFT_CODE_RESOURCE_EXHAUSTED, "there is no memory for the reply");
}

/* dispatch.c */
void wefti_rpc_to_server(weft_am_t *am, void *user); /* a handler of active messages */

/* request.c. A request on the heap for a call that came. NULL: *no_out says why not; with code 0 the peer broke the rules, and
 * its endpoint fails. *am_gone_out: the message belongs to the request. */
rpc_request_t *wefti_rpc_request_new(rpc_function_t *f, weft_am_t *am, uint64_t call, uint64_t left_ns, const rpc_where_t *where,
                                     rpc_no_t *no_out, bool *am_gone_out);
/* Why a request ends before it was answered. */
typedef enum rpc_end_why { END_CANCELLED, END_LATE, END_PEER, END_CLOSED } rpc_end_why_t;
void wefti_rpc_request_end(rpc_request_t *r, rpc_end_why_t why);
void wefti_rpc_request_not_run(rpc_request_t *r);        /* it never began: a repeat of a `once` call may run */
void wefti_rpc_request_over(rpc_request_t *r);           /* nobody waits for it any more. It may be freed */
void wefti_rpc_request_unref(rpc_request_t *r);          /* it may be freed */
void wefti_rpc_request_free_if_done(rpc_request_t *r);
void wefti_rpc_request_detach(rpc_request_t *r);         /* from its endpoint */
void wefti_rpc_requests_down(weft_ep_t *ep);
void wefti_rpc_requests_spare(rpc_state_t *rs);          /* with the runtime: free what is kept for further ones */
void wefti_rpc_request_discard(rpc_request_t *r);        /* with the runtime: an orphan, if the program has it */
void wefti_rpc_request_drop(rpc_request_t *r);           /* one hold less; any thread */
void wefti_rpc_hand_in(rpc_request_t *r, uint32_t work); /* have the driver do it; any thread */
void wefti_rpc_handed_in(wefti_call_t *call);
void wefti_rpc_handed_in_late(rpc_state_t *rs);          /* with the runtime: what the driver did not do any more */

/* answer.c */
void wefti_rpc_failure(rpc_msg_t *msg, uint64_t call, const rpc_no_t *no);
static inline bool wefti_rpc_failed(const rpc_msg_t *msg) /* is this answer a failure? */
{
    rpc_head_t head;
    rpc_ext_t ext;
    memcpy(&head, msg->header, sizeof head);
    if (rpc_kind(&head) != RPC_REPLY_EXT)
        return false;
    memcpy(&ext, msg->header + sizeof head, sizeof ext);
    return ext.flags & RPC_F_FAILED;
}
/* Answer a message that has no request on the heap. am is kept while the answer waits for the peer's window, so that a peer that
 * takes no answers is not read from for ever; am_gone: it cannot be kept. WEFT_ERR_NOMEM: the caller was told that there is no
 * memory; WEFT_ERR_CANCELLED: nothing was sent. */
weft_status_t wefti_rpc_send_back(weft_am_t *am, bool am_gone, rpc_msg_t *msg);
/* What to tell the caller when results could not be sent. False: with this status the caller is gone. */
bool wefti_rpc_instead(weft_status_t st, rpc_no_t *no_out);
/* On the driver: answer a request on the heap whose `answered` was claimed. how: RPC_SEND_COPY, or 0: the pieces belong to the
 * message, or are borrowed until op completes. msg is used up. The request may be freed. */
void wefti_rpc_answer(rpc_request_t *r, rpc_msg_t *msg, unsigned how, weft_op_t *op);
void wefti_rpc_answer_no(rpc_request_t *r, const rpc_no_t *no);
void wefti_rpc_answer_handed_in(rpc_request_t *r);                 /* WORK_ANSWER */
void wefti_rpc_answer_unheld(rpc_request_t *r, weft_status_t why); /* do not send the one that waits for its stream */
void wefti_rpc_answer_again(weft_am_t *am, uint64_t call, const rpc_once_entry_t *e); /* a remembered one */

/* respond.c */
weft_status_t wefti_rpc_request_no(rpc_request_t *r, const rpc_no_t *no); /* weft_request_fail() */

#endif
