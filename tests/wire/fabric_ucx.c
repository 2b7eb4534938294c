/* tests/wire/fabric_ucx.c - what only the ucx transport has: tokens, payloads past 4 GiB, many lanes between two workers,
 * sleeping on UCX's descriptor, and leaving the process's signals alone. fabric_lanes.c has what it shares with the other
 * transports. */
#define TEST_SECONDS 120
#include "test.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "lanes.h"

static void borrow(lanes_side_t *s, const lanes_side_t *owner)
{
    memset(s, 0, sizeof *s);
    s->fabric = owner->fabric;
    s->transport = owner->transport;
    s->in_progress = true;
}

TEST(frames_with_a_token_that_is_not_the_lanes_are_dropped)
{
    lanes_t l;
    static lanes_side_t spoof, other;
    uint8_t addr[WEFTI_LANE_ADDR_MAX];
    lanes_open(&l, "ucx");
    lanes_send(&l, &l.a, "one", 3);
    LANES_UNTIL(&l, l.b.records == 1);
    /* a second lane of a's worker, aimed at b's with each bit of the token wrong in turn */
    for (int bit = 0; bit < 64; bit += 9) {
        borrow(&spoof, &l.a);
        borrow(&other, &l.b);
        lanes_new(&spoof, &other);
        memcpy(addr, l.b.addr, l.b.addr_n);
        addr[12 + bit / 8] ^= (uint8_t)(1u << bit % 8);
        lanes_side_connect(&spoof, addr, l.b.addr_n);
        lanes_side_connect(&other, spoof.addr, spoof.addr_n);
        for (int i = 0; i < 20; i++) {
            lanes_try_send(&spoof, "liar", 4);
            lanes_progress(&l);
        }
        double end = test_now() + 0.05;
        while (test_now() < end)
            lanes_progress(&l);
        spoof.lane->ops->lane_close(spoof.lane);
        other.lane->ops->lane_close(other.lane);
        LANES_UNTIL(&l, spoof.closed && other.closed);
        CHECK_EQ(other.records, 0);
    }
    CHECK_EQ(l.b.records, 1);
    CHECK_EQ(l.b.failed, 0);
    lanes_send(&l, &l.a, "two", 3);
    LANES_UNTIL(&l, l.b.records == 2);
    lanes_close(&l);
}

TEST(a_payload_past_4_gib_arrives)
{
    enum { PIECE = 64 << 20, PIECES = 66 };
    lanes_t l;
    lanes_xfer_t out, in;
    weft_iov_t from[PIECES], to[PIECES];
    uint64_t total = (uint64_t)PIECE * PIECES;
    /* the same memory again and again: it is the lengths that are on trial */
    uint8_t *src = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *dst = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(src, 0x5a, PIECE);
    for (int i = 0; i < PIECES; i++) {
        from[i] = (weft_iov_t){src, PIECE};
        to[i] = (weft_iov_t){dst, PIECE};
    }
    lanes_open(&l, "ucx");
    lanes_xfer_init(&out);
    lanes_xfer_init(&in);
    LANES_UNTIL(&l, l.a.lane->ops->announce(l.a.lane, "g", 1, from, PIECES, total, &out.x) == WEFT_OK);
    LANES_UNTIL(&l, l.b.announced == 1);
    CHECK_EQ(l.b.offers[0].total, total);
    wefti_pull_t *p = l.b.offers[0].p;
    l.b.offers[0].p = NULL;
    CHECK_OK(p->ops->pull(p, to, PIECES, total, &in.x));
    double end = test_now() + 100;
    while (!(in.done && out.done) && test_now() < end)
        lanes_progress(&l);
    CHECK_EQ(in.done + out.done, 2);
    CHECK_EQ(in.status, WEFT_OK);
    CHECK_EQ(out.status, WEFT_OK);
    CHECK(!memcmp(src, dst, PIECE));
    lanes_close(&l);
}

TEST(records_pass_while_a_large_payload_is_on_its_way)
{
    enum { N = 256 << 20 };
    lanes_t l;
    lanes_xfer_t out, in;
    uint8_t *src = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *dst = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    weft_iov_t iov = {src, N};
    lanes_open(&l, "ucx");
    lanes_xfer_init(&out);
    LANES_UNTIL(&l, l.a.lane->ops->announce(l.a.lane, "g", 1, &iov, 1, N, &out.x) == WEFT_OK);
    LANES_UNTIL(&l, l.b.announced == 1);
    lanes_pull(&l.b, 0, dst, N, &in);
    for (unsigned i = 0; i < 20; i++) {
        lanes_send(&l, &l.a, "quick", 5);
        LANES_UNTIL(&l, l.b.records == i + 1);
    }
    CHECK_EQ(in.done, 0);
    LANES_UNTIL(&l, in.done && out.done);
    CHECK_EQ(in.status, WEFT_OK);
    lanes_close(&l);
}

