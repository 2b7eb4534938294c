/* Calls between two runtimes: values of every type, failures, deadlines, cancelling, many at once; over shared memory and TCP,
 * driven by the caller and by threads.
 * ctest: tls timeout=120 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/desk.h"
#include "test.h"

static desk_t desk;

TEST(a_sum)
{
    each_way(way) {
        _Atomic unsigned ran = 0;
        desk_open(&desk, way, NULL);
        desk_add(&desk, DESK_ADD, desk_adds, &ran);
        weft_method_t *add = desk_method(&desk, DESK_ADD);
        CHECK(desk_method(&desk, DESK_ADD) == add);
        for (int i = 0; i < 100; i++) {
            weft_value_t args[2] = {weft_i32(i), weft_i32(-3 * i)};
            CHECK_OK(desk_call(&desk, add, args, 2));
            CHECK_EQ(desk.reply.code, WEFT_CODE_OK);
            CHECK_EQ(desk.reply.ran, WEFT_RAN);
            CHECK_EQ(desk.reply.n, 1);
            CHECK_EQ(desk.reply.values[0].type, WEFT_T_I32);
            CHECK_EQ(desk.reply.values[0].i32, -2 * i);
            CHECK_EQ(desk.reply.tries, 1);
            CHECK(!*desk.reply.message);
        }
        CHECK_EQ(atomic_load(&ran), 100);
        desk_close(&desk);
    }
}

static bool same(const weft_value_t *a, const weft_value_t *b)
{
    if (a->type != b->type)
        return false;
    if (a->type == WEFT_T_STRING || (a->type & WEFT_T_VECTOR)) {
        size_t size = a->type == WEFT_T_STRING ? 1 : weft_type_size(a->type);
        return a->view.n == b->view.n && (!a->view.n || !memcmp(a->view.data, b->view.data, a->view.n * size));
    }
    return !memcmp(&a->u64, &b->u64, weft_type_size(a->type));
}

TEST(values_of_every_type_go_and_return)
{
    static const char text[] = "na\xc3\xafve";
    static const double f64s[] = {1.5, -2.25, 1e300};
    static const int16_t i16s[] = {-1, 2, -3, 4, -5};
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk,
                 "all(a: bool, b: i8, c: i16, d: i32, e: i64, f: u8, g: u16, h: u32, i: u64, j: f32, k: f64, l: string, m: "
                 "[f64], n: [i16], "
                 "o: [bool]) -> (bool, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, string, [f64], [i16], [bool])",
                 desk_echoes, NULL);
        bool bools[] = {true, false, true};
        weft_value_t args[] = {weft_bool(true),
                               weft_i8(-8),
                               weft_i16(-1616),
                               weft_i32(-323232),
                               weft_i64(INT64_MIN),
                               weft_u8(255),
                               weft_u16(65535),
                               weft_u32(UINT32_MAX),
                               weft_u64(UINT64_MAX),
                               weft_f32(1.25f),
                               weft_f64(-0.0),
                               weft_text(text, strlen(text)),
                               weft_vector(WEFT_T_F64, f64s, 3),
                               weft_vector(WEFT_T_I16, i16s, 5),
                               weft_vector(WEFT_T_BOOL, bools, 3)};
        weft_op_t op = WEFT_OP_INIT;
        weft_method_t *all = desk_method(&desk, "all"); /* by name alone: the server's signature is taken */
        CHECK_EQ(desk_call(&desk, all, args, 15), WEFT_ERR_STATE);
        CHECK(!weft_method_sig(all));
        CHECK_OK(weft_method_check(all, NULL, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        CHECK(weft_method_sig(all) != NULL);
        CHECK_OK(desk_call(&desk, all, args, 15));
        CHECK_EQ(desk.reply.n, 15);
        for (unsigned i = 0; i < 15; i++)
            CHECK(same(&args[i], &desk.reply.values[i]));
        desk_close(&desk);
    }
}

