/* tests/wire/tls_resume.c - those who have met by their certificates meet faster the next time, and no verdict is another for it.
 *
 * ctest: openssl timeout=300 */
#include <weft/weft.h>

#include "between.h"
#include "certs.h"
#include "test.h"

enum { LONG = 60, MET_MOST = 1024 }; /* fabric/tls/resume.c */

static weft_listener_t *listener;

static weft_runtime_t *opened(const char *name)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    certs_use(name, "ca");
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static weft_runtime_t *server_at(const char *name, unsigned port, const weft_ep_hooks_t *hooks)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    char uri[64];
    weft_runtime_t *rt = opened(name);
    lo.hooks = hooks;
    snprintf(uri, sizeof uri, "tls://127.0.0.1:%u", port);
    CHECK_OK(weft_listen(rt, uri, &lo, &listener));
    return rt;
}

static void certificates(void)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    certs_usual();
    certs_make(&(cert_t){.name = "alice", .by = "ca", .san = "DNS:alice.example"});
}

static weft_op_t last;

/* What comes of calling the listener by this name of its host; both ends are in *out. */
static weft_status_t call(weft_runtime_t *rt, const char *host, const weft_tls_opts_t *tls, weft_ep_t *out[2])
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    char uri[64];
    last = (weft_op_t)WEFT_OP_INIT;
    o.no_retry = true;
    o.tls = tls;
    snprintf(uri, sizeof uri, "tls://%s:%u", host, weft_listener_port(listener));
    CHECK_OK(weft_ep_open(rt, uri, &o, &last, &out[0]));
    weft_status_t st = weft_op_wait(&last, LONG * WEFT_SECOND);
    if (!st)
        CHECK_OK(weft_listener_accept_wait(listener, LONG * WEFT_SECOND, &out[1]));
    return st;
}

static const char *identity(weft_ep_t *ep)
{
    static weft_ep_info_t info;
    info = (weft_ep_info_t)WEFT_EP_INFO_INIT;
    CHECK_OK(weft_ep_get_info(ep, &info));
    return info.identity;
}

/* The two are who they are, and what they send arrives, small and large: lanes take their keys from the wire. */
static void works(weft_ep_t *const ep[2], const char *dialler)
{
    enum { MANY = 1 << 20 };
    static char out[MANY], in[MANY];
    weft_op_t got = WEFT_OP_INIT;
    CHECK_STR(identity(ep[0]), "node.example");
    CHECK_STR(identity(ep[1]), dialler);
    memset(out, 'x', sizeof out);
    memset(in, 0, sizeof in);
    CHECK_OK(weft_msg_recv(ep[1], in, sizeof in, 1, WEFT_TAG_FULL, &got));
    CHECK_OK(weft_msg_send_wait(ep[0], out, sizeof out, 1, LONG * WEFT_SECOND));
    CHECK_OK(weft_op_wait(&got, LONG * WEFT_SECOND));
    CHECK(!memcmp(in, out, sizeof out));
}

static void hang_up(weft_ep_t *const ep[2])
{
    for (int i = 0; i < 2; i++) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_ep_close(ep[i], &op));
        CHECK_OK(weft_op_wait(&op, LONG * WEFT_SECOND));
    }
}

/* They meet, and speak; both sides say that this handshake was a short one, or a whole one. */
static void meet(weft_runtime_t *client, weft_runtime_t *server, const char *host, bool again)
{
    weft_runtime_t *const both[] = {client, server};
    weft_runtime_stats_t was[2], is = WEFT_RUNTIME_STATS_INIT;
    weft_ep_t *ep[2];
    for (int i = 0; i < 2; i++) {
        was[i] = (weft_runtime_stats_t)WEFT_RUNTIME_STATS_INIT;
        CHECK_OK(weft_runtime_get_stats(both[i], &was[i]));
    }
    CHECK_OK(call(client, host, NULL, ep));
    works(ep, "alice.example");
    hang_up(ep);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(weft_runtime_get_stats(both[i], &is));
        CHECK_EQ(is.tls_handshakes, was[i].tls_handshakes + 1);
        CHECK_EQ(is.tls_resumed, was[i].tls_resumed + again);
    }
}

