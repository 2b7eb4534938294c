/* element/transport.c - transports: their states, their routes, their end.
 *
 *     WAITING --go--> CONNECTING --the route is up--> READY --the route is over--> LOST --another route is up--> READY
 *                         \--no route within connect_ns--> LOST, and routes are tried on
 *                          \--a route fails for good--> FAILED <--/
 *     any --go--> CONNECTING        any --release--> RELEASED, for good
 *
 * The driver changes the state, with the lock held. Only RELEASED is set by the thread that releases. A program's request to go
 * somewhere is an order with a number: an older order that comes later is ignored.
 *
 * A server has no route: it opens its memory when it is told its size, and is READY then. rdma_local without a url has both:
 * memory of its own, and a route to it.
 *
 * Promise: a transport is READY only while it has a route that is up. Whoever waits is told when it is, or that it will not be
 * soon. tests/wire/element_life.c, tests/fault/element_lost.c. */
#include <stddef.h>
#include <stdio.h>

#include "base/rng.h"
#include <assert.h>

#include "base/uri.h"
#include "element/state.h"

#define PAUSE_MOST (2 * WEFT_SECOND)

static const char *const state_names[] = {"?", "waiting", "connecting", "ready", "lost", "failed", "released"};

const char *weft_transport_state_name(weft_transport_state_t state)
{
    return (int)state < 1 || (int)state > WEFT_TRANSPORT_RELEASED ? state_names[0] : state_names[state];
}

void wefti_transport_count(weft_transport_t *t, uint64_t *counter)
{
    pthread_mutex_lock(&t->lock);
    ++*counter;
    pthread_mutex_unlock(&t->lock);
}

void wefti_transport_has(weft_transport_t *t, uint64_t len)
{
    pthread_mutex_lock(&t->lock);
    t->stats.len = len;
    pthread_mutex_unlock(&t->lock);
}

/* --- states  ---------------------------------------------------------------------------------------------------------- */

/* false: it is released, and stays so. */
static bool set_state(weft_transport_t *t, weft_transport_state_t state, weft_status_t why)
{
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    if (may) {
        t->state = state;
        t->why = why;
    }
    pthread_mutex_unlock(&t->lock);
    return may;
}

/* Take its route away, if it has one. */
static element_route_t *take_route(weft_transport_t *t, bool lost)
{
    pthread_mutex_lock(&t->lock);
    element_route_t *route = t->route;
    t->route = NULL;
    t->stats.losses += lost;
    t->stats.replicas = 0;
    pthread_mutex_unlock(&t->lock);
    return route;
}

/* The program has no more use for the remotes that it was given. */
static void unpin(weft_transport_t *t)
{
    wefti_list_t pins;
    wefti_list_init(&pins);
    pthread_mutex_lock(&t->lock);
    wefti_list_splice(&pins, &t->pins);
    pthread_mutex_unlock(&t->lock);
    for (wefti_list_t *l; (l = wefti_list_pop(&pins));)
        wefti_route_unref(wefti_container_of(l, element_route_t, pin));
}

/* Would another try fail in the same manner? */
static bool final(weft_status_t why)
{
    switch (why) {
    case WEFT_ERR_INVALID:
    case WEFT_ERR_AUTH:
    case WEFT_ERR_VERSION:
    case WEFT_ERR_RANGE:
    case WEFT_ERR_RIGHTS:
    case WEFT_ERR_STALE:
    case WEFT_ERR_UNSUPPORTED:
    case WEFT_ERR_CORRUPT:
        return true;
    default:
        return false;
    }
}

static void fail(weft_transport_t *t, weft_transport_state_t state, weft_status_t why)
{
    if (!set_state(t, state, why))
        return;
    weft_log(WEFT_LOG_INFO, "transport %s is %s: %s", t->name, weft_transport_state_name(state), weft_status_text(why));
    wefti_ios_each(t, wefti_io_end_if_waiting, why);
}

