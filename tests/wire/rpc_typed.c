/* Typed functions with both sides: calls that wait and that do not, failures and their words, requests that are kept, streams;
 * and finding the method of a function, by many threads, for clients that come and go.
 * ctest: tls timeout=120 label=thread */
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <weft/function.h>

#include "base/alloc.h"
#include "lib/desk.h"
#include "test.h"

WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_divide, "divide", ((i32, quotient), (i32, rest)), (i32, a), (i32, b))
WEFT_FUNCTION(calc_upper, "upper", string, (string, text))
WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))
WEFT_FUNCTION(calc_late, "late", string, (string, text), (u64, n))
WEFT_FUNCTION(calc_never, "never", void)
WEFT_FUNCTION(calc_negate, "negate", tensor, (tensor, t))
WEFT_FUNCTION_ONEWAY(calc_note, "note", (u64, value))
WEFT_FUNCTION_GIVES_STREAM(calc_squares, "squares", u64, (u64, n))
WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values), (f64, from))

static desk_t desk;

#define each_thread_way(way) \
    each_way(way) \
        if (way->mode == WEFT_PROGRESS_THREAD) /* both sides are driven while a call waits */

/* --- the functions ----------------------------------------------------------------------------------------------------- */

static calc_add_fn add;
static weft_code_t add(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *result_out)
{
    (void)request;
    if (user)
        atomic_fetch_add((_Atomic unsigned *)user, 1);
    *result_out = (int32_t)((uint32_t)a + (uint32_t)b);
    return WEFT_CODE_OK;
}

static weft_code_t divide(weft_request_t *request, void *user, int32_t a, int32_t b, calc_divide_result_t *result_out)
{
    (void)user;
    if (!b)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "b is 0");
    if (b == 13)
        return WEFT_CODE_OUT_OF_RANGE;
    result_out->quotient = a / b;
    result_out->rest = a % b;
    return WEFT_CODE_OK;
}

static weft_code_t upper(weft_request_t *request, void *user, weft_string_t text, weft_string_t *result_out)
{
    static char room[70000];
    (void)user;
    if (text.n > sizeof room)
        return weft_failed(request, WEFT_CODE_RESOURCE_EXHAUSTED, "too long");
    for (size_t i = 0; i < text.n; i++)
        room[i] = (char)toupper((unsigned char)text.data[i]);
    *result_out = weft_string_n(room, text.n);
    return WEFT_CODE_OK;
}

static weft_code_t mean(weft_request_t *request, void *user, weft_f64s_t values, double *result_out)
{
    (void)request;
    (void)user;
    for (size_t i = 0; i < values.n; i++)
        *result_out += values.data[i] / (double)values.n;
    return WEFT_CODE_OK;
}

/* Answers from a thread of its own, which is joined before anything is closed. */
static struct {
    pthread_t thread;
    bool runs;
} later;

static void *answer_late(void *arg)
{
    weft_request_t *request = (weft_request_t *)arg;
    calc_late_args_t in = calc_late_args(request); /* as it is in the kept request: that of the function is gone */
    size_t n = in.n < in.text.n ? (size_t)in.n : in.text.n;
    (void)calc_late_reply(request, weft_string_n(in.text.data, n));
    weft_request_release(request);
    return NULL;
}
static weft_code_t late(weft_request_t *request, void *user, weft_string_t text, uint64_t n, weft_string_t *result_out)
{
    (void)user;
    (void)text;
    (void)n;
    (void)result_out;
    request = weft_request_keep(request);
    if (!request)
        return WEFT_LATER; /* and it was answered so */
    CHECK(!later.runs);
    CHECK(!pthread_create(&later.thread, NULL, answer_late, request));
    later.runs = true;
    return WEFT_LATER;
}

static void join_later(void)
{
    CHECK(later.runs && !pthread_join(later.thread, NULL));
    later.runs = false;
}

