/* msg/state.h - what msg keeps: per runtime, per endpoint, per operation, per message nobody has asked for yet.
 *
 * Everything belongs to the driver of the runtime. */
#ifndef WEFTI_MSG_STATE_H
#define WEFTI_MSG_STATE_H

#include <string.h>
#include <weft/msg.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/spares.h"
#include "conn/conn.h"
#include "msg/msg.h"

/* --- on the lane ----------------------------------------------------------------------------------------------------------- */

enum {
    REC_EAGER = WEFTI_REC_MSG_FIRST, /* msg_head_t, then the bytes */
    REC_ANNOUNCE,                    /* msg_offer_t; the payload is announced */
    REC_CREDIT,                      /* wefti_word_t: more window; none: it is full, and a receive waits for something else */
    REC_STARVED                      /* wefti_word_t: send what credit you owe, sends wait here */
};

typedef struct msg_head {
    wefti_word_t word;
    uint64_t tag;
} msg_head_t;

typedef struct msg_offer {
    wefti_word_t word;
    uint64_t id; /* of the payload: conn's */
    uint64_t tag;
} msg_offer_t;

/* What one message nobody asked for costs its receiver beside its bytes; both sides count with it. */
#define MSG_COST 128

/* --- per runtime ----------------------------------------------------------------------------------------------------------- */

/* Chains of posted exact receives, or of unexpected messages: a power of two of list heads. */
typedef struct msg_table {
    wefti_list_t *buckets;
    uint32_t shift; /* 64 - log2(buckets) */
    uint32_t n, cap;
} msg_table_t;

typedef struct msg_state {
    weft_runtime_t *rt;
    uint64_t post_seq;            /* receives are numbered as they are posted */

    msg_table_t exact;            /* posted receives whose mask is full, by (endpoint or any, tag) */
    uint32_t exact_of_any;        /* how many of them are from any endpoint */
    wefti_list_t masked_of_any;   /* posted receives with a partial mask, from any endpoint, in order */
    wefti_list_t of_any;          /* all posted receives from any endpoint (by msg_recv_t.owner_link) */

    wefti_list_t arrived;         /* all unexpected messages, in order of arrival */
    wefti_list_t claimed;         /* messages taken out by weft_msg_claim() (by weft_msg_t.all_link) */
    msg_table_t arrived_of_ep;    /* the same by (endpoint, tag) */
    msg_table_t arrived_of_any;   /* the same by tag */
    wefti_spares_t spares;        /* small message blocks */
    uint64_t held_bytes;
    wefti_wants_t *wants;         /* receives from any endpoint of a runtime with several shards; else NULL */
} msg_state_t;

static inline msg_state_t *msg_state(weft_runtime_t *rt) { return (msg_state_t *)rt->room_state[WEFTI_ROOM_MSG]; }

/* --- per endpoint ---------------------------------------------------------------------------------------------------------- */

typedef struct msg_ep {
    wefti_outbox_t box;       /* the reserve of its flow is only for announcements, and for small messages announced while
                                 `held_up` */
    uint32_t eager_max;       /* longest message that travels in a record of this lane */
    wefti_list_t posted;      /* receives posted on this endpoint (by msg_recv_t.owner_link) */
    wefti_list_t masked;      /* those of them with a partial mask */
    wefti_list_t arrived;     /* unexpected messages of this endpoint, in order */
    wefti_list_t claimed;     /* and those claimed */
} msg_ep_t;

static inline msg_ep_t *msg_ep(const weft_ep_t *ep) { return (msg_ep_t *)ep->traffic[WEFTI_TRAFFIC_MSG]; }

/* --- per operation --------------------------------------------------------------------------------------------------------- */

typedef struct msg_recv {
    weft_ep_t *ep;            /* NULL: from any */
    wefti_list_t owner_link;  /* in msg_ep_t.posted or msg_state_t.of_any while it waits for a match */
    weft_iov_t one;
    const weft_iov_t *iov;
    uint32_t iov_n;
    bool alloc;               /* make a buffer to fit */
    uint64_t cap;
    uint64_t mask;            /* the wanted tag is in op->tag until completion */
    union {
        uint64_t seq;         /* while it waits */
        weft_ep_t *source;    /* while it pulls */
        wefti_want_t *want;   /* any.c */
    };
    const weft_mem_kind_t *device; /* of all pieces; NULL: memcpy can handle them */
    wefti_xfer_t x;
} msg_recv_t;

_Static_assert(sizeof(msg_recv_t) <= WEFTI_OP_SCRATCH_SIZE, "a receive fits its operation");

static inline msg_recv_t *msg_recv(weft_op_t *op) { return wefti_op_scratch(op, msg_recv_t); }

/* --- a message nobody has asked for yet ------------------------------------------------------------------------------------ */

