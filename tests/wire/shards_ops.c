/* What a program puts operations together with, where they are of several shards of one runtime: queues, waits, tokens.
 * ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 250
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "spread.h"

enum { N = SPREAD_PEERS };

static const char *const ways[] = {"tcp", "shm"};
#define each_way(way) for (const char *const *way = ways; way < ways + 2; way++)

static spread_t s;

static void post(weft_op_t *op, int i, uint64_t *to)
{
    CHECK_OK(weft_msg_recv(s.theirs[i], to, sizeof *to, 7, WEFT_TAG_FULL, op));
}

static void send_to(int i, uint64_t value)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_msg_send(s.ours[i], &value, sizeof value, 7, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
}

static void nap(wefti_rng_t *rng, long most_ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)wefti_rng_below(rng, (uint64_t)most_ns)}, NULL);
}

/* --- queues --------------------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 400 };

static void *sends(void *arg)
{
    wefti_rng_t rng = {.state = 5};
    (void)arg;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++)
            send_to(i, round << 8 | (unsigned)i);
        if (round % 16 == 0)
            nap(&rng, 2000000);
    }
    return NULL;
}

TEST(one_queue_gets_what_all_shards_complete_each_once_and_in_the_order_of_its_endpoint)
{
    each_way(way) {
        weft_op_t ops[N] = {{0}}, *got[8];
        uint64_t values[N], next[N] = {0};
        weft_queue_t *q;
        pthread_t sender;
        spread_open(&s, *way);
        CHECK_OK(weft_queue_new(s.server, &q));
        for (int i = 0; i < N; i++) {
            ops[i].queue = q;
            post(&ops[i], i, &values[i]);
        }
        CHECK_EQ(pthread_create(&sender, NULL, sends, NULL), 0);
        for (size_t all = 0; all < (size_t)N * ROUNDS;) {
            size_t n = weft_queue_pop(q, got, 8, 30 * WEFT_SECOND);
            CHECK(n > 0);
            all += n;
            for (size_t j = 0; j < n; j++) {
                int i = (int)(got[j] - ops);
                CHECK_OK(ops[i].status);
                CHECK_EQ(values[i], next[i] << 8 | (unsigned)i);
                if (++next[i] < ROUNDS)
                    post(&ops[i], i, &values[i]);
            }
        }
        CHECK_EQ(weft_queue_pop(q, got, 8, WEFT_MILLISECOND), 0);
        pthread_join(sender, NULL);
        CHECK_OK(weft_queue_free(q));
        spread_check_wakeups(s.server);
        spread_close(&s);
    }
}

TEST(the_fd_of_a_queue_is_readable_whichever_shard_completes)
{
    weft_queue_t *q;
    weft_op_t ops[N] = {{0}}, *got;
    uint64_t value;
    spread_open(&s, "tcp");
    CHECK_OK(weft_queue_new(s.server, &q));
    struct pollfd p = {.fd = weft_queue_fd(q), .events = POLLIN};
    CHECK(p.fd >= 0);
    for (int i = 0; i < N; i++) {
        ops[i].queue = q;
        post(&ops[i], i, &value);
        CHECK_EQ(poll(&p, 1, 0), 0);
        send_to(i, 1);
        CHECK_EQ(poll(&p, 1, 30000), 1);
        TEST_UNTIL(weft_queue_pop(q, &got, 1, 0) == 1, 30);
        CHECK(got == &ops[i]);
        while (weft_queue_pop(q, &got, 1, 0)) /* the pop that finds nothing takes the fd's byte */
            CHECK(false);
        TEST_UNTIL(!weft_queue_pop(q, &got, 1, 0) && poll(&p, 1, 0) == 0, 30);
    }
    CHECK_OK(weft_queue_free(q));
    spread_close(&s);
}

TEST(a_queue_can_be_freed_when_its_last_operation_is_popped_and_not_before)
{
    weft_queue_t *q;
    weft_op_t *got[N];
    uint64_t values[N];
    spread_open(&s, "shm");
    for (int round = 0; round < 300; round++) {
        weft_op_t ops[N] = {{0}};
        CHECK_OK(weft_queue_new(s.server, &q));
        for (int i = 0; i < N; i++) {
            ops[i].queue = q;
            post(&ops[i], i, &values[i]);
        }
        CHECK_EQ(weft_queue_free(q), WEFT_ERR_STATE);
        for (int i = 0; i < N; i++)
            weft_op_cancel(&ops[i]);
        for (size_t all = 0; all < N;)
            all += weft_queue_pop(q, got, N, 30 * WEFT_SECOND);
        CHECK_OK(weft_queue_free(q));
    }
    spread_close(&s);
}

