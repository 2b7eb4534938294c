/* weft/mirror.h - a block on two or three servers at once, so that no one of them can lose it. Of libweft-elements.
 *
 * A mirror has one writer at a time and any number of readers. A write goes to every member and is complete when all members that
 * are not fenced have it. A read goes to one member, and to another if that one is lost. Bytes are kept in units of 4 KiB: each
 * unit is written and read whole. With `checksums` the writer adds one to every unit, and every read verifies it; a copy that
 * does not match is passed over, and written anew from another.
 *
 * Fencing. Each member keeps the mirror's epoch and who its members are. The writer holds a lease on every member. A member that
 * does not answer is fenced: the writer waits until its lease there is over, when the member answers nobody any more, stores the
 * next epoch without it on the others, and goes on. Writes wait for that; reads go on meanwhile. A member that comes back has an
 * old epoch, and everyone refuses it until weft_mirror_add() has refilled it. A writer that takes over fences the writer before
 * it in the same manner.
 *
 * So no completed write is lost while a member lives that has it, and no read returns bytes that a completed write has
 * overwritten. If a writer and a member are lost at the same moment, nobody knows whether the others have everything. Then a new
 * writer needs all members back, or `force`: an operator's word that the missing ones are dead and not merely out of reach.
 *
 * A mirror exists when its making has completed. If its maker is lost before that, readers may find it, empty, and a new writer
 * needs all of its servers. If one of those is dead, even `force` may not open what is left (WEFT_ERR_STALE): remove it with
 * weft_store_remove(), and make it anew.
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

#define WEFT_MIRROR_MAX  3u    /* members */
#define WEFT_MIRROR_UNIT 4096u /* bytes that are read and written whole */

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
    uint64_t lease_ns;           /* when it is made: how long a member answers without hearing from the writer, and so for how
                                    long writes wait when a member is lost. Default is: 2 s */
} weft_mirror_opts_t;
#define WEFT_MIRROR_OPTS_INIT WEFT_INIT(weft_mirror_opts_t)

/* Make or open a mirror: op, which is needed, completes with weft_op_mirror(op), and op->len, its length. A writer that
 * takes over brings the members' copies into agreement first. Completes with WEFT_ERR_NOTFOUND, WEFT_ERR_STATE (it is there
 * already), WEFT_ERR_STALE (not enough of its members answer: see force), WEFT_ERR_LIMIT, WEFT_ERR_PEER. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mirror_open(weft_runtime_t *rt, const weft_mirror_opts_t *opts, weft_op_t *op);
/* The mirror of an operation that is complete; NULL if it failed. */
static inline weft_mirror_t *weft_op_mirror(const weft_op_t *op) { return op->status ? NULL : (weft_mirror_t *)op->buf; }
/* Close it. A writer leaves when its writes are complete; members answer readers without a lease from then on. op may be NULL.
 * Do not use `mirror` after this call, and keep its stores until op completes. Completes with WEFT_ERR_STALE, WEFT_ERR_PEER: it
 * had ended already, or a member was not told. */
WEFT_API weft_status_t weft_mirror_close(weft_mirror_t *mirror, weft_op_t *op);

/* As weft_rma_read() and weft_rma_write(), for host memory. Reads fail over within the operation's deadline; without one they
 * try for as long as a member is left. A write that is cancelled or too late happens all the same, unless it had not begun.
 * WEFT_ERR_STALE: this writer was fenced, or nobody has written for two leases and no member may answer: open it again;
 * WEFT_ERR_CORRUPT: no member has a copy that matches its checksum; WEFT_ERR_PEER: no member is left; WEFT_ERR_RIGHTS: only the
 * writer writes. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mirror_read(weft_mirror_t *mirror, uint64_t offset, void *buf, size_t len,
                                                        weft_op_t *op);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_mirror_write(weft_mirror_t *mirror, uint64_t offset, const void *buf, size_t len,
                                                         weft_op_t *op);

/* Add a server in place of one that was fenced, or that one again: it is refilled while reads and writes go on, and counts as a
 * member when op completes. Only the writer; one at a time. */
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
    uint64_t failovers, mended; /* reads that went to another member; units that did not match and were written anew */
} weft_mirror_info_t;
#define WEFT_MIRROR_INFO_INIT WEFT_INIT(weft_mirror_info_t)
WEFT_API weft_status_t weft_mirror_get_info(const weft_mirror_t *mirror, weft_mirror_info_t *info_out);

#ifdef __cplusplus
}
#endif
#endif
