/* Finding a peer: addresses of every kind, ports that are picked, what is known of the peer, and how a connect ends that finds
 * nobody. ctest: shards */
#include <sys/socket.h>

#include "lib/two.h"
#include "ports.h"
#include "test.h"

static weft_listener_t *listen_on(const char *uri)
{
    weft_listener_t *l;
    CHECK_OK(weft_listen(two.server, uri, NULL, &l));
    return l;
}

static void meet(weft_listener_t *l, const char *uri, const char *source)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT, close[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_ep_t *ep;
    o.source = source;
    CHECK_OK(weft_listener_accept(l, &accept));
    CHECK_OK(weft_ep_open(two.client, uri, &o, &connect, &ep));
    CHECK_OK(two_wait(&connect, 10));
    CHECK_OK(two_wait(&accept, 10));
    CHECK_EQ(connect.from, weft_ep_id(ep));
    CHECK_EQ(accept.from, weft_ep_id(accept.buf));
    CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_UP);
    CHECK(weft_ep_find(two.client, connect.from) == ep);
    CHECK_OK(weft_ep_close(ep, &close[0]));
    CHECK_OK(two_wait(&close[0], 5));
    CHECK(!weft_ep_find(two.client, connect.from));
    CHECK_OK(weft_ep_close(accept.buf, &close[1]));
    CHECK_OK(two_wait(&close[1], 5));
}

TEST(a_port_is_picked_and_can_be_read)
{
    two_open(NULL, NULL);
    weft_listener_t *l = listen_on(ports_tcp());
    char uri[64], copy[64];
    size_t len = 0;
    CHECK(weft_listener_port(l) > 0);
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", weft_listener_port(l));
    CHECK_STR(weft_listener_uri(l), uri);
    CHECK_OK(weft_listener_copy_uri(l, NULL, &len));
    CHECK_EQ(len, strlen(uri));
    CHECK_EQ(weft_listener_copy_uri(l, copy, &len), WEFT_ERR_LIMIT); /* no room for the terminator */
    CHECK_EQ(len++, strlen(uri));
    CHECK_OK(weft_listener_copy_uri(l, copy, &len));
    CHECK_STR(copy, uri);
    CHECK_EQ(weft_listener_copy_uri(NULL, copy, &len), WEFT_ERR_INVALID);
    CHECK_EQ(weft_listener_copy_uri(l, copy, NULL), WEFT_ERR_INVALID);
    meet(l, uri, NULL);
    two_close();
}

TEST(every_kind_of_address_connects)
{
    char folder[] = "/tmp/weft-connect-XXXXXX", file[64];
    CHECK(mkdtemp(folder));
    snprintf(file, sizeof file, "unix://%s/sock", folder);
    const char *uris[] = {ports_tcp(), "tcp://lo:0", "tcp://localhost:0", "tcp://[::1]:0", ports_local("connect"), file};
    two_open(NULL, NULL);
    for (unsigned i = 0; i < sizeof uris / sizeof *uris; i++) {
        weft_listener_t *l;
        weft_status_t st = weft_listen(two.server, uris[i], NULL, &l);
        if (st == WEFT_ERR_ADDRESS && strstr(uris[i], "::1"))
            continue; /* a machine without IPv6 */
        if (st)
            FAIL("%s: %s", uris[i], weft_last_error());
        meet(l, weft_listener_uri(l), NULL);
        CHECK_OK(weft_listener_close(l, NULL));
    }
    two_run(0.01);
    CHECK(!rmdir(folder)); /* the socket's file went with its listener */
    two_close();
}

TEST(a_listener_has_several_addresses_and_each_works)
{
    two_open(NULL, NULL);
    char all[256], *save = NULL;
    snprintf(all, sizeof all, "tcp://127.0.0.1:0,%s,tcp://127.0.0.2:0", ports_local("several"));
    weft_listener_t *l = listen_on(all);
    int n = 0;
    snprintf(all, sizeof all, "%s", weft_listener_uri(l));
    for (char *one = strtok_r(all, ",", &save); one; one = strtok_r(NULL, ",", &save), n++)
        meet(l, one, NULL);
    CHECK_EQ(n, 3);
    two_close();
}

TEST(addresses_are_tried_in_order_until_one_answers)
{
    char uri[256];
    two_open(NULL, NULL);
    weft_listener_t *l = listen_on(ports_tcp());
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:1,unix://@weft-test-nobody,%s", weft_listener_uri(l));
    meet(l, uri, NULL);
    two_close();
}

