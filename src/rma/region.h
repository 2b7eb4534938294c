/* rma/region.h - regions of ours, and the grants that peers have on them. Part of rma/state.h.
 *
 * A runtime with several shards has one region for the program, which the head's driver has, and a twin of it for each further
 * shard that a peer attached it on: twins.c. Both are a weft_region_t. What is the driver's is that of its shard. */
#ifndef WEFTI_RMA_REGION_H
#define WEFTI_RMA_REGION_H

#include <stdatomic.h>
#include <weft/rma.h>

#include "base/handle.h"
#include "base/list.h"
#include "conn/conn.h"
#include "rma/share.h"

typedef struct rma_state rma_state_t;

typedef struct rma_counts {
    uint64_t reads, writes, atomics, bytes_read, bytes_written;
} rma_counts_t;
static inline void rma_count_read(rma_counts_t *c, uint64_t n)
{
    wefti_count_up(&c->reads, 1);
    wefti_count_up(&c->bytes_read, n);
}
static inline void rma_count_write(rma_counts_t *c, uint64_t n)
{
    wefti_count_up(&c->writes, 1);
    wefti_count_up(&c->bytes_written, n);
}
/* Copy them to an info struct that has fields of the same names. Any thread. */
#define rma_counts_copy(info, c) \
    do { \
        (info)->reads = __atomic_load_n(&(c)->reads, __ATOMIC_RELAXED); \
        (info)->writes = __atomic_load_n(&(c)->writes, __ATOMIC_RELAXED); \
        (info)->atomics = __atomic_load_n(&(c)->atomics, __ATOMIC_RELAXED); \
        (info)->bytes_read = __atomic_load_n(&(c)->bytes_read, __ATOMIC_RELAXED); \
        (info)->bytes_written = __atomic_load_n(&(c)->bytes_written, __ATOMIC_RELAXED); \
    } while (0)

/* --- regions ----------------------------------------------------------------------------------------------------------- */

typedef struct rma_parts rma_parts_t;     /* twins.h */
typedef struct rma_stripes rma_stripes_t; /* whole.c */
typedef struct rma_meeting rma_meeting_t; /* together.c */
typedef struct rma_grant rma_grant_t;

typedef struct rma_name rma_name_t; /* by which peers attach it: region.c */

/* Requests to a region in device memory: serve_device.c. */
typedef struct rma_turns {
    wefti_list_t running, waiting; /* in the order in which they came */
    uint32_t n;                    /* that run */
} rma_turns_t;

struct weft_region {
    wefti_handle_t handle;
    weft_runtime_t *rt;           /* up to here it can be read when it was freed */
    rma_state_t *rs;
    weft_region_t *pub;           /* what the program has: itself, or what it is a twin of */
    rma_parts_t *parts;           /* its twins; NULL: the runtime has one shard, or it is a twin itself */
    wefti_list_t link;
    uint64_t id;
    _Atomic uint64_t generation;
    uint8_t *base;                /* share.data, or the program's */
    _Atomic uint64_t len;
    uint64_t max_len;
    _Atomic uint64_t until;       /* fabric time from which nothing is let in; 0: none */
    uint32_t rights, name_rights;
    const weft_mem_kind_t *device; /* NULL: the processor can touch it */
    bool by_turns;                /* the library knows its device, and does not wait for it */
    bool apart;                   /* requests take wefti_rma_apart(): by_turns, or other shards touch the memory too */
    rma_stripes_t *stripes;       /* the state's, of all shards; NULL: there is one */
    rma_turns_t turns;
    rma_name_t *names;            /* of which there may be none; under rs->lock */
    rma_share_t share;
    bool own;                     /* the library made the memory */
    _Atomic bool kept;            /* which stays when the region ends */
    bool checked;                 /* every access is checked here: no fabric keys */
    weft_region_notify_fn notify;
    void *user;
    wefti_list_t grants;          /* rma_grant_t.region_link */
    wefti_list_t waiting;         /* revokes and the free that wait for accesses to end, through opx->link */
    _Atomic uint32_t n_waiting;   /* of them */
    wefti_timer_t look;           /* at slots that are busy */
    uint64_t look_until;          /* who is busy then is stuck */
    wefti_list_t work_link;       /* linked while it is in rma_state_t.works.list */
    size_t given;                 /* bytes of its memory that were given back, while it ends */
    bool ending;                  /* nobody has it any more, and its memory is given back */
    bool freeing;                 /* weft_region_free() has reached the driver, or the runtime closes */
    _Atomic uint32_t coming;      /* calls of other threads that have not reached the driver: it stays until then */
    _Atomic bool revoke_called;   /* revoke_call is on its way */
    wefti_call_t revoke_call;     /* for revokes nobody waits for */
    uint64_t attached, mapped;
    rma_counts_t count;
    uint64_t refused;
    weft_op_t own_op;             /* for a free nobody waits for */
    /* a twin's */
    _Atomic uint64_t clear;       /* no access with a grant older than this is under way, nor will be */
    _Atomic bool stuck;           /* a peer does not end a mapped access */
    uint64_t asked_for;           /* the head waits for this generation */
};

