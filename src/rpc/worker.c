/* rpc/worker.c - how the requests of a pool are taken and run: by threads, or by a driver one after the other.
 *
 * A request whose deadline has passed when it is taken is not begun, and neither is one that was called off.
 *
 * A thread keeps the runtime whose requests it runs (rpc_begin) from before it takes the first until it finds the line empty or
 * turns to another one.
 *
 * Promise: a request is run by one thread, or called off, never both. It is run as soon as a thread is free, however long the
 * functions of others take. tests/wire/rpc_threads.c, tests/wire/rpc_pool_threads.c. */
#include "base/clock.h"
#include "base/relax.h"
#include "rpc/pool.h"

/* How long a thread looks for work before it sleeps: longer than a caller on the same machine takes to call again. A thread that
 * lost its processor meanwhile for LOST_NS was in the way of others, and maybe of the request that it looked for: then nobody
 * spins for a while. */
#define LOST_NS 100000u
#define NO_SPIN_NS (20 * WEFT_MILLISECOND)
#define LOOKS 32       /* at the lines, between two looks at the clock */
#define SERIAL_MOST 64 /* requests that run in a row where there are no threads */
#define STAY 32        /* requests of one line that a thread runs before it looks at the others */
/* One thread at a time looks, unless requests have queued up lately: then those that ran some of them look as well. This many
 * requests that were alone in their line make a thread think otherwise. */
#define CROWDED 64

_Thread_local rpc_request_t *wefti_rpc_running;

void wefti_rpc_pool_call_one(rpc_pool_t *p)
{
    uint32_t s = atomic_load(&p->state);
    do {
        if (!rpc_asleep(s) || rpc_looking(s))
            return;
    } while (!atomic_compare_exchange_weak(&p->state, &s, s - POOL_ASLEEP + POOL_LOOKING));
    atomic_fetch_add_explicit(&p->wakeups, 1, memory_order_relaxed);
    sem_post(&p->called);
}

/* --- taking ----------------------------------------------------------------------------------------------------------------- */

/* Keep no runtime any more. */
static void let_go(rpc_worker_t *w)
{
    if (w->kept)
        rpc_end(w->kept);
    w->kept = NULL;
}

/* Take the next of a line. Its runtime is kept before that: if the driver finds that it was taken, it knows that it is kept. A
 * runtime that was closed has nothing that is alive in its line, and what is dead is swept out. */
static rpc_request_t *take(rpc_worker_t *w, rpc_line_t *l)
{
    rpc_request_t *r;
    if (w->kept && w->kept->rt == l->rt)
        return wefti_line_take(l);
    let_go(w);
    bool open = !wefti_join(l->rt);
    rpc_state_t *rs = open ? rpc_state(l->rt) : NULL;
    if (open)
        rpc_begin(rs);
    r = wefti_line_take(l);
    if (r)
        w->kept = rs;
    else if (open)
        rpc_end(rs);
    if (open)
        wefti_part(l->rt);
    return r;
}

/* The next request of any line. */
static rpc_request_t *find(rpc_worker_t *w)
{
    rpc_pool_t *p = w->pool;
    if (++w->stayed > STAY) {
        w->stayed = 0;
        w->at++;
    }
    for (uint32_t i = 0; i < p->n_lines; i++, w->at++, w->stayed = 0) {
        rpc_line_t *l = &p->lines[w->at % p->n_lines];
        rpc_request_t *r = wefti_line_waits(l) ? take(w, l) : NULL;
        if (!r)
            continue;
        if (wefti_line_waits(l))
            w->crowded = CROWDED;
        else
            w->crowded -= w->crowded > 0;
        return r;
    }
    return NULL;
}

static void run(rpc_request_t *r)
{
    weft_runtime_t *rt = r->rt;
    bool late = r->deadline != UINT64_MAX && weft_now(rt) >= r->deadline;
    uint8_t place = PLACE_WAITS;
    wefti_rpc_running = r;
    if (!atomic_compare_exchange_strong(&r->place, &place, late ? PLACE_LATE : PLACE_BEGUN))
        ; /* it was called off */
    else if (late)
        wefti_rpc_hand_in(r, WORK_LATE);
    else
        r->fn->fn(&r->pub, r->fn->user);
    wefti_rpc_request_drop(r);
    wefti_rpc_running = NULL;
}

/* --- threads ---------------------------------------------------------------------------------------------------------------- */

static void look(rpc_worker_t *w)
{
    if (w->looks)
        return;
    w->looks = w->owes = true;
    atomic_fetch_add(&w->pool->state, POOL_LOOKING);
}

