/* rma/ending.c - revoking and freeing regions: up to the moment when nobody can touch them any more.
 *
 *     LISTED --weft_region_free()--> UNLISTED --the driver--> FREEING --nothing under way--> gone
 *        |  \--weft_region_revoke()--> LISTED, one generation on
 *        \--the runtime closes--> FREEING
 *
 * Any thread may revoke or free a region. When the call returns, the generation is one more, and a freed region is closed and
 * in no table. So keys made later are good, earlier ones find nothing, and the name can be used again. A call that has not
 * reached the driver yet is counted (`coming`), and the region stays until then. The driver does the rest: grants of older
 * generations become stale, and the operation waits until nothing made with them is under way.
 *
 * Under way are payloads into or out of the memory (rma_grant_t.under_way), and accesses of peers that have it mapped (the busy
 * word of their slot). The former end by themselves, at the latest with their endpoint. The latter are looked at again and again.
 * If a peer was lost in the middle of an access, or does not end one for STUCK, the region's bytes move to fresh memory under the
 * same address: the peer keeps the old memory, and nothing that it does is seen. No grant is mapped between a revoke and its end,
 * so that it does not lose its memory in this way. A free needs none of that: a peer that has the memory mapped keeps it.
 *
 * Moving memory and giving it back take time: a long region does it piece by piece, one piece per round of the driver. What is
 * moved stays moved, also when there is no memory for the rest: the next revoke goes on. Only a runtime that closes gives
 * everything back at once.
 *
 * A revoke that is cancelled or runs out of time completes with that; it is not undone. A free of memory that the library made
 * does the same, and goes on. A free of the program's own memory completes only when nobody uses the memory any more.
 *
 * Promise: after a revoke or a free has completed with WEFT_OK, no access made with an earlier key touches the region's memory.
 * Each completes once. tests/unit/rma_region.c, rma_grant.c. */
#include "rma/serve.h"
#include "rma/twins.h"

#define LOOK WEFT_MILLISECOND
#define STUCK WEFT_SECOND /* an access takes microseconds; one that takes this long belongs to a process that is stopped */

typedef struct ending {
    weft_region_t *region;
    uint64_t generation; /* it waits for grants older than this */
} ending_t;

static ending_t *ending(weft_op_t *op)
{
    return wefti_op_scratch(op, ending_t);
}

static const wefti_op_kind_t revoke_kind, free_kind;

/* --- the end of accesses ----------------------------------------------------------------------------------------------- */

void wefti_rma_make_stale(weft_region_t *region, uint64_t generation)
{
    rma_each_grant(g, region) {
        if (g->generation < generation)
            wefti_rma_grant_stale(g);
    }
}

uint64_t wefti_rma_oldest_busy(weft_region_t *region)
{
    uint64_t oldest = UINT64_MAX;
    rma_each_grant(g, region) {
        if (!g->stale || g->slot < 0 || g->quiet)
            continue;
        g->quiet = !wefti_rma_slot_busy(&region->pub->share, g->slot);
        if (!g->quiet && g->generation < oldest)
            oldest = g->generation;
    }
    return oldest;
}

uint64_t wefti_rma_oldest_payload(const weft_region_t *region)
{
    uint64_t oldest = UINT64_MAX;
    rma_each_grant(g, region) {
        if (g->under_way && g->generation < oldest)
            oldest = g->generation;
    }
    return oldest;
}

/* --- work that takes long: one piece per round ------------------------------------------------------------------------- */

static void work_begins(weft_region_t *region)
{
    rma_rounds_t *works = &region->rs->works;
    bool first = wefti_list_empty(&works->list);
    wefti_list_push_back(&works->list, &region->work_link);
    if (first)
        wefti_rma_rounds_go(works);
}

static void work_ends(weft_region_t *region)
{
    if (wefti_list_linked(&region->work_link))
        wefti_list_remove(&region->work_link);
}

static bool works(const weft_region_t *region)
{
    return wefti_list_linked(&region->work_link);
}

/* A good grant that is mapped would write to the old memory from now on. */
void wefti_rma_unmap_stale(weft_region_t *region)
{
    rma_each_grant(g, region) {
        if (g->slot >= 0)
            wefti_rma_grant_stale(g);
    }
}

