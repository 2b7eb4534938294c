/* tests/matrix/lib/row_transport.c - rows of weft/element.h: transports and their buffers. */
#include "row.h"

ROW(weft_transport_state, NEEDS_ACTION)
{
    weft_status_t why;
    weft_transport_state(s->waiting, &why);
}

ROW(weft_transport_state_name, ON_NOTHING)
{
    turn_text(t, weft_transport_state_name(WEFT_TRANSPORT_READY));
}

ROW(weft_transport_ready, NEEDS_ACTION)
{
    weft_op_t *op = turn_op(t);
    turn_lasts(t, weft_transport_ready(s->waiting, op), op);
}

ROW(weft_transport_wait, NEEDS_ACTION | WAITS)
{
    turn_status(t, weft_transport_wait(s->waiting, turn_patience(t)));
}

/* --- buffers -------------------------------------------------------------------------------------------------------------- */

ROW(weft_buffer_hold, NEEDS_TRANSPORT | HELD)
{
    weft_buffer_hold(s->buffer);
    weft_buffer_drop(s->buffer);
}

ROW(weft_buffer_drop, NEEDS_TRANSPORT | HELD)
{
    if (!turn_on_closed(t))
        weft_buffer_hold(s->buffer);
    weft_buffer_drop(s->buffer);
}

ROW(weft_buffer_base, NEEDS_TRANSPORT | HELD)
{
    weft_buffer_base(s->buffer);
}

ROW(weft_buffer_len, NEEDS_TRANSPORT | HELD)
{
    weft_buffer_len(s->buffer);
}

ROW(weft_buffer_holds, NEEDS_TRANSPORT | HELD)
{
    weft_buffer_holds(s->buffer);
}

ROW(weft_transport_reg, NEEDS_ACTION)
{
    turn_status(t, weft_transport_reg(s->waiting, 64, NULL));
}

ROW(weft_transport_buf, NEEDS_TRANSPORT)
{
    size_t len;
    weft_transport_buf(s->transport, &len);
}

ROW(weft_transport_buffer, NEEDS_TRANSPORT)
{
    weft_buffer_drop(weft_transport_buffer(s->transport));
}

/* --- operations ----------------------------------------------------------------------------------------------------------- */

ROW(weft_transport_read, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_transport_read(s->transport, 64, 0, 0, op), op);
}

ROW(weft_transport_write, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_transport_write(s->transport, 64, 0, 0, op), op);
}

ROW(weft_transport_batch, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    weft_transport_item_t *item = (weft_transport_item_t *)turn_room(t, sizeof *item);
    *item = (weft_transport_item_t){.what = WEFT_RMA_DO_READ, .size = 64};
    turn_posted(t, weft_transport_batch(s->transport, item, 1, op), op);
}

ROW(weft_transport_atomic, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_transport_atomic(s->transport, WEFT_RMA_ADD, 0, 8, 1, 0, op), op);
}

ROW(weft_transport_fetch_add, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_transport_fetch_add(s->transport, 0, 1, op), op);
}

ROW(weft_transport_compare_swap, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_transport_compare_swap(s->transport, 0, 0, 1, op), op);
}

ROW(weft_transport_flush, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_transport_flush(s->transport, op), op);
}

static void drop_block(void *block)
{
    weft_block_drop((weft_block_t *)block);
}

ROW(weft_transport_alloc, NEEDS_TRANSPORT)
{
    weft_op_t *op = turn_op(t);
    if (turn_posted(t, weft_transport_alloc(s->transport, 64, NULL, op), op))
        turn_then(t, op, drop_block);
}

ROW(weft_transport_remote, NEEDS_TRANSPORT)
{
    weft_transport_remote(s->transport);
}

ROW(weft_transport_serve, NEEDS_SERVED)
{
    weft_op_t *op = turn_op(t);
    turn_lasts(t, weft_transport_serve(s->served, op), op);
}

ROW(weft_transport_memory, NEEDS_SERVED)
{
    weft_transport_memory(s->served);
}

ROW(weft_transport_get_stats, NEEDS_TRANSPORT | READS)
{
    weft_transport_stats_t stats = WEFT_TRANSPORT_STATS_INIT;
    turn_status(t, weft_transport_get_stats(s->transport, &stats));
}
