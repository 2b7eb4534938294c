/* rpc/service.c - services: opening, counting, remembered replies, draining, closing, and their end with the runtime.
 *
 *     open --drain--> draining: no new calls --close--> closing: requests cancelled, functions removed, threads stopped --> freed
 *
 * Any thread opens one, adds functions and reads counters. A service is a handle (base/handle.h): a call with a closed one is
 * told so. Draining and closing happen on the driver. A service is freed when its last request and function are, and its threads
 * are gone.
 *
 * Promise: close completes after the last function of the service has returned and its last request was released. Callers that
 * come while it closes, or later, are told that it is closed, not that there is no such service. tests/wire/rpc_service.c,
 * tests/wire/rpc_threads.c, tests/wire/rpc_closed.c. */
#include <stddef.h>
#include <stdio.h>

#include "base/ascii.h"
#include "rpc/serve.h"

#define REQUESTS (1u << 20)
#define QUEUE 65536u
#define BYTES (UINT64_C(2) << 30)
#define PAYLOAD_MAX (UINT64_C(1) << 30)
#define PEER_PERCENT 50u
#define REMEMBERED 65536u
#define REMEMBER_NS (60 * WEFT_SECOND)
#define THREADS_MAX 4096u
#define CLIENTS_LEAST 4096u /* clients that made a call with `once` are known, however few replies are remembered */

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_service_t, instance);

static void fill_in(weft_service_opts_t *o)
{
    o->requests = o->requests ? o->requests : REQUESTS;
    o->queue = o->queue ? o->queue : QUEUE;
    o->bytes = o->bytes ? o->bytes : BYTES;
    o->payload_max = o->payload_max ? o->payload_max : PAYLOAD_MAX;
    o->peer_percent = o->peer_percent ? o->peer_percent : PEER_PERCENT;
    o->stall_ns = o->stall_ns ? o->stall_ns : RPC_STALL_NS;
    o->remembered = o->remembered ? o->remembered : REMEMBERED;
    o->remember_ns = o->remember_ns ? o->remember_ns : REMEMBER_NS;
}

static void forget_due(wefti_timer_t *t)
{
    wefti_rpc_service_remember(wefti_container_of(t, weft_service_t, forget));
}

/* It counts its requests and bytes with the twins that it will have, or with the service that it is one of. False: no memory. */
static bool count_together(weft_service_t *s)
{
    rpc_total_t *total = s->of ? s->of->total : wefti_sharded(s->rt) ? (rpc_total_t *)wefti_calloc(1, sizeof *total) : NULL;
    if (total)
        wefti_rpc_budget_join(s->budget, total);
    s->total = total;
    return total || !wefti_sharded(s->rt);
}

weft_service_t *wefti_rpc_service_new(rpc_state_t *rs, const char *name, const char *instance, const weft_service_opts_t *opts,
                                      weft_service_t *of)
{
    weft_service_t *s = (weft_service_t *)wefti_handle_new(&handles);
    if (!s)
        return NULL;
    s->rt = rs->rt;
    s->rs = rs;
    s->opts = *opts;
    fill_in(&s->opts);
    s->budget = wefti_rpc_budget_new(s->opts.bytes, s->opts.peer_percent);
    s->of = of;
    if (!s->budget || !count_together(s)) {
        wefti_rpc_budget_leave(s->budget);
        wefti_handle_free(&handles, s);
        return NULL;
    }
    s->peer_requests = (uint32_t)wefti_rpc_part(s->opts.requests, s->opts.peer_percent);
    s->peer_queue = (uint32_t)wefti_rpc_part(s->opts.queue, s->opts.peer_percent);
    snprintf(s->name, sizeof s->name, "%s", name);
    pthread_mutex_lock(&rs->lock);
    s->epoch = wefti_hash_u64(rs->random ^ ++rs->serial);
    s->epoch += !s->epoch; /* 0 is none */
    pthread_mutex_unlock(&rs->lock);
    if (instance)
        snprintf(s->instance, sizeof s->instance, "%s", instance);
    else
        snprintf(s->instance, sizeof s->instance, "%016llx", (unsigned long long)wefti_hash_u64(s->epoch));
    s->opts.instance = s->instance;
    s->forget.fn = forget_due;
    wefti_list_init(&s->functions);
    wefti_list_init(&s->requests);
    wefti_list_init(&s->drain_ops);
    wefti_once_init(&s->book, s->opts.remembered, s->opts.remember_ns);
    /* A client repeats a call for RPC_PATIENCE after it noticed that its reply is lost, even if we remember the reply for less.
     * Until then we know that the call ran, and do not run it again. */
    uint64_t stay = 2 * (RPC_PATIENCE + 2 * rs->rt->config.heartbeat);
    s->book.stay_ns = stay > s->opts.remember_ns ? stay : s->opts.remember_ns;
    s->book.max_clients = s->opts.remembered < CLIENTS_LEAST ? CLIENTS_LEAST : s->opts.remembered;
    s->book.peer_max = (uint32_t)wefti_rpc_part(s->book.max, s->opts.peer_percent);
    s->book.peer_clients = (uint32_t)wefti_rpc_part(s->book.max_clients, s->opts.peer_percent);
    return s;
}

