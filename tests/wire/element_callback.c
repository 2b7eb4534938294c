/* Callbacks that end what they were told of: a transport, or the whole action, in the middle of its being told.
 *
 * ctest: label=thread shards */
#include "lib/elements.h"
#include "test.h"

static elements_t e;
static unsigned told;
static weft_status_t came[8];
static weft_op_t closed;

static weft_transport_t *add(const char *durl, const char *name)
{
    CHECK_OK(weft_action_add(e.action, durl));
    weft_transport_t *t = elements_get(&e, name, "rdma");
    CHECK_OK(weft_transport_reg(t, 100, NULL));
    return t;
}

static void release_first(weft_op_t *op, void *user)
{
    came[told++] = op->status;
    if (user)
        CHECK_OK(weft_action_release(e.action, (const char *)user));
}

TEST(a_termination_reaches_every_transport_though_some_are_released_meanwhile)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    for (int w = 0; w < 2; w++) {
        weft_op_t ops[4];
        char durl[32];
        memset(ops, 0, sizeof ops);
        told = 0;
        elements_open(&e, &pair_ways[w], 100, NULL, NULL);
        for (int i = 0; i < 4; i++) {
            snprintf(durl, sizeof durl, "%s;rdma_tcp;", names[i]);
            weft_transport_t *t = add(durl, names[i]);
            ops[i].fn = release_first;
            ops[i].user = i < 2 ? (void *)(uintptr_t)names[i] : NULL;
            CHECK_OK(weft_transport_read(t, 10, 0, 0, &ops[i]));
        }
        weft_action_terminate(e.action);
        for (int i = 0; i < 4; i++)
            CHECK_EQ(pair_wait(&e.pair, &ops[i], 10), WEFT_ERR_CANCELLED);
        CHECK_EQ(told, 4);
        elements_close(&e);
    }
}

static void close_action(weft_op_t *op, void *user)
{
    came[told++] = op->status;
    (void)user;
    if (told == 1) {
        CHECK_OK(weft_action_close(e.action, &closed));
        e.action = NULL;
    }
}

/* Two wait; the first that is told closes the action. */
static weft_transport_t *two_wait(const char *durl, weft_op_t ops[2])
{
    weft_transport_t *t = add(durl, "t");
    memset(ops, 0, 2 * sizeof *ops);
    memset(&closed, 0, sizeof closed);
    told = 0;
    for (int i = 0; i < 2; i++) {
        ops[i].fn = close_action;
        CHECK_OK(weft_transport_read(t, 10, 0, 0, &ops[i]));
    }
    return t;
}

TEST(who_is_told_that_a_transport_failed_may_close_its_action)
{
    for (int w = 0; w < 2; w++) {
        weft_op_t ops[2];
        weft_action_opts_t a = WEFT_ACTION_OPTS_INIT;
        a.connect_ns = 50 * WEFT_MILLISECOND; /* then it is lost, and would be dialled again */
        a.retry_ns = WEFT_MILLISECOND;
        elements_open(&e, &pair_ways[w], 0, NULL, &a);
        (void)two_wait("t;rdma_tcp;url,tcp://127.0.0.1:1;", ops);
        CHECK_EQ(pair_wait(&e.pair, &ops[0], 10), WEFT_ERR_REFUSED);
        weft_status_t st = pair_wait(&e.pair, &ops[1], 10);
        CHECK(st == WEFT_ERR_CLOSED || st == WEFT_ERR_REFUSED);
        CHECK_OK(pair_wait(&e.pair, &closed, 10));
        pair_run(&e.pair, 0.1); /* a timer that was left behind would come now */
        elements_close(&e);
    }
}

TEST(who_is_told_of_success_may_close_the_action)
{
    for (int w = 0; w < 2; w++) {
        weft_op_t ops[2];
        elements_open(&e, &pair_ways[w], 100, NULL, NULL);
        (void)two_wait("t;rdma_tcp;", ops);
        CHECK_OK(weft_action_configure(e.action, "t", e.durl));
        CHECK_OK(pair_wait(&e.pair, &ops[0], 10));
        weft_status_t st = pair_wait(&e.pair, &ops[1], 10);
        CHECK(st == WEFT_ERR_CLOSED || st == WEFT_OK);
        CHECK_OK(pair_wait(&e.pair, &closed, 10));
        CHECK_EQ(told, 2);
        elements_close(&e);
    }
}
