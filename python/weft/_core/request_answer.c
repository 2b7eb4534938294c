/* _core/request_answer.c - answering a Request: reply(), fail(), and the values of its streams.
 *
 * A small answer is copied by the library. A large one is sent from where it is: the operation holds the objects until it is
 * complete.
 *
 * tests/python/test_service.py and test_service_streams.py hold us to it. */
#include "serve.h"
#include "values.h"

#define SELF weftpy_request_t *r = (weftpy_request_t *)self

enum { LARGE = 32768 };

/* --- answers ------------------------------------------------------------------------------------------------------------- */

static void free_holds(PyObject *capsule)
{
    weftpy_holds_t *holds = PyCapsule_GetPointer(capsule, NULL);
    weftpy_holds_release(holds);
    PyMem_Free(holds);
}

/* Make an object that owns the holds. Steals them, also if it fails. */
static PyObject *hold(weftpy_holds_t *holds)
{
    if (!holds->first)
        return Py_NewRef(Py_None);
    weftpy_holds_t *moved = PyMem_Malloc(sizeof *moved);
    PyObject *capsule = moved ? PyCapsule_New(moved, NULL, free_holds) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(moved);
        weftpy_holds_release(holds);
        return NULL;
    }
    *moved = *holds;
    return capsule;
}

static uint64_t bytes_of(const weft_value_t *values, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t type = values[i].type;
        if (type == WEFT_T_STRING)
            sum += values[i].view.n;
        else if (type == WEFT_T_TENSOR || type == (WEFT_T_VECTOR | WEFT_T_TENSOR))
            for (uint64_t t = 0; t < values[i].tensors.n; t++) {
                uint64_t bytes = 0;
                if (!weft_tensor_bytes(&values[i].tensors.at[t], &bytes))
                    sum += bytes;
            }
        else if (type & WEFT_T_VECTOR)
            sum += values[i].view.n * weft_type_size(type & ~(uint32_t)WEFT_T_VECTOR);
    }
    return sum;
}

/* If the caller no longer waits, that is not a failure of the function. */
static PyObject *answered(weftpy_request_t *r, weft_status_t status)
{
    r->answered = !status;
    if (!status || status == WEFT_ERR_CANCELLED) {
        weftpy_request_let_go(r);
        return PyBool_FromLong(!status);
    }
    weftpy_raise(r->run->st, status);
    weftpy_request_let_go(r); /* the caller has got the error */
    return NULL;
}

PyObject *weftpy_request_reply(PyObject *self, PyObject *returned)
{
    SELF;
    weftpy_state_t *st = r->run->st;
    weft_value_t values[WEFT_SIG_PARAMS];
    weftpy_holds_t holds = {0};
    size_t count = 0, results;
    const weft_param_t *result = weft_sig_results(r->sig, &results);
    if (results && result[0].stream) { /* the results were sent as a stream */
        if (returned != Py_None)
            return weftpy_raise_text(st, WEFT_ERR_INVALID, "%s gives a stream, and returns nothing else", weft_sig_name(r->sig));
    } else if (weftpy_results_get(st, r->sig, returned, &holds, values, &count)) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (weftpy_request_check(r)) { /* check last: reading the arguments can run any code */
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (!count || bytes_of(values, count) < LARGE) {
        weft_status_t status = weft_request_reply(r->a->request, values, count);
        weftpy_holds_release(&holds);
        return answered(r, status);
    }
    weftpy_op_t *op = weftpy_op_new(r->run, &weftpy_gives_none_ever);
    if (!op) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (!(op->held = hold(&holds))) {
        Py_DECREF(op);
        return NULL;
    }
    if (weftpy_request_check(r)) {
        Py_DECREF(op);
        return NULL;
    }
    weft_status_t status = weft_request_reply_from(r->a->request, values, count, &op->op);
    if (status) {
        Py_DECREF(op);
        return answered(r, status);
    }
    r->answered = true;
    weftpy_request_let_go(r);
    PyObject *sent = weftpy_op_posted(op, WEFT_OK); /* a blocking runtime waits: the memory is free again */
    Py_XDECREF(sent);
    return sent ? Py_NewRef(Py_True) : NULL;
}

static const weftpy_sig_t sig_fail = {"fail", 4, 2, 4, {N_code, N_message, N_category, N_value}};

PyObject *weftpy_request_fail(FAST_ARGS)
{
    SELF;
    PyObject *arg[4];
    uint64_t code = 0, category = 0;
    long value = 0;
    if (weftpy_args(r->run->st, &sig_fail, args, n, kwnames, arg) ||
        weftpy_u64(arg[0], "code", WEFT_CODE_UNAUTHENTICATED, &code) || weftpy_u64(arg[2], "category", UINT32_MAX, &category) ||
        weftpy_request_check(r))
        return NULL;
    if (arg[3] && arg[3] != Py_None) {
        value = PyLong_AsLong(arg[3]);
        if (value == -1 && PyErr_Occurred())
            return NULL;
        if (value < INT32_MIN || value > INT32_MAX) {
            PyErr_Format(PyExc_OverflowError, "value is %ld, which is no i32", value);
            return NULL;
        }
    }
    PyObject *text = PyUnicode_Check(arg[1]) ? PyUnicode_AsEncodedString(arg[1], "utf-8", "replace") : NULL;
    if (!text) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "the message is no text");
        return NULL;
    }
    if (weftpy_request_check(r)) {
        Py_DECREF(text);
        return NULL;
    }
    weft_status_t status =
        weft_request_fail_with(r->a->request, (weft_code_t)code, (uint32_t)category, (int32_t)value, PyBytes_AsString(text));
    Py_DECREF(text);
    return answered(r, status);
}

