/* registry/entry.c - entries: checked, copied, compared, as bytes; and lists of them.
 *
 * An entry in a file, little-endian:
 *
 *     8 bytes  "weftreg1"
 *     u32      load
 *     u32      length of the data
 *     u16      lengths of service, instance, address; 2 bytes zero
 *     ...      service, instance, address, data; and the file ends there
 *
 * Promise: decoding refuses all bytes that encoding does not make. tests/unit/registry_entry.c, tests/fuzz/registry_entry.c. */
#include <stdio.h>

#include "base/ascii.h"
#include "base/bytes.h"
#include "registry/state.h"

#define MAGIC "weftreg1"

/* --- checking ---------------------------------------------------------------------------------------------------------- */

static bool name_bytes_ok(const char *name, size_t n)
{
    if (!n || n > REG_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!wefti_is_alnum(name[i]) && name[i] != '.' && name[i] != '-' && name[i] != '_')
            return false;
    return true;
}

bool wefti_reg_name_ok(const char *name)
{
    return name && name_bytes_ok(name, strnlen(name, REG_NAME_MAX + 1));
}

weft_status_t wefti_reg_check_service(const char *service)
{
    if (wefti_reg_name_ok(service))
        return WEFT_OK;
    return wefti_fail(WEFT_ERR_INVALID, "a service has a name of 1 to %d letters, digits, '.', '-' and '_'", REG_NAME_MAX);
}

