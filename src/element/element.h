/* element/element.h - the door of the room, for src/open.c. */
#ifndef WEFTI_ELEMENT_H
#define WEFTI_ELEMENT_H

#include "core/core.h"

weft_status_t wefti_element_attach(weft_runtime_t *rt);

#endif
