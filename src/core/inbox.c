/* core/inbox.c - how threads that do not drive reach the one that does, and how the driver's place changes hands.
 *
 * The inbox is a stack that anyone pushes to with one compare-and-swap and that the driver takes whole and turns round: posts of
 * one thread start in their order. A node is an operation (to be started, or to be cancelled: INBOX_START tells) or a
 * wefti_call_t.
 *
 * Nobody is left in it: a pusher wakes a driver that sleeps, or drains it himself if nobody drives; a driver that leaves looks
 * once more (both orders are sequentially consistent, so one of the two sees the other). In the same way a thread that waits for
 * its turn to drive is either seen by the driver that leaves, or sees that nobody drives.
 *
 * Promise: what was pushed runs on the driver, once, without anyone calling again. tests/unit/core_inbox.c and core_wait.c hold
 * us to it. */
#include <limits.h>

#include "core/local.h"

_Thread_local weft_runtime_t *wefti_driven;

const wefti_op_kind_t wefti_call_kind = {"call", NULL, NULL};

/* --- pushing ---------------------------------------------------------------------------------------------------------------- */

void wefti_inbox_push(weft_runtime_t *rt, weft_op_t *node)
{
    wefti_opx_t *x = wefti_opx(node);
    weft_op_t *head = atomic_load_explicit(&rt->inbox, memory_order_relaxed);
    weft_runtime_t *was;
    do
        atomic_store_explicit(&x->inbox_next, head, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&rt->inbox, &head, node, memory_order_seq_cst, memory_order_relaxed));
    /* The node may be done and gone from here on. */
    if (wefti_driven == rt)
        return; /* drained in the next progress, or on leaving */
    if (atomic_load(&rt->sleeping) && atomic_exchange(&rt->sleeping, 0))
        rt->fabric->ops->wake(rt->fabric); /* one of a burst wakes it */
    if (!atomic_load(&rt->driver) && wefti_enter(rt, &was))
        wefti_leave(rt, was); /* drains it */
}

void wefti_op_inbox(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (op->token)
        weft_token_hold(op->token); /* until it is started */
    x->flags |= WEFTI_OPF_INBOX_START;
    atomic_store_explicit(&x->state, WEFTI_OP_POSTED | WEFTI_OP_INBOX, memory_order_relaxed);
    wefti_inbox_push(x->rt, op);
}

void wefti_call_on_driver(weft_runtime_t *rt, wefti_call_t *call)
{
    weft_runtime_t *was;
    if (wefti_enter(rt, &was)) {
        call->fn(call);
        wefti_leave(rt, was);
        return;
    }
    wefti_opx(&call->op)->kind = &wefti_call_kind;
    wefti_inbox_push(rt, &call->op);
}

/* --- draining --------------------------------------------------------------------------------------------------------------- */

/* The inbox lets go of an operation that it held for its cancellation. */
static void release(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_fetch_and_explicit(&x->state, ~(uint32_t)WEFTI_OP_INBOX, memory_order_acq_rel);
    if ((state & WEFTI_OP_STATE) == WEFTI_OP_ASKED)
        x->kind->cancel(op, WEFT_ERR_CANCELLED);
    else /* it completed while it was here */
        wefti_list_push_back(&rt->ready, &x->link);
}

static void start(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_token_t *token = op->token; /* it may be complete and gone when start() returns */
    uint32_t state = atomic_load_explicit(&x->state, memory_order_relaxed);
    x->flags &= ~(uint32_t)WEFTI_OPF_INBOX_START;
    while ((state & WEFTI_OP_STATE) == WEFTI_OP_POSTED &&
           !atomic_compare_exchange_weak_explicit(&x->state, &state, state & ~(uint32_t)WEFTI_OP_INBOX, memory_order_acq_rel,
                                                  memory_order_acquire))
        ;
    /* One that was cancelled meanwhile is started all the same, and then cancelled: its room may hold what only it releases. */
    bool asked = (state & WEFTI_OP_STATE) == WEFTI_OP_ASKED;
    weft_status_t st = x->kind->start(op);
    if (st)
        wefti_op_complete(op, st);
    if (asked)
        release(rt, op);
    if (token)
        weft_token_drop(token);
}

static void run(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (x->kind == &wefti_call_kind) {
        wefti_call_t *call = wefti_container_of(op, wefti_call_t, op);
        call->fn(call);
        return;
    }
    if (x->flags & WEFTI_OPF_INBOX_START)
        start(rt, op);
    else
        release(rt, op);
}

unsigned wefti_inbox_drain(weft_runtime_t *rt)
{
    weft_op_t *newest = atomic_exchange_explicit(&rt->inbox, NULL, memory_order_acquire), *oldest = NULL;
    unsigned n = 0;
    while (newest) {
        wefti_opx_t *x = wefti_opx(newest);
        weft_op_t *older = atomic_load_explicit(&x->inbox_next, memory_order_relaxed);
        atomic_store_explicit(&x->inbox_next, oldest, memory_order_relaxed);
        oldest = newest;
        newest = older;
    }
    while (oldest) {
        weft_op_t *op = oldest;
        oldest = atomic_load_explicit(&wefti_opx(op)->inbox_next, memory_order_relaxed);
        run(rt, op);
        n++;
    }
    return n;
}

/* --- changing hands -------------------------------------------------------------------------------------------------------- */

void wefti_wake_waiters(weft_runtime_t *rt)
{
    rt->leave_due &= (uint8_t)~WEFTI_DUE_WAKE;
    atomic_fetch_add(&rt->done_seq, 1);
    wefti_futex_wake(&rt->done_seq, INT_MAX);
}

void wefti_settle(weft_runtime_t *rt)
{
    if (rt->leave_due & WEFTI_DUE_WAKE)
        wefti_wake_waiters(rt);
    if (rt->leave_due & WEFTI_DUE_POKE) {
        /* Something was posted on an armed fabric: its loop has to progress, or what was posted may never move. */
        rt->leave_due &= (uint8_t)~WEFTI_DUE_POKE;
        atomic_store(&rt->sleeping, 0);
        rt->fabric->ops->wake(rt->fabric);
    }
}

void wefti_hand_on(weft_runtime_t *rt)
{
    uint32_t waiters = atomic_load(&rt->waiters);
    if (rt->mode == WEFT_PROGRESS_THREAD || atomic_load(&rt->driver))
        return;
    while (waiters && !(waiters & WEFTI_HANDED))
        if (atomic_compare_exchange_weak(&rt->waiters, &waiters, waiters | WEFTI_HANDED)) {
            atomic_fetch_add(&rt->done_seq, 1);
            wefti_futex_wake(&rt->done_seq, 1);
            return;
        }
}

void wefti_leave_slow(weft_runtime_t *rt)
{
    weft_runtime_t *was = wefti_driven;
    while (atomic_load(&rt->inbox)) {
        if (atomic_exchange_explicit(&rt->driver, 1, memory_order_acquire))
            return; /* whoever has it now looks when leaving */
        wefti_driven = rt;
        wefti_inbox_drain(rt);
        if (rt->leave_due)
            wefti_settle(rt);
        wefti_driven = was;
        atomic_store(&rt->driver, 0);
    }
    wefti_hand_on(rt);
}

void wefti_leave_quietly(weft_runtime_t *rt, weft_runtime_t *was)
{
    if (was == rt)
        return;
    wefti_driven = was;
    atomic_store(&rt->driver, 0);
    if (atomic_load(&rt->inbox) || atomic_load(&rt->waiters))
        wefti_leave_slow(rt);
}
