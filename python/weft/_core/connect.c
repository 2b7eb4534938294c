/* _core/connect.c - connecting: an endpoint to a uri, or to an address that a runtime gave.
 *
 * In an event loop the Endpoint is made with the post, and the Op gives it. In a blocking runtime the call waits for the peer's
 * answer first.
 *
 * tests/python/test_connect.py holds us to it. */
#include "core.h"

static const weftpy_sig_t sig_connect = {"connect", 7, 0, 1, {N_uri, N_timeout, N_source, N_shared, N_address, N_retry, N_tls}};

typedef struct target {
    const char *uri; /* NULL: opts has an address */
    uint64_t timeout;
    weft_ep_opts_t opts;
    weft_tls_opts_t tls; /* of opts, if it is given; its files live as long as the arguments */
} target_t;

static int target_of(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, target_t *t)
{
    PyObject *arg[7];
    if (weftpy_args(run->st, &sig_connect, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &t->timeout))
        return -1;
    bool named = arg[0] && arg[0] != Py_None, addressed = arg[4] && arg[4] != Py_None;
    if (named == addressed) {
        PyErr_SetString(PyExc_TypeError, "connect() needs a uri, or an address that a runtime gave, and not both");
        return -1;
    }
    if (named && !(t->uri = weftpy_str(arg[0], "uri")))
        return -1;
    if (addressed) {
        char *bytes;
        Py_ssize_t len;
        if (PyBytes_AsStringAndSize(arg[4], &bytes, &len))
            return -1;
        t->opts.address = bytes;
        t->opts.address_len = (size_t)len;
    }
    if (arg[2] && arg[2] != Py_None && !(t->opts.source = weftpy_str(arg[2], "source")))
        return -1;
    int shared = arg[3] ? PyObject_IsTrue(arg[3]) : 0;
    if (shared < 0)
        return -1;
    t->opts.shared = shared;
    int retry = arg[5] ? PyObject_IsTrue(arg[5]) : 1;
    if (retry < 0)
        return -1;
    t->opts.no_retry = !retry;
    int tls = weftpy_tls(arg[6], &t->tls);
    if (tls > 0)
        t->opts.tls = &t->tls;
    return tls < 0 ? -1 : 0;
}

static PyObject *connect_and_wait(weftpy_runtime_t *run, target_t *t)
{
    weft_ep_t *wep;
    weft_op_t op = WEFT_OP_INIT;
    if (weftpy_runtime_check(run) || weftpy_wait_check(run->st))
        return NULL;
    op.timeout_ns = t->timeout;
    t->opts.hooks = (weft_ep_hooks_t){.closed = weftpy_closed_eps_ended, .user = run->closed_eps};
    weft_status_t status = weft_ep_open(run->rt, t->uri, &t->opts, &op, &wep);
    if (status)
        return weftpy_raise(run->st, status);
    int interrupted = weftpy_wait(run, &op);
    if (interrupted || op.status) {
        weft_ep_abort(wep, NULL); /* first: making the exception can run any code, which may close the runtime */
        if (!interrupted)
            weftpy_raise_op(run->st, &op);
        return NULL;
    }
    return (PyObject *)weftpy_endpoint_new(run, wep);
}

static PyObject *connect_in_loop(weftpy_runtime_t *run, target_t *t)
{
    weft_ep_t *wep;
    if (weftpy_loop_before_post(run))
        return NULL;
    t->opts.hooks = (weft_ep_hooks_t){.closed = weftpy_endpoint_closed, .user = run};
    weftpy_op_t *op = weftpy_op_new(run, &weftpy_gives_made);
    if (!op)
        return NULL;
    op->op.timeout_ns = t->timeout;
    weft_status_t status = weft_ep_open(run->rt, t->uri, &t->opts, &op->op, &wep);
    if (!status && !(op->made = (PyObject *)weftpy_endpoint_new(run, wep))) {
        /* the endpoint was aborted: the operation ends by itself, and nobody waits for it */
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        Py_XDECREF(weftpy_op_posted(op, WEFT_OK));
        PyErr_Restore(type, error, trace);
        return NULL;
    }
    return weftpy_op_posted(op, status);
}

PyObject *weftpy_connect(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    target_t t = {.opts = WEFT_EP_OPTS_INIT};
    if (target_of(run, args, n, kwnames, &t))
        return NULL;
    return run->blocking ? connect_and_wait(run, &t) : connect_in_loop(run, &t);
}
