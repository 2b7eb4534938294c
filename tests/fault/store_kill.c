/* A memory server's client is killed: what was its own goes after its lease, what it shared stays. A server is killed or
 * stopped: every operation of its client ends with WEFT_ERR_PEER, within the heartbeat bound.
 *
 * ctest: timeout=300 */
#define TEST_SECONDS 120
#include <signal.h>
#include <weft/elements.h>

#include "lib/peer.h"
#include "test.h"

#define HEARTBEAT (700 * WEFT_MILLISECOND)
#define BOUND_S (0.7 * 2.6 + 2.5) /* tests/fault/am_kill.c says why */
#define LEASE (2 * WEFT_SECOND)
#define PAGE 4096u

static const char *const transports[] = {"shm", "tcp"};
static peer_t peer;

static void must_wait(weft_op_t *op)
{
    if (weft_op_wait(op, 20 * WEFT_SECOND))
        _exit(3);
}

/* --- the client dies ------------------------------------------------------------------------------------------------------ */

static void client_life(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_store_opts_t so = WEFT_STORE_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_store_t *store;
    for (int tries = 0; tries < 1000; tries++) { /* until it serves */
        so.lease_ns = LEASE;
        if (weft_store_open(ep, &so, &op) || (weft_op_wait(&op, 20 * WEFT_SECOND) && op.status != WEFT_ERR_UNSUPPORTED))
            _exit(2);
        if (!op.status)
            break;
        usleep(1000);
    }
    store = (weft_store_t *)op.buf;
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"mine", NULL, "ours"};
        weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
        o.len = PAGE;
        o.name = names[i];
        o.shared = i == 2;
        if (weft_block_alloc(store, &o, &op))
            _exit(4);
        must_wait(&op);
        if (weft_rma_write(weft_block_remote((weft_block_t *)op.buf), 0, "value", 6, &op))
            _exit(5);
        must_wait(&op);
    }
    peer_live(rt);
}

static weft_store_stats_t stats_of(weft_store_server_t *server)
{
    weft_store_stats_t s = WEFT_STORE_STATS_INIT;
    CHECK_OK(weft_store_server_get_stats(server, &s));
    return s;
}

TEST(a_killed_client_loses_what_is_its_own_after_its_lease_and_nothing_else)
{
    for (unsigned t = 0; t < 2; t++) {
        weft_store_server_t *server;
        weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
        weft_store_stats_t s;
        peer_start(&peer, transports[t], HEARTBEAT, client_life);
        o.bytes = 1 << 20;
        CHECK_OK(weft_store_serve(peer.rt, &o, &server));
        double end = test_now() + 20;
        while ((s = stats_of(server)).blocks < 3) {
            weft_runtime_progress(peer.rt);
            CHECK(test_now() < end);
        }
        peer_run(&peer, 0.3); /* its last write */
        peer_signal(&peer, SIGKILL);
        double killed = test_now();
        CHECK_EQ(s.used_bytes, 3 * PAGE);
        while ((s = stats_of(server)).blocks > 1) {
            weft_runtime_progress(peer.rt);
            CHECK(test_now() < killed + 2.5 * LEASE / WEFT_SECOND + BOUND_S);
        }
        /* not before: its last renewal was at most a third of a lease before it died */
        CHECK(test_now() - killed > 0.5 * LEASE / WEFT_SECOND);
        peer_run(&peer, 0.1);
        s = stats_of(server);
        CHECK_EQ(s.used_bytes, PAGE);
        CHECK_EQ(s.shared_blocks, 1);
        CHECK_EQ(s.clients, 0);
        CHECK_EQ(s.expired_clients, 1);
        CHECK_EQ(s.expired_blocks, 2);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_store_server_close(server, &op));
        CHECK_OK(peer_wait(&peer, &op, 10));
        peer_end(&peer);
    }
}

/* --- the server dies ------------------------------------------------------------------------------------------------------ */

static void server_life(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_store_server_t *server;
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    (void)ep;
    o.bytes = 1 << 20;
    if (weft_store_serve(rt, &o, &server))
        _exit(2);
    peer_live(rt);
}

static void on_block(const weft_block_info_t *info, void *user)
{
    (void)info, (void)user;
}

