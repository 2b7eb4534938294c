/* _core/memory.c - Memory: memory of a kind of the library's, for other packages to see without a copy.
 *
 * Memory that the processor can touch has the buffer protocol; memory_share.c has the other ways to see it. It is freed with the
 * object, which everyone who sees the memory holds: there is no call for it, since nobody could tell who still looks. What a
 * DeviceView (device_view.c) does in the same way is here, too.
 *
 * Threads: any. Copies are whole when they return, and run without the GIL.
 *
 * tests/python/test_memory.py holds us to it. */
#include "memory.h"

#include <string.h>

#define SELF weftpy_memory_t *m = (weftpy_memory_t *)self

enum { PIECE = 64 << 10 };

static bool touchable(const weftpy_memory_t *m)
{
    return m->kind->flags & WEFT_MEM_CPU;
}

/* --- life ---------------------------------------------------------------------------------------------------------------- */

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *words[] = {"nbytes", "kind", NULL};
    weftpy_state_t *st = weftpy_state_of(type);
    PyObject *size;
    const char *name = "host";
    uint64_t n = 0;
    if (!st || !PyArg_ParseTupleAndKeywords(args, kw, "O|s:Memory", words, &size, &name))
        return NULL;
    if (size == Py_None) {
        PyErr_SetString(PyExc_TypeError, "nbytes is a number of bytes");
        return NULL;
    }
    if (weftpy_u64(size, "nbytes", PY_SSIZE_T_MAX, &n))
        return NULL;
    const weft_mem_kind_t *kind = weft_mem_kind_find(name);
    if (!kind)
        return weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED, "%s", weft_last_error());
    weftpy_memory_t *m = (weftpy_memory_t *)PyType_GenericAlloc(type, 0);
    if (!m)
        return NULL;
    m->st = st;
    m->kind = kind;
    m->n = n;
    void *at = NULL;
    weft_status_t status = weft_mem_alloc(kind, n, &at);
    m->at = at;
    if (status) {
        m->at = NULL;
        weftpy_raise(st, status);
        Py_DECREF(m);
        return NULL;
    }
    return (PyObject *)m;
}

static void dealloc(PyObject *self)
{
    SELF;
    if (m->weakrefs)
        PyObject_ClearWeakRefs(self);
    if (m->at)
        weft_mem_free(m->kind, m->at, m->n);
    weftpy_free(self);
}

int weftpy_memory_released(const weftpy_memory_t *m)
{
    if (!m->released)
        return 0;
    weftpy_raise_text(m->st, WEFT_ERR_STATE, "the view was released: the memory is its sender's again");
    return -1;
}

int weftpy_memory_get(weftpy_state_t *st, PyObject *object, bool writable, weftpy_buf_t *out)
{
    weftpy_memory_t *m = (weftpy_memory_t *)object;
    bool view = Py_TYPE(object) == st->device_view;
    if (!view && (Py_TYPE(object) != st->memory || touchable(m)))
        return 0;
    if (view && weftpy_memory_released(m))
        return -1;
    if (view && writable) {
        weftpy_raise_text(st, WEFT_ERR_INVALID,
                          "a DeviceView is memory of its sender, and to be read only: receive into another");
        return -1;
    }
    memset(&out->view, 0, sizeof out->view);
    out->view.obj = Py_NewRef(object);
    out->view.buf = m->at;
    out->view.len = (Py_ssize_t)m->n;
    out->view.readonly = view;
    out->view.itemsize = out->view.ndim = 1;
    out->kind = m->kind;
    if (view)
        m->users++; /* until the buffer is released: device_view.c */
    return 1;
}

/* --- copying ------------------------------------------------------------------------------------------------------------- */

/* [offset, offset + n) of it; n UINT64_MAX: the rest. */
static int range(weftpy_memory_t *m, uint64_t offset, uint64_t *n)
{
    if (weftpy_memory_released(m))
        return -1;
    if (offset <= m->n && *n == UINT64_MAX)
        *n = m->n - offset;
    if (offset <= m->n && *n <= m->n - offset)
        return 0;
    weftpy_raise_text(m->st, WEFT_ERR_RANGE, "%llu bytes from %llu on are not within the %llu of this memory",
                      (unsigned long long)*n, (unsigned long long)offset, (unsigned long long)m->n);
    return -1;
}

