/* core/post.h - posting and completing operations. The rooms include core/core.h.
 *
 * A post is three steps, on any thread:
 *
 *     st = wefti_op_prepare(rt, op, &kind);      checks the operation; nobody can cancel or complete it yet
 *     ... fill wefti_op_scratch(op, type) ...    (if that fails: wefti_op_unprepare(op))
 *     return wefti_op_post(rt, op);              starts it: here if this thread is or can become the driver, else through the
 *                                                inbox
 *
 * start() returns an error, or WEFT_OK: then the operation is complete, or the room has it on a list of its own, and has
 * called wefti_op_track() for its deadline and its token. Later the room calls wefti_op_complete(), once, on the driver.
 *
 * A room that has to do something between the steps of the post itself uses its pieces:
 *
 *     wefti_enter_to_post()  become the driver, if nothing that this thread posted before is still in the inbox
 *     wefti_op_start()       start a prepared operation, on the driver
 *     wefti_op_inbox()       hand a prepared operation to the driver
 *     wefti_op_begin()       it is under way, without a start(): the room has it. wefti_op_take_back() undoes that
 *
 * An operation that is done within its post has two shorter ways, on the driver: wefti_op_begin_done() for one that is
 * prepared, and wefti_op_plain() and wefti_op_plain_done() for one that is not prepared and has nobody to tell. */
#ifndef WEFTI_CORE_POST_H
#define WEFTI_CORE_POST_H

#include <assert.h>

#include "base/detail.h"
#include "core/gate.h"
#include "core/runtime.h"

/* --- posting ---------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_op_prepare_slow(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind, uint32_t *flags_out);

/* Fails: WEFT_ERR_STATE (it is under way already), _INVALID (both fn and queue), _CLOSED (the runtime closes), _FORKED. */
static inline weft_status_t wefti_op_prepare(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire), flags = 0; /* a group may have let it go: group.c */
    if (__builtin_expect((state != WEFTI_OP_IDLE && state != WEFTI_OP_DONE) || wefti_closing(rt) || wefti_gone(rt) || op->token ||
                             op->queue || op->streams,
                         0)) {
        weft_status_t st = wefti_op_prepare_slow(rt, op, kind, &flags);
        if (st)
            return st;
    }
    x->rt = rt;
    x->kind = kind;
    x->link.next = NULL;
    x->flags = flags;
    return WEFT_OK;
}

/* The post fails after all: undo prepare and begin. False: someone cancelled it after begin, so it has to complete. */
bool wefti_op_unprepare(weft_op_t *op);

/* It is under way from here on: `state` is POSTED, or POSTED | INBOX, or READY. A cancel before that sticks, unless the
 * operation was posted before and is DONE. */
static inline void wefti_op_begin_as(weft_op_t *op, uint32_t state)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t was = atomic_load_explicit(&x->state, memory_order_relaxed);
    if (wefti_driven == x->rt)
        x->rt->ops_at_once++;
    else
        atomic_fetch_add_explicit(&x->rt->ops_posted, 1, memory_order_relaxed);
    if (was == WEFTI_OP_DONE) { /* whoever cancels it sees what its room filled in */
        atomic_store_explicit(&x->state, state, memory_order_release);
        return;
    }
    while (!atomic_compare_exchange_weak_explicit(&x->state, &was, state, memory_order_release, memory_order_relaxed))
        ;
    if (__builtin_expect(was & WEFTI_OP_STOPPED, 0))
        x->flags |= WEFTI_OPF_STOPPED;
}
static inline void wefti_op_begin(weft_op_t *op) { wefti_op_begin_as(op, WEFTI_OP_POSTED); }

/* On the driver, for one that was begun and cannot go on: what the post returns. st, or WEFT_OK if it was cancelled meanwhile:
 * then it completes with st. */
weft_status_t wefti_op_take_back(weft_op_t *op, weft_status_t st);

/* A prepared operation could not be started, on the driver. What the caller did wrong and a lack of memory are returned, and
 * the operation is as before the post. What depends on the peer or on time completes it, with kind->failed, and WEFT_OK is
 * returned: a program that looks at the operation sees every such failure there, whenever it happened. */
weft_status_t wefti_op_not_started(weft_op_t *op, weft_status_t st);
weft_status_t wefti_op_start_stopped(weft_op_t *op, weft_status_t (*start)(weft_op_t *op));

/* The result is the post's. */
static inline weft_status_t wefti_op_start(weft_op_t *op, weft_status_t (*start)(weft_op_t *op))
{
    wefti_op_begin(op);
    if (__builtin_expect(wefti_opx(op)->flags & WEFTI_OPF_STOPPED, 0))
        return wefti_op_start_stopped(op, start);
    weft_status_t st = wefti_gate_closed(op) && !wefti_opx(op)->kind->gates ? wefti_gate_park(op) : start(op);
    return __builtin_expect(st, 0) ? wefti_op_not_started(op, st) : WEFT_OK;
}

/* kind->start runs on the driver, later. WEFT_ERR_CLOSED: the runtime was closed meanwhile, and the operation is as before
 * prepare. */
weft_status_t wefti_op_inbox(weft_op_t *op);

/* `start` is kind->start, named so that the compiler can inline it. */
static inline weft_status_t wefti_op_post_by(weft_runtime_t *rt, weft_op_t *op, weft_status_t (*start)(weft_op_t *op))
{
    weft_runtime_t *was;
    if (!wefti_enter_to_post(rt, &was))
        return wefti_op_inbox(op);
    weft_status_t st = wefti_op_start(op, start);
    wefti_leave(rt, was);
    return st;
}
static inline weft_status_t wefti_op_post(weft_runtime_t *rt, weft_op_t *op)
{
    return wefti_op_post_by(rt, op, wefti_opx(op)->kind->start);
}

