/* _core/owned.c - OwnedBuffer: the memory the library made for a message, as an object with the buffer protocol.
 *
 * recv(copy=False) gives one instead of bytes: nothing is copied, and the memory goes back to the library with the object, or
 * sooner by release(). It can be written to: it is nobody else's.
 *
 * Promise: while somebody has a view of it the memory stays. tests/python/test_owned.py holds us to it. */
#include "core.h"

typedef struct owned {
    PyObject_HEAD void *buf;
    size_t len;
    Py_ssize_t views;
    bool released;
} owned_t;

static PyObject *value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    if (!run->st->owned)
        return weftpy_raise_text(run->st, WEFT_ERR_CLOSED, "the interpreter is ending");
    owned_t *owned = (owned_t *)PyType_GenericAlloc(run->st->owned, 0);
    if (!owned)
        weft_buf_free(op->buf);
    else {
        owned->buf = op->buf;
        owned->len = (size_t)op->len;
    }
    op->buf = NULL;
    return (PyObject *)owned;
}

static void drop(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weft_buf_free(op->buf);
}

const weftpy_gives_t weftpy_gives_owned = {.value = value, .drop = drop};

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    static char nothing[1];
    owned_t *owned = (owned_t *)self;
    if (owned->released) {
        PyErr_SetString(PyExc_BufferError, "the memory was released");
        view->obj = NULL;
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, owned->len ? owned->buf : nothing, (Py_ssize_t)owned->len, 0, flags))
        return -1;
    owned->views++;
    return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view)
{
    ((owned_t *)self)->views--;
}

static PyObject *release(PyObject *self, PyObject *unused)
{
    owned_t *owned = (owned_t *)self;
    if (owned->views) {
        PyErr_Format(PyExc_BufferError, "somebody still has %zd views of the memory: release those first", owned->views);
        return NULL;
    }
    weft_buf_free(owned->buf);
    owned->buf = NULL;
    owned->released = true;
    Py_RETURN_NONE;
}

static void dealloc(PyObject *self)
{
    weft_buf_free(((owned_t *)self)->buf);
    weftpy_free(self);
}

static Py_ssize_t length(PyObject *self)
{
    owned_t *owned = (owned_t *)self;
    return owned->released ? 0 : (Py_ssize_t)owned->len;
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    return PyLong_FromSsize_t(length(self));
}

static PyObject *leave(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    return release(self, NULL);
}

static PyObject *repr(PyObject *self)
{
    owned_t *owned = (owned_t *)self;
    if (owned->released)
        return PyUnicode_FromString("<weft.OwnedBuffer released>");
    return PyUnicode_FromFormat("<weft.OwnedBuffer %zd bytes>", length(self));
}

static PyMethodDef methods[] = {
    {"release", release, METH_NOARGS,
     DOC("release($self)", "Give the memory back now; BufferError while somebody has a view of it.")},
    {"__enter__", weftpy_itself, METH_NOARGS, NULL},
    {"__exit__", WITHOUT_NAMES(leave), NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"nbytes", get_nbytes, NULL, "Its length.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A message in memory of the library's: memoryview(), bytes(), numpy.frombuffer() and their like read and write "
                "it in place."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_mp_length, length},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {0, NULL},
};

PyType_Spec weftpy_owned_spec = WEFTPY_SPEC("OwnedBuffer", owned_t, WEFTPY_NOT_CALLED, slots);
