/* Memory that is on several elements at once: made once whoever comes first, written by one at a time, and there with the right
 * bytes when elements are killed, stopped and started again.
 *
 * ctest: tls-long label=thread long */
#define TEST_SECONDS 120
#include <sys/prctl.h>

#include "lib/memories.h"
#include "test.h"

#define WAIT (60 * WEFT_SECOND) /* far more than any bound here: what takes longer would take for ever */
#define BYTES (1u << 20)

static memories_t m;

static const weft_memory_opts_t *mirrored(void)
{
    static weft_memory_opts_t o;
    o = (weft_memory_opts_t)WEFT_MEMORY_OPTS_INIT;
    o.bytes = BYTES;
    o.spare = 1 << 20;
    o.mirrored = true;
    return &o;
}

static weft_status_t end(weft_status_t st, weft_op_t *op)
{
    if (!st)
        st = weft_op_wait(op, WAIT);
    CHECK(weft_op_done(op));
    return st;
}

static weft_status_t move(weft_transport_t *t, bool write, size_t size, uint64_t addr)
{
    weft_op_t op = WEFT_OP_INIT;
    return end(write ? weft_transport_write(t, size, addr, 0, &op) : weft_transport_read(t, size, addr, 0, &op), &op);
}

static void fill(weft_transport_t *t, size_t n, unsigned seed)
{
    uint8_t *buf = weft_transport_buf(t, NULL);
    for (size_t i = 0; i < n; i++)
        buf[i] = (uint8_t)((i >> 4) * 31 + seed);
}

static void check(weft_transport_t *t, size_t n, unsigned seed)
{
    const uint8_t *buf = weft_transport_buf(t, NULL);
    for (size_t i = 0; i < n; i++)
        if (buf[i] != (uint8_t)((i >> 4) * 31 + seed))
            FAIL("byte %zu is %u, not %u", i, buf[i], (uint8_t)((i >> 4) * 31 + seed));
}

static weft_transport_stats_t stats(weft_transport_t *t)
{
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    CHECK_OK(weft_transport_get_stats(t, &s));
    return s;
}

static const char *const ways[] = {"tcp", "shm"};
#define each_transport(name) for (const char *const *name = ways; name < ways + 2; name++)

TEST(replicas_are_one_memory)
{
    each_transport(way)
    {
        weft_op_t op = WEFT_OP_INIT;
        memories_start(&m, 2, *way, WEFT_SECOND, mirrored());
        weft_transport_t *a = memories_add(&m, "a", -1, 0, BYTES), *b = memories_add(&m, "b", -1, 0, BYTES);
        memset(weft_transport_buf(b, NULL), 1, BYTES);
        CHECK_OK(move(b, false, BYTES, 0)); /* zero at first, whoever made it */
        for (size_t i = 0; i < BYTES; i++)
            CHECK_EQ(((char *)weft_transport_buf(b, NULL))[i], 0);
        fill(a, BYTES, 1);
        CHECK_OK(move(a, true, BYTES, 0));
        CHECK_OK(move(b, false, BYTES, 0));
        check(b, BYTES, 1);
        CHECK_EQ(stats(a).replicas, 2);
        CHECK_EQ(stats(a).len, BYTES);
        /* a part of a block, and ranges */
        memcpy(weft_transport_buf(a, NULL), "hello", 6);
        CHECK_OK(move(a, true, 6, 5000));
        CHECK_OK(move(b, false, 6, 5000));
        CHECK_STR((char *)weft_transport_buf(b, NULL), "hello");
        CHECK_EQ(move(a, true, 2, BYTES - 1), WEFT_ERR_RANGE);
        CHECK_EQ(move(a, false, 2, UINT64_MAX), WEFT_ERR_RANGE);
        CHECK_EQ(end(weft_transport_fetch_add(a, 0, 1, &op), &op), WEFT_ERR_UNSUPPORTED);
        CHECK(!weft_transport_remote(a));
        CHECK_OK(end(weft_transport_alloc(a, 1000, NULL, &op), &op));
        CHECK_OK(end(weft_block_free((weft_block_t *)op.buf, &op), &op));
        CHECK_OK(end(weft_transport_flush(a, &op), &op));
        memories_end(&m);
    }
}

