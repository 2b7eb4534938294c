/* Flow control: a sender that outruns its receiver waits, the receiver's memory stays within its window, nothing is lost.
 *
 * ctest: tls-long */
#include "lib/pair.h"
#include "test.h"

static pair_t pair;

static uint64_t held(int side)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(pair.rt[side], &stats);
    return stats.unexpected_bytes;
}

/* Post n sends of len bytes that nobody asked for, look at the receiver's memory, then receive them all in order. */
static void flood(const pair_way_t *way, unsigned n, size_t len, size_t window)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t *send = (weft_op_t *)calloc(n, sizeof *send);
    uint8_t *out = (uint8_t *)malloc(n * len), *in = (uint8_t *)malloc(len + 1);
    unsigned waiting = 0;
    opts.recv_window = window;
    pair_open(&pair, way, &opts);
    for (unsigned i = 0; i < n; i++) {
        pattern_fill(out + i * len, len, i);
        CHECK_OK(weft_msg_send(pair.ep[1], out + i * len, len, 1, &send[i]));
        if (i % 64 == 0)
            pair_run(&pair, 0);
    }
    pair_run(&pair, 0.1);
    CHECK(held(0) <= window);
    for (unsigned i = 0; i < n; i++)
        waiting += !weft_op_done(&send[i]);
    CHECK(waiting > 0); /* it did outrun */
    for (unsigned i = 0; i < n; i++) {
        weft_op_t recv = WEFT_OP_INIT;
        CHECK_OK(weft_msg_recv(pair.ep[0], in, len, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(pair_wait(&pair, &recv, 10));
        CHECK_EQ(recv.len, len);
        CHECK_EQ(pattern_check(in, len, i), len);
        CHECK(held(0) <= window);
    }
    for (unsigned i = 0; i < n; i++)
        CHECK_OK(pair_wait(&pair, &send[i], 10));
    CHECK_EQ(held(0), 0);
    pair_close(&pair);
    free(send);
    free(out);
    free(in);
}

TEST(small_messages_wait_in_the_sender_when_the_window_is_full)
{
    each_way(way)
        flood(way, 5000, 8, 65536);
}

TEST(middle_messages_wait_in_the_sender_when_the_window_is_full)
{
    each_way(way)
        flood(way, 600, 4000, 65536);
}

TEST(large_messages_wait_in_the_sender_and_cost_the_receiver_only_their_envelope)
{
    each_way(way)
        flood(way, 300, 100000, 16384);
}

TEST(a_receive_for_a_tag_behind_the_window_still_finds_its_message)
{
    each_way(way) {
        enum { N = 400 };
        static uint8_t out[N][1000], in[1000];
        static weft_op_t send[N];
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        weft_op_t recv = WEFT_OP_INIT;
        memset(send, 0, sizeof send);
        opts.recv_window = 65536;
        pair_open(&pair, way, &opts);
        for (unsigned i = 0; i < N; i++) {
            pattern_fill(out[i], sizeof out[i], i);
            CHECK_OK(weft_msg_send(pair.ep[1], out[i], sizeof out[i], i, &send[i]));
        }
        /* Backwards within reach of the announcements: 48 KiB of eager messages, then 128 bytes each. */
        for (unsigned i = 150; i-- > 0;) {
            if (i % 2)
                CHECK_OK(weft_msg_recv(pair.ep[0], in, sizeof in, i, WEFT_TAG_FULL, &recv));
            else
                CHECK_OK(weft_msg_recv_any(pair.rt[0], in, sizeof in, i, WEFT_TAG_FULL, &recv));
            CHECK_OK(pair_wait(&pair, &recv, 10));
            CHECK_EQ(pattern_check(in, sizeof in, i), sizeof in);
        }
        for (unsigned i = 150; i < N; i++) {
            CHECK_OK(weft_msg_recv(pair.ep[0], in, sizeof in, i, WEFT_TAG_FULL, &recv));
            CHECK_OK(pair_wait(&pair, &recv, 10));
            CHECK_EQ(pattern_check(in, sizeof in, i), sizeof in);
        }
        pair_close(&pair);
    }
}

TEST(no_wait_says_again_when_the_window_is_full_and_starts_nothing)
{
    each_way(way) {
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        weft_msg_send_opts_t send = WEFT_MSG_SEND_OPTS_INIT;
        uint64_t word = 1;
        unsigned accepted = 0;
        opts.recv_window = 16384;
        pair_open(&pair, way, &opts);
        send.buf = &word;
        send.len = 0;                                    /* never announced: what is accepted is complete */
        const unsigned room = (16384 - 16384 / 4) / 128; /* the last quarter is for when a receive waits */
        send.tag = 3;
        send.no_wait = true;
        weft_status_t st = WEFT_OK;
        for (double end = test_now() + 10; st != WEFT_ERR_AGAIN || accepted < room; pair_run(&pair, 0.0001)) {
            weft_op_t op = WEFT_OP_INIT;
            st = weft_msg_send_with(pair.ep[1], &send, &op);
            if (!st)
                st = pair_wait(&pair, &op, 5);
            CHECK(st == WEFT_OK || st == WEFT_ERR_AGAIN);
            accepted += st == WEFT_OK;
            CHECK(test_now() < end);
        }
        CHECK_EQ(accepted, room);
        pair_close(&pair);
    }
}

TEST(one_slow_receiver_does_not_hold_up_another_endpoint)
{
    each_way(way) {
        enum { N = 3000 };
        static weft_op_t stuck[N];
        weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT, recv = WEFT_OP_INIT, send = WEFT_OP_INIT;
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        weft_ep_t *second;
        uint64_t word = 7, got;
        memset(stuck, 0, sizeof stuck);
        opts.recv_window = 16384;
        pair_open(&pair, way, &opts);
        CHECK_OK(weft_listener_accept(pair.listener, &accept));
        CHECK_OK(weft_ep_open(pair.rt[1], weft_listener_uri(pair.listener), NULL, &connect, &second));
        CHECK_OK(pair_wait(&pair, &connect, 5));
        CHECK_OK(pair_wait(&pair, &accept, 5));
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(weft_msg_send(pair.ep[1], &word, sizeof word, 1, &stuck[i]));
        for (unsigned i = 0; i < 1000; i++) {
            CHECK_OK(weft_msg_recv((weft_ep_t *)accept.buf, &got, sizeof got, 1, WEFT_TAG_FULL, &recv));
            CHECK_OK(weft_msg_send(second, &word, sizeof word, 1, &send));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_OK(pair_wait(&pair, &send, 5));
        }
        CHECK(!weft_op_done(&stuck[N - 1]));
        CHECK_OK(weft_ep_abort(pair.ep[1], NULL));
        pair.ep[1] = NULL;
        for (unsigned i = 0; i < N; i++)
            pair_wait(&pair, &stuck[i], 5);
        CHECK_EQ(stuck[N - 1].status, WEFT_ERR_CANCELLED);
        CHECK_OK(weft_ep_close(second, NULL));
        pair_close(&pair);
    }
}
