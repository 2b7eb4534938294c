/* wire/rma_batch.c - batches of small accesses to mapped memory, which are carried out many at a time: each item has its status,
 * each is counted, and nobody is left inside, also where the memory is taken away meanwhile or somebody else is in it. */
#define TEST_SECONDS 60
#include "lib/far.h"
#include "rma/state.h"
#include "test.h"

enum { LEN = 1 << 20, N = 2000, VISIT = 256 }; /* VISIT: as in rma/batch.c */

static weft_rma_item_t items[N];
static uint8_t in[LEN], out[LEN];
static weft_op_t op;

static bool open_mapped(const far_way_t *way)
{
    if (way->path != WEFT_RMA_MAPPED)
        return false;
    far_open(way, NULL);
    op = (weft_op_t)WEFT_OP_INIT;
    return true;
}

static bool inside(weft_remote_t *r)
{
    return atomic_load(&r->slot->busy);
}

/* Reads of n pieces of 16 bytes, one behind the other. */
static void reads(weft_remote_t *r, unsigned n)
{
    memset(in, 0, LEN);
    for (unsigned i = 0; i < n; i++)
        items[i] = (weft_rma_item_t){
            .remote = r, .what = WEFT_RMA_DO_READ, .status = (weft_status_t)1, .offset = i * 16, .buf = in + i * 16, .len = 16};
}

TEST(each_item_of_a_long_batch_is_done_and_counted)
{
    each_far(way) {
        if (!open_mapped(way))
            continue;
        weft_region_t *region[2] = {far_region(LEN), far_region(LEN)};
        weft_remote_t *r[2] = {far_attach(region[0], NULL), far_attach(region[1], NULL)};
        weft_remote_info_t was[2] = {far_info(r[0]), far_info(r[1])};
        uint64_t read[2] = {0}, n_read[2] = {0}, written[2] = {0}, n_written[2] = {0};
        pattern_fill(out, LEN, 3);
        for (unsigned k = 0; k < 2; k++)
            memcpy(weft_region_base(region[k]), out, LEN);
        memset(in, 0, LEN);
        uint64_t at = 0;
        for (unsigned i = 0; i < N; i++) {
            unsigned k = i / 700 % 2; /* long stretches of one remote, longer than a visit */
            bool is_read = i % 3, misfit = i == 5 || i == 900;
            uint64_t len = i == 1000 ? 100000 : i == 3 ? 0 : i % 130;
            items[i] = (weft_rma_item_t){.remote = r[k],
                                         .what = is_read ? WEFT_RMA_DO_READ : WEFT_RMA_DO_WRITE,
                                         .status = (weft_status_t)1,
                                         .offset = misfit ? LEN + 1 : at,
                                         .buf = is_read ? in + at : out + at,
                                         .len = len};
            if (misfit)
                continue;
            *(is_read ? &read[k] : &written[k]) += len;
            ++*(is_read ? &n_read[k] : &n_written[k]);
            at += len;
        }
        CHECK(at <= LEN);
        CHECK_EQ(far_end(weft_rma_batch(items, N, &op), &op), WEFT_ERR_RANGE);
        CHECK_EQ(op.count, N - 2);
        for (unsigned i = 0; i < N; i++) {
            CHECK_EQ(items[i].status, i == 5 || i == 900 ? WEFT_ERR_RANGE : WEFT_OK);
            if (items[i].what == WEFT_RMA_DO_READ && !items[i].status)
                CHECK(!memcmp(items[i].buf, out + items[i].offset, items[i].len));
        }
        for (unsigned k = 0; k < 2; k++) {
            weft_remote_info_t now = far_info(r[k]);
            CHECK(!inside(r[k]));
            CHECK_EQ(now.reads - was[k].reads, n_read[k]);
            CHECK_EQ(now.writes - was[k].writes, n_written[k]);
            CHECK_EQ(now.bytes_read - was[k].bytes_read, read[k]);
            CHECK_EQ(now.bytes_written - was[k].bytes_written, written[k]);
            CHECK_EQ(pattern_check(weft_region_base(region[k]), LEN, 3), LEN);
            weft_remote_drop(r[k]);
            far_free(region[k]);
        }
        far_close();
    }
}

