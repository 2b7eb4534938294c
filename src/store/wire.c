/* store/wire.c - the codec of requests and replies.
 *
 * One table says which fields a kind has, and both directions use it, so that they cannot differ. Everything that is read is
 * checked: kinds, flags, lengths, statuses, and that nothing is left over. tests/unit/store_wire.c, tests/fuzz/store_wire.c. */
#include "store/wire.h"

#include <string.h>
#include <weft/config.h>

#include "base/utf8.h"

enum {
    HAS_LEASE = 1,
    HAS_BLOCK = 2,
    HAS_LEN = 4,
    HAS_MAX = 8,
    HAS_EPOCH = 16,
    HAS_STAMP = 32,
    HAS_NAME = 64,
    HAS_AFTER = 128,
    HAS_WRITER = 256,
    HAS_REC = 512,
    HAS_SERVER = 1024,
    HAS_STATS = 2048,
    HAS_KEY = 4096,
    HAS_ENTRIES = 8192
};

#define HAS_BLOCK_ALL (HAS_BLOCK | HAS_LEN | HAS_MAX | HAS_KEY)
#define HAS_REPLICA (HAS_REC | HAS_STAMP | HAS_LEN | HAS_KEY)

static const struct {
    uint16_t request, reply;
    uint8_t flags, reply_flags; /* that may be set */
} kinds[STORE_KINDS] = {
    [STORE_OPEN] = {HAS_LEASE, HAS_LEASE | HAS_SERVER, STORE_TIMED, STORE_BODY},
    [STORE_RENEW] = {0, HAS_LEASE, 0, STORE_BODY},
    [STORE_CLOSE] = {0, 0, STORE_LEAVE, STORE_BODY},
    [STORE_QUERY] = {0, HAS_STATS, 0, STORE_BODY},
    [STORE_ALLOC] = {HAS_NAME | HAS_LEN | HAS_MAX, HAS_BLOCK_ALL, STORE_SHARED, STORE_BODY},
    [STORE_FIND] = {HAS_NAME, HAS_BLOCK_ALL, 0, STORE_BODY},
    [STORE_EXTEND] = {HAS_BLOCK | HAS_LEN, HAS_BLOCK_ALL, 0, STORE_BODY},
    [STORE_FREE] = {HAS_BLOCK, 0, 0, STORE_BODY},
    [STORE_REMOVE] = {HAS_NAME, 0, 0, STORE_BODY},
    [STORE_LIST] = {HAS_NAME | HAS_AFTER, HAS_ENTRIES, 0, STORE_BODY | STORE_MORE},
    [STORE_R_MAKE] = {HAS_NAME | HAS_LEN | HAS_REC, HAS_REPLICA, 0, STORE_BODY},
    [STORE_R_GET] = {HAS_NAME, HAS_REPLICA, 0, STORE_BODY},
    [STORE_R_SET] = {HAS_NAME | HAS_EPOCH | HAS_STAMP | HAS_REC, HAS_REPLICA, 0, STORE_BODY},
    [STORE_R_RENEW] = {HAS_NAME | HAS_EPOCH | HAS_STAMP | HAS_WRITER, HAS_REPLICA, 0, STORE_BODY},
    [STORE_R_SEAL] = {HAS_NAME | HAS_EPOCH | HAS_WRITER, HAS_REPLICA, 0, STORE_BODY},
    [STORE_R_UNMAKE] = {HAS_NAME | HAS_EPOCH | HAS_WRITER, 0, 0, STORE_BODY},
    [STORE_SHARE] = {HAS_BLOCK | HAS_NAME, 0, STORE_REPLACE, STORE_BODY},
};

/* --- pieces  ---------------------------------------------------------------------------------------------------------- */

static void put_name(wefti_writer_t *w, const char *name, uint8_t n)
{
    wefti_put_u8(w, n);
    wefti_put_bytes(w, name, n);
}

static void get_name(wefti_reader_t *r, const char **name, uint8_t *n)
{
    *n = wefti_get_u8(r);
    *name = (const char *)wefti_get_bytes(r, *n);
}

static void get_id(wefti_reader_t *r, uint8_t id[WEFT_STORE_ID])
{
    const void *p = wefti_get_bytes(r, WEFT_STORE_ID);
    if (p)
        memcpy(id, p, WEFT_STORE_ID);
}

static void put_rec(wefti_writer_t *w, const wefti_replica_t *rec)
{
    wefti_put_u64(w, rec->epoch);
    wefti_put_u64(w, rec->len);
    wefti_put_u64(w, rec->origin);
    wefti_put_u64(w, rec->lease_ns);
    wefti_put_u32(w, rec->flags);
    wefti_put_u32(w, rec->n_members);
    wefti_put_bytes(w, rec->members, sizeof rec->members);
    wefti_put_bytes(w, rec->writer, sizeof rec->writer);
}

