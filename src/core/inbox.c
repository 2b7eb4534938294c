/* core/inbox.c - how threads that do not drive reach the driver, and how the driver changes.
 *
 * The inbox is a list to which any thread pushes and which the driver takes whole (base/mpsc.h): posts of one thread start in
 * their order. A node is an operation (to be started, or to be cancelled: INBOX_START tells) or a wefti_call_t. Closing the
 * runtime closes it.
 *
 * Nothing stays in it: a pusher wakes a driver that sleeps, or drains it if nobody drives; a driver that leaves looks once
 * more. Both orders are sequentially consistent, so one of the two sees the other. In the same way a thread that waits to
 * become the driver is either seen by the driver that leaves, or sees that nobody drives.
 *
 * Threads that push faster than the driver drains are slowed down: with CROWD in the inbox, each push takes up to a
 * millisecond. Else the inbox would grow while it is drained, and the driver would never get out of it. A push never waits for
 * the driver without a bound: that may be in a callback that waits for this very thread.
 *
 * Promise: what was pushed runs on the driver, once, without another call. Exception: after LEAVE_MOST rounds of a crowd that
 * then stops, the next progress or wait runs it. tests/unit/core_inbox.c, core_wait.c. */
#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "core/local.h"

enum { LEAVE_MOST = 16, TIMERS_EVERY = 256, CROWD = 8192, NAPS = 10, NAP_NS = 100000 };

_Thread_local weft_runtime_t *wefti_driven;

const wefti_op_kind_t wefti_call_kind = {.name = "call"};

/* --- pushing ---------------------------------------------------------------------------------------------------------------- */

/* The first of a burst wakes it. It is inside meanwhile, so that the fabric stays. */
static void wake_driver(weft_runtime_t *rt)
{
    atomic_fetch_add(&rt->handle.inside, 1);
    if (atomic_exchange(&rt->sleeping, 0))
        rt->fabric->ops->wake(rt->fabric);
    wefti_part(rt);
}

/* Let the driver catch up. Not on a thread that drives another runtime: this driver may be waiting for it. */
static void slow_down(weft_runtime_t *rt)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (int i = 0; i < NAPS && !wefti_driven && atomic_load(&rt->driver); i++) {
        if (atomic_load_explicit(&rt->handed_in, memory_order_relaxed) < CROWD)
            return;
        nanosleep(&nap, NULL);
    }
}

bool wefti_inbox_push(weft_runtime_t *rt, weft_op_t *node)
{
    weft_runtime_t *was;
    if (wefti_gone(rt))
        return false;
    if (__builtin_expect(atomic_fetch_add_explicit(&rt->handed_in, 1, memory_order_relaxed) >= CROWD, 0))
        slow_down(rt);
    if (wefti_mpsc_push(&rt->inbox, &wefti_opx(node)->handed) == WEFTI_MPSC_CLOSED) {
        atomic_fetch_sub_explicit(&rt->handed_in, 1, memory_order_relaxed);
        return false;
    }
    /* The node may be done and gone from here on, and the runtime closed. */
    if (wefti_driven == rt)
        return true; /* drained in the next progress, or on leaving */
    if (atomic_load(&rt->sleeping))
        wake_driver(rt);
    if (!atomic_load(&rt->driver) && wefti_enter(rt, &was))
        wefti_leave(rt, was); /* drains it */
    return true;
}

weft_status_t wefti_op_inbox(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_runtime_t *rt = x->rt;
    weft_token_t *token = op->token;
    if (token)
        weft_token_hold(token); /* until it is started */
    x->flags |= WEFTI_OPF_INBOX_START;
    wefti_op_begin_as(op, WEFTI_OP_POSTED | WEFTI_OP_INBOX);
    if (wefti_inbox_push(rt, op))
        return WEFT_OK;
    /* a cancel leaves it to the inbox, which will never have it: so it can be taken back */
    x->flags &= ~(uint32_t)WEFTI_OPF_INBOX_START;
    wefti_op_unpost(op);
    weft_token_drop(token);
    return wefti_fail_gone(rt);
}

/* From here on it may be posted again, also by fn, or freed. */
static void run_call(wefti_call_t *call)
{
    atomic_store_explicit(&wefti_opx(&call->op)->state, WEFTI_OP_IDLE, memory_order_release);
    call->fn(call);
}

