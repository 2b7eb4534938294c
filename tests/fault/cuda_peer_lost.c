/* tests/fault/cuda_peer_lost.c - peers that are killed or stopped while devices copy, on every way that a payload of CUDA memory
 * can take; cancels and deadlines in the middle; imports that fail, exports that fail, no memory for bounce buffers; forks. Every
 * operation ends once, with a status, its buffer is its owner's from then on, and the next peer is as good as the first. Against
 * a driver made of paper, whose copies take their time. ctest: timeout=300 long gpu */
#define TEST_SECONDS 120
#include "test.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <weft/weft.h>

#include "conn/chunks.h"
#include "conn/direct.h"
#include "lib/cuda/use.h"

enum { HOST, PINNED, CUDA, POOL };
enum { SLOTS = 7, PEERS_MAX = 64 };
/* one of each way: direct, bounced from a device, bounced from the host, carried, relayed to a device, relayed from one, and
 * relayed although it is exported */
static const struct {
    int from, to;
    size_t n;
} slot[SLOTS] = {{CUDA, CUDA, 3 << 20}, {POOL, CUDA, (2 << 20) + 5}, {PINNED, CUDA, 1600001}, {CUDA, POOL, 5000},
                 {HOST, CUDA, 900001},  {POOL, HOST, 900003},        {CUDA, HOST, 1300001}};

static uint8_t *out[SLOTS], *in[SLOTS], *bytes;
static weft_runtime_t *rt;
static weft_ep_t *ep;
static weft_listener_t *listener;

/* --- memory -------------------------------------------------------------------------------------------------------------- */

static uint8_t *memory_new(int sort, size_t n)
{
    uintptr_t p = 0;
    void *stream, *q;
    switch (sort) {
    case HOST:
        return calloc(1, n);
    case PINNED:
        CHECK(!posix_memalign(&q, 4096, n));
        CHECK_EQ(cu.MemHostRegister(q, n, 1), 0);
        return q;
    case CUDA:
        CHECK_EQ(cu.MemAlloc(&p, n), 0);
        return (uint8_t *)p;
    default:
        CHECK_EQ(cu.StreamCreate(&stream, 1), 0);
        CHECK_EQ(cu.MemAllocAsync(&p, n, stream), 0);
        return (uint8_t *)p;
    }
}

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((seed + (i >> 3)) * UINT64_C(0x9e3779b97f4a7c15) >> (8 * (i & 7)));
}

static void put(int sort, uint8_t *to, size_t n, uint64_t seed)
{
    fill(bytes, n, seed);
    if (sort == HOST || sort == PINNED)
        memcpy(to, bytes, n);
    else
        CHECK_EQ(cu.MemcpyHtoD((uintptr_t)to, bytes, n), 0);
    use_settle();
}

static bool holds(int sort, const uint8_t *from, size_t n, uint64_t seed)
{
    static uint8_t *is;
    if (!is)
        is = malloc(4 << 20);
    fill(bytes, n, seed);
    if (sort == HOST || sort == PINNED)
        memcpy(is, from, n);
    else
        CHECK_EQ(cu.MemcpyDtoH(is, (uintptr_t)from, n), 0);
    return !memcmp(is, bytes, n);
}

static void say_nothing(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
}

/* Each copy takes a millisecond for a MiB or two. */
static void use_cuda(const char *fails)
{
    void *primary;
    if (*fails)
        use_only_paper();
    setenv("PAPER_THREAD", "10", 1);
    setenv("PAPER_COPY_NS", "20000", 1);
    setenv("PAPER_COPY_NS_PER_KIB", "700", 1);
    setenv("PAPER_FAIL", fails, 1);
    wefti_bounce_min = wefti_bounce_min_pinned = 1 << 20;
    wefti_bounce_bytes = 300000;
    wefti_chunk_bytes = 64 << 10;
    use_paper();
    weft_log_set_sink(say_nothing, NULL);
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&primary, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(primary), 0);
    bytes = malloc(4 << 20);
    for (int i = 0; i < SLOTS; i++) {
        out[i] = memory_new(slot[i].from, slot[i].n);
        in[i] = memory_new(slot[i].to, slot[i].n);
    }
}

