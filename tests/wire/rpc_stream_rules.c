/* The rules of a stream, one side against the other without a call: order, credit in items and bytes, cancelling, endings, and
 * what a peer must not say. ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 150
#include <pthread.h>

#include "lib/joined.h"
#include "test.h"

static joined_t j;
static const char both_ways[] = "f(in: stream u64) -> stream u64", text_back[] = "f() -> stream string";

TEST(items_arrive_in_order_and_the_end_after_them)
{
    enum { N = 1000 };
    each_way(way) {
        joined_open(&j, way, both_ways);
        for (int side = 0; side < 2; side++) {
            weft_op_t sends[16] = {WEFT_OP_INIT}, end = WEFT_OP_INIT;
            weft_value_t values[16];
            uint64_t sent = 0, got = 0, value;
            while (got < N) {
                for (unsigned k = sent % 16; sent < N && sent < got + 16 && weft_op_done(&sends[k]); k = ++sent % 16) {
                    CHECK(!sent || !sends[k].status);
                    values[k] = weft_u64(sent * 3);
                    CHECK_OK(weft_stream_send(j.s[side], &values[k], &sends[k]));
                }
                CHECK_EQ(joined_recv_u64(&j, !side, &value), 1);
                CHECK_EQ(value, got * 3);
                got++;
            }
            CHECK_OK(weft_stream_end(j.s[side], &end));
            CHECK_OK(pair_wait(&j.pair, &end, 20));
            CHECK_EQ(joined_recv_u64(&j, !side, &value), 0);
            CHECK_EQ(joined_recv_u64(&j, !side, &value), 0);
            CHECK_EQ(atomic_load(&j.came[!side][RPC_ITEM]), N);
            CHECK(atomic_load(&j.came[side][RPC_CREDIT]) <= N / (RPC_STREAM_ITEMS / 2)); /* not one for each */
        }
        joined_close(&j);
    }
}

TEST(receives_that_wait_are_served_in_order)
{
    enum { N = 40 };
    each_way(way) {
        weft_op_t ops[N + 2] = {WEFT_OP_INIT};
        weft_item_t items[N + 2];
        joined_open(&j, way, "f() -> stream i32");
        for (unsigned i = 0; i < N + 2; i++)
            CHECK_OK(weft_stream_recv(j.s[JOINED_CLIENT], &items[i], &ops[i]));
        for (int i = 0; i < N; i++)
            CHECK_OK(joined_send(&j, JOINED_SERVER, weft_i32(-i)));
        CHECK_OK(weft_stream_end(j.s[JOINED_SERVER], NULL));
        for (int i = 0; i < N + 2; i++) {
            CHECK_OK(pair_wait(&j.pair, &ops[i], 20));
            CHECK_EQ(ops[i].len, i < N);
            if (i < N)
                CHECK_EQ(items[i].value.i32, -i);
            weft_item_release(&items[i]);
        }
        joined_close(&j);
    }
}

static unsigned done_of(const weft_op_t *ops, unsigned n)
{
    unsigned done = 0;
    for (unsigned i = 0; i < n; i++)
        done += weft_op_done(&ops[i]);
    return done;
}

TEST(a_sender_waits_while_nobody_takes)
{
    enum { N = 200 };
    each_way(way) {
        weft_op_t ops[N] = {WEFT_OP_INIT};
        weft_value_t values[N];
        uint64_t value;
        joined_open(&j, way, both_ways);
        for (unsigned i = 0; i < N; i++) {
            values[i] = weft_u64(i);
            CHECK_OK(weft_stream_send(j.s[JOINED_SERVER], &values[i], &ops[i]));
        }
        PAIR_UNTIL(&j.pair, atomic_load(&j.came[JOINED_CLIENT][RPC_ITEM]) == RPC_STREAM_ITEMS, 10);
        pair_run(&j.pair, 0.05);
        CHECK_EQ(done_of(ops, N), RPC_STREAM_ITEMS);
        CHECK_EQ(atomic_load(&j.came[JOINED_CLIENT][RPC_ITEM]), RPC_STREAM_ITEMS);
        CHECK(!joined_drained(&j));
        for (unsigned i = 0; i < RPC_STREAM_ITEMS / 2; i++) {
            CHECK_EQ(joined_recv_u64(&j, JOINED_CLIENT, &value), 1);
            CHECK_EQ(value, i);
        }
        PAIR_UNTIL(&j.pair, done_of(ops, N) == RPC_STREAM_ITEMS + RPC_STREAM_ITEMS / 2, 10);
        for (unsigned i = RPC_STREAM_ITEMS / 2; i < N; i++) {
            CHECK_EQ(joined_recv_u64(&j, JOINED_CLIENT, &value), 1);
            CHECK_EQ(value, i);
        }
        CHECK_EQ(done_of(ops, N), N);
        CHECK(joined_drained(&j));
        joined_close(&j);
    }
}

