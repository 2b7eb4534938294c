/* _core/memory.h - what Memory (memory.c) and DeviceView (device_view.c) share. */
#ifndef WEFTPY_MEMORY_H
#define WEFTPY_MEMORY_H

#include "core.h"

#define WORDS(fn) (PyCFunction)(void (*)(void))(fn), METH_VARARGS | METH_KEYWORDS

typedef struct weftpy_memory {
    PyObject_HEAD
    weftpy_state_t *st;
    const weft_mem_kind_t *kind;
    char *at;
    uint64_t n;
    PyObject *weakrefs;
    Py_ssize_t users; /* arrays by DLPack, operations and copies: a view is not given back before they are gone */
    bool released;    /* a view that was given back */
} weftpy_memory_t;

int weftpy_memory_released(const weftpy_memory_t *m); /* -1 with an exception: it was */

/* memory.c */
PyObject *weftpy_memory_copy_to(PyObject *self, PyObject *args, PyObject *kw);
PyObject *weftpy_memory_to_bytes(PyObject *self, PyObject *args, PyObject *kw);
PyObject *weftpy_memory_kind(PyObject *self, void *unused);
PyObject *weftpy_memory_ptr(PyObject *self, void *unused);
Py_ssize_t weftpy_memory_length(PyObject *self);

/* memory_share.c */
PyObject *weftpy_memory_cuda(PyObject *self, void *unused);
PyObject *weftpy_memory_dlpack(PyObject *self, PyObject *args, PyObject *kw);
PyObject *weftpy_memory_dlpack_device(PyObject *self, PyObject *unused);

#endif
