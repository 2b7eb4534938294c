/* core/wait.c - waiting for operations: one, any, all.
 *
 * A thread that waits drives if nobody else does: it holds the driver for the whole wait and progresses in a tight loop; posts
 * of other threads come in through the inbox each round. After spin_ns without an event it sleeps on the fabric. A thread that
 * finds another one driving spins a little and then sleeps on the futex done_seq, after marking what it waits for (WAITED), so
 * that only completions someone sleeps for cost a system call. A driver that leaves wakes one of those sleepers to be the
 * next; one that has nothing to wait for any more wakes the next.
 *
 * A thread that waits for operations of several shards, or for a queue of them, sleeps on the head's futex and counts itself in
 * `across`: while there are such, each shard that wakes its own threads wakes those of the head, too.
 *
 * Promise: a wait ends with its operation or its timeout, whichever thread drives. tests/unit/core_wait.c. */
#include <string.h>

#include "base/clock.h"
#include "base/relax.h"
#include "core/local.h"

enum { IDLE_LOOK = 64, ASIDE_SPIN_NS = 10000, VIRTUAL_MOST = 4096 };

/* --- what can be waited for ------------------------------------------------------------------------------------------------- */

static bool op_done(void *arg)
{
    return wefti_op_state_done(wefti_op_state((const weft_op_t *)arg));
}

/* Set WAITED, unless it is done. */
static bool op_mark(void *arg)
{
    wefti_opx_t *x = wefti_opx((weft_op_t *)arg);
    uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire);
    for (;;) {
        if (wefti_op_state_done(state))
            return true;
        if (state & WEFTI_OP_WAITED)
            return false;
        if (atomic_compare_exchange_weak_explicit(&x->state, &state, state | WEFTI_OP_WAITED, memory_order_acq_rel,
                                                  memory_order_acquire))
            return false;
    }
}

typedef struct several {
    weft_op_t *const *ops;
    size_t n, at; /* any: the one that is done; all: the first that may not be */
} several_t;

static bool any_is(several_t *s, bool (*is)(void *))
{
    for (size_t i = 0; i < s->n; i++)
        if (s->ops[i] && is(s->ops[i])) {
            s->at = i;
            return true;
        }
    return false;
}
static bool any_done(void *arg)
{
    return any_is((several_t *)arg, op_done);
}
static bool any_mark(void *arg)
{
    return any_is((several_t *)arg, op_mark);
}

static bool all_are(several_t *s, bool (*is)(void *))
{
    while (s->at < s->n && (!s->ops[s->at] || is(s->ops[s->at])))
        s->at++;
    return s->at == s->n;
}
static bool all_done(void *arg)
{
    return all_are((several_t *)arg, op_done);
}
static bool all_mark(void *arg)
{
    return all_are((several_t *)arg, op_mark);
} /* marking the first is enough: it is looked at first, too */

/* --- driving ---------------------------------------------------------------------------------------------------------------- */

/* Inlined with each `done`, so that the loop of a single operation calls nothing but progress. */
static inline __attribute__((always_inline)) weft_status_t drive(weft_runtime_t *rt, bool (*done)(void *), void *arg,
                                                                 uint64_t timeout)
{
    uint64_t deadline = WEFT_FOREVER, spins_since = 0, completed = rt->ops_completed;
    bool own_thread = wefti_mode(rt) == WEFT_PROGRESS_THREAD;
    uint32_t idle = 0, nothing = 0;
    int64_t tick = rt->coarse_tick;
    bool timed = timeout != WEFT_FOREVER;
    for (;;) {
        unsigned n = wefti_progress(rt);
        if ((n || completed != rt->ops_completed) && done(arg)) /* looking at many is slow: only when some completed */
            return WEFT_OK;
        completed = rt->ops_completed;
        if (__builtin_expect(wefti_closing(rt), 0)) {
            if (done(arg)) /* the call that stops the own thread may have come within wefti_sleep() */
                return WEFT_OK;
            if (!own_thread)
                return WEFT_ERR_AGAIN; /* the closing thread drives from here on */
        }
        if (n) {
            idle = 0;
            spins_since = 0;
            if (timeout && tick == rt->coarse_tick && !rt->virtual_time)
                continue;
            tick = rt->coarse_tick;
        } else if (timeout && ++idle % IDLE_LOOK) {
            continue;
        }
        if (!timeout)
            return WEFT_ERR_PENDING;
        uint64_t now = wefti_now(rt);
        if (timed) { /* the clock is read here for the first time: short waits do without */
            deadline = timeout < WEFT_FOREVER - now ? now + timeout : WEFT_FOREVER;
            timed = false;
        }
        if (now >= deadline)
            return WEFT_ERR_PENDING;
        if (n)
            continue;
        if (!spins_since)
            spins_since = now;
        if (now - spins_since >= rt->spin_ns) {
            if (!wefti_sleep(rt, deadline) && ++nothing > VIRTUAL_MOST)
                return wefti_fail(WEFT_ERR_UNSUPPORTED, "time does not pass by itself on this fabric, and nothing happens");
            idle = IDLE_LOOK - 1; /* nothing there: back to sleep after one look */
        }
    }
}

