/* core/thread.c - a runtime's own thread.
 *
 * It is the driver from its first to its last instruction. It does what a caller's endless wait would do (wait.c): progress,
 * spin for spin_ns after the last event, sleep. A call in the inbox stops it, and it shuts the runtime down itself, so that
 * the last callbacks run on the same thread as all others.
 *
 * It blocks all signals: they are the program's. tests/unit/core_thread.c holds us to this, and to an idle thread that uses no
 * CPU. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "core/local.h"

#define SPIN_LOOKS 100u

typedef struct thread {
    pthread_t id;
    weft_runtime_t *rt;
    bool stop; /* the driver's */
    _Atomic int asked;
    _Atomic bool called; /* `call` is in the inbox */
    wefti_call_t call;
} thread_t;

enum { NOT_ASKED, ASKED, STOPS };

static bool stopped(void *arg)
{
    return ((thread_t *)arg)->stop;
}

static void stop(wefti_call_t *call)
{
    thread_t *t = wefti_container_of(call, thread_t, call);
    int asked = ASKED;
    atomic_store(&t->called, false);                              /* from here on another stop needs another call */
    if (atomic_compare_exchange_strong(&t->asked, &asked, STOPS)) /* else the closing thread has given up */
        t->stop = true;
}

static void *run(void *arg)
{
    thread_t *t = (thread_t *)arg;
    const wefti_wait_t what = {stopped, stopped, t};
    wefti_driven = t->rt;
    wefti_drive(t->rt, &what, WEFT_FOREVER);
    wefti_shutdown(t->rt);
    wefti_driven = NULL;
    return NULL;
}

weft_status_t wefti_thread_start(weft_runtime_t *rt)
{
    sigset_t all, old;
    char name[16] = "weft";
    thread_t *t = wefti_calloc(1, sizeof *t);
    if (!t)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a thread");
    t->rt = rt;
    t->call.fn = stop;
    rt->thread = t;
    atomic_store(&rt->driver, 1);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&t->id, NULL, run, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        atomic_store(&rt->driver, 0);
        rt->thread = NULL;
        wefti_free(t);
        return wefti_fail(WEFT_ERR_LIMIT, "no thread for the runtime: %s", strerror(err));
    }
    if (wefti_shard_number(rt))
        snprintf(name, sizeof name, "weft-%u", wefti_shard_number(rt));
    pthread_setname_np(t->id, name);
    rt->busy.has_clock = !pthread_getcpuclockid(t->id, &rt->busy.clock);
    return WEFT_OK;
}

/* It answers at once, unless it is in a callback. */
static bool wait_until_it_stops(thread_t *t, uint64_t bound)
{
    const struct timespec nap = {.tv_nsec = 200000};
    int asked = ASKED;
    for (unsigned looks = 0; atomic_load(&t->asked) != STOPS; looks++) {
        if (wefti_clock_ns() > bound)
            return !atomic_compare_exchange_strong(&t->asked, &asked, NOT_ASKED);
        if (looks < SPIN_LOOKS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    return true;
}

bool wefti_thread_stop(weft_runtime_t *rt, uint64_t bound)
{
    thread_t *t = (thread_t *)rt->thread;
    atomic_store(&t->asked, ASKED);
    if (!atomic_exchange(&t->called, true))
        wefti_call_on_driver(rt, &t->call);
    if (!wait_until_it_stops(t, bound))
        return false;
    pthread_join(t->id, NULL);
    rt->thread = NULL;
    wefti_free(t);
    return true;
}
