/* mem/imports.c - memory of other processes that this runtime has open, kept for the next time.
 *
 * An import is IN USE (refs > 0) or IDLE. Idle ones stay for KEEP, because importing takes 0.1 ms and more; but not longer,
 * because memory that its owner has freed stays allocated for as long as we have it. There are at most wefti_imports_max: a new
 * one takes the place of the one that was idle for longest. They lie in a list, the last used first; looking through it costs
 * less than the copy that follows.
 *
 * A program may hold one beyond the end of its runtime, by a message that was lent (wefti_mem_import_part). It is then PARTED: in
 * no list, and closed by whoever lets go of it last, on any thread.
 *
 * The name of an export is all that is compared: it changes when memory is freed and allocated again (cuda_share.c).
 *
 * Promise: what is in use is never given back; what is idle is, within two KEEP of a runtime that is driven, and at its end.
 * tests/unit/mem_share.c. */
#include <string.h>

#include "base/alloc.h"
#include "mem/local.h"

#define KEEP WEFT_SECOND

uint32_t wefti_imports_max = 64;

struct wefti_import {
    wefti_list_t link;
    uint8_t name[16];
    _Atomic uint32_t refs; /* other threads only change it when it is parted */
    bool parted;
    uint64_t idle_since;
    const wefti_device_ops_t *ops;
    wefti_imported_t at;
};

static void forget(wefti_imports_t *all, wefti_import_t *i)
{
    wefti_list_remove(&i->link);
    i->ops->unimport(&i->at);
    wefti_free(i);
    all->n--;
}

/* The one that was idle for longest; NULL: all are in use. */
static wefti_import_t *longest_idle(wefti_imports_t *all)
{
    for (wefti_list_t *l = all->list.prev; l != &all->list; l = l->prev)
        if (!wefti_container_of(l, wefti_import_t, link)->refs)
            return wefti_container_of(l, wefti_import_t, link);
    return NULL;
}

static void on_sweep(wefti_timer_t *t)
{
    wefti_imports_t *all = wefti_container_of(t, wefti_imports_t, timer);
    uint64_t now = all->rt->now;
    bool more = false;
    wefti_list_each_safe(l, &all->list) {
        wefti_import_t *i = wefti_container_of(l, wefti_import_t, link);
        if (!i->refs && now - i->idle_since >= KEEP)
            forget(all, i);
        else
            more = more || !i->refs;
    }
    if (more)
        (void)wefti_timer_at(all->rt, &all->timer, now + KEEP); /* without memory for it: when the next becomes idle */
}

void wefti_imports_init(wefti_imports_t *all, weft_runtime_t *rt)
{
    all->rt = rt;
    all->timer.fn = on_sweep;
    wefti_list_init(&all->list);
}

void wefti_imports_close(wefti_imports_t *all)
{
    wefti_list_each_safe(l, &all->list) {
        wefti_import_t *i = wefti_container_of(l, wefti_import_t, link);
        if (i->refs)
            wefti_error("mem: a runtime ends with memory of a peer's device still in use");
        forget(all, i);
    }
}

static wefti_import_t *find(wefti_imports_t *all, const uint8_t *name)
{
    wefti_list_each(l, &all->list) {
        wefti_import_t *i = wefti_container_of(l, wefti_import_t, link);
        if (!memcmp(i->name, name, sizeof i->name))
            return i;
    }
    return NULL;
}

static weft_status_t open_new(wefti_imports_t *all, const wefti_export_t *from, const void *near, wefti_import_t **import_out)
{
    const wefti_device_ops_t *ops = wefti_device_ops_of_export(from->sort);
    if (!ops)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "memory of a peer's device of an unknown sort (%u)", from->sort);
    if (all->n >= wefti_imports_max) {
        wefti_import_t *old = longest_idle(all);
        if (!old)
            return wefti_fail(WEFT_ERR_LIMIT, "memory of peers' devices: %u ranges are in use, and there can be no more", all->n);
        forget(all, old);
    }
    wefti_import_t *i = wefti_calloc(1, sizeof *i);
    if (!i)
        return WEFT_ERR_NOMEM;
    weft_status_t st = ops->import(from, near, &i->at);
    if (st) {
        wefti_free(i);
        return st;
    }
    i->ops = ops;
    memcpy(i->name, from->name, sizeof i->name);
    wefti_list_push_front(&all->list, &i->link);
    all->n++;
    all->opened++;
    *import_out = i;
    return WEFT_OK;
}

weft_status_t wefti_mem_import(weft_runtime_t *rt, const wefti_export_t *from, size_t n, const void *near,
                               wefti_import_t **import_out, void **ptr_out)
{
    wefti_imports_t *all = &wefti_mem_of(rt)->imports;
    wefti_import_t *i = find(all, from->name);
    if (i && !i->refs && !i->ops->is_there(&i->at)) { /* it went with the context that it was opened in */
        forget(all, i);
        i = NULL;
    }
    if (i && all->list.next != &i->link) {
        wefti_list_remove(&i->link);
        wefti_list_push_front(&all->list, &i->link);
    } else if (!i) {
        weft_status_t st = open_new(all, from, near, &i);
        if (st)
            return st;
        i->idle_since = rt->now;
    }
    i->refs++;
    if (from->offset > i->at.size || n > i->at.size - from->offset) {
        size_t size = i->at.size;
        wefti_mem_unimport(rt, i);
        return wefti_fail(WEFT_ERR_RANGE, "%zu bytes from %llu on are not within memory of %zu bytes of a peer's device", n,
                          (unsigned long long)from->offset, size);
    }
    *import_out = i;
    *ptr_out = (char *)i->at.base + from->offset;
    return WEFT_OK;
}

void wefti_mem_import_part(weft_runtime_t *rt, wefti_import_t *i)
{
    if (i->parted)
        return;
    i->parted = true;
    wefti_list_remove(&i->link);
    wefti_mem_of(rt)->imports.n--;
}

void wefti_mem_unimport(weft_runtime_t *rt, wefti_import_t *i)
{
    if (atomic_fetch_sub_explicit(&i->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (i->parted) {
        i->ops->unimport(&i->at);
        wefti_free(i);
        return;
    }
    wefti_imports_t *all = &wefti_mem_of(rt)->imports;
    i->idle_since = rt->now;
    if (i->at.here) { /* nothing to keep: memory of this process may be freed at any time */
        forget(all, i);
        return;
    }
    if (!wefti_heap_linked(&all->timer.node))
        (void)wefti_timer_at(rt, &all->timer, rt->now + KEEP);
}
