/* tests/unit/core_fork.c - in a forked child every call on the parent's runtime says so, and none of them touches the fabric.
 * ctest: no-tsan (TSan does not follow a fork of several threads) */
#include "test.h"

#include "fake_fabric.h"

static void in_child(weft_runtime_t *rt, weft_op_t *pending, weft_queue_t *q, weft_token_t *token)
{
    weft_op_t op = WEFT_OP_INIT, *list[] = {pending};
    weft_token_t *t;
    weft_queue_t *q2;
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    CHECK_EQ(fake_post(rt, FAKE_WAITS, &op), WEFT_ERR_FORKED);
    CHECK(strstr(weft_last_error(), "fork"));
    CHECK_EQ(weft_timer_start(rt, 1, &op), WEFT_ERR_FORKED);
    CHECK_EQ(weft_op_wait(pending, WEFT_FOREVER), WEFT_ERR_FORKED);
    CHECK_EQ(weft_op_wait_any(list, 1, WEFT_FOREVER, NULL), WEFT_ERR_FORKED);
    CHECK_EQ(weft_op_wait_all(list, 1, WEFT_FOREVER), WEFT_ERR_FORKED);
    weft_op_cancel(pending);
    CHECK(!weft_op_done(pending));
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, list, 1, &op), WEFT_ERR_FORKED);
    CHECK_EQ(weft_token_new(rt, NULL, &t), WEFT_ERR_FORKED);
    weft_token_cancel(token);
    CHECK(!weft_token_cancelled(token));
    CHECK_EQ(weft_queue_new(rt, &q2), WEFT_ERR_FORKED);
    CHECK_EQ(weft_queue_pop(q, list, 1, WEFT_FOREVER), 0);
    CHECK_EQ(weft_queue_fd(q), WEFT_ERR_FORKED);
    CHECK_EQ(weft_queue_free(q), WEFT_ERR_FORKED);
    CHECK_EQ(weft_runtime_progress(rt), 0);
    CHECK_EQ(weft_runtime_fd(rt), WEFT_ERR_FORKED);
    CHECK_EQ(weft_runtime_arm(rt), WEFT_ERR_FORKED);
    CHECK_EQ(weft_runtime_next_timeout(rt), WEFT_FOREVER);
    weft_runtime_get_stats(rt, &stats);
    CHECK_EQ(stats.ops_posted, 0);
    CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_FORKED);
    weft_runtime_t *own = fake_open(0, 0); /* a new one works */
    CHECK_OK(fake_post(own, FAKE_AT_ONCE, &op));
    CHECK_OK(weft_op_wait(&op, 0));
    CHECK_OK(weft_runtime_close(own));
    _exit(0);
}

static void fork_with(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    weft_op_t pending = WEFT_OP_INIT;
    weft_queue_t *q;
    weft_token_t *token;
    CHECK_OK(weft_queue_new(rt, &q));
    CHECK_OK(weft_token_new(rt, NULL, &token));
    CHECK_OK(fake_post(rt, FAKE_WAITS, &pending));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        alarm(20);
        in_child(rt, &pending, q, token);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fake_event(rt, 1); /* the parent's goes on */
    weft_status_t st = weft_op_wait(&pending, 100 * WEFT_MILLISECOND);
    if (st) { /* the event may have come before a thread had started the operation */
        fake_event(rt, 1);
        st = weft_op_wait(&pending, WEFT_SECOND);
    }
    CHECK_OK(st);
    weft_token_drop(token);
    CHECK_OK(weft_queue_free(q));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_forked_child_gets_a_clear_status_from_every_call_on_a_caller_driven_runtime)
{
    fork_with(WEFT_PROGRESS_CALLER);
}

TEST(a_forked_child_gets_a_clear_status_from_every_call_on_a_thread_driven_runtime)
{
    fork_with(WEFT_PROGRESS_THREAD);
}
