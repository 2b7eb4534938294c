/* Groups whose members are operations of several shards: each completes once, after its last member, whatever comes first.
 * ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 250
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <weft/extend.h>

#include "base/rng.h"
#include "spread.h"

enum { N = SPREAD_PEERS };

static const char *const ways[] = {"tcp", "shm"};
#define each_way(way) for (const char *const *way = ways; way < ways + 2; way++)

static spread_t s;
static weft_op_t ops[N], *members[N];
static uint64_t values[N];

static void begin(const char *way)
{
    spread_open(&s, way);
    for (int i = 0; i < N; i++)
        members[i] = &ops[i];
}

static void clear(void)
{
    memset(ops, 0, sizeof ops);
}

static void post(int i)
{
    CHECK_OK(weft_msg_recv(s.theirs[i], &values[i], sizeof values[i], 7, WEFT_TAG_FULL, &ops[i]));
}

static void send_tagged(int i, uint64_t value, uint64_t tag)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_msg_send(s.ours[i], &value, sizeof value, tag, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
}

static void send_to(int i, uint64_t value)
{
    send_tagged(i, value, 7);
}

/* What no receive got is taken, so that the next round begins with nothing. */
static void drain(void)
{
    for (int i = 0; i < N; i++) {
        weft_msg_envelope_t envelope;
        while (!weft_msg_probe(s.server, s.theirs[i], 7, WEFT_TAG_FULL, &envelope)) {
            weft_op_t op = WEFT_OP_INIT;
            uint64_t value;
            CHECK_OK(weft_msg_recv(s.theirs[i], &value, sizeof value, 7, WEFT_TAG_FULL, &op));
            CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        }
    }
}

static void nap(wefti_rng_t *rng, long most_ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)wefti_rng_below(rng, (uint64_t)most_ns)}, NULL);
}

TEST(a_group_of_all_completes_with_the_last_of_all_shards)
{
    each_way(way) {
        begin(*way);
        for (unsigned round = 0; round < 300; round++) {
            weft_op_t group = WEFT_OP_INIT;
            clear();
            unsigned when = round % 3; /* members are posted before the group, after it, or some of each */
            for (int i = 0; i < N; i++)
                if (when == 0 || (when == 2 && i % 2))
                    post(i);
            if (round % 5 == 0)
                send_to(1, round); /* one that may be complete before the group is started */
            CHECK_OK(weft_group_start(s.server, WEFT_GROUP_ALL, members, N, &group));
            for (int i = 0; i < N; i++)
                if (when == 1 || (when == 2 && i % 2 == 0))
                    post(i);
            for (int i = 0; i < N - 1; i++)
                if (i != 1 || round % 5)
                    send_to(i, round);
            CHECK_EQ(weft_op_wait(&group, round % 20 ? 0 : WEFT_MILLISECOND), WEFT_ERR_PENDING);
            send_to(N - 1, round);
            CHECK_OK(weft_op_wait(&group, 30 * WEFT_SECOND));
            CHECK_EQ(group.count, N);
            for (int i = 0; i < N; i++) {
                CHECK(weft_op_done(&ops[i]));
                CHECK_EQ(values[i], round);
            }
        }
        spread_check_wakeups(s.server);
        spread_close(&s);
    }
}

TEST(the_first_of_any_shard_ends_a_group_of_any_and_its_members)
{
    each_way(way) {
        wefti_rng_t rng = {.state = 7};
        begin(*way);
        for (unsigned round = 0; round < 300; round++) {
            weft_op_t group = WEFT_OP_INIT;
            size_t i = wefti_rng_below(&rng, N);
            clear();
            for (int k = 0; k < N; k++)
                if (round % 2)
                    post(k);
            CHECK_OK(weft_group_start(s.server, WEFT_GROUP_ANY, members, N, &group));
            for (int k = 0; k < N; k++)
                if (round % 2 == 0 && (k != 3 || i == 3)) /* the fourth is never posted */
                    post(k);
            send_to((int)i, round);
            CHECK_OK(weft_op_wait(&group, 30 * WEFT_SECOND));
            CHECK_EQ(group.count, 1);
            CHECK_EQ(group.winner, i);
            for (size_t k = 0; k < N; k++) {
                CHECK(weft_op_done(&ops[k]));
                if (round % 2 || k != 3)
                    CHECK_EQ(ops[k].status, k == i ? WEFT_OK : WEFT_ERR_CANCELLED);
            }
            if (round % 2 == 0 && i != 3) { /* it has left the group, and can be posted like any other */
                post(3);
                send_to(3, 1);
                CHECK_OK(weft_op_wait(&ops[3], 30 * WEFT_SECOND));
            }
        }
        spread_close(&s);
    }
}

