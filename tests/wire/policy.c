/* tests/wire/policy.c - a policy between runtimes: who may connect, call, use memory and publish; refusals are sentences and are
 * counted; a policy that changes takes effect while calls run. ctest: timeout=300 label=thread shards */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>
#include <weft/elements.h>
#include <weft/weft.h>

#include "test.h"

#define ADD "add(a: i32, b: i32) -> i32"
#define SUB "sub(a: i32, b: i32) -> i32"

static char folder[] = "/tmp/weft-policy-XXXXXX";
static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_service_t *service;
static weft_client_t *rpc;
static weft_method_t *add, *sub;

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

/* Certificates of one authority: a server, and clients whose identity is their name. */
static void certificates(void)
{
    static const char *const names[] = {"server", "web", "ops-1", "batch", "old"};
    if (system("openssl version >/dev/null 2>&1"))
        SKIP("there is no openssl command to make certificates with");
    CHECK(mkdtemp(folder));
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=ca");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s.key -out %s.csr -subj /CN=%s && printf "
            "'subjectAltName=DNS:%s,IP:127.0.0.1' >ext && openssl x509 -req -in %s.csr -CA ca.crt -CAkey ca.key -CAcreateserial "
            "-out %s.crt -extfile ext -days 2",
            names[i], names[i], names[i], names[i], names[i], names[i]);
}

static void be(const char *who)
{
    static const char *const names[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA"};
    static const char *const ends[] = {".crt", ".key", ".crt"};
    char text[128];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s/%s%s", folder, i == 2 ? "ca" : who, ends[i]);
        setenv(names[i], text, 1);
    }
}

static void both(weft_request_t *request, void *user)
{
    int sign = (int)(intptr_t)user;
    weft_value_t v = weft_i32(request->args[0].i32 + sign * request->args[1].i32);
    (void)weft_request_reply(request, &v, 1);
}

static weft_runtime_t *opens(const char *who)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = WEFT_PROGRESS_THREAD;
    if (who)
        be(who);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

/* A server with calc.add and calc.sub, under that policy. who NULL: without TLS, so that everybody is anonymous. */
static void serve(const char *who, const char *policy)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    server = opens(who);
    CHECK_OK(weft_runtime_set_policy(server, policy, policy ? strlen(policy) : 0));
    CHECK_OK(weft_listen(server, who ? "tls://127.0.0.1:0" : "tcp://127.0.0.1:0", NULL, &listener));
    CHECK_OK(weft_service_open(server, "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ADD, both, (void *)(intptr_t)1, NULL));
    CHECK_OK(weft_service_add(service, SUB, both, (void *)(intptr_t)-1, NULL));
}

static weft_status_t join(const char *who, weft_ep_t **ep)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.no_retry = true;
    client = opens(who);
    return weft_ep_connect(client, weft_listener_uri(listener), &o, 30 * WEFT_SECOND, ep);
}

static void bind_to(weft_ep_t *ep)
{
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    o.service = "calc";
    CHECK_OK(weft_client_on(ep, &o, &rpc));
    CHECK_OK(weft_client_method(rpc, ADD, &add));
    CHECK_OK(weft_client_method(rpc, SUB, &sub));
}

static weft_code_t call(weft_method_t *m, char *says, size_t cap)
{
    weft_value_t args[2] = {weft_i32(5), weft_i32(3)};
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_call(m, args, 2, &reply, &op));
    weft_status_t st = weft_op_wait(&op, 30 * WEFT_SECOND);
    weft_code_t code = reply.code;
    CHECK(st == WEFT_OK || st == WEFT_ERR_CALL);
    if (!st)
        CHECK_EQ(reply.values[0].i32, m == add ? 8 : 2);
    if (says)
        snprintf(says, cap, "%s", reply.message);
    weft_reply_release(&reply);
    return code;
}

static uint64_t refused(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(server, &s));
    return s.policy_refused;
}

static void end(void)
{
    if (client)
        CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
    client = server = NULL;
}

TEST(without_a_policy_everybody_may_do_all)
{
    weft_ep_t *ep;
    serve(NULL, NULL);
    CHECK_OK(join(NULL, &ep));
    bind_to(ep);
    CHECK_EQ(call(add, NULL, 0), WEFT_CODE_OK);
    CHECK_EQ(refused(), 0);
    end();
}

