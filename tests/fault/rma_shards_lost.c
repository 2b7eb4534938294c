/* fault/rma_shards_lost.c - users of a region on a runtime with several shards are killed or stopped in the middle of an access,
 * while others go on on all shards: a revoke completes; the region's bytes are intact, and so is all that others were told is
 * written; what a stopped peer writes when it goes on is not seen. Also if a function of the program keeps a shard for long.
 *
 * ctest: tls-long timeout=300 serial */
#define TEST_SECONDS 260
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rma/mapped.h"
#include "ports.h"
#include "test.h"
#include <weft/weft.h>

enum { SHARDS = 4, STUCK_N = 3, USERS = 8, MB = 1 << 20, PIECES = 16, LEN = PIECES * MB, PART = 512, OURS = USERS * PART };

/* What the children and we tell each other. */
typedef struct board {
    char uri[256];
    _Atomic bool ready, go, stop, slow;
    _Atomic unsigned busy, wrote, rounds[USERS], stale[USERS], failed, slow_calls;
} board_t;
static board_t *board;
static pid_t stuck[STUCK_N], users[USERS];
static weft_runtime_t *server;
static weft_region_t *region;

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 11 + (i >> 9));
}

static weft_runtime_t *opens(uint32_t shards, weft_progress_mode_t progress)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    opts.shards = shards;
    opts.progress = progress;
    opts.transports = "shm";
    return weft_runtime_open(&opts, &rt) ? NULL : rt;
}

/* --- the children -------------------------------------------------------------------------------------------------------- */

static weft_ep_t *child_connects(weft_runtime_t **rt_out)
{
    weft_ep_t *ep;
    while (!atomic_load(&board->ready))
        usleep(1000);
    *rt_out = opens(1, WEFT_PROGRESS_CALLER);
    if (!*rt_out || weft_ep_connect(*rt_out, board->uri, NULL, 60 * WEFT_SECOND, &ep))
        _exit(1);
    return ep;
}

static weft_status_t attach(weft_ep_t *ep, weft_rma_path_t path, weft_remote_t **remote_out)
{
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.path = path;
    weft_status_t st = weft_remote_find(ep, "mem", &o, &op);
    st = st ? st : weft_op_wait(&op, 60 * WEFT_SECOND);
    *remote_out = st ? NULL : weft_op_remote(&op);
    return st;
}

/* Takes its slot as one does for an access, and stays in the middle of it until it may go on. */
static void live_stuck(void)
{
    weft_runtime_t *rt;
    weft_remote_t *r;
    weft_ep_t *ep = child_connects(&rt);
    if (attach(ep, WEFT_RMA_MAPPED, &r) || rma_enter(r))
        _exit(1);
    atomic_fetch_add(&board->busy, 1);
    while (!atomic_load(&board->go))
        ;
    memset(r->bytes + OURS, 0xbb, 4096);
    memset(r->bytes + LEN - 2048, 0xbb, 2048);
    rma_leave(r);
    atomic_fetch_add(&board->wrote, 1);
    for (;;)
        pause();
}

/* Writes to each MiB in turn, and reads what it wrote there before, over the checked path or any. When the region was revoked it
 * attaches again: what was written stays. */
static void live_user(unsigned me)
{
    weft_runtime_t *rt;
    weft_remote_t *r = NULL;
    weft_ep_t *ep = child_connects(&rt);
    uint8_t in[PART], out[PART], last[PIECES] = {0}; /* 0: it may have been written, or not */
    for (unsigned i = 0; !atomic_load(&board->stop); i++) {
        unsigned k = i % PIECES;
        uint64_t at = k * (uint64_t)MB + me * PART;
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st = WEFT_OK;
        if (!r) {
            st = attach(ep, me % 2 ? WEFT_RMA_CHECKED : WEFT_RMA_ANY, &r);
            if (st == WEFT_ERR_STALE)
                continue;
        }
        if (!st && last[k]) {
            st = weft_rma_read(r, at, in, PART, &op);
            st = st ? st : weft_op_wait(&op, 60 * WEFT_SECOND);
            memset(out, last[k], PART);
            if (!st && memcmp(in, out, PART) != 0)
                atomic_fetch_add(&board->failed, 1);
        }
        if (!st) {
            uint8_t value = (uint8_t)(1 + i % 255);
            memset(out, value, PART);
            st = me == 1 && i % 64 == 0 ? weft_rma_write_notify(r, at, out, PART, 1, &op) : weft_rma_write(r, at, out, PART, &op);
            st = st ? st : weft_op_wait(&op, 60 * WEFT_SECOND);
            last[k] = st ? 0 : value;
            atomic_fetch_add(&board->rounds[me], 1);
        }
        if (st) {
            if (st != WEFT_ERR_STALE)
                _exit(2);
            atomic_fetch_add(&board->stale[me], 1);
            weft_remote_drop(r);
            r = NULL;
        }
    }
    _exit(weft_runtime_close(rt) ? 3 : 0);
}

/* --- the owner ----------------------------------------------------------------------------------------------------------- */

/* A function of the program that takes its time. */
static void on_notify(weft_region_t *r, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    (void)r, (void)offset, (void)len, (void)value, (void)from, (void)user;
    if (!atomic_load(&board->slow))
        return;
    atomic_fetch_add(&board->slow_calls, 1);
    usleep(150000);
}

