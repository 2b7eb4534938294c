/* extend/op.c - what weft/extend.h offers of core and conn: the runtime, the driver, operations, sentences, endpoints.
 *
 * Each is a check and a call of a room below. A caller that is not on the driver where it should be, or names a runtime that is
 * closed, gets a status or nothing: the rest of the library relies on these rules and does not look again.
 * tests/wire/extend_basic.c. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "conn/conn.h"
#include "extend/extend.h"

_Static_assert(sizeof(weft_ext_call_t) == sizeof(wefti_call_t) && offsetof(weft_ext_call_t, fn) == offsetof(wefti_call_t, fn),
               "one is used as the other");
_Static_assert(sizeof(weft_ext_timer_t) == sizeof(wefti_timer_t) &&
                   offsetof(weft_ext_timer_t, fn) == offsetof(wefti_timer_t, fn) &&
                   offsetof(weft_ext_timer_t, when) == offsetof(wefti_timer_t, node.key),
               "one is used as the other");
_Static_assert(WEFT_EXT_SCRATCH == WEFTI_OP_SCRATCH_SIZE, "weft/extend.h says how large it is");

static bool drives(const weft_runtime_t *rt)
{
    return rt && wefti_driven == rt;
}

static weft_status_t not_here(void)
{
    return wefti_fail(WEFT_ERR_STATE, "this thread does not drive the runtime");
}

static weft_runtime_t *runtime_of(weft_op_t *op)
{
    return op ? wefti_opx(op)->rt : NULL;
}

static weft_status_t posted_here(weft_op_t *op)
{
    if (!runtime_of(op))
        return wefti_fail(WEFT_ERR_INVALID, "the operation %s", op ? "was not prepared" : "is NULL");
    return drives(runtime_of(op)) ? WEFT_OK : not_here();
}

weft_status_t wefti_extend_under_way(weft_op_t *op)
{
    weft_status_t st = posted_here(op);
    return st || wefti_op_under_way(op) ? st : wefti_fail(WEFT_ERR_STATE, "the operation is not under way");
}

/* --- the runtime --------------------------------------------------------------------------------------------------------- */

weft_runtime_t *weft_ext_head(const weft_runtime_t *rt)
{
    return rt ? wefti_head(rt) : NULL;
}

weft_runtime_t *weft_ext_ep_shard(const weft_ep_t *ep)
{
    return ep ? ep->rt : NULL;
}

weft_status_t weft_ext_enter(weft_runtime_t *rt)
{
    return rt ? wefti_join(rt) : wefti_fail(WEFT_ERR_INVALID, "the runtime is NULL");
}

void weft_ext_leave(weft_runtime_t *rt)
{
    if (rt && atomic_load_explicit(&rt->handle.inside, memory_order_relaxed)) /* one too many would look like a thread inside */
        wefti_part(rt);
}

weft_status_t weft_ext_check(const weft_runtime_t *rt)
{
    if (!rt)
        return wefti_fail(WEFT_ERR_INVALID, "the runtime is NULL");
    return __builtin_expect(wefti_gone(rt), 0) ? wefti_fail_gone(rt) : WEFT_OK;
}

bool weft_ext_closing(const weft_runtime_t *rt)
{
    return !rt || wefti_gone(rt) || wefti_closing(rt);
}

uint32_t weft_ext_use(const weft_runtime_t *rt)
{
    return rt ? rt->handle.uses : 0;
}

void weft_ext_random(weft_runtime_t *rt, void *buf, size_t n)
{
    if (!rt || !buf || wefti_join(rt))
        return;
    rt->fabric->ops->random(rt->fabric, buf, n);
    wefti_part(rt);
}

weft_status_t weft_ext_may_wait(void)
{
    return wefti_driven ? wefti_fail(WEFT_ERR_STATE, "waiting is not allowed inside a callback") : WEFT_OK;
}

/* --- the driver ---------------------------------------------------------------------------------------------------------- */

weft_status_t weft_ext_call(weft_runtime_t *rt, weft_ext_call_t *call)
{
    if (!rt || !call || !call->fn)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "the runtime" : !call ? "the call" : "the function of the call");
    wefti_opx_t *x = wefti_opx(&call->node);
    if (atomic_exchange(&x->state, WEFTI_OP_POSTED)) /* it is IDLE again when it runs */
        return wefti_fail(WEFT_ERR_STATE, "the call was posted before and has not run yet, or it was not zeroed");
    if (wefti_call_on_driver(rt, (wefti_call_t *)(void *)call))
        return WEFT_OK;
    atomic_store(&x->state, WEFTI_OP_IDLE);
    return wefti_fail_gone(rt);
}

