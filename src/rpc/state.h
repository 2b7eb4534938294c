/* rpc/state.h - what both sides of calls share: state per runtime and per endpoint, messages that go out, values that come in.
 *
 * The calling side is in client.h, the serving side in serve.h, streams are in stream.h. Everything belongs to the driver of the
 * runtime unless a comment says otherwise; other threads come through wefti_call_on_driver() or an operation. */
#ifndef WEFTI_RPC_STATE_H
#define WEFTI_RPC_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <weft/service.h>

#include "am/am.h"
#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/slots.h"
#include "conn/conn.h"
#include "rpc/codec.h"
#include "rpc/rpc.h"
#include "rpc/wire.h"

#define RPC_PATIENCE (20 * WEFT_SECOND) /* how long a client waits for the return of a server that remembers a call */
#define RPC_NAME 64u /* bytes of the name of a service or instance, with the zero at the end */

typedef struct rpc_total rpc_total_t;
typedef struct rpc_function rpc_function_t;
typedef struct rpc_request rpc_request_t;
typedef struct rpc_server rpc_server_t;
typedef struct rpc_binding rpc_binding_t;
typedef struct rpc_call rpc_call_t;

#define RPC_PAGE 256u /* functions of a page */
#define RPC_PAGES 256u
#define RPC_CLOSED 16u  /* a runtime remembers the names of so many closed services */
#define RPC_CHECKS 256u /* and the checks of so many of their functions */
typedef _Atomic(rpc_function_t *) *rpc_page_t;

/* --- per runtime, per endpoint ---------------------------------------------------------------------------------------- */

typedef struct rpc_state {
    weft_runtime_t *rt;
    /* the serving side: service.c, function.c */
    pthread_mutex_t lock;              /* of services and functions: any thread adds, removes and reads them */
    wefti_list_t services;             /* weft_service_t.link */
    char closed[RPC_CLOSED][RPC_NAME]; /* names of closed services; their callers are late, not wrong */
    uint32_t closed_n;                 /* how many there have been */
    uint32_t checks[RPC_CHECKS];       /* the driver's: rpc_function_t.check of their functions, the oldest is overwritten */
    uint32_t checks_n;
    _Atomic(rpc_page_t) functions[RPC_PAGES]; /* by slot. A page is made for its first function and stays. Written under the lock,
                                                 read without: functions are freed on the driver, so nobody can have found one */
    _Atomic(rpc_page_t) pages[RPC_PAGES]; /* the same; while the policy limits calls the one above is empty: rules.c */
    uint64_t rules;                    /* the policy that `limited` is of; 0: there has been none. With it the driver's, written
                                          under the lock */
    bool limited;                      /* the policy limits calls */
    uint32_t serial;                   /* goes into checks and epochs */
    wefti_mpsc_t handed_in;            /* rpc_request_t.handed: requests with work from other threads */
    wefti_call_t call;                 /* has the driver do that work: sent with the first on the list */
    rpc_request_t *spare;              /* the driver's: memory of requests that are gone, by `moved` */
    uint32_t spare_n;
    weft_service_t *own;               /* the functions that every runtime has: function.c */
    /* the calling side: client.c */
    wefti_list_t clients;              /* weft_client_t.link */
    _Atomic uint32_t under_way;        /* operations and threads of ours that have not ended: we are idle when it is 0 */
    weft_pool_t *pool;                 /* for payloads that come in; made with the first */
    /* discovery: reach.c, publish.c */
    pthread_mutex_t finding;           /* of the next two: any thread opens a client and publishes a service */
    weft_registry_t *registry;         /* the configured one, for those that were given none; NULL: nobody uses it */
    uint32_t registry_users;
    wefti_list_t strays;               /* the driver's: targets that endpoints may still name, freed with the runtime */
    bool ending;                       /* under `lock`: the runtime closes, no more services */
    uint64_t random;                   /* ids and epochs are made from it */
    uint64_t marks;                    /* stall.c: how many were made */
    _Atomic uint64_t detached;         /* bytes of calls without an operation: call.c */
    weft_op_t handle_op[2];
} rpc_state_t;

