/* weft/rpc.h - calling functions of other processes: clients, methods, calls, streams.
 *
 * The other side is weft/service.h; weft/function.h makes typed functions of both.
 *
 *     weft_client_open(rt, "weft://calc", NULL, &client);                      any server of it, found through the registry
 *     weft_client_method(client, "add(a: i32, b: i32) -> i32", &add);
 *     weft_value_t args[2] = {weft_i32(25), weft_i32(17)};
 *     weft_reply_t reply = WEFT_REPLY_INIT;
 *     weft_op_t op = WEFT_OP_INIT;
 *     op.timeout_ns = WEFT_SECOND;                                             sent along: the server stops at it too
 *     weft_call(add, args, 2, &reply, &op);
 *     if (!weft_op_wait(&op, WEFT_FOREVER)) printf("%d\n", reply.values[0].i32);
 *     else fprintf(stderr, "%s: %s\n", weft_code_name(reply.code), reply.message);
 *     weft_reply_release(&reply);
 *
 * Before the first call of a method goes to a server, its signature is compared with that of the server's function, and each call
 * carries a check. If the two do not agree the call is refused, and the message prints both.
 *
 * At most once: a call is sent once. It is sent again, to the same server or to another, only if it certainly did not run, if its
 * function is marked `idempotent`, or if it was made with `once`: then it has an id by which the server knows it, and the server
 * repeats the reply instead of running the function again. weft_reply_t.ran says what is known in the end.
 *
 * Statuses of the operation: WEFT_OK with code 0 and only then; WEFT_ERR_TIMEOUT with WEFT_CODE_DEADLINE_EXCEEDED,
 * WEFT_ERR_CANCELLED with WEFT_CODE_CANCELLED; WEFT_ERR_PEER, _CLOSED, _UNREACHABLE, ... with WEFT_CODE_UNAVAILABLE;
 * WEFT_ERR_CALL: the server or the function refused, and code, message, category and value say why.
 *
 * Endings: calls with a client that was closed, by any thread or with its runtime, or with a method of it, return
 *          WEFT_ERR_CLOSED, or, while the close is under way, complete with it. Replies, items and streams that the program has
 *          may be used and released after that.
 * Threads: any, for everything here; functions given here are called in progress. */
#ifndef WEFT_RPC_H
#define WEFT_RPC_H

#include <weft/conn.h>
#include <weft/mem.h>
#include <weft/registry.h>
#include <weft/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- how a call ended ------------------------------------------------------------------------------------------------- */

/* The codes of gRPC. */
/*        name                            value  words */
#define WEFT_CODE_LIST(X) \
    X(WEFT_CODE_OK,                    0, "OK") \
    X(WEFT_CODE_CANCELLED,             1, "CANCELLED") \
    X(WEFT_CODE_UNKNOWN,               2, "UNKNOWN") \
    X(WEFT_CODE_INVALID_ARGUMENT,      3, "INVALID_ARGUMENT") \
    X(WEFT_CODE_DEADLINE_EXCEEDED,     4, "DEADLINE_EXCEEDED") \
    X(WEFT_CODE_NOT_FOUND,             5, "NOT_FOUND") \
    X(WEFT_CODE_ALREADY_EXISTS,        6, "ALREADY_EXISTS") \
    X(WEFT_CODE_PERMISSION_DENIED,     7, "PERMISSION_DENIED") \
    X(WEFT_CODE_RESOURCE_EXHAUSTED,    8, "RESOURCE_EXHAUSTED") \
    X(WEFT_CODE_FAILED_PRECONDITION,   9, "FAILED_PRECONDITION") \
    X(WEFT_CODE_ABORTED,              10, "ABORTED") \
    X(WEFT_CODE_OUT_OF_RANGE,         11, "OUT_OF_RANGE") \
    X(WEFT_CODE_UNIMPLEMENTED,        12, "UNIMPLEMENTED") \
    X(WEFT_CODE_INTERNAL,             13, "INTERNAL") \
    X(WEFT_CODE_UNAVAILABLE,          14, "UNAVAILABLE") \
    X(WEFT_CODE_DATA_LOSS,            15, "DATA_LOSS") \
    X(WEFT_CODE_UNAUTHENTICATED,      16, "UNAUTHENTICATED")

