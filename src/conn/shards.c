/* conn/shards.c - connections among the shards of a runtime: the acceptors are the head's, the connections everybody's.
 *
 * A wire that arrives goes, before its hello, to the shard with the least to do. There a twin of the listener takes it: the
 * hello, which is most of the work of a connection, is done by the shard that will have it. A twin is made by the first wire that
 * comes, and goes with the listener. A peer that wants its endpoint back (a reconnect) says so in its hello; its wire moves once
 * more, to the shard that has that endpoint.
 *
 * Calls from the head to a shard arrive in the order in which they were made: wires, then the end of the twin. The listener stays
 * until every shard that got a wire has said that its twin is gone, or is closed itself, and until the endpoints that they sent
 * it have come.
 *
 * Promise: a wire is in one shard at a time, and in none is it forgotten; an endpoint whose shard is closed is not delivered.
 * tests/wire/shards.c. */
#include <sodium.h>
#include <string.h>

#include "conn/ep.h"

/* What the head's listener knows of its twin on one shard. */
struct wefti_away {
    weft_listener_t *l;
    weft_runtime_t *rt;
    bool used;               /* wires went there: it may have a twin */
    wefti_call_t shut, gone; /* to the shard, and back */
};

/* A wire on its way to a shard. */
typedef struct arrival {
    wefti_call_t call;
    weft_runtime_t *rt;
    weft_listener_t *l; /* the head's */
    uint64_t serial, source;
    wefti_loose_t loose;
    size_t hello_n;
    uint8_t hello[WEFTI_HELLO_MAX];
    char from[];
} arrival_t;

/* An endpoint on its way to the head's listener, or waiting there. */
typedef struct delivery {
    wefti_call_t call;
    wefti_list_t link; /* weft_listener_t.ready_away */
    weft_listener_t *l;
    wefti_epx_t *ep;
} delivery_t;

/* --- wires ------------------------------------------------------------------------------------------------------------------ */

/* The listener with this serial number on this shard. NULL: there is none. */
static weft_listener_t *find(wefti_conn_t *conn, uint64_t serial)
{
    wefti_list_each(it, &conn->listeners) {
        weft_listener_t *l = wefti_container_of(it, weft_listener_t, all);
        if (l->serial == serial)
            return l;
    }
    return NULL;
}

static void arrive(wefti_call_t *call)
{
    arrival_t *a = wefti_container_of(call, arrival_t, call);
    wefti_conn_t *conn = wefti_conn_of(a->rt);
    weft_listener_t *l = find(conn, a->serial);
    wefti_wire_t *wire;
    if (!l && !conn->shut && wefti_shard_number(a->rt))
        l = wefti_listener_twin(conn, a->l, a->serial);
    if (!l || l->closed || conn->shut) {
        conn->fabric->ops->wire_drop(conn->fabric, &a->loose);
    } else if (!conn->fabric->ops->wire_adopt(conn->fabric, &a->loose, a->source, &wire)) {
        wefti_link_t *link = wefti_listener_take(l, wire, a->from);
        if (link && a->hello_n)
            wefti_shake_message(link, a->hello, a->hello_n);
    }
    atomic_fetch_sub(&a->rt->connections, 1);
    wefti_free(a);
}

/* False: it stays where it is. */
static bool send_to(weft_runtime_t *rt, weft_listener_t *l, const wefti_loose_t *loose, uint64_t source, const char *from,
                    const void *hello, size_t n)
{
    size_t len = strlen(from) + 1;
    arrival_t *a = n <= WEFTI_HELLO_MAX ? wefti_malloc(sizeof *a + len) : NULL;
    if (!a)
        return false;
    memset(a, 0, offsetof(arrival_t, hello));
    *a = (arrival_t){
        .call = {.fn = arrive}, .rt = rt, .l = l, .serial = l->serial, .source = source, .loose = *loose, .hello_n = n};
    if (n)
        memcpy(a->hello, hello, n);
    memcpy(a->from, from, len);
    atomic_fetch_add(&rt->connections, 1);
    if (wefti_call_on_driver(rt, &a->call))
        return true;
    atomic_fetch_sub(&rt->connections, 1);
    wefti_free(a);
    return false;
}

