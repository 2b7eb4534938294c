/* mem/slab.c - the memory of a pool: arenas, the slabs in them, and which buffers are out.
 *
 * A buffer of up to half an arena (arena.c) comes from a slab: some units of 64 KiB of an arena, cut into buffers of one size. Sizes go up in
 * four steps per doubling, so at most a quarter of what was asked for is added, and at most an eighth of a slab is lost at its end. A larger
 * buffer is an arena of its own, which is kept for the next buffer of about that size.
 *
 *     slab    is empty, partial or full by how many of its buffers are out; those with a free buffer are on a list per size, the one that
 *             last got a buffer back first. An empty one keeps its units until another size finds none
 *     arena   has buffers out, or is idle; idle ones go back to the system when the pool is trimmed, or needs space under max_bytes
 *
 * What is free is recorded outside of the memory itself, which may be a device's: so nothing that a program writes to a buffer that it gave
 * back can break the pool. Under the address sanitizer, what is not out is poisoned.
 *
 * Promise: buffers that are out never overlap, lie wholly in an arena and are aligned to 64; arenas never exceed max_bytes; nothing
 * is allocated or mapped for a buffer of a size that was given back before. tests/unit/mem_pool.c. */
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "mem/pool.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(pool, p, n) ((pool)->base->flags & WEFT_MEM_CPU ? ASAN_POISON_MEMORY_REGION(p, n) : (void)0)
#define UNPOISON(pool, p, n) ((pool)->base->flags & WEFT_MEM_CPU ? ASAN_UNPOISON_MEMORY_REGION(p, n) : (void)0)
#else
#define POISON(pool, p, n) ((void)(p))
#define UNPOISON(pool, p, n) ((void)(p))
#endif

#define PAGE ((size_t)4096)

/* --- sizes ------------------------------------------------------------------------------------------------------------------- */

/* The size of buffers that n bytes get, and its number. n is at most SIZE_MAX / 4. */
static size_t class_of(size_t n, uint32_t *which_out)
{
    if (n <= 256) {
        size_t m = n ? (n + 63) / 64 : 1;
        *which_out = (uint32_t)m - 1;
        return m * 64;
    }
    unsigned k = 63u - (unsigned)__builtin_clzll(n - 1), shift = k - 2;
    size_t m = ((n - 1) >> shift) + 1; /* 5 to 8 */
    *which_out = 4 + (k - 8) * 4 + (uint32_t)m - 5;
    return m << shift;
}

/* How many units a slab of such buffers has: the fewest that lose at most an eighth. */
static uint32_t slab_units(size_t size, uint32_t most)
{
    uint32_t units = (uint32_t)((size + WEFTI_POOL_UNIT - 1) / WEFTI_POOL_UNIT);
    while (units < most && units * WEFTI_POOL_UNIT % size > units * WEFTI_POOL_UNIT / 8)
        units++;
    return units;
}

/* --- arenas ------------------------------------------------------------------------------------------------------------------- */

arena_t *wefti_slab_arena_at(weft_pool_t *pool, const char *ptr)
{
    arena_t *a = pool->last;
    if (a && ptr >= a->mem.base && ptr < a->mem.base + a->mem.n)
        return a;
    uint32_t low = 0, high = pool->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (pool->arenas[mid]->mem.base <= ptr)
            low = mid + 1;
        else
            high = mid;
    }
    a = low ? pool->arenas[low - 1] : NULL;
    return a && ptr < a->mem.base + a->mem.n ? a : NULL;
}

static void drop_slab(weft_pool_t *pool, slab_t *s)
{
    wefti_list_remove(&s->link); /* an empty one has free buffers */
    for (uint32_t i = 0; i < s->units; i++)
        s->arena->slab_of[s->unit + i] = NULL;
    s->arena->free_units += s->units;
    pool->empty_slabs--;
    wefti_free(s);
}

/* Units of empty slabs become free. */
static void drop_empty(weft_pool_t *pool, arena_t *a)
{
    for (uint32_t u = 0; u < a->units && pool->empty_slabs;) {
        slab_t *s = a->slab_of[u];
        u += s ? s->units : 1;
        if (s && !s->used)
            drop_slab(pool, s);
    }
}

static void close_arena(weft_pool_t *pool, uint32_t i)
{
    arena_t *a = pool->arenas[i];
    drop_empty(pool, a);
    if (a->own)
        wefti_list_remove(&a->link);
    memmove(&pool->arenas[i], &pool->arenas[i + 1], (pool->n - i - 1) * sizeof pool->arenas[0]);
    pool->n--;
    pool->held -= a->mem.n;
    if (pool->last == a)
        pool->last = NULL;
    UNPOISON(pool, a->mem.base, a->mem.n);
    if (pool->rt)
        wefti_arena_unshare(&a->mem, pool->rt);
    wefti_arena_close(&a->mem);
    wefti_free(a);
}