typedef enum weft_code {
#define WEFT_CODE_ENUM(name, value, text) name = (value),
    WEFT_CODE_LIST(WEFT_CODE_ENUM)
#undef WEFT_CODE_ENUM
    WEFT_CODE_FORCE_INT = 0x7fffffff
} weft_code_t;
/* "NOT_FOUND"; "?" for a number that is no code. */
WEFT_API const char *weft_code_name(weft_code_t code);

/* What weft_reply_t.value is, beside the code. Categories from WEFT_CATEGORY_USER on are the program's. */
#define WEFT_CATEGORY_NONE   UINT32_C(0)
#define WEFT_CATEGORY_WEFT   UINT32_C(1) /* a weft_status_t */
#define WEFT_CATEGORY_ERRNO  UINT32_C(2) /* an errno of the server's */
#define WEFT_CATEGORY_USER   UINT32_C(256)

typedef enum weft_ran {
    WEFT_NOT_RUN = 0,      /* it was not sent, or the server turned it away before it began */
    WEFT_MAY_HAVE_RUN = 1, /* it was sent, and no more is known */
    WEFT_RAN = 2           /* the function answered, with results or a failure */
} weft_ran_t;

/* The caller's, like the operation, from the call until weft_reply_release(), which may come after the runtime was closed.
 * Results are valid until then. It is set when the operation is complete. */
typedef struct weft_reply {
    weft_code_t code;
    weft_ran_t ran;
    uint32_t category;          /* WEFT_CATEGORY_* */
    int32_t value;
    const char *message;        /* "" if there is none; never NULL once complete */
    const weft_value_t *values; /* results; strings, vectors and tensors view memory of the reply, or the `into` of the call. No
                                   peer can write there */
    size_t n;
    uint32_t tries;             /* how often it was sent */
    uint32_t holds;             /* the library's, from here on */
    weft_value_t small[2];      /* up to two small results are in the reply itself: nothing is allocated for them */
    uint64_t bytes[13];
    void *more;
} weft_reply_t;
#define WEFT_REPLY_INIT WEFT_ZERO(weft_reply_t)
/* Give back what it holds: once per completion, even if it holds nothing. */
WEFT_API void weft_reply_release(weft_reply_t *reply);

/* --- values ----------------------------------------------------------------------------------------------------------- */

/* Field by field, as whole words: compilers then make a value where it is wanted. A union that is zeroed and set in part goes
 * through memory, where the next load waits for several stores: as long as a tenth of a call. */
#define WEFT_VALUE_OF(name, ctype, number, word) \
    static inline weft_value_t weft_##name(ctype x) \
    { \
        union { ctype of; word bits; } as; \
        weft_value_t v; \
        as.of = x; \
        v.type = number; \
        v.zero = 0; \
        v.u64 = as.bits; /* the machine is little-endian */ \
        v.view.n = 0; \
        return v; \
    }
