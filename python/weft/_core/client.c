/* _core/client.c - Client: the functions of a service, as methods of an object.
 *
 * client.add is the Method of that name, made when it is first asked for and found in a dictionary afterwards; what the class
 * itself has goes first, so a function called "close" is had by client.method("close").
 *
 *     open -> closed   close(), or the object goes, or its runtime: calls under way end with ClosedError
 *
 * The package's Client and blocking.Client are classes of Python's over this one.
 *
 * tests/python/test_rpc_client.py holds us to it. */
#include "calls.h"
#include "registry.h"

typedef struct client {
    PyObject_HEAD weftpy_state_t *st;
    weftpy_link_t *link; /* NULL: never opened */
    PyObject *methods;   /* attribute: Method */
    PyObject *texts;     /* name or signature: Method */
    PyObject *weakrefs;
} client_t;

#define SELF client_t *c = (client_t *)self

/* --- the link ----------------------------------------------------------------------------------------------------- */

int weftpy_link_check(weftpy_link_t *l)
{
    if (__builtin_expect(l && l->client && l->run->rt && !l->run->closing, 1))
        return 0;
    if (!l)
        PyErr_SetString(PyExc_TypeError, "the client was never opened: its class has to call __init__() of ours");
    else
        weftpy_raise_text(l->st, WEFT_ERR_CLOSED, l->run->rt ? "the client is closed" : "the runtime of the client is closed");
    return -1;
}

static weftpy_link_t *link_new(weftpy_state_t *st, weftpy_runtime_t *run, PyObject *uri, PyObject *registry)
{
    weftpy_link_t *l = (weftpy_link_t *)PyType_GenericAlloc(st->link, 0);
    if (!l)
        return NULL;
    l->st = st;
    l->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    l->uri = Py_NewRef(uri);
    l->held = Py_XNewRef(registry);
    return l;
}

/* Close it without waiting. Any thread. */
static void link_dealloc(PyObject *self)
{
    weftpy_link_t *l = (weftpy_link_t *)self;
    weftpy_runtime_t *run = l->run;
    if (l->client)
        weftpy_registry_used(l->held, -1);
    if (l->client && run->rt && !weftpy_runtime_forked(run)) {
        (void)weft_client_close(l->client, NULL);
        if (!run->blocking && !run->scheduled && run->thread == PyThread_get_thread_ident()) {
            PyObject *kind, *error, *trace;
            PyErr_Fetch(&kind, &error, &trace);
            if (weftpy_loop_schedule(run))
                PyErr_Clear(); /* the loop is closed, and the runtime will be closed too */
            PyErr_Restore(kind, error, trace);
        }
    }
    Py_CLEAR(l->uri);
    Py_CLEAR(l->held);
    Py_CLEAR(l->run);
    weftpy_free(self);
}

static PyType_Slot link_slots[] = {
    {Py_tp_doc, "A client of the library, for a Client and its Methods."},
    {Py_tp_dealloc, link_dealloc},
    {0, NULL},
};

PyType_Spec weftpy_link_spec = WEFTPY_SPEC("_Link", weftpy_link_t, WEFTPY_NOT_CALLED, link_slots);

/* --- life --------------------------------------------------------------------------------------------------------- */

static int init(PyObject *self, PyObject *args, PyObject *kw)
{
    static char *words[] = {"runtime", "uri",       "service", "instance",  "registry",
                            "tries",   "instances", "timeout", "reconnect", NULL};
    SELF;
    weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
    PyObject *runtime, *uri, *registry = NULL, *tries = NULL, *instances = NULL, *timeout = NULL, *reconnect = NULL;
    uint64_t n_tries = 0, n_instances = 0;
    c->st = weftpy_state_of(Py_TYPE(self));
    if (!c->st)
        return -1;
    if (c->link) {
        weftpy_raise_text(c->st, WEFT_ERR_STATE, "the client is open already");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!U|$zzOOOOO:Client", words, c->st->runtime, &runtime, &uri, &opts.service,
                                     &opts.instance, &registry, &tries, &instances, &timeout, &reconnect) ||
        weftpy_u64(tries, "tries", UINT32_MAX, &n_tries) || weftpy_u64(instances, "instances", UINT32_MAX, &n_instances) ||
        weftpy_ns(timeout, "timeout", &opts.timeout_ns) || weftpy_ns(reconnect, "reconnect", &opts.reconnect_ns))
        return -1;
    const char *text = weftpy_str(uri, "uri");
    if (!text)
        return -1;
    opts.tries = (uint32_t)n_tries;
    opts.instances = (uint32_t)n_instances;
    weftpy_runtime_t *run = (weftpy_runtime_t *)runtime;
    if ((!c->methods && !(c->methods = PyDict_New())) || (!c->texts && !(c->texts = PyDict_New())))
        return -1;
    weftpy_link_t *l = link_new(c->st, run, uri, registry);
    if (!l || weftpy_runtime_check(run) || (!run->blocking && weftpy_loop_before_post(run)) ||
        (registry && registry != Py_None && !(opts.registry = weftpy_registry_of(run, registry)))) {
        Py_XDECREF((PyObject *)l);
        return -1;
    }
    weft_status_t status = weft_client_open(run->rt, text, &opts, &l->client);
    if (status) {
        l->client = NULL;
        weftpy_raise(c->st, status);
        Py_DECREF(l);
        return -1;
    }
    weftpy_registry_used(l->held, 1);
    l->timeout_ns = opts.timeout_ns;
    c->link = l;
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    SELF;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(c->methods);
    Py_VISIT(c->texts);
    return 0;
}

