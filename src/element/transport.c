/* element/transport.c - transports: their states, the ways they go, their buffers.
 *
 *     WAITING --go--> CONNECTING --the way is up--> READY --the way is over--> LOST --another way is up--> READY
 *                         \--no way within connect_ns--> LOST, and ways are tried on
 *                          \--a way ends with what no other would change--> FAILED <--/
 *     any --go--> CONNECTING        any --release--> RELEASED, for good
 *
 * All of it is moved by the driver, with the lock held, but RELEASED, which a release sets at once. What a program asks for goes to the driver as
 * an order, with a number: an older order that comes later is not obeyed.
 *
 * A server has no way: it opens its memory when it is told how large that is, and is READY then. rdma_local without a url has both: memory of its
 * own, and a way to it like to any other.
 *
 * Promise: a transport is READY only while it has a way that is up; whoever waits is told when it is, or that it will not be soon.
 * tests/wire/element_life.c, tests/fault/element_lost.c. */
#include <stddef.h>
#include <stdio.h>

#include "base/rng.h"
#include <assert.h>

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

/* --- states ------------------------------------------------------------------------------------------------------------------------- */

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

/* The way it has, if it has one, is its own no more. */
static element_way_t *take_way(weft_transport_t *t, bool lost)
{
    pthread_mutex_lock(&t->lock);
    element_way_t *way = t->way;
    t->way = NULL;
    t->stats.losses += lost;
    t->stats.replicas = 0;
    pthread_mutex_unlock(&t->lock);
    return way;
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
        wefti_way_unref(wefti_container_of(l, element_way_t, pin));
}

/* Would another try come to the same? */
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
    wefti_ios_waiting_end(t, why);
}

static void again(weft_transport_t *t)
{
    if (t->state == WEFT_TRANSPORT_RELEASED) /* by someone who was told that it failed: it may be gone before the timer */
        return;
    uint64_t in = wefti_rng_jitter(&t->es->rng, t->pause);
    t->pause = t->pause < PAUSE_MOST / 2 ? t->pause * 2 : PAUSE_MOST;
    if (weft_ext_timer_set(t->rt, &t->retry, element_after(weft_now(t->rt), in)))
        fail(t, WEFT_TRANSPORT_FAILED, WEFT_ERR_NOMEM);
}

static void came_to_nothing(weft_transport_t *t, weft_status_t why)
{
    if (final(why)) {
        fail(t, WEFT_TRANSPORT_FAILED, why);
        return;
    }
    if (t->state == WEFT_TRANSPORT_CONNECTING && element_after(weft_now(t->rt), t->pause) >= t->give_up_at)
        fail(t, WEFT_TRANSPORT_LOST, why);
    else if (t->state == WEFT_TRANSPORT_CONNECTING ||
             !t->stats.connects) /* who was there once is lost, whatever its place says now */
        (void)set_state(t, t->state, why);
    again(t);
}

static void dial(weft_transport_t *t)
{
    element_way_t *way = t->durl.n_replicas ? wefti_replicas_new(t) : wefti_single_new(t);
    if (!way) {
        came_to_nothing(t, WEFT_ERR_NOMEM);
        return;
    }
    t->coming = way;
    way->ops->begin(way);
}

static void retry(weft_ext_timer_t *timer)
{
    weft_transport_t *t = wefti_container_of(timer, weft_transport_t, retry);
    if (!t->coming && !t->way && t->state != WEFT_TRANSPORT_RELEASED)
        dial(t);
}

void wefti_transport_up(weft_transport_t *t, element_way_t *way)
{
    assert(t->coming == way);
    t->coming = NULL;
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    if (may) {
        t->way = way;
        t->state = WEFT_TRANSPORT_READY;
        t->why = WEFT_OK;
        t->stats.connects++;
        t->stats.len = way->len;
        t->stats.path = way->path;
    }
    pthread_mutex_unlock(&t->lock);
    if (!may) {
        wefti_way_part(way);
        return;
    }
    t->pause = t->action->retry_ns;
    wefti_ios_go(t);
}

void wefti_transport_down(weft_transport_t *t, element_way_t *way, weft_status_t why)
{
    if (way == t->coming) {
        t->coming = NULL;
        if (t->state != WEFT_TRANSPORT_RELEASED)
            came_to_nothing(t, why);
    } else if (way == t->way) {
        (void)take_way(t, true);
        if (set_state(t, WEFT_TRANSPORT_LOST, WEFT_ERR_PEER)) {
            weft_log(WEFT_LOG_INFO, "transport %s: the element is lost: %s", t->name, weft_status_text(why));
            again(t);
        }
    } else {
        return;
    }
    wefti_way_part(way);
}

