/* _core/order.c - the streams of a GPU in which an operation takes its turn: those of its buffers, and the one of `stream=`.
 *
 * An operation begins behind what these streams were given until the post, and with `stream=` that stream waits for its end. One
 * stream is the library's to follow (op->streams). Behind several an operation comes by way of a stream of our own, which waits
 * for an event in each of them; and so it does behind the default stream of another context than the posting thread's, since the
 * number of a default stream means that of the current context. Nothing here waits for a GPU. A settle could not take its place:
 * it would also wait for streams that wait for operations, which may need this thread to go on.
 *
 * The driver is the one that the library has loaded.
 *
 * Promise: whatever `stream=` is, an exception at worst, unless it is a number that is no stream: the driver believes those.
 * tests/python/paper_cuda.py holds us to it. */
#include "core.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

enum { LEGACY = 1, PER_THREAD = 2 };                                        /* handles of default streams */
enum { POINTER_CONTEXT = 1, STREAM_NON_BLOCKING = 1, EVENT_NO_TIMING = 2 }; /* CUDA's numbers */

#define CALLS(X) \
    X(get_current, "cuCtxGetCurrent", (void **ctx_out)) \
    X(push, "cuCtxPushCurrent_v2", (void *ctx)) \
    X(pop, "cuCtxPopCurrent_v2", (void **ctx_out)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (void **ctx_out, int device)) \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    X(attribute, "cuPointerGetAttribute", (void *out, int attribute, uint64_t at)) \
    X(stream_context, "cuStreamGetCtx", (void *stream, void **ctx_out)) \
    X(stream_new, "cuStreamCreate", (void **stream_out, unsigned flags)) \
    X(stream_free, "cuStreamDestroy_v2", (void *stream)) \
    X(stream_wait, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags)) \
    X(event_new, "cuEventCreate", (void **event_out, unsigned flags)) \
    X(event_record, "cuEventRecord", (void *event, void *stream)) \
    X(event_free, "cuEventDestroy_v2", (void *event)) \
    X(error_name, "cuGetErrorName", (int error, const char **name_out))

static struct {
#define MEMBER(member, symbol, args) int(*member) args;
    CALLS(MEMBER)
#undef MEMBER
    bool loaded;
} cu;

/* Is there a driver? -1 with the library's sentence. */
static int load(weftpy_state_t *st)
{
    if (!weft_mem_kind_find("cuda")) { /* also in a child of the process that began with it */
        weftpy_raise(st, WEFT_ERR_UNSUPPORTED);
        return -1;
    }
    if (cu.loaded)
        return 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *found;
    if (library)
        dlclose(library); /* it stays: Weft has it */
#define TAKE(member, symbol, args) \
    if (!library || !(found = dlsym(library, symbol))) { \
        weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED, "the CUDA driver of this machine has no %s", symbol); \
        return -1; \
    } \
    memcpy(&cu.member, &found, sizeof found);
    CALLS(TAKE)
#undef TAKE
    cu.loaded = true;
    return 0;
}

static int fail(weftpy_state_t *st, int error)
{
    const char *name = NULL;
    if (cu.error_name(error, &name) || !name)
        name = "an error without a name";
    /* CUDA_ERROR_INVALID_VALUE, _INVALID_CONTEXT, _INVALID_HANDLE, _CONTEXT_IS_DESTROYED: as for op.streams of the library */
    if (error == 1 || error == 201 || error == 400 || error == 709)
        weftpy_raise_text(st, WEFT_ERR_INVALID, "stream= or a buffer names a stream that CUDA does not know: %s (%d)", name,
                          error);
    else
        weftpy_raise_text(st, WEFT_ERR_SYSTEM, "an operation in a stream of a GPU: %s (%d)", name, error);
    return -1;
}

/* --- what stream= may be -------------------------------------------------------------------------------------------------- */

int weftpy_stream_number(PyObject *number, uint64_t *handle_out)
{
    if (PyBool_Check(number) || !PyIndex_Check(number)) {
        PyErr_Format(PyExc_TypeError, "a stream is a %R, and its handle should be an int", (PyObject *)Py_TYPE(number));
        return -1;
    }
    return weftpy_u64(number, "stream", UINTPTR_MAX, handle_out);
}

/* An attribute: a new reference; NULL without an exception: it has none. */
static PyObject *has(PyObject *object, const char *name)
{
    PyObject *found = PyObject_GetAttrString(object, name);
    if (!found && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return found;
}

/* The handle that an object says, which may be 0 for the default stream: a new reference, or NULL with an exception. */
static PyObject *said_by(weftpy_state_t *st, PyObject *object)
{
    static const char *const names[] = {"__cuda_stream__", "cuda_stream", "ptr"};
    PyObject *found = NULL, *pair, *handle = NULL;
    int i = 0;
    for (; i < 3 && !found && !PyErr_Occurred() && !PyType_Check(object); i++)
        found = has(object, names[i]);
    if (i == 3 && found && PyObject_HasAttrString(object, "__dlpack__"))
        Py_CLEAR(found); /* an array: its ptr is that of its memory */
    if (!found) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError,
                         "stream is a %R, and should be a stream: an object with __cuda_stream__(), cuda_stream or ptr, or a "
                         "handle as an int",
                         (PyObject *)Py_TYPE(object));
        return NULL;
    }
    if (i > 1)
        return found;
    pair = PyObject_CallNoArgs(found);
    Py_DECREF(found);
    uint64_t version = 0;
    if (pair && (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2))
        PyErr_Format(PyExc_TypeError, "__cuda_stream__() of a %R gives %R, and not a version and a handle",
                     (PyObject *)Py_TYPE(object), pair);
    else if (pair && !weftpy_u64(PyTuple_GetItem(pair, 0), "the version of __cuda_stream__()", UINT64_MAX, &version)) {
        if (version)
            weftpy_raise_text(st, WEFT_ERR_UNSUPPORTED, "__cuda_stream__() of a %R is of version %llu, and we know version 0",
                              (PyObject *)Py_TYPE(object), (unsigned long long)version);
        else
            handle = Py_NewRef(PyTuple_GetItem(pair, 1));
    }
    Py_XDECREF(pair);
    return handle;
}

