/* _core/listener.c - Listener: where peers come in.
 *
 * With a function, the loop calls it with each new endpoint, in a turn and never inside progress; without, accept() gives them
 * one by one. What the library calls is a record of its own: a listener that goes in another thread than its loop's may still be
 * called for a while, and the record goes when the library says that nobody will.
 *
 * tests/python/test_connect.py holds us to it. */
#include "core.h"

struct served {
    weft_op_t closing;
    weftpy_runtime_t *run; /* borrowed: after its runtime is closed, nothing is called */
    PyObject *handler;
};

typedef struct listener {
    PyObject_HEAD weftpy_runtime_t *run;
    weft_listener_t *listener; /* NULL: closed */
    struct served *served;     /* NULL: there is no handler, or it is closed */
    PyObject *uri;
    PyObject *weakrefs;
    uint16_t port;
} listener_t;

/* In progress, with the GIL: only runtimes of a loop have handlers. */
static void accepted(weft_listener_t *wl, weft_ep_t *wep, void *user)
{
    struct served *served = user;
    weftpy_endpoint_t *ep = weftpy_endpoint_new(served->run, wep);
    if (!ep || weftpy_loop_call(served->run, served->handler, (PyObject *)ep))
        PyErr_WriteUnraisable(served->handler);
    Py_XDECREF((PyObject *)ep);
}

static void served_free(weft_op_t *op, void *user)
{
    struct served *served = user;
    Py_DECREF(served->handler);
    PyMem_Free(served);
}

static struct served *served_new(weftpy_runtime_t *run, PyObject *handler)
{
    struct served *served = PyMem_Calloc(1, sizeof *served);
    if (!served)
        return (struct served *)PyErr_NoMemory();
    served->run = run;
    served->handler = Py_NewRef(handler);
    served->closing.fn = served_free;
    served->closing.user = served;
    return served;
}

static const weftpy_sig_t sig_listen = {"listen", 4, 1, 2, {N_uri, N_handler, N_backlog, N_tls}};

PyObject *weftpy_listen(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[4];
    uint64_t backlog = 0;
    weft_tls_opts_t tls;
    weft_listen_opts_t opts = WEFT_LISTEN_OPTS_INIT;
    if (weftpy_args(run->st, &sig_listen, args, n, kwnames, arg) || weftpy_u64(arg[2], "backlog", UINT32_MAX, &backlog))
        return NULL;
    int has_tls = weftpy_tls(arg[3], &tls);
    if (has_tls < 0)
        return NULL;
    opts.tls = has_tls ? &tls : NULL;
    const char *uri = weftpy_str(arg[0], "uri");
    PyObject *handler = arg[1] == Py_None ? NULL : arg[1];
    if (!uri)
        return NULL;
    if (handler && !PyCallable_Check(handler)) {
        PyErr_SetString(PyExc_TypeError, "handler is a function of an endpoint, or None");
        return NULL;
    }
    if (handler && run->blocking)
        return weftpy_raise_text(run->st, WEFT_ERR_STATE,
                                 "a blocking runtime has no loop that could call the handler: use accept()");
    if (run->blocking ? weftpy_runtime_check(run) : weftpy_loop_before_post(run))
        return NULL;
    listener_t *l = (listener_t *)PyType_GenericAlloc(run->blocking ? run->st->blocking_listener : run->st->listener, 0);
    if (!l)
        return NULL;
    weft_ep_hooks_t hooks = {.closed = weftpy_endpoint_closed, .user = run};
    if (run->blocking)
        hooks = (weft_ep_hooks_t){.closed = weftpy_closed_eps_ended, .user = run->closed_eps};
    l->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    if ((handler && !(l->served = served_new(run, handler))) || weftpy_runtime_check(run)) { /* making objects can run any code */
        Py_DECREF(l);
        return NULL;
    }
    opts.backlog = (uint32_t)backlog;
    opts.accept = handler ? accepted : NULL;
    opts.user = l->served;
    opts.hooks = &hooks;
    weft_status_t status = weft_listen(run->rt, uri, &opts, &l->listener);
    if (status) {
        l->listener = NULL;
        weftpy_raise(run->st, status);
        Py_DECREF(l);
        return NULL;
    }
    l->port = weft_listener_port(l->listener);
    if (!(l->uri = weftpy_text(weft_listener_uri(l->listener)))) {
        Py_DECREF(l);
        return NULL;
    }
    return (PyObject *)l;
}

static int check(listener_t *l)
{
    if (l->listener && l->run->rt && !l->run->closing)
        return 0;
    weftpy_raise_text(l->run->st, WEFT_ERR_CLOSED, "the listener is closed");
    return -1;
}

static const weftpy_sig_t sig_accept = {"accept", 1, 0, 0, {N_timeout}};

