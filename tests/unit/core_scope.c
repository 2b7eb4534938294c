/* tests/unit/core_scope.c - a scope's close completes once, after the last has left.
 * ctest: label=thread */
#include "test.h"

#include <pthread.h>

#include "fake_fabric.h"

TEST(close_completes_when_the_last_has_left_and_refuses_newcomers)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_scope_t *scope;
    weft_op_t op = WEFT_OP_INIT, again = WEFT_OP_INIT;
    CHECK_OK(weft_scope_new(rt, &scope));
    CHECK_OK(weft_scope_enter(scope));
    CHECK_OK(weft_scope_enter(scope));
    CHECK_EQ(weft_scope_free(scope), WEFT_ERR_STATE);
    CHECK_OK(weft_scope_close(scope, &op));
    CHECK_EQ(weft_scope_close(scope, &again), WEFT_ERR_STATE);
    CHECK(weft_op_done(&again));
    CHECK_EQ(weft_scope_enter(scope), WEFT_ERR_CLOSED);
    weft_scope_leave(scope);
    CHECK(!weft_op_done(&op));
    weft_scope_leave(scope);
    CHECK_OK(weft_op_wait(&op, 0));
    CHECK_OK(weft_scope_free(scope));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(an_empty_scope_closes_at_once_and_one_never_entered_may_be_freed)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_scope_t *a, *b;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_scope_new(rt, &a));
    CHECK_OK(weft_scope_new(rt, &b));
    CHECK_OK(weft_scope_close(a, &op));
    CHECK_OK(weft_op_wait(&op, 0));
    CHECK_OK(weft_scope_free(a));
    CHECK_OK(weft_scope_free(b));
    CHECK_OK(weft_scope_free(NULL));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_close_that_is_cancelled_or_times_out_leaves_the_scope_closed)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_scope_t *scope;
    weft_op_t op = {.timeout_ns = WEFT_MILLISECOND};
    CHECK_OK(weft_scope_new(rt, &scope));
    CHECK_OK(weft_scope_enter(scope));
    CHECK_OK(weft_scope_close(scope, &op));
    CHECK_EQ(weft_op_wait(&op, WEFT_SECOND), WEFT_ERR_TIMEOUT);
    CHECK(weft_op_done(&op));
    CHECK_EQ(weft_scope_enter(scope), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_scope_free(scope), WEFT_ERR_STATE);
    weft_scope_leave(scope);
    CHECK_OK(weft_scope_free(scope));
    CHECK_OK(weft_runtime_close(rt));
}

static void hold(void *user)
{
    _Atomic int *step = user;
    atomic_store(step, 1);
    while (atomic_load(step) < 2)
        usleep(100);
}

TEST(whoever_frees_a_scope_too_early_hears_how_many_are_in_it)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t call = WEFT_OP_INIT, op = WEFT_OP_INIT;
    _Atomic int step = 0;
    weft_runtime_t *rt;
    weft_scope_t *scope;
    opts.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_OK(weft_scope_new(rt, &scope));
    CHECK_OK(weft_scope_enter(scope));
    CHECK_OK(weft_runtime_call(rt, hold, &step, &call));
    while (!atomic_load(&step))
        usleep(100);
    CHECK_OK(weft_scope_close(scope, &op)); /* and nobody has begun with it */
    CHECK_EQ(weft_scope_free(scope), WEFT_ERR_STATE);
    CHECK(strstr(weft_last_error(), "has 1 inside"));
    weft_scope_leave(scope);
    CHECK_EQ(weft_scope_free(scope), WEFT_ERR_STATE);
    CHECK(strstr(weft_last_error(), "on its way"));
    atomic_store(&step, 2);
    CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
    CHECK_OK(weft_scope_free(scope));
    CHECK_OK(weft_op_wait(&call, 10 * WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_freed_scope_says_so)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_scope_t *scope;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_scope_new(rt, &scope));
    CHECK_OK(weft_scope_close(scope, &op));
    CHECK_OK(weft_op_wait(&op, 0));
    weft_scope_leave(scope); /* nobody is in it: an error in the log, and nothing else */
    CHECK_OK(weft_scope_free(scope));
    CHECK_EQ(weft_scope_free(scope), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_scope_enter(scope), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_scope_close(scope, &op), WEFT_ERR_CLOSED);
    weft_scope_leave(scope);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(whoever_is_in_a_scope_may_leave_it_after_its_runtime_was_closed)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_scope_t *scope;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_scope_new(rt, &scope));
    CHECK_OK(weft_scope_enter(scope));
    CHECK_OK(weft_scope_close(scope, &op));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(op.status, WEFT_ERR_CLOSED);
    CHECK_EQ(weft_scope_free(scope), WEFT_ERR_STATE);
    weft_scope_leave(scope);
    CHECK_OK(weft_scope_free(scope));
}

enum { ROUNDS = 500, THREADS = 3 };

typedef struct visit {
    weft_scope_t *scope;
    _Atomic int inside;
    _Atomic bool closed;
} visit_t;

static void *visit(void *arg)
{
    visit_t *v = arg;
    while (!weft_scope_enter(v->scope)) {
        CHECK(!atomic_load(&v->closed));
        atomic_fetch_add(&v->inside, 1);
        CHECK(!atomic_load(&v->closed));
        atomic_fetch_sub(&v->inside, 1);
        weft_scope_leave(v->scope);
        sched_yield(); /* or it is a test of the scheduler, on two cores */
    }
    return NULL;
}

static void note_closed(weft_op_t *op, void *user)
{
    visit_t *v = user;
    CHECK_OK(op->status);
    CHECK_EQ(atomic_load(&v->inside), 0);
    atomic_store(&v->closed, true);
}

TEST(threads_enter_and_leave_while_it_is_closed)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_THREAD, 0);
    for (int round = 0; round < ROUNDS; round++) {
        visit_t v = {0};
        weft_op_t op = {.fn = note_closed, .user = &v};
        pthread_t ids[THREADS];
        CHECK_OK(weft_scope_new(rt, &v.scope));
        for (int i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&ids[i], NULL, visit, &v));
        if (round % 2)
            sched_yield();
        CHECK_OK(weft_scope_close(v.scope, &op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        while (!atomic_load(&v.closed))
            sched_yield();
        for (int i = 0; i < THREADS; i++)
            pthread_join(ids[i], NULL);
        CHECK_OK(weft_scope_free(v.scope));
    }
    CHECK_OK(weft_runtime_close(rt));
}