TEST(a_source_address_is_used)
{
    weft_op_t connect = WEFT_OP_INIT;
    weft_ep_opts_t o = two_ep_opts();
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_ep_t *ep;
    two_open(NULL, NULL);
    o.source = "127.0.0.9";
    ep = two_connect(&o);
    CHECK_OK(weft_ep_get_info(two.accepted[0], &info));
    if (strncmp(info.peer_address, "tcp://127.0.0.9:", 16))
        FAIL("it came from %s", info.peer_address);
    o.source = "192.0.2.1"; /* not ours */
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), &o, &connect, &ep));
    CHECK_EQ(two_wait(&connect, 5), WEFT_ERR_ADDRESS);
    two_close();
}

TEST(both_sides_know_who_the_other_is)
{
    static const char *transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        weft_runtime_opts_t so = WEFT_RUNTIME_OPTS_INIT, co = WEFT_RUNTIME_OPTS_INIT;
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        so.name = "the server";
        co.name = "the client";
        so.transports = co.transports = transports[t];
        two_open(&so, &co);
        weft_ep_t *ep = two_connect(NULL);
        CHECK_OK(weft_ep_get_info(ep, &info));
        CHECK_STR(info.peer_name, "the server");
        CHECK_STR(info.peer_address, weft_listener_uri(two.listener));
        CHECK_STR(info.transport, transports[t]);
        CHECK_EQ(info.state, WEFT_EP_UP);
        CHECK(info.same_host && !info.authenticated);
        CHECK_OK(weft_ep_get_info(two.accepted[0], &info));
        CHECK_STR(info.peer_name, "the client");
        CHECK(!strncmp(info.peer_address, "tcp://127.0.0.1:", 16));
        two_close();
    }
}

TEST(sides_without_a_transport_in_common_do_not_connect_and_say_so)
{
    weft_runtime_opts_t so = WEFT_RUNTIME_OPTS_INIT, co = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t connect = WEFT_OP_INIT;
    weft_ep_t *ep;
    so.transports = "shm";
    co.transports = "tcp";
    two_open(&so, &co);
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), NULL, &connect, &ep));
    CHECK_EQ(two_wait(&connect, 5), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
    CHECK_EQ(two.n_accepted, 0);
    two_close();
}

TEST(a_listener_that_never_answers_is_given_up_at_the_timeout)
{
    weft_runtime_opts_t co = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t connect = WEFT_OP_INIT;
    weft_ep_t *ep;
    const char *mute = ports_local("mute");
    int s = ports_listen(mute, 4);
    co.connect_timeout_ns = 300 * WEFT_MILLISECOND;
    two_open(NULL, &co);
    double start = test_now();
    CHECK_OK(weft_ep_open(two.client, mute, NULL, &connect, &ep));
    CHECK_EQ(two_wait(&connect, 5), WEFT_ERR_TIMEOUT);
    CHECK(test_now() - start > 0.25 && test_now() - start < 2);
    close(s);
    two_close();
}

TEST(a_connect_ends_by_its_own_deadline_and_by_cancel_and_the_endpoint_is_then_closed)
{
    const char *mute = ports_local("mute");
    int s = ports_listen(mute, 4);
    two_open(NULL, NULL);
    for (int cancel = 0; cancel < 2; cancel++) {
        weft_op_t connect = WEFT_OP_INIT, close_op = WEFT_OP_INIT;
        weft_ep_t *ep;
        connect.timeout_ns = cancel ? 0 : 50 * WEFT_MILLISECOND;
        CHECK_OK(weft_ep_open(two.client, mute, NULL, &connect, &ep));
        two_run(0.02);
        if (cancel)
            weft_op_cancel(&connect);
        CHECK_EQ(two_wait(&connect, 5), cancel ? WEFT_ERR_CANCELLED : WEFT_ERR_TIMEOUT);
        CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
        CHECK_OK(weft_ep_close(ep, &close_op));
        CHECK_OK(two_wait(&close_op, 5));
    }
    close(s);
    two_close();
}

