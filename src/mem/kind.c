/* mem/kind.c - which kinds of memory there are, and the calls that take one.
 *
 * The library's own kinds are constants; CUDA's are there once cuda.c has found a driver. A program's own live in a table of
 * sixteen, before the library's in every look-up. Two counts are kept beside it: how many kinds weft_mem_kind_of() has to ask,
 * and how many the processor cannot touch. While they are 0, as in most programs, no buffer is looked at twice.
 *
 * The table is guarded by a read-write lock, so that a kind that was removed is not being asked anything any more when the
 * removal returns. In a forked child the lock is made anew, since a thread that is not there may have held it.
 *
 * Promise: a copy between any two kinds goes through functions that know them, and nothing here starts CUDA unless its kinds
 * are asked for by name. tests/unit/mem_kind.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ascii.h"
#include "base/log.h"
#include "mem/local.h"

#define OWN_MAX 16u
#define NAME_MAX_ 31u
#define BOUNCE (256u << 10)

_Atomic uint32_t wefti_mem_devices;
_Atomic uint32_t wefti_mem_askable;

static pthread_rwlock_t own_lock = PTHREAD_RWLOCK_INITIALIZER;
static const weft_mem_kind_t *own[OWN_MAX]; /* in the order they were added */
static unsigned n_own;

static const weft_mem_kind_t *const library[] = {
    &wefti_mem_kind_host,    &wefti_mem_kind_huge,       &wefti_mem_kind_pinned,   &wefti_mem_kind_cuda,
    &wefti_mem_kind_managed, &wefti_mem_kind_cuda_async, &wefti_mem_kind_cuda_vmm, &wefti_mem_kind_cuda_fd,
};
#define LIBRARY (sizeof library / sizeof library[0])

/* --- the program's own ------------------------------------------------------------------------------------------------------ */

static void in_child(void)
{
    pthread_rwlock_init(&own_lock, NULL);
}

static void watch_forks(void)
{
    if (pthread_atfork(NULL, NULL, in_child))
        wefti_error("no memory to notice forks: a forked child must not add or remove memory kinds");
}

/* By name; the lock is held. */
static const weft_mem_kind_t *own_named(const char *name)
{
    for (unsigned i = 0; i < n_own; i++)
        if (!strcmp(own[i]->name, name))
            return own[i];
    return NULL;
}

static bool name_is_fit(const char *name)
{
    size_t n = name ? strnlen(name, NAME_MAX_ + 1) : 0;
    if (!n || n > NAME_MAX_)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!wefti_is_alnum(name[i]) && name[i] != '-' && name[i] != '_')
            return false;
    return true;
}

weft_status_t weft_mem_kind_add(const weft_mem_kind_t *kind)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    weft_status_t st = WEFT_OK;
    if (!kind)
        return wefti_fail(WEFT_ERR_INVALID, "the kind is NULL");
    if (kind->size < sizeof *kind)
        return wefti_fail(WEFT_ERR_INVALID, "the kind's size is %zu, not %zu: start from WEFT_MEM_KIND_INIT", kind->size,
                          sizeof *kind);
    if (!name_is_fit(kind->name))
        return wefti_fail(WEFT_ERR_INVALID, "a kind's name is 1 to %u letters, digits, '-' and '_'", NAME_MAX_);
    if (!kind->alloc || !kind->free)
        return wefti_fail(WEFT_ERR_INVALID, "the kind \"%s\" has no %s()", kind->name, kind->alloc ? "free" : "alloc");
    if (!kind->copy && !(kind->flags & WEFT_MEM_CPU))
        return wefti_fail(WEFT_ERR_INVALID, "the kind \"%s\" has neither WEFT_MEM_CPU nor a copy()", kind->name);
    pthread_once(&once, watch_forks);
    pthread_rwlock_wrlock(&own_lock);
    if (own_named(kind->name)) {
        st = wefti_fail(WEFT_ERR_STATE, "a kind \"%s\" was added before: remove that first", kind->name);
    } else if (n_own == OWN_MAX) {
        st = wefti_fail(WEFT_ERR_LIMIT, "%u kinds were added, and there is space for no more", OWN_MAX);
    } else {
        own[n_own++] = kind;
        atomic_fetch_add(&wefti_mem_askable, kind->owns != NULL);
        atomic_fetch_add(&wefti_mem_devices, !(kind->flags & WEFT_MEM_CPU));
    }
    pthread_rwlock_unlock(&own_lock);
    return st;
}

