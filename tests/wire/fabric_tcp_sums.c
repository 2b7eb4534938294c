/* tests/wire/fabric_tcp_sums.c - lanes of the tcp transport with checksums: one bit that changes on the way, anywhere in what a
 * lane or its second connection carries, ends the lane. No wrong byte is handed on, nothing waits for ever. A block that is lost
 * or comes twice is found too. Without checksums such a byte does get through, so these tests can fail. */
#define TEST_SECONDS 500
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/rng.h"
#include "fabric/tcp/internal.h"
#include "lib/lanes.h"
#include "test.h"

enum { SMALL = 1000, LARGE = 70000, RECORDS = 5 };
_Static_assert(LARGE > TP_BULK_MIN, "it goes over the second connection");

/* --- what happens on the way ---------------------------------------------------------------------------------------------- */

/* To what arrives at fd. */
static struct {
    int fd;        /* -1: nothing happens */
    size_t bit, n; /* bytes seen since it was set */
    bool did;
} flip = {.fd = -1};

/* To what leaves from fd: the send after `after` others is lost, or goes out twice. */
static struct {
    int fd, after;
    bool lost, did;
} block = {.fd = -1};

static void pass(int fd, const struct iovec *v, size_t n_v, ssize_t got)
{
    if (fd != flip.fd || got <= 0)
        return;
    size_t at = flip.bit / 8, left = (size_t)got;
    for (size_t i = 0; i < n_v && left; i++) {
        size_t part = v[i].iov_len < left ? v[i].iov_len : left;
        if (at >= flip.n && at < flip.n + part) {
            ((uint8_t *)v[i].iov_base)[at - flip.n] ^= (uint8_t)(1u << flip.bit % 8);
            flip.did = true;
        }
        flip.n += part;
        left -= part;
    }
}

typedef ssize_t recv_fn(int, void *, size_t, int);
typedef ssize_t recvmsg_fn(int, struct msghdr *, int);
typedef ssize_t send_fn(int, const void *, size_t, int);

ssize_t recv(int fd, void *buf, size_t n, int flags)
{
    ssize_t got = ((recv_fn *)(uintptr_t)dlsym(RTLD_NEXT, "recv"))(fd, buf, n, flags);
    pass(fd, &(struct iovec){buf, n}, 1, got);
    return got;
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t got = ((recvmsg_fn *)(uintptr_t)dlsym(RTLD_NEXT, "recvmsg"))(fd, msg, flags);
    pass(fd, msg->msg_iov, msg->msg_iovlen, got);
    return got;
}

ssize_t send(int fd, const void *buf, size_t n, int flags)
{
    send_fn *real = (send_fn *)(uintptr_t)dlsym(RTLD_NEXT, "send");
    if (fd != block.fd || block.after-- > 0)
        return real(fd, buf, n, flags);
    block.fd = -1;
    block.did = true;
    if (!block.lost)
        CHECK_EQ(real(fd, buf, n, flags), n);
    return block.lost ? (ssize_t)n : real(fd, buf, n, flags);
}

/* --- the two -------------------------------------------------------------------------------------------------------------- */

static lanes_t l;
static uint8_t small[SMALL], large[LARGE], got_small[SMALL], got_large[LARGE];
static unsigned wrong;

static tp_lane_t *lane_of(const lanes_side_t *s)
{
    return (tp_lane_t *)(void *)s->lane;
}

/* The nth record of a side is n + 1 times as long as the first, and made of its number. */
static size_t nth(uint64_t n, uint8_t *out)
{
    size_t len = n % RECORDS * 70 + 1;
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)(n * 37 + i);
    return len;
}

static void compare(lanes_side_t *s, const void *rec, size_t n)
{
    uint8_t right[512];
    size_t len = nth(s->records - 1, right);
    wrong += n != len || memcmp(rec, right, len);
}

static bool over(void)
{
    return l.a.failed || l.b.failed;
}

static bool says(lanes_side_t *s, uint64_t n)
{
    uint8_t rec[512];
    return lanes_try_send(s, rec, nth(n, rec));
}

static void meet(const char *a, const char *b)
{
    setenv("WEFT_CHECKSUM", a, 1);
    lanes_side_open(&l.a, "tcp", NULL);
    setenv("WEFT_CHECKSUM", b, 1);
    lanes_side_open(&l.b, "tcp", NULL);
    lanes_new(&l.a, &l.b);
    lanes_side_connect(&l.a, l.b.addr, l.b.addr_n);
    lanes_side_connect(&l.b, l.a.addr, l.a.addr_n);
    l.a.on_record = l.b.on_record = compare;
    wrong = 0;
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (uint8_t)(i * 7 >> 3);
    memcpy(small, large + 11, SMALL);
}

