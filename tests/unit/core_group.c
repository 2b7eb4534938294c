/* tests/unit/core_group.c - groups and links complete once, after what they are made of, whatever the order.
 * ctest: label=thread */
#include "test.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "fake_fabric.h"

static void post_all(weft_runtime_t *rt, weft_op_t *ops, weft_op_t **list, int n)
{
    for (int i = 0; i < n; i++) {
        list[i] = &ops[i];
        CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[i]));
    }
}

TEST(all_completes_when_all_have_and_counts_the_successes)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[3] = {{0}}, *list[3], group = WEFT_OP_INIT;
    post_all(rt, ops, list, 3);
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 3, &group));
    fake_event(rt, 2);
    CHECK_EQ(weft_op_wait(&group, 5 * WEFT_MILLISECOND), WEFT_ERR_PENDING);
    fake_event(rt, 1);
    CHECK_OK(weft_op_wait(&group, WEFT_SECOND));
    CHECK_EQ(group.len, 3);
    for (int i = 0; i < 3; i++)
        CHECK(weft_op_done(&ops[i]));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(all_tells_the_first_failure)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[3] = {{0}}, *list[3], group = WEFT_OP_INIT;
    ops[2].timeout_ns = WEFT_MILLISECOND;
    post_all(rt, ops, list, 3);
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 3, &group));
    CHECK_EQ(weft_op_wait(&ops[2], WEFT_SECOND), WEFT_ERR_TIMEOUT);
    weft_op_cancel(&ops[0]);
    CHECK(!weft_op_done(&group));
    fake_event(rt, 1);
    CHECK_EQ(weft_op_wait(&group, WEFT_SECOND), WEFT_ERR_TIMEOUT);
    CHECK(weft_op_done(&group));
    CHECK_EQ(group.len, 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(any_completes_with_the_first_success_after_the_rest_let_go)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[3] = {{0}}, *list[3] = {&ops[0], &ops[1], &ops[2]}, group = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_STUBBORN, &ops[0]));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[1])); /* done before the group begins */
    CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[2]));
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ANY, list, 3, &group));
    weft_runtime_progress(rt);
    CHECK_EQ(ops[2].status, WEFT_ERR_CANCELLED);
    CHECK(!weft_op_done(&ops[0]) && !weft_op_done(&group));
    fake_event(rt, 1);
    CHECK_OK(weft_op_wait(&group, WEFT_SECOND));
    CHECK_EQ(group.winner, 1);
    CHECK_EQ(group.len, 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(any_of_failures_tells_the_last)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[2] = {{0}}, *list[2], group = WEFT_OP_INIT;
    ops[1].timeout_ns = 2 * WEFT_MILLISECOND;
    post_all(rt, ops, list, 2);
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ANY, list, 2, &group));
    weft_op_cancel(&ops[0]);
    CHECK_EQ(weft_op_wait(&group, WEFT_SECOND), WEFT_ERR_TIMEOUT);
    CHECK(weft_op_done(&group));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(all_or_none_cancels_the_rest_at_the_first_failure)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[4] = {{0}}, never = WEFT_OP_INIT, *list[5], group = WEFT_OP_INIT;
    ops[1].timeout_ns = WEFT_MILLISECOND;
    post_all(rt, ops, list, 4);
    list[4] = &never; /* was to be posted later */
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL_OR_NONE, list, 5, &group));
    CHECK_EQ(weft_op_wait(&group, WEFT_SECOND), WEFT_ERR_TIMEOUT);
    for (int i = 0; i < 4; i++)
        CHECK(weft_op_done(&ops[i]));
    CHECK_EQ(ops[3].status, WEFT_ERR_CANCELLED);
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &never)); /* the group's no longer */
    CHECK(weft_op_done(&never));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(members_may_be_posted_after_the_group)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[2] = {{0}}, *list[] = {&ops[0], &ops[1]}, group = WEFT_OP_INIT;
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 2, &group));
    weft_runtime_progress(rt);
    CHECK(!weft_op_done(&group));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[0]));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[1]));
    CHECK_OK(weft_op_wait(&group, WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
}

/* A post that needs no driver asks wefti_op_plain(): on a thread-driven runtime it could be over before the group has begun. */
TEST(a_member_that_is_posted_behind_its_group_is_posted_over_the_driver)
{
    for (int thread = 0; thread < 2; thread++) {
        weft_runtime_t *rt = fake_open(thread ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER, 0);
        weft_op_t ops[2] = {{0}}, *list[2] = {&ops[0], &ops[1]}, group = WEFT_OP_INIT, other = WEFT_OP_INIT;
        CHECK(wefti_op_plain(rt, &ops[0]));
        CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 2, &group));
        CHECK(!wefti_op_plain(rt, &ops[0]) && !wefti_op_plain(rt, &ops[1]));
        CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, &list[1], 1, &other), WEFT_ERR_STATE);
        CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[0]));
        weft_op_cancel(&group);
        CHECK_EQ(weft_op_wait(&group, 10 * WEFT_SECOND), WEFT_ERR_CANCELLED);
        CHECK(wefti_op_plain(rt, &ops[1])); /* it is a member no longer */
        CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, &list[1], 1, &other));
        CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[1]));
        CHECK_OK(weft_op_wait(&other, 10 * WEFT_SECOND));
        CHECK_OK(weft_runtime_close(rt));
    }
}

