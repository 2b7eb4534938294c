/* tests/wire/fabric_tcp_hostile.c - strangers at the tcp transport's port, and peers that write whatever they like to their
 * connection.
 *
 * Promise held here: a stranger is closed and nobody notices; a peer's own lane fails with WEFT_ERR_PROTOCOL (or _PEER where it
 * only went away), every transfer is done once, other lanes go on, and nothing outside the buffers that were given is touched
 * (run it under asan). ctest: timeout=300 */
#include "test.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/rng.h"
#include "fabric/tcp/internal.h"
#include "lanes.h"

/* What a lane's address says. */
typedef struct target {
    uint64_t id;
    uint8_t token[TP_TOKEN];
    struct sockaddr_in6 at;
} target_t;

static target_t target_of(const lanes_side_t *s)
{
    target_t t = {.at = {.sin6_family = AF_INET6}};
    uint16_t port;
    memcpy(&t.id, s->addr + 8, 8);
    memcpy(t.token, s->addr + 16, TP_TOKEN);
    memcpy(&t.at.sin6_addr, s->addr + 32, 16);
    memcpy(&port, s->addr + 48, 2);
    t.at.sin6_port = htons(port);
    return t;
}

static int dial(const target_t *t)
{
    tp_peer_addr_t a = {t->at.sin6_addr, ntohs(t->at.sin6_port)};
    struct sockaddr_storage ss;
    socklen_t n = wefti_tp_sockaddr(&a, &ss);
    int fd = socket(ss.ss_family, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(!connect(fd, (void *)&ss, n));
    return fd;
}

/* A greeting by the dialler of the wire, whose token is `own`, to the listener's lane `t`; as docs/design/wire.md has it. */
static void greeting(uint8_t *out, const uint8_t *challenge, uint64_t magic, const target_t *t, const uint8_t *own,
                     const uint8_t *secret)
{
    static const uint8_t none[WEFTI_SECRET_SIZE];
    uint8_t tokens[2 * TP_TOKEN], key[WEFTI_SECRET_SIZE], said[17 + 2 * TP_NONCE] = {0};
    memcpy(tokens, own, TP_TOKEN);
    memcpy(tokens + TP_TOKEN, t->token, TP_TOKEN);
    wefti_mac(secret ? secret : none, "weft tcp key", tokens, sizeof tokens, key);
    memcpy(out, &magic, 8);
    memcpy(out + 8, &t->id, 8);
    memset(out + 16, 'n', TP_NONCE);
    memcpy(said, out, 16);
    memcpy(said + 17, challenge, TP_NONCE);
    memcpy(said + 17 + TP_NONCE, out + 16, TP_NONCE);
    wefti_mac(key, "weft tcp greeting", said, sizeof said, out + 16 + TP_NONCE);
}

static void write_all(int fd, const void *bytes, size_t n)
{
    CHECK_EQ(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* Drive one side until the other end of fd is closed. */
static void until_closed(lanes_side_t *s, int fd)
{
    char buf[4096];
    ssize_t got = -1;
    for (double end = test_now() + 20; test_now() < end;) {
        lanes_side_progress(s);
        got = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return;
    }
    FAIL("the connection is still there");
}

static void read_all(lanes_side_t *s, int fd, void *buf, size_t n)
{
    size_t at = 0;
    for (double end = test_now() + 20; at < n && test_now() < end;) {
        lanes_side_progress(s);
        ssize_t got = recv(fd, (char *)buf + at, n - at, MSG_DONTWAIT);
        CHECK(got > 0 || (got < 0 && errno == EAGAIN));
        at += got > 0 ? (size_t)got : 0;
    }
    CHECK_EQ(at, n);
}

static void read_challenge(lanes_side_t *s, int fd, uint8_t *challenge)
{
    uint8_t bytes[TP_CHALLENGE_N];
    uint64_t magic;
    read_all(s, fd, bytes, sizeof bytes);
    memcpy(&magic, bytes, 8);
    CHECK_EQ(magic, TP_CHALLENGE);
    memcpy(challenge, bytes + 8, TP_NONCE);
}

/* Say who we are on a connection that was just made. */
static void greet(lanes_side_t *s, int fd, uint64_t magic, const target_t *t, const uint8_t *own)
{
    uint8_t challenge[TP_NONCE], bytes[TP_GREETING_N];
    read_challenge(s, fd, challenge);
    greeting(bytes, challenge, magic, t, own, NULL);
    write_all(fd, bytes, sizeof bytes);
}

static void read_answer(lanes_side_t *s, int fd)
{
    uint8_t bytes[TP_ANSWER_N];
    uint64_t magic;
    read_all(s, fd, bytes, sizeof bytes);
    memcpy(&magic, bytes, 8);
    CHECK_EQ(magic, TP_ANSWER_OK);
}

/* --- strangers -------------------------------------------------------------------------------------------------------------- */

static void still_works(lanes_t *l)
{
    uint64_t before = l->b.records;
    lanes_send(l, &l->a, "still here", 10);
    LANES_UNTIL(l, l->b.records == before + 1);
    CHECK_EQ(l->a.failed + l->b.failed, 0);
}

TEST(strangers_are_closed_and_nobody_notices)
{
    lanes_t l;
    lanes_open(&l, "tcp");
    still_works(&l);
    target_t t = target_of(&l.b);
    uint8_t own[TP_TOKEN], bytes[TP_GREETING_N], challenge[TP_NONCE];
    memcpy(own, l.a.addr + 16, TP_TOKEN);
    for (int bit = -40; bit < 8 * TP_GREETING_N; bit++) {
        int fd = dial(&t);
        read_challenge(&l.b, fd, challenge);
        if (bit < 0 && bit >= -20)
            (bit % 2 ? own : t.token)[(bit + 20) & 15] ^= 1; /* who has only one of the tokens */
        greeting(bytes, challenge, bit % 2 ? TP_GREET_LANE : TP_GREET_BULK, &t, own, NULL);
        if (bit < 0 && bit >= -20)
            (bit % 2 ? own : t.token)[(bit + 20) & 15] ^= 1;
        if (bit >= 0)
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        else if (bit < -20)
            memset(bytes, bit, sizeof bytes);
        write_all(fd, bytes, sizeof bytes);
        until_closed(&l.b, fd);
        close(fd);
    }
    /* all of it right, but the lane has its connection: whoever knows both tokens still gets nowhere */
    int fd = dial(&t);
    greet(&l.b, fd, TP_GREET_LANE, &t, own);
    until_closed(&l.b, fd);
    close(fd);
    still_works(&l);
    CHECK_EQ(tp_transport(l.b.transport)->n_strangers, 0);
    lanes_close(&l);
}

/* Before it knows its peer, a lane can tell nobody from the right one. */
TEST(a_lane_that_waits_for_its_peer_is_not_taken_by_a_stranger)
{
    lanes_side_t s;
    uint8_t own[TP_TOKEN] = {1};
    lanes_side_open(&s, "tcp", NULL);
    lanes_side_new(&s);
    target_t t = target_of(&s);
    int fds[8];
    for (int i = 0; i < 8; i++) {
        own[5] = (uint8_t)i;
        fds[i] = dial(&t);
        greet(&s, fds[i], i == 6 ? TP_GREET_BULK : TP_GREET_LANE, &t, own);
    }
    write_all(fds[7], "x", 1); /* more than there is to say */
    until_closed(&s, fds[7]);
    for (int i = 0; i < 1000; i++)
        lanes_side_progress(&s);
    CHECK_EQ(tp_transport(s.transport)->n_strangers, 7);
    /* who greeted as someone else than whom the hello names is closed when that is known, and the right one is the lane's */
    uint8_t addr[32 + 18] = {1, 0, 0, 0, 1};
    own[5] = 4;
    memcpy(addr + 16, own, TP_TOKEN);
    memset(addr + 32 + 10, 0xff, 2);
    memcpy(addr + 32 + 12, "\x7f\x00\x00\x01\x01\x00", 6);
    lanes_side_connect(&s, addr, sizeof addr);
    read_answer(&s, fds[4]);
    for (int i = 0; i < 7; i++)
        if (i != 4)
            until_closed(&s, fds[i]);
    CHECK_EQ(s.records + s.failed, 0);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    lanes_side_close(&s);
}

/* --- who overhears -------------------------------------------------------------------------------------------------------- */

/* A pair with a key, of which `a` believes that `b` is at our port, and who dials whom. */
typedef struct overheard {
    lanes_t l;
    lanes_side_t *dialler, *acceptor;
    int listener;
    target_t t; /* the acceptor's, truly */
} overheard_t;

static int listen_anywhere(uint16_t *port_out)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && !bind(fd, (void *)&a, n) && !listen(fd, 8) && !getsockname(fd, (void *)&a, &n));
    *port_out = ntohs(a.sin_port);
    return fd;
}

/* As if the peer's lane were at 127.0.0.1, at this port. */
static void connect_at(lanes_side_t *s, const lanes_side_t *peer, uint16_t port)
{
    uint8_t addr[32 + 18], one[4] = {1};
    memcpy(addr, peer->addr, 32);
    memcpy(addr + 4, one, 4);
    memset(addr + 32, 0, 10);
    memset(addr + 32 + 10, 0xff, 2);
    memcpy(addr + 32 + 12, "\x7f\x00\x00\x01", 4);
    memcpy(addr + 32 + 16, &port, 2);
    lanes_side_connect(s, addr, sizeof addr);
}

static void overheard_open(overheard_t *o)
{
    uint16_t port;
    memset(o, 0, sizeof *o);
    lanes_side_open(&o->l.a, "tcp", NULL);
    lanes_side_open(&o->l.b, "tcp", NULL);
    memset(o->l.a.secret, 's', WEFTI_SECRET_SIZE);
    memset(o->l.b.secret, 's', WEFTI_SECRET_SIZE);
    lanes_new(&o->l.a, &o->l.b);
    bool a_leads = memcmp(o->l.a.addr + 16, o->l.b.addr + 16, TP_TOKEN) < 0;
    o->dialler = a_leads ? &o->l.a : &o->l.b;
    o->acceptor = a_leads ? &o->l.b : &o->l.a;
    o->t = target_of(o->acceptor);
    o->listener = listen_anywhere(&port);
    connect_at(o->acceptor, o->dialler, 1); /* nobody: only the one may call */
    connect_at(o->dialler, o->acceptor, port);
}

static int answer_call(overheard_t *o)
{
    int fd = -1;
    CHECK(!fcntl(o->listener, F_SETFL, O_NONBLOCK));
    LANES_UNTIL(&o->l, (fd = accept(o->listener, NULL, NULL)) >= 0);
    return fd;
}

/* Somebody between the two takes a greeting down and carries the bytes: what it took down is of no other use. */
static void carry(overheard_t *o, bool bulk, int ends[2])
{
    uint8_t challenge[TP_CHALLENGE_N], bytes[TP_GREETING_N], nonce[TP_NONCE], answer[TP_ANSWER_N];
    ends[0] = answer_call(o);
    ends[1] = dial(&o->t);
    read_all(o->acceptor, ends[1], challenge, sizeof challenge);
    write_all(ends[0], challenge, sizeof challenge);
    read_all(o->dialler, ends[0], bytes, sizeof bytes);
    for (int round = 0; round < 4; round++) {
        /* as it is, as the other kind of greeting, and once more */
        uint8_t copy[TP_GREETING_N];
        uint64_t other = bulk ? TP_GREET_LANE : TP_GREET_BULK;
        int fd = dial(&o->t);
        read_challenge(o->acceptor, fd, nonce);
        memcpy(copy, bytes, sizeof copy);
        if (round == 2)
            memcpy(copy, &other, 8);
        write_all(fd, copy, sizeof copy);
        until_closed(o->acceptor, fd);
        close(fd);
        if (round != 2)
            continue;
        write_all(ends[1], bytes, sizeof bytes);
        read_all(o->acceptor, ends[1], answer, sizeof answer);
        write_all(ends[0], answer, sizeof answer);
    }
}

static void pump(const int ends[2])
{
    static uint8_t buf[65536];
    for (int i = 0; i < 2; i++) {
        ssize_t n = recv(ends[i], buf, sizeof buf, MSG_DONTWAIT);
        if (n > 0)
            write_all(ends[!i], buf, (size_t)n);
    }
}

TEST(an_overheard_greeting_is_good_for_nothing)
{
    enum { N = 1 << 20 };
    static uint8_t src[N], dst[N];
    overheard_t o;
    int lane[2], bulk[2];
    lanes_xfer_t out, in;
    weft_iov_t iov = {src, N};
    overheard_open(&o);
    carry(&o, false, lane);
    /* a large payload, for which there is to be a second connection */
    memset(src, 7, N);
    lanes_xfer_init(&out);
    while (o.acceptor->lane->ops->announce(o.acceptor->lane, "x", 1, &iov, 1, N, &out.x)) {
        lanes_progress(&o.l);
        pump(lane);
    }
    for (double end = test_now() + 20; !o.dialler->announced;) {
        CHECK(test_now() < end);
        lanes_progress(&o.l);
        pump(lane);
    }
    /* who overheard both tokens, and knows not the secret */
    uint8_t challenge[TP_NONCE], bytes[TP_GREETING_N], token[TP_TOKEN];
    memcpy(token, o.dialler->addr + 16, TP_TOKEN);
    for (int i = 0; i < 4; i++) {
        int fd = dial(&o.t);
        read_challenge(o.acceptor, fd, challenge);
        greeting(bytes, challenge, i % 2 ? TP_GREET_LANE : TP_GREET_BULK, &o.t, token, i < 2 ? NULL : token);
        write_all(fd, bytes, sizeof bytes);
        until_closed(o.acceptor, fd);
        close(fd);
        CHECK(!tp_lane(o.acceptor->lane)->bulk);
    }
    lanes_pull(o.dialler, 0, dst, N, &in);
    for (double end = test_now() + 20; !tp_lane(o.dialler->lane)->bulk;) {
        CHECK(test_now() < end);
        lanes_progress(&o.l);
        pump(lane);
    }
    carry(&o, true, bulk);
    for (double end = test_now() + 20; !(in.done && out.done);) {
        CHECK(test_now() < end);
        lanes_progress(&o.l);
        pump(lane);
        pump(bulk);
    }
    CHECK_EQ(in.status, WEFT_OK);
    CHECK(!memcmp(src, dst, N));
    CHECK_EQ(o.l.a.failed + o.l.b.failed, 0);
    for (int i = 0; i < 2; i++) {
        close(lane[i]);
        close(bulk[i]);
    }
    close(o.listener);
    lanes_close(&o.l);
}

/* An address of the peer's may be another host's on our side of a network. */
TEST(whoever_answers_at_an_address_of_the_peer_is_not_taken_for_it)
{
    overheard_t o;
    uint8_t challenge[TP_CHALLENGE_N] = {0}, bytes[TP_GREETING_N], answer[TP_ANSWER_N] = {0};
    uint64_t ask = TP_CHALLENGE, okay = TP_ANSWER_OK;
    overheard_open(&o);
    memcpy(challenge, &ask, 8);
    memcpy(answer, &okay, 8);
    for (int i = 0; i < 3; i++) {
        int fd = answer_call(&o);
        write_all(fd, challenge, sizeof challenge);
        read_all(o.dialler, fd, bytes, sizeof bytes);
        if (i == 1)
            memcpy(answer + 8, bytes + 16 + TP_NONCE, WEFTI_SECRET_SIZE); /* its own words */
        write_all(fd, answer, i == 2 ? 8 : sizeof answer);
        if (i == 2)
            shutdown(fd, SHUT_WR);
        until_closed(o.dialler, fd);
        close(fd);
        CHECK_EQ(tp_lane(o.dialler->lane)->state, TP_LANE_JOINING);
    }
    close(o.listener);
    lanes_close(&o.l);
}

/* Two lanes of one side, each told that the other one is its peer: as a listener might that has two callers. */
TEST(two_diallers_cannot_be_joined_to_each_other)
{
    lanes_t l, m;
    lanes_side_open(&l.a, "tcp", NULL);
    lanes_side_open(&l.b, "tcp", NULL);
    lanes_side_open(&m.a, "tcp", NULL);
    lanes_side_open(&m.b, "tcp", NULL);
    lanes_new(&l.a, &l.b);
    lanes_new(&m.a, &m.b);
    lanes_side_connect(&l.a, m.a.addr, m.a.addr_n);
    lanes_side_connect(&m.a, l.a.addr, l.a.addr_n);
    for (double end = test_now() + 20; !l.a.failed && !m.a.failed;) {
        CHECK(test_now() < end);
        lanes_side_progress(&l.a);
        lanes_side_progress(&m.a);
        CHECK(tp_lane(l.a.lane)->state == TP_LANE_JOINING && tp_lane(m.a.lane)->state == TP_LANE_JOINING);
    }
    lanes_close(&l);
    lanes_close(&m);
}

/* --- strangers, still ----------------------------------------------------------------------------------------------------- */

TEST(http_and_silence_and_half_a_greeting)
{
    lanes_t l;
    lanes_open(&l, "tcp");
    still_works(&l);
    target_t t = target_of(&l.b);
    uint8_t own[TP_TOKEN] = {0}, bytes[TP_GREETING_N], challenge[TP_NONCE];
    int http = dial(&t), silent = dial(&t), half = dial(&t), gone = dial(&t);
    const char *get = "GET / HTTP/1.1\r\nHost: example.org\r\nAccept: text/html\r\nUser-Agent: none\r\n\r\n";
    write_all(http, get, strlen(get));
    read_challenge(&l.b, half, challenge);
    greeting(bytes, challenge, TP_GREET_LANE, &t, own, NULL);
    write_all(half, bytes, 30);
    write_all(gone, bytes, 30);
    close(gone);
    until_closed(&l.b, http);
    double start = test_now();
    until_closed(&l.b, silent); /* after their time */
    until_closed(&l.b, half);
    CHECK(test_now() - start < 15);
    CHECK_EQ(tp_transport(l.b.transport)->n_strangers, 0);
    still_works(&l);
    close(http);
    close(silent);
    close(half);
    lanes_close(&l);
}

TEST(a_flood_of_strangers_keeps_nobody_out)
{
    enum { N = 300 };
    lanes_t l;
    int fds[N];
    lanes_open(&l, "tcp");
    tp_transport(l.b.transport)->max_strangers = 64;
    still_works(&l);
    target_t t = target_of(&l.b);
    for (int i = 0; i < N; i++) {
        fds[i] = dial(&t);
        if (i % 3 == 0)
            write_all(fds[i], "x", 1);
        if (i % 16 == 0)
            lanes_side_progress(&l.b);
        CHECK(tp_transport(l.b.transport)->n_strangers <= 64);
    }
    static lanes_side_t a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    a.fabric = l.a.fabric, a.transport = l.a.transport, a.in_progress = true;
    b.fabric = l.b.fabric, b.transport = l.b.transport, b.in_progress = true;
    lanes_new(&a, &b);
    lanes_side_connect(&a, b.addr, b.addr_n);
    lanes_side_connect(&b, a.addr, a.addr_n);
    LANES_UNTIL(&l, lanes_try_send(&a, "through", 7));
    LANES_UNTIL(&l, b.records == 1);
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    LANES_UNTIL(&l, a.closed && b.closed);
    still_works(&l);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    lanes_close(&l);
}

/* --- a peer that lies ----------------------------------------------------------------------------------------------------- */

/* `l` is an honest pair whose side b has one more lane, `s`; its peer is us, over the socket `fd`. */
typedef struct scene {
    lanes_t l;
    lanes_side_t s;
    uint8_t own[TP_TOKEN];
    target_t t;
    int fd;
} scene_t;

/* As the peer's handshake would: an address for lane_connect, with a token that leads or follows. */
static void scene_open(scene_t *x, uint8_t first_byte)
{
    uint8_t addr[32 + 18] = {1, 0, 0, 0, 1, 0, 0, 0};
    memset(x, 0, sizeof *x);
    lanes_open(&x->l, "tcp");
    still_works(&x->l);
    x->s.fabric = x->l.b.fabric;
    x->s.transport = x->l.b.transport;
    x->s.in_progress = true;
    lanes_side_new(&x->s);
    x->t = target_of(&x->s);
    memset(x->own, first_byte, TP_TOKEN);
    memcpy(addr + 16, x->own, TP_TOKEN);
    memset(addr + 32 + 10, 0xff, 2);
    memcpy(addr + 32 + 12, "\x7f\x00\x00\x01\x01\x00", 6); /* 127.0.0.1, port 1: nobody */
    x->fd = dial(&x->t);
    if (first_byte & 1) { /* greet a lane that does not know its peer yet */
        greet(&x->l.b, x->fd, TP_GREET_LANE, &x->t, x->own);
        for (int i = 0; i < 1000; i++)
            lanes_side_progress(&x->l.b);
    }
    lanes_side_connect(&x->s, addr, sizeof addr);
    if (!(first_byte & 1))
        greet(&x->l.b, x->fd, TP_GREET_LANE, &x->t, x->own);
    read_answer(&x->l.b, x->fd);
}

static void scene_close(scene_t *x)
{
    still_works(&x->l);
    if (x->s.lane)
        x->s.lane->ops->lane_close(x->s.lane);
    if (x->s.lane)
        LANES_UNTIL(&x->l, x->s.closed);
    close(x->fd);
    lanes_close(&x->l);
}

static size_t item(uint8_t *out, uint32_t kind, uint32_t len, const void *bytes, size_t n)
{
    uint32_t head[2] = {len, kind};
    memcpy(out, head, 8);
    if (n)
        memcpy(out + 8, bytes, n);
    memset(out + 8 + n, 0, -n & 7);
    return 8 + ((n + 7) & ~(size_t)7);
}

static void say(scene_t *x, uint32_t kind, const void *bytes, size_t n)
{
    uint8_t buf[16384];
    write_all(x->fd, buf, item(buf, kind, (uint32_t)n, bytes, n));
}

TEST(a_peer_that_tells_the_truth_is_heard_byte_by_byte)
{
    for (uint8_t first = 0; first < 2; first++) {
        scene_t x;
        uint8_t buf[9000], rec[TP_REC_MAX];
        scene_open(&x, first);
        memset(rec, 7, sizeof rec);
        uint32_t sizes[] = {1, 7, 8, 9, 100, TP_REC_MAX};
        for (unsigned i = 0; i < 6; i++) {
            size_t n = item(buf, TP_USER, sizes[i], rec, sizes[i]);
            for (size_t at = 0; at < n;) {
                size_t part = i < 5 ? 1 : 977;
                part = n - at < part ? n - at : part;
                write_all(x.fd, buf + at, part);
                at += part;
                lanes_side_progress(&x.l.b);
            }
            LANES_UNTIL(&x.l, x.s.records == i + 1);
            CHECK_EQ(x.s.last_n, sizes[i]);
            CHECK_EQ(x.s.last[0], 7);
        }
        CHECK_EQ(x.s.failed, 0);
        scene_close(&x);
    }
}

TEST(garbage_fails_that_lane_alone)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        scene_t x;
        wefti_rng_t rng = {seed};
        uint64_t words[512];
        scene_open(&x, 0);
        for (int i = 0; i < 512; i++)
            words[i] = wefti_rng_next(&rng);
        write_all(x.fd, words, sizeof words);
        LANES_UNTIL(&x.l, x.s.failed);
        CHECK_EQ(x.s.why, WEFT_ERR_PROTOCOL);
        scene_close(&x);
    }
}

