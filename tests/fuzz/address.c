/* tests/fuzz/address.c - any bytes are refused with words, or are an address blob whose parts can all be called. */
#include <stdlib.h>
#include <string.h>

#include "base/uri.h"
#include "conn/ep.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *in = malloc(size ? size : 1);
    wefti_blob_t b, again;
    must(in != NULL);
    if (size)
        memcpy(in, data, size);
    if (wefti_blob_decode(in, size, &b)) {
        must(*weft_last_error() != 0);
    } else {
        uint8_t *out = malloc(size), elsewhere[WEFTI_UUID_SIZE];
        char *uris = NULL;
        must(out && wefti_blob_encode(b.uuid, b.host, b.uris, out, size) == size && !memcmp(in, out, size));
        must(!wefti_blob_decode(out, size, &again) && !strcmp(again.uris, b.uris));
        free(out);
        memcpy(elsewhere, b.host, sizeof elsewhere);
        elsewhere[0] ^= 1;
        for (int here = 0; here < 2; here++) {
            if (wefti_blob_targets(&b, here ? b.host : elsewhere, &uris))
                continue;
            for (const char *at = uris; *at;) {
                wefti_uri_t uri;
                must(!wefti_uri_parse(&at, &uri) && (here || wefti_uri_has_port(&uri)));
            }
            wefti_free(uris);
        }
    }
    free(in);
    return 0;
}
