/* weft/function.h - typed functions: declared once, in a header that client and server share.
 *
 *     WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))                           add(a: i32, b: i32) -> i32
 *     WEFT_FUNCTION(calc_split, "split", ((string, head), (string, tail)),              split(text: string, at: u64)
 *                   (string, text), (u64, at))                                              -> (head: string, tail: string)
 *     WEFT_FUNCTION(calc_reset, "reset", void)                                          reset() -> void
 *     WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))                  mean(values: [f64]) -> f64 idempotent
 *     WEFT_FUNCTION_ONEWAY(calc_log, "log", (string, line))                             log(line: string) -> void oneway
 *     WEFT_FUNCTION_GIVES_STREAM(calc_primes, "primes", u64, (u64, below))              primes(below: u64) -> stream u64
 *     WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values), (f64, from))  total(from: f64, values: stream f64) -> f64
 *     WEFT_FUNCTION_BOTH_STREAMS(calc_chat, "chat", string, (string, lines))            chat(lines: stream string) -> stream string
 *
 * The first name is that of the C functions, the second that on the wire. At most 8 parameters and 8 results; a parameter is (type, name).
 *
 *     in the signature    here      in C
 *     bool, i8 ... f64    the same  bool, int8_t ... double
 *     string              string    weft_string_t    {data, n}: weft_string("text")
 *     [bool], [i8] ...    i8s       weft_i8s_t       {data, n}: weft_i8s(data, n)
 *     tensor              tensor    const weft_tensor_t *
 *     [tensor]            tensors   weft_tensors_t   {data, n}
 *
 * What is declared by WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b)), all of it static:
 *
 *     weft_status_t calc_add(weft_client_t *client, int32_t a, int32_t b, int32_t *result_out)
 *         Call it and wait; not from callbacks. The deadline is the client's (weft_client_opts_t.timeout_ns). weft_last_error() has the code and
 *         the message of a failure. Where a result is a string, vector or tensor there is one more parameter, weft_reply_t *reply: what the
 *         result views is there, until weft_reply_release(). Several results: a struct, calc_split_result_t.
 *     weft_status_t calc_add_post(weft_client_t *client, int32_t a, int32_t b, calc_add_call_t *call)
 *         Call it: call->op completes. The call is the caller's, WEFT_CALL_ZERO before its first use; set what you like of call->op (timeout_ns,
 *         token, fn, queue) and call->opts before; call->reply is there after. Oneway: call may be NULL, and then it is as for weft_call().
 *     int32_t calc_add_result(const calc_add_call_t *call)
 *         After a completion with WEFT_OK, and before weft_reply_release(&call->reply), which is for every completion.
 *
 *     weft_code_t fn(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *result_out)
 *         The function, as the server has it: calc_add_fn. WEFT_CODE_OK: the answer is what it has put into *result_out (zero before), copied.
 *         Any other code: a failure; `return weft_failed(request, code, "words")` gives it words. WEFT_LATER: it was answered here, or it was
 *         kept and somebody answers it later with calc_add_reply() or weft_request_fail().
 *         `static calc_add_fn add;` before the function makes the compiler compare the two, whatever its flags.
 *     weft_status_t calc_add_serve(weft_service_t *service, calc_add_fn *fn, void *user, const weft_function_opts_t *opts)
 *         As weft_service_add().
 *     weft_status_t calc_add_reply(weft_request_t *request, int32_t result), calc_add_reply_from(request, result, op)
 *         As weft_request_reply() and weft_request_reply_from(). Of several results: a pointer to the struct.
 *     calc_add_args_t calc_add_args(const weft_request_t *request)
 *         {a, b}: for a request that was kept, or fetched, since the views that the function was given are valid until it returns.
 *     weft_function_t *calc_add_function(void)
 *         ->signature is the signature.
 *
 * Of a function with streams (weft/rpc.h) there is calc_primes_open(client, below, call), which begins it: call->stream is yours until
 * weft_stream_release(); and for the values:
 *
 *     calc_total_send(stream, 1.5, op)   the client sends        calc_primes_give(stream, 7, op)   the server sends
 *     calc_total_sent(&item)             the server has it       calc_primes_given(&item)          the client has it
 *
 * Numbers convert as C converts them (-Wconversion says where); anything else that is not of its type does not compile.
 *
 * Threads: as for weft_call() and weft_service_add(). What such a function is to a client is looked up once; after that no text is touched. */
