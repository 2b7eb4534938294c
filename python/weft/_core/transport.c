/* _core/transport.c - Transport: the link of an action to a memory element, by its name.
 *
 * The package disagg has a class of its own over this one, so that its calls come here without a step between. It may be asked
 * for before it is usable: what moves bytes (transport_io.c) waits until it is, without the GIL.
 *
 *     waiting, connecting, ready, lost, failed, released   as weft/element.h has them; all that is known of them is the library's
 *
 * Its buffer is in transport_buffer.c.
 *
 * Promise: whatever the arguments and the state, an exception at worst. tests/python/test_disagg_transport.py holds us to it. */
#include "elements.h"
#include "store.h"

#include <math.h>
#include <string.h>

#define SELF weftpy_transport_t *t = (weftpy_transport_t *)self

int weftpy_count(PyObject *arg, const char *what, uint64_t *out)
{
    if (!arg || !PyFloat_Check(arg))
        return weftpy_u64(arg, what, UINT64_MAX, out);
    double value = PyFloat_AsDouble(arg);
    if (!(value >= 0) || value >= 9007199254740992.0 || value != floor(value)) {
        PyErr_Format(PyExc_ValueError, "%s is %R, which is not a whole number of bytes", what, arg);
        return -1;
    }
    *out = (uint64_t)value;
    return 0;
}

int weftpy_bytes(PyObject *arg, const char *what, uint64_t *out)
{
    if (arg != Py_None)
        return weftpy_count(arg, what, out);
    PyErr_Format(PyExc_TypeError, "%s is None, and should be a number of bytes", what);
    return -1;
}

int weftpy_transport_check(weftpy_transport_t *t)
{
    weftpy_runtime_t *run = t->action->h.run;
    if (t->action->h.of && run->rt && !(run->blocking && run->closing))
        return run->blocking ? 0 : weftpy_loop_before_post(run);
    weftpy_raise_text(run->st, WEFT_ERR_CLOSED, "the action of the transport %U is closed", t->name);
    return -1;
}

PyObject *weftpy_transport_raise(weftpy_transport_t *t, weft_status_t status)
{
    if (status == WEFT_ERR_STATE && !weft_transport_buf(t->of, NULL)) {
        PyErr_Format(PyExc_MemoryError, "no buffer is registered with the transport %U: call reg(size) first", t->name);
        return NULL;
    }
    return weftpy_raise(t->action->h.run->st, status);
}

/* --- its life ------------------------------------------------------------------------------------------------------------ */

static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *words[] = {"action", "name", "type", NULL};
    weftpy_state_t *st = weftpy_state_of(type);
    PyObject *action, *name, *ttype = NULL;
    const char *name_text, *type_text = "rdma";
    weft_transport_t *of;
    if (!st || !PyArg_ParseTupleAndKeywords(args, kw, "O!O|O:Transport", words, st->action, &action, &name, &ttype))
        return NULL;
    if (!(name_text = weftpy_str(name, "name")) || (ttype && !(type_text = weftpy_str(ttype, "type"))) ||
        weftpy_action_check((weftpy_action_t *)action))
        return NULL;
    weft_status_t status = weft_action_get(((weftpy_action_t *)action)->h.of, name_text, type_text, &of);
    if (status)
        return weftpy_raise(st, status);
    weftpy_transport_t *t = (weftpy_transport_t *)PyType_GenericAlloc(type, 0);
    if (!t)
        return NULL;
    t->action = (weftpy_action_t *)Py_NewRef(action);
    t->of = of;
    t->server = !strcmp(type_text, "rdma_server");
    t->registered = UINT64_MAX;                /* all of the buffer, if another object registered it */
    t->name = PyUnicode_FromString(name_text); /* an exact str, never a subclass */
    if (!t->name)
        Py_CLEAR(t);
    return (PyObject *)t;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    SELF;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(t->action);
    return 0;
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (t->weakrefs)
        PyObject_ClearWeakRefs(self);
    Py_CLEAR(t->exporter);
    Py_CLEAR(t->name);
    Py_CLEAR(t->action);
    weftpy_free(self);
}

