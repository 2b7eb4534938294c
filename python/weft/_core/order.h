/* _core/order.h - streams of a GPU in which an operation takes its turn: order.c. Part of core.h. */
#ifndef WEFTPY_ORDER_H
#define WEFTPY_ORDER_H

#include <Python.h>
#include <stdbool.h>
#include <weft/op.h>

typedef struct weftpy_state weftpy_state_t;

/* For the docstrings of types whose calls take stream=. */
#define WEFTPY_STREAM_DOC \
    " stream= is a CUDA stream in which an operation takes its turn: it begins behind what the stream was given, and what the " \
    "stream is given later waits for it."

/* Streams of a GPU in which an operation takes its turn: see order.c. All zero: none. It lives as long as the operation. */
enum { WEFTPY_STREAMS_SEEN = 4 };
typedef struct weftpy_order {
    weft_op_streams_t streams;  /* what the library is told; after: that of stream= */
    struct {
        void *stream, *context; /* context: of a default stream */
    } seen[WEFTPY_STREAMS_SEEN];
    unsigned n;                 /* streams to come behind; the first of them are in seen */
    void *join;                 /* a stream of our own that is behind all of them, or NULL */
    int pid;                    /* of the process that made it */
} weftpy_order_t;

/* order.c: read stream=; come behind a stream, where a default stream is that of the context of memory `at`, or with NULL of the
 * current one; tell an operation of its streams. `shared`: several operations are told, one after the other. -1: an exception. */
int weftpy_order_given(weftpy_state_t *st, weftpy_order_t *order, PyObject *stream);
int weftpy_order_add(weftpy_state_t *st, weftpy_order_t *order, void *stream, const void *at);
int weftpy_order_streams(weftpy_state_t *st, weftpy_order_t *order, bool shared, weft_op_t *op);
void weftpy_order_free(weftpy_order_t *order);
int weftpy_stream_number(PyObject *number, uint64_t *handle_out); /* None leaves it as it is */

static inline int weftpy_order_begin(weftpy_state_t *st, weftpy_order_t *order, PyObject *stream)
{
    return stream && stream != Py_None ? weftpy_order_given(st, order, stream) : 0;
}
static inline int weftpy_order_set(weftpy_state_t *st, weftpy_order_t *order, bool shared, weft_op_t *op)
{
    return order->n ? weftpy_order_streams(st, order, shared, op) : 0;
}
/* After the post, or without one. */
static inline void weftpy_order_release(weftpy_order_t *order)
{
    if (order->n || order->join)
        weftpy_order_free(order);
}

#endif