static void again(weft_transport_t *t)
{
    if (t->state == WEFT_TRANSPORT_RELEASED) /* by a callback that was told of the failure: it may be gone before the timer */
        return;
    uint64_t in = wefti_rng_jitter(&t->es->rng, t->pause);
    t->pause = t->pause < PAUSE_MOST / 2 ? t->pause * 2 : PAUSE_MOST;
    if (weft_ext_timer_set(t->rt, &t->retry, element_after(weft_now(t->rt), in)))
        fail(t, WEFT_TRANSPORT_FAILED, WEFT_ERR_NOMEM);
}

static void came_to_nothing(weft_transport_t *t, weft_status_t why)
{
    if (why == WEFT_ERR_TIMEOUT)
        why = WEFT_ERR_UNREACHABLE; /* nobody answered: it is not that an operation had too little time */
    if (final(why)) {
        fail(t, WEFT_TRANSPORT_FAILED, why);
        return;
    }
    if (t->state == WEFT_TRANSPORT_CONNECTING && element_after(weft_now(t->rt), t->pause) >= t->give_up_at)
        fail(t, WEFT_TRANSPORT_LOST, why);
    else if (t->state == WEFT_TRANSPORT_CONNECTING ||
             !t->stats.connects) /* an element that was there once is lost, whatever the status is now */
        (void)set_state(t, t->state, why);
    again(t);
}

static void dial(weft_transport_t *t)
{
    element_route_t *route = t->durl.n_replicas ? wefti_replicas_new(t) : wefti_single_new(t);
    if (!route) {
        came_to_nothing(t, WEFT_ERR_NOMEM);
        return;
    }
    t->coming = route;
    route->ops->begin(route);
}

static void retry(weft_ext_timer_t *timer)
{
    weft_transport_t *t = wefti_container_of(timer, weft_transport_t, retry);
    if (!t->coming && !t->route && t->state != WEFT_TRANSPORT_RELEASED)
        dial(t);
}

void wefti_transport_up(weft_transport_t *t, element_route_t *route)
{
    assert(t->coming == route);
    t->coming = NULL;
    uint64_t now = weft_now(t->rt);
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    if (may) {
        t->stats.ready_at = now;
        t->route = route;
        t->state = WEFT_TRANSPORT_READY;
        t->why = WEFT_OK;
        t->stats.connects++;
        t->stats.len = route->len;
        t->stats.path = route->path;
    }
    pthread_mutex_unlock(&t->lock);
    if (!may) {
        wefti_route_part(route);
        return;
    }
    t->pause = t->action->retry_ns;
    wefti_ios_each(t, wefti_io_go_if_waiting, WEFT_OK);
}

void wefti_transport_down(weft_transport_t *t, element_route_t *route, weft_status_t why)
{
    if (route == t->coming) {
        t->coming = NULL;
        if (t->state != WEFT_TRANSPORT_RELEASED)
            came_to_nothing(t, why);
    } else if (route == t->route) {
        (void)take_route(t, true);
        if (set_state(t, WEFT_TRANSPORT_LOST, WEFT_ERR_PEER)) {
            weft_log(WEFT_LOG_INFO, "transport %s: the element is lost: %s", t->name, weft_status_text(why));
            again(t);
        }
    } else {
        return;
    }
    wefti_route_part(route);
}

/* --- orders  ---------------------------------------------------------------------------------------------------------- */

typedef struct order {
    weft_ext_call_t call;
    weft_transport_t *t;
    uint64_t number;
    weft_durl_t durl;
} order_t;

static void go(weft_transport_t *t, const weft_durl_t *durl)
{
    bool same = wefti_durl_same(durl, &t->durl);
    pthread_mutex_lock(&t->lock);
    t->timeout_ns = durl->timeout_ms ? durl->timeout_ms * WEFT_MILLISECOND : t->timeout_ns;
    pthread_mutex_unlock(&t->lock);
    if (t->timeout_ns)
        wefti_ios_limit(t);
    if (same && (t->state == WEFT_TRANSPORT_CONNECTING || t->state == WEFT_TRANSPORT_READY))
        return;
    element_route_t *coming = t->coming, *was = take_route(t, false);
    t->coming = NULL;
    t->durl = *durl;
    weft_ext_timer_stop(t->rt, &t->retry);
    wefti_route_part(coming);
    wefti_route_part(was);
    unpin(t);
    if (t->server) {
        uint64_t now = weft_now(t->rt);
        pthread_mutex_lock(&t->lock);
        t->stats.ready_at = now;
        pthread_mutex_unlock(&t->lock);
        set_state(t, WEFT_TRANSPORT_READY, WEFT_OK);
        wefti_ios_each(t, wefti_io_go_if_waiting, WEFT_OK);
        return;
    }
    if (!set_state(t, WEFT_TRANSPORT_CONNECTING, WEFT_OK))
        return;
    t->pause = t->action->retry_ns;
    t->give_up_at = element_after(weft_now(t->rt), t->action->connect_ns);
    dial(t);
}

