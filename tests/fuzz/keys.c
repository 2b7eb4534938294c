/* tests/fuzz/keys.c - any bytes of a key file are a typed key, or refused with words, or a list of keys that is the same when it
 * is written out again. Typed keys are not stretched here: that takes long. */
#include "core/key.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static char *written(const wefti_keys_t *keys)
{
    char hex[2 * WEFTI_KEY_SIZE + 1], *text = calloc(keys->n, sizeof hex + WEFTI_KEY_NAME_MAX + 16), *at = text;
    must(text != NULL);
    for (unsigned i = 0; i < keys->n; i++)
        at += sprintf(at, "weft-key-1 %s %s\n", sodium_bin2hex(hex, sizeof hex, keys->at[i].secret, WEFTI_KEY_SIZE),
                      keys->at[i].name);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wefti_keys_t *keys, *again;
    uint8_t *in = malloc(size ? size : 1); /* exactly its length, for a sanitizer */
    must(in != NULL);
    if (size)
        memcpy(in, data, size);
    if (wefti_keys_are_list(in, size)) {
        weft_status_t st = wefti_keys_make("the key", in, size, false, &keys);
        must(st == WEFT_OK || (st == WEFT_ERR_INVALID && *weft_last_error()));
        if (!st) {
            must(keys->n >= 1 && keys->n <= WEFTI_KEYS_MOST && keys->listed);
            char *text = written(keys);
            must(!wefti_keys_make("the key", text, strlen(text), false, &again) && again->n == keys->n);
            must(!memcmp(again->at, keys->at, keys->n * sizeof *keys->at));
            free(text);
            wefti_keys_free(again);
            wefti_keys_free(keys);
        }
    }
    free(in);
    return 0;
}
