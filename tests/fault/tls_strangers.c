/* tests/fault/tls_strangers.c - who comes to a TLS port and is no honest client: half-open handshakes in crowds, at the
 * listener's port and at that of lanes; older versions, early data, endless answers, records that are too long or of no length,
 * long chains of certificates. They are refused or make way, the server's memory is bounded, and honest clients get through all
 * the while.
 *
 * ctest: openssl timeout=600 no-asan no-tsan (memory has bounds here that a sanitizer does not keep) */
#define TEST_SECONDS 400
#include <arpa/inet.h>
#include <dirent.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "base/keys.h"
#include "base/mac.h"
#include "certs.h"
#include "test.h"

enum { CROWD = 10000, TRIES = 10 };
static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
static pid_t server;
static char uri[128];
static uint16_t port;
static weft_runtime_t *client;

/* --- the server, in a process of its own ------------------------------------------------------------------------------------ */

static weft_runtime_t *open_runtime(bool by_key)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    o.connect_timeout_ns = 60 * WEFT_SECOND;
    o.heartbeat_ns = 60 * WEFT_SECOND; /* a busy machine is not what is tested here */
    o.key = by_key ? key : NULL;
    o.key_len = by_key ? sizeof key - 1 : 0;
    certs_use(by_key ? NULL : "node", by_key ? NULL : "ca");
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static void twice(weft_request_t *request, void *user)
{
    weft_value_t n = weft_u64(request->args[0].u64 * 2);
    (void)user;
    weft_request_reply(request, &n, 1);
}

static void many_files(void)
{
    struct rlimit r;
    CHECK(!getrlimit(RLIMIT_NOFILE, &r));
    r.rlim_cur = r.rlim_max < 65536 ? r.rlim_max : 65536;
    CHECK(!setrlimit(RLIMIT_NOFILE, &r));
}

static void start(bool by_key)
{
    int fds[2];
    weft_log_set_level(WEFT_LOG_NONE);
    setenv("WEFT_INTERFACES", "lo", 1);
    many_files();
    if (!by_key)
        certs_usual();
    CHECK(!pipe(fds));
    fflush(NULL);
    server = fork();
    CHECK(server >= 0);
    if (!server) {
        weft_service_t *service;
        weft_listener_t *l;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        weft_runtime_t *rt = open_runtime(by_key);
        CHECK_OK(weft_service_open(rt, "twice", NULL, &service));
        CHECK_OK(weft_service_add(service, "twice(n: u64) -> u64", twice, NULL, NULL));
        CHECK_OK(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l));
        const char *text = weft_listener_uri(l);
        CHECK(write(fds[1], text, strlen(text)) > 0);
        for (;;)
            pause();
    }
    close(fds[1]);
    CHECK(read(fds[0], uri, sizeof uri - 1) > 0);
    close(fds[0]);
    port = (uint16_t)atoi(strrchr(uri, ':') + 1);
    client = open_runtime(by_key);
}

static void end(void)
{
    int status;
    CHECK_OK(weft_runtime_close(client));
    CHECK_EQ(waitpid(server, &status, WNOHANG), 0); /* it is still there */
    kill(server, SIGKILL);
    waitpid(server, &status, 0);
}

/* Of the server's process: KiB of memory, microseconds of computing. */
static long memory(void)
{
    char name[64], line[256];
    long kb = 0;
    snprintf(name, sizeof name, "/proc/%d/status", (int)server);
    FILE *f = fopen(name, "r");
    CHECK(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "VmRSS:", 6))
            kb = atol(line + 6);
    fclose(f);
    return kb;
}

static double computed(void)
{
    clockid_t clock;
    struct timespec ts;
    CHECK(!clock_getcpuclockid(server, &clock) && !clock_gettime(clock, &ts));
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

/* Somebody honest: connects, calls and goes, in so many seconds at most. */
static double honest(void)
{
    weft_ep_t *ep;
    weft_client_t *c;
    weft_method_t *m;
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t n = weft_u64(21);
    double began = test_now();
    CHECK_OK(weft_ep_open(client, uri, NULL, &op, &ep));
    CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
    CHECK_OK(weft_client_on(ep, NULL, &c));
    CHECK_OK(weft_client_method(c, "twice(n: u64) -> u64", &m));
    CHECK_OK(weft_call_wait(m, &n, 1, NULL, 60 * WEFT_SECOND, &reply));
    CHECK_EQ(reply.values[0].u64, 42);
    weft_reply_release(&reply);
    CHECK_OK(weft_client_close(c, &op));
    CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
    CHECK_OK(weft_ep_close(ep, &op));
    CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
    return test_now() - began;
}

/* --- strangers -------------------------------------------------------------------------------------------------------------- */

static int dial(uint16_t to)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(to), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {60, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (void *)&a, sizeof a) && !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) &&
          !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience));
    return fd;
}

