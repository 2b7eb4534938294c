/* rma/state.h - what rma keeps: per runtime, per endpoint, per remote, per access. region.h has regions and grants.
 *
 * Two sides. The owner's: regions, the grants that peers have on them, and the requests that it serves (key.c, share.c, region.c,
 * ending.c, grant.c, serve.c, serve_device.c; serve.h; of a runtime with several shards twins.c, together.c, whole.c; twins.h).
 * The user's: remotes, and accesses to them (post.c, batch.c, remote.c, access.c, carried.c) over three paths (mapped.c,
 * checked.c, native.c). Everything belongs to the driver of the runtime, except what says otherwise. */
#ifndef WEFTI_RMA_STATE_H
#define WEFTI_RMA_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <weft/rma.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/slots.h"
#include "base/spares.h"
#include "base/status.h"
#include "conn/conn.h"
#include "rma/region.h"
#include "rma/rma.h"
#include "rma/wire.h"

/* --- per runtime ------------------------------------------------------------------------------------------------------- */

/* Work that takes long, and is done piece by piece: one piece per round of progress, so that others get their turn. */
typedef struct rma_rounds {
    rma_state_t *rs;
    wefti_list_t list;            /* what there is to do */
    void (*piece)(rma_state_t *rs); /* do some of it, from the first on */
    wefti_timer_t timer;
} rma_rounds_t;

typedef struct rma_acc rma_acc_t;

/* A part of a long mapped access, which others copy with the driver: window.c. acc is NULL: none is open. */
typedef struct rma_window {
    rma_acc_t *acc;
    uint64_t from, len;           /* bytes of the access */
    wefti_offer_t offer;
} rma_window_t;

struct rma_state {
    weft_runtime_t *rt;
    pthread_mutex_t lock;         /* of what is beneath, for any thread, up to `stamps`; held for moments */
    wefti_slots_t by_id;          /* region id -> weft_region_t, freed ones not */
    wefti_map_t by_name;          /* hash of the name -> the first rma_name_t of a chain through `next`, freed regions' not */
    wefti_list_t regions;         /* weft_region_t.link */
    rma_rounds_t works;           /* regions whose memory is moved or given back: work_link. The driver's */
    rma_stripes_t *stripes;       /* of a runtime with several shards, from its first region on: whole.c. Written once */
    rma_meeting_t *meeting;       /* the same: together.c */
    uint8_t secret[32];           /* of the MAC on keys of regions: random, for this runtime alone. Written once */
    uint8_t instance[16];         /* which runtime a region's key is for. Written once */
    _Atomic uint64_t stamps;      /* last one given out */
    /* the other side's */
    rma_rounds_t stepping;        /* mapped accesses that are done in steps, rma_acc_t.link */
    rma_window_t window;          /* of one of them */
    wefti_list_t held;            /* remotes whose slot somebody has, weft_remote_t.held_link */
    wefti_timer_t look;           /* whether it is free again */
    uint64_t looked;              /* when that was last seen to */
    wefti_list_t remotes;         /* weft_remote_t.all_link: all of the runtime */
    wefti_spares_t spare_turns;   /* serve_device.c */
    bool later;                   /* what begins now takes steps from the next round on: enough was done in this one */
    /* metrics, of what is gone and of the driver's paths */
    uint64_t mapped, checked, native;     /* operations by path, ours */
    uint64_t far;                         /* of the mapped, reads that a device of ours made */
    uint64_t fast_gone;                   /* of the mapped, those of remotes that are gone and never saw the driver */
    uint64_t served, refused;             /* of peers, by us */
};

static inline rma_state_t *rma_state(const weft_runtime_t *rt) { return (rma_state_t *)rt->room_state[WEFTI_ROOM_RMA]; }

static inline bool wefti_rma_regions_idle(const rma_state_t *rs) { return wefti_list_empty(&rs->regions); }

/* --- per endpoint ------------------------------------------------------------------------------------------------------ */

