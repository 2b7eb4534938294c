/* Services: what they refuse, what bounds them, how they drain and close, and what their functions may do with a request.
 * ctest: timeout=180 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/caller.h"
#include "lib/desk.h"
#include "test.h"

static desk_t desk;
static pair_t pair;
static caller_t caller;

static weft_service_stats_t stats_of(weft_service_t *service)
{
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(service, &s));
    return s;
}

/* --- opening, adding, removing -------------------------------------------------------------------------------------------- */

TEST(names_instances_and_functions_that_cannot_be)
{
    weft_runtime_t *rt;
    weft_service_t *a, *b;
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t threads = WEFT_FUNCTION_OPTS_INIT, seven = WEFT_FUNCTION_OPTS_INIT;
    char text[256];
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_EQ(weft_service_open(rt, "no good", NULL, &a), WEFT_ERR_INVALID);
    CHECK_EQ(weft_service_open(rt, "", NULL, &a), WEFT_ERR_INVALID);
    CHECK_EQ(weft_service_open(rt, "weft-things", NULL, &a), WEFT_ERR_INVALID);
    opts.instance = "one";
    CHECK_OK(weft_service_open(rt, "calc", &opts, &a));
    CHECK_EQ(weft_service_open(rt, "calc", &opts, &b), WEFT_ERR_STATE);
    CHECK_OK(weft_service_open(rt, "calc", NULL, &b));
    CHECK_STR(weft_service_name(b), "calc");
    CHECK_STR(weft_service_instance(a), "one");
    CHECK(strlen(weft_service_instance(b)) > 8);

    CHECK_EQ(weft_service_add(a, "add(a: i32", desk_adds, NULL, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_service_add(a, "weft.services() -> string", desk_adds, NULL, NULL), WEFT_ERR_INVALID);
    threads.threads = true;
    CHECK_EQ(weft_service_add(a, DESK_ADD, desk_adds, NULL, &threads), WEFT_ERR_STATE);
    CHECK_OK(weft_service_add(a, DESK_ADD, desk_adds, NULL, NULL));
    CHECK_EQ(weft_service_add(a, "add() -> void", desk_adds, NULL, NULL), WEFT_ERR_STATE);
    seven.number = 1; /* taken: it was made up for add */
    CHECK_EQ(weft_service_add(a, "sub(a: i32, b: i32) -> i32", desk_adds, NULL, &seven), WEFT_ERR_STATE);
    seven.number = 7;
    CHECK_OK(weft_service_add(a, "sub(a: i32, b: i32) -> i32", desk_adds, NULL, &seven));
    CHECK_EQ(weft_service_functions(a, text, sizeof text), strlen(text));
    CHECK_STR(text, "1 add(a: i32, b: i32) -> i32\n7 sub(a: i32, b: i32) -> i32\n");
    CHECK_EQ(weft_service_functions(a, text, 5), 58);
    CHECK_STR(text, "1 ad");
    CHECK_OK(weft_service_remove(a, "add", NULL));
    CHECK_EQ(weft_service_remove(a, "add", NULL), WEFT_ERR_NOTFOUND);
    CHECK_EQ(weft_service_functions(b, text, sizeof text), 0);
    CHECK_STR(text, "");
    CHECK_OK(weft_service_close(a, NULL));
    CHECK_OK(weft_service_close(b, NULL));
    CHECK_OK(weft_runtime_close(rt));
}

static void given_back(void *user, void *none)
{
    CHECK(!none);
    atomic_fetch_add((_Atomic unsigned *)user, 1);
}

static _Atomic(weft_request_t *) kept;
static void keeps(weft_request_t *request, void *user)
{
    (void)user;
    atomic_store(&kept, weft_request_keep(request));
}

TEST(a_function_that_is_removed_ends_with_its_last_request_and_hands_its_context_back)
{
    each_way(way) {
        _Atomic unsigned released = 0;
        weft_op_t call = WEFT_OP_INIT, removed = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t args[2] = {weft_i32(1), weft_i32(2)}, sum = weft_i32(3);
        weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
        opts.release = given_back;
        atomic_store(&kept, NULL);
        desk_open(&desk, way, NULL);
        CHECK_OK(weft_service_add(desk.service, DESK_ADD, keeps, &released, &opts));
        weft_method_t *add = desk_method(&desk, DESK_ADD);
        CHECK_OK(weft_call(add, args, 2, &reply, &call));
        PAIR_UNTIL(&desk.pair, atomic_load(&kept), 20);
        CHECK_OK(weft_service_remove(desk.service, "add", &removed));
        /* it is not found any more: under its old number neither */
        CHECK_EQ(desk_call(&desk, add, args, 2), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_UNIMPLEMENTED);
        CHECK_EQ(desk.reply.ran, WEFT_NOT_RUN);
        CHECK(!weft_op_done(&removed));
        /* another one in its place is not taken for it, and found by name */
        desk_add(&desk, DESK_ADD, desk_adds, NULL);
        CHECK_OK(desk_call(&desk, add, args, 2));
        CHECK_EQ(desk.reply.values[0].i32, 3);
        CHECK_OK(weft_request_reply(atomic_load(&kept), &sum, 1));
        CHECK_OK(pair_wait(&desk.pair, &call, 20));
        CHECK_EQ(reply.values[0].i32, 3);
        weft_reply_release(&reply);
        CHECK(!weft_op_done(&removed));
        CHECK_EQ(atomic_load(&released), 0);
        weft_request_release(atomic_load(&kept));
        CHECK_OK(pair_wait(&desk.pair, &removed, 20));
        CHECK_EQ(atomic_load(&released), 1);
        desk_close(&desk);
        CHECK_EQ(atomic_load(&released), 1);
    }
}

static void counts(weft_request_t *request, void *user)
{
    (void)request;
    atomic_fetch_add((_Atomic unsigned *)user, 1);
}

TEST(a_call_that_nobody_waits_for_finds_a_function_that_was_put_in_the_place_of_another)
{
    each_way(way) {
        _Atomic unsigned before = 0, after = 0;
        weft_value_t arg = weft_i32(1);
        desk_open(&desk, way, NULL);
        desk_add(&desk, "note(a: i32) -> void oneway", counts, &before);
        weft_method_t *note = desk_method(&desk, "note(a: i32) -> void oneway");
        CHECK_OK(desk_call(&desk, note, &arg, 1));
        PAIR_UNTIL(&desk.pair, atomic_load(&before) == 1, 20);
        CHECK_OK(weft_service_remove(desk.service, "note", NULL));
        desk_add(&desk, "note(a: i32) -> void oneway", counts, &after);
        for (int i = 0; i < 1000 && !atomic_load(&after); i++) { /* the first is for the one that is gone */
            CHECK_OK(desk_call(&desk, note, &arg, 1));
            pair_run(&desk.pair, 0.01);
        }
        CHECK(atomic_load(&after) > 0);
        CHECK_EQ(atomic_load(&before), 1);
        desk_close(&desk);
    }
}

TEST(a_slip_of_the_hand_is_answered_with_what_there_is)
{
    desk_open(&desk, &pair_ways[0], NULL);
    desk_add(&desk, "normalize(v: [f64]) -> [f64]", desk_echoes, NULL);
    CHECK_EQ(desk_call(&desk, desk_method(&desk, "normalise(v: [f64]) -> [f64]"),
                       &(weft_value_t){WEFT_T_VECTOR | WEFT_T_F64, 0, {0}}, 1),
             WEFT_ERR_CALL);
    CHECK_EQ(desk.reply.code, WEFT_CODE_UNIMPLEMENTED);
    CHECK(strstr(desk.reply.message, "\"normalise\""));
    CHECK(strstr(desk.reply.message, "\"normalize\""));
    desk_close(&desk);

    pair_open(&pair, &pair_ways[0], NULL);
    caller_open(&caller, &pair);
    caller_answer_t a = caller_bind(&caller, "cslc", "add");
    CHECK_EQ(a.code, WEFT_CODE_UNIMPLEMENTED);
    weft_service_t *service;
    CHECK_OK(weft_service_open(pair.rt[0], "calc", NULL, &service));
    a = caller_bind(&caller, "cslc", "add");
    CHECK(strstr(a.text, "\"calc\""));
    CHECK_OK(weft_service_close(service, NULL));
    pair_close(&pair);
}

/* --- answers -------------------------------------------------------------------------------------------------------------- */

static void answers_nothing(weft_request_t *request, void *user)
{
    (void)request;
    (void)user;
}

static void answers_wrongly(weft_request_t *request, void *user)
{
    weft_value_t text = weft_text("no number", 9);
    atomic_store((_Atomic int *)user, weft_request_reply(request, &text, 1));
    CHECK_EQ(weft_request_fail(request, WEFT_CODE_ABORTED, "again"), WEFT_ERR_STATE);
}

static void keeps_and_lets_go(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_t *mine = weft_request_keep(request);
    CHECK(mine && mine != request);
    CHECK(weft_request_keep(request) == mine);
    CHECK_EQ(mine->args[0].i32, 1);
    weft_request_release(mine);
}

static void answers_then_keeps(weft_request_t *request, void *user)
{
    weft_value_t sum = weft_i32(7);
    CHECK_OK(weft_request_reply(request, &sum, 1));
    weft_request_t *mine = weft_request_keep(request);
    CHECK_EQ(mine->args[1].i32, 2);
    CHECK_EQ(weft_request_reply(mine, &sum, 1), WEFT_ERR_STATE);
    weft_request_release(mine);
    atomic_fetch_add((_Atomic unsigned *)user, 1);
}

TEST(functions_that_do_not_do_what_they_should)
{
    each_way(way) {
        _Atomic int st = WEFT_OK;
        _Atomic unsigned ran = 0;
        weft_value_t args[2] = {weft_i32(1), weft_i32(2)};
        desk_open(&desk, way, NULL);
        desk_add(&desk, "a(a: i32, b: i32) -> i32", answers_nothing, NULL);
        desk_add(&desk, "b(a: i32, b: i32) -> i32", answers_wrongly, &st);
        desk_add(&desk, "c(a: i32, b: i32) -> i32", keeps_and_lets_go, NULL);
        desk_add(&desk, "d(a: i32, b: i32) -> i32", answers_then_keeps, &ran);
        CHECK_EQ(desk_call(&desk, desk_method(&desk, "a(a: i32, b: i32) -> i32"), args, 2), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_INTERNAL);
        CHECK_EQ(desk.reply.ran, WEFT_RAN);
        CHECK_EQ(desk_call(&desk, desk_method(&desk, "b(a: i32, b: i32) -> i32"), args, 2), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_INTERNAL);
        CHECK(strstr(desk.reply.message, "b(a: i32, b: i32) -> i32"));
        PAIR_UNTIL(&desk.pair, atomic_load(&st) == WEFT_ERR_INVALID, 20);
        CHECK_EQ(desk_call(&desk, desk_method(&desk, "c(a: i32, b: i32) -> i32"), args, 2), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_INTERNAL);
        CHECK_OK(desk_call(&desk, desk_method(&desk, "d(a: i32, b: i32) -> i32"), args, 2));
        CHECK_EQ(desk.reply.values[0].i32, 7);
        PAIR_UNTIL(&desk.pair, stats_of(desk.service).answered == 4 && stats_of(desk.service).under_way == 0, 20);
        CHECK_EQ(stats_of(desk.service).failed, 3);
        PAIR_UNTIL(&desk.pair, atomic_load(&ran) == 1, 20);
        desk_close(&desk);
    }
}

static _Atomic unsigned allocations;
static int counts_allocations(size_t n)
{
    (void)n;
    atomic_fetch_add(&allocations, 1);
    return 0;
}

TEST(a_small_call_allocates_nothing_on_either_side)
{
    for (unsigned w = 0; w < 4; w++) {
        weft_value_t args[2] = {weft_i32(1), weft_i32(2)};
        desk_open(&desk, &pair_ways[w], NULL);
        desk_add(&desk, DESK_ADD, desk_adds, NULL);
        weft_method_t *add = desk_method(&desk, DESK_ADD);
        for (int i = 0; i < 1000; i++) /* what is kept for reuse is there after that */
            CHECK_OK(desk_call(&desk, add, args, 2));
        atomic_store(&allocations, 0);
        wefti_alloc_fails = counts_allocations;
        for (int i = 0; i < 1000; i++)
            CHECK_OK(desk_call(&desk, add, args, 2));
        wefti_alloc_fails = NULL;
        CHECK_EQ(atomic_load(&allocations), 0);
        desk_close(&desk);
    }
}

/* Results that stay the function's until they were taken. */
static weft_op_t from_op;
static uint8_t big[1 << 20];
static void answers_from(weft_request_t *request, void *user)
{
    weft_value_t v = weft_vector(WEFT_T_U8, big, request->args[0].u64);
    (void)user;
    from_op = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_request_reply_from(request, &v, 1, &from_op));
}

