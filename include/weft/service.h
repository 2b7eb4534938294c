/* weft/service.h - offering functions to other processes: services, functions, requests. The other side is weft/rpc.h.
 *
 *     static void add(weft_request_t *request, void *user)
 *     {
 *         weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
 *         weft_request_reply(request, &sum, 1);
 *     }
 *     weft_service_open(rt, "calc", NULL, &service);
 *     weft_service_add(service, "add(a: i32, b: i32) -> i32", add, NULL, NULL);
 *     weft_listen(rt, "tcp://0.0.0.0:0", NULL, &listener);
 *     weft_service_publish(service, NULL, NULL);                               so that weft://calc finds it
 *
 * A service answers over every endpoint of its runtime. Its functions run in progress, or on threads of the service. They answer
 * before they return, or keep the request and answer later, from any thread. On a runtime with several shards a function runs in
 * the progress of the shard that its request came to, and so may run several times at once, unless it says `serial`.
 *
 * Limits:  a service has a limit of requests and of bytes, and one peer at most its part of both. A call beyond them is answered
 *          WEFT_CODE_RESOURCE_EXHAUSTED at once, and not run. A peer that does not take its replies is not read from any more:
 *          its window (weft/am.h) bounds what is held for it. A peer that announces arguments and does not send them loses its
 *          connection.
 * Endings: calls with a service that was closed, by any thread or with its runtime, return WEFT_ERR_CLOSED. Kept requests are the
 *          program's until it releases them, which may be after that: then they are cancelled, and answering them fails.
 * Threads: any, for everything here. */
#ifndef WEFT_SERVICE_H
#define WEFT_SERVICE_H

#include <weft/rpc.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_service weft_service_t;

typedef struct weft_service_opts {
    size_t size;
    const char *instance;  /* its own name among those of the service. NULL: one is made up */
    uint32_t threads;      /* of its own, for functions that say `threads`. Default is: 0 */
    uint32_t requests;     /* under way at one time, with those that wait for a thread. Default is: 1048576 */
    uint32_t queue;        /* of them, waiting for a thread. Default is: 65536 */
    uint64_t bytes;        /* held for requests that are kept or wait: themselves, arguments, values of streams that nobody took,
                              remembered replies. Default is: 2 GiB */
    uint64_t payload_max;  /* of the arguments of one request. Default is: 1 GiB */
    uint32_t remembered;   /* replies to calls made with `once`, at one time. Default is: 65536 */
    uint64_t remember_ns;  /* and how long, if their caller does not say that it has them. Default is: 60 s */
    uint32_t peer_percent; /* what one peer (one connection) may have of `requests`, `queue`, `bytes` and `remembered`, so that
                              others are served whatever it does; 1 to 100. Default is: 50 */
    uint64_t stall_ns;     /* a peer that announced arguments or values of streams, and sends nothing of them for so long, loses
                              its connection, and its calls fail. Until then memory is held for it. UINT64_MAX: never. Default is:
                              30 s */
} weft_service_opts_t;
#define WEFT_SERVICE_OPTS_INIT WEFT_INIT(weft_service_opts_t)

/* A service of that name on a runtime: at most 63 letters, digits, '.', '-', '_'; names that begin with "weft" are the library's.
 * Several services may have one name, with different instances. opts may be NULL. Fails: WEFT_ERR_INVALID, WEFT_ERR_STATE (the
 * instance is there), WEFT_ERR_LIMIT (threads), WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_service_open(weft_runtime_t *rt, const char *name, const weft_service_opts_t *opts,
                                                         weft_service_t **service_out);
WEFT_API const char *weft_service_name(const weft_service_t *service);
WEFT_API const char *weft_service_instance(const weft_service_t *service);

/* Drain:   new calls are answered WEFT_CODE_UNAVAILABLE, and not run, so that clients take another server. Its entry is removed
 *          from the registry. op
 * completes when the last request has been answered. For a published service that is not before its clients had a moment to hear
 * of it (100 ms, up to 2 s while calls still come): a program that exits then loses no call. With op->timeout_ns it ends by then;
 * requests that are left go on. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_service_drain(weft_service_t *service, weft_op_t *op);
/* Close it: like drain, but requests that are under way are cancelled (their functions are told), and answered
 * WEFT_CODE_UNAVAILABLE. op (may be NULL) completes when the last has been released and its threads are gone: do not free what
 * its functions use before that. Do it before the runtime closes. Later calls over connections of the runtime are answered
 * WEFT_CODE_UNAVAILABLE too, and not run, unless a service of that name is open again; a runtime remembers the last 16 names. */
