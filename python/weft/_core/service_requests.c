/* _core/service_requests.c - requests of a Service on their way to functions of Python: by the loop, or taken by threads.
 *
 * In a loop the request becomes an object at once, and its function is called in the next turn. Threads of a blocking runtime
 * wait in take(), without the GIL, each for the next request of any shard; one thread alone waits in take_serial().
 *
 * tests/python/test_service_threads.py and test_shards.py hold us to it. */
#include "serve.h"

#include <unistd.h>

#define SELF weftpy_service_t *s = (weftpy_service_t *)self

/* How long a thread waits for a request before it checks whether the runtime is still open. */
static const uint64_t slice_ns = WEFT_SECOND;

int weftpy_service_ready(weftpy_service_t *s, weftpy_arrival_t *a)
{
    Py_INCREF((PyObject *)s); /* making objects can run other destructors */
    PyObject *function = Py_XNewRef(PyList_GetItem(s->functions, a->index));
    PyObject *request = weftpy_request_new(s, a);
    int failed = !function || !request || weftpy_loop_call(s->run, function, request);
    if (failed)
        PyErr_WriteUnraisable((PyObject *)s);
    Py_XDECREF(request);
    Py_XDECREF(function);
    Py_DECREF((PyObject *)s);
    return failed ? -1 : 0;
}

/* Wait once, without the GIL. 1: there may be something, 0: nothing will come any more, -1: a signal. */
static int wait_for(weftpy_service_t *s, unsigned line)
{
    weftpy_inbox_t *q = s->inbox;
    PyThreadState *save = PyEval_SaveThread();
    bool on = weftpy_inbox_wait(q, line, slice_ns);
    PyEval_RestoreThread(save);
    if (PyErr_CheckSignals())
        return -1;
    if (!s->run->rt)
        weftpy_inbox_forget(q);
    if (line == WEFTPY_TOLD) /* functions that still run are told of the end as well */
        return on;
    return on && s->run->rt && !s->run->closing;
}

static int check_blocking(weftpy_service_t *s)
{
    if (!s->run)
        return weftpy_service_check(s);
    if (s->run->blocking && s->inbox->pid == getpid())
        return 0;
    weftpy_raise_text(s->st, s->run->blocking ? WEFT_ERR_FORKED : WEFT_ERR_STATE,
                      s->run->blocking ? "the service belongs to the parent of this process"
                                       : "requests of an event loop are handed to their functions by the loop");
    return -1;
}

static PyObject *take_from(weftpy_service_t *s, unsigned line)
{
    int more = 1;
    if (check_blocking(s))
        return NULL;
    while (more > 0) {
        weftpy_arrival_t *a = s->run->rt && !s->run->closing ? weftpy_inbox_take(s->inbox, line) : NULL;
        if (!a) {
            more = wait_for(s, line);
            continue;
        }
        PyObject *function = Py_XNewRef(PyList_GetItem(s->functions, a->index));
        PyObject *request = weftpy_request_new(s, a);
        PyObject *both = function && request ? PyTuple_Pack(2, function, request) : NULL;
        Py_XDECREF(function);
        Py_XDECREF(request);
        return both;
    }
    return more < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *weftpy_service_take(PyObject *self, PyObject *unused)
{
    return take_from((weftpy_service_t *)self, WEFTPY_ANY);
}

PyObject *weftpy_service_take_serial(PyObject *self, PyObject *unused)
{
    return take_from((weftpy_service_t *)self, WEFTPY_SERIAL);
}

PyObject *weftpy_service_take_cancelled(PyObject *self, PyObject *unused)
{
    SELF;
    int more = 1;
    if (check_blocking(s))
        return NULL;
    while (more > 0) {
        bool gone = !s->run->rt; /* then nobody is told any more, whatever requests are still kept */
        weftpy_arrival_t *a = weftpy_inbox_take(s->inbox, WEFTPY_TOLD);
        if (a)
            return Py_NewRef((PyObject *)a->object);
        more = gone ? 0 : wait_for(s, WEFTPY_TOLD);
    }
    return more < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *weftpy_service_stop(PyObject *self, PyObject *unused)
{
    SELF;
    if (s->run && s->run->rt && s->inbox->pid == getpid())
        weftpy_inbox_stop(s->inbox);
    else if (s->run && s->inbox->pid == getpid())
        weftpy_inbox_forget(s->inbox);
    Py_RETURN_NONE;
}
