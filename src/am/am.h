/* am/am.h - the door of the room, for src/open.c. */
#ifndef WEFTI_AM_H
#define WEFTI_AM_H

#include "core/core.h"

weft_status_t wefti_am_attach(weft_runtime_t *rt);

#endif
