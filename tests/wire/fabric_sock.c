/* tests/wire/fabric_sock.c - wires and posts of the real fabric: what they carry, and what strangers, full tables and bad
 * addresses do to them. Two fabrics in one process, and plain sockets for those who do not speak Weft. */
#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/config.h"
#include "fabric/fabric.h"
#include "lanes.h"
#include <weft/config.h>

typedef struct net net_t;

/* One end of a wire, with what happened to it. */
typedef struct end {
    net_t *net;
    wefti_wire_t *wire;
    unsigned opened, closed, messages;
    weft_status_t why;
    size_t last_n;
    uint8_t last[WEFTI_WIRE_MAX];
    bool close_on_message, echo;
} end_t;

struct net {
    wefti_config_t config;
    wefti_fabric_t *f;
    end_t accepted[64];
    unsigned n_accepted;
    bool in_progress, turn_away, close_post_on_accept;
    wefti_acceptor_t *post;
    char from[256];
};

static void need_progress(const net_t *n)
{
    if (!n->in_progress)
        FAIL("an upcall outside progress");
}

static void up_accepted(void *acceptor_user, wefti_wire_t *wire, const char *from)
{
    net_t *n = acceptor_user;
    need_progress(n);
    snprintf(n->from, sizeof n->from, "%s", from);
    if (n->turn_away) {
        n->n_accepted++;
        n->f->ops->wire_close(wire);
        return;
    }
    CHECK(n->n_accepted < 64);
    end_t *e = &n->accepted[n->n_accepted++];
    e->net = n;
    e->wire = wire;
    wire->user = e;
    if (n->close_post_on_accept) {
        n->f->ops->acceptor_close(n->post);
        n->post = NULL;
    }
}

static void up_opened(void *user)
{
    end_t *e = user;
    need_progress(e->net);
    e->opened++;
}

static void up_message(void *user, const void *bytes, size_t n)
{
    end_t *e = user;
    need_progress(e->net);
    CHECK_EQ(e->closed, 0);
    e->messages++;
    e->last_n = n;
    memcpy(e->last, bytes, n);
    if (e->echo)
        CHECK_OK(e->net->f->ops->wire_send(e->wire, bytes, n));
    if (e->close_on_message) {
        e->net->f->ops->wire_close(e->wire);
        e->wire = NULL;
    }
}

static void up_closed(void *user, weft_status_t why)
{
    end_t *e = user;
    need_progress(e->net);
    CHECK(e->wire);
    CHECK_EQ(e->closed, 0);
    e->closed++;
    e->why = why;
    e->wire = NULL;
}

static const wefti_fabric_up_t up = {
    .wire_accepted = up_accepted, .wire_opened = up_opened, .wire_message = up_message, .wire_closed = up_closed};

static void net_open(net_t *n)
{
    memset(n, 0, sizeof *n);
    CHECK_OK(wefti_config_read(&n->config));
    n->config.transports = "shm";
    CHECK_OK(wefti_fabric_open_real(&n->config, &n->f));
    n->f->up = &up;
}

static void net_close(net_t *n)
{
    n->f->ops->close(n->f);
    wefti_config_free(&n->config);
}

static void net_progress(net_t *n)
{
    n->in_progress = true;
    n->f->ops->progress(n->f, true);
    n->in_progress = false;
}