TEST(bad_arguments_are_refused_with_a_sentence_and_nothing_begins)
{
    static const char *bad[] = {"",          "tcp://",       "tcp://127.0.0.1", "tcp://127.0.0.1:99999",
                                "ftp://x:1", "127.0.0.1:80", "tcp://[::1:5",    "unix://"};
    weft_ep_t *ep = (weft_ep_t *)0x1;
    weft_listener_t *l = (weft_listener_t *)0x1;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    two_open(NULL, NULL);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(weft_ep_open(two.client, bad[i], NULL, &op, &ep), WEFT_ERR_INVALID);
        CHECK(*weft_last_error());
        CHECK_EQ(weft_listen(two.server, bad[i], NULL, &l), WEFT_ERR_INVALID);
        CHECK(*weft_last_error());
    }
    CHECK_EQ(weft_ep_open(two.client, "tcp://127.0.0.1:0", NULL, &op, &ep), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "port 0"));
    CHECK_EQ(weft_ep_open(two.client, NULL, NULL, &op, &ep), WEFT_ERR_INVALID);
    o.address = "garbage";
    o.address_len = 7;
    CHECK_EQ(weft_ep_open(two.client, NULL, &o, &op, &ep), WEFT_ERR_INVALID);
    CHECK_EQ(weft_ep_open(two.client, "tcp://127.0.0.1:1", &o, &op, &ep), WEFT_ERR_INVALID);
    o.size = 3;
    CHECK_EQ(weft_ep_open(two.client, "tcp://127.0.0.1:1", &o, &op, &ep), WEFT_ERR_INVALID);
    CHECK_EQ(weft_listen(two.server, weft_listener_uri(two.listener), NULL, &l), WEFT_ERR_ADDRESS); /* in use */
    CHECK(*weft_last_error());
    CHECK_EQ(weft_listen(two.server, "tcp://127.0.0.1:0,tcp://192.0.2.1:0", NULL, &l), WEFT_ERR_ADDRESS);
    CHECK(ep == (weft_ep_t *)0x1 && l == (weft_listener_t *)0x1);
    CHECK(weft_op_done(&op));
    two_close();
}

TEST(accepts_can_be_posted_in_a_batch_and_end_with_the_listener)
{
    enum { N = 5 };
    weft_op_t accept[N], connect[N - 2];
    weft_ep_t *eps[N - 2];
    memset(accept, 0, sizeof accept);
    memset(connect, 0, sizeof connect);
    two_open(NULL, NULL);
    CHECK_EQ(weft_listener_accept(two.listener, &accept[0]), WEFT_ERR_INVALID); /* it has a callback */
    weft_listener_t *l = listen_on(ports_tcp());
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_listener_accept(l, &accept[i]));
    for (int i = 0; i < N - 2; i++)
        CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &connect[i], &eps[i]));
    for (int i = 0; i < N - 2; i++) {
        CHECK_OK(two_wait(&connect[i], 5));
        CHECK_OK(two_wait(&accept[i], 5));
    }
    weft_op_cancel(&accept[3]);
    CHECK_EQ(two_wait(&accept[3], 5), WEFT_ERR_CANCELLED);
    CHECK_OK(weft_listener_close(l, NULL));
    CHECK_EQ(two_wait(&accept[4], 5), WEFT_ERR_CLOSED);
    two_close();
}

TEST(connections_wait_for_an_accept_and_leave_with_the_listener)
{
    weft_op_t connect[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, accept = WEFT_OP_INIT;
    weft_ep_t *eps[2];
    two_open(NULL, NULL);
    weft_listener_t *l = listen_on(ports_tcp());
    for (int i = 0; i < 2; i++) {
        CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &connect[i], &eps[i]));
        CHECK_OK(two_wait(&connect[i], 5));
    }
    two_run(0.05);
    CHECK_OK(weft_listener_accept(l, &accept));
    CHECK_OK(two_wait(&accept, 1));
    CHECK_OK(weft_listener_close(l, NULL));
    TWO_UNTIL(weft_ep_get_state(eps[1]) == WEFT_EP_FAILED, 2); /* nobody took it */
    CHECK_EQ(weft_ep_get_state(eps[0]), WEFT_EP_UP);
    two_close();
}

/* Told something, or hung up on. */
static bool is_left(int fd)
{
    char c;
    return recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno != EAGAIN;
}

/* As in a program that offers services and accepts nobody. */
TEST(peers_that_came_and_went_take_no_place_that_another_needs)
{
    weft_listen_opts_t o = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *l;
    weft_ep_t *stays, *ep;
    weft_op_t op = WEFT_OP_INIT;
    two_open(NULL, NULL);
    o.backlog = 3;
    CHECK_OK(weft_listen(two.server, ports_tcp(), &o, &l));
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op, &stays));
    CHECK_OK(two_wait(&op, 10));
    for (int i = 0; i < 20; i++) {
        CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op, &ep));
        CHECK_OK(two_wait(&op, 10));
        CHECK_OK(i % 2 ? weft_ep_close(ep, &op) : weft_ep_abort(ep, &op));
        CHECK_OK(two_wait(&op, 10));
        two_run(0.01); /* the server hears of it */
    }
    CHECK_EQ(weft_ep_get_state(stays), WEFT_EP_UP); /* it was the oldest, and lives */
    two_close();
}

