/* rpc/fetch.c - what came with a message: values in place, values that stay, payloads that are fetched.
 *
 * Nothing of a message is used before it was decoded, and everything is decoded in memory of ours: messages are copies (am/am.h),
 * payloads are pulled, never lent. So no peer can change what was checked.
 *
 *     rpc_in_t: missing == 0: ready.   missing > 0 --fetch--> under way --done--> ready | freed
 *
 * Promise: wefti_rpc_in_free() may come at any time; the memory is freed when the fabric does not use it any more.
 * tests/wire/rpc_memory.c, tests/fuzz/rpc_codec.c. */
#include "rpc/state.h"

static bool bytes_in_payload(const rpc_where_t *where)
{
    return where->ext && where->ext->flags & RPC_F_BYTES;
}

/* How much of the payload is before the pieces. */
static uint64_t before_pieces(uint32_t bytes_len)
{
    return ((uint64_t)bytes_len + 7) & ~UINT64_C(7);
}

weft_status_t wefti_rpc_values_here(const weft_am_t *am, const rpc_where_t *where, weft_value_t *values_out, wefti_decoded_t *d)
{
    const uint8_t *bytes = (const uint8_t *)am->header + where->at;
    const uint8_t *pieces = (const uint8_t *)am->data;
    size_t len = am->header_len - where->at;
    uint64_t payload = am->len;
    if (__builtin_expect(payload && !am->data, 0))
        return WEFT_ERR_AGAIN;
    if (__builtin_expect(bytes_in_payload(where), 0)) {
        uint64_t skip = before_pieces(where->ext->bytes_len);
        if (len || skip > payload)
            return wefti_fail(WEFT_ERR_PROTOCOL, "a payload is shorter than what is said to be in it");
        bytes = pieces;
        len = where->ext->bytes_len;
        if (skip) /* without a payload the pointer is NULL */
            pieces += skip;
        payload -= skip;
    }
    weft_status_t st = wefti_decode(where->codec, bytes, len, payload, values_out, d);
    if (__builtin_expect(!st && payload, 0)) {
        st = wefti_decoded_payload(d, pieces);
        if (st)
            wefti_decoded_free(d);
    }
    return st;
}

/* --- values that stay ------------------------------------------------------------------------------------------------------- */

void wefti_rpc_in_charge(rpc_in_t *in, rpc_share_t *share, uint64_t n)
{
    if (in->share)
        wefti_rpc_uncharge(in->share, in->charged);
    wefti_rpc_share_put(in->share);
    in->share = share;
    in->charged = n;
}

static void in_release(rpc_in_t *in)
{
    rpc_fetch_t *f = in->fetch;
    wefti_rpc_in_charge(in, NULL, 0);
    wefti_decoded_free(&in->decoded);
    if (in->payload)
        weft_pool_put(in->pool, in->payload); /* the runtime may be closed: a pool lives as long as its buffers */
    if (f) {
        weft_am_release(f->am);
        wefti_free(f->iov);
        wefti_free(f);
    }
    if (!in->lent)
        wefti_free(in);
}

void wefti_rpc_in_free(rpc_in_t *in)
{
    if (!in)
        return;
    if (in->fetch && in->fetch->under_way)
        in->fetch->dead = true;
    else
        in_release(in);
}

#define PIECE_ALIGN 64u
static uint64_t piece_space(uint64_t n)
{
    return (n + PIECE_ALIGN - 1) & ~(uint64_t)(PIECE_ALIGN - 1);
}

