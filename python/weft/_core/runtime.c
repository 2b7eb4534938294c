/* _core/runtime.c - Runtime: the library's, in an event loop (loop.c drives it) or for threads that wait (blocking.c).
 *
 * The package's Runtime is a class of Python's over this one. A runtime of a loop belongs to the loop it was made in, or given.
 * It knows its endpoints, by weak references, so that what arrives can say over which of them.
 *
 * Promise: closing completes everything under way with ClosedError, and whoever awaits it hears of that.
 * tests/python/test_loops.py holds us to it. */
#include "handle.h"

#include <string.h>
#include <unistd.h>

int weftpy_runtime_check(weftpy_runtime_t *run)
{
    if (run->rt && !(run->blocking && run->closing))
        return 0;
    weftpy_raise_text(run->st, WEFT_ERR_CLOSED, "the runtime is closed");
    return -1;
}

void weftpy_runtime_hold(weftpy_runtime_t *run, PyObject *object)
{
    if (!run->afterwards)
        run->afterwards = PyList_New(0);
    if (!run->afterwards || PyList_Append(run->afterwards, object)) {
        PyErr_Clear();
        Py_INCREF(object); /* never freed: better than freed too early */
    }
}

bool weftpy_runtime_forked(const weftpy_runtime_t *run)
{
    return run->pid != (int)getpid();
}

void weftpy_guest_enter(weftpy_guest_t **guests, weftpy_guest_t *guest, void (*leave)(weftpy_guest_t *guest))
{
    guest->leave = leave;
    guest->next = *guests;
    guest->before = guests;
    if (guest->next)
        guest->next->before = &guest->next;
    *guests = guest;
}

void weftpy_guest_leave(weftpy_guest_t *guest)
{
    if (!guest->before)
        return;
    *guest->before = guest->next;
    if (guest->next)
        guest->next->before = guest->before;
    guest->before = NULL;
}

void weftpy_guests_leave(weftpy_guest_t **guests)
{
    for (weftpy_guest_t *guest; (guest = *guests);) {
        weftpy_guest_leave(guest);
        guest->leave(guest);
    }
}

/* --- opening ------------------------------------------------------------------------------------------------------------- */

static int mode_of(weftpy_runtime_t *run, const char *word, weft_progress_mode_t *mode_out)
{
    if (!strcmp(word, "loop"))
        *mode_out = WEFT_PROGRESS_LOOP;
    else if (!strcmp(word, "thread"))
        *mode_out = WEFT_PROGRESS_THREAD;
    else if (!strcmp(word, "caller"))
        *mode_out = WEFT_PROGRESS_CALLER;
    else {
        weftpy_raise_text(run->st, WEFT_ERR_INVALID, "progress is \"%s\", which is none of loop, thread, caller", word);
        return -1;
    }
    return 0;
}

/* Set up what every method needs, even if __init__ was not called. */
static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    weftpy_state_t *st = weftpy_state_of(type);
    weftpy_runtime_t *run = st ? (weftpy_runtime_t *)PyType_GenericAlloc(type, 0) : NULL;
    if (!run)
        return NULL;
    run->st = st;
    run->pid = (int)getpid();
    run->woken_end = &run->woken;
    return (PyObject *)run;
}

static int opened(weftpy_runtime_t *run)
{
    if (!run->rt && !run->closing)
        return 0;
    weftpy_raise_text(run->st, WEFT_ERR_STATE, "the runtime is open already, or was: make another");
    return -1;
}

