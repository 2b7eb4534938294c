/* mem/cuda_kinds.c - CUDA memory that cuMemAlloc does not give: from the memory pool of a device ("cuda-async"), and mapped by
 * hand ("cuda-vmm", and "cuda-fd", which other processes can be let have); and which of CUDA's kinds this machine has.
 *
 * An address does not show which of them it is of, and weft_mem_kind_of() says "cuda" for all: only allocating and freeing
 * differ. Such memory belongs to a device and to no context.
 *
 * A pool gives and takes memory in the order of a stream, and there is one of ours for each device, in its primary context.
 * Allocating waits for it, so the memory can be used anywhere; freeing does not wait, and what is allocated later comes after
 * it. Memory that is mapped by hand goes at once: as with any kind, nothing may use it any more.
 *
 * Any thread. tests/unit/mem_cuda.c runs this against a fake driver, tests/gpu/mem_cuda.c against the real one. */
#include "base/log.h"
#include "mem/cuda.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of streams */
static cu_stream_t streams[WEFTI_CUDA_DEVICES_MAX];      /* NULL: not made yet */

/* --- which there are -------------------------------------------------------------------------------------------------------- */

static bool some_device_has(int attribute)
{
    for (int i = 0; i < wefti_cuda_devices; i++) {
        cu_device_t device;
        int yes = 0;
        if (!wefti_cu.device_get(&device, i) && !wefti_cu.device_attribute(&yes, attribute, device) && yes)
            return true;
    }
    return false;
}

static bool has(int attribute, const char *what)
{
    if (some_device_has(attribute))
        return true;
    wefti_fail(WEFT_ERR_UNSUPPORTED, "no CUDA device of this machine has %s", what);
    return false;
}

static bool knows(bool yes, const char *function)
{
    if (!yes)
        wefti_fail(WEFT_ERR_UNSUPPORTED, "the CUDA driver of this machine is too old: it has no %s", function);
    return yes;
}

bool wefti_cuda_has(const weft_mem_kind_t *kind)
{
    const wefti_cu_t *cu = &wefti_cu;
    if (kind == &wefti_mem_kind_managed)
        return has(CU_DEVICE_MANAGED_MEMORY, "managed memory");
    if (kind == &wefti_mem_kind_cuda_async)
        return knows(cu->alloc_async && cu->free_async, "cuMemAllocAsync") && has(CU_DEVICE_MEMORY_POOLS, "memory pools");
    if (kind == &wefti_mem_kind_cuda_fd && !knows(cu->physical_of && cu->physical_export, "cuMemExportToShareableHandle"))
        return false;
    if (kind == &wefti_mem_kind_cuda_vmm || kind == &wefti_mem_kind_cuda_fd)
        return knows(wefti_cuda_maps() && cu->granularity && cu->physical_new, "cuMemCreate") &&
               has(CU_DEVICE_VIRTUAL_MEMORY, "memory that programs map") &&
               (kind == &wefti_mem_kind_cuda_vmm || has(CU_DEVICE_HANDLES_FD, "memory with file descriptors"));
    return true;
}

/* --- allocating and freeing ------------------------------------------------------------------------------------------------- */

/* On which device does this thread allocate? */
static cu_result_t device_here(int *device_out)
{
    bool pushed;
    cu_device_t device = 0; /* devices are numbered by their ordinals */
    cu_result_t r = wefti_cuda_enter_any(&pushed);
    if (r)
        return r;
    r = wefti_cu.ctx_device(&device);
    wefti_cuda_leave(pushed);
    *device_out = device < wefti_cuda_devices ? device : 0;
    return r;
}

static weft_status_t alloc_here(size_t n, void **ptr_out, const char *what,
                                cu_result_t (*alloc_on)(int device, size_t n, cu_ptr_t *ptr_out))
{
    cu_ptr_t p = 0;
    int device = 0;
    weft_status_t st = wefti_cuda_usable();
    if (st)
        return st;
    cu_result_t r = device_here(&device);
    if (!r)
        r = alloc_on(device, n, &p);
    if (r)
        return wefti_cuda_fail(r, what, n);
    wefti_cuda_seen(device);
    *ptr_out = (void *)(uintptr_t)p;
    return WEFT_OK;
}

