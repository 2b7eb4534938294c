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

/* How long a thread waits for a request before it looks whether the runtime is still there. */
static const uint64_t slice_ns = WEFT_SECOND;

/* --- opening ------------------------------------------------------------------------------------------------------------- */

/* What every method relies on, whether __init__ was called or not. */
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
        opened(s)) /* last: numbers can run anything */
        return -1;
    if (stall && stall != Py_None && !opts.stall_ns)
        opts.stall_ns =
            UINT64_MAX; /* infinity, which weftpy_ns() leaves alone: for the library 0 is half a minute, and this is never */
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
    s->run = (weftpy_runtime_t *)Py_NewRef(runtime); /* from here on it was opened, well or ill */
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

static int check(weftpy_service_t *s)
{
    if (!s->service || !s->run->rt) {
        weftpy_raise_text(s->st, WEFT_ERR_CLOSED, "the service is closed");
        return -1;
    }
    return s->run->blocking ? weftpy_runtime_check(s->run) : weftpy_loop_before_post(s->run);
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
    if (!uri || check(s))
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
    if (weftpy_args(s->st, &sig_publish, args, n, kwnames, arg) || check(s))
        return NULL;
    if (arg[1] && arg[1] != Py_None && !(address = weftpy_str(arg[1], "address")))
        return NULL;
    if (arg[0] && arg[0] != Py_None && !(registry = weftpy_registry_of(s->run, arg[0])))
        return NULL;
    weft_status_t status = weft_service_publish(s->service, registry, address);
    if (status)
        return weftpy_raise(s->st, status);
    s->registry = registry ? Py_NewRef(arg[0]) : NULL; /* once: the library refuses a second time */
    weftpy_registry_used(s->registry, 1);
    Py_RETURN_NONE;
}

/* --- functions ----------------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_add = {"add", 5, 2, 2, {N_signature, N_function, N_number, N_fetch, N_peer}};

static PyObject *add(FAST_ARGS)
{
    SELF;
    PyObject *arg[5];
    uint64_t number = 0;
    weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
    if (weftpy_args(s->st, &sig_add, args, n, kwnames, arg) || weftpy_u64(arg[2], "number", UINT32_MAX, &number))
        return NULL;
    const char *text = weftpy_str(arg[0], "signature");
    int fetch = text && arg[3] ? PyObject_IsTrue(arg[3]) : 0, peer = text && fetch >= 0 && arg[4] ? PyObject_IsTrue(arg[4]) : 0;
    if (!text || fetch < 0 || peer < 0)
        return NULL;
    if (!PyCallable_Check(arg[1])) {
        PyErr_SetString(PyExc_TypeError, "function is something that is called with a request");
        return NULL;
    }
    if (check(s)) /* last: what was read can run anything */
        return NULL;
    weft_sig_t *sig;
    weft_status_t status = weft_sig_parse(text, &sig);
    if (status)
        return weftpy_raise(s->st, status);
    Py_ssize_t index = PyList_Size(s->functions);
    weftpy_function_t *f = malloc(sizeof *f);
    weft_sig_t **sigs = f ? realloc(s->sigs, ((size_t)index + 1) * sizeof *sigs) : NULL;
    if (!sigs || PyList_Append(s->functions, arg[1])) {
        weft_sig_free(sig);
        free(f);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    s->sigs = sigs;
    sigs[index] = sig;
    *f = (weftpy_function_t){s->inbox, (uint32_t)index, fetch, peer};
    opts.number = (uint32_t)number;
    opts.fetch = true; /* into memory of our own, or of its own */
    opts.release = weftpy_inbox_released;
    atomic_fetch_add(&s->inbox->refs, 1);
    status = weft_service_add(s->service, text, weftpy_inbox_arrived, f, &opts);
    if (status) {
        weftpy_raise(s->st, status);
        PyList_SetItem(s->functions, index, Py_NewRef(Py_None)); /* its place stays taken */
        weftpy_inbox_released(f, NULL);                          /* it is still ours */
        return NULL;
    }
    return PyLong_FromSsize_t(index);
}

static PyObject *posted(weftpy_service_t *s, weftpy_op_t *op, weft_status_t status)
{
    op->held = Py_NewRef((PyObject *)s);
    return weftpy_op_posted(op, status);
}

static PyObject *remove_it(PyObject *self, PyObject *arg)
{
    SELF;
    const char *name = weftpy_str(arg, "name");
    weftpy_op_t *op = !name || check(s) ? NULL : weftpy_op_new(s->run, &weftpy_gives_none);
    return op ? posted(s, op, weft_service_remove(s->service, name, &op->op)) : NULL;
}

