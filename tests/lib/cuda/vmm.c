/* tests/lib/cuda/vmm.c - virtual memory of devices made of paper: physical memory with a handle, addresses that are reserved, and
 * the one mapped to the other. A file descriptor carries physical memory to another process.
 *
 * Physical memory lives as long as it has a handle or is mapped somewhere. Unmapping waits for nothing: a copy that comes later
 * finds no memory, and fails. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parts.h"

#define GRANULARITY ((size_t)64 << 10)

typedef struct location {
    int type, id;
} location_t;

typedef struct properties {
    int type, handle_types;
    location_t location;
    void *none;
    unsigned char flags[8];
} properties_t;

typedef struct access {
    location_t location;
    int flags;
} access_t;

typedef struct physical {
    void *handle; /* NULL: all were released */
    unsigned handles, mappings, types;
    size_t n;
    int device, fd;
    bool imported;
    uint64_t id; /* never that of another one in this process */
} physical_t;

static ranges_t reservations;

static physical_t *physical_of(unsigned long long handle)
{
    return pp_handle_get('M', (void *)(uintptr_t)handle);
}

range_t *pp_reservation(const void *p)
{
    return pp_find(&reservations, p);
}

uint64_t pp_physical_id(const block_t *b)
{
    return b->physical ? b->physical->id : b->id;
}

unsigned pp_handle_types(const block_t *b)
{
    return b->physical ? b->physical->types : 0;
}

static bool sound(size_t n)
{
    return n && n % GRANULARITY == 0;
}

/* --- physical memory ------------------------------------------------------------------------------------------------------ */

static physical_t *physical_new(size_t n, int device, unsigned types, int fd)
{
    static uint64_t last_id;
    physical_t *m = pp_new(sizeof *m);
    *m = (physical_t){.handles = 1, .n = n, .device = device, .types = types, .fd = fd, .id = ++last_id};
    m->handle = pp_handle_new('M', m);
    paper.live_physical++;
    return m;
}

static void unused(physical_t *m)
{
    if (!m->handles && m->handle) {
        pp_handle_drop(m->handle);
        m->handle = NULL;
    }
    if (m->handles || m->mappings)
        return;
    if (m->imported)
        paper.live_imports--;
    else
        pp_used[m->device] -= m->n;
    paper.live_physical--;
    close(m->fd);
    free(m);
}

static int check_properties(const properties_t *p)
{
    if (!p || p->type != 1 || p->handle_types & ~FD_TYPE || p->location.type != 1)
        return INVALID_VALUE;
    return p->location.id < 0 || p->location.id >= pp_devices ? INVALID_DEVICE : OK;
}

int cuMemGetAllocationGranularity(size_t *out, const properties_t *p, int option)
{
    int r = pp_begin(__func__);
    if (!r)
        r = option < 0 || option > 1 ? INVALID_VALUE : check_properties(p);
    if (!r)
        *out = GRANULARITY;
    return pp_end(r);
}

int cuMemCreate(unsigned long long *out, size_t n, const properties_t *p, unsigned long long flags)
{
    int r = pp_begin(__func__);
    if (!r)
        r = flags || !sound(n) ? INVALID_VALUE : check_properties(p);
    if (!r)
        r = pp_take_memory(p->location.id, n);
    if (!r) {
        char name[64];
        snprintf(name, sizeof name, "paper-vmm-%d-%016llx", p->location.id, (unsigned long long)pp_secret());
        int fd = pp_memfd(name, n);
        if (fd >= 0) {
            *out = (uintptr_t)physical_new(n, p->location.id, (unsigned)p->handle_types, fd)->handle;
        } else {
            pp_used[p->location.id] -= n;
            r = OUT_OF_MEMORY;
        }
    }
    return pp_end(r);
}

int cuMemRelease(unsigned long long handle)
{
    int r = pp_begin(__func__);
    physical_t *m = r ? NULL : physical_of(handle);
    if (!r && !m)
        r = INVALID_VALUE;
    if (!r) {
        m->handles--;
        unused(m);
    }
    return pp_end(r);
}

int cuMemRetainAllocationHandle(unsigned long long *out, void *p)
{
    int r = pp_begin(__func__);
    const block_t *b = r ? NULL : pp_block(p);
    if (!r && (!b || b->sort != MAPPED))
        r = INVALID_VALUE;
    if (!r) {
        physical_t *m = b->physical;
        if (!m->handles++)
            m->handle = pp_handle_new('M', m);
        *out = (uintptr_t)m->handle;
    }
    return pp_end(r);
}

int cuMemExportToShareableHandle(void *out, unsigned long long handle, int type, unsigned long long flags)
{
    int r = pp_begin(__func__);
    const physical_t *m = r ? NULL : physical_of(handle);
    if (!r && (!m || type != FD_TYPE || flags || !(m->types & FD_TYPE)))
        r = INVALID_VALUE;
    if (!r) {
        int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            r = OPERATING_SYSTEM;
        else
            memcpy(out, &fd, sizeof fd);
        paper.exports += fd >= 0;
    }
    return pp_end(r);
}