static void service_delete(weft_service_t *s)
{
    wefti_once_free(&s->book);
    wefti_rpc_budget_leave(s->budget);
    if (s->of) {
        wefti_rpc_twin_gone(s);
    } else {
        wefti_rpc_pool_free(s->pool);
        wefti_rpc_pool_free(s->serial);
        wefti_free(s->twins);
    }
    wefti_handle_free(&handles, s);
}

static void close_called(wefti_call_t *call);

static weft_status_t check_name(const char *name, const char *what)
{
    size_t n = strnlen(name, RPC_NAME);
    bool ok = n && n < RPC_NAME;
    for (size_t i = 0; ok && i < n; i++)
        ok = wefti_is_alnum(name[i]) || name[i] == '.' || name[i] == '-' || name[i] == '_';
    return ok ? WEFT_OK
              : wefti_fail(WEFT_ERR_INVALID, "%s has a name of 1 to %u letters, digits, '.', '-' and '_'", what, RPC_NAME - 1);
}

/* Under rs->lock. */
static bool taken(const rpc_state_t *rs, const weft_service_t *s)
{
    wefti_list_each(l, &rs->services) {
        const weft_service_t *other = wefti_container_of(l, weft_service_t, link);
        if (!other->ended && !strcmp(other->name, s->name) && !strcmp(other->instance, s->instance))
            return true;
    }
    return false;
}

static weft_status_t open_service(weft_runtime_t *rt, const char *name, const weft_service_opts_t *o, weft_service_t *of,
                                  weft_service_t **service_out)
{
    rpc_state_t *rs = rpc_state(rt);
    weft_status_t st = WEFT_OK;
    weft_service_t *s = wefti_rpc_service_new(rs, name, o->instance, o, of);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a service");
    s->close.call.fn = close_called;
    if (of)
        s->pool = of->pool;
    else if (o->threads && (st = wefti_rpc_pool_new(s, o->threads, &s->pool)))
        goto err;
    pthread_mutex_lock(&rs->lock);
    if (rs->ending || wefti_closing(rt))
        st = wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", rt->name);
    else if (taken(rs, s))
        st = wefti_fail(WEFT_ERR_STATE, "there is a service \"%s\" with the instance \"%s\" already", name, s->instance);
    else
        wefti_list_push_back(&rs->services, &s->link);
    pthread_mutex_unlock(&rs->lock);
    if (st)
        goto err_pool;
    *service_out = s;
    return WEFT_OK;

err_pool:
    if (s->pool && !of)
        wefti_rpc_pool_undo(s->pool);
    s->pool = NULL;
err:
    s->of = NULL; /* its service does not wait for it */
    service_delete(s);
    return st;
}

weft_status_t wefti_rpc_service_open(weft_runtime_t *rt, const char *name, const weft_service_opts_t *opts, weft_service_t *of,
                                     weft_service_t **service_out)
{
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = open_service(rt, name, opts, of, service_out);
    wefti_part(rt);
    return st;
}

weft_status_t weft_service_open(weft_runtime_t *rt, const char *name, const weft_service_opts_t *opts,
                                weft_service_t **service_out)
{
    weft_service_opts_t o;
    if (!rt || !name || !service_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "the runtime" : name ? "the place for the service" : "the name");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_service_opts_t");
    if (!st)
        st = check_name(name, "a service");
    if (!st && o.instance)
        st = check_name(o.instance, "an instance");
    if (st)
        return st;
    if (!strncmp(name, "weft", 4))
        return wefti_fail(WEFT_ERR_INVALID, "names that begin with \"weft\" are the library's: \"%s\"", name);
    if (o.threads > THREADS_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "%u threads are more than %u", o.threads, THREADS_MAX);
    if (o.peer_percent > 100)
        return wefti_fail(WEFT_ERR_INVALID, "a peer has at most 100 percent of a service, not %u", o.peer_percent);
    weft_service_t *s;
    st = wefti_rpc_service_open(rt, name, &o, NULL, &s);
    if (st)
        return st;
    if (wefti_sharded(rt) && (st = wefti_rpc_twins_open(s))) {
        (void)weft_service_close(s, NULL);
        return st;
    }
    *service_out = s;
    return WEFT_OK;
}

