/* Endpoints between the same two runtimes share rings and a wire (conn/trunk.c): what they cost, that each keeps its order and
 * its own end, and that one that nobody reads does not hold up the others. What the fabric does is in fabric_shm_guest.c.
 * ctest: tls-long timeout=120 */
#include <stdlib.h>

#include "base/rng.h"
#include "lib/two.h"
#include "ports.h"
#include "test.h"

enum { N = 48 };
static weft_ep_t *mine[N], *theirs[N];

static void begin(const char *share)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = "shm";
    if (share)
        setenv("WEFT_SHARE_LANES", share, 1);
    two_open(&o, &o);
}

/* n endpoints, opened one after the other. */
static void connect_each(int from, int n)
{
    for (int i = from; i < n; i++) {
        weft_ep_opts_t o = two_ep_opts();
        mine[i] = two_connect(&o);
        theirs[i] = two.accepted[two.n_accepted - 1];
    }
}

static void say(weft_ep_t *from, weft_ep_t *to, uint64_t what)
{
    weft_op_t recv = WEFT_OP_INIT, send = WEFT_OP_INIT;
    uint64_t got = 0;
    CHECK_OK(weft_msg_recv(to, &got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(from, &what, sizeof what, 1, &send));
    CHECK_OK(two_wait(&recv, 10));
    CHECK_OK(two_wait(&send, 10));
    CHECK_EQ(got, what);
}

static void close_one(weft_ep_t *ep)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_ep_close(ep, &op));
    CHECK_OK(two_wait(&op, 10));
}

TEST(endpoints_share_descriptors_and_with_off_they_do_not)
{
    for (int off = 0; off < 2; off++) {
        begin(off ? "off" : NULL);
        connect_each(0, 2);
        two_run(0.05);
        int before = two_fds();
        connect_each(2, N);
        two_run(0.05);
        int more = two_fds() - before;
        printf("# %d descriptors for %d more endpoints\n", more, N - 2);
        CHECK(off ? more >= 2 * (N - 2) : more == 0);
        for (int i = 0; i < N; i++)
            say(mine[i], theirs[i], (uint64_t)i);
        two_close();
    }
}

TEST(endpoints_that_are_opened_at_one_time_share_too)
{
    weft_op_t ops[N] = {0};
    begin(NULL);
    int before = two_fds();
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), NULL, &ops[i], &mine[i]));
    for (int i = 0; i < N; i++)
        CHECK_OK(two_wait(&ops[i], 10));
    TWO_UNTIL(two.n_accepted == N, 10);
    two_run(0.05);
    printf("# %d descriptors for %d endpoints\n", two_fds() - before, N);
    CHECK(two_fds() - before < 16);
    two_close();
}

TEST(both_sides_may_have_called)
{
    weft_listener_t *l;
    begin(NULL);
    CHECK_OK(weft_listen(two.client, ports_tcp(), NULL, &l));
    connect_each(0, 1);
    two_run(0.05);
    int before = 0;
    for (int i = 0; i < 10; i++) {
        weft_op_t open = WEFT_OP_INIT, accept = WEFT_OP_INIT;
        weft_ep_t *ep;
        CHECK_OK(weft_listener_accept(l, &accept));
        CHECK_OK(weft_ep_open(two.server, weft_listener_uri(l), NULL, &open, &ep));
        CHECK_OK(two_wait(&open, 10));
        CHECK_OK(two_wait(&accept, 10));
        say(ep, weft_op_ep(&accept), 5);
        say(weft_op_ep(&accept), ep, 6);
        if (!before) { /* the first call has opened what a listener has (fabric/shm/door.c) */
            two_run(0.05);
            before = two_fds();
        }
    }
    two_run(0.05);
    CHECK_EQ(two_fds(), before);
    two_close();
}

