/* tests/fuzz/rpc_codec.c - the bytes choose types and values: what is encoded comes back the same, inline or in pieces, aligned
 * or not; and whatever else they are is refused with words, or is values that can be read to their ends and encoded again.
 *
 * Input:   a byte of flags, a byte that says how many types, the types, then what the values are made of, or the bytes to
 * decode. */
#include <stdlib.h>
#include <string.h>

#include "rpc/codec.h"
#include "rpc/type.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define VALUES 8
#define TENSORS 4

enum { GIVEN = 1, PIECES = 2, SHIFTED = 4 }; /* flags: bytes to decode as they are; a low threshold; not aligned */

typedef struct input {
    const uint8_t *at, *end;
} input_t;

/* What a value is made of; freed as a whole. */
typedef struct made {
    weft_value_t values[VALUES];
    weft_tensor_t tensors[VALUES][TENSORS];
    int64_t dims[VALUES][TENSORS][2 * WEFT_TENSOR_DIMS];
    void *data[VALUES * (TENSORS + 1)];
    size_t n_data;
} made_t;

static volatile uint8_t sum; /* so that reading is not left out */

static void must(int fact)
{
    if (!fact)
        abort();
}

static uint8_t next(input_t *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

/* n bytes of the input, zeroes after its end; NULL for none. */
static void *take(made_t *m, input_t *in, size_t n, uint8_t mask)
{
    uint8_t *p = n ? malloc(n) : NULL;
    must(!n || p);
    for (size_t i = 0; i < n; i++)
        p[i] = next(in) & mask;
    m->data[m->n_data++] = p;
    return p;
}

static void make_tensor(made_t *m, input_t *in, weft_tensor_t *t, int64_t *dims)
{
    static const uint8_t codes[] = {0, 1, 2, 4, 5, 6};
    uint64_t bytes, first;
    *t = (weft_tensor_t){.device_type = 1, .lanes = 1, .shape = dims};
    t->code = codes[next(in) % 6];
    t->bits = (uint8_t)(8 << next(in) % 4);
    t->ndim = next(in) % 4;
    bool strides = next(in) & 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        dims[i] = next(in) % 5;
        dims[WEFT_TENSOR_DIMS + i] = (int64_t)(next(in) % 16) - 8;
    }
    t->strides = strides ? dims + WEFT_TENSOR_DIMS : NULL;
    must(!wefti_tensor_span(t, &bytes, &first));
    t->data = take(m, in, bytes, 0xff);
    t->byte_offset = first;
}

static void make_value(made_t *m, input_t *in, size_t i, uint32_t type)
{
    weft_value_t *v = &m->values[i];
    v->type = type;
    if (type < WEFT_T_STRING) {
        for (size_t k = 0; k < weft_type_size(type); k++)
            ((uint8_t *)&v->u64)[k] = next(in) & (type == WEFT_T_BOOL ? 1 : 0xff);
    } else if ((type & ~(uint32_t)WEFT_T_VECTOR) == WEFT_T_TENSOR) {
        v->tensors.n = type & WEFT_T_VECTOR ? next(in) % (TENSORS + 1) : 1;
        v->tensors.at = m->tensors[i];
        for (size_t k = 0; k < v->tensors.n; k++)
            make_tensor(m, in, &m->tensors[i][k], m->dims[i][k]);
    } else {
        size_t size = type == WEFT_T_STRING ? 1 : weft_type_size(type);
        v->view.n = next(in);
        v->view.data = take(m, in, v->view.n * size,
                            type == WEFT_T_STRING                   ? 0x7f
                            : type == (WEFT_T_VECTOR | WEFT_T_BOOL) ? 1
                                                                    : 0xff);
    }
}

static void same_tensor(const weft_tensor_t *a, const weft_tensor_t *b)
{
    uint64_t bytes, first, bytes_b, first_b;
    must(a->code == b->code && a->bits == b->bits && a->lanes == b->lanes && a->ndim == b->ndim);
    must(!wefti_tensor_span(a, &bytes, &first) && !wefti_tensor_span(b, &bytes_b, &first_b) && bytes == bytes_b &&
         first == first_b);
    must(!a->ndim || !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape));
    must(weft_tensor_compact(a) == weft_tensor_compact(b));
    if (!bytes)
        return;
    must((uintptr_t)b->data % wefti_tensor_align(b) == 0);
    must(!memcmp((uint8_t *)a->data + a->byte_offset - first, (uint8_t *)b->data + b->byte_offset - first, bytes));
}