bool wefti_call_on_driver(weft_runtime_t *rt, wefti_call_t *call)
{
    weft_runtime_t *was;
    bool runs;
    wefti_opx(&call->op)->kind = &wefti_call_kind;
    if (!wefti_enter(rt, &was))
        return wefti_inbox_push(rt, &call->op);
    if (wefti_may_pass_inbox(rt, was)) {
        runs = was == rt || !wefti_gone(rt);
        if (runs)
            run_call(call);
    } else { /* this thread's own earlier calls may lie there: in their order, when we leave */
        runs = wefti_inbox_push(rt, &call->op);
    }
    wefti_leave(rt, was);
    return runs;
}

bool wefti_call_later(weft_runtime_t *rt, wefti_call_t *call)
{
    wefti_opx(&call->op)->kind = &wefti_call_kind;
    return wefti_inbox_push(rt, &call->op);
}

/* --- asking ----------------------------------------------------------------------------------------------------------------- */

typedef struct question {
    wefti_call_t call;
    weft_status_t (*answer)(void *arg);
    void *arg;
    const void *asked_by; /* an address that identifies the thread */
    char sentence[512];   /* of a failure on another thread: weft_last_error() is per thread */
    weft_status_t st;
    _Atomic uint32_t answered;
} question_t;

static void answer(wefti_call_t *call)
{
    question_t *q = wefti_container_of(call, question_t, call);
    q->st = q->answer(q->arg);
    if (q->st && q->asked_by != &wefti_driven)
        snprintf(q->sentence, sizeof q->sentence, "%s", weft_last_error());
    atomic_store(&q->answered, 1);
    wefti_futex_wake(&q->answered, 1); /* harmless if it has seen the answer and gone */
}

weft_status_t wefti_ask(weft_runtime_t *rt, weft_status_t (*fn)(void *arg), void *arg)
{
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (wefti_driven && wefti_driven != rt)
        return wefti_fail(WEFT_ERR_STATE,
                          "the runtime \"%s\" cannot be asked inside a callback of \"%s\": two callbacks that ask "
                          "each other's runtimes would wait for ever",
                          rt->name, wefti_driven->name);
    question_t q = {.call.fn = answer, .answer = fn, .arg = arg, .asked_by = &wefti_driven};
    if (!wefti_call_on_driver(rt, &q.call))
        return wefti_fail_gone(rt);
    while (!atomic_load(&q.answered)) {
        weft_runtime_t *was;
        if (wefti_enter(rt, &was)) /* the last driver may have left something in the inbox: wefti_leave_slow() */
            wefti_leave(rt, was);
        else
            wefti_futex_wait(&q.answered, 0, WEFTI_SAFETY_NS);
    }
    return q.sentence[0] ? wefti_fail(q.st, "%s", q.sentence) : q.st;
}

/* --- draining --------------------------------------------------------------------------------------------------------------- */

/* The inbox releases an operation that it held for its cancellation. */
static void release(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_fetch_and_explicit(&x->state, ~(uint32_t)WEFTI_OP_INBOX, memory_order_acq_rel);
    if ((state & WEFTI_OP_STATE) == WEFTI_OP_ASKED)
        x->kind->cancel(op, WEFT_ERR_CANCELLED);
    else /* it completed while it was here */
        wefti_list_push_back(&rt->ready, &x->link);
}

/* Start one that was cancelled before. Kinds without `stops` are started all the same, and then cancelled by release(). */
static void start_asked(weft_op_t *op, weft_status_t (*start)(weft_op_t *op))
{
    wefti_opx_t *x = wefti_opx(op);
    weft_status_t st;
    x->flags &= ~(uint32_t)WEFTI_OPF_STOPPED;
    wefti_fail_forget();
    if (x->kind->stops) {
        if (x->kind->skip)
            x->kind->skip(op);
        st = wefti_fail(WEFT_ERR_CANCELLED, "it was cancelled before it was started");
    } else {
        st = start(op);
    }
    if (st)
        wefti_op_failed(op, st);
}

weft_status_t wefti_op_start_stopped(weft_op_t *op, weft_status_t (*start)(weft_op_t *op))
{
    wefti_opx_t *x = wefti_opx(op);
    weft_runtime_t *rt = x->rt;
    uint32_t state = atomic_load_explicit(&x->state, memory_order_relaxed);
    bool ours = false;
    /* as if it were in the inbox, so that it stays until release(). If another thread has just cancelled it, it really is */
    while (!ours && (state & WEFTI_OP_STATE) == WEFTI_OP_POSTED)
        ours = atomic_compare_exchange_weak_explicit(&x->state, &state,
                                                     (state & ~(uint32_t)WEFTI_OP_STATE) | WEFTI_OP_ASKED | WEFTI_OP_INBOX,
                                                     memory_order_acq_rel, memory_order_acquire);
    start_asked(op, start);
    if (ours)
        release(rt, op);
    return WEFT_OK;
}

