/* The peer is killed, or stopped, before, during and after a transfer of each size class, in both directions: every operation
 * completes once, with a status that says so, at once for a death and within the heartbeat bound for a silence.
 *
 * ctest: tls-long long */
#define TEST_SECONDS 200
#include <signal.h>
#include <sys/wait.h>

#include "lib/peer.h"
#include "test.h"

enum { MAX = 64 << 20 };
static const size_t sizes[] = {8, 4096, 100000, MAX};
static const char *const transports[] = {"shm", "tcp"};
static uint8_t *buf, *in;

#define BOUND_NS (700 * WEFT_MILLISECOND)
/* One bound on a machine that runs us; a starved process may take itself for the silent one twice (conn/beat.c), and needs time
 * besides. */
#define BOUND_S (0.7 * 2.6 + 2.5)

/* A death is noticed long before a heartbeat would tell of it. */
static double limit_for(int sig)
{
    return sig == SIGKILL ? 6.0 : BOUND_S;
}
static uint64_t heartbeat_for(int sig)
{
    return sig == SIGKILL ? 20 * WEFT_SECOND : BOUND_NS;
}

static void set_up(void)
{
    if (!buf) {
        buf = (uint8_t *)calloc(1, MAX);
        in = (uint8_t *)calloc(1, MAX);
    }
}

/* Answers, receives nothing. */
static void life_idle(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    peer_live(rt);
}

/* Receives everything, for ever. */
static void life_receive(weft_runtime_t *rt, weft_ep_t *ep)
{
    uint8_t *mine = (uint8_t *)malloc(MAX);
    (void)rt;
    for (;;) {
        weft_op_t op = WEFT_OP_INIT;
        if (weft_msg_recv(ep, mine, MAX, 0, WEFT_TAG_ANY, &op) || weft_op_wait(&op, WEFT_FOREVER))
            _exit(1);
    }
}

static size_t life_size;
/* Sends everything, for ever. */
static void life_send(weft_runtime_t *rt, weft_ep_t *ep)
{
    uint8_t *mine = (uint8_t *)calloc(1, MAX);
    (void)rt;
    for (;;) {
        weft_op_t op = WEFT_OP_INIT;
        if (weft_msg_send(ep, mine, life_size, 1, &op) || weft_op_wait(&op, WEFT_FOREVER))
            _exit(1);
    }
}

static void check_lost(peer_t *peer)
{
    weft_op_t op = WEFT_OP_INIT;
    uint64_t word = 0;
    CHECK_EQ(weft_ep_get_state(peer->ep), WEFT_EP_FAILED);
    CHECK_OK(weft_msg_send(peer->ep, &word, 8, 1, &op)); /* what became of the peer comes by the operation */
    CHECK_EQ(peer_wait(peer, &op, 5), WEFT_ERR_PEER);
    CHECK_OK(weft_msg_recv(peer->ep, &word, 8, 77, WEFT_TAG_FULL, &op));
    CHECK_EQ(peer_wait(peer, &op, 5), WEFT_ERR_PEER);
}

static void lost_while_nothing_moves(int sig)
{
    set_up();
    for (unsigned t = 0; t < 2; t++) {
        peer_t peer;
        weft_op_t recv = WEFT_OP_INIT, any = WEFT_OP_INIT;
        peer_start(&peer, transports[t], heartbeat_for(sig), life_idle);
        CHECK_OK(weft_msg_recv(peer.ep, in, MAX, 77, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_recv_any(peer.rt, in, MAX, 78, WEFT_TAG_FULL, &any));
        peer_run(&peer, 1.0); /* heartbeats keep it up */
        CHECK(!weft_op_done(&recv));
        peer_signal(&peer, sig);
        double start = test_now();
        CHECK_EQ(peer_wait(&peer, &recv, limit_for(sig)), WEFT_ERR_PEER);
        printf("# %s, signal %d: noticed after %.0f ms\n", transports[t], sig, (test_now() - start) * 1e3);
        check_lost(&peer);
        CHECK(!weft_op_done(&any)); /* others may still send */
        weft_op_cancel(&any);
        CHECK_EQ(peer_wait(&peer, &any, 1), WEFT_ERR_CANCELLED);
        peer_end(&peer);
    }
}

TEST(a_killed_peer_ends_posted_receives_at_once)
{
    lost_while_nothing_moves(SIGKILL);
}
TEST(a_stopped_peer_ends_posted_receives_within_the_heartbeat_bound)
{
    lost_while_nothing_moves(SIGSTOP);
}

/* We send; the peer is lost before it received, while it receives, and then we send once more. */
static void lost_receiver(int sig, bool receiving)
{
    set_up();
    for (unsigned t = 0; t < 2; t++) {
        for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            enum { N = 16 };
            peer_t peer;
            weft_op_t op[N];
            unsigned started = 0, ok = 0;
            memset(op, 0, sizeof op);
            peer_start(&peer, transports[t], heartbeat_for(sig), receiving ? life_receive : life_idle);
            for (; started < N; started++)
                CHECK_OK(weft_msg_send(peer.ep, buf, sizes[s], 1, &op[started]));
            peer_run(&peer, receiving ? 0.003 : 0.05);
            peer_signal(&peer, sig);
            double start = test_now();
            for (unsigned i = 0; i < N; i++) {
                double left = limit_for(sig) - (test_now() - start);
                weft_status_t st = peer_wait(&peer, &op[i], left > 0.05 ? left : 0.05);
                CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
                ok += st == WEFT_OK;
            }
            if (!receiving && sizes[s] > 65536)
                CHECK_EQ(ok, 0);
            weft_op_t last = WEFT_OP_INIT; /* may still be taken if all were copied: then the loss is found on its account */
            memset(&last, 0, sizeof last);
            if (!weft_msg_recv(peer.ep, in, MAX, 5, WEFT_TAG_FULL, &last))
                CHECK_EQ(peer_wait(&peer, &last, limit_for(sig)), WEFT_ERR_PEER);
            check_lost(&peer);
            peer_end(&peer);
        }
    }
}

