/* One-shot receives and handlers of active messages: who gets which message, what becomes of one that does not fit, and of one
 * that nobody has asked for yet. */
#include <stdatomic.h>

#include "lib/box.h"
#include "test.h"

static pair_t pair;

static weft_am_recv_opts_t want_id(uint32_t id, void *header, size_t header_cap, void *buf, size_t cap)
{
    weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
    want.id = id;
    want.header = header;
    want.header_cap = header_cap;
    want.buf = buf;
    want.cap = cap;
    return want;
}

/* Send one message with a header of 16 bytes and receive it, the receive posted before or after. */
static void one_receive(uint32_t id, uint32_t asked, size_t len, bool from_one, bool recv_first)
{
    uint8_t *header = (uint8_t *)box_header(id, 16), *out = (uint8_t *)box_payload(id, len), *in = (uint8_t *)malloc(len + 1),
            head[17];
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    weft_am_recv_opts_t want = want_id(asked, head, 16, in, len);
    in[len] = head[16] = 0x5a;
    want.ep = from_one ? pair.ep[0] : NULL;
    if (recv_first)
        CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
    CHECK_OK(weft_am_send(pair.ep[1], id, header, 16, out, len, &send));
    if (!recv_first) {
        pair_run(&pair, 0.002);
        CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
    }
    CHECK_OK(pair_wait(&pair, &recv, 20));
    CHECK_OK(pair_wait(&pair, &send, 20));
    CHECK(recv.len == len && recv.tag == id && recv.header_len == 16 && recv.from == weft_ep_id(pair.ep[0]));
    CHECK_EQ(pattern_check(in, len, id), len);
    CHECK_EQ(pattern_check(head, 16, id + 1), 16);
    CHECK(in[len] == 0x5a && head[16] == 0x5a);
    free(header);
    free(out);
    free(in);
}

TEST(a_receive_gets_its_message_whichever_came_first)
{
    static const size_t sizes[] = {0, 1, 8, 100, 4095, 4096, 8000, 8192, 65536, 1 << 20, (8 << 20) + 3};
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (unsigned k = 0; k < (sizes[i] > 1 << 20 ? 2 : 8); k++)
                one_receive(50 + i, k & 4 ? WEFT_AM_ANY_ID : 50 + i, sizes[i], k & 2, k & 1);
        }
        pair_close(&pair);
    }
}

TEST(receives_are_matched_by_id_in_the_order_of_their_posts)
{
    each_way(way) {
        weft_op_t five = WEFT_OP_INIT, any = WEFT_OP_INIT, any2 = WEFT_OP_INIT, five2 = WEFT_OP_INIT;
        uint64_t a = 0, b = 0, c = 0, d = 0;
        pair_open(&pair, way, NULL);
        weft_am_recv_opts_t w5 = want_id(5, NULL, 0, &a, 8), wa = want_id(WEFT_AM_ANY_ID, NULL, 0, &b, 8);
        weft_am_recv_opts_t wa2 = want_id(WEFT_AM_ANY_ID, NULL, 0, &c, 8), w52 = want_id(5, NULL, 0, &d, 8);
        CHECK_OK(weft_am_recv(pair.rt[0], &w5, &five));
        CHECK_OK(weft_am_recv(pair.rt[0], &wa, &any));
        CHECK_OK(weft_am_recv(pair.rt[0], &wa2, &any2));
        CHECK_OK(weft_am_recv(pair.rt[0], &w52, &five2));
        static const uint32_t ids[] = {9, 5, 5, 5};
        for (uint64_t i = 0; i < 4; i++) {
            weft_op_t send = WEFT_OP_INIT;
            uint64_t word = i + 1;
            CHECK_OK(weft_am_send(pair.ep[1], ids[i], "dropped", 7, &word, sizeof word, &send));
            CHECK_OK(pair_wait(&pair, &send, 5));
        }
        CHECK_OK(pair_wait(&pair, &five2, 5));
        CHECK_OK(pair_wait(&pair, &five, 5));
        CHECK_OK(pair_wait(&pair, &any, 5));
        CHECK_OK(pair_wait(&pair, &any2, 5));
        CHECK(b == 1 && a == 2 && c == 3 && d == 4); /* any: the 9; then in turn */
        CHECK(any.tag == 9 && any2.tag == 5 && any.header_len == 7);
        pair_close(&pair);
    }
}

