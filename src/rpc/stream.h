/* rpc/stream.h - one side of a stream: first what calls and requests use, then what stream.c, stream_out.c and stream_in.c share.
 *
 * A client's stream is held by its owner (the call) and by the program, a server's by its owner (the request) alone. */
#ifndef WEFTI_RPC_STREAM_H
#define WEFTI_RPC_STREAM_H

#include "rpc/state.h"

/* Any thread; the rest here is the driver's. A client's stream gets wefti_stream_connect(s, NULL, 0, op) before the program has
 * it, so that releasing it cancels the call. */
weft_status_t wefti_stream_new(rpc_state_t *rs, const weft_sig_t *sig, bool at_server, uint64_t stall_ns,
                               weft_stream_t **stream_out);
/* The request was sent over ep, with that number; what waits follows it. owner: the operation of the call, or the rpc_request_t.
 * ep NULL: it is not sent yet, or not any more; another endpoint may follow if nothing was sent or received. */
void wefti_stream_connect(weft_stream_t *s, weft_ep_t *ep, uint64_t call, void *owner);
bool wefti_stream_used(const weft_stream_t *s); /* something was sent or received: the request cannot be sent again */
/* ITEM, END or CREDIT came for it. A breach of the rules fails the endpoint (wefti_ep_protocol_error). */
void wefti_stream_record(weft_stream_t *s, unsigned kind, weft_am_t *am, const rpc_head_t *head);
/* The call is over, on either side: everything that waits ends, nothing more is sent, the owner is forgotten. Only the first call
 * counts. With WEFT_OK and WEFT_ERR_CALL the server has answered: what it sent before arrives, and is received before the end
 * (WEFT_OK) or the status. Anything else is the status of all that is under way, and what arrived is dropped. Call this before
 * the owner is complete. */
void wefti_stream_over(weft_stream_t *s, weft_status_t status);
void wefti_stream_drop(weft_stream_t *s); /* the owner lets go of it, after over or instead */
/* Server: is everything that was posted on its way, so that the reply may follow? If not, drained(user) is called once when it
 * is; not after over. */
bool wefti_stream_drained(const weft_stream_t *s);
void wefti_stream_when_drained(weft_stream_t *s, void (*drained)(void *user), void *user);

/* --- for stream*.c ---------------------------------------------------------------------------------------------------- */

#define STREAM_ITEM_HEAD (sizeof(rpc_head_t) + sizeof(rpc_ext_t))
#define STREAM_ITEM_MAX (UINT64_C(1) << 30) /* bytes of one item that are taken from a peer, unless its owner says otherwise */

/* What this side sends. An operation is on one of two lists, by opx->link. */
typedef struct stream_out {
    wefti_codec_t codec;           /* n = 0: nothing in this direction */
    wefti_list_t waiting;          /* for credit, for the request to be sent, or behind one that waits */
    wefti_list_t flying;           /* with active messages */
    uint64_t items, bytes;         /* that were sent */
    uint64_t may_items, may_bytes; /* another may be sent while less than both were: one item may exceed the bytes */
    weft_status_t status;          /* not WEFT_OK: nothing can be sent any more, and this is why */
    _Atomic uint32_t coming;       /* sends that sit in the inbox: any thread counts it up */
    _Atomic uint32_t ended;        /* weft_stream_end() was called: any thread */
    _Atomic uint32_t copies;       /* sends without an operation that are under way: any thread */
    bool end_sent;
    void (*drained)(void *user);
    void *drained_user;
    weft_op_t end_op;              /* for an end that nobody waits for */
} stream_out_t;

/* An item that nobody took yet: a scalar is here, anything else in `in`. */
typedef struct stream_slot {
    union {
        uint64_t bits;
        rpc_in_t *in;
    };
    uint64_t bytes; /* as they count */
} stream_slot_t;

/* What this side receives. */
typedef struct stream_in {
    wefti_codec_t codec;           /* n = 0: nothing in this direction */
    wefti_list_t receives;         /* operations that wait, by opx->link */
    uint64_t items, bytes;         /* that came */
    uint64_t taken_items, taken_bytes;
    uint64_t may_items, may_bytes; /* that the peer was granted: as above */
    uint64_t item_max;             /* bytes */
    rpc_budget_t *budget;          /* what is here counts against it; NULL: none, at a client */
    uint64_t stall_ns;             /* how long the pull of one may stall */
    weft_status_t status;          /* not WEFT_OK: receives end with it at once, and what comes is dropped */
    bool ended;                    /* END came */
    bool crediting;                /* a CREDIT is under way */
    uint32_t first, n;             /* of slots */
    stream_slot_t slots[RPC_STREAM_ITEMS];
} stream_in_t;

struct weft_stream {
    weft_runtime_t *rt;
    rpc_state_t *rs;       /* the driver's: the program may have the stream longer than there is a runtime */
    weft_ep_t *ep;         /* NULL: the request is not sent, or it is over */
    weft_ep_id_t peer;     /* the last such endpoint */
    uint64_t call;
    void *owner;           /* the operation of the call, or the request; NULL: over */
    uint32_t to_peer;      /* id of active messages */
    bool at_server, over;
    weft_status_t why;     /* of over */
    _Atomic uint32_t refs; /* of the owner, the program (at a client), and what is under way or in the inbox. Any holder counts it
                              up; the driver counts it down, or anyone after the runtime was closed */
    wefti_call_t release;
    stream_out_t out;
    stream_in_t in;
};

static inline void stream_ref(weft_stream_t *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }
/* By a thread that could not hand over its reference: the program has the stream, so it is never the last. */
static inline void stream_ref_undo(weft_stream_t *s) { atomic_fetch_sub_explicit(&s->refs, 1, memory_order_relaxed); }
void wefti_stream_unref(weft_stream_t *s);

/* Did the server answer? Then what was sent before the answer counts. */
static inline bool stream_answered(weft_status_t status) { return status == WEFT_OK || status == WEFT_ERR_CALL; }

/* stream_out.c */
void wefti_stream_out_credit(weft_stream_t *s, weft_am_t *am);
void wefti_stream_out_kick(weft_stream_t *s);                       /* send what may be sent */
void wefti_stream_out_fail(weft_stream_t *s, weft_status_t status); /* what waits ends with it, and so does all that comes */
void wefti_stream_out_over(weft_stream_t *s, weft_status_t status);

/* stream_in.c */
void wefti_stream_in_item(weft_stream_t *s, weft_am_t *am, const rpc_head_t *head);
void wefti_stream_in_end(weft_stream_t *s, weft_am_t *am, const rpc_head_t *head);
void wefti_stream_in_fail(weft_stream_t *s, weft_status_t status); /* what came is dropped; receives end with it, now and later */
void wefti_stream_in_over(weft_stream_t *s, weft_status_t status);

#endif
