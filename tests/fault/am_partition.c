/* The network between two hosts is cut silently while active messages' payloads are being pulled: two network namespaces
 * with a veth pair between them, and the link taken down. Both sides' operations end within the heartbeat bound, with their
 * result or WEFT_ERR_PEER; what was whole is whole; and when the link is back a new connection carries all of it. Needs root
 * and ip(8). */
#define TEST_SECONDS 120
#include <sys/mman.h>
#include <sys/prctl.h>

#include "lib/netns.h"
#include "test.h"
#include "weft/weft.h"

enum { BIG = 64 << 20, N = 4, ID = 1 };
#define BOUND_NS (800 * WEFT_MILLISECOND)
/* One bound on a machine that runs us; a starved process may take itself for the silent one twice (conn/beat.c), and needs time
 * besides. */
#define BOUND_S (0.8 * 2.6 + 2)

/* What the two processes tell the test, in shared memory: host 0 receives, host 1 sends, once before the cut and once after. */
typedef struct board {
    volatile unsigned pulling, ended[2], ok[2], other[2], wrong;
    volatile bool cut, mended, finished[2];
    volatile double cut_at, ended_at[2];
} board_t;
static board_t *board;

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 13 + (i >> 13));
}

/* Every 61st byte of it. */
static bool whole(const uint8_t *at)
{
    for (size_t i = 0; i < BIG; i += 61) {
        if (at[i] != pattern(i))
            return false;
    }
    return true;
}

static void tell(int side, const weft_op_t *op)
{
    board->ok[side] += op->status == WEFT_OK;
    board->other[side] += op->status != WEFT_OK && op->status != WEFT_ERR_PEER;
    board->ended_at[side] = test_now();
    board->ended[side]++;
}

static void pulled(weft_op_t *op, void *user)
{
    (void)user;
    if (!op->status) {
        board->wrong += op->len != BIG || !whole(op->buf);
        weft_mem_free(NULL, op->buf, op->len);
    }
    tell(0, op);
    free(op);
}

static void on_message(weft_am_t *am, void *user)
{
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    weft_op_t *op = calloc(1, sizeof *op);
    (void)user;
    op->fn = pulled;
    CHECK_OK(weft_am_pull_with(am, &o, op));
    board->pulling++;
}

static weft_runtime_t *open_on(int host)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    netns_enter(host);
    o.transports = "tcp"; /* memory is shared across network namespaces */
    o.heartbeat_ns = BOUND_NS;
    o.connect_timeout_ns = 5 * WEFT_SECOND;
    weft_log_set_level(WEFT_LOG_ERROR);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static void receiver(void)
{
    weft_runtime_t *rt = open_on(0);
    weft_listener_t *l;
    weft_op_t accepts[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    CHECK_OK(weft_listen(rt, "tcp://10.99.0.1:4712", NULL, &l));
    CHECK_OK(weft_am_handle(rt, ID, on_message, NULL, NULL));
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_listener_accept(l, &accepts[i]));
    while (!board->finished[1] || board->ended[0] < board->pulling)
        weft_runtime_progress(rt);
    CHECK_OK(weft_runtime_close(rt));
    board->finished[0] = true;
    exit(0);
}

static void send_all(weft_runtime_t *rt, const uint8_t *bytes)
{
    weft_op_t connect = WEFT_OP_INIT, ops[N];
    weft_ep_t *ep;
    memset(ops, 0, sizeof ops);
    CHECK_OK(weft_ep_open(rt, "tcp://10.99.0.1:4712", NULL, &connect, &ep));
    CHECK_OK(weft_op_wait(&connect, 10 * WEFT_SECOND));
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_am_send(ep, ID, "header", 6, bytes, BIG, &ops[i]));
    for (int i = 0; i < N; i++) {
        (void)!weft_op_wait(&ops[i], 30 * WEFT_SECOND);
        CHECK(weft_op_done(&ops[i]));
        tell(1, &ops[i]);
    }
    weft_op_t close_op = WEFT_OP_INIT;
    CHECK_OK(weft_ep_close(ep, &close_op));
    (void)!weft_op_wait(&close_op, 10 * WEFT_SECOND);
    CHECK(weft_op_done(&close_op));
}

static void sender(void)
{
    weft_runtime_t *rt = open_on(1);
    uint8_t *bytes = malloc(BIG);
    CHECK(bytes);
    for (size_t i = 0; i < BIG; i++)
        bytes[i] = pattern(i);
    usleep(300000); /* until it listens */
    send_all(rt, bytes);
    while (!board->mended)
        weft_runtime_progress(rt);
    send_all(rt, bytes);
    CHECK_OK(weft_runtime_close(rt));
    free(bytes);
    board->finished[1] = true;
    exit(0);
}

TEST(a_partition_in_the_middle_of_a_pull_ends_it_on_both_sides)
{
    const char *why_not = netns_make();
    pid_t pids[2];
    if (why_not)
        SKIP("%s", why_not);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pids[i] = fork();
        if (pids[i] == 0) {
            if (i == 0)
                receiver();
            else
                sender();
        }
    }
    TEST_UNTIL(board->pulling > 0, 20);
    netns_link(false);
    board->cut_at = test_now();
    TEST_UNTIL(board->ended[1] == N && board->ended[0] == board->pulling, 20);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(board->other[i], 0);
        printf("# host %d: %u of %u came through, the rest ended %.0f ms after the cut\n", i, board->ok[i], board->ended[i],
               (board->ended_at[i] - board->cut_at) * 1e3);
        if (board->ended_at[i] - board->cut_at > BOUND_S)
            FAIL("host %d took %.2f s", i, board->ended_at[i] - board->cut_at);
    }
    CHECK(board->ok[0] >= board->ok[1]); /* what the sender believes taken was taken */
    CHECK_EQ(board->wrong, 0);
    netns_link(true);
    unsigned before = board->ok[0];
    board->mended = true;
    for (int i = 1; i >= 0; i--) {
        int status = -1;
        double end = test_now() + 60;
        while (waitpid(pids[i], &status, WNOHANG) == 0 && test_now() < end)
            usleep(5000);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK_EQ(board->ok[0] - before, N);
    CHECK_EQ(board->wrong, 0);
}
