/* _core/service.c - Service: functions of Python that other processes call.
 *
 *     open --drain--> no new calls --close--> closed
 *
 * In a runtime of an event loop a function is called with its Request by the loop, in a turn and never inside progress. In a
 * blocking runtime requests wait in the inbox (inbox.c), and threads of Python take them: take() waits without the GIL. What a
 * function does with its request, and on which thread, is the package's to say (weft/service.py).
 *
 * The library knows a function by its place in `functions`; so what it holds is no object of Python, and it can let go of it on
 * any thread.
 *
 * Promise: when close() is complete no function of it runs and no request of it is left, unless its time was up.
 * tests/python/test_service.py and test_service_lost.py hold us to it. */
#include "registry.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SELF weftpy_service_t *s = (weftpy_service_t *)self

/* --- opening ------------------------------------------------------------------------------------------------------------- */

/* Set up what every method needs, even if __init__ was not called. */
static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    weftpy_state_t *st = weftpy_state_of(type);
    weftpy_service_t *s = st ? (weftpy_service_t *)PyType_GenericAlloc(type, 0) : NULL;
    if (s)
        s->st = st;
    return (PyObject *)s;
}

static int opened(weftpy_service_t *s)
{
    if (!s->run)
        return 0;
    weftpy_raise_text(s->st, WEFT_ERR_STATE, "the service is open already, or was: make another");
    return -1;
}

static void leave(weftpy_guest_t *guest);

static int init(PyObject *self, PyObject *args, PyObject *kw)
{
    static char *words[] = {"runtime",     "name",       "instance", "requests",     "queue", "bytes",
                            "payload_max", "remembered", "remember", "peer_percent", "stall", NULL};
    SELF;
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    PyObject *runtime, *requests = NULL, *queue = NULL, *bytes = NULL, *payload = NULL, *remembered = NULL, *remember = NULL;
    PyObject *percent = NULL, *stall = NULL;
    const char *name;
    uint64_t most = 0, waiting = 0, known = 0, part = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!s|$zOOOOOOOO:Service", words, s->st->runtime, &runtime, &name, &opts.instance,
                                     &requests, &queue, &bytes, &payload, &remembered, &remember, &percent, &stall) ||
        weftpy_u64(requests, "requests", UINT32_MAX, &most) || weftpy_u64(queue, "queue", UINT32_MAX, &waiting) ||
        weftpy_u64(bytes, "bytes", UINT64_MAX / 2, &opts.bytes) ||
        weftpy_u64(payload, "payload_max", UINT64_MAX / 2, &opts.payload_max) ||
        weftpy_u64(remembered, "remembered", UINT32_MAX, &known) || weftpy_ns(remember, "remember", &opts.remember_ns) ||
        weftpy_u64(percent, "peer_percent", 100, &part) || weftpy_ns(stall, "stall", &opts.stall_ns) ||
        opened(s)) /* check last: converting numbers can run any code */
        return -1;
    if (stall && stall != Py_None && !opts.stall_ns)
        opts.stall_ns = UINT64_MAX; /* infinity leaves it 0, which means 30 s to the library: this means never */
    weftpy_runtime_t *run = (weftpy_runtime_t *)runtime;
    if (run->blocking ? weftpy_runtime_check(run) : weftpy_loop_before_post(run))
        return -1;
    if (run->caller) {
        weftpy_raise_text(s->st, WEFT_ERR_STATE,
                          "the runtime is driven by calls that wait, and a service waits for calls of others: open it with "
                          "progress=\"thread\"");
        return -1;
    }
    opts.requests = (uint32_t)most;
    opts.queue = (uint32_t)waiting;
    opts.remembered = (uint32_t)known;
    opts.peer_percent = (uint32_t)part;
    if (!s->functions)
        s->functions = PyList_New(0);
    s->inbox = s->functions ? weftpy_inbox_new(run->rt, run->blocking, &opts) : NULL;
    if (!s->inbox) {
        if (s->functions)
            PyErr_NoMemory();
        return -1;
    }
    s->run = (weftpy_runtime_t *)Py_NewRef(runtime); /* from here on it counts as opened, even if that fails */
    weft_status_t status = weft_service_open(run->rt, name, &opts, &s->service);
    if (status) {
        s->service = NULL;
        weftpy_raise(s->st, status);
        return -1;
    }
    s->inbox->owner = s;
    weftpy_guest_enter(&run->guests, &s->guest, leave);
    return 0;
}

int weftpy_service_check(weftpy_service_t *s)
{
    if (!s->service || !s->run->rt) {
        weftpy_raise_text(s->st, WEFT_ERR_CLOSED, "the service is closed");
        return -1;
    }
    return s->run->blocking ? weftpy_runtime_check(s->run) : weftpy_loop_before_post(s->run);
}

PyObject *weftpy_service_posted(weftpy_service_t *s, weftpy_op_t *op, weft_status_t status)
{
    op->held = Py_NewRef((PyObject *)s);
    return weftpy_op_posted(op, status);
}

/* --- where callers come in ----------------------------------------------------------------------------------------------- */

static void came(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)ep; /* services answer over every endpoint; went() closes it */
}