/* Move the next piece of the memory away from peers that do not end an access. */
weft_status_t wefti_rma_move_piece(weft_region_t *region)
{
    wefti_rma_unmap_stale(region);
    weft_status_t st = wefti_rma_share_replace(&region->share, atomic_load(&region->len), wefti_rma_step_bytes / RMA_MOVE);
    if (st)
        return st;
    wefti_info("rma: a region of %llu bytes has fresh memory: a peer was lost or stopped in the middle of an access",
               (unsigned long long)atomic_load(&region->len));
    wefti_rma_unmapped(region);
    return WEFT_OK;
}

void wefti_rma_unmapped(weft_region_t *region)
{
    rma_each_grant(g, region) {
        if (g->slot >= 0)
            wefti_count_up(&region->mapped, (uint64_t)-1);
        g->slot = -1;
        g->quiet = true;
    }
}

/* The next piece, unless a fabric key is out: with it a peer would still reach the old memory. WEFT_ERR_STATE: not now. */
static weft_status_t move_away(weft_region_t *region)
{
    if (region->parts)
        return wefti_rma_move_together(region);
    return wefti_rma_native_hold(region) ? WEFT_ERR_STATE : wefti_rma_move_piece(region);
}

bool wefti_rma_may_map(const weft_region_t *region)
{
    const weft_region_t *pub = region->pub;
    return !wefti_rma_share_replacing(&pub->share) && !atomic_load(&pub->n_waiting) && !atomic_load(&pub->coming);
}

#define FREE_GENERATION UINT64_MAX /* of a free: it completes with the region's end, after all revokes */
#define ALL_REVOKES (FREE_GENERATION - 1)

static void unwait(weft_region_t *region, weft_op_t *op)
{
    wefti_list_remove(&wefti_opx(op)->link);
    atomic_fetch_sub(&region->n_waiting, 1);
}

static void end_waiting(weft_region_t *region, uint64_t upto, weft_status_t status)
{
    wefti_list_each_safe(it, &region->waiting) {
        weft_op_t *op = wefti_op_of_link(it);
        if (ending(op)->generation > upto)
            continue;
        unwait(region, op);
        wefti_op_complete(op, status);
    }
}

static void stop_looking(weft_region_t *region)
{
    region->look_until = 0;
    wefti_timer_stop(region->rs->rt, &region->look);
}

static weft_status_t keep_looking(weft_region_t *region)
{
    uint64_t now = wefti_now(region->rs->rt);
    if (!region->look_until)
        region->look_until = now + STUCK;
    return wefti_timer_at(region->rs->rt, &region->look, now + (region->parts ? wefti_rma_together_pause(region, LOOK) : LOOK));
}

/* Must its bytes move to fresh memory? */
static bool must_move(weft_region_t *region, uint64_t busy)
{
    bool stuck = busy != UINT64_MAX && region->look_until && wefti_now(region->rs->rt) >= region->look_until;
    return wefti_rma_share_replacing(&region->share) || stuck || wefti_rma_slots_lost(&region->share) ||
           (region->parts && wefti_rma_twins_stuck(region));
}

/* Complete revokes that have nothing to wait for, and move the memory away from peers that never end. */
static void settle_revokes(weft_region_t *region)
{
    uint64_t upto = wefti_rma_oldest_payload(region), others = wefti_rma_twins_clear(region), busy = UINT64_MAX;
    weft_status_t st = WEFT_OK;
    upto = others < upto ? others : upto;
    if (works(region)) {
        busy = 0; /* it is being moved */
    } else if (region->share.fd >= 0 && !region->freeing) {
        busy = wefti_rma_oldest_busy(region);
        if (must_move(region, busy)) {
            st = move_away(region);
            busy = st ? 0 : UINT64_MAX;
            if (st == WEFT_ERR_STATE)
                st = WEFT_OK;
            if (st == WEFT_ERR_AGAIN) {
                stop_looking(region);
                work_begins(region); /* without memory for a timer it is done, and all waiting are told */
                return;
            }
        }
    }
    if (!st) {
        upto = busy < upto ? busy : upto;
        end_waiting(region, upto < ALL_REVOKES ? upto : ALL_REVOKES, WEFT_OK);
        if (works(region))
            return;
        if (busy != UINT64_MAX && !wefti_list_empty(&region->waiting)) {
            st = keep_looking(region);
            if (!st)
                return;
        }
    }
    stop_looking(region);
    if (st) /* no memory: it is revoked, but accesses may be under way. The next revoke tries again */
        end_waiting(region, ALL_REVOKES, st);
}

