/* core/key.h - from what a program or a file has as its pre-shared key to the 32 bytes that the hello is proved with. */
#ifndef WEFTI_CORE_KEY_H
#define WEFTI_CORE_KEY_H

#include "base/keys.h"
#include "core/core.h"

enum { WEFTI_KEY_SIZE = WEFTI_SECRET_SIZE, WEFTI_KEY_LEAST = 16, WEFTI_KEY_MOST = 65536 };

/* The keys that these bytes mean. `random`: they are WEFTI_KEY_SIZE random bytes, and the one key themselves; else they are as a
 * key file has them. `whose` begins the sentence of an error: "the key". *out is the caller's, for wefti_keys_free().
 * WEFT_ERR_INVALID, _NOMEM. Any thread. */
weft_status_t wefti_keys_make(const char *whose, const void *bytes, size_t n, bool random, wefti_keys_t **out);
/* The keys that are in a file. `listed`: it had a list before, so a text that is none is refused: somebody is writing it.
 * WEFT_ERR_INVALID, _NOMEM, _LIMIT, _SYSTEM. Any thread. */
weft_status_t wefti_keys_read(const char *path, bool listed, wefti_keys_t **out);
/* Are these bytes a list of keys, as `weft key new` writes them, or what was to be one? Else they are a typed key. */
bool wefti_keys_are_list(const void *bytes, size_t n);
/* How often a key was stretched in this process, for tests. */
uint64_t wefti_key_stretches(void);

#endif
