/* mem/copies.c - copies that do not wait: those of a runtime that are under way, and the looks at them.
 *
 * A copy is begun, added to and ended by its starter, and is then on a list. While the list is not empty, a timer that is due at
 * once makes every round of progress look at it, so that no call waits for a device and none sleeps over an end. A device whose
 * copies take long (a program's kernels come first) is looked at less often: after SOON the pause between two looks is an eighth
 * of the time that nothing ended, at most PAUSE_MAX.
 *
 * Promise: each copy that was begun is done once, never from inside the calls that start it, and only when nobody touches its
 * memory any more. tests/unit/mem_copies.c. */
#include "base/alloc.h"
#include "base/detail.h"
#include "mem/local.h"

#define SOON (2 * WEFT_MILLISECOND) /* also because many a foreign loop sleeps for a whole millisecond, if it sleeps */
#define PAUSE_MAX (200 * WEFT_MICROSECOND)
#define STUCK (5 * WEFT_SECOND)

static weft_status_t look_again(wefti_copies_t *all)
{
    weft_runtime_t *rt = all->rt;
    uint64_t idle = rt->now - all->last_end;
    if (idle < SOON) {
        weft_status_t st = wefti_timer_at(rt, &all->timer, rt->now);
        if (!st)
            rt->until_clock = 0;
        return st;
    }
    if (idle >= STUCK && !all->stuck && !wefti_list_empty(&all->under_way)) {
        const wefti_copy_t *first = wefti_container_of(wefti_list_first(&all->under_way), wefti_copy_t, link);
        all->stuck = true;
        if (first->ops)
            first->ops->copy_stuck(first);
    }
    return wefti_timer_at(rt, &all->timer, rt->now + (idle / 8 < PAUSE_MAX ? idle / 8 : PAUSE_MAX));
}

static weft_status_t look(wefti_copies_t *all, wefti_copy_t *copy)
{
    return copy->ops ? copy->ops->copy_look(all->state, copy, all->round) : WEFT_OK;
}

/* The first failure is what it ends with. The thread's last error is of this one now, and later of another. */
static void failed(wefti_copy_t *copy, weft_status_t st)
{
    if (st && !copy->fault.status)
        copy->fault = (wefti_fault_t){st, wefti_detail_last(st)};
}

static void on_look(wefti_timer_t *t)
{
    wefti_copies_t *all = wefti_container_of(t, wefti_copies_t, timer);
    wefti_list_t now;
    wefti_list_init(&now);
    wefti_list_splice(&now, &all->under_way);
    all->round++;
    for (wefti_list_t *l; (l = wefti_list_pop(&now));) {
        wefti_copy_t *copy = wefti_container_of(l, wefti_copy_t, link);
        weft_status_t st = look(all, copy);
        if (st == WEFT_ERR_AGAIN) {
            wefti_list_push_back(&all->under_way, l);
            continue;
        }
        all->last_end = all->rt->now;
        all->stuck = false;
        all->n--;
        failed(copy, st);
        wefti_fault_t was = wefti_fault(all->rt, copy->fault); /* so that the operation it was for says it */
        copy->done(copy, copy->fault.status);
        wefti_fault(all->rt, was);
    }
    if (!wefti_list_empty(&all->under_way) && look_again(all))
        wefti_error("mem: no memory for a timer: copies of a device go on when the next one is begun"); /* it was armed before */
}

void wefti_copies_init(wefti_copies_t *all, weft_runtime_t *rt)
{
    all->rt = rt;
    all->timer.fn = on_look;
    wefti_list_init(&all->under_way);
}

void wefti_copies_close(wefti_copies_t *all)
{
    if (all->ops)
        all->ops->close(all->state);
    all->ops = NULL;
}

/* Where copies of this kind are posted; NULL: they are made at once. */
static const wefti_device_ops_t *ready(wefti_copies_t *all, const weft_mem_kind_t *device)
{
    const wefti_device_ops_t *ops = device ? wefti_device_ops(device) : NULL;
    if (!ops || all->ops == ops)
        return ops;
    if (all->ops || ops->open(&all->state))
        return NULL; /* of two sorts of device one is copied at once */
    all->ops = ops;
    return ops;
}

weft_status_t wefti_copy_begin(weft_runtime_t *rt, wefti_copy_t *copy)
{
    wefti_copies_t *all = &wefti_mem_of(rt)->copies;
    /* The timer first: without one nobody would look. */
    if (!wefti_heap_linked(&all->timer.node) || all->last_end + SOON <= rt->now) {
        all->last_end = wefti_now(rt);
        weft_status_t st = look_again(all);
        if (st)
            return st;
    }
    all->last_end = rt->now;
    copy->ops = NULL;
    copy->queue = copy->event = NULL;
    copy->fault = (wefti_fault_t){WEFT_OK, 0};
    return WEFT_OK;
}

void wefti_copy_add(weft_runtime_t *rt, wefti_copy_t *copy, const weft_mem_kind_t *device, void *dst, const void *src, size_t n,
                    int way)
{
    wefti_copies_t *all = &wefti_mem_of(rt)->copies;
    if (copy->fault.status)
        return;
    const wefti_device_ops_t *ops = ready(all, device);
    if (!ops) {
        failed(copy, wefti_mem_move(device, dst, src, n));
        return;
    }
    copy->ops = ops;
    failed(copy, ops->copy_add(all->state, copy, dst, src, n, way));
}

void wefti_copy_await(weft_runtime_t *rt, wefti_copy_t *copy, const weft_mem_kind_t *device, void *event)
{
    copy->ops = ready(&wefti_mem_of(rt)->copies, device);
    copy->event = event;
}

void wefti_copy_end(weft_runtime_t *rt, wefti_copy_t *copy)
{
    wefti_copies_t *all = &wefti_mem_of(rt)->copies;
    bool waits = copy->event; /* for an event of somebody's: nothing is copied */
    if (copy->ops)
        failed(copy, copy->ops->copy_end(all->state, copy));
    all->n++;
    all->posted += copy->ops && !waits;
    wefti_list_push_back(&all->under_way, &copy->link);
}
