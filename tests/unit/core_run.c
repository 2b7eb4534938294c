/* tests/unit/core_run.c - functions that are run on the driver. */
#include "test.h"

#include <pthread.h>
#include <string.h>

#include "fake_fabric.h"

typedef struct ran {
    weft_runtime_t *rt;
    _Atomic int calls;
    bool drove; /* it ran on the driver */
} ran_t;

static void note(void *user)
{
    ran_t *r = user;
    r->drove = wefti_driven == r->rt;
    atomic_fetch_add(&r->calls, 1);
}

TEST(a_function_runs_in_progress_and_never_inside_the_call)
{
    weft_runtime_t *rt = fake_open(0, 0);
    ran_t r = {.rt = rt};
    weft_op_t op = WEFT_OP_INIT;
    CHECK_EQ(weft_runtime_call(NULL, note, &r, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_runtime_call(rt, NULL, &r, &op), WEFT_ERR_INVALID);
    CHECK_OK(weft_runtime_call(rt, note, &r, &op));
    CHECK_OK(weft_runtime_call(rt, note, &r, NULL));
    CHECK_EQ(atomic_load(&r.calls), 0);
    CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
    weft_runtime_progress(rt);
    CHECK_EQ(atomic_load(&r.calls), 2);
    CHECK(r.drove);
    CHECK_OK(weft_runtime_close(rt));
    CHECK(weft_runtime_call(rt, note, &r, &op) == WEFT_ERR_CLOSED);
}

TEST(a_function_that_is_cancelled_or_too_late_does_not_run)
{
    weft_runtime_t *rt = fake_open(0, 0);
    ran_t r = {.rt = rt};
    weft_op_t op = WEFT_OP_INIT, before = WEFT_OP_INIT;
    CHECK_OK(weft_runtime_call(rt, note, &r, &op));
    weft_op_cancel(&op);
    CHECK_EQ(weft_op_wait(&op, WEFT_SECOND), WEFT_ERR_CANCELLED);
    weft_op_cancel(&before);
    CHECK_OK(weft_runtime_call(rt, note, &r, &before));
    CHECK_EQ(weft_op_wait(&before, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_EQ(atomic_load(&r.calls), 0);
    CHECK_OK(weft_runtime_close(rt));
}

enum { THREADS = 4, EACH = 2000 };

static void *call_many(void *arg)
{
    ran_t *r = arg;
    for (int i = 0; i < EACH; i++) {
        weft_op_t op = WEFT_OP_INIT;
        if (i % 2) {
            CHECK_OK(weft_runtime_call(r->rt, note, r, NULL));
            continue;
        }
        CHECK_OK(weft_runtime_call(r->rt, note, r, &op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
    }
    return NULL;
}

static void many(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    ran_t r = {.rt = rt};
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&ids[i], NULL, call_many, &r));
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    TEST_UNTIL((weft_runtime_progress(rt), atomic_load(&r.calls) == THREADS * EACH), 20);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(functions_of_many_threads_run_once_each_on_a_thread_driven_runtime)
{
    many(WEFT_PROGRESS_THREAD);
}

TEST(functions_of_many_threads_run_once_each_when_callers_drive)
{
    many(WEFT_PROGRESS_CALLER);
}

TEST(what_was_handed_in_before_the_close_runs_or_says_that_it_did_not)
{
    weft_runtime_t *rt = fake_open(0, 0);
    ran_t r = {.rt = rt};
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_runtime_call(rt, note, &r, &op));
    CHECK_OK(weft_runtime_call(rt, note, &r, NULL));
    CHECK_OK(weft_runtime_close(rt));
    CHECK(weft_op_done(&op));
    CHECK(op.status == WEFT_OK || op.status == WEFT_ERR_CLOSED);
    CHECK_EQ(atomic_load(&r.calls), op.status ? 0 : 2);
}