WEFT_VALUE_OF(bool, bool, WEFT_T_BOOL, uint8_t)
WEFT_VALUE_OF(i8, int8_t, WEFT_T_I8, uint8_t)
WEFT_VALUE_OF(i16, int16_t, WEFT_T_I16, uint16_t)
WEFT_VALUE_OF(i32, int32_t, WEFT_T_I32, uint32_t)
WEFT_VALUE_OF(i64, int64_t, WEFT_T_I64, uint64_t)
WEFT_VALUE_OF(u8, uint8_t, WEFT_T_U8, uint8_t)
WEFT_VALUE_OF(u16, uint16_t, WEFT_T_U16, uint16_t)
WEFT_VALUE_OF(u32, uint32_t, WEFT_T_U32, uint32_t)
WEFT_VALUE_OF(u64, uint64_t, WEFT_T_U64, uint64_t)
WEFT_VALUE_OF(f32, float, WEFT_T_F32, uint32_t)
WEFT_VALUE_OF(f64, double, WEFT_T_F64, uint64_t)
#undef WEFT_VALUE_OF
/* n bytes of text, n elements of a vector of `type` (WEFT_T_F64 for [f64]), a tensor, n tensors. */
static inline weft_value_t weft_text(const char *text, size_t n)
{
    weft_value_t v;
    v.type = WEFT_T_STRING;
    v.zero = 0;
    v.view.data = text;
    v.view.n = n;
    return v;
}
static inline weft_value_t weft_vector(uint32_t type, const void *data, size_t n)
{
    weft_value_t v;
    v.type = WEFT_T_VECTOR | type;
    v.zero = 0;
    v.view.data = data;
    v.view.n = n;
    return v;
}
#if defined(__cplusplus) && defined(__GNUC__) /* a struct of this name is there too, but weft_tensor_t is what it is called by */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
static inline weft_value_t weft_tensor(const weft_tensor_t *tensor)
{
    weft_value_t v;
    v.type = WEFT_T_TENSOR;
    v.zero = 0;
    v.tensors.at = tensor;
    v.tensors.n = 1;
    return v;
}
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
static inline weft_value_t weft_tensors(const weft_tensor_t *tensors, size_t n)
{
    weft_value_t v;
    v.type = WEFT_T_VECTOR | WEFT_T_TENSOR;
    v.zero = 0;
    v.tensors.at = tensors;
    v.tensors.n = n;
    return v;
}

/* --- clients ---------------------------------------------------------------------------------------------------------- */

typedef struct weft_client weft_client_t;
typedef struct weft_method weft_method_t;

typedef struct weft_client_opts {
    size_t size;
    const char *service;       /* with a uri that names none, or over an endpoint. NULL: any service that has the function */
    const char *instance;      /* only that one of it. NULL: any */
    weft_registry_t *registry; /* for weft:// uris; outlives the client. NULL: the configured one (WEFT_REGISTRY) */
    uint32_t tries;            /* a call that may be sent again is sent at most so often. Default is: 3 */
    uint32_t instances;        /* connect to at most so many instances of a service at one time. Default is: 16 */
    uint64_t timeout_ns;       /* deadline of weft_call_wait(), and so of typed functions that wait. Default is: none */
    uint64_t reconnect_ns;     /* first pause before a lost server is tried again; doubles up to 5 s. Default is: 50 ms */
    uint64_t stall_ns;         /* a server that announced results or values of streams, and sends nothing of them for so long,
                                  loses its connection. UINT64_MAX: never. Default is: 30 s */
    uint32_t connections;      /* to each server, 1 to 64. A call goes to one with few calls under way; calls over different ones
                                  have no order among themselves. A server with several shards uses as many cores for this client.
                                  Not over an endpoint of the program. Default is: 1 */
} weft_client_opts_t;
#define WEFT_CLIENT_OPTS_INIT WEFT_INIT(weft_client_opts_t)

/* A client of a service. opts may be NULL.
 *
 *     weft://calc            all instances that the registry knows: calls go to the least busy one, none to a lost one
 *     weft://calc@mill-3     that instance
 *     tcp://host:port, unix://...   that server (as for weft_ep_open()); lost, it is dialled again
 *
 * Returns at once. Calls wait for a server until their deadlines; without a deadline until they are cancelled.
 * Fails:   WEFT_ERR_INVALID (the uri), those of weft_registry_open(), WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_client_open(weft_runtime_t *rt, const char *uri, const weft_client_opts_t *opts,
                                                        weft_client_t **client_out);
/* A client over an endpoint of the program, which outlives it. Either side of a connection may call the other. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_client_on(weft_ep_t *ep, const weft_client_opts_t *opts,
                                                      weft_client_t **client_out);
/* Close it: calls under way complete with WEFT_ERR_CLOSED, its methods are gone, its own connections are closed. op (may be NULL)
 * completes when that is done. Do it before the runtime closes. Streams that the program still has are ended, and stay until it
 * releases them. */
WEFT_API weft_status_t weft_client_close(weft_client_t *client, weft_op_t *op);

