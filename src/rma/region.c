/* rma/region.c - regions: memory of ours that others may use, from weft_region_new() to the moment when nobody can touch it any
 * more.
 *
 *     LISTED --weft_region_free()--> UNLISTED --the driver--> FREEING --nothing under way--> gone
 *        |  \--weft_region_revoke()--> LISTED, one generation on
 *        \--the runtime closes--> FREEING
 *
 * Any thread makes regions, and begins to revoke and to free them: the generation is one more, and a freed region is in no table,
 * when the call returns. So tokens made after it are good, those from before find nothing, and the name can be used again. The
 * rest is the driver's: grants of older generations become stale, and the operation waits until nothing made with them is under
 * way.
 *
 * Under way are payloads into or out of the memory (rma_grant_t.under_way), and accesses of peers that have it mapped (the busy
 * word of their slot). The former end by themselves, at the latest with their endpoint. The latter are looked at again and again.
 * A peer that was lost in the middle of one, or that does not come to the end of one for STUCK, is left alone with the memory it
 * has: the region's bytes move to fresh memory under the same address, and nothing that peer does is seen any more. No grant is
 * mapped between a revoke and its end, so that it does not lose its memory in this way. A free needs none of that: the memory
 * goes, and whoever has it mapped has it to itself.
 *
 * A revoke that is cancelled or runs out of time completes with that; it is not undone. A free of memory that the library made
 * does the same, and goes on. A free of the program's own memory completes when it is the program's again and not before, since
 * then the program uses it.
 *
 * Promise: after a revoke or a free has completed with WEFT_OK, no access made with an earlier token touches the region's memory.
 * Each completes once. What a peer could see of a region is never seen in another. tests/unit/rma_region.c, rma_grant.c. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rma/state.h"

#define LOOK WEFT_MILLISECOND
#define STUCK WEFT_SECOND /* an access takes microseconds; one that takes this long belongs to a process that is stopped */

typedef struct ending {
    weft_region_t *region;
    uint64_t generation; /* it waits for grants older than this */
} ending_t;

static ending_t *ending(weft_op_t *op)
{
    return wefti_op_room(op, ending_t);
}

static const wefti_op_kind_t revoke_kind, free_kind;

/* --- the tables: any thread, under rs->lock ---------------------------------------------------------------------------------- */

void wefti_rma_regions_init(rma_state_t *rs)
{
    pthread_mutex_init(&rs->lock, NULL);
    wefti_slots_init(&rs->by_id, UINT32_MAX - 1);
    wefti_list_init(&rs->regions);
}

void wefti_rma_regions_free(rma_state_t *rs)
{
    wefti_slots_free(&rs->by_id);
    wefti_map_free(&rs->by_name);
    pthread_mutex_destroy(&rs->lock);
}

static weft_region_t *find_name(const rma_state_t *rs, const char *name, size_t n)
{
    weft_region_t *r = wefti_map_get(&rs->by_name, wefti_hash_bytes(name, n));
    while (r && (strlen(r->name) != n || memcmp(r->name, name, n) != 0))
        r = r->name_next;
    return r;
}

static weft_status_t list_name(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    size_t n = strlen(region->name);
    uint64_t key = wefti_hash_bytes(region->name, n);
    if (find_name(rs, region->name, n))
        return wefti_fail(WEFT_ERR_STATE, "there is a region \"%s\" already: free it first, or choose another name",
                          region->name);
    region->name_next = wefti_map_get(&rs->by_name, key);
    if (wefti_map_put(&rs->by_name, key, region))
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the name of a region");
    return WEFT_OK;
}

static void unlist_name(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    uint64_t key = wefti_hash_bytes(region->name, strlen(region->name));
    weft_region_t *r = wefti_map_get(&rs->by_name, key);
    if (r == region) {
        /* replacing needs no memory */
        weft_status_t st = region->name_next ? wefti_map_put(&rs->by_name, key, region->name_next) : WEFT_OK;
        if (!region->name_next || st)
            wefti_map_take(&rs->by_name, key);
        return;
    }
    while (r && r->name_next != region)
        r = r->name_next;
    if (r)
        r->name_next = region->name_next;
}

