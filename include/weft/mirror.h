/* weft/mirror.h - a block on two or three servers at once, so that no one of them can lose it.
 *
 * A mirror has one writer at a time and any number of readers. A write goes to every member and is complete when all that are not fenced have
 * it; a read goes to one, and to another if that one is lost. Bytes are kept in blocks of 4 KiB: a write is whole per block, and so is a
 * read. With `checksums` every block carries one, made by the writer and verified on every read; a copy that does not match is passed over
 * and mended from another.
 *
 * Fencing. Each member keeps the mirror's epoch and who its members are. The writer holds a lease on every member. A member that does not answer is
 * fenced: the writer waits until its lease there must have run out (the member then answers nobody any more, however alive it is), stores the
 * next epoch without it on the others, and goes on. Writes wait for that; reads go on meanwhile. A member that comes back has an old epoch, and
 * is refused by everyone until it was refilled: weft_mirror_add(). A writer that takes over fences the one before it in the same way.
 *
 * So: no write that was completed is lost while one member lives that has it, and no read returns bytes that were overwritten by a completed
 * write. What is not promised: a writer and a member that are lost at the same moment leave it open whether the others have everything; then
 * a new writer needs all members back, or `force`, which is an operator's word that those missing are dead and not merely out of reach.
 *
 * A mirror is there when its making has completed. If its maker is lost before that, readers may find it, empty, and a new writer needs all of its
 * servers. What is left of it when one of them is dead may be nothing that `force` opens (WEFT_ERR_STALE): remove it with weft_store_remove(), and
 * make it anew.
 *
 * A call on a mirror that was closed returns WEFT_ERR_CLOSED.
 *
 * Threads: any, for everything here. */
#ifndef WEFT_MIRROR_H
#define WEFT_MIRROR_H

#include <weft/store.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_MIRROR_MAX   3u    /* members */
#define WEFT_MIRROR_BLOCK 4096u /* bytes that are read and written whole */

typedef struct weft_mirror weft_mirror_t;

typedef struct weft_mirror_opts {
    size_t size;
    const char *name;            /* of the blocks at the servers. Needed */
    weft_store_t *const *stores; /* one per server, 1 to WEFT_MIRROR_MAX; they outlive the mirror */
    size_t n_stores;
    uint64_t len;                /* to make it: how long. 0: it is there already */
    bool write;                  /* be the writer. The one before is fenced. Default is: only read */
    bool force;                  /* do without members that do not answer: see above */
    bool checksums;              /* when it is made */
    uint64_t lease_ns;           /* when it is made: how long a member answers without hearing from the writer, and so for how long writes wait when
                                    a member is lost. Default is: 2 s */
} weft_mirror_opts_t;
#define WEFT_MIRROR_OPTS_INIT WEFT_INIT(weft_mirror_opts_t)

/* Make or open a mirror: op, which is needed, completes with weft_op_mirror(op), and op->len, its length. A writer that takes over
 * brings the members' copies into agreement first. Completes with WEFT_ERR_NOTFOUND, WEFT_ERR_STATE (it is there already), WEFT_ERR_STALE (not enough
 * of its members answer: see force), WEFT_ERR_LIMIT, WEFT_ERR_PEER. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mirror_open(weft_runtime_t *rt, const weft_mirror_opts_t *opts, weft_op_t *op);
/* The mirror of an operation that is complete; NULL if it failed. */
static inline weft_mirror_t *weft_op_mirror(const weft_op_t *op) { return op->status ? NULL : (weft_mirror_t *)op->buf; }
/* The writer leaves, when its writes are complete: members answer readers without a lease from then on. op may be NULL; `mirror` may not be used
 * any more, and its stores stay until op completes. Completes with WEFT_ERR_STALE, WEFT_ERR_PEER: it had ended already, or a member did not hear
 * of this. */
WEFT_API weft_status_t weft_mirror_close(weft_mirror_t *mirror, weft_op_t *op);

/* As weft_rma_read() and weft_rma_write(), for host memory. Reads fail over within the operation's deadline; without one they try for
 * as long as a member is left. A write that is cancelled or too late happens all the same, unless it had not begun. WEFT_ERR_STALE: this writer
 * was fenced, or nobody has written for two leases and no member may answer: open it again; WEFT_ERR_CORRUPT: no member has a copy that
 * matches its checksum; WEFT_ERR_PEER: no member is left; WEFT_ERR_RIGHTS: only the writer writes. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mirror_read(weft_mirror_t *mirror, uint64_t offset, void *buf, size_t len, weft_op_t *op);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mirror_write(weft_mirror_t *mirror, uint64_t offset, const void *buf, size_t len, weft_op_t *op);

/* Add a server in place of one that was fenced, or that one again: it is refilled while reads and writes go on, and counts as a member when op
 * completes. Only the writer; one at a time. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mirror_add(weft_mirror_t *mirror, weft_store_t *store, weft_op_t *op);

typedef enum weft_member_state {
    WEFT_MEMBER_UP = 1,
    WEFT_MEMBER_LOST = 2,      /* it does not answer; its lease is being waited out */
    WEFT_MEMBER_FENCED = 3,
    WEFT_MEMBER_REFILLING = 4
} weft_member_state_t;

typedef struct weft_mirror_info {
    size_t size;
    uint64_t len, epoch;
    bool writer, checksums;
    weft_status_t state;       /* WEFT_OK, or what an operation would now end with */
    size_t members;
    weft_member_state_t member[WEFT_MIRROR_MAX];
    uint64_t refilled;         /* bytes, of a refill under way */
    uint64_t failovers, mended; /* reads that went to another member; blocks that did not match and were written anew */
} weft_mirror_info_t;
#define WEFT_MIRROR_INFO_INIT WEFT_INIT(weft_mirror_info_t)
WEFT_API weft_status_t weft_mirror_get_info(const weft_mirror_t *mirror, weft_mirror_info_t *info_out);

#ifdef __cplusplus
}
#endif
#endif
