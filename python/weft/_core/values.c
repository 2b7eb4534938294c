/* _core/values.c - objects of Python as values of the library, by the type that a signature wants, and back.
 *
 * Numbers, text and bytes are taken from what they are in Python; a vector from a buffer of exactly its items, without a copy, or
 * else from any sequence, item by item; a tensor from anything with the buffer protocol or DLPack, strides and all, without a
 * copy, on a GPU too.
 *
 * Nothing is guessed: text is no number, a float no whole number, bytes are no text, and what does not fit into its type is
 * refused. The sentence names the function and the argument.
 *
 * Promise: whatever is passed, a value or a TypeError, OverflowError or ValueError, and nothing held by a failure stays held once
 * the holds are released. tests/python/test_rpc_values.py holds us to it. */
#include "values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct weftpy_hold *weftpy_hold_new(weftpy_holds_t *holds, size_t bytes)
{
    struct weftpy_hold *h = PyMem_Malloc(sizeof *h + bytes);
    if (!h) {
        PyErr_NoMemory();
        return NULL;
    }
    h->buf.view.obj = NULL;
    h->object = NULL;
    h->foreign = NULL;
    h->next = holds->first;
    holds->first = h;
    return h;
}

void weftpy_holds_release(weftpy_holds_t *holds)
{
    if (!holds->first)
        return;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace); /* an exporter may run Python code */
    for (struct weftpy_hold *h; (h = holds->first);) {
        holds->first = h->next;
        weftpy_buf_release(&h->buf);
        if (h->foreign && h->foreign->deleter)
            h->foreign->deleter(h->foreign);
        Py_XDECREF(h->object);
        PyMem_Free(h);
    }
    PyErr_Clear();
    PyErr_Restore(type, error, trace);
}

/* --- what is wrong with it --------------------------------------------------------------------------- */

/* Returns "argument b", "result 2" or "the value"; for an item of a vector with [k] after it. */
static PyObject *place(const weftpy_where_t *w, Py_ssize_t item)
{
    char at[32] = "";
    if (item >= 0)
        PyOS_snprintf(at, sizeof at, "[%lld]", (long long)item);
    if (w->name && *w->name)
        return PyUnicode_FromFormat("%s %s%s", w->what, w->name, at);
    if (w->number)
        return PyUnicode_FromFormat("%s %zd%s", w->what, w->number, at);
    return PyUnicode_FromFormat("%s%s", w->what, at);
}

/* Describe a short object by its repr, any other by its type: a repr may be very long, or take very long. */
static PyObject *describe(PyObject *object)
{
    PyObject *text = NULL;
    if (object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
        (PyUnicode_CheckExact(object) && PyUnicode_GetLength(object) <= 60))
        text = PyUnicode_FromFormat("%.70R", object);
    if (!text) { /* the number has more digits than Python converts */
        PyErr_Clear();
        PyObject *name = PyType_GetQualName(Py_TYPE(object));
        text = name ? PyUnicode_FromFormat("of type %U", name) : NULL;
        Py_XDECREF(name);
    }
    return text;
}

/* "add: argument b is 'x', where i32 is wanted". */
int weftpy_value_wrong(const weftpy_where_t *w, Py_ssize_t item, PyObject *object, PyObject *class, const char *format,
                       const char *more)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace); /* our message says more */
    PyObject *where = place(w, item), *what = where ? describe(object) : NULL,
             *why = what ? PyUnicode_FromFormat(format, more) : NULL;
    if (why)
        PyErr_Format(class, "%s: %U is %U, %U", w->fn, where, what, why);
    Py_XDECREF(where);
    Py_XDECREF(what);
    Py_XDECREF(why);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return -1;
}

static int not_wanted(const weftpy_where_t *w, Py_ssize_t item, PyObject *object, uint32_t type)
{
    return weftpy_value_wrong(w, item, object, PyExc_TypeError, "where %s is wanted", weft_type_name(type));
}

static int no_fit(const weftpy_where_t *w, Py_ssize_t item, PyObject *object, uint32_t type)
{
    return weftpy_value_wrong(w, item, object, PyExc_OverflowError, "which does not fit in %s", weft_type_name(type));
}

