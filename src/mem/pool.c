/* mem/pool.c - pools: memory to be used again and again. What is in them is slab.c's.
 *
 * A pointer that is not out is refused: an error in the log, and an assertion where those are on.
 *
 * One lock per pool, which stays with the memory of the pool (base/handle.h): a call with a pool that was freed finds it closed. In a
 * forked child the pool is the parent's: it gives nothing out and takes nothing back. tests/unit/mem_pool.c. */
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "mem/pool.h"

#define MAX_DEFAULT ((size_t)4 << 30)
#define ARENA_DEFAULT ((size_t)16 << 20)

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_pool_t, fork_generation);

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
    if (!pool || !ptr_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s", pool ? "there is nowhere to put the pointer" : "the pool is NULL");
    if (__builtin_expect(in_child(pool), 0))
        return fail_forked();
    weft_status_t st;
    pthread_mutex_lock(&pool->lock);
    if (!is_open(pool))
        st = fail_freed();
    else if (!pool->rt)
        st = wefti_fail(WEFT_ERR_CLOSED, "the runtime of this pool is closed");
    else
        st = wefti_slab_get(pool, n, ptr_out);
    if (!st) {
        pool->used++;
        pool->gets++;
    }
    pthread_mutex_unlock(&pool->lock);
    return st;
}

/* It has no buffer out and is on no list. With its lock: from here on it is closed. */
static void shut(weft_pool_t *pool)
{
    wefti_slab_trim(pool);
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
        return; /* its memory is gone, and the buffer with it */
    }
    arena_t *a = wefti_slab_arena_at(pool, ptr);
    bool was_out = a && wefti_slab_put(pool, a, ptr);
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
    size_t n = is_open(pool) ? wefti_slab_trim(pool) : 0;
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
    wefti_opts_write(stats_out, &s, sizeof s);
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
    bool ours = is_open(pool) && wefti_slab_arena_at(pool, ptr) != NULL;
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
    if (o->max_bytes < WEFTI_POOL_UNIT || o->max_bytes > SIZE_MAX / 8)
        return wefti_fail(WEFT_ERR_INVALID, "max_bytes of a pool is %zu; it takes 64 KiB at least", o->max_bytes);
    if (o->arena_bytes > o->max_bytes)
        return wefti_fail(WEFT_ERR_INVALID, "arena_bytes of a pool is %zu, more than its max_bytes, %zu", o->arena_bytes,
                          o->max_bytes);
    size_t units = o->arena_bytes < WEFTI_POOL_UNIT ? 1 : o->arena_bytes / WEFTI_POOL_UNIT;
    if (units > UINT32_MAX / 2)
        return wefti_fail(WEFT_ERR_INVALID, "arena_bytes of a pool is %zu; at most 128 TiB can be in one piece", o->arena_bytes);
    o->arena_bytes = units * WEFTI_POOL_UNIT;
    return WEFT_OK;
}

/* A new pool, on no list yet. */
static weft_pool_t *pool_make(weft_runtime_t *rt, const weft_pool_opts_t *o)
{
    weft_pool_t *pool = wefti_handle_take(&handles);
    if (!pool)
        return NULL;
    if (pool->handle.uses == 1)
        pthread_mutex_init(&pool->lock, NULL); /* once: a thread that comes too late may hold it */
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
    for (uint32_t i = 0; i < WEFTI_POOL_CLASSES; i++)
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

/* A child frees its own copy. The fabric that knows of the arenas is the parent's, and so is a device's memory; the lock may be held by a
 * thread that is not here. */
static weft_status_t free_in_child(weft_pool_t *pool)
{
    if (!atomic_exchange(&pool->handle.open, 0))
        return fail_forked();
    wefti_slab_forget(pool);
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
    if (!st && !listed) /* else its runtime ends just now, and frees it */
        wefti_handle_free(&handles, pool);
    return st;
}

/* Its runtime ends. With the lock of the runtime's list, too. */
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
