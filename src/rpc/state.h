/* rpc/state.h - what rpc keeps: per runtime, per endpoint; a client with its methods, servers and calls; a service with its functions and requests.
 *
 * Everything belongs to the driver of the runtime, except what says otherwise. What other threads ask for (an answer, a release) goes through
 * wefti_call_on_driver() or an operation. */
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

#define RPC_NAME 64u /* of a service or instance, with the zero at the end */

typedef struct rpc_function rpc_function_t;
typedef struct rpc_request rpc_request_t;
typedef struct rpc_server rpc_server_t;
typedef struct rpc_binding rpc_binding_t;
typedef struct rpc_call rpc_call_t;

#define RPC_PAGE 256u  /* functions of a page */
#define RPC_PAGES 256u
#define RPC_CLOSED 16u   /* names of closed services that a runtime knows */
#define RPC_CHECKS 256u  /* and checks of their functions */
typedef _Atomic(rpc_function_t *) *rpc_page_t;

/* --- per runtime, per endpoint ----------------------------------------------------------------------------------------------- */

typedef struct rpc_state {
    weft_runtime_t *rt;
    /* the serving side: service.c */
    pthread_mutex_t lock;        /* of services and functions, which any thread may add, remove and look at */
    wefti_list_t services;       /* weft_service_t.link */
    char closed[RPC_CLOSED][RPC_NAME]; /* names of services that were closed, the oldest is forgotten: whoever asks for one was not wrong, but late */
    uint32_t closed_n;           /* so many were */
    uint32_t checks[RPC_CHECKS]; /* the driver's: rpc_function_t.check of their functions, the oldest is forgotten */
    uint32_t checks_n;
    _Atomic(rpc_page_t) functions[RPC_PAGES]; /* by slot, in pages that come with the first and stay; written under the lock, read without.
                                    Functions are freed on the driver, where nobody else can have found one */
    uint32_t serial;             /* of checks */
    wefti_mpsc_t handed_in;      /* rpc_request_t.handed: requests with work from other threads */
    wefti_call_t call;           /* to work them off: whoever hands in the first sends it */
    weft_service_t *own;         /* the functions that every runtime has: reflect.c */
    /* the calling side: client.c */
    wefti_list_t clients;        /* weft_client_t.link */
    _Atomic uint32_t under_way;  /* operations and threads of ours whose end is awaited: the room is not idle before it is 0 */
    weft_pool_t *pool;           /* payloads that come in; made with the first */
    /* discovery: reach.c, publish.c */
    pthread_mutex_t finding;     /* of these: any thread opens a client and publishes a service */
    weft_registry_t *registry;   /* the configured one, for those that were given none; NULL: nobody uses it */
    uint32_t registry_users;
    wefti_list_t published;
    wefti_list_t strays;         /* the driver's: what endpoints may still name that the closing runtime has to close itself */
    bool ending;                 /* under the lock: the runtime closes, and there are no more services */
    uint64_t random;             /* ids and epochs are made of it */
    uint64_t marks;              /* stall.c: so many were made */
    _Atomic uint64_t detached;   /* bytes of detached.c */
    weft_op_t handle_op[2];
} rpc_state_t;

static inline rpc_state_t *rpc_state(const weft_runtime_t *rt) { return (rpc_state_t *)rt->room_state[WEFTI_ROOM_RPC]; }
static inline void rpc_begin(rpc_state_t *rs) { atomic_fetch_add_explicit(&rs->under_way, 1, memory_order_relaxed); }
static inline void rpc_end(rpc_state_t *rs) { atomic_fetch_sub_explicit(&rs->under_way, 1, memory_order_release); }

typedef struct rpc_ep {
    /* ours: what we ask of the peer */
    wefti_slots_t calls;         /* id -> weft_op_t of a call that was sent */
    wefti_list_t sent;           /* those operations, by opx->link */
    wefti_slots_t binds;         /* id -> rpc_binding_t that was asked */
    wefti_list_t servers;        /* rpc_server_t.ep_link: clients over this endpoint */
    /* the peer's: what it asks of us */
    wefti_map_t requests;        /* call id -> rpc_request_t, kept ones that are not answered */
    wefti_list_t request_list;   /* rpc_request_t.ep_link: the same, and those that are answered but not released */
    /* what comes from it, for both sides: stall.c */
    weft_ep_t *ep;
    wefti_list_t pulls;          /* rpc_fetch_t.watch */
    uint64_t moved_at;           /* when something of them came last */
    uint64_t look_pause;
    wefti_timer_t look;
} rpc_ep_t;

