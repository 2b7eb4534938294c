/* tests/wire/tls_here.c - certificates without a key, between peers of one host: who has none is as much a stranger at 127.0.0.1
 * and over a Unix socket as on another machine, and two who have them meet and share memory.
 *
 * ctest: openssl */
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "certs.h"
#include "test.h"

enum { NOBODY = 65534, LONG = 60 };

typedef struct answer {
    weft_status_t status;
    char why[400], transport[16], identity[64];
} answer_t;

/* "away" is for another host than this one, as the certificates of a cluster are. */
static void make_certificates(void)
{
    certs_usual();
    certs_make(&(cert_t){.name = "away", .by = "ca", .san = "DNS:away.example,IP:192.0.2.7"});
    certs_make(&(cert_t){.name = "ca2", .ca = true});
    certs_make(&(cert_t){.name = "false", .by = "ca2", .san = "DNS:away.example,IP:127.0.0.1"});
}

static weft_runtime_t *opened(void)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static weft_listener_t *listens(weft_runtime_t *rt, const char *uri)
{
    weft_listener_t *l;
    CHECK_OK(weft_listen(rt, uri, NULL, &l));
    return l;
}

static answer_t call(weft_runtime_t *rt, const char *uri)
{
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_ep_t *ep = NULL;
    answer_t a = {0};
    once.no_retry = true;
    a.status = weft_ep_connect(rt, uri, &once, LONG * WEFT_SECOND, &ep);
    snprintf(a.why, sizeof a.why, "%s", a.status ? weft_last_error() : "");
    if (a.status)
        return a;
    CHECK_OK(weft_ep_get_info(ep, &info));
    snprintf(a.transport, sizeof a.transport, "%s", info.transport);
    snprintf(a.identity, sizeof a.identity, "%s", info.identity);
    CHECK_OK(weft_ep_close(ep, NULL));
    return a;
}

static void refused(answer_t a, const char *why)
{
    if (!a.status || a.status == WEFT_ERR_TIMEOUT || !strstr(a.why, why))
        FAIL("the answer is %s, \"%s\", without \"%s\"", weft_status_name(a.status), a.why, why);
}

/* An address of this machine that is none of loopback, or "". */
static const char *own_address(void)
{
    static char text[NI_MAXHOST];
    struct ifaddrs *list;
    CHECK(!getifaddrs(&list));
    for (struct ifaddrs *it = list; it && !text[0]; it = it->ifa_next) {
        if (it->ifa_addr && it->ifa_addr->sa_family == AF_INET && strcmp(it->ifa_name, "lo"))
            CHECK(!getnameinfo(it->ifa_addr, sizeof(struct sockaddr_in), text, sizeof text, NULL, 0, NI_NUMERICHOST));
    }
    freeifaddrs(list);
    return text;
}

/* --- another process, and another user -------------------------------------------------------------------------------- */

typedef struct other {
    pid_t pid;
    int fd;
} other_t;

/* Made before this process has a runtime, whose threads would not come along. */
static other_t other(void (*run)(int fd))
{
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds));
    other_t o = {.pid = fork(), .fd = fds[0]};
    CHECK(o.pid >= 0);
    if (o.pid)
        return close(fds[1]), o;
    close(fds[0]);
    run(fds[1]);
    _exit(0);
}

static answer_t asked(other_t *o, const char *uri)
{
    answer_t a;
    CHECK(send(o->fd, uri, strlen(uri) + 1, MSG_NOSIGNAL) > 0);
    CHECK_EQ(recv(o->fd, &a, sizeof a, 0), sizeof a);
    return a;
}

static void ends(other_t *o)
{
    int how;
    close(o->fd);
    CHECK_EQ(waitpid(o->pid, &how, 0), o->pid);
    CHECK_EQ(how, 0);
}

static void calls(int fd)
{
    char uri[256];
    weft_runtime_t *rt = opened();
    while (recv(fd, uri, sizeof uri, 0) > 0) {
        answer_t a = call(rt, uri);
        CHECK_EQ(send(fd, &a, sizeof a, 0), sizeof a);
    }
    CHECK_OK(weft_runtime_close(rt));
}