const char *weft_service_name(const weft_service_t *service)
{
    return service && wefti_is_open(&service->handle) ? service->name : "";
}

const char *weft_service_instance(const weft_service_t *service)
{
    return service && wefti_is_open(&service->handle) ? service->instance : "";
}

void wefti_rpc_service_remember(weft_service_t *s)
{
    uint64_t next = wefti_once_age(&s->book, s->rs->rt->now);
    __atomic_store_n(&s->stats.remembered, s->book.n, __ATOMIC_RELAXED);
    /* the timer may be set for a client, which is remembered longer than a reply */
    if (next != UINT64_MAX && (!s->forget.node.slot || next < s->forget.node.key))
        (void)wefti_timer_at(s->rs->rt, &s->forget, next); /* without memory for it, the next call does it */
}

/* --- the end --------------------------------------------------------------------------------------------------------------- */

/* Callers do not find it any more; its name is remembered. Under rs->lock. */
static void end(weft_service_t *s)
{
    rpc_state_t *rs = s->rs;
    bool known = s->ended;
    s->ended = true;
    for (uint32_t i = 0; i < RPC_CLOSED; i++)
        known = known || !strcmp(rs->closed[i], s->name);
    if (!known)
        memcpy(rs->closed[rs->closed_n++ % RPC_CLOSED], s->name, sizeof s->name);
}

static void drains_done(weft_service_t *s, weft_status_t st)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&s->drain_ops));) {
        rpc_end(s->rs);
        wefti_op_complete(wefti_op_of_link(l), st);
    }
}

void wefti_rpc_service_step(weft_service_t *s)
{
    rpc_state_t *rs = s->rs;
    if (s->busy || !s->draining)
        return;
    if (!s->unanswered && !s->leaving)
        drains_done(s, WEFT_OK);
    if (!s->closing || s->stats.under_way || s->twins_left)
        return;
    if (!s->of && ((s->pool && !wefti_rpc_pool_gone(s->pool)) || (s->serial && !wefti_rpc_pool_gone(s->serial))))
        return;
    pthread_mutex_lock(&rs->lock);
    bool done = !s->alive && !s->called;
    if (done) {
        wefti_list_remove(&s->link);
        atomic_store(&s->handle.open, 0);
    }
    pthread_mutex_unlock(&rs->lock);
    if (!done)
        return;
    wefti_timer_stop(rs->rt, &s->forget);
    rpc_ending_t end = {.op = s->close.op};
    service_delete(s);
    wefti_rpc_ended(rs, &end, WEFT_OK);
}

static void drain(weft_service_t *s, bool lingers)
{
    s->draining = true;
    if (!s->own)
        wefti_rpc_unpublish(s, lingers);
}

static void close_now(weft_service_t *s)
{
    wefti_list_t all;
    if (s->closing) {
        wefti_rpc_service_step(s);
        return;
    }
    s->busy++;
    drain(s, false);
    s->closing = true;
    wefti_rpc_functions_remove(s);
    wefti_list_init(&all);
    wefti_list_splice(&all, &s->requests);
    for (wefti_list_t *l; (l = wefti_list_first(&all));) {
        wefti_list_remove(l);
        wefti_list_push_back(&s->requests, l);
        wefti_rpc_request_end(wefti_container_of(l, rpc_request_t, service_link), END_CLOSED);
    }
    if (s->pool && !s->of && !s->twins_left)
        wefti_rpc_pool_stop(s->pool);
    s->busy--;
    wefti_rpc_service_step(s);
}