/* What one remote of a peer may do with a region. */
struct rma_grant {
    weft_region_t *region;        /* NULL: it was freed */
    weft_ep_t *ep;                /* NULL: the endpoint is down or the peer let go; freed when nothing is under way */
    uint64_t id;                  /* rma_ep_t.grants */
    uint64_t offset, len;         /* the part */
    uint64_t generation;
    uint32_t rights;
    uint32_t under_way;           /* payloads to and from the region's memory */
    int32_t slot;                 /* -1: not mapped */
    uint64_t stamp;
    bool stale;
    bool quiet;                   /* its slot was seen idle after it became stale: no access will be made any more */
    wefti_list_t region_link;
    uint64_t expires;             /* its key's time, in fabric time; 0: never */
    wefti_timer_t expiry;
    wefti_held_t *held;           /* far.c: what the peer needs to open the memory; NULL: nothing */
    void *fabric_key;             /* native.c: what the peer's fabric was given; under way as long as there is one */
    void (*fabric_key_free)(void *key, wefti_xfer_t *x);
    wefti_xfer_t fabric_key_x;    /* its end, with the lane */
};

#define rma_each_grant(g, region) \
    for (rma_grant_t *g = wefti_container_of((region)->grants.next, rma_grant_t, region_link); \
         &g->region_link != &(region)->grants; g = wefti_container_of(g->region_link.next, rma_grant_t, region_link))

/* What a key or a name says that its bearer may have. */
typedef struct rma_claim {
    uint64_t region, generation, offset, len;
    uint32_t rights;
    uint64_t expires;             /* fabric time; 0: never */
} rma_claim_t;

/* key.c */
weft_status_t wefti_rma_key_init(rma_state_t *rs);
void wefti_rma_key_end(rma_state_t *rs);                                  /* wipes the secret */
/* Genuine, and ours? WEFT_ERR_INVALID, _AUTH, _STALE (another instance's). What it claims is not looked at. */
weft_status_t wefti_rma_key_open(const rma_state_t *rs, const void *key, size_t n, rma_claim_t *claim_out);

