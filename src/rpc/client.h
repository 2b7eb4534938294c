/* rpc/client.h - the calling side: a client with its methods, servers and calls. */
#ifndef WEFTI_RPC_CLIENT_H
#define WEFTI_RPC_CLIENT_H

#include "rpc/state.h"
#include "rpc/stream.h"

/* A client. It is freed when it is closed, its last call is complete, and nobody holds it. It is a handle (base/handle.h): the
 * fields up to `typed` may be read for ever; with rs->lock, a client that is open stays. */
struct weft_client {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    rpc_state_t *rs;
    uint64_t timeout_ns;         /* of calls that wait; 0: none */
    uint64_t stall_ns;           /* of results and values of streams */
    weft_client_stats_t stats;   /* written by the driver, read by anyone */
    _Atomic(struct rpc_typed *) typed; /* method.c: methods by declared function, read by any thread; NULL: none yet */
    wefti_list_t link;           /* the first of the fields that begin as zero */
    char service[RPC_NAME], instance[RPC_NAME]; /* "": any */
    weft_method_t **methods;     /* under rs->lock: any thread asks for them */
    uint32_t n_methods;
    bool ended, called;          /* the same: close was called; it is on its way to the driver. The client is freed after it */
    wefti_list_t servers;        /* rpc_server_t.link */
    uint32_t n_servers;          /* written by the driver, read by anyone */
    bool finds;                  /* it finds its servers itself: set before anyone has it */
    wefti_list_t waiting;        /* calls that no server is there for: operations by opx->link */
    uint64_t id;                 /* of rpc_once_t; never 0 */
    uint64_t seq;                /* the last one */
    wefti_list_t once;           /* rpc_call_t.once_link, oldest first: what is not acknowledged */
    wefti_timer_t patience;      /* for `once` calls that wait for their server to come back */
    uint32_t tries;
    uint32_t calls;              /* that are not complete */
    uint32_t holds;              /* reach.c, and what is under way for it */
    bool closing;
    weft_status_t lost;          /* why no server can come: the endpoint is gone, there is no memory to look, or it closes */
    rpc_ending_t close;
    wefti_call_t join_call;
    weft_ep_t *join_ep;
    void *reach;                 /* reach.c: how it finds servers; NULL: over an endpoint of the program */
    weft_client_t **parts;       /* spread.c: by shard, the first is itself; NULL: it has one. Written before anyone has it */
};

/* A server as a client has it: one per endpoint and client. */
struct rpc_server {
    weft_client_t *client;
    weft_ep_t *ep;               /* NULL: lost for good */
    wefti_list_t link, ep_link;
    rpc_binding_t **bindings;    /* by method; NULL where there is none yet */
    uint32_t n_bindings;
    uint32_t under_way;          /* calls sent to it */
    char instance[RPC_NAME];     /* the one that a BIND asks for; "": any. Several of one service may be behind one address */
    uint32_t load;               /* 0 to 1000, as the registry says */
    bool up;                     /* counted as connected */
    bool draining;               /* no new calls if there is another server: see wefti_rpc_reach_turned_away() */
    void *reach;                 /* reach.c */
};
static inline bool rpc_server_up(const rpc_server_t *s) { return s->ep && s->ep->lane; }
static inline bool rpc_server_usable(const rpc_server_t *s) { return rpc_server_up(s) && !s->draining; }

enum { BINDING_NONE, BINDING_ASKED, BINDING_BOUND };
struct rpc_binding {
    rpc_server_t *server;
    weft_method_t *method;
    uint8_t state;
    uint16_t slot;
    uint32_t check;
    uint64_t id;                 /* in rpc_ep_t.binds, while it is asked for */
    uint64_t epoch;
    wefti_list_t waiting;        /* calls that wait for it */
};

/* A handle, too. While it is open its client, its signature and its text are there: on the driver, or with rs->lock. */
struct weft_method {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    weft_client_t *client;
    _Atomic(struct rpc_spread *) spread; /* spread.c: the same method of each shard's part of the client; NULL: there is one */
    uint32_t index;
    uint32_t number;             /* by which it is asked for; 0: by name */
    _Atomic(const weft_sig_t *) sig; /* NULL: not known yet */
    char *text;                  /* as it was given: the key */
    const wefti_codec_t *args, *results; /* these and kind are set before sig: wefti_rpc_method_learn() */
    uint8_t kind;                /* CALL_UNARY, _ONEWAY or _STREAM */
};
static inline const weft_sig_t *rpc_method_sig(const weft_method_t *m)
{
    return atomic_load_explicit(&((weft_method_t *)(uintptr_t)m)->sig, memory_order_acquire);
}

/* A call, in the scratch of its operation.
 *
 *     NEW --> WAITING (client.waiting, or its binding's) --> SENT (rpc_ep_t.sent) --> [FETCHING] --> complete
 *                ^------ sent again ------------------------|   \--> ENDING: only a buffer is waited for */
