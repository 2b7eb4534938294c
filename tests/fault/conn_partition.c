/* The network between two hosts is cut silently: two network namespaces with a veth pair between them, and the link taken
 * down. Both sides lose the other within the bound; with hooks that say so they are together again once the link is back. Needs
 * root and ip(8). */
#define TEST_SECONDS 120
#include <sys/mman.h>
#include <sys/prctl.h>

#include "lib/netns.h"
#include "lib/raw.h"
#include "test.h"

#define BOUND (800 * WEFT_MILLISECOND)

/* What the two processes tell the test, in shared memory. */
typedef struct board {
    volatile int up[2], failed[2], recv_done[2], reconnected[2], recv_status[2], accepted;
    volatile double failed_at[2];
} board_t;
static board_t *board;
static int side;
static weft_ep_t *mine;

static weft_on_failure_t failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep, (void)why, (void)user;
    board->failed_at[side] = test_now();
    board->failed[side]++;
    return WEFT_RECONNECT;
}

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    mine = ep;
    board->accepted++;
}

static void process(int which)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_ep_hooks_t hooks = {failed, NULL, NULL};
    weft_runtime_t *rt;
    weft_listener_t *l;
    weft_op_t recv = WEFT_OP_INIT;
    char got[8];
    bool posted = false;
    side = which;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    netns_enter(which);
    o.transports = "tcp"; /* memory is shared across network namespaces */
    o.heartbeat_ns = BOUND;
    o.connect_timeout_ns = WEFT_SECOND;
    weft_log_set_level(WEFT_LOG_ERROR);
    CHECK_OK(weft_runtime_open(&o, &rt));
    if (which == 0) {
        lo.accept = accepted;
        lo.hooks = &hooks;
        CHECK_OK(weft_listen(rt, "tcp://10.99.0.1:4711", &lo, &l));
    } else {
        eo.hooks = hooks;
        eo.reconnect_first_ns = 100 * WEFT_MILLISECOND;
        raw_run(rt, 0.3);
        CHECK_OK(weft_ep_open(rt, "tcp://10.99.0.1:4711", &eo, NULL, &mine));
    }
    for (;;) {
        weft_runtime_progress(rt);
        if (!mine)
            continue;
        bool up = weft_ep_get_state(mine) == WEFT_EP_UP;
        board->up[which] = up;
        if (up && !posted && !board->failed[which]) {
            CHECK_OK(weft_msg_recv(mine, got, sizeof got, 1, WEFT_TAG_FULL, &recv));
            posted = true;
        }
        if (posted && weft_op_done(&recv) && !board->recv_done[which]) {
            board->recv_status[which] = recv.status;
            board->recv_done[which] = 1;
        }
        if (up && board->failed[which])
            board->reconnected[which] = 1;
    }
}

TEST(both_sides_of_a_partition_lose_each_other_in_time_and_return_when_it_heals)
{
    pid_t pids[2];
    const char *why_not = netns_make();
    if (why_not)
        SKIP("%s", why_not);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pids[i] = fork();
        if (pids[i] == 0) {
            process(i);
            _exit(1);
        }
    }
    TEST_UNTIL(board->up[0] && board->up[1], 10);
    sleep(1);
    CHECK_EQ(board->failed[0] + board->failed[1], 0);
    double cut = test_now();
    netns_link(false);
    for (double end = test_now() + 5; !(board->failed[0] && board->failed[1]) && test_now() < end;)
        usleep(5000);
    if (!board->failed[0] || !board->failed[1])
        FAIL("%s did not notice", board->failed[0] ? "the dialler" : board->failed[1] ? "the listener" : "either side");
    for (int i = 0; i < 2; i++) {
        TEST_UNTIL(board->recv_done[i], 1);
        CHECK_EQ(board->recv_status[i], WEFT_ERR_PEER);
        if (board->failed_at[i] - cut > 0.8 + 0.4)
            FAIL("side %d took %.2f s", i, board->failed_at[i] - cut);
    }
    sleep(1);
    netns_link(true);
    TEST_UNTIL(board->reconnected[0] && board->reconnected[1], 30);
    CHECK_EQ(board->accepted, 1);
    for (int i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
}
