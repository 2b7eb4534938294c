/* _core/memory.c - Memory: memory of a kind of the library's, for other packages to see without a copy.
 *
 * Memory that the processor can touch has the buffer protocol; that of a GPU has __cuda_array_interface__; either has __dlpack__.
 * It is freed with the object, which everyone who sees the memory holds: there is no call for it, since nobody could tell who
 * still looks.
 *
 * Threads: any. Copies are whole when they return, and run without the GIL.
 *
 * tests/python/test_memory.py holds us to it. */
#include "values.h"

#include <string.h>

#define SELF memory_t *m = (memory_t *)self

typedef struct memory {
    PyObject_HEAD weftpy_state_t *st;
    const weft_mem_kind_t *kind;
    char *at;
    uint64_t n;
    PyObject *weakrefs;
} memory_t;

enum { CPU = 1, CUDA = 2, CUDA_MANAGED = 13, PIECE = 64 << 10 };

static bool touchable(const memory_t *m)
{
    return m->kind->flags & WEFT_MEM_CPU;
}

static bool is_cuda(const memory_t *m)
{
    return !strncmp(m->kind->name, "cuda", 4);
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
        return weftpy_raise(st, WEFT_ERR_UNSUPPORTED);
    memory_t *m = (memory_t *)PyType_GenericAlloc(type, 0);
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

int weftpy_memory_get(weftpy_state_t *st, PyObject *object, weftpy_buf_t *out)
{
    const memory_t *m = (memory_t *)object;
    if (Py_TYPE(object) != st->memory || touchable(m))
        return 0;
    memset(&out->view, 0, sizeof out->view);
    out->view.obj = Py_NewRef(object);
    out->view.buf = m->at;
    out->view.len = (Py_ssize_t)m->n;
    out->view.itemsize = out->view.ndim = 1;
    out->kind = m->kind;
    return 1;
}

/* --- copying ------------------------------------------------------------------------------------------------------------- */

/* [offset, offset + n) of it; n UINT64_MAX: the rest. */
static int range(memory_t *m, uint64_t offset, uint64_t *n)
{
    if (offset <= m->n && *n == UINT64_MAX)
        *n = m->n - offset;
    if (offset <= m->n && *n <= m->n - offset)
        return 0;
    weftpy_raise_text(m->st, WEFT_ERR_RANGE, "%llu bytes from %llu on are not within the %llu of this memory",
                      (unsigned long long)*n, (unsigned long long)offset, (unsigned long long)m->n);
    return -1;
}

static weft_status_t copy(void *to, const weft_mem_kind_t *to_kind, const void *from, const weft_mem_kind_t *from_kind,
                          uint64_t n)
{
    if (!n)
        return WEFT_OK;
    PyThreadState *save = PyEval_SaveThread();
    weft_status_t status = weft_mem_copy(to, to_kind, from, from_kind, n);
    PyEval_RestoreThread(save);
    return status;
}

static PyObject *exchange(memory_t *m, PyObject *args, PyObject *kw, bool in)
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
        status = in ? copy(m->at + offset, m->kind, other, buf.kind, n) : copy(other, buf.kind, m->at + offset, m->kind, n);
    weftpy_buf_release(&buf);
    if (status)
        weftpy_raise(m->st, status);
    return failed || status ? NULL : PyLong_FromUnsignedLongLong(n);
}

static PyObject *copy_from(PyObject *self, PyObject *args, PyObject *kw)
{
    return exchange((memory_t *)self, args, kw, true);
}

static PyObject *copy_to(PyObject *self, PyObject *args, PyObject *kw)
{
    return exchange((memory_t *)self, args, kw, false);
}

static PyObject *to_bytes(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    static char *words[] = {"offset", "n", NULL};
    PyObject *where = NULL, *much = NULL;
    uint64_t offset = 0, n = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO:tobytes", words, &where, &much) ||
        weftpy_u64(where, "offset", UINT64_MAX, &offset) || weftpy_u64(much, "n", PY_SSIZE_T_MAX, &n) || range(m, offset, &n))
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
    weft_status_t status = bytes ? copy(PyBytes_AsString(bytes), weft_mem_host(), m->at + offset, m->kind, n) : WEFT_OK;
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
            status = copy(m->at + offset + done, m->kind, piece, weft_mem_host(), some);
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

static PyObject *get_cuda(PyObject *self, void *unused)
{
    SELF;
    if (!is_cuda(m)) {
        PyErr_SetString(PyExc_AttributeError, "this is no memory of a GPU: it has no __cuda_array_interface__");
        return NULL;
    }
    return Py_BuildValue("{s:(K),s:s,s:(KO),s:O,s:O,s:i}", "shape", (unsigned long long)m->n, "typestr", "|u1", "data",
                         (unsigned long long)(uintptr_t)(m->n ? m->at : NULL), Py_False, "strides", Py_None, "stream", Py_None,
                         "version", 3);
}

/* What a consumer gets: DLPack's struct, in either version, with room for the shape. */
typedef struct lent {
    union {
        weftpy_dlpack_t old;
        struct {
            uint32_t major, minor;
            void *context;
            void (*deleter)(void *self);
            uint64_t flags;
            weft_tensor_t tensor;
        } now;
    };
    PyObject *memory;
    int64_t shape;
} lent_t;

