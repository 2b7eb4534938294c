/* _core/method.c - Method: one function of a server, to be called.
 *
 *     named -> known   its signature is that of the first server it meets, or was given
 *
 * In an event loop a call of one that is only named asks a server first and then calls: one Op for both, whose operation is
 * posted again when the answer has come. A blocking runtime waits for the answer, and then for the call.
 *
 * Promise: a call of a method whose signature is known costs one allocation beside its Op. tests/python/test_rpc_client.py holds
 * us to the rest. */
#include "calls.h"

#define SELF weftpy_method_t *m = (weftpy_method_t *)self

/* --- the signature ------------------------------------------------------------------------------------------------ */

/* Copy what we need from the signature, if it is known now. -1 with an exception. */
static int learn(weftpy_method_t *m)
{
    const weft_sig_t *sig = m->text ? NULL : weft_method_sig(m->method);
    size_t n, results, n_args = 0;
    if (!sig)
        return 0;
    const weft_param_t *params = weft_sig_params(sig, &n), *gives = weft_sig_results(sig, &results);
    while (n_args < n && !params[n_args].stream)
        n_args++;
    PyObject *names = PyTuple_New((Py_ssize_t)n_args), *text = names ? PyUnicode_FromString(weft_sig_text(sig)) : NULL;
    PyObject *name = text ? PyUnicode_FromString(weft_sig_name(sig)) : NULL;
    const char *fn = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    for (size_t i = 0; fn && i < n_args; i++) {
        PyObject *one = PyUnicode_InternFromString(params[i].name);
        if (!one || PyTuple_SetItem(names, (Py_ssize_t)i, one) || !(m->param_names[i] = PyUnicode_AsUTF8AndSize(one, NULL)))
            fn = NULL;
        m->types[i] = (uint8_t)params[i].type;
    }
    if (!fn || m->text) { /* no memory, or other code that ran here has already done it */
        Py_XDECREF(names);
        Py_XDECREF(text);
        Py_XDECREF(name);
        return fn ? 0 : -1;
    }
    m->n = (uint32_t)n_args;
    m->sends = n_args < n ? params[n_args].type : 0;
    m->gives = results && gives[0].stream ? gives[0].type : 0;
    m->oneway = weft_sig_oneway(sig);
    m->idempotent = weft_sig_idempotent(sig);
    m->views = results == 1 && !m->gives && (gives[0].type & WEFT_T_VECTOR || gives[0].type == WEFT_T_TENSOR) &&
               gives[0].type != (WEFT_T_VECTOR | WEFT_T_TENSOR);
    PyObject *old = m->name;
    m->name = name;
    m->fn = fn;
    m->names = names;
    m->text = text;
    Py_DECREF(old);
    return 0;
}

PyObject *weftpy_method_new(weftpy_link_t *link, PyObject *text)
{
    weftpy_state_t *st = link->st;
    weft_method_t *method;
    const char *chars = weftpy_str(text, "the signature");
    if (!chars || weftpy_link_check(link))
        return NULL;
    weft_status_t status = weft_client_method(link->client, chars, &method);
    if (status)
        return weftpy_raise(st, status);
    weftpy_method_t *m = (weftpy_method_t *)PyType_GenericAlloc(st->method, 0);
    if (!m)
        return NULL;
    m->st = st;
    m->link = (weftpy_link_t *)Py_NewRef((PyObject *)link);
    m->method = method;
    m->name = Py_NewRef(text);
    m->fn = chars;
    if (learn(m))
        Py_CLEAR(m);
    return (PyObject *)m;
}

