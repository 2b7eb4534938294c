/* tests/matrix/lib/row_msg.c - rows of weft/msg.h. */
#include "row.h"

ROW(weft_msg_send, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_msg_send(s->ep, "x", 1, 7, op), op);
}

ROW(weft_msg_send_with, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    weft_msg_send_opts_t o = WEFT_MSG_SEND_OPTS_INIT;
    o.buf = "x";
    o.len = 1;
    o.tag = 7;
    turn_posted(t, weft_msg_send_with(s->ep, &o, op), op);
}

ROW(weft_msg_recv, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    turn_lasts(t, weft_msg_recv(s->ep, turn_room(t, 64), 64, 1, WEFT_TAG_FULL, op), op);
}

ROW(weft_msg_send_wait, NEEDS_EP | WAITS)
{
    turn_status(t, weft_msg_send_wait(s->ep, "x", 1, 7, turn_patience(t)));
}

ROW(weft_msg_recv_wait, NEEDS_EP | WAITS)
{
    size_t len;
    turn_status(t, weft_msg_recv_wait(s->ep, turn_room(t, 64), 64, 1, WEFT_TAG_FULL, turn_patience(t), &len));
}

ROW(weft_msg_recv_any, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    turn_lasts(t, weft_msg_recv_any(s->rt, turn_room(t, 64), 64, 1, WEFT_TAG_FULL, op), op);
}

ROW(weft_msg_recv_iov, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    weft_iov_t *iov = (weft_iov_t *)turn_room(t, sizeof *iov);
    *iov = (weft_iov_t){turn_room(t, 64), 64};
    turn_lasts(t, weft_msg_recv_iov(s->rt, s->ep, iov, 1, 1, WEFT_TAG_FULL, op), op);
}

ROW(weft_msg_recv_alloc, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    turn_lasts(t, weft_msg_recv_alloc(s->rt, s->ep, 64, 1, WEFT_TAG_FULL, op), op);
}

ROW(weft_msg_probe, NEEDS_EP)
{
    weft_msg_envelope_t envelope;
    turn_allow(t, WEFT_ERR_NOTFOUND);
    turn_status(t, weft_msg_probe(s->rt, s->ep, 1, WEFT_TAG_FULL, &envelope));
}

ROW(weft_msg_claim, NEEDS_EP)
{
    weft_msg_envelope_t envelope;
    weft_msg_t *msg;
    turn_allow(t, WEFT_ERR_NOTFOUND);
    if (turn_status(t, weft_msg_claim(s->rt, s->ep, 1, WEFT_TAG_FULL, &envelope, &msg)))
        weft_msg_drop_claimed(msg);
}

ROW(weft_msg_recv_claimed, NEEDS_MSG | ONCE)
{
    weft_op_t *op = turn_op(t);
    weft_msg_t *msg = atomic_exchange(&s->msg, NULL);
    if (msg)
        turn_posted(t, weft_msg_recv_claimed(msg, turn_room(t, 64), 64, op), op);
}

ROW(weft_msg_drop_claimed, NEEDS_MSG | ONCE)
{
    weft_msg_drop_claimed(atomic_exchange(&s->msg, NULL));
}
