/* rpc/encode.c - values become bytes, as docs/design/wire.md says.
 *
 * Encoding writes as far as the buffer goes and then only counts: one pass gives the bytes, or how many there would be.
 *
 * Promise: nothing is allocated, and a value has one encoding for a given threshold. tests/unit/rpc_codec.c,
 * tests/fuzz/rpc_codec.c. */
#include "rpc/codec_parts.h"

_Static_assert(WEFT_T_VECTOR + WEFT_T_TENSOR <= UINT8_MAX, "a codec keeps types in bytes");

void wefti_codec_init(wefti_codec_t *c, const uint32_t *types, size_t n)
{
    memset(c, 0, sizeof *c);
    c->n = (uint32_t)n;
    c->fixed = c->flat = c->tight = true;
    for (size_t i = 0; i < n; i++) {
        size_t size = types[i] == WEFT_T_STRING ? 1 : weft_type_size(types[i]);
        c->types[i] = (uint8_t)types[i];
        c->size[i] = (uint8_t)size;
        c->fixed = c->fixed && types[i] < WEFT_T_STRING;
        if (c->fixed) {
            c->at[i] = (uint16_t)((c->len + size - 1) & ~(size - 1));
            c->tight = c->tight && c->at[i] == c->len && types[i] != WEFT_T_BOOL;
            c->len = (uint16_t)(c->at[i] + size);
            c->up[i] = (uint8_t)(64 - 8 * size);
            c->down[i] = (uint8_t)(c->up[i] - 8 * (c->at[i] & 7));
        }
        c->flat = c->flat && !is_tensor(types[i]);
    }
    c->tight = c->tight && c->fixed;
}

/* --- any values ----------------------------------------------------------------------------------------------------------- */

typedef struct sink {
    uint8_t *buf;
    uint64_t cap, len; /* len goes on beyond cap: nothing is written there */
    uint64_t out_of_line;
    weft_iov_t *iov;
    wefti_encoded_t *out;
    bool overflow; /* len does not fit */
} sink_t;

static void put(sink_t *s, const void *p, uint64_t n)
{
    if (s->len <= s->cap && n <= s->cap - s->len && n)
        memcpy(s->buf + s->len, p, n);
    else if (n)
        s->cap = 0; /* nothing more is written: bytes with a hole are of no use */
    s->overflow = s->overflow || __builtin_add_overflow(s->len, n, &s->len);
}

static void align(sink_t *s, size_t to)
{
    static const uint8_t zeroes[TENSOR_ALIGN];
    put(s, zeroes, -s->len & (to - 1));
}

/* A scalar of a known size, aligned to it. */
static inline void put_scalar(sink_t *s, const void *p, size_t size)
{
    align(s, size);
    put(s, p, size);
}

static void add_piece(sink_t *s, const void *data, uint64_t bytes)
{
    s->iov[s->out->pieces++] = (weft_iov_t){(void *)(uintptr_t)data, bytes};
    s->overflow = s->overflow || __builtin_add_overflow(s->out->payload, bytes, &s->out->payload);
}

static bool wants_piece(const sink_t *s, uint64_t bytes)
{
    return bytes && bytes >= s->out_of_line && s->out->pieces < WEFTI_CODEC_PIECES;
}

/* size: of an element. */
static weft_status_t put_view(sink_t *s, const weft_value_t *v, size_t size, size_t i)
{
    uint64_t n = v->view.n, bytes;
    bool many = __builtin_mul_overflow(n, (uint64_t)size, &bytes) || bytes > PTRDIFF_MAX;
    if (many || (n && !v->view.data))
        return wefti_fail(WEFT_ERR_INVALID, "value %zu (%s) has %llu elements%s", i + 1, weft_type_name(v->type),
                          (unsigned long long)n, many ? ", more than there can be" : " and no data");
    if (v->type == WEFT_T_STRING && !wefti_utf8_ok(v->view.data, n))
        return wefti_fail(WEFT_ERR_INVALID, "value %zu is a string that is not UTF-8; pass bytes as [u8]", i + 1);
    if (v->type == (WEFT_T_VECTOR | WEFT_T_BOOL) && !bools_ok(v->view.data, n))
        return wefti_fail(WEFT_ERR_INVALID, "value %zu is a [bool] with elements that are neither 0 nor 1", i + 1);
    bool piece = wants_piece(s, bytes);
    if (!piece && n >= OUT_OF_LINE)
        return wefti_fail(WEFT_ERR_UNSUPPORTED,
                          "value %zu (%s) is too long to be sent beside so many others, or beside a tensor on a device", i + 1,
                          weft_type_name(v->type));
    uint32_t count = piece ? OUT_OF_LINE : (uint32_t)n;
    put_scalar(s, &count, sizeof count);
    if (piece) {
        put_scalar(s, &n, sizeof n);
        add_piece(s, v->view.data, bytes);
    } else if (n) {
        align(s, size);
        put(s, v->view.data, bytes);
    }
    return WEFT_OK;
}

