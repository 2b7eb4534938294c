/* How requests come to the threads of a service: bursts, functions that block, pauses of every length, and a close meanwhile;
 * with threads that spin before they sleep and with threads that do not.
 * ctest: tls-long timeout=300 label=thread shards */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/desk.h"
#include "rpc/serve.h"
#include "test.h"

#define HOLD "hold(a: i32, b: i32) -> i32"
#define ON_DRIVER "now(a: i32, b: i32) -> i32"

enum { MOST = 64 };

static desk_t desk;
static weft_op_t ops[MOST];
static weft_reply_t replies[MOST];
static weft_value_t args[MOST][2];

/* Each way, with processors to spin on and without. */
static void each_pool(void (*test)(const pair_way_t *way))
{
    for (int spins = 0; spins < 2; spins++) {
        wefti_rpc_pool_processors = spins ? 16 : 1;
        each_way(way)
            test(way);
    }
}

static void open_pool(const pair_way_t *way, uint32_t threads)
{
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    opts.threads = threads;
    desk_open(&desk, way, &opts);
}

static weft_method_t *on_threads(const char *signature, weft_function_fn fn, void *user)
{
    weft_function_opts_t opts = WEFT_FUNCTION_OPTS_INIT;
    opts.threads = true;
    CHECK_OK(weft_service_add(desk.service, signature, fn, user, &opts));
    return desk_method(&desk, signature);
}

static void begin(weft_method_t *method, int i)
{
    args[i][0] = weft_i32(i);
    args[i][1] = weft_i32(1000);
    ops[i] = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_call(method, args[i], 2, &replies[i], &ops[i]));
}

static void end(int i)
{
    CHECK_OK(pair_wait(&desk.pair, &ops[i], 60));
    CHECK_EQ(replies[i].values[0].i32, i + 1000);
    weft_reply_release(&replies[i]);
}

/* A time between none and `most`, with no more than a look at the clock. */
static void pause_up_to(unsigned *seed, uint64_t most_ns)
{
    double until = test_now() + (double)(uint64_t)rand_r(seed) / RAND_MAX * (double)most_ns / 1e9;
    while (test_now() < until)
        ;
}

/* --- functions that block --------------------------------------------------------------------------------------------------- */

/* Returns when as many functions are inside as have to meet, or the gate is open. */
typedef struct meeting {
    _Atomic int inside, missing;
} meeting_t;

static void meets(weft_request_t *request, void *user)
{
    meeting_t *m = (meeting_t *)user;
    double bound = test_now() + 60;
    atomic_fetch_add(&m->inside, 1);
    atomic_fetch_sub(&m->missing, 1);
    while (atomic_load(&m->missing) > 0 && test_now() < bound)
        usleep(100);
    if (atomic_load(&m->missing) > 0) {
        CHECK_OK(weft_request_fail(request, WEFT_CODE_ABORTED, "too few threads came"));
        return;
    }
    desk_adds(request, NULL);
}

/* One wake-up for a burst must not mean one thread for it. */
static void burst(const pair_way_t *way)
{
    enum { THREADS = 8, ROUNDS = 10 };
    meeting_t m = {0};
    open_pool(way, THREADS);
    weft_method_t *hold = on_threads(HOLD, meets, &m);
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&m.missing, THREADS);
        for (int i = 0; i < THREADS; i++)
            begin(hold, i);
        for (int i = 0; i < THREADS; i++)
            end(i);
    }
    CHECK_EQ(atomic_load(&m.inside), THREADS * ROUNDS);
    desk_close(&desk);
}

TEST(a_burst_of_functions_that_block_gets_every_thread)
{
    each_pool(burst);
}

/* Two of three threads are held up, by the first and the last call of a burst. All between them are answered by the third, and so
 * are those that come later, and those of the driver. */
static void mixed(const pair_way_t *way)
{
    enum { THREADS = 3, LAST = MOST - 1 };
    meeting_t m = {0};
    open_pool(way, THREADS);
    weft_method_t *hold = on_threads(HOLD, meets, &m), *add = on_threads(DESK_ADD, desk_adds, NULL);
    desk_add(&desk, ON_DRIVER, desk_adds, NULL);
    weft_method_t *now = desk_method(&desk, ON_DRIVER);
    atomic_store(&m.missing, THREADS); /* one more than come */
    for (int i = 0; i < MOST; i++)
        begin(i == 0 || i == LAST ? hold : add, i);
    for (int i = 1; i < LAST; i++)
        end(i);
    PAIR_UNTIL(&desk.pair, atomic_load(&m.inside) == 2, 60);
    for (int round = 0; round < 50; round++) {
        begin(add, 1);
        begin(now, 2);
        end(1);
        end(2);
    }
    CHECK(!weft_op_done(&ops[0]) && !weft_op_done(&ops[LAST]));
    atomic_store(&m.missing, 0);
    end(0);
    end(LAST);
    desk_close(&desk);
}

