/* conn/handshake.c - the exchange over the wire that makes a lane, both sides of it.
 *
 *     dialler                                    listener
 *     HELLO (version, nonce, name, transports) --->   checks version and that both or neither have a key
 *                                         <---   WELCOME (the same of its own) + MAC
 *     checks the MAC; picks a transport;
 *     JOIN (its half of a lane) + MAC     --->   checks the MAC; asks the admit hook; makes an endpoint
 *                                         <---   LANE (the other half, the endpoint's id and cookie) + MAC
 *     UP over the lane                   <-->    UP over the lane
 *
 * A transport that fails on the dialler's side makes it send another JOIN, one that fails on the listener's side makes that send
 * RETRY; `attempt` tells answers to different tries apart. Either side may end it with REFUSE and a sentence. The wire is
 * ordered, the lane is not ordered with it: the listener's UP may arrive before its LANE. A lane may share the rings of an
 * earlier one; then the listener waits for the dialler's UP (trunk.c).
 *
 * Promise: no endpoint exists, no hook runs and no transport is touched for a peer that has not proved the key (when there is
 * one); an endpoint is up only after the lane has carried a record each way. tests/wire/conn_connect.c, conn_auth.c;
 * tests/fault/conn_garbage.c, conn_wrong_key.c, conn_wrong_version.c. */
#include <stdio.h>
#include <string.h>

#include "conn/ep.h"

#define LANE_BUF (WEFTI_LANE_HEAD + WEFTI_LANE_ADDR_MAX + WEFTI_MAC_SIZE)

void wefti_shake_free(wefti_shake_t *shake)
{
    if (!shake)
        return;
    wefti_auth_wipe(&shake->auth);
    explicit_bzero(&shake->key, sizeof shake->key);
    wefti_free(shake->hello);
    wefti_free(shake->held_join);
    wefti_free(shake);
}

/* A wire that cannot take it is the end of the link. buf has space for the MAC. */
static bool say(wefti_link_t *link, void *buf, size_t n)
{
    n = wefti_auth_seal(&link->shake->auth, link->side, buf, n);
    weft_status_t st = link->conn->fabric->ops->wire_send(link->wire, buf, n);
    if (!st)
        return true;
    wefti_link_lost(link, st, "a message of the hello could not be sent");
    return false;
}

void wefti_shake_refuse(wefti_link_t *link, weft_status_t status, const char *text)
{
    uint8_t buf[WEFTI_REFUSE_MAX + WEFTI_MAC_SIZE];
    if (!link->shake || !link->wire)
        return;
    size_t n = wefti_refuse_encode(0, status, text, buf, sizeof buf);
    n = wefti_auth_seal(&link->shake->auth, link->side, buf, n);
    (void)link->conn->fabric->ops->wire_send(link->wire, buf, n); /* a courtesy: the wire closes anyway */
}

void wefti_shake_turn_away(wefti_conn_t *conn, wefti_wire_t *wire, weft_status_t status, const char *text)
{
    uint8_t buf[WEFTI_REFUSE_MAX];
    (void)conn->fabric->ops->wire_send(wire, buf, wefti_refuse_encode(0, status, text, buf, sizeof buf));
    conn->fabric->ops->wire_close(wire);
}

static const wefti_hello_transport_t *caps_of(const wefti_hello_t *h, uint8_t kind)
{
    unsigned i = 0;
    while (i < h->n_transports && h->transports[i].kind != kind)
        i++;
    return i < h->n_transports ? &h->transports[i] : NULL;
}

/* The listener shows what its transports are only to those who have the same: others learn nothing of its host. */
static void add_transport(wefti_link_t *link, wefti_transport_t *transport, wefti_hello_t *h)
{
    const wefti_hello_transport_t *theirs = caps_of(&link->shake->peer, transport->kind);
    if (link->side == WEFTI_SIDE_LISTENER && (!theirs || !transport->ops->match(transport, theirs->caps, theirs->caps_len)))
        return;
    wefti_hello_transport_t *own = &h->transports[h->n_transports++];
    own->kind = transport->kind;
    own->caps_len = (uint8_t)transport->ops->caps(transport, link->side, own->caps);
}

