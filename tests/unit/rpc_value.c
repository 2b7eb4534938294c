/* tests/unit/rpc_value.c - values as people write them: read, refused with a sentence, written so that they are read back, in any
 * locale. */
#include <locale.h>
#include <math.h>
#include <weft/types.h>

#include "test.h"

#define VEC(t) (WEFT_T_VECTOR | (t))

/* Reads text, writes it, and expects `written` (NULL: the same). */
static void both_ways(uint32_t type, const char *text, const char *written)
{
    _Alignas(8) char buf[512];
    char out[512];
    weft_value_t v, again;
    weft_status_t st = weft_value_parse(type, text, buf, sizeof buf, &v);
    if (st)
        FAIL("%s: %s", text, weft_last_error());
    CHECK_EQ(v.type, type);
    written = written ? written : text;
    CHECK_EQ(weft_value_format(&v, out, sizeof out), strlen(written));
    CHECK_STR(out, written);
    CHECK_OK(weft_value_parse(type, out, buf, sizeof buf, &again));
    CHECK_EQ(weft_value_format(&again, out, sizeof out), strlen(written));
    CHECK_STR(out, written);
}

static void no(uint32_t type, const char *text, weft_status_t want, const char *sentence)
{
    char buf[16];
    weft_value_t v = {.type = 77};
    CHECK_EQ(weft_value_parse(type, text, buf, sizeof buf, &v), want);
    CHECK_EQ(v.type, 77);
    if (!strstr(weft_last_error(), sentence))
        FAIL("%s: said \"%s\", not \"%s\"", text, weft_last_error(), sentence);
}

TEST(scalars_are_read_and_written)
{
    both_ways(WEFT_T_BOOL, "true", NULL);
    both_ways(WEFT_T_BOOL, "false", NULL);
    both_ways(WEFT_T_I8, "-128", NULL);
    both_ways(WEFT_T_I8, "+127", "127");
    both_ways(WEFT_T_I16, "-32768", NULL);
    both_ways(WEFT_T_I32, "-2147483648", NULL);
    both_ways(WEFT_T_I32, "0x7fffffff", "2147483647");
    both_ways(WEFT_T_I64, "-9223372036854775808", NULL);
    both_ways(WEFT_T_I64, "9223372036854775807", NULL);
    both_ways(WEFT_T_U8, "255", NULL);
    both_ways(WEFT_T_U16, "0xFFFF", "65535");
    both_ways(WEFT_T_U32, "4294967295", NULL);
    both_ways(WEFT_T_U64, "18446744073709551615", NULL);
    both_ways(WEFT_T_U64, "-0", "0");
    both_ways(WEFT_T_F64, "-1.5e3", "-1500");
    both_ways(WEFT_T_F64, "10", "10");
    both_ways(WEFT_T_F64, "5.0005e7", "50005000");
    both_ways(WEFT_T_F64, "123456789012345", "123456789012345");
    both_ways(WEFT_T_F64, "1e15", "1e+15");
    both_ways(WEFT_T_F32, "1e6", "1000000");
    both_ways(WEFT_T_F32, "1e7", "1e+07");
    both_ways(WEFT_T_F64, "0.1", NULL);
    both_ways(WEFT_T_F64, "1e-320", NULL);
    both_ways(WEFT_T_F64, "0.30000000000000004", NULL);
    both_ways(WEFT_T_F64, "-0", NULL);
    both_ways(WEFT_T_F64, "-inf", NULL);
    both_ways(WEFT_T_F64, "Infinity", "inf");
    both_ways(WEFT_T_F64, "nan", NULL);
    both_ways(WEFT_T_F64, ".5", "0.5");
    both_ways(WEFT_T_F32, "0.1", NULL);
    both_ways(WEFT_T_F32, "3.4028235e+38", NULL);
    both_ways(WEFT_T_F32, "16777216", "16777216");
}

TEST(strings_are_what_they_are)
{
    both_ways(WEFT_T_STRING, "", NULL);
    both_ways(WEFT_T_STRING, "  as it is, [1] ", NULL);
    both_ways(WEFT_T_STRING, "gr\xc3\xbc\xc3\x9f", NULL);
    no(WEFT_T_STRING, "\xff", WEFT_ERR_INVALID, "not UTF-8");
    no(WEFT_T_STRING, "seventeen letters", WEFT_ERR_LIMIT, "17 bytes does not fit in 16");
}

