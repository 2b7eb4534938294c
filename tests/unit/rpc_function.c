/* What the macros of weft/function.h make: signatures, stubs that pass their arguments on, handlers that are given theirs. The
 * library below them is played by the functions that begin with "fake". tests/wire/rpc_typed.c has both sides,
 * tests/style/functions.py what must not compile. */
#include <string.h>

#define weft_function_method fake_method
#define weft_call_wait fake_wait
#define weft_call_with fake_call_with
#define weft_call fake_call
#define weft_call_stream fake_call_stream
#define weft_stream_send fake_stream_send
#define weft_reply_release fake_release
#define weft_request_reply fake_reply
#define weft_request_reply_from fake_reply_from
#define weft_request_fail fake_fail
#define weft_function_serve fake_serve
#include <weft/function.h>

#include "test.h"

WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_split, "calc.split", ((string, head), (string, tail)), (string, text), (u64, at))
WEFT_FUNCTION(calc_divide, "divide", ((i32, quotient), (bool, exact)), (i32, a), (i32, b))
WEFT_FUNCTION(calc_reset, "reset", void)
WEFT_FUNCTION(calc_now, "now", u64)
WEFT_FUNCTION(calc_upper, "upper", string, (string, text))
WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))
WEFT_FUNCTION_ONEWAY(calc_log, "log", (string, line), (u8, level))
WEFT_FUNCTION_ONEWAY(calc_ping, "ping")
WEFT_FUNCTION(calc_scale, "scale", tensor, (tensor, image), (f32, by))
WEFT_FUNCTION(calc_stack, "stack", tensors, (tensors, images))
WEFT_FUNCTION(calc_first, "first", ((bool, a), (i8, b), (i16, c), (i64, d), (u8, e), (u16, f), (u32, g), (f64, h)), (bool, a),
              (i8, b), (i16, c), (i64, d), (u8, e), (u16, f), (u32, g), (f64, h))
WEFT_FUNCTION(calc_second, "second", ((bools, a), (i8s, b), (i16s, c), (i32s, d), (i64s, e), (f32s, f)), (bools, a), (i8s, b),
              (i16s, c), (i32s, d), (i64s, e), (f32s, f))
WEFT_FUNCTION(calc_third, "third", ((u8s, a), (u16s, b), (u32s, c), (u64s, d), (f64s, e)), (u8s, a), (u16s, b), (u32s, c),
              (u64s, d), (f64s, e))
WEFT_FUNCTION_GIVES_STREAM(calc_primes, "primes", u64, (u64, below))
WEFT_FUNCTION_GIVES_STREAM(calc_ticks, "ticks", bool)
WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values), (f64, from))
WEFT_FUNCTION_TAKES_STREAM(calc_ranges, "ranges", ((f64, least), (f64, most)), (f64s, values))
WEFT_FUNCTION_TAKES_STREAM(calc_eat, "eat", void, (bool, crumbs))
WEFT_FUNCTION_BOTH_STREAMS(calc_chat, "chat", string, (i32, lines))
WEFT_FUNCTION_BOTH_STREAMS(calc_talk, "talk", bool, (string, lines), (i32, a), (string, b))

/* --- the library, played ----------------------------------------------------------------------------------------------- */

enum { NOTHING, WAIT, CALL_WITH, CALL, CALL_STREAM, STREAM_SEND, REPLY, REPLY_FROM, FAIL_CODE };
static struct {
    int what;
    weft_status_t method_fails, fails;
    weft_function_t *function;
    weft_value_t values[8]; /* arguments or results that came */
    size_t n;
    uintptr_t at, opts, reply, op; /* address() of what was given */
    weft_code_t code;
    const char *message;
    unsigned released;
    weft_value_t results[8]; /* to be given */
    weft_function_fn run;
    weft_handler_t handler;
    const weft_function_opts_t *function_opts;
} fake;

