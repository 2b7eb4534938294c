/* mem/device.h - memory that the processor cannot touch: copies that do not wait, and memory of other processes of this host;
 * part of the door mem/mem.h.
 *
 * A kind of device memory can do more than weft_mem_kind_t says, where the library knows it: wefti_device_ops_t. CUDA has such
 * a table (mem/cuda_device.c), and another sort of device would have its own. Kinds without one, a program's own, are copied at
 * once, and nothing of them is exported.
 *
 * Driver only, where nothing else is said. */
#ifndef WEFTI_DEVICE_H
#define WEFTI_DEVICE_H

#include <weft/mem.h>

#include "core/core.h"

/* --- copies ---------------------------------------------------------------------------------------------------------------- */

/* One copy under way, of one piece or several; embedded by whoever starts it. */
typedef struct wefti_copy wefti_copy_t;
struct wefti_copy {
    /* Set by the starter. Called once, from progress, never from inside the calls below: with WEFT_OK when all bytes are in
     * place, or with the first failure. Either way nobody touches the memory any more. */
    void (*done)(wefti_copy_t *copy, weft_status_t status);
    /* mem's */
    wefti_list_t link;                  /* of those under way */
    const struct wefti_device_ops *ops; /* NULL: nothing of it is under way */
    void *queue, *event;                /* the device's */
    uint32_t number, looks;
    wefti_fault_t fault; /* the first failure */
};

/* Begin a copy: WEFT_OK, and then any number of adds and one end; or WEFT_ERR_NOMEM. */
weft_status_t wefti_copy_begin(weft_runtime_t *rt, wefti_copy_t *copy);
/* n > 0 bytes, which way is known to the caller: to, from or within memory of `device`. The host's side is page-locked, or the
 * call takes as long as the copy. What fails here ends the copy with its status. Copies of less than 64 KiB to one allocation,
 * and those from one, are made in the order in which they were begun: rma relies on it. */
enum { WEFTI_COPY_TO, WEFTI_COPY_FROM, WEFTI_COPY_WITHIN, WEFTI_COPY_WAYS };
void wefti_copy_add(weft_runtime_t *rt, wefti_copy_t *copy, const weft_mem_kind_t *device, void *dst, const void *src, size_t n,
                    int way);
/* Instead of adds: it ends when this event of the device's has passed. */
void wefti_copy_await(weft_runtime_t *rt, wefti_copy_t *copy, const weft_mem_kind_t *device, void *event);
void wefti_copy_end(weft_runtime_t *rt, wefti_copy_t *copy);

/* --- memory of other processes --------------------------------------------------------------------------------------------- */

/* A range of device memory, as another process of this host can be told of it. It travels as it is: docs/design/wire.md. */
typedef struct wefti_export {
    uint32_t sort; /* WEFTI_EXPORT_* */
    int32_t fd;    /* of the exporter's process, where the sort is of descriptors; else 0 */
    uint8_t name[16];   /* random, and the same for as long as the allocation lives */
    uint8_t device[16]; /* which device it is on: the vendor's name for it */
    uint8_t handle[64];
    uint64_t offset; /* of the range in the allocation */
    uint64_t size;   /* of the allocation */
} wefti_export_t;
enum { WEFTI_EXPORT_CUDA_IPC = 1, WEFTI_EXPORT_CUDA_FD = 2 };
_Static_assert(sizeof(wefti_export_t) == 120, "it is part of the protocol");

/* Let processes of this user on this host have [ptr, ptr + n), and with it all of its allocation. false: this memory cannot be
 * exported. Any thread. */
bool wefti_mem_export(const weft_mem_kind_t *device, const void *ptr, size_t n, wefti_export_t *export_out);
/* The same for memory that can be had by a descriptor only. It is open as long as this is held, by an operation or a grant; and
 * the memory stays allocated as long as it is open. NULL: this memory cannot be exported, or too many are held. */
typedef struct wefti_held wefti_held_t;
wefti_held_t *wefti_mem_export_held(weft_runtime_t *rt, const weft_mem_kind_t *device, const void *ptr, size_t n,
                                    wefti_export_t *export_out);
void wefti_mem_unhold(weft_runtime_t *rt, wefti_held_t *held); /* NULL is fine */
extern uint32_t wefti_held_max; /* at a time; tests make it small */

/* Memory of another process, as long as it is held. The bytes stay what they were when its owner frees them or dies; who still
 * owns them is for the caller to find out. */