static void fill_hello(wefti_link_t *link, wefti_hello_t *h)
{
    wefti_conn_t *conn = link->conn;
    weft_runtime_t *rt = conn->rt;
    memset(h, 0, sizeof *h);
    h->flags = rt->has_key ? WEFTI_HELLO_KEYED : 0;
    h->min_version = WEFTI_PROTOCOL_MIN;
    h->max_version = WEFTI_PROTOCOL_MAX;
    wefti_nonce_make(conn, link->shake->nonce);
    memcpy(h->nonce, link->shake->nonce, sizeof h->nonce);
    wefti_shake_own_key(link, h);
    memcpy(h->uuid, conn->uuid, sizeof h->uuid);
    memcpy(h->host, conn->host, sizeof h->host);
    EACH_TRAFFIC(link, t)
        h->capabilities |= t->capability | WEFT_CAN_DEVICE;
    h->heartbeat_ns = rt->config.heartbeat;
    h->recv_window = rt->config.recv_window;
    h->name_len = (uint8_t)strnlen(rt->name, WEFTI_NAME_MAX);
    memcpy(h->name, rt->name, h->name_len);
    for (unsigned i = 0; i < conn->fabric->n_transports; i++)
        add_transport(link, conn->fabric->transports[i], h);
}

/* Read the peer's hello or welcome. False: the link is lost. */
static bool know_hello(wefti_link_t *link, uint8_t type, const void *bytes, size_t n)
{
    wefti_hello_t *h = &link->shake->peer;
    bool keyed = link->conn->rt->has_key, dialler = link->side == WEFTI_SIDE_DIALLER;
    const char *what = "";
    char text[160];
    weft_status_t st = wefti_hello_decode(bytes, n, type, h, &what);
    if (st == WEFT_ERR_VERSION) {
        snprintf(text, sizeof text, "protocol versions do not meet: one side speaks %u to %u, the other %u to %u",
                 WEFTI_PROTOCOL_MIN, WEFTI_PROTOCOL_MAX, h->min_version, h->max_version);
        what = text;
    } else if (!st && !(h->flags & WEFTI_HELLO_KEYED) != !keyed) {
        st = WEFT_ERR_AUTH;
        what = keyed == dialler ? "the dialler has a key and the listener has none; certificates do not take its place"
                                : "the listener has a key and the dialler has none; certificates do not take its place";
    }
    if (st)
        wefti_link_lost(link, st, what);
    return !st;
}

/* --- dialler --------------------------------------------------------------------------------------------------------------- */

void wefti_shake_opened(void *wire_user)
{
    wefti_link_t *link = wire_user;
    wefti_shake_t *s = link->shake;
    const wefti_epx_t *ep = link->ep;
    wefti_hello_t h;
    fill_hello(link, &h);
    if (ep->was_up && ep->has_cookie) {
        h.flags |= WEFTI_HELLO_RESUME;
        h.resume_id = ep->resume_id;
        memcpy(h.cookie, ep->cookie, sizeof h.cookie);
    } else if (ep->dial->beside) { /* without its cookie: that endpoint is not wanted, only its shard */
        h.flags |= WEFTI_HELLO_RESUME;
        h.resume_id = ep->dial->beside;
    }
    uint8_t buf[WEFTI_HELLO_MAX];
    s->hello_len = wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf);
    s->hello = wefti_malloc(s->hello_len);
    if (!s->hello) {
        wefti_link_lost(link, WEFT_ERR_NOMEM, "no memory for a hello");
        return;
    }
    memcpy(s->hello, buf, s->hello_len);
    link->state = WEFTI_LINK_HELLO;
    say(link, s->hello, s->hello_len); /* nothing is sealed yet, so the bytes stay as they are */
}