static void cancelled(weft_request_t *request, void *user)
{
    atomic_fetch_add((_Atomic unsigned *)user, 1);
    weft_request_release(request);
}
static weft_code_t never(weft_request_t *request, void *user)
{
    request = weft_request_keep(request);
    if (request)
        weft_request_on_cancel(request, cancelled, user);
    return WEFT_LATER;
}

static weft_code_t negate(weft_request_t *request, void *user, const weft_tensor_t *t, const weft_tensor_t **result_out)
{
    static float values[4096];
    static weft_tensor_t out;
    uint64_t bytes;
    (void)user;
    if (t->code != 2 || t->bits != 32 || weft_tensor_bytes(t, &bytes) || bytes > sizeof values)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "f32, and not so many");
    out = *t;
    out.data = values;
    for (size_t i = 0; i < bytes / sizeof *values; i++)
        values[i] = -((const float *)t->data)[i];
    *result_out = &out;
    return WEFT_CODE_OK;
}

static weft_code_t note(weft_request_t *request, void *user, uint64_t value)
{
    (void)request;
    atomic_store((_Atomic uint64_t *)user, value);
    return WEFT_CODE_OK;
}

static void serve_all(void)
{
    CHECK_OK(calc_add_serve(desk.service, add, NULL, NULL));
    CHECK_OK(calc_divide_serve(desk.service, divide, NULL, NULL));
    CHECK_OK(calc_upper_serve(desk.service, upper, NULL, NULL));
    CHECK_OK(calc_mean_serve(desk.service, mean, NULL, NULL));
    CHECK_OK(calc_late_serve(desk.service, late, NULL, NULL));
}

/* --- calls ------------------------------------------------------------------------------------------------------------- */

TEST(calls_that_wait)
{
    each_thread_way(way)
    {
        int32_t sum = 0;
        double m = 0, values[3000];
        calc_divide_result_t d = {0, 0};
        weft_string_t text;
        weft_reply_t reply;
        char big[65536];
        desk_open(&desk, way, NULL);
        serve_all();
        for (int i = 0; i < 100; i++) {
            CHECK_OK(calc_add(desk.client, i, -3 * i, &sum));
            CHECK_EQ(sum, -2 * i);
        }
        CHECK_OK(calc_divide(desk.client, 45, 7, &d));
        CHECK(d.quotient == 6 && d.rest == 3);
        CHECK_OK(calc_upper(desk.client, weft_string("weft"), &text, &reply));
        CHECK(text.n == 4 && !memcmp(text.data, "WEFT", 4) && reply.ran == WEFT_RAN);
        weft_reply_release(&reply);
        memset(big, 'w', sizeof big); /* both ways in a payload */
        CHECK_OK(calc_upper(desk.client, weft_string_n(big, sizeof big), &text, &reply));
        CHECK(text.n == sizeof big && text.data[0] == 'W' && text.data[sizeof big - 1] == 'W');
        weft_reply_release(&reply);
        for (int i = 0; i < 3000; i++)
            values[i] = 2.5;
        CHECK_OK(calc_mean(desk.client, weft_f64s(values, 4), &m));
        CHECK(m == 2.5);
        CHECK_OK(calc_mean(desk.client, weft_f64s(values, 3000), &m));
        CHECK(m > 2.499 && m < 2.501);
        CHECK_OK(calc_late(desk.client, weft_string("warp and weft"), 4, &text, &reply));
        CHECK(text.n == 4 && !memcmp(text.data, "warp", 4));
        join_later();
        weft_reply_release(&reply);
        desk_close(&desk);
    }
}

