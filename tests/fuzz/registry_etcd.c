/* tests/fuzz/registry_etcd.c - any bytes are a reply of etcd's or none; what it tells of is an entry under its own key. */
#include <stdlib.h>
#include <string.h>

#include "registry/etcd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static weft_status_t see(const etcd_kv_t *kv, void *user)
{
    must(!kv->service == !kv->instance);
    if (kv->service)
        must(wefti_reg_name_ok(kv->service) && wefti_reg_name_ok(kv->instance));
    if (kv->entry)
        must(!strcmp(kv->entry->service, kv->service) && !strcmp(kv->entry->instance, kv->instance));
    ++*(size_t *)user;
    return WEFT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char body[ETCD_BODY_MAX];
    char *text = malloc(size ? size : 1);
    etcd_reply_t r;
    size_t told = 0;
    must(text != NULL);
    if (size)
        memcpy(text, data, size);
    if (!wefti_etcd_read(text, size, see, &told, &r)) {
        must(told == r.keys);
        must(r.start_len <= sizeof r.start && strnlen(r.message, sizeof r.message) < sizeof r.message);
        if (r.start_len) /* it can be asked for */
            must(wefti_etcd_range(body, r.start, r.start_len, 1, r.revision) < sizeof body);
    }
    free(text);
    return 0;
}
