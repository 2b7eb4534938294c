/* _core/values.h - objects of Python as values of the library, and back: for calls, for services, for streams.
 *
 * A value that is made of an object may view that object's memory, or memory that was made for it: both are held in a
 * weftpy_holds_t until it is released. An object that is made of a value may view the value's memory: then it has a reference to
 * its owner, an object of whoever calls, whose life is the memory's. */
#ifndef WEFT_PY_VALUES_H
#define WEFT_PY_VALUES_H

#include "core.h"

/* What is held for values. Zero it before its first use; after a release it can be used again. With the GIL. */
typedef struct weftpy_holds {
    struct weftpy_hold *first;
} weftpy_holds_t;
void weftpy_holds_release(weftpy_holds_t *holds);

/* Which value it is, for errors: "add: argument b", "add: result 2", "primes: the value". */
typedef struct weftpy_where {
    const char *fn, *what;
    const char *name;  /* NULL or "": its number */
    Py_ssize_t number; /* from 1 on; 0: neither name nor number */
} weftpy_where_t;

/* Convert an object to a value of a type (weft_type_t). -1 with a TypeError or an OverflowError that names the value and the
 * wanted type. What is already held for it is released with the rest. */
int weftpy_value_get(weftpy_state_t *st, const weftpy_where_t *where, uint32_t type, PyObject *object, weftpy_holds_t *holds,
                     weft_value_t *value_out);
/* The results of a function, as it returns them: None for none, the object itself for one, a tuple or a list for several.
 * values_out has space for WEFT_SIG_PARAMS. */
int weftpy_results_get(weftpy_state_t *st, const weft_sig_t *sig, PyObject *returned, weftpy_holds_t *holds,
                       weft_value_t *values_out, size_t *n_out);

enum { WEFTPY_WRITABLE = 1, WEFTPY_LISTS = 2, WEFTPY_VIEWS = 4 };
/* Make the object of a value: bool, int, float, str; bytes for [u8]; a Tensor for other vectors and for tensors (a list of
 * Tensors for [tensor]). Views hold `owner`; NULL: the data is copied. WEFTPY_WRITABLE: views may be written to. WEFTPY_LISTS:
 * vectors of numbers as lists. WEFTPY_VIEWS: [u8] as a Tensor too. */
PyObject *weftpy_value_make(weftpy_state_t *st, const weft_value_t *value, PyObject *owner, unsigned flags);
/* A vector of numbers as a tensor. *n must stay valid, and is its length. */
weft_tensor_t weftpy_vector_tensor(const weft_value_t *value, int64_t *n);
/* None for none, the object for one, a tuple for several. */
PyObject *weftpy_values_make(weftpy_state_t *st, const weft_value_t *values, size_t n, PyObject *owner, unsigned flags);

/* _as_value(type, object): converts to a value and back, for tests. */
PyObject *weftpy_as_value(PyObject *module, PyObject *args);

/* tensor.c: a Tensor over memory of its owner, or over a copy (owner NULL). */
PyObject *weftpy_tensor_make(weftpy_state_t *st, const weft_tensor_t *tensor, PyObject *owner, unsigned flags);
const weft_tensor_t *weftpy_tensor_of(weftpy_state_t *st, PyObject *object); /* NULL without an exception: it is not our Tensor */
/* Copy its elements in C order. -1: they are more than `cap` bytes. */
int64_t weftpy_tensor_copy(const weft_tensor_t *tensor, void *to, size_t cap);

/* The part of DLPack that we need: the layout of its DLManagedTensor. */
typedef struct weftpy_dlpack {
    weft_tensor_t tensor;
    void *context;
    void (*deleter)(struct weftpy_dlpack *self);
} weftpy_dlpack_t;

/* One thing that is held: a buffer, an object, memory of ours, a tensor by DLPack; and what describes a tensor. */
struct weftpy_hold {
    struct weftpy_hold *next;
    weftpy_buf_t buf;         /* buf.view.obj NULL: none */
    PyObject *object;         /* NULL: none */
    weftpy_dlpack_t *foreign; /* NULL: none */
    weft_tensor_t tensor;
    int64_t dims[2 * WEFT_TENSOR_DIMS]; /* its shape, its strides */
    /* memory of ours follows */
};
/* Add a hold, with this many bytes of memory after it; NULL: no memory. */
struct weftpy_hold *weftpy_hold_new(weftpy_holds_t *holds, size_t bytes);
/* values.c: -1 with "add: argument b is 'x', " and the format, which takes `more`. item >= 0: that item of a vector. */
int weftpy_value_wrong(const weftpy_where_t *where, Py_ssize_t item, PyObject *object, PyObject *class, const char *format,
                       const char *more);
bool weftpy_error_passes(void); /* the caller did not cause the exception (no memory, an interrupt): keep it */

/* values_tensor.c */
bool weftpy_items_of(const Py_buffer *view, uint8_t *code_out, uint8_t *bits_out);
int weftpy_tensor_get(weftpy_state_t *st, const weftpy_where_t *where, Py_ssize_t item, PyObject *object, weftpy_holds_t *holds,
                      weft_tensor_t *out);
int weftpy_one_tensor_get(weftpy_state_t *st, const weftpy_where_t *where, PyObject *object, weftpy_holds_t *holds,
                          weft_value_t *out);

/* foreign.c: what DLPack said about its memory; NULL: the memory is not from DLPack. */
const weft_tensor_t *weftpy_foreign_tensor(const weftpy_buf_t *buf);

#endif
