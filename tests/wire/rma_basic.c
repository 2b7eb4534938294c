/* wire/rma_basic.c - remote memory between two runtimes, on every way and every path there is on it: reads and writes of every
 * size at every edge, pieces, batches, atomics, order, fences, flushes and notifications. After each write the whole region is
 * compared with what it should hold, so that a byte outside of the access shows. wire/rma_rules.c has rights, ranges and ends.
 * ctest: tls-long timeout=600 */
#define TEST_SECONDS 280
#include <stdatomic.h>

#include "lib/far.h"
#include "test.h"

enum { KB = 1024, MB = 1024 * KB };

static const size_t sizes[] = {1,    7,     8,  100,    WEFT_RMA_WHOLE - 65, WEFT_RMA_WHOLE, WEFT_RMA_WHOLE + 1, 8191, 8192, 8193,
                               9000, 65536, MB, MB + 1, 3 * MB + 5};
enum { SIZES = sizeof sizes / sizeof *sizes, BIG = 4 * MB };

static uint8_t out[BIG + 64], in[BIG + 64], shadow[BIG];

TEST(memory_made_by_the_library_is_zero_and_reads_see_what_its_owner_writes)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        uint8_t *base = weft_region_base(region);
        CHECK(base && ((uintptr_t)base & 7) == 0);
        memset(in, 0xff, sizeof in);
        CHECK_OK(far_read(r, 0, in, BIG));
        CHECK_EQ(far.op.len, BIG);
        for (size_t i = 0; i < BIG; i++)
            CHECK_EQ(in[i], 0);
        pattern_fill(base, BIG, 5);
        for (unsigned i = 0; i < SIZES; i++) {
            const uint64_t at[] = {0, 3, BIG - sizes[i]};
            for (unsigned k = 0; k < 3; k++) {
                memset(in, 0xc3, sizes[i] + 64);
                CHECK_OK(far_read(r, at[k], in + 1, sizes[i]));
                CHECK_EQ(far.op.len, sizes[i]);
                CHECK_EQ(memcmp(in + 1, base + at[k], sizes[i]), 0);
                CHECK_EQ(in[0], 0xc3);
                CHECK_EQ(in[1 + sizes[i]], 0xc3);
            }
        }
        CHECK_EQ(pattern_check(base, BIG, 5), BIG); /* reading changes nothing */
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(writes_of_every_size_change_their_bytes_and_no_others)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        const uint8_t *base = weft_region_base(region);
        memset(shadow, 0, BIG);
        for (unsigned i = 0; i < SIZES; i++) {
            const uint64_t at[] = {0, 5, BIG - sizes[i]};
            for (unsigned k = 0; k < 3; k++) {
                pattern_fill(out, sizes[i], 3 * i + k);
                memcpy(shadow + at[k], out, sizes[i]);
                CHECK_OK(far_write(r, at[k], out, sizes[i]));
                CHECK_EQ(far.op.len, sizes[i]);
                CHECK_EQ(memcmp(base, shadow, BIG), 0); /* complete is in the owner's memory */
            }
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(an_access_of_no_bytes_is_complete_and_touches_nothing)
{
    weft_status_t beyond = WEFT_OK;
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(100);
        weft_remote_t *r = far_attach(region, NULL);
        const uint64_t at[] = {0, 50, 100};
        for (unsigned i = 0; i < 3; i++) {
            CHECK_OK(far_read(r, at[i], in, 0));
            CHECK_OK(far_read(r, at[i], NULL, 0));
            CHECK_OK(far_write(r, at[i], NULL, 0));
            CHECK_EQ(far.op.len, 0);
        }
        /* what it is beyond the end nobody says, but it is the same on every path */
        weft_status_t st = far_read(r, 101, in, 0);
        CHECK(st == WEFT_OK || st == WEFT_ERR_RANGE);
        CHECK(way == far_ways || st == beyond);
        CHECK_EQ(far_write(r, 101, in, 0), st);
        CHECK_EQ(far_write(r, UINT64_MAX, in, 0), st);
        beyond = st;
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

/* Cut n bytes at p into `pieces`, some of them empty. */
static size_t cut(weft_iov_t *iov, size_t pieces, uint8_t *p, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < pieces; i++) {
        size_t k = i + 1 == pieces ? n - at : i % 5 == 3 ? 0 : (n - at) / (pieces - i) / 2 + i % 3;
        k = k < n - at ? k : n - at;
        iov[i] = (weft_iov_t){k ? p + at : NULL, k};
        at += k;
    }
    return pieces;
}

TEST(pieces_are_filled_and_taken_in_order)
{
    static const size_t counts[] = {1, 2, 3, 16, 1024};
    static weft_iov_t iov[1025];
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        uint8_t *base = weft_region_base(region);
        for (unsigned i = 0; i < SIZES; i++) {
            for (unsigned k = 0; k < sizeof counts / sizeof *counts; k++) {
                weft_op_t op = WEFT_OP_INIT;
                size_t n = sizes[i];
                pattern_fill(out, n, 100 * i + k);
                CHECK_OK(far_end(weft_rma_writev(r, 9, iov, cut(iov, counts[k], out, n), &op), &op));
                CHECK_EQ(op.len, n);
                CHECK_EQ(pattern_check(base + 9, n, 100 * i + k), n);
                memset(in, 0x11, n + 8);
                CHECK_OK(far_end(weft_rma_readv(r, 9, iov, cut(iov, counts[k], in, n), &op), &op));
                CHECK_EQ(op.len, n);
                CHECK_EQ(pattern_check(in, n, 100 * i + k), n);
                CHECK_EQ(in[n], 0x11);
            }
        }
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(far_end(weft_rma_readv(r, 0, iov, 0, &op), &op)); /* no pieces are no bytes */
        CHECK_EQ(op.len, 0);
        iov[0] = (weft_iov_t){in, 0};
        CHECK_OK(far_end(weft_rma_writev(r, BIG, iov, 1, &op), &op));
        /* too many, and lengths that add up to nothing */
        for (size_t i = 0; i < 1025; i++)
            iov[i] = (weft_iov_t){in, 1};
        CHECK(far_end(weft_rma_readv(r, 0, iov, 1025, &op), &op) != WEFT_OK);
        iov[0] = (weft_iov_t){in, 8};
        iov[1] = (weft_iov_t){in, SIZE_MAX - 3};
        weft_status_t st = far_end(weft_rma_readv(r, 0, iov, 2, &op), &op);
        CHECK(st == WEFT_ERR_RANGE || st == WEFT_ERR_INVALID);
        st = far_end(weft_rma_writev(r, 0, iov, 2, &op), &op);
        CHECK(st == WEFT_ERR_RANGE || st == WEFT_ERR_INVALID);
        iov[1] = (weft_iov_t){NULL, 8};
        CHECK_EQ(far_end(weft_rma_readv(r, 0, iov, 2, &op), &op), WEFT_ERR_INVALID);
        CHECK_EQ(far_end(weft_rma_writev(r, 0, NULL, 2, &op), &op), WEFT_ERR_INVALID);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(calls_without_what_they_need_are_refused_and_start_nothing)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(4096);
        weft_remote_t *r = far_attach(region, NULL);
        far_key_t t = far_key(region, NULL);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_EQ(weft_rma_read(NULL, 0, in, 8, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_read(r, 0, in, 8, NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_read(r, 0, NULL, 8, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_write(r, 0, NULL, 8, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_write(NULL, 0, in, 8, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_write_notify(r, 0, NULL, 8, 1, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_write_notify(r, 0, in, 8, 1, NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_atomic(NULL, WEFT_RMA_ADD, 0, 8, 1, 0, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0, NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_flush(NULL, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_flush(r, NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_fence(NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_rma_batch(NULL, 1, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_remote_attach(NULL, t.bytes, t.len, NULL, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_remote_attach(far.pair.ep[1], t.bytes, t.len, NULL, NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_remote_find(far.pair.ep[1], NULL, NULL, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_remote_get_info(NULL, NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_region_new(far.pair.rt[0], NULL, &region), WEFT_ERR_INVALID);
        weft_remote_drop(NULL);
        CHECK(weft_op_done(&op));
        CHECK_OK(far_write(r, 0, "fine", 4));
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

/* --- order ---------------------------------------------------------------------------------------------------------------- */

TEST(accesses_to_the_same_bytes_take_effect_in_the_order_they_were_posted)
{
    enum { STEPS = 6 };
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        for (unsigned i = 0; i < SIZES; i++) {
            weft_op_t write[STEPS], read[STEPS];
            uint8_t *w[STEPS], *got[STEPS];
            size_t n = sizes[i];
            memset(write, 0, sizeof write);
            memset(read, 0, sizeof read);
            for (unsigned k = 0; k < STEPS; k++) {
                w[k] = (uint8_t *)malloc(n);
                got[k] = (uint8_t *)malloc(n);
                pattern_fill(w[k], n, 10 * i + k);
            }
            for (unsigned k = 0; k < STEPS; k++) { /* nothing is waited for */
                CHECK_OK(weft_rma_write(r, 64, w[k], n, &write[k]));
                CHECK_OK(weft_rma_read(r, 64, got[k], n, &read[k]));
            }
            for (unsigned k = 0; k < STEPS; k++) {
                CHECK_OK(far_end(WEFT_OK, &write[k]));
                CHECK_OK(far_end(WEFT_OK, &read[k]));
                CHECK_EQ(pattern_check(got[k], n, 10 * i + k), n);
            }
            for (unsigned k = 0; k < STEPS; k++) {
                free(w[k]);
                free(got[k]);
            }
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(a_small_access_that_overlaps_a_large_one_under_way_keeps_its_place)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        for (unsigned round = 0; round < 10; round++) {
            weft_op_t large = WEFT_OP_INIT, small = WEFT_OP_INIT, word = WEFT_OP_INIT, back = WEFT_OP_INIT, end = WEFT_OP_INIT;
            uint64_t got = 0, mark = 0x1111 + round, last = 0;
            size_t at = BIG - 8 * (1 + round);
            pattern_fill(out, BIG, round);
            CHECK_OK(weft_rma_write(r, 0, out, BIG, &large));
            CHECK_OK(weft_rma_write(r, at, &mark, 8, &small));
            CHECK_OK(weft_rma_read(r, at, &got, 8, &back));
            CHECK_OK(weft_rma_atomic(r, WEFT_RMA_ADD, at, 8, 1, 0, &word));
            CHECK_OK(weft_rma_read(r, 0, in, BIG, &end));
            CHECK_OK(far_end(WEFT_OK, &end));
            CHECK_OK(far_end(WEFT_OK, &large));
            CHECK_OK(far_end(WEFT_OK, &small));
            CHECK_OK(far_end(WEFT_OK, &back));
            CHECK_OK(far_end(WEFT_OK, &word));
            CHECK_EQ(got, mark);
            CHECK_EQ(word.tag, mark);
            memcpy(&last, in + at, 8);
            CHECK_EQ(last, mark + 1);
            memcpy(in + at, out + at, 8);
            CHECK_EQ(memcmp(in, out, BIG), 0);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(after_a_fence_nothing_passes_what_was_posted_before_it)
{
    static const size_t lens[] = {64, 5000, 100000, BIG - 64};
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        const uint8_t *base = weft_region_base(region);
        for (unsigned i = 0; i < 4; i++) {
            for (uint64_t round = 1; round <= 4; round++) {
                weft_op_t data = WEFT_OP_INIT, flag = WEFT_OP_INIT;
                uint64_t seed = 100 * i + round;
                bool seen = false;
                pattern_fill(out, lens[i], seed);
                CHECK_OK(weft_rma_write(r, 0, out, lens[i], &data));
                CHECK_OK(weft_rma_fence(r));
                CHECK_OK(weft_rma_write(r, BIG - 64, &seed, 8, &flag));
                for (double end = test_now() + 20; !weft_op_done(&flag) || !weft_op_done(&data);) {
                    if (!seen && __atomic_load_n((const uint64_t *)(const void *)(base + BIG - 64), __ATOMIC_ACQUIRE) == seed) {
                        seen = true;
                        CHECK_EQ(memcmp(base, out, lens[i]), 0);
                    }
                    pair_drive(&far.pair);
                    CHECK(test_now() < end);
                }
                CHECK_OK(flag.status);
                CHECK_OK(data.status);
                CHECK_EQ(memcmp(base, out, lens[i]), 0);
            }
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(a_flush_is_complete_when_all_before_it_are_and_does_not_wait_for_what_follows)
{
    enum { N = 200 };
    static weft_op_t ops[N];
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        const uint8_t *base = weft_region_base(region);
        CHECK_OK(far_flush(r)); /* of nothing */
        for (unsigned round = 0; round < 5; round++) {
            weft_op_t flush = WEFT_OP_INIT;
            memset(ops, 0, sizeof ops);
            pattern_fill(out, BIG, round);
            for (unsigned i = 0; i < N; i++)
                CHECK_OK(weft_rma_write(r, i * 20000, out + i * 20000, i % 7 ? 8 + i % 3 * 4100 : 20000, &ops[i]));
            CHECK_OK(weft_rma_flush(r, &flush));
            CHECK_OK(far_end(WEFT_OK, &flush));
            for (unsigned i = 0; i < N; i++) {
                CHECK(weft_op_done(&ops[i]));
                CHECK_OK(ops[i].status);
                CHECK_EQ(memcmp(base + i * 20000, out + i * 20000, i % 7 ? 8 + i % 3 * 4100 : 20000), 0);
            }
        }
        /* however they ended */
        weft_op_t bad = WEFT_OP_INIT, flush = WEFT_OP_INIT;
        weft_status_t st = weft_rma_write(r, BIG, out, 8, &bad);
        CHECK_OK(far_flush(r));
        CHECK_EQ(st ? st : bad.status, WEFT_ERR_RANGE);
        CHECK_OK(weft_rma_flush(r, &flush));
        CHECK_OK(far_end(WEFT_OK, &flush));
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

/* --- atomics -------------------------------------------------------------------------------------------------------------- */

static uint64_t model(weft_rma_atomic_t which, uint64_t was, uint64_t operand, uint64_t compare, size_t width)
{
    uint64_t mask = width == 4 ? UINT32_MAX : UINT64_MAX, v = was;
    switch (which) {
    case WEFT_RMA_ADD:
        v = was + operand;
        break;
    case WEFT_RMA_SWAP:
        v = operand;
        break;
    case WEFT_RMA_CAS:
        v = (was & mask) == (compare & mask) ? operand : was;
        break;
    case WEFT_RMA_AND:
        v = was & operand;
        break;
    case WEFT_RMA_OR:
        v = was | operand;
        break;
    case WEFT_RMA_XOR:
        v = was ^ operand;
        break;
    }
    return v & mask;
}

TEST(every_atomic_of_both_widths_gives_the_value_before_and_changes_its_word_alone)
{
    static const uint64_t operands[] = {0, 1, UINT32_MAX, UINT64_C(0x100000000), UINT64_C(0x123456789abcdef0), UINT64_MAX};
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(256);
        weft_remote_t *r = far_attach(region, NULL);
        uint8_t *base = weft_region_base(region);
        uint8_t want[256];
        pattern_fill(base, 256, 3);
        memcpy(want, base, 256);
        for (int which = WEFT_RMA_ADD; which <= WEFT_RMA_XOR; which++) {
            for (size_t width = 4; width <= 8; width += 4) {
                const uint64_t at[] = {0, 8, 256 - width, width == 4 ? 12 : 16};
                for (unsigned i = 0; i < 6 * 4; i++) {
                    uint64_t was = 0, operand = operands[i % 6], compare = i % 2 ? operands[(i + 1) % 6] : 0;
                    memcpy(&was, want + at[i / 6], width);
                    if (which == WEFT_RMA_CAS && i % 3 == 0)
                        compare = was;
                    uint64_t next = model((weft_rma_atomic_t)which, was, operand, compare, width);
                    CHECK_OK(far_atomic(r, (weft_rma_atomic_t)which, at[i / 6], width, operand, compare));
                    CHECK(far.op.tag == was);
                    memcpy(want + at[i / 6], &next, width);
                    CHECK_EQ(memcmp(base, want, 256), 0);
                }
            }
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(an_atomic_behind_a_long_write_is_done_once_and_changes_its_word_alone)
{
    /* Mapped memory is written in steps of 1 MiB. The first three leave less than a word of the second step to the atomic; the
     * others its edges. */
    static const size_t lens[] = {2096124, 2096121, 2096127, 2096120, 2096128, 3 * MB};
    enum { AT = 3 * MB + 512 };
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        uint64_t *word = (uint64_t *)(void *)((uint8_t *)weft_region_base(region) + AT);
        for (unsigned i = 0; i < 2 * sizeof lens / sizeof *lens; i++) {
            weft_op_t write = WEFT_OP_INIT, atomic = WEFT_OP_INIT;
            size_t width = i % 2 ? 4 : 8;
            word[-1] = word[0] = word[1] = 70;
            CHECK_OK(weft_rma_write(r, 0, out, lens[i / 2], &write));
            CHECK_OK(weft_rma_atomic(r, WEFT_RMA_ADD, AT, width, 5, 0, &atomic));
            CHECK_OK(far_end(WEFT_OK, &write));
            CHECK_OK(far_end(WEFT_OK, &atomic));
            CHECK_EQ(atomic.tag, 70);
            CHECK_EQ(word[0], 75);
            CHECK_EQ(word[-1], 70);
            CHECK_EQ(word[1], 70);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(atomics_that_cannot_be_are_refused)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(100); /* its end is no multiple of 8 */
        weft_remote_t *r = far_attach(region, NULL);
        const uint8_t *base = weft_region_base(region);
        const size_t widths[] = {0, 1, 2, 3, 5, 7, 16, SIZE_MAX};
        for (unsigned i = 0; i < 8; i++)
            CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 0, widths[i], 1, 0), WEFT_ERR_INVALID);
        for (uint64_t at = 1; at < 8; at++)
            CHECK_EQ(far_atomic(r, WEFT_RMA_SWAP, at, 8, 1, 0), WEFT_ERR_INVALID);
        for (uint64_t at = 1; at < 4; at++)
            CHECK_EQ(far_atomic(r, WEFT_RMA_SWAP, at, 4, 1, 0), WEFT_ERR_INVALID);
        CHECK(strstr(weft_last_error(), "on 4 bytes is at a multiple of 4, and 3 is none"));
        CHECK_EQ(far_atomic(r, (weft_rma_atomic_t)0, 0, 8, 1, 0), WEFT_ERR_INVALID);
        CHECK_EQ(far_atomic(r, (weft_rma_atomic_t)7, 0, 8, 1, 0), WEFT_ERR_INVALID);
        CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 96, 8, 1, 0), WEFT_ERR_RANGE);
        CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 104, 8, 1, 0), WEFT_ERR_RANGE);
        CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 100, 4, 1, 0), WEFT_ERR_RANGE);
        CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, UINT64_MAX - 7, 8, 1, 0), WEFT_ERR_RANGE);
        for (unsigned i = 0; i < 100; i++)
            CHECK_EQ(base[i], 0);
        CHECK_OK(far_atomic(r, WEFT_RMA_ADD, 96, 4, 7, 0));
        CHECK_EQ(base[96], 7);
        weft_remote_drop(r);
        /* alignment is counted where the bytes are, and where they seem to be */
        weft_region_key_opts_t part = WEFT_REGION_KEY_OPTS_INIT;
        part.offset = 4;
        part.len = 64;
        r = far_attach(region, &part);
        CHECK_OK(far_atomic(r, WEFT_RMA_ADD, 4, 4, 1, 0));
        CHECK_EQ(base[8], 1);
        weft_status_t st = far_atomic(r, WEFT_RMA_ADD, 8, 8, 1, 0); /* byte 12 of the region */
        CHECK(st == WEFT_OK || st == WEFT_ERR_INVALID);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(atomics_of_several_remotes_and_paths_and_of_the_owner_add_up)
{
    enum { EACH = 300 };
    static weft_op_t ops[3][EACH];
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(64);
        weft_remote_t *r[3] = {far_attach(region, NULL), NULL, NULL};
        far_key_t t = far_key(region, NULL);
        uint64_t *word = weft_region_base(region), sum = 0;
        CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_CHECKED, &r[1]));
        CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &r[2]));
        memset(ops, 0, sizeof ops);
        for (unsigned i = 0; i < EACH; i++) {
            for (unsigned k = 0; k < 3; k++) {
                CHECK_OK(weft_rma_atomic(r[k], WEFT_RMA_ADD, 8, 8, i + k, 0, &ops[k][i]));
                sum += i + k;
            }
            __atomic_fetch_add(&word[1], 1, __ATOMIC_SEQ_CST);
            sum++;
            if (i % 32 == 0)
                pair_drive(&far.pair);
        }
        for (unsigned k = 0; k < 3; k++) {
            for (unsigned i = 0; i < EACH; i++)
                CHECK_OK(far_end(WEFT_OK, &ops[k][i]));
            weft_remote_drop(r[k]);
        }
        CHECK_EQ(word[1], sum);
        CHECK_EQ(word[0] + word[2], 0);
        far_free(region);
        far_close();
    }
}

/* --- batches -------------------------------------------------------------------------------------------------------------- */

TEST(a_batch_does_all_of_its_items_and_says_what_each_came_to)
{
    enum { N = 1000 };
    static weft_rma_item_t items[N];
    static uint8_t was[2][BIG];
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *regions[2] = {far_region(BIG), far_region(BIG)};
        weft_region_key_opts_t only = WEFT_REGION_KEY_OPTS_INIT;
        only.rights = WEFT_RMA_READ;
        weft_remote_t *r[3] = {far_attach(regions[0], NULL), far_attach(regions[1], NULL), far_attach(regions[1], &only)};
        uint8_t *base[2] = {weft_region_base(regions[0]), weft_region_base(regions[1])};
        for (unsigned round = 0; round < 2; round++) { /* all well; then some not */
            weft_op_t op = WEFT_OP_INIT;
            size_t well = 0;
            weft_status_t first = WEFT_OK;
            memset(in, 0, sizeof in);
            for (unsigned k = 0; k < 2; k++) {
                pattern_fill(base[k], BIG, 70 + k);
                memcpy(was[k], base[k], BIG);
            }
            pattern_fill(out, BIG, 90 + round);
            memset(items, 0, sizeof items);
            for (unsigned i = 0; i < N; i++) {
                weft_rma_item_t *it = &items[i];
                size_t at = (size_t)i * 4000;
                it->remote = r[i % 2];
                it->what = i % 4 < 2 ? WEFT_RMA_DO_WRITE : WEFT_RMA_DO_READ;
                it->offset = at;
                it->len = i % 50 == 7 ? 4000 : i % 9 * 300;
                it->buf = (it->what == WEFT_RMA_DO_WRITE ? out : in) + at;
                it->status = (weft_status_t)12345;
                weft_status_t want = WEFT_OK;
                if (round && i % 13 == 5) {
                    it->offset = BIG - it->len + 1;
                    it->len += it->len ? 0 : 2;
                    want = WEFT_ERR_RANGE;
                } else if (round && i % 13 == 8 && it->what == WEFT_RMA_DO_WRITE) {
                    it->remote = r[2];
                    want = WEFT_ERR_RIGHTS;
                }
                first = first ? first : want;
                well += want == WEFT_OK;
            }
            CHECK_EQ(far_end(weft_rma_batch(items, N, &op), &op), first);
            CHECK_EQ(op.len, well);
            for (unsigned i = 0; i < N; i++) {
                const weft_rma_item_t *it = &items[i];
                size_t at = (size_t)i * 4000;
                uint8_t *there = base[i % 2] + at;
                bool bad = round && (i % 13 == 5 || (i % 13 == 8 && i % 4 < 2));
                CHECK_EQ(it->status, !bad ? WEFT_OK : i % 13 == 5 ? WEFT_ERR_RANGE : WEFT_ERR_RIGHTS);
                if (bad) {
                    CHECK_EQ(memcmp(there, was[i % 2] + at, 4000), 0);
                    CHECK(i % 4 < 2 || in[at] == 0);
                } else if (it->what == WEFT_RMA_DO_WRITE) {
                    CHECK_EQ(memcmp(there, out + at, it->len), 0);
                } else {
                    CHECK_EQ(memcmp(there, in + at, it->len), 0);
                }
            }
        }
        for (unsigned k = 0; k < 3; k++)
            weft_remote_drop(r[k]);
        far_free(regions[0]);
        far_free(regions[1]);
        far_close();
    }
}

TEST(items_of_a_batch_that_touch_the_same_bytes_keep_their_order)
{
    enum { N = 64 };
    static const size_t lens[] = {8, 5000, 200000};
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        for (unsigned i = 0; i < 3; i++) {
            size_t n = lens[i];
            weft_rma_item_t items[2 * N];
            uint8_t *w = (uint8_t *)malloc(n * N), *g = (uint8_t *)malloc(n * N);
            weft_op_t op = WEFT_OP_INIT;
            memset(items, 0, sizeof items);
            for (unsigned k = 0; k < N; k++) {
                pattern_fill(w + k * n, n, k);
                items[2 * k] =
                    (weft_rma_item_t){.remote = r, .what = WEFT_RMA_DO_WRITE, .offset = 100, .buf = w + k * n, .len = n};
                items[2 * k + 1] =
                    (weft_rma_item_t){.remote = r, .what = WEFT_RMA_DO_READ, .offset = 100, .buf = g + k * n, .len = n};
            }
            CHECK_OK(far_end(weft_rma_batch(items, 2 * N, &op), &op));
            CHECK_EQ(op.len, 2 * N);
            for (unsigned k = 0; k < N; k++)
                CHECK_EQ(pattern_check(g + k * n, n, k), n);
            free(w);
            free(g);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(a_batch_that_is_cancelled_before_it_is_posted_writes_nothing)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(65536);
        weft_remote_t *r = far_attach(region, NULL);
        const uint8_t *base = weft_region_base(region);
        weft_op_t op = WEFT_OP_INIT;
        weft_rma_item_t items[2] = {{.remote = r, .what = WEFT_RMA_DO_WRITE, .buf = out, .len = 8},
                                    {.remote = r, .what = WEFT_RMA_DO_WRITE, .offset = 8, .buf = out, .len = 8}};
        memset(out, 7, 8);
        weft_op_cancel(&op);
        CHECK_EQ(far_end(weft_rma_batch(items, 2, &op), &op), WEFT_ERR_CANCELLED);
        CHECK_EQ(items[1].status, WEFT_ERR_CANCELLED);
        CHECK_EQ(base[0] | base[8], 0);
        CHECK_OK(far_end(weft_rma_batch(items, 2, &op), &op));
        CHECK_EQ(base[0] & base[8], 7);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(batches_have_bounds)
{
    static weft_rma_item_t items[65537];
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(65536);
        weft_remote_t *r = far_attach(region, NULL);
        const uint8_t *base = weft_region_base(region);
        weft_op_t op = WEFT_OP_INIT;
        pattern_fill(out, 65536, 4);
        for (unsigned i = 0; i <= 65536; i++)
            items[i] =
                (weft_rma_item_t){.remote = r, .what = WEFT_RMA_DO_WRITE, .offset = i % 65536, .buf = out + i % 65536, .len = 1};
        weft_status_t st = far_end(weft_rma_batch(items, 65537, &op), &op);
        CHECK(st == WEFT_ERR_INVALID || st == WEFT_ERR_LIMIT);
        CHECK_EQ(base[0] | base[1] | base[65535], 0);
        CHECK_OK(far_end(weft_rma_batch(items, 65536, &op), &op));
        CHECK_EQ(op.len, 65536);
        CHECK_EQ(memcmp(base, out, 65536), 0);
        /* an item that is none spoils it before anything was done, or spoils only itself */
        memset(out, 0, 8);
        for (unsigned i = 0; i < 3; i++) {
            weft_rma_item_t bad[2] = {
                {.remote = r, .what = WEFT_RMA_DO_WRITE, .buf = out, .len = 8},
                {.remote = i ? r : NULL, .what = i == 1 ? (weft_rma_what_t)9 : WEFT_RMA_DO_WRITE, .len = 8}};
            bad[1].buf = i == 2 ? NULL : out;
            CHECK_EQ(far_end(weft_rma_batch(bad, 2, &op), &op), WEFT_ERR_INVALID);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

/* --- notifications -------------------------------------------------------------------------------------------------------- */

enum { NOTES = 400 };
static struct {
    _Atomic unsigned n;
    unsigned wrong;
    weft_ep_id_t from;
    uint64_t shift;
    bool look; /* at the bytes */
} notes;

static size_t note_len(uint64_t i)
{
    return i % 29 == 11 ? 2 * MB : i % 10 == 3 ? 60000 : i % 10 == 6 ? 6000 : i % 10 == 9 ? 0 : 1 + i % 200;
}

static void on_note(weft_region_t *region, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    unsigned n = atomic_load(&notes.n);
    uint64_t i = value - 1000;
    const uint8_t *base = weft_region_base(region);
    bool right = i == n && len == note_len(i) && offset == notes.shift + i && from == notes.from && user == &notes;
    if (right && notes.look)
        for (uint64_t k = 0; k < len; k++) /* only the first byte of each can have been overwritten by the next */
            right = right && (base[offset + k] == (uint8_t)(i * 3 + k + 1));
    notes.wrong += !right;
    atomic_store(&notes.n, n + 1);
}

static void notify_all(const weft_region_key_opts_t *part, bool wait)
{
    static weft_op_t ops[NOTES];
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.len = BIG;
    o.notify = on_note;
    o.user = &notes;
    weft_region_t *region = far_region_with(&o);
    weft_remote_t *r = far_attach(region, part);
    memset(&notes, 0, sizeof notes);
    memset(ops, 0, sizeof ops);
    notes.from = weft_ep_id(far.pair.ep[0]);
    notes.shift = part ? part->offset : 0;
    notes.look = wait;
    for (unsigned i = 0; i < NOTES; i++) {
        size_t n = note_len(i);
        if (wait) {
            for (size_t k = 0; k < n; k++)
                out[k] = (uint8_t)(i * 3 + k + 1);
        }
        CHECK_OK(weft_rma_write_notify(r, i, out, n, 1000 + i, &ops[i]));
        if (wait) {
            CHECK_OK(far_end(WEFT_OK, &ops[i]));
            CHECK_EQ(ops[i].len, n);
            CHECK_EQ(atomic_load(&notes.n), i + 1); /* complete is told */
        }
    }
    for (unsigned i = 0; i < NOTES; i++) {
        CHECK_OK(far_end(WEFT_OK, &ops[i]));
        CHECK(atomic_load(&notes.n) > i);
    }
    CHECK_EQ(atomic_load(&notes.n), NOTES);
    CHECK_EQ(notes.wrong, 0);
    /* refused ones tell nothing */
    CHECK_EQ(far_end(weft_rma_write_notify(r, BIG, out, 8, 7, &ops[0]), &ops[0]), WEFT_ERR_RANGE);
    CHECK_EQ(far_end(weft_rma_write_notify(r, UINT64_MAX - 3, out, 8, 7, &ops[0]), &ops[0]), WEFT_ERR_RANGE);
    pair_run(&far.pair, 0.002);
    CHECK_EQ(atomic_load(&notes.n), NOTES);
    weft_remote_drop(r);
    far_free(region);
}

TEST(notifications_come_in_the_order_of_their_posts_with_their_values)
{
    each_far(way) {
        far_open(way, NULL);
        notify_all(NULL, false);
        far_close();
    }
}

TEST(the_bytes_are_there_when_the_owner_is_notified_and_offsets_are_of_the_region)
{
    weft_region_key_opts_t part = WEFT_REGION_KEY_OPTS_INIT;
    part.offset = 4096;
    each_far(way) {
        far_open(way, NULL);
        notify_all(&part, true);
        far_close();
    }
}

TEST(without_a_function_a_notification_is_an_ordinary_write)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(BIG);
        weft_remote_t *r = far_attach(region, NULL);
        for (unsigned i = 0; i < SIZES; i++) {
            weft_op_t op = WEFT_OP_INIT;
            pattern_fill(out, sizes[i], i);
            CHECK_OK(far_end(weft_rma_write_notify(r, 1, out, sizes[i], i, &op), &op));
            CHECK_EQ(op.len, sizes[i]);
            CHECK_EQ(memcmp((uint8_t *)weft_region_base(region) + 1, out, sizes[i]), 0);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}