weft_status_t wefti_drive(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t timeout_ns)
{
    return drive(rt, what->done, what->arg, timeout_ns);
}

/* --- waiting beside a driver ------------------------------------------------------------------------------------------------ */

static inline bool may_drive(weft_runtime_t *rt)
{
    return wefti_mode(rt) != WEFT_PROGRESS_THREAD && !wefti_closing(rt) && !atomic_load(&rt->driver);
}

static void stop_waiting(weft_runtime_t *rt)
{
    uint32_t waiters = atomic_load(&rt->waiters);
    while (!atomic_compare_exchange_weak(&rt->waiters, &waiters, (waiters & ~WEFTI_HANDED) - 1))
        ;
}

/* Until it is done (WEFT_OK), `deadline` passed (WEFT_ERR_PENDING), nobody drives any more (WEFT_ERR_AGAIN), or the runtime
 * closed, which completes every operation, so that nothing else will come (WEFT_ERR_CLOSED). */
static weft_status_t aside(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t deadline)
{
    uint64_t now = wefti_clock_ns(), spin = rt->spin_ns < ASIDE_SPIN_NS ? rt->spin_ns : ASIDE_SPIN_NS, until = now + spin;
    bool slept_long = false;
    while (now < until) {
        for (int i = 0; i < 32; i++) {
            if (what->done(what->arg))
                return WEFT_OK;
            if (may_drive(rt))
                return WEFT_ERR_AGAIN;
            wefti_cpu_relax();
        }
        now = wefti_clock_ns();
    }
    for (;;) {
        uint32_t seen = atomic_load(&rt->done_seq);
        weft_status_t st = WEFT_ERR_PENDING;
        atomic_fetch_add(&rt->waiters, 1);
        if (what->mark(what->arg)) {
            st = WEFT_OK;
            if (slept_long)
                atomic_fetch_add_explicit(&rt->rescued_waits, 1, memory_order_relaxed);
        } else if (atomic_load(&rt->ended) || wefti_gone(rt)) {
            st = what->done(what->arg) ? WEFT_OK : WEFT_ERR_CLOSED;
        } else if (may_drive(rt)) {
            st = WEFT_ERR_AGAIN;
        } else if (now < deadline) {
            uint64_t ns = deadline - now < WEFTI_SAFETY_NS ? deadline - now : WEFTI_SAFETY_NS;
            slept_long = !wefti_futex_wait(&rt->done_seq, seen, ns) && ns == WEFTI_SAFETY_NS;
            stop_waiting(rt);
            now = wefti_clock_ns();
            continue;
        }
        stop_waiting(rt);
        return st;
    }
}

/* The same, from inside: close waits for this thread. */
static weft_status_t beside(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t deadline)
{
    atomic_fetch_add(&rt->handle.inside, 1);
    weft_status_t st = what->done(what->arg) ? WEFT_OK : aside(rt, what, deadline);
    if (st != WEFT_ERR_AGAIN)
        wefti_hand_on(rt); /* this thread may have been told to become the driver */
    wefti_part(rt);
    return st;
}

static inline __attribute__((always_inline)) weft_status_t wait_for(weft_runtime_t *rt, bool (*done)(void *),
                                                                    const wefti_wait_t *what, uint64_t timeout)
{
    weft_runtime_t *was;
    uint64_t deadline = WEFT_FOREVER;
    if (__builtin_expect(wefti_gone(rt), 0))
        return done(what->arg) ? WEFT_OK : wefti_fail_gone(rt);
    if (__builtin_expect(wefti_driven != NULL, 0))
        return wefti_fail(WEFT_ERR_STATE, "waiting is not allowed inside a callback");
    for (bool first = true;; first = false) {
        if (__builtin_expect(wefti_enter(rt, &was), 1)) {
            uint64_t left = timeout;
            if (!first && deadline != WEFT_FOREVER) {
                uint64_t now = wefti_clock_ns();
                left = now < deadline ? deadline - now : 0;
            }
            weft_status_t st = done(what->arg) ? WEFT_OK : wefti_closing(rt) ? WEFT_ERR_AGAIN : drive(rt, done, what->arg, left);
            wefti_leave(rt, was);
            if (st != WEFT_ERR_AGAIN)
                return st == WEFT_ERR_PENDING ? wefti_fail_plain(st) : st;
        }
        if (first && timeout != WEFT_FOREVER) {
            uint64_t now = wefti_clock_ns();
            deadline = timeout < WEFT_FOREVER - now ? now + timeout : WEFT_FOREVER;
        }
        weft_status_t st = timeout ? beside(rt, what, deadline) : done(what->arg) ? WEFT_OK : WEFT_ERR_PENDING;
        if (st == WEFT_ERR_CLOSED)
            return wefti_fail(st, "the runtime was closed");
        if (st != WEFT_ERR_AGAIN)
            return st == WEFT_ERR_PENDING ? wefti_fail_plain(st) : st;
    }
}

