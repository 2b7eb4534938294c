/* tests/matrix/lib/row_store.c - rows of weft/store.h. */
#include "row.h"

/* --- the server ----------------------------------------------------------------------------------------------------------- */

ROW(weft_store_serve, ON_RUNTIME)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    weft_store_server_t *server;
    o.bytes = 1 << 20;
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE); /* the other thread's is there */
    if (turn_status(t, weft_store_serve(s->rt, &o, &server)))
        weft_store_server_close(server, NULL);
}

ROW(weft_store_server_close, NEEDS_SERVER)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_store_server_close(s->server, op), op);
}

ROW(weft_store_server_get_stats, NEEDS_SERVER | READS)
{
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    turn_status(t, weft_store_server_get_stats(s->server, &stats));
}

/* --- a client ------------------------------------------------------------------------------------------------------------- */

static void close_store(void *store)
{
    weft_store_close((weft_store_t *)store, NULL);
}

ROW(weft_store_open, NEEDS_SERVER | NEEDS_EP)
{
    weft_op_t *op = turn_op(t);
    if (turn_posted(t, weft_store_open(s->ep, NULL, op), op))
        turn_then(t, op, close_store);
}

ROW(weft_store_close, NEEDS_STORE)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_store_close(s->store, op), op);
}

ROW(weft_store_leave, NEEDS_STORE)
{
    weft_store_leave(s->store);
}

ROW(weft_store_renew, NEEDS_STORE)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_store_renew(s->store, op), op);
}

ROW(weft_store_get_info, NEEDS_STORE | READS)
{
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    turn_status(t, weft_store_get_info(s->store, &info));
}

ROW(weft_store_query, NEEDS_STORE)
{
    weft_op_t *op = turn_op(t);
    weft_store_stats_t *stats = (weft_store_stats_t *)turn_room(t, sizeof *stats);
    stats->size = sizeof *stats;
    turn_posted(t, weft_store_query(s->store, stats, op), op);
}

static void saw(const weft_block_info_t *info, void *user)
{
    turn_text((turn_t *)user, info->name);
}

ROW(weft_store_list, NEEDS_BLOCK)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_store_list(s->store, NULL, saw, t, op), op);
}

ROW(weft_store_remove, NEEDS_BLOCK)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_NOTFOUND); /* the first turn has removed it */
    turn_posted(t, weft_store_remove(s->store, "block", op), op);
}

/* --- blocks --------------------------------------------------------------------------------------------------------------- */

static void drop_block(void *block)
{
    weft_block_drop((weft_block_t *)block);
}

ROW(weft_block_alloc, NEEDS_STORE)
{
    weft_op_t *op = turn_op(t);
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    o.len = 64;
    if (turn_posted(t, weft_block_alloc(s->store, &o, op), op))
        turn_then(t, op, drop_block);
}

ROW(weft_block_open, NEEDS_BLOCK)
{
    weft_op_t *op = turn_op(t);
    if (turn_posted(t, weft_block_open(s->store, "block", op), op))
        turn_then(t, op, drop_block);
}

ROW(weft_block_remote, NEEDS_BLOCK)
{
    weft_block_remote(s->block);
}

ROW(weft_block_key, NEEDS_BLOCK | READS)
{
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t len = sizeof key;
    turn_status(t, weft_block_key(s->block, key, &len));
}

ROW(weft_block_extend, NEEDS_BLOCK)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE); /* another one is under way */
    turn_posted(t, weft_block_extend(s->block, 8192, op), op);
}

ROW(weft_block_share, NEEDS_BLOCK)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE); /* it is shared already */
    turn_posted(t, weft_block_share(s->block, "shared", true, op), op);
}

ROW(weft_block_free, NEEDS_BLOCK)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_block_free(s->block, op), op);
}

ROW(weft_block_drop, NEEDS_BLOCK)
{
    weft_block_drop(s->block);
}
