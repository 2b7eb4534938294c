/* tests/wire/fabric_tcp.c - what only the tcp transport has: which side dials, the second connection, many lanes, last words
 * before a close, and sleeping. fabric_lanes.c has what it shares with the other transports, fabric_tcp_hostile.c what peers
 * and strangers may do to it. */
#define TEST_SECONDS 120
#include "test.h"

#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/rng.h"
#include "fabric/tcp/internal.h"
#include "lanes.h"
#include "ports.h"

static void borrow(lanes_side_t *s, const lanes_side_t *owner)
{
    memset(s, 0, sizeof *s);
    s->fabric = owner->fabric;
    s->transport = owner->transport;
    s->in_progress = true;
}

static tp_lane_t *lane_of(lanes_side_t *s)
{
    return tp_lane(s->lane);
}

static tp_transport_t *transport_of(lanes_side_t *s)
{
    return tp_transport(s->transport);
}

/* --- who dials ------------------------------------------------------------------------------------------------------------ */

/* Let both sides' lane addresses be seen by the other one as `edit` made them. */
static void join_edited(lanes_t *l, void (*edit)(lanes_side_t *of, bool to_leader))
{
    lanes_side_open(&l->a, "tcp", NULL);
    lanes_side_open(&l->b, "tcp", NULL);
    lanes_new(&l->a, &l->b);
    bool a_leads = memcmp(lane_of(&l->a)->token, lane_of(&l->b)->token, TP_TOKEN) < 0;
    edit(&l->a, !a_leads);
    edit(&l->b, a_leads);
    lanes_side_connect(&l->a, l->b.addr, l->b.addr_n);
    lanes_side_connect(&l->b, l->a.addr, l->a.addr_n);
}

static void ping(lanes_t *l)
{
    lanes_send(l, &l->a, "ping", 4);
    LANES_UNTIL(l, l->b.records == 1);
    lanes_send(l, &l->b, "pong", 4);
    LANES_UNTIL(l, l->a.records == 1);
    CHECK_EQ(l->a.failed + l->b.failed, 0);
}

static void set_port(uint8_t *addr, unsigned i, uint16_t port)
{
    memcpy(addr + 32 + 18 * i + 16, &port, 2);
}

static void shut_to_leader(lanes_side_t *of, bool to_leader)
{
    uint32_t n;
    memcpy(&n, of->addr + 4, 4);
    for (unsigned i = 0; to_leader && i < n; i++)
        set_port(of->addr, i, ports_take());
}

static void shut_to_follower(lanes_side_t *of, bool to_leader)
{
    shut_to_leader(of, !to_leader);
}

TEST(a_lane_comes_up_whichever_side_can_be_reached)
{
    lanes_t l;
    join_edited(&l, shut_to_leader);
    ping(&l);
    CHECK_EQ(lane_of(&l.a)->leads, !lane_of(&l.a)->dialled);
    lanes_close(&l);
    join_edited(&l, shut_to_follower);
    ping(&l);
    CHECK_EQ(lane_of(&l.a)->leads, lane_of(&l.a)->dialled);
    lanes_close(&l);
}

/* The first address leads nowhere (one that is nobody's, and where nobody answers), the second one is right. */
static void two_addresses(lanes_side_t *of, bool to_leader)
{
    uint32_t two = 2;
    if (!to_leader)
        return;
    memcpy(of->addr + 4, &two, 4);
    memmove(of->addr + 32 + 18, of->addr + 32, 18);
    memset(of->addr + 32, 0, 10);
    memset(of->addr + 32 + 10, 0xff, 2);
    memcpy(of->addr + 32 + 12, "\xc0\x00\x02\x01", 4);
    of->addr_n = 32 + 2 * 18;
}

TEST(an_address_that_does_not_answer_is_passed_over)
{
    lanes_t l;
    join_edited(&l, two_addresses);
    ping(&l);
    lanes_close(&l);
}

static void shut_to_both(lanes_side_t *of, bool to_leader)
{
    (void)to_leader;
    shut_to_leader(of, true);
}

