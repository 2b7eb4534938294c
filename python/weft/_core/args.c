/* _core/args.c - arguments sorted by name, and numbers as C has them.
 *
 * Format strings would cost three times what the fastest post does. A keyword of a call is interned by the compiler, and so are
 * our names: comparing addresses finds it, and only what was made at run time is compared letter by letter.
 *
 * Promise: whatever is passed, a TypeError, OverflowError or ValueError that names the function and the argument, and nothing was
 * started. tests/python/test_hostile.py holds us to it. */
#include "core.h"

#include <math.h>
#include <string.h>

static int find(weftpy_state_t *st, const weftpy_sig_t *sig, PyObject *name)
{
    for (int i = 0; i < sig->n; i++)
        if (st->names[sig->names[i]] == name)
            return i;
    for (int i = 0; i < sig->n; i++)
        if (PyUnicode_Check(name) && PyUnicode_Compare(st->names[sig->names[i]], name) == 0)
            return i;
    return -1;
}

int weftpy_args(weftpy_state_t *st, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                PyObject **out)
{
    if (n > sig->unnamed) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments without a name, and %zd were given", sig->fn, sig->unnamed,
                     n);
        return -1;
    }
    for (Py_ssize_t i = 0; i < sig->n; i++)
        out[i] = i < n ? args[i] : NULL;
    Py_ssize_t named = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        int at = find(st, sig, name);
        if (at < 0 || out[at]) {
            PyErr_Format(PyExc_TypeError, at < 0 ? "%s() has no argument %R" : "%s() was given %R twice", sig->fn, name);
            return -1;
        }
        out[at] = args[n + i];
    }
    for (int i = 0; i < sig->required; i++)
        if (!out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() needs %R", sig->fn, st->names[sig->names[i]]);
            return -1;
        }
    return 0;
}

const char *weftpy_str(PyObject *arg, const char *what)
{
    Py_ssize_t n = 0;
    if (!PyUnicode_Check(arg)) {
        PyErr_Format(PyExc_TypeError, "%s is a %R, and should be a str", what, (PyObject *)Py_TYPE(arg));
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(arg, &n);
    if (text && strlen(text) != (size_t)n) {
        PyErr_Format(PyExc_ValueError, "%s is %R, which has a NUL in it", what, arg);
        return NULL;
    }
    return text;
}

/* Bytes from elsewhere need not be UTF-8, or were cut in the middle of a letter. */
PyObject *weftpy_text(const char *text)
{
    return text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace") : PyUnicode_FromString("");
}

int weftpy_u64(PyObject *arg, const char *what, uint64_t most, uint64_t *out)
{
    if (!arg || arg == Py_None)
        return 0;
    PyObject *number = PyLong_CheckExact(arg) ? Py_NewRef(arg) : PyNumber_Index(arg);
    if (!number)
        return -1;
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    bool failed = value == (unsigned long long)-1 && PyErr_Occurred();
    if (failed && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (failed || value > most) {
        PyErr_Clear();
        PyObject *shown = PyObject_Repr(arg); /* it may fail: the number may be too long to print */
        if (shown)
            PyErr_Format(PyExc_OverflowError, "%s is %U, which is not between 0 and %llu", what, shown, (unsigned long long)most);
        else
            PyErr_Format(PyExc_OverflowError, "%s is not between 0 and %llu", what, (unsigned long long)most);
        Py_XDECREF(shown);
        return -1;
    }
    *out = value;
    return 0;
}

int weftpy_ns(PyObject *arg, const char *what, uint64_t *ns_out)
{
    if (!arg || arg == Py_None)
        return 0;
    double seconds = PyFloat_AsDouble(arg);
    if (seconds == -1.0 && PyErr_Occurred())
        return -1;
    if (!(seconds >= 0) || seconds > 9e9) { /* also true for NaN */
        if (isinf(seconds) && seconds > 0)
            return 0;
        PyErr_Format(PyExc_ValueError, "%s is %R, which is not a number of seconds", what, arg);
        return -1;
    }
    double ns = seconds * 1e9;
    *ns_out = ns < 1 ? 1 : (uint64_t)ns; /* 0 would mean no timeout */
    return 0;
}

int weftpy_tls(PyObject *arg, weft_tls_opts_t *out)
{
    if (!arg || arg == Py_None)
        return 0;
    weft_tls_opts_t tls = WEFT_TLS_OPTS_INIT;
    const char **to[] = {&tls.cert, &tls.key, &tls.ca};
    if (!PyTuple_Check(arg) || PyTuple_Size(arg) != 3) {
        PyErr_SetString(PyExc_TypeError, "tls is a tuple of three files, each bytes or None");
        return -1;
    }
    for (int i = 0; i < 3; i++) {
        PyObject *file = PyTuple_GetItem(arg, i);
        char *text = NULL;
        if (file != Py_None && PyBytes_AsStringAndSize(file, &text, NULL)) /* an error if there is a zero in it */
            return -1;
        *to[i] = text;
    }
    *out = tls;
    return 1;
}

PyObject *weftpy_counts(const weftpy_count_t *rows, size_t n)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < n; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(rows[i].value);
        if (!value || PyDict_SetItemString(dict, rows[i].name, value))
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

PyObject *weftpy_itself(PyObject *self, PyObject *unused)
{
    return Py_NewRef(self);
}

void weftpy_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_it(self);
    Py_DECREF(type);
}

int weftpy_args_timeout(weftpy_state_t *st, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                        uint64_t *ns_out)
{
    PyObject *arg[1];
    return weftpy_args(st, sig, args, n, kwnames, arg) || weftpy_ns(arg[0], "timeout", ns_out) ? -1 : 0;
}