TEST(two_hundred_lanes_between_two_workers_all_work)
{
    enum { N = 200 };
    lanes_t l;
    static lanes_side_t a[N], b[N];
    lanes_open(&l, "ucx");
    for (int i = 0; i < N; i++) {
        borrow(&a[i], &l.a);
        borrow(&b[i], &l.b);
        lanes_new(&a[i], &b[i]);
    }
    for (int i = 0; i < N; i++) {
        lanes_side_connect(&a[i], b[i].addr, b[i].addr_n);
        lanes_side_connect(&b[(i * 7 + 3) % N], a[(i * 7 + 3) % N].addr, a[(i * 7 + 3) % N].addr_n);
        lanes_progress(&l);
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N; i++) {
            LANES_UNTIL(&l, lanes_try_send(&a[i], &i, sizeof i));
            LANES_UNTIL(&l, lanes_try_send(&b[i], &i, sizeof i));
        }
    }
    for (int i = 0; i < N; i++) {
        LANES_UNTIL(&l, a[i].records == 5 && b[i].records == 5);
        CHECK(!memcmp(a[i].last, &i, sizeof i) && !memcmp(b[i].last, &i, sizeof i));
        CHECK_EQ(a[i].failed + b[i].failed, 0);
    }
    for (int i = 0; i < N; i++) {
        a[i].lane->ops->lane_close(a[i].lane);
        b[i].lane->ops->lane_close(b[i].lane);
    }
    for (int i = 0; i < N; i++)
        LANES_UNTIL(&l, a[i].closed && b[i].closed);
    CHECK_EQ(l.a.failed + l.b.failed, 0);
    lanes_close(&l);
}

TEST(a_record_ends_a_sleep)
{
    lanes_t l;
    lanes_open(&l, "ucx");
    lanes_send(&l, &l.a, "first", 5);
    LANES_UNTIL(&l, l.b.records == 1);
    for (uint64_t i = 0; i < 200; i++) {
        wefti_fabric_t *f = l.b.fabric;
        double end = test_now() + 5;
        while (f->ops->arm(f) == WEFT_ERR_AGAIN && test_now() < end)
            lanes_side_progress(&l.b);
        struct pollfd p = {.fd = f->ops->event_fd(f), .events = POLLIN};
        lanes_side_progress(&l.a);
        CHECK(lanes_try_send(&l.a, &i, sizeof i));
        CHECK_EQ(poll(&p, 1, 5000), 1);
        f->ops->disarm(f);
        LANES_SIDE_UNTIL(&l.b, l.b.records == i + 2);
    }
    lanes_close(&l);
}

TEST(a_killed_peer_is_noticed_without_a_word_from_us)
{
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    pid_t pid = fork();
    lanes_side_t s;
    lanes_side_open(&s, "ucx", NULL);
    lanes_side_meet(&s, fds[pid == 0]);
    LANES_SIDE_UNTIL(&s, lanes_try_send(&s, "hello", 5));
    LANES_SIDE_UNTIL(&s, s.records == 1);
    if (!pid) {
        for (;;)
            lanes_side_progress(&s);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    LANES_SIDE_UNTIL(&s, s.failed);
    CHECK_EQ(s.why, WEFT_ERR_PEER);
    lanes_side_close(&s);
}

TEST(loading_ucx_leaves_the_signals_alone)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP};
    lanes_t l;
    if (getenv("UCX_ERROR_SIGNALS") || getenv("UCX_HANDLE_ERRORS") || getenv("UCX_DEBUG_SIGNO"))
        SKIP("the environment asks UCX for its handlers");
    lanes_open(&l, "ucx");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction now;
        CHECK(!sigaction(signals[i], NULL, &now));
        Dl_info info;
        bool ours = now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN; /* sanitizers have handlers of their own */
        CHECK(ours || (dladdr((void *)(uintptr_t)now.sa_handler, &info) && !strstr(info.dli_fname, "libucs")));
    }
    lanes_close(&l);
}

TEST(an_interface_that_is_not_there_is_an_error_with_its_name)
{
    wefti_config_t config;
    wefti_fabric_t *f;
    static uint8_t addr[WEFTI_LANE_ADDR_MAX];
    size_t n;
    wefti_lane_t *lane;
    wefti_meeting_t with = {.side = WEFTI_SIDE_LISTENER};
    CHECK_OK(wefti_config_read(&config));
    config.transports = "ucx_tcp";
    config.interfaces = "nodev7";
    CHECK_OK(wefti_fabric_open_real(&config, &f));
    weft_status_t st = f->transports[0]->ops->lane_new(f->transports[0], &with, NULL, addr, &n, &lane);
    CHECK_EQ(st, WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_last_error(), "nodev7"));
    f->ops->close(f);
    wefti_config_free(&config);
}

/* One side closes after each thing that it sees of the other's connecting to it, and the other does nothing more. */
TEST(a_side_closes_while_the_other_connects)
{
    static lanes_t l;
    for (unsigned i = 0; i < 30; i++) { /* three times: what is seen together is not always the same */
        unsigned most = i % 10, seen = 0;
        memset(&l, 0, sizeof l);
        lanes_side_open(&l.a, "ucx", NULL);
        lanes_side_open(&l.b, "ucx", NULL);
        lanes_new(&l.a, &l.b);
        lanes_side_connect(&l.b, l.a.addr, l.a.addr_n);
        lanes_try_send(&l.b, "hello", 5);
        for (double end = test_now() + 0.2; seen < most && test_now() < end;) {
            lanes_side_progress(&l.b);
            usleep(100); /* UCX accepts connections in a thread of its own */
            seen += lanes_side_progress(&l.a) != 0;
        }
        lanes_side_close(&l.a);
        lanes_side_close(&l.b);
    }
}
