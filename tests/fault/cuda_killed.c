/* tests/fault/cuda_killed.c - peers that are killed or stopped in the middle of long copies within a GPU, many times: 256 MiB
 * and a hundred times on a real GPU, less on the driver made of paper. The survivor's operations end with a status, what
 * arrived is what was sent, and a peer that goes on later changes nothing. ctest: timeout=300 gpu */
#define TEST_SECONDS 280
#include "test.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <weft/weft.h>

#include "lib/cuda/use.h"

enum { AHEAD = 3, FLIGHT = 2, CHILDREN = 100 };
#define HEARTBEAT (500 * WEFT_MILLISECOND)

static size_t n; /* bytes of a message */
static uint8_t *buf[FLIGHT];
static weft_runtime_t *rt;
static weft_ep_t *ep;
static weft_listener_t *listener;
static struct {
    pid_t pid;
    int go;
} child[CHILDREN];

static void cuda_begin(void)
{
    void *primary;
    setenv("PAPER_THREAD", "10", 1);
    setenv("PAPER_COPY_NS", "200000", 1);
    setenv("PAPER_COPY_NS_PER_KIB", "500", 1);
    use_paper();
    n = use_real ? (size_t)256 << 20 : (size_t)2 << 20;
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&primary, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(primary), 0);
    for (int i = 0; i < FLIGHT; i++)
        CHECK_EQ(cu.MemAlloc((uintptr_t *)&buf[i], n), 0);
}

static void runtime_begin(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = "shm";
    opts.progress = WEFT_PROGRESS_CALLER;
    opts.heartbeat_ns = HEARTBEAT;
    CHECK_OK(weft_runtime_open(&opts, &rt));
}

static void fill(uint8_t *to, int value)
{
    CHECK_EQ(cu.MemsetD8((uintptr_t)to, (unsigned char)value, n), 0);
    use_settle();
}

/* Is it all of one value? Looked at in a few places, and at both ends. */
static bool holds(const uint8_t *from, int value)
{
    for (int i = 0; i <= 16; i++) {
        uint8_t is = 0;
        size_t at = (n - 1) / 16 * (size_t)i;
        CHECK_EQ(cu.MemcpyDtoH(&is, (uintptr_t)from + (i == 16 ? n - 1 : at), 1), 0);
        if (is != (uint8_t)value)
            return false;
    }
    return true;
}

static void post(bool sends, int i, weft_op_t *op)
{
    *op = (weft_op_t)WEFT_OP_INIT;
    weft_status_t st = sends ? weft_msg_send(ep, buf[i], n, 1, op) : weft_msg_recv(ep, buf[i], n, 1, UINT64_MAX, op);
    CHECK_OK(st);
}

/* A child's life: it sends, or receives, until it is killed. */
static void live(int go, bool sends)
{
    char uri[256] = "";
    weft_op_t op[FLIGHT], connect = WEFT_OP_INIT;
    cuda_begin();
    for (int i = 0; i < FLIGHT; i++)
        fill(buf[i], 77);
    runtime_begin();
    if (read(go, uri, sizeof uri - 1) <= 0)
        _exit(0);
    CHECK_OK(weft_ep_open(rt, uri, NULL, &connect, &ep));
    for (double until = test_now() + 20; !weft_op_done(&connect) && test_now() < until;)
        weft_runtime_progress(rt);
    CHECK_OK(connect.status);
    for (int i = 0; i < FLIGHT; i++)
        post(sends, i, &op[i]);
    for (;;) {
        weft_runtime_progress(rt);
        for (int i = 0; i < FLIGHT; i++) {
            if (!weft_op_done(&op[i]))
                continue;
            if (op[i].status)
                _exit(0); /* it was stopped, and is given up */
            post(sends, i, &op[i]);
        }
    }
}

static uint32_t dice = 4711;
static uint32_t roll(uint32_t most)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % most;
}

static void wait_all(weft_op_t *op)
{
    double until = test_now() + 20;
    for (int i = 0; i < FLIGHT; i++)
        while (!weft_op_done(&op[i])) {
            weft_runtime_progress(rt);
            if (test_now() > until)
                FAIL("an operation did not complete within 20 s");
        }
}