/* The end of a region that nobody uses any more. */
static void gone(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    wefti_list_t waiting;
    work_ends(region);
    pthread_mutex_lock(&rs->lock);
    wefti_list_remove(&region->link);
    pthread_mutex_unlock(&rs->lock);
    wefti_list_init(&waiting);
    wefti_list_splice(&waiting, &region->waiting);
    for (wefti_list_t *l; (l = wefti_list_pop(&waiting));)
        wefti_op_complete(wefti_op_of_link(l), WEFT_OK); /* one may be own_op */
    wefti_rma_region_gone(region);
}

void wefti_rma_detach_grants(weft_region_t *region)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&region->grants));) {
        rma_grant_t *g = wefti_container_of(l, rma_grant_t, region_link);
        wefti_rma_grant_stale(g);
        g->region = NULL;
        g->slot = -1;
    }
}

static void destroy(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    wefti_timer_stop(rs->rt, &region->look);
    work_ends(region);
    wefti_rma_detach_grants(region);
    region->ending = true;
    if (!wefti_closing(rs->rt) && wefti_rma_region_memory_give(region, wefti_rma_step_bytes))
        work_begins(region);
    else
        gone(region);
}

void wefti_rma_settle(weft_region_t *region)
{
    if (region->ending)
        return;
    if (region->pub != region) {
        wefti_rma_twin_settle(region);
        return;
    }
    if (!wefti_list_empty(&region->waiting))
        settle_revokes(region);
    if (region->freeing && !atomic_load(&region->coming) && wefti_rma_oldest_payload(region) == UINT64_MAX &&
        wefti_rma_twins_over(region))
        destroy(region);
}

static void look_again(wefti_timer_t *t)
{
    wefti_rma_settle(wefti_container_of(t, weft_region_t, look));
}

/* One piece of the first region. */
void wefti_rma_region_piece(rma_state_t *rs)
{
    weft_region_t *region = wefti_container_of(wefti_list_first(&rs->works.list), weft_region_t, work_link);
    if (region->ending) {
        if (!wefti_rma_region_memory_give(region, wefti_rma_step_bytes))
            gone(region);
        return;
    }
    weft_status_t st = move_away(region);
    if (st == WEFT_ERR_AGAIN)
        return;
    work_ends(region);
    if (st && st != WEFT_ERR_STATE)
        end_waiting(region, ALL_REVOKES, st);
    else
        wefti_rma_settle(region);
}

/* --- revoking and freeing ---------------------------------------------------------------------------------------------- */

static void wait_for(weft_region_t *region, weft_op_t *op)
{
    wefti_list_push_back(&region->waiting, &wefti_opx(op)->link);
    atomic_fetch_add(&region->n_waiting, 1);
}

/* On the driver: the call has arrived. */
static weft_status_t end_start(weft_op_t *op)
{
    ending_t *e = ending(op);
    weft_region_t *region = e->region;
    bool frees = wefti_opx(op)->kind == &free_kind;
    if (frees) {
        wefti_handle_quiet(&region->handle); /* now all calls on their way are counted in `coming` */
        region->freeing = true;
    }
    wefti_rma_make_stale(region, e->generation);
    weft_status_t st = wefti_op_track(op);
    /* What is begun is not undone: a free goes on all the same, and a revoke stands. */
    if (st && !(frees && !region->own))
        wefti_op_complete(op, st);
    else
        wait_for(region, op);
    atomic_fetch_sub(&region->coming, 1);
    wefti_rma_twins_ask(region);
    wefti_rma_settle(region);
    return WEFT_OK;
}

