/* tests/unit/core_close_thread.c - closing a runtime while other threads wait on it, post to it, pop from its queues and ask
 * it. Each of them ends, and says that it is closed. ctest: label=thread */
#include "test.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "core/local.h"
#include "fake_fabric.h"

enum { WAITERS = 4 };

static const weft_progress_mode_t modes[] = {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD, WEFT_PROGRESS_LOOP};
#define EACH_MODE(m) for (unsigned m = 0; m < 3; m++)

typedef struct waiter {
    pthread_t thread;
    weft_runtime_t *rt;
    weft_queue_t *queue;
    weft_op_t op;
    _Atomic uint32_t begun;
    weft_status_t st;
    size_t popped;
} waiter_t;

static void *wait_for_op(void *arg)
{
    waiter_t *w = arg;
    w->begun = 1;
    w->st = weft_op_wait(&w->op, 60 * WEFT_SECOND);
    return NULL;
}

static void *pop_from_queue(void *arg)
{
    waiter_t *w = arg;
    weft_op_t *op;
    w->begun = 1;
    w->popped = weft_queue_pop(w->queue, &op, 1, 60 * WEFT_SECOND);
    return NULL;
}

/* Let them come to their wait: most of them are there then. */
static void begun(waiter_t *w, int n)
{
    for (int i = 0; i < n; i++)
        while (!w[i].begun)
            usleep(1000);
    usleep(20000);
}

TEST(whoever_waits_for_an_operation_learns_that_the_runtime_closed)
{
    EACH_MODE(m)
    {
        weft_runtime_t *rt = fake_open(modes[m], 0);
        waiter_t w[WAITERS] = {0};
        for (int i = 0; i < WAITERS; i++) {
            CHECK_OK(fake_post(rt, i % 2 ? FAKE_WAITS : FAKE_STUBBORN, &w[i].op));
            CHECK_EQ(pthread_create(&w[i].thread, NULL, wait_for_op, &w[i]), 0);
        }
        begun(w, WAITERS);
        double start = test_now();
        CHECK_OK(weft_runtime_close(rt));
        CHECK(test_now() - start < 8); /* not the bound after which it gives up */
        for (int i = 0; i < WAITERS; i++) {
            pthread_join(w[i].thread, NULL);
            CHECK_EQ(w[i].st, WEFT_ERR_CLOSED);
        }
    }
}

TEST(whoever_pops_from_a_queue_goes_home_when_the_runtime_closes)
{
    EACH_MODE(m)
    {
        weft_runtime_t *rt = fake_open(modes[m], 0);
        waiter_t w = {.rt = rt};
        CHECK_OK(weft_queue_new(rt, &w.queue));
        CHECK_EQ(pthread_create(&w.thread, NULL, pop_from_queue, &w), 0);
        begun(&w, 1);
        CHECK_OK(weft_runtime_close(rt));
        pthread_join(w.thread, NULL);
        CHECK_EQ(w.popped, 0);
        CHECK_OK(weft_queue_free(w.queue));
        CHECK_EQ(weft_queue_free(w.queue), WEFT_ERR_CLOSED);
    }
}

/* --- hammering ------------------------------------------------------------------------------------------------------------ */

typedef struct hammer {
    pthread_t thread;
    weft_runtime_t *rt;
    _Atomic uint32_t begun;
    unsigned calls;
    bool bad;
} hammer_t;

/* Posts, cancels, waits and asks until it is told that the runtime is closed. */
static void *hammer(void *arg)
{
    hammer_t *h = arg;
    weft_status_t st = WEFT_OK;
    h->begun = 1;
    for (unsigned i = 0; st != WEFT_ERR_CLOSED; i++, h->calls++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        switch (i % 4) {
        case 0:
            st = fake_post(h->rt, FAKE_WAITS, &op);
            if (st)
                break;
            weft_op_cancel(&op);
            st = weft_op_wait(&op, 30 * WEFT_SECOND);
            h->bad = h->bad || (st != WEFT_ERR_CANCELLED && st != WEFT_ERR_CLOSED);
            break;
        case 1:
            st = weft_timer_start(h->rt, 1000, &op);
            if (!st)
                st = weft_op_wait(&op, 30 * WEFT_SECOND);
            h->bad = h->bad || (st && st != WEFT_ERR_CLOSED);
            break;
        case 2:
            st = weft_runtime_get_stats(h->rt, &stats);
            h->bad = h->bad || (st && st != WEFT_ERR_CLOSED);
            break;
        default:
            weft_runtime_progress(h->rt);
        }
    }
    return NULL;
}

