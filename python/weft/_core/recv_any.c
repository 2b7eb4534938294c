/* _core/recv_any.c - messages of a runtime, from whichever endpoint, and the address by which peers find it.
 *
 * A receive here matches whatever arrives at the runtime; its Op says over which endpoint it came. It does not end because a peer
 * is lost, unless it was that peer's message it was receiving.
 *
 * The address is the library's: bytes that peers connect to without knowing of a listener. Endpoints that come this way go to a
 * function, called by the loop in a turn; the runtime keeps the function until it is closed.
 *
 * tests/python/test_any.py holds us to it. */
#include "core.h"

#define SELF weftpy_runtime_t *run = (weftpy_runtime_t *)self

static const weftpy_sig_t sig_recv = {"recv_any", 5, 0, 2, {N_tag, N_mask, N_max_len, N_timeout, N_copy}};
static const weftpy_sig_t sig_am_recv = {"am_recv_any", 2, 0, 1, {N_id, N_timeout}};
static const weftpy_sig_t sig_recv_into = {"recv_any_into", 5, 1, 3, {N_buffer, N_tag, N_mask, N_timeout, N_stream}};
static const weftpy_sig_t sig_probe = {"probe_any", 2, 0, 2, {N_tag, N_mask}};
static const weftpy_sig_t sig_address = {"_address", 1, 1, 1, {N_handler}};

static int ready(weftpy_runtime_t *run)
{
    return run->blocking ? weftpy_runtime_check(run) : weftpy_loop_before_post(run);
}

PyObject *weftpy_any_recv(FAST_ARGS)
{
    SELF;
    PyObject *arg[5];
    uint64_t tag = 0, mask = WEFT_TAG_FULL, max_len = PY_SSIZE_T_MAX, timeout = 0;
    int copy = 1;
    if (weftpy_args(run->st, &sig_recv, args, n, kwnames, arg) || weftpy_u64(arg[0], "tag", UINT64_MAX, &tag) ||
        weftpy_u64(arg[1], "mask", UINT64_MAX, &mask) || weftpy_u64(arg[2], "max_len", PY_SSIZE_T_MAX, &max_len) ||
        weftpy_ns(arg[3], "timeout", &timeout) || (arg[4] && (copy = PyObject_IsTrue(arg[4])) < 0) ||
        ready(run)) /* check last: converting numbers can run any code */
        return NULL;
    weftpy_op_t *op = weftpy_op_new(run, copy ? &weftpy_gives_bytes : &weftpy_gives_owned);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_msg_recv_alloc(run->rt, NULL, max_len, tag, mask, &op->op));
}

PyObject *weftpy_any_recv_into(FAST_ARGS)
{
    SELF;
    PyObject *arg[5];
    uint64_t tag = 0, mask = WEFT_TAG_FULL, timeout = 0;
    if (ready(run) || weftpy_args(run->st, &sig_recv_into, args, n, kwnames, arg) ||
        weftpy_u64(arg[1], "tag", UINT64_MAX, &tag) || weftpy_u64(arg[2], "mask", UINT64_MAX, &mask) ||
        weftpy_ns(arg[3], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_op_new(run, &weftpy_gives_len);
    if (!op)
        return NULL;
    if (weftpy_order_begin(run->st, &op->order, arg[4]) ||
        weftpy_buf_get_ordered(run->st, arg[0], true, &op->buf, &op->order, &op->op) || weftpy_runtime_check(run)) {
        Py_DECREF(op);
        return NULL;
    }
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_msg_recv_any(run->rt, op->buf.view.buf, (size_t)op->buf.view.len, tag, mask, &op->op));
}

PyObject *weftpy_any_am_recv(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    uint64_t id = WEFT_AM_ANY_ID, timeout = 0;
    if (weftpy_args(run->st, &sig_am_recv, args, n, kwnames, arg) || weftpy_u64(arg[0], "id", WEFT_AM_RESERVED - 1, &id) ||
        weftpy_ns(arg[1], "timeout", &timeout) || ready(run))
        return NULL;
    weftpy_op_t *op = weftpy_op_new(run, &weftpy_gives_message);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_am_take(run->rt, NULL, (uint32_t)id, &op->op));
}

PyObject *weftpy_any_probe(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    uint64_t tag = 0, mask = WEFT_TAG_FULL;
    weft_msg_envelope_t envelope;
    if (weftpy_args(run->st, &sig_probe, args, n, kwnames, arg) || weftpy_u64(arg[0], "tag", UINT64_MAX, &tag) ||
        weftpy_u64(arg[1], "mask", UINT64_MAX, &mask) || ready(run))
        return NULL;
    if (!run->blocking)
        weftpy_progress(run);
    weft_status_t status = weft_msg_probe(run->rt, NULL, tag, mask, &envelope);
    if (status == WEFT_ERR_NOTFOUND)
        Py_RETURN_NONE;
    if (status)
        return weftpy_raise(run->st, status);
    PyObject *from = (PyObject *)weftpy_endpoint_find(run, envelope.from);
    return Py_BuildValue("(KKN)", (unsigned long long)envelope.tag, (unsigned long long)envelope.len,
                         from ? from : Py_NewRef(Py_None));
}

/* --- addresses ----------------------------------------------------------------------------------------------------------- */

/* In progress, with the GIL. */
static void came(weft_listener_t *wl, weft_ep_t *wep, void *user)
{
    weftpy_runtime_t *run = user;
    weftpy_endpoint_t *ep = weftpy_endpoint_new(run, wep);
    PyObject *handler = PyDict_GetItemString(run->handlers, "address");
    if (!ep || !handler || weftpy_loop_call(run, handler, (PyObject *)ep))
        PyErr_WriteUnraisable((PyObject *)run);
    Py_XDECREF((PyObject *)ep);
}

PyObject *weftpy_any_address(FAST_ARGS)
{
    SELF;
    PyObject *arg[1];
    weft_listen_opts_t opts = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = weftpy_endpoint_closed, .user = run};
    size_t len = 0;
    if (weftpy_args(run->st, &sig_address, args, n, kwnames, arg) || ready(run))
        return NULL;
    if (run->blocking)
        return weftpy_raise_text(run->st, WEFT_ERR_STATE,
                                 "a blocking runtime has no loop that could call the handler: use listen()");
    if (!PyCallable_Check(arg[0])) {
        PyErr_SetString(PyExc_TypeError, "handler is a function of an endpoint");
        return NULL;
    }
    if (PyDict_SetItemString(run->handlers, "address", arg[0]))
        return NULL;
    opts.accept = came;
    opts.user = run;
    opts.hooks = &hooks;
    weft_status_t status = weft_runtime_address(run->rt, &opts, NULL, &len);
    PyObject *bytes = status ? weftpy_raise(run->st, status) : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
    if (bytes && (status = weft_runtime_address(run->rt, &opts, PyBytes_AsString(bytes), &len))) {
        Py_DECREF(bytes);
        return weftpy_raise(run->st, status);
    }
    return bytes;
}
