/* _core/handle.c - how objects begin that hold something of the library's: regions, remotes, stores, blocks, mirrors.
 *
 *     COMING -> HERE   somebody asked the operation that brings it for its value; if nobody asks, it is let go of
 *     HERE -> GONE     it was dropped, closed or freed, or the object goes, or the runtime is closed. That ends all that are
 *                      left, the youngest first, since a younger one may need an older one
 *
 * Every handle of a runtime is in its list while it is COMING or HERE.
 *
 * Promise: the library's part of a handle is let go of once, and before its runtime is closed. tests/python/test_rma.py holds us
 * to it. */
#include "handle.h"

#include <unistd.h>

static void unlist(weftpy_handle_t *h)
{
    if (!h->before)
        return;
    *h->before = h->next;
    if (h->next)
        h->next->before = h->before;
    h->before = NULL;
}

void *weftpy_handle_new(PyTypeObject *type, weftpy_runtime_t *run, PyObject *over, const weftpy_handle_kind_t *kind)
{
    weftpy_handle_t *h = (weftpy_handle_t *)PyType_GenericAlloc(type, 0);
    if (!h)
        return NULL;
    h->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    h->over = over ? Py_NewRef(over) : NULL;
    h->kind = kind;
    h->next = run->handles;
    h->before = &run->handles;
    if (h->next)
        h->next->before = &h->next;
    run->handles = h;
    return h;
}

int weftpy_handle_check(weftpy_handle_t *h)
{
    if (h->of && h->run->rt && !(h->run->blocking && h->run->closing))
        return 0;
    weftpy_raise_text(h->run->st, WEFT_ERR_CLOSED, h->run->rt ? "%s is closed" : "the runtime of %s is closed", h->kind->what);
    return -1;
}

void *weftpy_handle_take(weftpy_handle_t *h)
{
    void *of = h->of;
    if (!of && h->coming && weft_op_done(h->coming) && !h->coming->status) {
        of = h->coming->buf; /* it has arrived, but nobody has asked for it yet */
        h->coming->buf = NULL;
    }
    h->of = NULL;
    unlist(h);
    return of;
}

void weftpy_handle_end(weftpy_handle_t *h)
{
    bool open = h->run && h->run->rt;
    void *of = weftpy_handle_take(h);
    if (of && open)
        h->kind->let_go(h, of);
}

/* Cancel the operations that a loop awaits. False: none is under way. */
static bool cancel_later(weftpy_runtime_t *run)
{
    bool any = false;
    for (weftpy_handle_t *h = run->handles; h; h = h->next)
        if (h->later && h->coming && !weft_op_done(h->coming)) {
            weft_op_cancel(h->coming);
            any = true;
        }
    return any;
}

void weftpy_handles_end(weftpy_runtime_t *run)
{
    while (run->blocking && !weftpy_runtime_forked(run) && cancel_later(run)) { /* one that arrives later would not be ended */
        PyThreadState *save = PyEval_SaveThread();
        usleep(200); /* the library limits how long this takes */
        PyEval_RestoreThread(save);
    }
    while (run->handles)
        weftpy_handle_end(run->handles);
}

/* --- coming -------------------------------------------------------------------------------------------------------------- */

static PyObject *value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_handle_t *h = (weftpy_handle_t *)made;
    h->of = op->buf;
    op->buf = NULL;
    h->coming = NULL;
    if (!h->of || weftpy_runtime_check(run)) {
        weftpy_handle_end(h);
        if (!PyErr_Occurred())
            weftpy_raise_text(run->st, WEFT_ERR_CLOSED,
                              run->rt ? "it was let go of before anyone had it" : "the runtime is closed");
        return NULL;
    }
    return Py_NewRef(made);
}

static void drop(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_handle_end((weftpy_handle_t *)made);
}

const weftpy_gives_t weftpy_gives_handle = {.value = value, .drop = drop};

