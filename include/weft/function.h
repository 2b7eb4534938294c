/* weft/function.h - typed functions: declared once, in a header that client and server share.
 *
 *     WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))                   add(a: i32, b: i32) -> i32
 *     WEFT_FUNCTION(calc_split, "split", ((string, head), (string, tail)),      split(text: string, at: u64)
 *                   (string, text), (u64, at))                                      -> (head: string, tail: string)
 *     WEFT_FUNCTION(calc_reset, "reset", void)                                  reset() -> void
 *     WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))          mean(values: [f64]) -> f64 idempotent
 *     WEFT_FUNCTION_ONEWAY(calc_log, "log", (string, line))                     log(line: string) -> void oneway
 *     WEFT_FUNCTION_GIVES_STREAM(calc_primes, "primes", u64, (u64, below))      primes(below: u64) -> stream u64
 *     WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values),       total(from: f64, values: stream f64) -> f64
 *                                (f64, from))
 *     WEFT_FUNCTION_BOTH_STREAMS(calc_chat, "chat", string, (string, lines))    chat(lines: stream string) -> stream string
 *
 * The first name is that of the C functions, the second that on the wire. At most 8 parameters and 8 results; a parameter is
 * (type, name).
 *
 *     in the signature    here      in C
 *     bool, i8 ... f64    the same  bool, int8_t ... double
 *     string              string    weft_string_t    {data, n}: weft_string("text")
 *     [bool], [i8] ...    i8s       weft_i8s_t       {data, n}: weft_i8s(data, n)
 *     tensor              tensor    const weft_tensor_t *
 *     [tensor]            tensors   weft_tensors_t   {data, n}
 *
 * WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b)) declares these, all static:
 *
 *     weft_status_t calc_add(weft_client_t *client, int32_t a, int32_t b, int32_t *result_out)
 *         Call it and wait; not from callbacks. The deadline is the client's (weft_client_opts_t.timeout_ns). weft_last_error()
 *         has the code and the message of a failure. If a result is a string, vector or tensor there is one more parameter,
 *         weft_reply_t *reply: what the result views is there, until weft_reply_release(). Several results: a struct,
 *         calc_split_result_t.
 *     weft_status_t calc_add_post(weft_client_t *client, int32_t a, int32_t b, calc_add_call_t *call)
 *         Call it: call->op completes. The call is the caller's, WEFT_CALL_ZERO before its first use. Fields of call->op
 *         (timeout_ns, token, fn, queue) and call->opts may be set before; call->reply is there after. Oneway: call may be NULL,
 *         as for weft_call().
 *     int32_t calc_add_result(const calc_add_call_t *call)
 *         After a completion with WEFT_OK, before weft_reply_release(&call->reply), which every completion needs.
 *
 *     weft_code_t fn(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *result_out)
 *         The function, as the server has it: calc_add_fn. WEFT_CODE_OK: the answer is what it has put into *result_out (zero
 *         before), copied. Any other code: a failure; `return weft_failed(request, code, "words")` gives it words. WEFT_LATER:
 *         the function has answered, or has kept the request, to be answered later with calc_add_reply() or weft_request_fail().
 *         `static calc_add_fn add;` before the function makes the compiler compare the two, whatever its flags.
 *     weft_status_t calc_add_serve(weft_service_t *service, calc_add_fn *fn, void *user, const weft_function_opts_t *opts)
 *         As weft_service_add().
 *     weft_status_t calc_add_reply(weft_request_t *request, int32_t result), calc_add_reply_from(request, result, op)
 *         As weft_request_reply() and weft_request_reply_from(). Of several results: a pointer to the struct.
 *     calc_add_args_t calc_add_args(const weft_request_t *request)
 *         {a, b} of a request that was kept or fetched: the views that the function was given are valid until it returns.
 *     weft_function_t *calc_add_function(void)
 *         ->signature is the signature.
 *
 * For a function with streams (weft/rpc.h) calc_primes_open(client, below, call) begins the call: call->stream is yours until
 * weft_stream_release(). For the values:
 *
 *     calc_total_send(stream, 1.5, op)   the client sends        calc_primes_give(stream, 7, op)   the server sends
 *     calc_total_sent(&item)             the server has it       calc_primes_given(&item)          the client has it
 *
 * Numbers convert as C converts them (-Wconversion says where); anything else of another type does not compile.
 * weft/function_parts.h has the macros behind these.
 *
 * Threads: as for weft_call() and weft_service_add(). A client looks such a function up once; after that no text is compared. */
