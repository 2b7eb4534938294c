/* _core/message.c - Message: an active message that arrived, and the functions that receive them.
 *
 * A message of the library is kept for as long as the object lives, or until it is released; its header is copied at once, its
 * payload is here, or waits at the sender until read() or read_into() fetch it, or view_device() gives it to a DeviceView. A
 * function for an id is called by the loop, in a turn, in the order of arrival.
 *
 * Promise: closing the runtime releases what messages hold, whoever still has one. tests/python/test_am.py holds us to it. */
#include "core.h"

/* Take the library's message out of the object, which has one. */
static weft_am_t *take(weftpy_message_t *m)
{
    weft_am_t *am = m->am;
    *m->before = m->next;
    if (m->next)
        m->next->before = m->before;
    m->am = NULL;
    return am;
}

static void release(weftpy_message_t *m)
{
    if (m->am)
        weft_am_release(take(m));
}

void weftpy_messages_release(weftpy_runtime_t *run)
{
    while (run->messages)
        release(run->messages);
}

/* Release a message that has no object. A kept message is valid also after the runtime was closed. In a forked child it belongs
 * to the parent. */
void weftpy_message_let_go(weftpy_runtime_t *run, weft_am_t *am)
{
    if (!weftpy_runtime_forked(run))
        weft_am_release(am);
}

/* Owns am; NULL: no memory, or the runtime is closed, and it is released. */
static PyObject *message_new(weftpy_runtime_t *run, weft_am_t *am)
{
    weftpy_message_t *m = (weftpy_message_t *)PyType_GenericAlloc(run->st->message, 0);
    if (m && weftpy_runtime_check(run)) { /* the collector may have closed the runtime: nobody would release it later */
        weftpy_message_let_go(run, am);
        Py_DECREF((PyObject *)m);
        return NULL;
    }
    if (m)
        m->header = PyBytes_FromStringAndSize(am->header, am->header_len);
    if (!m || !m->header) {
        weftpy_message_let_go(run, am);
        Py_XDECREF((PyObject *)m);
        return NULL;
    }
    m->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    m->am = am;
    m->from = am->from;
    m->len = am->len;
    m->id = am->id;
    m->wants_reply = am->reply != NULL;
    m->next = run->messages;
    m->before = &run->messages;
    if (m->next)
        m->next->before = &m->next;
    run->messages = m;
    return (PyObject *)m;
}

static PyObject *value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weft_am_t *am = (weft_am_t *)op->buf;
    op->buf = NULL;
    if (!weftpy_runtime_check(run))
        return message_new(run, am);
    weftpy_message_let_go(run, am);
    return NULL;
}

static void drop(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_message_let_go(run, (weft_am_t *)op->buf);
}

const weftpy_gives_t weftpy_gives_message = {.value = value, .drop = drop};

/* A cycle is possible: a handler may hold the message, the message the runtime, and the runtime the handler. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((weftpy_message_t *)self)->run);
    return 0;
}

static void dealloc(PyObject *self)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    PyObject_GC_UnTrack(self);
    release(m);
    Py_CLEAR(m->header);
    Py_CLEAR(m->run);
    weftpy_free(self);
}

static int check(weftpy_message_t *m)
{
    if (m->am && m->run->rt)
        return 0;
    weftpy_raise_text(m->run->st, WEFT_ERR_STATE,
                      m->viewed ? "the message was viewed: its payload is in the DeviceView" : "the message was released");
    return -1;
}

weft_am_t *weftpy_message_take(weftpy_message_t *m)
{
    if (check(m))
        return NULL;
    m->viewed = true;
    return take(m);
}

/* --- the payload --------------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_read = {"read", 1, 0, 0, {N_timeout}};
static const weftpy_sig_t sig_read_into = {"read_into", 3, 1, 1, {N_buffer, N_timeout, N_stream}};

static PyObject *pull(weftpy_message_t *m, PyObject *into, uint64_t timeout, PyObject *stream)
{
    weftpy_state_t *st = m->run->st;
    PyObject *bytes = NULL;
    if (check(m))
        return NULL;
    if (!into && m->len > (uint64_t)PY_SSIZE_T_MAX) /* the length comes from the sender */
        return PyErr_NoMemory();
    if (!into && !(bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)m->len)))
        return NULL;
    weftpy_op_t *op =
        weftpy_loop_before_post(m->run) ? NULL : weftpy_op_new(m->run, into ? &weftpy_gives_len : &weftpy_gives_made);
    if (!op || (into && (weftpy_order_begin(st, &op->order, stream) ||
                         weftpy_buf_get_ordered(st, into, true, &op->buf, &op->order, &op->op)))) {
        Py_XDECREF(bytes);
        Py_XDECREF((PyObject *)op);
        return NULL;
    }
    op->made = bytes;
    op->held = Py_NewRef((PyObject *)m);
    op->op.timeout_ns = timeout;
    if (check(m)) { /* check again: getting the buffer can run any code */
        Py_DECREF(op);
        return NULL;
    }
    return weftpy_op_posted(op, weft_am_pull(m->am, into ? op->buf.view.buf : PyBytes_AsString(bytes),
                                             into ? (size_t)op->buf.view.len : m->len, &op->op));
}

