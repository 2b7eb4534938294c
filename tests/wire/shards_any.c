/* Messages from any endpoint of a runtime with several shards: each is received once, whichever shard has it, and whatever ends
 * meanwhile. ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 250
#include "ports.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "spread.h"

enum { N = SPREAD_PEERS };

static const char *const ways[] = {"tcp", "shm"};
#define each_way(way) for (const char *const *way = ways; way < ways + 2; way++)

static spread_t s;

static void send_to(int i, const void *buf, size_t len, uint64_t tag)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_msg_send(s.ours[i], buf, len, tag, &op));
    CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
}

static void send_value(int i, uint64_t value, uint64_t tag)
{
    send_to(i, &value, sizeof value, tag);
}

static void nap(wefti_rng_t *rng, long most_ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)wefti_rng_below(rng, (uint64_t)most_ns)}, NULL);
}

/* Whose message it is: the place of its endpoint in s.theirs. */
static int sender_of(const weft_op_t *op)
{
    for (int i = 0; i < N; i++)
        if (weft_ep_id(s.theirs[i]) == op->from)
            return i;
    CHECK(false);
    return -1;
}

/* --- order ---------------------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 400, WANTS = 8 };

static void *sends(void *arg)
{
    wefti_rng_t rng = {.state = 11};
    (void)arg;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++)
            send_value(i, round, 0x70 | (round & 1));
        if (round % 16 == 0)
            nap(&rng, 2000000);
    }
    return NULL;
}

TEST(messages_of_each_endpoint_are_received_once_and_in_their_order)
{
    each_way(way) {
        weft_op_t ops[WANTS] = {{0}}, *got[WANTS];
        uint64_t values[WANTS], next[N] = {0};
        weft_queue_t *q;
        pthread_t sender;
        spread_open(&s, *way);
        CHECK_OK(weft_queue_new(s.server, &q));
        CHECK_EQ(pthread_create(&sender, NULL, sends, NULL), 0);
        size_t posted = 0, left = (size_t)N * ROUNDS;
        for (int j = 0; j < WANTS; j++, posted++) {
            ops[j].queue = q;
            CHECK_OK(weft_msg_recv_any(s.server, &values[j], sizeof values[j], 0x70, ~UINT64_C(1), &ops[j]));
        }
        while (left) {
            size_t n = weft_queue_pop(q, got, WANTS, 30 * WEFT_SECOND);
            CHECK(n > 0);
            left -= n;
            for (size_t k = 0; k < n; k++) {
                int j = (int)(got[k] - ops);
                CHECK_OK(ops[j].status);
                CHECK_EQ(ops[j].len, sizeof values[j]);
                int i = sender_of(&ops[j]);
                CHECK_EQ(values[j], next[i]);
                CHECK_EQ(ops[j].tag, 0x70 | (values[j] & 1));
                next[i]++;
                if (posted++ < (size_t)N * ROUNDS)
                    CHECK_OK(weft_msg_recv_any(s.server, &values[j], sizeof values[j], 0x70, ~UINT64_C(1), &ops[j]));
            }
        }
        pthread_join(sender, NULL);
        CHECK_OK(weft_queue_free(q));
        spread_check_wakeups(s.server);
        spread_close(&s);
    }
}

TEST(the_older_of_two_receives_gets_the_message)
{
    spread_open(&s, "shm");
    for (unsigned round = 0; round < 300; round++) {
        weft_op_t first = WEFT_OP_INIT, second = WEFT_OP_INIT;
        uint64_t a, b;
        int i = (int)round % N;
        CHECK_OK(weft_msg_recv_any(s.server, &a, sizeof a, 5, round % 2 ? WEFT_TAG_FULL : WEFT_TAG_ANY, &first));
        CHECK_OK(weft_msg_recv_any(s.server, &b, sizeof b, 5, round % 3 ? WEFT_TAG_FULL : WEFT_TAG_ANY, &second));
        send_value(i, round, 5);
        CHECK_OK(weft_op_wait(&first, 30 * WEFT_SECOND));
        CHECK_EQ(a, round);
        CHECK(!weft_op_done(&second));
        send_value((i + 5) % N, round + 1, 5);
        CHECK_OK(weft_op_wait(&second, 30 * WEFT_SECOND));
        CHECK_EQ(b, round + 1);
    }
    spread_close(&s);
}

/* --- forms ---------------------------------------------------------------------------------------------------------------- */

