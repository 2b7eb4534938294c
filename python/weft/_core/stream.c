/* _core/stream.c - Stream: one call whose argument or result is a stream of values.
 *
 *     async for x in client.primes(100)          what the server gives, in order; `for` in a blocking runtime
 *     await s.send(x), s.end(), s.result()       what it takes, and what the call came to
 *
 * A send waits while the other side has as much as it wants and nobody took it. Each value that came is an Item of its own, which
 * views of it keep alive, and nothing else: so who leaves the loop lets go of the Stream, and with that the call is cancelled and
 * the function hears of it.
 *
 *     open -> released   close(), or the object goes, or its runtime
 *
 * Promise: whoever sees the end has had everything; where the call failed, that is raised instead.
 * tests/python/test_rpc_streams.py holds us to it. */
#include "calls.h"

typedef struct stream {
    PyObject_HEAD weftpy_state_t *st;
    weftpy_runtime_t *run;
    weftpy_method_t *method;
    weft_stream_t *s; /* NULL: released */
    weftpy_op_t *op;  /* the operation of the whole call */
    weftpy_guest_t guest;
} stream_t;

/* A value: one that has arrived, or one that is being sent. */
typedef struct item {
    PyObject_HEAD stream_t *stream; /* until it is complete */
    weft_item_t item;
    weftpy_holds_t holds;
} item_t;

#define SELF stream_t *s = (stream_t *)self

/* --- life --------------------------------------------------------------------------------------------------------- */

/* Cancels the call, if it is under way. In a blocking runtime nobody else holds the operation, so this waits for it. The library
 * limits how long that takes. */
static void release(stream_t *s)
{
    weft_stream_t *stream = s->s;
    s->s = NULL;
    weftpy_guest_leave(&s->guest);
    if (!stream || !s->run->rt || weftpy_runtime_forked(s->run))
        return;
    weft_stream_release(stream);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (s->run->blocking && weftpy_inside && !weft_op_done(&s->op->op)) { /* nobody may wait inside of progress */
        weftpy_runtime_hold(s->run, (PyObject *)s->op);
    } else if (s->run->blocking) {
        if (weftpy_wait(s->run, &s->op->op))
            PyErr_WriteUnraisable(NULL);
        s->op->state = OP_DONE;
    } else if (!s->run->scheduled && s->run->thread == PyThread_get_thread_ident() && weftpy_loop_schedule(s->run)) {
        PyErr_Clear(); /* the loop is closed: the runtime will be, too */
    }
    PyErr_Restore(type, error, trace);
}

static void leave(weftpy_guest_t *guest)
{
    release((stream_t *)(void *)((char *)guest - offsetof(stream_t, guest)));
}

static void dealloc(PyObject *self)
{
    SELF;
    if (s->op)
        release(s);
    Py_CLEAR(s->op);
    Py_CLEAR(s->method);
    Py_CLEAR(s->run);
    weftpy_free(self);
}

PyObject *weftpy_stream_open(weftpy_method_t *m, weftpy_call_t *c)
{
    weftpy_runtime_t *run = m->link->run;
    weftpy_op_t *op = NULL;
    stream_t *s = m->st->stream ? (stream_t *)PyType_GenericAlloc(m->st->stream, 0) : NULL;
    if (!s || weftpy_loop_before_post(run) || weftpy_link_check(m->link) || !(op = weftpy_op_new(run, &weftpy_gives_call))) {
        Py_XDECREF((PyObject *)s);
        Py_DECREF(c);
        return NULL;
    }
    s->st = m->st;
    s->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    s->method = (weftpy_method_t *)Py_NewRef((PyObject *)m);
    op->made = (PyObject *)c;
    op->op.timeout_ns = c->timeout_ns;
    weft_status_t status =
        weft_call_stream(m->method, c->values, m->n, c->with_opts ? &c->opts : NULL, &c->reply, &op->op, &s->s);
    if (!status && run->blocking) { /* the wait comes when its result is asked for */
        op->state = OP_UNDER_WAY;
        s->op = op;
    } else {
        s->op = (weftpy_op_t *)weftpy_op_posted(op, status);
    }
    if (!s->op) {
        s->s = NULL;
        Py_DECREF(s);
        return NULL;
    }
    weftpy_guest_enter(&run->guests, &s->guest, leave);
    return (PyObject *)s;
}

static int check(stream_t *s)
{
    if (__builtin_expect(s->s && s->run->rt && !s->run->closing, 1))
        return 0;
    weftpy_raise_text(s->st, WEFT_ERR_CLOSED, s->run->rt ? "the stream is closed" : "the runtime of the stream is closed");
    return -1;
}

