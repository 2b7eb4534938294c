/* registry/etcd_wire.c - requests to etcd's JSON gateway as text, and what its replies say.
 *
 * An entry is the key /weft/SERVICE/INSTANCE with the bytes of entry.c as its value; the gateway has both in base64. Replies of
 * all kinds are read by one walk, since their members have the same meaning wherever they are: a range has "kvs", a watch
 * "events", a transaction "responses" with ranges in them, streams a "result" around each.
 *
 * Promise: any bytes are a reply or refused. What is told of is an entry under its own key, or a key whose entry is not there.
 * tests/unit/registry_etcd.c, tests/fuzz/registry_etcd.c. */
#include <assert.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/ascii.h"
#include "base/json.h"
#include "registry/etcd.h"

#define BASE64 sodium_base64_VARIANT_ORIGINAL

/* --- replies ----------------------------------------------------------------------------------------------------------------- */

typedef struct walk {
    wefti_json_t j;
    etcd_reply_t *reply;
    etcd_kv_fn fn;
    void *user;
    weft_status_t st;
    uint8_t *bytes; /* REG_BYTES_MAX of them */
} walk_t;

/* At most cap bytes; more, or no base64, is SIZE_MAX. */
static size_t decode(const wefti_json_text_t *t, void *bytes, size_t cap)
{
    size_t n;
    if (!t->n)
        return 0;
    if (t->n / 4 * 3 > cap + 2 || sodium_base642bin((unsigned char *)bytes, cap, t->p, t->n, NULL, &n, NULL, BASE64))
        return SIZE_MAX;
    return n;
}

/* Cuts "/weft/SERVICE/INSTANCE" up. */
static bool names_of(char *key, size_t n, etcd_kv_t *kv)
{
    size_t prefix = sizeof ETCD_PREFIX - 1;
    if (n >= ETCD_KEY_MAX || strlen(key) != n || strncmp(key, ETCD_PREFIX, prefix) != 0)
        return false;
    char *service = key + prefix, *slash = strchr(service, '/');
    if (!slash)
        return false;
    *slash = 0;
    if (!wefti_reg_name_ok(service) || !wefti_reg_name_ok(slash + 1))
        return false;
    kv->service = service;
    kv->instance = slash + 1;
    return true;
}

/* The next page begins behind this key. Behind one that is longer than any of ours, and what begins like it, that is. */
static void turn_page(etcd_reply_t *r, const wefti_json_text_t *key64)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char *p = (unsigned char *)r->start;
    size_t n = decode(key64, p, ETCD_START_MAX);
    r->start_len = 0;
    if (n != SIZE_MAX) {
        p[n] = 0;
        r->start_len = n + 1;
        return;
    }
    for (n = 0; n < ETCD_START_MAX / 3 * 3 && n / 3 * 4 + 4 <= key64->n; n += 3) {
        uint32_t bits = 0;
        for (size_t i = 0; i < 4; i++) {
            char c = key64->p[n / 3 * 4 + i];
            const char *at = c ? strchr(alphabet, c) : NULL;
            if (!at)
                return;
            bits = bits << 6 | (uint32_t)(at - alphabet);
        }
        p[n] = (unsigned char)(bits >> 16);
        p[n + 1] = (unsigned char)(bits >> 8);
        p[n + 2] = (unsigned char)bits;
    }
    while (n && p[n - 1] == 0xff)
        n--;
    if (n)
        p[n - 1]++;
    r->start_len = n;
}

/* A key and its value as they came. */
typedef struct raw {
    wefti_json_text_t key, value;
    int64_t revision, lease;
} raw_t;

