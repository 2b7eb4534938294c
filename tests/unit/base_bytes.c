/* tests/unit/base_bytes.c - readers and writers that never leave their bytes, and stay bad once they would have. */
#include "base/bytes.h"

#include "../test.h"
#include "base/rng.h"

TEST(what_is_written_is_read_back)
{
    uint8_t buf[64];
    wefti_writer_t w = wefti_writer(buf, sizeof buf);
    wefti_put_u8(&w, 0xab);
    wefti_put_u16(&w, 0x1234);
    wefti_put_u32(&w, 0xdeadbeef);
    wefti_put_u64(&w, UINT64_C(0x0123456789abcdef));
    wefti_put_bytes(&w, "weft", 4);
    wefti_put_bytes(&w, NULL, 0);
    CHECK(!w.bad);
    wefti_reader_t r = wefti_reader(buf, (size_t)(w.at - buf));
    CHECK_EQ(wefti_get_u8(&r), 0xab);
    CHECK_EQ(wefti_get_u16(&r), 0x1234);
    CHECK_EQ(wefti_get_u32(&r), 0xdeadbeef);
    CHECK_EQ(wefti_get_u64(&r), UINT64_C(0x0123456789abcdef));
    CHECK(!memcmp(wefti_get_bytes(&r, 4), "weft", 4));
    CHECK_EQ(wefti_reader_left(&r), 0);
    CHECK(wefti_get_bytes(&r, 0) != NULL);
    CHECK(!r.bad);
}

TEST(numbers_are_little_endian)
{
    uint8_t buf[4];
    wefti_writer_t w = wefti_writer(buf, sizeof buf);
    wefti_put_u32(&w, 0x04030201);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(buf[i], i + 1);
}

TEST(a_reader_that_ran_over_its_end_stays_bad_and_returns_zeroes)
{
    static const uint8_t buf[3] = {1, 2, 3};
    wefti_reader_t r = wefti_reader(buf, sizeof buf);
    CHECK_EQ(wefti_get_u32(&r), 0);
    CHECK(r.bad);
    CHECK_EQ(wefti_get_u8(&r), 0); /* although one byte is there */
    CHECK(!wefti_get_bytes(&r, 0));
    CHECK(r.bad);
}

TEST(a_writer_that_ran_over_its_end_stays_bad_and_writes_nothing)
{
    uint8_t buf[8];
    memset(buf, 0x55, sizeof buf);
    wefti_writer_t w = wefti_writer(buf, 3);
    wefti_put_u32(&w, 0);
    CHECK(w.bad);
    wefti_put_u8(&w, 0);
    CHECK(w.bad && w.at == buf);
    for (size_t i = 0; i < sizeof buf; i++)
        CHECK_EQ(buf[i], 0x55);
}

TEST(a_length_near_the_top_of_size_t_is_only_too_long)
{
    uint8_t buf[8] = {0};
    wefti_reader_t r = wefti_reader(buf, sizeof buf);
    wefti_get_u8(&r);
    CHECK(!wefti_get_bytes(&r, SIZE_MAX));
    wefti_writer_t w = wefti_writer(buf, sizeof buf);
    wefti_put_bytes(&w, buf, SIZE_MAX);
    CHECK(r.bad && w.bad);
}

/* Buffers of exactly the length, so that a sanitizer sees the first byte outside. */
TEST(random_sequences_of_any_length_stay_inside)
{
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        wefti_rng_t rng = {seed};
        size_t n = (size_t)wefti_rng_below(&rng, 40);
        uint8_t *buf = malloc(n ? n : 1);
        CHECK(buf);
        wefti_writer_t w = wefti_writer(buf, n);
        wefti_rng_t writing = rng;
        size_t used = 0;
        bool over = false;
        for (int pass = 0; pass < 2; pass++) {
            wefti_rng_t g = writing;
            wefti_reader_t r = wefti_reader(buf, used);
            for (int step = 0; step < 10; step++) {
                uint64_t kind = wefti_rng_below(&g, 4), v = wefti_rng_next(&g);
                size_t size = (size_t)1 << kind;
                if (pass == 0) {
                    over = over || used + size > n;
                    kind == 0   ? wefti_put_u8(&w, (uint8_t)v)
                    : kind == 1 ? wefti_put_u16(&w, (uint16_t)v)
                    : kind == 2 ? wefti_put_u32(&w, (uint32_t)v)
                                : wefti_put_u64(&w, v);
                    CHECK_EQ(w.bad, over);
                    used += over ? 0 : size;
                } else {
                    uint64_t got = kind == 0   ? wefti_get_u8(&r)
                                   : kind == 1 ? wefti_get_u16(&r)
                                   : kind == 2 ? wefti_get_u32(&r)
                                               : wefti_get_u64(&r);
                    uint64_t want = size == 8 ? v : v & ((UINT64_C(1) << size * 8) - 1);
                    CHECK(got == (r.bad ? 0 : want));
                }
            }
            CHECK_EQ(pass ? r.bad : w.bad, over);
        }
        free(buf);
    }
}
