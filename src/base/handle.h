/* base/handle.h - memory of the objects that programs hold by pointer.
 *
 * A program may call with an object that it, or another thread, has closed. Then the call has to return a status, and must not
 * read memory that belongs to another kind of object by now. So the memory of an object is only used again for an object of
 * its kind, and not before KEPT others of that kind were freed after it. Until then `open` is false, and the call sees that.
 *
 * Each kind is one static wefti_handles_t. An object begins with a wefti_handle_t. The fields of a closed object keep the
 * values they had when it was freed: those that a call reads before it looks at `open` must still make sense. With the address
 * sanitizer all but its first fields, up to the one that WEFTI_HANDLES_INIT names, are poisoned.
 *
 * One lock for all kinds; a fork takes it, so that the child can make objects. A thread that uses more of an object than those
 * fields, while another may close it, enters it: freeing waits for it.
 *
 * Memory comes from the system by the page and is never given back: as much as the most objects of the kind at one time
 * needed. tests/unit/base_handle.c. */
#ifndef WEFTI_HANDLE_H
#define WEFTI_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wefti_handle {
    _Atomic uint32_t open;
    uint32_t uses;             /* how many objects have had this memory */
    _Atomic uint32_t inside;   /* threads that entered and did not leave: this object, or one before it */
    _Atomic uint32_t shut;     /* freeing it has closed it for good */
    struct wefti_handle *next; /* while it is free: the one that was freed after it */
} wefti_handle_t;

typedef struct wefti_handles {
    size_t size, readable;
    wefti_handle_t *oldest, *newest; /* free ones that were used before */
    size_t n_free, n_all;
    char *fresh; /* memory that was never used, and of how many objects */
    size_t n_fresh;
} wefti_handles_t;

/* type: its first member is a wefti_handle_t; upto: the last member that may be read after the object was freed. */
#define WEFTI_HANDLES_INIT(type, upto) \
    {.size = sizeof(type), .readable = offsetof(type, upto) + sizeof(((type *)0)->upto)}

/* A new one, zero but for its head, and open; NULL: no memory. Aligned to a cache line. Any thread. */
void *wefti_handle_new(wefti_handles_t *kind);
/* The same, neither zeroed nor open yet: for a kind with fields that other threads may still touch. */
void *wefti_handle_take(wefti_handles_t *kind);
/* Close it, wait until nobody is inside, and give its memory back. Any thread that is not inside itself. */
void wefti_handle_free(wefti_handles_t *kind, void *object);

static inline bool wefti_is_open(const wefti_handle_t *h) { return atomic_load_explicit(&h->open, memory_order_acquire); }

/* Close it: no thread can enter any more. False: it was closed already. Any thread. */
static inline bool wefti_handle_close(wefti_handle_t *h) { return atomic_exchange(&h->open, 0); }

/* The object stays as it is until wefti_handle_leave(). False: it is closed. Only for short, and not around a call that may
 * free it: freeing waits. Any thread. */
static inline bool wefti_handle_enter(wefti_handle_t *h)
{
    if (!wefti_is_open(h)) /* so that calls on a closed one do not hold up its free */
        return false;
    atomic_fetch_add(&h->inside, 1);
    if (__builtin_expect(atomic_load(&h->open), 1))
        return true;
    atomic_fetch_sub(&h->inside, 1);
    return false;
}
static inline void wefti_handle_leave(wefti_handle_t *h) { atomic_fetch_sub(&h->inside, 1); }

/* Close it for good, before freeing it: after that no thread is inside, and none can enter. */
void wefti_handle_shut(wefti_handle_t *h);
/* Undo wefti_handle_close(), unless it was shut meanwhile. From inside, so that wefti_handle_shut() waits for this. */
static inline void wefti_handle_reopen(wefti_handle_t *h)
{
    atomic_store(&h->open, 1);
    if (atomic_load(&h->shut))
        atomic_store(&h->open, 0);
}
/* Wait until no thread is inside. */
void wefti_handle_quiet(wefti_handle_t *h);

#endif