#define THE_CLIENT ((weft_client_t *)(uintptr_t)0x1000)
#define THE_METHOD ((weft_method_t *)(uintptr_t)0x2000)
#define THE_STREAM ((weft_stream_t *)(uintptr_t)0x3000)
#define THE_SERVICE ((weft_service_t *)(uintptr_t)0x4000)

/* To be compared, never followed: what was there may be gone, and analyzers are told by the ~ that nobody means to go there. */
static uintptr_t address(const void *p)
{
    return ~(uintptr_t)p;
}

static weft_status_t saw(int what, const weft_value_t *values, size_t n)
{
    CHECK(n <= 8);
    CHECK(!n || values);
    fake.what = what;
    fake.n = n;
    fake.at = address(values);
    if (n)
        memcpy(fake.values, values, n * sizeof *values);
    return fake.fails;
}

weft_status_t fake_method(weft_client_t *client, weft_function_t *function, weft_method_t **method_out)
{
    CHECK(client == THE_CLIENT);
    fake.function = function;
    if (!fake.method_fails)
        *method_out = THE_METHOD;
    return fake.method_fails;
}
weft_status_t fake_wait(weft_method_t *method, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                        uint64_t timeout_ns, weft_reply_t *reply)
{
    CHECK(method == THE_METHOD);
    CHECK(!opts);
    CHECK_EQ(timeout_ns, 0); /* the client's */
    fake.reply = address(reply);
    reply->values = fake.results;
    return saw(WAIT, args, n);
}
weft_status_t fake_call_with(weft_method_t *method, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                             weft_reply_t *reply, weft_op_t *op)
{
    CHECK(method == THE_METHOD);
    fake.opts = address(opts);
    fake.reply = address(reply);
    fake.op = address(op);
    return saw(CALL_WITH, args, n);
}
weft_status_t fake_call(weft_method_t *method, const weft_value_t *args, size_t n, weft_reply_t *reply, weft_op_t *op)
{
    CHECK(method == THE_METHOD && !reply && !op);
    return saw(CALL, args, n);
}
weft_status_t fake_call_stream(weft_method_t *method, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                               weft_reply_t *reply, weft_op_t *op, weft_stream_t **stream_out)
{
    CHECK(method == THE_METHOD);
    fake.opts = address(opts);
    fake.reply = address(reply);
    fake.op = address(op);
    *stream_out = THE_STREAM;
    return saw(CALL_STREAM, args, n);
}
weft_status_t fake_stream_send(weft_stream_t *stream, const weft_value_t *value, weft_op_t *op)
{
    CHECK(stream == THE_STREAM);
    fake.op = address(op);
    return saw(STREAM_SEND, value, 1);
}
void fake_release(weft_reply_t *reply)
{
    CHECK(fake.reply == address(reply));
    fake.released++;
}
weft_status_t fake_reply(weft_request_t *request, const weft_value_t *values, size_t n)
{
    CHECK(request);
    return saw(REPLY, values, n);
}
weft_status_t fake_reply_from(weft_request_t *request, const weft_value_t *values, size_t n, weft_op_t *op)
{
    CHECK(request);
    fake.op = address(op);
    return saw(REPLY_FROM, values, n);
}
weft_status_t fake_fail(weft_request_t *request, weft_code_t code, const char *message)
{
    CHECK(request);
    fake.code = code;
    fake.message = message;
    return saw(FAIL_CODE, NULL, 0);
}
weft_status_t fake_serve(weft_service_t *service, const weft_function_t *function, weft_function_fn run, weft_handler_fn fn,
                         void *user, const weft_function_opts_t *opts)
{
    CHECK(service == THE_SERVICE && function);
    fake.run = run;
    fake.handler = (weft_handler_t){fn, user};
    fake.function_opts = opts;
    return WEFT_OK;
}

/* The function that was served last gets what was sent last. */
static void run(void)
{
    weft_value_t args[8];
    memcpy(args, fake.values, sizeof args);
    weft_request_t request = {.args = args, .n = fake.n};
    fake.what = NOTHING;
    fake.run(&request, &fake.handler);
}

