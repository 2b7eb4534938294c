/* extend/extend.h - the door of the room, for src/open.c. The room itself is what weft/extend.h declares. */
#ifndef WEFTI_EXTEND_H
#define WEFTI_EXTEND_H

#include <weft/extend.h>

#include "core/core.h"

/* Give the runtime every extension that is registered, and open them. The last of the rooms: extensions use all others. Of
 * several shards the head opens them when all are there, and then the others, one after the other. */
weft_status_t wefti_extend_attach(weft_runtime_t *rt);
weft_status_t wefti_extend_open(weft_runtime_t *rt);

/* For the room itself. Is it under way, and this thread its driver? WEFT_OK, WEFT_ERR_INVALID, WEFT_ERR_STATE. */
weft_status_t wefti_extend_under_way(weft_op_t *op);

#endif