static weft_status_t put_tensor(sink_t *s, const weft_tensor_t *t, size_t i)
{
    uint64_t bytes, first;
    weft_status_t st = wefti_tensor_span(t, &bytes, &first);
    if (st)
        return st;
    if (bytes > PTRDIFF_MAX || (bytes && !t->data))
        return wefti_fail(WEFT_ERR_INVALID, "value %zu is a tensor of %llu bytes%s", i + 1, (unsigned long long)bytes,
                          bytes > PTRDIFF_MAX ? ", more than there can be" : " without data");
    const uint8_t *data = bytes ? (const uint8_t *)t->data + t->byte_offset - first : NULL;
    bool compact = weft_tensor_compact(t), device = !wefti_tensor_on_host(t->device_type);
    bool piece = device ? bytes != 0 : wants_piece(s, bytes);
    if (device && piece && s->out->pieces == WEFTI_CODEC_PIECES)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "more than %d tensors on a device; send them in several calls",
                          WEFTI_CODEC_PIECES);
    uint8_t head[TENSOR_HEAD];
    wefti_writer_t w = wefti_writer(head, sizeof head);
    wefti_put_u8(&w, t->code);
    wefti_put_u8(&w, t->bits);
    wefti_put_u16(&w, t->lanes);
    wefti_put_u8(&w, (uint8_t)t->ndim);
    wefti_put_u8(&w, (uint8_t)((compact ? 0 : TENSOR_STRIDES) | (piece ? TENSOR_PIECE : 0)));
    wefti_put_u16(&w, 0);
    wefti_put_u32(&w, (uint32_t)t->device_type);
    wefti_put_u32(&w, (uint32_t)t->device_id);
    wefti_put_u64(&w, bytes);
    align(s, 8);
    put(s, head, sizeof head);
    if (!compact)
        put(s, &first, sizeof first);
    put(s, t->shape, (uint64_t)t->ndim * sizeof *t->shape);
    if (!compact)
        put(s, t->strides, (uint64_t)t->ndim * sizeof *t->strides);
    if (piece) {
        add_piece(s, data, bytes);
    } else if (bytes) {
        align(s, TENSOR_ALIGN);
        put(s, data, bytes);
    }
    return WEFT_OK;
}

static weft_status_t put_tensors(sink_t *s, const weft_value_t *v, size_t i)
{
    uint64_t n = v->tensors.n;
    bool vector = v->type & WEFT_T_VECTOR;
    if (vector ? n >= OUT_OF_LINE : n != 1)
        return wefti_fail(WEFT_ERR_INVALID, "value %zu (%s) is of %llu tensors", i + 1, weft_type_name(v->type),
                          (unsigned long long)n);
    if (n && !v->tensors.at)
        return wefti_fail(WEFT_ERR_INVALID, "value %zu (%s) points to no tensor", i + 1, weft_type_name(v->type));
    if (vector) {
        uint32_t count = (uint32_t)n;
        put_scalar(s, &count, sizeof count);
    }
    for (uint64_t k = 0; k < n; k++) {
        weft_status_t st = put_tensor(s, &v->tensors.at[k], i);
        if (st)
            return st;
    }
    return WEFT_OK;
}

/* All pieces are in one kind of memory: if a tensor is on a device, in that of the device. */
static weft_status_t find_device(const wefti_codec_t *c, const weft_value_t *values, sink_t *s)
{
    for (size_t i = 0; i < c->n; i++) {
        if (!is_tensor(values[i].type) || !values[i].tensors.at)
            continue;
        /* a tensor that says it is several is refused later, by put_tensors() */
        uint64_t several = values[i].type & WEFT_T_VECTOR ? values[i].tensors.n : values[i].tensors.n == 1;
        for (uint64_t k = 0; k < several; k++) {
            const weft_tensor_t *t = &values[i].tensors.at[k];
            uint64_t bytes;
            weft_status_t st = weft_tensor_bytes(t, &bytes);
            if (st)
                return st;
            if (!bytes || wefti_tensor_on_host(t->device_type))
                continue;
            if (s->out->device_type != 1 && (s->out->device_type != t->device_type || s->out->device_id != t->device_id))
                return wefti_fail(WEFT_ERR_UNSUPPORTED, "tensors on device %d:%d and on %d:%d in one call; copy one of them",
                                  s->out->device_type, s->out->device_id, t->device_type, t->device_id);
            s->out->device_type = t->device_type;
            s->out->device_id = t->device_id;
            s->out_of_line = UINT64_MAX;
        }
    }
    return WEFT_OK;
}