TEST(calls_of_other_threads_beside_a_close_work_or_say_that_it_is_closed)
{
    for (int round = 0; round < 20; round++)
        EACH_MODE(m)
        {
            weft_runtime_t *rt = fake_open(modes[m], 0);
            hammer_t h[WAITERS] = {0};
            for (int i = 0; i < WAITERS; i++) {
                h[i].rt = rt;
                CHECK_EQ(pthread_create(&h[i].thread, NULL, hammer, &h[i]), 0);
            }
            for (int i = 0; i < WAITERS; i++)
                while (!h[i].begun)
                    usleep(100);
            usleep(500u * (unsigned)(round % 5));
            CHECK_OK(weft_runtime_close(rt));
            for (int i = 0; i < WAITERS; i++) {
                pthread_join(h[i].thread, NULL);
                CHECK(!h[i].bad);
            }
        }
}

static void *close_it(void *arg)
{
    hammer_t *h = arg;
    h->bad = weft_runtime_close(h->rt) != WEFT_OK;
    return NULL;
}

TEST(of_two_threads_that_close_a_runtime_one_does_and_the_other_is_told)
{
    EACH_MODE(m)
    for (int round = 0; round < 50; round++) {
        weft_runtime_t *rt = fake_open(modes[m], 0);
        hammer_t h[2] = {{.rt = rt}, {.rt = rt}};
        for (int i = 0; i < 2; i++)
            CHECK_EQ(pthread_create(&h[i].thread, NULL, close_it, &h[i]), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(h[i].thread, NULL);
        CHECK_EQ(h[0].bad + h[1].bad, 1);
    }
}

TEST(a_closed_runtime_says_so)
{
    EACH_MODE(m)
    {
        weft_runtime_t *rt = fake_open(modes[m], 0);
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        weft_queue_t *queue;
        weft_token_t *token;
        CHECK_OK(weft_runtime_close(rt));
        CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_runtime_get_stats(rt, &stats), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_timer_start(rt, 1, &op), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_queue_new(rt, &queue), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_token_new(rt, NULL, &token), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_runtime_progress(rt), 0);
        CHECK(weft_runtime_fd(rt) < 0);
        CHECK_EQ(weft_runtime_arm(rt), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_runtime_next_timeout(rt), WEFT_FOREVER);
        CHECK(weft_runtime_name(rt));
        CHECK(weft_now(rt) > 0); /* the clock is everybody's */
    }
}

TEST(nobody_becomes_the_driver_of_a_closed_runtime)
{
    EACH_MODE(m)
    {
        weft_runtime_t *rt = fake_open(modes[m], 0), *was;
        CHECK_OK(weft_runtime_close(rt));
        CHECK(!wefti_enter(rt, &was));
    }
}

/* --- two runtimes whose callbacks ask each other -------------------------------------------------------------------------- */

typedef struct asker {
    weft_runtime_t *own, *other;
    _Atomic uint32_t *both;
    weft_status_t st, st_own;
    _Atomic uint32_t answered;
} asker_t;

static void ask_the_other(weft_op_t *op, void *user)
{
    asker_t *a = user;
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    (void)op;
    atomic_fetch_add(a->both, 1);
    while (*a->both < 2) /* both threads are in their callbacks now, and stay there until they are answered */
        usleep(100);
    a->st = weft_runtime_get_stats(a->other, &stats);
    a->st_own = weft_runtime_get_stats(a->own, &stats);
    a->answered = 1;
}