static inline rpc_ep_t *rpc_ep(const weft_ep_t *ep) { return (rpc_ep_t *)ep->traffic[WEFTI_TRAFFIC_RPC]; }

/* --- send.c: messages of ours, for both sides ------------------------------------------------------------------------------------------- */

/* A message that is being made, on the stack. */
#define RPC_HEADER_CAP (128u + RPC_INLINE)
typedef struct rpc_msg {
    uint32_t len;                /* of header */
    uint32_t iov_n;
    uint64_t payload;            /* bytes of all pieces */
    void *bytes;                 /* values that did not fit the header: allocated, and the first piece of iov. NULL: they did */
    _Alignas(8) uint8_t header[RPC_HEADER_CAP];
    weft_iov_t iov[WEFTI_CODEC_PIECES + 2];
} rpc_msg_t;

/* Begin: the head, and room for what the caller puts behind it. */
static inline void rpc_msg_init(rpc_msg_t *msg, rpc_head_t head)
{
    msg->iov_n = 0;
    msg->payload = 0;
    msg->bytes = NULL;
    memcpy(msg->header, &head, sizeof head);
    msg->len = sizeof head;
}
static inline void *rpc_msg_put(rpc_msg_t *msg, const void *p, size_t n) /* it stays there, aligned to 8 if those before it were multiples of 8 */
{
    void *at = msg->header + msg->len;
    if (n)
        memcpy(at, p, n);
    msg->len += (uint32_t)n;
    return at;
}

/* Put values behind what is there (a multiple of 8 bytes). Where they do not fit the header, `ext` (in the header) gets RPC_F_BYTES and their
 * length. WEFT_ERR_LIMIT: they do not fit and ext is NULL: begin again with one. Otherwise WEFT_ERR_INVALID, _UNSUPPORTED, _NOMEM. On an error
 * nothing is to be freed. */
weft_status_t wefti_rpc_pack(rpc_msg_t *msg, const wefti_codec_t *codec, const weft_value_t *values, size_t n, rpc_ext_t *ext);
void wefti_rpc_msg_free(rpc_msg_t *msg); /* it is not sent after all */
weft_status_t wefti_rpc_msg_own(rpc_msg_t *msg); /* copy what its pieces view: one piece, `bytes`, is left. WEFT_ERR_NOMEM: as it was */

/* Send it over an endpoint, on the driver. At once if it has no payload and there is room: then *out_out is NULL and done is not called. Otherwise a
 * copy of it is kept until it is sent (`bytes` go with it; what the pieces view is borrowed, or copied too with RPC_SEND_COPY), *out_out is it, and
 * done(user, status) is called from progress. On an error nothing is sent and nothing kept. RPC_SEND_NO_WAIT: WEFT_ERR_AGAIN instead of waiting for
 * the peer's window. */
typedef struct rpc_out rpc_out_t;
typedef void (*rpc_out_fn)(void *user, weft_status_t status);
enum { RPC_SEND_COPY = 1, RPC_SEND_URGENT = 2, RPC_SEND_NO_WAIT = 4 };
weft_status_t wefti_rpc_send(weft_ep_t *ep, uint32_t am_id, rpc_msg_t *msg, unsigned how, rpc_out_fn done, void *user, rpc_out_t **out_out);
void wefti_rpc_out_cancel(rpc_out_t *out); /* done() comes with WEFT_ERR_CANCELLED, or with how it ended before */
void wefti_rpc_out_forget(rpc_out_t *out); /* it goes on, and done() is not called */
void wefti_rpc_out_user(rpc_out_t *out, void *user); /* what done() gets */
bool wefti_rpc_out_unsent(const rpc_out_t *out); /* certainly nothing of it left */
/* answer.c: a reply that waited ended with this, and its endpoint is up: where that is no word of the caller's, it hears that nothing comes. */
void wefti_rpc_reply_unsent(weft_ep_t *ep, uint64_t call, weft_status_t why);

/* --- share.c: what one peer makes a service hold. The driver's, but what says otherwise ------------------------------------------------------ */

