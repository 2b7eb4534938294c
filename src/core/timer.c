/* core/timer.c - time, deadlines of operations, timers of rooms, and the timer operation.
 *
 * All live in one heap. The lowest bit of a key says what the node is part of (0: wefti_timer_t, 1: an operation), at the
 * price of one nanosecond. A deadline only asks the operation to end; the room completes it when it can.
 *
 * Timers run in progress, after the fabric was asked: what has arrived counts before a deadline does. progress.c says when the
 * clock is read; a sleep reads it, too.
 *
 * Promise: a timer runs once per arming, not before its time. tests/unit/core_timer.c. */
#include "base/clock.h"
#include "core/local.h"
#include "core/shards.h"

enum { CLOCK_EVERY = 256, RUN_MOST = 4096 };

typedef struct delay {
    uint64_t ns;
    bool too_late; /* its deadline comes before its end */
} delay_t;

uint64_t wefti_now(weft_runtime_t *rt)
{
    return rt->now = rt->fabric->ops->now(rt->fabric);
}

uint64_t weft_now(weft_runtime_t *rt)
{
    uint64_t now = 0;
    if (!rt || !rt->virtual_time) /* the fabric would say the same, and may be gone */
        return wefti_clock_ns();
    if (!wefti_join(rt)) {
        now = rt->fabric->ops->now(rt->fabric);
        wefti_part(rt);
    }
    return now;
}

/* --- the heap --------------------------------------------------------------------------------------------------------------- */

static weft_status_t insert(weft_runtime_t *rt, wefti_heap_node_t *node, uint64_t key)
{
    node->key = key;
    weft_status_t st = wefti_heap_insert(&rt->timers, node);
    return st ? wefti_fail(st, "no memory for one more timer beside %zu", rt->timers.n) : WEFT_OK;
}

weft_status_t wefti_timer_at(weft_runtime_t *rt, wefti_timer_t *t, uint64_t when)
{
    wefti_heap_remove(&rt->timers, &t->node); /* makes space: re-arming never fails */
    return insert(rt, &t->node, when < UINT64_MAX - 1 ? (when + 1) & ~UINT64_C(1) : UINT64_MAX - 1);
}

void wefti_timer_stop(weft_runtime_t *rt, wefti_timer_t *t)
{
    wefti_heap_remove(&rt->timers, &t->node);
}

weft_status_t wefti_op_timer_after(weft_runtime_t *rt, weft_op_t *op, uint64_t ns)
{
    uint64_t now = wefti_now(rt);
    assert(!(wefti_opx(op)->flags & WEFTI_OPF_TIMED));
    wefti_opx(op)->timer.slot = 0; /* of one that was never posted it may be anything: WEFT_OP_FRESH */
    weft_status_t st = insert(rt, &wefti_opx(op)->timer, (ns < UINT64_MAX - now ? now + ns : UINT64_MAX) | 1);
    if (!st)
        wefti_opx(op)->flags |= WEFTI_OPF_TIMED;
    return st;
}

/* --- the timer operation ---------------------------------------------------------------------------------------------------- */

static weft_status_t delay_start(weft_op_t *op)
{
    weft_runtime_t *rt = wefti_opx(op)->rt;
    delay_t *d = wefti_op_scratch(op, delay_t);
    d->too_late = op->timeout_ns && op->timeout_ns < d->ns;
    weft_status_t st = wefti_op_timer_after(rt, op, d->too_late ? op->timeout_ns : d->ns);
    if (st)
        return st;
    wefti_list_push_back(&rt->own, &wefti_opx(op)->link);
    return wefti_op_track(op); /* the token; the deadline is there already, so it cannot fail */
}

static void delay_end(weft_op_t *op, weft_status_t st)
{
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, st);
}

static const wefti_op_kind_t delay_kind = {.name = "timer", .start = delay_start, .cancel = delay_end, .stops = true};

weft_status_t weft_timer_start(weft_runtime_t *rt, uint64_t delay_ns, weft_op_t *op)
{
    if (!rt || !op)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "the operation" : "the runtime");
    rt = wefti_shard_or(rt);
    weft_status_t st = wefti_op_prepare(rt, op, &delay_kind);
    if (st)
        return st;
    wefti_op_scratch(op, delay_t)->ns = delay_ns;
    return wefti_op_post(rt, op);
}

/* --- running -------------------------------------------------------------------------------------------------------------- */

static void op_due(weft_op_t *op)
{
    wefti_opx(op)->flags &= ~(uint32_t)WEFTI_OPF_TIMED;
    if (wefti_opx(op)->kind == &delay_kind)
        delay_end(op, wefti_op_scratch(op, delay_t)->too_late ? WEFT_ERR_TIMEOUT : WEFT_OK);
    else
        wefti_op_ask(op, WEFT_ERR_TIMEOUT);
}

unsigned wefti_timers_run(weft_runtime_t *rt)
{
    wefti_heap_node_t *node;
    unsigned n = 0;
    size_t most = rt->timers.n < RUN_MOST ? rt->timers.n : RUN_MOST; /* one that arms itself for now waits for the next round */
    uint64_t now = wefti_now(rt);
    rt->until_clock = rt->virtual_time ? 1 : CLOCK_EVERY;
    for (; n < most && (node = wefti_heap_min(&rt->timers)) && node->key <= now; n++) {
        bool is_op = node->key & 1;
        wefti_heap_remove(&rt->timers, node);
        if (is_op) {
            op_due(wefti_op_of(node, timer));
        } else {
            wefti_timer_t *t = wefti_container_of(node, wefti_timer_t, node);
            t->fn(t);
        }
    }
    return n;
}

uint64_t wefti_timers_next(weft_runtime_t *rt)
{
    wefti_heap_node_t *node = wefti_heap_min(&rt->timers);
    if (!node || node->key >= UINT64_MAX - 1)
        return WEFT_FOREVER;
    uint64_t now = wefti_now(rt);
    if (node->key > now)
        return node->key - now;
    rt->until_clock = 1; /* the next progress runs it */
    return 0;
}
