/* Calls made with `once`, as the server sees them: repeats, over the same endpoint and another, of calls that run, were
 * answered, or were forgotten.
 * ctest: tls timeout=120 */
#include <stdatomic.h>
#include <weft/service.h>

#include "lib/caller.h"
#include "test.h"

static pair_t pair;
static caller_t caller;
static weft_service_t *service;
static _Atomic unsigned ran;
static _Atomic(weft_request_t *) kept;
static const int32_t two[2] = {40, 2};

static void adds(weft_request_t *request, void *user)
{
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    (void)user;
    CHECK(request->once);
    atomic_fetch_add(&ran, 1);
    CHECK_OK(weft_request_reply(request, &sum, 1));
}

static void keeps(weft_request_t *request, void *user)
{
    (void)user;
    atomic_fetch_add(&ran, 1);
    atomic_store(&kept, weft_request_keep(request));
}

static caller_answer_t open_with(const pair_way_t *way, const weft_service_opts_t *opts, weft_function_fn fn)
{
    pair_open(&pair, way, NULL);
    caller_open(&caller, &pair);
    atomic_store(&ran, 0);
    atomic_store(&kept, NULL);
    CHECK_OK(weft_service_open(pair.rt[0], "calc", opts, &service));
    CHECK_OK(weft_service_add(service, "add(a: i32, b: i32) -> i32", fn, NULL, NULL));
    caller_answer_t bound = caller_bind(&caller, "calc", "add(a: i32, b: i32) -> i32");
    CHECK_EQ(bound.code, 0);
    CHECK(bound.bound.epoch != 0);
    return bound;
}

static void close_all(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_service_close(service, &op));
    CHECK_OK(pair_wait(&pair, &op, 20));
    pair_close(&pair);
}

static weft_service_stats_t stats(void)
{
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(service, &s));
    return s;
}

TEST(a_repeat_is_answered_from_memory)
{
    each_way(way) {
        caller_answer_t bound = open_with(way, NULL, adds);
        rpc_once_t once = {.client = 5, .seq = 1, .acked = 1, .epoch = bound.bound.epoch};
        unsigned n = atomic_load(&caller.n);
        for (uint64_t call = 1; call <= 3; call++) {
            caller_call(&caller, &bound, call, 0, &once, two, sizeof two);
            const caller_answer_t *a = caller_answer(&caller, n++);
            CHECK_EQ(a->kind, RPC_REPLY);
            CHECK_EQ(a->head.call, call);
            CHECK_EQ(a->first, 42);
        }
        CHECK_EQ(atomic_load(&ran), 1);
        CHECK_EQ(stats().repeated, 2);
        CHECK_EQ(stats().remembered, 1);
        /* the next call says that the reply is known: it is forgotten, and a repeat is not run */
        rpc_once_t next = {.client = 5, .seq = 2, .acked = 2, .epoch = bound.bound.epoch};
        caller_call(&caller, &bound, 4, 0, &next, two, sizeof two);
        CHECK_EQ(caller_answer(&caller, n++)->first, 42);
        CHECK_EQ(stats().remembered, 1);
        caller_call(&caller, &bound, 5, 0, &once, two, sizeof two);
        const caller_answer_t *a = caller_answer(&caller, n++);
        CHECK_EQ(a->code, WEFT_CODE_ABORTED);
        CHECK(!(a->flags & RPC_F_NOT_RUN));
        CHECK_EQ(atomic_load(&ran), 2);
        close_all();
    }
}

TEST(a_repeat_of_a_running_call_gets_the_reply_over_its_own_endpoint)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        caller_answer_t bound = open_with(way, NULL, keeps);
        rpc_once_t once = {.client = 5, .seq = 1, .acked = 1, .epoch = bound.bound.epoch};
        weft_ep_t *second, *first = caller.ep;
        CHECK_OK(weft_ep_open(pair.rt[1], weft_listener_uri(pair.listener), NULL, &op, &second));
        CHECK_OK(pair_wait(&pair, &op, 20));
        unsigned n = atomic_load(&caller.n);
        caller_call(&caller, &bound, 1, 0, &once, two, sizeof two);
        PAIR_UNTIL(&pair, atomic_load(&kept) != NULL, 20);
        caller.ep = second;
        caller_call(&caller, &bound, 9, 0, &once, two, sizeof two);
        PAIR_UNTIL(&pair, stats().repeated == 1, 20);
        /* and the first endpoint goes, silently to the function */
        pair.ep[1] = NULL;
        CHECK_OK(weft_ep_abort(first, &op));
        pair_wait(&pair, &op, 20);
        pair_run(&pair, 0.05);
        CHECK(!weft_request_cancelled(atomic_load(&kept)));
        weft_value_t sum = weft_i32(43);
        CHECK_OK(weft_request_reply(atomic_load(&kept), &sum, 1));
        const caller_answer_t *a = caller_answer(&caller, n);
        CHECK_EQ(a->head.call, 9);
        CHECK_EQ(a->first, 43);
        CHECK_EQ(atomic_load(&ran), 1);
        weft_request_release(atomic_load(&kept));
        CHECK_OK(weft_ep_abort(second, &op));
        pair_wait(&pair, &op, 20);
        close_all();
    }
}

