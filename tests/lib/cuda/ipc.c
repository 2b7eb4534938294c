/* tests/lib/cuda/ipc.c - memory of a device made of paper that other processes open by a handle of 64 bytes.
 *
 * The first handle of a block moves it into a memory file of its own, which stays open as long as the block lives. The handle
 * says which process and which descriptor, and the file's name has a secret that no other block has: so a handle of memory that
 * was freed, or of a process that died, opens nothing. A mapping keeps what it maps, whatever its owner does. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parts.h"

typedef struct handle {
    char magic[8];
    int32_t pid, fd;
    uint64_t n, secret;
    int32_t device;
    uint8_t rest[28];
} handle_t; /* as large as CUDA's */
_Static_assert(sizeof(handle_t) == 64, "a handle has 64 bytes");

static const char magic[8] = "paperipc";

static void name_of(char *out, size_t size, uint64_t secret)
{
    snprintf(out, size, "paper-%016llx", (unsigned long long)secret);
}

/* Its bytes move to a file that has a name, at the same address. */
static int give_name(block_t *b)
{
    char name[48];
    uint64_t secret = pp_secret();
    name_of(name, sizeof name, secret);
    int fd = pp_memfd(name, b->range.n);
    if (fd < 0)
        return OUT_OF_MEMORY;
    for (size_t done = 0; done < b->range.n;) {
        ssize_t n = pwrite(fd, pp_view(b->range.base) + done, b->range.n - done, (off_t)done);
        if (n <= 0) {
            close(fd);
            return OUT_OF_MEMORY;
        }
        done += (size_t)n;
    }
    if (!pp_space_map(b->range.base, b->range.n, fd, false)) {
        close(fd);
        return OUT_OF_MEMORY;
    }
    b->fd = fd;
    b->secret = secret;
    return OK;
}

int cuIpcGetMemHandle(handle_t *out, uintptr_t ptr)
{
    int r = pp_begin_in(__func__);
    block_t *b = r ? NULL : pp_block((void *)ptr);
    if (!r && (!b || b->sort != PLAIN || b->no_context || b->freeing))
        r = INVALID_VALUE;
    if (!r && !pp_fits(b))
        r = INVALID_CONTEXT;
    if (!r && b->fd < 0)
        r = give_name(b);
    if (!r) {
        handle_t h = {.pid = getpid(), .fd = b->fd, .n = b->range.n, .secret = b->secret, .device = b->device};
        memcpy(h.magic, magic, sizeof magic);
        *out = h;
        paper.exports++;
    }
    return pp_end(r);
}

/* What this device of this process has open of it. */
static block_t *opened(const handle_t *h, int device)
{
    for (size_t i = 0; i < pp_blocks.count; i++) {
        block_t *b = (block_t *)pp_blocks.at[i];
        if (b->sort == IMPORTED && b->secret == h->secret && b->ctx->device == device)
            return b;
    }
    return NULL;
}

static int map(const handle_t *h, block_t **out)
{
    char path[48], name[48];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
    name_of(name, sizeof name, h->secret);
    int fd = open(path, O_RDWR | O_CLOEXEC), r = INVALID_VALUE;
    if (fd < 0)
        return r;
    if (pp_fd_is(fd, name) && lseek(fd, 0, SEEK_END) == (off_t)pp_page(h->n)) {
        void *p = pp_space_take(h->n, 0, NULL);
        r = !p ? OUT_OF_MEMORY : pp_space_map(p, h->n, fd, false) ? OK : OUT_OF_MEMORY;
        if (!r)
            *out = pp_block_new(p, h->n, IMPORTED, pp_current(), h->device);
        else if (p)
            pp_space_give(p);
    }
    close(fd);
    return r;
}

int cuIpcOpenMemHandle_v2(uintptr_t *out, handle_t h, unsigned flags)
{
    int r = pp_begin_in(__func__);
    block_t *b = NULL;
    if (!r && (flags != 1 || memcmp(h.magic, magic, sizeof magic) || !h.n || h.device < 0 || h.device >= pp_devices))
        r = INVALID_VALUE;
    if (!r && h.pid == getpid())
        r = INVALID_CONTEXT;
    if (!r && h.device != pp_current()->device && paper.no_peer)
        r = PEER_ACCESS_UNSUPPORTED;
    if (!r)
        b = opened(&h, pp_current()->device);
    if (!r && b && (b->ctx != pp_current() || b->freeing))
        r = INVALID_CONTEXT; /* one context of a device at a time */
    if (!r && !b) {
        r = map(&h, &b);
        if (!r) {
            b->secret = h.secret;
            paper.live_imports++;
        }
    }
    if (!r) {
        b->opens++;
        paper.imports++;
        *out = (uintptr_t)b->range.base;
    }
    return pp_end(r);
}

int cuIpcCloseMemHandle(uintptr_t ptr)
{
    int r = pp_begin_in(__func__);
    block_t *b = r ? NULL : pp_block((void *)ptr);
    if (!r && (!b || b->sort != IMPORTED || b->range.base != (void *)ptr || b->freeing))
        r = INVALID_VALUE;
    if (!r && !pp_fits(b))
        r = INVALID_CONTEXT;
    if (!r && !--b->opens) {
        b->freeing = true;
        pp_free_waits();
        b = pp_wait_unused(b);
        if (b)
            pp_block_free(b);
    }
    return pp_end(r);
}
