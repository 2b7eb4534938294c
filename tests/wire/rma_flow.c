/* wire/rma_flow.c - a hundred thousand requests posted at once to an owner that does not progress, and answers for a peer that
 * does not: what both sides hold stays bounded, and all of them complete when it does. ctest: tls-long timeout=600 long */
#define TEST_SECONDS 280
#include <malloc.h>

#include "lib/far.h"
#include "lib/quiet.h"
#include "rma/state.h"
#include "test.h"

enum { MB = 1 << 20, N = 100000, LEN = 4 * MB };
#define HELD_MOST (12u << 20) /* of both sides: two windows of answers, tables of ids, and the transport's own buffers */

static weft_op_t ops[N];
static uint8_t buf[LEN], in[LEN];

static size_t in_use(void)
{
#if QUIET_SANITIZED
    return 0;
#else
    struct mallinfo2 i = mallinfo2();
    return i.uordblks + i.hblkhd;
#endif
}

static const struct {
    const char *what;
    unsigned n;
    size_t len;
} loads[] = {
    {"reads of 8 bytes", N, 8},       {"writes of 8 bytes", N, 8},       {"atomics", N, 8},
    {"reads of 4 KiB", N, 4096},      {"writes of 4 KiB", N, 4096},      {"reads of 8 KiB", N / 2, 8192},
    {"reads of 64 KiB", 2000, 65536}, {"writes of 64 KiB", 2000, 65536},
};
enum { LOADS = sizeof loads / sizeof *loads };

static void post(weft_remote_t *r, unsigned load, unsigned i)
{
    size_t n = loads[load].len;
    uint64_t at = (uint64_t)i * n % (LEN - 65536) / 8 * 8;
    CHECK_OK(load == 2                    ? weft_rma_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0, &ops[i])
             : loads[load].what[0] == 'r' ? weft_rma_read(r, at, in, n, &ops[i])
                                          : weft_rma_write(r, at, buf, n, &ops[i]));
}

TEST(what_is_held_for_an_owner_that_does_not_answer_is_bounded_and_all_comes_through)
{
    each_far(way) {
        if (way->pair->mode != WEFT_PROGRESS_CALLER || way->path == WEFT_RMA_MAPPED)
            continue;
        for (unsigned k = 0; k < LOADS; k++) {
            unsigned n = QUIET_SANITIZED ? loads[k].n / 10 : loads[k].n;
            far_open(way, NULL);
            weft_region_t *region = far_region(LEN);
            weft_remote_t *r = far_attach(region, NULL);
            memset(ops, 0, sizeof ops);
            CHECK_OK(far_write(r, 0, buf, LEN));
            for (unsigned i = 0; i < 2000; i++) /* what is kept for the next time is there */
                post(r, k, i);
            CHECK_OK(far_flush(r));
            uint64_t word = 0;
            CHECK_OK(far_write(r, 0, &word, 8));
            memset(ops, 0, sizeof ops);
            size_t before = in_use();
            for (unsigned i = 0; i < n; i++)
                post(r, k, i);
            for (double end = test_now() + 0.1; test_now() < end;) /* only the one that asks */
                weft_runtime_progress(far.pair.rt[1]);
            size_t asked = in_use();
            for (double end = test_now() + 0.1; test_now() < end;) /* only the one that answers */
                weft_runtime_progress(far.pair.rt[0]);
            size_t answered = in_use();
            printf("# %s, %u %s: %.1f MiB held while nobody answers, %.1f while nobody listens\n", way->pair->transports, n,
                   loads[k].what, ((double)asked - (double)before) / MB, ((double)answered - (double)before) / MB);
            CHECK(QUIET_SANITIZED || (asked < before + HELD_MOST && answered < before + HELD_MOST));
            CHECK(!weft_op_done(&ops[n - 1]));
            for (unsigned i = 0; i < n; i++) {
                CHECK_OK(far_end(WEFT_OK, &ops[i]));
                CHECK(k == 2 || ops[i].len == loads[k].len);
                CHECK(k != 2 || ops[i].tag == i); /* in order, each once */
            }
            size_t after = in_use();
            CHECK(QUIET_SANITIZED || after < before + HELD_MOST);
            weft_remote_drop(r);
            far_free(region);
            far_close();
        }
    }
}

