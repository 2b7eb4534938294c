/* mem/reg.c - registered ranges, kept for the next time.
 *
 * A range is IN USE (refs > 1, one being the cache's) or UNUSED; unused ones stay registered, in the order in which they became so, until
 * the room is needed
 * for others, somebody asks to forget one, or the runtime ends. A range covers whole pages. One that contains what is asked for is
 * taken as it is. A new one takes the place of unused ones that it overlaps; those in use stay beside it, since the fabric can register a
 * page twice (CUDA cannot: then the new one is not page-locked as a whole, which only costs time).
 *
 * Ranges lie in an array by base, and each knows how far those up to it reach at most: so a look-up walks back only as far as there can
 * be an answer. Changing the array costs its length, which is nothing beside registering.
 *
 * One lock; the fabric's and CUDA's calls are made under it. A range that somebody has when the runtime ends is undone with the others; what is
 * written down of it goes with the last who gives it back.
 *
 * Promise: in use or not, never more than WEFT_REG_CACHE bytes and WEFTI_MEM_RANGES ranges are registered; each registration is undone
 * once. tests/unit/mem_reg.c holds us to it against a fabric that counts. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "mem/local.h"

struct weft_mem_reg {
    uintptr_t base, end;
    uintptr_t reach; /* the largest end of this one and those before it */
    wefti_reg_cache_t *cache;
    weft_runtime_t *rt;
    void *fabric_reg;      /* NULL: the fabric had nothing to do, or nothing yet */
    _Atomic uint32_t refs; /* whoever registered it, and the cache */
    _Atomic bool ended;    /* the cache, and the runtime with it, is gone */
    bool pinned, device, forget;
    wefti_list_t link; /* cache->unused */
};

void wefti_reg_init(wefti_reg_cache_t *cache, weft_runtime_t *rt)
{
    pthread_mutex_init(&cache->lock, NULL);
    cache->rt = rt;
    cache->max_bytes = rt->config.reg_cache;
    wefti_list_init(&cache->unused);
}

/* --- the array --------------------------------------------------------------------------------------------------------------- */

/* The first whose base is greater. */
static uint32_t after(const wefti_reg_cache_t *c, uintptr_t base)
{
    uint32_t low = 0, high = c->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (c->ranges[mid]->base <= base)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static weft_mem_reg_t *containing(const wefti_reg_cache_t *c, uintptr_t base, uintptr_t end)
{
    for (uint32_t i = after(c, base); i-- > 0 && c->ranges[i]->reach >= end;)
        if (c->ranges[i]->end >= end)
            return c->ranges[i];
    return NULL;
}

static void reach_from(wefti_reg_cache_t *c, uint32_t i)
{
    for (uintptr_t reach = i ? c->ranges[i - 1]->reach : 0; i < c->n; i++) {
        reach = c->ranges[i]->end > reach ? c->ranges[i]->end : reach;
        c->ranges[i]->reach = reach;
    }
}

static bool has_space(wefti_reg_cache_t *c)
{
    if (c->n < c->cap)
        return true;
    uint32_t cap = c->cap ? c->cap * 2 : 16;
    weft_mem_reg_t **bigger = wefti_realloc(c->ranges, cap * sizeof *bigger);
    if (!bigger)
        return false;
    c->ranges = bigger;
    c->cap = cap;
    return true;
}

static void insert(wefti_reg_cache_t *c, weft_mem_reg_t *r)
{
    uint32_t i = after(c, r->base);
    memmove(&c->ranges[i + 1], &c->ranges[i], (c->n - i) * sizeof c->ranges[0]);
    c->ranges[i] = r;
    c->n++;
    c->bytes += r->end - r->base;
    reach_from(c, i);
}

static bool in_use(const weft_mem_reg_t *r)
{
    return atomic_load(&r->refs) > 1;
}

static void unref(weft_mem_reg_t *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1)
        wefti_free(r);
}

/* Unregister a range, which is on no list of unused ones any more, and let go of it. */
static void drop(wefti_reg_cache_t *c, weft_mem_reg_t *r)
{
    wefti_fabric_t *f = c->rt->fabric;
    uint32_t i = after(c, r->base);
    while (c->ranges[--i] != r)
        ;
    memmove(&c->ranges[i], &c->ranges[i + 1], (c->n - i - 1) * sizeof c->ranges[0]);
    c->n--;
    c->bytes -= r->end - r->base;
    reach_from(c, i);
    if (r->fabric_reg)
        f->ops->mem_unregister(f, r->fabric_reg);
    if (r->pinned)
        wefti_cuda_unpin((void *)r->base);
    unref(r);
}

static void evict(wefti_reg_cache_t *c, weft_mem_reg_t *r)
{
    wefti_list_remove(&r->link);
    c->evictions++;
    drop(c, r);
}

/* --- registering ---------------------------------------------------------------------------------------------------------------- */

/* What there is to do for a range with the fabric and CUDA as they are now. */
static weft_status_t make_ready(wefti_reg_cache_t *c, weft_mem_reg_t *r)
{
    wefti_fabric_t *f = c->rt->fabric;
    void *base = (void *)r->base;
    size_t n = r->end - r->base;
    if (r->device) /* it moves through stages, which are ready */
        return WEFT_OK;
    /* A fabric that has nothing to do may have something later: UCX opens with the first connection that needs it. */
    if (!r->fabric_reg && f->ops->mem_register) {
        weft_status_t st = f->ops->mem_register(f, base, n, &r->fabric_reg);
        if (st)
            return st;
    }
    if (!r->pinned)
        r->pinned = wefti_cuda_in_use() && wefti_cuda_pin(base, n);
    return WEFT_OK;
}

