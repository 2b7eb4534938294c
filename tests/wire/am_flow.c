/* Flow control of active messages: the receiver's window in bytes and in messages holds, senders wait or are told to come
 * again, the window comes back however a message ends, and nobody but the slow one notices. ctest: label=thread */
#include <stdatomic.h>

#include "lib/box.h"
#include "test.h"

static pair_t pair;

static void window(const char *bytes, const char *messages)
{
    setenv("WEFT_AM_WINDOW", bytes, 1);
    setenv("WEFT_AM_MESSAGES", messages, 1);
}

static uint64_t held(int side)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(pair.rt[side], &stats);
    return stats.am_held_bytes;
}

static uint64_t arrived(void)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    CHECK_OK(weft_ep_get_info(pair.ep[0], &info));
    return info.ams_received;
}

static weft_status_t receive(uint32_t id, void *buf, size_t cap, weft_op_t *recv)
{
    weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
    want.id = id;
    want.buf = buf;
    want.cap = cap;
    *recv = (weft_op_t)WEFT_OP_INIT;
    weft_status_t st = weft_am_recv(pair.rt[0], &want, recv);
    return st ? st : pair_wait(&pair, recv, 10);
}

/* Post n sends of len bytes that nobody asked for, look at what the receiver holds, then receive them all in order. */
static void flood(const pair_way_t *way, unsigned n, size_t len, uint64_t bytes, uint64_t messages)
{
    weft_op_t *send = (weft_op_t *)calloc(n, sizeof *send), recv;
    uint8_t *out = (uint8_t *)malloc(n * len + 1), *in = (uint8_t *)malloc(len + 1);
    unsigned waiting = 0;
    pair_open(&pair, way, NULL);
    for (unsigned i = 0; i < n; i++) {
        pattern_fill(out + i * len, len, i);
        CHECK_OK(weft_am_send(pair.ep[1], 1, NULL, 0, out + i * len, len, &send[i]));
        if (i % 64 == 0)
            pair_run(&pair, 0);
    }
    pair_run(&pair, 0.1);
    CHECK(held(0) <= bytes);
    CHECK(arrived() <= messages);
    CHECK(arrived() >= 4); /* it is used, too */
    for (unsigned i = 0; i < n; i++)
        waiting += !weft_op_done(&send[i]);
    CHECK(waiting > 0); /* it did outrun */
    for (unsigned i = 0; i < n; i++) {
        CHECK_OK(receive(1, in, len, &recv));
        CHECK_EQ(recv.len, len);
        CHECK_EQ(pattern_check(in, len, i), len);
        CHECK(held(0) <= bytes);
        CHECK(arrived() <= messages + i + 1);
    }
    for (unsigned i = 0; i < n; i++)
        CHECK_OK(pair_wait(&pair, &send[i], 10));
    CHECK_EQ(held(0), 0);
    pair_close(&pair);
    free(send);
    free(out);
    free(in);
}

TEST(small_messages_wait_in_the_sender_when_the_bytes_are_used_up)
{
    window("16k", "65535");
    each_way(way)
        flood(way, 2000, 100, 16384, UINT64_MAX >> 1);
}

TEST(middle_messages_wait_in_the_sender_when_the_bytes_are_used_up)
{
    window("32k", "65535");
    each_way(way)
        flood(way, 300, 4000, 32768, UINT64_MAX >> 1);
}

TEST(messages_without_a_byte_wait_in_the_sender_when_the_messages_are_used_up)
{
    window("1M", "16");
    each_way(way)
        flood(way, 1000, 0, 1 << 20, 16);
}

TEST(large_messages_wait_in_the_sender_and_cost_the_receiver_only_their_envelope)
{
    window("16k", "64");
    each_way(way)
        flood(way, 200, 100000, 16384, 64);
}

TEST(what_is_kept_counts_against_the_window_until_it_is_released)
{
    enum { N = 400 };
    window("1M", "16");
    each_way(way) {
        static weft_op_t send[N];
        box_t *box = box_new(BOX_KEEPS);
        uint8_t *out = (uint8_t *)box_payload(4, 9000);
        memset(send, 0, sizeof send);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 4, box);
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(weft_am_send(pair.ep[1], 4, NULL, 0, out, i % 5 == 4 ? 9000 : 50, &send[i]));
        pair_run(&pair, 0.05);
        unsigned n = atomic_load(&box->n);
        CHECK(n >= 8 && n <= 16);
        for (unsigned i = 0; i < N; i++) {
            PAIR_UNTIL(&pair, atomic_load(&box->n) > i, 10);
            CHECK(atomic_load(&box->n) <= i + 16);
            weft_am_release(box->kept[i]);
            box->kept[i] = NULL;
        }
        for (unsigned i = 0; i < N; i++) {
            weft_status_t st = pair_wait(&pair, &send[i], 10);
            CHECK(st == WEFT_OK || (i % 5 == 4 && st == WEFT_ERR_REJECTED));
        }
        CHECK_EQ(held(0), 0);
        pair_close(&pair);
        free(out);
        box_free(box);
    }
}