/* Nothing of the library's will ask for it any more. */
static PyObject *forget(PyObject *self, PyObject *arg)
{
    SELF;
    uint64_t index = 0;
    if (!s->run)
        return check(s) ? NULL : Py_NewRef(Py_None);
    Py_ssize_t size = PyList_Size(s->functions);
    if (weftpy_u64(arg, "index", (uint64_t)(size ? size - 1 : 0), &index))
        return NULL;
    if (size && PyList_SetItem(s->functions, (Py_ssize_t)index, Py_NewRef(Py_None)))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *functions(PyObject *self, PyObject *unused)
{
    SELF;
    if (check(s))
        return NULL;
    for (size_t cap = weft_service_functions(s->service, NULL, 0) + 1;;) {
        char *text = malloc(cap);
        if (!text)
            return PyErr_NoMemory();
        size_t len = weft_service_functions(s->service, text, cap);
        PyObject *made = len < cap ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)len, "replace") : NULL;
        free(text);
        if (len < cap)
            return made;
        cap = len + 1; /* one was added meanwhile */
    }
}

static PyObject *params_of(const weft_param_t *list, size_t n)
{
    PyObject *made = PyList_New(0);
    for (size_t i = 0; made && i < n; i++) {
        PyObject *row = Py_BuildValue("(ssN)", list[i].name, weft_type_name(list[i].type), PyBool_FromLong(list[i].stream));
        if (!row || PyList_Append(made, row))
            Py_CLEAR(made);
        Py_XDECREF(row);
    }
    return made;
}

static PyObject *parse(PyObject *class, PyObject *arg)
{
    weftpy_state_t *st = weftpy_state_of((PyTypeObject *)class);
    const char *text = st ? weftpy_str(arg, "signature") : NULL;
    weft_sig_t *sig;
    size_t n_params, n_results;
    if (!text)
        return NULL;
    weft_status_t status = weft_sig_parse(text, &sig);
    if (status)
        return weftpy_raise(st, status);
    const weft_param_t *params = weft_sig_params(sig, &n_params), *results = weft_sig_results(sig, &n_results);
    PyObject *takes = params_of(params, n_params), *gives = takes ? params_of(results, n_results) : NULL, *made = NULL;
    if (gives)
        made = Py_BuildValue("(ssOO)", weft_sig_text(sig), weft_sig_name(sig), takes, gives);
    Py_XDECREF(takes);
    Py_XDECREF(gives);
    weft_sig_free(sig);
    return made;
}

/* --- requests ------------------------------------------------------------------------------------------------------------ */

int weftpy_service_ready(weftpy_service_t *s, weftpy_arrival_t *a)
{
    Py_INCREF((PyObject *)s); /* making objects can run destructors of others */
    PyObject *function = Py_XNewRef(PyList_GetItem(s->functions, a->index));
    PyObject *request = weftpy_request_new(s, a);
    int failed = !function || !request || weftpy_loop_call(s->run, function, request);
    if (failed)
        PyErr_WriteUnraisable((PyObject *)s);
    Py_XDECREF(request);
    Py_XDECREF(function);
    Py_DECREF((PyObject *)s);
    return failed ? -1 : 0;
}

/* One more look, without the GIL; 1: there may be something, 0: there is none and never will be, -1: a signal. */
static int wait_for(weftpy_service_t *s, bool news)
{
    weftpy_inbox_t *q = s->inbox;
    PyThreadState *save = PyEval_SaveThread();
    bool on = weftpy_inbox_wait(q, news, slice_ns);
    PyEval_RestoreThread(save);
    if (PyErr_CheckSignals())
        return -1;
    if (on && s->run->rt && !s->run->closing)
        return 1;
    if (!s->run->rt)
        weftpy_inbox_forget(q);
    return 0;
}

static int check_blocking(weftpy_service_t *s)
{
    if (!s->run)
        return check(s);
    if (s->run->blocking && s->inbox->pid == getpid())
        return 0;
    weftpy_raise_text(s->st, s->run->blocking ? WEFT_ERR_FORKED : WEFT_ERR_STATE,
                      s->run->blocking ? "the service belongs to the parent of this process"
                                       : "requests of an event loop are handed to their functions by the loop");
    return -1;
}

