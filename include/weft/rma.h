/* weft/rma.h - remote memory: regions that others may read and write, and the operations on them.
 *
 * An owner exposes a region and gives out keys for it. A key is bytes that name the region and its generation, a part of it,
 * rights, and the owner's addresses; nobody else can make one. A process that has a key and a connection to the owner attaches
 * it and gets a remote: a handle for reads, writes and atomics, which are operations like all others. (The authentication key
 * of a runtime, weft/runtime.h, is another thing: it lets peers connect.)
 *
 *     owner:  weft_region_new(rt, &opts, &region);  weft_region_key(region, NULL, key, &len);
 *     other:  weft_remote_attach(ep, key, len, NULL, &op);  weft_op_wait(&op, WEFT_FOREVER);  remote = weft_op_remote(&op);
 *             weft_rma_write(remote, 0, "hello", 5, &op);
 *
 * Three paths, one API. A peer of the same user on the same host maps the region and touches it directly, without the owner's
 * processor. All others ask the owner, which checks every access: bounds, rights, generation. Where both have marked the fabric
 * as trusted (WEFT_TRUSTED), RDMA hardware does it instead. Results and errors are the same; weft_remote_get_info() tells the
 * path.
 *
 * A region in memory of a GPU that other processes can open (kinds cuda and cuda-fd) is mapped for its reads alone: the reader's
 * GPU copies to its own memory, to page-locked memory, and up to 8 KiB to any memory. Other reads, writes and atomics ask the
 * owner. Both processes have to use CUDA (weft/mem.h), and the key has to give the right to read.
 *
 *     WEFT_ERR_RANGE    outside of the region, or of the part that its key names. Nothing was touched.
 *     WEFT_ERR_RIGHTS   the region's key does not allow that. Nothing was touched.
 *     WEFT_ERR_STALE    the region was revoked or freed, or its key has expired. Attach a new key.
 *     WEFT_ERR_PEER     the owner is lost. A write or an atomic that was under way may have happened. A remote ends with its
 *                       connection: attach again after a reconnect. WEFT_ERR_CLOSED: the connection was closed here.
 *
 * Order:   operations on one remote that touch the same bytes take effect in the order of their posts; others in any order. After
 *          a fence, nothing posted later takes effect before anything posted earlier. A write that is complete is in the owner's
 *          memory.
 * Whole:   an access of at most WEFT_RMA_WHOLE bytes on the checked path is applied whole or not at all, even if its poster is
 *          lost, and no other checked access sees the middle of it. All other accesses may be torn by each other, anywhere: also
 *          a read of a mapped region on a GPU by a write, which goes another way. `unmapped` lets both be checked.
 * Atomics: atomic to each other on every path, and to atomics of the owner's own processor. In memory of a device they are atomic
 *          to each other only.
 * Time:    all are operations with deadlines. One whose bytes are on their way ends when its buffer is free (weft/op.h, promise
 *          3). A write or an atomic that ended with WEFT_ERR_TIMEOUT or WEFT_ERR_CANCELLED may have happened.
 * Ends:    a call on a region that was freed, or a remote that was dropped, returns WEFT_ERR_CLOSED, or NULL; also when another
 *          thread closes the runtime. A remote may be dropped after that. Do not drop it while another thread is inside of a call
 *          with it.
 * Threads: any, for everything here; notify functions run in progress. On a runtime with several shards peers of all of them use
 * a region at the same time, and a notify function runs on the thread of the shard whose peer it is. */
#ifndef WEFT_RMA_H
#define WEFT_RMA_H

#include <weft/conn.h>
#include <weft/mem.h>
#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rights. */
#define WEFT_RMA_READ   UINT32_C(1)
#define WEFT_RMA_WRITE  UINT32_C(2)
#define WEFT_RMA_ATOMIC UINT32_C(4)
#define WEFT_RMA_ALL    UINT32_C(7)

#define WEFT_RMA_WHOLE      4160u /* bytes: see Whole above */
#define WEFT_REGION_KEY_MAX 1024u /* bytes of the longest key of a region */
#define WEFT_RMA_NAME_MAX   255u  /* bytes of the longest name */

/* --- regions: memory of ours ------------------------------------------------------------------------------------------- */

typedef struct weft_region weft_region_t;

/* A peer changed [offset, offset+len) with weft_rma_write_notify() and this value. Runs in progress, after the bytes are
 * there. */
typedef void (*weft_region_notify_fn)(weft_region_t *region, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from,
                                      void *user);

