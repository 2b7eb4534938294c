/* Endings of an endpoint, in every state it can be in and from both sides at once: the close completes once, in time, with what
 * it came to, and the closed hooks are called once. What becomes of messages is in msg_close.c. ctest: tls-long shards */
#include "lib/two.h"
#include "ports.h"
#include "test.h"

static const char *transports[] = {"shm", "tcp"};
#define EACH_TRANSPORT(t) for (int t = 0; t < 2; t++)

static weft_runtime_opts_t over(int t)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = transports[t];
    return o;
}

TEST(a_close_is_told_to_both_sides_once_and_frees_the_id)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = over(t);
        weft_op_t op = WEFT_OP_INIT, op2 = WEFT_OP_INIT;
        two_open(&o, &o);
        weft_ep_t *ep = two_connect(NULL);
        weft_ep_id_t id = weft_ep_id(ep);
        CHECK_OK(weft_ep_close(ep, &op));
        CHECK_OK(two_wait(&op, 5));
        CHECK_EQ(op.len, 0);
        CHECK_EQ(two.closed[1], 1);
        CHECK_EQ(two.closed_why[1], WEFT_OK);
        CHECK(!weft_ep_find(two.client, id));
        TWO_UNTIL(two.closed[0] == 1, 2);
        CHECK_EQ(two.closed_why[0], WEFT_OK);
        CHECK_EQ(weft_ep_get_state(two.accepted[0]), WEFT_EP_PEER_CLOSED);
        CHECK_OK(weft_ep_close(two.accepted[0], &op2));
        CHECK_OK(two_wait(&op2, 1));
        CHECK_EQ(op2.len, 0);
        two_run(0.02);
        CHECK_EQ(two.closed[0], 1);
        CHECK_EQ(two.failed[0] + two.failed[1], 0);
        two_close();
    }
}

TEST(both_sides_may_close_at_once)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = over(t);
        two_open(&o, &o);
        for (int i = 0; i < 20; i++) {
            weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
            weft_ep_t *ep = two_connect(NULL);
            CHECK_OK(weft_ep_close(ep, &op[0]));
            for (int k = 0; k < i; k++)
                weft_runtime_progress(two.client); /* a little more of a lead each time */
            CHECK_OK(weft_ep_close(two.accepted[two.n_accepted - 1], &op[1]));
            CHECK_OK(two_wait(&op[0], 5));
            CHECK_OK(two_wait(&op[1], 5));
            CHECK_EQ(two.closed[0], i + 1);
            CHECK_EQ(two.closed[1], i + 1);
        }
        CHECK_EQ(two.failed[0] + two.failed[1], 0);
        two_close();
    }
}

TEST(a_close_while_connecting_cancels_the_connect)
{
    weft_op_t connect = WEFT_OP_INIT, recv = WEFT_OP_INIT, op = WEFT_OP_INIT;
    weft_ep_opts_t o = two_ep_opts();
    weft_ep_t *ep;
    char buf[8];
    const char *mute = ports_local("mute");
    int s = ports_listen(mute, 4);
    two_open(NULL, NULL);
    CHECK_OK(weft_ep_open(two.client, mute, &o, &connect, &ep));
    CHECK_OK(weft_msg_recv(ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
    two_run(0.02);
    CHECK_OK(weft_ep_close(ep, &op));
    CHECK_OK(two_wait(&op, 2));
    CHECK_EQ(two_wait(&connect, 2), WEFT_ERR_CANCELLED);
    CHECK_EQ(two_wait(&recv, 2), WEFT_ERR_CANCELLED);
    CHECK_EQ(two.closed[1], 0); /* it never was open */
    close(s);
    two_close();
}

TEST(a_close_at_every_moment_of_a_connect_ends_it)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = over(t);
        two_open(&o, &o);
        for (int after = 0; after < 60; after++) {
            weft_op_t connect = WEFT_OP_INIT, op = WEFT_OP_INIT;
            weft_ep_t *ep;
            CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), NULL, &connect, &ep));
            for (int i = 0; i < after; i++)
                two_drive();
            CHECK_OK(weft_ep_close(ep, &op));
            two_wait(&op, 5);
            CHECK_OK(op.status);
            weft_status_t st = two_wait(&connect, 1);
            CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
        }
        two_run(0.05);
        for (int i = 0; i < two.n_accepted && i < TWO_MAX; i++)
            CHECK_OK(weft_ep_close(two.accepted[i], NULL));
        two_run(0.05);
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        weft_runtime_get_stats(two.server, &stats);
        CHECK_EQ(stats.endpoints, 0);
        weft_runtime_get_stats(two.client, &stats);
        CHECK_EQ(stats.endpoints, 0);
        two_close();
    }
}

