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
 * On a runtime with several shards the lease is timed by the shard that the client is at. One that comes back to another shard is
 * timed there. A request that another shard answers, because it had to wait, moves only `until`: the timer finds that.
 *
 * A timer that comes far too late means that this process was stopped. Then nobody knows whether the client was silent, and it
 * gets half a lease more.
 *
 * Promise: no block goes while its client is connected and not timed, or speaks at least once per lease. No block that is not
 * shared stays longer than a lease after that. tests/sim/store_life.c, tests/fault/store_kill.c, tests/wire/store_shards.c. */
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
    c->at->n_clients--;
    c->ep = NULL;
    c->at = NULL;
}

static void lease_over(void *user, uint64_t when)
{
    store_client_t *c = (store_client_t *)user;
    store_state_t *ss = c->server->ss;
    uint64_t now = weft_now(ss->rt);
    bool up = c->ep && !c->timed; /* then its lease begins when its endpoint is lost */
    bool stopped = now > when && now - when > c->lease_ns / 4 + 10 * WEFT_MILLISECOND;
    uint64_t more = up ? c->lease_ns : stopped ? c->lease_ns / 2 : 0;
    if (c->until < now + more)
        c->until = now + more;
    if (c->until <= now || wefti_store_alarm_set(ss, &c->lease, c->until, lease_over, c))
        wefti_store_client_end(c, true);
}

void wefti_store_client_renew(store_client_t *c)
{
    store_state_t *ss = c->server->ss;
    c->until = weft_now(ss->rt) + c->lease_ns;
    if (wefti_store_alarm_here(ss, c->lease))
        wefti_store_alarm_set(ss, &c->lease, c->until, lease_over, c); /* it is set already: that cannot fail */
}

static weft_status_t client_new(weft_store_server_t *s, const uint8_t id[WEFT_STORE_ID], store_client_t **out)
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
    memcpy(c->id, id, sizeof c->id);
    wefti_list_init(&c->paid);
    st = wefti_map_put(&s->clients, key, c);
    if (st) {
        wefti_free(c);
        return st;
    }
    wefti_list_push_back(&s->client_list, &c->link);
    s->n_clients++;
    *out = c;
    return WEFT_OK;
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
    bool new = !c;
    weft_status_t st = new ? client_new(s, id, &c) : WEFT_OK;
    if (st)
        return st;
    uint64_t until = weft_now(s->ss->rt) + lease_ns;
    st = wefti_store_alarm_set(s->ss, &c->lease, until, lease_over, c);
    if (st) { /* one that was somewhere else stays there */
        if (new)
            wefti_store_client_end(c, false);
        return st;
    }
    c->until = until;
    if (c->ep != ep) {
        leave_ep(c);
        c->ep = ep;
        c->at = e;
        wefti_list_push_back(&e->clients, &c->ep_link);
        e->n_clients++;
    }
    c->lease_ns = lease_ns;
    c->timed = timed;
    *client_out = c;
    return WEFT_OK;
}

void wefti_store_client_end(store_client_t *c, bool expired)
{
    weft_store_server_t *s = c->server;
    leave_ep(c);
    wefti_store_alarm_stop(&c->lease);
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
