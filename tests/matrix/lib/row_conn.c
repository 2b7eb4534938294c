/* tests/matrix/lib/row_conn.c - rows of weft/conn.h. */
#include "row.h"

ROW(weft_listen, ON_RUNTIME)
{
    weft_listener_t *listener;
    if (turn_status(t, weft_listen(s->rt, "tcp://127.0.0.1:0", NULL, &listener)))
        weft_listener_close(listener, NULL);
}

ROW(weft_listener_uri, NEEDS_LISTENER)
{
    turn_text(t, weft_listener_uri(s->listener));
}

ROW(weft_listener_copy_uri, NEEDS_LISTENER)
{
    char uri[4096];
    size_t len = sizeof uri;
    if (turn_status(t, weft_listener_copy_uri(s->listener, uri, &len)))
        turn_text(t, uri);
}

ROW(weft_listener_port, NEEDS_LISTENER)
{
    weft_listener_port(s->listener);
}

ROW(weft_listener_accept, NEEDS_LISTENER)
{
    weft_op_t *op = turn_op(t);
    turn_lasts(t, weft_listener_accept(s->listener, op), op);
}

ROW(weft_listener_accept_wait, NEEDS_LISTENER | WAITS)
{
    weft_ep_t *ep;
    turn_status(t, weft_listener_accept_wait(s->listener, turn_patience(t), &ep));
}

ROW(weft_listener_close, NEEDS_LISTENER)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_listener_close(s->listener, op), op);
}

static void abort_ep(void *ep)
{
    weft_ep_abort((weft_ep_t *)ep, NULL);
}

ROW(weft_ep_open, NEEDS_LISTENER | ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    weft_ep_t *ep;
    if (turn_posted(t, weft_ep_open(s->rt, s->other->uri, NULL, op, &ep), op))
        turn_after(t, abort_ep, ep);
}

ROW(weft_ep_connect, NEEDS_LISTENER | ON_RUNTIME | WAITS)
{
    weft_ep_t *ep;
    if (turn_status(t, weft_ep_connect(s->rt, s->other->uri, NULL, turn_patience(t), &ep)))
        turn_after(t, abort_ep, ep);
}

ROW(weft_ep_close, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_ep_close(s->ep, op), op);
}

ROW(weft_ep_abort, NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_ep_abort(s->ep, op), op);
}

ROW(weft_ep_id, NEEDS_EP)
{
    weft_ep_id(s->ep);
}

ROW(weft_ep_find, NEEDS_EP)
{
    weft_ep_find(s->rt, s->ep_id);
}

ROW(weft_ep_get_state, NEEDS_EP)
{
    weft_ep_get_state(s->ep);
}

ROW(weft_ep_runtime, NEEDS_EP)
{
    weft_ep_runtime(s->ep);
}

ROW(weft_ep_get_info, NEEDS_EP | READS)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    if (turn_status(t, weft_ep_get_info(s->ep, &info))) {
        turn_text(t, info.peer_name);
        turn_text(t, info.peer_address);
    }
}

static void accepted(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)user;
    weft_ep_close(ep, NULL);
}

ROW(weft_runtime_address, ON_RUNTIME)
{
    weft_listen_opts_t o = WEFT_LISTEN_OPTS_INIT;
    char buf[4096];
    size_t len = sizeof buf;
    o.accept = accepted;
    turn_status(t, weft_runtime_address(s->rt, &o, buf, &len));
}
