/* mem/mem.h - memory as the rooms above see it: kinds of buffers, and staging buffers. */
#ifndef WEFTI_MEM_H
#define WEFTI_MEM_H

#include <stdatomic.h>
#include <string.h>
#include <weft/mem.h>

#include "core/core.h"
#include "mem/carry.h"
#include "mem/device.h"

/* How many kinds are in use that the processor cannot touch. While it is 0, every buffer is host memory. */
extern _Atomic uint32_t wefti_mem_devices;

/* The kind of a buffer as far as moving it is concerned: NULL for whatever memcpy can handle. `said` is what the program said
 * of it, NULL for nothing. */
static inline const weft_mem_kind_t *wefti_mem_device_of(const void *ptr, const weft_mem_kind_t *said)
{
    if (__builtin_expect(said != NULL, 0))
        return said->flags & WEFT_MEM_CPU ? NULL : said;
    if (__builtin_expect(!atomic_load_explicit(&wefti_mem_devices, memory_order_relaxed), 1))
        return NULL;
    const weft_mem_kind_t *kind = weft_mem_kind_of(ptr);
    return kind->flags & WEFT_MEM_CPU ? NULL : kind;
}

/* The same for n bytes that are long enough to have a device move them where that is faster, though the processor could: managed
 * memory is where it was used last, and comes to the processor page by page. */
const weft_mem_kind_t *wefti_mem_mover_of(const void *ptr, uint64_t n);
extern uint64_t wefti_managed_min; /* so long; tests make it small */

/* memcpy between host memory and memory of `device` (NULL: both are host memory). */
static inline weft_status_t wefti_mem_move(const weft_mem_kind_t *device, void *dst, const void *src, size_t n)
{
    if (__builtin_expect(device != NULL, 0))
        return device->copy(device, dst, src, n);
    memcpy(dst, src, n);
    return WEFT_OK;
}

/* Staging buffers: pinned host memory of WEFTI_STAGING_BYTES each, kept by the runtime, at most WEFTI_STAGING_MAX of them out
 * at a time. Driver only. NULL: all are out, or there is no memory. */
#define WEFTI_STAGING_BYTES (512u << 10)
#define WEFTI_STAGING_MAX 32u
void *wefti_staging_get(weft_runtime_t *rt);
void wefti_staging_put(weft_runtime_t *rt, void *buf);

/* A pool that its room leaves, as its runtime ends: what is out stays where it is, and the pool goes with the last buffer that
 * is given back. */
void wefti_pool_leave(weft_pool_t *pool);

/* Memory in one piece that other processes can be let map: a sealed memfd, zero, at one address until close. See memfd.c. It
 * stays where it is while it is open: forks find it. Any thread, one at a time. */
typedef struct wefti_memfd {
    void *base;
    size_t n;
    int fd;
    int next;            /* what takes its place; -1: nothing does. Then [from, moved) is of it already */
    size_t from, moved;
    wefti_list_t fork_link;
} wefti_memfd_t;
/* n is a multiple of the page size. read_only: to others; nobody but this process can write to it. WEFT_ERR_NOMEM, _LIMIT,
 * _SYSTEM. */
weft_status_t wefti_memfd_open(wefti_memfd_t *m, const char *name, size_t n, bool read_only);
void wefti_memfd_close(wefti_memfd_t *m);
/* Close it and leave the memory where it is, private to this process: the caller unmaps it with munmap(). */
void wefti_memfd_keep(wefti_memfd_t *m);
/* Free the memory of the next n bytes from *from on, before the close, which else takes long. Processes that have it mapped
 * see zero there. False: that was all. */
bool wefti_memfd_empty(wefti_memfd_t *m, size_t *from, size_t n);
/* Fresh memory under the same address: `head` at its beginning, [from, end) as it was, the rest zero. About n bytes of it take
 * the place of the old ones, each page at one moment for whoever reads there. WEFT_ERR_AGAIN: there is more to do, call again,
 * perhaps with another end. Processes that have the old memory mapped keep it, and see zero there. WEFT_ERR_NOMEM, _LIMIT,
 * _SYSTEM: as far as it has come, it stays; calling again goes on. What others write to those n bytes during a call may be
 * lost. */
weft_status_t wefti_memfd_replace(wefti_memfd_t *m, const char *name, const void *head, size_t head_n, size_t from, size_t end,
                                  size_t n);
static inline bool wefti_memfd_replacing(const wefti_memfd_t *memfd) { return memfd->next >= 0; }

/* For src/open.c; with it config's `cuda` takes effect. */
weft_status_t wefti_mem_attach(weft_runtime_t *rt);
/* Names of the kinds this machine has, joined by ", ", for weft_info_each(). */
void wefti_mem_kinds_text(char *buf, size_t n);

#endif