TEST(a_connection_that_ends_anywhere_fails_its_lane_after_what_was_whole)
{
    uint8_t buf[4096];
    size_t n = item(buf, TP_USER, 5, "first", 5);
    n += item(buf + n, TP_USER, 100, (uint8_t[100]){7}, 100);
    for (size_t cut = 0; cut <= n; cut += 3) {
        scene_t x;
        scene_open(&x, 0);
        if (cut)
            write_all(x.fd, buf, cut);
        shutdown(x.fd, SHUT_WR);
        LANES_UNTIL(&x.l, x.s.failed);
        CHECK_EQ(x.s.why, WEFT_ERR_PEER);
        CHECK_EQ(x.s.records, cut >= n ? 2 : cut >= 16 ? 1 : 0);
        scene_close(&x);
    }
}

/* The id of what was announced on it last. */
static uint64_t last_sent(wefti_lane_t *lane)
{
    return wefti_container_of(tp_lane(lane)->half.announced.prev, wefti_outgoing_t, job.link)->id;
}

/* Things that no honest peer says, each to a lane that has announced one payload and waits for another. */
TEST(items_that_make_no_sense_fail_the_lane)
{
    enum {
        LENGTH_ZERO,
        LENGTH_TOO_LONG,
        LENGTH_HUGE,
        KIND_UNKNOWN,
        CONTROL_SHORT,
        CONTROL_LONG,
        OFFER_EMPTY,
        OFFER_LONG,
        OFFER_OF_NOTHING,
        OFFER_TWICE,
        PULL_SHORT,
        PULL_UNKNOWN,
        PULL_STALE,
        PULL_NOTHING,
        PULL_TOO_MUCH,
        PULL_TWICE,
        PULL_ODD_WAY,
        TAKEN_UNKNOWN,
        TAKEN_TWICE,
        TAKEN_BEFORE_SENT,
        REFUSED_UNKNOWN,
        REFUSED_AFTER_PULL,
        DATA_UNASKED,
        DATA_EMPTY,
        DATA_TOO_LONG,
        DATA_MORE_THAN_ASKED,
        DATA_AFTER_THE_END,
        OTHERS_SEND,
        OTHERS_PULL,
        N
    };
    static uint8_t src[20000], dst[20000], long_rec[3000];
    for (int what = 0; what < N; what++) {
        scene_t x;
        lanes_xfer_t out, in, other_out, other_in;
        weft_iov_t iov = {src, sizeof src};
        uint64_t nums[4] = {0};
        uint8_t buf[64];
        scene_open(&x, 0);
        lanes_xfer_init(&out);
        LANES_UNTIL(&x.l, x.s.lane->ops->announce(x.s.lane, "r", 1, &iov, 1, sizeof src, &out.x) == WEFT_OK);
        uint64_t id = last_sent(x.s.lane);
        /* an honest pair has one of each under way too */
        lanes_xfer_init(&other_out);
        LANES_UNTIL(&x.l, x.l.b.lane->ops->announce(x.l.b.lane, "r", 1, &iov, 1, sizeof src, &other_out.x) == WEFT_OK);
        LANES_UNTIL(&x.l, x.l.a.announced == 1);
        uint64_t other_id = last_sent(x.l.b.lane);
        /* and we have offered one that is being pulled */
        uint64_t offer[3] = {77, 10000, 0};
        say(&x, TP_OFFER, offer, 17);
        LANES_UNTIL(&x.l, x.s.announced == 1);
        memset(dst, 0xaa, sizeof dst);
        lanes_pull(&x.s, 0, dst, 9000, &in);
        uint64_t slot = wefti_container_of(tp_lane(x.s.lane)->half.pulling.next, wefti_incoming_t, job.link)->slot;
        switch (what) {
        case LENGTH_ZERO:
            say(&x, TP_USER, NULL, 0);
            break;
        case LENGTH_TOO_LONG:
            write_all(x.fd, buf, item(buf, TP_USER, TP_REC_MAX + 1, "x", 1));
            break;
        case LENGTH_HUGE:
            write_all(x.fd, buf, item(buf, TP_USER, UINT32_MAX, "x", 1));
            break;
        case KIND_UNKNOWN:
            say(&x, 99, nums, 8);
            break;
        case CONTROL_SHORT:
            say(&x, TP_TAKEN, nums, 7);
            break;
        case CONTROL_LONG:
            say(&x, TP_REFUSED, nums, 16);
            break;
        case OFFER_EMPTY:
            nums[1] = 5;
            say(&x, TP_OFFER, nums, 16);
            break;
        case OFFER_LONG:
            long_rec[8] = 1;
            say(&x, TP_OFFER, long_rec, sizeof long_rec);
            break;
        case OFFER_OF_NOTHING:
            say(&x, TP_OFFER, nums, 17);
            break;
        case OFFER_TWICE:
            nums[1] = 5;
            say(&x, TP_OFFER, nums, 17);
            say(&x, TP_OFFER, nums, 17);
            break;
        case PULL_SHORT:
            say(&x, TP_PULL, nums, 24);
            break;
        case PULL_UNKNOWN:
            nums[0] = id + 1, nums[2] = 5;
            say(&x, TP_PULL, nums, 32);
            break;
        case PULL_STALE:
            nums[0] = id + (UINT64_C(2) << 32), nums[2] = 5;
            say(&x, TP_PULL, nums, 32);
            break;
        case PULL_NOTHING:
            nums[0] = id;
            say(&x, TP_PULL, nums, 32);
            break;
        case PULL_TOO_MUCH:
            nums[0] = id, nums[2] = sizeof src + 1;
            say(&x, TP_PULL, nums, 32);
            break;
        case PULL_TWICE:
            nums[0] = id, nums[2] = 5;
            say(&x, TP_PULL, nums, 32);
            say(&x, TP_PULL, nums, 32);
            break;
        case PULL_ODD_WAY:
            nums[0] = id, nums[2] = 5, nums[3] = 2;
            say(&x, TP_PULL, nums, 32);
            break;
        case TAKEN_UNKNOWN:
            nums[0] = id + 1;
            say(&x, TP_TAKEN, nums, 8);
            break;
        case TAKEN_TWICE:
            nums[0] = id;
            say(&x, TP_TAKEN, nums, 8);
            say(&x, TP_TAKEN, nums, 8);
            break;
        case TAKEN_BEFORE_SENT: /* it waits for a second connection that we never make */
            nums[0] = id, nums[2] = 5, nums[3] = 1;
            say(&x, TP_PULL, nums, 32);
            say(&x, TP_TAKEN, nums, 8);
            break;
        case REFUSED_UNKNOWN:
            say(&x, TP_REFUSED, nums, 8);
            break;
        case REFUSED_AFTER_PULL:
            nums[0] = id, nums[2] = 5;
            say(&x, TP_PULL, nums, 32);
            say(&x, TP_REFUSED, nums, 8);
            break;
        case DATA_UNASKED:
            nums[0] = slot + 1;
            write_all(x.fd, buf, item(buf, TP_DATA, 8, nums, 16));
            break;
        case DATA_EMPTY:
            nums[0] = slot;
            write_all(x.fd, buf, item(buf, TP_DATA, 0, nums, 8));
            break;
        case DATA_TOO_LONG:
            nums[0] = slot;
            write_all(x.fd, buf, item(buf, TP_DATA, TP_CHUNK + 1, nums, 16));
            break;
        case DATA_MORE_THAN_ASKED:
            nums[0] = slot;
            write_all(x.fd, buf, item(buf, TP_DATA, 9001, nums, 16));
            break;
        case DATA_AFTER_THE_END: {
            static uint8_t big[9016];
            nums[0] = slot;
            item(big, TP_DATA, 9000, nums, 8);
            write_all(x.fd, big, sizeof big);
            write_all(x.fd, buf, item(buf, TP_DATA, 8, nums, 16));
            break;
        }
        case OTHERS_SEND:
            nums[0] = other_id, nums[2] = 5;
            say(&x, TP_PULL, nums, 32);
            break;
        case OTHERS_PULL: /* the slot of a pull of another lane of the same transport */
            lanes_xfer_init(&other_in);
            LANES_UNTIL(&x.l, x.l.a.lane->ops->announce(x.l.a.lane, "r", 1, &iov, 1, sizeof src, &other_in.x) == WEFT_OK);
            LANES_UNTIL(&x.l, x.l.b.announced == 1);
            lanes_xfer_t pulled;
            lanes_pull(&x.l.b, 0, src, 100, &pulled);
            nums[0] = wefti_container_of(tp_lane(x.l.b.lane)->half.pulling.next, wefti_incoming_t, job.link)->slot;
            write_all(x.fd, buf, item(buf, TP_DATA, 8, nums, 16));
            LANES_UNTIL(&x.l, pulled.done && other_in.done);
            CHECK_EQ(pulled.status, WEFT_OK);
            break;
        }
        LANES_UNTIL(&x.l, x.s.failed);
        if (x.s.why != WEFT_ERR_PROTOCOL)
            FAIL("case %d: %s", what, weft_status_name(x.s.why));
        for (size_t i = what == DATA_AFTER_THE_END ? 9000 : 0; i < sizeof dst; i++)
            CHECK_EQ(dst[i], 0xaa);
        /* the honest pair's payload can still be had */
        lanes_xfer_t honest;
        lanes_pull(&x.l.a, 0, dst, sizeof dst, &honest);
        LANES_UNTIL(&x.l, honest.done && other_out.done);
        CHECK_EQ(honest.status, WEFT_OK);
        CHECK_EQ(other_out.status, WEFT_OK);
        scene_close(&x);
        CHECK_EQ(out.done, 1);
        CHECK_EQ(in.done, 1);
    }
}