static void payload(lanes_side_t *from, lanes_side_t *to, uint8_t *src, uint8_t *dst, size_t n, lanes_xfer_t *out,
                    lanes_xfer_t *in)
{
    static weft_iov_t iovs[2]; /* they stay while payloads move */
    weft_iov_t *iov = &iovs[n == LARGE];
    unsigned i = to->announced;
    *iov = (weft_iov_t){src, n};
    lanes_xfer_init(out);
    lanes_xfer_init(in);
    memset(dst, 0, n);
    out->done = in->done = 1; /* unless they begin */
    out->status = in->status = WEFT_ERR_CANCELLED;
    LANES_UNTIL(&l, over() || from->lane->ops->announce(from->lane, "x", 1, iov, 1, n, &out->x) == WEFT_OK);
    if (over())
        return;
    out->done = 0;
    LANES_UNTIL(&l, over() || to->announced > i);
    if (to->announced > i)
        lanes_pull(to, i, dst, n, in);
}

/* Both connections are there, and nothing is on its way. */
static void warm(void)
{
    lanes_xfer_t out, in;
    LANES_UNTIL(&l, says(&l.a, 0));
    LANES_UNTIL(&l, says(&l.b, 0));
    payload(&l.a, &l.b, large, got_large, LARGE, &out, &in);
    LANES_UNTIL(&l, out.done && in.done && l.a.records && l.b.records);
    CHECK(!memcmp(large, got_large, LARGE));
    CHECK(lane_of(&l.a)->bulk && lane_of(&l.b)->bulk && !over());
}

/* Records both ways, a payload between them, one over the second connection; false: a side failed before all was there. */
static bool talk(lanes_side_t *from, lanes_side_t *to, lanes_xfer_t x[4])
{
    uint64_t most = from->records + RECORDS - 1;
    memset(x, 0, 4 * sizeof *x);
    for (int i = 0; i < 4; i++)
        x[i].done = 1;
    for (uint64_t i = 1; i < RECORDS && !over(); i++) {
        LANES_UNTIL(&l, over() || says(from, i));
        LANES_UNTIL(&l, over() || says(to, i));
    }
    if (!over())
        payload(from, to, small, got_small, SMALL, &x[0], &x[1]);
    if (!over())
        payload(from, to, large, got_large, LARGE, &x[2], &x[3]);
    LANES_UNTIL(&l, over() || (x[0].done && x[1].done && x[2].done && x[3].done && from->records == most && to->records == most));
    return !over();
}

static void part(lanes_xfer_t x[4])
{
    flip.fd = block.fd = -1;
    lanes_close(&l);
    CHECK_EQ(wrong, 0);
    for (int i = 0; i < 4; i++)
        CHECK(x[i].done == 1);
    CHECK(!x[1].x.done || x[1].status || !memcmp(small, got_small, SMALL));
    CHECK(!x[3].x.done || x[3].status || !memcmp(large, got_large, LARGE));
}

/* One bit of what comes to `b` (or to `a`) over the first or second connection. 0: it was found; else how many bytes came, none
 * of which it was. */
static size_t try_bit(bool backward, bool second, size_t bit)
{
    lanes_xfer_t x[4];
    lanes_side_t *at = backward ? &l.a : &l.b;
    meet("on", "off");
    warm();
    flip.n = 0;
    flip.bit = bit;
    flip.did = false;
    flip.fd = second ? lane_of(at)->bulk->fd : lane_of(at)->fd;
    talk(&l.a, &l.b, x);
    if (!flip.did) { /* all of it came, and this is behind its end */
        CHECK(!over());
        size_t n = flip.n;
        part(x);
        return n;
    }
    LANES_UNTIL(&l, at->failed);
    CHECK_EQ(at->why, WEFT_ERR_PROTOCOL);
    CHECK_EQ(at->fabric->changed, 1);
    part(x);
    return 0;
}

static void everywhere(bool backward, bool second, size_t step)
{
    wefti_rng_t rng = {7};
    size_t n = try_bit(backward, second, SIZE_MAX / 2), tries = 0;
    for (size_t at = 0; at < n; at += at < 200 || at + 100 > n ? 1 : step, tries++) {
        size_t all = try_bit(backward, second, 8 * at + wefti_rng_below(&rng, 8));
        CHECK(!all || at >= all); /* records gathered in fewer blocks are fewer bytes */
    }
    printf("# %zu of %zu bytes\n", tries, n);
    CHECK(tries > 50);
}

TEST(each_byte_of_records_and_payloads_is_checked)
{
    weft_log_set_level(WEFT_LOG_NONE);
    everywhere(false, false, 3);
}

TEST(each_byte_of_what_comes_back_is_checked)
{
    weft_log_set_level(WEFT_LOG_NONE);
    everywhere(true, false, 3);
}

TEST(each_byte_of_the_second_connection_is_checked)
{
    weft_log_set_level(WEFT_LOG_NONE);
    everywhere(false, true, 331);
}

