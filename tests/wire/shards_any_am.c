/* Active messages received from any endpoint of a runtime with several shards: each once, whichever shard has it, and whatever
 * ends meanwhile. ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 250
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "spread.h"

enum { N = SPREAD_PEERS, LARGE = 200000 };

static const char *const ways[] = {"tcp", "shm"};
#define each_way(way) for (const char *const *way = ways; way < ways + 2; way++)

static spread_t s;
static uint8_t payload[LARGE];

static void send_to(int i, uint32_t id, uint64_t header, size_t len, weft_op_t *op)
{
    weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
    static _Thread_local uint64_t headers[4096];
    static _Thread_local unsigned at;
    uint64_t *h = &headers[at++ % 4096]; /* borrowed until op is complete */
    *h = header;
    o.id = id;
    o.header = h;
    o.header_len = sizeof *h;
    o.buf = payload;
    o.len = len;
    *op = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_am_send_with(s.ours[i], &o, op));
}

static uint64_t held(void)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(s.server, &stats));
    return stats.am_held;
}

static int sender_of(const weft_op_t *op)
{
    for (int i = 0; i < N; i++)
        if (weft_ep_id(s.theirs[i]) == op->from)
            return i;
    CHECK(false);
    return -1;
}

typedef struct want {
    weft_op_t op;
    uint64_t header;
    uint8_t into[LARGE];
} want_t;

static want_t wants[8];
enum { WANTS = 8 };

static void post(want_t *w, uint32_t id)
{
    weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
    o.id = id;
    o.header = &w->header;
    o.header_cap = sizeof w->header;
    o.buf = w->into;
    o.cap = sizeof w->into;
    CHECK_OK(weft_am_recv(s.server, &o, &w->op));
}

static void begin(const char *way)
{
    for (size_t i = 0; i < LARGE; i++)
        payload[i] = (uint8_t)(i * 31 + i / 253);
    memset(wants, 0, sizeof wants);
    spread_open(&s, way);
}

/* --- receives ------------------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 200 };

static void *sends(void *arg)
{
    (void)arg;
    for (uint64_t round = 0; round < ROUNDS; round++)
        for (int i = 0; i < N; i++) {
            weft_op_t op;
            send_to(i, round % 2 ? 5 : 70000, round, 40, &op); /* one that is found without hashing, and one that is not */
            CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
        }
    return NULL;
}

TEST(messages_of_each_endpoint_are_received_once_and_in_their_order)
{
    each_way(way) {
        uint64_t next[N] = {0};
        weft_op_t *got[WANTS];
        weft_queue_t *q;
        pthread_t sender;
        begin(*way);
        CHECK_OK(weft_queue_new(s.server, &q));
        CHECK_EQ(pthread_create(&sender, NULL, sends, NULL), 0);
        size_t posted = WANTS;
        for (int j = 0; j < WANTS; j++) {
            wants[j].op.queue = q;
            post(&wants[j], WEFT_AM_ANY_ID);
        }
        for (size_t left = (size_t)N * ROUNDS; left;) {
            size_t n = weft_queue_pop(q, got, WANTS, 30 * WEFT_SECOND);
            CHECK(n > 0);
            left -= n;
            for (size_t k = 0; k < n; k++) {
                want_t *w = (want_t *)(void *)got[k];
                CHECK_OK(w->op.status);
                int i = sender_of(&w->op);
                CHECK_EQ(w->header, next[i]);
                CHECK_EQ(w->op.id, next[i] % 2 ? 5 : 70000);
                CHECK_EQ(w->op.len, 40);
                CHECK_EQ(memcmp(w->into, payload, 40), 0);
                next[i]++;
                if (posted++ < (size_t)N * ROUNDS)
                    post(w, WEFT_AM_ANY_ID);
            }
        }
        pthread_join(sender, NULL);
        CHECK_OK(weft_queue_free(q));
        spread_check_wakeups(s.server);
        spread_close(&s);
    }
}