/* Our half of a lane over the next transport that both have. */
void wefti_shake_join(wefti_link_t *link)
{
    wefti_shake_t *s = link->shake;
    wefti_fabric_t *f = link->conn->fabric;
    uint8_t addr[WEFTI_LANE_ADDR_MAX], buf[LANE_BUF];
    while (s->transport_at < f->n_transports) {
        wefti_transport_t *transport = f->transports[s->transport_at++];
        const wefti_hello_transport_t *caps = caps_of(&s->peer, transport->kind);
        wefti_lane_msg_t j = {.type = WEFTI_SHAKE_JOIN, .kind = transport->kind, .addr = addr};
        if (!caps || !transport->ops->match(transport, caps->caps, caps->caps_len) ||
            !wefti_half_make(link, transport, caps, NULL, addr, &j.addr_len))
            continue;
        j.attempt = ++s->attempt;
        link->state = WEFTI_LINK_JOIN;
        say(link, buf, wefti_lane_msg_encode(&j, buf, sizeof buf));
        return;
    }
    const char *have = link->conn->rt->config.transports;
    char text[240];
    snprintf(text, sizeof text, "%s (transports of the dialler: %.80s; WEFT_TRANSPORTS chooses)",
             s->in_the_clear
                 ? "the transports that both sides have failed, or cannot be encrypted as what goes there has to be: tcp can"
             : s->why_not ? "every transport both sides have failed"
                          : "the two sides have no transport in common",
             have ? have : "all");
    wefti_link_lost(link, s->why_not == WEFT_ERR_NOMEM || s->why_not == WEFT_ERR_LIMIT ? s->why_not : WEFT_ERR_UNREACHABLE, text);
}

static void got_welcome(wefti_link_t *link, const void *bytes, size_t n)
{
    wefti_shake_t *s = link->shake;
    weft_runtime_t *rt = link->conn->rt;
    wefti_dial_t *dial = link->ep->dial;
    size_t mac = rt->has_key ? WEFTI_MAC_SIZE : 0, body = n > mac ? n - mac : 0;
    if (!know_hello(link, WEFTI_SHAKE_WELCOME, bytes, body))
        return;
    wefti_auth_begin(&s->auth, rt->has_key ? s->key.secret : NULL, s->hello, s->hello_len, bytes, body, s->nonce, s->peer.nonce);
    wefti_free(s->hello);
    s->hello = NULL;
    if (!wefti_auth_check(&s->auth, WEFTI_SIDE_LISTENER, bytes, n, &body)) {
        wefti_link_lost(link, WEFT_ERR_AUTH, "the listener's proof does not fit: the two keys differ");
        return;
    }
    if (dial->has_uuid && memcmp(dial->uuid, s->peer.uuid, sizeof dial->uuid)) {
        wefti_link_lost(link, WEFT_ERR_UNREACHABLE, "someone else answers at the address of that runtime");
        return;
    }
    if (!wefti_peer_is_us_or_another(link)) {
        wefti_link_lost(link, WEFT_ERR_PROTOCOL, "the listener shows the id of the very runtime that calls it");
        return;
    }
    s->got_peer = true;
    if (wefti_trunk_wait(link))
        link->state = WEFTI_LINK_JOIN; /* without a lane yet: wefti_shake_join() when its turn has come */
    else
        wefti_shake_join(link);
}

/* The lane is connected on our side: say so over it, and let the peer hear us from now on. */
static void rise(wefti_link_t *link)
{
    weft_status_t st = link->guest ? WEFT_OK : wefti_beat_begin(link);
    if (st) {
        wefti_link_lost(link, st, "there is no thread or memory for heartbeats");
        return;
    }
    link->state = WEFTI_LINK_RISING;
    if (!link->guest || link->side == WEFTI_SIDE_DIALLER)
        wefti_link_owe(link, WEFTI_OWE_UP); /* a guest's dialler must have joined its half first: trunk.c */
}

