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

weft_status_t wefti_open_on_fabric(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                   weft_runtime_t **rt_out)
{
    weft_runtime_t *rt;
    weft_status_t st = wefti_runtime_open_on(opts, config, fabric, &rt);
    if (st)
        return st;
    st = wefti_mem_attach(rt);
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
    if (!st)
        st = wefti_runtime_start(rt);
    if (st) {
        weft_runtime_t *was = wefti_driven; /* this may be a callback of another runtime */
        wefti_driven = NULL;
        weft_runtime_close(rt); /* with the rooms it has */
        wefti_driven = was;
        return st;
    }
    *rt_out = rt;
    return WEFT_OK;
}

weft_status_t weft_runtime_open(const weft_runtime_opts_t *opts, weft_runtime_t **rt_out)
{
    wefti_config_t config;
    wefti_fabric_t *fabric;
    if (!rt_out)
        return wefti_fail(WEFT_ERR_INVALID, "there is nowhere to put the runtime");
    weft_status_t st = wefti_config_read(&config);
    if (st)
        return st;
    st = wefti_runtime_merge_opts(opts, &config);
    if (st)
        goto err_config;
    st = wefti_fabric_open_real(&config, &fabric);
    if (st)
        goto err_config;
    return wefti_open_on_fabric(opts, &config, fabric, rt_out);

err_config:
    wefti_config_free(&config);
    return st;
}
