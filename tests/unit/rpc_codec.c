/* tests/unit/rpc_codec.c - values as bytes: the vectors of docs/design/wire.md, views without copies, pieces out of line, and
 * bytes that are no values. */
#include <weft/types.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "rpc/codec.h"
#include "rpc/type.h"
#include "test.h"

#define INLINE UINT64_MAX
#define VEC(t) (WEFT_T_VECTOR | (t))

static wefti_codec_t codec_of(size_t n, const uint32_t *types)
{
    wefti_codec_t c;
    wefti_codec_init(&c, types, n);
    return c;
}
#define CODEC(...) codec_of(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (uint32_t[]){__VA_ARGS__})

static size_t unhex(const char *hex, uint8_t *out)
{
    size_t n = 0;
    for (; *hex; hex++) {
        unsigned byte;
        if (*hex == ' ')
            continue;
        CHECK(sscanf(hex, "%2x", &byte) == 1);
        out[n++] = (uint8_t)byte;
        hex++;
    }
    return n;
}

static void same_bytes(const uint8_t *got, size_t n, const char *hex, const char *what)
{
    uint8_t want[1024];
    size_t want_n = unhex(hex, want);
    if (n == want_n && !memcmp(got, want, n))
        return;
    fprintf(stderr, "%s:", what);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, "%s%02x", i % 4 ? "" : " ", got[i]);
    FAIL(", not %s", hex);
}

/* What docs/design/wire.md shows. */
static const struct {
    const char *sig, *values[6], *bytes;
} vectors[] = {
    {"add(a: i32, b: i32) -> i32", {"25", "17"}, "19000000 11000000"},
    {"f(a: bool, b: u16, c: i8, d: f64) -> void", {"true", "258", "-1", "1.5"}, "01000201 ff000000 00000000 0000f83f"},
    {"f(a: string, b: u8) -> void", {"h\xc3\xa4", "7"}, "03000000 68c3a407"},
    {"f(a: u8, b: [u64], c: [bool]) -> void", {"1", "[2]", "[true, false]"}, "01000000 01000000 02000000 00000000 02000000 0100"},
    {"f(a: [f64], b: string) -> void", {"[]", ""}, "00000000 00000000"},
    {"f() -> void", {NULL}, ""},
};

static size_t make(const weft_sig_t *sig, const char *const *texts, char (*bufs)[128], weft_value_t *values)
{
    size_t n;
    const weft_param_t *p = weft_sig_params(sig, &n);
    for (size_t i = 0; i < n; i++)
        CHECK_OK(weft_value_parse(p[i].type, texts[i], bufs[i], sizeof bufs[i], &values[i]));
    return n;
}

TEST(bytes_are_those_of_the_document)
{
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        weft_sig_t *sig;
        weft_value_t values[6], back[6];
        _Alignas(8) char bufs[6][128];
        _Alignas(8) uint8_t bytes[128];
        weft_iov_t iov[WEFTI_CODEC_PIECES];
        wefti_encoded_t e;
        wefti_decoded_t d;
        CHECK_OK(weft_sig_parse(vectors[i].sig, &sig));
        const wefti_codec_t *c = wefti_sig_codec(sig, WEFTI_SIG_ARGS);
        size_t n = make(sig, vectors[i].values, bufs, values);
        CHECK_OK(wefti_encode(c, values, n, INLINE, bytes, sizeof bytes, iov, &e));
        CHECK(!e.pieces && !e.payload && e.device_type == 1 && !e.device_id);
        same_bytes(bytes, e.len, vectors[i].bytes, vectors[i].sig);
        CHECK_OK(wefti_decode(c, bytes, e.len, 0, back, &d));
        for (size_t k = 0; k < n; k++) {
            char text[128];
            CHECK_EQ(back[k].type, values[k].type);
            weft_value_format(&back[k], text, sizeof text);
            CHECK_STR(text, vectors[i].values[k]);
        }
        /* every shorter one, and one longer, is none */
        for (size_t len = 0; len < e.len; len++)
            CHECK_EQ(wefti_decode(c, bytes, len, 0, back, &d), WEFT_ERR_PROTOCOL);
        bytes[e.len] = 0;
        CHECK_EQ(wefti_decode(c, bytes, e.len + 1, 0, back, &d), WEFT_ERR_PROTOCOL);
        CHECK(strstr(weft_last_error(), "1 bytes are left over"));
        CHECK_EQ(wefti_decode(c, bytes, e.len, 1, back, &d), WEFT_ERR_PROTOCOL);
        CHECK(strstr(weft_last_error(), "the payload has 1 bytes"));
        /* what does not fit says how long it is */
        for (size_t cap = 0; cap < e.len; cap++) {
            wefti_encoded_t small;
            uint8_t *tight = malloc(cap ? cap : 1);
            CHECK_EQ(wefti_encode(c, values, n, INLINE, tight, cap, iov, &small), WEFT_ERR_LIMIT);
            CHECK_EQ(small.len, e.len);
            free(tight);
        }
        weft_sig_free(sig);
    }
}

