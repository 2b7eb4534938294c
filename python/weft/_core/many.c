/* _core/many.c - many messages as one operation: posted in one call, complete when the last of them is.
 *
 * Each has an operation of the library's in one block that belongs to the Op, which completes by hand when none is left. The
 * first failure in their order is the status of all, and its sentence is what is raised: the Op's own operation is never posted,
 * so the library knows no sentence for it. A failure to post one ends the posting: those before it are cancelled, and what is
 * raised is that failure, once they have let go of their buffers.
 *
 * All of them come behind the streams of all buffers, and a stream of `stream=` waits for each. So there are at most MOST_HELD
 * then: a stream that is given more than it can hold makes the caller wait, who may have to drive them.
 *
 * tests/python/test_messages.py holds us to it. */
#include "core.h"

#include <string.h>

enum { MOST_HELD = 512 };

static void finish(weftpy_many_t *many)
{
    weftpy_op_t *op = many->owner;
    weft_status_t status = many->status;
    for (size_t i = 0; i < many->n && !status && !many->each; i++)
        status = many->of[i].op.status;
    op->op.status = status;
    op->op.len = many->n;
    weftpy_op_told(op);
}

static void told(weft_op_t *op, void *user)
{
    weftpy_many_t *many = user;
    struct weftpy_one *one = (struct weftpy_one *)((char *)op - offsetof(struct weftpy_one, op));
    weftpy_buf_release(&one->buf);
    if (!--many->left)
        finish(many);
}

void weftpy_many_cancel(weftpy_many_t *many)
{
    for (size_t i = 0; i < many->n; i++)
        weft_op_cancel(&many->of[i].op);
}

void weftpy_many_free(weftpy_many_t *many)
{
    for (size_t i = 0; i < many->n; i++)
        weftpy_buf_release(&many->of[i].buf);
    weftpy_order_release(&many->order);
    Py_CLEAR(many->why);
    PyMem_Free(many);
}

static weftpy_many_t *many_of(weft_op_t *op)
{
    return ((weftpy_op_t *)(void *)((char *)op - offsetof(weftpy_op_t, op)))->many;
}

void weftpy_many_failed(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_many_t *many = many_of(op);
    for (size_t i = 0; i < many->n && !many->status; i++)
        if (many->of[i].op.status) {
            weftpy_raise_op(run->st, &many->of[i].op);
            return;
        }
    if (many->why)
        weftpy_raise_text(run->st, op->status, "%U", many->why);
    else
        weftpy_raise_text(run->st, op->status, "%s", weft_status_text(op->status));
}

static PyObject *lens(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_many_t *many = many_of(op);
    PyObject *list = PyList_New((Py_ssize_t)many->n);
    for (size_t i = 0; list && i < many->n; i++) {
        PyObject *len = PyLong_FromUnsignedLongLong(many->of[i].op.len);
        if (!len)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, len);
    }
    return list;
}

static const weftpy_gives_t gives_sent = {.failed = weftpy_many_failed};
static const weftpy_gives_t gives_lens = {.value = lens, .failed = weftpy_many_failed};

weftpy_many_t *weftpy_many_new(weftpy_op_t *op, size_t n)
{
    weftpy_many_t *many = PyMem_Calloc(1, sizeof *many + n * sizeof many->of[0]);
    if (!many)
        return (weftpy_many_t *)PyErr_NoMemory();
    many->owner = op;
    many->n = n;
    op->many = many;
    for (size_t i = 0; i < n && !op->run->blocking; i++) {
        many->of[i].op.fn = told;
        many->of[i].op.user = many;
    }
    return many;
}

/* An Op with the memory of all buffers, or NULL with the exception. */
static weftpy_op_t *gather(weftpy_endpoint_t *ep, const weftpy_gives_t *gives, PyObject *buffers, bool writable, uint64_t timeout,
                           PyObject *stream)
{
    PyObject *list = PySequence_List(buffers);
    if (!list)
        return NULL;
    size_t n = (size_t)PyList_Size(list);
    weftpy_op_t *op = weftpy_op_new(ep->run, gives);
    weftpy_many_t *many = op ? PyMem_Calloc(1, sizeof *many + n * sizeof many->of[0]) : NULL;
    if (!many) {
        if (op)
            PyErr_NoMemory();
        Py_XDECREF((PyObject *)op);
        Py_DECREF(list);
        return NULL;
    }
    many->owner = op;
    op->many = many;
    op->held = Py_NewRef((PyObject *)ep);
    int failed = weftpy_order_begin(ep->st, &many->order, stream);
    if (!failed && n > MOST_HELD && many->order.n) {
        weftpy_raise_text(ep->st, WEFT_ERR_LIMIT, "a stream waits for at most %d messages of one call, and these are %zu",
                          MOST_HELD, n);
        failed = -1;
    }
    for (; many->n < n && !failed; many->n++) {
        struct weftpy_one *one = &many->of[many->n];
        failed = weftpy_buf_get_in(ep->st, PyList_GetItem(list, (Py_ssize_t)many->n), writable, &many->order, &one->buf);
        if (failed)
            break;
        one->op.fn = ep->run->blocking ? NULL : told; /* a thread that waits checks the operation itself */
        one->op.user = many;
        one->op.timeout_ns = timeout;
    }
    for (size_t i = 0; i < many->n && !failed; i++)
        failed = weftpy_order_set(ep->st, &many->order, true, &many->of[i].op);
    Py_DECREF(list);
    if (failed) {
        Py_DECREF(op);
        return NULL;
    }
    return op;
}

