/* base/spares.h - objects of one size that are kept to be used again, so that nothing is allocated in steady state. */
#ifndef WEFTI_SPARES_H
#define WEFTI_SPARES_H

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

/* Zeroed, it is empty. A spare object begins with the address of the next. */
typedef struct wefti_spares {
    void *first;
    uint32_t n;
} wefti_spares_t;

/* One of `size` bytes, which are not zeroed; NULL: no memory. */
static inline void *wefti_spares_get(wefti_spares_t *s, size_t size)
{
    void *p = s->first;
    if (!p)
        return wefti_malloc(size);
    memcpy(&s->first, p, sizeof s->first);
    s->n--;
    return p;
}

/* Keep it, unless there are `most` already. */
static inline void wefti_spares_put(wefti_spares_t *s, void *p, uint32_t most)
{
    if (s->n >= most) {
        wefti_free(p);
        return;
    }
    memcpy(p, &s->first, sizeof s->first);
    s->first = p;
    s->n++;
}

static inline void wefti_spares_free(wefti_spares_t *s)
{
    while (s->first)
        wefti_free(wefti_spares_get(s, 0));
}

#endif
