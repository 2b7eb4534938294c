/* _core/action.c - Action: what a compute element is given. It has the transports, by name.
 *
 *     OPEN -> CLOSED   close(), `with`, the object goes, or the runtime is closed: its transports end with it
 *
 * Transports hold their action. Remotes and blocks that were had of them are known here by weak references, and are gone when
 * their transport leads elsewhere. Threads that move many bytes post without the GIL; closing waits for them, which does not take
 * long: the post does not wait for anybody.
 *
 * Promise: after close() and release() every use raises ClosedError, whoever holds what. tests/python/test_disagg_action.py holds
 * us to it. */
#include "elements.h"

#include <string.h>
#include <unistd.h>

#define SELF weftpy_action_t *a = (weftpy_action_t *)self

enum { PROFILE_MOST = 1 << 20 };

static const weftpy_handle_kind_t kind;

int weftpy_action_check(weftpy_action_t *a)
{
    return weftpy_handle_check(&a->h);
}

/* --- remotes and blocks of its transports -------------------------------------------------------------------------------- */

/* Is that the transport of this name, or one of "name@i"? NULL is everyone. */
static bool of_element(PyObject *name, const char *element)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    size_t len = element ? strlen(element) : 0;
    if (!element)
        return true;
    if (!text) {
        PyErr_Clear();
        return true;
    }
    return !strncmp(text, element, len) && (text[len] == 0 || text[len] == '@');
}

/* End the remotes: they cannot be used any more. A block whose operation is under way stays known until that completes. No
 * exception is set or lost. */
static void forget_remotes(weftpy_action_t *a, const char *element)
{
    for (Py_ssize_t i = a->remotes ? PyList_Size(a->remotes) : 0; i-- > 0;) {
        PyObject *pair = PyList_GetItem(a->remotes, i);
        weftpy_handle_t *known = (weftpy_handle_t *)PyWeakref_GetObject(PyTuple_GetItem(pair, 1));
        bool gone = !known || (PyObject *)known == Py_None;
        bool block = !gone && Py_TYPE((PyObject *)known) == a->h.run->st->block;
        if (!gone && !of_element(PyTuple_GetItem(pair, 0), element))
            continue;
        if (block && !known->of && known->coming && !weft_op_done(known->coming))
            continue;
        PyList_SetSlice(a->remotes, i, i + 1, NULL);
        if (gone)
            continue;
        if (block)
            weftpy_handle_end(known);
        else
            weftpy_handle_take(known); /* the library owns it, not the remote */
    }
}

int weftpy_action_know(weftpy_action_t *a, PyObject *name, PyObject *handle)
{
    if (!a->remotes && !(a->remotes = PyList_New(0)))
        return -1;
    for (Py_ssize_t i = PyList_Size(a->remotes); i-- > 0;) {
        PyObject *known = PyWeakref_GetObject(PyTuple_GetItem(PyList_GetItem(a->remotes, i), 1));
        if (!known || known == Py_None)
            PyList_SetSlice(a->remotes, i, i + 1, NULL);
    }
    PyObject *ref = PyWeakref_NewRef(handle, NULL), *pair = ref ? PyTuple_Pack(2, name, ref) : NULL;
    int failed = !pair || PyList_Append(a->remotes, pair);
    Py_XDECREF(ref);
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

/* --- its life ------------------------------------------------------------------------------------------------------------ */

/* No call finds it any more. Wait for the threads that found it before. */
static void let_finish(weftpy_action_t *a)
{
    if (weftpy_runtime_forked(a->h.run))
        a->busy = 0; /* those threads are in the parent process */
    while (a->busy) {
        PyThreadState *save = PyEval_SaveThread();
        usleep(50);
        PyEval_RestoreThread(save);
    }
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    forget_remotes(a, NULL);
    PyErr_Restore(type, error, trace);
}

static void let_go(weftpy_handle_t *h, void *of)
{
    let_finish((weftpy_action_t *)h);
    weft_action_close(of, NULL);
}

static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *words[] = {"runtime", "id", "connect_timeout", "spare", NULL};
    weftpy_state_t *st = weftpy_state_of(type);
    PyObject *runtime, *id = NULL, *connect = NULL, *spare = NULL;
    weft_action_opts_t opts = WEFT_ACTION_OPTS_INIT;
    const char *text = "";
    weft_action_t *of;
    if (!st || !PyArg_ParseTupleAndKeywords(args, kw, "O!|O$OO:Action", words, st->runtime, &runtime, &id, &connect, &spare))
        return NULL;
    if ((id && !(text = weftpy_str(id, "id"))) || weftpy_ns(connect, "connect_timeout", &opts.connect_ns) ||
        weftpy_u64(spare, "spare", UINT64_MAX, &opts.spare))
        return NULL;
    weftpy_runtime_t *run = (weftpy_runtime_t *)runtime;
    if (weftpy_runtime_check(run) || weftpy_loop_before_post(run))
        return NULL;
    weftpy_action_t *a = weftpy_handle_new(type, run, NULL, &kind);
    if (!a)
        return NULL;
    weft_status_t status = weft_action_open(run->rt, text, &opts, &of);
    if (status) {
        weftpy_raise(st, status);
        Py_DECREF(a);
        return NULL;
    }
    a->h.of = of;
    return (PyObject *)a;
}