/* In a blocking runtime: wait for one after the other, because the call ends only when all are complete. Steals op. */
static PyObject *waited(weftpy_op_t *op, size_t n)
{
    weftpy_many_t *many = op->many;
    weftpy_runtime_t *run = op->run;
    PyObject *type = NULL, *error = NULL, *trace = NULL, *value = NULL;
    for (size_t i = 0; i < n; i++) {
        int interrupted = weftpy_wait(run, &many->of[i].op);
        if (interrupted || run->closing) /* cancel the others instead of waiting for each */
            for (size_t k = i + 1; k < n; k++)
                weft_op_cancel(&many->of[k].op);
        if (interrupted && !type)
            PyErr_Fetch(&type, &error, &trace);
        else if (interrupted)
            PyErr_Clear(); /* the first is enough */
    }
    /* Only after all waits: a release can run any code, and a close of the runtime has to find this thread waiting until then. */
    for (size_t i = 0; i < n; i++)
        weftpy_buf_release(&many->of[i].buf);
    weft_status_t status = many->status;
    for (size_t i = 0; i < n && !status && !many->each; i++) {
        weft_op_t *one = &many->of[i].op;
        if (one->status == WEFT_ERR_CANCELLED && run->closing)
            one->status = WEFT_ERR_CLOSED; /* set it here, because the exception depends on it */
        status = one->status;
    }
    op->op.status = status;
    op->state = OP_DONE;
    if (type)
        PyErr_Restore(type, error, trace);
    else
        value = weftpy_op_value(run, &op->op, op->gives, op->made);
    op->asked = 1;
    Py_DECREF(op);
    return value;
}

PyObject *weftpy_many_posted(weftpy_op_t *op, size_t n, weft_status_t status)
{
    weftpy_many_t *many = op->many;
    if (!n && (status || !many->n)) {
        if (status)
            return weftpy_op_posted(op, status);
        if (op->run->blocking)
            return waited(op, 0);
        op->asked = 0;
        op->state = OP_DONE;
        op->op.status = WEFT_OK;
        return (PyObject *)op;
    }
    if (status) {
        if (weft_last_error_status() == status && *weft_last_error()) {
            many->why = weftpy_text(weft_last_error()); /* copy it now: later calls overwrite it */
            if (!many->why)
                PyErr_Clear(); /* the text of the status is used instead */
        }
        for (size_t i = 0; i < n; i++)
            weft_op_cancel(&many->of[i].op);
    }
    many->status = status;
    many->left = n;
    return op->run->blocking ? waited(op, n) : weftpy_op_posted(op, WEFT_OK);
}

static const weftpy_sig_t sig_send = {"send_many", 4, 1, 2, {N_buffers, N_tag, N_timeout, N_stream}};
static const weftpy_sig_t sig_recv = {"recv_many", 5, 1, 3, {N_buffers, N_tag, N_mask, N_timeout, N_stream}};

PyObject *weftpy_many_send(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[4];
    uint64_t tag = 0, timeout = 0;
    if (weftpy_args(ep->st, &sig_send, args, n, kwnames, arg) || weftpy_u64(arg[1], "tag", UINT64_MAX, &tag) ||
        weftpy_ns(arg[2], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = gather(ep, &gives_sent, arg[0], false, timeout, arg[3]);
    if (!op || weftpy_loop_before_post(ep->run) || weftpy_endpoint_check(ep)) {
        Py_XDECREF((PyObject *)op);
        return NULL;
    }
    weft_status_t status = WEFT_OK;
    size_t i = 0;
    for (; i < op->many->n && !status; i++) {
        struct weftpy_one *one = &op->many->of[i];
        status = weft_msg_send(ep->ep, one->buf.view.buf, (size_t)one->buf.view.len, tag, &one->op);
    }
    return weftpy_many_posted(op, status ? i - 1 : i, status);
}

PyObject *weftpy_many_recv(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[5];
    uint64_t tag = 0, mask = WEFT_TAG_FULL, timeout = 0;
    if (weftpy_args(ep->st, &sig_recv, args, n, kwnames, arg) || weftpy_u64(arg[1], "tag", UINT64_MAX, &tag) ||
        weftpy_u64(arg[2], "mask", UINT64_MAX, &mask) || weftpy_ns(arg[3], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = gather(ep, &gives_lens, arg[0], true, timeout, arg[4]);
    if (!op || weftpy_loop_before_post(ep->run) || weftpy_endpoint_check(ep)) {
        Py_XDECREF((PyObject *)op);
        return NULL;
    }
    weft_status_t status = WEFT_OK;
    size_t i = 0;
    for (; i < op->many->n && !status; i++) {
        struct weftpy_one *one = &op->many->of[i];
        status = weft_msg_recv(ep->ep, one->buf.view.buf, (size_t)one->buf.view.len, tag, mask, &one->op);
    }
    return weftpy_many_posted(op, status ? i - 1 : i, status);
}
