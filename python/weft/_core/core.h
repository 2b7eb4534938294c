/* _core/core.h - what the files of the extension share: the module's state, the objects, and who does what to them.
 *
 * The extension is one binary for CPython 3.11 and later (the limited API; buffers are in it from there on), and another one for
 * 3.10: types are made from specs, and what they share is in the module's state, of which every object has a pointer; looking it
 * up for each call would cost more than the call.
 *
 * Threads: everything runs under the GIL. A runtime of an event loop is driven by that loop's thread alone, so its callbacks have
 * the GIL too; a blocking runtime is driven without it, by a thread for each of its shards: what happens there is written down
 * (inbox.c, closed_endpoints.c, completion_fd.c), under locks or with atomics, for threads that have it. */
#ifndef WEFT_PY_CORE_H
#define WEFT_PY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

#include "order.h"

#if PY_VERSION_HEX < 0x030B0000
#define PyType_GetName(type)     PyObject_GetAttrString((PyObject *)(type), "__name__")
#define PyType_GetQualName(type) PyObject_GetAttrString((PyObject *)(type), "__qualname__")
#endif

typedef struct weftpy_state weftpy_state_t;
typedef struct weftpy_runtime weftpy_runtime_t;
typedef struct weftpy_endpoint weftpy_endpoint_t;
typedef struct weftpy_op weftpy_op_t;

/* --- how types and methods are written ------------------------------------------------------------------------------------ */

#define FAST_ARGS PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames
#define FAST(fn) (PyCFunction)(void (*)(void))(fn), METH_FASTCALL | METH_KEYWORDS
#define WITHOUT_NAMES(fn) (PyCFunction)(void (*)(void))(fn), METH_FASTCALL

/* A docstring as inspect.signature() and help() read it. In the signature $self stands for the object. */
#define DOC(signature, text) signature "\n--\n\n" text

enum { WEFTPY_GC = Py_TPFLAGS_HAVE_GC, WEFTPY_BASE = Py_TPFLAGS_BASETYPE, WEFTPY_NOT_CALLED = Py_TPFLAGS_DISALLOW_INSTANTIATION };
#define WEFTPY_SPEC(type, object_t, more_flags, its_slots) \
    {.name = "weft._core." type, .basicsize = sizeof(object_t), .flags = Py_TPFLAGS_DEFAULT | (more_flags), .slots = (its_slots)}

/* Every type of the module: its field in the state, and its spec, weftpy_NAME_spec. */
#define WEFTPY_TYPE_LIST(X) \
    X(runtime) X(endpoint) X(listener) X(op) X(message) X(blocking_endpoint) X(blocking_listener) X(owned) X(claim) X(tensor) \
    X(service) X(request) X(client) X(link) X(method) X(call) X(stream) X(item) X(registry) X(watch) X(wait) X(region) X(remote) \
    X(memory) X(store_server) X(store) X(block) X(mirror) X(action) X(transport) X(memory_element) X(transport_buffer) \
    X(buffer_view) X(awaited) X(completion_fd) X(device_view)
#define WEFTPY_SPEC_DECLARE(type) extern PyType_Spec weftpy_##type##_spec;
WEFTPY_TYPE_LIST(WEFTPY_SPEC_DECLARE)

/* --- names of arguments -------------------------------------------------------------------------------------------------- */

/* Interned once, so keywords are compared by address. */
#define WEFTPY_NAME_LIST(X) \
    X(buffer) X(buffers) X(tag) X(mask) X(timeout) X(max_len) X(uri) X(source) X(handler) X(id) X(header) X(context) X(msg) \
    X(action) X(type) X(durl) X(spare) X(named) X(mirrored) X(addr) X(trans) X(expected) X(desired) X(runtime) X(name) \
    X(backlog) X(reason) X(callback) X(confirm) X(urgent) X(copy) X(address) X(shared) X(retry) \
    X(code) X(message) X(category) X(value) X(registry) X(signature) X(function) X(number) X(fetch) X(peer) \
    X(once) X(fresh) X(into) X(service) X(instance) X(calls) X(return_exceptions) X(load) X(data) X(lease) \
    X(memory) X(rights) X(name_rights) X(mapped) X(notify) X(offset) X(n) X(lifetime) X(size) X(key) X(path) X(width) X(compare) \
    X(items) X(client_bytes) X(client_blocks) X(blocks) X(clients) X(renew) X(prefix) X(replace) X(stores) X(store) \
    X(write) X(force) \
    X(checksums) X(stream) X(serial) X(tls)
