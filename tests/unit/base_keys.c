/* tests/unit/base_keys.c - a list of keys: one is found by its hint, and by nothing else. */
#include <string.h>

#include "base/keys.h"
#include "test.h"

static wefti_keys_t *three(void)
{
    wefti_keys_t *keys = wefti_keys_new(3);
    for (uint8_t i = 0; i < 3; i++) {
        uint8_t secret[WEFTI_SECRET_SIZE] = {i};
        char name[3] = {'k', (char)('0' + i)};
        wefti_keys_add(keys, secret, name, 2);
    }
    return keys;
}

TEST(a_key_is_found_by_the_hint_of_its_own_number_and_label)
{
    wefti_keys_t *keys = three();
    uint8_t hint[WEFTI_KEY_HINT_SIZE], other[WEFTI_KEY_HINT_SIZE];
    for (unsigned i = 0; i < 3; i++) {
        wefti_key_hint(&keys->at[i], "label", "fresh", 5, hint);
        CHECK(wefti_keys_find(keys, "label", "fresh", 5, hint) == &keys->at[i]);
        CHECK(!wefti_keys_find(keys, "label", "Fresh", 5, hint));
        CHECK(!wefti_keys_find(keys, "labels", "fresh", 5, hint));
        CHECK(!wefti_keys_find(NULL, "label", "fresh", 5, hint));
        wefti_key_hint(&keys->at[i], "label", "later", 5, other);
        CHECK(memcmp(hint, other, sizeof hint)); /* two calls by one key do not look alike */
        for (unsigned bit = 0; bit < 8 * sizeof hint; bit++) {
            hint[bit / 8] ^= (uint8_t)(1u << bit % 8);
            CHECK(!wefti_keys_find(keys, "label", "fresh", 5, hint));
            hint[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
    wefti_keys_free(keys);
    wefti_keys_free(NULL);
}

TEST(a_key_is_known_again_by_print_and_name_together)
{
    wefti_keys_t *keys = three();
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < 3; k++)
            CHECK_EQ(wefti_keys_have(keys, keys->at[i].print, keys->at[k].name), i == k);
    CHECK(memcmp(keys->at[0].print, keys->at[1].print, WEFTI_KEY_PRINT_SIZE));
    CHECK(!wefti_keys_have(NULL, keys->at[0].print, ""));
    wefti_keys_free(keys);
}
