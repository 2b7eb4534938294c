/* _core/endpoint.c - Endpoint: one connection, its messages and active messages, as operations to await.
 *
 * The object owns the endpoint of the library until close() or abort() took it, or the object goes: then the endpoint is closed
 * as if by close(), in the background. Every operation holds the object until it is complete.
 *
 * tests/python/test_messages.py and test_am.py hold us to it. */
#include "core.h"

#define SELF weftpy_endpoint_t *ep = (weftpy_endpoint_t *)self

/* --- life ---------------------------------------------------------------------------------------------------------------- */

int weftpy_endpoint_check(weftpy_endpoint_t *ep)
{
    if (__builtin_expect(ep->ep && ep->run->rt && !ep->run->closing, 1))
        return 0;
    weftpy_raise_text(ep->st, WEFT_ERR_CLOSED, ep->run->rt ? "the endpoint is closed" : "the runtime of the endpoint is closed");
    return -1;
}

static int remember(weftpy_endpoint_t *ep)
{
    PyObject *key = PyLong_FromUnsignedLongLong(ep->id), *ref = PyWeakref_NewRef((PyObject *)ep, NULL);
    int failed = !key || !ref || PyDict_SetItem(ep->run->endpoints, key, ref);
    Py_XDECREF(key);
    Py_XDECREF(ref);
    return failed ? -1 : 0;
}

static void forget(weftpy_endpoint_t *ep)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *key = PyLong_FromUnsignedLongLong(ep->id);
    if (key && ep->run->endpoints && PyDict_Contains(ep->run->endpoints, key) == 1)
        PyDict_DelItem(ep->run->endpoints, key);
    Py_XDECREF(key);
    PyErr_Restore(type, error, trace);
}

weftpy_endpoint_t *weftpy_endpoint_new(weftpy_runtime_t *run, weft_ep_t *ep)
{
    PyTypeObject *type = run->blocking ? run->st->blocking_endpoint : run->st->endpoint;
    weftpy_endpoint_t *made = (weftpy_endpoint_t *)PyType_GenericAlloc(type, 0);
    if (!made) {
        weft_ep_abort(ep, NULL);
        return NULL;
    }
    made->st = run->st;
    made->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    made->ep = ep;
    made->id = weft_ep_id(ep);
    if (remember(made)) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}

static PyObject *value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weft_ep_t *ep = (weft_ep_t *)op->buf;
    op->buf = NULL;
    return weftpy_runtime_check(run) ? NULL : (PyObject *)weftpy_endpoint_new(run, ep);
}

static void drop(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    if (run->rt)
        weft_ep_close((weft_ep_t *)op->buf, NULL);
}

const weftpy_gives_t weftpy_gives_endpoint = {.value = value, .drop = drop};

weftpy_endpoint_t *weftpy_endpoint_find_any(weftpy_runtime_t *run, weft_ep_id_t id)
{
    PyObject *key = PyLong_FromUnsignedLongLong(id);
    PyObject *ref = key && run->endpoints ? PyDict_GetItemWithError(run->endpoints, key) : NULL;
    PyObject *ep = ref ? PyWeakref_GetObject(ref) : NULL;
    Py_XDECREF(key);
    if (!ep)
        PyErr_Clear();
    return ep && ep != Py_None ? (weftpy_endpoint_t *)Py_NewRef(ep) : NULL;
}

weftpy_endpoint_t *weftpy_endpoint_find(weftpy_runtime_t *run, weft_ep_id_t id)
{
    weftpy_endpoint_t *ep = weftpy_endpoint_find_any(run, id);
    if (!ep || ep->ep)
        return ep;
    Py_DECREF(ep); /* closed on this side: do not show it as a sender */
    return NULL;
}

void weftpy_endpoint_closed(weft_ep_t *wep, weft_status_t why, void *user)
{
    weftpy_runtime_t *run = user;
    weftpy_endpoint_t *ep = weftpy_endpoint_find_any(run, weft_ep_id(wep));
    if (ep && ep->on_close) {
        PyObject *told = ep->on_close;
        ep->on_close = NULL;
        if (weftpy_loop_call_ever(run, told, (PyObject *)ep))
            PyErr_WriteUnraisable((PyObject *)ep);
        Py_DECREF(told);
    }
    Py_XDECREF((PyObject *)ep);
}

