/* _core/call.c - what a call borrows until it is complete, and what it came to.
 *
 * Arguments are sorted by place and by name, and become values (values.c); the call holds what they view, and its reply. Its Op
 * has it as `made`: whoever asks for the value gets the results, and views of them keep the call, and so the reply, alive.
 *
 * Words that are options and no parameters: timeout, once, fresh, into. A parameter of such a name is given by its place.
 *
 * Promise: what was passed is held until the library has let go of it, and no longer than until the value was asked for or the Op
 * is gone. tests/python/test_rpc_client.py holds us to it. */
#include "calls.h"

#include <string.h>

/* --- life --------------------------------------------------------------------------------------------------------- */

weftpy_call_t *weftpy_call_new(weftpy_method_t *m)
{
    weftpy_state_t *st = m->st;
    weftpy_call_t *c = st->call ? PyObject_New(weftpy_call_t, st->call) : NULL;
    if (!c)
        return (weftpy_call_t *)(st->call ? NULL : weftpy_raise_text(st, WEFT_ERR_CLOSED, "the interpreter is ending"));
    memset((char *)c + offsetof(weftpy_call_t, holds), 0, offsetof(weftpy_call_t, opts) - offsetof(weftpy_call_t, holds));
    c->method = (weftpy_method_t *)Py_NewRef((PyObject *)m);
    c->values = c->room;
    c->into.view.obj = NULL;
    c->timeout_ns = m->link->timeout_ns;
    c->reply.more = NULL; /* the library sets the rest */
    c->reply.message = NULL;
    c->reply.code = WEFT_CODE_OK;
    return c;
}

static void let_go(weftpy_call_t *c)
{
    weftpy_holds_release(&c->holds);
    if (c->values != c->room) {
        PyMem_Free(c->values);
        c->values = c->room;
    }
}

static void dealloc(PyObject *self)
{
    weftpy_call_t *c = (weftpy_call_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    weft_reply_release(&c->reply);
    let_go(c);
    weftpy_buf_release(&c->into);
    Py_XDECREF(c->value);
    Py_XDECREF(c->error);
    Py_XDECREF(c->args);
    Py_XDECREF(c->kw);
    Py_DECREF(c->method);
    PyObject_Free(c);
    Py_DECREF(type);
}

/* --- arguments ---------------------------------------------------------------------------------------------------- */

static int is(PyObject *key, PyObject *name)
{
    return key == name || PyUnicode_Compare(key, name) == 0;
}

/* 1: the keyword is an option, and was used. */
static int option(weftpy_call_t *c, PyObject *key, PyObject *value)
{
    PyObject *const *names = c->method->st->names;
    if (is(key, names[N_timeout])) {
        if (value == Py_None)
            c->timeout_ns = 0;
        return weftpy_ns(value, "timeout", &c->timeout_ns) ? -1 : 1;
    }
    bool once = is(key, names[N_once]);
    if (once || is(key, names[N_fresh])) {
        int truth = PyObject_IsTrue(value);
        if (truth < 0)
            return -1;
        if (!c->with_opts)
            c->opts = (weft_call_opts_t)WEFT_CALL_OPTS_INIT;
        c->with_opts = true;
        *(once ? &c->opts.once : &c->opts.fresh) = truth;
        return 1;
    }
    if (!is(key, names[N_into]))
        return 0;
    if (value == Py_None)
        return 1;
    weftpy_buf_release(&c->into);
    if (weftpy_buf_get(c->method->st, value, true, &c->into))
        return -1;
    if (!c->with_opts)
        c->opts = (weft_call_opts_t)WEFT_CALL_OPTS_INIT;
    c->with_opts = true;
    c->opts.into = c->into.view.buf;
    c->opts.into_cap = (size_t)c->into.view.len;
    c->opts.into_kind = c->into.kind;
    return 1;
}

int weftpy_call_timeout(weftpy_call_t *c, PyObject *kw)
{
    PyObject *value = kw ? PyDict_GetItemWithError(kw, c->method->st->names[N_timeout]) : NULL;
    if (value == Py_None)
        c->timeout_ns = 0;
    return value ? weftpy_ns(value, "timeout", &c->timeout_ns) : PyErr_Occurred() ? -1 : 0;
}

static int find(weftpy_method_t *m, PyObject *key)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (PyTuple_GetItem(m->names, (Py_ssize_t)i) == key)
            return (int)i;
    for (uint32_t i = 0; i < m->n; i++)
        if (PyUnicode_Compare(PyTuple_GetItem(m->names, (Py_ssize_t)i), key) == 0)
            return (int)i;
    return -1;
}

