/* core/key.h - from what a program or a file has as its pre-shared key to the 32 bytes that the hello is proved with. */
#ifndef WEFTI_CORE_KEY_H
#define WEFTI_CORE_KEY_H

#include "core/core.h"

enum { WEFTI_KEY_SIZE = 32, WEFTI_KEY_LEAST = 16, WEFTI_KEY_MOST = 65536 };

/* The key that these bytes mean. `random`: they are WEFTI_KEY_SIZE random bytes, and the key themselves; else they are as a key
 * file has them. `whose` begins the sentence of an error: "the key". WEFT_ERR_INVALID, _NOMEM. Any thread. */
weft_status_t wefti_key_make(const char *whose, const void *bytes, size_t n, bool random, uint8_t key_out[WEFTI_KEY_SIZE]);
/* The key that is in a file. WEFT_ERR_INVALID, _NOMEM, _LIMIT, _SYSTEM. Any thread. */
weft_status_t wefti_key_read(const char *path, uint8_t key_out[WEFTI_KEY_SIZE]);
/* How often a key was stretched in this process, for tests. */
uint64_t wefti_key_stretches(void);

#endif