static raw_t read_kv(wefti_json_t *j)
{
    raw_t raw = {{NULL, 0}, {NULL, 0}, 0, 0};
    wefti_json_text_t key;
    for (wefti_json_object(j); wefti_json_member(j, &key);) {
        if (wefti_json_is(&key, "key"))
            raw.key = wefti_json_string(j);
        else if (wefti_json_is(&key, "value"))
            raw.value = wefti_json_string(j);
        else if (wefti_json_is(&key, "mod_revision"))
            raw.revision = wefti_json_i64(j);
        else if (wefti_json_is(&key, "lease"))
            raw.lease = wefti_json_i64(j);
        else
            wefti_json_skip(j);
    }
    return raw;
}

static weft_status_t read_entry(walk_t *w, const wefti_json_text_t *value, etcd_kv_t *kv)
{
    if (!w->bytes)
        w->bytes = (uint8_t *)wefti_malloc(REG_BYTES_MAX);
    if (!w->bytes)
        return WEFT_ERR_NOMEM;
    kv->bytes = decode(value, w->bytes, REG_BYTES_MAX);
    if (kv->bytes == SIZE_MAX)
        return WEFT_OK; /* no entry is that long */
    if (wefti_reg_entry_decode(w->bytes, kv->bytes, &kv->entry) == WEFT_ERR_NOMEM)
        return WEFT_ERR_NOMEM;
    if (kv->entry && (strcmp(kv->entry->service, kv->service) != 0 || strcmp(kv->entry->instance, kv->instance) != 0)) {
        wefti_reg_entry_unref(kv->entry); /* one that was put under the key of another */
        kv->entry = NULL;
    }
    return WEFT_OK;
}

static void tell(walk_t *w, const raw_t *raw, bool gone)
{
    etcd_kv_t kv = {NULL, NULL, NULL, raw->revision, raw->lease, 0};
    char name[ETCD_KEY_MAX + 1];
    if (w->j.bad || w->st)
        return;
    w->reply->keys++;
    turn_page(w->reply, &raw->key);
    if (!w->fn)
        return;
    size_t n = decode(&raw->key, name, ETCD_KEY_MAX);
    if (n != SIZE_MAX) {
        name[n] = 0;
        if (names_of(name, n, &kv) && !gone)
            w->st = read_entry(w, &raw->value, &kv);
    }
    if (!w->st)
        w->st = w->fn(&kv, w->user);
    wefti_reg_entry_unref(kv.entry);
}

static void read_event(walk_t *w)
{
    wefti_json_t *j = &w->j;
    wefti_json_text_t key;
    raw_t raw = {{NULL, 0}, {NULL, 0}, 0, 0};
    bool gone = false;
    for (wefti_json_object(j); wefti_json_member(j, &key);) {
        if (wefti_json_is(&key, "type")) {
            wefti_json_text_t type = wefti_json_string(j);
            gone = wefti_json_is(&type, "DELETE");
        } else if (wefti_json_is(&key, "kv")) {
            raw = read_kv(j);
        } else {
            wefti_json_skip(j);
        }
    }
    tell(w, &raw, gone);
}

/* "error" is its words in an answer, and an object that has them in a stream. */
static void read_message(walk_t *w)
{
    wefti_json_t *j = &w->j;
    etcd_reply_t *r = w->reply;
    r->failed = true;
    if (wefti_json_next(j) != '"') {
        wefti_json_skip(j);
        return;
    }
    wefti_json_text_t t = wefti_json_string(j);
    size_t n = t.n < sizeof r->message - 1 ? t.n : sizeof r->message - 1;
    for (size_t i = 0; i < n; i++)
        r->message[i] = wefti_is_cntrl(t.p[i]) || (unsigned char)t.p[i] >= 0x80 ? '?' : t.p[i];
    r->message[n] = 0;
}

static void read_reply(walk_t *w);

static void read_header(walk_t *w)
{
    wefti_json_t *j = &w->j;
    wefti_json_text_t key;
    for (wefti_json_object(j); wefti_json_member(j, &key);)
        if (wefti_json_is(&key, "revision"))
            w->reply->revision = wefti_json_i64(j);
        else
            wefti_json_skip(j);
}

