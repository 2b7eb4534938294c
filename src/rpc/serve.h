/* rpc/serve.h - what the serving side keeps: services, functions, requests, remembered replies, threads.
 *
 * A request whose function answers at once lives on the stack of its arrival and has only the fields up to `block`; every other is a block:
 *
 *     arrived --> [fetching] --> [waits for a thread] --> begun --> answered --> over --> freed
 *                     \________________ cancelled ________________/
 *
 * `answered` is claimed by whoever answers first, on any thread; `over`: the reply is on its way, or nobody wants it. The block goes when it is over,
 * the program has released it, and nothing of ours refers to it. Everything without a word about threads is the driver's. */
#ifndef WEFTI_RPC_SERVE_H
#define WEFTI_RPC_SERVE_H

#include "rpc/state.h"

/* --- once.c: calls that were made with `once`, and their replies ------------------------------------------------------------------------- */

typedef struct rpc_once_client rpc_once_client_t;

/* A call that is known. */
typedef struct rpc_once_entry {
    rpc_once_client_t *client;
    uint64_t seq;
    rpc_request_t *request;      /* runs; NULL: it was answered */
    rpc_share_t *share;          /* whose it is; NULL: nobody counts */
    wefti_list_t link;           /* the client's, in order of arrival */
    wefti_list_t age;            /* answered ones, oldest first */
    uint64_t until;              /* when it is forgotten */
    uint8_t *reply;              /* its header, padded to 8, and its payload; NULL: it is not kept, only that it ran */
    uint64_t payload_len;
    uint32_t header_len;
} rpc_once_entry_t;

/* What a service remembers. */
typedef struct rpc_book {
    wefti_map_t clients;         /* rpc_once_client_t by id */
    wefti_list_t age, idle;      /* entries that were answered; clients without entries: oldest first */
    uint32_t n, n_clients;       /* entries, clients */
    uint32_t max, max_clients;   /* of each at most so many; the same, unless the service says otherwise */
    uint32_t peer_max, peer_clients; /* and of one share; the same */
    uint64_t bytes;              /* of replies */
    uint64_t remember_ns;
    uint64_t stay_ns;            /* clients without calls; at least remember_ns, and so long if the service does not say otherwise */
} rpc_book_t;

void wefti_once_init(rpc_book_t *b, uint32_t max, uint64_t remember_ns);
void wefti_once_free(rpc_book_t *b);
/* Which call is it, that came from whose share it is (NULL: nobody's)? NEW: it is entered, and running for whoever sets entry->request. RUNNING,
 * ANSWERED: that one. GONE: it was known, and is not any more: it may have run. FULL: no room for another, or not for that peer. */
typedef enum rpc_once_found { ONCE_NEW, ONCE_RUNNING, ONCE_ANSWERED, ONCE_GONE, ONCE_FULL } rpc_once_found_t;
rpc_once_found_t wefti_once_find(rpc_book_t *b, const rpc_once_t *id, rpc_share_t *share, uint64_t now, rpc_once_entry_t **entry_out);
/* It was answered with this message, of which a copy is kept, if that takes no more than `room` bytes. Its share is charged with them. */
void wefti_once_answered(rpc_book_t *b, rpc_once_entry_t *e, const rpc_msg_t *msg, uint64_t room, uint64_t now);
/* It certainly did not run, and may come again. */
void wefti_once_forget(rpc_book_t *b, rpc_once_entry_t *e, uint64_t now);
/* Forget what is old enough. When to come again; UINT64_MAX: there is nothing. */
uint64_t wefti_once_age(rpc_book_t *b, uint64_t now);

/* --- pool.c: threads of a service ----------------------------------------------------------------------------------------------------- */

