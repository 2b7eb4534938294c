/* _core/store.c - Store: a lease at a memory server, and what is asked of it.
 *
 * The server keeps the lease for as long as the client is connected. It holds its endpoint.
 *
 *     COMING -> OPEN -> GONE   close() ends the lease, and with it the blocks that are not shared; so does the end of the object.
 *                              leave() only forgets it: who comes back with its id within the lease finds the blocks
 *
 * tests/python/test_store.py holds us to it. */
#include "store.h"

#include <stdlib.h>
#include <string.h>

#define SELF weftpy_handle_t *h = (weftpy_handle_t *)self

static const weftpy_handle_kind_t kind;

static void let_go(weftpy_handle_t *h, void *of)
{
    weft_store_close(of, NULL);
}

/* --- opening and closing ------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_open = {"store", 4, 0, 0, {N_lease, N_id, N_renew, N_timeout}};

PyObject *weftpy_endpoint_store(FAST_ARGS)
{
    weftpy_endpoint_t *ep = (weftpy_endpoint_t *)self;
    PyObject *arg[4];
    weft_store_opts_t opts = WEFT_STORE_OPTS_INIT;
    uint64_t timeout = 0;
    uint8_t id[WEFT_STORE_ID];
    int renew = 1;
    if (weftpy_args(ep->st, &sig_open, args, n, kwnames, arg) || weftpy_ns(arg[0], "lease", &opts.lease_ns) ||
        (arg[2] && (renew = PyObject_IsTrue(arg[2])) < 0) || weftpy_ns(arg[3], "timeout", &timeout))
        return NULL;
    if (arg[1] && arg[1] != Py_None) {
        Py_buffer view;
        if (PyObject_GetBuffer(arg[1], &view, PyBUF_SIMPLE))
            return NULL;
        bool fits = view.len == WEFT_STORE_ID;
        if (fits)
            memcpy(id, view.buf, sizeof id);
        PyBuffer_Release(&view);
        if (!fits)
            return weftpy_raise_text(ep->st, WEFT_ERR_INVALID, "id has %d bytes: it is `id` of a store from before",
                                     (int)WEFT_STORE_ID);
        opts.id = id;
    }
    opts.manual = !renew;
    if (weftpy_endpoint_check(ep) || weftpy_loop_before_post(ep->run))
        return NULL;
    weftpy_handle_t *h = weftpy_handle_new(ep->st->store, ep->run, self, &kind);
    weftpy_op_t *op = h ? weftpy_handle_op(h) : NULL;
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_store_open(ep->ep, &opts, &op->op));
}

static PyObject *close_it(weftpy_handle_t *h, const weftpy_gives_t *gives)
{
    if (!h->of || !h->run->rt)
        return weftpy_done(h->run, Py_NewRef(Py_None));
    weftpy_op_t *op = weftpy_handle_begin(h, gives);
    if (!op)
        return NULL;
    void *of = weftpy_handle_take(h);
    weft_status_t status = weft_store_close(of, &op->op);
    if (status)
        weft_store_leave(of);
    return weftpy_op_posted(op, status);
}

static const weftpy_handle_kind_t kind = {"the store", let_go, close_it};

static PyObject *leave(PyObject *self, PyObject *unused)
{
    SELF;
    bool open = h->run->rt;
    if (h->of && open && weftpy_loop_before_post(h->run))
        return NULL;
    void *of = weftpy_handle_take(h);
    if (of && open)
        weft_store_leave(of);
    Py_RETURN_NONE;
}

/* --- blocks -------------------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_alloc = {"alloc", 5, 1, 2, {N_size, N_name, N_max_len, N_shared, N_timeout}};

static PyObject *alloc(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = h->run->st;
    PyObject *arg[5];
    weft_block_opts_t opts = WEFT_BLOCK_OPTS_INIT;
    uint64_t timeout = 0;
    int shared = 0;
    if (weftpy_args(st, &sig_alloc, args, n, kwnames, arg) || weftpy_u64(arg[0], "size", UINT64_MAX, &opts.len) ||
        weftpy_store_name(st, arg[1], &opts.name) || weftpy_u64(arg[2], "max_len", UINT64_MAX, &opts.max_len) ||
        (arg[3] && (shared = PyObject_IsTrue(arg[3])) < 0) || weftpy_ns(arg[4], "timeout", &timeout) || weftpy_handle_check(h))
        return NULL;
    opts.shared = shared;
    weftpy_op_t *op = weftpy_block_coming(h->run, (PyObject *)h, timeout);
    return op ? weftpy_op_posted(op, weft_block_alloc(h->of, &opts, &op->op)) : NULL;
}

static const weftpy_sig_t sig_name = {"open", 2, 1, 1, {N_name, N_timeout}};
static const weftpy_sig_t sig_remove = {"remove", 2, 1, 1, {N_name, N_timeout}};

static int name_args(weftpy_handle_t *h, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                     const char **name_out, uint64_t *timeout_out)
{
    PyObject *arg[2];
    *name_out = NULL;
    if (weftpy_args(h->run->st, sig, args, n, kwnames, arg) || weftpy_store_name(h->run->st, arg[0], name_out) ||
        weftpy_ns(arg[1], "timeout", timeout_out) || weftpy_handle_check(h))
        return -1;
    if (!*name_out) {
        PyErr_Format(PyExc_TypeError, "%s() needs a name", sig->fn);
        return -1;
    }
    return 0;
}

static PyObject *open_block(FAST_ARGS)
{
    SELF;
    const char *name;
    uint64_t timeout = 0;
    if (name_args(h, &sig_name, args, n, kwnames, &name, &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_block_coming(h->run, (PyObject *)h, timeout);
    return op ? weftpy_op_posted(op, weft_block_open(h->of, name, &op->op)) : NULL;
}

static PyObject *remove_block(FAST_ARGS)
{
    SELF;
    const char *name;
    uint64_t timeout = 0;
    if (name_args(h, &sig_remove, args, n, kwnames, &name, &timeout))
        return NULL;
    weftpy_op_t *op = weftpy_handle_begin(h, &weftpy_gives_none);
    if (!op)
        return NULL;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_store_remove(h->of, name, &op->op));
}

/* --- listing ------------------------------------------------------------------------------------------------------------- */

