/* mem/cuda.h - what the files of CUDA share: the driver's interface, as far as it is used, and contexts. */
#ifndef WEFTI_MEM_CUDA_H
#define WEFTI_MEM_CUDA_H

#include "mem/local.h"

typedef int cu_result_t, cu_device_t;
typedef void *cu_context_t, *cu_stream_t, *cu_event_t;
typedef unsigned long long cu_ptr_t;
typedef struct cu_ipc {
    uint8_t bytes[64];
} cu_ipc_t;
typedef struct cu_uuid {
    uint8_t bytes[16];
} cu_uuid_t;
/* A copy of rows: the driver's own layout. */
typedef struct cu_side {
    size_t x, y;
    int type; /* CU_MEMORYTYPE_* */
    void *host;
    cu_ptr_t device;
    void *array;
    size_t pitch;
} cu_side_t;
typedef struct cu_rows {
    cu_side_t src, dst;
    size_t width, height;
} cu_rows_t;
/* Memory that is mapped by hand: what is asked for, and who may reach it; the driver's own layout, too. */
typedef unsigned long long cu_handle_t;
typedef struct cu_location {
    int type, id; /* CU_LOCATION_DEVICE, its ordinal */
} cu_location_t;
typedef struct cu_physical {
    int type, handle_types; /* handle_types 0: nobody else can have it */
    cu_location_t location;
    void *unused;
    uint8_t flags[8];
} cu_physical_t;
typedef struct cu_access {
    cu_location_t location;
    int flags;
} cu_access_t;

enum {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_INVALID_CONTEXT = 201,
    CU_INVALID_HANDLE = 400,
    CU_NOT_READY = 600,
    CU_CONTEXT_IS_DESTROYED = 709
};
enum {
    CU_ATTR_CONTEXT = 1,
    CU_ATTR_MEMORY_TYPE = 2,
    CU_ATTR_BUFFER_ID = 7,
    CU_ATTR_IS_MANAGED = 8,
    CU_ATTR_DEVICE_ORDINAL = 9,
    CU_ATTR_RANGE_START = 11,
    CU_ATTR_RANGE_SIZE = 12,
    CU_ATTR_HANDLE_TYPES = 14,
    CU_ATTR_MAPPING_SIZE = 18,
    CU_ATTR_MAPPING_BASE = 19,
    CU_ATTR_BLOCK_ID = 20
};
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };
enum { CU_EVENT_NO_TIMING = 2, CU_IPC_LAZY_PEER = 1 };
#define CU_STREAM_LEGACY ((uintptr_t)1) /* the default stream, by its own handle */
#define CU_STREAM_PER_THREAD ((uintptr_t)2)
enum { CU_DEVICE_MANAGED_MEMORY = 83, CU_DEVICE_VIRTUAL_MEMORY = 102, CU_DEVICE_HANDLES_FD = 103, CU_DEVICE_MEMORY_POOLS = 115 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_MEM_ATTACH_GLOBAL = 1, CU_MEMHOSTREGISTER_PORTABLE = 1 };
enum { CU_PHYSICAL_PINNED = 1, CU_LOCATION_DEVICE = 1, CU_GRANULARITY_MINIMUM = 0, CU_ACCESS_READ_WRITE = 3, CU_HANDLE_FD = 1 };

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
    X(copy_rows_async, "cuMemcpy2DAsync_v2", (const cu_rows_t *rows, cu_stream_t stream)) \
    X(stream_wait, "cuStreamSynchronize", (cu_stream_t stream)) \
    X(stream_query, "cuStreamQuery", (cu_stream_t stream)) \
    X(stream_after, "cuStreamWaitEvent", (cu_stream_t stream, cu_event_t event, unsigned flags)) \
    X(event_new, "cuEventCreate", (cu_event_t * out, unsigned flags)) \
    X(event_free, "cuEventDestroy_v2", (cu_event_t event)) \
    X(event_record, "cuEventRecord", (cu_event_t event, cu_stream_t stream)) \
    X(event_query, "cuEventQuery", (cu_event_t event)) \
    X(device_uuid, "cuDeviceGetUuid_v2", (cu_uuid_t * out, cu_device_t device)) \
    X(ipc_get, "cuIpcGetMemHandle", (cu_ipc_t * out, cu_ptr_t ptr)) \
    X(ipc_open, "cuIpcOpenMemHandle_v2", (cu_ptr_t * out, cu_ipc_t handle, unsigned flags)) \
    X(ipc_close, "cuIpcCloseMemHandle", (cu_ptr_t ptr)) \
    X(ctx_wait, "cuCtxSynchronize", (void)) \
    X(attribute, "cuPointerGetAttribute", (void *out, int attribute, cu_ptr_t ptr)) \
    X(attributes, "cuPointerGetAttributes", (unsigned n, int *attributes, void **outs, cu_ptr_t ptr))

