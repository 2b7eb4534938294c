/* rpc/type.c - types: their names and sizes; how much memory a tensor has, and where its elements lie in it.
 *
 * The numbers of the table are on the wire and in hashes, so new types are appended. Shapes and strides come from programs and,
 * through the codec, from peers: every product and every sum is checked.
 *
 * Promise: all elements of a tensor that wefti_tensor_span() accepts lie inside of the span. tests/unit/rpc_sig.c,
 * tests/unit/rpc_tensor.c. */
#include "rpc/type.h"

#include <string.h>

#include "base/log.h"

static const struct {
    const char *name, *vector; /* vector: NULL if there is none of them */
    size_t size;
} types[] = {
    [WEFT_T_VOID] = {"void", NULL, 0},     [WEFT_T_BOOL] = {"bool", "[bool]", 1},       [WEFT_T_I8] = {"i8", "[i8]", 1},
    [WEFT_T_I16] = {"i16", "[i16]", 2},    [WEFT_T_I32] = {"i32", "[i32]", 4},          [WEFT_T_I64] = {"i64", "[i64]", 8},
    [WEFT_T_U8] = {"u8", "[u8]", 1},       [WEFT_T_U16] = {"u16", "[u16]", 2},          [WEFT_T_U32] = {"u32", "[u32]", 4},
    [WEFT_T_U64] = {"u64", "[u64]", 8},    [WEFT_T_F32] = {"f32", "[f32]", 4},          [WEFT_T_F64] = {"f64", "[f64]", 8},
    [WEFT_T_STRING] = {"string", NULL, 0}, [WEFT_T_TENSOR] = {"tensor", "[tensor]", 0},
};
#define TYPES (sizeof types / sizeof types[0])

/* NULL: it is none. */
static const char *name_of(uint32_t type)
{
    uint32_t element = type & ~(uint32_t)WEFT_T_VECTOR;
    if (element >= TYPES)
        return NULL;
    return type & WEFT_T_VECTOR ? types[element].vector : types[element].name;
}

size_t weft_type_size(uint32_t type)
{
    return name_of(type) ? types[type & ~(uint32_t)WEFT_T_VECTOR].size : 0;
}

const char *weft_type_name(uint32_t type)
{
    const char *name = name_of(type);
    return name ? name : "?";
}

bool wefti_type_ok(uint32_t type)
{
    return type != WEFT_T_VOID && name_of(type);
}

bool wefti_type_find(const char *name, size_t len, uint32_t *type_out)
{
    for (uint32_t type = 0; type < WEFT_T_VECTOR + TYPES; type++) {
        const char *is = name_of(type);
        if (is && strlen(is) == len && !memcmp(is, name, len)) {
            *type_out = type;
            return true;
        }
    }
    return false;
}

/* --- tensors ------------------------------------------------------------------------------------------------------------- */

/* Numbers and layout are those of DLPack: its tensors can be passed as they are. */
_Static_assert(sizeof(weft_tensor_t) == 48, "a DLTensor has 48 bytes");
_Static_assert(offsetof(weft_tensor_t, code) == 20 && offsetof(weft_tensor_t, byte_offset) == 40,
               "fields lie where a DLTensor has them");

enum { CPU = 1, PINNED = 3, MANAGED = 13 };

static weft_status_t element_bytes(const weft_tensor_t *t, uint64_t *out)
{
    static const uint8_t known = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6;
    uint32_t bits = (uint32_t)t->bits * t->lanes;
    if (t->code > 6 || !(known >> t->code & 1))
        return wefti_fail(WEFT_ERR_INVALID, "a tensor's elements have the code %u, which is none of 0, 1, 2, 4, 5, 6", t->code);
    if (!bits || bits % 8)
        return wefti_fail(WEFT_ERR_INVALID, "a tensor's elements of %u bits in %u lanes are not whole bytes", t->bits, t->lanes);
    *out = bits / 8;
    return WEFT_OK;
}

weft_status_t weft_tensor_bytes(const weft_tensor_t *tensor, uint64_t *bytes_out)
{
    uint64_t bytes;
    bool empty = false;
    if (!tensor || !bytes_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", tensor ? "bytes_out" : "the tensor");
    weft_status_t st = element_bytes(tensor, &bytes);
    if (st)
        return st;
    if (tensor->ndim < 0 || tensor->ndim > WEFT_TENSOR_DIMS)
        return wefti_fail(WEFT_ERR_INVALID, "a tensor has %d dimensions; 0 to %d are possible", tensor->ndim, WEFT_TENSOR_DIMS);
    if (tensor->ndim && !tensor->shape)
        return wefti_fail(WEFT_ERR_INVALID, "a tensor of %d dimensions has no shape", tensor->ndim);
    /* an empty dimension counts only at the end, so that an overflow of the others is seen */
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t n = tensor->shape[i];
        if (n < 0)
            return wefti_fail(WEFT_ERR_INVALID, "dimension %d of a tensor is negative: %lld", i, (long long)n);
        if (n && __builtin_mul_overflow(bytes, (uint64_t)n, &bytes))
            return wefti_fail(WEFT_ERR_INVALID, "a tensor's shape does not fit in 64 bits, from dimension %d (%lld) on", i,
                              (long long)n);
        empty = empty || !n;
    }
    *bytes_out = empty ? 0 : bytes;
    return WEFT_OK;
}

bool weft_tensor_compact(const weft_tensor_t *tensor)
{
    if (!tensor || !tensor->strides)
        return tensor != NULL;
    /* the stride of a dimension of 0 or 1 does not matter */
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (!tensor->shape[i])
            return true;
    int64_t want = 1;
    for (int32_t i = tensor->ndim; i-- > 0;) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != want)
            return false;
        if (__builtin_mul_overflow(want, tensor->shape[i], &want))
            return false;
    }
    return true;
}

weft_status_t wefti_tensor_span(const weft_tensor_t *t, uint64_t *bytes_out, uint64_t *first_out)
{
    uint64_t element, before, all;
    int64_t low = 0, high = 0, reach; /* in elements, from the first */
    weft_status_t st = weft_tensor_bytes(t, bytes_out);
    *first_out = 0;
    if (st || weft_tensor_compact(t))
        return st;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (__builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &reach) ||
            (reach < 0 ? __builtin_add_overflow(low, reach, &low) : __builtin_add_overflow(high, reach, &high)))
            goto err_far;
    }
    (void)element_bytes(t, &element); /* weft_tensor_bytes() has checked it */
    before = (uint64_t)0 - (uint64_t)low;
    if (__builtin_add_overflow(before, (uint64_t)high + 1, &all) || __builtin_mul_overflow(all, element, bytes_out))
        goto err_far;
    *first_out = before * element;
    return WEFT_OK;
err_far:
    return wefti_fail(WEFT_ERR_INVALID, "a tensor's strides reach further than 64 bits");
}

size_t wefti_tensor_align(const weft_tensor_t *t)
{
    /* lanes are elements side by side, a complex number is two */
    uint32_t bytes = t->code == 5 ? t->bits / 16u : t->bits / 8u;
    return bytes >= 8 ? 8 : bytes >= 4 ? 4 : bytes >= 2 ? 2 : 1;
}

bool wefti_tensor_on_host(int32_t device_type)
{
    return device_type == CPU || device_type == PINNED || device_type == MANAGED;
}
