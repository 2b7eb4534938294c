/* _core/op_future.c - the methods of Op by which it looks like an asyncio Future: callbacks, cancelling, and what else can be
 * asked of it.
 *
 * The wake-up of a task is kept apart from other callbacks: a turn of the loop steps that task inline (loop.c).
 *
 * tests/python/test_ops.py holds us to it. */
#include "core.h"

static PyObject *done(PyObject *self, PyObject *unused)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    return PyBool_FromLong(op->state == OP_DONE || op->cancelled);
}

static PyObject *cancelled(PyObject *self, PyObject *unused)
{
    return PyBool_FromLong(((weftpy_op_t *)self)->cancelled);
}

static PyObject *get_loop(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = ((weftpy_op_t *)self)->run;
    return Py_NewRef(run->loop ? run->loop : Py_None);
}

/* The wake-up of a task is a built-in function whose self is the task. */
static bool is_waker(weftpy_state_t *st, PyObject *function)
{
    if (!PyCFunction_Check(function))
        return false;
    PyObject *of = PyCFunction_GetSelf(function);
    return of && PyObject_TypeCheck(of, (PyTypeObject *)st->task);
}

static const weftpy_sig_t sig_callback = {"add_done_callback", 2, 1, 1, {N_callback, N_context}};

static PyObject *add_done_callback(FAST_ARGS)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    weftpy_state_t *st = op->run->st;
    PyObject *arg[2], *context;
    if (weftpy_args(st, &sig_callback, args, n, kwnames, arg))
        return NULL;
    if (arg[1] && arg[1] != Py_None)
        context = Py_NewRef(arg[1]);
    else if (!(context = PyObject_CallNoArgs(st->copy_context)))
        return NULL;
    if (op->state == OP_DONE || op->cancelled) {
        int failed = weftpy_op_call_soon(op, arg[0], context);
        Py_DECREF(context);
        if (failed)
            return NULL;
        Py_RETURN_NONE;
    }
    if (!op->waker && !op->callbacks && is_waker(st, arg[0])) {
        op->waker = Py_NewRef(arg[0]);
        op->waker_context = context;
        Py_RETURN_NONE;
    }
    PyObject *pair = PyTuple_Pack(2, arg[0], context);
    Py_DECREF(context);
    if (pair && !op->callbacks)
        op->callbacks = PyList_New(0);
    int failed = !pair || !op->callbacks || PyList_Append(op->callbacks, pair);
    Py_XDECREF(pair);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *remove_done_callback(PyObject *self, PyObject *function)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    long removed = 0;
    if (op->waker) {
        int same = PyObject_RichCompareBool(op->waker, function, Py_EQ);
        if (same < 0)
            return NULL;
        if (same) {
            Py_CLEAR(op->waker);
            Py_CLEAR(op->waker_context);
            removed++;
        }
    }
    PyObject *kept = op->callbacks ? PyList_New(0) : NULL;
    if (op->callbacks && !kept)
        return NULL;
    for (Py_ssize_t i = 0; op->callbacks && i < PyList_Size(op->callbacks); i++) {
        PyObject *pair = PyList_GetItem(op->callbacks, i);
        int same = PyObject_RichCompareBool(PyTuple_GetItem(pair, 0), function, Py_EQ);
        if (same < 0 || (!same && PyList_Append(kept, pair))) {
            Py_DECREF(kept);
            return NULL;
        }
        removed += same;
    }
    if (kept) {
        PyObject *old = op->callbacks;
        op->callbacks = kept;
        Py_XDECREF(old);
    }
    return PyLong_FromLong(removed);
}

static const weftpy_sig_t sig_cancel = {"cancel", 1, 0, 1, {N_msg}};

static PyObject *cancel(FAST_ARGS)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    weftpy_runtime_t *run = op->run;
    PyObject *arg[1];
    if (weftpy_args(run->st, &sig_cancel, args, n, kwnames, arg))
        return NULL;
    if (op->state != OP_UNDER_WAY || op->cancelled)
        Py_RETURN_FALSE;
    if (!run->blocking && weftpy_loop_before_post(run))
        return NULL;
    op->cancelled = 1;
    if (arg[0] && arg[0] != Py_None)
        op->message = Py_NewRef(arg[0]);
    if (op->waker || op->callbacks)
        weftpy_op_queue(op); /* the awaiter sees it in the next turn; the operation continues until the library ends it */
    if (op->many)
        weftpy_many_cancel(op->many);
    else
        weft_op_cancel(&op->op);
    Py_RETURN_TRUE;
}