typedef struct weft_client_stats {
    size_t size;
    uint64_t calls, ok, failed, cancelled, timed_out; /* since it was opened; failed: with any other code */
    uint64_t retried;
    uint64_t under_way, waiting;                     /* now; waiting: of them, those not sent yet */
    uint32_t instances, connected;                   /* known now; connections that are up now */
} weft_client_stats_t;
#define WEFT_CLIENT_STATS_INIT WEFT_INIT(weft_client_stats_t)
WEFT_API weft_status_t weft_client_get_stats(weft_client_t *client, weft_client_stats_t *stats_out);

/* The function with this signature, for calls of this client. With only its name ("add") or its number ("#7") its signature is
 * that of the first server that it meets; weft_method_sig() has it when weft_method_check() is complete. The same text gives the
 * same method. It lives as long as the client. Fails: WEFT_ERR_INVALID (weft_last_error() shows where), WEFT_ERR_LIMIT (more than
 * 65535), WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_client_method(weft_client_t *client, const char *signature,
                                                          weft_method_t **method_out);
/* Ask a server now whether it has the function and the signatures agree: op completes with WEFT_OK, or as a call would; reply
 * (may be NULL) then has the code and the message (WEFT_CODE_UNIMPLEMENTED: no such function; WEFT_CODE_FAILED_PRECONDITION: both
 * signatures). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_method_check(weft_method_t *method, weft_reply_t *reply, weft_op_t *op);
/* NULL: only its name is known yet. */
WEFT_API const weft_sig_t *weft_method_sig(const weft_method_t *method);

/* --- calls ------------------------------------------------------------------------------------------------------------ */

/* Call it. args (n of them, as the signature says, without a stream), all they view, and reply are borrowed until op completes.
 * op->timeout_ns is the deadline, and is sent along. Cancelling reaches the function (weft_request_cancelled()). Arguments of 1
 * KiB and more are sent from where they are, without a copy. op->from is the endpoint that it was sent over last, 0 if it was not
 * sent.
 *
 * A `oneway` function: op completes when it is sent. op may be NULL: then everything is copied, or the call fails with
 * WEFT_ERR_AGAIN if it would have to wait. reply may be NULL if nobody wants it.
 * Fails:   WEFT_ERR_INVALID (arguments that are not those of the signature), WEFT_ERR_CLOSED, WEFT_ERR_STATE (the signature is
 *          not known yet, or it has
 * streams), WEFT_ERR_NOMEM. Then nothing was sent. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_call(weft_method_t *method, const weft_value_t *args, size_t n, weft_reply_t *reply,
                                                 weft_op_t *op);

typedef struct weft_call_opts {
    size_t size;
    bool once;       /* exactly once, as long as that server lives: the server remembers it by an id until we have the reply */
    bool fresh;      /* never a second try, whatever the function is */
    void *into;      /* results of 1 KiB and more go here, one after the other, each aligned to 64, without a copy; */
    size_t into_cap; /* longer: WEFT_ERR_TRUNCATED. NULL: memory of the reply */
    const weft_mem_kind_t *into_kind; /* of it. Default is: look. A device takes tensors only: else WEFT_ERR_UNSUPPORTED */
} weft_call_opts_t;
#define WEFT_CALL_OPTS_INIT WEFT_INIT(weft_call_opts_t)
/* opts is borrowed too; it may be NULL. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_call_with(weft_method_t *method, const weft_value_t *args, size_t n,
                                                      const weft_call_opts_t *opts, weft_reply_t *reply, weft_op_t *op);

/* Call it and wait. Returns the status of the operation. opts may be NULL. timeout_ns is the deadline; 0: the client's;
 * WEFT_FOREVER: none. reply (may be NULL) need not be set before, and is always filled in; weft_last_error() has its code and
 * message. WEFT_ERR_STATE: from inside a callback. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_call_wait(weft_method_t *method, const weft_value_t *args, size_t n,
                                                      const weft_call_opts_t *opts, uint64_t timeout_ns, weft_reply_t *reply);

/* Many calls at once, cheaper than each alone. Returns how many were started: less than n if one could not be, and *why_out (may
 * be NULL) says why. */