static uint64_t held_bytes(void)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(s.server, &stats));
    return stats.unexpected_bytes;
}

static uint8_t pattern(int i, size_t at)
{
    return (uint8_t)(at * 7 + at / 251 + (size_t)i);
}

static void check_pattern(const uint8_t *p, int i, size_t len)
{
    for (size_t at = 0; at < len; at++)
        if (p[at] != pattern(i, at))
            CHECK_EQ(p[at], pattern(i, at));
}

TEST(small_and_large_messages_come_in_all_forms_before_and_after_the_receive)
{
    enum { MOST = 300000 };
    static const size_t lens[] = {0, 1, 5000, 60000, MOST};
    static uint8_t from[N][MOST], to[MOST];
    for (int i = 0; i < N; i++)
        for (size_t at = 0; at < MOST; at++)
            from[i][at] = pattern(i, at);
    each_way(way) {
        spread_open(&s, *way);
        for (unsigned round = 0; round < 120; round++) {
            size_t len = lens[round % 5];
            int i = (int)(round * 7 % N), form = (int)round % 3;
            bool before = round / 2 % 2;
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            weft_iov_t pieces[2] = {{to, 1000}, {to + 1000, MOST - 1000}};
            memset(to, 0, sizeof to);
            if (before) {
                CHECK_OK(weft_msg_send(s.ours[i], from[i], len, 9, &send));
                TEST_UNTIL(held_bytes() > 0, 30);
            }
            if (form == 0)
                CHECK_OK(weft_msg_recv_any(s.server, to, sizeof to, 9, WEFT_TAG_FULL, &recv));
            else if (form == 1)
                CHECK_OK(weft_msg_recv_iov(s.server, NULL, pieces, 2, 9, WEFT_TAG_FULL, &recv));
            else
                CHECK_OK(weft_msg_recv_alloc(s.server, NULL, MOST, 9, WEFT_TAG_FULL, &recv));
            if (!before)
                CHECK_OK(weft_msg_send(s.ours[i], from[i], len, 9, &send));
            CHECK_OK(weft_op_wait(&recv, 30 * WEFT_SECOND));
            CHECK_OK(weft_op_wait(&send, 30 * WEFT_SECOND));
            CHECK_EQ(recv.len, len);
            CHECK_EQ(recv.tag, 9);
            CHECK_EQ(sender_of(&recv), i);
            check_pattern(form == 2 ? recv.buf : to, i, len);
            if (form == 2)
                weft_buf_free(recv.buf);
            CHECK_EQ(held_bytes(), 0);
        }
        for (int k = 0; k < 2; k++) { /* one that is too long */
            weft_op_t recv = WEFT_OP_INIT;
            CHECK_OK(weft_msg_recv_any(s.server, to, 10, 9, WEFT_TAG_FULL, &recv));
            weft_op_t send = WEFT_OP_INIT;
            CHECK_OK(weft_msg_send(s.ours[3], from[3], k ? MOST : 100, 9, &send));
            CHECK_EQ(weft_op_wait(&recv, 30 * WEFT_SECOND), WEFT_ERR_TRUNCATED);
            CHECK_EQ(recv.len, k ? MOST : 100);
            weft_op_wait(&send, 30 * WEFT_SECOND);
        }
        spread_close(&s);
    }
}

static void probes_inside(void *user)
{
    weft_msg_envelope_t envelope;
    weft_status_t st = weft_msg_probe(s.server, NULL, 4, WEFT_TAG_FULL, &envelope); /* what this shard has */
    CHECK(st == WEFT_OK || st == WEFT_ERR_NOTFOUND);
    *(bool *)user = true;
}

