/* _core/region.c - Region: memory of ours that peers may read and write.
 *
 * The memory is made by the library, and peers on this host map it; or it is a buffer of the program's. The object has the buffer
 * protocol over it, so that numpy.frombuffer(region) is the memory itself.
 *
 *     OPEN -> FREED   free(), `with`, the object goes, or the runtime is closed
 *
 * What must outlive the object is in a capsule: the program's buffer, which is held until the library is done with it, and memory
 * of the library's that views were out of when the region was freed. That stays until the last view is gone (weft_region_keep()).
 *
 * Promise: a view of a region can be used whatever became of the region and its runtime; a buffer is held for as long as a peer
 * could touch it. tests/python/test_rma.py holds us to it. */
#include "handle.h"

#include <string.h>
#include <sys/mman.h>

#define SELF region_t *r = (region_t *)self

typedef struct region {
    weftpy_handle_t h;
    PyObject *memory; /* capsule of memory_t */
    PyObject *notify;
    PyObject *name;
    uint8_t *base;
    uint64_t len;
    Py_ssize_t exports;
    bool readonly, device;
} region_t;

typedef struct memory {
    weftpy_buf_t buf;
    void *map; /* kept by weft_region_keep() */
    size_t map_n;
    region_t *owner; /* gets the notifications; NULL: it is gone */
} memory_t;

static const weftpy_handle_kind_t kind;

static memory_t *memory_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, NULL);
}

static void memory_end(PyObject *capsule)
{
    memory_t *m = memory_of(capsule);
    weftpy_buf_release(&m->buf);
    if (m->map)
        munmap(m->map, m->map_n);
    PyMem_Free(m);
}

/* --- rights, as letters -------------------------------------------------------------------------------------------------- */

/* "rwa"; arg NULL or None: it stays as it is. */
static int rights_of(weftpy_state_t *st, PyObject *arg, const char *name, uint32_t *rights_out)
{
    uint32_t rights = 0;
    if (!arg || arg == Py_None)
        return 0;
    const char *text = PyUnicode_Check(arg) ? PyUnicode_AsUTF8AndSize(arg, NULL) : "";
    if (!text)
        return -1;
    for (; *text; text++) {
        uint32_t one = *text == 'r' ? WEFT_RMA_READ : *text == 'w' ? WEFT_RMA_WRITE : *text == 'a' ? WEFT_RMA_ATOMIC : 0;
        rights = one ? rights | one : UINT32_MAX;
        if (!one)
            break;
    }
    if (!rights || rights == UINT32_MAX) {
        weftpy_raise_text(st, WEFT_ERR_INVALID, "%s is %R, and not made of the letters r (read), w (write) and a (atomics)", name,
                          arg);
        return -1;
    }
    *rights_out = rights;
    return 0;
}

PyObject *weftpy_rights_text(uint32_t rights)
{
    return PyUnicode_FromFormat("%s%s%s", rights & WEFT_RMA_READ ? "r" : "", rights & WEFT_RMA_WRITE ? "w" : "",
                                rights & WEFT_RMA_ATOMIC ? "a" : "");
}

/* --- the end ------------------------------------------------------------------------------------------------------------- */

struct linger {
    weft_op_t op;
    PyObject *memory;
};

/* In progress, with the GIL: of a runtime in a loop. */
static void lingered(weft_op_t *op, void *user)
{
    struct linger *l = user;
    Py_DECREF(l->memory);
    PyMem_Free(l);
}

/* Free the region, and hold its memory until that is complete. Sets no exception. */
static void free_and_hold(region_t *r, weft_region_t *of)
{
    weftpy_runtime_t *run = r->h.run;
    if (run->blocking && run->closing) { /* the runtime frees it */
        weftpy_runtime_hold(run, r->memory);
        return;
    }
    if (run->blocking && weftpy_inside) { /* nobody may wait inside of progress */
        weftpy_runtime_hold(run, r->memory);
        (void)weft_region_free(of, NULL);
        return;
    }
    if (run->blocking) {
        weft_op_t op = WEFT_OP_INIT;
        if (weft_region_free(of, &op) == WEFT_OK)
            weftpy_wait_through(run, &op);
        if (op.status) /* another thread closes the runtime; or this is a forked child */
            weftpy_runtime_hold(run, r->memory);
        return;
    }
    struct linger *l = PyMem_Calloc(1, sizeof *l);
    PyObject *memory = Py_NewRef(r->memory);
    if (l) {
        l->op.fn = lingered;
        l->op.user = l;
        l->memory = memory;
    }
    if (weft_region_free(of, l ? &l->op : NULL) && l) {
        Py_DECREF(memory);
        PyMem_Free(l);
    }
}