static void obey(weft_ext_call_t *call)
{
    order_t *o = wefti_container_of(call, order_t, call);
    weft_transport_t *t = o->t;
    weft_action_t *action = t->action;
    if (o->number > t->obeyed && t->state != WEFT_TRANSPORT_RELEASED) {
        go(t, &o->durl);
        pthread_mutex_lock(&t->lock); /* from now on io_at_once.c may use the new route */
        t->obeyed = o->number;
        pthread_mutex_unlock(&t->lock);
    }
    wefti_free(o);
    wefti_action_unref(action);
}

bool wefti_transport_is_own(const weft_durl_t *d)
{
    return d->impl == WEFT_IMPL_LOCAL && !d->server && !*d->url && !*d->shm_id && !d->region_key_len && !d->n_replicas;
}

bool wefti_transport_leads(const weft_durl_t *d)
{
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    if (d->server)
        return d->bytes != 0;
    if (*d->url || *d->shm_id || d->n_replicas || (d->impl == WEFT_IMPL_LOCAL && d->bytes))
        return true;
    return d->region_key_len && !weft_region_key_read(d->region_key, d->region_key_len, &info) && *info.owner;
}

/* Memory of its own: a server's, and that of rdma_local. */
static weft_status_t open_memory(weft_transport_t *t, const weft_durl_t *d)
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    weft_memory_t *m;
    wefti_uri_t first;
    char uri[128], place[ELEMENT_PLACE_MAX] = "";
    const char *at = d->url;
    /* users of older versions know what is at a Unix socket by its name alone */
    if (t->server && (!*at || (!wefti_uri_parse(&at, &first) && wefti_uri_has_port(&first))))
        wefti_durl_place(d, place);
    o.name = d->name;
    o.bytes = d->bytes;
    o.uri = *d->url ? d->url : NULL;
    if (!o.uri && *d->shm_id && t->server) {
        snprintf(uri, sizeof uri, ELEMENT_SHM_URI, d->shm_id);
        o.uri = uri;
    }
    o.spare = t->server ? t->action->spare : 0;
    o.named = t->server;
    weft_status_t st = wefti_memory_open(t->rt, &o, place, &m);
    if (st)
        return st;
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED && !t->memory;
    if (may) {
        t->memory = m;
        t->stats.len = d->bytes;
    }
    pthread_mutex_unlock(&t->lock);
    if (!may)
        weft_memory_close(m, NULL);
    return may ? WEFT_OK : weft_fail(WEFT_ERR_STATE, "the transport %s has its memory already", t->name);
}

weft_status_t wefti_transport_send(weft_transport_t *t, const weft_durl_t *durl)
{
    order_t *o = (order_t *)wefti_calloc(1, sizeof *o);
    if (!o)
        return weft_fail(WEFT_ERR_NOMEM, "no memory to configure a transport");
    if (t->server || wefti_transport_is_own(durl)) {
        weft_status_t st = open_memory(t, durl);
        if (st) {
            wefti_free(o);
            return st;
        }
    }
    o->t = t;
    o->durl = *durl;
    o->call.fn = obey;
    pthread_mutex_lock(&t->lock);
    o->number = ++t->orders;
    pthread_mutex_unlock(&t->lock);
    wefti_action_ref(t->action);
    weft_status_t st = weft_ext_call(t->rt, &o->call);
    if (st) {
        wefti_free(o);
        wefti_action_unref(t->action);
    }
    return st;
}