TEST(what_waits_on_any_shard_is_probed_and_claimed)
{
    each_way(way) {
        weft_msg_envelope_t envelope;
        unsigned seen = 0;
        bool ran = false;
        weft_op_t call = WEFT_OP_INIT;
        spread_open(&s, *way);
        CHECK_EQ(weft_msg_probe(s.server, NULL, 4, WEFT_TAG_FULL, &envelope), WEFT_ERR_NOTFOUND);
        for (int i = 0; i < N; i++)
            send_value(i, (unsigned)i, 4);
        CHECK_OK(weft_runtime_call(s.server, probes_inside, &ran, &call));
        CHECK_OK(weft_op_wait(&call, 30 * WEFT_SECOND));
        CHECK(ran);
        for (int n = 0; n < N; n++) {
            weft_msg_t *msg;
            TEST_UNTIL(!weft_msg_probe(s.server, NULL, 4, WEFT_TAG_FULL, &envelope), 30);
            CHECK_EQ(envelope.len, 8);
            CHECK_OK(weft_msg_claim(s.server, NULL, 4, WEFT_TAG_FULL, &envelope, &msg));
            uint64_t value = 99;
            weft_op_t op = WEFT_OP_INIT;
            if (n % 3 == 0) {
                weft_msg_drop_claimed(msg);
                op.from = envelope.from;
                seen |= 1u << sender_of(&op);
                continue;
            }
            CHECK_OK(weft_msg_recv_claimed(msg, &value, sizeof value, &op));
            CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
            CHECK_EQ(op.from, envelope.from);
            CHECK_EQ((int)value, sender_of(&op));
            seen |= 1u << value;
        }
        CHECK_EQ(seen, (1u << N) - 1);
        CHECK_EQ(weft_msg_probe(s.server, NULL, 4, WEFT_TAG_FULL, &envelope), WEFT_ERR_NOTFOUND);
        TEST_UNTIL(held_bytes() == 0, 30);
        spread_close(&s);
    }
}

TEST(a_message_behind_a_window_full_of_others_is_received)
{
    enum {
        FILL = 300,
        LEN = 8000
    }; /* more than the window has, and within reach of its last quarter: 128 bytes for each announcement */
    static uint8_t junk[LEN], into[LEN];
    static weft_op_t sends_of[N][FILL];
    each_way(way) {
        spread_open(&s, *way);
        for (int i = 0; i < N; i += 4) {
            weft_op_t before = WEFT_OP_INIT, after = WEFT_OP_INIT, marks[2] = {{0}};
            uint64_t a, b, x = 1, y = 2;
            CHECK_OK(weft_msg_recv_any(s.server, &a, sizeof a, 100, WEFT_TAG_FULL, &before));
            for (int j = 0; j < FILL; j++) {
                sends_of[i][j] = (weft_op_t)WEFT_OP_INIT;
                CHECK_OK(weft_msg_send(s.ours[i], junk, LEN, 1, &sends_of[i][j]));
            }
            CHECK_OK(weft_msg_send(s.ours[i], &x, sizeof x, 100, &marks[0]));
            CHECK_OK(weft_msg_send(s.ours[i], &y, sizeof y, 101, &marks[1]));
            CHECK_OK(weft_op_wait(&before, 60 * WEFT_SECOND));
            CHECK_OK(weft_msg_recv_any(s.server, &b, sizeof b, 101, WEFT_TAG_FULL, &after));
            CHECK_OK(weft_op_wait(&after, 60 * WEFT_SECOND));
            CHECK(a == 1 && b == 2);
            for (int j = 0; j < FILL; j++) {
                weft_op_t op = WEFT_OP_INIT;
                CHECK_OK(weft_msg_recv_any(s.server, into, LEN, 1, WEFT_TAG_FULL, &op));
                CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
            }
            for (int j = 0; j < FILL; j++)
                CHECK_OK(weft_op_wait(&sends_of[i][j], 60 * WEFT_SECOND));
        }
        spread_close(&s);
    }
}

/* --- endings -------------------------------------------------------------------------------------------------------------- */

enum { RACERS = 16 };
static weft_op_t racers[RACERS];
static weft_token_t *token;

static void *cancels(void *arg)
{
    wefti_rng_t *rng = arg;
    nap(rng, 300000);
    for (int j = 0; j < RACERS; j += 2)
        weft_op_cancel(&racers[j]);
    weft_token_cancel(token);
    return NULL;
}

