/* tests/matrix/lib/part_store.c - parts of a world: servers of blocks, stores, mirrors; memory elements, actions, transports. */
#include <string.h>

#include "part.h"

void server_open(side_t *s)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    o.bytes = 64 << 20;
    must(weft_store_serve(s->rt, &o, &s->server), "weft_store_serve");
}

void server_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_store_server_close(s->server, &op), "weft_store_server_close");
    world_wait(s->w, &op, "closing a server");
}

void store_open(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_store_open(s->ep, NULL, &op), "weft_store_open");
    world_wait(s->w, &op, "opening a store");
    s->store = (weft_store_t *)op.buf;
}

void store_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_store_close(s->store, &op), "weft_store_close");
    world_wait(s->w, &op, "closing a store");
}

void block_open(side_t *s)
{
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.len = 4096;
    o.max_len = BIG;
    o.name = "block";
    must(weft_block_alloc(s->store, &o, &op), "weft_block_alloc");
    world_wait(s->w, &op, "allocating a block");
    s->block = (weft_block_t *)op.buf;
}

void block_close(side_t *s)
{
    weft_block_drop(s->block);
}

void mirror_open(side_t *s)
{
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.name = "mirror";
    o.stores = &s->store;
    o.n_stores = 1;
    o.len = 8192;
    o.write = true;
    must(weft_mirror_open(s->rt, &o, &op), "weft_mirror_open");
    world_wait(s->w, &op, "opening a mirror");
    s->mirror = (weft_mirror_t *)op.buf;
}

void mirror_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_mirror_close(s->mirror, &op), "weft_mirror_close");
    world_wait(s->w, &op, "closing a mirror");
}

/* --- elements ------------------------------------------------------------------------------------------------------------- */

void memory_open(side_t *s)
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    size_t len = sizeof s->durl;
    o.name = "mem";
    o.bytes = BIG;
    o.spare = 1 << 20;
    o.unmapped = strcmp(s->w->transports, "shm") != 0;
    must(weft_memory_open(s->rt, &o, &s->memory), "weft_memory_open");
    must(weft_memory_durl(s->memory, s->durl, &len), "weft_memory_durl");
}

void memory_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_memory_close(s->memory, &op), "weft_memory_close");
    world_wait(s->w, &op, "closing a memory element");
}

void action_open(side_t *s)
{
    must(weft_action_open(s->rt, "matrix", NULL, &s->action), "weft_action_open");
    must(weft_action_add(s->action, "waiting;rdma_tcp;"), "weft_action_add");
    must(weft_action_get(s->action, "waiting", "rdma", &s->waiting), "weft_action_get");
}

void action_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_action_close(s->action, &op), "weft_action_close");
    world_wait(s->w, &op, "closing an action");
}

void transport_open(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_action_add(s->action, s->other->durl), "weft_action_add");
    must(weft_action_get(s->action, "mem", "rdma", &s->transport), "weft_action_get");
    must(weft_transport_ready(s->transport, &op), "weft_transport_ready");
    world_wait(s->w, &op, "connecting a transport");
    must(weft_transport_reg(s->transport, 4096, NULL), "weft_transport_reg");
    s->buffer = weft_transport_buffer(s->transport);
}

/* The transport goes with its action. */
void transport_close(side_t *s)
{
    weft_buffer_drop(s->buffer);
}

void served_open(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_action_add(s->action, "served;rdma_tcp_server;size,4096;"), "weft_action_add");
    must(weft_action_get(s->action, "served", "rdma_server", &s->served), "weft_action_get");
    must(weft_transport_ready(s->served, &op), "weft_transport_ready");
    world_wait(s->w, &op, "opening a transport that serves");
}
