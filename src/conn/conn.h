/* conn/conn.h - endpoints as the rooms above see them.
 *
 * conn owns the wire and the lane of each endpoint and everything about its life; rooms above (msg, am) own the
 * operations on it. They meet here: conn calls the functions of wefti_traffic_t, the room calls the few functions below.
 *
 * A record's first byte is its kind; conn keeps 0x00-0x0f for itself and hands the others to the traffic that claimed them. */
#ifndef WEFTI_CONN_H
#define WEFTI_CONN_H

#include <weft/conn.h>
#include <weft/policy.h>

#include "base/opts.h"
#include "base/wild.h"
#include "conn/flow.h"
#include "conn/payload.h"
#include "conn/pieces.h"
#include "conn/recheck.h"
#include "conn/wants.h"
#include "core/core.h"
#include "mem/mem.h"

enum {
    WEFTI_REC_UP = 0x01,        /* conn: the lane works in this direction */
    WEFTI_REC_NOTHING = 0x02,   /* conn: passed over; in place of a record that was reserved and is not wanted after all */
    WEFTI_REC_CLOSE = 0x03,     /* conn: nothing follows; carries how many messages were sent */
    WEFTI_REC_CLOSE_ACK = 0x04, /* conn: carries how many of them were not received yet */
    WEFTI_REC_STAGED = 0x05,    /* conn, payload.h */
    WEFTI_REC_CHUNKS = 0x06,
    WEFTI_REC_CHUNK = 0x07,
    WEFTI_REC_STAGED_END = 0x08,
    WEFTI_REC_TAKE_BACK = 0x09,
    WEFTI_REC_RELAY = 0x0a, /* conn, relay.h */
    WEFTI_REC_RELAY_ANSWER = 0x0b,
    WEFTI_REC_PLACED = 0x0c,
    WEFTI_REC_BOUNCED = 0x0d, /* conn, payload.h */
    WEFTI_REC_EMPTIED = 0x0e,
    WEFTI_REC_MSG_FIRST = 0x10, /* msg: 0x10 - 0x1f */
    WEFTI_REC_MSG_LAST = 0x1f,
    WEFTI_REC_AM_FIRST = 0x20,  /* am: 0x20 - 0x2f */
    WEFTI_REC_AM_LAST = 0x2f,
    WEFTI_REC_RMA_FIRST = 0x30, /* rma: 0x30 - 0x3f */
    WEFTI_REC_RMA_LAST = 0x3f
};

/* Traffic on endpoints: one table per room above, all called on the driver except ep_new. What comes behind ep_free may be
 * NULL, and so may `record` to `withdrawn` where there are no records. */
typedef struct wefti_traffic {
    uint8_t first_kind, last_kind;                 /* last below first: it has no records, and only wants to know of endpoints */
    uint64_t capability;                           /* what the hello says of it: WEFT_CAN_* */
    size_t ep_state_size;                          /* bytes of ep->traffic[i] conn allocates, zeroed */
    bool outbox;                                   /* they begin with a wefti_outbox_t */
    void (*ep_new)(weft_ep_t *ep);                 /* initialise that, and nothing else: runs on the thread that opens */
    void (*ep_up)(weft_ep_t *ep);                  /* the lane is there (again, after a reconnect): start what waits. Before
                                                      the outbox */
    /* kind: the record's first byte, which is not read again. The bytes are the peer's: base/wild.h. announced: with
     * wefti_out_announce() */
    void (*record)(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n);
    /* Records of any kind that come next, for a traffic that set rt->fabric->look_ahead. They may change until then, or never
     * come: fetch memory, and change nothing. */
    void (*ahead)(weft_ep_t *ep, const wefti_ahead_t *recs, unsigned n);
    void (*announced)(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, wefti_in_t *in);
    void (*withdrawn)(wefti_in_t *in);             /* its sender took it back, or the lane is closed: gone when this returns. Not
                                                      called where in->user is NULL: the traffic let go of it in ep_down */
    /* Complete every operation on the endpoint that waits for a peer, with `why`; those whose buffers the fabric still has
     * complete when it lets go (the lane is about to be closed, and ep->lane is NULL already: ask nothing of it any more). What
     * has arrived whole stays receivable, unless `discard`. Called when the endpoint fails, when the peer closed, when it is
     * forced down here. At the beginning of a graceful close here ep->lane is still there: then only receives end, and sends go
     * on. */
    void (*ep_down)(weft_ep_t *ep, weft_status_t why, bool discard);
    void (*ep_free)(weft_ep_t *ep);
    void (*ep_space)(weft_ep_t *ep);               /* the lane has space again. Before the outbox */
    bool (*ep_sends_pending)(weft_ep_t *ep);       /* beside those of the outbox: something is to be sent before a close; when
                                                      that ends, wefti_ep_drained() is called */
    bool (*ep_busy)(weft_ep_t *ep);                /* beside the outbox and ep->pulls: operations or transfers are under way,
                                                      so the endpoint cannot be freed yet; when that ends, wefti_ep_drained()
                                                      is called */
    void (*ep_info)(weft_ep_t *ep, weft_ep_info_t *info); /* fill in its counters; any thread */
} wefti_traffic_t;

