/* rma/rma.h - the door of the room, for src/open.c and store. */
#ifndef WEFTI_RMA_H
#define WEFTI_RMA_H

#include <weft/rma.h>

#include "core/core.h"

weft_status_t wefti_rma_attach(weft_runtime_t *rt);

/* From fabric time `when` on every access to the region is refused as stale, whatever its key says; 0: that is over. The clock
 * is read for each access, so that a process which was stopped serves nothing late. Only for regions that cannot be mapped. The
 * driver's. */
void wefti_region_until(weft_region_t *region, uint64_t when);

/* As weft_region_key(), for none of its bytes: whatever touches one is WEFT_ERR_RANGE. */
weft_status_t wefti_rma_key_empty(weft_region_t *region, const weft_region_key_opts_t *opts, void *buf, size_t *len);

#endif
