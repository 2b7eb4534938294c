/* mem/bounce.c - bounce buffers: device memory of our own that peers can be let have, for payloads in memory that they cannot.
 *
 * Memory of a CUDA pool, memory that was mapped by hand, managed and page-locked host memory cannot be exported. It is copied
 * to a bounce buffer first, and the peer copies out of that. Processes that share a GPU take turns of some 0.3 ms on it, so a
 * buffer is large and few are needed: WEFTI_BOUNCE_MAX of wefti_bounce_bytes for a runtime. They are made when they are needed,
 * and given back to the device when they were idle for KEEP, for it is the program's memory that they take.
 *
 * Promise: a buffer has one owner at a time. tests/unit/mem_carry.c. */
#include "base/alloc.h"
#include "mem/local.h"

#define KEEP WEFT_SECOND

size_t wefti_bounce_bytes = (size_t)64 << 20;

static void on_sweep(wefti_timer_t *t)
{
    wefti_bounces_t *all = wefti_container_of(t, wefti_bounces_t, timer);
    bool more = false;
    wefti_cuda_put_off_done();
    for (unsigned i = 0; i < WEFTI_BOUNCE_MAX; i++) {
        wefti_bounce_t *b = &all->at[i];
        if (!b->mem || b->out)
            continue;
        if (all->rt->now - b->idle_since >= KEEP && wefti_mem_calm()) {
            weft_mem_free(&wefti_mem_kind_cuda, b->mem, b->n);
            b->mem = NULL;
        } else {
            more = true;
        }
    }
    if (more)
        (void)wefti_timer_at(all->rt, &all->timer, all->rt->now + KEEP);
}

void wefti_bounces_init(wefti_bounces_t *all, weft_runtime_t *rt)
{
    all->rt = rt;
    all->timer.fn = on_sweep;
}

void wefti_bounces_close(wefti_bounces_t *all)
{
    for (unsigned i = 0; i < WEFTI_BOUNCE_MAX; i++)
        if (all->at[i].mem && !all->at[i].out)
            weft_mem_free(&wefti_mem_kind_cuda, all->at[i].mem, all->at[i].n);
        else if (all->at[i].mem)
            wefti_error("mem: a runtime ends with a bounce buffer still out");
}

/* A free one that fits, and then one on the right device; -1: none. */
static int find(const wefti_bounces_t *all, int device, bool with_memory)
{
    for (int i = 0; i < (int)WEFTI_BOUNCE_MAX; i++) {
        const wefti_bounce_t *b = &all->at[i];
        if (b->out || (with_memory && (!b->mem || b->n < wefti_bounce_bytes || b->device != device)))
            continue;
        return i;
    }
    return -1;
}

void *wefti_bounce_get(weft_runtime_t *rt, const void *near, size_t *n_out)
{
    wefti_bounces_t *all = &wefti_mem_of(rt)->bounces;
    int device = wefti_cuda_device_of(near), i = find(all, device, true);
    if (i < 0) {
        i = find(all, device, false);
        if (i < 0)
            return NULL;
        wefti_bounce_t *b = &all->at[i];
        if (b->mem)
            weft_mem_free(&wefti_mem_kind_cuda, b->mem, b->n);
        b->mem = wefti_cuda_alloc_on(device, wefti_bounce_bytes);
        if (!b->mem)
            return NULL;
        b->n = wefti_bounce_bytes;
        b->device = device;
    }
    all->at[i].out = true;
    *n_out = all->at[i].n;
    return all->at[i].mem;
}

void wefti_bounce_put(weft_runtime_t *rt, void *mem)
{
    wefti_bounces_t *all = &wefti_mem_of(rt)->bounces;
    for (unsigned i = 0; i < WEFTI_BOUNCE_MAX; i++)
        if (all->at[i].mem == mem) {
            all->at[i].out = false;
            all->at[i].idle_since = rt->now;
        }
    if (!wefti_heap_linked(&all->timer.node))
        (void)wefti_timer_at(rt, &all->timer, rt->now + KEEP);
}
