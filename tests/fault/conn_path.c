/* The path of a lane over TCP is dead while that of its wire, which carries the heartbeats, goes on: two network namespaces
 * with two links between them, the lane over the one that is taken down. Operations end within the bound. A peer that lives and
 * reads nothing is not lost, however much waits for it. The first needs root and ip(8). ctest: tls-long long */
#define TEST_SECONDS 120
#include <sys/mman.h>
#include <sys/prctl.h>

#include "lib/netns.h"
#include "lib/peer.h"
#include "test.h"

#define BOUND_NS (1600 * WEFT_MILLISECOND)
/* The bound, and what a machine that starves us takes: a process that was starved gives its peer the bound again, twice. */
#define BOUND_S (1.6 * 2.6 + 2)
enum { BIG = 16 << 20, TAG = 1, TAG_NEVER = 2, TAG_READY = 3, TAG_BACK = 7 };

/* What the two processes tell the test, in shared memory: host 0 listens, host 1 dials and sends. */
typedef struct board {
    volatile bool ready[2], cut, ended[2];
    volatile int status[2], sent; /* sent: of the sender's last send */
    volatile double ended_at[2];
} board_t;
static board_t *board;

static weft_runtime_t *open_on(int host)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    netns_enter(host);
    o.transports = "tcp";
    o.interfaces = "eth1"; /* where lanes go; the wire goes where its address says */
    o.heartbeat_ns = BOUND_NS;
    weft_log_set_level(WEFT_LOG_ERROR);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

/* A receive that nobody sends for: it ends with the connection. */
static void wait_for_the_end(int side, weft_op_t *never)
{
    (void)!weft_op_wait(never, 60 * WEFT_SECOND);
    board->status[side] = never->status;
    board->ended_at[side] = test_now();
    board->ended[side] = true;
    for (;;)
        pause();
}

static void listener(bool busy)
{
    weft_runtime_t *rt = open_on(0);
    weft_listener_t *l;
    weft_op_t accepted = WEFT_OP_INIT, never = WEFT_OP_INIT;
    char c, *buf = malloc(BIG);
    CHECK_OK(weft_listen(rt, "tcp://10.99.0.1:4713", NULL, &l));
    CHECK_OK(weft_listener_accept(l, &accepted));
    board->ready[0] = true;
    CHECK_OK(weft_op_wait(&accepted, 20 * WEFT_SECOND));
    CHECK_OK(weft_msg_recv(accepted.buf, &c, 1, TAG_NEVER, WEFT_TAG_FULL, &never));
    while (busy && !weft_op_done(&never)) {
        weft_op_t recv = WEFT_OP_INIT;
        CHECK_OK(weft_msg_recv(accepted.buf, buf, BIG, TAG, WEFT_TAG_FULL, &recv));
        (void)!weft_op_wait(&recv, 60 * WEFT_SECOND);
    }
    wait_for_the_end(0, &never);
}

static void sender(bool busy)
{
    weft_runtime_t *rt = open_on(1);
    weft_op_t connected = WEFT_OP_INIT, never = WEFT_OP_INIT, sent = WEFT_OP_INIT;
    weft_ep_t *ep;
    char c, *buf = calloc(1, BIG);
    CHECK_OK(weft_ep_open(rt, "tcp://10.99.0.1:4713", NULL, &connected, &ep));
    CHECK_OK(weft_op_wait(&connected, 20 * WEFT_SECOND));
    CHECK_OK(weft_msg_recv(ep, &c, 1, TAG_NEVER, WEFT_TAG_FULL, &never));
    board->ready[1] = true;
    while (!busy && !board->cut) /* an idle lane lives */
        weft_runtime_progress(rt);
    do { /* one after the cut, or many of which it is in the middle */
        sent = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_msg_send(ep, buf, BIG, TAG, &sent));
        (void)!weft_op_wait(&sent, 60 * WEFT_SECOND);
    } while (!sent.status);
    board->sent = sent.status;
    wait_for_the_end(1, &never);
}

static void cut(bool busy)
{
    pid_t pids[2];
    const char *why_not = netns_make();
    why_not = why_not ? why_not : netns_second();
    if (why_not)
        SKIP("%s", why_not);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pids[i] = fork();
        if (pids[i] == 0) {
            i ? sender(busy) : listener(busy);
            _exit(1);
        }
        TEST_UNTIL(board->ready[i], 20);
    }
    usleep(3000000);
    CHECK(!board->ended[0] && !board->ended[1]);
    netns_second_link(false);
    double cut_at = test_now();
    board->cut = true;
    for (int i = 0; i < 2; i++) {
        TEST_UNTIL(board->ended[i], 60);
        CHECK_EQ(board->status[i], WEFT_ERR_PEER);
        if (board->ended_at[i] - cut_at > BOUND_S)
            FAIL("side %d took %.2f s", i, board->ended_at[i] - cut_at);
    }
    CHECK_EQ(board->sent, WEFT_ERR_PEER);
    for (int i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
}

TEST(what_is_sent_on_a_lane_whose_path_is_dead_ends_within_the_bound)
{
    cut(false);
}

TEST(a_payload_in_whose_middle_the_path_dies_ends_within_the_bound)
{
    cut(true);
}

/* --- a peer that lives ---------------------------------------------------------------------------------------------------- */

enum { FLOOD = 20000, SILENT_S = 12 };

static void life_reads_nothing(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_op_t op = WEFT_OP_INIT;
    usleep(SILENT_S * 1000000);
    if (weft_msg_send(ep, "back", 4, TAG_BACK, &op) || weft_op_wait(&op, 60 * WEFT_SECOND))
        _exit(1);
    peer_live(rt);
}

static void flood(size_t len)
{
    static char bytes[4096];
    peer_t p;
    weft_op_t recv = WEFT_OP_INIT, *sends = calloc(FLOOD, sizeof *sends);
    char buf[8];
    setenv("WEFT_RECV_WINDOW", "256m", 1); /* not the window of messages is to be full, but the socket */
    peer_start(&p, "tcp", WEFT_SECOND, life_reads_nothing);
    CHECK_OK(weft_msg_recv(p.ep, buf, sizeof buf, TAG_BACK, WEFT_TAG_FULL, &recv));
    for (int i = 0; i < FLOOD; i++) {
        CHECK_OK(weft_msg_send(p.ep, bytes, len, TAG, &sends[i]));
        weft_runtime_progress(p.rt); /* each leaves by itself */
    }
    CHECK_OK(peer_wait(&p, &recv, 90));
    for (int i = 0; i < FLOOD; i++)
        CHECK_OK(peer_wait(&p, &sends[i], 30));
    CHECK_EQ(weft_ep_get_state(p.ep), WEFT_EP_UP);
    peer_end(&p);
    free(sends);
}

TEST(a_peer_that_reads_nothing_is_kept_however_much_waits_for_it)
{
    flood(4096);
}

TEST(a_peer_that_reads_nothing_is_kept_however_many_small_messages_wait_for_it)
{
    flood(600);
}
