/* _core/transport_io.c - what moves bytes between a transport's buffer, or memory of any object, and its element: reads, writes, batches,
 * atomics, and waiting for them.
 *
 * Each call has two forms. The plain one waits, without the GIL: in a blocking runtime, where it gives the result. The one that ends in _async gives
 * a future of the running loop (posted.c). In a runtime of an event loop both give an Op.
 *
 * A read of a few KiB of mapped memory is over when its post returns, and costs about a microsecond; so the arguments are read without detours, and
 * the operation is on the stack. Posts that copy much do it without the GIL.
 *
 * Promise: MemoryError without a buffer before any waiting; what an operation needs lives until it is over, whoever interrupts, cancels or
 * closes, and no longer. tests/python/test_disagg_transport.py, test_disagg_pieces.py, test_disagg_async.py and test_disagg_faults.py hold us to
 * it. */
#include "elements.h"

#include <string.h>

#define SELF weftpy_transport_t *t = (weftpy_transport_t *)self

enum { WITHOUT_GIL = 32768, ITEMS_MOST = 65536 };

typedef struct what {
    const char *name;
    bool async;
    uint64_t size, addr, offset, timeout, value, compare;
    weft_transport_item_t *items;
    size_t n;
    weft_status_t (*post)(weft_transport_t *of, const struct what *w, weft_op_t *op);
} what_t;

/* --- what an operation comes to ------------------------------------------------------------------------------------------ */

/* made is the transport, or a tuple of it and the items of a batch. */
static weftpy_transport_t *transport_of(PyObject *made)
{
    return (weftpy_transport_t *)(PyTuple_Check(made) ? PyTuple_GetItem(made, 0) : made);
}

/* What there is to do about it. */
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
    if (PyTuple_Check(made)) {
        const what_t *w = PyCapsule_GetPointer(PyTuple_GetItem(made, 1), NULL);
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

static PyObject *tag_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return PyLong_FromUnsignedLongLong(op->tag);
}

static const weftpy_gives_t gives_none = {.failed = failed};
static const weftpy_gives_t gives_len = {.value = len_value, .failed = failed};
static const weftpy_gives_t gives_tag = {.value = tag_value, .failed = failed};

/* --- posting ------------------------------------------------------------------------------------------------------------- */

static weft_status_t post(weftpy_transport_t *t, const what_t *w, weft_op_t *op)
{
    weftpy_action_t *a = t->action;
    op->timeout_ns = w->timeout;
    if (w->size < WITHOUT_GIL || !a->h.run->blocking)
        return w->post(t->of, w, op);
    a->busy++; /* the action stays until it is 0 */
    PyThreadState *save = PyEval_SaveThread();
    weft_status_t status = w->post(t->of, w, op);
    PyEval_RestoreThread(save);
    a->busy--;
    return status;
}

static PyObject *wait_for(weftpy_transport_t *t, const what_t *w, const weftpy_gives_t *gives, PyObject *made)
{
    weftpy_runtime_t *run = t->action->h.run;
    weft_op_t op = WEFT_OP_INIT;
    uint64_t began = t->action->profile ? weftpy_clock() : 0;
    weft_status_t status = post(t, w, &op);
    if (status)
        return weftpy_transport_raise(t, status);
    if (weftpy_wait(run, &op))
        return NULL;
    if (began && t->action->profile)
        weftpy_action_profiled(t->action, t->name, w->name, w->size, began);
    return weftpy_op_value(run, &op, gives, made);
}

/* A future of the running loop. */
static PyObject *for_a_loop(weftpy_transport_t *t, const what_t *w, const weftpy_gives_t *gives, PyObject *made, PyObject *held)
{
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    weftpy_awaited_t *awaited = weftpy_awaited_new(t->action->h.run, gives, Py_NewRef(made), Py_XNewRef(held));
    if (!awaited)
        return NULL;
    if (weftpy_transport_check(t)) { /* making a future runs code of the loop's */
        weftpy_awaited_refused(awaited);
        return NULL;
    }
    weft_transport_get_stats(t->of, &s);
    if (s.path != WEFT_RMA_MAPPED) /* else it may be over when the post returns */
        weftpy_awaited_direct(awaited);
    weft_status_t status = post(t, w, &awaited->op);
    if (status) {
        weftpy_transport_raise(t, status);
        weftpy_awaited_refused(awaited);
        return NULL;
    }
    return weftpy_awaited_future(awaited);
}

/* Everything comes through here. made has what is asked about the operation later, held (may be NULL) what it needs until it is over. */
static PyObject *go_with(weftpy_transport_t *t, const what_t *w, const weftpy_gives_t *gives, PyObject *made, PyObject *held)
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

static PyObject *go(weftpy_transport_t *t, const what_t *w, const weftpy_gives_t *gives, PyObject *made)
{
    return go_with(t, w, gives, made, NULL);
}

