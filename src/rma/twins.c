/* rma/twins.c - regions on a runtime with several shards: the program has one, and the shards of its peers a twin each.
 *
 * The region is the head's: its tables, its memory, its slots, its end. A peer of another shard gets grants from a twin there,
 * which the first of them makes. All that a request touches is in the twin, so that an access costs what it costs on one shard,
 * but for the lock of whole.c. What a call of the program changes (generation, until) is written to the twins too, in the call.
 *
 * The end of accesses. The head asks each twin when a revoke or a free has come to it:
 *
 *     head:  ask --> twin: old grants are stale; `clear` says what is still under way --> back to the head
 *                    twin: an access ends, a slot is quiet, or is not for STUCK --tell--> head, while it waits
 *                    twin: the region is freed, or the shard closes, and no payload is under way --gone--> head
 *
 * The head completes a revoke when every twin is clear up to its generation, and moves the memory with all of them together
 * (together.c). It frees the region after the last twin is gone. Calls of one shard come in the order in which it made them, so
 * nothing of a twin comes after `gone`. A shard that is closed takes no call; its twins were gone before.
 *
 * Promise: what ending.c promises, for the peers of all shards. tests/wire/rma_shards.c, tests/fault/rma_shards_lost.c. */
#include "rma/twins.h"

#include "rma/serve.h"

#define LOOK WEFT_MILLISECOND
#define LOOK_STUCK (64 * LOOK) /* the head knows, and moves the memory */
#define STUCK WEFT_SECOND      /* as in ending.c */

#define each_part(p, region) \
    for (uint32_t k_ = 1; (region)->parts && k_ < (region)->parts->n; k_++) \
        for (rma_part_t *p = atomic_load_explicit(&(region)->parts->at[k_], memory_order_acquire); p; p = NULL)

static rma_part_t *part_of(weft_region_t *twin)
{
    return wefti_container_of(twin, rma_part_t, twin);
}

/* --- for any thread ------------------------------------------------------------------------------------------------------- */

uint64_t wefti_rma_next_generation(weft_region_t *region)
{
    if (!region->parts)
        return atomic_fetch_add(&region->generation, 1) + 1;
    pthread_mutex_lock(&region->rs->lock);
    uint64_t generation = atomic_fetch_add(&region->generation, 1) + 1;
    each_part(p, region) atomic_store(&p->twin.generation, generation);
    pthread_mutex_unlock(&region->rs->lock);
    return generation;
}

void wefti_rma_set_until(weft_region_t *region, uint64_t when)
{
    pthread_mutex_lock(&region->rs->lock);
    atomic_store(&region->until, when);
    each_part(p, region) atomic_store(&p->twin.until, when);
    pthread_mutex_unlock(&region->rs->lock);
}

void wefti_rma_twins_count(const weft_region_t *region, weft_region_info_t *info)
{
    each_part(p, region)
    {
        weft_region_info_t one;
        rma_counts_copy(&one, &p->twin.count);
        info->reads += one.reads;
        info->writes += one.writes;
        info->atomics += one.atomics;
        info->bytes_read += one.bytes_read;
        info->bytes_written += one.bytes_written;
        info->attached += __atomic_load_n(&p->twin.attached, __ATOMIC_RELAXED);
        info->mapped += __atomic_load_n(&p->twin.mapped, __ATOMIC_RELAXED);
        info->refused += __atomic_load_n(&p->twin.refused, __ATOMIC_RELAXED);
    }
}

/* --- the shard's side ------------------------------------------------------------------------------------------------------ */

static void head_gets(rma_part_t *part, wefti_call_t *call)
{
    (void)wefti_call_on_driver(part->region->rt, call); /* the head is closed after its shards */
}

