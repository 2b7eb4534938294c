/* Many endpoints in one process: they come up, all of them carry messages, an idle crowd costs nothing to speak of, and what each
 * costs in memory is shown. TEST_MANY sets how many (default 1000 over shared memory, a tenth of that over TCP).
 * ctest: tls shards */
#include <malloc.h>
#include <sys/resource.h>

#include "lib/two.h"
#include "ports.h"
#include "test.h"

static weft_ep_t **server_eps;
static int n_server, fds_ok;

static void take(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    server_eps[n_server++] = ep;
}

static int how_many(int fds_each)
{
    struct rlimit r;
    const char *text = getenv("TEST_MANY");
    int n = text ? atoi(text) : 1000;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    fds_ok = (int)(r.rlim_cur > 1000000 ? 1000000 : r.rlim_cur);
    return n * fds_each + 200 > fds_ok ? (fds_ok - 200) / fds_each : n;
}

static double cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void crowd(const char *transports, int n)
{
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *l;
    weft_op_t *ops = calloc((size_t)n, sizeof *ops);
    weft_ep_t **eps = calloc((size_t)n, sizeof *eps);
    server_eps = calloc((size_t)n, sizeof *server_eps);
    n_server = 0;
    const char *at = ports_local("many");
    ro.transports = transports;
    two_open(&ro, &ro);
    lo.accept = take;
    lo.backlog = 100000;
    CHECK_OK(weft_listen(two.server, at, &lo, &l));
    size_t heap = mallinfo2().uordblks;
    int fds = two_fds();
    double start = test_now();
    for (int i = 0; i < n; i++) {
        CHECK_OK(weft_ep_open(two.client, at, NULL, &ops[i], &eps[i]));
        if (i % 64 == 63)
            CHECK_OK(two_wait(&ops[i], 20));
    }
    for (int i = 0; i < n; i++)
        CHECK_OK(two_wait(&ops[i], 60));
    TWO_UNTIL(n_server == n, 20);
    double up = test_now() - start;
    bool shared = !strcmp(transports, "shm"); /* then they have rings and a wire together */
    CHECK(!shared || two_fds() - fds < 40 + n / 100);
    size_t each = (mallinfo2().uordblks - heap) / (size_t)n / 2;
    for (int i = 0; i < n; i++) { /* every one of them works */
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        int got = 0;
        CHECK_OK(weft_msg_recv_any(two.server, &got, sizeof got, 7, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(eps[i], &i, sizeof i, 7, &send));
        CHECK_OK(two_wait(&recv, 10));
        CHECK_EQ(got, i);
    }
    double before = cpu();
    for (int k = 0; k < 10; k++) { /* idle, looked at now and then: heartbeats only */
        usleep(100000);
        for (int i = 0; i < 100; i++)
            two_drive();
    }
    double idle = cpu() - before;
    start = test_now();
    for (int i = 0; i < n; i++) {
        memset(&ops[i], 0, sizeof ops[i]);
        CHECK_OK(weft_ep_close(eps[i], &ops[i]));
    }
    for (int i = 0; i < n; i++)
        CHECK_OK(two_wait(&ops[i], 60));
    double down = test_now() - start;
    for (int i = 0; i < n; i++)
        CHECK_OK(weft_ep_close(server_eps[i], NULL));
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    TWO_UNTIL(!weft_runtime_get_stats(two.server, &s) && !s.endpoints, 20);
    printf("# %s: %d endpoints: %.0f us to open, %.0f us to close, %zu bytes of heap each, idle second %.0f ms of CPU\n",
           transports, n, up / n * 1e6, down / n * 1e6, each, idle * 1e3);
    CHECK(each < (shared ? 4096 : 32768));
    two_close();
    free(ops);
    free(eps);
    free(server_eps);
}

TEST(a_crowd_of_endpoints_over_shared_memory)
{
    crowd("shm", how_many(8));
}

TEST(a_crowd_of_endpoints_over_tcp)
{
    crowd("tcp", how_many(20) / 10);
}
