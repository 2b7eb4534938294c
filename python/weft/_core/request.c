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

#define SELF weftpy_request_t *r = (weftpy_request_t *)self

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
    r->shard = a->request->shard;
    r->sig = service->sigs[a->index];
    r->once = a->request->once;
    a->object = r;
    return (PyObject *)r;
}

/* Give the request back to the library. */
void weftpy_request_let_go(weftpy_request_t *r)
{
    weftpy_arrival_t *a = r->a;
    if (!a)
        return;
    bool there = r->run->rt != NULL;
    r->a = NULL; /* do it first: take_cancelled() must not find it */
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
        weftpy_request_let_go(r);
    free(r->peer);
    Py_CLEAR(r->on_cancel);
    Py_CLEAR(r->memory);
    Py_CLEAR(r->service);
    Py_CLEAR(r->run);
    weftpy_free(self);
}

/* The library still has the request. */
int weftpy_request_check(weftpy_request_t *r)
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
    if (v->type == (WEFT_T_VECTOR | WEFT_T_TENSOR))
        at = NULL; /* a list of tensors is always copied: its tensors may be in different places */
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
        r->a->memory = NULL; /* the capsule owns it now */
    }
    /* the views are of the library's memory: no code may run here that could release it */
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
    if (weftpy_u64(mask, "mask", UINT64_MAX, &lists) || weftpy_request_check(r))
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
    if (weftpy_request_check(r))
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
        weftpy_ns(arg[2], "timeout", &timeout) || weftpy_request_check(r))
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
    /* arrays made from the arguments must hold the owner of the buffer */
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
    if (weftpy_request_check(r)) {
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
    weftpy_request_let_go(r);
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
    if ((!r->a || !r->run->rt) && (!value || value == Py_None)) { /* nobody will call it any more */
        Py_CLEAR(r->on_cancel);
        return 0;
    }
    if (weftpy_request_check(r))
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
    {"reply", weftpy_request_reply, METH_O,
     DOC("reply($self, returned, /)", "Answer with what the function returned. False: nobody waits for it any more.")},
    {"fail", FAST(weftpy_request_fail),
     DOC("fail($self, code, message, category=0, value=0)", "Answer with a failure. False: nobody waits for it any more.")},
    {"send", FAST(weftpy_request_send),
     DOC("send($self, value, *, timeout=None)", "The next value of the stream to the caller.")},
    {"recv", FAST(weftpy_request_recv),
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
    {"signature", get_signature, NULL, "Of its function.", NULL},
    {"peer", get_peer, NULL, "Who called, as a dict; None if nobody asked for it in time.", NULL},
    {"endpoint", get_endpoint, NULL, "The endpoint it came over, if that is one of Python's.", NULL},
    {"answered", get_answered, NULL, "True once it was answered, or let go of.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"once", T_BOOL, offsetof(weftpy_request_t, once), READONLY, "Was it called with `once`?"},
    {"service", T_OBJECT, offsetof(weftpy_request_t, service), READONLY, "The service."},
    {"index", T_UINT, offsetof(weftpy_request_t, index), READONLY, "Of its function in the service."},
    {"shard", T_UINT, offsetof(weftpy_request_t, shard), READONLY, "Which shard of the runtime it came to."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A call that somebody made."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_request_spec = WEFTPY_SPEC("Request", weftpy_request_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
