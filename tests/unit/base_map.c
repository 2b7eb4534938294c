/* tests/unit/base_map.c - the hash map against a plain array, and its hash functions. */
#include "base/map.h"

#include "../test.h"
#include "base/alloc.h"
#include "base/rng.h"

static int always_fails(size_t n)
{
    (void)n;
    return 1;
}

static int some[1000]; /* addresses to use as values */

TEST(an_empty_map_finds_takes_and_walks_nothing)
{
    wefti_map_t m = {0};
    size_t at = 0;
    uint64_t key;
    CHECK(!wefti_map_get(&m, 0));
    CHECK(!wefti_map_take(&m, 0));
    CHECK(!wefti_map_next(&m, &at, &key));
    wefti_map_free(&m);
}

TEST(any_64_bit_number_is_a_key)
{
    static const uint64_t keys[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63, UINT32_MAX, UINT64_C(1) << 32};
    wefti_map_t m = {0};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        CHECK_OK(wefti_map_put(&m, keys[i], &some[i]));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        CHECK(wefti_map_get(&m, keys[i]) == &some[i]);
    CHECK(!wefti_map_get(&m, 2));
    wefti_map_free(&m);
}

TEST(putting_a_key_again_replaces_its_value)
{
    wefti_map_t m = {0};
    CHECK_OK(wefti_map_put(&m, 5, &some[0]));
    CHECK_OK(wefti_map_put(&m, 5, &some[1]));
    CHECK_EQ(m.n, 1);
    CHECK(wefti_map_take(&m, 5) == &some[1]);
    CHECK(!wefti_map_take(&m, 5));
    CHECK_EQ(m.n, 0);
    wefti_map_free(&m);
}

TEST(a_put_without_memory_leaves_the_map_as_it_was)
{
    wefti_map_t m = {0};
    uint64_t key = 0;
    wefti_alloc_fails = always_fails;
    CHECK_EQ(wefti_map_put(&m, 1, &some[0]), WEFT_ERR_NOMEM);
    while (1) { /* fill until it would have to grow */
        wefti_alloc_fails = m.mask ? always_fails : NULL;
        weft_status_t st = wefti_map_put(&m, key, &some[key]);
        if (st) {
            CHECK_EQ(st, WEFT_ERR_NOMEM);
            break;
        }
        key++;
    }
    CHECK_OK(wefti_map_put(&m, 0, &some[900])); /* replacing needs no memory */
    wefti_alloc_fails = NULL;
    CHECK_EQ(m.n, key);
    CHECK(!wefti_map_get(&m, key));
    CHECK(wefti_map_get(&m, 0) == &some[900]);
    for (uint64_t k = 1; k < key; k++)
        CHECK(wefti_map_get(&m, k) == &some[k]);
    wefti_map_free(&m);
}

/* Keys whose homes lie in the last and first cells of the table, so that runs collide and go round its end. */
static uint64_t colliding_key(wefti_rng_t *rng)
{
    for (;;) {
        uint64_t key = wefti_rng_next(rng);
        if (((wefti_hash_u64(key) + 2) & 63) < 4)
            return key;
    }
}

static void compare_with_array(uint64_t seed, bool collide)
{
    enum { N = 80 };
    wefti_rng_t rng = {seed};
    wefti_map_t m = {0};
    uint64_t keys[N];
    void *values[N] = {0};
    size_t n = 0;
    for (int i = 0; i < N; i++)
        keys[i] = collide ? colliding_key(&rng) : (uint64_t)i * (seed % 7 + 1);
    for (int step = 0; step < 600; step++) {
        size_t i = (size_t)wefti_rng_below(&rng, N);
        if (wefti_rng_below(&rng, 2)) {
            void *value = &some[wefti_rng_below(&rng, 1000)];
            CHECK_OK(wefti_map_put(&m, keys[i], value));
            n += !values[i];
            values[i] = value;
        } else {
            CHECK(wefti_map_take(&m, keys[i]) == values[i]);
            n -= values[i] != NULL;
            values[i] = NULL;
        }
        CHECK_EQ(m.n, n);
        for (int k = 0; k < N; k++)
            CHECK(wefti_map_get(&m, keys[k]) == values[k]);
    }
    size_t at = 0, walked = 0;
    uint64_t key;
    for (void *value; (value = wefti_map_next(&m, &at, &key)); walked++) {
        int k = 0;
        while (k < N && keys[k] != key)
            k++;
        CHECK(k < N && values[k] == value);
        values[k] = NULL; /* seen: a second time would not compare equal */
    }
    CHECK_EQ(walked, n);
    wefti_map_free(&m);
}

TEST(random_operations_agree_with_an_array)
{
    for (uint64_t seed = 1; seed <= 100; seed++)
        compare_with_array(seed, false);
}

TEST(random_operations_on_colliding_keys_agree_with_an_array)
{
    for (uint64_t seed = 1; seed <= 100; seed++)
        compare_with_array(seed, true);
}

TEST(a_hundred_thousand_keys_are_found_and_the_table_stays_small)
{
    enum { N = 100000 };
    wefti_map_t m = {0};
    for (uint64_t k = 0; k < N; k++)
        CHECK_OK(wefti_map_put(&m, k << 32, &some[k % 1000]));
    CHECK(m.mask + 1 <= 4 * N);
    for (uint64_t k = 0; k < N; k++)
        CHECK(wefti_map_get(&m, k << 32) == &some[k % 1000]);
    for (uint64_t k = 0; k < N; k++)
        CHECK(wefti_map_take(&m, k << 32) == &some[k % 1000]);
    CHECK_EQ(m.n, 0);
    wefti_map_free(&m);
}

TEST(hashes_of_bytes_depend_on_every_byte_and_on_the_length)
{
    unsigned char buf[40] = {0};
    uint64_t seen[40 + 40 * 8];
    size_t n = 0;
    for (size_t len = 0; len < sizeof buf; len++)
        seen[n++] = wefti_hash_bytes(buf, len); /* zeroes of different lengths differ */
    for (size_t bit = 0; bit < sizeof buf * 8; bit++) {
        buf[bit / 8] ^= (unsigned char)(1 << bit % 8);
        seen[n++] = wefti_hash_bytes(buf, sizeof buf);
        buf[bit / 8] = 0;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            CHECK(seen[i] != seen[j]);
    char shifted[24] = "xhello, wide world";
    CHECK(wefti_hash_bytes(shifted + 1, 17) == wefti_hash_bytes("hello, wide world", 17)); /* alignment does not matter */
}
