/* tests/fault/tls_certs.c - which certificates are believed, as a table: what the server shows, what the client shows, whom each
 * believes, and what the client called the server. Who is refused is told so in a sentence, within seconds, at both ends: the
 * client by its connect, the server in its log.
 *
 * ctest: openssl timeout=300 */
#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <weft/weft.h>

#include "certs.h"
#include "test.h"

static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";

/* Names of the table are this machine. */
__attribute__((visibility("default"))) int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    static struct sockaddr_in a;
    (void)name, (void)service, (void)hints;
    a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *out = calloc(1, sizeof **out);
    **out = (struct addrinfo){.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_addrlen = sizeof a, .ai_addr = (void *)&a};
    return 0;
}

__attribute__((visibility("default"))) void freeaddrinfo(struct addrinfo *ai)
{
    free(ai);
}

/* --- what the server says of it --------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char said[8192];

static void hear(weft_log_level_t level, const char *line, void *user)
{
    (void)level, (void)user;
    pthread_mutex_lock(&lock);
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", line);
    pthread_mutex_unlock(&lock);
}

static bool heard(const char *words)
{
    pthread_mutex_lock(&lock);
    bool is = strstr(said, words);
    pthread_mutex_unlock(&lock);
    return is;
}

/* --- the table -------------------------------------------------------------------------------------------------------------- */

typedef struct row {
    const char *what;
    const char *server, *server_ca, *client, *client_ca; /* NULL: none; "key": the pre-shared key instead */
    const char *host;
    const char *client_says; /* of its connect; NULL: it comes up */
    const char *server_says; /* in its log; NULL: anything */
} row_t;

#define IP "127.0.0.1"
static const row_t rows[] = {
    {"both are right", "node", "ca", "node", "ca", IP, NULL, NULL},
    {"by name", "node", "ca", "node", "ca", "localhost", NULL, NULL},
    {"expired server", "old", "ca", "node", "ca", IP, "expired", "alert certificate expired"},
    {"expired client", "node", "ca", "old", "ca", IP, "alert certificate expired", "expired"},
    {"server of tomorrow", "new", "ca", "node", "ca", IP, "not yet valid", "bad certificate"},
    {"client of tomorrow", "node", "ca", "new", "ca", IP, "bad certificate", "not yet valid"},
    {"server at another address", "far", "ca", "node", "ca", IP, "another host (IP address mismatch)", "bad certificate"},
    {"server with another name", "far", "ca", "node", "ca", "node.example", "another host (hostname mismatch)", NULL},
    {"a client's names do not matter", "node", "ca", "far", "ca", IP, NULL, NULL},
    {"self-signed server", "self", "ca", "node", "ca", IP, "self-signed", "unknown ca"},
    {"self-signed client", "node", "ca", "self", "ca", IP, "unknown ca", "self-signed"},
    {"another authority's server", "stranger", "ca", "node", "ca", IP, "issuer", "unknown ca"},
    {"another authority's client", "node", "ca", "stranger", "ca", IP, "unknown ca", "issuer"},
    {"server without what is between", "below", "ca", "node", "ca", IP, "issuer", "unknown ca"},
    {"client without what is between", "node", "ca", "below", "ca", IP, "unknown ca", "issuer"},
    {"server with what is between", "whole", "ca", "node", "ca", IP, NULL, NULL},
    {"client with what is between", "node", "ca", "whole", "ca", IP, NULL, NULL},
    {"signed by who is no authority", "grandchild", "ca", "node", "ca", IP, "invalid CA", NULL},
    {"server that may only be a client", "client-only", "ca", "node", "ca", IP, "purpose", "unsupported certificate"},
    {"client that may only be a server", "node", "ca", "server-only", "ca", IP, "unsupported certificate", "purpose"},
    {"each as it may", "server-only", "ca", "client-only", "ca", IP, NULL, NULL},
    {"no SAN, and the address as CN", "bare-ip", "ca", "node", "ca", IP, "IP address mismatch", NULL},
    {"no SAN, and the name as CN", "bare-name", "ca", "node", "ca", "localhost", "hostname mismatch", NULL},
    {"a NUL in the name", "nul", "ca", "node", "ca", "localhost", "hostname mismatch", NULL},
    {"a star for a label", "star", "ca", "node", "ca", "any.net.example", NULL, NULL},
    {"a star is not two labels", "star", "ca", "node", "ca", "some.any.net.example", "hostname mismatch", NULL},
    {"a star is not none", "star", "ca", "node", "ca", "net.example", "hostname mismatch", NULL},
    {"a star for a part of a label", "half-star", "ca", "node", "ca", "nothing.net.example", "hostname mismatch", NULL},
    {"a star alone", "all", "ca", "node", "ca", "localhost", "hostname mismatch", NULL},
    {"client with the key, server with certificates", "node", "ca", "key", NULL, IP, "the two need the same key", NULL},
    {"client with certificates, server with the key", "key", NULL, "node", "ca", IP, "the two need the same key", NULL},
    {"both with the key", "key", NULL, "key", NULL, IP, NULL, NULL},
};

