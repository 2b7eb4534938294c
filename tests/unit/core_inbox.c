/* tests/unit/core_inbox.c - posts, cancels and calls from threads that do not drive: each arrives, once, in its thread's order.
 * ctest: label=thread */
#include "test.h"

#include <pthread.h>

#include "base/clock.h"
#include "core/local.h"
#include "fake_fabric.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 2000 };
#else
enum { ROUNDS = 20000 };
#endif
enum { THREADS = 4, WINDOW = 32 };

typedef struct counted {
    wefti_call_t call;
    weft_runtime_t *rt;
    unsigned runs; /* the driver's */
    _Atomic unsigned seen;
} counted_t;

static void count(wefti_call_t *call)
{
    counted_t *c = wefti_container_of(call, counted_t, call);
    CHECK(wefti_driven == c->rt);
    c->runs++;
    atomic_fetch_add(&c->seen, 1);
}

static void *call_often(void *arg)
{
    counted_t c = {.call.fn = count, .rt = arg};
    for (unsigned i = 1; i <= ROUNDS; i++) {
        wefti_call_on_driver(c.rt, &c.call);
        while (atomic_load(&c.seen) < i)
            sched_yield();
        CHECK_EQ(c.runs, i);
    }
    return NULL;
}

static void run_threads(void *(*fn)(void *), void *arg, int n)
{
    pthread_t ids[16];
    for (int i = 0; i < n; i++)
        CHECK(!pthread_create(&ids[i], NULL, fn, arg));
    for (int i = 0; i < n; i++)
        pthread_join(ids[i], NULL);
}

TEST(calls_run_once_on_the_driver_without_anyone_progressing)
{
    /* nobody drives this one: whoever collides with another leaves it to the one that leaves last */
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    run_threads(call_often, rt, THREADS);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(calls_run_once_on_the_thread_of_the_runtime)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_THREAD, 0);
    run_threads(call_often, rt, THREADS);
    CHECK_OK(weft_runtime_close(rt));
}

typedef struct ordered {
    weft_runtime_t *rt;
    _Atomic uint64_t next;
    weft_op_t ops[WINDOW];
} ordered_t;

static void in_order(weft_op_t *op, void *user)
{
    ordered_t *o = user;
    CHECK_EQ(op->tag, atomic_fetch_add(&o->next, 1));
}

static void *post_in_order(void *arg)
{
    ordered_t *o = calloc(1, sizeof *o);
    o->rt = arg;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        weft_op_t *op = &o->ops[i % WINDOW];
        while (atomic_load(&o->next) + WINDOW <= i) { /* not weft_op_wait(): that may return before fn ran */
            weft_runtime_progress(o->rt);
            sched_yield();
        }
        op->fn = in_order;
        op->user = o;
        op->tag = i;
        CHECK_OK(fake_post(o->rt, FAKE_AT_ONCE, op));
    }
    for (int i = 0; i < WINDOW; i++)
        CHECK_OK(weft_op_wait(&o->ops[i], 20 * WEFT_SECOND));
    return o;
}

static void check_order(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    pthread_t ids[THREADS];
    ordered_t *all[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&ids[i], NULL, post_in_order, rt));
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], (void **)&all[i]);
    CHECK_OK(weft_runtime_close(rt)); /* so that every fn ran */
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(all[i]->next, ROUNDS);
        free(all[i]);
    }
}

TEST(posts_of_one_thread_start_in_their_order_on_a_runtime_thread)
{
    check_order(WEFT_PROGRESS_THREAD);
}

TEST(posts_of_one_thread_start_in_their_order_when_callers_drive)
{
    check_order(WEFT_PROGRESS_CALLER);
}

static void *post_two(void *arg)
{
    weft_op_t **ops = arg;
    weft_runtime_t *rt = ops[0]->user;
    CHECK_OK(fake_post(rt, FAKE_WAITS, ops[0]));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, ops[1]));
    weft_op_cancel(ops[0]); /* both sit in the inbox: the driver is held by the test */
    weft_op_cancel(ops[1]);
    CHECK(!weft_op_done(ops[0]) && !weft_op_done(ops[1]));
    return NULL;
}