/* Which device made the memory behind a descriptor? -1: none. */
static int device_of(int fd)
{
    for (int device = 0; device < pp_devices; device++) {
        char path[32], target[128], want[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        snprintf(want, sizeof want, "/memfd:paper-vmm-%d-", device);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n > 0 && !strncmp(target, want, strlen(want)))
            return device;
    }
    return -1;
}

int cuMemImportFromShareableHandle(unsigned long long *out, void *from, int type)
{
    int r = pp_begin(__func__), fd = -1;
    int device = r ? -1 : device_of((int)(intptr_t)from);
    if (!r && (type != FD_TYPE || device < 0))
        r = INVALID_VALUE;
    if (!r) {
        fd = fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0);
        r = fd < 0 ? OPERATING_SYSTEM : OK;
    }
    if (!r) {
        physical_t *m = physical_new((size_t)lseek(fd, 0, SEEK_END), device, FD_TYPE, fd);
        m->imported = true;
        paper.imports++;
        paper.live_imports++;
        *out = (uintptr_t)m->handle;
    }
    return pp_end(r);
}

/* --- addresses ------------------------------------------------------------------------------------------------------------ */

int cuMemAddressReserve(uintptr_t *out, size_t n, size_t align, uintptr_t hint, unsigned long long flags)
{
    int r = pp_begin(__func__);
    if (!r && (flags || !sound(n) || align & (align - 1)))
        r = INVALID_VALUE;
    if (!r) {
        void *p = pp_space_take(n, align < GRANULARITY ? GRANULARITY : align, (void *)hint);
        if (p) {
            range_t *range = pp_new(sizeof *range);
            *range = (range_t){p, n};
            pp_insert(&reservations, range);
            *out = (uintptr_t)p;
        } else {
            r = OUT_OF_MEMORY;
        }
    }
    return pp_end(r);
}

int cuMemAddressFree(uintptr_t ptr, size_t n)
{
    int r = pp_begin(__func__);
    range_t *range = r ? NULL : pp_reservation((void *)ptr);
    if (!r && (!range || range->base != (void *)ptr || range->n != n || pp_overlaps(&pp_blocks, (void *)ptr, n)))
        r = INVALID_VALUE;
    if (!r) {
        pp_remove(&reservations, range);
        free(range);
        pp_space_give((void *)ptr);
    }
    return pp_end(r);
}

int cuMemMap(uintptr_t ptr, size_t n, size_t offset, unsigned long long handle, unsigned long long flags)
{
    int r = pp_begin(__func__);
    physical_t *m = r ? NULL : physical_of(handle);
    const range_t *range = r ? NULL : pp_reservation((void *)ptr);
    if (!r && (!m || !range || offset || flags || !sound(n) || n > m->n || ptr % GRANULARITY))
        r = INVALID_VALUE;
    if (!r && (n > range->n - (size_t)((uint8_t *)ptr - range->base) || pp_overlaps(&pp_blocks, (void *)ptr, n)))
        r = INVALID_VALUE;
    if (!r && !pp_space_map((void *)ptr, n, m->fd, false))
        r = OUT_OF_MEMORY;
    if (!r) {
        pp_block_new((void *)ptr, n, MAPPED, NULL, m->device)->physical = m;
        m->mappings++;
    }
    return pp_end(r);
}

/* Do mappings cover exactly that? */
static bool whole(uintptr_t ptr, size_t n)
{
    const block_t *first = pp_block((void *)ptr), *last = n ? pp_block((uint8_t *)ptr + n - 1) : NULL;
    return first && last && first->sort == MAPPED && first->range.base == (void *)ptr &&
           last->range.base + last->range.n == (uint8_t *)ptr + n && pp_covered((void *)ptr, n);
}

int cuMemUnmap(uintptr_t ptr, size_t n)
{
    int r = pp_begin(__func__);
    if (!r && !whole(ptr, n))
        r = INVALID_VALUE;
    while (!r && n) {
        block_t *b = pp_block((void *)ptr);
        physical_t *m = b->physical;
        size_t here = b->range.n;
        pp_space_unmap(b->range.base, here);
        pp_block_drop(b);
        m->mappings--;
        unused(m);
        ptr += here;
        n -= here;
    }
    return pp_end(r);
}

#ifndef PAPER_BARE
int cuMemSetAccess(uintptr_t ptr, size_t n, const access_t *wanted, size_t count)
{
    int r = pp_begin(__func__);
    if (!r && (!whole(ptr, n) || !count))
        r = INVALID_VALUE;
    for (size_t i = 0; i < count && !r; i++) {
        int id = wanted[i].location.id, flags = wanted[i].flags;
        if (wanted[i].location.type != 1 || id < 0 || id >= pp_devices || (flags != 0 && flags != 1 && flags != 3))
            r = INVALID_VALUE;
        for (uintptr_t at = ptr; !r && at < ptr + n;) {
            block_t *b = pp_block((void *)at);
            if (flags && paper.no_peer && id != b->device)
                r = PEER_ACCESS_UNSUPPORTED;
            else
                b->access = flags ? b->access | 1u << id : b->access & ~(1u << id);
            at += b->range.n;
        }
    }
    return pp_end(r);
}
#endif