TEST(sends_to_a_peer_killed_before_it_received_end)
{
    lost_receiver(SIGKILL, false);
}
TEST(sends_to_a_peer_stopped_before_it_received_end)
{
    lost_receiver(SIGSTOP, false);
}
TEST(sends_to_a_peer_killed_while_it_receives_end)
{
    lost_receiver(SIGKILL, true);
}
TEST(sends_to_a_peer_stopped_while_it_receives_end)
{
    lost_receiver(SIGSTOP, true);
}

/* We receive; the peer is lost while it sends. What had arrived whole can be received, the rest ends. */
static void lost_sender(int sig)
{
    set_up();
    for (unsigned t = 0; t < 2; t++) {
        for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            peer_t peer;
            life_size = sizes[s];
            peer_start(&peer, transports[t], heartbeat_for(sig), life_send);
            peer_run(&peer, 0.01); /* the window fills */
            double killed = 0;
            for (unsigned i = 0;; i++) {
                weft_op_t op = WEFT_OP_INIT;
                weft_status_t st = weft_msg_recv(peer.ep, in, MAX, 1, WEFT_TAG_FULL, &op);
                if (i == 20) {
                    peer_signal(&peer, sig);
                    killed = test_now();
                }
                if (!st)
                    st = peer_wait(&peer, &op, killed > 0 ? limit_for(sig) : 10);
                if (st) {
                    CHECK_EQ(st, WEFT_ERR_PEER);
                    break;
                }
                CHECK_EQ(op.len, sizes[s]);
                CHECK(i < 100000000);
            }
            CHECK(killed > 0 && test_now() - killed < limit_for(sig) + 1);
            check_lost(&peer);
            peer_end(&peer);
        }
    }
}

TEST(receives_from_a_peer_killed_while_it_sends_end)
{
    lost_sender(SIGKILL);
}
TEST(receives_from_a_peer_stopped_while_it_sends_end)
{
    lost_sender(SIGSTOP);
}

TEST(a_peer_that_was_stopped_and_goes_on_within_the_bound_is_not_lost)
{
    set_up();
    for (unsigned t = 0; t < 2; t++) {
        peer_t peer;
        weft_op_t send = WEFT_OP_INIT;
        peer_start(&peer, transports[t], 2 * WEFT_SECOND, life_receive);
        peer_signal(&peer, SIGSTOP);
        CHECK_OK(weft_msg_send(peer.ep, buf, 1 << 20, 1, &send));
        peer_run(&peer, 1.0);
        CHECK(!weft_op_done(&send));
        peer_signal(&peer, SIGCONT);
        CHECK_OK(peer_wait(&peer, &send, 2));
        peer_end(&peer);
    }
}

TEST(a_runtime_that_was_not_driven_does_not_blame_its_peers)
{
    set_up();
    for (unsigned t = 0; t < 2; t++) {
        peer_t peer;
        weft_op_t send = WEFT_OP_INIT;
        peer_start(&peer, transports[t], 5 * WEFT_SECOND, life_receive);
        /* our own bound is the peer's too, so stay silent for less than it but more than several ticks */
        usleep(3 * 1000 * 1000);
        CHECK_OK(weft_msg_send(peer.ep, buf, 1 << 20, 1, &send));
        CHECK_OK(peer_wait(&peer, &send, 2));
        peer_end(&peer);
    }
}