typedef struct rpc_budget rpc_budget_t;
typedef struct rpc_share {
    rpc_budget_t *budget;
    weft_ep_id_t who;
    uint64_t bytes;
    uint32_t refs;
    uint32_t requests;           /* under way */
    uint32_t waiting;            /* of them, for a thread: under the pool's lock */
    uint32_t entries, clients;   /* once.c */
} rpc_share_t;
/* The share of that endpoint, with one reference more; NULL: no memory. */
rpc_share_t *wefti_rpc_share(rpc_budget_t *budget, weft_ep_id_t who);
void wefti_rpc_share_put(rpc_share_t *share);                  /* NULL is allowed */
uint64_t wefti_rpc_room(const rpc_share_t *share);             /* bytes that it may still take */
/* Take n bytes. false: it may not, and why is a sentence for its caller. */
bool wefti_rpc_charge(rpc_share_t *share, uint64_t n, const char **why_out);
void wefti_rpc_charge_more(rpc_share_t *share, uint64_t n);    /* the same without asking: a little that was not known before */
void wefti_rpc_uncharge(rpc_share_t *share, uint64_t n);

/* --- fetch.c: what came with a message, for both sides ------------------------------------------------------------------------------------ */

/* Where the values of a message are: behind `at` bytes of its header, or in its payload (ext with RPC_F_BYTES; ext may be NULL). */
typedef struct rpc_where {
    const wefti_codec_t *codec;
    size_t at;
    const rpc_ext_t *ext;
} rpc_where_t;

/* Everything is here: decode it where it is. The values are valid as long as the message; wefti_decoded_free(d) afterwards. WEFT_ERR_AGAIN: the
 * payload is still at the sender. WEFT_ERR_PROTOCOL, WEFT_ERR_NOMEM. */
weft_status_t wefti_rpc_values_here(const weft_am_t *am, const rpc_where_t *where, weft_value_t *values_out, wefti_decoded_t *d);

/* Values that stay: a copy of what was in the message, and the payload once it was fetched. */
typedef struct rpc_in rpc_in_t;
typedef struct rpc_fetch rpc_fetch_t;
struct rpc_in {
    rpc_state_t *rs;
    const wefti_codec_t *codec;
    weft_value_t *values;        /* valid when it is ready; before that the data of pieces is NULL, and with RPC_F_BYTES there is nothing */
    uint64_t missing;            /* bytes that are still at the sender; 0: ready */
    uint64_t room;               /* for a buffer of the caller's: with each piece aligned to 64, and none behind the last */
    uint64_t held;               /* bytes of memory it takes now, without a buffer of the caller's */
    void *payload;               /* of the pool's; NULL: none, or the caller's buffer */
    weft_pool_t *pool;           /* that one */
    rpc_fetch_t *fetch;          /* NULL: everything came with the message */
    rpc_share_t *share;          /* whose `charged` bytes it is, a reference; given back on the driver. NULL: it counts for nobody */
    uint64_t charged;
    wefti_decoded_t decoded;
};
/* What is at the sender, and how it comes. */
struct rpc_fetch {
    weft_am_t *am;               /* kept, while something is missing */
    uint32_t bytes_len;
    bool bytes_missing;          /* RPC_F_BYTES */
    bool under_way, dead;
    void (*done)(void *user, weft_status_t status);
    void *user;
    weft_op_t op;
    weft_iov_t *iov;
    weft_iov_t one;
    /* stall.c */
    uint64_t stall_ns;           /* UINT64_MAX: it may take for ever */
    rpc_ep_t *watched;           /* NULL: it is not */
    wefti_list_t watch;
    const weft_iov_t *mark_iov;
    size_t mark_n, mark_piece;
    uint64_t mark_step, mark_since, mark_off, mark_end; /* bytes between two, since the last one, and in the piece */
    uint64_t mark;
};
/* From the handler of the message. NULL, and why: WEFT_ERR_PROTOCOL, WEFT_ERR_NOMEM. */
rpc_in_t *wefti_rpc_in_new(rpc_state_t *rs, weft_am_t *am, const rpc_where_t *where, weft_status_t *why_out);
/* Bring what is missing: into memory of the room's (buf NULL), or into the caller's. done comes from progress: WEFT_OK: ready; WEFT_ERR_PEER and the
 * like; WEFT_ERR_PROTOCOL: it is no such values; WEFT_ERR_TRUNCATED; WEFT_ERR_NOMEM. RPC_F_BYTES with the caller's buffer: WEFT_ERR_UNSUPPORTED at
 * once. stall_ns: how long nothing of it may come before its endpoint fails. */
