/* rpc/codec.c - values to bytes and back, as docs/design/wire.md says.
 *
 * Encoding writes as far as the buffer goes and counts on: one pass gives the bytes, or how many there would be. Decoding trusts nothing: every
 * length is held against what is left before it is used, products are checked, padding is zero, and the last byte belongs to the last value.
 *
 * Promise: neither allocates for scalars, strings and vectors that are aligned; a value has one encoding for a given threshold; what decode accepts
 * is safe to read as far as its lengths say, whoever wrote the bytes, and takes memory in proportion to them.
 * tests/unit/rpc_codec.c and tests/fuzz/rpc_codec.c hold us to it. */
#include "rpc/codec.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/utf8.h"
#include "rpc/type.h"

#define OUT_OF_LINE UINT32_MAX /* in place of a count: 64 bits of it follow, and the data is in the payload */
#define TENSOR_ALIGN 64
#define TENSOR_HEAD 24
/* flags of a tensor */
#define TENSOR_STRIDES 1
#define TENSOR_PIECE 2

_Static_assert(WEFT_T_VECTOR + WEFT_T_TENSOR <= UINT8_MAX, "a codec keeps types in bytes");

void wefti_codec_init(wefti_codec_t *c, const uint32_t *types, size_t n)
{
    memset(c, 0, sizeof *c);
    c->n = (uint32_t)n;
    c->fixed = true;
    for (size_t i = 0; i < n; i++) {
        size_t size = types[i] == WEFT_T_STRING ? 1 : weft_type_size(types[i]);
        c->types[i] = (uint8_t)types[i];
        c->size[i] = (uint8_t)size;
        c->fixed = c->fixed && types[i] < WEFT_T_STRING;
        if (c->fixed) {
            c->at[i] = (uint16_t)((c->len + size - 1) & ~(size - 1));
            c->len = (uint16_t)(c->at[i] + size);
        }
        c->tensors = c->tensors || (types[i] & ~(uint32_t)WEFT_T_VECTOR) == WEFT_T_TENSOR;
    }
    c->flat = !c->tensors;
}

/* --- out ----------------------------------------------------------------------------------------------------------------------- */

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
        s->cap = 0; /* not the rest of it either: a hole in the middle is of no use */
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

/* A [bool] is as good as its elements: whoever wrote 2 into one of them would be told so by the peer. */
static bool bools_ok(const uint8_t *p, uint64_t n)
{
    uint8_t all = 0;
    for (uint64_t i = 0; i < n; i++)
        all |= p[i];
    return all <= 1;
}