/* The last one that fits goes beyond the bytes, whatever its size, and no other. */
TEST(bytes_are_counted_too)
{
    static const struct {
        size_t len;
        unsigned go;
    } cases[] = {{100 << 10, 11}, {300 << 10, 4}, {(1 << 20) + 1, 1}, {5 << 20, 1}};
    each_way(way) {
        for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++) {
            unsigned n = cases[k].go + 3;
            weft_op_t ops[16] = {WEFT_OP_INIT};
            weft_value_t values[16];
            uint8_t *bytes[16];
            weft_item_t item;
            joined_open(&j, way, "f() -> stream [u8]");
            for (unsigned i = 0; i < n; i++) {
                bytes[i] = (uint8_t *)malloc(cases[k].len);
                pattern_fill(bytes[i], cases[k].len, i);
                values[i] = weft_vector(WEFT_T_U8, bytes[i], cases[k].len);
                CHECK_OK(weft_stream_send(j.s[JOINED_SERVER], &values[i], &ops[i]));
            }
            PAIR_UNTIL(&j.pair, done_of(ops, n) == cases[k].go, 20);
            pair_run(&j.pair, 0.01);
            CHECK_EQ(atomic_load(&j.came[JOINED_CLIENT][RPC_ITEM]), cases[k].go);
            for (unsigned i = 0; i < n; i++) {
                CHECK_EQ(joined_recv(&j, JOINED_CLIENT, &item), 1);
                CHECK_EQ(item.value.view.n, cases[k].len);
                CHECK_EQ(pattern_check(item.value.view.data, cases[k].len, i), cases[k].len);
                weft_item_release(&item);
            }
            for (unsigned i = 0; i < n; i++) {
                CHECK_OK(pair_wait(&j.pair, &ops[i], 20));
                free(bytes[i]);
            }
            joined_close(&j);
        }
    }
}

TEST(strings_of_every_length)
{
    static char text[70001];
    memset(text, 'x', sizeof text);
    each_way(way) {
        weft_item_t item;
        unsigned n = 0;
        joined_open(&j, way, text_back);
        for (size_t len = 0; len < sizeof text; len = len * 5 / 4 + 1, n++) {
            weft_op_t op = WEFT_OP_INIT;
            weft_value_t value = weft_text(text, len);
            CHECK_OK(weft_stream_send(j.s[JOINED_SERVER], &value, &op));
            CHECK_EQ(joined_recv(&j, JOINED_CLIENT, &item), 1);
            CHECK_OK(pair_wait(&j.pair, &op, 20));
            CHECK_EQ(item.value.view.n, len);
            CHECK(!len || !memcmp(item.value.view.data, text, len));
            weft_item_release(&item);
        }
        CHECK(n > 30);
        joined_close(&j);
    }
}

TEST(one_that_waits_can_be_cancelled_and_was_not_sent)
{
    enum { N = RPC_STREAM_ITEMS + 5 };
    each_way(way) {
        weft_op_t ops[N] = {WEFT_OP_INIT}, late = WEFT_OP_INIT, end = WEFT_OP_INIT;
        weft_value_t values[N + 1];
        uint64_t value;
        joined_open(&j, way, both_ways);
        for (unsigned i = 0; i < N; i++) {
            values[i] = weft_u64(i);
            CHECK_OK(weft_stream_send(j.s[JOINED_CLIENT], &values[i], &ops[i]));
        }
        values[N] = weft_u64(N);
        late.timeout_ns = WEFT_MILLISECOND;
        CHECK_OK(weft_stream_send(j.s[JOINED_CLIENT], &values[N], &late));
        CHECK_OK(weft_stream_end(j.s[JOINED_CLIENT], &end));
        CHECK_EQ(pair_wait(&j.pair, &late, 20), WEFT_ERR_TIMEOUT);
        weft_op_cancel(&ops[N - 2]);
        CHECK_EQ(pair_wait(&j.pair, &ops[N - 2], 20), WEFT_ERR_CANCELLED);
        weft_op_cancel(&end);
        CHECK_EQ(pair_wait(&j.pair, &end, 20), WEFT_ERR_CANCELLED);
        for (unsigned i = 0; i < N; i++) {
            if (i == N - 2)
                continue;
            CHECK_EQ(joined_recv_u64(&j, JOINED_SERVER, &value), 1);
            CHECK_EQ(value, i);
            CHECK_OK(pair_wait(&j.pair, &ops[i], 20));
        }
        CHECK_OK(joined_end(&j, JOINED_CLIENT)); /* the one before was taken back */
        CHECK_EQ(joined_recv_u64(&j, JOINED_SERVER, &value), 0);
        joined_close(&j);
    }
}

