/* Shared endpoints: the same address gives the same endpoint, the last close closes it, and one that is of no more use is not
 * given to anyone.
 *
 * ctest: tls */
#include <pthread.h>

#include "lib/two.h"
#include "test.h"

static weft_ep_t *open_shared(const char *uri, const char *source, weft_op_t *op)
{
    weft_ep_opts_t o = two_ep_opts();
    weft_ep_t *ep;
    o.shared = true;
    o.no_retry = true;
    o.source = source;
    CHECK_OK(weft_ep_open(two.client, uri, &o, op, &ep));
    return ep;
}

TEST(the_same_address_gives_the_same_endpoint_and_another_does_not)
{
    weft_op_t op[5];
    char spelled[128];
    memset(op, 0, sizeof op);
    two_open(NULL, NULL);
    const char *uri = weft_listener_uri(two.listener);
    snprintf(spelled, sizeof spelled, "TCP://%s", uri + 6);
    weft_ep_t *a = open_shared(uri, NULL, &op[0]), *b = open_shared(uri, NULL, &op[1]);
    CHECK(a == b);
    CHECK_OK(two_wait(&op[0], 5));
    CHECK_OK(two_wait(&op[1], 5));
    CHECK_EQ(op[0].from, op[1].from);
    CHECK(open_shared(uri, NULL, &op[2]) == a); /* up already */
    CHECK_OK(two_wait(&op[2], 1));
    weft_ep_t *c = open_shared(uri, "127.0.0.1", &op[3]);
    CHECK(c != a);
    CHECK_OK(two_wait(&op[3], 5));
    weft_ep_t *own = two_connect(NULL);
    CHECK(own != a && own != c);
    TWO_UNTIL(two.n_accepted == 3, 2);
    two_close();
}

TEST(the_last_close_closes_it)
{
    weft_op_t connect[3], close[3];
    memset(connect, 0, sizeof connect);
    memset(close, 0, sizeof close);
    two_open(NULL, NULL);
    weft_ep_t *ep = NULL;
    for (int i = 0; i < 3; i++)
        ep = open_shared(weft_listener_uri(two.listener), NULL, &connect[i]);
    for (int i = 0; i < 3; i++)
        CHECK_OK(two_wait(&connect[i], 5));
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_UP);
        CHECK_EQ(two.closed[1], 0);
        CHECK_OK(weft_ep_close(ep, &close[i]));
        CHECK_OK(two_wait(&close[i], 5));
    }
    CHECK_EQ(two.closed[1], 1);
    weft_op_t again = WEFT_OP_INIT;
    open_shared(weft_listener_uri(two.listener), NULL, &again);
    CHECK_OK(two_wait(&again, 5));
    TWO_UNTIL(two.n_accepted == 2, 2);
    two_close();
}

TEST(a_failed_or_closed_endpoint_is_not_shared_any_more)
{
    for (int graceful = 0; graceful < 2; graceful++) {
        weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, close = WEFT_OP_INIT;
        two_open(NULL, NULL);
        weft_ep_t *a = open_shared(weft_listener_uri(two.listener), NULL, &op[0]);
        CHECK_OK(two_wait(&op[0], 5));
        TWO_UNTIL(two.n_accepted == 1, 2);
        if (graceful)
            CHECK_OK(weft_ep_close(two.accepted[0], NULL));
        else
            CHECK_OK(weft_ep_abort(two.accepted[0], NULL));
        TWO_UNTIL(two.closed[1] == 1, 2);
        weft_ep_t *b = open_shared(weft_listener_uri(two.listener), NULL, &op[1]);
        CHECK(a != b);
        CHECK_OK(two_wait(&op[1], 5));
        CHECK_OK(weft_ep_close(a, &close));
        CHECK_EQ(two_wait(&close, 5), graceful ? WEFT_OK : WEFT_ERR_PEER);
        two_close();
    }
}

TEST(a_shared_connect_that_fails_tells_everyone)
{
    weft_op_t op[3];
    memset(op, 0, sizeof op);
    two_open(NULL, NULL);
    weft_ep_t *ep[3];
    for (int i = 0; i < 3; i++)
        ep[i] = open_shared("tcp://127.0.0.1:1", NULL, &op[i]);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(two_wait(&op[i], 5), WEFT_ERR_REFUSED);
    for (int i = 0; i < 3; i++)
        CHECK_OK(weft_ep_close(ep[i], NULL));
    two_run(0.02);
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(two.client, &s);
    CHECK_EQ(s.endpoints, 0);
    two_close();
}

TEST(cancelling_one_shared_connect_leaves_the_others)
{
    weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    two_open(NULL, NULL);
    open_shared(weft_listener_uri(two.listener), NULL, &op[0]);
    open_shared(weft_listener_uri(two.listener), NULL, &op[1]);
    weft_op_cancel(&op[0]);
    CHECK_EQ(two_wait(&op[0], 5), WEFT_ERR_CANCELLED);
    CHECK_OK(two_wait(&op[1], 5));
    two_close();
}

static void *churn(void *arg)
{
    for (int i = 0; i < 60; i++) {
        weft_op_t op = WEFT_OP_INIT, close = WEFT_OP_INIT;
        weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
        weft_ep_t *ep;
        o.shared = true;
        CHECK_OK(weft_ep_open(two.client, arg, &o, &op, &ep));
        CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
        CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_UP);
        CHECK_OK(weft_ep_close(ep, &close));
        CHECK_OK(weft_op_wait(&close, 10 * WEFT_SECOND));
    }
    return NULL;
}

TEST(threads_that_open_and_close_the_same_address_never_get_a_dead_endpoint)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    pthread_t t[4];
    o.progress = WEFT_PROGRESS_THREAD;
    two_open(&o, &o);
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], NULL, churn, (void *)(uintptr_t)weft_listener_uri(two.listener)));
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    two_close();
}
