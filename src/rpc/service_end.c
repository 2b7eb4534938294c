/* rpc/service_end.c - the end of services: draining, closing, and with the runtime.
 *
 *     open --drain--> draining: no new calls --close--> closing: requests cancelled, functions removed, threads stopped --> freed
 *
 * Draining and closing happen on the driver. A service is freed when its last request and function are, and its threads are gone.
 *
 * Promise: close completes after the last function of the service has returned and its last request was released. Callers that
 * come while it closes, or later, are told that it is closed, not that there is no such service. tests/wire/rpc_service.c,
 * tests/wire/rpc_threads.c, tests/wire/rpc_closed.c. */
#include "rpc/serve.h"

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
    if (!s->closing || s->stats.under_way || (s->pool && !wefti_rpc_pool_gone(s->pool)))
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
    wefti_rpc_service_delete(s);
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
    if (s->closing)
        return;
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
    if (s->pool)
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

weft_status_t weft_service_drain(weft_service_t *service, weft_op_t *op)
{
    if (!service || !op)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", service ? "the operation" : "the service");
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
void wefti_rpc_service_close_called(wefti_call_t *call)
{
    weft_service_t *s = wefti_container_of(call, weft_service_t, close.call);
    pthread_mutex_lock(&s->rs->lock);
    s->called = false;
    pthread_mutex_unlock(&s->rs->lock);
    s->busy++;
    close_now(s);
    s->busy--;
    wefti_rpc_service_step(s);
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

weft_status_t weft_service_close(weft_service_t *service, weft_op_t *op)
{
    return service ? wefti_rpc_end(service->rt, op, claim_close, service) : WEFT_OK;
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

void wefti_rpc_services_free(rpc_state_t *rs)
{
    wefti_rpc_handed_in_late(rs);
    for (wefti_list_t *l; (l = wefti_list_pop(&rs->services));) {
        weft_service_t *s = wefti_container_of(l, weft_service_t, link);
        if (s->pool && !wefti_rpc_pool_gone(s->pool))
            continue;                    /* a thread of it does not end: better a leak than a crash */
        s->busy++;                       /* its last request does not free it */
        wefti_list_each(q, &s->requests) /* before the first is freed */
            wefti_rpc_function_orphan(wefti_container_of(q, rpc_request_t, service_link)->fn);
        wefti_rpc_functions_orphan(s);
        for (wefti_list_t *q; (q = wefti_list_first(&s->requests));)
            wefti_rpc_request_discard(wefti_container_of(q, rpc_request_t, service_link));
        wefti_rpc_functions_free(s);
        wefti_rpc_service_delete(s);
    }
    if (rs->own) {
        wefti_rpc_functions_orphan(rs->own);
        wefti_rpc_functions_free(rs->own);
        wefti_rpc_service_delete(rs->own);
    }
    for (uint32_t i = 0; i < RPC_PAGES; i++)
        wefti_free((void *)atomic_load_explicit(&rs->functions[i], memory_order_relaxed));
}
