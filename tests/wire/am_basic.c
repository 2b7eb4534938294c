/* Active messages between two runtimes: every way to send and to receive, over shared memory and TCP, driven by the caller and
 * by threads. */
#include <stdatomic.h>

#include "lib/box.h"
#include "test.h"

static pair_t pair;

static const size_t sizes[] = {0, 1, 8, 100, 4095, 4096, 8000, 8192, 65536, 1 << 20, (8 << 20) + 3};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* One message to a box at the other side, which pulls what did not come with it. */
static void to_handler(box_t *box, int from, uint32_t id, size_t header_len, size_t len)
{
    uint8_t *header = (uint8_t *)box_header(id, header_len), *out = (uint8_t *)box_payload(id, len),
            *in = (uint8_t *)malloc(len + 1);
    weft_op_t send = WEFT_OP_INIT;
    unsigned before = atomic_load(&box->n);
    in[len] = 0x5a;
    box_set(box, BOX_PULLS, in, len, 0);
    CHECK_OK(weft_am_send(pair.ep[from], id, header, header_len, out, len, &send));
    PAIR_UNTIL(&pair, atomic_load(&box->n) > before, 20);
    CHECK_EQ(box->last.id, id);
    CHECK_EQ(box->last.header_len, header_len);
    CHECK_EQ(box->header_right, header_len);
    CHECK_EQ(box->last.len, len);
    CHECK_EQ(box->last.from, weft_ep_id(pair.ep[1 - from]));
    CHECK(box->last.ep == pair.ep[1 - from] && !box->last.reply);
    if (box->last.data) {
        CHECK_EQ(box->data_right, len);
    } else if (len) {
        CHECK_OK(box->status);
        CHECK_OK(pair_wait(&pair, &box->pull, 20));
        CHECK_EQ(box->pull.len, len);
        CHECK_EQ(pattern_check(in, len, id), len);
    }
    CHECK_EQ(in[len], 0x5a);
    CHECK_OK(pair_wait(&pair, &send, 20));
    CHECK_EQ(send.len, len);
    CHECK_EQ(send.tag, id);
    CHECK_EQ(atomic_load(&box->n), before + 1);
    free(header);
    free(out);
    free(in);
}

TEST(payloads_of_every_size_reach_a_handler_in_both_directions)
{
    each_way(way) {
        box_t *box = box_new(BOX_PULLS);
        pair_open(&pair, way, NULL);
        for (int side = 0; side < 2; side++)
            box_handle(&pair, side, 7, box);
        for (unsigned i = 0; i < SIZES; i++) {
            to_handler(box, 1, 7, 16, sizes[i]);
            to_handler(box, 0, 7, i, sizes[i]);
        }
        /* what is small comes with the message, what is large does not */
        to_handler(box, 1, 7, 8, 100);
        CHECK(box->last.data != NULL);
        to_handler(box, 1, 7, 8, 1 << 20);
        CHECK(box->last.data == NULL);
        pair_close(&pair);
        box_free(box);
    }
}

TEST(headers_of_every_length_arrive_with_and_without_a_payload)
{
    static const size_t lens[] = {0, 1, 7, 8, 63, 1000, 2000, 2047, 2048, 2049, 4000, 4080, 4096, 5000, 8000, 8100, 8191, 8192};
    each_way(way) {
        box_t *box = box_new(BOX_PULLS);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 0, box);
        box_handle(&pair, 0, WEFT_AM_ANY_ID - 1, box); /* every other number is an id */
        for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
            to_handler(box, 1, 0, lens[i], 0);
            to_handler(box, 1, WEFT_AM_ANY_ID - 1, lens[i], 1);
            to_handler(box, 1, 0, lens[i], 4000);
            to_handler(box, 1, 0, lens[i], 100000);
        }
        pair_close(&pair);
        box_free(box);
    }
}