static weft_status_t put_view(sink_t *s, const weft_value_t *v, size_t i)
{
    size_t size = v->type == WEFT_T_STRING ? 1 : weft_type_size(v->type);
    uint64_t n = v->view.n, bytes;
    if (__builtin_mul_overflow(n, (uint64_t)size, &bytes) || bytes > PTRDIFF_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "value %zu (%s) has %llu elements, more than there can be", i + 1,
                          weft_type_name(v->type), (unsigned long long)n);
    if (n && !v->view.data)
        return wefti_fail(WEFT_ERR_INVALID, "value %zu (%s) has %llu elements and no data", i + 1, weft_type_name(v->type),
                          (unsigned long long)n);
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
    if (bytes > PTRDIFF_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "value %zu is a tensor of %llu bytes, more than there can be", i + 1,
                          (unsigned long long)bytes);
    if (bytes && !t->data)
        return wefti_fail(WEFT_ERR_INVALID, "value %zu is a tensor of %llu bytes without data", i + 1, (unsigned long long)bytes);
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

/* Pieces are in one sort of memory: if a tensor is on a device, that one. */
static weft_status_t find_device(const wefti_codec_t *c, const weft_value_t *values, sink_t *s)
{
    for (size_t i = 0; i < c->n; i++) {
        if ((values[i].type & ~(uint32_t)WEFT_T_VECTOR) != WEFT_T_TENSOR || !values[i].tensors.at)
            continue;
        /* one that says it is several is refused when its turn comes */
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

static inline void move_scalar(void *to, const void *from, size_t size)
{
    if (size == 4)
        memcpy(to, from, 4);
    else if (size == 8)
        memcpy(to, from, 8);
    else if (size == 2)
        memcpy(to, from, 2);
    else
        memcpy(to, from, 1);
}

/* Scalars only, and there is room: what most calls are. */
static inline bool encode_fixed(const wefti_codec_t *c, const weft_value_t *values, uint8_t *buf)
{
    size_t end = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (__builtin_expect(values[i].type != c->types[i], 0))
            return false;
        for (; __builtin_expect(end < c->at[i], 0); end++)
            buf[end] = 0;
        move_scalar(buf + end, &values[i].u64, c->size[i]);
        if (c->types[i] == WEFT_T_BOOL)
            buf[end] = buf[end] != 0;
        end += c->size[i];
    }
    return true;
}

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
        if (v->type == WEFT_T_STRING && !wefti_utf8_ok(v->view.data, n))
            return false;
        if (v->type == (WEFT_T_VECTOR | WEFT_T_BOOL) && !bools_ok(v->view.data, n))
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
    uint8_t *const begin = buf, *at = begin, *const end = cap ? begin + cap : begin; /* no bytes may be nowhere */
    if (__builtin_expect(!c->flat || n != c->n, 0))
        return SIZE_MAX;
    if (c->fixed)
        return cap >= c->len && encode_fixed(c, values, buf) ? c->len : SIZE_MAX;
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
    if (c->tensors && (st = find_device(c, values, &s)))
        return st;
    for (size_t i = 0; i < n && !st; i++) {
        const weft_value_t *v = &values[i];
        uint8_t b;
        switch (v->type) {
        case WEFT_T_BOOL:
            b = v->u8 != 0; /* by its byte: a bool that is neither may not be read as one */
            put(&s, &b, 1);
            break;
        case WEFT_T_I8:
        case WEFT_T_U8:
            put_scalar(&s, &v->u8, 1);
            break;
        case WEFT_T_I16:
        case WEFT_T_U16:
            put_scalar(&s, &v->u16, 2);
            break;
        case WEFT_T_I32:
        case WEFT_T_U32:
        case WEFT_T_F32:
            put_scalar(&s, &v->u32, 4);
            break;
        case WEFT_T_I64:
        case WEFT_T_U64:
        case WEFT_T_F64:
            put_scalar(&s, &v->u64, 8);
            break;
        case WEFT_T_TENSOR:
        case WEFT_T_VECTOR | WEFT_T_TENSOR:
            st = put_tensors(&s, v, i);
            break;
        default:
            st = put_view(&s, v, i);
            break;
        }
    }
    if (st)
        return st;
    if (__builtin_expect(s.overflow || s.len > SIZE_MAX, 0))
        return wefti_fail(WEFT_ERR_INVALID, "the values have more bytes than 64 bits can count");
    out->len = s.len;
    return s.len > cap ? WEFT_ERR_LIMIT : WEFT_OK;
}

/* --- in ------------------------------------------------------------------------------------------------------------------------ */

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

static const char past_end[] = "reaches beyond the end";

/* n bytes in place, after zeroes up to a multiple of `to`. NULL: not there, or not zeroes; *why says which. */
static inline const void *get(source_t *s, size_t to, uint64_t n, const char **why)
{
    size_t pad = -s->at & (to - 1);
    if (__builtin_expect(pad > s->len - s->at || n > s->len - s->at - pad, 0)) {
        *why = past_end;
        return NULL;
    }
    for (; __builtin_expect(pad != 0, 0); pad--) {
        if (s->bytes[s->at]) {
            *why = "has padding that is not zero";
            return NULL;
        }
        s->at++;
    }
    const void *p = s->bytes + s->at;
    s->at += n;
    return p;
}

/* Memory that goes with the decoded values, aligned to 16. */
static void *room(wefti_decoded_t *d, uint64_t n)
{
    uint64_t all = (n + 15) & ~UINT64_C(15);
    if (n > PTRDIFF_MAX - 64)
        return NULL;
    if (all <= (uint64_t)(d->end - d->at)) {
        void *p = d->at;
        d->at += all;
        return p;
    }
    /* many small ones share a block; the next pointer in front keeps the alignment */
    size_t block = all + 16 < 2048 ? 2048 : all + 16;
    uint8_t *more = wefti_malloc(block);
    if (!more)
        return NULL;
    memcpy(more, &d->more, sizeof d->more);
    d->more = more;
    d->at = more + 16 + all;
    d->end = more + block;
    return more + 16;
}

/* Where it lies, or a copy of it if that is not aligned. NULL: no memory. */
static const void *aligned(wefti_decoded_t *d, const void *p, uint64_t n, size_t to)
{
    if (!((uintptr_t)p & (to - 1)) || !n)
        return p;
    void *copy = room(d, n);
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
    wefti_piece_t *p = room(d, sizeof *p);
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

static inline const char *content_wrong(uint32_t type, const void *data, uint64_t n)
{
    if (type == WEFT_T_STRING && !wefti_utf8_ok(data, n))
        return "is not UTF-8";
    if (type == (WEFT_T_VECTOR | WEFT_T_BOOL) && !bools_ok(data, n))
        return "has a bool that is neither 0 nor 1";
    return NULL;
}

static weft_status_t get_view(source_t *s, weft_value_t *v)
{
    size_t size = s->type == WEFT_T_STRING ? 1 : weft_type_size(s->type);
    const char *why = NULL;
    const void *p = get(s, 4, 4, &why);
    uint32_t count;
    uint64_t n, bytes;
    if (!p)
        return refuse(s, why);
    memcpy(&count, p, sizeof count);
    v->view.data = NULL;
    v->view.n = count;
    if (count == OUT_OF_LINE) {
        p = get(s, 8, 8, &why);
        if (!p)
            return refuse(s, why);
        memcpy(&n, p, sizeof n);
        v->view.n = n;
        if (__builtin_mul_overflow(n, (uint64_t)size, &bytes))
            return refuse(s, "is longer than any payload");
        return new_piece(s, bytes, size, NULL, v);
    }
    if (!count)
        return WEFT_OK;
    bytes = (uint64_t)count * size;
    p = get(s, size, bytes, &why);
    if (!p || (why = content_wrong(s->type, p, count)))
        return refuse(s, why);
    v->view.data = aligned(s->d, p, bytes, size);
    return v->view.data ? WEFT_OK : WEFT_ERR_NOMEM;
}

static weft_status_t get_tensor(source_t *s, weft_tensor_t *t, weft_value_t *v)
{
    const char *why = NULL;
    const void *p = get(s, 8, TENSOR_HEAD, &why);
    uint64_t first = 0, want_first, bytes, want;
    if (!p)
        return refuse(s, why);
    wefti_reader_t r = wefti_reader(p, TENSOR_HEAD);
    memset(t, 0, sizeof *t);
    t->code = wefti_get_u8(&r);
    t->bits = wefti_get_u8(&r);
    t->lanes = wefti_get_u16(&r);
    t->ndim = wefti_get_u8(&r);
    uint8_t flags = wefti_get_u8(&r);
    uint16_t zero = wefti_get_u16(&r);
    t->device_type = (int32_t)wefti_get_u32(&r);
    t->device_id = (int32_t)wefti_get_u32(&r);
    bytes = wefti_get_u64(&r);
    if (zero || flags > (TENSOR_STRIDES | TENSOR_PIECE) || t->ndim > WEFT_TENSOR_DIMS)
        return refuse(s, "has a head that is none");
    bool strides = flags & TENSOR_STRIDES;
    uint64_t dims = (uint64_t)t->ndim * sizeof(int64_t);
    if (strides) {
        p = get(s, 8, sizeof first, &why);
        if (!p)
            return refuse(s, why);
        memcpy(&first, p, sizeof first);
    }
    p = get(s, 8, strides ? 2 * dims : dims, &why);
    if (!p)
        return refuse(s, why);
    /* read only: the bytes are somebody else's, and DLPack's pointer is not const */
    int64_t *shape = dims ? (int64_t *)(uintptr_t)aligned(s->d, p, strides ? 2 * dims : dims, sizeof *shape) : NULL;
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
    p = get(s, TENSOR_ALIGN, bytes, &why);
    if (!p)
        return refuse(s, why);
    t->data = (void *)(uintptr_t)aligned(s->d, p, bytes, wefti_tensor_align(t));
    return t->data ? WEFT_OK : WEFT_ERR_NOMEM;
}

static weft_status_t get_tensors(source_t *s, weft_value_t *v)
{
    uint32_t n = 1;
    v->tensors.at = NULL;
    v->tensors.n = 0;
    if (s->type & WEFT_T_VECTOR) {
        const char *why = NULL;
        const void *p = get(s, 4, 4, &why);
        if (!p)
            return refuse(s, why);
        memcpy(&n, p, sizeof n);
    }
    if (n > (s->len - s->at) / TENSOR_HEAD)
        return refuse(s, past_end);
    if (!n)
        return WEFT_OK;
    weft_tensor_t *t = room(s->d, n * sizeof *t);
    if (!t)
        return WEFT_ERR_NOMEM;
    v->tensors.at = t;
    v->tensors.n = n;
    for (uint32_t k = 0; k < n; k++) {
        weft_status_t st = get_tensor(s, &t[k], v);
        if (st)
            return st;
    }
    return WEFT_OK;
}

static weft_status_t get_scalar(source_t *s, weft_value_t *v)
{
    const char *why = NULL;
    size_t size = weft_type_size(s->type);
    const void *p = get(s, size, size, &why);
    if (!p)
        return refuse(s, why);
    /* whole, so that a value is the same bytes wherever it was made; the wire and the machine are little-endian (base/bytes.h) */
    v->view.n = 0;
    v->u64 = 0;
    move_scalar(&v->u64, p, size);
    return s->type == WEFT_T_BOOL && v->u8 > 1 ? refuse(s, "is neither 0 nor 1") : WEFT_OK;
}

/* Scalars only, as many bytes as they have. false: something is wrong with them, and who goes slowly says what. */
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

bool wefti_decode_small(const wefti_codec_t *c, const void *bytes, size_t len, weft_value_t *values_out)
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
    d->at = d->room;
    d->end = d->room + sizeof d->room;
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
            st = get_scalar(&s, v);
        else if ((s.type & ~(uint32_t)WEFT_T_VECTOR) == WEFT_T_TENSOR)
            st = get_tensors(&s, v);
        else
            st = get_view(&s, v);
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
