/* mem/cuda.c - memory of CUDA devices: the only file that names CUDA.
 *
 * The driver (libcuda.so.1) is loaded at run time; what is needed of its interface is declared here, so neither building nor running asks
 * for it. States, for the whole process:
 *
 *     UNKNOWN --asked for--> READY   the driver is there and has a device; for the life of the process
 *                       \--> ABSENT  it is not; the reason is kept for whoever asks again
 *     READY --fork--> FORKED         in the child: a driver that was started cannot be used there, and is not called again
 *
 * Only wefti_cuda_use() leaves UNKNOWN, and only if WEFT_CUDA is not off.
 *
 * Contexts: what a thread has current is as it was when a call returns. Allocations are made in the context that is current, else in the
 * primary one of device 0 (or of the device whose memory was seen first). Everything done to a pointer is done in the context it was
 * allocated in, or, where CUDA does not say, in the primary one of its device; so it does not matter which thread drives a runtime.
 *
 * Copies go through streams of our own that do not wait for the default stream, nor it for them. Hence what a program's kernels write to a
 * buffer must be complete before the buffer is handed over, as with any library that moves GPU memory.
 *
 * tests/unit/mem_cuda.c runs this against a driver made of paper, tests/gpu/mem_cuda.c against the real one. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "mem/local.h"

typedef int cu_result_t, cu_device_t;
typedef void *cu_context_t, *cu_stream_t;
typedef unsigned long long cu_ptr_t;

enum { CU_SUCCESS = 0, CU_OUT_OF_MEMORY = 2, CU_INVALID_CONTEXT = 201, CU_INVALID_HANDLE = 400, CU_CONTEXT_IS_DESTROYED = 709 };
enum { CU_ATTR_CONTEXT = 1, CU_ATTR_MEMORY_TYPE = 2, CU_ATTR_IS_MANAGED = 8, CU_ATTR_DEVICE_ORDINAL = 9 };
enum { CU_MEMORYTYPE_DEVICE = 2 };
#define CU_STREAM_LEGACY ((uintptr_t)1) /* the default stream, by its own handle */
enum { CU_DEVICE_MANAGED_MEMORY = 83, CU_STREAM_NON_BLOCKING = 1, CU_MEM_ATTACH_GLOBAL = 1, CU_MEMHOSTREGISTER_PORTABLE = 1 };

/*    member              symbol                      arguments */
#define CUDA_CALLS(X) \
    X(init, "cuInit", (unsigned flags)) \
    X(error_name, "cuGetErrorName", (cu_result_t error, const char **out)) \
    X(device_count, "cuDeviceGetCount", (int *out)) \
    X(device_get, "cuDeviceGet", (cu_device_t * out, int ordinal)) \
    X(device_attribute, "cuDeviceGetAttribute", (int *out, int attribute, cu_device_t device)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (cu_context_t * out, cu_device_t device)) \
    X(ctx_current, "cuCtxGetCurrent", (cu_context_t * out)) \
    X(ctx_device, "cuCtxGetDevice", (cu_device_t * out)) \
    X(ctx_push, "cuCtxPushCurrent_v2", (cu_context_t ctx)) \
    X(ctx_pop, "cuCtxPopCurrent_v2", (cu_context_t * out)) \
    X(mem_alloc, "cuMemAlloc_v2", (cu_ptr_t * out, size_t n)) \
    X(mem_free, "cuMemFree_v2", (cu_ptr_t ptr)) \
    X(managed_alloc, "cuMemAllocManaged", (cu_ptr_t * out, size_t n, unsigned flags)) \
    X(host_register, "cuMemHostRegister_v2", (void *ptr, size_t n, unsigned flags)) \
    X(host_unregister, "cuMemHostUnregister", (void *ptr)) \
    X(copy_async, "cuMemcpyAsync", (cu_ptr_t dst, cu_ptr_t src, size_t n, cu_stream_t stream)) \
    X(stream_new, "cuStreamCreate", (cu_stream_t * out, unsigned flags)) \
    X(stream_free, "cuStreamDestroy_v2", (cu_stream_t stream)) \
    X(stream_wait, "cuStreamSynchronize", (cu_stream_t stream)) \
    X(ctx_wait, "cuCtxSynchronize", (void)) \
    X(attribute, "cuPointerGetAttribute", (void *out, int attribute, cu_ptr_t ptr)) \
    X(attributes, "cuPointerGetAttributes", (unsigned n, int *attributes, void **outs, cu_ptr_t ptr))

static struct {
#define CUDA_MEMBER(member, symbol, args) cu_result_t(*member) args;
    CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
    cu_result_t (*ctx_id)(cu_context_t ctx, unsigned long long *out); /* since CUDA 12; NULL before */
} cu;