static void profile_free(weftpy_action_t *a)
{
    weftpy_profile_t *p = a->profile;
    a->profile = NULL;
    for (size_t i = 0; p && i < p->room; i++)
        Py_XDECREF(p->of[i].name);
    PyMem_Free(p);
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (a->h.run)
        weftpy_handle_end(&a->h);
    profile_free(a);
    Py_CLEAR(a->remotes);
    weftpy_handle_dealloc(self);
}

static PyObject *close_it(weftpy_handle_t *h, const weftpy_gives_t *gives)
{
    weftpy_action_t *a = (weftpy_action_t *)h;
    if (!a->h.of || !a->h.run->rt)
        return weftpy_done(a->h.run, Py_NewRef(Py_None));
    weftpy_op_t *op = weftpy_handle_begin(&a->h, gives);
    if (!op)
        return NULL;
    weft_action_t *of = weftpy_handle_take(&a->h);
    let_finish(a);
    if (weftpy_runtime_check(a->h.run)) { /* the runtime was closed, and the action with it */
        PyErr_Clear();
        Py_DECREF(op);
        return weftpy_done(a->h.run, Py_NewRef(Py_None));
    }
    return weftpy_op_posted(op, weft_action_close(of, &op->op));
}

static const weftpy_handle_kind_t kind = {"the action", let_go, close_it};

/* --- transports ---------------------------------------------------------------------------------------------------------- */

/* The result of a call that completes at once. */
static PyObject *answered(weftpy_action_t *a, weft_status_t status)
{
    if (status)
        return weftpy_raise(a->h.run->st, status);
    Py_RETURN_NONE;
}

static int begin(weftpy_action_t *a)
{
    return weftpy_action_check(a) || (!a->h.run->blocking && weftpy_loop_before_post(a->h.run)) ? -1 : 0;
}

static PyObject *add(PyObject *self, PyObject *arg)
{
    SELF;
    const char *durl = weftpy_str(arg, "durl");
    return !durl || begin(a) ? NULL : answered(a, weft_action_add(a->h.of, durl));
}

static const weftpy_sig_t sig_configure = {"configure", 2, 2, 2, {N_name, N_durl}};

static PyObject *configure(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    const char *name, *durl;
    if (weftpy_args(a->h.run->st, &sig_configure, args, n, kwnames, arg) || !(name = weftpy_str(arg[0], "name")) ||
        !(durl = weftpy_str(arg[1], "durl")) || begin(a))
        return NULL;
    weft_durl_t parts = WEFT_DURL_INIT;
    weft_transport_t *of;
    /* a transport loses its remotes only if it gets another address */
    if (!weft_durl_parse(durl, &parts) && !weft_action_get(a->h.of, name, "rdma", &of))
        forget_remotes(a, name);
    return answered(a, weft_action_configure(a->h.of, name, durl));
}

static PyObject *release(PyObject *self, PyObject *arg)
{
    SELF;
    const char *name = weftpy_str(arg, "name");
    if (!name || begin(a))
        return NULL;
    forget_remotes(a, name);
    return answered(a, weft_action_release(a->h.of, name));
}

static PyObject *terminate(PyObject *self, PyObject *unused)
{
    SELF;
    if (a->h.of && a->h.run->rt) /* a closed action needs no terminate */
        weft_action_terminate(a->h.of);
    Py_RETURN_NONE;
}

/* --- profile ------------------------------------------------------------------------------------------------------------- */

void weftpy_action_profiled(weftpy_action_t *a, const struct weftpy_profiled *one)
{
    weftpy_profile_t *p = a->profile;
    struct weftpy_profiled *at = &p->of[p->n++ % p->room];
    PyObject *before = at->name;
    *at = *one;
    Py_INCREF(at->name);
    Py_XDECREF(before);
}