typedef struct rpc_pool rpc_pool_t;
weft_status_t wefti_rpc_pool_new(weft_service_t *service, uint32_t threads, rpc_pool_t **pool_out);
/* Have a thread run it. false: so many wait already that it cannot, or so many of its peer. */
bool wefti_rpc_pool_put(rpc_pool_t *pool, rpc_request_t *r, uint32_t most, uint32_t most_of_peer);
/* Take it back: true if no thread had taken it, and none will. *begun_out: its function was begun. */
bool wefti_rpc_pool_take_back(rpc_pool_t *pool, rpc_request_t *r, bool *begun_out);
uint32_t wefti_rpc_pool_waiting(rpc_pool_t *pool);             /* any thread */
uint32_t wefti_rpc_pool_busy(rpc_pool_t *pool);                /* any thread: waiting or running */
/* No more: when the last thread is gone wefti_rpc_service_step() is called. */
void wefti_rpc_pool_stop(rpc_pool_t *pool);
bool wefti_rpc_pool_gone(const rpc_pool_t *pool);
void wefti_rpc_pool_undo(rpc_pool_t *pool);                    /* nothing was put in: as if it had not been made. Any thread */
void wefti_rpc_pool_free(rpc_pool_t *pool);                    /* once it is gone, or with a runtime whose threads do not end */

/* --- services and functions --------------------------------------------------------------------------------------------------------- */

/* A handle (base/handle.h): it is freed on the driver, and closed before that under rs->lock; what is up to `instance` may be looked at for ever. */
struct weft_service {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    char name[RPC_NAME], instance[RPC_NAME];
    rpc_state_t *rs;
    weft_service_opts_t opts;    /* whole: no field is its default's 0 */
    uint64_t epoch;
    bool own;                    /* the library's: on no list */
    /* under rs->lock */
    wefti_list_t link;           /* rpc_state_t.services */
    wefti_list_t functions;      /* rpc_function_t.link, in the order they came */
    uint32_t alive;              /* functions that are not freed, removed ones included */
    uint32_t next_number;
    bool ended;                  /* close was called: no more functions, not found any more */
    bool called;                 /* and is on its way to the driver: it is not freed before that has come */
    /* the driver's */
    bool draining, closing;
    bool leaving;                /* publish.c: clients may not know yet that it drains, so it has not drained */
    uint32_t busy;               /* it is being worked on: not to be freed */
    wefti_list_t requests;       /* rpc_request_t.service_link */
    wefti_list_t drain_ops;
    weft_op_t *close_op;
    wefti_call_t call;           /* of close */
    rpc_pool_t *pool;            /* NULL: no threads */
    rpc_book_t book;
    rpc_budget_t *budget;
    uint32_t peer_requests, peer_queue; /* what one peer may have of them */
    wefti_timer_t forget;
    /* written by the driver, read by any thread */
    weft_service_stats_t stats;  /* under_way: blocks that are not freed; bytes: the budget has them */
    uint64_t unanswered;         /* of them, those that are not over */
};

struct rpc_function {
    uint32_t check;
    uint16_t slot;
    bool plain;                  /* may run on the stack: no thread, no stream */
    bool oneway, threads, fetch, streams;
    uint32_t number;
    weft_function_fn fn;
    void *user;
    weft_service_t *service;
    const wefti_codec_t *args, *results;
    weft_sig_t *sig;
    weft_release_fn release;
    wefti_list_t link;           /* under rs->lock */
    uint32_t refs;               /* requests of it */
    _Atomic uint32_t orphans;    /* requests of it that programs have kept longer than there was a runtime: the last one frees it */
    bool removed, handed_back;
    weft_op_t *remove_op;
    wefti_call_t call;           /* of remove */
};

static inline rpc_function_t *rpc_function(const rpc_state_t *rs, uint16_t slot)
{
    rpc_page_t page = atomic_load_explicit(&rs->functions[slot / RPC_PAGE], memory_order_acquire);
    return page ? atomic_load_explicit(&page[slot % RPC_PAGE], memory_order_acquire) : NULL;
}
static inline void rpc_count(uint64_t *counter, int64_t n) { wefti_count_up(counter, (uint64_t)n); }

/* share.c */
rpc_budget_t *wefti_rpc_budget_new(uint64_t bytes, uint32_t percent); /* percent: of it, for one peer. NULL: no memory */
void wefti_rpc_budget_leave(rpc_budget_t *budget);             /* its service goes: it stays as long as its shares do. NULL is allowed */
uint64_t wefti_rpc_budget_used(const rpc_budget_t *budget);    /* any thread */
uint32_t wefti_rpc_part(uint32_t whole, uint32_t percent);     /* at least 1 */