static int clear(PyObject *self)
{
    SELF;
    Py_CLEAR(c->methods);
    Py_CLEAR(c->texts);
    return 0;
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (c->weakrefs)
        PyObject_ClearWeakRefs(self);
    Py_CLEAR(c->methods);
    Py_CLEAR(c->texts);
    Py_CLEAR(c->link);
    weftpy_free(self);
}

/* --- methods ------------------------------------------------------------------------------------------------------ */

static PyObject *method_of(client_t *c, PyObject *text)
{
    PyObject *found = c->texts ? PyDict_GetItemWithError(c->texts, text) : NULL;
    if (found)
        return Py_NewRef(found);
    if (PyErr_Occurred() || weftpy_link_check(c->link))
        return NULL;
    found = weftpy_method_new(c->link, text);
    if (found && c->texts && PyDict_SetItem(c->texts, text, found))
        Py_CLEAR(found);
    return found;
}

static PyObject *get_attribute(PyObject *self, PyObject *name)
{
    SELF;
    PyObject *found = c->methods ? PyDict_GetItemWithError(c->methods, name) : NULL;
    if (found)
        return Py_NewRef(found);
    if (PyErr_Occurred() || (found = PyObject_GenericGetAttr(self, name)) || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (!text || *text == '_' || !c->link) /* names with an underscore are protocol names of Python, not functions of a server */
        return NULL;
    PyErr_Clear();
    found = method_of(c, name);
    if (found && c->methods && PyDict_SetItem(c->methods, name, found))
        Py_CLEAR(found);
    if (!found && PyErr_ExceptionMatches(c->st->errors[-(int)WEFT_ERR_INVALID])) {
        PyErr_Clear();
        PyErr_Format(PyExc_AttributeError, "a client has no %R, and no function has such a name", name);
    }
    return found;
}

static PyObject *method(PyObject *self, PyObject *text)
{
    SELF;
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "method() takes a signature or a name as text, not %R", (PyObject *)Py_TYPE(text));
        return NULL;
    }
    return method_of(c, text);
}

/* Read the answer of reflection: it has the signatures of methods. Returns how many. */
static PyObject *learn(PyObject *self, PyObject *lines)
{
    SELF;
    if (!PyUnicode_Check(lines)) {
        PyErr_SetString(PyExc_TypeError, "_learn() takes lines of text");
        return NULL;
    }
    PyObject *all = weftpy_link_check(c->link) ? NULL : PyObject_CallMethod(lines, "splitlines", NULL);
    Py_ssize_t n = all && PyList_Check(all) ? PyList_Size(all) : -1, known = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *line = PyList_GetItem(all, i);
        const char *text = PyUnicode_AsUTF8AndSize(line, NULL), *sig = text;
        weft_sig_t *parsed;
        while (sig && *sig >= '0' && *sig <= '9')
            sig++;
        if (sig && *sig == ' ')
            sig++;
        if (!sig || weft_sig_parse(sig, &parsed)) { /* the server has a newer version: a call by name may still work */
            PyErr_Clear();
            continue;
        }
        PyObject *name = PyUnicode_InternFromString(weft_sig_name(parsed)), *whole = PyUnicode_FromString(weft_sig_text(parsed));
        weft_sig_free(parsed);
        PyObject *known_one = name && whole ? method_of(c, whole) : NULL;
        int failed = !known_one || !c->texts || PyDict_SetItem(c->texts, name, known_one);
        PyObject *own = failed ? NULL : PyObject_GenericGetAttr(self, name); /* attributes of the class come first */
        if (!own)
            PyErr_Clear();
        failed = failed || (!own && (!c->methods || PyDict_SetItem(c->methods, name, known_one)));
        Py_XDECREF(own);
        Py_XDECREF(name);
        Py_XDECREF(whole);
        Py_XDECREF(known_one);
        if (failed) {
            Py_DECREF(all);
            return PyErr_Occurred() ? NULL : PyErr_NoMemory();
        }
        known++;
    }
    Py_XDECREF(all);
    return n < 0 ? NULL : PyLong_FromSsize_t(known);
}

