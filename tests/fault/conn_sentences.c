/* Every operation that failed says why, with the address and the peer: not only that it did. */
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/peer.h"
#include "test.h"

#include "says.h"

static void life_idle(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    peer_live(rt);
}

TEST(a_connect_that_was_refused_names_the_address)
{
    weft_runtime_t *rt;
    weft_op_t op = WEFT_OP_INIT, send = WEFT_OP_INIT;
    weft_ep_t *ep;
    CHECK_OK(weft_runtime_open(NULL, &rt));
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    once.no_retry = true;
    CHECK_OK(weft_ep_open(rt, "tcp://127.0.0.1:1", &once, &op, &ep));
    CHECK_OK(weft_msg_send(ep, "x", 1, 1, &send)); /* it shares its fate */
    CHECK_EQ(weft_op_wait(&op, 20 * WEFT_SECOND), WEFT_ERR_REFUSED);
    SAYS(&op, "connect", "tcp://127.0.0.1:1", "refused");
    CHECK_STR(weft_last_error(), weft_op_error(&op));
    CHECK_EQ(weft_op_wait(&send, 20 * WEFT_SECOND), WEFT_ERR_REFUSED);
    SAYS(&send, "send", "tcp://127.0.0.1:1", "refused");
    CHECK_OK(weft_runtime_close(rt));
    SAYS(&op, "connect", "tcp://127.0.0.1:1", "refused"); /* the operation's own, whatever became of the runtime */
}

TEST(operations_on_a_lost_peer_name_it_and_say_how_it_was_lost)
{
    static const struct {
        int sig;
        const char *says;
    } ways[] = {{SIGKILL, "gone"}, {SIGSTOP, "silent"}};
    for (int i = 0; i < 4; i++) {
        peer_t p;
        weft_op_t recv = WEFT_OP_INIT, after = WEFT_OP_INIT;
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        char buf[8], name[128];
        peer_start(&p, i / 2 ? "tcp" : "shm", WEFT_SECOND, life_idle);
        CHECK_OK(weft_ep_get_info(p.ep, &info));
        snprintf(name, sizeof name, "%s", info.peer_name);
        CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
        peer_signal(&p, ways[i % 2].sig);
        CHECK_EQ(peer_wait(&p, &recv, 20), WEFT_ERR_PEER);
        SAYS(&recv, "receive", "tcp://127.0.0.1:", name, "lost", ways[i % 2].says);
        /* and what is posted later says the same */
        CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &after));
        CHECK_EQ(peer_wait(&p, &after, 20), WEFT_ERR_PEER);
        SAYS(&after, "receive", name, "lost", ways[i % 2].says);
        peer_end(&p);
    }
}

static void closed_by_its_peer(weft_progress_mode_t mode)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *server, *rt, *closed;
    weft_listener_t *l;
    weft_ep_t *ep, *theirs;
    weft_op_t recv = WEFT_OP_INIT;
    char buf[8];
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &server));
    o.progress = mode;
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_OK(weft_runtime_open(NULL, &closed));
    CHECK_OK(weft_listen(server, "tcp://127.0.0.1:0", NULL, &l));
    CHECK_OK(weft_ep_connect(rt, weft_listener_uri(l), NULL, 20 * WEFT_SECOND, &ep));
    CHECK_OK(weft_listener_accept_wait(l, 20 * WEFT_SECOND, &theirs));
    CHECK_OK(weft_ep_close(theirs, NULL));
    TEST_UNTIL((weft_runtime_progress(rt), weft_ep_get_state(ep) == WEFT_EP_PEER_CLOSED), 20);
    /* this thread's last error has the same status, and is about something else */
    CHECK_OK(weft_runtime_close(closed));
    CHECK_EQ(weft_timer_start(closed, 1, &recv), WEFT_ERR_CLOSED);
    CHECK_OK(weft_msg_recv(ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
    CHECK_EQ(weft_op_wait(&recv, 20 * WEFT_SECOND), WEFT_ERR_CLOSED);
    SAYS(&recv, "receive", "the peer closed");
    /* and where there is no operation to say it, the call does */
    CHECK_EQ(weft_msg_send(ep, "x", 1, 1, NULL), WEFT_ERR_CLOSED);
    CHECK(strstr(weft_last_error(), "the peer closed"));
    CHECK_EQ(weft_am_send(ep, 1, NULL, 0, "x", 1, NULL), WEFT_ERR_CLOSED);
    CHECK(strstr(weft_last_error(), "the peer closed"));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_OK(weft_runtime_close(server));
}

/* Where there is no operation to say it, the call says that the peer is lost, whoever drives. */
TEST(what_nobody_waits_for_is_refused_on_a_lost_peer)
{
    for (int thread = 0; thread < 2; thread++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_runtime_t *server, *rt;
        weft_listener_t *l;
        weft_ep_t *ep, *theirs;
        o.progress = WEFT_PROGRESS_THREAD;
        CHECK_OK(weft_runtime_open(&o, &server));
        o.progress = thread ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER;
        CHECK_OK(weft_runtime_open(&o, &rt));
        CHECK_OK(weft_listen(server, "tcp://127.0.0.1:0", NULL, &l));
        CHECK_OK(weft_ep_connect(rt, weft_listener_uri(l), NULL, 20 * WEFT_SECOND, &ep));
        CHECK_OK(weft_listener_accept_wait(l, 20 * WEFT_SECOND, &theirs));
        CHECK_OK(weft_ep_abort(theirs, NULL));
        TEST_UNTIL((weft_runtime_progress(rt), weft_ep_get_state(ep) == WEFT_EP_FAILED), 20);
        CHECK_EQ(weft_msg_send(ep, "x", 1, 1, NULL), WEFT_ERR_PEER);
        CHECK(strstr(weft_last_error(), "lost"));
        CHECK_EQ(weft_am_send(ep, 1, NULL, 0, "x", 1, NULL), WEFT_ERR_PEER);
        CHECK(strstr(weft_last_error(), "lost"));
        CHECK_OK(weft_runtime_close(rt));
        CHECK_OK(weft_runtime_close(server));
    }
}

TEST(one_on_an_endpoint_that_its_peer_closed_says_that_and_nothing_older)
{
    closed_by_its_peer(WEFT_PROGRESS_CALLER);
    closed_by_its_peer(WEFT_PROGRESS_THREAD);
}

/* A large send waits for the fabric to let go of its buffer, a close for the operations, and a group for its members: they know
 * it too. */
TEST(what_ends_later_than_its_endpoint_says_the_same)
{
    static char large[8 << 20];
    peer_t p;
    weft_op_t msg = WEFT_OP_INIT, am = WEFT_OP_INIT, recv = WEFT_OP_INIT, group = WEFT_OP_INIT, closes = WEFT_OP_INIT,
              *members[] = {&recv};
    char buf[8];
    peer_start(&p, "tcp", WEFT_SECOND, life_idle);
    CHECK_OK(weft_msg_send(p.ep, large, sizeof large, 1, &msg));
    CHECK_OK(weft_am_send(p.ep, 1, NULL, 0, large, sizeof large, &am));
    CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_group_start(p.rt, WEFT_GROUP_ALL, members, 1, &group));
    peer_signal(&p, SIGKILL);
    CHECK_EQ(peer_wait(&p, &msg, 20), WEFT_ERR_PEER);
    CHECK_EQ(peer_wait(&p, &am, 20), WEFT_ERR_PEER);
    CHECK_EQ(peer_wait(&p, &group, 20), WEFT_ERR_PEER);
    SAYS(&msg, "send", "tcp://127.0.0.1:", "lost");
    SAYS(&am, "send", "tcp://127.0.0.1:", "lost");
    SAYS(&group, "group", "tcp://127.0.0.1:", "lost");
    CHECK_OK(weft_ep_close(p.ep, &closes));
    p.ep = NULL;
    CHECK_EQ(peer_wait(&p, &closes, 20), WEFT_ERR_PEER);
    SAYS(&closes, "close", "tcp://127.0.0.1:", "lost");
    peer_end(&p);
}