weft_status_t weft_ext_timer_set(weft_runtime_t *rt, weft_ext_timer_t *timer, uint64_t when)
{
    if (!rt || !timer || !timer->fn)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL",
                          !rt      ? "the runtime"
                          : !timer ? "the timer"
                                   : "the function of the timer");
    return drives(rt) ? wefti_timer_at(rt, (wefti_timer_t *)(void *)timer, when) : not_here();
}

void weft_ext_timer_stop(weft_runtime_t *rt, weft_ext_timer_t *timer)
{
    if (timer && drives(rt))
        wefti_timer_stop(rt, (wefti_timer_t *)(void *)timer);
}

/* --- operations ---------------------------------------------------------------------------------------------------------- */

weft_status_t weft_ext_op_prepare(weft_runtime_t *rt, weft_op_t *op, const weft_op_kind_t *kind)
{
    if (!rt || !op || !kind || !kind->start || !kind->cancel)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL",
                          !rt   ? "the runtime"
                          : !op ? "the operation"
                                : "the kind, or a function of it,");
    return wefti_op_prepare(rt, op, kind);
}

weft_status_t weft_ext_op_start(weft_op_t *op)
{
    weft_runtime_t *rt = runtime_of(op);
    if (!rt)
        return wefti_fail(WEFT_ERR_INVALID, "the operation %s", op ? "was not prepared" : "is NULL");
    return wefti_op_under_way(op) ? wefti_fail(WEFT_ERR_STATE, "the operation is under way already") : wefti_op_post(rt, op);
}

void weft_ext_op_unprepare(weft_op_t *op)
{
    if (runtime_of(op) && !wefti_op_under_way(op))
        (void)wefti_op_unprepare(op);
}

void *weft_ext_op_scratch(weft_op_t *op)
{
    return op ? wefti_op_scratch_at(op) : NULL;
}

weft_status_t weft_ext_op_may_start(weft_op_t *op)
{
    weft_status_t st = posted_here(op);
    return st ? st : wefti_op_may_start(op);
}

void weft_ext_op_complete(weft_op_t *op, weft_status_t status, uint64_t sentence)
{
    if (!drives(runtime_of(op)) || !wefti_op_under_way(op))
        return;
    if (wefti_list_linked(&wefti_opx(op)->link))
        wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete_why(op, status, sentence);
}

bool weft_ext_op_plain(weft_runtime_t *rt, weft_op_t *op)
{
    return rt && op && wefti_op_plain(rt, op);
}

void weft_ext_op_done(weft_runtime_t *rt, weft_op_t *op, weft_status_t status)
{
    if (!rt || !op)
        return;
    op->status = status;
    wefti_opx(op)->rt = rt;
    atomic_store_explicit(&wefti_opx(op)->state, WEFTI_OP_DONE, memory_order_release);
}

/* --- sentences and endpoints --------------------------------------------------------------------------------------------- */

uint64_t weft_ext_sentence(const weft_ep_t *ep, const char *fmt, ...)
{
    char text[WEFTI_DETAIL_MAX];
    va_list args;
    if (!fmt || (ep && (!drives(ep->rt) || !wefti_ep_is_there(ep))))
        return 0;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return ep ? wefti_ep_sentence(ep, text) : wefti_detail_put(text);
}

uint64_t weft_ext_op_sentence(const weft_op_t *op)
{
    return op && weft_op_done(op) && op->status ? wefti_opx((weft_op_t *)(uintptr_t)op)->detail : 0;
}

weft_status_t weft_ext_ep_usable(const weft_ep_t *ep)
{
    if (!ep)
        return wefti_fail(WEFT_ERR_INVALID, "the endpoint is NULL");
    return drives(ep->rt) ? wefti_ep_may_wait(ep) : not_here();
}

void weft_ext_ep_break(weft_ep_t *ep, weft_status_t why, const char *what)
{
    if (!ep || !what || !drives(ep->rt) || !wefti_ep_is_there(ep))
        return;
    if (why == WEFT_ERR_PROTOCOL)
        wefti_ep_protocol_error(ep, what);
    else
        wefti_ep_cannot(ep, what);
}
