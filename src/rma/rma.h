/* rma/rma.h - the door of the room, for src/open.c. */
#ifndef WEFTI_RMA_H
#define WEFTI_RMA_H

#include <weft/rma.h>

#include "core/core.h"

weft_status_t wefti_rma_attach(weft_runtime_t *rt);

#endif
