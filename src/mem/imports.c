/* mem/imports.c - memory of other processes that this runtime has open, kept for the next time (kept.c).
 *
 * There are at most wefti_imports_max: a new one takes the place of the one that was idle for longest.
 *
 * A program may hold one beyond the end of its runtime, by a message that was lent (wefti_mem_import_part). It is then PARTED: in
 * no list, and closed by whoever lets go of it last, on any thread.
 *
 * The name of an export is all that is compared: it changes when memory is freed and allocated again (cuda_share.c).
 *
 * Promise: what is in use is never given back. tests/unit/mem_share.c. */
#include <unistd.h>

#include "base/alloc.h"
#include "mem/local.h"

#define KEEP WEFT_SECOND

uint32_t wefti_imports_max = 64;

struct wefti_import {
    wefti_kept_t kept;
    const wefti_device_ops_t *ops;
    wefti_imported_t at;
};

static void forget(wefti_kept_t *k)
{
    wefti_import_t *i = wefti_container_of(k, wefti_import_t, kept);
    i->ops->unimport(&i->at);
    wefti_free(i);
}

void wefti_imports_init(wefti_imports_t *all, weft_runtime_t *rt)
{
    all->keeper =
        (wefti_keeper_t){.rt = rt, .keep_ns = KEEP, .forget = forget, .may = wefti_mem_calm, .what = "memory of a peer's device"};
    wefti_keeper_init(&all->keeper);
}

static weft_status_t import(const wefti_device_ops_t *ops, const wefti_export_t *from, const void *near, wefti_take_fd_fn take_fd,
                            void *arg, wefti_imported_t *at_out)
{
    int fd = from->sort == WEFTI_EXPORT_CUDA_FD && take_fd ? take_fd(arg, from->fd) : -1;
    weft_status_t st = ops->import(from, fd, near, at_out);
    if (fd >= 0)
        close(fd);
    return st;
}

static weft_status_t open_new(wefti_imports_t *all, const wefti_export_t *from, const void *near, wefti_take_fd_fn take_fd,
                              void *arg, wefti_import_t **import_out)
{
    const wefti_device_ops_t *ops = wefti_device_ops_of_export(from->sort);
    if (!ops)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "memory of a peer's device of an unknown sort (%u)", from->sort);
    if (!wefti_kept_space(&all->keeper, wefti_imports_max))
        return wefti_fail(WEFT_ERR_LIMIT, "memory of peers' devices: %u ranges are in use, and there can be no more",
                          all->keeper.n);
    wefti_import_t *i = wefti_calloc(1, sizeof *i);
    if (!i)
        return WEFT_ERR_NOMEM;
    weft_status_t st = import(ops, from, near, take_fd, arg, &i->at);
    if (st) {
        wefti_free(i);
        return st;
    }
    i->ops = ops;
    wefti_kept_add(&all->keeper, &i->kept, from->name);
    all->opened++;
    *import_out = i;
    return WEFT_OK;
}

weft_status_t wefti_mem_import(weft_runtime_t *rt, const wefti_export_t *from, size_t n, const void *near,
                               wefti_take_fd_fn take_fd, void *arg, wefti_import_t **import_out, void **ptr_out)
{
    wefti_imports_t *all = &wefti_mem_of(rt)->imports;
    wefti_kept_t *k = wefti_kept_find(&all->keeper, from->name);
    wefti_import_t *i = k ? wefti_container_of(k, wefti_import_t, kept) : NULL;
    if (i && !k->refs && !i->ops->is_there(&i->at)) { /* it went with the context that it was opened in */
        wefti_kept_drop(&all->keeper, k);
        i = NULL;
    }
    weft_status_t st = i ? WEFT_OK : open_new(all, from, near, take_fd, arg, &i);
    if (st)
        return st;
    i->kept.refs++;
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

void wefti_mem_distrust(wefti_import_t *i)
{
    i->kept.distrusted = true;
}

void wefti_mem_import_part(weft_runtime_t *rt, wefti_import_t *i)
{
    if (!i->kept.parted)
        wefti_kept_part(&wefti_mem_of(rt)->imports.keeper, &i->kept);
}

void wefti_mem_unimport(weft_runtime_t *rt, wefti_import_t *i)
{
    if (!i->kept.parted) { /* memory of this process may be freed at any time, so it is not kept */
        wefti_kept_unref(&wefti_mem_of(rt)->imports.keeper, &i->kept, i->at.here || i->kept.distrusted);
        return;
    }
    if (atomic_fetch_sub_explicit(&i->kept.refs, 1, memory_order_acq_rel) == 1)
        forget(&i->kept);
}
