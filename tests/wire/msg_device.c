/* Messages from and to memory that the processor must not touch: every pair of host and device, every size class, pieces, many
 * at once, over shared memory and TCP; and what becomes of them when a copy fails, a send is cancelled, or the endpoint ends.
 * ctest: timeout=300 long */
#include "lib/fakedev.h"
#include "lib/pair.h"
#include "test.h"

static pair_t pair;

/* A buffer on the device or not, with one byte more than asked for. */
typedef struct buf {
    uint8_t *at;
    size_t len;
    bool device;
} buf_t;

static buf_t buf_new(size_t len, bool device)
{
    void *p = NULL;
    CHECK_OK(weft_mem_alloc(device ? fakedev() : NULL, len + 1, &p));
    return (buf_t){p, len, device};
}

static void buf_put(const buf_t *b, const void *bytes, size_t n)
{
    if (b->device)
        fakedev_poke(b->at, bytes, n);
    else
        memcpy(b->at, bytes, n);
}

static void buf_get(const buf_t *b, void *bytes, size_t n)
{
    if (b->device)
        fakedev_peek(b->at, bytes, n);
    else
        memcpy(bytes, b->at, n);
}

static void buf_free(const buf_t *b)
{
    weft_mem_free(b->device ? fakedev() : NULL, b->at, b->len + 1);
}

static buf_t out_new(size_t len, bool device, uint64_t seed)
{
    uint8_t *bytes = malloc(len + 1);
    buf_t b = buf_new(len, device);
    pattern_fill(bytes, len, seed);
    bytes[len] = 0;
    buf_put(&b, bytes, len + 1);
    free(bytes);
    return b;
}

static buf_t in_new(size_t len, bool device)
{
    uint8_t *bytes = malloc(len + 1);
    buf_t b = buf_new(len, device);
    memset(bytes, 0xc3, len);
    bytes[len] = 0x5a;
    buf_put(&b, bytes, len + 1);
    free(bytes);
    return b;
}

static void in_check(const buf_t *b, uint64_t seed)
{
    uint8_t *bytes = malloc(b->len + 1);
    buf_get(b, bytes, b->len + 1);
    CHECK_EQ(pattern_check(bytes, b->len, seed), b->len);
    CHECK_EQ(bytes[b->len], 0x5a);
    free(bytes);
}

static void open_pair(const pair_way_t *way)
{
    fakedev_install();
    pair_open(&pair, way, NULL);
}

static void close_pair(void)
{
    pair_close(&pair);
    CHECK_EQ(fakedev_live(), 0);
    fakedev_remove();
}

/* Between all four pairs of memory. */
#define each_pair(a, b) \
    for (int a = 0; a < 2; a++) \
        for (int b = 0; b < 2; b++)

static void round_of(size_t len, bool from_device, bool to_device, bool recv_first)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    buf_t out = out_new(len, from_device, len), in = in_new(len, to_device);
    if (recv_first)
        CHECK_OK(weft_msg_recv(pair.ep[0], in.at, len, len, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(pair.ep[1], out.at, len, len, &send));
    if (!recv_first) {
        pair_run(&pair, 0.001);
        CHECK_OK(weft_msg_recv(pair.ep[0], in.at, len, len, WEFT_TAG_FULL, &recv));
    }
    CHECK_OK(pair_wait(&pair, &recv, 30));
    CHECK_OK(pair_wait(&pair, &send, 30));
    CHECK_EQ(recv.len, len);
    in_check(&in, len);
    buf_free(&out);
    buf_free(&in);
}

TEST(messages_of_every_size_arrive_whole_between_host_and_device)
{
    static const size_t sizes[] = {0,     1,      63,     4096,   8191,    8192,    8193,   20001,
                                   65537, 524287, 524288, 524289, 1048577, 3000001, 8388607};
    each_way(way) {
        open_pair(way);
        each_pair(from, to) for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        {
            round_of(sizes[i], from, to, true);
            round_of(sizes[i], from, to, false);
        }
        CHECK(fakedev_copies() > 0);
        close_pair();
    }
}

/* Cut a buffer into pieces of odd lengths, empty ones among them. */
static size_t cut(weft_iov_t *iov, size_t n, const buf_t *b)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t left = b->len - at, len = i + 1 == n ? left : i % 5 == 3 ? 0 : left * (i % 7 + 1) / (4 * n);
        iov[i] = (weft_iov_t){b->at + at, len};
        at += len;
    }
    return n;
}