struct weft_msg {
    weft_ep_t *ep;            /* NULL once the endpoint is gone and only a claim holds the message */
    msg_state_t *ms;
    weft_ep_id_t from;
    uint64_t tag, len;
    wefti_in_t *in;           /* announced: the payload is at the peer; NULL: the bytes follow this struct */
    bool lost;                /* claimed, and then its payload went away with the peer */
    bool claimed;
    bool spare;               /* its block is of the common small size */
    _Atomic bool parted;      /* claimed: the runtime closed and left it to the program, or that gave it up too late for the
                                 driver to know: the second of the two frees it */
    weft_runtime_t *rt;       /* claimed: for the program's calls, since `ms` goes with the runtime */
    wefti_list_t all_link, ep_link, of_ep_link, of_any_link;
};

/* The runtime of a claimed message; NULL: it was closed. */
static inline weft_runtime_t *msg_runtime(weft_msg_t *msg) { return atomic_load(&msg->parted) ? NULL : msg->rt; }
static inline void *msg_bytes(weft_msg_t *msg) { return msg + 1; }
/* What it takes of the window: msg_arrive.c and the sender count alike. */
static inline uint64_t msg_cost(const weft_msg_t *msg) { return MSG_COST + (msg->in ? 0 : msg->len); }

/* --- match.c: finding each other ------------------------------------------------------------------------------------------- */

weft_status_t wefti_msg_match_init(msg_state_t *ms);
void wefti_msg_match_free(msg_state_t *ms);

void wefti_msg_post(msg_state_t *ms, weft_op_t *op);                     /* a receive waits */
void wefti_msg_unpost(msg_state_t *ms, weft_op_t *op);
weft_op_t *wefti_msg_take_posted(msg_state_t *ms, weft_ep_t *ep, uint64_t tag); /* the receive that was posted first and
                                                                                   matches; unposted */

/* Messages with these tags come next: fetch the receives that they will match, all at the same time. Changes nothing. */
void wefti_msg_fetch_posted(const msg_state_t *ms, const weft_ep_t *ep, const uint64_t *tags, unsigned n);

void wefti_msg_hold(msg_state_t *ms, weft_msg_t *msg);                   /* a message waits */
void wefti_msg_unhold(msg_state_t *ms, weft_msg_t *msg);
/* the one that arrived first; stays */
weft_msg_t *wefti_msg_find_held(msg_state_t *ms, weft_ep_t *ep, uint64_t tag, uint64_t mask);

/* wefti_flow_admit() and _consumed() of a window without a count of messages: every message passes both. */
static inline bool msg_admit(weft_ep_t *ep, wefti_flow_t *f, uint64_t cost)
{
    if (__builtin_expect(cost > f->granted, 0)) {
        wefti_flow_exceeded(ep);
        return false;
    }
    f->granted -= cost;
    return true;
}

static inline void msg_consumed(weft_ep_t *ep, uint64_t cost)
{
    wefti_flow_t *f = &msg_ep(ep)->box.flow;
    f->owed += cost;
    if (__builtin_expect(f->owed >= f->return_at || f->peer_starving, 0))
        wefti_flow_return(ep, f);
}

/* --- any.c: receives from any endpoint of a runtime with several shards ----------------------------------------------------- */

extern const wefti_op_kind_t wefti_msg_any_kind;
extern const wefti_wants_ops_t wefti_msg_wants;

/* --- send.c, recv.c, arrive.c ---------------------------------------------------------------------------------------------- */

extern const wefti_outbox_kind_t wefti_msg_sends;

/* Give a message to a receive that matches: copies or pulls, and completes `op` now or later. If memory runs out, op completes
 * with WEFT_ERR_NOMEM, the message is untouched, and false is returned. Credit is the caller's to count. */
bool wefti_msg_deliver_bytes(weft_op_t *op, weft_ep_id_t from, uint64_t tag, uint64_t len, const void *bytes, weft_ep_t *ep);
bool wefti_msg_deliver_pull(weft_op_t *op, uint64_t tag, wefti_in_t *in);
/* The same for a message that was held; it is freed and its credit returned. */
bool wefti_msg_deliver_held(weft_op_t *op, weft_msg_t *msg);
void wefti_msg_recv_down(weft_ep_t *ep, weft_status_t why);
void wefti_msg_recv_shutdown(msg_state_t *ms);                     /* end the receives from any endpoint */

/* A held or claimed message is done with: off its lists, its window back to the peer, its memory free. */
void wefti_msg_let_go(weft_msg_t *msg);
void wefti_msg_drop(weft_msg_t *msg); /* the same, and its sender is told that nobody took it */
/* The endpoint ends: payloads that are still at the peer are lost, and with `discard` everything that arrived. */
void wefti_msg_arrive_down(weft_ep_t *ep, bool discard);
void wefti_msg_arrive_orphan(weft_ep_t *ep);                       /* the endpoint goes: claims outlive it */
void wefti_msg_record(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n);
void wefti_msg_ahead(weft_ep_t *ep, const wefti_ahead_t *recs, unsigned n);
void wefti_msg_announced(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, wefti_in_t *in);
void wefti_msg_withdrawn(wefti_in_t *in);

#endif