size_t wefti_slab_trim(weft_pool_t *pool)
{
    uint64_t before = pool->held;
    for (uint32_t i = pool->n; i-- > 0;)
        if (!pool->arenas[i]->used)
            close_arena(pool, i);
    return before - pool->held;
}

/* An arena of `want` bytes, or of as many, though at least `least`, as max_bytes leaves. */
static weft_status_t open_arena(weft_pool_t *pool, size_t least, size_t want, bool own, arena_t **arena_out)
{
    if (pool->held + want > pool->max_bytes)
        wefti_slab_trim(pool);
    if (pool->held + least > pool->max_bytes)
        return wefti_fail(WEFT_ERR_LIMIT, "the pool's arenas have %llu bytes, and with %zu more they would exceed max_bytes, %zu",
                          (unsigned long long)pool->held, least, pool->max_bytes);
    if (pool->held + want > pool->max_bytes) {
        want = pool->max_bytes - pool->held;
        want = own ? least : want / WEFTI_POOL_UNIT * WEFTI_POOL_UNIT;
    }
    if (pool->n == pool->cap) {
        uint32_t cap = pool->cap ? pool->cap * 2 : 8;
        arena_t **bigger = wefti_realloc(pool->arenas, cap * sizeof *bigger);
        if (!bigger)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory to record an arena");
        pool->arenas = bigger;
        pool->cap = cap;
    }
    uint32_t units = own ? 0 : (uint32_t)(want / WEFTI_POOL_UNIT);
    arena_t *a = wefti_calloc(1, sizeof *a + units * sizeof a->slab_of[0]);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to record an arena");
    weft_status_t st = wefti_arena_open(&a->mem, pool->rt, pool->base, want, pool->share);
    if (st) {
        wefti_free(a);
        return st;
    }
    a->own = own;
    a->units = a->free_units = units;
    uint32_t i = pool->n;
    for (; i && pool->arenas[i - 1]->mem.base > a->mem.base; i--)
        pool->arenas[i] = pool->arenas[i - 1];
    pool->arenas[i] = a;
    pool->n++;
    pool->held += want;
    POISON(pool, a->mem.base, a->mem.n);
    *arena_out = a;
    return WEFT_OK;
}

/* --- slabs --------------------------------------------------------------------------------------------------------------------- */

/* The first of `units` free units in a row; -1: none. */
static int64_t free_run(const arena_t *a, uint32_t units)
{
    uint32_t run = 0;
    if (a->free_units < units)
        return -1;
    for (uint32_t u = 0; u < a->units; u++) {
        run = a->slab_of[u] ? 0 : run + 1;
        if (run == units)
            return (int64_t)u + 1 - units;
    }
    return -1;
}

static arena_t *find_units(weft_pool_t *pool, uint32_t units, int64_t *at_out)
{
    for (uint32_t i = 0; i < pool->n; i++) {
        *at_out = free_run(pool->arenas[i], units);
        if (*at_out >= 0)
            return pool->arenas[i];
    }
    return NULL;
}

static weft_status_t new_slab(weft_pool_t *pool, size_t size, uint32_t which, slab_t **slab_out)
{
    uint32_t units = slab_units(size, (uint32_t)(pool->arena_bytes / WEFTI_POOL_UNIT));
    int64_t at;
    arena_t *a = find_units(pool, units, &at);
    if (!a && pool->empty_slabs) {
        for (uint32_t i = 0; i < pool->n; i++)
            drop_empty(pool, pool->arenas[i]);
        a = find_units(pool, units, &at);
    }
    if (!a) {
        weft_status_t st = open_arena(pool, units * WEFTI_POOL_UNIT, pool->arena_bytes, false, &a);
        if (st)
            return st;
        at = 0;
    }
    size_t count = units * WEFTI_POOL_UNIT / size;
    slab_t *s = wefti_calloc(1, sizeof *s + count * sizeof s->stack[0]);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to record a slab");
    s->arena = a;
    s->base = a->mem.base + (size_t)at * WEFTI_POOL_UNIT;
    s->size = size;
    s->unit = (uint32_t)at;
    s->units = units;
    s->count = (uint32_t)count;
    s->which = which;
    for (uint32_t i = 0; i < units; i++)
        a->slab_of[s->unit + i] = s;
    a->free_units -= units;
    pool->empty_slabs++;
    wefti_list_push_front(&pool->partial[which], &s->link);
    *slab_out = s;
    return WEFT_OK;
}

