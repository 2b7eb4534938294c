/* _core/foreign.c - memory of objects without the buffer protocol: by DLPack, and by __cuda_array_interface__.
 *
 * DLPack: the object is asked on which device it is, and then for a tensor whose contents are whole once a stream has done what
 * it was given so far: that of `stream=`, or else CUDA's default stream. The tensor is consumed as the protocol says, and given
 * back when the buffer is released.
 *
 * __cuda_array_interface__: the object is held, with the dict it gave. Its contents are whole once the stream in it has done what
 * it was given: 1 and 2 are default streams, anything else is a handle, which is believed, since nobody can check one. Without a
 * stream in it, the default one is meant; where it is None, none.
 *
 * An operation that takes its turn in streams comes behind such a stream (order.c), and nobody waits. For anything else the
 * default stream is waited for by its number, and any other by waiting for everything in the context.
 *
 * What they say is not believed: shapes that overflow, strides that are not contiguous, addresses that are not the GPU's are
 * refused with a sentence that says so. Only an address in host memory that DLPack names has to be believed.
 *
 * tests/python/test_foreign.py holds us to it, with a driver made of paper, and tests/python/test_gpu.py with a real one. */
#include "values.h"

#include <string.h>

enum { CPU = 1, CUDA = 2, CUDA_HOST = 3, CUDA_MANAGED = 13 }; /* DLPack's numbers */
enum { DL_MAJOR = 1, DL_READ_ONLY = 1 };

/* DLPack's DLManagedTensorVersioned, since its version 1. */
typedef struct versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct versioned *self);
    uint64_t flags;
    weft_tensor_t tensor;
} versioned_t;

static const char *const names[2] = {"dltensor", "dltensor_versioned"}, *const used[2] = {"used_dltensor",
                                                                                          "used_dltensor_versioned"};
static const char *const held[2] = {"weft.held", "weft.held_versioned"};

static PyObject *refuse(weftpy_state_t *st, PyObject *object, const char *why)
{
    return weftpy_raise_text(st, WEFT_ERR_INVALID, "the buffer, a %R, %s", (PyObject *)Py_TYPE(object), why);
}

static const char *const not_contiguous = "is not contiguous: copy it first, or use a view of whole rows";
static const char *const read_only = "is read-only: receive into one that can be written";

/* Is it contiguous, in C or in Fortran order? Steps are in units of `unit`. */
static bool contiguous(const int64_t *shape, const int64_t *steps, int ndim, int64_t unit)
{
    bool c = true, f = true;
    int64_t at = unit, step = unit;
    for (int i = 0; i < ndim; i++)
        if (!shape[i])
            return true;
    for (int i = 0; i < ndim; i++) {
        int last = ndim - 1 - i;
        c = c && (shape[last] == 1 || steps[last] == at);
        f = f && (shape[i] == 1 || steps[i] == step);
        at *= shape[last]; /* no overflow: the whole array fits into memory */
        step *= shape[i];
    }
    return c || f;
}

/* Is all of the memory on the device that its owner names? Only GPU memory can be checked. */
static int check_device(weftpy_state_t *st, PyObject *object, const char *at, uint64_t n, const weft_mem_kind_t **kind_out)
{
    const weft_mem_kind_t *cuda = weft_mem_kind_find("cuda");
    if (!cuda) {
        weftpy_raise(st, WEFT_ERR_UNSUPPORTED);
        return -1;
    }
    if (!n) {
        *kind_out = cuda;
        return 0;
    }
    const weft_mem_kind_t *first = n - 1 > UINTPTR_MAX - (uintptr_t)at ? NULL : weft_mem_kind_of(at);
    if (!first || weft_mem_device(at) < 0 || weft_mem_kind_of(at + (n - 1)) != first) {
        refuse(st, object, "says that it is memory of a GPU, and its address is none there");
        return -1;
    }
    *kind_out = first;
    return 0;
}

/* What the stream was given comes first: before the operation in this order, or now. 0: there is none. */
static int settle(weftpy_state_t *st, const void *at, uint64_t n, uintptr_t stream, weftpy_order_t *order)
{
    bool all = stream != 1;
    if (!n || !stream)
        return 0;
    if (order)
        return weftpy_order_add(st, order, (void *)stream, at);
    PyThreadState *save = PyEval_SaveThread();
    weft_status_t status = weft_mem_settle(at, all);
    PyEval_RestoreThread(save);
    if (status)
        weftpy_raise(st, status);
    return status ? -1 : 0;
}