/* Ask the operation to end; the awaiter still waits for that end. */
static PyObject *ask_to_end(PyObject *self, PyObject *unused)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    if (op->state != OP_UNDER_WAY)
        Py_RETURN_FALSE;
    if (!op->run->blocking && weftpy_loop_before_post(op->run))
        return NULL;
    if (op->many)
        weftpy_many_cancel(op->many);
    else
        weft_op_cancel(&op->op);
    Py_RETURN_TRUE;
}

/* gather() reads these two attributes of a cancelled future. Every asyncio future has them. */
static PyObject *get_cancel_message(PyObject *self, void *unused)
{
    PyObject *message = ((weftpy_op_t *)self)->message;
    return Py_NewRef(message ? message : Py_None);
}

static PyObject *make_cancelled_error(PyObject *self, PyObject *unused)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    return PyObject_CallFunctionObjArgs(op->run->st->cancelled_error, op->message, NULL);
}

static PyObject *get_blocking(PyObject *self, void *unused)
{
    return PyBool_FromLong(((weftpy_op_t *)self)->blocking);
}

static int set_blocking(PyObject *self, PyObject *value, void *unused)
{
    int truth = value ? PyObject_IsTrue(value) : 0;
    if (truth < 0)
        return -1;
    ((weftpy_op_t *)self)->blocking = (uint8_t)truth;
    return 0;
}

static PyObject *get_made(PyObject *self, void *unused)
{
    PyObject *made = ((weftpy_op_t *)self)->made;
    return Py_NewRef(made ? made : Py_None);
}

static PyObject *get_sender(PyObject *self, void *unused)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    weftpy_endpoint_t *ep = op->state == OP_DONE ? weftpy_endpoint_find(op->run, op->op.from) : NULL;
    return ep ? (PyObject *)ep : Py_NewRef(Py_None);
}

PyMethodDef weftpy_op_methods[] = {
    {"result", weftpy_op_result, METH_NOARGS,
     DOC("result($self)", "What it gave, or its exception; InvalidStateError while it is under way.")},
    {"exception", weftpy_op_exception, METH_NOARGS, DOC("exception($self)", "The exception it ended with, or None.")},
    {"done", done, METH_NOARGS, DOC("done($self)", "True once it is complete or cancelled.")},
    {"cancelled", cancelled, METH_NOARGS, DOC("cancelled($self)", "True if cancel() was sooner than its completion.")},
    {"cancel", FAST(cancel),
     DOC("cancel($self, msg=None)",
         "End it early. Whoever awaits it gets CancelledError now; its buffer is held until the library has let go of it.")},
    {"_end", ask_to_end, METH_NOARGS,
     DOC("_end($self)", "Ask it to end early: it completes as cancelled once its buffer is free, or as it would have.")},
    {"_make_cancelled_error", make_cancelled_error, METH_NOARGS, "For asyncio."},
    {"get_loop", get_loop, METH_NOARGS, DOC("get_loop($self)", "The event loop of its runtime.")},
    {"add_done_callback", FAST(add_done_callback),
     DOC("add_done_callback($self, callback, *, context=None)",
         "Have the loop call a function with this operation when it is complete.")},
    {"remove_done_callback", remove_done_callback, METH_O,
     DOC("remove_done_callback($self, callback, /)", "Take a callback back; how many times it was there.")},
    {NULL, NULL, 0, NULL},
};

PyGetSetDef weftpy_op_getset[] = {
    {"_asyncio_future_blocking", get_blocking, set_blocking, NULL, NULL},
    {"_cancel_message", get_cancel_message, NULL, NULL, NULL},
    {"_made", get_made, NULL, "What it will give, where that was made before the post; else None.", NULL},
    {"sender", get_sender, NULL, "The endpoint the message came over, if it is still open.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyMemberDef weftpy_op_members[] = {
    {"tag", T_ULONGLONG, offsetof(weftpy_op_t, op.tag), READONLY, "Of the message received; of an active message its id."},
    {"nbytes", T_ULONGLONG, offsetof(weftpy_op_t, op.len), READONLY, "Bytes of the message."},
    {NULL, 0, 0, 0, NULL},
};