/* It only has to be text here: weft_ep_open() says whether it is an address. */
static bool address_ok(const char *address, size_t n)
{
    if (!n || n > REG_ADDRESS_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (address[i] <= ' ' || address[i] > '~')
            return false;
    return true;
}

static reg_entry_t *entry_alloc(uint32_t load, const void *data, size_t data_len)
{
    reg_entry_t *e = (reg_entry_t *)wefti_calloc(1, sizeof *e + data_len);
    if (!e)
        return NULL;
    atomic_init(&e->refs, 1);
    e->load = load;
    e->data_len = (uint32_t)data_len;
    if (data_len)
        memcpy(e->data, data, data_len);
    return e;
}

weft_status_t wefti_reg_entry_new(const weft_entry_t *entry, const char *instance, reg_entry_t **entry_out)
{
    weft_status_t st = wefti_reg_check_service(entry->service);
    if (st)
        return st;
    if (!wefti_reg_name_ok(instance))
        return wefti_fail(WEFT_ERR_INVALID, "an instance has a name of 1 to %d letters, digits, '.', '-' and '_'", REG_NAME_MAX);
    size_t address_len = entry->address ? strnlen(entry->address, REG_ADDRESS_MAX + 1) : 0;
    if (!address_ok(entry->address, address_len))
        return wefti_fail(WEFT_ERR_INVALID, "an address is 1 to %d printable characters without blanks", REG_ADDRESS_MAX);
    if (entry->load > REG_LOAD_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "a load of %u is not between 0 and %d", (unsigned)entry->load, REG_LOAD_MAX);
    if (entry->data_len > REG_DATA_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "%zu bytes of data are more than %d", entry->data_len, REG_DATA_MAX);
    if (entry->data_len && !entry->data)
        return wefti_fail(WEFT_ERR_INVALID, "there are to be %zu bytes of data, and none are given", entry->data_len);
    reg_entry_t *e = entry_alloc(entry->load, entry->data, entry->data_len);
    if (!e)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an entry of %zu bytes", entry->data_len);
    memcpy(e->service, entry->service, strlen(entry->service));
    memcpy(e->instance, instance, strlen(instance));
    memcpy(e->address, entry->address, address_len);
    *entry_out = e;
    return WEFT_OK;
}

void wefti_reg_entry_unref(reg_entry_t *e)
{
    if (e && atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1)
        wefti_free(e);
}

weft_entry_t wefti_reg_entry_view(const reg_entry_t *e)
{
    weft_entry_t v = WEFT_ENTRY_INIT;
    v.service = e->service;
    v.instance = e->instance;
    v.address = e->address;
    v.load = e->load;
    v.data = e->data_len ? e->data : NULL;
    v.data_len = e->data_len;
    return v;
}

int wefti_reg_entry_order(const reg_entry_t *a, const reg_entry_t *b)
{
    int order = strcmp(a->service, b->service);
    return order ? order : strcmp(a->instance, b->instance);
}

bool wefti_reg_entry_same(const reg_entry_t *a, const reg_entry_t *b)
{
    return a == b || (!wefti_reg_entry_order(a, b) && a->load == b->load && a->data_len == b->data_len &&
                      !strcmp(a->address, b->address) && !memcmp(a->data, b->data, a->data_len));
}

void wefti_reg_entry_name(const reg_entry_t *e, char name[REG_FULL_NAME])
{
    snprintf(name, REG_FULL_NAME, "%s@%s", e->service, e->instance);
}

/* --- bytes ------------------------------------------------------------------------------------------------------------- */

size_t wefti_reg_entry_encode(const reg_entry_t *e, uint8_t *bytes, size_t cap)
{
    wefti_writer_t w = wefti_writer(bytes, cap);
    size_t service = strlen(e->service), instance = strlen(e->instance), address = strlen(e->address);
    wefti_put_bytes(&w, MAGIC, 8);
    wefti_put_u32(&w, e->load);
    wefti_put_u32(&w, e->data_len);
    wefti_put_u16(&w, (uint16_t)service);
    wefti_put_u16(&w, (uint16_t)instance);
    wefti_put_u16(&w, (uint16_t)address);
    wefti_put_u16(&w, 0);
    wefti_put_bytes(&w, e->service, service);
    wefti_put_bytes(&w, e->instance, instance);
    wefti_put_bytes(&w, e->address, address);
    wefti_put_bytes(&w, e->data, e->data_len);
    assert(!w.bad);
    return (size_t)(w.at - bytes);
}

weft_status_t wefti_reg_entry_decode(const void *bytes, size_t n, reg_entry_t **entry_out)
{
    wefti_reader_t r = wefti_reader(bytes, n);
    const void *magic = wefti_get_bytes(&r, 8);
    uint32_t load = wefti_get_u32(&r), data_len = wefti_get_u32(&r);
    size_t service_len = wefti_get_u16(&r), instance_len = wefti_get_u16(&r), address_len = wefti_get_u16(&r);
    uint16_t zero = wefti_get_u16(&r);
    const char *service = (const char *)wefti_get_bytes(&r, service_len),
               *instance = (const char *)wefti_get_bytes(&r, instance_len),
               *address = (const char *)wefti_get_bytes(&r, address_len);
    const void *data = wefti_get_bytes(&r, data_len);
    if (r.bad || wefti_reader_left(&r) || memcmp(magic, MAGIC, 8) || zero)
        return WEFT_ERR_PROTOCOL;
    if (load > REG_LOAD_MAX || data_len > REG_DATA_MAX || !name_bytes_ok(service, service_len) ||
        !name_bytes_ok(instance, instance_len) || !address_ok(address, address_len))
        return WEFT_ERR_PROTOCOL;
    reg_entry_t *e = entry_alloc(load, data, data_len);
    if (!e)
        return WEFT_ERR_NOMEM;
    memcpy(e->service, service, service_len);
    memcpy(e->instance, instance, instance_len);
    memcpy(e->address, address, address_len);
    *entry_out = e;
    return WEFT_OK;
}

weft_status_t wefti_reg_entry_decode_as(const char *name, const void *bytes, size_t n, reg_entry_t **entry_out)
{
    char right[REG_FULL_NAME];
    reg_entry_t *e;
    weft_status_t st = wefti_reg_entry_decode(bytes, n, &e);
    if (st)
        return st;
    wefti_reg_entry_name(e, right);
    if (strcmp(name, right) != 0) {
        wefti_reg_entry_unref(e);
        return WEFT_ERR_PROTOCOL;
    }
    *entry_out = e;
    return WEFT_OK;
}

/* --- lists ------------------------------------------------------------------------------------------------------------- */

reg_found_t *wefti_reg_found_new(void)
{
    reg_found_t *f = (reg_found_t *)wefti_calloc(1, sizeof *f);
    if (f)
        atomic_init(&f->refs, 1);
    return f;
}

weft_status_t wefti_reg_found_add(reg_found_t *f, reg_entry_t *e)
{
    if (!wefti_grow(&f->at, &f->cap, f->n + 1, sizeof(reg_entry_t *))) {
        wefti_reg_entry_unref(e);
        return WEFT_ERR_NOMEM;
    }
    f->at[f->n++] = e;
    return WEFT_OK;
}

weft_status_t wefti_reg_found_add_all(reg_found_t *f, const reg_found_t *more)
{
    weft_status_t st = WEFT_OK;
    for (size_t i = 0; !st && i < more->n; i++)
        st = wefti_reg_found_add(f, wefti_reg_entry_ref(more->at[i]));
    return st;
}

static int by_name(const void *a, const void *b)
{
    return wefti_reg_entry_order(*(reg_entry_t *const *)a, *(reg_entry_t *const *)b);
}

void wefti_reg_found_sort(reg_found_t *f)
{
    size_t kept = 0;
    if (f->n)
        qsort(f->at, f->n, sizeof *f->at, by_name);
    /* a directory that changes while it is read may show a name twice */
    for (size_t i = 0; i < f->n; i++)
        if (kept && !wefti_reg_entry_order(f->at[kept - 1], f->at[i]))
            wefti_reg_entry_unref(f->at[i]);
        else
            f->at[kept++] = f->at[i];
    f->n = kept;
}

bool wefti_reg_found_same(const reg_found_t *a, const reg_found_t *b)
{
    if (!a || !b || a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!wefti_reg_entry_same(a->at[i], b->at[i]))
            return false;
    return true;
}

void wefti_reg_found_unref(reg_found_t *f)
{
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < f->n; i++)
        wefti_reg_entry_unref(f->at[i]);
    wefti_free(f->at);
    wefti_free(f);
}
