/* store/lease.c - the clients of a server: who they are, which endpoint they use, and how long they may be silent.
 *
 * A client is an id that it chose and keeps secret, with a lease. It uses one endpoint at a time. If it opens its store again
 * over another endpoint, what comes over the first is refused.
 *
 *     UP --endpoint lost--> RUNNING --opened again--> UP        TIMED --every request--> TIMED --silent for a lease--> gone
 *                                  \--its lease is over--> gone
 *
 * While its endpoint is up a client stays: heartbeats tell whether its process lives. When the endpoint is lost, the lease
 * begins, so that the client can come back. A client without blocks goes at once; otherwise strangers that connect again and
 * again would take the places of others. A client that renews its lease itself, or has left, is TIMED: its lease always runs,
 * and every request starts it anew.
 *
 * A timer that comes far too late means that this process was stopped. Then nobody knows whether the client was silent, and it
 * gets half a lease more.
 *
 * Promise: no block goes while its client is connected and not timed, or speaks at least once per lease. No block that is not
 * shared stays longer than a lease after that. tests/sim/store_life.c, tests/fault/store_kill.c. */
#include <sodium.h>

#include "store/state.h"

#define LEASE_MIN WEFT_MILLISECOND

static uint64_t hash(const weft_store_server_t *s, const uint8_t id[WEFT_STORE_ID])
{
    uint64_t key;
    _Static_assert(sizeof key == crypto_shorthash_BYTES && sizeof s->hash_key == crypto_shorthash_KEYBYTES,
                   "shorthash is 8 of 16");
    crypto_shorthash((uint8_t *)&key, id, WEFT_STORE_ID, s->hash_key);
    return key;
}

store_client_t *wefti_store_client(weft_store_server_t *s, const uint8_t id[WEFT_STORE_ID])
{
    store_client_t *c = (store_client_t *)wefti_map_get(&s->clients, hash(s, id));
    return c && !memcmp(c->id, id, sizeof c->id) ? c : NULL;
}

static void leave_ep(store_client_t *c)
{
    if (!c->ep)
        return;
    wefti_list_remove(&c->ep_link);
    store_ep(c->ep)->n_clients--;
    c->ep = NULL;
}

static void lease_over(weft_ext_timer_t *t)
{
    store_client_t *c = wefti_container_of(t, store_client_t, lease);
    store_state_t *ss = c->server->ss;
    uint64_t when = t->when, now = weft_now(ss->rt);
    pthread_mutex_lock(&ss->lock);
    bool up = c->ep && !c->timed; /* then its lease begins when its endpoint is lost */
    bool stopped = now > when && now - when > c->lease_ns / 4 + 10 * WEFT_MILLISECOND;
    uint64_t more = up ? c->lease_ns : stopped ? c->lease_ns / 2 : 0;
    if (!more || weft_ext_timer_set(ss->rt, &c->lease, now + more))
        wefti_store_client_end(c, true);
    pthread_mutex_unlock(&ss->lock);
}

void wefti_store_client_renew(store_client_t *c)
{
    weft_runtime_t *rt = c->server->ss->rt;
    weft_ext_timer_set(rt, &c->lease, weft_now(rt) + c->lease_ns); /* it is armed already: that cannot fail */
}

static weft_status_t client_new(weft_store_server_t *s, const uint8_t id[WEFT_STORE_ID], uint64_t lease_ns, store_client_t **out)
{
    uint64_t key = hash(s, id);
    weft_status_t st = WEFT_ERR_NOMEM;
    if (s->n_clients >= s->opts.clients || wefti_map_get(&s->clients, key))
        return WEFT_ERR_LIMIT;
    store_client_t *c = (store_client_t *)wefti_calloc(1, sizeof *c);
    if (!c)
        return st;
    c->server = s;
    c->key = key;
    c->lease.fn = lease_over;
    memcpy(c->id, id, sizeof c->id);
    wefti_list_init(&c->paid);
    st = wefti_map_put(&s->clients, key, c);
    if (st)
        goto err_c;
    st = weft_ext_timer_set(s->ss->rt, &c->lease, weft_now(s->ss->rt) + lease_ns);
    if (st)
        goto err_map;
    wefti_list_push_back(&s->client_list, &c->link);
    s->n_clients++;
    *out = c;
    return WEFT_OK;

err_map:
    wefti_map_take(&s->clients, key);
err_c:
    wefti_free(c);
    return st;
}

weft_status_t wefti_store_client_open(weft_store_server_t *s, weft_ep_t *ep, const uint8_t id[WEFT_STORE_ID], uint64_t lease_ns,
                                      bool timed, store_client_t **client_out)
{
    store_client_t *c = wefti_store_client(s, id);
    store_ep_t *e = store_ep(ep);
    if (!lease_ns || lease_ns > s->opts.lease_ns)
        lease_ns = s->opts.lease_ns;
    if (lease_ns < LEASE_MIN)
        lease_ns = LEASE_MIN;
    if ((!c || c->ep != ep) && e->n_clients >= STORE_CLIENTS_PER_EP)
        return WEFT_ERR_LIMIT;
    if (!c) {
        weft_status_t st = client_new(s, id, lease_ns, &c);
        if (st)
            return st;
    }
    if (c->ep != ep) {
        leave_ep(c);
        c->ep = ep;
        wefti_list_push_back(&e->clients, &c->ep_link);
        e->n_clients++;
    }
    c->lease_ns = lease_ns;
    c->timed = timed;
    wefti_store_client_renew(c);
    *client_out = c;
    return WEFT_OK;
}

void wefti_store_client_end(store_client_t *c, bool expired)
{
    weft_store_server_t *s = c->server;
    leave_ep(c);
    weft_ext_timer_stop(s->ss->rt, &c->lease);
    wefti_map_take(&s->clients, c->key);
    wefti_list_remove(&c->link);
    s->n_clients--;
    s->stats.expired_clients += expired;
    for (wefti_list_t *l; (l = wefti_list_first(&c->paid));) {
        store_held_t *b = wefti_container_of(l, store_held_t, paid_link);
        wefti_store_block_unpaid(b);
        if (b->shared || b->freeing)
            continue;
        s->stats.expired_blocks += expired;
        wefti_store_block_free(b, NULL);
    }
    wefti_free(c);
}

void wefti_store_clients_down(weft_ep_t *ep)
{
    weft_store_server_t *s = store_state(weft_ep_runtime(ep))->server;
    if (s) /* before its blocks are freed: its waiting requests must not be served then */
        wefti_store_later_down(s, weft_ep_id(ep));
    wefti_list_each_safe(l, &store_ep(ep)->clients) {
        store_client_t *c = wefti_container_of(l, store_client_t, ep_link);
        leave_ep(c);
        if (!c->n_blocks)
            wefti_store_client_end(c, false);
        else if (!c->timed)
            wefti_store_client_renew(c);
    }
}
