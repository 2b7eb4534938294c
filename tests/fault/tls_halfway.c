/* tests/fault/tls_halfway.c - a handshake of TLS that stops in the middle: the other end is stopped, or is given up, or dies, or
 * its runtime closes, after any number of bytes. Every operation ends, nothing is left behind, the one that goes on in time is a
 * connection, and nothing of it is left where OpenSSL keeps errors for the program.
 *
 * ctest: openssl timeout=300 */
#define TEST_SECONDS 120
#include <arpa/inet.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <weft/weft.h>

#include "certs.h"
#include "test.h"

enum { LONG = 60, MOST = 16 };
static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_ep_t *came[2 * 16];
static unsigned n_came;

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    CHECK(n_came < sizeof came / sizeof *came);
    came[n_came++] = ep;
}

static weft_runtime_t *opens(bool by_key, uint64_t patience)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "tcp";
    o.connect_timeout_ns = patience;
    o.key = by_key ? key : NULL;
    o.key_len = by_key ? sizeof key - 1 : 0;
    certs_use(by_key ? NULL : "node", by_key ? NULL : "ca");
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static void drive(void)
{
    weft_runtime_progress(server);
    weft_runtime_progress(client);
    if (ERR_peek_error()) /* an SSL_get_error() of the program's own would speak of it */
        FAIL("an error of ours is left to the program: %s", ERR_error_string(ERR_peek_error(), NULL));
}

#define UNTIL(cond) TEST_UNTIL((drive(), cond), LONG)

/* --- somebody between, who passes on so many bytes of both, and then nothing ------------------------------------------------ */

static struct {
    int listens;
    uint16_t port;
    struct {
        int fd[2];
        size_t left;
    } of[MOST];
    unsigned n;
    size_t most[MOST]; /* of those that come */
} between;

static void between_open(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    memset(&between, 0, sizeof between);
    between.listens = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(between.listens >= 0 && !bind(between.listens, (void *)&a, len) && !listen(between.listens, MOST) &&
          !getsockname(between.listens, (void *)&a, &len));
    between.port = ntohs(a.sin_port);
}

static void between_step(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint8_t bytes[4096];
    int fd = between.n < MOST ? accept(between.listens, NULL, NULL) : -1;
    if (fd >= 0) {
        a.sin_port = htons((uint16_t)atoi(strrchr(weft_listener_uri(listener), ':') + 1));
        int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(to >= 0 && !connect(to, (void *)&a, sizeof a));
        between.of[between.n].fd[0] = fd;
        between.of[between.n].fd[1] = to;
        between.of[between.n].left = between.most[between.n];
        between.n++;
    }
    for (unsigned i = 0; i < between.n; i++) {
        for (int k = 0; k < 2; k++) {
            size_t *left = &between.of[i].left, most = *left < sizeof bytes ? *left : sizeof bytes;
            ssize_t n = most && between.of[i].fd[k] >= 0 ? recv(between.of[i].fd[k], bytes, most, MSG_DONTWAIT) : -1;
            if (n > 0 && between.of[i].fd[!k] >= 0) {
                *left -= (size_t)n;
                CHECK(send(between.of[i].fd[!k], bytes, (size_t)n, MSG_NOSIGNAL) == n || errno == EPIPE || errno == ECONNRESET);
            }
        }
    }
}

/* It is reset for both. */
static void between_kill(unsigned i)
{
    struct linger now = {1, 0};
    for (int k = 0; k < 2; k++) {
        CHECK(!setsockopt(between.of[i].fd[k], SOL_SOCKET, SO_LINGER, &now, sizeof now));
        close(between.of[i].fd[k]);
        between.of[i].fd[k] = -1;
    }
}

static void between_close(void)
{
    for (unsigned i = 0; i < between.n; i++)
        for (int k = 0; k < 2; k++)
            if (between.of[i].fd[k] >= 0)
                close(between.of[i].fd[k]);
    close(between.listens);
}

/* --- tests ---------------------------------------------------------------------------------------------------------------- */

static weft_op_t ops[MOST];
static weft_ep_t *eps[MOST];
static unsigned n_eps;

/* So many calls through the one between, that stop after 0 bytes, `step`, 2 * `step`, ... */
static void calls(unsigned n, size_t step, uint64_t patience)
{
    char uri[64];
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.no_retry = true;
    snprintf(uri, sizeof uri, "tls://127.0.0.1:%u", between.port);
    n_eps = n;
    for (unsigned i = 0; i < n; i++) {
        between.most[i] = i * step;
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        ops[i].timeout_ns = patience;
        CHECK_OK(weft_ep_open(client, uri, &o, &ops[i], &eps[i]));
        TEST_UNTIL((drive(), between_step(), between.n == i + 1), LONG); /* in this order */
    }
}

