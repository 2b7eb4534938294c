/* _core/handle.h - what objects share that hold something of the library's which must go before the runtime: see handle.c. */
#ifndef WEFT_PY_HANDLE_H
#define WEFT_PY_HANDLE_H

#include "core.h"

typedef struct weftpy_handle_kind {
    const char *what;        /* "the region" */
    void (*let_go)(weftpy_handle_t *handle, void *of); /* the runtime is open */
    /* an operation that ends it; NULL: it is only dropped */
    PyObject *(*close)(weftpy_handle_t *handle, const weftpy_gives_t *gives);
} weftpy_handle_kind_t;

/* handle.c: the beginning of objects that hold something of the library that must end before the runtime. */
struct weftpy_handle {
    PyObject_HEAD
    weftpy_runtime_t *run;
    void *of;                /* the library's object; NULL: not here yet, or gone */
    weft_op_t *coming;       /* the operation that brings it in its buf */
    bool later;              /* true if a loop awaits it while another thread drives the runtime */
    PyObject *over;          /* what must live as long: an endpoint, a store */
    PyObject *weakrefs;
    const weftpy_handle_kind_t *kind;
    weftpy_handle_t *next, **before; /* in run->handles */
};
/* A new object of a type whose struct begins with a handle; over may be NULL. */
void *weftpy_handle_new(PyTypeObject *type, weftpy_runtime_t *run, PyObject *over, const weftpy_handle_kind_t *kind);
int weftpy_handle_check(weftpy_handle_t *handle); /* -1: it is gone, or its runtime is closed */
/* Post the operation that brings it: returns an Op with the handle as its result. Steals handle. */
weftpy_op_t *weftpy_handle_op(weftpy_handle_t *handle);
extern const weftpy_gives_t weftpy_gives_handle; /* the result of such an operation; `made` is the handle */
void weftpy_handle_end(weftpy_handle_t *handle); /* end it, if it is here */
void *weftpy_handle_take(weftpy_handle_t *handle); /* the caller owns it from now on, and has to end it */
void weftpy_handles_end(weftpy_runtime_t *run);
int weftpy_handle_traverse(PyObject *self, visitproc visit, void *arg);
void weftpy_handle_dealloc(PyObject *self);
extern PyMemberDef weftpy_handle_members[];
/* An operation whose only argument is a timeout. */
PyObject *weftpy_handle_simple(weftpy_handle_t *handle, weft_status_t (*post)(void *of, weft_op_t *op), const weftpy_sig_t *sig,
                               PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *weftpy_handle_closed(PyObject *self, void *unused);
PyObject *weftpy_handle_close(PyObject *self, PyObject *unused);
PyObject *weftpy_handle_drop(PyObject *self, PyObject *unused);
PyObject *weftpy_handle_exit(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *weftpy_handle_aenter(PyObject *self, PyObject *unused);
PyObject *weftpy_handle_aexit(PyObject *self, PyObject *const *args, Py_ssize_t n);
/* What `with` and `async with` need, in a table of methods. */
#define WEFTPY_HANDLE_WITH \
    {"__enter__", weftpy_itself, METH_NOARGS, NULL}, \
    {"__exit__", WITHOUT_NAMES(weftpy_handle_exit), NULL}, \
    {"__aenter__", weftpy_handle_aenter, METH_NOARGS, NULL}, \
    {"__aexit__", WITHOUT_NAMES(weftpy_handle_aexit), NULL}
weftpy_op_t *weftpy_handle_begin(weftpy_handle_t *handle, const weftpy_gives_t *gives); /* an Op on it, which holds it */

#endif