int weftpy_call_args(weftpy_call_t *c, PyObject *args, PyObject *kw)
{
    weftpy_method_t *m = c->method;
    PyObject *given[WEFT_SIG_PARAMS], *key, *value;
    Py_ssize_t n = PyTuple_Size(args), at = 0;
    if (n > (Py_ssize_t)m->n) {
        PyErr_Format(PyExc_TypeError, "%s: %zd arguments were given, and it takes %u: %U", m->fn, n, m->n, m->text);
        return -1;
    }
    for (Py_ssize_t i = 0; i < (Py_ssize_t)m->n; i++)
        given[i] = i < n ? PyTuple_GetItem(args, i) : NULL;
    while (kw && PyDict_Next(kw, &at, &key, &value)) {
        if (!PyUnicode_Check(key)) {
            PyErr_Format(PyExc_TypeError, "%s: names of arguments are text", m->fn);
            return -1;
        }
        int taken = option(c, key, value);
        if (taken < 0)
            return -1;
        if (taken)
            continue;
        int i = find(m, key);
        if (i < 0 || given[i]) {
            PyErr_Format(PyExc_TypeError, i < 0 ? "%s: there is no argument %R: %U" : "%s: %R was given twice: %U", m->fn, key,
                         m->text);
            return -1;
        }
        given[i] = value;
    }
    if (m->n > WEFTPY_CALL_ROOM && !(c->values = PyMem_Malloc(m->n * sizeof *c->values))) {
        c->values = c->room;
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < m->n; i++) {
        if (!given[i]) {
            PyErr_Format(PyExc_TypeError, "%s: argument %U is missing: %U", m->fn, PyTuple_GetItem(m->names, (Py_ssize_t)i),
                         m->text);
            return -1;
        }
        weftpy_where_t where = {m->fn, "argument", m->param_names[i], (Py_ssize_t)i + 1};
        Py_INCREF(given[i]); /* code that runs in the conversion may change the dictionary */
        int failed = weftpy_value_get(m->st, &where, m->types[i], given[i], &c->holds, &c->values[i]);
        Py_DECREF(given[i]);
        if (failed)
            return -1;
    }
    return 0;
}

/* --- what it came to ---------------------------------------------------------------------------------------------- */

static bool inside(const weftpy_buf_t *into, const void *at)
{
    const char *from = into->view.buf;
    return (const char *)at >= from && (const char *)at < from + into->view.len;
}