/* --- items -------------------------------------------------------------------------------------------------------- */

static item_t *item_new(stream_t *s)
{
    item_t *i = s->st->item ? (item_t *)PyType_GenericAlloc(s->st->item, 0) : NULL;
    if (i)
        i->stream = (stream_t *)Py_NewRef((PyObject *)s);
    return i;
}

static void item_dealloc(PyObject *self)
{
    item_t *i = (item_t *)self;
    weft_item_release(&i->item);
    weftpy_holds_release(&i->holds);
    Py_CLEAR(i->stream);
    weftpy_free(self);
}

static PyObject *item_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    item_t *i = (item_t *)made;
    PyObject *value = NULL;
    if (op->len)
        value = weftpy_value_make(run->st, &i->item.value, made, WEFTPY_WRITABLE);
    else
        PyErr_SetNone(run->blocking ? PyExc_StopIteration : PyExc_StopAsyncIteration);
    if (value)
        Py_CLEAR(i->stream);
    return value;
}

/* Raise the failure of the call: it says more than that there is no value. False: the call did not fail, or that is not known. */
static bool raise_call(const stream_t *s, weft_status_t status)
{
    weft_op_t *whole = s && s->op ? &s->op->op : NULL;
    if (whole && s->run->blocking && status == WEFT_ERR_CALL && s->run->rt && weftpy_wait(s->run, whole))
        return true; /* it was answered, and another thread is about to report it; a signal came first here */
    if (!whole || !weft_op_done(whole) || !whole->status)
        return false;
    weftpy_raise_reply(s->st, whole->status, &((weftpy_call_t *)s->op->made)->reply);
    return true;
}

static void item_failed(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    if (!raise_call(((item_t *)made)->stream, op->status))
        weftpy_raise_op(run->st, op);
}

static PyObject *sent_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_holds_release(&((item_t *)made)->holds);
    Py_RETURN_NONE;
}

static const weftpy_gives_t gives_item = {.value = item_value, .failed = item_failed};
static const weftpy_gives_t gives_sent = {.value = sent_value, .failed = item_failed};

/* An operation with an item, or NULL with the exception. */
static weftpy_op_t *begin(stream_t *s, const weftpy_gives_t *gives, item_t *item)
{
    weftpy_op_t *op = weftpy_loop_before_post(s->run) || check(s) ? NULL : weftpy_op_new(s->run, gives);
    if (op)
        op->made = (PyObject *)item;
    else
        Py_XDECREF((PyObject *)item);
    return op;
}

