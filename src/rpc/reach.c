/* rpc/reach.c - clients that find their servers themselves: at an address, or through a registry.
 *
 * Such a client has targets: one for its address, or one for each instance that the registry knows. Of those at most
 * opts.instances are connected at a time, those with the least load first, and a lot between nearly equal ones, so that a
 * thousand clients do not all come to the same.
 *
 *     IDLE --there is room--> DIALLING --> UP --lost, given up--> CLOSING --> PAUSE --its time--> IDLE
 *                                 \--nobody answers--------------^
 *
 * A target whose instance went from the registry is `gone`: not dialled again, and not a target any more once it is not
 * connected. While calls are under way to it its connection stays, without new ones; so a server that leaves in good order loses
 * nothing. One whose address changed went and came. Every connection is a fresh endpoint, never a resumed one: who answers may be
 * another process, and what was bound there means nothing to it.
 *
 * A registry out of reach says nothing, so what is known stays.
 *
 * Promise: no target is dialled more often than its pauses allow, which double up to 5 s as long as it does not stay up; a client
 * that is closed touches nothing after its hold is given back. tests/wire/rpc_discovery.c, tests/fault/rpc_stopped.c. */
#include <stdio.h>

#include "base/uri.h"
#include "registry/registry.h"
#include "rpc/state.h"

#define PAUSE_FIRST (50 * WEFT_MILLISECOND)
#define PAUSE_MOST (5 * WEFT_SECOND)
#define LEAVE_LOOK \
    (10 * WEFT_MILLISECOND)       /* first pause between two looks whether a server that leaves is free; doubles up to a second */
#define AWAY_NS WEFT_SECOND       /* how long a server that turned a call away gets no other */
#define LOOK_AGAIN_NS WEFT_SECOND /* after the registry had something to say and there was no memory for it */
enum { INSTANCES = 16, LOAD_LUCK = 100 };

typedef struct reach {
    weft_client_t *client;
    weft_runtime_t *rt;
    wefti_call_t call;         /* to its beginning */
    weft_registry_t *registry; /* NULL: at an address */
    bool configured;           /* it is the runtime's, counted */
    weft_watch_t *watch;
    weft_op_t look; /* asks the registry again */
    bool looking;   /* it is under way */
    bool closing;
    wefti_list_t targets;
    uint32_t most; /* connected at a time */
    uint64_t first_pause;
    wefti_timer_t fill_timer, look_timer;
    weft_status_t why; /* how the last try failed, and where; for people */
    char where[WEFTI_REACH_MAX];
    char address[]; /* "": through the registry */
} reach_t;

enum { TARGET_IDLE, TARGET_DIALLING, TARGET_UP, TARGET_CLOSING, TARGET_PAUSE };
typedef struct target {
    wefti_list_t link;
    reach_t *reach;       /* NULL: the runtime closes, and only conn knows it still */
    rpc_server_t *server; /* while UP, and not lost yet */
    weft_ep_t *ep;        /* DIALLING, UP */
    uint8_t state;
    bool gone;
    uint32_t load;
    uint64_t pause; /* the next one */
    uint64_t up_at;
    wefti_timer_t timer; /* always armed: so that arming it cannot fail */
    weft_op_t connect, close;
    char instance[RPC_NAME];
    char address[];
} target_t;

/* --- small things ----------------------------------------------------------------------------------------------------------- */

static void fill(reach_t *r);

static void arm(target_t *t, uint64_t in_ns)
{
    uint64_t at = in_ns == WEFT_FOREVER ? UINT64_MAX : wefti_now(t->reach->rt) + in_ns;
    (void)wefti_timer_at(t->reach->rt, &t->timer, at); /* it has its place among the timers */
}

/* Half of it is certain, half is luck. */
static uint64_t jitter(reach_t *r, uint64_t ns)
{
    return ns / 2 + wefti_rng_below(&r->rt->rng, ns / 2 + 1);
}

static void count(reach_t *r)
{
    uint32_t known = 0;
    wefti_list_each(l, &r->targets)
        known += !wefti_container_of(l, target_t, link)->gone;
    __atomic_store_n(&r->client->stats.instances, known, __ATOMIC_RELAXED);
}

/* Soon, and not now: a registry tells of many at once, and the best of them are wanted. */
static void fill_soon(reach_t *r)
{
    count(r);
    if (!r->closing && wefti_timer_at(r->rt, &r->fill_timer, wefti_now(r->rt)))
        fill(r);
}