weftpy_op_t *weftpy_handle_op(weftpy_handle_t *h)
{
    weftpy_op_t *op = weftpy_op_new(h->run, &weftpy_gives_handle);
    if (!op) {
        Py_DECREF(h);
        return NULL;
    }
    op->made = (PyObject *)h;
    op->held = h->over ? Py_NewRef(h->over) : NULL;
    op->op.buf = NULL;
    h->coming = &op->op;
    return op;
}

weftpy_op_t *weftpy_handle_begin(weftpy_handle_t *h, const weftpy_gives_t *gives)
{
    weftpy_op_t *op = weftpy_handle_check(h) || weftpy_loop_before_post(h->run) ? NULL : weftpy_op_new(h->run, gives);
    if (op)
        op->held = Py_NewRef((PyObject *)h);
    return op;
}

PyObject *weftpy_done(weftpy_runtime_t *run, PyObject *result)
{
    if (!result || run->blocking)
        return result;
    weftpy_op_t *op = weftpy_op_new(run, &weftpy_gives_none);
    if (!op) {
        Py_DECREF(result);
        return NULL;
    }
    return weftpy_op_complete(op, result);
}

/* --- life ---------------------------------------------------------------------------------------------------------------- */

int weftpy_handle_traverse(PyObject *self, visitproc visit, void *arg)
{
    weftpy_handle_t *h = (weftpy_handle_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(h->run);
    Py_VISIT(h->over);
    return 0;
}

void weftpy_handle_dealloc(PyObject *self)
{
    weftpy_handle_t *h = (weftpy_handle_t *)self;
    PyObject_GC_UnTrack(self);
    if (h->weakrefs)
        PyObject_ClearWeakRefs(self);
    h->coming = NULL; /* its operation is being freed, and has already released what it had */
    if (h->run)
        weftpy_handle_end(h);
    Py_CLEAR(h->over);
    Py_CLEAR(h->run);
    weftpy_free(self);
}

PyMemberDef weftpy_handle_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(weftpy_handle_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* --- methods that most of them have -------------------------------------------------------------------------------------- */

PyObject *weftpy_handle_simple(weftpy_handle_t *h, weft_status_t (*post)(void *of, weft_op_t *op), const weftpy_sig_t *sig,
                               PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    uint64_t timeout = 0;
    if (weftpy_args_timeout(h->run->st, sig, args, n, kwnames, &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(h, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, post(h->of, &op->op));
}

PyObject *weftpy_handle_closed(PyObject *self, void *unused)
{
    return PyBool_FromLong(!((weftpy_handle_t *)self)->of);
}

PyObject *weftpy_handle_close(PyObject *self, PyObject *unused)
{
    weftpy_handle_t *h = (weftpy_handle_t *)self;
    return h->kind->close(h, &weftpy_gives_none);
}

PyObject *weftpy_handle_drop(PyObject *self, PyObject *unused)
{
    weftpy_handle_t *h = (weftpy_handle_t *)self;
    weftpy_handle_end(h);
    if (Py_TYPE(self) == h->run->st->remote)
        Py_CLEAR(h->over);
    Py_RETURN_NONE;
}

/* Close it if this thread may wait, otherwise release it without waiting. */
PyObject *weftpy_handle_exit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    weftpy_handle_t *h = (weftpy_handle_t *)self;
    return h->kind->close && h->run->blocking ? h->kind->close(h, &weftpy_gives_none_ever) : weftpy_handle_drop(self, NULL);
}

PyObject *weftpy_handle_aenter(PyObject *self, PyObject *unused)
{
    return weftpy_done(((weftpy_handle_t *)self)->run, Py_NewRef(self));
}

PyObject *weftpy_handle_aexit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    weftpy_handle_t *h = (weftpy_handle_t *)self;
    return h->kind->close ? h->kind->close(h, &weftpy_gives_none_ever) : weftpy_done(h->run, weftpy_handle_drop(self, NULL));
}
