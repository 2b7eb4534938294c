/* _core/posted.c - _Posted: an operation of a blocking runtime that an event loop awaits.
 *
 * What is awaited is a future of the loop's (weft/_later.py), which has one of these to cancel it by.
 *
 *     NEW -> UNDER WAY   the library took it, and holds a reference
 *     UNDER WAY -> OVER  told() put it on the desk of its loop, in whichever thread, and drain() gave the future what it came to
 *
 * One that may be over when its post returns is posted without a function, since functions are called in progress only: then the
 * future is done at once. If it is not, a second operation, a group of the first alone, tells of it.
 *
 * Cancelling the future ends the wait at once, and asks the operation to end; the library holds its buffer for as long as it needs it.
 *
 * Promise: every future is told once, also when the runtime is closed; nothing of it is touched without the GIL.
 * tests/python/test_disagg_async.py holds us to it. */
#include "elements.h"

static void told(weft_op_t *op, void *user)
{
    weftpy_posted_t *posted = user;
    weftpy_desk_put(posted->desk, posted);
}

weftpy_posted_t *weftpy_posted_new(weftpy_runtime_t *run, const weftpy_gives_t *gives, PyObject *made, PyObject *held)
{
    weftpy_state_t *st = run->st;
    weftpy_posted_t *posted = NULL;
    PyObject *pair = NULL;
    if (run->caller) {
        weftpy_raise_text(st, WEFT_ERR_STATE,
                          "nobody would drive the operation while a loop awaits it: use a runtime with progress=\"thread\"");
        goto out;
    }
    if (!st->later) {
        PyObject *module = PyImport_ImportModule("weft._later");
        PyObject *later = module ? PyObject_GetAttrString(module, "begin") : NULL;
        Py_XDECREF(module);
        if (!later)
            goto out;
        if (st->later) /* importing runs other threads, too */
            Py_DECREF(later);
        else
            st->later = later;
    }
    if (!(pair = PyObject_CallNoArgs(st->later)))
        goto out;
    posted = (weftpy_posted_t *)PyType_GenericAlloc(st->posted, 0);
    if (!posted)
        goto out;
    posted->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    posted->gives = gives;
    posted->future = Py_NewRef(PyTuple_GetItem(pair, 0));
    posted->desk = Py_NewRef(PyTuple_GetItem(pair, 1));
    posted->made = made;
    posted->held = held;
    made = held = NULL;
    if (Py_TYPE(posted->desk) != st->desk || PyObject_SetAttrString(posted->future, "_posted", (PyObject *)posted)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "weft._later.begin() gives a future and a desk");
        Py_CLEAR(posted);
    }
out:
    Py_XDECREF(pair);
    Py_XDECREF(made);
    Py_XDECREF(held);
    return posted;
}

void weftpy_posted_refused(weftpy_posted_t *posted)
{
    posted->under_way = false;
    Py_CLEAR(posted->future); /* which has us */
    Py_DECREF(posted);
}

void weftpy_posted_direct(weftpy_posted_t *posted)
{
    posted->op.fn = told;
    posted->op.user = posted;
}

/* Give the future what it came to, unless it was cancelled. */
static int tell(weftpy_posted_t *posted)
{
    PyObject *future = posted->future, *given = NULL, *r = NULL;
    PyObject *done = PyObject_CallMethod(future, "done", NULL);
    int over = done ? PyObject_IsTrue(done) : -1;
    Py_XDECREF(done);
    if (over) {
        if (over > 0 && !posted->op.status && posted->gives->drop)
            posted->gives->drop(posted->run, &posted->op, posted->made);
        return over > 0 ? 0 : -1;
    }
    given = weftpy_op_value(posted->run, &posted->op, posted->gives, posted->made);
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

/* What it needed is let go of. */
static void over(weftpy_posted_t *posted, bool somebody)
{
    posted->under_way = false;
    if (somebody && tell(posted))
        PyErr_WriteUnraisable((PyObject *)posted);
    else if (!somebody && !posted->op.status && posted->gives->drop)
        posted->gives->drop(posted->run, &posted->op, posted->made);
    Py_CLEAR(posted->future);
    Py_CLEAR(posted->held);
    Py_CLEAR(posted->made);
}

void weftpy_posted_end(weftpy_posted_t *posted, bool tell_it)
{
    over(posted, tell_it);
    Py_DECREF(posted); /* the library's */
}

PyObject *weftpy_posted_future(weftpy_posted_t *posted)
{
    PyObject *future = Py_NewRef(posted->future);
    posted->under_way = true;
    if (posted->op.fn) {
        weftpy_desk_begin(posted->desk);
        return future; /* our reference is the library's */
    }
    if (!weft_op_done(&posted->op)) {
        weft_op_t *one = &posted->op;
        posted->told.fn = told;
        posted->told.user = posted;
        weft_status_t status = weft_group_start(posted->run->rt, WEFT_GROUP_ALL, &one, 1, &posted->told);
        if (!status) {
            weftpy_desk_begin(posted->desk);
            return future;
        }
        weftpy_raise(posted->run->st, status); /* nobody would be told: it has to end here */
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        weft_op_cancel(&posted->op);
        if (weftpy_wait(posted->run, &posted->op))
            PyErr_Clear();
        PyErr_Restore(type, error, trace);
        Py_DECREF(future);
        weftpy_posted_refused(posted);
        return NULL;
    }
    over(posted, true);
    Py_DECREF(posted);
    return future;
}

static PyObject *cancel(PyObject *self, PyObject *unused)
{
    weftpy_posted_t *posted = (weftpy_posted_t *)self;
    if (posted->under_way)
        weft_op_cancel(&posted->op);
    Py_RETURN_NONE;
}

/* Only the library's reference keeps one that is under way alive, and while it has it nothing is collected. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
    weftpy_posted_t *posted = (weftpy_posted_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(posted->future);
    Py_VISIT(posted->held);
    Py_VISIT(posted->made);
    return 0;
}

static int clear(PyObject *self)
{
    weftpy_posted_t *posted = (weftpy_posted_t *)self;
    Py_CLEAR(posted->future);
    Py_CLEAR(posted->held);
    Py_CLEAR(posted->made);
    return 0;
}

static void dealloc(PyObject *self)
{
    weftpy_posted_t *posted = (weftpy_posted_t *)self;
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_CLEAR(posted->desk);
    Py_CLEAR(posted->run);
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

PyType_Spec weftpy_posted_spec = WEFTPY_SPEC("_Posted", weftpy_posted_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
