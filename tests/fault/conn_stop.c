/* The peer is stopped (SIGSTOP) and says nothing: it is lost within the heartbeat bound and not much before, one that only
 * hiccups is not lost, and nothing waits for it longer than it was told to.
 *
 * ctest: tls-long */
#include "lib/peer.h"
#include "test.h"

#define BOUND (600 * WEFT_MILLISECOND)

static const char *const transports[] = {"shm", "tcp"};
#define EACH_TRANSPORT(t) for (int t = 0; t < 2; t++)

static void life_idle(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    peer_live(rt);
}

TEST(a_stopped_peer_is_lost_within_the_bound_and_not_much_before)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        weft_op_t recv = WEFT_OP_INIT;
        char buf[8];
        peer_start(&p, transports[t], BOUND, life_idle);
        CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
        peer_run(&p, 0.5);
        CHECK_EQ(weft_ep_get_state(p.ep), WEFT_EP_UP);
        peer_signal(&p, SIGSTOP);
        double start = test_now();
        CHECK_EQ(peer_wait(&p, &recv, 3), WEFT_ERR_PEER);
        double took = test_now() - start;
        if (took < 0.3 || took > 3 * 0.6) /* the bound, and twice more on a machine that starves us: see conn/beat.c */
            FAIL("it took %.3f s", took);
        peer_end(&p);
    }
}

TEST(an_idle_connection_lives_on_heartbeats)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        peer_start(&p, transports[t], WEFT_SECOND, life_idle);
        peer_run(&p, 3);
        CHECK_EQ(weft_ep_get_state(p.ep), WEFT_EP_UP);
        peer_end(&p);
    }
}

TEST(a_peer_that_hiccups_is_not_lost)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        peer_start(&p, transports[t], BOUND, life_idle);
        for (int i = 0; i < 4; i++) {
            peer_signal(&p, SIGSTOP);
            peer_run(&p, 0.2);
            peer_signal(&p, SIGCONT);
            peer_run(&p, 0.4);
            CHECK_EQ(weft_ep_get_state(p.ep), WEFT_EP_UP);
        }
        peer_end(&p);
    }
}

TEST(a_graceful_close_does_not_wait_for_a_stopped_peer_longer_than_the_heartbeat_bound)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        weft_op_t op = WEFT_OP_INIT;
        peer_start(&p, transports[t], BOUND, life_idle);
        peer_signal(&p, SIGSTOP);
        double start = test_now();
        CHECK_OK(weft_ep_close(p.ep, &op));
        p.ep = NULL;
        CHECK_EQ(peer_wait(&p, &op, 5), WEFT_ERR_PEER);
        CHECK(test_now() - start < 2);
        peer_end(&p);
    }
}

TEST(a_graceful_close_has_its_own_deadline)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        weft_op_t op = WEFT_OP_INIT;
        peer_start(&p, transports[t], 0, life_idle);
        peer_signal(&p, SIGSTOP);
        op.timeout_ns = 100 * WEFT_MILLISECOND;
        double start = test_now();
        CHECK_OK(weft_ep_close(p.ep, &op));
        p.ep = NULL;
        CHECK_EQ(peer_wait(&p, &op, 5), WEFT_ERR_TIMEOUT);
        CHECK(test_now() - start < 1);
        peer_end(&p);
    }
}

TEST(a_runtime_closes_with_a_stopped_peer)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        peer_start(&p, transports[t], 0, life_idle);
        peer_signal(&p, SIGSTOP);
        double start = test_now();
        CHECK_OK(weft_runtime_close(p.rt));
        CHECK(test_now() - start < 3);
        kill(p.pid, SIGKILL);
    }
}
