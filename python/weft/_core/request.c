/* _core/request.c - Request: a call that somebody made.
 *
 *     new -> answered, by reply() or fail()
 *     new -> cancelled, by the library (by its caller, late, the caller lost, the service closed) -> let go of
 *
 * With the answer the library gets the request back, whoever still has the object; so it does when the object goes. Operations on
 * its stream and large answers go on after that: the library sees to it.
 *
 * Arguments are made to objects of Python once. What was fetched is memory of ours (inbox.c), and is not copied: arrays made of
 * it keep it alive, whatever becomes of request and runtime. What came with the request itself is small, and is copied.
 *
 * Promise: a request is answered at most once, and one that is let go of unanswered is answered INTERNAL by the library.
 * tests/python/test_service.py holds us to it. */
#include "serve.h"
#include "values.h"

#include <stdlib.h>
#include <string.h>

struct weftpy_request {
    PyObject_HEAD weftpy_runtime_t *run;
    weftpy_service_t *service;
    weftpy_arrival_t *a; /* NULL: answered, or let go of */
    PyObject *on_cancel;
    PyObject *memory;      /* owner of what was fetched; NULL: still the arrival's, or there is none */
    const char *from, *to; /* and where it lies */
    weftpy_peer_t *peer;
    const weft_sig_t *sig; /* the service's */
    uint64_t deadline;
    uint32_t index;
    bool answered, cancelled, once;
    bool fetched; /* into a buffer of the function's */
};

#define SELF weftpy_request_t *r = (weftpy_request_t *)self

/* What is answered with so many bytes is sent from where it is. */
enum { LARGE = 32768 };

/* --- life ---------------------------------------------------------------------------------------------------------------- */

PyObject *weftpy_request_new(weftpy_service_t *service, weftpy_arrival_t *a)
{
    weftpy_request_t *r = service->st->request ? (weftpy_request_t *)PyType_GenericAlloc(service->st->request, 0) : NULL;
    if (!r) {
        weft_request_fail(a->request, WEFT_CODE_RESOURCE_EXHAUSTED, "there is no memory for the request");
        weftpy_arrival_free(a);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    r->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)service->run);
    r->service = (weftpy_service_t *)Py_NewRef((PyObject *)service);
    r->a = a;
    r->peer = a->peer;
    a->peer = NULL;
    r->deadline = a->deadline;
    r->index = a->index;
    r->sig = service->sigs[a->index];
    r->once = a->request->once;
    a->object = r;
    return (PyObject *)r;
}

/* The library gets it back. */
static void let_go(weftpy_request_t *r)
{
    weftpy_arrival_t *a = r->a;
    if (!a)
        return;
    bool there = r->run->rt != NULL;
    r->a = NULL; /* first: whoever takes those that were cancelled must not find it any more */
    if (r->run->blocking)
        weftpy_inbox_unwatch(a);
    else if (there && r->on_cancel)
        weft_request_on_cancel(a->request, NULL, NULL);
    a->object = NULL;
    r->cancelled = !there || weft_request_cancelled(a->request);
    weftpy_arrival_free(a);
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    SELF;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(r->run);
    Py_VISIT(r->service);
    Py_VISIT(r->on_cancel);
    return 0;
}

static int clear(PyObject *self)
{
    SELF;
    Py_CLEAR(r->on_cancel);
    return 0;
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (r->run)
        let_go(r);
    free(r->peer);
    Py_CLEAR(r->on_cancel);
    Py_CLEAR(r->memory);
    Py_CLEAR(r->service);
    Py_CLEAR(r->run);
    weftpy_free(self);
}

/* The library still has it. */
static int check(weftpy_request_t *r)
{
    if (r->run->blocking ? weftpy_runtime_check(r->run) : weftpy_loop_before_post(r->run))
        return -1;
    if (r->a)
        return 0;
    weftpy_raise_text(r->run->st, WEFT_ERR_STATE, "the request was answered before");
    return -1;
}

/* --- arguments ----------------------------------------------------------------------------------------------------------- */

