/* base/mac.c - a keyed hash with a label. See mac.h. tests/unit/base_mac.c has the vectors. */
#include "base/mac.h"

#include <sodium.h>
#include <string.h>

_Static_assert(WEFTI_SECRET_SIZE == crypto_generichash_BYTES, "the size of a hash");
_Static_assert(WEFTI_SECRET_SIZE == crypto_generichash_KEYBYTES, "the size of its key");

void wefti_mac(const uint8_t key[WEFTI_SECRET_SIZE], const char *label, const void *bytes, size_t n,
               uint8_t out[WEFTI_SECRET_SIZE])
{
    crypto_generichash_state s;
    crypto_generichash_init(&s, key, WEFTI_SECRET_SIZE, WEFTI_SECRET_SIZE);
    crypto_generichash_update(&s, (const uint8_t *)label, strlen(label) + 1);
    crypto_generichash_update(&s, bytes, n);
    crypto_generichash_final(&s, out, WEFTI_SECRET_SIZE);
    sodium_memzero(&s, sizeof s);
}

bool wefti_mac_same(const void *a, const void *b, size_t n)
{
    return !sodium_memcmp(a, b, n);
}
