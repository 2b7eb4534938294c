/* Endings as a user of messages sees them: what was sent arrives, what cannot arrive says so.
 *
 * ctest: tls-long */
#include "lib/pair.h"
#include "test.h"

static pair_t pair;

/* A thread that does not drive the runtime learns of an error by the completion, one that does by the call. */
static weft_status_t outcome(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : pair_wait(&pair, op, 5);
}

TEST(a_graceful_close_loses_no_message_and_counts_what_is_not_yet_received)
{
    static const size_t sizes[] = {8, 3000};
    each_way(way) {
        for (unsigned s = 0; s < 2; s++) {
            enum { N = 50, TAKEN = 10 };
            uint8_t out[3000], in[3000];
            weft_op_t close = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            size_t len = sizes[s];
            weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
            opts.recv_window = 1 << 20; /* all of them are eager: an announced one has to be received before its sender may go */
            pair_open(&pair, way, &opts);
            for (unsigned i = 0; i < N; i++) {
                weft_op_t send = WEFT_OP_INIT;
                pattern_fill(out, len, i);
                CHECK_OK(weft_msg_send(pair.ep[1], out, len, 1, &send));
                CHECK_OK(pair_wait(&pair, &send, 5));
            }
            for (unsigned i = 0; i < TAKEN; i++) {
                CHECK_OK(weft_msg_recv(pair.ep[0], in, len, 1, WEFT_TAG_FULL, &recv));
                CHECK_OK(pair_wait(&pair, &recv, 5));
            }
            CHECK_OK(weft_ep_close(pair.ep[1], &close));
            pair.ep[1] = NULL;
            CHECK_OK(pair_wait(&pair, &close, 5));
            CHECK_EQ(close.len, N - TAKEN);
            for (unsigned i = TAKEN; i < N; i++) { /* after the connection is gone */
                CHECK_OK(weft_msg_recv(pair.ep[0], in, len, 1, WEFT_TAG_FULL, &recv));
                CHECK_OK(pair_wait(&pair, &recv, 5));
                CHECK_EQ(pattern_check(in, len, i), len);
            }
            CHECK_EQ(weft_ep_get_state(pair.ep[0]), WEFT_EP_PEER_CLOSED);
            CHECK_EQ(outcome(weft_msg_recv(pair.ep[0], in, len, 1, WEFT_TAG_FULL, &recv), &recv), WEFT_ERR_CLOSED);
            CHECK_EQ(outcome(weft_msg_send(pair.ep[0], in, len, 1, &recv), &recv), WEFT_ERR_CLOSED);
            pair_close(&pair);
        }
    }
}

