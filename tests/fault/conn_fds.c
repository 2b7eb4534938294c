/* File descriptors run out: whoever needs one is told so, what was there goes on, and when there are some again all is well.
 *
 * ctest: tls */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "lib/raw.h"
#include "ports.h"
#include "test.h"

static int hoard[4096], n_hoard;

static void leave(int left)
{
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = 300;
    CHECK(!setrlimit(RLIMIT_NOFILE, &r));
    for (n_hoard = 0; n_hoard < 4096; n_hoard++) {
        hoard[n_hoard] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (hoard[n_hoard] < 0)
            break;
    }
    while (left-- && n_hoard)
        close(hoard[--n_hoard]);
}

static void give_back(void)
{
    while (n_hoard)
        close(hoard[--n_hoard]);
}

TEST(connects_and_listens_without_file_descriptors_fail_and_what_is_up_stays_up)
{
    static const char *transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++)
        for (int left = 0; left < 14; left++) {
            weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
            weft_runtime_t *rt;
            weft_listener_t *l, *more;
            weft_op_t op = WEFT_OP_INIT;
            weft_ep_t *good, *ep;
            weft_log_set_level(WEFT_LOG_NONE);
            o.transports = transports[t];
            o.connect_timeout_ns = 300 * WEFT_MILLISECOND;
            CHECK_OK(weft_runtime_open(&o, &rt));
            CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &l));
            CHECK_OK(weft_ep_open(rt, weft_listener_uri(l), NULL, &op, &good));
            CHECK_OK(weft_op_wait(&op, 5 * WEFT_SECOND));
            leave(left);
            weft_status_t st = weft_listen(rt, ports_tcp(), NULL, &more);
            CHECK(st == (left ? WEFT_OK : WEFT_ERR_LIMIT));
            if (!st)
                CHECK_OK(weft_listener_close(more, NULL));
            for (int i = 0; i < 3; i++) {
                CHECK_OK(weft_ep_open(rt, weft_listener_uri(l), NULL, &op, &ep));
                weft_op_wait(&op, 5 * WEFT_SECOND);
                CHECK(weft_op_done(&op));
                CHECK(left || op.status == WEFT_ERR_LIMIT);
                CHECK_OK(weft_ep_close(ep, NULL));
            }
            raw_run(rt, 0.01);
            CHECK_EQ(weft_ep_get_state(good), WEFT_EP_UP);
            give_back();
            raw_run(rt, 0.05);
            CHECK_OK(weft_ep_open(rt, weft_listener_uri(l), NULL, &op, &ep));
            CHECK_OK(weft_op_wait(&op, 5 * WEFT_SECOND));
            CHECK_OK(weft_runtime_close(rt));
        }
}

TEST(a_listener_out_of_descriptors_turns_callers_away_without_spinning)
{
    weft_runtime_t *rt;
    weft_listener_t *l;
    weft_log_set_level(WEFT_LOG_NONE);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &l));
    leave(1);
    int fd = raw_connect(weft_listener_port(l));
    char c;
    struct timespec ts;
    double end = test_now() + 1;
    while (recv(fd, &c, 1, MSG_DONTWAIT) < 0 && test_now() < end)
        weft_runtime_progress(rt);
    CHECK(test_now() < end); /* hung up on, not left hanging */
    close(fd);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    double before = (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
    weft_op_t timer = WEFT_OP_INIT;
    CHECK_OK(weft_timer_start(rt, 500 * WEFT_MILLISECOND, &timer));
    CHECK_OK(weft_op_wait(&timer, 5 * WEFT_SECOND)); /* sleeps in the kernel */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    CHECK((double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec - before < 0.1);
    give_back();
    CHECK_OK(weft_runtime_close(rt));
}