/* Read a JOIN or a LANE. False: the link is lost. */
static bool read_lane_msg(wefti_link_t *link, const void *bytes, size_t n, wefti_lane_msg_t *msg)
{
    const char *what = "";
    weft_status_t st = wefti_lane_msg_decode(bytes, n, wefti_shake_type(bytes, n), msg, &what);
    if (st)
        wefti_link_lost(link, st, what);
    return !st;
}

static void got_lane(wefti_link_t *link, const void *bytes, size_t n)
{
    wefti_epx_t *ep = link->ep;
    wefti_lane_msg_t l;
    if (!read_lane_msg(link, bytes, n, &l))
        return;
    if (l.attempt != link->shake->attempt || !link->lane)
        return; /* the answer to a try that has failed here meanwhile */
    if (link->state != WEFTI_LINK_JOIN) {
        wefti_link_lost(link, WEFT_ERR_PROTOCOL, "a second answer to one join");
        return;
    }
    if (!wefti_half_connect(link, l.addr, l.addr_len)) {
        wefti_shake_join(link);
        return;
    }
    if (ep->was_up && !l.resumed)
        wefti_info("%s no longer knew the endpoint; it has a new one now", link->where);
    ep->has_cookie = true;
    ep->resume_id = l.id;
    memcpy(ep->cookie, l.cookie, sizeof ep->cookie);
    rise(link);
}

static void got_retry(wefti_link_t *link, const void *bytes, size_t n)
{
    wefti_refuse_t r;
    const char *what = "";
    weft_status_t st = wefti_refuse_decode(bytes, n, WEFTI_SHAKE_RETRY, &r, &what);
    if (st) {
        wefti_link_lost(link, st, what);
        return;
    }
    if (r.attempt != link->shake->attempt || !link->lane)
        return;
    wefti_info("%s cannot use %s: %s", link->where, link->lane->transport->name, weft_status_text(r.status));
    link->shake->why_not = WEFT_ERR_UNREACHABLE;
    wefti_half_give_up(link);
    wefti_shake_join(link);
}

/* --- listener -------------------------------------------------------------------------------------------------------------- */

static void got_hello(wefti_link_t *link, const void *bytes, size_t n)
{
    wefti_shake_t *s = link->shake;
    weft_runtime_t *rt = link->conn->rt;
    wefti_hello_t h;
    uint8_t buf[WEFTI_HELLO_MAX + WEFTI_MAC_SIZE];
    if (!know_hello(link, WEFTI_SHAKE_HELLO, bytes, n))
        return;
    if (!wefti_peer_is_us_or_another(link)) {
        wefti_link_lost(link, WEFT_ERR_PROTOCOL, "the dialler shows the id of the very runtime that it calls");
        return;
    }
    if (!wefti_shake_their_key(link)) {
        wefti_link_lost(link, WEFT_ERR_AUTH, "the key of the dialler is none of the listener's: the two keys differ");
        return;
    }
    if (s->peer.flags & WEFTI_HELLO_RESUME && wefti_away_resume(link, wefti_id_shard(s->peer.resume_id), bytes, n))
        return;
    fill_hello(link, &h);
    size_t len = wefti_hello_encode(&h, WEFTI_SHAKE_WELCOME, buf, sizeof buf);
    wefti_auth_begin(&s->auth, rt->has_key ? s->key.secret : NULL, bytes, n, buf, len, s->peer.nonce, s->nonce);
    link->state = WEFTI_LINK_JOIN;
    say(link, buf, len);
}

static void say_retry(wefti_link_t *link)
{
    uint8_t buf[WEFTI_RETRY_SIZE + WEFTI_MAC_SIZE];
    weft_status_t why = link->shake->why_not ? link->shake->why_not : WEFT_ERR_UNREACHABLE;
    link->state = WEFTI_LINK_JOIN;
    say(link, buf, wefti_refuse_encode(link->shake->attempt, why, "", buf, sizeof buf));
}