TEST(the_backlog_bounds_the_hellos_and_the_silent_make_way)
{
    enum { STRANGERS = 3 };
    weft_runtime_opts_t so = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *l;
    const char *back = ports_local("back");
    int s[STRANGERS];
    so.connect_timeout_ns = 20 * WEFT_SECOND;
    two_open(&so, NULL);
    lo.backlog = STRANGERS;
    CHECK_OK(weft_listen(two.server, back, &lo, &l));
    for (int i = 0; i < STRANGERS; i++)
        s[i] = ports_connect(back);
    two_run(0.1);
    for (int i = 0; i < STRANGERS; i++)
        CHECK(!is_left(s[i]));
    /* the oldest makes way for one who has something to say; the others stay, once that one is up */
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    CHECK_OK(weft_ep_open(two.client, back, NULL, &op, &ep));
    CHECK_OK(two_wait(&op, 5));
    TWO_UNTIL(is_left(s[0]), 5);
    CHECK(!is_left(s[1]) && !is_left(s[2]));
    /* endpoints that nobody takes are not made to leave */
    for (int i = 1; i < STRANGERS; i++) {
        CHECK_OK(weft_ep_open(two.client, back, NULL, &op, &ep));
        CHECK_OK(two_wait(&op, 5));
    }
    TWO_UNTIL(is_left(s[1]) && is_left(s[2]), 5);
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    once.no_retry = true;
    CHECK_OK(weft_ep_open(two.client, back, &once, &op, &ep));
    CHECK_EQ(two_wait(&op, 5), WEFT_ERR_REFUSED);
    CHECK_OK(weft_ep_open(two.client, back, NULL, &op, &ep)); /* the others wait for a place */
    two_run(0.2);
    CHECK(!weft_op_done(&op));
    weft_op_t accept = WEFT_OP_INIT;
    CHECK_OK(weft_listener_accept(l, &accept));
    CHECK_OK(two_wait(&accept, 5));
    CHECK_OK(two_wait(&op, 10));
    two_close();
}

TEST(silent_strangers_leave_after_the_timeout)
{
    weft_runtime_opts_t so = WEFT_RUNTIME_OPTS_INIT;
    weft_listener_t *l;
    const char *back = ports_local("back");
    so.connect_timeout_ns = 400 * WEFT_MILLISECOND;
    two_open(&so, NULL);
    CHECK_OK(weft_listen(two.server, back, NULL, &l));
    int s = ports_connect(back);
    TWO_UNTIL(is_left(s), 10);
    two_close();
}

TEST(a_runtime_connects_to_itself)
{
    weft_op_t op = WEFT_OP_INIT, close_op = WEFT_OP_INIT;
    weft_ep_t *ep;
    two_open(NULL, NULL);
    CHECK_OK(weft_ep_open(two.server, weft_listener_uri(two.listener), NULL, &op, &ep));
    CHECK_OK(two_wait(&op, 5));
    CHECK_OK(weft_ep_close(ep, &close_op));
    CHECK_OK(two_wait(&close_op, 5));
    two_close();
}

TEST(endpoints_have_a_limit)
{
    weft_runtime_opts_t co = WEFT_RUNTIME_OPTS_INIT;
    weft_ep_t *ep[3];
    co.max_endpoints = 2;
    two_open(NULL, &co);
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), NULL, NULL, &ep[0]));
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), NULL, NULL, &ep[1]));
    CHECK_EQ(weft_ep_open(two.client, weft_listener_uri(two.listener), NULL, NULL, &ep[2]), WEFT_ERR_LIMIT);
    CHECK(strstr(weft_last_error(), "2 endpoints"));
    two_close();
}

TEST(everything_works_through_threads_too)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.progress = WEFT_PROGRESS_THREAD;
    two_open(&o, &o);
    weft_listener_t *l = listen_on(ports_tcp());
    for (int i = 0; i < 20; i++)
        meet(l, weft_listener_uri(l), NULL);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_listener_close(l, &op));
    CHECK_OK(two_wait(&op, 5));
    two_close();
}