/* Send one of these lengths to a handler, and wait until both sides are done with it. */
static void send_to_handler(box_t *box, size_t header_len, size_t len, bool confirm)
{
    weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
    weft_op_t send = WEFT_OP_INIT;
    unsigned before = atomic_load(&box->n);
    uint8_t *in = (uint8_t *)malloc(len + 1);
    opts.id = 4;
    opts.header = box_header(4, header_len);
    opts.header_len = header_len;
    opts.buf = box_payload(4, len);
    opts.len = len;
    opts.confirm = confirm;
    box_set(box, BOX_PULLS, in, len, 0);
    CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
    CHECK_OK(pair_wait(&pair, &send, 10));
    PAIR_UNTIL(&pair, atomic_load(&box->n) > before, 10);
    CHECK_EQ(box->header_right, header_len);
    if (len && !box->last.data) {
        CHECK_OK(pair_wait(&pair, &box->pull, 10));
        CHECK_EQ(pattern_check(in, len, 4), len);
    }
    free((void *)(uintptr_t)opts.header);
    free((void *)(uintptr_t)opts.buf);
    free(in);
}

TEST(a_long_header_and_a_payload_go_through_the_smallest_window)
{
    static const size_t headers[] = {0, 1900, 4000, 8192}, lens[] = {0, 100, 3800, 5000, 7995, 8190, 8300};
    window("16k", "16");
    each_way(way) {
        box_t *box = box_new(BOX_PULLS);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 4, box);
        for (unsigned i = 0; i < 4 * 7 * 2; i++)
            send_to_handler(box, headers[i / 2 % 4], lens[i / 8], i & 1);
        pair_close(&pair);
        box_free(box);
    }
}

TEST(no_wait_says_again_when_the_window_is_full_and_starts_nothing)
{
    window("64k", "16");
    each_way(way) {
        weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
        uint64_t word = 1;
        unsigned accepted = 0;
        weft_op_t recv;
        weft_status_t st = WEFT_OK;
        opts.id = 3;
        opts.buf = &word;
        opts.len = sizeof word;
        opts.no_wait = true;
        pair_open(&pair, way, NULL);
        for (unsigned again = 0; again < 50; pair_run(&pair, 0.0005)) {
            weft_op_t op = WEFT_OP_INIT;
            st = weft_am_send_with(pair.ep[1], &opts, &op);
            if (!st)
                st = pair_wait(&pair, &op, 5);
            CHECK(st == WEFT_OK || st == WEFT_ERR_AGAIN);
            accepted += st == WEFT_OK;
            again += st != WEFT_OK;
            CHECK(accepted <= 16);
        }
        CHECK(accepted >= 8);
        for (unsigned i = 0; i < accepted; i++)
            CHECK_OK(receive(3, &word, sizeof word, &recv));
        pair_run(&pair, 0.01);
        CHECK_EQ(arrived(), accepted); /* those that were told to come again did not come */
        pair_close(&pair);
    }
}

TEST(a_deadline_ends_a_send_that_waits_for_the_window_and_a_cancel_does)
{
    window("64k", "16");
    each_way(way) {
        enum { N = 40 };
        static weft_op_t stuck[N];
        weft_op_t timed = WEFT_OP_INIT, cancelled = WEFT_OP_INIT, recv;
        uint64_t word = 1, got;
        memset(stuck, 0, sizeof stuck);
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(weft_am_send(pair.ep[1], 3, NULL, 0, &word, sizeof word, &stuck[i]));
        timed.timeout_ns = 20 * WEFT_MILLISECOND;
        CHECK_OK(weft_am_send(pair.ep[1], 5, NULL, 0, &word, sizeof word, &timed));
        CHECK_OK(weft_am_send(pair.ep[1], 5, NULL, 0, &word, sizeof word, &cancelled));
        pair_run(&pair, 0.005);
        CHECK(!weft_op_done(&cancelled));
        weft_op_cancel(&cancelled);
        CHECK_EQ(pair_wait(&pair, &cancelled, 5), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&pair, &timed, 5), WEFT_ERR_TIMEOUT);
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(receive(3, &got, sizeof got, &recv));
        pair_run(&pair, 0.01);
        CHECK_EQ(arrived(), N);
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(pair_wait(&pair, &stuck[i], 5));
        pair_close(&pair);
    }
}