TEST(a_receive_from_one_endpoint_leaves_the_messages_of_others_alone)
{
    each_way(way) {
        weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT, one = WEFT_OP_INIT, any = WEFT_OP_INIT, send = WEFT_OP_INIT;
        weft_op_t take = WEFT_OP_INIT;
        weft_ep_t *second;
        uint64_t word = 1, got = 0, got_any = 0;
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_listener_accept(pair.listener, &accept));
        CHECK_OK(weft_ep_open(pair.rt[1], weft_listener_uri(pair.listener), NULL, &connect, &second));
        CHECK_OK(pair_wait(&pair, &connect, 5));
        CHECK_OK(pair_wait(&pair, &accept, 5));
        weft_am_recv_opts_t want = want_id(3, NULL, 0, &got, 8), want_any = want_id(3, NULL, 0, &got_any, 8);
        want.ep = (weft_ep_t *)accept.buf;
        CHECK_OK(weft_am_recv(pair.rt[0], &want, &one));
        CHECK_OK(weft_am_take(pair.rt[0], (weft_ep_t *)accept.buf, 3, &take));
        CHECK_OK(weft_am_send(pair.ep[1], 3, NULL, 0, &word, 8, &send)); /* is of the first endpoint */
        CHECK_OK(pair_wait(&pair, &send, 5));
        pair_run(&pair, 0.02);
        CHECK(!weft_op_done(&one) && !weft_op_done(&take));
        for (word = 2; word < 4; word++) {
            CHECK_OK(weft_am_send(second, 3, NULL, 0, &word, 8, &send));
            CHECK_OK(pair_wait(&pair, &send, 5));
        }
        CHECK_OK(pair_wait(&pair, &one, 5));
        CHECK_OK(pair_wait(&pair, &take, 5));
        CHECK(got == 2 && one.from == weft_ep_id((weft_ep_t *)accept.buf));
        weft_am_t *am = (weft_am_t *)take.buf;
        CHECK(am->len == 8 && am->from == weft_ep_id((weft_ep_t *)accept.buf) && am->ep == accept.buf && am->id == 3);
        CHECK(am->data && !memcmp(am->data, &(uint64_t){3}, 8));
        weft_am_release(am);
        CHECK_OK(weft_am_recv(pair.rt[0], &want_any, &any));
        CHECK_OK(pair_wait(&pair, &any, 5));
        CHECK(got_any == 1 && any.from == weft_ep_id(pair.ep[0]));
        CHECK_OK(weft_ep_close(second, NULL));
        CHECK_OK(weft_ep_close((weft_ep_t *)accept.buf, NULL));
        pair_close(&pair);
    }
}

TEST(messages_that_wait_are_handed_to_the_handler_that_comes_and_in_order)
{
    static const size_t lens[] = {8, 100, 50000, 0, 4000};
    each_way(way) {
        box_t *box = box_new(BOX_KEEPS);
        weft_op_t send[5] = {WEFT_OP_INIT};
        uint8_t *out[5];
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < 5; i++) {
            out[i] = (uint8_t *)box_payload(12, lens[i]);
            CHECK_OK(weft_am_send(pair.ep[1], 12, NULL, 0, out[i], lens[i], &send[i]));
        }
        CHECK_OK(weft_am_send(pair.ep[1], 13, NULL, 0, "other", 5, NULL));
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        PAIR_UNTIL(&pair, (weft_runtime_get_stats(pair.rt[0], &stats), stats.am_held == 6), 5);
        CHECK(stats.am_held_bytes >= 8 + 100 + 4000);
        box_handle(&pair, 0, 12, box);
        PAIR_UNTIL(&pair, atomic_load(&box->n) == 5, 5);
        for (unsigned i = 0; i < 5; i++) {
            weft_op_t pull = WEFT_OP_INIT;
            uint8_t *in = (uint8_t *)malloc(lens[i] + 1);
            CHECK_EQ(box->kept[i]->len, lens[i]);
            CHECK_OK(weft_am_pull(box->kept[i], in, lens[i], &pull));
            CHECK_OK(pair_wait(&pair, &pull, 5));
            CHECK_EQ(pattern_check(in, lens[i], 12), lens[i]);
            CHECK_OK(pair_wait(&pair, &send[i], 5));
            free(in);
            free(out[i]);
        }
        CHECK_EQ(atomic_load(&box->n), 5);
        box_empty(box);
        one_receive(12 + 2, 14, 100, true, true);
        pair_close(&pair);
        box_free(box);
    }
}

