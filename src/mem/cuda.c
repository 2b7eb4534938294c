/* mem/cuda.c - memory of CUDA devices: allocating, recognising, copying, pinning. No other file but cuda_driver.c names CUDA.
 *
 * Contexts: what a thread has current is as it was when a call returns. Allocations are made in the context that is current,
 * else in the primary one of device 0 (or of the device whose memory was seen first). Everything done to a pointer is done in
 * the context it was allocated in, or, where CUDA does not say, in the primary one of its device; so it does not matter which
 * thread drives a runtime.
 *
 * Copies go through streams of our own that do not wait for the default stream, nor it for them. So what a program's kernels
 * write to a buffer must be complete before the buffer is handed over, as with any library that moves GPU memory.
 *
 * tests/unit/mem_cuda.c runs this against a fake driver, tests/gpu/mem_cuda.c against the real one. */
#include <string.h>

#include "base/log.h"
#include "mem/cuda.h"

#define STREAMS_MAX 32
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of primaries and streams */
static cu_context_t primaries[WEFTI_CUDA_DEVICES_MAX];   /* retained, never released */
static struct {
    unsigned long long context; /* its id, or its address where it has none */
    cu_stream_t stream;
    bool busy;
} streams[STREAMS_MAX]; /* stream NULL: free slot */

static _Atomic int home = -1;   /* the device whose memory was seen first */
static _Atomic uint32_t pinned; /* ranges */

static weft_status_t fail(cu_result_t r, const char *what, size_t n)
{
    if (r == CU_OUT_OF_MEMORY)
        return wefti_fail(WEFT_ERR_NOMEM, "%s %zu bytes: %s", what, n, wefti_cuda_words(r));
    wefti_error("mem: %s %zu bytes: %s", what, n, wefti_cuda_words(r));
    return wefti_fail(WEFT_ERR_SYSTEM, "%s %zu bytes: %s", what, n, wefti_cuda_words(r));
}

/* --- contexts --------------------------------------------------------------------------------------------------------------- */

static cu_result_t primary(int ordinal, cu_context_t *ctx_out)
{
    cu_result_t r = CU_SUCCESS;
    cu_device_t device;
    if (ordinal < 0 || ordinal >= wefti_cuda_devices)
        ordinal = 0;
    pthread_mutex_lock(&lock);
    if (!primaries[ordinal]) {
        r = wefti_cu.device_get(&device, ordinal);
        if (!r)
            r = wefti_cu.primary_retain(&primaries[ordinal], device);
        if (r)
            primaries[ordinal] = NULL;
    }
    *ctx_out = primaries[ordinal];
    pthread_mutex_unlock(&lock);
    return r;
}

static void seen_device(int ordinal)
{
    int none = -1;
    if (ordinal >= 0 && atomic_load_explicit(&home, memory_order_relaxed) < 0)
        atomic_compare_exchange_strong(&home, &none, ordinal);
}

/* Make a context current until leave(). */
static cu_result_t enter_primary(int ordinal)
{
    cu_context_t ctx;
    cu_result_t r = primary(ordinal, &ctx);
    return r ? r : wefti_cu.ctx_push(ctx);
}

static void leave(bool pushed)
{
    cu_context_t gone;
    if (pushed)
        wefti_cu.ctx_pop(&gone);
}

/* The caller's context, else the primary one of the home device. */
static cu_result_t enter_any(bool *pushed)
{
    cu_context_t ctx = NULL;
    cu_result_t r = wefti_cu.ctx_current(&ctx);
    *pushed = false;
    if (r || ctx)
        return r;
    r = enter_primary(atomic_load(&home));
    *pushed = !r;
    return r;
}

/* The context an address belongs to. */
static cu_result_t enter_for(const void *ptr, bool *pushed)
{
    cu_context_t ctx = NULL;
    int ordinal = -1;
    cu_result_t r;
    if (!wefti_cu.attribute(&ctx, CU_ATTR_CONTEXT, (cu_ptr_t)(uintptr_t)ptr) && ctx)
        r = wefti_cu.ctx_push(ctx);
    else if (!wefti_cu.attribute(&ordinal, CU_ATTR_DEVICE_ORDINAL, (cu_ptr_t)(uintptr_t)ptr) && ordinal >= 0)
        r = enter_primary(ordinal); /* from a memory pool, or mapped by hand: of a device, but of no context */
    else
        return enter_any(pushed);
    *pushed = !r;
    return r;
}

