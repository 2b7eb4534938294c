/* wire/rma_small_path.c - a small access to mapped memory is complete when its call returns, allocates nothing and does not
 * enter the kernel; a small checked one allocates nothing on either side and enters the kernel only for its transport, and
 * those posted in a row over TCP travel together. */
#define TEST_SECONDS 120
#include <sys/syscall.h>

#include "base/alloc.h"
#include "lib/far.h"
#include "lib/quiet.h"
#include "test.h"

enum { ROUNDS = 4000, ROW = 256, KINDS = 7 };
static weft_region_t *region;
static weft_remote_t *r;

static void begin(const char *transports, weft_rma_path_t path)
{
    static pair_way_t pair_way;
    static far_way_t way;
    pair_way = (pair_way_t){transports, WEFT_PROGRESS_CALLER};
    way = (far_way_t){&pair_way, path};
    far_open(&way, NULL);
    region = far_region(1 << 20);
    r = far_attach(region, NULL);
}

static void finish(void)
{
    weft_remote_drop(r);
    far_free(region);
    far_close();
}

/* One access of each kind, `rounds` times, one after the other; mapped ones are done at once. */
static void everything(unsigned rounds)
{
    static uint8_t buf[4096], back[4096];
    bool mapped = far.way->path == WEFT_RMA_MAPPED;
    for (unsigned i = 0; i < rounds; i++) {
        for (unsigned k = 0; k < KINDS; k++) {
            weft_op_t op = WEFT_OP_INIT;
            weft_iov_t iov[2] = {{back, 8}, {back + 100, 50}};
            uint64_t at = i % 100 * 4096;
            weft_status_t st = k == 0   ? weft_rma_write(r, at, buf, 8, &op)
                               : k == 1 ? weft_rma_read(r, at, back, 8, &op)
                               : k == 2 ? weft_rma_write(r, at, buf, 1000, &op)
                               : k == 3 ? weft_rma_read(r, at, back, 4096, &op)
                               : k == 4 ? weft_rma_atomic(r, WEFT_RMA_ADD, 8, 8, 1, 0, &op)
                               : k == 5 ? weft_rma_readv(r, at, iov, 2, &op)
                                        : weft_rma_write(r, at, buf, 4096, &op);
            CHECK_OK(st);
            CHECK(!mapped || weft_op_done(&op));
            while (!weft_op_done(&op)) {
                weft_runtime_progress(far.pair.rt[0]);
                weft_runtime_progress(far.pair.rt[1]);
            }
            CHECK_OK(op.status);
        }
        CHECK_OK(weft_rma_fence(r));
    }
}

/* Many under way at once. */
static void in_a_row(unsigned rows)
{
    static weft_op_t ops[ROW];
    static uint8_t bufs[ROW][64];
    for (; rows; rows--) {
        unsigned left = ROW;
        for (unsigned i = 0; i < ROW; i++) {
            ops[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_rma_read(r, i * 64, bufs[i], 64, &ops[i]));
        }
        for (double end = test_now() + 20; left && test_now() < end;) {
            pair_drive(&far.pair);
            while (left && weft_op_done(&ops[left - 1]))
                left--;
        }
        CHECK_EQ(left, 0);
    }
}

static void allocations_on(const char *transports, weft_rma_path_t path, uint64_t (*count)(void))
{
    begin(transports, path);
    everything(ROUNDS / 10);
    in_a_row(20);
    uint64_t before = count();
    everything(ROUNDS / 10);
    in_a_row(20);
    uint64_t made = count() - before;
    printf("# %s, %s: %" PRIu64 " allocations in %d accesses\n", transports, weft_rma_path_name(path), made,
           KINDS * ROUNDS / 10 + 20 * ROW);
    CHECK_EQ(made, 0);
    finish();
}

