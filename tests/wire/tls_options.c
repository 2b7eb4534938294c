/* tests/wire/tls_options.c - certificates by options: of a runtime, of one listener, of one endpoint. ctest: shards */
#include <stdarg.h>

#include "test.h"

#include <weft/weft.h>

static char folder[] = "/tmp/weft-tls-options-XXXXXX";

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

static void make_ca(const char *ca)
{
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s.key -out %s.crt -days 2 -subj /CN=%s",
        ca, ca, ca);
}

static void make_cert(const char *ca, const char *name)
{
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s.key -out %s.csr -subj /CN=%s && "
        "printf 'subjectAltName=DNS:%s,IP:127.0.0.1' >%s.ext && openssl x509 -req -in %s.csr -CA %s.crt -CAkey %s.key "
        "-CAcreateserial -out %s.crt -extfile %s.ext -days 2",
        name, name, name, name, name, name, ca, ca, name, name);
}

static void need_certificates(void)
{
    if (system("openssl version >/dev/null 2>&1"))
        SKIP("there is no openssl command to make certificates with");
    CHECK(mkdtemp(folder));
    make_ca("ca");
    make_cert("ca", "alice");
    make_cert("ca", "bob");
}

static weft_tls_opts_t of(const char *name)
{
    static char files[8][128];
    static int n;
    weft_tls_opts_t t = WEFT_TLS_OPTS_INIT;
    char(*at)[128] = &files[n++ % 2 * 4];
    snprintf(at[0], sizeof at[0], "%s/%s.crt", folder, name);
    snprintf(at[1], sizeof at[1], "%s/%s.key", folder, name);
    snprintf(at[2], sizeof at[2], "%s/ca.crt", folder);
    t.cert = at[0];
    t.key = at[1];
    t.ca = at[2];
    return t;
}

static weft_runtime_t *opened(const weft_tls_opts_t *tls)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    o.tls = tls;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

/* The client meets the listener, and each knows the other by the name it should have. */
static void meet(weft_runtime_t *client, weft_listener_t *l, const weft_tls_opts_t *tls, const char *of_client,
                 const char *of_server)
{
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_ep_t *a, *b;
    char got[4] = "";
    weft_op_t recv = WEFT_OP_INIT, send = WEFT_OP_INIT;
    eo.tls = tls;
    CHECK_OK(weft_ep_connect(client, weft_listener_uri(l), &eo, 20 * WEFT_SECOND, &a));
    CHECK_OK(weft_listener_accept_wait(l, 20 * WEFT_SECOND, &b));
    CHECK_OK(weft_ep_get_info(a, &info));
    CHECK_STR(info.identity, of_server);
    CHECK(!strncmp(info.cipher, "TLS_", 4));
    CHECK_STR(info.transport, "tcp");
    info = (weft_ep_info_t)WEFT_EP_INFO_INIT;
    CHECK_OK(weft_ep_get_info(b, &info));
    CHECK_STR(info.identity, of_client);
    CHECK_OK(weft_msg_recv(b, got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(a, "abc", 4, 1, &send));
    CHECK_OK(weft_op_wait(&recv, 20 * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&send, 20 * WEFT_SECOND));
    CHECK_STR(got, "abc");
    CHECK_OK(weft_ep_close(a, NULL));
    CHECK_OK(weft_ep_close(b, NULL));
}

TEST(a_runtime_has_the_certificates_of_its_options)
{
    need_certificates();
    weft_tls_opts_t alice = of("alice"), bob = of("bob");
    weft_runtime_t *server = opened(&bob), *client = opened(&alice);
    weft_listener_t *l;
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", NULL, &l));
    meet(client, l, NULL, "alice", "bob");
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(a_listener_and_an_endpoint_have_certificates_of_their_own)
{
    need_certificates();
    weft_tls_opts_t alice = of("alice"), bob = of("bob");
    weft_runtime_t *server = opened(NULL), *client = opened(NULL);
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *l;
    lo.tls = &bob;
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", &lo, &l));
    for (int i = 0; i < 6; i++) /* on each shard, if there are several */
        meet(client, l, &alice, "alice", "bob");
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(one_endpoint_uses_another_certificate_than_its_runtime)
{
    need_certificates();
    weft_tls_opts_t alice = of("alice"), bob = of("bob");
    weft_tls_opts_t only = WEFT_TLS_OPTS_INIT; /* the authorities are the runtime's */
    weft_runtime_t *server = opened(&bob), *client = opened(&alice);
    weft_listener_t *l;
    only.cert = strdup(bob.cert);
    only.key = strdup(bob.key);
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", NULL, &l));
    meet(client, l, &only, "bob", "bob");
    meet(client, l, NULL, "alice", "bob");
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
    free((void *)(uintptr_t)only.cert);
    free((void *)(uintptr_t)only.key);
}

TEST(files_of_options_that_cannot_be_used_are_named_at_once)
{
    need_certificates();
    weft_tls_opts_t alice = of("alice"), bad = of("bob"), part = WEFT_TLS_OPTS_INIT;
    weft_runtime_t *rt = opened(NULL);
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_listener_t *l;
    weft_ep_t *ep;
    lo.tls = eo.tls = &bad;
    bad.cert = "/nonexistent/cert";
    CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", &lo, &l), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "/nonexistent/cert"));
    CHECK_EQ(weft_ep_open(rt, "tls://127.0.0.1:1", &eo, NULL, &ep), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "/nonexistent/cert"));
    bad.cert = alice.cert; /* the key is another's */
    CHECK_EQ(weft_ep_open(rt, "tls://127.0.0.1:1", &eo, NULL, &ep), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), bad.key));
    lo.tls = eo.tls = &part;
    part.cert = alice.cert;
    CHECK_EQ(weft_listen(rt, "tcp://127.0.0.1:0", &lo, &l), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "WEFT_TLS_CA has none"));
    eo.tls = &alice;
    eo.shared = true;
    CHECK_EQ(weft_ep_open(rt, "tls://127.0.0.1:1", &eo, NULL, &ep), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "shared"));
    CHECK_OK(weft_runtime_close(rt));
}