int weftpy_endpoint_traverse(PyObject *self, visitproc visit, void *arg)
{
    SELF;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(ep->run);
    Py_VISIT(ep->on_close);
    return 0;
}

int weftpy_endpoint_clear(PyObject *self)
{
    SELF;
    Py_CLEAR(ep->on_close);
    return 0;
}

void weftpy_endpoint_dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (ep->weakrefs)
        PyObject_ClearWeakRefs(self);
    if (ep->run) {
        forget(ep);
        if (ep->ep && ep->run->rt)
            weft_ep_close(ep->ep, NULL);
        if (!ep->run->blocking && ep->run->rt && !ep->run->scheduled && ep->run->thread == PyThread_get_thread_ident()) {
            PyObject *kind, *error, *trace;
            PyErr_Fetch(&kind, &error, &trace);
            if (weftpy_loop_schedule(ep->run))
                PyErr_Clear(); /* the loop is closed: the runtime will be, too */
            PyErr_Restore(kind, error, trace);
        }
    }
    ep->ep = NULL;
    Py_CLEAR(ep->on_close);
    Py_CLEAR(ep->run);
    weftpy_free(self);
}

/* --- messages ------------------------------------------------------------------------------------------------------------ */

/* An operation on this endpoint, or NULL with the exception. */
static weftpy_op_t *begin(weftpy_endpoint_t *ep, const weftpy_gives_t *gives)
{
    weftpy_op_t *op = weftpy_loop_before_post(ep->run) || weftpy_endpoint_check(ep) ? NULL : weftpy_op_new(ep->run, gives);
    if (op)
        op->held = Py_NewRef((PyObject *)ep);
    return op;
}

static PyObject *give_up(weftpy_op_t *op)
{
    Py_XDECREF((PyObject *)op);
    return NULL;
}

static const weftpy_sig_t sig_send = {"send", 4, 1, 2, {N_buffer, N_tag, N_timeout, N_stream}};

int weftpy_send_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_send_args_t *out)
{
    PyObject *arg[4];
    out->tag = out->timeout = 0;
    if (weftpy_args(ep->st, &sig_send, args, n, kwnames, arg) || weftpy_u64(arg[1], "tag", UINT64_MAX, &out->tag) ||
        weftpy_ns(arg[2], "timeout", &out->timeout) || weftpy_order_begin(ep->st, out->order, arg[3]))
        return -1;
    return weftpy_buf_get_ordered(ep->st, arg[0], false, out->buf, out->order, out->op);
}

static PyObject *send(FAST_ARGS)
{
    SELF;
    weftpy_op_t *op = begin(ep, &weftpy_gives_none);
    if (!op)
        return NULL;
    weftpy_send_args_t a = {.buf = &op->buf, .order = &op->order, .op = &op->op};
    if (weftpy_send_args(ep, args, n, kwnames, &a) || weftpy_endpoint_check(ep))
        return give_up(op);
    op->op.timeout_ns = a.timeout;
    op->op.fn = NULL;
    return weftpy_op_sent(op, weft_msg_send(ep->ep, a.buf->view.buf, (size_t)a.buf->view.len, a.tag, &op->op));
}

static PyObject *recv(FAST_ARGS)
{
    SELF;
    weftpy_op_t *op = begin(ep, &weftpy_gives_bytes);
    weftpy_recv_args_t a = {0};
    if (!op || weftpy_recv_args(ep, args, n, kwnames, &a) || weftpy_endpoint_check(ep))
        return give_up(op);
    if (!a.copy)
        op->gives = &weftpy_gives_owned;
    op->op.timeout_ns = a.timeout;
    return weftpy_op_posted(op, weft_msg_recv_alloc(ep->run->rt, ep->ep, a.max_len, a.tag, a.mask, &op->op));
}

static PyObject *recv_into(FAST_ARGS)
{
    SELF;
    weftpy_op_t *op = begin(ep, &weftpy_gives_len);
    if (!op)
        return NULL;
    weftpy_recv_args_t a = {.buf = &op->buf, .order = &op->order, .op = &op->op};
    if (weftpy_recv_into_args(ep, args, n, kwnames, &a) || weftpy_endpoint_check(ep))
        return give_up(op);
    op->op.timeout_ns = a.timeout;
    return weftpy_op_posted(op, weft_msg_recv(ep->ep, a.buf->view.buf, (size_t)a.buf->view.len, a.tag, a.mask, &op->op));
}