/* What is still under way? True: the head should know. */
static bool report(weft_region_t *twin)
{
    weft_runtime_t *rt = twin->rs->rt;
    uint64_t busy = twin->freeing ? UINT64_MAX : wefti_rma_oldest_busy(twin);
    uint64_t payload = wefti_rma_oldest_payload(twin), clear = twin->asked_for, now = wefti_now(rt);
    clear = busy < clear ? busy : clear;
    clear = payload < clear ? payload : clear;
    bool stuck = false;
    if (busy < twin->asked_for) {
        if (!twin->look_until)
            twin->look_until = now + STUCK;
        stuck = now >= twin->look_until;
        if (wefti_timer_at(rt, &twin->look, now + (stuck ? LOOK_STUCK : LOOK)))
            stuck = true; /* no memory to look again: the head may as well move the memory */
    } else {
        twin->look_until = 0;
        wefti_timer_stop(rt, &twin->look);
    }
    bool was_stuck = atomic_exchange(&twin->stuck, stuck);
    return atomic_exchange(&twin->clear, clear) != clear || (stuck && !was_stuck);
}

/* Nobody of this shard has it any more. */
static void end(weft_region_t *twin)
{
    rma_part_t *part = part_of(twin);
    wefti_timer_stop(twin->rs->rt, &twin->look);
    rma_each_grant(g, twin)
        wefti_rma_grant_unslot(g, true);
    wefti_rma_detach_grants(twin);
    __atomic_store_n(&twin->attached, 0, __ATOMIC_RELAXED);
    wefti_list_remove(&twin->link);
    twin->ending = true;
    head_gets(part, &part->gone);
}

static void settle(weft_region_t *twin)
{
    rma_part_t *part = part_of(twin);
    if (atomic_load(&twin->clear) < twin->asked_for && report(twin) && !atomic_exchange(&part->told, true))
        head_gets(part, &part->tell);
    if (twin->freeing && wefti_rma_oldest_payload(twin) == UINT64_MAX)
        end(twin);
}

void wefti_rma_twin_settle(weft_region_t *twin)
{
    settle(twin);
}

void wefti_rma_twin_moved(weft_region_t *twin)
{
    if (twin->ending)
        return;
    wefti_rma_unmapped(twin);
    settle(twin);
}

static void look_again(wefti_timer_t *t)
{
    settle(wefti_container_of(t, weft_region_t, look));
}

void wefti_rma_twin_shut(weft_region_t *twin)
{
    wefti_rma_make_stale(twin, UINT64_MAX);
    twin->freeing = true;
    settle(twin);
}

void wefti_rma_twins_part(rma_state_t *rs)
{
    wefti_list_each_safe(it, &rs->regions) {
        weft_region_t *region = wefti_container_of(it, weft_region_t, link);
        if (region->pub != region)
            head_gets(part_of(region), &part_of(region)->gone);
    }
}

static void answered(wefti_call_t *call);

/* The head asks. After `gone` the region may go with the answer. */
static void asked(wefti_call_t *call)
{
    rma_part_t *part = wefti_container_of(call, rma_part_t, ask);
    weft_region_t *twin = &part->twin;
    bool over = twin->ending, frees = atomic_load(&part->frees);
    if (!over) {
        twin->asked_for = atomic_load(&twin->generation);
        wefti_rma_make_stale(twin, frees ? UINT64_MAX : twin->asked_for);
        twin->freeing |= frees;
        (void)report(twin);
    }
    part->ask.fn = answered;
    head_gets(part, &part->ask);
    if (!over)
        settle(twin);
}

/* --- the head's side ------------------------------------------------------------------------------------------------------- */

static void ask(rma_part_t *part)
{
    if (part->over)
        return;
    part->again = part->asks;
    if (part->asks)
        return;
    part->asks = true;
    part->ask.fn = asked;
    atomic_store(&part->frees, part->region->freeing);
    if (!wefti_call_on_driver(part->twin.rt, &part->ask))
        part->asks = false; /* the shard is closed, and has said `gone` */
}

static void answered(wefti_call_t *call)
{
    rma_part_t *part = wefti_container_of(call, rma_part_t, ask);
    part->asks = false;
    if (part->again)
        ask(part);
    wefti_rma_settle(part->region);
}

