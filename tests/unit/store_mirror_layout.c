/* How a mirror's bytes lie in its members, and what the checksum of a block finds. */
#include "store/mirror_layout.h"

#include "base/rng.h"
#include "test.h"
#include "weft/weft.h"

static void fill(uint8_t *bytes, uint64_t seed)
{
    wefti_rng_t rng = {seed};
    for (size_t i = 0; i < WEFT_MIRROR_UNIT; i += 8) {
        uint64_t v = wefti_rng_next(&rng);
        memcpy(bytes + i, &v, 8);
    }
}

TEST(a_length_is_a_number_of_whole_blocks)
{
    CHECK_EQ(mir_units(1), 1);
    CHECK_EQ(mir_units(4096), 1);
    CHECK_EQ(mir_units(4097), 2);
    CHECK_EQ(mir_bytes(4096, false), 4096);
    CHECK_EQ(mir_bytes(4097, true), 2 * 4112);
    CHECK(mir_bytes(MIR_LEN_MAX, true) > MIR_LEN_MAX);
}

TEST(memory_as_it_is_given_out_is_good)
{
    uint8_t bytes[MIR_STRIDE] = {0};
    CHECK(wefti_mirror_good(bytes, 0));
    CHECK(wefti_mirror_good(bytes, 77));
    for (size_t bit = 0; bit < sizeof bytes * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (wefti_mirror_good(bytes, 0))
            FAIL("bit %zu of a block that was never written was flipped, and it is good", bit);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

TEST(every_flipped_bit_is_found)
{
    uint8_t bytes[MIR_STRIDE];
    fill(bytes, 5);
    wefti_mirror_stamp(bytes, 12, 34);
    CHECK(wefti_mirror_good(bytes, 12));
    CHECK_EQ(wefti_mirror_version(bytes), 34);
    for (size_t bit = 0; bit < sizeof bytes * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (wefti_mirror_good(bytes, 12))
            FAIL("bit %zu was flipped, and the block is good", bit);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK(wefti_mirror_good(bytes, 12));
}

TEST(a_good_block_in_a_wrong_place_is_not_good)
{
    uint8_t bytes[MIR_STRIDE];
    fill(bytes, 6);
    wefti_mirror_stamp(bytes, 12, 34);
    for (uint64_t block = 0; block < 4096; block++)
        CHECK_EQ(wefti_mirror_good(bytes, block), block == 12);
}

TEST(a_block_torn_between_two_versions_is_found_wherever_it_is_torn)
{
    uint8_t old[MIR_STRIDE], new[MIR_STRIDE], torn[MIR_STRIDE];
    fill(old, 7);
    fill(new, 8);
    wefti_mirror_stamp(old, 3, 100);
    wefti_mirror_stamp(new, 3, 101);
    for (size_t at = 8; at < MIR_STRIDE; at += 8) {
        memcpy(torn, new, at);
        memcpy(torn + at, old + at, MIR_STRIDE - at);
        CHECK(!wefti_mirror_good(torn, 3));
    }
}

TEST(random_changes_are_found)
{
    uint8_t bytes[MIR_STRIDE], was[MIR_STRIDE];
    wefti_rng_t rng = {99};
    fill(bytes, 9);
    wefti_mirror_stamp(bytes, 1, 2);
    memcpy(was, bytes, sizeof was);
    for (int i = 0; i < 200000; i++) {
        for (uint64_t n = 1 + wefti_rng_below(&rng, 6); n; n--)
            bytes[wefti_rng_below(&rng, MIR_STRIDE)] = (uint8_t)wefti_rng_next(&rng);
        CHECK_EQ(wefti_mirror_good(bytes, 1), !memcmp(bytes, was, sizeof was));
        memcpy(bytes, was, sizeof was);
    }
}
