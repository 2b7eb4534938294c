/* _core/tensor.c - Tensor: numbers in memory that came with a call, with their shape, as other libraries want to see them.
 *
 * It gives its memory by the buffer protocol (numpy.asarray(tensor), memoryview(tensor)) and by DLPack
 * (torch.from_dlpack(tensor)), without a copy. The memory is that of a reply, an item or a request, which lives until the last
 * view of it is gone; or a copy.
 *
 * One of a single dimension is a sequence too: it has a length, items, and is equal to a list of the same numbers.
 *
 * Promise: a view never outlives its memory, also where the runtime it came from is closed. tests/python/test_rpc_values.py holds
 * us to it. */
#include "values.h"

#include <string.h>

typedef struct weftpy_tensor {
    PyObject_HEAD weft_tensor_t t; /* its data points to the first element */
    PyObject *owner;               /* NULL: the memory is ours */
    void *own;
    const char *format;
    Py_ssize_t bytes, item;
    bool writable, compact;
    int64_t shape[WEFT_TENSOR_DIMS], strides[WEFT_TENSOR_DIMS]; /* in elements, also for a compact tensor */
    Py_ssize_t steps[WEFT_TENSOR_DIMS];                         /* in bytes */
} tensor_t;

_Static_assert(sizeof(int64_t) == sizeof(Py_ssize_t), "a shape is one for the buffer protocol, too");

#define SELF tensor_t *t = (tensor_t *)self

/* --- life --------------------------------------------------------------------------------------------------------- */

/* The format of the buffer protocol; NULL: there is none. */
static const char *format_of(const weft_tensor_t *t)
{
    static const struct {
        uint8_t code, bits;
        const char *format;
    } known[] = {{0, 8, "b"},  {0, 16, "h"}, {0, 32, "i"}, {0, 64, "l"}, {1, 8, "B"},   {1, 16, "H"},   {1, 32, "I"},
                 {1, 64, "L"}, {2, 16, "e"}, {2, 32, "f"}, {2, 64, "d"}, {5, 64, "Zf"}, {5, 128, "Zd"}, {6, 8, "?"}};
    for (size_t i = 0; t->lanes == 1 && i < sizeof known / sizeof *known; i++)
        if (known[i].code == t->code && known[i].bits == t->bits)
            return known[i].format;
    return NULL;
}

static bool on_host(const weft_tensor_t *t)
{
    return t->device_type == 1 || t->device_type == 3 || t->device_type == 13;
}

/* Compute where its elements are. False: it is larger than memory can be. */
static bool measure(tensor_t *t, const weft_tensor_t *from)
{
    uint64_t bytes;
    if (weft_tensor_bytes(from, &bytes) || bytes > PY_SSIZE_T_MAX)
        return false;
    t->t = *from;
    t->t.data = from->data ? (char *)from->data + from->byte_offset : NULL;
    t->t.byte_offset = 0;
    t->bytes = (Py_ssize_t)bytes;
    t->item = (Py_ssize_t)from->bits * from->lanes / 8;
    t->compact = weft_tensor_compact(from);
    t->format = format_of(from);
    int64_t step = 1;
    for (int i = from->ndim; i-- > 0;) {
        t->shape[i] = from->shape[i];
        t->strides[i] = t->compact ? step : from->strides[i];
        t->steps[i] = (Py_ssize_t)(t->strides[i] * t->item);
        step *= from->shape[i] ? from->shape[i] : 1;
    }
    t->t.shape = t->shape;
    t->t.strides = t->compact ? NULL : t->strides;
    return true;
}

/* Copy its elements in C order. */
static void gather(const tensor_t *t, char *to)
{
    int64_t at[WEFT_TENSOR_DIMS] = {0};
    for (Py_ssize_t left = t->bytes; left > 0; left -= t->item, to += t->item) {
        const char *from = t->t.data;
        for (int i = 0; i < t->t.ndim; i++)
            from += at[i] * t->steps[i];
        memcpy(to, from, (size_t)t->item);
        for (int i = t->t.ndim; i-- > 0 && ++at[i] == t->shape[i];)
            at[i] = 0;
    }
}

