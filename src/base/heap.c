/* base/heap.c - a 4-ary heap over intrusive nodes.
 *
 * A node knows its place (slot), so that removing any node costs what removing the smallest does: O(log n). Four children a
 * node because the walk down then touches half the cache lines of a binary heap's, and timers are mostly removed, not run.
 *
 * States of a node: in no heap (slot 0), or in one heap at at[slot - 1]. Only insert and remove move it; the owner of the heap
 * calls them; there is no lock.
 *
 * Promise: at[0] has the smallest key; a failed insert changes nothing.
 * tests/unit/base_heap.c compares it with a sorted array over random operations. */
#include "base/heap.h"

#include <assert.h>

#include "base/alloc.h"

enum { ARITY = 4, FIRST_CAP = 16 };

static void place(wefti_heap_t *h, size_t i, wefti_heap_node_t *node)
{
    h->at[i] = node;
    node->slot = i + 1;
}

static void sift_up(wefti_heap_t *h, size_t i, wefti_heap_node_t *node)
{
    while (i) {
        size_t parent = (i - 1) / ARITY;
        if (h->at[parent]->key <= node->key)
            break;
        place(h, i, h->at[parent]);
        i = parent;
    }
    place(h, i, node);
}

static void sift_down(wefti_heap_t *h, size_t i, wefti_heap_node_t *node)
{
    for (;;) {
        size_t first = i * ARITY + 1, end = first + ARITY < h->n ? first + ARITY : h->n;
        if (first >= h->n)
            break;
        size_t least = first;
        for (size_t c = first + 1; c < end; c++)
            if (h->at[c]->key < h->at[least]->key)
                least = c;
        if (node->key <= h->at[least]->key)
            break;
        place(h, i, h->at[least]);
        i = least;
    }
    place(h, i, node);
}

void wefti_heap_free(wefti_heap_t *h)
{
    wefti_free(h->at);
    h->at = NULL;
    h->n = h->cap = 0;
}

weft_status_t wefti_heap_insert(wefti_heap_t *h, wefti_heap_node_t *node)
{
    assert(!wefti_heap_linked(node));
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : FIRST_CAP;
        if (cap > SIZE_MAX / sizeof *h->at)
            return WEFT_ERR_NOMEM;
        wefti_heap_node_t **at = wefti_realloc(h->at, cap * sizeof *at);
        if (!at)
            return WEFT_ERR_NOMEM;
        h->at = at;
        h->cap = cap;
    }
    sift_up(h, h->n++, node);
    return WEFT_OK;
}

void wefti_heap_remove(wefti_heap_t *h, wefti_heap_node_t *node)
{
    if (!wefti_heap_linked(node))
        return;
    size_t i = node->slot - 1;
    assert(i < h->n && h->at[i] == node);
    wefti_heap_node_t *last = h->at[--h->n];
    node->slot = 0;
    if (last == node)
        return;
    if (i && last->key < h->at[(i - 1) / ARITY]->key)
        sift_up(h, i, last);
    else
        sift_down(h, i, last);
}