/* Keep errors that the caller did not cause: no memory, an interrupt. */
bool weftpy_error_passes(void)
{
    return PyErr_Occurred() && (PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception));
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static int get_int(const weftpy_where_t *w, Py_ssize_t item, uint32_t type, PyObject *object, weft_value_t *out)
{
    static const int64_t least[] = {INT8_MIN, INT16_MIN, INT32_MIN, INT64_MIN};
    static const uint64_t most[] = {UINT8_MAX, UINT16_MAX, UINT32_MAX, UINT64_MAX};
    PyObject *number = PyLong_CheckExact(object) ? Py_NewRef(object) : PyNumber_Index(object);
    if (!number)
        return weftpy_error_passes() ? -1 : not_wanted(w, item, object, type);
    int result = 0, over = 0;
    if (type <= WEFT_T_I64) {
        long long v = PyLong_AsLongLongAndOverflow(number, &over);
        unsigned k = type - WEFT_T_I8;
        if (over || v < least[k] || v > ~least[k])
            result = no_fit(w, item, object, type);
        out->i64 = 0;
        switch (type) { /* set only these bytes: equal values must have equal bytes */
        case WEFT_T_I8:
            out->i8 = (int8_t)v;
            break;
        case WEFT_T_I16:
            out->i16 = (int16_t)v;
            break;
        case WEFT_T_I32:
            out->i32 = (int32_t)v;
            break;
        default:
            out->i64 = v;
        }
    } else {
        unsigned long long v = PyLong_AsUnsignedLongLong(number);
        if ((v == (unsigned long long)-1 && PyErr_Occurred()) || v > most[type - WEFT_T_U8])
            result = no_fit(w, item, object, type);
        out->u64 = v;
    }
    Py_DECREF(number);
    return result;
}

static int get_float(const weftpy_where_t *w, Py_ssize_t item, uint32_t type, PyObject *object, weft_value_t *out)
{
    double v = PyFloat_AsDouble(object);
    if (v == -1.0 && PyErr_Occurred()) {
        if (weftpy_error_passes())
            return -1;
        return PyErr_ExceptionMatches(PyExc_OverflowError) ? no_fit(w, item, object, type) : not_wanted(w, item, object, type);
    }
    out->u64 = 0;
    if (type == WEFT_T_F64) {
        out->f64 = v;
        return 0;
    }
    out->f32 = (float)v;
    return isfinite(v) && !isfinite(out->f32) ? no_fit(w, item, object, type) : 0;
}

static int get_bool(const weftpy_where_t *w, Py_ssize_t item, PyObject *object, weft_value_t *out)
{
    out->u64 = 0;
    if (PyBool_Check(object)) {
        out->b = object == Py_True;
        return 0;
    }
    /* numpy's bool is not a subclass of Python's */
    PyObject *name = PyType_GetName(Py_TYPE(object));
    bool is =
        name && (PyUnicode_CompareWithASCIIString(name, "bool_") == 0 || PyUnicode_CompareWithASCIIString(name, "bool") == 0);
    int truth = is ? PyObject_IsTrue(object) : -1;
    Py_XDECREF(name);
    if (truth < 0)
        return weftpy_error_passes() ? -1 : not_wanted(w, item, object, WEFT_T_BOOL);
    out->b = truth;
    return 0;
}

static int get_scalar(const weftpy_where_t *w, Py_ssize_t item, uint32_t type, PyObject *object, weft_value_t *out)
{
    if (type == WEFT_T_F32 || type == WEFT_T_F64)
        return get_float(w, item, type, object, out);
    return type == WEFT_T_BOOL ? get_bool(w, item, object, out) : get_int(w, item, type, object, out);
}