TEST(a_header_that_is_too_long_is_refused_with_a_sentence)
{
    static uint8_t header[WEFT_AM_HEADER_MAX + 1];
    each_way(way) {
        weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        box_t *box = box_new(BOX_PULLS);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 1, box);
        CHECK_EQ(weft_am_send(pair.ep[1], 1, header, sizeof header, NULL, 0, &op), WEFT_ERR_LIMIT);
        CHECK(strstr(weft_last_error(), "8192") && strstr(weft_last_error(), "8193"));
        CHECK_EQ(weft_am_send(pair.ep[1], 1, header, sizeof header, NULL, 0, NULL), WEFT_ERR_LIMIT);
        opts.id = 1;
        opts.header = header;
        opts.header_len = SIZE_MAX;
        CHECK_EQ(weft_am_send_with(pair.ep[1], &opts, &op), WEFT_ERR_LIMIT);
        CHECK(weft_op_done(&op));
        to_handler(box, 1, 1, WEFT_AM_HEADER_MAX, 8); /* nothing was started, and the endpoint goes on */
        CHECK_EQ(atomic_load(&box->n), 1);
        pair_close(&pair);
        box_free(box);
    }
}

/* --- order ---------------------------------------------------------------------------------------------------------------- */

enum { MANY = 1000 };
static struct {
    _Atomic unsigned next;
    uint32_t wrong; /* 1 + the first that came out of turn */
    weft_op_t pull[MANY];
    uint8_t *in[MANY];
    size_t len[MANY];
} row;

static size_t row_len(uint32_t seq)
{
    return seq % 7 == 3 ? 20000 : seq % 5 == 1 ? 3000 + seq : seq % 11 == 6 ? 0 : 8;
}

static void row_handler(weft_am_t *am, void *user)
{
    uint32_t seq = UINT32_MAX, next = atomic_load(&row.next);
    (void)user;
    if (am->header_len == sizeof seq)
        memcpy(&seq, am->header, sizeof seq);
    if (seq != next || am->len != row_len(seq)) {
        row.wrong = row.wrong ? row.wrong : next + 1;
    } else if (am->len) {
        row.in[seq] = (uint8_t *)malloc(am->len);
        row.len[seq] = am->len;
        if (weft_am_pull(am, row.in[seq], am->len, &row.pull[seq])) /* copies what is here */
            row.wrong = row.wrong ? row.wrong : next + 1;
    }
    atomic_store(&row.next, next + 1);
}

TEST(a_handler_sees_messages_in_the_order_they_were_sent_when_small_and_large_mix)
{
    each_way(way) {
        static weft_op_t send[MANY];
        static uint32_t seqs[MANY];
        static uint8_t out[20000];
        weft_op_t done = WEFT_OP_INIT;
        memset(send, 0, sizeof send);
        memset(&row, 0, sizeof row);
        pattern_fill(out, sizeof out, 5);
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_am_handle(pair.rt[0], 3, row_handler, NULL, &done));
        CHECK_OK(pair_wait(&pair, &done, 5));
        for (uint32_t i = 0; i < MANY; i++) {
            seqs[i] = i;
            CHECK_OK(weft_am_send(pair.ep[1], 3, &seqs[i], sizeof seqs[i], out, row_len(i), &send[i]));
        }
        PAIR_UNTIL(&pair, atomic_load(&row.next) == MANY, 30);
        CHECK_EQ(row.wrong, 0);
        for (uint32_t i = 0; i < MANY; i++) {
            CHECK_OK(pair_wait(&pair, &send[i], 20));
            if (!row.in[i])
                continue;
            CHECK_OK(pair_wait(&pair, &row.pull[i], 20));
            CHECK_EQ(row.pull[i].len, row_len(i));
            CHECK_EQ(pattern_check(row.in[i], row.len[i], 5), row.len[i]);
            free(row.in[i]);
        }
        pair_close(&pair);
    }
}

/* --- sending ---------------------------------------------------------------------------------------------------------------- */