static void open_runtime(uint64_t heartbeat)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = "shm";
    opts.progress = WEFT_PROGRESS_CALLER;
    opts.heartbeat_ns = heartbeat;
    CHECK_OK(weft_runtime_open(&opts, &rt));
}

static weft_status_t wait_for(weft_op_t *op, double seconds)
{
    double until = test_now() + seconds;
    while (!weft_op_done(op)) {
        weft_runtime_progress(rt);
        if (test_now() > until)
            FAIL("an operation did not complete within %.1f s", seconds);
    }
    return op->status;
}

static void run_for(double seconds)
{
    for (double until = test_now() + seconds; test_now() < until;)
        weft_runtime_progress(rt);
}

static uint32_t dice = 12345;
static uint32_t roll(void)
{
    dice = dice * 1664525u + 1013904223u;
    return dice >> 8;
}

/* --- peers: forked before CUDA is used, and begun when they are wanted --------------------------------------------------- */

typedef void (*life_t)(void);
static struct {
    pid_t pid;
    int go;
} peers[PEERS_MAX];
static unsigned n_peers, at_peer;

static void peer_fork(life_t life, uint64_t heartbeat, const char *fails)
{
    int ends[2];
    char uri[256] = "";
    weft_op_t connect = WEFT_OP_INIT;
    use_there();
    if (*fails)
        use_only_paper();
    CHECK(!pipe(ends));
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid) {
        close(ends[0]);
        peers[n_peers].pid = pid;
        peers[n_peers++].go = ends[1];
        return;
    }
    close(ends[1]);
    for (unsigned i = 0; i < n_peers; i++)
        close(peers[i].go);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(ends[0], uri, sizeof uri - 1) <= 0)
        _exit(0); /* not wanted any more */
    use_cuda(fails);
    open_runtime(heartbeat);
    CHECK_OK(weft_ep_open(rt, uri, NULL, &connect, &ep));
    CHECK_OK(wait_for(&connect, 20));
    life();
    _exit(0);
}

static void listen_here(uint64_t heartbeat)
{
    use_cuda("");
    open_runtime(heartbeat);
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
}

static pid_t next_peer(void)
{
    weft_op_t accept = WEFT_OP_INIT;
    const char *uri = weft_listener_uri(listener);
    CHECK(at_peer < n_peers);
    CHECK_OK(weft_listener_accept(listener, &accept));
    CHECK(write(peers[at_peer].go, uri, strlen(uri)) > 0);
    close(peers[at_peer].go);
    CHECK_OK(wait_for(&accept, 20));
    ep = (weft_ep_t *)accept.buf;
    return peers[at_peer++].pid;
}

static void ep_gone(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_ep_abort(ep, &op));
    (void)wait_for(&op, 20);
    ep = NULL;
}