typedef enum weftpy_name {
#define WEFTPY_NAME_ENUM(name) N_##name,
    WEFTPY_NAME_LIST(WEFTPY_NAME_ENUM)
#undef WEFTPY_NAME_ENUM
    WEFTPY_NAMES
} weftpy_name_t;

enum { WEFTPY_ARGS_MOST = 14, WEFTPY_STATUSES = 40, WEFTPY_OPS_KEPT = 1024 };

/* The signature of a function: its arguments in order, how many are required, and how many may be positional. */
typedef struct weftpy_sig {
    const char *fn;
    uint8_t n, required, unnamed;
    uint8_t names[WEFTPY_ARGS_MOST];
} weftpy_sig_t;

/* --- the module ---------------------------------------------------------------------------------------------------------- */

/* Other objects of the module. */
#define WEFTPY_OBJECT_LIST(X) \
    X(error)        /* WeftError */ \
    X(s_run)        /* "run" */ \
    X(begin_awaited)        /* begin() of weft._awaited, after its first use */ \
    X(entry)        /* the package's class for registry entries, after its first use */ \
    /* from asyncio and contextvars, after the first runtime in an event loop: see weftpy_asyncio() */ \
    X(cancelled_error) X(invalid_state_error) X(task) X(get_running_loop) X(copy_context)

struct weftpy_state {
#define WEFTPY_TYPE_FIELD(type) PyTypeObject *type;
    WEFTPY_TYPE_LIST(WEFTPY_TYPE_FIELD)
#define WEFTPY_OBJECT_FIELD(object) PyObject *object;
    WEFTPY_OBJECT_LIST(WEFTPY_OBJECT_FIELD)
    PyObject *errors[WEFTPY_STATUSES];  /* by the negated status; [0] is not used */
    PyObject *names[WEFTPY_NAMES];
    weftpy_op_t *ops;                   /* memory of completed operations, for the next ones */
    unsigned ops_kept;
};

weftpy_state_t *weftpy_state_of(PyTypeObject *type);
/* import what we need of asyncio; for programs without a loop the import would cost more than all of ours */
int weftpy_asyncio(weftpy_state_t *st);

/* errors.c: raise the exception of a status. They return NULL or -1, so a caller can return the result. */
int weftpy_errors_init(weftpy_state_t *st, PyObject *module);
PyObject *weftpy_raise(weftpy_state_t *st, weft_status_t status);               /* for a call: with weft_last_error() */
PyObject *weftpy_raise_op(weftpy_state_t *st, const weft_op_t *op);             /* for an operation that ended with a failure */
PyObject *weftpy_raise_text(weftpy_state_t *st, weft_status_t status, const char *format, ...);
PyObject *weftpy_error_class(weftpy_state_t *st, weft_status_t status);         /* borrowed */

/* callerror.c: raise the exception of a failed RPC, with the details of its reply */
int weftpy_call_error_init(weftpy_state_t *st);
PyObject *weftpy_raise_reply(weftpy_state_t *st, weft_status_t status, const weft_reply_t *reply);

PyObject *weftpy_itself(PyObject *self, PyObject *unused); /* args.c: __enter__ */
/* args.c: the last step of a dealloc: free the memory, and drop the type */
void weftpy_free(PyObject *self);

/* args.c: read arguments into out[sig->n], borrowed, NULL where not given; convert numbers to C. -1 with an exception. */
int weftpy_args(weftpy_state_t *st, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                PyObject **out);
/* The same for a function that takes nothing but a timeout. */
int weftpy_args_timeout(weftpy_state_t *st, const weftpy_sig_t *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                        uint64_t *ns_out);
int weftpy_u64(PyObject *arg, const char *what, uint64_t most, uint64_t *out);  /* arg NULL or None: *out is unchanged */
typedef struct weftpy_count {
    const char *name;
    uint64_t value;
} weftpy_count_t;
PyObject *weftpy_counts(const weftpy_count_t *rows, size_t n);                  /* as a dict */
/* text without a NUL, borrowed; NULL: an exception */
const char *weftpy_str(PyObject *arg, const char *what);
/* The files of a tuple that weft._tls.files() made, for as long as it lives: 1; None or no argument: 0; -1: an error is set. */
int weftpy_tls(PyObject *arg, weft_tls_opts_t *out);
/* text of the library or of a peer; NULL is "" */
PyObject *weftpy_text(const char *text);
int weftpy_ns(PyObject *arg, const char *what, uint64_t *ns_out);               /* seconds to ns; NULL or None: *ns_out stays */

