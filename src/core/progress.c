/* core/progress.c - one round of driving, and the calls by which callers and foreign loops do it.
 *
 * A round: inbox, fabric, timers (if the clock is due), deliveries. It never waits, and it is bounded: a callback that posts
 * what completes at once gets its next turn in the next round.
 *
 * A foreign loop arms the runtime and sleeps on its fd. While it is armed (`armed`, `sleeping`), a post by any thread makes
 * the fd readable before the post returns (WEFTI_DUE_POKE), since posting on an armed fabric can consume the event that would
 * have woken the loop. The next progress disarms.
 *
 * A round may take 50 ns, or as long as a callback computes or a payload is copied. Reading the clock in each would cost too
 * much, so idle rounds are counted, and every few rounds that found something and every few deliveries look at the coarse
 * clock (5 ns, no cycle counter): if it has ticked, timers run. A caller may also progress once a second: a call of its own
 * that finds nothing looks at the coarse clock too, and if it has ticked, at everything.
 *
 * tests/unit/core_loop.c and core_timer.c. */
#include "core/local.h"

enum { DELIVER_MOST = 256 };

static inline unsigned look(weft_runtime_t *rt, bool idle)
{
    unsigned n = 0;
    if (__builtin_expect(!wefti_mpsc_seems_empty(&rt->inbox), 0))
        n = wefti_inbox_drain(rt);
    return n + rt->fabric->ops->progress(rt->fabric, idle);
}

unsigned wefti_look(weft_runtime_t *rt, bool idle)
{
    return look(rt, idle);
}

static void unarm(weft_runtime_t *rt)
{
    rt->armed = 0;
    rt->leave_due &= (uint8_t)~WEFTI_DUE_POKE;
    atomic_store(&rt->sleeping, 0);
    rt->fabric->ops->disarm(rt->fabric);
    rt->quiet = WEFTI_QUIET_MANY;
    rt->until_clock = 1;
}

/* The loop that armed it is back; or another thread disarmed it while the loop sleeps, and the loop has to be woken. */
static void tell_loop(weft_runtime_t *rt)
{
    if (rt->armed_by == &wefti_driven)
        rt->armed_by = NULL;
    else
        rt->leave_due |= WEFTI_DUE_POKE;
}

/* Is it time to read the clock and run timers, after a round that found n things? */
static inline bool timers_due(weft_runtime_t *rt, unsigned n)
{
    uint32_t step = n ? 1 : 4;
    if (n)
        wefti_did(rt);
    if (!rt->timers.n)
        return false;
    if (rt->until_clock <= step)
        return true;
    rt->until_clock -= step;
    return false;
}

unsigned wefti_progress(weft_runtime_t *rt)
{
    if (__builtin_expect(rt->delivering || rt->armed, 0)) {
        if (rt->delivering)
            return 0; /* from inside a callback */
        unarm(rt);
    }
    rt->delivering = true;
    unsigned n = look(rt, rt->quiet > WEFTI_QUIET_LONG);
    if (timers_due(rt, n))
        n += wefti_timers_run(rt);
    if (!wefti_list_empty(&rt->ready)) {
        if (rt->leave_due & WEFTI_DUE_WAKE)
            wefti_wake_waiters(rt); /* callbacks may take long */
        n += wefti_deliver(rt, DELIVER_MOST);
    }
    rt->quiet = n ? 0 : rt->quiet + (rt->quiet < WEFTI_QUIET_MANY);
    if (__builtin_expect(rt->leave_due & WEFTI_DUE_WAKE, 0))
        wefti_wake_waiters(rt);
    if (__builtin_expect(rt->armed_by != NULL, 0))
        tell_loop(rt);
    rt->delivering = false;
    return n;
}

/* --- callers and loops ------------------------------------------------------------------------------------------------------ */

unsigned weft_runtime_progress(weft_runtime_t *rt)
{
    weft_runtime_t *was;
    if (!rt || wefti_gone(rt) || wefti_driven == rt || !wefti_enter(rt, &was))
        return 0;
    unsigned n = wefti_progress(rt);
    if (!n && wefti_ticked(rt)) {
        rt->quiet = WEFTI_QUIET_MANY;
        rt->until_clock = 1;
        n += wefti_progress(rt);
    }
    wefti_leave(rt, was);
    return n;
}

int weft_runtime_fd(weft_runtime_t *rt)
{
    if (!rt)
        return wefti_fail(WEFT_ERR_INVALID, "the runtime is NULL");
    if (!wefti_gone(rt) && wefti_mode(rt) == WEFT_PROGRESS_THREAD)
        return wefti_fail(WEFT_ERR_STATE, "the runtime \"%s\" has a thread of its own; there is nothing to poll", rt->name);
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    int fd = rt->fabric->ops->event_fd(rt->fabric);
    wefti_part(rt);
    return fd >= 0 ? fd : (int)wefti_fail(WEFT_ERR_UNSUPPORTED, "this fabric has no event fd");
}

static weft_status_t arm(weft_runtime_t *rt)
{
    if (rt->armed)
        return WEFT_OK;
    if (!wefti_mpsc_empty(&rt->inbox) || !wefti_list_empty(&rt->ready) || wefti_timers_next(rt) == 0)
        return WEFT_ERR_AGAIN;
    atomic_store(&rt->sleeping, 1);
    if (!wefti_mpsc_empty(&rt->inbox))
        goto err_sleeping;
    if (rt->fabric->ops->arm(rt->fabric))
        goto err_sleeping;
    if (!wefti_mpsc_empty(&rt->inbox))
        goto err_armed; /* its wake-up may have come before arm, and be gone */
    rt->armed = 1;
    rt->armed_by = &wefti_driven; /* an address that identifies this thread */
    rt->leave_due |= WEFTI_DUE_POKE;
    return WEFT_OK;

err_armed:
    rt->fabric->ops->disarm(rt->fabric);
err_sleeping:
    atomic_store(&rt->sleeping, 0);
    rt->quiet = WEFTI_QUIET_MANY; /* whatever keeps the fabric from sleeping, let the next progress find it */
    return WEFT_ERR_AGAIN;
}

weft_status_t weft_runtime_arm(weft_runtime_t *rt)
{
    weft_runtime_t *was;
    if (!rt)
        return wefti_fail(WEFT_ERR_INVALID, "the runtime is NULL");
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (wefti_mode(rt) == WEFT_PROGRESS_THREAD)
        return wefti_fail(WEFT_ERR_STATE, "the runtime \"%s\" has a thread of its own", rt->name);
    if (wefti_driven == rt)
        return wefti_fail(WEFT_ERR_STATE, "the runtime \"%s\" cannot be armed inside its callback", rt->name);
    if (!wefti_enter(rt, &was))
        return WEFT_ERR_AGAIN; /* another thread drives it just now */
    weft_status_t st = arm(rt);
    wefti_leave_quietly(rt, was);
    return st;
}

uint64_t weft_runtime_next_timeout(weft_runtime_t *rt)
{
    weft_runtime_t *was;
    if (!rt || wefti_gone(rt) || !wefti_enter(rt, &was))
        return WEFT_FOREVER; /* the present driver runs the timers */
    uint64_t ns = wefti_timers_next(rt);
    wefti_leave_quietly(rt, was);
    return ns;
}
