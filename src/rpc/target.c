/* rpc/target.c - the connections of a client that finds its servers itself.
 *
 * Such a client has a target for its address, or one for each instance that the registry knows. At most opts.instances of them
 * are connected at a time, those with the least load first. Chance decides between nearly equal ones, so that a thousand clients
 * do not all choose the same.
 *
 *     IDLE --below the limit--> DIALLING --> UP --lost, given up--> CLOSING --> PAUSE --its time--> IDLE
 *                                   \--nobody answers---------------^
 *
 * A target whose instance is not in the registry any more is `gone`: it is not dialled again, and is freed when it is not
 * connected. While calls are under way its connection stays, without new ones, so that a server that leaves in good order loses
 * nothing. Every connection is a new endpoint, never a resumed one: another process may answer, and what was bound means nothing
 * to it. Of a server with several shards it is the shard that had the last one: the new hello names that endpoint.
 *
 * Promise: no target is dialled more often than its pauses allow, which double up to 5 s as long as it does not stay up.
 * tests/wire/rpc_discovery.c, tests/fault/rpc_stopped.c, rpc_discovery_nomem.c. */
#include <stdio.h>

#include "base/rng.h"
#include "rpc/reach.h"

#define LEAVE_LOOK (10 * WEFT_MILLISECOND) /* between looks whether a server that leaves is free; doubles up to a second */
#define AWAY_NS WEFT_SECOND                /* how long a server that turned a call away gets no more */
enum { LOAD_LUCK = 100 };

static void arm(target_t *t, uint64_t in_ns)
{
    uint64_t at = in_ns == WEFT_FOREVER ? UINT64_MAX : wefti_now(t->reach->rt) + in_ns;
    (void)wefti_timer_at(t->reach->rt, &t->timer, at); /* it is always armed, so there is memory for it */
}

static void count(reach_t *r)
{
    uint32_t known = 0;
    wefti_list_each(l, &r->targets)
        known += !wefti_container_of(l, target_t, link)->gone && !wefti_container_of(l, target_t, link)->nth;
    __atomic_store_n(&r->client->stats.instances, known, __ATOMIC_RELAXED);
}

/* Not at once: a registry tells of many instances in a row, and we want the best of them. */
void wefti_rpc_reach_fill_soon(reach_t *r)
{
    count(r);
    if (!r->closing && wefti_timer_at(r->rt, &r->fill_timer, wefti_now(r->rt)))
        wefti_rpc_reach_fill(r);
}

void wefti_rpc_reach_fill_due(wefti_timer_t *timer)
{
    wefti_rpc_reach_fill(wefti_container_of(timer, reach_t, fill_timer));
}

/* --- targets ---------------------------------------------------------------------------------------------------------------- */

static void target_due(wefti_timer_t *timer);

target_t *wefti_rpc_target_new(reach_t *r, const char *instance, uint32_t nth, const char *address, uint32_t load)
{
    size_t n = strlen(address);
    target_t *t = (target_t *)wefti_calloc(1, sizeof *t + n + 1);
    if (!t)
        return NULL;
    t->reach = r;
    t->timer.fn = target_due;
    if (wefti_timer_at(r->rt, &t->timer, UINT64_MAX)) {
        wefti_free(t);
        return NULL;
    }
    t->load = load;
    t->nth = nth;
    t->pause = r->first_pause;
    memcpy(t->instance, instance, strlen(instance));
    memcpy(t->address, address, n);
    wefti_list_push_back(&r->targets, &t->link);
    return t;
}

void wefti_rpc_target_free(target_t *t)
{
    reach_t *r = t->reach;
    wefti_timer_stop(r->rt, &t->timer);
    wefti_list_remove(&t->link);
    wefti_free(t);
    if (!r->closing)
        wefti_rpc_reach_fill_soon(r);
}

static void remember(target_t *t, weft_status_t why)
{
    reach_t *r = t->reach;
    if (r->why != why || strcmp(r->where, t->address) != 0)
        wefti_info("%s%s%s: no connection to %s: %s", r->client->service, *t->instance ? "@" : "", t->instance, t->address,
                   weft_status_text(why));
    r->why = why;
    snprintf(r->where, sizeof r->where, "%s", t->address);
}