typedef struct weft_region_opts {
    size_t size;
    uint64_t len;                /* bytes, at least 1 */
    uint64_t max_len;            /* how far weft_region_extend() may go; reserves address space, not memory. Default is: len */
    void *buf;                   /* memory of the program to expose, of any kind; it must stay until weft_region_free() completes.
                                    Default is: made by the library, zeroed. Peers on this host can map this, and for reads
                                    memory of a GPU (above), but no other */
    const weft_mem_kind_t *kind; /* of buf (default: look) */
    uint32_t rights;             /* WEFT_RMA_*: the most a key of it may give. Default is: all */
    const char *name;            /* every connected peer may attach it by this name, with the rights below. Default is: none */
    uint32_t name_rights;        /* Default is: rights */
    bool unmapped;               /* peers may not map it, nor reach it by RDMA: every access is checked by this process */
    weft_region_notify_fn notify; /* NULL: write_notify is an ordinary write */
    void *user;
} weft_region_opts_t;
#define WEFT_REGION_OPTS_INIT WEFT_INIT(weft_region_opts_t)

/* Expose memory. The region is yours until weft_region_free(); what is left at weft_runtime_close() goes with it. Fails:
 * WEFT_ERR_INVALID, WEFT_ERR_STATE (the name is taken), WEFT_ERR_NOMEM, WEFT_ERR_LIMIT (file descriptors). *region_out is
 * untouched. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_region_new(weft_runtime_t *rt, const weft_region_opts_t *opts,
                                                       weft_region_t **region_out);

/* Revoke it, wait for accesses that are under way, and free it: op (may be NULL) completes when buf is the program's again and
 * the memory that the library made is given back to the system; no other region ever shows what was in it. A deadline or a
 * cancel does not end it before buf is the program's again. Do not use `region` after this call. */
WEFT_API weft_status_t weft_region_free(weft_region_t *region, weft_op_t *op);

/* Let every connected peer attach it by one more name, with the rights that `name_rights` gave, until it is freed. Any thread.
 * Fails: WEFT_ERR_INVALID, WEFT_ERR_STATE (the name is taken), WEFT_ERR_NOMEM, WEFT_ERR_CLOSED. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_region_name(weft_region_t *region, const char *name);

/* Make every key of it given out so far, and every remote made from one, stale, the name's too. New keys are good. op (may be
 * NULL) completes when no access made with an old one is under way any more; WEFT_ERR_TIMEOUT, _CANCELLED, _NOMEM: it is
 * revoked, and one may be. Memory stays where it is, unless a peer that had it mapped is stuck or was lost in the middle of an
 * access: then the region's bytes are moved to fresh memory under the same address, and what this process writes to it between
 * this call and the completion may be lost. */
WEFT_API weft_status_t weft_region_revoke(weft_region_t *region, weft_op_t *op);

/* From `when` on, a time of weft_now(), every access to the region is refused with WEFT_ERR_STALE, whatever its key says; 0: that
 * is over. The clock is read for each access, so that a process that was stopped serves nothing late. Any thread.
 * Fails: WEFT_ERR_STATE (it was not made `unmapped`, whatever its memory), WEFT_ERR_INVALID, WEFT_ERR_CLOSED. */
WEFT_API weft_status_t weft_region_until(weft_region_t *region, uint64_t when);

/* Make it longer, up to max_len; the new bytes are zero in memory that the library made. Keys keep the length they were given
 * with. Fails: WEFT_ERR_RANGE (beyond max_len, or shorter than it is). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_region_extend(weft_region_t *region, uint64_t len);

/* Let the memory that the library made outlive the region: when the region ends, with weft_region_free() or its runtime, the
 * memory stays at its address with what is in it, private to this process from then on, and is the program's to give back:
 * munmap(*map_out, *n_out), not before the end. For a program that has pointers into it and cannot tell when the last is gone.
 * If a peer that has it mapped is in the middle of an access at the end, the bytes are moved away from it, as by
 * weft_region_revoke(): what this process writes meanwhile may be lost. Any number of times, with the same answer. Fails:
 * WEFT_ERR_STATE (the memory is the program's already), WEFT_ERR_INVALID. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_region_keep(weft_region_t *region, void **map_out, size_t *n_out);

/* Its first byte; the same for as long as the region lives. NULL for NULL. */
WEFT_API void *weft_region_base(const weft_region_t *region);

typedef struct weft_region_info {
    size_t size;
    uint64_t len, max_len;
    uint64_t generation;                /* from 1 on, one more with each revoke */
    uint64_t attached, mapped;          /* peers' remotes now; of them, those that map it */
    /* What peers did over the checked path, since it was made; mapped accesses happen without us. */
    uint64_t reads, writes, atomics, bytes_read, bytes_written;
    uint64_t refused;                   /* out of range, no right, stale */
} weft_region_info_t;
#define WEFT_REGION_INFO_INIT WEFT_INIT(weft_region_info_t)
WEFT_API weft_status_t weft_region_get_info(const weft_region_t *region, weft_region_info_t *info_out);

