/* mem/cuda_share.c - CUDA memory of other processes: exporting ours, importing theirs.
 *
 * An allocation is exported with a handle of CUDA's and a name of ours, which is random and stays the same until the allocation
 * is freed. CUDA gives every allocation a number that is never used again (BUFFER_ID): so memory that was freed and allocated
 * again at the same address gets another name, and whoever imports by name never takes it for the old one.
 *
 * Memory that was mapped by hand has no such handle, but perhaps a descriptor (cuda_fd.c). Its number is of the physical memory
 * (MEMORY_BLOCK_ID).
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
    uint64_t id; /* CUDA's; 0: a free place */
    uint32_t sort;
    uint64_t used; /* when, on a clock of uses */
    wefti_cuda_allocation_t of;
    uint8_t name[16];
} exported_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static exported_t exports[EXPORTS];
static uint64_t uses;

/* What an address belongs to. false: CUDA does not say. */
static bool ask(const void *ptr, int id, int base, int size, wefti_cuda_allocation_t *out)
{
    wefti_cuda_allocation_t of = {0};
    int which[3] = {id, base, size};
    void *outs[3] = {&of.id, &of.base, &of.size};
    if (wefti_cu.attributes(3, which, outs, (cu_ptr_t)(uintptr_t)ptr) || !of.id || !of.base)
        return false;
    *out = of;
    return true;
}

static bool allocation_of(const void *ptr, wefti_cuda_allocation_t *out)
{
    return ask(ptr, CU_ATTR_BUFFER_ID, CU_ATTR_RANGE_START, CU_ATTR_RANGE_SIZE, out);
}

bool wefti_cuda_mapping_of(const void *ptr, wefti_cuda_allocation_t *out)
{
    return ask(ptr, CU_ATTR_BLOCK_ID, CU_ATTR_MAPPING_BASE, CU_ATTR_MAPPING_SIZE, out);
}

/* --- exporting -------------------------------------------------------------------------------------------------------------- */

/* The name of an allocation: the one it has, or a new one. The lock is held. */
static const exported_t *name_of(const wefti_cuda_allocation_t *of, uint32_t sort)
{
    exported_t *oldest = &exports[0];
    for (exported_t *e = exports; e < exports + EXPORTS; e++) {
        if (e->id == of->id && e->sort == sort) {
            e->used = ++uses;
            return e;
        }
        if (e->used < oldest->used)
            oldest = e;
    }
    exported_t fresh = {.id = of->id, .sort = sort, .used = ++uses, .of = *of};
    if (getrandom(fresh.name, sizeof fresh.name, 0) != sizeof fresh.name)
        return NULL;
    *oldest = fresh;
    return oldest;
}

bool wefti_cuda_export_of(const wefti_cuda_place_t *place, const wefti_cuda_allocation_t *of, uint32_t sort, const void *ptr,
                          size_t n, wefti_export_t *export_out)
{
    cu_uuid_t uuid;
    cu_device_t device;
    uint64_t offset = (uint64_t)(uintptr_t)ptr - of->base;
    if (offset > of->size || n > of->size - offset || wefti_cu.device_get(&device, place->ordinal) ||
        wefti_cu.device_uuid(&uuid, device))
        return false;
    *export_out = (wefti_export_t){.sort = sort, .offset = offset, .size = of->size};
    memcpy(export_out->device, uuid.bytes, sizeof uuid.bytes);
    pthread_mutex_lock(&lock);
    const exported_t *e = name_of(of, sort);
    if (e)
        memcpy(export_out->name, e->name, sizeof e->name);
    pthread_mutex_unlock(&lock);
    return e != NULL;
}

bool wefti_cuda_export(const void *ptr, size_t n, wefti_export_t *export_out)
{
    wefti_cuda_allocation_t of;
    cu_ipc_t handle;
    if (!wefti_cuda_in_use())
        return false;
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    if (place.sort != WEFTI_CUDA_DEVICE || !allocation_of(ptr, &of))
        return false;
    bool pushed;
    if (wefti_cuda_enter_place(&place, &pushed))
        return false;
    cu_result_t r = wefti_cu.ipc_get(&handle, of.base);
    wefti_cuda_leave(pushed);
    if (r || !wefti_cuda_export_of(&place, &of, WEFTI_EXPORT_CUDA_IPC, ptr, n, export_out))
        return false; /* memory of a pool, mapped by hand, or imported itself */
    memcpy(export_out->handle, handle.bytes, sizeof handle.bytes);
    return true;
}

