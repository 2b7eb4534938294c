/* rpc/stream.h - one side of a stream, for stream.c, stream_out.c and stream_in.c.
 *
 * Everything is the driver's, except what says otherwise. */
#ifndef WEFTI_RPC_STREAM_H
#define WEFTI_RPC_STREAM_H

#include "rpc/state.h"

#define STREAM_ITEM_HEAD (sizeof(rpc_head_t) + sizeof(rpc_ext_t))
#define STREAM_ITEM_MAX (UINT64_C(1) << 30) /* bytes of one item that are taken from a peer, unless its owner says otherwise */

/* What this side sends. An operation is on one of two lists, by opx->link: it waits, or its bytes are with active messages. */
typedef struct stream_out {
    wefti_codec_t codec;         /* n = 0: nothing in this direction */
    wefti_list_t waiting;        /* for credit, for the request to be sent, or behind one that does */
    wefti_list_t flying;
    uint64_t items, bytes;       /* that were sent */
    uint64_t may_items, may_bytes; /* while less than these were sent another may be: one item goes beyond the bytes, whatever its size */
    weft_status_t status;        /* not WEFT_OK: nothing can be sent any more, and this is why */
    _Atomic uint32_t coming;     /* sends that sit in the inbox: counted up by any thread */
    _Atomic uint32_t ended;      /* weft_stream_end() was called: any thread */
    _Atomic uint32_t copies;     /* sends without an operation that are under way: any thread */
    bool end_sent;
    void (*drained)(void *user);
    void *drained_user;
    weft_op_t end_op;            /* for an end that nobody waits for */
} stream_out_t;

/* An item that nobody took yet: a scalar is here, anything else in `in`. */
typedef struct stream_slot {
    union {
        uint64_t bits;
        rpc_in_t *in;
    };
    uint64_t bytes;              /* as they count */
} stream_slot_t;

/* What this side receives. */
typedef struct stream_in {
    wefti_codec_t codec;         /* n = 0: nothing in this direction */
    wefti_list_t receives;       /* operations that wait, by opx->link */
    uint64_t items, bytes;       /* that came */
    uint64_t taken_items, taken_bytes;
    uint64_t may_items, may_bytes; /* that the peer was told: as above */
    uint64_t item_max;
    rpc_budget_t *budget;        /* what is here counts against it; NULL: none, a client's */
    uint64_t stall_ns;
    weft_status_t status;        /* not WEFT_OK: receives end with it at once, and what comes is dropped */
    bool ended;                  /* END came */
    bool crediting;              /* a CREDIT is under way */
    uint32_t first, n;           /* of slots */
    stream_slot_t slots[RPC_STREAM_ITEMS];
} stream_in_t;

struct weft_stream {
    weft_runtime_t *rt;
    rpc_state_t *rs;             /* the driver's: the program may have the stream longer than there is a runtime */
    weft_ep_t *ep;               /* NULL: the request is not sent, or it is over */
    weft_ep_id_t peer;           /* the last such endpoint */
    uint64_t call;
    void *owner;                 /* the operation of the call, or the request; NULL: over */
    uint32_t to_peer;            /* id of active messages */
    bool at_server, over;
    weft_status_t why;           /* of over */
    _Atomic uint32_t refs;       /* the owner's, the program's (a client's), what is under way or in the inbox. Counted up by any thread that has it,
                                    down by the driver, or by whoever lets go of it when there is none any more */
    wefti_call_t release;
    stream_out_t out;
    stream_in_t in;
};

static inline void stream_ref(weft_stream_t *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }
void wefti_stream_unref(weft_stream_t *s);

/* Did the server answer, well or ill? Then what was sent before the answer counts. */
static inline bool stream_answered(weft_status_t status) { return status == WEFT_OK || status == WEFT_ERR_CALL; }

/* Start a prepared operation on the driver: now with `start`, or through the inbox with its kind's, which gives back a reference and counts
 * `coming` (may be NULL) down. */
weft_status_t wefti_stream_go(weft_stream_t *s, weft_op_t *op, weft_status_t (*start)(weft_op_t *op), _Atomic uint32_t *coming);

/* stream_out.c */
void wefti_stream_out_credit(weft_stream_t *s, weft_am_t *am);
void wefti_stream_out_kick(weft_stream_t *s);                         /* send what may be sent */
void wefti_stream_out_fail(weft_stream_t *s, weft_status_t status);   /* what waits ends with it, and so does all that comes */
void wefti_stream_out_over(weft_stream_t *s, weft_status_t status);

/* stream_in.c */
void wefti_stream_in_item(weft_stream_t *s, weft_am_t *am, const rpc_head_t *head);
void wefti_stream_in_end(weft_stream_t *s, weft_am_t *am, const rpc_head_t *head);
void wefti_stream_in_fail(weft_stream_t *s, weft_status_t status);    /* what came is dropped; receives end with it, now and later */
void wefti_stream_in_over(weft_stream_t *s, weft_status_t status);
void wefti_stream_in_free(weft_stream_t *s);

#endif
