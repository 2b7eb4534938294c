/* Functions on threads of their service, answers from threads of the program, and ends that come while they run.
 * ctest: tls timeout=180 label=thread shards */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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

static void add_on_threads(weft_service_t *service, const char *signature, weft_function_fn fn, void *user)
{
    weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
    opts.threads = true;
    CHECK_OK(weft_service_add(service, signature, fn, user, &opts));
}

/* --- many calls ----------------------------------------------------------------------------------------------------------- */

enum { CALLS = 4000 };
static weft_op_t ops[CALLS];
static weft_reply_t replies[CALLS];
static weft_value_t args[CALLS][2];

static void call_all(weft_method_t *add)
{
    for (int i = 0; i < CALLS; i++) {
        args[i][0] = weft_i32(i);
        args[i][1] = weft_i32(i * 7);
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_call(add, args[i], 2, &replies[i], &ops[i]));
    }
    for (int i = 0; i < CALLS; i++) {
        CHECK_OK(pair_wait(&desk.pair, &ops[i], 30));
        CHECK_EQ(replies[i].values[0].i32, i * 8);
        weft_reply_release(&replies[i]);
    }
}

TEST(functions_on_threads_of_the_service)
{
    each_way(way) {
        _Atomic unsigned ran = 0;
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        opts.threads = 3;
        desk_open(&desk, way, &opts);
        add_on_threads(desk.service, DESK_ADD, desk_adds, &ran);
        call_all(desk_method(&desk, DESK_ADD));
        CHECK_EQ(atomic_load(&ran), CALLS);
        PAIR_UNTIL(&desk.pair, stats_of(desk.service).under_way == 0, 20);
        CHECK_EQ(stats_of(desk.service).answered, CALLS);
        desk_close(&desk);
    }
}

/* Requests that wait for threads of the program's. */
typedef struct box {
    pthread_mutex_t lock;
    pthread_cond_t more;
    weft_request_t *at[CALLS];
    unsigned n, taken;
    bool end;
} box_t;
static box_t box;

static void puts_away(weft_request_t *request, void *user)
{
    weft_request_t *mine = weft_request_keep(request);
    (void)user;
    CHECK(mine != NULL);
    pthread_mutex_lock(&box.lock);
    box.at[box.n++ % CALLS] = mine;
    pthread_mutex_unlock(&box.lock);
    pthread_cond_signal(&box.more);
}

static void *answers(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&box.lock);
        while (box.taken == box.n && !box.end)
            pthread_cond_wait(&box.more, &box.lock);
        weft_request_t *r = box.taken < box.n ? box.at[box.taken++ % CALLS] : NULL;
        pthread_mutex_unlock(&box.lock);
        if (!r)
            return NULL;
        weft_value_t sum = weft_i32(r->args[0].i32 + r->args[1].i32);
        weft_request_reply(r, &sum, 1);
        weft_request_release(r);
    }
}

static pthread_t workers[3];
static void workers_start(void)
{
    memset(&box, 0, sizeof box);
    pthread_mutex_init(&box.lock, NULL);
    pthread_cond_init(&box.more, NULL);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&workers[i], NULL, answers, NULL), 0);
}

static void workers_end(void)
{
    pthread_mutex_lock(&box.lock);
    box.end = true;
    pthread_mutex_unlock(&box.lock);
    pthread_cond_broadcast(&box.more);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(workers[i], NULL);
}

TEST(answers_from_threads_of_the_program)
{
    each_way(way) {
        desk_open(&desk, way, NULL);
        workers_start();
        desk_add(&desk, DESK_ADD, puts_away, NULL);
        call_all(desk_method(&desk, DESK_ADD));
        workers_end();
        PAIR_UNTIL(&desk.pair, stats_of(desk.service).under_way == 0, 20);
        desk_close(&desk);
    }
}

