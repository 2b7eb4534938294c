/* conn/ep.c - endpoints: making them, and what moves them between states (ep.h has the picture).
 *
 * A failure has three steps, so that the hook sees a quiet endpoint: wefti_ep_fail() completes what it can and closes the
 * lane; the fabric lets go of the rest; the work asks the hook. Before that, wefti_ep_dying() gives the lane a moment after
 * its wire ended: the kernel tells of a death before the ring or the network is read empty, and what arrived before the end
 * counts.
 *
 * Promise: `failed` is asked once per failure, after the operations it concerns; `closed` is called exactly once for an
 * endpoint that was ever up, else never; an endpoint is freed when the fabric and the traffic have let go of it and its owner
 * has closed it. tests/wire/conn_hooks.c, tests/fault/conn_kill.c, tests/sim. */
#include <stdio.h>
#include <string.h>

#include "conn/ep.h"

#define DYING_LOOK (200 * WEFT_MICROSECOND) /* silence on the lane after the wire's end that counts as empty */
#define DYING_MOST (100 * WEFT_MILLISECOND)
#define RECONNECT_DEFAULT (30 * WEFT_SECOND)
#define TRANSPORT_SHM 1 /* memory is shared across the network namespaces that make hosts differ in the hello */

static size_t round_up(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(wefti_epx_t, pub);

static void free_traffic(wefti_epx_t *ep)
{
    EACH_TRAFFIC(ep, t) {
        t->ep_free(&ep->pub);
        if (t->outbox)
            wefti_outbox_free(&ep->pub, ep->pub.traffic[t_i]);
    }
    memset(ep->pub.traffic, 0, sizeof ep->pub.traffic);
    wefti_free(ep->traffic);
}

weft_status_t wefti_ep_new(wefti_conn_t *conn, const weft_ep_hooks_t *hooks, uint64_t reconnect_ns, bool starting,
                           wefti_epx_t **ep_out)
{
    size_t size = 0, at = 0;
    for (int i = 0; i < WEFTI_TRAFFIC_N; i++)
        size += conn->traffic[i] ? round_up(conn->traffic[i]->ep_state_size) : 0;
    void *traffic = wefti_aligned_alloc(64, size ? size : 64);
    wefti_epx_t *ep = traffic ? wefti_handle_new(&handles) : NULL;
    if (!ep) {
        wefti_free(traffic);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an endpoint of %zu bytes", sizeof *ep + size);
    }
    memset(traffic, 0, size);
    ep->pub.rt = conn->rt;
    ep->traffic = traffic;
    ep->conn = conn;
    ep->hooks = *hooks;
    ep->reconnect_ns = reconnect_ns ? reconnect_ns : RECONNECT_DEFAULT;
    ep->starting = starting;
    ep->timer.fn = wefti_ep_patience;
    wefti_list_init(&ep->connect_ops);
    wefti_payload_new(ep);
    wefti_ep_set_state(ep, WEFT_EP_CONNECTING);
    EACH_TRAFFIC(ep, t) {
        ep->pub.traffic[t_i] = (char *)traffic + at;
        at += round_up(t->ep_state_size);
        t->ep_new(&ep->pub);
    }
    uint64_t id = 0;
    pthread_mutex_lock(&conn->lock);
    weft_status_t st = wefti_slots_add(&conn->slots, ep, &id);
    pthread_mutex_unlock(&conn->lock);
    if (st) {
        free_traffic(ep);
        wefti_handle_free(&handles, ep);
        return st == WEFT_ERR_LIMIT
                   ? wefti_fail(st, "the runtime has %u endpoints, as many as it may (WEFT_MAX_ENDPOINTS)", conn->slots.max)
                   : wefti_fail(st, "no memory for the id of an endpoint");
    }
    ep->pub.id = id | (uint64_t)wefti_shard_number(conn->rt) << WEFTI_ID_SHARD;
    *ep_out = ep;
    return WEFT_OK;
}

void wefti_ep_free(wefti_epx_t *ep)
{
    wefti_conn_t *conn = ep->conn;
    wefti_timer_stop(conn->rt, &ep->timer);
    wefti_cache_forget(ep);
    if (wefti_list_linked(&ep->all))
        wefti_list_remove(&ep->all);
    if (wefti_list_linked(&ep->work))
        wefti_list_remove(&ep->work);
    if (wefti_list_linked(&ep->ready))
        wefti_list_remove(&ep->ready);
    pthread_mutex_lock(&conn->lock);
    wefti_slots_remove(&conn->slots, wefti_id_slot(ep->pub.id));
    atomic_store(&ep->pub.handle.open, 0); /* from here on nobody who has the lock looks at what is freed now */
    pthread_mutex_unlock(&conn->lock);
    wefti_ep_set_state(ep, WEFT_EP_GONE);
    ep->pub.lane = NULL;
    free_traffic(ep);
    wefti_payload_free(ep);
    for (wefti_peer_t *p = atomic_load(&ep->peer), *older; p; p = older) {
        older = p->older;
        wefti_free(p);
    }
    if (ep->dial) {
        wefti_guard_drop(conn->rt, ep->dial->guard);
        wefti_free(ep->dial->source);
        wefti_free(ep->dial->cache_key);
        wefti_free(ep->dial);
    }
    wefti_handle_free(&handles, ep);
}

void wefti_ep_kick(wefti_epx_t *ep)
{
    if (!wefti_list_linked(&ep->work))
        wefti_list_push_back(&ep->conn->work, &ep->work);
    wefti_conn_kick(ep->conn);
}

/* What those say that end with it, where nothing was lost: whose doing it was. */
static uint64_t explain_end(const wefti_epx_t *ep, weft_status_t why)
{
    const char *where = ep->link ? ep->link->where : NULL, *to = where ? " to " : "";
    if (!where)
        where = "";
    if (why == WEFT_ERR_CANCELLED)
        return wefti_detail_format("the endpoint%s%s was aborted, or its close took too long", to, where);
    if (why != WEFT_ERR_CLOSED)
        return 0;
    return wefti_ep_state(ep) == WEFT_EP_PEER_CLOSED ? wefti_detail_format("the peer closed the endpoint%s%s", to, where)
                                                     : wefti_detail_format("the endpoint%s%s was closed", to, where);
}

void wefti_ep_down(wefti_epx_t *ep, weft_status_t why, bool discard)
{
    weft_runtime_t *rt = ep->conn->rt;
    if (!ep->pub.why_detail)
        ep->pub.why_detail = explain_end(ep, why);
    uint64_t was = wefti_why(rt, ep->pub.why_detail);
    EACH_TRAFFIC(ep, t) {
        if (t->outbox)
            wefti_outbox_down(&ep->pub, ep->pub.traffic[t_i], why);
        t->ep_down(&ep->pub, why, discard);
    }
    if (!ep->pub.lane) /* else it closes gracefully: payloads go on */
        wefti_payload_down(ep);
    wefti_why(rt, was);
}

bool wefti_ep_any_sends(wefti_epx_t *ep)
{
    EACH_TRAFFIC(ep, t)
        if ((t->outbox && wefti_outbox_busy(ep->pub.traffic[t_i])) || (t->ep_sends_pending && t->ep_sends_pending(&ep->pub)))
            return true;
    return false;
}

bool wefti_ep_any_busy(wefti_epx_t *ep)
{
    EACH_TRAFFIC(ep, t)
        if ((t->outbox && wefti_outbox_busy(ep->pub.traffic[t_i])) || (t->ep_busy && t->ep_busy(&ep->pub)))
            return true;
    return ep->pub.pulls;
}

void wefti_ep_connects_done(wefti_epx_t *ep, weft_status_t status)
{
    wefti_list_t *n;
    while ((n = wefti_list_pop(&ep->connect_ops))) {
        weft_op_t *op = wefti_op_of_link(n);
        op->from = ep->pub.id;
        wefti_op_complete(op, status);
    }
}

weft_status_t wefti_ep_know_peer(wefti_epx_t *ep, wefti_link_t *link)
{
    const wefti_hello_t *h = &link->shake->peer;
    wefti_peer_t *was = atomic_load(&ep->peer);
    const char *transport = link->lane->transport->name;
    wefti_wire_t *tls = wefti_link_secured(link);
    const char *cipher = tls ? ep->conn->fabric->ops->wire_cipher(tls) : "";
    const wefti_key_t *key = link->shake->auth.keyed ? &link->shake->key : NULL;
    const char *identity = wefti_link_identity(link);
    bool authenticated = link->shake->auth.keyed || tls;
    bool same_host = !memcmp(h->host, ep->conn->host, sizeof h->host) || link->lane->transport->kind == TRANSPORT_SHM;
    if (tls && wefti_identity_watch(ep->conn))
        return WEFT_ERR_NOMEM;
    if (was && !strcmp(was->name, h->name) && !strcmp(was->address, link->where) && was->capabilities == h->capabilities &&
        was->authenticated == authenticated && was->same_host == same_host && was->transport == transport &&
        !strcmp(was->cipher, cipher) && !strcmp(was->identity, identity) && was->by_key == !!key &&
        (!key || (!memcmp(was->key, key->print, sizeof was->key) && !strcmp(was->key_name, key->name))))
        return WEFT_OK;
    size_t name_size = (size_t)h->name_len + 1, where_size = strlen(link->where) + 1;
    size_t cipher_size = strlen(cipher) + 1, identity_size = strlen(identity) + 1;
    wefti_peer_t *p = wefti_malloc(sizeof *p + name_size + where_size + cipher_size + identity_size);
    if (!p)
        return WEFT_ERR_NOMEM;
    p->older = was;
    p->capabilities = h->capabilities;
    p->transport = transport;
    p->authenticated = authenticated;
    p->same_host = same_host;
    p->by_key = key;
    memset(p->key, 0, sizeof p->key);
    p->key_name[0] = 0;
    if (key) {
        memcpy(p->key, key->print, sizeof p->key);
        memcpy(p->key_name, key->name, sizeof p->key_name);
    }
    p->address = p->name + name_size;
    memcpy(p->name, h->name, name_size);
    memcpy(p->address, link->where, where_size);
    p->cipher = memcpy(p->address + where_size, cipher, cipher_size);
    p->identity = memcpy(p->address + where_size + cipher_size, identity, identity_size);
    atomic_store(&ep->peer, p);
    return WEFT_OK;
}

/* --- moving ---------------------------------------------------------------------------------------------------------------- */

void wefti_ep_went_up(wefti_epx_t *ep)
{
    if (ep->was_up)
        ep->conn->n_reconnects++;
    ep->was_up = true;
    wefti_timer_stop(ep->conn->rt, &ep->timer);
    ep->pub.why = WEFT_OK;
    ep->pub.why_detail = 0;
    ep->pub.lane = ep->link->lane;
    wefti_ep_set_state(ep, WEFT_EP_UP);
    const wefti_peer_t *peer = atomic_load(&ep->peer);
    wefti_info("up: %s, the peer \"%s\", over %s; %s%s%s", ep->link->where, peer->name, peer->transport,
               peer->authenticated ? "it proved to be \"" : "it proved nothing", peer->authenticated ? peer->identity : "",
               peer->authenticated ? "\"" : "");
    wefti_ep_connects_done(ep, WEFT_OK);
    EACH_TRAFFIC(ep, t) { /* what waited goes now, and a release function of the program's may abort the endpoint */
        if (ep->pub.lane)
            t->ep_up(&ep->pub);
        if (ep->pub.lane && t->outbox)
            wefti_outbox_up(&ep->pub, ep->pub.traffic[t_i]);
    }
    if (!ep->pub.lane)
        return;
    if (ep->listener && !wefti_list_linked(&ep->ready)) /* else it reconnected while it waited there to be taken */
        wefti_listener_deliver(ep->listener, ep);
}

void wefti_ep_fail(wefti_epx_t *ep, weft_status_t why)
{
    if (wefti_ep_state(ep) != WEFT_EP_UP)
        return;
    ep->conn->n_failed++;
    ep->dying = false;
    ep->doom = WEFT_OK;
    wefti_timer_stop(ep->conn->rt, &ep->timer);
    ep->pub.why = why;
    ep->pub.lane = NULL;
    wefti_ep_set_state(ep, WEFT_EP_FAILED);
    ep->asking = true;
    ep->link->deliver = false;
    wefti_ep_down(ep, why, false);
    wefti_link_drop(ep->link);
}

void wefti_ep_dying(wefti_epx_t *ep)
{
    if (ep->dying)
        return;
    uint64_t now = wefti_now(ep->conn->rt);
    ep->dying = true;
    ep->pub.heard = 0;
    ep->until = now + DYING_MOST;
    if (wefti_timer_at(ep->conn->rt, &ep->timer, now + DYING_LOOK)) {
        ep->dying = false;
        wefti_link_lost(ep->link, WEFT_ERR_PEER, "its wire ended");
    }
}

void wefti_ep_patience(wefti_timer_t *t)
{
    wefti_epx_t *ep = wefti_container_of(t, wefti_epx_t, timer);
    uint64_t now = ep->conn->rt->now;
    if (ep->dying) {
        if (ep->pub.heard && now < ep->until) {
            ep->pub.heard = 0;
            if (!wefti_timer_at(ep->conn->rt, t, now + DYING_LOOK))
                return;
        }
        ep->dying = false;
        wefti_link_lost(ep->link, WEFT_ERR_PEER, "its wire ended: the process or its host is gone, or it aborted the endpoint");
        return;
    }
    switch (wefti_ep_state(ep)) {
    case WEFT_EP_CLOSING:
        wefti_close_timeout(ep);
        break;
    case WEFT_EP_RECONNECTING:
        wefti_reconnect_timer(ep);
        break;
    case WEFT_EP_CONNECTING:
        wefti_ep_dial_round(ep);
        break;
    default:
        break;
    }
}

void wefti_ep_give_up(wefti_epx_t *ep, weft_status_t why)
{
    uint64_t was = wefti_why(ep->conn->rt, ep->pub.why_detail);
    wefti_timer_stop(ep->conn->rt, &ep->timer);
    wefti_cache_forget(ep);
    ep->pub.why = why;
    ep->pub.lane = NULL;
    wefti_ep_set_state(ep, WEFT_EP_FAILED);
    wefti_ep_connects_done(ep, why);
    wefti_ep_down(ep, why, false);
    wefti_why(ep->conn->rt, was);
    if (ep->was_up)
        ep->tell = 2; /* two works, so that completions queued behind the present one come first */
    wefti_ep_kick(ep);
}

static void ask(wefti_epx_t *ep)
{
    weft_status_t why = ep->pub.why;
    ep->asking = false;
    weft_on_failure_t answer = ep->hooks.failed ? ep->hooks.failed(&ep->pub, why, ep->hooks.user) : WEFT_GIVE_UP;
    if (ep->close_stage != WEFTI_CLOSE_NOT)
        return; /* the hook closed it */
    if (answer == WEFT_RECONNECT)
        wefti_reconnect_begin(ep);
    else
        wefti_ep_give_up(ep, why);
}

void wefti_ep_step(wefti_epx_t *ep)
{
    if (ep->doom && ep->link && ep->link->state == WEFTI_LINK_UP) {
        weft_status_t doom = ep->doom;
        char text[WEFTI_DETAIL_MAX];
        snprintf(text, sizeof text, "%s%s", ep->doomed_by_peer ? "the peer broke the protocol: " : "", ep->doom_text);
        ep->doom = WEFT_OK;
        wefti_link_lost(ep->link, doom, text);
    }
    if (ep->unsure)
        wefti_recheck_step(ep);
    if (ep->tell && --ep->tell == 0)
        wefti_close_tell(ep);
    else if (ep->tell)
        wefti_ep_kick(ep);
    if (ep->asking && !ep->link && ep->close_stage == WEFTI_CLOSE_NOT)
        ask(ep);
    if (ep->resumer && wefti_ep_state(ep) != WEFT_EP_UP && !ep->asking && !ep->link)
        wefti_shake_unheld(ep->resumer); /* it gets this endpoint, or a new one */
    wefti_close_step(ep);                /* last: it may free it */
}