/* Before the free: stop the notifications, and let views keep the memory. */
static void detach(region_t *r, weft_region_t *of)
{
    memory_t *m = memory_of(r->memory);
    m->owner = NULL;
    if (r->exports && !m->buf.view.obj && weft_region_keep(of, &m->map, &m->map_n))
        m->map = NULL;
}

static void release_memory(region_t *r)
{
    if (!r->h.of && !r->exports)
        Py_CLEAR(r->memory);
}

static void let_go(weftpy_handle_t *h, void *of)
{
    region_t *r = (region_t *)h;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    detach(r, of);
    if (r->notify || memory_of(r->memory)->map || memory_of(r->memory)->buf.view.obj)
        free_and_hold(r, of);
    else
        weft_region_free(of, NULL);
    release_memory(r);
    PyErr_Restore(type, error, trace);
}

static PyObject *free_in_time(region_t *r, const weftpy_gives_t *gives, uint64_t timeout)
{
    if (!r->h.of || !r->h.run->rt)
        return weftpy_done(r->h.run, Py_NewRef(Py_None));
    weftpy_op_t *op = weftpy_handle_begin(&r->h, gives);
    if (!op)
        return NULL;
    weft_region_t *of = weftpy_handle_take(&r->h);
    detach(r, of);
    Py_DECREF(op->held);
    op->held = Py_NewRef(r->memory);
    op->op.timeout_ns = timeout;
    release_memory(r);
    return weftpy_op_posted(op, weft_region_free(of, &op->op));
}

static PyObject *close_it(weftpy_handle_t *h, const weftpy_gives_t *gives)
{
    return free_in_time((region_t *)h, gives, 0);
}

static const weftpy_handle_kind_t kind = {"the region", let_go, close_it};

static const weftpy_sig_t sig_free = {"free", 1, 0, 0, {N_timeout}};

static PyObject *free_method(FAST_ARGS)
{
    SELF;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(r->h.run->st, &sig_free, args, n, kwnames, &timeout))
        return NULL;
    return free_in_time(r, &weftpy_gives_none, timeout);
}

/* --- the beginning ------------------------------------------------------------------------------------------------------- */

/* In progress, with the GIL: only runtimes of a loop have functions to call. */
static void notified(weft_region_t *of, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    region_t *r = ((memory_t *)user)->owner;
    if (!r)
        return;
    weftpy_runtime_t *run = r->h.run;
    weftpy_endpoint_t *ep = weftpy_endpoint_find(run, from);
    PyObject *told = Py_BuildValue("(OKKKN)", (PyObject *)r, (unsigned long long)offset, (unsigned long long)len,
                                   (unsigned long long)value, ep ? (PyObject *)ep : Py_NewRef(Py_None));
    if (!told || weftpy_loop_call(run, r->notify, told))
        PyErr_WriteUnraisable((PyObject *)r);
    Py_XDECREF(told);
}

/* Is it a size, or an object with memory? Arrays have __index__ too, and numpy's numbers have the buffer protocol. */
static int is_size(PyObject *arg)
{
    return PyLong_Check(arg) || (PyIndex_Check(arg) && !PyObject_HasAttrString(arg, "__dlpack__") &&
                                 !PyObject_HasAttrString(arg, "__cuda_array_interface__"));
}

static int get_memory(region_t *r, memory_t *m, PyObject *arg, weft_region_opts_t *opts, bool said_rights)
{
    weftpy_state_t *st = r->h.run->st;
    if (is_size(arg))
        return weftpy_u64(arg, "memory", PY_SSIZE_T_MAX, &opts->len);
    if (opts->max_len) {
        weftpy_raise_text(st, WEFT_ERR_INVALID,
                          "a region over a buffer cannot grow: max_len is for memory that the library makes");
        return -1;
    }
    bool writes = !said_rights || opts->rights & (WEFT_RMA_WRITE | WEFT_RMA_ATOMIC);
    if (weftpy_buf_get(st, arg, writes, &m->buf)) {
        if (said_rights || !PyErr_ExceptionMatches(st->errors[-WEFT_ERR_INVALID]))
            return -1;
        /* expose read-only memory for reading; otherwise the second try fails too */
        PyErr_Clear();
        if (weftpy_buf_get(st, arg, false, &m->buf))
            return -1;
        writes = false;
        opts->rights = WEFT_RMA_READ;
    }
    opts->buf = m->buf.view.buf;
    opts->len = (uint64_t)m->buf.view.len;
    opts->kind = m->buf.kind;
    r->readonly = !writes;
    r->device = m->buf.kind && !(m->buf.kind->flags & WEFT_MEM_CPU);
    return 0;
}

