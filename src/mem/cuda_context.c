/* mem/cuda_context.c - CUDA's contexts: which one an address belongs to, and being in it for the length of a call.
 *
 * What a thread has current is as it was when a call returns. Allocations are made in the context that is current, else in the
 * primary one of device 0 (or of the device whose memory was seen first). Everything done to a pointer is done in the context it
 * was allocated in, or, where CUDA does not say, in the primary one of its device; so it does not matter which thread drives a
 * runtime. Any thread. tests/unit/mem_cuda.c. */
#include <errno.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "mem/cuda.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of primaries */
static cu_context_t primaries[WEFTI_CUDA_DEVICES_MAX];   /* retained, never released */
static _Atomic int home = -1;                            /* the device whose memory was seen first */

weft_status_t wefti_cuda_fail(cu_result_t r, const char *what, size_t n)
{
    char size[40] = "";
    if (n)
        snprintf(size, sizeof size, ", %zu bytes", n);
    if (r == CU_OUT_OF_MEMORY)
        return wefti_fail(WEFT_ERR_NOMEM, "%s%s: %s", what, size, wefti_cuda_words(r));
    wefti_error("mem: %s%s: %s", what, size, wefti_cuda_words(r));
    return wefti_fail(WEFT_ERR_SYSTEM, "%s%s: %s", what, size, wefti_cuda_words(r));
}

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

void wefti_cuda_seen(int ordinal)
{
    int none = -1;
    if (ordinal >= 0 && atomic_load_explicit(&home, memory_order_relaxed) < 0)
        atomic_compare_exchange_strong(&home, &none, ordinal);
}

int wefti_cuda_home(void)
{
    return atomic_load(&home);
}

/* Can the processor read it? For when CUDA does not answer, as after a kernel that failed: memory of a device must not be taken
 * for the host's then. What else cannot be read fails either way. */
static bool readable(const void *ptr)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)ptr, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 || errno != EFAULT;
}

wefti_cuda_place_t wefti_cuda_place(const void *ptr)
{
    /* Wide and zeroed, whatever width the driver writes. It answers zeros for an address that is not CUDA's. */
    uint64_t type = 0, managed = 0;
    int64_t ordinal = -1;
    cu_context_t ctx = NULL;
    int which[4] = {CU_ATTR_MEMORY_TYPE, CU_ATTR_IS_MANAGED, CU_ATTR_DEVICE_ORDINAL, CU_ATTR_CONTEXT};
    void *outs[4] = {&type, &managed, &ordinal, &ctx};
    if (wefti_cu.attributes(4, which, outs, (cu_ptr_t)(uintptr_t)ptr))
        return (wefti_cuda_place_t){.sort = readable(ptr) ? WEFTI_CUDA_NOT : WEFTI_CUDA_DEVICE, .ordinal = -1};
    wefti_cuda_place_t place = {.sort = (uint8_t)managed                         ? WEFTI_CUDA_MANAGED
                                        : (uint32_t)type == CU_MEMORYTYPE_DEVICE ? WEFTI_CUDA_DEVICE
                                        : (uint32_t)type == CU_MEMORYTYPE_HOST   ? WEFTI_CUDA_PINNED
                                                                                 : WEFTI_CUDA_NOT,
                                .ordinal = (int)ordinal,
                                .ctx = ctx};
    if (place.sort == WEFTI_CUDA_DEVICE)
        wefti_cuda_seen(place.ordinal);
    return place;
}

cu_result_t wefti_cuda_enter_primary(int ordinal)
{
    cu_context_t ctx;
    cu_result_t r = primary(ordinal, &ctx);
    return r ? r : wefti_cu.ctx_push(ctx);
}

void wefti_cuda_leave(bool pushed)
{
    cu_context_t gone;
    if (pushed)
        wefti_cu.ctx_pop(&gone);
}

cu_result_t wefti_cuda_enter_any(bool *pushed)
{
    cu_context_t ctx = NULL;
    cu_result_t r = wefti_cu.ctx_current(&ctx);
    *pushed = false;
    if (r || ctx)
        return r;
    r = wefti_cuda_enter_primary(wefti_cuda_home());
    *pushed = !r;
    return r;
}

cu_result_t wefti_cuda_enter_place(const wefti_cuda_place_t *place, bool *pushed)
{
    cu_result_t r;
    if (place->ctx)
        r = wefti_cu.ctx_push(place->ctx);
    else if (place->sort != WEFTI_CUDA_NOT && place->ordinal >= 0)
        r = wefti_cuda_enter_primary(place->ordinal); /* from a memory pool, or mapped by hand: of a device, but of no context */
    else
        return wefti_cuda_enter_any(pushed);
    *pushed = !r;
    return r;
}

cu_result_t wefti_cuda_enter_for(const void *ptr, bool *pushed)
{
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    return wefti_cuda_enter_place(&place, pushed);
}

cu_result_t wefti_cuda_context_id(unsigned long long *id_out)
{
    cu_context_t ctx = NULL;
    cu_result_t r = wefti_cu.ctx_current(&ctx);
    if (!r && (!wefti_cu.ctx_id || wefti_cu.ctx_id(ctx, id_out)))
        *id_out = (unsigned long long)(uintptr_t)ctx;
    return r;
}

bool wefti_cuda_is_pinned(const void *ptr)
{
    return wefti_cuda_in_use() && wefti_cuda_place(ptr).sort == WEFTI_CUDA_PINNED;
}
