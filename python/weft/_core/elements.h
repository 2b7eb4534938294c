/* _core/elements.h - what actions, transports, memory elements and operations that a loop awaits share. */
#ifndef WEFT_PY_ELEMENTS_H
#define WEFT_PY_ELEMENTS_H

#include <weft/elements.h>

#include "handle.h"

/* The last operations of an action, for profile(). */
typedef struct weftpy_profile {
    size_t room;
    uint64_t n;              /* how many since record() was called; the last `room` of them are kept */
    struct weftpy_profiled {
        PyObject *name;      /* the name of the transport */
        const char *what;
        uint64_t size, began, waited, took; /* waited: of the time it took, until its transport was usable */
    } of[];
} weftpy_profile_t;

typedef struct weftpy_action {
    weftpy_handle_t h;
    unsigned busy;           /* threads that post without the GIL: the close waits for them */
    PyObject *remotes;       /* list of (name of the transport, weak reference to a Remote or Block of it), or NULL */
    weftpy_profile_t *profile;
} weftpy_action_t;

typedef struct weftpy_transport {
    PyObject_HEAD
    weftpy_action_t *action;
    weft_transport_t *of;    /* valid while the action is open */
    PyObject *name;
    PyObject *weakrefs;
    PyObject *exporter;      /* for `buf`: the object that owns the memory of `exported`, so all views share it */
    weft_buffer_t *exported;
    size_t exported_len;
    uint64_t registered;     /* how many bytes of its buffer reg() was asked for; the buffer may have more */
    bool server;             /* of type rdma_server */
} weftpy_transport_t;


/* action.c */
int weftpy_action_check(weftpy_action_t *action); /* -1: it is closed, or its runtime is closed */
/* a Remote or Block of the transport of that name */
int weftpy_action_know(weftpy_action_t *action, PyObject *name, PyObject *handle);
void weftpy_action_profiled(weftpy_action_t *action, const struct weftpy_profiled *one); /* takes a reference to its name */

/* durl.c */
PyObject *weftpy_durl_parse(PyObject *module, PyObject *text);
PyObject *weftpy_durl_format(PyObject *module, PyObject *parts);

/* transport.c */
int weftpy_transport_check(weftpy_transport_t *trans); /* -1: its action is closed; last before a post */
/* raise for a refused post; MemoryError if no buffer is registered */
PyObject *weftpy_transport_raise(weftpy_transport_t *trans, weft_status_t status);
/* Is it released, or does it belong to the parent process? True with an exception. */
bool weftpy_transport_released(weftpy_transport_t *trans);

/* transport_io.c: an operation to post. */
typedef struct weftpy_io {
    const char *name;
    bool async;
    uint64_t size, addr, offset, timeout, value, compare;
    weft_transport_item_t *items;
    size_t n;
    weft_status_t (*post)(weft_transport_t *of, const struct weftpy_io *w, weft_op_t *op);
} weftpy_io_t;
extern const weftpy_gives_t weftpy_io_gives_none, weftpy_io_gives_len;
/* Post it, and wait, or return a future. `made` is the transport, or a tuple of it and a capsule of the weftpy_io_t. `held` (may
 * be NULL) is what the operation needs until it is complete. */
PyObject *weftpy_io_go_with(weftpy_transport_t *trans, const weftpy_io_t *io, const weftpy_gives_t *gives, PyObject *made,
                            PyObject *held);
/* complete when the element is reached */
weft_status_t weftpy_io_post_ready(weft_transport_t *of, const weftpy_io_t *io, weft_op_t *op);
/* For profile(): an operation of a transport is over, whose `made` is as above. */
void weftpy_io_profiled(PyObject *made, const char *what, uint64_t size, uint64_t began, weft_status_t status);
PyObject *weftpy_io_go(weftpy_transport_t *trans, const weftpy_io_t *io, const weftpy_gives_t *gives, PyObject *made);

/* transport_io.c and transport_many.c: the methods that move bytes. Those that end in _async are for an event loop. */
#define WEFTPY_IO_LIST(X) \
    X(read) X(write) X(batch) X(readv) X(writev) X(read_many) X(write_many) X(fetch_add) X(compare_swap) X(flush) X(wait_ready)
#define WEFTPY_IO(name) \
    PyObject *weftpy_io_##name(FAST_ARGS); \
    PyObject *weftpy_io_##name##_async(FAST_ARGS);
WEFTPY_IO_LIST(WEFTPY_IO)
#undef WEFTPY_IO
PyObject *weftpy_io_serve(PyObject *self, PyObject *unused);

/* transport_buffer.c: the registered buffer, and views of it. */
PyObject *weftpy_transport_reg(FAST_ARGS);
PyObject *weftpy_transport_get_buf(PyObject *self, void *unused);
/* Are these bytes in the buffer, but beyond those that reg() was asked for? True with a RangeError. */
bool weftpy_transport_outside(weftpy_transport_t *trans, uint64_t size, uint64_t offset);

/* buffer_view.c: a view of bytes as programs in elements have it. Steals `memory`, a memoryview or NULL with an exception. */
PyObject *weftpy_buffer_view_new(PyTypeObject *type, PyObject *memory);

/* A number of bytes or an offset. Floats without a fraction are accepted. -1 with an exception. */
int weftpy_count(PyObject *arg, const char *what, uint64_t *out); /* None or no argument: unchanged */
int weftpy_bytes(PyObject *arg, const char *what, uint64_t *out); /* None is refused */

/* awaited.c: an operation of a blocking runtime that an event loop awaits; the loop learns of its end by a completion fd. */
typedef struct weftpy_awaited {
    PyObject_HEAD
    weft_op_t op, told;      /* told: completes after op, if op was posted without a callback */
    weftpy_runtime_t *run;
    PyObject *completion_fd, *future, *held, *made;
    const weftpy_gives_t *gives;
    const char *what;        /* for weftpy_io_profiled() */
    uint64_t size, began;    /* began 0: it is not recorded */
    struct weftpy_awaited *next; /* on the list of the completion fd */
    bool under_way;
} weftpy_awaited_t;
/* Make one in the running loop, or NULL with the exception. Steals `made` and `held`, which may be NULL. */
weftpy_awaited_t *weftpy_awaited_new(weftpy_runtime_t *run, const weftpy_gives_t *gives, PyObject *made, PyObject *held);
/* Before the post, if the operation cannot be complete when the post returns: its callback then reports it directly. */
void weftpy_awaited_direct(weftpy_awaited_t *awaited);
/* After the post: returns the future. Steals awaited. */
PyObject *weftpy_awaited_future(weftpy_awaited_t *awaited);
void weftpy_awaited_refused(weftpy_awaited_t *awaited); /* after a failed post. Steals awaited */
void weftpy_awaited_end(weftpy_awaited_t *awaited, bool tell_it); /* it is complete: called by drain() */
void weftpy_completion_fd_begin(PyObject *completion_fd); /* one more will be added */
void weftpy_completion_fd_add(PyObject *completion_fd, weftpy_awaited_t *awaited); /* from any thread, without the GIL */

#endif
