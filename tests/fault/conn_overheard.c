/* Whoever overhears a hello between two that have a key, every byte of it, and can call their ports: none of the connections of
 * their lane becomes his, neither by what he can make of it nor by what was said before. The two notice nothing. */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "lib/raw.h"
#include "test.h"

enum { BIG = 1 << 20, ADDRESS = 32 };

static weft_runtime_t *server, *client;
static weft_listener_t *l;
static weft_ep_t *ends[2]; /* the client's, the server's */

/* One who carries the bytes of the wire, and keeps them. */
static int wires[2], n_said[2];
static uint8_t said[2][65536];

static void carry(void)
{
    for (int i = 0; i < 2; i++) {
        uint8_t *at = said[i] + n_said[i];
        ssize_t n = recv(wires[i], at, sizeof said[i] - (size_t)n_said[i], MSG_DONTWAIT);
        if (n <= 0)
            continue;
        n_said[i] += (int)n;
        CHECK_EQ(send(wires[!i], at, (size_t)n, MSG_NOSIGNAL), n);
    }
}

static void drive(void)
{
    weft_runtime_progress(server);
    weft_runtime_progress(client);
    carry();
}

static void until_done(weft_op_t *op)
{
    for (double end = test_now() + 60; !weft_op_done(op);) {
        drive();
        CHECK(test_now() < end);
    }
    CHECK_OK(op->status);
}

static void accepted(weft_listener_t *at, weft_ep_t *ep, void *user)
{
    (void)at, (void)user;
    ends[1] = ep;
}

static void meet(void)
{
    static const char key[] = "what nobody overhears";
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    char uri[64];
    uint16_t port;
    int listener = raw_listen(&port);
    o.key = key;
    o.key_len = sizeof key - 1;
    o.transports = "tcp";
    lo.accept = accepted;
    CHECK_OK(weft_runtime_open(&o, &server));
    CHECK_OK(weft_runtime_open(&o, &client));
    CHECK_OK(weft_listen(server, "tcp://127.0.0.1:0", &lo, &l));
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", port);
    CHECK_OK(weft_ep_open(client, uri, NULL, &op, &ends[0]));
    raw_run(client, 0.02);
    wires[0] = raw_accept(listener);
    wires[1] = raw_connect(weft_listener_port(l));
    until_done(&op);
    for (double end = test_now() + 60; !ends[1];) {
        drive();
        CHECK(test_now() < end);
    }
    close(listener);
}

/* The lane's address in what a side has said: the JOIN of one, the LANE of the other. */
static const uint8_t *overheard_address(int side)
{
    uint8_t type = side ? WEFTI_SHAKE_LANE : WEFTI_SHAKE_JOIN;
    for (int at = 0; at + 8 < n_said[side];) {
        uint32_t n;
        memcpy(&n, said[side] + at + 4, 4);
        if (said[side][at + 8] == type)
            return said[side] + at + 8 + (side ? WEFTI_LANE_HEAD : WEFTI_JOIN_HEAD);
        at += 8 + (int)n;
    }
    FAIL("no address was overheard");
}

/* --- who overheard it ----------------------------------------------------------------------------------------------------- */

static int call(const uint8_t *addr)
{
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};
    struct sockaddr_in a4 = {.sin_family = AF_INET};
    uint16_t port;
    memcpy(&a6.sin6_addr, addr + ADDRESS, 16);
    memcpy(&port, addr + ADDRESS + 16, 2);
    a6.sin6_port = a4.sin_port = htons(port);
    memcpy(&a4.sin_addr, addr + ADDRESS + 12, 4);
    bool v4 = IN6_IS_ADDR_V4MAPPED(&a6.sin6_addr);
    int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(!connect(fd, v4 ? (void *)&a4 : (void *)&a6, v4 ? sizeof a4 : sizeof a6));
    return fd;
}

/* The greeting that version 1 had: both tokens, which were in the hello. */
static size_t tokens(uint8_t *out, const char *magic, const uint8_t *to, const uint8_t *from)
{
    memcpy(out, magic, 8);
    memcpy(out + 8, to + 8, 8 + 16);
    memcpy(out + 32, from + 16, 16);
    return 48;
}

/* The one of version 2, without its MAC: zeroes, or other bytes that were overheard. */
static size_t unsigned_greeting(uint8_t *out, const char *magic, const uint8_t *to, const uint8_t *from)
{
    memset(out, 0, 64);
    memcpy(out, magic, 8);
    memcpy(out + 8, to + 8, 8);
    memcpy(out + 16, from + 16, 16);
    memcpy(out + 32, to + 16, 16);
    memcpy(out + 48, from + 16, 16);
    return 64;
}

/* It says so, and is answered nothing: not even when a payload is to go over a second connection. */
static void gets_nowhere(const uint8_t *to, const uint8_t *from, int way)
{
    static const char *const magics[] = {"WFTLANE1", "WFTBULK1", "WFTLANE2", "WFTBULK2"};
    uint8_t out[64], in[4096];
    size_t got = 0, n = way < 2 ? tokens(out, magics[way], to, from) : unsigned_greeting(out, magics[way], to, from);
    int fd = call(to);
    CHECK_EQ(send(fd, out, n, MSG_NOSIGNAL), n);
    if (way < 2)
        shutdown(fd, SHUT_WR); /* it has nothing more to say */
    for (double end = test_now() + 60;;) {
        drive();
        ssize_t more = recv(fd, in + got, sizeof in - got, MSG_DONTWAIT);
        if (more == 0 || (more < 0 && errno != EAGAIN))
            break;
        got += more > 0 ? (size_t)more : 0;
        if (got > 24)
            FAIL("way %d: it was answered %.8s", way, (const char *)in);
        if (got >= 8 && !memcmp(in, "WFTOKAY", 7))
            FAIL("way %d: it was taken for the peer", way);
        CHECK(test_now() < end);
    }
    close(fd);
}

static void payload(weft_ep_t *from, weft_ep_t *to, uint8_t fill)
{
    static uint8_t src[BIG], dst[BIG];
    weft_op_t send_op = WEFT_OP_INIT, recv_op = WEFT_OP_INIT;
    memset(src, fill, BIG);
    memset(dst, 0, BIG);
    CHECK_OK(weft_msg_recv(to, dst, BIG, 1, WEFT_TAG_FULL, &recv_op));
    CHECK_OK(weft_msg_send(from, src, BIG, 1, &send_op));
    until_done(&recv_op);
    until_done(&send_op);
    CHECK(!memcmp(src, dst, BIG));
}

TEST(what_was_overheard_opens_no_connection_of_the_lane)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    meet();
    const uint8_t *addr[2] = {overheard_address(0), overheard_address(1)};
    for (int round = 0; round < 2; round++) { /* before there is a second connection, and when there is one */
        for (int way = 0; way < 4; way++) {
            gets_nowhere(addr[0], addr[1], way);
            gets_nowhere(addr[1], addr[0], way);
        }
        payload(ends[0], ends[1], (uint8_t)(round + 1));
        payload(ends[1], ends[0], (uint8_t)(round + 11));
    }
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}