/* The peer has done what it was to do, and exits well. */
static void peer_joined(pid_t pid)
{
    int status;
    double until = test_now() + 60;
    while (waitpid(pid, &status, WNOHANG) != pid) {
        weft_runtime_progress(rt);
        if (test_now() > until)
            FAIL("a peer did not end within 60 s");
    }
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

static void all_gone(void)
{
    CHECK_OK(weft_listener_close(listener, NULL));
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
    SEEN(live_events, 0);
    SEEN(live, 2 * SLOTS - 4); /* our own, but what is on the host; no bounce buffer */
}

/* --- traffic ------------------------------------------------------------------------------------------------------------- */

static unsigned ends[SLOTS];
static void count_end(weft_op_t *op, void *user)
{
    (void)op;
    ends[(uintptr_t)user]++;
}

static weft_op_t new_op(unsigned i)
{
    weft_op_t op = WEFT_OP_INIT;
    op.fn = count_end;
    op.user = (void *)(uintptr_t)i;
    ends[i] = 0;
    return op;
}

static void post_recv(unsigned i, weft_op_t *op)
{
    *op = new_op(i);
    CHECK_OK(weft_msg_recv(ep, in[i], slot[i].n, i, 0xff, op));
}

/* What is in a message follows from its tag. */
static void post_send(unsigned i, uint64_t number, weft_op_t *op)
{
    *op = new_op(i);
    put(slot[i].from, out[i], slot[i].n, number << 8 | i);
    CHECK_OK(weft_msg_send(ep, out[i], slot[i].n, number << 8 | i, op));
}

static void check_received(unsigned i, const weft_op_t *op)
{
    CHECK_EQ(op->len, slot[i].n);
    if (!holds(slot[i].to, in[i], slot[i].n, op->tag))
        FAIL("way %u: a message that arrived is not what was sent", i);
}

/* Send all of them, again and again. */
static void life_send(void)
{
    for (uint64_t number = 1;; number++) {
        weft_op_t op[SLOTS];
        for (unsigned i = 0; i < SLOTS; i++)
            post_send(i, number, &op[i]);
        for (unsigned i = 0; i < SLOTS; i++)
            if (wait_for(&op[i], 100))
                for (;;)
                    weft_runtime_progress(rt);
    }
}

/* Receive all of them, again and again; what arrives is right. Ends when a message says so. */
static void life_receive(void)
{
    weft_op_t op[SLOTS], end = WEFT_OP_INIT;
    uint8_t word[8];
    CHECK_OK(weft_msg_recv(ep, word, 8, 0xff, 0xff, &end));
    for (unsigned i = 0; i < SLOTS; i++)
        post_recv(i, &op[i]);
    while (!weft_op_done(&end)) {
        weft_runtime_progress(rt);
        for (unsigned i = 0; i < SLOTS; i++) {
            if (!weft_op_done(&op[i]))
                continue;
            CHECK_EQ(ends[i], 1);
            if (op[i].status == WEFT_OK)
                check_received(i, &op[i]);
            else if (weft_ep_get_state(ep) != WEFT_EP_UP)
                for (;;)
                    weft_runtime_progress(rt);
            post_recv(i, &op[i]);
        }
    }
    CHECK_OK(end.status);
    weft_op_t close = WEFT_OP_INIT;
    CHECK_OK(weft_ep_close(ep, &close));
    (void)wait_for(&close, 20);
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
}

static void say_end(void)
{
    weft_op_t op = WEFT_OP_INIT;
    uint64_t word = 0;
    CHECK_OK(weft_msg_send(ep, &word, 8, 0xff, &op));
    CHECK_OK(wait_for(&op, 20));
}

/* --- lost peers ---------------------------------------------------------------------------------------------------------- */

#define BEAT (400 * WEFT_MILLISECOND)

static void lost(int sig, bool we_receive, unsigned trials)
{
    uint64_t beat = sig == SIGKILL ? 30 * WEFT_SECOND : BEAT;
    unsigned failed = 0;
    dice = (uint32_t)(sig * 1000 + we_receive);
    for (unsigned i = 0; i < trials; i++)
        peer_fork(we_receive ? life_send : life_receive, beat, "");
    listen_here(beat);
    for (unsigned trial = 0; trial < trials; trial++) {
        weft_op_t op[SLOTS];
        pid_t pid = next_peer();
        for (unsigned round = 0; round < 2; round++) { /* it is as good as the one before */
            for (unsigned i = 0; i < SLOTS; i++)
                if (we_receive)
                    post_recv(i, &op[i]);
                else
                    post_send(i, trial * 10 + round, &op[i]);
            if (round)
                break;
            for (unsigned i = 0; i < SLOTS; i++) {
                weft_status_t st = wait_for(&op[i], 30);
                if (st && st != WEFT_ERR_PEER) /* a starved process may take itself for lost */
                    FAIL("way %u ends with %s", i, weft_status_name(st));
                if (st)
                    printf("# %s before it was hit\n", weft_status_name(st));
                else if (we_receive)
                    check_received(i, &op[i]);
            }
        }
        run_for((double)(roll() % 12000) * 1e-6);
        CHECK(!kill(pid, sig));
        if (sig == SIGSTOP)
            CHECK_EQ(waitpid(pid, NULL, WUNTRACED), pid);
        for (unsigned i = 0; i < SLOTS; i++) {
            weft_status_t st = wait_for(&op[i], 20);
            if (st && st != WEFT_ERR_PEER)
                FAIL("trial %u, way %u: ends with %s", trial, i, weft_status_name(st));
            if (!st && we_receive)
                check_received(i, &op[i]);
            failed += st != WEFT_OK;
            CHECK_EQ(ends[i], 1);
            if (we_receive) /* ours again */
                put(slot[i].to, in[i], slot[i].n, i + 7);
            else
                put(slot[i].from, out[i], slot[i].n, i + 7);
        }
        if (sig == SIGSTOP)
            CHECK(!kill(pid, SIGCONT));
        run_for(sig == SIGSTOP ? 0.04 : 0.005);
        for (unsigned i = 0; i < SLOTS; i++) {
            if (!holds(we_receive ? slot[i].to : slot[i].from, we_receive ? in[i] : out[i], slot[i].n, i + 7))
                FAIL("trial %u, way %u: somebody wrote to a buffer after its operation had ended", trial, i);
            CHECK_EQ(ends[i], 1);
        }
        ep_gone();
        kill(pid, SIGKILL);
        int status;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status));
        CHECK_EQ(WTERMSIG(status), SIGKILL); /* one that went on lived until now */
    }
    printf("# %u of %u operations failed\n", failed, trials * SLOTS);
    CHECK(failed > 0);
    all_gone();
}