weft_status_t weft_mem_kind_remove(const weft_mem_kind_t *kind)
{
    weft_status_t st = WEFT_ERR_NOTFOUND;
    if (!kind)
        return wefti_fail(WEFT_ERR_INVALID, "the kind is NULL");
    pthread_rwlock_wrlock(&own_lock);
    for (unsigned i = 0; i < n_own; i++)
        if (own[i] == kind) {
            memmove(&own[i], &own[i + 1], (n_own - i - 1) * sizeof own[0]);
            n_own--;
            atomic_fetch_sub(&wefti_mem_askable, kind->owns != NULL);
            atomic_fetch_sub(&wefti_mem_devices, !(kind->flags & WEFT_MEM_CPU));
            st = WEFT_OK;
            break;
        }
    pthread_rwlock_unlock(&own_lock);
    return st ? wefti_fail(st, "that kind was not added, or was removed already") : WEFT_OK;
}

/* --- finding ---------------------------------------------------------------------------------------------------------------- */

const weft_mem_kind_t *weft_mem_host(void)
{
    return &wefti_mem_kind_host;
}

/* Is a kind of the library there? CUDA is asked for. The detail says why not. */
static bool present(const weft_mem_kind_t *kind)
{
    return !wefti_cuda_kind(kind) || (!wefti_cuda_use(NULL) && wefti_cuda_has(kind));
}

const weft_mem_kind_t *weft_mem_kind_find(const char *name)
{
    if (!name) {
        wefti_fail(WEFT_ERR_INVALID, "the name of a memory kind is NULL");
        return NULL;
    }
    pthread_rwlock_rdlock(&own_lock);
    const weft_mem_kind_t *found = own_named(name);
    pthread_rwlock_unlock(&own_lock);
    if (found)
        return found;
    for (size_t i = 0; i < LIBRARY; i++)
        if (!strcmp(library[i]->name, name))
            return present(library[i]) ? library[i] : NULL;
    wefti_fail(WEFT_ERR_NOTFOUND,
               "there is no memory kind \"%.64s\": host, huge, pinned, cuda, cuda-managed, cuda-async, cuda-vmm and cuda-fd are "
               "the library's, and others have to be added",
               name);
    return NULL;
}

const weft_mem_kind_t *weft_mem_kind_of(const void *ptr)
{
    if (!atomic_load_explicit(&wefti_mem_askable, memory_order_relaxed))
        return &wefti_mem_kind_host;
    const weft_mem_kind_t *found = NULL;
    pthread_rwlock_rdlock(&own_lock);
    for (unsigned i = 0; i < n_own && !found; i++)
        if (own[i]->owns && own[i]->owns(own[i], ptr))
            found = own[i];
    pthread_rwlock_unlock(&own_lock);
    for (size_t i = 0; i < LIBRARY && !found; i++)
        if (library[i]->owns && library[i]->owns(library[i], ptr))
            found = library[i];
    return found ? found : &wefti_mem_kind_host;
}

void weft_mem_kind_each(weft_mem_kind_fn fn, void *user)
{
    const weft_mem_kind_t *mine[OWN_MAX];
    bool replaced[LIBRARY];
    if (!fn)
        return;
    pthread_rwlock_rdlock(&own_lock);
    unsigned n = n_own;
    memcpy(mine, own, n * sizeof own[0]);
    for (size_t i = 0; i < LIBRARY; i++)
        replaced[i] = own_named(library[i]->name) != NULL;
    pthread_rwlock_unlock(&own_lock);
    for (size_t i = 0; i < LIBRARY; i++)
        if (!replaced[i] && present(library[i]))
            fn(library[i], user);
    for (unsigned i = 0; i < n; i++)
        fn(mine[i], user);
}

typedef struct text {
    char *buf;
    size_t cap;
} text_t;

