/* base/list.h - intrusive doubly linked lists. A node that is on no list points to itself or is zero. */
#ifndef WEFTI_LIST_H
#define WEFTI_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct wefti_list {
    struct wefti_list *next, *prev;
} wefti_list_t;

#define wefti_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

static inline void wefti_list_init(wefti_list_t *l) { l->next = l->prev = l; }
static inline bool wefti_list_empty(const wefti_list_t *l) { return l->next == l; }
/* For nodes: true while it is on a list. Zeroed nodes are on none. */
static inline bool wefti_list_linked(const wefti_list_t *n) { return n->next && n->next != n; }

static inline void wefti_list_insert_before(wefti_list_t *at, wefti_list_t *n)
{
    n->next = at;
    n->prev = at->prev;
    at->prev->next = n;
    at->prev = n;
}
static inline void wefti_list_push_back(wefti_list_t *l, wefti_list_t *n) { wefti_list_insert_before(l, n); }
static inline void wefti_list_push_front(wefti_list_t *l, wefti_list_t *n) { wefti_list_insert_before(l->next, n); }
static inline void wefti_list_remove(wefti_list_t *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->next = n->prev = n;
}
static inline wefti_list_t *wefti_list_first(const wefti_list_t *l) { return wefti_list_empty(l) ? NULL : l->next; }
static inline wefti_list_t *wefti_list_pop(wefti_list_t *l)
{
    wefti_list_t *n = wefti_list_first(l);
    if (n)
        wefti_list_remove(n);
    return n;
}
/* Move everything of `from` to the end of `to`. */
static inline void wefti_list_splice(wefti_list_t *to, wefti_list_t *from)
{
    if (wefti_list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    wefti_list_init(from);
}

#define wefti_list_each(it, l) for (wefti_list_t *it = (l)->next; it != (l); it = it->next)
/* The current node may be removed (and freed) in the body; no other. */
#define wefti_list_each_safe(it, l) \
    for (wefti_list_t *it = (l)->next, *it##_next = it->next; it != (l); it = it##_next, it##_next = it->next)

#endif