#define UNTIL(a, b, cond) \
    do { \
        net_t *until_a = (a), *until_b = (b); \
        double until_end = test_now() + 10; \
        while (!(cond)) { \
            net_progress(until_a); \
            if (until_b) \
                net_progress(until_b); \
            if (test_now() > until_end) \
                FAIL("still not true: %s", #cond); \
        } \
    } while (0)

static wefti_uri_t uri_of(const char *text)
{
    wefti_uri_t uri;
    CHECK_OK(wefti_uri_parse(&text, &uri));
    return uri;
}

static void post(net_t *n, const char *text)
{
    wefti_uri_t uri = uri_of(text);
    CHECK_OK(n->f->ops->acceptor_open(n->f, &uri, NULL, 64, n, &n->post));
}

static void dial(net_t *n, end_t *e, const char *text, const char *source)
{
    wefti_uri_t uri = uri_of(text);
    memset(e, 0, sizeof *e);
    e->net = n;
    CHECK_OK(n->f->ops->wire_dial(n->f, &uri, NULL, source, e, &e->wire));
    CHECK_EQ(e->opened + e->closed, 0);
}

/* Post at `text` on b, dial it from a, and wait until both know. */
static void join(net_t *a, end_t *e, net_t *b, const char *text)
{
    net_open(a);
    net_open(b);
    post(b, text);
    dial(a, e, b->f->ops->acceptor_uri(b->post), NULL);
    UNTIL(a, b, e->opened && b->n_accepted == 1);
}

static void part(net_t *a, net_t *b)
{
    if (b->post)
        b->f->ops->acceptor_close(b->post);
    net_close(a);
    net_close(b);
}

static void hello_both_ways(const char *text)
{
    static net_t a, b;
    static end_t e;
    join(&a, &e, &b, text);
    b.accepted[0].echo = true;
    CHECK_OK(a.f->ops->wire_send(e.wire, "hello", 5));
    UNTIL(&a, &b, e.messages == 1);
    CHECK_EQ(e.last_n, 5);
    CHECK(!memcmp(e.last, "hello", 5));
    a.f->ops->wire_close(e.wire);
    UNTIL(&b, NULL, b.accepted[0].closed);
    CHECK_EQ(b.accepted[0].why, WEFT_ERR_PEER);
    part(&a, &b);
}

TEST(an_ipv4_wire_carries_messages_both_ways)
{
    hello_both_ways("tcp://127.0.0.1:0");
}
TEST(an_ipv6_wire_carries_messages_both_ways)
{
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (fd < 0 || bind(fd, (void *)&any, sizeof any))
        SKIP("this machine has no IPv6 loopback");
    close(fd);
    hello_both_ways("tcp://[::1]:0");
}
TEST(an_abstract_unix_wire_carries_messages_both_ways)
{
    char text[64];
    snprintf(text, sizeof text, "unix://@weft-test-%d", (int)getpid());
    hello_both_ways(text);
}

TEST(a_unix_path_is_removed_with_its_post_and_a_stale_one_is_replaced)
{
    char dir[] = "/tmp/weft-sock-XXXXXX", path[64], text[80];
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    snprintf(text, sizeof text, "unix://%s", path);
    hello_both_ways(text);
    CHECK(access(path, F_OK));
    /* stale: bound by someone who is gone */
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!bind(fd, (void *)&un, sizeof un));
    close(fd);
    hello_both_ways(text);
    CHECK(access(path, F_OK));
    /* alive: refused, and left alone */
    static net_t a, b;
    net_open(&a);
    net_open(&b);
    post(&a, text);
    wefti_uri_t uri = uri_of(text);
    CHECK_EQ(b.f->ops->acceptor_open(b.f, &uri, NULL, 8, &b, &b.post), WEFT_ERR_ADDRESS);
    CHECK(strstr(weft_last_error(), path));
    CHECK(!access(path, F_OK));
    a.f->ops->acceptor_close(a.post);
    /* a plain file is nobody's to remove */
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0);
    close(fd);
    CHECK_EQ(b.f->ops->acceptor_open(b.f, &uri, NULL, 8, &b, &b.post), WEFT_ERR_ADDRESS);
    CHECK(!access(path, F_OK));
    unlink(path);
    rmdir(dir);
    net_close(&a);
    net_close(&b);
}

TEST(a_device_name_binds_all_its_addresses_on_one_port)
{
    static net_t n, a;
    static end_t e;
    net_open(&n);
    net_open(&a);
    post(&n, "tcp://lo:0");
    const char *uris = n.f->ops->acceptor_uri(n.post);
    CHECK(strstr(uris, "tcp://127.0.0.1:"));
    unsigned port = 0, accepted = 0;
    for (const char *at = uris; *at;) {
        wefti_uri_t uri;
        char one[300];
        CHECK_OK(wefti_uri_parse(&at, &uri));
        CHECK(uri.port != 0 && (!port || port == uri.port));
        port = uri.port;
        wefti_uri_format(&uri, one, sizeof one);
        dial(&a, &e, one, NULL);
        UNTIL(&a, &n, e.opened && n.n_accepted == accepted + 1);
        accepted++;
    }
    n.f->ops->acceptor_close(n.post);
    n.post = NULL;
    wefti_uri_t uri = uri_of("tcp://no-such-device-or-host.invalid:0");
    CHECK_EQ(n.f->ops->acceptor_open(n.f, &uri, NULL, 8, &n, &n.post), WEFT_ERR_ADDRESS);
    uri = uri_of("tcp://192.0.2.1:0");
    CHECK_EQ(n.f->ops->acceptor_open(n.f, &uri, NULL, 8, &n, &n.post), WEFT_ERR_ADDRESS);
    part(&a, &n);
}