TEST(a_block_that_is_lost_or_comes_twice_is_found)
{
    weft_log_set_level(WEFT_LOG_NONE);
    for (int lost = 0; lost < 2; lost++) {
        for (int after = 0; after < 3; after++) {
            meet("off", "on");
            warm();
            block.after = after;
            block.lost = lost;
            block.did = false;
            block.fd = lane_of(&l.a)->fd;
            for (uint64_t i = 1; i < 10 && !over(); i++) {
                LANES_UNTIL(&l, over() || says(&l.a, i));
                lanes_progress(&l);
            }
            LANES_UNTIL(&l, l.b.failed);
            CHECK(block.did);
            CHECK_EQ(l.b.why, WEFT_ERR_PROTOCOL);
            CHECK_EQ(l.b.fabric->changed, 1);
            CHECK_EQ(l.b.records, (uint64_t)(1 + after + !lost));
            lanes_close(&l);
            CHECK_EQ(wrong, 0);
        }
    }
}

TEST(without_checksums_a_changed_byte_gets_through)
{
    lanes_xfer_t out, in;
    unsigned through = 0;
    weft_log_set_level(WEFT_LOG_NONE);
    for (int second = 0; second < 2; second++) {
        meet("off", "off");
        warm();
        CHECK(!lane_of(&l.a)->stream && !lane_of(&l.b)->stream);
        size_t n = second ? LARGE : SMALL;
        uint8_t *src = second ? large : small, *dst = second ? got_large : got_small;
        flip.n = 0;
        flip.bit = 8 * (n / 2) + 3;
        flip.fd = second ? lane_of(&l.b)->bulk->fd : lane_of(&l.b)->fd;
        payload(&l.a, &l.b, src, dst, n, &out, &in);
        LANES_UNTIL(&l, in.done && out.done);
        CHECK(!in.status && !l.b.failed && flip.did);
        through += memcmp(src, dst, n) != 0;
        flip.fd = -1;
        lanes_close(&l);
    }
    CHECK_EQ(through, 2);
}

TEST(either_side_can_want_them)
{
    for (int i = 0; i < 4; i++) {
        lanes_xfer_t x[4];
        meet(i & 1 ? "on" : "off", i & 2 ? "on" : "off");
        warm();
        CHECK_EQ(lane_of(&l.a)->sums, i != 0);
        CHECK_EQ(lane_of(&l.b)->sums, i != 0);
        CHECK_EQ(lane_of(&l.a)->stream != NULL, i != 0);
        CHECK(talk(&l.a, &l.b, x));
        CHECK_EQ(l.a.fabric->changed + l.b.fabric->changed, 0);
        part(x);
    }
}

/* A wish that this version does not know is refused, as one of before would refuse this one's. */
TEST(what_it_does_not_know_it_refuses)
{
    static lanes_side_t s;
    uint8_t addr[WEFTI_LANE_ADDR_MAX];
    meet("off", "off");
    s.fabric = l.a.fabric;
    s.transport = l.a.transport;
    s.in_progress = true;
    lanes_side_new(&s);
    memcpy(addr, l.b.addr, l.b.addr_n);
    addr[5] |= 2;
    CHECK_EQ(s.lane->ops->lane_connect(s.lane, addr, l.b.addr_n), WEFT_ERR_PROTOCOL);
    s.lane->ops->lane_close(s.lane);
    LANES_UNTIL(&l, s.closed);
    lanes_close(&l);
}

/* A socket that takes little at a time: blocks leave and arrive in parts. */
TEST(blocks_in_many_parts_are_whole_in_the_end)
{
    enum { N = 1 << 20 };
    uint8_t *src = malloc(N), *dst = malloc(N);
    wefti_rng_t rng = {3};
    uint64_t sent = 1;
    lanes_xfer_t out, in;
    CHECK(src && dst);
    for (size_t i = 0; i < N; i++)
        src[i] = (uint8_t)wefti_rng_next(&rng);
    meet("on", "on");
    warm();
    int fds[] = {lane_of(&l.a)->fd, lane_of(&l.b)->fd, lane_of(&l.a)->bulk->fd, lane_of(&l.b)->bulk->fd}, least = 1;
    for (int i = 0; i < 4; i++)
        CHECK(!setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &least, sizeof least));
    for (int round = 0; round < 4; round++) {
        size_t n = round < 2 ? N - (size_t)round * 1001 : 60001 - (size_t)round; /* over the second connection, between records */
        payload(&l.a, &l.b, src, dst, n, &out, &in);
        for (uint64_t i = 0; i < 100; i++) /* and records meanwhile */
            LANES_UNTIL(&l, says(&l.a, sent + i));
        sent += 100;
        LANES_UNTIL(&l, out.done && in.done && l.b.records == sent);
        CHECK(!in.status && !memcmp(src, dst, n));
    }
    CHECK(!over() && !wrong);
    lanes_close(&l);
    free(src);
    free(dst);
}
