/* _core/block.c - Block: memory at a server that was allocated or opened through a store.
 *
 * Its memory is used through its `remote`, which is the block's: remotes of it are gone when the block is. It knows them by weak
 * references. An extension makes another remote; the one before stays good for what it reached.
 *
 *     COMING -> HERE -> GONE   drop() and `with` forget it here; free() frees it at the server
 *
 * One that was allocated through a transport has no name. Until its remote or a key of it was asked for nobody can use it but
 * through this object, and when that goes it is freed at the server, too: an allocation that was cancelled when it was all but
 * there, or whose task was.
 *
 * tests/python/test_store.py and test_disagg_alloc.py hold us to it. */
#include "store.h"

#define SELF block_t *b = (block_t *)self

typedef struct block {
    weftpy_handle_t h;
    PyObject *remotes; /* list of weak references, or NULL */
    bool alone;        /* no other client can know the block */
} block_t;

static const weftpy_handle_kind_t kind;

/* Its Remotes cannot be used any more. */
static void forget_remotes(block_t *b)
{
    PyObject *remotes = b->remotes;
    b->remotes = NULL;
    for (Py_ssize_t i = 0, n = remotes ? PyList_Size(remotes) : 0; i < n; i++) {
        PyObject *remote = PyWeakref_GetObject(PyList_GetItem(remotes, i));
        if (remote && remote != Py_None)
            weftpy_handle_take((weftpy_handle_t *)remote);
    }
    Py_XDECREF(remotes);
}

static void let_go(weftpy_handle_t *h, void *of)
{
    forget_remotes((block_t *)h);
    if (!((block_t *)h)->alone || weft_block_free(of, NULL))
        weft_block_drop(of);
}

weftpy_handle_t *weftpy_block_new(weftpy_runtime_t *run, PyObject *whose)
{
    block_t *b = weftpy_handle_new(run->st->block, run, whose, &kind);
    if (b)
        b->alone = PyObject_TypeCheck(whose, run->st->transport);
    return (weftpy_handle_t *)b;
}

weftpy_op_t *weftpy_block_coming(weftpy_runtime_t *run, PyObject *whose, uint64_t timeout)
{
    if (weftpy_loop_before_post(run))
        return NULL;
    weftpy_handle_t *h = weftpy_block_new(run, whose);
    weftpy_op_t *op = h ? weftpy_handle_op(h) : NULL;
    if (op)
        op->op.timeout_ns = timeout;
    return op;
}

/* --- its memory ---------------------------------------------------------------------------------------------------------- */

static PyObject *get_remote(PyObject *self, void *unused)
{
    SELF;
    if (weftpy_handle_check(&b->h))
        return NULL;
    weft_remote_t *of = weft_block_remote(b->h.of);
    if (!of)
        return weftpy_raise_text(b->h.run->st, WEFT_ERR_STATE, "the block has no bytes yet: extend() it first");
    b->alone = false;
    if (!b->remotes && !(b->remotes = PyList_New(0)))
        return NULL;
    for (Py_ssize_t i = PyList_Size(b->remotes); i-- > 0;) {
        PyObject *known = PyWeakref_GetObject(PyList_GetItem(b->remotes, i));
        if (!known || known == Py_None)
            PyList_SetSlice(b->remotes, i, i + 1, NULL);
        else if (((weftpy_handle_t *)known)->of == of)
            return Py_NewRef(known);
    }
    PyObject *remote = weftpy_remote_borrow(b->h.run, self, of), *ref = remote ? PyWeakref_NewRef(remote, NULL) : NULL;
    if (!ref || PyList_Append(b->remotes, ref)) {
        if (remote)
            weftpy_handle_take((weftpy_handle_t *)remote);
        Py_CLEAR(remote);
    }
    Py_XDECREF(ref);
    return remote;
}

static uint64_t length_of(block_t *b)
{
    weft_remote_info_t i = WEFT_REMOTE_INFO_INIT;
    weft_remote_t *of = b->h.of && b->h.run->rt ? weft_block_remote(b->h.of) : NULL;
    return of && !weft_remote_get_info(of, &i) ? i.len : 0;
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(length_of((block_t *)self));
}