static void rest(target_t *t)
{
    t->state = TARGET_PAUSE;
    arm(t, wefti_rng_jitter(&t->reach->rt->rng, t->pause));
    t->pause = t->pause < RPC_PAUSE_MOST / 2 ? t->pause * 2 : RPC_PAUSE_MOST;
}

static void closed(weft_op_t *op, void *user)
{
    target_t *t = (target_t *)user;
    reach_t *r = t->reach;
    (void)op;
    if (t->gone || r->closing) {
        wefti_rpc_target_free(t);
        wefti_rpc_reach_finish(r);
        return;
    }
    rest(t);
    wefti_rpc_reach_fill_soon(r);
}

void wefti_rpc_target_hang_up(target_t *t, weft_status_t why)
{
    reach_t *r = t->reach;
    weft_ep_t *ep = t->ep;
    if (t->server)
        wefti_rpc_server_remove(t->server, why);
    t->server = NULL;
    t->ep = NULL;
    t->state = TARGET_CLOSING;
    arm(t, WEFT_FOREVER);
    t->close = (weft_op_t){.fn = closed, .user = t};
    if (!weft_ep_close(ep, &t->close))
        return;
    /* the runtime closes, and all endpoints with it; until then this one may call its hook */
    (void)weft_ep_close(ep, NULL);
    wefti_timer_stop(r->rt, &t->timer);
    wefti_list_remove(&t->link);
    wefti_list_push_back(&r->client->rs->strays, &t->link);
    t->reach = NULL;
}

static void give_up(target_t *t, weft_status_t why)
{
    reach_t *r = t->reach;
    remember(t, why);
    wefti_rpc_target_hang_up(t, why);
    wefti_rpc_reach_fill_soon(r);
}

/* The endpoint is lost, or was closed by the peer. */
static void lost(weft_ep_t *ep, weft_status_t why, void *user)
{
    target_t *t = (target_t *)user;
    reach_t *r = t->reach;
    if (!r || t->ep != ep || (t->state != TARGET_UP && t->state != TARGET_DIALLING))
        return;
    if (t->state == TARGET_UP && wefti_now(r->rt) - t->up_at > t->pause)
        t->pause = r->first_pause; /* it stayed up: its pauses begin anew */
    give_up(t, why ? why : WEFT_ERR_CLOSED);
}

void wefti_rpc_reach_down(rpc_server_t *server, weft_status_t why)
{
    target_t *t = (target_t *)server->reach;
    t->server = NULL; /* the hook of the endpoint follows */
    wefti_rpc_server_remove(server, why);
}

/* Of those that a registry names, may this one be a server of the service? */
static weft_status_t may(const target_t *t)
{
    const reach_t *r = t->reach;
    return r && r->registry && t->ep && wefti_rules_limit(r->rt, WEFT_MAY_PUBLISH)
               ? wefti_ep_may(t->ep, WEFT_MAY_PUBLISH, r->client->service, true, NULL)
               : WEFT_OK;
}

weft_status_t wefti_rpc_reach_may(const rpc_server_t *server)
{
    return server->reach ? may((const target_t *)server->reach) : WEFT_OK;
}

static void up(target_t *t)
{
    reach_t *r = t->reach;
    weft_status_t st = may(t);
    if (st) {
        if (r->why != st)
            wefti_warn("%s at %s is not used: %s", r->client->service, t->address, weft_last_error());
        give_up(t, st);
        return;
    }
    t->state = TARGET_UP;
    t->up_at = wefti_now(r->rt);
    t->was = wefti_ep_of_peer(t->ep);
    r->why = WEFT_OK;
    if (!t->ep->lane)
        return; /* it is lost already: its hook follows */
    st = wefti_rpc_server_add(r->client, t->ep, *t->instance ? t->instance : NULL, &t->server);
    if (st) {
        remember(t, st);
        wefti_rpc_target_hang_up(t, st);
        return;
    }
    t->server->reach = t;
    t->server->load = t->load;
    wefti_rpc_client_kick(r->client);
}

static void connected(weft_op_t *op, void *user)
{
    target_t *t = (target_t *)user;
    if (!t->reach || t->state != TARGET_DIALLING)
        return; /* it was given up meanwhile, and is being closed */
    if (!op->status && !t->gone) {
        up(t);
        return;
    }
    give_up(t, op->status);
}

