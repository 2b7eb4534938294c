/* rma/token.c - tokens: what a region's owner gives out, and what comes back from whoever has it.
 *
 * A token says what its bearer may have, and ends with a keyed hash of all that (docs/design/wire.md has the bytes). The key is
 * random, belongs to one runtime and never leaves it: nobody else can make a token, and this runtime cannot tell a token of
 * another one from a forgery, except by the instance, which is random too and no secret. So a token of an owner that was since
 * restarted is stale, and one whose bytes were changed is not genuine.
 *
 * A token is checked in three steps: its shape, whose it is, and the hash, which is compared in time that does not depend on the
 * bytes. Only then is anything it says looked at; whether the region still is that of the token is for grant.c to say.
 *
 * Promise: of the tokens this runtime did not make, none is opened; reading one touches nothing past its end.
 * tests/unit/rma_token.c and tests/fuzz/rma_token.c hold us to it. */
#include <sodium.h>

#include "base/bytes.h"
#include "base/uri.h"
#include "rma/state.h"

#define MAGIC 0x4b544657u /* "WFTK" */
#define VERSION 1
#define HEAD 72u
#define MAC crypto_generichash_BYTES
#define TEXT_MAX (WEFTI_REACH_MAX - 1u)

_Static_assert(HEAD + TEXT_MAX + MAC <= WEFT_RMA_TOKEN_MAX, "the longest token");
_Static_assert(WEFTI_REACH_MAX <= sizeof(((weft_token_info_t *)0)->owner), "the addresses of a token");
_Static_assert(sizeof(((rma_state_t *)0)->key) == crypto_generichash_KEYBYTES, "the key of the hash");

typedef struct token {
    rma_claim_t claim;
    const uint8_t *instance;
    char owner[TEXT_MAX + 1];
} token_t;

weft_status_t wefti_rma_token_init(rma_state_t *rs)
{
    wefti_fabric_t *f = rs->rt->fabric;
    if (sodium_init() < 0)
        return wefti_fail(WEFT_ERR_SYSTEM, "libsodium cannot be initialised");
    f->ops->random(f, rs->key, sizeof rs->key);
    f->ops->random(f, rs->instance, sizeof rs->instance);
    return WEFT_OK;
}

void wefti_rma_token_end(rma_state_t *rs)
{
    sodium_memzero(rs->key, sizeof rs->key);
}

/* --- codec ----------------------------------------------------------------------------------------------------------------- */

static size_t encode(const rma_state_t *rs, const rma_claim_t *c, const char *owner, uint8_t out[WEFT_RMA_TOKEN_MAX])
{
    size_t n = strlen(owner);
    wefti_writer_t w = wefti_writer(out, WEFT_RMA_TOKEN_MAX);
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
    crypto_generichash(w.at, MAC, out, HEAD + n, rs->key, sizeof rs->key);
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

/* Everything about it that can be seen without the key. t->instance points into it. */
static weft_status_t decode(const void *bytes, size_t n, token_t *t)
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
        return wefti_fail(WEFT_ERR_INVALID, "the %zu bytes given are no token made by weft_region_token()", n);
    if (version != VERSION)
        return wefti_fail(WEFT_ERR_INVALID, "the token is of version %u; this library knows version %u", version, VERSION);
    if (text > TEXT_MAX || wefti_reader_left(&r) != (size_t)text + MAC || memchr(r.at, 0, text))
        return wefti_fail(WEFT_ERR_INVALID, "the token says that %u bytes of addresses follow, and it is %zu bytes long", text,
                          n);
    memcpy(t->owner, r.at, text);
    t->owner[text] = 0;
    if (zero || !t->claim.region || !t->claim.generation || !t->claim.len || t->claim.offset > UINT64_MAX - t->claim.len ||
        !t->claim.rights || t->claim.rights & ~WEFT_RMA_ALL || !callable(t->owner))
        return wefti_fail(WEFT_ERR_INVALID, "the token of %zu bytes says what no token can say", n);
    return WEFT_OK;
}