/* --- in start() ------------------------------------------------------------------------------------------------------------- */

/* Was it cancelled before it was posted, or has it a gate? For rooms that begin it themselves: not at once then. */
static inline bool wefti_op_stopped(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    return x->flags & (WEFTI_OPF_STOPPED | WEFTI_OPF_GATE) ||
           atomic_load_explicit(&x->state, memory_order_relaxed) & WEFTI_OP_STOPPED;
}
/* For a start() of a kind whose operations do not all stop: WEFT_ERR_CANCELLED if this one was cancelled before it was
 * started. */
static inline weft_status_t wefti_op_may_start(weft_op_t *op)
{
    uint32_t state = atomic_load_explicit(&wefti_opx(op)->state, memory_order_relaxed);
    if (__builtin_expect((state & WEFTI_OP_STATE) == WEFTI_OP_ASKED, 0))
        return wefti_fail(WEFT_ERR_CANCELLED, "it was cancelled before it was started");
    return WEFT_OK;
}

/* Once the operation really waits for something: arms its timeout and joins its token. WEFT_ERR_NOMEM. Never calls
 * kind->cancel from inside, even if the token was cancelled meanwhile: that comes through the inbox. */
weft_status_t wefti_op_track_slow(weft_op_t *op);
static inline weft_status_t wefti_op_track(weft_op_t *op)
{
    return __builtin_expect(op->timeout_ns || op->token, 0) ? wefti_op_track_slow(op) : WEFT_OK;
}

/* --- completing ------------------------------------------------------------------------------------------------------------- */

/* It was begun, and is not complete. */
static inline bool wefti_op_under_way(weft_op_t *op)
{
    uint32_t state = atomic_load_explicit(&wefti_opx(op)->state, memory_order_relaxed) & WEFTI_OP_STATE;
    return state == WEFTI_OP_POSTED || state == WEFTI_OP_ASKED;
}

void wefti_op_complete_slow(weft_op_t *op);

/* Complete a POSTED operation, on the driver. It must be on no list of the room. */
static inline void wefti_op_complete(weft_op_t *op, weft_status_t status)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t posted = WEFTI_OP_POSTED;
    op->status = status;
    x->rt->ops_completed++;
    if (__builtin_expect(op->fn || op->queue || x->watch || x->flags || status, 0) ||
        !atomic_compare_exchange_strong_explicit(&x->state, &posted, WEFTI_OP_DONE, memory_order_acq_rel, memory_order_relaxed))
        wefti_op_complete_slow(op);
}

/* Begin a prepared operation and complete it with WEFT_OK. */
static inline void wefti_op_begin_done(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (__builtin_expect(x->flags || !(op->fn || op->queue), 0)) {
        wefti_op_begin(op);
        wefti_op_complete(op, WEFT_OK);
        return;
    }
    op->status = WEFT_OK;
    x->rt->ops_completed++;
    wefti_op_begin_as(op, WEFTI_OP_READY);
    x->flags = 0; /* a cancel that came while it was posted is too late */
    wefti_list_push_back(&x->rt->ready, &x->link);
}

/* The way of a small message, which is sent within the call that posts it. True: the operation can be posted and nobody is to
 * be told. Then it is only marked as done. A member of a group is GROUPED until it is posted, so that it never goes this way. */
static inline bool wefti_op_plain(const weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire);
    return (state == WEFTI_OP_IDLE || state == WEFTI_OP_DONE) && !wefti_closing(rt) && !wefti_gone(rt) && !op->fn && !op->queue &&
           !op->token && !op->streams && !x->watch;
}
static inline void wefti_op_plain_done(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    op->status = WEFT_OK;
    x->rt = rt;
    rt->ops_at_once++;
    rt->ops_completed++;
    atomic_store_explicit(&x->state, WEFTI_OP_DONE, memory_order_release);
}

/* For a kind whose operations are complete before anyone could ask, or wait for nothing but their turn. */
void wefti_op_no_cancel(weft_op_t *op, weft_status_t why);
/* Have op->fn called from progress, behind the completions that are due: by an operation of the room's own, which completes at
 * once, also while the runtime closes. Driver only. */
void wefti_op_soon(weft_runtime_t *rt, weft_op_t *op);
/* Begin an operation of the room's own, which the room completes, also while the runtime closes. Driver only. */
void wefti_op_begin_own(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind);
/* For a call whose operation may be NULL: one that frees itself when it is complete. NULL: no memory. */
weft_op_t *wefti_op_own(void);

/* What operations that fail from now on say (weft_op_error), until it is set back to what it was: `uint64_t was =
 * wefti_why(rt, detail); ...; wefti_why(rt, was);`. Driver only. */
static inline uint64_t wefti_why(weft_runtime_t *rt, uint64_t detail)
{
    uint64_t was = rt->why;
    rt->why = detail;
    return was;
}

/* The same for operations that fail with the status of a failure in a room below: one that ends in another way meanwhile, since
 * it was cancelled or its peer is lost, says that. */
static inline wefti_fault_t wefti_fault(weft_runtime_t *rt, wefti_fault_t fault)
{
    wefti_fault_t was = rt->fault;
    rt->fault = fault;
    return was;
}

/* Complete one that fails with a detail of its own; 0: none. */
static inline void wefti_op_complete_why(weft_op_t *op, weft_status_t status, uint64_t detail)
{
    if (status && detail)
        wefti_opx(op)->rt->why_next = detail;
    wefti_op_complete(op, status);
}

#endif