TEST(senders_are_killed)
{
    lost(SIGKILL, true, 40);
}

TEST(receivers_are_killed)
{
    lost(SIGKILL, false, 40);
}

TEST(senders_are_stopped_and_go_on_later)
{
    lost(SIGSTOP, true, 10);
}

TEST(receivers_are_stopped_and_go_on_later)
{
    lost(SIGSTOP, false, 10);
}

/* The endpoint is aborted when a device has done something that nobody has looked at yet. */
static void aborted(bool we_receive)
{
    enum { TRIALS = 30 };
    unsigned failed = 0;
    dice = 5 + we_receive;
    for (unsigned i = 0; i < TRIALS; i++)
        peer_fork(we_receive ? life_send : life_receive, 60 * WEFT_SECOND, "");
    listen_here(60 * WEFT_SECOND);
    for (unsigned trial = 0; trial < TRIALS; trial++) {
        weft_op_t op[SLOTS], gone = WEFT_OP_INIT;
        pid_t pid = next_peer();
        for (unsigned i = 0; i < SLOTS; i++)
            if (we_receive)
                post_recv(i, &op[i]);
            else
                post_send(i, trial, &op[i]);
        run_for((double)(roll() % 16000) * 1e-6);
        usleep(roll() % 3000);
        CHECK_OK(weft_ep_abort(ep, &gone));
        for (unsigned i = 0; i < SLOTS; i++) {
            weft_status_t st = wait_for(&op[i], 20);
            if (st && st != WEFT_ERR_CLOSED && st != WEFT_ERR_CANCELLED)
                FAIL("trial %u, way %u: ends with %s", trial, i, weft_status_name(st));
            if (!st && we_receive)
                check_received(i, &op[i]);
            failed += st != WEFT_OK;
            put(we_receive ? slot[i].to : slot[i].from, we_receive ? in[i] : out[i], slot[i].n, i + 7);
        }
        (void)wait_for(&gone, 20);
        run_for(0.003);
        for (unsigned i = 0; i < SLOTS; i++) {
            CHECK(holds(we_receive ? slot[i].to : slot[i].from, we_receive ? in[i] : out[i], slot[i].n, i + 7));
            CHECK_EQ(ends[i], 1);
        }
        kill(pid, SIGKILL);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
    }
    printf("# %u of %u operations failed\n", failed, TRIALS * SLOTS);
    CHECK(failed > 0);
    all_gone();
}

TEST(an_endpoint_is_aborted_while_it_sends)
{
    aborted(false);
}

TEST(an_endpoint_is_aborted_while_it_receives)
{
    aborted(true);
}

/* --- cancels and deadlines ----------------------------------------------------------------------------------------------- */