static void add_name(const weft_mem_kind_t *kind, void *user)
{
    text_t *t = user;
    size_t n = strlen(t->buf);
    snprintf(t->buf + n, t->cap - n, "%s%s", n ? ", " : "", kind->name);
}

void wefti_mem_kinds_text(char *buf, size_t n)
{
    text_t t = {.buf = buf, .cap = n};
    *buf = '\0';
    weft_mem_kind_each(add_name, &t);
}

/* --- using ------------------------------------------------------------------------------------------------------------------ */

weft_status_t wefti_mem_fail_errno(int err, const char *what, size_t n)
{
    weft_status_t st = err == ENOMEM || err == EAGAIN   ? WEFT_ERR_NOMEM
                       : err == EMFILE || err == ENFILE ? WEFT_ERR_LIMIT
                                                        : WEFT_ERR_SYSTEM;
    return wefti_fail(st, "%zu bytes of %s: %s", n, what, strerror(err));
}

/* Kinds whose functions record the detail of their failures themselves. */
static bool tells_why(const weft_mem_kind_t *kind)
{
    for (size_t i = 0; i < LIBRARY; i++)
        if (library[i] == kind)
            return true;
    return wefti_pool_is_kind(kind);
}

weft_status_t weft_mem_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    if (!ptr_out)
        return wefti_fail(WEFT_ERR_INVALID, "there is nowhere to put the pointer");
    if (!kind)
        kind = &wefti_mem_kind_host;
    weft_status_t st = kind->alloc(kind, n ? n : 1, ptr_out);
    if (st && !tells_why(kind))
        return wefti_fail(st, "%zu bytes of the kind \"%s\": its alloc() failed with %s", n, kind->name, weft_status_name(st));
    return st;
}

void weft_mem_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    if (!kind)
        kind = &wefti_mem_kind_host;
    if (ptr)
        kind->free(kind, ptr, n ? n : 1);
}

static weft_status_t copy_by(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    weft_status_t st = kind->copy(kind, dst, src, n);
    if (st && !tells_why(kind))
        return wefti_fail(st, "copying %zu bytes: copy() of the kind \"%s\" failed with %s", n, kind->name, weft_status_name(st));
    return st;
}

/* Between two devices of different kinds, through host memory. */
static weft_status_t copy_across(const weft_mem_kind_t *to, char *dst, const weft_mem_kind_t *from, const char *src, size_t n)
{
    size_t step = n < BOUNCE ? n : BOUNCE;
    void *bounce = wefti_aligned_alloc(64, step);
    weft_status_t st = WEFT_OK;
    if (!bounce)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a copy from the kind \"%s\" to the kind \"%s\"", from->name, to->name);
    for (size_t at = 0; at < n && !st; at += step) {
        size_t now = n - at < step ? n - at : step;
        st = copy_by(from, bounce, src + at, now);
        if (!st)
            st = copy_by(to, dst + at, bounce, now);
    }
    wefti_free(bounce);
    return st;
}

weft_status_t weft_mem_copy(void *dst, const weft_mem_kind_t *dst_kind, const void *src, const weft_mem_kind_t *src_kind,
                            size_t n)
{
    if (!n)
        return WEFT_OK;
    if (!dst || !src)
        return wefti_fail(WEFT_ERR_INVALID, "a copy of %zu bytes %s NULL", n, dst ? "from" : "to");
    const weft_mem_kind_t *to = wefti_pool_base_kind(dst_kind ? dst_kind : weft_mem_kind_of(dst));
    const weft_mem_kind_t *from = wefti_pool_base_kind(src_kind ? src_kind : weft_mem_kind_of(src));
    bool to_cpu = to->flags & WEFT_MEM_CPU, from_cpu = from->flags & WEFT_MEM_CPU;
    if (to_cpu && from_cpu) {
        /* where the processor can reach both, a kind may still know a better way than memcpy */
        if (to->copy || from->copy)
            return copy_by(to->copy ? to : from, dst, src, n);
        memcpy(dst, src, n);
        return WEFT_OK;
    }
    if (to == from || to_cpu || from_cpu || (wefti_cuda_kind(to) && wefti_cuda_kind(from)))
        return copy_by(to_cpu ? from : to, dst, src, n);
    return copy_across(to, dst, from, src, n);
}
