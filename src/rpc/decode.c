/* rpc/decode.c - bytes become values, as docs/design/wire.md says.
 *
 * Decoding trusts nothing: every length is compared with what is left before it is used, products are checked, padding is zero,
 * and the last byte belongs to the last value.
 *
 * Promise: nothing is allocated for scalars, and for strings and vectors that are aligned. What is accepted is safe to read as
 * far as its lengths say, whoever wrote the bytes, and takes memory in proportion to them. tests/unit/rpc_codec.c,
 * tests/fuzz/rpc_codec.c. */
#include "base/alloc.h"
#include "rpc/codec_parts.h"

/* --- any values ----------------------------------------------------------------------------------------------------------- */

typedef struct source {
    const uint8_t *bytes;
    size_t at, len;
    wefti_decoded_t *d;
    size_t index; /* of the value being read */
    uint32_t type;
} source_t;

static weft_status_t refuse(const source_t *s, const char *why)
{
    return wefti_fail(WEFT_ERR_PROTOCOL, "value %zu (%s) %s, at byte %zu of %zu", s->index + 1, weft_type_name(s->type), why,
                      s->at, s->len);
}

/* *p_out: n bytes in place, after zeroes up to a multiple of `to`. */
static weft_status_t get(source_t *s, size_t to, uint64_t n, const void **p_out)
{
    size_t pad = -s->at & (to - 1);
    if (pad > s->len - s->at || n > s->len - s->at - pad)
        return refuse(s, "reaches beyond the end");
    for (; pad; pad--) {
        if (s->bytes[s->at])
            return refuse(s, "has padding that is not zero");
        s->at++;
    }
    *p_out = s->bytes + s->at;
    s->at += n;
    return WEFT_OK;
}

/* A number of that size, aligned to it. */
static weft_status_t get_number(source_t *s, void *out, size_t size)
{
    const void *p;
    weft_status_t st = get(s, size, size, &p);
    if (!st)
        move_scalar(out, p, size);
    return st;
}

/* Memory that goes with the decoded values, aligned to 16. */
static void *space(wefti_decoded_t *d, uint64_t n)
{
    uint64_t all = (n + 15) & ~UINT64_C(15);
    if (n > PTRDIFF_MAX - 64)
        return NULL;
    if (all <= (uint64_t)(d->end - d->at)) {
        void *p = d->at;
        d->at += all;
        return p;
    }
    /* many small ones share an allocation, which begins with a pointer to the next, padded to 16 */
    size_t size = all + 16 < 2048 ? 2048 : all + 16;
    uint8_t *more = wefti_malloc(size);
    if (!more)
        return NULL;
    memcpy(more, &d->more, sizeof d->more);
    d->more = more;
    d->at = more + 16 + all;
    d->end = more + size;
    return more + 16;
}

/* Where it lies, or a copy of it if that is not aligned. NULL: no memory. */
static const void *aligned(wefti_decoded_t *d, const void *p, uint64_t n, size_t to)
{
    if (!((uintptr_t)p & (to - 1)) || !n)
        return p;
    void *copy = space(d, n);
    return copy ? memcpy(copy, p, n) : NULL;
}

void wefti_decoded_free_more(wefti_decoded_t *d)
{
    for (void *next; d->more; d->more = next) {
        memcpy(&next, d->more, sizeof next);
        wefti_free(d->more);
    }
}

static weft_status_t new_piece(source_t *s, uint64_t len, size_t to, weft_tensor_t *tensor, weft_value_t *value)
{
    wefti_decoded_t *d = s->d;
    if (d->pieces == WEFTI_CODEC_PIECES)
        return refuse(s, "is one piece of payload too many");
    wefti_piece_t *p = space(d, sizeof *p);
    if (!p)
        return WEFT_ERR_NOMEM;
    *p = (wefti_piece_t){NULL, d->payload, len, to, (uint32_t)s->index, tensor, value};
    if (!len || __builtin_add_overflow(d->payload, len, &d->payload))
        return refuse(s, len ? "is longer than any payload" : "is an empty piece of payload");
    d->pieces++;
    *d->last = p;
    d->last = &p->next;
    return WEFT_OK;
}