TEST(failures_have_words)
{
    each_thread_way(way)
    {
        calc_divide_result_t d = {7, 7};
        weft_string_t text = {NULL, 0};
        weft_reply_t reply;
        desk_open(&desk, way, NULL);
        serve_all();
        CHECK_EQ(calc_divide(desk.client, 1, 0, &d), WEFT_ERR_CALL);
        CHECK_STR(weft_last_error(), "INVALID_ARGUMENT: b is 0");
        CHECK(d.quotient == 7 && d.rest == 7);
        CHECK_EQ(calc_divide(desk.client, 1, 13, &d), WEFT_ERR_CALL);
        CHECK(strstr(weft_last_error(), "OUT_OF_RANGE"));
        CHECK_EQ(calc_never(desk.client), WEFT_ERR_CALL); /* nobody serves it */
        CHECK(strstr(weft_last_error(), "UNIMPLEMENTED"));
        CHECK_EQ(calc_upper(desk.client, weft_string("\xff"), &text, &reply), WEFT_ERR_INVALID); /* no text: it does not leave */
        CHECK_EQ(reply.code, WEFT_CODE_INVALID_ARGUMENT);
        CHECK_EQ(reply.ran, WEFT_NOT_RUN);
        CHECK(*reply.message && !text.data);
        weft_reply_release(&reply);
        desk_close(&desk);
    }
}

TEST(posted_calls)
{
    each_way(way) {
        enum { CALLS = 50 };
        static calc_add_call_t calls[CALLS];
        calc_divide_call_t bad = WEFT_CALL_ZERO;
        calc_late_call_t slow = WEFT_CALL_ZERO;
        desk_open(&desk, way, NULL);
        serve_all();
        for (int turn = 0; turn < 2; turn++) { /* a call can be made again as it is */
            for (int i = 0; i < CALLS; i++)
                CHECK_OK(calc_add_post(desk.client, i, turn, &calls[i]));
            for (int i = 0; i < CALLS; i++) {
                CHECK_OK(pair_wait(&desk.pair, &calls[i].op, 20));
                CHECK_EQ(calc_add_result(&calls[i]), i + turn);
                weft_reply_release(&calls[i].reply);
            }
        }
        CHECK_OK(calc_divide_post(desk.client, 1, 0, &bad));
        CHECK_EQ(pair_wait(&desk.pair, &bad.op, 20), WEFT_ERR_CALL);
        CHECK_EQ(bad.reply.code, WEFT_CODE_INVALID_ARGUMENT);
        CHECK_STR(bad.reply.message, "b is 0");
        weft_reply_release(&bad.reply);
        CHECK_OK(calc_late_post(desk.client, weft_string("weft"), 99, &slow));
        CHECK_OK(pair_wait(&desk.pair, &slow.op, 20));
        CHECK_EQ(calc_late_result(&slow).n, 4);
        join_later();
        weft_reply_release(&slow.reply);
        desk_close(&desk);
    }
}