TEST(results_that_are_not_copied)
{
    each_way(way) {
        desk_open(&desk, way, NULL);
        pattern_fill(big, sizeof big, 7);
        desk_add(&desk, "bytes(n: u64) -> [u8]", answers_from, NULL);
        weft_method_t *bytes = desk_method(&desk, "bytes(n: u64) -> [u8]");
        for (uint64_t n = 0; n <= sizeof big; n = n ? n * 8 : 1) {
            weft_value_t arg = weft_u64(n);
            CHECK_OK(desk_call(&desk, bytes, &arg, 1));
            CHECK_EQ(desk.reply.values[0].view.n, n);
            CHECK_EQ(pattern_check(desk.reply.values[0].view.data, n, 7), n);
            CHECK_OK(pair_wait(&desk.pair, &from_op, 20));
        }
        /* and of a request that was kept */
        desk_add(&desk, "later(n: u64) -> [u8]", keeps, NULL);
        weft_method_t *later = desk_method(&desk, "later(n: u64) -> [u8]");
        weft_op_t call = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t arg = weft_u64(sizeof big);
        atomic_store(&kept, NULL);
        CHECK_OK(weft_call(later, &arg, 1, &reply, &call));
        PAIR_UNTIL(&desk.pair, atomic_load(&kept), 20);
        answers_from(atomic_load(&kept), NULL);
        weft_request_release(atomic_load(&kept));
        CHECK_OK(pair_wait(&desk.pair, &from_op, 20));
        CHECK_OK(pair_wait(&desk.pair, &call, 20));
        CHECK_EQ(pattern_check(reply.values[0].view.data, sizeof big, 7), sizeof big);
        weft_reply_release(&reply);
        desk_close(&desk);
    }
}