static void dial(target_t *t)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.hooks.closed = lost;
    o.hooks.user = t;
    o.no_retry = true; /* this file decides which target is tried when */
    t->connect = (weft_op_t){.fn = connected, .user = t};
    t->state = TARGET_DIALLING;
    weft_status_t st = wefti_ep_open(t->reach->rt, t->address, &o, t->was, &t->connect, &t->ep);
    if (st) {
        remember(t, st);
        t->ep = NULL;
        rest(t);
    }
}

static bool is_busy(const target_t *t)
{
    return !t->gone && (t->state == TARGET_DIALLING || t->state == TARGET_UP);
}

/* The further connections to instances that have their first. */
static void fill_more(reach_t *r)
{
    wefti_list_each(l, &r->targets) {
        target_t *t = wefti_container_of(l, target_t, link);
        bool dials = false;
        if (!t->nth || t->gone || t->state != TARGET_IDLE)
            continue;
        wefti_list_each(f, &r->targets) {
            const target_t *first = wefti_container_of(f, target_t, link);
            dials = dials || (!first->nth && is_busy(first) && !strcmp(first->instance, t->instance));
        }
        if (dials)
            dial(t);
    }
}

void wefti_rpc_reach_fill(reach_t *r)
{
    uint32_t busy = 0;
    if (r->closing)
        return;
    wefti_list_each(l, &r->targets) {
        const target_t *t = wefti_container_of(l, target_t, link);
        busy += !t->nth && is_busy(t);
    }
    while (busy < r->most) {
        target_t *best = NULL;
        uint64_t least = UINT64_MAX;
        wefti_list_each(l, &r->targets) {
            target_t *t = wefti_container_of(l, target_t, link);
            uint64_t load = t->load + wefti_rng_below(&r->rt->rng, LOAD_LUCK);
            if (!t->gone && !t->nth && t->state == TARGET_IDLE && load < least) {
                best = t;
                least = load;
            }
        }
        if (!best)
            break;
        dial(best);
        busy += best->state == TARGET_DIALLING;
    }
    if (r->connections > 1)
        fill_more(r);
    count(r);
}

/* --- leaving in good order -------------------------------------------------------------------------------------------------- */

/* Its calls have ended: close its connection. Else look again later. */
static void leave_when_free(target_t *t)
{
    if (!t->server || !t->server->under_way) {
        wefti_rpc_target_hang_up(t, WEFT_ERR_CLOSED);
        return;
    }
    t->pause = t->pause < WEFT_SECOND / 2 ? t->pause * 2 : WEFT_SECOND;
    arm(t, t->pause);
}

void wefti_rpc_target_leave(target_t *t)
{
    t->gone = true;
    if (t->state == TARGET_IDLE || t->state == TARGET_PAUSE) {
        wefti_rpc_target_free(t);
    } else if (t->state != TARGET_CLOSING) { /* else it is freed when it is closed */
        if (t->server)
            t->server->draining = true;
        t->pause = LEAVE_LOOK / 2;
        leave_when_free(t);
    }
}

void wefti_rpc_target_stay(target_t *t, uint32_t load)
{
    t->gone = false;
    t->load = load;
    t->pause = t->reach->first_pause;
    arm(t, WEFT_FOREVER);
    if (t->server) {
        t->server->draining = false;
        wefti_rpc_client_kick(t->reach->client);
    }
}

static void target_due(wefti_timer_t *timer)
{
    target_t *t = wefti_container_of(timer, target_t, timer);
    arm(t, WEFT_FOREVER);
    if (t->state == TARGET_PAUSE) {
        t->state = TARGET_IDLE;
        wefti_rpc_reach_fill_soon(t->reach);
    } else if (t->state == TARGET_UP && t->gone) {
        leave_when_free(t);
    } else if (t->server && t->server->draining) {
        t->server->draining = false; /* it is still in the registry: it may be open again */
        wefti_rpc_client_kick(t->reach->client);
    }
}

void wefti_rpc_reach_turned_away(rpc_server_t *server)
{
    target_t *t = (target_t *)server->reach;
    if (!t || !t->reach->registry || server->draining)
        return; /* there is only this one */
    server->draining = true;
    if (!t->gone)
        arm(t, AWAY_NS);
}
