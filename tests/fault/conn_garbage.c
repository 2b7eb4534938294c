/* Garbage at the listening port, at every stage of the protocol: it ends the connection it came by and nothing else. Beside it
 * a good connection lives and works all the time. */
#include <sys/socket.h>

#include "base/rng.h"
#include "lib/raw.h"
#include "test.h"

static weft_runtime_t *rt;
static weft_listener_t *l;
static weft_ep_t *good[2];
static int n_accept, n_failed;

static void accepted(weft_listener_t *at, weft_ep_t *ep, void *user)
{
    (void)at, (void)user;
    good[1] = ep;
    n_accept++;
}

static weft_on_failure_t failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep, (void)why, (void)user;
    n_failed++;
    return WEFT_RECONNECT;
}

static void start(void)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {failed, NULL, NULL};
    weft_op_t op = WEFT_OP_INIT;
    n_accept = n_failed = 0;
    weft_log_set_level(WEFT_LOG_ERROR);
    o.connect_timeout_ns = 300 * WEFT_MILLISECOND;
    CHECK_OK(weft_runtime_open(&o, &rt));
    lo.accept = accepted;
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", &lo, &l));
    CHECK_OK(weft_ep_open(rt, weft_listener_uri(l), NULL, &op, &good[0]));
    CHECK_OK(weft_op_wait(&op, 5 * WEFT_SECOND));
    raw_run(rt, 0.01);
    CHECK_EQ(n_accept, 1);
}

static void still_good(void)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char got[8];
    CHECK_OK(weft_msg_recv(good[1], got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(good[0], "good", 5, 1, &send));
    CHECK_OK(weft_op_wait(&recv, 5 * WEFT_SECOND));
    CHECK_EQ(n_failed, 0);
}

static void finish(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    still_good();
    raw_run(rt, 0.4); /* past the timeout of the hello */
    weft_runtime_get_stats(rt, &s);
    CHECK_EQ(s.endpoints, 2);
    CHECK_EQ(n_accept, 1);
    CHECK_OK(weft_runtime_close(rt));
}

static bool hung_up(int fd)
{
    uint8_t buf[WEFTI_WIRE_MAX];
    long n = raw_recv(fd, buf, sizeof buf, 2, rt);
    if (n > 0) {
        CHECK_EQ(buf[0], WEFTI_SHAKE_REFUSE);
        n = raw_recv(fd, buf, sizeof buf, 2, rt);
    }
    return n == 0;
}

TEST(bytes_that_are_no_frames)
{
    static const char *texts[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "SSH-2.0-x\r\n",
                                  "WFT2xxxxxxxx", "\0\0\0\0\0\0\0\0\0"};
    start();
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
        int fd = raw_connect(weft_listener_port(l));
        CHECK(send(fd, texts[i], 9, MSG_NOSIGNAL) > 0);
        CHECK(hung_up(fd));
        close(fd);
        still_good();
    }
    wefti_rng_t rng = {7};
    for (int i = 0; i < 200; i++) {
        uint8_t noise[512];
        for (unsigned k = 0; k < sizeof noise; k++)
            noise[k] = (uint8_t)wefti_rng_next(&rng);
        int fd = raw_connect(weft_listener_port(l));
        CHECK(send(fd, noise, 1 + wefti_rng_below(&rng, sizeof noise), MSG_NOSIGNAL) > 0);
        close(fd);
        weft_runtime_progress(rt);
    }
    finish();
}

TEST(frames_that_are_no_hello)
{
    wefti_rng_t rng = {11};
    uint8_t hello[WEFTI_HELLO_MAX], copy[WEFTI_HELLO_MAX];
    start();
    wefti_hello_t h = raw_hello();
    size_t n = wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, hello, sizeof hello);
    for (int i = 0; i < 300; i++) {
        memcpy(copy, hello, n);
        size_t len = i % 3 == 0 ? wefti_rng_below(&rng, n) : n;
        if (i % 3)
            for (int k = 0; k < 3; k++)
                copy[wefti_rng_below(&rng, n)] = (uint8_t)wefti_rng_next(&rng);
        int fd = raw_connect(weft_listener_port(l));
        raw_send(fd, copy, len);
        for (int k = 0; k < 5; k++)
            weft_runtime_progress(rt);
        close(fd);
    }
    finish();
}

TEST(a_frame_longer_than_any_may_be_is_not_waited_for)
{
    uint32_t head[2] = {0x31544657u, 0x7fffffff};
    start();
    int fd = raw_connect(weft_listener_port(l));
    CHECK(send(fd, head, sizeof head, MSG_NOSIGNAL) > 0);
    CHECK(hung_up(fd));
    finish();
}