static Py_ssize_t length(PyObject *self)
{
    return (Py_ssize_t)length_of((block_t *)self);
}

static PyObject *key(PyObject *self, PyObject *unused)
{
    SELF;
    char bytes[WEFT_REGION_KEY_MAX];
    size_t len = sizeof bytes;
    if (weftpy_handle_check(&b->h))
        return NULL;
    b->alone = false;
    weft_status_t status = weft_block_key(b->h.of, bytes, &len);
    return status ? weftpy_raise(b->h.run->st, status) : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len);
}

/* --- at the server ------------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_extend = {"extend", 2, 1, 1, {N_size, N_timeout}};
static const weftpy_sig_t sig_share = {"share", 3, 1, 1, {N_name, N_replace, N_timeout}};
static const weftpy_sig_t sig_free = {"free", 1, 0, 0, {N_timeout}};

static PyObject *extend(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    uint64_t size = 0, timeout = 0;
    if (weftpy_args(b->h.run->st, &sig_extend, args, n, kwnames, arg) || weftpy_u64(arg[0], "size", UINT64_MAX, &size) ||
        weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(&b->h, &weftpy_gives_len);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_block_extend(b->h.of, size, &op->op));
}

static PyObject *share(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = b->h.run->st;
    PyObject *arg[3];
    const char *name = NULL;
    uint64_t timeout = 0;
    int replace = 0;
    if (weftpy_args(st, &sig_share, args, n, kwnames, arg) || weftpy_store_name(st, arg[0], &name) ||
        (arg[1] && (replace = PyObject_IsTrue(arg[1])) < 0) || weftpy_ns(arg[2], "timeout", &timeout))
        return NULL;
    if (!name) {
        PyErr_SetString(PyExc_TypeError, "share() needs a name");
        return NULL;
    }
    weftpy_op_t *op = weftpy_handle_begin(&b->h, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    b->alone = false;
    return weftpy_op_posted(op, weft_block_share(b->h.of, name, replace, &op->op));
}

static PyObject *free_it(FAST_ARGS)
{
    SELF;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(b->h.run->st, &sig_free, args, n, kwnames, &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(&b->h, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    forget_remotes(b);
    weft_block_t *of = weftpy_handle_take(&b->h);
    weft_status_t status = weft_block_free(of, &op->op);
    if (status)
        weft_block_drop(of);
    return weftpy_op_posted(op, status);
}

static const weftpy_handle_kind_t kind = {"the block", let_go, NULL};

static PyObject *get_store(PyObject *self, void *unused)
{
    SELF;
    bool store = b->h.over && Py_TYPE(b->h.over) == b->h.run->st->store; /* otherwise the block belongs to a transport */
    return Py_NewRef(store ? b->h.over : Py_None);
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (b->h.run)
        weftpy_handle_end(&b->h);
    Py_CLEAR(b->remotes);
    weftpy_handle_dealloc(self);
}

static PyMethodDef methods[] = {
    {"key", key, METH_NOARGS,
     DOC("key($self)", "Bytes that let their bearer attach it, with all rights, over an endpoint to the server.")},
    {"extend", FAST(extend),
     DOC("extend($self, size, *, timeout=None)", "Make it longer; the new bytes are zero. Gives the new length.")},
    {"share", FAST(share),
     DOC("share($self, name, *, replace=False, timeout=None)", "Give it to everyone under a name; it outlives our lease.")},
    {"free", FAST(free_it), DOC("free($self, *, timeout=None)", "Free it at the server, everyone's remotes with it.")},
    {"drop", weftpy_handle_drop, METH_NOARGS, DOC("drop($self)", "Forget it here; the block stays at the server.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"remote", get_remote, NULL, "Its memory, to read and write; good for as long as the block is here.", NULL},
    {"nbytes", get_nbytes, NULL, "Its length in bytes.", NULL},
    {"closed", weftpy_handle_closed, NULL, "True once it was dropped or freed.", NULL},
    {"store", get_store, NULL, "The store it came from; None: it is a transport's.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Memory at a server, allocated or opened through a store."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, weftpy_handle_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {Py_sq_length, length},
    {0, NULL},
};

PyType_Spec weftpy_block_spec = WEFTPY_SPEC("Block", block_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
