/* A lost endpoint that comes back: same ids, what was under way has failed, what is posted meanwhile waits, and who does not come
 * back is given up in time. The wire is cut under both runtimes by shutting down its socket. ctest: tls shards */
#include <netinet/in.h>
#include <sys/socket.h>

#include "lib/two.h"
#include "test.h"

static const char *transports[] = {"shm", "tcp"};
#define EACH_TRANSPORT(t) for (int t = 0; t < 2; t++)

/* Shut down every connected TCP socket of ours whose one end is `port`: as when a cable or a middlebox breaks the connection. */
static void cut(uint16_t port)
{
    int n = 0;
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in a;
        socklen_t len = sizeof a;
        if (!getpeername(fd, (struct sockaddr *)&a, &len) && a.sin_family == AF_INET && ntohs(a.sin_port) == port) {
            shutdown(fd, SHUT_RDWR);
            n++;
        }
    }
    CHECK(n > 0);
}

static weft_ep_t *begin(int t, weft_on_failure_t server, weft_on_failure_t client, uint64_t reconnect_ns)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = transports[t];
    two_open(&o, &o);
    two.answer[0] = server;
    two.answer[1] = client;
    weft_ep_opts_t eo = two_ep_opts();
    eo.reconnect_ns = reconnect_ns;
    eo.reconnect_first_ns = 10 * WEFT_MILLISECOND;
    return two_connect(&eo);
}

static void talk(weft_ep_t *from, weft_ep_t *to)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char got[8] = "";
    CHECK_OK(weft_msg_recv(to, got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(from, "again", 6, 1, &send));
    CHECK_OK(two_wait(&recv, 5));
    CHECK_STR(got, "again");
    CHECK_EQ(recv.from, weft_ep_id(to));
}

TEST(a_cut_connection_comes_back_under_the_same_ids_and_works)
{
    EACH_TRANSPORT(t)
    {
        weft_ep_t *ep = begin(t, WEFT_RECONNECT, WEFT_RECONNECT, 0);
        weft_ep_id_t id = weft_ep_id(ep), server_id = weft_ep_id(two.accepted[0]);
        for (int round = 1; round <= 5; round++) {
            weft_op_t pending[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
            char buf[2][8];
            CHECK_OK(weft_msg_recv(ep, buf[0], 8, 2, WEFT_TAG_FULL, &pending[0]));
            CHECK_OK(weft_msg_recv(two.accepted[0], buf[1], 8, 2, WEFT_TAG_FULL, &pending[1]));
            cut(weft_listener_port(two.listener));
            CHECK_EQ(two_wait(&pending[0], 2), WEFT_ERR_PEER);
            CHECK_EQ(two_wait(&pending[1], 2), WEFT_ERR_PEER);
            TWO_UNTIL(two.failed[0] == round && two.failed[1] == round, 2);
            TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_UP && weft_ep_get_state(two.accepted[0]) == WEFT_EP_UP, 5);
            CHECK(weft_ep_find(two.client, id) == ep && weft_ep_find(two.server, server_id) == two.accepted[0]);
            talk(ep, two.accepted[0]);
            talk(two.accepted[0], ep);
        }
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        weft_runtime_get_stats(two.client, &s);
        CHECK_EQ(s.reconnects, 5);
        CHECK_EQ(two.n_accepted, 1);
        CHECK_EQ(two.closed[0] + two.closed[1], 0);
        two_close();
    }
}

