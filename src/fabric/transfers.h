/* fabric/transfers.h - the book of payloads that are announced, pulled and refused, for transports that move them in messages:
 * tcp and ucx.
 *
 *     outgoing   on lane->announced --PULL--> ->sending --all bytes left--> ->announced --TAKEN--> all->sent --told--> freed
 *                 \---------------------------REFUSED, or the end of the lane---------------------/
 *     incoming   on lane->offers --pull--> ->pulling --the last byte, or the end of the lane--> all->pulled --told--> freed
 *                 \--refuse, or the end of the lane--> freed
 *
 * The transport moves the bytes and sends the records; it embeds these structs at the beginning of its own. Progress tells what
 * has ended (wefti_transfers_tell()). The code has no state but these structs, so that a module has a copy of it. Promise: each
 * transfer is done once, from progress, and the lane outlives what is told of it. tests/wire/fabric_lanes.c. */
#ifndef WEFTI_TRANSFERS_H
#define WEFTI_TRANSFERS_H

#include "base/map.h"
#include "base/slots.h"
#include "fabric/cursor.h"
#include "fabric/fabric.h"

#define WEFTI_OFFER_HEAD 16 /* bytes before the record of an offer: u64 id, u64 total */

typedef struct wefti_incoming wefti_incoming_t;
typedef struct wefti_lane_transfers wefti_lane_transfers_t;

typedef struct wefti_transfers_ops {
    /* The lane is over: its peer broke the protocol, or there is no memory. */
    void (*fail)(wefti_lane_t *lane, weft_status_t why, const char *what);
    /* An incoming transfer has ended (p->status) and is about to be told: send TAKEN, and let go of what the transport has of
     * it. Not before: whoever pulled must know of the end before anything that the sender does upon it. */
    void (*pull_ends)(wefti_incoming_t *p);
    /* One of lane->untold was told. */
    void (*told)(wefti_lane_t *lane);
} wefti_transfers_ops_t;

/* Of a transport. */
typedef struct wefti_transfers {
    const wefti_transfers_ops_t *ops;
    wefti_slots_t outgoing, incoming; /* by id, by slot */
    wefti_list_t sent, pulled;        /* have ended and are not told */
} wefti_transfers_t;

/* Of a lane. */
struct wefti_lane_transfers {
    wefti_transfers_t *all;
    wefti_lane_t *lane;
    wefti_list_t announced; /* of wefti_outgoing_t, whose bytes do not move */
    wefti_list_t sending;
    wefti_list_t offers;    /* of wefti_incoming_t, not yet pulled or refused */
    wefti_list_t pulling;
    wefti_map_t offer_ids;
    unsigned untold;        /* transfers that have ended and are not told */
};

/* One of our announcements. */
typedef struct wefti_outgoing {
    wefti_list_t link; /* lane->announced, ->sending or the transport's own, then transfers->sent */
    wefti_lane_transfers_t *of;
    wefti_xfer_t *x;
    uint64_t id;
    weft_status_t status;
    bool pulled;
    wefti_cursor_t from;
    uint64_t total, want, sent, slot;
} wefti_outgoing_t;

/* One of the peer's. */
struct wefti_incoming {
    wefti_pull_t base;
    wefti_list_t link; /* lane->offers or ->pulling, then transfers->pulled */
    wefti_lane_transfers_t *of;
    wefti_xfer_t *x;
    uint64_t id, total, want, got;
    uint64_t slot; /* in transfers->incoming; 0: none */
    weft_status_t status;
    wefti_cursor_t to;
    weft_iov_t *pieces; /* own_pieces, or allocated */
    weft_iov_t own_pieces[4];
};

void wefti_transfers_init(wefti_transfers_t *all, const wefti_transfers_ops_t *ops);
void wefti_transfers_free(wefti_transfers_t *all);
void wefti_lane_transfers_init(wefti_lane_transfers_t *of, wefti_transfers_t *all, wefti_lane_t *lane);
void wefti_lane_transfers_free(wefti_lane_transfers_t *of);

/* --- out ---------------------------------------------------------------------------------------------------------- */

/* Enter an announcement, in a struct of `size` bytes that begins with wefti_outgoing_t and is zero behind it. WEFT_ERR_NOMEM,
 * _LIMIT. */
weft_status_t wefti_outgoing_new(wefti_lane_transfers_t *of, const weft_iov_t *iov, uint64_t total, wefti_xfer_t *x, size_t size,
                                 wefti_outgoing_t **out);
/* Write the offer of it: WEFTI_OFFER_HEAD + n bytes. */
void wefti_outgoing_offer(const wefti_outgoing_t *o, uint8_t *at, const void *rec, size_t n);
/* The lane's announcement of this id, or NULL. */
wefti_outgoing_t *wefti_outgoing_find(wefti_lane_transfers_t *of, uint64_t id);
/* A PULL has come (u64 id, u64 slot, u64 want): begin to send it, on lane->sending. NULL: the lane has failed. */
wefti_outgoing_t *wefti_outgoing_pulled(wefti_lane_transfers_t *of, const uint64_t *nums);
/* All of its bytes have left: the rest is for the peer to say. */
void wefti_outgoing_left(wefti_outgoing_t *o);
/* It is over: progress will tell. */
void wefti_outgoing_end(wefti_outgoing_t *o, weft_status_t status);
void wefti_outgoing_end_all(wefti_list_t *list, weft_status_t status);

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* Enter an offer, in a struct of `size` bytes that begins with wefti_incoming_t and is zero behind it. NULL: the lane has
 * failed. */
wefti_incoming_t *wefti_incoming_new(wefti_lane_transfers_t *of, uint64_t id, uint64_t total, size_t size);
/* The bytes of an offer have come: enter it and tell of it. */
void wefti_offer_arrived(wefti_lane_transfers_t *of, const uint8_t *bytes, size_t n, size_t size);
/* Begin to pull it into these pieces, which are copied, under a slot. WEFT_ERR_NOMEM, _LIMIT: it is as it was. */
weft_status_t wefti_incoming_pull(wefti_incoming_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
/* The same without pieces and slot. */
void wefti_incoming_begin(wefti_incoming_t *p, wefti_xfer_t *x);
/* n bytes for this slot come: what they are part of. NULL: nothing, and the lane has failed. */
wefti_incoming_t *wefti_incoming_find(wefti_lane_transfers_t *of, uint64_t slot, uint64_t n);
/* n more bytes are where they belong; true: that was all. */
static inline bool wefti_incoming_came(wefti_incoming_t *p, size_t n)
{
    p->got += n;
    return p->got == p->want;
}
/* It is over: progress will tell. */
void wefti_incoming_end(wefti_incoming_t *p, weft_status_t status);
/* An offer that is refused: forget it. */
void wefti_incoming_drop(wefti_incoming_t *p);

/* --- telling ------------------------------------------------------------------------------------------------------ */

/* The lane closes: tell that its offers are withdrawn. */
void wefti_tell_withdrawn(wefti_lane_transfers_t *of);
/* Tell what has ended until now; how many. */
unsigned wefti_transfers_tell(wefti_transfers_t *all);
static inline bool wefti_transfers_to_tell(const wefti_transfers_t *all)
{
    return !wefti_list_empty(&all->sent) || !wefti_list_empty(&all->pulled);
}

#endif
