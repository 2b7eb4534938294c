/* tests/unit/rpc_sig.c - signatures: what is one and what is none, one way of writing each, who agrees with whom, and hashes that
 * never change. */
#include <weft/types.h>

#include "base/alloc.h"
#include "rpc/codec.h"
#include "rpc/type.h"
#include "test.h"

static weft_sig_t *parse(const char *text)
{
    weft_sig_t *sig = NULL;
    weft_status_t st = weft_sig_parse(text, &sig);
    if (st)
        FAIL("%s: %s", text, weft_last_error());
    return sig;
}

TEST(types_have_names_and_sizes)
{
    static const struct {
        uint32_t type;
        const char *name;
        size_t size;
    } all[] = {
        {WEFT_T_VOID, "void", 0},
        {WEFT_T_BOOL, "bool", 1},
        {WEFT_T_I8, "i8", 1},
        {WEFT_T_I64, "i64", 8},
        {WEFT_T_U16, "u16", 2},
        {WEFT_T_F32, "f32", 4},
        {WEFT_T_STRING, "string", 0},
        {WEFT_T_TENSOR, "tensor", 0},
        {WEFT_T_VECTOR | WEFT_T_F64, "[f64]", 8},
        {WEFT_T_VECTOR | WEFT_T_TENSOR, "[tensor]", 0},
        {WEFT_T_VECTOR | WEFT_T_STRING, "?", 0},
        {WEFT_T_VECTOR, "?", 0},
        {14, "?", 0},
        {0x40, "?", 0},
        {UINT32_MAX, "?", 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_STR(weft_type_name(all[i].type), all[i].name);
        CHECK_EQ(weft_type_size(all[i].type), all[i].size);
        CHECK_EQ(wefti_type_ok(all[i].type), i > 0 && all[i].name[0] != '?');
    }
}

TEST(there_is_one_way_of_writing_it)
{
    static const char *const all[][2] = {
        {"add(a: i32, b: i32) -> i32", NULL},
        {"split(text: string, at: u64) -> (head: string, tail: string)", NULL},
        {"mean(values: [f64]) -> f64 idempotent", NULL},
        {"scale(image: tensor, by: f32) -> tensor", NULL},
        {"primes(below: u64) -> stream u64", NULL},
        {"total(values: stream f64) -> f64", NULL},
        {"log(line: string) -> void oneway", NULL},
        {"ping() -> void", NULL},
        {"calc.v2._add(stream: stream [tensor]) -> (stream: stream [bool]) idempotent", NULL},
        {"two() -> (i8, u8)", NULL},
        {"  f (\ta :i8 ,b:[ u16 ] )->( f32 )  ", "f(a: i8, b: [u16]) -> f32"},
        {"f()->void oneway idempotent", "f() -> void idempotent oneway"},
        {"f()->(string:string)", "f() -> (string: string)"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *text = all[i][1] ? all[i][1] : all[i][0];
        weft_sig_t *sig = parse(all[i][0]), *again = parse(text);
        CHECK_STR(weft_sig_text(sig), text);
        CHECK_STR(weft_sig_text(again), text);
        CHECK_EQ(weft_sig_hash(sig), weft_sig_hash(again));
        weft_sig_free(sig);
        weft_sig_free(again);
    }
}

TEST(its_parts_can_be_asked_for)
{
    weft_sig_t *sig = parse("calc.f(a: i32, b: [f64], c: stream string) -> (x: tensor, bool) idempotent");
    size_t n;
    const weft_param_t *p = weft_sig_params(sig, &n);
    CHECK_EQ(n, 3);
    CHECK_STR(weft_sig_name(sig), "calc.f");
    CHECK_STR(p[1].name, "b");
    CHECK_EQ(p[1].type, WEFT_T_VECTOR | WEFT_T_F64);
    CHECK(!p[1].stream);
    CHECK_STR(p[2].name, "c");
    CHECK_EQ(p[2].type, WEFT_T_STRING);
    CHECK(p[2].stream);
    p = weft_sig_results(sig, &n);
    CHECK_EQ(n, 2);
    CHECK_STR(p[0].name, "x");
    CHECK_STR(p[1].name, "");
    CHECK_EQ(p[1].type, WEFT_T_BOOL);
    CHECK(weft_sig_idempotent(sig) && !weft_sig_oneway(sig));
    const wefti_codec_t *c = wefti_sig_codec(sig, WEFTI_SIG_ARGS);
    CHECK(c->n == 2 && c->flat && c->types[1] == (WEFT_T_VECTOR | WEFT_T_F64));
    c = wefti_sig_codec(sig, WEFTI_SIG_ARG_ITEM);
    CHECK(c->n == 1 && c->types[0] == WEFT_T_STRING);
    c = wefti_sig_codec(sig, WEFTI_SIG_RESULTS);
    CHECK(c->n == 2 && !c->flat);
    CHECK_EQ(wefti_sig_codec(sig, WEFTI_SIG_RESULT_ITEM)->n, 0);
    weft_sig_free(sig);
    sig = parse("f() -> void oneway");
    weft_sig_results(sig, &n);
    CHECK(n == 0 && weft_sig_oneway(sig) && !weft_sig_idempotent(sig));
    weft_sig_free(sig);
    weft_sig_free(NULL);
}

TEST(what_is_none_is_refused_with_its_place)
{
    static const char *const all[][2] = {
        {"", "ends too early, at column 1: expected a function's name"},
        {"1f() -> void", "column 1, at \"1f() -> void\": expected a function's name"},
        {"calc.() -> void", "column 6, at \"() -> void\": after '.'"},
        {"calc..f() -> void", "column 6, at \".f() -> void\": after '.'"},
        {"f", "ends too early, at column 2: expected '('"},
        {"f[", "column 2, at \"[\": expected '('"},
        {"f(", "ends too early, at column 3: expected a parameter"},
        {"f(i32) -> void", "column 6, at \") -> void\": expected ':'"},
        {"f(a.b: i32) -> void", "column 4, at \".b: i32) -> void\": expected ':'"},
        {"f(a: i33) -> void", "column 6, at \"i33) -> void\": expected a type: bool,"},
        {"f(a: i32x) -> void", "column 6, at \"i32x) -> void\": expected a type"},
        {"f(a: ) -> void", "column 6, at \") -> void\": expected a type"},
        {"f(a: I32) -> void", "expected a type"},
        {"f(a: streams) -> void", "column 6, at \"streams) -> void\": expected a type"},
        {"f(a: stream stream i8) -> void", "column 13, at \"stream i8) -> void\": expected a type"},
        {"f(a: void) -> void", "void stands alone"},
        {"f(a: [void]) -> void", "void stands alone"},
        {"f(a: [string]) -> void", "there is no vector of strings"},
        {"f(a: [[i32]]) -> void", "a vector's elements are not vectors"},
        {"f(a: [stream i32]) -> void", "expected a type"},
        {"f(a: [i32) -> void", "column 10, at \") -> void\": expected ']'"},
        {"f(a: i32 b: i32) -> void", "column 10, at \"b: i32) -> void\": expected ',' or ')'"},
        {"f(a: i32,) -> void", "column 10, at \") -> void\": expected a parameter"},
        {"f(a: i32, a: i8) -> void", "column 11, at \"a: i8) -> void\": that name is there already"},
        {"f(a: stream i32, b: i8) -> void", "column 16, at \", b: i8) -> void\": a stream is the last parameter"},
        {"f()", "ends too early, at column 4: expected \"->\""},
        {"f() - > void", "column 5, at \"- > void\": expected \"->\""},
        {"f() -> ", "expected a type"},
        {"f() -> ()", "column 9, at \")\": expected a type"},
        {"f() -> (void)", "void stands alone"},
        {"f() -> stream void", "void stands alone"},
        {"f() -> (a: i8, a: i8)", "that name is there already"},
        {"f() -> (1a: i8)", "expected a name"},
        {"f() -> (i8 i8)", "column 12, at \"i8)\": expected ',' or ')'"},
        {"f() -> (stream i8, i8)", "column 9, at \"stream i8, i8)\": a stream is the only result"},
        {"f() -> (i8, stream i8)", "a stream is the only result"},
        {"f() -> i8, i8", "column 10, at \", i8\": expected \"idempotent\", \"oneway\" or the end"},
        {"f() -> i8 idempotents", "column 11, at \"idempotents\": expected \"idempotent\""},
        {"f() -> i8 idempotent idempotent", "column 22, at \"idempotent\": that mark is there already"},
        {"f() -> i8 oneway", "column 11, at \"oneway\": nobody waits for a oneway function"},
        {"f() -> void\x01", "byte 0x01 at column 12"},
        {"f\xc3\xa4() -> void", "byte 0xc3 at column 2: expected '('"},
        {"a234567890123456789012345678901234567890123456789012345678901234() -> void", "a name has at most 63"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        weft_sig_t *sig = (weft_sig_t *)&all;
        CHECK_EQ(weft_sig_parse(all[i][0], &sig), WEFT_ERR_INVALID);
        CHECK(sig == (weft_sig_t *)&all);
        if (!strstr(weft_last_error(), all[i][1]))
            FAIL("%s: said \"%s\", not \"%s\"", all[i][0], weft_last_error(), all[i][1]);
    }
    weft_sig_t *sig;
    CHECK_EQ(weft_sig_parse(NULL, &sig), WEFT_ERR_INVALID);
    CHECK_EQ(weft_sig_parse("f() -> void", NULL), WEFT_ERR_INVALID);
}

/* `n` parameters whose names have `len` characters, without blanks. */
static void many(char *buf, int n, int len, const char *type)
{
    buf += sprintf(buf, "f(");
    for (int i = 0; i < n; i++)
        buf += sprintf(buf, "%sn%0*d:%s", i ? "," : "", len - 1, i, type);
    sprintf(buf, ")->void");
}

TEST(limits_are_reached_and_not_passed)
{
    char text[2 * WEFT_SIG_TEXT];
    weft_sig_t *sig;
    size_t n;
    many(text, WEFT_SIG_PARAMS, 63, "[tensor]");
    sig = parse(text);
    weft_sig_params(sig, &n);
    CHECK_EQ(n, WEFT_SIG_PARAMS);
    weft_sig_free(sig);
    many(text, WEFT_SIG_PARAMS + 1, 10, "i8");
    CHECK_EQ(weft_sig_parse(text, &sig), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "at most 32 parameters"));
    /* blanks count: nobody reads a megabyte of them */
    snprintf(text, sizeof text, "f()%*s-> void", WEFT_SIG_TEXT - 10, "");
    CHECK_EQ(strlen(text), WEFT_SIG_TEXT);
    weft_sig_free(parse(text));
    snprintf(text, sizeof text, "f()%*s-> void", WEFT_SIG_TEXT - 9, "");
    CHECK_EQ(weft_sig_parse(text, &sig), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "longer than 4096"));
    /* within the limit as it is written, beyond it the way we write it */
    many(text, 32, 59, "u8");
    char *end = text + strlen(text) - 4;
    end += sprintf(end, "(");
    for (int i = 0; i < 32; i++)
        end += sprintf(end, "%sn%058d:u8", i ? "," : "", i);
    sprintf(end, ")");
    CHECK(strlen(text) <= WEFT_SIG_TEXT);
    int rc = weft_sig_parse(text, &sig);
    CHECK_EQ(rc, WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "use shorter names"));
}