static PyObject *read_it(FAST_ARGS)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(m->run->st, &sig_read, args, n, kwnames, &timeout))
        return NULL;
    return pull(m, NULL, timeout, NULL);
}

static PyObject *read_into(FAST_ARGS)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    PyObject *arg[3];
    uint64_t timeout = 0;
    if (weftpy_args(m->run->st, &sig_read_into, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    return pull(m, arg[0], timeout, arg[2]);
}

static const weftpy_sig_t sig_view = {"view_device", 1, 0, 0, {N_timeout}};

static PyObject *view_device(FAST_ARGS)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(m->run->st, &sig_view, args, n, kwnames, &timeout) || check(m))
        return NULL;
    weftpy_op_t *op = weftpy_loop_before_post(m->run) ? NULL : weftpy_op_new(m->run, &weftpy_gives_view);
    if (!op)
        return NULL;
    op->made = Py_NewRef(self);
    op->op.timeout_ns = timeout;
    if (check(m)) { /* check again: the loop can run any code */
        Py_DECREF(op);
        return NULL;
    }
    return weftpy_op_posted(op, weft_am_view_device(m->am, &op->op));
}

static const weftpy_sig_t sig_reject = {"reject", 1, 1, 1, {N_reason}};

static PyObject *reject(FAST_ARGS)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    PyObject *arg[1];
    uint64_t reason = 0;
    if (weftpy_args(m->run->st, &sig_reject, args, n, kwnames, arg) || weftpy_u64(arg[0], "reason", UINT32_MAX, &reason) ||
        check(m))
        return NULL;
    if ((!m->run->blocking && weftpy_loop_before_post(m->run)) || check(m))
        return NULL;
    weft_status_t status = weft_am_reject(m->am, (uint32_t)reason);
    if (status)
        return weftpy_raise(m->run->st, status);
    Py_RETURN_NONE;
}

static PyObject *release_it(PyObject *self, PyObject *unused)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    if (m->am && m->run->rt && !m->run->blocking && weftpy_loop_before_post(m->run))
        return NULL;
    release(m);
    Py_RETURN_NONE;
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *get_endpoint(PyObject *self, void *unused)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    weftpy_endpoint_t *ep = weftpy_endpoint_find(m->run, m->from);
    return ep ? (PyObject *)ep : Py_NewRef(Py_None);
}

/* The payload if it is here: None where it waits at the sender. */
static PyObject *get_data(PyObject *self, void *unused)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    if (!m->len)
        return PyBytes_FromStringAndSize(NULL, 0);
    if (check(m))
        return NULL;
    if (!m->am->data)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(m->am->data, (Py_ssize_t)m->len);
}

static PyObject *repr(PyObject *self)
{
    weftpy_message_t *m = (weftpy_message_t *)self;
    PyObject *endpoint = get_endpoint(self, NULL), *peer = weftpy_endpoint_peer(endpoint, "from"), *text = NULL;
    if (peer)
        text = PyUnicode_FromFormat("<weft.Message id %lu, %llu bytes%U%s>", (unsigned long)m->id, (unsigned long long)m->len,
                                    peer, m->am ? "" : ", released");
    Py_DECREF(endpoint);
    Py_XDECREF(peer);
    return text;
}

