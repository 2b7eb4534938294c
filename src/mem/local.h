/* mem/local.h - what the files of this room share and nobody else sees. */
#ifndef WEFTI_MEM_LOCAL_H
#define WEFTI_MEM_LOCAL_H

#include <pthread.h>

#include "base/opts.h"
#include "mem/kept.h"
#include "mem/mem.h"

/* --- kinds ------------------------------------------------------------------------------------------------------------------ */

extern const weft_mem_kind_t wefti_mem_kind_host, wefti_mem_kind_huge, wefti_mem_kind_pinned; /* host.c */
extern const weft_mem_kind_t wefti_mem_kind_cuda, wefti_mem_kind_managed;                     /* cuda.c */
extern const weft_mem_kind_t wefti_mem_kind_cuda_async, wefti_mem_kind_cuda_vmm, wefti_mem_kind_cuda_fd; /* cuda_kinds.c */

/* Kinds that weft_mem_kind_of() has to ask: 0 and every address is host memory. */
extern _Atomic uint32_t wefti_mem_askable;

/* What a pool's kind stands on; any other kind as it is. */
const weft_mem_kind_t *wefti_pool_base_kind(const weft_mem_kind_t *kind);
bool wefti_pool_is_kind(const weft_mem_kind_t *kind);

/* The system refused n bytes of memory for `what`: records the detail. */
weft_status_t wefti_mem_fail_errno(int err, const char *what, size_t n);

/* --- CUDA ------------------------------------------------------------------------------------------------------------------- */

/* Look for CUDA if nobody has yet, and bring it into use: WEFT_OK, or WEFT_ERR_UNSUPPORTED, _FORKED with the reason as detail.
 * `said`: what WEFT_CUDA says where the caller knows, else NULL. */
weft_status_t wefti_cuda_use(const char *said);
bool wefti_cuda_in_use(void);
bool wefti_cuda_kind(const weft_mem_kind_t *kind); /* one of its kinds? */
bool wefti_cuda_has(const weft_mem_kind_t *kind);  /* which is there? The detail says why not. CUDA is in use */
/* Page-lock a range for the GPU, whichever thread this is; false where that is not to be had. Undone before the range is
 * unmapped. */
bool wefti_cuda_pin(void *base, size_t n);
void wefti_cuda_unpin(void *base);
/* Unpin memory of wefti_aligned_alloc() and free it, perhaps later: unpinning waits for all streams of the process. */
void wefti_cuda_unpin_free(void *base, size_t n);
void wefti_cuda_put_off_done(void); /* do what was put off, if no stream waits any more */
/* The device of an address, or the home device where it is on none; memory there, that can be exported. NULL: there is none. */
int wefti_cuda_device_of(const void *ptr);
void *wefti_cuda_alloc_on(int device, size_t n);

/* --- arenas ----------------------------------------------------------------------------------------------------------------- */

/* Memory of a pool, in one piece: see arena.c. */
typedef struct wefti_arena {
    char *base;
    size_t n;
    const weft_mem_kind_t *kind;
    int fd;                 /* of a memfd; -1: it came from kind->alloc() */
    bool shared, pinned;
    uint64_t share_id;
    wefti_memfd_t memfd;    /* where there is an fd */
} wefti_arena_t;

/* n is a multiple of the page size. share: so that peers on this host may map it, if the fabric wants to know. WEFT_ERR_NOMEM,
 * _LIMIT, _SYSTEM. */
weft_status_t wefti_arena_open(wefti_arena_t *a, weft_runtime_t *rt, const weft_mem_kind_t *kind, size_t n, bool share);
/* Peers are not told of it any more. Before close(), and before the fabric ends. */
void wefti_arena_unshare(wefti_arena_t *a, weft_runtime_t *rt);
void wefti_arena_close(wefti_arena_t *a);

/* --- the room --------------------------------------------------------------------------------------------------------------- */