typedef struct row {
    struct row *next;
    uint64_t len, max_len, age_ns, attached;
    bool shared, ours;
    char name[];
} row_t;

typedef struct rows {
    row_t *first, **end;
    bool short_of_memory;
} rows_t;

static void rows_end(PyObject *capsule)
{
    rows_t *rows = PyCapsule_GetPointer(capsule, NULL);
    for (row_t *row; (row = rows->first);) {
        rows->first = row->next;
        free(row);
    }
    free(rows);
}

/* In progress, possibly without the GIL. */
static void add_row(const weft_block_info_t *info, void *user)
{
    rows_t *rows = user;
    size_t len = strlen(info->name) + 1;
    row_t *row = malloc(sizeof *row + len);
    if (!row) {
        rows->short_of_memory = true;
        return;
    }
    *row = (row_t){NULL, info->len, info->max_len, info->age_ns, info->attached, info->shared, info->ours};
    memcpy(row->name, info->name, len);
    *rows->end = row;
    rows->end = &row->next;
}

static PyObject *list_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    rows_t *rows = PyCapsule_GetPointer(made, NULL);
    PyObject *list = rows->short_of_memory ? PyErr_NoMemory() : PyList_New(0);
    for (row_t *row = rows->first; list && row; row = row->next) {
        PyObject *name = PyUnicode_DecodeUTF8(row->name, (Py_ssize_t)strlen(row->name), "replace"); /* another client's, in C */
        PyObject *dict = name ? Py_BuildValue("{s:O,s:K,s:K,s:d,s:K,s:N,s:N}", "name", name, "len", (unsigned long long)row->len,
                                              "max_len", (unsigned long long)row->max_len, "age", (double)row->age_ns / 1e9,
                                              "attached", (unsigned long long)row->attached, "shared",
                                              PyBool_FromLong(row->shared), "ours", PyBool_FromLong(row->ours))
                              : NULL;
        if (!dict || PyList_Append(list, dict))
            Py_CLEAR(list);
        Py_XDECREF(dict);
        Py_XDECREF(name);
    }
    return list;
}

static const weftpy_gives_t gives_list = {.value = list_value};
static const weftpy_sig_t sig_list = {"list", 2, 0, 1, {N_prefix, N_timeout}};

static PyObject *list_blocks(FAST_ARGS)
{
    SELF;
    PyObject *arg[2];
    const char *prefix = NULL;
    uint64_t timeout = 0;
    if (weftpy_args(h->run->st, &sig_list, args, n, kwnames, arg) || weftpy_store_name(h->run->st, arg[0], &prefix) ||
        weftpy_ns(arg[1], "timeout", &timeout))
        return NULL;
    rows_t *rows = calloc(1, sizeof *rows);
    if (!rows)
        return PyErr_NoMemory();
    rows->end = &rows->first;
    PyObject *capsule = PyCapsule_New(rows, NULL, rows_end);
    if (!capsule) {
        free(rows);
        return NULL;
    }
    weftpy_op_t *op = weftpy_handle_begin(h, &gives_list);
    if (!op) {
        Py_DECREF(capsule);
        return NULL;
    }
    op->made = capsule;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_store_list(h->of, prefix, add_row, rows, &op->op));
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static void stats_end(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, NULL));
}

