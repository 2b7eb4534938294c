/* _core/remote.c - Remote: memory of a peer's, attached by a key or by the name of its region.
 *
 * It holds its endpoint, without which it is of no use. What it does are operations like all others: in an event loop an Op to
 * await, in a blocking runtime the result. Buffers are held until the operation is complete, cancelled or not.
 *
 *     COMING -> HERE -> GONE   see handle.c; drop(), `with`, or the object goes
 *
 * Promise: a buffer is held for as long as bytes may come into it; whatever the key, the offset or the owner, an exception at
 * worst. tests/python/test_rma.py holds us to it. */
#include "store.h"

#include <string.h>

#define SELF remote_t *r = (remote_t *)self

typedef struct remote {
    weftpy_handle_t h;
} remote_t;

static void let_go(weftpy_handle_t *h, void *of)
{
    weft_remote_drop(of);
}

static void leave_it(weftpy_handle_t *h, void *of)
{
    (void)of; /* it belongs to a block or a transport */
}

/* Two kinds of remotes: its own, and one that belongs to a block or a transport. */
static const weftpy_handle_kind_t kind = {"the remote", let_go, NULL}, borrowed = {"the remote", leave_it, NULL};

PyObject *weftpy_remote_borrow(weftpy_runtime_t *run, PyObject *whose, weft_remote_t *remote)
{
    weftpy_handle_t *h = weftpy_handle_new(run->st->remote, run, whose, &borrowed);
    if (h)
        h->of = remote;
    return (PyObject *)h;
}

/* --- attaching ----------------------------------------------------------------------------------------------------------- */

static int path_of(weftpy_state_t *st, PyObject *arg, weft_rma_path_t *path_out)
{
    if (!arg || arg == Py_None)
        return 0;
    const char *word = PyUnicode_Check(arg) ? PyUnicode_AsUTF8AndSize(arg, NULL) : "";
    if (!word)
        return -1;
    for (weft_rma_path_t path = WEFT_RMA_MAPPED; path <= WEFT_RMA_NATIVE; path++)
        if (!strcmp(word, weft_rma_path_name(path))) {
            *path_out = path;
            return 0;
        }
    weftpy_raise_text(st, WEFT_ERR_INVALID, "path is %R, which is none of mapped, checked, native", arg);
    return -1;
}

/* The Op that brings a remote, or NULL with the exception. */
static weftpy_op_t *coming(weftpy_endpoint_t *ep, uint64_t timeout)
{
    if (weftpy_endpoint_check(ep) || weftpy_loop_before_post(ep->run))
        return NULL;
    weftpy_handle_t *h = weftpy_handle_new(ep->st->remote, ep->run, (PyObject *)ep, &kind);
    weftpy_op_t *op = h ? weftpy_handle_op(h) : NULL;
    if (op)
        op->op.timeout_ns = timeout;
    return op;
}

static const weftpy_sig_t sig_attach = {"attach", 3, 1, 1, {N_key, N_path, N_timeout}};
static const weftpy_sig_t sig_find = {"find", 3, 1, 1, {N_name, N_path, N_timeout}};

PyObject *weftpy_endpoint_attach(FAST_ARGS)
{
    weftpy_endpoint_t *ep = (weftpy_endpoint_t *)self;
    PyObject *arg[3];
    weft_remote_opts_t opts = WEFT_REMOTE_OPTS_INIT;
    uint64_t timeout = 0;
    Py_buffer key;
    if (weftpy_args(ep->st, &sig_attach, args, n, kwnames, arg) || path_of(ep->st, arg[1], &opts.path) ||
        weftpy_ns(arg[2], "timeout", &timeout) || PyObject_GetBuffer(arg[0], &key, PyBUF_SIMPLE))
        return NULL;
    weftpy_op_t *op = coming(ep, timeout);
    PyObject *given = op ? weftpy_op_posted(op, weft_remote_attach(ep->ep, key.buf, (size_t)key.len, &opts, &op->op)) : NULL;
    PyBuffer_Release(&key);
    return given;
}