/* What the function answered is what the caller gets. */
static void give_back(void)
{
    CHECK_EQ(fake.what, REPLY);
    memcpy(fake.results, fake.values, sizeof fake.results);
}

static bool is(weft_string_t s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.data, text, s.n);
}

/* --- signatures -------------------------------------------------------------------------------------------------------- */

static void signature(const weft_function_t *f, const char *text)
{
    weft_sig_t *sig;
    CHECK_STR(f->signature, text);
    CHECK_OK(weft_sig_parse(f->signature, &sig));
    CHECK_STR(weft_sig_text(sig), text); /* the one way of writing it, too */
    weft_sig_free(sig);
}

TEST(signatures_are_what_a_person_would_write)
{
    signature(calc_add_function(), "add(a: i32, b: i32) -> i32");
    signature(calc_split_function(), "calc.split(text: string, at: u64) -> (head: string, tail: string)");
    signature(calc_divide_function(), "divide(a: i32, b: i32) -> (quotient: i32, exact: bool)");
    signature(calc_reset_function(), "reset() -> void");
    signature(calc_now_function(), "now() -> u64");
    signature(calc_mean_function(), "mean(values: [f64]) -> f64 idempotent");
    signature(calc_log_function(), "log(line: string, level: u8) -> void oneway");
    signature(calc_ping_function(), "ping() -> void oneway");
    signature(calc_scale_function(), "scale(image: tensor, by: f32) -> tensor");
    signature(calc_stack_function(), "stack(images: [tensor]) -> [tensor]");
    signature(calc_first_function(), "first(a: bool, b: i8, c: i16, d: i64, e: u8, f: u16, g: u32, h: f64) -> "
                                     "(a: bool, b: i8, c: i16, d: i64, e: u8, f: u16, g: u32, h: f64)");
    signature(calc_second_function(), "second(a: [bool], b: [i8], c: [i16], d: [i32], e: [i64], f: [f32]) -> "
                                      "(a: [bool], b: [i8], c: [i16], d: [i32], e: [i64], f: [f32])");
    signature(calc_third_function(), "third(a: [u8], b: [u16], c: [u32], d: [u64], e: [f64]) -> "
                                     "(a: [u8], b: [u16], c: [u32], d: [u64], e: [f64])");
    signature(calc_primes_function(), "primes(below: u64) -> stream u64");
    signature(calc_ticks_function(), "ticks() -> stream bool");
    signature(calc_total_function(), "total(from: f64, values: stream f64) -> f64");
    signature(calc_ranges_function(), "ranges(values: stream [f64]) -> (least: f64, most: f64)");
    signature(calc_eat_function(), "eat(crumbs: stream bool) -> void");
    signature(calc_chat_function(), "chat(lines: stream i32) -> stream string");
    signature(calc_talk_function(), "talk(a: i32, b: string, lines: stream string) -> stream bool");
    CHECK_STR(WEFT_SIGNATURE("add", i32, (i32, a), (i32, b)), calc_add_function()->signature);
    CHECK_STR(WEFT_SIGNATURE("pair", ((bool, a), (f64s, b))), "pair() -> (a: bool, b: [f64])");
    CHECK_STR(WEFT_SIGNATURE("no", void), "no() -> void");
}

/* --- both sides -------------------------------------------------------------------------------------------------------- */

static calc_add_fn add;
static weft_code_t add(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *sum_out)
{
    CHECK_EQ(*sum_out, 0);
    CHECK_EQ(request->n, 2);
    *sum_out = a + b;
    return (weft_code_t) * (int *)user;
}

