/* tests/unit/core_attach.c - a callback that is attached after the post, a cancel before it, and which failures the post
 * returns. */
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "fake_fabric.h"

typedef struct told {
    _Atomic int calls;
    weft_status_t status;
} told_t;

static void tell(weft_op_t *op, void *user)
{
    told_t *t = user;
    t->status = op->status;
    atomic_fetch_add(&t->calls, 1);
}

TEST(a_callback_is_attached_to_an_operation_under_way)
{
    weft_runtime_t *rt = fake_open(0, 0);
    told_t t = {0};
    weft_op_t op = {.user = &t};
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_OK(weft_op_attach(&op, tell));
    CHECK_EQ(weft_op_attach(&op, tell), WEFT_ERR_STATE);
    fake_event(rt, 1);
    CHECK_EQ(atomic_load(&t.calls), 0); /* from progress only */
    CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
    weft_runtime_progress(rt);
    CHECK_EQ(atomic_load(&t.calls), 1);
    /* that was for one post */
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    fake_event(rt, 1);
    CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
    CHECK_EQ(atomic_load(&t.calls), 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_callback_comes_too_late_or_has_no_place)
{
    weft_runtime_t *rt = fake_open(0, 0);
    told_t t = {0};
    weft_op_t op = {.user = &t}, never = {.user = &t}, has = {.fn = tell, .user = &t};
    CHECK_EQ(weft_op_attach(NULL, tell), WEFT_ERR_INVALID);
    CHECK_EQ(weft_op_attach(&op, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_op_attach(&never, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_op_attach(&never, tell), WEFT_ERR_DONE);
    CHECK_EQ(weft_last_error_status(), WEFT_ERR_DONE); /* and not what was wrong before */
    CHECK_STR(weft_last_error(), weft_status_text(WEFT_ERR_DONE));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
    CHECK_EQ(weft_op_attach(&op, tell), WEFT_ERR_DONE);
    CHECK_OK(fake_post(rt, FAKE_WAITS, &has));
    CHECK_EQ(weft_op_attach(&has, tell), WEFT_ERR_STATE);
    CHECK_EQ(atomic_load(&t.calls), 0);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(atomic_load(&t.calls), 1);
}

static void tell_before(weft_op_t *op, void *user)
{
    CHECK(!weft_op_done(user)); /* while the group is not complete, its member is there */
    CHECK_EQ(op->status, WEFT_ERR_CANCELLED);
    op->user = NULL;
}

TEST(a_group_and_an_attached_callback_are_both_told_the_callback_first)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t group = WEFT_OP_INIT, op = {.user = &group}, *members[] = {&op};
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, members, 1, &group));
    CHECK_OK(weft_op_attach(&op, tell_before));
    weft_op_cancel(&op);
    CHECK_EQ(weft_op_wait(&group, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK(!op.user); /* it was called */
    CHECK_OK(weft_runtime_close(rt));
}

enum { ROUNDS = 3000 };

typedef struct canceller {
    weft_op_t *op;
    _Atomic int asked, done; /* times */
    _Atomic bool over;
} canceller_t;

static void *cancel_each(void *arg)
{
    canceller_t *c = arg;
    while (!atomic_load(&c->over)) {
        int n = atomic_load(&c->done);
        if (atomic_load(&c->asked) == n) {
            sched_yield();
            continue;
        }
        for (int spin = n % 200; spin; spin--)
            (void)atomic_load(&c->over);
        weft_op_cancel(c->op);
        atomic_store(&c->done, n + 1);
    }
    return NULL;
}

static void await_canceller(canceller_t *c)
{
    while (atomic_load(&c->done) != atomic_load(&c->asked))
        sched_yield();
}

/* Another thread ends it while it is attached to: the callback is called, or it was complete already; never both, never
 * neither. */
static void race(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    told_t t = {0};
    weft_op_t op;
    canceller_t c = {.op = &op};
    pthread_t id;
    CHECK(!pthread_create(&id, NULL, cancel_each, &c));
    for (int i = 0; i < ROUNDS; i++) {
        op = (weft_op_t){.user = &t};
        int before = atomic_load(&t.calls);
        CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
        atomic_fetch_add(&c.asked, 1);
        weft_status_t st = weft_op_attach(&op, tell);
        CHECK(st == WEFT_OK || st == WEFT_ERR_DONE);
        CHECK_EQ(weft_op_wait(&op, 20 * WEFT_SECOND), WEFT_ERR_CANCELLED);
        await_canceller(&c);
        if (!st)
            TEST_UNTIL((weft_runtime_progress(rt), atomic_load(&t.calls) == before + 1), 20);
        CHECK_EQ(atomic_load(&t.calls), before + !st);
    }
    atomic_store(&c.over, true);
    pthread_join(id, NULL);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(attaching_races_with_the_end_on_a_thread_driven_runtime)
{
    race(WEFT_PROGRESS_THREAD);
}

TEST(attaching_races_with_the_end_when_callers_drive)
{
    race(WEFT_PROGRESS_CALLER);
}

/* --- a cancel before the post --------------------------------------------------------------------------------------------- */

static void cancelled_before(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    told_t t = {0};
    weft_op_t stops = {.fn = tell, .user = &t}, starts = WEFT_OP_INIT;
    uint32_t started = atomic_load(&fake_started);
    weft_op_cancel(&stops);
    weft_op_cancel(&stops);
    CHECK(weft_op_done(&stops)); /* nothing is under way */
    CHECK_OK(fake_post_stops(rt, FAKE_AT_ONCE, &stops));
    CHECK_EQ(weft_op_wait(&stops, 20 * WEFT_SECOND), WEFT_ERR_CANCELLED);
    TEST_UNTIL((weft_runtime_progress(rt), atomic_load(&t.calls) == 1), 20);
    CHECK_EQ(atomic_load(&fake_started), started);
    CHECK(strstr(weft_op_error(&stops), "cancelled before it was started"));
    weft_op_cancel(&starts); /* of a kind that has to be started: it is, and then cancelled */
    CHECK_OK(fake_post(rt, FAKE_WAITS, &starts));
    CHECK_EQ(weft_op_wait(&starts, 20 * WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_EQ(atomic_load(&fake_started), started + 1);
    weft_op_cancel(&stops); /* complete: that means nothing for its next post */
    CHECK_OK(fake_post_stops(rt, FAKE_AT_ONCE, &stops));
    CHECK_OK(weft_op_wait(&stops, 20 * WEFT_SECOND));
    TEST_UNTIL((weft_runtime_progress(rt), atomic_load(&t.calls) == 2), 20);
    stops = (weft_op_t)WEFT_OP_INIT;
    weft_op_cancel(&stops);
    stops = (weft_op_t)WEFT_OP_INIT; /* taken back */
    CHECK_OK(fake_post_stops(rt, FAKE_AT_ONCE, &stops));
    CHECK_OK(weft_op_wait(&stops, 20 * WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_cancel_before_the_post_sticks_on_a_thread_driven_runtime)
{
    cancelled_before(WEFT_PROGRESS_THREAD);
}

TEST(a_cancel_before_the_post_sticks_when_callers_drive)
{
    cancelled_before(WEFT_PROGRESS_CALLER);
}

/* Cancelled before, during or after the post: it ends, and nothing is lost. */
static void cancel_and_post(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    weft_op_t op;
    canceller_t c = {.op = &op};
    pthread_t id;
    CHECK(!pthread_create(&id, NULL, cancel_each, &c));
    for (int i = 0; i < ROUNDS; i++) {
        op = (weft_op_t)WEFT_OP_INIT;
        atomic_fetch_add(&c.asked, 1);
        for (int spin = (i * 7) % 200; spin; spin--)
            (void)atomic_load(&c.over);
        CHECK_OK(i % 2 ? fake_post(rt, FAKE_WAITS, &op) : fake_post_stops(rt, FAKE_WAITS, &op));
        CHECK_EQ(weft_op_wait(&op, 20 * WEFT_SECOND), WEFT_ERR_CANCELLED);
        await_canceller(&c);
    }
    atomic_store(&c.over, true);
    pthread_join(id, NULL);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_cancel_at_any_time_counts_on_a_thread_driven_runtime)
{
    cancel_and_post(WEFT_PROGRESS_THREAD);
}

TEST(a_cancel_at_any_time_counts_when_callers_drive)
{
    cancel_and_post(WEFT_PROGRESS_CALLER);
}

/* --- what the post returns ------------------------------------------------------------------------------------------------ */

static void lost_or_wrong(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    told_t t = {0};
    weft_op_t lost = {.fn = tell, .user = &t}, plain = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_LOST, &lost));
    CHECK_EQ(weft_op_wait(&lost, 20 * WEFT_SECOND), WEFT_ERR_PEER);
    TEST_UNTIL((weft_runtime_progress(rt), atomic_load(&t.calls) == 1), 20);
    CHECK_STR(weft_op_error(&lost), "fake: tcp://nowhere:1: it was lost before");
    CHECK_OK(fake_post(rt, FAKE_LOST, &plain));
    CHECK_EQ(weft_op_wait(&plain, 20 * WEFT_SECOND), WEFT_ERR_PEER);
    if (mode == WEFT_PROGRESS_CALLER)
        CHECK_EQ(fake_post(rt, FAKE_FAILS, &plain), WEFT_ERR_LIMIT); /* what the caller did wrong */
    CHECK_OK(weft_runtime_close(rt));
}

TEST(the_fate_of_the_peer_comes_by_the_operation_on_a_thread_driven_runtime)
{
    lost_or_wrong(WEFT_PROGRESS_THREAD);
}

TEST(the_fate_of_the_peer_comes_by_the_operation_when_callers_drive)
{
    lost_or_wrong(WEFT_PROGRESS_CALLER);
}