static void read_responses(walk_t *w)
{
    wefti_json_t *j = &w->j;
    wefti_json_text_t key;
    for (wefti_json_array(j); wefti_json_item(j);)
        for (wefti_json_object(j); wefti_json_member(j, &key);)
            if (wefti_json_is(&key, "response_range"))
                read_reply(w);
            else
                wefti_json_skip(j);
}

/* The keys of a lease, of which only the names are known. */
static void read_keys(walk_t *w)
{
    wefti_json_t *j = &w->j;
    for (wefti_json_array(j); wefti_json_item(j);) {
        raw_t raw = {wefti_json_string(j), {NULL, 0}, 0, 0};
        tell(w, &raw, true);
    }
}

static void read_member(walk_t *w, const wefti_json_text_t *key)
{
    wefti_json_t *j = &w->j;
    etcd_reply_t *r = w->reply;
    if (wefti_json_is(key, "header"))
        read_header(w);
    else if (wefti_json_is(key, "kvs"))
        for (wefti_json_array(j); wefti_json_item(j);) {
            raw_t raw = read_kv(j);
            tell(w, &raw, false);
        }
    else if (wefti_json_is(key, "events"))
        for (wefti_json_array(j); wefti_json_item(j);)
            read_event(w);
    else if (wefti_json_is(key, "responses"))
        read_responses(w);
    else if (wefti_json_is(key, "keys"))
        read_keys(w);
    else if (wefti_json_is(key, "result"))
        read_reply(w);
    else if (wefti_json_is(key, "ID"))
        r->id = wefti_json_i64(j);
    else if (wefti_json_is(key, "TTL"))
        r->ttl = wefti_json_i64(j);
    else if (wefti_json_is(key, "compact_revision"))
        r->compacted = wefti_json_i64(j);
    else if (wefti_json_is(key, "code"))
        r->code = wefti_json_i64(j);
    else if (wefti_json_is(key, "succeeded"))
        r->succeeded = wefti_json_bool(j);
    else if (wefti_json_is(key, "more"))
        r->more = wefti_json_bool(j);
    else if (wefti_json_is(key, "created"))
        r->created = wefti_json_bool(j);
    else if (wefti_json_is(key, "canceled"))
        r->canceled = wefti_json_bool(j);
    else if (wefti_json_is(key, "error") || wefti_json_is(key, "message"))
        read_message(w);
    else
        wefti_json_skip(j);
}

/* In each other only as deep as JSON may be. */
static void read_reply(walk_t *w)
{
    wefti_json_text_t key;
    for (wefti_json_object(&w->j); wefti_json_member(&w->j, &key);)
        read_member(w, &key);
}

weft_status_t wefti_etcd_read(char *text, size_t n, etcd_kv_fn fn, void *user, etcd_reply_t *reply_out)
{
    walk_t w = {wefti_json(text, n), reply_out, fn, user, WEFT_OK, NULL};
    memset(reply_out, 0, sizeof *reply_out);
    read_reply(&w);
    wefti_free(w.bytes);
    return w.st ? w.st : wefti_json_end(&w.j) ? WEFT_OK : WEFT_ERR_PROTOCOL;
}

/* --- requests ---------------------------------------------------------------------------------------------------------------- */

typedef struct text {
    char *p;
    size_t n;
} text_t;

static __attribute__((format(printf, 2, 3))) void add(text_t *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->p + t->n, ETCD_BODY_MAX - t->n, format, args);
    va_end(args);
    assert(n >= 0 && (size_t)n < ETCD_BODY_MAX - t->n);
    t->n += (size_t)n;
}

