/* tests/matrix/lib/row_op.c - rows of weft/op.h. */
#include "row.h"

/* --- operations ----------------------------------------------------------------------------------------------------------- */

ROW(weft_op_done, NEEDS_TIMER)
{
    weft_op_done(&s->timer);
}

ROW(weft_op_cancel, NEEDS_TIMER)
{
    weft_op_cancel(&s->timer);
}

ROW(weft_op_error, NEEDS_TIMER)
{
    weft_op_error(&s->timer);
}

static void told(weft_op_t *op, void *user)
{
    (void)op;
    (void)user;
}

ROW(weft_op_attach, ON_RUNTIME)
{
    weft_op_t *op = turn_timer(t, 0);
    turn_allow(t, WEFT_ERR_DONE);
    if (op)
        turn_status(t, weft_op_attach(op, told));
}

ROW(weft_op_wait, NEEDS_TIMER | WAITS)
{
    turn_allow_in(t, AFTER_OBJECT, WEFT_ERR_CANCELLED); /* the timer was */
    turn_status(t, weft_op_wait(&s->timer, turn_patience(t)));
}

ROW(weft_op_wait_any, NEEDS_TIMER | WAITS)
{
    weft_op_t *ops[] = {NULL, &s->timer};
    size_t index;
    turn_allow_in(t, AFTER_OBJECT, WEFT_OK); /* it is complete, however it ended */
    turn_allow_in(t, AFTER_RUNTIME, WEFT_OK);
    turn_status(t, weft_op_wait_any(ops, 2, turn_patience(t), &index));
}

ROW(weft_op_wait_all, NEEDS_TIMER | WAITS)
{
    weft_op_t *ops[] = {NULL, &s->timer};
    turn_allow_in(t, AFTER_OBJECT, WEFT_ERR_CANCELLED);
    turn_status(t, weft_op_wait_all(ops, 2, turn_patience(t)));
}

ROW(weft_timer_start, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_timer_start(s->rt, 0, op), op);
}

ROW(weft_group_start, ON_RUNTIME)
{
    weft_op_t **members = (weft_op_t **)turn_room(t, sizeof *members), *group = turn_op(t);
    members[0] = turn_timer(t, 0);
    if (!members[0])
        members[0] = turn_op(t);
    turn_posted(t, weft_group_start(s->rt, WEFT_GROUP_ALL, members, 1, group), group);
}

/* --- tokens --------------------------------------------------------------------------------------------------------------- */

ROW(weft_token_new, ON_RUNTIME)
{
    weft_token_t *token;
    if (turn_status(t, weft_token_new(s->rt, NULL, &token)))
        weft_token_drop(token);
}

ROW(weft_token_hold, NEEDS_TOKEN | HELD)
{
    weft_token_hold(s->token);
    weft_token_drop(s->token);
}

ROW(weft_token_drop, NEEDS_TOKEN | HELD)
{
    if (!turn_on_closed(t))
        weft_token_hold(s->token);
    weft_token_drop(s->token);
}

ROW(weft_token_cancel, NEEDS_TOKEN | HELD)
{
    weft_token_cancel(s->token);
}

ROW(weft_token_cancelled, NEEDS_TOKEN | HELD)
{
    weft_token_cancelled(s->token);
}

/* --- queues, buffers ------------------------------------------------------------------------------------------------------ */

ROW(weft_queue_new, ON_RUNTIME)
{
    weft_queue_t *queue;
    if (turn_status(t, weft_queue_new(s->rt, &queue)))
        weft_queue_free(queue);
}

ROW(weft_queue_pop, NEEDS_QUEUE | WAITS)
{
    weft_op_t *op;
    weft_queue_pop(s->queue, &op, 1, turn_patience(t));
}

ROW(weft_queue_fd, NEEDS_QUEUE)
{
    int fd = weft_queue_fd(s->queue);
    if (fd < 0)
        turn_status(t, (weft_status_t)fd);
}

ROW(weft_queue_free, NEEDS_QUEUE | FREES)
{
    turn_status(t, weft_queue_free(s->queue));
}

ROW(weft_buf_free, NEEDS_MSG | ONCE)
{
    weft_buf_free(atomic_exchange(&s->made, NULL));
}
