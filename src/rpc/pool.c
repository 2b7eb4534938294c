/* rpc/pool.c - threads of a service, for functions that may wait: made, given requests, ended.
 *
 * pool.h has the idea. Nothing here is locked. Limits are looked at by the driver that puts a request in: of what waits in all
 * lines, exactly but for what other drivers put in at the same moment; of what its peer has waiting, by a count of its own, from
 * which it takes what has begun when the count says that it is too many.
 *
 * Stopping: the service has taken back what waits. Each thread ends when its function returns, and the last one tells the driver.
 * The threads take no signals: those are the program's.
 *
 * Promise: not more wait than the service allows, and what is called off makes room at once. tests/wire/rpc_threads.c. */
#include <sched.h>
#include <signal.h>

#include "rpc/pool.h"

/* How long a thread looks for work before it sleeps: longer than a caller on the same machine takes to call again. */
#define SPIN_NS 20000u
#define PROCESSORS 3u /* a caller, the driver, and the thread that spins: with fewer it takes theirs */

uint32_t wefti_rpc_pool_processors;

/* --- the whole ------------------------------------------------------------------------------------------------------------ */

/* From progress: none of the threads drives the runtime any more. */
static void all_gone(weft_op_t *op, void *user)
{
    rpc_pool_t *p = (rpc_pool_t *)user;
    weft_service_t *service = p->service;
    (void)op;
    for (uint32_t i = 0; i < p->n; i++)
        pthread_join(p->workers[i].thread, NULL); /* they only have to return */
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

static void spin_times(rpc_pool_t *p)
{
    const weft_runtime_t *rt = p->service->rs->rt;
    uint32_t processors = wefti_rpc_pool_processors;
    cpu_set_t set;
    if (!processors && !sched_getaffinity(0, sizeof set, &set)) /* it fails with more than 1024 */
        processors = (uint32_t)CPU_COUNT(&set);
    if (processors && processors < PROCESSORS)
        return;
    p->spin_ns = rt->spin_ns < SPIN_NS ? rt->spin_ns : SPIN_NS;
    p->look_most = processors ? 1 + (processors - PROCESSORS) / 2 : 1;
}

/* The lines and one worker at least. NULL: no memory. */
static rpc_pool_t *pool_alloc(weft_service_t *service, uint32_t threads)
{
    uint32_t lines = wefti_n_shards(service->rt), workers = threads ? threads : 1;
    rpc_pool_t *p = (rpc_pool_t *)wefti_aligned_alloc(64, sizeof *p);
    if (!p)
        return NULL;
    memset(p, 0, sizeof *p);
    p->service = service;
    p->lines = (rpc_line_t *)wefti_aligned_alloc(64, lines * sizeof *p->lines);
    p->workers = (rpc_worker_t *)wefti_aligned_alloc(64, workers * sizeof *p->workers);
    sem_init(&p->called, 0, 0);
    if (!p->lines || !p->workers) {
        wefti_rpc_pool_free(p);
        return NULL;
    }
    for (; p->n_lines < lines; p->n_lines++)
        wefti_line_init(&p->lines[p->n_lines], wefti_shard(service->rt, p->n_lines));
    memset(p->workers, 0, workers * sizeof *p->workers);
    for (uint32_t i = 0; i < workers; i++) {
        p->workers[i].pool = p;
        p->workers[i].at = i;
    }
    return p;
}

weft_status_t wefti_rpc_pool_new(weft_service_t *service, uint32_t threads, rpc_pool_t **pool_out)
{
    sigset_t all, old;
    int err = 0;
    rpc_pool_t *p = pool_alloc(service, threads);
    if (!p)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %u threads", threads);
    if (!threads) {
        p->call.fn = wefti_rpc_pool_serial;
        *pool_out = p;
        return WEFT_OK;
    }
    p->call.fn = all_leave;
    p->op.fn = all_gone;
    p->op.user = p;
    weft_status_t st = wefti_op_prepare(service->rs->rt, &p->op, &gone_kind);
    if (st) {
        wefti_rpc_pool_free(p);
        return st;
    }
    wefti_op_begin(&p->op);
    spin_times(p);
    atomic_store(&p->alive, 1); /* no thread is the last before all are started */
    rpc_begin(service->rs);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (p->n < threads && !(err = pthread_create(&p->workers[p->n].thread, NULL, wefti_rpc_pool_thread, &p->workers[p->n]))) {
        pthread_setname_np(p->workers[p->n++].thread, "weft-service");
        atomic_fetch_add(&p->alive, 1);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!err) {
        atomic_fetch_sub(&p->alive, 1);
        *pool_out = p;
        return WEFT_OK;
    }
    uint32_t n = p->n;
    wefti_rpc_pool_undo(p);
    return wefti_fail(WEFT_ERR_LIMIT, "only %u of %u threads of the service could be started: %s", n, threads, strerror(err));
}

void wefti_rpc_pool_undo(rpc_pool_t *p)
{
    atomic_fetch_add(&p->alive, 1); /* no thread is the last */
    wefti_rpc_pool_stop(p);
    for (uint32_t i = 0; i < p->n; i++)
        pthread_join(p->workers[i].thread, NULL);
    wefti_op_unprepare(&p->op);
    rpc_end(p->service->rs);
    wefti_rpc_pool_free(p);
}

void wefti_rpc_pool_free(rpc_pool_t *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_lines; i++)
        wefti_line_fini(&p->lines[i]);
    sem_destroy(&p->called);
    wefti_free(p->lines);
    wefti_free(p->workers);
    wefti_free(p);
}

