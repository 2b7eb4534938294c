/* _core/endpoint_args.c - what the calls of endpoints take, for those of an event loop (endpoint.c) and those that wait
 * (blocking.c). Those of send() are in endpoint.c, where the compiler can inline them.
 *
 * tests/python/test_hostile.py holds us to it. */
#include "core.h"

static const weftpy_sig_t sig_recv = {"recv", 5, 0, 2, {N_tag, N_mask, N_max_len, N_timeout, N_copy}};
static const weftpy_sig_t sig_recv_into = {"recv_into", 5, 1, 3, {N_buffer, N_tag, N_mask, N_timeout, N_stream}};
static const weftpy_sig_t sig_am_send = {
    "am_send", 7, 1, 3, {N_id, N_buffer, N_header, N_timeout, N_confirm, N_urgent, N_stream}};
static const weftpy_sig_t sig_am_recv = {"am_recv", 2, 0, 1, {N_id, N_timeout}};

int weftpy_recv_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_recv_args_t *out)
{
    PyObject *arg[5];
    int copy = 1;
    out->tag = out->timeout = 0;
    out->mask = WEFT_TAG_FULL;
    out->max_len = PY_SSIZE_T_MAX;
    if (weftpy_args(ep->st, &sig_recv, args, n, kwnames, arg) || weftpy_u64(arg[0], "tag", UINT64_MAX, &out->tag) ||
        weftpy_u64(arg[1], "mask", UINT64_MAX, &out->mask) || weftpy_u64(arg[2], "max_len", PY_SSIZE_T_MAX, &out->max_len) ||
        weftpy_ns(arg[3], "timeout", &out->timeout) || (arg[4] && (copy = PyObject_IsTrue(arg[4])) < 0))
        return -1;
    out->copy = copy;
    return 0;
}

int weftpy_recv_into_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_recv_args_t *out)
{
    PyObject *arg[5];
    out->tag = out->timeout = 0;
    out->mask = WEFT_TAG_FULL;
    if (weftpy_args(ep->st, &sig_recv_into, args, n, kwnames, arg) || weftpy_u64(arg[1], "tag", UINT64_MAX, &out->tag) ||
        weftpy_u64(arg[2], "mask", UINT64_MAX, &out->mask) || weftpy_ns(arg[3], "timeout", &out->timeout) ||
        weftpy_order_begin(ep->st, out->order, arg[4]))
        return -1;
    return weftpy_buf_get_ordered(ep->st, arg[0], true, out->buf, out->order, out->op);
}

int weftpy_am_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_am_args_t *out)
{
    PyObject *arg[7];
    uint64_t id = 0;
    int confirm = 0, urgent = 0;
    *out = (weftpy_am_args_t){.buf = out->buf, .order = out->order, .op = out->op, .opts = WEFT_AM_SEND_OPTS_INIT};
    if (weftpy_args(ep->st, &sig_am_send, args, n, kwnames, arg) || weftpy_u64(arg[0], "id", WEFT_AM_RESERVED - 1, &id) ||
        weftpy_ns(arg[3], "timeout", &out->timeout) || (arg[4] && (confirm = PyObject_IsTrue(arg[4])) < 0) ||
        (arg[5] && (urgent = PyObject_IsTrue(arg[5])) < 0) || weftpy_order_begin(ep->st, out->order, arg[6]))
        return -1;
    if (arg[1] && arg[1] != Py_None ? weftpy_buf_get_ordered(ep->st, arg[1], false, out->buf, out->order, out->op)
                                    : weftpy_order_set(ep->st, out->order, false, out->op))
        return -1;
    if (arg[2] && arg[2] != Py_None && !(out->header = PyBytes_FromObject(arg[2]))) {
        weftpy_buf_release(out->buf);
        weftpy_order_release(out->order);
        return -1;
    }
    out->opts.id = (uint32_t)id;
    out->opts.header = out->header ? PyBytes_AsString(out->header) : NULL;
    out->opts.header_len = out->header ? (size_t)PyBytes_Size(out->header) : 0;
    out->opts.buf = out->buf->view.obj ? out->buf->view.buf : NULL;
    out->opts.len = out->buf->view.obj ? (size_t)out->buf->view.len : 0;
    out->opts.kind = out->buf->kind;
    out->opts.confirm = confirm;
    out->opts.urgent = urgent;
    out->opts.reply = true;
    return 0;
}

int weftpy_am_recv_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, uint32_t *id_out,
                        uint64_t *timeout_out)
{
    PyObject *arg[2];
    uint64_t id = WEFT_AM_ANY_ID;
    if (weftpy_args(ep->st, &sig_am_recv, args, n, kwnames, arg) || weftpy_u64(arg[0], "id", WEFT_AM_RESERVED - 1, &id) ||
        weftpy_ns(arg[1], "timeout", timeout_out))
        return -1;
    *id_out = (uint32_t)id;
    return 0;
}