TEST(a_lane_that_nobody_can_reach_fails)
{
    lanes_t l;
    join_edited(&l, shut_to_both);
    lanes_side_t *leader = lane_of(&l.a)->leads ? &l.a : &l.b;
    LANES_UNTIL(&l, leader->failed);
    CHECK_EQ(leader->why, WEFT_ERR_UNREACHABLE);
    lanes_close(&l);
}

/* Both dial at the same time, and meet in every order. */
TEST(lanes_survive_dials_that_cross)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        lanes_t l;
        wefti_rng_t rng = {seed};
        lanes_side_open(&l.a, "tcp", NULL);
        lanes_side_open(&l.b, "tcp", NULL);
        lanes_new(&l.a, &l.b);
        lanes_side_t *sides[2] = {&l.a, &l.b};
        lanes_side_connect(&l.a, l.b.addr, l.b.addr_n);
        for (uint64_t i = wefti_rng_below(&rng, 4); i > 0; i--)
            lanes_side_progress(&l.a);
        lanes_side_connect(&l.b, l.a.addr, l.a.addr_n);
        for (int i = 0; i < 2; i++) {
            tp_conn_t *c = lane_of(sides[i])->conn;
            if (c && c->state == TP_WAIT) { /* the follower, sooner than it would */
                c->deadline = wefti_clock_ns();
                transport_of(sides[i])->timer_at = 0;
                wefti_tp_timer(transport_of(sides[i]), c->deadline);
            }
        }
        double end = test_now() + 20;
        while (!(l.a.records && l.b.records) && test_now() < end) {
            lanes_side_t *s = sides[wefti_rng_below(&rng, 2)];
            if (!s->user && lanes_try_send(s, "met", 3))
                s->user = s;
            for (uint64_t i = wefti_rng_below(&rng, 3); i > 0; i--)
                lanes_side_progress(s);
        }
        CHECK_EQ(l.a.records + l.b.records, 2);
        CHECK_EQ(l.a.failed + l.b.failed, 0);
        lanes_close(&l);
    }
}

/* Either side, after any number of steps of either. */
TEST(a_lane_may_be_closed_at_every_moment_of_its_joining)
{
    for (unsigned i = 0; i < 400; i++) {
        lanes_t l;
        lanes_side_open(&l.a, "tcp", NULL);
        lanes_side_open(&l.b, "tcp", NULL);
        lanes_new(&l.a, &l.b);
        lanes_side_connect(&l.a, l.b.addr, l.b.addr_n);
        lanes_side_connect(&l.b, l.a.addr, l.a.addr_n);
        for (unsigned k = 0; k < i % 10; k++) {
            for (unsigned n = 0; n < i / 10 % 5 + 1; n++)
                lanes_side_progress(&l.a);
            lanes_side_progress(&l.b);
        }
        lanes_side_t *first = i % 2 ? &l.a : &l.b, *other = i % 2 ? &l.b : &l.a;
        first->lane->ops->lane_close(first->lane);
        for (unsigned k = 0; k < i / 40; k++)
            lanes_side_progress(other);
        LANES_UNTIL(&l, first->closed);
        first->lane = NULL;
        CHECK_EQ(first->failed + first->records, 0);
        lanes_close(&l);
    }
}

static unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

TEST(no_descriptor_is_left_behind)
{
    unsigned before = count_fds();
    for (int i = 0; i < 20; i++) {
        lanes_t l;
        if (i % 2) {
            lanes_open(&l, "tcp");
            if (i % 4 == 1)
                ping(&l);
        } else {
            lanes_side_open(&l.a, "tcp", NULL);
            lanes_side_open(&l.b, "tcp", NULL);
            lanes_side_new(&l.a);
        }
        lanes_close(&l);
    }
    CHECK_EQ(count_fds(), before);
}

/* --- last words ----------------------------------------------------------------------------------------------------------- */

