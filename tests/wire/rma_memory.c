/* wire/rma_memory.c - remote memory in every kind of memory this machine has, on both sides: regions over buffers of a kind,
 * and buffers of a kind read into and written from; the library's kinds, and a device without hardware whose bytes come out
 * wrong if anyone but its own copy() touched them. What a kind lacks here is skipped with the reason. ctest: timeout=600 */
#define TEST_SECONDS 280
#include "fakedev.h"
#include "lib/far.h"
#include "test.h"

/* In a record, more than that, announced, a stage and a bit, several stages. */
static const size_t lens[] = {1, 8, 100, 4160, 5000, 9001, 70001, (512u << 10) + 1, (2u << 20) + 7};
enum { LENS = sizeof lens / sizeof *lens, REGION = 3u << 20 };

static uint8_t host[REGION], want[REGION];

static void put(const weft_mem_kind_t *kind, void *p, size_t n, uint64_t seed)
{
    pattern_fill(host, n, seed);
    CHECK_OK(weft_mem_copy(p, kind, host, weft_mem_host(), n));
}

static void check(const weft_mem_kind_t *kind, const void *p, size_t n, uint64_t seed)
{
    CHECK_OK(weft_mem_copy(host, weft_mem_host(), p, kind, n));
    CHECK_EQ(pattern_check(host, n, seed), n);
}

/* Everything on a region over memory of `there` (NULL: the library's own) with buffers of `here`. */
static void exchange(const weft_mem_kind_t *here, const weft_mem_kind_t *there)
{
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    void *under = NULL, *out, *in;
    weft_remote_t *r = NULL;
    ro.len = REGION;
    if (there) {
        CHECK_OK(weft_mem_alloc(there, REGION, &under));
        ro.buf = under;
        ro.kind = there;
    }
    CHECK_OK(weft_mem_alloc(here, REGION, &out));
    CHECK_OK(weft_mem_alloc(here, REGION, &in));
    weft_region_t *region = far_region_with(&ro);
    const weft_mem_kind_t *of = there ? there : weft_mem_host();
    uint8_t *base = weft_region_base(region);
    CHECK(!there || base == under);
    far_key_t t = far_key(region, NULL);
    CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, there ? WEFT_RMA_ANY : far.way->path, &r));
    put(of, base, REGION, 1);
    memcpy(want, host, REGION);
    for (unsigned i = 0; i < LENS; i++) {
        size_t n = lens[i], at = 3 + i, cut = n / 3;
        weft_op_t op = WEFT_OP_INIT;
        weft_iov_t pieces[3] = {{out, cut}, {(uint8_t *)out + cut, 0}, {(uint8_t *)out + cut, n - cut}};
        /* write, look at all of it, read it back */
        put(here, out, n, 10 + i);
        memcpy(want + at, host, n);
        CHECK_OK(far_write(r, at, out, n));
        CHECK_OK(weft_mem_copy(host, weft_mem_host(), base, of, REGION));
        CHECK_EQ(memcmp(host, want, REGION), 0);
        put(here, in, n + 1, 99);
        CHECK_OK(far_read(r, at, in, n));
        check(here, in, n, 10 + i);
        /* pieces */
        put(here, out, n, 40 + i);
        memcpy(want + at, host, n);
        CHECK_OK(far_end(weft_rma_writev(r, at, pieces, 3, &op), &op));
        for (unsigned k = 0; k < 3; k++)
            pieces[k].base = (uint8_t *)in + ((uint8_t *)pieces[k].base - (uint8_t *)out);
        CHECK_OK(far_end(weft_rma_readv(r, at, pieces, 3, &op), &op));
        check(here, in, n, 40 + i);
        /* notification and batch */
        put(here, out, n, 70 + i);
        memcpy(want + at, host, n);
        CHECK_OK(far_end(weft_rma_write_notify(r, at, out, n, 5, &op), &op));
        weft_rma_item_t items[2] = {{.remote = r, .what = WEFT_RMA_DO_READ, .offset = at, .buf = in, .len = n},
                                    {.remote = r, .what = WEFT_RMA_DO_READ, .offset = at, .buf = in, .len = n / 2}};
        CHECK_OK(far_end(weft_rma_batch(items, 2, &op), &op));
        check(here, in, n, 70 + i);
        CHECK_OK(weft_mem_copy(host, weft_mem_host(), base, of, REGION));
        CHECK_EQ(memcmp(host, want, REGION), 0);
    }
    /* refused on both paths, and nothing moved */
    CHECK_EQ(far_write(r, REGION - 1, out, 2), WEFT_ERR_RANGE);
    CHECK_EQ(far_read(r, REGION, in, REGION), WEFT_ERR_RANGE);
    /* atomics */
    for (int which = WEFT_RMA_ADD; which <= WEFT_RMA_XOR; which++) {
        uint64_t was, now, at = 64 + 8 * (uint64_t)which;
        memcpy(&was, want + at, 8);
        CHECK_OK(far_atomic(r, (weft_rma_atomic_t)which, at, 8, 0x1234567, was));
        CHECK(far.op.tag == was);
        CHECK_OK(weft_mem_copy(&now, weft_mem_host(), base + at, of, 8));
        const uint64_t after[] = {0, was + 0x1234567, 0x1234567, 0x1234567, was & 0x1234567, was | 0x1234567, was ^ 0x1234567};
        CHECK(now == after[which]);
    }
    weft_remote_drop(r);
    far_free(region);
    weft_mem_free(here, out, REGION);
    weft_mem_free(here, in, REGION);
    if (there)
        weft_mem_free(there, under, REGION);
}