static void free_memory(PyObject *capsule)
{
    free(PyCapsule_GetPointer(capsule, NULL));
}

/* Whose memory a value views: NULL if it has to be copied. */
static PyObject *owner_of(weftpy_request_t *r, const weft_value_t *v)
{
    const void *at = v->type == WEFT_T_TENSOR ? v->tensors.at->data : v->type & WEFT_T_VECTOR ? v->view.data : NULL;
    if (v->type ==
        (WEFT_T_VECTOR | WEFT_T_TENSOR)) /* all of them are where the first is, or large ones would be with small ones */
        at = NULL;
    return (const char *)at >= r->from && (const char *)at < r->to ? r->memory : NULL;
}

static PyObject *make_args(weftpy_request_t *r, uint64_t lists)
{
    const weft_request_t *request = r->a->request;
    if (r->a->memory && !r->memory) {
        if (!(r->memory = PyCapsule_New(r->a->memory, NULL, free_memory)))
            return NULL;
        r->from = r->a->memory;
        r->to = r->from + r->a->memory_len;
        r->a->memory = NULL; /* the capsule's */
    }
    /* what is viewed is the library's: nothing may run meanwhile that could let go of it */
    int collects = PyGC_Disable();
    PyObject *tuple = PyTuple_New((Py_ssize_t)request->n);
    for (size_t i = 0; tuple && i < request->n; i++) {
        unsigned flags = WEFTPY_WRITABLE | (lists >> i & 1 ? WEFTPY_LISTS : 0);
        PyObject *value = weftpy_value_make(r->run->st, &request->args[i], owner_of(r, &request->args[i]), flags);
        if (!value || PyTuple_SetItem(tuple, (Py_ssize_t)i, value))
            Py_CLEAR(tuple);
    }
    if (collects)
        PyGC_Enable();
    return tuple;
}

/* Bytes of arguments that are not here. */
static uint64_t missing(const weftpy_request_t *r)
{
    bool ours = r->a && (r->a->memory || (r->memory && r->a->memory_len));
    return !r->a || !r->run->rt || ours || r->fetched ? 0 : r->a->request->fetch_len;
}

static PyObject *args_method(PyObject *self, PyObject *mask)
{
    SELF;
    uint64_t lists = 0;
    if (weftpy_u64(mask, "mask", UINT64_MAX, &lists) || check(r))
        return NULL;
    if (missing(r))
        return weftpy_raise_text(r->run->st, WEFT_ERR_STATE,
                                 "%llu bytes of the arguments are still at the caller: fetch() them first",
                                 (unsigned long long)missing(r));
    return make_args(r, lists);
}

/* made: (request, memoryview, mask) */
static PyObject *fetched_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_request_t *r = (weftpy_request_t *)PyTuple_GetItem(made, 0);
    if (check(r))
        return NULL;
    r->fetched = true;
    return make_args(r, PyLong_AsUnsignedLongLong(PyTuple_GetItem(made, 2)));
}

static const weftpy_gives_t gives_fetched = {.value = fetched_value};
static const weftpy_sig_t sig_fetch = {"fetch", 3, 1, 2, {N_buffer, N_mask, N_timeout}};

