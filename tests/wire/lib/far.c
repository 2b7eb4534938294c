/* tests/wire/lib/far.c - see far.h. */
#include "far.h"

#include "must.h"
#include "ports.h"

const far_way_t far_ways[FAR_WAYS] = {
    {&pair_ways[0], WEFT_RMA_MAPPED},  {&pair_ways[0], WEFT_RMA_CHECKED}, {&pair_ways[1], WEFT_RMA_CHECKED},
    {&pair_ways[2], WEFT_RMA_MAPPED},  {&pair_ways[2], WEFT_RMA_CHECKED}, {&pair_ways[3], WEFT_RMA_CHECKED},
    {&pair_ways[4], WEFT_RMA_CHECKED}, {&pair_ways[4], WEFT_RMA_NATIVE},
};

far_t far;

unsigned far_ways_here(void)
{
    return ports_tls() ? FAR_WAYS - 2 : FAR_WAYS;
}

void far_open(const far_way_t *way, const weft_runtime_opts_t *opts)
{
    far.way = way;
    if (getenv("TEST_TELL")) /* for whoever looks for the way on which it fails */
        fprintf(stderr, "# %s, %s, driven by %s\n", way->pair->transports, weft_rma_path_name(way->path),
                way->pair->mode == WEFT_PROGRESS_CALLER ? "the caller" : "threads");
    weft_runtime_opts_t o = opts ? *opts : (weft_runtime_opts_t)WEFT_RUNTIME_OPTS_INIT;
    if (way->path == WEFT_RMA_NATIVE) {
        o.key = "of both, sixteen";
        o.key_len = 16;
        setenv("WEFT_TRUSTED", "emulated", 1);
    } else {
        unsetenv("WEFT_TRUSTED");
    }
    pair_open(&far.pair, way->pair, &o);
}

void far_close(void)
{
    pair_close(&far.pair);
}

weft_region_t *far_region_with(const weft_region_opts_t *opts)
{
    weft_region_t *region = NULL;
    must(weft_region_new(far.pair.rt[0], opts, &region), "weft_region_new");
    return region;
}

weft_region_t *far_region(uint64_t len)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.len = len;
    return far_region_with(&o);
}

weft_status_t far_end(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : pair_wait(&far.pair, op, 30);
}

void far_free(weft_region_t *region)
{
    weft_op_t op = WEFT_OP_INIT;
    must(far_end(weft_region_free(region, &op), &op), "weft_region_free");
}

void far_revoke(weft_region_t *region)
{
    weft_op_t op = WEFT_OP_INIT;
    must(far_end(weft_region_revoke(region, &op), &op), "weft_region_revoke");
}

weft_region_info_t far_region_info(const weft_region_t *region)
{
    weft_region_info_t info = WEFT_REGION_INFO_INIT;
    must(weft_region_get_info(region, &info), "weft_region_get_info");
    return info;
}

weft_remote_info_t far_info(const weft_remote_t *remote)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    must(weft_remote_get_info(remote, &info), "weft_remote_get_info");
    return info;
}

far_key_t far_key(weft_region_t *region, const weft_region_key_opts_t *opts)
{
    far_key_t t = {.len = WEFT_REGION_KEY_MAX};
    must(weft_region_key(region, opts, t.bytes, &t.len), "weft_region_key");
    return t;
}

static weft_status_t attached(weft_status_t posted, weft_op_t *op, weft_remote_t **remote_out)
{
    weft_status_t st = far_end(posted, op);
    if (!st) {
        *remote_out = (weft_remote_t *)op->buf;
        if (!*remote_out || far_info(*remote_out).len != op->len)
            must(WEFT_ERR_INVALID, "an attach without a remote, or with another length");
    }
    return st;
}

weft_status_t far_try(weft_ep_t *ep, const void *key, size_t len, weft_rma_path_t path, weft_remote_t **remote_out)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    o.path = path;
    return attached(weft_remote_attach(ep, key, len, &o, &op), &op, remote_out);
}

weft_status_t far_find(const char *name, weft_rma_path_t path, weft_remote_t **remote_out)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    o.path = path;
    return attached(weft_remote_find(far.pair.ep[1], name, &o, &op), &op, remote_out);
}

weft_remote_t *far_attach(weft_region_t *region, const weft_region_key_opts_t *opts)
{
    far_key_t t = far_key(region, opts);
    weft_remote_t *remote = NULL;
    must(far_try(far.pair.ep[1], t.bytes, t.len, far.way->path, &remote), "weft_remote_attach");
    if (far_info(remote).path != far.way->path)
        must(WEFT_ERR_UNSUPPORTED, "the path that was insisted on");
    return remote;
}

weft_status_t far_read(weft_remote_t *remote, uint64_t offset, void *buf, size_t len)
{
    far.op = (weft_op_t)WEFT_OP_INIT;
    return far_end(weft_rma_read(remote, offset, buf, len, &far.op), &far.op);
}

weft_status_t far_write(weft_remote_t *remote, uint64_t offset, const void *buf, size_t len)
{
    far.op = (weft_op_t)WEFT_OP_INIT;
    return far_end(weft_rma_write(remote, offset, buf, len, &far.op), &far.op);
}

weft_status_t far_atomic(weft_remote_t *remote, weft_rma_atomic_t which, uint64_t offset, size_t width, uint64_t operand,
                         uint64_t compare)
{
    far.op = (weft_op_t)WEFT_OP_INIT;
    return far_end(weft_rma_atomic(remote, which, offset, width, operand, compare, &far.op), &far.op);
}

weft_status_t far_flush(weft_remote_t *remote)
{
    far.op = (weft_op_t)WEFT_OP_INIT;
    return far_end(weft_rma_flush(remote, &far.op), &far.op);
}