TEST(what_comes_too_late_names_whom_it_waited_for)
{
    peer_t p;
    weft_op_t recv = WEFT_OP_INIT, take = WEFT_OP_INIT, connects = WEFT_OP_INIT;
    weft_ep_t *ep;
    char buf[8], uri[64];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* takes calls, and says nothing */
    CHECK(!bind(silent, (struct sockaddr *)&at, n) && !listen(silent, 8) && !getsockname(silent, (struct sockaddr *)&at, &n));
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    peer_start(&p, "tcp", WEFT_SECOND, life_idle);
    recv.timeout_ns = take.timeout_ns = connects.timeout_ns = 20 * WEFT_MILLISECOND;
    CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_am_take(p.rt, p.ep, 1, &take));
    CHECK_OK(weft_ep_open(p.rt, uri, NULL, &connects, &ep));
    CHECK_EQ(peer_wait(&p, &recv, 20), WEFT_ERR_TIMEOUT);
    CHECK_EQ(peer_wait(&p, &take, 20), WEFT_ERR_TIMEOUT);
    CHECK_EQ(peer_wait(&p, &connects, 20), WEFT_ERR_TIMEOUT);
    SAYS(&recv, "receive", "tcp://127.0.0.1:", "the peer \"", "deadline");
    SAYS(&take, "receive", "tcp://127.0.0.1:", "the peer \"", "deadline");
    SAYS(&connects, "connect", uri, "deadline");
    close(silent);
    peer_end(&p);
}

TEST(what_ends_by_an_abort_says_that)
{
    peer_t p;
    weft_op_t recv = WEFT_OP_INIT;
    char buf[8];
    peer_start(&p, "tcp", WEFT_SECOND, life_idle);
    CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_ep_abort(p.ep, NULL));
    p.ep = NULL;
    CHECK_EQ(peer_wait(&p, &recv, 20), WEFT_ERR_CANCELLED);
    SAYS(&recv, "receive", "tcp://127.0.0.1:", "aborted");
    peer_end(&p);
}

TEST(one_that_was_cancelled_or_came_too_late_says_so)
{
    weft_runtime_t *rt;
    weft_op_t late = {.timeout_ns = 1}, cancelled = WEFT_OP_INIT, fine = WEFT_OP_INIT;
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_OK(weft_timer_start(rt, 10 * WEFT_SECOND, &late));
    CHECK_OK(weft_timer_start(rt, 10 * WEFT_SECOND, &cancelled));
    CHECK_STR(weft_op_error(&cancelled), ""); /* it is under way */
    weft_op_cancel(&cancelled);
    CHECK_EQ(weft_op_wait(&late, 20 * WEFT_SECOND), WEFT_ERR_TIMEOUT);
    CHECK_EQ(weft_op_wait(&cancelled, 20 * WEFT_SECOND), WEFT_ERR_CANCELLED);
    SAYS(&late, "timer", "deadline");
    SAYS(&cancelled, "timer", "cancelled");
    CHECK_OK(weft_timer_start(rt, 1, &fine));
    CHECK_OK(weft_op_wait(&fine, 20 * WEFT_SECOND));
    CHECK_STR(weft_op_error(&fine), "");
    CHECK_STR(weft_op_error(NULL), "");
    CHECK_OK(weft_runtime_close(rt));
}