static void becomes_nobody(void)
{
    certs_use(NULL, NULL);
    CHECK(!setresgid(NOBODY, NOBODY, NOBODY) && !setresuid(NOBODY, NOBODY, NOBODY));
}

static void stranger_calls(int fd)
{
    becomes_nobody();
    calls(fd);
}

static void stranger_listens(int fd)
{
    char uri[256];
    becomes_nobody();
    weft_runtime_t *rt = opened();
    while (recv(fd, uri, sizeof uri, 0) > 0) {
        answer_t a = {0};
        weft_listener_t *l = listens(rt, uri);
        snprintf(a.why, sizeof a.why, "%s", weft_listener_uri(l));
        CHECK_EQ(send(fd, &a, sizeof a, 0), sizeof a);
    }
    CHECK_OK(weft_runtime_close(rt));
}

static const char *unix_uri(void)
{
    static char uri[64];
    snprintf(uri, sizeof uri, "unix://@weft-tls-here-%d", (int)getpid());
    return uri;
}

static void nobody_gets_in(void)
{
    char uri[128];
    certs_use(NULL, NULL);
    other_t o = other(stranger_calls);
    certs_use("away", "ca");
    weft_runtime_t *rt = opened();
    refused(asked(&o, weft_listener_uri(listens(rt, "tcp://127.0.0.1:0"))), "the listener wants TLS");
    refused(asked(&o, weft_listener_uri(listens(rt, "tls://127.0.0.1:0"))), "needs something to prove who we are");
    refused(asked(&o, weft_listener_uri(listens(rt, unix_uri()))), "takes only its own user over a Unix socket");
    if (*own_address()) {
        snprintf(uri, sizeof uri, "tcp://%s:0", own_address());
        refused(asked(&o, weft_listener_uri(listens(rt, uri))), "the listener wants TLS");
    }
    CHECK_OK(weft_runtime_close(rt));
    ends(&o);
}

TEST(another_user_of_this_host_gets_in_nowhere)
{
    if (geteuid())
        SKIP("needs root to become another user");
    make_certificates();
    nobody_gets_in();
    setenv("WEFT_TLS", "required", 1);
    nobody_gets_in();
}

TEST(another_user_of_this_host_is_no_listener)
{
    if (geteuid())
        SKIP("needs root to become another user");
    make_certificates();
    certs_use(NULL, NULL);
    other_t o = other(stranger_listens);
    certs_use("away", "ca");
    weft_runtime_t *rt = opened();
    refused(call(rt, asked(&o, "tcp://127.0.0.1:0").why), "does not speak TLS 1.3");
    refused(call(rt, asked(&o, unix_uri()).why), "another user (65534)");
    CHECK_OK(weft_runtime_close(rt));
    ends(&o);
}

/* Where our own user has no number it is shown with that of "nobody", and so is everybody else. */
static void calls_without_a_number(int fd)
{
    int can = !unshare(CLONE_NEWUSER);
    CHECK_EQ(send(fd, &can, sizeof can, 0), sizeof can);
    if (can)
        calls(fd);
}

TEST(a_user_without_a_number_is_nobody_known)
{
    int can;
    make_certificates();
    certs_use("away", "ca");
    other_t o = other(calls_without_a_number);
    CHECK_EQ(recv(o.fd, &can, sizeof can, 0), sizeof can);
    if (!can)
        SKIP("this process may make no namespace of users");
    weft_runtime_t *rt = opened();
    refused(asked(&o, weft_listener_uri(listens(rt, unix_uri()))), "another user");
    CHECK_OK(weft_runtime_close(rt));
    ends(&o);
}

/* --- who has certificates ------------------------------------------------------------------------------------------------ */

