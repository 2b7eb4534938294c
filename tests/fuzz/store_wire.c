/* tests/fuzz/store_wire.c - any bytes are no request and no reply, or one that comes back from its own bytes.
 *
 * They are copied to exactly their length, so that a sanitizer sees the first byte read past their end. */
#include "store/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static void try_request(const uint8_t *in, size_t n)
{
    store_request_t q;
    uint8_t out[STORE_REQUEST_MAX];
    if (!wefti_store_get_request(in, n, &q) || q.kind >= STORE_KINDS)
        return;
    must(!q.name_len || (q.name >= (const char *)in && q.name + q.name_len <= (const char *)in + n));
    must(wefti_store_put_request(&q, out, sizeof out) == n && !memcmp(in, out, n));
    wefti_store_name_ok(q.name, q.name_len);
}

static void try_reply(const uint8_t *in, size_t n)
{
    store_reply_t p;
    store_entry_t e;
    if (!wefti_store_get_reply(in, n, &p))
        return;
    must(p.status <= 0 && p.key_len <= WEFT_REGION_KEY_MAX && p.entries_len <= n);
    wefti_reader_t r = wefti_reader(p.entries, p.entries_len);
    while (wefti_store_get_entry(&r, &e))
        must(e.name_len && wefti_store_name_ok(e.name, e.name_len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *in = malloc(size ? size : 1);
    must(in != NULL);
    if (size)
        memcpy(in, data, size);
    try_request(in, size);
    try_reply(in, size);
    free(in);
    return 0;
}
