/* mem/pool.c - memory to be used again and again.
 *
 * A pool has arenas (arena.c). A buffer of up to half an arena comes from a slab: some units of 64 KiB of an arena, cut into buffers of one
 * size. Sizes go up in four steps per doubling, so at most a quarter of what was asked for is added, and of a slab at most an eighth is lost at
 * its end. A larger buffer is an arena of its own, which is kept for the next buffer of about that size.
 *
 *     slab    EMPTY, PARTIAL, FULL by how many of its buffers are out; those with something to give are on a list per size, the one that
 *             was last given something back first. An empty one keeps its units until another size finds none
 *     arena   has buffers out, or is idle; idle ones go back to the system when the pool is trimmed, or needs room under max_bytes
 *
 * What is free is written down outside of the memory itself, which may be a device's; so nothing a program writes to a buffer it gave
 * back can break the pool. A pointer that is not out is refused: an error in the log, and an assertion where those are on. Under the address
 * sanitizer, what is not out is poisoned.
 *
 * One lock per pool, which stays with the memory of the pool (base/handle.h): whoever calls with a pool that was freed finds it closed. In a
 * forked child the pool is the parent's: it gives nothing out and takes nothing back.
 *
 * Promise: buffers that are out never overlap, lie wholly in an arena and are aligned to 64; arenas never exceed max_bytes; nothing
 * is allocated or mapped for a buffer of a size that was given back before. tests/unit/mem_pool.c holds us to it. */
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "mem/local.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(pool, p, n) ((pool)->base->flags & WEFT_MEM_CPU ? ASAN_POISON_MEMORY_REGION(p, n) : (void)0)
#define UNPOISON(pool, p, n) ((pool)->base->flags & WEFT_MEM_CPU ? ASAN_UNPOISON_MEMORY_REGION(p, n) : (void)0)
#else
#define POISON(pool, p, n) ((void)(p))
#define UNPOISON(pool, p, n) ((void)(p))
#endif

#define UNIT ((size_t)64 << 10)
#define PAGE ((size_t)4096)
#define CLASSES 224u /* 64 to 2^63 bytes */
#define MAX_DEFAULT ((size_t)4 << 30)
#define ARENA_DEFAULT ((size_t)16 << 20)

typedef struct arena arena_t;

typedef struct slab {
    wefti_list_t link; /* pool->partial, while it has something to give */
    arena_t *arena;
    char *base;
    size_t size; /* of a buffer */
    uint32_t unit, units;
    uint32_t count, used;
    uint32_t fresh;   /* buffers from here on were never out */
    uint32_t n_free;  /* on the stack */
    uint32_t which;   /* class */
    uint64_t out[16]; /* bits */
    uint16_t stack[]; /* free ones that were out before */
} slab_t;

struct arena {
    wefti_arena_t mem;
    wefti_list_t link; /* pool->own_idle */
    uint64_t used;     /* buffers out */
    bool own;          /* all of it is one buffer */
    uint32_t units, free_units;
    slab_t *slab_of[]; /* by unit; NULL: free */
};

struct weft_pool {
    wefti_handle_t handle;
    pthread_mutex_t lock;
    weft_mem_kind_t kind; /* the pool as one */
    const weft_mem_kind_t *base;
    weft_runtime_t *_Atomic rt; /* NULL: it ended before the pool */
    uint32_t fork_generation;   /* of the process that made it; up to here it can be read when it was freed */
    size_t max_bytes, arena_bytes;
    bool share, outlives;
    bool left;        /* nobody has it any more: it goes with the last buffer that is out */
    arena_t **arenas; /* by address */
    uint32_t n, cap;
    arena_t *last; /* the one a buffer was last given back to */
    uint32_t empty_slabs;
    wefti_list_t own_idle;
    wefti_list_t partial[CLASSES];
    wefti_list_t link; /* the room's */
    uint64_t held, used, used_bytes, gets, reused;
};

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
    uint32_t units = (uint32_t)((size + UNIT - 1) / UNIT);
    while (units < most && units * UNIT % size > units * UNIT / 8)
        units++;
    return units;
}

/* --- arenas ------------------------------------------------------------------------------------------------------------------- */

static arena_t *arena_at(weft_pool_t *pool, const char *ptr)
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
    wefti_list_remove(&s->link); /* an empty one has something to give */
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