static size_t client_hello_with(const char *groups, uint8_t *to, size_t cap)
{
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    CHECK(c && (!groups || SSL_CTX_set1_groups_list(c, groups)));
    SSL *ssl = SSL_new(c);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    CHECK(c && ssl && in && out);
    SSL_set_bio(ssl, in, out);
    CHECK(SSL_connect(ssl) < 0);
    int n = BIO_read(out, to, (int)cap);
    CHECK(n > 100);
    SSL_free(ssl);
    SSL_CTX_free(c);
    return (size_t)n;
}

static size_t client_hello(uint8_t *to, size_t cap)
{
    return client_hello_with(NULL, to, cap);
}

/* The port that is not the listener's. */
static uint16_t lane_port(void)
{
    char name[300], link[64];
    unsigned long inode[64];
    unsigned n = 0, found = 0;
    snprintf(name, sizeof name, "/proc/%d/fd", (int)server);
    DIR *d = opendir(name);
    CHECK(d);
    for (struct dirent *e; (e = readdir(d)) && n < 64;) {
        snprintf(name, sizeof name, "/proc/%d/fd/%s", (int)server, e->d_name);
        ssize_t got = readlink(name, link, sizeof link - 1);
        link[got > 0 ? got : 0] = 0;
        n += sscanf(link, "socket:[%lu]", &inode[n]) == 1;
    }
    closedir(d);
    for (int v6 = 0; v6 < 2 && !found; v6++) {
        char line[512];
        FILE *f = fopen(v6 ? "/proc/net/tcp6" : "/proc/net/tcp", "r");
        while (f && fgets(line, sizeof line, f)) {
            unsigned at, state;
            unsigned long which;
            if (sscanf(line, " %*u: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*u %*u %lu", &at, &state, &which) != 3)
                continue;
            for (unsigned i = 0; i < n; i++)
                if (state == 10 && inode[i] == which && at != port)
                    found = at;
        }
        if (f)
            fclose(f);
    }
    CHECK(found);
    return (uint16_t)found;
}

/* 10,000 of them, from a process of its own; those that are turned away come no more. It says when it is done and stays. */
static pid_t crowd(uint16_t to, int *done)
{
    int fds[2];
    uint8_t hello[2048];
    size_t n = client_hello(hello, sizeof hello);
    CHECK(!pipe(fds));
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid) {
        close(fds[1]);
        *done = fds[0];
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    static int held[CROWD];
    struct rlimit r;
    CHECK(!getrlimit(RLIMIT_NOFILE, &r));
    unsigned most = r.rlim_cur > CROWD + 100 ? CROWD : (unsigned)r.rlim_cur - 100;
    for (unsigned i = 0; i < CROWD; i++) {
        if (i >= most)
            close(held[i % most]);
        int fd = held[i % most] = dial(to);
        size_t part = i % 3 == 0 ? 0 : i % 3 == 1 ? n / 2 : n;
        (void)!send(fd, hello, part, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    (void)!write(fds[1], "x", 1);
    for (;;)
        pause();
}

static void crowds_at(bool lane, bool by_key)
{
    int done, status;
    char c;
    start(by_key);
    honest();
    long before = memory(), most = 0;
    double worst = 0, cpu = computed();
    pid_t pid = crowd(lane ? lane_port() : port, &done);
    for (int i = 0; i < TRIES; i++) {
        double took = honest();
        worst = took > worst ? took : worst;
        most = memory() > most ? memory() : most;
    }
    CHECK_EQ(read(done, &c, 1), 1); /* all of them came */
    double took = honest();
    worst = took > worst ? took : worst;
    most = memory() > most ? memory() : most;
    printf("# %s, %s: %ld KiB before, %ld at most, %.0f us for each of %d; an honest client took %.3f s at most\n",
           lane ? "lanes' port" : "listener", by_key ? "key" : "certificates", before, most, (computed() - cpu) / CROWD, CROWD,
           worst);
    CHECK(most - before < 200 * 1024);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    honest();
    close(done);
    end();
}

TEST(a_crowd_that_is_silent_in_the_handshake_keeps_nobody_out)
{
    crowds_at(false, true);
}

TEST(nor_where_there_are_certificates)
{
    crowds_at(false, false);
}

TEST(nor_at_the_port_of_lanes)
{
    crowds_at(true, true);
}

TEST(what_a_client_hello_costs_the_server)
{
    enum { N = 300 };
    for (int by_key = 0; by_key < 2; by_key++) {
        uint8_t hello[2048], answer[8192];
        size_t n = client_hello(hello, sizeof hello);
        start(by_key);
        honest();
        double before = computed();
        for (int i = 0; i < N; i++) {
            int fd = dial(port);
            CHECK_EQ(send(fd, hello, n, MSG_NOSIGNAL), n);
            CHECK(recv(fd, answer, sizeof answer, 0) > 0);
            close(fd);
        }
        double us = (computed() - before) / N;
        printf("# %s: %.0f us of the server's processor for each\n", by_key ? "key" : "certificates", us);
        CHECK(us < 50e3);
        end();
    }
}

/* The stranger shows the same bytes again and again; the server would compute with numbers of thousands of bits each time. */
TEST(a_key_exchange_that_costs_the_server_much_is_not_made)
{
    static const char *const groups[] = {"ffdhe8192", "ffdhe2048", "P-521"};
    enum { N = 20 };
    for (int by_key = 0; by_key < 2; by_key++) {
        start(by_key);
        honest();
        for (size_t k = 0; k < sizeof groups / sizeof *groups; k++) {
            uint8_t hello[4096], answer[8192];
            size_t n = client_hello_with(groups[k], hello, sizeof hello);
            double before = computed();
            for (int i = 0; i < N; i++) {
                int fd = dial(port);
                CHECK_EQ(send(fd, hello, n, MSG_NOSIGNAL), n);
                CHECK(recv(fd, answer, sizeof answer, 0) > 0);
                CHECK_EQ(answer[0], 21); /* an alert, and no handshake that goes on */
                close(fd);
            }
            printf("# %s, %s: %.0f us of the server's processor for each\n", by_key ? "key" : "certificates", groups[k],
                   (computed() - before) / N);
        }
        end();
    }
}

/* --- one stranger at a time ------------------------------------------------------------------------------------------------- */

static uint8_t psk[32], psk_id[16 + WEFTI_KEY_HINT_SIZE];

/* As who has the key does, so far as OpenSSL knows of it: TLS is proved, and nothing else yet. */
static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n, SSL_SESSION **session)
{
    static const unsigned char aes[] = {0x13, 0x01};
    (void)md;
    *session = SSL_SESSION_new();
    *id = psk_id;
    *n = sizeof psk_id;
    return *session && SSL_SESSION_set1_master_key(*session, psk, sizeof psk) &&
           SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, aes)) &&
           SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION) && SSL_SESSION_set_max_early_data(*session, 16384);
}

