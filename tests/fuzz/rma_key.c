/* tests/fuzz/rma_key.c - any bytes are refused with words, or are a region's key that says only what one can say;
 * and without the owner's secret, none is opened. */
#include <sodium.h>

#include "base/uri.h"
#include "rma/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAC 32u

static void must(int fact)
{
    if (!fact)
        abort();
}

static void sensible(const weft_region_key_info_t *info)
{
    must(info->region && info->generation && info->offset + info->len >= info->len);
    must(info->rights && !(info->rights & ~WEFT_RMA_ALL));
    must(strnlen(info->owner, sizeof info->owner) < sizeof info->owner);
    for (const char *at = info->owner; *at;) {
        wefti_uri_t uri;
        must(!wefti_uri_parse(&at, &uri));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rma_state_t rs; /* the corpus is of this key and this instance */
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    rma_claim_t claim;
    must(sodium_init() >= 0);
    memset(rs.secret, 'k', sizeof rs.secret);
    memset(rs.instance, 'i', sizeof rs.instance);
    uint8_t *in = malloc(size ? size : 1); /* so that a sanitizer sees a step too far */
    must(in != NULL);
    if (size)
        memcpy(in, data, size);
    weft_status_t read = weft_region_key_read(in, size, &info), opened = wefti_rma_key_open(&rs, in, size, &claim);
    if (read) {
        must(read == WEFT_ERR_INVALID && opened == WEFT_ERR_INVALID && *weft_last_error());
    } else {
        uint8_t mac[MAC];
        bool ours = !memcmp(in + 8, rs.instance, sizeof rs.instance);
        sensible(&info);
        must(size > MAC && size <= WEFT_REGION_KEY_MAX);
        crypto_generichash(mac, MAC, in, size - MAC, rs.secret, sizeof rs.secret);
        bool genuine = !memcmp(mac, in + size - MAC, MAC);
        must(opened == (!ours ? WEFT_ERR_STALE : genuine ? WEFT_OK : WEFT_ERR_AUTH));
        /* what only its owner could make: it is opened, and says what it said to the reader */
        memcpy(in + 8, rs.instance, sizeof rs.instance);
        crypto_generichash(in + size - MAC, MAC, in, size - MAC, rs.secret, sizeof rs.secret);
        must(!wefti_rma_key_open(&rs, in, size, &claim));
        must(claim.region == info.region && claim.generation == info.generation && claim.offset == info.offset);
        must(claim.len == info.len && claim.rights == info.rights);
        in[size - 1] ^= 1;
        must(wefti_rma_key_open(&rs, in, size, &claim) == WEFT_ERR_AUTH);
    }
    free(in);
    return 0;
}
