/* _core/serve.h - what the files of services share: requests as they come, and where they wait.
 *
 * inbox.c is C without Python: requests arrive on threads that do not have the GIL. service.c and service_functions.c are the
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

/* Who called, as it was when the request came: endpoints of a service may go at any time. */
typedef struct weftpy_peer {
    char name[64], address[160], transport[16];
    bool authenticated, same_host;
} weftpy_peer_t;

/* A function of a service, as the library knows it: its place in the service's list of Python functions. */
typedef struct weftpy_function {
    weftpy_inbox_t *inbox;
    uint32_t index;
    bool fetch; /* it fetches large arguments itself */
    bool peer;  /* it wants to know who called */
} weftpy_function_t;

/* A request that was kept, from its arrival until it is released. */
struct weftpy_arrival {
    weft_request_t *request;
    weftpy_inbox_t *inbox;
    weftpy_request_t *object;  /* borrowed, NULL until there is one */
    weftpy_peer_t *peer;       /* NULL: nobody asks */
    void *memory;              /* large arguments, fetched; malloc'ed, and not the library's: it may outlive the runtime */
    size_t memory_len;
    uint64_t deadline;         /* by weftpy_clock(); UINT64_MAX: none */
    weft_op_t op;              /* of the fetch */
    weft_ep_id_t from;         /* whose share it has */
    uint32_t index;
    bool counted;              /* memory_len is in inbox->bytes */
    bool watched;              /* in inbox->watched */
    weftpy_arrival_t *next;    /* in inbox->first, or inbox->told */
    weftpy_arrival_t *after, **before; /* in inbox->watched */
};

enum { WEFTPY_SHARES = 256 };

struct weftpy_inbox {
    atomic_uint refs;          /* the Service, each function until the library let go of it, and each arrival */
    pid_t pid;
    weft_runtime_t *rt;
    bool blocking;
    weftpy_service_t *owner;   /* borrowed, under the GIL; NULL: nobody is there any more */
    uint64_t bytes_most, peer_bytes; /* of all peers, and of one */
    uint32_t queue_most, peer_queue;
    pthread_mutex_t lock;
    /* under the lock */
    uint64_t bytes;            /* fetched, for requests that are not over */
    struct weftpy_share *shares[WEFTPY_SHARES]; /* of peers that have something of it, by their endpoint */
    /* of blocking runtimes */
    pthread_cond_t work, news;
    weftpy_arrival_t *first, **last; /* wait for a thread */
    weftpy_arrival_t *told, **told_last; /* cancelled, and somebody wants to know */
    weftpy_arrival_t *watched; /* somebody wants to know when they are cancelled */
    uint32_t waiting;
    bool stopped;
};

/* inbox.c: no function here needs the GIL, and none waits for it. */
weftpy_inbox_t *weftpy_inbox_new(weft_runtime_t *rt, bool blocking, const weft_service_opts_t *opts); /* NULL: no memory */
void weftpy_inbox_unref(weftpy_inbox_t *q);
void weftpy_inbox_arrived(weft_request_t *request, void *function);      /* weft_function_fn */
void weftpy_inbox_released(void *function, void *unused);                /* weft_release_fn */
weftpy_arrival_t *weftpy_inbox_take(weftpy_inbox_t *q);                  /* NULL: none waits */
weftpy_arrival_t *weftpy_inbox_take_told(weftpy_inbox_t *q);             /* with the GIL: ->object is alive */
/* for one of them, without the GIL; false: it is stopped */
bool weftpy_inbox_wait(weftpy_inbox_t *q, bool news, uint64_t ns);
/* what waits is answered UNAVAILABLE, nobody waits any more */
void weftpy_inbox_stop(weftpy_inbox_t *q);
void weftpy_inbox_forget(weftpy_inbox_t *q);                             /* the runtime is gone: what waits is let go of */
void weftpy_inbox_watch(weftpy_arrival_t *a);                            /* it will be among the told when it is cancelled */
void weftpy_inbox_unwatch(weftpy_arrival_t *a);
/* The end of it: released at the library, also after the runtime was closed. memory stays if it was taken (set to NULL). */
void weftpy_arrival_free(weftpy_arrival_t *a);

/* request.c */
struct weftpy_request {
    PyObject_HEAD weftpy_runtime_t *run;
    weftpy_service_t *service;
    weftpy_arrival_t *a; /* NULL: answered, or let go of */
    PyObject *on_cancel;
    PyObject *memory;      /* owner of what was fetched; NULL: still the arrival's, or there is none */
    const char *from, *to; /* and where it lies */
    weftpy_peer_t *peer;
    const weft_sig_t *sig; /* the service's */
    uint64_t deadline;
    uint32_t index;
    bool answered, cancelled, once;
    bool fetched; /* into a buffer of the function's */
};
/* owns a; NULL with an exception: it was answered */
PyObject *weftpy_request_new(weftpy_service_t *service, weftpy_arrival_t *a);
void weftpy_request_let_go(weftpy_request_t *r); /* the library gets it back */
int weftpy_request_check(weftpy_request_t *r);   /* -1: it was answered, or its runtime is closed. Last before it is used */

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
    weft_sig_t **sigs;         /* of them: ours, since the library's may go while Python runs */
    PyObject *registry;        /* held while it is published there */
    PyObject *weakrefs;
};
int weftpy_service_check(weftpy_service_t *service); /* -1: it is closed. Last before it is used */
/* which holds the service. Steals op */
PyObject *weftpy_service_posted(weftpy_service_t *service, weftpy_op_t *op, weft_status_t status);

/* service_functions.c: methods of Service */
PyObject *weftpy_service_add(FAST_ARGS);
PyObject *weftpy_service_remove(PyObject *self, PyObject *name);
PyObject *weftpy_service_forget(PyObject *self, PyObject *index);
PyObject *weftpy_service_functions(PyObject *self, PyObject *unused);
PyObject *weftpy_service_parse(PyObject *type, PyObject *signature);

int weftpy_service_ready(weftpy_service_t *service, weftpy_arrival_t *a); /* in a loop: call its function in the next turn */

#endif