static int init(PyObject *self, PyObject *args, PyObject *kw)
{
    static char *words[] = {
        "progress",      "loop",        "name", "transports", "interfaces", "key",    "heartbeat", "connect_timeout",
        "close_timeout", "recv_window", "spin", "am_hold",    "key_random", "shards", "tls",       NULL};
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    const char *progress = "loop";
    PyObject *loop = NULL, *heartbeat = NULL, *connect = NULL, *closing = NULL, *window = NULL, *spin = NULL, *hold = NULL;
    PyObject *shards = NULL, *tls = NULL;
    weft_tls_opts_t files;
    Py_buffer key = {0};
    uint64_t recv_window = 0, n_shards = 0;
    int key_random = 0, has_tls = 0;
    int result = -1;
    if (opened(run))
        return -1;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|$sOzzzz*OOOOOOpOO:Runtime", words, &progress, &loop, &opts.name,
                                     &opts.transports, &opts.interfaces, &key, &heartbeat, &connect, &closing, &window, &spin,
                                     &hold, &key_random, &shards, &tls))
        return -1;
    opts.key = key.buf;
    opts.key_len = (size_t)key.len;
    opts.key_random = key_random;
    if (mode_of(run, progress, &opts.progress) || weftpy_ns(heartbeat, "heartbeat", &opts.heartbeat_ns) ||
        weftpy_ns(connect, "connect_timeout", &opts.connect_timeout_ns) ||
        weftpy_ns(closing, "close_timeout", &opts.close_timeout_ns) || weftpy_ns(spin, "spin", &opts.spin_ns) ||
        weftpy_ns(hold, "am_hold", &opts.am_hold_ns) || weftpy_u64(window, "recv_window", SIZE_MAX, &recv_window) ||
        weftpy_u64(shards, "shards", WEFT_SHARDS_MAX, &n_shards) || (has_tls = weftpy_tls(tls, &files)) < 0 ||
        opened(run)) /* check again: converting numbers can run any code */
        goto out;
    opts.recv_window = recv_window;
    opts.tls = has_tls ? &files : NULL;
    opts.shards = !shards || shards == Py_None ? 0 : n_shards ? (uint32_t)n_shards : WEFT_SHARDS_AUTO;
    run->blocking = opts.progress != WEFT_PROGRESS_LOOP;
    run->caller = opts.progress == WEFT_PROGRESS_CALLER;
    run->spin_most = spin && spin != Py_None ? opts.spin_ns : 50 * WEFT_MICROSECOND;
    if (run->spin_most <= 1)
        run->spin_most = 0;
    PyObject *running = NULL;
    if (!run->blocking && (weftpy_asyncio(run->st) || opened(run)))
        goto out;
    if (!run->blocking && (!loop || loop == Py_None)) {
        loop = running = PyObject_CallNoArgs(run->st->get_running_loop);
        if (!running)
            goto out;
    }
    if (!run->endpoints)
        run->endpoints = PyDict_New();
    if (!run->handlers)
        run->handlers = PyDict_New();
    run->pid = (int)getpid();
    if (run->blocking && !run->closed_eps && !(run->closed_eps = weftpy_closed_eps_new())) {
        Py_XDECREF(running);
        goto out;
    }
    if (run->endpoints && run->handlers) {
        weft_status_t status = weft_runtime_open(&opts, &run->rt);
        if (status)
            weftpy_raise(run->st, status);
        else
            result = run->blocking ? 0 : weftpy_loop_attach(run, loop);
        if (result && run->rt) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            weftpy_runtime_close(run);
            PyErr_Restore(type, error, trace);
        }
    }
    Py_XDECREF(running);
out:
    if (key.obj)
        PyBuffer_Release(&key);
    return result;
}

/* --- its end --------------------------------------------------------------------------------------------------------------- */

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(run->endpoints);
    Py_VISIT(run->handlers);
    Py_VISIT(run->loop);
    Py_VISIT(run->call_later);
    Py_VISIT(run->call_soon);
    Py_VISIT(run->soon_args);
    Py_VISIT(run->soon_kw);
    Py_VISIT(run->soon);
    Py_VISIT(run->ready);
    Py_VISIT(run->timer);
    Py_VISIT(run->calls);
    return 0;
}

static int clear(PyObject *self)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    weftpy_runtime_close(run);
    Py_CLEAR(run->handlers);
    Py_CLEAR(run->loop);
    Py_CLEAR(run->call_later);
    Py_CLEAR(run->call_soon);
    Py_CLEAR(run->soon_args);
    Py_CLEAR(run->soon_kw);
    Py_CLEAR(run->soon);
    Py_CLEAR(run->ready);
    Py_CLEAR(run->calls);
    return 0;
}

/* Python calls this in the main thread, between two bytecodes. */
static int close_later(void *self)
{
    weftpy_runtime_t *run = self;
    if (weftpy_inside && !Py_AddPendingCall(close_later, self)) /* this can also be inside of progress */
        return 0;
    weftpy_runtime_close(run); /* if the close fails, the runtime is never closed or freed */
    if (!run->rt)
        Py_DECREF((PyObject *)run);
    return 0;
}