/* --- buffers ------------------------------------------------------------------------------------------------------------- */

/* Memory of an object, held until it is released: the pointer, the length, and the kind of memory (NULL: the library checks). */
typedef struct weftpy_buf {
    Py_buffer view; /* view.obj NULL: not held */
    const weft_mem_kind_t *kind;
} weftpy_buf_t;

/* Get the memory of an object. Writable: it will be written to. The streams that it has to come behind are waited for. */
int weftpy_buf_get(weftpy_state_t *st, PyObject *object, bool writable, weftpy_buf_t *out);
/* The same for an operation that comes behind these streams: they are added to the order. With order NULL they are waited for. */
int weftpy_buf_get_in(weftpy_state_t *st, PyObject *object, bool writable, weftpy_order_t *order, weftpy_buf_t *out);
/* The same for the only buffer of an operation, which is given its streams. -1: neither buffer nor order hold anything. */
int weftpy_buf_get_ordered(weftpy_state_t *st, PyObject *object, bool writable, weftpy_buf_t *buf, weftpy_order_t *order,
                           weft_op_t *op);
static inline void weftpy_buf_release(weftpy_buf_t *buf)
{
    if (buf->view.obj)
        PyBuffer_Release(&buf->view);
}

/* --- runtimes ------------------------------------------------------------------------------------------------------------ */

typedef struct weftpy_message weftpy_message_t;
typedef struct weftpy_claim weftpy_claim_t;
typedef struct weftpy_closed_eps weftpy_closed_eps_t;
typedef struct weftpy_handle weftpy_handle_t;

/* An object that holds something of the library that must end before the runtime. leave() is called once when the runtime closes,
 * with the GIL, unless the object has left before. */
typedef struct weftpy_guest {
    void (*leave)(struct weftpy_guest *guest);
    struct weftpy_guest *next, **before; /* in run->guests, or those of a registry; before NULL: in none */
} weftpy_guest_t;

struct weftpy_runtime {
    PyObject_HEAD
    weftpy_state_t *st;
    weft_runtime_t *rt;             /* NULL: closed */
    PyObject *weakrefs;
    PyObject *endpoints;            /* id: weak reference to the Endpoint */
    PyObject *handlers;             /* id: function for active messages */
    weftpy_message_t *messages;     /* objects that hold something of the runtime */
    weftpy_guest_t *guests;
    weftpy_handle_t *handles;       /* the same for regions, remotes and the like: see handle.c */
    PyObject *afterwards;           /* list of objects that are held until it is closed, or NULL */
    weftpy_claim_t *claims;         /* and so do these */
    weftpy_closed_eps_t *closed_eps;            /* for a blocking runtime: endpoints that have ended, see closed_endpoints.c */
    bool blocking;                  /* there is no event loop: calls wait */
    bool caller;                    /* only callers drive it */
    bool closing;
    unsigned driving;               /* inside weft_runtime_progress(), with the GIL: code that runs there must not close it */
    int pid;                        /* the process that opened it */
    struct weftpy_waiter *waiters;  /* threads in weftpy_wait() */

    /* the next members are for a runtime in an event loop: see loop.c */
    PyObject *loop, *call_later, *call_soon, *soon_args, *soon_kw, *soon, *ready, *timer;
    /* list of (function, argument) for the next turn; (function, argument, None): also after the close */
    PyObject *calls;
    weftpy_op_t *woken, **woken_end; /* complete, and someone waits */
    unsigned long thread;
    bool scheduled;                 /* a turn is scheduled in the loop; otherwise the runtime is armed */
    bool turning;
    bool handed;                    /* the loop watches the fd */
    bool by_hand;                   /* the loop is a program that calls _progress() and _arm() itself */
    int fd;
    int credit;                     /* how many completions are still allowed without a turn of the loop */
    uint64_t under_way;
    uint64_t moves;                 /* counts moves from loop to loop: a turn ends if the runtime moved during it */
    uint64_t timer_due, spin_most, spin, looped_at;
    uint64_t turns, spins, spins_won, inline_wakes; /* for tests and for people */
};