static void begin(void)
{
    weft_listener_t *l;
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    weft_log_set_level(WEFT_LOG_NONE);
    for (unsigned i = 0; i < STUCK_N; i++)
        if (!(stuck[i] = fork()))
            live_stuck();
    for (unsigned i = 0; i < USERS; i++)
        if (!(users[i] = fork()))
            live_user(i);
    server = opens(SHARDS, WEFT_PROGRESS_THREAD);
    CHECK(server);
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &l));
    o.len = LEN;
    o.name = "mem";
    o.notify = on_notify;
    CHECK_OK(weft_region_new(server, &o, &region));
    uint8_t *base = weft_region_base(region);
    for (size_t i = 0; i < LEN; i++)
        base[i] = pattern(i);
    CHECK_OK(weft_region_revoke(region, NULL)); /* for the thread sanitizer, which does not see what processes tell each other */
    snprintf(board->uri, sizeof board->uri, "%s", weft_listener_uri(l));
    atomic_store(&board->ready, true);
}

#define UNTIL(cond) \
    do { \
        double until_end = test_now() + 60; \
        while (!(cond)) { \
            usleep(1000); \
            if (test_now() > until_end) \
                FAIL("%s did not come true", #cond); \
        } \
    } while (0)

static bool all_go_on(void)
{
    static unsigned seen[USERS];
    static bool looked;
    bool all = looked;
    for (unsigned i = 0; i < USERS; i++) {
        unsigned now = atomic_load(&board->rounds[i]);
        if (!looked)
            seen[i] = now;
        all &= now > seen[i] + 20;
    }
    looked = !all;
    return all;
}

static void end(void)
{
    int status;
    atomic_store(&board->stop, true);
    for (unsigned i = 0; i < USERS; i++) {
        CHECK(waitpid(users[i], &status, 0) == users[i]);
        CHECK_EQ(status, 0);
    }
    for (unsigned i = 0; i < STUCK_N; i++) {
        kill(stuck[i], SIGKILL);
        CHECK(waitpid(stuck[i], &status, 0) == stuck[i]);
    }
    CHECK_EQ(atomic_load(&board->failed), 0);
    CHECK_OK(weft_runtime_close(server));
    munmap(board, sizeof *board);
}

static double revokes(void)
{
    weft_op_t op = WEFT_OP_INIT;
    double from = test_now();
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
    return test_now() - from;
}

static void check_bytes(void)
{
    const uint8_t *base = weft_region_base(region);
    for (size_t i = 0; i < LEN; i++)
        if (i % MB >= OURS && base[i] != pattern(i))
            FAIL("byte %zu is %u, not %u", i, base[i], pattern(i));
}

static void lose(int sig, bool slow)
{
    begin();
    uint8_t *base = weft_region_base(region);
    UNTIL(atomic_load(&board->busy) == STUCK_N);
    UNTIL(all_go_on());
    atomic_store(&board->slow, slow);
    for (unsigned i = 0; i < STUCK_N; i++)
        kill(stuck[i], sig);
    double took = revokes();
    CHECK(weft_region_base(region) == base);
    check_bytes();
    if (sig == SIGSTOP) { /* what they write they write to themselves */
        atomic_store(&board->go, true);
        for (unsigned i = 0; i < STUCK_N; i++)
            kill(stuck[i], SIGCONT);
        UNTIL(atomic_load(&board->wrote) == STUCK_N);
        check_bytes();
    }
    atomic_store(&board->slow, false);
    UNTIL(all_go_on());
    for (unsigned i = 0; i < USERS; i++)
        CHECK(atomic_load(&board->stale[i]));
    CHECK(!slow || atomic_load(&board->slow_calls));
    printf("# the revoke took %.2f s\n", took);
    CHECK(took < 30);
    CHECK(revokes() < 30); /* nobody is stuck any more */
    UNTIL(all_go_on());
    end();
}

TEST(peers_that_are_killed_in_the_middle_leave_the_memory_to_the_others)
{
    lose(SIGKILL, false);
}

TEST(nothing_is_written_to_memory_while_it_is_copied)
{
    wefti_rma_step_bytes = LEN; /* one piece, which takes milliseconds: who writes meanwhile is seen */
    for (unsigned i = 0; i < 3; i++)
        lose(SIGKILL, false);
}

TEST(peers_that_are_stopped_in_the_middle_leave_the_memory_to_the_others)
{
    lose(SIGSTOP, false);
}

TEST(a_shard_that_is_in_a_function_of_the_program_delays_a_revoke_and_no_more)
{
    lose(SIGSTOP, true);
}

/* The memory is being moved, or waits for that, when the region is freed, or its runtime closes. */
TEST(a_region_ends_while_its_memory_is_moved)
{
    for (unsigned closes = 0; closes < 2; closes++) {
        weft_op_t revoked = WEFT_OP_INIT, freed = WEFT_OP_INIT;
        begin();
        UNTIL(atomic_load(&board->busy) == STUCK_N);
        UNTIL(all_go_on());
        for (unsigned i = 0; i < STUCK_N; i++)
            kill(stuck[i], SIGKILL);
        CHECK_OK(weft_region_revoke(region, &revoked));
        usleep(closes ? 3000 : 1000);
        if (!closes) {
            CHECK_OK(weft_region_free(region, &freed));
            CHECK_OK(weft_op_wait(&freed, 60 * WEFT_SECOND));
        }
        for (unsigned i = 0; i < USERS; i++) { /* without region they do not end by themselves */
            kill(users[i], SIGKILL);
            waitpid(users[i], NULL, 0);
        }
        for (unsigned i = 0; i < STUCK_N; i++)
            waitpid(stuck[i], NULL, 0);
        CHECK_OK(weft_runtime_close(server));
        CHECK(weft_op_done(&revoked));
        munmap(board, sizeof *board);
    }
}
