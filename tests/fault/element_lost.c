/* A memory element that is killed or stopped in the middle of reads and writes: every operation ends, with an error that is
 * true, and the transport is there again when the element is.
 *
 * ctest: long label=thread shards */
#include "lib/memories.h"
#include "test.h"

#define WAIT (30 * WEFT_SECOND) /* far more than any bound here: what takes longer would take for ever */

static memories_t m;

static const weft_memory_opts_t *bytes(uint64_t n)
{
    static weft_memory_opts_t o;
    o = (weft_memory_opts_t)WEFT_MEMORY_OPTS_INIT;
    o.bytes = n;
    return &o;
}

static weft_status_t move(weft_transport_t *t, bool write, size_t size)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = write ? weft_transport_write(t, size, 0, 0, &op) : weft_transport_read(t, size, 0, 0, &op);
    if (!st)
        st = weft_op_wait(&op, WAIT);
    CHECK(weft_op_done(&op));
    return st;
}

static void becomes(weft_transport_t *t, weft_transport_state_t state)
{
    TEST_UNTIL(weft_transport_state(t, NULL) == state, 30);
}

static const char *const ways[] = {"tcp", "shm"};
#define each_transport(name) for (const char *const *name = ways; name < ways + 2; name++)

TEST(an_element_that_is_killed_ends_every_operation)
{
    static const size_t sizes[] = {8, 4096, 1 << 20, 32 << 20};
    each_transport(way) for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
    {
        enum { FLIGHT = 16 };
        weft_op_t ops[FLIGHT];
        bool posted[FLIGHT] = {false};
        unsigned peer = 0, done = 0, enough = sizes[k] > 1 << 20 ? 24 : 100;
        memories_start(&m, 1, *way, 20 * WEFT_SECOND, bytes(32 << 20)); /* nobody waits for a heartbeat here */
        weft_transport_t *t = memories_add(&m, "mem", 0, 0, 32 << 20);
        CHECK_OK(weft_transport_wait(t, WAIT));
        memset(ops, 0, sizeof ops);
        for (double end = test_now() + 60; !peer;) {
            for (int i = 0; i < FLIGHT; i++) {
                if (posted[i] && !weft_op_done(&ops[i]))
                    continue;
                weft_status_t st = posted[i] ? ops[i].status : WEFT_OK;
                if (!st)
                    st = i % 2 ? weft_transport_write(t, sizes[k], 0, 0, &ops[i])
                               : weft_transport_read(t, sizes[k], 0, 0, &ops[i]);
                posted[i] = !st;
                if (st && st != WEFT_ERR_PEER)
                    FAIL("%s, %zu bytes: %s", *way, sizes[k], weft_status_name(st));
                peer += st == WEFT_ERR_PEER;
                if (++done == enough)
                    memories_signal(&m, 0, SIGKILL);
            }
            CHECK(test_now() < end);
        }
        for (int i = 0; i < FLIGHT; i++)
            if (posted[i]) {
                weft_status_t st = weft_op_wait(&ops[i], WAIT);
                CHECK(weft_op_done(&ops[i]));
                CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
            }
        becomes(t, WEFT_TRANSPORT_LOST);
        weft_status_t st = move(t, false, 8);
        CHECK_EQ(st, WEFT_ERR_PEER);
        CHECK_EQ(weft_transport_wait(t, WAIT), WEFT_ERR_PEER);
        memories_end(&m);
    }
}

TEST(an_element_that_is_stopped_is_lost_within_the_heartbeat_and_found_again)
{
    each_transport(way)
    {
        memories_start(&m, 1, *way, 500 * WEFT_MILLISECOND, bytes(1 << 20));
        weft_transport_t *t = memories_add(&m, "mem", 0, 0, 1 << 20);
        char *buf = weft_transport_buf(t, NULL);
        memset(buf, 'a', 1 << 20);
        CHECK_OK(move(t, true, 1 << 20));
        memories_signal(&m, 0, SIGSTOP);
        weft_status_t st;
        while (!(st = move(t, false, 4096))) /* what is mapped is read until the heartbeat is over */
            ;
        CHECK(st == WEFT_ERR_PEER || st == WEFT_ERR_STALE);
        becomes(t, WEFT_TRANSPORT_LOST);
        st = move(t, true, 4096);
        CHECK(st != WEFT_OK);
        memories_signal(&m, 0, SIGCONT);
        becomes(t, WEFT_TRANSPORT_READY);
        memset(buf, 0, 1 << 20);
        CHECK_OK(move(t, false, 1 << 20)); /* the same memory */
        CHECK_EQ(buf[0], 'a');
        CHECK_EQ(buf[(1 << 20) - 1], 'a');
        memories_end(&m);
    }
}

