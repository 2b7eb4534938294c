/* base/alloc.h - memory from one place, so that tests can make it run out anywhere. */
#ifndef WEFTI_ALLOC_H
#define WEFTI_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Tests set this: return nonzero to make an allocation of n bytes fail. NULL (the default): never asked. */
extern int (*wefti_alloc_fails)(size_t n);

static inline void *wefti_malloc(size_t n)
{
    return __builtin_expect(wefti_alloc_fails != NULL, 0) && wefti_alloc_fails(n) ? NULL : malloc(n);
}
static inline void *wefti_calloc(size_t count, size_t n)
{
    return __builtin_expect(wefti_alloc_fails != NULL, 0) && wefti_alloc_fails(n) ? NULL : calloc(count, n);
}
static inline void *wefti_realloc(void *p, size_t n)
{
    return __builtin_expect(wefti_alloc_fails != NULL, 0) && wefti_alloc_fails(n) ? NULL : realloc(p, n);
}
static inline void *wefti_aligned_alloc(size_t align, size_t n)
{
    void *p;
    if (__builtin_expect(wefti_alloc_fails != NULL, 0) && wefti_alloc_fails(n))
        return NULL;
    return posix_memalign(&p, align, n) ? NULL : p;
}
char *wefti_strdup(const char *s);
/* *array (a pointer to *cap elements of `size` bytes) is to hold n: make it longer if it is shorter. False: no memory, and it is
 * as it was. */
bool wefti_grow(void *array, size_t *cap, size_t n, size_t size);
static inline void wefti_free(void *p) { free(p); }

#endif
