/* rma/share.h - the memory of a region that peers may map, and the slots of its control page: share.c. Part of rma/state.h. */
#ifndef WEFTI_RMA_SHARE_H
#define WEFTI_RMA_SHARE_H

#include "mem/mem.h"
#include "rma/wire.h"

/* The memfd of a region: control page, then max_len bytes. share.c. Owner's side; all NULL and fd -1 where there is none. */
typedef struct rma_share {
    wefti_memfd_t mem;
    int fd;                     /* mem's, or -1 */
    rma_control_t *control;
    uint8_t *data;              /* right behind it */
    size_t bytes;               /* of all */
    _Atomic uint64_t taken;     /* bit i: slots[i] is some grant's, or lost. Of all shards */
    _Atomic uint64_t lost;      /* of them, those whose peer was lost, or let go, in the middle of an access */
    bool slots_only;            /* the bytes are in device memory: far.c */
} rma_share_t;

weft_status_t wefti_rma_share_new(rma_share_t *s, uint64_t max_len);      /* WEFT_ERR_NOMEM, _LIMIT, _SYSTEM */
void wefti_rma_share_free(rma_share_t *s);
/* Fresh memory with the same bytes under the same address, about n of them with each call; WEFT_ERR_AGAIN: there are more.
 * Whoever has the old one mapped keeps that to itself, with all stamps 0. All slots are free afterwards, and none must be taken
 * before. WEFT_ERR_NOMEM, _LIMIT, _SYSTEM: the rest is as it was but for the stamps; calling again goes on. */
weft_status_t wefti_rma_share_replace(rma_share_t *s, uint64_t len, uint64_t n);
static inline bool wefti_rma_share_replacing(const rma_share_t *s) { return s->fd >= 0 && wefti_memfd_replacing(&s->mem); }
int32_t wefti_rma_slot_take(rma_share_t *s, uint64_t stamp);              /* -1: none left */
void wefti_rma_slot_stale(rma_share_t *s, int32_t slot);                  /* no access begins any more */
bool wefti_rma_slot_busy(const rma_share_t *s, int32_t slot);
/* Its peer has let go of it. False: it is busy. Then it stays taken until the memory is replaced. */
bool wefti_rma_slot_give(rma_share_t *s, int32_t slot);
bool wefti_rma_slots_lost(const rma_share_t *s);                          /* is one still busy whose peer is gone? */

#endif