TEST(a_sum_goes_from_the_stub_to_the_function_and_back)
{
    int code = WEFT_CODE_OK;
    int32_t sum = 99;
    const weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
    CHECK_OK(calc_add_serve(THE_SERVICE, add, &code, &opts));
    CHECK(fake.function_opts == &opts);
    fake.results[0] = weft_i32(-7);
    CHECK_OK(calc_add(THE_CLIENT, 25, 17, &sum));
    CHECK_EQ(fake.what, WAIT);
    CHECK(fake.function == calc_add_function());
    CHECK_EQ(fake.n, 2);
    CHECK_EQ(fake.values[0].type, WEFT_T_I32);
    CHECK_EQ(fake.values[0].i32, 25);
    CHECK_EQ(fake.values[1].i32, 17);
    CHECK_EQ(sum, -7);
    CHECK_EQ(fake.released, 1);
    run();
    CHECK_EQ(fake.what, REPLY);
    CHECK_EQ(fake.n, 1);
    CHECK_EQ(fake.values[0].type, WEFT_T_I32);
    CHECK_EQ(fake.values[0].i32, 42);
}

TEST(a_stub_that_fails_sets_no_result)
{
    int32_t sum = 99;
    fake.fails = WEFT_ERR_CALL;
    CHECK_EQ(calc_add(THE_CLIENT, 1, 2, &sum), WEFT_ERR_CALL);
    CHECK_EQ(sum, 99);
    CHECK_EQ(fake.released, 1); /* what it failed with has words */
    fake.method_fails = WEFT_ERR_NOMEM;
    fake.what = NOTHING;
    calc_add_call_t call = WEFT_CALL_ZERO;
    weft_string_t text = {NULL, 1};
    weft_reply_t reply;
    memset(&reply, 0xff, sizeof reply);
    CHECK_EQ(calc_add(THE_CLIENT, 1, 2, &sum), WEFT_ERR_NOMEM);
    CHECK_EQ(calc_add_post(THE_CLIENT, 1, 2, &call), WEFT_ERR_NOMEM);
    CHECK_EQ(calc_upper(THE_CLIENT, weft_string("x"), &text, &reply), WEFT_ERR_NOMEM);
    CHECK_EQ(fake.what, NOTHING);
    CHECK_EQ(sum, 99);
    CHECK(!reply.more && !reply.values && text.n == 1); /* it may be released */
}

TEST(codes_other_than_ok_are_failures_and_later_is_nothing)
{
    int code = WEFT_CODE_NOT_FOUND;
    CHECK_OK(calc_add_serve(THE_SERVICE, add, &code, NULL));
    int32_t sum;
    fake.results[0] = weft_i32(0);
    CHECK_OK(calc_add(THE_CLIENT, 1, 2, &sum));
    run();
    CHECK_EQ(fake.what, FAIL_CODE);
    CHECK_EQ(fake.code, WEFT_CODE_NOT_FOUND);
    CHECK(!fake.message);
    CHECK_OK(calc_add(THE_CLIENT, 1, 2, &sum));
    code = (int)WEFT_LATER;
    run();
    CHECK_EQ(fake.what, NOTHING);
    weft_request_t request = {0};
    CHECK_EQ(weft_failed(&request, WEFT_CODE_ABORTED, "words"), WEFT_LATER);
    CHECK_EQ(fake.what, FAIL_CODE);
    CHECK_EQ(fake.code, WEFT_CODE_ABORTED);
    CHECK_STR(fake.message, "words");
}

TEST(a_posted_call_has_its_arguments_options_and_result_in_itself)
{
    calc_add_call_t call = WEFT_CALL_ZERO;
    const weft_call_opts_t opts = WEFT_CALL_OPTS_INIT;
    call.opts = &opts;
    CHECK_OK(calc_add_post(THE_CLIENT, -1, 2, &call));
    CHECK_EQ(fake.what, CALL_WITH);
    CHECK(fake.opts == address(&opts) && fake.reply == address(&call.reply) && fake.op == address(&call.op) &&
          fake.at == address(call.args));
    CHECK_EQ(call.args[0].i32, -1);
    CHECK_EQ(call.args[1].i32, 2);
    weft_value_t result = weft_i32(1);
    call.reply.values = &result;
    CHECK_EQ(calc_add_result(&call), 1);
    CHECK_EQ(fake.released, 0); /* the caller's */
}