TEST(a_deadline_of_the_client_ends_what_waits)
{
    each_thread_way(way)
    {
        _Atomic unsigned ended = 0;
        weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
        weft_client_t *hasty;
        weft_op_t op = WEFT_OP_INIT;
        desk_open(&desk, way, NULL);
        CHECK_OK(calc_never_serve(desk.service, never, &ended, NULL));
        opts.timeout_ns = 50 * WEFT_MILLISECOND;
        CHECK_OK(weft_client_on(desk.pair.ep[1], &opts, &hasty));
        for (double end = test_now() + 20;
             !atomic_load(&ended) && test_now() < end;) { /* on a busy machine one may end before it is sent */
            CHECK_EQ(calc_never(hasty), WEFT_ERR_TIMEOUT);
            CHECK(strstr(weft_last_error(), "DEADLINE_EXCEEDED"));
            for (int i = 0; i < 100 && !atomic_load(&ended); i++)
                usleep(10000);
        }
        CHECK(atomic_load(&ended)); /* the function was told */
        CHECK_OK(weft_client_close(hasty, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        desk_close(&desk);
    }
}

static void call_from_progress(weft_op_t *op, void *user)
{
    int32_t sum;
    (void)op;
    *(weft_status_t *)user = calc_add(desk.client, 1, 2, &sum);
}

TEST(a_call_does_not_wait_in_a_callback)
{
    weft_status_t st = WEFT_OK;
    weft_client_stats_t stats = WEFT_CLIENT_STATS_INIT;
    calc_add_call_t call = WEFT_CALL_ZERO;
    desk_open(&desk, &pair_ways[0], NULL);
    serve_all();
    call.op.fn = call_from_progress;
    call.op.user = &st;
    CHECK_OK(calc_add_post(desk.client, 1, 2, &call));
    CHECK_OK(pair_wait(&desk.pair, &call.op, 20));
    PAIR_UNTIL(&desk.pair, st == WEFT_ERR_STATE, 20);
    CHECK_OK(weft_client_get_stats(desk.client, &stats));
    CHECK_EQ(stats.calls, 1);
    weft_reply_release(&call.reply);
    desk_close(&desk);
}

TEST(tensors_go_and_return)
{
    each_thread_way(way)
    {
        static float values[4000];
        int64_t shape[2] = {2, 3};
        weft_tensor_t t = {values, 1, 0, 2, 2, 32, 1, shape, NULL, 0};
        const weft_tensor_t *r = NULL;
        weft_reply_t reply;
        desk_open(&desk, way, NULL);
        CHECK_OK(calc_negate_serve(desk.service, negate, NULL, NULL));
        for (int i = 0; i < 4000; i++)
            values[i] = (float)i;
        for (int big = 0; big < 2; big++) {
            shape[1] = big ? 2000 : 3;
            CHECK_OK(calc_negate(desk.client, &t, &r, &reply));
            CHECK(r->ndim == 2 && r->shape[0] == 2 && r->shape[1] == shape[1] && r->bits == 32);
            for (int i = 0; i < 2 * (int)shape[1]; i++)
                CHECK(((const float *)((const char *)r->data + r->byte_offset))[i] == (float)-i);
            weft_reply_release(&reply);
        }
        desk_close(&desk);
    }
}

TEST(oneway_functions_run)
{
    each_thread_way(way)
    {
        _Atomic uint64_t value = 0;
        desk_open(&desk, way, NULL);
        CHECK_OK(calc_note_serve(desk.service, note, &value, NULL));
        CHECK_OK(calc_note(desk.client, 7)); /* waits until it is on its way */
        TEST_UNTIL(atomic_load(&value) == 7, 20);
        CHECK_OK(calc_note_post(desk.client, 8, NULL));
        TEST_UNTIL(atomic_load(&value) == 8, 20);
        desk_close(&desk);
    }
}

/* --- signatures that differ -------------------------------------------------------------------------------------------- */

WEFT_FUNCTION(other_add, "add", i64, (i64, a), (i64, b))

TEST(another_signature_is_refused_and_both_are_printed)
{
    int64_t sum;
    each_thread_way(way)
    {
        desk_open(&desk, way, NULL);
        serve_all();
        CHECK_EQ(other_add(desk.client, 1, 2, &sum), WEFT_ERR_CALL);
        CHECK(strstr(weft_last_error(), "add(a: i32, b: i32) -> i32"));
        CHECK(strstr(weft_last_error(), "add(a: i64, b: i64) -> i64"));
        desk_close(&desk);
    }
}

/* --- handlers ---------------------------------------------------------------------------------------------------------- */

static void given_back(void *buf, void *user)
{
    CHECK(!user);
    atomic_fetch_add((_Atomic unsigned *)buf, 1);
}

TEST(what_was_handed_over_is_given_back_once)
{
    each_thread_way(way)
    {
        _Atomic unsigned back = 0, other = 0;
        weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        desk_open(&desk, way, NULL);
        opts.release = given_back;
        CHECK_OK(calc_never_serve(desk.service, never, &back, &opts));
        CHECK_EQ(calc_never_serve(desk.service, never, &other, &opts),
                 WEFT_ERR_STATE); /* the name is taken: it stays the caller's */
        CHECK_OK(weft_service_remove(desk.service, "never", &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        TEST_UNTIL(atomic_load(&back) == 1, 20);
        CHECK_OK(calc_never_serve(desk.service, never, &other, &opts));
        desk_close(&desk);
        CHECK_EQ(atomic_load(&back), 1);
        CHECK_EQ(atomic_load(&other), 1); /* it went with the service */
    }
}

/* --- finding methods --------------------------------------------------------------------------------------------------- */

#define MANY(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)
#define DECLARE(i) WEFT_FUNCTION(many_##i, "many" #i, i32, (i32, a), (i32, b))
MANY(DECLARE)
enum { THREADS = 4, FUNCTIONS = 20 };

static void call_many(weft_client_t *client)
{
    int32_t sum;
#define CALL(i) \
    CHECK_OK(many_##i(client, i, 100, &sum)); \
    CHECK_EQ(sum, i + 100);
    MANY(CALL)
}

static pthread_barrier_t together;
static void *caller(void *arg)
{
    pthread_barrier_wait(&together);
    for (int i = 0; i < 3; i++)
        call_many((weft_client_t *)arg);
    return NULL;
}

/* All of them call everything for the first time at once, through two clients. */
TEST(threads_find_the_same_methods)
{
    pthread_t threads[THREADS];
    weft_client_t *clients[2];
    weft_method_t *method[2], *again;
    weft_op_t op = WEFT_OP_INIT;
    desk_open(&desk, &pair_ways[2], NULL);
#define SERVE(i) CHECK_OK(many_##i##_serve(desk.service, add, NULL, NULL));
    MANY(SERVE)
    clients[0] = desk.client;
    CHECK_OK(weft_client_on(desk.pair.ep[1], NULL, &clients[1]));
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, caller, clients[i % 2]));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(weft_function_method(clients[i], many_7_function(), &method[i]));
        CHECK_OK(weft_client_method(clients[i], many_7_function()->signature, &again));
        CHECK(again == method[i]);
    }
    CHECK(method[0] != method[1]);
    CHECK(many_7_function()->index != many_8_function()->index);
    CHECK_OK(weft_client_close(clients[1], &op));
    CHECK_OK(pair_wait(&desk.pair, &op, 20));
    desk_close(&desk);
}

/* A new client may be where an old one was: it has methods of its own. */
TEST(clients_come_and_go)
{
    weft_client_t *client;
    int32_t sum;
    desk_open(&desk, &pair_ways[2], NULL);
    serve_all();
    for (int i = 0; i < 50; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_method_t *method, *again;
        CHECK_OK(weft_client_on(desk.pair.ep[1], NULL, &client));
        CHECK_OK(calc_add(client, i, 1, &sum));
        CHECK_EQ(sum, i + 1);
        CHECK_OK(weft_function_method(client, calc_add_function(), &method));
        CHECK_OK(weft_client_method(client, calc_add_function()->signature, &again));
        CHECK(method == again);
        CHECK_OK(weft_client_close(client, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
    }
    desk_close(&desk);
}

static _Thread_local unsigned allocs_left;
static int runs_out(size_t n)
{
    (void)n;
    return !allocs_left || (allocs_left--, 0);
}

/* Whatever allocation fails, a method is found or its absence is said, and the next time is as the first. */
TEST(no_memory_to_find_a_method)
{
    static weft_function_t functions[8];
    unsigned found = 0;
    desk_open(&desk, &pair_ways[0], NULL);
    for (unsigned i = 0; i < 8; i++) {
        weft_method_t *method = NULL, *again = NULL;
        functions[i].signature = calc_add_function()->signature;
        allocs_left = i;
        wefti_alloc_fails = runs_out;
        weft_status_t st = weft_function_method(desk.client, &functions[i], &method);
        wefti_alloc_fails = NULL;
        CHECK(st == WEFT_OK ? method != NULL : st == WEFT_ERR_NOMEM && !method);
        found += !st;
        CHECK_OK(weft_function_method(desk.client, &functions[i], &again));
        CHECK(!method || method == again);
    }
    CHECK(found > 0 && found < 8);
    weft_method_t *method;
    weft_function_t bad = {"add(a: i32) -> ", 0, 0};
    CHECK_EQ(weft_function_method(desk.client, &bad, &method), WEFT_ERR_INVALID);
    CHECK_EQ(weft_function_method(NULL, &functions[0], &method), WEFT_ERR_INVALID);
    CHECK_EQ(weft_function_method(desk.client, NULL, &method), WEFT_ERR_INVALID);
    CHECK_EQ(weft_call_wait(NULL, NULL, 0, NULL, 0, NULL), WEFT_ERR_INVALID);
    desk_close(&desk);
}

/* --- streams ----------------------------------------------------------------------------------------------------------- */

static void run_squares(weft_request_t *request, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st = calc_squares_give(request->stream, i * i, &op);
        if (st || weft_op_wait(&op, 20 * WEFT_SECOND))
            return;
    }
}
static weft_code_t squares(weft_request_t *request, void *user, uint64_t n)
{
    (void)user;
    run_squares(request, n); /* it has a thread of the service's own: it may wait */
    return WEFT_CODE_OK;
}

static weft_code_t total(weft_request_t *request, void *user, double from, double *result_out)
{
    (void)user;
    *result_out = from;
    for (;;) {
        weft_item_t item = WEFT_ITEM_INIT;
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st = weft_stream_recv(request->stream, &item, &op);
        if (!st)
            st = weft_op_wait(&op, 20 * WEFT_SECOND);
        if (st)
            return WEFT_CODE_ABORTED;
        if (!op.len)
            return WEFT_CODE_OK;
        *result_out += calc_total_sent(&item);
        weft_item_release(&item);
    }
}

TEST(streams_of_typed_values)
{
    each_thread_way(way)
    {
        weft_service_opts_t service = WEFT_SERVICE_OPTS_INIT;
        weft_function_opts_t on_threads = WEFT_FUNCTION_OPTS_INIT;
        calc_squares_call_t get = WEFT_CALL_ZERO;
        calc_total_call_t put = WEFT_CALL_ZERO;
        service.threads = 2;
        on_threads.threads = true;
        desk_open(&desk, way, &service);
        CHECK_OK(calc_squares_serve(desk.service, squares, NULL, &on_threads));
        CHECK_OK(calc_total_serve(desk.service, total, NULL, &on_threads));

        CHECK_OK(calc_squares_open(desk.client, 200, &get));
        for (uint64_t i = 0; i <= 200; i++) {
            weft_item_t item = WEFT_ITEM_INIT;
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_stream_recv(get.stream, &item, &op));
            CHECK_OK(pair_wait(&desk.pair, &op, 20));
            CHECK_EQ(op.len, i < 200);
            if (op.len)
                CHECK_EQ(calc_squares_given(&item), i * i);
            weft_item_release(&item);
        }
        CHECK_OK(pair_wait(&desk.pair, &get.op, 20));
        weft_stream_release(get.stream);
        weft_reply_release(&get.reply);

        CHECK_OK(calc_total_open(desk.client, 0.5, &put));
        for (int i = 0; i < 200; i++) {
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(calc_total_send(put.stream, i, &op));
            CHECK_OK(pair_wait(&desk.pair, &op, 20));
        }
        CHECK_OK(weft_stream_end(put.stream, NULL));
        CHECK_OK(pair_wait(&desk.pair, &put.op, 20));
        CHECK(calc_total_result(&put) == 0.5 + 199 * 100);
        weft_stream_release(put.stream);
        weft_reply_release(&put.reply);
        desk_close(&desk);
    }
}
