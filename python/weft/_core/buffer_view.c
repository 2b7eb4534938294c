/* _core/buffer_view.c - BufferView: what Transport.buf is. A memoryview with what programs written for libd ask of it besides.
 *
 * libd's buf is Cython's view of chars. Of that programs use slices, slice assignment (of bytes, of arrays of one-byte items, of
 * one number for all), the buffer protocol, and size, shape, itemsize, nbytes, T and copy(). A memoryview has not all of these,
 * and cannot have a subclass; so this type holds one, of format B, and passes on what that can do. Who asks for the buffer gets
 * the memoryview's, without a copy.
 *
 * Promise: whatever is assigned, no byte outside of the view is written. tests/python/test_scad_buffers.py holds us to it. */
#include "elements.h"

#include <string.h>

typedef struct view {
    PyObject_HEAD PyObject *memory; /* a memoryview */
} view_t;

#define MEMORY (((view_t *)self)->memory)

PyObject *weftpy_buffer_view_new(PyTypeObject *type, PyObject *memory)
{
    view_t *v = memory ? (view_t *)PyType_GenericAlloc(type, 0) : NULL;
    if (v)
        v->memory = memory;
    else
        Py_XDECREF(memory);
    return (PyObject *)v;
}

static void dealloc(PyObject *self)
{
    Py_CLEAR(MEMORY);
    weftpy_free(self);
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    return PyObject_GetBuffer(MEMORY, view, flags);
}

/* A view of the same kind, of a memoryview that is stolen; anything else as it is. */
static PyObject *wrapped(PyObject *self, PyObject *found)
{
    return found && PyMemoryView_Check(found) ? weftpy_buffer_view_new(Py_TYPE(self), found) : found;
}

/* --- items and slices ------------------------------------------------------------------------------------------------------ */

static Py_ssize_t length(PyObject *self)
{
    return PyObject_Size(MEMORY);
}

static PyObject *iter(PyObject *self)
{
    return PyObject_GetIter(MEMORY);
}

/* buf[...] is all of it, as of arrays; a memoryview does not know that. A new reference. */
static PyObject *key_of(PyObject *key)
{
    return key == Py_Ellipsis ? PySlice_New(NULL, NULL, NULL) : Py_NewRef(key);
}

static PyObject *subscript(PyObject *self, PyObject *given)
{
    PyObject *key = key_of(given), *found = key ? PyObject_GetItem(MEMORY, key) : NULL;
    Py_XDECREF(key);
    return wrapped(self, found);
}

/* The bytes that a key selects, to be written; -1 with an exception. They are held until PyBuffer_Release(). */
static int selected(PyObject *self, PyObject *key, Py_buffer *out)
{
    PyObject *part = PyObject_GetItem(MEMORY, key);
    int failed = !part || PyObject_GetBuffer(part, out, PyBUF_STRIDED);
    Py_XDECREF(part);
    return failed ? -1 : 0;
}

static void put(const Py_buffer *to, Py_ssize_t i, char byte)
{
    ((char *)to->buf)[i * to->strides[0]] = byte;
}

/* buf[a:b] = 7 */
static int fill(PyObject *self, PyObject *key, PyObject *value)
{
    Py_buffer to;
    Py_ssize_t byte = PyNumber_AsSsize_t(value, PyExc_ValueError);
    if (byte == -1 && PyErr_Occurred())
        return -1;
    if (byte < 0 || byte > 255) {
        PyErr_Format(PyExc_ValueError, "%zd is not a byte: it is not from 0 to 255", byte);
        return -1;
    }
    if (selected(self, key, &to))
        return -1;
    for (Py_ssize_t i = 0; to.strides[0] != 1 && i < to.shape[0]; i++)
        put(&to, i, (char)byte);
    if (to.strides[0] == 1)
        memset(to.buf, (int)byte, (size_t)to.len);
    PyBuffer_Release(&to);
    return 0;
}

/* Is it a number? numpy's have a buffer, too. */
static bool is_number(PyObject *value)
{
    Py_buffer of;
    if (!PyIndex_Check(value) || !PyObject_CheckBuffer(value))
        return PyIndex_Check(value);
    if (PyObject_GetBuffer(value, &of, PyBUF_STRIDED_RO)) {
        PyErr_Clear();
        return false;
    }
    bool number = !of.ndim;
    PyBuffer_Release(&of);
    return number;
}

/* An array of one-byte items that are not of format B: S1, int8, bool. 1: it is none, or does not fit. */
static int copy_bytes(PyObject *self, PyObject *key, PyObject *value)
{
    Py_buffer from, to;
    int result = 1;
    if (PyObject_GetBuffer(value, &from, PyBUF_STRIDED_RO)) {
        PyErr_Clear();
        return 1;
    }
    char *copy = from.itemsize == 1 && from.ndim == 1 ? PyMem_Malloc((size_t)from.len + 1) : NULL; /* they may overlap */
    if (copy && !PyBuffer_ToContiguous(copy, &from, from.len, 'C')) {
        if (selected(self, key, &to)) {
            result = -1;
        } else {
            result = to.len != from.len;
            for (Py_ssize_t i = 0; !result && i < to.len; i++)
                put(&to, i, copy[i]);
            PyBuffer_Release(&to);
        }
    }
    PyMem_Free(copy);
    PyBuffer_Release(&from);
    return result;
}