/* loop.c */
int weftpy_loop_attach(weftpy_runtime_t *run, PyObject *loop);
void weftpy_loop_detach(weftpy_runtime_t *run);
int weftpy_loop_wake(weftpy_runtime_t *run, bool at_once); /* wake those who wait for completed operations */
int weftpy_loop_before_post_slow(weftpy_runtime_t *run);
int weftpy_loop_thread_check(weftpy_runtime_t *run); /* -1: not the thread of its loop; by hand: another one drives now */
int weftpy_loop_schedule(weftpy_runtime_t *run);
bool weftpy_loop_spin(weftpy_runtime_t *run, weftpy_op_t *op); /* true: it is complete */
int weftpy_loop_call(weftpy_runtime_t *run, PyObject *function, PyObject *arg); /* call it in the next turn */
int weftpy_loop_call_ever(weftpy_runtime_t *run, PyObject *function, PyObject *arg); /* in the next turn, or after the close */
void weftpy_loop_call_rest(weftpy_runtime_t *run); /* the runtime is closed: let the loop call the rest */
PyObject *weftpy_loop_turn(PyObject *self, PyObject *unused);
PyObject *weftpy_loop_timer(PyObject *self, PyObject *unused);
PyObject *weftpy_loop_move(weftpy_runtime_t *run, PyObject *loop); /* move it to another loop */
PyObject *weftpy_loop_progress(PyObject *self, PyObject *unused);
PyObject *weftpy_loop_drive(PyObject *self, PyObject *unused);
PyObject *weftpy_loop_arm(PyObject *self, PyObject *unused);
uint64_t weftpy_clock(void);

/* Before a post: check that the runtime is open and that this is its thread, and schedule a turn so the loop does not sleep. */
static inline int weftpy_loop_before_post(weftpy_runtime_t *run)
{
    if (__builtin_expect(run->rt && run->scheduled && run->thread == PyThread_get_thread_ident(), 1))
        return 0;
    return weftpy_loop_before_post_slow(run);
}

/* This thread is inside the progress of a runtime of a loop: the library allows no waits there. */
extern _Thread_local unsigned weftpy_inside;

/* Drive it once. Only for runtimes of a loop: code that it runs has the GIL. */
static inline unsigned weftpy_progress(weftpy_runtime_t *run)
{
    run->driving++;
    weftpy_inside++;
    unsigned n = weft_runtime_progress(run->rt);
    weftpy_inside--;
    run->driving--;
    return n;
}

/* runtime_close.c */
weft_status_t weftpy_runtime_close(weftpy_runtime_t *run);
PyObject *weftpy_runtime_close_method(PyObject *self, PyObject *unused);

/* runtime_stats.c: methods of Runtime */
PyObject *weftpy_runtime_stats(PyObject *self, PyObject *unused);
PyObject *weftpy_runtime_shard_stats(PyObject *self, PyObject *unused);
PyObject *weftpy_runtime_shards(PyObject *self, void *unused);

/* runtime.c */
bool weftpy_runtime_forked(const weftpy_runtime_t *run); /* this is a child of the process that opened it */
int weftpy_runtime_check(weftpy_runtime_t *run); /* -1: it is closed */
void weftpy_runtime_hold(weftpy_runtime_t *run, PyObject *object); /* held until it is closed; sets no exception */
void weftpy_guest_enter(weftpy_guest_t **guests, weftpy_guest_t *guest, void (*leave)(weftpy_guest_t *guest));
void weftpy_guests_leave(weftpy_guest_t **guests); /* all of them */
void weftpy_guest_leave(weftpy_guest_t *guest); /* also a guest that is in no list */

/* --- operations ---------------------------------------------------------------------------------------------------------- */

