/* tools/mem/link.c - the runtime of a client, and its servers.
 *
 * tests/tools/tools_mem.py and tests/tools/tools_mem_loss.py check it. */
#include <stdlib.h>
#include <string.h>

#include "mem.h"

#define CLOSING (3 * WEFT_SECOND) /* to end a lease and a connection */

static weft_status_t server_open(mem_link_t *l, mem_server_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_status_t st;
    op.timeout_ns = l->opts->timeout_ns;
    eo.no_retry = true;
    st = weft_ep_open(l->rt, s->uri, &eo, &op, &s->ep);
    if (st) {
        s->ep = NULL;
        return st;
    }
    st = tool_wait(&op);
    if (!st)
        st = tool_do(weft_store_open(s->ep, NULL, &op), &op);
    if (!st) {
        s->store = weft_op_store(&op);
        return WEFT_OK;
    }
    weft_ep_abort(s->ep, NULL);
    s->ep = NULL;
    return st;
}

int mem_link_open(mem_link_t *l, const mem_opts_t *opts, bool some)
{
    int rc;
    memset(l, 0, sizeof *l);
    l->opts = opts;
    rc = tool_runtime_open(WEFT_PROGRESS_THREAD, &opts->net, &l->rt);
    if (rc)
        return rc;
    tool_handle_signals();
    for (unsigned i = 0; i < opts->servers.n; i++) {
        mem_server_t *s = &l->servers[l->n_servers];
        weft_status_t st;
        *s = (mem_server_t){.uri = opts->servers.at[i]};
        st = server_open(l, s);
        if (!st) {
            l->n_servers++;
            continue;
        }
        if (st == WEFT_ERR_INVALID)
            rc = (tool_error_status(st, "--server %s", s->uri), TOOL_USAGE);
        else if (st == WEFT_ERR_LIMIT)
            rc = (tool_error("the server at %s has as many clients as it takes", s->uri), MEM_NO_SERVER);
        else
            rc = mem_failed(st, "no memory server answers at %s", s->uri);
        if (!some || tool_signal())
            goto err_close;
    }
    if (l->n_servers)
        return TOOL_OK;

err_close:
    mem_link_close(l, false);
    return rc;
}

/* The connection was lost, but the server may live. It would keep our blocks until the lease ends. */
static void give_back(mem_link_t *l, const char *uri, const uint8_t id[WEFT_STORE_ID])
{
    weft_store_opts_t so = WEFT_STORE_OPTS_INIT;
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    op.timeout_ns = CLOSING;
    eo.no_retry = true; /* if nobody listens any more, there is nothing to give back */
    if (weft_ep_open(l->rt, uri, &eo, &op, &ep))
        return;
    so.id = id;
    if (!tool_wait_through(&op) && !tool_do_through(weft_store_open(ep, &so, &op), &op)) {
        weft_store_t *store = weft_op_store(&op);
        tool_do_through(weft_store_close(store, &op), &op);
    }
    weft_ep_abort(ep, NULL);
}

static void server_close(mem_link_t *l, mem_server_t *s)
{
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    bool known = !weft_store_get_info(s->store, &info);
    op.timeout_ns = CLOSING;
    weft_status_t st = tool_do_through(weft_store_close(s->store, &op), &op);
    if (st == WEFT_ERR_PEER && known)
        give_back(l, s->uri, info.id);
    if (!weft_ep_close(s->ep, &op))
        tool_wait_through(&op);
}

void mem_link_close(mem_link_t *l, bool clean)
{
    if (!l->rt)
        return;
    for (unsigned i = 0; i < l->n_servers; i++) {
        if (clean)
            server_close(l, &l->servers[i]);
        else
            weft_store_close(l->servers[i].store, NULL);
    }
    weft_pool_free(l->pool);
    weft_runtime_close(l->rt);
    l->rt = NULL;
}
