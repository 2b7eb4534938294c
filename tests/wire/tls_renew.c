/* tests/wire/tls_renew.c - certificates, authorities and lists of revoked certificates that change while a runtime is open: those
 * who meet later use the new ones, and who is not believed any more loses his connection. ctest: timeout=300 */
#include <stdarg.h>

#include "test.h"

#include <weft/weft.h>

enum { MOST = 6, LONG = 30 };

static char folder[] = "/tmp/weft-tls-renew-XXXXXX";
static weft_runtime_t *rts[MOST]; /* the first is the server */
static weft_listener_t *listener;
static weft_ep_t *came[16];
static int n_came;

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
        "printf 'subjectAltName=DNS:%s.example,IP:127.0.0.1' >%s.ext && openssl x509 -req -in %s.csr -CA %s.crt -CAkey %s.key "
        "-CAcreateserial -out %s.crt -extfile %s.ext -days 2",
        name, name, name, name, name, name, ca, ca, name, name);
}

/* What the runtimes that are opened next have: NAME.crt, NAME.key, ca.crt, and revoked.pem if there is one. */
static void use(const char *name)
{
    static const char *const names[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA", "WEFT_TLS_CRL"};
    char text[128];
    for (int i = 0; i < 4; i++) {
        const char *file = i < 2 ? name : i == 2 ? "ca" : "revoked";
        snprintf(text, sizeof text, "%s/%s.%s", folder, file, i == 1 ? "key" : i == 3 ? "pem" : "crt");
        if (i == 3 && access(text, R_OK))
            unsetenv(names[i]);
        else
            setenv(names[i], text, 1);
    }
}

static void list_revoked(const char *name)
{
    if (name)
        run("openssl ca -config ca.cnf -keyfile ca.key -cert ca.crt -revoke %s.crt", name);
    run("openssl ca -config ca.cnf -keyfile ca.key -cert ca.crt -gencrl -out fresh.pem && mv fresh.pem revoked.pem");
}

static void begin(void)
{
    if (system("openssl version >/dev/null 2>&1"))
        SKIP("there is no openssl command to make certificates with");
    CHECK(mkdtemp(folder));
    weft_log_set_level(WEFT_LOG_ERROR);
    make_ca("ca");
    make_cert("ca", "server");
    make_cert("ca", "alice");
    make_cert("ca", "bob");
    run("touch index.txt && echo 01 >number && printf '[ca]\\ndefault_ca=d\\n[d]\\ndatabase=index.txt\\ncrlnumber=number\\n"
        "default_md=sha256\\ndefault_crl_days=2\\n' >ca.cnf");
}

static weft_runtime_t *open_as(const char *name, const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    int i = 0;
    while (rts[i])
        i++;
    o.transports = transports;
    use(name);
    CHECK_OK(weft_runtime_open(&o, &rts[i]));
    return rts[i];
}

static void drive(void)
{
    for (int i = 0; i < MOST; i++)
        if (rts[i])
            weft_runtime_progress(rts[i]);
}

#define UNTIL(cond) TEST_UNTIL((drive(), cond), LONG)

static void several_looks(void)
{
    double end = test_now() + 1.0;
    while (test_now() < end)
        drive();
}

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    came[n_came++] = ep;
}

static void serve(const char *transports)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    open_as("server", transports);
    lo.accept = accepted;
    CHECK_OK(weft_listen(rts[0], "tls://127.0.0.1:0", &lo, &listener));
}

static weft_op_t last;

static weft_status_t call(weft_runtime_t *rt, weft_ep_t **ep)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    int before = n_came;
    last = (weft_op_t)WEFT_OP_INIT;
    o.no_retry = true;
    CHECK_OK(weft_ep_open(rt, weft_listener_uri(listener), &o, &last, ep));
    UNTIL(weft_op_done(&last));
    if (!last.status)
        UNTIL(n_came == before + 1);
    return last.status;
}

static const char *identity(weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    CHECK_OK(weft_ep_get_info(ep, &info));
    return info.identity;
}

static void works(weft_ep_t *from, weft_ep_t *to)
{
    char buf[8];
    weft_op_t sent = WEFT_OP_INIT, got = WEFT_OP_INIT;
    CHECK_OK(weft_msg_recv(to, buf, sizeof buf, 1, WEFT_TAG_FULL, &got));
    CHECK_OK(weft_msg_send(from, "word", 5, 1, &sent));
    UNTIL(weft_op_done(&got) && weft_op_done(&sent));
    CHECK_OK(got.status);
    CHECK_STR(buf, "word");
}

static void over(void)
{
    for (int i = MOST; i--;)
        if (rts[i])
            CHECK_OK(weft_runtime_close(rts[i]));
    run("cd / && rm -r %s", folder);
}

TEST(renewed_certificates_are_used_and_connections_stay)
{
    weft_ep_t *first, *next;
    begin();
    serve("tcp");
    CHECK_OK(call(open_as("alice", "tcp"), &first));
    CHECK_STR(identity(first), "server.example");
    CHECK_STR(identity(came[0]), "alice.example");
    make_cert("ca", "renewed");
    run("mv renewed.key server.key && mv renewed.crt server.crt"); /* for a moment the two do not belong to each other */
    double end = test_now() + LONG;
    do {
        CHECK_OK(call(rts[1], &next));
    } while (strcmp(identity(next), "renewed.example") && n_came < 15 && (several_looks(), test_now() < end));
    CHECK_STR(identity(next), "renewed.example");
    works(first, came[0]);
    works(next, came[n_came - 1]);
    over();
}

