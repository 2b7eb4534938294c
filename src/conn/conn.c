/* conn/conn.c - the room: attaching it to a runtime, sorting the fabric's upcalls, and the work that must not run inside them.
 *
 * An upcall is about a wire or a lane; `user` is its link. A record of traffic takes two loads and a call from here;
 * everything else is rare. Code that finds something to free, or a hook to call, marks it and kicks the work: an operation of
 * our own that completes at once. Its callback comes from the list of completions, behind those of the operations that just
 * completed, with nothing of this room on the stack.
 *
 * Promise: an endpoint, a link or a listener that a caller on the stack holds is still there when we return to it.
 * tests/wire/conn_hooks.c closes everything from everywhere; tests/sim does it millions of times. */
#include "conn/conn.h"

#include <sodium.h>
#include <string.h>

#include "conn/chunks.h"
#include "conn/ep.h"

#define SHUT_GRACE (250 * WEFT_MILLISECOND) /* for a peer to read our CLOSE_ACK before the runtime goes */

/* --- the work -------------------------------------------------------------------------------------------------------------- */

static void work_run(wefti_conn_t *conn)
{
    wefti_list_t batch, *n;
    wefti_payload_work(conn);
    wefti_list_init(&batch);
    wefti_list_splice(&batch, &conn->work);
    while ((n = wefti_list_pop(&batch)))
        wefti_ep_step(wefti_container_of(n, wefti_epx_t, work));
    wefti_trunk_work(conn);
    /* After the endpoints: one whose link is gone has its step in the next work, behind the completions that its lane's end
     * brought. */
    while ((n = wefti_list_pop(&conn->dead))) {
        wefti_link_t *link = wefti_container_of(n, wefti_link_t, all);
        wefti_epx_t *ep = link->ep;
        wefti_link_free_now(link);
        if (ep)
            wefti_ep_kick(ep);
    }
    wefti_list_each_safe(it, &conn->listeners) {
        weft_listener_t *l = wefti_container_of(it, weft_listener_t, all);
        if (l->closed && !l->n_away && !atomic_load(&l->n_coming))
            wefti_listener_free(l);
    }
}

static void work_fn(weft_op_t *op, void *user)
{
    wefti_conn_t *conn = user;
    (void)op;
    conn->work_queued = false;
    work_run(conn);
}

void wefti_conn_kick(wefti_conn_t *conn)
{
    if (conn->work_queued)
        return;
    conn->work_queued = true;
    wefti_op_soon(conn->rt, &conn->work_op);
}

/* --- reaching the driver --------------------------------------------------------------------------------------------------- */

static bool enter(weft_runtime_t *rt, weft_runtime_t **was)
{
    if (wefti_enter_to_post(rt, was))
        return true;
    return wefti_enter_to_post(rt, was); /* the first try may have started what lay in the inbox */
}

static void run_later(wefti_call_t *call)
{
    wefti_conn_call_t *c = wefti_container_of(call, wefti_conn_call_t, call);
    weft_status_t st = c->run(c);
    if (st && c->user_op)
        wefti_op_complete(c->user_op, st);
    wefti_free(c);
}

static weft_status_t call_later(weft_runtime_t *rt, const wefti_conn_call_t *what)
{
    if (wefti_closing(rt))
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", rt->name);
    wefti_conn_call_t *c = wefti_malloc(sizeof *c);
    if (!c)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to hand the call to the thread that drives the runtime");
    *c = *what;
    c->call.fn = run_later;
    if (wefti_call_on_driver(rt, &c->call))
        return WEFT_OK;
    wefti_free(c);
    return wefti_fail_gone(rt);
}

weft_status_t wefti_conn_do(weft_runtime_t *rt, const wefti_conn_call_t *what)
{
    weft_runtime_t *was;
    weft_status_t st;
    if (enter(rt, &was)) {
        st = what->run(what);
        if (st && what->user_op)
            st = wefti_op_take_back(what->user_op, st);
        wefti_leave(rt, was);
        return st;
    }
    st = call_later(rt, what);
    if (st && what->user_op)
        wefti_op_unprepare(what->user_op);
    return st;
}

/* --- upcalls: lanes -------------------------------------------------------------------------------------------------------- */

