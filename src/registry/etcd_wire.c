/* registry/etcd_wire.c - requests to etcd's JSON gateway as text, and what its replies say.
 *
 * An entry is the key /weft/SERVICE/INSTANCE with the bytes of entry.c as its value; the gateway has both in base64. One walk
 * reads all kinds of replies, because their members have the same meaning wherever they are: a range has "kvs", a watch
 * "events", a transaction "responses" with ranges in them, a stream a "result" around each.
 *
 * Promise: any bytes are a reply or are refused. fn gets entries under their own key only, or keys without an entry.
 * tests/unit/registry_etcd.c, tests/fuzz/registry_etcd.c. */
#include <assert.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/ascii.h"
#include "base/json.h"
#include "registry/etcd.h"

#define BASE64 sodium_base64_VARIANT_ORIGINAL
#define BASE64_LEN(n) sodium_base64_ENCODED_LEN(n, BASE64)

/* --- replies ----------------------------------------------------------------------------------------------------------- */

/* A key and its value as they came, in base64. */
typedef struct raw {
    wefti_json_text_t key, value;
    int64_t revision, lease;
    bool gone;
} raw_t;

typedef struct walk {
    wefti_json_t j;
    etcd_reply_t *reply;
    etcd_kv_fn fn;
    void *user;
    weft_status_t st;
    raw_t raw;      /* of the item that is being read */
    uint8_t *bytes; /* REG_BYTES_MAX of them */
} walk_t;

/* From base64. SIZE_MAX: it is none, or more than cap bytes. */
static size_t decode(const wefti_json_text_t *t, void *bytes, size_t cap)
{
    size_t n;
    if (!t->n)
        return 0;
    if (t->n / 4 * 3 > cap + 2 || sodium_base642bin((unsigned char *)bytes, cap, t->p, t->n, NULL, &n, NULL, BASE64))
        return SIZE_MAX;
    return n;
}

/* Cut "/weft/SERVICE/INSTANCE" up. */
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

/* The next page begins behind this key. A key longer than ours is cut off: then the page begins behind all keys that begin so. */
static void turn_page(etcd_reply_t *r, const wefti_json_text_t *key64)
{
    unsigned char *p = (unsigned char *)r->start;
    size_t n = decode(key64, p, ETCD_START_MAX);
    r->start_len = 0;
    if (n != SIZE_MAX) {
        p[n] = 0;
        r->start_len = n + 1;
        return;
    }
    wefti_json_text_t cut = {key64->p, key64->n / 4 * 4};
    if (cut.n > ETCD_START_MAX / 3 * 4)
        cut.n = ETCD_START_MAX / 3 * 4;
    n = decode(&cut, p, ETCD_START_MAX);
    if (n == SIZE_MAX)
        return;
    while (n && p[n - 1] == 0xff)
        n--;
    if (n)
        p[n - 1]++;
    r->start_len = n;
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
    char name[REG_FULL_NAME];
    snprintf(name, sizeof name, "%s@%s", kv->service, kv->instance);
    return wefti_reg_entry_decode_as(name, w->bytes, kv->bytes, &kv->entry) == WEFT_ERR_NOMEM ? WEFT_ERR_NOMEM : WEFT_OK;
}

/* What was read of an item. */
static void tell(walk_t *w)
{
    const raw_t *raw = &w->raw;
    etcd_kv_t kv = {.revision = raw->revision};
    char name[ETCD_KEY_MAX + 1];
    if (w->j.bad || w->st)
        return;
    w->reply->keys++;
    w->reply->lease = raw->lease;
    turn_page(w->reply, &raw->key);
    if (!w->fn)
        return;
    size_t n = decode(&raw->key, name, ETCD_KEY_MAX);
    if (n != SIZE_MAX) {
        name[n] = 0;
        if (names_of(name, n, &kv) && !raw->gone)
            w->st = read_entry(w, &raw->value, &kv);
    }
    if (!w->st)
        w->st = w->fn(&kv, w->user);
    wefti_reg_entry_unref(kv.entry);
}

/* An "error" is a text in an answer, and an object with a "message" in a stream. */
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

/* Each item is an object; tells: of a key, which fn is told of. */
static void read_items(walk_t *w, bool tells)
{
    for (wefti_json_array(&w->j); wefti_json_item(&w->j);) {
        memset(&w->raw, 0, sizeof w->raw);
        read_reply(w);
        if (tells)
            tell(w);
    }
}

/* The keys of a lease, without values. */
static void read_keys(walk_t *w)
{
    for (wefti_json_array(&w->j); wefti_json_item(&w->j);) {
        w->raw = (raw_t){.key = wefti_json_string(&w->j), .gone = true};
        tell(w);
    }
}

/* Numbers, flags and texts. False: it is none of them. */
static bool read_plain(walk_t *w, const wefti_json_text_t *key)
{
    wefti_json_t *j = &w->j;
    etcd_reply_t *r = w->reply;
    wefti_json_text_t type = {NULL, 0};
    const struct {
        const char *name;
        int64_t *number;
        bool *flag;
        wefti_json_text_t *text;
    } plain[] = {
        {"ID", .number = &r->id},
        {"TTL", .number = &r->ttl},
        {"compact_revision", .number = &r->compacted},
        {"code", .number = &r->code},
        {"revision", .number = &r->revision},
        {"more", .flag = &r->more},
        {"succeeded", .flag = &r->succeeded},
        {"canceled", .flag = &r->canceled},
        {"key", .text = &w->raw.key},
        {"value", .text = &w->raw.value},
        {"mod_revision", .number = &w->raw.revision},
        {"lease", .number = &w->raw.lease},
        {"type", .text = &type},
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (!wefti_json_is(key, plain[i].name))
            continue;
        if (plain[i].number)
            *plain[i].number = wefti_json_i64(j);
        else if (plain[i].flag)
            *plain[i].flag = wefti_json_bool(j);
        else
            *plain[i].text = wefti_json_string(j);
        w->raw.gone = w->raw.gone || wefti_json_is(&type, "DELETE");
        return true;
    }
    return false;
}