TEST(cancelling_a_group_or_its_deadline_ends_its_members_first)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[2] = {{0}}, *list[2], group = WEFT_OP_INIT;
    post_all(rt, ops, list, 2);
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 2, &group));
    weft_op_cancel(&group);
    CHECK_EQ(weft_op_wait(&group, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_EQ(ops[0].status, WEFT_ERR_CANCELLED);
    group.timeout_ns = WEFT_MILLISECOND;
    CHECK_OK(fake_post(rt, FAKE_STUBBORN, &ops[0]));
    CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[1]));
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ANY, list, 2, &group));
    CHECK_EQ(weft_op_wait(&ops[1], WEFT_SECOND), WEFT_ERR_TIMEOUT);
    CHECK(!weft_op_done(&group));
    fake_event(rt, 1);
    CHECK_EQ(weft_op_wait(&group, WEFT_SECOND), WEFT_ERR_TIMEOUT);
    CHECK(weft_op_done(&group));
    CHECK_OK(weft_runtime_close(rt));
}

static void nobody(weft_op_t *op, void *user)
{
    (void)op;
    (void)user;
}

static int no_memory(size_t n)
{
    (void)n;
    return 1;
}

TEST(bad_groups_are_refused_and_leave_nothing_behind)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t ops[2] = {{0}}, with_fn = {.fn = nobody};
    weft_op_t *list[2], *twice[] = {&ops[0], &ops[0]}, *bad[] = {&with_fn}, *null[] = {NULL};
    weft_op_t group = WEFT_OP_INIT, second = WEFT_OP_INIT, *self[] = {&group};
    post_all(rt, ops, list, 2);
    CHECK_EQ(weft_group_start(rt, (weft_group_mode_t)9, list, 2, &group), WEFT_ERR_INVALID);
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ANY, list, 0, &group), WEFT_ERR_INVALID);
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, bad, 1, &group), WEFT_ERR_INVALID);
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, null, 1, &group), WEFT_ERR_INVALID);
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, self, 1, &group), WEFT_ERR_INVALID);
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, twice, 2, &group), WEFT_ERR_STATE);
    wefti_alloc_fails = no_memory;
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, list, 2, &group), WEFT_ERR_NOMEM);
    wefti_alloc_fails = NULL;
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 2, &group));
    CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, list, 2, &second), WEFT_ERR_STATE);
    fake_event(rt, 2);
    CHECK_OK(weft_op_wait(&group, WEFT_SECOND));
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, NULL, 0, &second)); /* all of none */
    CHECK_OK(weft_op_wait(&second, 0));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_member_that_is_there_twice_is_refused_by_the_post_in_every_mode)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t ops[40] = {{0}}, *list[40], group = WEFT_OP_INIT;
    weft_runtime_t *rt;
    for (int i = 0; i < 40; i++)
        list[i] = &ops[i];
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_THREAD; mode++) {
        opts.progress = (weft_progress_mode_t)mode;
        CHECK_OK(weft_runtime_open(&opts, &rt));
        for (int i = 1; i < 40; i++) {
            list[i] = &ops[i / 3];
            CHECK_EQ(weft_group_start(rt, WEFT_GROUP_ALL, list, 40, &group), WEFT_ERR_STATE);
            CHECK(strstr(weft_last_error(), "twice"));
            CHECK(weft_op_done(&group));
            list[i] = &ops[i];
        }
        for (int i = 0; i < 40; i++)
            CHECK_OK(weft_timer_start(rt, 0, &ops[i]));
        CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 40, &group)); /* nothing was left behind */
        CHECK_OK(weft_op_wait(&group, 10 * WEFT_SECOND));
        CHECK_EQ(group.len, 40);
        CHECK_OK(weft_runtime_close(rt));
    }
}