static void fill_due(wefti_timer_t *timer)
{
    fill(wefti_container_of(timer, reach_t, fill_timer));
}

/* The last of a client that closes. */
static void finish(reach_t *r)
{
    weft_client_t *client = r->client;
    if (!r->closing || r->looking || !wefti_list_empty(&r->targets))
        return;
    if (r->configured)
        wefti_rpc_registry_put(client->rs);
    client->reach = NULL;
    wefti_free(r);
    wefti_rpc_client_unhold(client);
}

/* --- targets ---------------------------------------------------------------------------------------------------------------- */

static void target_due(wefti_timer_t *timer);

static target_t *target_new(reach_t *r, const char *instance, const char *address, uint32_t load)
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
    t->pause = r->first_pause;
    memcpy(t->instance, instance, strlen(instance));
    memcpy(t->address, address, n);
    wefti_list_push_back(&r->targets, &t->link);
    return t;
}

static void target_free(target_t *t)
{
    reach_t *r = t->reach;
    wefti_timer_stop(r->rt, &t->timer);
    wefti_list_remove(&t->link);
    wefti_free(t);
    if (!r->closing)
        fill_soon(r);
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
    arm(t, jitter(t->reach, t->pause));
    t->pause = t->pause < PAUSE_MOST / 2 ? t->pause * 2 : PAUSE_MOST;
}

static void closed(weft_op_t *op, void *user)
{
    target_t *t = (target_t *)user;
    reach_t *r = t->reach;
    (void)op;
    if (t->gone || r->closing) {
        target_free(t);
        finish(r);
        return;
    }
    rest(t);
    fill_soon(r);
}

/* Let go of its connection, whatever became of it. */
static void hang_up(target_t *t, weft_status_t why)
{
    reach_t *r = t->reach;
    weft_ep_t *ep = t->ep;
    if (t->server)
        wefti_rpc_server_remove(t->server, why);
    t->server = NULL;
    t->ep = NULL;
    t->state = TARGET_CLOSING;
    arm(t, WEFT_FOREVER);
    memset(&t->close, 0, sizeof t->close);
    t->close.fn = closed;
    t->close.user = t;
    if (!weft_ep_close(ep, &t->close))
        return;
    /* The runtime closes, and all endpoints with it; until then this one may call its hook. */
    (void)weft_ep_close(ep, NULL);
    wefti_timer_stop(r->rt, &t->timer);
    wefti_list_remove(&t->link);
    wefti_list_push_back(&r->client->rs->strays, &t->link);
    t->reach = NULL;
}

/* The endpoint is of no more use: lost, or closed by the peer. */
static void lost(weft_ep_t *ep, weft_status_t why, void *user)
{
    target_t *t = (target_t *)user;
    reach_t *r = t->reach;
    if (!r || t->ep != ep || (t->state != TARGET_UP && t->state != TARGET_DIALLING))
        return;
    if (t->state == TARGET_UP && wefti_now(r->rt) - t->up_at > t->pause)
        t->pause = r->first_pause; /* it was of use: its pauses begin anew */
    remember(t, why ? why : WEFT_ERR_CLOSED);
    hang_up(t, why ? why : WEFT_ERR_CLOSED);
    fill_soon(r);
}

void wefti_rpc_reach_down(rpc_server_t *server, weft_status_t why)
{
    target_t *t = (target_t *)server->reach;
    t->server = NULL; /* the endpoint's hook comes next */
    wefti_rpc_server_remove(server, why);
}

static void up(target_t *t)
{
    reach_t *r = t->reach;
    weft_status_t st = WEFT_OK;
    t->state = TARGET_UP;
    t->up_at = wefti_now(r->rt);
    r->why = WEFT_OK;
    if (!t->ep->lane)
        return; /* and gone again: its hook comes */
    st = wefti_rpc_server_add(r->client, t->ep, *t->instance ? t->instance : NULL, &t->server);
    if (st) {
        remember(t, st);
        hang_up(t, st);
        return;
    }
    t->server->reach = t;
    t->server->load = t->load;
    wefti_rpc_client_kick(r->client);
}

static void connected(weft_op_t *op, void *user)
{
    target_t *t = (target_t *)user;
    reach_t *r = t->reach;
    if (!r || t->state != TARGET_DIALLING)
        return; /* given up meanwhile: its close says when it is gone */
    if (!op->status && !t->gone) {
        up(t);
        return;
    }
    remember(t, op->status);
    hang_up(t, op->status);
    fill_soon(r);
}