static void fill(weftpy_buf_t *out, PyObject *owner, void *at, uint64_t n, bool readonly, const weft_mem_kind_t *kind)
{
    memset(&out->view, 0, sizeof out->view);
    out->view.obj = owner;                           /* without a buffer protocol, a release only drops it */
    out->view.buf = n ? at : (void *)(uintptr_t) ""; /* an empty buffer may have any address */
    out->view.len = (Py_ssize_t)n;
    out->view.itemsize = 1;
    out->view.readonly = readonly;
    out->view.ndim = 1;
    out->kind = kind;
}

/* --- DLPack -------------------------------------------------------------------------------------------------------------- */

static void give_back(PyObject *capsule)
{
    for (int v = 0; v < 2; v++) {
        if (!PyCapsule_IsValid(capsule, held[v]))
            continue;
        void *foreign = PyCapsule_GetPointer(capsule, held[v]);
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        if (v && ((versioned_t *)foreign)->deleter)
            ((versioned_t *)foreign)->deleter(foreign);
        else if (!v && ((weftpy_dlpack_t *)foreign)->deleter)
            ((weftpy_dlpack_t *)foreign)->deleter(foreign);
        PyErr_Restore(type, error, trace);
    }
}

/* On which device it is; 0, or -1 with an exception. */
static int device_of(weftpy_state_t *st, PyObject *object, int *type_out)
{
    PyObject *pair = PyObject_CallMethod(object, "__dlpack_device__", NULL), *number = NULL;
    int result = -1;
    if (pair && (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2))
        PyErr_Format(PyExc_TypeError, "__dlpack_device__() of a %R gives %R, and not a pair of numbers",
                     (PyObject *)Py_TYPE(object), pair);
    else if (pair)
        number = PyNumber_Index(PyTuple_GetItem(pair, 0)); /* torch's is an enum of its own */
    long type = number ? PyLong_AsLong(number) : -1;
    if (number && (type == CPU || type == CUDA || type == CUDA_HOST || type == CUDA_MANAGED))
        result = 0;
    else if (number && !PyErr_Occurred())
        weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED,
                          "a %R is on a device of DLPack's type %ld: memory of the host and of CUDA can be sent",
                          (PyObject *)Py_TYPE(object), type);
    *type_out = (int)type;
    Py_XDECREF(pair);
    Py_XDECREF(number);
    return result;
}

/* Ask for the capsule: a versioned one with flags, if the object supports versions. Stream 0: without one. */
static PyObject *ask(PyObject *method, uintptr_t stream)
{
    PyObject *none = PyTuple_New(0), *capsule = NULL;
    for (int versions = 1; none && versions >= 0; versions--) {
        PyObject *kw = PyDict_New(), *number = stream ? PyLong_FromSize_t(stream) : NULL;
        PyObject *most = versions ? Py_BuildValue("(ii)", DL_MAJOR, 0) : NULL;
        if (kw && (!versions || (most && !PyDict_SetItemString(kw, "max_version", most))) &&
            (!stream || (number && !PyDict_SetItemString(kw, "stream", number))))
            capsule = PyObject_Call(method, none, kw);
        Py_XDECREF(kw);
        Py_XDECREF(number);
        Py_XDECREF(most);
        if (capsule || !versions || !PyErr_ExceptionMatches(PyExc_TypeError))
            break;
        PyErr_Clear();
    }
    Py_XDECREF(none);
    return capsule;
}