TEST(an_id_has_one_handler_and_with_one_its_messages_go_nowhere_else)
{
    each_way(way) {
        box_t *box = box_new(BOX_PULLS), *other = box_new(BOX_PULLS);
        weft_op_t done = WEFT_OP_INIT, any = WEFT_OP_INIT, by_id = WEFT_OP_INIT, send = WEFT_OP_INIT;
        uint64_t word = 1, got = 0, got_id = 0;
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, 5, box);
        weft_status_t st = weft_am_handle(pair.rt[0], 5, box_handler, other, &done);
        CHECK_EQ(st ? st : pair_wait(&pair, &done, 5), WEFT_ERR_STATE); /* of the call, or of done from another thread */
        CHECK_EQ(weft_am_handle(pair.rt[0], WEFT_AM_ANY_ID, box_handler, other, NULL), WEFT_ERR_INVALID);
        weft_am_recv_opts_t want = want_id(WEFT_AM_ANY_ID, NULL, 0, &got, 8), want_5 = want_id(5, NULL, 0, &got_id, 8);
        CHECK_OK(weft_am_recv(pair.rt[0], &want, &any));
        CHECK_OK(weft_am_recv(pair.rt[0], &want_5, &by_id));
        CHECK_OK(weft_am_send(pair.ep[1], 5, NULL, 0, &word, 8, &send));
        CHECK_OK(pair_wait(&pair, &send, 5));
        PAIR_UNTIL(&pair, atomic_load(&box->n) == 1, 5);
        pair_run(&pair, 0.01);
        CHECK(!weft_op_done(&any) && !weft_op_done(&by_id) && atomic_load(&other->n) == 0);
        box_handle(&pair, 0, 5, NULL); /* taken away: the receive gets the next */
        word = 2;
        CHECK_OK(weft_am_send(pair.ep[1], 5, NULL, 0, &word, 8, &send));
        CHECK_OK(pair_wait(&pair, &any, 5));
        CHECK_OK(pair_wait(&pair, &send, 5));
        CHECK(got == 2 && atomic_load(&box->n) == 1);
        box_handle(&pair, 0, 5, other); /* and there is room for another */
        word = 3;
        CHECK_OK(weft_am_send(pair.ep[1], 5, NULL, 0, &word, 8, &send));
        PAIR_UNTIL(&pair, atomic_load(&other->n) == 1, 5);
        CHECK_OK(pair_wait(&pair, &send, 5));
        CHECK(!weft_op_done(&by_id));
        weft_op_cancel(&by_id);
        CHECK_EQ(pair_wait(&pair, &by_id, 5), WEFT_ERR_CANCELLED);
        pair_close(&pair);
        box_free(box);
        box_free(other);
    }
}

/* A handler that takes itself away after the first message, and one that puts itself there anew. */
static _Atomic unsigned once_calls;
static void once(weft_am_t *am, void *user)
{
    atomic_fetch_add(&once_calls, 1);
    if (weft_am_handle(weft_ep_runtime(am->ep), am->id, NULL, NULL, NULL))
        abort();
    if (user && weft_am_handle(weft_ep_runtime(am->ep), am->id, box_handler, user, NULL))
        abort();
}