TEST(messages_of_every_size_arrive_whole_and_in_order)
{
    static net_t a, b;
    static end_t e;
    static uint8_t buf[WEFTI_WIRE_MAX + 1];
    static const size_t sizes[] = {0, 1, 7, 8, 9, 4096, 65527, 65528, 65535, 65536, 3};
    join(&a, &e, &b, "tcp://127.0.0.1:0");
    for (size_t i = 0; i < sizeof buf; i++)
        buf[i] = (uint8_t)(i * 131);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK_OK(a.f->ops->wire_send(e.wire, buf, sizes[i]));
        UNTIL(&a, &b, b.accepted[0].messages == i + 1);
        CHECK_EQ(b.accepted[0].last_n, sizes[i]);
        CHECK(!memcmp(b.accepted[0].last, buf, sizes[i]));
    }
    unsigned before = b.accepted[0].messages;
    for (unsigned i = 0; i < 500; i++) {
        CHECK_OK(a.f->ops->wire_send(e.wire, buf, i * 17 % 3000));
        if (i % 50 == 49)
            UNTIL(&a, &b, b.accepted[0].messages == before + i + 1);
    }
    CHECK_EQ(a.f->ops->wire_send(e.wire, buf, WEFTI_WIRE_MAX + 1), WEFT_ERR_INVALID);
    part(&a, &b);
}

TEST(messages_sent_before_the_wire_is_open_go_out_when_it_is)
{
    static net_t a, b;
    static end_t e;
    net_open(&a);
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    dial(&a, &e, b.f->ops->acceptor_uri(b.post), NULL);
    CHECK_OK(a.f->ops->wire_send(e.wire, "early", 5));
    UNTIL(&a, &b, b.n_accepted && b.accepted[0].messages == 1);
    CHECK(!memcmp(b.accepted[0].last, "early", 5));
    CHECK(!strncmp(b.from, "tcp://127.0.0.1:", 16));
    part(&a, &b);
}

TEST(what_was_queued_before_a_close_still_arrives)
{
    static net_t a, b;
    static end_t e;
    join(&a, &e, &b, "tcp://127.0.0.1:0");
    /* unread bytes here must not turn our close into a reset */
    CHECK_OK(b.f->ops->wire_send(b.accepted[0].wire, "you do not read this", 20));
    CHECK_OK(a.f->ops->wire_send(e.wire, "last words", 10));
    a.f->ops->wire_close(e.wire);
    UNTIL(&b, &a, b.accepted[0].closed);
    CHECK_EQ(b.accepted[0].messages, 1);
    part(&a, &b);
}

static void dial_fails(const char *text, const char *source, weft_status_t want)
{
    static net_t a;
    static end_t e;
    net_open(&a);
    dial(&a, &e, text, source);
    UNTIL(&a, NULL, e.closed);
    CHECK_EQ(e.opened, 0);
    CHECK_EQ(e.why, want);
    net_close(&a);
}

TEST(a_dial_nobody_answers_says_why)
{
    static net_t b;
    char text[64];
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    snprintf(text, sizeof text, "%s", b.f->ops->acceptor_uri(b.post));
    b.f->ops->acceptor_close(b.post);
    dial_fails(text, NULL, WEFT_ERR_REFUSED);
    dial_fails("unix:///tmp/weft-no-such-socket", NULL, WEFT_ERR_REFUSED);
    dial_fails("unix://@weft-no-such-name", NULL, WEFT_ERR_REFUSED);
    dial_fails(text, "192.0.2.1", WEFT_ERR_ADDRESS);
    dial_fails(text, "::1", WEFT_ERR_ADDRESS);
    net_close(&b);
}

