/* _core/op.c - Op: one operation under way, as something to await.
 *
 * It looks like an asyncio Future to whoever asks (_asyncio_future_blocking, get_loop, add_done_callback, ...), so that tasks, gather(),
 * wait() and wait_for() take it as it is, and it is none: nothing is allocated beside it, a task that waits is stepped inline by the
 * turn that saw the completion (loop.c), and one that is complete when it is awaited never meets the loop.
 *
 *     NEW -> UNDER_WAY   the library took it; from then on it holds a reference of its own, and the buffers with it
 *     UNDER_WAY -> DONE  the library told us (told(), inside progress): the buffers are let go of, whoever waits is queued for the turn
 *
 * Cancelling is apart from that: `cancelled` makes the awaiter's CancelledError come at once, while the operation goes on to DONE in its
 * own time, with its buffer held. The value is made when it is first asked for.
 *
 * Memory of operations is kept for the next ones; the library's part of it can be posted again as it is.
 *
 * Promise: one that was posted completes once, whoever forgot it. tests/python/test_ops.py holds us to it. */
#include "core.h"

#include <string.h>

enum { CREDIT = 256 };

static void told(weft_op_t *wop, void *user)
{
    weftpy_op_told((weftpy_op_t *)user);
}

/* --- life ---------------------------------------------------------------------------------------------------------------- */

weftpy_op_t *weftpy_op_new(weftpy_runtime_t *run, const weftpy_gives_t *gives)
{
    weftpy_state_t *st = run->st;
    weftpy_op_t *op = st->ops;
    if (!st->op)
        return (weftpy_op_t *)weftpy_raise_text(st, WEFT_ERR_CLOSED, "the interpreter is ending");
    if (run->blocking && weftpy_wait_check(st))
        return NULL;
    if (op) {
        st->ops = op->next;
        st->ops_kept--;
        op->next = NULL;
    } else {
        op = PyObject_Malloc(sizeof *op);
        if (!op)
            return (weftpy_op_t *)PyErr_NoMemory();
        memset(op, 0, sizeof *op);
    }
    PyObject_Init((PyObject *)op, st->op);
    op->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    op->op.fn = run->blocking ? NULL : told; /* who waits for it needs no telling, and the runtime's thread has no GIL */
    op->op.user = op;
    op->op.timeout_ns = 0;
    op->gives = gives;
    op->state = OP_NEW;
    op->cancelled = op->blocking = op->yielded = op->queued = op->asked = 0;
    return op;
}

/* What the library made and nobody asked for. */
static void drop_made(weftpy_op_t *op)
{
    if (op->state == OP_DONE && !op->asked && op->op.status == WEFT_OK && op->gives->drop)
        op->gives->drop(op->run, &op->op, op->made);
}

static void dealloc(PyObject *self)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    weftpy_state_t *st = op->run->st;
    drop_made(op);
    op->op.buf = NULL;
    weftpy_buf_release(&op->buf);
    Py_CLEAR(op->held);
    Py_CLEAR(op->made);
    Py_CLEAR(op->value);
    Py_CLEAR(op->waker);
    Py_CLEAR(op->waker_context);
    Py_CLEAR(op->callbacks);
    Py_CLEAR(op->message);
    if (op->many) {
        weftpy_many_free(op->many);
        op->many = NULL;
    }
    Py_CLEAR(op->run);
    if (st->ops_kept < WEFTPY_OPS_KEPT) {
        op->next = st->ops;
        st->ops = op;
        st->ops_kept++;
    } else {
        PyObject_Free(op);
    }
    Py_DECREF(type);
}

void weftpy_ops_free(weftpy_state_t *st)
{
    for (weftpy_op_t *op; (op = st->ops);) {
        st->ops = op->next;
        PyObject_Free(op);
    }
    st->ops_kept = WEFTPY_OPS_KEPT; /* the module is going: none is kept any more */
}

/* --- posted, told -------------------------------------------------------------------------------------------------------- */