/* --- arguments that are fetched by the function --------------------------------------------------------------------------- */

static uint8_t *fetched;
static void fetch_done(weft_op_t *op, void *user)
{
    weft_request_t *request = (weft_request_t *)user;
    CHECK_OK(op->status);
    CHECK(request->args[0].view.data == fetched);
    weft_value_t n = weft_u64(pattern_check(request->args[0].view.data, request->args[0].view.n, 3));
    CHECK_OK(weft_request_reply(request, &n, 1));
    weft_request_release(request);
}

static void fetches(weft_request_t *request, void *user)
{
    static weft_op_t op;
    weft_request_t *mine = weft_request_keep(request);
    (void)user;
    if (!mine->fetch_len) {
        weft_value_t n = weft_u64(0);
        CHECK_EQ(weft_request_fetch(mine, big, sizeof big, NULL, &op), WEFT_ERR_STATE);
        CHECK_OK(weft_request_reply(mine, &n, 1));
        weft_request_release(mine);
        return;
    }
    op = (weft_op_t)WEFT_OP_INIT;
    CHECK_EQ(weft_request_fetch(mine, fetched, mine->fetch_len - 1, NULL, &op), WEFT_ERR_TRUNCATED);
    op.fn = fetch_done;
    op.user = mine;
    CHECK_OK(weft_request_fetch(mine, fetched, mine->fetch_len, NULL, &op));
}