TEST(a_dial_of_nonsense_fails_at_once)
{
    static net_t a;
    end_t e;
    net_open(&a);
    wefti_uri_t uri = uri_of("tcp://127.0.0.1:1");
    CHECK_EQ(a.f->ops->wire_dial(a.f, &uri, NULL, "not an address", &e, &e.wire), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "not an address"));
    CHECK_EQ(a.f->ops->wire_dial(a.f, &uri, NULL, "127.0.0.1:99999", &e, &e.wire), WEFT_ERR_INVALID);
    uri.port = 0;
    CHECK_EQ(a.f->ops->wire_dial(a.f, &uri, NULL, NULL, &e, &e.wire), WEFT_ERR_INVALID);
    net_close(&a);
}

TEST(a_wire_leaves_from_the_source_it_was_given)
{
    static net_t a, b;
    static end_t e;
    net_open(&a);
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    dial(&a, &e, b.f->ops->acceptor_uri(b.post), "127.0.0.7");
    UNTIL(&a, &b, e.opened && b.n_accepted == 1);
    CHECK(!strncmp(b.from, "tcp://127.0.0.7:", 16));
    part(&a, &b);
}

TEST(a_name_is_dialled)
{
    static net_t a, b;
    static end_t e;
    char text[64];
    net_open(&a);
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    snprintf(text, sizeof text, "tcp://localhost:%s", strrchr(b.f->ops->acceptor_uri(b.post), ':') + 1);
    dial(&a, &e, text, NULL);
    UNTIL(&a, &b, e.opened || e.closed);
    CHECK_EQ(e.opened, 1);
    part(&a, &b);
    dial_fails("tcp://no-such-host.invalid:1", NULL, WEFT_ERR_ADDRESS);
}

TEST(a_wire_closed_while_its_name_is_looked_up_is_silent)
{
    static net_t a;
    static end_t e[20];
    net_open(&a);
    for (int i = 0; i < 20; i++)
        dial(&a, &e[i], "tcp://no-such-host.invalid:1", NULL);
    for (int i = 0; i < 20; i++) {
        if (i % 2)
            net_progress(&a);
        if (e[i].wire)
            a.f->ops->wire_close(e[i].wire);
    }
    double end = test_now() + 0.3;
    while (test_now() < end)
        net_progress(&a);
    net_close(&a);
    usleep(200000); /* the threads that are still asking touch nothing of ours */
}

/* --- strangers -------------------------------------------------------------------------------------------------------------- */

static unsigned lines;
static void count_lines(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
    lines++;
}

static int plain_connect(const char *uri_text)
{
    wefti_uri_t uri = uri_of(uri_text);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(uri.port)};
    inet_pton(AF_INET, uri.host, &in.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(fd, (void *)&in, sizeof in));
    return fd;
}

TEST(garbage_ends_its_own_wire_with_one_line_and_no_other)
{
    static const struct {
        const char *bytes;
        size_t n;
    } junk[] = {{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27},
                {"\x16\x03\x01\x02", 4},
                {"W", 1},
                {"WFT2....", 8},
                {"WFT1\xff\xff\xff\xff", 8},
                {"WFT1\x01\x00\x01\x00", 8},
                {"\0", 1}};
    static net_t a, b;
    static end_t e;
    join(&a, &e, &b, "tcp://127.0.0.1:0");
    b.accepted[0].echo = true;
    weft_log_set_level(WEFT_LOG_INFO);
    weft_log_set_sink(count_lines, NULL);
    for (unsigned i = 0; i < sizeof junk / sizeof junk[0]; i++) {
        lines = 0;
        int fd = plain_connect(b.f->ops->acceptor_uri(b.post));
        CHECK_EQ(send(fd, junk[i].bytes, junk[i].n, 0), (ssize_t)junk[i].n);
        bool partial = junk[i].n == 1 && junk[i].bytes[0] == 'W'; /* could still become ours: ends with its sender */
        if (partial)
            shutdown(fd, SHUT_WR);
        UNTIL(&b, &a, b.n_accepted == i + 2 && b.accepted[i + 1].closed);
        CHECK_EQ(b.accepted[i + 1].why, partial ? WEFT_ERR_PEER : WEFT_ERR_PROTOCOL);
        CHECK_EQ(b.accepted[i + 1].messages, 0);
        CHECK(lines <= 1);
        char answer[16];
        bool tls = junk[i].bytes[0] == 22; /* who speaks TLS is told, in an alert of seven bytes, that nobody does here */
        CHECK(recv(fd, answer, sizeof answer, 0) == 7 ? tls && answer[0] == 21 : !tls);
        close(fd);
        CHECK_OK(a.f->ops->wire_send(e.wire, "still here?", 11));
        UNTIL(&a, &b, e.messages == i + 1);
    }
    part(&a, &b);
}