typedef struct weft_region_key_opts {
    size_t size;
    uint64_t offset, len;  /* the part. Default is: all of it from offset on */
    uint32_t rights;       /* Default is: the region's */
    uint64_t lifetime_ns;  /* from now. Default is: until it is revoked */
    bool empty;            /* it gives none of the bytes: whatever touches one is WEFT_ERR_RANGE */
} weft_region_key_opts_t;
#define WEFT_REGION_KEY_OPTS_INIT WEFT_INIT(weft_region_key_opts_t)

/* Make a key of the region: written to buf, which has *len bytes, and its length to *len; WEFT_REGION_KEY_MAX is always enough.
 * It can be copied, stored and sent; it is a secret: whoever has it can use the memory. opts may be NULL. The addresses the
 * runtime listens on are in it. Fails: WEFT_ERR_LIMIT (*len says how much), WEFT_ERR_RANGE, WEFT_ERR_RIGHTS. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_region_key(weft_region_t *region, const weft_region_key_opts_t *opts, void *buf,
                                                       size_t *len);

/* What a region's key says, without asking its owner: nothing is checked. */
typedef struct weft_region_key_info {
    size_t size;
    uint64_t region, generation, offset, len;
    uint32_t rights;
    char owner[512];       /* URIs joined by commas, for weft_ep_open(); "" if its owner did not listen */
} weft_region_key_info_t;
#define WEFT_REGION_KEY_INFO_INIT WEFT_INIT(weft_region_key_info_t)
/* WEFT_ERR_INVALID: it is no key of a region. */
WEFT_API weft_status_t weft_region_key_read(const void *key, size_t len, weft_region_key_info_t *info_out);

/* --- remotes: memory of others ----------------------------------------------------------------------------------------- */

typedef struct weft_remote weft_remote_t;

typedef enum weft_rma_path {
    WEFT_RMA_ANY = 0,
    WEFT_RMA_MAPPED = 1,  /* the region's memory is mapped here */
    WEFT_RMA_CHECKED = 2, /* the owner does it, and checks it */
    WEFT_RMA_NATIVE = 3   /* one-sided operations of UCX, on a fabric marked as trusted (WEFT_TRUSTED) */
} weft_rma_path_t;

typedef struct weft_remote_opts {
    size_t size;
    weft_rma_path_t path;  /* this path or none (WEFT_ERR_UNSUPPORTED); of a region on a GPU WEFT_RMA_MAPPED is said of its reads
                              (above). Default is: the fastest there is */
} weft_remote_opts_t;
#define WEFT_REMOTE_OPTS_INIT WEFT_INIT(weft_remote_opts_t)

/* Attach a region's key over a connection to its owner: op, which is needed, completes with weft_op_remote(op), which is
 * yours until weft_remote_drop(), and op->len, its length. Offsets count from the part the key names. opts may be NULL.
 * Completes with WEFT_ERR_STALE (revoked, freed, expired, or of an owner that was since restarted), WEFT_ERR_AUTH (not
 * genuine), WEFT_ERR_INVALID (no key of a region), WEFT_ERR_UNSUPPORTED, WEFT_ERR_LIMIT (too many remotes on this connection),
 * WEFT_ERR_PEER. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_remote_attach(weft_ep_t *ep, const void *key, size_t len,
                                                          const weft_remote_opts_t *opts, weft_op_t *op);
/* The same by the name of a region: WEFT_ERR_NOTFOUND. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_remote_find(weft_ep_t *ep, const char *name, const weft_remote_opts_t *opts,
                                                        weft_op_t *op);
/* The remote of an operation that is complete; NULL if it failed. */
static inline weft_remote_t *weft_op_remote(const weft_op_t *op) { return op->status ? NULL : (weft_remote_t *)op->buf; }
/* Give a remote back; operations under way go on. NULL is allowed. Remotes may outlive their endpoint and their runtime. */
WEFT_API void weft_remote_drop(weft_remote_t *remote);

typedef struct weft_remote_info {
    size_t size;
    uint64_t len;
    uint32_t rights;
    weft_rma_path_t path;
    uint64_t generation;
    weft_ep_id_t owner;
    weft_status_t state;   /* WEFT_OK, or what an operation would now end with */
    uint64_t reads, writes, atomics, bytes_read, bytes_written; /* begun */
} weft_remote_info_t;
#define WEFT_REMOTE_INFO_INIT WEFT_INIT(weft_remote_info_t)
WEFT_API weft_status_t weft_remote_get_info(const weft_remote_t *remote, weft_remote_info_t *info_out);
/* "mapped", "checked", "native". */
WEFT_API const char *weft_rma_path_name(weft_rma_path_t path);