/* Not every driver has these: NULL where it has not. The first three are CUDA 12's. */
#define CUDA_MORE_CALLS(X) \
    X(ctx_id, "cuCtxGetId", (cu_context_t ctx, unsigned long long *out)) \
    X(stream_write, "cuStreamWriteValue32_v2", (cu_stream_t stream, cu_ptr_t at, uint32_t value, unsigned flags)) \
    X(stream_until, "cuStreamWaitValue32_v2", (cu_stream_t stream, cu_ptr_t at, uint32_t value, unsigned flags)) \
    X(stream_context, "cuStreamGetCtx", (cu_stream_t stream, cu_context_t *out)) \
    X(fill_async, "cuMemsetD8Async", (cu_ptr_t at, unsigned char byte, size_t n, cu_stream_t stream)) \
    X(alloc_async, "cuMemAllocAsync", (cu_ptr_t * out, size_t n, cu_stream_t stream)) \
    X(free_async, "cuMemFreeAsync", (cu_ptr_t ptr, cu_stream_t stream)) \
    X(granularity, "cuMemGetAllocationGranularity", (size_t * out, const cu_physical_t *of, int option)) \
    X(physical_new, "cuMemCreate", (cu_handle_t * out, size_t n, const cu_physical_t *of, unsigned long long flags)) \
    X(physical_free, "cuMemRelease", (cu_handle_t handle)) \
    X(space_new, "cuMemAddressReserve", (cu_ptr_t * out, size_t n, size_t align, cu_ptr_t hint, unsigned long long flags)) \
    X(space_free, "cuMemAddressFree", (cu_ptr_t ptr, size_t n)) \
    X(map, "cuMemMap", (cu_ptr_t ptr, size_t n, size_t offset, cu_handle_t handle, unsigned long long flags)) \
    X(unmap, "cuMemUnmap", (cu_ptr_t ptr, size_t n)) \
    X(access_set, "cuMemSetAccess", (cu_ptr_t ptr, size_t n, const cu_access_t *who, size_t count)) \
    X(physical_of, "cuMemRetainAllocationHandle", (cu_handle_t * out, void *ptr)) \
    X(physical_export, "cuMemExportToShareableHandle", (void *out, cu_handle_t handle, int type, unsigned long long flags)) \
    X(physical_import, "cuMemImportFromShareableHandle", (cu_handle_t * out, void *from, int type))

typedef struct wefti_cu {
#define CUDA_MEMBER(member, symbol, args) cu_result_t(*member) args;
    CUDA_CALLS(CUDA_MEMBER)
    CUDA_MORE_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
} wefti_cu_t;

#define WEFTI_CUDA_DEVICES_MAX 64
extern wefti_cu_t wefti_cu;    /* filled in once CUDA is in use */
extern int wefti_cuda_devices; /* how many it has */

/* WEFT_OK while CUDA is in use. Else an error: a kind can be used in a forked child, or by a program that never asked for it. */
weft_status_t wefti_cuda_usable(void);
const char *wefti_cuda_words(cu_result_t r);
/* The copy() of all of its kinds. */
weft_status_t wefti_cuda_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n);

/* --- cuda_context.c --------------------------------------------------------------------------------------------------------- */

enum { WEFTI_CUDA_NOT, WEFTI_CUDA_DEVICE, WEFTI_CUDA_MANAGED, WEFTI_CUDA_PINNED /* host memory that is page-locked */ };

/* What CUDA knows of an address. */
typedef struct wefti_cuda_place {
    int sort;         /* WEFTI_CUDA_* */
    int ordinal;      /* of its device; -1: unknown */
    cu_context_t ctx; /* NULL: it belongs to no context */
} wefti_cuda_place_t;
wefti_cuda_place_t wefti_cuda_place(const void *ptr);

/* The device whose memory is seen first is where things are done that belong to none. */
void wefti_cuda_seen(int ordinal);
int wefti_cuda_home(void); /* -1: none yet */

/* Make a context current until wefti_cuda_leave(pushed): the primary one of a device; the caller's, else that of the home
 * device; the one that an address belongs to. What a thread has current is as it was when a call returns. */
