/* mem/pool.h - what pool.c and slab.c share: the pool, its arenas and its slabs. */
#ifndef WEFTI_MEM_POOL_H
#define WEFTI_MEM_POOL_H

#include "mem/local.h"

#define WEFTI_POOL_UNIT ((size_t)64 << 10) /* arenas are cut into units of this size */
#define WEFTI_POOL_CLASSES 224u            /* sizes of buffers: 64 to 2^63 bytes */

typedef struct arena arena_t;

typedef struct slab {
    wefti_list_t link; /* pool->partial, while it has something to give */
    arena_t *arena;
    char *base;
    size_t size; /* of a buffer */
    uint32_t unit, units;
    uint32_t count, used;
    uint32_t fresh;   /* buffers from here on were never out */
    uint32_t n_free;  /* on the stack */
    uint32_t which;   /* class */
    uint64_t out[16]; /* bits */
    uint16_t stack[]; /* free ones that were out before */
} slab_t;

struct arena {
    wefti_arena_t mem;
    wefti_list_t link; /* pool->own_idle */
    uint64_t used;     /* buffers out */
    bool own;          /* all of it is one buffer */
    uint32_t units, free_units;
    slab_t *slab_of[]; /* by unit; NULL: free */
};

struct weft_pool {
    wefti_handle_t handle;
    pthread_mutex_t lock;
    weft_mem_kind_t kind; /* the pool as one */
    const weft_mem_kind_t *base;
    weft_runtime_t *_Atomic rt; /* NULL: it ended before the pool */
    uint32_t fork_generation;   /* of the process that made it; up to here it can be read when it was freed */
    size_t max_bytes, arena_bytes;
    bool share, outlives;
    bool left;        /* nobody has it any more: it goes with the last buffer that is out */
    arena_t **arenas; /* by address */
    uint32_t n, cap;
    arena_t *last; /* the one a buffer was last given back to */
    uint32_t empty_slabs;
    wefti_list_t own_idle;
    wefti_list_t partial[WEFTI_POOL_CLASSES];
    wefti_list_t link; /* the room's */
    uint64_t held, used, used_bytes, gets, reused;
};

/* slab.c; with the lock of the pool. */
/* A buffer of n bytes. WEFT_ERR_LIMIT, _NOMEM, _SYSTEM. */
weft_status_t wefti_slab_get(weft_pool_t *pool, size_t n, void **ptr_out);
/* Give a buffer back that lies in arena a; false: it is not out. */
bool wefti_slab_put(weft_pool_t *pool, arena_t *a, const char *ptr);
/* The arena in which an address lies, or NULL. */
arena_t *wefti_slab_arena_at(weft_pool_t *pool, const char *ptr);
/* Give idle arenas back to the system: how many bytes. */
size_t wefti_slab_trim(weft_pool_t *pool);
/* In a forked child, without the lock: free the child's copy of everything. */
void wefti_slab_forget(weft_pool_t *pool);

#endif