static weft_code_t divide(weft_request_t *request, void *user, int32_t a, int32_t b, calc_divide_result_t *result_out)
{
    (void)request;
    (void)user;
    CHECK(!result_out->quotient && !result_out->exact);
    result_out->quotient = a / b;
    result_out->exact = a % b == 0;
    return WEFT_CODE_OK;
}

TEST(several_results_are_a_struct)
{
    calc_divide_result_t r;
    CHECK_OK(calc_divide_serve(THE_SERVICE, divide, NULL, NULL));
    CHECK_OK(calc_divide(THE_CLIENT, 42, 6, &r));
    run();
    CHECK_EQ(fake.n, 2);
    CHECK_EQ(fake.values[0].type, WEFT_T_I32);
    CHECK_EQ(fake.values[1].type, WEFT_T_BOOL);
    give_back();
    CHECK_OK(calc_divide(THE_CLIENT, 42, 6, &r));
    CHECK(r.quotient == 7 && r.exact);
    weft_request_t request = {0};
    weft_op_t op = WEFT_OP_INIT;
    r.quotient = 3;
    CHECK_OK(calc_divide_reply(&request, &r));
    CHECK(fake.what == REPLY && fake.n == 2 && fake.values[0].i32 == 3 && fake.values[1].b);
    CHECK_OK(calc_divide_reply_from(&request, &r, &op));
    CHECK(fake.what == REPLY_FROM && fake.n == 2 && fake.op == address(&op));
    CHECK_OK(calc_add_reply(&request, 8));
    CHECK(fake.what == REPLY && fake.n == 1 && fake.values[0].i32 == 8);
    CHECK_OK(calc_add_reply_from(&request, 9, &op));
    CHECK(fake.what == REPLY_FROM && fake.n == 1 && fake.values[0].i32 == 9);
}

static weft_code_t split(weft_request_t *request, void *user, weft_string_t text, uint64_t at, calc_split_result_t *result_out)
{
    (void)user;
    calc_split_args_t again = calc_split_args(request);
    CHECK(again.text.data == text.data && again.text.n == text.n && again.at == at);
    result_out->head = weft_string_n(text.data, (size_t)at);
    result_out->tail = weft_string_n(text.data + at, text.n - (size_t)at);
    return WEFT_CODE_OK;
}

TEST(results_that_are_views_stay_with_the_reply)
{
    calc_split_result_t r;
    weft_reply_t reply;
    memset(&reply, 0xff, sizeof reply); /* the stub does not look at it */
    CHECK_OK(calc_split_serve(THE_SERVICE, split, NULL, NULL));
    CHECK_OK(calc_split(THE_CLIENT, weft_string("warpweft"), 4, &r, &reply));
    CHECK_EQ(fake.values[0].type, WEFT_T_STRING);
    CHECK_EQ(fake.values[0].view.n, 8);
    CHECK_EQ(fake.values[1].u64, 4);
    run();
    give_back();
    CHECK_OK(calc_split(THE_CLIENT, weft_string("warpweft"), 4, &r, &reply));
    CHECK(is(r.head, "warp") && is(r.tail, "weft"));
    CHECK(fake.reply == address(&reply));
    CHECK_EQ(fake.released, 0);
}

static weft_code_t reset(weft_request_t *request, void *user)
{
    CHECK_EQ(request->n, 0);
    ++*(int *)user;
    return WEFT_CODE_OK;
}
static weft_code_t now(weft_request_t *request, void *user, uint64_t *result_out)
{
    (void)request;
    (void)user;
    *result_out = UINT64_MAX;
    return WEFT_CODE_OK;
}