#ifndef WEFT_FUNCTION_H
#define WEFT_FUNCTION_H

#include <string.h>
#include <weft/rpc.h>
#include <weft/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- views ------------------------------------------------------------------------------------------------------------ */

typedef struct weft_string_t { const char *data; size_t n; } weft_string_t; /* UTF-8, without a zero at the end */
static inline weft_string_t weft_string_n(const char *text, size_t n)
{
    weft_string_t s = {text, n};
    return s;
}
static inline weft_string_t weft_string(const char *text) { return weft_string_n(text, strlen(text)); }

#define WEFT_FN_VECTOR(type, ctype) \
    typedef struct weft_##type##s_t { const ctype *data; size_t n; } weft_##type##s_t; \
    static inline weft_##type##s_t weft_##type##s(const ctype *data, size_t n) \
    { \
        weft_##type##s_t v = {data, n}; \
        return v; \
    }
WEFT_FN_VECTOR(i8, int8_t)
WEFT_FN_VECTOR(i16, int16_t)
WEFT_FN_VECTOR(i32, int32_t)
WEFT_FN_VECTOR(i64, int64_t)
WEFT_FN_VECTOR(u8, uint8_t)
WEFT_FN_VECTOR(u16, uint16_t)
WEFT_FN_VECTOR(u32, uint32_t)
WEFT_FN_VECTOR(u64, uint64_t)
WEFT_FN_VECTOR(f32, float)
WEFT_FN_VECTOR(f64, double)
#undef WEFT_FN_VECTOR
typedef struct weft_bools_t { const bool *data; size_t n; } weft_bools_t;
static inline weft_bools_t weft_bools(const bool *data, size_t n)
{
    weft_bools_t v = {data, n};
    return v;
}
/* Written as {data, n}: weft_tensors() makes a weft_value_t. */
typedef struct weft_tensors_t { const weft_tensor_t *data; size_t n; } weft_tensors_t;

/* --- what the stubs need of the library ------------------------------------------------------------------------------- */

/* A function as a program declares it. Static, zero after the signature. */
typedef struct weft_function {
    const char *signature;
    uint32_t index; /* of the library: its place in the tables of clients, from 1 */
    uint32_t zero;
} weft_function_t;

/* The method of that function, for calls of this client: as weft_client_method(), but the signature is read the first time
 * only. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_function_method(weft_client_t *client, weft_function_t *function,
                                                            weft_method_t **method_out);

/* A function of any type; cast back to its own before it is called. */
typedef void (*weft_handler_fn)(void);
/* What a typed function is given as `user`. */
typedef struct weft_handler {
    weft_handler_fn fn;
    void *user;
} weft_handler_t;
/* weft_service_add() with run(request, weft_handler_t *); the handler stays as long as the function. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_function_serve(weft_service_t *service, const weft_function_t *function,
                                                           weft_function_fn run, weft_handler_fn fn, void *user,
                                                           const weft_function_opts_t *opts);

/* What a function returns that has answered, or that keeps the request to answer it later. */
#define WEFT_LATER ((weft_code_t)0x7ffffffe)

/* Answer with that failure, and words: `return weft_failed(request, WEFT_CODE_NOT_FOUND, "no such account");` */
static inline weft_code_t weft_failed(weft_request_t *request, weft_code_t code, const char *message)
{
    (void)weft_request_fail(request, code, message);
    return WEFT_LATER;
}

/* A call that has not been made yet. */
#ifdef __cplusplus
#define WEFT_CALL_ZERO {}
#else
#define WEFT_CALL_ZERO {.op = WEFT_OP_INIT}
#endif

/* --- types ------------------------------------------------------------------------------------------------------------ */