static void two_meet(void)
{
    certs_use("away", "ca");
    weft_runtime_t *server = opened(), *client = opened();
    const char *uris[] = {weft_listener_uri(listens(server, "tcp://127.0.0.1:0")), weft_listener_uri(listens(server, unix_uri())),
                          NULL};
    char uri[128];
    if (*own_address()) {
        snprintf(uri, sizeof uri, "tcp://%s:0", own_address());
        uris[2] = weft_listener_uri(listens(server, uri));
    }
    for (int i = 0; i < 3 && uris[i]; i++) {
        answer_t a = call(client, uris[i]);
        if (a.status)
            FAIL("%s: %s", uris[i], a.why);
        CHECK_STR(a.transport, "shm");
        CHECK_STR(a.identity, i == 1 ? "" : "away.example"); /* a Unix socket shows the user, and no certificate */
    }
    refused(call(client, weft_listener_uri(listens(server, "tls://127.0.0.1:0"))), "for another host");
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(two_with_certificates_for_other_hosts_meet_here_and_share_memory)
{
    make_certificates();
    two_meet();
    setenv("WEFT_TLS", "required", 1);
    two_meet();
}

TEST(a_certificate_of_another_authority_is_refused_here_from_either_side)
{
    make_certificates();
    for (int i = 0; i < 2; i++) {
        certs_use(i ? "away" : "false", "ca");
        weft_runtime_t *server = opened();
        certs_use(i ? "false" : "away", i ? "ca2" : "ca");
        weft_runtime_t *client = opened();
        refused(call(client, weft_listener_uri(listens(server, "tcp://127.0.0.1:0"))), "certificate");
        CHECK_OK(weft_runtime_close(client));
        CHECK_OK(weft_runtime_close(server));
    }
}

TEST(a_lane_that_shares_no_memory_has_tls_here)
{
    make_certificates();
    certs_use("away", "ca");
    setenv("WEFT_TRANSPORTS", "tcp", 1);
    weft_runtime_t *server = opened(), *client = opened();
    weft_listener_t *l = listens(server, "tcp://127.0.0.1:0");
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_ep_t *a, *b;
    weft_op_t recv = WEFT_OP_INIT, send = WEFT_OP_INIT;
    char got[4] = "";
    CHECK_OK(weft_ep_connect(client, weft_listener_uri(l), NULL, LONG * WEFT_SECOND, &a));
    CHECK_OK(weft_listener_accept_wait(l, LONG * WEFT_SECOND, &b));
    CHECK_OK(weft_ep_get_info(a, &info));
    CHECK_STR(info.transport, "tcp");
    CHECK(!strncmp(info.cipher, "TLS_", 4) && info.authenticated);
    CHECK_OK(weft_msg_recv(b, got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(a, "abc", 4, 1, &send));
    CHECK_OK(weft_op_wait(&recv, LONG * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&send, LONG * WEFT_SECOND));
    CHECK_STR(got, "abc");
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(with_a_key_beside_them_the_key_is_proved_here_as_before)
{
    static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
    make_certificates();
    certs_use("node", "ca");
    char path[64];
    snprintf(path, sizeof path, "%s/key-file", certs_folder());
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, key, sizeof key - 1) == sizeof key - 1 && !close(fd));
    setenv("WEFT_KEY_FILE", path, 1);
    weft_runtime_t *server = opened(), *client = opened();
    answer_t a = call(client, weft_listener_uri(listens(server, "tcp://127.0.0.1:0")));
    CHECK_EQ(a.status, WEFT_OK);
    CHECK_STR(a.transport, "shm");
    CHECK_STR(a.identity, "");
    unsetenv("WEFT_KEY_FILE");
    weft_runtime_t *without = opened();
    refused(call(without, weft_listener_uri(listens(server, "tcp://127.0.0.1:0"))), "certificates do not take its place");
    refused(call(without, weft_listener_uri(listens(server, "tls://127.0.0.1:0"))), "certificates do not take its place");
    CHECK_EQ(call(client, weft_listener_uri(listens(server, "tls://127.0.0.1:0"))).status, WEFT_OK);
    CHECK_OK(weft_runtime_close(without));
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}