/* Like weftpy_op_posted(). A post is refused mostly because the call is over. */
static PyObject *posted(stream_t *s, weftpy_op_t *op, weft_status_t status)
{
    if (__builtin_expect(status != WEFT_OK, 0)) {
        if (!s->run->blocking)
            weftpy_progress(s->run); /* only progress reports that the call is over */
        if (raise_call(s, status)) {
            Py_DECREF(op);
            return NULL;
        }
        if (status == WEFT_ERR_CALL) { /* it was answered, and the answer is about to be reported */
            Py_DECREF(op);
            return weftpy_raise_reply(s->st, status, &(weft_reply_t){.code = WEFT_CODE_UNKNOWN, .ran = WEFT_RAN});
        }
    }
    return weftpy_op_posted(op, status);
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

static PyObject *next_value(PyObject *self)
{
    SELF;
    if (!s->method->gives)
        return weftpy_raise_text(s->st, WEFT_ERR_STATE, "%U gives no stream", s->method->text);
    item_t *item = check(s) ? NULL : item_new(s);
    weftpy_op_t *op = item ? begin(s, &gives_item, item) : NULL;
    return op ? posted(s, op, weft_stream_recv(s->s, &item->item, &op->op)) : NULL;
}

static PyObject *next(PyObject *self)
{
    SELF;
    if (!s->run->blocking) {
        PyErr_SetString(PyExc_TypeError, "a stream in an event loop is gone through with `async for`");
        return NULL;
    }
    return next_value(self);
}

static PyObject *async_next(PyObject *self)
{
    SELF;
    if (s->run->blocking) {
        PyErr_SetString(PyExc_TypeError, "a stream of a blocking runtime is gone through with `for`");
        return NULL;
    }
    return next_value(self);
}

static PyObject *iterate(PyObject *self)
{
    return Py_NewRef(self);
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static int takes(stream_t *s)
{
    if (s->method->sends)
        return 0;
    weftpy_raise_text(s->st, WEFT_ERR_STATE, "%U takes no stream", s->method->text);
    return -1;
}

static PyObject *send(PyObject *self, PyObject *object)
{
    SELF;
    weft_value_t value;
    weftpy_where_t where = {s->method->fn, "the value", NULL, 0};
    item_t *item = takes(s) || check(s) ? NULL : item_new(s);
    if (!item)
        return NULL;
    if (weftpy_value_get(s->st, &where, s->method->sends, object, &item->holds, &value)) {
        Py_DECREF(item);
        return NULL;
    }
    weftpy_op_t *op = begin(s, &gives_sent, item);
    return op ? posted(s, op, weft_stream_send(s->s, &value, &op->op)) : NULL;
}

static PyObject *end(PyObject *self, PyObject *unused)
{
    SELF;
    item_t *item = takes(s) || check(s) ? NULL : item_new(s);
    weftpy_op_t *op = item ? begin(s, &gives_sent, item) : NULL;
    return op ? posted(s, op, weft_stream_end(s->s, &op->op)) : NULL;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static PyObject *result(PyObject *self, PyObject *unused)
{
    SELF;
    weftpy_op_t *op = s->op;
    if (!s->run->blocking)
        return Py_NewRef((PyObject *)op);
    if (weftpy_wait_check(s->st))
        return NULL;
    Py_INCREF((PyObject *)op);
    int interrupted = weftpy_wait(s->run, &op->op);
    op->state = OP_DONE;
    op->asked = 1;
    PyObject *value = interrupted ? NULL : weftpy_op_value(s->run, &op->op, op->gives, op->made);
    Py_DECREF(op);
    return value;
}

/* In an event loop: an object to await that returns `value` (stolen). In a blocking runtime: `value` itself. */
static PyObject *at_once(stream_t *s, PyObject *value)
{
    if (s->run->blocking)
        return value;
    weftpy_op_t *op = weftpy_op_new(s->run, &weftpy_gives_none);
    if (!op) {
        Py_DECREF(value);
        return NULL;
    }
    return weftpy_op_complete(op, value);
}

static PyObject *close_it(PyObject *self, PyObject *unused)
{
    release((stream_t *)self);
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *self, PyObject *unused)
{
    return at_once((stream_t *)self, Py_NewRef(self));
}

static PyObject *exit_it(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    release((stream_t *)self);
    return at_once((stream_t *)self, Py_NewRef(Py_None));
}

static PyObject *await_it(PyObject *self)
{
    SELF;
    if (s->run->blocking) {
        PyErr_SetString(PyExc_TypeError, "a stream of a blocking runtime has nothing to await");
        return NULL;
    }
    return at_once(s, Py_NewRef(self)); /* an Op is its own iterator */
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!s->s || !s->run->rt);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    return PyUnicode_FromFormat("<weft.Stream %U of %U%s>", s->method->text, s->method->link->uri,
                                s->s && s->run->rt ? "" : ", closed");
}

static PyMethodDef methods[] = {
    {"send", send, METH_O, DOC("send($self, value, /)", "Send a value; it waits while the other side has as much as it wants.")},
    {"end", end, METH_NOARGS, DOC("end($self)", "No more values from this side.")},
    {"result", result, METH_NOARGS, DOC("result($self)", "What the call came to: its result, or its failure.")},
    {"close", close_it, METH_NOARGS,
     DOC("close($self)", "Done with it: a call that is under way is cancelled, and the function hears of it.")},
    {"__aenter__", enter, METH_NOARGS, NULL},
    {"__aexit__", WITHOUT_NAMES(exit_it), NULL},
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", WITHOUT_NAMES(exit_it), NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"method", T_OBJECT, offsetof(stream_t, method), READONLY, "The function it is a call of."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A call with a stream of values: go through it, or send to it; close it, or forget it, to cancel the call."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_iter, iterate},
    {Py_tp_iternext, next},
    {Py_am_await, await_it},
    {Py_am_aiter, iterate},
    {Py_am_anext, async_next},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_stream_spec = WEFTPY_SPEC("Stream", stream_t, WEFTPY_NOT_CALLED, slots);

static PyType_Slot item_slots[] = {
    {Py_tp_doc, "A value of a stream, or what a view of it is a view of."},
    {Py_tp_dealloc, item_dealloc},
    {0, NULL},
};

PyType_Spec weftpy_item_spec = WEFTPY_SPEC("_Item", item_t, WEFTPY_NOT_CALLED, item_slots);
