/* What leaves the host is encrypted, and what stays on it is not (WEFT_TLS): two network namespaces with a veth pair between
 * them, whose packets are read. Needs root and ip(8). ctest: shards */
#define TEST_SECONDS 120
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <weft/weft.h>

#include "lib/netns.h"
#include "test.h"

static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
static const char marker[] = "WEFT-PLAIN-TEXT-THAT-NOBODY-SEES";
#define OUTSIDE "10.99.0.1"
enum { BIG = 4 << 20, HEADER = 2048, SOON = 30 };

/* --- what goes over the network --------------------------------------------------------------------------------------- */

static struct {
    int fd;
    pthread_t thread;
    _Atomic bool stop;
    _Atomic uint64_t bytes, found;
} tap;

static void *look(void *arg)
{
    static char packet[128 << 10];
    (void)arg;
    for (;;) {
        struct pollfd p = {.fd = tap.fd, .events = POLLIN};
        if (!poll(&p, 1, 50) && tap.stop)
            return NULL;
        ssize_t n = recv(tap.fd, packet, sizeof packet, MSG_DONTWAIT);
        if (n <= 0)
            continue;
        tap.bytes += (uint64_t)n;
        tap.found += memmem(packet, (size_t)n, marker, sizeof marker - 1) != NULL;
    }
}

static void tap_begin(void)
{
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    int space = 64 << 20;
    at.sll_ifindex = (int)if_nametoindex("eth0");
    tap.fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
    CHECK(tap.fd >= 0 && at.sll_ifindex && !bind(tap.fd, (struct sockaddr *)&at, sizeof at));
    (void)setsockopt(tap.fd, SOL_SOCKET, SO_RCVBUFFORCE, &space, sizeof space);
    tap.stop = false;
    tap.bytes = tap.found = 0;
    CHECK(!pthread_create(&tap.thread, NULL, look, NULL));
}

static void tap_end(void)
{
    tap.stop = true;
    CHECK(!pthread_join(tap.thread, NULL));
    close(tap.fd);
}

/* --- what is said in the log ------------------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char said[64 << 10];

static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)level, (void)user;
    pthread_mutex_lock(&lock);
    size_t at = strlen(said);
    snprintf(said + at, sizeof said - at, "%s\n", line);
    pthread_mutex_unlock(&lock);
}

static bool was_said(const char *what)
{
    pthread_mutex_lock(&lock);
    bool yes = strstr(said, what) != NULL;
    pthread_mutex_unlock(&lock);
    return yes;
}

/* --- two hosts -------------------------------------------------------------------------------------------------------- */

static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_ep_t *a, *b; /* the client's end, and the server's */

static void need_hosts(void)
{
    const char *why_not = netns_make();
    if (why_not)
        SKIP("%s", why_not);
    weft_log_set_sink(sink, NULL);
    weft_log_set_level(WEFT_LOG_INFO);
}

