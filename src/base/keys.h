/* base/keys.h - the keys that a runtime accepts, each with the name of whoever proves it.
 *
 * The first is the one that is proved to those whom we call. Who calls says which one he will prove by a hint: a MAC of a number
 * that nobody used before, under that very key. Who does not have the key learns nothing from it, not even that two calls are by
 * the same one; whoever guesses a key needs as long for each guess as with the proof itself. */
#ifndef WEFTI_BASE_KEYS_H
#define WEFTI_BASE_KEYS_H

#include "base/mac.h"

/* WEFT_ANONYMOUS of weft/policy.h: no name, it stands for who has none. */
#define WEFTI_ANONYMOUS "anonymous"

enum { WEFTI_KEYS_MOST = 256, WEFTI_KEY_NAME_MAX = 63, WEFTI_KEY_HINT_SIZE = 16, WEFTI_KEY_PRINT_SIZE = 16 };

typedef struct wefti_key {
    uint8_t secret[WEFTI_SECRET_SIZE];
    uint8_t print[WEFTI_KEY_PRINT_SIZE];   /* of the secret, by which it is known again where only this is kept */
    char name[WEFTI_KEY_NAME_MAX + 1];     /* "": it has none */
} wefti_key_t;

typedef struct wefti_keys {
    unsigned n; /* at least one */
    bool listed; /* they were lines of a list, and not one typed or random key */
    wefti_key_t at[];
} wefti_keys_t;

/* Space for `most` keys; none is there. NULL: no memory. */
wefti_keys_t *wefti_keys_new(unsigned most);
/* One more, behind the others: there is space. `name` has name_len bytes, WEFTI_KEY_NAME_MAX at most. */
void wefti_keys_add(wefti_keys_t *keys, const uint8_t secret[WEFTI_SECRET_SIZE], const char *name, size_t name_len);
wefti_keys_t *wefti_keys_copy(const wefti_keys_t *keys); /* NULL: no memory */
void wefti_keys_free(wefti_keys_t *keys); /* wiped. NULL is allowed */

/* `label`: for what; `fresh`: n bytes that the caller made for this one call. */
void wefti_key_hint(const wefti_key_t *key, const char *label, const void *fresh, size_t n, uint8_t hint[WEFTI_KEY_HINT_SIZE]);
/* The key of a hint; NULL: it is of none. */
const wefti_key_t *wefti_keys_find(const wefti_keys_t *keys, const char *label, const void *fresh, size_t n,
                                   const uint8_t hint[WEFTI_KEY_HINT_SIZE]);
/* Is a key with this print among them, with this name? */
bool wefti_keys_have(const wefti_keys_t *keys, const uint8_t print[WEFTI_KEY_PRINT_SIZE], const char *name);

#endif