/* What was committed before the close arrives, however much the peer has sent that nobody will read. */
TEST(a_close_takes_nothing_back)
{
    for (int i = 0; i < 20; i++) {
        lanes_t l;
        uint8_t rec[4000] = {0};
        uint64_t sent = 0, many = i % 2 ? 200 : 30; /* 200: more than b's socket takes, so that a's still has some at its close */
        lanes_open(&l, "tcp");
        ping(&l);
        while (sent < many && lanes_try_send(&l.a, rec, i % 2 ? sizeof rec : 1 + sent * 100))
            sent++;
        lanes_side_progress(&l.a);
        for (int k = 0; k < 3; k++)
            CHECK(lanes_try_send(&l.b, rec, sizeof rec)); /* b reads nothing, and a will read no more */
        CHECK_EQ(sent, many);
        l.a.lane->ops->lane_close(l.a.lane);
        LANES_SIDE_UNTIL(&l.a, l.a.closed);
        l.a.lane = NULL;
        LANES_UNTIL(&l, l.b.failed);
        CHECK_EQ(l.b.why, WEFT_ERR_PEER);
        CHECK_EQ(l.b.records, 1 + sent);
        lanes_close(&l);
    }
}

/* --- payloads ------------------------------------------------------------------------------------------------------------- */

TEST(a_large_payload_goes_over_a_connection_of_its_own)
{
    enum { N = 3 << 20 };
    lanes_t l;
    uint8_t *src = malloc(N), *dst = malloc(N);
    weft_iov_t iov = {src, N};
    lanes_open(&l, "tcp");
    lanes_send(&l, &l.a, "up", 2);
    LANES_UNTIL(&l, l.b.records == 1);
    for (unsigned i = 0; i < 60; i++) {
        lanes_side_t *from = i % 2 ? &l.a : &l.b, *to = i % 2 ? &l.b : &l.a;
        lanes_xfer_t out, in;
        memset(src, (int)i, N);
        lanes_xfer_init(&out);
        LANES_UNTIL(&l, from->lane->ops->announce(from->lane, "x", 1, &iov, 1, N, &out.x) == WEFT_OK);
        LANES_UNTIL(&l, to->announced == i / 2 + 1);
        memset(dst, 0xff, N);
        uint64_t want = i % 3 ? N : N - 12345;
        lanes_pull(to, i / 2, dst, want, &in);
        LANES_UNTIL(&l, in.done && out.done);
        CHECK_EQ(in.status, WEFT_OK);
        CHECK_EQ(out.status, WEFT_OK);
        CHECK(!memcmp(src, dst, want));
        CHECK(want == N || dst[want] == 0xff);
    }
    CHECK_EQ(l.a.failed + l.b.failed, 0);
    CHECK(lane_of(&l.a)->bulk && lane_of(&l.a)->bulk->state == TP_UP);
    CHECK(lane_of(&l.b)->bulk && lane_of(&l.b)->bulk->state == TP_UP);
    lanes_close(&l);
    free(src);
    free(dst);
}

/* Where there is no second connection to be had, large payloads go between records. */
TEST(large_payloads_get_through_without_a_second_connection)
{
    enum { N = 3 << 20 };
    lanes_t l;
    uint8_t *src = malloc(N), *dst = malloc(N);
    weft_iov_t iov = {src, N};
    lanes_open(&l, "tcp");
    ping(&l);
    lanes_side_t *dialler = lane_of(&l.a)->dialled ? &l.a : &l.b;
    lane_of(dialler)->peer[lane_of(dialler)->peer_at - 1].port = ports_take();
    for (unsigned i = 0; i < 20; i++) {
        lanes_side_t *from = i % 2 ? &l.a : &l.b, *to = i % 2 ? &l.b : &l.a;
        lanes_xfer_t out, in;
        memset(src, (int)i, N);
        lanes_xfer_init(&out);
        LANES_UNTIL(&l, from->lane->ops->announce(from->lane, "x", 1, &iov, 1, N, &out.x) == WEFT_OK);
        LANES_UNTIL(&l, to->announced == i / 2 + 1);
        memset(dst, 0xff, N);
        lanes_pull(to, i / 2, dst, N - i, &in);
        LANES_UNTIL(&l, in.done && out.done);
        CHECK_EQ(in.status, WEFT_OK);
        CHECK_EQ(out.status, WEFT_OK);
        CHECK(!memcmp(src, dst, N - i));
        CHECK(!i || dst[N - i] == 0xff);
    }
    CHECK(!lane_of(&l.a)->bulk && lane_of(&l.a)->no_bulk && !lane_of(&l.b)->bulk && lane_of(&l.b)->no_bulk);
    CHECK_EQ(l.a.failed + l.b.failed, 0);
    lanes_close(&l);
    free(src);
    free(dst);
}

