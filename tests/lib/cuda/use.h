/* tests/lib/cuda/use.h - the CUDA driver made of paper, for a test that calls it itself: use_paper() loads it, and cu.MemAlloc
 * and the like are its functions. From then on whoever asks for libcuda.so.1 gets it too, since that is its name.
 *
 * With TEST_WEFT_GPU=1 in the environment it is the real driver, and the test runs on a GPU: nothing is seen then (SEEN), and
 * what only paper can do (use_only_paper(), cu.fail, cu.kernel, cu.hold) ends the test as skipped. */
#ifndef PAPER_USE_H
#define PAPER_USE_H

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "paper.h"

typedef struct use_ipc {
    char bytes[64];
} use_ipc_t;

typedef struct use_side {
    size_t x, y;
    int type; /* 1: the host's, 2: a device's */
    void *host;
    uintptr_t device;
    void *array;
    size_t pitch;
} use_side_t;

typedef struct use_rows {
    use_side_t src, dst;
    size_t width, height;
} use_rows_t;

typedef struct use_location {
    int type, id; /* 1: a device */
} use_location_t;

typedef struct use_properties {
    int type, handle_types; /* 1; 1: file descriptors */
    use_location_t location;
    void *none;
    unsigned char flags[8];
} use_properties_t;

typedef struct use_access {
    use_location_t location;
    int flags; /* 3: reads and writes */
} use_access_t;

