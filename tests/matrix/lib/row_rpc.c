/* tests/matrix/lib/row_rpc.c - rows of weft/rpc.h: clients, methods, calls. */
#include "row.h"

ROW(weft_code_name, ON_NOTHING)
{
    turn_text(t, weft_code_name(WEFT_CODE_NOT_FOUND));
}

ROW(weft_reply_release, NEEDS_CLIENT | ON_NOTHING)
{
    weft_reply_t empty = WEFT_REPLY_INIT;
    weft_reply_release(atomic_exchange(&s->reply_released, true) ? &empty : &s->reply);
}

/* --- clients -------------------------------------------------------------------------------------------------------------- */

/* With an operation, which the turn waits for: whoever makes them in a loop has them one at a time. */
static void close_it(turn_t *t, weft_client_t *client)
{
    weft_op_t *op = turn_op(t);
    turn_allow(t, WEFT_ERR_CLOSED);
    turn_posted(t, weft_client_close(client, op), op);
}

ROW(weft_client_open, NEEDS_LISTENER | ON_RUNTIME)
{
    weft_client_t *client;
    if (turn_status(t, weft_client_open(s->rt, s->other->uri, NULL, &client)))
        close_it(t, client);
}

ROW(weft_client_on, NEEDS_EP)
{
    weft_client_t *client;
    if (turn_status(t, weft_client_on(s->ep, NULL, &client)))
        close_it(t, client);
}

ROW(weft_client_close, NEEDS_CLIENT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_client_close(s->client, op), op);
}

ROW(weft_client_get_stats, NEEDS_CLIENT | READS)
{
    weft_client_stats_t stats = WEFT_CLIENT_STATS_INIT;
    turn_status(t, weft_client_get_stats(s->client, &stats));
}

ROW(weft_client_method, NEEDS_CLIENT)
{
    weft_method_t *method;
    turn_status(t, weft_client_method(s->client, "add(a: i32, b: i32) -> i32", &method));
}

ROW(weft_method_check, NEEDS_CLIENT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_method_check(s->add, NULL, op), op);
}

ROW(weft_method_sig, NEEDS_CLIENT)
{
    weft_method_sig(s->add);
}

/* --- calls ---------------------------------------------------------------------------------------------------------------- */

static void release_reply(void *reply)
{
    weft_reply_release((weft_reply_t *)reply);
}

static weft_reply_t *reply(turn_t *t)
{
    weft_reply_t *r = (weft_reply_t *)turn_room(t, sizeof *r);
    turn_after(t, release_reply, r);
    return r;
}

static weft_value_t *numbers(turn_t *t)
{
    weft_value_t *args = (weft_value_t *)turn_room(t, 2 * sizeof *args);
    args[0] = weft_i32(25);
    args[1] = weft_i32(17);
    return args;
}

ROW(weft_call, NEEDS_CLIENT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_call(s->add, numbers(t), 2, reply(t), op), op);
}

ROW(weft_call_with, NEEDS_CLIENT)
{
    weft_op_t *op = turn_op(t);
    weft_call_opts_t *o = (weft_call_opts_t *)turn_room(t, sizeof *o);
    o->size = sizeof *o;
    o->once = true;
    turn_posted(t, weft_call_with(s->add, numbers(t), 2, o, reply(t), op), op);
}

/* A function that does not answer. */
ROW(weft_call_wait, NEEDS_REQUEST | WAITS)
{
    static const uint8_t byte;
    weft_value_t arg = weft_vector(WEFT_T_U8, &byte, 1);
    turn_status(t, weft_call_wait(s->hold, &arg, 1, NULL, turn_patience(t), reply(t)));
}

ROW(weft_call_many, NEEDS_CLIENT)
{
    weft_op_t *op = turn_op(t);
    weft_call_item_t *item = (weft_call_item_t *)turn_room(t, sizeof *item);
    weft_status_t why = WEFT_OK;
    *item = (weft_call_item_t){numbers(t), 2, reply(t), op};
    if (weft_call_many(s->add, item, 1, &why) == 1)
        turn_posted(t, WEFT_OK, op);
    else
        turn_status(t, why);
}

/* --- streams -------------------------------------------------------------------------------------------------------------- */

static void release_stream(void *stream)
{
    weft_stream_release((weft_stream_t *)stream);
}

ROW(weft_item_release, NEEDS_STREAM | ON_NOTHING)
{
    weft_item_t empty = WEFT_ITEM_INIT;
    weft_item_release(atomic_exchange(&s->item_released, true) ? &empty : &s->item);
}

ROW(weft_call_stream, NEEDS_CLIENT)
{
    weft_op_t *op = turn_op(t);
    weft_stream_t *stream;
    if (turn_lasts(t, weft_call_stream(s->talk, NULL, 0, NULL, reply(t), op, &stream), op))
        turn_after(t, release_stream, stream);
}

ROW(weft_stream_send, NEEDS_STREAM | HELD)
{
    weft_op_t *op = turn_op(t);
    weft_value_t text = weft_text("line", 4);
    turn_posted(t, weft_stream_send(s->stream, &text, op), op);
}

ROW(weft_stream_end, NEEDS_STREAM | HELD)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE); /* it ends once */
    turn_posted(t, weft_stream_end(s->stream, op), op);
}

static void release_item(void *item)
{
    weft_item_release((weft_item_t *)item);
}

ROW(weft_stream_recv, NEEDS_STREAM | HELD)
{
    weft_op_t *op = turn_op(t);
    weft_item_t *item = (weft_item_t *)turn_room(t, sizeof *item);
    turn_after(t, release_item, item);
    turn_posted(t, weft_stream_recv(s->stream, item, op), op);
}

ROW(weft_stream_release, NEEDS_STREAM | ONCE)
{
    weft_stream_release(atomic_exchange(&s->stream, NULL));
}