/* WEFT_TYPE_<type>: the type in C, in the signature, and whether it is a view. */
#define WEFT_TYPE_bool bool, "bool", 0
#define WEFT_TYPE__Bool bool, "bool", 0
#define WEFT_TYPE_i8 int8_t, "i8", 0
#define WEFT_TYPE_i16 int16_t, "i16", 0
#define WEFT_TYPE_i32 int32_t, "i32", 0
#define WEFT_TYPE_i64 int64_t, "i64", 0
#define WEFT_TYPE_u8 uint8_t, "u8", 0
#define WEFT_TYPE_u16 uint16_t, "u16", 0
#define WEFT_TYPE_u32 uint32_t, "u32", 0
#define WEFT_TYPE_u64 uint64_t, "u64", 0
#define WEFT_TYPE_f32 float, "f32", 0
#define WEFT_TYPE_f64 double, "f64", 0
#define WEFT_TYPE_string weft_string_t, "string", 1
#define WEFT_TYPE_tensor const weft_tensor_t *, "tensor", 1
#define WEFT_TYPE_bools weft_bools_t, "[bool]", 1
#define WEFT_TYPE_i8s weft_i8s_t, "[i8]", 1
#define WEFT_TYPE_i16s weft_i16s_t, "[i16]", 1
#define WEFT_TYPE_i32s weft_i32s_t, "[i32]", 1
#define WEFT_TYPE_i64s weft_i64s_t, "[i64]", 1
#define WEFT_TYPE_u8s weft_u8s_t, "[u8]", 1
#define WEFT_TYPE_u16s weft_u16s_t, "[u16]", 1
#define WEFT_TYPE_u32s weft_u32s_t, "[u32]", 1
#define WEFT_TYPE_u64s weft_u64s_t, "[u64]", 1
#define WEFT_TYPE_f32s weft_f32s_t, "[f32]", 1
#define WEFT_TYPE_f64s weft_f64s_t, "[f64]", 1
#define WEFT_TYPE_tensors weft_tensors_t, "[tensor]", 1

/* weft_fn_put_i32() writes a value in place, and only its field of the union: making it elsewhere and copying it costs several
 * nanoseconds more, since the processor cannot forward a store that was made in pieces. weft_fn_get_i32() reads one. */
static inline void weft_fn_type(weft_value_t *v, uint32_t type)
{
    v->type = type;
    v->zero = 0;
}
static inline void weft_fn_view(weft_value_t *v, uint32_t type, const void *data, size_t n)
{
    weft_fn_type(v, type);
    v->view.data = data;
    v->view.n = n;
}
static inline void weft_fn_tensors(weft_value_t *v, uint32_t type, const weft_tensor_t *at, size_t n)
{
    weft_fn_type(v, type);
    v->tensors.at = at;
    v->tensors.n = n;
}
#define WEFT_FN_SCALAR(type, ctype, number, field) \
    static inline void weft_fn_put_##type(weft_value_t *v, ctype x) \
    { \
        weft_fn_type(v, number); \
        v->field = x; \
    } \
    static inline ctype weft_fn_get_##type(const weft_value_t *v) { return v->field; }
#define WEFT_FN_VECTOR(type, ctype, number) \
    static inline void weft_fn_put_##type##s(weft_value_t *v, weft_##type##s_t x) \
    { \
        weft_fn_view(v, WEFT_T_VECTOR | number, x.data, x.n); \
    } \
    static inline weft_##type##s_t weft_fn_get_##type##s(const weft_value_t *v) \
    { \
        weft_##type##s_t x = {(const ctype *)v->view.data, (size_t)v->view.n}; \
        return x; \
    }