static weft_tensor_t tensor_of(void *data, int32_t ndim, int64_t *shape, int64_t *strides)
{
    return (weft_tensor_t){
        .data = data, .device_type = 1, .ndim = ndim, .code = 2, .bits = 32, .lanes = 1, .shape = shape, .strides = strides};
}

TEST(tensors_are_those_of_the_document)
{
    float data[] = {1, 2, 3, 4, 5, 6};
    int64_t shape[] = {2, 2}, back_shape[] = {3}, back_strides[] = {-2};
    weft_tensor_t t = tensor_of(data, 2, shape, NULL);
    weft_value_t v = {.type = WEFT_T_TENSOR, .tensors = {&t, 1}}, w;
    wefti_codec_t c = CODEC(WEFT_T_TENSOR);
    _Alignas(64) uint8_t bytes[256];
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    wefti_encoded_t e;
    wefti_decoded_t d;
    CHECK_OK(wefti_encode(&c, &v, 1, INLINE, bytes, sizeof bytes, iov, &e));
    same_bytes(bytes, e.len,
               "02200100 02000000 01000000 00000000 10000000 00000000 02000000 00000000 02000000 00000000 "
               "00000000 00000000 00000000 00000000 00000000 00000000 "
               "0000803f 00000040 00004040 00008040",
               "compact");
    CHECK_OK(wefti_decode(&c, bytes, e.len, 0, &w, &d));
    CHECK(w.tensors.n == 1 && w.tensors.at->data == bytes + 64 && !w.tensors.at->byte_offset && !w.tensors.at->strides);
    CHECK(w.tensors.at->shape == (int64_t *)(bytes + 24));
    CHECK(w.tensors.at->ndim == 2 && w.tensors.at->shape[1] == 2 && w.tensors.at->bits == 32);
    wefti_decoded_free(&d);

    /* every second element, from the last to the first, out of line */
    t = tensor_of(data, 1, back_shape, back_strides);
    t.byte_offset = 5 * sizeof *data;
    CHECK_OK(wefti_encode(&c, &v, 1, 20, bytes, sizeof bytes, iov, &e));
    same_bytes(bytes, e.len,
               "02200100 01030000 01000000 00000000 14000000 00000000 10000000 00000000 03000000 00000000 feffffff ffffffff",
               "strided");
    CHECK(e.pieces == 1 && e.payload == 20 && iov[0].base == &data[1] && iov[0].len == 20);
    CHECK_OK(wefti_decode(&c, bytes, e.len, 20, &w, &d));
    CHECK(d.pieces == 1 && d.first->tensor == w.tensors.at && d.first->len == 20 && d.first->align == 4 && !d.first->offset);
    CHECK(!w.tensors.at->data);
    CHECK_OK(wefti_decoded_payload(&d, &data[1]));
    const weft_tensor_t *got = w.tensors.at;
    for (int64_t i = 0; i < got->shape[0]; i++)
        CHECK(((const float *)((const char *)got->data + got->byte_offset))[i * got->strides[0]] == (float)(6 - 2 * i));
    wefti_decoded_free(&d);
}

