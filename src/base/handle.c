/* base/handle.c - see handle.h. */
#include "base/handle.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

enum { KEPT = 64, LINE = 64, SLAB = 64 * 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    (void)pthread_atfork(before_fork, after_fork,
                         after_fork); /* no memory: as before, a fork at the wrong moment leaves it locked */
}

static size_t stride(const wefti_handles_t *kind)
{
    return (kind->size + LINE - 1) / LINE * LINE;
}

static void put(wefti_handles_t *kind, wefti_handle_t *h)
{
    h->next = NULL;
    if (kind->newest)
        kind->newest->next = h;
    else
        kind->oldest = h;
    kind->newest = h;
    kind->n_free++;
}

static wefti_handle_t *take(wefti_handles_t *kind)
{
    wefti_handle_t *h = kind->oldest;
    kind->oldest = h->next;
    if (!kind->oldest)
        kind->newest = NULL;
    kind->n_free--;
    return h;
}

/* Enough pages for a few more. They are touched when they are used. */
static bool grow(wefti_handles_t *kind)
{
    size_t each = stride(kind), bytes = each > SLAB ? (each + 4095) / 4096 * 4096 : SLAB;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return false;
    kind->fresh = at;
    kind->n_fresh = bytes / each;
    kind->n_all += kind->n_fresh;
    return true;
}

static wefti_handle_t *take_fresh(wefti_handles_t *kind)
{
    wefti_handle_t *h = (wefti_handle_t *)(void *)kind->fresh;
    kind->fresh += stride(kind);
    kind->n_fresh--;
    return h;
}

void *wefti_handle_take(wefti_handles_t *kind)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    void *charge = wefti_malloc(1); /* so that tests can make it fail */
    if (!charge)
        return NULL;
    wefti_free(charge);
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    wefti_handle_t *h = NULL;
    if (!kind->n_fresh && kind->n_free > KEPT)
        h = take(kind);
    else if (kind->n_fresh || grow(kind))
        h = take_fresh(kind);
    pthread_mutex_unlock(&lock);
    if (!h)
        return NULL;
    UNPOISON(h, kind->size);
    h->uses++;
    atomic_store(&h->shut, 0);
    return h;
}

void *wefti_handle_new(wefti_handles_t *kind)
{
    wefti_handle_t *h = wefti_handle_take(kind);
    if (!h)
        return NULL;
    memset(h + 1, 0, kind->size - sizeof *h);
    atomic_store_explicit(&h->open, 1, memory_order_release);
    return h;
}

void wefti_handle_free(wefti_handles_t *kind, void *object)
{
    wefti_handle_t *h = object;
    if (!h)
        return;
    wefti_handle_shut(h);
    POISON((uint8_t *)object + kind->readable, kind->size - kind->readable);
    pthread_mutex_lock(&lock);
    put(kind, h);
    pthread_mutex_unlock(&lock);
}

void wefti_handle_shut(wefti_handle_t *h)
{
    atomic_store(&h->shut, 1);
    atomic_store(&h->open, 0);
    wefti_handle_quiet(h); /* wefti_handle_reopen() runs inside, and closes it before that thread leaves */
}

void wefti_handle_quiet(wefti_handle_t *h)
{
    while (atomic_load(&h->inside))
        sched_yield();
}
