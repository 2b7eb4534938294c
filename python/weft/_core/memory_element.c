/* _core/memory_element.c - MemoryElement: memory of this process that compute elements read and write through transports.
 *
 *     OPEN -> CLOSED   close(), `with`, the object goes, or the runtime is closed: its users lose it
 *
 * The memory itself cannot be looked at from here: it goes with the element, and views would outlive it. A transport of this
 * process can.
 *
 * Promise: what is served ends with the object. tests/python/test_disagg_memory.py holds us to it. */
#include "elements.h"

#define SELF weftpy_handle_t *h = (weftpy_handle_t *)self

static const weftpy_handle_kind_t kind;

static void let_go(weftpy_handle_t *h, void *of)
{
    weft_memory_close(of, NULL);
}

static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *words[] = {"runtime", "name", "size", "uri", "spare", "lease", "mirrored", "named", "mapped", NULL};
    weftpy_state_t *st = weftpy_state_of(type);
    PyObject *runtime, *name, *size, *uri = NULL, *spare = NULL, *lease = NULL;
    int mirrored = 0, named = 0, mapped = 1;
    weft_memory_opts_t opts = WEFT_MEMORY_OPTS_INIT;
    weft_memory_t *of;
    if (!st || !PyArg_ParseTupleAndKeywords(args, kw, "O!OO|$OOOppp:MemoryElement", words, st->runtime, &runtime, &name, &size,
                                            &uri, &spare, &lease, &mirrored, &named, &mapped))
        return NULL;
    if (!(opts.name = weftpy_str(name, "name")) || weftpy_bytes(size, "size", &opts.bytes) ||
        (uri && uri != Py_None && !(opts.uri = weftpy_str(uri, "uri"))) || weftpy_count(spare, "spare", &opts.spare) ||
        weftpy_ns(lease, "lease", &opts.lease_ns))
        return NULL;
    opts.mirrored = mirrored;
    opts.named = named;
    opts.unmapped = !mapped;
    weftpy_runtime_t *run = (weftpy_runtime_t *)runtime;
    if (weftpy_runtime_check(run) || weftpy_loop_before_post(run))
        return NULL;
    weftpy_handle_t *h = weftpy_handle_new(type, run, NULL, &kind);
    if (!h)
        return NULL;
    weft_status_t status = weft_memory_open(run->rt, &opts, &of);
    if (status) {
        weftpy_raise(st, status);
        Py_DECREF(h);
        return NULL;
    }
    h->of = of;
    return (PyObject *)h;
}

static PyObject *close_it(weftpy_handle_t *h, const weftpy_gives_t *gives)
{
    if (!h->of || !h->run->rt)
        return weftpy_done(h->run, Py_NewRef(Py_None));
    weftpy_op_t *op = weftpy_handle_begin(h, gives);
    return op ? weftpy_op_posted(op, weft_memory_close(weftpy_handle_take(h), &op->op)) : NULL;
}

static const weftpy_handle_kind_t kind = {"the memory element", let_go, close_it};

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *get_durl(PyObject *self, void *unused)
{
    SELF;
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text;
    if (weftpy_handle_check(h))
        return NULL;
    weft_status_t status = weft_memory_durl(h->of, text, &len);
    return status ? weftpy_raise(h->run->st, status) : weftpy_text(text);
}

static PyObject *get_uri(PyObject *self, void *unused)
{
    SELF;
    return weftpy_handle_check(h) ? NULL : weftpy_text(weft_memory_uri(h->of));
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    SELF;
    return PyBool_FromLong(!h->of || !h->run->rt);
}

static PyObject *stats(PyObject *self, PyObject *unused)
{
    SELF;
    weft_memory_stats_t s = WEFT_MEMORY_STATS_INIT;
    if (weftpy_handle_check(h))
        return NULL;
    weft_status_t status = weft_memory_get_stats(h->of, &s);
    if (status)
        return weftpy_raise(h->run->st, status);
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsK}", "bytes", (unsigned long long)s.bytes, "used_bytes",
                         (unsigned long long)s.used_bytes, "users", (unsigned long long)s.users, "mapped",
                         (unsigned long long)s.mapped, "reads", (unsigned long long)s.reads, "writes",
                         (unsigned long long)s.writes, "atomics", (unsigned long long)s.atomics, "bytes_read",
                         (unsigned long long)s.bytes_read, "bytes_written", (unsigned long long)s.bytes_written, "refused",
                         (unsigned long long)s.refused, "connections", (unsigned long long)s.connections, "accepted",
                         (unsigned long long)s.accepted);
}

static PyMethodDef methods[] = {
    {"stats", stats, METH_NOARGS, DOC("stats($self)", "What is in use, by how many, and what this process did for them.")},
    {"close", weftpy_handle_close, METH_NOARGS, DOC("close($self)", "Stop serving, and give the memory back.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"durl", get_durl, NULL, "What its users are configured with. A secret: the right to the memory is in it.", NULL},
    {"uri", get_uri, NULL, "Where it listens.", NULL},
    {"closed", get_closed, NULL, "True once it is closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     DOC("MemoryElement(runtime, name, size, *, uri=None, spare=0, lease=None, mirrored=False, named=False, mapped=True)",
         "Memory of this process, for compute elements.")},
    {Py_tp_new, new},
    {Py_tp_dealloc, weftpy_handle_dealloc},
    {Py_tp_traverse, weftpy_handle_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {0, NULL},
};

PyType_Spec weftpy_memory_element_spec = WEFTPY_SPEC("MemoryElement", weftpy_handle_t, WEFTPY_GC, slots);