/* --- reading and writing ------------------------------------------------------------------------------------------------- */

static weft_status_t post_read(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_read(of, w->size, w->addr, w->offset, op);
}

static weft_status_t post_write(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_write(of, w->size, w->addr, w->offset, op);
}

static PyObject *move(weftpy_transport_t *t, what_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
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
    return go(t, w, &gives_none, (PyObject *)t);
}

PyObject *weftpy_io_read(FAST_ARGS)
{
    what_t w = {.name = "read", .post = post_read};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

PyObject *weftpy_io_read_async(FAST_ARGS)
{
    what_t w = {.name = "read_async", .post = post_read, .async = true};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

PyObject *weftpy_io_write(FAST_ARGS)
{
    what_t w = {.name = "write", .post = post_write};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

PyObject *weftpy_io_write_async(FAST_ARGS)
{
    what_t w = {.name = "write_async", .post = post_write, .async = true};
    return move((weftpy_transport_t *)self, &w, args, n, kwnames);
}

/* --- many of them -------------------------------------------------------------------------------------------------------- */

static weft_status_t post_batch(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_batch(of, w->items, w->n, op);
}

static void items_end(PyObject *capsule)
{
    what_t *w = PyCapsule_GetPointer(capsule, NULL);
    PyMem_Free(w->items);
    PyMem_Free(w);
}

/* A capsule with room for so many items, or NULL with the exception. */
static PyObject *items_new(weftpy_transport_t *t, const what_t *like, Py_ssize_t count, uint64_t timeout, what_t **out)
{
    if (count > ITEMS_MOST)
        return weftpy_raise_text(t->action->h.run->st, WEFT_ERR_LIMIT, "%zd items in one operation: it takes at most %d", count,
                                 ITEMS_MOST);
    what_t *w = PyMem_Calloc(1, sizeof *w);
    weft_transport_item_t *items = PyMem_Calloc((size_t)count + 1, sizeof *items);
    PyObject *capsule = w && items ? PyCapsule_New(w, NULL, items_end) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(w);
        PyMem_Free(items);
        return NULL;
    }
    *w = *like;
    w->items = items;
    w->timeout = timeout;
    w->post = post_batch;
    *out = w;
    return capsule;
}

static int direction(PyObject *word, weft_rma_what_t *out)
{
    const char *text = PyUnicode_Check(word) ? PyUnicode_AsUTF8AndSize(word, NULL) : "";
    if (text && !strcmp(text, "read"))
        *out = WEFT_RMA_DO_READ;
    else if (text && !strcmp(text, "write"))
        *out = WEFT_RMA_DO_WRITE;
    else {
        if (text)
            PyErr_Format(PyExc_ValueError, "an item of batch() begins with \"read\" or \"write\", and not with %R", word);
        return -1;
    }
    return 0;
}

/* One item: ("read", size, addr[, offset]), or without the word where all are alike; *at is where the next one goes without an offset. */
static int item_of(const what_t *w, PyObject *given, weft_rma_what_t which, uint64_t *at, weft_transport_item_t *item)
{
    PyObject *parts = PyTuple_Check(given) || PyList_Check(given) ? PySequence_Tuple(given) : NULL;
    Py_ssize_t first = which ? 0 : 1, n = parts ? PyTuple_Size(parts) - first : 0;
    uint64_t size = 0, offset = which ? *at : 0;
    int result = -1;
    if (PyErr_Occurred())
        goto out;
    if (n < 2 || n > 3) {
        PyErr_Format(PyExc_TypeError,
                     which ? "%s() takes items (size, addr) or (size, addr, offset), and %R is none"
                           : "%s() takes items (\"read\" or \"write\", size, addr, offset=0), and %R is none",
                     w->name, given);
        goto out;
    }
    item->what = which;
    if ((!which && direction(PyTuple_GetItem(parts, 0), &item->what)) ||
        weftpy_bytes(PyTuple_GetItem(parts, first), "size", &size) ||
        weftpy_bytes(PyTuple_GetItem(parts, first + 1), "addr", &item->addr) ||
        (n == 3 && weftpy_bytes(PyTuple_GetItem(parts, first + 2), "offset", &offset)))
        goto out;
    item->size = size;
    item->offset = offset;
    if (n == 2 && which && __builtin_add_overflow(offset, size, at)) {
        PyErr_SetString(PyExc_OverflowError, "the pieces have more bytes than any buffer");
        goto out;
    }
    result = 0;
out:
    Py_XDECREF(parts);
    return result;
}

static PyObject *many(weftpy_transport_t *t, const what_t *like, weft_rma_what_t which, PyObject *const *args, Py_ssize_t n,
                      PyObject *kwnames)
{
    weftpy_sig_t sig = {like->name, 3, 1, 2, {N_items, N_offset, N_timeout}};
    weftpy_sig_t sig_batch = {like->name, 2, 1, 1, {N_items, N_timeout}};
    PyObject *arg[3], *list = NULL, *capsule = NULL, *made = NULL, *result = NULL;
    uint64_t at = 0, timeout = 0;
    what_t *w;
    if (weftpy_args(t->action->h.run->st, which ? &sig : &sig_batch, args, n, kwnames, arg) ||
        (which && weftpy_count(arg[1], "offset", &at)) || weftpy_ns(arg[which ? 2 : 1], "timeout", &timeout) ||
        !(list = PySequence_List(arg[0])))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (!(capsule = items_new(t, like, count, timeout, &w)))
        goto out;
    for (; w->n < (size_t)count; w->n++) {
        if (item_of(w, PyList_GetItem(list, (Py_ssize_t)w->n), which, &at, &w->items[w->n]))
            goto out;
        if (__builtin_add_overflow(w->size, w->items[w->n].size, &w->size))
            w->size = UINT64_MAX; /* for how long the post takes, and the profile: the library looks at each */
    }
    if ((made = PyTuple_Pack(2, (PyObject *)t, capsule)))
        result = go(t, w, &gives_len, made);
out:
    Py_DECREF(list);
    Py_XDECREF(capsule);
    Py_XDECREF(made);
    return result;
}

#define MANY(fn, which) \
    PyObject *weftpy_io_##fn(FAST_ARGS) \
    { \
        static const what_t like = {.name = #fn}; \
        return many((weftpy_transport_t *)self, &like, which, args, n, kwnames); \
    } \
    PyObject *weftpy_io_##fn##_async(FAST_ARGS) \
    { \
        static const what_t like = {.name = #fn "_async", .async = true}; \
        return many((weftpy_transport_t *)self, &like, which, args, n, kwnames); \
    }

MANY(batch, 0)
MANY(readv, WEFT_RMA_DO_READ)
MANY(writev, WEFT_RMA_DO_WRITE)

/* --- atomics ------------------------------------------------------------------------------------------------------------- */

static weft_status_t post_add(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_fetch_add(of, w->addr, w->value, op);
}

static weft_status_t post_swap(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_compare_swap(of, w->addr, w->compare, w->value, op);
}

/* 8 bytes: what is negative counts down from their end, as in C. */
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

static PyObject *add(weftpy_transport_t *t, what_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[3];
    w->value = 1;
    w->post = post_add;
    if (weftpy_args(t->action->h.run->st, &sig_add, args, n, kwnames, arg) || weftpy_bytes(arg[0], "addr", &w->addr) ||
        (arg[1] && word_of(arg[1], "value", &w->value)) || weftpy_ns(arg[2], "timeout", &w->timeout))
        return NULL;
    return go(t, w, &gives_tag, (PyObject *)t);
}

static PyObject *swap(weftpy_transport_t *t, what_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[4];
    w->post = post_swap;
    if (weftpy_args(t->action->h.run->st, &sig_swap, args, n, kwnames, arg) || weftpy_bytes(arg[0], "addr", &w->addr) ||
        word_of(arg[1], "expected", &w->compare) || word_of(arg[2], "desired", &w->value) ||
        weftpy_ns(arg[3], "timeout", &w->timeout))
        return NULL;
    return go(t, w, &gives_tag, (PyObject *)t);
}

/* --- waiting ------------------------------------------------------------------------------------------------------------- */

static weft_status_t post_flush(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_flush(of, op);
}

static weft_status_t post_ready(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_ready(of, op);
}

static weft_status_t post_serve(weft_transport_t *of, const what_t *w, weft_op_t *op)
{
    return weft_transport_serve(of, op);
}

static const weftpy_sig_t sig_flush = {"flush", 1, 0, 0, {N_timeout}};
static const weftpy_sig_t sig_ready = {"wait_ready", 1, 0, 1, {N_timeout}};

static PyObject *flush(weftpy_transport_t *t, what_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[1];
    w->post = post_flush;
    if (weftpy_args(t->action->h.run->st, &sig_flush, args, n, kwnames, arg) || weftpy_ns(arg[0], "timeout", &w->timeout))
        return NULL;
    return go(t, w, &gives_none, (PyObject *)t);
}

static PyObject *ready(weftpy_transport_t *t, what_t *w, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[1];
    w->post = post_ready;
    if (weftpy_args(t->action->h.run->st, &sig_ready, args, n, kwnames, arg) || weftpy_ns(arg[0], "timeout", &w->timeout))
        return NULL;
    return go(t, w, &gives_len, (PyObject *)t);
}

#define BOTH(fn, of) \
    PyObject *weftpy_io_##fn(FAST_ARGS) \
    { \
        what_t w = {.name = #fn}; \
        return of((weftpy_transport_t *)self, &w, args, n, kwnames); \
    } \
    PyObject *weftpy_io_##fn##_async(FAST_ARGS) \
    { \
        what_t w = {.name = #fn "_async", .async = true}; \
        return of((weftpy_transport_t *)self, &w, args, n, kwnames); \
    }

BOTH(fetch_add, add)
BOTH(compare_swap, swap)
BOTH(flush, flush)
BOTH(wait_ready, ready)

PyObject *weftpy_io_serve(PyObject *self, PyObject *unused)
{
    what_t w = {.name = "serve", .post = post_serve};
    return go((weftpy_transport_t *)self, &w, &gives_none, self);
}

/* --- many of them, with memory of objects --------------------------------------------------------------------------------- */

typedef struct bufs {
    size_t n;
    weftpy_buf_t of[];
} bufs_t;

static void bufs_end(PyObject *capsule)
{
    bufs_t *b = PyCapsule_GetPointer(capsule, NULL);
    for (size_t i = 0; i < b->n; i++)
        weftpy_buf_release(&b->of[i]);
    PyMem_Free(b);
}

static PyObject *bufs_new(Py_ssize_t count, bufs_t **out)
{
    bufs_t *b = PyMem_Calloc(1, sizeof *b + (size_t)count * sizeof b->of[0]);
    PyObject *capsule = b ? PyCapsule_New(b, NULL, bufs_end) : PyErr_NoMemory();
    if (!capsule)
        PyMem_Free(b);
    *out = b;
    return capsule;
}

/* One item: a pair of a place in the element's memory and an object with bytes. */
static int piece_of(weftpy_state_t *st, const what_t *w, PyObject *given, bool in, weftpy_buf_t *buf, weft_transport_item_t *item)
{
    static uint8_t nothing[1]; /* of an object without bytes */
    if (!PyTuple_Check(given) || PyTuple_Size(given) != 2) {
        PyErr_Format(PyExc_TypeError, "%s() takes pairs of a place in the element's memory and a buffer, and %R is none", w->name,
                     given);
        return -1;
    }
    if (weftpy_bytes(PyTuple_GetItem(given, 0), "addr", &item->addr) || weftpy_buf_get(st, PyTuple_GetItem(given, 1), in, buf))
        return -1;
    if (buf->kind && !(buf->kind->flags & WEFT_MEM_CPU)) {
        weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED, "%s() reads and writes memory of the host: copy it there first", w->name);
        return -1;
    }
    item->what = in ? WEFT_RMA_DO_READ : WEFT_RMA_DO_WRITE;
    item->size = (size_t)buf->view.len;
    item->own = item->size ? buf->view.buf : nothing;
    return 0;
}

static PyObject *pieces(weftpy_transport_t *t, const what_t *like, bool in, PyObject *const *args, Py_ssize_t n,
                        PyObject *kwnames)
{
    weftpy_state_t *st = t->action->h.run->st;
    weftpy_sig_t sig = {like->name, 2, 1, 1, {N_items, N_timeout}};
    PyObject *arg[2], *list = NULL, *capsule = NULL, *held = NULL, *made = NULL, *result = NULL;
    uint64_t timeout = 0;
    bufs_t *bufs;
    what_t *w;
    if (weftpy_args(st, &sig, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout) ||
        !(list = PySequence_List(arg[0])))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (!(capsule = items_new(t, like, count, timeout, &w)) || !(held = bufs_new(count, &bufs)))
        goto out;
    if (!count) /* a batch of nothing would ask for a buffer */
        w->post = post_ready;
    for (; w->n < (size_t)count; w->n++) {
        int failed = piece_of(st, w, PyList_GetItem(list, (Py_ssize_t)w->n), in, &bufs->of[w->n], &w->items[w->n]);
        bufs->n++;
        if (failed)
            goto out;
        if (__builtin_add_overflow(w->size, w->items[w->n].size, &w->size))
            w->size = UINT64_MAX;
    }
    if ((made = PyTuple_Pack(2, (PyObject *)t, capsule)))
        result = go_with(t, w, &gives_none, made, held);
out:
    Py_DECREF(list);
    Py_XDECREF(capsule);
    Py_XDECREF(held);
    Py_XDECREF(made);
    return result;
}

#define PIECES(fn, in) \
    PyObject *weftpy_io_##fn(FAST_ARGS) \
    { \
        static const what_t like = {.name = #fn}; \
        return pieces((weftpy_transport_t *)self, &like, in, args, n, kwnames); \
    } \
    PyObject *weftpy_io_##fn##_async(FAST_ARGS) \
    { \
        static const what_t like = {.name = #fn "_async", .async = true}; \
        return pieces((weftpy_transport_t *)self, &like, in, args, n, kwnames); \
    }

PIECES(read_many, true)
PIECES(write_many, false)