static size_t trim(weft_pool_t *pool)
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
        trim(pool);
    if (pool->held + least > pool->max_bytes)
        return wefti_fail(WEFT_ERR_LIMIT, "the pool's arenas have %llu bytes, and with %zu more they would exceed max_bytes, %zu",
                          (unsigned long long)pool->held, least, pool->max_bytes);
    if (pool->held + want > pool->max_bytes) {
        want = pool->max_bytes - pool->held;
        want = own ? least : want / UNIT * UNIT;
    }
    if (pool->n == pool->cap) {
        uint32_t cap = pool->cap ? pool->cap * 2 : 8;
        arena_t **bigger = wefti_realloc(pool->arenas, cap * sizeof *bigger);
        if (!bigger)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory to write down an arena");
        pool->arenas = bigger;
        pool->cap = cap;
    }
    uint32_t units = own ? 0 : (uint32_t)(want / UNIT);
    arena_t *a = wefti_calloc(1, sizeof *a + units * sizeof a->slab_of[0]);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to write down an arena");
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
    uint32_t units = slab_units(size, (uint32_t)(pool->arena_bytes / UNIT));
    int64_t at;
    arena_t *a = find_units(pool, units, &at);
    if (!a && pool->empty_slabs) {
        for (uint32_t i = 0; i < pool->n; i++)
            drop_empty(pool, pool->arenas[i]);
        a = find_units(pool, units, &at);
    }
    if (!a) {
        weft_status_t st = open_arena(pool, units * UNIT, pool->arena_bytes, false, &a);
        if (st)
            return st;
        at = 0;
    }
    size_t count = units * UNIT / size;
    slab_t *s = wefti_calloc(1, sizeof *s + count * sizeof s->stack[0]);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to write down a slab");
    s->arena = a;
    s->base = a->mem.base + (size_t)at * UNIT;
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
    slab_t *s = a->slab_of[(size_t)(ptr - a->mem.base) / UNIT];
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

/* --- the calls -------------------------------------------------------------------------------------------------------------------- */

static weft_status_t fail_forked(void)
{
    return wefti_fail(WEFT_ERR_FORKED, "this process was forked after the pool was made; make a new one on a runtime of its own");
}

static bool in_child(const weft_pool_t *pool)
{
    return pool->fork_generation != wefti_fork_generation;
}

static bool is_open(const weft_pool_t *pool)
{
    return wefti_is_open(&pool->handle);
}

static weft_status_t fail_freed(void)
{
    return wefti_fail(WEFT_ERR_CLOSED, "the pool was freed");
}

weft_status_t weft_pool_get(weft_pool_t *pool, size_t n, void **ptr_out)
{
    uint32_t which = 0;
    if (!pool || !ptr_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s", pool ? "there is nowhere to put the pointer" : "the pool is NULL");
    if (__builtin_expect(in_child(pool), 0))
        return fail_forked();
    size_t size = n <= SIZE_MAX / 8 ? class_of(n, &which) : 0;
    weft_status_t st;
    pthread_mutex_lock(&pool->lock);
    if (!is_open(pool))
        st = fail_freed();
    else if (!size || n > pool->max_bytes)
        st = wefti_fail(WEFT_ERR_LIMIT, "a buffer of %zu bytes is more than the pool may have, max_bytes, %zu", n,
                        pool->max_bytes);
    else if (!pool->rt)
        st = wefti_fail(WEFT_ERR_CLOSED, "the runtime of this pool is closed");
    else if (size <= pool->arena_bytes / 2)
        st = get_small(pool, size, which, ptr_out);
    else
        st = get_own(pool, n, size, ptr_out);
    if (!st) {
        pool->used++;
        pool->gets++;
    }
    pthread_mutex_unlock(&pool->lock);
    return st;
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_pool_t, fork_generation);

/* It has no buffer out and is on no list. With its lock: from here on it is closed. */
static void shut(weft_pool_t *pool)
{
    trim(pool);
    wefti_free(pool->arenas);
    pool->arenas = NULL;
    atomic_store(&pool->handle.open, 0);
}

void weft_pool_put(weft_pool_t *pool, void *ptr)
{
    if (!pool || !ptr || in_child(pool))
        return;
    pthread_mutex_lock(&pool->lock);
    if (!is_open(pool)) {
        pthread_mutex_unlock(&pool->lock);
        return; /* its memory is gone, and this with it */
    }
    arena_t *a = arena_at(pool, ptr);
    bool was_out = a && (a->own ? put_own(pool, a, ptr) : put_small(pool, a, ptr));
    pool->used -= was_out;
    if (was_out)
        pool->last = a;
    bool over = was_out && pool->left && !pool->used;
    if (over)
        shut(pool);
    pthread_mutex_unlock(&pool->lock);
    if (over)
        wefti_handle_free(&handles, pool);
    if (!was_out) {
        wefti_error("mem: %p was given back to a pool that has no such buffer out%s", ptr,
                    a ? ": it was given back before, or points into one" : "");
        assert(!"given back to a pool that has no such buffer out");
    }
}

size_t weft_pool_trim(weft_pool_t *pool)
{
    if (!pool || in_child(pool))
        return 0;
    pthread_mutex_lock(&pool->lock);
    size_t n = is_open(pool) ? trim(pool) : 0;
    pthread_mutex_unlock(&pool->lock);
    return n;
}

void weft_pool_get_stats(weft_pool_t *pool, weft_pool_stats_t *stats_out)
{
    if (!pool || !stats_out || in_child(pool))
        return;
    weft_pool_stats_t s = {.size = 0};
    pthread_mutex_lock(&pool->lock);
    if (is_open(pool))
        s = (weft_pool_stats_t){.arenas = pool->n,
                                .arena_bytes = pool->held,
                                .used = pool->used,
                                .used_bytes = pool->used_bytes,
                                .gets = pool->gets,
                                .reused = pool->reused};
    pthread_mutex_unlock(&pool->lock);
    s.size = stats_out->size;
    if (stats_out->size > sizeof s)
        memset((char *)stats_out + sizeof s, 0, stats_out->size - sizeof s);
    memcpy(stats_out, &s, stats_out->size < sizeof s ? stats_out->size : sizeof s);
}

/* --- the pool as a kind ------------------------------------------------------------------------------------------------------------ */

static weft_pool_t *pool_of(const weft_mem_kind_t *kind)
{
    return kind->user;
}

static weft_status_t kind_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    return weft_pool_get(pool_of(kind), n, ptr_out);
}