TEST(pieces_are_gathered_and_scattered)
{
    static const size_t cuts[] = {0, 1, 100, 5000, 0, 90000};
    each_way(way) {
        static uint8_t out[95101], in[95101];
        weft_iov_t from[6], to[3] = {{in, 7}, {in + 7, 60000}, {in + 60007, sizeof in - 60007}};
        size_t total = 0;
        uint64_t head = 17, head_in;
        pair_open(&pair, way, NULL);
        pattern_fill(out, sizeof out, 11);
        for (unsigned i = 0; i < 6; i++) {
            from[i] = (weft_iov_t){cuts[i] ? out + total : NULL, cuts[i]};
            total += cuts[i];
        }
        for (unsigned n = 1; n <= 6; n += n == 1 ? 2 : 3) { /* nothing, 101 bytes, and 95101 */
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
            size_t len = n == 1 ? 0 : n == 3 ? 101 : total;
            opts.id = 4;
            opts.header = &head;
            opts.header_len = sizeof head;
            opts.iov = from;
            opts.iov_n = n;
            want.ep = pair.ep[0];
            want.id = 4;
            want.header = &head_in;
            want.header_cap = sizeof head_in;
            want.iov = to;
            want.iov_n = 3;
            head_in = 0;
            memset(in, 0, sizeof in);
            CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
            CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_OK(pair_wait(&pair, &send, 5));
            CHECK(recv.len == len && recv.header_len == sizeof head && head_in == 17 && send.len == len);
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

/* An owned payload of two pieces (one if len is 1), whose header is gone when the post returns if there is no operation. iov
 * has to live as long as the payload. */
static weft_status_t send_owned(size_t len, int *released, weft_iov_t iov[2], weft_op_t *op)
{
    weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
    static uint8_t stays[40]; /* borrowed with an operation, copied without */
    uint8_t gone[40], *header = op ? stays : gone, *all = (uint8_t *)box_payload(9, len);
    size_t first = len / 2;
    if (!op || !stays[0])
        pattern_fill(header, sizeof stays, 9 + 1);
    opts.id = 9;
    opts.header = header;
    opts.header_len = sizeof stays;
    opts.release = count_release;
    opts.release_user = released;
    if (len > 1) {
        iov[0] = (weft_iov_t){memcpy(malloc(first), all, first), first};
        iov[1] = (weft_iov_t){memcpy(malloc(len - first), all + first, len - first), len - first};
        opts.iov = iov;
        opts.iov_n = 2;
        free(all);
    } else {
        opts.buf = all;
        opts.len = len;
    }
    weft_status_t st = weft_am_send_with(pair.ep[1], &opts, op);
    memset(gone, 0xee, sizeof gone);
    return st;
}

TEST(owned_payloads_are_released_once_per_piece_in_every_ending)
{
    static const size_t lens[] = {1, 5000, 300000};
    each_way(way) {
        int released = 0, owned = 0;
        box_t *box = box_new(BOX_PULLS);
        uint8_t *in = (uint8_t *)malloc(300000);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 9, box);
        for (unsigned i = 0; i < 3; i++) {
            static const box_does_t does[] = {BOX_PULLS, BOX_LOOKS, BOX_REJECTS};
            for (unsigned k = 0; k < 3; k++) { /* taken, left alone, rejected */
                weft_op_t send = WEFT_OP_INIT;
                weft_iov_t iov[2];
                unsigned n = atomic_load(&box->n);
                box_set(box, does[k], in, 300000, 5);
                CHECK_OK(send_owned(lens[i], &released, iov, &send));
                owned += 1 + (lens[i] > 1);
                PAIR_UNTIL(&pair, atomic_load(&box->n) > n, 10);
                weft_status_t st = pair_wait(&pair, &send, 5);
                bool large = !box->last.data;
                CHECK_EQ(st, large && k ? WEFT_ERR_REJECTED : WEFT_OK);
                if (st)
                    CHECK_EQ(send.reason, k == 1 ? WEFT_AM_NOT_TAKEN : 5);
                CHECK_EQ(__atomic_load_n(&released, __ATOMIC_SEQ_CST),
                         owned); /* when the operation is complete it has happened */
                CHECK_EQ(box->header_right, 40);
                if (large && k == 0) {
                    CHECK_OK(pair_wait(&pair, &box->pull, 5));
                    CHECK_EQ(pattern_check(in, lens[i], 9), lens[i]);
                }
            }
        }
        /* cancelled, by deadline, and by the end of the endpoint: nobody receives this one */
        box_handle(&pair, 0, 9, NULL);
        weft_op_t cancelled = WEFT_OP_INIT, timed = WEFT_OP_INIT, closed = WEFT_OP_INIT;
        weft_iov_t pieces[3][2];
        timed.timeout_ns = 30 * WEFT_MILLISECOND;
        CHECK_OK(send_owned(300000, &released, pieces[0], &cancelled));
        CHECK_OK(send_owned(300000, &released, pieces[1], &timed));
        CHECK_OK(send_owned(300000, &released, pieces[2], &closed));
        owned += 6;
        pair_run(&pair, 0.005);
        weft_op_cancel(&cancelled);
        CHECK_EQ(pair_wait(&pair, &cancelled, 5), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&pair, &timed, 5), WEFT_ERR_TIMEOUT);
        CHECK_EQ(__atomic_load_n(&released, __ATOMIC_SEQ_CST), owned - 2);
        CHECK_OK(weft_ep_abort(pair.ep[1], NULL));
        pair.ep[1] = NULL;
        CHECK_EQ(pair_wait(&pair, &closed, 5), WEFT_ERR_CANCELLED);
        CHECK_EQ(__atomic_load_n(&released, __ATOMIC_SEQ_CST), owned);
        pair_close(&pair);
        CHECK_EQ(released, owned);
        free(in);
        box_free(box);
    }
}

TEST(owned_payloads_need_no_operation)
{
    static const size_t lens[] = {1, 5000, 300000};
    each_way(way) {
        int released = 0, owned = 0;
        box_t *box = box_new(BOX_PULLS);
        uint8_t *in = (uint8_t *)malloc(300000);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 9, box);
        for (unsigned i = 0; i < 3; i++) {
            weft_iov_t iov[2];
            box_set(box, BOX_PULLS, in, 300000, 0);
            CHECK_OK(send_owned(lens[i], &released, iov, NULL));
            owned += 1 + (lens[i] > 1);
            PAIR_UNTIL(&pair, atomic_load(&box->n) == i + 1, 10);
            PAIR_UNTIL(&pair, __atomic_load_n(&released, __ATOMIC_SEQ_CST) == owned, 10);
            if (box->last.data) {
                CHECK_EQ(box->data_right, lens[i]);
            } else {
                CHECK_OK(pair_wait(&pair, &box->pull, 5));
                CHECK_EQ(pattern_check(in, lens[i], 9), lens[i]);
            }
        }
        pair_close(&pair);
        CHECK_EQ(released, owned);
        free(in);
        box_free(box);
    }
}

