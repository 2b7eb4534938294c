/* _core/serve.h - what the files of services share: requests as they come, and where they wait.
 *
 * inbox.c is C without Python: requests arrive on threads that do not have the GIL, and on several at once where the runtime has
 * several shards. service*.c are the
 * type Service, request.c and request_answer.c the type Request. */
#ifndef WEFT_PY_SERVE_H
#define WEFT_PY_SERVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "core.h"

typedef struct weftpy_service weftpy_service_t;
typedef struct weftpy_request weftpy_request_t;
typedef struct weftpy_inbox weftpy_inbox_t;
typedef struct weftpy_arrival weftpy_arrival_t;

/* The caller, copied when the request arrived: endpoints of a service may end at any time. */
typedef struct weftpy_peer {
    char name[64], address[160], transport[16];
    bool authenticated, same_host;
} weftpy_peer_t;

/* A function of a service for the library: its index in the service's list of Python functions. */
typedef struct weftpy_function {
    weftpy_inbox_t *inbox;
    uint32_t index;
    bool fetch; /* it fetches large arguments itself */
    bool peer;  /* it needs to know the caller */
    bool serial; /* its requests wait in the line for one thread */
} weftpy_function_t;

/* A request that was kept, from its arrival until it is released. */
struct weftpy_arrival {
    weft_request_t *request;
    weftpy_inbox_t *inbox;
    weftpy_request_t *object;  /* borrowed, NULL until there is one */
    weftpy_peer_t *peer;       /* NULL: nobody asks */
    void *memory;              /* fetched large arguments; from malloc, not the library: they may outlive the runtime */
    size_t memory_len;
    uint64_t deadline;         /* by weftpy_clock(); UINT64_MAX: none */
    weft_op_t op;              /* of the fetch */
    weft_ep_id_t from;         /* the peer whose share it uses */
    uint32_t index;
    bool counted;              /* memory_len is in inbox->bytes */
    bool watched;              /* in inbox->watched */
    uint8_t line;              /* in which of inbox->lines it waits for a thread */
    weftpy_arrival_t *next;    /* in that, or in inbox->lines[WEFTPY_TOLD] */
    weftpy_arrival_t *after, **before; /* in inbox->watched */
};

enum { WEFTPY_SHARES = 256 };

/* What threads of a blocking runtime wait for. */
enum {
    WEFTPY_ANY,    /* requests, for every thread */
    WEFTPY_SERIAL, /* requests of functions that are serial, for one thread */
    WEFTPY_TOLD,   /* requests whose cancellation is still to be reported */
    WEFTPY_LINES
};
typedef struct weftpy_line {
    weftpy_arrival_t *first, **last;
    pthread_cond_t more;
} weftpy_line_t;

struct weftpy_inbox {
    atomic_uint refs;          /* references: the Service, each function until the library has released it, and each arrival */
    pid_t pid;
    weft_runtime_t *rt;
    bool blocking;
    weftpy_service_t *owner;   /* borrowed, under the GIL; NULL: the Service is gone */
    uint64_t bytes_most, peer_bytes; /* limits for all peers, and for one */
    uint32_t queue_most, peer_queue;
    pthread_mutex_t lock;
    /* the members below are under the lock */
    uint64_t bytes;            /* fetched bytes of requests that are not finished */
    struct weftpy_share *shares[WEFTPY_SHARES]; /* shares of peers, by their endpoint */
    /* of blocking runtimes */
    weftpy_line_t lines[WEFTPY_LINES];
    weftpy_arrival_t *watched; /* requests with an on_cancel function */
    uint32_t waiting;          /* for a thread, in both lines of requests */
    uint32_t alive;            /* arrivals that are not freed: while there are some, cancellations may come */
    bool stopped;
};

