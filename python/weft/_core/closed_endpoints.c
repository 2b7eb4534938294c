/* _core/closed_endpoints.c - endpoints of blocking runtimes that have ended, for the thread that calls their on_close.
 *
 * The library says so in progress, on whichever thread drives, and that has no GIL: all that is done there is to write the
 * endpoint's id down, under a lock of our own. A thread of the package's (weft.blocking) takes the ids out, one by one, and
 * calls.
 *
 * Until the first on_close is set nothing is written down.
 *
 * Promise: the library's thread never waits for the GIL. tests/python/test_blocking_more.py holds us to it. */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct weftpy_closed_eps {
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool watched, over;
    size_t n, room;
    weft_ep_id_t *ids;
};

weftpy_closed_eps_t *weftpy_closed_eps_new(void)
{
    weftpy_closed_eps_t *ends = calloc(1, sizeof *ends);
    pthread_condattr_t attr;
    if (!ends)
        return (weftpy_closed_eps_t *)PyErr_NoMemory();
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&ends->lock, NULL);
    pthread_cond_init(&ends->more, &attr);
    pthread_condattr_destroy(&attr);
    return ends;
}

void weftpy_closed_eps_free(weftpy_closed_eps_t *ends)
{
    if (!ends)
        return;
    pthread_mutex_destroy(&ends->lock);
    pthread_cond_destroy(&ends->more);
    free(ends->ids);
    free(ends);
}

/* In progress, without the GIL. */
void weftpy_closed_eps_ended(weft_ep_t *wep, weft_status_t why, void *user)
{
    weftpy_closed_eps_t *ends = user;
    pthread_mutex_lock(&ends->lock);
    if (ends->watched && ends->n == ends->room) {
        size_t room = ends->room ? 2 * ends->room : 16;
        weft_ep_id_t *ids = realloc(ends->ids, room * sizeof *ids);
        if (ids) {
            ends->ids = ids;
            ends->room = room;
        }
    }
    if (ends->watched && ends->n < ends->room) { /* without memory, its on_close is not called */
        ends->ids[ends->n++] = weft_ep_id(wep);
        pthread_cond_broadcast(&ends->more);
    }
    pthread_mutex_unlock(&ends->lock);
}

void weftpy_closed_eps_over(weftpy_closed_eps_t *ends)
{
    if (!ends)
        return;
    pthread_mutex_lock(&ends->lock);
    ends->over = true;
    pthread_cond_broadcast(&ends->more);
    pthread_mutex_unlock(&ends->lock);
}

void weftpy_closed_eps_watch(weftpy_closed_eps_t *ends)
{
    if (!ends)
        return;
    pthread_mutex_lock(&ends->lock);
    ends->watched = true;
    pthread_mutex_unlock(&ends->lock);
}

/* Without the GIL. Returns an id, or 0 when the time is over or no more ids will come. */
static weft_ep_id_t next(weftpy_closed_eps_t *ends, uint64_t ns, bool *over_out)
{
    weft_ep_id_t id = 0;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ns / WEFT_SECOND);
    until.tv_nsec += (long)(ns % WEFT_SECOND);
    if (until.tv_nsec >= (long)WEFT_SECOND) {
        until.tv_nsec -= (long)WEFT_SECOND;
        until.tv_sec++;
    }
    pthread_mutex_lock(&ends->lock);
    while (!ends->n && !ends->over && !pthread_cond_timedwait(&ends->more, &ends->lock, &until))
        ;
    *over_out = ends->over && !ends->n;
    if (ends->n) {
        id = ends->ids[0];
        ends->n--;
        for (size_t i = 0; i < ends->n; i++)
            ends->ids[i] = ends->ids[i + 1];
    }
    pthread_mutex_unlock(&ends->lock);
    return id;
}

/* Returns (function, endpoint) to call; None: nothing yet; False: the runtime is closed, and no more will come. */
PyObject *weftpy_closed_eps_next(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    bool over = true;
    weft_ep_id_t id = 0;
    if (run->closed_eps && !weftpy_runtime_forked(run)) {
        PyThreadState *save = PyEval_SaveThread();
        id = next(run->closed_eps, 250 * WEFT_MILLISECOND, &over);
        PyEval_RestoreThread(save);
    }
    if (!id)
        return Py_NewRef(over ? Py_False : Py_None);
    weftpy_endpoint_t *ep = weftpy_endpoint_find_any(run, id);
    PyObject *call = Py_NewRef(Py_None);
    if (ep && ep->on_close) {
        PyObject *told = ep->on_close;
        ep->on_close = NULL;
        Py_DECREF(call);
        call = PyTuple_Pack(2, told, (PyObject *)ep);
        Py_DECREF(told);
    }
    Py_XDECREF((PyObject *)ep);
    return call;
}
