/* A process that runs is not lost, whatever its program does: it sleeps, computes, copies, blocks in a callback, uses only
 * mapped memory, in every progress mode. One whose program asked for it is lost when it falls silent.
 *
 * ctest: tls-long long timeout=180 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "lib/peer.h"
#include "ports.h"
#include "test.h"

#define BOUND WEFT_SECOND
enum { SILENT_MS = 3000, TAG_BACK = 7 };

static const char *const transports[] = {"shm", "tcp"};
#define EACH_TRANSPORT(t) for (int t = 0; t < 2; t++)

/* --- what the peer does instead of driving -------------------------------------------------------------------------------- */

static void sleeps(void)
{
    usleep(SILENT_MS * 1000);
}

static void computes(void)
{
    volatile double x = 1;
    for (double end = test_now() + SILENT_MS / 1e3; test_now() < end;)
        for (int i = 0; i < 1000; i++)
            x = x * 1.0000001 + 1e-9;
}

static void sends_back(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_op_t op = WEFT_OP_INIT;
    if (weft_msg_send(ep, "back", 4, TAG_BACK, &op) || weft_op_wait(&op, 10 * WEFT_SECOND))
        _exit(1);
    peer_live(rt);
}

static void life_sleeps(weft_runtime_t *rt, weft_ep_t *ep)
{
    sleeps();
    sends_back(rt, ep);
}

static void life_computes(weft_runtime_t *rt, weft_ep_t *ep)
{
    computes();
    sends_back(rt, ep);
}

/* Waits on operations that are complete already: nothing is driven by that. */
static void life_waits_for_what_is_done(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_op_t op = WEFT_OP_INIT;
    for (double end = test_now() + SILENT_MS / 1e3; test_now() < end;)
        if (weft_op_wait(&op, WEFT_SECOND))
            _exit(1);
    sends_back(rt, ep);
}

static void on_timer(weft_op_t *op, void *user)
{
    (void)op, (void)user;
    computes();
}

static void life_blocks_in_a_callback(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_op_t op = {.fn = on_timer};
    if (weft_timer_start(rt, 1, &op) || weft_op_wait(&op, 10 * WEFT_SECOND))
        _exit(1);
    sends_back(rt, ep);
}

static void silent(const char *transport, peer_life_t life)
{
    peer_t p;
    weft_op_t recv = WEFT_OP_INIT;
    char buf[8];
    peer_start(&p, transport, BOUND, life);
    CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, TAG_BACK, WEFT_TAG_FULL, &recv));
    CHECK_OK(peer_wait(&p, &recv, 60));
    CHECK_EQ(recv.len, 4);
    CHECK_EQ(weft_ep_get_state(p.ep), WEFT_EP_UP);
    peer_end(&p);
}

TEST(a_peer_that_sleeps_is_kept)
{
    EACH_TRANSPORT(t)
    silent(transports[t], life_sleeps);
}

TEST(a_peer_that_computes_is_kept)
{
    EACH_TRANSPORT(t)
    silent(transports[t], life_computes);
}

TEST(a_peer_that_waits_for_what_is_complete_is_kept)
{
    EACH_TRANSPORT(t)
    silent(transports[t], life_waits_for_what_is_done);
}

TEST(a_peer_that_blocks_in_a_callback_is_kept)
{
    EACH_TRANSPORT(t)
    silent(transports[t], life_blocks_in_a_callback);
}

/* --- modes ---------------------------------------------------------------------------------------------------------------- */

static weft_runtime_t *open_bound(weft_progress_mode_t mode, const char *transport, bool by_program, uint64_t bound)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = mode;
    o.transports = transport;
    o.heartbeat_ns = bound;
    o.heartbeat_by_program = by_program;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static weft_runtime_t *open_mode(weft_progress_mode_t mode, const char *transport, bool by_program)
{
    return open_bound(mode, transport, by_program, BOUND);
}

static void fall_silent(weft_op_t *op, void *user)
{
    (void)op, (void)user;
    sleeps();
}

/* A server that runs on a thread of its own, and a client in `mode` that says nothing for five bounds. The client's endpoint
 * after that. */
static weft_ep_state_t state_after_silence(weft_progress_mode_t mode, const char *transport, bool by_program)
{
    weft_runtime_t *server = open_mode(WEFT_PROGRESS_THREAD, transport, false), *client = open_mode(mode, transport, by_program);
    weft_listener_t *l;
    weft_op_t accepted = WEFT_OP_INIT, connected = WEFT_OP_INIT, block = {.fn = fall_silent};
    weft_ep_t *ep;
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &l));
    CHECK_OK(weft_listener_accept(l, &accepted));
    CHECK_OK(weft_ep_open(client, weft_listener_uri(l), NULL, &connected, &ep));
    CHECK_OK(weft_op_wait(&connected, 10 * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&accepted, 10 * WEFT_SECOND));
    if (mode == WEFT_PROGRESS_THREAD) { /* its thread is what has to fall silent */
        CHECK_OK(weft_timer_start(client, 1, &block));
        sleeps(); /* block is complete before its callback runs */
    } else {
        sleeps();
    }
    weft_ep_state_t state = weft_ep_get_state(accepted.buf);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
    return state;
}

TEST(a_silent_program_is_kept_in_every_progress_mode)
{
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_LOOP; mode++)
        CHECK_EQ(state_after_silence((weft_progress_mode_t)mode, transports[mode % 2], false), WEFT_EP_UP);
}

