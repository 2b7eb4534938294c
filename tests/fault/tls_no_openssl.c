/* OpenSSL is not installed, and TLS is called for: another host is refused with a sentence that says what to install, and
 * this host goes on without. Two network namespaces, and a mount namespace in which the library is no file of a library. Needs
 * root and ip(8). */
#define TEST_SECONDS 120
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <weft/weft.h>

#include "lib/netns.h"
#include "test.h"

static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
#define OUTSIDE "10.99.0.1"
enum { SOON = 30, INTERNAL_ERROR = 80 };

static void hide_openssl(void)
{
    char path[512];
    FILE *found = popen("ldconfig -p 2>/dev/null | sed -n 's/^\\s*libssl\\.so\\.3 .*=> //p'", "r");
    CHECK(found && !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    while (fgets(path, sizeof path, found)) {
        path[strcspn(path, "\n")] = 0;
        CHECK(!mount("/dev/null", path, NULL, MS_BIND, NULL));
    }
    pclose(found);
}

static char said[4096];
static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level == WEFT_LOG_WARN && strstr(line, "a peer is refused"))
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

static weft_runtime_t *open_on(int host)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    o.key = key;
    o.key_len = strlen(key);
    netns_enter(host);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

/* Begin as TLS does; what comes back is an alert. */
static void stranger(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    unsigned char answer[64];
    CHECK_EQ(inet_pton(AF_INET, OUTSIDE, &to.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!connect(fd, (struct sockaddr *)&to, sizeof to));
    CHECK_EQ(send(fd, "\x16\x03\x01\x02\x00\x01", 6, MSG_NOSIGNAL), 6);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, SOON * 1000), 1);
    CHECK_EQ(recv(fd, answer, sizeof answer, 0), 7);
    CHECK(answer[0] == 21 && answer[6] == INTERNAL_ERROR);
    close(fd);
}

TEST(without_openssl_this_host_goes_on_and_others_are_told_what_to_install)
{
    const char *why_not = netns_make();
    weft_listener_t *l, *no;
    weft_ep_t *a, *b;
    weft_op_t op = WEFT_OP_INIT;
    char uri[64];
    if (why_not)
        SKIP("%s", why_not);
    if (unshare(CLONE_NEWNS))
        SKIP("a mount namespace cannot be made here");
    hide_openssl(); /* before there is a thread: each has its own mounts */
    weft_runtime_t *server = open_on(0);
    CHECK_OK(weft_listen(server, "tcp://0.0.0.0:0", NULL, &l));
    CHECK_EQ(weft_listen(server, "tls://0.0.0.0:0", NULL, &no), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_last_error(), "libssl3"));
    weft_runtime_t *here = open_on(0);
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", weft_listener_port(l));
    CHECK_OK(weft_ep_connect(here, uri, NULL, SOON * WEFT_SECOND, &a));
    CHECK_OK(weft_listener_accept_wait(l, SOON * WEFT_SECOND, &b));

    weft_runtime_t *elsewhere = open_on(1);
    double began = test_now();
    snprintf(uri, sizeof uri, "tcp://" OUTSIDE ":%u", weft_listener_port(l));
    CHECK_OK(weft_ep_open(elsewhere, uri, NULL, &op, &a));
    CHECK_EQ(weft_op_wait(&op, SOON * WEFT_SECOND), WEFT_ERR_UNSUPPORTED);
    CHECK(test_now() - began < 8);
    if (!strstr(weft_op_error(&op), "libssl3") || !strstr(weft_op_error(&op), "WEFT_TLS=off"))
        FAIL("%s", weft_op_error(&op));

    weft_log_set_sink(sink, NULL);
    stranger(weft_listener_port(l));
    stranger(weft_listener_port(l));
    weft_log_set_sink(NULL, NULL);
    const char *first = strstr(said, "libssl3");
    CHECK(first && strstr(said, "WEFT_TLS=off"));
    CHECK(!strstr(strchr(said, '\n') + 1, "a peer is refused")); /* once */
    CHECK_OK(weft_runtime_close(elsewhere));
    CHECK_OK(weft_runtime_close(here));
    CHECK_OK(weft_runtime_close(server));
}