TEST(a_cancel_a_deadline_or_a_message_ends_a_receive_once_and_no_message_is_lost)
{
    wefti_rng_t rng = {.state = 21}, theirs = {.state = 22};
    each_way(way) {
        uint64_t sent = 0, received = 0, values[RACERS];
        static uint8_t large[100000];
        spread_open(&s, *way);
        for (int round = 0; round < 150; round++) {
            weft_queue_t *q;
            weft_op_t *got[RACERS], sends_n[RACERS];
            pthread_t thread;
            CHECK_OK(weft_queue_new(s.server, &q));
            CHECK_OK(weft_token_new(s.server, NULL, &token));
            for (int j = 0; j < RACERS; j++) {
                racers[j] = (weft_op_t)WEFT_OP_INIT;
                racers[j].queue = q;
                racers[j].token = j % 4 == 1 ? token : NULL;
                racers[j].timeout_ns = j % 4 == 3 ? 1 + wefti_rng_below(&rng, 300000) : 0;
                CHECK_OK(j == 6 ? weft_msg_recv_alloc(s.server, NULL, sizeof large, 7, WEFT_TAG_ANY, &racers[j])
                                : weft_msg_recv_any(s.server, &values[j], sizeof values[j], 7, WEFT_TAG_FULL, &racers[j]));
            }
            CHECK_EQ(pthread_create(&thread, NULL, cancels, &theirs), 0);
            int n_sends = (int)wefti_rng_below(&rng, RACERS);
            for (int j = 0; j < n_sends; j++) {
                sends_n[j] = (weft_op_t)WEFT_OP_INIT;
                CHECK_OK(weft_msg_send(s.ours[wefti_rng_below(&rng, N)], large, 8, 7, &sends_n[j]));
            }
            sent += (unsigned)n_sends;
            for (size_t all = 0; all < RACERS;) {
                size_t n = weft_queue_pop(q, got, RACERS, 30 * WEFT_SECOND);
                CHECK(n > 0);
                all += n;
                for (size_t k = 0; k < n; k++) {
                    weft_status_t st = got[k]->status;
                    CHECK(!st || st == WEFT_ERR_CANCELLED || st == WEFT_ERR_TIMEOUT);
                    received += !st;
                    if (got[k] == &racers[6])
                        weft_buf_free(st ? NULL : got[k]->buf);
                }
            }
            pthread_join(thread, NULL);
            for (int j = 0; j < n_sends; j++)
                CHECK_OK(weft_op_wait(&sends_n[j], 30 * WEFT_SECOND));
            weft_token_drop(token);
            CHECK_OK(weft_queue_free(q));
            while (received < sent) { /* the others wait somewhere, or are still on their way */
                weft_op_t op = WEFT_OP_INIT;
                CHECK_OK(weft_msg_recv_any(s.server, &values[0], sizeof values[0], 0, WEFT_TAG_ANY, &op));
                CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
                received++;
            }
        }
        CHECK_EQ(held_bytes(), 0);
        spread_check_wakeups(s.server);
        spread_close(&s);
    }
}

TEST(closing_ends_every_receive_once)
{
    enum { LARGE = 400000 };
    static uint8_t large[LARGE], into[RACERS][LARGE];
    wefti_rng_t rng = {.state = 31};
    for (int round = 0; round < 40; round++) {
        weft_queue_t *q;
        weft_op_t *got[RACERS], sends_n[N] = {{0}};
        spread_open(&s, ways[round % 2]);
        CHECK_OK(weft_queue_new(s.server, &q));
        for (int j = 0; j < RACERS; j++) {
            racers[j] = (weft_op_t)WEFT_OP_INIT;
            racers[j].queue = q;
            CHECK_OK(weft_msg_recv_any(s.server, into[j], LARGE, 7, WEFT_TAG_FULL, &racers[j]));
        }
        for (int i = 0; i < N; i++)
            CHECK_OK(weft_msg_send(s.ours[i], large, wefti_rng_below(&rng, 2) ? LARGE : 50, 7, &sends_n[i]));
        nap(&rng, 600000);
        if (round % 3 == 0)
            CHECK_OK(weft_runtime_close(s.client));
        CHECK_OK(weft_runtime_close(s.server));
        size_t all = 0;
        for (size_t n; (n = weft_queue_pop(q, got, RACERS, 0));) {
            all += n;
            for (size_t k = 0; k < n; k++)
                CHECK(!got[k]->status || got[k]->status == WEFT_ERR_CLOSED || got[k]->status == WEFT_ERR_PEER);
        }
        CHECK_EQ(all, RACERS);
        CHECK_OK(weft_queue_free(q));
        if (round % 3)
            CHECK_OK(weft_runtime_close(s.client));
    }
}