TEST(an_end_goes_once_what_is_before_it_was_cancelled)
{
    enum { N = RPC_STREAM_ITEMS + 1 };
    each_way(way) {
        weft_op_t ops[N] = {WEFT_OP_INIT}, end = WEFT_OP_INIT;
        weft_value_t value = weft_u64(1);
        joined_open(&j, way, both_ways);
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(weft_stream_send(j.s[JOINED_CLIENT], &value, &ops[i]));
        CHECK_OK(weft_stream_end(j.s[JOINED_CLIENT], &end));
        weft_op_cancel(&ops[N - 1]);
        CHECK_EQ(pair_wait(&j.pair, &ops[N - 1], 20), WEFT_ERR_CANCELLED);
        CHECK_OK(pair_wait(&j.pair, &end, 20));
        joined_close(&j);
    }
}

TEST(a_receive_can_be_cancelled_and_takes_nothing)
{
    each_way(way) {
        weft_op_t ops[3] = {WEFT_OP_INIT};
        weft_item_t items[3];
        joined_open(&j, way, both_ways);
        ops[1].timeout_ns = WEFT_MILLISECOND;
        for (unsigned i = 0; i < 3; i++)
            CHECK_OK(weft_stream_recv(j.s[JOINED_CLIENT], &items[i], &ops[i]));
        weft_op_cancel(&ops[0]);
        CHECK_EQ(pair_wait(&j.pair, &ops[0], 20), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&j.pair, &ops[1], 20), WEFT_ERR_TIMEOUT);
        CHECK_OK(joined_send(&j, JOINED_SERVER, weft_u64(5)));
        CHECK_OK(pair_wait(&j.pair, &ops[2], 20));
        CHECK_EQ(ops[2].len, 1);
        CHECK_EQ(items[2].value.u64, 5);
        joined_close(&j);
    }
}

TEST(what_is_cancelled_before_it_is_posted_neither_sends_nor_takes)
{
    each_way(way) {
        weft_op_t sends[2] = {WEFT_OP_INIT}, receives[2] = {WEFT_OP_INIT};
        weft_value_t values[2] = {weft_u64(1), weft_u64(2)};
        weft_item_t item;
        uint64_t value;
        joined_open(&j, way, both_ways);
        weft_op_cancel(&sends[0]);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(weft_stream_send(j.s[JOINED_CLIENT], &values[i], &sends[i]));
        CHECK_EQ(pair_wait(&j.pair, &sends[0], 20), WEFT_ERR_CANCELLED);
        CHECK_OK(pair_wait(&j.pair, &sends[1], 20));
        CHECK_OK(joined_send(&j, JOINED_CLIENT, weft_u64(3)));
        CHECK_EQ(joined_recv_u64(&j, JOINED_SERVER, &value), 1);
        CHECK_EQ(value, 2);
        pair_run(&j.pair, 0.01); /* the third is there, and may be taken at once */
        weft_op_cancel(&receives[0]);
        CHECK_OK(weft_stream_recv(j.s[JOINED_SERVER], &item, &receives[0]));
        CHECK_EQ(pair_wait(&j.pair, &receives[0], 20), WEFT_ERR_CANCELLED);
        CHECK_OK(weft_stream_recv(j.s[JOINED_SERVER], &item, &receives[1]));
        CHECK_OK(pair_wait(&j.pair, &receives[1], 20));
        CHECK_EQ(item.value.u64, 3);
        joined_close(&j);
    }
}

