/* rpc/reach.c - clients that find their servers themselves: at an address, or through a registry.
 *
 *     opened --> begun: its address is dialled, or its service watched --close--> closing: connections are closed --> done
 *
 * What the registry says becomes targets (target.c), which are connected to. An instance whose address changed is removed and
 * added. While the registry is out of reach, what is known stays. If there is no memory for something that it says, or for the
 * address, we look again later.
 *
 * Promise: after its hold on the client is given back nothing of it touches the client. tests/wire/rpc_discovery.c,
 * tests/fault/rpc_registry_lost.c, rpc_discovery_nomem.c. */
#include <stdio.h>

#include "base/uri.h"
#include "registry/registry.h"
#include "rpc/reach.h"

#define PAUSE_FIRST (50 * WEFT_MILLISECOND)
#define LOOK_AGAIN_NS WEFT_SECOND /* after there was no memory for what the registry said */
enum { INSTANCES = 16, CONNECTIONS_MOST = 64 };

/* --- the registry ----------------------------------------------------------------------------------------------------------- */

/* There was no memory: try again later. If not even that is possible and no server is known, calls must not wait. */
static void look_again(reach_t *r)
{
    if (!wefti_timer_at(r->rt, &r->look_timer, wefti_now(r->rt) + LOOK_AGAIN_NS))
        return;
    if (!wefti_list_empty(&r->targets)) {
        wefti_warn("no memory to look into the registry again: not all instances of %s are known", r->client->service);
        return;
    }
    wefti_error("no memory to look for %s: this client is of no use, open another",
                r->registry ? r->client->service : r->address);
    r->client->lost = WEFT_ERR_NOMEM;
    wefti_rpc_client_kick(r->client);
}

static target_t *find(reach_t *r, const char *instance, uint32_t nth)
{
    wefti_list_each(l, &r->targets) {
        target_t *t = wefti_container_of(l, target_t, link);
        if (!t->gone && t->nth == nth && !strcmp(t->instance, instance))
            return t;
    }
    return NULL;
}

/* A target that was leaving is in the registry again, at the same address: keep its connection. */
static bool back_again(reach_t *r, const weft_entry_t *e, uint32_t nth)
{
    wefti_list_each(l, &r->targets) {
        target_t *t = wefti_container_of(l, target_t, link);
        if (t->gone && t->state == TARGET_UP && t->nth == nth && !strcmp(t->instance, e->instance) &&
            !strcmp(t->address, e->address)) {
            wefti_rpc_target_stay(t, e->load);
            return true;
        }
    }
    return false;
}

static void there_is(reach_t *r, const weft_entry_t *e, uint32_t nth)
{
    target_t *t = find(r, e->instance, nth);
    if (t && !strcmp(t->address, e->address)) {
        t->load = e->load;
        if (t->server)
            t->server->load = e->load;
        return;
    }
    if (t)
        wefti_rpc_target_leave(t);
    if (!back_again(r, e, nth) && !wefti_rpc_target_new(r, e->instance, nth, e->address, e->load))
        look_again(r);
    wefti_rpc_reach_fill_soon(r);
}

static void changed(weft_change_t change, const weft_entry_t *e, void *user)
{
    reach_t *r = (reach_t *)user;
    const char *wanted = r->client->instance; /* "": any */
    if (r->closing || (*wanted && strcmp(wanted, e->instance) != 0))
        return;
    for (uint32_t nth = 0; nth < r->connections; nth++) {
        target_t *t = change == WEFT_WENT ? find(r, e->instance, nth) : NULL;
        if (t) {
            wefti_rpc_target_leave(t);
            wefti_rpc_reach_fill_soon(r);
        } else if (change != WEFT_WENT) {
            there_is(r, e, nth);
        }
    }
}

static void found(const weft_entry_t *e, void *user)
{
    changed(WEFT_CAME, e, user);
}

static void looked(weft_op_t *op, void *user)
{
    reach_t *r = (reach_t *)user;
    r->looking = false;
    if (r->closing)
        wefti_rpc_reach_finish(r);
    else if (op->status)
        look_again(r);
}

static void look_due(wefti_timer_t *timer)
{
    reach_t *r = wefti_container_of(timer, reach_t, look_timer);
    bool ok = false;
    if (!r->registry) {
        ok = true;
        for (uint32_t nth = 0; nth < r->connections && ok; nth++)
            ok = find(r, "", nth) || wefti_rpc_target_new(r, "", nth, r->address, 0);
        wefti_rpc_reach_fill(r);
    } else if (!r->watch) {
        ok = !weft_registry_watch(r->registry, r->client->service, changed, r, &r->watch);
    } else if (!r->looking) {
        r->look = (weft_op_t){.fn = looked, .user = r};
        ok = r->looking = !weft_registry_find(r->registry, r->client->service, found, r, &r->look);
    }
    if (!ok)
        look_again(r);
}

/* --- opening ---------------------------------------------------------------------------------------------------------------- */

static void begin(wefti_call_t *call)
{
    reach_t *r = wefti_container_of(call, reach_t, call);
    if (wefti_rpc_client_join(r->client))
        look_due(&r->look_timer);
}

