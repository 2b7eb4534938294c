/* Active messages received in two phases: the header first, then the payload, pulled, viewed, rejected or let go: later, from
 * another thread, by time running out, and by the sender taking it back. ctest: label=thread */
#include <pthread.h>
#include <stdatomic.h>

#include "lib/box.h"
#include "test.h"

static pair_t pair;
static box_t *box;
static const size_t lens[] = {0, 8, 4000, 8000, 100000, 1 << 20};
enum { LENS = sizeof lens / sizeof *lens, ID = 21 };

static void open_keeping(const pair_way_t *way)
{
    box = box_new(BOX_KEEPS);
    pair_open(&pair, way, NULL);
    box_handle(&pair, 0, ID, box);
}

static void close_all(void)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    box_empty(box);
    pair_run(&pair, 0.005);
    weft_runtime_get_stats(pair.rt[0], &stats);
    CHECK(stats.am_held == 0 && stats.am_held_bytes == 0);
    pair_close(&pair);
    box_free(box);
}

/* Send a payload of the box's pattern, and give the message that was kept. It is the caller's to release. */
static weft_am_t *send_kept(const void *out, size_t len, weft_op_t *send)
{
    unsigned n = atomic_load(&box->n);
    static uint8_t header[24]; /* borrowed until the send is complete, and always the same */
    weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
    if (!header[0])
        pattern_fill(header, sizeof header, ID + 1);
    opts.id = ID;
    opts.header = header;
    opts.header_len = sizeof header;
    opts.buf = out;
    opts.len = len;
    CHECK_OK(weft_am_send_with(pair.ep[1], &opts, send));
    PAIR_UNTIL(&pair, atomic_load(&box->n) > n, 10);
    weft_am_t *am = box->kept[n];
    box->kept[n] = NULL;
    CHECK(am && am->id == ID && am->len == len && am->header_len == sizeof header && am->from == weft_ep_id(pair.ep[0]));
    CHECK_EQ(pattern_check(am->header, sizeof header, ID + 1), sizeof header);
    if (am->data)
        CHECK_EQ(pattern_check(am->data, len, ID), len);
    return am;
}

/* What a call said, or, where it said nothing, what its operation came to. */
static weft_status_t came_to(weft_status_t st, weft_op_t *op)
{
    return st ? st : pair_wait(&pair, op, 10);
}

TEST(a_kept_message_is_pulled_later)
{
    each_way(way) {
        open_keeping(way);
        for (unsigned i = 0; i < LENS; i++) {
            uint8_t *out = (uint8_t *)box_payload(ID, lens[i]), *in = (uint8_t *)malloc(lens[i] + 1);
            weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT;
            weft_am_t *am = send_kept(out, lens[i], &send);
            /* others come and go meanwhile, through the memory of the transport */
            for (unsigned k = 0; k < 300; k++) {
                weft_op_t other = WEFT_OP_INIT;
                weft_am_release(send_kept(out, lens[i] < 4000 ? lens[i] : 4000, &other));
                pair_wait(&pair, &other, 5);
            }
            atomic_store(&box->n, 0);
            if (lens[i] >= 100000)
                CHECK(!weft_op_done(&send)); /* it is still there */
            CHECK_EQ(pattern_check(am->header, 24, ID + 1), 24);
            if (am->data)
                CHECK_EQ(pattern_check(am->data, lens[i], ID), lens[i]);
            CHECK_OK(came_to(weft_am_pull(am, in, lens[i], &pull), &pull));
            CHECK_EQ(pull.len, lens[i]);
            CHECK_EQ(pattern_check(in, lens[i], ID), lens[i]);
            weft_am_release(am);
            CHECK_OK(pair_wait(&pair, &send, 5));
            free(out);
            free(in);
        }
        close_all();
    }
}