TEST(who_may_connect_and_call_by_identity)
{
    static const char policy[] = "allow ops-* all\ndeny old connect\nallow * connect\nallow web call calc.add\ndefault deny\n";
    static const struct {
        const char *who;
        bool connects;
        weft_code_t adds, subs;
    } of[] = {
        {"ops-1", true, WEFT_CODE_OK, WEFT_CODE_OK},
        {"web", true, WEFT_CODE_OK, WEFT_CODE_PERMISSION_DENIED},
        {"batch", true, WEFT_CODE_PERMISSION_DENIED, WEFT_CODE_PERMISSION_DENIED},
        {"old", false, WEFT_CODE_OK, WEFT_CODE_OK},
    };
    char says[200];
    certificates();
    serve("server", policy);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        weft_ep_t *ep;
        uint64_t before = refused();
        weft_status_t st = join(of[i].who, &ep);
        if (!of[i].connects) {
            CHECK_EQ(st, WEFT_ERR_PERMISSION);
            CHECK(strstr(weft_last_error(), "does not allow \"old\" to connect"));
            CHECK_EQ(refused(), before + 1);
        } else {
            CHECK_OK(st);
            bind_to(ep);
            for (int k = 0; k < 3; k++) {
                CHECK_EQ(call(add, NULL, 0), of[i].adds);
                CHECK_EQ(call(sub, says, sizeof says), of[i].subs);
            }
            CHECK_EQ(refused() > before, of[i].subs != WEFT_CODE_OK);
            if (!strcmp(of[i].who, "web") && !strstr(says, "(line 5) does not allow \"web\" to call \"calc.sub\""))
                FAIL("%s", says);
        }
        CHECK_OK(weft_runtime_close(client));
        client = NULL;
    }
    end();
}

static _Atomic bool stop;
static _Atomic unsigned good, denied, other;

static void *calls(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        weft_code_t code = call(add, NULL, 0);
        atomic_fetch_add(code == WEFT_CODE_OK ? &good : code == WEFT_CODE_PERMISSION_DENIED ? &denied : &other, 1);
    }
    return NULL;
}

static void until(_Atomic unsigned *n, unsigned more)
{
    unsigned from = atomic_load(n);
    for (double last = test_now() + 60; atomic_load(n) < from + more; usleep(2000))
        if (test_now() > last)
            FAIL("it did not come to %u more", more);
}

TEST(a_right_that_is_taken_away_ends_while_calls_run)
{
    static const char yes[] = "allow * connect\nallow * call calc.*\ndefault deny\n";
    static const char no[] = "allow * connect\nallow * call calc.sub\ndefault deny\n";
    pthread_t threads[3];
    weft_ep_t *ep;
    serve(NULL, NULL);
    CHECK_OK(join(NULL, &ep));
    bind_to(ep);
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, calls, NULL));
    until(&good, 100);
    for (int round = 0; round < 5; round++) {
        CHECK_OK(weft_runtime_set_policy(server, no, strlen(no)));
        until(&denied, 10);
        CHECK_EQ(call(sub, NULL, 0), WEFT_CODE_OK);
        CHECK_OK(weft_runtime_set_policy(server, round & 1 ? NULL : yes, round & 1 ? 0 : strlen(yes)));
        until(&good, 100);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(atomic_load(&other), 0);
    CHECK(refused() >= 3);
    end();
}

/* A peer that goes on calling what it was bound to, and asks for nothing: the policy counts all the same. */
TEST(what_was_bound_before_does_not_go_on)
{
    static const char no[] = "allow * connect\ndefault deny\n";
    weft_ep_t *ep;
    serve(NULL, NULL);
    CHECK_OK(join(NULL, &ep));
    bind_to(ep);
    CHECK_EQ(call(add, NULL, 0), WEFT_CODE_OK);
    CHECK_OK(weft_runtime_set_policy(server, no, strlen(no)));
    for (double last = test_now() + 60; call(add, NULL, 0) != WEFT_CODE_PERMISSION_DENIED;)
        if (test_now() > last)
            FAIL("it may still call");
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(service, &s));
    uint64_t ran = s.requests;
    for (int i = 0; i < 20; i++)
        CHECK_EQ(call(add, NULL, 0), WEFT_CODE_PERMISSION_DENIED);
    CHECK_OK(weft_service_get_stats(service, &s));
    CHECK_EQ(s.requests, ran);
    end();
}