static int copy(tensor_t *t)
{
    t->own = PyMem_Malloc(t->bytes ? (size_t)t->bytes : 1);
    if (!t->own) {
        PyErr_NoMemory();
        return -1;
    }
    if (t->compact && t->bytes)
        memcpy(t->own, t->t.data, (size_t)t->bytes);
    else
        gather(t, t->own);
    t->t.data = t->own;
    if (!t->compact) {
        weft_tensor_t plain = t->t;
        plain.strides = NULL;
        measure(t, &plain);
    }
    return 0;
}

int64_t weftpy_tensor_copy(const weft_tensor_t *from, void *to, size_t cap)
{
    tensor_t t;
    if (!measure(&t, from) || (size_t)t.bytes > cap)
        return -1;
    if (t.compact && t.bytes)
        memcpy(to, t.t.data, (size_t)t.bytes);
    else
        gather(&t, to);
    return t.bytes;
}

PyObject *weftpy_tensor_make(weftpy_state_t *st, const weft_tensor_t *from, PyObject *owner, unsigned flags)
{
    tensor_t *t = st->tensor ? (tensor_t *)PyType_GenericAlloc(st->tensor, 0) : NULL;
    if (!t)
        return st->tensor ? NULL : weftpy_raise_text(st, WEFT_ERR_CLOSED, "the interpreter is ending");
    if (!measure(t, from)) {
        weftpy_raise(st, WEFT_ERR_INVALID);
        goto err;
    }
    t->writable = !owner || flags & WEFTPY_WRITABLE;
    if (owner) {
        t->owner = Py_NewRef(owner);
    } else if (!on_host(&t->t)) {
        weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED, "a tensor on a device cannot be copied here");
        goto err;
    } else if (copy(t)) {
        goto err;
    }
    return (PyObject *)t;
err:
    Py_DECREF(t);
    return NULL;
}

const weft_tensor_t *weftpy_tensor_of(weftpy_state_t *st, PyObject *object)
{
    return st->tensor && Py_TYPE(object) == st->tensor ? &((tensor_t *)object)->t : NULL;
}

static void dealloc(PyObject *self)
{
    SELF;
    Py_CLEAR(t->owner);
    PyMem_Free(t->own);
    weftpy_free(self);
}

/* --- the buffer protocol ------------------------------------------------------------------------------------------ */

static int refuse(Py_buffer *view, const char *why)
{
    view->obj = NULL;
    PyErr_SetString(PyExc_BufferError, why);
    return -1;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    SELF;
    static char nothing; /* the address of a tensor without elements */
    if (!on_host(&t->t))
        return refuse(view, "the tensor is on a device: use from_dlpack() of a library that knows it");
    if (!t->format)
        return refuse(
            view, "the tensor's elements have no format in the buffer protocol: use from_dlpack() of a library that knows them");
    if (flags & PyBUF_WRITABLE && !t->writable)
        return refuse(view, "the tensor is read-only: copy it");
    if (!t->compact && (flags & PyBUF_STRIDES) != PyBUF_STRIDES)
        return refuse(view, "the tensor has strides: ask for them, or copy it");
    *view = (Py_buffer){.buf = t->bytes ? t->t.data : &nothing, .len = t->bytes, .itemsize = t->item, .readonly = !t->writable};
    view->ndim = t->t.ndim;
    view->shape = (Py_ssize_t *)t->shape;
    view->strides = t->steps;
    if (((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !t->compact) ||
        ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'F')) ||
        ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'A')))
        return refuse(view, "the tensor is not contiguous: copy it");
    if (flags & PyBUF_FORMAT)
        view->format = (char *)(uintptr_t)t->format;
    if (!(flags & PyBUF_ND)) {
        view->shape = NULL;
        view->ndim = 1;
    }
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
        view->strides = NULL;
    view->obj = Py_NewRef(self);
    return 0;
}

/* --- DLPack ------------------------------------------------------------------------------------------------------- */