static bool all_done(void)
{
    for (unsigned i = 0; i < n_eps; i++)
        if (!weft_op_done(&ops[i]))
            return false;
    return true;
}

static void close_all(void)
{
    for (unsigned i = 0; i < n_eps; i++)
        (void)weft_ep_close(eps[i], NULL);
}

/* Neither has an endpoint, and the two can meet. */
static void nothing_is_left(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT, c = WEFT_RUNTIME_STATS_INIT;
    weft_op_t op = WEFT_OP_INIT, closed = WEFT_OP_INIT;
    weft_ep_t *ep;
    UNTIL(!weft_runtime_get_stats(client, &c) && !c.endpoints);
    CHECK_OK(weft_ep_open(client, weft_listener_uri(listener), NULL, &op, &ep));
    UNTIL(weft_op_done(&op));
    CHECK_OK(op.status);
    CHECK_OK(weft_ep_close(ep, &closed));
    UNTIL(weft_op_done(&closed));
    CHECK_EQ(n_came, 1);
    CHECK_OK(weft_ep_close(came[--n_came], NULL));
    UNTIL(!weft_runtime_get_stats(server, &s) && !s.endpoints);
}

/* How many bytes both say until the two have met, as we do here. */
static size_t bytes_of_all(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    char uri[64];
    weft_ep_t *ep;
    between_open();
    between.most[0] = 1 << 20;
    o.no_retry = true;
    snprintf(uri, sizeof uri, "tls://127.0.0.1:%u", between.port);
    CHECK_OK(weft_ep_open(client, uri, &o, &op, &ep));
    TEST_UNTIL((drive(), between_step(), weft_op_done(&op)), LONG);
    CHECK_OK(op.status);
    TEST_UNTIL((drive(), between_step(), n_came == 1), LONG);
    size_t n = (1 << 20) - between.of[0].left;
    between_kill(0);
    CHECK_OK(weft_ep_close(ep, NULL));
    CHECK_OK(weft_ep_close(came[--n_came], NULL));
    between_close();
    return n;
}

static size_t begin(bool by_key)
{
    weft_log_set_level(WEFT_LOG_NONE);
    setenv("WEFT_INTERFACES", "lo", 1);
    if (!by_key)
        certs_usual();
    server = opens(by_key, LONG * WEFT_SECOND);
    client = opens(by_key, LONG * WEFT_SECOND);
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    lo.accept = accepted;
    n_came = 0;
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", &lo, &listener));
    return bytes_of_all() / MOST;
}

