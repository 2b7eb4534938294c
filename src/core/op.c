/* core/op.c - what happens to an operation from its post to its delivery.
 *
 * The states are in op.h. Inline in post.h is the fast path: POSTED -> DONE with one compare-and-swap, for an operation
 * without fn, queue, watcher, deadline and token. All others come through wefti_op_complete_slow() and, where someone has to
 * be told, the ready list.
 *
 * An operation that another thread has put into the inbox to be cancelled (INBOX) becomes READY, but joins the ready list only
 * when the inbox has released it: nobody may free it before. fn and user are read before DONE, since the owner may free the
 * operation from then on.
 *
 * Promise: one delivery per post, never from inside the posting call. tests/unit/core_op.c, core_thread.c, tests/sim. */
#include <stdio.h>

#include "base/alloc.h"
#include "core/local.h"

/* --- posting ---------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_op_prepare_slow(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind, uint32_t *flags_out)
{
    uint32_t state = wefti_op_state(op);
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if ((state & WEFTI_OP_STATE) != WEFTI_OP_IDLE && state != WEFTI_OP_DONE)
        return wefti_fail(WEFT_ERR_STATE, state & WEFTI_OP_QUEUED ? "the operation is complete but still in its queue"
                                                                  : "the operation is under way already");
    if (wefti_closing(rt))
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", rt->name);
    if (op->fn && op->queue)
        return wefti_fail(WEFT_ERR_INVALID, "the operation has both fn and queue; at most one of them is told");
    if (op->queue && !wefti_queue_takes(op->queue, rt))
        return wefti_fail(WEFT_ERR_INVALID, "the operation's queue belongs to another runtime");
    if (op->token && !wefti_token_takes(op->token, rt))
        return wefti_fail(WEFT_ERR_INVALID, "the operation's token belongs to another runtime");
    if (op->token && wefti_token_cancelled(op->token))
        *flags_out |= WEFTI_OPF_STOPPED;
    if (op->streams) {
        if (!kind->streams && !kind->gates)
            return wefti_fail(WEFT_ERR_UNSUPPORTED, "%s: this operation takes no streams", kind->name);
        weft_status_t st = wefti_gate_make(rt, op);
        if (st)
            return st;
        *flags_out |= WEFTI_OPF_GATE;
    }
    if (__builtin_expect(state & (WEFTI_OP_GROUPED | WEFTI_OP_LEAVING), 0) && wefti_sharded(rt) && wefti_group_post(op))
        *flags_out |= WEFTI_OPF_GROUPED;
    if (op->queue)
        wefti_queue_count(op->queue, 1);
    return WEFT_OK;
}

/* The state before the post. */
static uint32_t state_before(const wefti_opx_t *x)
{
    uint32_t grouped = x->flags & WEFTI_OPF_GROUPED ? WEFTI_OP_GROUPED : 0;
    return x->flags & WEFTI_OPF_STOPPED ? WEFTI_OP_IDLE | WEFTI_OP_STOPPED | grouped : WEFTI_OP_IDLE | grouped;
}

/* Its start() listed it and failed. */
static void unlist(weft_op_t *op)
{
    if (wefti_list_linked(&wefti_opx(op)->link))
        wefti_list_remove(&wefti_opx(op)->link);
}

static void uncount(weft_op_t *op, bool begun)
{
    unlist(op);
    if (begun)
        atomic_fetch_sub_explicit(&wefti_opx(op)->rt->ops_posted, 1, memory_order_relaxed);
    wefti_op_untrack(op);
    if (op->queue)
        wefti_queue_count(op->queue, -1);
}

bool wefti_op_unprepare(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = wefti_op_state(op), back = state_before(x);
    while ((state & WEFTI_OP_STATE) == WEFTI_OP_POSTED)
        if (atomic_compare_exchange_weak_explicit(&x->state, &state, back, memory_order_relaxed, memory_order_relaxed))
            break;
    if ((state & WEFTI_OP_STATE) == WEFTI_OP_ASKED)
        return false;
    bool begun = (state & WEFTI_OP_STATE) == WEFTI_OP_POSTED, grouped = x->flags & WEFTI_OPF_GROUPED;
    uncount(op, begun);
    if (grouped && !begun)
        wefti_group_unpost(op);
    return true;
}