TEST(an_operation_cancelled_in_the_inbox_is_started_and_ends_once)
{
    weft_runtime_t *rt = fake_open(0, 0), *was;
    weft_op_t a = {.user = rt}, b = WEFT_OP_INIT, *ops[] = {&a, &b};
    CHECK(wefti_enter(rt, &was));
    run_threads(post_two, ops, 1);
    wefti_leave(rt, was); /* drains the inbox */
    CHECK_EQ(weft_op_wait(&a, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_OK(weft_op_wait(&b, WEFT_SECOND)); /* its result was sooner */
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(rt, &stats);
    CHECK_EQ(stats.ops_completed, 2);
    CHECK_OK(weft_runtime_close(rt));
}

static void *cancel_it(void *arg)
{
    weft_op_cancel(arg);
    return NULL;
}

TEST(an_operation_that_completes_while_its_cancellation_is_in_the_inbox_is_not_done_before_the_inbox_lets_go)
{
    weft_runtime_t *rt = fake_open(0, 0), *was;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK(wefti_enter(rt, &was));
    run_threads(cancel_it, &op, 1);
    fake_event(rt, 1);
    rt->fabric->ops->progress(rt->fabric, false);
    CHECK(!weft_op_done(&op));
    wefti_leave(rt, was);
    weft_runtime_progress(rt);
    CHECK(weft_op_done(&op));
    CHECK_OK(op.status);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_burst_of_posts_wakes_a_sleeping_thread_once_per_sleep)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_THREAD, 0);
    weft_op_t ops[64] = {{0}};
    weft_runtime_stats_t before = WEFT_RUNTIME_STATS_INIT, after = WEFT_RUNTIME_STATS_INIT;
    usleep(20000);
    weft_runtime_get_stats(rt, &before);
    usleep(20000);
    uint32_t wakes = atomic_load(&fake_of(rt)->wakes);
    for (int i = 0; i < 64; i++)
        CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[i]));
    for (int i = 0; i < 64; i++)
        CHECK_OK(weft_op_wait(&ops[i], WEFT_SECOND));
    wakes = atomic_load(&fake_of(rt)->wakes) - wakes;
    weft_runtime_get_stats(rt, &after);
    CHECK(wakes >= 1 && wakes <= after.sleeps - before.sleeps + 1);
    CHECK_EQ(after.rescued_wakeups, 0);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- more than the driver can do ------------------------------------------------------------------------------------------ */

enum { PUSHERS = 3, CALL_US = 5, TURNS = 30, HELD_MOST = 3 * 8192 };

static _Atomic bool enough;
static _Atomic int held, held_most; /* calls that lie in the inbox; at most */

static void spin_us(uint64_t us)
{
    for (uint64_t end = wefti_clock_ns() + us * 1000; wefti_clock_ns() < end;)
        ;
}

static void do_slowly(wefti_call_t *call)
{
    spin_us(CALL_US);
    atomic_fetch_sub(&held, 1);
    free(wefti_container_of(call, counted_t, call));
}

static void *hand_in_without_end(void *arg)
{
    while (!atomic_load(&enough)) {
        counted_t *c = calloc(1, sizeof *c);
        c->call.fn = do_slowly;
        int now = atomic_fetch_add(&held, 1) + 1;
        if (now > atomic_load(&held_most))
            atomic_store(&held_most, now);
        CHECK(wefti_call_on_driver(arg, &c->call));
    }
    return NULL;
}

/* Without a bound each round of the driver leaves more behind than it took, and it never comes out again. */
static void check_that_it_comes_out(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    pthread_t ids[PUSHERS];
    for (int i = 0; i < PUSHERS; i++)
        CHECK(!pthread_create(&ids[i], NULL, hand_in_without_end, rt));
    for (int i = 0; i < TURNS; i++) {
        weft_runtime_progress(rt);
        usleep(1000);
    }
    atomic_store(&enough, true);
    for (int i = 0; i < PUSHERS; i++)
        pthread_join(ids[i], NULL);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(held, 0);
    CHECK(held_most < HELD_MOST);
}

TEST(threads_that_hand_in_without_end_do_not_keep_whoever_progresses)
{
    check_that_it_comes_out(WEFT_PROGRESS_CALLER);
}

TEST(threads_that_hand_in_without_end_do_not_fill_the_inbox_of_a_runtime_thread)
{
    check_that_it_comes_out(WEFT_PROGRESS_THREAD);
}

typedef struct early {
    wefti_timer_t timer;
    int held; /* when it fired */
} early_t;

static void note_how_many(wefti_timer_t *t)
{
    wefti_container_of(t, early_t, timer)->held = atomic_load(&held);
}

static void *hand_in_much(void *rt)
{
    for (int i = 0; i < 4096; i++) {
        counted_t *c = calloc(1, sizeof *c);
        c->call.fn = do_slowly;
        atomic_fetch_add(&held, 1);
        CHECK(wefti_call_on_driver(rt, &c->call));
    }
    return NULL;
}

TEST(a_timer_fires_while_a_long_inbox_is_worked_off)
{
    weft_runtime_t *rt = fake_open(0, 0), *was;
    early_t early = {.timer.fn = note_how_many};
    CHECK(wefti_enter(rt, &was));
    run_threads(hand_in_much, rt, 1);
    CHECK_OK(wefti_timer_at(rt, &early.timer, wefti_now(rt) + WEFT_MILLISECOND));
    wefti_leave(rt, was);
    CHECK_EQ(held, 0);
    CHECK(early.held > 0);
    CHECK_OK(weft_runtime_close(rt));
}