TEST(a_message_can_be_released_while_it_is_being_pulled)
{
    each_way(way) {
        open_keeping(way);
        for (unsigned i = 0; i < LENS; i++) {
            uint8_t *out = (uint8_t *)box_payload(ID, lens[i]), *in = (uint8_t *)malloc(lens[i] + 1);
            weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT;
            weft_am_t *am = send_kept(out, lens[i], &send);
            CHECK_OK(weft_am_pull(am, in, lens[i], &pull));
            weft_am_release(am);
            CHECK_OK(pair_wait(&pair, &pull, 5));
            CHECK_EQ(pattern_check(in, lens[i], ID), lens[i]);
            CHECK_OK(pair_wait(&pair, &send, 5));
            free(out);
            free(in);
        }
        close_all();
    }
}

TEST(a_payload_is_pulled_into_pieces_and_into_memory_of_a_kind)
{
    each_way(way) {
        open_keeping(way);
        for (unsigned i = 0; i < LENS; i++) {
            size_t len = lens[i], a = len / 3, b = len / 2;
            uint8_t *out = (uint8_t *)box_payload(ID, len), *in = (uint8_t *)malloc(len + 8);
            weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT;
            weft_am_pull_opts_t into = WEFT_AM_PULL_OPTS_INIT;
            weft_iov_t iov[4] = {{in, a}, {NULL, 0}, {in + a, b - a}, {in + b, len - b + 8}}; /* more room than needed */
            weft_am_t *am = send_kept(out, len, &send);
            memset(in + len, 0x5a, 8);
            into.iov = iov;
            into.iov_n = 4;
            CHECK_OK(came_to(weft_am_pull_with(am, &into, &pull), &pull));
            CHECK_EQ(pull.len, len);
            CHECK_EQ(pattern_check(in, len, ID), len);
            CHECK_EQ(in[len], 0x5a);
            weft_am_release(am);
            CHECK_OK(pair_wait(&pair, &send, 5));
            /* allocated: in the default, and in kinds */
            const weft_mem_kind_t *kinds[] = {NULL, weft_mem_host(), weft_mem_kind_find("huge"), weft_mem_kind_find("pinned")};
            for (unsigned k = 0; k < 4; k++) {
                if (k > 1 && !kinds[k])
                    continue; /* a machine may have none */
                am = send_kept(out, len, &send);
                into = (weft_am_pull_opts_t)WEFT_AM_PULL_OPTS_INIT;
                into.kind = kinds[k];
                CHECK_OK(came_to(weft_am_pull_with(am, &into, &pull), &pull));
                weft_am_release(am);
                CHECK_EQ(pull.len, len);
                CHECK(pull.buf || !len);
                CHECK_EQ(pattern_check(pull.buf, len, ID), len);
                weft_mem_free(kinds[k], pull.buf, pull.len);
                CHECK_OK(pair_wait(&pair, &send, 5));
            }
            free(out);
            free(in);
        }
        close_all();
    }
}

TEST(a_pull_into_too_little_writes_nothing_and_can_be_tried_again)
{
    each_way(way) {
        open_keeping(way);
        for (unsigned i = 1; i < LENS; i++) {
            uint8_t *out = (uint8_t *)box_payload(ID, lens[i]), *in = (uint8_t *)malloc(lens[i]);
            weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT;
            weft_am_t *am = send_kept(out, lens[i], &send);
            memset(in, 0x77, lens[i]);
            CHECK_EQ(came_to(weft_am_pull(am, in, lens[i] - 1, &pull), &pull), WEFT_ERR_TRUNCATED);
            for (size_t k = 0; k < lens[i]; k++)
                CHECK_EQ(in[k], 0x77);
            CHECK_OK(came_to(weft_am_pull(am, in, lens[i], &pull), &pull));
            CHECK_EQ(pattern_check(in, lens[i], ID), lens[i]);
            weft_am_release(am);
            CHECK_OK(pair_wait(&pair, &send, 5));
            free(out);
            free(in);
        }
        close_all();
    }
}