enum { UNKNOWN, READY, ABSENT, FORKED };
static _Atomic int state;
static _Atomic int starting; /* inside the driver's first call: a fork then has a driver that is half started */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of leaving UNKNOWN, and of what follows */
static char why_absent[256];
static bool has_managed;
static int n_devices;

#define DEVICES_MAX 64
#define STREAMS_MAX 32
static cu_context_t primaries[DEVICES_MAX]; /* retained, never released */
static struct {
    unsigned long long context; /* its id, or its address where it has none */
    cu_stream_t stream;
    bool busy;
} streams[STREAMS_MAX]; /* stream NULL: free slot */

static _Atomic int home = -1;   /* the device whose memory was seen first */
static _Atomic uint32_t pinned; /* ranges */

/* --- finding the driver ------------------------------------------------------------------------------------------------------ */

static const char *words(cu_result_t r)
{
    const char *name = NULL;
    return cu.error_name && !cu.error_name(r, &name) && name ? name : "an error without a name";
}

/* In the child: a started driver is of no use, and a lock may belong to a thread that is not here. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    if (atomic_load(&state) == READY) {
        atomic_fetch_sub(&wefti_mem_devices, 1);
        atomic_fetch_sub(&wefti_mem_askable, 1);
    } else if (!atomic_load(&starting)) {
        return;
    }
    atomic_store(&state, FORKED);
}

static void watch_forks(void)
{
    if (pthread_atfork(NULL, NULL, in_child))
        wefti_error("no memory to notice forks: a forked child must not use CUDA memory");
}

static bool resolve(void *library)
{
    /* through a copy of the bytes: ISO C has no cast from an object pointer to a function pointer */
#define CUDA_RESOLVE(member, symbol, args) \
    { \
        void *found = dlsym(library, symbol); \
        if (!found) { \
            snprintf(why_absent, sizeof why_absent, "the CUDA driver of this machine is too old: it has no " symbol); \
            return false; \
        } \
        memcpy(&cu.member, &found, sizeof found); \
    }
    CUDA_CALLS(CUDA_RESOLVE)
#undef CUDA_RESOLVE
    void *found = dlsym(library, "cuCtxGetId");
    memcpy(&cu.ctx_id, &found, sizeof found);
    return true;
}

static bool start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *said = dlerror();
        snprintf(why_absent, sizeof why_absent, "there is no CUDA driver on this machine: %s", said ? said : "it does not load");
        return false;
    }
    if (!resolve(library)) {
        dlclose(library);
        return false;
    }
    cu_result_t r = cu.init(0);
    if (r == CU_SUCCESS)
        r = cu.device_count(&n_devices);
    if (r != CU_SUCCESS || n_devices < 1) {
        snprintf(why_absent, sizeof why_absent, "the CUDA driver of this machine %s%s",
                 r ? "does not start: " : "knows no device", r ? words(r) : "");
        return false;
    }
    if (n_devices > DEVICES_MAX)
        n_devices = DEVICES_MAX;
    for (int i = 0; i < n_devices && !has_managed; i++) {
        cu_device_t device;
        int yes = 0;
        has_managed = !cu.device_get(&device, i) && !cu.device_attribute(&yes, CU_DEVICE_MANAGED_MEMORY, device) && yes;
    }
    return true;
}

/* Does WEFT_CUDA allow it? `said` as in wefti_cuda_use(). */
static weft_status_t allowed(const char *said)
{
    wefti_config_t config;
    weft_status_t st = WEFT_OK;
    memset(&config, 0, sizeof config);
    if (!said) {
        st = wefti_config_read(&config);
        if (st)
            return st;
        said = config.cuda;
    }
    if (said && !strcmp(said, "off"))
        st = wefti_fail(WEFT_ERR_UNSUPPORTED, "CUDA memory is switched off: WEFT_CUDA is \"off\"");
    wefti_config_free(&config);
    return st;
}

static weft_status_t fail_forked(void)
{
    return wefti_fail(WEFT_ERR_FORKED, "this process was forked after CUDA was started, and CUDA cannot be used in the child: "
                                       "start the child with exec, or use CUDA only there");
}

