/* wire/rma_threads.c - several threads on one remote, and on remotes of their own, on runtimes with a thread and without: every
 * operation ends once, atomics add up, a thread reads what it wrote, and revoking, cancelling, attaching and dropping race with
 * all of it.
 *
 * ctest: tls-long */
#define TEST_SECONDS 240
#include <pthread.h>
#include <stdatomic.h>

#include "lib/far.h"
#include "test.h"

enum { THREADS = 4, EACH = 300, PART = 1 << 16, WINDOW = 8, LEN = (THREADS + 1) * PART };

static weft_region_t *region;
static weft_remote_t *shared;
static far_key_t key;
static atomic_uint running, stale;
static weft_remote_t *of_thread[THREADS];

static weft_status_t wait_for(weft_status_t st, weft_op_t *op)
{
    if (!st) {
        st = weft_op_wait(op, 20 * WEFT_SECOND);
        CHECK(weft_op_done(op));
    }
    return st;
}

/* Drive both sides until the threads are through. */
static void drive_until_done(pthread_t *t, unsigned n)
{
    double end = test_now() + 100;
    while (atomic_load(&running)) {
        pair_run(&far.pair, 0.005);
        CHECK(test_now() < end);
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(t[i], NULL);
}

/* --- everyone does everything --------------------------------------------------------------------------------------------- */

static void *worker(void *arg)
{
    uintptr_t me = (uintptr_t)arg;
    weft_remote_t *r = of_thread[me];
    uint64_t base = (me + 1) * PART;
    uint8_t *out = (uint8_t *)malloc(PART), *in = (uint8_t *)malloc(PART);
    weft_op_t ops[WINDOW];
    memset(ops, 0, sizeof ops);
    for (unsigned i = 0; i < EACH; i++) {
        weft_op_t op = WEFT_OP_INIT;
        size_t n = i % 41 == 40 ? 60000 : i % 9 == 8 ? 6000 : 1 + i % 500;
        unsigned w = i % WINDOW;
        CHECK_OK(wait_for(WEFT_OK, &ops[w])); /* atomics are left under way */
        CHECK_OK(weft_rma_atomic(r, WEFT_RMA_ADD, 8 * (i % 4), i % 4 == 3 ? 4 : 8, me + 1, 0, &ops[w]));
        pattern_fill(out, n, me * 1000 + i);
        CHECK_OK(wait_for(weft_rma_write(r, base + i % 7, out, n, &op), &op));
        CHECK_OK(wait_for(weft_rma_read(r, base + i % 7, in, n, &op), &op));
        CHECK_EQ(memcmp(in, out, n), 0);
        if (i % 16 == 0)
            CHECK_OK(weft_rma_fence(r));
        if (i % 64 == 0)
            CHECK_OK(wait_for(weft_rma_flush(r, &op), &op));
        if (i % 32 == 1) {
            weft_rma_item_t items[8];
            for (unsigned k = 0; k < 8; k++)
                items[k] = (weft_rma_item_t){
                    .remote = r, .what = WEFT_RMA_DO_READ, .offset = base + k * 100, .buf = in + k * 100, .len = 100};
            CHECK_OK(wait_for(weft_rma_batch(items, 8, &op), &op));
        }
    }
    for (unsigned w = 0; w < WINDOW; w++)
        CHECK_OK(wait_for(WEFT_OK, &ops[w]));
    free(out);
    free(in);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

static void work(bool one_remote)
{
    each_far(way) {
        pthread_t t[THREADS];
        uint64_t words[4] = {0}, sum = 0;
        far_open(way, NULL);
        region = far_region(LEN);
        shared = far_attach(region, NULL);
        for (uintptr_t i = 0; i < THREADS; i++) {
            of_thread[i] = one_remote ? shared : far_attach(region, NULL);
            sum += i + 1;
        }
        atomic_store(&running, THREADS);
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_create(&t[i], NULL, worker, (void *)i), 0);
        drive_until_done(t, THREADS);
        CHECK_OK(far_read(shared, 0, words, sizeof words));
        for (unsigned i = 0; i < 4; i++)
            CHECK_EQ(words[i], sum * EACH / 4);
        weft_remote_info_t info = far_info(shared);
        if (one_remote)
            CHECK_EQ(info.atomics, THREADS * EACH);
        for (unsigned i = 0; i < THREADS && !one_remote; i++)
            weft_remote_drop(of_thread[i]);
        weft_remote_drop(shared);
        far_free(region);
        far_close();
    }
}

TEST(threads_share_a_remote)
{
    work(true);
}

TEST(threads_have_remotes_of_their_own)
{
    work(false);
}

/* --- and the owner takes it away ------------------------------------------------------------------------------------------ */

static void *until_stale(void *arg)
{
    weft_remote_t *r = shared;
    uint8_t buf[6000];
    (void)arg;
    memset(buf, 0xab, sizeof buf);
    for (unsigned i = 0;; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st = i % 3 == 0   ? wait_for(weft_rma_write(r, i % 100, buf, i % 9 ? 64 : sizeof buf, &op), &op)
                           : i % 3 == 1 ? wait_for(weft_rma_read(r, 0, buf, 64, &op), &op)
                                        : wait_for(weft_rma_atomic(r, WEFT_RMA_OR, 0, 8, 1, 0, &op), &op);
        CHECK(st == WEFT_OK || st == WEFT_ERR_STALE);
        if (st)
            break;
    }
    atomic_fetch_add(&stale, 1);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

TEST(revoking_races_with_threads_that_use_it_and_all_of_them_learn)
{
    each_far(way) {
        far_open(way, NULL);
        region = far_region(LEN);
        for (unsigned round = 0; round < 10; round++) {
            pthread_t t[THREADS];
            weft_op_t revoke = WEFT_OP_INIT;
            shared = far_attach(region, NULL);
            atomic_store(&running, THREADS);
            atomic_store(&stale, 0);
            for (unsigned i = 0; i < THREADS; i++)
                CHECK_EQ(pthread_create(&t[i], NULL, until_stale, NULL), 0);
            pair_run(&far.pair, 0.002 * round);
            CHECK_OK(weft_region_revoke(region, &revoke));
            CHECK_OK(far_end(WEFT_OK, &revoke));
            /* nothing is written after this: a new remote sees what it writes itself, and only that */
            weft_remote_t *fresh = far_attach(region, NULL);
            uint8_t mine[7000], got[7000];
            memset(mine, (int)round, sizeof mine);
            CHECK_OK(far_write(fresh, 0, mine, sizeof mine));
            drive_until_done(t, THREADS);
            CHECK_EQ(atomic_load(&stale), THREADS);
            CHECK_OK(far_read(fresh, 0, got, sizeof got));
            CHECK_EQ(memcmp(mine, got, sizeof got), 0);
            weft_remote_drop(fresh);
            weft_remote_drop(shared);
        }
        far_free(region);
        far_close();
    }
}

/* --- attaching, dropping, cancelling -------------------------------------------------------------------------------------- */

static void *comes_and_goes(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < 60; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
        o.path = far.way->path;
        CHECK_OK(wait_for(weft_remote_attach(far.pair.ep[1], key.bytes, key.len, &o, &op), &op));
        weft_remote_t *r = op.buf;
        CHECK_OK(wait_for(weft_rma_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0, &op), &op));
        CHECK_OK(weft_rma_atomic(r, WEFT_RMA_ADD, 8, 8, 1, 0, &op)); /* goes on */
        weft_remote_drop(r);
        CHECK_OK(wait_for(WEFT_OK, &op));
    }
    atomic_fetch_sub(&running, 1);
    return NULL;
}