/* The endpoint this peer gets: the one it had, or a new one. False: it waits for that, or got none and the link is lost. */
static bool give_endpoint(wefti_link_t *link, const void *join, size_t n)
{
    wefti_shake_t *s = link->shake;
    weft_listener_t *l = link->listener;
    wefti_epx_t *ep = NULL;
    if (!wefti_rules_newcomer(link))
        return false;
    if (s->peer.flags & WEFTI_HELLO_RESUME) {
        bool wait = false;
        ep = wefti_reconnect_find(link, &wait);
        if (wait) {
            s->held_join = wefti_malloc(n ? n : 1);
            if (!s->held_join) {
                wefti_link_lost(link, WEFT_ERR_NOMEM, "no memory to let it wait");
                return false;
            }
            memcpy(s->held_join, join, n);
            s->held_len = n;
            s->held = true;
            return false;
        }
    }
    if (!ep) {
        weft_status_t st = wefti_link_admitted(link);
        if (link->state == WEFTI_LINK_DEAD) /* the hook closed its listener */
            return false;
        if (st) {
            wefti_link_lost(link, st > 0 ? WEFT_ERR_REFUSED : st, "the listener's admit hook refused it");
            return false;
        }
        st = wefti_ep_new(link->conn, &l->hooks, l->reconnect_ns, false, &ep);
        if (st) {
            wefti_link_lost(link, st,
                            st == WEFT_ERR_LIMIT ? "the listener has as many endpoints as it may" : "no memory for an endpoint");
            return false;
        }
        wefti_list_push_back(&link->conn->eps, &ep->all);
        link->conn->fabric->ops->random(link->conn->fabric, ep->cookie, sizeof ep->cookie);
        ep->listener = l;
    } else if (ep->link) {
        wefti_link_abandon(ep->link); /* its own earlier try, which it has given up */
    }
    ep->link = link;
    link->ep = ep;
    return true;
}

static void got_join(wefti_link_t *link, const void *bytes, size_t n)
{
    wefti_shake_t *s = link->shake;
    wefti_fabric_t *f = link->conn->fabric;
    wefti_lane_msg_t j;
    uint8_t addr[WEFTI_LANE_ADDR_MAX], buf[LANE_BUF];
    if (!read_lane_msg(link, bytes, n, &j))
        return;
    if (j.attempt <= s->attempt || j.attempt > WEFTI_HELLO_TRANSPORTS_MAX || s->held) {
        wefti_link_lost(link, WEFT_ERR_PROTOCOL, "a join out of its turn");
        return;
    }
    s->got_peer = true;
    if (!link->ep && !give_endpoint(link, bytes, n))
        return;
    if (link->lane)
        wefti_link_close_lane(link);
    s->attempt = j.attempt;
    wefti_transport_t *transport = NULL;
    for (unsigned i = 0; i < f->n_transports; i++)
        if (f->transports[i]->kind == j.kind)
            transport = f->transports[i];
    const wefti_hello_transport_t *caps = caps_of(&s->peer, j.kind);
    wefti_lane_msg_t l = {.type = WEFTI_SHAKE_LANE, .attempt = j.attempt, .resumed = link->ep->was_up, .addr = addr};
    l.id = link->ep->pub.id;
    s->why_not = WEFT_ERR_UNREACHABLE;
    if (!transport || !caps || !transport->ops->match(transport, caps->caps, caps->caps_len) ||
        !wefti_half_make(link, transport, caps, &j, addr, &l.addr_len) || !wefti_half_connect(link, j.addr, j.addr_len)) {
        say_retry(link);
        return;
    }
    memcpy(l.cookie, link->ep->cookie, sizeof l.cookie);
    if (say(link, buf, wefti_lane_msg_encode(&l, buf, sizeof buf)))
        rise(link);
}

void wefti_shake_unheld(wefti_link_t *link)
{
    wefti_shake_t *s = link->shake;
    uint8_t *join = s->held_join;
    size_t n = s->held_len;
    s->held_join = NULL;
    s->held = false;
    wefti_link_detach(link);
    got_join(link, join, n);
    wefti_free(join);
}