/* inbox.c: no function here needs the GIL, and none waits for it. */
weftpy_inbox_t *weftpy_inbox_new(weft_runtime_t *rt, bool blocking, const weft_service_opts_t *opts); /* NULL: no memory */
void weftpy_inbox_unref(weftpy_inbox_t *q);
void weftpy_inbox_arrived(weft_request_t *request, void *function);      /* weft_function_fn */
void weftpy_inbox_released(void *function, void *unused);                /* weft_release_fn */
/* the first of a line, NULL: none waits. With the GIL: the ->object of one of WEFTPY_TOLD is alive */
weftpy_arrival_t *weftpy_inbox_take(weftpy_inbox_t *q, unsigned line);
/* wait until a line has one, without the GIL; false: it is stopped, and for WEFTPY_TOLD: no request is left either */
bool weftpy_inbox_wait(weftpy_inbox_t *q, unsigned line, uint64_t ns);
/* answer waiting requests with UNAVAILABLE, and end all waits */
void weftpy_inbox_stop(weftpy_inbox_t *q);
void weftpy_inbox_forget(weftpy_inbox_t *q);                             /* the runtime is closed: release waiting requests */
void weftpy_inbox_watch(weftpy_arrival_t *a);                            /* report its cancellation from now on */
void weftpy_inbox_unwatch(weftpy_arrival_t *a);
/* End it: release it at the library, also after the runtime was closed. Memory that was taken over (set to NULL) stays. */
void weftpy_arrival_free(weftpy_arrival_t *a);

/* request.c */
struct weftpy_request {
    PyObject_HEAD weftpy_runtime_t *run;
    weftpy_service_t *service;
    weftpy_arrival_t *a; /* NULL: answered, or released */
    PyObject *on_cancel;
    PyObject *memory;      /* the owner of the fetched memory; NULL: the arrival still owns it, or there is none */
    const char *from, *to; /* the bounds of that memory */
    weftpy_peer_t *peer;
    const weft_sig_t *sig; /* owned by the service */
    uint64_t deadline;
    uint32_t index, shard;
    bool answered, cancelled, once;
    bool fetched; /* large arguments were fetched into a buffer of the function */
};
/* takes over `a`; NULL with an exception: it was answered */
PyObject *weftpy_request_new(weftpy_service_t *service, weftpy_arrival_t *a);
void weftpy_request_let_go(weftpy_request_t *r); /* give it back to the library */
int weftpy_request_check(weftpy_request_t *r);   /* -1: it was answered, or its runtime is closed. Check last before its use */

/* request_answer.c: methods of Request */
PyObject *weftpy_request_reply(PyObject *self, PyObject *returned);
PyObject *weftpy_request_fail(FAST_ARGS);
PyObject *weftpy_request_send(FAST_ARGS);
PyObject *weftpy_request_recv(FAST_ARGS);

/* service.c */
struct weftpy_service {
    PyObject_HEAD
    weftpy_state_t *st;
    weftpy_runtime_t *run;
    weftpy_guest_t guest;
    weft_service_t *service;   /* NULL: closed */
    weft_listener_t **listeners;
    size_t listeners_n;
    weftpy_inbox_t *inbox;
    PyObject *functions;       /* list, by index */
    weft_sig_t **sigs;         /* our copies of their signatures: the library's may be freed while Python runs */
    PyObject *registry;        /* held while it is published there */
    PyObject *weakrefs;
};
int weftpy_service_check(weftpy_service_t *service); /* -1: it is closed. Check last before its use */
/* the operation holds the service. Steals op */
PyObject *weftpy_service_posted(weftpy_service_t *service, weftpy_op_t *op, weft_status_t status);

/* service_requests.c: methods of Service */
PyObject *weftpy_service_take(PyObject *self, PyObject *unused);
PyObject *weftpy_service_take_serial(PyObject *self, PyObject *unused);
PyObject *weftpy_service_take_cancelled(PyObject *self, PyObject *unused);
PyObject *weftpy_service_stop(PyObject *self, PyObject *unused);

/* service_functions.c: methods of Service */
PyObject *weftpy_service_add(FAST_ARGS);
PyObject *weftpy_service_remove(PyObject *self, PyObject *name);
PyObject *weftpy_service_forget(PyObject *self, PyObject *index);
PyObject *weftpy_service_functions(PyObject *self, PyObject *unused);
PyObject *weftpy_service_parse(PyObject *type, PyObject *signature);

int weftpy_service_ready(weftpy_service_t *service, weftpy_arrival_t *a); /* in a loop: call its function in the next turn */

#endif
