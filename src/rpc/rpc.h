/* rpc/rpc.h - the door of rpc, for src/open.c. */
#ifndef WEFTI_RPC_H
#define WEFTI_RPC_H

#include "core/core.h"

weft_status_t wefti_rpc_attach(weft_runtime_t *rt);

#endif