WEFT_API weft_status_t weft_service_close(weft_service_t *service, weft_op_t *op);

/* Enter it into a registry (NULL: the configured one, opened for it), with the addresses of the runtime's listeners (or
 * `address`, for peers that reach it by another name) and its functions, and keep its load up to date. weft_entry_t.data has a
 * line for each function, number and signature, and a last one with the identity that the runtime proves to peers
 * (weft_ep_info_t), if it has one: "identity mill-3". Listen first: WEFT_ERR_STATE. Until drain or close. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_service_publish(weft_service_t *service, weft_registry_t *registry,
                                                            const char *address);

typedef struct weft_service_stats {
    size_t size;
    uint64_t requests, answered, failed;       /* since it was opened; failed: answered with a code that is not 0 */
    uint64_t exhausted, refused;               /* turned away: over a limit; no such function, or another signature */
    uint64_t cancelled, late;                  /* ended by their caller, or its end; by their deadline */
    uint64_t repeated;                         /* calls made with `once` that came again and were answered from memory */
    uint64_t under_way, waiting, bytes, remembered; /* now */
} weft_service_stats_t;
#define WEFT_SERVICE_STATS_INIT WEFT_INIT(weft_service_stats_t)
WEFT_API weft_status_t weft_service_get_stats(weft_service_t *service, weft_service_stats_t *stats_out);

/* --- functions -------------------------------------------------------------------------------------------------------- */

typedef struct weft_request weft_request_t;

/* A function. It may read the request, answer it, keep it, send, call others, but not wait; on threads of the service it may
 * wait. A request that it neither answers nor keeps is answered WEFT_CODE_INTERNAL. */
typedef void (*weft_function_fn)(weft_request_t *request, void *user);

typedef struct weft_function_opts {
    size_t size;
    uint32_t number;         /* by which it can be called too, unique within the service. 0: one is made up */
    bool threads;            /* run it on the service's threads */
    bool fetch;              /* begin it before the data of large arguments is here: it fetches it itself (weft_request_fetch) */
    weft_release_fn release; /* called with user (as buf) and NULL when the function is removed and the last of its requests is
                                released: `user` is handed over. NULL: it is borrowed */
    bool serial;             /* for a runtime with several shards (weft/runtime.h): requests of such functions run one at a time,
                                in the progress of the first shard, as all do where there is one shard. Not with `threads` */
} weft_function_opts_t;
#define WEFT_FUNCTION_OPTS_INIT WEFT_INIT(weft_function_opts_t)

/* Add a function. opts may be NULL. Fails: WEFT_ERR_INVALID (the signature; or a name that begins with "weft."), WEFT_ERR_STATE
 * (the name or the number is taken; or `threads` where the service has none), WEFT_ERR_LIMIT (65536 on a runtime),
 * WEFT_ERR_NOMEM, WEFT_ERR_CLOSED. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_service_add(weft_service_t *service, const char *signature, weft_function_fn fn,
                                                        void *user, const weft_function_opts_t *opts);
/* Remove it: calls from now on are answered WEFT_CODE_UNIMPLEMENTED, those under way go on. op (may be NULL) completes when the
 * last of them is released. WEFT_ERR_NOTFOUND. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_service_remove(weft_service_t *service, const char *name, weft_op_t *op);
/* Its functions as text, a line for each: number, a space, the signature. At most cap bytes with the zero at the end; returns how
 * many it has without. */
WEFT_API size_t weft_service_functions(weft_service_t *service, char *buf, size_t cap);

/* --- requests --------------------------------------------------------------------------------------------------------- */