static void read_member(walk_t *w, const wefti_json_text_t *key)
{
    static const char *const objects[] = {"header", "kv", "result", "response_range"};
    if (read_plain(w, key))
        return;
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (wefti_json_is(key, objects[i])) {
            read_reply(w);
            return;
        }
    if (wefti_json_is(key, "kvs") || wefti_json_is(key, "events"))
        read_items(w, true);
    else if (wefti_json_is(key, "responses"))
        read_items(w, false);
    else if (wefti_json_is(key, "keys"))
        read_keys(w);
    else if (wefti_json_is(key, "error") || wefti_json_is(key, "message"))
        read_message(w);
    else
        wefti_json_skip(&w->j);
}

/* The reader bounds how deep they may be in each other. */
static void read_reply(walk_t *w)
{
    wefti_json_text_t key;
    for (wefti_json_object(&w->j); wefti_json_member(&w->j, &key);)
        read_member(w, &key);
}

weft_status_t wefti_etcd_read(char *text, size_t n, etcd_kv_fn fn, void *user, etcd_reply_t *reply_out)
{
    walk_t w = {.j = wefti_json(text, n), .reply = reply_out, .fn = fn, .user = user};
    memset(reply_out, 0, sizeof *reply_out);
    read_reply(&w);
    wefti_free(w.bytes);
    return w.st ? w.st : wefti_json_end(&w.j) ? WEFT_OK : WEFT_ERR_PROTOCOL;
}

/* --- requests ---------------------------------------------------------------------------------------------------------- */

/* In base64, as the test has it. */
#define PREFIX64 "L3dlZnQv"     /* ETCD_PREFIX */
#define PREFIX_END64 "L3dlZnQw" /* ETCD_PREFIX_END */

static __attribute__((format(printf, 2, 3))) size_t print(char *body, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(body, ETCD_BODY_MAX, format, args);
    va_end(args);
    assert(n >= 0 && n < ETCD_BODY_MAX);
    return (size_t)n;
}

static void encode(char *text, size_t cap, const void *bytes, size_t n)
{
    sodium_bin2base64(text, cap, (const unsigned char *)bytes, n, BASE64);
}

typedef char key64_t[BASE64_LEN(ETCD_KEY_MAX)];

static void encode_key(key64_t text, const char *service, const char *instance)
{
    char key[ETCD_KEY_MAX + 1];
    int n = snprintf(key, sizeof key, ETCD_PREFIX "%s/%s", service, instance);
    encode(text, sizeof(key64_t), key, (size_t)n);
}

size_t wefti_etcd_grant(char *body, uint64_t seconds)
{
    return print(body, "{\"TTL\":\"%llu\"}", (unsigned long long)seconds);
}

size_t wefti_etcd_lease(char *body, int64_t lease, bool keys)
{
    return print(body, "{\"ID\":\"%lld\"%s}", (long long)lease, keys ? ",\"keys\":true" : "");
}

size_t wefti_etcd_put(char *body, const reg_entry_t *e, int64_t lease, bool mine)
{
    key64_t key;
    char owner[80] = "\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"";
    char *value = (char *)wefti_malloc(BASE64_LEN(REG_BYTES_MAX) + REG_BYTES_MAX);
    if (!value)
        return 0;
    uint8_t *bytes = (uint8_t *)value + BASE64_LEN(REG_BYTES_MAX);
    encode(value, BASE64_LEN(REG_BYTES_MAX), bytes, wefti_reg_entry_encode(e, bytes, REG_BYTES_MAX));
    encode_key(key, e->service, e->instance);
    if (mine)
        snprintf(owner, sizeof owner, "\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"%lld\"", (long long)lease);
    size_t n = print(body,
                     "{\"compare\":[{\"key\":\"%s\",\"target\":%s}],"
                     "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\",\"lease\":\"%lld\"}}],"
                     "\"failure\":[{\"request_range\":{\"key\":\"%s\"}}]}",
                     key, owner, key, value, (long long)lease, key);
    wefti_free(value);
    return n;
}

size_t wefti_etcd_delete(char *body, const char *service, const char *instance, int64_t lease)
{
    key64_t key;
    encode_key(key, service, instance);
    return print(body,
                 "{\"compare\":[{\"key\":\"%s\",\"target\":\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"%lld\"}],"
                 "\"success\":[{\"request_delete_range\":{\"key\":\"%s\"}}]}",
                 key, (long long)lease, key);
}

size_t wefti_etcd_range(char *body, const char *start, size_t start_len, unsigned limit, int64_t revision)
{
    char key[BASE64_LEN(ETCD_START_MAX + 1)];
    encode(key, sizeof key, start, start_len);
    return print(body, "{\"key\":\"%s\",\"range_end\":\"" PREFIX_END64 "\",\"limit\":\"%u\",\"revision\":\"%lld\"}", key, limit,
                 (long long)revision);
}

size_t wefti_etcd_count(char *body)
{
    return print(body, "{\"key\":\"" PREFIX64 "\",\"count_only\":true}");
}

size_t wefti_etcd_watch(char *body, int64_t revision)
{
    return print(body,
                 "{\"create_request\":{\"key\":\"" PREFIX64 "\",\"range_end\":\"" PREFIX_END64 "\",\"start_revision\":\"%lld\"}}",
                 (long long)revision);
}
