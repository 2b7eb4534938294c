/* tests/matrix/lib/row_extend.c - rows of weft/extend.h. */
#include <stdlib.h>
#include <weft/extend.h>

#include "row.h"

static const weft_ext_t ext = {.size = sizeof ext, .name = "a row", .state_size = 8, .ep_state_size = 8};

/* --- extensions and runtimes ---------------------------------------------------------------------------------------------- */

ROW(weft_ext_register, ON_NOTHING)
{
    turn_status(t, weft_ext_register(&ext));
}

ROW(weft_ext_state, ON_RUNTIME)
{
    if (weft_ext_enter(s->rt))
        return;
    weft_ext_state(s->rt, &ext);
    weft_ext_leave(s->rt);
}

ROW(weft_ext_ep_state, NEEDS_EP)
{
    weft_ext_ep_state(s->ep, &ext);
}

ROW(weft_ext_enter, ON_RUNTIME)
{
    if (turn_status(t, weft_ext_enter(s->rt)))
        weft_ext_leave(s->rt);
}

ROW(weft_ext_leave, ON_RUNTIME)
{
    if (turn_status(t, weft_ext_enter(s->rt)))
        weft_ext_leave(s->rt);
}

ROW(weft_ext_check, ON_RUNTIME)
{
    turn_status(t, weft_ext_check(s->rt));
}

ROW(weft_ext_closing, ON_RUNTIME)
{
    weft_ext_closing(s->rt);
}

ROW(weft_ext_head, ON_RUNTIME)
{
    weft_ext_head(s->rt);
}

ROW(weft_ext_ep_shard, NEEDS_EP)
{
    weft_ext_ep_shard(s->ep);
}

ROW(weft_ext_use, ON_RUNTIME)
{
    weft_ext_use(s->rt);
}

ROW(weft_ext_random, ON_RUNTIME)
{
    uint8_t bytes[8];
    weft_ext_random(s->rt, bytes, sizeof bytes);
}

ROW(weft_ext_may_wait, ON_NOTHING)
{
    turn_allow_in(t, FROM_ITS_OWN, WEFT_ERR_STATE);
    turn_allow_in(t, FROM_ANOTHERS, WEFT_ERR_STATE);
    turn_status(t, weft_ext_may_wait());
}

/* --- on the driver -------------------------------------------------------------------------------------------------------- */

static void called(weft_ext_call_t *call)
{
    free(call);
}

ROW(weft_ext_call, ON_RUNTIME)
{
    weft_ext_call_t *call = (weft_ext_call_t *)calloc(1, sizeof *call);
    call->fn = called;
    if (!turn_status(t, weft_ext_call(s->rt, call)))
        free(call);
}

static void rang(weft_ext_timer_t *timer)
{
    (void)timer;
}

ROW(weft_ext_timer_set, ON_RUNTIME)
{
    weft_ext_timer_t timer = {.fn = rang};
    turn_allow(t, WEFT_ERR_STATE);
    if (turn_status(t, weft_ext_timer_set(s->rt, &timer, 0)))
        weft_ext_timer_stop(s->rt, &timer);
}

ROW(weft_ext_timer_stop, ON_RUNTIME)
{
    weft_ext_timer_t timer = {.fn = rang};
    weft_ext_timer_stop(s->rt, &timer);
}

/* --- operations ----------------------------------------------------------------------------------------------------------- */

static weft_status_t start(weft_op_t *op)
{
    weft_ext_op_complete(op, WEFT_OK, 0);
    return WEFT_OK;
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    weft_ext_op_complete(op, why, 0);
}

static const weft_op_kind_t kind = {.name = "row", .start = start, .cancel = cancel};

ROW(weft_ext_op_prepare, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    if (turn_status(t, weft_ext_op_prepare(s->rt, op, &kind)))
        weft_ext_op_unprepare(op);
}

ROW(weft_ext_op_start, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    if (turn_status(t, weft_ext_op_prepare(s->rt, op, &kind)))
        turn_posted(t, weft_ext_op_start(op), op);
}

ROW(weft_ext_op_unprepare, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    if (turn_status(t, weft_ext_op_prepare(s->rt, op, &kind)))
        weft_ext_op_unprepare(op);
}

ROW(weft_ext_op_scratch, ON_NOTHING)
{
    weft_ext_op_scratch(turn_op(t));
}

ROW(weft_ext_op_track, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    turn_allow(t, WEFT_ERR_STATE);
    if (!turn_status(t, weft_ext_op_prepare(s->rt, op, &kind)))
        return;
    turn_status(t, weft_ext_op_track(op));
    weft_ext_op_unprepare(op);
}

ROW(weft_ext_op_may_start, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    turn_allow(t, WEFT_ERR_STATE);
    if (!turn_status(t, weft_ext_op_prepare(s->rt, op, &kind)))
        return;
    turn_status(t, weft_ext_op_may_start(op));
    weft_ext_op_unprepare(op);
}

ROW(weft_ext_op_complete, ON_RUNTIME)
{
    weft_ext_op_complete(turn_op(t), WEFT_OK, 0); /* it was not started: nothing happens */
}

ROW(weft_ext_op_plain, ON_RUNTIME)
{
    weft_ext_op_plain(s->rt, turn_op(t));
}

ROW(weft_ext_op_done, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    if (weft_ext_op_plain(s->rt, op))
        weft_ext_op_done(s->rt, op, WEFT_OK);
}

/* --- sentences and endpoints ---------------------------------------------------------------------------------------------- */

ROW(weft_ext_sentence, NEEDS_EP)
{
    weft_ext_sentence(s->ep, "the %s", "row");
    weft_ext_sentence(NULL, "no %s", "row");
}

ROW(weft_ext_op_sentence, NEEDS_TIMER)
{
    weft_ext_op_sentence(&s->timer);
}

ROW(weft_ext_ep_usable, NEEDS_EP)
{
    turn_allow(t, WEFT_ERR_STATE);
    turn_status(t, weft_ext_ep_usable(s->ep));
}

ROW(weft_ext_ep_break, NEEDS_EP)
{
    weft_ext_ep_break(s->ep, WEFT_ERR_NOMEM, "the row wants it so");
}
