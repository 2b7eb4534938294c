/* conn/payload.h - payloads that are announced and pulled, in whatever memory either side has; part of the door conn/conn.h.
 *
 * Between two buffers that memcpy can handle this is the fabric's announce and pull, and one look-up. If the sender's is in
 * device memory, or the receiver's, or both, the payload moves in chunks: each is copied to a stage (pinned memory) by a
 * sender that needs it, announced, pulled into place or into a stage by the receiver, and copied out of it; several are under
 * way at a time, so that the copies overlap the transfer. Records of conn's own carry it (docs/design/wire.md):
 *
 *   STAGED     sender -> receiver  in place of the fabric's announcement, if the payload is in device memory; on one host
 *                                  with an export of that memory, so that the receiver may copy it itself (direct.h)
 *   CHUNKS     receiver -> sender  send payload `id` in chunks, so many bytes of it; and what the receiver can do with them
 *   CHUNK      sender -> receiver  an announcement: bytes of what CHUNKS asked for, from an offset on
 *   PLACED     sender -> receiver  the same, in memory that both share (relay.h)
 *   BOUNCED    sender -> receiver  the same, in device memory of the sender's library, which is exported
 *   EMPTIED    receiver -> sender  a chunk that was PLACED or BOUNCED is not needed any more
 *   STAGED_END receiver -> sender  done with payload `id` that was STAGED: taken or refused
 *   TAKE_BACK  sender -> receiver  give payload `id` back if nobody pulls it yet; or: the chunks asked for cannot be had
 *
 * Driver only. */
#ifndef WEFTI_PAYLOAD_H
#define WEFTI_PAYLOAD_H

#include "base/list.h"
#include "fabric/fabric.h"
#include "mem/mem.h"

/* --- out ------------------------------------------------------------------------------------------------------------------- */

typedef struct wefti_out wefti_out_t;
struct wefti_out {
    /* set by the starter */
    void (*done)(wefti_out_t *out, weft_status_t status); /* once, when the buffers are free: as for the fabric's announce().
                                                             out is the starter's again: wefti_out_free() it */
    void *user;
    weft_ep_t *ep;
    const weft_iov_t *iov;
    size_t iov_n;
    uint64_t total;
    const weft_mem_kind_t *device; /* of all pieces; NULL: the processor can touch them */
    /* conn's */
    uint64_t id;                 /* names it for the peer; set by announce */
    wefti_xfer_t x;
    wefti_list_t link;           /* its endpoint's, from announce until done */
    wefti_list_t owes_link;      /* while a record or a chunk of it waits for space on the lane */
    struct wefti_chunks *chunks; /* while it goes in chunks */
    uint64_t asked_by;           /* what the peer calls that pull; 0: it has not asked */
    weft_status_t status;        /* what it ends with, if that is not for the peer to say */
    wefti_fault_t fault;         /* and what is to be said about it */
    uint8_t state, owes;
    bool withdrawn, exported;
    bool failed;                 /* if it is done with WEFT_ERR_REFUSED: the peer had begun, and could not go on */
    wefti_held_t *held;          /* what the peer needs to open the memory, until done */
};

/* From the runtime's store of them; NULL: no memory. */
wefti_out_t *wefti_out_new(weft_runtime_t *rt);
void wefti_out_free(weft_runtime_t *rt, wefti_out_t *out);
/* Announce it with a record of the traffic's (n <= WEFTI_REC_MAX / 2 - 64), whose bytes 8 to 15 are left for the id and are
 * filled in here. WEFT_ERR_AGAIN: no space now, ep_space comes; WEFT_ERR_NOMEM, _LIMIT. Never calls done from inside. */
weft_status_t wefti_out_announce(wefti_out_t *out, void *rec, size_t n);
/* Ask to take it back: done with WEFT_ERR_CANCELLED, unless the peer had begun to pull or was lent it. While ep->lane is
 * there. */
void wefti_out_withdraw(wefti_out_t *out);
/* The payload of that id that is announced on this endpoint; NULL: none (any more). For what a peer says about one: ids are
 * never used twice, and another endpoint's is not found. */
wefti_out_t *wefti_out_find(const weft_ep_t *ep, uint64_t id);

/* --- in -------------------------------------------------------------------------------------------------------------------- */

/* A payload that waits at the peer: given to a traffic by `announced`, the traffic's until pull, refuse, or its own
 * `withdrawn`. */
typedef struct wefti_in wefti_in_t;
struct wefti_in {
    weft_ep_t *ep;
    void *user;              /* the traffic's: set in `announced` */
    uint64_t total;
    /* conn's */
    weft_runtime_t *rt;          /* where ep may be gone already */
    uint64_t id;                 /* what the peer calls it */
    const struct wefti_traffic *traffic;
    wefti_pull_t *p;             /* the fabric's; NULL: STAGED */
    struct wefti_chunks *chunks; /* while it is pulled in chunks */
    struct wefti_direct *direct; /* STAGED with an export: how it can be copied from where it lies */
    wefti_list_t link;           /* its endpoint's, while somebody could ask for it or it is under way */
    wefti_list_t owes_link;      /* while a record about it waits for space on the lane */
    uint8_t state, owes;
};

/* Fetch the first `want` bytes (0 < want <= total) into the pieces, all of them memory of `device` (NULL: host). `in` is
 * consumed, and the array stays valid until x is done: as for the fabric's pull(). WEFT_ERR_NOMEM: `in` is still ours. */
weft_status_t wefti_in_pull(wefti_in_t *in, const weft_iov_t *iov, size_t iov_n, uint64_t want, const weft_mem_kind_t *device,
                            wefti_xfer_t *x);
/* wefti_mem_import() of what a peer exports, if it was the peer's to give: else WEFT_ERR_UNSUPPORTED. While ep->lane is there. */
weft_status_t wefti_ep_import(weft_ep_t *ep, const wefti_export_t *from, size_t n, const void *near, wefti_import_t **import_out,
                              void **ptr_out);
/* Do without it. `in` is consumed. taken: the sender's is done with WEFT_OK, else WEFT_ERR_REFUSED. */
void wefti_in_refuse(wefti_in_t *in, bool taken);
/* The fabric's lend(): the payload where it lies. `in` stays ours; wefti_in_refuse(in, true) when done with it, and
 * wefti_unlend() once, on the driver; or after the end of the fabric, by any thread, if it outlives that.
 * WEFT_ERR_UNSUPPORTED: pull it. */
typedef struct wefti_lent {
    const void *ptr;
    const wefti_transport_ops_t *ops;
    wefti_transport_t *transport;
    void *handle;
    wefti_import_t *import; /* it is device memory: of this runtime, unless it was parted with */
    weft_runtime_t *rt;
} wefti_lent_t;
weft_status_t wefti_in_lend(wefti_in_t *in, wefti_lent_t *lent_out);
/* The same for a payload in device memory: what is lent is an address of the device's. */
weft_status_t wefti_in_lend_device(wefti_in_t *in, wefti_lent_t *lent_out);
void wefti_unlend(const wefti_lent_t *lent);
/* The runtime ends: is what was lent the program's from now on, until any thread gives it back? */
bool wefti_lent_part(const wefti_lent_t *lent);

#endif
