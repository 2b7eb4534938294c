/* conn/outbox.h - the sends of one traffic on one endpoint, from the post to the lane; part of the door conn/conn.h.
 *
 * A send is PENDING (it waits for the connection, for credit, for space on the lane, or for its bytes to come from a device),
 * ANNOUNCED (its payload waits for the peer to pull it), CONFIRMING (the peer has it, and its answer is awaited), or complete.
 * A message that fits a record is copied into the lane and is complete at once, unless it is to be confirmed. Sends keep their
 * order: one goes to the lane directly only while no other is pending. Urgent sends have a list of their own, which goes first.
 *
 * Cancelling: a pending send ends at once, and so does a confirming one, whose buffers are free. An announced one is
 * withdrawn, and ends when the fabric has let go of its buffers.
 *
 * The traffic says how a message becomes a record (wefti_outbox_kind_t.put). conn does the rest. Driver only, where nothing
 * else is said. */
#ifndef WEFTI_OUTBOX_H
#define WEFTI_OUTBOX_H

#include "base/slots.h"
#include "conn/conn.h"

/* What the traffic says about its sends; static const. */
typedef struct wefti_outbox_kind {
    wefti_flow_kind_t flow;
    wefti_op_kind_t op;  /* WEFTI_SEND_OP("its name") */
    int traffic;         /* WEFTI_TRAFFIC_* */
    /* Put a message on the lane, which is there: as a record, or with wefti_outbox_announce(). WEFT_ERR_AGAIN: not now. Other
     * failures end it. */
    weft_status_t (*put)(weft_ep_t *ep, weft_op_t *op);
} wefti_outbox_kind_t;

/* The first member of what such a traffic keeps per endpoint. wefti_outbox_init() is called in ep_new; conn looks after it
 * from then on. */
typedef struct wefti_outbox {
    wefti_flow_t flow;
    wefti_list_t pending;      /* sends not yet on the lane, in order */
    wefti_list_t urgent;       /* those that go before them */
    wefti_count_t count;       /* since the endpoint exists */
    uint64_t sent_before;      /* of count.sent, over earlier lanes */
    uint32_t unreceived;       /* messages arrived that no receive has taken: the traffic counts them, for CLOSE_ACK */
    wefti_list_t announced;
    wefti_list_t confirming;
    wefti_slots_t confirms;    /* id of an answer -> operation */
    const wefti_outbox_kind_t *kind;
} wefti_outbox_t;

/* What the operation of a send keeps. op->len is the length of the payload. */
typedef struct wefti_send {
    weft_ep_t *ep;
    const wefti_outbox_kind_t *kind;
    wefti_pieces_t payload;
    const void *header;        /* what the traffic sends before the payload, if anything */
    uint32_t header_len;
    uint32_t header_sent;      /* of a header that goes ahead in records of its own */
    wefti_out_t *out;          /* while announced */
    wefti_carry_t *carry;      /* a short payload of a device: its bytes, or where they are copied to */
    uint64_t confirm_id;       /* while confirming */
    weft_status_t why;         /* what ends it, where the fabric will only say that it was cancelled */
    uint8_t flags;             /* the traffic's own */
    bool urgent, no_wait;
    bool carrying;             /* they are on their way to the carry */
    bool gated;                /* it waits for a stream: core/gate.h */
} wefti_send_t;

_Static_assert(sizeof(wefti_send_t) <= WEFTI_OP_SCRATCH_SIZE, "a send fits its operation");

static inline wefti_send_t *wefti_send(weft_op_t *op) { return wefti_op_scratch(op, wefti_send_t); }

void wefti_outbox_init(wefti_outbox_t *box, const wefti_outbox_kind_t *kind, uint64_t window, uint32_t window_msgs);
static inline bool wefti_outbox_nobody_waits(const wefti_outbox_t *box)
{
    return wefti_list_empty(&box->pending) && wefti_list_empty(&box->urgent);
}

/* --- posting: any thread --------------------------------------------------------------------------------------------------- */

/* Post a send as *s describes it, of `len` bytes. op NULL: nobody waits for it. Then its header is copied, and its payload too
 * unless that has a release function: WEFT_ERR_AGAIN if it has to wait and 1 MiB of such copies waits already, WEFT_ERR_LIMIT
 * if it alone is more. */
