/* tests/fuzz/registry_entry.c - any bytes are no entry of a registry, or one that comes back from its own bytes. */
#include <stdlib.h>
#include <string.h>

#include "registry/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t again[REG_BYTES_MAX];
    uint8_t *in = malloc(size ? size : 1);
    reg_entry_t *e = NULL;
    must(in != NULL);
    if (size)
        memcpy(in, data, size);
    if (wefti_reg_entry_decode(in, size, &e)) {
        must(!e);
    } else {
        must(wefti_reg_entry_encode(e, again, sizeof again) == size && !memcmp(in, again, size));
        must(wefti_reg_name_ok(e->service) && wefti_reg_name_ok(e->instance) && *e->address && e->load <= REG_LOAD_MAX);
        wefti_reg_entry_unref(e);
    }
    free(in);
    return 0;
}