/* A runtime with a thread of its own lives where it was opened. */
static weft_runtime_t *open_on(int host, const char *mode, const char *key_text, const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_tls_opts_t t = WEFT_TLS_OPTS_INIT;
    weft_runtime_t *rt;
    t.mode = mode;
    o.tls = &t;
    o.transports = transports;
    o.progress = WEFT_PROGRESS_THREAD;
    o.key = key_text;
    o.key_len = key_text ? strlen(key_text) : 0;
    netns_enter(host);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static void both(const char *server_mode, const char *server_key, const char *client_mode, const char *client_key)
{
    server = open_on(0, server_mode, server_key, "tcp");
    CHECK_OK(weft_listen(server, "tcp://0.0.0.0:0", NULL, &listener));
    client = open_on(1, client_mode, client_key, "tcp");
}

/* Call `host`, a name or address without a scheme, where the listener is. */
static weft_status_t call(const char *scheme, const char *host, weft_op_t *op)
{
    char uri[128];
    *op = (weft_op_t)WEFT_OP_INIT;
    snprintf(uri, sizeof uri, "%s://%s:%u", scheme, host, weft_listener_port(listener));
    CHECK_OK(weft_ep_open(client, uri, NULL, op, &a));
    return weft_op_wait(op, SOON * WEFT_SECOND);
}

static void meet(const char *scheme, const char *host)
{
    weft_op_t op;
    weft_status_t st = call(scheme, host, &op);
    if (st)
        FAIL("%s to %s: %s", scheme, host, weft_op_error(&op));
    CHECK_OK(weft_listener_accept_wait(listener, SOON * WEFT_SECOND, &b));
}

static void closes(void)
{
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

static weft_ep_info_t info_of(weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    CHECK_OK(weft_ep_get_info(ep, &info));
    return info;
}

static weft_op_t pulled;
static char pulled_bytes[BIG];
static void handle(weft_am_t *am, void *user)
{
    (void)user;
    CHECK_EQ(am->len, BIG);
    CHECK_OK(weft_am_pull(am, pulled_bytes, sizeof pulled_bytes, &pulled));
}

/* Messages small and large and an active message, all full of the marker, and back. */
static void talk(void)
{
    static char out[BIG], in[BIG];
    static const size_t sizes[] = {64, 3000, 20000, BIG};
    for (size_t i = 0; i < BIG; i++)
        out[i] = marker[i % (sizeof marker - 1)];
    for (int i = 0; i < 8; i++) {
        weft_op_t recv = WEFT_OP_INIT, send = WEFT_OP_INIT;
        size_t n = sizes[i / 2];
        memset(in, 0, n);
        CHECK_OK(weft_msg_recv(i % 2 ? a : b, in, n, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(i % 2 ? b : a, out, n, 1, &send));
        CHECK_OK(weft_op_wait(&recv, SOON * WEFT_SECOND));
        CHECK_OK(weft_op_wait(&send, SOON * WEFT_SECOND));
        CHECK(!memcmp(in, out, n));
    }
    weft_op_t send = WEFT_OP_INIT, set = WEFT_OP_INIT;
    pulled = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_am_handle(server, 3, handle, NULL, &set));
    CHECK_OK(weft_op_wait(&set, SOON * WEFT_SECOND));
    CHECK_OK(weft_am_send(a, 3, out, HEADER, out, BIG, &send));
    CHECK_OK(weft_op_wait(&send, SOON * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&pulled, SOON * WEFT_SECOND));
    CHECK(!memcmp(pulled_bytes, out, BIG));
}

/* --- tests ------------------------------------------------------------------------------------------------------------ */

TEST(with_a_key_what_goes_to_another_host_is_encrypted)
{
    need_hosts();
    both("auto", key, NULL, key);
    tap_begin();
    meet("tcp", OUTSIDE);
    CHECK(!strncmp(info_of(a).cipher, "TLS_", 4) && !strncmp(info_of(b).cipher, "TLS_", 4));
    CHECK(info_of(a).authenticated && !info_of(a).same_host);
    talk();
    tap_end();
    CHECK(tap.bytes > BIG); /* it looked */
    CHECK_EQ(tap.found, 0);
    closes();
}

TEST(off_is_plain_and_tls_is_there_when_it_is_asked_for)
{
    need_hosts();
    both("off", key, "off", key);
    tap_begin();
    meet("tcp", OUTSIDE);
    CHECK_STR(info_of(a).cipher, "");
    talk();
    tap_end();
    CHECK(tap.found > 0);
    netns_enter(0);
    CHECK_OK(weft_listener_close(listener, NULL));
    CHECK_OK(weft_listen(server, "tls://0.0.0.0:0", NULL, &listener));
    meet("tls", OUTSIDE);
    CHECK(!strncmp(info_of(a).cipher, "TLS_", 4));
    closes();
}

TEST(without_a_key_it_is_as_it_was)
{
    need_hosts();
    both("auto", NULL, "auto", NULL);
    meet("tcp", OUTSIDE);
    CHECK_STR(info_of(a).cipher, "");
    CHECK_STR(info_of(a).transport, "tcp");
    talk();
    closes();
}

static weft_ep_t *_Atomic came;
static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    came = ep;
}

TEST(the_address_of_a_runtime_obeys_the_same_rule)
{
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    char blob[4096];
    size_t len = sizeof blob;
    need_hosts();
    both("required", key, "required", key);
    lo.accept = accepted;
    netns_enter(0);
    CHECK_OK(weft_runtime_address(server, &lo, blob, &len));
    netns_enter(1);
    eo.address = blob;
    eo.address_len = len;
    tap_begin();
    CHECK_OK(weft_ep_connect(client, NULL, &eo, SOON * WEFT_SECOND, &a));
    TEST_UNTIL(came, SOON);
    b = came;
    CHECK(!strncmp(info_of(a).cipher, "TLS_", 4));
    talk();
    tap_end();
    CHECK(tap.bytes > BIG);
    CHECK_EQ(tap.found, 0);
    closes();
}

/* The wire does not leave the host, and what follows it does: containers that share a folder. */
TEST(a_unix_socket_between_two_networks_leads_to_an_encrypted_lane)
{
    char uri[128];
    need_hosts();
    snprintf(uri, sizeof uri, "unix:///tmp/weft-tls-between-%d", (int)getpid());
    server = open_on(0, NULL, key, "tcp");
    CHECK_OK(weft_listen(server, uri, NULL, &listener));
    client = open_on(1, NULL, key, "tcp");
    tap_begin();
    CHECK_OK(weft_ep_connect(client, uri, NULL, SOON * WEFT_SECOND, &a));
    CHECK_OK(weft_listener_accept_wait(listener, SOON * WEFT_SECOND, &b));
    talk();
    tap_end();
    CHECK(tap.bytes > BIG);
    CHECK_EQ(tap.found, 0);
    closes();
}

TEST(ucx_is_not_used_where_it_would_be_in_the_clear)
{
    weft_op_t op;
    need_hosts();
    for (int i = 0; i < 2; i++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        o.transports = "ucx_tcp";
        if (weft_runtime_open(&o, &server))
            SKIP("UCX does not open here: %s", weft_last_error());
        CHECK_OK(weft_runtime_close(server));
        server = open_on(0, i ? "off" : NULL, key, i ? "ucx_tcp" : "ucx_tcp,tcp");
        CHECK_OK(weft_listen(server, "tcp://0.0.0.0:0", NULL, &listener));
        client = open_on(1, i ? "off" : "required", key, "ucx_tcp");
        if (i) { /* as it was */
            meet("tcp", OUTSIDE);
            CHECK_STR(info_of(a).transport, "ucx");
        } else {
            double began = test_now();
            CHECK_EQ(call("tcp", OUTSIDE, &op), WEFT_ERR_UNREACHABLE);
            CHECK(test_now() - began < 8);
            if (!strstr(weft_op_error(&op), "cannot be encrypted"))
                FAIL("the client is told: %s", weft_op_error(&op));
            CHECK(was_said("WEFT_TLS=off"));
        }
        closes();
    }
}

TEST(required_without_a_key_says_what_to_configure)
{
    weft_op_t op;
    weft_listener_t *l;
    need_hosts();
    server = open_on(0, NULL, NULL, "tcp");
    CHECK_OK(weft_listen(server, "tcp://0.0.0.0:0", NULL, &listener));
    client = open_on(1, "required", NULL, "tcp");
    double began = test_now();
    CHECK_EQ(call("tcp", OUTSIDE, &op), WEFT_ERR_INVALID);
    CHECK(test_now() - began < 8); /* it does not try until the connect timeout */
    CHECK(strstr(weft_op_error(&op), "WEFT_KEY_FILE") && strstr(weft_op_error(&op), "WEFT_TLS=required"));
    CHECK_EQ(weft_listen(client, "tcp://0.0.0.0:0", NULL, &l), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "WEFT_KEY_FILE"));
    CHECK_OK(weft_listen(client, "tcp://127.0.0.1:0", NULL, &l)); /* nobody comes there from elsewhere */
    closes();
}