static void kind_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)n;
    weft_pool_put(pool_of(kind), ptr);
}

static weft_status_t kind_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    const weft_mem_kind_t *base = pool_of(kind)->base;
    return base->copy(base, dst, src, n);
}

static bool kind_owns(const weft_mem_kind_t *kind, const void *ptr)
{
    weft_pool_t *pool = pool_of(kind);
    if (in_child(pool))
        return false;
    pthread_mutex_lock(&pool->lock);
    bool ours = is_open(pool) && arena_at(pool, ptr) != NULL;
    pthread_mutex_unlock(&pool->lock);
    return ours;
}

bool wefti_pool_is_kind(const weft_mem_kind_t *kind)
{
    return kind->alloc == kind_alloc;
}

const weft_mem_kind_t *wefti_pool_base_kind(const weft_mem_kind_t *kind)
{
    while (wefti_pool_is_kind(kind))
        kind = pool_of(kind)->base;
    return kind;
}

const weft_mem_kind_t *weft_pool_kind(weft_pool_t *pool)
{
    return pool && is_open(pool) ? &pool->kind : NULL;
}

/* --- making and freeing ------------------------------------------------------------------------------------------------------------- */

static weft_status_t check(weft_pool_opts_t *o)
{
    if (!o->kind)
        o->kind = weft_mem_host();
    if (!o->max_bytes)
        o->max_bytes = MAX_DEFAULT;
    if (!o->arena_bytes)
        o->arena_bytes = ARENA_DEFAULT < o->max_bytes ? ARENA_DEFAULT : o->max_bytes;
    if (o->max_bytes < UNIT || o->max_bytes > SIZE_MAX / 8)
        return wefti_fail(WEFT_ERR_INVALID, "max_bytes of a pool is %zu; it takes 64 KiB at least", o->max_bytes);
    if (o->arena_bytes > o->max_bytes)
        return wefti_fail(WEFT_ERR_INVALID, "arena_bytes of a pool is %zu, more than its max_bytes, %zu", o->arena_bytes,
                          o->max_bytes);
    size_t units = o->arena_bytes < UNIT ? 1 : o->arena_bytes / UNIT;
    if (units > UINT32_MAX / 2)
        return wefti_fail(WEFT_ERR_INVALID, "arena_bytes of a pool is %zu; at most 128 TiB can be in one piece", o->arena_bytes);
    o->arena_bytes = units * UNIT;
    return WEFT_OK;
}

/* A pool that nobody knows of yet, and that is on no list. */
static weft_pool_t *pool_make(weft_runtime_t *rt, const weft_pool_opts_t *o)
{
    weft_pool_t *pool = wefti_handle_take(&handles);
    if (!pool)
        return NULL;
    if (pool->handle.uses == 1)
        pthread_mutex_init(&pool->lock, NULL); /* once: who is late may hold it */
    pthread_mutex_lock(&pool->lock);
    memset(&pool->kind, 0, sizeof *pool - offsetof(weft_pool_t, kind));
    pool->kind = (weft_mem_kind_t){
        .size = sizeof pool->kind,
        .name = "pool",
        .flags = o->kind->flags,
        .user = pool,
        .alloc = kind_alloc,
        .free = kind_free,
        .copy = o->kind->copy ? kind_copy : NULL,
        .owns = kind_owns,
    };
    pool->rt = rt;
    pool->fork_generation = wefti_fork_generation;
    pool->base = o->kind;
    pool->max_bytes = o->max_bytes;
    pool->arena_bytes = o->arena_bytes;
    pool->share = !o->unshared;
    pool->outlives = o->outlives;
    wefti_list_init(&pool->own_idle);
    for (uint32_t i = 0; i < CLASSES; i++)
        wefti_list_init(&pool->partial[i]);
    atomic_store(&pool->handle.open, 1);
    pthread_mutex_unlock(&pool->lock);
    return pool;
}

