/* rpc/twins.c - services on a runtime with several shards: the program has one, and each further shard a twin of it.
 *
 * A twin has the same name, instance, functions and limits, and serves the connections of its shard. Nothing of a call that runs
 * on its shard is shared. Shared are the threads, the line of functions that are `serial`, and how much all requests together may
 * be: those count with atomics, for requests on the heap only.
 *
 * Calls made with `once` are remembered by the shard that they came to. A client that comes back gets its endpoint there
 * (conn/shards.c). One that comes back over another connection may meet another shard, whose `epoch` is another: it is told that
 * its call may have run, and it is not run twice.
 *
 * Promise: the service is freed after its twins, and its close completes after the last of them is gone.
 * tests/wire/rpc_shards.c. */
#include <stddef.h>

#include "rpc/serve.h"

/* What a service knows of its twin on one shard. */
struct rpc_twin {
    weft_service_t *service, *twin;
    wefti_call_t gone;
};

static void gone(wefti_call_t *call)
{
    weft_service_t *service = wefti_container_of(call, struct rpc_twin, gone)->service;
    service->twins_left--;
    if (!service->twins_left && service->closing && service->pool)
        wefti_rpc_pool_stop(service->pool);
    wefti_rpc_service_step(service);
}

void wefti_rpc_twin_gone(weft_service_t *twin)
{
    struct rpc_twin *t = &twin->of->twins[wefti_shard_number(twin->rt)];
    pthread_mutex_lock(&t->service->rs->lock);
    t->twin = NULL; /* its memory may be another service's soon */
    pthread_mutex_unlock(&t->service->rs->lock);
    (void)wefti_call_on_driver(t->service->rt, &t->gone); /* the head is closed last */
}

weft_service_t *wefti_rpc_twin(weft_service_t *service, uint32_t shard)
{
    if (!shard)
        return service;
    if (wefti_rpc_service_lock(service))
        return NULL;
    weft_service_t *twin = service->twins ? service->twins[shard].twin : NULL;
    wefti_rpc_unlock(service->rt);
    return twin;
}

weft_status_t wefti_rpc_twins_open(weft_service_t *service)
{
    uint32_t n = wefti_n_shards(service->rt);
    weft_status_t st = WEFT_OK;
    struct rpc_twin *twins = (struct rpc_twin *)wefti_calloc(n, sizeof *twins);
    if (!twins)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a service on %u shards", n);
    service->twins = twins; /* nobody knows the service yet, but its twins */
    for (uint32_t k = 1; k < n && !st; k++) {
        twins[k].service = service;
        twins[k].gone.fn = gone;
        st = wefti_rpc_service_open(wefti_shard(service->rt, k), service->name, &service->opts, service, &twins[k].twin);
        service->twins_left += !st;
    }
    return st;
}

/* --- what the program asks of all of them --------------------------------------------------------------------------------- */

static weft_status_t drain_on_shard(wefti_part_t *part)
{
    weft_service_t *twin = wefti_rpc_twin(part->arg, wefti_shard_number(part->rt));
    return twin ? wefti_rpc_service_drain(twin, &part->op) : WEFT_OK;
}

weft_status_t weft_service_drain(weft_service_t *service, weft_op_t *op)
{
    if (!service || !op)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", service ? "the operation" : "the service");
    if (!wefti_sharded(service->rt))
        return wefti_rpc_service_drain(service, op);
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    wefti_rpc_unlock(service->rt);
    return wefti_on_all_shards(service->rt, op, drain_on_shard, service);
}

weft_status_t weft_service_close(weft_service_t *service, weft_op_t *op)
{
    if (!service)
        return WEFT_OK;
    weft_runtime_t *rt = service->rt;
    if (wefti_sharded(rt)) /* the service itself waits for them */
        for (uint32_t k = 1; k < wefti_n_shards(rt); k++) {
            weft_service_t *twin = wefti_rpc_twin(service, k);
            if (twin)
                (void)wefti_rpc_service_close(twin, NULL);
        }
    return wefti_rpc_service_close(service, op);
}

/* It and its twins have `serial` from now on. */
static weft_status_t make_serial(weft_service_t *service)
{
    rpc_pool_t *made = NULL;
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    bool has = service->serial;
    wefti_rpc_unlock(service->rt);
    if (has)
        return WEFT_OK;
    st = wefti_rpc_pool_new(service, 0, &made);
    if (!st)
        st = wefti_rpc_service_lock(service);
    if (st) {
        wefti_rpc_pool_free(made);
        return st;
    }
    if (!service->serial) {
        /* a twin reads it on its driver, when there is a function that is `serial`: which is added after this */
        for (uint32_t k = 1; k < wefti_n_shards(service->rt); k++)
            if (service->twins[k].twin)
                service->twins[k].twin->serial = made;
        service->serial = made;
        made = NULL;
    }
    wefti_rpc_unlock(service->rt);
    wefti_rpc_pool_free(made);
    return WEFT_OK;
}

