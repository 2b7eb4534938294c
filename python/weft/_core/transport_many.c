/* _core/transport_many.c - many reads and writes of a transport in one operation: batch(), readv(), writev(), read_many(),
 * write_many().
 *
 * tests/python/test_disagg_pieces.py holds us to it. */
#include "elements.h"

#include <string.h>

enum { ITEMS_MOST = 65536 };

static weft_status_t post_batch(weft_transport_t *of, const weftpy_io_t *w, weft_op_t *op)
{
    return weft_transport_batch(of, w->items, w->n, op);
}

static void items_end(PyObject *capsule)
{
    weftpy_io_t *w = PyCapsule_GetPointer(capsule, NULL);
    PyMem_Free(w->items);
    PyMem_Free(w);
}

/* A capsule with space for this many items, or NULL with the exception. */
static PyObject *items_new(weftpy_transport_t *t, const weftpy_io_t *like, Py_ssize_t count, uint64_t timeout, weftpy_io_t **out)
{
    if (count > ITEMS_MOST)
        return weftpy_raise_text(t->action->h.run->st, WEFT_ERR_LIMIT, "%zd items in one operation: it takes at most %d", count,
                                 ITEMS_MOST);
    weftpy_io_t *w = PyMem_Calloc(1, sizeof *w);
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

/* One item: ("read", size, addr[, offset]), or without the word if all are of one kind. *at is the place of the next item without
 * an offset. */
static int item_of(const weftpy_io_t *w, PyObject *given, weft_rma_what_t which, uint64_t *at, weft_transport_item_t *item)
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

static PyObject *many(weftpy_transport_t *t, const weftpy_io_t *like, weft_rma_what_t which, PyObject *const *args, Py_ssize_t n,
                      PyObject *kwnames)
{
    weftpy_sig_t sig = {like->name, 3, 1, 2, {N_items, N_offset, N_timeout}};
    weftpy_sig_t sig_batch = {like->name, 2, 1, 1, {N_items, N_timeout}};
    PyObject *arg[3], *list = NULL, *capsule = NULL, *made = NULL, *result = NULL;
    uint64_t at = 0, timeout = 0;
    weftpy_io_t *w;
    if (weftpy_args(t->action->h.run->st, which ? &sig : &sig_batch, args, n, kwnames, arg) ||
        (which && weftpy_count(arg[1], "offset", &at)) || weftpy_ns(arg[which ? 2 : 1], "timeout", &timeout) ||
        !(list = PySequence_List(arg[0])))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (!(capsule = items_new(t, like, count, timeout, &w)))
        goto out;
    for (; w->n < (size_t)count; w->n++) {
        if (item_of(w, PyList_GetItem(list, (Py_ssize_t)w->n), which, &at, &w->items[w->n]) ||
            weftpy_transport_outside(t, w->items[w->n].size, w->items[w->n].offset))
            goto out;
        if (__builtin_add_overflow(w->size, w->items[w->n].size, &w->size))
            w->size = UINT64_MAX; /* only for the profile and the choice to release the GIL: the library checks each item */
    }
    if ((made = PyTuple_Pack(2, (PyObject *)t, capsule)))
        result = weftpy_io_go(t, w, &weftpy_io_gives_len, made);
out:
    Py_DECREF(list);
    Py_XDECREF(capsule);
    Py_XDECREF(made);
    return result;
}

#define MANY(fn, which) \
    PyObject *weftpy_io_##fn(FAST_ARGS) \
    { \
        static const weftpy_io_t like = {.name = #fn}; \
        return many((weftpy_transport_t *)self, &like, which, args, n, kwnames); \
    } \
    PyObject *weftpy_io_##fn##_async(FAST_ARGS) \
    { \
        static const weftpy_io_t like = {.name = #fn "_async", .async = true}; \
        return many((weftpy_transport_t *)self, &like, which, args, n, kwnames); \
    }

MANY(batch, 0)
MANY(readv, WEFT_RMA_DO_READ)
MANY(writev, WEFT_RMA_DO_WRITE)

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

/* One item: a pair of an address in the element's memory and an object with bytes. */
static int piece_of(weftpy_state_t *st, const weftpy_io_t *w, PyObject *given, bool in, weftpy_buf_t *buf,
                    weft_transport_item_t *item)
{
    static uint8_t nothing[1]; /* the address for an empty object */
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

static PyObject *pieces(weftpy_transport_t *t, const weftpy_io_t *like, bool in, PyObject *const *args, Py_ssize_t n,
                        PyObject *kwnames)
{
    weftpy_state_t *st = t->action->h.run->st;
    weftpy_sig_t sig = {like->name, 2, 1, 1, {N_items, N_timeout}};
    PyObject *arg[2], *list = NULL, *capsule = NULL, *held = NULL, *made = NULL, *result = NULL;
    uint64_t timeout = 0;
    bufs_t *bufs;
    weftpy_io_t *w;
    if (weftpy_args(st, &sig, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout) ||
        !(list = PySequence_List(arg[0])))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (!(capsule = items_new(t, like, count, timeout, &w)) || !(held = bufs_new(count, &bufs)))
        goto out;
    if (!count) /* an empty batch would fail without a registered buffer */
        w->post = weftpy_io_post_ready;
    for (; w->n < (size_t)count; w->n++) {
        int failed = piece_of(st, w, PyList_GetItem(list, (Py_ssize_t)w->n), in, &bufs->of[w->n], &w->items[w->n]);
        bufs->n++;
        if (failed)
            goto out;
        if (__builtin_add_overflow(w->size, w->items[w->n].size, &w->size))
            w->size = UINT64_MAX;
    }
    if ((made = PyTuple_Pack(2, (PyObject *)t, capsule)))
        result = weftpy_io_go_with(t, w, &weftpy_io_gives_none, made, held);
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
        static const weftpy_io_t like = {.name = #fn}; \
        return pieces((weftpy_transport_t *)self, &like, in, args, n, kwnames); \
    } \
    PyObject *weftpy_io_##fn##_async(FAST_ARGS) \
    { \
        static const weftpy_io_t like = {.name = #fn "_async", .async = true}; \
        return pieces((weftpy_transport_t *)self, &like, in, args, n, kwnames); \
    }

PIECES(read_many, true)
PIECES(write_many, false)