/* A runtime that calls itself has both ends of each lane: those do not share. */
TEST(a_runtime_may_call_itself_many_times)
{
    weft_op_t open = WEFT_OP_INIT;
    weft_ep_t *ep[8];
    begin(NULL);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(weft_ep_open(two.server, weft_listener_uri(two.listener), NULL, &open, &ep[i]));
        CHECK_OK(two_wait(&open, 10));
        TWO_UNTIL(two.n_accepted == i + 1, 10);
        say(ep[i], two.accepted[i], 8);
    }
    two_close();
}

TEST(each_keeps_its_order_while_others_close_in_any)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        wefti_rng_t rng = {seed};
        bool open[N];
        uint32_t sent[N] = {0}, got[N] = {0};
        int left = N;
        begin(NULL);
        connect_each(0, N);
        memset(open, true, sizeof open);
        while (left) {
            int i = (int)(wefti_rng_next(&rng) % N);
            if (!open[i])
                continue;
            for (uint64_t k = wefti_rng_next(&rng) % 8; k; k--, sent[i]++)
                CHECK_OK(weft_msg_send(mine[i], &sent[i], sizeof sent[i], 3, NULL));
            for (uint32_t value; wefti_rng_next(&rng) % 4 && got[i] < sent[i]; got[i]++) {
                weft_op_t recv = WEFT_OP_INIT;
                CHECK_OK(weft_msg_recv(theirs[i], &value, sizeof value, 3, WEFT_TAG_FULL, &recv));
                CHECK_OK(two_wait(&recv, 10));
                CHECK_EQ(value, got[i]);
            }
            if (wefti_rng_next(&rng) % 8 == 0) { /* what was sent is still there for the other side */
                close_one(mine[i]);
                TWO_UNTIL(weft_ep_get_state(theirs[i]) == WEFT_EP_PEER_CLOSED, 10);
                for (uint32_t value; got[i] < sent[i]; got[i]++) {
                    weft_op_t recv = WEFT_OP_INIT;
                    CHECK_OK(weft_msg_recv(theirs[i], &value, sizeof value, 3, WEFT_TAG_FULL, &recv));
                    CHECK_OK(two_wait(&recv, 10));
                    CHECK_EQ(value, got[i]);
                }
                close_one(theirs[i]);
                open[i] = false;
                left--;
            }
        }
        CHECK_EQ(two.failed[0] + two.failed[1], 0);
        CHECK_EQ(two.closed[0], N);
        CHECK_EQ(two.closed[1], N);
        two_close();
    }
}

TEST(the_first_may_go_and_new_ones_may_come)
{
    begin(NULL);
    connect_each(0, 3);
    for (int round = 0; round < 15; round++) {
        int k = round % 3;
        close_one(mine[k]);
        close_one(theirs[k]);
        weft_ep_opts_t o = two_ep_opts();
        mine[k] = two_connect(&o);
        theirs[k] = two.accepted[two.n_accepted - 1];
        for (int i = 0; i < 3; i++) {
            say(mine[i], theirs[i], 100u + (unsigned)round);
            say(theirs[i], mine[i], 200u + (unsigned)round);
        }
    }
    CHECK_EQ(two.failed[0] + two.failed[1], 0);
    two_close();
}