TEST(a_message_in_single_bytes_arrives_whole)
{
    static net_t b;
    uint8_t bytes[8 + 300] = {'W', 'F', 'T', '1', 44, 1};
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    int fd = plain_connect(b.f->ops->acceptor_uri(b.post));
    for (unsigned i = 0; i < sizeof bytes; i++) {
        CHECK_EQ(send(fd, bytes + i, 1, 0), 1);
        net_progress(&b);
    }
    UNTIL(&b, NULL, b.n_accepted && b.accepted[0].messages == 1);
    CHECK_EQ(b.accepted[0].last_n, 300);
    close(fd);
    UNTIL(&b, NULL, b.accepted[0].closed);
    net_close(&b);
}

TEST(a_peer_that_never_reads_is_given_up_after_a_bounded_queue)
{
    static net_t b;
    static uint8_t big[WEFTI_WIRE_MAX];
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    int fd = plain_connect(b.f->ops->acceptor_uri(b.post));
    UNTIL(&b, NULL, b.n_accepted);
    unsigned sent = 0;
    while (b.accepted[0].wire && sent < 2000) {
        CHECK_OK(b.f->ops->wire_send(b.accepted[0].wire, big, sizeof big));
        sent++;
        net_progress(&b);
    }
    CHECK(sent < 2000);
    CHECK_EQ(b.accepted[0].why, WEFT_ERR_PEER);
    close(fd);
    net_close(&b);
}

TEST(a_slow_reader_gets_everything)
{
    static net_t a, b;
    static end_t e;
    static uint8_t big[WEFTI_WIRE_MAX];
    join(&a, &e, &b, "tcp://127.0.0.1:0");
    for (unsigned i = 0; i < 14; i++)
        CHECK_OK(a.f->ops->wire_send(e.wire, big, sizeof big)); /* under the limit, over what the sockets hold at once or not */
    UNTIL(&a, &b, b.accepted[0].messages == 14);
    part(&a, &b);
}

/* --- upcalls that close --------------------------------------------------------------------------------------------------- */

TEST(a_wire_may_be_closed_from_inside_its_message_upcall)
{
    static net_t a, b;
    static end_t e;
    join(&a, &e, &b, "tcp://127.0.0.1:0");
    b.accepted[0].close_on_message = true;
    for (int i = 0; i < 20; i++)
        CHECK_OK(a.f->ops->wire_send(e.wire, "x", 1));
    UNTIL(&b, &a, e.closed);
    CHECK_EQ(b.accepted[0].messages, 1);
    CHECK_EQ(b.accepted[0].closed, 0);
    part(&a, &b);
}

TEST(a_newcomer_may_be_closed_and_a_post_too_from_inside_the_upcall)
{
    static net_t a, b;
    static end_t e[3];
    net_open(&a);
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    b.turn_away = true;
    for (int i = 0; i < 3; i++)
        dial(&a, &e[i], b.f->ops->acceptor_uri(b.post), NULL);
    UNTIL(&a, &b, e[0].closed && e[1].closed && e[2].closed);
    CHECK_EQ(b.n_accepted, 3);
    b.turn_away = false;
    b.n_accepted = 0;
    b.close_post_on_accept = true;
    for (int i = 0; i < 3; i++)
        dial(&a, &e[i], b.f->ops->acceptor_uri(b.post), NULL);
    UNTIL(&a, &b, b.n_accepted == 1 && !b.post && e[0].opened + e[0].closed);
    for (int i = 0; i < 100; i++) {
        net_progress(&a);
        net_progress(&b);
    }
    CHECK_EQ(b.n_accepted, 1);
    net_close(&a);
    net_close(&b);
}