TEST(functions_that_block_do_not_hold_up_others)
{
    each_pool(mixed);
}

/* --- wake-ups --------------------------------------------------------------------------------------------------------------- */

static uint64_t wakeups(void)
{
    return wefti_rpc_pool_wakeups(desk.service->pool);
}

static uint64_t waiting(void)
{
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(desk.service, &s));
    return s.waiting;
}

/* A thread is called once for what it begins, and not for what waits while all are busy. One that finds that another was faster
 * may be called again. */
static void few_calls(const pair_way_t *way)
{
    enum { THREADS = 4 };
    meeting_t m = {0};
    open_pool(way, THREADS);
    weft_method_t *hold = on_threads(HOLD, meets, &m);
    atomic_store(&m.missing, MOST);
    for (int i = 0; i < THREADS; i++)
        begin(hold, i);
    PAIR_UNTIL(&desk.pair, atomic_load(&m.inside) == THREADS, 60);
    CHECK(wakeups() <= 2 * THREADS);
    uint64_t before = wakeups();
    for (int i = THREADS; i < MOST; i++)
        begin(hold, i);
    PAIR_UNTIL(&desk.pair, waiting() == MOST - THREADS, 60);
    CHECK_EQ(wakeups(), before);
    atomic_store(&m.missing, 0); /* they are all begun by threads that are awake */
    for (int i = 0; i < MOST; i++)
        end(i);
    CHECK_EQ(atomic_load(&m.inside), MOST);
    CHECK(wakeups() - before <= THREADS);
    desk_close(&desk);
}

TEST(a_burst_needs_few_wake_ups)
{
    each_pool(few_calls);
}

/* Bursts that come while threads run, spin, fall asleep and wake up. All of a burst are waited for before the next: a thread that
 * was not called would be missed. */
static void pauses(const pair_way_t *way)
{
    enum { BURST = 6 };
    /* most of them where the way to the service is short */
    const int calls = !strcmp(way->transports, "shm") ? 5000 : 500;
    unsigned seed = 7;
    _Atomic unsigned ran = 0;
    open_pool(way, 3);
    weft_method_t *add = on_threads(DESK_ADD, desk_adds, &ran);
    for (int done = 0; done < calls;) {
        int n = 1 + rand_r(&seed) % BURST;
        n = n < calls - done ? n : calls - done;
        for (int i = 0; i < n; i++) {
            begin(add, i);
            if (rand_r(&seed) % 4 == 0)
                pause_up_to(&seed, 10 * WEFT_MICROSECOND);
        }
        for (int i = 0; i < n; i++)
            end(i);
        done += n;
        pause_up_to(&seed, 50 * WEFT_MICROSECOND);
    }
    CHECK_EQ(atomic_load(&ran), (unsigned)calls);
    desk_close(&desk);
}

TEST(no_request_is_forgotten_after_pauses_of_every_length)
{
    each_pool(pauses);
}

/* --- the end ---------------------------------------------------------------------------------------------------------------- */

/* The close meets threads that run, spin, were just called, and sleep. */
static void closes(const pair_way_t *way)
{
    enum { ROUNDS = 60 };
    unsigned seed = 11;
    pair_t pair;
    pair_open(&pair, way, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
        weft_function_opts_t threads = WEFT_FUNCTION_OPTS_INIT;
        weft_service_t *service;
        weft_client_t *client;
        weft_method_t *add;
        weft_op_t closed[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
        opts.threads = 4;
        threads.threads = true;
        CHECK_OK(weft_service_open(pair.rt[0], "calc", &opts, &service));
        CHECK_OK(weft_service_add(service, DESK_ADD, desk_adds, NULL, &threads));
        CHECK_OK(weft_client_on(pair.ep[1], NULL, &client));
        CHECK_OK(weft_client_method(client, DESK_ADD, &add));
        for (int i = 0; i < 4; i++)
            begin(add, i);
        CHECK_OK(pair_wait(&pair, &ops[0], 60));
        pause_up_to(&seed, 40 * WEFT_MICROSECOND);
        CHECK_OK(weft_service_close(service, &closed[0]));
        CHECK_OK(pair_wait(&pair, &closed[0], 60));
        for (int i = 0; i < 4; i++) {
            weft_status_t st = pair_wait(&pair, &ops[i], 60);
            CHECK(st == WEFT_OK || st == WEFT_ERR_CALL);
            weft_reply_release(&replies[i]);
        }
        CHECK_OK(weft_client_close(client, &closed[1]));
        CHECK_OK(pair_wait(&pair, &closed[1], 60));
    }
    pair_close(&pair);
}

TEST(a_service_closes_while_its_threads_look_for_work)
{
    each_pool(closes);
}
