/* weft/mem.h - memory: kinds of it, pools, and registration.
 *
 * A kind says how memory of one sort is allocated, freed, copied and recognised. The library has these, where the machine has
 * them:
 *
 *     host           what malloc gives
 *     huge           huge pages: reserved ones if there are any, else transparent ones
 *     pinned         pages that stay in memory, and that the GPU's engine can copy from and to, where there is one
 *     cuda           memory of the calling thread's CUDA device; where it has none (a runtime's thread), of the first one seen
 *     cuda-managed   memory that CUDA moves between the processor and its devices
 *     cuda-async     memory from the CUDA memory pool of a device, as cudaMallocAsync gives
 *     cuda-vmm       memory of a device that was mapped by hand, as cuMemCreate and cuMemMap give
 *     cuda-fd        the same, made so that other processes of this host can open it by a file descriptor
 *
 * By its address nobody can tell memory of the last three from "cuda", and weft_mem_kind_of() answers "cuda" for it. All are on
 * the device that "cuda" would be on.
 *
 * CUDA is not needed to build or to run: its driver is looked for at run time, when the first of its kinds is asked for by
 * name (or WEFT_CUDA=on says so), and a machine without it has fewer kinds. A program can make kinds of its own and
 * name them in options; one that was added is also found by name and by address. Their functions may be called from progress.
 *
 * Everything that takes a buffer takes it in any kind. Memory that the processor cannot touch is moved by its GPU: between hosts
 * in pieces through pinned memory, the copies overlapping the transfer; on one host the receiver's GPU copies large payloads
 * straight out of the sender's memory, where that can be opened. Copies to and from a GPU run on streams of the library's own:
 * what the program's kernels do with a buffer must be complete before it is handed over, and may begin when the operation is
 * complete; or the operation takes its turn in a stream (weft_op_streams_t).
 *
 * After fork() the child's copy of a pool's memory is its own to write to, but what it has not written still shows the
 * parent's writes; CUDA cannot be used in a child of a process that uses it.
 *
 * Endings: a pool that was freed says WEFT_ERR_CLOSED, gives nothing out and takes nothing back; weft_pool_kind() is then
 * NULL. Buffers of a pool and registrations may be given back after their runtime was closed.
 *
 * Threads: any, for everything here. */
#ifndef WEFT_MEM_H
#define WEFT_MEM_H

#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- kinds ------------------------------------------------------------------------------------------------------------ */

typedef struct weft_mem_kind weft_mem_kind_t;

#define WEFT_MEM_CPU UINT32_C(1) /* flag: the processor reads and writes it through its pointer */

/* One kind of memory, as functions. A program's own is filled in by the program and lives as long as anything uses it. */
struct weft_mem_kind {
    size_t size;      /* sizeof(weft_mem_kind_t) */
    const char *name; /* letters, digits, '-' and '_', at most 31 */
    uint32_t flags;   /* WEFT_MEM_* */
    uint32_t reserved;
    void *user;

    /* n > 0 bytes, aligned to 64. WEFT_ERR_NOMEM, or _SYSTEM with the reason in the log. */
    weft_status_t (*alloc)(const weft_mem_kind_t *kind, size_t n, void **ptr_out);
    /* What alloc gave, with the same n. */
    void (*free)(const weft_mem_kind_t *kind, void *ptr, size_t n);
    /* Copy n bytes; each side is memory of this kind or memory the processor can touch. Whole when it returns. NULL with
     * WEFT_MEM_CPU: memcpy does it. */
    weft_status_t (*copy)(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n);
    /* Is this an address of this kind? Never touches what is there. NULL: nobody can tell, and weft_mem_kind_of() never
     * answers it. */
    bool (*owns)(const weft_mem_kind_t *kind, const void *ptr);
};
#define WEFT_MEM_KIND_INIT WEFT_INIT(weft_mem_kind_t)

/* The kind of that name, or NULL where there is none: weft_last_error() says why not. The result is valid for the life of the
 * process, or until a program's own is taken back. */
WEFT_API const weft_mem_kind_t *weft_mem_kind_find(const char *name);

/* Plain host memory; never NULL. */
WEFT_API const weft_mem_kind_t *weft_mem_host(void);

/* What kind an address is of. Addresses nobody claims are host memory. Costs a few ns while no kind is in use that the processor
 * cannot touch, a question to each such kind otherwise. Never NULL. */
WEFT_API const weft_mem_kind_t *weft_mem_kind_of(const void *ptr);

/* Call fn for every kind this machine has, in the order above, a program's own last. Asks for CUDA. */
typedef void (*weft_mem_kind_fn)(const weft_mem_kind_t *kind, void *user);
WEFT_API void weft_mem_kind_each(weft_mem_kind_fn fn, void *user);

/* Add a kind of the program's own, for the whole process: weft_mem_kind_find() finds it by name, before one of the library's
 * with the same name, and weft_mem_kind_of() asks it. Fails: WEFT_ERR_INVALID (a function or the name is missing),
 * WEFT_ERR_STATE (a program's own of that name is there), WEFT_ERR_LIMIT (more than 16). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mem_kind_add(const weft_mem_kind_t *kind);
/* Take it back. Nothing may be under way in memory of it. WEFT_ERR_NOTFOUND. */
WEFT_API weft_status_t weft_mem_kind_remove(const weft_mem_kind_t *kind);

/* Allocate in a kind (NULL: host). n 0 counts as 1. Fails: WEFT_ERR_NOMEM, WEFT_ERR_SYSTEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mem_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out);
/* Free it: the same kind and n. ptr NULL is allowed. Memory of CUDA's kinds, and page-locked memory, goes back to the system
 * later if a stream of a GPU waits for an operation now (op->streams). */
