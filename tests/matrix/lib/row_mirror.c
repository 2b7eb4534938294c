/* tests/matrix/lib/row_mirror.c - rows of weft/mirror.h. */
#include <stdio.h>

#include "row.h"

static void close_mirror(void *mirror)
{
    weft_mirror_close((weft_mirror_t *)mirror, NULL);
}

ROW(weft_mirror_open, NEEDS_STORE)
{
    static _Atomic unsigned names;
    weft_op_t *op = turn_op(t);
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    char name[32];
    snprintf(name, sizeof name, "row-%u", atomic_fetch_add(&names, 1));
    o.name = name;
    o.stores = &s->store;
    o.n_stores = 1;
    o.len = 4096;
    o.write = true;
    if (turn_posted(t, weft_mirror_open(s->rt, &o, op), op))
        turn_then(t, op, close_mirror);
}

ROW(weft_mirror_close, NEEDS_MIRROR)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_mirror_close(s->mirror, op), op);
}

ROW(weft_mirror_read, NEEDS_MIRROR)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, AFTER_ENDPOINT, WEFT_ERR_PEER); /* no member is left */
    turn_posted(t, weft_mirror_read(s->mirror, 0, turn_room(t, 64), 64, op), op);
}

ROW(weft_mirror_write, NEEDS_MIRROR)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, AFTER_ENDPOINT, WEFT_ERR_PEER); /* no member is left */
    turn_posted(t, weft_mirror_write(s->mirror, 0, turn_room(t, 64), 64, op), op);
}

ROW(weft_mirror_add, NEEDS_MIRROR)
{
    weft_op_t *op = turn_op(t);
    turn_allow(t, WEFT_ERR_STATE); /* it is a member */
    turn_posted(t, weft_mirror_add(s->mirror, s->store, op), op);
}

ROW(weft_mirror_get_info, NEEDS_MIRROR | READS)
{
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    turn_status(t, weft_mirror_get_info(s->mirror, &info));
}
