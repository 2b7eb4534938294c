/* _core/transport_io.c - what moves bytes between a transport's buffer, or memory of any object, and its element: reads, writes,
 * batches, atomics, and waiting for them.
 *
 * Each call has two forms. The plain one waits, without the GIL: in a blocking runtime, where it gives the result. The one that
 * ends in _async gives a future of the running loop (awaited.c). In a runtime of an event loop both give an Op.
 *
 * A read of a few KiB of mapped memory is over when its post returns, and costs about a microsecond; so the arguments are read
 * without detours, and the operation is on the stack. Posts that copy much do it without the GIL.
 *
 * Promise: MemoryError without a buffer before any waiting; what an operation needs lives until it is over, whoever interrupts,
 * cancels or closes, and no longer. tests/python/test_disagg_transport.py, test_disagg_pieces.py, test_disagg_async.py and
 * test_disagg_faults.py hold us to it. */
#include "elements.h"

#include <string.h>

#define SELF weftpy_transport_t *t = (weftpy_transport_t *)self

enum { WITHOUT_GIL = 32768 };

/* --- what an operation comes to ------------------------------------------------------------------------------------------ */

/* made is the transport, or a tuple of it and the items of a batch. */
static weftpy_transport_t *transport_of(PyObject *made)
{
    return (weftpy_transport_t *)(PyTuple_Check(made) ? PyTuple_GetItem(made, 0) : made);
}

/* What to do. */
static const char *advice(weftpy_transport_t *t, weft_status_t status)
{
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    if ((status != WEFT_ERR_TIMEOUT && status != WEFT_ERR_STALE) || !t->action->h.of || !t->action->h.run->rt ||
        weft_transport_get_stats(t->of, &s) || !s.replicas)
        return "";
    return ". Its memory is on replicas, which one program writes at a time, and another may be doing that: try again, with more "
           "time, or have one of them do the writing";
}

static void failed(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    weftpy_transport_t *t = transport_of(made);
    const char *said = op->status == WEFT_ERR_RANGE ? strstr(weft_op_error(op), ": ") : NULL;
    if (said) { /* "transport: NAME: ...", or "transport: transport NAME: ...": the library has all of the numbers */
        weftpy_raise_text(run->st, op->status, strncmp(said, ": transport ", 12) ? "transport %s" : "%s", said + 2);
        return;
    }
    if (PyTuple_Check(made)) {
        const weftpy_io_t *w = PyCapsule_GetPointer(PyTuple_GetItem(made, 1), NULL);
        for (size_t i = 0; i < w->n; i++)
            if (w->items[i].status) {
                weftpy_raise_text(run->st, op->status, "transport %U, item %zu of %zu (%s of %zu bytes at %llu): %s%s", t->name,
                                  i, w->n, w->items[i].what == WEFT_RMA_DO_READ ? "a read" : "a write", w->items[i].size,
                                  (unsigned long long)w->items[i].addr, weft_status_text(op->status), advice(t, op->status));
                return;
            }
    }
    weftpy_raise_text(run->st, op->status, "transport %U: %s%s", t->name, weft_status_text(op->status), advice(t, op->status));
}

static PyObject *len_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return PyLong_FromUnsignedLongLong(op->len);
}

/* What libd's read and write return. */
static PyObject *zero_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return PyLong_FromLong(0);
}

static PyObject *tag_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return PyLong_FromUnsignedLongLong(op->tag);
}

const weftpy_gives_t weftpy_io_gives_none = {.failed = failed};
const weftpy_gives_t weftpy_io_gives_len = {.value = len_value, .failed = failed};
static const weftpy_gives_t gives_zero = {.value = zero_value, .failed = failed};
static const weftpy_gives_t gives_tag = {.value = tag_value, .failed = failed};

/* --- posting ------------------------------------------------------------------------------------------------------------- */

static weft_status_t post(weftpy_transport_t *t, const weftpy_io_t *w, weft_op_t *op)
{
    weftpy_action_t *a = t->action;
    op->timeout_ns = w->timeout;
    if (w->size < WITHOUT_GIL || !a->h.run->blocking)
        return w->post(t->of, w, op);
    a->busy++; /* the action stays open until it is 0 */
    PyThreadState *save = PyEval_SaveThread();
    weft_status_t status = w->post(t->of, w, op);
    PyEval_RestoreThread(save);
    a->busy--;
    return status;
}

void weftpy_io_profiled(PyObject *made, const char *what, uint64_t size, uint64_t began, weft_status_t status)
{
    weftpy_transport_t *t = transport_of(made);
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    struct weftpy_profiled one = {.name = t->name, .what = what, .size = status ? 0 : size, .began = began};
    if (!t->action->profile)
        return;
    one.took = weftpy_clock() - began;
    if (t->action->h.of && t->action->h.run->rt && !weft_transport_get_stats(t->of, &s) && s.ready_at > began)
        one.waited = s.ready_at - began < one.took ? s.ready_at - began : one.took;
    weftpy_action_profiled(t->action, &one);
}