/* --- the end  --------------------------------------------------------------------------------------------------------- */

void wefti_transport_end(weft_transport_t *t)
{
    set_state(t, WEFT_TRANSPORT_RELEASED, WEFT_ERR_CLOSED);
    pthread_mutex_lock(&t->lock);
    weft_memory_t *memory = t->memory;
    t->memory = NULL;
    pthread_mutex_unlock(&t->lock);
    element_route_t *coming = t->coming, *was = take_route(t, false);
    t->coming = NULL;
    weft_ext_timer_stop(t->rt, &t->retry);
    wefti_ios_each(t, wefti_io_stop_unless_flush, WEFT_ERR_CLOSED);
    wefti_route_part(coming);
    wefti_route_part(was);
    unpin(t);
    if (memory && !weft_ext_closing(t->rt))
        weft_memory_close(memory, NULL);
}

static void released(weft_ext_call_t *call)
{
    weft_transport_t *t = wefti_container_of(call, weft_transport_t, release_call);
    weft_action_t *action = t->action;
    wefti_transport_end(t);
    wefti_action_unref(action);
}

void wefti_transport_release(weft_transport_t *t)
{
    if (!set_state(t, WEFT_TRANSPORT_RELEASED, WEFT_ERR_CLOSED))
        return;
    t->release_call.fn = released;
    wefti_action_ref(t->action);
    if (weft_ext_call(t->rt, &t->release_call))
        wefti_action_unref(t->action);
}

void wefti_transport_terminated(weft_transport_t *t)
{
    wefti_ios_each(t, wefti_io_end_if_waiting, WEFT_ERR_CANCELLED);
    wefti_ios_each(t, wefti_io_end_if_serving, WEFT_OK);
}

/* --- handles  --------------------------------------------------------------------------------------------------------- */

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_transport_t, why);

weft_status_t wefti_transport_new(weft_action_t *a, const weft_durl_t *durl, weft_transport_t **trans_out)
{
    weft_transport_t *t = (weft_transport_t *)wefti_handle_take(&handles);
    if (!t)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a transport");
    if (t->handle.uses == 1)
        pthread_mutex_init(&t->lock, NULL);
    memset(&t->es, 0, sizeof *t - offsetof(weft_transport_t, es));
    t->action = a;
    t->es = a->es;
    t->rt = a->rt;
    memcpy(t->name, durl->name, sizeof t->name);
    t->server = durl->server;
    t->impl = durl->impl;
    t->timeout_ns = durl->timeout_ms * WEFT_MILLISECOND;
    t->durl.size = sizeof t->durl;
    t->retry.fn = retry;
    wefti_list_init(&t->ios);
    wefti_list_init(&t->pins);
    pthread_mutex_lock(&t->lock);
    t->why = WEFT_OK;
    t->state = WEFT_TRANSPORT_WAITING;
    atomic_store(&t->handle.open, 1);
    pthread_mutex_unlock(&t->lock);
    *trans_out = t;
    return WEFT_OK;
}

void wefti_transport_free(weft_transport_t *t)
{
    set_state(t, WEFT_TRANSPORT_RELEASED, WEFT_ERR_CLOSED);
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->handle.open, 0);
    pthread_mutex_unlock(&t->lock);
    for (element_io_t *io = t->spare, *next; io; io = next) {
        next = io->next;
        wefti_free(io);
    }
    weft_buffer_drop(t->buf);
    wefti_handle_free(&handles, t);
}

weft_status_t wefti_transport_enter(weft_transport_t *t)
{
    weft_status_t st = weft_ext_check(t->rt);
    if (st)
        return st;
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    if (may) {
        atomic_fetch_add(&t->inside, 1);
        wefti_action_ref(t->action);
    }
    pthread_mutex_unlock(&t->lock);
    return may ? WEFT_OK : weft_fail(WEFT_ERR_CLOSED, "the transport %s was released", t->name);
}

void wefti_transport_leave(weft_transport_t *t)
{
    wefti_action_unref(t->action);
    atomic_fetch_sub(&t->inside, 1); /* if that was the last reference of the action, its memory is still an object */
}