static PyObject *fetch(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = r->run->st;
    PyObject *arg[3];
    uint64_t lists = 0, timeout = 0;
    if (weftpy_args(st, &sig_fetch, args, n, kwnames, arg) || weftpy_u64(arg[1], "mask", UINT64_MAX, &lists) ||
        weftpy_ns(arg[2], "timeout", &timeout) || check(r))
        return NULL;
    if (r->memory || !missing(r))
        return weftpy_raise_text(st, WEFT_ERR_STATE, "all arguments are here already");
    weftpy_op_t *op = weftpy_op_new(r->run, &gives_fetched);
    if (!op)
        return NULL;
    PyObject *number = PyLong_FromUnsignedLongLong(lists);
    if (number && !weftpy_buf_get(st, arg[0], true, &op->buf))
        op->made = PyTuple_Pack(3, self, arg[0], number);
    Py_XDECREF(number);
    if (!op->made) {
        Py_DECREF(op);
        return NULL;
    }
    /* arrays made of the arguments hold what the buffer is of */
    const weftpy_buf_t *buf = &op->buf;
    r->memory = PyObject_CheckBuffer(arg[0]) ? PyMemoryView_FromObject(arg[0]) : Py_NewRef(arg[0]);
    if (!r->memory) {
        Py_DECREF(op);
        return NULL;
    }
    r->from = buf->view.buf;
    r->to = r->from + buf->view.len;
    op->held = Py_NewRef(self);
    op->op.timeout_ns = timeout;
    if (check(r)) {
        Py_CLEAR(r->memory);
        r->from = r->to = NULL;
        Py_DECREF(op);
        return NULL;
    }
    weft_status_t status = weft_request_fetch(r->a->request, buf->view.buf, (size_t)buf->view.len, buf->kind, &op->op);
    if (status) {
        Py_CLEAR(r->memory);
        r->from = r->to = NULL;
    }
    return weftpy_op_posted(op, status);
}

/* --- answers ------------------------------------------------------------------------------------------------------------- */

static void free_holds(PyObject *capsule)
{
    weftpy_holds_t *holds = PyCapsule_GetPointer(capsule, NULL);
    weftpy_holds_release(holds);
    PyMem_Free(holds);
}

/* What is held, as an object. Steals the holds, also where it fails. */
static PyObject *held(weftpy_holds_t *holds)
{
    if (!holds->first)
        return Py_NewRef(Py_None);
    weftpy_holds_t *moved = PyMem_Malloc(sizeof *moved);
    PyObject *capsule = moved ? PyCapsule_New(moved, NULL, free_holds) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(moved);
        weftpy_holds_release(holds);
        return NULL;
    }
    *moved = *holds;
    return capsule;
}

static uint64_t bytes_of(const weft_value_t *values, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t type = values[i].type;
        if (type == WEFT_T_STRING)
            sum += values[i].view.n;
        else if (type == WEFT_T_TENSOR || type == (WEFT_T_VECTOR | WEFT_T_TENSOR))
            for (uint64_t t = 0; t < values[i].tensors.n; t++) {
                uint64_t bytes = 0;
                if (!weft_tensor_bytes(&values[i].tensors.at[t], &bytes))
                    sum += bytes;
            }
        else if (type & WEFT_T_VECTOR)
            sum += values[i].view.n * weft_type_size(type & ~(uint32_t)WEFT_T_VECTOR);
    }
    return sum;
}

/* Nobody waits for it any more: that is no failure of who answers. */
static PyObject *answered(weftpy_request_t *r, weft_status_t status)
{
    r->answered = !status;
    if (!status || status == WEFT_ERR_CANCELLED) {
        let_go(r);
        return PyBool_FromLong(!status);
    }
    weftpy_raise(r->run->st, status);
    let_go(r); /* its caller was told */
    return NULL;
}