/* --- both ------------------------------------------------------------------------------------------------------------------ */

static void got_refuse(wefti_link_t *link, const void *bytes, size_t n)
{
    wefti_refuse_t r;
    const char *what = "";
    weft_status_t st = wefti_refuse_decode(bytes, n, WEFTI_SHAKE_REFUSE, &r, &what);
    wefti_wire_t *wire = link->wire;
    link->wire = NULL; /* no refusal answers a refusal */
    link->conn->fabric->ops->wire_close(wire);
    wefti_link_lost(link, st ? st : r.status, st ? what : r.text);
}

void wefti_shake_message(wefti_link_t *link, const void *bytes, size_t n)
{
    bool dialler = link->side == WEFTI_SIDE_DIALLER;
    uint8_t type = wefti_shake_type(bytes, n);
    if (link->state == WEFTI_LINK_HELLO) {
        /* Nothing is proved yet. A forged refusal can end the attempt, as anyone on the way of the bytes could. */
        if (type == WEFTI_SHAKE_REFUSE)
            got_refuse(link, bytes, n);
        else if (dialler)
            got_welcome(link, bytes, n);
        else
            got_hello(link, bytes, n);
        return;
    }
    if (!wefti_auth_check(&link->shake->auth, dialler ? WEFTI_SIDE_LISTENER : WEFTI_SIDE_DIALLER, bytes, n, &n)) {
        wefti_link_lost(link, WEFT_ERR_AUTH,
                        dialler ? "the listener's proof does not fit: the two keys differ"
                                : "the dialler's proof does not fit: the two keys differ");
        return;
    }
    if (type == WEFTI_SHAKE_REFUSE)
        got_refuse(link, bytes, n);
    else if (!dialler && type == WEFTI_SHAKE_JOIN)
        got_join(link, bytes, n);
    else if (dialler && type == WEFTI_SHAKE_LANE)
        got_lane(link, bytes, n);
    else if (dialler && type == WEFTI_SHAKE_RETRY)
        got_retry(link, bytes, n);
    else
        wefti_link_lost(link, WEFT_ERR_PROTOCOL, "a message that has no place in the hello");
}

void wefti_shake_lane_failed(wefti_link_t *link, weft_status_t why)
{
    link->shake->why_not = why;
    wefti_half_give_up(link);
    if (!link->wire) /* it ended before: the lane was a guest, or others are guests of it */
        wefti_link_lost(link, WEFT_ERR_REFUSED, "it ended the lane during the hello");
    else if (link->side == WEFTI_SIDE_DIALLER)
        wefti_shake_join(link);
    else
        say_retry(link);
}

void wefti_shake_rise(wefti_link_t *link)
{
    if (link->state != WEFTI_LINK_RISING || !link->got_up || (link->owed & WEFTI_OWE_UP))
        return;
    wefti_epx_t *ep = link->ep;
    weft_status_t st = wefti_ep_know_peer(ep, link);
    if (st) {
        wefti_link_lost(link, st, "no memory for a connection");
        return;
    }
    st = wefti_recheck_rising(ep);
    if (st) {
        char text[WEFTI_DETAIL_MAX];
        snprintf(text, sizeof text, "%s", weft_last_error());
        wefti_link_lost(link, st, text);
        return;
    }
    uint8_t uuid[WEFTI_UUID_SIZE];
    memcpy(uuid, link->shake->peer.uuid, sizeof uuid);
    ep->pub.peer_window = (uint32_t)link->shake->peer.recv_window;
    wefti_timer_stop(link->conn->rt, &link->timer);
    wefti_shake_free(link->shake);
    link->shake = NULL;
    wefti_listener_leave(link);
    link->state = WEFTI_LINK_UP;
    link->deliver = true;
    if (!link->guest)
        wefti_beat_watch(link);
    wefti_trunk_up(link, uuid);
    wefti_ep_went_up(ep);
}
