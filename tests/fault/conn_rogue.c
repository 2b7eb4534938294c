/* A listener that is none of ours: it hands a caller its own words back, names descriptors of the caller's, or answers twice.
 * The caller is not connected, to itself least of all, and opens nothing; and one that calls itself is. */
#include <fcntl.h>
#include <sys/socket.h>

#include "lib/raw.h"
#include "test.h"

enum { SHM = 1 };

static weft_runtime_t *rt;
static int listener, wire;
static char uri[64];
static weft_ep_t *ep;
static weft_op_t op;
static wefti_hello_t hello; /* the caller's */

/* Somebody calls us. */
static void called(const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    uint16_t port;
    uint8_t buf[WEFTI_WIRE_MAX];
    const char *what;
    weft_log_set_level(WEFT_LOG_NONE);
    listener = raw_listen(&port);
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", port);
    o.transports = transports;
    o.connect_timeout_ns = 2 * WEFT_SECOND;
    CHECK_OK(weft_runtime_open(&o, &rt));
    op = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    raw_run(rt, 0.02);
    wire = raw_accept(listener);
    long n = raw_recv(wire, buf, sizeof buf, 20, rt);
    CHECK(n > 0);
    CHECK_OK(wefti_hello_decode(buf, (size_t)n, WEFTI_SHAKE_HELLO, &hello, &what));
}

static void welcome(const wefti_hello_t *h)
{
    uint8_t buf[WEFTI_HELLO_MAX];
    raw_send(wire, buf, wefti_hello_encode(h, WEFTI_SHAKE_WELCOME, buf, sizeof buf));
}

/* The next join: its attempt and kind, and the address. False: there is none. */
static bool next_join(wefti_lane_msg_t *j, uint8_t *buf)
{
    const char *what;
    long n = raw_recv(wire, buf, WEFTI_WIRE_MAX, 10, rt);
    return n > 0 && !wefti_lane_msg_decode(buf, (size_t)n, WEFTI_SHAKE_JOIN, j, &what);
}

static void lane(uint8_t attempt, const void *addr, size_t n)
{
    static uint8_t buf[WEFTI_WIRE_MAX];
    wefti_lane_msg_t l = {.type = WEFTI_SHAKE_LANE, .attempt = attempt, .id = UINT64_C(1) << 32 | 1, .addr = addr, .addr_len = n};
    raw_send(wire, buf, wefti_lane_msg_encode(&l, buf, sizeof buf));
}

static weft_runtime_t *honest; /* borrow_caps(); NULL: nothing was borrowed */

static void nothing_came_of_it(void)
{
    double end = test_now() + 60;
    while (!weft_op_done(&op) && test_now() < end)
        weft_runtime_progress(rt);
    CHECK(weft_op_done(&op) && op.status != WEFT_OK);
    CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
    close(wire);
    close(listener);
    CHECK_OK(weft_runtime_close(rt));
    if (honest)
        CHECK_OK(weft_runtime_close(honest));
    honest = NULL;
}

/* What an honest listener of this host says to a caller with these transports: the rogue has asked one. */
static void borrow_caps(wefti_hello_t *h)
{
    weft_listener_t *l;
    wefti_hello_t w;
    uint8_t buf[WEFTI_WIRE_MAX], bytes[WEFTI_HELLO_MAX];
    const char *what;
    CHECK_OK(weft_runtime_open(NULL, &honest));
    CHECK_OK(weft_listen(honest, "tcp://127.0.0.1:0", NULL, &l));
    int fd = raw_connect(weft_listener_port(l));
    raw_send(fd, bytes, wefti_hello_encode(h, WEFTI_SHAKE_HELLO, bytes, sizeof bytes));
    long n = raw_recv(fd, buf, sizeof buf, 20, honest);
    CHECK(n > 0);
    CHECK_OK(wefti_hello_decode(buf, (size_t)n, WEFTI_SHAKE_WELCOME, &w, &what));
    memcpy(h->transports, w.transports, sizeof h->transports);
    h->n_transports = w.n_transports;
    close(fd); /* and the runtime stays, so that its door does */
}

/* --- its own words -------------------------------------------------------------------------------------------------------- */

TEST(a_caller_that_is_handed_its_own_address_is_not_connected_to_itself)
{
    static const char *const transports[] = {"shm", "tcp", "all"};
    for (int t = 0; t < 3; t++) {
        for (int what = 0; what < 4; what++) {
            static uint8_t buf[WEFTI_WIRE_MAX];
            wefti_lane_msg_t j;
            unsigned shm_joins = 0;
            called(transports[t]);
            if (what >= 1)
                memset(hello.uuid, 1, sizeof hello.uuid);
            if (what == 2)
                memset(hello.nonce, 1, sizeof hello.nonce);
            if (what == 3)
                borrow_caps(&hello);
            welcome(&hello); /* as one of the same host, who has the same transports */
            while (next_join(&j, buf)) {
                shm_joins += j.kind == SHM;
                lane(j.attempt, j.addr, j.addr_len);
            }
            CHECK(what != 3 || t == 1 || shm_joins == 1); /* it was believed so far */
            nothing_came_of_it();
        }
    }
}