TEST(a_program_whose_silence_counts_is_lost_in_every_progress_mode)
{
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_LOOP; mode++)
        CHECK_EQ(state_after_silence((weft_progress_mode_t)mode, transports[mode % 2], true), WEFT_EP_FAILED);
}

TEST(a_program_whose_silence_counts_is_kept_while_it_drives)
{
    weft_runtime_t *server = open_mode(WEFT_PROGRESS_THREAD, "tcp", false),
                   *client = open_mode(WEFT_PROGRESS_CALLER, "tcp", true);
    weft_listener_t *l;
    weft_op_t accepted = WEFT_OP_INIT, connected = WEFT_OP_INIT, timer = WEFT_OP_INIT;
    weft_ep_t *ep;
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &l));
    CHECK_OK(weft_listener_accept(l, &accepted));
    CHECK_OK(weft_ep_open(client, weft_listener_uri(l), NULL, &connected, &ep));
    CHECK_OK(weft_op_wait(&connected, 10 * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&accepted, 10 * WEFT_SECOND));
    CHECK_OK(weft_timer_start(client, SILENT_MS * WEFT_MILLISECOND, &timer));
    CHECK_OK(weft_op_wait(&timer, 60 * WEFT_SECOND));
    CHECK_EQ(weft_ep_get_state(accepted.buf), WEFT_EP_UP);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

/* Heartbeats sent by hand, on the first wire that had one and on the other. */
static wefti_wire_t *first_wire;
static unsigned sent[2];
static wefti_fabric_ops_t counting;
static void (*beat_once)(wefti_wire_t *wire);

static void count_beat(wefti_wire_t *wire)
{
    first_wire = first_wire ? first_wire : wire;
    sent[wire != first_wire]++;
    beat_once(wire);
}

TEST(a_peer_with_a_long_bound_does_not_get_the_heartbeats_of_one_with_a_short_bound)
{
    static const uint64_t bounds[] = {1600 * WEFT_MILLISECOND, 60 * WEFT_SECOND};
    weft_runtime_t *client = open_bound(WEFT_PROGRESS_CALLER, "tcp", true, 60 * WEFT_SECOND), *server[2];
    weft_listener_t *l;
    weft_ep_t *ep;
    counting = *client->fabric->ops;
    beat_once = counting.wire_beat_once;
    counting.wire_beat_once = count_beat;
    client->fabric->ops = &counting;
    for (int i = 0; i < 2; i++) {
        weft_op_t connected = WEFT_OP_INIT;
        server[i] = open_bound(WEFT_PROGRESS_THREAD, "tcp", false, bounds[i]);
        CHECK_OK(weft_listen(server[i], ports_tcp(), NULL, &l));
        CHECK_OK(weft_ep_open(client, weft_listener_uri(l), NULL, &connected, &ep));
        CHECK_OK(weft_op_wait(&connected, 10 * WEFT_SECOND));
    }
    while (sent[0] < 15) { /* three seconds, if there is time for each of them */
        weft_op_t timer = WEFT_OP_INIT;
        CHECK_OK(weft_timer_start(client, 10 * WEFT_MILLISECOND, &timer));
        CHECK_OK(weft_op_wait(&timer, 60 * WEFT_SECOND));
    }
    CHECK(sent[1] <= 5); /* one in 7.5 seconds */
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server[0]));
    CHECK_OK(weft_runtime_close(server[1]));
}

/* --- our own silence ------------------------------------------------------------------------------------------------------ */

static void life_idle(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    peer_live(rt);
}

TEST(a_program_that_slept_finds_its_peer_as_it_was)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        peer_start(&p, transports[t], BOUND, life_idle);
        sleeps();
        peer_run(&p, 1);
        CHECK_EQ(weft_ep_get_state(p.ep), WEFT_EP_UP);
        peer_end(&p);
    }
}

TEST(a_peer_that_stopped_while_the_program_slept_is_lost_as_soon_as_it_wakes)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        weft_op_t recv = WEFT_OP_INIT;
        char buf[8];
        peer_start(&p, transports[t], 4 * WEFT_SECOND, life_idle);
        CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
        peer_signal(&p, SIGSTOP);
        usleep(6000000);
        double start = test_now();
        CHECK_EQ(peer_wait(&p, &recv, 10), WEFT_ERR_PEER);
        CHECK(test_now() - start < 2.5); /* not after another bound */
        peer_end(&p);
    }
}

/* Its child has its sockets, so that their end does not tell of its death. */
static void life_forks(weft_runtime_t *rt, weft_ep_t *ep)
{
    int ready[2];
    char c;
    if (pipe(ready))
        _exit(1);
    if (!fork()) {
        close(ready[0]);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        sleep(20);
        _exit(0);
    }
    if (read(ready[0], &c, 1) != 1)
        _exit(1);
    sends_back(rt, ep);
}

TEST(a_forked_child_does_not_keep_its_parent_alive)
{
    EACH_TRANSPORT(t)
    {
        peer_t p;
        weft_op_t back = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        char buf[8];
        peer_start(&p, transports[t], BOUND, life_forks);
        CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, TAG_BACK, WEFT_TAG_FULL, &back));
        CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(peer_wait(&p, &back, 20));
        peer_signal(&p, SIGKILL);
        CHECK_EQ(peer_wait(&p, &recv, 10), WEFT_ERR_PEER);
        peer_end(&p);
    }
}
