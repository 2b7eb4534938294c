/* core/close.c - the end of a runtime.
 *
 * Closing runs on the driver (the runtime's own thread where there is one). From the first step on nothing can be posted. Each
 * round forces the rooms down from the top, completes what is core's own (timers, scope closes, groups) with WEFT_ERR_CLOSED, and
 * progresses, until every room says that the fabric can touch nothing any more. A fabric that does not let go within CLOSE_BOUND
 * is left with an error in the log: better a leak than a hang. All completions are delivered before anything is freed.
 *
 * In a forked child the fabric and what the rooms made of it belong to the parent: only memory of core is freed.
 *
 * Promise: every operation completes once, and no callback comes after weft_runtime_close() returned. tests/unit/core_close.c
 * holds us to it. */
#include <sched.h>
#include <sodium.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "core/local.h"

#define CLOSE_BOUND (10 * WEFT_SECOND)
#define ROUND_NS WEFT_MILLISECOND
enum { VIRTUAL_ROUNDS = 4096 };

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
    return wefti_list_empty(&rt->own) && wefti_list_empty(&rt->ready) && !atomic_load(&rt->inbox);
}

void wefti_shutdown(weft_runtime_t *rt)
{
    uint64_t bound = wefti_clock_ns() + CLOSE_BOUND;
    rt->closing = true;
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
            return;
        }
        if (!n && rounds > 64)
            wefti_sleep(rt, wefti_now(rt) + ROUND_NS);
    }
}

/* Memory of core, and nothing else. */
static void release(weft_runtime_t *rt)
{
    sodium_memzero(rt->key, sizeof rt->key);
    wefti_queues_cut(rt);
    wefti_heap_free(&rt->timers);
    wefti_config_free(&rt->config);
    wefti_free(rt);
}

weft_status_t weft_runtime_close(weft_runtime_t *rt)
{
    if (!rt)
        return WEFT_OK;
    if (wefti_forked(rt)) {
        wefti_free(rt->thread);
        release(rt);
        return wefti_fail_forked();
    }
    if (wefti_driven)
        return wefti_fail(WEFT_ERR_STATE, "a runtime cannot be closed inside a callback");
    if (rt->thread) {
        wefti_thread_stop(rt);
    } else {
        uint64_t bound = wefti_clock_ns() + CLOSE_BOUND;
        while (atomic_exchange(&rt->driver, 1)) {
            if (wefti_clock_ns() > bound)
                return wefti_fail(WEFT_ERR_STATE, "another thread waits on the runtime \"%s\", and did not stop", rt->name);
            sched_yield();
        }
        wefti_driven = rt;
        wefti_shutdown(rt);
        wefti_driven = NULL;
    }
    for (int i = WEFTI_ROOM_N; i-- > 0;)
        if (rt->rooms[i] && rt->rooms[i]->free)
            rt->rooms[i]->free(rt);
    rt->fabric->ops->close(rt->fabric);
    release(rt);
    return WEFT_OK;
}
