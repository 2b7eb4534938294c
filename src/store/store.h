/* store/store.h - the door of the room, for src/open.c. */
#ifndef WEFTI_STORE_H
#define WEFTI_STORE_H

#include "core/core.h"

weft_status_t wefti_store_attach(weft_runtime_t *rt);

#endif
