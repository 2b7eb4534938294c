/* tests/lib/cuda/memory.c - memory of devices made of paper, registered memory of the host, and what is known of an address.
 *
 * A block is a memory file that is mapped twice (space.c). The file is closed until another process needs it: ipc.c makes it one
 * with a name then. Freed memory is gone at once, and its address is the next to be given out. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "parts.h"

ranges_t pp_blocks;
size_t pp_used[DEVICES_MAX];
static ranges_t pins;
static uint64_t last_id;
static char pools[DEVICES_MAX]; /* their handles are these addresses */

/* --- memory files --------------------------------------------------------------------------------------------------------- */

uint64_t pp_secret(void)
{
    uint64_t n = 0;
    if (getrandom(&n, sizeof n, 0) != sizeof n)
        abort();
    return n | 1;
}

int pp_memfd(const char *name, size_t n)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)pp_page(n))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

bool pp_fd_is(int fd, const char *name)
{
    char path[32], is[128], want[128];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, is, sizeof is - 1);
    if (n < 0)
        return false;
    is[n] = '\0';
    snprintf(want, sizeof want, "/memfd:%s (deleted)", name);
    return !strcmp(is, want);
}

/* --- blocks --------------------------------------------------------------------------------------------------------------- */

block_t *pp_block(const void *p)
{
    return (block_t *)pp_find(&pp_blocks, p);
}

block_t *pp_block_new(void *base, size_t n, sort_t sort, context_t *ctx, int device)
{
    block_t *b = pp_new(sizeof *b);
    *b = (block_t){.range = {base, n}, .sort = sort, .ctx = ctx, .device = device, .id = ++last_id, .fd = -1};
    b->no_context = sort == POOL || sort == MAPPED;
    pp_insert(&pp_blocks, &b->range);
    return b;
}

void pp_block_drop(block_t *b)
{
    pp_remove(&pp_blocks, &b->range);
    if (b->fd >= 0)
        close(b->fd);
    free(b);
}

void pp_block_free(block_t *b)
{
    if (b->sort == IMPORTED) {
        paper.live_imports--;
    } else {
        paper.live--;
        if (b->sort != MANAGED)
            pp_used[b->device] -= b->range.n;
    }
    void *base = b->range.base;
    pp_space_unmap(base, b->range.n);
    pp_block_drop(b);
    pp_space_give(base);
}

void pp_context_memory_free(context_t *ctx)
{
    for (size_t i = 0; i < pp_blocks.count;) {
        block_t *b = (block_t *)pp_blocks.at[i];
        if (b->ctx == ctx && !b->no_context)
            pp_block_free(b);
        else
            i++;
    }
}

bool pp_fits(const block_t *b)
{
    const context_t *ctx = pp_current();
    return b->sort == MAPPED ? b->access >> ctx->device & 1 : b->no_context ? ctx->device == b->device : ctx == b->ctx;
}

bool pp_covered(const void *p, size_t n)
{
    for (const uint8_t *at = p; n;) {
        const block_t *b = pp_block(at);
        if (!b || (at != p && b->sort != MAPPED))
            return false;
        size_t here = b->range.n - (size_t)(at - b->range.base);
        here = here < n ? here : n;
        at += here;
        n -= here;
    }
    return true;
}

int pp_take_memory(int device, size_t n)
{
    if (n > paper.memory || pp_used[device] > paper.memory - n)
        return OUT_OF_MEMORY;
    pp_used[device] += n;
    return OK;
}

static int allocate(int r, uintptr_t *out, size_t n, sort_t sort)
{
    uint8_t *p = NULL;
    int fd = -1;
    if (!r && paper.alloc_fails)
        r = paper.alloc_fails;
    if (!r && !n)
        r = INVALID_VALUE;
    int device = r ? 0 : pp_current()->device;
    if (!r && sort != MANAGED)
        r = pp_take_memory(device, n);
    if (r)
        return r;
    p = pp_space_take(n, 0, NULL);
    if (p)
        fd = pp_memfd("paper", n);
    if (fd < 0 || !pp_space_map(p, n, fd, sort == MANAGED)) {
        if (p)
            pp_space_give(p);
        pp_used[device] -= sort != MANAGED ? n : 0;
        r = OUT_OF_MEMORY;
    } else {
        block_t *b = pp_block_new(p, n, sort, pp_current(), device);
        b->no_context |= paper.no_context;
        paper.live++;
        paper.alloc_device = device;
        *out = (uintptr_t)p;
    }
    if (fd >= 0)
        close(fd);
    return r;
}