enum { CALL_NEW, CALL_WAITING, CALL_SENT, CALL_FETCHING, CALL_ENDING };
enum { CALL_UNARY, CALL_STREAM, CALL_CHECK, CALL_ONEWAY, CALL_PACKED }; /* PACKED: oneway, without an operation of the program */
struct rpc_call {
    weft_method_t *method;
    rpc_server_t *server;        /* that it waits for or was sent to; NULL: none */
    union {
        const weft_value_t *args;
        const rpc_kept_t *packed; /* CALL_PACKED: the message, but for slot and check */
    };
    const weft_call_opts_t *opts; /* the program's, of any version: wefti_opts_read(). NULL: none */
    weft_reply_t *reply;         /* NULL: nobody wants it */
    weft_stream_t *stream;
    rpc_out_t *out;              /* the request, while it waits to be sent or its payload is taken */
    rpc_in_t *in;                /* the reply, while its payload is fetched */
    uint64_t id;                 /* in rpc_ep_t.calls; 0: not sent */
    uint64_t seq;                /* of a `once` call; 0: none yet */
    uint64_t epoch;              /* and where it was sent; 0: nowhere */
    uint64_t give_up;            /* when we stop waiting for its server to come back */
    wefti_list_t once_link;
    uint32_t n;
    weft_status_t why;           /* how it ends, when that has to wait for a buffer; WEFT_ERR_AGAIN: it is sent again */
    uint8_t state, kind, ran, tries;
    bool left_open;              /* an earlier try may have run */
    bool once, fresh, into;      /* what its options say; into: results go to the program's memory */
};
_Static_assert(sizeof(rpc_call_t) <= WEFTI_OP_SCRATCH_SIZE, "enlarge the scratch of operations");
static inline rpc_call_t *rpc_call(weft_op_t *op) { return wefti_op_scratch(op, rpc_call_t); }

/* spread.c: clients of a runtime with several shards. */
void wefti_rpc_spread_free(struct rpc_spread *spread);        /* NULL is allowed */
weft_method_t *wefti_rpc_spread_pick(weft_method_t *method, struct rpc_spread *spread);
/* The method of the part that the next call goes to. */
static inline weft_method_t *rpc_method_for_call(weft_method_t *m)
{
    struct rpc_spread *spread = m ? atomic_load_explicit(&m->spread, memory_order_acquire) : NULL;
    return __builtin_expect(!spread, 1) ? m : wefti_rpc_spread_pick(m, spread);
}
weft_status_t wefti_rpc_client_close(weft_client_t *client, weft_op_t *op);   /* of one shard */
weft_status_t wefti_rpc_client_get_stats(weft_client_t *client, weft_client_stats_t *stats);
weft_status_t wefti_rpc_client_method(weft_client_t *client, const char *signature, weft_method_t **method_out);

#define RPC_REBINDS 8u                  /* a call ends when its function's slot was gone so often */

/* client.c. reach.c adds and removes servers, on the driver. */
weft_status_t wefti_rpc_client_new(weft_runtime_t *rt, const weft_client_opts_t *opts, const char *service, const char *instance,
                                   weft_client_t **client_out);
static inline weft_status_t wefti_rpc_client_lock(const weft_client_t *client)
{
    return wefti_rpc_lock(client->rt, &client->handle, "client");
}
/* wefti_rpc_lock() for a method's client; the method is open too. */
weft_status_t wefti_rpc_method_lock(const weft_method_t *method);
weft_status_t wefti_rpc_client_closed(void); /* WEFT_ERR_CLOSED, with a sentence */
void wefti_rpc_client_discard(weft_client_t *client); /* free it: nothing was started on it, or everything has ended */
/* On the driver: it belongs to the runtime from now on. False: the runtime closes, and so does the client, which may be freed. */
bool wefti_rpc_client_join(weft_client_t *client);
static inline void wefti_rpc_client_hold(weft_client_t *client) { client->holds++; }
void wefti_rpc_client_unhold(weft_client_t *client); /* it may be freed */
/* NULL becomes "". WEFT_ERR_INVALID: it is too long. */
weft_status_t wefti_rpc_copy_name(char out[RPC_NAME], const char *name, const char *what);
void wefti_rpc_clients_shutdown(rpc_state_t *rs);
void wefti_rpc_clients_free(rpc_state_t *rs);

/* server.c: the servers of a client. ep may be connecting. instance NULL: as the client has it. */
weft_status_t wefti_rpc_server_add(weft_client_t *client, weft_ep_t *ep, const char *instance, rpc_server_t **server_out);
/* Free it. Its calls that wait or certainly did not run go elsewhere; the others end with why, or are sent again if they may be.
 * The endpoint is not closed. Calls whose buffers are still with the fabric end later, without it. */
void wefti_rpc_server_remove(rpc_server_t *server, weft_status_t why);
void wefti_rpc_client_kick(weft_client_t *client); /* try to place what waits: a server came or came up */
void wefti_rpc_calls_up(weft_ep_t *ep);
void wefti_rpc_calls_down(weft_ep_t *ep, weft_status_t why);