TEST(vectors_are_read_and_written)
{
    both_ways(VEC(WEFT_T_I32), "[1, 2, 3]", NULL);
    both_ways(VEC(WEFT_T_I32), " [ 1,2 ,-3 ] ", "[1, 2, -3]");
    both_ways(VEC(WEFT_T_F64), "[]", NULL);
    both_ways(VEC(WEFT_T_BOOL), "[true,false]", "[true, false]");
    both_ways(VEC(WEFT_T_U8), "[ ]", "[]");
    no(VEC(WEFT_T_I32), "1, 2", WEFT_ERR_INVALID, "does not begin with '['");
    no(VEC(WEFT_T_I32), "[1, 2", WEFT_ERR_INVALID, "does not end with ']'");
    no(VEC(WEFT_T_I32), "[1, ]", WEFT_ERR_INVALID, "is not a whole number");
    no(VEC(WEFT_T_I32), "[,1]", WEFT_ERR_INVALID, "is not a whole number");
    no(VEC(WEFT_T_I32), "[1] 2", WEFT_ERR_INVALID, "follows the end of a [i32]");
    no(VEC(WEFT_T_I8), "[1, 128]", WEFT_ERR_INVALID, "\"128\" is out of the range of i8");
    no(VEC(WEFT_T_I64), "[1, 2, 3]", WEFT_ERR_LIMIT, "of more than");
}

TEST(elements_are_aligned_wherever_the_memory_begins)
{
    _Alignas(8) char buf[64];
    weft_value_t v;
    for (size_t i = 0; i < 8; i++) {
        CHECK_OK(weft_value_parse(VEC(WEFT_T_F64), "[1, 2]", buf + i, 16 + (i ? 8 - i : 0), &v));
        CHECK_EQ((uintptr_t)v.view.data % 8, 0);
        CHECK(((const double *)v.view.data)[1] == 2.0);
        CHECK_EQ(weft_value_parse(VEC(WEFT_T_F64), "[1, 2]", buf + i, 15 + (i ? 8 - i : 0), &v), WEFT_ERR_LIMIT);
    }
    CHECK_EQ(weft_value_parse(VEC(WEFT_T_F64), "[1]", buf + 1, 3, &v), WEFT_ERR_LIMIT);
    CHECK_EQ(weft_value_parse(VEC(WEFT_T_F64), "[1]", NULL, 0, &v), WEFT_ERR_LIMIT);
    CHECK_OK(weft_value_parse(VEC(WEFT_T_F64), "[]", NULL, 0, &v));
    CHECK_EQ(v.view.n, 0);
}

TEST(what_is_not_of_the_type_is_refused)
{
    no(WEFT_T_BOOL, "1", WEFT_ERR_INVALID, "\"1\" is neither true nor false");
    no(WEFT_T_I32, "", WEFT_ERR_INVALID, "\"\" is not a whole number");
    no(WEFT_T_I32, "-", WEFT_ERR_INVALID, "is not a whole number, as asked for by i32");
    no(WEFT_T_I32, "1.5", WEFT_ERR_INVALID, "is not a whole number");
    no(WEFT_T_I32, " 1", WEFT_ERR_INVALID, "is not a whole number");
    no(WEFT_T_I32, "0x", WEFT_ERR_INVALID, "is not a whole number");
    no(WEFT_T_I32, "0xg", WEFT_ERR_INVALID, "is not a whole number");
    no(WEFT_T_I32, "2147483648", WEFT_ERR_INVALID, "is out of the range of i32");
    no(WEFT_T_I32, "-2147483649", WEFT_ERR_INVALID, "is out of the range of i32");
    no(WEFT_T_I64, "9223372036854775808", WEFT_ERR_INVALID, "is out of the range");
    no(WEFT_T_U64, "18446744073709551616", WEFT_ERR_INVALID, "is out of the range of u64");
    no(WEFT_T_U8, "-1", WEFT_ERR_INVALID, "is out of the range of u8");
    no(WEFT_T_F64, "", WEFT_ERR_INVALID, "is not a number");
    no(WEFT_T_F64, " 1", WEFT_ERR_INVALID, "is not a number");
    no(WEFT_T_F64, "1,5", WEFT_ERR_INVALID, "is not a number");
    no(WEFT_T_F64, "nan(1)", WEFT_ERR_INVALID, "is not a number");
    no(WEFT_T_F64, "1e999", WEFT_ERR_INVALID, "is out of the range of f64");
    no(WEFT_T_F32, "1e39", WEFT_ERR_INVALID, "is out of the range of f32");
    no(WEFT_T_VOID, "", WEFT_ERR_INVALID, "type 0 is none");
    no(99, "1", WEFT_ERR_INVALID, "type 99 is none");
    no(VEC(WEFT_T_STRING), "[a]", WEFT_ERR_INVALID, "is none that a value can have");
    no(WEFT_T_TENSOR, "1", WEFT_ERR_UNSUPPORTED, "a tensor has no text");
    no(VEC(WEFT_T_TENSOR), "[]", WEFT_ERR_UNSUPPORTED, "a tensor has no text");
    no(WEFT_T_I32, NULL, WEFT_ERR_INVALID, "from a text");
}