TEST(a_payload_is_pulled_once)
{
    each_way(way) {
        open_keeping(way);
        for (unsigned i = 1; i < LENS; i++) {
            uint8_t *out = (uint8_t *)box_payload(ID, lens[i]), *in = (uint8_t *)malloc(lens[i]);
            weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT, again = WEFT_OP_INIT;
            for (unsigned k = 0; k < 3; k++) { /* pulled, rejected, viewed */
                weft_am_t *am = send_kept(out, lens[i], &send);
                CHECK_OK(k == 0   ? weft_am_pull(am, in, lens[i], &pull)
                         : k == 1 ? weft_am_reject(am, 3)
                                  : weft_am_view(am, &pull));
                CHECK_EQ(came_to(weft_am_pull(am, in, lens[i], &again), &again), WEFT_ERR_STATE);
                CHECK_EQ(came_to(weft_am_view(am, &again), &again), WEFT_ERR_STATE);
                CHECK_EQ(weft_am_reject(am, 4), WEFT_ERR_STATE);
                if (k != 1) {
                    CHECK_OK(pair_wait(&pair, &pull, 5));
                    CHECK_EQ(pattern_check(k ? pull.buf : in, lens[i], ID), lens[i]);
                }
                weft_am_release(am);
                weft_status_t st = pair_wait(&pair, &send, 5);
                CHECK_EQ(st, k == 1 && st ? WEFT_ERR_REJECTED : WEFT_OK);
                if (lens[i] >= 100000)
                    CHECK_EQ(st, k == 1 ? WEFT_ERR_REJECTED : WEFT_OK);
                if (st)
                    CHECK_EQ(send.reason, 3); /* the first one's */
            }
            free(out);
            free(in);
        }
        close_all();
    }
}

/* --- from another thread -------------------------------------------------------------------------------------------------- */

enum { CROWD = 200 };
static struct {
    weft_am_t *am[CROWD];
    weft_op_t pull[CROWD];
    uint8_t *in[CROWD];
    weft_status_t st[CROWD];
} crowd;

static size_t crowd_len(unsigned i)
{
    return i % 4 == 3 ? 40000 : 100 + i;
}

static void *crowd_pulls(void *arg)
{
    for (unsigned i = (unsigned)(uintptr_t)arg; i < CROWD; i += 2) {
        crowd.st[i] = i % 10 == 9   ? weft_am_reject(crowd.am[i], i)
                      : i % 10 == 8 ? WEFT_OK
                                    : weft_am_pull(crowd.am[i], crowd.in[i], crowd_len(i), &crowd.pull[i]);
        weft_am_release(crowd.am[i]);
    }
    return NULL;
}

TEST(messages_are_pulled_rejected_and_released_by_other_threads)
{
    each_way(way) {
        static weft_op_t send[CROWD];
        static uint8_t out[40000];
        pthread_t threads[2];
        memset(send, 0, sizeof send);
        memset(&crowd, 0, sizeof crowd);
        pattern_fill(out, sizeof out, ID);
        open_keeping(way);
        for (unsigned i = 0; i < CROWD; i++) {
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            opts.id = ID;
            opts.buf = out;
            opts.len = crowd_len(i);
            opts.confirm = true;
            CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send[i]));
            crowd.in[i] = (uint8_t *)malloc(crowd_len(i));
        }
        PAIR_UNTIL(&pair, atomic_load(&box->n) == CROWD, 10);
        for (unsigned i = 0; i < CROWD; i++) {
            crowd.am[i] = box->kept[i];
            box->kept[i] = NULL;
        }
        for (uintptr_t t = 0; t < 2; t++)
            CHECK_EQ(pthread_create(&threads[t], NULL, crowd_pulls, (void *)t), 0);
        for (unsigned i = 0; i < CROWD; i++) { /* this thread drives meanwhile, where it is for the caller to do */
            weft_status_t st = pair_wait(&pair, &send[i], 20);
            bool rejected = i % 10 == 9 || (i % 10 == 8 && crowd_len(i) >= 40000);
            CHECK_EQ(st, rejected ? WEFT_ERR_REJECTED : WEFT_OK);
            if (st)
                CHECK_EQ(send[i].reason, i % 10 == 9 ? i : WEFT_AM_NOT_TAKEN);
        }
        for (unsigned t = 0; t < 2; t++)
            CHECK_EQ(pthread_join(threads[t], NULL), 0);
        for (unsigned i = 0; i < CROWD; i++) {
            CHECK_OK(crowd.st[i]);
            if (i % 10 < 8) {
                CHECK_OK(pair_wait(&pair, &crowd.pull[i], 5));
                CHECK_EQ(pattern_check(crowd.in[i], crowd_len(i), ID), crowd_len(i));
            }
            free(crowd.in[i]);
        }
        close_all();
    }
}