TEST(peers_of_one_host_are_as_before)
{
    static const char *const hosts[] = {"127.0.0.1", OUTSIDE};
    need_hosts();
    for (int i = 0; i < 4; i++) {
        server = open_on(0, "required", key, i / 2 ? "all" : "tcp");
        CHECK_OK(weft_listen(server, "tcp://0.0.0.0:0", NULL, &listener));
        client = open_on(0, "auto", key, "all");
        meet("tcp", hosts[i % 2]);
        CHECK_STR(info_of(a).cipher, "");
        CHECK_STR(info_of(a).transport, i / 2 ? "shm" : "tcp");
        talk();
        CHECK_OK(weft_ep_close(a, NULL));
        meet("tls", hosts[i % 2]); /* who asks for it gets it at tcp://, too */
        CHECK(!strncmp(info_of(a).cipher, "TLS_", 4));
        closes();
    }
}

/* One side is off and the other is not: an error at both, soon, that says what to look at. */
static void differ(const char *server_mode, const char *server_key, const char *client_mode, const char *client_key,
                   const char *to_client, const char *to_server)
{
    weft_op_t op;
    said[0] = 0;
    both(server_mode, server_key, client_mode, client_key);
    double began = test_now();
    weft_status_t st = call("tcp", OUTSIDE, &op);
    if (st != WEFT_ERR_AUTH && st != WEFT_ERR_PROTOCOL)
        FAIL("%s: %s", weft_status_name(st), weft_op_error(&op));
    CHECK(test_now() - began < 8);
    if (!strstr(weft_op_error(&op), to_client))
        FAIL("the client is told: %s", weft_op_error(&op));
    TEST_UNTIL(was_said(to_server), 10);
    closes();
}