static void lose_the_server(const char *transport, int sig)
{
    enum { OPS = 100 };
    static weft_op_t ops[OPS];
    weft_op_t op = WEFT_OP_INIT;
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    weft_store_t *store;
    peer_start(&peer, transport, HEARTBEAT, server_life);
    double end = test_now() + 20;
    do { /* until it serves */
        CHECK_OK(weft_store_open(peer.ep, NULL, &op));
        CHECK(test_now() < end);
    } while (peer_wait(&peer, &op, 20) == WEFT_ERR_UNSUPPORTED);
    CHECK_OK(op.status);
    store = (weft_store_t *)op.buf;
    o.len = PAGE;
    CHECK_OK(weft_block_alloc(store, &o, &op));
    CHECK_OK(peer_wait(&peer, &op, 20));
    weft_block_t *block = (weft_block_t *)op.buf;
    peer_signal(&peer, sig);
    double lost = test_now();
    memset(ops, 0, sizeof ops);
    unsigned n = 0;
    for (; n < OPS; n++) {
        weft_status_t st = n % 5 == 0   ? weft_block_alloc(store, &o, &ops[n])
                           : n % 5 == 1 ? weft_store_list(store, NULL, on_block, NULL, &ops[n])
                           : n % 5 == 2 ? weft_store_query(store, &stats, &ops[n])
                           : n % 5 == 3 ? weft_block_extend(block, 2 * PAGE, &ops[n])
                                        : weft_store_renew(store, &ops[n]);
        CHECK_OK(st);
    }
    for (unsigned i = 0; i < n; i++)
        CHECK_EQ(peer_wait(&peer, &ops[i], BOUND_S), WEFT_ERR_PEER);
    CHECK(test_now() - lost < BOUND_S);
    CHECK_OK(weft_store_get_info(store, &info));
    CHECK_EQ(info.state, WEFT_ERR_PEER);
    CHECK_OK(weft_store_renew(store, &op));
    CHECK_EQ(peer_wait(&peer, &op, 5), WEFT_ERR_PEER);
    CHECK_OK(weft_block_free(block, &op)); /* here it is gone, whatever becomes of it there */
    CHECK_EQ(peer_wait(&peer, &op, 5), WEFT_ERR_PEER);
    CHECK_OK(weft_store_close(store, &op));
    CHECK_EQ(peer_wait(&peer, &op, 5), WEFT_ERR_PEER);
    peer_end(&peer);
}

TEST(operations_on_a_killed_server_end_with_peer)
{
    for (unsigned t = 0; t < 2; t++)
        lose_the_server(transports[t], SIGKILL);
}

TEST(operations_on_a_stopped_server_end_with_peer_within_the_bound)
{
    for (unsigned t = 0; t < 2; t++)
        lose_the_server(transports[t], SIGSTOP);
}

/* A server that is stopped for longer than leases are does not take its clients for dead: it was away itself. */
static void stopped_life(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_store_server_t *server;
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    (void)ep;
    o.bytes = 1 << 20;
    o.lease_ns = 900 * WEFT_MILLISECOND;
    if (weft_store_serve(rt, &o, &server))
        _exit(2);
    peer_live(rt);
}

TEST(a_server_that_was_stopped_keeps_the_blocks_of_its_clients)
{
    for (unsigned t = 0; t < 2; t++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
        peer_start(&peer, transports[t], 30 * WEFT_SECOND, stopped_life); /* a bound in which nobody is lost */
        double end = test_now() + 20;
        do {
            CHECK_OK(weft_store_open(peer.ep, NULL, &op));
            CHECK(test_now() < end);
        } while (peer_wait(&peer, &op, 20) == WEFT_ERR_UNSUPPORTED);
        CHECK_OK(op.status);
        weft_store_t *store = (weft_store_t *)op.buf;
        o.len = PAGE;
        CHECK_OK(weft_block_alloc(store, &o, &op));
        CHECK_OK(peer_wait(&peer, &op, 20));
        weft_block_t *block = (weft_block_t *)op.buf;
        peer_signal(&peer, SIGSTOP);
        peer_run(&peer, 3);
        peer_signal(&peer, SIGCONT);
        CHECK_OK(weft_store_renew(store, &op));
        CHECK_OK(peer_wait(&peer, &op, 20));
        CHECK_OK(weft_rma_write(weft_block_remote(block), 0, "x", 1, &op));
        CHECK_OK(peer_wait(&peer, &op, 20));
        CHECK_OK(weft_block_free(block, &op));
        CHECK_OK(peer_wait(&peer, &op, 20));
        CHECK_OK(weft_store_close(store, &op));
        CHECK_OK(peer_wait(&peer, &op, 20));
        peer_end(&peer);
    }
}
