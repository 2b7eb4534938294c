/* _core/values_make.c - values of the library as objects of Python; values.c is the other direction.
 *
 * tests/python/test_rpc_values.py holds us to it. */
#include "values.h"

#include <string.h>

weft_tensor_t weftpy_vector_tensor(const weft_value_t *v, int64_t *n)
{
    uint32_t of = v->type & ~(uint32_t)WEFT_T_VECTOR;
    weft_tensor_t t = {.data = (void *)(uintptr_t)v->view.data, .device_type = 1, .ndim = 1, .lanes = 1, .shape = n};
    t.bits = (uint8_t)(weft_type_size(of) * 8);
    t.code = of == WEFT_T_BOOL ? 6 : of >= WEFT_T_F32 ? 2 : of >= WEFT_T_U8 ? 1 : 0;
    return t;
}

static PyObject *make_vector(weftpy_state_t *st, const weft_value_t *v, PyObject *owner, unsigned flags)
{
    uint32_t of = v->type & ~(uint32_t)WEFT_T_VECTOR;
    if (of == WEFT_T_TENSOR) {
        PyObject *list = PyList_New((Py_ssize_t)v->tensors.n);
        for (uint64_t i = 0; list && i < v->tensors.n; i++) {
            PyObject *one = weftpy_tensor_make(st, &v->tensors.at[i], owner, flags);
            if (!one || PyList_SetItem(list, (Py_ssize_t)i, one)) {
                Py_CLEAR(list);
            }
        }
        return list;
    }
    if (of == WEFT_T_U8 && !(flags & (WEFTPY_LISTS | WEFTPY_VIEWS)))
        return PyBytes_FromStringAndSize(v->view.data, (Py_ssize_t)v->view.n);
    size_t size = weft_type_size(of);
    if (flags & WEFTPY_LISTS) {
        PyObject *list = PyList_New((Py_ssize_t)v->view.n);
        for (uint64_t i = 0; list && i < v->view.n; i++) {
            weft_value_t one = {of, 0, {0}};
            memcpy(&one.u64, (const char *)v->view.data + i * size, size);
            PyObject *item = weftpy_value_make(st, &one, NULL, 0);
            if (!item || PyList_SetItem(list, (Py_ssize_t)i, item))
                Py_CLEAR(list);
        }
        return list;
    }
    int64_t n = (int64_t)v->view.n;
    weft_tensor_t t = weftpy_vector_tensor(v, &n);
    return weftpy_tensor_make(st, &t, owner, flags);
}

PyObject *weftpy_value_make(weftpy_state_t *st, const weft_value_t *v, PyObject *owner, unsigned flags)
{
    switch (v->type) {
    case WEFT_T_VOID:
        return Py_NewRef(Py_None);
    case WEFT_T_BOOL:
        return PyBool_FromLong(v->b);
    case WEFT_T_I8:
        return PyLong_FromLong(v->i8);
    case WEFT_T_I16:
        return PyLong_FromLong(v->i16);
    case WEFT_T_I32:
        return PyLong_FromLong(v->i32);
    case WEFT_T_I64:
        return PyLong_FromLongLong(v->i64);
    case WEFT_T_U8:
        return PyLong_FromLong(v->u8);
    case WEFT_T_U16:
        return PyLong_FromLong(v->u16);
    case WEFT_T_U32:
        return PyLong_FromUnsignedLong(v->u32);
    case WEFT_T_U64:
        return PyLong_FromUnsignedLongLong(v->u64);
    case WEFT_T_F32:
        return PyFloat_FromDouble((double)v->f32);
    case WEFT_T_F64:
        return PyFloat_FromDouble(v->f64);
    case WEFT_T_STRING: /* the library has checked that it is UTF-8 */
        return PyUnicode_DecodeUTF8(v->view.data ? v->view.data : "", (Py_ssize_t)v->view.n, "replace");
    case WEFT_T_TENSOR:
        return weftpy_tensor_make(st, v->tensors.at, owner, flags);
    default:
        return make_vector(st, v, owner, flags);
    }
}

PyObject *weftpy_values_make(weftpy_state_t *st, const weft_value_t *values, size_t n, PyObject *owner, unsigned flags)
{
    if (n == 1)
        return weftpy_value_make(st, values, owner, flags);
    if (!n)
        return Py_NewRef(Py_None);
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (size_t i = 0; tuple && i < n; i++) {
        PyObject *one = weftpy_value_make(st, &values[i], owner, flags);
        if (!one || PyTuple_SetItem(tuple, (Py_ssize_t)i, one))
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *weftpy_as_value(PyObject *module, PyObject *args)
{
    weftpy_state_t *st = PyModule_GetState(module);
    const char *type;
    PyObject *object, *made = NULL;
    weft_sig_t *sig;
    weftpy_holds_t holds = {NULL};
    weft_value_t value;
    char text[80];
    size_t n;
    if (!PyArg_ParseTuple(args, "sO:_as_value", &type, &object))
        return NULL;
    PyOS_snprintf(text, sizeof text, "f(x: %.40s) -> void", type);
    weft_status_t status = weft_sig_parse(text, &sig);
    if (status)
        return weftpy_raise(st, status);
    weftpy_where_t where = {"f", "argument", "x", 1};
    if (weftpy_value_get(st, &where, weft_sig_params(sig, &n)->type, object, &holds, &value) == 0)
        made = weftpy_value_make(st, &value, NULL, 0);
    weftpy_holds_release(&holds);
    weft_sig_free(sig);
    return made;
}
