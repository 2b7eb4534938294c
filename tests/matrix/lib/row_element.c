/* tests/matrix/lib/row_element.c - rows of weft/element.h: durls, memory elements, actions. */
#include <stdio.h>

#include "row.h"

ROW(weft_durl_parse, ON_NOTHING)
{
    weft_durl_t *durl = (weft_durl_t *)turn_room(t, sizeof *durl);
    durl->size = sizeof *durl;
    turn_status(t, weft_durl_parse("mem;rdma_tcp;size,4096;", durl));
}

ROW(weft_durl_format, ON_NOTHING)
{
    weft_durl_t *durl = (weft_durl_t *)turn_room(t, sizeof *durl);
    char buf[256];
    size_t len = sizeof buf;
    durl->size = sizeof *durl;
    if (turn_status(t, weft_durl_parse("mem;rdma_tcp;size,4096;", durl)))
        turn_status(t, weft_durl_format(durl, buf, &len));
}

ROW(weft_impl_name, ON_NOTHING)
{
    turn_text(t, weft_impl_name(WEFT_IMPL_TCP, true));
}

/* --- memory elements ------------------------------------------------------------------------------------------------------ */

ROW(weft_memory_open, ON_RUNTIME)
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    weft_memory_t *memory;
    o.name = "row";
    o.bytes = 4096;
    if (turn_status(t, weft_memory_open(s->rt, &o, &memory)))
        weft_memory_close(memory, NULL);
}

ROW(weft_memory_close, NEEDS_MEMORY)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_memory_close(s->memory, op), op);
}

ROW(weft_memory_durl, NEEDS_MEMORY | READS)
{
    char *buf = (char *)turn_room(t, WEFT_DURL_MAX + 1);
    size_t len = WEFT_DURL_MAX + 1;
    turn_status(t, weft_memory_durl(s->memory, buf, &len));
}

ROW(weft_memory_uri, NEEDS_MEMORY)
{
    turn_text(t, weft_memory_uri(s->memory));
}

ROW(weft_memory_base, NEEDS_MEMORY)
{
    weft_memory_base(s->memory);
}

ROW(weft_memory_get_stats, NEEDS_MEMORY | READS)
{
    weft_memory_stats_t stats = WEFT_MEMORY_STATS_INIT;
    turn_status(t, weft_memory_get_stats(s->memory, &stats));
}

/* --- actions -------------------------------------------------------------------------------------------------------------- */

ROW(weft_action_open, ON_RUNTIME)
{
    weft_action_t *action;
    if (turn_status(t, weft_action_open(s->rt, "row", NULL, &action)))
        weft_action_close(action, NULL);
}

ROW(weft_action_close, NEEDS_ACTION)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_action_close(s->action, op), op);
}

ROW(weft_action_id, NEEDS_ACTION)
{
    turn_text(t, weft_action_id(s->action));
}

ROW(weft_action_add, NEEDS_ACTION)
{
    static _Atomic unsigned names;
    char durl[64];
    snprintf(durl, sizeof durl, "row%u;rdma_tcp;", atomic_fetch_add(&names, 1));
    turn_status(t, weft_action_add(s->action, durl));
}

ROW(weft_action_configure, NEEDS_ACTION | NEEDS_MEMORY)
{
    turn_status(t, weft_action_configure(s->action, "waiting", s->other->durl));
}

ROW(weft_action_get, NEEDS_ACTION)
{
    weft_transport_t *trans;
    turn_status(t, weft_action_get(s->action, "waiting", "rdma", &trans));
}

ROW(weft_action_release, NEEDS_ACTION)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_NOTFOUND); /* the first turn has let go of it */
    turn_status(t, weft_action_release(s->action, "waiting"));
}

ROW(weft_action_terminate, NEEDS_ACTION)
{
    weft_action_terminate(s->action);
}

ROW(weft_action_terminated, NEEDS_ACTION)
{
    weft_action_terminated(s->action);
}
