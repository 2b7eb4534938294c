/* Tag messages between two runtimes: every way to send and to receive, over shared memory and TCP, driven by the caller and by
 * threads.
 *
 * ctest: tls-long */
#include <weft/store.h>

#include "lib/pair.h"
#include "test.h"

static pair_t pair;

/* Send len bytes from one side, receive them on the other into exactly that much; the receive is posted before or after. */
static void round_of(size_t len, int from, bool recv_first)
{
    uint8_t *out = (uint8_t *)malloc(len + 1), *in = (uint8_t *)malloc(len + 1);
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    uint64_t tag = UINT64_C(0xabcdef0000000000) + len;
    pattern_fill(out, len, len);
    in[len] = 0x5a;
    if (recv_first)
        CHECK_OK(weft_msg_recv(pair.ep[1 - from], in, len, tag, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(pair.ep[from], out, len, tag, &send));
    if (!recv_first) {
        pair_run(&pair, 0.002);
        CHECK_OK(weft_msg_recv(pair.ep[1 - from], in, len, tag, WEFT_TAG_FULL, &recv));
    }
    CHECK_OK(pair_wait(&pair, &recv, 20));
    CHECK_OK(pair_wait(&pair, &send, 20));
    CHECK_EQ(recv.len, len);
    CHECK_EQ(recv.tag, tag);
    CHECK_EQ(recv.from, weft_ep_id(pair.ep[1 - from]));
    CHECK_EQ(pattern_check(in, len, len), len);
    CHECK_EQ(in[len], 0x5a);
    free(out);
    free(in);
}

TEST(messages_of_every_size_class_arrive_whole_in_both_directions)
{
    static const size_t sizes[] = {0,    1,    7,    8,    63,   64,    65,    1000,    4000,
                                   4096, 8000, 8176, 8192, 8193, 16384, 65536, 1000003, 9000001};
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            round_of(sizes[i], 1, true);
            round_of(sizes[i], 0, true);
            round_of(sizes[i], 1, false);
            round_of(sizes[i], 0, false);
        }
        pair_close(&pair);
    }
}

TEST(order_is_kept_per_endpoint_and_tag_when_small_and_large_mix)
{
    enum { N = 300 };
    each_way(way) {
        static uint8_t out[N][20000], in[N][20000];
        static weft_op_t send[N], recv[N];
        memset(send, 0, sizeof send);
        memset(recv, 0, sizeof recv);
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < N; i++) {
            size_t len = i % 3 == 0 ? 8 : i % 3 == 1 ? 20000 : 3000;
            pattern_fill(out[i], len, i);
            CHECK_OK(weft_msg_send(pair.ep[1], out[i], len, 5, &send[i]));
        }
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(weft_msg_recv(pair.ep[0], in[i], sizeof in[i], 5, WEFT_TAG_FULL, &recv[i]));
        for (unsigned i = 0; i < N; i++) {
            CHECK_OK(pair_wait(&pair, &recv[i], 20));
            CHECK_OK(pair_wait(&pair, &send[i], 20));
            CHECK_EQ(pattern_check(in[i], recv[i].len, i), recv[i].len);
        }
        pair_close(&pair);
    }
}

TEST(masks_and_any_endpoint_choose_the_right_message)
{
    each_way(way) {
        weft_op_t s = WEFT_OP_INIT, exact = WEFT_OP_INIT, masked = WEFT_OP_INIT, any = WEFT_OP_INIT;
        uint64_t a = 0, b = 0, c = 0, value;
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_msg_recv(pair.ep[0], &a, sizeof a, 0x11, WEFT_TAG_FULL, &exact));
        CHECK_OK(weft_msg_recv(pair.ep[0], &b, sizeof b, 0x20, 0xf0, &masked));
        CHECK_OK(weft_msg_recv_any(pair.rt[0], &c, sizeof c, 0, WEFT_TAG_ANY, &any));
        value = 1;
        CHECK_OK(weft_msg_send(pair.ep[1], &value, sizeof value, 0x2f, &s));
        CHECK_OK(pair_wait(&pair, &s, 5));
        value = 2;
        CHECK_OK(weft_msg_send(pair.ep[1], &value, sizeof value, 0x99, &s));
        CHECK_OK(pair_wait(&pair, &s, 5));
        value = 3;
        CHECK_OK(weft_msg_send(pair.ep[1], &value, sizeof value, 0x11, &s));
        CHECK_OK(pair_wait(&pair, &exact, 5));
        CHECK_OK(pair_wait(&pair, &masked, 5));
        CHECK_OK(pair_wait(&pair, &any, 5));
        CHECK(a == 3 && b == 1 && c == 2);
        CHECK_EQ(masked.tag, 0x2f);
        CHECK_EQ(any.from, weft_ep_id(pair.ep[0]));
        pair_close(&pair);
    }
}