/* Called for the class of the package, which has Python's own dealloc. If the runtime cannot be closed now, it stays until it
 * can. */
static void finalize(PyObject *self)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (run->rt && PyErr_ResourceWarning(self, 1, "unclosed %R", self))
        PyErr_WriteUnraisable(self);
    if (run->rt && !run->blocking && weftpy_inside) {
        Py_INCREF(self); /* close_later() drops this reference; if Python has no space for the call, it is never dropped */
        (void)Py_AddPendingCall(close_later, self);
    }
    PyErr_Restore(type, error, trace);
}

static void dealloc(PyObject *self)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    PyObject_GC_UnTrack(self);
    if (run->weakrefs)
        PyObject_ClearWeakRefs(self);
    clear(self);
    weftpy_closed_eps_free(run->closed_eps);
    Py_CLEAR(run->endpoints);
    weftpy_free(self);
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *get_name(PyObject *self, void *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    return weftpy_text(run->rt ? weft_runtime_name(run->rt) : NULL);
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    return PyBool_FromLong(!((weftpy_runtime_t *)self)->rt);
}

static PyObject *get_loop(PyObject *self, void *unused)
{
    PyObject *loop = ((weftpy_runtime_t *)self)->loop;
    return Py_NewRef(loop ? loop : Py_None);
}

static PyObject *endpoints(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    PyObject *list = PyList_New(0), *refs = list && run->endpoints ? PyDict_Values(run->endpoints) : NULL;
    for (Py_ssize_t i = 0; refs && i < PyList_Size(refs); i++) {
        PyObject *ep = PyWeakref_GetObject(PyList_GetItem(refs, i));
        if (ep && ep != Py_None && ((weftpy_endpoint_t *)ep)->ep && PyList_Append(list, ep))
            Py_CLEAR(list);
        if (!list)
            break;
    }
    Py_XDECREF(refs);
    return list;
}

static PyObject *repr(PyObject *self)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    if (!run->rt)
        return PyUnicode_FromString("<weft.Runtime closed>");
    return PyUnicode_FromFormat("<weft.Runtime \"%s\"%s>", weft_runtime_name(run->rt), run->blocking ? ", blocking" : "");
}

static PyObject *connect(FAST_ARGS)
{
    return weftpy_connect((weftpy_runtime_t *)self, args, n, kwnames);
}

static PyObject *listen(FAST_ARGS)
{
    return weftpy_listen((weftpy_runtime_t *)self, args, n, kwnames);
}

static PyObject *region(FAST_ARGS)
{
    return weftpy_region((weftpy_runtime_t *)self, args, n, kwnames);
}

static PyObject *store_server(FAST_ARGS)
{
    return weftpy_store_serve((weftpy_runtime_t *)self, args, n, kwnames);
}

static PyObject *mirror(FAST_ARGS)
{
    return weftpy_mirror((weftpy_runtime_t *)self, args, n, kwnames);
}

static PyObject *am_handle(FAST_ARGS)
{
    return weftpy_am_handle((weftpy_runtime_t *)self, args, n, kwnames);
}

static PyObject *attach(PyObject *self, PyObject *loop)
{
    return weftpy_loop_move((weftpy_runtime_t *)self, loop);
}