static int read_stream(weftpy_state_t *st, PyObject *stream, void **out)
{
    uint64_t handle = 0;
    if (PyBool_Check(stream) || PyIndex_Check(stream)) {
        if (weftpy_stream_number(stream, &handle))
            return -1;
        if (!handle) {
            weftpy_raise_text(st, WEFT_ERR_INVALID,
                              "stream is 0, which may be either default stream: it is 1 for the legacy one, 2 for this thread's, "
                              "or a handle");
            return -1;
        }
    } else {
        PyObject *said = said_by(st, stream);
        int failed = !said || weftpy_stream_number(said, &handle);
        Py_XDECREF(said);
        if (failed)
            return -1;
        if (!handle) /* packages are built for the legacy default stream, and call it 0 */
            handle = LEGACY;
    }
    *out = (void *)(uintptr_t)handle;
    return 0;
}

/* --- streams together ------------------------------------------------------------------------------------------------------ */

static bool is_default(const void *stream)
{
    return (uintptr_t)stream <= PER_THREAD;
}

/* The context that memory belongs to: that of its device, if it is from a memory pool or was mapped by hand. */
static int context_of(const void *at, void **ctx_out)
{
    int device, r = cu.attribute(ctx_out, POINTER_CONTEXT, (uint64_t)(uintptr_t)at);
    if ((!r && *ctx_out) || (device = weft_mem_device(at)) < 0)
        return r;
    r = cu.primary_retain(ctx_out, device);
    if (!r)
        cu.primary_release(device); /* the memory's owner keeps it */
    return r;
}

static void pop(void)
{
    void *ctx;
    cu.pop(&ctx);
}

/* Be in the context of a stream until pop(); of a default stream it is ctx. */
static int enter(void *stream, void *ctx)
{
    int r = 0;
    if (!is_default(stream))
        r = cu.stream_context(stream, &ctx);
    else if (!ctx) /* a thread without a context: CUDA begins with that of device 0, too, and keeps it */
        r = cu.primary_retain(&ctx, 0);
    return r ? r : cu.push(ctx);
}

/* Have our own stream come behind what another was given so far. */
static int join(weftpy_order_t *o, void *stream, void *ctx)
{
    void *event = NULL;
    int r = enter(stream, ctx);
    if (r)
        return r;
    r = cu.event_new(&event, EVENT_NO_TIMING);
    if (!r)
        r = cu.event_record(event, stream);
    if (!r && !o->join) {
        r = cu.stream_new(&o->join, STREAM_NON_BLOCKING);
        o->pid = getpid();
    }
    pop();
    if (!r && !(r = enter(o->join, NULL))) {
        r = cu.stream_wait(o->join, event, 0);
        pop();
    }
    if (event)
        cu.event_free(event); /* the wait does not need it any more */
    return r;
}

/* Until there is a second one, the first is the library's to follow. */
static int join_first(weftpy_order_t *o)
{
    return o->n && !o->join ? join(o, o->seen[0].stream, o->seen[0].context) : 0;
}

int weftpy_order_add(weftpy_state_t *st, weftpy_order_t *o, void *stream, const void *at)
{
    void *current = NULL, *ctx = NULL;
    int r = 0;
    if (load(st))
        return -1;
    if (is_default(stream)) {
        r = cu.get_current(&current);
        ctx = current;
        if (!r && at)
            r = context_of(at, &ctx);
    }
    for (unsigned i = 0; i < o->n && !r && i < WEFTPY_STREAMS_SEEN; i++)
        if (o->seen[i].stream == stream && o->seen[i].context == ctx)
            return 0;
    if (!r && (o->n || ctx != current)) {
        r = join_first(o);
        if (!r)
            r = join(o, stream, ctx);
    }
    if (r)
        return fail(st, r);
    if (o->n < WEFTPY_STREAMS_SEEN) {
        o->seen[o->n].stream = stream;
        o->seen[o->n].context = ctx;
    }
    o->n++;
    return 0;
}

int weftpy_order_given(weftpy_state_t *st, weftpy_order_t *o, PyObject *given)
{
    void *stream;
    if (read_stream(st, given, &stream) || weftpy_order_add(st, o, stream, NULL))
        return -1;
    o->streams.after = stream;
    return 0;
}

int weftpy_order_streams(weftpy_state_t *st, weftpy_order_t *o, bool shared, weft_op_t *op)
{
    /* The stream that the first of many holds back is not to hold back the next one. */
    int r = shared && o->streams.after ? join_first(o) : 0;
    if (r)
        return fail(st, r);
    o->streams.size = sizeof o->streams;
    o->streams.before = o->join ? o->join : o->seen[0].stream;
    op->streams = &o->streams;
    return 0;
}

void weftpy_order_free(weftpy_order_t *o)
{
    if (o->join && o->pid == getpid()) /* what it was given is done all the same */
        cu.stream_free(o->join);
    memset(o, 0, sizeof *o);
}

int weftpy_buf_get_ordered(weftpy_state_t *st, PyObject *object, bool writable, weftpy_buf_t *buf, weftpy_order_t *o,
                           weft_op_t *op)
{
    if (!weftpy_buf_get_in(st, object, writable, o, buf)) {
        if (!weftpy_order_set(st, o, false, op))
            return 0;
        weftpy_buf_release(buf);
    }
    weftpy_order_release(o);
    return -1;
}