static int assign(PyObject *self, PyObject *key, PyObject *value)
{
    if (PySlice_Check(key) && is_number(value))
        return fill(self, key, value);
    if (!PyObject_SetItem(MEMORY, key, value))
        return 0;
    if (!PySlice_Check(key) || !PyErr_ExceptionMatches(PyExc_ValueError))
        return -1;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    int result = copy_bytes(self, key, value);
    if (result > 0) {
        PyErr_Restore(type, error, trace);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

static int ass_subscript(PyObject *self, PyObject *given, PyObject *value)
{
    PyObject *key = key_of(given);
    int result = !key ? -1 : value ? assign(self, key, value) : PyObject_DelItem(MEMORY, key);
    Py_XDECREF(key);
    return result;
}

static PyObject *compare(PyObject *self, PyObject *other, int op)
{
    return PyObject_RichCompare(MEMORY, Py_TYPE(other) == Py_TYPE(self) ? ((view_t *)other)->memory : other, op);
}

static PyObject *repr(PyObject *self)
{
    Py_ssize_t n = PyObject_Size(MEMORY);
    if (n >= 0)
        return PyUnicode_FromFormat("<weft.BufferView of %zd bytes>", n);
    PyErr_Clear();
    return PyUnicode_FromString("<weft.BufferView, released>");
}

/* --- what a memoryview has ------------------------------------------------------------------------------------------------- */

static PyObject *forward(PyObject *self, PyObject *args, PyObject *kw, const char *name)
{
    PyObject *method = PyObject_GetAttrString(MEMORY, name), *found = method ? PyObject_Call(method, args, kw) : NULL;
    Py_XDECREF(method);
    return found;
}

#define FORWARD(name) \
    static PyObject *name(PyObject *self, PyObject *args, PyObject *kw) \
    { \
        return forward(self, args, kw, #name); \
    }
FORWARD(tobytes)
FORWARD(tolist)
FORWARD(hex)
FORWARD(cast)
FORWARD(release)

static PyObject *toreadonly(PyObject *self, PyObject *unused)
{
    return wrapped(self, PyObject_CallMethod(MEMORY, "toreadonly", NULL));
}

static PyObject *leave(PyObject *self, PyObject *unused)
{
    return PyObject_CallMethod(MEMORY, "release", NULL);
}

static PyObject *get(PyObject *self, void *name)
{
    return PyObject_GetAttrString(MEMORY, name);
}

/* --- and what it has not --------------------------------------------------------------------------------------------------- */

static PyObject *copy(PyObject *self, PyObject *unused)
{
    PyObject *bytes = PyByteArray_FromObject(MEMORY), *view = bytes ? PyMemoryView_FromObject(bytes) : NULL;
    Py_XDECREF(bytes);
    return weftpy_buffer_view_new(Py_TYPE(self), view);
}

static PyObject *get_size(PyObject *self, void *unused)
{
    Py_ssize_t n = PyObject_Size(MEMORY);
    return n < 0 ? NULL : PyLong_FromSsize_t(n);
}

static PyObject *get_t(PyObject *self, void *unused)
{
    return Py_NewRef(self);
}

#define NAMES(fn) (PyCFunction)(void (*)(void))(fn), METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"copy", copy, METH_NOARGS, DOC("copy($self)", "A view of the same kind over a copy of these bytes.")},
    {"tobytes", NAMES(tobytes), DOC("tobytes($self, order='C')", "A copy, as bytes.")},
    {"tolist", NAMES(tolist), DOC("tolist($self)", "A list of the bytes, as numbers.")},
    {"hex", NAMES(hex), DOC("hex($self, *args)", "The bytes as hexadecimal digits; takes what memoryview.hex() takes.")},
    {"cast", NAMES(cast), DOC("cast($self, format, *args)", "A memoryview of another format over the same memory.")},
    {"toreadonly", toreadonly, METH_NOARGS, DOC("toreadonly($self)", "A view that cannot be written.")},
    {"release", NAMES(release), DOC("release($self)", "Let go of the memory now; other views keep it.")},
    {"__enter__", weftpy_itself, METH_NOARGS, NULL},
    {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define PASSED_ON(name, text) \
    { \
        name, get, NULL, text, name \
    }
static PyGetSetDef getset[] = {
    {"size", get_size, NULL, "How many bytes it has.", NULL},
    {"T", get_t, NULL, "Itself: it has one dimension.", NULL},
    PASSED_ON("nbytes", "How many bytes it has."),
    PASSED_ON("shape", "(size,)"),
    PASSED_ON("strides", "How far two bytes that follow each other are apart, in a tuple."),
    PASSED_ON("suboffsets", "()"),
    PASSED_ON("itemsize", "1"),
    PASSED_ON("format", "B"),
    PASSED_ON("ndim", "1"),
    PASSED_ON("readonly", "Whether it cannot be written."),
    PASSED_ON("contiguous", "Whether the bytes are side by side."),
    PASSED_ON("c_contiguous", "The same."),
    PASSED_ON("f_contiguous", "The same."),
    PASSED_ON("obj", "What owns the memory."),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A view of bytes: a memoryview, with size, T and copy() of numpy's arrays."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_richcompare, compare},
    {Py_tp_iter, iter},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_mp_length, length},
    {Py_mp_subscript, subscript},
    {Py_mp_ass_subscript, ass_subscript},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

PyType_Spec weftpy_buffer_view_spec = WEFTPY_SPEC("BufferView", view_t, WEFTPY_NOT_CALLED, slots);