TEST(strings_and_vectors_of_every_length)
{
    static const size_t lens[] = {0,    1,    7,    100,  1000, 1023,  1024,    1025,
                                  4000, 4096, 5000, 8192, 9000, 70000, 1 << 20, (5 << 20) + 1};
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk, "two(text: string, values: [u8]) -> (string, [u8])", desk_echoes, NULL);
        weft_method_t *two = desk_method(&desk, "two(text: string, values: [u8]) -> (string, [u8])");
        for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
            char *text = (char *)malloc(lens[i] + 1);
            uint8_t *bytes = (uint8_t *)malloc(lens[i] + 1);
            memset(text, 'a' + (int)i, lens[i]);
            pattern_fill(bytes, lens[i], i);
            weft_value_t args[2] = {weft_text(text, lens[i]), weft_vector(WEFT_T_U8, bytes, lens[i])};
            CHECK_OK(desk_call(&desk, two, args, 2));
            CHECK(same(&args[0], &desk.reply.values[0]));
            CHECK(same(&args[1], &desk.reply.values[1]));
            free(text);
            free(bytes);
        }
        desk_close(&desk);
    }
}

/* More small arguments than a header has room for. */
TEST(many_vectors_below_the_size_of_a_piece)
{
    static const char sig[] = "v(a: [u8], b: [u8], c: [u8], d: [u8], e: [u8], f: [u8], g: [u8], h: [u8], i: [u8], j: [u8]) -> "
                              "([u8], [u8], [u8], [u8], [u8], [u8], [u8], [u8], [u8], [u8])";
    static uint8_t bytes[10][1024];
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk, sig, desk_echoes, NULL);
        weft_method_t *v = desk_method(&desk, sig);
        weft_value_t args[10];
        for (unsigned len = 300; len <= 1024; len += 181) {
            for (unsigned i = 0; i < 10; i++) {
                pattern_fill(bytes[i], len, i + len);
                args[i] = weft_vector(WEFT_T_U8, bytes[i], len);
            }
            CHECK_OK(desk_call(&desk, v, args, 10));
            for (unsigned i = 0; i < 10; i++)
                CHECK(same(&args[i], &desk.reply.values[i]));
        }
        desk_close(&desk);
    }
}

TEST(what_does_not_agree_is_refused_and_both_are_printed)
{
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk, DESK_ADD, desk_adds, NULL);
        weft_value_t args[2] = {weft_i64(1), weft_i64(2)};
        CHECK_EQ(desk_call(&desk, desk_method(&desk, "add(a: i64, b: i64) -> i64"), args, 2), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_FAILED_PRECONDITION);
        CHECK_EQ(desk.reply.ran, WEFT_NOT_RUN);
        CHECK(strstr(desk.reply.message, "add(a: i64, b: i64) -> i64") &&
              strstr(desk.reply.message, "add(a: i32, b: i32) -> i32"));
        CHECK_EQ(desk_call(&desk, desk_method(&desk, "ad(a: i64, b: i64) -> i64"), args, 2), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_UNIMPLEMENTED);
        CHECK(strstr(desk.reply.message, "add"));
        /* arguments that are not the method's are a matter of the caller's alone */
        CHECK_EQ(desk_call(&desk, desk_method(&desk, DESK_ADD), args, 2), WEFT_ERR_INVALID);
        args[0] = args[1] = weft_i32(4);
        CHECK_EQ(desk_call(&desk, desk_method(&desk, DESK_ADD), args, 1), WEFT_ERR_INVALID);
        CHECK_OK(desk_call(&desk, desk_method(&desk, DESK_ADD), args, 2));
        CHECK_EQ(desk_call(&desk, desk_method(&desk, DESK_ADD), args, 1), WEFT_ERR_INVALID);
        CHECK_OK(desk_call(&desk, desk_method(&desk, DESK_ADD), args, 2));
        CHECK_EQ(desk.reply.values[0].i32, 8);
        desk_close(&desk);
    }
}