TEST(a_handler_may_take_itself_away_and_put_another_in_its_place)
{
    each_way(way) {
        box_t *box = box_new(BOX_PULLS);
        weft_op_t done = WEFT_OP_INIT, take = WEFT_OP_INIT;
        atomic_store(&once_calls, 0);
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_am_handle(pair.rt[0], 1, once, NULL, &done));
        CHECK_OK(pair_wait(&pair, &done, 5));
        CHECK_OK(weft_am_handle(pair.rt[0], 2, once, box, &done));
        CHECK_OK(pair_wait(&pair, &done, 5));
        for (unsigned i = 0; i < 3; i++) {
            CHECK_OK(weft_am_send(pair.ep[1], 1, NULL, 0, &i, sizeof i, NULL));
            CHECK_OK(weft_am_send(pair.ep[1], 2, NULL, 0, NULL, 0, NULL));
        }
        for (unsigned i = 1; i < 3; i++) {
            CHECK_OK(weft_am_take(pair.rt[0], NULL, 1, &take));
            CHECK_OK(pair_wait(&pair, &take, 5));
            weft_am_t *am = (weft_am_t *)take.buf;
            CHECK(am->data && !memcmp(am->data, &i, sizeof i));
            weft_am_release(am);
        }
        PAIR_UNTIL(&pair, atomic_load(&box->n) == 2, 5);
        CHECK_EQ(atomic_load(&once_calls), 2);
        pair_close(&pair);
        box_free(box);
    }
}

TEST(what_a_handler_leaves_behind_goes_to_the_receives_that_wait)
{
    static const uint32_t ids[] = {7, 70000};
    for (unsigned k = 0; k < 4; k++) { /* driven by the caller: between two calls nothing happens */
        box_t *box = box_new(BOX_PULLS);
        uint32_t id = ids[k / 2];
        uint64_t got[3] = {0, 0, 0};
        weft_op_t recv[3] = {WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT}, send = WEFT_OP_INIT;
        pair_open(&pair, &pair_ways[k % 2], NULL);
        for (uint64_t i = 1; i <= 2; i++) {
            CHECK_OK(weft_am_send(pair.ep[1], id, NULL, 0, &i, sizeof i, &send));
            CHECK_OK(pair_wait(&pair, &send, 5));
        }
        pair_run(&pair, 0.01);
        CHECK_OK(weft_am_handle(pair.rt[0], id, box_handler, box, NULL)); /* gets them from progress, which does not come */
        for (unsigned i = 0; i < 3; i++) {
            weft_am_recv_opts_t want = want_id(i == 1 ? WEFT_AM_ANY_ID : id, NULL, 0, &got[i], sizeof got[i]);
            CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv[i]));
        }
        CHECK_OK(weft_am_handle(pair.rt[0], id, NULL, NULL, NULL));
        CHECK_OK(pair_wait(&pair, &recv[0], 5));
        CHECK_OK(pair_wait(&pair, &recv[1], 5));
        CHECK(got[0] == 1 && got[1] == 2 && atomic_load(&box->n) == 0 && !weft_op_done(&recv[2]));
        /* the same where the handler takes itself away while there is more */
        uint64_t three = 3;
        weft_op_cancel(&recv[2]);
        CHECK_EQ(pair_wait(&pair, &recv[2], 5), WEFT_ERR_CANCELLED);
        atomic_store(&once_calls, 0);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(weft_am_send(pair.ep[1], id, NULL, 0, &three, sizeof three, NULL));
        pair_run(&pair, 0.01);
        CHECK_OK(weft_am_handle(pair.rt[0], id, once, NULL, NULL));
        weft_am_recv_opts_t want = want_id(id, NULL, 0, &got[2], sizeof got[2]);
        CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv[2]));
        CHECK_OK(pair_wait(&pair, &recv[2], 5));
        CHECK(got[2] == 3 && atomic_load(&once_calls) == 1);
        pair_close(&pair);
        box_free(box);
    }
}