/* --- importing -------------------------------------------------------------------------------------------------------------- */

/* Is it an allocation of this process, and still that one? */
static bool is_ours(const uint8_t *name, wefti_imported_t *imported_out)
{
    wefti_cuda_allocation_t now;
    bool ours = false;
    pthread_mutex_lock(&lock);
    for (const exported_t *e = exports; e < exports + EXPORTS && !ours; e++) {
        if (!e->id || memcmp(e->name, name, sizeof e->name))
            continue;
        void *base = (void *)(uintptr_t)e->of.base;
        ours =
            (e->sort == WEFTI_EXPORT_CUDA_FD ? wefti_cuda_mapping_of(base, &now) : allocation_of(base, &now)) && now.id == e->id;
        *imported_out = (wefti_imported_t){.base = base, .size = e->of.size, .here = true};
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

static cu_result_t open_ipc(const wefti_export_t *from, wefti_imported_t *out)
{
    wefti_cuda_allocation_t of;
    cu_ipc_t handle;
    cu_ptr_t ptr = 0;
    memcpy(handle.bytes, from->handle, sizeof handle.bytes);
    cu_result_t r = wefti_cu.ipc_open(&ptr, handle, CU_IPC_LAZY_PEER);
    if (r)
        return r;
    *out = (wefti_imported_t){.base = (void *)(uintptr_t)ptr};
    if (allocation_of(out->base, &of) && of.base == ptr)
        out->size = of.size;
    return CU_SUCCESS;
}

static cu_result_t open_fd(const wefti_export_t *from, int fd, int device, wefti_imported_t *out)
{
    cu_ptr_t ptr = 0;
    cu_result_t r = wefti_cuda_import_fd(fd, device, from->size, &ptr);
    if (!r)
        *out = (wefti_imported_t){.base = (void *)(uintptr_t)ptr, .size = from->size, .mapped = true};
    return r;
}

weft_status_t wefti_cuda_import(const wefti_export_t *from, int fd, const void *near, wefti_imported_t *imported_out)
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
    r = from->sort == WEFTI_EXPORT_CUDA_FD ? open_fd(from, fd, ordinal, imported_out) : open_ipc(from, imported_out);
    wefti_cuda_leave(pushed);
    return r ? wefti_fail(WEFT_ERR_UNSUPPORTED, "memory of a peer's GPU does not open: %s", wefti_cuda_words(r)) : WEFT_OK;
}

bool wefti_cuda_import_is_there(const wefti_imported_t *imported)
{
    return wefti_cuda_in_use() && wefti_cuda_place(imported->base).sort == WEFTI_CUDA_DEVICE;
}

static void give_back(void *base, size_t n, bool mapped)
{
    bool pushed;
    if (!wefti_cuda_in_use())
        return;
    cu_result_t r = wefti_cuda_enter_for(base, &pushed);
    if (!r) {
        cu_ptr_t ptr = (cu_ptr_t)(uintptr_t)base;
        r = mapped ? wefti_cuda_unmap(ptr, n) : wefti_cu.ipc_close(ptr);
        wefti_cuda_leave(pushed);
    }
    if (r)
        wefti_debug("mem: giving back memory of a peer's GPU: %s", wefti_cuda_words(r));
}

static void unmap_now(void *base, size_t n)
{
    give_back(base, n, true);
}

static void close_now(void *base, size_t n)
{
    give_back(base, n, false);
}

void wefti_cuda_unimport(const wefti_imported_t *imported)
{
    if (!imported->here && wefti_cuda_in_use())
        wefti_cuda_when_calm(imported->mapped ? unmap_now : close_now, imported->base, imported->size);
}