static PyObject *value_of(weftpy_op_t *op);

/* What it came to, in a blocking runtime. Steals op. */
static PyObject *waited(weftpy_op_t *op)
{
    int interrupted = weftpy_wait(op->run, &op->op);
    op->state = OP_DONE;
    if (op->op.status)
        op->op.buf = NULL;
    PyObject *value = interrupted ? NULL : value_of(op);
    Py_DECREF(op);
    return value;
}

PyObject *weftpy_op_posted(weftpy_op_t *op, weft_status_t status)
{
    weftpy_runtime_t *run = op->run;
    if (status) {
        weftpy_raise(run->st, status);
        Py_DECREF(op);
        return NULL;
    }
    op->state = OP_UNDER_WAY;
    if (run->blocking)
        return waited(op);
    Py_INCREF((PyObject *)op); /* the library's */
    run->under_way++;
    weftpy_progress(run); /* it may be complete already, and is only told of in progress */
    return (PyObject *)op;
}

PyObject *weftpy_op_sent(weftpy_op_t *op, weft_status_t status)
{
    if (status || op->run->blocking)
        return weftpy_op_posted(op, status);
    if (!weft_op_done(&op->op) && !weft_op_attach(&op->op, told))
        return weftpy_op_posted(op, WEFT_OK);
    /* It is complete: at once, or meanwhile, or because the runtime is closed. */
    Py_INCREF((PyObject *)op);
    op->run->under_way++;
    weftpy_op_told(op);
    weftpy_progress(op->run);
    return (PyObject *)op;
}

PyObject *weftpy_op_complete(weftpy_op_t *op, PyObject *value)
{
    op->state = OP_DONE;
    op->op.status = WEFT_OK;
    op->value = value;
    op->asked = 1;
    return (PyObject *)op;
}

static void queue(weftpy_op_t *op)
{
    weftpy_runtime_t *run = op->run;
    if (op->queued)
        return;
    op->queued = 1;
    op->next = NULL;
    *run->woken_end = (weftpy_op_t *)Py_NewRef((PyObject *)op);
    run->woken_end = &op->next;
}

void weftpy_op_told(weftpy_op_t *op)
{
    op->state = OP_DONE;
    op->run->under_way--;
    if (op->op.status)
        op->op.buf = NULL;
    weftpy_buf_release(&op->buf);
    Py_CLEAR(op->held);
    if (op->waker || op->callbacks)
        queue(op);
    Py_DECREF(op);
}

static int call_soon(weftpy_op_t *op, PyObject *function, PyObject *context)
{
    weftpy_runtime_t *run = op->run;
    PyObject *args = PyTuple_Pack(2, function, (PyObject *)op);
    PyObject *kw = args ? PyDict_New() : NULL;
    PyObject *handle = NULL;
    if (kw && !PyDict_SetItem(kw, run->st->names[N_context], context) && run->call_soon)
        handle = PyObject_Call(run->call_soon, args, kw);
    else if (!PyErr_Occurred())
        weftpy_raise_text(run->st, WEFT_ERR_CLOSED, "the runtime is closed");
    Py_XDECREF(args);
    Py_XDECREF(kw);
    Py_XDECREF(handle);
    return handle ? 0 : -1;
}

int weftpy_op_wake(weftpy_op_t *op, bool at_once)
{
    PyObject *waker = op->waker, *context = op->waker_context, *callbacks = op->callbacks;
    int result = 0;
    op->queued = 0;
    op->waker = op->waker_context = op->callbacks = NULL;
    if (waker && at_once) {
        op->run->inline_wakes++;
        PyObject *r = PyObject_CallMethodObjArgs(context, op->run->st->s_run, waker, (PyObject *)op, NULL);
        result = r ? 0 : -1;
        Py_XDECREF(r);
    } else if (waker) {
        result = call_soon(op, waker, context);
    }
    if (waker) {
        Py_DECREF(waker);
        Py_DECREF(context);
    }
    for (Py_ssize_t i = 0, n = callbacks ? PyList_Size(callbacks) : 0; i < n && !result; i++) {
        PyObject *pair = PyList_GetItem(callbacks, i);
        result = call_soon(op, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
    }
    Py_XDECREF(callbacks);
    return result;
}

/* --- what it came to ----------------------------------------------------------------------------------------------------- */

static PyObject *len_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return PyLong_FromUnsignedLongLong(op->len);
}