/* Large results from other threads: copied there, or lent until they were taken. */
static uint8_t big[300000];
static _Atomic unsigned lent;
static void lent_back(weft_op_t *op, void *user)
{
    (void)user;
    free(op);
    atomic_fetch_sub(&lent, 1);
}

static void gives_bytes(weft_request_t *request, void *user)
{
    weft_value_t v = weft_vector(WEFT_T_U8, big, request->args[0].u64);
    (void)user;
    if (request->args[1].b) {
        weft_op_t *op = (weft_op_t *)calloc(1, sizeof *op);
        op->fn = lent_back;
        atomic_fetch_add(&lent, 1);
        CHECK_OK(weft_request_reply_from(request, &v, 1, op));
    } else {
        CHECK_OK(weft_request_reply(request, &v, 1));
    }
}

TEST(large_results_from_threads)
{
    each_way(way) {
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        opts.threads = 3;
        desk_open(&desk, way, &opts);
        pattern_fill(big, sizeof big, 9);
        add_on_threads(desk.service, "bytes(n: u64, lend: bool) -> [u8]", gives_bytes, NULL);
        weft_method_t *bytes = desk_method(&desk, "bytes(n: u64, lend: bool) -> [u8]");
        for (int i = 0; i < 200; i++) {
            args[i][0] = weft_u64((uint64_t)i * 1499);
            args[i][1] = weft_bool(i & 1);
            ops[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_call(bytes, args[i], 2, &replies[i], &ops[i]));
        }
        for (int i = 0; i < 200; i++) {
            CHECK_OK(pair_wait(&desk.pair, &ops[i], 30));
            CHECK_EQ(replies[i].values[0].view.n, (uint64_t)i * 1499);
            CHECK_EQ(pattern_check(replies[i].values[0].view.data, (size_t)i * 1499, 9), (size_t)i * 1499);
            weft_reply_release(&replies[i]);
        }
        PAIR_UNTIL(&desk.pair, atomic_load(&lent) == 0, 20);
        desk_close(&desk);
    }
}

/* --- the queue ------------------------------------------------------------------------------------------------------------ */

/* A function that holds its thread until it is let go. */
typedef struct gate {
    _Atomic unsigned inside, open, cancelled;
} gate_t;

static void holds_up(weft_request_t *request, void *user)
{
    gate_t *g = (gate_t *)user;
    atomic_fetch_add(&g->inside, 1);
    while (!atomic_load(&g->open))
        usleep(200);
    if (weft_request_cancelled(request))
        atomic_fetch_add(&g->cancelled, 1);
    weft_request_reply(request, request->args, request->n);
}

