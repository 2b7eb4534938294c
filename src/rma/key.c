/* rma/key.c - keys of regions: making and checking them.
 *
 * A region's key says what its bearer may have, and ends with a hash of all that under a secret (docs/design/wire.md has the
 * bytes). The secret is random, belongs to one runtime and never leaves it; it has nothing to do with the authentication key.
 * Nobody else can make a region's key, and this runtime cannot tell one of another runtime from a forgery, except by the
 * instance, which is random too and no secret. So a key of an owner that was since restarted is stale, and one whose bytes were
 * changed is not genuine.
 *
 * It is checked in three steps: its shape, whose it is, and the hash, which is compared in time that does not depend on the
 * bytes. Only then is anything it says looked at; whether the region still is that of the key is for grant.c to say.
 *
 * Promise: of the keys this runtime did not make, none is opened; reading one touches nothing past its end.
 * tests/unit/rma_key.c and tests/fuzz/rma_key.c hold us to it. */
#include <sodium.h>

#include "base/bytes.h"
#include "base/uri.h"
#include "rma/state.h"

#define MAGIC 0x4b544657u /* "WFTK" */
#define VERSION 1
#define HEAD 72u
#define MAC crypto_generichash_BYTES
#define TEXT_MAX (WEFTI_REACH_MAX - 1u)

_Static_assert(HEAD + TEXT_MAX + MAC <= WEFT_REGION_KEY_MAX, "the longest key of a region");
_Static_assert(WEFTI_REACH_MAX <= sizeof(((weft_region_key_info_t *)0)->owner), "the addresses in it");
_Static_assert(sizeof(((rma_state_t *)0)->secret) == crypto_generichash_KEYBYTES, "the secret of the hash");

typedef struct region_key {
    rma_claim_t claim;
    const uint8_t *instance;
    char owner[TEXT_MAX + 1];
} region_key_t;

weft_status_t wefti_rma_key_init(rma_state_t *rs)
{
    wefti_fabric_t *f = rs->rt->fabric;
    if (sodium_init() < 0)
        return wefti_fail(WEFT_ERR_SYSTEM, "libsodium cannot be initialised");
    f->ops->random(f, rs->secret, sizeof rs->secret);
    f->ops->random(f, rs->instance, sizeof rs->instance);
    return WEFT_OK;
}

void wefti_rma_key_end(rma_state_t *rs)
{
    sodium_memzero(rs->secret, sizeof rs->secret);
}

/* --- codec ------------------------------------------------------------------------------------------------------------- */

static size_t encode(const rma_state_t *rs, const rma_claim_t *c, const char *owner, uint8_t out[WEFT_REGION_KEY_MAX])
{
    size_t n = strlen(owner);
    wefti_writer_t w = wefti_writer(out, WEFT_REGION_KEY_MAX);
    wefti_put_u32(&w, MAGIC);
    wefti_put_u16(&w, VERSION);
    wefti_put_u16(&w, (uint16_t)n);
    wefti_put_bytes(&w, rs->instance, sizeof rs->instance);
    wefti_put_u64(&w, c->region);
    wefti_put_u64(&w, c->generation);
    wefti_put_u64(&w, c->offset);
    wefti_put_u64(&w, c->len);
    wefti_put_u64(&w, c->expires);
    wefti_put_u32(&w, c->rights);
    wefti_put_u32(&w, 0);
    wefti_put_bytes(&w, owner, n);
    crypto_generichash(w.at, MAC, out, HEAD + n, rs->secret, sizeof rs->secret);
    return HEAD + n + MAC;
}

static bool callable(const char *owner)
{
    for (const char *at = owner; *at;) {
        wefti_uri_t uri;
        if (wefti_uri_parse(&at, &uri))
            return false;
    }
    return true;
}

/* Everything about it that can be seen without the secret. t->instance points into it. */
static weft_status_t decode(const void *bytes, size_t n, region_key_t *t)
{
    wefti_reader_t r = wefti_reader(bytes, n);
    uint32_t magic = wefti_get_u32(&r);
    uint16_t version = wefti_get_u16(&r), text = wefti_get_u16(&r);
    t->instance = wefti_get_bytes(&r, sizeof((rma_state_t *)0)->instance);
    t->claim.region = wefti_get_u64(&r);
    t->claim.generation = wefti_get_u64(&r);
    t->claim.offset = wefti_get_u64(&r);
    t->claim.len = wefti_get_u64(&r);
    t->claim.expires = wefti_get_u64(&r);
    t->claim.rights = wefti_get_u32(&r);
    uint32_t zero = wefti_get_u32(&r);
    if (r.bad || magic != MAGIC)
        return wefti_fail(WEFT_ERR_INVALID, "the %zu bytes given are no region key made by weft_region_key()", n);
    if (version != VERSION)
        return wefti_fail(WEFT_ERR_INVALID, "the region key is of version %u; this library knows version %u", version, VERSION);
    if (text > TEXT_MAX || wefti_reader_left(&r) != (size_t)text + MAC || memchr(r.at, 0, text))
        return wefti_fail(WEFT_ERR_INVALID, "the region key says that %u bytes of addresses follow, and it is %zu bytes long",
                          text, n);
    memcpy(t->owner, r.at, text);
    t->owner[text] = 0;
    if (zero || !t->claim.region || !t->claim.generation || t->claim.offset > UINT64_MAX - t->claim.len || !t->claim.rights ||
        t->claim.rights & ~WEFT_RMA_ALL || !callable(t->owner))
        return wefti_fail(WEFT_ERR_INVALID, "the region key of %zu bytes says what none can say", n);
    return WEFT_OK;
}