/* How an operation gives its result. `made` is what was made before the post (borrowed, may be NULL). */
typedef struct weftpy_gives { /* the runtime may be closed by then (run->rt is NULL), and with it what the library owned */
    PyObject *(*value)(weftpy_runtime_t *run, weft_op_t *op, PyObject *made); /* it succeeded; NULL here: None */
    /* nobody asks: release what the library left. NULL here: nothing */
    void (*drop)(weftpy_runtime_t *run, weft_op_t *op, PyObject *made);
    void (*failed)(weftpy_runtime_t *run, weft_op_t *op, PyObject *made); /* set the exception. NULL here: that of its status */
    bool none_ever; /* None, even if it failed */
} weftpy_gives_t;

/* op.c: results: None; None even if it failed; op.len; the bytes at op.buf, which are freed; what was made before the post */
extern const weftpy_gives_t weftpy_gives_none, weftpy_gives_none_ever, weftpy_gives_len, weftpy_gives_bytes, weftpy_gives_made;
extern const weftpy_gives_t weftpy_gives_owned;    /* owned.c: the memory at op.buf, as an OwnedBuffer */
extern const weftpy_gives_t weftpy_gives_endpoint; /* endpoint.c: the endpoint at op.buf */
extern const weftpy_gives_t weftpy_gives_message;  /* message.c: the active message at op.buf */
extern const weftpy_gives_t weftpy_gives_view;     /* device_view.c: the payload at op.buf of the message that is `made` */

typedef struct weftpy_many weftpy_many_t;

struct weftpy_op {
    PyObject_HEAD
    weft_op_t op;
    weftpy_runtime_t *run;
    weftpy_buf_t buf;
    weftpy_order_t order;
    PyObject *held;          /* what else must live until it is complete: an endpoint, a header */
    PyObject *made;          /* see weftpy_gives_t */
    PyObject *value;         /* its value, after the first request */
    PyObject *waker, *waker_context; /* the wake-up function of the task that waits */
    PyObject *callbacks;     /* list of (function, context) */
    PyObject *message;       /* of cancel() */
    weftpy_many_t *many;
    weftpy_op_t *next;       /* in run->woken or st->ops */
    const weftpy_gives_t *gives;
    uint8_t state, cancelled, blocking, yielded, queued, asked;
};
enum { OP_NEW = 0, OP_UNDER_WAY = 1, OP_DONE = 2 };

weftpy_op_t *weftpy_op_new(weftpy_runtime_t *run, const weftpy_gives_t *gives);
/* After the post. With status WEFT_OK the library has the operation. Otherwise drop it and set the exception. Steals op. Returns
 * the result for Python: in an event loop the Op; in a blocking runtime the value, for which this waits. */
PyObject *weftpy_op_posted(weftpy_op_t *op, weft_status_t status);
/* The same for an operation that was posted without a callback, because it is probably complete at once. */
PyObject *weftpy_op_sent(weftpy_op_t *op, weft_status_t status);
PyObject *weftpy_op_complete(weftpy_op_t *op, PyObject *value); /* already complete with value (stolen). Steals op */
void weftpy_op_told(weftpy_op_t *op);
PyObject *weftpy_op_value(weftpy_runtime_t *run, weft_op_t *op, const weftpy_gives_t *gives, PyObject *made); /* it is complete */
int weftpy_op_wake(weftpy_op_t *op, bool at_once); /* in a turn: -1 with an exception for the loop; else by call_soon */
void weftpy_ops_free(weftpy_state_t *st);
void weftpy_op_queue(weftpy_op_t *op);     /* so the turn wakes those who wait */
int weftpy_op_call_soon(weftpy_op_t *op, PyObject *function, PyObject *context);
PyObject *weftpy_op_result(PyObject *self, PyObject *unused);
PyObject *weftpy_op_exception(PyObject *self, PyObject *unused);
extern PyMethodDef weftpy_op_methods[]; /* op_future.c */
extern PyGetSetDef weftpy_op_getset[];
extern PyMemberDef weftpy_op_members[];