/* region.c */
void wefti_rma_regions_init(rma_state_t *rs);                             /* lock, by_id, by_name, regions */
void wefti_rma_regions_free(rma_state_t *rs);                             /* the same, when the room goes */
void wefti_rma_region_lists(weft_region_t *region);                       /* of a new one: they are empty */
weft_status_t wefti_rma_named(rma_state_t *rs, const char *name, size_t n, rma_claim_t *claim_out); /* WEFT_ERR_NOTFOUND */
weft_region_t *wefti_rma_region(rma_state_t *rs, uint64_t id);            /* NULL: none, or it is being freed */
/* The same for a grant: on another shard than the head, its twin there. WEFT_ERR_STALE, _NOMEM. */
weft_status_t wefti_rma_region_here(rma_state_t *rs, uint64_t id, weft_region_t **region_out);
void wefti_rma_region_unlist(weft_region_t *region); /* take it out of the tables, and begin a new generation. Any thread */
bool wefti_rma_region_memory_give(weft_region_t *region, uint64_t n); /* give about n bytes back to the system. False: no more */
void wefti_rma_region_gone(weft_region_t *region);    /* the region and its memory, when nobody has it any more */
/* For calls of any thread: the region stays until wefti_rma_region_leave(). WEFT_ERR_INVALID, _CLOSED, _FORKED. For moments,
 * and nothing is handed to the driver meanwhile: `coming` is for that. */
weft_status_t wefti_rma_region_enter(const weft_region_t *region);
static inline void wefti_rma_region_leave(const weft_region_t *region)
{
    wefti_handle_leave(&((weft_region_t *)(uintptr_t)region)->handle);
}

/* ending.c */
void wefti_rma_region_piece(rma_state_t *rs); /* move or give back one piece of the first of rs->works */
void wefti_rma_ending_init(weft_region_t *region);
bool wefti_rma_may_map(const weft_region_t *region); /* its memory is not about to be replaced: a grant may be mapped */
void wefti_rma_make_stale(weft_region_t *region, uint64_t generation); /* grants older than this */
uint64_t wefti_rma_oldest_busy(weft_region_t *region); /* generation of grants with a stale slot that is busy; UINT64_MAX: none */
uint64_t wefti_rma_oldest_payload(const weft_region_t *region);
void wefti_rma_unmap_stale(weft_region_t *region);     /* all mapped grants: their memory is about to be replaced */
void wefti_rma_unmapped(weft_region_t *region);        /* it was */
weft_status_t wefti_rma_move_piece(weft_region_t *region); /* WEFT_ERR_AGAIN: there are more */
void wefti_rma_detach_grants(weft_region_t *region);   /* they stay without region, for their peers to hear that they are stale */
void wefti_rma_settle(weft_region_t *region); /* an access ended: complete what waited for it. May free the region */
void wefti_rma_regions_shutdown(rma_state_t *rs);                         /* the runtime closes: free them all, whoever waits */

/* grant.c */
/* Give a peer what it claims: WEFT_ERR_STALE, _RANGE, _LIMIT, _NOMEM. flags F_MAP: it could map the region, and gets a slot if
 * there is one; F_FAR: also one in device memory. */
void wefti_rma_attach_asked(weft_ep_t *ep, const wefti_wild_t *rec, size_t n); /* ATTACH: answers it */
weft_status_t wefti_rma_grant_new(weft_ep_t *ep, const rma_claim_t *claim, uint8_t flags, rma_grant_t **grant_out);
/* The peer lets go of it, or its endpoint is down (lost: it may be in the middle of a mapped access). */
void wefti_rma_grant_drop(rma_grant_t *grant, bool lost);
void wefti_rma_grants_down(weft_ep_t *ep);
void wefti_rma_grant_stale(rma_grant_t *grant);                           /* no access begins with it any more */
/* May it, now? The bytes are then at *at_out, in memory of region->device. WEFT_ERR_STALE, _RANGE, _RIGHTS: counted as
 * refused. */
weft_status_t wefti_rma_grant_check(rma_grant_t *grant, uint32_t rights, uint64_t offset, uint64_t len, uint8_t **at_out);
/* A payload into or out of the region begins, ends. The end may free grant and region. */
static inline void wefti_rma_grant_begin(rma_grant_t *grant) { grant->under_way++; }
void wefti_rma_grant_end(rma_grant_t *grant);
void wefti_rma_grant_unslot(rma_grant_t *grant, bool lost);                /* let go of its slot */

#endif