static void does_not_fetch(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_fail(request, WEFT_CODE_FAILED_PRECONDITION, request->fetch_len ? "not now" : "it is here");
}

TEST(a_function_fetches_large_arguments_into_its_own_memory)
{
    each_way(way) {
        weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
        opts.fetch = true;
        fetched = (uint8_t *)aligned_alloc(64, sizeof big + 64);
        pattern_fill(big, sizeof big, 3);
        desk_open(&desk, way, NULL);
        CHECK_OK(weft_service_add(desk.service, "take(v: [u8]) -> u64", fetches, NULL, &opts));
        CHECK_OK(weft_service_add(desk.service, "refuse(v: [u8]) -> u64", does_not_fetch, NULL, &opts));
        weft_method_t *take = desk_method(&desk, "take(v: [u8]) -> u64"), *refuse = desk_method(&desk, "refuse(v: [u8]) -> u64");
        weft_value_t arg = weft_vector(WEFT_T_U8, big, sizeof big);
        CHECK_OK(desk_call(&desk, take, &arg, 1));
        CHECK_EQ(desk.reply.values[0].u64, sizeof big);
        CHECK_EQ(desk_call(&desk, refuse, &arg, 1), WEFT_ERR_CALL);
        CHECK_STR(desk.reply.message, "not now");
        arg.view.n = 100;
        CHECK_OK(desk_call(&desk, take, &arg, 1));
        CHECK_EQ(desk.reply.values[0].u64, 0);
        PAIR_UNTIL(&desk.pair, stats_of(desk.service).under_way == 0, 20);
        CHECK_EQ(stats_of(desk.service).bytes, 0);
        desk_close(&desk);
        free(fetched);
    }
}