TEST(a_close_waits_for_large_sends_that_are_under_way)
{
    each_way(way) {
        enum { LEN = 3 << 20 };
        static uint8_t out[LEN], in[LEN];
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT, close = WEFT_OP_INIT;
        pair_open(&pair, way, NULL);
        pattern_fill(out, LEN, 8);
        CHECK_OK(weft_msg_send(pair.ep[1], out, LEN, 1, &send));
        CHECK_OK(weft_ep_close(pair.ep[1], &close));
        pair.ep[1] = NULL;
        pair_run(&pair, 0.05);
        CHECK(!weft_op_done(&close));
        CHECK_OK(weft_msg_recv(pair.ep[0], in, LEN, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(pair_wait(&pair, &recv, 5));
        CHECK_OK(pair_wait(&pair, &send, 5));
        CHECK_OK(pair_wait(&pair, &close, 5));
        CHECK_EQ(close.len, 0);
        CHECK_EQ(pattern_check(in, LEN, 8), LEN);
        pair_close(&pair);
    }
}

TEST(a_close_waits_for_sends_that_wait_for_the_window)
{
    enum { N = 4000 };
    each_way(way) {
        static weft_op_t send[N];
        static uint64_t out[N];
        weft_op_t close = WEFT_OP_INIT;
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        memset(send, 0, sizeof send);
        opts.recv_window = 65536;
        pair_open(&pair, way, &opts);
        for (uint64_t i = 0; i < N; i++) {
            out[i] = i;
            CHECK_OK(weft_msg_send(pair.ep[1], &out[i], sizeof out[i], 1, &send[i]));
        }
        CHECK_OK(weft_ep_close(pair.ep[1], &close));
        pair.ep[1] = NULL;
        for (uint64_t i = 0; i < N; i++) {
            weft_op_t recv = WEFT_OP_INIT;
            uint64_t value;
            CHECK_OK(weft_msg_recv(pair.ep[0], &value, sizeof value, 1, WEFT_TAG_FULL, &recv));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_EQ(value, i);
        }
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(pair_wait(&pair, &send[i], 5));
        CHECK_OK(pair_wait(&pair, &close, 5));
        CHECK(close.len < N); /* the last ones, which were on their way when the receives began to overtake them */
        pair_close(&pair);
    }
}

TEST(an_abort_ends_everything_on_both_sides_at_once)
{
    each_way(way) {
        static uint8_t big[1 << 20];
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT, theirs = WEFT_OP_INIT, abort_op = WEFT_OP_INIT;
        uint64_t word[2];
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_msg_send(pair.ep[1], big, sizeof big, 1, &send));
        CHECK_OK(weft_msg_recv(pair.ep[1], &word[0], 8, 2, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_recv(pair.ep[0], &word[1], 8, 2, WEFT_TAG_FULL, &theirs));
        pair_run(&pair, 0.01);
        double start = test_now();
        CHECK_OK(weft_ep_abort(pair.ep[1], &abort_op));
        pair.ep[1] = NULL;
        CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&pair, &recv, 5), WEFT_ERR_CANCELLED);
        CHECK_OK(pair_wait(&pair, &abort_op, 5));
        CHECK_EQ(pair_wait(&pair, &theirs, 5), WEFT_ERR_PEER);
        CHECK(test_now() - start < 2);
        pair_close(&pair);
    }
}

TEST(closing_the_runtime_ends_every_operation)
{
    each_way(way) {
        static uint8_t big[1 << 20];
        weft_op_t ops[4] = {WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT};
        uint64_t word[2];
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_msg_send(pair.ep[1], big, sizeof big, 1, &ops[0]));
        CHECK_OK(weft_msg_recv(pair.ep[1], &word[0], 8, 2, WEFT_TAG_FULL, &ops[1]));
        CHECK_OK(weft_msg_recv_any(pair.rt[1], &word[1], 8, 2, WEFT_TAG_FULL, &ops[2]));
        CHECK_OK(weft_timer_start(pair.rt[1], WEFT_SECOND * 1000, &ops[3]));
        CHECK_OK(weft_runtime_close(pair.rt[1]));
        pair.rt[1] = NULL;
        for (unsigned i = 0; i < 4; i++) {
            CHECK(weft_op_done(&ops[i]));
            if (ops[i].status == WEFT_OK)
                FAIL("%s, mode %d: operation %u succeeded", way->transports, way->mode, i);
        }
        pair_run(&pair, 0.05);
        CHECK_OK(weft_runtime_close(pair.rt[0]));
    }
}

TEST(messages_that_were_claimed_outlive_their_runtime)
{
    each_way(way) {
        static char large[100000];
        weft_op_t sends[3], recv = WEFT_OP_INIT;
        weft_msg_t *msgs[3];
        pair_open(&pair, way, NULL);
        for (int i = 0; i < 3; i++) {
            sends[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_msg_send(pair.ep[1], large, i ? 10 : sizeof large, (uint64_t)i, &sends[i]));
            PAIR_UNTIL(&pair, !weft_msg_claim(pair.rt[0], NULL, (uint64_t)i, WEFT_TAG_FULL, NULL, &msgs[i]), 5);
        }
        weft_msg_drop_claimed(msgs[2]);
        CHECK_OK(weft_runtime_close(pair.rt[0]));
        pair.rt[0] = NULL;
        pair.listener = NULL;
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(weft_msg_recv_claimed(msgs[i], large, sizeof large, &recv), WEFT_ERR_CLOSED);
            weft_msg_drop_claimed(msgs[i]);
        }
        CHECK(weft_op_wait(&sends[0], 10 * WEFT_SECOND) != WEFT_ERR_TIMEOUT);
        CHECK_OK(weft_runtime_close(pair.rt[1]));
    }
}
