/* _core/buffer.c - memory of any object: the one place that makes a pointer and a length of one.
 *
 * An object has memory if it has the buffer protocol; else foreign.c asks for DLPack and __cuda_array_interface__. Both fill in
 * the same struct, with the kind of memory, and its owner in view.obj.
 *
 * Held until it is complete: the exporter cannot move or resize it meanwhile (a bytearray refuses with BufferError).
 *
 * Promise: what is not contiguous, or is to be written and cannot be, is refused with a sentence that says so.
 * tests/python/test_buffers.py holds us to it. */
#include "core.h"

/* Does a format contain Python objects? Their addresses mean nothing in another process, and overwriting them would crash. */
static bool has_objects(const char *format)
{
    bool name = false;
    for (; format && *format; format++) {
        if (*format == ':')
            name = !name; /* of a field: T{i:Ordinal:} has none */
        else if (*format == 'O' && !name)
            return true;
    }
    return false;
}

/* numpy has no format for dates. Its arrays of objects are recognised by their dtype. */
static bool is_object_array(PyObject *object)
{
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *has = dtype ? PyObject_GetAttrString(dtype, "hasobject") : NULL;
    int truth = has ? PyObject_IsTrue(has) : 0;
    Py_XDECREF(has);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return truth != 0;
}

static int refuse_objects(weftpy_state_t *st, PyObject *object, weftpy_buf_t *out)
{
    PyBuffer_Release(&out->view);
    out->view.obj = NULL;
    weftpy_raise_text(st, WEFT_ERR_INVALID,
                      "the buffer, a %R, holds Python objects, which are addresses of this process: make bytes of them",
                      (PyObject *)Py_TYPE(object));
    return -1;
}

/* The object has the buffer protocol, but the call failed. CuPy's arrays do that, because the processor cannot access their
 * memory. If the object offers no other way, its own exception is raised. */
static int elsewhere(weftpy_state_t *st, PyObject *object, bool writable, weftpy_order_t *order, weftpy_buf_t *out)
{
    PyObject *type, *error, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Fetch(&type, &error, &trace);
    int foreign = weftpy_foreign_get(st, object, writable, order, out);
    if (!foreign) {
        PyErr_Restore(type, error, trace);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return foreign < 0 ? -1 : 0;
}

int weftpy_buf_get_in(weftpy_state_t *st, PyObject *object, bool writable, weftpy_order_t *order, weftpy_buf_t *out)
{
    out->kind = NULL;
    int flags = PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &out->view, flags | PyBUF_FORMAT) == 0)
        return __builtin_expect(has_objects(out->view.format), 0) ? refuse_objects(st, object, out) : 0;
    if (PyErr_ExceptionMatches(PyExc_ValueError)) { /* its items have no format */
        PyErr_Clear();
        if (PyObject_GetBuffer(object, &out->view, flags) == 0)
            return is_object_array(object) ? refuse_objects(st, object, out) : 0;
    }
    out->view.obj = NULL;
    bool has = PyObject_CheckBuffer(object);
    int ours = has ? weftpy_memory_get(st, object, writable, out) : 0;
    if (ours < 0)
        return -1;
    if (ours) {
        PyErr_Clear();
        return 0;
    }
    if (has && !PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError))
        return elsewhere(st, object, writable, order, out);
    PyErr_Clear();
    if (!has) {
        int foreign = weftpy_foreign_get(st, object, writable, order, out);
        if (foreign)
            return foreign < 0 ? -1 : 0;
        PyErr_Format(PyExc_TypeError,
                     "%R has no memory to send from or receive into: it has neither the buffer protocol nor "
                     "__dlpack__ nor __cuda_array_interface__",
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    if (PyObject_GetBuffer(object, &out->view, PyBUF_STRIDED_RO) == 0) {
        bool contiguous = PyBuffer_IsContiguous(&out->view, 'A');
        PyBuffer_Release(&out->view);
        out->view.obj = NULL;
        if (contiguous && writable)
            weftpy_raise_text(st, WEFT_ERR_INVALID, "the buffer, a %R, is read-only: receive into one that can be written",
                              (PyObject *)Py_TYPE(object));
        else
            weftpy_raise_text(st, WEFT_ERR_INVALID,
                              "the buffer, a %R, is not contiguous: copy it first, or use a view of whole rows",
                              (PyObject *)Py_TYPE(object));
        return -1;
    }
    PyErr_Clear();
    weftpy_raise_text(st, WEFT_ERR_INVALID, "the buffer, a %R, gives no contiguous memory", (PyObject *)Py_TYPE(object));
    return -1;
}

int weftpy_buf_get(weftpy_state_t *st, PyObject *object, bool writable, weftpy_buf_t *out)
{
    return weftpy_buf_get_in(st, object, writable, NULL, out);
}