TEST(a_batch_on_replicas_moves_all_and_says_what_did_not)
{
    enum { N = 200, SIZE = 4096 };
    weft_op_t op = WEFT_OP_INIT;
    static weft_transport_item_t items[N];
    memories_start(&m, 2, "tcp", WEFT_SECOND, mirrored());
    weft_transport_t *t = memories_add(&m, "t", -1, 0, N * SIZE);
    fill(t, N * SIZE, 3);
    for (size_t i = 0; i < N; i++)
        items[i] = (weft_transport_item_t){.what = WEFT_RMA_DO_WRITE, .size = SIZE, .addr = i * SIZE, .offset = i * SIZE};
    CHECK_OK(end(weft_transport_batch(t, items, N, &op), &op));
    CHECK_EQ(op.len, N);
    memset(weft_transport_buf(t, NULL), 0, N * SIZE);
    for (size_t i = 0; i < N; i++)
        items[i].what = WEFT_RMA_DO_READ;
    items[100].addr = BYTES;
    CHECK_EQ(end(weft_transport_batch(t, items, N, &op), &op), WEFT_ERR_RANGE);
    CHECK_EQ(op.len, N - 1);
    CHECK_EQ(items[100].status, WEFT_ERR_RANGE);
    CHECK_EQ(items[199].status, WEFT_OK);
    items[100].addr = 100 * SIZE;
    CHECK_OK(end(weft_transport_batch(t, items, N, &op), &op));
    check(t, N * SIZE, 3);
    CHECK_EQ(stats(t).reads, 2 * N - 1);
    CHECK_OK(weft_transport_batch(t, items, N, &op));
    weft_op_cancel(&op);
    weft_status_t st = end(WEFT_OK, &op);
    CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
    memories_end(&m);
}

TEST(memory_of_the_caller_moves_on_replicas_though_one_is_killed)
{
    enum { N = 100, SIZE = 3000 };
    static weft_transport_item_t items[N];
    static uint8_t mine[N * SIZE], back[N * SIZE];
    each_transport(way)
    {
        weft_op_t op = WEFT_OP_INIT;
        memories_start(&m, 2, *way, 5 * WEFT_SECOND, mirrored());
        weft_transport_t *t = memories_add(&m, "t", -1, 0, 8); /* a buffer that has nothing to do with it */
        memset(weft_transport_buf(t, NULL), 7, 8);
        for (unsigned round = 0; round < 20; round++) {
            for (size_t i = 0; i < N; i++)
                items[i] =
                    (weft_transport_item_t){.what = WEFT_RMA_DO_WRITE, .size = SIZE, .addr = i * SIZE, .own = mine + i * SIZE};
            for (size_t i = 0; i < sizeof mine; i++)
                mine[i] = (uint8_t)((i >> 4) * 7 + round);
            CHECK_OK(weft_transport_batch(t, items, N, &op));
            if (round == 5)
                memories_signal(&m, 0, SIGKILL);
            CHECK_OK(end(WEFT_OK, &op));
            CHECK_EQ(op.len, N);
            for (size_t i = 0; i < N; i++) {
                items[i].what = WEFT_RMA_DO_READ;
                items[i].own = back + i * SIZE;
            }
            memset(back, 0, sizeof back);
            CHECK_OK(end(weft_transport_batch(t, items, N, &op), &op));
            CHECK(!memcmp(mine, back, sizeof mine));
        }
        for (size_t i = 0; i < 8; i++)
            CHECK_EQ(((uint8_t *)weft_transport_buf(t, NULL))[i], 7);
        memories_signal(&m, 1, SIGKILL);
        weft_status_t st;
        double until = test_now() + 30;
        while (!(st = end(weft_transport_batch(t, items, N, &op), &op))) /* it may answer once more before it is gone */
            CHECK(test_now() < until);
        if (st != WEFT_ERR_PEER && st != WEFT_ERR_REFUSED)
            FAIL("%s: %s (%s)", *way, weft_status_name(st), weft_last_error());
        memories_end(&m);
    }
}

