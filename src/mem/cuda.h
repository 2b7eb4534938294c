/* mem/cuda.h - what cuda_driver.c and cuda.c share: the driver's interface, as far as it is used. */
#ifndef WEFTI_MEM_CUDA_H
#define WEFTI_MEM_CUDA_H

#include "mem/local.h"

typedef int cu_result_t, cu_device_t;
typedef void *cu_context_t, *cu_stream_t;
typedef unsigned long long cu_ptr_t;

enum { CU_SUCCESS = 0, CU_OUT_OF_MEMORY = 2, CU_INVALID_CONTEXT = 201, CU_INVALID_HANDLE = 400, CU_CONTEXT_IS_DESTROYED = 709 };
enum { CU_ATTR_CONTEXT = 1, CU_ATTR_MEMORY_TYPE = 2, CU_ATTR_IS_MANAGED = 8, CU_ATTR_DEVICE_ORDINAL = 9 };
enum { CU_MEMORYTYPE_DEVICE = 2 };
#define CU_STREAM_LEGACY ((uintptr_t)1) /* the default stream, by its own handle */
enum { CU_DEVICE_MANAGED_MEMORY = 83, CU_STREAM_NON_BLOCKING = 1, CU_MEM_ATTACH_GLOBAL = 1, CU_MEMHOSTREGISTER_PORTABLE = 1 };

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

typedef struct wefti_cu {
#define CUDA_MEMBER(member, symbol, args) cu_result_t(*member) args;
    CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
    cu_result_t (*ctx_id)(cu_context_t ctx, unsigned long long *out); /* since CUDA 12; NULL before */
} wefti_cu_t;

#define WEFTI_CUDA_DEVICES_MAX 64
extern wefti_cu_t wefti_cu;    /* filled in once CUDA is in use */
extern int wefti_cuda_devices; /* how many it has */

/* WEFT_OK while CUDA is in use. Else an error: a kind can be used in a forked child, or by a program that never asked for it. */
weft_status_t wefti_cuda_usable(void);
const char *wefti_cuda_words(cu_result_t r);

#endif