static PyObject *take(PyObject *self, PyObject *unused)
{
    SELF;
    int more = 1;
    if (check_blocking(s))
        return NULL;
    while (more > 0) {
        weftpy_arrival_t *a = s->run->rt && !s->run->closing ? weftpy_inbox_take(s->inbox) : NULL;
        if (!a) {
            more = wait_for(s, false);
            continue;
        }
        PyObject *function = Py_XNewRef(PyList_GetItem(s->functions, a->index));
        PyObject *request = weftpy_request_new(s, a);
        PyObject *both = function && request ? PyTuple_Pack(2, function, request) : NULL;
        Py_XDECREF(function);
        Py_XDECREF(request);
        return both;
    }
    return more < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *take_cancelled(PyObject *self, PyObject *unused)
{
    SELF;
    int more = 1;
    if (check_blocking(s))
        return NULL;
    while (more > 0) {
        weftpy_arrival_t *a = weftpy_inbox_take_told(s->inbox);
        if (a)
            return Py_NewRef((PyObject *)a->object);
        more = wait_for(s, true);
    }
    return more < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *stop(PyObject *self, PyObject *unused)
{
    SELF;
    if (s->run && s->run->rt && s->inbox->pid == getpid())
        weftpy_inbox_stop(s->inbox);
    else if (s->run && s->inbox->pid == getpid())
        weftpy_inbox_forget(s->inbox);
    Py_RETURN_NONE;
}

/* --- the end ------------------------------------------------------------------------------------------------------------- */

static PyObject *already(weftpy_service_t *s)
{
    if (!s->run)
        return check(s) ? NULL : Py_NewRef(Py_None);
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
    if (weftpy_args_timeout(s->st, &sig_drain, args, n, kwnames, &timeout) || check(s))
        return NULL;
    weftpy_op_t *op = weftpy_op_new(s->run, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return posted(s, op, weft_service_drain(s->service, &op->op));
}

/* What goes before the service itself; the service, which nobody else finds from here on. */
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

/* The runtime is closing, and nobody has asked us. */
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
    if (weftpy_args_timeout(s->st, &sig_close, args, n, kwnames, &timeout) || check(s))
        return NULL;
    weftpy_op_t *op = weftpy_op_new(s->run, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return posted(s, op, weft_service_close(ending(s), &op->op));
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
    end(s); /* functions may be what keeps us alive: nobody calls them any more */
    if (s->functions)
        for (Py_ssize_t i = 0; i < PyList_Size(s->functions); i++)
            PyList_SetItem(s->functions, i, Py_NewRef(Py_None)); /* as many as there are signatures */
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
    if (check(s))
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

static PyObject *get_runtime(PyObject *self, void *unused)
{
    SELF;
    return Py_NewRef(s->run ? (PyObject *)s->run : Py_None);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    if (!s->service || !s->run->rt)
        return PyUnicode_FromString("<weft._core.Service closed>");
    return PyUnicode_FromFormat("<weft._core.Service %s@%s>", weft_service_name(s->service), weft_service_instance(s->service));
}

static PyMethodDef methods[] = {
    {"add", FAST(add),
     DOC("add($self, signature, function, *, number=None, fetch=False, peer=False)", "A function of requests; its index.")},
    {"remove", remove_it, METH_O,
     DOC("remove($self, name, /)", "Take a function away. Gives None when the last of its requests is let go of.")},
    {"forget", forget, METH_O, DOC("forget($self, index, /)", "Let go of the function of Python's, after it was removed.")},
    {"functions", functions, METH_NOARGS,
     DOC("functions($self)", "Its functions as text, a line for each: number, a space, the signature.")},
    {"listen", listen, METH_O, DOC("listen($self, uri, /)", "Let callers in; the addresses with the ports that were picked.")},
    {"publish", FAST(publish), DOC("publish($self, registry=None, address=None)", "Enter it into a registry.")},
    {"parse", parse, METH_O | METH_CLASS,
     DOC("parse($type, signature, /)",
         "Its text in one way of writing it, the name, and (name, type, stream) of parameters and results.")},
    {"take", take, METH_NOARGS,
     DOC("take($self)", "Wait for the next request: (function, request), or None at the end. Of blocking runtimes.")},
    {"take_cancelled", take_cancelled, METH_NOARGS,
     DOC("take_cancelled($self)", "Wait for a request with on_cancel that nobody waits for any more.")},
    {"stop", stop, METH_NOARGS, DOC("stop($self)", "End take(), everywhere; what waits is answered UNAVAILABLE.")},
    {"drain", FAST(drain), DOC("drain($self, timeout=None)", "No new calls. Gives None when the last request was answered.")},
    {"close", FAST(close_method), DOC("close($self, timeout=None)", "End it. Gives None when the last request was let go of.")},
    {"stats", stats, METH_NOARGS, DOC("stats($self)", "Counters since it was opened, and what it has now.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"name", get_name, NULL, "Its name.", NULL},
    {"instance", get_instance, NULL, "Its own name among those of the service.", NULL},
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {"runtime", get_runtime, NULL, "Its runtime.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
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