static const weftpy_sig_t sig_region = {
    "region", 7, 1, 1, {N_memory, N_name, N_rights, N_name_rights, N_max_len, N_mapped, N_notify}};

static int region_opts(region_t *r, PyObject **arg, memory_t *m, weft_region_opts_t *opts)
{
    weftpy_state_t *st = r->h.run->st;
    int mapped = 1;
    bool said_rights = arg[2] && arg[2] != Py_None;
    if (rights_of(st, arg[2], "rights", &opts->rights) || rights_of(st, arg[3], "name_rights", &opts->name_rights) ||
        weftpy_u64(arg[4], "max_len", PY_SSIZE_T_MAX, &opts->max_len) || (arg[5] && (mapped = PyObject_IsTrue(arg[5])) < 0))
        return -1;
    if (arg[1] && arg[1] != Py_None) {
        Py_ssize_t len;
        if (!(opts->name = PyUnicode_AsUTF8AndSize(arg[1], &len)))
            return -1;
        if ((size_t)len != strlen(opts->name)) {
            weftpy_raise_text(st, WEFT_ERR_INVALID, "a name has no zero in it");
            return -1;
        }
        r->name = Py_NewRef(arg[1]);
    }
    if (arg[6] && arg[6] != Py_None) {
        if (!PyCallable_Check(arg[6])) {
            PyErr_SetString(PyExc_TypeError, "notify is a function of what was written, or None");
            return -1;
        }
        if (r->h.run->blocking) {
            weftpy_raise_text(st, WEFT_ERR_STATE,
                              "a blocking runtime has no loop that could call notify: have the writer send a message");
            return -1;
        }
        r->notify = Py_NewRef(arg[6]);
        opts->notify = notified;
        opts->user = m;
    }
    opts->unmapped = !mapped;
    return get_memory(r, m, arg[0], opts, said_rights);
}

PyObject *weftpy_region(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    PyObject *arg[7];
    weft_region_opts_t opts = WEFT_REGION_OPTS_INIT;
    weft_region_t *of;
    if (weftpy_args(run->st, &sig_region, args, n, kwnames, arg) || weftpy_runtime_check(run) || weftpy_loop_before_post(run))
        return NULL;
    region_t *r = weftpy_handle_new(run->st->region, run, NULL, &kind);
    memory_t *m = r ? PyMem_Calloc(1, sizeof *m) : NULL;
    if (r && !m)
        PyErr_NoMemory();
    if (!m || !(r->memory = PyCapsule_New(m, NULL, memory_end))) {
        PyMem_Free(m);
        Py_XDECREF((PyObject *)r);
        return NULL;
    }
    m->owner = r;
    if (region_opts(r, arg, m, &opts) || weftpy_runtime_check(run)) { /* check again: reading the arguments can run any code */
        Py_DECREF(r);
        return NULL;
    }
    weft_status_t status = weft_region_new(run->rt, &opts, &of);
    if (status) {
        weftpy_raise(run->st, status);
        Py_DECREF(r);
        return NULL;
    }
    r->h.of = of;
    r->base = weft_region_base(of);
    r->len = opts.len;
    return (PyObject *)r;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    SELF;
    Py_VISIT(r->notify);
    return weftpy_handle_traverse(self, visit, arg);
}

static int clear(PyObject *self)
{
    SELF;
    weftpy_handle_end(&r->h);
    Py_CLEAR(r->notify);
    return 0;
}

static void dealloc(PyObject *self)
{
    SELF;
    PyObject_GC_UnTrack(self);
    if (r->h.run)
        weftpy_handle_end(&r->h);
    Py_CLEAR(r->notify);
    Py_CLEAR(r->name);
    Py_CLEAR(r->memory);
    weftpy_handle_dealloc(self);
}

/* --- as a buffer --------------------------------------------------------------------------------------------------------- */

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    SELF;
    view->obj = NULL;
    if (!r->h.of || r->device) {
        PyErr_SetString(PyExc_BufferError,
                        r->h.of ? "the region is memory of a GPU, which the processor cannot touch" : "the region is closed");
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, r->base, (Py_ssize_t)r->len, r->readonly, flags))
        return -1;
    r->exports++;
    return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view)
{
    SELF;
    r->exports--;
    release_memory(r);
}

/* --- what it does -------------------------------------------------------------------------------------------------------- */

static const weftpy_sig_t sig_key = {"key", 4, 0, 1, {N_rights, N_offset, N_n, N_lifetime}};

