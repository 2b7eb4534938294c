/* conn/auth.c - mutual authentication by a pre-shared key, with libsodium.
 *
 * Both sides hash the two hellos, nonces included, into a transcript, and derive a session key from the pre-shared key (keyed
 * BLAKE2b) and both nonces. Each side has a chain: a hash that begins with the transcript and the side, and takes in every
 * message that side sends after the dialler's hello. A message ends with HMAC-SHA512-256 of the chain under the session key.
 * So each proof covers the other side's fresh nonce (no replay), the side (no reflection), and all that this side said before
 * (no reordering, no cutting). The chains are separate because both sides may speak at once.
 *
 * Without a key there is only the transcript, which never repeats. The secret of the session's lanes is made of both
 * (fabric/tcp).
 *
 * Promise: without the key nobody gets past the hello, in either role, and no byte of a later message can be changed.
 * tests/wire/conn_auth.c, tests/fault/conn_wrong_key.c and tests/unit/conn_hello.c (vectors). */
#include "conn/auth.h"

#include <sodium.h>
#include <string.h>

#include "base/mac.h"

_Static_assert(WEFTI_MAC_SIZE == crypto_auth_BYTES, "MAC size");
_Static_assert(crypto_auth_KEYBYTES == 32, "session key size");

static const char session_label[] = "weft hello 1 session";

static void hash_part(crypto_generichash_state *s, const void *p, size_t n)
{
    uint8_t len[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    crypto_generichash_update(s, len, sizeof len);
    crypto_generichash_update(s, p, n);
}

void wefti_auth_begin(wefti_auth_t *a, const uint8_t *key, const void *hello, size_t hello_len, const void *welcome,
                      size_t welcome_len, const uint8_t *dialler_nonce, const uint8_t *listener_nonce)
{
    crypto_generichash_state s;
    memset(a, 0, sizeof *a);
    crypto_generichash_init(&s, NULL, 0, sizeof a->transcript);
    hash_part(&s, hello, hello_len);
    hash_part(&s, welcome, welcome_len);
    crypto_generichash_final(&s, a->transcript, sizeof a->transcript);
    if (!key)
        return;
    crypto_generichash_init(&s, key, 32, sizeof a->session);
    crypto_generichash_update(&s, (const uint8_t *)session_label, sizeof session_label);
    crypto_generichash_update(&s, dialler_nonce, WEFTI_NONCE_SIZE);
    crypto_generichash_update(&s, listener_nonce, WEFTI_NONCE_SIZE);
    crypto_generichash_final(&s, a->session, sizeof a->session);
    for (int side = 0; side < 2; side++) {
        uint8_t label = (uint8_t)side;
        crypto_generichash_init(&s, NULL, 0, sizeof a->chain[side]);
        hash_part(&s, &label, 1);
        hash_part(&s, hello, hello_len);
        hash_part(&s, welcome, welcome_len);
        crypto_generichash_final(&s, a->chain[side], sizeof a->chain[side]);
    }
    sodium_memzero(&s, sizeof s);
    a->keyed = true;
}

static void chain_add(wefti_auth_t *a, int side, const void *bytes, size_t n)
{
    crypto_generichash_state s;
    crypto_generichash_init(&s, NULL, 0, sizeof a->chain[side]);
    hash_part(&s, a->chain[side], sizeof a->chain[side]);
    hash_part(&s, bytes, n);
    crypto_generichash_final(&s, a->chain[side], sizeof a->chain[side]);
}

size_t wefti_auth_seal(wefti_auth_t *a, int side, void *bytes, size_t n)
{
    if (!a->keyed)
        return n;
    chain_add(a, side, bytes, n);
    crypto_auth((uint8_t *)bytes + n, a->chain[side], sizeof a->chain[side], a->session);
    return n + WEFTI_MAC_SIZE;
}

bool wefti_auth_check(wefti_auth_t *a, int side, const void *bytes, size_t n, size_t *n_out)
{
    if (!a->keyed) {
        *n_out = n;
        return true;
    }
    if (n < WEFTI_MAC_SIZE)
        return false;
    n -= WEFTI_MAC_SIZE;
    chain_add(a, side, bytes, n);
    if (crypto_auth_verify((const uint8_t *)bytes + n, a->chain[side], sizeof a->chain[side], a->session))
        return false;
    *n_out = n;
    return true;
}

void wefti_auth_lane_secret(const wefti_auth_t *a, uint8_t out[32])
{
    memset(out, 0, 32);
    if (a->keyed)
        wefti_mac(a->session, "weft lane", a->transcript, sizeof a->transcript, out);
}

void wefti_auth_wipe(wefti_auth_t *a)
{
    sodium_memzero(a, sizeof *a);
}
