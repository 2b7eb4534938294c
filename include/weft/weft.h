/* weft/weft.h - all of libweft. What libweft-elements adds is in weft/elements.h.
 *
 * NULL where a function needs an object, or a place for what it gives: it returns WEFT_ERR_INVALID, and weft_last_error() says
 * which; what returns no status does nothing, or answers as of something that is over. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H
#include <weft/am.h>
#include <weft/config.h>
#include <weft/conn.h>
#include <weft/extend.h>
#include <weft/function.h>
#include <weft/mem.h>
#include <weft/msg.h>
#include <weft/op.h>
#include <weft/policy.h>
#include <weft/registry.h>
#include <weft/rma.h>
#include <weft/rpc.h>
#include <weft/runtime.h>
#include <weft/service.h>
#include <weft/status.h>
#include <weft/types.h>
#endif