/* --- limits --------------------------------------------------------------------------------------------------------------- */

typedef struct shelf {
    weft_request_t *at[64];
    _Atomic unsigned n, cancelled;
} shelf_t;

static void ended(weft_request_t *request, void *user)
{
    CHECK(weft_request_cancelled(request));
    atomic_fetch_add(&((shelf_t *)user)->cancelled, 1);
}

static void shelves(weft_request_t *request, void *user)
{
    shelf_t *s = (shelf_t *)user;
    weft_request_t *mine = weft_request_keep(request);
    if (!mine)
        return;
    weft_request_on_cancel(mine, ended, s);
    s->at[atomic_load(&s->n)] = mine;
    atomic_fetch_add(&s->n, 1);
}

static void clear(shelf_t *s)
{
    for (unsigned i = 0; i < atomic_load(&s->n); i++) {
        weft_request_reply(s->at[i], s->at[i]->args, s->at[i]->n);
        weft_request_release(s->at[i]);
    }
    atomic_store(&s->n, 0);
}

TEST(beyond_its_limits_a_service_says_so)
{
    each_way(way) {
        enum { MOST = 8 };
        shelf_t shelf = {0};
        weft_op_t ops[MOST] = {WEFT_OP_INIT};
        weft_reply_t replies[MOST] = {WEFT_REPLY_INIT};
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        opts.requests = MOST;
        opts.peer_percent = 100; /* the one there is may have all */
        opts.bytes = 256 << 10;
        opts.payload_max = 512 << 10;
        desk_open(&desk, way, &opts);
        desk_add(&desk, "keep(v: [u8]) -> [u8]", shelves, &shelf);
        weft_method_t *keep = desk_method(&desk, "keep(v: [u8]) -> [u8]");
        weft_value_t arg = weft_vector(WEFT_T_U8, big, 10);
        for (unsigned i = 0; i < MOST; i++)
            CHECK_OK(weft_call(keep, &arg, 1, &replies[i], &ops[i]));
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.n) == MOST, 20);
        CHECK_EQ(desk_call(&desk, keep, &arg, 1), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_RESOURCE_EXHAUSTED);
        CHECK_EQ(desk.reply.ran, WEFT_NOT_RUN);
        clear(&shelf);
        for (unsigned i = 0; i < MOST; i++) {
            CHECK_OK(pair_wait(&desk.pair, &ops[i], 20));
            weft_reply_release(&replies[i]);
        }
        /* bytes: one request of 200 KiB, and another */
        arg.view.n = 200 << 10;
        CHECK_OK(weft_call(keep, &arg, 1, &replies[0], &ops[0]));
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.n) == 1, 20);
        CHECK(stats_of(desk.service).bytes >= 200 << 10);
        CHECK_EQ(desk_call(&desk, keep, &arg, 1), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_RESOURCE_EXHAUSTED);
        clear(&shelf);
        CHECK_OK(pair_wait(&desk.pair, &ops[0], 20));
        weft_reply_release(&replies[0]);
        PAIR_UNTIL(&desk.pair, stats_of(desk.service).bytes == 0, 20);
        /* one alone that is too much */
        arg.view.n = 600 << 10;
        CHECK_EQ(desk_call(&desk, keep, &arg, 1), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_RESOURCE_EXHAUSTED);
        CHECK(strstr(desk.reply.message, "payload_max"));
        CHECK_EQ(stats_of(desk.service).exhausted, 3);
        desk_close(&desk);
    }
}

