/* tests/unit/lib/owner.h - the owner's side of remote memory alone: a runtime without network, regions, and peers made by
 * hand. */
#ifndef OWNER_H
#define OWNER_H

#include "rma/state.h"

/* A runtime on the fake fabric with the tables of rma and none of its traffic. NULL mode as for fake_open(); virtual time where
 * `step` is used. */
weft_runtime_t *owner_open(weft_progress_mode_t mode);
weft_runtime_t *owner_open_virtual(void);
/* Let virtual time pass, in steps of at most a millisecond. */
void owner_pass(weft_runtime_t *rt, uint64_t ns);
/* The addresses that a listener would have. */
void owner_reach(weft_runtime_t *rt, const char *uris);

/* A peer: an endpoint that has nothing but rma's part. */
weft_ep_t *owner_peer(weft_runtime_t *rt);
void owner_peer_free(weft_ep_t *ep);

weft_region_t *owner_region(weft_runtime_t *rt, uint64_t len, const char *name);
/* What a key for all of it would claim. */
rma_claim_t owner_claim(const weft_region_t *region);
rma_grant_t *owner_grant(weft_ep_t *ep, const weft_region_t *region, bool map);

/* From here on the allocation after `n` more fails, and all that follow; UINT64_MAX: none. */
void owner_allocs(uint64_t n);
uint64_t owner_allocs_left(void);

#endif