static PyObject *bytes_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    PyObject *value = PyBytes_FromStringAndSize(op->buf, (Py_ssize_t)op->len);
    weft_buf_free(op->buf);
    op->buf = NULL;
    return value;
}

static void bytes_drop(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weft_buf_free(op->buf);
}

static PyObject *made_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return Py_NewRef(made);
}

const weftpy_gives_t weftpy_gives_none = {0};
const weftpy_gives_t weftpy_gives_none_ever = {.none_ever = true};
const weftpy_gives_t weftpy_gives_len = {.value = len_value};
const weftpy_gives_t weftpy_gives_bytes = {.value = bytes_value, .drop = bytes_drop};
const weftpy_gives_t weftpy_gives_made = {.value = made_value};

PyObject *weftpy_op_value(weftpy_runtime_t *run, weft_op_t *op, const weftpy_gives_t *gives, PyObject *made)
{
    if (op->status && !gives->none_ever) {
        if (!gives->failed)
            return weftpy_raise_op(run->st, op);
        gives->failed(run, op, made);
        return NULL;
    }
    return gives->value && !op->status ? gives->value(run, op, made) : Py_NewRef(Py_None);
}

/* A new reference, or NULL with the exception it ended with. It is complete. */
static PyObject *value_of(weftpy_op_t *op)
{
    if (!op->value) {
        if (op->asked && op->op.status == WEFT_OK) /* no memory for it when it was asked for first: it is gone */
            return PyErr_NoMemory();
        op->asked = 1;
        op->value = weftpy_op_value(op->run, &op->op, op->gives, op->made);
        if (!op->value)
            return NULL;
    }
    return Py_NewRef(op->value);
}

static PyObject *raise_cancelled(weftpy_op_t *op)
{
    if (op->message)
        PyErr_SetObject(op->run->st->cancelled_error, op->message);
    else
        PyErr_SetNone(op->run->st->cancelled_error);
    return NULL;
}

static PyObject *result(PyObject *self, PyObject *unused)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    if (op->cancelled)
        return raise_cancelled(op);
    if (op->state != OP_DONE) {
        PyErr_SetString(op->run->st->invalid_state_error, "the operation is still under way");
        return NULL;
    }
    return value_of(op);
}

static PyObject *exception(PyObject *self, PyObject *unused)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    PyObject *type, *error, *trace, *value = result(self, unused);
    if (value) {
        Py_DECREF(value);
        Py_RETURN_NONE;
    }
    if (op->cancelled || op->state != OP_DONE)
        return NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
}

/* --- awaiting ------------------------------------------------------------------------------------------------------------ */

static PySendResult resume(PyObject *self, PyObject *unused, PyObject **result_out)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    weftpy_runtime_t *run = op->run;
    if (op->state != OP_DONE && !op->cancelled && !run->blocking)
        weftpy_loop_spin(run, op);
    if (op->cancelled) {
        *result_out = raise_cancelled(op);
        return PYGEN_ERROR;
    }
    if (op->state == OP_DONE) {
        /* a task whose operations are always complete would keep the loop from everybody else */
        if (__builtin_expect(!op->yielded && --run->credit < 0, 0)) {
            run->credit = CREDIT;
            op->yielded = 1;
            *result_out = Py_NewRef(Py_None);
            return PYGEN_NEXT;
        }
        *result_out = value_of(op);
        return *result_out ? PYGEN_RETURN : PYGEN_ERROR;
    }
    if (run->blocking) {
        *result_out = weftpy_raise_text(run->st, WEFT_ERR_STATE, "a blocking runtime has nothing to await");
        return PYGEN_ERROR;
    }
    if (op->blocking) { /* a task would have said that it waits; list() and its like would take it again and again, for ever */
        PyErr_SetString(PyExc_RuntimeError, "the operation is under way: await it; nothing else can go through it");
        op->blocking = 0;
        *result_out = NULL;
        return PYGEN_ERROR;
    }
    op->blocking = op->yielded = 1;
    run->credit = CREDIT;
    *result_out = Py_NewRef(self);
    return PYGEN_NEXT;
}

