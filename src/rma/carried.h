/* rma/carried.h - accesses of few bytes whose buffer is in device memory: carried.c, for the paths that they go.
 *
 * Driver only. */
#ifndef WEFTI_RMA_CARRIED_H
#define WEFTI_RMA_CARRIED_H

#include "rma/state.h"

/* A device copies its bytes: it stays in its list, and waits. */
static inline bool rma_carrying(const rma_acc_t *acc) { return acc->big && acc->big->carrying; }
/* A read, before its bytes come: they go to a carry first, if there is one. */
void wefti_rma_carry_new(rma_acc_t *acc);
/* A write that is about to be put in its list: its bytes come to a carry, if there is one. */
void wefti_rma_carry_fetch(rma_acc_t *acc);
/* A read that has its bytes, and is on no list: from the carry they go on to the device. WEFT_ERR_PENDING: it ends by itself,
 * later. Else how it ends. */
weft_status_t wefti_rma_carry_place(rma_acc_t *acc);
/* The endpoint is down. It was carrying, and was taken from its list: it ends with `why` when the device is done. */
void wefti_rma_carry_down(rma_acc_t *acc, weft_status_t why);
/* Has the owner to be asked, because steps of ours would wait for a device? */
bool wefti_rma_carry_cannot(const rma_acc_t *acc);

#endif