/* A record that is not traffic's, or that came when no traffic is expected. */
static __attribute__((noinline)) void own_record(wefti_link_t *link, uint8_t kind, const wefti_wild_t *rec, size_t n)
{
    bool up = link->deliver;
    switch (kind) {
    case WEFTI_REC_UP:
        if (link->state < WEFTI_LINK_UP && n >= 8) {
            if (link->guest && link->side == WEFTI_SIDE_LISTENER && !link->got_up)
                link->owed |= WEFTI_OWE_UP;
            link->got_up = true;
            if (link->owed)
                wefti_link_flush(link);
            wefti_shake_rise(link);
            return;
        }
        break;
    case WEFTI_REC_NOTHING:
        if (link->state >= WEFTI_LINK_UP)
            return;
        break;
    case WEFTI_REC_CLOSE:
    case WEFTI_REC_CLOSE_ACK: {
        uint64_t count;
        if (n < 8 + sizeof count || !up)
            break;
        wefti_wild_take(&count, wefti_wild_skip(rec, 8), sizeof count);
        if (kind == WEFTI_REC_CLOSE)
            wefti_close_record(link->ep, count);
        else
            wefti_close_ack(link->ep, count);
        return;
    }
    default:
        if (up && wefti_payload_record(link->ep, kind, rec, n))
            return;
        break;
    }
    if (up)
        wefti_ep_protocol_error(&link->ep->pub, "a record of a kind that nobody here knows");
    else if (link->state < WEFTI_LINK_UP)
        wefti_link_lost(link, WEFT_ERR_PROTOCOL, "records arrived over the lane before it was up");
    /* else: on its way out, and what comes now no longer matters */
}

static void up_record(void *lane_user, const void *bytes, size_t n)
{
    wefti_link_t *link = lane_user;
    const wefti_wild_t *rec = wefti_wild(bytes);
    uint8_t kind = wefti_wild_u8(rec);
    if (__builtin_expect(link->deliver, 1)) {
        weft_ep_t *ep = &link->ep->pub;
        const wefti_traffic_t *t = link->conn->by_kind[kind];
        ep->heard = 1;
        if (__builtin_expect(t != NULL, 1)) {
            t->record(ep, kind, rec, n);
            return;
        }
    }
    own_record(link, kind, rec, n);
}

static void up_ahead(void *lane_user, const wefti_ahead_t *recs, unsigned n)
{
    wefti_link_t *link = lane_user;
    if (!link->deliver)
        return;
    for (int i = 0; i < WEFTI_TRAFFIC_N; i++) {
        const wefti_traffic_t *t = link->conn->traffic[i];
        if (t && t->ahead)
            t->ahead(&link->ep->pub, recs, n);
    }
}

static void up_announced(void *lane_user, const void *bytes, size_t n, uint64_t total, wefti_pull_t *p)
{
    wefti_link_t *link = lane_user;
    const wefti_wild_t *rec = wefti_wild(bytes);
    uint8_t kind = n ? wefti_wild_u8(rec) : 0;
    if (__builtin_expect(link->deliver, 1)) {
        link->ep->pub.heard = 1;
        wefti_payload_announced(link->ep, kind, rec, n, total, p);
        return;
    }
    p->ops->refuse(p, false);
    if (n)
        own_record(link, kind, rec, n);
}

static void up_space(void *lane_user)
{
    wefti_link_t *link = lane_user;
    if (link->owed)
        wefti_link_flush(link);
    if (!link->deliver)
        return;
    weft_ep_t *ep = &link->ep->pub;
    wefti_payload_space(link->ep);
    for (int i = 0; i < WEFTI_TRAFFIC_N && ep->lane; i++) {
        const wefti_traffic_t *t = link->conn->traffic[i];
        if (t && t->ep_space)
            t->ep_space(ep);
        if (t && t->outbox && ep->lane)
            wefti_outbox_space(ep, ep->traffic[i]);
    }
}

static void up_lane_failed(void *lane_user, weft_status_t why)
{
    wefti_link_t *link = lane_user;
    if (link->state < WEFTI_LINK_UP)
        wefti_shake_lane_failed(link, why);
    else
        wefti_link_lost(link, why,
                        why == WEFT_ERR_PEER ? "its connection ended: the process or its host is gone, or it aborted the endpoint"
                        : why == WEFT_ERR_PROTOCOL ? "it broke the protocol, or bytes were changed on the way"
                                                   : "the fabric failed");
}

static void up_lane_closed(void *lane_user)
{
    wefti_link_t *link = lane_user;
    link->lanes--;
    if (link->state == WEFTI_LINK_DEAD && !link->lanes) {
        wefti_list_remove(&link->all);
        wefti_list_push_back(&link->conn->dead, &link->all);
        wefti_conn_kick(link->conn);
    }
}

/* --- upcalls: wires -------------------------------------------------------------------------------------------------------- */