TEST(a_message_longer_than_the_buffer_is_truncated_and_writes_nothing)
{
    static const size_t sizes[] = {100, 100000};
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < 4; i++) {
            static uint8_t out[100000];
            uint8_t in[64];
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            size_t len = sizes[i % 2];
            memset(in, 0x77, sizeof in);
            if (i < 2)
                CHECK_OK(weft_msg_recv(pair.ep[0], in, 32, 1, WEFT_TAG_FULL, &recv));
            CHECK_OK(weft_msg_send(pair.ep[1], out, len, 1, &send));
            if (i >= 2) {
                pair_run(&pair, 0.002);
                CHECK_OK(weft_msg_recv(pair.ep[0], in, 32, 1, WEFT_TAG_FULL, &recv));
            }
            CHECK_EQ(pair_wait(&pair, &recv, 5), WEFT_ERR_TRUNCATED);
            CHECK_EQ(recv.len, len);
            CHECK_OK(pair_wait(&pair, &send, 5));
            for (unsigned j = 0; j < sizeof in; j++)
                CHECK_EQ(in[j], 0x77);
        }
        round_of(100, 1, true); /* and the endpoint goes on */
        pair_close(&pair);
    }
}

TEST(a_receive_can_make_a_buffer_that_fits)
{
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (size_t len = 0; len <= 200000; len = len * 7 + 3) {
            uint8_t *out = (uint8_t *)malloc(len + 1);
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            pattern_fill(out, len, 3);
            CHECK_OK(weft_msg_recv_alloc(pair.rt[0], pair.ep[0], SIZE_MAX, 9, WEFT_TAG_FULL, &recv));
            CHECK_OK(weft_msg_send(pair.ep[1], out, len, 9, &send));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_OK(pair_wait(&pair, &send, 5));
            CHECK_EQ(recv.len, len);
            CHECK(recv.buf != NULL);
            CHECK_EQ(pattern_check(recv.buf, len, 3), len);
            weft_buf_free(recv.buf);
            free(out);
        }
        pair_close(&pair);
    }
}

TEST(pieces_are_gathered_and_scattered)
{
    static const size_t cuts[] = {0, 1, 100, 5000, 5000, 90000};
    each_way(way) {
        static uint8_t out[100101], in[100101];
        weft_iov_t from[6], to[3] = {{in, 7}, {in + 7, 60000}, {in + 60007, sizeof in - 60007}};
        size_t total = 0;
        pair_open(&pair, way, NULL);
        pattern_fill(out, sizeof out, 11);
        for (unsigned i = 0; i < 6; i++) {
            from[i] = (weft_iov_t){out + total, cuts[i]};
            total += cuts[i];
        }
        for (unsigned n = 3; n <= 6; n += 3) { /* 101 bytes, and 100101 */
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
            size_t len = n == 3 ? 101 : 100101;
            opts.iov = from;
            opts.iov_n = n;
            opts.tag = 4;
            memset(in, 0, sizeof in);
            CHECK_OK(weft_msg_recv_iov(pair.rt[0], pair.ep[0], to, 3, 4, WEFT_TAG_FULL, &recv));
            CHECK_OK(weft_msg_send_with(pair.ep[1], &opts, &send));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_OK(pair_wait(&pair, &send, 5));
            CHECK_EQ(recv.len, len);
            CHECK_EQ(pattern_check(in, len, 11), len);
        }
        pair_close(&pair);
    }
}

static void count_release(void *buf, void *user)
{
    __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
    free(buf);
}

TEST(owned_buffers_are_released_once_with_and_without_an_operation)
{
    each_way(way) {
        int released = 0, sent = 0;
        pair_open(&pair, way, NULL);
        for (size_t len = 1; len < 300000; len *= 9) {
            for (int with_op = 0; with_op < 2; with_op++) {
                weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
                weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
                opts.buf = malloc(len);
                opts.len = len;
                opts.release = count_release;
                opts.release_user = &released;
                pattern_fill((void *)(uintptr_t)opts.buf, len, 1);
                CHECK_OK(weft_msg_recv_alloc(pair.rt[0], NULL, len, 0, WEFT_TAG_ANY, &recv));
                CHECK_OK(weft_msg_send_with(pair.ep[1], &opts, with_op ? &send : NULL));
                CHECK_OK(pair_wait(&pair, &recv, 5));
                if (with_op)
                    CHECK_OK(pair_wait(&pair, &send, 5));
                CHECK_EQ(pattern_check(recv.buf, len, 1), len);
                weft_buf_free(recv.buf);
                sent++;
            }
        }
        pair_close(&pair);
        CHECK_EQ(released, sent);
    }
}

