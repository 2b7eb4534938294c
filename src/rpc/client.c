/* rpc/client.c - clients: opening over an endpoint, closing, counting.
 *
 *     new --join--> part of the runtime --close--> closing: its calls end --> the last is complete, nobody holds it --> freed
 *
 * A client is a handle (base/handle.h): a call with a closed one is told so.
 *
 * Promise: after its close operation completed nothing of a client is touched any more. tests/wire/rpc_call.c,
 * tests/fault/rpc_lost.c. */
#include <stddef.h>

#include "rpc/client.h"

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_client_t, typed);

/* --- making --------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_rpc_copy_name(char out[RPC_NAME], const char *name, const char *what)
{
    size_t n = name ? strnlen(name, RPC_NAME) : 0;
    if (n >= RPC_NAME)
        return wefti_fail(WEFT_ERR_INVALID, "the name of %s has more than %u bytes", what, RPC_NAME - 1);
    if (n)
        memcpy(out, name, n);
    out[n] = 0;
    return WEFT_OK;
}

weft_status_t wefti_rpc_client_closed(void)
{
    return wefti_fail(WEFT_ERR_CLOSED, "the client was closed");
}

/* `once` calls that waited long enough for their server to come back end. */
static void out_of_patience(wefti_timer_t *t)
{
    weft_client_t *c = wefti_container_of(t, weft_client_t, patience);
    uint64_t now = wefti_now(c->rt), next = UINT64_MAX;
    wefti_rpc_client_hold(c);
    wefti_list_each_safe(l, &c->waiting) {
        weft_op_t *op = wefti_op_of_link(l);
        uint64_t give_up = rpc_call(op)->give_up;
        if (!give_up || give_up > now) {
            next = give_up && give_up < next ? give_up : next;
            continue;
        }
        wefti_list_remove(l);
        wefti_rpc_waits_no_more(op);
        wefti_rpc_call_end(op, WEFT_ERR_PEER, "the server it was sent to did not come back in time");
    }
    if (next < UINT64_MAX)
        wefti_timer_at(c->rt, t, next);
    wefti_rpc_client_unhold(c);
}

static void close_called(wefti_call_t *call);

weft_status_t wefti_rpc_client_new(weft_runtime_t *rt, const weft_client_opts_t *opts, const char *service, const char *instance,
                                   weft_client_t **client_out)
{
    weft_client_t *c = (weft_client_t *)wefti_handle_take(&handles);
    if (!c)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client");
    memset(&c->link, 0, sizeof *c - offsetof(weft_client_t, link)); /* threads may read what is before it, of an older client */
    c->rt = rt;
    c->rs = rpc_state(rt);
    for (size_t i = 0; i < sizeof c->stats / sizeof(uint64_t); i++)
        __atomic_store_n((uint64_t *)&c->stats + i, 0, __ATOMIC_RELAXED);
    wefti_list_init(&c->servers);
    wefti_list_init(&c->waiting);
    wefti_list_init(&c->once);
    c->tries = opts && opts->tries ? opts->tries : 3;
    c->tries = c->tries < UINT8_MAX ? c->tries : UINT8_MAX; /* as far as a call counts */
    c->timeout_ns = opts ? opts->timeout_ns : 0;
    c->stall_ns = opts && opts->stall_ns ? opts->stall_ns : RPC_STALL_NS;
    c->patience.fn = out_of_patience;
    c->close.call.fn = close_called;
    weft_status_t st = wefti_rpc_copy_name(c->service, service, "a service");
    if (!st)
        st = wefti_rpc_copy_name(c->instance, instance, "an instance");
    if (st) {
        wefti_rpc_client_discard(c);
        return st;
    }
    rt->fabric->ops->random(rt->fabric, &c->id, sizeof c->id);
    c->id |= 1; /* never 0 */
    atomic_store_explicit(&c->handle.open, 1, memory_order_release);
    *client_out = c;
    return WEFT_OK;
}

void wefti_rpc_client_discard(weft_client_t *c)
{
    pthread_mutex_lock(&c->rs->lock);
    atomic_store(&c->handle.open, 0);
    wefti_rpc_methods_free(c);
    wefti_free(c->parts);
    c->parts = NULL;
    pthread_mutex_unlock(&c->rs->lock);
    wefti_handle_free(&handles, c);
}

/* --- the end -------------------------------------------------------------------------------------------------------------- */

void wefti_rpc_client_unhold(weft_client_t *c)
{
    if (--c->holds || !c->closing || c->calls)
        return;
    rpc_state_t *rs = c->rs;
    pthread_mutex_lock(&rs->lock);
    bool called = c->called;
    c->ended = true; /* nobody can call it any more */
    pthread_mutex_unlock(&rs->lock);
    if (called)
        return;
    rpc_ending_t end = {.op = c->close.op};
    wefti_timer_stop(rs->rt, &c->patience);
    wefti_list_remove(&c->link);
    wefti_rpc_client_discard(c);
    rpc_end(rs);
    wefti_rpc_ended(rs, &end, WEFT_OK);
}