static void fails(weft_request_t *request, void *user)
{
    (void)user;
    if (request->args[0].i32 < 0)
        weft_request_fail_with(request, WEFT_CODE_UNKNOWN, WEFT_CATEGORY_USER + 5, request->args[0].i32, "of our own");
    else
        weft_request_fail(request, (weft_code_t)request->args[0].i32, "as you wish");
}

TEST(every_code_and_categories_of_others_reach_the_caller)
{
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk, "fail(code: i32) -> void", fails, NULL);
        weft_method_t *fail = desk_method(&desk, "fail(code: i32) -> void");
        for (int code = 1; code <= 16; code++) {
            weft_value_t arg = weft_i32(code);
            weft_status_t want = code == 1 ? WEFT_ERR_CANCELLED : code == 4 ? WEFT_ERR_TIMEOUT : WEFT_ERR_CALL;
            CHECK_EQ(desk_call(&desk, fail, &arg, 1), want);
            CHECK_EQ((int)desk.reply.code, code);
            CHECK_EQ(desk.reply.ran, WEFT_RAN);
            CHECK(!strcmp(desk.reply.message, "as you wish"));
        }
        weft_value_t arg = weft_i32(-77);
        CHECK_EQ(desk_call(&desk, fail, &arg, 1), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.category, WEFT_CATEGORY_USER + 5);
        CHECK_EQ(desk.reply.value, -77);
        desk_close(&desk);
    }
}

/* --- requests that stay ------------------------------------------------------------------------------------------------ */

typedef struct shelf {
    weft_request_t *kept[16];
    _Atomic unsigned n, cancelled;
} shelf_t;

static void is_cancelled(weft_request_t *request, void *user)
{
    shelf_t *s = (shelf_t *)user;
    CHECK(weft_request_cancelled(request));
    atomic_fetch_add(&s->cancelled, 1);
}

static void keeps(weft_request_t *request, void *user)
{
    shelf_t *s = (shelf_t *)user;
    weft_request_t *kept = weft_request_keep(request);
    CHECK(kept != NULL);
    weft_request_on_cancel(kept, is_cancelled, s);
    s->kept[atomic_load(&s->n)] = kept;
    atomic_fetch_add(&s->n, 1);
}

TEST(an_answer_that_comes_later)
{
    each_way(way) {
        shelf_t shelf = {0};
        weft_op_t op = WEFT_OP_INIT;
        desk_open(&desk, way, NULL);
        desk_add(&desk, "later(text: string) -> string", keeps, &shelf);
        weft_method_t *later = desk_method(&desk, "later(text: string) -> string");
        weft_value_t arg = weft_text("wait for me", 11);
        desk.reply = (weft_reply_t)WEFT_REPLY_INIT;
        CHECK_OK(weft_call(later, &arg, 1, &desk.reply, &op));
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.n) == 1, 20);
        CHECK(!weft_op_done(&op));
        CHECK(!weft_request_cancelled(shelf.kept[0]));
        CHECK_OK(weft_request_reply(shelf.kept[0], shelf.kept[0]->args, 1));
        CHECK_EQ(weft_request_reply(shelf.kept[0], shelf.kept[0]->args, 1), WEFT_ERR_STATE);
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        CHECK(!memcmp(shelf.kept[0]->args[0].view.data, "wait for me", 11)); /* as long as it is kept */
        weft_request_release(shelf.kept[0]);
        CHECK(same(&arg, desk.reply.values));
        desk_close(&desk);
    }
}

