/* Closing, aborting and refusing from inside every callback there is: nothing is called twice, nothing is touched after it is
 * gone (the sanitizers look), and everything ends. ctest: tls shards */
#include "lib/two.h"
#include "ports.h"
#include "test.h"

enum { CLOSE, ABORT, CLOSE_OP, NOTHING };
static int deed;
static weft_op_t deed_op;
static int n_accept, n_failed, n_closed, n_admit;

static void act(weft_ep_t *ep)
{
    if (deed == CLOSE)
        CHECK_OK(weft_ep_close(ep, NULL));
    else if (deed == ABORT)
        CHECK_OK(weft_ep_abort(ep, NULL));
    else if (deed == CLOSE_OP)
        CHECK_OK(weft_ep_close(ep, &deed_op));
}

static void accept_acts(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    n_accept++;
    act(ep);
}

static void accept_closes_listener(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)ep, (void)user;
    n_accept++;
    CHECK_OK(weft_listener_close(l, NULL));
}

static weft_on_failure_t failed_acts(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)user;
    n_failed++;
    CHECK_EQ(why, WEFT_ERR_PEER);
    CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
    act(ep);
    return WEFT_RECONNECT; /* too late if it was closed */
}

static void closed_acts(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)user, (void)why;
    n_closed++;
    if (weft_ep_get_state(ep) != WEFT_EP_GONE)
        act(ep);
}

static void closed_counts(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)user, (void)why, (void)ep;
    n_closed++;
}

static void start(weft_accept_fn accept, weft_admit_fn admit, weft_ep_hooks_t hooks, weft_listener_t **l)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    n_accept = n_failed = n_closed = n_admit = 0;
    memset(&deed_op, 0, sizeof deed_op);
    two_open(NULL, NULL);
    lo.accept = accept;
    lo.admit = admit;
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(two.server, ports_tcp(), &lo, l));
}

static void settle(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    two_run(0.05);
    weft_runtime_get_stats(two.server, &s);
    CHECK_EQ(s.endpoints, 0);
    CHECK_EQ(s.ops_posted, s.ops_completed);
    if (deed == CLOSE_OP)
        CHECK(weft_op_done(&deed_op));
    two_close();
}

TEST(an_endpoint_can_be_closed_in_its_accept_callback)
{
    for (deed = CLOSE; deed <= CLOSE_OP; deed++) {
        weft_listener_t *l;
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        start(accept_acts, NULL, (weft_ep_hooks_t){NULL, closed_counts, NULL}, &l);
        CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op, &ep));
        two_wait(&op, 5);
        TWO_UNTIL(n_closed == 1, 5);
        CHECK_EQ(n_accept, 1);
        CHECK_OK(weft_ep_close(ep, NULL));
        settle();
    }
}

TEST(a_listener_can_be_closed_in_its_accept_callback_with_others_on_their_way)
{
    enum { N = 10 };
    weft_op_t op[N];
    weft_ep_t *ep[N];
    weft_listener_t *l;
    memset(op, 0, sizeof op);
    deed = NOTHING;
    start(accept_closes_listener, NULL, (weft_ep_hooks_t){0}, &l);
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op[i], &ep[i]));
    int up = 0;
    for (int i = 0; i < N; i++)
        up += two_wait(&op[i], 12) == WEFT_OK;
    CHECK_EQ(n_accept, 1);
    CHECK(up >= 1);
    two_close();
}

static weft_status_t admit_refuses(const char *name, const char *address, void *user)
{
    weft_listener_t **l = user;
    n_admit++;
    CHECK(*name && !strncmp(address, "tcp://127.0.0.1:", 16));
    if (l)
        CHECK_OK(weft_listener_close(*l, NULL));
    return WEFT_ERR_UNSUPPORTED;
}

TEST(an_admit_hook_refuses_and_the_peer_is_told_its_status)
{
    weft_listener_t *l;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    deed = NOTHING;
    start(accept_acts, admit_refuses, (weft_ep_hooks_t){0}, &l);
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op, &ep));
    CHECK_EQ(two_wait(&op, 5), WEFT_ERR_UNSUPPORTED);
    CHECK_EQ(n_admit, 1);
    CHECK_EQ(n_accept, 0);
    settle();
}

TEST(an_admit_hook_may_close_its_listener)
{
    static weft_listener_t *l;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    n_admit = 0;
    two_open(NULL, NULL);
    lo.admit = admit_refuses;
    lo.user = &l;
    CHECK_OK(weft_listen(two.server, ports_tcp(), &lo, &l));
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op, &ep));
    CHECK(two_wait(&op, 5) != WEFT_OK);
    two_close();
}

