/* registry/registry.h - the door of the room, for src/open.c and rpc. */
#ifndef WEFTI_REGISTRY_H
#define WEFTI_REGISTRY_H

#include <weft/registry.h>

#include "core/core.h"

/* Where it is, for people: without a password. */
const char *wefti_registry_uri(const weft_registry_t *registry);
/* Is it one of this runtime? What it finds is told there. WEFT_ERR_INVALID, _CLOSED. */
weft_status_t wefti_registry_check_of(const weft_registry_t *registry, const weft_runtime_t *rt);
weft_status_t wefti_registry_attach(weft_runtime_t *rt);

#endif