TEST(urgent_messages_are_bounded_like_all_others)
{
    enum { N = 100 };
    window("64k", "16");
    each_way(way) {
        static weft_op_t send[N];
        unsigned done = 0;
        memset(send, 0, sizeof send);
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < N; i++) {
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            opts.id = 3;
            opts.urgent = true;
            CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send[i]));
        }
        pair_run(&pair, 0.05);
        for (unsigned i = 0; i < N; i++)
            done += weft_op_done(&send[i]);
        CHECK(done >= 8 && done <= 16 && arrived() <= 16);
        for (unsigned i = 0; i < N; i++) {
            weft_op_t take = WEFT_OP_INIT;
            CHECK_OK(weft_am_take(pair.rt[0], NULL, 3, &take));
            CHECK_OK(pair_wait(&pair, &take, 5));
            weft_am_release((weft_am_t *)take.buf);
        }
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(pair_wait(&pair, &send[i], 5));
        pair_close(&pair);
    }
}

TEST(a_receive_for_an_id_behind_the_window_still_finds_its_message)
{
    enum { N = 200, BACK = 100 };
    window("64k", "4096");
    each_way(way) {
        static uint8_t out[N][1000], in[1000];
        static weft_op_t send[N];
        weft_op_t recv;
        memset(send, 0, sizeof send);
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < N; i++) {
            pattern_fill(out[i], sizeof out[i], i);
            CHECK_OK(weft_am_send(pair.ep[1], i, NULL, 0, out[i], sizeof out[i], &send[i]));
        }
        /* Backwards within reach: 48 KiB of messages that came whole, then those that only announce themselves. */
        for (unsigned i = BACK; i-- > 0;) {
            CHECK_OK(receive(i, in, sizeof in, &recv));
            CHECK_EQ(pattern_check(in, sizeof in, i), sizeof in);
            CHECK(held(0) <= 65536);
        }
        for (unsigned i = BACK; i < N; i++) {
            CHECK_OK(receive(i, in, sizeof in, &recv));
            CHECK_EQ(pattern_check(in, sizeof in, i), sizeof in);
        }
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(pair_wait(&pair, &send[i], 5));
        pair_close(&pair);
    }
}

TEST(one_slow_receiver_does_not_hold_up_another_endpoint)
{
    window("16k", "16");
    each_way(way) {
        enum { N = 2000 };
        static weft_op_t stuck[N];
        weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT, send = WEFT_OP_INIT;
        box_t *box = box_new(BOX_PULLS);
        weft_ep_t *second;
        uint64_t word = 7;
        memset(stuck, 0, sizeof stuck);
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_listener_accept(pair.listener, &accept));
        CHECK_OK(weft_ep_open(pair.rt[1], weft_listener_uri(pair.listener), NULL, &connect, &second));
        CHECK_OK(pair_wait(&pair, &connect, 5));
        CHECK_OK(pair_wait(&pair, &accept, 5));
        box_handle(&pair, 0, 2, box);
        for (unsigned i = 0; i < N; i++)
            CHECK_OK(weft_am_send(pair.ep[1], 1, NULL, 0, &word, sizeof word, &stuck[i]));
        for (unsigned i = 0; i < 1000; i++) {
            CHECK_OK(weft_am_send(second, 2, NULL, 0, &word, sizeof word, &send));
            CHECK_OK(pair_wait(&pair, &send, 5));
            PAIR_UNTIL(&pair, atomic_load(&box->n) == i + 1, 5);
        }
        CHECK(!weft_op_done(&stuck[N - 1]));
        CHECK_OK(weft_ep_abort(pair.ep[1], NULL));
        pair.ep[1] = NULL;
        for (unsigned i = 0; i < N; i++)
            pair_wait(&pair, &stuck[i], 5);
        CHECK_EQ(stuck[N - 1].status, WEFT_ERR_CANCELLED);
        CHECK_OK(weft_ep_close(second, NULL));
        CHECK_OK(weft_ep_close((weft_ep_t *)accept.buf, NULL));
        pair_close(&pair);
        box_free(box);
    }
}

/* --- it comes back -------------------------------------------------------------------------------------------------------- */

static void post(uint32_t id, const void *out, size_t len, weft_op_t *send)
{
    *send = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_am_send(pair.ep[1], id, NULL, 0, out, len, send));
}

static weft_am_t *take(uint32_t id)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_am_take(pair.rt[0], NULL, id, &op));
    CHECK_OK(pair_wait(&pair, &op, 5));
    return (weft_am_t *)op.buf;
}

