/* _core/awaited.c - _Awaited: an operation of a blocking runtime that an event loop awaits.
 *
 * The loop awaits a future (weft/_awaited.py). The future has this object to cancel the operation with.
 *
 *     NEW -> UNDER WAY   the library took it, and holds a reference
 *     UNDER WAY -> OVER  the runtime's thread put it on the list of the loop's completion fd; drain() gave the future its result
 *
 * An operation that is likely to be over when its post returns is posted without a function, since the library calls functions in
 * progress only. If it is over then, the future is done at once. If not, a second operation, a group of the first alone, tells of
 * its end.
 *
 * Cancelling the future ends the wait at once, and asks the operation to end; the library holds its buffer for as long as it
 * needs it.
 *
 * Promise: every future gets one result, also when the runtime is closed; nothing of it is touched without the GIL.
 * tests/python/test_disagg_async.py holds us to it. */
#include "elements.h"

static void told(weft_op_t *op, void *user)
{
    weftpy_awaited_t *awaited = user;
    weftpy_completion_fd_add(awaited->completion_fd, awaited);
}

weftpy_awaited_t *weftpy_awaited_new(weftpy_runtime_t *run, const weftpy_gives_t *gives, PyObject *made, PyObject *held)
{
    weftpy_state_t *st = run->st;
    weftpy_awaited_t *awaited = NULL;
    PyObject *pair = NULL;
    if (run->caller) {
        weftpy_raise_text(st, WEFT_ERR_STATE,
                          "nobody would drive the operation while a loop awaits it: use a runtime with progress=\"thread\"");
        goto out;
    }
    if (!st->begin_awaited) {
        PyObject *module = PyImport_ImportModule("weft._awaited");
        PyObject *later = module ? PyObject_GetAttrString(module, "begin") : NULL;
        Py_XDECREF(module);
        if (!later)
            goto out;
        if (st->begin_awaited) /* an import can let other threads run */
            Py_DECREF(later);
        else
            st->begin_awaited = later;
    }
    if (!(pair = PyObject_CallNoArgs(st->begin_awaited)))
        goto out;
    awaited = (weftpy_awaited_t *)PyType_GenericAlloc(st->awaited, 0);
    if (!awaited)
        goto out;
    awaited->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    awaited->gives = gives;
    awaited->future = Py_NewRef(PyTuple_GetItem(pair, 0));
    awaited->completion_fd = Py_NewRef(PyTuple_GetItem(pair, 1));
    awaited->made = made;
    awaited->held = held;
    made = held = NULL;
    if (Py_TYPE(awaited->completion_fd) != st->completion_fd ||
        PyObject_SetAttrString(awaited->future, "_awaited", (PyObject *)awaited)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "weft._awaited.begin() gives a future and a completion fd");
        Py_CLEAR(awaited);
    }
out:
    Py_XDECREF(pair);
    Py_XDECREF(made);
    Py_XDECREF(held);
    return awaited;
}

void weftpy_awaited_refused(weftpy_awaited_t *awaited)
{
    awaited->under_way = false;
    Py_CLEAR(awaited->future); /* it holds a reference to us */
    Py_DECREF(awaited);
}

void weftpy_awaited_direct(weftpy_awaited_t *awaited)
{
    awaited->op.fn = told;
    awaited->op.user = awaited;
}

/* Set the result of the future, unless the future was cancelled. */
static int tell(weftpy_awaited_t *awaited)
{
    PyObject *future = awaited->future, *given = NULL, *r = NULL;
    PyObject *done = PyObject_CallMethod(future, "done", NULL);
    int over = done ? PyObject_IsTrue(done) : -1;
    Py_XDECREF(done);
    if (over) {
        if (over > 0 && !awaited->op.status && awaited->gives->drop)
            awaited->gives->drop(awaited->run, &awaited->op, awaited->made);
        return over > 0 ? 0 : -1;
    }
    given = weftpy_op_value(awaited->run, &awaited->op, awaited->gives, awaited->made);
    if (given) {
        r = PyObject_CallMethod(future, "set_result", "(O)", given);
    } else {
        PyObject *type, *trace;
        PyErr_Fetch(&type, &given, &trace);
        PyErr_NormalizeException(&type, &given, &trace);
        r = PyObject_CallMethod(future, "set_exception", "(O)", given);
        Py_XDECREF(type);
        Py_XDECREF(trace);
    }
    Py_XDECREF(given);
    Py_XDECREF(r);
    return r ? 0 : -1;
}