static PyObject *reply(PyObject *self, PyObject *returned)
{
    SELF;
    weftpy_state_t *st = r->run->st;
    weft_value_t values[WEFT_SIG_PARAMS];
    weftpy_holds_t holds = {0};
    size_t count = 0, results;
    const weft_param_t *result = weft_sig_results(r->sig, &results);
    if (results && result[0].stream) { /* they were sent */
        if (returned != Py_None)
            return weftpy_raise_text(st, WEFT_ERR_INVALID, "%s gives a stream, and returns nothing else", weft_sig_name(r->sig));
    } else if (weftpy_results_get(st, r->sig, returned, &holds, values, &count)) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (check(r)) { /* last: what was read can run anything */
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (!count || bytes_of(values, count) < LARGE) {
        weft_status_t status = weft_request_reply(r->a->request, values, count);
        weftpy_holds_release(&holds);
        return answered(r, status);
    }
    weftpy_op_t *op = weftpy_op_new(r->run, &weftpy_gives_none_ever);
    if (!op) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (!(op->held = held(&holds))) {
        Py_DECREF(op);
        return NULL;
    }
    if (check(r)) {
        Py_DECREF(op);
        return NULL;
    }
    weft_status_t status = weft_request_reply_from(r->a->request, values, count, &op->op);
    if (status) {
        Py_DECREF(op);
        return answered(r, status);
    }
    r->answered = true;
    let_go(r);
    PyObject *sent = weftpy_op_posted(op, WEFT_OK); /* in a blocking runtime it waits: the memory is the function's again */
    Py_XDECREF(sent);
    return sent ? Py_NewRef(Py_True) : NULL;
}

static const weftpy_sig_t sig_fail = {"fail", 4, 2, 4, {N_code, N_message, N_category, N_value}};

static PyObject *fail(FAST_ARGS)
{
    SELF;
    PyObject *arg[4];
    uint64_t code = 0, category = 0;
    long value = 0;
    if (weftpy_args(r->run->st, &sig_fail, args, n, kwnames, arg) ||
        weftpy_u64(arg[0], "code", WEFT_CODE_UNAUTHENTICATED, &code) || weftpy_u64(arg[2], "category", UINT32_MAX, &category) ||
        check(r))
        return NULL;
    if (arg[3] && arg[3] != Py_None) {
        value = PyLong_AsLong(arg[3]);
        if (value == -1 && PyErr_Occurred())
            return NULL;
        if (value < INT32_MIN || value > INT32_MAX) {
            PyErr_Format(PyExc_OverflowError, "value is %ld, which is no i32", value);
            return NULL;
        }
    }
    PyObject *text = PyUnicode_Check(arg[1]) ? PyUnicode_AsEncodedString(arg[1], "utf-8", "replace") : NULL;
    if (!text) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "the message is no text");
        return NULL;
    }
    if (check(r)) {
        Py_DECREF(text);
        return NULL;
    }
    weft_status_t status =
        weft_request_fail_with(r->a->request, (weft_code_t)code, (uint32_t)category, (int32_t)value, PyBytes_AsString(text));
    Py_DECREF(text);
    return answered(r, status);
}

/* --- streams ------------------------------------------------------------------------------------------------------------- */

/* What the peer sends, or we: the type of it, or 0 with an exception. */
static uint32_t stream_type(weftpy_request_t *r, bool ours)
{
    size_t n;
    const weft_param_t *list = ours ? weft_sig_results(r->sig, &n) : weft_sig_params(r->sig, &n);
    if (n && list[n - 1].stream)
        return list[n - 1].type;
    weftpy_raise_text(r->run->st, WEFT_ERR_STATE, ours ? "%s has no stream to send" : "%s has no stream to receive",
                      weft_sig_text(r->sig));
    return 0;
}

static const weftpy_sig_t sig_send = {"send", 2, 1, 1, {N_value, N_timeout}};