TEST(a_receive_passes_over_what_waits_for_a_handler_and_the_next_has_it_when_that_is_gone)
{
    for (unsigned k = 0; k < 2; k++) { /* driven by the caller: between two calls nothing happens */
        box_t *box = box_new(BOX_PULLS);
        uint64_t got[2] = {0, 0};
        weft_op_t recv[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, send = WEFT_OP_INIT;
        weft_am_recv_opts_t want[2] = {want_id(WEFT_AM_ANY_ID, NULL, 0, &got[0], 8),
                                       want_id(WEFT_AM_ANY_ID, NULL, 0, &got[1], 8)};
        pair_open(&pair, &pair_ways[k], NULL);
        for (uint64_t i = 1; i <= 2; i++) { /* ids 7 and 8 */
            CHECK_OK(weft_am_send(pair.ep[1], 6 + (uint32_t)i, NULL, 0, &i, sizeof i, &send));
            CHECK_OK(pair_wait(&pair, &send, 5));
        }
        pair_run(&pair, 0.01);
        CHECK_OK(weft_am_handle(pair.rt[0], 7, box_handler, box, NULL)); /* gets it from progress, which does not come */
        CHECK_OK(weft_am_recv(pair.rt[0], &want[0], &recv[0]));
        CHECK_OK(weft_am_handle(pair.rt[0], 7, NULL, NULL, NULL));
        CHECK_OK(weft_am_recv(pair.rt[0], &want[1], &recv[1]));
        CHECK_OK(pair_wait(&pair, &recv[0], 5));
        CHECK_OK(pair_wait(&pair, &recv[1], 5));
        CHECK(got[0] == 2 && got[1] == 1 && atomic_load(&box->n) == 0);
        pair_close(&pair);
        box_free(box);
    }
}

TEST(a_message_can_be_taken_header_first)
{
    static const size_t lens[] = {0, 8, 4000, 8000, 100000};
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < 10; i++) {
            size_t len = lens[i % 5];
            uint8_t *header = (uint8_t *)box_header(4, 3000), *out = (uint8_t *)box_payload(4, len),
                    *in = (uint8_t *)malloc(len + 1);
            weft_op_t send = WEFT_OP_INIT, take = WEFT_OP_INIT, pull = WEFT_OP_INIT;
            if (i < 5)
                CHECK_OK(weft_am_take(pair.rt[0], i & 1 ? pair.ep[0] : NULL, i & 1 ? 4 : WEFT_AM_ANY_ID, &take));
            CHECK_OK(weft_am_send(pair.ep[1], 4, header, 3000, out, len, &send));
            if (i >= 5) {
                pair_run(&pair, 0.002);
                CHECK_OK(weft_am_take(pair.rt[0], i & 1 ? pair.ep[0] : NULL, i & 1 ? 4 : WEFT_AM_ANY_ID, &take));
            }
            CHECK_OK(pair_wait(&pair, &take, 5));
            weft_am_t *am = (weft_am_t *)take.buf;
            CHECK(am && am->id == 4 && am->len == len && am->header_len == 3000 && am->from == weft_ep_id(pair.ep[0]));
            CHECK_EQ(pattern_check(am->header, 3000, 5), 3000);
            if (len == 100000) {
                pair_run(&pair, 0.005);
                CHECK(!am->data && !weft_op_done(&send)); /* it stays with the sender */
            }
            CHECK_OK(weft_am_pull(am, in, len, &pull));
            CHECK_OK(pair_wait(&pair, &pull, 5));
            CHECK_EQ(pattern_check(in, len, 4), len);
            CHECK_EQ(pattern_check(am->header, 3000, 5), 3000); /* the header is good until it is released */
            weft_am_release(am);
            CHECK_OK(pair_wait(&pair, &send, 5));
            free(header);
            free(out);
            free(in);
        }
        pair_close(&pair);
    }
}