static inline void weft_fn_put_bool(weft_value_t *v, bool x)
{
    weft_fn_type(v, WEFT_T_BOOL);
    v->b = x;
}
static inline bool weft_fn_get_bool(const weft_value_t *v) { return v->b; }
#define weft_fn_put__Bool weft_fn_put_bool
#define weft_fn_get__Bool weft_fn_get_bool
static inline void weft_fn_put_bools(weft_value_t *v, weft_bools_t x)
{
    weft_fn_view(v, WEFT_T_VECTOR | WEFT_T_BOOL, x.data, x.n);
}
static inline weft_bools_t weft_fn_get_bools(const weft_value_t *v)
{
    weft_bools_t x = {(const bool *)v->view.data, (size_t)v->view.n};
    return x;
}
WEFT_FN_SCALAR(i8, int8_t, WEFT_T_I8, i8)
WEFT_FN_SCALAR(i16, int16_t, WEFT_T_I16, i16)
WEFT_FN_SCALAR(i32, int32_t, WEFT_T_I32, i32)
WEFT_FN_SCALAR(i64, int64_t, WEFT_T_I64, i64)
WEFT_FN_SCALAR(u8, uint8_t, WEFT_T_U8, u8)
WEFT_FN_SCALAR(u16, uint16_t, WEFT_T_U16, u16)
WEFT_FN_SCALAR(u32, uint32_t, WEFT_T_U32, u32)
WEFT_FN_SCALAR(u64, uint64_t, WEFT_T_U64, u64)
WEFT_FN_SCALAR(f32, float, WEFT_T_F32, f32)
WEFT_FN_SCALAR(f64, double, WEFT_T_F64, f64)
WEFT_FN_VECTOR(i8, int8_t, WEFT_T_I8)
WEFT_FN_VECTOR(i16, int16_t, WEFT_T_I16)
WEFT_FN_VECTOR(i32, int32_t, WEFT_T_I32)
WEFT_FN_VECTOR(i64, int64_t, WEFT_T_I64)
WEFT_FN_VECTOR(u8, uint8_t, WEFT_T_U8)
WEFT_FN_VECTOR(u16, uint16_t, WEFT_T_U16)
WEFT_FN_VECTOR(u32, uint32_t, WEFT_T_U32)
WEFT_FN_VECTOR(u64, uint64_t, WEFT_T_U64)
WEFT_FN_VECTOR(f32, float, WEFT_T_F32)
WEFT_FN_VECTOR(f64, double, WEFT_T_F64)
#undef WEFT_FN_SCALAR
#undef WEFT_FN_VECTOR
static inline void weft_fn_put_string(weft_value_t *v, weft_string_t x) { weft_fn_view(v, WEFT_T_STRING, x.data, x.n); }
static inline weft_string_t weft_fn_get_string(const weft_value_t *v)
{
    weft_string_t x = {(const char *)v->view.data, (size_t)v->view.n};
    return x;
}
static inline void weft_fn_put_tensor(weft_value_t *v, const weft_tensor_t *x) { weft_fn_tensors(v, WEFT_T_TENSOR, x, 1); }
static inline const weft_tensor_t *weft_fn_get_tensor(const weft_value_t *v) { return v->tensors.at; }
static inline void weft_fn_put_tensors(weft_value_t *v, weft_tensors_t x)
{
    weft_fn_tensors(v, WEFT_T_VECTOR | WEFT_T_TENSOR, x.data, x.n);
}
static inline weft_tensors_t weft_fn_get_tensors(const weft_value_t *v)
{
    weft_tensors_t x = {v->tensors.at, (size_t)v->tensors.n};
    return x;
}

/* --- the macros ------------------------------------------------------------------------------------------------------- */

/* The signature as text, from what WEFT_FUNCTION takes after the first name: WEFT_SIGNATURE("add", i32, (i32, a), (i32, b)). */
#define WEFT_SIGNATURE(text, ...) \
    WEFT_FN_SIGNATURE(text, "", WEFT_FN_N(__VA_ARGS__), WEFT_FN_KIND(WEFT_FN_FIRST(__VA_ARGS__, ~)), __VA_ARGS__)

/* (name in C, name on the wire, result, parameters) */
#define WEFT_FUNCTION(name, text, ...) WEFT_FN_UNARY(name, text, "", __VA_ARGS__)
#define WEFT_FUNCTION_IDEMPOTENT(name, text, ...) WEFT_FN_UNARY(name, text, " idempotent", __VA_ARGS__)
/* (name in C, name on the wire, parameters): its result is void. */
#define WEFT_FUNCTION_ONEWAY(name, ...) WEFT_FN_ONEWAY(name, WEFT_FN_FIRST(__VA_ARGS__, ~), WEFT_FN_N(__VA_ARGS__), __VA_ARGS__)
/* (name in C, name on the wire, type of the stream, parameters) */
#define WEFT_FUNCTION_GIVES_STREAM(name, text, ...) \
    WEFT_FN_GIVES(name, text, WEFT_FN_FIRST(__VA_ARGS__, ~), WEFT_FN_N(__VA_ARGS__), __VA_ARGS__)
/* (name in C, name on the wire, result, stream as a parameter, other parameters) */
#define WEFT_FUNCTION_TAKES_STREAM(name, text, result, ...) \
    WEFT_FN_TAKES(name, text, result, WEFT_FN_FIRST(__VA_ARGS__, ~), WEFT_FN_N(__VA_ARGS__), WEFT_FN_KIND(result), __VA_ARGS__)
/* (name in C, name on the wire, type of the stream that it gives, stream that it takes as a parameter, other parameters) */
#define WEFT_FUNCTION_BOTH_STREAMS(name, text, item, ...) \
    WEFT_FN_BOTH(name, text, item, WEFT_FN_FIRST(__VA_ARGS__, ~), WEFT_FN_N(__VA_ARGS__), __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#include <weft/function_parts.h>
#endif
