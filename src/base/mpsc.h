/* base/mpsc.h - a lock-free list to which any thread adds and from which one thread takes everything at once, oldest first.
 *
 * Nodes are embedded in what is handed over. A node may be gone as soon as it was pushed: the pusher does not look at it
 * again. An empty list can be closed: every later push fails.
 *
 * Order: pushes of one thread come out in their order. Push and close are sequentially consistent, so that "push, then look
 * whether anyone takes" and "stop taking, then look whether anything was pushed" cannot both miss the other.
 * tests/unit/base_mpsc.c. */
#ifndef WEFTI_MPSC_H
#define WEFTI_MPSC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wefti_mpsc_node {
    _Atomic(struct wefti_mpsc_node *) next; /* older, while it is on the list */
} wefti_mpsc_node_t;

typedef struct wefti_mpsc {
    _Atomic(wefti_mpsc_node_t *) newest; /* NULL: empty; &wefti_mpsc_mark: closed */
} wefti_mpsc_t;

typedef enum wefti_mpsc_push { WEFTI_MPSC_CLOSED, WEFTI_MPSC_FIRST, WEFTI_MPSC_MORE } wefti_mpsc_push_t;

extern wefti_mpsc_node_t wefti_mpsc_mark; /* its address stands for "closed" */

/* Is there nothing to take? */
static inline bool wefti_mpsc_empty(const wefti_mpsc_t *q)
{
    const wefti_mpsc_node_t *n = atomic_load(&q->newest);
    return !n || n == &wefti_mpsc_mark;
}
/* One comparison less: a closed list counts as not empty. */
static inline bool wefti_mpsc_empty_and_open(const wefti_mpsc_t *q) { return !atomic_load(&q->newest); }
/* The same with a relaxed load, for fast paths: may be true for a moment after a push of another thread. A closed list counts
 * as not empty. */
static inline bool wefti_mpsc_seems_empty(const wefti_mpsc_t *q)
{
    return !atomic_load_explicit(&q->newest, memory_order_relaxed);
}

/* FIRST: the list was empty. CLOSED: nothing was done. */
static inline wefti_mpsc_push_t wefti_mpsc_push(wefti_mpsc_t *q, wefti_mpsc_node_t *node)
{
    wefti_mpsc_node_t *head = atomic_load_explicit(&q->newest, memory_order_relaxed);
    do {
        if (head == &wefti_mpsc_mark)
            return WEFTI_MPSC_CLOSED;
        atomic_store_explicit(&node->next, head, memory_order_relaxed);
    } while (!atomic_compare_exchange_weak_explicit(&q->newest, &head, node, memory_order_seq_cst, memory_order_relaxed));
    return head ? WEFTI_MPSC_MORE : WEFTI_MPSC_FIRST;
}

static inline wefti_mpsc_node_t *wefti_mpsc_next(const wefti_mpsc_node_t *n)
{
    return atomic_load_explicit(&((wefti_mpsc_node_t *)(uintptr_t)n)->next, memory_order_relaxed);
}

/* Everything, oldest first, linked by wefti_mpsc_next(); NULL: nothing. */
static inline wefti_mpsc_node_t *wefti_mpsc_take(wefti_mpsc_t *q)
{
    wefti_mpsc_node_t *newest = atomic_load_explicit(&q->newest, memory_order_relaxed), *oldest = NULL;
    if (!newest || newest == &wefti_mpsc_mark)
        return NULL;
    newest = atomic_exchange(&q->newest, NULL);
    while (newest) {
        wefti_mpsc_node_t *older = wefti_mpsc_next(newest);
        atomic_store_explicit(&newest->next, oldest, memory_order_relaxed);
        oldest = newest;
        newest = older;
    }
    return oldest;
}

/* Close it if it is empty; false: there is something to take first. By the taker. */
static inline bool wefti_mpsc_close(wefti_mpsc_t *q)
{
    wefti_mpsc_node_t *none = NULL;
    return atomic_compare_exchange_strong(&q->newest, &none, &wefti_mpsc_mark) || none == &wefti_mpsc_mark;
}

/* Open it again. No other thread may know it yet. */
static inline void wefti_mpsc_open(wefti_mpsc_t *q) { atomic_store(&q->newest, NULL); }

#endif
