/* Nobody listens, the name has no address, the network is not there: each connect ends with the status that says which.
 * ctest: shards */
#include <sys/socket.h>

#include "lib/raw.h"
#include "test.h"

static weft_runtime_t *rt;

static weft_status_t connect_with(const char *uri, bool no_retry, double *took)
{
    weft_ep_opts_t opts = WEFT_EP_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT, waiting = WEFT_OP_INIT, close_op = WEFT_OP_INIT;
    weft_ep_t *ep;
    char buf[8];
    double start = test_now();
    opts.no_retry = no_retry;
    CHECK_OK(weft_ep_open(rt, uri, &opts, &op, &ep));
    CHECK_OK(weft_msg_recv(ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &waiting));
    weft_op_wait(&op, 20 * WEFT_SECOND);
    CHECK(weft_op_done(&op));
    *took = test_now() - start;
    weft_op_wait(&waiting, WEFT_SECOND);
    CHECK_EQ(waiting.status, op.status); /* they share its fate */
    CHECK_OK(weft_msg_send(ep, "x", 1, 1, &waiting));
    CHECK_EQ(weft_op_wait(&waiting, WEFT_SECOND), op.status);
    CHECK_OK(weft_ep_close(ep, &close_op));
    CHECK_OK(weft_op_wait(&close_op, 5 * WEFT_SECOND));
    return op.status;
}

static weft_status_t connect_to(const char *uri, double *took)
{
    return connect_with(uri, true, took);
}

TEST(a_closed_port_refuses_at_once)
{
    double took;
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_EQ(connect_to("tcp://127.0.0.1:1", &took), WEFT_ERR_REFUSED);
    CHECK(took < 1);
    CHECK_EQ(connect_to("tcp://[::1]:1,tcp://127.0.0.1:1", &took), WEFT_ERR_REFUSED);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_socket_nobody_bound_refuses_at_once)
{
    double took;
    CHECK_OK(weft_runtime_open(NULL, &rt));
    weft_status_t st = connect_to("unix://@weft-test-nobody", &took);
    CHECK(st == WEFT_ERR_REFUSED || st == WEFT_ERR_ADDRESS);
    st = connect_to("unix:///nonexistent/socket", &took);
    CHECK(st == WEFT_ERR_REFUSED || st == WEFT_ERR_ADDRESS);
    CHECK(took < 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(where_nobody_comes_it_is_tried_until_the_time_of_the_connect_is_over)
{
    double took;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.connect_timeout_ns = 600 * WEFT_MILLISECOND;
    CHECK_OK(weft_runtime_open(&o, &rt));
    weft_status_t st = connect_with("tcp://127.0.0.1:1", false, &took);
    CHECK(st == WEFT_ERR_REFUSED || st == WEFT_ERR_TIMEOUT); /* the time may be over in the middle of the last try */
    CHECK(took > 0.1);
    CHECK_EQ(connect_with("unix:///nonexistent/socket", false, &took), WEFT_ERR_REFUSED);
    CHECK(took > 0.1);
    CHECK_EQ(connect_with("tcp://nobody.invalid:1", false, &took), WEFT_ERR_ADDRESS); /* a name that is not there is a mistake */
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_server_that_starts_later_is_found)
{
    char uri[64];
    weft_op_t op = WEFT_OP_INIT, dead = WEFT_OP_INIT, send = WEFT_OP_INIT;
    weft_ep_t *ep, *gone;
    weft_runtime_t *server;
    weft_listener_t *l;
    snprintf(uri, sizeof uri, "unix://@weft-test-later-%d", (int)getpid());
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    CHECK_OK(weft_ep_open(rt, uri, NULL, &dead, &gone));
    CHECK_OK(weft_msg_send(ep, "hello", 5, 1, &send)); /* waits with it */
    CHECK_EQ(weft_op_wait(&op, 300 * WEFT_MILLISECOND), WEFT_ERR_PENDING);
    CHECK_OK(weft_ep_close(gone, NULL)); /* while it pauses between two tries */
    CHECK_EQ(weft_op_wait(&dead, 5 * WEFT_SECOND), WEFT_ERR_CANCELLED);
    weft_runtime_opts_t so = WEFT_RUNTIME_OPTS_INIT;
    so.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&so, &server));
    CHECK_OK(weft_listen(server, uri, NULL, &l));
    CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&send, 10 * WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_OK(weft_runtime_close(server));
}

TEST(a_name_without_an_address_is_an_address_error)
{
    double took;
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_EQ(connect_to("tcp://no-such-host.invalid:80", &took), WEFT_ERR_ADDRESS);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_peer_that_accepts_and_hangs_up_is_a_refusal)
{
    char uri[64];
    uint16_t port;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    int l = raw_listen(&port);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", port);
    weft_ep_opts_t opts = WEFT_EP_OPTS_INIT;
    opts.no_retry = true;
    CHECK_OK(weft_ep_open(rt, uri, &opts, &op, &ep));
    raw_run(rt, 0.05);
    close(raw_accept(l));
    CHECK_EQ(weft_op_wait(&op, 5 * WEFT_SECOND), WEFT_ERR_REFUSED);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_server_that_speaks_something_else_is_a_protocol_error)
{
    char uri[64];
    uint16_t port;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    int l = raw_listen(&port);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", port);
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    raw_run(rt, 0.05);
    int fd = raw_accept(l);
    CHECK(send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL) > 0);
    CHECK_EQ(weft_op_wait(&op, 5 * WEFT_SECOND), WEFT_ERR_PROTOCOL);
    close(fd);
    CHECK_OK(weft_runtime_close(rt));
}