TEST(what_does_not_fit_is_truncated_and_its_sender_is_told)
{
    static const size_t lens[] = {100, 6000, 100000};
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < 24; i++) {
            static uint8_t out[100000];
            size_t len = lens[i % 3];
            bool recv_first = i / 3 % 2, header_too_long = i / 6 % 2, confirm = i / 12;
            uint8_t in[64], head[64];
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            weft_am_recv_opts_t want = want_id(1, head, header_too_long ? 32 : 64, in, 64);
            opts.id = 1;
            opts.header = out;
            opts.header_len = 40;
            opts.buf = out;
            opts.len = header_too_long && i % 3 == 0 ? (len = 10) : len;
            opts.confirm = confirm;
            memset(in, 0x77, sizeof in);
            memset(head, 0x77, sizeof head);
            if (recv_first)
                CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
            CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
            if (!recv_first) {
                pair_run(&pair, 0.002);
                CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
            }
            CHECK_EQ(pair_wait(&pair, &recv, 5), WEFT_ERR_TRUNCATED);
            CHECK(recv.len == len && recv.header_len == 40);
            weft_status_t st = pair_wait(&pair, &send, 5);
            if (confirm || len == 100000) {
                CHECK_EQ(st, WEFT_ERR_REJECTED);
                CHECK_EQ(send.reason, WEFT_AM_TOO_LONG);
            }
            for (unsigned j = 0; j < sizeof in; j++)
                CHECK_EQ(in[j], 0x77);
        }
        one_receive(1, 1, 100, true, true); /* and the endpoint goes on */
        pair_close(&pair);
    }
}

TEST(a_receive_can_make_a_buffer_that_fits_in_any_kind_of_memory)
{
    each_way(way) {
        weft_pool_t *pool;
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_pool_new(pair.rt[0], NULL, &pool));
        const weft_mem_kind_t *kinds[] = {NULL, weft_mem_host(), weft_mem_kind_find("huge"), weft_mem_kind_find("pinned"),
                                          weft_pool_kind(pool)};
        for (unsigned k = 0; k < 5; k++) {
            for (size_t len = 0; len <= 2000000; len = len * 11 + 3) {
                uint8_t *out = (uint8_t *)box_payload(9, len);
                weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
                weft_am_recv_opts_t want = want_id(9, NULL, 0, NULL, 0);
                if (k == 2 && !kinds[k])
                    continue; /* a machine may have none */
                if (k == 3 && !kinds[k])
                    continue;
                want.kind = kinds[k];
                CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
                CHECK_OK(weft_am_send(pair.ep[1], 9, NULL, 0, out, len, &send));
                CHECK_OK(pair_wait(&pair, &recv, 10));
                CHECK_OK(pair_wait(&pair, &send, 10));
                CHECK_EQ(recv.len, len);
                CHECK(recv.buf || !len);
                CHECK_EQ(pattern_check(recv.buf, len, 9), len);
                weft_mem_free(kinds[k], recv.buf, recv.len);
                free(out);
            }
        }
        CHECK_OK(weft_pool_free(pool)); /* everything came back */
        /* too long for it */
        static uint8_t big[100000];
        for (unsigned i = 0; i < 2; i++) {
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            weft_am_recv_opts_t want = want_id(9, NULL, 0, NULL, 0);
            weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
            want.max_len = i ? 99999 : 99;
            opts.id = 9;
            opts.buf = big;
            opts.len = i ? 100000 : 100;
            opts.confirm = true;
            CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
            CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
            CHECK_EQ(pair_wait(&pair, &recv, 5), WEFT_ERR_TRUNCATED);
            CHECK(recv.buf == NULL && recv.len == opts.len);
            CHECK_EQ(pair_wait(&pair, &send, 5), WEFT_ERR_REJECTED);
            CHECK_EQ(send.reason, WEFT_AM_TOO_LONG);
        }
        pair_close(&pair);
    }
}

