/* _core/transport_buffer.c - _TransportBuffer: the memory that is registered with a transport, held for as long as somebody has a
 * view of it.
 *
 * Transport.buf is a memoryview of one. The memory is counted by the library, and may outlive the transport, its action and the
 * runtime.
 *
 * Promise: a view can be used whatever became of the transport. tests/python/test_disagg_buffers.py holds us to it. */
#include "elements.h"

typedef struct transport_buffer {
    PyObject_HEAD weft_buffer_t *of;
} transport_buffer_t;

PyObject *weftpy_transport_buffer_new(weftpy_state_t *st, weft_buffer_t *buffer)
{
    transport_buffer_t *b = (transport_buffer_t *)PyType_GenericAlloc(st->transport_buffer, 0);
    if (b) {
        weft_buffer_hold(buffer);
        b->of = buffer;
    }
    return (PyObject *)b;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    static char nothing[1];
    weft_buffer_t *of = ((transport_buffer_t *)self)->of;
    size_t len = weft_buffer_len(of);
    return PyBuffer_FillInfo(view, self, len ? weft_buffer_base(of) : nothing, (Py_ssize_t)len, 0, flags);
}

static void dealloc(PyObject *self)
{
    weft_buffer_drop(((transport_buffer_t *)self)->of);
    weftpy_free(self);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "The memory that is registered with a transport."},
    {Py_tp_dealloc, dealloc},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

PyType_Spec weftpy_transport_buffer_spec = WEFTPY_SPEC("_TransportBuffer", transport_buffer_t, WEFTPY_NOT_CALLED, slots);
