/* _core/values_tensor.c - tensors of Python's objects: by the buffer protocol, or by DLPack, on the host or on a GPU, without a
 * copy.
 *
 * tests/python/test_rpc_values.py and test_gpu.py hold us to it. */
#include "values.h"

#include <string.h>

/* The type of a buffer's items, in DLPack's terms. False: a tensor cannot have such items. */
bool weftpy_items_of(const Py_buffer *view, uint8_t *code_out, uint8_t *bits_out)
{
    const char *f = view->format ? view->format : "B";
    if (*f == '@' || *f == '=' || *f == '<')
        f++;
    bool complex = *f == 'Z';
    f += complex;
    if (!*f || f[1] || view->itemsize <= 0 || view->itemsize > 16)
        return false;
    const char *ints = "bhilqn", *uints = "BHILQN";
    if (*f == '?')
        *code_out = 6;
    else if (strchr(ints, *f))
        *code_out = 0;
    else if (strchr(uints, *f))
        *code_out = 1;
    else if (*f == 'e' || *f == 'f' || *f == 'd')
        *code_out = 2;
    else
        return false;
    if (complex) {
        if (*code_out != 2)
            return false;
        *code_out = 5;
    }
    *bits_out = (uint8_t)(view->itemsize * 8);
    return true;
}

static int tensor_of_buffer(const weftpy_where_t *w, Py_ssize_t item, PyObject *object, struct weftpy_hold *h)
{
    weft_tensor_t *t = &h->tensor;
    const Py_buffer *v = &h->buf.view;
    memset(t, 0, sizeof *t);
    if (v->suboffsets)
        return weftpy_value_wrong(w, item, object, PyExc_TypeError, "whose %s is not in one piece: copy it first", "memory");
    if (!weftpy_items_of(v, &t->code, &t->bits))
        return weftpy_value_wrong(w, item, object, PyExc_TypeError,
                                  "whose items have the format \"%.40s\", which a tensor cannot have",
                                  v->format ? v->format : "");
    if (v->ndim > WEFT_TENSOR_DIMS)
        return weftpy_value_wrong(w, item, object, PyExc_ValueError, "which has more dimensions than a tensor may have, %s",
                                  "16");
    t->data = v->buf;
    t->device_type = 1;
    t->ndim = v->ndim;
    t->lanes = 1;
    t->shape = h->dims;
    bool c = PyBuffer_IsContiguous(v, 'C');
    for (int i = 0; i < v->ndim; i++) {
        h->dims[i] = v->shape ? v->shape[i] : v->len / v->itemsize;
        if (c)
            continue;
        if (v->strides[i] % v->itemsize)
            return weftpy_value_wrong(w, item, object, PyExc_TypeError, "whose strides are no whole %s: copy it first", "items");
        h->dims[WEFT_TENSOR_DIMS + i] = v->strides[i] / v->itemsize;
    }
    if (!c)
        t->strides = h->dims + WEFT_TENSOR_DIMS;
    return 0;
}

/* On a device? 1, 0, or -1 with an exception. */
static int on_device(PyObject *object)
{
    PyObject *pair = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    PyObject *type = pair && PyTuple_Check(pair) && PyTuple_Size(pair) == 2 ? PyNumber_Long(PyTuple_GetItem(pair, 0)) : NULL;
    long number = type ? PyLong_AsLong(type) : 0;
    bool failed = PyErr_Occurred() && (PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception));
    Py_XDECREF(pair);
    Py_XDECREF(type);
    if (failed)
        return -1;
    PyErr_Clear(); /* the capsule will show it */
    return number == 2 || number == 13;
}

/* foreign.c has checked it, and has waited until its content is complete. */
static int tensor_of_device(weftpy_state_t *st, const weftpy_where_t *w, Py_ssize_t item, PyObject *object, struct weftpy_hold *h)
{
    const weft_tensor_t *t;
    if (weftpy_foreign_get(st, object, false, NULL, &h->buf) < 0)
        return -1;
    if (!(t = weftpy_foreign_tensor(&h->buf)))
        return weftpy_value_wrong(w, item, object, PyExc_TypeError, "whose %s gives no tensor", "__dlpack__()");
    h->tensor = *t;
    return 0;
}

static int tensor_of_dlpack(weftpy_state_t *st, const weftpy_where_t *w, Py_ssize_t item, PyObject *object, struct weftpy_hold *h)
{
    int device = on_device(object);
    if (device)
        return device < 0 ? -1 : tensor_of_device(st, w, item, object, h);
    PyObject *capsule = PyObject_CallMethod(object, "__dlpack__", NULL);
    weftpy_dlpack_t *foreign =
        capsule && PyCapsule_IsValid(capsule, "dltensor") ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    if (!foreign || PyCapsule_SetName(capsule, "used_dltensor")) {
        Py_XDECREF(capsule);
        return weftpy_error_passes()
                   ? -1
                   : weftpy_value_wrong(w, item, object, PyExc_TypeError, "whose %s gives no tensor", "__dlpack__()");
    }
    Py_DECREF(capsule);
    h->foreign = foreign;
    h->tensor = foreign->tensor;
    if (h->tensor.device_type != 1 && h->tensor.device_type != 3)
        return weftpy_value_wrong(w, item, object, PyExc_TypeError, "which is on a device that is neither the %s",
                                  "host nor a GPU");
    return 0;
}

int weftpy_tensor_get(weftpy_state_t *st, const weftpy_where_t *w, Py_ssize_t item, PyObject *object, weftpy_holds_t *holds,
                      weft_tensor_t *out)
{
    int result;
    struct weftpy_hold *h = weftpy_hold_new(holds, 0);
    if (!h)
        return -1;
    const weft_tensor_t *ours = weftpy_tensor_of(st, object);
    if (ours) { /* also for types without a format in the buffer protocol */
        h->object = Py_NewRef(object);
        *out = *ours;
        return 0;
    }
    bool dlpack = PyObject_HasAttrString(object, "__dlpack__");
    h->buf.kind = NULL;
    if (PyObject_CheckBuffer(object) && PyObject_GetBuffer(object, &h->buf.view, PyBUF_FULL_RO) == 0) {
        result = tensor_of_buffer(w, item, object, h);
    } else if (weftpy_error_passes()) {
        h->buf.view.obj = NULL;
        return -1;
    } else {
        bool has = PyErr_Occurred(); /* some objects have the buffer protocol only for host memory */
        PyErr_Clear();
        h->buf.view.obj = NULL;
        if (dlpack)
            result = tensor_of_dlpack(st, w, item, object, h);
        else if (has)
            result = weftpy_value_wrong(w, item, object, PyExc_TypeError, "which does not give its memory as a %s", "buffer");
        else
            result = weftpy_value_wrong(w, item, object, PyExc_TypeError,
                                        "where a tensor is wanted: anything with the buffer protocol or %s", "DLPack");
    }
    if (!result)
        *out = h->tensor;
    return result;
}

int weftpy_one_tensor_get(weftpy_state_t *st, const weftpy_where_t *w, PyObject *object, weftpy_holds_t *holds, weft_value_t *out)
{
    weft_tensor_t tensor;
    if (weftpy_tensor_get(st, w, -1, object, holds, &tensor))
        return -1;
    struct weftpy_hold *h = weftpy_hold_new(holds, 0); /* the description must not move with the holds */
    if (!h)
        return -1;
    h->tensor = tensor;
    out->tensors.at = &h->tensor;
    out->tensors.n = 1;
    return 0;
}
