/* tests/sim/lib/heap_count.c - malloc and free with a count, over glibc's own. */
#include "heap_count.h"

#include <errno.h>
#include <stddef.h>

#if defined(HEAP_COUNT_SANITIZED) || !defined(__GLIBC__)

long heap_count(void)
{
    return 0;
}

#else

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t count, size_t n);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

void *malloc(size_t n);
void *calloc(size_t count, size_t n);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t align, size_t n);
int posix_memalign(void **out, size_t align, size_t n);
void free(void *p);

static long blocks;

long heap_count(void)
{
    return __atomic_load_n(&blocks, __ATOMIC_RELAXED);
}

static void *counted(void *p)
{
    if (p)
        __atomic_fetch_add(&blocks, 1, __ATOMIC_RELAXED);
    return p;
}

void *malloc(size_t n)
{
    return counted(__libc_malloc(n));
}
void *calloc(size_t count, size_t n)
{
    return counted(__libc_calloc(count, n));
}
void *aligned_alloc(size_t align, size_t n)
{
    return counted(__libc_memalign(align, n));
}

void *realloc(void *p, size_t n)
{
    void *q = __libc_realloc(p, n);
    if (!p)
        counted(q);
    else if (!q && !n)
        __atomic_fetch_sub(&blocks, 1, __ATOMIC_RELAXED);
    return q;
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = counted(__libc_memalign(align, n));
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p)
{
    if (p)
        __atomic_fetch_sub(&blocks, 1, __ATOMIC_RELAXED);
    __libc_free(p);
}

#endif
