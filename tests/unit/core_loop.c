/* tests/unit/core_loop.c - a foreign loop sleeps on the fd: whatever happens while it is armed makes the fd readable.
 * ctest: label=thread */
#include "test.h"

#include <poll.h>
#include <pthread.h>

#include "base/rng.h"
#include "fake_fabric.h"

static bool readable(weft_runtime_t *rt, int ms)
{
    struct pollfd p = {.fd = weft_runtime_fd(rt), .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

static void count(weft_op_t *op, void *user)
{
    (void)op;
    ++*(_Atomic unsigned *)user;
}

/* As the documentation tells a loop to. */
static void settle_down(weft_runtime_t *rt)
{
    do
        while (weft_runtime_progress(rt))
            ;
    while (weft_runtime_arm(rt) == WEFT_ERR_AGAIN);
}

TEST(an_event_makes_the_fd_of_an_armed_runtime_readable)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_LOOP, 0);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    settle_down(rt);
    CHECK_OK(weft_runtime_arm(rt)); /* twice is once */
    CHECK(!readable(rt, 0));
    fake_event(rt, 1);
    CHECK(readable(rt, 1000));
    CHECK(weft_runtime_progress(rt) > 0);
    CHECK(weft_op_done(&op));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(arming_says_again_while_there_is_work)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_LOOP, 0);
    _Atomic unsigned calls = 0;
    weft_op_t op = {.fn = count, .user = &calls}, timer = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
    CHECK_EQ(weft_runtime_arm(rt), WEFT_ERR_AGAIN);
    weft_runtime_progress(rt);
    CHECK_EQ(calls, 1);
    fake_event(rt, 1);
    CHECK_EQ(weft_runtime_arm(rt), WEFT_ERR_AGAIN);
    weft_runtime_progress(rt);
    CHECK_OK(weft_timer_start(rt, WEFT_MILLISECOND, &timer));
    usleep(3000);
    CHECK_EQ(weft_runtime_next_timeout(rt), 0);
    CHECK_EQ(weft_runtime_arm(rt), WEFT_ERR_AGAIN);
    CHECK_EQ(weft_runtime_progress(rt), 1); /* the one call after it runs the timer */
    CHECK(weft_op_done(&timer));
    CHECK_OK(weft_runtime_arm(rt));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(posting_after_arm_on_the_same_thread_wakes_the_loop)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_LOOP, 0);
    _Atomic unsigned calls = 0;
    weft_op_t a = {.fn = count, .user = &calls}, b = {.fn = count, .user = &calls};
    settle_down(rt);
    CHECK_EQ(weft_runtime_next_timeout(rt), WEFT_FOREVER); /* asking is not posting */
    CHECK(!readable(rt, 0));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &a));
    CHECK_EQ(calls, 0);
    CHECK(readable(rt, 0));
    settle_down(rt);
    CHECK_EQ(calls, 1);
    CHECK(!readable(rt, 0));
    CHECK_OK(fake_post(rt, FAKE_WAITS, &b)); /* swallows the coming event's wake-up */
    fake_event(rt, 1);
    CHECK(readable(rt, 0));
    settle_down(rt);
    CHECK_EQ(calls, 2);
    CHECK_OK(weft_runtime_close(rt));
}

typedef struct other {
    weft_runtime_t *rt;
    weft_op_t *op;
} other_t;

static void *post_it(void *arg)
{
    other_t *o = arg;
    CHECK_OK(fake_post(o->rt, FAKE_AT_ONCE, o->op));
    return NULL;
}

static void *wait_for_it(void *arg)
{
    other_t *o = arg;
    CHECK_OK(weft_op_wait(o->op, 10 * WEFT_SECOND));
    return NULL;
}

TEST(a_post_or_a_wait_by_another_thread_wakes_the_loop)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_LOOP, 0);
    _Atomic unsigned calls = 0;
    weft_op_t op = {.fn = count, .user = &calls}, waited = WEFT_OP_INIT;
    other_t o = {rt, &op};
    pthread_t id;
    settle_down(rt);
    CHECK(!pthread_create(&id, NULL, post_it, &o));
    pthread_join(id, NULL);
    CHECK(readable(rt, 0));
    settle_down(rt);
    CHECK_EQ(calls, 1);
    CHECK_OK(fake_post(rt, FAKE_WAITS, &waited));
    settle_down(rt);
    CHECK(!readable(rt, 0));
    o.op = &waited;
    CHECK(!pthread_create(&id, NULL, wait_for_it, &o));
    usleep(10000);
    fake_event(rt, 1);
    pthread_join(id, NULL);
    CHECK(readable(rt, 0)); /* that thread disarmed it: the loop has to arm it anew */
    settle_down(rt);
    CHECK(!readable(rt, 0));
    CHECK_OK(weft_runtime_close(rt));
}

/* --- a loop under fire ----------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 2000 };
#else
enum { ROUNDS = 5000 };
#endif
enum { POSTERS = 2 };

typedef struct fire {
    weft_runtime_t *rt;
    _Atomic unsigned finished;
} fire_t;

static void *post_many(void *arg)
{
    fire_t *f = arg;
    _Atomic unsigned told = 0;
    wefti_rng_t rng = {(uint64_t)(uintptr_t)&told};
    weft_op_t op = {.fn = count, .user = &told};
    for (unsigned i = 1; i <= ROUNDS; i++) {
        op.timeout_ns = wefti_rng_below(&rng, 10) ? 0 : 50000;
        CHECK_OK(fake_post(f->rt, wefti_rng_below(&rng, 2) ? FAKE_WAITS : FAKE_AT_ONCE, &op));
        if (wefti_rng_below(&rng, 8) == 0)
            weft_op_cancel(&op);
        for (unsigned tries = 0; atomic_load(&told) < i; tries++) {
            fake_event(f->rt, 1);
            if (tries)
                usleep(10);
        }
    }
    atomic_fetch_add(&f->finished, 1);
    fake_event(f->rt, 1);
    return NULL;
}

TEST(a_loop_never_sleeps_past_what_others_post)
{
    fire_t f = {.rt = fake_open(WEFT_PROGRESS_LOOP, 0)};
    pthread_t ids[POSTERS];
    for (int i = 0; i < POSTERS; i++)
        CHECK(!pthread_create(&ids[i], NULL, post_many, &f));
    while (atomic_load(&f.finished) < POSTERS) {
        settle_down(f.rt);
        if (atomic_load(&f.finished) == POSTERS)
            break; /* the last event was among those that were just seen */
        uint64_t ns = weft_runtime_next_timeout(f.rt);
        bool woken = readable(f.rt, ns == WEFT_FOREVER ? 10000 : (int)(ns / WEFT_MILLISECOND) + 1);
        CHECK(woken || ns != WEFT_FOREVER);
    }
    for (int i = 0; i < POSTERS; i++)
        pthread_join(ids[i], NULL);
    CHECK_OK(weft_runtime_close(f.rt));
}