TEST(a_call_whose_caller_went_away_is_answered_when_it_is_asked_for_again)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *second;
        caller_answer_t bound = open_with(way, NULL, keeps);
        rpc_once_t once = {.client = 6, .seq = 1, .acked = 1, .epoch = bound.bound.epoch};
        unsigned n = atomic_load(&caller.n);
        caller_call(&caller, &bound, 1, 0, &once, two, sizeof two);
        PAIR_UNTIL(&pair, atomic_load(&kept) != NULL, 20);
        pair.ep[1] = NULL;
        CHECK_OK(weft_ep_abort(caller.ep, &op));
        pair_wait(&pair, &op, 20);
        pair_run(&pair, 0.05);
        weft_value_t sum = weft_i32(43);
        CHECK_OK(weft_request_reply(atomic_load(&kept), &sum, 1));
        weft_request_release(atomic_load(&kept));
        PAIR_UNTIL(&pair, stats().under_way == 0, 20);
        CHECK_OK(weft_ep_open(pair.rt[1], weft_listener_uri(pair.listener), NULL, &op, &second));
        CHECK_OK(pair_wait(&pair, &op, 20));
        caller.ep = second;
        caller_call(&caller, &bound, 7, 0, &once, two, sizeof two);
        const caller_answer_t *a = caller_answer(&caller, n);
        CHECK_EQ(a->head.call, 7);
        CHECK_EQ(a->first, 43);
        CHECK_EQ(atomic_load(&ran), 1);
        CHECK_OK(weft_ep_abort(second, &op));
        pair_wait(&pair, &op, 20);
        close_all();
    }
}

TEST(another_opening_of_the_service_does_not_run_it)
{
    caller_answer_t bound = open_with(&pair_ways[0], NULL, adds);
    rpc_once_t once = {.client = 5, .seq = 1, .acked = 1, .epoch = bound.bound.epoch ^ 1};
    unsigned n = atomic_load(&caller.n);
    caller_call(&caller, &bound, 1, 0, &once, two, sizeof two);
    const caller_answer_t *a = caller_answer(&caller, n);
    CHECK_EQ(a->code, WEFT_CODE_ABORTED);
    CHECK(!(a->flags & RPC_F_NOT_RUN));
    CHECK_EQ(atomic_load(&ran), 0);
    close_all();
}

TEST(what_is_remembered_is_bounded_and_does_not_stay_for_ever)
{
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    opts.remembered = 4;
    opts.peer_percent = 100;
    opts.remember_ns = 200 * WEFT_MILLISECOND;
    caller_answer_t bound = open_with(&pair_ways[0], &opts, adds);
    unsigned n = atomic_load(&caller.n);
    rpc_once_t once = {.client = 5, .seq = 1, .acked = 1, .epoch = bound.bound.epoch};
    for (once.seq = 1; once.seq <= 4; once.seq++) {
        caller_call(&caller, &bound, once.seq, 0, &once, two, sizeof two);
        CHECK_EQ(caller_answer(&caller, n++)->first, 42);
    }
    caller_call(&caller, &bound, 5, 0, &once, two, sizeof two);
    const caller_answer_t *a = caller_answer(&caller, n++);
    if (a->code) { /* else that took 200 ms */
        CHECK_EQ(a->code, WEFT_CODE_RESOURCE_EXHAUSTED);
        CHECK(a->flags & RPC_F_NOT_RUN);
        CHECK_EQ(stats().exhausted, 1);
    }
    PAIR_UNTIL(&pair, stats().remembered == 0, 20);
    once.seq = 2;
    caller_call(&caller, &bound, 6, 0, &once, two, sizeof two);
    CHECK_EQ(caller_answer(&caller, n++)->code, WEFT_CODE_ABORTED);
    close_all();
}

/* The first is forgotten, and its client is not yet; then there is a second. */
TEST(every_reply_is_forgotten_in_time)
{
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    opts.remember_ns = 50 * WEFT_MILLISECOND;
    caller_answer_t bound = open_with(&pair_ways[0], &opts, adds);
    unsigned n = atomic_load(&caller.n);
    for (unsigned i = 1; i <= 3; i++) {
        rpc_once_t once = {77, i, 1, bound.bound.epoch};
        caller_call(&caller, &bound, i, 0, &once, two, sizeof two);
        CHECK_EQ(caller_answer(&caller, n++)->first, 42);
        PAIR_UNTIL(&pair, stats().remembered == 0, 20);
    }
    close_all();
}

TEST(a_cancelled_call_is_not_run_again)
{
    caller_answer_t bound = open_with(&pair_ways[0], NULL, keeps);
    rpc_once_t once = {.client = 5, .seq = 1, .acked = 1, .epoch = bound.bound.epoch};
    unsigned n = atomic_load(&caller.n);
    caller_call(&caller, &bound, 1, 0, &once, two, sizeof two);
    PAIR_UNTIL(&pair, atomic_load(&kept) != NULL, 20);
    caller_cancel(&caller, 1);
    PAIR_UNTIL(&pair, weft_request_cancelled(atomic_load(&kept)), 20);
    caller_call(&caller, &bound, 2, 0, &once, two, sizeof two);
    CHECK_EQ(caller_answer(&caller, n)->code, WEFT_CODE_CANCELLED);
    CHECK_EQ(atomic_load(&ran), 1);
    weft_request_release(atomic_load(&kept));
    close_all();
}