/* Two calls of one runtime, joined to each other by whom it called. */
TEST(two_calls_of_one_caller_cannot_be_joined_to_each_other)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        static uint8_t buf[2][WEFTI_WIRE_MAX];
        weft_op_t second = WEFT_OP_INIT;
        weft_ep_t *other;
        wefti_lane_msg_t j[2];
        int wires[2];
        called(transports[t]);
        memset(hello.uuid, 1, sizeof hello.uuid);
        welcome(&hello);
        bool joins = next_join(&j[0], buf[0]);
        wires[0] = wire;
        CHECK_OK(weft_ep_open(rt, uri, NULL, &second, &other));
        raw_run(rt, 0.02);
        wires[1] = wire = raw_accept(listener);
        CHECK(raw_recv(wire, buf[1], WEFTI_WIRE_MAX, 20, rt) > 0);
        welcome(&hello);
        joins = next_join(&j[1], buf[1]) && joins;
        for (int i = 0; i < 2 && joins; i++) {
            wire = wires[i];
            lane(j[i].attempt, j[!i].addr, j[!i].addr_len);
        }
        double end = test_now() + 60;
        while (!(weft_op_done(&op) && weft_op_done(&second)) && test_now() < end)
            weft_runtime_progress(rt);
        CHECK(weft_op_done(&second) && second.status != WEFT_OK);
        wire = wires[0];
        nothing_came_of_it();
        close(wires[1]);
    }
}

TEST(a_runtime_that_calls_itself_is_connected_whatever_lies_between)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_listener_t *l;
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        o.transports = transports[t];
        CHECK_OK(weft_runtime_open(&o, &rt));
        CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &l));
        for (int relayed = 0; relayed < 2; relayed++) {
            int ends[2] = {-1, -1};
            uint16_t port = weft_listener_port(l);
            listener = relayed ? raw_listen(&port) : -1;
            snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", port);
            op = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
            if (relayed) {
                raw_run(rt, 0.02);
                ends[0] = raw_accept(listener);
                ends[1] = raw_connect(weft_listener_port(l));
            }
            for (double end = test_now() + 60; !weft_op_done(&op) && test_now() < end;) {
                uint8_t buf[4096];
                weft_runtime_progress(rt);
                for (int i = 0; relayed && i < 2; i++) {
                    ssize_t n = recv(ends[i], buf, sizeof buf, MSG_DONTWAIT);
                    if (n > 0)
                        CHECK_EQ(send(ends[!i], buf, (size_t)n, MSG_NOSIGNAL), n);
                }
            }
            CHECK_OK(op.status);
            CHECK_OK(weft_ep_get_info(ep, &info));
            CHECK_STR(info.transport, transports[t]);
        }
        CHECK_OK(weft_runtime_close(rt));
    }
}

/* --- the caller's descriptors --------------------------------------------------------------------------------------------- */

TEST(a_caller_opens_no_file_that_a_listener_names)
{
    char path[] = "/tmp/weft-locked-XXXXXX";
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = mkstemp(path), status;
    CHECK(fd >= 0 && !unlink(path) && !ftruncate(fd, 1 << 20) && !fcntl(fd, F_SETLK, &lock));
    for (int version = 1; version <= 2; version++) {
        static uint8_t buf[WEFTI_WIRE_MAX], addr[256];
        wefti_lane_msg_t j;
        called("shm");
        memset(hello.uuid, 1, sizeof hello.uuid);
        if (version == 2) { /* a door, which is that file */
            wefti_hello_transport_t *shm = &hello.transports[0];
            uint32_t where[4] = {(uint32_t)getpid(), (uint32_t)fd, 0, 0};
            memcpy(shm->caps + shm->caps_len, where, sizeof where);
            shm->caps_len = (uint8_t)(shm->caps_len + sizeof where);
        }
        welcome(&hello);
        if (next_join(&j, buf)) { /* as its bell, its pipe and its ring */
            uint32_t words[4] = {(uint32_t)version, (uint32_t)getpid(), (uint32_t)fd, (uint32_t)fd};
            CHECK(j.addr_len < sizeof addr);
            memcpy(addr, j.addr, j.addr_len);
            memcpy(addr, words, sizeof words);
            lane(j.attempt, addr, j.addr_len);
        }
        nothing_came_of_it();
        fflush(NULL);
        pid_t pid = fork();
        if (!pid)
            _exit(fcntl(fd, F_GETLK, &lock) || lock.l_type == F_UNLCK);
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        if (WEXITSTATUS(status))
            FAIL("version %d: the lock is gone", version);
    }
}

/* --- two answers ---------------------------------------------------------------------------------------------------------- */

TEST(a_listener_that_answers_one_join_twice_is_given_up)
{
    static uint8_t buf[WEFTI_WIRE_MAX];
    uint8_t addr[32 + 18] = {1, 0, 0, 0, 1};
    wefti_lane_msg_t j;
    called("tcp");
    memset(hello.uuid, 1, sizeof hello.uuid);
    welcome(&hello);
    CHECK(next_join(&j, buf));
    memset(addr + 16, 0xff, 16); /* it leads, and calls nobody */
    memset(addr + 32 + 10, 0xff, 2);
    memcpy(addr + 32 + 12, "\x7f\x00\x00\x01\x01\x00", 6);
    lane(j.attempt, addr, sizeof addr);
    lane(j.attempt, addr, sizeof addr);
    CHECK(!next_join(&j, buf)); /* no other try: it is told, and hung up on */
    nothing_came_of_it();
    CHECK_EQ(op.status, WEFT_ERR_PROTOCOL);
}
