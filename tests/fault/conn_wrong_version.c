/* A peer of another protocol version: both sides end with WEFT_ERR_VERSION, and a sentence with both ranges. */
#include "lib/raw.h"
#include "test.h"

static char warning[512];

static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level == WEFT_LOG_WARN)
        snprintf(warning, sizeof warning, "%s", line);
}

static void refused(uint16_t min, uint16_t max, const char *range)
{
    weft_runtime_t *rt;
    weft_listener_t *l;
    uint8_t buf[WEFTI_WIRE_MAX], hello[WEFTI_HELLO_MAX];
    wefti_refuse_t r;
    const char *what;
    weft_log_set_sink(sink, NULL);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &l));
    int fd = raw_connect(weft_listener_port(l));
    wefti_hello_t h = raw_hello();
    h.min_version = min;
    h.max_version = max;
    raw_send(fd, hello, wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, hello, sizeof hello));
    long n = raw_recv(fd, buf, sizeof buf, 2, rt);
    CHECK(n > 0);
    CHECK_OK(wefti_refuse_decode(buf, (size_t)n, WEFTI_SHAKE_REFUSE, &r, &what));
    CHECK_EQ(r.status, WEFT_ERR_VERSION);
    CHECK(strstr(r.text, "2 to 2") && strstr(r.text, range));
    CHECK(strstr(warning, "2 to 2") && strstr(warning, range));
    CHECK_EQ(raw_recv(fd, buf, sizeof buf, 2, rt), 0);
    weft_log_set_sink(NULL, NULL);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_dialler_of_a_later_version_is_refused_with_both_ranges)
{
    refused(7, 9, "7 to 9");
}

/* Version 1 offered shared memory to whoever claimed to be on this host, and greeted with tokens in the clear. */
TEST(a_dialler_of_the_first_version_is_refused_with_both_ranges)
{
    refused(1, 1, "1 to 1");
}

TEST(a_listener_of_another_version_ends_the_connect_with_that_status)
{
    for (int says_so = 0; says_so < 2; says_so++) { /* by a refusal, or only by its own hello */
        weft_runtime_t *rt;
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        char uri[64];
        uint16_t port;
        uint8_t buf[WEFTI_WIRE_MAX], answer[WEFTI_HELLO_MAX];
        int l = raw_listen(&port);
        snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", port);
        weft_log_set_sink(sink, NULL);
        CHECK_OK(weft_runtime_open(NULL, &rt));
        CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
        raw_run(rt, 0.02);
        int fd = raw_accept(l);
        CHECK(raw_recv(fd, buf, sizeof buf, 2, rt) > 0);
        CHECK_EQ(buf[0], WEFTI_SHAKE_HELLO);
        wefti_hello_t h = raw_hello();
        h.min_version = h.max_version = 3;
        size_t n = says_so ? wefti_refuse_encode(0, WEFT_ERR_VERSION, "3 to 3 here", answer, sizeof answer)
                           : wefti_hello_encode(&h, WEFTI_SHAKE_WELCOME, answer, sizeof answer);
        raw_send(fd, answer, n);
        CHECK_EQ(weft_op_wait(&op, 5 * WEFT_SECOND), WEFT_ERR_VERSION);
        CHECK(strstr(warning, "3 to 3"));
        weft_log_set_sink(NULL, NULL);
        close(fd);
        close(l);
        CHECK_OK(weft_runtime_close(rt));
    }
}