static PyObject *profile(PyObject *self, PyObject *arg)
{
    SELF;
    uint64_t room = 0;
    if (weftpy_u64(arg, "n", PROFILE_MOST, &room))
        return NULL;
    weftpy_profile_t *p = room ? PyMem_Calloc(1, sizeof *p + room * sizeof p->of[0]) : NULL;
    if (room && !p)
        return PyErr_NoMemory();
    profile_free(a);
    if (p)
        p->room = room;
    a->profile = p;
    Py_RETURN_NONE;
}

static PyObject *profiled_row(const struct weftpy_profiled *one)
{
    return Py_BuildValue("(OsKdd)", one->name, one->what, (unsigned long long)one->size, (double)one->began / 1e9,
                         (double)one->took / 1e9);
}

static PyObject *recorded_row(const struct weftpy_profiled *one)
{
    return Py_BuildValue("(OsKKKK)", one->name, one->what, (unsigned long long)one->size, (unsigned long long)one->began,
                         (unsigned long long)one->took, (unsigned long long)one->waited);
}

static PyObject *rows_of(weftpy_action_t *a, PyObject *(*row_of)(const struct weftpy_profiled *one))
{
    PyObject *list = PyList_New(0);
    weftpy_profile_t *p = a->profile;
    uint64_t n = p ? p->n : 0, first = p && n > p->room ? n - p->room : 0;
    for (uint64_t i = first; list && p == a->profile && i < n; i++) {
        PyObject *row = row_of(&p->of[i % p->room]);
        if (!row || PyList_Append(list, row))
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *profiled(PyObject *self, PyObject *unused)
{
    return rows_of((weftpy_action_t *)self, profiled_row);
}

static PyObject *recorded(PyObject *self, PyObject *unused)
{
    SELF;
    uint64_t n = a->profile ? a->profile->n : 0;
    PyObject *rows = rows_of(a, recorded_row);
    return rows ? Py_BuildValue("(KN)", (unsigned long long)n, rows) : NULL;
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *get_id(PyObject *self, void *unused)
{
    SELF;
    return weftpy_text(a->h.of && a->h.run->rt ? weft_action_id(a->h.of) : NULL);
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!a->h.of || !a->h.run->rt);
}

static PyObject *get_terminated(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!a->h.of || !a->h.run->rt || weft_action_terminated(a->h.of));
}

static PyObject *get_runtime(PyObject *self, void *unused)
{
    return Py_NewRef((PyObject *)((weftpy_action_t *)self)->h.run);
}

static PyMethodDef methods[] = {
    {"add", add, METH_O,
     DOC("add($self, durl, /)", "Add a transport. One whose durl says where it leads connects at once, any other waits.")},
    {"configure", FAST(configure),
     DOC("configure($self, name, durl)", "Say where a transport leads. From any thread, in a blocking runtime.")},
    {"release", release, METH_O,
     DOC("release($self, name, /)", "Let go of an element: every use of its transports raises from now on.")},
    {"terminate", terminate, METH_NOARGS,
     DOC("terminate($self)", "Its time is over: what waits for a transport ends, and so does serve().")},
    {"profile", profile, METH_O,
     DOC("profile($self, n, /)", "Keep what the last n reads and writes took, for profiled(); 0 stops it.")},
    {"profiled", profiled, METH_NOARGS,
     DOC("profiled($self)",
         "The last operations since profile(n): (transport, what, bytes, when it began on the monotonic clock, seconds).")},
    {"recorded", recorded, METH_NOARGS,
     DOC("recorded($self)",
         "How many operations there were since profile(n), and the last of them: (transport, what, bytes, when "
         "it began on the monotonic clock, how long it took, how long of that it waited for the element), in "
         "nanoseconds.")},
    {"close", weftpy_handle_close, METH_NOARGS,
     DOC("close($self)", "Close it with all of its transports. Gives when nothing of it is under way any more.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"id", get_id, NULL, "What it was opened with.", NULL},
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {"terminated", get_terminated, NULL, "True once it was terminated or closed.", NULL},
    {"runtime", get_runtime, NULL, "The runtime it was opened on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, DOC("Action(runtime, id=\"\", *, connect_timeout=None, spare=None)",
                    "What a compute element is given; it has the transports.")},
    {Py_tp_new, new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, weftpy_handle_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {0, NULL},
};

PyType_Spec weftpy_action_spec = WEFTPY_SPEC("Action", weftpy_action_t, WEFTPY_GC, slots);