TEST(one_that_fails_on_any_shard_cancels_a_group_of_all_or_none)
{
    begin("shm");
    for (unsigned round = 0; round < 100; round++) {
        weft_op_t group = WEFT_OP_INIT;
        clear();
        int i = (int)round % N;
        ops[i].timeout_ns = WEFT_MILLISECOND;
        for (int k = 0; k < N; k++)
            post(k);
        CHECK_OK(weft_group_start(s.server, WEFT_GROUP_ALL_OR_NONE, members, N, &group));
        CHECK_EQ(weft_op_wait(&group, 30 * WEFT_SECOND), WEFT_ERR_TIMEOUT);
        CHECK_EQ(group.count, 0);
        for (int k = 0; k < N; k++)
            CHECK_EQ(ops[k].status, k == i ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED);
    }
    spread_close(&s);
}

TEST(timers_receives_from_any_endpoint_and_groups_are_members_too)
{
    begin("tcp");
    for (unsigned round = 0; round < 100; round++) {
        weft_op_t inner = WEFT_OP_INIT, outer = WEFT_OP_INIT, timer = WEFT_OP_INIT, any = WEFT_OP_INIT;
        uint64_t value;
        clear();
        for (int k = 0; k < N; k++)
            post(k);
        CHECK_OK(weft_group_start(s.server, WEFT_GROUP_ALL, members, N, &inner));
        weft_op_t *all[] = {&inner, &timer, &any};
        if (round % 2) {
            CHECK_OK(weft_timer_start(s.server, WEFT_MICROSECOND, &timer));
            CHECK_OK(weft_msg_recv_any(s.server, &value, sizeof value, 8, WEFT_TAG_FULL, &any));
        }
        CHECK_OK(weft_group_start(s.server, WEFT_GROUP_ALL, all, 3, &outer));
        if (round % 2 == 0) {
            CHECK_OK(weft_timer_start(s.server, WEFT_MICROSECOND, &timer));
            CHECK_OK(weft_msg_recv_any(s.server, &value, sizeof value, 8, WEFT_TAG_FULL, &any));
        }
        for (int k = 0; k < N; k++)
            send_to(k, round);
        CHECK(!weft_op_done(&outer));
        send_tagged((int)round % N, round, 8);
        CHECK_OK(weft_op_wait(&outer, 30 * WEFT_SECOND));
        CHECK_EQ(outer.count, 3);
        CHECK_EQ(inner.count, N);
    }
    spread_close(&s);
}

TEST(what_belongs_to_another_group_or_runtime_is_refused)
{
    weft_op_t a = WEFT_OP_INIT, b = WEFT_OP_INIT, c = WEFT_OP_INIT, foreign = WEFT_OP_INIT, *one[1] = {&foreign};
    uint64_t value;
    begin("tcp");
    clear();
    for (int k = 0; k < N / 2; k++)
        post(k);
    CHECK_OK(weft_group_start(s.server, WEFT_GROUP_ALL, members, N, &a));
    CHECK_EQ(weft_group_start(s.server, WEFT_GROUP_ALL, members + N / 2, 1, &b), WEFT_ERR_STATE); /* not posted yet */
    CHECK_OK(weft_group_start(s.server, WEFT_GROUP_ALL, members + 1, 1, &c));                     /* under way */
    CHECK_EQ(weft_op_wait(&c, 30 * WEFT_SECOND), WEFT_ERR_STATE);
    CHECK_OK(weft_msg_recv(s.ours[0], &value, sizeof value, 7, WEFT_TAG_FULL, &foreign));
    CHECK_EQ(weft_group_start(s.server, WEFT_GROUP_ALL, one, 1, &b), WEFT_ERR_INVALID);
    weft_op_cancel(&a);
    CHECK_EQ(weft_op_wait(&a, 30 * WEFT_SECOND), WEFT_ERR_CANCELLED);
    spread_close(&s);
}

/* --- races ---------------------------------------------------------------------------------------------------------------- */

static weft_op_t racing;

static void *cancels(void *arg)
{
    nap(arg, 200000);
    weft_op_cancel(&racing);
    return NULL;
}