/* --- endings -------------------------------------------------------------------------------------------------------------- */

TEST(a_reason_reaches_the_sender)
{
    each_way(way) {
        open_keeping(way);
        for (uint32_t reason = 1; reason; reason *= 16) {
            uint8_t *out = (uint8_t *)box_payload(ID, 100000);
            weft_op_t send = WEFT_OP_INIT;
            weft_am_t *am = send_kept(out, 100000, &send);
            CHECK_EQ(weft_am_reject(am, 0), WEFT_ERR_INVALID);
            CHECK_OK(weft_am_reject(am, reason));
            CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_REJECTED);
            CHECK_EQ(send.reason, reason);
            CHECK_EQ(pattern_check(am->header, 24, ID + 1), 24); /* it is still there until it is released */
            weft_am_release(am);
            free(out);
        }
        close_all();
    }
}

TEST(a_payload_released_or_handled_without_being_pulled_is_rejected_as_not_taken)
{
    each_way(way) {
        uint8_t *out = (uint8_t *)box_payload(ID, 100000);
        weft_op_t send = WEFT_OP_INIT;
        open_keeping(way);
        weft_am_t *am = send_kept(out, 100000, &send);
        pair_run(&pair, 0.005);
        CHECK(!weft_op_done(&send));
        weft_am_release(am);
        CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_REJECTED);
        CHECK_EQ(send.reason, WEFT_AM_NOT_TAKEN);
        box_set(box, BOX_LOOKS, NULL, 0, 0);
        CHECK_OK(weft_am_send(pair.ep[1], ID, NULL, 0, out, 100000, &send));
        CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_REJECTED);
        CHECK_EQ(send.reason, WEFT_AM_NOT_TAKEN);
        close_all();
        free(out);
    }
}