weft_status_t wefti_wait(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t timeout_ns)
{
    return wait_for(rt, what->done, what, timeout_ns);
}

weft_status_t wefti_wait_across(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t timeout_ns)
{
    if (!wefti_sharded(rt))
        return wefti_wait(rt, what, timeout_ns);
    weft_runtime_t *head = wefti_head(rt);
    atomic_fetch_add(&head->across, 1);
    weft_status_t st = wefti_wait(head, what, timeout_ns);
    atomic_fetch_sub(&head->across, 1);
    return st;
}

/* --- the public calls ------------------------------------------------------------------------------------------------------- */

/* Its status. Its sentence becomes this thread's last error, too. */
static inline weft_status_t outcome(const weft_op_t *op)
{
    if (__builtin_expect(op->status, 0))
        wefti_fail(op->status, "%s", weft_op_error(op));
    return op->status;
}

weft_status_t weft_op_wait(weft_op_t *op, uint64_t timeout_ns)
{
    if (__builtin_expect(!op, 0))
        return wefti_fail(WEFT_ERR_INVALID, "the operation is NULL");
    if (__builtin_expect(wefti_driven != NULL, 0))
        return wefti_fail(WEFT_ERR_STATE, "waiting is not allowed inside a callback");
    if (op_done(op)) /* its runtime may be gone */
        return outcome(op);
    const wefti_wait_t what = {op_done, op_mark, op};
    weft_status_t st = wait_for(wefti_opx(op)->rt, op_done, &what, timeout_ns);
    return st ? st : outcome(op);
}

weft_status_t wefti_sync_begin(weft_op_t *op, uint64_t timeout_ns)
{
    if (wefti_driven)
        return wefti_fail(WEFT_ERR_STATE, "waiting is not allowed inside a callback");
    memset(op, 0, sizeof *op);
    op->timeout_ns = timeout_ns == WEFT_FOREVER ? 0 : timeout_ns ? timeout_ns : 1;
    return WEFT_OK;
}

weft_status_t wefti_sync_end(weft_op_t *op, weft_status_t posted)
{
    return posted ? posted : weft_op_wait(op, WEFT_FOREVER);
}

/* Their runtime, or NULL if all are done; WEFT_ERR_INVALID if there are several. *across_out: they are of several shards. */
static weft_status_t runtime_of(const several_t *s, weft_runtime_t **rt_out, bool *across_out)
{
    weft_runtime_t *rt = NULL;
    *across_out = false;
    for (size_t i = 0; i < s->n; i++) {
        if (!s->ops[i] || op_done(s->ops[i]))
            continue;
        weft_runtime_t *its = wefti_opx(s->ops[i])->rt;
        if (rt && its != rt) {
            if (!wefti_same_runtime(its, rt))
                return wefti_fail(WEFT_ERR_INVALID, "operation %zu belongs to another runtime than those before it", i);
            *across_out = true;
        }
        rt = its;
    }
    *rt_out = rt;
    return WEFT_OK;
}

weft_status_t weft_op_wait_any(weft_op_t *const *ops, size_t n, uint64_t timeout_ns, size_t *index_out)
{
    several_t s = {ops, n, 0};
    const wefti_wait_t what = {any_done, any_mark, &s};
    weft_runtime_t *rt;
    bool some = false, across;
    for (size_t i = 0; ops && i < n && !some; i++)
        some = ops[i] != NULL;
    if (!some)
        return wefti_fail(WEFT_ERR_INVALID, "there is no operation among %zu to wait for", n);
    if (wefti_driven)
        return wefti_fail(WEFT_ERR_STATE, "waiting is not allowed inside a callback");
    weft_status_t st = WEFT_OK;
    if (!any_done(&s)) {
        st = runtime_of(&s, &rt, &across);
        if (!st && rt)
            st = across ? wefti_wait_across(rt, &what, timeout_ns) : wait_for(rt, any_done, &what, timeout_ns);
        else if (!st)
            any_done(&s); /* done between two looks */
    }
    if (!st && index_out)
        *index_out = s.at;
    return st;
}

weft_status_t weft_op_wait_all(weft_op_t *const *ops, size_t n, uint64_t timeout_ns)
{
    several_t s = {ops, n, 0};
    const wefti_wait_t what = {all_done, all_mark, &s};
    weft_runtime_t *rt;
    bool across;
    if (!ops && n)
        return wefti_fail(WEFT_ERR_INVALID, "the array of %zu operations is NULL", n);
    if (wefti_driven)
        return wefti_fail(WEFT_ERR_STATE, "waiting is not allowed inside a callback");
    weft_status_t st = runtime_of(&s, &rt, &across);
    if (!st && rt)
        st = across ? wefti_wait_across(rt, &what, timeout_ns) : wait_for(rt, all_done, &what, timeout_ns);
    for (size_t i = 0; !st && i < n; i++)
        if (ops[i])
            st = outcome(ops[i]);
    return st;
}
