/* tests/unit/core_timer.c - timers run once, not before their time, and not much after it, however rarely the runtime is
 * driven. */
#include "test.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "fake_fabric.h"

static void advance(weft_runtime_t *rt, uint64_t ns)
{
    atomic_fetch_add(&fake_of(rt)->now, ns);
}

TEST(a_timer_completes_at_its_time_and_not_before)
{
    weft_runtime_t *rt = fake_open_virtual();
    weft_op_t op = WEFT_OP_INIT;
    CHECK_EQ(weft_runtime_next_timeout(rt), WEFT_FOREVER);
    CHECK_OK(weft_timer_start(rt, 1000, &op));
    uint64_t next = weft_runtime_next_timeout(rt);
    CHECK(next >= 1000 && next <= 1001);
    advance(rt, 999);
    weft_runtime_progress(rt);
    CHECK(!weft_op_done(&op));
    advance(rt, 2);
    CHECK_EQ(weft_runtime_next_timeout(rt), 0);
    CHECK_EQ(weft_runtime_progress(rt), 1);
    CHECK(weft_op_done(&op));
    CHECK_OK(op.status);
    CHECK_EQ(weft_runtime_next_timeout(rt), WEFT_FOREVER);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_timer_whose_deadline_comes_first_times_out_and_a_cancelled_one_is_cancelled)
{
    weft_runtime_t *rt = fake_open_virtual();
    weft_op_t a = {.timeout_ns = 100}, b = {.timeout_ns = 5000}, c = WEFT_OP_INIT;
    CHECK_OK(weft_timer_start(rt, 1000, &a));
    CHECK_OK(weft_timer_start(rt, 1000, &b));
    CHECK_OK(weft_timer_start(rt, 1000, &c));
    weft_op_cancel(&c);
    CHECK_EQ(c.status, WEFT_ERR_CANCELLED);
    advance(rt, 102);
    weft_runtime_progress(rt);
    CHECK(weft_op_done(&a) && !weft_op_done(&b));
    CHECK_EQ(a.status, WEFT_ERR_TIMEOUT);
    advance(rt, 1000);
    weft_runtime_progress(rt);
    CHECK_OK(b.status);
    CHECK_EQ(rt->timers.n, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_delay_or_deadline_of_forever_never_comes)
{
    weft_runtime_t *rt = fake_open_virtual();
    weft_op_t a = WEFT_OP_INIT, b = {.timeout_ns = WEFT_FOREVER};
    CHECK_OK(weft_timer_start(rt, WEFT_FOREVER, &a));
    CHECK_OK(fake_post(rt, FAKE_WAITS, &b));
    CHECK_EQ(weft_runtime_next_timeout(rt), WEFT_FOREVER);
    advance(rt, 1000 * WEFT_SECOND);
    weft_runtime_progress(rt);
    CHECK(!weft_op_done(&a) && !weft_op_done(&b));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(a.status, WEFT_ERR_CLOSED);
}

typedef struct ticking {
    wefti_timer_t timer;
    weft_runtime_t *rt;
    unsigned runs;
    uint64_t when;
} ticking_t;

static void tick(wefti_timer_t *t)
{
    ticking_t *k = wefti_container_of(t, ticking_t, timer);
    k->runs++;
    CHECK(k->rt->now >= k->when);
    CHECK_OK(wefti_timer_at(k->rt, t, k->when = k->rt->now));
}

TEST(a_timer_that_arms_itself_for_now_runs_once_per_progress)
{
    weft_runtime_t *rt = fake_open_virtual();
    ticking_t k = {.timer.fn = tick, .rt = rt, .when = 1500};
    CHECK_OK(wefti_timer_at(rt, &k.timer, k.when));
    weft_runtime_progress(rt);
    CHECK_EQ(k.runs, 0);
    advance(rt, 1000);
    for (unsigned i = 1; i <= 10; i++) {
        weft_runtime_progress(rt);
        CHECK_EQ(k.runs, i);
        advance(rt, 1);
    }
    wefti_timer_stop(rt, &k.timer);
    wefti_timer_stop(rt, &k.timer);
    advance(rt, 1000);
    weft_runtime_progress(rt);
    CHECK_EQ(k.runs, 10);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(what_arrived_counts_before_a_deadline_that_passed_meanwhile)
{
    weft_runtime_t *rt = fake_open_virtual();
    weft_op_t op = {.timeout_ns = 100};
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    fake_event(rt, 1);
    advance(rt, 1000);
    weft_runtime_progress(rt);
    CHECK(weft_op_done(&op));
    CHECK_OK(op.status);
    CHECK_EQ(rt->timers.n, 0);
    CHECK_OK(weft_runtime_close(rt));
}

static int no_memory(size_t n)
{
    (void)n;
    return 1;
}

TEST(without_memory_for_its_deadline_a_post_fails_and_leaves_nothing_behind)
{
    weft_runtime_t *rt = fake_open_virtual();
    weft_op_t op = {.timeout_ns = 100};
    wefti_alloc_fails = no_memory;
    CHECK_EQ(fake_post(rt, FAKE_WAITS, &op), WEFT_ERR_NOMEM);
    CHECK_EQ(weft_timer_start(rt, 5, &op), WEFT_ERR_NOMEM);
    wefti_alloc_fails = NULL;
    CHECK(weft_op_done(&op));
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_OK(weft_runtime_close(rt));
}

typedef struct due {
    weft_op_t op;
    uint64_t when;
    weft_runtime_t *rt;
    unsigned told;
    bool cancelled;
} due_t;

static void on_time(weft_op_t *op, void *user)
{
    due_t *d = user;
    d->told++;
    if (op->status == WEFT_OK)
        CHECK(d->rt->now >= d->when);
    else
        CHECK(d->cancelled && op->status == WEFT_ERR_CANCELLED);
}

TEST(ten_thousand_random_timers_run_once_each_and_none_early_or_late)
{
    enum { N = 10000 };
    weft_runtime_t *rt = fake_open_virtual();
    wefti_rng_t rng = {3};
    due_t *all = calloc(N, sizeof *all);
    for (int i = 0; i < N; i++) {
        due_t *d = &all[i];
        uint64_t delay = wefti_rng_below(&rng, 100000);
        d->op.fn = on_time;
        d->op.user = d;
        d->rt = rt;
        d->when = weft_now(rt) + delay;
        CHECK_OK(weft_timer_start(rt, delay, &d->op));
        if (i % 7 == 0) {
            due_t *other = &all[wefti_rng_below(&rng, (uint64_t)i + 1)];
            other->cancelled = true;
            weft_op_cancel(&other->op);
        }
        if (i % 3 == 0) {
            advance(rt, wefti_rng_below(&rng, 20));
            weft_runtime_progress(rt);
        }
    }
    while (weft_runtime_next_timeout(rt) != WEFT_FOREVER) {
        advance(rt, weft_runtime_next_timeout(rt));
        CHECK(weft_runtime_progress(rt) > 0); /* late by nothing */
    }
    weft_runtime_progress(rt);
    for (int i = 0; i < N; i++)
        CHECK_EQ(all[i].told, 1);
    free(all);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_caller_that_progresses_only_now_and_then_still_gets_its_timers)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t op = WEFT_OP_INIT;
    for (int i = 0; i < 100000; i++)
        weft_runtime_progress(rt); /* it was in a hurry once */
    CHECK_OK(weft_timer_start(rt, 30 * WEFT_MILLISECOND, &op));
    int calls = 0;
    for (; calls < 10 && !weft_op_done(&op); calls++) {
        usleep(20000);
        weft_runtime_progress(rt);
    }
    CHECK(calls <= 3);
    /* and one that always finds something to do */
    CHECK_OK(weft_timer_start(rt, 30 * WEFT_MILLISECOND, &op));
    for (calls = 0; calls < 40 && !weft_op_done(&op); calls++) {
        usleep(20000);
        fake_event(rt, 1);
        weft_runtime_progress(rt);
    }
    CHECK(calls <= 8);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_waiting_caller_is_late_by_less_than_a_scheduling_delay)
{
    weft_runtime_t *rt = fake_open(0, 0);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        weft_op_t op = WEFT_OP_INIT;
        uint64_t start = wefti_clock_ns();
        CHECK_OK(weft_timer_start(rt, 2 * WEFT_MILLISECOND, &op));
        CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
        uint64_t took = wefti_clock_ns() - start;
        CHECK(took >= 2 * WEFT_MILLISECOND);
        if (took < best)
            best = took;
    }
    CHECK(best < 50 * WEFT_MILLISECOND);
    CHECK_OK(weft_runtime_close(rt));
}