TEST(who_may_not_connect_any_more_is_ended)
{
    static const char no[] = "deny anonymous connect\ndefault allow\n";
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    char byte;
    serve(NULL, NULL);
    CHECK_OK(join(NULL, &ep));
    CHECK_OK(weft_msg_recv(ep, &byte, 1, 1, WEFT_TAG_FULL, &op));
    CHECK_OK(weft_runtime_set_policy(server, no, strlen(no)));
    CHECK_EQ(weft_op_wait(&op, 30 * WEFT_SECOND), WEFT_ERR_PEER);
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.no_retry = true;
    CHECK_EQ(weft_ep_connect(client, weft_listener_uri(listener), &o, 30 * WEFT_SECOND, &ep), WEFT_ERR_PERMISSION);
    CHECK_EQ(refused(), 2);
    end();
}

static char path[100];

static void put(const char *text)
{
    char other_name[120];
    snprintf(other_name, sizeof other_name, "%s.new", path);
    FILE *f = fopen(other_name, "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
    CHECK(!rename(other_name, path));
}

static unsigned n_warned;
static char warned[600];

static void listen_in(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level == WEFT_LOG_WARN && strstr(line, "WEFT_POLICY")) {
        snprintf(warned, sizeof warned, "%s", line);
        __atomic_fetch_add(&n_warned, 1, __ATOMIC_SEQ_CST);
    }
}

static void until_code(weft_method_t *m, weft_code_t wanted)
{
    for (double last = test_now() + 60; call(m, NULL, 0) != wanted; usleep(2000))
        if (test_now() > last)
            FAIL("it did not come to %d", (int)wanted);
}

TEST(the_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing)
{
    weft_runtime_t *rt;
    weft_ep_t *ep;
    snprintf(path, sizeof path, "policy.%d", (int)getpid());
    setenv("WEFT_POLICY", path, 1);
    unlink(path);
    CHECK_EQ(weft_runtime_open(NULL, &rt), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), path) && strstr(weft_last_error(), "WEFT_POLICY"));
    put("allow * connect\nallow * cal calc.add\ndefault deny\n");
    CHECK_EQ(weft_runtime_open(NULL, &rt), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "line 2: there is no action \"cal\""));

    put("allow * connect\nallow * call calc.add\ndefault deny\n");
    server = opens(NULL);
    unsetenv("WEFT_POLICY");
    CHECK_OK(weft_listen(server, "tcp://127.0.0.1:0", NULL, &listener));
    CHECK_OK(weft_service_open(server, "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ADD, both, (void *)(intptr_t)1, NULL));
    CHECK_OK(weft_service_add(service, SUB, both, (void *)(intptr_t)-1, NULL));
    CHECK_OK(join(NULL, &ep));
    bind_to(ep);
    CHECK_EQ(call(add, NULL, 0), WEFT_CODE_OK);
    CHECK_EQ(call(sub, NULL, 0), WEFT_CODE_PERMISSION_DENIED);
    put("allow * connect\nallow * call calc.sub\ndefault deny\n");
    until_code(add, WEFT_CODE_PERMISSION_DENIED);
    CHECK_EQ(call(sub, NULL, 0), WEFT_CODE_OK);

    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(listen_in, NULL);
    put("default allow\nallow * call\n");
    for (double last = test_now() + 60; !__atomic_load_n(&n_warned, __ATOMIC_SEQ_CST) && test_now() < last;)
        usleep(10000);
    CHECK_EQ(__atomic_load_n(&n_warned, __ATOMIC_SEQ_CST), 1);
    weft_log_set_sink(NULL, NULL);
    weft_log_set_level(WEFT_LOG_ERROR);
    CHECK(strstr(warned, "line 2: nothing follows") && strstr(warned, "stays in force"));
    CHECK_EQ(call(add, NULL, 0), WEFT_CODE_PERMISSION_DENIED);
    unlink(path);
    usleep(900000); /* a file that is gone takes nothing away */
    CHECK_EQ(call(add, NULL, 0), WEFT_CODE_PERMISSION_DENIED);
    put("default allow\n");
    until_code(add, WEFT_CODE_OK);
    put("default deny\n");
    weft_op_t op = WEFT_OP_INIT;
    char byte;
    weft_status_t st = weft_msg_recv(ep, &byte, 1, 1, WEFT_TAG_FULL, &op);
    CHECK(st || weft_op_wait(&op, 30 * WEFT_SECOND) == WEFT_ERR_PEER);
    unlink(path);
    end();
}

TEST(a_client_uses_only_servers_that_may_publish)
{
    char place[160];
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    static const char no[] = "deny anonymous publish calc\ndefault allow\n", yes[] = "allow * publish calc\ndefault deny\n";
    snprintf(place, sizeof place, "memory://policy-%d", (int)getpid());
    setenv("WEFT_REGISTRY", place, 1);
    serve(NULL, NULL);
    CHECK_OK(weft_service_publish(service, NULL, NULL));
    client = opens(NULL);
    CHECK_OK(weft_runtime_set_policy(client, no, strlen(no)));
    CHECK_OK(weft_client_open(client, "weft://calc", &o, &rpc));
    CHECK_OK(weft_client_method(rpc, ADD, &add));
    weft_value_t args[2] = {weft_i32(5), weft_i32(3)};
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = 2 * WEFT_SECOND;
    CHECK_OK(weft_call(add, args, 2, &reply, &op));
    CHECK(weft_op_wait(&op, 60 * WEFT_SECOND) != WEFT_OK);
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(client, &s));
    CHECK(s.policy_refused >= 1);
    weft_reply_release(&reply);
    CHECK_OK(weft_runtime_set_policy(client, yes, strlen(yes)));
    double last = test_now() + 60;
    weft_status_t st;
    do { /* it tries again after a pause */
        op = (weft_op_t)WEFT_OP_INIT;
        op.timeout_ns = 2 * WEFT_SECOND;
        reply = (weft_reply_t)WEFT_REPLY_INIT;
        CHECK_OK(weft_call(add, args, 2, &reply, &op));
        st = weft_op_wait(&op, 60 * WEFT_SECOND);
        weft_reply_release(&reply);
    } while (st && test_now() < last);
    CHECK_OK(st);
    CHECK_OK(weft_runtime_set_policy(client, no, strlen(no))); /* one that is connected loses it */
    do {
        op = (weft_op_t)WEFT_OP_INIT;
        op.timeout_ns = 2 * WEFT_SECOND;
        reply = (weft_reply_t)WEFT_REPLY_INIT;
        CHECK_OK(weft_call(add, args, 2, &reply, &op));
        st = weft_op_wait(&op, 60 * WEFT_SECOND);
        weft_reply_release(&reply);
    } while (!st && test_now() < last);
    CHECK(st != WEFT_OK);
    end();
}