#ifndef WEFT_FUNCTION_H
#define WEFT_FUNCTION_H

#include <string.h>
#include <weft/rpc.h>
#include <weft/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- views ------------------------------------------------------------------------------------------------------------------------- */

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
typedef struct weft_tensors_t { const weft_tensor_t *data; size_t n; } weft_tensors_t; /* weft_tensors() makes a weft_value_t: {data, n} does */

/* --- what the stubs need of the library ---------------------------------------------------------------------------------------------- */

/* A function as a program declares it. Static, zero after the signature. */
typedef struct weft_function {
    const char *signature;
    uint32_t index; /* the library's: its place in the tables of clients, from 1 */
    uint32_t zero;
} weft_function_t;

/* The method of that function, for calls of this client: as weft_client_method(), and without looking at the signature but the first time. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_function_method(weft_client_t *client, weft_function_t *function, weft_method_t **method_out);

/* A function of any type; cast back to its own before it is called. */
typedef void (*weft_handler_fn)(void);
/* What a typed function is given as `user`. */
typedef struct weft_handler {
    weft_handler_fn fn;
    void *user;
} weft_handler_t;
/* weft_service_add() with run(request, weft_handler_t *), for as long as the function is there. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_function_serve(weft_service_t *service, const weft_function_t *function, weft_function_fn run,
                                                           weft_handler_fn fn, void *user, const weft_function_opts_t *opts);

/* What a function returns that answered, or keeps the request to answer it later. */
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

/* --- the macros ---------------------------------------------------------------------------------------------------------------------- */

/* The signature as text, of what WEFT_FUNCTION takes after the first name: WEFT_SIGNATURE("add", i32, (i32, a), (i32, b)). */
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
/* (name in C, name on the wire, type of the stream it gives, stream that it takes as a parameter, other parameters) */
#define WEFT_FUNCTION_BOTH_STREAMS(name, text, item, ...) \
    WEFT_FN_BOTH(name, text, item, WEFT_FN_FIRST(__VA_ARGS__, ~), WEFT_FN_N(__VA_ARGS__), __VA_ARGS__)

/* --- from here on: how they do it ----------------------------------------------------------------------------------------------------
 *
 * n is the number of parameters; kind is what the result is, void_, one_ or many_; holds is 1 where a result is a view. Lists are handed on with
 * one thing more in front of the parameters (the result, mostly), since a list must not be empty: WEFT_FN_EACH_2(m, front, (i32, a), (i32, b)) is
 * m(0, i32, a) m(1, i32, b). The name of a type may have become another on its way, if it is a macro: bool is one in C.
 *
 * WEFT_TYPE_<type>: the type in C, in the signature, and whether it is a view. */
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

/* weft_fn_put_i32() writes a value where it is wanted, its field and no more of the union: one that is made elsewhere and copied costs several
 * nanoseconds, since the processor cannot hand on what was just written in pieces. weft_fn_get_i32() reads one. */
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
    static inline void weft_fn_put_##type##s(weft_value_t *v, weft_##type##s_t x) { weft_fn_view(v, WEFT_T_VECTOR | number, x.data, x.n); } \
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
static inline void weft_fn_put_bools(weft_value_t *v, weft_bools_t x) { weft_fn_view(v, WEFT_T_VECTOR | WEFT_T_BOOL, x.data, x.n); }
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

/* --- lists --- */

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_FN_INLINE static inline __attribute__((unused))
/* What waits gains nothing by being inline, and compilers would warn that a result is not set where it fails. */
#define WEFT_FN_WAITS static __attribute__((unused, noinline))
#else
#define WEFT_FN_INLINE static inline
#define WEFT_FN_WAITS static inline
#endif

#define WEFT_FN_FIRST(first, ...) first
#define WEFT_FN_STRIP(...) __VA_ARGS__
#define WEFT_FN_CAT(a, b) WEFT_FN_CAT_(a, b)
#define WEFT_FN_CAT_(a, b) a##b
#define WEFT_FN_1ST(...) WEFT_FN_1ST_(__VA_ARGS__)
#define WEFT_FN_1ST_(a, ...) a
#define WEFT_FN_2ND(...) WEFT_FN_2ND_(__VA_ARGS__)
#define WEFT_FN_2ND_(a, b, ...) b
#define WEFT_FN_3RD(...) WEFT_FN_3RD_(__VA_ARGS__)
#define WEFT_FN_3RD_(a, b, c, ...) c