/* One message that ends in the how-th way there is. */
static void one_ending(unsigned how, const uint8_t *out, size_t len, box_t *box)
{
    weft_op_t send, recv, pull = WEFT_OP_INIT;
    static uint8_t in[100000];
    weft_am_t *am;
    unsigned n = atomic_load(&box->n);
    bool large = len >= 100000;
    post(how < 4 ? 3 : 4, out, len, &send);
    switch (how) {
    case 0: /* received */
        CHECK_OK(receive(3, in, sizeof in, &recv));
        break;
    case 1: /* too long */
        CHECK_EQ(receive(3, in, 4, &recv), WEFT_ERR_TRUNCATED);
        break;
    case 2: /* taken, pulled */
        am = take(3);
        CHECK_OK(weft_am_pull(am, in, sizeof in, &pull));
        weft_am_release(am);
        CHECK_OK(pair_wait(&pair, &pull, 5));
        break;
    case 3: /* taken, rejected */
        am = take(3);
        CHECK_OK(weft_am_reject(am, 9));
        weft_am_release(am);
        break;
    case 4: /* handled */
    case 5: /* handled, rejected */
    case 6: /* kept, released */
        box_set(box, how == 4 ? BOX_LOOKS : how == 5 ? BOX_REJECTS : BOX_KEEPS, NULL, 0, 8);
        box_handle(&pair, 0, 4, box);
        PAIR_UNTIL(&pair, atomic_load(&box->n) > n, 5);
        box_handle(&pair, 0, 4, NULL);
        weft_am_release(box->kept[n]);
        box->kept[n] = NULL;
        break;
    default: /* taken back by its sender, if it can be */
        pair_run(&pair, 0.001);
        weft_op_cancel(&send);
        if (large) {
            CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_CANCELLED);
            pair_run(&pair, 0.001);
        } else if (!pair_wait(&pair, &send, 5)) { /* else it had not even begun */
            weft_am_release(take(4));
        }
    }
    pair_wait(&pair, &send, 5);
}

TEST(the_window_comes_back_however_a_message_ends)
{
    window("64k", "16");
    each_way(way) {
        static const size_t lens[] = {8, 4000, 100000};
        uint8_t *out = (uint8_t *)box_payload(4, 100000);
        box_t *box = box_new(BOX_LOOKS);
        pair_open(&pair, way, NULL);
        for (unsigned how = 0; how < 8; how++) {
            for (unsigned i = 0; i < 60; i++) { /* several windows of it */
                one_ending(how, out, lens[i % 3], box);
                atomic_store(&box->n, 0);
            }
            CHECK_EQ(held(0), 0);
        }
        pair_close(&pair);
        free(out);
        box_free(box);
    }
}

/* --- both ways ------------------------------------------------------------------------------------------------------------ */

static _Atomic unsigned echoed, came_home;
static void echo(weft_am_t *am, void *user)
{
    (void)user;
    atomic_fetch_add(&echoed, 1);
    if (am->reply && weft_am_send(am->reply, 2, am->header, am->header_len, am->data, am->data ? am->len : 0, NULL))
        abort(); /* at most 1 MiB of answers waits here: the test does not ask for more */
}
static void home(weft_am_t *am, void *user)
{
    (void)am;
    (void)user;
    atomic_fetch_add(&came_home, 1);
}

TEST(both_sides_flood_each_other_and_nobody_waits_for_ever)
{
    enum { N = 1500 };
    window("16k", "16");
    each_way(way) {
        static weft_op_t send[2][N];
        static const uint8_t out[500];
        atomic_store(&echoed, 0);
        atomic_store(&came_home, 0);
        memset(send, 0, sizeof send);
        pair_open(&pair, way, NULL);
        for (int side = 0; side < 2; side++) {
            weft_op_t done = WEFT_OP_INIT;
            CHECK_OK(weft_am_handle(pair.rt[side], 1, echo, NULL, &done));
            CHECK_OK(pair_wait(&pair, &done, 5));
            CHECK_OK(weft_am_handle(pair.rt[side], 2, home, NULL, &done));
            CHECK_OK(pair_wait(&pair, &done, 5));
        }
        for (unsigned i = 0; i < N; i++) {
            for (int side = 0; side < 2; side++) {
                weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
                opts.id = 1;
                opts.buf = out;
                opts.len = i % 500;
                opts.reply = true;
                CHECK_OK(weft_am_send_with(pair.ep[side], &opts, &send[side][i]));
            }
        }
        for (unsigned i = 0; i < N; i++) {
            for (int side = 0; side < 2; side++)
                CHECK_OK(pair_wait(&pair, &send[side][i], 20));
        }
        PAIR_UNTIL(&pair, atomic_load(&came_home) == 2 * N, 20);
        CHECK_EQ(atomic_load(&echoed), 2 * N);
        pair_close(&pair);
    }
}