TEST(a_probe_sees_a_message_and_a_claim_takes_it)
{
    static const size_t sizes[] = {5, 70000};
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < 2; i++) {
            size_t len = sizes[i];
            uint8_t *out = (uint8_t *)malloc(len), *in = (uint8_t *)malloc(len);
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT, other = WEFT_OP_INIT;
            weft_msg_envelope_t env;
            weft_msg_t *msg = NULL;
            uint8_t byte;
            pattern_fill(out, len, 2);
            CHECK_EQ(weft_msg_probe(pair.rt[0], NULL, 6, WEFT_TAG_FULL, &env), WEFT_ERR_NOTFOUND);
            CHECK_OK(weft_msg_send(pair.ep[1], out, len, 6, &send));
            double end = test_now() + 5;
            while (weft_msg_probe(pair.rt[0], pair.ep[0], 6, WEFT_TAG_FULL, &env) == WEFT_ERR_NOTFOUND) {
                pair_run(&pair, 0.0005);
                CHECK(test_now() < end);
            }
            CHECK(env.len == len && env.tag == 6 && env.from == weft_ep_id(pair.ep[0]));
            CHECK_OK(weft_msg_claim(pair.rt[0], NULL, 0, WEFT_TAG_ANY, &env, &msg));
            CHECK_EQ(weft_msg_probe(pair.rt[0], NULL, 6, WEFT_TAG_FULL, &env), WEFT_ERR_NOTFOUND);
            CHECK_OK(weft_msg_recv_any(pair.rt[0], &byte, 1, 6, WEFT_TAG_FULL, &other)); /* does not get the claimed one */
            CHECK_OK(weft_msg_recv_claimed(msg, in, len, &recv));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_OK(pair_wait(&pair, &send, 5));
            CHECK_EQ(pattern_check(in, len, 2), len);
            CHECK(!weft_op_done(&other));
            weft_op_cancel(&other);
            CHECK_EQ(pair_wait(&pair, &other, 5), WEFT_ERR_CANCELLED);
            /* and one that is dropped completes its sender */
            CHECK_OK(weft_msg_send(pair.ep[1], out, len, 6, &send));
            end = test_now() + 5;
            while (weft_msg_claim(pair.rt[0], NULL, 6, WEFT_TAG_FULL, NULL, &msg) == WEFT_ERR_NOTFOUND) {
                pair_run(&pair, 0.0005);
                CHECK(test_now() < end);
            }
            weft_msg_drop_claimed(msg);
            CHECK_OK(pair_wait(&pair, &send, 5));
            free(out);
            free(in);
        }
        pair_close(&pair);
    }
}

TEST(receives_end_by_deadline_by_cancel_and_by_close)
{
    each_way(way) {
        weft_op_t timed = WEFT_OP_INIT, cancelled = WEFT_OP_INIT, closed = WEFT_OP_INIT, any = WEFT_OP_INIT, close = WEFT_OP_INIT;
        uint64_t buf[4];
        pair_open(&pair, way, NULL);
        timed.timeout_ns = 20 * WEFT_MILLISECOND;
        CHECK_OK(weft_msg_recv(pair.ep[0], &buf[0], 8, 1, WEFT_TAG_FULL, &timed));
        CHECK_OK(weft_msg_recv(pair.ep[0], &buf[1], 8, 1, WEFT_TAG_FULL, &cancelled));
        CHECK_OK(weft_msg_recv(pair.ep[0], &buf[2], 8, 1, WEFT_TAG_FULL, &closed));
        CHECK_OK(weft_msg_recv_any(pair.rt[0], &buf[3], 8, 1, WEFT_TAG_FULL, &any));
        double start = test_now();
        CHECK_EQ(pair_wait(&pair, &timed, 5), WEFT_ERR_TIMEOUT);
        CHECK(test_now() - start > 0.015);
        weft_op_cancel(&cancelled);
        CHECK_EQ(pair_wait(&pair, &cancelled, 5), WEFT_ERR_CANCELLED);
        CHECK(!weft_op_done(&closed));
        CHECK_OK(weft_ep_close(pair.ep[0], &close));
        pair.ep[0] = NULL;
        CHECK_EQ(pair_wait(&pair, &closed, 5), WEFT_ERR_CLOSED);
        CHECK_OK(pair_wait(&pair, &close, 5));
        CHECK(!weft_op_done(&any));
        weft_op_cancel(&any);
        CHECK_EQ(pair_wait(&pair, &any, 5), WEFT_ERR_CANCELLED);
        pair_close(&pair);
    }
}

