/* tests/wire/am_lend_cuda.c - payloads in GPU memory that are lent where they are: read there, given back, refused where that is
 * not possible; by a peer that ends. Against a driver made of paper. ctest: label=thread gpu */
#include "test.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <weft/weft.h>

#include "lib/cuda/use.h"
#include "lib/says.h"

enum { N = 2 << 20, SMALL = 20000 };

static weft_runtime_t *rt;
static weft_ep_t *ep;
static uint8_t *mine, bytes[N], back[N];
static weft_am_t *kept;
static pid_t child;
static int from_child[2], to_child[2];

static void begin_cuda(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    void *primary;
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&primary, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(primary), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&mine, N), 0);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)(i * 11 + i / 255);
    opts.transports = "shm";
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

/* It sends what it is told by letters: g from the GPU, d half of that without a wait, s a short one of the GPU's, h from the
 * host; and says when it is done. */
static void live(void)
{
    char uri[256] = "", what;
    weft_op_t op = WEFT_OP_INIT, more[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    unsigned n = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(to_child[0], uri, sizeof uri - 1) <= 0)
        _exit(0);
    begin_cuda();
    CHECK_EQ(cu.MemcpyHtoD((uintptr_t)mine, bytes, N), 0);
    use_settle();
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    CHECK_OK(done(&op));
    while (read(to_child[0], &what, 1) == 1) {
        if (what == 'd') {
            CHECK_OK(weft_am_send(ep, 5, NULL, 0, mine, N / 2, &more[n++ % 2]));
            for (double until = test_now() + 0.1; test_now() < until;)
                weft_runtime_progress(rt);
            continue;
        }
        CHECK_OK(weft_am_send(ep, 5, NULL, 0, what == 'h' ? bytes : mine, what == 's' ? SMALL : N, &op));
        if (done(&op))
            _exit(0); /* its peer is gone */
        CHECK_EQ(write(from_child[1], &what, 1), 1);
    }
    _exit(0);
}

static void on_message(weft_am_t *am, void *user)
{
    (void)user;
    kept = weft_am_keep(am);
    CHECK(kept);
}

static void begin(void)
{
    weft_listener_t *listener;
    weft_op_t op = WEFT_OP_INIT;
    use_there();
    setenv("PAPER_THREAD", "10", 1);
    CHECK(!pipe(from_child) && !pipe(to_child));
    child = fork();
    CHECK(child >= 0);
    if (!child)
        live();
    begin_cuda();
    CHECK_OK(weft_am_handle(rt, 5, on_message, NULL, NULL));
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    CHECK_OK(weft_listener_accept(listener, &op));
    CHECK(write(to_child[1], weft_listener_uri(listener), strlen(weft_listener_uri(listener))) > 0);
    CHECK_OK(done(&op));
}

static void get(char what)
{
    kept = NULL;
    CHECK_EQ(write(to_child[1], &what, 1), 1);
    for (double until = test_now() + 30; !kept; weft_runtime_progress(rt))
        if (test_now() > until)
            FAIL("no message came within 30 s");
}

static bool said(void)
{
    struct timeval now = {0, 200000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(from_child[0], &set);
    return select(from_child[0] + 1, &set, NULL, NULL, &now) == 1;
}

TEST(memory_of_a_gpu_is_read_where_it_is)
{
    begin();
    weft_op_t op = WEFT_OP_INIT;
    for (int round = 0; round < 3; round++) {
        char what;
        get('g');
        unsigned copies = cu.paper->copies;
        CHECK_OK(weft_am_view_device(kept, &op));
        CHECK_OK(done(&op));
        CHECK_EQ(op.len, N);
        CHECK(weft_mem_kind_of(op.buf) == weft_mem_kind_find("cuda"));
        SEEN(copies, copies);
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)op.buf, N), 0);
        CHECK(!memcmp(back, bytes, N));
        CHECK(!said()); /* its sender waits */
        weft_am_release(kept);
        for (double until = test_now() + 30; !said() && test_now() < until;)
            weft_runtime_progress(rt);
        CHECK_EQ(read(from_child[0], &what, 1), 1);
    }
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
}

TEST(what_cannot_be_lent_is_pulled)
{
    begin();
    for (const char *what = "shs"; *what; what++) {
        weft_op_t op = WEFT_OP_INIT;
        size_t n = *what == 's' ? SMALL : N;
        get(*what);
        CHECK_OK(weft_am_view_device(kept, &op));
        CHECK_EQ(done(&op), WEFT_ERR_UNSUPPORTED);
        SAYS(&op, "am view on a device: the payload cannot be lent: ", "host memory", "pull it");
        CHECK_OK(weft_am_pull(kept, mine, n, &op));
        CHECK_OK(done(&op));
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)mine, n), 0);
        CHECK(!memcmp(back, bytes, n));
        weft_am_release(kept);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(memory_that_does_not_open_is_not_lent_and_why_is_said)
{
    begin();
    use_only_paper();
    weft_op_t op = WEFT_OP_INIT;
    get('g');
    cu.fail("cuIpcOpenMemHandle_v2", 0, 201, 1);
    CHECK_OK(weft_am_view_device(kept, &op));
    CHECK_EQ(done(&op), WEFT_ERR_UNSUPPORTED);
    SAYS(&op, "the payload cannot be lent: ", "does not open", "CUDA_ERROR_INVALID_CONTEXT", "pull it");
    CHECK_OK(weft_am_pull(kept, mine, N, &op));
    CHECK_OK(done(&op));
    CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)mine, N), 0);
    CHECK(!memcmp(back, bytes, N));
    weft_am_release(kept);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(it_stays_when_its_sender_is_killed)
{
    begin();
    weft_op_t op = WEFT_OP_INIT;
    get('g');
    CHECK_OK(weft_am_view_device(kept, &op));
    CHECK_OK(done(&op));
    CHECK(!kill(child, SIGKILL));
    CHECK_EQ(waitpid(child, NULL, 0), child);
    for (double until = test_now() + 0.5; test_now() < until;)
        weft_runtime_progress(rt);
    CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)op.buf, N), 0);
    CHECK(!memcmp(back, bytes, N));
    weft_am_release(kept);
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
}

static void *release_it(void *am)
{
    weft_am_release(am);
    return NULL;
}

/* Two messages of one allocation, which is opened once. */
TEST(it_stays_when_its_runtime_is_closed)
{
    begin();
    weft_op_t op = WEFT_OP_INIT;
    weft_am_t *all[2];
    const void *at[2];
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        get('d');
        all[i] = kept;
        CHECK_OK(weft_am_view_device(kept, &op));
        CHECK_OK(done(&op));
        at[i] = op.buf;
    }
    SEEN(live_imports, 1);
    CHECK_OK(weft_runtime_close(rt));
    for (int i = 0; i < 2; i++) {
        SEEN(live_imports, 1);
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)at[i], N / 2), 0);
        CHECK(!memcmp(back, bytes, N / 2));
        CHECK(!pthread_create(&thread, NULL, release_it, all[i]));
        CHECK(!pthread_join(thread, NULL));
    }
    SEEN(live_imports, 0);
}
