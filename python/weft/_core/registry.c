/* _core/registry.c - Registry: who offers what, where; entering, leaving, looking, watching.
 *
 *     open -> closed   close(), or the object goes, or its runtime: its entries are taken away
 *
 * Watches end before it. It is not closed under clients and services that use it.
 *
 * Entries are shown by the library in progress, in a blocking runtime without the GIL: they are copied there, and become objects
 * when somebody asks for them. tests/python/test_registry.py holds us to it. */
#include "registry.h"

#include <stdlib.h>
#include <string.h>

#define SELF weftpy_registry_t *r = (weftpy_registry_t *)self

int weftpy_registry_check(weftpy_registry_t *r)
{
    if (__builtin_expect(r->registry && r->run->rt && !r->run->closing, 1))
        return 0;
    if (!r->run)
        PyErr_SetString(PyExc_TypeError, "the registry was never opened: its class has to call __init__() of ours");
    else
        weftpy_raise_text(r->st, WEFT_ERR_CLOSED,
                          r->run->rt ? "the registry is closed" : "the runtime of the registry is closed");
    return -1;
}

weft_registry_t *weftpy_registry_of(weftpy_runtime_t *run, PyObject *object)
{
    weftpy_registry_t *r = (weftpy_registry_t *)object;
    if (!PyObject_TypeCheck(object, run->st->registry)) {
        PyErr_Format(PyExc_TypeError, "registry is of type %R, where a Registry is wanted", (PyObject *)Py_TYPE(object));
        return NULL;
    }
    if (weftpy_registry_check(r))
        return NULL;
    if (r->run != run)
        return (weft_registry_t *)weftpy_raise_text(run->st, WEFT_ERR_INVALID, "the registry belongs to another runtime");
    return r->registry;
}

/* Close it without waiting. Any thread. */
static void close_unwatched(weftpy_registry_t *r)
{
    weft_registry_t *registry = r->registry;
    r->registry = NULL;
    weftpy_guests_leave(&r->watches);
    weftpy_guest_leave(&r->guest);
    if (!registry || !r->run->rt || weftpy_runtime_forked(r->run))
        return;
    (void)weft_registry_close(registry, NULL);
    if (!r->run->blocking && !r->run->scheduled && r->run->thread == PyThread_get_thread_ident()) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (weftpy_loop_schedule(r->run))
            PyErr_Clear(); /* the loop is closed: the runtime will be, too */
        PyErr_Restore(kind, error, trace);
    }
}

static void leave_runtime(weftpy_guest_t *guest)
{
    weftpy_registry_t *r = (weftpy_registry_t *)(void *)((char *)guest - offsetof(weftpy_registry_t, guest));
    weftpy_guests_leave(&r->watches);
    r->registry = NULL; /* the runtime closes it */
}

/* --- entries ------------------------------------------------------------------------------------------------------ */

weftpy_row_t *weftpy_row_new(const weft_entry_t *e, weft_change_t change)
{
    size_t service = strlen(e->service), instance = e->instance ? strlen(e->instance) : 0,
           address = e->address ? strlen(e->address) : 0;
    weftpy_row_t *row = malloc(sizeof *row + service + instance + address + e->data_len + 1);
    if (!row)
        return NULL;
    *row = (weftpy_row_t){NULL, change, e->load, service, instance, address, e->data_len};
    char *at = (char *)(row + 1);
    memcpy(at, e->service, service);
    memcpy(at += service, e->instance ? e->instance : "", instance);
    memcpy(at += instance, e->address ? e->address : "", address);
    if (e->data_len)
        memcpy(at + address, e->data, e->data_len);
    return row;
}