static weft_status_t list(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    pthread_mutex_lock(&rs->lock);
    weft_status_t st = region->name ? list_name(region) : WEFT_OK;
    if (!st && wefti_slots_add(&rs->by_id, region, &region->id)) {
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for the id of a region");
        if (region->name)
            unlist_name(region);
    }
    if (!st)
        wefti_list_push_back(&rs->regions, &region->link);
    pthread_mutex_unlock(&rs->lock);
    return st;
}

/* Nobody finds it any more, and what was given out is of an old generation. */
static void unlist(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    pthread_mutex_lock(&rs->lock);
    if (wefti_slots_get(&rs->by_id, region->id)) {
        wefti_slots_remove(&rs->by_id, region->id);
        if (region->name)
            unlist_name(region);
    }
    pthread_mutex_unlock(&rs->lock);
    atomic_fetch_add(&region->generation, 1);
}

weft_region_t *wefti_rma_region(rma_state_t *rs, uint64_t id)
{
    pthread_mutex_lock(&rs->lock);
    weft_region_t *region = wefti_slots_get(&rs->by_id, id);
    pthread_mutex_unlock(&rs->lock);
    return region;
}

weft_status_t wefti_rma_named(rma_state_t *rs, const char *name, size_t n, rma_claim_t *claim_out)
{
    pthread_mutex_lock(&rs->lock);
    weft_region_t *r = find_name(rs, name, n);
    if (r)
        *claim_out = (rma_claim_t){
            .region = r->id, .generation = atomic_load(&r->generation), .len = atomic_load(&r->len), .rights = r->name_rights};
    pthread_mutex_unlock(&rs->lock);
    return r ? WEFT_OK : wefti_fail(WEFT_ERR_NOTFOUND, "no region has that name of %zu bytes", n);
}

/* --- memory ------------------------------------------------------------------------------------------------------------------ */

