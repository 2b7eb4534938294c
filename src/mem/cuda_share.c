/* mem/cuda_share.c - CUDA memory of other processes: exporting ours, importing theirs.
 *
 * An allocation is exported with a handle of CUDA's and a name of ours, which is random and stays the same until the allocation
 * is freed. CUDA gives every allocation a number that is never used again (BUFFER_ID): so memory that was freed and allocated
 * again at the same address gets another name, and whoever imports by name never takes it for the old one.
 *
 * A process cannot import what it exports: two runtimes of one process find the allocation by its name instead. Only who was
 * told of an export knows its name.
 *
 * Names are kept for the last EXPORTS allocations. One that is forgotten and exported again has a new name, which costs its
 * importers a moment.
 *
 * What is imported stays what it is when its owner frees it or dies: the driver keeps the memory until it is given back here
 * (seen on driver 580). Any thread. tests/unit/mem_share.c. */
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "mem/cuda.h"

#define EXPORTS 256

typedef struct exported {
    uint64_t id;   /* CUDA's; 0: a free place */
    uint64_t used; /* when, on a clock of uses */
    cu_ptr_t base;
    size_t size;
    uint8_t name[16];
} exported_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static exported_t exports[EXPORTS];
static uint64_t uses;

/* What an address belongs to. false: CUDA does not say. */
static bool allocation_of(const void *ptr, uint64_t *id_out, cu_ptr_t *base_out, size_t *size_out)
{
    uint64_t id = 0;
    cu_ptr_t base = 0;
    size_t size = 0;
    int which[3] = {CU_ATTR_BUFFER_ID, CU_ATTR_RANGE_START, CU_ATTR_RANGE_SIZE};
    void *outs[3] = {&id, &base, &size};
    if (wefti_cu.attributes(3, which, outs, (cu_ptr_t)(uintptr_t)ptr) || !id || !base)
        return false;
    *id_out = id;
    *base_out = base;
    *size_out = size;
    return true;
}

/* --- exporting -------------------------------------------------------------------------------------------------------------- */

/* The name of an allocation: the one it has, or a new one. The lock is held. */
static const exported_t *name_of(uint64_t id, cu_ptr_t base, size_t size)
{
    exported_t *oldest = &exports[0];
    for (exported_t *e = exports; e < exports + EXPORTS; e++) {
        if (e->id == id) {
            e->used = ++uses;
            return e;
        }
        if (e->used < oldest->used)
            oldest = e;
    }
    exported_t fresh = {.id = id, .used = ++uses, .base = base, .size = size};
    if (getrandom(fresh.name, sizeof fresh.name, 0) != sizeof fresh.name)
        return NULL;
    *oldest = fresh;
    return oldest;
}

bool wefti_cuda_export(const void *ptr, size_t n, wefti_export_t *export_out)
{
    uint64_t id;
    cu_ptr_t base;
    size_t size;
    cu_ipc_t handle;
    cu_uuid_t uuid;
    cu_device_t device;
    if (!wefti_cuda_in_use())
        return false;
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    if (place.sort != WEFTI_CUDA_DEVICE || !allocation_of(ptr, &id, &base, &size))
        return false;
    uint64_t offset = (uint64_t)(uintptr_t)ptr - base;
    if (offset > size || n > size - offset)
        return false;
    bool pushed;
    if (wefti_cuda_enter_place(&place, &pushed))
        return false;
    cu_result_t r = wefti_cu.ipc_get(&handle, base);
    if (!r)
        r = wefti_cu.device_get(&device, place.ordinal);
    if (!r)
        r = wefti_cu.device_uuid(&uuid, device);
    wefti_cuda_leave(pushed);
    if (r)
        return false; /* memory of a pool, mapped by hand, or imported itself */
    *export_out = (wefti_export_t){.sort = WEFTI_EXPORT_CUDA_IPC, .offset = offset, .size = size};
    memcpy(export_out->device, uuid.bytes, sizeof uuid.bytes);
    memcpy(export_out->handle, handle.bytes, sizeof handle.bytes);
    pthread_mutex_lock(&lock);
    const exported_t *e = name_of(id, base, size);
    if (e)
        memcpy(export_out->name, e->name, sizeof e->name);
    pthread_mutex_unlock(&lock);
    return e != NULL;
}