weft_status_t wefti_outbox_post(const wefti_send_t *s, uint64_t len, uint64_t tag, weft_op_t *op);
/* The same on the driver, for an operation that is prepared. */
weft_status_t wefti_outbox_start_prepared(const wefti_send_t *s, uint64_t len, uint64_t tag, weft_op_t *op);

/* What the program reads from the operation of a send. */
static inline void wefti_outbox_describe(weft_op_t *op, const weft_ep_t *ep, uint64_t len, uint64_t tag)
{
    op->len = len;
    op->tag = tag;
    op->from = ep->id;
}
static inline void wefti_outbox_count(wefti_outbox_t *box, uint64_t bytes)
{
    wefti_count_up(&box->count.sent, 1);
    wefti_count_up(&box->count.bytes_sent, bytes);
}

/* Of the operations: see wefti_op_kind_t. */
weft_status_t wefti_outbox_start(weft_op_t *op);
void wefti_outbox_cancel(weft_op_t *op, weft_status_t why);
void wefti_outbox_finish(weft_op_t *op, weft_status_t status);
#define WEFTI_SEND_OP(its_name) \
    {.name = (its_name), .start = wefti_outbox_start, .cancel = wefti_outbox_cancel, .failed = wefti_outbox_finish, \
     .stops = true, .gates = true}

/* --- for put() ------------------------------------------------------------------------------------------------------------- */

/* Copy the payload into a record that was reserved: it begins at `rec`, and the payload goes to `to`. A device may fail to
 * copy: then a record that means nothing takes its place. */
weft_status_t wefti_outbox_copy(weft_ep_t *ep, weft_op_t *op, void *rec, void *to);
/* Announce the payload with a record of n bytes: it begins with a wefti_word_t, whose credit is filled in here, and 8 bytes
 * for the id of the payload. cost: what that takes of the window. */
weft_status_t wefti_outbox_announce(weft_ep_t *ep, weft_op_t *op, void *rec, size_t n, uint64_t cost);
/* An answer is wanted: s->confirm_id names it. unconfirm: none is awaited any more. */
weft_status_t wefti_outbox_confirm(wefti_outbox_t *box, weft_op_t *op);
void wefti_outbox_unconfirm(wefti_outbox_t *box, weft_op_t *op);

/* --- what the peer says ---------------------------------------------------------------------------------------------------- */

/* Credit, or a question for it, came in a record. false: the endpoint has been failed. Sends that waited go now, and the
 * program gets buffers back: it may end the endpoint there. Look at ep->lane before reading on in the record. */
bool wefti_outbox_credit(weft_ep_t *ep, wefti_outbox_t *box, const wefti_word_t *word);
/* The answer to a message that was to be confirmed. reason 0: it was taken. */
void wefti_outbox_answered(weft_ep_t *ep, wefti_outbox_t *box, uint64_t confirm_id, uint32_t reason);
/* Why the peer is about to refuse a payload. */
void wefti_outbox_refusal(weft_ep_t *ep, const wefti_outbox_t *box, uint64_t payload_id, uint32_t reason);
/* A receive waits for what is not here, from this endpoint (NULL: from any): do peers that starve have it? */
void wefti_outbox_tell_starving(weft_runtime_t *rt, weft_ep_t *ep, int traffic);

/* --- for conn -------------------------------------------------------------------------------------------------------------- */

void wefti_outbox_up(weft_ep_t *ep, wefti_outbox_t *box);    /* a new lane: start what waits */
void wefti_outbox_space(weft_ep_t *ep, wefti_outbox_t *box); /* the lane has space again */
void wefti_outbox_down(weft_ep_t *ep, wefti_outbox_t *box, weft_status_t why);
void wefti_outbox_free(weft_ep_t *ep, wefti_outbox_t *box);
bool wefti_outbox_busy(const wefti_outbox_t *box);           /* sends are not complete yet */
/* over this lane */
static inline uint64_t wefti_outbox_sent(const wefti_outbox_t *box) { return box->count.sent - box->sent_before; }
/* Sum over all endpoints of a runtime, those included that are gone. */
wefti_count_t wefti_outbox_sum(weft_runtime_t *rt, int traffic);

#endif