TEST(functions_without_parameters_or_results)
{
    int resets = 0;
    uint64_t time = 0;
    weft_request_t request = {0};
    calc_reset_call_t call = WEFT_CALL_ZERO;
    CHECK_OK(calc_reset_serve(THE_SERVICE, reset, &resets, NULL));
    CHECK_OK(calc_reset(THE_CLIENT));
    CHECK(fake.what == WAIT && fake.n == 0);
    CHECK_EQ(fake.released, 1);
    run();
    CHECK(fake.what == REPLY && fake.n == 0 && resets == 1);
    CHECK_OK(calc_reset_post(THE_CLIENT, &call));
    CHECK(fake.what == CALL_WITH && fake.n == 0);
    CHECK_OK(calc_reset_reply(&request));
    CHECK(fake.what == REPLY && fake.n == 0);
    CHECK_OK(calc_now_serve(THE_SERVICE, now, NULL, NULL));
    run();
    give_back();
    CHECK_OK(calc_now(THE_CLIENT, &time));
    CHECK(time == UINT64_MAX);
}

static weft_code_t take_line(weft_request_t *request, void *user, weft_string_t line, uint8_t level)
{
    (void)request;
    (void)user;
    CHECK(is(line, "hello") && level == 3);
    return WEFT_CODE_OK;
}

TEST(oneway_functions_are_sent_with_a_call_or_without)
{
    calc_log_call_t call = WEFT_CALL_ZERO;
    CHECK_OK(calc_log_serve(THE_SERVICE, take_line, NULL, NULL));
    CHECK_OK(calc_log_post(THE_CLIENT, weft_string("hello"), 3, NULL));
    CHECK(fake.what == CALL && fake.n == 2 && fake.values[1].u8 == 3);
    run();
    CHECK_EQ(fake.what, REPLY);
    CHECK_OK(calc_log_post(THE_CLIENT, weft_string("hello"), 3, &call));
    CHECK(fake.what == CALL_WITH && fake.op == address(&call.op) && fake.at == address(call.args));
    CHECK_OK(calc_log(THE_CLIENT, weft_string("hello"), 3));
    CHECK_EQ(fake.what, WAIT);
    CHECK_OK(calc_ping_post(THE_CLIENT, NULL));
    CHECK(fake.what == CALL && fake.n == 0);
}

/* --- every type -------------------------------------------------------------------------------------------------------- */

static weft_code_t first(weft_request_t *request, void *user, bool a, int8_t b, int16_t c, int64_t d, uint8_t e, uint16_t f,
                         uint32_t g, double h, calc_first_result_t *result_out)
{
    (void)request;
    (void)user;
    *result_out = (calc_first_result_t){a, b, c, d, e, f, g, h};
    return WEFT_CODE_OK;
}

TEST(scalars_of_every_type_keep_their_values)
{
    static const uint32_t types[] = {WEFT_T_BOOL, WEFT_T_I8,  WEFT_T_I16, WEFT_T_I64,
                                     WEFT_T_U8,   WEFT_T_U16, WEFT_T_U32, WEFT_T_F64};
    calc_first_result_t r;
    CHECK_OK(calc_first_serve(THE_SERVICE, first, NULL, NULL));
    for (int turn = 0; turn < 2; turn++) {
        CHECK_OK(calc_first(THE_CLIENT, true, -8, INT16_MIN, INT64_MIN, 255, 65535, UINT32_MAX, -0.5, &r));
        CHECK_EQ(fake.n, 8);
        for (int i = 0; i < 8; i++)
            CHECK_EQ(fake.values[i].type, types[i]);
        run();
        give_back();
    }
    CHECK(r.a && r.b == -8 && r.c == INT16_MIN && r.d == INT64_MIN && r.e == 255 && r.f == 65535 && r.g == UINT32_MAX &&
          r.h == -0.5);
}

static weft_code_t second(weft_request_t *request, void *user, weft_bools_t a, weft_i8s_t b, weft_i16s_t c, weft_i32s_t d,
                          weft_i64s_t e, weft_f32s_t f, calc_second_result_t *result_out)
{
    (void)request;
    (void)user;
    *result_out = (calc_second_result_t){a, b, c, d, e, f};
    return WEFT_CODE_OK;
}
static weft_code_t third(weft_request_t *request, void *user, weft_u8s_t a, weft_u16s_t b, weft_u32s_t c, weft_u64s_t d,
                         weft_f64s_t e, calc_third_result_t *result_out)
{
    (void)request;
    (void)user;
    *result_out = (calc_third_result_t){a, b, c, d, e};
    return WEFT_CODE_OK;
}