/* It has a request. */
static void looks_no_more(rpc_worker_t *w)
{
    w->until = 0;
    if (w->looks)
        atomic_fetch_sub(&w->pool->state, POOL_LOOKING);
    w->looks = false;
    if (w->owes && rpc_pool_waits(w->pool)) /* after the line above: who puts one in now calls */
        wefti_rpc_pool_call_one(w->pool);
    w->owes = false;
}

static bool found(rpc_worker_t *w)
{
    rpc_pool_t *p = w->pool;
    for (int i = 0; i < LOOKS; i++) {
        if (rpc_pool_waits(p) || atomic_load_explicit(&p->stop, memory_order_relaxed))
            return true;
        wefti_cpu_relax();
    }
    return false;
}

/* May it spin? Counted or, while nobody sleeps, not. */
static bool may_look(rpc_worker_t *w)
{
    rpc_pool_t *p = w->pool;
    uint32_t s = atomic_load(&p->state);
    if (w->crowded && !rpc_asleep(s))
        return true;
    if (!w->looks && rpc_looking(s) >= (w->crowded ? p->look_most : 1))
        return false;
    look(w);
    return true;
}

/* Look until there may be something to do. False: it is time to sleep. */
static bool spin(rpc_worker_t *w)
{
    rpc_pool_t *p = w->pool;
    if (!p->spin_ns)
        return false;
    uint64_t now = wefti_clock_ns(), before;
    if (now < atomic_load_explicit(&p->no_spin_until, memory_order_relaxed))
        return false;
    if (!w->until)
        w->until = now + p->spin_ns;
    while (now < w->until && may_look(w)) {
        if (found(w))
            return true;
        before = now;
        now = wefti_clock_ns();
        if (now - before >= LOST_NS) {
            atomic_store_explicit(&p->no_spin_until, now + NO_SPIN_NS, memory_order_relaxed);
            break;
        }
    }
    return false;
}

/* Sleep until it is called, unless something came meanwhile. */
static void sleeps(rpc_worker_t *w)
{
    rpc_pool_t *p = w->pool;
    atomic_fetch_add(&p->state, w->looks ? POOL_ASLEEP - POOL_LOOKING : POOL_ASLEEP);
    w->looks = false;
    w->owes = true;
    w->until = 0;
    if (rpc_pool_waits(p) || atomic_load(&p->stop)) {
        uint32_t s = atomic_load(&p->state);
        while (rpc_asleep(s))
            if (atomic_compare_exchange_weak(&p->state, &s, s - POOL_ASLEEP))
                return;
        /* all that sleep were called, and so was this one */
    }
    while (sem_wait(&p->called))
        ; /* a debugger came */
    w->looks = true;
}

/* NULL: the pool stops, and nothing waits. */
static rpc_request_t *next(rpc_worker_t *w)
{
    rpc_request_t *r;
    while (!(r = find(w)) && !atomic_load(&w->pool->stop)) {
        let_go(w);
        if (!spin(w))
            sleeps(w);
    }
    looks_no_more(w);
    return r;
}

void *wefti_rpc_pool_thread(void *arg)
{
    rpc_worker_t *w = (rpc_worker_t *)arg;
    rpc_pool_t *p = w->pool;
    weft_runtime_t *rt = p->service->rs->rt;
    rpc_request_t *r;
    while ((r = next(w))) {
        atomic_store_explicit(&w->running, true, memory_order_relaxed);
        run(r);
        atomic_store_explicit(&w->running, false, memory_order_relaxed);
    }
    let_go(w);
    if (atomic_fetch_sub(&p->alive, 1) == 1)
        wefti_call_on_driver(rt, &p->call);
    return NULL;
}

/* --- without threads -------------------------------------------------------------------------------------------------------- */

/* On the driver of the service's runtime, one after the other. After some of them others have their turn. */
void wefti_rpc_pool_serial(wefti_call_t *call)
{
    rpc_pool_t *p = wefti_container_of(call, rpc_pool_t, call);
    weft_service_t *service = p->service;
    rpc_request_t *r = NULL;
    service->busy++; /* a function may close it */
    for (int i = 0; i < SERIAL_MOST && (r = find(p->workers)); i++)
        run(r);
    let_go(p->workers);
    if (!r)
        atomic_store(&p->working, false);
    if (r || (rpc_pool_waits(p) && !atomic_exchange(&p->working, true)))
        (void)wefti_call_later(service->rs->rt, &p->call);
    service->busy--;
    wefti_rpc_service_step(service);
}
