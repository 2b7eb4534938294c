/* registry/registry.h - the door of the room, for src/open.c. */
#ifndef WEFTI_REGISTRY_H
#define WEFTI_REGISTRY_H

#include "core/core.h"

weft_status_t wefti_registry_attach(weft_runtime_t *rt);

#endif