TEST(a_batch_of_the_largest_size_to_an_owner_that_does_not_answer_is_bounded)
{
    static weft_rma_item_t items[65536];
    each_far(way) {
        if (way->pair->mode != WEFT_PROGRESS_CALLER || way->path == WEFT_RMA_MAPPED)
            continue;
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        weft_op_t op = WEFT_OP_INIT;
        pattern_fill(weft_region_base(region), LEN, 6);
        for (unsigned i = 0; i < 65536; i++)
            items[i] = (weft_rma_item_t){
                .remote = r, .what = WEFT_RMA_DO_READ, .offset = (uint64_t)i * 64, .buf = in + (size_t)i * 64, .len = 64};
        memset(in, 0, LEN);
        size_t before = in_use();
        CHECK_OK(weft_rma_batch(items, 65536, &op));
        for (double end = test_now() + 0.1; test_now() < end;)
            weft_runtime_progress(far.pair.rt[1]);
        size_t asked = in_use();
        printf("# %s: %.1f MiB held\n", way->pair->transports, ((double)asked - (double)before) / MB);
        CHECK(QUIET_SANITIZED || asked < before + 2 * HELD_MOST); /* it has 144 bytes for each */
        CHECK_OK(far_end(WEFT_OK, &op));
        CHECK_EQ(op.len, 65536);
        CHECK_EQ(pattern_check(in, LEN, 6), LEN);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(a_batch_of_many_bytes_to_mapped_memory_takes_turns_with_others)
{
    enum { ITEMS = 64, EACH = LEN / 32 };
    each_far(way) {
        if (way->pair->mode != WEFT_PROGRESS_CALLER || way->path != WEFT_RMA_MAPPED)
            continue;
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        weft_rma_item_t items[ITEMS];
        weft_op_t op = WEFT_OP_INIT;
        unsigned rounds = 0;
        pattern_fill(weft_region_base(region), LEN, 6);
        memset(in, 0, LEN);
        for (unsigned i = 0; i < ITEMS; i++)
            items[i] = (weft_rma_item_t){.remote = r,
                                         .what = WEFT_RMA_DO_READ,
                                         .offset = (uint64_t)(i % 32) * EACH,
                                         .buf = in + (size_t)(i % 32) * EACH,
                                         .len = EACH};
        CHECK_OK(weft_rma_batch(items, ITEMS, &op));
        for (; !weft_op_done(&op); rounds++)
            weft_runtime_progress(far.pair.rt[1]);
        CHECK(op.status == WEFT_OK && op.len == ITEMS && rounds >= ITEMS * (size_t)EACH / MB - 2);
        CHECK_EQ(pattern_check(in, LEN, 6), LEN);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

/* A peer that scribbled on the control page, or a process that ended in the middle of an access, leaves a slot busy. */
TEST(a_slot_that_stays_busy_delays_its_own_remote_alone_and_keeps_its_order)
{
    enum { AT = 3 * MB };
    each_far(way) {
        if (way->path != WEFT_RMA_MAPPED)
            continue;
        far_open(way, NULL);
        weft_region_t *region[2] = {far_region(LEN), far_region(LEN)};
        weft_remote_t *stuck = far_attach(region[0], NULL), *other = far_attach(region[1], NULL);
        uint8_t *base = weft_region_base(region[0]);
        weft_op_t late[5] = {0}, op = WEFT_OP_INIT;
        uint64_t one = 1, word = 0;
        pattern_fill(buf, LEN, 9);
        for (unsigned round = 0; round < 2; round++) { /* the second begins where the owner is asked already */
            memset(base, 0, LEN);
            memset(late, 0, sizeof late);
            atomic_store(&stuck->slot->busy, 1);
            CHECK_OK(weft_rma_write(stuck, 0, buf, AT, &late[0]));
            CHECK_OK(weft_rma_write(stuck, 8, &one, 8, &late[1]));
            CHECK_OK(weft_rma_atomic(stuck, WEFT_RMA_ADD, 8, 8, 5, 0, &late[2]));
            CHECK_OK(weft_rma_read(stuck, 8, &word, 8, &late[3]));
            CHECK_OK(weft_rma_write(stuck, AT, buf, 100, &late[4]));
            weft_op_cancel(&late[4]); /* wherever it is */
            CHECK_OK(weft_rma_write(other, 0, buf, LEN, &op));
            CHECK_OK(far_end(WEFT_OK, &op));
            CHECK_EQ(pattern_check(weft_region_base(region[1]), LEN, 9), LEN);
            for (unsigned i = 0; i < 4; i++)
                CHECK_OK(far_end(WEFT_OK, &late[i]));
            (void)far_end(WEFT_OK, &late[4]);
            CHECK_EQ(late[2].tag, 1);
            CHECK_EQ(word, 6);
            memcpy(base + 8, buf + 8, 8);
            CHECK_EQ(pattern_check(base, AT, 9), AT);
        }
        weft_runtime_stats_t was = WEFT_RUNTIME_STATS_INIT, now = WEFT_RUNTIME_STATS_INIT;
        CHECK_OK(weft_runtime_get_stats(far.pair.rt[1], &was));
        CHECK(was.rma_checked > 0);
        atomic_store(&stuck->slot->busy, 0); /* from now on it is mapped memory again */
        CHECK_OK(far_write(stuck, 0, buf, LEN));
        CHECK_EQ(pattern_check(base, LEN, 9), LEN);
        CHECK_OK(weft_runtime_get_stats(far.pair.rt[1], &now));
        CHECK_EQ(now.rma_checked, was.rma_checked);
        /* cleared soon enough: nobody is asked */
        memset(late, 0, sizeof late);
        atomic_store(&stuck->slot->busy, 1);
        CHECK_OK(weft_rma_write(stuck, 0, buf, AT, &late[0]));
        for (unsigned i = 0; i < 100; i++)
            weft_runtime_progress(far.pair.rt[1]);
        CHECK(!weft_op_done(&late[0]) ||
              way->pair->mode == WEFT_PROGRESS_THREAD); /* else only a busy machine makes it ask without need */
        atomic_store(&stuck->slot->busy, 0);
        CHECK_OK(far_end(WEFT_OK, &late[0]));
        weft_remote_drop(stuck);
        weft_remote_drop(other);
        far_free(region[0]);
        far_free(region[1]);
        far_close();
    }
}

/* What waits for a slot ends like everything else. */
TEST(what_waits_for_a_slot_ends_by_its_deadline_by_a_cancel_and_with_its_connection)
{
    each_far(way) {
        if (way->path != WEFT_RMA_MAPPED || way->pair->mode != WEFT_PROGRESS_CALLER)
            continue;
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        weft_op_t late[3] = {0};
        late[0].timeout_ns = WEFT_MILLISECOND;
        atomic_store(&r->slot->busy, 1);
        for (unsigned i = 0; i < 3; i++)
            CHECK_OK(weft_rma_write(r, 0, buf, LEN, &late[i]));
        weft_op_cancel(&late[1]);
        CHECK_EQ(far_end(WEFT_OK, &late[1]), WEFT_ERR_CANCELLED);
        while (!weft_op_done(&late[0])) /* the owner has no part in it */
            weft_runtime_progress(far.pair.rt[1]);
        CHECK_EQ(late[0].status, WEFT_ERR_TIMEOUT);
        CHECK_OK(weft_ep_abort(far.pair.ep[1], NULL));
        far.pair.ep[1] = NULL;
        CHECK(far_end(WEFT_OK, &late[2]) != WEFT_OK);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(traffic_of_both_directions_and_of_messages_goes_on_beside_a_full_window)
{
    each_far(way) {
        if (way->pair->mode != WEFT_PROGRESS_CALLER)
            continue;
        enum { EACH = 20000 };
        static weft_op_t back_ops[EACH];
        far_open(way, NULL);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        weft_region_t *regions[2];
        weft_remote_t *r[2];
        ro.len = 65536;
        for (int i = 0; i < 2; i++) {
            CHECK_OK(weft_region_new(far.pair.rt[i], &ro, &regions[i]));
            far_key_t t = far_key(regions[i], NULL);
            CHECK_OK(far_try(far.pair.ep[!i], t.bytes, t.len, way->path, &r[i]));
        }
        memset(ops, 0, sizeof ops);
        memset(back_ops, 0, sizeof back_ops);
        for (unsigned i = 0; i < EACH; i++) { /* each side asks the other for more than a window, of reads that fill records */
            CHECK_OK(weft_rma_read(r[0], i % 8 * 4096, in, 4096, &ops[i]));
            CHECK_OK(weft_rma_read(r[1], i % 8 * 4096, in, 4096, &back_ops[i]));
        }
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        char got[8] = "";
        CHECK_OK(weft_msg_recv(far.pair.ep[0], got, sizeof got, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(far.pair.ep[1], "hello", 6, 1, &send));
        CHECK_OK(far_end(WEFT_OK, &recv));
        CHECK_STR(got, "hello");
        CHECK_OK(far_end(WEFT_OK, &send));
        for (unsigned i = 0; i < EACH; i++) {
            CHECK_OK(far_end(WEFT_OK, &ops[i]));
            CHECK_OK(far_end(WEFT_OK, &back_ops[i]));
        }
        for (int i = 0; i < 2; i++) {
            weft_remote_drop(r[i]);
            far_free(regions[i]);
        }
        far_close();
    }
}
