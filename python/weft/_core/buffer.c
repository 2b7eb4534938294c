/* _core/buffer.c - memory of any object: the one place that makes a pointer and a length of one.
 *
 * An object has memory if it has the buffer protocol. What is on a GPU will come here, by DLPack and __cuda_array_interface__: both
 * fill in the same struct, with the kind of memory, and its owner in view.obj.
 *
 * Held until it is complete: the exporter cannot move or resize it meanwhile (a bytearray refuses with BufferError).
 *
 * Promise: what is not contiguous, or is to be written and cannot be, is refused with a sentence that says so. tests/python/test_buffers.py
 * holds us to it. */
#include "core.h"

int weftpy_buf_get(weftpy_state_t *st, PyObject *object, bool writable, weftpy_buf_t *out)
{
    out->kind = NULL;
    if (PyObject_GetBuffer(object, &out->view, PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) == 0)
        return 0;
    out->view.obj = NULL;
    bool has = PyObject_CheckBuffer(object);
    if (has && !PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError))
        return -1; /* the exporter's own trouble */
    PyErr_Clear();
    if (!has) {
        PyErr_Format(PyExc_TypeError, "%R has no memory to send from or receive into: it lacks the buffer protocol",
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