static void make_all(void)
{
    certs_usual();
    certs_make(&(cert_t){.name = "other", .ca = true});
    certs_make(&(cert_t){.name = "mid", .by = "ca", .ca = true});
    certs_make(&(cert_t){.name = "old", .by = "ca", .san = "IP:127.0.0.1", .from = -20, .to = -1});
    certs_make(&(cert_t){.name = "new", .by = "ca", .san = "IP:127.0.0.1", .from = 1, .to = 20});
    certs_make(&(cert_t){.name = "far", .by = "ca", .san = "IP:192.0.2.1,DNS:far.example"});
    certs_make(&(cert_t){.name = "self", .san = "IP:127.0.0.1"});
    certs_make(&(cert_t){.name = "stranger", .by = "other", .san = "IP:127.0.0.1"});
    certs_make(&(cert_t){.name = "below", .by = "mid", .san = "IP:127.0.0.1"});
    certs_make(&(cert_t){.name = "whole", .by = "mid", .san = "IP:127.0.0.1", .chain = "mid"});
    certs_make(&(cert_t){.name = "grandchild", .by = "node", .san = "IP:127.0.0.1", .chain = "node"});
    certs_make(&(cert_t){.name = "client-only", .by = "ca", .san = "IP:127.0.0.1", .usage = "clientAuth"});
    certs_make(&(cert_t){.name = "server-only", .by = "ca", .san = "IP:127.0.0.1", .usage = "serverAuth"});
    certs_make(&(cert_t){.name = "bare-ip", .by = "ca", .common = "127.0.0.1"});
    certs_make(&(cert_t){.name = "bare-name", .by = "ca", .common = "localhost"});
    certs_make(&(cert_t){.name = "nul", .by = "ca", .san = "DNS:localhostX.evil.example", .nul = 9});
    certs_make(&(cert_t){.name = "star", .by = "ca", .san = "DNS:*.net.example"});
    certs_make(&(cert_t){.name = "half-star", .by = "ca", .san = "DNS:no*.net.example"});
    certs_make(&(cert_t){.name = "all", .by = "ca", .san = "DNS:*"});
    certs_make(&(cert_t){.name = "weak", .by = "ca", .san = "IP:127.0.0.1", .rsa = 1024});
    certs_make(&(cert_t){.name = "sha1", .by = "ca", .san = "IP:127.0.0.1", .sha1 = true});
    certs_make(&(cert_t){.name = "reserved", .by = "ca", .san = "DNS:anonymous,DNS:*,DNS:ops-*,DNS:real.example"});
    certs_make(&(cert_t){.name = "anonymous", .by = "ca", .san = "DNS:anonymous,IP:127.0.0.1"});
    certs_make(&(cert_t){.name = "nul-client", .by = "ca", .san = "DNS:adminX.example,DNS:second.example", .nul = 5});
}