TEST(a_member_may_be_freed_as_soon_as_it_is_done)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_op_t *list[8], group = WEFT_OP_INIT;
    for (int i = 0; i < 8; i++) {
        list[i] = calloc(1, sizeof **list);
        CHECK_OK(fake_post(rt, FAKE_WAITS, list[i]));
    }
    CHECK_OK(weft_group_start(rt, WEFT_GROUP_ALL, list, 8, &group));
    for (int i = 0; i < 7; i++) {
        fake_event(rt, 1);
        CHECK_OK(weft_op_wait(list[i], WEFT_SECOND));
        free(list[i]);
    }
    weft_op_cancel(&group);
    CHECK_EQ(weft_op_wait(&group, WEFT_SECOND), WEFT_ERR_CANCELLED);
    free(list[7]);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- threads --------------------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 1000 };
#else
enum { ROUNDS = 10000 };
#endif

typedef struct feed {
    weft_runtime_t *rt;
    _Atomic bool stop;
} feed_t;

static void *feed(void *arg)
{
    feed_t *f = arg;
    while (!atomic_load(&f->stop)) {
        fake_event(f->rt, 2);
        usleep(5);
    }
    return NULL;
}

TEST(groups_made_waited_for_and_cancelled_by_another_thread_complete)
{
    feed_t f = {.rt = fake_open(WEFT_PROGRESS_THREAD, 0)};
    wefti_rng_t rng = {21};
    pthread_t id;
    CHECK(!pthread_create(&id, NULL, feed, &f));
    for (int round = 0; round < ROUNDS; round++) {
        weft_op_t ops[4] = {{0}}, group = WEFT_OP_INIT, *list[] = {&ops[0], &ops[1], &ops[2], &ops[3]};
        for (int i = 0; i < 4; i++)
            CHECK_OK(fake_post(f.rt, wefti_rng_below(&rng, 2) ? FAKE_WAITS : FAKE_AT_ONCE, &ops[i]));
        CHECK_OK(weft_group_start(f.rt, (weft_group_mode_t)(1 + wefti_rng_below(&rng, 3)), list, 3 + wefti_rng_below(&rng, 2),
                                  &group));
        switch (wefti_rng_below(&rng, 4)) {
        case 0:
            weft_op_cancel(&ops[3]);
            break;
        case 1:
            weft_op_cancel(&group);
            break;
        case 2:
            weft_op_wait(&ops[0], 1 + wefti_rng_below(&rng, 20000));
            weft_op_cancel(&ops[0]);
            break;
        default:
            break;
        }
        weft_op_wait(&group, 20 * WEFT_SECOND);
        CHECK(weft_op_done(&group));
        weft_op_wait(&ops[3], 20 * WEFT_SECOND); /* it may be no member */
        for (int i = 0; i < 4; i++)
            CHECK(weft_op_done(&ops[i]));
    }
    atomic_store(&f.stop, true);
    pthread_join(id, NULL);
    CHECK_OK(weft_runtime_close(f.rt));
}