PyObject *weftpy_endpoint_find_name(FAST_ARGS)
{
    weftpy_endpoint_t *ep = (weftpy_endpoint_t *)self;
    PyObject *arg[3];
    weft_remote_opts_t opts = WEFT_REMOTE_OPTS_INIT;
    uint64_t timeout = 0;
    if (weftpy_args(ep->st, &sig_find, args, n, kwnames, arg) || path_of(ep->st, arg[1], &opts.path) ||
        weftpy_ns(arg[2], "timeout", &timeout))
        return NULL;
    const char *name = PyUnicode_AsUTF8AndSize(arg[0], NULL);
    weftpy_op_t *op = name ? coming(ep, timeout) : NULL;
    return op ? weftpy_op_posted(op, weft_remote_find(ep->ep, name, &opts, &op->op)) : NULL;
}

/* --- one access ---------------------------------------------------------------------------------------------------------- */

static uint64_t length_of(remote_t *r)
{
    weft_remote_info_t i = WEFT_REMOTE_INFO_INIT;
    return r->h.of && !weft_remote_get_info(r->h.of, &i) ? i.len : 0;
}

static PyObject *give_up(weftpy_op_t *op)
{
    Py_XDECREF((PyObject *)op);
    return NULL;
}

static const weftpy_sig_t sig_read = {"read", 3, 0, 2, {N_offset, N_n, N_timeout}};

static PyObject *read_it(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = r->h.run->st;
    PyObject *arg[3];
    uint64_t offset = 0, len = UINT64_MAX, timeout = 0;
    if (weftpy_args(st, &sig_read, args, n, kwnames, arg) || weftpy_u64(arg[0], "offset", UINT64_MAX, &offset) ||
        weftpy_u64(arg[1], "n", PY_SSIZE_T_MAX, &len) || weftpy_ns(arg[2], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(&r->h, &weftpy_gives_made);
    if (!op)
        return NULL;
    uint64_t all = length_of(r); /* check the range before allocating memory */
    if (len == UINT64_MAX && offset <= all)
        len = all - offset;
    if (offset > all || len > all - offset) {
        weftpy_raise_text(st, WEFT_ERR_RANGE, "%llu bytes from %llu on are not within the %llu of this remote",
                          (unsigned long long)len, (unsigned long long)offset, (unsigned long long)all);
        return give_up(op);
    }
    if (!(op->made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len)))
        return give_up(op);
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_rma_read(r->h.of, offset, PyBytes_AsString(op->made), len, &op->op));
}

static const weftpy_sig_t sig_into = {"read_into", 4, 1, 2, {N_buffer, N_offset, N_timeout, N_stream}};
static const weftpy_sig_t sig_write = {"write", 4, 1, 2, {N_buffer, N_offset, N_timeout, N_stream}};
static const weftpy_sig_t sig_notify = {"write_notify", 5, 1, 2, {N_buffer, N_offset, N_value, N_timeout, N_stream}};