TEST(an_abort_is_the_end_of_one)
{
    static char big[2][4 << 20];
    weft_op_t send[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, recv = WEFT_OP_INIT, op = WEFT_OP_INIT;
    begin(NULL);
    connect_each(0, 3);
    for (int i = 0; i < 2; i++) /* two payloads that wait for somebody to take them */
        CHECK_OK(weft_msg_send(mine[i + 1], big[i], sizeof big[i], 9, &send[i]));
    two_run(0.02);
    CHECK_OK(weft_ep_abort(mine[1], &op));
    double start = test_now();
    while (!weft_op_done(&op) || !weft_op_done(&send[0])) { /* without any help of the peer's */
        weft_runtime_progress(two.client);
        CHECK(test_now() < start + 5);
    }
    CHECK_EQ(send[0].status, WEFT_ERR_CANCELLED);
    TWO_UNTIL(weft_ep_get_state(theirs[1]) == WEFT_EP_FAILED && two.failed[0] == 1, 10);
    CHECK_OK(weft_msg_recv(theirs[2], big[0], sizeof big[0], 9, WEFT_TAG_FULL, &recv));
    CHECK_OK(two_wait(&recv, 10));
    CHECK_OK(two_wait(&send[1], 10));
    say(mine[0], theirs[0], 1);
    CHECK_EQ(two.failed[0] + two.failed[1], 1);
    two_close();
}

/* One whose messages nobody takes has filled its window, and sends more; the others have a ring that moves. */
TEST(a_reader_that_stalls_holds_up_nobody_else)
{
    static char junk[1000];
    enum { MORE = 2000 };
    static weft_op_t ops[MORE];
    begin(NULL);
    connect_each(0, 4);
    for (int i = 0; i < MORE; i++) {
        memset(&ops[i], 0, sizeof ops[i]);
        CHECK_OK(weft_msg_send(mine[1], junk, sizeof junk, 1, &ops[i]));
    }
    two_run(0.05);
    CHECK(!weft_op_done(&ops[MORE - 1]));
    for (unsigned k = 0; k < 3000; k++) {
        int i = k % 3 ? 2 : 0;
        say(mine[i], theirs[i], k);
    }
    CHECK(!weft_op_done(&ops[MORE - 1]));
    for (int i = 0; i < MORE; i++) {
        weft_op_t recv = WEFT_OP_INIT;
        CHECK_OK(weft_msg_recv(theirs[1], junk, sizeof junk, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(two_wait(&recv, 10));
    }
    CHECK_OK(two_wait(&ops[MORE - 1], 10));
    two_close();
}

/* Memory of one side, used over several endpoints of the other, by either path; it stays when one of them goes. */
TEST(remote_memory_is_reached_over_each_of_them)
{
    begin(NULL);
    for (int path = WEFT_RMA_MAPPED; path <= WEFT_RMA_CHECKED; path++) {
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_remote_opts_t by = WEFT_REMOTE_OPTS_INIT;
        weft_region_t *region;
        uint8_t key[WEFT_REGION_KEY_MAX];
        size_t key_len = sizeof key;
        weft_remote_t *remote[4];
        weft_op_t op = WEFT_OP_INIT;
        two.n_accepted = 0;
        connect_each(0, 4);
        by.path = (weft_rma_path_t)path;
        o.len = 1 << 16;
        CHECK_OK(weft_region_new(two.server, &o, &region));
        CHECK_OK(weft_region_key(region, NULL, key, &key_len));
        for (int i = 0; i < 4; i++) {
            CHECK_OK(weft_remote_attach(mine[i], key, key_len, &by, &op));
            CHECK_OK(two_wait(&op, 10));
            remote[i] = weft_op_remote(&op);
        }
        for (int gone = 0; gone < 3; gone++) {
            for (int i = gone; i < 4; i++) {
                uint64_t value = 70u + (unsigned)(i + gone), back = 0;
                CHECK_OK(weft_rma_write(remote[i], 8u * (unsigned)i, &value, sizeof value, &op));
                CHECK_OK(two_wait(&op, 10));
                CHECK_OK(weft_rma_read(remote[i], 8u * (unsigned)i, &back, sizeof back, &op));
                CHECK_OK(two_wait(&op, 10));
                CHECK_EQ(back, value);
                CHECK_EQ(((uint64_t *)weft_region_base(region))[i], value);
            }
            close_one(mine[gone]);
        }
        for (int i = 0; i < 4; i++)
            weft_remote_drop(remote[i]);
        close_one(mine[3]);
        CHECK_OK(weft_region_free(region, &op));
        CHECK_OK(two_wait(&op, 10));
    }
    two_close();
}