static weft_runtime_t *open_with(const char *cert, const char *ca)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    bool by_key = cert && !strcmp(cert, "key");
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    o.connect_timeout_ns = 20 * WEFT_SECOND;
    o.key = by_key ? key : NULL;
    o.key_len = by_key ? sizeof key - 1 : 0;
    certs_use(by_key ? NULL : cert, ca);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static _Atomic int n_accepted;

static void accepts(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)ep, (void)user;
    atomic_fetch_add(&n_accepted, 1);
}

static void try_row(const row_t *r)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_listener_t *l;
    weft_ep_t *ep;
    char uri[300];
    said[0] = 0;
    atomic_store(&n_accepted, 0);
    weft_log_set_level(WEFT_LOG_NONE);
    weft_runtime_t *server = open_with(r->server, r->server_ca), *client = open_with(r->client, r->client_ca);
    lo.accept = accepts;
    once.no_retry = true;
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", &lo, &l));
    snprintf(uri, sizeof uri, "tls://%s:%u", r->host, weft_listener_port(l));
    weft_log_set_level(WEFT_LOG_INFO);
    CHECK_OK(weft_ep_open(client, uri, &once, &op, &ep));
    double began = test_now();
    weft_status_t st = weft_op_wait(&op, 60 * WEFT_SECOND);
    if (r->client_says ? st != WEFT_ERR_AUTH || !strstr(weft_op_error(&op), r->client_says) : st != WEFT_OK)
        FAIL("%s: %s, \"%s\", and not \"%s\"", r->what, weft_status_name(st), weft_op_error(&op),
             r->client_says ? r->client_says : "it comes up");
    if (st) {
        CHECK(test_now() - began < 15); /* it is told, and does not wait for its timeout */
        printf("# %s: %s\n", r->what, weft_op_error(&op));
        for (double until = test_now() + 20; r->server_says && !heard(r->server_says); usleep(1000))
            if (test_now() > until)
                FAIL("%s: the server does not say \"%s\" but \"%s\"", r->what, r->server_says, said);
        CHECK_EQ(atomic_load(&n_accepted), 0);
    } else {
        TEST_UNTIL(atomic_load(&n_accepted) == 1, 20);
    }
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(each_certificate_is_believed_or_refused_in_a_sentence)
{
    make_all();
    weft_log_set_sink(hear, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        try_row(&rows[i]);
}

/* --- what only somebody else would show ------------------------------------------------------------------------------------- */

/* A client of OpenSSL's that is content with anything: what the server answers is its alert, in words. */
static void shows(const char *cert, const char *words)
{
    weft_runtime_t *server = open_with("node", "ca");
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *l;
    char byte, hello[] = "WFT1\1\0\0\0x";
    lo.accept = accepts;
    atomic_store(&n_accepted, 0);
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", &lo, &l));
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(weft_listener_port(l)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {30, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (void *)&a, sizeof a) && !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    CHECK(c);
    SSL_CTX_set_security_level(c, 0);
    if (cert)
        CHECK(SSL_CTX_use_certificate_chain_file(c, certs_file(cert, "crt")) == 1 &&
              SSL_CTX_use_PrivateKey_file(c, certs_file(cert, "key"), SSL_FILETYPE_PEM) == 1);
    SSL *ssl = SSL_new(c);
    CHECK(ssl && SSL_set_fd(ssl, fd) == 1 && SSL_set1_sigalgs_list(ssl, "ECDSA+SHA256:RSA-PSS+SHA256:RSA+SHA256") == 1);
    ERR_clear_error();
    int up = SSL_connect(ssl);
    int n = up == 1 ? SSL_write(ssl, hello, sizeof hello - 1) : 0;
    n = n > 0 ? SSL_read(ssl, &byte, 1) : 0;
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    if (!words ? !why || strstr(why, "alert") : !why || !strstr(why, words))
        if (words || n > 0)
            FAIL("%s: the server says \"%s\", and not \"%s\"", cert ? cert : "none", why ? why : "nothing", words);
    CHECK_EQ(atomic_load(&n_accepted), 0);
    SSL_free(ssl);
    SSL_CTX_free(c);
    close(fd);
    CHECK_OK(weft_runtime_close(server));
}

TEST(a_client_that_shows_none_or_a_weak_one_is_refused)
{
    make_all();
    weft_log_set_level(WEFT_LOG_NONE);
    shows(NULL, "alert certificate required");
    shows("weak", "alert bad certificate");
    shows("sha1", "alert bad certificate");
}

/* Our own side says at once that its certificate is none that others would believe. */
TEST(weak_certificates_of_our_own_are_refused_by_name)
{
    make_all();
    weft_log_set_level(WEFT_LOG_NONE);
    static const char *const weak[][2] = {{"weak", "key too small"}, {"sha1", "md too weak"}};
    for (size_t i = 0; i < sizeof weak / sizeof *weak; i++) {
        weft_listener_t *l;
        weft_runtime_t *rt = open_with(weak[i][0], "ca");
        CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l), WEFT_ERR_INVALID);
        if (!strstr(weft_last_error(), weak[i][1]) || !strstr(weft_last_error(), weak[i][0]))
            FAIL("it says \"%s\"", weft_last_error());
        CHECK_OK(weft_runtime_close(rt));
    }
}