/* "name":"base64" */
static void add_bytes(text_t *t, const char *name, const void *bytes, size_t n)
{
    add(t, "\"%s\":\"", name);
    assert(sodium_base64_encoded_len(n, BASE64) <= ETCD_BODY_MAX - t->n);
    sodium_bin2base64(t->p + t->n, ETCD_BODY_MAX - t->n, (const unsigned char *)bytes, n, BASE64);
    t->n += strlen(t->p + t->n);
    add(t, "\"");
}

static void add_key(text_t *t, const char *service, const char *instance)
{
    char key[ETCD_KEY_MAX + 1];
    int n = snprintf(key, sizeof key, ETCD_PREFIX "%s/%s", service, instance);
    add_bytes(t, "key", key, (size_t)n);
}

static text_t begin(char *body)
{
    text_t t = {body, 0};
    return t;
}

size_t wefti_etcd_grant(char *body, uint64_t seconds)
{
    text_t t = begin(body);
    add(&t, "{\"TTL\":\"%llu\"}", (unsigned long long)seconds);
    return t.n;
}

size_t wefti_etcd_lease(char *body, int64_t lease, bool keys)
{
    text_t t = begin(body);
    add(&t, "{\"ID\":\"%lld\"%s}", (long long)lease, keys ? ",\"keys\":true" : "");
    return t.n;
}

size_t wefti_etcd_put(char *body, const reg_entry_t *e, int64_t lease, bool mine)
{
    text_t t = begin(body);
    uint8_t *bytes = (uint8_t *)wefti_malloc(REG_BYTES_MAX);
    if (!bytes)
        return 0;
    size_t n = wefti_reg_entry_encode(e, bytes, REG_BYTES_MAX);
    add(&t, "{\"compare\":[{");
    add_key(&t, e->service, e->instance);
    if (mine)
        add(&t, ",\"target\":\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"%lld\"}]", (long long)lease);
    else
        add(&t, ",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}]");
    add(&t, ",\"success\":[{\"request_put\":{");
    add_key(&t, e->service, e->instance);
    add(&t, ",");
    add_bytes(&t, "value", bytes, n);
    add(&t, ",\"lease\":\"%lld\"}}],\"failure\":[{\"request_range\":{", (long long)lease);
    add_key(&t, e->service, e->instance);
    add(&t, "}}]}");
    wefti_free(bytes);
    return t.n;
}

size_t wefti_etcd_delete(char *body, const char *service, const char *instance, int64_t lease)
{
    text_t t = begin(body);
    add(&t, "{\"compare\":[{");
    add_key(&t, service, instance);
    add(&t, ",\"target\":\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"%lld\"}],\"success\":[{\"request_delete_range\":{",
        (long long)lease);
    add_key(&t, service, instance);
    add(&t, "}}]}");
    return t.n;
}

size_t wefti_etcd_range(char *body, const char *start, size_t start_len, unsigned limit, int64_t revision)
{
    text_t t = begin(body);
    add(&t, "{");
    add_bytes(&t, "key", start, start_len);
    add(&t, ",");
    add_bytes(&t, "range_end", ETCD_PREFIX_END, sizeof ETCD_PREFIX_END - 1);
    add(&t, ",\"limit\":\"%u\",\"revision\":\"%lld\"}", limit, (long long)revision);
    return t.n;
}

size_t wefti_etcd_count(char *body)
{
    text_t t = begin(body);
    add(&t, "{");
    add_bytes(&t, "key", ETCD_PREFIX, sizeof ETCD_PREFIX - 1);
    add(&t, ",\"count_only\":true}");
    return t.n;
}

size_t wefti_etcd_watch(char *body, int64_t revision)
{
    text_t t = begin(body);
    add(&t, "{\"create_request\":{");
    add_bytes(&t, "key", ETCD_PREFIX, sizeof ETCD_PREFIX - 1);
    add(&t, ",");
    add_bytes(&t, "range_end", ETCD_PREFIX_END, sizeof ETCD_PREFIX_END - 1);
    add(&t, ",\"start_revision\":\"%lld\"}}", (long long)revision);
    return t.n;
}