static void ended_early(bool deadline, bool we_receive)
{
    enum { TRIALS = 60 };
    unsigned early = 0;
    dice = (uint32_t)(deadline * 2 + we_receive + 99);
    peer_fork(we_receive ? life_send : life_receive, 60 * WEFT_SECOND, "");
    listen_here(60 * WEFT_SECOND);
    pid_t pid = next_peer();
    for (unsigned trial = 0; trial < TRIALS; trial++) {
        weft_op_t op[SLOTS];
        uint64_t after = trial % 3 ? roll() % 9000 * WEFT_MICROSECOND + 1 : 1;
        for (unsigned i = 0; i < SLOTS; i++) {
            if (!we_receive)
                put(slot[i].from, out[i], slot[i].n, (uint64_t)trial << 8 | i);
            op[i] = new_op(i);
            op[i].timeout_ns = deadline ? after : 0;
            if (we_receive)
                CHECK_OK(weft_msg_recv(ep, in[i], slot[i].n, i, 0xff, &op[i]));
            else
                CHECK_OK(weft_msg_send(ep, out[i], slot[i].n, (uint64_t)trial << 8 | i, &op[i]));
        }
        if (after > 1)
            run_for((double)after * 1e-9);
        for (unsigned i = 0; i < SLOTS && !deadline; i++)
            weft_op_cancel(&op[i]);
        for (unsigned i = 0; i < SLOTS; i++) {
            weft_status_t st = wait_for(&op[i], 30), want = deadline ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED;
            if (st && st != want)
                FAIL("trial %u, way %u: ends with %s", trial, i, weft_status_name(st));
            if (!st && we_receive)
                check_received(i, &op[i]);
            early += st != WEFT_OK;
            if (we_receive)
                put(slot[i].to, in[i], slot[i].n, i + 7);
            else
                put(slot[i].from, out[i], slot[i].n, i + 7); /* a receiver that reads on finds this, and says so */
        }
        run_for(0.01);
        for (unsigned i = 0; i < SLOTS; i++) {
            if (!holds(we_receive ? slot[i].to : slot[i].from, we_receive ? in[i] : out[i], slot[i].n, i + 7))
                FAIL("trial %u, way %u: somebody wrote to a buffer after its operation had ended", trial, i);
            CHECK_EQ(ends[i], 1);
        }
        CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_UP);
    }
    printf("# %u of %u ended early\n", early, TRIALS * SLOTS);
    CHECK(early > 0);
    if (we_receive)
        kill(pid, SIGKILL);
    else
        say_end();
    if (!we_receive)
        peer_joined(pid);
    ep_gone();
    all_gone();
}

TEST(sends_are_cancelled_in_the_middle)
{
    ended_early(false, false);
}

TEST(receives_are_cancelled_in_the_middle)
{
    ended_early(false, true);
}

TEST(sends_run_out_of_time_in_the_middle)
{
    ended_early(true, false);
}

TEST(receives_run_out_of_time_in_the_middle)
{
    ended_early(true, true);
}

/* --- what the driver refuses --------------------------------------------------------------------------------------------- */

/* All arrive all the same, one after the other and all at a time. */
static void arrive_all(life_t life, const char *fails_there, const char *fails_here, unsigned after, int error)
{
    if (fails_here)
        use_only_paper();
    peer_fork(life, 60 * WEFT_SECOND, fails_there);
    listen_here(60 * WEFT_SECOND);
    pid_t pid = next_peer();
    if (fails_here)
        cu.fail(fails_here, after, error, -1);
    for (unsigned round = 0; round < 8; round++) {
        weft_op_t op[SLOTS];
        for (unsigned i = 0; i < SLOTS; i++) {
            post_send(i, round, &op[i]);
            if (round < 2)
                CHECK_OK(wait_for(&op[i], 20));
        }
        for (unsigned i = 0; i < SLOTS; i++) {
            weft_status_t st = wait_for(&op[i], 20);
            if (st)
                FAIL("round %u, way %u: the send ends with %s", round, i, weft_status_name(st));
        }
    }
    if (fails_here)
        cu.fail(fails_here, 0, 0, 0);
    say_end();
    peer_joined(pid);
    ep_gone();
    all_gone();
}

static void arrives(const char *fails_there, const char *fails_here, unsigned after, int error)
{
    arrive_all(life_receive, fails_there, fails_here, after, error);
}

TEST(nothing_can_be_imported_and_all_messages_arrive)
{
    arrives("cuIpcOpenMemHandle_v2:0:1:-1", NULL, 0, 0);
}

TEST(some_can_be_imported_and_all_messages_arrive)
{
    static char fails[] = "cuIpcOpenMemHandle_v2:1:1:3,cuIpcOpenMemHandle_v2:2:304:2,cuIpcOpenMemHandle_v2:1:2:-1";
    arrives(fails, NULL, 0, 0);
}