static void is_known_as(const char *cert, const char *name)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_listener_t *l;
    weft_ep_t *ep, *other;
    weft_runtime_t *server = open_with("node", "ca"), *client = open_with(cert, "ca");
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", NULL, &l));
    CHECK_OK(weft_ep_open(client, weft_listener_uri(l), NULL, NULL, &ep));
    CHECK_OK(weft_listener_accept_wait(l, 30 * WEFT_SECOND, &other));
    CHECK_OK(weft_ep_get_info(other, &info));
    CHECK_STR(info.identity, name);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

/* A name that is cut short by a NUL is no name: the next one is. */
TEST(a_name_with_a_nul_in_it_is_no_identity)
{
    make_all();
    is_known_as("nul-client", "second.example");
}

static _Atomic int nameless;

static void hear_of_nameless(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level == WEFT_LOG_INFO && strstr(line, "has no name that could be its identity"))
        atomic_fetch_add(&nameless, 1);
}

TEST(what_is_no_name_or_means_something_else_in_a_policy_is_no_identity)
{
    make_all();
    weft_log_set_level(WEFT_LOG_INFO);
    weft_log_set_sink(hear_of_nameless, NULL);
    is_known_as("reserved", "real.example");
    CHECK_EQ(nameless, 0);
    is_known_as("anonymous", "");
    CHECK_EQ(nameless, 1);
    is_known_as("bare-name", ""); /* a CN is none */
    CHECK_EQ(nameless, 2);
    weft_log_set_sink(NULL, NULL);
}

/* Who has certificates shows them, also where both have a key: the key alone is no way in, and gives nobody's name. */
TEST(a_key_does_not_take_the_place_of_certificates)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_runtime_t *rt[3];
    weft_listener_t *l;
    weft_ep_t *ep, *other;
    weft_op_t op = WEFT_OP_INIT;
    make_all();
    weft_log_set_level(WEFT_LOG_NONE);
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    o.key = key;
    o.key_len = sizeof key - 1;
    for (int i = 0; i < 3; i++) {
        certs_use(i < 2 ? "node" : NULL, i < 2 ? "ca" : NULL);
        CHECK_OK(weft_runtime_open(&o, &rt[i]));
    }
    CHECK_OK(weft_listen(rt[0], "tls://127.0.0.1:0", NULL, &l));
    CHECK_OK(weft_ep_open(rt[1], weft_listener_uri(l), NULL, NULL, &ep));
    CHECK_OK(weft_listener_accept_wait(l, 30 * WEFT_SECOND, &other));
    CHECK_OK(weft_ep_get_info(other, &info));
    CHECK_STR(info.identity, "node.example");
    CHECK_OK(weft_ep_open(rt[2], weft_listener_uri(l), NULL, &op, &ep));
    CHECK_EQ(weft_op_wait(&op, 30 * WEFT_SECOND), WEFT_ERR_AUTH);
    for (int i = 3; i-- > 0;)
        CHECK_OK(weft_runtime_close(rt[i]));
}