TEST(those_who_meet_again_do_so_by_a_short_handshake)
{
    certificates();
    weft_runtime_t *server = server_at("node", 0, NULL), *client = opened("alice");
    meet(client, server, "127.0.0.1", false);
    for (int i = 0; i < 5; i++)
        meet(client, server, "127.0.0.1", true);
    CHECK_OK(weft_runtime_close(client));
    client = opened("alice"); /* nothing is kept but in memory */
    meet(client, server, "127.0.0.1", false);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(another_name_of_the_same_host_is_proved_by_its_certificate)
{
    certificates();
    certs_make(&(cert_t){.name = "node", .by = "ca", .san = "DNS:node.example,DNS:localhost,IP:127.0.0.1"});
    weft_runtime_t *server = server_at("node", 0, NULL), *client = opened("alice");
    meet(client, server, "127.0.0.1", false);
    meet(client, server, "localhost", false);
    meet(client, server, "localhost", true);
    meet(client, server, "127.0.0.1", true);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(a_server_that_was_started_again_knows_nobody)
{
    certificates();
    weft_runtime_t *server = server_at("node", 0, NULL), *client = opened("alice");
    unsigned port = weft_listener_port(listener);
    meet(client, server, "127.0.0.1", false);
    meet(client, server, "127.0.0.1", true);
    CHECK_OK(weft_runtime_close(server));
    server = server_at("node", port, NULL);
    meet(client, server, "127.0.0.1", false);
    meet(client, server, "127.0.0.1", true);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

/* Whose certificate expires between two meetings is refused at the second, and the client says why. */
static void expires(const char *of_server, const char *of_client, const char *says)
{
    weft_ep_t *ep[2];
    weft_runtime_t *server = server_at(of_server, 0, NULL), *client = opened(of_client);
    double begun = test_now();
    meet(client, server, "127.0.0.1", false);
    meet(client, server, "127.0.0.1", true);
    while (test_now() < begun + 6) /* certs_make() said so; a certificate counts whole seconds */
        usleep(100000);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(call(client, "127.0.0.1", NULL, ep), WEFT_ERR_AUTH);
        if (!strstr(weft_op_error(&last), says))
            FAIL("%s", weft_op_error(&last));
    }
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(a_server_whose_certificate_has_expired_since_is_not_believed)
{
    certificates();
    certs_make(&(cert_t){.name = "short", .by = "ca", .san = "DNS:node.example,IP:127.0.0.1", .seconds = 5});
    expires("short", "alice", "expired");
}

TEST(a_client_whose_certificate_has_expired_since_is_not_believed)
{
    certificates();
    certs_make(&(cert_t){.name = "short", .by = "ca", .san = "DNS:alice.example", .seconds = 5});
    expires("node", "short", "expired");
}

TEST(who_has_another_certificate_now_shows_it)
{
    weft_ep_t *ep[2];
    certificates();
    certs_make(&(cert_t){.name = "mine", .by = "ca", .san = "DNS:alice.example"});
    weft_runtime_t *server = server_at("node", 0, NULL), *client = opened("mine");
    meet(client, server, "127.0.0.1", false);
    meet(client, server, "127.0.0.1", true);
    certs_make(&(cert_t){.name = "mine", .by = "ca", .san = "DNS:eve.example"});
    usleep(300000); /* files are looked at every 200 ms */
    CHECK_OK(call(client, "127.0.0.1", NULL, ep));
    works(ep, "eve.example");
    hang_up(ep);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(a_server_remembers_so_many_and_no_more)
{
    weft_tls_opts_t own = WEFT_TLS_OPTS_INIT; /* who has certificates of its own has its own memory, too */
    weft_runtime_stats_t is = WEFT_RUNTIME_STATS_INIT;
    weft_ep_t *ep[2];
    certificates();
    weft_runtime_t *server = server_at("node", 0, NULL), *client = opened("alice");
    meet(client, server, "127.0.0.1", false);
    own.cert = certs_file("alice", "crt");
    own.key = certs_file("alice", "key");
    for (int i = 0; i < MET_MOST + 11; i++) {
        CHECK_OK(call(client, "127.0.0.1", &own, ep));
        hang_up(ep);
        if (i == 10)
            meet(client, server, "127.0.0.1", true);
    }
    CHECK_OK(weft_runtime_get_stats(server, &is));
    CHECK_EQ(is.tls_resumed, 1);
    meet(client, server, "127.0.0.1", false);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

static weft_on_failure_t comes_back(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep, (void)why, (void)user;
    return WEFT_RECONNECT;
}

TEST(a_lost_connection_comes_back_by_a_short_handshake)
{
    static const weft_ep_hooks_t hooks = {.failed = comes_back};
    weft_runtime_stats_t is = WEFT_RUNTIME_STATS_INIT;
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_op_t up = WEFT_OP_INIT;
    weft_ep_t *ep[2];
    char some[4000] = "", got[4000];
    certificates();
    between_plan(&(between_plan_t){.what = BETWEEN_CUT, .conn = 1, .side = 0, .at = 40000}); /* of the lane */
    weft_runtime_t *server = server_at("node", 0, &hooks), *client = opened("alice");
    o.hooks = hooks;
    CHECK_OK(weft_ep_open(client, weft_listener_uri(listener), &o, &up, &ep[0]));
    CHECK_OK(weft_op_wait(&up, LONG * WEFT_SECOND));
    CHECK_OK(weft_listener_accept_wait(listener, LONG * WEFT_SECOND, &ep[1]));
    double end = test_now() + LONG;
    do {
        weft_status_t st = weft_msg_send_wait(ep[0], some, sizeof some, 1, WEFT_SECOND);
        if (!st)
            st = weft_msg_recv_wait(ep[1], got, sizeof got, 1, WEFT_TAG_FULL, WEFT_SECOND, NULL);
        CHECK_OK(weft_runtime_get_stats(client, &is));
    } while (!is.reconnects && test_now() < end);
    CHECK(between_did());
    CHECK_EQ(is.tls_handshakes, 2);
    CHECK_EQ(is.tls_resumed, 1);
    works(ep, "alice.example");
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}