bool wefti_away_wire(void *listener, const wefti_loose_t *loose, uint64_t source, const char *from)
{
    weft_listener_t *l = listener;
    if (!l->away || l->n_ready + l->n_ready_away >= l->backlog)
        return false;
    weft_runtime_t *rt = wefti_shard_least(l->rt);
    if (rt == l->rt)
        return false;
    l->away[wefti_shard_number(rt)].used = true;
    return send_to(rt, l, loose, source, from, NULL, 0);
}

bool wefti_away_resume(wefti_link_t *link, uint32_t shard, const void *hello, size_t n)
{
    weft_listener_t *l = link->listener;
    weft_runtime_t *rt = link->conn->rt;
    if (!l || shard >= wefti_n_shards(rt) || shard == wefti_shard_number(rt))
        return false;
    /* Only the head knows which shards may have a twin, so it sends it on. A peer is moved twice at most, for the shard that
     * has its endpoint is the last one that is asked. */
    wefti_loose_t loose;
    if (!link->conn->fabric->ops->wire_release(link->wire, &loose))
        return false;
    link->wire = NULL;
    weft_listener_t *head = l->of ? l->of : l;
    if (!wefti_shard_number(rt))
        head->away[shard].used = true;
    if (!send_to(wefti_shard_number(rt) ? wefti_head(rt) : wefti_shard(rt, shard), head, &loose, link->source, link->where, hello,
                 n))
        link->conn->fabric->ops->wire_drop(link->conn->fabric, &loose);
    wefti_link_abandon(link);
    return true;
}

/* --- endpoints ------------------------------------------------------------------------------------------------------------ */

static weft_status_t run_untaken(const wefti_conn_call_t *c)
{
    if (wefti_ep_is_there(&c->ep->pub)) {
        c->ep->hooks = (weft_ep_hooks_t){0}; /* its program never knew it */
        wefti_close_end(c->ep, WEFT_ERR_CLOSED, WEFT_ERR_CLOSED);
    }
    return WEFT_OK;
}

/* If there is no memory for that, it ends with the runtime. */
static void end_untaken(wefti_epx_t *ep)
{
    (void)wefti_conn_do(ep->pub.rt, &(wefti_conn_call_t){.run = run_untaken, .ep = ep});
}

static void deliver(wefti_call_t *call)
{
    delivery_t *d = wefti_container_of(call, delivery_t, call);
    weft_listener_t *l = d->l;
    atomic_fetch_sub(&l->n_coming, 1);
    if (l->closed) {
        end_untaken(d->ep);
        wefti_free(d);
        wefti_conn_kick(l->conn);
        return;
    }
    wefti_list_push_back(&l->ready_away, &d->link);
    l->n_ready_away++;
    wefti_listener_offer(l);
}

bool wefti_away_deliver(weft_listener_t *twin, wefti_epx_t *ep)
{
    delivery_t *d = wefti_calloc(1, sizeof *d);
    if (!d)
        return false;
    d->call.fn = deliver;
    d->l = twin->of;
    d->ep = ep;
    /* the head's listener waits for its twins, but not for those of a shard that closes: it must wait for this, too */
    atomic_fetch_add(&d->l->n_coming, 1);
    if (!wefti_call_on_driver(wefti_head(twin->rt), &d->call)) { /* the runtime closes, and takes the endpoint with it */
        atomic_fetch_sub(&d->l->n_coming, 1);
        wefti_free(d);
    }
    return true;
}

bool wefti_away_let_dead_go(weft_listener_t *l)
{
    unsigned n = 0;
    wefti_list_each(it, &l->ready_away) {
        delivery_t *d = wefti_container_of(it, delivery_t, link);
        weft_ep_state_t state = wefti_ep_state(d->ep);
        if (state == WEFT_EP_FAILED || state == WEFT_EP_PEER_CLOSED) {
            wefti_list_remove(&d->link);
            l->n_ready_away--;
            end_untaken(d->ep);
            wefti_free(d);
            return true;
        }
        if (++n == WEFTI_LOOK_MOST)
            break;
    }
    return false;
}

