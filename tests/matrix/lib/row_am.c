/* tests/matrix/lib/row_am.c - rows of weft/am.h. */
#include "row.h"

enum { PAYLOAD = 65536 };

ROW(weft_am_send, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_am_send(s->ep, 7, "h", 1, "x", 1, op), op);
}

ROW(weft_am_send_with, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
    o.id = 7;
    o.buf = "x";
    o.len = 1;
    o.urgent = true;
    turn_posted(t, weft_am_send_with(s->ep, &o, op), op);
}

static void handles(weft_am_t *am, void *user)
{
    (void)am;
    (void)user;
}

ROW(weft_am_handle, ON_RUNTIME)
{
    static _Atomic uint32_t ids = 1000;
    uint32_t id = atomic_fetch_add(&ids, 1);
    weft_op_t *set = turn_op(t), *taken = turn_op(t);
    if (turn_posted(t, weft_am_handle(s->rt, id, handles, NULL, set), set))
        turn_posted(t, weft_am_handle(s->rt, id, NULL, NULL, taken), taken);
}

ROW(weft_am_keep, NEEDS_AM | HELD)
{
    weft_am_keep(s->am);
}

ROW(weft_am_release, NEEDS_AM | ONCE)
{
    weft_am_release(atomic_exchange(&s->am, NULL));
}

/* What was pulled, viewed or rejected once is so. */
ROW(weft_am_pull, NEEDS_AM | HELD)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE);
    turn_posted(t, weft_am_pull(s->am, turn_room(t, PAYLOAD), PAYLOAD, op), op);
}

ROW(weft_am_pull_with, NEEDS_AM | HELD)
{
    weft_op_t *op = turn_op(t);
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    o.buf = turn_room(t, PAYLOAD);
    o.cap = PAYLOAD;
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE);
    turn_posted(t, weft_am_pull_with(s->am, &o, op), op);
}

ROW(weft_am_view, NEEDS_AM | HELD)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE);
    turn_posted(t, weft_am_view(s->am, op), op);
}

/* The payload is in host memory, so there is nothing that a GPU could be lent. */
ROW(weft_am_view_device, NEEDS_AM | HELD)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE);
    turn_allow(t, WEFT_ERR_UNSUPPORTED);
    turn_posted(t, weft_am_view_device(s->am, op), op);
}

ROW(weft_am_reject, NEEDS_AM | HELD)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE);
    turn_status(t, weft_am_reject(s->am, 42));
}

ROW(weft_am_recv, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
    o.ep = s->ep;
    o.id = 5;
    o.buf = turn_room(t, 64);
    o.cap = 64;
    turn_lasts(t, weft_am_recv(s->rt, &o, op), op);
}

ROW(weft_am_take, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    turn_lasts(t, weft_am_take(s->rt, s->ep, 5, op), op);
}
