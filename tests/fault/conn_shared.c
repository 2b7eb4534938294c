/* Many endpoints to one process share rings and a wire: when that process is killed, or stopped, each of them learns it within
 * the bound, every operation ends, and those that reconnect find the one that comes after it.
 * ctest: timeout=120 */
#include <sys/prctl.h>
#include <sys/wait.h>

#include "ports.h"
#include "test.h"
#include <weft/weft.h>

enum { N = 60 };

/* A server in a process of its own that takes whatever comes, at a port that may be asked for; its uri. */
static pid_t server(const char *at, char *uri, size_t cap)
{
    int fds[2];
    CHECK(!pipe(fds));
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_runtime_t *rt;
        weft_listener_t *l;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        o.transports = "shm";
        CHECK_OK(weft_runtime_open(&o, &rt));
        weft_status_t st = weft_listen(rt, at, NULL, &l);
        for (int i = 0; st && i < 500; i++) { /* who had the port has just died */
            usleep(10000);
            st = weft_listen(rt, at, NULL, &l);
        }
        CHECK_OK(st);
        CHECK(write(fds[1], weft_listener_uri(l), strlen(weft_listener_uri(l)) + 1) > 0);
        for (;;) {
            weft_runtime_progress(rt);
            usleep(100);
        }
    }
    CHECK(pid > 0 && read(fds[0], uri, cap) > 0);
    close(fds[0]);
    close(fds[1]);
    return pid;
}

static int failed, closed;
static weft_on_failure_t answer;

static weft_on_failure_t on_failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep, (void)user;
    CHECK_EQ(why, WEFT_ERR_PEER);
    failed++;
    return answer;
}

static void on_closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep, (void)why, (void)user;
    closed++;
}

static weft_runtime_t *rt;
static weft_ep_t *eps[N];

static void open_all(const char *uri, uint64_t heartbeat)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_op_t ops[N] = {0};
    o.transports = "shm";
    o.heartbeat_ns = heartbeat;
    eo.hooks.failed = on_failed;
    eo.hooks.closed = on_closed;
    failed = closed = 0;
    CHECK_OK(weft_runtime_open(&o, &rt));
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_ep_open(rt, uri, &eo, &ops[i], &eps[i]));
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_op_wait(&ops[i], 20 * WEFT_SECOND));
}

static void all_end(double within)
{
    static weft_op_t recv[N], send[N];
    static char big[1 << 20], in[N];
    double start = test_now();
    for (int i = 0; i < N; i++) {
        memset(&recv[i], 0, sizeof recv[i]);
        memset(&send[i], 0, sizeof send[i]);
        CHECK_OK(weft_msg_recv(eps[i], &in[i], 1, 1, WEFT_TAG_FULL, &recv[i]));
        CHECK_OK(weft_msg_send(eps[i], big, sizeof big, 1, &send[i]));
    }
    for (int i = 0; i < N; i++) {
        CHECK_EQ(weft_op_wait(&recv[i], 20 * WEFT_SECOND), WEFT_ERR_PEER);
        CHECK_EQ(weft_op_wait(&send[i], 20 * WEFT_SECOND), WEFT_ERR_PEER);
    }
    printf("# all of %d knew it after %.0f ms\n", N, (test_now() - start) * 1e3);
    CHECK(test_now() - start < within);
}

TEST(the_death_of_a_process_is_that_of_all_its_endpoints)
{
    char uri[256];
    pid_t pid = server(ports_tcp(), uri, sizeof uri);
    answer = WEFT_GIVE_UP;
    open_all(uri, 0);
    kill(pid, SIGKILL);
    all_end(5);
    while (closed < N)
        weft_runtime_progress(rt);
    CHECK_EQ(failed, N);
    waitpid(pid, NULL, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(and_so_is_its_silence)
{
    char uri[256];
    pid_t pid = server(ports_tcp(), uri, sizeof uri);
    answer = WEFT_GIVE_UP;
    open_all(uri, WEFT_SECOND);
    kill(pid, SIGSTOP);
    all_end(10);
    while (closed < N)
        weft_runtime_progress(rt);
    CHECK_EQ(failed, N);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_OK(weft_runtime_close(rt));
}

/* The one that is closed first is the one whose wire it was. */
TEST(the_wire_stands_for_those_that_are_left)
{
    char uri[256];
    pid_t pid = server(ports_tcp(), uri, sizeof uri);
    answer = WEFT_GIVE_UP;
    open_all(uri, 0);
    for (int i = 0; i < N - 1; i++) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_ep_close(eps[i], &op));
        CHECK_OK(weft_op_wait(&op, 5 * WEFT_SECOND));
    }
    weft_op_t recv = WEFT_OP_INIT;
    char in;
    CHECK_OK(weft_msg_recv(eps[N - 1], &in, 1, 1, WEFT_TAG_FULL, &recv));
    (void)weft_op_wait(&recv, 100 * WEFT_MILLISECOND);
    CHECK(!weft_op_done(&recv));
    kill(pid, SIGKILL);
    CHECK_EQ(weft_op_wait(&recv, 5 * WEFT_SECOND), WEFT_ERR_PEER);
    while (!failed) /* behind the operations */
        weft_runtime_progress(rt);
    waitpid(pid, NULL, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(all_of_them_reconnect_to_the_process_that_comes_after_it)
{
    char uri[256], again[256];
    pid_t pid = server(ports_tcp(), uri, sizeof uri);
    answer = WEFT_RECONNECT;
    open_all(uri, 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    char *comma = strchr(uri, ',');
    if (comma)
        *comma = 0;
    pid = server(uri, again, sizeof again);
    double start = test_now();
    for (int i = 0; i < N; i++) {
        while (weft_ep_get_state(eps[i]) != WEFT_EP_UP || failed < N) {
            weft_runtime_progress(rt);
            CHECK(test_now() < start + 30);
        }
        weft_op_t send = WEFT_OP_INIT;
        CHECK_OK(weft_msg_send(eps[i], "x", 1, 1, &send));
        CHECK_OK(weft_op_wait(&send, 5 * WEFT_SECOND));
    }
    CHECK_EQ(failed, N);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_OK(weft_runtime_close(rt));
}
