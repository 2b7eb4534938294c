/* mem/arena.c - where a pool's memory comes from: memfds that peers may map, or whatever the kind allocates.
 *
 * An arena of host memory that may be shared is a memfd (memfd.c), which others can only read. The fabric is told of it; the
 * fabric decides which peers get to know. Where CUDA is in use it is page-locked too, so that a GPU's engine copies from and
 * to it directly.
 *
 * Promise: a failed open leaves nothing behind. tests/unit/mem_pool.c. */
#include <sys/mman.h>

#include "mem/local.h"

weft_status_t wefti_arena_open(wefti_arena_t *a, weft_runtime_t *rt, const weft_mem_kind_t *kind, size_t n, bool share)
{
    wefti_fabric_t *f = rt->fabric;
    weft_status_t st;
    void *base;
    *a = (wefti_arena_t){.kind = kind, .fd = -1};
    a->n = n;
    if (kind == &wefti_mem_kind_host && share) {
        st = wefti_memfd_open(&a->memfd, "weft-pool", n, true);
        if (!st) {
            a->base = a->memfd.base;
            a->fd = a->memfd.fd;
            (void)madvise(a->base, n, MADV_HUGEPAGE); /* where the system lets shared memory have them */
        }
    } else {
        st = weft_mem_alloc(kind, n, &base);
        if (!st)
            a->base = base;
    }
    if (st)
        return st;
    if (kind == &wefti_mem_kind_host || kind == &wefti_mem_kind_huge)
        a->pinned = wefti_cuda_pin(a->base, n);
    if (a->fd >= 0 && f->ops->share) {
        st = f->ops->share(f, a->base, n, a->fd, &a->share_id);
        if (st) /* its payloads are copied like any other */
            wefti_info("mem: an arena of %zu bytes is not shared with peers: %s", n, weft_last_error());
        a->shared = !st;
    }
    return WEFT_OK;
}

void wefti_arena_unshare(wefti_arena_t *a, weft_runtime_t *rt)
{
    if (a->shared)
        rt->fabric->ops->unshare(rt->fabric, a->share_id);
    a->shared = false;
}

void wefti_arena_close(wefti_arena_t *a)
{
    if (a->pinned)
        wefti_cuda_unpin(a->base);
    if (a->fd >= 0) {
        wefti_memfd_close(&a->memfd);
    } else {
        weft_mem_free(a->kind, a->base, a->n);
    }
}
