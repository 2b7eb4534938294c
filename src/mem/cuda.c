/* mem/cuda.c - memory of CUDA devices: allocating, recognising, copying at once, pinning. cuda_context.c says in which context;
 * cuda_copies.c has the copies that do not wait, cuda_share.c memory of other processes, cuda_kinds.c other ways to allocate.
 *
 * Copies go through streams of our own that do not wait for the default stream, nor it for them. So what a program's kernels
 * write to a buffer must be complete before the buffer is handed over, as with any library that moves GPU memory.
 *
 * tests/unit/mem_cuda.c runs this against a fake driver, tests/gpu/mem_cuda.c against the real one. */
#include <string.h>

#include "base/log.h"
#include "mem/cuda.h"

#define STREAMS_MAX 32
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of streams */
static struct {
    unsigned long long context; /* its id, or its address where it has none */
    cu_stream_t stream;
    bool busy;
} streams[STREAMS_MAX]; /* stream NULL: free slot */

static _Atomic uint32_t pinned; /* ranges */

/* --- recognising ------------------------------------------------------------------------------------------------------------ */

static bool cuda_owns(const weft_mem_kind_t *kind, const void *ptr)
{
    int sort = kind == &wefti_mem_kind_managed ? WEFTI_CUDA_MANAGED : WEFTI_CUDA_DEVICE;
    return wefti_cuda_in_use() && wefti_cuda_place(ptr).sort == sort;
}

static bool in_cuda(const wefti_cuda_place_t *place)
{
    return place->sort == WEFTI_CUDA_DEVICE || place->sort == WEFTI_CUDA_MANAGED;
}

int weft_mem_device(const void *ptr)
{
    if (!wefti_cuda_in_use())
        return -1;
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    return in_cuda(&place) ? place.ordinal : -1;
}

/* --- the program's own streams ---------------------------------------------------------------------------------------------- */

weft_status_t weft_mem_settle(const void *ptr, bool all)
{
    bool pushed;
    if (!wefti_cuda_in_use())
        return WEFT_OK;
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    if (!in_cuda(&place))
        return WEFT_OK;
    cu_result_t r = wefti_cuda_enter_place(&place, &pushed);
    if (!r) {
        r = all ? wefti_cu.ctx_wait() : wefti_cu.stream_wait((cu_stream_t)CU_STREAM_LEGACY);
        wefti_cuda_leave(pushed);
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
    const char *what = managed ? "allocating CUDA managed memory" : "allocating CUDA memory";
    cu_result_t r = wefti_cuda_enter_any(&pushed);
    if (r)
        return wefti_cuda_fail(r, what, n);
    r = managed ? wefti_cu.managed_alloc(&p, n, CU_MEM_ATTACH_GLOBAL) : wefti_cu.mem_alloc(&p, n);
    if (!r && !wefti_cu.ctx_device(&device))
        wefti_cuda_seen(device); /* devices are numbered by their ordinals */
    wefti_cuda_leave(pushed);
    if (r)
        return wefti_cuda_fail(r, what, n);
    *ptr_out = (void *)(uintptr_t)p;
    return WEFT_OK;
}

int wefti_cuda_device_of(const void *ptr)
{
    int device = weft_mem_device(ptr), home = wefti_cuda_home();
    return device >= 0 ? device : home < 0 ? 0 : home;
}

void *wefti_cuda_alloc_on(int device, size_t n)
{
    cu_ptr_t p = 0;
    if (!wefti_cuda_in_use() || wefti_cuda_enter_primary(device))
        return NULL;
    cu_result_t r = wefti_cu.mem_alloc(&p, n);
    wefti_cuda_leave(true);
    if (r)
        wefti_debug("mem: no bounce buffer of %zu bytes: %s", n, wefti_cuda_words(r));
    return r ? NULL : (void *)(uintptr_t)p;
}

static void free_now(void *ptr, size_t n)
{
    bool pushed;
    if (!wefti_cuda_in_use())
        return; /* in a child: the memory is the parent's */
    cu_result_t r = wefti_cuda_enter_for(ptr, &pushed);
    if (!r) {
        r = wefti_cu.mem_free((cu_ptr_t)(uintptr_t)ptr);
        wefti_cuda_leave(pushed);
    }
    if (r) /* the context was destroyed, and its memory with it; or the process is ending */
        wefti_debug("mem: freeing %zu bytes of CUDA memory: %s", n, wefti_cuda_words(r));
}

static void cuda_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)kind;
    wefti_cuda_when_calm(free_now, ptr, n);
}

