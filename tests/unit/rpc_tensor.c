/* tests/unit/rpc_tensor.c - how much memory a tensor is: shapes that are none, products and strides that overflow, and spans that
 * hold every element. */
#include <weft/types.h>

#include "base/rng.h"
#include "rpc/type.h"
#include "test.h"

static weft_tensor_t f32(int32_t ndim, int64_t *shape, int64_t *strides)
{
    return (weft_tensor_t){.device_type = 1, .ndim = ndim, .code = 2, .bits = 32, .lanes = 1, .shape = shape, .strides = strides};
}

static uint64_t bytes_of(const weft_tensor_t *t)
{
    uint64_t n = 77;
    CHECK_OK(weft_tensor_bytes(t, &n));
    return n;
}

static void none(const weft_tensor_t *t, const char *sentence)
{
    uint64_t n = 77;
    CHECK_EQ(weft_tensor_bytes(t, &n), WEFT_ERR_INVALID);
    CHECK_EQ(n, 77);
    if (!strstr(weft_last_error(), sentence))
        FAIL("said \"%s\", not \"%s\"", weft_last_error(), sentence);
}

TEST(bytes_are_the_product)
{
    int64_t shape[] = {2, 3, 5};
    weft_tensor_t t = f32(3, shape, NULL);
    CHECK_EQ(bytes_of(&t), 120);
    t.ndim = 0;
    t.shape = NULL;
    CHECK_EQ(bytes_of(&t), 4);
    t.bits = 4;
    t.lanes = 2;
    t.code = 0;
    CHECK_EQ(bytes_of(&t), 1);
    t.bits = 128;
    t.lanes = 3;
    t.code = 5;
    CHECK_EQ(bytes_of(&t), 48);
    CHECK_EQ(wefti_tensor_align(&t), 8);
    t.bits = 64;
    CHECK_EQ(wefti_tensor_align(&t), 4);
    t.code = 6;
    t.bits = 8;
    CHECK_EQ(wefti_tensor_align(&t), 1);
    shape[1] = 0;
    t = f32(3, shape, NULL);
    CHECK_EQ(bytes_of(&t), 0);
}

TEST(what_is_no_tensor_is_refused)
{
    int64_t shape[WEFT_TENSOR_DIMS + 1];
    for (int i = 0; i <= WEFT_TENSOR_DIMS; i++)
        shape[i] = 1;
    weft_tensor_t t = f32(WEFT_TENSOR_DIMS, shape, NULL);
    CHECK_EQ(bytes_of(&t), 4);
    t.ndim = WEFT_TENSOR_DIMS + 1;
    none(&t, "17 dimensions");
    t.ndim = -1;
    none(&t, "-1 dimensions");
    t = f32(1, NULL, NULL);
    none(&t, "has no shape");
    t = f32(2, shape, NULL);
    shape[1] = -1;
    none(&t, "dimension 1 of a tensor is negative: -1");
    shape[0] = INT64_C(1) << 32;
    shape[1] = INT64_C(1) << 30;
    none(&t, "does not fit in 64 bits, from dimension 1");
    shape[1] = INT64_C(1) << 29;
    CHECK(bytes_of(&t) == UINT64_C(1) << 63);
    shape[0] = INT64_C(1) << 62;
    shape[1] = 0; /* does not make good what is too much before it, in whatever order */
    shape[2] = 8;
    t.ndim = 3;
    none(&t, "does not fit");
    t = f32(0, NULL, NULL);
    t.bits = 4;
    none(&t, "4 bits in 1 lanes are not whole bytes");
    t.bits = 0;
    none(&t, "not whole bytes");
    t.bits = 32;
    t.lanes = 0;
    none(&t, "not whole bytes");
    t.lanes = 1;
    t.code = 3;
    none(&t, "code 3");
    t.code = 7;
    none(&t, "code 7");
    t.code = 255;
    none(&t, "code 255");
}

TEST(compact_is_last_dimension_fastest)
{
    int64_t shape[] = {2, 3, 4}, strides[] = {12, 4, 1};
    weft_tensor_t t = f32(3, shape, strides);
    CHECK(weft_tensor_compact(&t));
    strides[0] = 13;
    CHECK(!weft_tensor_compact(&t));
    shape[0] = 1; /* nobody goes along it */
    CHECK(weft_tensor_compact(&t));
    shape[0] = 0;
    strides[2] = 9;
    CHECK(weft_tensor_compact(&t));
    shape[0] = 2;
    t.strides = NULL;
    CHECK(weft_tensor_compact(&t));
    int64_t back[] = {-1};
    t = f32(1, shape, back);
    CHECK(!weft_tensor_compact(&t));
}

TEST(strides_that_reach_too_far_are_refused)
{
    int64_t shape[] = {2, 2}, strides[] = {INT64_MAX, INT64_MAX};
    uint64_t bytes, first;
    weft_tensor_t t = f32(2, shape, strides);
    CHECK_EQ(wefti_tensor_span(&t, &bytes, &first), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "strides reach further"));
    strides[0] = INT64_MIN;
    strides[1] = 1;
    CHECK_EQ(wefti_tensor_span(&t, &bytes, &first), WEFT_ERR_INVALID);
    strides[1] = INT64_MIN;
    CHECK_EQ(wefti_tensor_span(&t, &bytes, &first), WEFT_ERR_INVALID);
    shape[0] = 3;
    strides[1] = 1;
    strides[0] = INT64_MAX / 2 + 1;
    CHECK_EQ(wefti_tensor_span(&t, &bytes, &first), WEFT_ERR_INVALID);
    shape[0] = 2;
    strides[0] = INT64_C(1) << 60;
    CHECK_OK(wefti_tensor_span(&t, &bytes, &first));
    CHECK(bytes == ((UINT64_C(1) << 60) + 2) * 4 && first == 0);
}

/* Against all elements, one by one. */
TEST(a_span_is_as_long_as_it_must_be)
{
    wefti_rng_t rng = {1};
    for (int round = 0; round < 20000; round++) {
        int64_t shape[4], strides[4], low = 0, high = 0, n = 1;
        int32_t ndim = (int32_t)(wefti_rng_next(&rng) % 5);
        for (int32_t i = 0; i < ndim; i++) {
            shape[i] = (int64_t)(wefti_rng_next(&rng) % 5);
            strides[i] = (int64_t)(wefti_rng_next(&rng) % 41) - 20;
            n *= shape[i];
        }
        for (int64_t k = 0; k < n; k++) {
            int64_t at = 0, rest = k;
            for (int32_t i = 0; i < ndim; i++) {
                at += rest % shape[i] * strides[i];
                rest /= shape[i];
            }
            low = at < low ? at : low;
            high = at > high ? at : high;
        }
        uint64_t bytes, first;
        weft_tensor_t t = f32(ndim, shape, strides);
        CHECK_OK(wefti_tensor_span(&t, &bytes, &first));
        CHECK_EQ(bytes, n ? (uint64_t)(high - low + 1) * 4 : 0);
        CHECK_EQ(first, n ? (uint64_t)-low * 4 : 0);
    }
}