static void went(weft_ep_t *ep, weft_status_t why, void *user)
{
    weft_ep_close(ep, NULL);
}

static PyObject *listen(PyObject *self, PyObject *arg)
{
    SELF;
    weft_listen_opts_t opts = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = went};
    const char *uri = weftpy_str(arg, "uri");
    if (!uri || weftpy_service_check(s))
        return NULL;
    weft_listener_t **more = realloc(s->listeners, (s->listeners_n + 1) * sizeof *more);
    if (!more)
        return PyErr_NoMemory();
    s->listeners = more;
    opts.accept = came;
    opts.hooks = &hooks;
    weft_status_t status = weft_listen(s->run->rt, uri, &opts, &more[s->listeners_n]);
    if (status)
        return weftpy_raise(s->st, status);
    return PyUnicode_FromString(weft_listener_uri(more[s->listeners_n++]));
}

static void close_listeners(weftpy_service_t *s)
{
    for (size_t i = 0; i < s->listeners_n && s->run->rt; i++)
        weft_listener_close(s->listeners[i], NULL);
    free(s->listeners);
    s->listeners = NULL;
    s->listeners_n = 0;
}

static const weftpy_sig_t sig_publish = {"publish", 2, 0, 2, {N_registry, N_address}};

static PyObject *publish(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    const char *address = NULL;
    weft_registry_t *registry = NULL;
    if (weftpy_args(s->st, &sig_publish, args, n, kwnames, arg) || weftpy_service_check(s))
        return NULL;
    if (arg[1] && arg[1] != Py_None && !(address = weftpy_str(arg[1], "address")))
        return NULL;
    if (arg[0] && arg[0] != Py_None && !(registry = weftpy_registry_of(s->run, arg[0])))
        return NULL;
    weft_status_t status = weft_service_publish(s->service, registry, address);
    if (status)
        return weftpy_raise(s->st, status);
    s->registry = registry ? Py_NewRef(arg[0]) : NULL; /* only once: the library refuses a second time */
    weftpy_registry_used(s->registry, 1);
    Py_RETURN_NONE;
}

/* --- the end ------------------------------------------------------------------------------------------------------------- */

static PyObject *already(weftpy_service_t *s)
{
    if (!s->run)
        return weftpy_service_check(s) ? NULL : Py_NewRef(Py_None);
    if (s->run->blocking)
        Py_RETURN_NONE;
    weftpy_op_t *op = weftpy_op_new(s->run, &weftpy_gives_none);
    return op ? weftpy_op_complete(op, Py_NewRef(Py_None)) : NULL;
}

static const weftpy_sig_t sig_drain = {"drain", 1, 0, 1, {N_timeout}};
static const weftpy_sig_t sig_close = {"close", 1, 0, 1, {N_timeout}};