static void dial(target_t *t)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.hooks.closed = lost;
    o.hooks.user = t;
    memset(&t->connect, 0, sizeof t->connect);
    t->connect.fn = connected;
    t->connect.user = t;
    t->state = TARGET_DIALLING;
    weft_status_t st = weft_ep_open(t->reach->rt, t->address, &o, &t->connect, &t->ep);
    if (st) {
        remember(t, st);
        t->ep = NULL;
        rest(t);
    }
}

/* Connect, while fewer are connected than may be. */
static void fill(reach_t *r)
{
    uint32_t busy = 0;
    if (r->closing)
        return;
    wefti_list_each(l, &r->targets) {
        const target_t *t = wefti_container_of(l, target_t, link);
        busy += !t->gone && (t->state == TARGET_DIALLING || t->state == TARGET_UP);
    }
    while (busy < r->most) {
        target_t *best = NULL;
        uint64_t least = UINT64_MAX;
        wefti_list_each(l, &r->targets) {
            target_t *t = wefti_container_of(l, target_t, link);
            uint64_t load = t->load + wefti_rng_below(&r->rt->rng, LOAD_LUCK);
            if (!t->gone && t->state == TARGET_IDLE && load < least) {
                best = t;
                least = load;
            }
        }
        if (!best)
            break;
        dial(best);
        busy += best->state == TARGET_DIALLING;
    }
    count(r);
}

/* --- leaving in good order -------------------------------------------------------------------------------------------------- */

/* No new calls; when the last that is under way has ended, the connection goes. */
static void leave(target_t *t)
{
    t->gone = true;
    switch (t->state) {
    case TARGET_IDLE:
    case TARGET_PAUSE:
        target_free(t);
        return;
    case TARGET_DIALLING:
        hang_up(t, WEFT_ERR_CLOSED);
        break;
    case TARGET_UP:
        if (t->server && t->server->under_way) {
            t->server->draining = true;
            t->pause = LEAVE_LOOK;
            arm(t, t->pause);
        } else {
            hang_up(t, WEFT_ERR_CLOSED);
        }
        break;
    default: /* it goes with its close */
        break;
    }
}