TEST(a_payload_nobody_pulls_in_time_is_rejected_as_too_late)
{
    setenv("WEFT_AM_HOLD", "40ms", 1);
    each_way(way) {
        uint8_t *out = (uint8_t *)box_payload(ID, 100000), *in = (uint8_t *)malloc(100000);
        weft_op_t send = WEFT_OP_INIT, waiting = WEFT_OP_INIT, pull = WEFT_OP_INIT, take = WEFT_OP_INIT;
        open_keeping(way);
        CHECK_OK(weft_am_send(pair.ep[1], ID + 1, NULL, 0, out, 100000, &waiting)); /* one nobody asked for at all */
        double start = test_now();
        weft_am_t *am = send_kept(out, 100000, &send);
        CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_REJECTED);
        CHECK_EQ(send.reason, WEFT_AM_TOO_LATE);
        CHECK(test_now() - start > 0.03);
        CHECK_EQ(came_to(weft_am_pull(am, in, 100000, &pull), &pull), WEFT_ERR_TIMEOUT);
        CHECK_EQ(came_to(weft_am_view(am, &pull), &pull), WEFT_ERR_TIMEOUT);
        CHECK_EQ(pattern_check(am->header, 24, ID + 1), 24);
        weft_am_release(am);
        CHECK_EQ(pair_wait(&pair, &waiting, 5), WEFT_ERR_REJECTED);
        CHECK_EQ(waiting.reason, WEFT_AM_TOO_LATE);
        /* it is not there any more, and what is small does not grow old */
        weft_am_t *small = send_kept(out, 100, &send);
        CHECK_OK(weft_am_take(pair.rt[0], NULL, WEFT_AM_ANY_ID, &take));
        pair_run(&pair, 0.1);
        CHECK(!weft_op_done(&take));
        CHECK_OK(weft_am_send(pair.ep[1], ID + 2, NULL, 0, out, 1, NULL));
        CHECK_OK(pair_wait(&pair, &take, 5));
        CHECK_EQ(((weft_am_t *)take.buf)->id, ID + 2);
        weft_am_release((weft_am_t *)take.buf);
        CHECK_OK(came_to(weft_am_pull(small, in, 100, &pull), &pull));
        CHECK_EQ(pattern_check(in, 100, ID), 100);
        weft_am_release(small);
        /* one that is pulled in time is not rejected later, and neither is one that is viewed */
        am = send_kept(out, 100000, &send);
        CHECK_OK(came_to(weft_am_view(am, &pull), &pull));
        pair_run(&pair, 0.1);
        CHECK_EQ(pattern_check(pull.buf, 100000, ID), 100000);
        weft_am_release(am);
        CHECK_OK(pair_wait(&pair, &send, 5));
        close_all();
        free(out);
        free(in);
    }
}

TEST(a_payload_its_sender_took_back_cannot_be_pulled)
{
    each_way(way) {
        uint8_t *out = (uint8_t *)box_payload(ID, 100000), *in = (uint8_t *)malloc(100000);
        open_keeping(way);
        for (unsigned k = 0; k < 3; k++) { /* by cancel, by deadline; and the third is pulled in time */
            weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT, view = WEFT_OP_INIT;
            send.timeout_ns = k == 1 ? 60 * WEFT_MILLISECOND : 0;
            weft_am_t *am = send_kept(out, 100000, &send);
            if (k == 0)
                weft_op_cancel(&send);
            if (k < 2)
                CHECK_EQ(pair_wait(&pair, &send, 5), k ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED);
            pair_run(&pair, 0.01);
            CHECK_EQ(came_to(weft_am_pull(am, in, 100000, &pull), &pull), k < 2 ? WEFT_ERR_CANCELLED : WEFT_OK);
            if (k < 2)
                CHECK_EQ(came_to(weft_am_view(am, &view), &view), WEFT_ERR_CANCELLED);
            else
                CHECK_EQ(pattern_check(in, 100000, ID), 100000);
            weft_am_release(am);
            if (k == 2)
                CHECK_OK(pair_wait(&pair, &send, 5));
        }
        close_all();
        free(out);
        free(in);
    }
}

TEST(a_pull_can_be_cancelled_and_then_both_sides_know)
{
    each_way(way) {
        enum { N = (32 << 20) };
        uint8_t *out = (uint8_t *)box_payload(ID, N), *in = (uint8_t *)malloc(N);
        weft_op_t send = WEFT_OP_INIT, pull = WEFT_OP_INIT;
        open_keeping(way);
        weft_am_t *am = send_kept(out, N, &send);
        CHECK_OK(weft_am_pull(am, in, N, &pull));
        weft_op_cancel(&pull);
        weft_status_t st = pair_wait(&pair, &pull, 10); /* its result, if that was sooner */
        CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
        if (!st)
            CHECK_EQ(pattern_check(in, N, ID), N);
        memset(in, 0x11, N);
        weft_am_release(am);
        weft_status_t sent = pair_wait(&pair, &send, 10);
        CHECK(sent == WEFT_OK || (st && sent == WEFT_ERR_REJECTED));
        for (size_t i = 0; i < N; i += 4096)
            CHECK_EQ(in[i], 0x11); /* nothing is written after the operation was complete */
        close_all();
        free(out);
        free(in);
    }
}