#define VECTOR(v, i, t, at, count) \
    CHECK(fake.values[i].type == (WEFT_T_VECTOR | (t)) && fake.values[i].view.data == (at) && \
          fake.values[i].view.n == (count) && (v).data == (at) && (v).n == (count))

TEST(vectors_of_every_type_keep_their_places)
{
    static const bool bools[1];
    static const int8_t i8s[2];
    static const int16_t i16s[3];
    static const int32_t i32s[4];
    static const int64_t i64s[5];
    static const float f32s[6];
    static const uint8_t u8s[7];
    static const uint16_t u16s[8];
    static const uint32_t u32s[9];
    static const uint64_t u64s[10];
    static const double f64s[11];
    weft_reply_t reply;
    calc_second_result_t r;
    calc_third_result_t s;
    double mean;
    CHECK_OK(calc_second_serve(THE_SERVICE, second, NULL, NULL));
    for (int turn = 0; turn < 2; turn++) {
        CHECK_OK(calc_second(THE_CLIENT, weft_bools(bools, 1), weft_i8s(i8s, 2), weft_i16s(i16s, 3), weft_i32s(i32s, 4),
                             weft_i64s(i64s, 5), weft_f32s(f32s, 6), &r, &reply));
        run();
        give_back();
    }
    VECTOR(r.a, 0, WEFT_T_BOOL, bools, 1);
    VECTOR(r.b, 1, WEFT_T_I8, i8s, 2);
    VECTOR(r.c, 2, WEFT_T_I16, i16s, 3);
    VECTOR(r.d, 3, WEFT_T_I32, i32s, 4);
    VECTOR(r.e, 4, WEFT_T_I64, i64s, 5);
    VECTOR(r.f, 5, WEFT_T_F32, f32s, 6);
    CHECK_OK(calc_third_serve(THE_SERVICE, third, NULL, NULL));
    for (int turn = 0; turn < 2; turn++) {
        CHECK_OK(calc_third(THE_CLIENT, weft_u8s(u8s, 7), weft_u16s(u16s, 8), weft_u32s(u32s, 9), weft_u64s(u64s, 10),
                            weft_f64s(f64s, 11), &s, &reply));
        run();
        give_back();
    }
    VECTOR(s.a, 0, WEFT_T_U8, u8s, 7);
    VECTOR(s.b, 1, WEFT_T_U16, u16s, 8);
    VECTOR(s.c, 2, WEFT_T_U32, u32s, 9);
    VECTOR(s.d, 3, WEFT_T_U64, u64s, 10);
    VECTOR(s.e, 4, WEFT_T_F64, f64s, 11);
    fake.results[0] = weft_f64(2.5);
    CHECK_OK(calc_mean(THE_CLIENT, weft_f64s(f64s, 11), &mean)); /* a view goes in, a number comes out: no reply is needed */
    CHECK(mean == 2.5);
}

static weft_code_t scale(weft_request_t *request, void *user, const weft_tensor_t *image, float by,
                         const weft_tensor_t **result_out)
{
    (void)request;
    (void)user;
    CHECK(by == 2.0f && !*result_out);
    *result_out = image;
    return WEFT_CODE_OK;
}

TEST(tensors_are_pointers)
{
    weft_tensor_t images[3] = {{0}};
    const weft_tensor_t *scaled = NULL;
    weft_tensors_t all = {images, 3}, stacked;
    weft_reply_t reply;
    CHECK_OK(calc_scale_serve(THE_SERVICE, scale, NULL, NULL));
    for (int turn = 0; turn < 2; turn++) {
        CHECK_OK(calc_scale(THE_CLIENT, &images[1], 2.0f, &scaled, &reply));
        CHECK(fake.values[0].type == WEFT_T_TENSOR && fake.values[0].tensors.at == &images[1] && fake.values[0].tensors.n == 1);
        run();
        give_back();
    }
    CHECK(scaled == &images[1]);
    fake.results[0] = weft_tensors(images + 1, 2);
    CHECK_OK(calc_stack(THE_CLIENT, all, &stacked, &reply));
    CHECK(fake.values[0].type == (WEFT_T_VECTOR | WEFT_T_TENSOR) && fake.values[0].tensors.at == images &&
          fake.values[0].tensors.n == 3);
    CHECK(stacked.data == images + 1 && stacked.n == 2);
}