TEST(large_data_is_pieces_and_is_not_copied)
{
    uint8_t blob[300], more[200];
    char text[101];
    memset(blob, 1, sizeof blob);
    memset(more, 2, sizeof more);
    memset(text, 'x', sizeof text);
    uint64_t eight[8] = {8};
    weft_value_t v[] = {{.type = VEC(WEFT_T_U8), .view = {blob, 300}},
                        {.type = WEFT_T_I32, .i32 = -7},
                        {.type = WEFT_T_STRING, .view = {text, 101}},
                        {.type = VEC(WEFT_T_U64), .view = {eight, 8}},
                        {.type = VEC(WEFT_T_BOOL), .view = {blob, 99}}},
                 w[5];
    wefti_codec_t c = CODEC(VEC(WEFT_T_U8), WEFT_T_I32, WEFT_T_STRING, VEC(WEFT_T_U64), VEC(WEFT_T_BOOL));
    _Alignas(8) uint8_t bytes[512];
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    wefti_encoded_t e;
    wefti_decoded_t d;
    CHECK_OK(wefti_encode(&c, v, 5, 100, bytes, sizeof bytes, iov, &e));
    CHECK(e.pieces == 2 && e.payload == 401);
    CHECK(iov[0].base == blob && iov[0].len == 300 && iov[1].base == text && iov[1].len == 101);
    same_bytes(bytes, 36, "ffffffff 00000000 2c010000 00000000 f9ffffff ffffffff 65000000 00000000 08000000", "out of line");
    CHECK_OK(wefti_encode(&c, v, 5, 1, bytes, sizeof bytes, iov, &e));
    CHECK(e.pieces == 4 && e.payload == 300 + 101 + 64 + 99);
    CHECK_OK(wefti_decode(&c, bytes, e.len, 564, w, &d));
    CHECK(d.pieces == 4 && d.payload == 564 && w[0].view.n == 300 && !w[0].view.data && w[1].i32 == -7);
    size_t at = 0;
    const wefti_piece_t *p = d.first;
    uint8_t *whole = malloc(564);
    CHECK(whole);
    for (size_t i = 0; i < 4; i++, p = p->next) {
        CHECK(p->offset == at && p->len == iov[i].len && p->value == &w[i ? i + 1 : 0] && p->index == (i ? i + 1 : 0));
        memcpy(whole + at, iov[i].base, iov[i].len);
        at += iov[i].len;
    }
    CHECK(!p);
    CHECK_OK(wefti_decoded_payload(&d, whole));
    CHECK(w[0].view.data == whole && w[2].view.data == whole + 300 && w[4].view.data == whole + 465);
    /* 401 is no place for numbers of 8 bytes */
    CHECK((uintptr_t)w[3].view.data % 8 == 0 && *(const uint64_t *)w[3].view.data == 8);
    /* or each where the receiver wants it */
    CHECK_OK(wefti_decoded_place(d.first, more, 1, 0));
    CHECK(w[0].view.data == more);
    text[50] = (char)0xff;
    CHECK_EQ(wefti_decoded_place(d.first->next, text, 1, 0), WEFT_ERR_PROTOCOL);
    CHECK(strstr(weft_last_error(), "value 3 (string) is not UTF-8"));
    CHECK_EQ(wefti_decoded_place(d.first->next->next->next, more, 1, 0), WEFT_ERR_PROTOCOL);
    CHECK(strstr(weft_last_error(), "value 5 ([bool]) has a bool"));
    wefti_decoded_free(&d);
    free(whole);
    CHECK_EQ(wefti_decode(&c, bytes, e.len, 563, w, &d), WEFT_ERR_PROTOCOL);
}

TEST(a_tensor_on_a_device_is_a_piece_and_the_host_stays_in_the_bytes)
{
    int64_t shape[] = {2};
    uint8_t blob[300] = {0};
    void *far = (void *)0x10000; /* nobody touches it */
    weft_tensor_t t[3] = {tensor_of(far, 1, shape, NULL), tensor_of(far, 1, shape, NULL), tensor_of(blob, 1, shape, NULL)};
    t[0].device_type = t[1].device_type = 2;
    t[0].device_id = t[1].device_id = 3;
    weft_value_t v[] = {{.type = VEC(WEFT_T_U8), .view = {blob, 300}}, {.type = VEC(WEFT_T_TENSOR), .tensors = {t, 3}}}, w[2];
    wefti_codec_t c = CODEC(VEC(WEFT_T_U8), VEC(WEFT_T_TENSOR));
    _Alignas(64) uint8_t bytes[1024];
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    wefti_encoded_t e;
    wefti_decoded_t d;
    CHECK_OK(wefti_encode(&c, v, 2, 1, bytes, sizeof bytes, iov, &e));
    CHECK(e.pieces == 2 && e.payload == 16 && e.device_type == 2 && e.device_id == 3 && iov[1].base == far);
    CHECK_OK(wefti_decode(&c, bytes, e.len, 16, w, &d));
    CHECK(d.pieces == 2 && w[0].view.data == bytes + 4 && w[1].tensors.n == 3);
    CHECK(w[1].tensors.at[0].device_type == 2 && w[1].tensors.at[0].device_id == 3 && w[1].tensors.at[2].device_type == 1);
    CHECK(w[1].tensors.at[2].data);
    CHECK_OK(wefti_decoded_place(d.first, far, 2, 1));
    CHECK(w[1].tensors.at[0].device_id == 1 && w[1].tensors.at[0].data == far);
    wefti_decoded_free(&d);
    t[1].device_id = 4;
    CHECK_EQ(wefti_encode(&c, v, 2, 1, bytes, sizeof bytes, iov, &e), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_last_error(), "device 2:3 and on 2:4"));
    /* one without elements is nowhere */
    int64_t nothing[] = {0};
    t[1] = tensor_of(NULL, 1, nothing, NULL);
    t[1].device_type = 2;
    CHECK_OK(wefti_encode(&c, v, 2, 1, bytes, sizeof bytes, iov, &e));
    CHECK_EQ(e.pieces, 1);
    CHECK_OK(wefti_decode(&c, bytes, e.len, 8, w, &d));
    CHECK(!w[1].tensors.at[1].data && w[1].tensors.at[1].device_type == 1);
    wefti_decoded_free(&d);
}