wefti_epx_t *wefti_away_take(weft_listener_t *l)
{
    wefti_list_t *n = wefti_list_pop(&l->ready_away);
    if (!n)
        return NULL;
    delivery_t *d = wefti_container_of(n, delivery_t, link);
    wefti_epx_t *ep = d->ep;
    l->n_ready_away--;
    wefti_free(d);
    return ep;
}

/* --- the end -------------------------------------------------------------------------------------------------------------- */

static void twin_gone(wefti_call_t *call)
{
    struct wefti_away *a = wefti_container_of(call, struct wefti_away, gone);
    a->l->n_away--;
    wefti_conn_kick(a->l->conn);
}

/* On the driver of a shard. The head is closed after it. */
static void answer(struct wefti_away *a)
{
    (void)wefti_call_on_driver(wefti_head(a->rt), &a->gone);
}

static void shut_twin(wefti_call_t *call)
{
    struct wefti_away *a = wefti_container_of(call, struct wefti_away, shut);
    weft_listener_t *twin = find(wefti_conn_of(a->rt), a->l->serial);
    if (!twin) {
        answer(a);
        return;
    }
    twin->answer = a;
    wefti_listener_shut(twin);
    wefti_conn_kick(twin->conn);
}

void wefti_away_shut(weft_listener_t *l)
{
    wefti_epx_t *ep;
    while ((ep = wefti_away_take(l)))
        end_untaken(ep);
    for (uint32_t k = 1; l->away && k < wefti_n_shards(l->rt); k++)
        l->n_away += l->away[k].used && wefti_call_on_driver(l->away[k].rt, &l->away[k].shut);
}

void wefti_away_freed(weft_listener_t *l)
{
    if (l->answer)
        answer(l->answer);
    wefti_free(l->away);
}

weft_status_t wefti_away_new(weft_listener_t *l)
{
    uint32_t n = wefti_n_shards(l->rt);
    if (n == 1)
        return WEFT_OK;
    l->away = wefti_calloc(n, sizeof *l->away);
    if (!l->away)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a listener of %u shards", n);
    for (uint32_t k = 0; k < n; k++) {
        struct wefti_away *a = &l->away[k];
        a->l = l;
        a->rt = wefti_shard(l->rt, k);
        a->shut.fn = shut_twin;
        a->gone.fn = twin_gone;
    }
    return WEFT_OK;
}

/* --- a runtime that calls itself ------------------------------------------------------------------------------------------ */

/* Then a link of its own is the other end of the wire. Anyone else who shows our id lies. That link may be of another shard,
 * where only its driver can look. So the nonces of a runtime with several shards are recognised by what they are: the second half
 * is a MAC over the first. */
enum { HALF = WEFTI_NONCE_SIZE / 2 };

static void second_half(const wefti_conn_t *conn, const uint8_t *nonce, uint8_t out[HALF])
{
    crypto_generichash(out, HALF, nonce, HALF, conn->nonce_key, sizeof conn->nonce_key);
}

void wefti_nonce_make(wefti_conn_t *conn, uint8_t *nonce)
{
    conn->fabric->ops->random(conn->fabric, nonce, WEFTI_NONCE_SIZE);
    if (wefti_sharded(conn->rt))
        second_half(conn, nonce, nonce + HALF);
}

bool wefti_peer_is_us_or_another(const wefti_link_t *link)
{
    const wefti_conn_t *conn = link->conn;
    const wefti_hello_t *peer = &link->shake->peer;
    uint8_t half[HALF];
    if (memcmp(peer->uuid, conn->uuid, sizeof peer->uuid))
        return true;
    if (wefti_sharded(conn->rt)) {
        second_half(conn, peer->nonce, half);
        return !sodium_memcmp(half, peer->nonce + HALF, HALF);
    }
    wefti_list_each(it, &conn->links) {
        const wefti_link_t *other = wefti_container_of(it, wefti_link_t, all);
        if (other->side != link->side && other->shake && !memcmp(other->shake->nonce, peer->nonce, sizeof peer->nonce))
            return true;
    }
    return false;
}