static void all_with(const weft_mem_kind_t *kind)
{
    each_far(way) {
        far_open(way, NULL);
        exchange(kind, NULL);
        if (way->path == WEFT_RMA_CHECKED) {
            exchange(weft_mem_host(), kind);
            exchange(kind, kind);
        }
        far_close();
    }
}

static void with_named(const char *name)
{
    const weft_mem_kind_t *kind = weft_mem_kind_find(name);
    if (!kind)
        SKIP("%s", weft_last_error());
    all_with(kind);
}

TEST(memory_of_the_program)
{
    all_with(weft_mem_host());
}
TEST(huge_pages)
{
    with_named("huge");
}
TEST(pinned_pages)
{
    with_named("pinned");
}
TEST(cuda)
{
    with_named("cuda");
}
TEST(cuda_managed)
{
    with_named("cuda-managed");
}
TEST(cuda_async)
{
    with_named("cuda-async");
}
TEST(cuda_vmm)
{
    with_named("cuda-vmm");
}
TEST(cuda_fd)
{
    with_named("cuda-fd");
}

TEST(a_device_whose_memory_the_processor_must_not_touch)
{
    fakedev_install();
    all_with(fakedev());
    fakedev_remove();
    CHECK_EQ(fakedev_live(), 0);
}

TEST(memory_of_a_pool)
{
    each_far(way) {
        weft_pool_t *pool;
        far_open(way, NULL);
        CHECK_OK(weft_pool_new(far.pair.rt[1], NULL, &pool));
        exchange(weft_pool_kind(pool), NULL);
        CHECK_OK(weft_pool_free(pool));
        if (way->path == WEFT_RMA_CHECKED) {
            CHECK_OK(weft_pool_new(far.pair.rt[0], NULL, &pool));
            exchange(weft_mem_host(), weft_pool_kind(pool));
            CHECK_OK(weft_pool_free(pool));
        }
        far_close();
    }
}