TEST(threads_attach_and_drop_at_once)
{
    each_far(way) {
        pthread_t t[THREADS];
        uint64_t words[2];
        far_open(way, NULL);
        region = far_region(4096);
        key = far_key(region, NULL);
        atomic_store(&running, THREADS);
        for (unsigned i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_create(&t[i], NULL, comes_and_goes, NULL), 0);
        drive_until_done(t, THREADS);
        shared = far_attach(region, NULL);
        CHECK_OK(far_read(shared, 0, words, sizeof words));
        CHECK_EQ(words[0], THREADS * 60);
        CHECK_EQ(words[1], THREADS * 60);
        weft_remote_drop(shared);
        PAIR_UNTIL(&far.pair, far_region_info(region).attached == 0, 5);
        far_free(region);
        far_close();
    }
}

enum { CANCELS = 2000 };
static weft_op_t to_cancel[CANCELS];

static void *canceller(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < CANCELS; i++)
        weft_op_cancel(&to_cancel[i]);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

TEST(cancelling_from_another_thread_races_with_completion_and_each_ends_once)
{
    each_far(way) {
        pthread_t t;
        uint64_t sum = 0, word = 0;
        static uint8_t big[CANCELS / 50][70000];
        far_open(way, NULL);
        region = far_region(LEN);
        shared = far_attach(region, NULL);
        memset(to_cancel, 0, sizeof to_cancel);
        for (unsigned i = 0; i < CANCELS; i++) {
            weft_status_t st = i % 50 == 49 ? weft_rma_read(shared, 64, big[i / 50], 70000, &to_cancel[i])
                                            : weft_rma_atomic(shared, WEFT_RMA_ADD, 0, 8, 1, 0, &to_cancel[i]);
            CHECK_OK(st);
        }
        atomic_store(&running, 1);
        CHECK_EQ(pthread_create(&t, NULL, canceller, NULL), 0);
        drive_until_done(&t, 1);
        for (unsigned i = 0; i < CANCELS; i++) {
            weft_status_t st = far_end(WEFT_OK, &to_cancel[i]);
            CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
            sum += !st && i % 50 != 49;
        }
        CHECK_OK(far_read(shared, 0, &word, 8));
        CHECK(word >= sum && word <= CANCELS); /* one that was cancelled may have happened, one that succeeded has */
        weft_remote_drop(shared);
        far_free(region);
        far_close();
    }
}