static void told(wefti_call_t *call)
{
    rma_part_t *part = wefti_container_of(call, rma_part_t, tell);
    atomic_store(&part->told, false); /* before its look at what the twin has to say */
    wefti_rma_settle(part->region);
}

static void gone(wefti_call_t *call)
{
    rma_part_t *part = wefti_container_of(call, rma_part_t, gone);
    part->over = true;
    wefti_rma_settle(part->region);
}

void wefti_rma_twins_ask(weft_region_t *region)
{
    each_part(p, region) ask(p);
}

uint64_t wefti_rma_twins_clear(const weft_region_t *region)
{
    uint64_t oldest = UINT64_MAX;
    each_part(p, region)
    {
        uint64_t clear = atomic_load(&p->twin.clear);
        if (!p->over && clear < oldest)
            oldest = clear;
    }
    return oldest;
}

bool wefti_rma_twins_stuck(const weft_region_t *region)
{
    bool stuck = false;
    each_part(p, region) stuck |= !p->over && !p->asks && atomic_load(&p->twin.stuck);
    return stuck;
}

bool wefti_rma_twins_over(const weft_region_t *region)
{
    bool over = true;
    each_part(p, region) over &= p->over && !p->asks;
    return over;
}

/* --- making them ----------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_rma_parts_new(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    uint32_t n = wefti_n_shards(region->rt);
    pthread_mutex_lock(&rs->lock);
    weft_status_t st = wefti_rma_stripes(rs);
    if (!st)
        st = wefti_rma_meeting(rs);
    pthread_mutex_unlock(&rs->lock);
    if (st)
        return st;
    region->stripes = rs->stripes;
    region->apart = true;
    region->parts = (rma_parts_t *)wefti_calloc(1, sizeof *region->parts + n * sizeof region->parts->at[0]);
    if (!region->parts)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a region of %u shards", n);
    region->parts->n = n;
    return WEFT_OK;
}

void wefti_rma_parts_free(weft_region_t *region)
{
    each_part(p, region) wefti_free(p);
    wefti_free(region->parts);
    region->parts = NULL;
}

static void copy(weft_region_t *twin, weft_region_t *region, rma_state_t *rs)
{
    uint64_t generation = atomic_load(&region->generation);
    twin->rt = rs->rt;
    twin->rs = rs;
    twin->pub = region;
    twin->id = region->id;
    atomic_init(&twin->generation, generation);
    atomic_init(&twin->clear, generation); /* nobody has an older grant from it */
    twin->asked_for = generation;
    twin->base = region->base;
    twin->max_len = region->max_len;
    atomic_init(&twin->until, atomic_load(&region->until));
    twin->rights = region->rights;
    twin->device = region->device;
    twin->by_turns = region->by_turns;
    twin->apart = region->apart;
    twin->stripes = region->stripes;
    twin->own = region->own;
    twin->checked = region->checked;
    twin->notify = region->notify;
    twin->user = region->user;
    wefti_rma_region_lists(twin);
    twin->look.fn = look_again;
}

weft_status_t wefti_rma_twin(weft_region_t *region, rma_state_t *rs, weft_region_t **twin_out)
{
    uint32_t k = wefti_shard_number(rs->rt);
    *twin_out = wefti_rma_twin_of(region, k);
    if (*twin_out && !(*twin_out)->freeing)
        return WEFT_OK;
    if (*twin_out || wefti_closing(rs->rt))
        return wefti_fail(WEFT_ERR_STALE, "the runtime is being closed");
    rma_part_t *part = (rma_part_t *)wefti_calloc(1, sizeof *part);
    if (!part)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a region on one more shard");
    part->region = region;
    part->tell.fn = told;
    part->gone.fn = gone;
    copy(&part->twin, region, rs);
    wefti_list_push_back(&rs->regions, &part->twin.link);
    atomic_store_explicit(&region->parts->at[k], part, memory_order_release);
    *twin_out = &part->twin;
    return WEFT_OK;
}
