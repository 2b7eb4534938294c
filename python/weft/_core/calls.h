/* _core/calls.h - what clients, methods and streams share.
 *
 * A method of the library lives as long as its client, and so does its signature: what we need of it is copied when it is known.
 * A call holds its method, and so the client. */
#ifndef WEFT_PY_CALLS_H
#define WEFT_PY_CALLS_H

#include "values.h"

/* A client of the library. The Client and every Method share it. It is closed with the last of them, or earlier. */
typedef struct weftpy_link {
    PyObject_HEAD
    weftpy_state_t *st;
    weftpy_runtime_t *run;
    weft_client_t *client; /* NULL: closed */
    PyObject *uri, *held;  /* held: the registry */
    uint64_t timeout_ns;   /* the timeout of a call without its own; 0: none */
} weftpy_link_t;

typedef struct weftpy_method {
    PyObject_HEAD
    weftpy_state_t *st;
    weftpy_link_t *link;
    weft_method_t *method;
    PyObject *name;        /* before the signature is known: the name that was asked for */
    const char *fn;        /* the same as a C string */
    PyObject *text;        /* the signature; NULL: not known yet */
    PyObject *names;       /* names of the parameters without the stream: a tuple, interned */
    uint32_t n;            /* how many parameters these are */
    uint32_t sends, gives; /* types of the streams' values; 0: none */
    bool oneway, idempotent, views; /* views: a single result that is a vector or a tensor */
    uint8_t types[WEFT_SIG_PARAMS];
    const char *param_names[WEFT_SIG_PARAMS];
} weftpy_method_t;

enum { WEFTPY_CALL_ROOM = 4 };

/* What a call borrows until it is complete, and its result. It is the `made` of its Op. */
typedef struct weftpy_call {
    PyObject_HEAD
    weftpy_method_t *method;
    weft_value_t *values;           /* room, or memory of ours */
    weftpy_holds_t holds;
    PyObject *value, *error;        /* a result that is not in the reply: a Stream, or an exception that is not the library's */
    PyObject *args, *kw;            /* until the signature is known */
    uint64_t timeout_ns, began;
    bool with_opts;
    weft_call_opts_t opts;
    weftpy_buf_t into;
    weft_reply_t reply;
    weft_value_t room[WEFTPY_CALL_ROOM];
} weftpy_call_t;


/* client.c */
int weftpy_link_check(weftpy_link_t *link); /* -1: it is closed */

/* method.c */
PyObject *weftpy_method_new(weftpy_link_t *link, PyObject *text);
/* an Op, or the text itself: a line for each, number and signature */
PyObject *weftpy_functions(weftpy_link_t *link, PyObject *service);

/* call.c */
extern const weftpy_gives_t weftpy_gives_call;
weftpy_call_t *weftpy_call_new(weftpy_method_t *method);
/* The arguments of a call, and its options, into it. -1 with an exception. */
int weftpy_call_args(weftpy_call_t *call, PyObject *args, PyObject *kw);
int weftpy_call_timeout(weftpy_call_t *call, PyObject *kw); /* only the timeout */
PyObject *weftpy_call_many(weftpy_method_t *method, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);

/* stream.c: a Stream; the call is prepared, and is stolen. NULL with an exception. */
PyObject *weftpy_stream_open(weftpy_method_t *method, weftpy_call_t *call);

#endif