/* The second connection of a lane has a grammar too. */
TEST(a_second_connection_that_lies_fails_its_lane)
{
    enum { SLOT_UNKNOWN, LENGTH_WRONG, NOBODY_ASKED, ENDS_EARLY, ENDS_IN_THE_HEAD, OTHER_WAY_TOO, N };
    static uint8_t dst[200000];
    for (int what = 0; what < N; what++) {
        scene_t x;
        lanes_xfer_t in;
        uint64_t head[2], offer[3] = {77, sizeof dst, 0};
        scene_open(&x, 0);
        int bulk = dial(&x.t);
        greet(&x.l.b, bulk, TP_GREET_BULK, &x.t, x.own);
        read_answer(&x.l.b, bulk);
        int again = dial(&x.t); /* one is enough */
        greet(&x.l.b, again, TP_GREET_BULK, &x.t, x.own);
        until_closed(&x.l.b, again);
        close(again);
        if (what != NOBODY_ASKED) {
            say(&x, TP_OFFER, offer, 17);
            LANES_UNTIL(&x.l, x.s.announced == 1);
            lanes_pull(&x.s, 0, dst, sizeof dst, &in);
            head[0] = wefti_container_of(tp_lane(x.s.lane)->half.pulling.next, wefti_incoming_t, job.link)->slot;
            head[1] = sizeof dst;
        } else {
            head[0] = UINT64_C(1) << 32;
            head[1] = 1;
        }
        head[0] += what == SLOT_UNKNOWN;
        head[1] += what == LENGTH_WRONG;
        write_all(bulk, head, what == ENDS_IN_THE_HEAD ? 9 : 16);
        if (what == ENDS_EARLY)
            write_all(bulk, dst, 1000);
        if (what == OTHER_WAY_TOO) {
            uint8_t buf[64];
            for (int i = 0; i < 1000 && !tp_lane(x.s.lane)->bulk->pull; i++)
                lanes_side_progress(&x.l.b);
            uint64_t nums[2] = {head[0], 0};
            write_all(x.fd, buf, item(buf, TP_DATA, 8, nums, 16));
        }
        if (what == ENDS_EARLY || what == ENDS_IN_THE_HEAD)
            shutdown(bulk, SHUT_WR);
        LANES_UNTIL(&x.l, x.s.failed);
        CHECK_EQ(x.s.why, what == ENDS_EARLY || what == ENDS_IN_THE_HEAD ? WEFT_ERR_PEER : WEFT_ERR_PROTOCOL);
        scene_close(&x);
        if (what != NOBODY_ASKED)
            CHECK_EQ(in.done, 1);
        close(bulk);
    }
}