static weft_status_t get_view(source_t *s, size_t size, weft_value_t *v)
{
    const void *p;
    uint32_t count;
    uint64_t bytes;
    weft_status_t st = get_number(s, &count, sizeof count);
    if (st)
        return st;
    v->view.data = NULL;
    v->view.n = count;
    if (count == OUT_OF_LINE) {
        st = get_number(s, &v->view.n, sizeof v->view.n);
        if (!st && __builtin_mul_overflow(v->view.n, (uint64_t)size, &bytes))
            st = refuse(s, "is longer than any payload");
        return st ? st : new_piece(s, bytes, size, NULL, v);
    }
    if (!count)
        return WEFT_OK;
    bytes = (uint64_t)count * size;
    st = get(s, size, bytes, &p);
    if (st)
        return st;
    const char *why = content_wrong(s->type, p, count);
    if (why)
        return refuse(s, why);
    v->view.data = aligned(s->d, p, bytes, size);
    return v->view.data ? WEFT_OK : WEFT_ERR_NOMEM;
}

/* The head of a tensor: its type and device, flags, and how many bytes of data it says it has. */
static weft_status_t get_tensor_head(source_t *s, weft_tensor_t *t, uint8_t *flags_out, uint64_t *bytes_out)
{
    const void *p;
    weft_status_t st = get(s, 8, TENSOR_HEAD, &p);
    if (st)
        return st;
    wefti_reader_t r = wefti_reader(p, TENSOR_HEAD);
    memset(t, 0, sizeof *t);
    t->code = wefti_get_u8(&r);
    t->bits = wefti_get_u8(&r);
    t->lanes = wefti_get_u16(&r);
    t->ndim = wefti_get_u8(&r);
    *flags_out = wefti_get_u8(&r);
    uint16_t zero = wefti_get_u16(&r);
    t->device_type = (int32_t)wefti_get_u32(&r);
    t->device_id = (int32_t)wefti_get_u32(&r);
    *bytes_out = wefti_get_u64(&r);
    if (zero || *flags_out > (TENSOR_STRIDES | TENSOR_PIECE) || t->ndim > WEFT_TENSOR_DIMS)
        return refuse(s, "has a head that is none");
    return WEFT_OK;
}

static weft_status_t get_tensor(source_t *s, weft_tensor_t *t, weft_value_t *v)
{
    const void *p;
    uint8_t flags;
    uint64_t first = 0, want_first, bytes, want;
    weft_status_t st = get_tensor_head(s, t, &flags, &bytes);
    if (st)
        return st;
    bool strides = flags & TENSOR_STRIDES;
    uint64_t dims = (uint64_t)t->ndim * sizeof(int64_t), both = strides ? 2 * dims : dims;
    if (strides)
        st = get_number(s, &first, sizeof first);
    if (!st)
        st = get(s, 8, both, &p);
    if (st)
        return st;
    /* nobody writes there: the bytes are the sender's, but the pointer of DLPack is not const */
    int64_t *shape = dims ? (int64_t *)(uintptr_t)aligned(s->d, p, both, sizeof *shape) : NULL;
    if (dims && !shape)
        return WEFT_ERR_NOMEM;
    t->shape = shape;
    t->strides = strides && dims ? shape + t->ndim : NULL;
    if (wefti_tensor_span(t, &want, &want_first))
        return WEFT_ERR_PROTOCOL; /* the sentence is there */
    if (strides && weft_tensor_compact(t))
        return refuse(s, "has strides and needs none");
    if (bytes != want || first != want_first)
        return refuse(s, "has another length than its shape says");
    t->byte_offset = first;
    if (flags & TENSOR_PIECE)
        return new_piece(s, bytes, wefti_tensor_align(t), t, v);
    if (bytes && !wefti_tensor_on_host(t->device_type))
        return refuse(s, "is on a device, and not in the payload");
    t->device_type = 1;
    t->device_id = 0;
    if (!bytes)
        return WEFT_OK;
    st = get(s, TENSOR_ALIGN, bytes, &p);
    if (st)
        return st;
    t->data = (void *)(uintptr_t)aligned(s->d, p, bytes, wefti_tensor_align(t));
    return t->data ? WEFT_OK : WEFT_ERR_NOMEM;
}