static const weftpy_sig_t sig_probe = {"probe", 2, 0, 2, {N_tag, N_mask}};

PyObject *weftpy_endpoint_probe(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    uint64_t tag = 0, mask = WEFT_TAG_FULL;
    weft_msg_envelope_t envelope;
    if (weftpy_args(ep->st, &sig_probe, args, n, kwnames, arg) || weftpy_u64(arg[0], "tag", UINT64_MAX, &tag) ||
        weftpy_u64(arg[1], "mask", UINT64_MAX, &mask) || weftpy_endpoint_check(ep))
        return NULL;
    if (!ep->run->blocking) {
        if (weftpy_loop_before_post(ep->run))
            return NULL;
        weftpy_progress(ep->run);
        if (weftpy_endpoint_check(ep))
            return NULL;
    }
    weft_status_t status = weft_msg_probe(ep->run->rt, ep->ep, tag, mask, &envelope);
    if (status == WEFT_ERR_NOTFOUND)
        Py_RETURN_NONE;
    if (status)
        return weftpy_raise(ep->st, status);
    return Py_BuildValue("(KK)", (unsigned long long)envelope.tag, (unsigned long long)envelope.len);
}

static PyObject *send_many(FAST_ARGS)
{
    return weftpy_many_send((weftpy_endpoint_t *)self, args, n, kwnames);
}

static PyObject *recv_many(FAST_ARGS)
{
    return weftpy_many_recv((weftpy_endpoint_t *)self, args, n, kwnames);
}

/* --- active messages ----------------------------------------------------------------------------------------------------- */

static PyObject *am_send(FAST_ARGS)
{
    SELF;
    weftpy_op_t *op = begin(ep, &weftpy_gives_none);
    if (!op)
        return NULL;
    weftpy_am_args_t a = {.buf = &op->buf, .order = &op->order, .op = &op->op};
    if (weftpy_am_args(ep, args, n, kwnames, &a))
        return give_up(op);
    if (a.header) {
        PyObject *both = PyTuple_Pack(2, op->held, a.header);
        Py_DECREF(a.header);
        if (!both)
            return give_up(op);
        Py_DECREF(op->held);
        op->held = both;
    }
    op->op.timeout_ns = a.timeout;
    if (weftpy_endpoint_check(ep))
        return give_up(op);
    return weftpy_op_posted(op, weft_am_send_with(ep->ep, &a.opts, &op->op));
}

static PyObject *am_recv(FAST_ARGS)
{
    SELF;
    uint32_t id;
    weftpy_op_t *op = begin(ep, &weftpy_gives_message);
    uint64_t timeout = 0;
    if (!op || weftpy_am_recv_args(ep, args, n, kwnames, &id, &timeout) || weftpy_endpoint_check(ep))
        return give_up(op);
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_am_take(ep->run->rt, ep->ep, id, &op->op));
}

/* --- closing ------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_close = {"close", 1, 0, 1, {N_timeout}};

static PyObject *close_it(weftpy_endpoint_t *ep, const weftpy_gives_t *gives, bool abort, uint64_t timeout)
{
    if (!ep->ep || !ep->run->rt) {
        weftpy_op_t *op = weftpy_op_new(ep->run, gives);
        return op ? weftpy_op_complete(op, gives == &weftpy_gives_len ? PyLong_FromLong(0) : Py_NewRef(Py_None)) : NULL;
    }
    weftpy_op_t *op = begin(ep, gives);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    weft_ep_t *wep = ep->ep;
    weft_status_t status = abort ? weft_ep_abort(wep, &op->op) : weft_ep_close(wep, &op->op);
    if (!status)
        ep->ep = NULL; /* on_close is still to be called */
    return weftpy_op_posted(op, status);
}

static PyObject *close_method(FAST_ARGS)
{
    SELF;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(ep->st, &sig_close, args, n, kwnames, &timeout))
        return NULL;
    return close_it(ep, &weftpy_gives_len, false, timeout);
}

static PyObject *abort_method(PyObject *self, PyObject *unused)
{
    return close_it((weftpy_endpoint_t *)self, &weftpy_gives_none_ever, true, 0);
}

static PyObject *aenter(PyObject *self, PyObject *unused)
{
    return weftpy_done(((weftpy_endpoint_t *)self)->run, Py_NewRef(self));
}