#define USE_CALLS(X) \
    X(Init, "cuInit", (unsigned flags)) \
    X(GetErrorName, "cuGetErrorName", (int error, const char **out)) \
    X(DeviceGetCount, "cuDeviceGetCount", (int *out)) \
    X(DeviceGetUuid, "cuDeviceGetUuid_v2", (void *out, int device)) \
    X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *out, int device, int peer)) \
    X(PrimaryRetain, "cuDevicePrimaryCtxRetain", (void **out, int device)) \
    X(CtxCreate, "cuCtxCreate_v2", (void **out, unsigned flags, int device)) \
    X(CtxDestroy, "cuCtxDestroy_v2", (void *ctx)) \
    X(CtxGetCurrent, "cuCtxGetCurrent", (void **out)) \
    X(CtxSetCurrent, "cuCtxSetCurrent", (void *ctx)) \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (void *ctx)) \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (void **out)) \
    X(CtxSynchronize, "cuCtxSynchronize", (void)) \
    X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", (void *peer, unsigned flags)) \
    X(MemAlloc, "cuMemAlloc_v2", (uintptr_t * out, size_t n)) \
    X(MemFree, "cuMemFree_v2", (uintptr_t p)) \
    X(MemAllocAsync, "cuMemAllocAsync", (uintptr_t * out, size_t n, void *stream)) \
    X(MemFreeAsync, "cuMemFreeAsync", (uintptr_t p, void *stream)) \
    X(MemHostRegister, "cuMemHostRegister_v2", (void *p, size_t n, unsigned flags)) \
    X(MemHostUnregister, "cuMemHostUnregister", (void *p)) \
    X(MemGetInfo, "cuMemGetInfo_v2", (size_t * free_out, size_t * total_out)) \
    X(MemGetAddressRange, "cuMemGetAddressRange_v2", (uintptr_t * base_out, size_t * n_out, uintptr_t p)) \
    X(PointerGetAttribute, "cuPointerGetAttribute", (void *out, int attribute, uintptr_t p)) \
    X(PointerGetAttributes, "cuPointerGetAttributes", (unsigned n, const int *attributes, void **outs, uintptr_t p)) \
    X(MemcpyAsync, "cuMemcpyAsync", (uintptr_t dst, uintptr_t src, size_t n, void *stream)) \
    X(Memcpy2DAsync, "cuMemcpy2DAsync_v2", (const use_rows_t *rows, void *stream)) \
    X(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *dst, uintptr_t src, size_t n)) \
    X(MemcpyHtoD, "cuMemcpyHtoD_v2", (uintptr_t dst, const void *src, size_t n)) \
    X(MemsetD8, "cuMemsetD8_v2", (uintptr_t dst, unsigned char byte, size_t n)) \
    X(StreamCreate, "cuStreamCreate", (void **out, unsigned flags)) \
    X(StreamDestroy, "cuStreamDestroy_v2", (void *stream)) \
    X(StreamQuery, "cuStreamQuery", (void *stream)) \
    X(StreamSynchronize, "cuStreamSynchronize", (void *stream)) \
    X(StreamWaitEvent, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags)) \
    X(StreamWaitValue32, "cuStreamWaitValue32_v2", (void *stream, uintptr_t p, uint32_t value, unsigned flags)) \
    X(StreamWriteValue32, "cuStreamWriteValue32_v2", (void *stream, uintptr_t p, uint32_t value, unsigned flags)) \
    X(LaunchHostFunc, "cuLaunchHostFunc", (void *stream, void (*fn)(void *arg), void *arg)) \
    X(EventCreate, "cuEventCreate", (void **out, unsigned flags)) \
    X(EventDestroy, "cuEventDestroy_v2", (void *event)) \
    X(EventRecord, "cuEventRecord", (void *event, void *stream)) \
    X(EventQuery, "cuEventQuery", (void *event)) \
    X(EventSynchronize, "cuEventSynchronize", (void *event)) \
    X(IpcGetMemHandle, "cuIpcGetMemHandle", (use_ipc_t * out, uintptr_t p)) \
    X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (uintptr_t * out, use_ipc_t handle, unsigned flags)) \
    X(IpcCloseMemHandle, "cuIpcCloseMemHandle", (uintptr_t p)) \
    X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", (size_t * out, const use_properties_t *p, int option)) \
    X(MemCreate, "cuMemCreate", (unsigned long long *out, size_t n, const use_properties_t *p, unsigned long long flags)) \
    X(MemRelease, "cuMemRelease", (unsigned long long handle)) \
    X(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", (unsigned long long *out, void *p)) \
    X(MemExport, "cuMemExportToShareableHandle", (void *out, unsigned long long handle, int type, unsigned long long flags)) \
    X(MemImport, "cuMemImportFromShareableHandle", (unsigned long long *out, void *from, int type)) \
    X(MemAddressReserve, "cuMemAddressReserve", \
      (uintptr_t * out, size_t n, size_t align, uintptr_t hint, unsigned long long flags)) \
    X(MemAddressFree, "cuMemAddressFree", (uintptr_t p, size_t n)) \
    X(MemMap, "cuMemMap", (uintptr_t p, size_t n, size_t offset, unsigned long long handle, unsigned long long flags)) \
    X(MemUnmap, "cuMemUnmap", (uintptr_t p, size_t n)) \
    X(MemSetAccess, "cuMemSetAccess", (uintptr_t p, size_t n, const use_access_t *access, size_t count)) \
    X(kernel, "paper_kernel", (void *stream, uintptr_t dst, size_t n, int byte, uint64_t delay_ns)) \
    X(hold, "paper_hold", (void *stream)) \
    X(release, "paper_release", (void *stream))

static struct {
    paper_t *paper; /* what it is told, and what it saw */
    void (*fail)(const char *function, unsigned after, int error, int times);
    void *(*context_new)(int device);
    void (*context_destroy)(void *ctx);
#define USE_MEMBER(member, symbol, args) int(*member) args;
    USE_CALLS(USE_MEMBER)
#undef USE_MEMBER
} cu;

static bool use_real; /* it is a real driver */

static inline void use_only_paper(void)
{
    if (use_real || getenv("TEST_WEFT_GPU"))
        SKIP("only the driver made of paper does that");
}
/* Before the first fork: is there what the test runs on? */
static inline void use_there(void)
{
    if (getenv("TEST_WEFT_GPU") && !dlopen("libcuda.so.1", RTLD_NOW))
        SKIP("there is no CUDA driver here");
}
static inline int use_skip(void)
{
    use_only_paper();
    return 0;
}
/* What a program gave to the GPU is done: a real one goes on after calls that copy to it, or fill its memory. */
static inline void use_settle(void);
/* What the paper driver saw, if it is one. */
#define SEEN(field, value) \
    do { \
        if (!use_real) \
            CHECK_EQ(cu.paper->field, value); \
    } while (0)

static void use_take(void *library, const char *symbol, void *to)
{
    void *found = dlsym(library, symbol);
    if (!found && use_real) {
        int (*skip)(void) = use_skip;
        memcpy(&found, &skip, sizeof found);
    }
    if (!found) {
        fprintf(stderr, "the paper driver has no %s\n", symbol);
        exit(1);
    }
    memcpy(to, &found, sizeof found);
}

/* Load it from where the tests of a build are. */
static inline void use_paper(void)
{
    char exe[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    snprintf(path, sizeof path, "%s/../paper/libcuda.so.1", dirname(exe));
    use_real = getenv("TEST_WEFT_GPU") != NULL;
    void *library = dlopen(use_real ? "libcuda.so.1" : path, RTLD_NOW);
    if (!library && use_real)
        SKIP("there is no CUDA driver here");
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define USE_TAKE(member, symbol, args) use_take(library, symbol, &cu.member);
    USE_CALLS(USE_TAKE)
#undef USE_TAKE
    static paper_t nothing;
    cu.paper = &nothing;
    if (use_real) {
        if (cu.Init(0))
            SKIP("the CUDA driver here does not start");
        use_take(library, "paper_fail", &cu.fail);
        use_take(library, "paper_context_new", &cu.context_new);
        use_take(library, "paper_context_destroy", &cu.context_destroy);
        return;
    }
    use_take(library, "paper", &cu.paper);
    use_take(library, "paper_fail", &cu.fail);
    use_take(library, "paper_context_new", &cu.context_new);
    use_take(library, "paper_context_destroy", &cu.context_destroy);
}

static inline void use_settle(void)
{
    if (use_real)
        (void)cu.CtxSynchronize();
}

#endif