static weft_status_t not_started(weft_op_t *op)
{
    (void)op;
    return WEFT_ERR_INVALID;
}

static void not_cancelled(weft_op_t *op, weft_status_t why)
{
    (void)op;
    (void)why;
    CHECK(false);
}

static void *posts_twice(void *arg)
{
    static const weft_op_kind_t kind = {.name = "nothing", .start = not_started, .cancel = not_cancelled};
    (void)arg;
    for (int k = 0; k < N; k += 2) { /* a post that fails halfway, and one that does not */
        CHECK_OK(weft_ext_op_prepare(s.server, &ops[k], &kind));
        sched_yield();
        weft_ext_op_unprepare(&ops[k]);
        post(k);
    }
    return NULL;
}

TEST(a_cancel_beside_posts_and_messages_ends_the_group_once)
{
    wefti_rng_t rng = {.state = 3}, theirs = {.state = 4};
    each_way(way) {
        begin(*way);
        for (int round = 0; round < 200; round++) {
            pthread_t thread, poster;
            clear();
            racing = (weft_op_t)WEFT_OP_INIT;
            if (round % 3 == 0)
                racing.timeout_ns = 1 + wefti_rng_below(&rng, 200000);
            for (int k = 1; k < N; k += 2)
                if (round % 2)
                    post(k);
            CHECK_OK(weft_group_start(s.server, (weft_group_mode_t)(1 + round % 3), members, N, &racing));
            CHECK_EQ(pthread_create(&thread, NULL, cancels, &theirs), 0);
            CHECK_EQ(pthread_create(&poster, NULL, posts_twice, NULL), 0);
            for (int k = 1; k < N; k += 2)
                if (round % 2 == 0)
                    post(k);
            for (int k = 0; k < N; k++)
                if (wefti_rng_below(&rng, 2))
                    send_to(k, 1);
            weft_status_t st = weft_op_wait(&racing, 30 * WEFT_SECOND);
            CHECK(!st || st == WEFT_ERR_CANCELLED || st == WEFT_ERR_TIMEOUT);
            pthread_join(thread, NULL);
            pthread_join(poster, NULL);
            for (int k = 0; k < N; k++) { /* those that left it are under way on their own */
                weft_op_cancel(&ops[k]);
                CHECK(weft_op_wait(&ops[k], 30 * WEFT_SECOND) != WEFT_ERR_PENDING);
            }
            drain();
        }
        spread_close(&s);
    }
}

static _Atomic int refused;

/* While another thread closes the runtime. */
static void *posts_late(void *arg)
{
    nap(arg, 300000);
    for (int k = 0; k < N - 2; k++) { /* two of them never */
        weft_status_t st = weft_msg_recv(s.theirs[k], &values[k], sizeof values[k], 7, WEFT_TAG_FULL, &ops[k]);
        CHECK(!st || st == WEFT_ERR_CLOSED);
        atomic_fetch_add(&refused, st != WEFT_OK);
    }
    return NULL;
}

TEST(closing_ends_a_group_whose_members_are_on_all_shards)
{
    wefti_rng_t rng = {.state = 9}, theirs = {.state = 10};
    for (int round = 0; round < 60; round++) {
        weft_op_t group = WEFT_OP_INIT;
        pthread_t poster;
        begin(ways[round % 2]);
        clear();
        for (int k = 0; k < N; k++)
            if (round % 3 == 0)
                post(k);
        CHECK_OK(weft_group_start(s.server, (weft_group_mode_t)(1 + round % 3), members, N, &group));
        if (round % 3)
            CHECK_EQ(pthread_create(&poster, NULL, posts_late, &theirs), 0);
        if (round % 4)
            for (int k = 0; k < N / 2; k++)
                send_to((int)wefti_rng_below(&rng, N), 1);
        nap(&rng, 400000);
        if (round % 5 == 0)
            CHECK_OK(weft_runtime_close(s.client));
        CHECK_OK(weft_runtime_close(s.server));
        CHECK(weft_op_done(&group));
        if (round % 3)
            pthread_join(poster, NULL);
        for (int k = 0; k < N; k++)
            CHECK(weft_op_done(&ops[k]));
        if (round % 5)
            CHECK_OK(weft_runtime_close(s.client));
    }
    CHECK(atomic_load(&refused) > 0); /* else nothing was late */
}