TEST(records_pass_while_a_large_payload_is_on_its_way)
{
    enum { N = 256 << 20 };
    lanes_t l;
    lanes_xfer_t out, in;
    uint8_t *src = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *dst = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    weft_iov_t iov = {src, N};
    lanes_open(&l, "tcp");
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
    lanes_open(&l, "tcp");
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

/* --- many lanes, and sleeping --------------------------------------------------------------------------------------------- */

TEST(two_hundred_lanes_between_two_fabrics_all_work)
{
    enum { N = 200 };
    lanes_t l;
    static lanes_side_t a[N], b[N];
    lanes_open(&l, "tcp");
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
    lanes_open(&l, "tcp");
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

/* Does a side sleep for so many milliseconds? It makes progress only after a wake-up. Its timer may wake it (acks.c); then it
 * sleeps once more. */
static bool sleeps(lanes_side_t *s, int ms, double end)
{
    wefti_fabric_t *f = s->fabric;
    bool slept = false;
    for (int wake_ups = 0; !slept && wake_ups < 3; wake_ups++) {
        while (f->ops->arm(f) == WEFT_ERR_AGAIN && test_now() < end)
            lanes_side_progress(s);
        struct pollfd p = {.fd = f->ops->event_fd(f), .events = POLLIN};
        slept = !poll(&p, 1, ms);
        f->ops->disarm(f);
        if (!slept)
            lanes_side_progress(s);
    }
    return slept;
}

/* The sender sleeps on a full socket: room ends the sleep. */
TEST(room_ends_a_sleep)
{
    lanes_t l;
    uint8_t rec[4000] = {0};
    lanes_open(&l, "tcp");
    ping(&l);
    double end = test_now() + 60;
    unsigned rooms;
    bool slept;
    do { /* the system may move bytes on its own for a while: then there is room before the peer reads anything */
        rooms = l.a.rooms;
        for (unsigned refused = 0; refused < 1000 && test_now() < end;) {
            if (lanes_try_send(&l.a, rec, sizeof rec)) {
                refused = 0;
                rooms = l.a.rooms;
            } else {
                refused++;
                lanes_side_progress(&l.a);
            }
        }
        slept = sleeps(&l.a, 100, end);
    } while (l.a.rooms != rooms && test_now() < end);
    CHECK(slept);
    while (l.a.rooms == rooms && test_now() < end) {
        for (int i = 0; i < 100; i++)
            lanes_side_progress(&l.b);
        sleeps(&l.a, 1, end);
    }
    CHECK(l.a.rooms > rooms);
    lanes_close(&l);
}

TEST(a_killed_peer_is_noticed_without_a_word_from_us)
{
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    pid_t pid = fork();
    lanes_side_t s;
    lanes_side_open(&s, "tcp", NULL);
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

TEST(an_interface_that_is_not_there_is_an_error_with_its_name)
{
    wefti_config_t config;
    wefti_fabric_t *f;
    static uint8_t addr[WEFTI_LANE_ADDR_MAX];
    size_t n;
    wefti_lane_t *lane;
    wefti_meeting_t with = {.side = WEFTI_SIDE_LISTENER};
    CHECK_OK(wefti_config_read(&config));
    config.transports = "tcp";
    config.interfaces = "nodev7";
    CHECK_OK(wefti_fabric_open_real(&config, &f));
    weft_status_t st = f->transports[0]->ops->lane_new(f->transports[0], &with, NULL, addr, &n, &lane);
    CHECK_EQ(st, WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_last_error(), "nodev7"));
    f->ops->close(f);
    wefti_config_free(&config);
}