TEST(formatting_never_writes_past_the_end)
{
    weft_value_t v;
    int32_t three[] = {10, 20, 30};
    v = (weft_value_t){.type = VEC(WEFT_T_I32), .view = {three, 3}};
    for (size_t cap = 0; cap < 16; cap++) {
        char *buf = malloc(cap ? cap : 1); /* exactly as long, for the sanitizers */
        CHECK(buf);
        CHECK_EQ(weft_value_format(&v, buf, cap), 12);
        if (cap)
            CHECK_EQ(strlen(buf), cap - 1 < 12 ? cap - 1 : 12);
        if (cap)
            CHECK(!strncmp(buf, "[10, 20, 30]", cap - 1));
        free(buf);
    }
}

TEST(tensors_show_their_shape_and_type)
{
    int64_t shape[] = {2, 3};
    char out[100];
    weft_tensor_t t[2] = {{.device_type = 1, .ndim = 2, .code = 2, .bits = 32, .lanes = 1, .shape = shape},
                          {.device_type = 2, .device_id = 3, .ndim = 0, .code = 6, .bits = 8, .lanes = 4}};
    weft_value_t v = {.type = WEFT_T_TENSOR, .tensors = {t, 1}};
    weft_value_format(&v, out, sizeof out);
    CHECK_STR(out, "tensor f32 [2, 3]");
    v = (weft_value_t){.type = VEC(WEFT_T_TENSOR), .tensors = {t, 2}};
    weft_value_format(&v, out, sizeof out);
    CHECK_STR(out, "[tensor f32 [2, 3], tensor boolx4 [] on device 2:3]");
    v = (weft_value_t){.type = 99};
    weft_value_format(&v, out, sizeof out);
    CHECK_STR(out, "?");
}

TEST(every_float_comes_back)
{
    uint64_t bits = 1;
    char out[64];
    for (int i = 0; i < 20000; i++) {
        bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        weft_value_t v = {.type = i & 1 ? WEFT_T_F32 : WEFT_T_F64}, w;
        v.u64 = i & 1 ? bits >> 32 : bits;
        weft_value_format(&v, out, sizeof out);
        CHECK_OK(weft_value_parse(v.type, out, NULL, 0, &w));
        if (v.type == WEFT_T_F32 ? isnan(v.f32) : isnan(v.f64))
            CHECK(v.type == WEFT_T_F32 ? isnan(w.f32) : isnan(w.f64));
        else
            CHECK(v.u64 == w.u64);
    }
}

TEST(the_locale_of_the_program_does_not_matter)
{
    static const char *const with_comma[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    const char *set = NULL;
    for (size_t i = 0; i < sizeof with_comma / sizeof *with_comma && !set; i++)
        set = setlocale(LC_ALL, with_comma[i]);
    if (!set)
        SKIP("no locale with a decimal comma on this machine");
    both_ways(WEFT_T_F64, "1.5", NULL);
    both_ways(VEC(WEFT_T_F32), "[1.5, 2.5]", NULL);
}