static int get_text(const weftpy_where_t *w, PyObject *object, weftpy_holds_t *holds, weft_value_t *out)
{
    Py_ssize_t n;
    if (!PyUnicode_Check(object))
        return not_wanted(w, -1, object, WEFT_T_STRING);
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (!text)
        return weftpy_error_passes()
                   ? -1
                   : weftpy_value_wrong(w, -1, object, PyExc_ValueError, "which has %s that UTF-8 cannot say", "characters");
    struct weftpy_hold *h = weftpy_hold_new(holds, 0);
    if (!h)
        return -1;
    h->object = Py_NewRef(object);
    out->view.data = text;
    out->view.n = (uint64_t)n;
    return 0;
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

static bool items_are(const Py_buffer *view, uint32_t type)
{
    uint8_t code, bits;
    if (!weftpy_items_of(view, &code, &bits) || bits != weft_type_size(type) * 8)
        return false;
    switch (type) {
    case WEFT_T_BOOL:
        return code == 6;
    case WEFT_T_F32:
    case WEFT_T_F64:
        return code == 2;
    default:
        return code == (type <= WEFT_T_I64 ? 0 : 1);
    }
}

/* --- vectors ------------------------------------------------------------------------------------------------------ */

static int get_items(weftpy_state_t *st, const weftpy_where_t *w, uint32_t type, PyObject *object, weftpy_holds_t *holds,
                     weft_value_t *out);

static int get_vector(weftpy_state_t *st, const weftpy_where_t *w, uint32_t type, PyObject *object, weftpy_holds_t *holds,
                      weft_value_t *out)
{
    uint32_t of = type & ~(uint32_t)WEFT_T_VECTOR;
    if (of != WEFT_T_TENSOR && PyObject_CheckBuffer(object)) {
        struct weftpy_hold *h = weftpy_hold_new(holds, 0);
        if (!h)
            return -1;
        if (PyObject_GetBuffer(object, &h->buf.view, PyBUF_STRIDED_RO | PyBUF_FORMAT) == 0) {
            if (h->buf.view.ndim == 1 && items_are(&h->buf.view, of) && PyBuffer_IsContiguous(&h->buf.view, 'C')) {
                out->view.data = h->buf.view.buf;
                out->view.n = (uint64_t)(h->buf.view.len / h->buf.view.itemsize);
                return 0;
            }
            PyBuffer_Release(&h->buf.view); /* other buffers are read item by item */
        } else if (weftpy_error_passes()) {
            h->buf.view.obj = NULL;
            return -1;
        }
        PyErr_Clear();
        h->buf.view.obj = NULL;
    }
    if (PyUnicode_Check(object) || !PySequence_Check(object) || PyDict_Check(object))
        return not_wanted(w, -1, object, type);
    return get_items(st, w, type, object, holds, out);
}

static int get_items(weftpy_state_t *st, const weftpy_where_t *w, uint32_t type, PyObject *object, weftpy_holds_t *holds,
                     weft_value_t *out)
{
    uint32_t of = type & ~(uint32_t)WEFT_T_VECTOR;
    bool tensors = of == WEFT_T_TENSOR;
    size_t size = tensors ? sizeof(weft_tensor_t) : weft_type_size(of);
    /* a copy of the list: converting an item may run Python code that changes its length */
    PyObject *list = PySequence_List(object);
    if (!list)
        return weftpy_error_passes() ? -1 : not_wanted(w, -1, object, type);
    size_t n = (size_t)PyList_Size(list);
    struct weftpy_hold *h = weftpy_hold_new(holds, n * size);
    int result = h ? 0 : -1;
    char *at = (char *)(h + 1);
    for (size_t i = 0; i < n && !result; i++) {
        PyObject *one = PyList_GetItem(list, (Py_ssize_t)i);
        if (tensors) {
            result = weftpy_tensor_get(st, w, (Py_ssize_t)i, one, holds, &((weft_tensor_t *)(void *)at)[i]);
        } else {
            weft_value_t v;
            result = get_scalar(w, (Py_ssize_t)i, of, one, &v);
            memcpy(at + i * size, &v.u64, size); /* little-endian, like the library */
        }
    }
    Py_DECREF(list);
    if (result)
        return -1;
    if (tensors) {
        out->tensors.at = (const weft_tensor_t *)(const void *)at;
        out->tensors.n = n;
    } else {
        out->view.data = at;
        out->view.n = n;
    }
    return 0;
}

/* --- into the library --------------------------------------------------------------------------------------------- */

int weftpy_value_get(weftpy_state_t *st, const weftpy_where_t *where, uint32_t type, PyObject *object, weftpy_holds_t *holds,
                     weft_value_t *out)
{
    out->type = type;
    out->zero = 0;
    out->view.n = 0;
    if (type >= WEFT_T_BOOL && type <= WEFT_T_F64)
        return get_scalar(where, -1, type, object, out);
    if (type == WEFT_T_STRING)
        return get_text(where, object, holds, out);
    if (type == WEFT_T_TENSOR)
        return weftpy_one_tensor_get(st, where, object, holds, out);
    if (type & WEFT_T_VECTOR)
        return get_vector(st, where, type, object, holds, out);
    return not_wanted(where, -1, object, type);
}

int weftpy_results_get(weftpy_state_t *st, const weft_sig_t *sig, PyObject *returned, weftpy_holds_t *holds,
                       weft_value_t *values_out, size_t *n_out)
{
    size_t n;
    const weft_param_t *results = weft_sig_results(sig, &n);
    const char *fn = weft_sig_name(sig);
    *n_out = n;
    if (!n) {
        if (returned == Py_None)
            return 0;
        weftpy_where_t where = {fn, "the result", NULL, 0};
        return weftpy_value_wrong(&where, -1, returned, PyExc_TypeError, "where %s is wanted: the function gives nothing",
                                  "None");
    }
    if (n == 1) {
        weftpy_where_t where = {fn, "the result", NULL, 0};
        return weftpy_value_get(st, &where, results[0].type, returned, holds, &values_out[0]);
    }
    bool tuple = PyTuple_Check(returned);
    Py_ssize_t have = tuple ? PyTuple_Size(returned) : PyList_Check(returned) ? PyList_Size(returned) : -1;
    if (have != (Py_ssize_t)n) {
        PyErr_Format(PyExc_TypeError, "%s: it returned %s, where a tuple of %zu is wanted", fn,
                     have < 0 ? "something else" : "a tuple of another length", n);
        return -1;
    }
    /* a copy of the list: converting an item may run code that changes it */
    PyObject *items = tuple ? Py_NewRef(returned) : PyList_AsTuple(returned);
    int result = items ? 0 : -1;
    for (size_t i = 0; i < n && !result; i++) {
        weftpy_where_t where = {fn, "result", results[i].name, (Py_ssize_t)i + 1};
        PyObject *item = PyTuple_GetItem(items, (Py_ssize_t)i);
        result = item ? weftpy_value_get(st, &where, results[i].type, item, holds, &values_out[i]) : -1;
    }
    struct weftpy_hold *h = items && !result ? weftpy_hold_new(holds, 0) : NULL;
    if (h)
        h->object = items; /* text is not copied */
    else
        Py_XDECREF(items);
    return result || !h ? -1 : 0;
}
