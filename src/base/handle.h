/* base/handle.h - memory of the objects that programs hold by pointer.
 *
 * A program may call with an object that it, or another thread, has closed. Then the call has to return a status, and must not
 * read memory that belongs to something else by now. So the memory of such an object stays an object of its kind for ever: it
 * goes back to its kind alone, and not before KEPT others of that kind were freed after it. Until then `open` is false, and
 * the call sees that.
 *
 * Each kind is one static wefti_handles_t. An object begins with a wefti_handle_t. What else is in a closed object is what was
 * there when it was freed: fields that a call reads before it looks at `open` must still make sense then. With the address
 * sanitizer all but its first fields, up to the one that WEFTI_HANDLES_INIT names, are poisoned.
 *
 * One lock for all kinds; a fork waits for it, so that a child can make objects of its own whatever other threads did. A
 * thread that looks at more of an object than those fields, while another may close it, is inside of it meanwhile: whoever
 * frees it waits.
 *
 * Memory comes from the system by the page and is never given back: as much as there were objects of the kind at one time.
 * tests/unit/base_handle.c holds us to it. */
#ifndef WEFTI_HANDLE_H
#define WEFTI_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wefti_handle {
    _Atomic uint32_t open;
    uint32_t uses;             /* how many objects have had this memory */
    _Atomic uint32_t inside;   /* threads between wefti_handle_enter() and wefti_handle_leave(): of this object, or of one before it */
    _Atomic uint32_t shut;     /* whoever frees it has closed it for good */
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
/* The same with what was there before, and not open yet: for a kind with fields that other threads may still touch. */
void *wefti_handle_take(wefti_handles_t *kind);
/* It is closed from now on, and when nobody is inside its memory goes back to its kind. Any thread that is not inside itself. */
void wefti_handle_free(wefti_handles_t *kind, void *object);

static inline bool wefti_is_open(const wefti_handle_t *h) { return atomic_load_explicit(&h->open, memory_order_acquire); }

/* Close it: nobody comes in any more. False: it was closed already. Any thread. */
static inline bool wefti_handle_close(wefti_handle_t *h) { return atomic_exchange(&h->open, 0); }

/* The object stays as it is until wefti_handle_leave(). False: it is closed. For moments, and not around anything that may
 * free it: whoever does waits. Any thread. */
static inline bool wefti_handle_enter(wefti_handle_t *h)
{
    if (!wefti_is_open(h)) /* those who call again and again on a closed one keep nobody waiting */
        return false;
    atomic_fetch_add(&h->inside, 1);
    if (__builtin_expect(atomic_load(&h->open), 1))
        return true;
    atomic_fetch_sub(&h->inside, 1);
    return false;
}
static inline void wefti_handle_leave(wefti_handle_t *h) { atomic_fetch_sub(&h->inside, 1); }

/* Close it for good, by whoever frees it: nobody is inside then, and nobody comes in. */
void wefti_handle_shut(wefti_handle_t *h);
/* Whoever closed it could not go on: it is as it was, unless it was shut meanwhile. From inside, so that whoever shuts it
 * waits for that. */
static inline void wefti_handle_reopen(wefti_handle_t *h)
{
    atomic_store(&h->open, 1);
    if (atomic_load(&h->shut))
        atomic_store(&h->open, 0);
}
/* Wait until nobody is inside. Of one that is closed: nobody will be, then. */
void wefti_handle_quiet(wefti_handle_t *h);

#endif