static inline rpc_state_t *rpc_state(const weft_runtime_t *rt) { return (rpc_state_t *)rt->room_state[WEFTI_ROOM_RPC]; }
static inline void rpc_begin(rpc_state_t *rs) { atomic_fetch_add_explicit(&rs->under_way, 1, memory_order_relaxed); }
static inline void rpc_end(rpc_state_t *rs) { atomic_fetch_sub_explicit(&rs->under_way, 1, memory_order_release); }

/* Counters are written by the driver and read by any thread. */
static inline void rpc_count(uint64_t *counter, int64_t n) { wefti_count_up(counter, (uint64_t)n); }
static inline uint64_t rpc_read(const uint64_t *counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }
static inline void rpc_read_all(uint64_t *to, const uint64_t *counters, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] = rpc_read(&counters[i]);
}

static inline void rpc_add_all(uint64_t *to, const uint64_t *counters, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] += counters[i];
}

typedef struct rpc_ep {
    /* what we ask of the peer */
    wefti_slots_t calls;       /* id -> weft_op_t of a call that was sent */
    wefti_list_t sent;         /* those operations, by opx->link */
    wefti_slots_t binds;       /* id -> rpc_binding_t that was asked for */
    wefti_list_t servers;      /* rpc_server_t.ep_link: clients over this endpoint */
    /* what the peer asks of us */
    wefti_map_t requests;      /* call id -> rpc_request_t on the heap that is not answered */
    wefti_list_t request_list; /* rpc_request_t.ep_link: the same, and those that are answered but not released */
    wefti_map_t may;           /* rules.c: what it was bound to, slot + 1 -> check; only if there has been a policy */
    uint64_t rules;            /* the policy by which that was judged */
    /* what is pulled from it, for both sides: stall.c */
    weft_ep_t *ep;
    wefti_list_t pulls;        /* rpc_fetch_t.watch */
    uint64_t moved_at;         /* when something of them came last */
    uint64_t look_pause;
    wefti_timer_t look;
} rpc_ep_t;

static inline rpc_ep_t *rpc_ep(const weft_ep_t *ep) { return (rpc_ep_t *)ep->traffic[WEFTI_TRAFFIC_RPC]; }

/* rpc.c. Any thread: take rs->lock, if that object of the runtime is open. Neither it nor its runtime is freed until unlock. Call
 * nothing of the program meanwhile. WEFT_ERR_CLOSED, with `what` in its sentence; WEFT_ERR_FORKED. */
weft_status_t wefti_rpc_lock(weft_runtime_t *rt, const wefti_handle_t *handle, const char *what);
void wefti_rpc_unlock(weft_runtime_t *rt);

/* The end of a client, a service or a function. It may wait for calls and requests. */
typedef struct rpc_ending {
    wefti_call_t call; /* begins it on the driver */
    weft_op_t *op;     /* of the program; NULL: it does not wait, or does not wait any more */
} rpc_ending_t;
/* Any thread: begin it, with an operation or without (NULL). claim() makes sure that only one thread does, and that the object
 * stays until call.fn() has run. */
enum { ENDS_CLIENT, ENDS_SERVICE, ENDS_FUNCTION };
weft_status_t wefti_rpc_end(weft_runtime_t *rt, unsigned what, weft_op_t *op,
                            weft_status_t (*claim)(void *arg, rpc_ending_t **out), void *arg);
/* It has ended, or its operation does not wait any more. Nothing if there is no operation. */
void wefti_rpc_ended(rpc_state_t *rs, rpc_ending_t *ending, weft_status_t st);

/* Start a prepared operation, as wefti_op_post_by(). While it sits in the inbox, *hold and *coming (may be NULL) are one higher:
 * the start function of its kind lowers them again. */
weft_status_t wefti_rpc_go(weft_runtime_t *rt, weft_op_t *op, weft_status_t (*start)(weft_op_t *op), _Atomic uint32_t *hold,
                           _Atomic uint32_t *coming);

/* --- send.c: messages that go out ------------------------------------------------------------------------------------- */

/* A message that is being made, on the stack. */
#define RPC_HEADER_CAP (128u + RPC_INLINE)
typedef struct rpc_msg {
    uint32_t len;     /* of header */
    uint32_t iov_n;
    uint64_t payload; /* bytes of all pieces */
    void *bytes;      /* the allocation that the first piece of iov is in, freed when the message was sent; NULL: none */
    _Alignas(8) uint8_t header[RPC_HEADER_CAP];
    weft_iov_t iov[WEFTI_CODEC_PIECES + 2];
} rpc_msg_t;

