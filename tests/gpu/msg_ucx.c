/* tests/gpu/msg_ucx.c - CUDA memory that UCX moves itself, where it was built with CUDA: two processes on a real GPU, over UCX's
 * TCP and its ways within a GPU. Says how fast that is, beside the paths of our own over shared memory.
 *
 * UCX from PyPI has CUDA: LD_LIBRARY_PATH=.../libucx/lib UCX_MODULE_DIR=.../libucx/lib/ucx. ctest: timeout=200 */
#include "test.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <weft/weft.h>

#include "conn/conn.h"
#include "fabric/module.h"
#include "lib/cuda/use.h"

enum { LONGEST = 64 << 20, TURNS = 40 };

static weft_runtime_t *rt;
static weft_ep_t *ep;
static uint8_t *device, *host;

static void begin(const char *transports)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    void *primary;
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&primary, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(primary), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&device, LONGEST), 0);
    host = malloc(LONGEST);
    opts.transports = transports;
    opts.progress = WEFT_PROGRESS_CALLER;
    CHECK_OK(weft_runtime_open(&opts, &rt));
}

static weft_status_t done(weft_op_t *op)
{
    for (double until = test_now() + 30; !weft_op_done(op); weft_runtime_progress(rt))
        if (test_now() > until)
            FAIL("an operation did not complete within 30 s");
    return op->status;
}

static void fill(size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        host[i] = (uint8_t)(i * 31 + i / 509 + seed);
}

static void send_one(void *from, size_t n)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_msg_send(ep, from, n, 1, &op));
    CHECK_OK(done(&op));
}

static void recv_one(void *into, size_t n)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_msg_recv(ep, into, n, 1, UINT64_MAX, &op));
    CHECK_OK(done(&op));
    CHECK_EQ(op.len, n);
}

static const size_t sizes[] = {1, 5000, 9000, 300001, 1 << 20, 16 << 20, LONGEST};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* It sends everything twice, from the GPU and from the host, and then as fast as it can. */
static void child(const char *transports, const char *uri)
{
    weft_op_t op = WEFT_OP_INIT;
    begin(transports);
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    CHECK_OK(done(&op));
    for (unsigned k = 0; k < SIZES; k++)
        for (int from = 0; from < 4; from++) {
            fill(sizes[k], k + (unsigned)from);
            CHECK_EQ(cu.MemcpyHtoD((uintptr_t)device, host, sizes[k]), 0);
            use_settle();
            send_one(from & 1 ? host : device, sizes[k]);
        }
    for (unsigned k = 4; k < SIZES; k++)
        for (int i = 0; i < TURNS; i++)
            send_one(device, sizes[k]);
    CHECK_OK(weft_ep_close(ep, &op));
    (void)done(&op);
    _exit(0);
}

/* In a child: UCX with CUDA starts CUDA, and what is forked after that cannot use it. */
static bool module_loads(void)
{
    const wefti_module_t *module;
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid)
        _exit(wefti_module_load("", &module) != WEFT_OK);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

static void between(const char *transports, bool by_ucx)
{
    int ends[2];
    char uri[256] = "";
    weft_listener_t *listener;
    weft_op_t op = WEFT_OP_INIT;
    setenv("TEST_WEFT_GPU", "1", 1);
    use_there();
    if (by_ucx && !module_loads())
        SKIP("there is no libweft_ucx.so beside the program, or no UCX that it can use");
    wefti_ucx_rendezvous = true; /* else payloads over UCX's TCP go in chunks of our own */
    CHECK(!pipe(ends));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[1]);
        if (read(ends[0], uri, sizeof uri - 1) > 0)
            child(transports, uri);
        _exit(1); /* the parent is gone, or never had an address */
    }
    begin(transports);
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    CHECK_OK(weft_listener_accept(listener, &op));
    CHECK(write(ends[1], weft_listener_uri(listener), strlen(weft_listener_uri(listener))) > 0);
    CHECK_OK(done(&op));
    ep = (weft_ep_t *)op.buf;
    if (by_ucx && !ep->lane->takes_cuda)
        SKIP("the UCX here was built without CUDA");
    for (unsigned k = 0; k < SIZES; k++)
        for (int into = 0; into < 4; into++) {
            static uint8_t back[LONGEST];
            recv_one(into & 2 ? host : device, sizes[k]);
            if (into & 2)
                memcpy(back, host, sizes[k]);
            else
                CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)device, sizes[k]), 0);
            fill(sizes[k], k + (unsigned)into);
            CHECK(!memcmp(back, host, sizes[k]));
        }
    for (unsigned k = 4; k < SIZES; k++) {
        double from = test_now();
        for (int i = 0; i < TURNS; i++)
            recv_one(device, sizes[k]);
        printf("# %s: %zu KiB from GPU to GPU, one at a time: %.1f GB/s\n", transports, sizes[k] >> 10,
               1e-9 * (double)sizes[k] * TURNS / (test_now() - from));
    }
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(rt, &stats);
    if (by_ucx)
        CHECK_EQ(stats.device_staged + stats.device_relayed + stats.device_direct, 0);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

TEST(ucx_moves_cuda_memory_itself)
{
    setenv("UCX_TLS", "tcp,cuda", 0);
    between("ucx", true);
}

TEST(and_we_do_over_shared_memory)
{
    between("shm", false);
}