/* An Op with a buffer. arg: buffer, offset and, if the signature has 5, value, timeout, stream. */
static weftpy_op_t *with_buffer(remote_t *r, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                                bool writable, uint64_t *offset_out, uint64_t *value_out)
{
    weftpy_state_t *st = r->h.run->st;
    PyObject *arg[5];
    uint64_t timeout = 0;
    if (weftpy_args(st, sig, args, n, kwnames, arg) || weftpy_u64(arg[1], "offset", UINT64_MAX, offset_out) ||
        (value_out && weftpy_u64(arg[2], "value", UINT64_MAX, value_out)) || weftpy_ns(arg[sig->n - 2], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(&r->h, writable ? &weftpy_gives_len : &weftpy_gives_none);
    if (!op)
        return NULL;
    if (weftpy_order_begin(st, &op->order, arg[sig->n - 1]) ||
        weftpy_buf_get_ordered(st, arg[0], writable, &op->buf, &op->order, &op->op) ||
        weftpy_handle_check(&r->h)) /* last: reading the buffer can run any code */
        return (weftpy_op_t *)give_up(op);
    op->op.timeout_ns = timeout;
    return op;
}

static PyObject *read_into(FAST_ARGS)
{
    SELF;
    uint64_t offset = 0;
    weftpy_op_t *op = with_buffer(r, &sig_into, args, n, kwnames, true, &offset, NULL);
    return op ? weftpy_op_posted(op, weft_rma_read(r->h.of, offset, op->buf.view.buf, (size_t)op->buf.view.len, &op->op)) : NULL;
}

static PyObject *write_it(FAST_ARGS)
{
    SELF;
    uint64_t offset = 0;
    weftpy_op_t *op = with_buffer(r, &sig_write, args, n, kwnames, false, &offset, NULL);
    return op ? weftpy_op_posted(op, weft_rma_write(r->h.of, offset, op->buf.view.buf, (size_t)op->buf.view.len, &op->op)) : NULL;
}

static PyObject *write_notify(FAST_ARGS)
{
    SELF;
    uint64_t offset = 0, value = 0;
    weftpy_op_t *op = with_buffer(r, &sig_notify, args, n, kwnames, false, &offset, &value);
    return op ? weftpy_op_posted(
                    op, weft_rma_write_notify(r->h.of, offset, op->buf.view.buf, (size_t)op->buf.view.len, value, &op->op))
              : NULL;
}

/* --- atomics ------------------------------------------------------------------------------------------------------------- */

static PyObject *before(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return PyLong_FromUnsignedLongLong(op->tag);
}

static const weftpy_gives_t gives_before = {.value = before};

/* A word of `width` bytes: an unsigned number, or a negative one in two's complement. */
static int word(PyObject *arg, const char *name, uint64_t width, uint64_t *out)
{
    uint64_t most = width == 4 ? UINT32_MAX : UINT64_MAX;
    int overflow;
    PyObject *number = PyNumber_Index(arg);
    if (!number)
        return -1;
    long long small = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (small == -1 && PyErr_Occurred())
        return -1;
    if (overflow < 0 || (!overflow && small < 0 && small < (width == 4 ? INT32_MIN : INT64_MIN))) {
        PyErr_Format(PyExc_OverflowError, "%s is %R, which does not fit a word of %llu bytes", name, arg,
                     (unsigned long long)width);
        return -1;
    }
    if (!overflow && small < 0) {
        *out = (uint64_t)small & most;
        return 0;
    }
    return weftpy_u64(arg, name, most, out);
}

static const weftpy_sig_t sig_atomic = {"atomic", 4, 2, 2, {N_offset, N_value, N_width, N_timeout}};
static const weftpy_sig_t sig_cas = {"atomic_cas", 5, 3, 3, {N_offset, N_compare, N_value, N_width, N_timeout}};

static PyObject *atomic(remote_t *r, weft_rma_atomic_t which, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    weftpy_state_t *st = r->h.run->st;
    bool cas = which == WEFT_RMA_CAS;
    PyObject *arg[5];
    uint64_t offset = 0, width = 8, value = 0, compare = 0, timeout = 0;
    int at = cas ? 2 : 1;
    if (weftpy_args(st, cas ? &sig_cas : &sig_atomic, args, n, kwnames, arg) ||
        weftpy_u64(arg[0], "offset", UINT64_MAX, &offset) || weftpy_u64(arg[at + 1], "width", UINT32_MAX, &width) ||
        weftpy_ns(arg[at + 2], "timeout", &timeout) || word(arg[at], "value", width, &value) ||
        (cas && word(arg[1], "compare", width, &compare)))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(&r->h, &gives_before);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_rma_atomic(r->h.of, which, offset, (size_t)width, value, compare, &op->op));
}

#define ATOMIC(name, which) \
    static PyObject *name(FAST_ARGS) \
    { \
        return atomic((remote_t *)self, which, args, n, kwnames); \
    }
ATOMIC(atomic_add, WEFT_RMA_ADD)
ATOMIC(atomic_swap, WEFT_RMA_SWAP)
ATOMIC(atomic_cas, WEFT_RMA_CAS)
ATOMIC(atomic_and, WEFT_RMA_AND)
ATOMIC(atomic_or, WEFT_RMA_OR)
ATOMIC(atomic_xor, WEFT_RMA_XOR)

/* --- order, and the end -------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_flush = {"flush", 1, 0, 0, {N_timeout}};

static weft_status_t post_flush(void *of, weft_op_t *op)
{
    return weft_rma_flush(of, op);
}

static PyObject *flush(FAST_ARGS)
{
    return weftpy_handle_simple((weftpy_handle_t *)self, post_flush, &sig_flush, args, n, kwnames);
}

static PyObject *fence(PyObject *self, PyObject *unused)
{
    SELF;
    if (weftpy_handle_check(&r->h) || weftpy_loop_before_post(r->h.run))
        return NULL;
    weft_status_t status = weft_rma_fence(r->h.of);
    if (status)
        return weftpy_raise(r->h.run->st, status);
    Py_RETURN_NONE;
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static int ask(remote_t *r, weft_remote_info_t *out)
{
    *out = (weft_remote_info_t)WEFT_REMOTE_INFO_INIT;
    if (weftpy_handle_check(&r->h))
        return -1;
    weft_remote_get_info(r->h.of, out);
    return 0;
}

static PyObject *get_info(PyObject *self, void *unused)
{
    weft_remote_info_t i;
    if (ask((remote_t *)self, &i))
        return NULL;
    return Py_BuildValue(
        "{s:K,s:N,s:s,s:K,s:s,s:K,s:K,s:K,s:K,s:K}", "len", (unsigned long long)i.len, "rights", weftpy_rights_text(i.rights),
        "path", weft_rma_path_name(i.path), "generation", (unsigned long long)i.generation, "state", weft_status_name(i.state),
        "reads", (unsigned long long)i.reads, "writes", (unsigned long long)i.writes, "atomics", (unsigned long long)i.atomics,
        "bytes_read", (unsigned long long)i.bytes_read, "bytes_written", (unsigned long long)i.bytes_written);
}

static PyObject *get_path(PyObject *self, void *unused)
{
    weft_remote_info_t i;
    return ask((remote_t *)self, &i) ? NULL : PyUnicode_FromString(weft_rma_path_name(i.path));
}

static PyObject *get_rights(PyObject *self, void *unused)
{
    weft_remote_info_t i;
    return ask((remote_t *)self, &i) ? NULL : weftpy_rights_text(i.rights);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(length_of((remote_t *)self));
}

static PyObject *get_endpoint(PyObject *self, void *unused)
{
    SELF;
    weftpy_state_t *st = r->h.run->st;
    PyObject *over = r->h.over;
    while (over && (Py_TYPE(over) == st->block || Py_TYPE(over) == st->store))
        over = ((weftpy_handle_t *)over)->over;
    bool endpoint = over && !PyObject_TypeCheck(over, st->transport); /* a transport has its own endpoint */
    return Py_NewRef(endpoint ? over : Py_None);
}