typedef struct rma_ep {
    /* ours: what we ask of the peer */
    uint32_t record_max;          /* largest record of this lane, and at most what is worth copying */
    uint32_t n_asked;             /* requests not answered */
    uint32_t pulling;             /* and reads whose bytes are on their way here: together RMA_REQUESTS at most */
    uint64_t asked_bytes;         /* and what may come back for them in records */
    uint32_t n_native;            /* accesses that the fabric has */
    wefti_slots_t requests;       /* id -> rma_acc_t, or what is left of one that was cancelled: RMA_LEFT */
    bool flushing;                /* of `pending`, now */
    wefti_list_t pending;         /* accesses not yet on the lane, in order */
    wefti_list_t asked;           /* accesses on their way */
    wefti_list_t remotes;         /* weft_remote_t.ep_link */
    /* theirs: what the peer asks of us */
    wefti_slots_t grants;         /* id -> rma_grant_t */
    wefti_list_t owed;            /* records that wait for space, in order: owed_t of serve.c */
    uint32_t n_replies;           /* of them, answers to the peer, and their bytes */
    uint64_t reply_bytes;
    uint32_t serving;             /* payloads under way, from and to our regions: RMA_SERVING at most */
    wefti_list_t turns;           /* requests that a device carries out, or that wait for it: serve_device.c */
    uint32_t n_turns;             /* of them, those that came over this lane */
    uint32_t lane_no;             /* one more with each lane that ends: what came over another is not answered */
} rma_ep_t;

static inline rma_ep_t *rma_ep(const weft_ep_t *ep) { return (rma_ep_t *)ep->traffic[WEFTI_TRAFFIC_RMA]; }

/* A request that was cancelled leaves its cost in its slot, as an odd number, until its answer comes. */
#define RMA_LEFT(cost) ((void *)(((uintptr_t)(cost) << 1) | 1))
static inline bool rma_is_left(const void *slot) { return (uintptr_t)slot & 1; }
static inline uint64_t rma_left_cost(const void *slot) { return (uintptr_t)slot >> 1; }

/* Send a whole record. False: the lane has no space now; ep_space() follows. */
static inline bool wefti_rma_put(weft_ep_t *ep, const void *rec, size_t n)
{
    void *at = ep->lane->ops->reserve(ep->lane, n);
    if (!at)
        return false;
    memcpy(at, rec, n);
    ep->lane->ops->commit(ep->lane, n);
    return true;
}

/* --- the other side: remotes and accesses ------------------------------------------------------------------------------ */

/* It outlives its runtime, if the program has it then: the mapping stays, and all calls say WEFT_ERR_CLOSED. */
struct weft_remote {
    wefti_handle_t handle;        /* open until the program drops it */
    _Atomic uint32_t coming;      /* posts that the driver has not begun: a mapped access must not pass them, and the remote is
                                     not freed before. Stays with the memory: see wefti_rma_coming() */
    /* what a small mapped access touches */
    uint32_t rights;
    rma_slot_t *slot;             /* in the mapping; NULL: not mapped */
    uint8_t *bytes;               /* the part's first byte in the mapping */
    uint64_t len;
    uint64_t stamp;
    _Atomic int32_t state;        /* weft_status_t: WEFT_OK while it can be used */
    _Atomic uint32_t n_live;      /* accesses under way: a mapped one that comes now takes its turn */
    weft_runtime_t *rt;           /* up to here it can be read when it was freed */
    rma_counts_t count;           /* begun; mapped ones under busy, others by the driver */
    uint64_t fast;                /* mapped ones that never saw the driver, under busy */
    /* the rest */
    rma_state_t *rs;
    weft_ep_t *ep;                /* NULL once it is down */
    weft_ep_id_t owner;
    weft_rma_path_t path, wanted;
    uint64_t grant, generation;
    void *map;
    size_t map_bytes;
    void (*unmap)(void *ptr, size_t n);
    wefti_import_t *import;       /* far.c: it is device memory, which is imported at `bytes`; NULL: it is not */
    rma_slot_t *far_slot;         /* its slot then; `slot` is NULL */
    uint32_t far_reads;           /* under way: the slot is busy */
    void *native;                 /* the fabric's way to it; NULL: none */
    void (*native_close)(void *native);
    uint32_t n_native;            /* accesses that the fabric has */
    bool revoked;                 /* the owner said so, and waits for DROP */
    uint64_t why_detail;          /* of its end with its endpoint: base/detail.h */
    wefti_list_t held;            /* accesses that wait for the slot: rma_acc_t.link. mapped.c */
    wefti_list_t held_link;       /* rma_state_t.held */
    uint64_t held_since;          /* since when nobody of the driver's got into the slot; 0: it did, the last time it tried */
    bool asks;                    /* the slot stays busy: the owner is asked */
    wefti_list_t all_link, ep_link;
    wefti_list_t live;            /* rma_acc_t.live_link, in the order of their posts */
    wefti_list_t loose;           /* of them, those that others could overtake: rma_acc_t.loose_link */
    uint64_t last_seq;
    uint32_t epoch;               /* fences so far: an access waits for the loose ones of earlier epochs */
    _Atomic bool fence;           /* weft_rma_fence() was called: the next access begins an epoch. Any thread */
    wefti_list_t flushes;         /* operations, through opx->link */
    uint32_t refs;                /* the program's, and one per access and flush */
    wefti_call_t drop_call;
    wefti_timer_t linger;         /* it has no references, but somebody came just now */
    _Atomic bool parted;          /* its runtime is closed, or the program dropped it then: whoever is second frees it */
    size_t claim_len;             /* while it is being attached: the key or the name */
    uint8_t *claim;
};

