/* tests/matrix/lib/part_core.c - parts of a world: listeners, endpoints, and what core makes. */
#include <string.h>

#include "part.h"

void listener_open(side_t *s)
{
    must(weft_listen(s->rt, "tcp://127.0.0.1:0", NULL, &s->listener), "weft_listen");
    snprintf(s->uri, sizeof s->uri, "%s", weft_listener_uri(s->listener));
}

void listener_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_listener_close(s->listener, &op), "weft_listener_close");
    world_wait(s->w, &op, "closing a listener");
}

/* One connection is both sides': it is made for the second. */
void ep_open(side_t *s)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    side_t *to = s->other;
    if (s < to)
        return;
    must(weft_listener_accept(to->listener, &accept), "weft_listener_accept");
    must(weft_ep_open(s->rt, to->uri, NULL, &connect, &s->ep), "weft_ep_open");
    world_wait(s->w, &connect, "connecting");
    world_wait(s->w, &accept, "accepting");
    to->ep = (weft_ep_t *)accept.buf;
    s->ep_id = weft_ep_id(s->ep);
    to->ep_id = weft_ep_id(to->ep);
}

void ep_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_ep_close(s->ep, &op), "weft_ep_close");
    world_wait(s->w, &op, "closing an endpoint");
}

void queue_open(side_t *s)
{
    must(weft_queue_new(s->rt, &s->queue), "weft_queue_new");
}

void queue_close(side_t *s)
{
    must(weft_queue_free(s->queue), "weft_queue_free");
}

void token_open(side_t *s)
{
    must(weft_token_new(s->rt, NULL, &s->token), "weft_token_new");
}

void token_close(side_t *s)
{
    weft_token_drop(s->token);
}

void timer_open(side_t *s)
{
    must(weft_timer_start(s->rt, 3600 * WEFT_SECOND, &s->timer), "weft_timer_start");
}

void timer_close(side_t *s)
{
    weft_op_cancel(&s->timer);
    world_end(s->w, &s->timer, "a cancelled timer");
}