/* --- streams ------------------------------------------------------------------------------------------------------------- */

/* The type of the values that the peer sends, or that we send; 0 with an exception. */
static uint32_t stream_type(weftpy_request_t *r, bool ours)
{
    size_t n;
    const weft_param_t *list = ours ? weft_sig_results(r->sig, &n) : weft_sig_params(r->sig, &n);
    if (n && list[n - 1].stream)
        return list[n - 1].type;
    weftpy_raise_text(r->run->st, WEFT_ERR_STATE, ours ? "%s has no stream to send" : "%s has no stream to receive",
                      weft_sig_text(r->sig));
    return 0;
}

static const weftpy_sig_t sig_send = {"send", 2, 1, 1, {N_value, N_timeout}};

PyObject *weftpy_request_send(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = r->run->st;
    PyObject *arg[2];
    uint64_t timeout = 0;
    weftpy_holds_t holds = {0};
    weft_value_t value;
    if (weftpy_args(st, &sig_send, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    weftpy_where_t where = {.fn = weft_sig_name(r->sig), .what = "the value"};
    uint32_t type = stream_type(r, true);
    if (!type)
        return NULL;
    if (weftpy_value_get(st, &where, type, arg[0], &holds, &value)) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    weftpy_op_t *op = weftpy_op_new(r->run, &weftpy_gives_none);
    if (!op) {
        weftpy_holds_release(&holds);
        return NULL;
    }
    if (!(op->held = hold(&holds))) {
        Py_DECREF(op);
        return NULL;
    }
    op->op.timeout_ns = timeout;
    if (weftpy_request_check(r)) { /* check last: reading the arguments can run any code */
        Py_DECREF(op);
        return NULL;
    }
    return weftpy_op_posted(op, weft_stream_send(r->a->request->stream, &value, &op->op));
}

/* Views of the value hold the capsule, so it may be freed after the runtime. */
static void free_item(PyObject *capsule)
{
    weft_item_t *item = PyCapsule_GetPointer(capsule, NULL);
    weft_item_release(item);
    PyMem_Free(item);
}

static PyObject *item_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weft_item_t *item = PyCapsule_GetPointer(made, NULL);
    if (!op->len) {
        PyErr_SetNone(run->blocking ? PyExc_StopIteration : PyExc_StopAsyncIteration);
        return NULL;
    }
    return weftpy_value_make(run->st, &item->value, made, WEFTPY_WRITABLE | (PyCapsule_GetContext(made) ? WEFTPY_LISTS : 0));
}

static const weftpy_gives_t gives_item = {.value = item_value};
static const weftpy_sig_t sig_recv = {"recv", 2, 0, 1, {N_mask, N_timeout}};

PyObject *weftpy_request_recv(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = r->run->st;
    PyObject *arg[2];
    uint64_t timeout = 0, lists = 0;
    if (weftpy_args(st, &sig_recv, args, n, kwnames, arg) || weftpy_u64(arg[0], "mask", 1, &lists) ||
        weftpy_ns(arg[1], "timeout", &timeout) || !stream_type(r, false))
        return NULL;
    weft_item_t *item = PyMem_Calloc(1, sizeof *item);
    PyObject *capsule = item ? PyCapsule_New(item, NULL, free_item) : PyErr_NoMemory();
    weftpy_op_t *op = capsule ? weftpy_op_new(r->run, &gives_item) : NULL;
    if (!op) {
        if (!capsule)
            PyMem_Free(item);
        Py_XDECREF(capsule);
        return NULL;
    }
    PyCapsule_SetContext(capsule, lists ? st : NULL);
    op->made = capsule;
    op->held = Py_NewRef(self);
    op->op.timeout_ns = timeout;
    if (weftpy_request_check(r)) {
        Py_DECREF(op);
        return NULL;
    }
    return weftpy_op_posted(op, weft_stream_recv(r->a->request->stream, item, &op->op));
}
