/* base/alloc.c - the switch with which tests make memory run out, and the one allocation helper that is not inline.
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