/* Any thread: have rs->lock, with a service that is open. Until unlock neither it nor its runtime goes. */
weft_status_t wefti_rpc_service_lock(weft_service_t *service);
void wefti_rpc_service_unlock(weft_service_t *service);
/* An operation that waits for the end of something of the service's, or of a function's: the room is not idle until it ends. The driver's. */
void wefti_rpc_op_waits(rpc_state_t *rs, weft_op_t **at, weft_op_t *op);
void wefti_rpc_op_ends(rpc_state_t *rs, weft_op_t **at, weft_status_t st); /* nothing if there is none */

void wefti_rpc_service_step(weft_service_t *service);          /* something of it ended: drained? closed? It may be freed */
void wefti_rpc_service_forget(wefti_timer_t *t);               /* weft_service_t.forget */
void wefti_rpc_service_remember(weft_service_t *service);      /* the book changed */
weft_service_t *wefti_rpc_service_new(rpc_state_t *rs, const char *name, const char *instance, const weft_service_opts_t *opts); /* NULL: no memory */
void wefti_rpc_service_delete(weft_service_t *service);

/* own: the library's, whose names begin with "weft.". */
weft_status_t wefti_rpc_function_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                                     const weft_function_opts_t *opts, bool own);
void wefti_rpc_function_unref(rpc_function_t *f);
/* With the runtime: another request of it becomes an orphan; an orphan has gone, any thread. */
void wefti_rpc_function_orphan(rpc_function_t *f);
void wefti_rpc_function_unorphan(rpc_function_t *f);
void wefti_rpc_functions_remove(weft_service_t *service);      /* all of them; it closes */
void wefti_rpc_functions_orphan(weft_service_t *service);      /* with the runtime: first this, before any request goes */
void wefti_rpc_functions_free(weft_service_t *service);        /* and then this */
void wefti_rpc_bind(rpc_state_t *rs, weft_am_t *am, const rpc_head_t *head);
size_t wefti_rpc_functions_text(weft_service_t *service, char *buf, size_t cap); /* under rs->lock */
weft_status_t wefti_rpc_reflect(rpc_state_t *rs);

/* --- requests: request.c, block.c, answer.c --------------------------------------------------------------------------------------------------- */

/* An answer that waits: for the driver, or for a stream. */
typedef struct rpc_answer {
    uint32_t len, iov_n;
    uint64_t payload;
    void *bytes;                 /* as rpc_msg_t has it */
    weft_iov_t *iov;
    _Alignas(8) uint8_t header[];
} rpc_answer_t;

enum { WORK_ANSWER = 1, WORK_TELL = 2, WORK_LATE = 4, WORK_RELEASE = 8 };
enum { LEFT_BY_ROOM = 1, LEFT_BY_PROGRAM = 2 };

struct rpc_request {
    weft_request_t pub;          /* first, so that the two pointers are one */
    rpc_function_t *fn;
    weft_ep_t *ep;               /* NULL: its caller is gone */
    uint64_t call;
    rpc_request_t *moved;        /* of one on the stack: the block that keeps it */
    weft_am_t *am;               /* of one on the stack */
    rpc_where_t where;
    uint64_t deadline;           /* of a block: when, in fabric time; UINT64_MAX: none */
    _Atomic bool answered;
    bool block;                  /* from here on only blocks */

    weft_runtime_t *rt;
    _Atomic uint32_t left;       /* LEFT_*: with the runtime, or after it. Whoever leaves last frees it */
    _Atomic bool kept;           /* the program has it: set inside the function */
    bool begun, queued;          /* by a thread, for a thread: under the pool's lock */
    bool fetching, over, released, mapped;
    bool waiting;                /* `answer` waits for the stream */
    uint32_t refs;               /* of ours: a reply on its way, a fetch */
    _Atomic uint32_t coming;     /* fetches that sit in the inbox: counted up by any thread */
    _Atomic uint32_t holds;      /* the program's, and whoever runs it */
    _Atomic bool cancelled;
    _Atomic uint32_t work;       /* WORK_*: any thread */
    wefti_mpsc_node_t handed;    /* rpc_state_t.handed_in */
    rpc_in_t *in;
    rpc_share_t *share;          /* whose it is */
    wefti_list_t ep_link, service_link;
    wefti_list_t pool_link;
    wefti_timer_t timer;
    rpc_answer_t *answer;
    weft_op_t *answer_op;        /* of weft_request_reply_from(): the answer's pieces are borrowed until it completes */
    rpc_out_t *out;
    weft_op_t *fetch_op;
    rpc_once_entry_t *once;
    weft_cancel_fn on_cancel;    /* these three: under rs->lock */
    void *on_cancel_user;
    bool told;
};