TEST(receives_end_by_deadline_by_cancel_and_by_close)
{
    each_way(way) {
        weft_op_t timed = WEFT_OP_INIT, cancelled = WEFT_OP_INIT, closed = WEFT_OP_INIT, any = WEFT_OP_INIT, close = WEFT_OP_INIT;
        weft_op_t take = WEFT_OP_INIT, take_any = WEFT_OP_INIT;
        uint64_t buf[4];
        weft_am_recv_opts_t want[4];
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < 4; i++) {
            want[i] = want_id(1, NULL, 0, &buf[i], 8);
            want[i].ep = i < 3 ? pair.ep[0] : NULL;
        }
        timed.timeout_ns = 20 * WEFT_MILLISECOND;
        CHECK_OK(weft_am_recv(pair.rt[0], &want[0], &timed));
        CHECK_OK(weft_am_recv(pair.rt[0], &want[1], &cancelled));
        CHECK_OK(weft_am_recv(pair.rt[0], &want[2], &closed));
        CHECK_OK(weft_am_take(pair.rt[0], pair.ep[0], 1, &take));
        CHECK_OK(weft_am_recv(pair.rt[0], &want[3], &any));
        CHECK_OK(weft_am_take(pair.rt[0], NULL, WEFT_AM_ANY_ID, &take_any));
        double start = test_now();
        CHECK_EQ(pair_wait(&pair, &timed, 5), WEFT_ERR_TIMEOUT);
        CHECK(test_now() - start > 0.015);
        weft_op_cancel(&cancelled);
        CHECK_EQ(pair_wait(&pair, &cancelled, 5), WEFT_ERR_CANCELLED);
        CHECK(!weft_op_done(&closed) && !weft_op_done(&take));
        CHECK_OK(weft_ep_close(pair.ep[0], &close));
        pair.ep[0] = NULL;
        CHECK_EQ(pair_wait(&pair, &closed, 5), WEFT_ERR_CLOSED);
        CHECK_EQ(pair_wait(&pair, &take, 5), WEFT_ERR_CLOSED);
        CHECK(!take.buf);
        CHECK_OK(pair_wait(&pair, &close, 5));
        CHECK(!weft_op_done(&any) && !weft_op_done(&take_any));
        weft_op_cancel(&any);
        weft_op_cancel(&take_any);
        CHECK_EQ(pair_wait(&pair, &any, 5), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&pair, &take_any, 5), WEFT_ERR_CANCELLED);
        pair_close(&pair);
    }
}

TEST(a_large_send_nobody_receives_ends_by_cancel_and_by_deadline)
{
    each_way(way) {
        static uint8_t big[1 << 20];
        weft_op_t cancelled = WEFT_OP_INIT, timed = WEFT_OP_INIT, take = WEFT_OP_INIT;
        pair_open(&pair, way, NULL);
        timed.timeout_ns = 30 * WEFT_MILLISECOND;
        CHECK_OK(weft_am_send(pair.ep[1], 1, NULL, 0, big, sizeof big, &cancelled));
        CHECK_OK(weft_am_send(pair.ep[1], 2, NULL, 0, big, sizeof big, &timed));
        pair_run(&pair, 0.01);
        CHECK(!weft_op_done(&cancelled));
        weft_op_cancel(&cancelled);
        CHECK_EQ(pair_wait(&pair, &cancelled, 5), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&pair, &timed, 5), WEFT_ERR_TIMEOUT);
        CHECK_OK(weft_am_take(pair.rt[0], NULL, WEFT_AM_ANY_ID, &take));
        pair_run(&pair, 0.01);
        CHECK(!weft_op_done(&take)); /* nothing of them is left */
        CHECK_OK(weft_am_send(pair.ep[1], 3, NULL, 0, big, 8, NULL));
        CHECK_OK(pair_wait(&pair, &take, 5));
        CHECK_EQ(((weft_am_t *)take.buf)->id, 3);
        weft_am_release((weft_am_t *)take.buf);
        pair_close(&pair);
    }
}

TEST(what_arrived_before_the_end_of_an_endpoint_can_still_be_received)
{
    each_way(way) {
        weft_op_t close = WEFT_OP_INIT, send = WEFT_OP_INIT;
        uint64_t word = 77, got = 0;
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < 3; i++)
            CHECK_OK(weft_am_send(pair.ep[1], 1, &word, 8, &word, 8, NULL));
        CHECK_OK(weft_ep_close(pair.ep[1], &close));
        pair.ep[1] = NULL;
        CHECK_OK(pair_wait(&pair, &close, 5));
        CHECK_EQ(close.len, 3); /* of ours that it has not received */
        PAIR_UNTIL(&pair, weft_ep_get_state(pair.ep[0]) == WEFT_EP_PEER_CLOSED, 5);
        for (unsigned i = 0; i < 4; i++) {
            weft_op_t recv = WEFT_OP_INIT;
            weft_am_recv_opts_t want = want_id(1, NULL, 0, &got, 8);
            want.ep = pair.ep[0];
            weft_status_t st = weft_am_recv(pair.rt[0], &want, &recv);
            if (!st)
                st = pair_wait(&pair, &recv, 5);
            CHECK_EQ(st, i < 3 ? WEFT_OK : WEFT_ERR_CLOSED);
        }
        CHECK_EQ(got, 77);
        weft_status_t st = weft_am_send(pair.ep[0], 1, NULL, 0, &word, 8, &send);
        CHECK_EQ(st ? st : pair_wait(&pair, &send, 5), WEFT_ERR_CLOSED);
        pair_close(&pair);
    }
}