static PyObject *send(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = r->run->st;
    PyObject *arg[2];
    uint64_t timeout = 0;
    weftpy_holds_t holds = {0};
    weft_value_t value;
    if (weftpy_args(st, &sig_send, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    weftpy_where_t where = {.fn = weft_sig_name(r->sig), .what = "the value"};
    uint32_t type = stream_type(r, true);
    if (!type)
        return NULL;
    if (weftpy_value_get(st, &where, type, arg[0], &holds, &value)) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    weftpy_op_t *op = weftpy_op_new(r->run, &weftpy_gives_none);
    if (!op) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (!(op->held = held(&holds))) {
        Py_DECREF(op);
        return NULL;
    }
    op->op.timeout_ns = timeout;
    if (check(r)) { /* last: what was read can run anything */
        Py_DECREF(op);
        return NULL;
    }
    return weftpy_op_posted(op, weft_stream_send(r->a->request->stream, &value, &op->op));
}

/* Whoever views the value has the capsule: it may go after the runtime. */
static void free_item(PyObject *capsule)
{
    weft_item_t *item = PyCapsule_GetPointer(capsule, NULL);
    weft_item_release(item);
    PyMem_Free(item);
}

static PyObject *item_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weft_item_t *item = PyCapsule_GetPointer(made, NULL);
    if (!op->len) {
        PyErr_SetNone(run->blocking ? PyExc_StopIteration : PyExc_StopAsyncIteration);
        return NULL;
    }
    return weftpy_value_make(run->st, &item->value, made, WEFTPY_WRITABLE | (PyCapsule_GetContext(made) ? WEFTPY_LISTS : 0));
}

static const weftpy_gives_t gives_item = {.value = item_value};
static const weftpy_sig_t sig_recv = {"recv", 2, 0, 1, {N_mask, N_timeout}};

static PyObject *recv(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = r->run->st;
    PyObject *arg[2];
    uint64_t timeout = 0, lists = 0;
    if (weftpy_args(st, &sig_recv, args, n, kwnames, arg) || weftpy_u64(arg[0], "mask", 1, &lists) ||
        weftpy_ns(arg[1], "timeout", &timeout) || !stream_type(r, false))
        return NULL;
    weft_item_t *item = PyMem_Calloc(1, sizeof *item);
    PyObject *capsule = item ? PyCapsule_New(item, NULL, free_item) : PyErr_NoMemory();
    weftpy_op_t *op = capsule ? weftpy_op_new(r->run, &gives_item) : NULL;
    if (!op) {
        if (!capsule)
            PyMem_Free(item);
        Py_XDECREF(capsule);
        return NULL;
    }
    PyCapsule_SetContext(capsule, lists ? st : NULL);
    op->made = capsule;
    op->held = Py_NewRef(self);
    op->op.timeout_ns = timeout;
    if (check(r)) {
        Py_DECREF(op);
        return NULL;
    }
    return weftpy_op_posted(op, weft_stream_recv(r->a->request->stream, item, &op->op));
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *cancelled(PyObject *self, PyObject *unused)
{
    SELF;
    if (r->a)
        return PyBool_FromLong(!r->run->rt || weft_request_cancelled(r->a->request));
    return PyBool_FromLong(r->cancelled);
}

static PyObject *release_it(PyObject *self, PyObject *unused)
{
    SELF;
    if (r->a && r->run->rt && !r->run->blocking && weftpy_loop_before_post(r->run))
        return NULL;
    let_go(r);
    Py_RETURN_NONE;
}

/* In progress, with the GIL: a runtime of a loop. */
static void told(weft_request_t *request, void *user)
{
    weftpy_request_t *r = user;
    if (r->on_cancel && weftpy_loop_call(r->run, r->on_cancel, (PyObject *)r))
        PyErr_WriteUnraisable((PyObject *)r);
}

static PyObject *get_on_cancel(PyObject *self, void *unused)
{
    SELF;
    return Py_NewRef(r->on_cancel ? r->on_cancel : Py_None);
}

static int set_on_cancel(PyObject *self, PyObject *value, void *unused)
{
    SELF;
    if (value && value != Py_None && !PyCallable_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "on_cancel is a function of the request, or None");
        return -1;
    }
    if ((!r->a || !r->run->rt) && (!value || value == Py_None)) { /* nobody will call it */
        Py_CLEAR(r->on_cancel);
        return 0;
    }
    if (check(r))
        return -1;
    PyObject *old = r->on_cancel;
    r->on_cancel = value && value != Py_None ? Py_NewRef(value) : NULL;
    if (r->run->blocking && r->on_cancel)
        weftpy_inbox_watch(r->a);
    else if (r->run->blocking)
        weftpy_inbox_unwatch(r->a);
    else
        weft_request_on_cancel(r->a->request, r->on_cancel ? told : NULL, r);
    Py_XDECREF(old);
    return 0;
}

static PyObject *get_left(PyObject *self, void *unused)
{
    SELF;
    if (r->deadline == UINT64_MAX)
        Py_RETURN_NONE;
    uint64_t now = weftpy_clock();
    return PyFloat_FromDouble(now < r->deadline ? (double)(r->deadline - now) / 1e9 : 0);
}

static PyObject *get_fetch_len(PyObject *self, void *unused)
{
    SELF;
    return PyLong_FromUnsignedLongLong(missing(r));
}

static PyObject *get_once(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(r->once);
}

static PyObject *get_signature(PyObject *self, void *unused)
{
    SELF;
    return PyUnicode_FromString(weft_sig_text(r->sig));
}

static PyObject *get_peer(PyObject *self, void *unused)
{
    SELF;
    const weftpy_peer_t *p = r->peer;
    if (!p)
        Py_RETURN_NONE;
    return Py_BuildValue("{s:s,s:s,s:s,s:N,s:N}", "name", p->name, "address", p->address, "transport", p->transport,
                         "authenticated", PyBool_FromLong(p->authenticated), "same_host", PyBool_FromLong(p->same_host));
}

static PyObject *get_endpoint(PyObject *self, void *unused)
{
    SELF;
    weftpy_endpoint_t *ep = r->run->rt && r->a ? weftpy_endpoint_find(r->run, r->a->request->from) : NULL;
    return ep ? (PyObject *)ep : Py_NewRef(Py_None);
}

static PyObject *get_answered(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!r->a);
}