TEST(operations_posted_while_it_reconnects_wait_for_it)
{
    weft_ep_t *ep = begin(0, WEFT_RECONNECT, WEFT_RECONNECT, 0);
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char got[8] = "";
    cut(weft_listener_port(two.listener));
    TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_RECONNECTING && weft_ep_get_state(two.accepted[0]) == WEFT_EP_RECONNECTING, 2);
    CHECK_OK(weft_msg_send(ep, "later", 6, 1, &send));
    CHECK_OK(weft_msg_recv(two.accepted[0], got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(two_wait(&recv, 5));
    CHECK_STR(got, "later");
    two_close();
}

TEST(a_peer_that_returns_before_its_loss_was_noticed_is_the_same_endpoint)
{
    EACH_TRANSPORT(t)
    {
        weft_ep_t *ep = begin(t, WEFT_RECONNECT, WEFT_RECONNECT, 0);
        cut(weft_listener_port(two.listener));
        for (double end = test_now() + 0.3; test_now() < end;)
            weft_runtime_progress(two.client); /* it is back in the kernel's queue of the server */
        TWO_UNTIL(two.failed[0] == 1, 2);
        TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_UP && weft_ep_get_state(two.accepted[0]) == WEFT_EP_UP, 5);
        CHECK_EQ(two.n_accepted, 1);
        talk(ep, two.accepted[0]);
        two_close();
    }
}

TEST(a_server_that_gave_up_gets_the_returning_client_as_a_new_endpoint)
{
    weft_ep_t *ep = begin(0, WEFT_GIVE_UP, WEFT_RECONNECT, 0);
    weft_ep_id_t id = weft_ep_id(ep);
    cut(weft_listener_port(two.listener));
    TWO_UNTIL(two.n_accepted == 2 && weft_ep_get_state(ep) == WEFT_EP_UP, 5);
    CHECK_EQ(weft_ep_id(ep), id);
    CHECK_EQ(weft_ep_get_state(two.accepted[0]), WEFT_EP_FAILED);
    CHECK_EQ(two.closed[0], 1);
    CHECK_EQ(two.closed_why[0], WEFT_ERR_PEER);
    talk(ep, two.accepted[1]);
    CHECK_OK(weft_ep_close(two.accepted[0], NULL));
    two_close();
}

TEST(a_client_that_gives_up_fails_for_good)
{
    weft_ep_t *ep = begin(0, WEFT_GIVE_UP, WEFT_GIVE_UP, 0);
    weft_op_t op = WEFT_OP_INIT;
    char buf[8];
    cut(weft_listener_port(two.listener));
    TWO_UNTIL(two.closed[1] == 1, 2);
    CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
    CHECK_EQ(two.failed[1], 1);
    CHECK_EQ(two.closed_why[1], WEFT_ERR_PEER);
    CHECK_OK(weft_msg_send(ep, "x", 1, 1, &op)); /* the peer's fate comes by the operation, however late it is posted */
    CHECK_EQ(two_wait(&op, 5), WEFT_ERR_PEER);
    CHECK_OK(weft_msg_recv(ep, buf, 8, 1, WEFT_TAG_FULL, &op));
    CHECK_EQ(two_wait(&op, 5), WEFT_ERR_PEER);
    two_close();
}

TEST(a_server_that_restarts_on_its_port_gets_its_client_back)
{
    char uri[128];
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_op_t accept = WEFT_OP_INIT;
    weft_ep_t *ep = begin(0, WEFT_GIVE_UP, WEFT_RECONNECT, 0);
    snprintf(uri, sizeof uri, "%s", weft_listener_uri(two.listener));
    CHECK_OK(weft_runtime_close(two.server));
    two.server = NULL;
    TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_RECONNECTING, 2);
    two_run(0.2);
    CHECK_OK(weft_runtime_open(NULL, &two.server));
    CHECK_OK(weft_listen(two.server, uri, &lo, &two.listener));
    CHECK_OK(weft_listener_accept(two.listener, &accept));
    TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_UP, 10);
    CHECK_OK(two_wait(&accept, 5));
    talk(ep, accept.buf);
    two_close();
}

static int tries;
static void count_tries(weft_log_level_t level, const char *line, void *user)
{
    (void)level, (void)user;
    tries += strstr(line, "no connection to") != NULL;
}