TEST(someone_who_sends_a_byte_now_and_then_is_dropped_at_the_timeout)
{
    start();
    int fd = raw_connect(weft_listener_port(l));
    double begin = test_now();
    uint8_t c;
    for (int i = 0; test_now() - begin < 2; i++) {
        if (i < 60) /* the beginning of a good frame, one byte at a time */
            CHECK(send(fd, i < 8 ? &"WFT1\x40\0\0\0"[i] : "x", 1, MSG_NOSIGNAL) == 1 || i > 10);
        raw_run(rt, 0.02);
        ssize_t got = recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK);
        if (got >= 0)
            break;
    }
    CHECK(test_now() - begin > 0.25 && test_now() - begin < 1.5);
    close(fd);
    finish();
}

/* Say hello properly; then `join` decides. */
static int greet(wefti_hello_t *h, wefti_hello_t *welcome)
{
    uint8_t buf[WEFTI_WIRE_MAX], hello[WEFTI_HELLO_MAX];
    const char *what;
    int fd = raw_connect(weft_listener_port(l));
    raw_send(fd, hello, wefti_hello_encode(h, WEFTI_SHAKE_HELLO, hello, sizeof hello));
    long n = raw_recv(fd, buf, sizeof buf, 2, rt);
    CHECK(n > 0);
    CHECK_OK(wefti_hello_decode(buf, (size_t)n, WEFTI_SHAKE_WELCOME, welcome, &what));
    return fd;
}

TEST(joins_with_nonsense_for_an_address_or_a_transport)
{
    wefti_rng_t rng = {13};
    start();
    for (int i = 0; i < 60; i++) {
        wefti_hello_t h = raw_hello(), w;
        uint8_t addr[512], buf[WEFTI_WIRE_MAX];
        for (unsigned k = 0; k < sizeof addr; k++)
            addr[k] = (uint8_t)wefti_rng_next(&rng);
        int probe = greet(&h, &w); /* to know its caps */
        close(probe);
        h.n_transports = w.n_transports;
        memcpy(h.transports, w.transports, sizeof h.transports); /* a peer of the same host, to all appearances */
        int fd = greet(&h, &w);
        wefti_lane_msg_t j = {.type = WEFTI_SHAKE_JOIN,
                              .attempt = 1,
                              .kind = (uint8_t)(i % 4),
                              .addr = addr,
                              .addr_len = wefti_rng_below(&rng, sizeof addr)};
        raw_send(fd, buf, wefti_lane_msg_encode(&j, buf, sizeof buf));
        long n = raw_recv(fd, buf, sizeof buf, 1, rt);
        CHECK(n <= 0 || buf[0] == WEFTI_SHAKE_RETRY || buf[0] == WEFTI_SHAKE_REFUSE || buf[0] == WEFTI_SHAKE_LANE);
        if (i % 2) { /* out of turn: the same attempt again */
            raw_send(fd, buf, wefti_lane_msg_encode(&j, buf, sizeof buf));
            raw_run(rt, 0.002);
        }
        close(fd);
        raw_run(rt, 0.002);
        still_good();
    }
    finish();
}

TEST(a_stranger_who_asks_for_someone_elses_endpoint_does_not_get_it)
{
    start();
    for (int guess = 0; guess < 10; guess++) {
        wefti_hello_t h = raw_hello(), w;
        uint8_t buf[256], addr[16] = {0};
        h.flags = WEFTI_HELLO_RESUME;
        h.resume_id = weft_ep_id(good[1]);
        memset(h.cookie, guess, sizeof h.cookie);
        h.n_transports = 1;
        h.transports[0].kind = 1;
        int fd = greet(&h, &w);
        wefti_lane_msg_t j = {.type = WEFTI_SHAKE_JOIN, .attempt = 1, .kind = 1, .addr = addr, .addr_len = sizeof addr};
        raw_send(fd, buf, wefti_lane_msg_encode(&j, buf, sizeof buf));
        raw_run(rt, 0.01);
        CHECK_EQ(weft_ep_get_state(good[1]), WEFT_EP_UP);
        close(fd);
    }
    finish();
}

TEST(bytes_on_a_wire_that_should_be_silent_fail_that_connection_only)
{
    static const char *words[] = {"GET", "WFT1\4\0\0\0xxxx"};
    for (int i = 0; i < 2; i++) {
        start();
        int sent = 0;
        for (int fd = 3; fd < 256 && !sent; fd++) { /* our own end of the good connection's wire */
            struct sockaddr_storage a;
            socklen_t len = sizeof a;
            if (!getpeername(fd, (struct sockaddr *)&a, &len) && a.ss_family == AF_INET)
                sent = send(fd, words[i], i ? 12 : 3, MSG_NOSIGNAL) > 0 && send(fd, "GARBAGE!", 8, MSG_NOSIGNAL) > 0;
        }
        CHECK(sent);
        for (double end = test_now() + 2; !n_failed && test_now() < end;)
            weft_runtime_progress(rt);
        CHECK(n_failed >= 1 || weft_ep_get_state(good[0]) == WEFT_EP_FAILED);
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        CHECK_OK(weft_ep_open(rt, weft_listener_uri(l), NULL, &op, &ep));
        CHECK_OK(weft_op_wait(&op, 5 * WEFT_SECOND));
        CHECK_OK(weft_runtime_close(rt));
    }
}