/* Do not raise failures of the close: they would hide the exception that ended the block. */
static PyObject *aexit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    return close_it((weftpy_endpoint_t *)self, &weftpy_gives_none_ever, false, 0);
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static const char *const state_names[] = {"closed",      "connecting",   "up",     "closing",
                                          "peer-closed", "reconnecting", "failed", "gone"};

static PyObject *get_state(PyObject *self, void *unused)
{
    SELF;
    weft_ep_state_t state = ep->ep && ep->run->rt ? weft_ep_get_state(ep->ep) : 0;
    return PyUnicode_FromString(state_names[state <= WEFT_EP_GONE ? state : 0]);
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    SELF;
    if (!ep->ep || !ep->run->rt)
        Py_RETURN_TRUE;
    weft_ep_state_t state = weft_ep_get_state(ep->ep);
    return PyBool_FromLong(state == WEFT_EP_CLOSING || state == WEFT_EP_PEER_CLOSED || state == WEFT_EP_FAILED ||
                           state == WEFT_EP_GONE);
}

static PyObject *get_info(PyObject *self, void *unused)
{
    SELF;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    if (weftpy_endpoint_check(ep))
        return NULL;
    weft_status_t status = weft_ep_get_info(ep->ep, &info);
    if (status)
        return weftpy_raise(ep->st, status);
    return Py_BuildValue("{s:K,s:s,s:N,s:N,s:s,s:s,s:N,s:N,s:N,s:K,s:K,s:K,s:K,s:K,s:K}", "id", (unsigned long long)info.id,
                         "state", state_names[info.state <= WEFT_EP_GONE ? info.state : 0], "peer_name",
                         weftpy_text(info.peer_name), "peer_address", weftpy_text(info.peer_address), "transport", info.transport,
                         "cipher", info.cipher, "identity", weftpy_text(info.identity), "authenticated",
                         PyBool_FromLong(info.authenticated), "same_host", PyBool_FromLong(info.same_host), "msgs_sent",
                         (unsigned long long)info.msgs_sent, "msgs_received", (unsigned long long)info.msgs_received,
                         "bytes_sent", (unsigned long long)info.bytes_sent, "bytes_received",
                         (unsigned long long)info.bytes_received, "ams_sent", (unsigned long long)info.ams_sent, "ams_received",
                         (unsigned long long)info.ams_received);
}

static PyObject *get_on_close(PyObject *self, void *unused)
{
    SELF;
    return Py_NewRef(ep->on_close ? ep->on_close : Py_None);
}

static int set_on_close(PyObject *self, PyObject *value, void *unused)
{
    SELF;
    if (value && value != Py_None && !PyCallable_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "on_close is a function of the endpoint, or None");
        return -1;
    }
    PyObject *old = ep->on_close;
    ep->on_close = value && value != Py_None ? Py_NewRef(value) : NULL;
    Py_XDECREF(old);
    if (!ep->run->blocking || !ep->on_close || weftpy_runtime_forked(ep->run))
        return 0;
    weftpy_closed_eps_watch(ep->run->closed_eps);
    PyObject *r = PyObject_CallMethod((PyObject *)ep->run, "_watch", NULL); /* starts the thread that calls on_close */
    Py_XDECREF(r);
    return r ? 0 : -1;
}

PyObject *weftpy_endpoint_peer(PyObject *endpoint, const char *word)
{
    weftpy_endpoint_t *ep = (weftpy_endpoint_t *)endpoint;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    if (endpoint == Py_None || !ep->ep || !ep->run->rt || weft_ep_get_info(ep->ep, &info) || !*info.peer_address)
        return PyUnicode_FromString("");
    PyObject *name = weftpy_text(info.peer_name), *address = name ? weftpy_text(info.peer_address) : NULL, *text = NULL;
    if (address && *info.peer_name)
        text = PyUnicode_FromFormat(" %s %U (%U)", word, address, name);
    else if (address)
        text = PyUnicode_FromFormat(" %s %U", word, address);
    Py_XDECREF(address);
    Py_XDECREF(name);
    return text;
}

PyObject *weftpy_endpoint_repr(PyObject *self)
{
    SELF;
    PyObject *state = get_state(self, NULL), *peer = state ? weftpy_endpoint_peer(self, "to") : NULL;
    PyObject *text = peer ? PyUnicode_FromFormat("<weft.Endpoint %llu%U, %U>", (unsigned long long)ep->id, peer, state) : NULL;
    Py_XDECREF(state);
    Py_XDECREF(peer);
    return text;
}