static SSL *tls(int fd, int version, bool by_key)
{
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    CHECK(c && SSL_CTX_set_max_proto_version(c, version) && SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256"));
    if (by_key)
        SSL_CTX_set_psk_use_session_callback(c, use_key);
    SSL *ssl = SSL_new(c);
    CHECK(ssl && SSL_set_fd(ssl, fd) == 1);
    SSL_CTX_free(c);
    ERR_clear_error();
    return ssl;
}

static void over(SSL *ssl, int fd)
{
    SSL_free(ssl);
    close(fd);
    honest();
}

/* The server ends it, with an alert or without, and says nothing else. */
static void is_closed(int fd)
{
    uint8_t bytes[4096];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        CHECK_EQ(bytes[0], 0x15);
    CHECK(!n || errno == ECONNRESET || errno == EPIPE);
}

static void derive(void)
{
    /* what fabric/tls/keys.c does */
    uint8_t raw[32];
    wefti_key_t named = {.name = ""};
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        CHECK_EQ(sscanf(key + 11 + 2 * i, "%2x", &byte), 1);
        raw[i] = (uint8_t)byte;
    }
    wefti_mac(raw, "weft tls key", "", 0, psk);
    memcpy(named.secret, raw, sizeof raw);
    wefti_key_hint(&named, "weft tls hint", psk_id, 16, psk_id + 16); /* for a number of zeroes */
}

TEST(an_older_version_is_refused)
{
    start(true);
    int fd = dial(port);
    SSL *ssl = tls(fd, TLS1_2_VERSION, false);
    CHECK(SSL_connect(ssl) != 1);
    CHECK(strstr(ERR_reason_error_string(ERR_peek_last_error()), "protocol version"));
    over(ssl, fd);
    end();
}

TEST(early_data_is_not_taken)
{
    size_t n;
    start(true);
    derive();
    int fd = dial(port);
    SSL *ssl = tls(fd, TLS1_3_VERSION, true);
    (void)!SSL_write_early_data(ssl, "WFT1", 4, &n);
    int rc = SSL_connect(ssl);
    CHECK(rc != 1 || SSL_get_early_data_status(ssl) == SSL_EARLY_DATA_REJECTED);
    over(ssl, fd);
    end();
}