/* One child, from its beginning to its end. */
static void trial(int i, bool child_sends, bool stops, unsigned *failed)
{
    weft_op_t op[FLIGHT], accept = WEFT_OP_INIT, gone = WEFT_OP_INIT;
    const char *uri = weft_listener_uri(listener);
    CHECK_OK(weft_listener_accept(listener, &accept));
    CHECK(write(child[i].go, uri, strlen(uri)) > 0);
    close(child[i].go);
    for (double until = test_now() + 30; !weft_op_done(&accept); weft_runtime_progress(rt))
        if (test_now() > until)
            FAIL("a child did not connect within 30 s");
    CHECK_OK(accept.status);
    ep = (weft_ep_t *)accept.buf;
    for (int k = 0; k < FLIGHT; k++) {
        fill(buf[k], child_sends ? 1 : 77);
        post(!child_sends, k, &op[k]);
    }
    double at = test_now() + 1e-6 * roll(4000) + (i % 4 ? 0.002 : 0);
    while (test_now() < at) {
        weft_runtime_progress(rt);
        for (int k = 0; k < FLIGHT; k++)
            if (weft_op_done(&op[k]) && !op[k].status) {
                CHECK(holds(buf[k], 77));
                post(!child_sends, k, &op[k]);
            }
    }
    CHECK(!kill(child[i].pid, stops ? SIGSTOP : SIGKILL));
    wait_all(op);
    for (int k = 0; k < FLIGHT; k++) {
        *failed += op[k].status != WEFT_OK;
        if (!op[k].status)
            CHECK(holds(buf[k], 77));
        fill(buf[k], 5);
    }
    CHECK_OK(weft_ep_abort(ep, &gone));
    for (double until = test_now() + 20; !weft_op_done(&gone) && test_now() < until;)
        weft_runtime_progress(rt);
    if (stops) { /* what it does when it goes on, nobody sees */
        CHECK(!kill(child[i].pid, SIGCONT));
        for (double until = test_now() + 0.03; test_now() < until;)
            weft_runtime_progress(rt);
        for (int k = 0; k < FLIGHT; k++)
            CHECK(holds(buf[k], 5));
        CHECK(!kill(child[i].pid, SIGKILL));
    }
    CHECK_EQ(waitpid(child[i].pid, NULL, 0), child[i].pid);
}

/* This process forks for the one that uses CUDA, since a child of that one could not. */
static void trials(bool child_sends, bool stops)
{
    use_there();
    int all = getenv("TEST_WEFT_GPU") ? CHILDREN : stops ? 6 : 12;
    unsigned failed = 0;
    if (getenv("TEST_WEFT_TRIALS"))
        all = atoi(getenv("TEST_WEFT_TRIALS"));
    for (int i = 0; i < all; i++) { /* each begins when the one AHEAD of it has ended */
        int ends[2];
        CHECK(!pipe(ends));
        fflush(NULL);
        child[i].pid = fork();
        CHECK(child[i].pid >= 0);
        child[i].go = ends[1];
        if (child[i].pid) {
            close(ends[0]);
            continue;
        }
        char turn;
        close(ends[1]);
        for (int k = 0; k < i; k++)
            close(child[k].go);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(ends[0], &turn, 1) != 1)
            _exit(0);
        live(ends[0], child_sends);
    }
    cuda_begin();
    runtime_begin();
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    for (int i = 0; i < all + AHEAD; i++) {
        if (i < all)
            CHECK_EQ(write(child[i].go, "!", 1), 1);
        if (i >= AHEAD)
            trial(i - AHEAD, child_sends, stops, &failed);
    }
    printf("# %u of %d operations failed\n", failed, all * FLIGHT);
    CHECK(failed > 0); /* else nothing was in the middle */
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
}

TEST(senders_are_killed_in_the_middle)
{
    trials(true, false);
}

TEST(receivers_are_killed_in_the_middle)
{
    trials(false, false);
}

TEST(senders_are_stopped_in_the_middle_and_go_on)
{
    trials(true, true);
}

TEST(receivers_are_stopped_in_the_middle_and_go_on)
{
    trials(false, true);
}
