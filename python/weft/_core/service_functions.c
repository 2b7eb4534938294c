/* _core/service_functions.c - the functions of a Service: adding, removing, listing them, and reading signatures.
 *
 * tests/python/test_service.py holds us to it. */
#include "serve.h"

#include <stdlib.h>

#define SELF weftpy_service_t *s = (weftpy_service_t *)self

static const weftpy_sig_t sig_add = {"add", 6, 2, 2, {N_signature, N_function, N_number, N_fetch, N_peer, N_serial}};

PyObject *weftpy_service_add(FAST_ARGS)
{
    SELF;
    PyObject *arg[6];
    uint64_t number = 0;
    weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
    if (weftpy_args(s->st, &sig_add, args, n, kwnames, arg) || weftpy_u64(arg[2], "number", UINT32_MAX, &number))
        return NULL;
    const char *text = weftpy_str(arg[0], "signature");
    int flags[3] = {0};
    for (int i = 0; text && i < 3; i++)
        if (arg[3 + i] && (flags[i] = PyObject_IsTrue(arg[3 + i])) < 0)
            return NULL;
    if (!text)
        return NULL;
    if (!PyCallable_Check(arg[1])) {
        PyErr_SetString(PyExc_TypeError, "function is something that is called with a request");
        return NULL;
    }
    if (weftpy_service_check(s)) /* check last: reading the arguments can run any code */
        return NULL;
    weft_sig_t *sig;
    weft_status_t status = weft_sig_parse(text, &sig);
    if (status)
        return weftpy_raise(s->st, status);
    Py_ssize_t index = PyList_Size(s->functions);
    weftpy_function_t *f = malloc(sizeof *f);
    weft_sig_t **sigs = f ? realloc(s->sigs, ((size_t)index + 1) * sizeof *sigs) : NULL;
    if (!sigs || PyList_Append(s->functions, arg[1])) {
        weft_sig_free(sig);
        free(f);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    s->sigs = sigs;
    sigs[index] = sig;
    *f = (weftpy_function_t){s->inbox, (uint32_t)index, .fetch = flags[0], .peer = flags[1], .serial = flags[2]};
    opts.number = (uint32_t)number;
    opts.fetch = true; /* into our memory, or into memory of the function */
    opts.release = weftpy_inbox_released;
    atomic_fetch_add(&s->inbox->refs, 1);
    status = weft_service_add(s->service, text, weftpy_inbox_arrived, f, &opts);
    if (status) {
        weftpy_raise(s->st, status);
        PyList_SetItem(s->functions, index, Py_NewRef(Py_None)); /* its index stays in use */
        weftpy_inbox_released(f, NULL);                          /* we still own it */
        return NULL;
    }
    return PyLong_FromSsize_t(index);
}

PyObject *weftpy_service_remove(PyObject *self, PyObject *arg)
{
    SELF;
    const char *name = weftpy_str(arg, "name");
    weftpy_op_t *op = !name || weftpy_service_check(s) ? NULL : weftpy_op_new(s->run, &weftpy_gives_none);
    return op ? weftpy_service_posted(s, op, weft_service_remove(s->service, name, &op->op)) : NULL;
}

/* The library will not ask for it any more. */
PyObject *weftpy_service_forget(PyObject *self, PyObject *arg)
{
    SELF;
    uint64_t index = 0;
    if (!s->run)
        return weftpy_service_check(s) ? NULL : Py_NewRef(Py_None);
    Py_ssize_t size = PyList_Size(s->functions);
    if (weftpy_u64(arg, "index", (uint64_t)(size ? size - 1 : 0), &index))
        return NULL;
    if (size && PyList_SetItem(s->functions, (Py_ssize_t)index, Py_NewRef(Py_None)))
        return NULL;
    Py_RETURN_NONE;
}

PyObject *weftpy_service_functions(PyObject *self, PyObject *unused)
{
    SELF;
    if (weftpy_service_check(s))
        return NULL;
    for (size_t cap = weft_service_functions(s->service, NULL, 0) + 1;;) {
        char *text = malloc(cap);
        if (!text)
            return PyErr_NoMemory();
        size_t len = weft_service_functions(s->service, text, cap);
        PyObject *made = len < cap ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)len, "replace") : NULL;
        free(text);
        if (len < cap)
            return made;
        cap = len + 1; /* a function was added in between */
    }
}

static PyObject *params_of(const weft_param_t *list, size_t n)
{
    PyObject *made = PyList_New(0);
    for (size_t i = 0; made && i < n; i++) {
        PyObject *row = Py_BuildValue("(ssN)", list[i].name, weft_type_name(list[i].type), PyBool_FromLong(list[i].stream));
        if (!row || PyList_Append(made, row))
            Py_CLEAR(made);
        Py_XDECREF(row);
    }
    return made;
}

PyObject *weftpy_service_parse(PyObject *class, PyObject *arg)
{
    weftpy_state_t *st = weftpy_state_of((PyTypeObject *)class);
    const char *text = st ? weftpy_str(arg, "signature") : NULL;
    weft_sig_t *sig;
    size_t n_params, n_results;
    if (!text)
        return NULL;
    weft_status_t status = weft_sig_parse(text, &sig);
    if (status)
        return weftpy_raise(st, status);
    const weft_param_t *params = weft_sig_params(sig, &n_params), *results = weft_sig_results(sig, &n_results);
    PyObject *takes = params_of(params, n_params), *gives = takes ? params_of(results, n_results) : NULL, *made = NULL;
    if (gives)
        made = Py_BuildValue("(ssOO)", weft_sig_text(sig), weft_sig_name(sig), takes, gives);
    Py_XDECREF(takes);
    Py_XDECREF(gives);
    weft_sig_free(sig);
    return made;
}
