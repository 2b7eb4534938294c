/* _core/transport_buffer.c - the buffer of a transport: reg() and buf; and _TransportBuffer, its memory, held for as long as
 * somebody has a view of it.
 *
 * As in libd a second reg() keeps the buffer: arrays over it still see what is read, and what is in it stays. If it is to have
 * fewer bytes than before, buf has so many and calls are checked against them. If it is to have more, the memory has to be
 * another one; then the bytes are copied, and nobody else may use the old memory, since they would no longer see what is read.
 * libd gives out a view beyond the end of its memory there.
 *
 * The memory is counted by the library, and may outlive the transport, its action and the runtime.
 *
 * Promise: a view can be used whatever became of the transport, and shows what is read for as long as the transport has a buffer.
 * tests/python/test_disagg_buffers.py and test_scad_buffers.py hold us to it. */
#include "elements.h"

#include <string.h>

#define SELF weftpy_transport_t *t = (weftpy_transport_t *)self

/* --- the owner of the memory that views show ------------------------------------------------------------------------------ */

typedef struct transport_buffer {
    PyObject_HEAD weft_buffer_t *of;
    size_t len;
} transport_buffer_t;

static PyObject *exporter_new(weftpy_state_t *st, weft_buffer_t *buffer, size_t len)
{
    transport_buffer_t *b = (transport_buffer_t *)PyType_GenericAlloc(st->transport_buffer, 0);
    if (b) {
        weft_buffer_hold(buffer);
        b->of = buffer;
        b->len = len;
    }
    return (PyObject *)b;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    static char nothing[1];
    transport_buffer_t *b = (transport_buffer_t *)self;
    return PyBuffer_FillInfo(view, self, b->len ? weft_buffer_base(b->of) : nothing, (Py_ssize_t)b->len, 0, flags);
}

static void dealloc(PyObject *self)
{
    weft_buffer_drop(((transport_buffer_t *)self)->of);
    weftpy_free(self);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "The memory that is registered with a transport."},
    {Py_tp_dealloc, dealloc},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

PyType_Spec weftpy_transport_buffer_spec = WEFTPY_SPEC("_TransportBuffer", transport_buffer_t, WEFTPY_NOT_CALLED, slots);

/* --- reg ------------------------------------------------------------------------------------------------------------------ */

/* Is `buffer`, which the caller holds, used by others than this transport: by views, other transports, operations under way? */
static bool used_by_others(weftpy_transport_t *t, const weft_buffer_t *buffer)
{
    if (t->exporter && Py_REFCNT(t->exporter) == 1) /* there is no view of it */
        Py_CLEAR(t->exporter);
    return weft_buffer_holds(buffer) > 2; /* the transport, and the caller */
}

/* A buffer of its own: the one that is there, or a longer one with what is in it. */
static PyObject *reg_own(weftpy_transport_t *t, uint64_t size)
{
    weftpy_state_t *st = t->action->h.run->st;
    weft_buffer_t *was = t->server ? NULL : weft_transport_buffer(t->of); /* held */
    PyObject *result = NULL;
    weft_status_t status;
    if (was && weft_buffer_len(was) >= size) {
        result = Py_NewRef(Py_None);
    } else if (was && used_by_others(t, was)) {
        PyErr_Format(PyExc_BufferError,
                     "the buffer of the transport %U has %zu bytes and is to have %llu, but a view of it (buf, a slice of it, an "
                     "array over it), another transport or an operation uses it, and would not see what is read from then on: "
                     "let go of those first, or register the larger size at first",
                     t->name, weft_buffer_len(was), (unsigned long long)size);
    } else if ((status = weft_transport_reg(t->of, size, NULL))) {
        weftpy_raise(st, status);
    } else {
        if (was && weft_buffer_len(was))
            memcpy(weft_transport_buf(t->of, NULL), weft_buffer_base(was), weft_buffer_len(was));
        result = Py_NewRef(Py_None);
    }
    weft_buffer_drop(was);
    if (result)
        t->registered = size;
    return result;
}