TEST(there_are_so_many_pieces_and_then_bytes)
{
    float data[2] = {1, 2};
    int64_t shape[] = {2};
    weft_tensor_t t[70];
    for (int i = 0; i < 70; i++)
        t[i] = tensor_of(data, 1, shape, NULL);
    weft_value_t v = {.type = VEC(WEFT_T_TENSOR), .tensors = {t, 70}}, w;
    wefti_codec_t c = CODEC(VEC(WEFT_T_TENSOR));
    _Alignas(64) uint8_t bytes[8192];
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    wefti_encoded_t e;
    wefti_decoded_t d;
    CHECK_OK(wefti_encode(&c, &v, 1, 1, bytes, sizeof bytes, iov, &e));
    CHECK(e.pieces == WEFTI_CODEC_PIECES && e.payload == 64 * 8);
    CHECK_OK(wefti_decode(&c, bytes, e.len, e.payload, &w, &d));
    CHECK(w.tensors.n == 70 && d.pieces == 64 && !w.tensors.at[63].data && ((const float *)w.tensors.at[69].data)[1] == 2);
    wefti_decoded_free(&d);
    /* the 65th as a piece too: as if it were the first */
    for (int i = 0; i < 65; i++)
        memcpy(bytes + 8 + 32 * i, bytes + 8, 32);
    uint32_t n = 65;
    memcpy(bytes, &n, 4);
    CHECK_EQ(wefti_decode(&c, bytes, 8 + 32 * 65, 65 * 8, &w, &d), WEFT_ERR_PROTOCOL);
    CHECK(strstr(weft_last_error(), "one piece of payload too many"));
    for (int i = 0; i < 70; i++)
        t[i].device_type = 2;
    CHECK_EQ(wefti_encode(&c, &v, 1, 1, bytes, sizeof bytes, iov, &e), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_last_error(), "more than 64 tensors"));
}

TEST(bytes_that_are_not_aligned_are_copied)
{
    uint64_t numbers[] = {1, 2, 3};
    float data[] = {1, 2};
    int64_t shape[] = {2}, strides[] = {-1};
    weft_tensor_t t = tensor_of(data + 1, 1, shape, strides);
    weft_value_t v[] = {{.type = VEC(WEFT_T_U64), .view = {numbers, 3}},
                        {.type = WEFT_T_STRING, .view = {"text", 4}},
                        {.type = WEFT_T_TENSOR, .tensors = {&t, 1}}},
                 w[3];
    wefti_codec_t c = CODEC(VEC(WEFT_T_U64), WEFT_T_STRING, WEFT_T_TENSOR);
    _Alignas(64) uint8_t bytes[320];
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    wefti_encoded_t e;
    wefti_decoded_t d;
    for (size_t off = 0; off < 9; off++) {
        CHECK_OK(wefti_encode(&c, v, 3, INLINE, bytes + off, sizeof bytes - off, iov, &e));
        CHECK_OK(wefti_decode(&c, bytes + off, e.len, 0, w, &d));
        const weft_tensor_t *g = w[2].tensors.at;
        CHECK((uintptr_t)w[0].view.data % 8 == 0 && (uintptr_t)g->shape % 8 == 0 && (uintptr_t)g->data % 4 == 0);
        CHECK((w[0].view.data == bytes + off + 8) == (off % 8 == 0));
        CHECK(!memcmp(w[0].view.data, numbers, sizeof numbers) && !memcmp(w[1].view.data, "text", 4));
        CHECK(g->byte_offset == 4 && g->strides[0] == -1 && !memcmp(g->data, data, sizeof data));
        wefti_decoded_free(&d);
    }
}

