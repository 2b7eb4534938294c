/* mem/held.c - descriptors of device memory that are open because peers are told of them.
 *
 * A peer takes a descriptor out of this process by its number, and numbers are used again: so one that a peer was told of stays
 * open until nobody can be about to take it, which is when the operation is over or the lane closed. Several operations on the
 * same allocation have one descriptor. It stays KEEP longer, for the next one, and for a lane that is closed in the same moment.
 * Who has imported it needs it no more (imports.c).
 *
 * Promise: what a peer finds behind the number of an operation that is under way is that memory. tests/unit/mem_fd.c. */
#include <unistd.h>

#include "base/alloc.h"
#include "mem/local.h"

#define KEEP (WEFT_SECOND / 100)

uint32_t wefti_held_max = 64;

struct wefti_held {
    wefti_kept_t kept;
    int fd;
};

static void forget(wefti_kept_t *k)
{
    wefti_held_t *h = wefti_container_of(k, wefti_held_t, kept);
    close(h->fd);
    wefti_free(h);
}

void wefti_helds_init(wefti_keeper_t *all, weft_runtime_t *rt)
{
    *all = (wefti_keeper_t){.rt = rt, .keep_ns = KEEP, .forget = forget, .what = "device memory that a peer was told of"};
    wefti_keeper_init(all);
}

static wefti_held_t *hold(wefti_keeper_t *all, const uint8_t *name, int fd)
{
    wefti_held_t *h = fd < 0 ? NULL : wefti_calloc(1, sizeof *h);
    if (!h) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    h->fd = fd;
    wefti_kept_add(all, &h->kept, name);
    return h;
}

wefti_held_t *wefti_mem_export_held(weft_runtime_t *rt, const weft_mem_kind_t *device, const void *ptr, size_t n,
                                    wefti_export_t *export_out)
{
    wefti_keeper_t *all = &wefti_mem_of(rt)->helds;
    const wefti_device_ops_t *ops = wefti_device_ops(device);
    wefti_export_t export;
    if (!ops || !ops->export_fd(ptr, n, &export))
        return NULL;
    wefti_kept_t *k = wefti_kept_find(all, export.name);
    wefti_held_t *h = k ? wefti_container_of(k, wefti_held_t, kept) : NULL;
    if (!h && wefti_kept_space(all, wefti_held_max))
        h = hold(all, export.name, ops->fd_of(ptr));
    if (!h)
        return NULL;
    h->kept.refs++;
    export.fd = h->fd;
    *export_out = export;
    return h;
}

void wefti_mem_unhold(weft_runtime_t *rt, wefti_held_t *held)
{
    if (held)
        wefti_kept_unref(&wefti_mem_of(rt)->helds, &held->kept, false);
}