weft_status_t wefti_rpc_in_fetch(rpc_in_t *in, void *buf, size_t cap, const weft_mem_kind_t *kind, uint64_t stall_ns,
                                 void (*done)(void *user, weft_status_t status), void *user);
#define RPC_STALL_NS (30 * WEFT_SECOND) /* if nobody says */
/* What it is charged with, as far as is known: without the room of a payload that is elsewhere. */
uint64_t wefti_rpc_in_cost(const weft_am_t *am, const rpc_where_t *where);
/* It counts for that share from now on (the reference goes along), with n bytes; NULL: for nobody any more. On the driver. */
void wefti_rpc_in_charge(rpc_in_t *in, rpc_share_t *share, uint64_t n);
/* Let go of it. What is being fetched goes on without us, done is not called any more; a buffer of the caller's must not be let go of so. NULL is
 * allowed. */
void wefti_rpc_in_free(rpc_in_t *in);

/* stall.c: pulls that are watched. */
void wefti_rpc_watch_init(weft_ep_t *ep);
void wefti_rpc_watch_marks(rpc_fetch_t *f, const weft_iov_t *iov, size_t n, uint64_t mark); /* host memory, before it is pulled into; iov stays */
void wefti_rpc_watch(rpc_fetch_t *f, weft_ep_t *ep);           /* it is on its way, over an endpoint that is up. Nothing where there are no marks */
void wefti_rpc_unwatch(rpc_fetch_t *f);                        /* it has ended */
void wefti_rpc_watch_down(weft_ep_t *ep);

/* --- the calling side ---------------------------------------------------------------------------------------------------------------- */

/* A client. It is freed when it was closed, its last call is complete, and nobody holds it. A handle (base/handle.h): what is up to `lock` may be
 * looked at for ever, and the lock be taken; with the lock, one that is open stays. */
struct weft_client {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    rpc_state_t *rs;
    uint64_t timeout_ns;         /* of calls that wait; 0: none */
    uint64_t stall_ns;           /* of results and values of streams */
    _Atomic(struct rpc_typed *) typed; /* typed.c: methods by declared function, read by any thread; NULL: none yet */
    pthread_mutex_t lock;        /* of methods, which any thread asks for, and of its end. It outlives the client */
    wefti_list_t link;           /* the first of what begins as zero */
    char service[RPC_NAME], instance[RPC_NAME]; /* "": any */
    weft_method_t **methods;
    uint32_t n_methods;
    wefti_list_t servers;        /* rpc_server_t.link */
    uint32_t n_servers;          /* written by the driver, read by anyone */
    bool finds;                  /* it finds its servers itself: set before anyone has it */
    wefti_list_t waiting;        /* calls that no server is there for: operations by opx->link */
    uint64_t id;                 /* of rpc_once_t; never 0 */
    uint64_t seq;                /* the last one */
    wefti_list_t once;           /* rpc_call_t.once_link, oldest first: what is not acked */
    wefti_timer_t patience;      /* for `once` calls that wait for their server's return */
    uint32_t tries;
    uint32_t calls;              /* that are not complete */
    uint32_t holds;              /* reach.c, and what is under way for it */
    bool joined, closing;
    weft_status_t lost;          /* over an endpoint of the program's that is gone, or without memory to look for servers: why */
    weft_op_t *close_op;
    weft_client_stats_t stats;   /* written by the driver, read by anyone */
    wefti_call_t join_call;
    weft_ep_t *join_ep;
    void *reach;                 /* reach.c: how it finds servers; NULL: over an endpoint of the program's */
};

/* A server as a client has it: one per endpoint and client. */
struct rpc_server {
    weft_client_t *client;
    weft_ep_t *ep;               /* NULL: lost for good */
    wefti_list_t link, ep_link;
    rpc_binding_t **bindings;    /* by method; NULL where there is none yet */
    uint32_t n_bindings;
    uint32_t under_way;          /* calls sent to it */
    char instance[RPC_NAME];     /* whom a BIND asks for; "": any. Several of one service may be behind one address */
    uint32_t load;               /* 0 to 1000, as the registry says */
    bool up;                     /* counted as connected */
    bool draining;               /* no new calls if there is another: see wefti_rpc_reach_turned_away() */
    void *reach;                 /* reach.c */
};
static inline bool rpc_server_up(const rpc_server_t *s) { return s->ep && s->ep->lane; }

