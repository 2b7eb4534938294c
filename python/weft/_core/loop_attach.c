/* _core/loop_attach.c - a runtime joins an event loop, leaves it, or moves to another.
 *
 * tests/python/test_loops.py holds us to it. */
#include "core.h"

/* Does the loop run in another thread? Then it must not be touched. If the loop cannot answer, assume that it does not. */
static bool elsewhere(weftpy_runtime_t *run, PyObject *loop)
{
    PyObject *running = PyObject_CallMethod(loop, "is_running", NULL);
    bool runs = running && PyObject_IsTrue(running) == 1;
    PyErr_Clear();
    PyObject *here = runs ? PyObject_CallNoArgs(run->st->get_running_loop) : NULL;
    PyErr_Clear();
    bool other = runs && here != loop;
    Py_XDECREF(running);
    Py_XDECREF(here);
    return other;
}

int weftpy_loop_attach(weftpy_runtime_t *run, PyObject *loop)
{
    PyObject *turner = NULL, *context = NULL, *r = NULL;
    int result = -1;
    if (weftpy_asyncio(run->st))
        return -1;
    if (elsewhere(run, loop)) {
        weftpy_raise_text(run->st, WEFT_ERR_STATE,
                          "the loop runs in another thread: make its runtime there, in a coroutine or with "
                          "loop.call_soon_threadsafe()");
        return -1;
    }
    run->fd = weft_runtime_fd(run->rt);
    if (run->fd < 0) {
        weftpy_raise(run->st, (weft_status_t)run->fd);
        return -1;
    }
    run->loop = Py_NewRef(loop);
    run->thread = PyThread_get_thread_ident();
    if (!run->woken)
        run->woken_end = &run->woken;
    run->credit = 256;
    run->spin = run->spin_most;
    run->scheduled = false;
    if (!run->calls)
        run->calls = PyList_New(0);
    run->call_soon = PyObject_GetAttrString(loop, "call_soon");
    if (!run->calls || !run->call_soon || !(run->call_later = PyObject_GetAttrString(loop, "call_later")) ||
        !(turner = PyObject_GetAttrString((PyObject *)run, "_turn")) || !(context = PyObject_CallNoArgs(run->st->copy_context)))
        goto out;
    run->by_hand = PyObject_HasAttrString(loop, "_weft_by_hand");
    run->ready = PyObject_GetAttrString(loop, "_ready");
    if (run->ready && PyObject_Size(run->ready) < 0)
        Py_CLEAR(run->ready);
    PyErr_Clear();
    run->soon_args = PyTuple_Pack(1, turner);
    run->soon_kw = PyDict_New();
    if (!run->soon_args || !run->soon_kw || PyDict_SetItem(run->soon_kw, run->st->names[N_context], context))
        goto out;
    r = PyObject_CallMethod(loop, "add_reader", "iO", run->fd, turner);
    if (!r)
        goto out;
    run->handed = true;
    result = weftpy_loop_schedule(run);
out:
    Py_XDECREF(turner);
    Py_XDECREF(context);
    Py_XDECREF(r);
    return result;
}

/* Called before the runtime is closed, while its fd is still open. A closed loop has already removed the fd. */
void weftpy_loop_detach(weftpy_runtime_t *run)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (run->handed && run->loop) {
        run->handed = false;
        PyObject *closed = PyObject_CallMethod(run->loop, "is_closed", NULL);
        int is = closed ? PyObject_IsTrue(closed) : 1;
        if (weftpy_runtime_forked(run))
            is = 1; /* a child shares the loop's epoll: removing the fd would also remove it for the parent */
        Py_XDECREF(closed);
        PyObject *r = is == 0 ? PyObject_CallMethod(run->loop, "remove_reader", "i", run->fd) : NULL;
        Py_XDECREF(r);
    }
    if (run->timer) {
        PyObject *r = PyObject_CallMethod(run->timer, "cancel", NULL);
        Py_XDECREF(r);
        Py_CLEAR(run->timer);
    }
    if (run->soon) {
        PyObject *r = PyObject_CallMethod(run->soon, "cancel", NULL);
        Py_XDECREF(r);
        Py_CLEAR(run->soon);
    }
    PyErr_Restore(type, error, trace);
}

/* True if nothing runs that could use the runtime while it moves. */
static bool may_leave(weftpy_runtime_t *run)
{
    static const char *const words[] = {"is_closed", "is_running"};
    if (run->thread == PyThread_get_thread_ident() || run->by_hand || !run->loop)
        return true;
    for (int i = 0; i < 2; i++) {
        PyObject *r = PyObject_CallMethod(run->loop, words[i], NULL);
        int is = r ? PyObject_IsTrue(r) : -1;
        Py_XDECREF(r);
        if (is < 0)
            PyErr_Clear();
        else if (is == (i == 0))
            return true;
    }
    return false;
}

static void let_go(weftpy_runtime_t *run)
{
    weftpy_loop_detach(run);
    Py_CLEAR(run->loop);
    Py_CLEAR(run->call_later);
    Py_CLEAR(run->call_soon);
    Py_CLEAR(run->soon_args);
    Py_CLEAR(run->soon_kw);
    Py_CLEAR(run->ready);
}

PyObject *weftpy_loop_move(weftpy_runtime_t *run, PyObject *loop)
{
    if (weftpy_runtime_check(run))
        return NULL;
    if (run->blocking)
        return weftpy_raise_text(run->st, WEFT_ERR_STATE,
                                 "a blocking runtime has no event loop: open one with progress=\"loop\"");
    if (run->driving)
        return weftpy_raise_text(run->st, WEFT_ERR_STATE,
                                 "not from inside a callback of the runtime: call it later, with loop.call_soon()");
    if (!may_leave(run))
        return weftpy_raise_text(run->st, WEFT_ERR_STATE,
                                 "the runtime belongs to an event loop that is running in another thread: stop that loop first");
    PyObject *old = Py_XNewRef(run->loop);
    let_go(run);
    if (weftpy_runtime_check(run)) { /* code of the old loop closed it */
        Py_XDECREF(old);
        return NULL;
    }
    run->moves++;
    run->turning = false; /* a task inside a turn may move it */
    weftpy_progress(run); /* progress disarms the runtime: the new loop does not know its fd yet */
    if (weftpy_loop_attach(run, loop)) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        let_go(run);
        if (old && weftpy_loop_attach(run, old))
            PyErr_Clear(); /* the old loop is closed: there is no loop to return to */
        Py_XDECREF(old);
        PyErr_Restore(type, error, trace);
        return NULL;
    }
    Py_XDECREF(old);
    Py_RETURN_NONE;
}
