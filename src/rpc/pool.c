/* rpc/pool.c - threads of a service, for functions that may wait.
 *
 * Requests wait in one queue, first come first served, and a thread takes one at a time: none is bound to a thread that may be
 * held up by the request before it. The queue, and what a request says about its place in it, are under the pool's lock;
 * functions run without it. A request whose deadline has passed when a thread takes it is not begun.
 *
 * A wake-up costs several microseconds at both ends. So at most one thread looks for work: it was called, or it has found nothing
 * and spins for a moment before it sleeps. While one looks, nobody is called: a burst of requests costs the driver one wake-up or
 * none. A thread that takes a request calls the next, if more wait, before it runs the function. So no request waits while a
 * thread sleeps and none looks.
 *
 *     runs --queue is empty--> looks (one at most) --found nothing--> sleeps --called--> looks
 *
 * Stopping: the service has taken back what waits. Each thread ends when its function returns, and the last one tells the driver.
 * The threads take no signals: those are the program's.
 *
 * Promise: a request is run by one thread, or taken back, never both. It is run as soon as a thread is free, however long the
 * functions of others take. tests/wire/rpc_threads.c, tests/wire/rpc_pool_threads.c. */
#include <sched.h>
#include <signal.h>

#include "base/clock.h"
#include "base/relax.h"
#include "rpc/serve.h"

/* How long a thread looks for work before it sleeps: longer than a caller on the same machine takes to call again. A thread that
 * lost its processor meanwhile for LOST_NS was in the way of others, and maybe of the request that it looked for: then nobody
 * spins for a while. */
#define SPIN_NS 20000u
#define LOST_NS 100000u
#define NO_SPIN_NS (20 * WEFT_MILLISECOND)
#define LOOKS 32      /* at the queue, between two looks at the clock; at the lock, before a thread sleeps for it */
#define PROCESSORS 3u /* a caller, the driver, and the thread that spins: with fewer it takes theirs */

uint32_t wefti_rpc_pool_processors;

struct rpc_pool {
    weft_service_t *service;
    pthread_mutex_t lock;
    pthread_cond_t call_one;
    wefti_list_t queue; /* rpc_request_t.pool_link */
    uint32_t running, asleep, alive;
    bool looks;  /* a thread spins, or was called and has not come yet */
    bool called; /* the latter */
    bool gone;   /* the driver's */
    uint64_t spin_ns, no_spin_until;
    wefti_call_t call;
    weft_op_t op; /* completes when all have left */
    /* written under the lock; a thread that spins reads them without, so they are not beside the lock */
    _Atomic uint32_t waiting;
    _Atomic bool stop;
    uint32_t n;
    pthread_t threads[];
};

/* The driver and the threads hold the lock for a few instructions each: where there are processors for it, wait for that long
 * before the kernel is asked to. */
static void lock(rpc_pool_t *p)
{
    for (int i = 0; p->spin_ns && i < LOOKS; i++) {
        if (!pthread_mutex_trylock(&p->lock))
            return;
        wefti_cpu_relax();
    }
    pthread_mutex_lock(&p->lock);
}

/* --- under the lock ------------------------------------------------------------------------------------------------------- */

/* Is there a thread to call? Then the caller of this calls it, without the lock. */
static bool calls(rpc_pool_t *p)
{
    if (p->looks || !p->asleep || wefti_list_empty(&p->queue))
        return false;
    return p->looks = p->called = true;
}

/* It waits no more. */
static void unqueue(rpc_pool_t *p, rpc_request_t *r)
{
    r->queued = false;
    r->share->waiting--;
    atomic_fetch_sub_explicit(&p->waiting, 1, memory_order_relaxed);
}

/* --- threads -------------------------------------------------------------------------------------------------------------- */

static bool found(const rpc_pool_t *p)
{
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load_explicit(&p->waiting, memory_order_relaxed) || atomic_load_explicit(&p->stop, memory_order_relaxed))
            return true;
        wefti_cpu_relax();
    }
    return false;
}

/* Under the lock, which it gives back meanwhile: look until there may be something to do, or it is time to sleep. */
static void spin(rpc_pool_t *p)
{
    uint64_t now = wefti_clock_ns(), until = now + p->spin_ns, before;
    bool ends;
    if (now < p->no_spin_until)
        return;
    pthread_mutex_unlock(&p->lock);
    do {
        ends = found(p);
        before = now;
        now = wefti_clock_ns();
    } while (!ends && now < until && now - before < LOST_NS);
    lock(p); /* the driver may still be in it */
    if (now - before >= LOST_NS)
        p->no_spin_until = now + NO_SPIN_NS;
}

