/* tests/unit/base_crc32c.c - CRC-32C has the published values, in pieces and at any address, by the instruction and by tables. */
#include "base/crc32c.h"

#include "base/rng.h"
#include "test.h"

typedef uint32_t crc_fn(uint32_t crc, const void *bytes, size_t n);
static crc_fn *const both[] = {wefti_crc32c, wefti_crc32c_table};

/* By the definition, a bit at a time. */
static uint32_t slowly(uint32_t crc, const uint8_t *bytes, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < 8 * n; i++) {
        crc ^= i % 8 ? 0 : bytes[i / 8];
        crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void fill(uint8_t *bytes, size_t n)
{
    wefti_rng_t seed = {1};
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)wefti_rng_next(&seed);
}

TEST(it_has_the_published_values)
{
    /* RFC 3720, B.4 */
    static const uint8_t read10[48] = {0x01, 0xc0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 4, 0,
                                       0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 2,    0, 0, 0, 0, 0, 0, 0};
    uint8_t zeroes[32] = {0}, ones[32], up[32], down[32];
    for (uint8_t i = 0; i < 32; i++) {
        ones[i] = 0xff;
        up[i] = i;
        down[i] = 31 - i;
    }
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(both[i](0, "123456789", 9), 0xe3069283);
        CHECK_EQ(both[i](0, zeroes, 32), 0x8a9136aa);
        CHECK_EQ(both[i](0, ones, 32), 0x62a8ab43);
        CHECK_EQ(both[i](0, up, 32), 0x46dd794e);
        CHECK_EQ(both[i](0, down, 32), 0x113fdb5c);
        CHECK_EQ(both[i](0, read10, 48), 0xd9963a56);
        CHECK_EQ(both[i](0, "", 0), 0);
        CHECK_EQ(both[i](77, "", 0), 77);
    }
}

TEST(it_is_the_same_at_every_address_and_length)
{
    _Alignas(16) uint8_t bytes[16 + 300];
    fill(bytes, sizeof bytes);
    for (size_t at = 0; at < 16; at++) {
        for (size_t n = 0; n <= 300; n++) {
            uint32_t right = slowly(5, bytes + at, n);
            CHECK_EQ(wefti_crc32c(5, bytes + at, n), right);
            CHECK_EQ(wefti_crc32c_table(5, bytes + at, n), right);
        }
    }
}

/* The lengths at which pieces beside each other begin, and some that are many of them. */
TEST(long_inputs_are_the_same_in_one_piece_and_in_many)
{
    static const size_t edges[] = {768, 1536, 12288, 24576, 3 * 12288 + 5 * 768, 65536, 200000};
    static uint8_t bytes[200100];
    wefti_rng_t seed = {2};
    fill(bytes, sizeof bytes);
    for (unsigned i = 0; i < sizeof edges / sizeof *edges; i++) {
        for (size_t n = edges[i] - 9; n <= edges[i] + 9; n++) {
            const uint8_t *from = bytes + n % 8;
            uint32_t right = slowly(0, from, n), parts = 0;
            for (size_t at = 0, part; at < n; at += part) {
                part = wefti_rng_next(&seed) % (n / 3) + 1;
                part = n - at < part ? n - at : part;
                parts = both[part % 2](parts, from + at, part);
            }
            CHECK_EQ(wefti_crc32c(0, from, n), right);
            CHECK_EQ(wefti_crc32c_table(0, from, n), right);
            CHECK_EQ(parts, right);
        }
    }
}

TEST(each_bit_matters)
{
    static uint8_t bytes[13000];
    fill(bytes, sizeof bytes);
    uint32_t right = wefti_crc32c(0, bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(wefti_crc32c(0, bytes, sizeof bytes) != right);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* Says what it costs; tests are no place for a bound on it. */
TEST(how_fast_it_is)
{
    static uint8_t bytes[65536];
    static const size_t sizes[] = {16, 64, 1024, 16384, 65536};
    fill(bytes, sizeof bytes);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double best[2] = {1e9, 1e9};
        for (int round = 0; round < 5; round++) {
            for (int k = 0; k < 2; k++) {
                size_t total = 0;
                uint32_t crc = 0;
                double began = test_now();
                for (; total < (k ? 4u << 20 : 64u << 20); total += sizes[i])
                    crc = both[k](crc, bytes, sizes[i]);
                double each = (test_now() - began) / ((double)total / (double)sizes[i]);
                best[k] = each < best[k] ? each : best[k];
                CHECK(crc);
            }
        }
        printf("# %zu bytes: %.1f ns (%.1f GB/s); by tables %.1f ns\n", sizes[i], best[0] * 1e9,
               (double)sizes[i] / best[0] * 1e-9, best[1] * 1e9);
    }
}