static void target_due(wefti_timer_t *timer)
{
    target_t *t = wefti_container_of(timer, target_t, timer);
    arm(t, WEFT_FOREVER);
    if (t->state == TARGET_PAUSE) {
        t->state = TARGET_IDLE;
        fill_soon(t->reach);
    } else if (t->state == TARGET_UP && t->gone) {
        if (t->server && t->server->under_way) {
            t->pause = t->pause < WEFT_SECOND / 2 ? t->pause * 2 : WEFT_SECOND;
            arm(t, t->pause);
        } else {
            hang_up(t, WEFT_ERR_CLOSED);
        }
    } else if (t->server && t->server->draining) {
        t->server->draining = false; /* it is still in the registry: perhaps it is open again */
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

/* --- the registry ----------------------------------------------------------------------------------------------------------- */

static void look_again(reach_t *r)
{
    if (wefti_timer_at(r->rt, &r->look_timer, wefti_now(r->rt) + LOOK_AGAIN_NS))
        wefti_warn("no memory to look into the registry again: not all instances of %s are known", r->client->service);
}

static target_t *find(reach_t *r, const char *instance)
{
    wefti_list_each(l, &r->targets) {
        target_t *t = wefti_container_of(l, target_t, link);
        if (!t->gone && !strcmp(t->instance, instance))
            return t;
    }
    return NULL;
}

/* One that was on its way out and is back where it was: its connection is as good as a new one. */
static bool back_again(reach_t *r, const weft_entry_t *e)
{
    wefti_list_each(l, &r->targets) {
        target_t *t = wefti_container_of(l, target_t, link);
        if (t->gone && t->state == TARGET_UP && !strcmp(t->instance, e->instance) && !strcmp(t->address, e->address)) {
            t->gone = false;
            t->load = e->load;
            t->pause = r->first_pause;
            arm(t, WEFT_FOREVER);
            if (t->server) {
                t->server->draining = false;
                wefti_rpc_client_kick(r->client);
            }
            return true;
        }
    }
    return false;
}

static void there_is(reach_t *r, const weft_entry_t *e)
{
    target_t *t = find(r, e->instance);
    if (t && !strcmp(t->address, e->address)) {
        t->load = e->load;
        if (t->server)
            t->server->load = e->load;
        return;
    }
    if (t)
        leave(t);
    if (!back_again(r, e) && !target_new(r, e->instance, e->address, e->load))
        look_again(r);
    fill_soon(r);
}

static bool wanted(const reach_t *r, const weft_entry_t *e)
{
    return !*r->client->instance || !strcmp(r->client->instance, e->instance);
}

static void changed(weft_change_t change, const weft_entry_t *e, void *user)
{
    reach_t *r = (reach_t *)user;
    if (r->closing || !wanted(r, e))
        return;
    if (change != WEFT_WENT) {
        there_is(r, e);
        return;
    }
    target_t *t = find(r, e->instance);
    if (t) {
        leave(t);
        fill_soon(r);
    }
}

static void found(const weft_entry_t *e, void *user)
{
    reach_t *r = (reach_t *)user;
    if (!r->closing && wanted(r, e))
        there_is(r, e);
}

static void looked(weft_op_t *op, void *user)
{
    reach_t *r = (reach_t *)user;
    r->looking = false;
    if (r->closing)
        finish(r);
    else if (op->status)
        look_again(r);
}

static void look_due(wefti_timer_t *timer)
{
    reach_t *r = wefti_container_of(timer, reach_t, look_timer);
    if (r->looking) {
        look_again(r);
        return;
    }
    if (!r->watch) {
        if (weft_registry_watch(r->registry, r->client->service, changed, r, &r->watch))
            look_again(r);
        return;
    }
    memset(&r->look, 0, sizeof r->look);
    r->look.fn = looked;
    r->look.user = r;
    if (weft_registry_find(r->registry, r->client->service, found, r, &r->look))
        look_again(r);
    else
        r->looking = true;
}

/* --- opening ---------------------------------------------------------------------------------------------------------------- */

static void begin(wefti_call_t *call)
{
    reach_t *r = wefti_container_of(call, reach_t, call);
    wefti_rpc_client_join(r->client);
    if (r->registry)
        look_due(&r->look_timer);
    else if (target_new(r, "", r->address, 0))
        fill(r);
    else
        wefti_error("no memory to connect to %s: calls of this client will wait for their deadlines", r->address);
}

static weft_status_t check_address(const char *uri)
{
    for (const char *at = uri; *at;) {
        wefti_uri_t one;
        weft_status_t st = wefti_uri_parse(&at, &one);
        if (st)
            return st;
        if (one.scheme == WEFTI_URI_TCP && !one.port)
            return wefti_fail(WEFT_ERR_INVALID, "\"%.200s\" has port 0, where nobody can be called", uri);
    }
    if (!*uri || strlen(uri) >= WEFTI_REACH_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "an address has 1 to %d bytes, and this one %zu", WEFTI_REACH_MAX - 1, strlen(uri));
    return WEFT_OK;
}

/* What is in the uri, and what is in the options, must not speak of two things. */
static weft_status_t one_of(const char *what, const char *in_uri, const char *in_opts, const char **out)
{
    if (*in_uri && in_opts && *in_opts && strcmp(in_uri, in_opts) != 0)
        return wefti_fail(WEFT_ERR_INVALID, "the uri names the %s %s, and the options %.80s", what, in_uri, in_opts);
    *out = *in_uri ? in_uri : in_opts;
    return WEFT_OK;
}

weft_status_t weft_client_open(weft_runtime_t *rt, const char *uri, const weft_client_opts_t *opts, weft_client_t **client_out)
{
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    wefti_uri_service_t named = {"", ""};
    const char *service, *instance;
    if (!rt || !uri || !client_out)
        return wefti_fail(WEFT_ERR_INVALID, "there is no runtime, no uri, or nowhere to put the client");
    if (wefti_forked(rt) || rt->closing)
        return wefti_fail(wefti_forked(rt) ? WEFT_ERR_FORKED : WEFT_ERR_CLOSED, "its runtime cannot be used any more");
    weft_status_t st = opts ? wefti_opts_copy(opts, &o, sizeof o, "weft_client_opts_t") : WEFT_OK;
    if (st)
        return st;
    bool by_name = wefti_uri_is_service(uri);
    st = by_name ? wefti_uri_parse_service(uri, &named) : check_address(uri);
    if (!st)
        st = one_of("service", named.service, o.service, &service);
    if (!st)
        st = one_of("instance", named.instance, o.instance, &instance);
    if (st)
        return st;
    size_t n = by_name ? 0 : strlen(uri);
    reach_t *r = (reach_t *)wefti_calloc(1, sizeof *r + n + 1);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client");
    r->rt = rt;
    r->call.fn = begin;
    r->fill_timer.fn = fill_due;
    r->look_timer.fn = look_due;
    r->most = o.instances ? o.instances : INSTANCES;
    r->first_pause = o.reconnect_ns ? o.reconnect_ns : PAUSE_FIRST;
    r->first_pause = r->first_pause < PAUSE_MOST ? r->first_pause : PAUSE_MOST;
    wefti_list_init(&r->targets);
    memcpy(r->address, uri, n);
    st = wefti_rpc_client_new(rt, &o, service, instance, &r->client);
    if (st)
        goto err_reach;
    if (by_name) {
        r->registry = o.registry;
        r->configured = !o.registry;
        if (r->configured)
            st = wefti_rpc_registry_get(r->client->rs, &r->registry);
        if (st)
            goto err_client;
    }
    r->client->reach = r;
    wefti_rpc_client_hold(r->client);
    *client_out = r->client;
    wefti_call_on_driver(rt, &r->call);
    return WEFT_OK;

err_client:
    wefti_rpc_client_discard(r->client);
err_reach:
    wefti_free(r);
    return st;
}

/* --- the end ---------------------------------------------------------------------------------------------------------------- */

void wefti_rpc_reach_close(weft_client_t *client)
{
    reach_t *r = (reach_t *)client->reach;
    r->closing = true;
    wefti_timer_stop(r->rt, &r->fill_timer);
    wefti_timer_stop(r->rt, &r->look_timer);
    if (r->watch)
        (void)weft_watch_end(r->watch, NULL); /* it fails if the runtime closes, which ends it too */
    r->watch = NULL;
    if (r->looking)
        weft_op_cancel(&r->look);
    wefti_list_each_safe(l, &r->targets) {
        target_t *t = wefti_container_of(l, target_t, link);
        t->server = NULL; /* the client has removed it */
        if (t->state == TARGET_IDLE || t->state == TARGET_PAUSE)
            target_free(t);
        else if (t->state != TARGET_CLOSING)
            hang_up(t, WEFT_ERR_CLOSED);
    }
    finish(r);
}

void wefti_rpc_reach_free(weft_client_t *client)
{
    reach_t *r = (reach_t *)client->reach;
    for (wefti_list_t *l; (l = wefti_list_pop(&r->targets));)
        wefti_free(wefti_container_of(l, target_t, link));
    wefti_free(r);
    client->reach = NULL;
}

void wefti_rpc_strays_free(rpc_state_t *rs)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&rs->strays));)
        wefti_free(wefti_container_of(l, target_t, link));
}