static int by_dlpack(weftpy_state_t *st, PyObject *object, PyObject *method, bool writable, weftpy_order_t *order,
                     weftpy_buf_t *out)
{
    int type, v, result = -1;
    uint64_t bytes;
    const weft_mem_kind_t *kind = NULL;
    PyObject *owner;
    if (device_of(st, object, &type))
        return -1;
    bool gpu = type == CUDA || type == CUDA_MANAGED;
    if (gpu && check_device(st, object, NULL, 0, &kind))
        return -1;
    uintptr_t given = order ? (uintptr_t)order->streams.after : 0, stream = given ? given : 1;
    PyObject *capsule = ask(method, gpu ? stream : 0);
    if (!capsule)
        return -1;
    for (v = 1; v >= 0 && !PyCapsule_IsValid(capsule, names[v]); v--)
        ;
    void *foreign = v < 0 ? NULL : PyCapsule_GetPointer(capsule, names[v]);
    if (!foreign) {
        PyErr_Format(PyExc_TypeError, "__dlpack__() of a %R gives %R, which is no tensor to be had", (PyObject *)Py_TYPE(object),
                     capsule);
        goto out;
    }
    if (v && ((versioned_t *)foreign)->major != DL_MAJOR) {
        weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED, "__dlpack__() of a %R gives a tensor of version %lu, and we know version %d",
                          (PyObject *)Py_TYPE(object), (unsigned long)((versioned_t *)foreign)->major, DL_MAJOR);
        goto out;
    }
    const weft_tensor_t *t = v ? &((versioned_t *)foreign)->tensor : &((weftpy_dlpack_t *)foreign)->tensor;
    bool readonly = v && ((versioned_t *)foreign)->flags & DL_READ_ONLY;
    weft_status_t status = weft_tensor_bytes(t, &bytes);
    char *at = (char *)((uintptr_t)t->data + t->byte_offset);
    if (status)
        weftpy_raise(st, status);
    else if (t->device_type != type)
        refuse(st, object, "says that it is on one device, and gives a tensor on another");
    else if (bytes > PY_SSIZE_T_MAX || (bytes && (!t->data || t->byte_offset > UINTPTR_MAX - (uintptr_t)t->data)))
        refuse(st, object, "gives a tensor that has no memory");
    else if (t->strides && !contiguous(t->shape, t->strides, t->ndim, 1))
        refuse(st, object, not_contiguous);
    else if (readonly && writable)
        refuse(st, object, read_only);
    else
        result = gpu ? check_device(st, object, at, bytes, &kind) : 0;
    if (result || (result = gpu && !given ? settle(st, at, bytes, stream, order) : 0)) /* a stream that was given has its place */
        goto out;
    /* take it over: no other user of the capsule may use it now */
    owner = PyCapsule_SetName(capsule, used[v]) || PyCapsule_SetDestructor(capsule, NULL)
                ? NULL
                : PyCapsule_New(foreign, held[v], give_back);
    if (owner)
        fill(out, owner, at, bytes, readonly, gpu ? kind : NULL);
    result = owner ? 0 : -1;
out:
    Py_DECREF(capsule);
    return result;
}

/* --- __cuda_array_interface__ -------------------------------------------------------------------------------------------- */

/* A borrowed value, or NULL: it is missing, or None. */
static PyObject *entry(PyObject *dict, const char *name)
{
    PyObject *value = PyDict_GetItemString(dict, name);
    return value == Py_None ? NULL : value;
}

/* Bytes of an item by its type string: "<f4" is 4. 0: the type has no plain memory. */
static int64_t item_bytes(PyObject *text)
{
    const char *s = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (!s) {
        PyErr_Clear();
        return 0;
    }
    if (!strchr("<>|=", s[0]) || !s[0] || !strchr("biufcmMVSU", s[1]) || !s[1])
        return 0;
    int64_t n = 0;
    for (int i = 2; s[i]; i++) {
        if (s[i] < '0' || s[i] > '9' || n > INT32_MAX / 10)
            return 0;
        n = n * 10 + (s[i] - '0');
    }
    return s[1] == 'U' ? 4 * n : n;
}

/* Read a tuple of numbers. Returns how many, or -1 if it is not one. */
static int numbers(PyObject *tuple, int64_t *out)
{
    Py_ssize_t n = tuple && PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (n > WEFT_TENSOR_DIMS)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *number = PyNumber_Index(PyTuple_GetItem(tuple, i));
        long long value = number ? PyLong_AsLongLong(number) : -1;
        Py_XDECREF(number);
        if (value == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return -1;
        }
        out[i] = value;
    }
    return (int)n;
}

static int address(PyObject *data, uint64_t *at_out, bool *readonly_out)
{
    *at_out = UINT64_MAX;
    if (!data || !PyTuple_Check(data) || PyTuple_Size(data) != 2)
        return -1;
    int truth = PyObject_IsTrue(PyTuple_GetItem(data, 1));
    if (truth < 0 || weftpy_u64(PyTuple_GetItem(data, 0), "data", UINTPTR_MAX, at_out)) {
        PyErr_Clear();
        return -1;
    }
    if (*at_out == UINT64_MAX) /* None */
        *at_out = 0;
    *readonly_out = truth;
    return 0;
}