static weft_status_t drain_start(weft_op_t *op)
{
    weft_service_t *s = *wefti_op_scratch(op, weft_service_t *);
    if (!wefti_is_open(&s->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the service was closed");
    weft_status_t st = wefti_op_track(op);
    if (st)
        return st;
    wefti_list_push_back(&s->drain_ops, &wefti_opx(op)->link);
    rpc_begin(s->rs);
    drain(s, true);
    wefti_rpc_service_step(s);
    return WEFT_OK;
}

static void drain_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_list_remove(&wefti_opx(op)->link);
    rpc_end((*wefti_op_scratch(op, weft_service_t *))->rs);
    wefti_op_complete(op, why);
}

static const wefti_op_kind_t drain_kind = {.name = "drain", .start = drain_start, .cancel = drain_cancel};

weft_status_t wefti_rpc_service_drain(weft_service_t *service, weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare(service->rt, op, &drain_kind);
    if (!st && !wefti_is_open(&service->handle)) {
        wefti_op_unprepare(op);
        st = wefti_fail(WEFT_ERR_CLOSED, "the service was closed");
    }
    if (st)
        return st;
    *wefti_op_scratch(op, weft_service_t *) = service;
    return wefti_op_post(service->rt, op);
}

/* The program has closed it; the runtime may have done so before. */
static void close_called(wefti_call_t *call)
{
    weft_service_t *s = wefti_container_of(call, weft_service_t, close.call);
    pthread_mutex_lock(&s->rs->lock);
    s->called = false;
    pthread_mutex_unlock(&s->rs->lock);
    close_now(s);
}

/* Claim the close: only this one, or the runtime, closes it. */
static weft_status_t claim_close(void *arg, rpc_ending_t **ending_out)
{
    weft_service_t *service = (weft_service_t *)arg;
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    if (service->ended)
        st = wefti_fail(WEFT_ERR_CLOSED, "the service was closed before");
    else
        service->called = true;
    end(service);
    *ending_out = &service->close;
    wefti_rpc_unlock(service->rt);
    return st;
}

weft_status_t wefti_rpc_service_close(weft_service_t *service, weft_op_t *op)
{
    return wefti_rpc_end(service->rt, ENDS_SERVICE, op, claim_close, service);
}

/* The program has not released some requests: operations that wait for that end now. */
static void held_by_program(weft_service_t *s)
{
    if (wefti_list_empty(&s->requests))
        return;
    wefti_rpc_ended(s->rs, &s->close, WEFT_ERR_CLOSED);
    wefti_list_each(l, &s->requests)
        wefti_rpc_ended(s->rs, &wefti_container_of(l, rpc_request_t, service_link)->fn->remove, WEFT_ERR_CLOSED);
}

void wefti_rpc_services_shutdown(rpc_state_t *rs)
{
    wefti_list_t all;
    wefti_list_init(&all);
    pthread_mutex_lock(&rs->lock);
    rs->ending = true;
    wefti_list_splice(&all, &rs->services);
    pthread_mutex_unlock(&rs->lock);
    for (wefti_list_t *l; (l = wefti_list_first(&all));) {
        weft_service_t *s = wefti_container_of(l, weft_service_t, link);
        pthread_mutex_lock(&rs->lock);
        wefti_list_remove(l);
        wefti_list_push_back(&rs->services, l);
        end(s);
        pthread_mutex_unlock(&rs->lock);
        s->busy++;
        drains_done(s, WEFT_ERR_CLOSED);
        close_now(s);
        held_by_program(s);
        s->busy--;
        wefti_rpc_service_step(s);
    }
}

/* With the runtime. Requests that the program has become orphans, and keep their functions. */
static void service_free(weft_service_t *s)
{
    s->busy++;                       /* its last request does not free it */
    wefti_list_each(q, &s->requests) /* before the first is freed */
        wefti_rpc_function_orphan(wefti_container_of(q, rpc_request_t, service_link)->fn);
    wefti_list_each(l, &s->functions) /* a thread has removed it when the runtime was closed already */
        wefti_rpc_function_orphan(wefti_container_of(l, rpc_function_t, link));
    for (wefti_list_t *q; (q = wefti_list_first(&s->requests));)
        wefti_rpc_request_discard(wefti_container_of(q, rpc_request_t, service_link));
    for (wefti_list_t *l; (l = wefti_list_pop(&s->functions));)
        wefti_rpc_function_unorphan(wefti_container_of(l, rpc_function_t, link));
    service_delete(s);
}

void wefti_rpc_services_free(rpc_state_t *rs)
{
    wefti_rpc_handed_in_late(rs);
    for (wefti_list_t *l; (l = wefti_list_pop(&rs->services));) {
        weft_service_t *s = wefti_container_of(l, weft_service_t, link);
        if (!s->pool || s->of || wefti_rpc_pool_gone(s->pool)) /* a thread of it that does not end: better a leak than a crash */
            service_free(s);
    }
    if (rs->own)
        service_free(rs->own);
    for (uint32_t i = 0; i < RPC_PAGES; i++)
        wefti_free((void *)atomic_load_explicit(&rs->pages[i], memory_order_relaxed));
}