TEST(an_endpoint_can_be_closed_in_its_failed_hook)
{
    for (deed = CLOSE; deed <= CLOSE_OP; deed++) {
        weft_listener_t *l;
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        start(NULL, NULL, (weft_ep_hooks_t){failed_acts, closed_counts, NULL}, &l);
        weft_op_t accept = WEFT_OP_INIT;
        CHECK_OK(weft_listener_accept(l, &accept));
        CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op, &ep));
        CHECK_OK(two_wait(&op, 5));
        CHECK_OK(two_wait(&accept, 5));
        CHECK_OK(weft_ep_abort(ep, NULL));
        TWO_UNTIL(n_failed == 1, 2);
        settle();
        CHECK_EQ(n_closed, 1);
        CHECK_EQ(n_failed, 1);
    }
}

TEST(an_endpoint_can_be_closed_in_its_closed_hook)
{
    for (int graceful = 0; graceful < 2; graceful++)
        for (deed = CLOSE; deed <= CLOSE_OP; deed++) {
            weft_listener_t *l;
            weft_op_t op = WEFT_OP_INIT;
            weft_ep_t *ep;
            start(NULL, NULL, (weft_ep_hooks_t){NULL, closed_acts, NULL}, &l);
            weft_op_t accept = WEFT_OP_INIT, gone = WEFT_OP_INIT;
            CHECK_OK(weft_listener_accept(l, &accept));
            CHECK_OK(weft_ep_open(two.client, weft_listener_uri(l), NULL, &op, &ep));
            CHECK_OK(two_wait(&op, 5));
            CHECK_OK(two_wait(&accept, 5));
            if (graceful)
                CHECK_OK(weft_ep_close(ep, &gone));
            else
                CHECK_OK(weft_ep_abort(ep, &gone));
            CHECK_OK(two_wait(&gone, 5));
            TWO_UNTIL(n_closed == 1, 2);
            settle();
            CHECK_EQ(n_closed, 1);
        }
}

static weft_ep_t *opened;
static void connect_done(weft_op_t *op, void *user)
{
    (void)user;
    (void)op;
    n_accept++;
    act(opened);
}

TEST(an_endpoint_can_be_closed_in_its_connect_callback_whatever_it_says)
{
    for (int refused = 0; refused < 2; refused++)
        for (deed = CLOSE; deed <= CLOSE_OP; deed++) {
            weft_op_t op = WEFT_OP_INIT;
            n_accept = 0;
            memset(&deed_op, 0, sizeof deed_op);
            two_open(NULL, NULL);
            op.fn = connect_done;
            const char *uri = refused ? "tcp://127.0.0.1:1" : weft_listener_uri(two.listener);
            weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
            once.no_retry = true;
            CHECK_OK(weft_ep_open(two.client, uri, &once, &op, &opened));
            TWO_UNTIL(n_accept == 1, 5);
            two_run(0.05);
            weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
            weft_runtime_get_stats(two.client, &s);
            CHECK_EQ(s.endpoints, 0);
            two_close();
        }
}

static weft_listener_t *inner;
static void listen_inside(weft_op_t *op, void *user)
{
    (void)op;
    /* Of another runtime: two that ask each other would wait for ever. */
    if (user != two.server)
        CHECK_EQ(weft_listen(user, ports_tcp(), NULL, &inner), WEFT_ERR_STATE);
    CHECK_OK(weft_listen(two.server, ports_tcp(), NULL, &inner));
    CHECK_OK(weft_ep_open(user, weft_listener_uri(inner), NULL, NULL, &opened));
    n_accept++;
}

TEST(connecting_works_inside_callbacks_of_any_runtime_and_listening_inside_those_of_its_own)
{
    for (int other = 0; other < 2; other++) {
        weft_op_t op = WEFT_OP_INIT, accept = WEFT_OP_INIT;
        n_accept = 0;
        two_open(NULL, NULL);
        op.fn = listen_inside;
        op.user = other ? two.client : two.server;
        CHECK_OK(weft_timer_start(two.server, 1, &op));
        TWO_UNTIL(n_accept == 1, 2);
        CHECK_OK(weft_listener_accept(inner, &accept));
        CHECK_OK(two_wait(&accept, 5));
        two_close();
    }
}