/* Small results come with the reply. If the caller gave memory for them, copy them there. */
static PyObject *result_into(weftpy_call_t *c, PyObject *self)
{
    weftpy_state_t *st = c->method->st;
    weft_value_t v = c->reply.values[0];
    int64_t n = 0;
    weft_tensor_t t;
    if (v.type == WEFT_T_TENSOR) {
        t = *v.tensors.at;
    } else {
        n = (int64_t)v.view.n;
        t = weftpy_vector_tensor(&v, &n);
    }
    const weft_mem_kind_t *kind = c->into.kind;
    bool device = kind && !(kind->flags & WEFT_MEM_CPU);
    if (!t.data || inside(&c->into, t.data)) {
        t.device_type = device && t.data ? 2 : t.device_type; /* a vector has no device type */
        return weftpy_tensor_make(st, &t, self, WEFTPY_WRITABLE);
    }
    uint64_t own = 0;
    int64_t bytes = -1;
    if (!device) {
        bytes = weftpy_tensor_copy(&t, c->into.view.buf, (size_t)c->into.view.len);
    } else if (!weft_tensor_compact(&t)) {
        return weftpy_value_make(st, &v, self,
                                 WEFTPY_WRITABLE | WEFTPY_VIEWS); /* return it as it is: nothing here can make it compact */
    } else if (!weft_tensor_bytes(&t, &own) && own <= (uint64_t)c->into.view.len) {
        weft_status_t status =
            weft_mem_copy(c->into.view.buf, kind, (const char *)t.data + t.byte_offset, weft_mem_host(), (size_t)own);
        if (status)
            return weftpy_raise(st, status);
        bytes = (int64_t)own;
    }
    if (bytes < 0)
        return weftpy_raise_text(st, WEFT_ERR_TRUNCATED, "%s: the buffer has %zd bytes, and its result is longer", c->method->fn,
                                 c->into.view.len);
    t.device_type = device ? 2 : 1;
    t.data = c->into.view.buf;
    t.byte_offset = 0;
    t.strides = NULL;
    return weftpy_tensor_make(st, &t, self, WEFTPY_WRITABLE);
}

static PyObject *value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_call_t *c = (weftpy_call_t *)made;
    let_go(c);
    if (c->value)
        return Py_NewRef(c->value);
    if (__builtin_expect(c->into.view.obj != NULL, 0) && c->method->views && c->reply.n == 1)
        return result_into(c, made);
    return weftpy_values_make(c->method->st, c->reply.values, c->reply.n, made, WEFTPY_WRITABLE);
}

static void failed(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_call_t *c = (weftpy_call_t *)made;
    let_go(c);
    if (c->error)
        PyErr_SetObject((PyObject *)Py_TYPE(c->error), c->error);
    else
        weftpy_raise_reply(c->method->st, op->status, &c->reply);
}

const weftpy_gives_t weftpy_gives_call = {.value = value, .failed = failed};

/* --- many in one go ----------------------------------------------------------------------------------------------- */

/* The values of all calls. The first failure is raised; with return_exceptions, exceptions are values. */
static PyObject *values(weftpy_many_t *many, PyObject *calls, bool exceptions)
{
    PyObject *list = PyList_New((Py_ssize_t)many->n);
    for (size_t i = 0; list && i < many->n; i++) {
        weft_op_t *op = &many->of[i].op;
        PyObject *call = PyTuple_GetItem(calls, (Py_ssize_t)i), *one = NULL;
        if (!op->status)
            one = value(NULL, op, call);
        else
            failed(NULL, op, call);
        if (!one && exceptions && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyObject *type, *trace;
            PyErr_Fetch(&type, &one, &trace);
            PyErr_NormalizeException(&type, &one, &trace);
            Py_XDECREF(type);
            Py_XDECREF(trace);
        }
        if (!one || PyList_SetItem(list, (Py_ssize_t)i, one))
            Py_CLEAR(list);
    }
    return list;
}

static weftpy_many_t *many_of(weft_op_t *op)
{
    return ((weftpy_op_t *)(void *)((char *)op - offsetof(weftpy_op_t, op)))->many;
}

static PyObject *many_values(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return values(many_of(op), made, false);
}

static PyObject *many_outcomes(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return values(many_of(op), made, true);
}

static const weftpy_gives_t gives_values = {.value = many_values, .failed = weftpy_many_failed};
static const weftpy_gives_t gives_outcomes = {.value = many_outcomes, .failed = weftpy_many_failed};