TEST(cancelling_and_deadlines_reach_the_function)
{
    each_way(way) {
        shelf_t shelf = {0};
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t arg = weft_i32(1);
        desk_open(&desk, way, NULL);
        desk_add(&desk, "never(a: i32) -> i32", keeps, &shelf);
        weft_method_t *never = desk_method(&desk, "never(a: i32) -> i32");
        CHECK_OK(weft_call(never, &arg, 1, &reply, &op));
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.n) == 1, 20);
        weft_op_cancel(&op);
        CHECK_EQ(pair_wait(&desk.pair, &op, 20), WEFT_ERR_CANCELLED);
        CHECK_EQ(reply.code, WEFT_CODE_CANCELLED);
        CHECK_EQ(reply.ran, WEFT_MAY_HAVE_RUN);
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.cancelled) == 1, 20);
        CHECK_EQ(weft_request_reply(shelf.kept[0], &arg, 1), WEFT_ERR_CANCELLED);
        weft_request_release(shelf.kept[0]);

        CHECK_EQ(desk_call_with(&desk, never, &arg, 1, NULL, 30 * WEFT_MILLISECOND), WEFT_ERR_TIMEOUT);
        CHECK_EQ(desk.reply.code, WEFT_CODE_DEADLINE_EXCEEDED);
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.cancelled) == 2, 20);
        CHECK(shelf.kept[1]->left_ns <= 30 * WEFT_MILLISECOND);
        weft_request_release(shelf.kept[1]);
        desk_close(&desk);
    }
}

TEST(a_client_that_closes_ends_its_calls)
{
    each_way(way) {
        shelf_t shelf = {0};
        weft_op_t op = WEFT_OP_INIT, close = WEFT_OP_INIT;
        weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t arg = weft_i32(1);
        weft_client_t *client;
        weft_method_t *never;
        desk_open(&desk, way, NULL);
        desk_add(&desk, "never(a: i32) -> i32", keeps, &shelf);
        opts.service = "calc";
        CHECK_OK(weft_client_on(desk.pair.ep[1], &opts, &client));
        CHECK_OK(weft_client_method(client, "never(a: i32) -> i32", &never));
        CHECK_OK(weft_call(never, &arg, 1, &reply, &op));
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.n) == 1, 20);
        CHECK_OK(weft_client_close(client, &close));
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        CHECK(weft_op_done(&op));
        CHECK_EQ(op.status, WEFT_ERR_CLOSED);
        CHECK_EQ(reply.code, WEFT_CODE_UNAVAILABLE);
        CHECK_EQ(reply.ran, WEFT_MAY_HAVE_RUN);
        weft_reply_release(&reply);
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.cancelled) == 1, 20);
        weft_request_release(shelf.kept[0]);
        desk_close(&desk);
    }
}

/* --- many -------------------------------------------------------------------------------------------------------------- */

TEST(two_hundred_thousand_calls_under_way)
{
    enum { N = 200000 };
    const pair_way_t *way = &pair_ways[0];
    weft_op_t *ops = (weft_op_t *)calloc(N, sizeof *ops);
    weft_reply_t *replies = (weft_reply_t *)calloc(N, sizeof *replies);
    weft_value_t *args = (weft_value_t *)calloc(2 * (size_t)N, sizeof *args);
    _Atomic unsigned ran = 0;
    CHECK(ops && replies && args);
    desk_open(&desk, way, NULL);
    desk_add(&desk, DESK_ADD, desk_adds, &ran);
    weft_method_t *add = desk_method(&desk, DESK_ADD);
    for (int i = 0; i < N; i++) {
        args[2 * i] = weft_i32(i);
        args[2 * i + 1] = weft_i32(1);
        CHECK_OK(weft_call(add, args + 2 * (size_t)i, 2, &replies[i], &ops[i]));
    }
    for (int i = 0; i < N; i++) {
        CHECK_OK(pair_wait(&desk.pair, &ops[i], 60));
        CHECK_EQ(replies[i].values[0].i32, i + 1);
    }
    CHECK_EQ(atomic_load(&ran), N);
    weft_client_stats_t stats = WEFT_CLIENT_STATS_INIT;
    CHECK_OK(weft_client_get_stats(desk.client, &stats));
    CHECK_EQ(stats.calls, N);
    CHECK_EQ(stats.ok, N);
    CHECK_EQ(stats.under_way, 0);
    desk_close(&desk);
    free(ops);
    free(replies);
    free(args);
}

