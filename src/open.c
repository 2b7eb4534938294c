/* open.c - the one file that knows all rooms: it puts a runtime together from the bottom up. */
#include "open.h"

#include "am/am.h"
#include "conn/conn.h"
#include "extend/extend.h"
#include "mem/mem.h"
#include "msg/msg.h"
#include "registry/registry.h"
#include "rma/rma.h"
#include "rpc/rpc.h"

static weft_status_t attach_rooms(weft_runtime_t *rt)
{
    weft_status_t st = wefti_mem_attach(rt);
    if (!st)
        st = wefti_conn_attach(rt);
    if (!st)
        st = wefti_msg_attach(rt);
    if (!st)
        st = wefti_am_attach(rt);
    if (!st)
        st = wefti_rma_attach(rt);
    if (!st)
        st = wefti_registry_attach(rt);
    if (!st)
        st = wefti_rpc_attach(rt);
    if (!st)
        st = wefti_extend_attach(rt);
    return st;
}

/* This may be a callback of another runtime. */
static void close_here(weft_runtime_t *rt)
{
    weft_runtime_t *was = wefti_driven;
    wefti_driven = NULL;
    weft_runtime_close(rt); /* with the rooms and the shards it has */
    wefti_driven = was;
}

/* first: of several shards. */
static weft_status_t open_head(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric, bool first,
                               weft_runtime_t **rt_out)
{
    weft_runtime_t *rt;
    weft_status_t st = wefti_runtime_open_on(opts, config, fabric, &rt);
    if (st)
        return st;
    st = attach_rooms(rt);
    if (!st && !first)
        st = wefti_extend_open(rt);
    if (!st)
        st = wefti_runtime_start(rt);
    if (st) {
        close_here(rt);
        return st;
    }
    *rt_out = rt;
    return WEFT_OK;
}

weft_status_t wefti_open_on_fabric(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                   weft_runtime_t **rt_out)
{
    return open_head(opts, config, fabric, false, rt_out);
}

weft_status_t wefti_open_shard_on_fabric(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                         weft_runtime_t *head, uint32_t k)
{
    weft_runtime_t *rt;
    weft_status_t st = wefti_runtime_open_on(opts, config, fabric, &rt);
    if (st)
        return st;
    wefti_shard_join(rt, head, k);
    st = attach_rooms(rt);
    if (!st)
        st = wefti_runtime_start(rt);
    if (!st)
        wefti_shards_opened(head, k + 1); /* from here on it is closed with the head */
    else
        close_here(rt);
    return st;
}

/* One more runtime of this machine: the first, or shard k of `head`. */
static weft_status_t open_one(const weft_runtime_opts_t *opts, weft_runtime_t *head, uint32_t k, uint32_t *shards_out,
                              weft_runtime_t **rt_out)
{
    wefti_config_t config;
    wefti_fabric_t *fabric;
    weft_status_t st = wefti_config_read(&config);
    if (st)
        return st;
    st = wefti_runtime_merge_opts(opts, &config);
    if (!st && !head)
        st = wefti_shards_wanted(opts, &config, shards_out);
    if (!st)
        st = wefti_fabric_open_real(&config, &fabric);
    if (st) {
        wefti_config_free(&config);
        return st;
    }
    return head ? wefti_open_shard_on_fabric(opts, &config, fabric, head, k)
                : open_head(opts, &config, fabric, *shards_out > 1, rt_out);
}

/* This may be a callback of another runtime, which cannot wait for it. */
static weft_status_t extend_here(weft_runtime_t *head, uint32_t n)
{
    weft_runtime_t *was = wefti_driven;
    weft_status_t st = WEFT_OK;
    wefti_driven = NULL;
    for (uint32_t k = 0; k < n && !st; k++)
        st = wefti_extend_open(wefti_shard(head, k));
    wefti_driven = was;
    return st;
}

weft_status_t weft_runtime_open(const weft_runtime_opts_t *opts, weft_runtime_t **rt_out)
{
    weft_runtime_t *rt;
    uint32_t n;
    if (!rt_out)
        return wefti_fail(WEFT_ERR_INVALID, "there is nowhere to put the runtime");
    weft_status_t st = open_one(opts, NULL, 0, &n, &rt);
    if (st)
        return st;
    for (uint32_t k = 1; k < n && !st; k++)
        st = open_one(opts, rt, k, NULL, NULL);
    if (!st && n > 1)
        st = extend_here(rt, n);
    if (st) {
        close_here(rt);
        return st;
    }
    *rt_out = rt;
    return WEFT_OK;
}