weft_status_t wefti_rma_key_open(const rma_state_t *rs, const void *key, size_t n, rma_claim_t *claim_out)
{
    uint8_t mac[MAC];
    region_key_t t;
    weft_status_t st = decode(key, n, &t);
    if (st)
        return st;
    if (memcmp(t.instance, rs->instance, sizeof rs->instance) != 0)
        return wefti_fail(WEFT_ERR_STALE,
                          "the region key was made by another runtime, perhaps one that was here before this one");
    crypto_generichash(mac, sizeof mac, key, n - MAC, rs->secret, sizeof rs->secret);
    if (sodium_memcmp(mac, (const uint8_t *)key + n - MAC, sizeof mac) != 0)
        return wefti_fail(WEFT_ERR_AUTH, "the region key is not genuine");
    *claim_out = t.claim;
    return WEFT_OK;
}

/* --- the calls --------------------------------------------------------------------------------------------------------- */

static weft_status_t make(const weft_region_t *region, const weft_region_key_opts_t *o, uint8_t *key, size_t *n_out)
{
    rma_state_t *rs = region->rs;
    char owner[WEFTI_REACH_MAX];
    /* the generation first: one that a revoke ends meanwhile gives a key that is stale, never one that is too good */
    rma_claim_t c = {.region = region->id, .generation = atomic_load(&region->generation), .offset = o->offset};
    uint64_t all = atomic_load(&region->len);
    if (o->offset >= all || o->len > all - o->offset)
        return wefti_fail(WEFT_ERR_RANGE, "%llu bytes from %llu on are not in a region of %llu", (unsigned long long)o->len,
                          (unsigned long long)o->offset, (unsigned long long)all);
    c.len = o->empty ? 0 : o->len ? o->len : all - o->offset;
    c.rights = o->rights ? o->rights : region->rights;
    if (c.rights & ~region->rights)
        return wefti_fail(WEFT_ERR_RIGHTS, "the region gives rights %#x at most, not %#x", region->rights, c.rights);
    if (o->lifetime_ns) {
        uint64_t now = weft_now(rs->rt);
        c.expires = o->lifetime_ns < UINT64_MAX - now ? now + o->lifetime_ns : 0;
    }
    wefti_conn_reach(rs->rt, owner);
    *n_out = encode(rs, &c, owner, key);
    return WEFT_OK;
}

weft_status_t weft_region_key(weft_region_t *region, const weft_region_key_opts_t *opts, void *buf, size_t *len)
{
    weft_region_key_opts_t o;
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t n = 0;
    if (!region || !len || (!buf && *len))
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !region ? "the region" : !len ? "len" : "buf");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_region_key_opts_t");
    if (!st)
        st = wefti_rma_region_enter(region);
    if (st)
        return st;
    st = make(region, &o, key, &n);
    wefti_rma_region_leave(region);
    if (st)
        return st;
    size_t cap = *len;
    *len = n;
    if (cap < n)
        return wefti_fail(WEFT_ERR_LIMIT, "the region key has %zu bytes and the buffer %zu", n, cap);
    memcpy(buf, key, n);
    return WEFT_OK;
}

weft_status_t weft_region_key_read(const void *key, size_t len, weft_region_key_info_t *info_out)
{
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    region_key_t t;
    if (!key || !info_out || info_out->size < sizeof info.size)
        return wefti_fail(WEFT_ERR_INVALID, "%s",
                          !key ? "the region key is NULL" : "weft_region_key_info_t: use WEFT_REGION_KEY_INFO_INIT");
    weft_status_t st = decode(key, len, &t);
    if (st)
        return st;
    info.region = t.claim.region;
    info.generation = t.claim.generation;
    info.offset = t.claim.offset;
    info.len = t.claim.len;
    info.rights = t.claim.rights;
    memcpy(info.owner, t.owner, sizeof t.owner);
    wefti_opts_write(info_out, &info, sizeof info);
    return WEFT_OK;
}