TEST(what_is_wrong_is_said)
{
    uint64_t value;
    weft_item_t item;
    weft_op_t op = WEFT_OP_INIT;
    each_way(way) {
        joined_open(&j, way, "f() -> stream u64");
        CHECK_EQ(joined_send(&j, JOINED_CLIENT, weft_u64(1)), WEFT_ERR_STATE);
        CHECK_EQ(joined_end(&j, JOINED_CLIENT), WEFT_ERR_STATE);
        CHECK_EQ(weft_stream_recv(j.s[JOINED_SERVER], &item, &op), WEFT_ERR_STATE);
        CHECK_EQ(weft_stream_recv(j.s[JOINED_CLIENT], NULL, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_stream_recv(NULL, &item, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_stream_send(j.s[JOINED_SERVER], NULL, &op), WEFT_ERR_INVALID);
        CHECK_EQ(joined_send(&j, JOINED_SERVER, weft_f64(1)), WEFT_ERR_INVALID);
        CHECK_OK(joined_send(&j, JOINED_SERVER, weft_u64(1)));
        CHECK_OK(joined_end(&j, JOINED_SERVER));
        CHECK_EQ(joined_end(&j, JOINED_SERVER), WEFT_ERR_STATE);
        CHECK_EQ(joined_send(&j, JOINED_SERVER, weft_u64(1)), WEFT_ERR_STATE);
        CHECK_EQ(joined_recv_u64(&j, JOINED_CLIENT, &value), 1);
        CHECK_EQ(joined_recv_u64(&j, JOINED_CLIENT, &value), 0);
        joined_close(&j);
    }
}

TEST(without_an_operation_everything_is_copied)
{
    static char text[5000];
    each_way(way) {
        weft_item_t item;
        weft_value_t value = weft_text(text, sizeof text);
        unsigned sent = 0;
        weft_status_t st = WEFT_OK;
        joined_open(&j, way, text_back);
        for (; sent < 1000; sent++) {
            memset(text, 'a' + (int)(sent % 26), sizeof text);
            value.view.n = sent % 3 ? sizeof text - sent : sent;
            st = weft_stream_send(j.s[JOINED_SERVER], &value, NULL);
            if (st)
                break;
        }
        memset(text, '?', sizeof text);
        CHECK_EQ(st, WEFT_ERR_AGAIN);
        CHECK(sent >= RPC_STREAM_ITEMS && sent <= 2 * RPC_STREAM_ITEMS);
        for (unsigned i = 0; i < sent; i++) {
            CHECK_EQ(joined_recv(&j, JOINED_CLIENT, &item), 1);
            CHECK_EQ(item.value.view.n, i % 3 ? sizeof text - i : i);
            for (size_t at = 0; at < item.value.view.n; at += 37)
                CHECK_EQ(((const char *)item.value.view.data)[at], 'a' + i % 26);
            weft_item_release(&item);
        }
        PAIR_UNTIL(&j.pair, !weft_stream_send(j.s[JOINED_SERVER], &value, NULL), 10);
        joined_close(&j);
    }
}

static unsigned long allocated;
static int counts(size_t n)
{
    (void)n;
    allocated++;
    return 0;
}

TEST(a_scalar_takes_no_memory_and_a_text_one_block)
{
    uint64_t value;
    weft_item_t item;
    joined_open(&j, &pair_ways[0], both_ways);
    for (unsigned i = 0; i < 600; i++) { /* one that waits, and one that is waited for */
        weft_op_t recv = WEFT_OP_INIT;
        if (i == 100) /* what the runtimes need is there */
            wefti_alloc_fails = counts;
        CHECK_OK(joined_send(&j, JOINED_SERVER, weft_u64(i)));
        CHECK_EQ(joined_recv_u64(&j, JOINED_CLIENT, &value), 1);
        CHECK_OK(weft_stream_recv(j.s[JOINED_CLIENT], &item, &recv));
        CHECK_OK(joined_send(&j, JOINED_SERVER, weft_u64(i)));
        CHECK_OK(pair_wait(&j.pair, &recv, 10));
    }
    CHECK_EQ(allocated, 0);
    wefti_alloc_fails = NULL;
    joined_close(&j);
    joined_open(&j, &pair_ways[0], text_back);
    for (unsigned i = 0; i < 600; i++) {
        if (i == 100)
            wefti_alloc_fails = counts;
        CHECK_OK(joined_send(&j, JOINED_SERVER, weft_text("a few words", 11)));
        CHECK_EQ(joined_recv(&j, JOINED_CLIENT, &item), 1);
        weft_item_release(&item);
    }
    CHECK_EQ(allocated, 500);
    wefti_alloc_fails = NULL;
    joined_close(&j);
}

/* --- endings ------------------------------------------------------------------------------------------------------------- */

TEST(after_an_answer_what_was_sent_before_it_is_received)
{
    static const weft_status_t answers[] = {WEFT_OK, WEFT_ERR_CALL};
    static uint8_t bytes[200000];
    each_way(way) {
        for (unsigned k = 0; k < 2; k++) {
            weft_op_t ops[3] = {WEFT_OP_INIT}, waits = WEFT_OP_INIT;
            weft_item_t item;
            weft_value_t value = weft_vector(WEFT_T_U8, bytes, sizeof bytes);
            joined_open(&j, way, "f(in: stream u64) -> stream [u8]");
            CHECK_OK(weft_stream_recv(j.s[JOINED_SERVER], &item, &waits));
            for (unsigned i = 0; i < 3; i++)
                CHECK_OK(weft_stream_send(j.s[JOINED_SERVER], &value, &ops[i]));
            joined_over(&j, JOINED_SERVER, answers[k]); /* and only then they fly */
            CHECK_EQ(pair_wait(&j.pair, &waits, 20), WEFT_ERR_CLOSED);
            PAIR_UNTIL(&j.pair, atomic_load(&j.came[JOINED_CLIENT][RPC_ITEM]) == 3, 10);
            joined_over(&j, JOINED_CLIENT, answers[k]);
            for (unsigned i = 0; i < 3; i++) {
                CHECK_EQ(joined_recv(&j, JOINED_CLIENT, &item), 1);
                CHECK_EQ(item.value.view.n, sizeof bytes);
                weft_item_release(&item);
                CHECK_OK(pair_wait(&j.pair, &ops[i], 20));
            }
            CHECK_EQ(joined_recv(&j, JOINED_CLIENT, &item), answers[k]);
            CHECK_EQ(joined_send(&j, JOINED_CLIENT, weft_u64(1)), WEFT_ERR_CLOSED);
            CHECK_EQ(joined_end(&j, JOINED_CLIENT), WEFT_ERR_CLOSED);
            CHECK_EQ(joined_send(&j, JOINED_SERVER, value), WEFT_ERR_CLOSED);
            joined_close(&j);
        }
    }
}

TEST(a_call_that_fails_takes_everything_with_it)
{
    each_way(way) {
        weft_op_t sends[RPC_STREAM_ITEMS + 2] = {WEFT_OP_INIT}, recv = WEFT_OP_INIT;
        weft_value_t value = weft_u64(1);
        weft_item_t item;
        joined_open(&j, way, both_ways);
        CHECK_OK(joined_send(&j, JOINED_SERVER, value));
        PAIR_UNTIL(&j.pair, atomic_load(&j.came[JOINED_CLIENT][RPC_ITEM]) == 1, 10);
        for (unsigned i = 0; i < RPC_STREAM_ITEMS + 2; i++)
            CHECK_OK(weft_stream_send(j.s[JOINED_CLIENT], &value, &sends[i]));
        joined_over(&j, JOINED_CLIENT, WEFT_ERR_CANCELLED);
        for (unsigned i = 0; i < RPC_STREAM_ITEMS + 2; i++)
            CHECK_EQ(pair_wait(&j.pair, &sends[i], 20), i < RPC_STREAM_ITEMS ? WEFT_OK : WEFT_ERR_CANCELLED);
        CHECK_EQ(joined_recv(&j, JOINED_CLIENT, &item), WEFT_ERR_CANCELLED);
        for (unsigned i = 0; i < RPC_STREAM_ITEMS; i++)
            CHECK_EQ(joined_recv(&j, JOINED_SERVER, &item), 1);
        CHECK_OK(weft_stream_recv(j.s[JOINED_SERVER], &item, &recv));
        joined_over(&j, JOINED_SERVER, WEFT_ERR_PEER);
        CHECK_EQ(pair_wait(&j.pair, &recv, 20), WEFT_ERR_PEER);
        CHECK_EQ(joined_recv(&j, JOINED_SERVER, &item), WEFT_ERR_PEER);
        joined_close(&j);
    }
}

TEST(releasing_it_ends_what_is_posted)
{
    each_way(way) {
        weft_op_t recv[2] = {WEFT_OP_INIT}, send[RPC_STREAM_ITEMS + 1] = {WEFT_OP_INIT};
        weft_item_t item[2];
        weft_value_t value = weft_u64(1);
        joined_open(&j, way, both_ways);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(weft_stream_recv(j.s[JOINED_CLIENT], &item[i], &recv[i]));
        for (unsigned i = 0; i <= RPC_STREAM_ITEMS; i++)
            CHECK_OK(weft_stream_send(j.s[JOINED_CLIENT], &value, &send[i]));
        CHECK_OK(weft_stream_end(j.s[JOINED_CLIENT], NULL));
        weft_stream_release(j.s[JOINED_CLIENT]);
        for (unsigned i = 0; i < 2; i++)
            CHECK_EQ(pair_wait(&j.pair, &recv[i], 20), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&j.pair, &send[RPC_STREAM_ITEMS], 20), WEFT_ERR_CANCELLED);
        joined_over(&j, JOINED_CLIENT, WEFT_ERR_CANCELLED);
        joined_leave(&j, JOINED_CLIENT);
        joined_close(&j);
    }
}

static unsigned drained_calls;
static void drained(void *user)
{
    drained_calls += user == &drained_calls;
}

TEST(a_server_hears_when_all_it_posted_is_on_its_way)
{
    enum { N = RPC_STREAM_ITEMS + 10 };
    weft_op_t ops[N] = {WEFT_OP_INIT};
    weft_value_t value = weft_u64(1);
    uint64_t got;
    joined_open(&j, &pair_ways[0], both_ways);
    for (unsigned i = 0; i < N; i++)
        CHECK_OK(weft_stream_send(j.s[JOINED_SERVER], &value, &ops[i]));
    CHECK(!joined_drained(&j));
    wefti_stream_when_drained(j.s[JOINED_SERVER], drained, &drained_calls); /* nobody else drives here */
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(drained_calls, done_of(ops, N) == N);
        CHECK_EQ(joined_recv_u64(&j, JOINED_CLIENT, &got), 1);
    }
    CHECK_EQ(drained_calls, 1);
    joined_close(&j);
}

