/* rpc/pool.c - threads of a service, for functions that may wait.
 *
 * Requests wait in one queue, first come first served. The queue, and what a request says about its place in it, are under the
 * pool's lock; functions run without it. A request whose deadline has passed when a thread takes it is not begun.
 *
 * Stopping: the service has taken back what waits. Each thread ends when its function returns, and the last one tells the driver.
 * The threads take no signals: those are the program's.
 *
 * Promise: a request is run by one thread, or taken back, never both. tests/wire/rpc_threads.c. */
#include <signal.h>

#include "rpc/serve.h"

struct rpc_pool {
    weft_service_t *service;
    pthread_mutex_t lock;
    pthread_cond_t work;
    wefti_list_t queue; /* rpc_request_t.pool_link */
    uint32_t waiting, running, idle, alive;
    bool stop;
    bool gone; /* the driver's */
    wefti_call_t call;
    weft_op_t op; /* completes when all have left */
    uint32_t n;
    pthread_t threads[];
};

static void run(rpc_request_t *r, bool late)
{
    if (late)
        wefti_rpc_hand_in(r, WORK_LATE);
    else
        r->fn->fn(&r->pub, r->fn->user);
    wefti_rpc_request_drop(r);
}

static void *thread(void *arg)
{
    rpc_pool_t *p = (rpc_pool_t *)arg;
    weft_runtime_t *rt = p->service->rs->rt;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        wefti_list_t *l = wefti_list_pop(&p->queue);
        if (!l && p->stop)
            break;
        if (!l) {
            p->idle++;
            pthread_cond_wait(&p->work, &p->lock);
            p->idle--;
            continue;
        }
        rpc_request_t *r = wefti_container_of(l, rpc_request_t, pool_link);
        bool late = r->deadline != UINT64_MAX && weft_now(rt) >= r->deadline;
        r->queued = false;
        r->begun = !late;
        r->share->waiting--;
        p->waiting--;
        p->running++;
        pthread_mutex_unlock(&p->lock);
        run(r, late);
        pthread_mutex_lock(&p->lock);
        p->running--;
    }
    bool last = !--p->alive;
    pthread_mutex_unlock(&p->lock);
    if (last)
        wefti_call_on_driver(rt, &p->call);
    return NULL;
}

/* From progress: none of the threads drives the runtime any more. */
static void all_gone(weft_op_t *op, void *user)
{
    rpc_pool_t *p = (rpc_pool_t *)user;
    weft_service_t *service = p->service;
    (void)op;
    for (uint32_t i = 0; i < p->n; i++)
        pthread_join(p->threads[i], NULL); /* they only have to return */
    p->gone = true;
    rpc_end(service->rs);
    wefti_rpc_service_step(service);
}

/* The last thread ends. It may drive the runtime for the length of this call, so it is joined later. */
static void all_leave(wefti_call_t *call)
{
    wefti_op_complete(&wefti_container_of(call, rpc_pool_t, call)->op, WEFT_OK);
}

static const wefti_op_kind_t gone_kind = {.name = "threads"};

weft_status_t wefti_rpc_pool_new(weft_service_t *service, uint32_t threads, rpc_pool_t **pool_out)
{
    sigset_t all, old;
    int err = 0;
    rpc_pool_t *p = (rpc_pool_t *)wefti_calloc(1, sizeof *p + threads * sizeof p->threads[0]);
    if (!p)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %u threads", threads);
    p->service = service;
    p->call.fn = all_leave;
    p->op.fn = all_gone;
    p->op.user = p;
    weft_status_t st = wefti_op_prepare(service->rs->rt, &p->op, &gone_kind);
    if (st) {
        wefti_free(p);
        return st;
    }
    wefti_op_begin(&p->op);
    wefti_list_init(&p->queue);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&p->lock); /* no thread ends before all are started */
    while (p->n < threads && !(err = pthread_create(&p->threads[p->n], NULL, thread, p))) {
        pthread_setname_np(p->threads[p->n++], "weft-service");
        p->alive++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    uint32_t n = p->n;
    rpc_begin(service->rs);
    pthread_mutex_unlock(&p->lock);
    if (!err) {
        *pool_out = p;
        return WEFT_OK;
    }
    wefti_rpc_pool_undo(p);
    return wefti_fail(WEFT_ERR_LIMIT, "only %u of %u threads of the service could be started: %s", n, threads, strerror(err));
}

void wefti_rpc_pool_undo(rpc_pool_t *p)
{
    pthread_mutex_lock(&p->lock);
    p->alive++; /* no thread is the last */
    pthread_mutex_unlock(&p->lock);
    wefti_rpc_pool_stop(p);
    for (uint32_t i = 0; i < p->n; i++)
        pthread_join(p->threads[i], NULL);
    wefti_op_unprepare(&p->op);
    rpc_end(p->service->rs);
    wefti_rpc_pool_free(p);
}

void wefti_rpc_pool_free(rpc_pool_t *p)
{
    if (!p)
        return;
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    wefti_free(p);
}

bool wefti_rpc_pool_put(rpc_pool_t *p, rpc_request_t *r, uint32_t most, uint32_t most_of_peer)
{
    pthread_mutex_lock(&p->lock);
    bool ok = p->waiting < most && r->share->waiting < most_of_peer;
    bool wake = ok && p->idle;
    if (ok) {
        wefti_list_push_back(&p->queue, &r->pool_link);
        r->queued = true;
        r->share->waiting++;
        p->waiting++;
    }
    pthread_mutex_unlock(&p->lock);
    if (wake)
        pthread_cond_signal(&p->work);
    return ok;
}

bool wefti_rpc_pool_take_back(rpc_pool_t *p, rpc_request_t *r, bool *begun_out)
{
    pthread_mutex_lock(&p->lock);
    bool queued = r->queued;
    if (queued) {
        wefti_list_remove(&r->pool_link);
        r->queued = false;
        r->share->waiting--;
        p->waiting--;
    }
    *begun_out = r->begun;
    pthread_mutex_unlock(&p->lock);
    return queued;
}

uint32_t wefti_rpc_pool_waiting(rpc_pool_t *p, uint32_t *running_out)
{
    pthread_mutex_lock(&p->lock);
    uint32_t n = p->waiting;
    *running_out = p->running;
    pthread_mutex_unlock(&p->lock);
    return n;
}

void wefti_rpc_pool_stop(rpc_pool_t *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->work);
}

bool wefti_rpc_pool_gone(const rpc_pool_t *p)
{
    return p->gone;
}