/* It cannot be used from now on. False: it could not be used before, for another reason. */
static inline bool wefti_rma_remote_fails(weft_remote_t *r, weft_status_t why)
{
    int32_t ok = WEFT_OK;
    return atomic_compare_exchange_strong(&r->state, &ok, (int32_t)why);
}

/* One access: in the scratch of its operation, or one of a batch. */
enum { ACC_READ = 1, ACC_WRITE, ACC_ATOMIC, ACC_NOTIFY, ACC_ATTACH };
enum {
    ACC_PENDING,  /* in rma_ep_t.pending */
    ACC_ASKED,    /* in rma_ep_t.asked: `id` awaits its answer */
    ACC_OUT,      /* the same, and its bytes are announced: `big` has them */
    ACC_PULL,     /* its bytes are on their way here: `big` */
    ACC_STEPS,    /* in rma_state_t.stepping.list, or weft_remote_t.held */
    ACC_NATIVE,   /* the fabric has it: `big` */
    ACC_FAR,      /* a device copies its bytes: `big` */
    ACC_CARRY     /* the same, between its buffer and `big->carry`, and that is all that is left of it */
};

typedef struct rma_batch rma_batch_t;
typedef struct rma_big_acc rma_big_acc_t;

struct rma_acc {
    wefti_list_t live_link;
    wefti_list_t link;            /* by state */
    wefti_list_t loose_link;      /* linked while it is loose: its bytes move while others are carried out */
    weft_remote_t *remote;
    uint64_t offset, len;
    uint64_t seq;
    union {
        void *buf;                /* iov_n is 0 */
        const weft_iov_t *iov;
        uint64_t compare;         /* ATOMIC */
    };
    uint64_t operand;             /* ATOMIC; the value of a notification */
    union {
        uint64_t id;              /* in rma_ep_t.requests, from ASKED on */
        uint64_t stepped;         /* STEPS: bytes done */
    };
    rma_big_acc_t *big;
    rma_batch_t *batch;           /* NULL: it is in the scratch of its operation */
    const weft_mem_kind_t *device; /* of buf; NULL: the processor can touch it */
    uint16_t iov_n;
    uint8_t what : 4, state : 4;  /* ACC_* */
    uint8_t which : 3, width : 4; /* ATOMIC */
    uint8_t notify : 1;
    uint32_t epoch;               /* before it is live: 1 if it is the first after a fence */
};
_Static_assert(sizeof(rma_acc_t) <= WEFTI_OP_SCRATCH_SIZE, "enlarge wefti_opx_t.room");

/* Many in one post. */
struct rma_batch {
    weft_op_t *op;
    weft_rma_item_t *items;
    size_t n;
    size_t first;                 /* items before it ended before there was a batch */
    size_t left;                  /* not ended; one more while it is being posted */
    rma_acc_t acc[];              /* one per item from `first` on */
};

/* The bytes of an access, while the fabric moves them. */
struct rma_big_acc {
    rma_acc_t *acc;               /* NULL: NATIVE, and it has ended before */
    weft_ep_t *ep;                /* PULL, NATIVE: whose lane; the remote may forget it before */
    wefti_xfer_t x;               /* PULL, NATIVE */
    wefti_copy_t copy;            /* FAR */
    wefti_out_t *out;             /* OUT */
    weft_iov_t one;               /* its buffer, unless it has pieces */
    weft_status_t why;            /* it was cancelled, or its time is over: what it ends with unless it succeeds */
    weft_status_t reply;          /* OUT: what the owner said, if it has */
    bool replied;
    bool copied;                  /* NATIVE: through `bytes` */
    wefti_carry_t *carry;         /* in the place of its buffer, which is in device memory: carried.c. NULL: none */
    bool carrying;                /* a device copies to it or from it */
    rma_acc_t left;               /* NATIVE: in its place among the loose, when it has ended before */
    uint8_t bytes[];
};