/* The payload is at the sender: read what is known of it. `header` bytes of values are in `copy`. */
static weft_status_t elsewhere(rpc_in_t *in, weft_am_t *am, const rpc_where_t *where, const void *copy, size_t header)
{
    rpc_fetch_t *f = (rpc_fetch_t *)wefti_calloc(1, sizeof *f);
    weft_status_t st = WEFT_OK;
    if (!f)
        return WEFT_ERR_NOMEM;
    in->fetch = f;
    f->bytes_missing = bytes_in_payload(where);
    if (f->bytes_missing) {
        f->bytes_len = where->ext->bytes_len;
        if (header || before_pieces(f->bytes_len) > am->len)
            return WEFT_ERR_PROTOCOL;
        in->space = am->len;
    } else {
        st = wefti_decode(in->codec, copy, header, am->len, in->values, &in->decoded);
        if (st) {
            in->decoded.more = NULL;
            return st;
        }
        for (const wefti_piece_t *p = in->decoded.first; p; p = p->next)
            in->space = piece_space(in->space) + p->len; /* nothing comes behind the last */
    }
    in->missing = am->len;
    f->am = weft_am_keep(am);
    return f->am ? WEFT_OK : WEFT_ERR_NOMEM;
}

uint64_t wefti_rpc_in_cost(const weft_am_t *am, const rpc_where_t *where)
{
    size_t header = am->header_len - where->at, data = am->data ? (size_t)am->len : 0;
    return sizeof(rpc_in_t) + where->codec->n * sizeof(weft_value_t) + 16 + ((header + 15) & ~(size_t)15) + data;
}

rpc_in_t *wefti_rpc_in_new(rpc_state_t *rs, weft_am_t *am, const rpc_where_t *where, void *space, weft_status_t *why_out)
{
    bool away = am->len && !am->data;
    size_t header = am->header_len - where->at, data = away ? 0 : (size_t)am->len;
    size_t header_space = (header + 15) & ~(size_t)15;
    rpc_in_t *in = (rpc_in_t *)(space ? space : wefti_malloc(wefti_rpc_in_cost(am, where)));
    if (!in) {
        *why_out = WEFT_ERR_NOMEM;
        return NULL;
    }
    memset(in, 0, offsetof(rpc_in_t, decoded));
    in->lent = space;
    in->decoded.more = NULL;
    in->rs = rs;
    in->codec = where->codec;
    in->values = (weft_value_t *)(void *)(in + 1);
    uint8_t *copy = (uint8_t *)(((uintptr_t)(in->values + where->codec->n) + 15) & ~(uintptr_t)15);
    memcpy(copy, (const uint8_t *)am->header + where->at, header);
    if (data)
        memcpy(copy + header_space, am->data, data);
    if (!am->len && wefti_decode_small(where->codec, copy, header, in->values)) {
        *why_out = WEFT_OK;
        return in;
    }
    if (!away) {
        weft_am_t mine = {.header = copy, .header_len = (uint32_t)header, .data = data ? copy + header_space : NULL, .len = data};
        rpc_where_t there = {where->codec, 0, where->ext};
        *why_out = wefti_rpc_values_here(&mine, &there, in->values, &in->decoded);
        if (*why_out)
            in->decoded.more = NULL;
    } else {
        *why_out = elsewhere(in, am, where, copy, header);
    }
    if (__builtin_expect(*why_out == WEFT_OK, 1))
        return in;
    in_release(in);
    return NULL;
}

/* --- fetching --------------------------------------------------------------------------------------------------------------- */

static weft_status_t pool_buffer(rpc_in_t *in)
{
    rpc_state_t *rs = in->rs;
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    weft_status_t st = WEFT_OK;
    o.max_bytes = (size_t)1 << 40; /* the limits are those of services and calls */
    if (!rs->pool)
        st = weft_pool_new(rs->rt, &o, &rs->pool);
    if (!st)
        st = weft_pool_get(rs->pool, in->space, &in->payload);
    if (!st)
        in->pool = rs->pool;
    return st;
}

/* The bytes were in the payload too: decode everything. */
static weft_status_t read_bytes(rpc_in_t *in, uint64_t len)
{
    uint8_t *at = (uint8_t *)in->payload;
    uint32_t bytes_len = in->fetch->bytes_len;
    uint64_t skip = before_pieces(bytes_len);
    weft_status_t st = wefti_decode(in->codec, at, bytes_len, len - skip, in->values, &in->decoded);
    return st || len == skip ? st : wefti_decoded_payload(&in->decoded, at + skip);
}

