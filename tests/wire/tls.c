/* tests/wire/tls.c - tls:// between two runtimes: by a key, by certificates; what travels is encrypted, and who has neither stays
 * outside. */
#include <stdarg.h>

#include "lib/two.h"
#include "test.h"

static char folder[] = "/tmp/weft-tls-XXXXXX";
static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
static const char other[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef1";

static weft_runtime_opts_t with_key(const char *text, const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.key = text;
    o.key_len = text ? strlen(text) : 0;
    o.transports = transports;
    return o;
}

static void need_openssl(void)
{
    if (system("openssl version >/dev/null 2>&1"))
        SKIP("there is no openssl command to make certificates with");
    CHECK(mkdtemp(folder));
}

static void run(const char *fmt, ...)
{
    char text[2000], whole[2100];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(whole, sizeof whole, "cd %s && (%s) >log 2>&1", folder, text);
    if (system(whole))
        FAIL("%s", whole);
}

/* NAME.crt and NAME.key, believed by CA.crt. */
static void make_ca(const char *ca)
{
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s.key -out %s.crt -days 2 -subj /CN=%s",
        ca, ca, ca);
}

static void make_cert(const char *ca, const char *name, const char *san, const char *more)
{
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s.key -out %s.csr -subj /CN=%s && "
        "printf 'subjectAltName=%s' >ext && openssl x509 -req -in %s.csr -CA %s.crt -CAkey %s.key -CAcreateserial -out %s.crt "
        "-extfile ext %s",
        name, name, name, san, name, ca, ca, name, more);
}

static void use_cert(const char *name, const char *ca)
{
    char text[128];
    const char *names[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA"};
    const char *ends[] = {".crt", ".key", ".crt"};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s/%s%s", folder, i == 2 ? ca : name, ends[i]);
        if (name)
            setenv(names[i], text, 1);
        else
            unsetenv(names[i]);
    }
}

static weft_listener_t *listener;

static void listens(const weft_runtime_opts_t *server, const weft_runtime_opts_t *client)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    two_open(server, client);
    CHECK_OK(weft_listen(two.server, "tls://127.0.0.1:0", &lo, &listener));
    CHECK(!strncmp(weft_listener_uri(listener), "tls://127.0.0.1:", 16));
}

static weft_status_t meet(weft_ep_t **a, weft_ep_t **b)
{
    weft_op_t op = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    once.no_retry = true;
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(listener), &once, &op, a));
    weft_status_t st = two_wait(&op, 20);
    if (st)
        return st;
    CHECK_OK(weft_listener_accept(listener, &accept));
    CHECK_OK(two_wait(&accept, 5));
    *b = weft_op_ep(&accept);
    return WEFT_OK;
}

static void talk(weft_ep_t *a, weft_ep_t *b)
{
    static const size_t sizes[] = {0, 1, 8, 1000, 4096, 16000, 40000, 65536, 100000, 1 << 20, 20 << 20};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        weft_op_t ops[4] = {WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT};
        size_t n = sizes[i];
        uint8_t *out = malloc(n + 1), *in[2] = {calloc(1, n + 1), calloc(1, n + 1)};
        for (size_t k = 0; k < n; k++)
            out[k] = (uint8_t)(k * 7 + k / 251 + i);
        CHECK_OK(weft_msg_recv(b, in[0], n, 5, WEFT_TAG_FULL, &ops[0]));
        CHECK_OK(weft_msg_recv(a, in[1], n, 6, WEFT_TAG_FULL, &ops[1]));
        CHECK_OK(weft_msg_send(a, out, n, 5, &ops[2]));
        CHECK_OK(weft_msg_send(b, out, n, 6, &ops[3]));
        for (int k = 0; k < 4; k++)
            CHECK_OK(two_wait(&ops[k], 60));
        CHECK(!memcmp(in[0], out, n) && !memcmp(in[1], out, n));
        free(out);
        free(in[0]);
        free(in[1]);
    }
    /* and many small ones at once, which travel together */
    enum { MANY = 3000 };
    static weft_op_t sent[MANY], got[MANY];
    static uint32_t numbers[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        sent[i] = got[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_msg_recv(b, &numbers[i], 4, 7, WEFT_TAG_FULL, &got[i]));
    }
    static uint32_t values[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        values[i] = i;
        CHECK_OK(weft_msg_send(a, &values[i], 4, 7, &sent[i]));
    }
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_OK(two_wait(&got[i], 20));
        CHECK_OK(two_wait(&sent[i], 20));
        CHECK_EQ(numbers[i], i);
    }
}

static void closes(weft_ep_t *a)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_ep_close(a, &op));
    CHECK_OK(two_wait(&op, 5));
    two_close();
}

/* Whoever had nothing the last time reads a little first, and the rest with a second read: at each size around that the bytes are
 * whole. Three endpoints take turns, for one of them has OpenSSL's buffers at a time. */