TEST(small_and_large_messages_come_in_all_forms_before_and_after_the_receive)
{
    static const size_t lens[] = {0, 8, 4000, LARGE};
    each_way(way) {
        begin(*way);
        for (unsigned round = 0; round < 160; round++) {
            size_t len = lens[round % 4];
            int i = (int)(round * 5 % N), form = (int)round % 3;
            bool before = round / 4 % 2;
            weft_op_t send, recv = WEFT_OP_INIT;
            uint32_t id = round % 5 ? 9 : WEFT_AM_ANY_ID;
            want_t *w = &wants[0];
            memset(w->into, 0, sizeof w->into);
            w->header = 0;
            if (before) {
                send_to(i, 9, round, len, &send);
                TEST_UNTIL(held() > 0, 30);
            }
            weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
            o.id = id;
            if (form == 0)
                post(w, id);
            else if (form == 1)
                CHECK_OK(weft_am_recv(s.server, &o, &recv)); /* to be allocated; the header is dropped */
            else
                CHECK_OK(weft_am_take(s.server, NULL, id, &recv));
            if (!before)
                send_to(i, 9, round, len, &send);
            weft_op_t *op = form ? &recv : &w->op;
            CHECK_OK(weft_op_wait(op, 30 * WEFT_SECOND));
            CHECK_EQ(op->len, len);
            CHECK_EQ(op->id, 9);
            CHECK_EQ(op->header_len, 8);
            CHECK_EQ(sender_of(op), i);
            if (form == 0) {
                CHECK_EQ(w->header, round);
                CHECK_EQ(memcmp(w->into, payload, len), 0);
            } else if (form == 1) {
                CHECK_EQ(len ? memcmp(op->buf, payload, len) : 0, 0);
                weft_mem_free(weft_mem_host(), op->buf, op->len);
            } else {
                weft_am_t *am = weft_op_am(op);
                weft_op_t pull = WEFT_OP_INIT;
                CHECK_EQ(memcmp(am->header, &(uint64_t){round}, 8), 0);
                CHECK(am->ep == s.theirs[i]);
                CHECK_OK(weft_am_pull(am, w->into, sizeof w->into, &pull));
                CHECK_OK(weft_op_wait(&pull, 30 * WEFT_SECOND));
                CHECK_EQ(memcmp(w->into, payload, len), 0);
                weft_am_release(am);
            }
            CHECK_OK(weft_op_wait(&send, 30 * WEFT_SECOND));
            TEST_UNTIL(held() == 0, 30);
        }
        weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT; /* one that does not fit */
        weft_op_t recv = WEFT_OP_INIT, send;
        o.id = 9;
        o.buf = payload;
        o.cap = 10;
        CHECK_OK(weft_am_recv(s.server, &o, &recv));
        send_to(2, 9, 1, LARGE, &send);
        CHECK_EQ(weft_op_wait(&recv, 30 * WEFT_SECOND), WEFT_ERR_TRUNCATED);
        CHECK_EQ(weft_op_wait(&send, 30 * WEFT_SECOND), WEFT_ERR_REJECTED);
        CHECK_EQ(send.reason, WEFT_AM_TOO_LONG);
        spread_close(&s);
    }
}

/* --- handlers ------------------------------------------------------------------------------------------------------------- */

static _Atomic unsigned handled;

static void handler(weft_am_t *am, void *user)
{
    (void)am;
    (void)user;
    atomic_fetch_add(&handled, 1);
}

static void set_handler(weft_am_fn fn)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_am_handle(s.server, 5, fn, NULL, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
}

TEST(a_handler_comes_before_receives_on_every_shard_and_leaves_them_the_rest)
{
    begin("shm");
    atomic_store(&handled, 0);
    set_handler(handler);
    post(&wants[0], 5);
    post(&wants[1], WEFT_AM_ANY_ID);
    for (int i = 0; i < N; i++) {
        weft_op_t op;
        send_to(i, 5, 1, 10, &op);
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    }
    TEST_UNTIL(atomic_load(&handled) == N, 30);
    CHECK(!weft_op_done(&wants[0].op) && !weft_op_done(&wants[1].op));
    set_handler(NULL);
    weft_op_t op, last;
    send_to(7, 5, 77, 10, &op);
    CHECK_OK(weft_op_wait(&wants[0].op, 30 * WEFT_SECOND));
    CHECK_EQ(wants[0].header, 77);
    send_to(8, 5, 78, 10, &last);
    CHECK_OK(weft_op_wait(&wants[1].op, 30 * WEFT_SECOND));
    CHECK_EQ(wants[1].header, 78);
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&last, 30 * WEFT_SECOND));
    spread_close(&s);
}