/* many.c */
struct weftpy_many {
    size_t n, left;
    weftpy_op_t *owner;
    weft_status_t status; /* the status of the post that failed */
    PyObject *why;        /* the library's message about it, or NULL */
    bool each; /* the caller checks each: a failure of one does not fail all */
    weftpy_order_t order; /* of all of them */
    struct weftpy_one {
        weft_op_t op;
        weftpy_buf_t buf;
    } of[];
};
PyObject *weftpy_many_send(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *weftpy_many_recv(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
/* for n operations that others post; NULL: no memory */
weftpy_many_t *weftpy_many_new(weftpy_op_t *op, size_t n);
/* n of them were posted; the status says why not more. Steals op */
PyObject *weftpy_many_posted(weftpy_op_t *op, size_t n, weft_status_t status);
void weftpy_many_failed(weftpy_runtime_t *run, weft_op_t *op, PyObject *made); /* weftpy_gives_t.failed of an Op that has many */
void weftpy_many_cancel(weftpy_many_t *many);
void weftpy_many_free(weftpy_many_t *many);

/* --- endpoints, listeners, messages -------------------------------------------------------------------------------------- */

struct weftpy_endpoint {
    PyObject_HEAD
    weftpy_state_t *st;
    weftpy_runtime_t *run;
    weft_ep_t *ep;           /* NULL: closed here */
    weft_ep_id_t id;
    PyObject *weakrefs;
    PyObject *on_close;
};

/* Make an object that owns an endpoint of the library. NULL: no memory, and the endpoint is aborted. */
weftpy_endpoint_t *weftpy_endpoint_new(weftpy_runtime_t *run, weft_ep_t *ep);
weftpy_endpoint_t *weftpy_endpoint_find(weftpy_runtime_t *run, weft_ep_id_t id); /* new reference, or NULL and no exception */
weftpy_endpoint_t *weftpy_endpoint_find_any(weftpy_runtime_t *run, weft_ep_id_t id); /* also closed ones */
/* -1: it is closed. Check last before a post: reading arguments can run any code */
int weftpy_endpoint_check(weftpy_endpoint_t *ep);
PyObject *weftpy_connect(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
void weftpy_endpoint_closed(weft_ep_t *ep, weft_status_t why, void *user);
extern PyGetSetDef weftpy_endpoint_getset[];
PyObject *weftpy_endpoint_probe(FAST_ARGS);
PyObject *weftpy_endpoint_repr(PyObject *self);
/* for reprs: " WORD URI (NAME)"; "" for None, or if it is not known */
PyObject *weftpy_endpoint_peer(PyObject *endpoint, const char *word);
void weftpy_endpoint_dealloc(PyObject *self);
int weftpy_endpoint_traverse(PyObject *self, visitproc visit, void *arg);
int weftpy_endpoint_clear(PyObject *self);
extern PyMemberDef weftpy_endpoint_members[];

/* The arguments of the calls of both kinds of endpoints. A buffer must be read into its final place: a Py_buffer may point into
 * itself. The operation is told of its streams. */
typedef struct weftpy_send_args {
    weftpy_buf_t *buf;
    weftpy_order_t *order;
    weft_op_t *op;
    uint64_t tag, timeout;
} weftpy_send_args_t;
typedef struct weftpy_recv_args {
    weftpy_buf_t *buf; /* these three: of recv_into */
    weftpy_order_t *order;
    weft_op_t *op;
    uint64_t tag, mask, max_len, timeout;
    bool copy; /* for recv: true: bytes, false: an OwnedBuffer */
} weftpy_recv_args_t;
typedef struct weftpy_am_args {
    weftpy_buf_t *buf;
    weftpy_order_t *order;
    weft_op_t *op;
    PyObject *header; /* bytes, a new reference, or NULL */
    weft_am_send_opts_t opts;
    uint64_t timeout;
} weftpy_am_args_t;
int weftpy_send_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_send_args_t *out);
int weftpy_recv_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_recv_args_t *out);
int weftpy_recv_into_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_recv_args_t *out);
int weftpy_am_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, weftpy_am_args_t *out);
int weftpy_am_recv_args(weftpy_endpoint_t *ep, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, uint32_t *id_out,
                        uint64_t *timeout_out);

/* claim.c: messages that only their claim can receive */
void weftpy_claims_drop(weftpy_runtime_t *run);
PyObject *weftpy_endpoint_claim(FAST_ARGS);
PyObject *weftpy_any_claim(FAST_ARGS);