static PyObject *next(PyObject *self)
{
    PyObject *value;
    PySendResult sent = resume(self, NULL, &value);
    if (sent != PYGEN_RETURN)
        return sent == PYGEN_NEXT ? value : NULL;
    /* by hand: PyErr_SetObject would take a tuple for arguments */
    PyObject *stop = PyObject_CallFunctionObjArgs(PyExc_StopIteration, value, NULL);
    if (stop)
        PyErr_SetObject(PyExc_StopIteration, stop);
    Py_XDECREF(stop);
    Py_DECREF(value);
    return NULL;
}

static PyObject *await_it(PyObject *self)
{
    return Py_NewRef(self);
}

/* A call of a function of which only the name is known may turn out to be a stream: async for awaits it, and then goes through that. */
static PyObject *each(PyObject *self)
{
    PyObject *module = PyImport_ImportModule("weft._client");
    PyObject *iter = module ? PyObject_CallMethod(module, "_each", "O", self) : NULL;
    Py_XDECREF(module);
    return iter;
}

/* --- as a Future is asked ------------------------------------------------------------------------------------------------ */

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
        int failed = call_soon(op, arg[0], context);
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
        queue(op); /* the awaiter hears of it in the next turn, the operation ends when it ends */
    if (op->many)
        weftpy_many_cancel(op->many);
    else
        weft_op_cancel(&op->op);
    Py_RETURN_TRUE;
}

/* For those who wait for the end of the operation itself, and for nothing sooner. */
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

/* gather() asks what was cancelled for these two, which every future of asyncio has. */
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

/* --- what else can be asked ---------------------------------------------------------------------------------------------- */

static PyObject *get_tag(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(((weftpy_op_t *)self)->op.tag);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(((weftpy_op_t *)self)->op.len);
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

static PyObject *repr(PyObject *self)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    if (op->state != OP_DONE)
        return PyUnicode_FromFormat("<weft.Op under way%s>", op->cancelled ? ", cancelled" : "");
    return PyUnicode_FromFormat("<weft.Op %s%s>", weft_status_name(op->op.status), op->cancelled ? ", cancelled" : "");
}

static PyMethodDef methods[] = {
    {"result", result, METH_NOARGS,
     DOC("result($self)", "What it gave, or its exception; InvalidStateError while it is under way.")},
    {"exception", exception, METH_NOARGS, DOC("exception($self)", "The exception it ended with, or None.")},
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

static PyGetSetDef getset[] = {
    {"_asyncio_future_blocking", get_blocking, set_blocking, NULL, NULL},
    {"_cancel_message", get_cancel_message, NULL, NULL, NULL},
    {"tag", get_tag, NULL, "Of the message received; of an active message its id.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of the message.", NULL},
    {"_made", get_made, NULL, "What it will give, where that was made before the post; else None.", NULL},
    {"sender", get_sender, NULL, "The endpoint the message came over, if it is still open.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "An operation under way: await it, or treat it as an asyncio Future."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_iter, await_it},
    {Py_tp_iternext, next},
    {Py_am_await, await_it},
    {Py_am_send, resume},
    {Py_am_aiter, each},
    {0, NULL},
};

PyType_Spec weftpy_op_spec = WEFTPY_SPEC("Op", weftpy_op_t, WEFTPY_NOT_CALLED, slots);
