/* _core/server.c - StoreServer: memory of this process that clients allocate blocks of.
 *
 *     OPEN -> CLOSED   close(), `with`, the object goes, or the runtime is closed: every block is freed
 *
 * Promise: what is served ends with the object. tests/python/test_store.py holds us to it. */
#include "store.h"

#include <string.h>

#define SELF weftpy_handle_t *h = (weftpy_handle_t *)self

static const weftpy_handle_kind_t kind;

/* --- shared with the others ---------------------------------------------------------------------------------------------- */

int weftpy_store_name(weftpy_state_t *st, PyObject *arg, const char **name_out)
{
    Py_ssize_t len;
    if (!arg || arg == Py_None)
        return 0;
    const char *name = PyUnicode_AsUTF8AndSize(arg, &len);
    if (!name)
        return -1;
    if ((size_t)len != strlen(name)) {
        weftpy_raise_text(st, WEFT_ERR_INVALID, "a name has no zero in it");
        return -1;
    }
    *name_out = name;
    return 0;
}

PyObject *weftpy_store_stats(const weft_store_stats_t *s)
{
    const weftpy_count_t rows[] = {
#define ROW(field) {#field, s->field}
        ROW(bytes),   ROW(used_bytes), ROW(blocks),   ROW(shared_blocks),   ROW(clients),        ROW(allocs),  ROW(frees),
        ROW(extends), ROW(opens),      ROW(renewals), ROW(expired_clients), ROW(expired_blocks), ROW(refused), ROW(uptime_ns),
        ROW(reads),   ROW(writes),     ROW(atomics),  ROW(bytes_read),      ROW(bytes_written),
#undef ROW
    };
    return weftpy_counts(rows, sizeof rows / sizeof *rows);
}

/* --- the server ---------------------------------------------------------------------------------------------------------- */

static void let_go(weftpy_handle_t *h, void *of)
{
    weft_store_server_close(of, NULL);
}

static const weftpy_sig_t sig_serve = {
    "store_server", 7, 1, 1, {N_size, N_client_bytes, N_client_blocks, N_blocks, N_clients, N_lease, N_mapped}};

PyObject *weftpy_store_serve(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[7];
    weft_store_server_opts_t opts = WEFT_STORE_SERVER_OPTS_INIT;
    uint64_t client_blocks = 0, blocks = 0, clients = 0;
    int mapped = 1;
    weft_store_server_t *of;
    if (weftpy_args(run->st, &sig_serve, args, n, kwnames, arg) || weftpy_u64(arg[0], "size", UINT64_MAX, &opts.bytes) ||
        weftpy_u64(arg[1], "client_bytes", UINT64_MAX, &opts.client_bytes) ||
        weftpy_u64(arg[2], "client_blocks", UINT32_MAX, &client_blocks) || weftpy_u64(arg[3], "blocks", UINT32_MAX, &blocks) ||
        weftpy_u64(arg[4], "clients", UINT32_MAX, &clients) || weftpy_ns(arg[5], "lease", &opts.lease_ns) ||
        (arg[6] && (mapped = PyObject_IsTrue(arg[6])) < 0) || weftpy_runtime_check(run) || weftpy_loop_before_post(run))
        return NULL;
    opts.client_blocks = (uint32_t)client_blocks;
    opts.blocks = (uint32_t)blocks;
    opts.clients = (uint32_t)clients;
    opts.unmapped = !mapped;
    weftpy_handle_t *h = weftpy_handle_new(run->st->store_server, run, NULL, &kind);
    if (!h)
        return NULL;
    weft_status_t status = weft_store_serve(run->rt, &opts, &of);
    if (status) {
        weftpy_raise(run->st, status);
        Py_DECREF(h);
        return NULL;
    }
    h->of = of;
    return (PyObject *)h;
}

static PyObject *close_it(weftpy_handle_t *h, const weftpy_gives_t *gives)
{
    if (!h->of || !h->run->rt)
        return weftpy_done(h->run, Py_NewRef(Py_None));
    weftpy_op_t *op = weftpy_handle_begin(h, gives);
    return op ? weftpy_op_posted(op, weft_store_server_close(weftpy_handle_take(h), &op->op)) : NULL;
}

static const weftpy_handle_kind_t kind = {"the server", let_go, close_it};

static PyObject *get_stats(PyObject *self, void *unused)
{
    SELF;
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    if (weftpy_handle_check(h))
        return NULL;
    weft_status_t status = weft_store_server_get_stats(h->of, &stats);
    return status ? weftpy_raise(h->run->st, status) : weftpy_store_stats(&stats);
}

static PyMethodDef methods[] = {
    {"close", weftpy_handle_close, METH_NOARGS,
     DOC("close($self)", "Stop serving, and free every block. Gives None when the memory is back.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"closed", weftpy_handle_closed, NULL, "True once it is closed.", NULL},
    {"stats", get_stats, NULL, "What it has given out, to how many, and what was done, as a dict.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Memory of this process that clients allocate blocks of."},
    {Py_tp_dealloc, weftpy_handle_dealloc},
    {Py_tp_traverse, weftpy_handle_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {0, NULL},
};

PyType_Spec weftpy_store_server_spec = WEFTPY_SPEC("StoreServer", weftpy_handle_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