static weft_status_t check_types(const wefti_codec_t *c, const weft_value_t *values, size_t n)
{
    if (n != c->n)
        return wefti_fail(WEFT_ERR_INVALID, "%zu values where the signature has %u", n, c->n);
    for (size_t i = 0; i < n; i++)
        if (__builtin_expect(values[i].type != c->types[i], 0))
            return wefti_fail(WEFT_ERR_INVALID, "value %zu is of type %s, and the signature says %s", i + 1,
                              weft_type_name(values[i].type), weft_type_name(c->types[i]));
    return WEFT_OK;
}

/* --- small values: what most calls have ------------------------------------------------------------------------------------ */

/* Zeroes up to a multiple of `to` from buf on, if `n` bytes fit behind them; NULL: they do not. */
static inline uint8_t *pad_to(const uint8_t *buf, uint8_t *at, const uint8_t *end, size_t to, uint64_t n)
{
    size_t pad = -(size_t)(at - buf) & (to - 1);
    if (__builtin_expect((size_t)(end - at) < pad || (size_t)(end - at) - pad < n, 0))
        return NULL;
    for (; pad; pad--)
        *at++ = 0;
    return at;
}

static inline bool put_small_view(const weft_value_t *v, size_t size, uint64_t out_of_line, const uint8_t *buf,
                                  uint8_t **at_inout, const uint8_t *end)
{
    uint64_t n = v->view.n, bytes = n * size;
    uint32_t count = (uint32_t)n;
    uint8_t *at = pad_to(buf, *at_inout, end, sizeof count, sizeof count);
    if (__builtin_expect(!at || n > UINT16_MAX || bytes >= out_of_line, 0))
        return false;
    memcpy(at, &count, sizeof count);
    at += sizeof count;
    if (n) {
        at = size == 1 ? at : pad_to(buf, at, end, size, bytes);
        if (__builtin_expect(!at || (size_t)(end - at) < bytes || !v->view.data, 0))
            return false;
        if (content_wrong(v->type, v->view.data, n))
            return false;
        memcpy(at, v->view.data, bytes);
        at += bytes;
    }
    *at_inout = at;
    return true;
}

size_t wefti_encode_small(const wefti_codec_t *c, const weft_value_t *values, size_t n, uint64_t out_of_line, void *buf,
                          size_t cap)
{
    uint8_t *const begin = buf, *at = begin, *const end = cap ? begin + cap : begin; /* without bytes buf may be NULL */
    if (__builtin_expect(!c->flat || n != c->n, 0))
        return SIZE_MAX;
    if (c->fixed) {
        if (__builtin_expect(cap < ((c->len + 7u) & ~7u) || !wefti_encode_fixed_ok(c, values, n), 0))
            return SIZE_MAX;
        wefti_encode_fixed(c, values, buf);
        return c->len;
    }
    for (size_t i = 0; i < n; i++) {
        const weft_value_t *v = &values[i];
        size_t size = c->size[i];
        if (__builtin_expect(v->type != c->types[i], 0))
            return SIZE_MAX;
        if (v->type >= WEFT_T_STRING) {
            if (!put_small_view(v, size, out_of_line, begin, &at, end))
                return SIZE_MAX;
            continue;
        }
        at = pad_to(begin, at, end, size, size);
        if (!at)
            return SIZE_MAX;
        move_scalar(at, &v->u64, size);
        if (v->type == WEFT_T_BOOL)
            *at = *at != 0;
        at += size;
    }
    return (size_t)(at - begin);
}

weft_status_t wefti_encode(const wefti_codec_t *c, const weft_value_t *values, size_t n, uint64_t out_of_line, void *buf,
                           size_t cap, weft_iov_t *iov, wefti_encoded_t *out)
{
    size_t small = wefti_encode_small(c, values, n, out_of_line, buf, cap);
    if (small != SIZE_MAX) {
        *out = (wefti_encoded_t){.len = small, .device_type = 1};
        return WEFT_OK;
    }
    weft_status_t st = check_types(c, values, n);
    if (st)
        return st;
    sink_t s = {.buf = buf, .cap = cap, .out_of_line = out_of_line, .iov = iov, .out = out};
    *out = (wefti_encoded_t){.device_type = 1};
    if (!c->flat && (st = find_device(c, values, &s)))
        return st;
    for (size_t i = 0; i < n && !st; i++) {
        const weft_value_t *v = &values[i];
        uint8_t b = v->u8 != 0; /* a bool by its byte: one that is neither 0 nor 1 may not be read as a bool */
        if (is_tensor(v->type))
            st = put_tensors(&s, v, i);
        else if (v->type >= WEFT_T_STRING)
            st = put_view(&s, v, c->size[i], i);
        else
            put_scalar(&s, v->type == WEFT_T_BOOL ? (const void *)&b : &v->u64, c->size[i]);
    }
    if (st)
        return st;
    if (__builtin_expect(s.overflow || s.len > SIZE_MAX, 0))
        return wefti_fail(WEFT_ERR_INVALID, "the values have more bytes than 64 bits can count");
    out->len = s.len;
    return s.len > cap ? WEFT_ERR_LIMIT : WEFT_OK;
}