TEST(a_program_can_ask)
{
    static const char policy[] = "allow * connect\nallow anonymous mem-allocate scratch-* 64k\ndefault deny\n";
    weft_verdict_t v = WEFT_VERDICT_INIT;
    uint64_t limit = 0;
    weft_ep_t *ep;
    serve(NULL, NULL);
    CHECK_OK(join(NULL, &ep));
    CHECK_OK(weft_ep_may(ep, WEFT_MAY_ALLOCATE, "x", &limit));
    CHECK_EQ(limit, UINT64_MAX);
    CHECK_OK(weft_runtime_set_policy(client, policy, strlen(policy))); /* each process judges by its own */
    CHECK_OK(weft_ep_may(ep, WEFT_MAY_ALLOCATE, "scratch-1", &limit));
    CHECK_EQ(limit, 65536);
    CHECK_EQ(weft_ep_may(ep, WEFT_MAY_READ, "x", NULL), WEFT_ERR_PERMISSION);
    if (!strstr(weft_last_error(), "the policy (line 3) does not allow \"anonymous\" to read the block \"x\""))
        FAIL("%s", weft_last_error());
    CHECK(!weft_ep_allowed(ep, WEFT_MAY_READ, "x") && weft_ep_allowed(ep, WEFT_MAY_ALLOCATE, "scratch-"));
    CHECK_EQ(weft_ep_may(ep, (weft_may_t)9, "x", NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_ep_may(NULL, WEFT_MAY_READ, "x", NULL), WEFT_ERR_INVALID);
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(client, &s));
    CHECK_EQ(s.policy_refused, 1);
    CHECK_EQ(weft_runtime_set_policy(client, "default", 7), WEFT_ERR_INVALID);
    CHECK_EQ(weft_ep_may(ep, WEFT_MAY_READ, "x", NULL), WEFT_ERR_PERMISSION); /* the one from before */
    CHECK_OK(weft_policy_check(policy, strlen(policy), "", WEFT_MAY_ALLOCATE, "scratch-1", &v));
    CHECK(v.allowed && v.line == 2 && v.limit == 65536);
    CHECK_OK(weft_policy_check(policy, strlen(policy), NULL, (weft_may_t)0, NULL, NULL));
    CHECK_STR(weft_may_name(WEFT_MAY_ALLOCATE), "mem-allocate");
    end();
}
