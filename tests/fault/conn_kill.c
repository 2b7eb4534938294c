/* The peer's process is killed at every stage of a connection: both roles learn it at once, in any state, and every operation
 * ends.
 *
 * ctest: tls */
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/peer.h"
#include "lib/raw.h"
#include "ports.h"
#include "test.h"

static const char *const transports[] = {"shm", "tcp"};
#define EACH_TRANSPORT(t) for (int t = 0; t < 2; t++)

static void life_idle(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    peer_live(rt);
}

/* A server in a process of its own; its uri. */
static pid_t server(const char *tls, char *uri, size_t cap)
{
    int fds[2];
    CHECK(!pipe(fds));
    pid_t pid = fork();
    if (pid == 0) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_runtime_t *rt;
        weft_listener_t *l;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        o.transports = tls;
        CHECK_OK(weft_runtime_open(&o, &rt));
        CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &l));
        CHECK(write(fds[1], weft_listener_uri(l), strlen(weft_listener_uri(l)) + 1) > 0);
        peer_live(rt);
    }
    CHECK(read(fds[0], uri, cap) > 0);
    close(fds[0]);
    close(fds[1]);
    return pid;
}

TEST(the_accepting_side_learns_of_a_killed_peer_at_once)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        weft_op_t recv = WEFT_OP_INIT, close_op = WEFT_OP_INIT;
        char buf[8];
        peer_start(&p, transports[t], 0, life_idle);
        CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
        peer_run(&p, 0.05);
        peer_signal(&p, SIGKILL);
        double start = test_now();
        CHECK_EQ(peer_wait(&p, &recv, 2), WEFT_ERR_PEER);
        CHECK(test_now() - start < 1);
        CHECK_OK(weft_ep_close(p.ep, &close_op));
        CHECK_EQ(peer_wait(&p, &close_op, 2), WEFT_ERR_PEER);
        p.ep = NULL;
        peer_end(&p);
    }
}

TEST(the_dialling_side_learns_of_a_killed_server_at_once_and_reconnecting_to_it_ends)
{
    EACH_TRANSPORT(t)
    {
        char uri[256];
        pid_t pid = server(transports[t], uri, sizeof uri);
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_runtime_t *rt;
        weft_op_t op = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        weft_ep_t *ep;
        char buf[8];
        o.transports = transports[t];
        CHECK_OK(weft_runtime_open(&o, &rt));
        CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
        CHECK_OK(weft_op_wait(&op, 5 * WEFT_SECOND));
        CHECK_OK(weft_msg_recv(ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        CHECK_EQ(weft_op_wait(&recv, WEFT_SECOND), WEFT_ERR_PEER);
        CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
        weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
        once.no_retry = true;
        CHECK_OK(weft_ep_open(rt, uri, &once, &op, &ep)); /* nobody is there any more */
        CHECK_EQ(weft_op_wait(&op, 5 * WEFT_SECOND), WEFT_ERR_REFUSED);
        CHECK_OK(weft_runtime_close(rt));
    }
}

TEST(a_close_under_way_ends_when_the_peer_is_killed)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        weft_op_t op = WEFT_OP_INIT;
        peer_start(&p, transports[t], 0, life_idle);
        peer_signal(&p, SIGSTOP);
        CHECK_OK(weft_ep_close(p.ep, &op));
        p.ep = NULL;
        peer_run(&p, 0.1);
        CHECK(!weft_op_done(&op));
        peer_signal(&p, SIGKILL);
        CHECK_EQ(peer_wait(&p, &op, 2), WEFT_ERR_PEER);
        peer_end(&p);
    }
}

TEST(a_listener_survives_peers_killed_at_every_moment_of_their_hello)
{
    EACH_TRANSPORT(t)
    {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_runtime_t *rt;
        weft_listener_t *l;
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        char uri[256];
        int fds[2];
        CHECK(!pipe(fds));
        pid_t kids[30]; /* before there is a runtime here; each has a little more time than the one before */
        for (int i = 0; i < 30; i++) {
            kids[i] = fork();
            if (kids[i] == 0) {
                weft_runtime_t *mine;
                weft_ep_t *ep;
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                o.transports = transports[t];
                CHECK(read(fds[0], uri, sizeof uri) == sizeof uri);
                CHECK_OK(weft_runtime_open(&o, &mine));
                CHECK_OK(weft_ep_open(mine, uri, NULL, NULL, &ep));
                for (int k = 0; k < 12 * i; k++)
                    weft_runtime_progress(mine);
                raise(SIGKILL);
            }
        }
        o.transports = transports[t];
        CHECK_OK(weft_runtime_open(&o, &rt));
        CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &l));
        memset(uri, 0, sizeof uri);
        snprintf(uri, sizeof uri, "%s", weft_listener_uri(l));
        for (int i = 0; i < 30; i++)
            CHECK(write(fds[1], uri, sizeof uri) == sizeof uri);
        for (int i = 0; i < 30; i++)
            while (waitpid(kids[i], NULL, WNOHANG) == 0)
                weft_runtime_progress(rt);
        raw_run(rt, 0.2);
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep)); /* it still takes calls, its own here */
        CHECK_OK(weft_op_wait(&op, 5 * WEFT_SECOND));
        CHECK_OK(weft_listener_close(l, NULL));
        CHECK_OK(weft_ep_close(ep, NULL));
        raw_run(rt, 0.1);
        weft_runtime_get_stats(rt, &s);
        CHECK_EQ(s.endpoints, 0); /* what nobody accepted went with the listener */
        CHECK_OK(weft_runtime_close(rt));
        close(fds[0]);
        close(fds[1]);
    }
}