TEST(a_stopped_element_holds_nobody_longer_than_its_deadline)
{
    memories_start(&m, 1, "tcp", 60 * WEFT_SECOND, bytes(1 << 20));
    weft_transport_t *t = memories_add(&m, "mem", 0, 100, 1 << 20);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_transport_wait(t, WAIT));
    memories_signal(&m, 0, SIGSTOP);
    CHECK_EQ(move(t, false, 4096), WEFT_ERR_TIMEOUT); /* the durl's */
    op.timeout_ns = 20 * WEFT_MILLISECOND;
    CHECK_OK(weft_transport_fetch_add(t, 0, 1, &op)); /* its own */
    CHECK_EQ(weft_op_wait(&op, WAIT), WEFT_ERR_TIMEOUT);
    CHECK_EQ(weft_transport_state(t, NULL), WEFT_TRANSPORT_READY); /* as far as anyone knows */
    CHECK_EQ(move(t, true, 1 << 20), WEFT_ERR_TIMEOUT);            /* it does not let go of the buffer */
    becomes(t, WEFT_TRANSPORT_LOST);
    memories_signal(&m, 0, SIGCONT);
    becomes(t, WEFT_TRANSPORT_READY);
    weft_status_t st;
    while ((st = move(t, false, 4096)) == WEFT_ERR_TIMEOUT)
        ;
    CHECK_OK(st);
    memories_end(&m);
}

TEST(an_element_that_never_answers_cannot_be_reached)
{
    memories_start(&m, 1, "tcp", 500 * WEFT_MILLISECOND, bytes(1 << 20));
    memories_signal(&m, 0, SIGSTOP);
    weft_transport_t *t = memories_add(&m, "mem", 0, 0, 4096);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_transport_read(t, 4096, 0, 0, &op));
    CHECK_EQ(weft_op_wait(&op, 2 * WAIT), WEFT_ERR_UNREACHABLE); /* and not late: it has no deadline */
    CHECK_EQ(weft_transport_state(t, NULL), WEFT_TRANSPORT_LOST);
    memories_signal(&m, 0, SIGKILL);
    memories_end(&m);
}

TEST(an_element_that_dies_before_it_answers_is_not_waited_for)
{
    each_transport(way)
    {
        memories_start(&m, 1, *way, 500 * WEFT_MILLISECOND, bytes(1 << 20));
        memories_signal(&m, 0, SIGSTOP); /* it listens, and says nothing */
        weft_transport_t *t = memories_add(&m, "mem", 0, 0, 4096);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_transport_read(t, 4096, 0, 0, &op));
        CHECK_EQ(weft_transport_wait(t, 50 * WEFT_MILLISECOND), WEFT_ERR_TIMEOUT);
        memories_signal(&m, 0, SIGKILL);
        weft_status_t st = weft_op_wait(&op, WAIT); /* connect_ns is 10 s */
        CHECK(weft_op_done(&op));
        CHECK(st != WEFT_OK && st != WEFT_ERR_TIMEOUT);
        CHECK_EQ(weft_transport_state(t, NULL), WEFT_TRANSPORT_LOST);
        memories_end(&m);
    }
}

TEST(a_release_and_a_close_do_not_wait_for_the_dead)
{
    each_transport(way)
    {
        memories_start(&m, 1, *way, 60 * WEFT_SECOND, bytes(32 << 20));
        weft_transport_t *t = memories_add(&m, "mem", 0, 0, 32 << 20), *u = memories_add(&m, "again", 0, 0, 32 << 20);
        weft_op_t op = WEFT_OP_INIT, more = WEFT_OP_INIT;
        CHECK_OK(weft_transport_wait(t, WAIT));
        CHECK_OK(weft_transport_wait(u, WAIT));
        memories_signal(&m, 0, SIGSTOP);
        CHECK_OK(weft_transport_write(t, 32 << 20, 0, 0, &op));
        CHECK_OK(weft_transport_read(u, 32 << 20, 0, 0, &more));
        CHECK_OK(weft_action_release(m.action, "mem"));
        weft_status_t st = weft_op_wait(&op, WAIT);
        CHECK(weft_op_done(&op));
        CHECK(st == WEFT_ERR_CLOSED || (st == WEFT_OK && !strcmp(*way, "shm")));
        weft_op_t close = WEFT_OP_INIT;
        CHECK_OK(weft_action_close(m.action, &close));
        CHECK_OK(weft_op_wait(&close, WAIT));
        CHECK(weft_op_done(&more));
        memories_signal(&m, 0, SIGKILL);
        CHECK_OK(weft_runtime_close(m.rt));
    }
}
