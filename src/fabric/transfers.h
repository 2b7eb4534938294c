/* fabric/transfers.h - what transports share that move payloads in messages (tcp and ucx): the book of payloads that are
 * announced, pulled and refused, and what lanes have to tell at the end of progress.
 *
 *     outgoing   on lane->announced --PULL--> ->sending --all bytes left--> ->announced --TAKEN--> all->ended --told--> freed
 *                 \---------------------------REFUSED, or the end of the lane---------------------/
 *     incoming   on lane->offers --pull--> ->pulling --the last byte, or the end of the lane--> all->ended --told--> freed
 *                 \--refuse, or the end of the lane--> freed
 *
 * The transport moves the bytes and sends the records; it embeds these structs at the beginning of its own. Progress tells what
 * has ended (wefti_transfers_tell()), then what became of lanes (wefti_events_tell()). The code has no state but these structs,
 * so that a module has a copy of it. Promise: each transfer is done once, from progress, and the lane outlives what is told of
 * it. tests/wire/fabric_lanes.c. */
#ifndef WEFTI_TRANSFERS_H
#define WEFTI_TRANSFERS_H

#include "base/map.h"
#include "base/slots.h"
#include "fabric/cursor.h"
#include "fabric/fabric.h"

#define WEFTI_OFFER_HEAD 16 /* bytes before the record of an offer: u64 id, u64 total */

typedef struct wefti_incoming wefti_incoming_t;
typedef struct wefti_job wefti_job_t;
typedef struct wefti_half wefti_half_t;

typedef struct wefti_transfers_ops {
    /* The lane is over: its peer broke the protocol, or there is no memory. */
    void (*fail)(wefti_lane_t *lane, weft_status_t why, const char *what);
    /* An incoming transfer has ended (p->job.status) and is about to be told: send TAKEN, and let go of what the transport has of
     * it. Not before: whoever pulled must know of the end before anything that the sender does upon it. */
    void (*pull_ends)(wefti_incoming_t *p);
    /* One of lane->untold was told. */
    void (*told)(wefti_lane_t *lane);
    /* The lane has events: go on with its end, if it ends. False: there is nothing more to tell of it, or it is gone. */
    bool (*lane_event)(wefti_lane_t *lane, unsigned events);
} wefti_transfers_ops_t;

/* Of a transport. */
typedef struct wefti_transfers {
    const wefti_transfers_ops_t *ops;
    wefti_slots_t outgoing, incoming; /* by id, by slot */
    wefti_list_t ended;               /* of wefti_job_t: not told yet */
    wefti_list_t events;              /* lanes with something to tell */
    wefti_list_t open;                /* lanes with something to send in the next progress */
    uint32_t epoch;                   /* counts progress calls */
} wefti_transfers_t;

/* What lanes tell; a transport may add its own from WEFTI_EV_OWN on. */
enum { WEFTI_EV_SPACE = 1, WEFTI_EV_FAILED = 2, WEFTI_EV_CLOSE = 4, WEFTI_EV_OWN = 8 };

/* Our half of a lane. */
struct wefti_half {
    wefti_lane_t base;
    wefti_transfers_t *all;
    bool failed;            /* lane_failed is due or was called */
    bool want_space;        /* `space` is owed */
    weft_status_t why;
    unsigned events;
    uint32_t epoch;         /* when a record last left alone */
    wefti_list_t event_link, open_link;
    wefti_list_t announced; /* of wefti_outgoing_t, whose bytes do not move */
    wefti_list_t sending;
    wefti_list_t offers;    /* of wefti_incoming_t, not yet pulled or refused */
    wefti_list_t pulling;
    wefti_map_t offer_ids;
    unsigned untold;        /* transfers that have ended and are not told */
};

/* What ends once, and is told then. */
struct wefti_job {
    wefti_list_t link; /* of what is under way, then transfers->ended */
    wefti_half_t *of;
    wefti_xfer_t *x;
    weft_status_t status;
    void (*let_go)(wefti_job_t *job); /* it is about to be told: free it */
};

/* One of our announcements. */
typedef struct wefti_outgoing {
    wefti_job_t job; /* its link: lane->announced, ->sending or the transport's own */
    uint64_t id;
    bool pulled;
    wefti_cursor_t from;
    uint64_t total, want, sent, slot;
} wefti_outgoing_t;

/* One of the peer's. */
struct wefti_incoming {
    wefti_pull_t base;
    wefti_job_t job; /* its link: lane->offers or ->pulling */
    uint64_t id, total, want, got;
    uint64_t slot; /* in transfers->incoming; 0: none */
    wefti_cursor_t to;
    weft_iov_t *pieces; /* own_pieces, or allocated */
    weft_iov_t own_pieces[4];
};

