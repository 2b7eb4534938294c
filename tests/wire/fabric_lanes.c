/* tests/wire/fabric_lanes.c - what fabric.h promises of lanes, asked of every transport: each test runs on shm, on tcp, on ucx
 * over TCP, and on ucx with its rendezvous instead of our chunks; but no peer vanishes there, since UCX 1.13.1 may abort then
 * (fabric/ucx/chunk.c). */
#include "test.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include "base/rng.h"
#include "fabric/module.h"
#include "lanes.h"

#define ON_EACH_SAFE_TRANSPORT(name) \
    static void name(const char *transport); \
    TEST(name##_on_shm) \
    { \
        name("shm"); \
    } \
    TEST(name##_on_tcp) \
    { \
        name("tcp"); \
    } \
    TEST(name##_on_ucx) \
    { \
        name("ucx"); \
    } \
    static void name(const char *transport)
#define ON_EACH_TRANSPORT(name) \
    static void name(const char *transport); \
    TEST(name##_on_rendezvous) \
    { \
        wefti_ucx_rendezvous = true; \
        name("ucx"); \
        wefti_ucx_rendezvous = false; \
    } \
    ON_EACH_SAFE_TRANSPORT(name)

static void fill(void *buf, size_t n, uint64_t seed)
{
    wefti_rng_t r = {seed};
    uint8_t *at = buf;
    for (; n >= 8; n -= 8, at += 8) {
        uint64_t v = wefti_rng_next(&r);
        memcpy(at, &v, 8);
    }
    for (; n; n--)
        *at++ = (uint8_t)wefti_rng_next(&r);
}

static bool filled(const void *buf, size_t n, uint64_t seed)
{
    wefti_rng_t r = {seed};
    const uint8_t *at = buf;
    for (; n >= 8; n -= 8, at += 8) {
        uint64_t v = wefti_rng_next(&r);
        if (memcmp(at, &v, 8))
            return false;
    }
    for (; n; n--) {
        if (*at++ != (uint8_t)wefti_rng_next(&r))
            return false;
    }
    return true;
}

/* --- records ------------------------------------------------------------------------------------------------------------ */

/* A record that says which one it is: its number, then bytes made from it. */
static size_t numbered(uint8_t *buf, uint64_t i, size_t max)
{
    wefti_rng_t r = {i ^ 0x5eed};
    size_t n = 8 + wefti_rng_below(&r, max - 8);
    memcpy(buf, &i, 8);
    fill(buf + 8, n - 8, i);
    return n;
}

static void check_numbered(lanes_side_t *s, const void *rec, size_t n)
{
    uint64_t *expect = s->user, i;
    CHECK(n >= 8);
    memcpy(&i, rec, 8);
    CHECK_EQ(i, *expect);
    CHECK(filled((const uint8_t *)rec + 8, n - 8, i));
    (*expect)++;
}

ON_EACH_TRANSPORT(a_hundred_thousand_records_arrive_in_order_and_whole)
{
    lanes_t l;
    uint64_t expect = 0;
    uint8_t buf[600];
    lanes_open(&l, transport);
    l.b.on_record = check_numbered;
    l.b.user = &expect;
    for (uint64_t i = 0; i < 100000; i++) {
        size_t n = numbered(buf, i, i % 100 ? 100 : sizeof buf);
        if (!lanes_try_send(&l.a, buf, n))
            lanes_send(&l, &l.a, buf, n);
        if (i % 37 == 0)
            lanes_side_progress(&l.a);
    }
    LANES_UNTIL(&l, l.b.records == 100000);
    CHECK_EQ(l.b.failed, 0);
    lanes_close(&l);
}

ON_EACH_TRANSPORT(records_go_both_ways_at_once)
{
    lanes_t l;
    uint64_t expect_a = 0, expect_b = 0, sent_a = 0, sent_b = 0;
    uint8_t buf[256];
    lanes_open(&l, transport);
    l.a.on_record = l.b.on_record = check_numbered;
    l.a.user = &expect_a;
    l.b.user = &expect_b;
    while (expect_a < 20000 || expect_b < 20000) {
        if (sent_a < 20000 && lanes_try_send(&l.a, buf, numbered(buf, sent_a, sizeof buf)))
            sent_a++;
        if (sent_b < 20000 && lanes_try_send(&l.b, buf, numbered(buf, sent_b, sizeof buf)))
            sent_b++;
        lanes_progress(&l);
    }
    lanes_close(&l);
}

ON_EACH_TRANSPORT(records_of_every_length_up_to_frame_max_arrive)
{
    lanes_t l;
    uint64_t expect = 0;
    lanes_open(&l, transport);
    size_t max = l.a.lane->frame_max;
    CHECK(max >= WEFTI_REC_MAX);
    uint8_t *buf = malloc(max);
    l.b.on_record = check_numbered;
    l.b.user = &expect;
    for (uint64_t i = 0; i < 3000; i++) {
        size_t n = i < 64 ? 8 + i : i % 2 ? max - i % 64 : 8 + (i * 7919) % (max - 8);
        memcpy(buf, &i, 8);
        fill(buf + 8, n - 8, i);
        lanes_send(&l, &l.a, buf, n);
    }
    LANES_UNTIL(&l, l.b.records == 3000);
    free(buf);
    lanes_close(&l);
}

ON_EACH_TRANSPORT(a_record_may_be_committed_shorter_than_it_was_reserved)
{
    lanes_t l;
    lanes_open(&l, transport);
    for (unsigned i = 1; i <= 200; i++) {
        uint8_t *p = NULL;
        LANES_UNTIL(&l, (p = l.a.lane->ops->reserve(l.a.lane, 1000)) != NULL);
        memset(p, (int)i, i);
        l.a.lane->ops->commit(l.a.lane, i);
    }
    LANES_UNTIL(&l, l.b.records == 200);
    CHECK_EQ(l.b.record_bytes, 200 * 201 / 2);
    CHECK_EQ(l.b.last_n, 200);
    CHECK_EQ(l.b.last[0], 200);
    lanes_close(&l);
}

ON_EACH_TRANSPORT(a_peer_that_does_not_progress_stops_the_sender_and_room_follows)
{
    lanes_t l;
    uint8_t buf[1024];
    uint64_t sent = 0, expect = 0;
    lanes_open(&l, transport);
    LANES_UNTIL(&l, lanes_try_send(&l.a, "12345678", 8));
    LANES_UNTIL(&l, l.b.records == 1);
    double end = test_now() + 15;
    unsigned refused = 0;
    while (refused < 2000 && test_now() < end) {
        if (lanes_try_send(&l.a, buf, numbered(buf, sent, sizeof buf))) {
            sent++;
            refused = 0;
        } else {
            refused++;
            lanes_side_progress(&l.a);
        }
    }
    CHECK(refused >= 2000);
    l.b.on_record = check_numbered;
    l.b.user = &expect;
    unsigned rooms = l.a.rooms;
    LANES_UNTIL(&l, expect == sent && l.a.rooms > rooms);
    CHECK(lanes_try_send(&l.a, buf, numbered(buf, sent, sizeof buf)));
    LANES_UNTIL(&l, expect == sent + 1);
    lanes_close(&l);
}

static void echo(lanes_side_t *s, const void *rec, size_t n)
{
    CHECK(lanes_try_send(s, rec, n));
}

ON_EACH_TRANSPORT(records_may_be_answered_from_inside_the_upcall)
{
    lanes_t l;
    lanes_open(&l, transport);
    l.b.on_record = echo;
    for (uint64_t i = 0; i < 2000; i++) {
        lanes_send(&l, &l.a, &i, sizeof i);
        LANES_UNTIL(&l, l.a.records == i + 1);
        CHECK(!memcmp(l.a.last, &i, sizeof i));
    }
    lanes_close(&l);
}

static void close_at_once(lanes_side_t *s, const void *rec, size_t n)
{
    (void)rec;
    (void)n;
    CHECK_EQ(s->records, 1);
    s->lane->ops->lane_close(s->lane);
}

ON_EACH_TRANSPORT(a_lane_closed_from_inside_a_record_upcall_says_nothing_more)
{
    lanes_t l;
    lanes_open(&l, transport);
    l.b.on_record = close_at_once;
    for (int i = 0; i < 50; i++)
        lanes_send(&l, &l.a, "x", 1);
    LANES_UNTIL(&l, l.b.closed);
    CHECK_EQ(l.b.records, 1);
    l.b.lane = NULL;
    LANES_UNTIL(&l, l.a.failed);
    CHECK_EQ(l.a.why, WEFT_ERR_PEER);
    lanes_close(&l);
}

ON_EACH_TRANSPORT(an_address_that_is_nonsense_is_a_protocol_error)
{
    lanes_side_t s;
    uint8_t junk[200];
    lanes_side_open(&s, transport, NULL);
    lanes_side_new(&s);
    memset(junk, 0xee, sizeof junk);
    CHECK_EQ(s.lane->ops->lane_connect(s.lane, junk, sizeof junk), WEFT_ERR_PROTOCOL);
    lanes_side_close_lane(&s);
    s.closed = 0;
    lanes_side_new(&s);
    CHECK_EQ(s.lane->ops->lane_connect(s.lane, s.addr, 3), WEFT_ERR_PROTOCOL);
    lanes_side_close(&s);
}

/* --- announcements --------------------------------------------------------------------------------------------------------- */

static void announce(lanes_t *l, lanes_side_t *s, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n, lanes_xfer_t *x)
{
    uint64_t total = 0;
    for (size_t i = 0; i < iov_n; i++)
        total += iov[i].len;
    lanes_xfer_init(x);
    weft_status_t st = WEFT_ERR_AGAIN;
    LANES_UNTIL(l, (st = s->lane->ops->announce(s->lane, rec, n, iov, iov_n, total, &x->x)) != WEFT_ERR_AGAIN);
    CHECK_EQ(st, WEFT_OK);
    CHECK_EQ(x->done, 0);
}

ON_EACH_TRANSPORT(a_payload_of_each_size_is_pulled_whole)
{
    static const size_t sizes[] = {1, 7, 64, 4095, 4096, 65536, 1000003, 64u << 20};
    lanes_t l;
    lanes_xfer_t out, in;
    lanes_open(&l, transport);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        uint8_t *src = malloc(n), *dst = calloc(1, n + 1);
        fill(src, n, n);
        weft_iov_t iov = {src, n};
        announce(&l, &l.a, "hdr", 3, &iov, 1, &out);
        LANES_UNTIL(&l, l.b.announced == i + 1);
        CHECK_EQ(l.b.offers[i].total, n);
        CHECK(!memcmp(l.b.offers[i].rec, "hdr", 3) && l.b.offers[i].n == 3);
        for (int k = 0; k < 100; k++)
            lanes_progress(&l);
        CHECK_EQ(out.done, 0); /* not before it is pulled */
        lanes_pull(&l.b, i, dst, n, &in);
        CHECK_EQ(in.done, 0);
        LANES_UNTIL(&l, in.done && out.done);
        CHECK_EQ(in.status, WEFT_OK);
        CHECK_EQ(out.status, WEFT_OK);
        CHECK(filled(dst, n, n));
        free(src);
        free(dst);
    }
    lanes_close(&l);
}

ON_EACH_TRANSPORT(a_payload_in_pieces_is_pulled_into_other_pieces)
{
    enum { N = 300007 };
    static uint8_t src[N], dst[N];
    lanes_t l;
    lanes_xfer_t out, in;
    weft_iov_t from[40], to[23];
    size_t at = 0, i;
    lanes_open(&l, transport);
    fill(src, N, 9);
    for (i = 0; i < 39; i++) {
        from[i] = (weft_iov_t){src + at, 1 + i * 311};
        at += from[i].len;
    }
    CHECK(at < N);
    from[39] = (weft_iov_t){src + at, N - at};
    for (i = 0, at = 0; i < 22; i++) {
        size_t len = i == 5 ? 0 : 1 + i * 977;
        to[i] = (weft_iov_t){dst + at, len};
        at += len;
    }
    to[22] = (weft_iov_t){dst + at, N - at};
    announce(&l, &l.a, "p", 1, from, 40, &out);
    LANES_UNTIL(&l, l.b.announced == 1);
    lanes_xfer_init(&in);
    wefti_pull_t *p = l.b.offers[0].p;
    l.b.offers[0].p = NULL;
    CHECK_OK(p->ops->pull(p, to, 23, N, &in.x));
    LANES_UNTIL(&l, in.done && out.done);
    CHECK_EQ(in.status, WEFT_OK);
    CHECK_EQ(out.status, WEFT_OK);
    CHECK(!memcmp(src, dst, N));
    lanes_close(&l);
}

ON_EACH_TRANSPORT(pulling_less_than_all_writes_no_more_than_that)
{
    static const struct {
        size_t total, want;
    } cases[] = {{100, 1}, {65536, 65535}, {3000000, 12345}, {10000000, 9000001}};
    lanes_t l;
    lanes_xfer_t out, in;
    lanes_open(&l, transport);
    for (unsigned i = 0; i < 4; i++) {
        size_t total = cases[i].total, want = cases[i].want;
        uint8_t *src = malloc(total), *dst = malloc(total);
        fill(src, total, i);
        memset(dst, 0xaa, total);
        weft_iov_t iov = {src, total};
        announce(&l, &l.a, "t", 1, &iov, 1, &out);
        LANES_UNTIL(&l, l.b.announced == i + 1);
        lanes_pull(&l.b, i, dst, want, &in);
        LANES_UNTIL(&l, in.done && out.done);
        CHECK_EQ(in.status, WEFT_OK);
        CHECK_EQ(out.status, WEFT_OK);
        CHECK(!memcmp(src, dst, want));
        for (size_t k = want; k < total; k++)
            CHECK_EQ(dst[k], 0xaa);
        free(src);
        free(dst);
    }
    lanes_close(&l);
}

ON_EACH_TRANSPORT(refusing_tells_the_sender_which_way)
{
    static uint8_t src[200000];
    lanes_t l;
    lanes_xfer_t out;
    weft_iov_t iov = {src, sizeof src};
    lanes_open(&l, transport);
    for (unsigned i = 0; i < 20; i++) {
        announce(&l, &l.a, "r", 1, &iov, 1, &out);
        LANES_UNTIL(&l, l.b.announced == i + 1);
        lanes_refuse(&l.b, i, i % 2);
        CHECK_EQ(out.done, 0);
        LANES_UNTIL(&l, out.done);
        CHECK_EQ(out.status, i % 2 ? WEFT_OK : WEFT_ERR_REFUSED);
    }
    CHECK_EQ(l.b.withdrawn, 0);
    lanes_close(&l);
}

static void in_order(lanes_side_t *s, const void *rec, size_t n)
{
    uint64_t *expect = s->user;
    CHECK_EQ(n, 8);
    CHECK(!memcmp(rec, expect, 8));
    (*expect)++;
}

static void in_order_announced(lanes_side_t *s, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    CHECK_EQ(total, 5000);
    in_order(s, rec, n);
    p->ops->refuse(p, *(uint64_t *)s->user % 2);
}

ON_EACH_TRANSPORT(records_and_announcements_keep_one_order)
{
    enum { N = 20000 };
    static uint8_t src[5000];
    static lanes_xfer_t out[N];
    lanes_t l;
    uint64_t expect = 0;
    weft_iov_t iov = {src, sizeof src};
    lanes_open(&l, transport);
    l.b.user = &expect;
    l.b.on_record = in_order;
    l.b.on_announced = in_order_announced;
    for (uint64_t i = 0; i < N; i++) {
        if (i % 7 == 3 || i % 50 > 45)
            announce(&l, &l.a, &i, 8, &iov, 1, &out[i]);
        else
            lanes_send(&l, &l.a, &i, 8);
    }
    LANES_UNTIL(&l, expect == N);
    for (uint64_t i = 0; i < N; i++) {
        if (i % 7 == 3 || i % 50 > 45) {
            LANES_UNTIL(&l, out[i].done);
            CHECK_EQ(out[i].status, (i + 1) % 2 ? WEFT_OK : WEFT_ERR_REFUSED);
        }
    }
    lanes_close(&l);
}

static lanes_xfer_t pulled_inside[32];
static uint8_t pulled_bytes[32][70000];
static void pull_inside(lanes_side_t *s, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    unsigned i = s->announced - 1;
    weft_iov_t iov = {pulled_bytes[i], total};
    CHECK_EQ(n, 1);
    CHECK_EQ(*(const uint8_t *)rec, i);
    lanes_xfer_init(&pulled_inside[i]);
    CHECK_OK(p->ops->pull(p, &iov, 1, total, &pulled_inside[i].x));
    CHECK_EQ(pulled_inside[i].done, 0);
}

ON_EACH_TRANSPORT(a_payload_may_be_pulled_from_inside_the_upcall)
{
    static uint8_t src[32][70000];
    lanes_xfer_t out[32];
    weft_iov_t iov[32];
    lanes_t l;
    lanes_open(&l, transport);
    l.b.on_announced = pull_inside;
    for (uint8_t i = 0; i < 32; i++) {
        fill(src[i], sizeof src[i], i);
        iov[i] = (weft_iov_t){src[i], i % 3 ? sizeof src[i] : 100u + i};
        announce(&l, &l.a, &i, 1, &iov[i], 1, &out[i]);
    }
    for (int i = 0; i < 32; i++) {
        LANES_UNTIL(&l, out[i].done && l.b.announced == 32 && pulled_inside[i].done);
        CHECK_EQ(out[i].status, WEFT_OK);
        CHECK_EQ(pulled_inside[i].status, WEFT_OK);
        CHECK(filled(pulled_bytes[i], iov[i].len / 8 * 8, (uint64_t)i));
    }
    lanes_close(&l);
}

/* --- endings -------------------------------------------------------------------------------------------------------------- */

static void close_under_way(const char *transport, bool receiver_closes)
{
    enum { N = 24, BIG = 4 << 20 };
    lanes_t l;
    lanes_xfer_t out[N], in[N];
    weft_iov_t iov;
    uint8_t *src = malloc(BIG), *dst = malloc((size_t)N * BIG);
    fill(src, BIG, 1);
    iov = (weft_iov_t){src, BIG};
    lanes_open(&l, transport);
    for (unsigned i = 0; i < N; i++) {
        lanes_xfer_init(&in[i]);
        announce(&l, &l.a, "c", 1, &iov, 1, &out[i]);
    }
    LANES_UNTIL(&l, l.b.announced == N);
    for (unsigned i = 0; i < N; i += 2)
        lanes_pull(&l.b, i, dst + (size_t)i * BIG, BIG, &in[i]);
    for (int i = 0; i < 3; i++)
        lanes_progress(&l);
    for (int i = 0; i < 100 && lanes_try_send(&l.a, "last words", 10); i++)
        ;
    lanes_side_t *closer = receiver_closes ? &l.b : &l.a, *other = receiver_closes ? &l.a : &l.b;
    unsigned done_before = 0;
    for (unsigned i = 0; i < N; i++)
        done_before += out[i].done + in[i].done;
    closer->lane->ops->lane_close(closer->lane);
    unsigned done_inside = 0;
    for (unsigned i = 0; i < N; i++)
        done_inside += out[i].done + in[i].done;
    CHECK_EQ(done_before, done_inside);
    LANES_UNTIL(&l, closer->closed);
    closer->lane = NULL;
    LANES_UNTIL(&l, other->failed);
    CHECK_EQ(other->why, WEFT_ERR_PEER);
    other->lane->ops->lane_close(other->lane);
    LANES_UNTIL(&l, other->closed);
    other->lane = NULL;
    unsigned withdrawn = 0;
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(out[i].done, 1);
        CHECK_EQ(in[i].done, i % 2 ? 0 : 1);
        withdrawn += i % 2;
        if (i % 2)
            CHECK(out[i].status != WEFT_OK);
        if (i % 2 == 0 && in[i].status == WEFT_OK)
            CHECK(filled(dst + (size_t)i * BIG, BIG, 1));
    }
    CHECK_EQ(l.b.withdrawn, withdrawn);
    lanes_close(&l);
    free(src);
    free(dst);
}

ON_EACH_SAFE_TRANSPORT(the_sender_closing_with_everything_under_way_ends_each_transfer_once)
{
    close_under_way(transport, false);
}
ON_EACH_TRANSPORT(the_receiver_closing_with_everything_under_way_ends_each_transfer_once)
{
    close_under_way(transport, true);
}

ON_EACH_TRANSPORT(a_lane_that_was_never_connected_closes)
{
    lanes_side_t s;
    lanes_side_open(&s, transport, NULL);
    lanes_side_new(&s);
    lanes_side_close(&s);
}

/* The child offers and pulls without end; the parent is in the middle of it when the child dies. */
static void child_of_kill(const char *transport, int fd, size_t n)
{
    lanes_side_t s;
    static lanes_xfer_t out[8], in[LANES_PULLS];
    uint8_t *buf = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *dst = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    weft_iov_t iov = {buf, n};
    lanes_side_open(&s, transport, NULL);
    lanes_side_meet(&s, fd);
    for (int i = 0; i < 8; i++) {
        lanes_xfer_init(&out[i]);
        LANES_SIDE_UNTIL(&s, s.lane->ops->announce(s.lane, "k", 1, &iov, 1, n, &out[i].x) == WEFT_OK);
    }
    for (unsigned next = 0;;) {
        lanes_side_progress(&s);
        if (next < 4 && s.announced > next) {
            lanes_pull(&s, next, dst, n, &in[next]);
            next++;
        }
    }
}

static void peer_killed(const char *transport, size_t n)
{
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    pid_t pid = fork();
    if (!pid) {
        close(fds[0]);
        child_of_kill(transport, fds[1], n);
        _exit(1);
    }
    close(fds[1]);
    lanes_side_t s;
    lanes_xfer_t out[8], in[4];
    uint8_t *buf = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *dst = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    weft_iov_t iov = {buf, n};
    lanes_side_open(&s, transport, NULL);
    lanes_side_meet(&s, fds[0]);
    for (int i = 0; i < 8; i++) {
        lanes_xfer_init(&out[i]);
        LANES_SIDE_UNTIL(&s, s.lane->ops->announce(s.lane, "k", 1, &iov, 1, n, &out[i].x) == WEFT_OK);
    }
    LANES_SIDE_UNTIL(&s, s.announced >= 4);
    for (unsigned i = 0; i < 4; i++)
        lanes_pull(&s, i, dst, n, &in[i]);
    for (int i = 0; i < 50; i++)
        lanes_side_progress(&s);
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    /* A transport need not see it by itself (the wire does): give it a moment, then do what conn does. */
    double end = test_now() + 1;
    while (test_now() < end && !s.failed) {
        lanes_side_progress(&s);
        if (!s.failed)
            lanes_try_send(&s, "are you there", 13);
    }
    lanes_side_close_lane(&s);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(out[i].done, 1);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(in[i].done, 1);
    lanes_side_close(&s);
}

ON_EACH_SAFE_TRANSPORT(a_peer_killed_in_the_middle_of_large_transfers_ends_each_once)
{
    peer_killed(transport, 64u << 20);
}
ON_EACH_SAFE_TRANSPORT(a_peer_killed_in_the_middle_of_small_transfers_ends_each_once)
{
    peer_killed(transport, 20000);
}

/* --- several lanes -------------------------------------------------------------------------------------------------------- */

/* Lanes beyond the harness's own pair: each with a side of its own that borrows the fabric. */
static void borrow(lanes_side_t *s, const lanes_side_t *owner)
{
    memset(s, 0, sizeof *s);
    s->fabric = owner->fabric;
    s->transport = owner->transport;
    s->in_progress = true; /* the owner's progress tells for all */
}

ON_EACH_TRANSPORT(lanes_connected_in_opposite_orders_close_alone)
{
    enum { N = 6 };
    lanes_t l;
    static lanes_side_t a[N], b[N];
    lanes_open(&l, transport);
    for (int i = 0; i < N; i++) {
        borrow(&a[i], &l.a);
        borrow(&b[i], &l.b);
        lanes_new(&a[i], &b[i]);
    }
    for (int i = 0; i < N; i++)
        lanes_side_connect(&a[i], b[i].addr, b[i].addr_n);
    for (int i = N - 1; i >= 0; i--) {
        lanes_side_connect(&b[i], a[i].addr, a[i].addr_n);
        for (int k = 0; k < i * 50; k++)
            lanes_progress(&l);
    }
    for (uint8_t i = 0; i < N; i++) {
        LANES_UNTIL(&l, lanes_try_send(&a[i], &i, 1));
        LANES_UNTIL(&l, lanes_try_send(&b[i], &i, 1));
    }
    for (int i = 0; i < N; i++) {
        LANES_UNTIL(&l, a[i].records == 1 && b[i].records == 1);
        CHECK_EQ(a[i].last[0], i);
        CHECK_EQ(b[i].last[0], i);
    }
    for (int i = 0; i < N; i++) {
        a[i].lane->ops->lane_close(a[i].lane);
        LANES_UNTIL(&l, a[i].closed && b[i].failed);
        for (int k = 0; k < 200; k++)
            lanes_progress(&l);
        for (int k = i + 1; k < N; k++)
            CHECK_EQ(a[k].failed + b[k].failed, 0);
        b[i].lane->ops->lane_close(b[i].lane);
        LANES_UNTIL(&l, b[i].closed);
    }
    CHECK_EQ(l.a.failed + l.b.failed, 0);
    lanes_close(&l);
}

ON_EACH_TRANSPORT(two_lanes_of_one_fabric_may_be_joined_to_each_other)
{
    lanes_side_t s;
    static lanes_side_t a, b;
    lanes_side_open(&s, transport, NULL);
    borrow(&a, &s);
    borrow(&b, &s);
    lanes_new(&a, &b);
    lanes_side_connect(&a, b.addr, b.addr_n);
    CHECK(lanes_try_send(&a, "early", 5));
    lanes_side_connect(&b, a.addr, a.addr_n);
    LANES_SIDE_UNTIL(&s, b.records == 1);
    CHECK(!memcmp(b.last, "early", 5));
    LANES_SIDE_UNTIL(&s, lanes_try_send(&b, "back", 4));
    LANES_SIDE_UNTIL(&s, a.records == 1);
    a.lane->ops->lane_close(a.lane);
    LANES_SIDE_UNTIL(&s, a.closed && b.failed);
    b.lane->ops->lane_close(b.lane);
    LANES_SIDE_UNTIL(&s, b.closed);
    lanes_side_close(&s);
}