TEST(a_sender_that_goes_leaves_messages_that_can_be_asked_and_released)
{
    each_way(way) {
        uint8_t *out = (uint8_t *)box_payload(ID, 100000), *in = (uint8_t *)malloc(100000);
        weft_op_t large = WEFT_OP_INIT, small = WEFT_OP_INIT, pull = WEFT_OP_INIT, viewed = WEFT_OP_INIT, view = WEFT_OP_INIT;
        open_keeping(way);
        weft_am_t *a = send_kept(out, 100000, &large), *b = send_kept(out, 1000, &small), *c = send_kept(out, 100000, &viewed);
        CHECK_OK(came_to(weft_am_view(c, &view), &view));
        CHECK_OK(weft_ep_abort(pair.ep[1], NULL));
        pair.ep[1] = NULL;
        CHECK_EQ(pair_wait(&pair, &large, 5), WEFT_ERR_CANCELLED);
        pair_wait(&pair, &viewed, 5);
        PAIR_UNTIL(&pair, weft_ep_get_state(pair.ep[0]) >= WEFT_EP_FAILED, 5);
        weft_status_t st = came_to(weft_am_pull(a, in, 100000, &pull), &pull);
        CHECK(st == WEFT_ERR_PEER || st == WEFT_ERR_CANCELLED);
        CHECK_OK(came_to(weft_am_pull(b, in, 1000, &pull), &pull)); /* this one was here */
        CHECK_EQ(pattern_check(in, 1000, ID), 1000);
        CHECK_EQ(pattern_check(view.buf, 100000, ID), 100000); /* and this one stays readable */
        CHECK_OK(weft_ep_abort(pair.ep[0], NULL));
        pair.ep[0] = NULL;
        pair_run(&pair, 0.02);
        CHECK_EQ(pattern_check(a->header, 24, ID + 1), 24); /* also when their endpoint is gone */
        CHECK_EQ(pattern_check(b->data ? b->data : in, 1000, ID), 1000);
        CHECK_EQ(pattern_check(view.buf, 100000, ID), 100000);
        weft_am_release(a);
        weft_am_release(b);
        weft_am_release(c);
        close_all();
        free(out);
        free(in);
    }
}

/* --- views ---------------------------------------------------------------------------------------------------------------- */

TEST(a_view_shows_the_payload_wherever_it_was)
{
    each_way(way) {
        open_keeping(way);
        for (unsigned i = 0; i < LENS; i++) {
            uint8_t *out = (uint8_t *)box_payload(ID, lens[i]);
            weft_op_t send = WEFT_OP_INIT, view = WEFT_OP_INIT;
            weft_am_t *am = send_kept(out, lens[i], &send);
            CHECK_OK(came_to(weft_am_view(am, &view), &view));
            CHECK_EQ(view.len, lens[i]);
            CHECK(view.buf || !lens[i]);
            if (am->data)
                CHECK(view.buf == am->data); /* nothing moves */
            CHECK_EQ(pattern_check(view.buf, lens[i], ID), lens[i]);
            pair_run(&pair, 0.005);
            CHECK_EQ(pattern_check(view.buf, lens[i], ID), lens[i]);
            weft_am_release(am);
            CHECK_OK(pair_wait(&pair, &send, 5));
            free(out);
        }
        close_all();
    }
}