static int fails(size_t n)
{
    (void)n;
    return 1;
}

TEST(without_memory_nothing_is_left)
{
    uint8_t blob[1000] = {0};
    weft_value_t v = {.type = VEC(WEFT_T_U64), .view = {blob, 125}}, w;
    wefti_codec_t c = CODEC(VEC(WEFT_T_U64));
    _Alignas(8) uint8_t bytes[1100];
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    wefti_encoded_t e;
    wefti_decoded_t d;
    CHECK_OK(wefti_encode(&c, &v, 1, INLINE, bytes + 1, sizeof bytes - 1, iov, &e));
    wefti_alloc_fails = fails;
    CHECK_EQ(wefti_decode(&c, bytes + 1, e.len, 0, &w, &d), WEFT_ERR_NOMEM);
    CHECK(!d.more);
    /* and aligned none is needed */
    CHECK_OK(wefti_encode(&c, &v, 1, INLINE, bytes, sizeof bytes, iov, &e));
    CHECK_OK(wefti_decode(&c, bytes, e.len, 0, &w, &d));
    CHECK_OK(wefti_encode(&c, &v, 1, 1, bytes, sizeof bytes, iov, &e));
    CHECK_OK(wefti_decode(&c, bytes, e.len, 1000, &w, &d));
    CHECK_EQ(wefti_decoded_payload(&d, (uint8_t *)(((uintptr_t)blob + 7) & ~(uintptr_t)7) + 1), WEFT_ERR_NOMEM);
    wefti_alloc_fails = NULL;
    wefti_decoded_free(&d);
}