static inline weft_op_t *rma_op(rma_acc_t *acc) { return acc->batch ? acc->batch->op : wefti_op_of_scratch(acc); }
static inline rma_acc_t *rma_acc(weft_op_t *op) { return wefti_op_scratch(op, rma_acc_t); }
static inline bool rma_writes(const rma_acc_t *acc) { return acc->what == ACC_WRITE || acc->what == ACC_ATOMIC; }

/* --- post.c: checking and posting -------------------------------------------- */

weft_status_t wefti_rma_fits(const weft_remote_t *r, uint32_t rights, uint64_t offset, uint64_t len); /* _RANGE, _RIGHTS */
void wefti_rma_op_cancel(weft_op_t *op, weft_status_t why); /* for a wefti_op_kind_t whose scratch is an access */

/* --- access.c and checked.c ------------------------------------------------------------------------- */

/* Begin one that is filled in: it is live from then on, and may have ended when this returns. An error means nothing began. */
weft_status_t wefti_rma_begin(rma_acc_t *acc);
rma_big_acc_t *wefti_rma_big_new(rma_acc_t *acc, size_t bytes);     /* NULL: no memory */
void wefti_rma_big_free(rma_acc_t *acc);                            /* and its carry; there may be none */
weft_status_t wefti_rma_ask(rma_acc_t *acc);                        /* live: send its request, or let it wait */
bool wefti_rma_ask_first(rma_acc_t *acc);                           /* the same, before all that wait. False: it has to wait */
void wefti_rma_end(rma_acc_t *acc, weft_status_t status);           /* on no list but `live`: complete it */
void wefti_rma_cancel(rma_acc_t *acc, weft_status_t why);
/* Copy into its buffer, and out of it, from byte `at` on. */
weft_status_t wefti_rma_scatter(rma_acc_t *acc, uint64_t at, const uint8_t *bytes, uint64_t n);
weft_status_t wefti_rma_gather(const rma_acc_t *acc, uint64_t at, uint8_t *bytes, uint64_t n);
void wefti_rma_count(const rma_acc_t *acc);                         /* in its remote */
void wefti_rma_pending_flush(weft_ep_t *ep);
void wefti_rma_asked_down(weft_ep_t *ep, weft_status_t why);
void wefti_rma_answer(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n); /* DONE, DATA, VALUE, ATTACHED */
void wefti_rma_payload(weft_ep_t *ep, const wefti_wild_t *rec, size_t n, wefti_in_t *in);
void wefti_rma_nonsense(weft_ep_t *ep);                             /* the peer broke the protocol */

/* --- mapped.c ---------------------------------------------------------------------------------------------------------- */

#define RMA_AT_ONCE (1u << 20)     /* up to this a mapped access is complete when its post returns, if it can be */

void wefti_rma_step(rma_acc_t *acc);                                /* live: begin to touch the mapped memory, in its turn */
bool wefti_rma_asks(weft_remote_t *r);                              /* it is mapped, but its owner has to be asked */
void wefti_rma_steps_go(weft_remote_t *r);                          /* what one of them waited for has come */
void wefti_rma_steps_down(weft_remote_t *r, weft_status_t why);
void wefti_rma_steps_init(rma_state_t *rs);
void wefti_rma_rounds_init(rma_rounds_t *r, rma_state_t *rs, void (*piece)(rma_state_t *rs));
void wefti_rma_rounds_go(rma_rounds_t *r);                          /* its list was empty: the next round has a piece */
extern uint64_t wefti_rma_step_bytes;                               /* of one step; tests set it */
#define RMA_MOVE 4u                /* moving memory takes so many times as long as copying it: fresh pages, and a mapping */

/* --- window.c: the access is in its slot, and stays there until its window is closed ------------------------------------ */