/* --- importing -------------------------------------------------------------------------------------------------------------- */

/* Is it an allocation of this process, and still that one? */
static bool is_ours(const uint8_t *name, wefti_imported_t *imported_out)
{
    uint64_t id;
    cu_ptr_t base;
    size_t size;
    bool ours = false;
    pthread_mutex_lock(&lock);
    for (const exported_t *e = exports; e < exports + EXPORTS && !ours; e++) {
        if (!e->id || memcmp(e->name, name, sizeof e->name))
            continue;
        ours = allocation_of((void *)(uintptr_t)e->base, &id, &base, &size) && id == e->id;
        *imported_out = (wefti_imported_t){.base = (void *)(uintptr_t)e->base, .size = e->size, .here = true};
    }
    pthread_mutex_unlock(&lock);
    return ours;
}

/* The ordinal that the peer's device has here; -1: it is not there. */
static int ordinal_of(const uint8_t *uuid)
{
    for (int i = 0; i < wefti_cuda_devices; i++) {
        cu_device_t device;
        cu_uuid_t its;
        if (!wefti_cu.device_get(&device, i) && !wefti_cu.device_uuid(&its, device) && !memcmp(its.bytes, uuid, sizeof its.bytes))
            return i;
    }
    return -1;
}

weft_status_t wefti_cuda_import(const wefti_export_t *from, const void *near, wefti_imported_t *imported_out)
{
    weft_status_t st = wefti_cuda_usable();
    if (st)
        return st;
    if (is_ours(from->name, imported_out))
        return WEFT_OK;
    int ordinal = ordinal_of(from->device);
    if (ordinal < 0)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "the peer's GPU is not one that this process sees");
    /* Next to our memory if that is on the same device, so that one context has both. */
    wefti_cuda_place_t place = near ? wefti_cuda_place(near) : (wefti_cuda_place_t){.ordinal = -1};
    if (place.sort != WEFTI_CUDA_DEVICE || place.ordinal != ordinal)
        place = (wefti_cuda_place_t){.sort = WEFTI_CUDA_DEVICE, .ordinal = ordinal};
    bool pushed;
    cu_result_t r = wefti_cuda_enter_place(&place, &pushed);
    if (r)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "memory of a peer's GPU: %s", wefti_cuda_words(r));
    cu_ipc_t handle;
    cu_ptr_t ptr = 0, base = 0;
    uint64_t id;
    size_t size = 0;
    memcpy(handle.bytes, from->handle, sizeof handle.bytes);
    r = wefti_cu.ipc_open(&ptr, handle, CU_IPC_LAZY_PEER);
    wefti_cuda_leave(pushed);
    if (r)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "memory of a peer's GPU does not open: %s", wefti_cuda_words(r));
    *imported_out = (wefti_imported_t){.base = (void *)(uintptr_t)ptr};
    if (allocation_of(imported_out->base, &id, &base, &size) && base == ptr)
        imported_out->size = size;
    return WEFT_OK;
}

bool wefti_cuda_import_is_there(const wefti_imported_t *imported)
{
    return wefti_cuda_in_use() && wefti_cuda_place(imported->base).sort == WEFTI_CUDA_DEVICE;
}

void wefti_cuda_unimport(const wefti_imported_t *imported)
{
    bool pushed;
    if (imported->here || !wefti_cuda_in_use())
        return;
    cu_result_t r = wefti_cuda_enter_for(imported->base, &pushed);
    if (!r) {
        r = wefti_cu.ipc_close((cu_ptr_t)(uintptr_t)imported->base);
        wefti_cuda_leave(pushed);
    }
    if (r)
        wefti_debug("mem: giving back memory of a peer's GPU: %s", wefti_cuda_words(r));
}