TEST(an_abort_is_a_lost_peer_to_the_other_side)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = over(t);
        weft_op_t op = WEFT_OP_INIT;
        two_open(&o, &o);
        weft_ep_t *ep = two_connect(NULL);
        double start = test_now();
        CHECK_OK(weft_ep_abort(ep, &op));
        CHECK_OK(two_wait(&op, 2));
        TWO_UNTIL(two.closed[0] == 1, 2);
        CHECK(test_now() - start < 1);
        CHECK_EQ(two.failed[0], 1);
        CHECK_EQ(two.failed_why[0], WEFT_ERR_PEER);
        CHECK_EQ(two.closed_why[0], WEFT_ERR_PEER);
        CHECK_EQ(weft_ep_get_state(two.accepted[0]), WEFT_EP_FAILED);
        CHECK_EQ(two.closed[1], 1);
        CHECK_EQ(two.failed[1], 0);
        CHECK_OK(weft_ep_close(two.accepted[0], NULL));
        two_close();
    }
}

TEST(a_close_that_the_peer_does_not_answer_is_forced_at_the_timeout)
{
    EACH_TRANSPORT(t)
    {
        for (int own = 0; own < 2; own++) { /* the runtime's bound, and the operation's */
            weft_runtime_opts_t o = over(t);
            weft_op_t op = WEFT_OP_INIT;
            o.close_timeout_ns = own ? 0 : 200 * WEFT_MILLISECOND;
            two_open(&o, &o);
            weft_ep_t *ep = two_connect(NULL);
            op.timeout_ns = own ? 200 * WEFT_MILLISECOND : 0;
            double start = test_now();
            CHECK_OK(weft_ep_close(ep, &op));
            CHECK_EQ(weft_op_wait(&op, 5 * WEFT_SECOND), WEFT_ERR_TIMEOUT); /* the server is not driven */
            CHECK(weft_op_done(&op));
            CHECK(test_now() - start > 0.15 && test_now() - start < 1.5);
            CHECK_EQ(two.closed[1], 1);
            CHECK_EQ(two.closed_why[1], WEFT_ERR_TIMEOUT);
            two_close();
        }
    }
}

TEST(a_close_can_be_cancelled_into_an_abort)
{
    weft_op_t op = WEFT_OP_INIT;
    two_open(NULL, NULL);
    weft_ep_t *ep = two_connect(NULL);
    CHECK_OK(weft_ep_close(ep, &op));
    weft_op_cancel(&op);
    CHECK_EQ(weft_op_wait(&op, WEFT_SECOND), WEFT_ERR_CANCELLED);
    TWO_UNTIL(two.closed[0] == 1, 2);
    two_close();
}

TEST(a_close_with_the_peer_lost_meanwhile_says_so)
{
    weft_op_t op = WEFT_OP_INIT;
    two_open(NULL, NULL);
    weft_ep_t *ep = two_connect(NULL);
    CHECK_OK(weft_ep_abort(two.accepted[0], NULL)); /* not seen yet by the client */
    CHECK_OK(weft_ep_close(ep, &op));
    CHECK_EQ(two_wait(&op, 2), WEFT_ERR_PEER);
    CHECK_EQ(two.closed_why[1], WEFT_ERR_PEER);
    two_close();
}