/* Called by the consumer, in any thread. */
static void delete_it(void *lent)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF(((lent_t *)lent)->memory);
    PyMem_Free(lent);
    PyGILState_Release(gil);
}

static void delete_old(weftpy_dlpack_t *old)
{
    delete_it(old); /* it is the first member */
}

/* Nobody consumed it. */
static void unlend(PyObject *capsule)
{
    static const char *const names[2] = {"dltensor", "dltensor_versioned"};
    for (int i = 0; i < 2; i++)
        if (PyCapsule_IsValid(capsule, names[i]))
            delete_it(PyCapsule_GetPointer(capsule, names[i]));
}

static int device_type(const memory_t *m)
{
    return !is_cuda(m) ? CPU : touchable(m) ? CUDA_MANAGED : CUDA;
}

static int device_id(const memory_t *m)
{
    int id = is_cuda(m) ? weft_mem_device(m->at) : 0;
    return id < 0 ? 0 : id;
}

static PyObject *dlpack(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    static char *words[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = NULL, *version = NULL, *device = NULL, *copy_it = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|$OOOO:__dlpack__", words, &stream, &version, &device, &copy_it))
        return NULL; /* the stream does not matter: our copies are complete when they return */
    if (copy_it == Py_True) {
        PyErr_SetString(PyExc_BufferError, "copies are made with copy_to()");
        return NULL;
    }
    int type = device_type(m), id = device_id(m), want_type = type, want_id = id;
    long major = 0, minor = 0;
    if (device && device != Py_None && !PyArg_ParseTuple(device, "ii:dl_device", &want_type, &want_id))
        return NULL;
    if (version && version != Py_None && !PyArg_ParseTuple(version, "ll:max_version", &major, &minor))
        return NULL;
    if (want_type != type || want_id != id) {
        PyErr_SetString(PyExc_BufferError, "the memory is on another device: copy_to() copies it");
        return NULL;
    }
    lent_t *lent = PyMem_Calloc(1, sizeof *lent);
    if (!lent)
        return PyErr_NoMemory();
    weft_tensor_t *t = major >= 1 ? &lent->now.tensor : &lent->old.tensor;
    lent->memory = Py_NewRef(self);
    lent->shape = (int64_t)m->n;
    *t = (weft_tensor_t){.data = m->at, .device_type = type, .device_id = id, .ndim = 1, .code = 1, .bits = 8, .lanes = 1};
    t->shape = &lent->shape;
    if (major >= 1) {
        lent->now.major = 1;
        lent->now.deleter = delete_it;
    } else {
        lent->old.deleter = delete_old;
    }
    PyObject *capsule = PyCapsule_New(lent, major >= 1 ? "dltensor_versioned" : "dltensor", unlend);
    if (!capsule)
        delete_it(lent);
    return capsule;
}

static PyObject *dlpack_device(PyObject *self, PyObject *unused)
{
    SELF;
    return Py_BuildValue("(ii)", device_type(m), device_id(m));
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *get_kind(PyObject *self, void *unused)
{
    return PyUnicode_FromString(((memory_t *)self)->kind->name);
}

static PyObject *get_ptr(PyObject *self, void *unused)
{
    return PyLong_FromVoidPtr(((memory_t *)self)->at);
}

static Py_ssize_t length(PyObject *self)
{
    return (Py_ssize_t)((memory_t *)self)->n;
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

#define WORDS(fn) (PyCFunction)(void (*)(void))(fn), METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"copy_from", WORDS(copy_from),
     DOC("copy_from($self, buffer, offset=0)", "Copy a buffer, of any kind of memory, into it. Gives the length.")},
    {"copy_to", WORDS(copy_to),
     DOC("copy_to($self, buffer, offset=0)", "Fill a buffer, of any kind of memory, from it. Gives the length.")},
    {"tobytes", WORDS(to_bytes), DOC("tobytes($self, offset=0, n=None)", "A copy of it.")},
    {"fill", WORDS(fill), DOC("fill($self, value=0, offset=0, n=None)", "Set every byte to a value.")},
    {"__dlpack__", WORDS(dlpack),
     DOC("__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)",
         "For other packages: it as a tensor of bytes.")},
    {"__dlpack_device__", dlpack_device, METH_NOARGS,
     DOC("__dlpack_device__($self)", "For other packages: DLPack's numbers of its device.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"kind", get_kind, NULL,
     "host, huge, pinned, cuda, cuda-managed, cuda-async, cuda-vmm, cuda-fd, or one that a program added.", NULL},
    {"ptr", get_ptr, NULL, "Its address, good for as long as the object lives.", NULL},
    {"__cuda_array_interface__", get_cuda, NULL, "For other packages: it as bytes on a GPU. Missing in other kinds.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"nbytes", T_ULONGLONG, offsetof(memory_t, n), READONLY, "Its length in bytes."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(memory_t, weakrefs), READONLY, NULL},
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
    {Py_sq_length, length},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

PyType_Spec weftpy_memory_spec = WEFTPY_SPEC("Memory", memory_t, 0, slots);