static PyMethodDef methods[] = {
    {"read", FAST(read_it),
     DOC("read($self, *, timeout=None)", "The payload as bytes, fetched from the sender if need be. Once.")},
    {"read_into", FAST(read_into),
     DOC("read_into($self, buffer, *, timeout=None, stream=None)", "The payload into a buffer. Gives its length. Once.")},
    {"view_device", FAST(view_device),
     DOC("view_device($self, *, timeout=None)",
         "The payload where it is, in GPU memory of a process on this host, as a DeviceView: nothing is copied.")},
    {"reject", FAST(reject), DOC("reject($self, reason)", "Refuse it; a sender that waits gets RejectedError with the reason.")},
    {"release", release_it, METH_NOARGS, DOC("release($self)", "Done with it: the sender's window gets its room back.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"data", get_data, NULL, "Its payload as bytes if that is here already; None if it waits at the sender: read() fetches it.",
     NULL},
    {"endpoint", get_endpoint, NULL, "The endpoint it came over, if that is still open.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"id", T_UINT, offsetof(weftpy_message_t, id), READONLY, "Its id."},
    {"header", T_OBJECT, offsetof(weftpy_message_t, header), READONLY, "Its header, as bytes."},
    {"nbytes", T_ULONGLONG, offsetof(weftpy_message_t, len), READONLY, "The length of its payload."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "An active message that arrived." WEFTPY_STREAM_DOC},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_message_spec = WEFTPY_SPEC("Message", weftpy_message_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);

/* --- functions for ids --------------------------------------------------------------------------------------------------- */

/* In progress, with the GIL. */
static void arrived(weft_am_t *am, void *user)
{
    weftpy_runtime_t *run = user;
    PyObject *key = PyLong_FromUnsignedLong(am->id);
    PyObject *handler =
        key ? Py_XNewRef(PyDict_GetItemWithError(run->handlers, key)) : NULL; /* making a message can run any code */
    weft_am_t *kept = handler ? weft_am_keep(am) : NULL;
    PyObject *m = kept ? message_new(run, kept) : NULL;
    if (handler && !kept)
        PyErr_NoMemory();
    if ((handler && !m) || (m && weftpy_loop_call(run, handler, m)))
        PyErr_WriteUnraisable(handler);
    Py_XDECREF(handler);
    Py_XDECREF(m);
    Py_XDECREF(key);
}

static const weftpy_sig_t sig_handle = {"am_handle", 2, 2, 2, {N_id, N_handler}};

PyObject *weftpy_am_handle(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[2];
    uint64_t id = 0;
    if (weftpy_args(run->st, &sig_handle, args, n, kwnames, arg) || weftpy_u64(arg[0], "id", WEFT_AM_RESERVED - 1, &id))
        return NULL;
    if (run->blocking)
        return weftpy_raise_text(run->st, WEFT_ERR_STATE,
                                 "a blocking runtime has no loop that could call a handler: use am_recv()");
    if (arg[1] != Py_None && !PyCallable_Check(arg[1])) {
        PyErr_SetString(PyExc_TypeError, "handler is a function of a message, or None");
        return NULL;
    }
    if (weftpy_loop_before_post(run))
        return NULL;
    PyObject *key = PyLong_FromUnsignedLongLong(id);
    if (!key)
        return NULL;
    /* before the call, because the call already passes waiting messages to it */
    bool set = arg[1] != Py_None;
    if (set && PyDict_Contains(run->handlers, key) == 0 && PyDict_SetItem(run->handlers, key, arg[1])) {
        Py_DECREF(key);
        return NULL;
    }
    weft_status_t status = weft_am_handle(run->rt, (uint32_t)id, set ? arrived : NULL, run, NULL);
    if (!set || (status && status != WEFT_ERR_STATE)) {
        if (PyDict_DelItem(run->handlers, key))
            PyErr_Clear(); /* there was none */
    }
    Py_DECREF(key);
    if (status)
        return weftpy_raise(run->st, status);
    Py_RETURN_NONE;
}