TEST(a_batch)
{
    enum { N = 64 };
    each_way(way) {
        weft_op_t ops[N] = {WEFT_OP_INIT};
        weft_reply_t replies[N];
        weft_value_t args[N][2];
        weft_call_item_t items[N];
        weft_status_t why;
        desk_open(&desk, way, NULL);
        desk_add(&desk, DESK_ADD, desk_adds, NULL);
        for (int i = 0; i < N; i++) {
            args[i][0] = weft_i32(i);
            args[i][1] = i == 40 ? weft_i64(0) : weft_i32(5);
            items[i] = (weft_call_item_t){args[i], 2, &replies[i], &ops[i]};
        }
        weft_value_t two[2] = {weft_i32(1), weft_i32(1)};
        CHECK_OK(
            desk_call(&desk, desk_method(&desk, DESK_ADD), two, 2)); /* so that the function is known and errors come at once */
        size_t n = weft_call_many(desk_method(&desk, DESK_ADD), items, N, &why);
        if (way->mode == WEFT_PROGRESS_THREAD) { /* another thread looks at them: their operations tell */
            CHECK_EQ(n, N);
        } else {
            CHECK_EQ(n, 40);
            CHECK_EQ(why, WEFT_ERR_INVALID);
        }
        for (size_t i = 0; i < n; i++) {
            CHECK_EQ(pair_wait(&desk.pair, &ops[i], 20), i == 40 ? WEFT_ERR_INVALID : WEFT_OK);
            if (i != 40)
                CHECK_EQ(replies[i].values[0].i32, (int)i + 5);
            weft_reply_release(&replies[i]);
        }
        desk_close(&desk);
    }
}

/* --- oneway, reflection ------------------------------------------------------------------------------------------------ */

typedef struct log_book {
    char lines[4][64];
    _Atomic unsigned n;
} log_book_t;

static void logs(weft_request_t *request, void *user)
{
    log_book_t *book = (log_book_t *)user;
    unsigned i = atomic_load(&book->n);
    CHECK(request->args[0].view.n < 64);
    memcpy(book->lines[i], request->args[0].view.data, request->args[0].view.n);
    atomic_fetch_add(&book->n, 1);
}

TEST(a_function_nobody_waits_for)
{
    each_way(way) {
        log_book_t book = {0};
        weft_op_t op = WEFT_OP_INIT;
        char text[] = "first";
        desk_open(&desk, way, NULL);
        desk_add(&desk, "log(line: string) -> void oneway", logs, &book);
        weft_method_t *log = desk_method(&desk, "log(line: string) -> void oneway");
        weft_value_t arg = weft_text(text, 5);
        CHECK_OK(weft_call(log, &arg, 1, NULL, NULL));
        memset(text, 'x', 5); /* it was copied */
        CHECK_OK(weft_call(log, &arg, 1, NULL, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        PAIR_UNTIL(&desk.pair, atomic_load(&book.n) == 2, 20);
        CHECK(!strcmp(book.lines[0], "first") && !strcmp(book.lines[1], "xxxxx"));
        desk_close(&desk);
    }
}

TEST(a_server_says_what_it_offers)
{
    each_way(way) {
        weft_client_t *client;
        weft_method_t *services, *functions;
        desk_open(&desk, way, NULL);
        desk_add(&desk, DESK_ADD, desk_adds, NULL);
        CHECK_OK(weft_client_on(desk.pair.ep[1], NULL, &client));
        CHECK_OK(weft_client_method(client, WEFT_RPC_SERVICES, &services));
        CHECK_OK(desk_call(&desk, services, NULL, 0));
        CHECK(memmem(desk.reply.values[0].view.data, desk.reply.values[0].view.n, "calc", 4));
        CHECK_OK(weft_client_method(client, WEFT_RPC_FUNCTIONS, &functions));
        weft_value_t arg = weft_text("calc", 4);
        CHECK_OK(desk_call(&desk, functions, &arg, 1));
        CHECK(memmem(desk.reply.values[0].view.data, desk.reply.values[0].view.n, DESK_ADD, strlen(DESK_ADD)));
        CHECK_OK(weft_client_close(client, NULL));
        desk_close(&desk);
    }
}