static PyObject *get_blocking(PyObject *self, void *unused)
{
    return PyBool_FromLong(((remote_t *)self)->h.run->blocking);
}

static Py_ssize_t length(PyObject *self)
{
    return (Py_ssize_t)length_of((remote_t *)self);
}

static PyObject *repr(PyObject *self)
{
    SELF;
    weft_remote_info_t i = WEFT_REMOTE_INFO_INIT;
    if (!r->h.of || weft_remote_get_info(r->h.of, &i))
        return PyUnicode_FromString("<weft.Remote closed>");
    PyObject *endpoint = get_endpoint(self, NULL), *peer = weftpy_endpoint_peer(endpoint, "at"), *text = NULL;
    if (peer)
        text = PyUnicode_FromFormat("<weft.Remote of %llu bytes%U, %s>", (unsigned long long)i.len, peer,
                                    weft_rma_path_name(i.path));
    Py_DECREF(endpoint);
    Py_XDECREF(peer);
    return text;
}

static PyMethodDef methods[] = {
    {"read", FAST(read_it), DOC("read($self, offset=0, n=None, *, timeout=None)", "Bytes of it.")},
    {"read_into", FAST(read_into),
     DOC("read_into($self, buffer, offset=0, *, timeout=None, stream=None)", "Fill a buffer from it. Gives the length.")},
    {"write", FAST(write_it),
     DOC("write($self, buffer, offset=0, *, timeout=None, stream=None)",
         "Write a buffer to it. When complete, it is in the owner's memory.")},
    {"write_notify", FAST(write_notify),
     DOC("write_notify($self, buffer, offset=0, *, value=0, timeout=None, stream=None)",
         "Write, and then tell the owner's notify function, with a value.")},
    {"readv", FAST(weftpy_remote_readv),
     DOC("readv($self, buffers, offset=0, *, timeout=None, stream=None)",
         "Fill buffers one after the other from one piece of it.")},
    {"writev", FAST(weftpy_remote_writev),
     DOC("writev($self, buffers, offset=0, *, timeout=None, stream=None)",
         "Write buffers one after the other to one piece of it.")},
    {"read_many", FAST(weftpy_remote_read_many),
     DOC("read_many($self, items, *, timeout=None, stream=None)",
         "Fill the buffer of each pair (offset, buffer), at most 65536.")},
    {"write_many", FAST(weftpy_remote_write_many),
     DOC("write_many($self, items, *, timeout=None, stream=None)",
         "Write the buffer of each pair (offset, buffer), at most 65536.")},
    {"atomic_add", FAST(atomic_add),
     DOC("atomic_add($self, offset, value, *, width=8, timeout=None)", "Add to a word. Gives its value before.")},
    {"atomic_swap", FAST(atomic_swap),
     DOC("atomic_swap($self, offset, value, *, width=8, timeout=None)", "Store a word. Gives its value before.")},
    {"atomic_cas", FAST(atomic_cas),
     DOC("atomic_cas($self, offset, compare, value, *, width=8, timeout=None)",
         "Store value if the word is compare. Gives its value before.")},
    {"atomic_and", FAST(atomic_and),
     DOC("atomic_and($self, offset, value, *, width=8, timeout=None)", "And a word. Gives its value before.")},
    {"atomic_or", FAST(atomic_or),
     DOC("atomic_or($self, offset, value, *, width=8, timeout=None)", "Or a word. Gives its value before.")},
    {"atomic_xor", FAST(atomic_xor),
     DOC("atomic_xor($self, offset, value, *, width=8, timeout=None)", "Xor a word. Gives its value before.")},
    {"flush", FAST(flush),
     DOC("flush($self, *, timeout=None)", "Gives None when everything posted on it before is complete, however it ended.")},
    {"fence", fence, METH_NOARGS, DOC("fence($self)", "Nothing posted on it later takes effect before anything posted earlier.")},
    {"drop", weftpy_handle_drop, METH_NOARGS, DOC("drop($self)", "Let go of it; what is under way goes on.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"nbytes", get_nbytes, NULL, "Its length in bytes; 0 once it was dropped.", NULL},
    {"path", get_path, NULL, "How it is reached: mapped, checked or native.", NULL},
    {"rights", get_rights, NULL, "What may be done with it, as letters: r (read), w (write), a (atomics).", NULL},
    {"endpoint", get_endpoint, NULL, "The endpoint to its owner; None once it was dropped.", NULL},
    {"closed", weftpy_handle_closed, NULL, "True once it was dropped, or its runtime closed.", NULL},
    {"blocking", get_blocking, NULL, "True if its calls wait; else they give an Op to await.", NULL},
    {"info", get_info, NULL, "What is known of it, as a dict; its state says what an operation would now end with.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Memory of a peer's, to read and write." WEFTPY_STREAM_DOC},
    {Py_tp_dealloc, weftpy_handle_dealloc},
    {Py_tp_traverse, weftpy_handle_traverse},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {Py_sq_length, length},
    {0, NULL},
};

PyType_Spec weftpy_remote_spec = WEFTPY_SPEC("Remote", remote_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