static PyObject *functions(PyObject *self, PyObject *service)
{
    return weftpy_functions(((client_t *)self)->link, service);
}

/* --- closing, asking ---------------------------------------------------------------------------------------------- */

static PyObject *close_it(PyObject *self, PyObject *unused)
{
    SELF;
    weftpy_link_t *l = c->link;
    weftpy_runtime_t *run = l ? l->run : NULL;
    bool open = l && l->client && run->rt && !run->closing && !weftpy_runtime_forked(run);
    if (open && !run->blocking && weftpy_loop_before_post(run))
        return NULL;
    if (!l || (!open && run->blocking))
        Py_RETURN_NONE;
    weftpy_op_t *op = weftpy_op_new(run, &weftpy_gives_none_ever);
    if (!op)
        return NULL;
    weft_client_t *client = l->client;
    if (!open || !client)
        return weftpy_op_complete(op, Py_NewRef(Py_None));
    op->held = Py_NewRef((PyObject *)l);
    l->client = NULL;
    weftpy_registry_used(l->held, -1);
    return weftpy_op_posted(op, weft_client_close(client, &op->op));
}

static PyObject *stats(PyObject *self, PyObject *unused)
{
    SELF;
    weft_client_stats_t s = WEFT_CLIENT_STATS_INIT;
    if (weftpy_link_check(c->link))
        return NULL;
    weft_status_t status = weft_client_get_stats(c->link->client, &s);
    if (status)
        return weftpy_raise(c->st, status);
#define N(field) #field, (unsigned long long)s.field
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsK}", N(calls), N(ok), N(failed), N(cancelled), N(timed_out), N(retried),
                         N(under_way), N(waiting), N(instances), N(connected));
#undef N
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!c->link || !c->link->client || !c->link->run->rt);
}

static PyObject *get_runtime(PyObject *self, void *unused)
{
    SELF;
    return Py_NewRef(c->link ? (PyObject *)c->link->run : Py_None);
}

static PyObject *get_uri(PyObject *self, void *unused)
{
    SELF;
    return c->link ? Py_NewRef(c->link->uri) : PyUnicode_FromString("");
}

static PyObject *repr(PyObject *self)
{
    SELF;
    if (!c->link)
        return PyUnicode_FromString("<weft.Client>");
    return PyUnicode_FromFormat("<weft.Client %U%s>", c->link->uri, c->link->client && c->link->run->rt ? "" : ", closed");
}

static PyMethodDef methods[] = {
    {"method", method, METH_O,
     DOC("method($self, signature, /)",
         "The function with this signature, such as \"add(a: i32, b: i32) -> i32\"; or of this name, or number (\"#7\").")},
    {"stats", stats, METH_NOARGS, DOC("stats($self)", "Counters since it was opened, and what is under way now.")},
    {"_functions", functions, METH_O,
     DOC("_functions($self, service, /)", "Ask a server for the functions of a service: a line for each, number and signature.")},
    {"_learn", learn, METH_O, DOC("_learn($self, lines, /)", "Methods of those lines: their signatures are known from now on.")},
    {"_close", close_it, METH_NOARGS, DOC("_close($self)", "End it: calls under way end with ClosedError.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {"runtime", get_runtime, NULL, "Its runtime.", NULL},
    {"uri", get_uri, NULL, "What it is a client of.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(client_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, DOC("Client(runtime, uri, *, service=None, instance=None, registry=None, tries=None, instances=None, "
                    "timeout=None, reconnect=None)",
                    "The functions of a service: client.add(25, 17) calls its function `add`.")},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_getattro, get_attribute},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_client_spec = WEFTPY_SPEC("Client", client_t, WEFTPY_BASE | WEFTPY_GC, slots);
