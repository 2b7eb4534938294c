/* tests/unit/core_op.c - the walk of an operation: once per post, told in the way that was chosen, never from inside the post. */
#include "test.h"

#include "base/rng.h"
#include "fake_fabric.h"

typedef struct told {
    unsigned calls;
    weft_status_t status;
} told_t;

static void tell(weft_op_t *op, void *user)
{
    told_t *t = user;
    t->calls++;
    t->status = op->status;
}

TEST(an_operation_without_fn_or_queue_is_done_when_it_completes)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t op = WEFT_OP_INIT;
    CHECK(weft_op_done(&op));
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK(!weft_op_done(&op));
    fake_event(rt, 1);
    CHECK(weft_runtime_progress(rt) > 0);
    CHECK(weft_op_done(&op));
    CHECK_EQ(op.status, WEFT_OK);
    CHECK_OK(weft_op_wait(&op, 0));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_OK(weft_op_wait(&op, 0)); /* its runtime is gone */
}

TEST(fn_is_called_once_from_progress_and_never_from_the_post)
{
    weft_runtime_t *rt = fake_open(0, 0);
    told_t t = {0};
    weft_op_t op = {.fn = tell, .user = &t};
    for (unsigned i = 1; i <= 100; i++) {
        CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
        CHECK_EQ(t.calls, i - 1);
        CHECK(!weft_op_done(&op));
        CHECK_EQ(weft_runtime_progress(rt), 1);
        CHECK_EQ(t.calls, i);
        CHECK(weft_op_done(&op));
    }
    CHECK_EQ(weft_runtime_progress(rt), 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_post_that_fails_at_once_is_never_told_and_may_be_repeated)
{
    weft_runtime_t *rt = fake_open(0, 0);
    told_t t = {0};
    weft_op_t op = {.fn = tell, .user = &t};
    CHECK_EQ(fake_post(rt, FAKE_FAILS, &op), WEFT_ERR_LIMIT);
    weft_runtime_progress(rt);
    CHECK_EQ(t.calls, 0);
    CHECK(weft_op_done(&op));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
    weft_runtime_progress(rt);
    CHECK_EQ(t.calls, 1);
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(rt, &stats);
    CHECK_EQ(stats.ops_posted, 1);
    CHECK_EQ(stats.ops_completed, 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(posting_what_is_under_way_is_refused_and_changes_nothing)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_EQ(fake_post(rt, FAKE_WAITS, &op), WEFT_ERR_STATE);
    fake_event(rt, 1);
    CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(fn_and_queue_together_are_refused)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_queue_t *q;
    CHECK_OK(weft_queue_new(rt, &q));
    weft_op_t op = {.fn = tell, .queue = q};
    CHECK_EQ(fake_post(rt, FAKE_WAITS, &op), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "both"));
    CHECK_OK(weft_queue_free(q));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(cancel_completes_with_cancelled_and_a_second_one_does_nothing)
{
    weft_runtime_t *rt = fake_open(0, 0);
    told_t t = {0};
    weft_op_t op = {.fn = tell, .user = &t}, never = WEFT_OP_INIT;
    weft_op_cancel(&never);
    weft_op_cancel(NULL);
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    weft_op_cancel(&op);
    weft_op_cancel(&op);
    CHECK_EQ(t.calls, 0);
    weft_runtime_progress(rt);
    CHECK_EQ(t.calls, 1);
    CHECK_EQ(t.status, WEFT_ERR_CANCELLED);
    weft_op_cancel(&op);
    weft_runtime_progress(rt);
    CHECK_EQ(t.calls, 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(an_operation_that_cannot_end_at_once_ends_when_its_buffers_are_free)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_STUBBORN, &op));
    weft_op_cancel(&op);
    CHECK_EQ(weft_op_wait(&op, 10 * WEFT_MILLISECOND), WEFT_ERR_PENDING);
    CHECK(!weft_op_done(&op));
    fake_event(rt, 1);
    CHECK_EQ(weft_op_wait(&op, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK(weft_op_done(&op));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_deadline_completes_with_timeout_and_one_after_a_cancel_still_counts)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t op = {.timeout_ns = 5 * WEFT_MILLISECOND}, stubborn = {.timeout_ns = 5 * WEFT_MILLISECOND};
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_OK(fake_post(rt, FAKE_STUBBORN, &stubborn));
    weft_op_cancel(&stubborn);
    CHECK_EQ(weft_op_wait(&op, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    CHECK(weft_op_done(&op));
    CHECK_EQ(weft_op_wait(&stubborn, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    CHECK_OK(weft_runtime_close(rt));
}

typedef struct again {
    weft_runtime_t *rt;
    unsigned left, calls;
    fake_how_t how;
} again_t;

static void post_again(weft_op_t *op, void *user)
{
    again_t *a = user;
    a->calls++;
    CHECK(weft_op_done(op));
    if (a->left && a->left--)
        CHECK_OK(fake_post(a->rt, a->how, op));
}

TEST(a_callback_may_post_its_own_operation_again)
{
    weft_runtime_t *rt = fake_open(0, 0);
    again_t a = {rt, 1000, 0, FAKE_WAITS};
    weft_op_t op = {.fn = post_again, .user = &a};
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    for (int i = 0; i < 2000; i++) {
        fake_event(rt, 1);
        weft_runtime_progress(rt);
    }
    CHECK_EQ(a.calls, 1001);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_callback_that_posts_what_completes_at_once_does_not_keep_progress_from_returning)
{
    weft_runtime_t *rt = fake_open(0, 0);
    again_t a = {rt, 1000000000, 0, FAKE_AT_ONCE};
    weft_op_t op = {.fn = post_again, .user = &a};
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
    for (int i = 0; i < 10; i++) {
        unsigned before = a.calls;
        CHECK(weft_runtime_progress(rt) > 0);
        CHECK(a.calls > before);
    }
    CHECK(a.calls < 100000);
    a.left = 0;
    CHECK_OK(weft_runtime_close(rt));
}

static void free_it(weft_op_t *op, void *user)
{
    ++*(unsigned *)user;
    free(op);
}

TEST(a_callback_may_free_its_own_operation)
{
    weft_runtime_t *rt = fake_open(0, 0);
    unsigned calls = 0;
    for (int i = 0; i < 1000; i++) {
        weft_op_t *op = calloc(1, sizeof *op);
        op->fn = free_it;
        op->user = &calls;
        op->timeout_ns = i % 3 ? 0 : WEFT_MILLISECOND;
        CHECK_OK(fake_post(rt, i % 2 ? FAKE_AT_ONCE : FAKE_WAITS, op));
        if (i % 5 == 0)
            fake_event(rt, 2);
    }
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(calls, 1000);
}

typedef struct inside {
    weft_runtime_t *rt, *other;
    weft_op_t *op, *on_other;
    weft_status_t wait, close;
    unsigned progress, calls;
} inside_t;

static void try_things(weft_op_t *op, void *user)
{
    inside_t *in = user;
    (void)op;
    in->wait = weft_op_wait(in->op, 0);
    in->close = weft_runtime_close(in->rt);
    in->progress = weft_runtime_progress(in->rt);
    if (in->other)
        CHECK_OK(fake_post(in->other, FAKE_AT_ONCE, in->on_other));
    in->calls++;
}

TEST(inside_a_callback_waiting_and_closing_are_refused_and_progress_does_nothing)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t pending = WEFT_OP_INIT;
    inside_t in = {.rt = rt, .op = &pending};
    weft_op_t op = {.fn = try_things, .user = &in};
    CHECK_OK(fake_post(rt, FAKE_WAITS, &pending));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
    weft_runtime_progress(rt);
    CHECK_EQ(in.calls, 1);
    CHECK_EQ(in.wait, WEFT_ERR_STATE);
    CHECK_EQ(in.close, WEFT_ERR_STATE);
    CHECK_EQ(in.progress, 0);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(pending.status, WEFT_ERR_CLOSED);
}

TEST(a_callback_of_one_runtime_may_post_on_another)
{
    weft_runtime_t *a = fake_open(0, 0), *b = fake_open(0, 0), *c = fake_open(WEFT_PROGRESS_THREAD, 0);
    told_t t = {0};
    weft_op_t on_b = {.fn = tell, .user = &t}, on_c = WEFT_OP_INIT, pending = WEFT_OP_INIT;
    inside_t in = {.rt = a, .op = &pending, .other = b, .on_other = &on_b};
    weft_op_t op = {.fn = try_things, .user = &in};
    CHECK_OK(fake_post(a, FAKE_AT_ONCE, &op));
    weft_runtime_progress(a);
    CHECK_EQ(t.calls, 0);
    weft_runtime_progress(b);
    CHECK_EQ(t.calls, 1);
    in.other = c;
    in.on_other = &on_c;
    CHECK_OK(fake_post(a, FAKE_AT_ONCE, &op));
    CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
    CHECK_OK(weft_op_wait(&on_c, WEFT_SECOND));
    CHECK_OK(weft_runtime_close(c));
    CHECK_OK(weft_runtime_close(b));
    CHECK_OK(weft_runtime_close(a));
}

/* --- random walks --------------------------------------------------------------------------------------------------------- */

enum { OPS = 64, STEPS = 20000 };

typedef struct actor {
    weft_op_t op;
    unsigned posts, told;
    bool with_fn;
} actor_t;

static void actor_told(weft_op_t *op, void *user)
{
    actor_t *a = user;
    CHECK(&a->op == op);
    a->told++;
    CHECK_EQ(a->told, a->posts);
}

TEST(random_posts_cancels_deadlines_and_events_tell_each_post_once)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        wefti_rng_t rng = {seed};
        weft_runtime_t *rt = fake_open_virtual();
        actor_t *actors = calloc(OPS, sizeof *actors);
        uint64_t posts = 0;
        for (int i = 0; i < OPS; i++)
            if ((actors[i].with_fn = i % 2)) {
                actors[i].op.fn = actor_told;
                actors[i].op.user = &actors[i];
            }
        for (int step = 0; step < STEPS; step++) {
            actor_t *a = &actors[wefti_rng_below(&rng, OPS)];
            switch (wefti_rng_below(&rng, 6)) {
            case 0:
            case 1:
                if (weft_op_done(&a->op)) {
                    a->op.timeout_ns = wefti_rng_below(&rng, 3) ? 0 : 1 + wefti_rng_below(&rng, 5000);
                    if (fake_post(rt, (fake_how_t)wefti_rng_below(&rng, 4), &a->op))
                        break;
                    a->posts++;
                    posts++;
                    a->told += a->with_fn ? 0 : 1;
                }
                break;
            case 2:
                weft_op_cancel(&a->op);
                break;
            case 3:
                fake_event(rt, 1 + (unsigned)wefti_rng_below(&rng, 3));
                break;
            case 4:
                atomic_fetch_add(&fake_of(rt)->now, wefti_rng_below(&rng, 1000));
                break;
            default:
                weft_runtime_progress(rt);
            }
        }
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        weft_runtime_get_stats(rt, &stats);
        CHECK_EQ(stats.ops_posted, posts);
        CHECK_OK(weft_runtime_close(rt));
        for (int i = 0; i < OPS; i++) {
            CHECK(weft_op_done(&actors[i].op));
            CHECK_EQ(actors[i].told, actors[i].posts);
        }
        free(actors);
    }
}