/* The consumer may free it on any thread, with or without the GIL. */
static void let_go(weftpy_dlpack_t *d)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_XDECREF((PyObject *)d->context);
    PyMem_Free(d);
    PyErr_Restore(type, error, trace);
    PyGILState_Release(gil);
}

static void unused(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor"))
        let_go(PyCapsule_GetPointer(capsule, "dltensor"));
}

static PyObject *dlpack(FAST_ARGS)
{
    SELF;
    /* stream, max_version, dl_device, copy: our capsule is complete, unversioned, in place and not a copy; refuse anything else
     * */
    for (Py_ssize_t i = 0, k = kwnames ? PyTuple_Size(kwnames) : 0; i < k; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        if (PyUnicode_CompareWithASCIIString(name, "copy") == 0 && args[n + i] == Py_True) {
            PyErr_SetString(PyExc_BufferError, "a Tensor gives its memory itself: copy what you have made of it");
            return NULL;
        }
    }
    if (!t->writable) {
        PyErr_SetString(PyExc_BufferError, "the tensor is read-only, which DLPack cannot say: use numpy.asarray(), or copy it");
        return NULL;
    }
    weftpy_dlpack_t *d = PyMem_Malloc(sizeof *d);
    if (!d)
        return PyErr_NoMemory();
    *d = (weftpy_dlpack_t){.tensor = t->t, .context = Py_NewRef(self), .deleter = let_go};
    d->tensor.strides = t->strides; /* some consumers always need strides */
    PyObject *capsule = PyCapsule_New(d, "dltensor", unused);
    if (!capsule)
        let_go(d);
    return capsule;
}

static PyObject *dlpack_device(PyObject *self, PyObject *none)
{
    SELF;
    return Py_BuildValue("(ii)", (int)t->t.device_type, (int)t->t.device_id);
}

/* --- as a sequence ------------------------------------------------------------------------------------------------ */

static Py_ssize_t length(PyObject *self)
{
    SELF;
    if (t->t.ndim)
        return (Py_ssize_t)t->shape[0];
    PyErr_SetString(PyExc_TypeError, "a tensor of no dimensions has no length");
    return -1;
}

static PyObject *subscript(PyObject *self, PyObject *key)
{
    PyObject *view = PyMemoryView_FromObject(self), *item = view ? PyObject_GetItem(view, key) : NULL;
    Py_XDECREF(view);
    return item;
}

static PyObject *item(PyObject *self, Py_ssize_t at)
{
    PyObject *key = PyLong_FromSsize_t(at), *found = key ? subscript(self, key) : NULL;
    Py_XDECREF(key);
    return found;
}

static PyObject *iterate(PyObject *self)
{
    PyObject *view = PyMemoryView_FromObject(self), *iter = view ? PyObject_GetIter(view) : NULL;
    Py_XDECREF(view);
    return iter;
}

static PyObject *to_list(PyObject *self, PyObject *none)
{
    PyObject *view = PyMemoryView_FromObject(self), *list = view ? PyObject_CallMethod(view, "tolist", NULL) : NULL;
    Py_XDECREF(view);
    return list;
}

static PyObject *to_bytes(PyObject *self, PyObject *none)
{
    SELF;
    if (!on_host(&t->t)) {
        PyErr_SetString(PyExc_BufferError, "the tensor is on a device: copy it to the host first");
        return NULL;
    }
    if (t->compact)
        return PyBytes_FromStringAndSize(t->t.data, t->bytes);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, t->bytes);
    if (bytes)
        gather(t, PyBytes_AsString(bytes));
    return bytes;
}

static PyObject *compare(PyObject *self, PyObject *other, int how)
{
    SELF;
    bool same_type = Py_TYPE(self) == Py_TYPE(other);
    if ((how != Py_EQ && how != Py_NE) || (!same_type && !PyList_Check(other) && !PyTuple_Check(other)))
        Py_RETURN_NOTIMPLEMENTED;
    if (same_type && ((tensor_t *)other)->t.ndim != t->t.ndim)
        return PyBool_FromLong(how == Py_NE);
    PyObject *mine = to_list(self, NULL), *result = NULL;
    PyObject *theirs = same_type ? to_list(other, NULL) : PySequence_List(other);
    if (mine && theirs)
        result = PyObject_RichCompare(mine, theirs, how);
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return result;
}