enum { BINDING_NONE, BINDING_ASKED, BINDING_BOUND };
struct rpc_binding {
    rpc_server_t *server;
    weft_method_t *method;
    uint8_t state;
    uint16_t slot;
    uint32_t check;
    uint64_t id;                 /* in rpc_ep_t.binds, while it is asked */
    uint64_t epoch;
    wefti_list_t waiting;        /* calls that wait for it */
};

/* A handle, too. As long as it is open its client, its signature and its text are there: on the driver, or with the client's lock. */
struct weft_method {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    weft_client_t *client;
    uint32_t index;
    uint32_t number;             /* by which it is asked for; 0: by name */
    _Atomic(const weft_sig_t *) sig; /* NULL: not known yet */
    char *text;                  /* as it was given: the key */
    const wefti_codec_t *args, *results; /* these are set before sig: wefti_rpc_method_learn() */
    uint8_t kind;                /* CALL_UNARY, _ONEWAY or _STREAM */
};

/* A call: the room of its operation.
 *
 *     NEW --> WAITING (client.waiting, or its binding's) --> SENT (rpc_ep_t.sent) --> [FETCHING] --> complete
 *                ^------ sent again ------------------------|   \--> ENDING: only a buffer is waited for */
enum { CALL_NEW, CALL_WAITING, CALL_SENT, CALL_FETCHING, CALL_ENDING };
enum { CALL_UNARY, CALL_ONEWAY, CALL_STREAM, CALL_CHECK };
struct rpc_call {
    weft_method_t *method;
    rpc_server_t *server;        /* it waits for or was sent to; NULL: none */
    const weft_value_t *args;
    const weft_call_opts_t *opts; /* the program's, of whatever version: wefti_opts_read(). NULL: none */
    weft_reply_t *reply;         /* NULL: nobody wants it */
    weft_stream_t *stream;
    rpc_out_t *out;              /* the request, while it waits to be sent or its payload is taken */
    rpc_in_t *in;                /* the reply, while its payload is fetched */
    uint64_t id;                 /* in rpc_ep_t.calls; 0: not sent */
    uint64_t seq;                /* of a `once` call; 0: none yet */
    uint64_t epoch;              /* and where it was sent; 0: nowhere */
    uint64_t give_up;            /* when its server's return is not waited for any more */
    wefti_list_t once_link;
    uint32_t n;
    weft_status_t why;           /* how it ends, when that has to wait for a buffer; WEFT_ERR_AGAIN: it is sent again */
    uint8_t state, kind, ran, tries;
    bool left_open;              /* an earlier try may have run */
    bool once, fresh, into;      /* what its options say; into: results go to the program's memory */
};
_Static_assert(sizeof(rpc_call_t) <= WEFTI_OP_ROOM_SIZE, "enlarge wefti_opx_t.room");
static inline rpc_call_t *rpc_call(weft_op_t *op) { return wefti_op_scratch(op, rpc_call_t); }

#define RPC_PATIENCE (20 * WEFT_SECOND) /* how long the return of a server that remembers a call is waited for */
#define RPC_REBINDS 8u                  /* a call that finds its function's number gone so often ends with it */

/* client.c: reach.c adds and takes servers away, on the driver. */
weft_status_t wefti_rpc_client_new(weft_runtime_t *rt, const weft_client_opts_t *opts, const char *service, const char *instance,
                                   weft_client_t **client_out);
/* Any thread: its lock, and it is open until it is unlocked. WEFT_ERR_CLOSED, _FORKED. Nothing of the program's may be called meanwhile. */
weft_status_t wefti_rpc_client_lock(weft_client_t *client);
static inline void wefti_rpc_client_unlock(weft_client_t *client) { pthread_mutex_unlock(&client->lock); }
/* Nothing was started on it yet: gone. */
void wefti_rpc_client_discard(weft_client_t *client);
/* On the driver: it is part of the runtime from now on. False: the runtime closes, and so does the client, which may be gone. */
bool wefti_rpc_client_join(weft_client_t *client);
void wefti_rpc_client_hold(weft_client_t *client);
void wefti_rpc_client_unhold(weft_client_t *client); /* it may be gone after this */
/* ep may be connecting. instance NULL: as the client has it. */
weft_status_t wefti_rpc_server_add(weft_client_t *client, weft_ep_t *ep, const char *instance, rpc_server_t **server_out);
/* It is not used any more, and freed; calls that wait for it or certainly did not run go elsewhere, the others end with why (or are sent again, if
 * they may be). The endpoint is not closed. Its calls whose buffers are still with the fabric end later, without it. */