static weft_op_t inbox_op;
static void *posts(void *user)
{
    weft_value_t value = weft_u64(9);
    (void)user;
    CHECK_OK(weft_stream_send(j.s[JOINED_SERVER], &value, &inbox_op));
    return NULL;
}

/* Runs on the driver, so that the other thread cannot be it. */
static void while_another_posts(weft_op_t *op, void *user)
{
    pthread_t thread;
    (void)op;
    CHECK_EQ(pthread_create(&thread, NULL, posts, NULL), 0);
    pthread_join(thread, NULL);
    CHECK(!wefti_stream_drained(j.s[JOINED_SERVER]));
    drained_calls = 0;
    wefti_stream_when_drained(j.s[JOINED_SERVER], drained, &drained_calls);
    *(bool *)user = true;
}

TEST(what_sits_in_the_inbox_is_not_on_its_way)
{
    weft_op_t timer = WEFT_OP_INIT;
    bool looked = false;
    joined_open(&j, &pair_ways[0], both_ways);
    timer.fn = while_another_posts;
    timer.user = &looked;
    CHECK_OK(weft_timer_start(j.pair.rt[JOINED_SERVER], WEFT_MILLISECOND, &timer));
    PAIR_UNTIL(&j.pair, looked, 10);
    CHECK_OK(pair_wait(&j.pair, &inbox_op, 10));
    CHECK_EQ(drained_calls, 1);
    joined_close(&j);
}