static void up_wire_message(void *wire_user, const void *bytes, size_t n)
{
    wefti_link_t *link = wire_user;
    if (link->state < WEFTI_LINK_UP) {
        wefti_shake_message(link, bytes, n);
    } else if (link->state == WEFTI_LINK_UP) {
        /* It is silent from here on, except for a peer whose half of the lane broke just when ours came up. */
        uint8_t type = wefti_shake_type(bytes, n);
        bool sorry = type == WEFTI_SHAKE_RETRY || type == WEFTI_SHAKE_REFUSE;
        wefti_link_lost(link, sorry ? WEFT_ERR_PEER : WEFT_ERR_PROTOCOL,
                        sorry ? "the peer took the connection back" : "bytes arrived on a wire that should be silent");
    } else if (link->state == WEFTI_LINK_TRUNK) {
        wefti_trunk_lost(link, WEFT_ERR_PROTOCOL, "bytes arrived on a wire that should be silent");
    }
}

static void up_wire_closed(void *wire_user, weft_status_t why)
{
    wefti_link_t *link = wire_user;
    link->wire = NULL;
    if (link->state == WEFTI_LINK_TRUNK)
        wefti_trunk_lost(link, why, NULL);
    else if (!link->guest || link->state < WEFTI_LINK_RISING ||
             (link->state == WEFTI_LINK_RISING && link->side == WEFTI_SIDE_LISTENER))
        wefti_link_wire_ended(link, why);
    /* else the trunk's stands for it: the listener was up, and has closed this one */
}

void wefti_link_wire_ended(wefti_link_t *link, weft_status_t why)
{
    bool dialling = link->state == WEFTI_LINK_DIALLING, silent = dialling || link->state == WEFTI_LINK_HELLO;
    if (link->state == WEFTI_LINK_UP) {
        if (why == WEFT_ERR_PROTOCOL)
            wefti_link_lost(link, why, "the wire carried bytes that are not ours");
        else if (why == WEFT_ERR_TIMEOUT)
            wefti_link_lost(link, WEFT_ERR_PEER, "it has been silent for the heartbeat bound");
        else
            wefti_ep_dying(link->ep);
        return;
    }
    if (!dialling && why == WEFT_ERR_PEER)
        why = WEFT_ERR_REFUSED;               /* it was there, and left during the hello without saying why */
    if (silent && link->ep && link->ep->dial) /* it has not said a word: it may be about to start, or to stop */
        link->ep->dial->nobody = true;
    bool said = why == WEFT_ERR_AUTH || why == WEFT_ERR_PROTOCOL || why == WEFT_ERR_UNSUPPORTED || why == WEFT_ERR_INVALID;
    wefti_link_lost(link, why,
                    said && *weft_last_error() ? weft_last_error()
                    : dialling                 ? "it could not be reached"
                                               : "it ended the wire during the hello");
}

static const wefti_fabric_up_t upcalls = {
    .wire_elsewhere = wefti_away_wire,
    .wire_accepted = wefti_listener_wire,
    .make_way = wefti_listener_make_way,
    .wire_opened = wefti_shake_opened,
    .wire_message = up_wire_message,
    .wire_closed = up_wire_closed,
    .record = up_record,
    .ahead = up_ahead,
    .announced = up_announced,
    .withdrawn = wefti_payload_withdrawn,
    .space = up_space,
    .lane_failed = up_lane_failed,
    .lane_closed = up_lane_closed,
};

/* --- the room, for core ---------------------------------------------------------------------------------------------------- */

static void room_shutdown(weft_runtime_t *rt)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    uint64_t now = wefti_now(rt);
    if (!conn->shut) {
        conn->shut = true;
        wefti_recheck_stop(conn);
        conn->shut_at = now;
    }
    wefti_list_each_safe(it, &conn->listeners)
        wefti_listener_shut(wefti_container_of(it, weft_listener_t, all));
    wefti_list_each_safe(it, &conn->eps)
        wefti_close_end(wefti_container_of(it, wefti_epx_t, all), WEFT_ERR_CLOSED, WEFT_ERR_CLOSED);
    if (now - conn->shut_at >= SHUT_GRACE)
        wefti_list_each_safe(it, &conn->links) {
            wefti_link_t *link = wefti_container_of(it, wefti_link_t, all);
            if (link->state == WEFTI_LINK_LINGER)
                wefti_link_drop(link);
        }
    if (wefti_list_empty(&conn->links))
        wefti_timer_stop(rt, &conn->beat);
    work_run(conn);
}