void wefti_rpc_server_remove(rpc_server_t *server, weft_status_t why);
void wefti_rpc_server_heard(rpc_server_t *server, bool up); /* its endpoint came up, or is down */
void wefti_rpc_clients_shutdown(rpc_state_t *rs);
void wefti_rpc_clients_free(rpc_state_t *rs);

/* On the driver, or before anyone else has the method: its signature. */
void wefti_rpc_method_learn(weft_method_t *method, const weft_sig_t *sig);

/* bind.c */
rpc_binding_t *wefti_rpc_binding(rpc_server_t *server, weft_method_t *method); /* NULL: no memory */
weft_status_t wefti_rpc_bind_ask(rpc_binding_t *b);                             /* NONE -> ASKED, over an endpoint that is up */
void wefti_rpc_bound(weft_ep_t *ep, weft_am_t *am, const rpc_head_t *head);     /* BOUND came */
void wefti_rpc_binding_reset(rpc_binding_t *b, wefti_list_t *waiting_out);      /* NONE; calls that waited for it go there */
void wefti_rpc_unbound(weft_ep_t *ep, const rpc_head_t *head);  /* the server has no such slot and check any more */
void wefti_rpc_bindings_free(rpc_server_t *server);                             /* nobody waits for them */

/* call.c */
void wefti_rpc_route(weft_op_t *op, const rpc_server_t *not);   /* NEW: to a server, or to where it waits; `not` only if there is no other */
void wefti_rpc_waits_no_more(weft_op_t *op);                    /* WAITING -> NEW; it is still on its list */
void wefti_rpc_transmit(weft_op_t *op, rpc_binding_t *b);       /* NEW, bound: on its way */
void wefti_rpc_unsend(weft_op_t *op);                           /* SENT -> NEW: it awaits no reply any more */
/* NEW, after a failure: sent again if it may be, else it ends */
void wefti_rpc_call_again(weft_op_t *op, weft_status_t why, const rpc_server_t *not);
weft_code_t wefti_rpc_code_of(weft_status_t status);            /* of a call that ended with that, and no server's word */
/* NEW: complete, as the status says; with the reply's code and message filled in, if they are not yet. */
void wefti_rpc_call_end(weft_op_t *op, weft_status_t status, const char *message);
void wefti_rpc_finish(weft_op_t *op, weft_status_t status);     /* NEW, and the reply is filled in: complete, or when its buffers are free */
void wefti_rpc_client_kick(weft_client_t *client);              /* try to place what waits: a server came or came up */
void wefti_rpc_client_fail(weft_client_t *client, weft_status_t why); /* all its calls end */
void wefti_rpc_calls_up(weft_ep_t *ep);
void wefti_rpc_calls_down(weft_ep_t *ep, weft_status_t why);

/* detached.c */
weft_status_t wefti_rpc_call_detached(weft_method_t *method, const weft_value_t *args, size_t n);

/* typed.c */
void wefti_rpc_typed_free(weft_client_t *client); /* it is closed */

/* reply.c */
uint32_t wefti_rpc_code_told(uint32_t code);                    /* a code of a server's, which may be newer: WEFT_CODE_UNKNOWN if we do not know it */
void wefti_rpc_to_client(weft_am_t *am, void *user);            /* a handler of active messages */
void wefti_rpc_reply_fail(weft_reply_t *reply, weft_code_t code, weft_ran_t ran, const char *message, size_t len); /* the message is copied */

/* balance.c: the server that the next call goes to, among those that are up; NULL: none is. `not` (may be NULL) only if there is no other. */
rpc_server_t *wefti_rpc_pick(weft_client_t *client, const rpc_server_t *not);

/* reach.c: clients that find their servers: by uri, by registry. */
/* The client closes, and has removed its servers: their connections and the registry too; it is held until that is done. */
void wefti_rpc_reach_close(weft_client_t *client);
void wefti_rpc_reach_down(rpc_server_t *server, weft_status_t why); /* its endpoint is lost for good, and its calls have been dealt with: remove it */
/* It answered WEFT_CODE_UNAVAILABLE with NOT_RUN: it drains or closes. Calls go elsewhere, if there is anywhere else, until the registry has
 * heard of it, or a second has passed. */