/* Read only. Valid until the function returns; a kept one until weft_request_release(). */
struct weft_request {
    const weft_value_t *args; /* views are valid as long as the request. No peer can write to that memory: what was checked
                                 (lengths, shapes, UTF-8, bools) stays so */
    size_t n;
    const weft_sig_t *sig;
    weft_service_t *service;
    weft_ep_id_t from;        /* the endpoint it came over */
    uint64_t left_ns;         /* until its deadline, when it arrived; UINT64_MAX: it has none */
    uint64_t fetch_len;       /* bytes of arguments that are not here yet (weft_function_opts_t.fetch) */
    weft_stream_t *stream;    /* where the signature has one; NULL otherwise. Valid as long as the request: keep it */
    bool once;
    uint32_t shard;           /* of its runtime, where it came to */
};

/* From inside the function: keep the request and its arguments until weft_request_release(). Use the result from then on; on a
 * thread of the service, and with a stream, it is the same pointer. NULL: no memory, or the limits of the service; then the
 * request has been answered WEFT_CODE_RESOURCE_EXHAUSTED. */
WEFT_API weft_request_t *weft_request_keep(weft_request_t *request);
/* Done with a kept request, and its arguments. One that was not answered is answered WEFT_CODE_INTERNAL. */
WEFT_API void weft_request_release(weft_request_t *request);

/* Answer, once: n results as the signature says. They are copied, whatever their size. WEFT_ERR_INVALID: they are not what the
 * signature says; WEFT_ERR_NOMEM: there is no memory for them, and the caller was told so; WEFT_ERR_STATE: it was answered
 * before; WEFT_ERR_CANCELLED: nobody waits for it any more. With a stream, the answer follows what was sent on it. */
WEFT_API weft_status_t weft_request_reply(weft_request_t *request, const weft_value_t *values, size_t n);
/* The same without a copy of results of 1 KiB and more: what they view is borrowed until op completes, which must not be NULL.
 * The request may be released before. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_request_reply_from(weft_request_t *request, const weft_value_t *values, size_t n,
                                                               weft_op_t *op);
/* Answer with a code that is not 0 (0 becomes WEFT_CODE_UNKNOWN) and a message (may be NULL; 1000 bytes of it are sent). */
WEFT_API weft_status_t weft_request_fail(weft_request_t *request, weft_code_t code, const char *message);
/* The same with a number of another category. */
WEFT_API weft_status_t weft_request_fail_with(weft_request_t *request, weft_code_t code, uint32_t category, int32_t value,
                                              const char *message);

/* Who calls: the identity of the peer that it came from (weft_ep_info_t), "" if it has none, or its endpoint is gone. At most cap
 * bytes with the zero at the end; returns how many it has without. Any thread. */
WEFT_API size_t weft_request_identity(const weft_request_t *request, char *buf, size_t cap);

/* Is it cancelled, past its deadline, its caller gone, or the service closing? Then nobody waits for the answer. Any thread. */
WEFT_API bool weft_request_cancelled(const weft_request_t *request);
/* For a kept request: fn is called in progress, once, when that happens, or soon if it has happened. It may release the request.
 * NULL takes it back: on the driving thread fn is not called after that; on another thread a call that has begun goes on. It is
 * not called after the request was answered. */
typedef void (*weft_cancel_fn)(weft_request_t *request, void *user);
WEFT_API void weft_request_on_cancel(weft_request_t *request, weft_cancel_fn fn, void *user);

/* Fetch the data of large arguments, for functions added with `fetch`, into one buffer of fetch_len bytes (with each argument
 * aligned to 64), in any kind of memory (NULL: look). When op completes the arguments view it. Only for a kept request, and once.
 * WEFT_ERR_TRUNCATED: cap is too small; WEFT_ERR_UNSUPPORTED: memory of a device, and a large argument that is no tensor;
 * WEFT_ERR_PEER. If a request is answered without it, the data never moves. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_request_fetch(weft_request_t *request, void *buf, size_t cap,
                                                          const weft_mem_kind_t *kind, weft_op_t *op);

#ifdef __cplusplus
}
#endif
#endif