static weft_status_t check_address(const char *uri)
{
    for (const char *at = uri; *at;) {
        wefti_uri_t one;
        weft_status_t st = wefti_uri_parse(&at, &one);
        if (st)
            return st;
        if (wefti_uri_has_port(&one) && !one.port)
            return wefti_fail(WEFT_ERR_INVALID, "\"%.200s\" has port 0, where nobody can be called", uri);
    }
    if (!*uri || strlen(uri) >= WEFTI_REACH_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "an address has 1 to %d bytes, and this one %zu", WEFTI_REACH_MAX - 1, strlen(uri));
    return WEFT_OK;
}

/* The uri and the options must not name different ones. */
static weft_status_t one_of(const char *what, const char *in_uri, const char *in_opts, const char **out)
{
    if (*in_uri && in_opts && *in_opts && strcmp(in_uri, in_opts) != 0)
        return wefti_fail(WEFT_ERR_INVALID, "the uri names the %s %s, and the options %.80s", what, in_uri, in_opts);
    *out = *in_uri ? in_uri : in_opts;
    return WEFT_OK;
}

static weft_status_t open_reach(weft_runtime_t *rt, const char *uri, bool by_name, const weft_client_opts_t *o,
                                const char *service, const char *instance, weft_client_t **client_out)
{
    weft_status_t st;
    size_t n = by_name ? 0 : strlen(uri);
    reach_t *r = (reach_t *)wefti_calloc(1, sizeof *r + n + 1);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client");
    r->rt = rt;
    r->call.fn = begin;
    r->fill_timer.fn = wefti_rpc_reach_fill_due;
    r->look_timer.fn = look_due;
    r->most = o->instances ? o->instances : INSTANCES;
    r->connections = o->connections ? o->connections : 1;
    r->first_pause = o->reconnect_ns ? o->reconnect_ns : PAUSE_FIRST;
    r->first_pause = r->first_pause < RPC_PAUSE_MOST ? r->first_pause : RPC_PAUSE_MOST;
    wefti_list_init(&r->targets);
    memcpy(r->address, uri, n);
    st = wefti_rpc_client_new(rt, o, service, instance, &r->client);
    if (st)
        goto err_reach;
    if (by_name) {
        st = wefti_rpc_registry_get(r->client->rs, o->registry, &r->registry);
        if (st)
            goto err_client;
    }
    r->client->reach = r;
    r->client->finds = true;
    wefti_rpc_client_hold(r->client);
    *client_out = r->client;
    if (wefti_call_on_driver(rt, &r->call))
        return WEFT_OK;
    st = wefti_fail_gone(rt);
    wefti_rpc_registry_put(r->client->rs, r->registry);
err_client:
    wefti_rpc_client_discard(r->client);
err_reach:
    wefti_free(r);
    return st;
}

weft_status_t wefti_rpc_reach_open(weft_runtime_t *rt, const char *uri, const weft_client_opts_t *o, weft_client_t **client_out)
{
    wefti_uri_service_t named = {"", ""};
    const char *service, *instance;
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (o->connections > CONNECTIONS_MOST)
        return wefti_fail(WEFT_ERR_INVALID, "%u connections to a server are more than %d", o->connections, CONNECTIONS_MOST);
    bool by_name = wefti_uri_is_service(uri);
    weft_status_t st = by_name ? wefti_uri_parse_service(uri, &named) : check_address(uri);
    if (!st)
        st = one_of("service", named.service, o->service, &service);
    if (!st)
        st = one_of("instance", named.instance, o->instance, &instance);
    if (st)
        return st;
    st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_closing(rt) ? wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", rt->name)
                           : open_reach(rt, uri, by_name, o, service, instance, client_out);
    wefti_part(rt);
    return st;
}

/* --- the end ---------------------------------------------------------------------------------------------------------------- */

/* Free it when its client closes and nothing is under way any more. */
void wefti_rpc_reach_finish(reach_t *r)
{
    weft_client_t *client = r->client;
    if (!r->closing || r->looking || !wefti_list_empty(&r->targets))
        return;
    wefti_rpc_registry_put(client->rs, r->registry);
    client->reach = NULL;
    wefti_free(r);
    wefti_rpc_client_unhold(client);
}

void wefti_rpc_reach_close(weft_client_t *client)
{
    reach_t *r = (reach_t *)client->reach;
    r->closing = true;
    wefti_timer_stop(r->rt, &r->fill_timer);
    wefti_timer_stop(r->rt, &r->look_timer);
    if (r->watch)
        (void)weft_watch_end(r->watch, NULL); /* it fails if the runtime closes, which ends the watch too */
    r->watch = NULL;
    if (r->looking)
        weft_op_cancel(&r->look);
    wefti_list_each_safe(l, &r->targets) {
        target_t *t = wefti_container_of(l, target_t, link);
        t->server = NULL; /* the client has removed it */
        if (t->state == TARGET_IDLE || t->state == TARGET_PAUSE)
            wefti_rpc_target_free(t);
        else if (t->state != TARGET_CLOSING)
            wefti_rpc_target_hang_up(t, WEFT_ERR_CLOSED);
    }
    wefti_rpc_reach_finish(r);
}

void wefti_rpc_reach_free(weft_client_t *client)
{
    reach_t *r = (reach_t *)client->reach;
    wefti_list_splice(&client->rs->strays, &r->targets);
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

/* --- sentences -------------------------------------------------------------------------------------------------------------- */

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