cu_result_t wefti_cuda_enter_primary(int ordinal);
cu_result_t wefti_cuda_enter_any(bool *pushed);
cu_result_t wefti_cuda_enter_place(const wefti_cuda_place_t *place, bool *pushed);
cu_result_t wefti_cuda_enter_for(const void *ptr, bool *pushed);
void wefti_cuda_leave(bool pushed);
/* A name for the context that is current: never used again, but with drivers before CUDA 12 its address. */
cu_result_t wefti_cuda_context_id(unsigned long long *id_out);
/* It belonged to a context that its owner has destroyed meanwhile. */
static inline bool wefti_cuda_stale(cu_result_t r)
{
    return r == CU_INVALID_HANDLE || r == CU_INVALID_CONTEXT || r == CU_CONTEXT_IS_DESTROYED;
}
/* The status of a call that failed, with a sentence: "what, n bytes: its name"; without the bytes where n is 0. */
weft_status_t wefti_cuda_fail(cu_result_t r, const char *what, size_t n);

/* --- cuda_waits.c ----------------------------------------------------------------------------------------------------------- */

/* A stream of the program is about to wait for an operation, which it does until wait_end(). WEFT_ERR_LIMIT: it must not. */
struct wefti_cuda_waiting;
weft_status_t wefti_cuda_wait_begin(int device, cu_stream_t stream, struct wefti_cuda_waiting **waiting_out);
void wefti_cuda_wait_end(int device, struct wefti_cuda_waiting *waiting);
uint32_t wefti_cuda_waiting(int device); /* how many do */
bool wefti_cuda_crowded(int device);     /* copies within it could come behind one of them */
/* Does no stream wait, on any device? Only then memory is freed, closed or unpinned: at once, or when it is so. */
bool wefti_cuda_calm(void);
void wefti_cuda_when_calm(void (*fn)(void *ptr, size_t n), void *ptr, size_t n);

/* --- cuda_detour.c ---------------------------------------------------------------------------------------------------------- */

typedef struct wefti_cuda_detour {
    char *mem;
    bool tried;
} wefti_cuda_detour_t;
bool wefti_cuda_detour_ready(wefti_cuda_detour_t *d); /* false: there is no memory for it */
void wefti_cuda_detour_free(wefti_cuda_detour_t *d);  /* nothing of it is under way */
cu_result_t wefti_cuda_detour_post(wefti_cuda_detour_t *d, void *dst, const void *src, size_t n, cu_stream_t stream);

/* --- the device door -------------------------------------------------------------------------------------------------------- */

/* cuda_copies.c, cuda_share.c */
weft_status_t wefti_cuda_copy_add(void *state, wefti_copy_t *copy, void *dst, const void *src, size_t n, int way);
weft_status_t wefti_cuda_copy_end(void *state, wefti_copy_t *copy);
weft_status_t wefti_cuda_copy_look(void *state, wefti_copy_t *copy, uint64_t round);
void wefti_cuda_copy_stuck(const wefti_copy_t *copy);
weft_status_t wefti_cuda_copies_open(void **state_out);
void wefti_cuda_copies_close(void *state);
bool wefti_cuda_export(const void *ptr, size_t n, wefti_export_t *export_out);
weft_status_t wefti_cuda_import(const wefti_export_t *from, int fd, const void *near, wefti_imported_t *imported_out);
void wefti_cuda_unimport(const wefti_imported_t *imported);
bool wefti_cuda_import_is_there(const wefti_imported_t *imported);
bool wefti_cuda_is_pinned(const void *ptr);
/* cuda_fd.c */
bool wefti_cuda_export_fd(const void *ptr, size_t n, wefti_export_t *export_out);
int wefti_cuda_fd_of(const void *ptr);
cu_result_t wefti_cuda_import_fd(int fd, int device, size_t n, cu_ptr_t *ptr_out);
/* The same for whatever is mapped by hand: cuda_kinds.c. `handle` stays the caller's. */
bool wefti_cuda_maps(void); /* does this driver? */
cu_result_t wefti_cuda_map(cu_handle_t handle, int device, size_t n, cu_ptr_t *ptr_out);
cu_result_t wefti_cuda_unmap(cu_ptr_t ptr, size_t n);
/* For exports of [ptr, ptr + n) of an allocation: its device, offset and size, and its name: the one it has, or a new one. `id`
 * is CUDA's number for it, of those that this sort of export counts by. */
typedef struct wefti_cuda_allocation {
    uint64_t id;
    cu_ptr_t base;
    size_t size;
} wefti_cuda_allocation_t;
bool wefti_cuda_export_of(const wefti_cuda_place_t *place, const wefti_cuda_allocation_t *of, uint32_t sort, const void *ptr,
                          size_t n, wefti_export_t *export_out);
bool wefti_cuda_mapping_of(const void *ptr, wefti_cuda_allocation_t *out); /* what a descriptor would stand for */
/* Post one copy to a stream, in its context, by a copy engine where that is possible. Whether a side is host memory. */
cu_result_t wefti_cuda_post(void *dst, bool dst_host, const void *src, bool src_host, size_t n, cu_stream_t stream);

#endif