static weft_status_t get_small(weft_pool_t *pool, size_t size, uint32_t which, void **ptr_out)
{
    wefti_list_t *first = wefti_list_first(&pool->partial[which]);
    slab_t *s = NULL;
    if (first) {
        s = wefti_container_of(first, slab_t, link);
    } else {
        weft_status_t st = new_slab(pool, size, which, &s);
        if (st)
            return st;
    }
    uint32_t i;
    if (s->n_free) {
        i = s->stack[--s->n_free];
        pool->reused++;
    } else {
        i = s->fresh++;
    }
    s->out[i / 64] |= UINT64_C(1) << i % 64;
    pool->empty_slabs -= s->used == 0;
    if (++s->used == s->count)
        wefti_list_remove(&s->link);
    s->arena->used++;
    pool->used_bytes += size;
    *ptr_out = s->base + i * size;
    UNPOISON(pool, *ptr_out, size);
    return WEFT_OK;
}

static bool put_small(weft_pool_t *pool, arena_t *a, const char *ptr)
{
    slab_t *s = a->slab_of[(size_t)(ptr - a->mem.base) / WEFTI_POOL_UNIT];
    if (!s)
        return false;
    size_t offset = (size_t)(ptr - s->base), i = offset / s->size;
    if (i * s->size != offset || i >= s->count || !(s->out[i / 64] >> i % 64 & 1))
        return false;
    s->out[i / 64] &= ~(UINT64_C(1) << i % 64);
    s->stack[s->n_free++] = (uint16_t)i;
    if (s->used == s->count)
        wefti_list_push_front(&pool->partial[s->which], &s->link);
    pool->empty_slabs += --s->used == 0;
    a->used--;
    pool->used_bytes -= s->size;
    POISON(pool, ptr, s->size);
    return true;
}

/* --- buffers that are arenas ------------------------------------------------------------------------------------------------------ */

static weft_status_t get_own(weft_pool_t *pool, size_t n, size_t size, void **ptr_out)
{
    arena_t *a = NULL;
    size_t least = (n + PAGE - 1) & ~(PAGE - 1);
    size = (size + PAGE - 1) & ~(PAGE - 1);
    wefti_list_each(it, &pool->own_idle) {
        arena_t *idle = wefti_container_of(it, arena_t, link);
        if (idle->mem.n >= least && idle->mem.n <= size) {
            a = idle;
            pool->reused++;
            wefti_list_remove(&a->link);
            break;
        }
    }
    if (!a) {
        weft_status_t st = open_arena(pool, least, size, true, &a);
        if (st)
            return st;
    }
    a->used = 1;
    pool->used_bytes += a->mem.n;
    *ptr_out = a->mem.base;
    UNPOISON(pool, a->mem.base, a->mem.n);
    return WEFT_OK;
}

static bool put_own(weft_pool_t *pool, arena_t *a, const char *ptr)
{
    if (ptr != a->mem.base || !a->used)
        return false;
    a->used = 0;
    wefti_list_push_front(&pool->own_idle, &a->link);
    pool->used_bytes -= a->mem.n;
    POISON(pool, a->mem.base, a->mem.n);
    return true;
}

/* --- both -------------------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_slab_get(weft_pool_t *pool, size_t n, void **ptr_out)
{
    uint32_t which = 0;
    size_t size = n <= SIZE_MAX / 8 ? class_of(n, &which) : 0;
    if (!size || n > pool->max_bytes)
        return wefti_fail(WEFT_ERR_LIMIT, "a buffer of %zu bytes is more than the pool may have, max_bytes, %zu", n,
                          pool->max_bytes);
    return size <= pool->arena_bytes / 2 ? get_small(pool, size, which, ptr_out) : get_own(pool, n, size, ptr_out);
}

bool wefti_slab_put(weft_pool_t *pool, arena_t *a, const char *ptr)
{
    return a->own ? put_own(pool, a, ptr) : put_small(pool, a, ptr);
}

void wefti_slab_forget(weft_pool_t *pool)
{
    for (uint32_t i = 0; i < pool->n; i++) {
        arena_t *a = pool->arenas[i];
        for (uint32_t u = 0; u < a->units;) {
            slab_t *s = a->slab_of[u];
            u += s ? s->units : 1;
            wefti_free(s);
        }
        UNPOISON(pool, a->mem.base, a->mem.n);
        if (pool->base->flags & WEFT_MEM_CPU)
            wefti_arena_close(&a->mem);
        wefti_free(a);
    }
    wefti_free(pool->arenas);
}