TEST(callbacks_of_two_runtimes_that_ask_each_other_are_refused_and_do_not_wait_for_ever)
{
    weft_runtime_t *rt[2] = {fake_open(WEFT_PROGRESS_THREAD, 0), fake_open(WEFT_PROGRESS_THREAD, 0)};
    _Atomic uint32_t both = 0;
    asker_t a[2] = {{.own = rt[0], .other = rt[1], .both = &both}, {.own = rt[1], .other = rt[0], .both = &both}};
    weft_op_t ops[2] = {{.fn = ask_the_other, .user = &a[0]}, {.fn = ask_the_other, .user = &a[1]}};
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_timer_start(rt[i], 1, &ops[i]));
    for (int i = 0; i < 2; i++) /* an operation is complete before its callback runs */
        for (double end = test_now() + 30; !a[i].answered; usleep(1000))
            CHECK(test_now() < end);
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_runtime_close(rt[i]));
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(a[i].st, WEFT_ERR_STATE);
        CHECK_OK(a[i].st_own);
    }
}

/* --- a callback that does not return -------------------------------------------------------------------------------------- */

static _Atomic int entered, may_return;

static void does_not_return(void *user)
{
    (void)user;
    atomic_store(&entered, 1);
    while (!atomic_load(&may_return))
        usleep(100);
}

static void *drive_until_closed(void *user)
{
    weft_runtime_t *rt = user;
    weft_op_t never = WEFT_OP_INIT;
    CHECK_OK(weft_timer_start(rt, 1000 * WEFT_SECOND, &never));
    CHECK_EQ(weft_op_wait(&never, WEFT_FOREVER), WEFT_ERR_CLOSED);
    return NULL;
}

static void close_beside_a_callback(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    weft_op_t op = WEFT_OP_INIT;
    pthread_t driver;
    atomic_store(&entered, 0);
    atomic_store(&may_return, 0);
    wefti_close_bound = 50 * WEFT_MILLISECOND;
    if (mode == WEFT_PROGRESS_CALLER)
        CHECK(!pthread_create(&driver, NULL, drive_until_closed, rt));
    CHECK_OK(weft_runtime_call(rt, does_not_return, NULL, &op));
    TEST_UNTIL(atomic_load(&entered), 20);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_STATE);
    CHECK(strstr(weft_last_error(), "does not return"));
    atomic_store(&may_return, 1); /* it is as it was */
    CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
    weft_op_t timer = WEFT_OP_INIT;
    CHECK_OK(weft_timer_start(rt, 1000, &timer));
    CHECK_OK(weft_op_wait(&timer, 20 * WEFT_SECOND));
    wefti_close_bound = 10 * WEFT_SECOND;
    CHECK_OK(weft_runtime_close(rt));
    if (mode == WEFT_PROGRESS_CALLER)
        pthread_join(driver, NULL);
}

TEST(a_close_gives_up_on_a_callback_that_does_not_return_on_a_thread_of_the_runtime)
{
    close_beside_a_callback(WEFT_PROGRESS_THREAD);
}

TEST(a_close_gives_up_on_a_callback_that_does_not_return_on_a_thread_of_the_program)
{
    close_beside_a_callback(WEFT_PROGRESS_CALLER);
}

TEST(a_thread_that_does_not_leave_holds_up_a_close_for_the_bound_only)
{
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_THREAD; mode++) {
        weft_runtime_t *rt = fake_open((weft_progress_mode_t)mode, 0);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_timer_start(rt, 1000 * WEFT_SECOND, &op));
        CHECK_OK(weft_ext_enter(rt));
        wefti_close_bound = 50 * WEFT_MILLISECOND;
        for (int i = 0; i < 3; i++)
            CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_STATE);
        CHECK(strstr(weft_last_error(), "weft_ext_leave"));
        CHECK_EQ(op.status, WEFT_ERR_CLOSED); /* all has ended */
        CHECK_EQ(weft_timer_start(rt, 0, &op), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_ext_enter(rt), WEFT_ERR_CLOSED);
        weft_ext_leave(rt);
        wefti_close_bound = 10 * WEFT_SECOND;
        CHECK_OK(weft_runtime_close(rt));
        CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_CLOSED);
    }
}

TEST(to_leave_too_often_does_no_harm)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(weft_ext_enter(rt));
    for (int i = 0; i < 3; i++)
        weft_ext_leave(rt);
    CHECK_OK(weft_runtime_close(rt));
    weft_ext_leave(rt);
}