/* Room for n more bytes: unused ranges that overlap go, then those unused for longest. */
static weft_status_t make_room(wefti_reg_cache_t *c, uintptr_t base, uintptr_t end)
{
    uint64_t n = end - base;
    if (n > c->max_bytes)
        return wefti_fail(WEFT_ERR_LIMIT, "%" PRIu64 " bytes are to be registered, and WEFT_REG_CACHE allows %" PRIu64, n,
                          c->max_bytes);
    wefti_list_each_safe(it, &c->unused) {
        weft_mem_reg_t *r = wefti_container_of(it, weft_mem_reg_t, link);
        if (r->base < end && base < r->end)
            evict(c, r);
    }
    while ((c->bytes + n > c->max_bytes || c->n >= WEFTI_MEM_RANGES) && !wefti_list_empty(&c->unused))
        evict(c, wefti_container_of(c->unused.next, weft_mem_reg_t, link));
    if (c->bytes + n > c->max_bytes)
        return wefti_fail(WEFT_ERR_LIMIT,
                          "%" PRIu64 " bytes are registered and in use, and WEFT_REG_CACHE (%" PRIu64 ") has no room for %" PRIu64
                          " more",
                          c->bytes, c->max_bytes, n);
    if (c->n >= WEFTI_MEM_RANGES)
        return wefti_fail(WEFT_ERR_LIMIT, "%u ranges are registered and in use, and there can be no more", WEFTI_MEM_RANGES);
    return WEFT_OK;
}

static weft_status_t add(wefti_reg_cache_t *c, uintptr_t base, uintptr_t end, bool device, weft_mem_reg_t **reg_out)
{
    weft_status_t st = make_room(c, base, end);
    if (st)
        return st;
    weft_mem_reg_t *r = has_space(c) ? wefti_calloc(1, sizeof *r) : NULL;
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to register a range");
    r->base = base;
    r->end = end;
    r->cache = c;
    r->rt = c->rt;
    r->refs = 1;
    r->device = device;
    st = make_ready(c, r);
    if (st) {
        wefti_free(r);
        return st;
    }
    insert(c, r);
    *reg_out = r;
    return WEFT_OK;
}

weft_status_t weft_mem_register(weft_runtime_t *rt, void *ptr, size_t n, weft_mem_reg_t **reg_out)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)ptr;
    weft_status_t st = WEFT_OK;
    if (!rt || !ptr || !n || !reg_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s",
                          !rt        ? "the runtime is NULL"
                          : !ptr     ? "the range to register is NULL"
                          : !reg_out ? "there is nowhere to put the registration"
                                     : "the range to register is empty");
    if (n > UINTPTR_MAX - page - at)
        return wefti_fail(WEFT_ERR_INVALID, "%zu bytes from %p on do not fit an address space", n, ptr);
    st = wefti_join(rt);
    if (st)
        return st;
    wefti_reg_cache_t *c = &wefti_mem_room(rt)->regs;
    uintptr_t base = at & ~(page - 1), end = (at + n + page - 1) & ~(page - 1);
    bool device = wefti_mem_device_of(ptr, NULL) != NULL;

    pthread_mutex_lock(&c->lock);
    weft_mem_reg_t *r = containing(c, base, end);
    if (r) {
        st = make_ready(c, r);
        if (!st && !in_use(r))
            wefti_list_remove(&r->link);
        c->hits += !st;
    } else {
        c->misses++;
        st = add(c, base, end, device, &r);
    }
    if (!st) {
        r->refs++;
        *reg_out = r;
    }
    pthread_mutex_unlock(&c->lock);
    wefti_part(rt);
    return st;
}

static void give_back(wefti_reg_cache_t *c, weft_mem_reg_t *reg, bool forget)
{
    assert(in_use(reg) && "a registration was given back twice");
    reg->forget |= forget;
    if (!in_use(reg)) {
        wefti_error("mem: a registration was given back twice");
    } else if (atomic_fetch_sub(&reg->refs, 1) == 2) {
        if (reg->forget)
            drop(c, reg);
        else
            wefti_list_push_back(&c->unused, &reg->link);
    }
}

void weft_mem_unregister(weft_mem_reg_t *reg, bool forget)
{
    if (!reg)
        return;
    weft_status_t st = atomic_load(&reg->ended) ? WEFT_ERR_CLOSED : wefti_join(reg->rt);
    if (st) {
        if (st == WEFT_ERR_CLOSED) /* in a child it is the parent's */
            unref(reg);
        return;
    }
    weft_runtime_t *rt = reg->rt;
    wefti_reg_cache_t *c = reg->cache;
    pthread_mutex_lock(&c->lock);
    give_back(c, reg, forget);
    pthread_mutex_unlock(&c->lock);
    wefti_part(rt);
}

void weft_mem_get_reg_stats(weft_runtime_t *rt, weft_mem_reg_stats_t *stats_out)
{
    if (!rt || !stats_out || wefti_join(rt))
        return;
    wefti_reg_cache_t *c = &wefti_mem_room(rt)->regs;
    pthread_mutex_lock(&c->lock);
    weft_mem_reg_stats_t s = {.ranges = c->n, .bytes = c->bytes, .hits = c->hits, .misses = c->misses, .evictions = c->evictions};
    pthread_mutex_unlock(&c->lock);
    wefti_part(rt);
    wefti_opts_write(stats_out, &s, sizeof s);
}

void wefti_reg_end(wefti_reg_cache_t *c)
{
    uint32_t held = 0;
    while (c->n) {
        weft_mem_reg_t *r = c->ranges[c->n - 1];
        held += in_use(r);
        atomic_store(&r->ended, true);
        drop(c, r);
    }
    if (held)
        wefti_warn("mem: the runtime \"%s\" ends with %u registrations that were not given back", c->rt->name, held);
    wefti_free(c->ranges);
    pthread_mutex_destroy(&c->lock);
}