weft_status_t wefti_rma_token_open(const rma_state_t *rs, const void *token, size_t n, rma_claim_t *claim_out)
{
    uint8_t mac[MAC];
    token_t t;
    weft_status_t st = decode(token, n, &t);
    if (st)
        return st;
    if (memcmp(t.instance, rs->instance, sizeof rs->instance) != 0)
        return wefti_fail(WEFT_ERR_STALE, "the token was made by another runtime, perhaps one that was here before this one");
    crypto_generichash(mac, sizeof mac, token, n - MAC, rs->key, sizeof rs->key);
    if (sodium_memcmp(mac, (const uint8_t *)token + n - MAC, sizeof mac) != 0)
        return wefti_fail(WEFT_ERR_AUTH, "the token is not genuine");
    *claim_out = t.claim;
    return WEFT_OK;
}

/* --- the calls ------------------------------------------------------------------------------------------------------------- */

static weft_status_t make(const weft_region_t *region, const weft_region_token_opts_t *o, uint8_t *token, size_t *n_out)
{
    rma_state_t *rs = region->rs;
    char owner[WEFTI_REACH_MAX];
    /* the generation first: one that a revoke ends meanwhile gives a token that is stale, never one that is too good */
    rma_claim_t c = {.region = region->id, .generation = atomic_load(&region->generation), .offset = o->offset};
    uint64_t all = atomic_load(&region->len);
    if (o->offset >= all || o->len > all - o->offset)
        return wefti_fail(WEFT_ERR_RANGE, "%llu bytes from %llu on are not in a region of %llu", (unsigned long long)o->len,
                          (unsigned long long)o->offset, (unsigned long long)all);
    c.len = o->len ? o->len : all - o->offset;
    c.rights = o->rights ? o->rights : region->rights;
    if (c.rights & ~region->rights)
        return wefti_fail(WEFT_ERR_RIGHTS, "the region gives rights %#x at most, not %#x", region->rights, c.rights);
    if (o->lifetime_ns) {
        uint64_t now = weft_now(rs->rt);
        c.expires = o->lifetime_ns < UINT64_MAX - now ? now + o->lifetime_ns : 0;
    }
    wefti_conn_reach(rs->rt, owner);
    *n_out = encode(rs, &c, owner, token);
    return WEFT_OK;
}

weft_status_t weft_region_token(weft_region_t *region, const weft_region_token_opts_t *opts, void *buf, size_t *len)
{
    weft_region_token_opts_t o;
    uint8_t token[WEFT_RMA_TOKEN_MAX];
    size_t n = 0;
    if (!region || !len || (!buf && *len))
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !region ? "the region" : !len ? "len" : "buf");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_region_token_opts_t");
    if (!st)
        st = wefti_rma_region_enter(region);
    if (st)
        return st;
    st = make(region, &o, token, &n);
    wefti_rma_region_leave(region);
    if (st)
        return st;
    size_t cap = *len;
    *len = n;
    if (cap < n)
        return wefti_fail(WEFT_ERR_LIMIT, "the token has %zu bytes and the buffer %zu", n, cap);
    memcpy(buf, token, n);
    return WEFT_OK;
}
weft_status_t weft_token_read(const void *token, size_t len, weft_token_info_t *info_out)
{
    weft_token_info_t info = WEFT_TOKEN_INFO_INIT;
    token_t t;
    if (!token || !info_out || info_out->size < sizeof info.size)
        return wefti_fail(WEFT_ERR_INVALID, "%s", !token ? "the token is NULL" : "weft_token_info_t: use WEFT_TOKEN_INFO_INIT");
    weft_status_t st = decode(token, len, &t);
    if (st)
        return st;
    info.region = t.claim.region;
    info.generation = t.claim.generation;
    info.offset = t.claim.offset;
    info.len = t.claim.len;
    info.rights = t.claim.rights;
    memcpy(info.owner, t.owner, sizeof t.owner);
    info.size = info_out->size < sizeof info ? info_out->size : sizeof info;
    memcpy(info_out, &info, info.size);
    return WEFT_OK;
}