/* A peer that takes no answers can ask no more questions: what is held for it is bounded by its window. */
TEST(a_peer_that_does_not_take_its_answers_is_not_read_from)
{
    enum { CALLS = 40000 };
    static weft_op_t ops[CALLS];
    for (unsigned w = 0; w < 4; w++) {
        weft_service_t *service;
        weft_runtime_opts_t small = WEFT_RUNTIME_OPTS_INIT;
        _Atomic unsigned ran = 0;
        small.am_window = 256 << 10;
        pair_open(&pair, &pair_ways[w], &small);
        caller_open(&caller, &pair);
        CHECK_OK(weft_service_open(pair.rt[0], "calc", NULL, &service));
        CHECK_OK(weft_service_add(service, DESK_ADD, desk_adds, &ran, NULL));
        caller_answer_t bound = caller_bind(&caller, "calc", DESK_ADD);
        atomic_store(&caller.hold, 1);
        struct {
            rpc_head_t head;
            int32_t args[2];
        } call = {rpc_head(RPC_CALL, 0), {40, 2}};
        call.head.slot = bound.head.slot;
        call.head.check = bound.head.check;
        memset(ops, 0, sizeof ops);
        for (unsigned i = 0; i < CALLS; i++)
            CHECK_OK(weft_am_send(caller.ep, RPC_AM_TO_SERVER, &call, sizeof call, NULL, 0, &ops[i]));
        unsigned before;
        do { /* until it stands still */
            before = atomic_load(&ran);
            pair_run(&pair, 0.2);
        } while (atomic_load(&ran) != before);
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        CHECK_OK(weft_ep_get_info(pair.ep[0], &info));
        CHECK(info.am_held_bytes <= small.am_window);
        CHECK(info.am_held > 100);
        CHECK(before < CALLS / 4);
        CHECK(!weft_op_done(&ops[CALLS - 1]));
        caller_let_go(&caller);
        PAIR_UNTIL(&pair, atomic_load(&caller.n) == CALLS + 1, 40);
        CHECK_EQ(atomic_load(&ran), CALLS);
        for (unsigned i = 0; i < CALLS; i++)
            CHECK_OK(pair_wait(&pair, &ops[i], 20));
        CHECK_OK(weft_ep_get_info(pair.ep[0], &info));
        CHECK_EQ(info.am_held, 0);
        CHECK_OK(weft_service_close(service, NULL));
        pair_close(&pair);
    }
}

/* --- the end -------------------------------------------------------------------------------------------------------------- */

TEST(a_service_that_drains_answers_what_it_has_and_takes_no_more)
{
    each_way(way) {
        shelf_t shelf = {0};
        weft_op_t call = WEFT_OP_INIT, drain = WEFT_OP_INIT, soon = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t arg = weft_i32(5);
        desk_open(&desk, way, NULL);
        desk_add(&desk, "keep(v: i32) -> i32", shelves, &shelf);
        weft_method_t *keep = desk_method(&desk, "keep(v: i32) -> i32");
        CHECK_OK(weft_call(keep, &arg, 1, &reply, &call));
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.n) == 1, 20);
        soon.timeout_ns = 20 * WEFT_MILLISECOND;
        CHECK_OK(weft_service_drain(desk.service, &soon));
        CHECK_EQ(pair_wait(&desk.pair, &soon, 20), WEFT_ERR_TIMEOUT);
        CHECK_OK(weft_service_drain(desk.service, &drain));
        CHECK_EQ(desk_call(&desk, keep, &arg, 1), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_UNAVAILABLE);
        CHECK_EQ(desk.reply.ran, WEFT_NOT_RUN);
        CHECK(!weft_op_done(&drain));
        CHECK_EQ(atomic_load(&shelf.cancelled), 0);
        CHECK_OK(weft_request_reply(shelf.at[0], &arg, 1));
        CHECK_OK(pair_wait(&desk.pair, &drain, 20));
        CHECK_OK(pair_wait(&desk.pair, &call, 20));
        CHECK_EQ(reply.values[0].i32, 5);
        weft_reply_release(&reply);
        weft_request_release(shelf.at[0]);
        desk_close(&desk);
    }
}