TEST(pieces_are_gathered_from_and_scattered_to_any_memory)
{
    static const size_t pieces[] = {2, 7, 9, 40};
    each_way(way) {
        open_pair(way);
        each_pair(from, to) for (size_t k = 0; k < 4; k++)
        {
            static const size_t lens[] = {100, 3001, 60001, 1500003};
            for (size_t i = 0; i < 4; i++) {
                weft_iov_t out_iov[40], in_iov[40];
                weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
                buf_t out = out_new(lens[i], from, i), in = in_new(lens[i], to);
                weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
                opts.iov = out_iov;
                opts.iov_n = cut(out_iov, pieces[k], &out);
                opts.tag = 3;
                CHECK_OK(weft_msg_send_with(pair.ep[1], &opts, &send));
                CHECK_OK(
                    weft_msg_recv_iov(pair.rt[0], pair.ep[0], in_iov, cut(in_iov, pieces[3 - k], &in), 3, WEFT_TAG_FULL, &recv));
                CHECK_OK(pair_wait(&pair, &recv, 30));
                CHECK_OK(pair_wait(&pair, &send, 30));
                in_check(&in, i);
                buf_free(&out);
                buf_free(&in);
            }
        }
        close_pair();
    }
}

TEST(pieces_of_different_kinds_are_refused)
{
    weft_op_t op = WEFT_OP_INIT;
    open_pair(&pair_ways[0]);
    buf_t host = in_new(100, false), device = in_new(100, true);
    weft_iov_t iov[3] = {{host.at, 50}, {NULL, 0}, {device.at, 50}};
    weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
    opts.iov = iov;
    opts.iov_n = 3;
    CHECK_EQ(weft_msg_send_with(pair.ep[1], &opts, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_msg_recv_iov(pair.rt[0], NULL, iov, 3, 0, 0, &op), WEFT_ERR_INVALID);
    buf_free(&host);
    buf_free(&device);
    close_pair();
}

/* More at once than there are stages for, in both directions: nobody may wait for stages that the other side needs. */
TEST(many_large_messages_between_devices_in_both_directions_do_not_wait_for_each_other)
{
    enum { N = 10, LEN = 1300001 };
    each_way(way) {
        static weft_op_t send[2][N], recv[2][N];
        static buf_t out[2][N], in[2][N];
        memset(send, 0, sizeof send);
        memset(recv, 0, sizeof recv);
        open_pair(way);
        for (unsigned i = 0; i < N; i++)
            for (int side = 0; side < 2; side++) {
                out[side][i] = out_new(LEN, true, i);
                in[side][i] = in_new(LEN, true);
                CHECK_OK(weft_msg_send(pair.ep[side], out[side][i].at, LEN, i, &send[side][i]));
                CHECK_OK(weft_msg_recv(pair.ep[side], in[side][i].at, LEN, i, WEFT_TAG_FULL, &recv[side][i]));
            }
        for (unsigned i = 0; i < N; i++)
            for (int side = 0; side < 2; side++) {
                CHECK_OK(pair_wait(&pair, &recv[side][i], 60));
                CHECK_OK(pair_wait(&pair, &send[side][i], 60));
                in_check(&in[side][i], i);
                buf_free(&out[side][i]);
                buf_free(&in[side][i]);
            }
        close_pair();
    }
}

static unsigned n_released;
static void released(void *p, void *user)
{
    n_released++;
    buf_free((buf_t *)user);
    (void)p;
}

TEST(owned_and_forgotten_sends_take_device_memory)
{
    each_way(way) {
        open_pair(way);
        static const size_t lens[] = {200, 700000};
        for (int i = 0; i < 2; i++) {
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            buf_t out = out_new(lens[i], true, 1), in = in_new(lens[i], false);
            weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
            opts.buf = out.at;
            opts.len = lens[i];
            opts.release = released;
            opts.release_user = &out;
            n_released = 0;
            CHECK_OK(weft_msg_recv(pair.ep[0], in.at, lens[i], 0, WEFT_TAG_FULL, &recv));
            CHECK_OK(weft_msg_send_with(pair.ep[1], &opts, &send));
            CHECK_OK(pair_wait(&pair, &recv, 30));
            CHECK_OK(pair_wait(&pair, &send, 30));
            CHECK_EQ(n_released, 1);
            in_check(&in, 1);
            buf_free(&in);
        }
        weft_op_t recv = WEFT_OP_INIT;
        buf_t out = out_new(300000, true, 2), in = in_new(300000, true);
        CHECK_OK(weft_msg_send(pair.ep[1], out.at, 300000, 0, NULL));
        buf_free(&out); /* copied, it says */
        CHECK_OK(weft_msg_recv(pair.ep[0], in.at, 300000, 0, WEFT_TAG_FULL, &recv));
        CHECK_OK(pair_wait(&pair, &recv, 30));
        in_check(&in, 2);
        buf_free(&in);
        close_pair();
    }
}

TEST(a_copy_that_fails_on_either_side_ends_both_operations_and_nothing_else)
{
    each_way(way) {
        open_pair(way);
        each_pair(from, to) for (unsigned after = 0; (from || to) && after < 7; after++)
        {
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            buf_t out = out_new(2000000, from, 1), in = in_new(2000000, to);
            CHECK_OK(weft_msg_recv(pair.ep[0], in.at, in.len, 0, WEFT_TAG_FULL, &recv));
            fakedev_fail_copies(after);
            CHECK_OK(weft_msg_send(pair.ep[1], out.at, out.len, 0, &send));
            weft_status_t got = pair_wait(&pair, &recv, 30), sent = pair_wait(&pair, &send, 30);
            fakedev_fail_copies(UINT64_MAX);
            if (after < 4u * (unsigned)(from + to)) { /* four chunks, and a copy for each device */
                CHECK(got == WEFT_ERR_SYSTEM || got == WEFT_ERR_PEER);
                CHECK(sent == WEFT_ERR_SYSTEM || sent == WEFT_ERR_CLOSED);
            } else {
                CHECK_OK(got);
                CHECK_OK(sent);
            }
            CHECK_EQ(weft_ep_get_state(pair.ep[0]), WEFT_EP_UP);
            CHECK_EQ(weft_ep_get_state(pair.ep[1]), WEFT_EP_UP);
            buf_free(&out);
            buf_free(&in);
            round_of(600000, from, to, true); /* the stages have come back */
        }
        weft_op_t op = WEFT_OP_INIT;
        buf_t small = out_new(100, true, 1);
        fakedev_fail_copies(0);
        weft_status_t st = weft_msg_send(pair.ep[1], small.at, 100, 0, &op);
        CHECK_EQ(st ? st : pair_wait(&pair, &op, 10), WEFT_ERR_SYSTEM);
        fakedev_fail_copies(UINT64_MAX);
        buf_free(&small);
        round_of(100, true, true, true);
        close_pair();
    }
}

TEST(a_send_from_a_device_that_nobody_receives_can_be_cancelled)
{
    each_way(way) {
        open_pair(way);
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        buf_t out = out_new(900000, true, 1), in = in_new(100, true);
        CHECK_OK(weft_msg_send(pair.ep[1], out.at, out.len, 7, &send));
        pair_run(&pair, 0.01);
        weft_op_cancel(&send);
        CHECK_EQ(pair_wait(&pair, &send, 10), WEFT_ERR_CANCELLED);
        buf_free(&out);
        /* and one that does not fit */
        out = out_new(900000, true, 1);
        send = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_msg_recv(pair.ep[0], in.at, in.len, 7, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(pair.ep[1], out.at, out.len, 7, &send));
        CHECK_EQ(pair_wait(&pair, &recv, 10), WEFT_ERR_TRUNCATED);
        CHECK_OK(pair_wait(&pair, &send, 10));
        CHECK_EQ(recv.len, 900000);
        buf_free(&out);
        buf_free(&in);
        close_pair();
    }
}

/* Abort either end while chunks are under way: both operations end, and every buffer is free then. */
TEST(an_endpoint_that_ends_in_the_middle_lets_go_of_device_memory)
{
    each_way(way) {
        for (int side = 0; side < 2; side++)
            each_pair(from, to)
            {
                weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT, end = WEFT_OP_INIT;
                open_pair(way);
                buf_t out = out_new(8000000, from, 1), in = in_new(8000000, to);
                CHECK_OK(weft_msg_recv(pair.ep[0], in.at, in.len, 0, WEFT_TAG_FULL, &recv));
                CHECK_OK(weft_msg_send(pair.ep[1], out.at, out.len, 0, &send));
                for (int i = 0; i < 3; i++)
                    pair_run(&pair, 0);
                CHECK_OK(weft_ep_abort(pair.ep[side], &end));
                pair.ep[side] = NULL;
                pair_wait(&pair, &end, 20);
                pair_wait(&pair, &send, 20);
                pair_wait(&pair, &recv, 20);
                buf_free(&out);
                buf_free(&in);
                close_pair();
            }
    }
}