/* From or to memory m, which nobody gives back meanwhile. */
static weft_status_t copy(weftpy_memory_t *m, void *to, const weft_mem_kind_t *to_kind, const void *from,
                          const weft_mem_kind_t *from_kind, uint64_t n)
{
    if (!n)
        return WEFT_OK;
    m->users++;
    PyThreadState *save = PyEval_SaveThread();
    weft_status_t status = weft_mem_copy(to, to_kind, from, from_kind, n);
    PyEval_RestoreThread(save);
    m->users--;
    return status;
}

static PyObject *exchange(weftpy_memory_t *m, PyObject *args, PyObject *kw, bool in)
{
    static char *words[] = {"buffer", "offset", NULL};
    PyObject *object, *where = NULL;
    uint64_t offset = 0;
    weftpy_buf_t buf = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kw, in ? "O|O:copy_from" : "O|O:copy_to", words, &object, &where) ||
        weftpy_u64(where, "offset", UINT64_MAX, &offset) || weftpy_buf_get(m->st, object, !in, &buf))
        return NULL;
    uint64_t n = (uint64_t)buf.view.len;
    char *other = buf.view.buf;
    weft_status_t status = WEFT_OK;
    int failed = range(m, offset, &n);
    if (!failed && n && other < m->at + offset + n && m->at + offset < other + n) {
        weftpy_raise_text(m->st, WEFT_ERR_INVALID, "the two overlap: a copy within this memory is not made");
        failed = -1;
    }
    if (!failed)
        status = in ? copy(m, m->at + offset, m->kind, other, buf.kind, n) : copy(m, other, buf.kind, m->at + offset, m->kind, n);
    weftpy_buf_release(&buf);
    if (status)
        weftpy_raise(m->st, status);
    return failed || status ? NULL : PyLong_FromUnsignedLongLong(n);
}

static PyObject *copy_from(PyObject *self, PyObject *args, PyObject *kw)
{
    return exchange((weftpy_memory_t *)self, args, kw, true);
}

PyObject *weftpy_memory_copy_to(PyObject *self, PyObject *args, PyObject *kw)
{
    return exchange((weftpy_memory_t *)self, args, kw, false);
}

PyObject *weftpy_memory_to_bytes(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    static char *words[] = {"offset", "n", NULL};
    PyObject *where = NULL, *much = NULL;
    uint64_t offset = 0, n = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO:tobytes", words, &where, &much) ||
        weftpy_u64(where, "offset", UINT64_MAX, &offset) || weftpy_u64(much, "n", PY_SSIZE_T_MAX, &n) || range(m, offset, &n))
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
    weft_status_t status = bytes ? copy(m, PyBytes_AsString(bytes), weft_mem_host(), m->at + offset, m->kind, n) : WEFT_OK;
    if (status) {
        weftpy_raise(m->st, status);
        Py_CLEAR(bytes);
    }
    return bytes;
}

static PyObject *fill(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    static char *words[] = {"value", "offset", "n", NULL};
    PyObject *what = NULL, *where = NULL, *much = NULL;
    uint64_t value = 0, offset = 0, n = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OOO:fill", words, &what, &where, &much) ||
        weftpy_u64(what, "value", 255, &value) || weftpy_u64(where, "offset", UINT64_MAX, &offset) ||
        weftpy_u64(much, "n", PY_SSIZE_T_MAX, &n) || range(m, offset, &n))
        return NULL;
    weft_status_t status = WEFT_OK;
    if (touchable(m)) {
        PyThreadState *save = PyEval_SaveThread();
        memset(m->at + offset, (int)value, n);
        PyEval_RestoreThread(save);
    } else {
        char *piece = PyMem_Malloc(PIECE);
        if (!piece)
            return PyErr_NoMemory();
        memset(piece, (int)value, PIECE);
        for (uint64_t done = 0, some; done < n && !status; done += some) {
            some = n - done < PIECE ? n - done : PIECE;
            status = copy(m, m->at + offset + done, m->kind, piece, weft_mem_host(), some);
        }
        PyMem_Free(piece);
    }
    if (status)
        return weftpy_raise(m->st, status);
    Py_RETURN_NONE;
}