TEST(fire_and_forget_copies_and_says_again_when_too_much_waits)
{
    each_way(way) {
        static uint8_t big[200000], in[200000];
        box_t *box = box_new(BOX_PULLS);
        weft_status_t st = WEFT_OK;
        unsigned sent = 0;
        uint8_t header[8];
        pair_open(&pair, way, NULL);
        pattern_fill(big, sizeof big, 2);
        pattern_fill(header, sizeof header, 3);
        for (; sent < 100 && !st; sent += !st) { /* nobody receives: they wait, as copies */
            st = weft_am_send(pair.ep[1], 2, header, sizeof header, big, sizeof big, NULL);
            pair_run(&pair, 0.001);
        }
        CHECK_EQ(st, WEFT_ERR_AGAIN);
        CHECK(sent >= 5); /* 1 MiB */
        memset(big, 0xdd, sizeof big);
        memset(header, 0xdd, sizeof header);
        for (unsigned i = 0; i < sent; i++) {
            weft_op_t recv = WEFT_OP_INIT;
            weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
            uint8_t head[8];
            want.id = 2;
            want.header = head;
            want.header_cap = sizeof head;
            want.buf = in;
            want.cap = sizeof in;
            CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_EQ(pattern_check(in, sizeof in, 2), sizeof in);
            CHECK_EQ(pattern_check(head, sizeof head, 3), sizeof head);
        }
        pair_run(&pair, 0.01);
        CHECK_OK(weft_am_send(pair.ep[1], 2, NULL, 0, "x", 1, NULL)); /* and there is room again */
        pair_close(&pair);
        box_free(box);
    }
}