/* The buffer of another transport. */
static PyObject *reg_shared(weftpy_transport_t *t, uint64_t size, weftpy_transport_t *other)
{
    weftpy_state_t *st = t->action->h.run->st;
    if (!other->server && weft_transport_buf(other->of, NULL) && size > other->registered)
        return weftpy_raise_text(st, WEFT_ERR_RANGE, "the buffer of %U has %llu bytes, and %U is to have %llu", other->name,
                                 (unsigned long long)other->registered, t->name, (unsigned long long)size);
    weft_status_t status = weft_transport_reg(t->of, size, other->of);
    if (status == WEFT_ERR_STATE && !weft_transport_buf(other->of, NULL)) {
        PyErr_Format(PyExc_MemoryError,
                     "no buffer is registered with the transport %U, so that there is none to share: call its reg(size) first",
                     other->name);
        return NULL;
    }
    if (status)
        return weftpy_raise(st, status);
    t->registered = size;
    Py_RETURN_NONE;
}

static const weftpy_sig_t sig_reg = {"reg", 2, 1, 2, {N_size, N_trans}};

PyObject *weftpy_transport_reg(FAST_ARGS)
{
    SELF;
    weftpy_state_t *st = t->action->h.run->st;
    PyObject *arg[2];
    uint64_t size = 0;
    weftpy_transport_t *other = NULL;
    if (weftpy_args(st, &sig_reg, args, n, kwnames, arg) || weftpy_bytes(arg[0], "size", &size))
        return NULL;
    if (arg[1] && arg[1] != Py_None) {
        if (!PyObject_TypeCheck(arg[1], st->transport)) {
            PyErr_Format(PyExc_TypeError, "trans is a transport whose buffer is to be shared, and %R is none", arg[1]);
            return NULL;
        }
        other = (weftpy_transport_t *)arg[1];
        if (weftpy_transport_check(other))
            return NULL;
    }
    if (weftpy_transport_check(t) || weftpy_transport_released(t))
        return NULL;
    if (size > PY_SSIZE_T_MAX)
        return weftpy_raise_text(st, WEFT_ERR_NOMEM, "there is no memory for a buffer of so many bytes");
    return other && other != t ? reg_shared(t, size, other) : reg_own(t, size);
}

bool weftpy_transport_outside(weftpy_transport_t *t, uint64_t size, uint64_t offset)
{
    size_t len = 0;
    if ((size <= t->registered && offset <= t->registered - size) || !t->action->h.of || !t->action->h.run->rt)
        return false;
    weft_transport_buf(t->of, &len);
    if (len == t->registered || size > len || offset > len - size)
        return false; /* the library refuses it, and knows what to say */
    weftpy_raise_text(t->action->h.run->st, WEFT_ERR_RANGE,
                      "%llu bytes at %llu are outside of the buffer of the transport %U, with which %llu bytes are registered",
                      (unsigned long long)size, (unsigned long long)offset, t->name, (unsigned long long)t->registered);
    return true;
}

/* --- buf ------------------------------------------------------------------------------------------------------------------ */

/* The object that owns the memory of the registered buffer: a new reference. */
static PyObject *exporter(weftpy_transport_t *t)
{
    weft_buffer_t *now = weft_transport_buffer(t->of); /* held */
    if (!now && weftpy_transport_released(t))
        return NULL;
    if (!now) {
        PyErr_Format(PyExc_MemoryError,
                     t->server ? "the transport %U has no memory to serve yet: it waits to be told how much"
                               : "no buffer is registered with the transport %U: call reg(size) first",
                     t->name);
        return NULL;
    }
    size_t len = weft_buffer_len(now);
    if (!t->server && t->registered < len)
        len = t->registered;
    /* our exporter holds its buffer, so another buffer cannot have the same address */
    if (!t->exporter || t->exported != now || t->exported_len != len) {
        PyObject *made = exporter_new(t->action->h.run->st, now, len), *before = t->exporter;
        if (made) {
            t->exporter = made;
            t->exported = now;
            t->exported_len = len;
            Py_XDECREF(before);
        }
        weft_buffer_drop(now);
        return made ? Py_NewRef(made) : NULL;
    }
    weft_buffer_drop(now);
    return Py_NewRef(t->exporter);
}

PyObject *weftpy_transport_get_buf(PyObject *self, void *unused)
{
    SELF;
    if (weftpy_transport_check(t))
        return NULL;
    PyObject *of = exporter(t), *view = of ? PyMemoryView_FromObject(of) : NULL;
    Py_XDECREF(of);
    return weftpy_buffer_view_new(t->action->h.run->st->buffer_view, view);
}