TEST(a_device_whose_copies_fail_says_so_and_the_connection_goes_on)
{
    fakedev_install();
    each_far(way) {
        far_open(way, NULL);
        for (unsigned k = 0; k < 2; k++) { /* the buffer is on the device; the region is */
            weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
            void *under = NULL, *dev;
            weft_remote_t *r = NULL;
            if (k && way->path == WEFT_RMA_MAPPED)
                continue;
            ro.len = REGION;
            CHECK_OK(weft_mem_alloc(fakedev(), REGION, &dev));
            if (k) {
                CHECK_OK(weft_mem_alloc(fakedev(), REGION, &under));
                ro.buf = under;
            }
            weft_region_t *region = far_region_with(&ro);
            far_key_t t = far_key(region, NULL);
            CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, k ? WEFT_RMA_ANY : way->path, &r));
            for (unsigned i = 0; i < LENS; i++) {
                void *buf = k ? (void *)host : dev;
                fakedev_fail_copies(i % 3 == 2 ? 1 : 0);
                weft_status_t st = far_write(r, 0, buf, lens[i]);
                CHECK(st != WEFT_OK || i % 3 == 2);
                st = far_read(r, 0, buf, lens[i]);
                CHECK(st != WEFT_OK);
                /* conn has one word for a sender that cannot go on: WEFT_ERR_PEER */
                if (st == WEFT_ERR_STALE || (st == WEFT_ERR_PEER && !k) || st == WEFT_ERR_PROTOCOL)
                    FAIL("a read of %zu bytes ended with %s", lens[i], weft_status_name(st));
                fakedev_fail_copies(UINT64_MAX);
                CHECK_OK(far_write(r, 0, buf, lens[i])); /* mended */
                CHECK_OK(far_read(r, 0, buf, lens[i]));
            }
            weft_remote_drop(r);
            far_free(region);
            weft_mem_free(fakedev(), dev, REGION);
            if (k)
                weft_mem_free(fakedev(), under, REGION);
        }
        CHECK_EQ(weft_ep_get_state(far.pair.ep[1]), WEFT_EP_UP);
        exchange(fakedev(), NULL);
        far_close();
    }
    fakedev_remove();
    CHECK_EQ(fakedev_live(), 0);
}

/* Answers that wait for room are counted by their bytes, and one that turns out to be a failure has fewer of them than were set
 * aside. */
TEST(failures_that_wait_for_room_leave_nothing_in_the_count_of_answers)
{
    enum { GOOD = 24, BAD = 400, ROUNDS = 4, LEN = 4096 };
    static weft_op_t ops[GOOD + BAD];
    static const far_way_t way = {&pair_ways[0], WEFT_RMA_CHECKED};
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_remote_t *r = NULL;
    void *dev;
    fakedev_install();
    far_open(&way, NULL);
    CHECK_OK(weft_mem_alloc(fakedev(), LEN, &dev));
    ro.len = LEN;
    ro.buf = dev;
    weft_region_t *region = far_region_with(&ro), *plain = far_region(LEN);
    far_key_t t = far_key(region, NULL);
    CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_CHECKED, &r));
    weft_remote_t *fills = far_attach(plain, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < GOOD + BAD; i++)
            CHECK_OK(weft_rma_read(i < GOOD ? fills : r, 0, host, LEN, &ops[i]));
        fakedev_fail_copies(0);
        for (int i = 0; i < 1000; i++) /* the ring fills with what is good, and the failures wait behind it */
            weft_runtime_progress(far.pair.rt[0]);
        for (int i = 0; i < GOOD + BAD; i++) {
            weft_status_t st = pair_wait(&far.pair, &ops[i], 10);
            CHECK(i < GOOD ? st == WEFT_OK : st != WEFT_OK && st != WEFT_ERR_PROTOCOL && st != WEFT_ERR_PEER);
        }
        fakedev_fail_copies(UINT64_MAX);
    }
    CHECK_EQ(weft_ep_get_state(far.pair.ep[1]), WEFT_EP_UP);
    weft_remote_drop(r);
    weft_remote_drop(fills);
    far_free(region);
    far_free(plain);
    weft_mem_free(fakedev(), dev, LEN);
    far_close();
    fakedev_remove();
}
