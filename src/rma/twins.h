/* rma/twins.h - regions of a runtime with several shards: their twins, and all shards together. twins.c, together.c. */
#ifndef WEFTI_RMA_TWINS_H
#define WEFTI_RMA_TWINS_H

#include "rma/state.h"

/* What a region has on one further shard. */
typedef struct rma_part {
    weft_region_t *region;       /* the program's */
    wefti_call_t ask;            /* to the shard, and back */
    wefti_call_t tell, gone;     /* from the shard */
    _Atomic bool frees;          /* of ask: the region is being freed */
    _Atomic bool told;           /* tell is on its way */
    bool asks, again;            /* the head's: ask is on its way; and has to go once more */
    bool over;                   /* the head's: the shard has said that the twin is gone */
    weft_region_t twin;
} rma_part_t;

struct rma_parts {
    uint32_t n;
    rma_part_t *_Atomic at[];    /* of each shard; NULL: it has none, as the first. Made under the lock of the head's state */
};

/* --- twins.c ------------------------------------------------------------------------------------------------------------ */

weft_status_t wefti_rma_parts_new(weft_region_t *region); /* it has no twins yet. WEFT_ERR_NOMEM */
void wefti_rma_parts_free(weft_region_t *region);
/* The twin on the shard of rs, which calls: made, if there is none. Under the lock. WEFT_ERR_STALE, _NOMEM. */
weft_status_t wefti_rma_twin(weft_region_t *region, rma_state_t *rs, weft_region_t **twin_out);
static inline weft_region_t *wefti_rma_twin_of(const weft_region_t *region, uint32_t shard)
{
    rma_part_t *part = atomic_load_explicit(&region->parts->at[shard], memory_order_acquire);
    return part ? &part->twin : NULL;
}
/* Any thread, for the region and its twins; on a runtime with one shard too. */
uint64_t wefti_rma_next_generation(weft_region_t *region);
void wefti_rma_set_until(weft_region_t *region, uint64_t when);
void wefti_rma_twins_count(const weft_region_t *region, weft_region_info_t *info); /* add what they counted */
/* The head's driver; on a runtime with one shard too. */
void wefti_rma_twins_ask(weft_region_t *region);       /* a revoke or a free has come: tell them */
uint64_t wefti_rma_twins_clear(const weft_region_t *region); /* the oldest generation that one of them still has under way */
bool wefti_rma_twins_over(const weft_region_t *region); /* all are gone, and nothing is on its way */
bool wefti_rma_twins_stuck(const weft_region_t *region); /* a peer of theirs does not end a mapped access */
/* The driver of its shard. */
void wefti_rma_twin_settle(weft_region_t *twin);       /* an access ended. May free the twin */
void wefti_rma_twin_moved(weft_region_t *twin);        /* so did all mapped ones: the memory was replaced */
void wefti_rma_twin_shut(weft_region_t *twin);         /* the shard closes */
void wefti_rma_twins_part(rma_state_t *rs);            /* the shard is closed, and did not let go of these */

/* --- together.c --------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_rma_meeting(rma_state_t *rs);      /* make it, if there is none. Under rs->lock. WEFT_ERR_NOMEM */
void wefti_rma_meeting_free(rma_meeting_t *m);
/* wefti_rma_move_piece() while no driver of the runtime does anything else. WEFT_ERR_STATE: not now: a fabric key is out, or they
 * did not come together. */
weft_status_t wefti_rma_move_together(weft_region_t *region);
/* When to try again: after `ns`, or later if they did not come together. */
uint64_t wefti_rma_together_pause(const weft_region_t *region, uint64_t ns);

#endif