TEST(nothing_can_be_exported_and_all_messages_arrive)
{
    arrives("", "cuIpcGetMemHandle", 0, 801);
}

TEST(there_is_no_device_memory_for_bounce_buffers_and_all_messages_arrive)
{
    arrives("", "cuMemAlloc_v2", 0, 2);
}

TEST(there_is_device_memory_for_one_bounce_buffer_and_all_messages_arrive)
{
    arrives("", "cuMemAlloc_v2", 1, 2);
}

/* Memory of the sender's can neither be imported nor mapped. */
static void life_without_descriptors(void)
{
    struct rlimit none = {0, 4096};
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    life_receive();
}

TEST(a_receiver_without_descriptors_gets_all_messages)
{
    use_only_paper(); /* a real driver needs descriptors itself */
    arrive_all(life_without_descriptors, "", NULL, 0, 0);
}

/* Several at a time: more than there are places in what the two sides share. */
static void life_receive_many(void)
{
    enum { N = 12 };
    uint8_t *to[N], word[8];
    weft_op_t op[N], end = WEFT_OP_INIT;
    CHECK_OK(weft_msg_recv(ep, word, 8, 0xff, 0xff, &end));
    for (unsigned k = 0; k < N; k++)
        to[k] = memory_new(CUDA, slot[1].n);
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned k = 0; k < N; k++) {
            op[k] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_msg_recv(ep, to[k], slot[1].n, 1, 0xff, &op[k]));
        }
        for (unsigned k = 0; k < N; k++) {
            CHECK_OK(wait_for(&op[k], 60));
            CHECK(holds(CUDA, to[k], slot[1].n, op[k].tag));
        }
    }
    CHECK_OK(wait_for(&end, 60));
}

static void many_at_a_time(const char *fails_there, const char *fails_here)
{
    enum { N = 12 };
    peer_fork(life_receive_many, 60 * WEFT_SECOND, fails_there);
    listen_here(60 * WEFT_SECOND);
    pid_t pid = next_peer();
    if (fails_here)
        cu.fail(fails_here, 0, 801, -1);
    for (unsigned round = 0; round < 4; round++) {
        weft_op_t op[N];
        put(slot[1].from, out[1], slot[1].n, (uint64_t)round << 8 | 1);
        for (unsigned k = 0; k < N; k++) {
            op[k] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_msg_send(ep, out[1], slot[1].n, (uint64_t)round << 8 | 1, &op[k]));
        }
        for (unsigned k = 0; k < N; k++)
            CHECK_OK(wait_for(&op[k], 20));
    }
    if (fails_here)
        cu.fail(fails_here, 0, 0, 0);
    say_end();
    peer_joined(pid);
    ep_gone();
    all_gone();
}

TEST(many_at_a_time_of_which_nothing_can_be_imported)
{
    many_at_a_time("cuIpcOpenMemHandle_v2:0:1:-1", NULL);
}

TEST(many_at_a_time_of_which_some_can_be_imported)
{
    many_at_a_time("cuIpcOpenMemHandle_v2:1:1:-1", NULL);
}

TEST(many_at_a_time_with_everything_there)
{
    many_at_a_time("", NULL);
}

/* --- forks --------------------------------------------------------------------------------------------------------------- */

TEST(a_process_forks_while_messages_are_under_way)
{
    peer_fork(life_receive, 60 * WEFT_SECOND, "");
    listen_here(60 * WEFT_SECOND);
    pid_t pid = next_peer();
    for (unsigned round = 0; round < 10; round++) {
        weft_op_t op[SLOTS];
        int status;
        for (unsigned i = 0; i < SLOTS; i++)
            post_send(i, round, &op[i]);
        run_for((double)(roll() % 6000) * 1e-6);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            weft_op_t none = WEFT_OP_INIT;
            weft_runtime_progress(rt);
            if (weft_msg_send(ep, bytes, 10, 1, &none) != WEFT_ERR_FORKED)
                _exit(2);
            (void)weft_runtime_close(rt);
            _exit(0);
        }
        for (unsigned i = 0; i < SLOTS; i++)
            CHECK_OK(wait_for(&op[i], 20));
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
    }
    say_end();
    peer_joined(pid);
    ep_gone();
    all_gone();
}