static PyObject *stats_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    return weftpy_store_stats(PyCapsule_GetPointer(made, NULL));
}

static const weftpy_gives_t gives_stats = {.value = stats_value};
static const weftpy_sig_t sig_query = {"query", 1, 0, 0, {N_timeout}};
static const weftpy_sig_t sig_renew = {"renew", 1, 0, 0, {N_timeout}};

static PyObject *query(FAST_ARGS)
{
    SELF;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(h->run->st, &sig_query, args, n, kwnames, &timeout))
        return NULL;
    weft_store_stats_t *stats = PyMem_Calloc(1, sizeof *stats);
    if (!stats)
        return PyErr_NoMemory();
    *stats = (weft_store_stats_t)WEFT_STORE_STATS_INIT;
    PyObject *capsule = PyCapsule_New(stats, NULL, stats_end);
    if (!capsule) {
        PyMem_Free(stats);
        return NULL;
    }
    weftpy_op_t *op = weftpy_handle_begin(h, &gives_stats);
    if (!op) {
        Py_DECREF(capsule);
        return NULL;
    }
    op->made = capsule;
    op->op.timeout_ns = timeout;
    return weftpy_op_posted(op, weft_store_query(h->of, stats, &op->op));
}

static weft_status_t post_renew(void *of, weft_op_t *op)
{
    return weft_store_renew(of, op);
}

static PyObject *renew(FAST_ARGS)
{
    return weftpy_handle_simple((weftpy_handle_t *)self, post_renew, &sig_renew, args, n, kwnames);
}

static int ask(weftpy_handle_t *h, weft_store_info_t *out)
{
    *out = (weft_store_info_t)WEFT_STORE_INFO_INIT;
    if (weftpy_handle_check(h))
        return -1;
    weft_store_get_info(h->of, out);
    return 0;
}

static PyObject *get_id(PyObject *self, void *unused)
{
    weft_store_info_t i;
    return ask((weftpy_handle_t *)self, &i) ? NULL : PyBytes_FromStringAndSize((const char *)i.id, WEFT_STORE_ID);
}

static PyObject *get_info(PyObject *self, void *unused)
{
    weft_store_info_t i;
    if (ask((weftpy_handle_t *)self, &i))
        return NULL;
    return Py_BuildValue("{s:y#,s:y#,s:d,s:s}", "id", (const char *)i.id, (Py_ssize_t)WEFT_STORE_ID, "server",
                         (const char *)i.server, (Py_ssize_t)WEFT_STORE_ID, "lease", (double)i.lease_ns / 1e9, "state",
                         weft_status_name(i.state));
}

static PyObject *get_endpoint(PyObject *self, void *unused)
{
    SELF;
    return Py_NewRef(h->over ? h->over : Py_None);
}

static PyMethodDef methods[] = {
    {"alloc", FAST(alloc),
     DOC("alloc($self, size, name=None, *, max_len=None, shared=False, timeout=None)",
         "A new Block, zeroed. A shared one outlives the lease.")},
    {"open", FAST(open_block), DOC("open($self, name, *, timeout=None)", "The Block of that name.")},
    {"remove", FAST(remove_block), DOC("remove($self, name, *, timeout=None)", "Free the block of that name, ours or shared.")},
    {"list", FAST(list_blocks),
     DOC("list($self, prefix=None, *, timeout=None)", "The blocks that have names, as dicts, in the order of names.")},
    {"query", FAST(query), DOC("query($self, *, timeout=None)", "The server's statistics, as a dict.")},
    {"renew", FAST(renew), DOC("renew($self, *, timeout=None)", "Renew the lease now. Needed only with renew=False.")},
    {"close", weftpy_handle_close, METH_NOARGS, DOC("close($self)", "End the lease: blocks that are not shared are freed.")},
    {"leave", leave, METH_NOARGS,
     DOC("leave($self)", "Forget it here, and leave the lease to run out: for who comes back with its id.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"closed", weftpy_handle_closed, NULL, "True once it was closed or left.", NULL},
    {"id", get_id, NULL, "Who we are to the server: 16 bytes, to come back with.", NULL},
    {"info", get_info, NULL, "What is known of the lease, as a dict; its state says what an operation would now end with.", NULL},
    {"endpoint", get_endpoint, NULL, "The endpoint to the server.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A lease at a memory server: blocks of its memory are allocated, opened, listed and freed through it."},
    {Py_tp_dealloc, weftpy_handle_dealloc},
    {Py_tp_traverse, weftpy_handle_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {0, NULL},
};

PyType_Spec weftpy_store_spec = WEFTPY_SPEC("Store", weftpy_handle_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