/* Begin with the head; the caller puts the rest behind it. */
static inline void rpc_msg_init(rpc_msg_t *msg, rpc_head_t head)
{
    msg->iov_n = 0;
    msg->payload = 0;
    msg->bytes = NULL;
    memcpy(msg->header, &head, sizeof head);
    msg->len = sizeof head;
}
/* Returns where it was put: it stays there, aligned to 8 if what was put before were multiples of 8. */
static inline void *rpc_msg_put(rpc_msg_t *msg, const void *p, size_t n)
{
    void *at = msg->header + msg->len;
    if (n)
        memcpy(at, p, n);
    msg->len += (uint32_t)n;
    return at;
}
/* An empty rpc_ext_t, for flags that are set later. */
static inline rpc_ext_t *rpc_msg_put_ext(rpc_msg_t *msg)
{
    rpc_ext_t none = {0};
    return (rpc_ext_t *)rpc_msg_put(msg, &none, sizeof none);
}

/* Put values behind what is there (a multiple of 8 bytes). Values that do not fit the header become the first bytes of the
 * payload: `ext`, in the header, gets RPC_F_BYTES and their length. WEFT_ERR_LIMIT: they do not fit and ext is NULL: begin again
 * with one. Also WEFT_ERR_INVALID, _UNSUPPORTED, _NOMEM. After an error nothing is to be freed. */
weft_status_t wefti_rpc_pack(rpc_msg_t *msg, const wefti_codec_t *codec, const weft_value_t *values, size_t n, rpc_ext_t *ext);
/* A whole call, or a whole reply (their kinds are the same numbers), with an rpc_ext_t only if it has a payload. */
static inline weft_status_t rpc_pack_whole(rpc_msg_t *msg, uint64_t call, const wefti_codec_t *codec, const weft_value_t *values,
                                           size_t n)
{
    rpc_msg_init(msg, rpc_head(RPC_CALL, call));
    weft_status_t st = wefti_rpc_pack(msg, codec, values, n, NULL);
    if (__builtin_expect((st && st != WEFT_ERR_LIMIT) || (!st && !msg->iov_n), 1))
        return st;
    rpc_msg_init(msg, rpc_head(RPC_CALL_EXT, call));
    return wefti_rpc_pack(msg, codec, values, n, rpc_msg_put_ext(msg));
}
void wefti_rpc_msg_free(rpc_msg_t *msg); /* it is not sent */

enum {
    RPC_SEND_COPY = 1,   /* what the pieces view is copied */
    RPC_SEND_URGENT = 2,
    RPC_KEEP_ALL = 4     /* everything is copied, and the message stays as it is */
};
/* A message that is kept, as one allocation. What the pieces view is borrowed, or in it. */
typedef struct rpc_kept {
    uint32_t len, iov_n;
    uint64_t payload;
    void *bytes;     /* as rpc_msg_t has it */
    weft_iov_t *iov;
    bool copied;     /* the pieces are one, which is in this allocation */
    bool lent;       /* the memory is not its own: it is not freed */
    _Alignas(8) uint8_t header[];
} rpc_kept_t;
/* how: RPC_SEND_COPY, RPC_KEEP_ALL or 0. Otherwise msg is used up. After an error it is as it was. */
weft_status_t wefti_rpc_keep(rpc_msg_t *msg, unsigned how, rpc_kept_t **kept_out);
size_t wefti_rpc_kept_size(const rpc_msg_t *msg, unsigned how);
weft_status_t wefti_rpc_keep_at(rpc_kept_t *kept, rpc_msg_t *msg, unsigned how); /* the same, in memory of that size */
void wefti_rpc_kept_view(const rpc_kept_t *kept, rpc_msg_t *msg_out); /* it is valid as long as kept, and not to be freed */
void wefti_rpc_kept_take(rpc_kept_t *kept, rpc_msg_t *msg_out);       /* a message again; kept is used up */
void wefti_rpc_kept_free(rpc_kept_t *kept);                           /* NULL is allowed */