static void start(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_token_t *token = op->token; /* it may be complete and gone when start() returns */
    uint32_t state = atomic_load_explicit(&x->state, memory_order_relaxed), next;
    x->flags &= ~(uint32_t)WEFTI_OPF_INBOX_START;
    do {
        bool asked = (state & WEFTI_OP_STATE) == WEFTI_OP_ASKED || x->flags & WEFTI_OPF_STOPPED;
        next = asked ? (state & ~(uint32_t)WEFTI_OP_STATE) | WEFTI_OP_ASKED : state & ~(uint32_t)WEFTI_OP_INBOX;
    } while (!atomic_compare_exchange_weak_explicit(&x->state, &state, next, memory_order_acq_rel, memory_order_acquire));
    if ((next & WEFTI_OP_STATE) == WEFTI_OP_ASKED) {
        start_asked(op, x->kind->start);
        release(rt, op);
    } else {
        wefti_fail_forget();
        weft_status_t st = wefti_gate_closed(op) && !x->kind->gates ? wefti_gate_park(op) : x->kind->start(op);
        if (st) /* its post has returned WEFT_OK */
            wefti_op_failed(op, st);
    }
    if (token)
        weft_token_drop(token);
}

static void run(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (x->kind == &wefti_call_kind) {
        run_call(wefti_container_of(op, wefti_call_t, op));
        return;
    }
    if (x->flags & WEFTI_OPF_INBOX_START)
        start(rt, op);
    else
        release(rt, op);
}

unsigned wefti_inbox_drain(weft_runtime_t *rt)
{
    unsigned n = 0;
    for (wefti_mpsc_node_t *at = wefti_mpsc_take(&rt->inbox), *next; at; at = next, n++) {
        next = wefti_mpsc_next(at);
        run(rt, wefti_op_of(at, handed));
        if (n % TIMERS_EVERY == TIMERS_EVERY - 1 && wefti_ticked(rt))
            wefti_timers_run(rt);
    }
    if (n)
        atomic_fetch_sub_explicit(&rt->handed_in, (int32_t)n, memory_order_relaxed);
    return n;
}

/* --- changing hands --------------------------------------------------------------------------------------------------------- */

void wefti_wake_waiters(weft_runtime_t *rt)
{
    weft_runtime_t *head = wefti_head(rt);
    rt->leave_due &= (uint8_t)~WEFTI_DUE_WAKE;
    atomic_fetch_add(&rt->done_seq, 1);
    wefti_futex_wake(&rt->done_seq, INT_MAX);
    /* Read by a change, so that a thread which counts itself after this sees what is done: wefti_wait_across(). */
    if (head != rt && atomic_fetch_add(&head->across, 0)) {
        atomic_fetch_add(&head->done_seq, 1);
        wefti_futex_wake(&head->done_seq, INT_MAX);
    }
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
    if (wefti_mode(rt) == WEFT_PROGRESS_THREAD || wefti_closing(rt) || atomic_load(&rt->driver))
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
    unsigned rounds = 0;
    /* Bounded, so that others who push all the time do not keep this thread here: the next who pushes or waits goes on, or the
     * loop, which is told. If the runtime closes, the closing thread goes on. */
    for (; !wefti_mpsc_empty(&rt->inbox) && rounds < LEAVE_MOST && !wefti_closing(rt); rounds++) {
        if (atomic_exchange_explicit(&rt->driver, 1, memory_order_acquire))
            return; /* the new driver looks when it leaves */
        wefti_driven = rt;
        wefti_inbox_drain(rt);
        if (rounds + 1 == LEAVE_MOST && wefti_mode(rt) == WEFT_PROGRESS_LOOP)
            rt->leave_due |= WEFTI_DUE_POKE;
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
    if (!wefti_mpsc_empty(&rt->inbox) || atomic_load(&rt->waiters))
        wefti_leave_slow(rt);
}

/* --- who is inside ---------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_join_slow(weft_runtime_t *rt)
{
    wefti_part(rt);
    return wefti_fail_gone(rt);
}

void wefti_wake_all(weft_runtime_t *rt)
{
    wake_driver(rt);
    atomic_fetch_add(&rt->done_seq, 1);
    wefti_futex_wake(&rt->done_seq, INT_MAX);
}