TEST(a_queue_that_is_full_and_deadlines_in_it)
{
    each_way(way) {
        gate_t gate = {0};
        weft_service_t *service;
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        int32_t five = 5;
        opts.threads = 1;
        opts.queue = 2;
        opts.peer_percent = 100;
        pair_open(&pair, way, NULL);
        caller_open(&caller, &pair);
        CHECK_OK(weft_service_open(pair.rt[0], "calc", &opts, &service));
        add_on_threads(service, "hold(v: i32) -> i32", holds_up, &gate);
        caller_answer_t bound = caller_bind(&caller, "calc", "hold");
        unsigned n = atomic_load(&caller.n);
        caller_call(&caller, &bound, 1, 0, NULL, &five, 4);
        PAIR_UNTIL(&pair, atomic_load(&gate.inside) == 1, 20);
        caller_call(&caller, &bound, 2, 0, NULL, &five, 4);
        caller_call(&caller, &bound, 3, 0, NULL, &five, 4);
        caller_call(&caller, &bound, 4, 0, NULL, &five, 4);
        const caller_answer_t *a = caller_answer(&caller, n++);
        CHECK_EQ(a->head.call, 4);
        CHECK_EQ(a->code, WEFT_CODE_RESOURCE_EXHAUSTED);
        CHECK(a->flags & RPC_F_NOT_RUN);
        CHECK_EQ(stats_of(service).waiting, 2);
        caller_cancel(&caller, 3); /* while it waits: it is never begun, and makes room */
        PAIR_UNTIL(&pair, stats_of(service).waiting == 1, 20);
        caller_call(&caller, &bound, 5, 30 * WEFT_MILLISECOND, NULL, &five, 4);
        a = caller_answer(&caller, n++);
        CHECK_EQ(a->head.call, 5);
        CHECK_EQ(a->code, WEFT_CODE_DEADLINE_EXCEEDED);
        CHECK(a->flags & RPC_F_NOT_RUN); /* it waited until the end */
        atomic_store(&gate.open, 1);
        CHECK_EQ(caller_answer(&caller, n++)->head.call, 1);
        a = caller_answer(&caller, n++);
        CHECK_EQ(a->head.call, 2);
        CHECK_EQ(a->first, 5);
        PAIR_UNTIL(&pair, stats_of(service).under_way == 0, 20);
        CHECK_EQ(atomic_load(&gate.inside), 2);
        CHECK_EQ(stats_of(service).late, 1);
        CHECK_EQ(stats_of(service).cancelled, 1);
        CHECK_EQ(atomic_load(&gate.cancelled), 0);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_service_close(service, &op));
        CHECK_OK(pair_wait(&pair, &op, 20));
        pair_close(&pair);
    }
}

/* --- ends ----------------------------------------------------------------------------------------------------------------- */

TEST(a_service_closes_while_its_threads_are_at_work)
{
    each_way(way) {
        gate_t gate = {0};
        weft_service_t *service;
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        weft_op_t close = WEFT_OP_INIT;
        int32_t five = 5;
        opts.threads = 2;
        pair_open(&pair, way, NULL);
        caller_open(&caller, &pair);
        CHECK_OK(weft_service_open(pair.rt[0], "calc", &opts, &service));
        add_on_threads(service, "hold(v: i32) -> i32", holds_up, &gate);
        caller_answer_t bound = caller_bind(&caller, "calc", "hold");
        unsigned n = atomic_load(&caller.n);
        for (uint64_t i = 1; i <= 10; i++)
            caller_call(&caller, &bound, i, 0, NULL, &five, 4);
        PAIR_UNTIL(&pair, atomic_load(&gate.inside) == 2 && stats_of(service).waiting == 8, 20);
        CHECK_OK(weft_service_close(service, &close));
        unsigned not_run = 0;
        for (unsigned i = 0; i < 10; i++) {
            const caller_answer_t *a = caller_answer(&caller, n++);
            CHECK_EQ(a->code, WEFT_CODE_UNAVAILABLE);
            not_run += (a->flags & RPC_F_NOT_RUN) != 0;
        }
        CHECK_EQ(not_run, 8);
        CHECK(!weft_op_done(&close));
        atomic_store(&gate.open, 1);
        CHECK_OK(pair_wait(&pair, &close, 20));
        CHECK_EQ(atomic_load(&gate.inside), 2);
        CHECK_EQ(atomic_load(&gate.cancelled), 2);
        pair_close(&pair);
    }
}