static PyObject *wait_for(weftpy_transport_t *t, const weftpy_io_t *w, const weftpy_gives_t *gives, PyObject *made)
{
    weftpy_runtime_t *run = t->action->h.run;
    weft_op_t op = WEFT_OP_INIT;
    uint64_t began = t->action->profile ? weftpy_clock() : 0;
    weft_status_t status = post(t, w, &op);
    if (status)
        return weftpy_transport_raise(t, status);
    if (weftpy_wait(run, &op))
        return NULL;
    if (began)
        weftpy_io_profiled(made, w->name, w->size, began, op.status);
    return weftpy_op_value(run, &op, gives, made);
}

/* Returns a future of the running loop. */
static PyObject *for_a_loop(weftpy_transport_t *t, const weftpy_io_t *w, const weftpy_gives_t *gives, PyObject *made,
                            PyObject *held)
{
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    weftpy_awaited_t *awaited = weftpy_awaited_new(t->action->h.run, gives, Py_NewRef(made), Py_XNewRef(held));
    if (!awaited)
        return NULL;
    if (weftpy_transport_check(t)) { /* making a future runs code of the loop */
        weftpy_awaited_refused(awaited);
        return NULL;
    }
    weft_transport_get_stats(t->of, &s);
    awaited->what = w->name;
    awaited->size = w->size;
    awaited->began = t->action->profile ? weftpy_clock() : 0;
    if (s.path != WEFT_RMA_MAPPED) /* on the mapped path it may be complete when the post returns */
        weftpy_awaited_direct(awaited);
    weft_status_t status = post(t, w, &awaited->op);
    if (status) {
        weftpy_transport_raise(t, status);
        weftpy_awaited_refused(awaited);
        return NULL;
    }
    return weftpy_awaited_future(awaited);
}

/* Every operation comes through here. `made` has what is asked about it later. `held` (may be NULL) is what it needs until it is
 * complete. */
PyObject *weftpy_io_go_with(weftpy_transport_t *t, const weftpy_io_t *w, const weftpy_gives_t *gives, PyObject *made,
                            PyObject *held)
{
    if (weftpy_transport_check(t))
        return NULL;
    weftpy_runtime_t *run = t->action->h.run;
    if (run->blocking)
        return w->async ? for_a_loop(t, w, gives, made, held) : wait_for(t, w, gives, made);
    weftpy_op_t *op = weftpy_op_new(run, gives);
    if (!op)
        return NULL;
    op->made = Py_NewRef(made);
    op->held = Py_XNewRef(held);
    op->op.timeout_ns = w->timeout;
    weft_status_t status = w->post(t->of, w, &op->op);
    if (status == WEFT_ERR_STATE) {
        weftpy_transport_raise(t, status);
        Py_DECREF(op);
        return NULL;
    }
    return weftpy_op_posted(op, status);
}

PyObject *weftpy_io_go(weftpy_transport_t *t, const weftpy_io_t *w, const weftpy_gives_t *gives, PyObject *made)
{
    return weftpy_io_go_with(t, w, gives, made, NULL);
}

/* --- reading and writing ------------------------------------------------------------------------------------------------- */

static weft_status_t post_read(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_read(of, w->size, w->addr, w->offset, op);
}

static weft_status_t post_write(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_write(of, w->size, w->addr, w->offset, op);
}

static PyObject *move(weftpy_transport_t *t, weftpy_io_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    weftpy_sig_t sig = {w->name, 4, 2, 3, {N_size, N_addr, N_offset, N_timeout}};
    PyObject *arg[4] = {NULL, NULL, NULL, NULL};
    if (kwnames || n < 2 || n > 3) {
        if (weftpy_args(t->action->h.run->st, &sig, args, n, kwnames, arg))
            return NULL;
    } else {
        memcpy(arg, args, (size_t)n * sizeof *arg);
    }
    if (weftpy_bytes(arg[0], "size", &w->size) || weftpy_bytes(arg[1], "addr", &w->addr) ||
        weftpy_count(arg[2], "offset", &w->offset) || weftpy_ns(arg[3], "timeout", &w->timeout))
        return NULL;
    if (w->size + w->offset > t->registered && weftpy_transport_outside(t, w->size, w->offset))
        return NULL;
    return weftpy_io_go(t, w, &gives_zero, (PyObject *)t);
}

