/* _core/mirror.c - Mirror: a block on two or three servers at once, with one writer and any number of readers.
 *
 * It holds its stores. What it promises is in weft/mirror.h.
 *
 *     COMING -> OPEN -> GONE   close(), `with`, the object goes, or the runtime is closed
 *
 * tests/python/test_store.py holds us to it. */
#include "store.h"

#define SELF weftpy_handle_t *h = (weftpy_handle_t *)self

static const weftpy_handle_kind_t kind;

static const char *const member_names[] = {"", "up", "lost", "fenced", "refilling"};

static void let_go(weftpy_handle_t *h, void *of)
{
    weft_mirror_close(of, NULL);
}

static weftpy_handle_t *store_of(weftpy_runtime_t *run, PyObject *object)
{
    weftpy_handle_t *store = (weftpy_handle_t *)object;
    if (Py_TYPE(object) != run->st->store || store->run != run) {
        PyErr_Format(PyExc_TypeError, "a mirror is made of stores of its own runtime, and %R is none", object);
        return NULL;
    }
    return weftpy_handle_check(store) ? NULL : store;
}

static const weftpy_sig_t sig_open = {
    "mirror", 8, 2, 2, {N_name, N_stores, N_size, N_write, N_force, N_checksums, N_lease, N_timeout}};

PyObject *weftpy_mirror(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[8], *stores;
    weft_mirror_opts_t opts = WEFT_MIRROR_OPTS_INIT;
    weft_store_t *of[WEFT_MIRROR_MAX];
    uint64_t timeout = 0;
    int write = 0, force = 0, checksums = 0;
    weftpy_op_t *op = NULL;
    if (weftpy_args(run->st, &sig_open, args, n, kwnames, arg) || weftpy_store_name(run->st, arg[0], &opts.name) ||
        weftpy_u64(arg[2], "size", UINT64_MAX, &opts.len) || (arg[3] && (write = PyObject_IsTrue(arg[3])) < 0) ||
        (arg[4] && (force = PyObject_IsTrue(arg[4])) < 0) || (arg[5] && (checksums = PyObject_IsTrue(arg[5])) < 0) ||
        weftpy_ns(arg[6], "lease", &opts.lease_ns) || weftpy_ns(arg[7], "timeout", &timeout) ||
        !(stores = PySequence_Tuple(arg[1])))
        return NULL;
    Py_ssize_t count = PyTuple_Size(stores);
    if (count < 1 || count > (Py_ssize_t)WEFT_MIRROR_MAX) {
        weftpy_raise_text(run->st, WEFT_ERR_INVALID, "a mirror has 1 to %u stores, and %zd were given", WEFT_MIRROR_MAX, count);
        goto out;
    }
    if (weftpy_runtime_check(run) || weftpy_loop_before_post(run))
        goto out;
    for (Py_ssize_t i = 0; i < count; i++) {
        weftpy_handle_t *store = store_of(run, PyTuple_GetItem(stores, i));
        if (!store)
            goto out;
        of[i] = store->of;
    }
    opts.stores = of;
    opts.n_stores = (size_t)count;
    opts.write = write;
    opts.force = force;
    opts.checksums = checksums;
    weftpy_handle_t *h = weftpy_handle_new(run->st->mirror, run, stores, &kind);
    op = h ? weftpy_handle_op(h) : NULL;
    if (op)
        op->op.timeout_ns = timeout;
out:
    Py_DECREF(stores);
    return op ? weftpy_op_posted(op, weft_mirror_open(run->rt, &opts, &op->op)) : NULL;
}

static PyObject *close_it(weftpy_handle_t *h, const weftpy_gives_t *gives)
{
    if (!h->of || !h->run->rt)
        return weftpy_done(h->run, Py_NewRef(Py_None));
    weftpy_op_t *op = weftpy_handle_begin(h, gives);
    if (!op)
        return NULL;
    void *of = weftpy_handle_take(h);
    weft_status_t status = weft_mirror_close(of, &op->op);
    if (status)
        weft_mirror_close(of, NULL);
    return weftpy_op_posted(op, status);
}

static const weftpy_handle_kind_t kind = {"the mirror", let_go, close_it};