WEFT_API void weft_mem_free(const weft_mem_kind_t *kind, void *ptr, size_t n);
/* Copy between any two kinds (NULL: look, with weft_mem_kind_of). Whole when it returns. The ranges do not overlap.
 * Fails: WEFT_ERR_NOMEM, WEFT_ERR_SYSTEM. */
WEFT_API weft_status_t weft_mem_copy(void *dst, const weft_mem_kind_t *dst_kind, const void *src, const weft_mem_kind_t *src_kind,
                                     size_t n);

/* The number of the CUDA device that memory is on; -1: on none. */
WEFT_API int weft_mem_device(const void *ptr);
/* Wait until what the program gave to the default stream of the GPU at ptr is complete, and, with `all`, what it gave to any
 * stream in the context that ptr belongs to: before a buffer is handed over that its kernels may still write to. WEFT_OK at
 * once for memory of no GPU. Fails: WEFT_ERR_SYSTEM. */
WEFT_API weft_status_t weft_mem_settle(const void *ptr, bool all);

/* --- pools ------------------------------------------------------------------------------------------------------------ */

/* Memory to be used again and again. It comes from the kind in large arenas, and goes back to it when the pool is freed or
 * trimmed.
 *
 * A pool of host memory is made so that peers of the same user on this host can map it: large payloads sent from its buffers
 * are then copied once, at the speed of memory, or lent without being copied at all (see weft_am_view). Such a peer can read
 * the whole arena, so keep secrets elsewhere, or set `unshared`. */
typedef struct weft_pool weft_pool_t;

typedef struct weft_pool_opts {
    size_t size;
    const weft_mem_kind_t *kind; /* Default is: host */
    size_t max_bytes;            /* of all arenas together. Default is: 4 GiB */
    size_t arena_bytes;          /* of one; larger buffers have one of their own. Default is: 16 MiB */
    bool unshared;               /* peers may not map it */
    bool outlives;               /* it may be freed after its runtime, without a warning: buffers that are out stay valid, and it
                                    gives none out any more */
} weft_pool_opts_t;
#define WEFT_POOL_OPTS_INIT WEFT_INIT(weft_pool_opts_t)

/* Make a pool for a runtime; opts may be NULL. Free it before the runtime. Fails: WEFT_ERR_INVALID, WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_pool_new(weft_runtime_t *rt, const weft_pool_opts_t *opts, weft_pool_t **pool_out);
/* WEFT_ERR_STATE while buffers of it are out. NULL is allowed. */
WEFT_API weft_status_t weft_pool_free(weft_pool_t *pool);

/* A buffer of at least n bytes (0 counts as 1), aligned to 64. Fails: WEFT_ERR_LIMIT (max_bytes), WEFT_ERR_NOMEM,
 * WEFT_ERR_SYSTEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_pool_get(weft_pool_t *pool, size_t n, void **ptr_out);
/* Give it back. Not before everything that uses it is complete. NULL is allowed. */
WEFT_API void weft_pool_put(weft_pool_t *pool, void *ptr);
/* Give arenas that are empty back to the system; how many bytes that were. */
WEFT_API size_t weft_pool_trim(weft_pool_t *pool);

/* The pool as a kind: wherever a kind is taken, the buffer then comes from the pool and goes back to it by weft_mem_free().
 * Valid until the pool is freed. */
WEFT_API const weft_mem_kind_t *weft_pool_kind(weft_pool_t *pool);

typedef struct weft_pool_stats {
    size_t size;
    uint64_t arenas, arena_bytes; /* held now */
    uint64_t used, used_bytes;    /* buffers out now, and what they take */
    uint64_t gets, reused;        /* since it was made; reused: without touching an arena for the first time */
} weft_pool_stats_t;
#define WEFT_POOL_STATS_INIT WEFT_INIT(weft_pool_stats_t)
WEFT_API void weft_pool_get_stats(weft_pool_t *pool, weft_pool_stats_t *stats_out);

/* --- registration ----------------------------------------------------------------------------------------------------- */

/* Make a range ready for transfers ahead of time: registered with UCX, and page-locked for the GPU where there is one. Never
 * needed; it saves the first transfer from a range some time. A range that is given back stays registered until others need
 * the room (WEFT_REG_CACHE), so that registering it again is cheap. Do not free memory that is registered: give it back first,
 * and after weft_mem_unregister(.., forget) the range is really gone.
 *
 * Fails: WEFT_ERR_INVALID (NULL or empty), WEFT_ERR_LIMIT (more than WEFT_REG_CACHE in use), WEFT_ERR_NOMEM, WEFT_ERR_SYSTEM. */
typedef struct weft_mem_reg weft_mem_reg_t;
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mem_register(weft_runtime_t *rt, void *ptr, size_t n, weft_mem_reg_t **reg_out);
/* Give it back; forget: and take it out of the cache when nobody else holds it. NULL is allowed. */
WEFT_API void weft_mem_unregister(weft_mem_reg_t *reg, bool forget);

typedef struct weft_mem_reg_stats {
    size_t size;
    uint64_t ranges, bytes;           /* registered now */
    uint64_t hits, misses, evictions; /* since the runtime was opened */
} weft_mem_reg_stats_t;
#define WEFT_MEM_REG_STATS_INIT WEFT_INIT(weft_mem_reg_stats_t)
WEFT_API void weft_mem_get_reg_stats(weft_runtime_t *rt, weft_mem_reg_stats_t *stats_out);

#ifdef __cplusplus
}
#endif
#endif