TEST(what_comes_after_silence_is_whole)
{
    enum { EPS = 3, FROM = 1900, TO = 2120 };
    static uint8_t out[EPS][8 * TO], in[EPS][8 * TO];
    weft_runtime_opts_t o = with_key(key, "tcp");
    weft_ep_t *a[EPS], *b[EPS];
    weft_op_t sent[EPS], got[EPS];
    listens(&o, &o);
    for (int k = 0; k < EPS; k++)
        CHECK_OK(meet(&a[k], &b[k]));
    for (size_t n = FROM; n < TO; n++) {
        for (int i = 0; i < 50; i++) /* all have found nothing */
            two_drive();
        for (int k = 0; k < EPS; k++) {
            size_t most = k == 1 ? 8 * n : n; /* one has much more */
            for (size_t i = 0; i < most; i++)
                out[k][i] = (uint8_t)(i * 7 + i / 251 + n + (size_t)k);
            memset(in[k], 0, sizeof in[k]);
            sent[k] = got[k] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_msg_recv(b[k], in[k], most, 5, WEFT_TAG_FULL, &got[k]));
            CHECK_OK(weft_msg_send(a[k], out[k], most, 5, &sent[k]));
        }
        for (int k = 0; k < EPS; k++) {
            CHECK_OK(two_wait(&got[k], 20));
            CHECK_OK(two_wait(&sent[k], 20));
            CHECK(!memcmp(in[k], out[k], k == 1 ? 8 * n : n));
        }
    }
    for (int k = 1; k < EPS; k++) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_ep_close(a[k], &op));
        CHECK_OK(two_wait(&op, 5));
    }
    closes(a[0]);
}

TEST(a_key_is_enough)
{
    weft_runtime_opts_t o = with_key(key, "tcp");
    weft_ep_t *a, *b;
    listens(&o, &o);
    CHECK_OK(meet(&a, &b));
    talk(a, b);
    closes(a);
}

TEST(peers_of_one_host_have_shared_memory_after_they_met_over_tls)
{
    weft_runtime_opts_t o = with_key(key, "all");
    weft_ep_t *a, *b;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    listens(&o, &o);
    CHECK_OK(meet(&a, &b));
    CHECK_OK(weft_ep_get_info(a, &info));
    CHECK_STR(info.transport, "shm");
    talk(a, b);
    closes(a);
}

TEST(another_key_is_refused_and_so_is_none)
{
    weft_runtime_opts_t o = with_key(key, "tcp"), wrong = with_key(other, "tcp"), none = with_key(NULL, "tcp");
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *a, *b;
    weft_log_set_level(WEFT_LOG_ERROR);
    listens(&o, &wrong);
    CHECK_EQ(meet(&a, &b), WEFT_ERR_AUTH);
    two_close();
    listens(&o, &none);
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(listener), NULL, &op, &a));
    CHECK_EQ(two_wait(&op, 5), WEFT_ERR_INVALID);
    CHECK(strstr(weft_op_error(&op), "WEFT_TLS_CERT"));
    two_close();
}

TEST(certificates_of_one_authority_believe_each_other)
{
    weft_ep_t *a, *b;
    weft_runtime_opts_t o = with_key(NULL, "tcp");
    need_openssl();
    make_ca("ca");
    make_cert("ca", "node", "IP:127.0.0.1,DNS:node.example", "-days 2");
    use_cert("node", "ca");
    listens(&o, &o);
    CHECK_OK(meet(&a, &b));
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    CHECK_OK(weft_ep_get_info(b, &info));
    CHECK(!strncmp(info.cipher, "TLS_AES_", 8) && info.authenticated);
    CHECK_STR(info.identity, "node.example");
    CHECK_STR(info.transport, "tcp");
    talk(a, b);
    closes(a);
}

/* What the client has does not do: the connect fails, with a sentence. */
static void refused(const char *name, const char *ca)
{
    weft_runtime_opts_t o = with_key(NULL, "tcp");
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_t *a, *b;
    use_cert("node", "ca");
    CHECK_OK(weft_runtime_open(&o, &two.server));
    CHECK_OK(weft_listen(two.server, "tls://127.0.0.1:0", &lo, &listener));
    use_cert(name, ca);
    CHECK_OK(weft_runtime_open(&o, &two.client));
    weft_status_t st = meet(&a, &b);
    if (st != WEFT_ERR_AUTH)
        FAIL("%s with %s: %s", name, ca, weft_status_name(st));
    CHECK_OK(weft_runtime_close(two.client));
    CHECK_OK(weft_runtime_close(two.server));
}

TEST(certificates_that_do_not_do_are_refused)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    need_openssl();
    make_ca("ca");
    make_ca("ca2");
    make_cert("ca", "node", "IP:127.0.0.1", "-days 2");
    make_cert("ca2", "stranger", "IP:127.0.0.1", "-days 2");
    make_cert("ca", "old", "IP:127.0.0.1",
              "-days 0 -not_before 20200101000000Z -not_after 20200102000000Z 2>/dev/null || openssl x509 -req "
              "-in old.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out old.crt -extfile ext -days -1");
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout self.key -out self.crt -days 2 -subj "
        "/CN=self "
        "-addext subjectAltName=IP:127.0.0.1");
    refused("stranger", "ca"); /* the listener does not believe it */
    refused("node", "ca2");    /* it does not believe the listener */
    refused("self", "ca");
    refused("old", "ca");
}

TEST(a_certificate_of_another_host_is_refused)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    need_openssl();
    make_ca("ca");
    make_cert("ca", "node", "DNS:elsewhere.example", "-days 2");
    refused("node", "ca");
}

TEST(files_that_cannot_be_used_are_named)
{
    weft_runtime_t *rt;
    weft_listener_t *l;
    setenv("WEFT_TLS_CERT", "/nonexistent/cert", 1);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "WEFT_TLS_KEY"));
    CHECK_OK(weft_runtime_close(rt));
    setenv("WEFT_TLS_KEY", "/nonexistent/key", 1);
    setenv("WEFT_TLS_CA", "/nonexistent/ca", 1);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "/nonexistent/cert"));
    CHECK_OK(weft_runtime_close(rt));
}
