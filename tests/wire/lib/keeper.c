/* tests/wire/lib/keeper.c - see keeper.h. */
#include "keeper.h"

#include <stdlib.h>

#include "must.h"

weft_status_t keeper_wait(keeper_t *k, weft_op_t *op)
{
    return pair_wait(&k->pair, op, 20);
}

weft_store_t *keeper_store(keeper_t *k, const weft_store_opts_t *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_store_open(k->pair.ep[1], opts, &op), "weft_store_open");
    must(keeper_wait(k, &op), "opening a store");
    return (weft_store_t *)op.buf;
}

void keeper_open(keeper_t *k, const pair_way_t *way, const weft_store_server_opts_t *opts, uint64_t lease_ns)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    weft_store_opts_t so = WEFT_STORE_OPTS_INIT;
    o.bytes = 64 << 20;
    so.lease_ns = lease_ns;
    pair_open(&k->pair, way, NULL);
    must(weft_store_serve(k->pair.rt[0], opts ? opts : &o, &k->server), "weft_store_serve");
    k->store = keeper_store(k, &so);
}

void keeper_close(keeper_t *k)
{
    weft_op_t bye = WEFT_OP_INIT, end = WEFT_OP_INIT;
    if (k->store) {
        must(weft_store_close(k->store, &bye), "weft_store_close");
        keeper_wait(k, &bye);
    }
    if (k->server) {
        must(weft_store_server_close(k->server, &end), "weft_store_server_close");
        must(keeper_wait(k, &end), "closing the server");
    }
    pair_close(&k->pair);
}

static weft_status_t come_to(weft_status_t st, weft_status_t *status_out, const char *what)
{
    if (!status_out)
        must(st, what);
    else
        *status_out = st;
    return st;
}

weft_block_t *keeper_alloc(keeper_t *k, weft_store_t *store, const char *name, uint64_t len, bool shared,
                           weft_status_t *status_out)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    o.len = len;
    o.name = name;
    o.shared = shared;
    must(weft_block_alloc(store, &o, &op), "weft_block_alloc");
    return come_to(keeper_wait(k, &op), status_out, "allocating a block") ? NULL : (weft_block_t *)op.buf;
}

weft_block_t *keeper_find(keeper_t *k, weft_store_t *store, const char *name, weft_status_t *status_out)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_block_open(store, name, &op), "weft_block_open");
    return come_to(keeper_wait(k, &op), status_out, "opening a block") ? NULL : (weft_block_t *)op.buf;
}

weft_status_t keeper_extend(keeper_t *k, weft_block_t *block, uint64_t len)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_block_extend(block, len, &op), "weft_block_extend");
    return keeper_wait(k, &op);
}

weft_status_t keeper_free(keeper_t *k, weft_block_t *block)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_block_free(block, &op), "weft_block_free");
    return keeper_wait(k, &op);
}

weft_status_t keeper_remove(keeper_t *k, weft_store_t *store, const char *name)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_store_remove(store, name, &op), "weft_store_remove");
    return keeper_wait(k, &op);
}

weft_status_t keeper_write(keeper_t *k, weft_remote_t *remote, uint64_t offset, const void *buf, size_t len)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_rma_write(remote, offset, buf, len, &op);
    return st ? st : keeper_wait(k, &op);
}

weft_status_t keeper_read(keeper_t *k, weft_remote_t *remote, uint64_t offset, void *buf, size_t len)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_rma_read(remote, offset, buf, len, &op);
    return st ? st : keeper_wait(k, &op);
}

void keeper_zero(keeper_t *k, weft_remote_t *remote, uint64_t offset, uint64_t len)
{
    uint8_t *bytes = (uint8_t *)malloc(len);
    must(keeper_read(k, remote, offset, bytes, len), "reading a block");
    for (uint64_t i = 0; i < len; i++) {
        if (bytes[i]) {
            fprintf(stderr, "byte %llu of fresh memory is %#x\n", (unsigned long long)(offset + i), bytes[i]);
            exit(1);
        }
    }
    free(bytes);
}

weft_store_stats_t keeper_stats(keeper_t *k)
{
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    must(weft_store_server_get_stats(k->server, &stats), "weft_store_server_get_stats");
    return stats;
}