/* --- memory that is taken away ------------------------------------------------------------------------------------------- */

static weft_remote_t *victim;
static const void *trigger;

/* The library asks where a buffer is when it comes to its item: the others before it were done. */
static bool owns(const weft_mem_kind_t *kind, const void *ptr)
{
    (void)kind;
    if (trigger && ptr == trigger) {
        CHECK(inside(victim));
        atomic_store(&victim->slot->stamp, victim->stamp + 1);
        trigger = NULL;
    }
    return false;
}

static weft_status_t no_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    (void)kind, (void)n, (void)ptr_out;
    return WEFT_ERR_NOMEM;
}

static void no_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)kind, (void)ptr, (void)n;
}

static weft_status_t no_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    (void)kind, (void)dst, (void)src, (void)n;
    return WEFT_ERR_SYSTEM;
}

TEST(memory_that_is_taken_away_in_the_middle_fails_what_was_done_in_that_visit_alone)
{
    weft_mem_kind_t kind = WEFT_MEM_KIND_INIT;
    kind.name = "asked";
    kind.alloc = no_alloc;
    kind.free = no_free;
    kind.copy = no_copy;
    kind.owns = owns;
    CHECK_OK(weft_mem_kind_add(&kind));
    each_far(way) {
        if (!open_mapped(way))
            continue;
        weft_region_t *region = far_region(LEN);
        victim = far_attach(region, NULL);
        pattern_fill(weft_region_base(region), LEN, 4);
        reads(victim, 3 * VISIT);
        trigger = items[VISIT + 7].buf; /* in the second visit */
        CHECK_EQ(far_end(weft_rma_batch(items, 3 * VISIT, &op), &op), WEFT_ERR_STALE);
        CHECK(!trigger);
        CHECK_EQ(op.count, 2 * VISIT); /* the owner was asked for the last ones */
        for (unsigned i = 0; i < 3 * VISIT; i++)
            CHECK_EQ(items[i].status, i / VISIT == 1 ? WEFT_ERR_STALE : WEFT_OK);
        CHECK_EQ(pattern_check(in, VISIT * 16, 4), VISIT * 16);
        CHECK(!memcmp(in + 2 * VISIT * 16, (uint8_t *)weft_region_base(region) + 2 * VISIT * 16, VISIT * 16));
        CHECK(!inside(victim));
        atomic_store(&victim->slot->stamp, victim->stamp);
        weft_remote_drop(victim);
        far_free(region);
        far_close();
    }
    CHECK_OK(weft_mem_kind_remove(&kind));
}

/* --- somebody is inside -------------------------------------------------------------------------------------------------- */

TEST(a_batch_that_finds_somebody_inside_waits_and_can_be_cancelled)
{
    each_far(way) {
        if (way->pair->mode != WEFT_PROGRESS_CALLER || !open_mapped(way))
            continue;
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        pattern_fill(weft_region_base(region), LEN, 5);
        for (unsigned cancel = 0; cancel < 2; cancel++) {
            reads(r, 2 * VISIT);
            atomic_store(&r->slot->busy, 1);
            CHECK_OK(weft_rma_batch(items, 2 * VISIT, &op));
            CHECK(!weft_op_done(&op));
            if (cancel)
                weft_op_cancel(&op);
            else
                atomic_store(&r->slot->busy, 0);
            CHECK_EQ(far_end(WEFT_OK, &op), cancel ? WEFT_ERR_CANCELLED : WEFT_OK);
            CHECK_EQ(op.count, cancel ? 0 : 2 * VISIT);
            CHECK_EQ(pattern_check(in, 2 * VISIT * 16, 5), cancel ? 0 : 2 * VISIT * 16);
            for (unsigned i = 0; i < 2 * VISIT; i++)
                CHECK_EQ(items[i].status, cancel ? WEFT_ERR_CANCELLED : WEFT_OK);
            atomic_store(&r->slot->busy, 0);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}