void wefti_transfers_init(wefti_transfers_t *all, const wefti_transfers_ops_t *ops);
void wefti_transfers_free(wefti_transfers_t *all);
void wefti_half_init(wefti_half_t *h, wefti_transfers_t *all, wefti_transport_t *transport, void *user, uint32_t frame_max);
void wefti_half_free(wefti_half_t *h);

/* --- lanes -------------------------------------------------------------------------------------------------------- */

/* Progress shall tell this of it. */
void wefti_half_event(wefti_half_t *h, unsigned event);
/* It has failed, for the first time. what: for the log. */
void wefti_half_fail(wefti_half_t *h, weft_status_t why, const char *what);
/* There is no space for a record; `soon`: nothing else will say when it is worth trying again, so that the next progress does. */
void *wefti_half_no_space(wefti_half_t *h, bool soon);
/* Something waits: the next progress sends it. */
static inline void wefti_half_later(wefti_half_t *h)
{
    if (!wefti_list_linked(&h->open_link))
        wefti_list_push_back(&h->all->open, &h->open_link);
}
/* A record was committed. The first one since the last progress leaves now (true), the others together, later. */
static inline bool wefti_half_leaves(wefti_half_t *h)
{
    bool first = h->epoch != h->all->epoch && !wefti_list_linked(&h->open_link);
    h->epoch = h->all->epoch;
    if (!first)
        wefti_half_later(h);
    return first;
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

/* Enter an announcement, in a struct of `size` bytes that begins with wefti_outgoing_t and is zero behind it. WEFT_ERR_NOMEM,
 * _LIMIT. */
weft_status_t wefti_outgoing_new(wefti_half_t *of, const weft_iov_t *iov, uint64_t total, wefti_xfer_t *x, size_t size,
                                 wefti_outgoing_t **out);
/* Write the offer of it: WEFTI_OFFER_HEAD + n bytes. */
void wefti_outgoing_offer(const wefti_outgoing_t *o, uint8_t *at, const void *rec, size_t n);
/* The lane's announcement of this id, or NULL. */
wefti_outgoing_t *wefti_outgoing_find(wefti_half_t *of, uint64_t id);
/* A PULL has come (u64 id, u64 slot, u64 want): begin to send it, on lane->sending. NULL: the lane has failed. */
wefti_outgoing_t *wefti_outgoing_pulled(wefti_half_t *of, const uint64_t *nums);
/* All of its bytes have left: the rest is for the peer to say. */
void wefti_outgoing_left(wefti_outgoing_t *o);
/* It is over: progress will tell. */
void wefti_outgoing_end(wefti_outgoing_t *o, weft_status_t status);
void wefti_outgoing_end_all(wefti_list_t *list, weft_status_t status);

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* Enter an offer, in a struct of `size` bytes that begins with wefti_incoming_t and is zero behind it. NULL: the lane has
 * failed. */
wefti_incoming_t *wefti_incoming_new(wefti_half_t *of, uint64_t id, uint64_t total, size_t size);
/* The bytes of an offer have come: enter it and tell of it. */
void wefti_offer_arrived(wefti_half_t *of, const uint8_t *bytes, size_t n, size_t size);
/* Begin to pull it into these pieces, which are copied, under a slot. WEFT_ERR_NOMEM, _LIMIT: it is as it was. */
weft_status_t wefti_incoming_pull(wefti_incoming_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
/* The same without pieces and slot. */
void wefti_incoming_begin(wefti_incoming_t *p, wefti_xfer_t *x);
/* n bytes for this slot come: what they are part of. NULL: nothing, and the lane has failed. */
wefti_incoming_t *wefti_incoming_find(wefti_half_t *of, uint64_t slot, uint64_t n);
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
void wefti_tell_withdrawn(wefti_half_t *of);
/* It is over: progress will tell. */
void wefti_job_end(wefti_job_t *job, weft_status_t status);
/* Tell what has ended until now; how many. */
unsigned wefti_transfers_tell(wefti_transfers_t *all);
/* Tell what became of lanes until now; how many. What the upcalls add waits for the next progress. */
unsigned wefti_events_tell(wefti_transfers_t *all);
static inline bool wefti_transfers_to_tell(const wefti_transfers_t *all)
{
    return !wefti_list_empty(&all->events) || !wefti_list_empty(&all->ended);
}

#endif