TEST(a_side_that_is_off_and_one_that_is_not_are_both_told)
{
    need_hosts();
    differ("auto", key, "off", key, "the listener wants TLS", "the peer does not speak TLS, which this listener wants");
    differ("off", key, "auto", key, "does not speak TLS 1.3 there", "the peer speaks TLS, and this listener");
    differ("auto", key, "auto", NULL, "the listener wants TLS", "the peer does not speak TLS, which this listener wants");
    differ("auto", NULL, "auto", key, "does not speak TLS 1.3 there", "the peer speaks TLS, and this listener");
}

/* --- no downgrade ----------------------------------------------------------------------------------------------------- */

/* Say the beginning of a plain hello to the listener: only TLS answers. */
static void stranger(const char *host, bool refused)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(weft_listener_port(listener))};
    static const char hello[] = "WFT1\x10\0\0\0some of a hello, not more";
    char answer[256];
    CHECK_EQ(inet_pton(AF_INET, host, &to.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!connect(fd, (struct sockaddr *)&to, sizeof to));
    CHECK_EQ(send(fd, hello, sizeof hello - 1, MSG_NOSIGNAL), sizeof hello - 1);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, SOON * 1000), 1);
    ssize_t n = recv(fd, answer, sizeof answer, 0);
    if (refused)
        CHECK(n == 7 && answer[0] == 21); /* an alert of TLS, and nothing else */
    else
        CHECK(n > 0 && answer[0] == 'W');
    close(fd);
}

TEST(a_listener_that_wants_tls_answers_nothing_else)
{
    need_hosts();
    both(NULL, key, NULL, key);
    stranger(OUTSIDE, true);
    netns_enter(0);
    stranger("127.0.0.1", false);
    CHECK_OK(weft_listener_close(listener, NULL));
    CHECK_OK(weft_listen(server, "tls://0.0.0.0:0", NULL, &listener));
    stranger("127.0.0.1", true);
    closes();
}

/* Who calls says nothing that is not TLS, whatever the other one answers. */
static void says_tls_only(const char *scheme, const char *host)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t n = sizeof at;
    unsigned char first;
    weft_op_t op = WEFT_OP_INIT;
    char uri[128];
    netns_enter(0);
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!bind(l, (struct sockaddr *)&at, sizeof at) && !listen(l, 8) && !getsockname(l, (struct sockaddr *)&at, &n));
    snprintf(uri, sizeof uri, "%s://%s:%u", scheme, host, ntohs(at.sin_port));
    CHECK_OK(weft_ep_open(client, uri, NULL, &op, &a));
    for (int i = 0; i < 2; i++) { /* also when it tries once more */
        int fd = accept(l, NULL, NULL);
        CHECK(fd >= 0 && recv(fd, &first, 1, 0) == 1);
        CHECK_EQ(first, 22);
        close(fd);
    }
    CHECK_OK(weft_ep_abort(a, NULL));
    CHECK(weft_op_wait(&op, SOON * WEFT_SECOND) != WEFT_OK);
    close(l);
}

TEST(a_dialler_that_wants_tls_says_nothing_else)
{
    need_hosts();
    client = open_on(1, NULL, key, "tcp");
    says_tls_only("tcp", OUTSIDE);
    says_tls_only("tls", OUTSIDE);
    CHECK_OK(weft_runtime_close(client));
}
