/* fault/rma_partition.c - the network between two hosts is cut silently while remote memory is read and written: two
 * network namespaces with a veth pair between them, and the link taken down. Every access ends within the heartbeat bound, with
 * its result or WEFT_ERR_PEER; the owner's revoke completes within it, and what the other side still has to send does not come
 * through when the link is back; then a new connection reads and writes all of it. Needs root and ip(8). */
#define TEST_SECONDS 120
#include <sys/mman.h>
#include <sys/prctl.h>

#include "lib/netns.h"
#include "test.h"
#include "weft/weft.h"

enum { MB = 1 << 20, LEN = 64 * MB, N = 24 };
#define BOUND_NS (800 * WEFT_MILLISECOND)
/* One bound on a machine that runs us; a starved process may take itself for the silent one twice (conn/beat.c), and needs time
 * besides. */
#define BOUND_S (0.8 * 2.6 + 2)

typedef struct board {
    volatile bool listens, under_way, cut, mended, revoked, finished[2];
    volatile unsigned ok, lost, other, wrong;
    volatile double cut_at, ended_at, revoked_at;
} board_t;
static board_t *board;

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 13 + (i >> 13));
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

static void owner(void)
{
    weft_runtime_t *rt = open_on(0);
    weft_listener_t *l;
    weft_region_t *region;
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_op_t accepts[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, revoke = WEFT_OP_INIT;
    o.len = LEN;
    o.name = "mem";
    CHECK_OK(weft_region_new(rt, &o, &region));
    uint8_t *base = weft_region_base(region);
    for (size_t i = 0; i < LEN / 2; i++)
        base[i] = pattern(i);
    CHECK_OK(weft_listen(rt, "tcp://10.99.0.1:4713", NULL, &l));
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_listener_accept(l, &accepts[i]));
    board->listens = true;
    while (!board->cut)
        (void)!weft_op_wait(&accepts[1], WEFT_MILLISECOND);
    CHECK_OK(weft_region_revoke(region, &revoke));
    CHECK_OK(weft_op_wait(&revoke, 20 * WEFT_SECOND));
    board->revoked_at = test_now();
    memset(base + LEN / 2, 0x19, LEN / 2); /* ours alone */
    board->revoked = true;
    while (!board->mended)
        (void)!weft_op_wait(&accepts[1], WEFT_MILLISECOND);
    for (double end = test_now() + 0.3; test_now() < end;)
        (void)!weft_op_wait(&accepts[1], WEFT_MILLISECOND);
    if (!weft_op_done(&accepts[1])) /* else the new connection writes already */
        for (size_t i = LEN / 2; i < LEN; i++)
            board->wrong += base[i] != 0x19;
    for (size_t i = 0; i < LEN / 2; i++)
        board->wrong += base[i] != pattern(i);
    while (!board->finished[1])
        (void)!weft_op_wait(&accepts[1], WEFT_MILLISECOND), usleep(100), weft_runtime_progress(rt);
    CHECK_OK(weft_runtime_close(rt));
    board->finished[0] = true;
    exit(0);
}

static weft_ep_t *attach(weft_runtime_t *rt, weft_remote_t **remote)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    CHECK_OK(weft_ep_open(rt, "tcp://10.99.0.1:4713", NULL, &op, &ep));
    CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
    CHECK_OK(weft_remote_find(ep, "mem", NULL, &op));
    CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
    *remote = op.buf;
    return ep;
}

static void user(void)
{
    static const size_t sizes[] = {64, 5000, 100000, 8 * MB};
    weft_runtime_t *rt = open_on(1);
    weft_remote_t *r;
    weft_op_t ops[N], op = WEFT_OP_INIT;
    uint8_t *bytes = malloc(8 * MB), *in = malloc(8 * MB);
    CHECK(bytes && in);
    memset(bytes, 0xcd, 8 * MB);
    while (!board->listens)
        usleep(1000);
    weft_ep_t *ep = attach(rt, &r);
    bool ended = false;
    memset(ops, 0, sizeof ops);
    for (unsigned i = 0; !ended; i++) { /* N under way at a time, until one is lost */
        unsigned k = i % N;
        (void)!weft_op_wait(&ops[k], 30 * WEFT_SECOND);
        CHECK(weft_op_done(&ops[k]));
        ended = ops[k].status;
        if (i > 2 * N)
            board->under_way = true;
        if (ended)
            break;
        ops[k] = (weft_op_t)WEFT_OP_INIT;
        size_t n = sizes[i % 4];
        weft_status_t st =
            i % 3 ? weft_rma_write(r, LEN / 2 + i % 7 * 4096, bytes, n, &ops[k]) : weft_rma_read(r, i % 7, in, n, &ops[k]);
        ended = st;
        board->other += st && st != WEFT_ERR_PEER;
    }
    for (unsigned k = 0; k < N; k++) {
        (void)!weft_op_wait(&ops[k], 30 * WEFT_SECOND);
        CHECK(weft_op_done(&ops[k]));
        board->ok += !ops[k].status;
        board->lost += ops[k].status == WEFT_ERR_PEER;
        board->other += ops[k].status && ops[k].status != WEFT_ERR_PEER;
    }
    board->ended_at = test_now();
    weft_remote_drop(r);
    CHECK_OK(weft_ep_abort(ep, NULL));
    while (!board->mended)
        weft_runtime_progress(rt);
    usleep(500000); /* the owner looks first */
    attach(rt, &r);
    CHECK_OK(weft_rma_read(r, 0, in, 8 * MB, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    for (size_t i = 0; i < 8 * MB; i++)
        board->wrong += in[i] != pattern(i);
    CHECK_OK(weft_rma_write(r, LEN / 2, bytes, 8 * MB, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    weft_remote_drop(r);
    CHECK_OK(weft_runtime_close(rt));
    board->finished[1] = true;
    exit(0);
}

TEST(a_partition_in_the_middle_of_accesses_ends_them_and_the_owner_has_its_memory)
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
                owner();
            else
                user();
        }
    }
    TEST_UNTIL(board->under_way, 30);
    netns_link(false);
    board->cut_at = test_now();
    board->cut = true;
    TEST_UNTIL(board->ended_at > 0 && board->revoked, 30);
    printf("# %u came through, %u were lost, the last %.0f ms after the cut; revoked after %.0f ms\n", board->ok, board->lost,
           (board->ended_at - board->cut_at) * 1e3, (board->revoked_at - board->cut_at) * 1e3);
    CHECK_EQ(board->other, 0);
    CHECK(board->lost > 0);
    CHECK(board->ended_at - board->cut_at < BOUND_S);
    CHECK(board->revoked_at - board->cut_at < BOUND_S);
    netns_link(true);
    board->mended = true;
    for (int i = 1; i >= 0; i--) {
        int status = -1;
        double end = test_now() + 60;
        while (waitpid(pids[i], &status, WNOHANG) == 0 && test_now() < end)
            usleep(5000);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK_EQ(board->wrong, 0);
}