weft_status_t wefti_cuda_use(const char *said)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == READY)
        return WEFT_OK;
    if (now == FORKED)
        return fail_forked();
    weft_status_t st = allowed(said);
    if (st)
        return st;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    if (atomic_load(&state) == UNKNOWN) {
        atomic_store(&starting, 1);
        bool there = start();
        atomic_store(&starting, 0);
        if (there) {
            wefti_debug("mem: CUDA has %d device%s", n_devices, n_devices == 1 ? "" : "s");
            atomic_fetch_add(&wefti_mem_devices, 1);
            atomic_fetch_add(&wefti_mem_askable, 1);
        } else {
            wefti_debug("mem: %s", why_absent);
        }
        atomic_store(&state, there ? READY : ABSENT);
    }
    pthread_mutex_unlock(&lock);
    return atomic_load(&state) == READY ? WEFT_OK : wefti_fail(WEFT_ERR_UNSUPPORTED, "%s", why_absent);
}

bool wefti_cuda_in_use(void)
{
    return atomic_load_explicit(&state, memory_order_acquire) == READY;
}

bool wefti_cuda_has_managed(void)
{
    return has_managed;
}

/* A kind outlives what it needs in a forked child, and in a program that kept a pointer to it without asking for it. */
static weft_status_t usable(void)
{
    if (__builtin_expect(wefti_cuda_in_use(), 1))
        return WEFT_OK;
    return atomic_load(&state) == FORKED ? fail_forked()
                                         : wefti_fail(WEFT_ERR_UNSUPPORTED, "CUDA is not in use: ask weft_mem_kind_find() first");
}

static weft_status_t fail(cu_result_t r, const char *what, size_t n)
{
    if (r == CU_OUT_OF_MEMORY)
        return wefti_fail(WEFT_ERR_NOMEM, "%s %zu bytes: %s", what, n, words(r));
    wefti_error("mem: %s %zu bytes: %s", what, n, words(r));
    return wefti_fail(WEFT_ERR_SYSTEM, "%s %zu bytes: %s", what, n, words(r));
}

/* --- contexts ------------------------------------------------------------------------------------------------------------------ */