TEST(a_service_that_closes_cancels_what_runs_and_waits_for_its_release)
{
    each_way(way) {
        shelf_t shelf = {0};
        weft_op_t calls[4] = {WEFT_OP_INIT}, close = WEFT_OP_INIT;
        weft_reply_t replies[4] = {WEFT_REPLY_INIT};
        weft_value_t arg = weft_i32(5);
        weft_service_t *other;
        weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
        weft_client_t *client;
        weft_method_t *keep;
        desk_open(&desk, way, NULL);
        CHECK_OK(weft_service_open(desk.pair.rt[0], "other", NULL, &other));
        CHECK_OK(weft_service_add(other, "keep(v: i32) -> i32", shelves, &shelf, NULL));
        opts.service = "other";
        CHECK_OK(weft_client_on(desk.pair.ep[1], &opts, &client));
        CHECK_OK(weft_client_method(client, "keep(v: i32) -> i32", &keep));
        for (int i = 0; i < 4; i++)
            CHECK_OK(weft_call(keep, &arg, 1, &replies[i], &calls[i]));
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.n) == 4, 20);
        CHECK_OK(weft_service_close(other, &close));
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(pair_wait(&desk.pair, &calls[i], 20), WEFT_ERR_CALL);
            CHECK_EQ(replies[i].code, WEFT_CODE_UNAVAILABLE);
            CHECK_EQ(replies[i].ran, WEFT_MAY_HAVE_RUN);
            weft_reply_release(&replies[i]);
        }
        PAIR_UNTIL(&desk.pair, atomic_load(&shelf.cancelled) == 4, 20);
        CHECK(!weft_op_done(&close));
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(weft_request_reply(shelf.at[i], &arg, 1), WEFT_ERR_CANCELLED);
            CHECK_EQ(shelf.at[i]->args[0].i32, 5);
            CHECK(!weft_op_done(&close));
            weft_request_release(shelf.at[i]);
        }
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        weft_op_t gone = WEFT_OP_INIT;
        CHECK_OK(weft_client_close(client, &gone));
        CHECK_OK(pair_wait(&desk.pair, &gone, 20));
        desk_close(&desk);
    }
}

static void closes_its_service(weft_request_t *request, void *user)
{
    (void)user;
    CHECK_OK(weft_service_close(request->service, NULL));
    CHECK_OK(weft_request_reply(request, request->args, request->n));
}