/* closed_endpoints.c: which endpoints of a blocking runtime have ended */
weftpy_closed_eps_t *weftpy_closed_eps_new(void);
void weftpy_closed_eps_free(weftpy_closed_eps_t *ends);
/* the hook of blocking endpoints; user is the weftpy_closed_eps_t */
void weftpy_closed_eps_ended(weft_ep_t *wep, weft_status_t why, void *user);
void weftpy_closed_eps_watch(weftpy_closed_eps_t *ends);
void weftpy_closed_eps_over(weftpy_closed_eps_t *ends);
PyObject *weftpy_closed_eps_next(PyObject *self, PyObject *unused);

/* recv_any.c: receives from any endpoint, and the address by which a peer finds the runtime */
PyObject *weftpy_any_recv(FAST_ARGS);
PyObject *weftpy_any_recv_into(FAST_ARGS);
PyObject *weftpy_any_am_recv(FAST_ARGS);
PyObject *weftpy_any_probe(FAST_ARGS);
PyObject *weftpy_any_address(FAST_ARGS);

PyObject *weftpy_listen(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);

struct weftpy_message {
    PyObject_HEAD
    weftpy_runtime_t *run;
    weft_am_t *am;           /* NULL: released */
    PyObject *header;
    weft_ep_id_t from;
    uint64_t len;
    uint32_t id;
    bool wants_reply;
    bool viewed;             /* a DeviceView has it now, and am is NULL */
    weftpy_message_t *next, **before; /* in run->messages */
};
void weftpy_messages_release(weftpy_runtime_t *run);
weft_am_t *weftpy_message_take(weftpy_message_t *m); /* for a view: it is the caller's; NULL with an exception: it was released */
void weftpy_message_let_go(weftpy_runtime_t *run, weft_am_t *am); /* release one that has no object, also after the close */
PyObject *weftpy_am_handle(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);

/* registry.c: the library's registry; NULL with an exception: not a registry, closed, or of another runtime */
weft_registry_t *weftpy_registry_of(weftpy_runtime_t *run, PyObject *object);

/* timerfd.c: the clock of a loop that is driven by hand */
PyObject *weftpy_timerfd(PyObject *module, PyObject *unused);
PyObject *weftpy_timerfd_set(PyObject *module, PyObject *args);

/* --- what else is the library's ------------------------------------------------------------------------------------------ */

/* the result of a call that is complete at once: an Op, or the value. Steals value */
PyObject *weftpy_done(weftpy_runtime_t *run, PyObject *value);

/* foreign.c: memory of objects without the buffer protocol. 1: *out has it, 0: the object has no memory, -1 with an exception */
int weftpy_foreign_get(weftpy_state_t *st, PyObject *object, bool writable, weftpy_order_t *order, weftpy_buf_t *out);
/* memory.c: 1: it is a Memory or a DeviceView that the processor cannot access; 0: it is none; -1 with an exception */
int weftpy_memory_get(weftpy_state_t *st, PyObject *object, bool writable, weftpy_buf_t *out);
PyObject *weftpy_memory_kinds(PyObject *module, PyObject *unused);

/* memory servers: server.c, store.c, block.c, mirror.c */
PyObject *weftpy_store_serve(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *weftpy_mirror(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *weftpy_endpoint_store(FAST_ARGS);

/* remote memory: region.c, remote.c */
PyObject *weftpy_region(weftpy_runtime_t *run, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *weftpy_endpoint_attach(FAST_ARGS);
PyObject *weftpy_endpoint_find_name(FAST_ARGS);
PyObject *weftpy_rights_text(uint32_t rights);

/* blocking.c: wait for an operation without the GIL, and handle signals. -1 with KeyboardInterrupt or the like: the operation is
 * complete then too. */
int weftpy_wait(weftpy_runtime_t *run, weft_op_t *op);
void weftpy_wait_through(weftpy_runtime_t *run, weft_op_t *op); /* the same for destructors: signals are handled after it */
/* Before the post of an operation that will be waited for: -1 with an exception if this thread may not wait. */
int weftpy_wait_check(weftpy_state_t *st);
/* Before the runtime is closed: end all waits. False: this thread itself waits, and a signal handler called. */
bool weftpy_wait_end_all(weftpy_runtime_t *run);

#endif