static PyObject *drain(FAST_ARGS)
{
    SELF;
    uint64_t timeout = 0;
    if (!s->service || !s->run->rt)
        return already(s);
    if (weftpy_args_timeout(s->st, &sig_drain, args, n, kwnames, &timeout) || weftpy_service_check(s))
        return NULL;
    weftpy_op_t *op = weftpy_op_new(s->run, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_service_posted(s, op, weft_service_drain(s->service, &op->op));
}

/* Close what has to be closed before the service. Returns the service, which nobody else can use any more. */
static weft_service_t *ending(weftpy_service_t *s)
{
    weft_service_t *service = s->service;
    s->service = NULL;
    weftpy_guest_leave(&s->guest);
    weftpy_registry_used(s->registry, -1);
    close_listeners(s);
    weftpy_inbox_stop(s->inbox);
    return service;
}

/* The runtime is closing, and the service was not closed before. */
static void leave(weftpy_guest_t *guest)
{
    weftpy_service_t *s = (weftpy_service_t *)(void *)((char *)guest - offsetof(weftpy_service_t, guest));
    if (s->service && s->inbox->pid == getpid())
        weft_service_close(ending(s), NULL);
}

static PyObject *close_method(FAST_ARGS)
{
    SELF;
    uint64_t timeout = 0;
    if (!s->service || !s->run->rt)
        return already(s);
    if (weftpy_args_timeout(s->st, &sig_close, args, n, kwnames, &timeout) || weftpy_service_check(s))
        return NULL;
    weftpy_op_t *op = weftpy_op_new(s->run, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_service_posted(s, op, weft_service_close(ending(s), &op->op));
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    SELF;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(s->run);
    Py_VISIT(s->functions);
    Py_VISIT(s->registry);
    return 0;
}

static void end(weftpy_service_t *s)
{
    weftpy_inbox_t *q = s->inbox;
    if (!q)
        return;
    q->owner = NULL;
    if (s->run && q->pid == getpid()) {
        if (s->run->rt)
            weftpy_inbox_stop(q);
        else
            weftpy_inbox_forget(q);
        if (s->service && s->run->rt)
            weft_service_close(ending(s), NULL);
    }
    weftpy_guest_leave(&s->guest);
    s->service = NULL;
    s->inbox = NULL;
    weftpy_inbox_unref(q);
}

static int clear(PyObject *self)
{
    SELF;
    end(s); /* the functions may hold us, and nobody calls them any more */
    if (s->functions)
        for (Py_ssize_t i = 0; i < PyList_Size(s->functions); i++)
            PyList_SetItem(s->functions, i, Py_NewRef(Py_None)); /* keep the length: one for each signature */
    Py_CLEAR(s->registry);
    return 0;
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (s->weakrefs)
        PyObject_ClearWeakRefs(self);
    end(s);
    free(s->listeners);
    for (Py_ssize_t i = 0; s->sigs && i < PyList_Size(s->functions); i++)
        weft_sig_free(s->sigs[i]);
    free(s->sigs);
    Py_CLEAR(s->functions);
    Py_CLEAR(s->registry);
    Py_CLEAR(s->run);
    weftpy_free(self);
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *stats(PyObject *self, PyObject *unused)
{
    SELF;
    weft_service_stats_t c = WEFT_SERVICE_STATS_INIT;
    if (weftpy_service_check(s))
        return NULL;
    weft_service_get_stats(s->service, &c);
    pthread_mutex_lock(&s->inbox->lock);
    c.waiting += s->inbox->waiting;
    c.bytes += s->inbox->bytes;
    pthread_mutex_unlock(&s->inbox->lock);
    const weftpy_count_t rows[] = {
#define ROW(field) {#field, c.field}
        ROW(requests), ROW(answered), ROW(failed),    ROW(exhausted), ROW(refused), ROW(cancelled),
        ROW(late),     ROW(repeated), ROW(under_way), ROW(waiting),   ROW(bytes),   ROW(remembered),
#undef ROW
    };
    return weftpy_counts(rows, sizeof rows / sizeof *rows);
}

static PyObject *get_name(PyObject *self, void *unused)
{
    SELF;
    return PyUnicode_FromString(s->service && s->run->rt ? weft_service_name(s->service) : "");
}

static PyObject *get_instance(PyObject *self, void *unused)
{
    SELF;
    return PyUnicode_FromString(s->service && s->run->rt ? weft_service_instance(s->service) : "");
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!s->service || !s->run->rt);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    if (!s->service || !s->run->rt)
        return PyUnicode_FromString("<weft._core.Service closed>");
    return PyUnicode_FromFormat("<weft._core.Service %s@%s>", weft_service_name(s->service), weft_service_instance(s->service));
}

static PyMethodDef methods[] = {
    {"add", FAST(weftpy_service_add),
     DOC("add($self, signature, function, *, number=None, fetch=False, peer=False, serial=False)",
         "A function of requests; its index.")},
    {"remove", weftpy_service_remove, METH_O,
     DOC("remove($self, name, /)", "Take a function away. Gives None when the last of its requests is let go of.")},
    {"forget", weftpy_service_forget, METH_O,
     DOC("forget($self, index, /)", "Let go of the function of Python's, after it was removed.")},
    {"functions", weftpy_service_functions, METH_NOARGS,
     DOC("functions($self)", "Its functions as text, a line for each: number, a space, the signature.")},
    {"listen", listen, METH_O, DOC("listen($self, uri, /)", "Let callers in; the addresses with the ports that were picked.")},
    {"publish", FAST(publish), DOC("publish($self, registry=None, address=None)", "Enter it into a registry.")},
    {"parse", weftpy_service_parse, METH_O | METH_CLASS,
     DOC("parse($type, signature, /)",
         "Its text in one way of writing it, the name, and (name, type, stream) of parameters and results.")},
    {"take", weftpy_service_take, METH_NOARGS,
     DOC("take($self)", "Wait for the next request: (function, request), or None at the end. Of blocking runtimes.")},
    {"take_serial", weftpy_service_take_serial, METH_NOARGS,
     DOC("take_serial($self)", "The same for functions that are serial: for one thread.")},
    {"take_cancelled", weftpy_service_take_cancelled, METH_NOARGS,
     DOC("take_cancelled($self)", "Wait for a request with on_cancel that nobody waits for any more.")},
    {"stop", weftpy_service_stop, METH_NOARGS, DOC("stop($self)", "End take(), everywhere; what waits is answered UNAVAILABLE.")},
    {"drain", FAST(drain), DOC("drain($self, timeout=None)", "No new calls. Gives None when the last request was answered.")},
    {"close", FAST(close_method), DOC("close($self, timeout=None)", "End it. Gives None when the last request was let go of.")},
    {"stats", stats, METH_NOARGS, DOC("stats($self)", "Counters since it was opened, and what it has now.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"name", get_name, NULL, "Its name.", NULL},
    {"instance", get_instance, NULL, "Its own name among those of the service.", NULL},
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"runtime", T_OBJECT, offsetof(weftpy_service_t, run), READONLY, "Its runtime."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(weftpy_service_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, DOC("Service(runtime, name, *, instance=None, requests=None, queue=None, bytes=None, payload_max=None, "
                    "remembered=None, remember=None, peer_percent=None, stall=None)",
                    "Functions that other processes call.")},
    {Py_tp_new, new},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_service_spec = WEFTPY_SPEC("Service", weftpy_service_t, WEFTPY_GC, slots);