static void same_value(const weft_value_t *a, const weft_value_t *b)
{
    must(a->type == b->type);
    if (a->type < WEFT_T_STRING) {
        must(!memcmp(&a->u64, &b->u64, weft_type_size(a->type)));
    } else if ((a->type & ~(uint32_t)WEFT_T_VECTOR) == WEFT_T_TENSOR) {
        must(a->tensors.n == b->tensors.n);
        for (uint64_t i = 0; i < a->tensors.n; i++)
            same_tensor(&a->tensors.at[i], &b->tensors.at[i]);
    } else {
        size_t size = a->type == WEFT_T_STRING ? 1 : weft_type_size(a->type);
        must(a->view.n == b->view.n && (!a->view.n || !memcmp(a->view.data, b->view.data, a->view.n * size)));
        must(!b->view.n || (uintptr_t)b->view.data % size == 0);
    }
}

static void read_all(const void *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sum ^= ((const uint8_t *)p)[i];
}

static void read_value(const weft_value_t *v)
{
    uint64_t bytes, first;
    if (v->type < WEFT_T_STRING)
        return;
    if ((v->type & ~(uint32_t)WEFT_T_VECTOR) != WEFT_T_TENSOR) {
        read_all(v->view.data, v->view.n * (v->type == WEFT_T_STRING ? 1 : weft_type_size(v->type)));
        return;
    }
    for (uint64_t i = 0; i < v->tensors.n; i++) {
        const weft_tensor_t *t = &v->tensors.at[i];
        must(!wefti_tensor_span(t, &bytes, &first));
        if (bytes)
            read_all((uint8_t *)t->data + t->byte_offset - first, bytes);
    }
}

/* Encode, join the pieces as a network would, decode, compare. */
static void there_and_back(const wefti_codec_t *c, const weft_value_t *values, uint64_t out_of_line, size_t shift)
{
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    weft_value_t back[VALUES];
    wefti_encoded_t e, sized;
    wefti_decoded_t d;
    must(c->n == 0 || wefti_encode(c, values, c->n, out_of_line, NULL, 0, iov, &sized) == WEFT_ERR_LIMIT);
    if (!c->n)
        sized.len = 0;
    /* exactly as long, so that a sanitizer sees the first byte past the end */
    uint8_t *bytes = malloc(sized.len + shift + 1), *payload = NULL;
    must(bytes != NULL);
    uint8_t *at = bytes + 1 + shift;
    must(!wefti_encode(c, values, c->n, out_of_line, at, sized.len, iov, &e) && e.len == sized.len &&
         e.pieces <= WEFTI_CODEC_PIECES);
    payload = malloc(e.payload ? e.payload : 1);
    must(payload != NULL);
    uint64_t joined = 0;
    for (size_t i = 0; i < e.pieces; joined += iov[i++].len)
        memcpy(payload + joined, iov[i].base, iov[i].len);
    must(joined == e.payload);
    must(!wefti_decode(c, at, e.len, e.payload, back, &d) && d.pieces == e.pieces);
    must(!wefti_decoded_payload(&d, payload));
    for (size_t i = 0; i < c->n; i++)
        same_value(&values[i], &back[i]);
    wefti_decoded_free(&d);
    for (size_t cut = 1; cut <= e.len && cut <= 4; cut++)
        must(wefti_decode(c, at, e.len - cut, e.payload, back, &d) == WEFT_ERR_PROTOCOL);
    free(payload);
    free(bytes);
}

static void decode_given(const wefti_codec_t *c, input_t *in, size_t shift)
{
    uint64_t payload_len = next(in);
    size_t n = (size_t)(in->end - in->at);
    uint8_t *bytes = malloc(n + shift + 1), *payload = calloc(1, payload_len + 1);
    weft_value_t values[VALUES];
    wefti_decoded_t d;
    must(bytes && payload);
    uint8_t *at = bytes + shift + 1;
    if (n)
        memcpy(at, in->at, n);
    if (wefti_decode(c, at, n, payload_len, values, &d)) {
        must(*weft_last_error() != 0);
    } else {
        must(!wefti_decoded_payload(&d, payload));
        for (size_t i = 0; i < c->n; i++)
            read_value(&values[i]);
        there_and_back(c, values, UINT64_MAX, 7);
        there_and_back(c, values, 1, 7);
        wefti_decoded_free(&d);
    }
    free(payload);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t known[] = {1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,  13,
                                    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2d};
    input_t in = {data, data + size};
    uint32_t types[VALUES];
    uint8_t flags = next(&in);
    size_t n = next(&in) % (VALUES + 1), shift = flags & SHIFTED ? flags >> 4 & 7 : 7;
    for (size_t i = 0; i < n; i++)
        types[i] = known[next(&in) % sizeof known];
    wefti_codec_t c;
    wefti_codec_init(&c, types, n);
    if (flags & GIVEN) {
        decode_given(&c, &in, shift);
        return 0;
    }
    made_t *m = calloc(1, sizeof *m);
    must(m != NULL);
    for (size_t i = 0; i < n; i++)
        make_value(m, &in, i, types[i]);
    there_and_back(&c, m->values, flags & PIECES ? next(&in) : UINT64_MAX, shift);
    for (size_t i = 0; i < m->n_data; i++)
        free(m->data[i]);
    free(m);
    return 0;
}