TEST(bad_arguments_get_a_sentence_and_start_nothing)
{
    weft_op_t op = WEFT_OP_INIT, busy = WEFT_OP_INIT;
    weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
    weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
    uint64_t word;
    pair_open(&pair, &pair_ways[0], NULL);
    CHECK_EQ(weft_am_send(NULL, 1, NULL, 0, &word, 8, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_am_send(pair.ep[1], 1, NULL, 0, NULL, 8, &op), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "NULL"));
    CHECK_EQ(weft_am_send(pair.ep[1], 1, NULL, 8, &word, 8, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_am_send(pair.ep[1], WEFT_AM_ANY_ID, NULL, 0, &word, 8, &op), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "ANY_ID"));
    CHECK_EQ(weft_am_send_with(pair.ep[1], NULL, &op), WEFT_ERR_INVALID);
    opts.id = 1;
    opts.buf = &word;
    opts.len = 8;
    opts.confirm = true;
    CHECK_EQ(weft_am_send_with(pair.ep[1], &opts, NULL), WEFT_ERR_INVALID); /* nobody to be told */
    opts.confirm = false;
    opts.iov = (weft_iov_t[]){{NULL, 3}};
    opts.iov_n = 1;
    CHECK_EQ(weft_am_send_with(pair.ep[1], &opts, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_am_recv(pair.rt[0], NULL, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_am_recv(pair.rt[0], &want, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_am_recv(NULL, &want, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_am_take(pair.rt[0], NULL, 1, NULL), WEFT_ERR_INVALID);
    want.header_cap = 8;
    CHECK_EQ(weft_am_recv(pair.rt[0], &want, &op), WEFT_ERR_INVALID); /* no place for 8 bytes of header */
    want.header_cap = 0;
    want.ep = pair.ep[1];
    CHECK_EQ(weft_am_recv(pair.rt[0], &want, &op), WEFT_ERR_INVALID); /* the endpoint of another runtime */
    CHECK(weft_op_done(&op));
    CHECK_OK(weft_am_take(pair.rt[0], NULL, 1, &busy));
    CHECK_EQ(weft_am_take(pair.rt[0], NULL, 1, &busy), WEFT_ERR_STATE); /* it is under way */
    weft_op_cancel(&busy);
    CHECK_EQ(pair_wait(&pair, &busy, 5), WEFT_ERR_CANCELLED);
    weft_am_release(NULL);
    pair_close(&pair);
}

TEST(endpoints_say_that_the_peer_can_and_count_what_went_and_came)
{
    each_way(way) {
        weft_ep_info_t info[2] = {WEFT_EP_INFO_INIT, WEFT_EP_INFO_INIT};
        pair_open(&pair, way, NULL);
        one_receive(1, 1, 100, true, true);
        one_receive(1, 1, 100000, true, true);
        for (int i = 0; i < 2; i++)
            CHECK_OK(weft_ep_get_info(pair.ep[i], &info[i]));
        CHECK(info[0].peer_capabilities & WEFT_CAN_AM && info[1].peer_capabilities & WEFT_CAN_AM);
        CHECK(info[1].ams_sent == 2 && info[0].ams_received == 2 && info[1].ams_received == 0 && info[1].msgs_sent == 0);
        CHECK_EQ(info[1].am_bytes_sent, 100 + 16 + 100000 + 16);
        CHECK_EQ(info[0].am_bytes_received, info[1].am_bytes_sent);
        CHECK(info[0].am_held == 0 && info[0].am_held_bytes == 0);
        pair_close(&pair);
    }
}