weft_status_t wefti_op_take_back(weft_op_t *op, weft_status_t st)
{
    if (wefti_op_unprepare(op))
        return st;
    wefti_op_complete(op, st);
    return WEFT_OK;
}

void wefti_op_unpost(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = wefti_op_state(op), back = state_before(x);
    bool grouped = x->flags & WEFTI_OPF_GROUPED, left;
    do {
        left = grouped && (state & WEFTI_OP_STATE) == WEFTI_OP_ASKED;
    } while (!atomic_compare_exchange_weak_explicit(&x->state, &state, left ? back & ~(uint32_t)WEFTI_OP_GROUPED : back,
                                                    memory_order_acq_rel, memory_order_acquire));
    uncount(op, true);
    if (left)
        wefti_group_left(op);
}

weft_status_t wefti_op_track_slow(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (op->timeout_ns && !(x->flags & WEFTI_OPF_TIMED)) {
        weft_status_t st = wefti_op_timer_after(x->rt, op, op->timeout_ns);
        if (st)
            return st;
    }
    if (op->token && !(x->flags & WEFTI_OPF_TOKEN)) {
        weft_status_t st = wefti_token_join(op->token, op);
        if (st)
            return st;
        x->flags |= WEFTI_OPF_TOKEN;
    }
    return WEFT_OK;
}

void wefti_op_untrack(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (x->flags & WEFTI_OPF_TIMED)
        wefti_heap_remove(&x->rt->timers, &x->timer);
    if (x->flags & WEFTI_OPF_TOKEN)
        wefti_token_part(op->token, op);
    if (x->flags & WEFTI_OPF_GATE)
        wefti_gate_end(op);
    x->flags = 0;
}

/* --- starting --------------------------------------------------------------------------------------------------------------- */

/* Errors that depend neither on the peer nor on time: the post returns them. */
static bool by_post(weft_status_t st)
{
    switch (st) {
    case WEFT_ERR_INVALID:
    case WEFT_ERR_NOMEM:
    case WEFT_ERR_AGAIN:
    case WEFT_ERR_LIMIT:
    case WEFT_ERR_FORKED:
    case WEFT_ERR_STATE:
    case WEFT_ERR_UNSUPPORTED:
    case WEFT_ERR_RANGE:
    case WEFT_ERR_TRUNCATED:
    case WEFT_ERR_RIGHTS:
        return true;
    default:
        return false;
    }
}

void wefti_op_failed(weft_op_t *op, weft_status_t st)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_runtime_t *rt = x->rt;
    if (!wefti_op_under_way(op)) { /* its start() has completed it and then returned an error */
        wefti_error("%s: %s came after its completion, and nobody is told", x->kind->name, weft_status_name(st));
        return;
    }
    uint64_t said = wefti_detail_last(st), was = wefti_why(rt, said ? said : rt->why);
    if (x->kind->failed) {
        x->kind->failed(op, st);
    } else {
        unlist(op);
        wefti_op_complete(op, st);
    }
    wefti_why(rt, was);
}

weft_status_t wefti_op_not_started(weft_op_t *op, weft_status_t st)
{
    if ((by_post(st) || wefti_opx(op)->kind->by_post) && wefti_op_under_way(op) && wefti_op_unprepare(op))
        return st;
    wefti_op_failed(op, st);
    return WEFT_OK;
}

/* --- completing ------------------------------------------------------------------------------------------------------------- */