PyObject *weftpy_io_read(FAST_ARGS)
{
    weftpy_io_t w = {.name = "read", .post = post_read};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

PyObject *weftpy_io_read_async(FAST_ARGS)
{
    weftpy_io_t w = {.name = "read_async", .post = post_read, .async = true};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

PyObject *weftpy_io_write(FAST_ARGS)
{
    weftpy_io_t w = {.name = "write", .post = post_write};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

PyObject *weftpy_io_write_async(FAST_ARGS)
{
    weftpy_io_t w = {.name = "write_async", .post = post_write, .async = true};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

/* --- atomics ------------------------------------------------------------------------------------------------------------- */

static weft_status_t post_add(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_fetch_add(of, w->addr, w->value, op);
}

static weft_status_t post_swap(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_compare_swap(of, w->addr, w->compare, w->value, op);
}

/* A word of 8 bytes: a negative number becomes two's complement, as in C. */
static int word_of(PyObject *arg, const char *what, uint64_t *out)
{
    PyObject *number = PyNumber_Index(arg);
    if (!number)
        return -1;
    long long below = PyLong_AsLongLong(number);
    int result = 0;
    if (below < 0 && !PyErr_Occurred()) {
        *out = (uint64_t)below;
    } else {
        PyErr_Clear();
        result = weftpy_u64(number, what, UINT64_MAX, out);
    }
    Py_DECREF(number);
    return result;
}

static const weftpy_sig_t sig_add = {"fetch_add", 3, 1, 2, {N_addr, N_value, N_timeout}};
static const weftpy_sig_t sig_swap = {"compare_swap", 4, 3, 3, {N_addr, N_expected, N_desired, N_timeout}};

static PyObject *add(weftpy_transport_t *t, weftpy_io_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[3];
    w->value = 1;
    w->post = post_add;
    if (weftpy_args(t->action->h.run->st, &sig_add, args, n, kwnames, arg) || weftpy_bytes(arg[0], "addr", &w->addr) ||
        (arg[1] && word_of(arg[1], "value", &w->value)) || weftpy_ns(arg[2], "timeout", &w->timeout))
        return NULL;
    return weftpy_io_go(t, w, &gives_tag, (PyObject *)t);
}

static PyObject *swap(weftpy_transport_t *t, weftpy_io_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[4];
    w->post = post_swap;
    if (weftpy_args(t->action->h.run->st, &sig_swap, args, n, kwnames, arg) || weftpy_bytes(arg[0], "addr", &w->addr) ||
        word_of(arg[1], "expected", &w->compare) || word_of(arg[2], "desired", &w->value) ||
        weftpy_ns(arg[3], "timeout", &w->timeout))
        return NULL;
    return weftpy_io_go(t, w, &gives_tag, (PyObject *)t);
}

/* --- waiting ------------------------------------------------------------------------------------------------------------- */

static weft_status_t post_flush(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_flush(of, op);
}

weft_status_t weftpy_io_post_ready(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_ready(of, op);
}

static weft_status_t post_serve(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_serve(of, op);
}

static const weftpy_sig_t sig_flush = {"flush", 1, 0, 0, {N_timeout}};
static const weftpy_sig_t sig_ready = {"wait_ready", 1, 0, 1, {N_timeout}};

static PyObject *flush(weftpy_transport_t *t, weftpy_io_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[1];
    w->post = post_flush;
    if (weftpy_args(t->action->h.run->st, &sig_flush, args, n, kwnames, arg) || weftpy_ns(arg[0], "timeout", &w->timeout))
        return NULL;
    return weftpy_io_go(t, w, &weftpy_io_gives_none, (PyObject *)t);
}

static PyObject *ready(weftpy_transport_t *t, weftpy_io_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[1];
    w->post = weftpy_io_post_ready;
    if (weftpy_args(t->action->h.run->st, &sig_ready, args, n, kwnames, arg) || weftpy_ns(arg[0], "timeout", &w->timeout))
        return NULL;
    return weftpy_io_go(t, w, &weftpy_io_gives_len, (PyObject *)t);
}

#define BOTH(fn, of) \
    PyObject *weftpy_io_##fn(FAST_ARGS) \
    { \
        weftpy_io_t w = {.name = #fn}; \
        return of((weftpy_transport_t *)self, &w, args, n, kwnames); \
    } \
    PyObject *weftpy_io_##fn##_async(FAST_ARGS) \
    { \
        weftpy_io_t w = {.name = #fn "_async", .async = true}; \
        return of((weftpy_transport_t *)self, &w, args, n, kwnames); \
    }

BOTH(fetch_add, add)
BOTH(compare_swap, swap)
BOTH(flush, flush)
BOTH(wait_ready, ready)

PyObject *weftpy_io_serve(PyObject *self, PyObject *unused)
{
    weftpy_io_t w = {.name = "serve", .post = post_serve};
    return weftpy_io_go((weftpy_transport_t *)self, &w, &weftpy_io_gives_none, self);
}