TEST(a_queue_of_another_runtime_is_refused)
{
    weft_queue_t *q;
    weft_token_t *t;
    weft_op_t op = WEFT_OP_INIT;
    uint64_t value;
    spread_open(&s, "tcp");
    CHECK_OK(weft_queue_new(s.client, &q));
    CHECK_OK(weft_token_new(s.client, NULL, &t));
    op.queue = q;
    CHECK_EQ(weft_msg_recv(s.theirs[0], &value, sizeof value, 7, WEFT_TAG_FULL, &op), WEFT_ERR_INVALID);
    op.queue = NULL;
    op.token = t;
    CHECK_EQ(weft_msg_recv(s.theirs[0], &value, sizeof value, 7, WEFT_TAG_FULL, &op), WEFT_ERR_INVALID);
    CHECK_OK(weft_queue_free(q));
    weft_token_drop(t);
    spread_close(&s);
}

/* --- waits ---------------------------------------------------------------------------------------------------------------- */

static _Atomic int turn;

/* Sends one value to the endpoint that `turn` names, after a while in which the other thread may have fallen asleep. */
static void *sends_in_turn(void *arg)
{
    wefti_rng_t rng = {.state = 9};
    (void)arg;
    for (int i; (i = atomic_load(&turn)) != -1;) {
        if (i < 0)
            continue;
        nap(&rng, 300000);
        atomic_store(&turn, -2);
        send_to(i, (unsigned)i);
    }
    return NULL;
}

TEST(a_wait_for_any_ends_with_an_operation_of_whichever_shard)
{
    each_way(way) {
        weft_op_t ops[N] = {{0}}, *all[N];
        uint64_t values[N];
        wefti_rng_t rng = {.state = 1};
        pthread_t sender;
        spread_open(&s, *way);
        for (int i = 0; i < N; i++) {
            all[i] = &ops[i];
            post(&ops[i], i, &values[i]);
        }
        atomic_store(&turn, -2);
        CHECK_EQ(pthread_create(&sender, NULL, sends_in_turn, NULL), 0);
        for (int round = 0; round < 600; round++) {
            size_t i = wefti_rng_below(&rng, N), index = N;
            CHECK_EQ(weft_op_wait_any(all, N, round % 50 ? 0 : WEFT_MILLISECOND, &index), WEFT_ERR_PENDING);
            atomic_store(&turn, (int)i);
            CHECK_OK(weft_op_wait_any(all, N, 30 * WEFT_SECOND, &index));
            CHECK_EQ(index, i);
            CHECK_EQ(values[i], i);
            post(&ops[i], (int)i, &values[i]);
        }
        atomic_store(&turn, -1);
        pthread_join(sender, NULL);
        spread_check_wakeups(s.server);
        for (int i = 0; i < N; i++)
            weft_op_cancel(&ops[i]);
        CHECK_EQ(weft_op_wait_all(all, N, 30 * WEFT_SECOND), WEFT_ERR_CANCELLED);
        spread_close(&s);
    }
}

TEST(a_wait_for_all_ends_with_the_last_of_all_shards)
{
    each_way(way) {
        weft_op_t ops[N] = {{0}}, *all[N];
        uint64_t values[N];
        spread_open(&s, *way);
        for (int i = 0; i < N; i++)
            all[i] = &ops[i];
        for (unsigned round = 0; round < 200; round++) {
            for (int i = 0; i < N; i++)
                post(&ops[i], i, &values[i]);
            for (int i = 1; i < N; i++)
                send_to((i + (int)round) % N, round);
            CHECK_EQ(weft_op_wait_all(all, N, WEFT_MILLISECOND / 4), WEFT_ERR_PENDING);
            send_to((int)round % N, round);
            CHECK_OK(weft_op_wait_all(all, N, 30 * WEFT_SECOND));
            for (int i = 0; i < N; i++)
                CHECK_EQ(values[i], round);
        }
        spread_check_wakeups(s.server);
        spread_close(&s);
    }
}