void wefti_rpc_reach_turned_away(rpc_server_t *server);
bool wefti_rpc_reach_by_name(const weft_client_t *client); /* another server may come: the registry is watched */
void wefti_rpc_reach_free(weft_client_t *client);     /* with the runtime, where reach_close() did not come to its end */
void wefti_rpc_strays_free(rpc_state_t *rs);
/* A sentence for who waited in vain: how many instances are known, where they were looked for. */
void wefti_rpc_reach_words(const weft_client_t *client, char *buf, size_t cap);

/* --- streams: stream.c, stream_out.c, stream_in.c --------------------------------------------------------------------------------------- */

/* One side of it. Any thread; the rest here is the driver's. A client's is held by its owner (the call) and by the program, a server's by its owner
 * (the request) alone. A client's has no owner as yet: wefti_stream_connect(s, NULL, 0, op) before the program gets it, so that releasing it cancels
 * the call. */
weft_status_t wefti_stream_new(rpc_state_t *rs, weft_runtime_t *rt, const weft_sig_t *sig, bool at_server, weft_stream_t **stream_out);
void wefti_stream_discard(weft_stream_t *s); /* nobody has seen it: the call could not be posted */
/* The request was sent over ep, with that number; what waits follows it. owner: the operation of the call, or the rpc_request_t. ep NULL: it is not
 * sent yet, or not any more; with another one later, if nothing was sent or received. */
void wefti_stream_connect(weft_stream_t *s, weft_ep_t *ep, uint64_t call, void *owner);
bool wefti_stream_used(const weft_stream_t *s);                 /* something was sent or received on it: the request cannot be sent again */
/* What may come: items of at most so many bytes (0: 1 GiB), counted against a budget (NULL: none), and how long a pull of one may stall. */
void wefti_stream_limits(weft_stream_t *s, uint64_t item_max, rpc_budget_t *budget, uint64_t stall_ns);
uint64_t wefti_stream_cost(void);                               /* bytes of one */
/* ITEM, END or CREDIT came for it. What breaks the rules fails the endpoint (wefti_ep_protocol_error). */
void wefti_stream_record(weft_stream_t *s, unsigned kind, weft_am_t *am, const rpc_head_t *head);
/* The call is over, on either side: everything that waits ends, nothing more is sent, the owner is asked nothing any more. Only the first counts.
 * Status: WEFT_OK and WEFT_ERR_CALL: the server answered, well or ill: what was sent before it arrives, and is received before the end (WEFT_OK) or
 * the status. Anything else: that is the status of all that is under way, and what arrived is dropped. Before the owner is complete. */
void wefti_stream_over(weft_stream_t *s, weft_status_t status);
void wefti_stream_drop(weft_stream_t *s);                       /* the owner lets go of it, after over or instead */
/* Server: everything that was posted is on its way, so that the reply may follow. If not: drained(user) is called once when it is, not after over. */
bool wefti_stream_drained(const weft_stream_t *s);
void wefti_stream_when_drained(weft_stream_t *s, void (*drained)(void *user), void *user);

/* --- the serving side: service.c, function.c, request.c, once.c, pool.c, reflect.c -------------------------------------------------------- */

void wefti_rpc_to_server(weft_am_t *am, void *user);  /* a handler of active messages */
void wefti_rpc_requests_down(weft_ep_t *ep, weft_status_t why);
void wefti_rpc_services_shutdown(rpc_state_t *rs);
void wefti_rpc_services_free(rpc_state_t *rs);
weft_status_t wefti_rpc_services_init(rpc_state_t *rs);
/* 0 idle to 1000 full: for the registry. */
uint32_t wefti_rpc_service_load(weft_service_t *service);
/* publish.c, on the driver: with drain and close. Nothing if it is not published. It may linger, weft_service_t.leaving, until clients have heard of
 * it, and then calls wefti_rpc_service_step(); without that the service is not touched after it returns. */
void wefti_rpc_unpublish(weft_service_t *service, bool lingers);

/* configured.c, for reach.c and publish.c: the configured registry, one for the runtime, open as long as anyone uses it. Any thread. */
weft_status_t wefti_rpc_registry_get(rpc_state_t *rs, weft_registry_t **registry_out);
void wefti_rpc_registry_put(rpc_state_t *rs);

#endif