static bool room_idle(weft_runtime_t *rt)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    return wefti_list_empty(&conn->eps) && wefti_list_empty(&conn->links) && wefti_list_empty(&conn->dead) &&
           wefti_list_empty(&conn->listeners) && !conn->work_queued;
}

/* What is left here is left in a forked child, or because the fabric never let go: memory only. */
static void room_free(weft_runtime_t *rt)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    wefti_list_t *n;
    pthread_mutex_init(&conn->lock, NULL); /* a thread that did not survive the fork may have held it */
    while ((n = wefti_list_pop(&conn->dead)) || (n = wefti_list_pop(&conn->links)))
        wefti_link_free_now(wefti_container_of(n, wefti_link_t, all));
    for (uint32_t i = 0; i < conn->slots.n; i++)
        if (conn->slots.at[i].generation & 1)
            wefti_ep_free(conn->slots.at[i].value); /* those that start as well: in a forked child nobody else has them */
    wefti_list_each_safe(it, &conn->listeners) {
        weft_listener_t *l = wefti_container_of(it, weft_listener_t, all);
        l->close_op = NULL;
        wefti_listener_free(l);
    }
    wefti_payloads_free(&conn->payloads);
    wefti_slots_free(&conn->slots);
    wefti_map_free(&conn->cache);
    pthread_mutex_destroy(&conn->lock);
    wefti_free(conn->own_uris);
    wefti_rules_close(conn);
    wefti_free(conn);
    rt->room_state[WEFTI_ROOM_CONN] = NULL;
}

static void room_stats(weft_runtime_t *rt, weft_runtime_stats_t *stats)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    pthread_mutex_lock(&conn->lock);
    stats->endpoints = conn->slots.taken;
    pthread_mutex_unlock(&conn->lock);
    stats->endpoints_failed = conn->n_failed;
    stats->reconnects = conn->n_reconnects;
    stats->policy_refused = atomic_load_explicit(&conn->refused, memory_order_relaxed);
    stats->device_direct = conn->payloads.direct_pulls;
    stats->device_relayed = conn->payloads.relayed;
    stats->device_bounced = conn->payloads.bounced;
    stats->device_staged = conn->payloads.staged;
    stats->checksum_errors = conn->fabric->changed;
    stats->tls_handshakes = conn->fabric->secured;
    stats->tls_resumed = conn->fabric->resumed;
}

static const wefti_room_t room = {room_shutdown, room_idle, room_free, room_stats};

weft_status_t wefti_conn_attach(weft_runtime_t *rt)
{
    if (sodium_init() < 0)
        return wefti_fail(WEFT_ERR_SYSTEM, "libsodium cannot be initialised");
    wefti_conn_t *conn = wefti_calloc(1, sizeof *conn);
    if (!conn)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the connections of a runtime");
    conn->rt = rt;
    conn->fabric = rt->fabric;
    wefti_list_init(&conn->eps);
    wefti_list_init(&conn->links);
    wefti_list_init(&conn->dead);
    wefti_list_init(&conn->joining);
    wefti_list_init(&conn->waiting);
    wefti_list_init(&conn->spent);
    wefti_list_init(&conn->listeners);
    wefti_list_init(&conn->work);
    wefti_payloads_init(&conn->payloads);
    conn->work_op.fn = work_fn;
    conn->work_op.user = conn;
    pthread_mutex_init(&conn->lock, NULL);
    wefti_slots_init(&conn->slots, (uint32_t)rt->config.max_endpoints);
    const wefti_conn_t *head = wefti_head(rt) == rt ? NULL : wefti_conn_of(wefti_head(rt));
    if (head) { /* to its peers, a runtime is one */
        memcpy(conn->uuid, head->uuid, sizeof conn->uuid);
        memcpy(conn->nonce_key, head->nonce_key, sizeof conn->nonce_key);
    } else {
        rt->fabric->ops->random(rt->fabric, conn->uuid, sizeof conn->uuid);
        rt->fabric->ops->random(rt->fabric, conn->nonce_key, sizeof conn->nonce_key);
    }
    wefti_address_host(conn->host);
    rt->fabric->up = &upcalls;
    wefti_runtime_attach(rt, WEFTI_ROOM_CONN, &room, conn);
    weft_status_t st = wefti_identity_begin(conn);
    return st ? st : wefti_rules_open(conn);
}

void wefti_conn_traffic(weft_runtime_t *rt, int which, const wefti_traffic_t *traffic)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    conn->traffic[which] = traffic;
    for (unsigned kind = traffic->first_kind; kind <= traffic->last_kind; kind++)
        conn->by_kind[kind] = traffic;
}