static PyMethodDef methods[] = {
    {"send", FAST(send),
     DOC("send($self, buffer, tag=0, *, timeout=None, stream=None)",
         "Send a message. Gives None when the buffer may be used again.")},
    {"recv", FAST(recv),
     DOC("recv($self, tag=0, mask=None, *, max_len=None, timeout=None, copy=True)",
         "Receive a message, as bytes; without a copy as an OwnedBuffer.")},
    {"recv_into", FAST(recv_into),
     DOC("recv_into($self, buffer, tag=0, mask=None, *, timeout=None, stream=None)",
         "Receive a message into a buffer. Gives its length.")},
    {"send_many", FAST(send_many),
     DOC("send_many($self, buffers, tag=0, *, timeout=None, stream=None)",
         "Send each as a message. Gives None when all may be used again.")},
    {"recv_many", FAST(recv_many),
     DOC("recv_many($self, buffers, tag=0, mask=None, *, timeout=None, stream=None)",
         "A message into each. Gives the list of lengths.")},
    {"probe", FAST(weftpy_endpoint_probe),
     DOC("probe($self, tag=0, mask=None)", "(tag, length) of a message that has arrived and waits, or None.")},
    {"claim", FAST(weftpy_endpoint_claim),
     DOC("claim($self, tag=0, mask=None)",
         "Take a message that has arrived out of the matching, as a Claim; None: there is none.")},
    {"am_send", FAST(am_send),
     DOC("am_send($self, id, buffer=None, header=None, *, timeout=None, confirm=False, urgent=False, stream=None)",
         "Send an active message.")},
    {"am_recv", FAST(am_recv),
     DOC("am_recv($self, id=None, *, timeout=None)", "The next active message that has no handler, as a Message.")},
    {"attach", FAST(weftpy_endpoint_attach),
     DOC("attach($self, key, *, path=None, timeout=None)", "The peer's memory that a region's key opens, as a Remote.")},
    {"find", FAST(weftpy_endpoint_find_name),
     DOC("find($self, name, *, path=None, timeout=None)", "A region of the peer's by its name, as a Remote.")},
    {"store", FAST(weftpy_endpoint_store),
     DOC("store($self, *, lease=None, id=None, renew=True, timeout=None)",
         "A lease at the peer, which is a memory server, as a Store.")},
    {"close", FAST(close_method),
     DOC("close($self, timeout=None)", "Finish what was sent and close. Gives how many messages the peer has not received.")},
    {"abort", abort_method, METH_NOARGS, DOC("abort($self)", "Close now: what is under way ends, and the peer sees an error.")},
    {"__aenter__", aenter, METH_NOARGS, NULL},
    {"__aexit__", WITHOUT_NAMES(aexit), NULL},
    {NULL, NULL, 0, NULL},
};

PyGetSetDef weftpy_endpoint_getset[] = {
    {"on_close", get_on_close, set_on_close,
     "A function that is called once with the endpoint when it is of no more use, whoever closed it.", NULL},
    {"state", get_state, NULL, "connecting, up, closing, peer-closed, reconnecting, failed, gone or closed.", NULL},
    {"closed", get_closed, NULL, "True once nothing can be sent over it any more.", NULL},
    {"info", get_info, NULL, "What is known of the peer and the connection, as a dict.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyMemberDef weftpy_endpoint_members[] = {
    {"id", T_ULONGLONG, offsetof(weftpy_endpoint_t, id), READONLY, "Its number: that of no other endpoint of the runtime, ever."},
    {"runtime", T_OBJECT, offsetof(weftpy_endpoint_t, run), READONLY, "Its runtime."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(weftpy_endpoint_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One connection to one peer." WEFTPY_STREAM_DOC},
    {Py_tp_dealloc, weftpy_endpoint_dealloc},
    {Py_tp_traverse, weftpy_endpoint_traverse},
    {Py_tp_clear, weftpy_endpoint_clear},
    {Py_tp_repr, weftpy_endpoint_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, weftpy_endpoint_getset},
    {Py_tp_members, weftpy_endpoint_members},
    {0, NULL},
};

PyType_Spec weftpy_endpoint_spec = WEFTPY_SPEC("Endpoint", weftpy_endpoint_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