/* --- recognising ------------------------------------------------------------------------------------------------------------ */

enum { NOT_CUDA, DEVICE, MANAGED };

static int sort_of(const void *ptr)
{
    /* Wide and zeroed, whatever width the driver writes. It answers zeros for an address that is not CUDA's. */
    uint64_t type = 0, managed = 0;
    int64_t ordinal = 0;
    int which[3] = {CU_ATTR_MEMORY_TYPE, CU_ATTR_IS_MANAGED, CU_ATTR_DEVICE_ORDINAL};
    void *outs[3] = {&type, &managed, &ordinal};
    if (wefti_cu.attributes(3, which, outs, (cu_ptr_t)(uintptr_t)ptr))
        return NOT_CUDA;
    int sort = (uint8_t)managed ? MANAGED : (uint32_t)type == CU_MEMORYTYPE_DEVICE ? DEVICE : NOT_CUDA;
    if (sort == DEVICE)
        seen_device((int)ordinal);
    return sort;
}

static bool cuda_owns(const weft_mem_kind_t *kind, const void *ptr)
{
    return wefti_cuda_in_use() && sort_of(ptr) == (kind == &wefti_mem_kind_managed ? MANAGED : DEVICE);
}

int weft_mem_device(const void *ptr)
{
    int ordinal = -1;
    if (!wefti_cuda_in_use() || sort_of(ptr) == NOT_CUDA ||
        wefti_cu.attribute(&ordinal, CU_ATTR_DEVICE_ORDINAL, (cu_ptr_t)(uintptr_t)ptr))
        return -1;
    return ordinal;
}

/* --- the program's own streams ---------------------------------------------------------------------------------------------- */

weft_status_t weft_mem_settle(const void *ptr, bool all)
{
    bool pushed;
    if (!wefti_cuda_in_use() || sort_of(ptr) == NOT_CUDA)
        return WEFT_OK;
    cu_result_t r = enter_for(ptr, &pushed);
    if (!r) {
        r = all ? wefti_cu.ctx_wait() : wefti_cu.stream_wait((cu_stream_t)CU_STREAM_LEGACY);
        leave(pushed);
    }
    if (r)
        wefti_error("mem: waiting for the kernels of a GPU: %s", wefti_cuda_words(r));
    return r ? wefti_fail(WEFT_ERR_SYSTEM, "waiting for the kernels of a GPU: %s", wefti_cuda_words(r)) : WEFT_OK;
}

/* --- allocating ------------------------------------------------------------------------------------------------------------- */

static weft_status_t cuda_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    bool managed = kind == &wefti_mem_kind_managed, pushed;
    cu_ptr_t p = 0;
    cu_device_t device;
    weft_status_t st = wefti_cuda_usable();
    if (st)
        return st;
    const char *what = managed ? "allocating CUDA managed memory," : "allocating CUDA memory,";
    cu_result_t r = enter_any(&pushed);
    if (r)
        return fail(r, what, n);
    r = managed ? wefti_cu.managed_alloc(&p, n, CU_MEM_ATTACH_GLOBAL) : wefti_cu.mem_alloc(&p, n);
    if (!r && !wefti_cu.ctx_device(&device))
        seen_device(device); /* devices are numbered by their ordinals */
    leave(pushed);
    if (r)
        return fail(r, what, n);
    *ptr_out = (void *)(uintptr_t)p;
    return WEFT_OK;
}

static void cuda_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    bool pushed;
    (void)kind;
    if (!wefti_cuda_in_use())
        return; /* in a child: the memory is the parent's */
    cu_result_t r = enter_for(ptr, &pushed);
    if (!r) {
        r = wefti_cu.mem_free((cu_ptr_t)(uintptr_t)ptr);
        leave(pushed);
    }
    if (r) /* the context was destroyed, and its memory with it; or the process is ending */
        wefti_debug("mem: freeing %zu bytes of CUDA memory: %s", n, wefti_cuda_words(r));
}

/* --- copying ---------------------------------------------------------------------------------------------------------------- */