/* A callback that takes five milliseconds and posts itself again, so that every round of progress finds something. */
typedef struct slow {
    weft_runtime_t *rt;
    unsigned ran;
    bool stop;
} slow_t;

static void takes_its_time(weft_op_t *op, void *user)
{
    slow_t *s = user;
    for (uint64_t end = wefti_clock_ns() + 5 * WEFT_MILLISECOND; wefti_clock_ns() < end;)
        ;
    s->ran++;
    if (!s->stop)
        CHECK_OK(fake_post(s->rt, FAKE_AT_ONCE, op));
}

/* Timers do not depend on how many rounds there are, but on the clock: a round may take milliseconds. */
TEST(a_timer_is_late_by_a_few_rounds_however_long_each_of_them_takes)
{
    enum { ROUNDS = 40 }; /* 200 ms of them; the clock is looked at every few */
    for (int waiting = 0; waiting < 2; waiting++) {
        slow_t s = {.rt = fake_open(0, 0)};
        weft_op_t slow = {.fn = takes_its_time, .user = &s}, timer = WEFT_OP_INIT;
        CHECK_OK(weft_timer_start(s.rt, 20 * WEFT_MILLISECOND, &timer));
        CHECK_OK(fake_post(s.rt, FAKE_AT_ONCE, &slow));
        if (waiting)
            CHECK_OK(weft_op_wait(&timer, 60 * WEFT_SECOND));
        else
            while (!weft_op_done(&timer))
                weft_runtime_progress(s.rt);
        CHECK(s.ran < ROUNDS);
        s.stop = true;
        CHECK_OK(weft_op_wait(&slow, WEFT_SECOND));
        CHECK_OK(weft_runtime_close(s.rt));
    }
}

/* The same for the time that a wait is given. */
TEST(a_wait_runs_out_by_the_clock_however_long_each_round_takes)
{
    slow_t s = {.rt = fake_open(0, 0)};
    weft_op_t slow = {.fn = takes_its_time, .user = &s}, never = WEFT_OP_INIT;
    CHECK_OK(fake_post(s.rt, FAKE_WAITS, &never));
    CHECK_OK(fake_post(s.rt, FAKE_AT_ONCE, &slow));
    CHECK_EQ(weft_op_wait(&never, 20 * WEFT_MILLISECOND), WEFT_ERR_PENDING);
    CHECK(s.ran < 60);
    s.stop = true;
    weft_op_cancel(&never);
    CHECK_EQ(weft_op_wait(&never, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_OK(weft_runtime_close(s.rt));
}
