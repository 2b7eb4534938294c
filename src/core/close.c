/* core/close.c - the end of a runtime.
 *
 * Closing runs on the driver (the runtime's own thread where there is one): a thread that waits and drives is told to leave,
 * and waits without driving. From the first step on nothing can be posted. Each round forces the rooms down from the top,
 * completes what is core's own (timers, groups) with WEFT_ERR_CLOSED, and progresses, until every room says that the fabric
 * can touch nothing any more. If the fabric does not release everything within a bound, it is left with an error in the log: a
 * leak is better than a hang. All completions are delivered before anything is freed. When all is quiet the inbox is closed,
 * so that nothing can be handed in any more, and threads that are still inside are waited for. If one does not leave within the
 * bound, closing fails, and the next call goes on from there.
 *
 * In a forked child the fabric and what the rooms made of it belong to the parent: only memory of core is freed.
 *
 * Promise: every operation completes once, and no callback comes after weft_runtime_close() returned. tests/unit/core_close.c. */
#include <sched.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "core/local.h"

#define ROUND_NS WEFT_MILLISECOND
enum { VIRTUAL_ROUNDS = 4096 };
uint64_t wefti_close_bound = 10 * WEFT_SECOND;

/* Everything of core's own ends now. A group asks its members, which end with their rooms. */
static void end_own(weft_runtime_t *rt)
{
    wefti_list_t all;
    wefti_list_init(&all);
    wefti_list_splice(&all, &rt->own);
    for (wefti_list_t *l; (l = wefti_list_pop(&all));) {
        wefti_list_push_back(&rt->own, l); /* where its kind expects it */
        weft_op_t *op = wefti_op_of_link(l);
        wefti_opx(op)->kind->cancel(op, WEFT_ERR_CLOSED);
    }
}

static bool all_idle(weft_runtime_t *rt)
{
    for (int i = WEFTI_ROOM_N; i-- > 0;)
        if (rt->rooms[i] && rt->rooms[i]->idle && !rt->rooms[i]->idle(rt))
            return false;
    return wefti_list_empty(&rt->own) && wefti_list_empty(&rt->ready) && !atomic_load(&rt->handed_in) &&
           wefti_mpsc_close(&rt->inbox);
}

void wefti_shutdown(weft_runtime_t *rt)
{
    uint64_t bound = wefti_clock_ns() + wefti_close_bound;
    rt->closing = rt->ending = true;
    for (unsigned rounds = 0;; rounds++) {
        for (int i = WEFTI_ROOM_N; i-- > 0;)
            if (rt->rooms[i] && rt->rooms[i]->shutdown)
                rt->rooms[i]->shutdown(rt);
        end_own(rt);
        rt->quiet = WEFTI_QUIET_MANY;
        unsigned n = wefti_progress(rt);
        if (all_idle(rt))
            return;
        if (rt->virtual_time ? rounds > VIRTUAL_ROUNDS : wefti_clock_ns() > bound) {
            wefti_error("the runtime \"%s\" is closed although its fabric or an operation does not let go", rt->name);
            while (!wefti_mpsc_close(&rt->inbox))
                wefti_inbox_drain(rt);
            return;
        }
        if (!n && rounds > 64)
            wefti_sleep(rt, wefti_now(rt) + ROUND_NS);
    }
}

/* Become the driver of a runtime without a thread of its own. False: the present driver does not leave. */
static bool take_driver(weft_runtime_t *rt)
{
    uint64_t bound = wefti_clock_ns() + wefti_close_bound;
    while (atomic_exchange(&rt->driver, 1)) {
        if (wefti_clock_ns() > bound)
            return false;
        wefti_wake_all(rt);
        sched_yield();
    }
    return true;
}

/* Everything has ended: threads that waited are leaving, and none can enter. False: one does not leave. */
static bool wait_for_those_inside(weft_runtime_t *rt)
{
    uint64_t bound = wefti_clock_ns() + wefti_close_bound;
    atomic_store(&rt->ended, true);
    while (atomic_load(&rt->handle.inside)) {
        if (wefti_clock_ns() > bound)
            return false;
        wefti_wake_all(rt);
        sched_yield();
    }
    return true;
}

static weft_status_t end_all(weft_runtime_t *rt)
{
    if (rt->thread && wefti_thread_stop(rt, wefti_clock_ns() + wefti_close_bound))
        return WEFT_OK;
    if (rt->thread || !take_driver(rt)) {
        atomic_store(&rt->closing, false);
        if (!rt->thread)
            wefti_leave_slow(rt); /* what was left to us */
        return wefti_fail(WEFT_ERR_STATE, "a callback of the runtime \"%s\" runs on another thread, and does not return",
                          rt->name);
    }
    wefti_driven = rt;
    wefti_shutdown(rt);
    wefti_driven = NULL;
    return WEFT_OK;
}

static weft_status_t close_one(weft_runtime_t *rt)
{
    if (wefti_gone(rt)) {
        weft_status_t st = wefti_fail_gone(rt);
        if (st == WEFT_ERR_FORKED) {
            wefti_free(rt->thread);
            wefti_queues_cut(rt);
            atomic_store(&rt->handle.inside, 0); /* the parent's threads are not here */
            wefti_runtime_release(rt);
        }
        return st;
    }
    if (atomic_exchange(&rt->closing, true) && !atomic_exchange(&rt->given_up, false))
        return wefti_fail(WEFT_ERR_CLOSED, "another thread closes the runtime \"%s\"", rt->name);
    weft_status_t st = atomic_load(&rt->ended) ? WEFT_OK : end_all(rt);
    if (st)
        return st;
    wefti_queues_cut(rt);
    if (!wait_for_those_inside(rt)) {
        atomic_store(&rt->given_up, true);
        return wefti_fail(WEFT_ERR_STATE, "a thread has entered the runtime \"%s\" and does not leave it: weft_ext_leave()",
                          rt->name);
    }
    for (int i = WEFTI_ROOM_N; i-- > 0;)
        if (rt->rooms[i] && rt->rooms[i]->free)
            rt->rooms[i]->free(rt);
    rt->fabric->ops->close(rt->fabric);
    wefti_runtime_release(rt);
    return WEFT_OK;
}

/* The others first: what they still have to say to the head finds it. One that cannot be closed now leaves all as it is, but for
 * those that are. */
static weft_status_t close_others(weft_runtime_t *head)
{
    for (uint32_t k = wefti_n_shards(head); k-- > 1;) {
        weft_runtime_t *rt = wefti_shard(head, k);
        bool closed = atomic_load(&rt->fork_generation) == WEFTI_CLOSED_GENERATION || wefti_head(rt) != head;
        weft_status_t st = closed ? WEFT_OK : close_one(rt);
        if (st && st != WEFT_ERR_FORKED)
            return st;
    }
    return WEFT_OK;
}

weft_status_t weft_runtime_close(weft_runtime_t *rt)
{
    if (!rt)
        return WEFT_OK;
    if (wefti_driven && !wefti_gone(rt))
        return wefti_fail(WEFT_ERR_STATE, "a runtime cannot be closed inside a callback");
    if (!wefti_sharded(rt) || atomic_load(&rt->fork_generation) == WEFTI_CLOSED_GENERATION)
        return close_one(rt);
    if (atomic_exchange(&rt->closing_shards, true))
        return wefti_fail(WEFT_ERR_CLOSED, "another thread closes the runtime \"%s\"", rt->name);
    weft_status_t st = close_others(rt);
    if (!st)
        st = close_one(rt);
    atomic_store(&rt->closing_shards, false);
    return st;
}