/* Send over an endpoint, on the driver. A message without a payload goes at once if there is space: then *out_out is NULL and
 * done is not called. Otherwise *out_out is a copy that is kept until it is sent (`bytes` go with it; what the pieces view is
 * borrowed, or copied with RPC_SEND_COPY), and done(user, status), unless it is NULL, is called from progress. After an error
 * nothing is sent and nothing kept. */
typedef void (*rpc_out_fn)(void *user, weft_status_t status);
typedef struct rpc_out {
    weft_op_t op;    /* cancelled: done() comes with WEFT_ERR_CANCELLED, or with how it ended before */
    rpc_state_t *rs;
    rpc_out_fn done; /* NULL: nobody wants to know */
    void *user;
} rpc_out_t;         /* an rpc_kept_t follows */
weft_status_t wefti_rpc_send(weft_ep_t *ep, uint32_t am_id, rpc_msg_t *msg, unsigned how, rpc_out_fn done, void *user,
                             rpc_out_t **out_out);
/* A whole call, or a whole reply, of scalars alone: written to where it leaves from. False: nothing happened, since these are
 * other values, or it cannot leave now: wefti_rpc_pack() and wefti_rpc_send() then do it, or say what is wrong. */
bool wefti_rpc_send_scalars(weft_ep_t *ep, uint32_t am_id, rpc_head_t head, const wefti_codec_t *codec,
                            const weft_value_t *values, size_t n);
bool wefti_rpc_out_unsent(const rpc_out_t *out); /* certainly nothing of it left */
/* answer.c: a reply that waited ended with `why`, and its endpoint is up. Its caller is told that no result comes. */
void wefti_rpc_reply_unsent(weft_ep_t *ep, uint64_t call, weft_status_t why);

/* --- share.c: the memory that one peer makes a service hold ----------------------------------------------------------- */

typedef struct rpc_budget rpc_budget_t;
typedef struct rpc_share {
    rpc_budget_t *budget;
    weft_ep_id_t who;
    uint64_t bytes;
    uint32_t refs;
    uint32_t requests;         /* under way */
    uint32_t waiting;          /* of them, for a thread; some may have begun: pool.c */
    wefti_list_t waits[2];     /* those, by rpc_request_t.wait_link: for threads, and for functions that are `serial` */
    uint32_t entries, clients; /* once.c */
} rpc_share_t;
/* The share of that endpoint, with one reference more; NULL: no memory. */
rpc_share_t *wefti_rpc_share(rpc_budget_t *budget, weft_ep_id_t who);
void wefti_rpc_share_put(rpc_share_t *share);       /* one reference less; NULL is allowed */
uint64_t wefti_rpc_space(const rpc_share_t *share); /* bytes that it may still take */
/* Take n bytes. False: it may not, and *why_out is a sentence for its caller. */
bool wefti_rpc_charge(rpc_share_t *share, uint64_t n, const char **why_out);
void wefti_rpc_charge_more(rpc_share_t *share, uint64_t n); /* without asking: for a few bytes that were not known before */
void wefti_rpc_uncharge(rpc_share_t *share, uint64_t n);

/* --- fetch.c: values that came with a message ------------------------------------------------------------------------- */

/* Where the values of a message are: behind `at` bytes of its header, or in its payload (ext with RPC_F_BYTES; ext may be
 * NULL). */
typedef struct rpc_where {
    const wefti_codec_t *codec;
    size_t at;
    const rpc_ext_t *ext;
} rpc_where_t;

/* Decode values that are all here, in place. They are valid as long as the message; wefti_decoded_free(d) afterwards.
 * WEFT_ERR_AGAIN: the payload is still at the sender. WEFT_ERR_PROTOCOL, WEFT_ERR_NOMEM. */
weft_status_t wefti_rpc_values_here(const weft_am_t *am, const rpc_where_t *where, weft_value_t *values_out, wefti_decoded_t *d);