/* Without the option a client of OpenSSL's offers no key exchange of the key alone; with it the server still makes new keys. */
TEST(a_key_exchange_without_new_keys_is_not_made)
{
    start(true);
    derive();
    int fd = dial(port);
    SSL *ssl = tls(fd, TLS1_3_VERSION, true);
    SSL_set_options(ssl, SSL_OP_ALLOW_NO_DHE_KEX);
    CHECK_EQ(SSL_connect(ssl), 1);
    CHECK(SSL_get_negotiated_group(ssl) && SSL_session_reused(ssl));
    over(ssl, fd);
    end();
}

/* The answers that it asks for, and never reads, are not kept without end. */
TEST(who_asks_for_new_keys_without_end_is_ended)
{
    start(true);
    derive();
    honest();
    long before = memory();
    int fd = dial(port), small = 4096, i = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    SSL *ssl = tls(fd, TLS1_3_VERSION, true);
    CHECK_EQ(SSL_connect(ssl), 1);
    for (; i < 2000000; i++)
        if (SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED) != 1 || SSL_do_handshake(ssl) != 1)
            break;
    printf("# ended after %d, %ld KiB more\n", i, memory() - before);
    CHECK(memory() - before < 32 * 1024);
    over(ssl, fd);
    end();
}

/* Keys are renewed on a connection that lives long: there is no limit to how often. */
TEST(keys_may_be_renewed_many_times)
{
    start(true);
    derive();
    int fd = dial(port);
    SSL *ssl = tls(fd, TLS1_3_VERSION, true);
    CHECK_EQ(SSL_connect(ssl), 1);
    for (int i = 0; i < 200; i++)
        CHECK(SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(ssl) == 1);
    CHECK_EQ(SSL_write(ssl, "this is not Weft's", 18), 18);
    char c;
    CHECK(SSL_read(ssl, &c, 1) <= 0); /* it was understood, and refused for what it says */
    CHECK(SSL_get_error(ssl, 0) != SSL_ERROR_SSL || !strstr(ERR_reason_error_string(ERR_peek_error()), "decrypt"));
    over(ssl, fd);
    end();
}

TEST(records_that_are_none_end_the_connection)
{
    static const uint8_t too_long[] = {0x16, 3, 1, 0xff, 0xff}, empty[] = {0x16, 3, 1, 0, 0}, other[] = {0x79, 3, 1, 0, 1, 0},
                         no_hello[] = {0x17, 3, 3, 0, 2, 1, 2}, late[] = {0x16, 3, 1, 0, 4, 20, 0, 0, 0};
    static const struct {
        const uint8_t *at;
        size_t n;
        unsigned times;
    } all[] = {{too_long, 5, 1}, {empty, 5, 200000}, {other, 6, 1}, {no_hello, 7, 1}, {late, 9, 1}};
    start(true);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int fd = dial(port);
        double cpu = computed();
        for (unsigned k = 0; k < all[i].times; k++)
            if (send(fd, all[i].at, all[i].n, MSG_NOSIGNAL) < 0)
                break;
        is_closed(fd);
        CHECK(computed() - cpu < 5e6);
        close(fd);
        honest();
    }
    end();
}

/* A hello that says it has 128 KiB, and a chain that has more than a server reads. */
TEST(what_is_announced_is_not_kept_without_bound)
{
    enum { MANY = 1500 };
    static const uint8_t head[] = {0x16, 3, 1, 0x3f, 0xff, 1, 1, 0xff, 0};
    static int fds[MANY];
    start(false);
    honest();
    long before = memory(), most = 0;
    for (int i = 0; i < MANY; i++) {
        fds[i] = dial(port);
        CHECK_EQ(send(fds[i], head, sizeof head, MSG_NOSIGNAL), sizeof head);
    }
    honest();
    most = memory() - before;
    printf("# %d hellos that say they are 128 KiB: %ld KiB more\n", MANY, most);
    CHECK(most < 300 * 1024);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    certs_make(&(cert_t){.name = "huge", .by = "ca", .san = "IP:127.0.0.1", .names = 8000});
    int fd = dial(port);
    char c;
    SSL *ssl = tls(fd, TLS1_3_VERSION, false);
    CHECK(SSL_use_certificate_file(ssl, certs_file("huge", "crt"), SSL_FILETYPE_PEM) == 1 &&
          SSL_use_PrivateKey_file(ssl, certs_file("huge", "key"), SSL_FILETYPE_PEM) == 1);
    SSL_set_tlsext_host_name(ssl, "\x01 no name % of; anything\xff");
    CHECK(SSL_connect(ssl) != 1 || SSL_read(ssl, &c, 1) <= 0);
    over(ssl, fd);
    end();
}