/* Zero, and pages only where it is touched. */
static weft_status_t map_private(uint64_t max_len, uint8_t **base_out)
{
    if (max_len > PTRDIFF_MAX || (wefti_alloc_fails && wefti_alloc_fails((size_t)max_len)))
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a region of %llu bytes", (unsigned long long)max_len);
    void *p = mmap(NULL, (size_t)max_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return wefti_fail(errno == ENOMEM ? WEFT_ERR_NOMEM : WEFT_ERR_SYSTEM, "a region of %llu bytes: %s",
                          (unsigned long long)max_len, strerror(errno));
    *base_out = p;
    return WEFT_OK;
}

static weft_status_t memory_new(weft_region_t *r, const weft_region_opts_t *o)
{
    weft_status_t st = WEFT_OK;
    r->share.fd = -1;
    r->own = !o->buf;
    r->checked = o->unmapped;
    if (o->buf) {
        r->base = o->buf;
        r->device = wefti_mem_device_of(o->buf, o->kind);
    } else if (o->unmapped) {
        st = map_private(r->max_len, &r->base);
    } else {
        st = wefti_rma_share_new(&r->share, r->max_len);
        r->base = r->share.data;
    }
    return st;
}

static void memory_free(weft_region_t *r)
{
    bool kept = atomic_load(&r->kept);
    if (r->share.fd >= 0 && kept)
        wefti_memfd_keep(&r->share.mem);
    else if (r->share.fd >= 0)
        wefti_rma_share_free(&r->share);
    else if (r->own && !kept)
        munmap(r->base, (size_t)r->max_len);
}

/* --- making one -------------------------------------------------------------------------------------------------------------- */

static void look_again(wefti_timer_t *t);
static void revoke_posted(wefti_call_t *call);

static weft_status_t check(weft_region_opts_t *o)
{
    size_t name = o->name ? strnlen(o->name, WEFT_RMA_NAME_MAX + 1) : 1;
    if (!o->max_len)
        o->max_len = o->len;
    if (!o->rights)
        o->rights = WEFT_RMA_ALL;
    if (!o->name_rights)
        o->name_rights = o->rights;
    if (!o->len || o->max_len < o->len)
        return wefti_fail(WEFT_ERR_INVALID,
                          "a region of %llu bytes that may grow to %llu: it has at least one, and never shrinks",
                          (unsigned long long)o->len, (unsigned long long)o->max_len);
    if (o->rights & ~WEFT_RMA_ALL || o->name_rights & ~o->rights)
        return wefti_fail(WEFT_ERR_INVALID, "rights %#x, and %#x by name: only WEFT_RMA_ALL, and by name no more than without",
                          o->rights, o->name_rights);
    if (!name || name > WEFT_RMA_NAME_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "the name of a region has 1 to %u bytes", WEFT_RMA_NAME_MAX);
    if (o->kind && !o->buf)
        return wefti_fail(WEFT_ERR_INVALID, "a region has a kind of memory only with buf: allocate it there first");
    if (o->buf && o->max_len > UINTPTR_MAX - (uintptr_t)o->buf)
        return wefti_fail(WEFT_ERR_INVALID, "%llu bytes from %p on do not fit an address space", (unsigned long long)o->max_len,
                          o->buf);
    return WEFT_OK;
}

weft_status_t weft_region_new(weft_runtime_t *rt, const weft_region_opts_t *opts, weft_region_t **region_out)
{
    weft_region_opts_t o;
    if (!rt || !opts || !region_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "rt" : !opts ? "opts" : "region_out");
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (rt->closing)
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_region_opts_t");
    if (!st)
        st = check(&o);
    if (st)
        return st;
    weft_region_t *r = wefti_calloc(1, sizeof *r);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a region");
    r->rs = rma_state(rt);
    atomic_init(&r->generation, 1);
    atomic_init(&r->len, o.len);
    r->max_len = o.max_len;
    r->rights = o.rights;
    r->name_rights = o.name_rights;
    r->notify = o.notify;
    r->user = o.user;
    r->look.fn = look_again;
    r->revoke_call.fn = revoke_posted;
    wefti_list_init(&r->grants);
    wefti_list_init(&r->waiting);
    if (o.name && !(r->name = wefti_strdup(o.name))) {
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for the name of a region");
        goto err_region;
    }
    st = memory_new(r, &o);
    if (st)
        goto err_name;
    st = list(r);
    if (st)
        goto err_memory;
    *region_out = r;
    return WEFT_OK;

err_memory:
    memory_free(r);
err_name:
    wefti_free(r->name);
err_region:
    wefti_free(r);
    return st;
}

void wefti_region_until(weft_region_t *region, uint64_t when)
{
    region->until = when;
}

/* --- the end of accesses ------------------------------------------------------------------------------------------------------ */

static void make_stale(weft_region_t *region, uint64_t generation)
{
    wefti_list_each(it, &region->grants) {
        rma_grant_t *g = wefti_container_of(it, rma_grant_t, region_link);
        if (g->generation < generation)
            wefti_rma_grant_stale(g);
    }
}

/* Is some slot busy whose peer is gone? */
static bool any_lost(const weft_region_t *region)
{
    const rma_share_t *s = &region->share;
    uint64_t lost = s->taken;
    wefti_list_each(it, &region->grants) {
        const rma_grant_t *g = wefti_container_of(it, rma_grant_t, region_link);
        if (g->slot >= 0)
            lost &= ~(UINT64_C(1) << g->slot);
    }
    for (int32_t i = 0; lost; i++, lost >>= 1)
        if (lost & 1 && wefti_rma_slot_busy(s, i))
            return true;
    return false;
}

/* The oldest generation that still has a slot that is busy; UINT64_MAX: none. */
static uint64_t oldest_busy(weft_region_t *region)
{
    uint64_t oldest = UINT64_MAX;
    wefti_list_each(it, &region->grants) {
        rma_grant_t *g = wefti_container_of(it, rma_grant_t, region_link);
        if (!g->stale || g->slot < 0 || g->quiet)
            continue;
        g->quiet = !wefti_rma_slot_busy(&region->share, g->slot);
        if (!g->quiet && g->generation < oldest)
            oldest = g->generation;
    }
    return oldest;
}

static uint64_t oldest_payload(const weft_region_t *region)
{
    uint64_t oldest = UINT64_MAX;
    wefti_list_each(it, &region->grants) {
        const rma_grant_t *g = wefti_container_of(it, rma_grant_t, region_link);
        if (g->under_way && g->generation < oldest)
            oldest = g->generation;
    }
    return oldest;
}

/* Leave the memory to those who do not let go of it. */
static weft_status_t move_away(weft_region_t *region)
{
    /* One that is good and mapped, if there is one, would write to the old memory from now on. */
    wefti_list_each(it, &region->grants) {
        rma_grant_t *g = wefti_container_of(it, rma_grant_t, region_link);
        if (g->slot >= 0)
            wefti_rma_grant_stale(g);
    }
    weft_status_t st = wefti_rma_share_replace(&region->share, atomic_load(&region->len));
    if (st)
        return st;
    wefti_info("rma: a region of %llu bytes has fresh memory: a peer was lost or stopped in the middle of an access",
               (unsigned long long)atomic_load(&region->len));
    wefti_list_each(it, &region->grants) {
        rma_grant_t *g = wefti_container_of(it, rma_grant_t, region_link);
        if (g->slot >= 0)
            wefti_count_up(&region->mapped, (uint64_t)-1);
        g->slot = -1;
        g->quiet = true;
    }
    return WEFT_OK;
}

#define FREE_GENERATION UINT64_MAX /* of a free: it completes with the region's end, after all revokes */
#define ALL_REVOKES (FREE_GENERATION - 1)

static void end_waiting(weft_region_t *region, uint64_t upto, weft_status_t status)
{
    wefti_list_each_safe(it, &region->waiting) {
        weft_op_t *op = wefti_op_of_link(it);
        if (ending(op)->generation > upto)
            continue;
        wefti_list_remove(it);
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
    return wefti_timer_at(region->rs->rt, &region->look, now + LOOK);
}

/* Revokes that wait: see who is done with it, and what is to be done about those who never will be. */
static void settle_revokes(weft_region_t *region)
{
    uint64_t upto = oldest_payload(region), busy = UINT64_MAX;
    weft_status_t st = WEFT_OK;
    if (region->share.fd >= 0 && !region->freeing) {
        busy = oldest_busy(region);
        bool stuck = busy != UINT64_MAX && region->look_until && wefti_now(region->rs->rt) >= region->look_until;
        if (stuck || any_lost(region)) {
            /* Not under those who have a key: their accesses would still reach the old memory. */
            bool held = wefti_rma_native_hold(region);
            st = held ? WEFT_OK : move_away(region);
            busy = held ? 0 : UINT64_MAX;
        }
    }
    if (!st) {
        upto = busy < upto ? busy : upto;
        end_waiting(region, upto < ALL_REVOKES ? upto : ALL_REVOKES, WEFT_OK);
        if (busy != UINT64_MAX && !wefti_list_empty(&region->waiting)) {
            st = keep_looking(region);
            if (!st)
                return;
        }
    }
    stop_looking(region);
    if (st) /* no memory: they know no more than that it is revoked. The next one tries again */
        end_waiting(region, ALL_REVOKES, st);
}

/* The end of a region that nobody has under way any more. */
static void destroy(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    wefti_list_t waiting;
    wefti_timer_stop(rs->rt, &region->look);
    for (wefti_list_t *l; (l = wefti_list_pop(&region->grants));) {
        rma_grant_t *g = wefti_container_of(l, rma_grant_t, region_link);
        wefti_rma_grant_stale(g);
        g->region = NULL;
        g->slot = -1;
    }
    pthread_mutex_lock(&rs->lock);
    wefti_list_remove(&region->link);
    pthread_mutex_unlock(&rs->lock);
    memory_free(region);
    wefti_free(region->name);
    wefti_list_init(&waiting);
    wefti_list_splice(&waiting, &region->waiting);
    for (wefti_list_t *l; (l = wefti_list_pop(&waiting));)
        wefti_op_complete(wefti_op_of_link(l), WEFT_OK); /* own_op is one, perhaps */
    wefti_free(region);
}

void wefti_rma_settle(weft_region_t *region)
{
    if (!wefti_list_empty(&region->waiting))
        settle_revokes(region);
    if (region->freeing && !atomic_load(&region->coming) && oldest_payload(region) == UINT64_MAX)
        destroy(region);
}

static void look_again(wefti_timer_t *t)
{
    wefti_rma_settle(wefti_container_of(t, weft_region_t, look));
}

/* --- revoking and freeing ------------------------------------------------------------------------------------------------------ */

/* On the driver. A call that came from elsewhere is here. */
static weft_status_t end_start(weft_op_t *op)
{
    ending_t *e = ending(op);
    weft_region_t *region = e->region;
    bool frees = wefti_opx(op)->kind == &free_kind;
    atomic_fetch_sub(&region->coming, 1);
    if (frees)
        region->freeing = true;
    make_stale(region, e->generation);
    weft_status_t st = wefti_op_track(op);
    /* What is begun is not undone: a free goes on all the same, and a revoke stands. */
    if (st && !(frees && !region->own))
        wefti_op_complete(op, st);
    else
        wefti_list_push_back(&region->waiting, &wefti_opx(op)->link);
    wefti_rma_settle(region);
    return WEFT_OK;
}

static void revoke_cancel(weft_op_t *op, weft_status_t why)
{
    weft_region_t *region = ending(op)->region;
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, why);
    if (wefti_list_empty(&region->waiting))
        stop_looking(region);
}

static void free_cancel(weft_op_t *op, weft_status_t why)
{
    if (!ending(op)->region->own)
        return;
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, why);
}