static void get_rec(wefti_reader_t *r, wefti_replica_t *rec)
{
    rec->epoch = wefti_get_u64(r);
    rec->len = wefti_get_u64(r);
    rec->origin = wefti_get_u64(r);
    rec->lease_ns = wefti_get_u64(r);
    rec->flags = wefti_get_u32(r);
    rec->n_members = wefti_get_u32(r);
    const void *members = wefti_get_bytes(r, sizeof rec->members);
    if (members)
        memcpy(rec->members, members, sizeof rec->members);
    get_id(r, rec->writer);
    if (!wefti_replica_ok(rec))
        r->bad = true;
}

bool wefti_replica_ok(const wefti_replica_t *rec)
{
    static const uint8_t none[WEFT_STORE_ID];
    if (rec->n_members > WEFT_MIRROR_MAX || rec->flags >= 2 * WEFTI_REPLICA_LAPSED || rec->lease_ns < WEFTI_REPLICA_LEASE_MIN ||
        rec->lease_ns > WEFTI_REPLICA_LEASE_MAX)
        return false;
    for (uint32_t i = rec->n_members; i < WEFT_MIRROR_MAX; i++)
        if (memcmp(rec->members[i], none, sizeof none) != 0)
            return false;
    return true;
}

/* --- bodies  ---------------------------------------------------------------------------------------------------------- */

enum { NUMBERS = 6 }; /* HAS_LEASE to HAS_STAMP */

static void put_body(wefti_writer_t *w, uint16_t has, const struct store_packet *p)
{
    const uint64_t numbers[NUMBERS] = {p->lease_ns, p->block, p->len, p->max_len, p->epoch, p->stamp};
    for (int i = 0; i < NUMBERS; i++)
        if (has & 1u << i)
            wefti_put_u64(w, numbers[i]);
    if (has & HAS_NAME)
        put_name(w, p->name, p->name_len);
    if (has & HAS_AFTER)
        put_name(w, p->after, p->after_len);
    if (has & HAS_WRITER)
        wefti_put_bytes(w, p->writer, sizeof p->writer);
    if (has & HAS_REC)
        put_rec(w, &p->rec);
    if (has & HAS_SERVER)
        wefti_put_bytes(w, p->server, sizeof p->server);
    if (has & HAS_STATS) {
        wefti_put_u8(w, STORE_STATS_N);
        for (int i = 0; i < STORE_STATS_N; i++)
            wefti_put_u64(w, p->stats[i]);
    }
    if (has & HAS_KEY) {
        wefti_put_u16(w, (uint16_t)p->key_len);
        wefti_put_bytes(w, p->key, p->key_len);
    }
    if (has & HAS_ENTRIES)
        wefti_put_bytes(w, p->entries, p->entries_len); /* the rest of it */
}

/* False: they are none, or something is left over. */
static bool get_body(wefti_reader_t *r, uint16_t has, struct store_packet *p)
{
    uint64_t *const numbers[NUMBERS] = {&p->lease_ns, &p->block, &p->len, &p->max_len, &p->epoch, &p->stamp};
    for (int i = 0; i < NUMBERS; i++)
        if (has & 1u << i)
            *numbers[i] = wefti_get_u64(r);
    if (has & HAS_NAME)
        get_name(r, &p->name, &p->name_len);
    if (has & HAS_AFTER)
        get_name(r, &p->after, &p->after_len);
    if (has & HAS_WRITER)
        get_id(r, p->writer);
    if (has & HAS_REC)
        get_rec(r, &p->rec);
    if (has & HAS_SERVER)
        get_id(r, p->server);
    if (has & HAS_STATS) {
        uint8_t n = wefti_get_u8(r); /* a newer server may send more, an older one less */
        for (uint8_t i = 0; i < n; i++) {
            uint64_t v = wefti_get_u64(r);
            if (i < STORE_STATS_N)
                p->stats[i] = v;
        }
    }
    if (has & HAS_KEY) {
        p->key_len = wefti_get_u16(r);
        p->key = (const uint8_t *)wefti_get_bytes(r, p->key_len);
        if (p->key_len > WEFT_REGION_KEY_MAX)
            r->bad = true;
    }
    if (has & HAS_ENTRIES) {
        p->entries_len = (uint32_t)wefti_reader_left(r);
        p->entries = (const uint8_t *)wefti_get_bytes(r, p->entries_len);
    }
    return !r->bad && !wefti_reader_left(r);
}

/* --- requests  -------------------------------------------------------------------------------------------------------- */