int cuMemAlloc_v2(uintptr_t *out, size_t n)
{
    int r = pp_begin_in(__func__);
    return pp_end(allocate(r, out, n, PLAIN));
}

#ifndef PAPER_OLD
int cuMemAllocManaged(uintptr_t *out, size_t n, unsigned flags)
{
    int r = pp_begin_in(__func__);
    return pp_end(allocate(r ? r : flags == 1 ? OK : INVALID_VALUE, out, n, MANAGED));
}
#endif

#ifndef PAPER_BARE
int cuMemAllocAsync(uintptr_t *out, size_t n, void *stream)
{
    stream_t *s;
    int r = pp_begin_in(__func__);
    if (!r)
        r = pp_stream_here(stream, &s);
    return pp_end(allocate(r, out, n, POOL));
}
#endif

int cuMemFreeAsync(uintptr_t ptr, void *stream)
{
    stream_t *s;
    int r = pp_begin_in(__func__);
    if (!r)
        r = pp_stream_here(stream, &s);
    block_t *b = r ? NULL : pp_block((void *)ptr);
    if (!r && (!b || b->range.base != (void *)ptr || b->freeing || b->sort != POOL))
        r = INVALID_VALUE;
    if (!r) {
        b->freeing = true;
        pp_post(s, &(op_t){.kind = FREE, .dst = {.at = b->range.base, .block = b->id}});
    }
    return pp_end(r);
}

block_t *pp_wait_unused(block_t *b)
{
    void *base = b->range.base;
    uint64_t id = b->id;
    pp_run();
    paper.free_waits += pp_pending(id);
    while (pp_pending(id)) {
        pp_pause();
        pp_run();
    }
    b = pp_block(base);
    return b && b->id == id ? b : NULL;
}

int cuMemFree_v2(uintptr_t ptr)
{
    int r = pp_begin_in(__func__);
    if (!r && !ptr)
        return pp_end(OK);
    block_t *b = r ? NULL : pp_block((void *)ptr);
    if (!r && (!b || b->range.base != (void *)ptr || b->freeing || b->sort == MAPPED || b->sort == IMPORTED))
        r = INVALID_VALUE;
    if (!r && !pp_fits(b))
        r = INVALID_CONTEXT;
    if (!r) {
        b->freeing = true;
        pp_free_waits();
        b = pp_wait_unused(b);
        if (b)
            pp_block_free(b);
    }
    return pp_end(r);
}

/* --- registered memory of the host ---------------------------------------------------------------------------------------- */

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
    int r = pp_begin_in(__func__);
    if (!r && paper.register_fails)
        r = paper.register_fails;
    if (!r && (flags != 1 || !n || pp_space_has(p)))
        r = INVALID_VALUE;
    if (!r && pp_overlaps(&pins, p, n))
        r = ALREADY_REGISTERED;
    if (!r) {
        block_t *b = pp_new(sizeof *b);
        *b = (block_t){.range = {p, n}, .ctx = pp_current(), .device = pp_current()->device, .id = ++last_id, .fd = -1};
        pp_insert(&pins, &b->range);
        paper.registered++;
        paper.registers++;
        paper.registered_bytes += n;
    }
    return pp_end(r);
}

int cuMemHostUnregister(void *p)
{
    int r = pp_begin_in(__func__);
    block_t *b = r ? NULL : (block_t *)pp_find(&pins, p);
    if (!r && (!b || b->range.base != p))
        r = NOT_REGISTERED;
    if (!r && b->ctx != pp_current())
        r = INVALID_CONTEXT;
    if (!r) {
        pp_free_waits();
        paper.registered--;
        paper.registered_bytes -= b->range.n;
        pp_remove(&pins, &b->range);
        free(b);
    }
    return pp_end(r);
}

uint32_t *pp_word(uintptr_t p, uint32_t *key_out)
{
    const block_t *b = pp_block((void *)p);
    *key_out = b && b->sort != MANAGED ? 0x01010101u * KEY : 0;
    if (p % 4)
        return NULL;
    if (b)
        return pp_fits(b) ? (uint32_t *)(void *)pp_view((void *)p) : NULL;
    return pp_find(&pins, (void *)p) ? (uint32_t *)p : NULL;
}

