/* The memory of both sides stays flat while a sender outruns a receiver that sleeps: two processes, and WEFT_TEST_MESSAGES
 * messages of 4 KiB (100,000 if it does not say; a million is what was promised).
 *
 * The receiver's program sleeps at first for a while and then between bursts of receives; the sender posts as fast as it may,
 * with a few operations. Each process looks at its own resident memory: when the first thousand messages have passed, and
 * whenever it may have grown. ctest: long tls-long timeout=600 */
#define TEST_SECONDS 280
#include <sys/prctl.h>
#include <weft/weft.h>

#include "ports.h"
#include "test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { LEN = 4096, SLOTS = 64, BURST = 400, WARM = 1000 };
#define GROWTH_KB (8 * 1024 + 2 * 512) /* 8 MiB and two windows */

static unsigned messages(void)
{
    const char *text = getenv("WEFT_TEST_MESSAGES");
    unsigned n = text ? (unsigned)strtoul(text, NULL, 10) : SANITIZED ? 10000 : 100000;
    unsetenv("WEFT_TEST_MESSAGES"); /* it is none of the library's */
    return n > 2 * WARM ? n : 2 * WARM;
}

static long resident_kb(void)
{
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "VmRSS: %ld", &kb);
    if (f)
        fclose(f);
    return kb;
}

/* Remember what there was, or see that it has not grown. */
static void look(const char *who, unsigned i, long *base, long *most)
{
    long kb = resident_kb();
    if (i == WARM)
        *base = kb;
    *most = kb > *most ? kb : *most;
    if (!SANITIZED && *base && kb - *base > GROWTH_KB)
        FAIL("%s has grown from %ld KiB to %ld KiB after %u messages", who, *base, kb, i);
}

static void sender(const char *transports, int from_parent, unsigned n)
{
    static weft_op_t send[SLOTS];
    static uint8_t out[SLOTS][LEN];
    static unsigned seq[SLOTS];
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;
    char uri[128] = "";
    long base = 0, most = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK(read(from_parent, uri, sizeof uri - 1) > 0);
    opts.transports = transports;
    opts.progress = WEFT_PROGRESS_CALLER;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
    for (unsigned i = 0; i < n; i++) {
        unsigned k = i % SLOTS;
        CHECK_OK(weft_op_wait(&send[k], 60 * WEFT_SECOND)); /* one never posted is complete */
        seq[k] = i;
        memcpy(out[k], &i, sizeof i);
        memset(out[k] + LEN - 4, (int)(i & 0xff), 4);
        CHECK_OK(weft_am_send(ep, 1, &seq[k], sizeof seq[k], out[k], LEN, &send[k]));
        if (i % 500 == 0)
            look("the sender", i, &base, &most);
    }
    for (unsigned k = 0; k < SLOTS; k++)
        CHECK_OK(weft_op_wait(&send[k], 60 * WEFT_SECOND));
    look("the sender", n, &base, &most);
    printf("# %s, sender: %ld KiB after %d messages, at most %ld KiB\n", transports, base, WARM, most);
    CHECK_OK(weft_ep_close(ep, &op));
    CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
    exit(0);
}

static void nap(double seconds)
{
    struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&ts, NULL);
}

static void receiver(weft_runtime_t *rt, const char *transports, unsigned n)
{
    static uint8_t in[LEN];
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    long base = 0, most = 0;
    nap(0.3);
    weft_runtime_get_stats(rt, &stats);
    CHECK(stats.am_held_bytes <= 1 << 20);
    CHECK(stats.ams_received > 0 && stats.ams_received < n); /* the sender waits */
    for (unsigned i = 0; i < n; i++) {
        weft_op_t recv = WEFT_OP_INIT;
        weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
        unsigned seq = 0;
        want.id = 1;
        want.header = &seq;
        want.header_cap = sizeof seq;
        want.buf = in;
        want.cap = sizeof in;
        CHECK_OK(weft_am_recv(rt, &want, &recv));
        CHECK_OK(weft_op_wait(&recv, 60 * WEFT_SECOND));
        CHECK(seq == i && recv.len == LEN && in[LEN - 1] == (uint8_t)i && !memcmp(in, &i, sizeof i));
        if (i % BURST == 0)
            nap(0.001);
        if (i % 500 == 0) {
            weft_runtime_get_stats(rt, &stats);
            CHECK(stats.am_held_bytes <= 1 << 20);
            look("the receiver", i, &base, &most);
        }
    }
    look("the receiver", n, &base, &most);
    printf("# %s, receiver: %ld KiB after %d messages, at most %ld KiB, %u messages in all\n", transports, base, WARM, most, n);
}

static void show(const char *transports)
{
    int to_child[2], status;
    unsigned n = messages();
    CHECK_EQ(pipe(to_child), 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        sender(transports, to_child[0], n);
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_op_t accept = WEFT_OP_INIT, close = WEFT_OP_INIT;
    opts.transports = transports;
    opts.progress = WEFT_PROGRESS_THREAD; /* the program sleeps, not the runtime */
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &listener));
    CHECK_OK(weft_listener_accept(listener, &accept));
    const char *uri = weft_listener_uri(listener);
    CHECK(write(to_child[1], uri, strlen(uri)) == (ssize_t)strlen(uri));
    CHECK_OK(weft_op_wait(&accept, 10 * WEFT_SECOND));
    receiver(rt, transports, n);
    CHECK_OK(weft_ep_close((weft_ep_t *)accept.buf, &close));
    CHECK_OK(weft_op_wait(&close, 10 * WEFT_SECOND));
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_OK(weft_listener_close(listener, NULL));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_receiver_that_sleeps_leaves_the_memory_of_both_sides_flat_over_shared_memory)
{
    show("shm");
}

TEST(a_receiver_that_sleeps_leaves_the_memory_of_both_sides_flat_over_tcp)
{
    show("tcp");
}