TEST(names_of_parameters_are_for_people)
{
    static const struct {
        const char *a, *b;
        bool agree;
    } all[] = {
        {"f(a: i32) -> i32", "f(x: i32) -> (y: i32)", true},     {"f() -> (a: i32, b: i8)", "f() -> (i32, i8)", true},
        {"f() -> void idempotent", "f() -> void", false},        {"f() -> void oneway", "f() -> void", false},
        {"f(a: i32) -> i32", "g(a: i32) -> i32", false},         {"f(a: i32) -> i32", "f(a: u32) -> i32", false},
        {"f(a: i32) -> i32", "f(a: i32) -> u32", false},         {"f(a: i32) -> i32", "f(a: [i32]) -> i32", false},
        {"f(a: i32) -> i32", "f(a: stream i32) -> i32", false},  {"f(a: i32) -> i32", "f(a: i32) -> stream i32", false},
        {"f(a: i32) -> i32", "f(a: i32, b: i32) -> i32", false}, {"f(a: i32) -> i32", "f(a: i32) -> void", false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        weft_sig_t *a = parse(all[i].a), *b = parse(all[i].b);
        CHECK_EQ(weft_sig_hash(a) == weft_sig_hash(b), all[i].agree);
        weft_sig_free(a);
        weft_sig_free(b);
    }
}

/* The numbers are in docs/design/wire.md: peers of other versions have them too. */
TEST(hashes_never_change)
{
    static const struct {
        const char *text;
        uint64_t hash;
    } all[] = {
        {"add(a: i32, b: i32) -> i32", UINT64_C(0x8ff73da755889a75)},
        {"split(text: string, at: u64) -> (head: string, tail: string)", UINT64_C(0x7ec3580986701874)},
        {"total(values: stream f64) -> f64 idempotent", UINT64_C(0x7d31fca9ec2f7b9b)},
        {"log(line: string) -> void oneway", UINT64_C(0x6084d13c504597d7)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        weft_sig_t *sig = parse(all[i].text);
        if (weft_sig_hash(sig) != all[i].hash)
            FAIL("%s: 0x%016llx", all[i].text, (unsigned long long)weft_sig_hash(sig));
        weft_sig_free(sig);
    }
}

static int fails(size_t n)
{
    (void)n;
    return 1;
}

TEST(without_memory_it_says_so)
{
    weft_sig_t *sig = NULL;
    wefti_alloc_fails = fails;
    CHECK_EQ(weft_sig_parse("f() -> void", &sig), WEFT_ERR_NOMEM);
    wefti_alloc_fails = NULL;
    CHECK(!sig);
}