/* --- operations -------------------------------------------------------------------------------------------------------- */

/* Read or write. The buffer, in any kind of memory, is borrowed until op, which is needed, completes with op->len, the length.
 * Accesses of up to 1 MiB to a mapped region are complete when this returns, if op has no fn, queue, token or streams and
 * nothing else is under way on the remote; unless the region or the buffer is in memory of a GPU, which is not waited for. len 0
 * is allowed and touches nothing. Fails: WEFT_ERR_RANGE, WEFT_ERR_RIGHTS, WEFT_ERR_INVALID (NULL). Completes with WEFT_ERR_STALE,
 * WEFT_ERR_PEER, WEFT_ERR_CLOSED, also if the remote had ended before; WEFT_ERR_REJECTED: the owner is of a newer version and
 * refused it for a reason that is not known here, op->reason is its number. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_read(weft_remote_t *remote, uint64_t offset, void *buf, size_t len,
                                                     weft_op_t *op);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_write(weft_remote_t *remote, uint64_t offset, const void *buf, size_t len,
                                                      weft_op_t *op);
/* The same, and wait for it, for timeout_ns at most: WEFT_ERR_TIMEOUT. The buffer is yours again when they return; until it is,
 * they wait for longer than timeout_ns (weft/op.h, promise 3). Not inside a callback: WEFT_ERR_STATE. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_read_wait(weft_remote_t *remote, uint64_t offset, void *buf, size_t len,
                                                          uint64_t timeout_ns);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_write_wait(weft_remote_t *remote, uint64_t offset, const void *buf, size_t len,
                                                           uint64_t timeout_ns);
/* As weft_rma_read() and weft_rma_write(), into and out of pieces, in order; the array is borrowed too. All pieces are in memory
 * that the processor can touch, or all in memory of one sort of device. At most 1024. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_readv(weft_remote_t *remote, uint64_t offset, const weft_iov_t *iov, size_t n,
                                                      weft_op_t *op);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_writev(weft_remote_t *remote, uint64_t offset, const weft_iov_t *iov, size_t n,
                                                       weft_op_t *op);

/* Write, and then tell the owner's notify function that these bytes changed, with a value. Notifications of one remote come in
 * the order of their posts; op completes when the owner was told. len 0 only tells. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_write_notify(weft_remote_t *remote, uint64_t offset, const void *buf, size_t len,
                                                             uint64_t value, weft_op_t *op);

typedef enum weft_rma_atomic {
    WEFT_RMA_ADD = 1,
    WEFT_RMA_SWAP = 2,
    WEFT_RMA_CAS = 3,  /* stores `operand` if the value is `compare` */
    WEFT_RMA_AND = 4,
    WEFT_RMA_OR = 5,
    WEFT_RMA_XOR = 6
} weft_rma_atomic_t;

/* One atomic on a word of `width` 4 or 8 bytes at an offset that is a multiple of that. op->value is the value before.
 * Fails: WEFT_ERR_INVALID (width, alignment, which), and as above. Needs WEFT_RMA_ATOMIC. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_atomic(weft_remote_t *remote, weft_rma_atomic_t which, uint64_t offset,
                                                       size_t width, uint64_t operand, uint64_t compare, weft_op_t *op);

typedef enum weft_rma_what { WEFT_RMA_DO_READ = 1, WEFT_RMA_DO_WRITE = 2 } weft_rma_what_t;

/* Many accesses in one post, to one or several remotes of one runtime; in order where they touch the same bytes. The array is
 * borrowed until op completes: with WEFT_OK if all succeeded, else with the status of the first in the array that did not, the
 * others done all the same; cancelled or out of time: with that. op->count is how many succeeded. At most 65536. */
typedef struct weft_rma_item {
    weft_remote_t *remote;
    weft_rma_what_t what;
    weft_status_t status; /* out */
    uint64_t offset;
    void *buf;            /* writes only read it */
    size_t len;
} weft_rma_item_t;
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_batch(weft_rma_item_t *items, size_t n, weft_op_t *op);

/* Complete when everything posted on this remote before is complete, however it ended. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_flush(weft_remote_t *remote, weft_op_t *op);
/* Nothing posted on this remote later takes effect before anything posted earlier. Costs nothing on its own. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_rma_fence(weft_remote_t *remote);

#ifdef __cplusplus
}
#endif
#endif
