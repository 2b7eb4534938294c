/* mem/host.c - the kinds of ordinary memory: host, huge, pinned.
 *
 *     host     malloc, aligned to 64
 *     huge     pages of 2 MiB: reserved ones while there are any, else transparent ones, as far as the kernel has them
 *     pinned   locked pages: by CUDA once that is in use, so that its engine can copy from and to them, else by mlock(). Where
 *              the limit on locked memory forbids that, they are ordinary pages, and the log says so once
 *
 * huge and pinned are mmap()ed, with the length rounded up in the same way by alloc and by free. There is no record of an
 * allocation: unmapping undoes everything but page-locking by CUDA, which CUDA knows itself.
 *
 * Promise: an allocation that fails leaves nothing behind. tests/unit/mem_kind.c. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "mem/local.h"

#define HUGE_PAGE ((size_t)2 << 20)

static weft_status_t no_memory(const char *what, size_t n)
{
    return wefti_fail(WEFT_ERR_NOMEM, "no memory for %zu bytes of the kind %s", n, what);
}

/* --- host ------------------------------------------------------------------------------------------------------------------- */

static weft_status_t host_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    (void)kind;
    void *p = wefti_aligned_alloc(64, n);
    if (!p)
        return no_memory("host", n);
    *ptr_out = p;
    return WEFT_OK;
}

static void host_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)kind;
    (void)n;
    wefti_free(ptr);
}

const weft_mem_kind_t wefti_mem_kind_host = {
    .size = sizeof(weft_mem_kind_t),
    .name = "host",
    .flags = WEFT_MEM_CPU,
    .alloc = host_alloc,
    .free = host_free,
};

/* --- huge and pinned -------------------------------------------------------------------------------------------------------- */

/* mmap() at a multiple of HUGE_PAGE: a transparent huge page has to begin at one. */
static void *map_aligned(size_t n)
{
    size_t all = n + HUGE_PAGE;
    void *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return MAP_FAILED;
    uintptr_t from = (uintptr_t)p, at = (from + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    if (at > from)
        munmap((void *)from, at - from);
    if (at + n < from + all)
        munmap((void *)(at + n), from + all - at - n);
    return (void *)at;
}

static void *map_huge(size_t n)
{
    /* An explicit size: with the system's default, which may be another one, unmapping would need multiples of that. */
    int two_mib = 21 << 26;
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | two_mib, -1, 0);
    if (p != MAP_FAILED)
        return p;
    p = map_aligned(n);
    if (p != MAP_FAILED && madvise(p, n, MADV_HUGEPAGE))
        wefti_debug("mem: this system has no transparent huge pages (%s): the kind huge is ordinary pages", strerror(errno));
    return p;
}

static void say_unlocked(size_t n, int err)
{
    static _Atomic uint32_t said;
    struct rlimit limit = {0};
    if (atomic_exchange(&said, 1))
        return;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    wefti_warn("mem: %zu bytes of the kind pinned are not locked in memory: %s; this process may lock %llu bytes (ulimit -l)", n,
               strerror(err), (unsigned long long)limit.rlim_cur);
}

/* What n bytes of the kind take. 0: they do not fit an address space. */
static size_t whole_pages(const weft_mem_kind_t *kind, size_t n)
{
    size_t page = kind == &wefti_mem_kind_huge ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
    return n > SIZE_MAX / 2 ? 0 : (n + page - 1) & ~(page - 1);
}

static weft_status_t map_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    bool huge = kind == &wefti_mem_kind_huge;
    size_t all = whole_pages(kind, n);
    /* Tests make this fail as they do malloc(). */
    if (!all || (__builtin_expect(wefti_alloc_fails != NULL, 0) && wefti_alloc_fails(n)))
        return no_memory(kind->name, n);
    void *p = huge ? map_huge(all) : mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return wefti_mem_fail_errno(errno, huge ? "the kind huge" : "the kind pinned", n);
    if (!huge && !wefti_cuda_pin(p, all) && mlock(p, all))
        say_unlocked(n, errno);
    *ptr_out = p;
    return WEFT_OK;
}

static void unpin_unmap(void *ptr, size_t n)
{
    wefti_cuda_unpin(ptr);
    munmap(ptr, n);
}

static void map_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    if (kind == &wefti_mem_kind_pinned && wefti_cuda_in_use())
        wefti_mem_when_calm(unpin_unmap, ptr, whole_pages(kind, n));
    else
        munmap(ptr, whole_pages(kind, n));
}

const weft_mem_kind_t wefti_mem_kind_huge = {
    .size = sizeof(weft_mem_kind_t),
    .name = "huge",
    .flags = WEFT_MEM_CPU,
    .alloc = map_alloc,
    .free = map_free,
};

const weft_mem_kind_t wefti_mem_kind_pinned = {
    .size = sizeof(weft_mem_kind_t),
    .name = "pinned",
    .flags = WEFT_MEM_CPU,
    .alloc = map_alloc,
    .free = map_free,
};
