/* tests/wire/lib/elements.c - see elements.h. */
#include "elements.h"

#include "must.h"

void elements_memory(elements_t *e, uint64_t bytes, const weft_memory_opts_t *opts)
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    size_t len = sizeof e->durl;
    if (opts)
        o = *opts;
    o.name = o.name ? o.name : "mem";
    o.bytes = bytes;
    must(weft_memory_open(e->pair.rt[0], &o, &e->memory), "weft_memory_open");
    must(weft_memory_durl(e->memory, e->durl, &len), "weft_memory_durl");
}

void elements_memory_close(elements_t *e)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_memory_close(e->memory, &op), "weft_memory_close");
    e->memory = NULL;
    must(pair_wait(&e->pair, &op, 15), "closing the memory");
}

void elements_open(elements_t *e, const pair_way_t *way, uint64_t bytes, const weft_memory_opts_t *memory,
                   const weft_action_opts_t *action)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    memset(e, 0, sizeof *e);
    o.transports = way->transports;
    o.progress = way->mode;
    for (int i = 0; i < 2; i++)
        must(weft_runtime_open(&o, &e->pair.rt[i]), "weft_runtime_open");
    if (bytes)
        elements_memory(e, bytes, memory);
    must(weft_action_open(e->pair.rt[1], "test", action, &e->action), "weft_action_open");
}

void elements_close(elements_t *e)
{
    weft_op_t op = WEFT_OP_INIT;
    if (e->action) {
        must(weft_action_close(e->action, &op), "weft_action_close");
        must(pair_wait(&e->pair, &op, 15), "closing the action");
    }
    if (e->memory)
        elements_memory_close(e);
    for (int i = 0; i < 2; i++)
        must(weft_runtime_close(e->pair.rt[i]), "weft_runtime_close");
}

weft_transport_t *elements_get(elements_t *e, const char *name, const char *type)
{
    weft_transport_t *t;
    must(weft_action_get(e->action, name, type, &t), "weft_action_get");
    return t;
}

weft_transport_t *elements_add(elements_t *e, const char *name, size_t buffer)
{
    char durl[WEFT_DURL_MAX + 1];
    snprintf(durl, sizeof durl, "%s%s", name, strchr(e->durl, ';'));
    must(weft_action_add(e->action, durl), "weft_action_add");
    weft_transport_t *t = elements_get(e, name, "rdma");
    if (buffer)
        must(weft_transport_reg(t, buffer, NULL), "weft_transport_reg");
    return t;
}

weft_status_t elements_end(elements_t *e, weft_status_t posted)
{
    return posted ? posted : pair_wait(&e->pair, &e->op, 20);
}

weft_status_t elements_read(elements_t *e, weft_transport_t *t, size_t size, uint64_t addr, size_t offset)
{
    return elements_end(e, weft_transport_read(t, size, addr, offset, &e->op));
}

weft_status_t elements_write(elements_t *e, weft_transport_t *t, size_t size, uint64_t addr, size_t offset)
{
    return elements_end(e, weft_transport_write(t, size, addr, offset, &e->op));
}

weft_status_t elements_ready(elements_t *e, weft_transport_t *t)
{
    return elements_end(e, weft_transport_ready(t, &e->op));
}

weft_transport_stats_t elements_stats(weft_transport_t *t)
{
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    must(weft_transport_get_stats(t, &s), "weft_transport_get_stats");
    return s;
}

weft_memory_stats_t elements_memory_stats(elements_t *e)
{
    weft_memory_stats_t s = WEFT_MEMORY_STATS_INIT;
    must(weft_memory_get_stats(e->memory, &s), "weft_memory_get_stats");
    return s;
}
