/* tests/matrix/lib/row_rma.c - rows of weft/rma.h. */
#include <stdio.h>

#include "row.h"

/* --- regions -------------------------------------------------------------------------------------------------------------- */

ROW(weft_region_new, ON_RUNTIME)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_region_t *region;
    o.len = 64;
    if (turn_status(t, weft_region_new(s->rt, &o, &region))) {
        weft_op_t *op = turn_op(t); /* the turn waits for it: whoever makes regions in a loop has them one at a time */
        turn_allow(t, WEFT_ERR_CLOSED);
        turn_posted(t, weft_region_free(region, op), op);
    }
}

ROW(weft_region_free, NEEDS_REGION)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_region_free(s->region, op), op);
}

ROW(weft_region_revoke, NEEDS_REMOTE)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_region_revoke(s->region, op), op);
}

ROW(weft_region_name, NEEDS_REGION)
{
    char name[32];
    static _Atomic unsigned turns;
    snprintf(name, sizeof name, "name-%u", atomic_fetch_add(&turns, 1));
    turn_status(t, weft_region_name(s->region, name));
}

ROW(weft_region_until, NEEDS_REGION)
{
    turn_allow(t, WEFT_ERR_STATE); /* peers map it */
    turn_status(t, weft_region_until(s->region, 0));
}

ROW(weft_region_extend, NEEDS_REGION)
{
    turn_status(t, weft_region_extend(s->region, 100000));
}

ROW(weft_region_keep, NEEDS_REGION)
{
    void *map;
    size_t n;
    turn_status(t, weft_region_keep(s->region, &map, &n));
}

ROW(weft_region_base, NEEDS_REGION)
{
    weft_region_base(s->region);
}

ROW(weft_region_get_info, NEEDS_REGION | READS)
{
    weft_region_info_t info = WEFT_REGION_INFO_INIT;
    turn_status(t, weft_region_get_info(s->region, &info));
}

ROW(weft_region_key, NEEDS_REGION | READS)
{
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t len = sizeof key;
    turn_status(t, weft_region_key(s->region, NULL, key, &len));
}

ROW(weft_region_key_read, NEEDS_REGION | ON_NOTHING)
{
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    turn_status(t, weft_region_key_read(s->region_key, s->region_key_len, &info));
}

/* --- remotes -------------------------------------------------------------------------------------------------------------- */

static void drop_remote(void *remote)
{
    weft_remote_drop((weft_remote_t *)remote);
}

ROW(weft_remote_attach, NEEDS_EP | NEEDS_REGION)
{
    weft_op_t *op = turn_op(t);
    if (turn_posted(t, weft_remote_attach(s->ep, s->other->region_key, s->other->region_key_len, NULL, op), op))
        turn_then(t, op, drop_remote);
}

ROW(weft_remote_find, NEEDS_EP | NEEDS_REGION)
{
    weft_op_t *op = turn_op(t);
    if (turn_posted(t, weft_remote_find(s->ep, "region", NULL, op), op))
        turn_then(t, op, drop_remote);
}

ROW(weft_remote_drop, NEEDS_REMOTE)
{
    weft_remote_drop(s->remote);
}

ROW(weft_remote_get_info, NEEDS_REMOTE | READS)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    turn_status(t, weft_remote_get_info(s->remote, &info));
}

ROW(weft_rma_path_name, ON_NOTHING)
{
    turn_text(t, weft_rma_path_name(WEFT_RMA_MAPPED));
}

/* --- operations ----------------------------------------------------------------------------------------------------------- */

ROW(weft_rma_read, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_rma_read(s->remote, 0, turn_room(t, 64), 64, op), op);
}

ROW(weft_rma_write, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_rma_write(s->remote, 0, turn_room(t, 64), 64, op), op);
}

ROW(weft_rma_read_wait, NEEDS_REMOTE | WAITS)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    turn_status(t, weft_rma_read_wait(s->remote, 0, turn_room(t, 64), 64, turn_patience(t)));
}

ROW(weft_rma_write_wait, NEEDS_REMOTE | WAITS)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    turn_status(t, weft_rma_write_wait(s->remote, 0, turn_room(t, 64), 64, turn_patience(t)));
}

static weft_iov_t *pieces(turn_t *t)
{
    weft_iov_t *iov = (weft_iov_t *)turn_room(t, 2 * sizeof *iov);
    iov[0] = (weft_iov_t){turn_room(t, 32), 32};
    iov[1] = (weft_iov_t){turn_room(t, 32), 32};
    return iov;
}

ROW(weft_rma_readv, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_rma_readv(s->remote, 0, pieces(t), 2, op), op);
}

ROW(weft_rma_writev, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_rma_writev(s->remote, 0, pieces(t), 2, op), op);
}

ROW(weft_rma_write_notify, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_rma_write_notify(s->remote, 0, turn_room(t, 64), 64, 1, op), op);
}

ROW(weft_rma_atomic, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_rma_atomic(s->remote, WEFT_RMA_ADD, 0, 8, 1, 0, op), op);
}

ROW(weft_rma_batch, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    weft_rma_item_t *item = (weft_rma_item_t *)turn_room(t, sizeof *item);
    *item = (weft_rma_item_t){.remote = s->remote, .what = WEFT_RMA_DO_READ, .buf = turn_room(t, 64), .len = 64};
    turn_posted(t, weft_rma_batch(item, 1, op), op);
}

ROW(weft_rma_flush, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_rma_flush(s->remote, op), op);
}

ROW(weft_rma_fence, NEEDS_REMOTE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STALE); /* the owner noticed, and took it back */
    turn_status(t, weft_rma_fence(s->remote));
}