typedef struct wefti_import wefti_import_t;
/* The n bytes of an export, which is a peer's and may be anything; `near` is the memory of ours that they are copied to or from.
 * take_fd(arg, fd): a descriptor of the exporter's as one of ours, or -1; NULL: none can be had.
 * WEFT_ERR_UNSUPPORTED (no such device here, or it does not open), _RANGE (the range is not within the allocation), _LIMIT (all
 * that may be held are in use), _NOMEM. */
typedef int (*wefti_take_fd_fn)(void *arg, int fd);
weft_status_t wefti_mem_import(weft_runtime_t *rt, const wefti_export_t *from, size_t n, const void *near,
                               wefti_take_fd_fn take_fd, void *arg, wefti_import_t **import_out, void **ptr_out);
/* It may not be what its name says: nobody else gets it, and it goes when those who have it are done. */
void wefti_mem_distrust(wefti_import_t *import);
/* Done with it. It stays for a second, for the next who wants it: importing takes 0.1 ms or more. */
void wefti_mem_unimport(weft_runtime_t *rt, wefti_import_t *import);
/* The runtime ends, and the program goes on with it: from now on any thread may call wefti_mem_unimport(), with any runtime. */
void wefti_mem_import_part(weft_runtime_t *rt, wefti_import_t *import);
/* At most so many at a time; tests make it small. */
extern uint32_t wefti_imports_max;

/* Page-locked host memory, which a device copies from and to without our help. pin: false where no device is in use, or it does
 * not go; what is pinned is unpinned before it is unmapped. Any thread. */
bool wefti_mem_are_pinned(const weft_iov_t *iov, uint64_t n); /* the first n bytes of these pieces */
bool wefti_mem_pin(void *base, size_t n);
void wefti_mem_unpin(void *base);
/* Do what unpins or frees memory of a device: at once, or when no stream of the program waits for an operation. Such a call
 * waits for all streams of the process, and nobody could copy for the operation meanwhile. Any thread. */
void wefti_mem_when_calm(void (*fn)(void *ptr, size_t n), void *ptr, size_t n);
bool wefti_mem_calm(void);
/* The library's own kind of the device that imports and bounce buffers are of. Any thread. */
const weft_mem_kind_t *wefti_device_kind(void);
/* Is it a kind whose device the library knows, so that all of this can be done with it? NULL is not. Any thread. */
bool wefti_device_known(const weft_mem_kind_t *kind);
/* Can memory of other processes be imported here at all? Any thread. */
bool wefti_mem_imports(void);

/* --- bounce buffers -------------------------------------------------------------------------------------------------------- */

/* Device memory of our own, on the device of `near`, that can be exported: for payloads in memory that cannot. NULL: all are
 * out, or there is no memory. *n_out: its bytes. */
#define WEFTI_BOUNCE_MAX 4u
void *wefti_bounce_get(weft_runtime_t *rt, const void *near, size_t *n_out);
void wefti_bounce_put(weft_runtime_t *rt, void *mem);
extern size_t wefti_bounce_bytes; /* tests make it small */

/* --- what a sort of device can do ------------------------------------------------------------------------------------------ */

typedef struct wefti_imported {
    void *base;                 /* of the allocation */
    size_t size;                /* as the device says, not the peer */
    bool here;                  /* it is memory of this process */
    bool mapped;                /* by hand */
} wefti_imported_t;

typedef struct wefti_device_ops {
    /* What it keeps for one runtime, from its first copy on. */
    weft_status_t (*open)(void **state_out);
    void (*close)(void *state);
    /* Copies: see above. A failed add or end leaves what was added before under way; end then waits for it. */
    weft_status_t (*copy_add)(void *state, wefti_copy_t *copy, void *dst, const void *src, size_t n, int way);
    weft_status_t (*copy_end)(void *state, wefti_copy_t *copy);
    /* WEFT_ERR_AGAIN: it is still under way. round: the same for all that are looked at together. */
    weft_status_t (*copy_look)(void *state, wefti_copy_t *copy, uint64_t round);
    void (*copy_stuck)(const wefti_copy_t *copy); /* none ended for seconds: the log may say why */
    /* Exports and imports. Any thread. */
    bool (*export)(const void *ptr, size_t n, wefti_export_t *export_out);
    bool (*export_fd)(const void *ptr, size_t n, wefti_export_t *export_out); /* all but the descriptor */
    int (*fd_of)(const void *ptr);                                            /* a new one; -1 */
    weft_status_t (*import)(const wefti_export_t *from, int fd, const void *near, wefti_imported_t *imported_out);
    void (*unimport)(const wefti_imported_t *imported);
    bool (*is_there)(const wefti_imported_t *imported); /* still, also if a context was destroyed */
    bool (*is_pinned)(const void *ptr);
} wefti_device_ops_t;

#endif
