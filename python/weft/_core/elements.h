/* _core/elements.h - what actions, transports, memory elements and operations that a loop awaits share. */
#ifndef WEFT_PY_ELEMENTS_H
#define WEFT_PY_ELEMENTS_H

#include "core.h"

/* The last operations of an action, for profile(). */
typedef struct weftpy_profile {
    size_t room;
    uint64_t n;              /* since it was asked for; the last `room` of them are here */
    struct weftpy_profiled {
        PyObject *name;      /* of the transport */
        const char *what;
        uint64_t size, began, took;
    } of[];
} weftpy_profile_t;

typedef struct weftpy_action {
    weftpy_handle_t h;
    unsigned busy;           /* threads that post without the GIL: it is closed when there are none */
    PyObject *remotes;       /* list of (name of the transport, weak reference to a Remote or Block of it), or NULL */
    weftpy_profile_t *profile;
} weftpy_action_t;

typedef struct weftpy_transport {
    PyObject_HEAD
    weftpy_action_t *action;
    weft_transport_t *of;    /* good for as long as the action is open */
    PyObject *name;
    PyObject *weakrefs;
    PyObject *exporter;      /* of `buf`: the object that has the memory of `exported`, so that all views are of one */
    weft_buffer_t *exported;
    bool server;             /* of type rdma_server */
} weftpy_transport_t;


/* action.c */
int weftpy_action_check(weftpy_action_t *action); /* -1: it is closed, or its runtime is */
int weftpy_action_know(weftpy_action_t *action, PyObject *name, PyObject *handle); /* a Remote or Block of the transport of that name */
void weftpy_action_profiled(weftpy_action_t *action, PyObject *name, const char *what, uint64_t size, uint64_t began);

/* durl.c */
PyObject *weftpy_durl_parse(PyObject *module, PyObject *text);
PyObject *weftpy_durl_format(PyObject *module, PyObject *parts);

/* transport.c */
int weftpy_transport_check(weftpy_transport_t *trans); /* -1: its action is closed; last before a post */
PyObject *weftpy_transport_raise(weftpy_transport_t *trans, weft_status_t status); /* a post was refused; without a buffer that is a MemoryError */

/* transport_io.c: the methods that move something. Those that end in _async are for a loop to await. */
#define WEFTPY_IO_LIST(X) X(read) X(write) X(batch) X(readv) X(writev) X(read_many) X(write_many) X(fetch_add) X(compare_swap) X(flush) X(wait_ready)
#define WEFTPY_IO(name) \
    PyObject *weftpy_io_##name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames); \
    PyObject *weftpy_io_##name##_async(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
WEFTPY_IO_LIST(WEFTPY_IO)
#undef WEFTPY_IO
PyObject *weftpy_io_serve(PyObject *self, PyObject *unused);

/* transport_buffer.c: an object that holds a buffer of a transport, for views of it. */
PyObject *weftpy_transport_buffer_new(weftpy_state_t *st, weft_buffer_t *buffer);

/* A number of bytes, or a place among them: whole floats are numbers, too. -1 with an exception. */
int weftpy_count(PyObject *arg, const char *what, uint64_t *out); /* None, and no argument, leave it as it is */
int weftpy_bytes(PyObject *arg, const char *what, uint64_t *out); /* None is none */

/* posted.c: an operation of a blocking runtime that an event loop awaits, beside the desk where it is told of (desk.c). */
typedef struct weftpy_posted {
    PyObject_HEAD
    weft_op_t op, told;      /* told: complete after op, for one that was posted without a function */
    weftpy_runtime_t *run;
    PyObject *desk, *future, *held, *made;
    const weftpy_gives_t *gives;
    struct weftpy_posted *next; /* on the desk */
    bool under_way;
} weftpy_posted_t;
/* A new one in the running loop, or NULL with the exception. Steals made and held, which may be NULL. */
weftpy_posted_t *weftpy_posted_new(weftpy_runtime_t *run, const weftpy_gives_t *gives, PyObject *made, PyObject *held);
/* Before the post: it will not be over when the post returns, so that it is told of directly. */
void weftpy_posted_direct(weftpy_posted_t *posted);
/* It was posted: the future to be awaited. Steals posted. */
PyObject *weftpy_posted_future(weftpy_posted_t *posted);
void weftpy_posted_refused(weftpy_posted_t *posted); /* the post failed. Steals posted */
void weftpy_posted_end(weftpy_posted_t *posted, bool tell_it); /* by the desk: it is over */
void weftpy_desk_begin(PyObject *desk);                        /* one more will be put */
void weftpy_desk_put(PyObject *desk, weftpy_posted_t *posted); /* from any thread, without the GIL */

#endif