/* --- the bytes, as docs/design/wire.md has them --------------------------------------------------------------------------- */

TEST(the_bytes_are_those_of_the_document)
{
    static const uint8_t item[32] = {0x57, 0x15, 0, 0, 5, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7};
    static const uint8_t end[16] = {0x57, 0x16, 0, 0, 6, 0, 0, 0, 77};
    static const uint8_t credit[32] = {0x57, 0x17, 0,  0, 0, 0, 0, 0, 77, 0, 0, 0, 0,   0,
                                       0,    0,    96, 0, 0, 0, 0, 0, 0,  0, 0, 1, 0x10};
    uint64_t value;
    joined_open(&j, &pair_ways[0], both_ways);
    for (unsigned i = 0; i < 6; i++)
        CHECK_OK(joined_send(&j, JOINED_CLIENT, weft_u64(2 + i)));
    CHECK_OK(joined_end(&j, JOINED_CLIENT));
    for (unsigned i = 0; i < RPC_STREAM_ITEMS / 2; i++) {
        CHECK_OK(joined_send(&j, JOINED_SERVER, weft_u64(i)));
        CHECK_EQ(joined_recv_u64(&j, JOINED_CLIENT, &value), 1);
    }
    PAIR_UNTIL(&j.pair, atomic_load(&j.came[JOINED_SERVER][RPC_CREDIT]), 10);
    CHECK(!memcmp(j.last[JOINED_SERVER][RPC_ITEM], item, sizeof item));
    CHECK(!memcmp(j.last[JOINED_SERVER][RPC_END], end, sizeof end));
    CHECK(!memcmp(j.last[JOINED_SERVER][RPC_CREDIT], credit, sizeof credit));
    joined_close(&j);
}