static void dealloc(PyObject *self)
{
    SELF;
    Py_CLEAR(m->names);
    Py_CLEAR(m->text);
    Py_CLEAR(m->name);
    Py_CLEAR(m->link);
    weftpy_free(self);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static weft_status_t go(weftpy_method_t *m, weftpy_call_t *c, weft_op_t *op)
{
    return weft_call_with(m->method, c->values, m->n, c->with_opts ? &c->opts : NULL, &c->reply, op);
}

/* Steals c. */
static PyObject *post(weftpy_method_t *m, weftpy_call_t *c)
{
    weftpy_runtime_t *run = m->link->run;
    weftpy_op_t *op = weftpy_loop_before_post(run) || weftpy_link_check(m->link) ? NULL : weftpy_op_new(run, &weftpy_gives_call);
    if (!op) {
        Py_DECREF(c);
        return NULL;
    }
    op->made = (PyObject *)c;
    op->op.timeout_ns = c->timeout_ns;
    return weftpy_op_posted(op, go(m, c, &op->op));
}

static void told(weft_op_t *wop, void *user)
{
    weftpy_op_told((weftpy_op_t *)user);
}

/* End the call with the current exception. */
static void ends(weftpy_op_t *op, weftpy_call_t *c)
{
    PyObject *type, *trace;
    PyErr_Fetch(&type, &c->error, &trace);
    PyErr_NormalizeException(&type, &c->error, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    op->op.status = WEFT_ERR_INVALID;
    weftpy_op_told(op);
}

/* A server has sent the signature of the function: now make the call. In progress, with the GIL. */
static void checked(weft_op_t *wop, void *user)
{
    weftpy_op_t *op = user;
    weftpy_call_t *c = (weftpy_call_t *)op->made;
    weftpy_method_t *m = c->method;
    if (wop->status || op->cancelled) {
        if (!wop->status)
            wop->status = WEFT_ERR_CANCELLED;
        weftpy_op_told(op);
        return;
    }
    weft_reply_release(&c->reply);
    weftpy_call_t *own = NULL; /* for a stream: `c` opens it, `own` is the call itself */
    if (learn(m) || ((m->sends || m->gives) && !(own = weftpy_call_new(m))) || weftpy_call_args(own ? own : c, c->args, c->kw) ||
        weftpy_link_check(m->link)) {
        Py_XDECREF((PyObject *)own);
        ends(op, c);
        return;
    }
    if (c->timeout_ns) { /* the deadline covers the question and the call */
        uint64_t spent = weftpy_clock() - c->began;
        c->timeout_ns = c->timeout_ns > spent ? c->timeout_ns - spent : 1;
    }
    if (own) {
        own->timeout_ns = c->timeout_ns;
        c->value = weftpy_stream_open(m, own);
        if (c->value)
            weftpy_op_told(op);
        else
            ends(op, c);
        return;
    }
    wop->fn = told;
    wop->timeout_ns = c->timeout_ns;
    weft_status_t status = go(m, c, wop);
    if (status) {
        weftpy_raise(m->st, status);
        ends(op, c);
    }
}

/* Ask for the signature first. Steals c. */
static PyObject *post_named(weftpy_method_t *m, weftpy_call_t *c, PyObject *args, PyObject *kw)
{
    weftpy_runtime_t *run = m->link->run;
    weftpy_op_t *op = NULL;
    c->args = Py_NewRef(args);
    c->kw = Py_XNewRef(kw);
    if (weftpy_call_timeout(c, kw) || weftpy_loop_before_post(run) || weftpy_link_check(m->link) ||
        !(op = weftpy_op_new(run, &weftpy_gives_call))) {
        Py_DECREF(c);
        return NULL;
    }
    op->made = (PyObject *)c;
    op->op.timeout_ns = c->timeout_ns;
    op->op.fn = checked;
    c->began = weftpy_clock();
    return weftpy_op_posted(op, weft_method_check(m->method, &c->reply, &op->op));
}

/* Ask for the signature, and wait. */
static int ask(weftpy_method_t *m, PyObject *kw)
{
    weftpy_call_t *c = weftpy_call_new(m);
    weftpy_op_t *op = NULL;
    if (c && !weftpy_call_timeout(c, kw) && !weftpy_link_check(m->link))
        op = weftpy_op_new(m->link->run, &weftpy_gives_call);
    if (!op) {
        Py_XDECREF((PyObject *)c);
        return -1;
    }
    op->made = (PyObject *)c;
    op->op.timeout_ns = c->timeout_ns;
    PyObject *none = weftpy_op_posted(op, weft_method_check(m->method, &c->reply, &op->op));
    Py_XDECREF(none);
    return !none || weftpy_link_check(m->link) || learn(m) ? -1 : 0;
}

/* Is the signature known? 1, 0, or -1 with an exception. In a blocking runtime, ask for it and wait. */
static int known(weftpy_method_t *m, PyObject *kw)
{
    if (__builtin_expect(m->text != NULL, 1))
        return 1;
    if (weftpy_link_check(m->link) || learn(m))
        return -1;
    if (!m->text && m->link->run->blocking && ask(m, kw))
        return -1;
    return m->text != NULL;
}

static PyObject *call(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    int is = known(m, kw);
    weftpy_call_t *c = is < 0 ? NULL : weftpy_call_new(m);
    if (!c)
        return NULL;
    if (!is)
        return post_named(m, c, args, kw);
    if (weftpy_call_args(c, args, kw)) {
        Py_DECREF(c);
        return NULL;
    }
    return m->sends || m->gives ? weftpy_stream_open(m, c) : post(m, c);
}

static PyObject *not_known(weftpy_method_t *m)
{
    return weftpy_raise_text(
        m->st, WEFT_ERR_STATE,
        "the signature of %s is not known yet: await the client, or its check(), first, or give the signature to "
        "client.method()",
        m->fn);
}

/* stream(*args): call a function with streams, and return the Stream. */
static PyObject *stream(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    int is = known(m, kw);
    if (is <= 0)
        return is < 0 ? NULL : not_known(m);
    if (!m->sends && !m->gives)
        return weftpy_raise_text(m->st, WEFT_ERR_STATE, "%U has no stream: call it", m->text);
    return call(self, args, kw);
}

/* send(*args): a oneway function, without waiting for anything. */
static PyObject *send(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    int is = known(m, kw);
    if (is <= 0)
        return is < 0 ? NULL : not_known(m);
    if (!m->oneway)
        return weftpy_raise_text(m->st, WEFT_ERR_STATE, "%U is not marked oneway: call it, and forget what the call gives",
                                 m->text);
    weftpy_call_t *c = weftpy_call_new(m);
    if (!c || weftpy_call_args(c, args, kw) || weftpy_loop_before_post(m->link->run) || weftpy_link_check(m->link)) {
        Py_XDECREF((PyObject *)c);
        return NULL;
    }
    weft_status_t status = weft_call_with(m->method, c->values, m->n, NULL, NULL, NULL);
    if (status == WEFT_ERR_AGAIN) { /* it has to wait: post it as an operation that nobody waits for */
        PyObject *op = post(m, c);
        Py_XDECREF(op);
        return op ? Py_NewRef(Py_None) : NULL;
    }
    Py_DECREF(c);
    return status ? weftpy_raise(m->st, status) : Py_NewRef(Py_None);
}

static PyObject *many(FAST_ARGS)
{
    SELF;
    int is = known(m, NULL);
    if (is <= 0)
        return is < 0 ? NULL : not_known(m);
    if (m->sends || m->gives || m->oneway)
        return weftpy_raise_text(m->st, WEFT_ERR_STATE, "%U has %s: many() is for functions that are called and answer", m->text,
                                 m->oneway ? "no answer" : "a stream");
    return weftpy_call_many(m, args, n, kwnames);
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

static PyObject *check_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_method_t *m = ((weftpy_call_t *)made)->method;
    if (weftpy_link_check(m->link) || learn(m))
        return NULL;
    return Py_NewRef(m->text ? m->text : Py_None);
}

static void check_failed(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_gives_call.failed(run, op, made);
}

static const weftpy_gives_t gives_check = {.value = check_value, .failed = check_failed};
static const weftpy_sig_t sig_check = {"check", 1, 0, 0, {N_timeout}};

static PyObject *check(FAST_ARGS)
{
    SELF;
    PyObject *arg[1];
    weftpy_runtime_t *run = m->link->run;
    weftpy_call_t *c = weftpy_args(m->st, &sig_check, args, n, kwnames, arg) ? NULL : weftpy_call_new(m);
    weftpy_op_t *op = NULL;
    if (!c)
        return NULL;
    if (weftpy_ns(arg[0], "timeout", &c->timeout_ns) || weftpy_loop_before_post(run) || weftpy_link_check(m->link) ||
        !(op = weftpy_op_new(run, &gives_check))) {
        Py_DECREF(c);
        return NULL;
    }
    op->made = (PyObject *)c;
    op->op.timeout_ns = c->timeout_ns;
    return weftpy_op_posted(op, weft_method_check(m->method, &c->reply, &op->op));
}

PyObject *weftpy_functions(weftpy_link_t *link, PyObject *service)
{
    if (weftpy_link_check(link))
        return NULL;
    PyObject *text = PyUnicode_FromString(WEFT_RPC_FUNCTIONS), *method = text ? weftpy_method_new(link, text) : NULL;
    PyObject *op = method ? PyObject_CallFunctionObjArgs(method, service, NULL) : NULL;
    Py_XDECREF(text);
    Py_XDECREF(method);
    return op;
}

static PyObject *get_signature(PyObject *self, void *unused)
{
    SELF;
    if (!m->text && m->link->client && m->link->run->rt && learn(m))
        return NULL;
    return Py_NewRef(m->text ? m->text : Py_None);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    return PyUnicode_FromFormat("<weft.Method %U of %U>", m->text ? m->text : m->name, m->link->uri);
}

static PyMethodDef methods[] = {
    {"many", FAST(many),
     DOC("many($self, calls, *, timeout=None, return_exceptions=False)",
         "Calls in one go, each a tuple of its arguments (or a dict, or the only argument); a list of their results. The first "
         "failure is raised, or with return_exceptions failures are among the results.")},
    {"send", (PyCFunction)(void (*)(void))send, METH_VARARGS | METH_KEYWORDS,
     DOC("send($self, *args, **options)", "A function that is marked oneway, without waiting for anything.")},
    {"stream", (PyCFunction)(void (*)(void))stream, METH_VARARGS | METH_KEYWORDS,
     DOC("stream($self, *args, **options)", "Begin a call of a function with streams: a Stream.")},
    {"check", FAST(check),
     DOC("check($self, *, timeout=None)", "Ask a server whether it has the function and the signatures agree; its signature.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"signature", get_signature, NULL, "Its signature as text; None as long as only its name is known.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"name", T_OBJECT, offsetof(weftpy_method_t, name), READONLY, "Its name."},
    {"idempotent", T_BOOL, offsetof(weftpy_method_t, idempotent), READONLY, "True if it may be run again after a failure."},
    {"oneway", T_BOOL, offsetof(weftpy_method_t, oneway), READONLY, "True if nobody waits for it."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A function of a server: call it with its arguments, by place or by name.\n\n"
                "timeout= is the deadline, which the server hears of; once=True has a lost reply asked for again, without "
                "running the function twice; "
                "fresh=True is never a second try; into= is memory for its result."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_call, call},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec weftpy_method_spec = WEFTPY_SPEC("Method", weftpy_method_t, WEFTPY_NOT_CALLED, slots);