enum { WEFTI_TRAFFIC_MSG, WEFTI_TRAFFIC_AM, WEFTI_TRAFFIC_RMA, WEFTI_TRAFFIC_RPC, WEFTI_TRAFFIC_EXTEND, WEFTI_TRAFFIC_N };

/* The part of an endpoint that the rooms above touch; conn/ep.h has the rest around it. Its memory stays an endpoint
 * (base/handle.h): one that is closed and freed is GONE, has no lane and no traffic, and posts on it fail. An operation
 * in the inbox may name one: ask wefti_ep_may_wait() or wefti_ep_is_there() before touching its traffic. */
struct weft_ep {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    wefti_lane_t *lane;          /* not NULL exactly while records may be sent: UP, and CLOSING until CLOSE is sent */
    _Atomic uint32_t state;      /* weft_ep_state_t; written by the driver */
    uint32_t heard;              /* set by conn for every record that arrives */
    void *traffic[WEFTI_TRAFFIC_N];
    weft_ep_id_t id;
    uint32_t peer_window;        /* recv_window of the peer, from its hello; valid once up */
    uint32_t pulls;              /* payloads on their way here: see wefti_ep_pulled() */
    weft_status_t why;           /* of FAILED and GONE */
    uint64_t why_detail;         /* its sentence: base/detail.h */
};

/* It was not freed. Other threads than the driver may learn of its end a moment late. */
static inline bool wefti_ep_is_there(const weft_ep_t *ep) { return wefti_is_open(&ep->handle); }
/* Closed here: nobody wants what still comes. */
static inline bool wefti_ep_is_closing(const weft_ep_t *ep)
{
    return atomic_load_explicit(&((weft_ep_t *)(uintptr_t)ep)->state, memory_order_relaxed) == WEFT_EP_CLOSING;
}
/* Connected: what is posted on it may wait for the peer. */
static inline bool wefti_ep_is_up(const weft_ep_t *ep)
{
    return atomic_load_explicit(&((weft_ep_t *)(uintptr_t)ep)->state, memory_order_relaxed) == WEFT_EP_UP;
}
/* For calls that name a runtime and one of its endpoints, or NULL for any: *rt becomes the shard that the endpoint is of, or the
 * head. WEFT_ERR_INVALID, _CLOSED, with a sentence. */
weft_status_t wefti_ep_check_of(const weft_ep_t *ep, weft_runtime_t **rt);
/* For calls that post on it: WEFT_ERR_CLOSED, with a sentence, where it was freed. */
weft_status_t wefti_ep_fail_gone(const weft_ep_t *ep);
static inline weft_status_t wefti_ep_check(const weft_ep_t *ep)
{
    return __builtin_expect(wefti_ep_is_there(ep), 1) ? WEFT_OK : wefti_ep_fail_gone(ep);
}

/* weft_ep_open() on this very shard. beside: an endpoint of the peer, as it calls it, whose shard the new one should be
 * on; 0: any. */
weft_status_t wefti_ep_open(weft_runtime_t *rt, const char *uri, const weft_ep_opts_t *opts, weft_ep_id_t beside, weft_op_t *op,
                            weft_ep_t **ep_out);
/* Who the peer of an endpoint is: weft_ep_info_t.identity, copied to buf, cut to cap bytes with the zero at the end; how many it
 * has without. 0: it is gone, or has none. Any thread. */
size_t wefti_ep_identity(weft_runtime_t *rt, weft_ep_id_t id, char *buf, size_t cap);
/* Who peers know this runtime as, by what it proves: the name in its certificate, else that of its first key; "": neither has
 * one. Driver of the first shard. */
void wefti_own_identity(const weft_runtime_t *rt, char *buf, size_t cap);
/* What the peer of an endpoint that was dialled calls it; 0: it was never up. Driver. */
weft_ep_id_t wefti_ep_of_peer(const weft_ep_t *ep);

/* The part of the room that the rooms above see; conn/ep.h has the rest around it. */
typedef struct wefti_conn_pub {
    uint32_t n_starving; /* flows whose peer_starving is set */
    _Atomic uint64_t detached_bytes[WEFTI_TRAFFIC_N]; /* of sends without an operation that wait */
} wefti_conn_pub_t;