/* --- what is known of an address ------------------------------------------------------------------------------------------ */

static bool is_wide(int attribute)
{
    return attribute == 1 || attribute == 7 || attribute == 11 || attribute == 12 || attribute == 14 || attribute >= 17;
}

/* Attribute `attribute` of an address; INVALID_VALUE where it has none. */
static int attribute_of(uint64_t *out, int attribute, const void *p)
{
    const range_t *reserved = pp_reservation(p);
    const block_t *b = pp_block(p);
    bool device = b;
    if (reserved && attribute >= 11 && attribute <= 13) {
        *out = attribute == 11 ? (uintptr_t)reserved->base : attribute == 12 ? reserved->n : device;
        return OK;
    }
    if (!b)
        b = (const block_t *)pp_find(&pins, p);
    if (!b)
        return INVALID_VALUE;
    switch (attribute) {
    case 1: /* context */
        *out = b->no_context ? 0 : (uintptr_t)b->ctx;
        return b->no_context ? INVALID_VALUE : OK;
    case 2: /* memory type */
        *out = device ? 2 : 1;
        return OK;
    case 7: /* buffer id */
        *out = b->id;
        return OK;
    case 8: /* managed */
        *out = device && b->sort == MANAGED;
        return OK;
    case 9: /* device */
        *out = (uint64_t)b->device;
        return OK;
    case 10: /* can cuIpcGetMemHandle be called with it? */
        *out = device && b->sort == PLAIN && !b->no_context;
        return OK;
    case 11: /* where its range begins */
        *out = (uintptr_t)b->range.base;
        return OK;
    case 12: /* how long that is */
        *out = b->range.n;
        return OK;
    case 13: /* mapped */
        *out = 1;
        return OK;
    case 14: /* handles it may be exported as */
        *out = device ? pp_handle_types(b) : 0;
        return OK;
    case 17: /* memory pool */
        *out = device && b->sort == POOL ? (uintptr_t)&pools[b->device] : 0;
        return OK;
    case 18: /* how long its mapping is */
        *out = b->range.n;
        return OK;
    case 19: /* where that begins */
        *out = (uintptr_t)b->range.base;
        return OK;
    case 20: /* the number of its physical memory */
        *out = device ? pp_physical_id(b) : 0;
        return OK;
    default:
        return INVALID_VALUE;
    }
}

static void store(void *out, int attribute, uint64_t value)
{
    uint32_t narrow = (uint32_t)value;
    memcpy(out, is_wide(attribute) ? (void *)&value : (void *)&narrow, is_wide(attribute) ? 8 : 4);
}

int cuPointerGetAttribute(void *out, int attribute, uintptr_t ptr)
{
    uint64_t value = 0;
    int r = pp_begin(__func__);
    if (!r)
        r = attribute_of(&value, attribute, (void *)ptr);
    if (!r || (r == INVALID_VALUE && attribute == 1))
        store(out, attribute, value);
    return pp_end(r);
}

int cuPointerGetAttributes(unsigned n, const int *attributes, void **outs, uintptr_t ptr)
{
    int r = pp_begin(__func__);
    for (unsigned i = 0; i < n && !r; i++) {
        uint64_t value = 0;
        if (attribute_of(&value, attributes[i], (void *)ptr))
            value = attributes[i] == 9 ? (uint64_t)-2 : 0;
        store(outs[i], attributes[i], value);
    }
    return pp_end(r);
}

int cuMemGetAddressRange_v2(uintptr_t *base_out, size_t *n_out, uintptr_t ptr)
{
    int r = pp_begin_in(__func__);
    const block_t *b = r ? NULL : pp_block((void *)ptr);
    if (!r && !b)
        r = NOT_FOUND;
    if (!r && base_out)
        *base_out = (uintptr_t)b->range.base;
    if (!r && n_out)
        *n_out = b->range.n;
    return pp_end(r);
}

int cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
    int r = pp_begin_in(__func__);
    if (!r) {
        size_t used = pp_used[pp_current()->device];
        *free_out = used < paper.memory ? paper.memory - used : 0;
        *total_out = paper.memory;
    }
    return pp_end(r);
}
