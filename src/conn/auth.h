/* conn/auth.h - proving the pre-shared key during the hello, and the MAC on every message after it. See auth.c. */
#ifndef WEFTI_CONN_AUTH_H
#define WEFTI_CONN_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conn/hello.h"

typedef struct wefti_auth {
    bool keyed; /* a session key is there: seal and check */
    uint8_t transcript[32]; /* hash over both hellos, with and without a key */
    uint8_t session[32];
    uint8_t chain[2][32]; /* per side: hash over everything it has said */
} wefti_auth_t;

/* Once both hellos are known (as bytes, the welcome without its MAC). key NULL: nothing will be sealed. */
void wefti_auth_begin(wefti_auth_t *a, const uint8_t *key, const void *hello, size_t hello_len, const void *welcome,
                      size_t welcome_len, const uint8_t *dialler_nonce, const uint8_t *listener_nonce);
/* Append the MAC of `side`'s next message to its n bytes (there is space); the length with it. */
size_t wefti_auth_seal(wefti_auth_t *a, int side, void *bytes, size_t n);
/* Check `side`'s next message, n bytes with MAC. False: it is not by someone who has the key, or out of order. *n_out: without
 * it. */
bool wefti_auth_check(wefti_auth_t *a, int side, const void *bytes, size_t n, size_t *n_out);
/* A secret for the lanes of this session; zeroes without a key. */
void wefti_auth_lane_secret(const wefti_auth_t *a, uint8_t out[32]);
void wefti_auth_wipe(wefti_auth_t *a);

#endif