/* --- orders ------------------------------------------------------------------------------------------------------------------------- */

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
    element_way_t *coming = t->coming, *was = take_way(t, false);
    t->coming = NULL;
    t->durl = *durl;
    weft_ext_timer_stop(t->rt, &t->retry);
    wefti_way_part(coming);
    wefti_way_part(was);
    unpin(t);
    if (t->server) {
        set_state(t, WEFT_TRANSPORT_READY, WEFT_OK);
        wefti_ios_go(t);
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
    if (o->number > t->obeyed && t->state != WEFT_TRANSPORT_RELEASED && !action->closing) {
        go(t, &o->durl);
        pthread_mutex_lock(&t->lock); /* from now on the short way leads there, too */
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
    char uri[128], place[ELEMENT_PLACE_MAX] = "";
    if (t->server)
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

/* --- the end ------------------------------------------------------------------------------------------------------------------------ */

void wefti_transport_end(weft_transport_t *t)
{
    set_state(t, WEFT_TRANSPORT_RELEASED, WEFT_ERR_CLOSED);
    pthread_mutex_lock(&t->lock);
    weft_memory_t *memory = t->memory;
    t->memory = NULL;
    pthread_mutex_unlock(&t->lock);
    element_way_t *coming = t->coming, *was = take_way(t, false);
    t->coming = NULL;
    weft_ext_timer_stop(t->rt, &t->retry);
    wefti_ios_end(t, WEFT_ERR_CLOSED);
    wefti_way_part(coming);
    wefti_way_part(was);
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
    wefti_ios_waiting_end(t, WEFT_ERR_CANCELLED);
    wefti_ios_serve_end(t, WEFT_OK);
}

/* --- handles ---------------------------------------------------------------------------------------------------------------------- */

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
    atomic_fetch_sub(&t->inside, 1); /* in its memory, if that was the last of the action */
}

bool wefti_transport_busy(weft_transport_t *t)
{
    return atomic_load(&t->inside);
}

/* --- buffers ------------------------------------------------------------------------------------------------------------------------ */

static weft_status_t shared_buffer(weft_transport_t *t, size_t size, weft_transport_t *other, weft_buffer_t **buf_out)
{
    weft_buffer_t *buf = weft_transport_buffer(other);
    if (!buf)
        return weft_fail(WEFT_ERR_STATE, "the transport %s has no buffer to share with %s", other->name, t->name);
    if (buf->len < size) {
        weft_fail(WEFT_ERR_RANGE, "the buffer of %s has %zu bytes, and %s is to have %zu", other->name, buf->len, t->name, size);
        weft_buffer_drop(buf);
        return WEFT_ERR_RANGE;
    }
    *buf_out = buf;
    return WEFT_OK;
}

static weft_status_t new_buffer(weft_action_t *a, size_t size, weft_buffer_t **buf_out)
{
    weft_status_t st = WEFT_OK;
    pthread_mutex_lock(&a->lock);
    if (!a->pool)
        st = wefti_element_pool_new(a->rt, &a->pool);
    pthread_mutex_unlock(&a->lock);
    return st ? st : wefti_element_buffer_new(a->pool, size, buf_out);
}

static weft_status_t set_buffer(weft_transport_t *t, weft_buffer_t *buf)
{
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    weft_buffer_t *was = may ? t->buf : buf;
    if (may)
        t->buf = buf;
    pthread_mutex_unlock(&t->lock);
    weft_buffer_drop(was);
    return may ? WEFT_OK : weft_fail(WEFT_ERR_CLOSED, "the transport %s was released", t->name);
}

weft_status_t weft_transport_reg(weft_transport_t *trans, size_t size, weft_transport_t *other)
{
    weft_buffer_t *buf = NULL;
    if (!trans)
        return weft_fail(WEFT_ERR_INVALID, "the transport is NULL");
    if (trans->server || (other && other->server))
        return weft_fail(WEFT_ERR_INVALID, "%s is a server: it has its memory, and no buffer",
                          trans->server ? trans->name : other->name);
    weft_status_t st = wefti_transport_enter(trans);
    if (st)
        return st;
    if (other && other->rt != trans->rt)
        st = weft_fail(WEFT_ERR_INVALID, "%s and %s are of two runtimes", trans->name, other->name);
    else
        st = other ? shared_buffer(trans, size, other, &buf) : new_buffer(trans->action, size, &buf);
    if (!st)
        st = set_buffer(trans, buf);
    wefti_transport_leave(trans);
    return st;
}

weft_buffer_t *weft_transport_buffer(weft_transport_t *trans)
{
    weft_buffer_t *buf = NULL;
    if (!trans || weft_ext_check(trans->rt)) /* here and below: before any lock, which may be held for ever in a forked child */
        return NULL;
    pthread_mutex_lock(&trans->lock);
    if (trans->state == WEFT_TRANSPORT_RELEASED) {
        ;
    } else if (trans->server) {
        buf = trans->memory ? wefti_memory_buffer(trans->memory) : NULL;
    } else {
        buf = trans->buf;
        weft_buffer_hold(buf);
    }
    pthread_mutex_unlock(&trans->lock);
    return buf;
}

void *weft_transport_buf(weft_transport_t *trans, size_t *len_out)
{
    void *base = NULL;
    size_t len = 0;
    if (trans && !weft_ext_check(trans->rt)) {
        pthread_mutex_lock(&trans->lock);
        if (trans->state == WEFT_TRANSPORT_RELEASED) {
            ;
        } else if (trans->server) {
            base = weft_memory_base(trans->memory);
            len = base ? trans->stats.len : 0;
        } else if (trans->buf) {
            base = trans->buf->base;
            len = trans->buf->len;
        }
        pthread_mutex_unlock(&trans->lock);
    }
    if (len_out)
        *len_out = len;
    return base;
}

/* --- asking ------------------------------------------------------------------------------------------------------------------------- */

weft_transport_state_t weft_transport_state(const weft_transport_t *trans, weft_status_t *why_out)
{
    weft_transport_t *t = (weft_transport_t *)(uintptr_t)trans;
    weft_transport_state_t state = WEFT_TRANSPORT_RELEASED;
    weft_status_t why = WEFT_ERR_INVALID;
    if (t)
        why = weft_ext_check(t->rt);
    if (!why) {
        pthread_mutex_lock(&t->lock);
        state = t->state;
        why = t->why;
        pthread_mutex_unlock(&t->lock);
    }
    if (why_out)
        *why_out = why;
    return state;
}

const char *weft_transport_name(const weft_transport_t *trans)
{
    return trans && wefti_is_open(&trans->handle) ? trans->name : "";
}

weft_remote_t *weft_transport_remote(weft_transport_t *trans)
{
    weft_remote_t *remote = NULL;
    if (!trans) {
        weft_fail(WEFT_ERR_INVALID, "the transport is NULL");
        return NULL;
    }
    if (weft_ext_check(trans->rt))
        return NULL;
    pthread_mutex_lock(&trans->lock);
    if (trans->state == WEFT_TRANSPORT_READY && trans->way)
        remote = trans->way->remote;
    if (remote && !wefti_list_linked(&trans->way->pin)) { /* it stays, even if the element is lost */
        wefti_list_push_back(&trans->pins, &trans->way->pin);
        wefti_way_ref(trans->way);
    }
    if (!remote)
        weft_fail(trans->state == WEFT_TRANSPORT_RELEASED ? WEFT_ERR_CLOSED : WEFT_ERR_STATE, "the transport %s is %s%s",
                   trans->name, weft_transport_state_name(trans->state),
                   trans->server                          ? ", a server"
                   : trans->state == WEFT_TRANSPORT_READY ? ", with replicas"
                                                          : "");
    pthread_mutex_unlock(&trans->lock);
    return remote;
}

weft_memory_t *weft_transport_memory(weft_transport_t *trans)
{
    weft_memory_t *memory = NULL;
    if (!trans || weft_ext_check(trans->rt))
        return NULL;
    pthread_mutex_lock(&trans->lock);
    if (trans->server && trans->state == WEFT_TRANSPORT_READY)
        memory = trans->memory;
    pthread_mutex_unlock(&trans->lock);
    return memory;
}

weft_status_t weft_transport_get_stats(weft_transport_t *trans, weft_transport_stats_t *stats_out)
{
    if (!trans || !stats_out || stats_out->size < sizeof stats_out->size)
        return weft_fail(WEFT_ERR_INVALID,
                          trans ? "statistics go to a struct made with WEFT_TRANSPORT_STATS_INIT" : "the transport is NULL");
    weft_transport_stats_t all;
    weft_status_t st = weft_ext_check(trans->rt);
    if (st)
        return st;
    pthread_mutex_lock(&trans->lock);
    bool open = wefti_is_open(&trans->handle); /* that of a released one is there until its action goes */
    if (open)
        all = trans->stats;
    pthread_mutex_unlock(&trans->lock);
    if (!open)
        return weft_fail(WEFT_ERR_CLOSED, "the action of the transport was closed");
    size_t n = stats_out->size < sizeof all ? stats_out->size : sizeof all;
    all.size = n;
    memcpy(stats_out, &all, n);
    return WEFT_OK;
}