/* --- streams ----------------------------------------------------------------------------------------------------------- */

static weft_code_t total(weft_request_t *request, void *user, double from, double *result_out)
{
    (void)request;
    (void)user;
    *result_out = from + 1;
    return WEFT_CODE_OK;
}

TEST(streams_have_typed_values_in_both_directions)
{
    calc_primes_call_t primes = WEFT_CALL_ZERO;
    calc_total_call_t sum = WEFT_CALL_ZERO;
    calc_eat_call_t eat = WEFT_CALL_ZERO;
    calc_ranges_call_t ranges = WEFT_CALL_ZERO;
    calc_talk_call_t talk = WEFT_CALL_ZERO;
    weft_op_t op = WEFT_OP_INIT;
    weft_item_t item = WEFT_ITEM_INIT;
    static const double f64s[2];
    CHECK_OK(calc_primes_open(THE_CLIENT, 100, &primes));
    CHECK(fake.what == CALL_STREAM && fake.n == 1 && fake.values[0].u64 == 100 && primes.stream == THE_STREAM &&
          fake.op == address(&primes.op));
    CHECK_OK(calc_primes_give(THE_STREAM, 97, &op));
    CHECK(fake.what == STREAM_SEND && fake.values[0].type == WEFT_T_U64 && fake.values[0].u64 == 97 && fake.op == address(&op));
    item.value = fake.values[0];
    CHECK_EQ(calc_primes_given(&item), 97);

    CHECK_OK(calc_total_open(THE_CLIENT, 0.5, &sum));
    CHECK(fake.n == 1 && fake.values[0].f64 == 0.5);
    CHECK_OK(calc_total_serve(THE_SERVICE, total, NULL, NULL));
    run();
    CHECK(fake.what == REPLY && fake.values[0].f64 == 1.5);
    sum.reply.values = fake.values;
    CHECK(calc_total_result(&sum) == 1.5);
    CHECK_OK(calc_total_send(THE_STREAM, -1.5, NULL));
    item.value = fake.values[0];
    CHECK(fake.values[0].type == WEFT_T_F64 && calc_total_sent(&item) == -1.5);

    CHECK_OK(calc_eat_open(THE_CLIENT, &eat));
    CHECK(fake.what == CALL_STREAM && fake.n == 0);
    CHECK_OK(calc_eat_send(THE_STREAM, true, NULL));
    item.value = fake.values[0];
    CHECK(fake.values[0].type == WEFT_T_BOOL && calc_eat_sent(&item));

    CHECK_OK(calc_ranges_open(THE_CLIENT, &ranges));
    CHECK_OK(calc_ranges_send(THE_STREAM, weft_f64s(f64s, 2), NULL));
    item.value = fake.values[0];
    CHECK(calc_ranges_sent(&item).data == f64s && calc_ranges_sent(&item).n == 2);

    CHECK_OK(calc_talk_open(THE_CLIENT, 1, weft_string("b"), &talk));
    CHECK(fake.n == 2 && fake.values[0].i32 == 1 && fake.values[1].view.n == 1);
    CHECK_OK(calc_talk_send(THE_STREAM, weft_string("to the server"), NULL));
    item.value = fake.values[0];
    CHECK(is(calc_talk_sent(&item), "to the server"));
    CHECK_OK(calc_talk_give(THE_STREAM, true, NULL));
    item.value = fake.values[0];
    CHECK(fake.values[0].type == WEFT_T_BOOL && calc_talk_given(&item));
}