static PyObject *get_service(PyObject *self, void *unused)
{
    SELF;
    return Py_NewRef((PyObject *)r->service);
}

static PyObject *get_index(PyObject *self, void *unused)
{
    SELF;
    return PyLong_FromUnsignedLong(r->index);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    if (!r->run->rt || !r->a)
        return PyUnicode_FromFormat("<weft.Request %s>", r->answered ? "answered" : "let go of");
    return PyUnicode_FromFormat("<weft.Request %s>", weft_sig_name(r->sig));
}

static PyMethodDef methods[] = {
    {"args", args_method, METH_O,
     DOC("args($self, mask, /)", "The arguments, as a tuple; vectors whose bit is set in mask as lists.")},
    {"fetch", FAST(fetch),
     DOC("fetch($self, buffer, mask=0, *, timeout=None)", "Bring large arguments into a buffer. Gives the arguments.")},
    {"reply", reply, METH_O,
     DOC("reply($self, returned, /)", "Answer with what the function returned. False: nobody waits for it any more.")},
    {"fail", FAST(fail),
     DOC("fail($self, code, message, category=0, value=0)", "Answer with a failure. False: nobody waits for it any more.")},
    {"send", FAST(send), DOC("send($self, value, *, timeout=None)", "The next value of the stream to the caller.")},
    {"recv", FAST(recv),
     DOC("recv($self, mask=0, *, timeout=None)", "The next value of the caller's stream; StopAsyncIteration at its end.")},
    {"cancelled", cancelled, METH_NOARGS, DOC("cancelled($self)", "Does nobody wait for it any more?")},
    {"release", release_it, METH_NOARGS, DOC("release($self)", "Done with it. One that was not answered is answered INTERNAL.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"on_cancel", get_on_cancel, set_on_cancel, "A function that is called once with the request when nobody waits any more.",
     NULL},
    {"left", get_left, NULL, "Seconds until its deadline, or None.", NULL},
    {"fetch_len", get_fetch_len, NULL, "Bytes of arguments that are still at the caller.", NULL},
    {"once", get_once, NULL, "Was it called with `once`?", NULL},
    {"signature", get_signature, NULL, "Of its function.", NULL},
    {"peer", get_peer, NULL, "Who called, as a dict; None if nobody asked for it in time.", NULL},
    {"endpoint", get_endpoint, NULL, "The endpoint it came over, if that is one of Python's.", NULL},
    {"answered", get_answered, NULL, "True once it was answered, or let go of.", NULL},
    {"service", get_service, NULL, "The service.", NULL},
    {"index", get_index, NULL, "Of its function in the service.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A call that somebody made."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

PyType_Spec weftpy_request_spec = WEFTPY_SPEC("Request", weftpy_request_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