/* The pieces are here: put their addresses into the values. */
static weft_status_t place(rpc_in_t *in)
{
    size_t i = 0;
    for (wefti_piece_t *p = in->decoded.first; p; p = p->next, i++) {
        const weft_mem_kind_t *device = wefti_mem_device_of(in->fetch->iov[i].base, NULL);
        weft_status_t st = wefti_decoded_place(p, in->fetch->iov[i].base, device ? 2 : 1, 0);
        if (st)
            return st;
    }
    return WEFT_OK;
}

static void fetched(weft_op_t *op, void *user)
{
    rpc_in_t *in = (rpc_in_t *)user;
    rpc_fetch_t *f = in->fetch;
    weft_status_t st = op->status;
    rpc_end(in->rs);
    wefti_rpc_unwatch(f);
    f->under_way = false;
    if (f->dead) {
        in_release(in);
        return;
    }
    if (!st)
        st = f->bytes_missing ? read_bytes(in, op->len) : place(in);
    weft_am_release(f->am);
    f->am = NULL;
    if (!st)
        in->missing = 0;
    f->done(f->user, st);
}

/* A view cannot say that it is on a device, and text and bools are checked by the processor. */
static weft_status_t may_go_to_device(const rpc_in_t *in)
{
    for (const wefti_piece_t *p = in->decoded.first; p; p = p->next)
        if (!p->tensor)
            return wefti_fail(WEFT_ERR_UNSUPPORTED, "value %u (%s) cannot go to memory of a device, only tensors can",
                              p->index + 1, weft_type_name(p->value->type));
    return WEFT_OK;
}

/* Where the payload goes: the pieces one after the other in buf. */
static weft_status_t lay_out(rpc_in_t *in, void *buf, weft_am_pull_opts_t *o)
{
    rpc_fetch_t *f = in->fetch;
    f->iov = (weft_iov_t *)wefti_malloc((f->bytes_missing ? 1 : in->decoded.pieces) * sizeof *f->iov);
    if (!f->iov)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the places of arguments");
    o->iov = f->iov;
    if (f->bytes_missing) {
        f->iov[o->iov_n++] = (weft_iov_t){buf, in->missing};
        return WEFT_OK;
    }
    uint8_t *at = (uint8_t *)buf;
    for (const wefti_piece_t *p = in->decoded.first; p; p = p->next) {
        f->iov[o->iov_n++] = (weft_iov_t){at, p->len};
        at += piece_space(p->len);
    }
    return WEFT_OK;
}

weft_status_t wefti_rpc_in_fetch(rpc_in_t *in, void *buf, size_t cap, const weft_mem_kind_t *kind, uint64_t stall_ns,
                                 void (*done)(void *user, weft_status_t status), void *user)
{
    weft_status_t st = WEFT_OK;
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    rpc_fetch_t *f = in->fetch;
    if (buf && f->bytes_missing)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "so many small values cannot go into a buffer of the caller's");
    if (buf && cap < in->space)
        return wefti_fail(WEFT_ERR_TRUNCATED, "the buffer has %zu bytes and %zu are needed", cap, (size_t)in->space);
    if (buf && wefti_mem_device_of(buf, kind) && (st = may_go_to_device(in)))
        return st;
    if (!buf) {
        st = pool_buffer(in);
        buf = in->payload;
        kind = NULL;
    }
    if (!st)
        st = lay_out(in, buf, &o);
    if (st)
        return st;
    o.kind = kind;
    f->done = done;
    f->user = user;
    f->stall_ns = stall_ns;
    f->op.fn = fetched;
    f->op.user = in;
    weft_ep_t *ep = f->am->ep;
    if (ep && ep->lane && !wefti_mem_device_of(buf, kind))
        wefti_rpc_watch_marks(f, o.iov, o.iov_n, wefti_hash_u64(in->rs->random + ++in->rs->marks));
    rpc_begin(in->rs);
    st = weft_am_pull_with(f->am, &o, &f->op);
    if (st) {
        rpc_end(in->rs);
        return st;
    }
    f->under_way = true;
    wefti_rpc_watch(f, ep);
    return WEFT_OK;
}