TEST(operations_of_two_runtimes_are_not_waited_for_together)
{
    weft_op_t a = WEFT_OP_INIT, b = WEFT_OP_INIT, *both[2] = {&a, &b};
    uint64_t value[2];
    spread_open(&s, "tcp");
    CHECK_OK(weft_msg_recv(s.theirs[1], &value[0], sizeof value[0], 7, WEFT_TAG_FULL, &a));
    CHECK_OK(weft_msg_recv(s.ours[1], &value[1], sizeof value[1], 7, WEFT_TAG_FULL, &b));
    CHECK_EQ(weft_op_wait_any(both, 2, WEFT_SECOND, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_op_wait_all(both, 2, WEFT_SECOND), WEFT_ERR_INVALID);
    spread_close(&s);
}

/* --- tokens --------------------------------------------------------------------------------------------------------------- */

TEST(a_token_cancels_the_operations_of_all_shards_and_those_of_its_children)
{
    each_way(way) {
        spread_open(&s, *way);
        for (int round = 0; round < 100; round++) {
            weft_op_t ops[3 * N] = {{0}}, timer = WEFT_OP_INIT;
            weft_token_t *top, *child, *grandchild;
            uint64_t value;
            CHECK_OK(weft_token_new(s.server, NULL, &top));
            CHECK_OK(weft_token_new(s.server, top, &child));
            CHECK_OK(weft_token_new(s.server, child, &grandchild));
            for (int i = 0; i < 3 * N; i++) {
                ops[i].token = i % 3 == 0 ? top : i % 3 == 1 ? child : grandchild;
                post(&ops[i], i / 3, &value);
            }
            timer.token = grandchild;
            CHECK_OK(weft_timer_start(s.server, 1000 * WEFT_SECOND, &timer));
            weft_token_cancel(round % 2 ? top : child);
            CHECK_EQ(weft_op_wait(&timer, 30 * WEFT_SECOND), WEFT_ERR_CANCELLED);
            for (int i = 0; i < 3 * N; i++)
                if (round % 2 || i % 3)
                    CHECK_EQ(weft_op_wait(&ops[i], 30 * WEFT_SECOND), WEFT_ERR_CANCELLED);
            CHECK(weft_token_cancelled(grandchild));
            if (round % 2 == 0) {
                CHECK(!weft_token_cancelled(top));
                for (int i = 0; i < 3 * N; i += 3)
                    CHECK(!weft_op_done(&ops[i]));
                weft_token_cancel(top);
                for (int i = 0; i < 3 * N; i += 3)
                    CHECK_EQ(weft_op_wait(&ops[i], 30 * WEFT_SECOND), WEFT_ERR_CANCELLED);
            }
            post(&ops[0], 1, &value); /* with a token that is cancelled */
            CHECK_EQ(weft_op_wait(&ops[0], 30 * WEFT_SECOND), WEFT_ERR_CANCELLED);
            weft_token_drop(top);
            weft_token_drop(child);
            weft_token_drop(grandchild);
        }
        spread_close(&s);
    }
}

static weft_token_t *racing;

static void *cancels(void *arg)
{
    nap((wefti_rng_t *)arg, 200000);
    weft_token_cancel(racing);
    weft_token_drop(racing);
    return NULL;
}

TEST(a_cancel_beside_posts_and_messages_ends_each_operation_once)
{
    wefti_rng_t rng = {.state = 3}, theirs = {.state = 4};
    spread_open(&s, "shm");
    for (int round = 0; round < 400; round++) {
        weft_op_t ops[N] = {{0}}, *got[N];
        uint64_t values[N];
        weft_token_t *parent;
        weft_queue_t *q;
        pthread_t thread;
        int ok = 0;
        CHECK_OK(weft_queue_new(s.server, &q));
        CHECK_OK(weft_token_new(s.server, NULL, &parent));
        CHECK_OK(weft_token_new(s.server, round % 2 ? parent : NULL, &racing));
        weft_token_t *token = racing;
        weft_token_hold(token); /* the other thread drops its own */
        CHECK_EQ(pthread_create(&thread, NULL, cancels, &theirs), 0);
        for (int i = 0; i < N; i++) {
            ops[i].token = token;
            ops[i].queue = q;
            post(&ops[i], i, &values[i]);
            if (wefti_rng_below(&rng, 2))
                send_to(i, 1);
        }
        weft_token_drop(token); /* the operations that are under way hold it */
        for (size_t all = 0; all < N;) {
            size_t n = weft_queue_pop(q, got, N, 30 * WEFT_SECOND);
            CHECK(n > 0);
            all += n;
            for (size_t j = 0; j < n; j++) {
                CHECK(got[j]->status == WEFT_OK || got[j]->status == WEFT_ERR_CANCELLED);
                ok += got[j]->status == WEFT_OK;
            }
        }
        pthread_join(thread, NULL);
        CHECK_EQ(weft_queue_pop(q, got, N, 0), 0);
        CHECK_OK(weft_queue_free(q));
        weft_token_drop(parent);
        for (int i = 0; i < N; i++) { /* what no receive got is taken now */
            weft_op_t rest = WEFT_OP_INIT;
            weft_msg_envelope_t envelope;
            while (!weft_msg_probe(s.server, s.theirs[i], 7, WEFT_TAG_FULL, &envelope)) {
                post(&rest, i, &values[i]);
                CHECK_OK(weft_op_wait(&rest, 30 * WEFT_SECOND));
            }
        }
        CHECK(ok <= N);
    }
    spread_close(&s);
}

/* --- the end -------------------------------------------------------------------------------------------------------------- */

typedef struct waiter {
    pthread_t thread;
    weft_op_t ops[N], *all[N];
    uint64_t values[N];
    weft_queue_t *queue;
    int how;
    _Atomic bool *go;
} waiter_t;

static bool ended(weft_status_t st)
{
    return st == WEFT_ERR_CLOSED || st == WEFT_ERR_PEER;
}

static void *waits(void *arg)
{
    waiter_t *w = arg;
    size_t index;
    weft_status_t st;
    atomic_store(w->go, true);
    switch (w->how) {
    case 0: /* with what completed before the close it goes on, until all are done */
        while (!(st = weft_op_wait_any(w->all, N, 60 * WEFT_SECOND, &index)) && !w->ops[index].status)
            w->all[index] = NULL;
        CHECK_OK(st);
        CHECK(ended(weft_op_wait_all(w->all, N, 60 * WEFT_SECOND)));
        break;
    case 1:
        CHECK(ended(weft_op_wait_all(w->all, N, 60 * WEFT_SECOND)));
        break;
    default:
        for (size_t n = 0; n < N;) {
            weft_op_t *got[N];
            size_t some = weft_queue_pop(w->queue, got, N, 60 * WEFT_SECOND);
            for (size_t j = 0; j < some; j++)
                CHECK(ended(got[j]->status) || !got[j]->status);
            n += some;
        }
    }
    for (int i = 0; i < N; i++)
        CHECK(weft_op_done(&w->ops[i]));
    return NULL;
}

TEST(closing_ends_all_waits_for_all_shards)
{
    wefti_rng_t rng = {.state = 77};
    for (int round = 0; round < 30; round++) {
        static waiter_t w[3];
        weft_token_t *token;
        _Atomic bool go[3] = {false};
        spread_open(&s, ways[round % 2]);
        memset(w, 0, sizeof w);
        CHECK_OK(weft_token_new(s.server, NULL, &token));
        CHECK_OK(weft_queue_new(s.server, &w[2].queue));
        for (int k = 0; k < 3; k++) {
            w[k].how = k;
            w[k].go = &go[k];
            for (int i = 0; i < N; i++) {
                w[k].all[i] = &w[k].ops[i];
                w[k].ops[i].token = i % 2 ? token : NULL;
                w[k].ops[i].queue = w[k].queue;
                post(&w[k].ops[i], i, &w[k].values[i]);
            }
            CHECK_EQ(pthread_create(&w[k].thread, NULL, waits, &w[k]), 0);
        }
        for (int k = 0; k < 3; k++)
            TEST_UNTIL(atomic_load(&go[k]), 30);
        if (round % 3)
            for (int i = 0; i < N / 2; i++)
                send_to((int)wefti_rng_below(&rng, N), 1);
        nap(&rng, 1000000);
        CHECK_OK(weft_runtime_close(round % 5 ? s.server : s.client));
        if (round % 5 == 0) { /* the peer goes first: receives end with that */
            for (int k = 0; k < 3; k++)
                for (int i = 0; i < N; i++)
                    TEST_UNTIL(weft_op_done(&w[k].ops[i]), 30);
        }
        for (int k = 0; k < 3; k++)
            pthread_join(w[k].thread, NULL);
        weft_token_cancel(token);
        weft_token_drop(token);
        CHECK_OK(weft_queue_free(w[2].queue));
        CHECK_OK(weft_runtime_close(round % 5 ? s.client : s.server));
    }
}
