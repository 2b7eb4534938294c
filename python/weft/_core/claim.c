/* _core/claim.c - Claim: a message that was taken out of the matching, to be received by this handle and by nobody else.
 *
 * claim() is probe() that takes what it finds: a program that looks at a length first, and makes the memory for it, cannot lose
 * the message to another receive in between.
 *
 *     held -> received   recv() or recv_into(): the operation has it, once
 *     held -> dropped    drop(), or the object goes, or the runtime is closed
 *
 * Promise: one of the two, once. tests/python/test_claims.py holds us to it. */
#include "core.h"

struct weftpy_claim {
    PyObject_HEAD weftpy_runtime_t *run;
    weft_msg_t *msg; /* NULL: received or dropped */
    uint64_t tag, len;
    weft_ep_id_t from;
    weftpy_claim_t *next, **before; /* in run->claims */
};

static weft_msg_t *take(weftpy_claim_t *c)
{
    weft_msg_t *msg = c->msg;
    if (!msg)
        return NULL;
    c->msg = NULL;
    *c->before = c->next;
    if (c->next)
        c->next->before = c->before;
    return msg;
}

void weftpy_claims_drop(weftpy_runtime_t *run)
{
    while (run->claims)
        weft_msg_drop_claimed(take(run->claims));
}

static const weftpy_sig_t sig_claim = {"claim", 2, 0, 2, {N_tag, N_mask}};
static const weftpy_sig_t sig_recv = {"recv", 1, 0, 0, {N_timeout}};
static const weftpy_sig_t sig_recv_into = {"recv_into", 2, 1, 1, {N_buffer, N_timeout}};

/* A claim on a message of this endpoint, or with NULL of any endpoint. */
static PyObject *claim(weftpy_runtime_t *run, weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[2];
    uint64_t tag = 0, mask = WEFT_TAG_FULL;
    weft_msg_envelope_t envelope;
    weft_msg_t *msg;
    if (weftpy_args(run->st, &sig_claim, args, n, kwnames, arg) || weftpy_u64(arg[0], "tag", UINT64_MAX, &tag) ||
        weftpy_u64(arg[1], "mask", UINT64_MAX, &mask) || weftpy_loop_before_post(run))
        return NULL;
    weftpy_claim_t *c = (weftpy_claim_t *)PyType_GenericAlloc(run->st->claim, 0);
    if (!c)
        return NULL;
    c->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    if (!run->blocking && run->rt)
        weftpy_progress(run);
    if (ep ? weftpy_endpoint_check(ep) : weftpy_runtime_check(run)) {
        Py_DECREF(c);
        return NULL;
    }
    weft_status_t status = weft_msg_claim(run->rt, ep ? ep->ep : NULL, tag, mask, &envelope, &msg);
    if (status) {
        Py_DECREF(c);
        return status == WEFT_ERR_NOTFOUND ? Py_NewRef(Py_None) : weftpy_raise(run->st, status);
    }
    c->msg = msg;
    c->tag = envelope.tag;
    c->len = envelope.len;
    c->from = envelope.from;
    c->next = run->claims;
    c->before = &run->claims;
    if (c->next)
        c->next->before = &c->next;
    run->claims = c;
    return (PyObject *)c;
}

PyObject *weftpy_endpoint_claim(FAST_ARGS)
{
    return claim(((weftpy_endpoint_t *)self)->run, (weftpy_endpoint_t *)self, args, n, kwnames);
}

PyObject *weftpy_any_claim(FAST_ARGS)
{
    return claim((weftpy_runtime_t *)self, NULL, args, n, kwnames);
}

static int check(weftpy_claim_t *c)
{
    if (c->msg && c->run->rt && !c->run->closing)
        return 0;
    weftpy_raise_text(c->run->st, WEFT_ERR_STATE, "the message was received or dropped");
    return -1;
}

static PyObject *receive(weftpy_claim_t *c, PyObject *into, uint64_t timeout)
{
    weftpy_runtime_t *run = c->run;
    PyObject *bytes = NULL;
    if (check(c))
        return NULL;
    if (!into && c->len > (uint64_t)PY_SSIZE_T_MAX)
        return PyErr_NoMemory();
    if (!into && !(bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)c->len)))
        return NULL;
    weftpy_op_t *op = weftpy_loop_before_post(run) ? NULL : weftpy_op_new(run, into ? &weftpy_gives_len : &weftpy_gives_made);
    if (!op) {
        Py_XDECREF(bytes);
        return NULL;
    }
    op->made = bytes;
    if ((into && weftpy_buf_get(run->st, into, true, &op->buf)) || check(c)) {
        Py_DECREF(op);
        return NULL;
    }
    op->op.timeout_ns = timeout;
    weft_status_t status = weft_msg_recv_claimed(c->msg, into ? op->buf.view.buf : PyBytes_AsString(bytes),
                                                 into ? (size_t)op->buf.view.len : (size_t)c->len, &op->op);
    if (!status)
        take(c);
    return weftpy_op_posted(op, status);
}

static PyObject *recv(FAST_ARGS)
{
    weftpy_claim_t *c = (weftpy_claim_t *)self;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(c->run->st, &sig_recv, args, n, kwnames, &timeout))
        return NULL;
    return receive(c, NULL, timeout);
}

static PyObject *recv_into(FAST_ARGS)
{
    weftpy_claim_t *c = (weftpy_claim_t *)self;
    PyObject *arg[2];
    uint64_t timeout = 0;
    if (weftpy_args(c->run->st, &sig_recv_into, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    return receive(c, arg[0], timeout);
}

static PyObject *drop(PyObject *self, PyObject *unused)
{
    weftpy_claim_t *c = (weftpy_claim_t *)self;
    if (c->msg && c->run->rt && !c->run->blocking && weftpy_loop_before_post(c->run))
        return NULL;
    weft_msg_drop_claimed(take(c));
    Py_RETURN_NONE;
}

static void dealloc(PyObject *self)
{
    weftpy_claim_t *c = (weftpy_claim_t *)self;
    weft_msg_drop_claimed(take(c));
    Py_CLEAR(c->run);
    weftpy_free(self);
}

static PyObject *get_sender(PyObject *self, void *unused)
{
    weftpy_claim_t *c = (weftpy_claim_t *)self;
    weftpy_endpoint_t *ep = weftpy_endpoint_find(c->run, c->from);
    return ep ? (PyObject *)ep : Py_NewRef(Py_None);
}

static PyObject *repr(PyObject *self)
{
    weftpy_claim_t *c = (weftpy_claim_t *)self;
    return PyUnicode_FromFormat("<weft.Claim tag %llu, %llu bytes%s>", (unsigned long long)c->tag, (unsigned long long)c->len,
                                c->msg ? "" : ", received or dropped");
}

static PyMethodDef methods[] = {
    {"recv", FAST(recv), DOC("recv($self, *, timeout=None)", "The message as bytes. Once.")},
    {"recv_into", FAST(recv_into),
     DOC("recv_into($self, buffer, *, timeout=None)", "The message into a buffer. Gives its length. Once.")},
    {"drop", drop, METH_NOARGS, DOC("drop($self)", "Throw the message away.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"sender", get_sender, NULL, "The endpoint it came over, if that is still open.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"tag", T_ULONGLONG, offsetof(weftpy_claim_t, tag), READONLY, "Its tag."},
    {"nbytes", T_ULONGLONG, offsetof(weftpy_claim_t, len), READONLY, "Its length."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A message that only this handle receives."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_claim_spec = WEFTPY_SPEC("Claim", weftpy_claim_t, WEFTPY_NOT_CALLED, slots);