TEST(writers_take_turns)
{
    each_transport(way)
    {
        memories_start(&m, 2, *way, WEFT_SECOND, mirrored());
        weft_transport_t *t[2] = {memories_add(&m, "a", -1, 0, 64), memories_add(&m, "b", -1, 0, 64)};
        for (unsigned i = 0; i < 10; i++) {
            fill(t[i % 2], 64, i);
            CHECK_OK(move(t[i % 2], true, 64, i * 64));
            for (int k = 0; k < 2; k++) { /* both see it */
                CHECK_OK(move(t[k], false, 64, i * 64));
                check(t[k], 64, i);
            }
        }
        CHECK(stats(t[0]).takeovers + stats(t[1]).takeovers >= 9);
        memories_end(&m);
    }
}

TEST(a_replica_that_is_killed_loses_nothing)
{
    each_transport(way) for (int victim = 0; victim < 2; victim++)
    {
        memories_start(&m, 2, *way, 500 * WEFT_MILLISECOND, mirrored());
        weft_transport_t *w = memories_add(&m, "writer", -1, 0, BYTES), *r = memories_add(&m, "reader", -1, 0, BYTES);
        fill(w, BYTES, 5);
        CHECK_OK(move(w, true, BYTES, 0));
        CHECK_OK(move(r, false, BYTES, 0));
        check(r, BYTES, 5);
        /* in the middle of reads and writes */
        for (unsigned i = 0; i < 200; i++) {
            if (i == 50)
                memories_signal(&m, victim, SIGKILL);
            fill(w, 8192, i);
            CHECK_OK(move(w, true, 8192, i % 100 * 8192));
            CHECK_OK(move(r, false, 8192, i % 100 * 8192));
            check(r, 8192, i);
        }
        CHECK_EQ(weft_transport_state(r, NULL), WEFT_TRANSPORT_READY);
        TEST_UNTIL(stats(r).replicas == 1, 20);
        memories_end(&m);
    }
}

TEST(the_first_write_after_an_element_died_goes_on_without_it)
{
    memories_start(&m, 2, "tcp", 500 * WEFT_MILLISECOND, mirrored());
    weft_transport_t *r = memories_add(&m, "reader", -1, 0, BYTES);
    CHECK_OK(move(r, false, BYTES, 0));
    sleep(2); /* nobody writes any more: it is sealed */
    memories_signal(&m, 1, SIGKILL);
    CHECK_OK(move(r, false, BYTES, 0));
    fill(r, BYTES, 8);
    CHECK_OK(move(r, true, BYTES, 0)); /* when its host has said for a while that nobody is there */
    memset(weft_transport_buf(r, NULL), 0, BYTES);
    CHECK_OK(move(r, false, BYTES, 0));
    check(r, BYTES, 8);
    memories_end(&m);
}

TEST(a_replica_that_is_stopped_is_passed_over_and_filled_again)
{
    each_transport(way)
    {
        memories_start(&m, 2, *way, 500 * WEFT_MILLISECOND, mirrored());
        weft_transport_t *w = memories_add(&m, "writer", -1, 0, BYTES);
        fill(w, BYTES, 1);
        CHECK_OK(move(w, true, BYTES, 0));
        memories_signal(&m, 0, SIGSTOP);
        for (unsigned i = 0; i < 20; i++) {
            fill(w, 4096, i + 50);
            CHECK_OK(move(w, true, 4096, i * 4096));
        }
        memories_signal(&m, 0, SIGCONT);
        /* it is filled again while we write; then the other one may go */
        TEST_UNTIL(stats(w).replicas == 2, 30);
        for (double until = test_now() + 5; test_now() < until;) {
            fill(w, 4096, 99);
            CHECK_OK(move(w, true, 4096, 0));
            usleep(20000);
        }
        memories_signal(&m, 1, SIGKILL);
        CHECK_OK(move(w, false, 4096, 0));
        check(w, 4096, 99);
        CHECK_OK(move(w, false, 4096, 19 * 4096));
        check(w, 4096, 69);
        memories_end(&m);
    }
}