bool weftpy_transport_released(weftpy_transport_t *t)
{
    weft_status_t why;
    if (weft_transport_state(t->of, &why) != WEFT_TRANSPORT_RELEASED)
        return false;
    weftpy_raise_text(t->action->h.run->st, why,
                      why == WEFT_ERR_FORKED ? "the transport %U is the parent process's: open an action here"
                                             : "the transport %U is released",
                      t->name);
    return true;
}

/* --- more memory, and memory as a remote --------------------------------------------------------------------------------- */

typedef struct alloc_args {
    uint64_t size, timeout;
    weft_transport_alloc_opts_t opts;
} alloc_args_t;

static int alloc_args(weftpy_transport_t *t, const char *name, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                      alloc_args_t *a)
{
    weftpy_sig_t sig = {name, 3, 1, 1, {N_size, N_lease, N_timeout}};
    PyObject *arg[3];
    *a = (alloc_args_t){.opts = WEFT_TRANSPORT_ALLOC_OPTS_INIT};
    return weftpy_args(t->action->h.run->st, &sig, args, n, kwnames, arg) || weftpy_bytes(arg[0], "size", &a->size) ||
                   weftpy_ns(arg[1], "lease", &a->opts.lease_ns) || weftpy_ns(arg[2], "timeout", &a->timeout) ||
                   weftpy_transport_check(t)
               ? -1
               : 0;
}

static PyObject *alloc_op(weftpy_transport_t *t, const alloc_args_t *a)
{
    weftpy_runtime_t *run = t->action->h.run;
    weftpy_op_t *op = weftpy_block_coming(run, (PyObject *)t, a->timeout);
    if (op && weftpy_action_know(t->action, t->name, op->made)) {
        Py_DECREF(op);
        return NULL;
    }
    return op ? weftpy_op_posted(op, weft_transport_alloc(t->of, a->size, &a->opts, &op->op)) : NULL;
}

/* Returns a future of the running loop. */
static PyObject *alloc_later(weftpy_transport_t *t, const alloc_args_t *a)
{
    weftpy_runtime_t *run = t->action->h.run;
    weftpy_handle_t *h = weftpy_block_new(run, (PyObject *)t);
    weftpy_awaited_t *awaited = h ? weftpy_awaited_new(run, &weftpy_gives_handle, (PyObject *)h, NULL) : NULL;
    if (!awaited)
        return NULL;
    if (weftpy_transport_check(t) ||
        weftpy_action_know(t->action, t->name, awaited->made)) { /* making it runs code of the loop */
        weftpy_awaited_refused(awaited);
        return NULL;
    }
    weftpy_awaited_direct(awaited);
    awaited->op.timeout_ns = a->timeout;
    h->coming = &awaited->op;
    h->later = true;
    weft_status_t status = weft_transport_alloc(t->of, a->size, &a->opts, &awaited->op);
    if (!status)
        return weftpy_awaited_future(awaited);
    weftpy_raise(run->st, status);
    h->coming = NULL;
    weftpy_awaited_refused(awaited);
    return NULL;
}

static PyObject *alloc(FAST_ARGS)
{
    SELF;
    alloc_args_t a;
    return alloc_args(t, "alloc", args, n, kwnames, &a) ? NULL : alloc_op(t, &a);
}

static PyObject *alloc_async(FAST_ARGS)
{
    SELF;
    alloc_args_t a;
    if (alloc_args(t, "alloc_async", args, n, kwnames, &a))
        return NULL;
    return t->action->h.run->blocking ? alloc_later(t, &a) : alloc_op(t, &a);
}