/* --- answers -------------------------------------------------------------------------------------------------------------- */

static void answer(weft_am_t *am, void *user)
{
    uint64_t x = 0;
    (void)user;
    if (am->header_len == sizeof x)
        memcpy(&x, am->header, sizeof x);
    x += 1;
    if (am->reply && weft_am_send(am->reply, am->id, &x, sizeof x, NULL, 0, NULL))
        abort();
}

TEST(a_message_that_wants_an_answer_brings_the_endpoint_to_answer_on)
{
    each_way(way) {
        weft_op_t done = WEFT_OP_INIT;
        uint64_t x, y;
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_am_handle(pair.rt[0], 6, answer, NULL, &done));
        CHECK_OK(pair_wait(&pair, &done, 5));
        for (x = 0; x < 100; x++) {
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
            want.ep = pair.ep[1];
            want.id = 6;
            want.header = &y;
            want.header_cap = sizeof y;
            want.buf = &y; /* no payload comes */
            opts.id = 6;
            opts.header = &x;
            opts.header_len = sizeof x;
            opts.reply = true;
            CHECK_OK(weft_am_recv(pair.rt[1], &want, &recv));
            CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_OK(pair_wait(&pair, &send, 5));
            CHECK(y == x + 1 && recv.len == 0 && recv.header_len == 8);
        }
        pair_close(&pair);
    }
}

TEST(a_confirmed_send_completes_when_the_receiver_is_done_with_the_message)
{
    static const size_t lens[] = {0, 8, 4000, 8000, 100000};
    each_way(way) {
        box_t *box = box_new(BOX_KEEPS);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 8, box);
        for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
            uint8_t *out = (uint8_t *)box_payload(8, lens[i]), *in = (uint8_t *)malloc(lens[i] + 1);
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            opts.id = 8;
            opts.buf = out;
            opts.len = lens[i];
            opts.confirm = true;
            for (unsigned k = 0; k < 3; k++) { /* kept and released, kept and rejected, looked at */
                weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT;
                unsigned n = atomic_load(&box->n);
                box_set(box, k < 2 ? BOX_KEEPS : BOX_PULLS, in, lens[i], 0);
                CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
                PAIR_UNTIL(&pair, atomic_load(&box->n) > n, 10);
                if (k < 2) {
                    pair_run(&pair, 0.005);
                    CHECK(!weft_op_done(&send));
                    weft_am_t *am = box->kept[n];
                    box->kept[n] = NULL;
                    if (k == 0) {
                        CHECK_OK(weft_am_pull(am, in, lens[i], &pull));
                        CHECK_OK(pair_wait(&pair, &pull, 5));
                        CHECK_EQ(pattern_check(in, lens[i], 8), lens[i]);
                    } else {
                        CHECK_OK(weft_am_reject(am, 1234567));
                        CHECK_EQ(weft_am_pull(am, in, lens[i], &pull) == WEFT_OK ? pair_wait(&pair, &pull, 5) : WEFT_ERR_STATE,
                                 WEFT_ERR_STATE);
                    }
                    weft_am_release(am);
                }
                CHECK_EQ(pair_wait(&pair, &send, 5), k == 1 ? WEFT_ERR_REJECTED : WEFT_OK);
                if (k == 1)
                    CHECK_EQ(send.reason, 1234567);
                else
                    CHECK_EQ(send.len, lens[i]);
                if (k == 2 && !box->last.data && lens[i])
                    CHECK_OK(pair_wait(&pair, &box->pull, 5));
            }
            free(out);
            free(in);
        }
        pair_close(&pair);
        box_free(box);
    }
}

