/* base/heap.h - a 4-ary heap of pointers to intrusive nodes, keyed by a 64-bit number: timers live in one. */
#ifndef WEFTI_HEAP_H
#define WEFTI_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

typedef struct wefti_heap_node {
    uint64_t key;
    size_t slot; /* index + 1 in the heap; 0 when in none */
} wefti_heap_node_t;

typedef struct wefti_heap {
    wefti_heap_node_t **at;
    size_t n, cap;
} wefti_heap_t;

void wefti_heap_free(wefti_heap_t *h); /* the array, not the nodes */
/* Insert with node->key set. WEFT_ERR_NOMEM leaves the heap as it was. Equal keys leave in any order. */
weft_status_t wefti_heap_insert(wefti_heap_t *h, wefti_heap_node_t *node);
void wefti_heap_remove(wefti_heap_t *h, wefti_heap_node_t *node); /* one that is in no heap is left alone */
static inline wefti_heap_node_t *wefti_heap_min(const wefti_heap_t *h) { return h->n ? h->at[0] : NULL; }
static inline bool wefti_heap_linked(const wefti_heap_node_t *node) { return node->slot != 0; }

#endif