TEST(small_accesses_allocate_nothing_on_either_side)
{
    if (QUIET_SANITIZED)
        SKIP("the sanitizer has its own malloc");
    allocations_on("shm", WEFT_RMA_MAPPED, quiet_allocations);
    allocations_on("shm", WEFT_RMA_CHECKED, quiet_allocations);
    allocations_on("tcp", WEFT_RMA_CHECKED, quiet_allocations);
}

/* UCX allocates as it likes: there only our own are counted. */
static uint64_t ours;
static int count_ours(size_t n)
{
    (void)n;
    ours++;
    return 0;
}
static uint64_t ours_so_far(void)
{
    return ours;
}

TEST(small_accesses_over_ucx_allocate_nothing_of_ours)
{
    wefti_alloc_fails = count_ours;
    allocations_on("ucx_tcp", WEFT_RMA_CHECKED, ours_so_far);
    wefti_alloc_fails = NULL;
}

static const char *traced_transports;
static weft_rma_path_t traced_path;
static void traced(void)
{
    begin(traced_transports, traced_path);
    everything(ROUNDS / 4);
    quiet_mark(true);
    everything(ROUNDS / 4);
    quiet_mark(false);
    finish();
}

TEST(small_accesses_over_shared_memory_make_no_system_call)
{
    if (QUIET_SANITIZED)
        SKIP("not under a sanitizer");
    for (int path = WEFT_RMA_MAPPED; path <= WEFT_RMA_CHECKED; path++) {
        traced_transports = "shm";
        traced_path = (weft_rma_path_t)path;
        int64_t calls = quiet_calls(traced, NULL, 0);
        if (calls == -1)
            SKIP("tracing is not permitted here");
        CHECK(calls >= 0);
        printf("# %s: %" PRId64 " system calls in %d accesses (the wires are looked at every few milliseconds)\n",
               weft_rma_path_name(traced_path), calls, KINDS * ROUNDS / 4);
        if (path == WEFT_RMA_MAPPED)
            CHECK_EQ(calls, 0); /* nothing is driven at all */
        else
            CHECK(calls < KINDS * ROUNDS / 4 / 50);
    }
}

static void row_over_tcp(void)
{
    begin("tcp", WEFT_RMA_CHECKED);
    in_a_row(3);
    quiet_mark(true);
    in_a_row(4);
    quiet_mark(false);
    finish();
}

TEST(requests_posted_in_a_row_over_tcp_travel_together_and_so_do_their_answers)
{
    static const long sends[] = {SYS_write, SYS_writev, SYS_sendto, SYS_sendmsg, SYS_sendmmsg};
    if (QUIET_SANITIZED)
        SKIP("not under a sanitizer");
    int64_t calls = quiet_calls(row_over_tcp, sends, sizeof sends / sizeof *sends);
    if (calls == -1)
        SKIP("tracing is not permitted here");
    CHECK(calls >= 0);
    printf("# %" PRId64 " sends for %d requests and their answers\n", calls, 4 * ROW);
    CHECK(calls > 0 && calls < 4 * ROW / 8);
}

TEST(a_lone_request_leaves_at_once_and_its_answer_needs_no_second_progress_of_the_owner)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        begin(transports[t], WEFT_RMA_CHECKED);
        everything(10);
        for (unsigned i = 0; i < 20; i++) {
            weft_op_t op = WEFT_OP_INIT;
            uint64_t word = i + 1, *there = weft_region_base(region);
            double end = test_now() + 5;
            pair_run(&far.pair, 0.001);
            CHECK_OK(weft_rma_write(r, 0, &word, 8, &op));
            while (*(volatile uint64_t *)there != word && test_now() < end) /* only the owner is driven */
                weft_runtime_progress(far.pair.rt[0]);
            CHECK_EQ(*there, word);
            while (!weft_op_done(&op) && test_now() < end) /* and then only its peer */
                weft_runtime_progress(far.pair.rt[1]);
            CHECK(weft_op_done(&op));
        }
        finish();
    }
}