TEST(a_confirmed_message_that_nobody_received_is_not_confirmed_by_a_close)
{
    each_way(way) {
        weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
        weft_op_t send = WEFT_OP_INIT, close = WEFT_OP_INIT;
        uint64_t word = 1;
        pair_open(&pair, way, NULL);
        opts.id = 8;
        opts.buf = &word;
        opts.len = sizeof word;
        opts.confirm = true;
        CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
        pair_run(&pair, 0.01);
        CHECK(!weft_op_done(&send));
        CHECK_OK(weft_ep_close(pair.ep[0], &close));
        pair.ep[0] = NULL;
        CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_REJECTED);
        CHECK_EQ(send.reason, WEFT_AM_NOT_TAKEN);
        CHECK_OK(pair_wait(&pair, &close, 5));
        pair_close(&pair);
    }
}

TEST(a_handler_that_rejects_tells_the_sender_why)
{
    static const size_t lens[] = {0, 8, 4000, 8000, 100000};
    each_way(way) {
        box_t *box = box_new(BOX_REJECTS);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 8, box);
        for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
            uint8_t *out = (uint8_t *)box_payload(8, lens[i]);
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            weft_op_t send = WEFT_OP_INIT;
            opts.id = 8;
            opts.buf = out;
            opts.len = lens[i];
            opts.confirm = true;
            box_set(box, BOX_REJECTS, NULL, 0, 1 + i * 1000);
            CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
            CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_REJECTED);
            CHECK_EQ(send.reason, 1 + i * 1000);
            PAIR_UNTIL(&pair, atomic_load(&box->n) == i + 1, 5);
            CHECK_OK(box->status);
            free(out);
        }
        box_set(box, BOX_REJECTS, NULL, 0, 0); /* 0 is no reason */
        CHECK_OK(weft_am_send(pair.ep[1], 8, NULL, 0, "x", 1, NULL));
        PAIR_UNTIL(&pair, atomic_load(&box->n) == sizeof lens / sizeof *lens + 1, 5);
        CHECK_EQ(box->status, WEFT_ERR_INVALID);
        pair_close(&pair);
        box_free(box);
    }
}

TEST(an_urgent_message_passes_those_that_wait_for_the_window)
{
    enum { N = 200 };
    setenv("WEFT_AM_MESSAGES", "16", 1);
    each_way(way) {
        static weft_op_t stuck[N];
        static unsigned numbers[N];
        weft_op_t send = WEFT_OP_INIT;
        weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
        box_t *box = box_new(BOX_PULLS);
        static uint8_t too_long[8192];
        memset(stuck, 0, sizeof stuck);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 2, box);
        for (unsigned i = 0; i < N; i++) {
            numbers[i] = i;
            CHECK_OK(weft_am_send(pair.ep[1], 1, &numbers[i], sizeof numbers[i], NULL, 0, &stuck[i]));
        }
        pair_run(&pair, 0.02);
        CHECK(!weft_op_done(&stuck[N - 1]));
        opts.id = 2;
        opts.buf = box_payload(2, 100);
        opts.len = 100;
        opts.urgent = true;
        CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
        CHECK_OK(pair_wait(&pair, &send, 5));
        PAIR_UNTIL(&pair, atomic_load(&box->n) == 1, 5);
        CHECK_EQ(box->data_right, 100);
        CHECK(!weft_op_done(&stuck[N - 1]));
        free((void *)(uintptr_t)opts.buf);
        opts.buf = too_long; /* does not fit a record */
        opts.len = sizeof too_long;
        CHECK(weft_am_send_with(pair.ep[1], &opts, &send) != WEFT_OK);
        for (unsigned i = 0; i < N; i++) { /* and the others come in order */
            weft_op_t recv = WEFT_OP_INIT;
            weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
            unsigned seq;
            want.id = 1;
            want.header = &seq;
            want.header_cap = sizeof seq;
            want.buf = &seq;
            CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
            CHECK_OK(pair_wait(&pair, &recv, 5));
            CHECK_EQ(seq, i);
            CHECK_OK(pair_wait(&pair, &stuck[i], 5));
        }
        pair_close(&pair);
        box_free(box);
    }
}