static PyObject *key(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = r->h.run->st;
    PyObject *arg[4];
    weft_region_key_opts_t opts = WEFT_REGION_KEY_OPTS_INIT;
    char bytes[WEFT_REGION_KEY_MAX];
    size_t len = sizeof bytes;
    if (weftpy_args(st, &sig_key, args, n, kwnames, arg) || rights_of(st, arg[0], "rights", &opts.rights) ||
        weftpy_u64(arg[1], "offset", UINT64_MAX, &opts.offset) || weftpy_u64(arg[2], "n", UINT64_MAX, &opts.len) ||
        weftpy_ns(arg[3], "lifetime", &opts.lifetime_ns) || weftpy_handle_check(&r->h))
        return NULL;
    if (arg[2] && arg[2] != Py_None && !opts.len)
        return weftpy_raise_text(st, WEFT_ERR_INVALID, "n is 0: a region key is for one byte at least");
    weft_status_t status = weft_region_key(r->h.of, &opts, bytes, &len);
    return status ? weftpy_raise(st, status) : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len);
}

static const weftpy_sig_t sig_revoke = {"revoke", 1, 0, 0, {N_timeout}};

static weft_status_t post_revoke(void *of, weft_op_t *op)
{
    return weft_region_revoke(of, op);
}

static PyObject *revoke_it(FAST_ARGS)
{
    return weftpy_handle_simple((weftpy_handle_t *)self, post_revoke, &sig_revoke, args, n, kwnames);
}

static const weftpy_sig_t sig_extend = {"extend", 1, 1, 1, {N_size}};

static PyObject *extend(FAST_ARGS)
{
    SELF;
    PyObject *arg[1];
    uint64_t size = 0;
    if (weftpy_args(r->h.run->st, &sig_extend, args, n, kwnames, arg) || weftpy_u64(arg[0], "size", PY_SSIZE_T_MAX, &size) ||
        weftpy_handle_check(&r->h))
        return NULL;
    weft_status_t status = weft_region_extend(r->h.of, size);
    if (status)
        return weftpy_raise(r->h.run->st, status);
    r->len = size;
    Py_RETURN_NONE;
}

static PyObject *get_info(PyObject *self, void *unused)
{
    SELF;
    weft_region_info_t i = WEFT_REGION_INFO_INIT;
    if (weftpy_handle_check(&r->h))
        return NULL;
    weft_region_get_info(r->h.of, &i);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "len", (unsigned long long)i.len, "max_len",
                         (unsigned long long)i.max_len, "generation", (unsigned long long)i.generation, "attached",
                         (unsigned long long)i.attached, "mapped", (unsigned long long)i.mapped, "reads",
                         (unsigned long long)i.reads, "writes", (unsigned long long)i.writes, "atomics",
                         (unsigned long long)i.atomics, "bytes_read", (unsigned long long)i.bytes_read, "bytes_written",
                         (unsigned long long)i.bytes_written, "refused", (unsigned long long)i.refused);
}

static PyObject *get_name(PyObject *self, void *unused)
{
    SELF;
    return Py_NewRef(r->name ? r->name : Py_None);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(((region_t *)self)->len);
}

static Py_ssize_t length(PyObject *self)
{
    return (Py_ssize_t)((region_t *)self)->len;
}

static PyObject *repr(PyObject *self)
{
    SELF;
    return PyUnicode_FromFormat("<weft.Region of %llu bytes%s>", (unsigned long long)r->len, r->h.of ? "" : ", closed");
}

static PyMethodDef methods[] = {
    {"key", FAST(key),
     DOC("key($self, rights=None, *, offset=0, n=None, lifetime=None)",
         "Bytes that let their bearer attach this part of it. A secret.")},
    {"revoke", FAST(revoke_it),
     DOC("revoke($self, *, timeout=None)",
         "Make all its keys and remotes so far stale. Gives None when no access of theirs is under way.")},
    {"extend", FAST(extend),
     DOC("extend($self, size)", "Make it longer, up to max_len. Keys keep the length they were given with.")},
    {"free", FAST(free_method),
     DOC("free($self, *, timeout=None)", "Revoke it and let go of the memory, which views still have.")},
    WEFTPY_HANDLE_WITH,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"name", get_name, NULL, "The name that peers find it by, or None.", NULL},
    {"nbytes", get_nbytes, NULL, "Its length in bytes.", NULL},
    {"closed", weftpy_handle_closed, NULL, "True once it was freed, or its runtime closed.", NULL},
    {"info", get_info, NULL, "Who has attached it and what they did, as a dict. Mapped accesses happen without us.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Memory of ours that peers may read and write. It has the buffer protocol."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, weftpy_handle_members},
    {Py_sq_length, length},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {0, NULL},
};

PyType_Spec weftpy_region_spec = WEFTPY_SPEC("Region", region_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