static PyObject *remote(PyObject *self, PyObject *unused)
{
    SELF;
    weftpy_action_t *a = t->action;
    if (weftpy_transport_check(t))
        return NULL;
    weft_remote_t *of = weft_transport_remote(t->of);
    if (!of)
        return weftpy_transport_released(t) ? NULL : weftpy_raise(a->h.run->st, WEFT_ERR_STATE);
    for (Py_ssize_t i = a->remotes ? PyList_Size(a->remotes) : 0; i-- > 0;) {
        PyObject *known = PyWeakref_GetObject(PyTuple_GetItem(PyList_GetItem(a->remotes, i), 1));
        if (known && known != Py_None && ((weftpy_handle_t *)known)->of == of)
            return Py_NewRef(known);
    }
    PyObject *made = weftpy_remote_borrow(a->h.run, self, of);
    if (made && weftpy_action_know(a, t->name, made)) {
        weftpy_handle_take((weftpy_handle_t *)made);
        Py_CLEAR(made);
    }
    return made;
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static bool open_still(const weftpy_transport_t *t)
{
    return t->action->h.of && t->action->h.run->rt;
}

static PyObject *get_state(PyObject *self, void *unused)
{
    SELF;
    return PyUnicode_FromString(
        weft_transport_state_name(open_still(t) ? weft_transport_state(t->of, NULL) : WEFT_TRANSPORT_RELEASED));
}

static PyObject *get_why(PyObject *self, void *unused)
{
    SELF;
    weft_status_t why = WEFT_ERR_CLOSED;
    if (open_still(t))
        weft_transport_state(t->of, &why);
    return why ? Py_NewRef(weftpy_error_class(t->action->h.run->st, why)) : Py_NewRef(Py_None);
}

/* The length of the element's memory; 0 before it is known. */
static PyObject *get_nbytes(PyObject *self, void *unused)
{
    SELF;
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    if (open_still(t))
        weft_transport_get_stats(t->of, &s);
    return PyLong_FromUnsignedLongLong(s.len);
}

static PyObject *stats(PyObject *self, PyObject *unused)
{
    SELF;
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    if (!open_still(t)) {
        weftpy_raise_text(t->action->h.run->st, WEFT_ERR_CLOSED, "the action of the transport %U is closed", t->name);
        return NULL;
    }
    weft_status_t status = weft_transport_get_stats(t->of, &s);
    if (status)
        return weftpy_raise(t->action->h.run->st, status);
    const weftpy_count_t rows[] = {
#define ROW(field) {#field, s.field}
        ROW(len),   ROW(reads),  ROW(writes),   ROW(atomics), ROW(bytes_read), ROW(bytes_written), ROW(at_once),
        ROW(waits), ROW(failed), ROW(connects), ROW(losses),  ROW(replicas),   ROW(failovers),     ROW(takeovers),
#undef ROW
    };
    PyObject *dict = weftpy_counts(rows, sizeof rows / sizeof *rows);
    PyObject *path = dict ? weftpy_text(s.path ? weft_rma_path_name(s.path) : NULL) : NULL;
    if (dict && (!path || PyDict_SetItemString(dict, "path", path)))
        Py_CLEAR(dict);
    Py_XDECREF(path);
    return dict;
}

/* The durl of a server, for the configuration of its users. */
static PyObject *get_durl(PyObject *self, void *unused)
{
    SELF;
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text;
    weft_memory_t *memory = open_still(t) ? weft_transport_memory(t->of) : NULL;
    if (!memory)
        Py_RETURN_NONE;
    weft_status_t status = weft_memory_durl(memory, text, &len);
    return status ? weftpy_raise(t->action->h.run->st, status) : weftpy_text(text);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    return PyUnicode_FromFormat(
        "<weft.Transport %R, %s>", t->name,
        weft_transport_state_name(open_still(t) ? weft_transport_state(t->of, NULL) : WEFT_TRANSPORT_RELEASED));
}

#define BOTH(name, takes, text) \
    {#name, FAST(weftpy_io_##name), DOC(#name "($self, " takes ")", text)}, \
    { \
#name "_async", FAST(weftpy_io_##name##_async), DOC(#name "_async($self, " takes ")", text " To be awaited.") \
    }

#define ALLOC_TAKES "($self, size, *, lease=None, timeout=None)"
#define ALLOC_TEXT \
    "More memory at the same element, zero, as a Block, until it is freed or the transport is released. lease says for how " \
    "many " \
    "seconds it outlives a program that is lost; the element's own lease is the most, and the default."

static PyMethodDef methods[] = {
    {"reg", FAST(weftpy_transport_reg),
     DOC("reg($self, size, trans=None)",
         "Register a buffer of so many bytes, zero at first. Again: the buffer and what is in it stay, and its first bytes, or "
         "more "
         "of them, are used from now on. BufferError: it is to become longer, and a view, another transport or an operation uses "
         "it. With another transport the buffer that is registered there, which both share.")},
    BOTH(read, "size, addr, offset=0, *, timeout=None",
         "Bytes of the element's memory, from addr on, into the buffer, at offset. Waits until the element is reached, and "
         "timeout seconds at most. MemoryError: no buffer is registered. RangeError: outside of the buffer or of the memory, and "
         "nothing was touched."),
    BOTH(write, "size, addr, offset=0, *, timeout=None",
         "Bytes of the buffer, from offset on, into the element's memory, at addr. It is there when this returns. Waits and "
         "raises as read() does."),
    BOTH(batch, "items, *, timeout=None",
         "Many reads and writes in one operation, each (\"read\" or \"write\", size, addr, offset=0). Gives how many there were; "
         "raises if one of them failed, and says which: others may have been done."),
    BOTH(readv, "items, offset=0, *, timeout=None",
         "Pieces (size, addr) of the element's memory into the buffer, one after the other from offset on; (size, addr, offset) "
         "says where a piece goes. Gives how many there were."),
    BOTH(writev, "items, offset=0, *, timeout=None",
         "Pieces (size, addr) from the buffer, one after the other from offset on; (size, addr, offset) says where a piece is. "
         "Gives how many there were."),
    BOTH(read_many, "items, *, timeout=None",
         "Pieces of the element's memory into memory of your own, in one operation: pairs (addr, buffer), each as long as its "
         "buffer. No buffer need be registered. Raises if one of them failed, and says which: others may have been done. Waits "
         "as read() does; of memory of the host, also with replicas."),
    BOTH(write_many, "items, *, timeout=None",
         "Pieces of your own memory into the element's, in one operation: pairs (addr, buffer). Otherwise as read_many()."),
    BOTH(fetch_add, "addr, value=1, *, timeout=None",
         "Add to the 8 bytes at addr, atomically. Gives the value before, as a number without a sign. addr is a multiple of 8; "
         "no buffer is needed."),
    BOTH(compare_swap, "addr, expected, desired, *, timeout=None",
         "Store desired in the 8 bytes at addr if they are expected, atomically. Gives the value before: it was stored if that "
         "is expected."),
    BOTH(flush, "*, timeout=None", "Until all that was posted before is complete, in whichever thread and however it ended."),
    BOTH(wait_ready, "timeout=None", "Until the element is reached. Gives how many bytes its memory has."),
    {"serve", weftpy_io_serve, METH_NOARGS,
     DOC("serve($self)",
         "Wait until the action is terminated. For type rdma_server; its memory is served from the moment its size is known.")},
    {"alloc", FAST(alloc), DOC("alloc" ALLOC_TAKES, ALLOC_TEXT)},
    {"alloc_async", FAST(alloc_async),
     DOC("alloc_async" ALLOC_TAKES, ALLOC_TEXT " To be awaited. If it is cancelled, what the element had given is freed there.")},
    {"remote", remote, METH_NOARGS,
     DOC("remote($self)", "The element's memory as a Remote, which needs no buffer: of one that is ready and has no replicas.")},
    {"stats", stats, METH_NOARGS,
     DOC("stats($self)", "Counters since it was added, as a dict: reads, writes, atomics, bytes_read, bytes_written, failed; "
                         "waits: operations that had to wait for the element; at_once: that were over when they were posted; "
                         "connects, losses; with replicas: replicas, failovers, takeovers. path is mapped, checked or another of "
                         "weft.Remote's, and len the bytes of the element's memory.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"buf", weftpy_transport_get_buf, NULL,
     "The registered buffer, or the memory that a server serves: a writable view of its bytes, without a copy.", NULL},
    {"state", get_state, NULL, "waiting, connecting, ready, lost, failed or released.", NULL},
    {"why", get_why, NULL, "The class of the exception that operations would now end with, or None.", NULL},
    {"nbytes", get_nbytes, NULL, "How many bytes the element's memory has; 0 before that is known.", NULL},
    {"durl", get_durl, NULL, "Of a server that is ready: what its users are configured with. A secret. Else None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"name", T_OBJECT, offsetof(weftpy_transport_t, name), READONLY, "Its name."},
    {"action", T_OBJECT, offsetof(weftpy_transport_t, action), READONLY, "The action it belongs to."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(weftpy_transport_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     DOC("Transport(action, name, type=\"rdma\")", "The link of an action to a memory element; type is rdma or rdma_server.")},
    {Py_tp_new, new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_transport_spec = WEFTPY_SPEC("Transport", weftpy_transport_t, WEFTPY_BASE | WEFTPY_GC, slots);