/* Release what the operation needed. */
static void over(weftpy_awaited_t *awaited, bool somebody)
{
    awaited->under_way = false;
    if (awaited->began)
        weftpy_io_profiled(awaited->made, awaited->what, awaited->size, awaited->began, awaited->op.status);
    if (somebody && tell(awaited))
        PyErr_WriteUnraisable((PyObject *)awaited);
    else if (!somebody && !awaited->op.status && awaited->gives->drop)
        awaited->gives->drop(awaited->run, &awaited->op, awaited->made);
    Py_CLEAR(awaited->future);
    Py_CLEAR(awaited->held);
    Py_CLEAR(awaited->made);
}

void weftpy_awaited_end(weftpy_awaited_t *awaited, bool tell_it)
{
    over(awaited, tell_it);
    Py_DECREF(awaited); /* the reference that the library held */
}

PyObject *weftpy_awaited_future(weftpy_awaited_t *awaited)
{
    PyObject *future = Py_NewRef(awaited->future);
    awaited->under_way = true;
    if (awaited->op.fn) {
        weftpy_completion_fd_begin(awaited->completion_fd);
        return future; /* our reference now belongs to the library */
    }
    if (!weft_op_done(&awaited->op)) {
        weft_op_t *one = &awaited->op;
        awaited->told.fn = told;
        awaited->told.user = awaited;
        weft_status_t status = weft_group_start(awaited->run->rt, WEFT_GROUP_ALL, &one, 1, &awaited->told);
        if (!status) {
            weftpy_completion_fd_begin(awaited->completion_fd);
            return future;
        }
        weftpy_raise(awaited->run->st, status); /* nobody would report its end: wait for it here */
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        weft_op_cancel(&awaited->op);
        if (weftpy_wait(awaited->run, &awaited->op))
            PyErr_Clear();
        PyErr_Restore(type, error, trace);
        Py_DECREF(future);
        weftpy_awaited_refused(awaited);
        return NULL;
    }
    over(awaited, true);
    Py_DECREF(awaited);
    return future;
}

static PyObject *cancel(PyObject *self, PyObject *unused)
{
    weftpy_awaited_t *awaited = (weftpy_awaited_t *)self;
    if (awaited->under_way)
        weft_op_cancel(&awaited->op);
    Py_RETURN_NONE;
}

/* While an operation is under way, only the library's reference keeps the object alive, and the collector must not touch it. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
    weftpy_awaited_t *awaited = (weftpy_awaited_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(awaited->future);
    Py_VISIT(awaited->held);
    Py_VISIT(awaited->made);
    return 0;
}

static int clear(PyObject *self)
{
    weftpy_awaited_t *awaited = (weftpy_awaited_t *)self;
    Py_CLEAR(awaited->future);
    Py_CLEAR(awaited->held);
    Py_CLEAR(awaited->made);
    return 0;
}

static void dealloc(PyObject *self)
{
    weftpy_awaited_t *awaited = (weftpy_awaited_t *)self;
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_CLEAR(awaited->completion_fd);
    Py_CLEAR(awaited->run);
    weftpy_free(self);
}

static PyMethodDef methods[] = {
    {"cancel", cancel, METH_NOARGS, DOC("cancel($self)", "Ask it to end early.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "An operation of a blocking runtime that an event loop awaits."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec weftpy_awaited_spec = WEFTPY_SPEC("_Awaited", weftpy_awaited_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
