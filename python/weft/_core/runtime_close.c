/* _core/runtime_close.c - closing a runtime: in which order what it has ends, and where it may be closed.
 *
 * Promise: closing completes everything under way with ClosedError, and whoever awaits it learns of that.
 * tests/python/test_loops.py holds us to it. */
#include "handle.h"

#include <pthread.h>

typedef struct closing {
    weft_runtime_t *rt;
    weft_status_t status;
} closing_t;

static void *close_elsewhere(void *arg)
{
    closing_t *c = arg;
    c->status = weft_runtime_close(c->rt);
    return NULL;
}

/* Without the GIL. The collector or a destructor can call this inside the progress of another runtime. The library does not close
 * a runtime there. So another thread closes it, and this one waits for that. */
static weft_status_t close_blocking(weft_runtime_t *rt)
{
    closing_t c = {rt, WEFT_ERR_NOMEM};
    pthread_t thread;
    if (!weftpy_inside)
        close_elsewhere(&c);
    else if (!pthread_create(&thread, NULL, close_elsewhere, &c))
        pthread_join(thread, NULL);
    return c.status;
}

weft_status_t weftpy_runtime_close(weftpy_runtime_t *run)
{
    weft_runtime_t *rt = run->rt;
    weft_status_t status;
    if (!rt)
        return WEFT_OK;
    /* the library refuses a close there; checked before anything is undone, since the runtime stays open */
    if (run->driving || (!run->blocking && weftpy_inside))
        return WEFT_ERR_STATE;
    weftpy_loop_detach(run);
    if (run->blocking) {
        if (!weftpy_wait_end_all(run))
            return WEFT_ERR_STATE;
        if (!run->rt)
            return WEFT_OK;           /* another thread has closed it */
        weftpy_messages_release(run); /* also messages that ended waits have just received */
        weftpy_claims_drop(run);
        weftpy_guests_leave(&run->guests);
        weftpy_handles_end(run);
        run->rt = NULL;                            /* from here on nobody else can use it */
        PyThreadState *save = PyEval_SaveThread(); /* its thread may be waiting for the GIL, in a callback */
        status = close_blocking(rt);
        PyEval_RestoreThread(save);
        /* it is not closed, without a thread or with a callback that does not return, and still uses closed_eps */
        if (status == WEFT_ERR_NOMEM || status == WEFT_ERR_STATE)
            run->closed_eps = NULL;
    } else {
        run->closing = true;
        weftpy_messages_release(run);
        weftpy_guests_leave(&run->guests);
        weftpy_handles_end(run);
        weftpy_claims_drop(run);
        weftpy_inside++; /* the close completes operations, like progress */
        status = weft_runtime_close(rt);
        weftpy_inside--;
    }
    run->rt = NULL;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_CLEAR(run->afterwards);
    if (run->handlers)
        PyDict_Clear(run->handlers); /* nobody calls them any more, and they may hold the runtime */
    while (run->woken && weftpy_loop_wake(run, false) < 0)
        PyErr_Clear(); /* the loop is closed, and nobody waits */
    weftpy_loop_call_rest(run);
    if (!weftpy_runtime_forked(run)) /* in a forked child, the lock may stay held for ever */
        weftpy_closed_eps_over(run->closed_eps);
    PyErr_Restore(type, error, trace);
    return status;
}

PyObject *weftpy_runtime_close_method(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    if (run->rt && !run->blocking && run->thread != PyThread_get_thread_ident())
        return weftpy_raise_text(run->st, WEFT_ERR_STATE,
                                 "the runtime belongs to the event loop of another thread: close it there");
    weft_status_t status = weftpy_runtime_close(run);
    if (status && status != WEFT_ERR_FORKED)
        return status == WEFT_ERR_STATE && run->rt
                   ? weftpy_raise_text(
                         run->st, status,
                         run->blocking
                             ? "this thread waits in the runtime, and a signal handler cannot close it meanwhile: raise an "
                               "exception there, which ends the wait, and close it then"
                             : "a runtime cannot be closed by what is called in its progress, or in that of another, such as "
                               "__del__ of a buffer: have the loop do it, with loop.call_soon()")
                   : weftpy_raise(run->st, status);
    Py_RETURN_NONE;
}