/* Lock the service, then its twins. *locked_out: how many of them all are, also after an error. */
static weft_status_t lock_all(weft_service_t *service, uint32_t n, uint32_t *locked_out)
{
    weft_status_t st = wefti_rpc_service_lock(service);
    *locked_out = !st;
    for (uint32_t k = 1; k < n && !st; k++) {
        weft_service_t *twin = service->twins ? service->twins[k].twin : NULL;
        st = twin ? wefti_rpc_service_lock(twin) : wefti_fail(WEFT_ERR_CLOSED, "the service \"%s\" is closed", service->name);
        *locked_out += !st;
    }
    return st;
}

static void unlock_all(weft_runtime_t *head, uint32_t locked)
{
    while (locked-- > 0)
        wefti_rpc_unlock(wefti_shard(head, locked));
}

/* All of them get it, under one number, or none does: nothing can be called of one that was refused. */
static weft_status_t enter_all(weft_service_t *service, rpc_function_t **fs, uint32_t n)
{
    weft_runtime_t *head = service->rt;
    uint32_t locked;
    weft_status_t st = lock_all(service, n, &locked);
    for (uint32_t k = 0; k < n && !st; k++) {
        fs[k]->number = k ? fs[0]->number : fs[k]->number;
        st = wefti_rpc_function_fits(k ? service->twins[k].twin : service, fs[k]);
    }
    for (uint32_t k = 0; k < n && !st; k++)
        wefti_rpc_function_enter(k ? service->twins[k].twin : service, fs[k]);
    unlock_all(head, locked);
    return st;
}

weft_status_t wefti_rpc_twins_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                                  weft_function_opts_t *o)
{
    uint32_t n = wefti_n_shards(service->rt);
    rpc_function_t **fs = (rpc_function_t **)wefti_calloc(n, sizeof(rpc_function_t *));
    rpc_owner_t *owner = (rpc_owner_t *)wefti_calloc(1, sizeof *owner);
    weft_status_t st = fs && owner ? WEFT_OK : wefti_fail(WEFT_ERR_NOMEM, "no memory for a function on %u shards", n);
    if (!st && o->serial)
        st = make_serial(service);
    for (uint32_t k = 0; k < n && !st; k++) {
        st = wefti_rpc_function_new(signature, fn, user, o, false, &fs[k]);
        if (!st)
            fs[k]->owner = owner;
    }
    if (!st) {
        atomic_init(&owner->refs, n);
        st = enter_all(service, fs, n);
    }
    if (st) {
        for (uint32_t k = 0; fs && k < n; k++)
            wefti_rpc_function_free(fs[k]);
        wefti_free(owner);
    }
    wefti_free((void *)fs);
    return st;
}

static void add_stats(weft_service_stats_t *sum, weft_service_t *service)
{
    weft_service_stats_t s = {0};
    rpc_read_all(&s.requests, &service->stats.requests, sizeof s - offsetof(weft_service_stats_t, requests));
    rpc_add_all(&sum->requests, &s.requests, sizeof s - offsetof(weft_service_stats_t, requests));
}

weft_status_t weft_service_get_stats(weft_service_t *service, weft_service_stats_t *stats_out)
{
    if (!service || !stats_out || stats_out->size < sizeof stats_out->size)
        return wefti_fail(WEFT_ERR_INVALID,
                          "there is no service, or no place for its counters; WEFT_SERVICE_STATS_INIT sets its size");
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    weft_service_stats_t s = {0};
    uint32_t running;
    add_stats(&s, service);
    for (uint32_t k = 1; service->twins && k < wefti_n_shards(service->rt); k++) /* they are there while it is open */
        if (service->twins[k].twin)
            add_stats(&s, service->twins[k].twin);
    s.waiting = service->pool ? wefti_rpc_pool_waiting(service->pool, &running) : 0;
    s.bytes = wefti_rpc_budget_used(service->budget);
    wefti_rpc_unlock(service->rt);
    wefti_opts_write(stats_out, &s, sizeof s);
    return WEFT_OK;
}

uint32_t wefti_rpc_service_load(weft_service_t *service)
{
    uint64_t n = rpc_read(&service->unanswered);
    for (uint32_t k = 1; service->twins && k < wefti_n_shards(service->rt); k++)
        if (service->twins[k].twin)
            n += rpc_read(&service->twins[k].twin->unanswered);
    uint64_t load = n * 1000 / service->opts.requests;
    uint64_t held = n * 1000 / (n + 1000); /* a limit of a million requests is far more than what makes a server slow */
    load = held > load ? held : load;
    if (service->pool) { /* all threads busy: half; twice as many requests waiting: full */
        uint32_t running, waiting = wefti_rpc_pool_waiting(service->pool, &running);
        uint64_t threads = (UINT64_C(500) * running + UINT64_C(500) * waiting) / service->opts.threads;
        load = threads > load ? threads : load;
    }
    return load < 1000 ? (uint32_t)load : 1000;
}