/* --- what can be asked -------------------------------------------------------------------------------------------- */

static PyObject *numbers(const int64_t *of, int n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple && i < n; i++) {
        PyObject *number = PyLong_FromLongLong(of[i]);
        if (!number || PyTuple_SetItem(tuple, i, number))
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *get_shape(PyObject *self, void *none)
{
    SELF;
    return numbers(t->shape, t->t.ndim);
}

static PyObject *get_strides(PyObject *self, void *none)
{
    SELF;
    return numbers(t->strides, t->t.ndim);
}

static PyObject *get_dtype(PyObject *self, void *none)
{
    SELF;
    static const char *const words[] = {"i", "u", "f", "?", "bf", "c", "bool"};
    const char *word = t->t.code < 7 ? words[t->t.code] : "?";
    if (t->t.code == 6 && t->t.bits == 8 && t->t.lanes == 1)
        return PyUnicode_FromString(word);
    if (t->t.lanes != 1)
        return PyUnicode_FromFormat("%s%dx%d", word, t->t.bits, t->t.lanes);
    return PyUnicode_FromFormat("%s%d", word, t->t.bits);
}

static PyObject *get_nbytes(PyObject *self, void *none)
{
    SELF;
    return PyLong_FromSsize_t(t->bytes);
}

static PyObject *get_ndim(PyObject *self, void *none)
{
    SELF;
    return PyLong_FromLong(t->t.ndim);
}

static PyObject *get_readonly(PyObject *self, void *none)
{
    SELF;
    return PyBool_FromLong(!t->writable);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    PyObject *shape = get_shape(self, NULL), *type = get_dtype(self, NULL), *text = NULL;
    PyObject *list = shape && type && on_host(&t->t) && t->format && t->bytes <= 8 * t->item ? to_list(self, NULL) : NULL;
    if (list)
        text = PyUnicode_FromFormat("weft.Tensor(%R, %U)", list, type);
    else if (shape && type) {
        PyErr_Clear(); /* memoryview cannot read numbers of this type */
        text = PyUnicode_FromFormat("<weft.Tensor %U %R>", type, shape);
    }
    Py_XDECREF(list);
    Py_XDECREF(shape);
    Py_XDECREF(type);
    return text;
}

static PyMethodDef methods[] = {
    {"tolist", to_list, METH_NOARGS,
     DOC("tolist($self)", "Its numbers as a list, of lists where it has more dimensions than one.")},
    {"tobytes", to_bytes, METH_NOARGS, DOC("tobytes($self)", "Its numbers as bytes, the last dimension fastest.")},
    {"__dlpack__", FAST(dlpack), DOC("__dlpack__($self, **options)", "Its memory, as DLPack has it.")},
    {"__dlpack_device__", dlpack_device, METH_NOARGS, DOC("__dlpack_device__($self)", "Where its memory is, as DLPack says it.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"shape", get_shape, NULL, "How many there are in each dimension.", NULL},
    {"strides", get_strides, NULL, "How far apart they are in each dimension, in elements.", NULL},
    {"dtype", get_dtype, NULL, "What they are: i8 to i64, u8 to u64, f16 to f64, bf16, c64, c128, bool.", NULL},
    {"ndim", get_ndim, NULL, "How many dimensions it has.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of its elements.", NULL},
    {"readonly", get_readonly, NULL, "True if it may not be written to.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Numbers that came with a call: numpy.asarray() and from_dlpack() take them without a copy."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_richcompare, compare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {Py_tp_iter, iterate},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_sq_length, length},
    {Py_sq_item, item},
    {Py_mp_length, length},
    {Py_mp_subscript, subscript},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

PyType_Spec weftpy_tensor_spec = WEFTPY_SPEC("Tensor", tensor_t, WEFTPY_NOT_CALLED, slots);
