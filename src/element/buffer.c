/* element/buffer.c - buffers: memory that transports and programs share, freed with the last reference.
 *
 * Buffers come from a pool of the action, so that peers on this host can read them in place. A buffer keeps the pool, and the
 * pool does not need the runtime: a program may have pointers into a buffer, in a numpy array, long after everything else is
 * closed.
 *
 * A server's memory can be held in the same manner: then it stays when its region ends, private to this process.
 *
 * Promise: a buffer is zero when it is made, and stays where it is until the last hold on it is dropped.
 * tests/wire/element_basic.c. */
#include <sys/mman.h>

#include "element/state.h"

/* Buffers of more than this have a pool and an arena of their own, which is fresh from the system, and zero: nobody has to touch
 * all of it first. They go back there at once. */
enum { ARENA = 16 << 20, OWN = ARENA / 2 };

static weft_status_t pool_new(weft_runtime_t *rt, element_pool_t **pool_out)
{
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    element_pool_t *p = (element_pool_t *)wefti_calloc(1, sizeof *p);
    if (!p)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for buffers");
    o.max_bytes = SIZE_MAX / 8;
    o.arena_bytes = ARENA;
    o.outlives = true;
    weft_status_t st = weft_pool_new(rt, &o, &p->pool);
    if (st) {
        wefti_free(p);
        return st;
    }
    atomic_init(&p->refs, 1);
    *pool_out = p;
    return WEFT_OK;
}

void wefti_element_pool_unref(element_pool_t *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    weft_pool_free(p->pool);
    wefti_free(p);
}

static weft_status_t get(element_pool_t *pool, size_t len, void **base_out)
{
    if (len > SIZE_MAX / 16)
        return weft_fail(WEFT_ERR_NOMEM, "no machine has %zu bytes for a buffer", len);
    weft_status_t st = weft_pool_get(pool->pool, len, base_out);
    if (!st && len <= OWN)
        memset(*base_out, 0, len);
    return st == WEFT_ERR_LIMIT || st == WEFT_ERR_SYSTEM ? WEFT_ERR_NOMEM : st; /* in each case memory is missing */
}

/* A pool for a buffer of that length, with a reference: the action's, which is made with the first buffer, or one of its own. */
static weft_status_t pool_for(weft_action_t *a, size_t len, element_pool_t **pool_out)
{
    weft_status_t st = WEFT_OK;
    if (len > OWN)
        return pool_new(a->rt, pool_out);
    pthread_mutex_lock(&a->lock);
    if (!a->pool)
        st = pool_new(a->rt, &a->pool);
    if (!st)
        atomic_fetch_add_explicit(&a->pool->refs, 1, memory_order_relaxed);
    *pool_out = a->pool;
    pthread_mutex_unlock(&a->lock);
    return st;
}

weft_status_t wefti_element_buffer_new(weft_action_t *a, size_t len, weft_buffer_t **buffer_out)
{
    void *base;
    weft_buffer_t *b = (weft_buffer_t *)wefti_calloc(1, sizeof *b);
    if (!b)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a buffer");
    weft_status_t st = pool_for(a, len, &b->pool);
    if (!st)
        st = get(b->pool, len, &base);
    if (st) {
        wefti_element_pool_unref(b->pool);
        wefti_free(b);
        return st;
    }
    atomic_init(&b->refs, 1);
    b->base = (uint8_t *)base;
    b->len = len;
    *buffer_out = b;
    return WEFT_OK;
}

weft_buffer_t *wefti_element_buffer_of(weft_region_t *region, size_t len)
{
    weft_buffer_t *b = (weft_buffer_t *)wefti_calloc(1, sizeof *b);
    if (!b || weft_region_keep(region, &b->map, &b->map_len)) {
        wefti_free(b);
        return NULL;
    }
    atomic_init(&b->refs, 1);
    b->base = (uint8_t *)weft_region_base(region);
    b->len = len;
    return b;
}

void weft_buffer_hold(weft_buffer_t *buffer)
{
    if (buffer)
        atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
}

void weft_buffer_drop(weft_buffer_t *buffer)
{
    if (!buffer || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1)
        return;
    element_pool_t *pool = buffer->pool;
    if (pool)
        weft_pool_put(pool->pool, buffer->base);
    else
        munmap(buffer->map, buffer->map_len);
    wefti_element_pool_unref(pool);
    wefti_free(buffer);
}

void *weft_buffer_base(const weft_buffer_t *buffer)
{
    return buffer ? buffer->base : NULL;
}

size_t weft_buffer_len(const weft_buffer_t *buffer)
{
    return buffer ? buffer->len : 0;
}

size_t weft_buffer_holds(const weft_buffer_t *buffer)
{
    return buffer ? atomic_load_explicit(&buffer->refs, memory_order_acquire) : 0;
}
