/* base/mac.h - a keyed hash with a label: how two sides prove that they have the same secret.
 *
 * BLAKE2b with 32 bytes (libsodium's crypto_generichash) over the label with its zero and the bytes. Each purpose has its own
 * label, so that a proof for one is none for another. Any thread. */
#ifndef WEFTI_BASE_MAC_H
#define WEFTI_BASE_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEFTI_SECRET_SIZE 32 /* bytes of a key, and of a MAC */

void wefti_mac(const uint8_t key[WEFTI_SECRET_SIZE], const char *label, const void *bytes, size_t n,
               uint8_t out[WEFTI_SECRET_SIZE]);
/* Are these the same? Takes a time that does not depend on where they differ. */
bool wefti_mac_same(const void *a, const void *b, size_t n);

#endif