typedef struct weft_call_item {
    const weft_value_t *args;
    size_t n;
    weft_reply_t *reply;
    weft_op_t *op;
} weft_call_item_t;
WEFT_API size_t weft_call_many(weft_method_t *method, const weft_call_item_t *items, size_t n, weft_status_t *why_out);

/* --- streams ---------------------------------------------------------------------------------------------------------- */

/* One side of a call whose arguments or result are a stream of values. Each side sends what the signature lets it, and receives
 * what the other sends, in order. A sender waits while the other side has 64 values, or 1 MiB, that nobody took; one value may go
 * beyond the 1 MiB, up to 1 GiB (at a service: its payload_max).
 *
 * The streams of a call end with the server's answer. What it sent before can still be received; then receives end with op->len
 * 0, or with WEFT_ERR_CALL if it answered with a failure. If the call ended in any other way (cancelled, late, the peer lost),
 * what arrived is dropped, and receives end with its status at once. */
typedef struct weft_stream weft_stream_t;

/* A value that arrived; its views are valid until weft_item_release(), from any thread, which may come after the runtime was
 * closed. */
typedef struct weft_item {
    weft_value_t value;
    void *more; /* of the library */
} weft_item_t;
#define WEFT_ITEM_INIT WEFT_ZERO(weft_item_t)
WEFT_API void weft_item_release(weft_item_t *item);

/* Begin such a call. op and reply are those of the whole call: op completes when the server has answered, which may be before the
 * streams have ended. The stream is yours until weft_stream_release(); values can be posted to it at once. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_call_stream(weft_method_t *method, const weft_value_t *args, size_t n,
                                                        const weft_call_opts_t *opts, weft_reply_t *reply, weft_op_t *op,
                                                        weft_stream_t **stream_out);
/* Send a value. What it views is borrowed until op completes, when it is on its way; the value itself is not. Several may be
 * posted: they keep their order. One that waits can be cancelled, and was not sent. One that is on its way completes when the
 * other side has it, even if it is cancelled. op NULL: it is copied; WEFT_ERR_AGAIN if it would have to wait (from a thread that
 * does not drive the runtime: if 64 such wait already). Fails, or completes: WEFT_ERR_INVALID (not of the stream's type),
 * WEFT_ERR_STATE (the signature has no stream in this direction, or it was ended), WEFT_ERR_CLOSED (the call was answered),
 * WEFT_ERR_REJECTED (the other side had no space for it), or as the call. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_stream_send(weft_stream_t *stream, const weft_value_t *value, weft_op_t *op);
/* No more values from this side, after those that were posted. A server's stream also ends with its reply. op may be NULL. Fails
 * as above. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_stream_end(weft_stream_t *stream, weft_op_t *op);
/* Receive the next value: op completes with WEFT_OK and op->len 1 and the item; with WEFT_OK and op->len 0 at the end of the
 * stream; otherwise as the call. Several may be posted. WEFT_ERR_NOMEM, WEFT_ERR_LIMIT: a value could not be kept here.
 * WEFT_ERR_PEER: the other side could not send one. Nothing can be received after either. The item is set by this call; release
 * it after each completion that gave one. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_stream_recv(weft_stream_t *stream, weft_item_t *item, weft_op_t *op);
/* Done with it. A call that is under way is cancelled, and what is posted to it ends with WEFT_ERR_CANCELLED. Nothing may be
 * posted any more. The stream of a request is not released. NULL is allowed. */
WEFT_API void weft_stream_release(weft_stream_t *stream);

/* --- reflection ------------------------------------------------------------------------------------------------------- */

/* Every service answers these calls, over an endpoint, or through a client for its `service`:
 *
 *     weft.services() -> string                    a line for each: name, instance, version of the library
 *     weft.functions(service: string) -> string    a line for each: number, signature */
#define WEFT_RPC_SERVICES  "weft.services() -> string idempotent"
#define WEFT_RPC_FUNCTIONS "weft.functions(service: string) -> string idempotent"

#ifdef __cplusplus
}
#endif
#endif