static inline uint32_t wefti_flow_n_starving(const weft_runtime_t *rt)
{
    return ((const wefti_conn_pub_t *)rt->room_state[WEFTI_ROOM_CONN])->n_starving;
}

/* Register traffic with a runtime; once per room, when it is attached. */
void wefti_conn_traffic(weft_runtime_t *rt, int which, const wefti_traffic_t *traffic);

/* May an operation wait for the peer, and with what status does it end if not: WEFT_OK in CONNECTING, UP, RECONNECTING, and in
 * FAILED until the hook has been asked; _CLOSED in CLOSING and PEER_CLOSED; ep->why in FAILED. Receives look among what has
 * arrived first. */
weft_status_t wefti_ep_may_wait(const weft_ep_t *ep);

/* The sentence of what ends because the endpoint did: base/detail.h; 0: it did not end. */
static inline uint64_t wefti_ep_detail(const weft_ep_t *ep, weft_status_t status)
{
    return status && !ep->lane ? ep->why_detail : 0;
}
/* For what nobody waits for, by any thread: has it ended, and will not come back? WEFT_ERR_PEER, _CLOSED. */
weft_status_t wefti_ep_lost(const weft_ep_t *ep);
/* The number of a sentence that begins with the peer's address and name (base/detail.h); 0: the endpoint itself ends, and says
 * why. */
uint64_t wefti_ep_sentence(const weft_ep_t *ep, const char *text);
/* What the operation that fails next says (weft_op_error): the peer's address and name, and this sentence. Driver only. */
void wefti_ep_says(weft_ep_t *ep, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Complete one on an endpoint (NULL: on none), which says of whom it was waited for where its time is over, and how the
 * endpoint ended. */
void wefti_ep_complete(weft_ep_t *ep, weft_op_t *op, weft_status_t status);
/* Why an operation on the endpoint ended, where the fabric only says that the lane is gone (WEFT_ERR_CANCELLED): the endpoint
 * knows more. */
static inline weft_status_t wefti_ep_why(const weft_ep_t *ep, weft_status_t status)
{
    if (status != WEFT_ERR_CANCELLED)
        return status;
    if (atomic_load_explicit(&ep->state, memory_order_relaxed) == WEFT_EP_CLOSING)
        return WEFT_ERR_CLOSED;
    ep->rt->why_next = ep->why_detail; /* for the completion that follows */
    return ep->why ? ep->why : WEFT_ERR_PEER;
}

/* A receive that was counted in ep->pulls has its payload, or will not get it: how it completes, if the fabric says `status`.
 * op->status is what a cancel or its deadline asked for meanwhile. Call wefti_ep_drained() after the completion. */
static inline weft_status_t wefti_ep_pulled(weft_ep_t *ep, const weft_op_t *op, weft_status_t status)
{
    ep->pulls--;
    return !status ? WEFT_OK : op->status ? op->status : wefti_ep_why(ep, status);
}

/* From traffic: sends_pending or busy turned false. Cheap to call too often. */
void wefti_ep_drained(weft_ep_t *ep);

/* From traffic: the peer broke the protocol (says what, for the log and for operations). Fails the endpoint with
 * WEFT_ERR_PROTOCOL, later in this progress. The text stays where it is. */
void wefti_ep_protocol_error(weft_ep_t *ep, const char *what);
/* From traffic: what the peer waits for cannot be sent or kept here. The same, but the peer is not to blame. */
void wefti_ep_cannot(weft_ep_t *ep, const char *what);

/* --- the policy (policy.c) -------------------------------------------------------------------------------------------------- */

/* Which policy is in force: another number after each change; 0: there has been none. Any thread. */
uint64_t wefti_rules_number(const weft_runtime_t *rt);
/* Is there somebody to whom it does not allow that? False: nobody needs to ask. */
bool wefti_rules_limit(const weft_runtime_t *rt, weft_may_t action);
/* weft_ep_may(), on the driver of the endpoint. count: a refusal is counted. */
weft_status_t wefti_ep_may(weft_ep_t *ep, weft_may_t action, const char *name, bool count, uint64_t *limit_out);

/* Walk all endpoints that the driver knows: start with *at = 0; NULL at the end. */
weft_ep_t *wefti_ep_next(weft_runtime_t *rt, uint32_t *at);

/* Where peers can call the listeners of the runtime: URIs joined by commas, as many whole ones as fit, "" if it has none or is
 * closed. Any thread. */
#define WEFTI_REACH_MAX 512
void wefti_conn_reach(weft_runtime_t *rt, char out[WEFTI_REACH_MAX]);

/* For src/open.c. */
weft_status_t wefti_conn_attach(weft_runtime_t *rt);

#include "conn/outbox.h"

#endif
