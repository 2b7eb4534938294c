/* core/thread.c - a runtime's own thread.
 *
 * It is the driver from its first to its last instruction. It does what a caller's endless wait would do (wait.c): progress, spin
 * for spin_ns after the last event, sleep. It is stopped by a node in the inbox, like everything else that other threads want of
 * it, and shuts the runtime down itself, so that the last callbacks run where all others did.
 *
 * It takes no signals: those are the program's. tests/unit/core_thread.c holds us to this, and to an idle thread that uses no
 * CPU. */
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "core/local.h"

typedef struct thread {
    pthread_t id;
    weft_runtime_t *rt;
    bool stop; /* the driver's */
    wefti_call_t call;
} thread_t;

static bool stopped(void *arg)
{
    return ((thread_t *)arg)->stop;
}

static void stop(wefti_call_t *call)
{
    wefti_container_of(call, thread_t, call)->stop = true;
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
    pthread_setname_np(t->id, "weft");
    return WEFT_OK;
}

void wefti_thread_stop(weft_runtime_t *rt)
{
    thread_t *t = (thread_t *)rt->thread;
    wefti_call_on_driver(rt, &t->call);
    pthread_join(t->id, NULL);
    rt->thread = NULL;
    wefti_free(t);
}