TEST(without_any_replica_left_every_operation_ends)
{
    each_transport(way)
    {
        weft_op_t op = WEFT_OP_INIT;
        memories_start(&m, 3, *way, 500 * WEFT_MILLISECOND, mirrored());
        weft_transport_t *t = memories_add(&m, "t", -1, 0, BYTES), *timed = memories_add(&m, "timed", -1, 300, BYTES);
        CHECK_OK(move(t, true, BYTES, 0));
        CHECK_OK(weft_transport_wait(timed, WAIT));
        CHECK_OK(weft_transport_read(t, BYTES, 0, 0, &op));
        for (int i = 0; i < 3; i++)
            memories_signal(&m, i, SIGKILL);
        weft_status_t st = end(WEFT_OK, &op);
        CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
        st = move(t, true, BYTES, 0);
        CHECK(st == WEFT_ERR_PEER || st == WEFT_ERR_REFUSED);
        st = move(timed, false, 10, 0);
        CHECK(st == WEFT_ERR_PEER || st == WEFT_ERR_REFUSED || st == WEFT_ERR_TIMEOUT);
        TEST_UNTIL(weft_transport_state(t, NULL) == WEFT_TRANSPORT_LOST, 30);
        memories_end(&m);
    }
}

/* A writer in a process of its own, forked before there is a runtime here: told of the elements by a pipe, it writes, says so,
 * and goes on for ever. */
static void writer_life(int from, int to, const char *transports)
{
    memories_t own;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    char *at = (char *)&own;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t got = 0; got < sizeof own;) {
        ssize_t k = read(from, at + got, sizeof own - got);
        if (k <= 0)
            _exit(1);
        got += (size_t)k;
    }
    o.transports = transports;
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &own.rt));
    CHECK_OK(weft_action_open(own.rt, "other", NULL, &own.action));
    weft_transport_t *w = memories_add(&own, "w", -1, 0, BYTES);
    fill(w, BYTES, 4);
    CHECK_OK(move(w, true, BYTES, 0));
    if (write(to, "x", 1) != 1)
        _exit(1);
    for (;;) /* it stays the writer */
        CHECK_OK(move(w, true, 4096, 0));
}

TEST(a_writer_that_is_killed_is_replaced)
{
    each_transport(way)
    {
        int to[2], from[2];
        char said;
        CHECK(!pipe(to) && !pipe(from));
        fflush(NULL);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid)
            writer_life(to[0], from[1], *way);
        close(to[0]);
        close(from[1]);
        memories_start(&m, 2, *way, 500 * WEFT_MILLISECOND, mirrored());
        weft_transport_t *r = memories_add(&m, "r", -1, 0, BYTES);
        CHECK_OK(weft_transport_wait(r, WAIT));
        CHECK_EQ(write(to[1], &m, sizeof m), sizeof m);
        CHECK_EQ(read(from[0], &said, 1), 1);
        CHECK_OK(move(r, false, BYTES, 0));
        check(r, BYTES, 4);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        sleep(3); /* its lease is over: nobody may answer any more until someone takes over */
        memset(weft_transport_buf(r, NULL), 0, BYTES);
        CHECK_OK(move(r, false, BYTES, 0));
        check(r, BYTES, 4);
        fill(r, 100, 9);
        CHECK_OK(move(r, true, 100, 0));
        close(to[1]);
        close(from[0]);
        memories_end(&m);
    }
}

TEST(releases_and_closes_come_through_at_any_moment)
{
    for (unsigned i = 0; i < 12; i++) {
        weft_op_t ops[4];
        memset(ops, 0, sizeof ops);
        memories_start(&m, 2, ways[i % 2], WEFT_SECOND, mirrored());
        weft_transport_t *t = memories_add(&m, "t", -1, 0, BYTES);
        bool posted[4] = {false};
        for (int k = 0; k < 4; k++)
            posted[k] = !(k % 2 ? weft_transport_read(t, BYTES, 0, 0, &ops[k]) : weft_transport_write(t, BYTES, 0, 0, &ops[k]));
        usleep(i * i * 400);
        if (i % 3 == 0)
            CHECK_OK(weft_action_release(m.action, "t"));
        if (i % 3 == 1)
            memories_signal(&m, 0, SIGKILL);
        memories_end(&m);
        for (int k = 0; k < 4; k++)
            CHECK(!posted[k] || weft_op_done(&ops[k]));
    }
}