/* --- limits --------------------------------------------------------------------------------------------------------------- */

TEST(descriptors_exhausted_turn_newcomers_away_and_nothing_spins)
{
    static net_t a, b;
    static end_t e, late;
    int hold[256], n = 0, fds[8];
    join(&a, &e, &b, "tcp://127.0.0.1:0");
    for (int i = 0; i < 8; i++)
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    struct rlimit lim = {200, 200};
    CHECK(!setrlimit(RLIMIT_NOFILE, &lim));
    while (n < 256 && (hold[n] = dup(0)) >= 0)
        n++;
    wefti_uri_t uri = uri_of(b.f->ops->acceptor_uri(b.post));
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(uri.port)};
    inet_pton(AF_INET, uri.host, &in.sin_addr);
    for (int i = 0; i < 8; i++)
        CHECK(!connect(fds[i], (void *)&in, sizeof in));
    /* each is turned away: reads the end */
    for (int i = 0; i < 8; i++) {
        struct pollfd p = {.fd = fds[i], .events = POLLIN};
        double end = test_now() + 5;
        while (poll(&p, 1, 0) == 0 && test_now() < end)
            net_progress(&b);
        char c;
        CHECK(recv(fds[i], &c, 1, 0) <= 0);
    }
    CHECK_EQ(b.n_accepted, 1);
    /* quiet afterwards: the fd of the fabric is not readable for ever */
    for (int i = 0; i < 10; i++)
        net_progress(&b);
    struct pollfd p = {.fd = b.f->ops->event_fd(b.f), .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 50), 0);
    /* a dial fails with LIMIT, and the old wire works */
    dial(&a, &late, b.f->ops->acceptor_uri(b.post), NULL);
    UNTIL(&a, &b, late.closed);
    CHECK_EQ(late.why, WEFT_ERR_LIMIT);
    b.accepted[0].echo = true;
    CHECK_OK(a.f->ops->wire_send(e.wire, "ok?", 3));
    UNTIL(&a, &b, e.messages == 1);
    while (n > 0)
        close(hold[--n]);
    dial(&a, &late, b.f->ops->acceptor_uri(b.post), NULL);
    UNTIL(&a, &b, late.opened);
    part(&a, &b);
}

TEST(a_listener_that_paused_wakes_who_sleeps)
{
    static net_t b;
    struct rlimit was, none = {.rlim_cur = 3};
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    for (int i = 0; i < 10; i++)
        net_progress(&b);
    int fd = plain_connect(b.f->ops->acceptor_uri(b.post));
    CHECK(!getrlimit(RLIMIT_NOFILE, &was));
    none.rlim_max = was.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none)); /* not even the spare one can be had again */
    for (int i = 0; i < 10; i++)
        net_progress(&b);
    CHECK_EQ(b.n_accepted, 0);
    CHECK(!setrlimit(RLIMIT_NOFILE, &was));
    while (!b.n_accepted) { /* as a loop does that drives only when there is something */
        struct pollfd p = {.fd = b.f->ops->event_fd(b.f), .events = POLLIN};
        CHECK_OK(b.f->ops->arm(b.f));
        CHECK_EQ(poll(&p, 1, 10000), 1);
        b.f->ops->disarm(b.f);
        net_progress(&b);
    }
    close(fd);
    b.f->ops->acceptor_close(b.post);
    net_close(&b);
}

TEST(a_thousand_wires_come_and_go)
{
    static net_t a, b;
    static end_t e;
    net_open(&a);
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    for (unsigned i = 0; i < 1000; i++) {
        b.n_accepted = 0;
        memset(&b.accepted[0], 0, sizeof(unsigned) * 8);
        b.accepted[0].echo = true;
        dial(&a, &e, b.f->ops->acceptor_uri(b.post), NULL);
        CHECK_OK(a.f->ops->wire_send(e.wire, &i, sizeof i));
        UNTIL(&a, &b, e.messages == 1);
        if (i % 2)
            a.f->ops->wire_close(e.wire);
        else
            b.f->ops->wire_close(b.accepted[0].wire);
        UNTIL(&a, &b, i % 2 ? b.accepted[0].closed : e.closed);
    }
    part(&a, &b);
}

