/* _core/remote_many.c - reads and writes of a Remote in many pieces: readv(), writev(), read_many(), write_many().
 *
 * The pieces are in a capsule that the operation holds, with their buffers. It comes behind the streams of all of them.
 *
 * tests/python/test_rma.py holds us to it. */
#include "store.h"

enum { PIECES_MOST = 1024, ITEMS_MOST = 65536 };

typedef struct pieces {
    size_t n;
    weftpy_order_t order;
    weft_iov_t *iov;
    weft_rma_item_t *items;
    weftpy_buf_t bufs[];
} pieces_t;

static void pieces_end(PyObject *capsule)
{
    pieces_t *p = PyCapsule_GetPointer(capsule, NULL);
    for (size_t i = 0; i < p->n; i++)
        weftpy_buf_release(&p->bufs[i]);
    weftpy_order_release(&p->order);
    PyMem_Free(p->iov);
    PyMem_Free(p->items);
    PyMem_Free(p);
}

/* A capsule with room for all, or NULL with the exception. */
static PyObject *pieces_new(weftpy_state_t *st, Py_ssize_t n, Py_ssize_t most, bool vector, pieces_t **out)
{
    if (n > most)
        return weftpy_raise_text(st, WEFT_ERR_LIMIT, "%zd pieces in one operation: it takes at most %zd", n, most);
    pieces_t *p = PyMem_Calloc(1, sizeof *p + (size_t)n * sizeof p->bufs[0]);
    if (!p)
        return PyErr_NoMemory();
    if (vector)
        p->iov = PyMem_Calloc((size_t)n + 1, sizeof *p->iov);
    else
        p->items = PyMem_Calloc((size_t)n + 1, sizeof *p->items);
    PyObject *capsule = p->iov || p->items ? PyCapsule_New(p, NULL, pieces_end) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(p->iov);
        PyMem_Free(p->items);
        PyMem_Free(p);
        return NULL;
    }
    *out = p;
    return capsule;
}

/* The operation holds them with the remote, and is told of their streams. */
static int hold(weftpy_op_t *op, PyObject *capsule, pieces_t *p)
{
    PyObject *both = weftpy_order_set(op->run->st, &p->order, false, &op->op) ? NULL : PyTuple_Pack(2, op->held, capsule);
    if (!both)
        return -1;
    Py_DECREF(op->held);
    op->held = both;
    return 0;
}

static const weftpy_sig_t sig_readv = {"readv", 4, 1, 2, {N_buffers, N_offset, N_timeout, N_stream}};
static const weftpy_sig_t sig_writev = {"writev", 4, 1, 2, {N_buffers, N_offset, N_timeout, N_stream}};

static PyObject *vector(weftpy_handle_t *h, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                        bool writable)
{
    weftpy_state_t *st = h->run->st;
    PyObject *arg[4], *list, *capsule = NULL;
    uint64_t offset = 0, timeout = 0;
    pieces_t *p;
    weftpy_op_t *op = NULL;
    if (weftpy_args(st, sig, args, n, kwnames, arg) || weftpy_u64(arg[1], "offset", UINT64_MAX, &offset) ||
        weftpy_ns(arg[2], "timeout", &timeout) || !(list = PySequence_List(arg[0])))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (!(capsule = pieces_new(st, count, PIECES_MOST, true, &p)) || weftpy_order_begin(st, &p->order, arg[3]))
        goto out;
    for (; p->n < (size_t)count; p->n++) {
        weftpy_buf_t *buf = &p->bufs[p->n];
        if (weftpy_buf_get_in(st, PyList_GetItem(list, (Py_ssize_t)p->n), writable, &p->order, buf))
            goto out;
        p->iov[p->n] = (weft_iov_t){buf->view.buf, (size_t)buf->view.len};
    }
    op = weftpy_handle_begin(h, writable ? &weftpy_gives_len : &weftpy_gives_none);
    if (op && hold(op, capsule, p)) {
        Py_DECREF(op);
        op = NULL;
    }
out:
    Py_DECREF(list);
    Py_XDECREF(capsule);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, writable ? weft_rma_readv(h->of, offset, p->iov, p->n, &op->op)
                                         : weft_rma_writev(h->of, offset, p->iov, p->n, &op->op));
}

PyObject *weftpy_remote_readv(FAST_ARGS)
{
    return vector((weftpy_handle_t *)self, &sig_readv, args, n, kwnames, true);
}

PyObject *weftpy_remote_writev(FAST_ARGS)
{
    return vector((weftpy_handle_t *)self, &sig_writev, args, n, kwnames, false);
}

static const weftpy_sig_t sig_read_many = {"read_many", 3, 1, 1, {N_items, N_timeout, N_stream}};
static const weftpy_sig_t sig_write_many = {"write_many", 3, 1, 1, {N_items, N_timeout, N_stream}};

static PyObject *many(weftpy_handle_t *h, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                      bool writable)
{
    weftpy_state_t *st = h->run->st;
    PyObject *arg[3], *list, *capsule = NULL;
    uint64_t timeout = 0;
    pieces_t *p = NULL;
    weftpy_op_t *op = NULL;
    if (weftpy_args(st, sig, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout) ||
        !(list = PySequence_List(arg[0])))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (!(capsule = pieces_new(st, count, ITEMS_MOST, false, &p)) || weftpy_order_begin(st, &p->order, arg[2]))
        goto out;
    while (p->n < (size_t)count) {
        PyObject *pair = PyList_GetItem(list, (Py_ssize_t)p->n);
        weft_rma_item_t *item = &p->items[p->n];
        weftpy_buf_t *buf = &p->bufs[p->n];
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_Format(PyExc_TypeError, "%s() takes pairs of an offset and a buffer, and %R is none", sig->fn, pair);
            goto out;
        }
        if (weftpy_u64(PyTuple_GetItem(pair, 0), "offset", UINT64_MAX, &item->offset) ||
            weftpy_buf_get_in(st, PyTuple_GetItem(pair, 1), writable, &p->order, buf))
            goto out;
        p->n++;
        item->what = writable ? WEFT_RMA_DO_READ : WEFT_RMA_DO_WRITE;
        item->buf = buf->view.buf;
        item->len = (size_t)buf->view.len;
    }
    op = weftpy_handle_begin(h, &weftpy_gives_none);
    if (op && hold(op, capsule, p)) {
        Py_DECREF(op);
        op = NULL;
    }
out:
    Py_DECREF(list);
    Py_XDECREF(capsule);
    if (!op)
        return NULL;
    if (!count) {
        Py_DECREF(op);
        return weftpy_done(h->run, Py_NewRef(Py_None));
    }
    for (size_t i = 0; i < p->n; i++)
        p->items[i].remote = h->of;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_rma_batch(p->items, p->n, &op->op));
}

PyObject *weftpy_remote_read_many(FAST_ARGS)
{
    return many((weftpy_handle_t *)self, &sig_read_many, args, n, kwnames, true);
}

PyObject *weftpy_remote_write_many(FAST_ARGS)
{
    return many((weftpy_handle_t *)self, &sig_write_many, args, n, kwnames, false);
}