static inline rpc_request_t *rpc_request(const weft_request_t *request)
{
    rpc_request_t *r = (rpc_request_t *)(uintptr_t)request;
    return r->moved ? r->moved : r;
}
static inline weft_runtime_t *rpc_request_rt(const rpc_request_t *r) { return r->block ? r->rt : r->fn->service->rt; }

/* Why a request ends before it was answered. */
typedef enum rpc_end_why { END_CANCELLED, END_LATE, END_PEER, END_CLOSED } rpc_end_why_t;
void wefti_rpc_request_end(rpc_request_t *r, rpc_end_why_t why);
void wefti_rpc_request_over(rpc_request_t *r);                 /* nobody waits for it any more. It may be freed */
void wefti_rpc_request_unref(rpc_request_t *r);                /* it may be freed */
void wefti_rpc_request_detach(rpc_request_t *r);               /* from its endpoint */
void wefti_rpc_request_discard(rpc_request_t *r);              /* with the runtime: an orphan, if the program holds it */
void wefti_rpc_handed_in_late(rpc_state_t *rs);                /* with the runtime: what nobody works off any more */
void wefti_rpc_answer_free(rpc_request_t *r);                  /* r->answer goes unsent. NULL is allowed */
void wefti_rpc_request_drop(rpc_request_t *r);                 /* one hold less; any thread */
void wefti_rpc_hand_in(rpc_request_t *r, uint32_t work);       /* have the driver do it; any thread */
void wefti_rpc_handed_in(wefti_call_t *call);

/* A failure as a message. ran: RPC_F_NOT_RUN, with RPC_F_UNBOUND or alone; RPC_F_MAYBE; or 0: the function answered. */
typedef struct rpc_no {
    unsigned ran;
    weft_code_t code;
    uint32_t category;
    int32_t value;
    const char *message;         /* NULL: none */
} rpc_no_t;
static inline rpc_no_t rpc_exhausted(const char *message)
{
    return (rpc_no_t){.ran = RPC_F_NOT_RUN, .code = WEFT_CODE_RESOURCE_EXHAUSTED, .message = message};
}
/* Make a block of a call that came. NULL: why not is in *no_out, but code 0: the peer broke the rules, and the endpoint fails. *am_gone_out: the
 * message belongs to the block. */
rpc_request_t *wefti_rpc_block_new(rpc_function_t *f, weft_am_t *am, uint64_t call, uint64_t left_ns, const rpc_where_t *where, rpc_no_t *no_out,
                                   bool *am_gone_out);
void wefti_rpc_failure(rpc_msg_t *msg, uint64_t call, const rpc_no_t *no);
/* Send an answer to a message that does not become a request. am is kept while the answer waits for the peer's window, so that a peer that takes no
 * answers is not read from for ever; am_gone: it cannot be. */
void wefti_rpc_send_back(weft_am_t *am, bool am_gone, rpc_msg_t *msg);
/* On the driver: the answer of a block whose `answered` was claimed. how: RPC_SEND_COPY, or 0: the pieces are the message's own, or borrowed until op
 * completes. msg is used up. The request may be freed. */
void wefti_rpc_answer(rpc_request_t *r, rpc_msg_t *msg, unsigned how, weft_op_t *op);
void wefti_rpc_answer_no(rpc_request_t *r, const rpc_no_t *no);
void wefti_rpc_answer_handed_in(rpc_request_t *r);             /* WORK_ANSWER */
void wefti_rpc_answer_unheld(rpc_request_t *r, weft_status_t why); /* one that waits for its stream is not sent */
void wefti_rpc_answer_again(weft_am_t *am, uint64_t call, const rpc_once_entry_t *e); /* a remembered one */
weft_status_t wefti_rpc_request_no(rpc_request_t *r, const rpc_no_t *no); /* weft_request_fail() */

#endif