static void free_there(void *ptr, size_t n, cu_result_t (*free_on)(int device, cu_ptr_t ptr, size_t n))
{
    if (!wefti_cuda_in_use())
        return; /* in a child: the memory is the parent's */
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    int device = place.ordinal >= 0 && place.ordinal < wefti_cuda_devices ? place.ordinal : 0;
    cu_result_t r = free_on(device, (cu_ptr_t)(uintptr_t)ptr, n);
    if (r) /* its device was reset, and its memory with it; or the process is ending */
        wefti_debug("mem: freeing %zu bytes of CUDA memory: %s", n, wefti_cuda_words(r));
}

/* --- of a pool -------------------------------------------------------------------------------------------------------------- */

/* In the primary context of the device. */
static cu_result_t stream_of(int device, cu_stream_t *stream_out)
{
    cu_result_t r = CU_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!streams[device]) {
        r = wefti_cu.stream_new(&streams[device], CU_STREAM_NON_BLOCKING);
        if (r)
            streams[device] = NULL;
    }
    *stream_out = streams[device];
    pthread_mutex_unlock(&lock);
    return r;
}

static void stream_lost(int device, cu_stream_t stream)
{
    pthread_mutex_lock(&lock);
    if (streams[device] == stream)
        streams[device] = NULL;
    pthread_mutex_unlock(&lock);
}

static cu_result_t allocate(cu_ptr_t *ptr, size_t n, cu_stream_t stream)
{
    cu_result_t r = wefti_cu.alloc_async(ptr, n, stream);
    if (r)
        return r;
    r = wefti_cu.stream_wait(stream);
    if (r)
        wefti_cu.free_async(*ptr, stream);
    return r;
}

/* Allocate n bytes, or free *ptr (n 0). A program that resets the device takes our stream with it: then a new one is tried. */
static cu_result_t pool_do(int device, cu_ptr_t *ptr, size_t n)
{
    cu_result_t r = wefti_cuda_enter_primary(device);
    if (r)
        return r;
    for (int tries = 0; tries < 2; tries++) {
        cu_stream_t stream;
        r = stream_of(device, &stream);
        if (!r)
            r = n ? allocate(ptr, n, stream) : wefti_cu.free_async(*ptr, stream);
        if (!wefti_cuda_stale(r))
            break;
        stream_lost(device, stream);
    }
    wefti_cuda_leave(true);
    return r;
}

static cu_result_t pool_alloc(int device, size_t n, cu_ptr_t *ptr_out)
{
    return pool_do(device, ptr_out, n);
}

static cu_result_t pool_free(int device, cu_ptr_t ptr, size_t n)
{
    (void)n;
    return pool_do(device, &ptr, 0);
}

static weft_status_t async_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    (void)kind;
    return alloc_here(n, ptr_out, "allocating CUDA memory of a pool", pool_alloc);
}

static void async_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)kind;
    free_there(ptr, n, pool_free);
}

/* --- mapped by hand --------------------------------------------------------------------------------------------------------- */

bool wefti_cuda_maps(void)
{
    const wefti_cu_t *cu = &wefti_cu;
    return cu->physical_free && cu->space_new && cu->space_free && cu->map && cu->unmap && cu->access_set;
}

/* What is asked for on a device, and how many bytes that takes: a multiple of what it maps at a time. */
static cu_result_t measure(int device, int handle_types, cu_physical_t *want, size_t *n)
{
    size_t step = 0;
    *want = (cu_physical_t){.type = CU_PHYSICAL_PINNED, .handle_types = handle_types, .location = {CU_LOCATION_DEVICE, device}};
    cu_result_t r = wefti_cu.granularity(&step, want, CU_GRANULARITY_MINIMUM);
    if (r)
        return r;
    if (!step || *n > SIZE_MAX - step)
        return CU_OUT_OF_MEMORY;
    *n = (*n + step - 1) / step * step;
    return CU_SUCCESS;
}

