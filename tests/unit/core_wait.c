/* tests/unit/core_wait.c - waiting: one, any, all, with timeouts, and several threads at once of which one drives.
 * ctest: label=thread */
#include "test.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/rng.h"
#include "fake_fabric.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 1500 };
#else
enum { ROUNDS = 10000 };
#endif
enum { THREADS = 4 };

TEST(wait_times_out_with_the_operation_under_way)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_EQ(weft_op_wait(&op, 0), WEFT_ERR_PENDING);
    uint64_t start = wefti_clock_ns();
    CHECK_EQ(weft_op_wait(&op, 20 * WEFT_MILLISECOND), WEFT_ERR_PENDING);
    CHECK(wefti_clock_ns() - start >= 19 * WEFT_MILLISECOND);
    CHECK(!weft_op_done(&op));
    fake_event(rt, 1);
    CHECK_OK(weft_op_wait(&op, WEFT_FOREVER));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(wait_any_gives_one_that_is_done)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[3] = {{0}}, *list[] = {NULL, &ops[0], &ops[1], NULL, &ops[2]}, *none[] = {NULL, NULL};
    size_t index = 99;
    CHECK_EQ(weft_op_wait_any(none, 2, 0, &index), WEFT_ERR_INVALID);
    CHECK_EQ(weft_op_wait_any(NULL, 0, 0, &index), WEFT_ERR_INVALID);
    for (int i = 0; i < 3; i++)
        CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[i]));
    CHECK_EQ(weft_op_wait_any(list, 5, 5 * WEFT_MILLISECOND, &index), WEFT_ERR_PENDING);
    CHECK_EQ(index, 99);
    weft_op_cancel(&ops[1]);
    CHECK_OK(weft_op_wait_any(list, 5, WEFT_SECOND, &index));
    CHECK_EQ(index, 2);
    CHECK_EQ(ops[1].status, WEFT_ERR_CANCELLED);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(wait_all_gives_the_first_failure_in_the_order_of_the_array)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[4] = {{0}}, *list[] = {&ops[0], &ops[1], NULL, &ops[2], &ops[3]};
    ops[3].timeout_ns = WEFT_MILLISECOND;
    for (int i = 0; i < 4; i++)
        CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[i]));
    CHECK_EQ(weft_op_wait_all(list, 5, 10 * WEFT_MILLISECOND), WEFT_ERR_PENDING);
    CHECK(weft_op_done(&ops[3]) && !weft_op_done(&ops[0]));
    weft_op_cancel(&ops[2]);
    fake_event(rt, 2);
    CHECK_EQ(weft_op_wait_all(list, 5, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_OK(weft_op_wait_all(list, 3, WEFT_SECOND));
    CHECK_OK(weft_op_wait_all(NULL, 0, 0));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(operations_of_two_runtimes_cannot_be_waited_for_together)
{
    weft_runtime_t *a = fake_open(0, 0), *b = fake_open(0, 0);
    weft_op_t on_a = WEFT_OP_INIT, on_b = WEFT_OP_INIT, *list[] = {&on_a, &on_b};
    CHECK_OK(fake_post(a, FAKE_WAITS, &on_a));
    CHECK_OK(fake_post(b, FAKE_WAITS, &on_b));
    CHECK_EQ(weft_op_wait_all(list, 2, 0), WEFT_ERR_INVALID);
    CHECK_EQ(weft_op_wait_any(list, 2, 0, NULL), WEFT_ERR_INVALID);
    CHECK_OK(weft_runtime_close(a));
    CHECK_OK(weft_runtime_close(b));
}

TEST(a_wait_on_virtual_time_ends_with_a_status_instead_of_never)
{
    weft_runtime_t *rt = fake_open_virtual();
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_EQ(weft_op_wait(&op, WEFT_FOREVER), WEFT_ERR_UNSUPPORTED);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- several threads ------------------------------------------------------------------------------------------------------- */

typedef struct shared {
    weft_runtime_t *rt;
    _Atomic unsigned finished, outstanding;
    _Atomic unsigned seed;
} shared_t;

static void *post_and_wait(void *arg)
{
    shared_t *s = arg;
    wefti_rng_t rng = {atomic_fetch_add(&s->seed, 1)};
    weft_op_t ops[3] = {{0}}, *list[] = {&ops[0], &ops[1], &ops[2]};
    for (int round = 0; round < ROUNDS; round++) {
        unsigned n = 1 + (unsigned)wefti_rng_below(&rng, 3);
        size_t index;
        for (unsigned i = 0; i < n; i++) {
            ops[i].timeout_ns = wefti_rng_below(&rng, 8) ? 0 : 1 + wefti_rng_below(&rng, 50000);
            CHECK_OK(fake_post(s->rt, wefti_rng_below(&rng, 3) ? FAKE_WAITS : FAKE_AT_ONCE, &ops[i]));
        }
        atomic_fetch_add(&s->outstanding, n);
        switch (wefti_rng_below(&rng, 4)) {
        case 0:
            CHECK_OK(weft_op_wait_any(list, n, 20 * WEFT_SECOND, &index));
            CHECK(weft_op_done(&ops[index]));
            break;
        case 1:
            weft_op_wait(&ops[0], wefti_rng_below(&rng, 20000)); /* and give up */
            break;
        case 2:
            weft_op_cancel(&ops[n - 1]);
            break;
        default:
            break;
        }
        weft_op_wait_all(list, n, 20 * WEFT_SECOND);
        for (unsigned i = 0; i < n; i++)
            CHECK(weft_op_done(&ops[i]));
        atomic_fetch_sub(&s->outstanding, n);
    }
    atomic_fetch_add(&s->finished, 1);
    return NULL;
}

static void many_wait(weft_progress_mode_t mode, uint64_t spin)
{
    shared_t s = {.rt = fake_open(mode, spin), .seed = 1};
    pthread_t ids[THREADS];
    wefti_rng_t rng = {77};
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&ids[i], NULL, post_and_wait, &s));
    while (atomic_load(&s.finished) < THREADS) { /* the network */
        fake_event(s.rt, 1 + (unsigned)wefti_rng_below(&rng, 4));
        if (wefti_rng_below(&rng, 4) == 0)
            usleep((useconds_t)wefti_rng_below(&rng, 60));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    weft_runtime_get_stats(s.rt, &stats);
    CHECK_EQ(stats.ops_posted, stats.ops_completed);
    CHECK(stats.rescued_wakeups <= 1); /* an event in the instant the safety timer ran out looks like a rescue */
    CHECK_OK(weft_runtime_close(s.rt));
}

TEST(four_threads_wait_at_once_on_a_caller_driven_runtime)
{
    many_wait(WEFT_PROGRESS_CALLER, 0);
}

TEST(four_threads_wait_at_once_and_the_driver_spins)
{
    many_wait(WEFT_PROGRESS_CALLER, 20 * WEFT_MICROSECOND);
}

TEST(four_threads_wait_at_once_on_a_thread_driven_runtime)
{
    many_wait(WEFT_PROGRESS_THREAD, 0);
}

static void *wait_for_own(void *arg)
{
    CHECK_OK(weft_op_wait(arg, 20 * WEFT_SECOND));
    return NULL;
}

TEST(when_the_driver_leaves_a_sleeping_waiter_takes_over_at_once)
{
    for (int round = 0; round < 20; round++) {
        weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
        weft_op_t ops[THREADS] = {{0}};
        pthread_t ids[THREADS];
        uint64_t start = wefti_clock_ns();
        for (int i = 0; i < THREADS; i++)
            CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[i]));
        for (int i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&ids[i], NULL, wait_for_own, &ops[i]));
        usleep(2000);
        for (int i = 0; i < THREADS; i++) {
            fake_event(rt, 1); /* in this order: each may be the driver's own, which then leaves */
            pthread_join(ids[i], NULL);
        }
        CHECK(wefti_clock_ns() - start < 200 * WEFT_MILLISECOND); /* no safety timer had to help */
        CHECK_OK(weft_runtime_close(rt));
    }
}