weft_status_t weft_pool_new(weft_runtime_t *rt, const weft_pool_opts_t *opts, weft_pool_t **pool_out)
{
    weft_pool_opts_t o;
    if (!rt || !pool_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s", rt ? "there is nowhere to put the pool" : "the runtime is NULL");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_pool_opts_t");
    if (!st)
        st = check(&o);
    if (!st)
        st = wefti_join(rt);
    if (st)
        return st;
    weft_pool_t *pool = pool_make(rt, &o);
    if (pool) {
        wefti_mem_t *m = wefti_mem_room(rt);
        pthread_mutex_lock(&m->lock);
        wefti_list_push_back(&m->pools, &pool->link);
        pthread_mutex_unlock(&m->lock);
        *pool_out = pool;
    }
    wefti_part(rt);
    return pool ? WEFT_OK : wefti_fail(WEFT_ERR_NOMEM, "no memory for a pool");
}

/* A child lets go of its own copy: mappings, descriptors, what was written down. The fabric that knows of the arenas is the parent's, and so is
 * a device's memory; the lock may be held by a thread that is not here. */
static weft_status_t free_in_child(weft_pool_t *pool)
{
    if (!atomic_exchange(&pool->handle.open, 0))
        return fail_forked();
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
    pthread_mutex_init(&pool->lock, NULL);
    wefti_handle_free(&handles, pool);
    return fail_forked();
}

/* *listed_out: its runtime still has it on its list. */
static weft_status_t shut_if_whole(weft_pool_t *pool, bool *listed_out)
{
    weft_status_t st = WEFT_OK;
    pthread_mutex_lock(&pool->lock);
    *listed_out = pool->rt;
    if (!is_open(pool))
        st = fail_freed();
    else if (pool->used)
        st = wefti_fail(WEFT_ERR_STATE, "%llu buffers of the pool are out: give them back first", (unsigned long long)pool->used);
    else
        shut(pool);
    pthread_mutex_unlock(&pool->lock);
    return st;
}

weft_status_t weft_pool_free(weft_pool_t *pool)
{
    if (!pool)
        return WEFT_OK;
    if (in_child(pool))
        return free_in_child(pool);
    if (!is_open(pool))
        return fail_freed();
    bool listed;
    weft_status_t st;
    weft_runtime_t *rt = pool->rt;
    if (rt && !wefti_join(rt)) {
        wefti_mem_t *m = wefti_mem_room(rt);
        pthread_mutex_lock(&m->lock);
        st = shut_if_whole(pool, &listed);
        if (!st)
            wefti_list_remove(&pool->link);
        listed = false;
        pthread_mutex_unlock(&m->lock);
        wefti_part(rt);
    } else {
        st = shut_if_whole(pool, &listed);
    }
    if (!st && !listed) /* else its runtime ends just now, and does it when it comes to it */
        wefti_handle_free(&handles, pool);
    return st;
}

/* Its runtime ends. With that lock, so that it is on the list or not. */
static void cut(weft_pool_t *pool)
{
    for (uint32_t i = 0; i < pool->n; i++)
        wefti_arena_unshare(&pool->arenas[i]->mem, pool->rt);
    pool->rt = NULL;
}

void wefti_pool_leave(weft_pool_t *pool)
{
    if (!pool)
        return;
    if (in_child(pool)) {
        (void)free_in_child(pool);
        return;
    }
    wefti_mem_t *m = wefti_mem_room(pool->rt);
    pthread_mutex_lock(&m->lock);
    wefti_list_remove(&pool->link);
    pthread_mutex_lock(&pool->lock);
    cut(pool);
    pool->left = true;
    bool over = !pool->used;
    if (over)
        shut(pool);
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&m->lock);
    if (over)
        wefti_handle_free(&handles, pool);
}

void wefti_pools_cut(wefti_mem_t *m)
{
    unsigned n = 0;
    pthread_mutex_lock(&m->lock);
    for (wefti_list_t *it; (it = wefti_list_pop(&m->pools));) {
        weft_pool_t *pool = wefti_container_of(it, weft_pool_t, link);
        pthread_mutex_lock(&pool->lock);
        bool open = is_open(pool);
        n += open && !pool->outlives;
        cut(pool);
        pthread_mutex_unlock(&pool->lock);
        if (!open)
            wefti_handle_free(&handles, pool);
    }
    pthread_mutex_unlock(&m->lock);
    if (n)
        wefti_warn("mem: a runtime is closed before %u of its pools: they give nothing out any more; free them first", n);
}
