/* rma/serve.h - what peers ask of us: what the files of the owner's side share. serve.c, serve_device.c.
 *
 * Driver only. */
#ifndef WEFTI_RMA_SERVE_H
#define WEFTI_RMA_SERVE_H

#include "rma/state.h"

/* A request that is sound, out of the peer's reach. */
typedef struct rma_todo {
    rma_atomic_t rec;  /* operand and compare: of an atomic. REC_WRITE_BIG: only kind, what, id, grant, offset and len */
    uint64_t value;    /* of a notification */
    wefti_in_t *in;    /* REC_WRITE_BIG: its bytes */
} rma_todo_t;

static inline uint32_t rma_todo_rights(const rma_todo_t *todo)
{
    uint8_t kind = todo->rec.req.kind;
    return kind == REC_READ ? WEFT_RMA_READ : kind == REC_ATOMIC ? WEFT_RMA_ATOMIC : WEFT_RMA_WRITE;
}

/* --- serve.c ----------------------------------------------------------------------------------------------------------- */

void wefti_rma_serve(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n);
void wefti_rma_serve_big(weft_ep_t *ep, const wefti_wild_t *rec, size_t n, wefti_in_t *in);
/* Carry it out and answer it: what is short at once, and waiting for a device if need be. bytes: of REC_WRITE. */
void wefti_rma_carry_out(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes);
void wefti_rma_refuse(weft_ep_t *ep, const rma_todo_t *todo, weft_status_t why); /* answer that it is not */
/* Does the answer to a read of len bytes fit a record? */
static inline bool wefti_rma_is_short(const weft_ep_t *ep, uint64_t len)
{
    return sizeof(rma_reply_t) + len <= rma_ep(ep)->record_max;
}
/* May the peer have one more that is not answered? False: it broke the protocol. */
bool wefti_rma_one_more(weft_ep_t *ep);
/* A write has its bytes in the region: count it, tell the program if it is to be told, which may do anything then. What the
 * write comes to. */
weft_status_t wefti_rma_written(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant);

/* Carry out an atomic, for real; then answer it. */
weft_status_t wefti_rma_atomic_here(const weft_region_t *region, uint8_t *at, const rma_atomic_t *rec, uint64_t *before);
void wefti_rma_atomic_done(weft_ep_t *ep, const rma_atomic_t *rec, weft_region_t *region, weft_status_t st, uint64_t before);

/* Send DROP or REVOKED, after what waits for space. False: no memory to keep it until there is space. */
bool wefti_rma_tell(weft_ep_t *ep, uint8_t kind, uint64_t grant);
void wefti_rma_reply(weft_ep_t *ep, const void *rec, size_t n);
void wefti_rma_reply_status(weft_ep_t *ep, uint64_t id, weft_status_t st);
/* The bytes of a read, from memory of `device`. */
void wefti_rma_reply_data(weft_ep_t *ep, uint64_t id, const weft_mem_kind_t *device, const uint8_t *at, uint64_t len);
void wefti_rma_reply_value(weft_ep_t *ep, uint64_t id, uint64_t before); /* of an atomic that was done */
void wefti_rma_owed_flush(weft_ep_t *ep);
void wefti_rma_owed_down(weft_ep_t *ep);

/* --- whole.c ------------------------------------------------------------------------------------------------------------ */

/* A request to a region that is `apart`: carry it out, or keep it until its turn. False: carry it out as any other. */
bool wefti_rma_apart(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes);
weft_status_t wefti_rma_stripes(rma_state_t *rs); /* make them, if there are none. Under rs->lock. WEFT_ERR_NOMEM */
void wefti_rma_stripes_free(rma_stripes_t *s);

/* --- serve_device.c ---------------------------------------------------------------------------------------------------- */

/* A request to a region in memory of a device that is not waited for: carry it out in its turn. False: its turn is now, and it
 * is carried out as any other. */
bool wefti_rma_turn(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes);
void wefti_rma_turn_withdrawn(wefti_in_t *in);
void wefti_rma_turns_down(weft_ep_t *ep);
void wefti_rma_turns_init(weft_region_t *region);

#endif
