/* mem/held.c - descriptors of device memory that are open because peers are told of them.
 *
 * A peer takes a descriptor out of this process by its number, and numbers are used again: so one that a peer was told of stays
 * open until nobody can be about to take it, which is when the operation is over or the lane closed. Several operations on the
 * same allocation have one descriptor. It stays KEEP longer, for the next one, and for a lane that is closed in the same moment;
 * not more, because memory whose owner has freed it is not free while the descriptor is open. Who has imported it needs it no more
 * (imports.c).
 *
 * Promise: what a peer finds behind the number of an operation that is under way is that memory. tests/unit/mem_share.c. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "mem/local.h"

#define KEEP (WEFT_SECOND / 100)

uint32_t wefti_held_max = 64;

struct wefti_held {
    wefti_list_t link;
    uint8_t name[16]; /* of the allocation */
    uint32_t refs;
    uint64_t idle_since;
    int fd;
};

static void let_go(wefti_helds_t *all, wefti_held_t *h)
{
    wefti_list_remove(&h->link);
    close(h->fd);
    wefti_free(h);
    all->n--;
}

static void on_sweep(wefti_timer_t *t)
{
    wefti_helds_t *all = wefti_container_of(t, wefti_helds_t, timer);
    bool more = false;
    wefti_list_each_safe(l, &all->list) {
        wefti_held_t *h = wefti_container_of(l, wefti_held_t, link);
        if (!h->refs && all->rt->now - h->idle_since >= KEEP)
            let_go(all, h);
        else
            more = more || !h->refs;
    }
    if (more)
        (void)wefti_timer_at(all->rt, &all->timer, all->rt->now + KEEP); /* without memory for it: when the next becomes idle */
}

void wefti_helds_init(wefti_helds_t *all, weft_runtime_t *rt)
{
    all->rt = rt;
    all->timer.fn = on_sweep;
    wefti_list_init(&all->list);
}

void wefti_helds_close(wefti_helds_t *all)
{
    wefti_list_each_safe(l, &all->list) {
        wefti_held_t *h = wefti_container_of(l, wefti_held_t, link);
        if (h->refs)
            wefti_error("mem: a runtime ends with device memory still held for a peer");
        let_go(all, h);
    }
}

static wefti_held_t *find(wefti_helds_t *all, const uint8_t *name)
{
    wefti_list_each(l, &all->list) {
        wefti_held_t *h = wefti_container_of(l, wefti_held_t, link);
        if (!memcmp(h->name, name, sizeof h->name))
            return h;
    }
    return NULL;
}

/* Is there space for one more? One that nobody uses makes it. */
static bool space(wefti_helds_t *all)
{
    for (wefti_list_t *l = all->list.prev; all->n >= wefti_held_max && l != &all->list;) {
        wefti_held_t *h = wefti_container_of(l, wefti_held_t, link);
        l = l->prev;
        if (!h->refs)
            let_go(all, h);
    }
    return all->n < wefti_held_max;
}

static wefti_held_t *hold(wefti_helds_t *all, const uint8_t *name, int fd)
{
    wefti_held_t *h = fd < 0 ? NULL : wefti_calloc(1, sizeof *h);
    if (!h) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    memcpy(h->name, name, sizeof h->name);
    h->fd = fd;
    wefti_list_push_front(&all->list, &h->link);
    all->n++;
    return h;
}

wefti_held_t *wefti_mem_export_held(weft_runtime_t *rt, const weft_mem_kind_t *device, const void *ptr, size_t n,
                                    wefti_export_t *export_out)
{
    wefti_helds_t *all = &wefti_mem_of(rt)->helds;
    const wefti_device_ops_t *ops = wefti_device_ops(device);
    wefti_export_t export;
    if (!ops || !ops->export_fd(ptr, n, &export))
        return NULL;
    wefti_held_t *h = find(all, export.name);
    if (!h && space(all))
        h = hold(all, export.name, ops->fd_of(ptr));
    if (!h)
        return NULL;
    h->refs++;
    export.fd = h->fd;
    *export_out = export;
    return h;
}

void wefti_mem_unhold(weft_runtime_t *rt, wefti_held_t *held)
{
    wefti_helds_t *all = &wefti_mem_of(rt)->helds;
    if (!held || --held->refs)
        return;
    held->idle_since = rt->now;
    if (!wefti_heap_linked(&all->timer.node))
        (void)wefti_timer_at(rt, &all->timer, rt->now + KEEP);
}