TEST(values_that_are_none_are_refused)
{
    uint8_t bad[] = {0xff, 2};
    int64_t shape[] = {2};
    weft_tensor_t t = tensor_of(NULL, 1, shape, NULL);
    static const struct {
        uint32_t type;
        int what;
        const char *sentence;
    } all[] = {
        {WEFT_T_I32, 0, "value 1 is of type u8, and the signature says i32"},
        {WEFT_T_STRING, 1, "value 1 is a string that is not UTF-8"},
        {VEC(WEFT_T_BOOL), 1, "[bool] with elements that are neither"},
        {WEFT_T_STRING, 2, "has 2 elements and no data"},
        {VEC(WEFT_T_U64), 3, "more than there can be"},
        {WEFT_T_TENSOR, 4, "tensor of 8 bytes without data"},
        {WEFT_T_TENSOR, 5, "value 1 (tensor) is of 2 tensors"},
        {WEFT_T_TENSOR, 6, "value 1 (tensor) is of 0 tensors"},
        {VEC(WEFT_T_TENSOR), 7, "points to no tensor"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        weft_value_t v = {.type = all[i].what ? all[i].type : WEFT_T_U8};
        wefti_codec_t c = CODEC(all[i].type);
        uint8_t bytes[256];
        weft_iov_t iov[WEFTI_CODEC_PIECES];
        wefti_encoded_t e;
        if (all[i].what >= 4) {
            v.tensors.at = all[i].what == 7 ? NULL : &t;
            v.tensors.n = all[i].what == 5 ? 2 : all[i].what != 6;
        } else {
            v.view.data = all[i].what == 2 ? NULL : bad;
            v.view.n = all[i].what == 3 ? UINT64_MAX : 2;
        }
        CHECK_EQ(wefti_encode(&c, &v, 1, INLINE, bytes, sizeof bytes, iov, &e), WEFT_ERR_INVALID);
        if (!strstr(weft_last_error(), all[i].sentence))
            FAIL("said \"%s\", not \"%s\"", weft_last_error(), all[i].sentence);
        CHECK_EQ(wefti_encode(&c, &v, 0, INLINE, bytes, sizeof bytes, iov, &e), WEFT_ERR_INVALID);
        CHECK(strstr(weft_last_error(), "0 values where the signature has 1"));
    }
}

TEST(bytes_that_are_no_values_are_refused)
{
    static const struct {
        uint32_t type;
        const char *bytes;
        uint64_t payload;
        const char *sentence;
    } all[] = {
        {WEFT_T_BOOL, "02", 0, "is neither 0 nor 1"},
        {WEFT_T_I64, "00000000", 0, "reaches beyond the end, at byte 0 of 4"},
        {WEFT_T_STRING, "02000000 41", 0, "reaches beyond the end"},
        {WEFT_T_STRING, "01000000 80", 0, "is not UTF-8"},
        {WEFT_T_STRING, "feffffff 41", 0, "reaches beyond the end"},
        {WEFT_T_STRING, "ffffffff 00000000", 0, "reaches beyond the end"},
        {WEFT_T_STRING, "ffffffff 00000000 00000000 00000000", 0, "empty piece"},
        {WEFT_T_STRING, "ffffffff 01000000 01000000 00000000", 1, "padding that is not zero"},
        {WEFT_T_STRING, "ffffffff 00000000 02000000 00000000", 1, "the payload has 1 bytes, and the values say 2"},
        {VEC(WEFT_T_U64), "01000000 00000001 00000000 00000000", 0, "padding that is not zero"},
        {VEC(WEFT_T_U64), "ffffffff 00000000 00000000 00000020", 0, "longer than any payload"},
        {VEC(WEFT_T_U64), "feffffff 00000000 00000000 00000000", 0, "reaches beyond the end"},
        {VEC(WEFT_T_BOOL), "01000000 02", 0, "has a bool"},
        {WEFT_T_TENSOR, "02200100 00000000 01000000 00000000 04000000 000000", 0, "reaches beyond the end"},
        {WEFT_T_TENSOR, "02200100 00000100 01000000 00000000 04000000 00000000", 0, "head that is none"},
        {WEFT_T_TENSOR, "02200100 00040000 01000000 00000000 04000000 00000000", 0, "head that is none"},
        {WEFT_T_TENSOR, "02200100 11000000 01000000 00000000 04000000 00000000", 0, "head that is none"},
        {WEFT_T_TENSOR, "03200100 00000000 01000000 00000000 04000000 00000000", 0, "code 3"},
        {WEFT_T_TENSOR, "02210100 00000000 01000000 00000000 04000000 00000000", 0, "not whole bytes"},
        {WEFT_T_TENSOR, "02200100 00000000 01000000 00000000 05000000 00000000", 0, "another length than its shape"},
        {WEFT_T_TENSOR, "02200100 00000000 01000000 00000000 04000000 00000000", 0, "reaches beyond the end"},
        {WEFT_T_TENSOR, "02200100 00020000 02000000 00000000 05000000 00000000", 5, "another length than its shape"},
        {WEFT_T_TENSOR, "02200100 00000000 02000000 00000000 04000000 00000000", 0, "is on a device, and not in the payload"},
        {WEFT_T_TENSOR, "02200100 00010000 01000000 00000000 04000000 00000000 00000000 00000000", 0,
         "has strides and needs none"},
        {WEFT_T_TENSOR, "02200100 01020000 01000000 00000000 00000000 00000000 00000000 00000000", 0, "empty piece"},
        {WEFT_T_TENSOR, "02200100 01020000 01000000 00000000 00000000 00000000 00000000 00000080", 0, "is negative"},
        {WEFT_T_TENSOR, "02200100 01020000 01000000 00000000 00000000 00000000 00000000 00000070", 0, "does not fit in 64 bits"},
        {WEFT_T_TENSOR,
         "02200100 01030000 01000000 00000000 08000000 00000000 00000000 00000000 02000000 00000000 ffffffff ffffffff", 8,
         "another length than its shape"}, /* the first element would be the first of two, going back */
        {WEFT_T_TENSOR,
         "02200100 01030000 01000000 00000000 08000000 00000000 00000000 00000000 02000000 00000000 00000000 00000080", 8,
         "strides reach further"},
        {VEC(WEFT_T_TENSOR), "ffffffff 00000000", 0, "reaches beyond the end"},
        {VEC(WEFT_T_TENSOR), "01000000 01000000 02200100 00020000 01000000 00000000 04000000 00000000", 4, "padding"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        wefti_codec_t c = CODEC(all[i].type);
        uint8_t buf[256];
        weft_value_t w;
        wefti_decoded_t d;
        size_t n = unhex(all[i].bytes, buf);
        uint8_t *tight = aligned_alloc(8, (n + 7) & ~(size_t)7);
        CHECK(tight);
        memcpy(tight, buf, n);
        CHECK_EQ(wefti_decode(&c, tight, n, all[i].payload, &w, &d), WEFT_ERR_PROTOCOL);
        if (!strstr(weft_last_error(), all[i].sentence))
            FAIL("%s: said \"%s\", not \"%s\"", all[i].bytes, weft_last_error(), all[i].sentence);
        CHECK(!d.more);
        free(tight);
    }
}

TEST(padding_between_scalars_is_zero_and_bools_are_bools)
{
    wefti_codec_t c = CODEC(WEFT_T_BOOL, WEFT_T_U16, WEFT_T_I8, WEFT_T_F64);
    weft_value_t v[4] = {{.type = WEFT_T_BOOL}, {.type = WEFT_T_U16}, {.type = WEFT_T_I8}, {.type = WEFT_T_F64}}, w[4];
    uint8_t bytes[16];
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    wefti_encoded_t e;
    wefti_decoded_t d;
    v[0].u8 = 0x80; /* a caller's bool that is none is true */
    memset(bytes, 0xee, sizeof bytes);
    CHECK_OK(wefti_encode(&c, v, 4, INLINE, bytes, sizeof bytes, iov, &e));
    same_bytes(bytes, e.len, "01000000 00000000 00000000 00000000", "scalars");
    for (size_t i = 0; i < 16; i++) {
        bool hole = i == 1 || (i > 4 && i < 8);
        bytes[i] ^= 2;
        CHECK_EQ(wefti_decode(&c, bytes, 16, 0, w, &d), i == 0 || hole ? WEFT_ERR_PROTOCOL : WEFT_OK);
        if (hole)
            CHECK(strstr(weft_last_error(), "padding that is not zero"));
        bytes[i] ^= 2;
    }
}

/* In words and byte by byte. What a value has beside its type's bytes does not travel, and nothing else is touched. */
TEST(scalars_are_the_same_bytes_either_way)
{
    wefti_rng_t rng = {18};
    for (unsigned round = 0; round < 2000; round++) {
        uint32_t types[WEFT_SIG_PARAMS];
        weft_value_t v[WEFT_SIG_PARAMS], w[WEFT_SIG_PARAMS];
        uint8_t words[280], bytes[280];
        weft_iov_t iov[WEFTI_CODEC_PIECES];
        wefti_encoded_t e;
        size_t n = 1 + wefti_rng_below(&rng, WEFT_SIG_PARAMS - 1);
        for (size_t i = 0; i < n; i++) {
            types[i] = i + 1 < n ? WEFT_T_BOOL + (uint32_t)wefti_rng_below(&rng, WEFT_T_STRING - WEFT_T_BOOL) : WEFT_T_U8;
            v[i] = (weft_value_t){.type = types[i]};
            v[i].u64 = wefti_rng_next(&rng);
            if (types[i] == WEFT_T_BOOL)
                v[i].u8 &= 1;
        }
        wefti_codec_t c = codec_of(n, types);
        size_t padded = (c.len + 7u) & ~(size_t)7;
        memset(words, 0xee, sizeof words);
        CHECK_EQ(wefti_encode_small(&c, v, n, INLINE, words, sizeof words), c.len);
        for (size_t i = c.len; i < sizeof words; i++)
            CHECK_EQ(words[i], i < padded ? 0 : 0xee);
        memset(bytes, 0xee, sizeof bytes);
        CHECK_OK(wefti_encode(&c, v, n, INLINE, bytes, c.len, iov, &e)); /* no space for words, but where they fill it */
        CHECK_EQ(e.len, c.len);
        CHECK_EQ(bytes[c.len], 0xee);
        CHECK(!memcmp(words, bytes, c.len));
        CHECK(wefti_decode_small(&c, words, c.len, w) && !wefti_decode_small(&c, words, c.len + 1u, w));
        for (size_t i = 0; i < n; i++) {
            CHECK(!memcmp(&v[i].u64, &w[i].u64, c.size[i]) && w[i].type == types[i] && !w[i].view.n);
            CHECK(c.size[i] == 8 || !(w[i].u64 >> 8 * c.size[i]));
        }
    }
}