/* On the driver, once. */
static void close_now(weft_client_t *c)
{
    c->closing = true;
    rpc_begin(c->rs);
    wefti_rpc_client_hold(c);
    for (wefti_list_t *l; (l = wefti_list_first(&c->servers));)
        wefti_rpc_server_remove(wefti_container_of(l, rpc_server_t, link), WEFT_ERR_CLOSED);
    c->lost = WEFT_ERR_CLOSED;
    wefti_rpc_client_kick(c); /* what waits ends */
    if (c->reach)
        wefti_rpc_reach_close(c);
    wefti_rpc_client_unhold(c);
}

/* The program has closed it; the runtime may have done so before. */
static void close_called(wefti_call_t *call)
{
    weft_client_t *c = wefti_container_of(call, weft_client_t, close.call);
    wefti_rpc_client_hold(c);
    pthread_mutex_lock(&c->rs->lock);
    c->called = false;
    pthread_mutex_unlock(&c->rs->lock);
    if (!c->closing)
        close_now(c);
    wefti_rpc_client_unhold(c);
}

static weft_status_t claim_close(void *arg, rpc_ending_t **ending_out)
{
    weft_client_t *c = (weft_client_t *)arg;
    weft_status_t st = wefti_rpc_client_lock(c);
    if (st)
        return st;
    if (c->ended)
        st = wefti_fail(WEFT_ERR_CLOSED, "the client was closed before");
    else
        c->ended = c->called = true;
    *ending_out = &c->close;
    wefti_rpc_unlock(c->rt);
    return st;
}

weft_status_t wefti_rpc_client_close(weft_client_t *c, weft_op_t *op)
{
    return wefti_rpc_end(c->rt, ENDS_CLIENT, op, claim_close, c);
}

void wefti_rpc_clients_shutdown(rpc_state_t *rs)
{
    wefti_list_each_safe(l, &rs->clients) {
        weft_client_t *c = wefti_container_of(l, weft_client_t, link);
        if (!c->closing)
            close_now(c);
    }
}

/* With the runtime: nothing that they wait for can come any more. */
void wefti_rpc_clients_free(rpc_state_t *rs)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&rs->clients));) {
        weft_client_t *c = wefti_container_of(l, weft_client_t, link);
        if (c->reach)
            wefti_rpc_reach_free(c);
        wefti_rpc_client_discard(c);
    }
}

/* --- over an endpoint ----------------------------------------------------------------------------------------------------- */

bool wefti_rpc_client_join(weft_client_t *c)
{
    wefti_list_push_back(&c->rs->clients, &c->link);
    if (!wefti_closing(c->rt))
        return true;
    close_now(c);
    return false;
}

static void join_over_ep(wefti_call_t *call)
{
    weft_client_t *c = wefti_container_of(call, weft_client_t, join_call);
    rpc_server_t *server;
    if (!wefti_rpc_client_join(c))
        return;
    weft_status_t st = wefti_ep_may_wait(c->join_ep);
    if (!st)
        st = wefti_rpc_server_add(c, c->join_ep, NULL, &server);
    c->lost = st;
}

weft_status_t weft_client_on(weft_ep_t *ep, const weft_client_opts_t *given, weft_client_t **client_out)
{
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    weft_client_t *c;
    if (!ep || !client_out)
        return wefti_fail(WEFT_ERR_INVALID, ep ? "there is nowhere to put the client" : "the endpoint is NULL");
    weft_status_t st = wefti_opts_read(given, &o, sizeof o, "weft_client_opts_t");
    if (st)
        return st;
    weft_runtime_t *rt = ep->rt;
    st = wefti_join(rt);
    if (st)
        return st;
    if (wefti_closing(rt))
        st = wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", rt->name);
    if (!st)
        st = wefti_ep_check(ep);
    if (!st)
        st = wefti_rpc_client_new(rt, &o, o.service, o.instance, &c);
    if (!st) {
        c->join_ep = ep;
        c->join_call.fn = join_over_ep;
        *client_out = c;
        if (!wefti_call_on_driver(rt, &c->join_call)) {
            wefti_rpc_client_discard(c);
            st = wefti_fail_gone(rt);
        }
    }
    wefti_part(rt);
    return st;
}

/* --- counters ------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_rpc_client_get_stats(weft_client_t *c, weft_client_stats_t *s)
{
    weft_status_t st = wefti_rpc_client_lock(c);
    if (st)
        return st;
    rpc_read_all(&s->calls, &c->stats.calls, offsetof(weft_client_stats_t, instances) - offsetof(weft_client_stats_t, calls));
    s->instances = __atomic_load_n(c->finds ? &c->stats.instances : &c->n_servers, __ATOMIC_RELAXED);
    s->connected = __atomic_load_n(&c->stats.connected, __ATOMIC_RELAXED);
    wefti_rpc_unlock(c->rt);
    return WEFT_OK;
}