static PyMethodDef methods[] = {
    {"_connect", FAST(connect),
     DOC("_connect($self, uri=None, *, timeout=None, source=None, shared=False, address=None, retry=True, tls=None)",
         "Open an endpoint.")},
    {"_listen", FAST(listen), DOC("_listen($self, uri, handler=None, *, backlog=None, tls=None)", "Listen.")},
    {"_am_handle", FAST(am_handle),
     DOC("_am_handle($self, id, handler)", "Set the function for an id of active messages; None takes it away.")},
    {"_region", FAST(region),
     DOC("_region($self, memory, *, name=None, rights=None, name_rights=None, max_len=None, mapped=True, notify=None)",
         "Expose memory.")},
    {"store_server", FAST(store_server),
     DOC("store_server($self, size, *, client_bytes=None, client_blocks=None, blocks=None, clients=None, lease=None, "
         "mapped=True)",
         "Give out so many bytes of this process's memory to clients, over every endpoint.")},
    {"mirror", FAST(mirror),
     DOC("mirror($self, name, stores, *, size=None, write=False, force=False, checksums=False, lease=None, timeout=None)",
         "Open a mirror on one to three stores, or make it: `size` says how long. Gives a Mirror.")},
    {"_close", weftpy_runtime_close_method, METH_NOARGS,
     DOC("_close($self)", "Close it now: what is under way completes with ClosedError.")},
    {"_turn", weftpy_loop_turn, METH_NOARGS, "For the event loop: drive it, and wake who waits."},
    {"_timer", weftpy_loop_timer, METH_NOARGS, "For the event loop: a deadline of the library has come."},
    {"_attach", attach, METH_O, DOC("_attach($self, loop, /)", "Leave the event loop it has for another, that of this thread.")},
    {"_progress", weftpy_loop_progress, METH_NOARGS,
     DOC("_progress($self)", "Drive it once, by hand: functions are called in it, and what is complete is told by the loop. "
                             "Gives how much happened.")},
    {"_drive", weftpy_loop_drive, METH_NOARGS,
     DOC("_drive($self)", "Drive it once and tell nobody yet. Gives how much happened.")},
    {"_arm", weftpy_loop_arm, METH_NOARGS,
     DOC("_arm($self)", "By hand: prepare to sleep on its fd. False: there is something to do first.")},
    {"_address", FAST(weftpy_any_address),
     DOC("_address($self, handler)", "The bytes by which a peer finds it; the function gets the endpoints that come so.")},
    {"recv_any", FAST(weftpy_any_recv),
     DOC("recv_any($self, tag=0, mask=None, *, max_len=None, timeout=None, copy=True)",
         "A message from whichever endpoint has one, as bytes.")},
    {"recv_any_into", FAST(weftpy_any_recv_into),
     DOC("recv_any_into($self, buffer, tag=0, mask=None, *, timeout=None, stream=None)",
         "The same into a buffer. Gives its length; the Op has its sender.")},
    {"am_recv_any", FAST(weftpy_any_am_recv),
     DOC("am_recv_any($self, id=None, *, timeout=None)",
         "The next active message from whichever endpoint, that has no handler, as a Message.")},
    {"claim_any", FAST(weftpy_any_claim),
     DOC("claim_any($self, tag=0, mask=None)",
         "Take a message that has arrived out of the matching, as a Claim; None: there is none.")},
    {"_ended", weftpy_closed_eps_next, METH_NOARGS,
     DOC("_ended($self)", "For the thread that calls on_close of blocking endpoints: what to call next.")},
    {"probe_any", FAST(weftpy_any_probe),
     DOC("probe_any($self, tag=0, mask=None)", "(tag, length, endpoint) of a message that has arrived and waits, or None.")},
    {"stats", weftpy_runtime_stats, METH_NOARGS, DOC("stats($self)", "Counters since it was opened.")},
    {"shard_stats", weftpy_runtime_shard_stats, METH_NOARGS,
     DOC("shard_stats($self)", "The library's counters for each shard alone, as a list of dicts.")},
    {"endpoints", endpoints, METH_NOARGS, DOC("endpoints($self)", "Its endpoints that are open.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"name", get_name, NULL, "The instance name that peers see.", NULL},
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {"loop", get_loop, NULL, "Its event loop, or None.", NULL},
    {"shards", weftpy_runtime_shards, NULL, "How many shards it has; 0 once it is closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"under_way", T_ULONGLONG, offsetof(weftpy_runtime_t, under_way), READONLY, "How many operations are under way."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(weftpy_runtime_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     DOC("Runtime(*, progress=\"loop\", loop=None, name=None, transports=None, interfaces=None, key=None, heartbeat=None, "
         "connect_timeout=None, close_timeout=None, recv_window=None, spin=None, am_hold=None, key_random=False, shards=None)",
         "One progress engine with its endpoints, in an event loop or for threads that wait.")},
    {Py_tp_new, new},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_finalize, finalize},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_runtime_spec = WEFTPY_SPEC("Runtime", weftpy_runtime_t, WEFTPY_BASE | WEFTPY_GC, slots);