static weft_status_t get_tensors(source_t *s, weft_value_t *v)
{
    uint32_t n = 1;
    weft_status_t st = WEFT_OK;
    v->tensors.at = NULL;
    v->tensors.n = 0;
    if (s->type & WEFT_T_VECTOR)
        st = get_number(s, &n, sizeof n);
    if (!st && n > (s->len - s->at) / TENSOR_HEAD)
        st = refuse(s, "reaches beyond the end");
    if (st || !n)
        return st;
    weft_tensor_t *t = space(s->d, n * sizeof *t);
    if (!t)
        return WEFT_ERR_NOMEM;
    v->tensors.at = t;
    v->tensors.n = n;
    for (uint32_t k = 0; k < n && !st; k++)
        st = get_tensor(s, &t[k], v);
    return st;
}

static weft_status_t get_scalar(source_t *s, size_t size, weft_value_t *v)
{
    /* all of it is set: a value is the same bytes wherever it was made. Wire and machine are little-endian (base/bytes.h) */
    v->view.n = 0;
    v->u64 = 0;
    weft_status_t st = get_number(s, &v->u64, size);
    return !st && s->type == WEFT_T_BOOL && v->u8 > 1 ? refuse(s, "is neither 0 nor 1") : st;
}

/* --- small values: what most calls have ------------------------------------------------------------------------------------ */

/* Scalars only, as many bytes as they have. False: something is wrong; wefti_decode() says what. */
static inline bool decode_fixed(const wefti_codec_t *c, const uint8_t *bytes, weft_value_t *values)
{
    size_t end = 0;
    for (size_t i = 0; i < c->n; i++) {
        weft_value_t *v = &values[i];
        uint8_t wrong = 0;
        for (; __builtin_expect(end < c->at[i], 0); end++)
            wrong |= bytes[end];
        v->type = c->types[i];
        v->zero = 0;
        v->view.n = 0;
        v->u64 = 0;
        move_scalar(&v->u64, bytes + end, c->size[i]);
        if (__builtin_expect(wrong || (c->types[i] == WEFT_T_BOOL && v->u8 > 1), 0))
            return false;
        end += c->size[i];
    }
    return true;
}

/* Where what is aligned to `to` begins, if n bytes of it are there and the padding is zero; SIZE_MAX if not. */
static inline size_t skip_to(const uint8_t *bytes, size_t at, size_t len, size_t to, size_t n)
{
    size_t pad = -at & (to - 1);
    uint8_t wrong = 0;
    if (__builtin_expect(pad > len - at || len - at - pad < n, 0))
        return SIZE_MAX;
    for (; pad; pad--)
        wrong |= bytes[at++];
    return __builtin_expect(wrong, 0) ? SIZE_MAX : at;
}

static inline bool get_small_view(weft_value_t *v, size_t size, const uint8_t *bytes, size_t *at_inout, size_t len)
{
    uint32_t count;
    size_t at = skip_to(bytes, *at_inout, len, sizeof count, sizeof count);
    if (__builtin_expect(at == SIZE_MAX, 0))
        return false;
    memcpy(&count, bytes + at, sizeof count);
    at += sizeof count;
    v->view.data = NULL;
    v->view.n = count;
    if (count) {
        size_t n = count * size;
        if (count > UINT16_MAX)
            return false;
        at = size == 1 ? (len - at < n ? SIZE_MAX : at) : skip_to(bytes, at, len, size, n);
        if (__builtin_expect(at == SIZE_MAX || ((uintptr_t)(bytes + at) & (size - 1)), 0) ||
            content_wrong(v->type, bytes + at, count))
            return false;
        v->view.data = bytes + at;
        at += n;
    }
    *at_inout = at;
    return true;
}