/* Values that stay: a copy of what was in the message, and the payload once it was fetched. */
typedef struct rpc_in rpc_in_t;
typedef struct rpc_fetch rpc_fetch_t;
struct rpc_in {
    rpc_state_t *rs;
    const wefti_codec_t *codec;
    weft_value_t *values; /* valid when it is ready. Before that pieces have no data, and with RPC_F_BYTES there is nothing */
    uint64_t missing;     /* bytes that are still at the sender; 0: ready */
    uint64_t space;       /* bytes of a buffer for the payload: each piece aligned to 64, nothing behind the last */
    void *payload;        /* memory of the pool; NULL: none, or the caller's buffer */
    weft_pool_t *pool;    /* that pool */
    rpc_fetch_t *fetch;   /* NULL: everything came with the message */
    rpc_share_t *share;   /* a reference to who pays for `charged` bytes, given back on the driver. NULL: nobody pays */
    uint64_t charged;
    bool lent;            /* the memory is not its own: it is not freed */
    wefti_decoded_t decoded;
};
/* A payload that is at the sender, and how it comes here. */
struct rpc_fetch {
    weft_am_t *am; /* kept, while something is missing */
    uint32_t bytes_len;
    bool bytes_missing; /* RPC_F_BYTES */
    bool under_way, dead;
    void (*done)(void *user, weft_status_t status);
    void *user;
    weft_op_t op;
    weft_iov_t *iov;
    /* stall.c */
    uint64_t stall_ns;  /* UINT64_MAX: it may take for ever */
    rpc_ep_t *watched;  /* NULL: it is not */
    wefti_list_t watch;
    const weft_iov_t *mark_iov;
    size_t mark_n, mark_piece;
    uint64_t mark_step, mark_since, mark_off, mark_end; /* bytes between two marks, since the last one, and in the piece */
    uint64_t mark;
};
/* From the handler of the message. NULL, and *why_out: WEFT_ERR_PROTOCOL, WEFT_ERR_NOMEM. space: wefti_rpc_in_cost() bytes for
 * it, aligned to 16, if all of the message is here; NULL: it gets memory of its own. */
rpc_in_t *wefti_rpc_in_new(rpc_state_t *rs, weft_am_t *am, const rpc_where_t *where, void *space, weft_status_t *why_out);
/* Bring what is missing into memory of the pool (buf NULL) or into the caller's. done() comes from progress with WEFT_OK: ready;
 * with the status of the pull; or with WEFT_ERR_PROTOCOL: these are not such values. Fails at once: WEFT_ERR_TRUNCATED,
 * WEFT_ERR_NOMEM, WEFT_ERR_UNSUPPORTED (RPC_F_BYTES and the caller's buffer). stall_ns: if nothing of it comes for so long, its
 * endpoint fails. */
weft_status_t wefti_rpc_in_fetch(rpc_in_t *in, void *buf, size_t cap, const weft_mem_kind_t *kind, uint64_t stall_ns,
                                 void (*done)(void *user, weft_status_t status), void *user);
#define RPC_STALL_NS (30 * WEFT_SECOND) /* the default */
/* The bytes that it takes, without a payload that is still at the sender. */
uint64_t wefti_rpc_in_cost(const weft_am_t *am, const rpc_where_t *where);
/* From now on that share pays n bytes for it (the reference goes along); NULL: nobody does. On the driver. */
void wefti_rpc_in_charge(rpc_in_t *in, rpc_share_t *share, uint64_t n);
/* Let go of it. A fetch that is under way goes on without us and done is not called; not with a buffer of the caller's. NULL is
 * allowed. */
void wefti_rpc_in_free(rpc_in_t *in);

/* stall.c: pulls that are watched. */
void wefti_rpc_watch_init(weft_ep_t *ep);
/* Before it is pulled. iov is memory of the host, and stays. */
void wefti_rpc_watch_marks(rpc_fetch_t *f, const weft_iov_t *iov, size_t n, uint64_t mark);
void wefti_rpc_watch(rpc_fetch_t *f, weft_ep_t *ep); /* it is under way, over an endpoint that is up; nothing without marks */
void wefti_rpc_unwatch(rpc_fetch_t *f);              /* it has ended */
void wefti_rpc_watch_down(weft_ep_t *ep);

/* publish.c, also for reach.c: the registry that was given, or, with NULL, the one that the configuration names. There is one of
 * those for the runtime, open as long as anyone uses it: a registry has a thread, and in a directory a lock for each entry. Any
 * thread. */
weft_status_t wefti_rpc_registry_get(rpc_state_t *rs, weft_registry_t *given, weft_registry_t **registry_out);
void wefti_rpc_registry_put(rpc_state_t *rs, weft_registry_t *registry); /* NULL is allowed */

#endif