TEST(memory_of_a_pool_is_lent_on_one_host_and_comes_back_with_the_release)
{
    each_way(way) {
        enum { N = 4 << 20 };
        bool shm = !strcmp(way->transports, "shm");
        weft_op_t send = WEFT_OP_INIT, view = WEFT_OP_INIT;
        weft_pool_t *pool;
        void *out, *in = malloc(N);
        open_keeping(way);
        CHECK_OK(weft_pool_new(pair.rt[1], NULL, &pool));
        for (unsigned round = 0; round < 4; round++) {
            CHECK_OK(weft_pool_get(pool, N, &out));
            pattern_fill(out, N, ID);
            weft_am_t *am = send_kept(out, N, &send);
            if (round < 3) {
                CHECK_OK(came_to(weft_am_view(am, &view), &view));
                CHECK_EQ(view.len, N);
                CHECK_EQ(pattern_check(view.buf, N, ID), N);
                pair_run(&pair, 0.02);
                if (shm) {
                    CHECK(!weft_op_done(&send)); /* it is the sender's own memory that is looked at */
                    ((uint8_t *)out)[N / 2] ^= 0xff;
                    CHECK_EQ(pattern_check(view.buf, N, ID), N / 2);
                    ((uint8_t *)out)[N / 2] ^= 0xff;
                }
                CHECK_EQ(pattern_check(view.buf, N, ID), N);
            } else { /* or copied, once */
                CHECK_OK(came_to(weft_am_pull(am, in, N, &view), &view));
                CHECK_EQ(pattern_check(in, N, ID), N);
            }
            weft_am_release(am);
            CHECK_OK(pair_wait(&pair, &send, 5));
            weft_pool_put(pool, out);
        }
        /* a sender that wants it back has to wait until it is given back */
        CHECK_OK(weft_pool_get(pool, N, &out));
        pattern_fill(out, N, ID);
        weft_am_t *am = send_kept(out, N, &send);
        CHECK_OK(came_to(weft_am_view(am, &view), &view));
        weft_op_cancel(&send);
        pair_run(&pair, 0.02);
        if (shm)
            CHECK(!weft_op_done(&send));
        CHECK_EQ(pattern_check(view.buf, N, ID), N);
        weft_am_release(am);
        weft_status_t st = pair_wait(&pair, &send, 5);
        CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
        weft_pool_put(pool, out);
        CHECK_OK(weft_pool_free(pool));
        close_all();
        free(in);
    }
}

/* A handler that views a message it has not kept: nobody would release it. */
static weft_op_t misplaced;
static _Atomic int misplaced_st;
static void views_unkept(weft_am_t *am, void *user)
{
    (void)user;
    atomic_store(&misplaced_st, weft_am_view(am, &misplaced));
}

TEST(a_handler_cannot_view_what_it_does_not_keep_and_a_taker_can)
{
    each_way(way) {
        weft_op_t take = WEFT_OP_INIT, view = WEFT_OP_INIT, done = WEFT_OP_INIT;
        open_keeping(way);
        misplaced = (weft_op_t)WEFT_OP_INIT;
        atomic_store(&misplaced_st, 1);
        CHECK_OK(weft_am_handle(pair.rt[0], ID + 2, views_unkept, NULL, &done));
        CHECK_OK(pair_wait(&pair, &done, 5));
        CHECK_OK(weft_am_send(pair.ep[1], ID + 2, NULL, 0, "abc", 3, NULL));
        PAIR_UNTIL(&pair, atomic_load(&misplaced_st) != 1, 5);
        CHECK_EQ(atomic_load(&misplaced_st), WEFT_ERR_STATE);
        CHECK_OK(weft_am_take(pair.rt[0], NULL, ID + 1, &take));
        CHECK_OK(weft_am_send(pair.ep[1], ID + 1, NULL, 0, "abc", 3, NULL));
        CHECK_OK(pair_wait(&pair, &take, 5));
        CHECK_OK(came_to(weft_am_view((weft_am_t *)take.buf, &view), &view));
        CHECK(view.len == 3 && !memcmp(view.buf, "abc", 3));
        weft_am_release((weft_am_t *)take.buf);
        close_all();
    }
}