void wefti_op_complete_slow(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_runtime_t *rt = x->rt;
    bool tell = op->fn || op->queue || x->watch;
    assert(!(x->flags & WEFTI_OPF_INBOX_START));
    if (x->flags)
        wefti_op_untrack(op);
    if (op->status) {
        uint64_t below = rt->fault.status == op->status ? rt->fault.detail : 0;
        x->detail = rt->why_next ? rt->why_next : below ? below : rt->why;
        rt->why_next = 0;
    }
    uint32_t state = atomic_load_explicit(&x->state, memory_order_relaxed), next;
    do {
        assert((state & WEFTI_OP_STATE) == WEFTI_OP_POSTED || (state & WEFTI_OP_STATE) == WEFTI_OP_ASKED);
        next = tell || (state & (WEFTI_OP_INBOX | WEFTI_OP_HOOKED)) ? WEFTI_OP_READY | (state & ~(uint32_t)WEFTI_OP_STATE)
                                                                    : WEFTI_OP_DONE;
    } while (!atomic_compare_exchange_weak_explicit(&x->state, &state, next, memory_order_acq_rel, memory_order_relaxed));
    if (next == WEFTI_OP_DONE) {
        if (state & WEFTI_OP_WAITED)
            rt->leave_due |= WEFTI_DUE_WAKE;
    } else if (!(next & WEFTI_OP_INBOX)) {
        wefti_list_push_back(&rt->ready, &x->link);
    }
}

weft_op_fn wefti_op_done(weft_runtime_t *rt, weft_op_t *op, uint32_t queued)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire);
    weft_op_fn fn;
    do {
        assert((state & WEFTI_OP_STATE) == WEFTI_OP_READY);
        fn = state & WEFTI_OP_HOOKED ? x->late_fn : op->fn;
    } while (!atomic_compare_exchange_weak_explicit(&x->state, &state, WEFTI_OP_DONE | queued, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (state & WEFTI_OP_WAITED)
        rt->leave_due |= WEFTI_DUE_WAKE;
    return fn;
}

static void deliver(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (__builtin_expect(x->flags & WEFTI_OPF_STEP, 0)) {
        wefti_run_step(op);
    } else if (x->watch) {
        wefti_watch_fn watch = x->watch;
        void *arg = x->watch_arg, *user = op->user;
        weft_status_t told = op->status;
        uint64_t detail = told ? x->detail : 0;
        x->watch = NULL;
        weft_op_fn fn = wefti_op_done(rt, op, 0);
        if (fn) /* it was attached. Before the watch: after that the owner may free the member */
            fn(op, user);
        rt->told = told;
        rt->told_detail = detail;
        watch(op, arg);
    } else if (op->queue) {
        wefti_queue_push(rt, op->queue, op);
    } else {
        void *user = op->user;
        weft_op_fn fn = wefti_op_done(rt, op, 0);
        if (fn)
            fn(op, user);
    }
}

unsigned wefti_deliver(weft_runtime_t *rt, unsigned most)
{
    unsigned n = 0, ticks = 0; /* the first tick may be due to what happened before */
    for (wefti_list_t *l; n < most && ticks < 2 && (l = wefti_list_pop(&rt->ready)); n++) {
        deliver(rt, wefti_op_of_link(l));
        ticks += wefti_did(rt);
    }
    return n;
}

/* --- operations of the library's own ------------------------------------------------------------------------------------- */

void wefti_op_no_cancel(weft_op_t *op, weft_status_t why)
{
    (void)op, (void)why;
}

void wefti_op_begin_own(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind)
{
    wefti_opx_t *x = wefti_opx(op);
    x->rt = rt;
    x->kind = kind;
    x->flags = 0;
    x->link.next = NULL;
    atomic_store_explicit(&x->state, WEFTI_OP_POSTED, memory_order_relaxed);
    rt->ops_at_once++;
}

void wefti_op_soon(weft_runtime_t *rt, weft_op_t *op)
{
    static const wefti_op_kind_t kind = {.name = "work", .cancel = wefti_op_no_cancel};
    wefti_op_begin_own(rt, op, &kind);
    wefti_op_complete(op, WEFT_OK);
}

static void own_done(weft_op_t *op, void *user)
{
    (void)user;
    wefti_free(op);
}

weft_op_t *wefti_op_own(void)
{
    weft_op_t *op = wefti_calloc(1, sizeof *op);
    if (op)
        op->fn = own_done;
    return op;
}

/* --- what it says ----------------------------------------------------------------------------------------------------------- */

const char *weft_op_error(const weft_op_t *op)
{
    static _Thread_local char text[WEFTI_DETAIL_MAX + 64];
    char detail[WEFTI_DETAIL_MAX];
    if (!op || !weft_op_done(op) || !op->status)
        return "";
    const wefti_opx_t *x = wefti_opx((weft_op_t *)(uintptr_t)op);
    const char *what = x->kind ? x->kind->name : "operation";
    snprintf(text, sizeof text, "%s: %s", what, wefti_detail_get(x->detail, detail) ? detail : weft_status_text(op->status));
    return text;
}

/* --- cancelling ------------------------------------------------------------------------------------------------------------- */

void wefti_op_ask(weft_op_t *op, weft_status_t why)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire);
    while ((state & WEFTI_OP_STATE) == WEFTI_OP_POSTED) {
        uint32_t next = (state & ~(uint32_t)WEFTI_OP_STATE) | WEFTI_OP_ASKED;
        if (!atomic_compare_exchange_weak_explicit(&x->state, &state, next, memory_order_acq_rel, memory_order_acquire))
            continue;
        if (!(state & WEFTI_OP_INBOX)) /* else the inbox cancels it once it has started it */
            x->kind->cancel(op, why);
        return;
    }
    /* a room that cannot cancel it may still end it at its deadline */
    if ((state & WEFTI_OP_STATE) == WEFTI_OP_ASKED && why != WEFT_ERR_CANCELLED && !(x->flags & WEFTI_OPF_INBOX_START))
        x->kind->cancel(op, why);
}