/* --- schemes that differ -------------------------------------------------------------------------------------------------- */

/* With WEFT_TLS=auto a listener at tcp:// understands both on its own host: tls_between.c. */
TEST(plain_and_tls_do_not_meet)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_tls_opts_t off = WEFT_TLS_OPTS_INIT;
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    weft_listener_t *l;
    weft_runtime_t *rt[2];
    weft_log_set_level(WEFT_LOG_NONE);
    o.key = key;
    o.key_len = sizeof key - 1;
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    off.mode = "off";
    o.tls = &off;
    once.no_retry = true;
    for (int tls_listens = 0; tls_listens < 2; tls_listens++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        char to[64];
        for (int i = 0; i < 2; i++)
            CHECK_OK(weft_runtime_open(&o, &rt[i]));
        CHECK_OK(weft_listen(rt[0], tls_listens ? "tls://127.0.0.1:0" : "tcp://127.0.0.1:0", NULL, &l));
        snprintf(to, sizeof to, "%s://127.0.0.1:%u", tls_listens ? "tcp" : "tls", weft_listener_port(l));
        CHECK_OK(weft_ep_open(rt[1], to, &once, &op, &ep));
        weft_status_t st = weft_op_wait(&op, 60 * WEFT_SECOND);
        CHECK(st && st != WEFT_ERR_TIMEOUT);
        printf("# %s: %s\n", to, weft_op_error(&op));
        for (int i = 2; i-- > 0;)
            CHECK_OK(weft_runtime_close(rt[i]));
    }
}

TEST(a_private_key_that_others_can_read_is_refused)
{
    weft_runtime_t *rt;
    weft_listener_t *l = NULL;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    certs_usual();
    certs_use("node", "ca");
    CHECK(!chmod(certs_file("node", "key"), 0604));
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l), WEFT_ERR_INVALID);
    if (!strstr(weft_last_error(), "node.key") || !strstr(weft_last_error(), "604") || !strstr(weft_last_error(), "chmod"))
        FAIL("%s", weft_last_error());
    CHECK(!chmod(certs_file("node", "key"), 0640)); /* a group may have it, as with key files */
    CHECK_OK(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l));
    CHECK_OK(weft_runtime_close(rt));
}

/* OpenSSL would ask for a password at the terminal, and everybody would wait for it. */
TEST(a_private_key_with_a_password_is_refused_and_nobody_is_asked)
{
    weft_runtime_t *rt;
    weft_listener_t *l = NULL;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    certs_usual();
    certs_use("node", "ca");
    FILE *f = fopen(certs_file("node", "key"), "r");
    EVP_PKEY *pkey = f ? PEM_read_PrivateKey(f, NULL, NULL, NULL) : NULL;
    CHECK(pkey && !fclose(f));
    f = fopen(certs_file("node", "key"), "w");
    CHECK(f && PEM_write_PKCS8PrivateKey(f, pkey, EVP_aes_256_cbc(), "secret", 6, NULL, NULL) && !fclose(f));
    EVP_PKEY_free(pkey);
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l), WEFT_ERR_INVALID);
    if (!strstr(weft_last_error(), "is encrypted") || !strstr(weft_last_error(), "openssl pkey -in"))
        FAIL("%s", weft_last_error());
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_file_that_is_not_there_is_said_not_to_be)
{
    static const char *const variables[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA", "WEFT_TLS_CRL"};
    certs_usual();
    for (int i = 0; i < 4; i++) {
        weft_runtime_t *rt;
        weft_listener_t *l = NULL;
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        certs_use("node", "ca");
        setenv(variables[i], "/nowhere/there.pem", 1);
        CHECK_OK(weft_runtime_open(&o, &rt));
        CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l), WEFT_ERR_INVALID);
        if (!strstr(weft_last_error(), strerror(ENOENT)) || !strstr(weft_last_error(), variables[i]))
            FAIL("%s: %s", variables[i], weft_last_error());
        CHECK_OK(weft_runtime_close(rt));
        unsetenv(variables[i]);
    }
}
