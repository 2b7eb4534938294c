/* mem/cuda_device.c - CUDA behind the door of devices (device.h), and which kinds stand behind it. */
#include "mem/cuda.h"

/* Shorter payloads in managed memory are the processor's: where it is in host memory, that takes less than to ask the GPU. */
uint64_t wefti_managed_min = 512u << 10;

static const wefti_device_ops_t cuda_ops = {
    .open = wefti_cuda_copies_open,
    .close = wefti_cuda_copies_close,
    .copy_add = wefti_cuda_copy_add,
    .copy_end = wefti_cuda_copy_end,
    .copy_look = wefti_cuda_copy_look,
    .copy_stuck = wefti_cuda_copy_stuck,
    .export = wefti_cuda_export,
    .export_fd = wefti_cuda_export_fd,
    .fd_of = wefti_cuda_fd_of,
    .import = wefti_cuda_import,
    .unimport = wefti_cuda_unimport,
    .is_there = wefti_cuda_import_is_there,
    .is_pinned = wefti_cuda_is_pinned,
};

bool wefti_cuda_kind(const weft_mem_kind_t *kind)
{
    return kind == &wefti_mem_kind_cuda || kind == &wefti_mem_kind_managed || kind == &wefti_mem_kind_cuda_async ||
           kind == &wefti_mem_kind_cuda_vmm || kind == &wefti_mem_kind_cuda_fd;
}

const wefti_device_ops_t *wefti_device_ops(const weft_mem_kind_t *kind)
{
    return wefti_cuda_kind(wefti_pool_base_kind(kind)) ? &cuda_ops : NULL;
}

const wefti_device_ops_t *wefti_device_ops_of_export(uint32_t sort)
{
    return sort == WEFTI_EXPORT_CUDA_IPC || sort == WEFTI_EXPORT_CUDA_FD ? &cuda_ops : NULL;
}

bool wefti_mem_export(const weft_mem_kind_t *device, const void *ptr, size_t n, wefti_export_t *export_out)
{
    const wefti_device_ops_t *ops = wefti_device_ops(device);
    return ops && ops->export(ptr, n, export_out);
}

const weft_mem_kind_t *wefti_mem_mover_of(const void *ptr, uint64_t n)
{
    if (n < wefti_managed_min || !wefti_cuda_in_use() || weft_mem_kind_of(ptr) != &wefti_mem_kind_managed)
        return NULL;
    return &wefti_mem_kind_managed;
}

bool wefti_mem_pin(void *base, size_t n)
{
    return wefti_cuda_pin(base, n);
}

void wefti_mem_unpin(void *base)
{
    wefti_cuda_unpin(base);
}

void wefti_mem_when_calm(void (*fn)(void *ptr, size_t n), void *ptr, size_t n)
{
    wefti_cuda_when_calm(fn, ptr, n);
}

bool wefti_mem_calm(void)
{
    return wefti_cuda_calm();
}

const weft_mem_kind_t *wefti_device_kind(void)
{
    return &wefti_mem_kind_cuda;
}

bool wefti_device_known(const weft_mem_kind_t *kind)
{
    return kind && wefti_device_ops(kind);
}

bool wefti_mem_imports(void)
{
    return wefti_cuda_in_use();
}

bool wefti_mem_are_pinned(const weft_iov_t *iov, uint64_t n)
{
    for (; n; iov++) {
        if (iov->len && !cuda_ops.is_pinned(iov->base))
            return false;
        n -= iov->len < n ? iov->len : n;
    }
    return true;
}