void weft_op_cancel(weft_op_t *op)
{
    if (!op)
        return;
    wefti_opx_t *x = wefti_opx(op);
    weft_runtime_t *was;
    uint32_t state = wefti_op_state(op);
    while ((state & WEFTI_OP_STATE) == WEFTI_OP_IDLE) /* it was never posted: its post finds the mark */
        if (atomic_compare_exchange_weak_explicit(&x->state, &state, state | WEFTI_OP_STOPPED, memory_order_acq_rel,
                                                  memory_order_acquire))
            return;
    if ((state & WEFTI_OP_STATE) != WEFTI_OP_POSTED)
        return;
    weft_runtime_t *rt = x->rt;
    if (wefti_gone(rt))
        return;
    if (wefti_enter(rt, &was)) {
        wefti_op_ask(op, WEFT_ERR_CANCELLED);
        wefti_leave(rt, was);
        return;
    }
    /* With INBOX it completes only when the inbox has released it: so the inbox stays open until it has the operation. */
    atomic_fetch_add(&rt->handed_in, 1);
    while ((state & WEFTI_OP_STATE) == WEFTI_OP_POSTED) {
        uint32_t next = (state & ~(uint32_t)WEFTI_OP_STATE) | WEFTI_OP_ASKED | WEFTI_OP_INBOX;
        if (!atomic_compare_exchange_weak_explicit(&x->state, &state, next, memory_order_acq_rel, memory_order_acquire))
            continue;
        if (!(state & WEFTI_OP_INBOX))
            (void)wefti_inbox_push(rt, op);
        break;
    }
    atomic_fetch_sub(&rt->handed_in, 1);
}

/* --- looking, attaching ----------------------------------------------------------------------------------------------------- */

weft_status_t weft_op_attach(weft_op_t *op, weft_op_fn fn)
{
    if (!op || !fn)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", op ? "the callback" : "the operation");
    if (op->fn || op->queue)
        return wefti_fail(WEFT_ERR_STATE, "the operation has %s already", op->fn ? "a callback" : "a queue");
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = wefti_op_state(op);
    for (;;) {
        if (wefti_op_state_done(state))
            return wefti_fail_plain(WEFT_ERR_DONE);
        if (state & WEFTI_OP_HOOKED)
            return wefti_fail(WEFT_ERR_STATE, "a callback was attached already");
        if (wefti_gone(x->rt))
            return wefti_fail_gone(x->rt);
        x->late_fn = fn;
        if (atomic_compare_exchange_weak_explicit(&x->state, &state, state | WEFTI_OP_HOOKED, memory_order_acq_rel,
                                                  memory_order_acquire))
            return WEFT_OK;
    }
}

bool weft_op_done(const weft_op_t *op)
{
    return __builtin_expect(!op, 0) || wefti_op_state_done(wefti_op_state(op));
}

void weft_buf_free(void *buf)
{
    wefti_free(buf);
}