/* --- reading and writing ------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_read = {"read", 3, 0, 2, {N_offset, N_n, N_timeout}};
static const weftpy_sig_t sig_into = {"read_into", 3, 1, 2, {N_buffer, N_offset, N_timeout}};
static const weftpy_sig_t sig_write = {"write", 3, 1, 2, {N_buffer, N_offset, N_timeout}};
static const weftpy_sig_t sig_add = {"add", 2, 1, 1, {N_store, N_timeout}};

static uint64_t length_of(weftpy_handle_t *h)
{
    weft_mirror_info_t i = WEFT_MIRROR_INFO_INIT;
    return h->of && h->run->rt && !weft_mirror_get_info(h->of, &i) ? i.len : 0;
}

static PyObject *read_it(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = h->run->st;
    PyObject *arg[3];
    uint64_t offset = 0, len = UINT64_MAX, timeout = 0;
    if (weftpy_args(st, &sig_read, args, n, kwnames, arg) || weftpy_u64(arg[0], "offset", UINT64_MAX, &offset) ||
        weftpy_u64(arg[1], "n", PY_SSIZE_T_MAX, &len) || weftpy_ns(arg[2], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(h, &weftpy_gives_made);
    if (!op)
        return NULL;
    uint64_t all = length_of(h);
    if (len == UINT64_MAX && offset <= all)
        len = all - offset;
    if (offset > all || len > all - offset)
        weftpy_raise_text(st, WEFT_ERR_RANGE, "%llu bytes from %llu on are not within the %llu of this mirror",
                          (unsigned long long)len, (unsigned long long)offset, (unsigned long long)all);
    else
        op->made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
    if (!op->made) {
        Py_DECREF(op);
        return NULL;
    }
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_mirror_read(h->of, offset, PyBytes_AsString(op->made), len, &op->op));
}

static PyObject *with_buffer(weftpy_handle_t *h, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                             bool in)
{
    weftpy_state_t *st = h->run->st;
    PyObject *arg[3];
    uint64_t offset = 0, timeout = 0;
    if (weftpy_args(st, sig, args, n, kwnames, arg) || weftpy_u64(arg[1], "offset", UINT64_MAX, &offset) ||
        weftpy_ns(arg[2], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(h, in ? &weftpy_gives_len : &weftpy_gives_none);
    if (!op)
        return NULL;
    int failed = weftpy_buf_get(st, arg[0], in, &op->buf) || weftpy_handle_check(h);
    if (!failed && op->buf.kind && !(op->buf.kind->flags & WEFT_MEM_CPU)) {
        weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED, "a mirror reads and writes memory of the host: copy it there first");
        failed = -1;
    }
    if (failed) {
        Py_DECREF(op);
        return NULL;
    }
    op->op.timeout_ns = timeout;
    void *at = op->buf.view.buf;
    size_t len = (size_t)op->buf.view.len;
    return weftpy_op_posted(op, in ? weft_mirror_read(h->of, offset, at, len, &op->op)
                                   : weft_mirror_write(h->of, offset, at, len, &op->op));
}

static PyObject *read_into(FAST_ARGS)
{
    return with_buffer((weftpy_handle_t *)self, &sig_into, args, n, kwnames, true);
}

static PyObject *write_it(FAST_ARGS)
{
    return with_buffer((weftpy_handle_t *)self, &sig_write, args, n, kwnames, false);
}

static PyObject *add(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    uint64_t timeout = 0;
    if (weftpy_args(h->run->st, &sig_add, args, n, kwnames, arg) || weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    weftpy_handle_t *store = store_of(h->run, arg[0]);
    weftpy_op_t *op = store ? weftpy_handle_begin(h, &weftpy_gives_none) : NULL;
    PyObject *both = op ? PyTuple_Pack(2, h->over, arg[0]) : NULL; /* the mirror holds this store too from now on */
    if (!both) {
        Py_XDECREF((PyObject *)op);
        return NULL;
    }
    PyObject *before = h->over;
    h->over = both;
    Py_XDECREF(before);
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_mirror_add(h->of, store->of, &op->op));
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static PyObject *get_info(PyObject *self, void *unused)
{
    SELF;
    weft_mirror_info_t i = WEFT_MIRROR_INFO_INIT;
    if (weftpy_handle_check(h))
        return NULL;
    weft_mirror_get_info(h->of, &i);
    PyObject *members = PyList_New(0);
    for (size_t k = 0; members && k < i.members && k < WEFT_MIRROR_MAX; k++) {
        PyObject *word = PyUnicode_FromString(member_names[i.member[k] <= WEFT_MEMBER_REFILLING ? i.member[k] : 0]);
        if (!word || PyList_Append(members, word))
            Py_CLEAR(members);
        Py_XDECREF(word);
    }
    if (!members)
        return NULL;
    return Py_BuildValue("{s:K,s:K,s:N,s:N,s:s,s:N,s:K,s:K,s:K}", "len", (unsigned long long)i.len, "epoch",
                         (unsigned long long)i.epoch, "writer", PyBool_FromLong(i.writer), "checksums",
                         PyBool_FromLong(i.checksums), "state", weft_status_name(i.state), "members", members, "refilled",
                         (unsigned long long)i.refilled, "failovers", (unsigned long long)i.failovers, "mended",
                         (unsigned long long)i.mended);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(length_of((weftpy_handle_t *)self));
}

static Py_ssize_t length(PyObject *self)
{
    return (Py_ssize_t)length_of((weftpy_handle_t *)self);
}

static PyMethodDef methods[] = {
    {"read", FAST(read_it),
     DOC("read($self, offset=0, n=None, *, timeout=None)", "Bytes of it, from one member, or from another if that is lost.")},
    {"read_into", FAST(read_into),
     DOC("read_into($self, buffer, offset=0, *, timeout=None)", "Fill a buffer from it. Gives the length.")},
    {"write", FAST(write_it), DOC("write($self, buffer, offset=0, *, timeout=None)", "Write to all members. Only the writer.")},
    {"add", FAST(add),
     DOC("add($self, store, *, timeout=None)", "Add a server in place of one that was lost. Gives None when it is refilled.")},
    {"close", weftpy_handle_close, METH_NOARGS,
     DOC("close($self)", "Leave, when what was written is complete: members answer readers without a lease then.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"nbytes", get_nbytes, NULL, "Its length in bytes.", NULL},
    {"closed", weftpy_handle_closed, NULL, "True once it is closed.", NULL},
    {"info", get_info, NULL, "Its members and their states, as a dict; its state says what an operation would now end with.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A block on two or three servers at once."},
    {Py_tp_dealloc, weftpy_handle_dealloc},
    {Py_tp_traverse, weftpy_handle_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {Py_sq_length, length},
    {0, NULL},
};

PyType_Spec weftpy_mirror_spec = WEFTPY_SPEC("Mirror", weftpy_handle_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