/* --- endings -------------------------------------------------------------------------------------------------------------- */

static void *cancels(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)wefti_rng_below(arg, 300000)}, NULL);
    for (int j = 0; j < WANTS; j += 2)
        weft_op_cancel(&wants[j].op);
    return NULL;
}

TEST(a_cancel_a_deadline_or_a_message_ends_a_receive_once_and_no_message_is_lost)
{
    wefti_rng_t rng = {.state = 5}, theirs = {.state = 6};
    each_way(way) {
        unsigned sent = 0, received = 0;
        begin(*way);
        for (int round = 0; round < 200; round++) {
            weft_op_t send[WANTS];
            pthread_t thread;
            for (int j = 0; j < WANTS; j++) {
                wants[j].op.timeout_ns = j % 4 == 3 ? 1 + wefti_rng_below(&rng, 300000) : j % 4 == 1 ? 200 * WEFT_MICROSECOND : 0;
                post(&wants[j], j % 3 ? 5 : WEFT_AM_ANY_ID);
            }
            CHECK_EQ(pthread_create(&thread, NULL, cancels, &theirs), 0);
            unsigned n = (unsigned)wefti_rng_below(&rng, WANTS);
            for (unsigned j = 0; j < n; j++)
                send_to((int)wefti_rng_below(&rng, N), 5, 1, wefti_rng_below(&rng, 4) ? 30 : LARGE, &send[j]);
            sent += n;
            pthread_join(thread, NULL);
            for (int j = 0; j < WANTS; j++) {
                weft_status_t st = weft_op_wait(&wants[j].op, 30 * WEFT_SECOND);
                CHECK(!st || st == WEFT_ERR_CANCELLED || st == WEFT_ERR_TIMEOUT);
                received += !st;
            }
            wants[0].op.timeout_ns = 0;
            for (; received < sent; received++) {
                post(&wants[0], 5);
                CHECK_OK(weft_op_wait(&wants[0].op, 30 * WEFT_SECOND));
            }
            for (unsigned j = 0; j < n; j++)
                CHECK_OK(weft_op_wait(&send[j], 30 * WEFT_SECOND));
        }
        TEST_UNTIL(held() == 0, 30);
        spread_check_wakeups(s.server);
        spread_close(&s);
    }
}

TEST(closing_ends_every_receive_once_and_leaves_what_was_taken)
{
    wefti_rng_t rng = {.state = 8};
    for (int round = 0; round < 40; round++) {
        weft_op_t takes[N] = {{0}}, sends_n[2 * N];
        begin(ways[round % 2]);
        for (int j = 0; j < N; j++)
            CHECK_OK(weft_am_take(s.server, NULL, j % 2 ? 5 : WEFT_AM_ANY_ID, &takes[j]));
        for (int j = 0; j < WANTS; j++)
            post(&wants[j], 5);
        for (int i = 0; i < 2 * N; i++)
            send_to(i % N, 5, 1, i % 3 ? 30 : LARGE, &sends_n[i]);
        nanosleep(&(struct timespec){.tv_nsec = (long)wefti_rng_below(&rng, 600000)}, NULL);
        if (round % 3 == 0)
            CHECK_OK(weft_runtime_close(s.client));
        CHECK_OK(weft_runtime_close(s.server));
        for (int j = 0; j < WANTS; j++) {
            CHECK(weft_op_done(&wants[j].op));
            weft_status_t st = wants[j].op.status;
            CHECK(!st || st == WEFT_ERR_CLOSED || st == WEFT_ERR_PEER);
        }
        for (int j = 0; j < N; j++) {
            CHECK(weft_op_done(&takes[j]));
            CHECK(!takes[j].status || takes[j].status == WEFT_ERR_CLOSED);
            weft_am_release(weft_op_am(&takes[j]));
        }
        if (round % 3)
            CHECK_OK(weft_runtime_close(s.client));
    }
}
