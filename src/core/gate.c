/* core/gate.c - operations that wait for a stream before they are started.
 *
 *     prepare --gate--> POSTED, parked --the gate opens--> start()
 *                             \--cancelled, too late, the runtime closes--> complete, never started
 *
 * While it is parked, an operation is one of core's own: it is in rt->own, and its kind is `parked`. Promise: start() runs once
 * or not at all, after the gate has opened; whatever becomes of the operation, the stream behind it goes on.
 * tests/wire/msg_streams.c. */
#include "core/gate.h"
#include "core/local.h"

weft_status_t wefti_gate_make(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (!rt->gates)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "the operation names streams of a device, and no device is in use");
    weft_status_t st = rt->gates->make(rt, op->streams, &x->gate);
    if (st)
        return st;
    x->gate->ops = rt->gates;
    x->gate->op = op;
    return WEFT_OK;
}

void wefti_gate_end(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    wefti_gate_t *gate = x->gate;
    x->flags &= ~(uint32_t)WEFTI_OPF_GATE;
    x->gate = NULL;
    gate->opened = NULL;
    gate->ops->end(gate);
}

weft_status_t wefti_gate_watch(weft_op_t *op, void (*opened)(weft_op_t *op, weft_status_t status))
{
    wefti_gate_t *gate = wefti_opx(op)->gate;
    gate->opened = opened;
    weft_status_t st = gate->ops->watch(wefti_opx(op)->rt, gate);
    if (st)
        gate->opened = NULL;
    return st;
}

void wefti_gate_forget(weft_op_t *op)
{
    wefti_opx(op)->gate->opened = NULL;
}

/* --- parking ---------------------------------------------------------------------------------------------------------------- */

static void unpark(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    wefti_list_remove(&x->link);
    x->link.next = NULL;
    x->kind = x->gate->kind;
}

static void parked_opened(weft_op_t *op, weft_status_t status)
{
    unpark(op);
    weft_status_t st = status ? status : wefti_opx(op)->kind->start(op);
    if (st) /* its post has returned WEFT_OK */
        wefti_op_failed(op, st);
}

static void parked_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_gate_forget(op);
    unpark(op);
    assert(wefti_opx(op)->kind->stops && "an operation with streams can be ended before its start()");
    if (wefti_opx(op)->kind->skip)
        wefti_opx(op)->kind->skip(op);
    wefti_op_failed(op, why);
}

static const wefti_op_kind_t parked = {.name = "waiting for a stream", .cancel = parked_cancel, .stops = true};

weft_status_t wefti_gate_park(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_status_t st = wefti_op_track(op);
    if (!st)
        st = wefti_gate_watch(op, parked_opened);
    if (st)
        return st;
    x->gate->kind = x->kind;
    x->kind = &parked;
    wefti_list_push_back(&x->rt->own, &x->link);
    return WEFT_OK;
}
