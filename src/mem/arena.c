/* mem/arena.c - where a pool's memory comes from: memfds that peers may map, or whatever the kind allocates.
 *
 * An arena of host memory that may be shared is a memfd, sealed so that it can never shrink: a peer that maps it cannot be hit by SIGBUS.
 * The fabric is told of it; it is the fabric's business which peers get to know. Where CUDA is in use it is page-locked too, so that a GPU's
 * engine copies from and to it directly.
 *
 * Fork: a shared mapping stays one memory in parent and child, and a child that writes to what it takes for its own copy of a
 * buffer would change the parent's message on its way. Keeping the range out of the child (MADV_DONTFORK) is no answer, since programs fork in
 * order to read what they have in memory. So the child maps each arena anew before fork() returns to it, at the same address and privately: what it
 * writes is its own from then on, and what it has not written still shows the parent's memory, as it is now and as it changes. A
 * child that needs a buffer as it was copies it first. Children that are not made by fork() (vfork, posix_spawn) run another program at once.
 *
 * Promise: a failed open leaves nothing behind; a child's writes never reach its parent. tests/unit/mem_pool.c holds us to both. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "mem/local.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* --- forks ------------------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* held for moments only: a fork waits for it */
static wefti_list_t all = {&all, &all};                      /* arenas with an fd, of all pools of the process */

static void before_fork(void)
{
    pthread_mutex_lock(&all_lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&all_lock);
}

static void in_child(void)
{
    wefti_list_each(it, &all) {
        const wefti_arena_t *a = wefti_container_of(it, wefti_arena_t, fork_link);
        /* nothing to be done if it fails: then it stays shared, and the child's own fault may reach the parent */
        void *same = mmap(a->base, a->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, a->fd, 0);
        (void)same;
    }
    pthread_mutex_unlock(&all_lock); /* the thread that forked has it, and is here */
}

static void watch_forks(void)
{
    if (pthread_atfork(before_fork, in_parent, in_child))
        wefti_error("no memory to notice forks: a forked child must not write to buffers of pools");
}

static void remember(wefti_arena_t *a)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&all_lock);
    wefti_list_push_back(&all, &a->fork_link);
    pthread_mutex_unlock(&all_lock);
}

static void forget(wefti_arena_t *a)
{
    pthread_mutex_lock(&all_lock);
    wefti_list_remove(&a->fork_link);
    pthread_mutex_unlock(&all_lock);
}

/* --- opening and closing ------------------------------------------------------------------------------------------------------ */

static weft_status_t open_memfd(wefti_arena_t *a, size_t n)
{
    weft_status_t st;
    if (wefti_alloc_fails && wefti_alloc_fails(n))
        return wefti_mem_fail_errno(ENOMEM, "pool memory", n);
    /* Kernels before 6.3 do not know NOEXEC; some after it insist on it. */
    int fd = memfd_create("weft-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("weft-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return wefti_mem_fail_errno(errno, "pool memory (memfd_create)", n);
    if (ftruncate(fd, (off_t)n) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        st = wefti_mem_fail_errno(errno, "pool memory (a memfd)", n);
        goto err_fd;
    }
    void *base = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        st = wefti_mem_fail_errno(errno, "pool memory (mapping it)", n);
        goto err_fd;
    }
    (void)madvise(base, n, MADV_HUGEPAGE); /* where the system lets shared memory have them */
    a->base = base;
    a->fd = fd;
    remember(a);
    return WEFT_OK;

err_fd:
    close(fd);
    return st;
}

weft_status_t wefti_arena_open(wefti_arena_t *a, weft_runtime_t *rt, const weft_mem_kind_t *kind, size_t n, bool share)
{
    wefti_fabric_t *f = rt->fabric;
    weft_status_t st;
    void *base;
    *a = (wefti_arena_t){.kind = kind, .fd = -1};
    a->n = n; /* before remember(): a fork may come */
    if (kind == &wefti_mem_kind_host && share) {
        st = open_memfd(a, n);
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
        if (st) /* then its payloads are copied as any other's */
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
        forget(a);
        munmap(a->base, a->n);
        close(a->fd);
    } else {
        weft_mem_free(a->kind, a->base, a->n);
    }
}