static const wefti_op_kind_t revoke_kind = {.name = "region revoke", .start = end_start, .cancel = revoke_cancel};
static const wefti_op_kind_t free_kind = {.name = "region free", .start = end_start, .cancel = free_cancel};

static void revoke_posted(wefti_call_t *call)
{
    weft_region_t *region = wefti_container_of(call, weft_region_t, revoke_call);
    atomic_store(&region->revoke_called, false); /* before the look at the generation: see weft_region_revoke() */
    make_stale(region, atomic_load(&region->generation));
    atomic_fetch_sub(&region->coming, 1);
    wefti_rma_settle(region);
}

weft_status_t weft_region_revoke(weft_region_t *region, weft_op_t *op)
{
    if (!region)
        return wefti_fail(WEFT_ERR_INVALID, "the region is NULL");
    weft_runtime_t *rt = region->rs->rt;
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (op) {
        weft_status_t st = wefti_op_prepare(rt, op, &revoke_kind);
        if (st)
            return st;
        atomic_fetch_add(&region->coming, 1);
        *ending(op) = (ending_t){region, atomic_fetch_add(&region->generation, 1) + 1};
        return wefti_op_go(rt, op);
    }
    /* One call that is on its way does for all who want one: it has not looked at the generation yet. */
    atomic_fetch_add(&region->generation, 1);
    if (!atomic_exchange(&region->revoke_called, true)) {
        atomic_fetch_add(&region->coming, 1);
        wefti_call_on_driver(rt, &region->revoke_call);
    }
    return WEFT_OK;
}