PyObject *weftpy_row_entry(weftpy_state_t *st, const weftpy_row_t *row)
{
    const char *at = (const char *)(row + 1);
    if (!st->entry) {
        PyObject *module = PyImport_ImportModule("weft._registry");
        st->entry = module ? PyObject_GetAttrString(module, "Entry") : NULL;
        Py_XDECREF(module);
        if (!st->entry)
            return NULL;
    }
    const char *instance = at + row->service, *address = instance + row->instance, *data = address + row->address;
    return PyObject_CallFunction(st->entry, "NNNky#", PyUnicode_DecodeUTF8(at, (Py_ssize_t)row->service, "replace"),
                                 PyUnicode_DecodeUTF8(instance, (Py_ssize_t)row->instance, "replace"),
                                 PyUnicode_DecodeUTF8(address, (Py_ssize_t)row->address, "replace"), (unsigned long)row->load,
                                 data, (Py_ssize_t)row->data);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static int init(PyObject *self, PyObject *args, PyObject *kw)
{
    static char *words[] = {"runtime", "uri", "lease", NULL};
    SELF;
    PyObject *runtime, *uri = Py_None, *lease = NULL;
    weft_registry_opts_t opts = WEFT_REGISTRY_OPTS_INIT;
    r->st = weftpy_state_of(Py_TYPE(self));
    if (!r->st)
        return -1;
    if (r->run) {
        weftpy_raise_text(r->st, WEFT_ERR_STATE, "the registry is open already");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!|O$O:Registry", words, r->st->runtime, &runtime, &uri, &lease) ||
        weftpy_ns(lease, "lease", &opts.lease_ns))
        return -1;
    const char *text = uri == Py_None ? NULL : weftpy_str(uri, "uri");
    weftpy_runtime_t *run = (weftpy_runtime_t *)runtime;
    if ((uri != Py_None && !text) || weftpy_runtime_check(run) || (!run->blocking && weftpy_loop_before_post(run)))
        return -1;
    weft_status_t status = weft_registry_open(run->rt, text, &opts, &r->registry);
    if (status) {
        r->registry = NULL;
        weftpy_raise(r->st, status);
        return -1;
    }
    r->run = (weftpy_runtime_t *)Py_NewRef(runtime);
    r->uri = Py_NewRef(uri);
    weftpy_guest_enter(&run->guests, &r->guest, leave_runtime);
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    SELF;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(r->run);
    return 0;
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (r->run)
        close_unwatched(r);
    Py_CLEAR(r->uri);
    Py_CLEAR(r->run);
    weftpy_free(self);
}

/* --- entering and leaving ----------------------------------------------------------------------------------------- */

static weftpy_op_t *begin(weftpy_registry_t *r, const weftpy_gives_t *gives, uint64_t timeout)
{
    if (weftpy_registry_check(r) || weftpy_loop_before_post(r->run) || weftpy_registry_check(r))
        return NULL;
    weftpy_op_t *op = weftpy_op_new(r->run, gives);
    if (op) {
        op->held = Py_NewRef((PyObject *)r);
        op->op.timeout_ns = timeout;
    }
    return op;
}

/* NULL or None: *out stays. */
static int text(PyObject *arg, const char *what, const char **out)
{
    if (!arg || arg == Py_None)
        return 0;
    *out = weftpy_str(arg, what);
    return *out ? 0 : -1;
}

static const weftpy_sig_t sig_enter = {"enter", 6, 2, 2, {N_service, N_address, N_instance, N_load, N_data, N_timeout}};
static const weftpy_sig_t sig_leave = {"leave", 3, 1, 2, {N_service, N_instance, N_timeout}};
static const weftpy_sig_t sig_find = {"find", 2, 0, 1, {N_service, N_timeout}};
static const weftpy_sig_t sig_watch = {"watch", 1, 0, 1, {N_service}};

static PyObject *enter(FAST_ARGS)
{
    SELF;
    PyObject *arg[6];
    weft_entry_t entry = WEFT_ENTRY_INIT;
    uint64_t load = 0, timeout = 0;
    weftpy_buf_t data = {0};
    weftpy_op_t *op = NULL;
    if (weftpy_registry_check(r) || weftpy_args(r->st, &sig_enter, args, n, kwnames, arg) ||
        text(arg[0], "service", &entry.service) || text(arg[1], "address", &entry.address) ||
        text(arg[2], "instance", &entry.instance) || weftpy_u64(arg[3], "load", 1000, &load) ||
        weftpy_ns(arg[5], "timeout", &timeout) || (arg[4] && arg[4] != Py_None && weftpy_buf_get(r->st, arg[4], false, &data)))
        return NULL;
    entry.load = (uint32_t)load;
    entry.data = data.view.obj ? data.view.buf : NULL;
    entry.data_len = data.view.obj ? (size_t)data.view.len : 0;
    PyObject *result = NULL;
    if ((op = begin(r, &weftpy_gives_none, timeout)))
        result = weftpy_op_posted(op, weft_registry_enter(r->registry, &entry, &op->op)); /* which copies it */
    weftpy_buf_release(&data);
    return result;
}

static PyObject *leave(FAST_ARGS)
{
    SELF;
    PyObject *arg[3];
    const char *service = NULL, *instance = NULL;
    uint64_t timeout = 0;
    if (weftpy_registry_check(r) || weftpy_args(r->st, &sig_leave, args, n, kwnames, arg) || text(arg[0], "service", &service) ||
        text(arg[1], "instance", &instance) || weftpy_ns(arg[2], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = begin(r, &weftpy_gives_none, timeout);
    return op ? weftpy_op_posted(op, weft_registry_leave(r->registry, service, instance, &op->op)) : NULL;
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

typedef struct found {
    weftpy_row_t *first, **end;
    bool lost; /* no memory for one of them */
} found_t;

static const char found_name[] = "weft._core.found";

static void found_free(PyObject *capsule)
{
    found_t *f = PyCapsule_GetPointer(capsule, found_name);
    for (weftpy_row_t *row; f && (row = f->first);) {
        f->first = row->next;
        free(row);
    }
    free(f);
}

static void show(const weft_entry_t *entry, void *user)
{
    found_t *f = user;
    weftpy_row_t *row = weftpy_row_new(entry, WEFT_CAME);
    if (!row) {
        f->lost = true;
        return;
    }
    *f->end = row;
    f->end = &row->next;
}

static PyObject *found_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    found_t *f = PyCapsule_GetPointer(made, found_name);
    if (!f || f->lost)
        return f ? PyErr_NoMemory() : NULL;
    PyObject *list = PyList_New(0);
    for (const weftpy_row_t *row = f->first; row && list; row = row->next) {
        PyObject *entry = weftpy_row_entry(run->st, row);
        if (!entry || PyList_Append(list, entry))
            Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static const weftpy_gives_t gives_found = {.value = found_value};

static PyObject *find(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    const char *service = NULL;
    uint64_t timeout = 0;
    if (weftpy_registry_check(r) || weftpy_args(r->st, &sig_find, args, n, kwnames, arg) || text(arg[0], "service", &service) ||
        weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    found_t *f = calloc(1, sizeof *f);
    PyObject *capsule = f ? PyCapsule_New(f, found_name, found_free) : PyErr_NoMemory();
    if (!capsule) {
        free(f);
        return NULL;
    }
    f->end = &f->first;
    weftpy_op_t *op = begin(r, &gives_found, timeout);
    if (!op) {
        Py_DECREF(capsule);
        return NULL;
    }
    op->made = capsule;
    return weftpy_op_posted(op, weft_registry_find(r->registry, service, show, f, &op->op));
}

static PyObject *watch(FAST_ARGS)
{
    SELF;
    PyObject *arg[1];
    const char *service = NULL;
    if (weftpy_registry_check(r) || weftpy_args(r->st, &sig_watch, args, n, kwnames, arg) || text(arg[0], "service", &service) ||
        weftpy_loop_before_post(r->run) || weftpy_registry_check(r))
        return NULL;
    return weftpy_watch_new(r, service);
}

/* --- closing, asking ---------------------------------------------------------------------------------------------- */

static PyObject *close_it(PyObject *self, PyObject *unused)
{
    SELF;
    bool open = r->run && r->registry && r->run->rt && !r->run->closing && !weftpy_runtime_forked(r->run);
    if (open && !r->run->blocking && weftpy_loop_before_post(r->run))
        return NULL;
    if (!r->run || (!open && r->run->blocking))
        Py_RETURN_NONE;
    weftpy_op_t *op = weftpy_op_new(r->run, &weftpy_gives_none_ever);
    if (!op)
        return NULL;
    weft_registry_t *registry = r->registry;
    if (!open || !registry)
        return weftpy_op_complete(op, Py_NewRef(Py_None));
    if (r->users) {
        Py_DECREF(op);
        return weftpy_raise_text(r->st, WEFT_ERR_STATE, "%u clients or services use the registry: close them first", r->users);
    }
    op->held = Py_NewRef(self);
    r->registry = NULL;
    weftpy_guests_leave(&r->watches);
    weftpy_guest_leave(&r->guest);
    return weftpy_op_posted(op, weft_registry_close(registry, &op->op));
}

static PyObject *enter_with(PyObject *self, PyObject *unused)
{
    SELF;
    if (weftpy_registry_check(r))
        return NULL;
    weftpy_op_t *op = r->run->blocking ? NULL : weftpy_op_new(r->run, &weftpy_gives_none);
    if (r->run->blocking)
        return Py_NewRef(self);
    return op ? weftpy_op_complete(op, Py_NewRef(self)) : NULL;
}

static PyObject *leave_with(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    return close_it(self, NULL);
}

static PyObject *get_name(PyObject *self, void *unused)
{
    SELF;
    return weftpy_registry_check(r) ? NULL : PyUnicode_FromString(weft_registry_name(r->registry));
}

static PyObject *get_state(PyObject *self, void *unused)
{
    SELF;
    if (weftpy_registry_check(r))
        return NULL;
    weft_status_t status = weft_registry_state(r->registry);
    return PyUnicode_FromString(status ? weft_status_text(status) : "ok");
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!r->registry || !r->run->rt);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    return PyUnicode_FromFormat("<weft.Registry %S%s>", r->uri && r->uri != Py_None ? r->uri : Py_None,
                                r->registry && r->run->rt ? "" : ", closed");
}

static PyMethodDef methods[] = {
    {"enter", FAST(enter),
     DOC("enter($self, service, address, *, instance=None, load=0, data=None, timeout=None)",
         "Enter an instance, or change it; done when others can find it.")},
    {"leave", FAST(leave), DOC("leave($self, service, instance=None, *, timeout=None)", "Take an instance of ours away.")},
    {"find", FAST(find),
     DOC("find($self, service=None, *, timeout=None)", "The instances of a service, or of all, as a list of Entry.")},
    {"watch", FAST(watch),
     DOC("watch($self, service=None)", "Every instance there is, and then every change, to be gone through.")},
    {"close", close_it, METH_NOARGS, DOC("close($self)", "Take our entries away, end watches, and close.")},
    {"__aenter__", enter_with, METH_NOARGS, NULL},
    {"__aexit__", WITHOUT_NAMES(leave_with), NULL},
    {"__enter__", enter_with, METH_NOARGS, NULL},
    {"__exit__", WITHOUT_NAMES(leave_with), NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"name", get_name, NULL, "The instance that is meant where none is named.", NULL},
    {"state", get_state, NULL, "\"ok\", or what the last attempt to use it came to.", NULL},
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     DOC("Registry(runtime, uri=None, *, lease=None)", "Who offers what, where: services, and the instances behind each.")},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

PyType_Spec weftpy_registry_spec = WEFTPY_SPEC("Registry", weftpy_registry_t, WEFTPY_BASE | WEFTPY_GC, slots);
