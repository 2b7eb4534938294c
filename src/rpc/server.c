/* rpc/server.c - the servers of a client, and what becomes of their calls when an endpoint comes up or goes down.
 *
 * A server belongs to one client and one endpoint and is on a list of each; the one that goes first takes it off the other's
 * list. tests/wire/rpc_call.c, tests/fault/rpc_lost.c. */
#include "rpc/client.h"

/* Its endpoint came up, or is down. */
static void heard(rpc_server_t *s, bool up)
{
    uint32_t *n = &s->client->stats.connected;
    if (s->up != up)
        __atomic_store_n(n, up ? *n + 1 : *n - 1, __ATOMIC_RELAXED);
    s->up = up;
    s->draining = false;
}

static void count_servers(weft_client_t *c, int by)
{
    __atomic_store_n(&c->n_servers, c->n_servers + (uint32_t)by, __ATOMIC_RELAXED);
}

/* Take its calls to a list, NEW: first those that wait for a binding, */
static void take_waiting(rpc_server_t *s, wefti_list_t *to)
{
    for (uint32_t i = 0; i < s->n_bindings; i++)
        if (s->bindings[i])
            wefti_rpc_binding_reset(s->bindings[i], to);
}

/* then those that were sent. abandon: the server is told that nobody waits for them. */
static void take_sent(rpc_server_t *s, bool abandon, wefti_list_t *to)
{
    if (!s->ep)
        return;
    wefti_list_each_safe(l, &rpc_ep(s->ep)->sent) {
        weft_op_t *op = wefti_op_of_link(l);
        if (rpc_call(op)->server != s)
            continue;
        if (abandon)
            wefti_rpc_call_abandon(op);
        else
            wefti_rpc_unsend(op);
        wefti_list_push_back(to, l);
    }
}

weft_status_t wefti_rpc_server_add(weft_client_t *c, weft_ep_t *ep, const char *instance, rpc_server_t **server_out)
{
    rpc_server_t *s = (rpc_server_t *)wefti_calloc(1, sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a server of a client");
    s->client = c;
    s->ep = ep;
    weft_status_t st = wefti_rpc_copy_name(s->instance, instance ? instance : c->instance, "an instance");
    if (st) {
        wefti_free(s);
        return st;
    }
    wefti_list_push_back(&c->servers, &s->link);
    wefti_list_push_back(&rpc_ep(ep)->servers, &s->ep_link);
    count_servers(c, 1);
    *server_out = s;
    if (ep->lane) {
        heard(s, true);
        wefti_rpc_client_kick(c);
    }
    return WEFT_OK;
}

void wefti_rpc_server_remove(rpc_server_t *s, weft_status_t why)
{
    weft_client_t *c = s->client;
    wefti_list_t again;
    wefti_list_init(&again);
    heard(s, false);
    take_waiting(s, &again);
    take_sent(s, false, &again);
    if (s->ep)
        wefti_list_remove(&s->ep_link);
    s->ep = NULL;
    wefti_list_remove(&s->link);
    count_servers(c, -1);
    wefti_rpc_client_hold(c); /* the last call that ends here must not free the client */
    for (wefti_list_t *l; (l = wefti_list_pop(&again));)
        wefti_rpc_call_again(wefti_op_of_link(l), why, NULL);
    wefti_rpc_bindings_free(s);
    wefti_free(s);
    wefti_rpc_client_unhold(c);
}

void wefti_rpc_client_kick(weft_client_t *client)
{
    wefti_list_t all;
    if (wefti_list_empty(&client->waiting))
        return;
    wefti_list_init(&all);
    wefti_list_splice(&all, &client->waiting);
    wefti_rpc_client_hold(client);
    for (wefti_list_t *l; (l = wefti_list_pop(&all));) {
        wefti_rpc_waits_no_more(wefti_op_of_link(l));
        wefti_rpc_route(wefti_op_of_link(l), NULL);
    }
    wefti_rpc_client_unhold(client);
}

void wefti_rpc_calls_up(weft_ep_t *ep)
{
    wefti_list_each_safe(l, &rpc_ep(ep)->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
        heard(s, true);
        wefti_rpc_client_kick(s->client);
    }
}

void wefti_rpc_calls_down(weft_ep_t *ep, weft_status_t why)
{
    rpc_ep_t *e = rpc_ep(ep);
    weft_status_t over = wefti_ep_may_wait(ep);
    wefti_list_t again, lost;
    wefti_list_init(&again);
    wefti_list_init(&lost);
    wefti_list_each(l, &e->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
        heard(s, false);
        take_waiting(s, &again);
    }
    for (wefti_list_t *l; (l = wefti_list_first(&e->sent));) {
        wefti_rpc_unsend(wefti_op_of_link(l));
        wefti_list_push_back(&again, l);
    }
    if (over) {
        wefti_list_splice(&lost, &e->servers);
        wefti_list_each(l, &lost) {
            rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
            s->ep = NULL;
            if (!s->client->reach)
                s->client->lost = over;
        }
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&again));)
        wefti_rpc_call_again(wefti_op_of_link(l), why, NULL);
    for (wefti_list_t *l; (l = wefti_list_pop(&lost));) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
        if (s->client->reach)
            wefti_rpc_reach_down(s, why);
        else
            wefti_rpc_client_kick(s->client); /* no other server comes: its calls end */
    }
}

void wefti_rpc_client_fail(weft_client_t *client, weft_status_t why)
{
    wefti_list_t all;
    wefti_list_init(&all);
    wefti_list_each(l, &client->waiting)
        wefti_rpc_waits_no_more(wefti_op_of_link(l));
    wefti_list_splice(&all, &client->waiting);
    wefti_list_each(l, &client->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, link);
        take_waiting(s, &all);
        take_sent(s, true, &all);
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&all));)
        wefti_rpc_call_end(wefti_op_of_link(l), why, NULL);
}