/* --- for others to see --------------------------------------------------------------------------------------------------- */

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    SELF;
    view->obj = NULL;
    if (!touchable(m)) {
        PyErr_SetString(PyExc_BufferError,
                        "this is memory of a GPU, which the processor cannot touch: tobytes() and copy_to() copy it");
        return -1;
    }
    return PyBuffer_FillInfo(view, self, m->at, (Py_ssize_t)m->n, 0, flags);
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

PyObject *weftpy_memory_kind(PyObject *self, void *unused)
{
    return PyUnicode_FromString(((weftpy_memory_t *)self)->kind->name);
}

PyObject *weftpy_memory_ptr(PyObject *self, void *unused)
{
    SELF;
    return weftpy_memory_released(m) ? NULL : PyLong_FromVoidPtr(m->at);
}

Py_ssize_t weftpy_memory_length(PyObject *self)
{
    return (Py_ssize_t)((weftpy_memory_t *)self)->n;
}

static PyObject *repr(PyObject *self)
{
    SELF;
    return PyUnicode_FromFormat("<weft.Memory of %llu bytes, %s>", (unsigned long long)m->n, m->kind->name);
}

static void add_kind(const weft_mem_kind_t *kind, void *user)
{
    PyObject *name = PyErr_Occurred() ? NULL : PyUnicode_FromString(kind->name);
    if (name)
        PyList_Append(user, name);
    Py_XDECREF(name);
}

PyObject *weftpy_memory_kinds(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    if (list)
        weft_mem_kind_each(add_kind, list);
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}

static PyMethodDef methods[] = {
    {"copy_from", WORDS(copy_from),
     DOC("copy_from($self, buffer, offset=0)", "Copy a buffer, of any kind of memory, into it. Gives the length.")},
    {"copy_to", WORDS(weftpy_memory_copy_to),
     DOC("copy_to($self, buffer, offset=0)", "Fill a buffer, of any kind of memory, from it. Gives the length.")},
    {"tobytes", WORDS(weftpy_memory_to_bytes), DOC("tobytes($self, offset=0, n=None)", "A copy of it.")},
    {"fill", WORDS(fill), DOC("fill($self, value=0, offset=0, n=None)", "Set every byte to a value.")},
    {"__dlpack__", WORDS(weftpy_memory_dlpack),
     DOC("__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)",
         "For other packages: it as a tensor of bytes.")},
    {"__dlpack_device__", weftpy_memory_dlpack_device, METH_NOARGS,
     DOC("__dlpack_device__($self)", "For other packages: DLPack's numbers of its device.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"kind", weftpy_memory_kind, NULL,
     "host, huge, pinned, cuda, cuda-managed, cuda-async, cuda-vmm, cuda-fd, or one that a program added.", NULL},
    {"ptr", weftpy_memory_ptr, NULL, "Its address, good for as long as the object lives.", NULL},
    {"__cuda_array_interface__", weftpy_memory_cuda, NULL, "For other packages: it as bytes on a GPU. Missing in other kinds.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"nbytes", T_ULONGLONG, offsetof(weftpy_memory_t, n), READONLY, "Its length in bytes."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(weftpy_memory_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     DOC("Memory(nbytes, kind=\"host\")", "Memory of a kind (host, huge, pinned, cuda, cuda-managed, cuda-async, "
                                          "cuda-vmm, cuda-fd), which other packages see without a copy. What is in it at first "
                                          "is not said.")},
    {Py_tp_new, make},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {Py_sq_length, weftpy_memory_length},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

PyType_Spec weftpy_memory_spec = WEFTPY_SPEC("Memory", weftpy_memory_t, 0, slots);