static cu_result_t primary(int ordinal, cu_context_t *ctx_out)
{
    cu_result_t r = CU_SUCCESS;
    cu_device_t device;
    if (ordinal < 0 || ordinal >= n_devices)
        ordinal = 0;
    pthread_mutex_lock(&lock);
    if (!primaries[ordinal]) {
        r = cu.device_get(&device, ordinal);
        if (!r)
            r = cu.primary_retain(&primaries[ordinal], device);
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
    return r ? r : cu.ctx_push(ctx);
}

static void leave(bool pushed)
{
    cu_context_t gone;
    if (pushed)
        cu.ctx_pop(&gone);
}

/* The caller's context, else the primary one of the device at home. */
static cu_result_t enter_any(bool *pushed)
{
    cu_context_t ctx = NULL;
    cu_result_t r = cu.ctx_current(&ctx);
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
    if (!cu.attribute(&ctx, CU_ATTR_CONTEXT, (cu_ptr_t)(uintptr_t)ptr) && ctx)
        r = cu.ctx_push(ctx);
    else if (!cu.attribute(&ordinal, CU_ATTR_DEVICE_ORDINAL, (cu_ptr_t)(uintptr_t)ptr) && ordinal >= 0)
        r = enter_primary(ordinal); /* from a memory pool, or mapped by hand: of a device, but of no context */
    else
        return enter_any(pushed);
    *pushed = !r;
    return r;
}

/* --- recognising ---------------------------------------------------------------------------------------------------------------- */

enum { NOT_CUDA, DEVICE, MANAGED };

static int sort_of(const void *ptr)
{
    /* Wide and zeroed, whatever width the driver writes. It answers zeros for an address that is not CUDA's. */
    uint64_t type = 0, managed = 0;
    int64_t ordinal = 0;
    int which[3] = {CU_ATTR_MEMORY_TYPE, CU_ATTR_IS_MANAGED, CU_ATTR_DEVICE_ORDINAL};
    void *outs[3] = {&type, &managed, &ordinal};
    if (cu.attributes(3, which, outs, (cu_ptr_t)(uintptr_t)ptr))
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

int wefti_cuda_device(const void *ptr)
{
    int ordinal = -1;
    if (!wefti_cuda_in_use() || sort_of(ptr) == NOT_CUDA ||
        cu.attribute(&ordinal, CU_ATTR_DEVICE_ORDINAL, (cu_ptr_t)(uintptr_t)ptr))
        return -1;
    return ordinal;
}

/* --- the program's own streams --------------------------------------------------------------------------------------------------- */

weft_status_t wefti_cuda_settle(const void *ptr, bool all)
{
    bool pushed;
    if (!wefti_cuda_in_use() || sort_of(ptr) == NOT_CUDA)
        return WEFT_OK;
    cu_result_t r = enter_for(ptr, &pushed);
    if (!r) {
        r = all ? cu.ctx_wait() : cu.stream_wait((cu_stream_t)CU_STREAM_LEGACY);
        leave(pushed);
    }
    if (r)
        wefti_error("mem: waiting for the kernels of a GPU: %s", words(r));
    return r ? wefti_fail(WEFT_ERR_SYSTEM, "waiting for the kernels of a GPU: %s", words(r)) : WEFT_OK;
}

/* --- allocating ------------------------------------------------------------------------------------------------------------------ */

static weft_status_t cuda_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    bool managed = kind == &wefti_mem_kind_managed, pushed;
    cu_ptr_t p = 0;
    cu_device_t device;
    weft_status_t st = usable();
    if (st)
        return st;
    const char *what = managed ? "allocating CUDA managed memory," : "allocating CUDA memory,";
    cu_result_t r = enter_any(&pushed);
    if (r)
        return fail(r, what, n);
    r = managed ? cu.managed_alloc(&p, n, CU_MEM_ATTACH_GLOBAL) : cu.mem_alloc(&p, n);
    if (!r && !cu.ctx_device(&device))
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
        return; /* a child has nothing of its parent's to give back */
    cu_result_t r = enter_for(ptr, &pushed);
    if (!r) {
        r = cu.mem_free((cu_ptr_t)(uintptr_t)ptr);
        leave(pushed);
    }
    if (r) /* the context was destroyed, and its memory with it; or the process is ending */
        wefti_debug("mem: freeing %zu bytes of CUDA memory: %s", n, words(r));
}

/* --- copying --------------------------------------------------------------------------------------------------------------------- */

/* A stream of the context that is current: one of those kept that nobody uses now, or a new one. slot_out -1: it is not kept. */
static cu_result_t stream_take(cu_stream_t *stream_out, int *slot_out)
{
    cu_context_t ctx = NULL;
    unsigned long long id = 0;
    cu_result_t r = cu.ctx_current(&ctx);
    if (r)
        return r;
    if (!cu.ctx_id || cu.ctx_id(ctx, &id))
        id = (unsigned long long)(uintptr_t)ctx;
    *slot_out = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (streams[i].stream && streams[i].context == id && !streams[i].busy) {
            streams[i].busy = true;
            *slot_out = i;
            *stream_out = streams[i].stream;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (*slot_out >= 0)
        return CU_SUCCESS;
    cu_stream_t made = NULL;
    r = cu.stream_new(&made, CU_STREAM_NON_BLOCKING);
    if (r)
        return r;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < STREAMS_MAX && *slot_out < 0; i++)
        if (!streams[i].stream) {
            streams[i].context = id;
            streams[i].stream = made;
            streams[i].busy = true;
            *slot_out = i;
        }
    pthread_mutex_unlock(&lock);
    *stream_out = made;
    return CU_SUCCESS;
}

/* keep false: it went with its context, and its handle means nothing any more. */
static void stream_put(cu_stream_t stream, int slot, bool keep)
{
    if (slot < 0) {
        if (keep)
            cu.stream_free(stream);
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
        r = cu.copy_async((cu_ptr_t)(uintptr_t)dst, (cu_ptr_t)(uintptr_t)src, n, stream);
        if (!r)
            r = cu.stream_wait(stream);
        stream_put(stream, slot, !stale(r));
        if (!stale(r) || tries)
            return r;
    }
}

static weft_status_t cuda_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    bool pushed;
    (void)kind;
    weft_status_t st = usable();
    if (st)
        return st;
    cu_result_t r = enter_for(sort_of(dst) != NOT_CUDA ? dst : src, &pushed);
    if (!r) {
        r = copy_here(dst, src, n);
        leave(pushed);
    }
    return r ? fail(r, "copying CUDA memory,", n) : WEFT_OK;
}

/* --- pinning --------------------------------------------------------------------------------------------------------------------- */

bool wefti_cuda_pin(void *base, size_t n)
{
    if (!wefti_cuda_in_use())
        return false;
    /* from now on home is one device: what is undone must be undone where it was done */
    int at = atomic_load(&home);
    seen_device(at < 0 ? 0 : at);
    cu_result_t r = enter_primary(atomic_load(&home));
    if (!r) {
        r = cu.host_register(base, n, CU_MEMHOSTREGISTER_PORTABLE);
        leave(true);
    }
    if (r)
        wefti_debug("mem: %zu bytes are not page-locked for the GPU: %s", n, words(r));
    else
        atomic_fetch_add(&pinned, 1);
    return !r;
}

void wefti_cuda_unpin(void *base)
{
    if (!wefti_cuda_in_use() || !atomic_load(&pinned) || enter_primary(atomic_load(&home)))
        return;
    if (!cu.host_unregister(base)) /* else it was not pinned */
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