weft_status_t weft_region_free(weft_region_t *region, weft_op_t *op)
{
    if (!region)
        return op ? wefti_fail(WEFT_ERR_INVALID, "there is no region to free: it is NULL") : WEFT_OK;
    if (!op)
        op = &region->own_op;
    weft_status_t st = wefti_op_prepare(region->rs->rt, op, &free_kind);
    if (st)
        return st;
    atomic_fetch_add(&region->coming, 1);
    *ending(op) = (ending_t){region, FREE_GENERATION};
    unlist(region);
    return wefti_op_go(region->rs->rt, op);
}

void wefti_rma_regions_shutdown(rma_state_t *rs)
{
    wefti_list_each_safe(it, &rs->regions) {
        weft_region_t *region = wefti_container_of(it, weft_region_t, link);
        if (!region->freeing) {
            unlist(region);
            region->freeing = true;
            make_stale(region, UINT64_MAX);
        }
        end_waiting(region, ALL_REVOKES, WEFT_ERR_CLOSED);
        wefti_rma_settle(region);
    }
}

bool wefti_rma_regions_idle(const rma_state_t *rs)
{
    return wefti_list_empty(&rs->regions);
}

/* --- the rest of the calls ----------------------------------------------------------------------------------------------------- */

weft_status_t weft_region_extend(weft_region_t *region, uint64_t len)
{
    if (!region)
        return wefti_fail(WEFT_ERR_INVALID, "the region is NULL");
    uint64_t was = atomic_load(&region->len);
    do {
        if (len < was || len > region->max_len)
            return wefti_fail(WEFT_ERR_RANGE, "a region of %llu bytes that may grow to %llu cannot have %llu",
                              (unsigned long long)was, (unsigned long long)region->max_len, (unsigned long long)len);
    } while (!atomic_compare_exchange_weak(&region->len, &was, len));
    return WEFT_OK;
}