/* --- what a peer must not say ---------------------------------------------------------------------------------------------- */

typedef struct item {
    rpc_ext_t ext;
    uint64_t value;
} item_t;

static void say_item(uint32_t number)
{
    item_t item = {.value = number};
    joined_say(&j, JOINED_CLIENT, RPC_ITEM, number, &item, sizeof item, 0);
}

static void too_many(void)
{
    for (uint32_t i = 0; i <= RPC_STREAM_ITEMS; i++)
        say_item(i);
}
static void twice(void)
{
    say_item(0);
    say_item(0);
}
static void far_ahead(void)
{
    say_item(RPC_STREAM_ITEMS);
}
static void after_the_end(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_END, 0, NULL, 0, 0);
    say_item(0);
}
static void two_ends(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_END, 0, NULL, 0, 0);
    joined_say(&j, JOINED_CLIENT, RPC_END, 0, NULL, 0, 0);
}
static void long_end(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_END, 0, "12345678", 8, 0);
}
static void end_with_payload(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_END, 0, NULL, 0, 8);
}
static void short_item(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_ITEM, 0, "1234", 4, 0);
}
static void no_value(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_ITEM, 0, &(item_t){.value = 0}, sizeof(item_t) - 1, 0);
}
static void with_payload(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_ITEM, 0, &(item_t){.value = 0}, sizeof(item_t), 60000);
}
static void bytes_nowhere(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_ITEM, 0, &(item_t){.ext = {RPC_F_BYTES, 0, 8}}, sizeof(rpc_ext_t), 0);
}
static void odd_flags(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_ITEM, 0, &(item_t){.ext = {RPC_F_FAILED, 0, 0}}, sizeof(item_t), 0);
}
static void less_credit(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_CREDIT, 0, &(rpc_credit_t){RPC_STREAM_ITEMS - 1, RPC_STREAM_BYTES}, sizeof(rpc_credit_t),
               0);
}
static void short_credit(void)
{
    joined_say(&j, JOINED_CLIENT, RPC_CREDIT, 0, &(rpc_credit_t){100, RPC_STREAM_BYTES}, 8, 0);
}

TEST(breaking_the_rules_ends_the_endpoint)
{
    static void (*const breaks[])(void) = {too_many,         twice,       far_ahead, after_the_end, two_ends,      long_end,
                                           end_with_payload, short_item,  no_value,  with_payload,  bytes_nowhere, odd_flags,
                                           less_credit,      short_credit};
    for (unsigned i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        joined_open(&j, &pair_ways[i % 2], both_ways);
        breaks[i]();
        pair_run(&j.pair, 0.01);
        CHECK_OK(weft_ep_get_info(j.pair.ep[JOINED_SERVER], &info));
        if (info.state != WEFT_EP_FAILED)
            FAIL("break %u was borne", i);
        joined_close(&j);
    }
}

TEST(more_bytes_than_were_granted_end_the_endpoint)
{
    struct {
        rpc_ext_t ext;
        uint32_t out_of_line, zero;
        uint64_t n;
    } item = {.out_of_line = UINT32_MAX, .n = 65536};
    for (unsigned k = 0; k < 2; k++) {
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        joined_open(&j, &pair_ways[k], "f(in: stream [u8]) -> void");
        for (uint32_t i = 0; i < 17; i++) { /* with what describes them, the sixteenth goes beyond */
            CHECK_OK(weft_ep_get_info(j.pair.ep[JOINED_SERVER], &info));
            CHECK_EQ(info.state, WEFT_EP_UP);
            joined_say(&j, JOINED_CLIENT, RPC_ITEM, i, &item, sizeof item, 65536);
        }
        pair_run(&j.pair, 0.01);
        CHECK_OK(weft_ep_get_info(j.pair.ep[JOINED_SERVER], &info));
        CHECK_EQ(info.state, WEFT_EP_FAILED);
        joined_close(&j);
    }
}