static int n_told;

static void counts(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    n_told += level == WEFT_LOG_WARN && strstr(line, "what was read before is still used");
}

TEST(files_that_cannot_be_used_change_nothing_and_are_told_of_once)
{
    weft_ep_t *first, *next;
    begin();
    list_revoked(NULL);
    serve("tcp");
    CHECK_OK(call(open_as("alice", "tcp"), &first));
    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(counts, NULL);
    static const char *const breaks[] = {"head -c 200 server.crt >half && cat half >server.crt", "cp alice.key server.key",
                                         "rm ca.crt", "echo >revoked.pem"};
    static const char *const whole[] = {"cp server.old server.crt", "cp server.old.key server.key", "cp ca.old ca.crt",
                                        "mv revoked.old revoked.pem"};
    run("cp server.crt server.old && cp server.key server.old.key && cp ca.crt ca.old && cp revoked.pem revoked.old");
    for (int i = 0; i < 4; i++) {
        n_told = 0;
        run("%s", breaks[i]);
        UNTIL(n_told >= 1);
        several_looks();
        CHECK(n_told == 1 || (i >= 2 && n_told == 2)); /* both runtimes have these */
        CHECK_OK(call(rts[1], &next));
        CHECK_STR(identity(next), "server.example");
        run("%s", whole[i]);
        several_looks();
    }
    works(first, came[0]);
    over();
}

static void revoked(const char *transports)
{
    char buf[8];
    weft_ep_t *alice, *bob, *again;
    weft_op_t waits = WEFT_OP_INIT;
    begin();
    list_revoked(NULL);
    serve(transports);
    CHECK_OK(call(open_as("alice", transports), &alice));
    CHECK_OK(call(open_as("bob", transports), &bob));
    CHECK_OK(weft_msg_recv(came[1], buf, sizeof buf, 9, WEFT_TAG_FULL, &waits));
    list_revoked("bob");
    double from = test_now();
    UNTIL(weft_op_done(&waits));
    printf("ended after %.2f s\n", test_now() - from);
    CHECK_EQ(waits.status, WEFT_ERR_AUTH);
    if (!strstr(weft_op_error(&waits), "revoked"))
        FAIL("%s", weft_op_error(&waits));
    UNTIL(weft_ep_get_state(bob) == WEFT_EP_FAILED);
    works(alice, came[0]);
    CHECK_EQ(call(rts[2], &again), WEFT_ERR_AUTH);
    if (!strstr(weft_op_error(&last), "revoked"))
        FAIL("%s", weft_op_error(&last));
    works(alice, came[0]);
    CHECK_EQ(n_came, 2);
    over();
}

TEST(a_revoked_certificate_ends_its_connection_and_no_other)
{
    revoked("tcp");
}

TEST(a_revoked_certificate_ends_its_connection_over_shared_memory)
{
    revoked("all");
}

TEST(an_authority_that_is_taken_out_ends_the_connections_of_its_certificates)
{
    weft_ep_t *alice, *eve;
    begin();
    make_ca("ca2");
    make_cert("ca2", "eve");
    run("cp ca.crt ca.only && cat ca.only ca2.crt >ca.crt");
    serve("tcp");
    CHECK_OK(call(open_as("alice", "tcp"), &alice));
    CHECK_OK(call(open_as("eve", "tcp"), &eve));
    run("mv ca.only ca.crt");
    UNTIL(weft_ep_get_state(came[1]) == WEFT_EP_FAILED && weft_ep_get_state(eve) == WEFT_EP_FAILED);
    works(alice, came[0]);
    CHECK_EQ(call(rts[2], &eve), WEFT_ERR_AUTH);
    works(alice, came[0]);
    over();
}

TEST(an_authority_that_gives_no_list_is_not_believed)
{
    weft_ep_t *alice;
    begin();
    make_ca("ca2");
    run("cat >ca2.cnf <ca.cnf && openssl ca -config ca2.cnf -keyfile ca2.key -cert ca2.crt -gencrl -out revoked.pem");
    serve("tcp");
    CHECK_EQ(call(open_as("alice", "tcp"), &alice), WEFT_ERR_AUTH);
    if (!strstr(weft_op_error(&last), "CRL"))
        FAIL("%s", weft_op_error(&last));
    over();
}

TEST(a_list_without_certificates_is_a_mistake)
{
    weft_runtime_t *rt;
    weft_listener_t *l;
    setenv("WEFT_TLS_CRL", "/nonexistent/list", 1);
    weft_status_t st = weft_runtime_open(NULL, &rt);
    if (!st) {
        CHECK_EQ(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l), WEFT_ERR_INVALID);
        CHECK(strstr(weft_last_error(), "WEFT_TLS_CERT"));
        CHECK_OK(weft_runtime_close(rt));
    } else {
        CHECK_EQ(st, WEFT_ERR_INVALID);
    }
}
