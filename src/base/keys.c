/* base/keys.c - the keys that a runtime accepts. See keys.h. tests/unit/base_keys.c. */
#include "base/keys.h"

#include <string.h>

#include "base/alloc.h"

wefti_keys_t *wefti_keys_new(unsigned most)
{
    return wefti_calloc(1, sizeof(wefti_keys_t) + most * sizeof(wefti_key_t));
}

void wefti_keys_add(wefti_keys_t *keys, const uint8_t secret[WEFTI_SECRET_SIZE], const char *name, size_t name_len)
{
    wefti_key_t *key = &keys->at[keys->n++];
    uint8_t print[WEFTI_SECRET_SIZE];
    memcpy(key->secret, secret, sizeof key->secret);
    wefti_mac(secret, "weft key print", "", 0, print);
    memcpy(key->print, print, sizeof key->print);
    memcpy(key->name, name, name_len);
    key->name[name_len] = 0;
}

wefti_keys_t *wefti_keys_copy(const wefti_keys_t *keys)
{
    wefti_keys_t *copy = wefti_keys_new(keys->n);
    if (copy)
        memcpy(copy, keys, sizeof *keys + keys->n * sizeof *keys->at);
    return copy;
}

void wefti_keys_free(wefti_keys_t *keys)
{
    if (!keys)
        return;
    explicit_bzero(keys->at, keys->n * sizeof *keys->at);
    wefti_free(keys);
}

void wefti_key_hint(const wefti_key_t *key, const char *label, const void *fresh, size_t n, uint8_t hint[WEFTI_KEY_HINT_SIZE])
{
    uint8_t mac[WEFTI_SECRET_SIZE];
    wefti_mac(key->secret, label, fresh, n, mac);
    memcpy(hint, mac, WEFTI_KEY_HINT_SIZE);
}

const wefti_key_t *wefti_keys_find(const wefti_keys_t *keys, const char *label, const void *fresh, size_t n,
                                   const uint8_t hint[WEFTI_KEY_HINT_SIZE])
{
    const wefti_key_t *found = NULL;
    uint8_t own[WEFTI_KEY_HINT_SIZE];
    for (unsigned i = 0; keys && i < keys->n; i++) { /* all of them: its time does not say which one */
        wefti_key_hint(&keys->at[i], label, fresh, n, own);
        if (wefti_mac_same(own, hint, sizeof own))
            found = &keys->at[i];
    }
    return found;
}

bool wefti_keys_have(const wefti_keys_t *keys, const uint8_t print[WEFTI_KEY_PRINT_SIZE], const char *name)
{
    for (unsigned i = 0; keys && i < keys->n; i++)
        if (!memcmp(keys->at[i].print, print, WEFTI_KEY_PRINT_SIZE) && !strcmp(keys->at[i].name, name))
            return true;
    return false;
}