weft_status_t weft_region_keep(weft_region_t *region, void **map_out, size_t *n_out)
{
    if (!region || !map_out || !n_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !region ? "the region" : !map_out ? "map_out" : "n_out");
    if (!region->own)
        return wefti_fail(WEFT_ERR_STATE, "the memory of this region is the program's already");
    bool shared = region->share.fd >= 0;
    atomic_store(&region->kept, true);
    *map_out = shared ? region->share.mem.base : region->base;
    *n_out = shared ? region->share.mem.n : (size_t)region->max_len;
    return WEFT_OK;
}

void *weft_region_base(const weft_region_t *region)
{
    return region ? region->base : NULL;
}

/* Any thread: the counters may be a little old. */
weft_status_t weft_region_get_info(const weft_region_t *region, weft_region_info_t *info_out)
{
    weft_region_info_t info = WEFT_REGION_INFO_INIT;
    if (!region || !info_out || info_out->size < sizeof info.size)
        return wefti_fail(WEFT_ERR_INVALID, "%s",
                          region ? "weft_region_info_t: use WEFT_REGION_INFO_INIT" : "the region is NULL");
    info.len = atomic_load(&region->len);
    info.max_len = region->max_len;
    info.generation = atomic_load(&region->generation);
    info.attached = __atomic_load_n(&region->attached, __ATOMIC_RELAXED);
    info.mapped = __atomic_load_n(&region->mapped, __ATOMIC_RELAXED);
    info.reads = __atomic_load_n(&region->count.reads, __ATOMIC_RELAXED);
    info.writes = __atomic_load_n(&region->count.writes, __ATOMIC_RELAXED);
    info.atomics = __atomic_load_n(&region->count.atomics, __ATOMIC_RELAXED);
    info.bytes_read = __atomic_load_n(&region->count.bytes_read, __ATOMIC_RELAXED);
    info.bytes_written = __atomic_load_n(&region->count.bytes_written, __ATOMIC_RELAXED);
    info.refused = __atomic_load_n(&region->refused, __ATOMIC_RELAXED);
    info.size = info_out->size < sizeof info ? info_out->size : sizeof info;
    memcpy(info_out, &info, info.size);
    return WEFT_OK;
}