/* The handle of the stream that its contents are whole behind; 0: none. -1 with an exception. */
static int stream_of(weftpy_state_t *st, PyObject *object, PyObject *dict, uint64_t version, uintptr_t *stream_out)
{
    PyObject *stream = PyDict_GetItemString(dict, "stream");
    uint64_t handle = 0;
    if (version < 3 || !stream) { /* it says nothing */
        *stream_out = 1;
        return 0;
    }
    *stream_out = 0;
    if (stream == Py_None)
        return 0;
    if (weftpy_stream_number(stream, &handle)) {
        PyErr_Clear();
        handle = 0;
    }
    if (!handle) {
        refuse(st, object, "has a __cuda_array_interface__ whose stream is none: it is None, 1, 2, or a handle");
        return -1;
    }
    *stream_out = (uintptr_t)handle;
    return 0;
}

static int by_cuda(weftpy_state_t *st, PyObject *object, PyObject *dict, bool writable, weftpy_order_t *order, weftpy_buf_t *out)
{
    int64_t shape[WEFT_TENSOR_DIMS], steps[WEFT_TENSOR_DIMS];
    uint64_t version = UINT64_MAX, at = 0, bytes;
    bool readonly = false, empty = false;
    const weft_mem_kind_t *kind;
    if (!PyDict_Check(dict) || weftpy_u64(entry(dict, "version"), "version", INT32_MAX, &version) || version > 3) {
        PyErr_Clear();
        refuse(st, object, "has a __cuda_array_interface__ that is no dict of version 3 or before");
        return -1;
    }
    int64_t item = item_bytes(entry(dict, "typestr"));
    int ndim = numbers(entry(dict, "shape"), shape), nsteps = entry(dict, "strides") ? numbers(entry(dict, "strides"), steps) : 0;
    bool whole = item > 0 && ndim >= 0 && !address(entry(dict, "data"), &at, &readonly);
    bytes = (uint64_t)(item > 0 ? item : 0);
    for (int i = 0; i < ndim && whole; i++) {
        empty = empty || !shape[i];
        whole = shape[i] >= 0 && (!shape[i] || !__builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes));
    }
    if (!whole || bytes > PY_SSIZE_T_MAX || (entry(dict, "strides") && nsteps != ndim)) {
        refuse(st, object, "has a __cuda_array_interface__ without a sound typestr, shape, strides or data");
        return -1;
    }
    bytes = empty ? 0 : bytes;
    if (entry(dict, "mask") || (entry(dict, "strides") && !contiguous(shape, steps, ndim, item)) || (readonly && writable)) {
        refuse(st, object,
               entry(dict, "mask")    ? "has a mask: send what it masks, and the mask, apart"
               : readonly && writable ? read_only
                                      : not_contiguous);
        return -1;
    }
    uintptr_t stream;
    if (stream_of(st, object, dict, version, &stream) || check_device(st, object, (const char *)(uintptr_t)at, bytes, &kind) ||
        settle(st, (const void *)(uintptr_t)at, bytes, stream, order))
        return -1;
    PyObject *owner = PyTuple_Pack(2, object, dict);
    if (!owner)
        return -1;
    fill(out, owner, (void *)(uintptr_t)at, bytes, readonly, kind);
    return 0;
}

/* --- either -------------------------------------------------------------------------------------------------------------- */

int weftpy_foreign_get(weftpy_state_t *st, PyObject *object, bool writable, weftpy_order_t *order, weftpy_buf_t *out)
{
    static int (*const by[2])(weftpy_state_t *, PyObject *, PyObject *, bool, weftpy_order_t *, weftpy_buf_t *) = {by_dlpack,
                                                                                                                   by_cuda};
    for (int i = 0; i < 2 && !PyType_Check(object); i++) {
        PyObject *found = PyObject_GetAttrString(object, i ? "__cuda_array_interface__" : "__dlpack__");
        if (found) {
            int result = by[i](st, object, found, writable, order, out);
            Py_DECREF(found);
            return result ? -1 : 1;
        }
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
    }
    return 0;
}

const weft_tensor_t *weftpy_foreign_tensor(const weftpy_buf_t *buf)
{
    PyObject *owner = buf->view.obj;
    for (int v = 0; v < 2 && owner; v++)
        if (PyCapsule_IsValid(owner, held[v])) {
            void *foreign = PyCapsule_GetPointer(owner, held[v]);
            return v ? &((versioned_t *)foreign)->tensor : &((weftpy_dlpack_t *)foreign)->tensor;
        }
    return NULL;
}
