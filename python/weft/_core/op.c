/* _core/op.c - Op: one operation under way, as something to await.
 *
 * It looks like an asyncio Future to whoever asks (_asyncio_future_blocking, get_loop, add_done_callback, ...), so that tasks,
 * gather(), wait() and wait_for() take it as it is, and it is none: nothing is allocated beside it, a task that waits is stepped
 * inline by the turn that saw the completion (loop.c), and one that is complete when it is awaited never meets the loop.
 *
 *     NEW -> UNDER_WAY   the library took it; from then on it holds a reference of its own, and the buffers with it
 *     UNDER_WAY -> DONE  the library calls told() in progress: the buffers are released, and waiters are queued for the turn
 *
 * Cancelling is apart from that: `cancelled` makes the awaiter's CancelledError come at once, while the operation goes on to DONE
 * in its own time, with its buffer held. The value is made when it is first asked for.
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
    op->op.fn = run->blocking ? NULL : told; /* a thread that waits checks it itself, and the runtime's thread has no GIL */
    op->op.user = op;
    op->op.timeout_ns = 0;
    op->op.streams = NULL;
    op->gives = gives;
    op->state = OP_NEW;
    op->cancelled = op->blocking = op->yielded = op->queued = op->asked = 0;
    return op;
}

/* Free what the library allocated, if nobody asked for it. */
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
    weftpy_order_release(&op->order);
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
    st->ops_kept = WEFTPY_OPS_KEPT; /* the module ends: keep no more operations */
}

/* --- posted, told -------------------------------------------------------------------------------------------------------- */

static PyObject *value_of(weftpy_op_t *op);

/* Wait for the result, in a blocking runtime. Steals op. */
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
    Py_INCREF((PyObject *)op); /* the reference that the library holds */
    run->under_way++;
    weftpy_progress(run); /* it may already be complete, and only progress reports it */
    return (PyObject *)op;
}

PyObject *weftpy_op_sent(weftpy_op_t *op, weft_status_t status)
{
    if (status || op->run->blocking)
        return weftpy_op_posted(op, status);
    if (!weft_op_done(&op->op) && !weft_op_attach(&op->op, told))
        return weftpy_op_posted(op, WEFT_OK);
    /* It is complete: at once, later, or because the runtime is closed. */
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

void weftpy_op_queue(weftpy_op_t *op)
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
        weftpy_op_queue(op);
    Py_DECREF(op);
}

int weftpy_op_call_soon(weftpy_op_t *op, PyObject *function, PyObject *context)
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
        result = weftpy_op_call_soon(op, waker, context);
    }
    if (waker) {
        Py_DECREF(waker);
        Py_DECREF(context);
    }
    for (Py_ssize_t i = 0, n = callbacks ? PyList_Size(callbacks) : 0; i < n && !result; i++) {
        PyObject *pair = PyList_GetItem(callbacks, i);
        result = weftpy_op_call_soon(op, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
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
        if (op->asked && op->op.status == WEFT_OK) /* the first request found no memory for the value, and the value is lost */
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

PyObject *weftpy_op_result(PyObject *self, PyObject *unused)
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

PyObject *weftpy_op_exception(PyObject *self, PyObject *unused)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    PyObject *type, *error, *trace, *value = weftpy_op_result(self, unused);
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
        /* without this, a task whose operations are always complete would never give way to others */
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
    if (op->blocking) { /* a task resets this flag; list() and the like do not, and would never end */
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
    /* not PyErr_SetObject: it would use a tuple as the arguments */
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

/* If only the name of a function is known, the call may be a stream: async for awaits the Op, and then reads the stream. */
static PyObject *each(PyObject *self)
{
    PyObject *module = PyImport_ImportModule("weft._client");
    PyObject *iter = module ? PyObject_CallMethod(module, "_each", "O", self) : NULL;
    Py_XDECREF(module);
    return iter;
}

static PyObject *repr(PyObject *self)
{
    weftpy_op_t *op = (weftpy_op_t *)self;
    if (op->state != OP_DONE)
        return PyUnicode_FromFormat("<weft.Op under way%s>", op->cancelled ? ", cancelled" : "");
    return PyUnicode_FromFormat("<weft.Op %s%s>", weft_status_name(op->op.status), op->cancelled ? ", cancelled" : "");
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "An operation under way: await it, or treat it as an asyncio Future."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_methods, weftpy_op_methods},
    {Py_tp_getset, weftpy_op_getset},
    {Py_tp_members, weftpy_op_members},
    {Py_tp_iter, await_it},
    {Py_tp_iternext, next},
    {Py_am_await, await_it},
    {Py_am_send, resume},
    {Py_am_aiter, each},
    {0, NULL},
};

PyType_Spec weftpy_op_spec = WEFTPY_SPEC("Op", weftpy_op_t, WEFTPY_NOT_CALLED, slots);