static void end_cancel(weft_op_t *op, weft_status_t why)
{
    weft_region_t *region = ending(op)->region;
    if (wefti_opx(op)->kind == &free_kind && !region->own)
        return;
    unwait(region, op);
    wefti_op_complete(op, why);
    if (wefti_list_empty(&region->waiting))
        stop_looking(region);
}

static const wefti_op_kind_t revoke_kind = {.name = "region revoke", .start = end_start, .cancel = end_cancel};
static const wefti_op_kind_t free_kind = {.name = "region free", .start = end_start, .cancel = end_cancel};

static void revoke_posted(wefti_call_t *call)
{
    weft_region_t *region = wefti_container_of(call, weft_region_t, revoke_call);
    atomic_store(&region->revoke_called, false); /* before the look at the generation: see weft_region_revoke() */
    wefti_rma_make_stale(region, atomic_load(&region->generation));
    atomic_fetch_sub(&region->coming, 1);
    wefti_rma_twins_ask(region);
    wefti_rma_settle(region);
}

static weft_status_t post(weft_region_t *region, weft_op_t *op, uint64_t generation)
{
    *ending(op) = (ending_t){region, generation};
    weft_status_t st = wefti_op_post(region->rt, op); /* its start never fails, but the runtime may be closed meanwhile */
    if (st)
        atomic_fetch_sub(&region->coming, 1);
    return st;
}

weft_status_t weft_region_revoke(weft_region_t *region, weft_op_t *op)
{
    weft_status_t st = wefti_rma_region_enter(region);
    if (!st && op) {
        st = wefti_op_prepare(region->rt, op, &revoke_kind);
        if (st)
            wefti_rma_region_leave(region);
    }
    if (st)
        return st;
    uint64_t generation = wefti_rma_next_generation(region);
    /* One call on its way is enough for all: it has not read the generation yet. */
    bool posts = op || !atomic_exchange(&region->revoke_called, true);
    if (posts)
        atomic_fetch_add(&region->coming, 1);
    wefti_rma_region_leave(region);
    if (op)
        return post(region, op, generation);
    if (posts && !wefti_call_on_driver(region->rt, &region->revoke_call))
        atomic_fetch_sub(&region->coming, 1);
    return WEFT_OK;
}

weft_status_t weft_region_free(weft_region_t *region, weft_op_t *op)
{
    if (!region)
        return op ? wefti_fail(WEFT_ERR_INVALID, "there is no region to free: it is NULL") : WEFT_OK;
    weft_status_t st = wefti_rma_region_enter(region);
    if (st)
        return st;
    if (!op)
        op = &region->own_op;
    if (!wefti_handle_close(&region->handle))
        st = wefti_fail(WEFT_ERR_CLOSED, "the region is being freed already");
    else if ((st = wefti_op_prepare(region->rt, op, &free_kind)))
        wefti_handle_reopen(&region->handle); /* it is as it was */
    else
        atomic_fetch_add(&region->coming, 1);
    wefti_rma_region_leave(region);
    if (st)
        return st;
    wefti_rma_region_unlist(region);
    return post(region, op, FREE_GENERATION);
}

void wefti_rma_regions_shutdown(rma_state_t *rs)
{
    /* After this, a thread that makes a region has listed it, or sees that the runtime closes. */
    pthread_mutex_lock(&rs->lock);
    pthread_mutex_unlock(&rs->lock);
    wefti_list_each_safe(it, &rs->regions) {
        weft_region_t *region = wefti_container_of(it, weft_region_t, link);
        if (region->pub != region) {
            wefti_rma_twin_shut(region);
            continue;
        }
        if (region->ending) {
            gone(region);
            continue;
        }
        wefti_handle_shut(&region->handle);
        if (!region->freeing) {
            wefti_rma_region_unlist(region);
            region->freeing = true;
            wefti_rma_make_stale(region, UINT64_MAX);
            wefti_rma_twins_ask(region);
        }
        end_waiting(region, ALL_REVOKES, WEFT_ERR_CLOSED);
        wefti_rma_settle(region);
    }
    if (wefti_list_empty(&rs->works.list))
        wefti_timer_stop(rs->rt, &rs->works.timer);
}

void wefti_rma_ending_init(weft_region_t *region)
{
    region->look.fn = look_again;
    region->revoke_call.fn = revoke_posted;
}
