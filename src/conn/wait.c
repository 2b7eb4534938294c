/* conn/wait.c - connecting and accepting in one call that waits. tests/wire/waiting.c. */
#include "conn/conn.h"

weft_status_t weft_ep_connect(weft_runtime_t *rt, const char *uri, const weft_ep_opts_t *opts, uint64_t timeout_ns,
                              weft_ep_t **ep_out)
{
    weft_op_t op;
    weft_ep_t *ep = NULL;
    if (!ep_out)
        return wefti_fail(WEFT_ERR_INVALID, "ep_out is NULL");
    weft_status_t st = wefti_sync_begin(&op, timeout_ns);
    if (st)
        return st;
    st = wefti_sync_end(&op, weft_ep_open(rt, uri, opts, &op, &ep));
    if (!st) {
        *ep_out = ep;
        return WEFT_OK;
    }
    if (ep) {
        (void)weft_ep_abort(ep, NULL);
        wefti_fail(st, "%s", weft_op_error(&op)); /* and not what the abort said */
    }
    return st;
}

weft_status_t weft_listener_accept_wait(weft_listener_t *listener, uint64_t timeout_ns, weft_ep_t **ep_out)
{
    weft_op_t op;
    if (!ep_out)
        return wefti_fail(WEFT_ERR_INVALID, "ep_out is NULL");
    weft_status_t st = wefti_sync_begin(&op, timeout_ns);
    if (!st)
        st = wefti_sync_end(&op, weft_listener_accept(listener, &op));
    if (!st)
        *ep_out = weft_op_ep(&op);
    return st;
}