/* Sleep until it is called. False: the pool stops. */
static bool sleeps(rpc_pool_t *p)
{
    p->asleep++;
    while (!p->called && !atomic_load_explicit(&p->stop, memory_order_relaxed))
        pthread_cond_wait(&p->call_one, &p->lock);
    p->asleep--;
    bool called = p->called;
    p->called = false;
    return called;
}

/* Under the lock, which it gives back while it waits: the next request. NULL: the pool stops, and the queue is empty. */
static rpc_request_t *next(rpc_pool_t *p)
{
    bool looks = false, spun = false; /* looks: this thread is the one */
    wefti_list_t *l;
    while (!(l = wefti_list_pop(&p->queue)) && !atomic_load_explicit(&p->stop, memory_order_relaxed)) {
        if (p->spin_ns && !spun && (looks || !p->looks)) {
            p->looks = looks = spun = true;
            spin(p);
            continue;
        }
        if (looks)
            p->looks = false;
        looks = sleeps(p);
        spun = false;
    }
    if (looks)
        p->looks = false;
    return l ? wefti_container_of(l, rpc_request_t, pool_link) : NULL;
}

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
    rpc_request_t *r;
    lock(p);
    while ((r = next(p))) {
        bool late = r->deadline != UINT64_MAX && weft_now(rt) >= r->deadline;
        unqueue(p, r);
        r->begun = !late;
        p->running++;
        bool call = calls(p);
        pthread_mutex_unlock(&p->lock);
        if (call) /* before the function, which may wait */
            pthread_cond_signal(&p->call_one);
        run(r, late);
        lock(p);
        p->running--;
    }
    bool last = !--p->alive;
    pthread_mutex_unlock(&p->lock);
    if (last)
        wefti_call_on_driver(rt, &p->call);
    return NULL;
}

/* --- the whole ------------------------------------------------------------------------------------------------------------ */

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

static uint64_t spin_time(const weft_runtime_t *rt)
{
    uint32_t processors = wefti_rpc_pool_processors;
    cpu_set_t set;
    if (!processors && !sched_getaffinity(0, sizeof set, &set)) /* it fails with more than 1024 */
        processors = (uint32_t)CPU_COUNT(&set);
    if (processors && processors < PROCESSORS)
        return 0;
    return rt->spin_ns < SPIN_NS ? rt->spin_ns : SPIN_NS;
}

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
    p->spin_ns = spin_time(service->rs->rt);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->call_one, NULL);
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
    lock(p);
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
    pthread_cond_destroy(&p->call_one);
    wefti_free(p);
}

bool wefti_rpc_pool_put(rpc_pool_t *p, rpc_request_t *r, uint32_t most, uint32_t most_of_peer)
{
    bool call = false;
    lock(p);
    bool ok = atomic_load_explicit(&p->waiting, memory_order_relaxed) < most && r->share->waiting < most_of_peer;
    if (ok) {
        wefti_list_push_back(&p->queue, &r->pool_link);
        r->queued = true;
        r->share->waiting++;
        atomic_fetch_add_explicit(&p->waiting, 1, memory_order_relaxed);
        call = calls(p);
    }
    pthread_mutex_unlock(&p->lock);
    if (call)
        pthread_cond_signal(&p->call_one);
    return ok;
}

bool wefti_rpc_pool_take_back(rpc_pool_t *p, rpc_request_t *r, bool *begun_out)
{
    lock(p);
    bool queued = r->queued;
    if (queued) {
        wefti_list_remove(&r->pool_link);
        unqueue(p, r);
    }
    *begun_out = r->begun;
    pthread_mutex_unlock(&p->lock);
    return queued;
}

uint32_t wefti_rpc_pool_waiting(rpc_pool_t *p, uint32_t *running_out)
{
    lock(p);
    uint32_t n = atomic_load_explicit(&p->waiting, memory_order_relaxed);
    *running_out = p->running;
    pthread_mutex_unlock(&p->lock);
    return n;
}

void wefti_rpc_pool_stop(rpc_pool_t *p)
{
    lock(p);
    atomic_store_explicit(&p->stop, true, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->call_one);
}

bool wefti_rpc_pool_gone(const rpc_pool_t *p)
{
    return p->gone;
}
