/* weft/function_parts.h - how the macros of weft/function.h make functions. Include weft/function.h.
 *
 * n is the number of parameters; kind is what the result is, void_, one_ or many_; holds is 1 if a result is a view. A list must
 * not be empty, so lists are passed on with one more thing in front of the parameters, mostly the result: WEFT_FN_EACH_2(m,
 * front, (i32, a), (i32, b)) is m(0, i32, a) m(1, i32, b). If the name of a type is itself a macro it may have been expanded on
 * the way: bool is one in C. */
#ifndef WEFT_FUNCTION_PARTS_H
#define WEFT_FUNCTION_PARTS_H

#include <weft/function.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- lists --- */

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_FN_INLINE static inline __attribute__((unused))
/* A call that waits gains nothing by being inline, and compilers would warn that a result is not set where it fails. */
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
    WEFT_FN_N_(__VA_ARGS__, too_many_, too_many_, too_many_, too_many_, too_many_, too_many_, too_many_, too_many_, \
               8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
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

/* Space for the arguments. */
#define WEFT_FN_SPACE_0 1
#define WEFT_FN_SPACE_1 1
#define WEFT_FN_SPACE_2 2
#define WEFT_FN_SPACE_3 3
#define WEFT_FN_SPACE_4 4
#define WEFT_FN_SPACE_5 5
#define WEFT_FN_SPACE_6 6
#define WEFT_FN_SPACE_7 7
#define WEFT_FN_SPACE_8 8
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

/* The result: its type, reading it from values, writing it to values. */
#define WEFT_FN_RESULT_void_(name, r)
#define WEFT_FN_RESULT_one_(name, r) WEFT_FN_RESULT_one_1(name, r)
#define WEFT_FN_RESULT_one_1(name, r) \
    typedef WEFT_FN_1ST(WEFT_TYPE_##r, ~) name##_result_t; \
    enum { name##_results_ = 1 }; \
    WEFT_FN_INLINE void name##_read_(const weft_value_t *values_, name##_result_t *result_out_) \
    { \
        *result_out_ = weft_fn_get_##r(values_); \
    } \
    WEFT_FN_INLINE void name##_write_(const name##_result_t *result_, weft_value_t *values_) \
    { \
        weft_fn_put_##r(values_, *result_); \
    }
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
        weft_value_t args[WEFT_FN_SPACE_##n]; \
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
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_post( \
        weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), name##_call_t *call_) \
    { \
        weft_method_t *method_; \
        weft_value_t *args_ = call_->args; \
        weft_status_t st_ = weft_function_method(client_, name##_function(), &method_); \
        if (st_) \
            return st_; \
        WEFT_FN_EACH_##n(WEFT_FN_M_SET, __VA_ARGS__) \
        return weft_call_with(method_, args_, n, call_->opts, &call_->reply, &call_->op); \
    }

/* Without a call, everything is copied. */
#define WEFT_FN_POST_ONEWAY(name, n, ...) \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_post( \
        weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), name##_call_t *call_) \
    { \
        weft_method_t *method_; \
        weft_value_t space_[WEFT_FN_SPACE_##n], *args_ = call_ ? call_->args : space_; \
        weft_status_t st_ = weft_function_method(client_, name##_function(), &method_); \
        if (st_) \
            return st_; \
        WEFT_FN_EACH_##n(WEFT_FN_M_SET, __VA_ARGS__) \
        return call_ ? weft_call_with(method_, args_, n, call_->opts, &call_->reply, &call_->op) \
                     : weft_call(method_, args_, n, NULL, NULL); \
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
    typedef weft_code_t name##_fn(weft_request_t *request_, void *user_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__) \
                                  WEFT_FN_OUT_##kind(name)); \
    WEFT_FN_INLINE void name##_run_(weft_request_t *request_, void *user_) \
    { \
        const weft_handler_t *handler_ = (const weft_handler_t *)user_; \
        name##_fn *fn_ = (name##_fn *)handler_->fn; \
        WEFT_FN_RUN_##kind(name, \
                           fn_(request_, handler_->user WEFT_FN_EACH_##n(WEFT_FN_M_GET, __VA_ARGS__) WEFT_FN_RESULT_ARG_##kind)) \
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
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_reply_from( \
        weft_request_t *request_, name##_result_t result_, weft_op_t *op_) \
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
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_reply_from( \
        weft_request_t *request_, const name##_result_t *result_, weft_op_t *op_) \
    { \
        weft_value_t values_[name##_results_]; \
        name##_write_(result_, values_); \
        return weft_request_reply_from(request_, values_, name##_results_, op_); \
    }

/* Streams. */
#define WEFT_FN_OPEN(name, n, ...) \
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t name##_open( \
        weft_client_t *client_ WEFT_FN_EACH_##n(WEFT_FN_M_PARAM, __VA_ARGS__), name##_call_t *call_) \
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
    WEFT_FN_INLINE WEFT_MUST_CHECK weft_status_t send( \
        weft_stream_t *stream_, WEFT_FN_1ST(WEFT_TYPE_##t, ~) value_, weft_op_t *op_) \
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
    WEFT_FN_OBJECT(name, text "(" WEFT_FN_EACH_##n(WEFT_FN_M_TEXT, __VA_ARGS__) ") -> stream " \
                         WEFT_FN_2ND(WEFT_TYPE_##t, "?", ~)) \
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