bool wefti_rpc_reach_by_name(const weft_client_t *client)
{
    const reach_t *r = (const reach_t *)client->reach;
    return r && r->registry;
}

/* --- for people ------------------------------------------------------------------------------------------------------------- */

void wefti_rpc_reach_words(const weft_client_t *client, char *buf, size_t cap)
{
    const reach_t *r = (const reach_t *)client->reach;
    char last[WEFTI_REACH_MAX + 120] = "";
    uint32_t known = client->stats.instances, connected = client->stats.connected;
    if (!r) {
        snprintf(buf, cap, "the server did not take the call");
        return;
    }
    if (r->why)
        snprintf(last, sizeof last, "; the last try, at %s: %s", r->where, weft_status_text(r->why));
    if (connected) {
        snprintf(buf, cap, "connected to %u of %u instances of %s%s", connected, known,
                 *client->service ? client->service : "a server", last);
    } else if (!r->registry) {
        snprintf(buf, cap, "nobody answers at %s%s", r->address, r->why ? last : "");
    } else if (!known) {
        weft_status_t st = weft_registry_state(r->registry);
        snprintf(buf, cap, "the registry %s knows no instance of %s%s%s%s%s", wefti_registry_uri(r->registry), client->service,
                 *client->instance ? "@" : "", client->instance, st ? ": it is out of reach: " : "",
                 st ? weft_status_text(st) : "");
    } else {
        snprintf(buf, cap, "the registry %s knows %u instance%s of %s, and none of them is connected%s",
                 wefti_registry_uri(r->registry), known, known == 1 ? "" : "s", client->service, last);
    }
}
