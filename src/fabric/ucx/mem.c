/* fabric/ucx/mem.c - ranges registered with UCX ahead of time.
 *
 * This part of the transport is for any thread. The driver opens UCX with the first lane and closes it with the transport;
 * `mem_context` is UCX's context in between. A lock guards it and is held during each call, so UCX can neither open nor close
 * meanwhile. Against its own worker the context locks itself (it is opened as shared by several).
 *
 * While UCX is not open there is nothing to register with: the range counts as ready, and who asks again later gets it
 * registered.
 *
 * Promise: whoever registers a range unregisters it before UCX is closed. tests/wire/mem_reg.c holds us to it. */
#include "base/log.h"
#include "fabric/ucx/internal.h"

void wefti_ux_mem_context(ux_transport_t *r, ucp_context_h context)
{
    pthread_mutex_lock(&r->mem_lock);
    r->mem_context = context;
    pthread_mutex_unlock(&r->mem_lock);
}

weft_status_t wefti_ux_mem_map(ucp_context_h context, void *base, size_t n, weft_status_t refused, ucp_mem_h *mem_out)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = base,
        .length = n,
    };
    ucs_status_t st = ucp_mem_map(context, &params, mem_out);
    if (st == UCS_OK)
        return WEFT_OK;
    return wefti_fail(ux_nomem_or(st, refused), "UCX does not register %zu bytes: %s", n, ucs_status_string(st));
}

weft_status_t wefti_ux_mem_register(wefti_transport_t *transport, void *base, size_t n, void **reg_out)
{
    ux_transport_t *r = ux_transport(transport);
    ucp_mem_h mem = NULL;
    weft_status_t st = WEFT_OK;
    pthread_mutex_lock(&r->mem_lock);
    if (r->mem_context)
        st = wefti_ux_mem_map(r->mem_context, base, n, WEFT_ERR_SYSTEM, &mem);
    pthread_mutex_unlock(&r->mem_lock);
    if (!st)
        *reg_out = mem;
    return st;
}

void wefti_ux_mem_unregister(wefti_transport_t *transport, void *reg)
{
    ux_transport_t *r = ux_transport(transport);
    ucs_status_t st = UCS_ERR_NO_DEVICE;
    pthread_mutex_lock(&r->mem_lock);
    if (r->mem_context)
        st = ucp_mem_unmap(r->mem_context, reg);
    pthread_mutex_unlock(&r->mem_lock);
    if (st != UCS_OK)
        wefti_warn("ucx: a range is not unregistered: %s", ucs_status_string(st));
}
