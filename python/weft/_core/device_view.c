/* _core/device_view.c - DeviceView: the payload of a message in GPU memory of its sender, which is lent.
 *
 * A view takes the message of the library over from the Message: the sender's operation ends when the view is given back, by
 * release(), or with the last who holds it. Arrays of other packages hold it. Those by DLPack are counted, as are operations and
 * copies, and release() refuses to pull the memory away under them; of others we do not hear.
 *
 * A view outlives its runtime: a kernel that reads memory which is not there any more ends the context of the whole process.
 *
 * Threads: any; the last array may go in any thread.
 *
 * Promise: while a view is not released, its memory can be read, whatever becomes of the sender and of the runtime.
 * tests/python/paper_lend.py holds us to it. */
#include "memory.h"

#define SELF device_view_t *v = (device_view_t *)self

typedef struct device_view {
    weftpy_memory_t memory;
    weftpy_runtime_t *run;
    weft_am_t *am; /* NULL: it was given back */
} device_view_t;

/* --- life ---------------------------------------------------------------------------------------------------------------- */

static PyObject *value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_state_t *st = run->st;
    const weft_mem_kind_t *kind = weft_mem_kind_find("cuda");
    if (!st->device_view || !kind)
        return weftpy_raise_text(st, WEFT_ERR_CLOSED, "the interpreter is ending");
    device_view_t *v = (device_view_t *)PyType_GenericAlloc(st->device_view, 0);
    if (!v)
        return NULL; /* the message still has it */
    v->memory.st = st;
    v->memory.kind = kind;
    v->memory.released = true;
    v->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)run);
    v->am = weftpy_message_take((weftpy_message_t *)made); /* last: the collector may have released it */
    if (!v->am) {
        Py_DECREF(v);
        return NULL;
    }
    v->memory.at = op->buf;
    v->memory.n = op->len;
    v->memory.released = false;
    return (PyObject *)v;
}

static void failed(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    if (op->status != WEFT_ERR_UNSUPPORTED)
        weftpy_raise_op(run->st, op);
    else
        weftpy_raise_text(
            run->st, WEFT_ERR_UNSUPPORTED,
            "this payload cannot be lent: it is shorter than 512 KiB, or not in GPU memory of a process on this host "
            "that others can open; read_into() copies it");
}

const weftpy_gives_t weftpy_gives_view = {.value = value, .failed = failed};

static void give_back(device_view_t *v)
{
    weft_am_t *am = v->am;
    v->am = NULL;
    v->memory.released = true;
    if (am)
        weftpy_message_let_go(v->run, am);
}

/* A cycle is possible: a handler may hold the view, the view the runtime, and the runtime the handler. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((device_view_t *)self)->run);
    return 0;
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (v->memory.weakrefs)
        PyObject_ClearWeakRefs(self);
    give_back(v);
    Py_CLEAR(v->run);
    weftpy_free(self);
}

static PyObject *release(PyObject *self, PyObject *unused)
{
    SELF;
    weftpy_runtime_t *run = v->run;
    if (v->am && run->rt && !run->blocking && run->thread == PyThread_get_thread_ident() && weftpy_loop_before_post(run))
        return NULL;
    if (v->am && v->memory.users) {
        PyErr_Format(PyExc_BufferError, "arrays, operations or copies still use the view (%zd of them): let go of those first",
                     v->memory.users);
        return NULL;
    }
    give_back(v);
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    return release(self, NULL);
}

/* --- for others to see --------------------------------------------------------------------------------------------------- */

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    view->obj = NULL;
    PyErr_SetString(PyExc_BufferError,
                    "this is memory of a GPU, which the processor cannot touch: tobytes() and copy_to() copy it");
    return -1;
}

/* Of those that weftpy_memory_get() gave. */
static void release_buffer(PyObject *self, Py_buffer *view)
{
    ((weftpy_memory_t *)self)->users--;
}

static PyObject *repr(PyObject *self)
{
    SELF;
    return PyUnicode_FromFormat("<weft.DeviceView of %llu bytes, %s>", (unsigned long long)v->memory.n,
                                v->am ? v->memory.kind->name : "released");
}

static PyMethodDef methods[] = {
    {"release", release, METH_NOARGS,
     DOC("release($self)", "Give the memory back to its sender. BufferError while arrays by DLPack or operations use it.")},
    {"copy_to", WORDS(weftpy_memory_copy_to),
     DOC("copy_to($self, buffer, offset=0)", "Fill a buffer, of any kind of memory, from it. Gives the length.")},
    {"tobytes", WORDS(weftpy_memory_to_bytes), DOC("tobytes($self, offset=0, n=None)", "A copy of it.")},
    {"__dlpack__", WORDS(weftpy_memory_dlpack),
     DOC("__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)",
         "For other packages: it as a tensor of bytes, to be read only.")},
    {"__dlpack_device__", weftpy_memory_dlpack_device, METH_NOARGS,
     DOC("__dlpack_device__($self)", "For other packages: DLPack's numbers of its device.")},
    {"__enter__", weftpy_itself, METH_NOARGS, NULL},
    {"__exit__", WITHOUT_NAMES(leave), NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"kind", weftpy_memory_kind, NULL, "cuda.", NULL},
    {"ptr", weftpy_memory_ptr, NULL, "Its address, good until it is released.", NULL},
    {"__cuda_array_interface__", weftpy_memory_cuda, NULL, "For other packages: it as bytes on a GPU, to be read only.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"nbytes", T_ULONGLONG, offsetof(weftpy_memory_t, n), READONLY, "Its length in bytes."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(weftpy_memory_t, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "GPU memory of a process on this host that it lends with a message. To be read only, until it is released."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {Py_sq_length, weftpy_memory_length},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {0, NULL},
};

PyType_Spec weftpy_device_view_spec = WEFTPY_SPEC("DeviceView", device_view_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