TEST(closing_a_runtime_ends_its_endpoints_and_the_peers_hear_of_it)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = over(t);
        two_open(&o, &o);
        for (int i = 0; i < 3; i++)
            two_connect(NULL);
        CHECK_OK(weft_runtime_close(two.client));
        two.client = NULL;
        CHECK_EQ(two.closed[1], 3);
        TWO_UNTIL(two.closed[0] == 3, 2);
        CHECK_OK(weft_runtime_close(two.server));
    }
}

TEST(nothing_is_left_open_after_a_thousand_connections)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = over(t);
        two_open(&o, &o);
        int fds = 0;
        for (int i = 0; i < (t ? 100 : 1000); i++) {
            weft_op_t op = WEFT_OP_INIT;
            two.n_accepted = 0;
            weft_ep_t *ep = two_connect(NULL);
            CHECK_OK(weft_ep_close(ep, &op));
            CHECK_OK(two_wait(&op, 5));
            CHECK_OK(weft_ep_close(two.accepted[0], NULL));
            two_run(0.0002);
            if (i == 20)
                fds = two_fds();
        }
        two_run(0.05);
        if (two_fds() > fds + 4)
            FAIL("%d file descriptors after 20 connections, %d at the end", fds, two_fds());
        two_close();
    }
}

TEST(what_was_closed_says_so_and_is_not_closed_twice)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = over(t);
        weft_op_t op = WEFT_OP_INIT, second = WEFT_OP_INIT, late = WEFT_OP_INIT;
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        char byte;
        two_open(&o, &o);
        weft_ep_t *ep = two_connect(NULL);
        CHECK_OK(weft_ep_close(ep, &op));
        CHECK_EQ(weft_ep_close(ep, &second), WEFT_ERR_CLOSED); /* and the first one is still told */
        CHECK_EQ(weft_ep_abort(ep, &second), WEFT_ERR_CLOSED);
        CHECK_OK(two_wait(&op, 5));
        CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_GONE);
        CHECK(weft_ep_runtime(ep) == two.client && !weft_ep_find(two.client, weft_ep_id(ep)));
        CHECK_EQ(weft_ep_get_info(ep, &info), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_ep_close(ep, &second), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_msg_send(ep, "x", 1, 1, &late), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_msg_recv(ep, &byte, 1, 1, WEFT_TAG_FULL, &late), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_msg_probe(two.client, ep, 1, WEFT_TAG_FULL, NULL), WEFT_ERR_CLOSED);
        two_close();
        CHECK_EQ(weft_ep_get_state(two.accepted[0]), WEFT_EP_GONE); /* with its runtime */
        CHECK_EQ(weft_ep_close(two.accepted[0], &late), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_ep_get_info(two.accepted[0], &info), WEFT_ERR_CLOSED);
    }
}

TEST(a_listener_that_was_closed_says_so)
{
    weft_runtime_opts_t o = over(1);
    weft_op_t op = WEFT_OP_INIT, accept = WEFT_OP_INIT, late = WEFT_OP_INIT;
    weft_listener_t *l;
    char uri[64];
    two_open(&o, &o);
    CHECK_OK(weft_listen(two.server, ports_tcp(), NULL, &l));
    CHECK_OK(weft_listener_accept(l, &accept));
    CHECK_OK(weft_listener_close(l, &op));
    CHECK_EQ(weft_listener_close(l, &late), WEFT_ERR_CLOSED);
    CHECK_OK(two_wait(&op, 5));
    CHECK_EQ(two_wait(&accept, 5), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_listener_close(l, &late), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_listener_accept(l, &late), WEFT_ERR_CLOSED);
    CHECK(!weft_listener_uri(l) && !weft_listener_port(l));
    CHECK_EQ(weft_listener_copy_uri(l, uri, &(size_t){sizeof uri}), WEFT_ERR_CLOSED);
    two_close();
}