TEST(nothing_may_come_where_the_signature_has_nothing)
{
    static const char *const sigs[] = {"f() -> stream u64", "f(in: stream u64) -> void"};
    for (unsigned i = 0; i < 2; i++) {
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        joined_open(&j, &pair_ways[i], sigs[i]);
        if (i)
            joined_say(&j, JOINED_CLIENT, RPC_CREDIT, 0, &(rpc_credit_t){100, RPC_STREAM_BYTES}, sizeof(rpc_credit_t), 0);
        else
            say_item(0);
        pair_run(&j.pair, 0.01);
        CHECK_OK(weft_ep_get_info(j.pair.ep[JOINED_SERVER], &info));
        CHECK_EQ(info.state, WEFT_EP_FAILED);
        joined_close(&j);
    }
}

TEST(what_was_lost_at_the_sender_is_noticed)
{
    for (unsigned k = 0; k < 2; k++) {
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        uint64_t value;
        joined_open(&j, &pair_ways[k], both_ways);
        say_item(0);
        if (k)
            joined_say(&j, JOINED_CLIENT, RPC_END, 2, NULL, 0, 0);
        else
            say_item(2);
        pair_run(&j.pair, 0.01);
        CHECK_EQ(joined_recv_u64(&j, JOINED_SERVER, &value), WEFT_ERR_PEER);
        CHECK_OK(weft_ep_get_info(j.pair.ep[JOINED_SERVER], &info));
        CHECK_EQ(info.state, WEFT_EP_UP);
        joined_close(&j);
    }
}

TEST(an_item_larger_than_what_is_taken_is_not)
{
    static uint8_t bytes[100000];
    each_way(way) {
        weft_item_t item;
        if (way->mode == WEFT_PROGRESS_THREAD) /* the limit is the driver's to set */
            continue;
        joined_open(&j, way, "f(in: stream [u8]) -> void");
        j.s[JOINED_SERVER]->in.item_max = 50000;
        CHECK_OK(joined_send(&j, JOINED_CLIENT, weft_vector(WEFT_T_U8, bytes, 40000)));
        CHECK_EQ(joined_recv(&j, JOINED_SERVER, &item), 1);
        weft_item_release(&item);
        for (unsigned i = 0; i < 200; i++) /* what follows is dropped, and nobody waits */
            CHECK_EQ(joined_send(&j, JOINED_CLIENT, weft_vector(WEFT_T_U8, bytes, sizeof bytes)), WEFT_ERR_REJECTED);
        CHECK_EQ(joined_recv(&j, JOINED_SERVER, &item), WEFT_ERR_LIMIT);
        joined_close(&j);
    }
}

/* --- threads ---------------------------------------------------------------------------------------------------------------- */

enum { MANY = 5000 };
static _Atomic unsigned threads_done;

static void *sends_many(void *user)
{
    int side = *(int *)user;
    weft_op_t ops[8] = {WEFT_OP_INIT};
    weft_value_t values[8];
    for (uint64_t i = 0; i < MANY; i++) {
        CHECK_OK(i < 8 ? WEFT_OK : weft_op_wait(&ops[i % 8], 60 * WEFT_SECOND));
        values[i % 8] = weft_u64(i);
        CHECK_OK(weft_stream_send(j.s[side], &values[i % 8], &ops[i % 8]));
    }
    for (unsigned i = 0; i < 8; i++)
        CHECK_OK(weft_op_wait(&ops[i], 60 * WEFT_SECOND));
    CHECK_OK(weft_stream_end(j.s[side], NULL));
    atomic_fetch_add(&threads_done, 1);
    return NULL;
}

static void *receives_many(void *user)
{
    int side = *(int *)user;
    weft_op_t op = WEFT_OP_INIT;
    weft_item_t item;
    for (uint64_t i = 0; i <= MANY; i++) {
        CHECK_OK(weft_stream_recv(j.s[side], &item, &op));
        CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
        CHECK_EQ(op.len, i < MANY);
        if (i < MANY)
            CHECK_EQ(item.value.u64, i);
    }
    atomic_fetch_add(&threads_done, 1);
    return NULL;
}

TEST(a_thread_for_each_direction_of_each_side)
{
    static int sides[2] = {JOINED_SERVER, JOINED_CLIENT};
    each_way(way) {
        pthread_t threads[4];
        joined_open(&j, way, both_ways);
        for (int i = 0; i < 4; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, i < 2 ? sends_many : receives_many, &sides[i % 2]), 0);
        PAIR_UNTIL(&j.pair, atomic_load(&threads_done) == 4, 100); /* what was sent last needs somebody to drive it */
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        atomic_store(&threads_done, 0);
        joined_close(&j);
    }
}