bool wefti_rma_window_open(rma_acc_t *acc);                         /* false: the driver copies alone */
bool wefti_rma_window_work(rma_acc_t *acc, uint64_t most, uint64_t *n_out); /* true: n bytes are copied, and it is closed */
void wefti_rma_window_stop(weft_remote_t *r, const rma_acc_t *acc); /* of this access, or (NULL) of any: out of the slot */

/* --- native.c ---------------------------------------------------------------------------------------------------------- */

size_t wefti_rma_native_grant(rma_grant_t *grant, void *key);       /* a fabric key of at most WEFTI_KEY_MAX bytes. 0: none */
void wefti_rma_native_stale(rma_grant_t *grant);                    /* tell its peer */
void wefti_rma_native_drop(rma_grant_t *grant, bool lost);          /* its peer lets go, or its endpoint is down */
bool wefti_rma_native_hold(weft_region_t *region);                  /* take all fabric keys back. True: some are still out */
bool wefti_rma_native_wanted(const weft_remote_t *r, const weft_ep_t *ep);
bool wefti_rma_native_open(weft_remote_t *r, weft_ep_t *ep, const void *key, size_t n);
void wefti_rma_native_close(weft_remote_t *r);
void wefti_rma_native_quiet(weft_remote_t *r);                      /* an access of it ended: the owner may wait for the last */
void wefti_rma_revoked(weft_ep_t *ep, uint64_t grant);              /* REVOKED */
bool wefti_rma_native_can(const rma_acc_t *acc);
weft_status_t wefti_rma_native_start(weft_ep_t *ep, rma_acc_t *acc); /* give it to the fabric; it is loose then. WEFT_ERR_AGAIN */
void wefti_rma_native_leave(rma_acc_t *acc, weft_status_t why);      /* one that is copied ends before the fabric is done */

/* --- far.c ------------------------------------------------------------------------------------------------------------- */

bool wefti_rma_far_open(weft_remote_t *r, const wefti_export_t *export); /* false: every access asks the owner */
void wefti_rma_far_close(weft_remote_t *r);
bool wefti_rma_far_can(const rma_acc_t *acc);
bool wefti_rma_far_start(rma_acc_t *acc); /* live. False: ask the owner */

/* --- batch.c, remote.c ------------------------------------------------------------------------------------------------- */

void wefti_rma_batch_ended(rma_acc_t *acc, weft_status_t status);
void wefti_rma_flushes(weft_remote_t *r);                           /* complete those that waited for what has ended */

void wefti_rma_attached(weft_ep_t *ep, rma_acc_t *acc, const wefti_wild_t *rec, size_t n); /* acc ends. NULL: it was cancelled */
void wefti_rma_remote_unref(weft_remote_t *r);
/* Something is posted on it, by any thread; and has begun, on the driver. Between the two it may be in the inbox, and neither
 * an access that needs no driver nor a drop may pass it. WEFT_ERR_CLOSED: it was dropped. */
weft_status_t wefti_rma_fail_dropped(void);
/* For moments: it stays until wefti_handle_leave(). WEFT_ERR_CLOSED, _FORKED: it was dropped, or its runtime is gone. */
weft_status_t wefti_rma_remote_enter(weft_remote_t *r);
static inline weft_status_t wefti_rma_coming(weft_remote_t *r)
{
    atomic_fetch_add(&r->coming, 1);
    if (__builtin_expect(atomic_load(&r->handle.open), 1))
        return WEFT_OK;
    atomic_fetch_sub(&r->coming, 1);
    return wefti_rma_fail_dropped();
}
/* It could not be handed to the driver. */
static inline void wefti_rma_comes_not(weft_remote_t *r) { atomic_fetch_sub(&r->coming, 1); }
/* Prepare an operation on a remote, which is counted in r->coming from then on. WEFT_ERR_CLOSED: it was dropped; as
 * wefti_op_prepare(). */
static inline weft_status_t wefti_rma_prepare(weft_remote_t *r, weft_op_t *op, const wefti_op_kind_t *kind)
{
    weft_status_t st = wefti_op_prepare(r->rt, op, kind);
    if (st)
        return st;
    st = wefti_rma_coming(r);
    if (st)
        wefti_op_unprepare(op);
    return st;
}
void wefti_rma_came(weft_remote_t *r);
void wefti_rma_remotes_down(weft_ep_t *ep, weft_status_t why);
void wefti_rma_remotes_part(rma_state_t *rs);                       /* the room is freed: the program keeps its remotes */

#endif