static void end(void)
{
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(who_waits_for_one_that_is_stopped_ends_by_his_deadline)
{
    for (int by_key = 0; by_key < 2; by_key++) {
        size_t step = begin(by_key);
        between_open();
        calls(MOST, step, 300 * WEFT_MILLISECOND);
        TEST_UNTIL((drive(), between_step(), all_done()), LONG);
        for (unsigned i = 0; i < MOST; i++)
            CHECK_EQ(ops[i].status, WEFT_ERR_TIMEOUT);
        close_all();
        between_close();
        nothing_is_left();
        end();
    }
}

TEST(who_gives_up_in_the_middle_is_done_with_it)
{
    for (int by_key = 0; by_key < 2; by_key++) {
        size_t step = begin(by_key);
        between_open();
        calls(MOST, step, LONG * WEFT_SECOND);
        for (int i = 0; i < 300; i++)
            drive(), between_step();
        for (unsigned i = 0; i < MOST; i++) {
            CHECK(!weft_op_done(&ops[i]));
            if (i % 2)
                weft_op_cancel(&ops[i]);
            else
                CHECK_OK(weft_ep_close(eps[i], NULL));
        }
        TEST_UNTIL((drive(), between_step(), all_done()), LONG);
        for (unsigned i = 0; i < MOST; i++)
            CHECK(ops[i].status == WEFT_ERR_CANCELLED || (!(i % 2) && ops[i].status == WEFT_ERR_CLOSED));
        close_all();
        between_close();
        nothing_is_left();
        end();
    }
}

TEST(who_dies_in_the_middle_is_known_to_be_gone)
{
    for (int by_key = 0; by_key < 2; by_key++) {
        size_t step = begin(by_key);
        between_open();
        calls(MOST, step, LONG * WEFT_SECOND);
        for (int i = 0; i < 300; i++)
            drive(), between_step();
        for (unsigned i = 0; i < MOST; i++)
            between_kill(i);
        UNTIL(all_done());
        for (unsigned i = 0; i < MOST; i++)
            if (ops[i].status != WEFT_ERR_PEER && ops[i].status != WEFT_ERR_REFUSED) /* before and in the hello */
                FAIL("after %zu bytes: %s (%s)", i * step, weft_status_name(ops[i].status), weft_op_error(&ops[i]));
        close_all();
        between_close();
        nothing_is_left();
        end();
    }
}

TEST(a_handshake_that_goes_on_in_time_is_a_connection)
{
    for (int by_key = 0; by_key < 2; by_key++) {
        size_t step = begin(by_key);
        between_open();
        calls(MOST, step, LONG * WEFT_SECOND);
        for (int i = 0; i < 300; i++)
            drive(), between_step();
        for (unsigned i = 0; i < MOST; i++)
            between.of[i].left = 1 << 20;
        TEST_UNTIL((drive(), between_step(), all_done()), LONG);
        for (unsigned i = 0; i < MOST; i++)
            CHECK_OK(ops[i].status);
        close_all();
        between_close();
        end();
    }
}

TEST(runtimes_close_in_the_middle_of_handshakes)
{
    for (int by_key = 0; by_key < 2; by_key++) {
        size_t step = begin(by_key);
        between_open();
        calls(MOST, step, LONG * WEFT_SECOND);
        for (int i = 0; i < 300; i++)
            drive(), between_step();
        CHECK_OK(weft_runtime_close(by_key ? client : server));
        CHECK_OK(weft_runtime_close(by_key ? server : client));
        for (unsigned i = 0; i < MOST; i++)
            CHECK(weft_op_done(&ops[i]) && ops[i].status);
        between_close();
    }
}

/* --- errors of OpenSSL ----------------------------------------------------------------------------------------------------- */

/* The program's own OpenSSL, in the thread that drives runtimes: what SSL_get_error() says of it is its own. */
TEST(what_fails_over_tls_leaves_no_error_to_the_program)
{
    static const char says[][16] = {"\x16\x03\x03\0\5hello", "GET / HTTP/1.0", "\x15\x03\x03\0\2\2\x28"};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_listener_t *second;
    weft_runtime_t *wrong;
    weft_ep_t *ep;
    begin(false);
    a.sin_port = htons((uint16_t)atoi(strrchr(weft_listener_uri(listener), ':') + 1));
    for (unsigned i = 0; i < sizeof says / sizeof *says; i++) { /* strangers */
        char byte;
        ssize_t n = -1;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0 && !connect(fd, (void *)&a, sizeof a) && write(fd, says[i], sizeof says[i]) > 0);
        UNTIL((n = recv(fd, &byte, 1, MSG_DONTWAIT)) == 0 || (n < 0 && errno != EAGAIN));
        close(fd);
    }
    certs_make(&(cert_t){.name = "other", .ca = true});
    certs_make(&(cert_t){.name = "elsewhere", .by = "ca", .san = "DNS:elsewhere.example"});
    static const char *const bad[][2] = {{"elsewhere", "other"}, {"elsewhere", "ca"}};
    for (unsigned i = 0; i < 2; i++) { /* whom we do not believe, and who does not believe us; another host */
        weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
        ro.transports = "tcp";
        certs_use(bad[i][0], bad[i][1]);
        CHECK_OK(weft_runtime_open(&ro, &wrong));
        CHECK_OK(weft_listen(wrong, "tls://127.0.0.1:0", NULL, &second));
        for (int from = 0; from < 2; from++) {
            weft_op_t op = WEFT_OP_INIT;
            o.no_retry = true;
            CHECK_OK(weft_ep_open(from ? client : wrong, weft_listener_uri(from ? second : listener), &o, &op, &ep));
            UNTIL((weft_runtime_progress(wrong), weft_op_done(&op)));
            CHECK_EQ(op.status, i && !from ? WEFT_OK : WEFT_ERR_AUTH);
            CHECK_OK(weft_ep_close(ep, NULL));
            drive();
        }
        CHECK_OK(weft_runtime_close(wrong));
    }
    static const char *const files[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA", "WEFT_TLS_CRL"};
    for (unsigned i = 0; i < 4; i++) { /* files that say something else */
        certs_use("node", "ca");
        setenv(files[i], certs_file("node", i ? "crt" : "key"), 1);
        weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
        CHECK_OK(weft_runtime_open(&ro, &wrong));
        if (i != 2)
            CHECK_EQ(weft_listen(wrong, "tls://127.0.0.1:0", NULL, &second), WEFT_ERR_INVALID);
        else
            CHECK_OK(weft_listen(wrong, "tls://127.0.0.1:0", NULL, &second));
        drive();
        CHECK_OK(weft_runtime_close(wrong));
        unsetenv(files[i]);
    }
    drive();
    end();
    CHECK_EQ(ERR_peek_error(), 0);
}