TEST(a_large_send_nobody_receives_ends_by_cancel_and_by_deadline)
{
    each_way(way) {
        static uint8_t big[1 << 20];
        weft_op_t cancelled = WEFT_OP_INIT, timed = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        uint64_t word;
        pair_open(&pair, way, NULL);
        timed.timeout_ns = 30 * WEFT_MILLISECOND;
        CHECK_OK(weft_msg_send(pair.ep[1], big, sizeof big, 1, &cancelled));
        CHECK_OK(weft_msg_send(pair.ep[1], big, sizeof big, 2, &timed));
        pair_run(&pair, 0.01);
        CHECK(!weft_op_done(&cancelled));
        weft_op_cancel(&cancelled);
        CHECK_EQ(pair_wait(&pair, &cancelled, 5), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&pair, &timed, 5), WEFT_ERR_TIMEOUT);
        CHECK_EQ(weft_msg_probe(pair.rt[0], NULL, 0, WEFT_TAG_ANY, NULL), WEFT_ERR_NOTFOUND);
        CHECK_OK(weft_msg_recv(pair.ep[0], &word, 8, 3, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(pair.ep[1], big, 8, 3, NULL));
        CHECK_OK(pair_wait(&pair, &recv, 5));
        pair_close(&pair);
    }
}

TEST(bad_arguments_get_a_sentence_and_start_nothing)
{
    weft_op_t op = WEFT_OP_INIT, busy = WEFT_OP_INIT;
    weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
    uint64_t word;
    pair_open(&pair, &pair_ways[0], NULL);
    CHECK_EQ(weft_msg_send(pair.ep[1], NULL, 8, 0, &op), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "NULL with a length of 8"));
    CHECK_EQ(weft_msg_send(NULL, &word, 8, 0, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_msg_recv(pair.ep[1], NULL, 8, 0, 0, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_msg_recv(pair.ep[1], &word, 8, 0, 0, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_msg_send_with(pair.ep[1], &opts, NULL), WEFT_ERR_INVALID);
    opts.iov = (weft_iov_t[]){{NULL, 3}};
    opts.iov_n = 1;
    CHECK_EQ(weft_msg_send_with(pair.ep[1], &opts, &op), WEFT_ERR_INVALID);
    CHECK(weft_op_done(&op));
    CHECK_OK(weft_msg_recv(pair.ep[1], &word, 8, 0, 0, &busy));
    CHECK_EQ(weft_msg_recv(pair.ep[1], &word, 8, 0, 0, &busy), WEFT_ERR_STATE); /* it is under way */
    weft_op_cancel(&busy);
    CHECK_EQ(pair_wait(&pair, &busy, 5), WEFT_ERR_CANCELLED);
    pair_close(&pair);
}

TEST(endpoint_and_runtime_count_what_went_and_came)
{
    each_way(way) {
        weft_ep_info_t info[2] = {WEFT_EP_INFO_INIT, WEFT_EP_INFO_INIT};
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        pair_open(&pair, way, NULL);
        round_of(100, 1, true);
        round_of(100000, 1, true);
        round_of(7, 0, true);
        for (int i = 0; i < 2; i++)
            CHECK_OK(weft_ep_get_info(pair.ep[i], &info[i]));
        CHECK(info[0].peer_capabilities ==
                  (WEFT_CAN_MSG | WEFT_CAN_AM | WEFT_CAN_RMA | WEFT_CAN_STORE | WEFT_CAN_RPC | WEFT_CAN_DEVICE) &&
              info[1].peer_capabilities == info[0].peer_capabilities);
        CHECK(info[1].msgs_sent == 2 && info[1].bytes_sent == 100100 && info[1].msgs_received == 1 &&
              info[1].bytes_received == 7);
        CHECK(info[0].msgs_sent == 1 && info[0].bytes_sent == 7 && info[0].msgs_received == 2 &&
              info[0].bytes_received == 100100);
        weft_runtime_get_stats(pair.rt[0], &stats);
        CHECK(stats.msgs_received == 2 && stats.bytes_received == 100100 && stats.msgs_sent == 1);
        pair_close(&pair);
    }
}
