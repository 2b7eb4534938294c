/* tests/unit/base_mac.c - a MAC is the keyed BLAKE2b of label, zero and bytes, and each of the three matters. */
#include "base/mac.h"

#include <sodium.h>

#include "test.h"

static const uint8_t key[WEFTI_SECRET_SIZE] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                               16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

TEST(a_mac_is_the_one_of_the_document)
{
    uint8_t out[WEFTI_SECRET_SIZE];
    char hex[2 * WEFTI_SECRET_SIZE + 1];
    wefti_mac(key, "weft test", "some bytes", 10, out);
    CHECK_STR(sodium_bin2hex(hex, sizeof hex, out, sizeof out),
              "4fe4cb2f6f1148d15b5747bd9eb874a48f7fe6af2d8254b12b37a7adf645b2f0");
    wefti_mac(key, "weft test", "", 0, out);
    CHECK_STR(sodium_bin2hex(hex, sizeof hex, out, sizeof out),
              "bd0039c2cf190270fcb83a6eb04af968d0bc1a3da0ae7d447f5d195f33d94952");
}

TEST(another_key_label_or_byte_gives_another_mac)
{
    uint8_t a[WEFTI_SECRET_SIZE], b[WEFTI_SECRET_SIZE], other[WEFTI_SECRET_SIZE];
    memcpy(other, key, sizeof other);
    other[31] ^= 1;
    wefti_mac(key, "one", "two", 3, a);
    CHECK(wefti_mac_same(a, a, sizeof a));
    wefti_mac(other, "one", "two", 3, b);
    CHECK(!wefti_mac_same(a, b, sizeof a));
    wefti_mac(key, "onet", "wo", 2, b); /* the zero between them */
    CHECK(!wefti_mac_same(a, b, sizeof a));
    wefti_mac(key, "one", "twp", 3, b);
    CHECK(!wefti_mac_same(a, b, sizeof a));
    wefti_mac(key, "one", "two", 3, b);
    CHECK(wefti_mac_same(a, b, sizeof a));
}