/* --- what drivers do -------------------------------------------------------------------------------------------------------- */

static uint32_t waiting(rpc_pool_t *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_lines; i++)
        n += wefti_line_waiting(&p->lines[i]);
    return n;
}

/* Do fewer wait than that? Where rings alone cannot be so many, what takers write all the time is not looked at. */
static bool fewer_wait(rpc_pool_t *p, uint32_t most)
{
    uint64_t bound = 0;
    for (uint32_t i = 0; i < p->n_lines; i++)
        bound += RPC_LINE + atomic_load_explicit(&p->lines[i].spilled, memory_order_relaxed);
    return bound < most || waiting(p) < most;
}

/* Does its peer have fewer? If it seems not, count again what has begun. */
static bool fewer_of_peer(rpc_share_t *share, uint32_t most)
{
    wefti_list_t *first;
    for (int i = 0; share->waiting >= most && i < 2; i++)
        while ((first = wefti_list_first(&share->waits[i]))) {
            rpc_request_t *r = wefti_container_of(first, rpc_request_t, wait_link);
            if (atomic_load(&r->place) == PLACE_WAITS)
                break; /* and so do those behind it */
            rpc_request_waits_no_more(r);
        }
    return share->waiting < most;
}

bool wefti_rpc_pool_put(rpc_pool_t *p, rpc_request_t *r, uint32_t most, uint32_t most_of_peer)
{
    rpc_line_t *l = &p->lines[r->pub.shard];
    if (!fewer_wait(p, most) || !fewer_of_peer(r->share, most_of_peer))
        return false;
    r->share->waiting++;
    wefti_list_push_back(&r->share->waits[!p->n], &r->wait_link);
    atomic_store_explicit(&r->place, PLACE_WAITS, memory_order_relaxed);
    wefti_line_put(l, r);
    if (p->n)
        wefti_rpc_pool_call_one(p);
    else if (!atomic_exchange(&p->working, true)) /* the runtime of the service is closed after that of the request */
        (void)wefti_call_on_driver(p->service->rs->rt, &p->call);
    return true;
}

bool wefti_rpc_pool_take_back(rpc_pool_t *p, rpc_request_t *r, bool *begun_out)
{
    uint8_t place = PLACE_WAITS;
    bool off = atomic_compare_exchange_strong(&r->place, &place, PLACE_OFF);
    *begun_out = place == PLACE_BEGUN;
    rpc_request_waits_no_more(r);
    return off && wefti_line_take_back(&p->lines[r->pub.shard], r); /* else who has taken it finds that it is off */
}

uint32_t wefti_rpc_pool_waiting(rpc_pool_t *p, uint32_t *running_out)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < p->n; i++)
        running += atomic_load_explicit(&p->workers[i].running, memory_order_relaxed);
    *running_out = running;
    return waiting(p);
}

uint64_t wefti_rpc_pool_wakeups(const rpc_pool_t *p)
{
    return atomic_load_explicit(&p->wakeups, memory_order_relaxed);
}

void wefti_rpc_pool_stop(rpc_pool_t *p)
{
    atomic_store(&p->stop, true);
    uint32_t s = atomic_load(&p->state);
    while (rpc_asleep(s))
        if (atomic_compare_exchange_weak(&p->state, &s, s - POOL_ASLEEP + POOL_LOOKING)) {
            sem_post(&p->called);
            s = atomic_load(&p->state);
        }
}

bool wefti_rpc_pool_gone(const rpc_pool_t *p)
{
    return p->n ? p->gone : !atomic_load(&p->working);
}