static PyObject *accept(FAST_ARGS)
{
    listener_t *l = (listener_t *)self;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(l->run->st, &sig_accept, args, n, kwnames, &timeout) || check(l))
        return NULL;
    if (l->served)
        return weftpy_raise_text(l->run->st, WEFT_ERR_STATE, "the listener has a handler, which gets the endpoints");
    weftpy_op_t *op = weftpy_loop_before_post(l->run) || check(l) ? NULL : weftpy_op_new(l->run, &weftpy_gives_endpoint);
    if (!op)
        return NULL;
    op->held = Py_NewRef(self);
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_listener_accept(l->listener, &op->op));
}

/* On the driving thread no callback comes after the close. On another thread (the collector can run on any), the operation
 * completes after the last callback. */
static void close_it(listener_t *l)
{
    struct served *served = l->served;
    weft_listener_t *listener = l->run->rt ? l->listener : NULL;
    bool here = l->run->thread == PyThread_get_thread_ident();
    l->served = NULL;
    l->listener = NULL;
    if (listener && served && !here) {
        if (weft_listener_close(listener, &served->closing) != WEFT_OK)
            served->handler = NULL; /* a forked child: do not call or free the handler */
        return;
    }
    if (listener)
        weft_listener_close(listener, NULL);
    if (served)
        served_free(NULL, served);
}

static PyObject *close_method(PyObject *self, PyObject *unused)
{
    listener_t *l = (listener_t *)self;
    if (l->listener && l->run->rt && !l->run->blocking && weftpy_loop_before_post(l->run))
        return NULL;
    close_it(l);
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    return close_method(self, NULL);
}

static PyObject *aenter(PyObject *self, PyObject *unused)
{
    return weftpy_done(((listener_t *)self)->run, Py_NewRef(self));
}

static PyObject *aexit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    PyObject *closed = leave(self, args, n);
    weftpy_op_t *op = closed ? weftpy_op_new(((listener_t *)self)->run, &weftpy_gives_none) : NULL;
    if (op)
        return weftpy_op_complete(op, closed);
    Py_XDECREF(closed);
    return NULL;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    listener_t *l = (listener_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(l->run);
    if (l->served)
        Py_VISIT(l->served->handler);
    return 0;
}

static int clear(PyObject *self)
{
    listener_t *l = (listener_t *)self;
    if (l->run)
        close_it(l);
    return 0;
}

static void dealloc(PyObject *self)
{
    listener_t *l = (listener_t *)self;
    PyObject_GC_UnTrack(self);
    if (l->weakrefs)
        PyObject_ClearWeakRefs(self);
    clear(self);
    Py_CLEAR(l->uri);
    Py_CLEAR(l->run);
    weftpy_free(self);
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    listener_t *l = (listener_t *)self;
    return PyBool_FromLong(!l->listener || !l->run->rt);
}

static PyObject *repr(PyObject *self)
{
    listener_t *l = (listener_t *)self;
    return PyUnicode_FromFormat("<weft.Listener %U%s>", l->uri, l->listener && l->run->rt ? "" : " closed");
}

#define ACCEPT \
    { \
        "accept", FAST(accept), DOC("accept($self, *, timeout=None)", "The endpoint of the next peer.") \
    }
#define CLOSE \
    { \
        "close", close_method, METH_NOARGS, DOC("close($self)", "Stop listening. Endpoints that came this way stay open.") \
    }

static PyMethodDef methods[] = {
    ACCEPT, CLOSE, {"__aenter__", aenter, METH_NOARGS, NULL}, {"__aexit__", WITHOUT_NAMES(aexit), NULL}, {NULL, NULL, 0, NULL},
};

static PyMethodDef blocking_methods[] = {
    ACCEPT,
    CLOSE,
    {"__enter__", weftpy_itself, METH_NOARGS, NULL},
    {"__exit__", WITHOUT_NAMES(leave), NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"uri", T_OBJECT, offsetof(listener_t, uri), READONLY, "The addresses it is bound to, with the ports that were picked."},
    {"port", T_INT, offsetof(listener_t, port), READONLY, "The port of the first TCP address, or 0."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(listener_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define SLOTS(of) \
    { \
        {Py_tp_doc, "Where peers come in."}, {Py_tp_dealloc, dealloc}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear}, \
            {Py_tp_repr, repr}, {Py_tp_methods, of}, {Py_tp_getset, getset}, {Py_tp_members, members}, {0, NULL}, \
    }
static PyType_Slot slots[] = SLOTS(methods);
static PyType_Slot blocking_slots[] = SLOTS(blocking_methods);

PyType_Spec weftpy_listener_spec = WEFTPY_SPEC("Listener", listener_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);

PyType_Spec weftpy_blocking_listener_spec =
    WEFTPY_SPEC("BlockingListener", listener_t, WEFTPY_GC | WEFTPY_NOT_CALLED, blocking_slots);