size_t wefti_store_put_request(const store_request_t *q, void *buf, size_t cap)
{
    wefti_writer_t w = wefti_writer(buf, cap);
    if (!q->kind || q->kind >= STORE_KINDS)
        return 0;
    wefti_put_u64(&w, q->id);
    wefti_put_u8(&w, q->kind);
    wefti_put_u8(&w, q->flags);
    wefti_put_bytes(&w, q->client, sizeof q->client);
    put_body(&w, kinds[q->kind].request, q);
    return w.bad ? 0 : (size_t)(w.at - (uint8_t *)buf);
}

/* What requests and replies begin with. */
static wefti_reader_t get_head(const void *bytes, size_t n, store_request_t *q)
{
    wefti_reader_t r = wefti_reader(bytes, n);
    memset(q, 0, sizeof *q);
    q->id = wefti_get_u64(&r);
    q->kind = wefti_get_u8(&r);
    q->flags = wefti_get_u8(&r);
    return r;
}

bool wefti_store_get_request(const void *bytes, size_t n, store_request_t *q)
{
    wefti_reader_t r = get_head(bytes, n, q);
    get_id(&r, q->client);
    if (r.bad || !q->kind || n > STORE_REQUEST_MAX)
        return false;
    if (q->kind >= STORE_KINDS)
        return true;
    return !(q->flags & ~kinds[q->kind].flags) && get_body(&r, kinds[q->kind].request, q);
}

/* --- replies  --------------------------------------------------------------------------------------------------------- */

size_t wefti_store_put_reply(const store_reply_t *p, void *buf, size_t cap)
{
    wefti_writer_t w = wefti_writer(buf, cap);
    wefti_put_u64(&w, p->id);
    wefti_put_u8(&w, p->kind);
    wefti_put_u8(&w, p->flags);
    wefti_put_u16(&w, (uint16_t)p->status);
    if (p->flags & STORE_BODY)
        put_body(&w, p->kind < STORE_KINDS ? kinds[p->kind].reply : 0, p);
    return w.bad ? 0 : (size_t)(w.at - (uint8_t *)buf);
}

/* A status of a newer server that is not known here is a failure of this request all the same. */
static weft_status_t told(int16_t status, uint32_t *reason_out)
{
    if (strcmp(weft_status_name((weft_status_t)status), "WEFT_ERR_?"))
        return (weft_status_t)status;
    *reason_out = (uint32_t)-status;
    weft_log(WEFT_LOG_INFO, "a memory server failed with status %d, which version %s does not know", status, WEFT_VERSION_STRING);
    return WEFT_ERR_REJECTED;
}

bool wefti_store_get_reply(const void *bytes, size_t n, store_reply_t *p)
{
    wefti_reader_t r = get_head(bytes, n, p);
    int16_t status = (int16_t)wefti_get_u16(&r);
    if (r.bad || status > 0 || !p->kind || p->kind >= STORE_KINDS ||
        p->flags & ~(kinds[p->kind].reply_flags | STORE_LEASE_OVER) || (status == WEFT_OK && !(p->flags & STORE_BODY)))
        return false;
    p->status = told(status, &p->reason);
    return get_body(&r, p->flags & STORE_BODY ? kinds[p->kind].reply : 0, p);
}

/* --- lists  ----------------------------------------------------------------------------------------------------------- */

void wefti_store_put_entry(wefti_writer_t *w, const store_entry_t *e)
{
    put_name(w, e->name, e->name_len);
    wefti_put_u8(w, e->flags);
    wefti_put_u64(w, e->len);
    wefti_put_u64(w, e->max_len);
    wefti_put_u64(w, e->age_ns);
    wefti_put_u64(w, e->attached);
}

bool wefti_store_get_entry(wefti_reader_t *r, store_entry_t *e)
{
    memset(e, 0, sizeof *e);
    if (r->bad || !wefti_reader_left(r))
        return false;
    get_name(r, &e->name, &e->name_len);
    e->flags = wefti_get_u8(r);
    e->len = wefti_get_u64(r);
    e->max_len = wefti_get_u64(r);
    e->age_ns = wefti_get_u64(r);
    e->attached = wefti_get_u64(r);
    if (!r->bad && (e->flags > (STORE_E_SHARED | STORE_E_OURS) || !wefti_store_name_ok(e->name, e->name_len)))
        r->bad = true;
    return !r->bad;
}

/* --- names  ----------------------------------------------------------------------------------------------------------- */

bool wefti_store_name_ok(const char *name, size_t n)
{
    const uint8_t *p = (const uint8_t *)name;
    if (!n || n > WEFT_RMA_NAME_MAX)
        return false;
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t c;
        len = wefti_utf8_char(p + at, n - at, &c);
        if (!len || c < 0x20 || (c >= 0x7f && c < 0xa0))
            return false;
    }
    return true;
}