bool wefti_decode_flat(const wefti_codec_t *c, const void *bytes, size_t len, weft_value_t *values_out)
{
    const uint8_t *p = bytes;
    size_t at = 0;
    if (__builtin_expect(!c->flat, 0))
        return false;
    if (c->fixed)
        return len == c->len && decode_fixed(c, p, values_out);
    for (size_t i = 0; i < c->n; i++) {
        weft_value_t *v = &values_out[i];
        size_t size = c->size[i];
        v->type = c->types[i];
        v->zero = 0;
        if (v->type >= WEFT_T_STRING) {
            if (!get_small_view(v, size, p, &at, len))
                return false;
            continue;
        }
        at = skip_to(p, at, len, size, size);
        if (at == SIZE_MAX)
            return false;
        v->view.n = 0;
        v->u64 = 0;
        move_scalar(&v->u64, p + at, size);
        if (v->type == WEFT_T_BOOL && v->u8 > 1)
            return false;
        at += size;
    }
    return at == len;
}

weft_status_t wefti_decode(const wefti_codec_t *c, const void *bytes, size_t len, uint64_t payload_len, weft_value_t *values_out,
                           wefti_decoded_t *d)
{
    d->first = NULL;
    d->last = &d->first;
    d->pieces = 0;
    d->payload = 0;
    d->at = d->first_space;
    d->end = d->first_space + sizeof d->first_space;
    d->more = NULL;
    if (!payload_len && wefti_decode_small(c, bytes, len, values_out))
        return WEFT_OK;
    source_t s = {.bytes = bytes, .len = len, .d = d};
    weft_status_t st = WEFT_OK;
    for (; s.index < c->n && !st; s.index++) {
        weft_value_t *v = &values_out[s.index];
        s.type = c->types[s.index];
        v->type = s.type;
        v->zero = 0;
        if (s.type < WEFT_T_STRING)
            st = get_scalar(&s, c->size[s.index], v);
        else if (is_tensor(s.type))
            st = get_tensors(&s, v);
        else
            st = get_view(&s, c->size[s.index], v);
    }
    if (!st && s.at != len)
        st = wefti_fail(WEFT_ERR_PROTOCOL, "%zu bytes are left over after %u values", len - s.at, c->n);
    if (!st && d->payload != payload_len)
        st = wefti_fail(WEFT_ERR_PROTOCOL, "the payload has %llu bytes, and the values say %llu", (unsigned long long)payload_len,
                        (unsigned long long)d->payload);
    if (__builtin_expect(st, 0))
        wefti_decoded_free(d);
    return st;
}

weft_status_t wefti_decoded_place(wefti_piece_t *piece, void *data, int32_t device_type, int32_t device_id)
{
    if (piece->tensor) {
        piece->tensor->data = data;
        piece->tensor->device_type = device_type;
        piece->tensor->device_id = device_id;
        return WEFT_OK;
    }
    const char *why = content_wrong(piece->value->type, data, piece->value->view.n);
    if (why)
        return wefti_fail(WEFT_ERR_PROTOCOL, "value %u (%s) %s", piece->index + 1, weft_type_name(piece->value->type), why);
    piece->value->view.data = data;
    return WEFT_OK;
}

weft_status_t wefti_decoded_payload(wefti_decoded_t *d, const void *payload)
{
    for (wefti_piece_t *p = d->first; p; p = p->next) {
        const void *data = aligned(d, (const uint8_t *)payload + p->offset, p->len, p->align);
        if (!data)
            return WEFT_ERR_NOMEM;
        weft_status_t st = wefti_decoded_place(p, (void *)(uintptr_t)data, 1, 0);
        if (st)
            return st;
    }
    return WEFT_OK;
}