/* The values in a blocking runtime: waits for one call after the other. A signal ends them all. Steals op. */
static PyObject *wait_all(weftpy_op_t *op, size_t posted, weft_status_t status)
{
    weftpy_many_t *many = op->many;
    bool interrupted = false;
    if (status)
        weftpy_raise(op->run->st, status);
    PyObject *type, *error, *trace;
    for (size_t i = 0; i < posted; i++) {
        if (status || interrupted)
            weft_op_cancel(&many->of[i].op);
        PyErr_Fetch(&type, &error, &trace);
        interrupted = weftpy_wait(op->run, &many->of[i].op) || interrupted;
        if (type) {
            PyErr_Clear();
            PyErr_Restore(type, error, trace);
        }
    }
    op->state = OP_DONE;
    op->op.status = WEFT_OK;
    PyObject *list = status || interrupted ? NULL : op->gives->value(op->run, &op->op, op->made);
    Py_DECREF(op);
    return list;
}

/* A tuple has the arguments by position, a dict by name. Anything else is the only argument. */
static int call_item(weftpy_call_t *c, PyObject *item)
{
    PyObject *args = PyTuple_Check(item) ? Py_NewRef(item) : PyDict_Check(item) ? PyTuple_New(0) : PyTuple_Pack(1, item);
    PyObject *kw = PyDict_Check(item) ? PyDict_Copy(item) : NULL;
    int failed_it = !args || (PyDict_Check(item) && !kw) || weftpy_call_args(c, args, kw) ? -1 : 0;
    if (!failed_it && c->with_opts) {
        PyErr_Format(PyExc_TypeError, "%s: calls made in one go have no options of their own", c->method->fn);
        failed_it = -1;
    }
    Py_XDECREF(args);
    Py_XDECREF(kw);
    return failed_it;
}

static const weftpy_sig_t sig_many = {"many", 3, 1, 1, {N_calls, N_timeout, N_return_exceptions}};

PyObject *weftpy_call_many(weftpy_method_t *m, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    PyObject *arg[3], *list = NULL, *calls = NULL;
    weftpy_runtime_t *run = m->link->run;
    uint64_t timeout = m->link->timeout_ns;
    weft_call_item_t *items = NULL;
    weftpy_op_t *op = NULL;
    if (weftpy_args(m->st, &sig_many, args, n_args, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    int exceptions = arg[2] ? PyObject_IsTrue(arg[2]) : 0;
    if (exceptions < 0 || !(list = PySequence_List(arg[0])))
        return NULL;
    size_t n = (size_t)PyList_Size(list);
    calls = PyTuple_New((Py_ssize_t)n);
    items = PyMem_Calloc(n ? n : 1, sizeof *items);
    op = calls && items ? weftpy_op_new(run, exceptions ? &gives_outcomes : &gives_values) : NULL;
    if (!op || !weftpy_many_new(op, n))
        goto err;
    op->many->each = true;
    for (size_t i = 0; i < n; i++) {
        weftpy_call_t *c = weftpy_call_new(m);
        if (!c || PyTuple_SetItem(calls, (Py_ssize_t)i, (PyObject *)c) || call_item(c, PyList_GetItem(list, (Py_ssize_t)i)))
            goto err;
        op->many->of[i].op.timeout_ns = timeout;
        items[i] = (weft_call_item_t){c->values, m->n, &c->reply, &op->many->of[i].op};
    }
    if (weftpy_loop_before_post(run) || weftpy_link_check(m->link))
        goto err;
    weft_status_t status;
    size_t posted = weft_call_many(m->method, items, n, &status);
    Py_DECREF(list);
    PyMem_Free(items);
    op->made = calls;
    return run->blocking ? wait_all(op, posted, status) : weftpy_many_posted(op, posted, status);
err:
    if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF((PyObject *)op);
    Py_XDECREF(list);
    Py_XDECREF(calls);
    PyMem_Free(items);
    return NULL;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "A call under way, or what its results are views of."},
    {Py_tp_dealloc, dealloc},
    {0, NULL},
};

PyType_Spec weftpy_call_spec = WEFTPY_SPEC("_Call", weftpy_call_t, WEFTPY_NOT_CALLED, slots);