/* Its own device reads and writes it, and so do those that can: copies between two devices need it. */
static cu_result_t give_access(cu_ptr_t ptr, size_t n, int device)
{
    cu_access_t access = {{CU_LOCATION_DEVICE, device}, CU_ACCESS_READ_WRITE};
    cu_result_t r = wefti_cu.access_set(ptr, n, &access, 1);
    for (int i = 0; !r && i < wefti_cuda_devices; i++)
        if (i != device) {
            access.location.id = i;
            (void)wefti_cu.access_set(ptr, n, &access, 1);
        }
    return r;
}

cu_result_t wefti_cuda_map(cu_handle_t handle, int device, size_t n, cu_ptr_t *ptr_out)
{
    cu_ptr_t ptr = 0;
    cu_result_t r = wefti_cu.space_new(&ptr, n, 0, 0, 0);
    if (r)
        return r;
    r = wefti_cu.map(ptr, n, 0, handle, 0);
    if (r)
        goto err_space;
    r = give_access(ptr, n, device);
    if (r)
        goto err_map;
    *ptr_out = ptr;
    return CU_SUCCESS;

err_map:
    wefti_cu.unmap(ptr, n);
err_space:
    wefti_cu.space_free(ptr, n);
    return r;
}

cu_result_t wefti_cuda_unmap(cu_ptr_t ptr, size_t n)
{
    cu_result_t r = wefti_cu.unmap(ptr, n);
    return r ? r : wefti_cu.space_free(ptr, n);
}

static cu_result_t map_new(int device, int handle_types, size_t n, cu_ptr_t *ptr_out)
{
    cu_physical_t want;
    cu_handle_t handle;
    cu_result_t r = measure(device, handle_types, &want, &n);
    if (r)
        return r;
    r = wefti_cu.physical_new(&handle, n, &want, 0);
    if (r)
        return r;
    r = wefti_cuda_map(handle, device, n, ptr_out);
    wefti_cu.physical_free(handle); /* it stays as long as it is mapped */
    return r;
}

static cu_result_t map_alloc(int device, size_t n, cu_ptr_t *ptr_out)
{
    return map_new(device, 0, n, ptr_out);
}

static cu_result_t fd_alloc(int device, size_t n, cu_ptr_t *ptr_out)
{
    return map_new(device, CU_HANDLE_FD, n, ptr_out);
}

static cu_result_t map_free(int device, cu_ptr_t ptr, size_t n)
{
    cu_physical_t want;
    cu_result_t r = measure(device, 0, &want, &n);
    return r ? r : wefti_cuda_unmap(ptr, n);
}

static cu_result_t fd_free(int device, cu_ptr_t ptr, size_t n)
{
    cu_physical_t want;
    cu_result_t r = measure(device, CU_HANDLE_FD, &want, &n);
    return r ? r : wefti_cuda_unmap(ptr, n);
}

static weft_status_t vmm_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    return alloc_here(n, ptr_out, "mapping CUDA memory", kind == &wefti_mem_kind_cuda_fd ? fd_alloc : map_alloc);
}

static void map_free_now(void *ptr, size_t n)
{
    free_there(ptr, n, map_free);
}

static void fd_free_now(void *ptr, size_t n)
{
    free_there(ptr, n, fd_free);
}

static void vmm_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    wefti_cuda_when_calm(kind == &wefti_mem_kind_cuda_fd ? fd_free_now : map_free_now, ptr, n);
}

const weft_mem_kind_t wefti_mem_kind_cuda_async = {
    .size = sizeof(weft_mem_kind_t),
    .name = "cuda-async",
    .alloc = async_alloc,
    .free = async_free,
    .copy = wefti_cuda_copy,
};

const weft_mem_kind_t wefti_mem_kind_cuda_vmm = {
    .size = sizeof(weft_mem_kind_t),
    .name = "cuda-vmm",
    .alloc = vmm_alloc,
    .free = vmm_free,
    .copy = wefti_cuda_copy,
};

const weft_mem_kind_t wefti_mem_kind_cuda_fd = {
    .size = sizeof(weft_mem_kind_t),
    .name = "cuda-fd",
    .alloc = vmm_alloc,
    .free = vmm_free,
    .copy = wefti_cuda_copy,
};