/* --- sleeping ------------------------------------------------------------------------------------------------------------- */

TEST(wake_and_wires_end_a_sleep)
{
    static net_t a, b;
    static end_t e;
    join(&a, &e, &b, "tcp://127.0.0.1:0");
    struct pollfd p = {.fd = b.f->ops->event_fd(b.f), .events = POLLIN};
    for (int i = 0; i < 10; i++)
        net_progress(&b);
    CHECK_OK(b.f->ops->arm(b.f));
    CHECK_EQ(poll(&p, 1, 20), 0);
    b.f->ops->wake(b.f);
    CHECK_EQ(poll(&p, 1, 1000), 1);
    b.f->ops->disarm(b.f);
    net_progress(&b);
    CHECK_OK(b.f->ops->arm(b.f));
    CHECK_EQ(poll(&p, 1, 20), 0);
    CHECK_OK(a.f->ops->wire_send(e.wire, "up", 2));
    CHECK_EQ(poll(&p, 1, 1000), 1);
    b.f->ops->disarm(b.f);
    net_progress(&b);
    CHECK_EQ(b.accepted[0].messages, 1);
    part(&a, &b);
}

/* --- heartbeats ----------------------------------------------------------------------------------------------------------- */

TEST(a_peer_that_left_many_beats_and_fell_silent_is_lost_within_the_bound)
{
    enum { LEFT = 60000, EVERY_MS = 100 };
    static net_t b;
    static char beats[LEFT];
    net_open(&b);
    post(&b, "tcp://127.0.0.1:0");
    int fd = plain_connect(b.f->ops->acceptor_uri(b.post));
    UNTIL(&b, NULL, b.n_accepted == 1);
    end_t *e = &b.accepted[0];
    CHECK_OK(b.f->ops->wire_beat(e->wire, EVERY_MS * WEFT_MILLISECOND, false));
    b.f->ops->wire_watch(e->wire, WEFTI_BEATS * EVERY_MS * WEFT_MILLISECOND);
    memset(beats, 'B', sizeof beats);
    CHECK_EQ(send(fd, beats, sizeof beats, 0), LEFT);
    usleep(2000000);            /* nobody drives, so that all of them are left to the thread */
    UNTIL(&b, NULL, e->closed); /* at 256 in a tick it would take 23 seconds */
    CHECK_EQ(e->why, WEFT_ERR_TIMEOUT);
    close(fd);
    b.f->ops->acceptor_close(b.post);
    net_close(&b);
}

static uint64_t wire_seen;
static void seen(void *user, const void *bytes, size_t n)
{
    (void)user;
    (void)bytes;
    (void)n;
    wire_seen++;
}

TEST(wires_are_looked_at_while_a_lane_is_busy)
{
    /* One process: a lane kept busy, and a plain socket that says something on a wire meanwhile. */
    lanes_t l;
    static wefti_fabric_up_t both;
    static net_t n;
    lanes_open(&l, "shm");
    both = *l.b.fabric->up;
    both.wire_accepted = up_accepted;
    both.wire_message = seen;
    both.wire_closed = up_closed;
    l.b.fabric->up = &both;
    n.f = l.b.fabric;
    n.in_progress = true;
    wefti_uri_t uri = uri_of("tcp://127.0.0.1:0");
    CHECK_OK(n.f->ops->acceptor_open(n.f, &uri, NULL, 8, &n, &n.post));
    int fd = plain_connect(n.f->ops->acceptor_uri(n.post));
    CHECK_EQ(send(fd, "WFT1\1\0\0\0x", 9, 0), 9);
    double start = test_now();
    while (!wire_seen && test_now() < start + 5) {
        while (lanes_try_send(&l.a, "busy", 4))
            ;
        l.a.in_progress = l.b.in_progress = true;
        l.a.fabric->ops->progress(l.a.fabric, false);
        l.b.fabric->ops->progress(l.b.fabric, false);
        l.a.in_progress = l.b.in_progress = false;
    }
    CHECK_EQ(wire_seen, 1);
    n.f->ops->wire_close(n.accepted[0].wire);
    n.f->ops->acceptor_close(n.post);
    close(fd);
    lanes_close(&l);
}