/* method.c. On the driver, or before anyone else has the method: set its signature. */
void wefti_rpc_method_learn(weft_method_t *method, const weft_sig_t *sig);
void wefti_rpc_methods_free(weft_client_t *client); /* it is closed */

/* bind_ask.c */
rpc_binding_t *wefti_rpc_binding(rpc_server_t *server, weft_method_t *method); /* NULL: no memory */
weft_status_t wefti_rpc_bind_ask(rpc_binding_t *b);                            /* NONE -> ASKED, over an endpoint that is up */
void wefti_rpc_bound(weft_ep_t *ep, weft_am_t *am, const rpc_head_t *head);    /* BOUND came */
void wefti_rpc_binding_reset(rpc_binding_t *b, wefti_list_t *waiting_out);     /* NONE; calls that waited for it go there */
void wefti_rpc_unbound(weft_ep_t *ep, const rpc_head_t *head);                 /* the server has no such slot and check */

/* call_send.c */
void wefti_rpc_route(weft_op_t *op, const rpc_server_t *except); /* NEW: to a server, to `except` if there is no other; or wait */
void wefti_rpc_waits_no_more(weft_op_t *op);                     /* WAITING -> NEW; it is still on its list */
/* NEW, after a failure: send it again if it may be, else end it. */
void wefti_rpc_call_again(weft_op_t *op, weft_status_t why, const rpc_server_t *except);

weft_status_t wefti_rpc_call_send(weft_op_t *op, rpc_binding_t *b); /* NEW, bound. On an error nothing changed */
void wefti_rpc_transmit(weft_op_t *op, rpc_binding_t *b);           /* the same, and on an error it ends */
void wefti_rpc_unsend(weft_op_t *op);                               /* SENT -> NEW: it waits for no reply any more */
void wefti_rpc_call_abandon(weft_op_t *op);                         /* the same, and the server is told that nobody waits */

/* SENT: its results are in the reply; it did well. */
void wefti_rpc_call_ok(weft_op_t *op);
/* NEW: complete it. The reply's code and message are filled in from status and message (may be NULL). */
void wefti_rpc_call_end(weft_op_t *op, weft_status_t status, const char *message);
void wefti_rpc_fill_reply(weft_op_t *op, weft_status_t status, const char *message);
/* What is wrong with a call that could not be sent, if its encoder has just said so on this thread; NULL: the status says it. */
const char *wefti_rpc_send_words(weft_status_t status);
void wefti_rpc_finish(weft_op_t *op, weft_status_t status); /* NEW, reply filled in: complete when its buffers are free */
weft_code_t wefti_rpc_code_of(weft_status_t status);        /* of a call that ended with that, without an answer */

/* reply.c */
void wefti_rpc_to_client(weft_am_t *am, void *user); /* a handler of active messages */
uint32_t wefti_rpc_code_told(uint32_t code);         /* a newer server's code that we do not know: WEFT_CODE_UNKNOWN */
/* Fill in a failure; the message is copied. */
void wefti_rpc_reply_fail(weft_reply_t *reply, weft_code_t code, weft_ran_t ran, const char *message, size_t len);

/* server.c: the server for the next call, of those that are up; NULL: none is. `except` (may be NULL) only if there is no
 * other. */
rpc_server_t *wefti_rpc_pick_of_many(weft_client_t *client, const rpc_server_t *except);
static inline rpc_server_t *wefti_rpc_pick(weft_client_t *client, const rpc_server_t *except)
{
    rpc_server_t *only = wefti_container_of(client->servers.next, rpc_server_t, link); /* if there is one */
    if (__builtin_expect(client->n_servers != 1, 0))
        return wefti_rpc_pick_of_many(client, except);
    return rpc_server_usable(only) ? only : NULL;
}

/* reach.c, target.c: clients that find their servers, by uri or by registry. */
/* The client closes and has removed its servers: close their connections and the registry too. It is held until that is done. */
void wefti_rpc_reach_close(weft_client_t *client);
void wefti_rpc_reach_down(rpc_server_t *server, weft_status_t why); /* its endpoint is lost for good: remove it */
/* It answered WEFT_CODE_UNAVAILABLE with NOT_RUN: it drains or closes. Calls go to other servers, if there are any, until the
 * registry says so too, or a second has passed. */
void wefti_rpc_reach_turned_away(rpc_server_t *server);
/* By the policy: is its peer still one whose service may be used? WEFT_ERR_PERMISSION with a sentence. */
weft_status_t wefti_rpc_reach_may(const rpc_server_t *server);
bool wefti_rpc_reach_by_name(const weft_client_t *client); /* another server may come: the registry is watched */
void wefti_rpc_reach_free(weft_client_t *client);          /* with the runtime, if reach_close() was not done by then */
void wefti_rpc_strays_free(rpc_state_t *rs);
/* A sentence for a call that waited and found no server: how many instances are known, where they were looked for. */
void wefti_rpc_reach_words(const weft_client_t *client, char *buf, size_t cap);

#endif