static void refuse_each(lanes_side_t *s, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    (void)s, (void)rec, (void)n, (void)total;
    p->ops->refuse(p, false);
}

/* A peer that offers without end and reads none of the answers is given up before it has cost much. */
TEST(a_peer_that_reads_nothing_is_given_up)
{
    scene_t x;
    static uint8_t buf[1000 * 32];
    uint64_t id = 0;
    scene_open(&x, 0);
    x.s.on_announced = refuse_each;
    int small = 4096;
    setsockopt(x.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (double end = test_now() + 30; !x.s.failed && test_now() < end;) {
        size_t n = 0;
        while (n < sizeof buf) {
            uint64_t offer[3] = {++id, 1000, 0};
            n += item(buf + n, TP_OFFER, 17, offer, 17);
        }
        for (size_t at = 0; at < n && !x.s.failed && test_now() < end;) {
            ssize_t got = send(x.fd, buf + at, n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
            at += got > 0 ? (size_t)got : 0;
            lanes_side_progress(&x.l.b);
        }
    }
    CHECK_EQ(x.s.failed, 1);
    CHECK_EQ(x.s.why, WEFT_ERR_PROTOCOL);
    CHECK(tp_lane(x.s.lane)->queued <= TP_QUEUE_FORCED);
    scene_close(&x);
}
