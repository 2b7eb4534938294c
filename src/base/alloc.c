/* base/alloc.c - the switch with which tests make memory run out, and the helpers that are not inline.
 *
 * wefti_alloc_fails belongs to tests: set before the first thread starts, called on every allocation, never set by the library.
 *
 * Promise: an allocation that is told to fail looks to its caller exactly like one for which there was no memory.
 * tests/unit/base_heap.c, base_map.c, base_slots.c and base_config.c use it to hold the rooms to "NOMEM leaves things as they
 * were". */
#include "base/alloc.h"

#include <string.h>

int (*wefti_alloc_fails)(size_t n);

char *wefti_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = wefti_malloc(n);
    if (copy)
        memcpy(copy, s, n);
    return copy;
}

bool wefti_grow(void *array, size_t *cap, size_t n, size_t size)
{
    void *old, *longer;
    if (n <= *cap)
        return true;
    size_t twice = n < 8 ? 16 : 2 * n;
    memcpy(&old, array, sizeof old);
    longer = wefti_realloc(old, twice * size);
    if (!longer)
        return false;
    memcpy(array, &longer, sizeof longer);
    *cap = twice;
    return true;
}