TEST(one_that_never_returns_is_tried_with_growing_pauses_and_then_given_up)
{
    weft_ep_t *ep = begin(0, WEFT_GIVE_UP, WEFT_RECONNECT, WEFT_SECOND);
    weft_op_t send = WEFT_OP_INIT;
    static char big[100000];
    CHECK_OK(weft_runtime_close(two.server));
    two.server = NULL;
    TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_RECONNECTING, 2);
    weft_log_set_sink(count_tries, NULL);
    weft_log_set_level(WEFT_LOG_INFO);
    double start = test_now();
    CHECK_OK(weft_msg_send(ep, big, sizeof big, 1, &send));
    CHECK_EQ(two_wait(&send, 5), WEFT_ERR_PEER);
    CHECK(test_now() - start > 0.8 && test_now() - start < 3);
    TWO_UNTIL(two.closed[1] == 1, 1);
    CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
    CHECK_EQ(two.closed_why[1], WEFT_ERR_PEER);
    CHECK_EQ(two.failed[1], 1); /* asked once, not once per try */
    if (tries < 4 || tries > 14)
        FAIL("%d tries in a second", tries);
    weft_log_set_sink(NULL, NULL);
    CHECK_OK(weft_runtime_close(two.client));
}

TEST(a_close_while_reconnecting_ends_it)
{
    for (int force = 0; force < 2; force++) {
        weft_ep_t *ep = begin(0, WEFT_GIVE_UP, WEFT_RECONNECT, 0);
        weft_op_t op = WEFT_OP_INIT, send = WEFT_OP_INIT;
        static char big[100000];
        CHECK_OK(weft_runtime_close(two.server));
        two.server = NULL;
        TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_RECONNECTING, 2);
        CHECK_OK(weft_msg_send(ep, big, sizeof big, 1, &send));
        if (force)
            CHECK_OK(weft_ep_abort(ep, &op));
        else
            CHECK_OK(weft_ep_close(ep, &op));
        CHECK_EQ(two_wait(&op, 2), force ? WEFT_OK : WEFT_ERR_PEER);
        CHECK_EQ(send.status, force ? WEFT_ERR_CANCELLED : WEFT_ERR_PEER);
        CHECK_EQ(two.closed[1], 1);
        CHECK_OK(weft_runtime_close(two.client));
    }
}

TEST(a_server_waiting_for_a_return_can_close_and_be_closed)
{
    weft_op_t op = WEFT_OP_INIT;
    begin(0, WEFT_RECONNECT, WEFT_GIVE_UP, 0);
    cut(weft_listener_port(two.listener));
    TWO_UNTIL(weft_ep_get_state(two.accepted[0]) == WEFT_EP_RECONNECTING, 2);
    CHECK_OK(weft_ep_close(two.accepted[0], &op));
    CHECK_EQ(two_wait(&op, 2), WEFT_ERR_PEER);
    CHECK_EQ(two.closed[0], 1);
    two_close();
    begin(0, WEFT_RECONNECT, WEFT_GIVE_UP, 0);
    cut(weft_listener_port(two.listener));
    TWO_UNTIL(weft_ep_get_state(two.accepted[0]) == WEFT_EP_RECONNECTING, 2);
    two_close();
    CHECK_EQ(two.closed[0], 1);
}

TEST(a_server_gives_up_on_a_peer_that_does_not_return_in_time)
{
    EACH_TRANSPORT(t)
    {
        weft_op_t recv = WEFT_OP_INIT;
        char got[8];
        two_reconnect_ns = 500 * WEFT_MILLISECOND;
        begin(t, WEFT_RECONNECT, WEFT_GIVE_UP, 0);
        cut(weft_listener_port(two.listener));
        TWO_UNTIL(weft_ep_get_state(two.accepted[0]) == WEFT_EP_RECONNECTING, 2);
        double start = test_now();
        CHECK_OK(weft_msg_recv(two.accepted[0], got, sizeof got, 1, WEFT_TAG_FULL, &recv));
        CHECK_EQ(two_wait(&recv, 3), WEFT_ERR_PEER);
        CHECK(test_now() - start > 0.3 && test_now() - start < 2);
        CHECK_EQ(weft_ep_get_state(two.accepted[0]), WEFT_EP_FAILED);
        TWO_UNTIL(two.closed[0] == 1, 1);
        two_close();
    }
}
