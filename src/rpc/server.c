/* rpc/server.c - the servers of a client: which one the next call goes to, and what becomes of their calls when an endpoint comes
 * up or goes down.
 *
 * A server belongs to one client and one endpoint and is on a list of each; the one that goes first takes it off the other's
 * list. tests/wire/rpc_call.c, tests/fault/rpc_lost.c. */
#include "base/rng.h"
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

/* then those that were sent. If the client closes, the server is told that nobody waits for them. */
static void take_sent(rpc_server_t *s, wefti_list_t *to)
{
    if (!s->ep)
        return;
    wefti_list_each_safe(l, &rpc_ep(s->ep)->sent) {
        weft_op_t *op = wefti_op_of_link(l);
        if (rpc_call(op)->server != s)
            continue;
        if (s->client->closing)
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
    take_sent(s, &again);
    if (s->ep)
        wefti_list_remove(&s->ep_link);
    s->ep = NULL;
    wefti_list_remove(&s->link);
    count_servers(c, -1);
    wefti_rpc_client_hold(c); /* the last call that ends here must not free the client */
    for (wefti_list_t *l; (l = wefti_list_pop(&again));)
        wefti_rpc_call_again(wefti_op_of_link(l), why, NULL);
    for (uint32_t i = 0; i < s->n_bindings; i++)
        wefti_free(s->bindings[i]);
    wefti_free(s->bindings);
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

/* --- the choice ----------------------------------------------------------------------------------------------------------
 *
 * The better of two servers that are chosen at random. The best of all would be the same server for every client, for as long as
 * what they know of it is old. Of two at random each server gets its share, and one that is slow or busy loses nearly every
 * comparison.
 *
 * What is compared is the number of our own calls under way, which is exact, times a weight. The registry's load widens the range
 * of that weight. The load is up to a second old and the same for all clients, so the weight is drawn anew each time, from 500 up
 * to 1000 (idle) or 2000 (full): a server with twice as many calls always loses against an equal one, a full server loses against
 * an idle one five times in six.
 *
 * Promise: a server that is down or draining is not chosen; O(servers of the client), no allocation. tests/unit/rpc_balance.c. */

enum { WEIGHT_LEAST = 500 };

/* luck: 32 random bits. */
static uint64_t cost(const rpc_server_t *s, uint32_t luck)
{
    uint64_t more = ((uint64_t)(WEIGHT_LEAST + s->load) * luck) >> 32;
    return (s->under_way + UINT64_C(1)) * (WEIGHT_LEAST + more);
}

static rpc_server_t *better(rpc_server_t *a, rpc_server_t *b, wefti_rng_t *rng)
{
    uint64_t luck = wefti_rng_next(rng);
    return cost(a, (uint32_t)luck) <= cost(b, (uint32_t)(luck >> 32)) ? a : b;
}

typedef struct two {
    rpc_server_t *a, *b;
} two_t;

static bool other_and_usable(const rpc_server_t *s, const rpc_server_t *except)
{
    return s != except && rpc_server_usable(s);
}

/* Two different ones of all n, or of the n that are usable and not `except`, at random; both the same if n is 1. */
static inline two_t two_of(const weft_client_t *client, uint32_t n, bool all, const rpc_server_t *except, wefti_rng_t *rng)
{
    two_t two = {NULL, NULL};
    uint64_t luck = wefti_rng_next(rng);
    uint32_t i = (uint32_t)(((luck & UINT32_MAX) * n) >> 32), j = (uint32_t)(((luck >> 32) * (n - 1)) >> 32), at = 0;
    j += j >= i && n > 1;
    wefti_list_each(l, &client->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, link);
        if (!all && !other_and_usable(s, except))
            continue;
        if (at == i)
            two.a = s;
        if (at == j)
            two.b = s;
        if (two.a && two.b)
            break;
        at++;
    }
    return two;
}

/* One of the two is not usable: choose among those that are. */
static rpc_server_t *pick_slow(const weft_client_t *client, const rpc_server_t *except, wefti_rng_t *rng)
{
    uint32_t n = 0;
    wefti_list_each(l, &client->servers)
        n += other_and_usable(wefti_container_of(l, rpc_server_t, link), except);
    if (!n) {
        rpc_server_t *last = (rpc_server_t *)(uintptr_t)except;
        return last && rpc_server_usable(last) ? last : NULL;
    }
    two_t two = two_of(client, n, false, except, rng);
    return better(two.a, two.b, rng);
}

rpc_server_t *wefti_rpc_pick_of_many(weft_client_t *client, const rpc_server_t *except)
{
    wefti_rng_t *rng = &client->rs->rt->rng;
    if (!client->n_servers)
        return NULL;
    two_t two = two_of(client, client->n_servers, true, except, rng);
    if (__builtin_expect(two.a != except && two.b != except && rpc_server_usable(two.a) && rpc_server_usable(two.b), 1))
        return better(two.a, two.b, rng);
    return pick_slow(client, except, rng);
}