/* --- copying ---------------------------------------------------------------------------------------------------------------- */

/* A stream of the context that is current: one of those kept that nobody uses now, or a new one. slot_out -1: it is not kept. */
static cu_result_t stream_take(cu_stream_t *stream_out, int *slot_out)
{
    unsigned long long id = 0;
    cu_result_t r = wefti_cuda_context_id(&id);
    if (r)
        return r;
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

static bool on_device(const void *ptr)
{
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    return in_cuda(&place);
}

static cu_result_t copy_here(void *dst, bool dst_host, const void *src, bool src_host, size_t n)
{
    cu_result_t r;
    for (int tries = 0;; tries++) {
        cu_stream_t stream;
        int slot;
        r = stream_take(&stream, &slot);
        if (r)
            return r;
        r = wefti_cuda_post(dst, dst_host, src, src_host, n, stream);
        if (!r)
            r = wefti_cu.stream_wait(stream);
        stream_put(stream, slot, !wefti_cuda_stale(r));
        if (!wefti_cuda_stale(r) || tries)
            return r;
    }
}

weft_status_t wefti_cuda_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    bool pushed;
    (void)kind;
    weft_status_t st = wefti_cuda_usable();
    if (st)
        return st;
    bool to = on_device(dst), from = on_device(src);
    cu_result_t r = wefti_cuda_enter_for(to ? dst : src, &pushed);
    if (!r) {
        r = copy_here(dst, !to, src, !from, n);
        wefti_cuda_leave(pushed);
    }
    return r ? wefti_cuda_fail(r, "copying CUDA memory", n) : WEFT_OK;
}

/* --- pinning ---------------------------------------------------------------------------------------------------------------- */

bool wefti_cuda_pin(void *base, size_t n)
{
    if (!wefti_cuda_in_use())
        return false;
    /* from now on home does not change: unpin() must happen on the device of pin() */
    int at = wefti_cuda_home();
    wefti_cuda_seen(at < 0 ? 0 : at);
    cu_result_t r = wefti_cuda_enter_primary(wefti_cuda_home());
    if (!r) {
        r = wefti_cu.host_register(base, n, CU_MEMHOSTREGISTER_PORTABLE);
        wefti_cuda_leave(true);
    }
    if (r)
        wefti_debug("mem: %zu bytes are not page-locked for the GPU: %s", n, wefti_cuda_words(r));
    else
        atomic_fetch_add(&pinned, 1);
    return !r;
}

void wefti_cuda_unpin(void *base)
{
    if (!wefti_cuda_in_use() || !atomic_load(&pinned) || wefti_cuda_enter_primary(wefti_cuda_home()))
        return;
    if (!wefti_cu.host_unregister(base)) /* else it was not pinned */
        atomic_fetch_sub(&pinned, 1);
    wefti_cuda_leave(true);
}

const weft_mem_kind_t wefti_mem_kind_cuda = {
    .size = sizeof(weft_mem_kind_t),
    .name = "cuda",
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = wefti_cuda_copy,
    .owns = cuda_owns,
};

const weft_mem_kind_t wefti_mem_kind_managed = {
    .size = sizeof(weft_mem_kind_t),
    .name = "cuda-managed",
    .flags = WEFT_MEM_CPU,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = wefti_cuda_copy,
    .owns = cuda_owns,
};