/* How many there are behind the first. */
#define WEFT_FN_N(...) \
    WEFT_FN_N_(__VA_ARGS__, too_many_, too_many_, too_many_, too_many_, too_many_, too_many_, too_many_, too_many_, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define WEFT_FN_N_(front, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count

#define WEFT_FN_EACH(m, ...) WEFT_FN_CAT(WEFT_FN_EACH_, WEFT_FN_N(__VA_ARGS__))(m, __VA_ARGS__)
#define WEFT_FN_EACH_0(m, r)
#define WEFT_FN_EACH_1(m, r, a) WEFT_FN_X(m, 0, a)
#define WEFT_FN_EACH_2(m, r, a, b) WEFT_FN_EACH_1(m, r, a) WEFT_FN_X(m, 1, b)
#define WEFT_FN_EACH_3(m, r, a, b, c) WEFT_FN_EACH_2(m, r, a, b) WEFT_FN_X(m, 2, c)
#define WEFT_FN_EACH_4(m, r, a, b, c, d) WEFT_FN_EACH_3(m, r, a, b, c) WEFT_FN_X(m, 3, d)
#define WEFT_FN_EACH_5(m, r, a, b, c, d, e) WEFT_FN_EACH_4(m, r, a, b, c, d) WEFT_FN_X(m, 4, e)
#define WEFT_FN_EACH_6(m, r, a, b, c, d, e, f) WEFT_FN_EACH_5(m, r, a, b, c, d, e) WEFT_FN_X(m, 5, f)
#define WEFT_FN_EACH_7(m, r, a, b, c, d, e, f, g) WEFT_FN_EACH_6(m, r, a, b, c, d, e, f) WEFT_FN_X(m, 6, g)
#define WEFT_FN_EACH_8(m, r, a, b, c, d, e, f, g, h) WEFT_FN_EACH_7(m, r, a, b, c, d, e, f, g) WEFT_FN_X(m, 7, h)
#define WEFT_FN_X(m, i, pair) WEFT_FN_XX(m, i, WEFT_FN_STRIP pair)
#define WEFT_FN_XX(m, ...) m(__VA_ARGS__)

/* for WEFT_FN_EACH */
#define WEFT_FN_M_PARAM(i, t, p) , WEFT_FN_1ST(WEFT_TYPE_##t, ~) p
#define WEFT_FN_M_FIELD(i, t, p) WEFT_FN_1ST(WEFT_TYPE_##t, ~) p;
#define WEFT_FN_M_TEXT(i, t, p) WEFT_FN_COMMA_##i #p ": " WEFT_FN_2ND(WEFT_TYPE_##t, "?", ~)
#define WEFT_FN_M_SET(i, t, p) weft_fn_put_##t(&args_[i], p);
#define WEFT_FN_M_GET(i, t, p) , weft_fn_get_##t(&request_->args[i])
#define WEFT_FN_M_ARG(i, t, p) args_.p = weft_fn_get_##t(&request_->args[i]);
#define WEFT_FN_M_READ(i, t, p) result_out_->p = weft_fn_get_##t(&values_[i]);
#define WEFT_FN_M_WRITE(i, t, p) weft_fn_put_##t(&values_[i], result_->p);
#define WEFT_FN_M_VIEW(i, t, p) WEFT_FN_VIEW(WEFT_FN_3RD(WEFT_TYPE_##t, ~, 0, ~))
#define WEFT_FN_VIEW(view) WEFT_FN_VIEW_(view)
#define WEFT_FN_VIEW_(view) WEFT_FN_VIEW_##view
#define WEFT_FN_VIEW_1 , 1
#define WEFT_FN_VIEW_0
#define WEFT_FN_COMMA_0
#define WEFT_FN_COMMA_1 ", "
#define WEFT_FN_COMMA_2 ", "
#define WEFT_FN_COMMA_3 ", "
#define WEFT_FN_COMMA_4 ", "
#define WEFT_FN_COMMA_5 ", "
#define WEFT_FN_COMMA_6 ", "
#define WEFT_FN_COMMA_7 ", "
#define WEFT_FN_COMMA_8 ", "

/* What a result is: void_, one_, many_. */
#define WEFT_FN_KIND(r) WEFT_FN_CAT(WEFT_FN_KIND_, WEFT_FN_2ND(WEFT_FN_PAREN r, 0, ~))(r)
#define WEFT_FN_PAREN(...) ~, 1
#define WEFT_FN_KIND_1(r) many_
#define WEFT_FN_KIND_0(r) WEFT_FN_2ND(WEFT_FN_VOID_##r, one_, ~)
#define WEFT_FN_VOID_void ~, void_
/* Is any of it a view: 0 or 1. */
#define WEFT_FN_HOLDS_void_(r) 0
#define WEFT_FN_HOLDS_one_(r) WEFT_FN_3RD(WEFT_TYPE_##r, ~, 0, ~)
#define WEFT_FN_HOLDS_many_(r) WEFT_FN_2ND(~ WEFT_FN_EACH(WEFT_FN_M_VIEW, ~, WEFT_FN_STRIP r), 0, ~)

#define WEFT_FN_SIGNATURE(text, mark, n, kind, ...) WEFT_FN_SIGNATURE_(text, mark, n, kind, __VA_ARGS__)
#define WEFT_FN_SIGNATURE_(text, mark, n, kind, ...) \
    text "(" WEFT_FN_EACH_##n(WEFT_FN_M_TEXT, __VA_ARGS__) ") -> " WEFT_FN_GIVEN_##kind(WEFT_FN_FIRST(__VA_ARGS__, ~)) mark
#define WEFT_FN_GIVEN_void_(r) "void"
#define WEFT_FN_GIVEN_one_(r) WEFT_FN_GIVEN_one_1(r)
#define WEFT_FN_GIVEN_one_1(r) WEFT_FN_2ND(WEFT_TYPE_##r, "?", ~)
#define WEFT_FN_GIVEN_many_(r) "(" WEFT_FN_EACH(WEFT_FN_M_TEXT, ~, WEFT_FN_STRIP r) ")"
/* With a stream as the last parameter. */
#define WEFT_FN_SIGNATURE_TAKES(text, n, given, s, ...) \
    text "(" WEFT_FN_EACH_##n(WEFT_FN_M_TEXT, __VA_ARGS__) WEFT_FN_COMMA_##n WEFT_FN_X(WEFT_FN_M_STREAM, ~, s) ") -> " given
#define WEFT_FN_M_STREAM(i, t, p) #p ": stream " WEFT_FN_2ND(WEFT_TYPE_##t, "?", ~)

/* --- the parts of a function --- */

#define WEFT_FN_OBJECT(name, text) \
    WEFT_FN_INLINE weft_function_t *name##_function(void) \
    { \
        static weft_function_t function_ = {text, 0, 0}; \
        return &function_; \
    }

/* Arguments on their way: a place for them. */
#define WEFT_FN_ROOM_0 1
#define WEFT_FN_ROOM_1 1
#define WEFT_FN_ROOM_2 2
#define WEFT_FN_ROOM_3 3
#define WEFT_FN_ROOM_4 4
#define WEFT_FN_ROOM_5 5
#define WEFT_FN_ROOM_6 6
#define WEFT_FN_ROOM_7 7
#define WEFT_FN_ROOM_8 8
#define WEFT_FN_LOCAL_0 weft_value_t *args_ = NULL;
#define WEFT_FN_LOCAL_1 weft_value_t args_[1];
#define WEFT_FN_LOCAL_2 weft_value_t args_[2];
#define WEFT_FN_LOCAL_3 weft_value_t args_[3];
#define WEFT_FN_LOCAL_4 weft_value_t args_[4];
#define WEFT_FN_LOCAL_5 weft_value_t args_[5];
#define WEFT_FN_LOCAL_6 weft_value_t args_[6];
#define WEFT_FN_LOCAL_7 weft_value_t args_[7];
#define WEFT_FN_LOCAL_8 weft_value_t args_[8];

/* The arguments as a struct; a function without any has none. */
#define WEFT_FN_ARGS_0(name, r)
#define WEFT_FN_ARGS_1(name, ...) WEFT_FN_ARGS(name, 1, __VA_ARGS__)
#define WEFT_FN_ARGS_2(name, ...) WEFT_FN_ARGS(name, 2, __VA_ARGS__)
#define WEFT_FN_ARGS_3(name, ...) WEFT_FN_ARGS(name, 3, __VA_ARGS__)
#define WEFT_FN_ARGS_4(name, ...) WEFT_FN_ARGS(name, 4, __VA_ARGS__)
#define WEFT_FN_ARGS_5(name, ...) WEFT_FN_ARGS(name, 5, __VA_ARGS__)
#define WEFT_FN_ARGS_6(name, ...) WEFT_FN_ARGS(name, 6, __VA_ARGS__)
#define WEFT_FN_ARGS_7(name, ...) WEFT_FN_ARGS(name, 7, __VA_ARGS__)
#define WEFT_FN_ARGS_8(name, ...) WEFT_FN_ARGS(name, 8, __VA_ARGS__)
#define WEFT_FN_ARGS(name, n, ...) \
    typedef struct name##_args_t { WEFT_FN_EACH_##n(WEFT_FN_M_FIELD, __VA_ARGS__) } name##_args_t; \
    WEFT_FN_INLINE name##_args_t name##_args(const weft_request_t *request_) \
    { \
        name##_args_t args_; \
        WEFT_FN_EACH_##n(WEFT_FN_M_ARG, __VA_ARGS__) \
        return args_; \
    }

/* The result: its type, from values and to them. */
#define WEFT_FN_RESULT_void_(name, r)
#define WEFT_FN_RESULT_one_(name, r) WEFT_FN_RESULT_one_1(name, r)
#define WEFT_FN_RESULT_one_1(name, r) \
    typedef WEFT_FN_1ST(WEFT_TYPE_##r, ~) name##_result_t; \
    enum { name##_results_ = 1 }; \
    WEFT_FN_INLINE void name##_read_(const weft_value_t *values_, name##_result_t *result_out_) { *result_out_ = weft_fn_get_##r(values_); } \
    WEFT_FN_INLINE void name##_write_(const name##_result_t *result_, weft_value_t *values_) { weft_fn_put_##r(values_, *result_); }
#define WEFT_FN_RESULT_many_(name, r) \
    typedef struct name##_result_t { WEFT_FN_EACH(WEFT_FN_M_FIELD, ~, WEFT_FN_STRIP r) } name##_result_t; \
    enum { name##_results_ = WEFT_FN_N(~, WEFT_FN_STRIP r) }; \
    WEFT_FN_INLINE void name##_read_(const weft_value_t *values_, name##_result_t *result_out_) \
    { \
        WEFT_FN_EACH(WEFT_FN_M_READ, ~, WEFT_FN_STRIP r) \
    } \
    WEFT_FN_INLINE void name##_write_(const name##_result_t *result_, weft_value_t *values_) \
    { \
        WEFT_FN_EACH(WEFT_FN_M_WRITE, ~, WEFT_FN_STRIP r) \
    }

/* A call, and its result. */
#define WEFT_FN_CALL(name, n, more) \
    typedef struct name##_call_t { \
        weft_op_t op; \
        const weft_call_opts_t *opts; /* NULL: none */ \
        weft_reply_t reply; \
        weft_value_t args[WEFT_FN_ROOM_##n]; \
        more \
    } name##_call_t;
#define WEFT_FN_CALLED_void_(name)
#define WEFT_FN_CALLED_one_(name) \
    WEFT_FN_INLINE name##_result_t name##_result(const name##_call_t *call_) \
    { \
        name##_result_t result_; \
        name##_read_(call_->reply.values, &result_); \
        return result_; \
    }
#define WEFT_FN_CALLED_many_(name) WEFT_FN_CALLED_one_(name)

#define WEFT_FN_POST(name, n, ...) \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_post(weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), \
                                                             name##_call_t *call_) \
    { \
        weft_method_t *method_; \
        weft_value_t *args_ = call_->args; \
        weft_status_t st_ = weft_function_method(client_, name##_function(), &method_); \
        if (st_) \
            return st_; \
        WEFT_FN_EACH_##n(WEFT_FN_M_SET, __VA_ARGS__) \
        return weft_call_with(method_, args_, n, call_->opts, &call_->reply, &call_->op); \
    }

/* Without a call: everything is copied. */
#define WEFT_FN_POST_ONEWAY(name, n, ...) \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_post(weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), \
                                                             name##_call_t *call_) \
    { \
        weft_method_t *method_; \
        weft_value_t room_[WEFT_FN_ROOM_##n], *args_ = call_ ? call_->args : room_; \
        weft_status_t st_ = weft_function_method(client_, name##_function(), &method_); \
        if (st_) \
            return st_; \
        WEFT_FN_EACH_##n(WEFT_FN_M_SET, __VA_ARGS__) \
        return call_ ? weft_call_with(method_, args_, n, call_->opts, &call_->reply, &call_->op) : weft_call(method_, args_, n, NULL, NULL); \
    }

/* Wait for it. */
#define WEFT_FN_WAIT_BODY(name, n, reply, read, ...) \
        weft_method_t *method_; \
        WEFT_FN_LOCAL_##n \
        weft_status_t st_ = weft_function_method(client_, name##_function(), &method_); \
        memset(reply, 0, sizeof *(reply)); \
        if (st_) \
            return st_; \
        WEFT_FN_EACH_##n(WEFT_FN_M_SET, __VA_ARGS__) \
        st_ = weft_call_wait(method_, args_, n, NULL, 0, reply); \
        read
#define WEFT_FN_WAIT_void_0(name, n, ...) \
    WEFT_FN_WAITS WEFT_MUST_CHECK weft_status_t name(weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__)) \
    { \
        weft_reply_t reply_; \
        WEFT_FN_WAIT_BODY(name, n, &reply_, (void)0;, __VA_ARGS__) \
        weft_reply_release(&reply_); \
        return st_; \
    }
#define WEFT_FN_WAIT_one_0(name, n, ...) \
    WEFT_FN_WAITS WEFT_MUST_CHECK weft_status_t name(weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), \
                                                      name##_result_t *result_out_) \
    { \
        weft_reply_t reply_; \
        WEFT_FN_WAIT_BODY(name, n, &reply_, if (!st_) name##_read_(reply_.values, result_out_);, __VA_ARGS__) \
        weft_reply_release(&reply_); \
        return st_; \
    }
#define WEFT_FN_WAIT_one_1(name, n, ...) \
    WEFT_FN_WAITS WEFT_MUST_CHECK weft_status_t name(weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), \
                                                      name##_result_t *result_out_, weft_reply_t *reply_) \
    { \
        WEFT_FN_WAIT_BODY(name, n, reply_, if (!st_) name##_read_(reply_->values, result_out_);, __VA_ARGS__) \
        return st_; \
    }
#define WEFT_FN_WAIT_many_0 WEFT_FN_WAIT_one_0
#define WEFT_FN_WAIT_many_1 WEFT_FN_WAIT_one_1

/* The server. */
#define WEFT_FN_OUT_void_(name)
#define WEFT_FN_OUT_one_(name) , name##_result_t *result_out_
#define WEFT_FN_OUT_many_(name) , name##_result_t *result_out_
#define WEFT_FN_SERVE(name, n, kind, ...) \
    typedef weft_code_t name##_fn(weft_request_t *request_, void *user_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__) WEFT_FN_OUT_##kind(name)); \
    WEFT_FN_INLINE void name##_run_(weft_request_t *request_, void *user_) \
    { \
        const weft_handler_t *handler_ = (const weft_handler_t *)user_; \
        name##_fn *fn_ = (name##_fn *)handler_->fn; \
        WEFT_FN_RUN_##kind(name, fn_(request_, handler_->user WEFT_FN_EACH_##n(WEFT_FN_M_GET, __VA_ARGS__) WEFT_FN_RESULT_ARG_##kind)) \
        else if (code_ != WEFT_LATER) \
            (void)weft_request_fail(request_, code_, NULL); \
    } \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_serve(weft_service_t *service_, name##_fn *fn_, void *user_, \
                                                              const weft_function_opts_t *opts_) \
    { \
        return weft_function_serve(service_, name##_function(), name##_run_, (weft_handler_fn)fn_, user_, opts_); \
    } \
    WEFT_FN_REPLY_##kind(name)
#define WEFT_FN_RESULT_ARG_void_
#define WEFT_FN_RESULT_ARG_one_ , &result_
#define WEFT_FN_RESULT_ARG_many_ , &result_
#define WEFT_FN_RUN_void_(name, run) \
        weft_code_t code_ = run; \
        if (code_ == WEFT_CODE_OK) \
            (void)weft_request_reply(request_, NULL, 0);
#define WEFT_FN_RUN_one_(name, run) \
        weft_value_t values_[name##_results_]; \
        name##_result_t result_; \
        memset(&result_, 0, sizeof result_); \
        weft_code_t code_ = run; \
        if (code_ == WEFT_CODE_OK) { \
            name##_write_(&result_, values_); \
            (void)weft_request_reply(request_, values_, name##_results_); \
        }
#define WEFT_FN_RUN_many_ WEFT_FN_RUN_one_

#define WEFT_FN_REPLY_void_(name) \
    WEFT_FN_INLINE weft_status_t name##_reply(weft_request_t *request_) { return weft_request_reply(request_, NULL, 0); }
#define WEFT_FN_REPLY_one_(name) \
    WEFT_FN_INLINE weft_status_t name##_reply(weft_request_t *request_, name##_result_t result_) \
    { \
        weft_value_t values_[name##_results_]; \
        name##_write_(&result_, values_); \
        return weft_request_reply(request_, values_, name##_results_); \
    } \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_reply_from(weft_request_t *request_, name##_result_t result_, weft_op_t *op_) \
    { \
        weft_value_t values_[name##_results_]; \
        name##_write_(&result_, values_); \
        return weft_request_reply_from(request_, values_, name##_results_, op_); \
    }
#define WEFT_FN_REPLY_many_(name) \
    WEFT_FN_INLINE weft_status_t name##_reply(weft_request_t *request_, const name##_result_t *result_) \
    { \
        weft_value_t values_[name##_results_]; \
        name##_write_(result_, values_); \
        return weft_request_reply(request_, values_, name##_results_); \
    } \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_reply_from(weft_request_t *request_, const name##_result_t *result_, weft_op_t *op_) \
    { \
        weft_value_t values_[name##_results_]; \
        name##_write_(result_, values_); \
        return weft_request_reply_from(request_, values_, name##_results_, op_); \
    }

/* Streams. */
#define WEFT_FN_OPEN(name, n, ...) \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_open(weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), \
                                                             name##_call_t *call_) \
    { \
        weft_method_t *method_; \
        weft_value_t *args_ = call_->args; \
        weft_status_t st_ = weft_function_method(client_, name##_function(), &method_); \
        if (st_) \
            return st_; \
        WEFT_FN_EACH_##n(WEFT_FN_M_SET, __VA_ARGS__) \
        return weft_call_stream(method_, args_, n, call_->opts, &call_->reply, &call_->op, &call_->stream); \
    }
#define WEFT_FN_STREAM(send, sent, t) WEFT_FN_STREAM_(send, sent, t)
#define WEFT_FN_STREAM_(send, sent, t) \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t send(weft_stream_t *stream_, WEFT_FN_1ST(WEFT_TYPE_##t, ~) value_, weft_op_t *op_) \
    { \
        weft_value_t v_; \
        weft_fn_put_##t(&v_, value_); \
        return weft_stream_send(stream_, &v_, op_); \
    } \
    WEFT_FN_INLINE WEFT_FN_1ST(WEFT_TYPE_##t, ~) sent(const weft_item_t *item_) { return weft_fn_get_##t(&item_->value); }

/* --- the functions --- */

#define WEFT_FN_UNARY(name, text, mark, ...) \
    WEFT_FN_UNARY_1(name, text, mark, WEFT_FN_N(__VA_ARGS__), WEFT_FN_KIND(WEFT_FN_FIRST(__VA_ARGS__, ~)), __VA_ARGS__)
#define WEFT_FN_UNARY_1(name, text, mark, n, kind, ...) WEFT_FN_UNARY_2(name, text, mark, n, kind, __VA_ARGS__)
#define WEFT_FN_UNARY_2(name, text, mark, n, kind, ...) \
    WEFT_FN_UNARY_3(name, text, mark, n, kind, WEFT_FN_HOLDS(kind, WEFT_FN_FIRST(__VA_ARGS__, ~)), __VA_ARGS__)
#define WEFT_FN_HOLDS(kind, r) WEFT_FN_HOLDS_##kind(r)
#define WEFT_FN_UNARY_3(name, text, mark, n, kind, holds, ...) WEFT_FN_UNARY_4(name, text, mark, n, kind, holds, __VA_ARGS__)
#define WEFT_FN_UNARY_4(name, text, mark, n, kind, holds, ...) \
    WEFT_FN_OBJECT(name, WEFT_FN_SIGNATURE_(text, mark, n, kind, __VA_ARGS__)) \
    WEFT_FN_RESULT_##kind(name, WEFT_FN_FIRST(__VA_ARGS__, ~)) \
    WEFT_FN_ARGS_##n(name, __VA_ARGS__) \
    WEFT_FN_CALL(name, n, ) \
    WEFT_FN_CALLED_##kind(name) \
    WEFT_FN_POST(name, n, __VA_ARGS__) \
    WEFT_FN_WAIT_##kind##holds(name, n, __VA_ARGS__) \
    WEFT_FN_SERVE(name, n, kind, __VA_ARGS__)

#define WEFT_FN_ONEWAY(name, text, n, ...) WEFT_FN_ONEWAY_(name, text, n, __VA_ARGS__)
#define WEFT_FN_ONEWAY_(name, text, n, ...) \
    WEFT_FN_OBJECT(name, WEFT_FN_SIGNATURE_(text, " oneway", n, void_, __VA_ARGS__)) \
    WEFT_FN_ARGS_##n(name, __VA_ARGS__) \
    WEFT_FN_CALL(name, n, ) \
    WEFT_FN_POST_ONEWAY(name, n, __VA_ARGS__) \
    WEFT_FN_WAIT_void_0(name, n, __VA_ARGS__) \
    WEFT_FN_SERVE(name, n, void_, __VA_ARGS__)

#define WEFT_FN_GIVES(name, text, t, n, ...) WEFT_FN_GIVES_(name, text, t, n, __VA_ARGS__)
#define WEFT_FN_GIVES_(name, text, t, n, ...) \
    WEFT_FN_OBJECT(name, text "(" WEFT_FN_EACH_##n(WEFT_FN_M_TEXT, __VA_ARGS__) ") -> stream " WEFT_FN_2ND(WEFT_TYPE_##t, "?", ~)) \
    WEFT_FN_ARGS_##n(name, __VA_ARGS__) \
    WEFT_FN_CALL(name, n, weft_stream_t *stream;) \
    WEFT_FN_OPEN(name, n, __VA_ARGS__) \
    WEFT_FN_STREAM(name##_give, name##_given, t) \
    WEFT_FN_SERVE(name, n, void_, __VA_ARGS__)

#define WEFT_FN_TAKES(name, text, r, s, n, kind, ...) WEFT_FN_TAKES_(name, text, r, s, n, kind, __VA_ARGS__)
#define WEFT_FN_TAKES_(name, text, r, s, n, kind, ...) \
    WEFT_FN_OBJECT(name, WEFT_FN_SIGNATURE_TAKES(text, n, WEFT_FN_GIVEN_##kind(r), s, __VA_ARGS__)) \
    WEFT_FN_RESULT_##kind(name, r) \
    WEFT_FN_ARGS_##n(name, __VA_ARGS__) \
    WEFT_FN_CALL(name, n, weft_stream_t *stream;) \
    WEFT_FN_CALLED_##kind(name) \
    WEFT_FN_OPEN(name, n, __VA_ARGS__) \
    WEFT_FN_STREAM(name##_send, name##_sent, WEFT_FN_1ST s) \
    WEFT_FN_SERVE(name, n, kind, __VA_ARGS__)

#define WEFT_FN_BOTH(name, text, t, s, n, ...) WEFT_FN_BOTH_(name, text, t, s, n, __VA_ARGS__)
#define WEFT_FN_BOTH_(name, text, t, s, n, ...) \
    WEFT_FN_OBJECT(name, WEFT_FN_SIGNATURE_TAKES(text, n, "stream " WEFT_FN_2ND(WEFT_TYPE_##t, "?", ~), s, __VA_ARGS__)) \
    WEFT_FN_ARGS_##n(name, __VA_ARGS__) \
    WEFT_FN_CALL(name, n, weft_stream_t *stream;) \
    WEFT_FN_OPEN(name, n, __VA_ARGS__) \
    WEFT_FN_STREAM(name##_send, name##_sent, WEFT_FN_1ST s) \
    WEFT_FN_STREAM(name##_give, name##_given, t) \
    WEFT_FN_SERVE(name, n, void_, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