TEST(a_function_closes_its_own_service)
{
    each_way(way) {
        weft_service_t *service;
        weft_method_t *end;
        weft_value_t arg = weft_i32(5);
        weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
        weft_client_t *client;
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        desk_open(&desk, way, NULL);
        CHECK_OK(weft_service_open(desk.pair.rt[0], "brief", NULL, &service));
        CHECK_OK(weft_service_add(service, "end(v: i32) -> i32", closes_its_service, NULL, NULL));
        opts.service = "brief";
        CHECK_OK(weft_client_on(desk.pair.ep[1], &opts, &client));
        CHECK_OK(weft_client_method(client, "end(v: i32) -> i32", &end));
        CHECK_OK(weft_call(end, &arg, 1, &reply, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        CHECK_EQ(reply.values[0].i32, 5);
        weft_reply_release(&reply);
        CHECK_OK(weft_client_close(client, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        desk_close(&desk);
    }
}

TEST(a_runtime_that_closes_takes_its_services_along)
{
    each_way(way) {
        shelf_t shelf = {0};
        weft_service_t *service;
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        weft_op_t drain = WEFT_OP_INIT;
        opts.threads = way->mode == WEFT_PROGRESS_THREAD ? 2 : 0;
        pair_open(&pair, way, NULL);
        caller_open(&caller, &pair);
        CHECK_OK(weft_service_open(pair.rt[0], "calc", &opts, &service));
        CHECK_OK(weft_service_add(service, "keep(v: i32) -> i32", shelves, &shelf, NULL));
        caller_answer_t bound = caller_bind(&caller, "calc", "keep");
        caller_call(&caller, &bound, 1, 0, NULL, &(int32_t){3}, 4);
        PAIR_UNTIL(&pair, atomic_load(&shelf.n) == 1, 20);
        CHECK_OK(weft_service_drain(service, &drain));
        pair_close(&pair);
        CHECK(weft_op_done(&drain)); /* with the endpoint, whose end was the end of the last request, or with the runtime */
        CHECK(drain.status == WEFT_OK || drain.status == WEFT_ERR_CLOSED);
        CHECK_EQ(atomic_load(&shelf.cancelled), 1);
        /* the request is ours, with all there is to read of it, until we let go of it */
        weft_request_t *mine = shelf.at[0];
        weft_value_t v = weft_i32(4);
        CHECK(weft_request_cancelled(mine));
        CHECK_EQ(mine->args[0].i32, 3);
        CHECK(!strcmp(weft_sig_name(mine->sig), "keep"));
        CHECK(!*weft_service_name(mine->service));
        CHECK_EQ(weft_request_reply(mine, &v, 1), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_service_close(service, NULL), WEFT_ERR_CLOSED);
        clear(&shelf);
    }
}

/* --- bytes that are no calls ---------------------------------------------------------------------------------------------- */

static const char *const nonsense[] = {
    "",                                                                       /* nothing */
    "\x57\x12",                                                               /* no whole head */
    "\x58\x12\0\0\0\0\0\0\0\0\0\0\0\0\0\0",                                   /* another magic */
    "\x57\x22\0\0\0\0\0\0\0\0\0\0\0\0\0\0",                                   /* another version */
    "\x57\x1f\0\0\0\0\0\0\0\0\0\0\0\0\0\0",                                   /* no such kind */
    "\x57\x13\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff",                               /* no whole extension */
    "\x57\x13\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\0\0\0\0\0\0",               /* flags nobody knows */
    "\x57\x13\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1\1\1\1",           /* no whole number of a call */
    "\x57\x11\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\1\1\1\1\1\1\1\0\0\0\0\3\0\4\0xx", /* a BIND that is shorter than it says */
};
static const size_t nonsense_len[] = {0, 2, 16, 16, 16, 17, 24, 28, 34};

TEST(bytes_that_are_no_calls_end_the_connection)
{
    for (unsigned i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        pair_open(&pair, &pair_ways[0], NULL);
        caller_open(&caller, &pair);
        caller_send(&caller, nonsense[i], nonsense_len[i], NULL, 0);
        PAIR_UNTIL(&pair, weft_ep_get_state(caller.ep) != WEFT_EP_UP, 20);
        pair_close(&pair);
    }
}

TEST(arguments_that_are_none_end_the_connection_and_reach_no_function)
{
    for (int i = 0; i < 3; i++) {
        _Atomic unsigned ran = 0;
        weft_service_t *service;
        static const uint8_t args[12] = {1};
        pair_open(&pair, &pair_ways[0], NULL);
        caller_open(&caller, &pair);
        CHECK_OK(weft_service_open(pair.rt[0], "calc", NULL, &service));
        CHECK_OK(weft_service_add(service, DESK_ADD, desk_adds, &ran, NULL));
        caller_answer_t bound = caller_bind(&caller, "calc", DESK_ADD);
        caller_call(&caller, &bound, 1, 0, NULL, args, i == 0 ? 7 : i == 1 ? 12 : 0);
        PAIR_UNTIL(&pair, weft_ep_get_state(caller.ep) != WEFT_EP_UP, 20);
        CHECK_EQ(atomic_load(&ran), 0);
        CHECK_OK(weft_service_close(service, NULL));
        pair_close(&pair);
    }
}

TEST(one_number_for_two_calls_ends_the_connection)
{
    shelf_t shelf = {0};
    weft_service_t *service;
    pair_open(&pair, &pair_ways[0], NULL);
    caller_open(&caller, &pair);
    CHECK_OK(weft_service_open(pair.rt[0], "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, "keep(v: i32) -> i32", shelves, &shelf, NULL));
    caller_answer_t bound = caller_bind(&caller, "calc", "keep");
    caller_call(&caller, &bound, 1, 0, NULL, &(int32_t){3}, 4);
    caller_call(&caller, &bound, 1, 0, NULL, &(int32_t){3}, 4);
    PAIR_UNTIL(&pair, weft_ep_get_state(caller.ep) != WEFT_EP_UP, 20);
    PAIR_UNTIL(&pair, atomic_load(&shelf.cancelled) == 1, 20);
    weft_request_release(shelf.at[0]);
    CHECK_OK(weft_service_close(service, NULL));
    pair_close(&pair);
}