/* A process with connections to several shards, that sends until it is killed. */
static void sends_for_ever(int uri_fd, const char *way)
{
    static uint8_t large[1 << 20];
    static weft_op_t ops[N];
    char uri[512] = "";
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_ep_t *eps[N];
    opts.transports = way;
    opts.progress = WEFT_PROGRESS_THREAD;
    if (read(uri_fd, uri, sizeof uri - 1) <= 0 || weft_runtime_open(&opts, &rt))
        _exit(1);
    for (int i = 0; i < N; i++)
        if (weft_ep_connect(rt, uri, NULL, 30 * WEFT_SECOND, &eps[i]))
            _exit(2);
    for (unsigned round = 0;; round++)
        for (int i = 0; i < N; i++) {
            if (weft_op_wait(&ops[i], WEFT_FOREVER))
                _exit(3);
            if (weft_msg_send(eps[i], large, (round + (unsigned)i) % 3 ? 64 : sizeof large, 7, &ops[i]))
                _exit(4);
        }
}

TEST(a_peer_that_is_killed_ends_only_the_receives_that_had_its_message)
{
    static uint8_t into[RACERS][1 << 20];
    wefti_rng_t rng = {.state = 41};
    for (int round = 0; round < 8; round++) {
        int fds[2];
        weft_listener_t *listener;
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        CHECK_EQ(pipe(fds), 0);
        pid_t child = fork();
        if (!child)
            sends_for_ever(fds[0], ways[round % 2]);
        opts.transports = ways[round % 2];
        opts.shards = SPREAD_SHARDS;
        CHECK_OK(weft_runtime_open(&opts, &s.server));
        CHECK_OK(weft_listen(s.server, ports_tcp(), NULL, &listener));
        const char *uri = weft_listener_uri(listener);
        CHECK_EQ(write(fds[1], uri, strlen(uri)), (ssize_t)strlen(uri));
        weft_op_t *all[RACERS];
        for (int j = 0; j < RACERS; j++) {
            all[j] = &racers[j];
            racers[j] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_msg_recv_any(s.server, into[j], sizeof into[j], 7, WEFT_TAG_FULL, all[j]));
        }
        int most = 50 + (int)wefti_rng_below(&rng, 200);
        size_t j;
        for (int n = 0; n < most; n++) {
            CHECK_OK(weft_op_wait_any(all, RACERS, 60 * WEFT_SECOND, &j));
            CHECK_OK(racers[j].status);
            CHECK_OK(weft_msg_recv_any(s.server, into[j], sizeof into[j], 7, WEFT_TAG_FULL, all[j]));
        }
        kill(child, SIGKILL);
        CHECK_EQ(waitpid(child, NULL, 0), child);
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        TEST_UNTIL(!weft_runtime_get_stats(s.server, &stats) && stats.endpoints_failed == N, 30);
        weft_op_t last = WEFT_OP_INIT; /* behind all others: it waits, or gets what had come before */
        CHECK_OK(weft_msg_recv_any(s.server, into[0], 0, 8, WEFT_TAG_FULL, &last));
        for (j = 0; j < RACERS; j++)
            weft_op_cancel(all[j]);
        for (j = 0; j < RACERS; j++) {
            weft_status_t st = weft_op_wait(all[j], 30 * WEFT_SECOND);
            CHECK(!st || st == WEFT_ERR_PEER || st == WEFT_ERR_CANCELLED);
        }
        CHECK(!weft_op_done(&last));
        CHECK_OK(weft_runtime_close(s.server));
        CHECK_EQ(last.status, WEFT_ERR_CLOSED);
        close(fds[0]);
        close(fds[1]);
    }
}