/* A stream of the context that is current: one of those kept that nobody uses now, or a new one. slot_out -1: it is not kept. */
static cu_result_t stream_take(cu_stream_t *stream_out, int *slot_out)
{
    cu_context_t ctx = NULL;
    unsigned long long id = 0;
    cu_result_t r = wefti_cu.ctx_current(&ctx);
    if (r)
        return r;
    if (!wefti_cu.ctx_id || wefti_cu.ctx_id(ctx, &id))
        id = (unsigned long long)(uintptr_t)ctx;
    cu_stream_t found = NULL;
    int slot = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < STREAMS_MAX && !found; i++) {
        if (streams[i].context == id && !streams[i].busy)
            found = streams[i].stream;
        if (found || (!streams[i].stream && slot < 0))
            slot = i;
    }
    if (!found)
        r = wefti_cu.stream_new(&found, CU_STREAM_NON_BLOCKING);
    if (!r && slot >= 0) {
        streams[slot].context = id;
        streams[slot].stream = found;
        streams[slot].busy = true;
    }
    pthread_mutex_unlock(&lock);
    *stream_out = found;
    *slot_out = slot;
    return r;
}

/* keep false: it went with its context, and its handle means nothing any more. */
static void stream_put(cu_stream_t stream, int slot, bool keep)
{
    if (slot < 0) {
        if (keep)
            wefti_cu.stream_free(stream);
        return;
    }
    pthread_mutex_lock(&lock);
    streams[slot].busy = false;
    if (!keep)
        streams[slot].stream = NULL;
    pthread_mutex_unlock(&lock);
}

/* The stream belonged to a context that its owner has destroyed meanwhile. */
static bool stale(cu_result_t r)
{
    return r == CU_INVALID_HANDLE || r == CU_INVALID_CONTEXT || r == CU_CONTEXT_IS_DESTROYED;
}

static cu_result_t copy_here(void *dst, const void *src, size_t n)
{
    cu_result_t r;
    for (int tries = 0;; tries++) {
        cu_stream_t stream;
        int slot;
        r = stream_take(&stream, &slot);
        if (r)
            return r;
        r = wefti_cu.copy_async((cu_ptr_t)(uintptr_t)dst, (cu_ptr_t)(uintptr_t)src, n, stream);
        if (!r)
            r = wefti_cu.stream_wait(stream);
        stream_put(stream, slot, !stale(r));
        if (!stale(r) || tries)
            return r;
    }
}

static weft_status_t cuda_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    bool pushed;
    (void)kind;
    weft_status_t st = wefti_cuda_usable();
    if (st)
        return st;
    cu_result_t r = enter_for(sort_of(dst) != NOT_CUDA ? dst : src, &pushed);
    if (!r) {
        r = copy_here(dst, src, n);
        leave(pushed);
    }
    return r ? fail(r, "copying CUDA memory,", n) : WEFT_OK;
}

/* --- pinning ---------------------------------------------------------------------------------------------------------------- */

bool wefti_cuda_pin(void *base, size_t n)
{
    if (!wefti_cuda_in_use())
        return false;
    /* from now on home does not change: unpin() must happen on the device of pin() */
    int at = atomic_load(&home);
    seen_device(at < 0 ? 0 : at);
    cu_result_t r = enter_primary(atomic_load(&home));
    if (!r) {
        r = wefti_cu.host_register(base, n, CU_MEMHOSTREGISTER_PORTABLE);
        leave(true);
    }
    if (r)
        wefti_debug("mem: %zu bytes are not page-locked for the GPU: %s", n, wefti_cuda_words(r));
    else
        atomic_fetch_add(&pinned, 1);
    return !r;
}

void wefti_cuda_unpin(void *base)
{
    if (!wefti_cuda_in_use() || !atomic_load(&pinned) || enter_primary(atomic_load(&home)))
        return;
    if (!wefti_cu.host_unregister(base)) /* else it was not pinned */
        atomic_fetch_sub(&pinned, 1);
    leave(true);
}

const weft_mem_kind_t wefti_mem_kind_cuda = {
    .size = sizeof(weft_mem_kind_t),
    .name = "cuda",
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = cuda_copy,
    .owns = cuda_owns,
};

const weft_mem_kind_t wefti_mem_kind_managed = {
    .size = sizeof(weft_mem_kind_t),
    .name = "cuda-managed",
    .flags = WEFT_MEM_CPU,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = cuda_copy,
    .owns = cuda_owns,
};