#define WEFTI_MEM_RANGES 4096u /* registered at a time, at most */

/* The registration cache of a runtime: see reg.c. */
typedef struct wefti_reg_cache {
    pthread_mutex_t lock;
    weft_runtime_t *rt;
    weft_mem_reg_t **ranges; /* by base */
    uint32_t n, cap;
    uint64_t bytes, max_bytes;
    wefti_list_t unused; /* longest unused first */
    uint64_t hits, misses, evictions;
} wefti_reg_cache_t;

typedef struct wefti_staging {
    void *mem;
    bool out, pinned, tried; /* tried: to pin it */
} wefti_staging_t;

/* Copies that are under way: see copies.c. */
typedef struct wefti_copies {
    weft_runtime_t *rt;
    wefti_timer_t timer;
    wefti_list_t under_way;
    const wefti_device_ops_t *ops; /* NULL: no device was used yet */
    void *state;                   /* its */
    uint64_t round, last_end;
    uint64_t posted; /* to a device, ever */
    uint32_t n;
    bool stuck; /* none ended for long, and this was said */
} wefti_copies_t;

/* Memory of other processes: see imports.c. */
typedef struct wefti_imports {
    wefti_keeper_t keeper;
    uint64_t opened;
} wefti_imports_t;

/* Small pieces of page-locked memory: see carry.c. */
typedef struct wefti_carries {
    wefti_list_t free;
    struct wefti_carry_block *block[WEFTI_CARRIES_MAX / 64];
    unsigned n;
} wefti_carries_t;

/* Device memory of our own that peers can have: see bounce.c. */
typedef struct wefti_bounce {
    void *mem; /* NULL: not made yet */
    size_t n;
    int device;
    bool out;
    uint64_t idle_since;
} wefti_bounce_t;
typedef struct wefti_bounces {
    weft_runtime_t *rt;
    wefti_timer_t timer;
    wefti_bounce_t at[WEFTI_BOUNCE_MAX];
} wefti_bounces_t;

typedef struct wefti_mem {
    pthread_mutex_t lock; /* of pools */
    wefti_list_t pools;
    wefti_reg_cache_t regs;
    wefti_staging_t staging[WEFTI_STAGING_MAX];
    wefti_copies_t copies;
    wefti_imports_t imports;
    wefti_keeper_t helds; /* descriptors that peers are told of: see held.c */
    wefti_carries_t carries;
    wefti_bounces_t bounces;
} wefti_mem_t;

static inline wefti_mem_t *wefti_mem_of(weft_runtime_t *rt) { return rt->room_state[WEFTI_ROOM_MEM]; }

void wefti_reg_init(wefti_reg_cache_t *cache, weft_runtime_t *rt);
void wefti_reg_end(wefti_reg_cache_t *cache);
/* Pools that outlive their runtime: they are told, and give nothing out any more. */
void wefti_pools_cut(wefti_mem_t *m);
void wefti_staging_free(wefti_mem_t *m);
void wefti_copies_init(wefti_copies_t *all, weft_runtime_t *rt);
void wefti_copies_close(wefti_copies_t *all); /* none is under way */
void wefti_imports_init(wefti_imports_t *all, weft_runtime_t *rt);
void wefti_helds_init(wefti_keeper_t *all, weft_runtime_t *rt);
extern const wefti_gate_ops_t wefti_cuda_gates; /* streams.c */
void wefti_carries_init(wefti_carries_t *all);
void wefti_bounces_init(wefti_bounces_t *all, weft_runtime_t *rt);
void wefti_bounces_close(wefti_bounces_t *all);
void wefti_carries_close(wefti_carries_t *all); /* none is out */

/* What the library knows of a kind beside the kind itself; NULL: nothing. And of memory that a peer says it exports. */
const wefti_device_ops_t *wefti_device_ops(const weft_mem_kind_t *kind);
const wefti_device_ops_t *wefti_device_ops_of_export(uint32_t sort);

#endif
