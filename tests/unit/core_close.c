/* tests/unit/core_close.c - closing a runtime with everything under way: each operation completes once, and nothing comes after.
 * ctest: label=thread */
#include "test.h"

#include <pthread.h>

#include "base/alloc.h"
#include "fake_fabric.h"

enum { OPS = 200 };

typedef struct late {
    weft_runtime_t *rt;
    unsigned told, refused;
} late_t;

static void told(weft_op_t *op, void *user)
{
    late_t *l = user;
    l->told++;
    CHECK_EQ(op->status, WEFT_ERR_CLOSED);
    l->refused += fake_post(l->rt, FAKE_WAITS, op) == WEFT_ERR_CLOSED;
}

static void close_with_all(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    late_t l = {.rt = rt};
    weft_op_t *ops = calloc(OPS, sizeof *ops);
    weft_op_t timer = WEFT_OP_INIT, group = WEFT_OP_INIT, never = WEFT_OP_INIT;
    weft_op_t *members[] = {&ops[0], &never};
    weft_token_t *token;
    CHECK_OK(weft_token_new(rt, NULL, &token));
    for (int i = 0; i < OPS; i++) {
        if (i % 2) {
            ops[i].fn = told;
            ops[i].user = &l;
        }
        ops[i].timeout_ns = i % 3 ? 0 : 100 * WEFT_SECOND;
        ops[i].token = i % 5 ? NULL : token;
        CHECK_OK(fake_post(rt, i % 7 ? FAKE_WAITS : FAKE_STUBBORN, &ops[i]));
    }
    CHECK_OK(weft_timer_start(rt, 100 * WEFT_SECOND, &timer));
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, members, 2, &group));
    weft_op_cancel(&ops[7 * 3]);
    CHECK_OK(weft_runtime_close(rt));
    for (int i = 0; i < OPS; i++)
        CHECK(weft_op_done(&ops[i]));
    CHECK_EQ(l.told, OPS / 2);
    CHECK_EQ(l.refused, OPS / 2);
    CHECK_EQ(timer.status, WEFT_ERR_CLOSED);
    CHECK_EQ(group.status, WEFT_ERR_CLOSED);
    CHECK(weft_op_done(&timer) && weft_op_done(&group));
    weft_token_drop(token);
    free(ops);
}

TEST(closing_completes_everything_under_way_on_a_caller_driven_runtime)
{
    close_with_all(WEFT_PROGRESS_CALLER);
}

TEST(closing_completes_everything_under_way_on_a_thread_driven_runtime)
{
    close_with_all(WEFT_PROGRESS_THREAD);
}

TEST(closing_null_is_allowed)
{
    CHECK_OK(weft_runtime_close(NULL));
}

TEST(closing_an_armed_runtime_and_one_that_was_never_driven_works)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_LOOP, 0);
    CHECK_OK(weft_runtime_arm(rt));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_OK(weft_runtime_close(fake_open_virtual()));
    CHECK_OK(weft_runtime_close(fake_open(WEFT_PROGRESS_THREAD, 0)));
}

TEST(a_fabric_that_does_not_let_go_is_left_after_a_bound)
{
    weft_runtime_t *rt = fake_open_virtual();
    fake_of(rt)->hangs = true;
    weft_log_set_level(WEFT_LOG_NONE);
    CHECK_OK(weft_runtime_close(rt));
}

static unsigned allocs, fail_at;
static int fails_once(size_t n)
{
    (void)n;
    return allocs++ == fail_at;
}

TEST(opening_without_memory_fails_and_leaks_nothing)
{
    /* run under asan to see the second half */
    for (fail_at = 0; fail_at < 2; fail_at++) {
        weft_runtime_t *rt = fake_open(0, 0);
        weft_token_t *token = NULL;
        weft_queue_t *q = NULL;
        allocs = 0;
        wefti_alloc_fails = fails_once;
        weft_status_t a = weft_token_new(rt, NULL, &token), b = weft_queue_new(rt, &q);
        wefti_alloc_fails = NULL;
        CHECK_EQ(a, fail_at == 0 ? WEFT_ERR_NOMEM : WEFT_OK);
        CHECK_EQ(b, fail_at == 1 ? WEFT_ERR_NOMEM : WEFT_OK);
        weft_token_drop(token);
        CHECK_OK(weft_queue_free(q));
        CHECK_OK(weft_runtime_close(rt));
    }
}