/* Answers, deadlines, cancels and a close that meet, as often as they like to. */
TEST(ends_of_every_kind_meet_answers_from_threads)
{
    each_way(way) {
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        opts.threads = 2;
        desk_open(&desk, way, &opts);
        workers_start();
        desk_add(&desk, DESK_ADD, puts_away, NULL);
        add_on_threads(desk.service, "sum(a: i32, b: i32) -> i32", puts_away, NULL);
        add_on_threads(desk.service, "now(a: i32, b: i32) -> i32", desk_adds, NULL);
        static const char *const sigs[] = {DESK_ADD, "sum(a: i32, b: i32) -> i32", "now(a: i32, b: i32) -> i32"};
        enum { ROUND = 600 };
        for (int round = 0; round < 5; round++) {
            for (int i = 0; i < ROUND; i++) {
                args[i][0] = weft_i32(i);
                args[i][1] = weft_i32(i * 7);
                ops[i] = (weft_op_t)WEFT_OP_INIT;
                ops[i].timeout_ns = i % 3 == 0 ? (uint64_t)(i + 1) * 5 * WEFT_MICROSECOND : 0;
                weft_status_t st = weft_call(desk_method(&desk, sigs[i % 7 % 3]), args[i], 2, &replies[i], &ops[i]);
                if (st)
                    CHECK_EQ(st, WEFT_ERR_TIMEOUT);
                if (i % 5 == 0 && i >= 50)
                    weft_op_cancel(&ops[i - 50]);
            }
            for (int i = 0; i < ROUND; i++) {
                weft_status_t st = pair_wait(&desk.pair, &ops[i], 30);
                CHECK(st == WEFT_OK || st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_CANCELLED);
                if (!st)
                    CHECK_EQ(replies[i].values[0].i32, i * 8);
                weft_reply_release(&replies[i]);
            }
        }
        /* the last ones run while it closes */
        for (int i = 0; i < ROUND; i++) {
            ops[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_call(desk_method(&desk, sigs[i % 3]), args[i], 2, &replies[i], &ops[i]));
        }
        weft_op_t close = WEFT_OP_INIT, client = WEFT_OP_INIT;
        CHECK_OK(weft_service_close(desk.service, &close));
        CHECK_OK(pair_wait(&desk.pair, &close, 30));
        for (int i = 0; i < ROUND; i++) {
            weft_status_t st = pair_wait(&desk.pair, &ops[i], 30);
            CHECK(st == WEFT_OK || st == WEFT_ERR_CALL);
            weft_reply_release(&replies[i]);
        }
        workers_end();
        CHECK_OK(weft_client_close(desk.client, &client));
        CHECK_OK(pair_wait(&desk.pair, &client, 20));
        pair_close(&desk.pair);
    }
}

/* A service whose functions come and go while they are called. */
static _Atomic bool churn_end;
static _Atomic unsigned handed, back;
static void given_back(void *user, void *none)
{
    (void)user;
    (void)none;
    atomic_fetch_add(&back, 1);
}

static void *churns(void *arg)
{
    weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
    opts.release = given_back;
    while (!atomic_load(&churn_end)) {
        CHECK_OK(weft_service_add((weft_service_t *)arg, DESK_ADD, desk_adds, NULL, &opts));
        atomic_fetch_add(&handed, 1);
        usleep(300);
        CHECK_OK(weft_service_remove((weft_service_t *)arg, "add", NULL));
    }
    return NULL;
}

TEST(functions_come_and_go_while_they_are_called)
{
    each_way(way) {
        pthread_t thread;
        unsigned ok = 0;
        weft_value_t two[2] = {weft_i32(1), weft_i32(2)};
        atomic_store(&churn_end, false);
        atomic_store(&handed, 0);
        atomic_store(&back, 0);
        desk_open(&desk, way, NULL);
        CHECK_EQ(pthread_create(&thread, NULL, churns, desk.service), 0);
        weft_method_t *add = desk_method(&desk, DESK_ADD);
        double began = test_now();
        while (test_now() < began + (ok ? 0.3 : 30)) { /* a busy machine may meet it taken away for long */
            weft_status_t st = desk_call(&desk, add, two, 2);
            if (st)
                CHECK_EQ(desk.reply.code, WEFT_CODE_UNIMPLEMENTED);
            else
                CHECK_EQ(desk.reply.values[0].i32, 3);
            ok += !st;
        }
        atomic_store(&churn_end, true);
        pthread_join(thread, NULL);
        CHECK(ok > 0);
        PAIR_UNTIL(&desk.pair, atomic_load(&handed) == atomic_load(&back), 20);
        desk_close(&desk);
    }
}
