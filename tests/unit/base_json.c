/* JSON is read in place, or refused. */
#include "base/json.h"
#include "test.h"

/* On the heap and not a byte longer than it is, for the sanitizers to see. */
static wefti_json_t reader(const char *text, char **copy_out)
{
    size_t n = strlen(text);
    *copy_out = malloc(n ? n : 1);
    CHECK(*copy_out);
    memcpy(*copy_out, text, n);
    return wefti_json(*copy_out, n);
}

static bool valid(const char *text)
{
    char *copy;
    wefti_json_t j = reader(text, &copy);
    wefti_json_skip(&j);
    bool ok = wefti_json_end(&j);
    free(copy);
    return ok;
}

TEST(what_is_json_is_read_to_its_end)
{
    const char *good[] = {"{}",
                          "[]",
                          " [ ] ",
                          "0",
                          "-0",
                          "-1.5e+10",
                          "[1,2,3]",
                          "\"\"",
                          "null",
                          "true",
                          "false",
                          "{\"a\":1}",
                          "1E3",
                          "[[],[[]],{}]",
                          "{\"a\":{\"b\":[1,{\"c\":null}]},\"d\":\"e\"}",
                          "\"\\u00e9\\ud83d\\ude00\\n\\/\"",
                          "\"\xc3\xa9\"",
                          "[\"\\\\\"]\n"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!valid(good[i]))
            FAIL("%s was refused", good[i]);
}

TEST(what_is_no_json_is_refused)
{
    const char *wrong[] = {"",
                           " ",
                           "{",
                           "}",
                           "[",
                           "[1",
                           "[1,",
                           "[1,]",
                           "[,1]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{\"a\" 1}",
                           "{1:1}",
                           "01",
                           "-",
                           "1.",
                           ".5",
                           "1e",
                           "+1",
                           "nul",
                           "truex",
                           "tru",
                           "\"",
                           "\"\\\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "\"\x01\"",
                           "\"\xff\"",
                           "\"\xc3\"",
                           "1 2",
                           "[1 2]",
                           "{}{}",
                           "[}",
                           "{]",
                           "NaN",
                           "\"\\ud800\\ud800\""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (valid(wrong[i]))
            FAIL("%s was taken", wrong[i]);
}

TEST(depth_has_an_end)
{
    char text[2 * 100 + 1];
    for (int n = 1; n <= 100; n++) {
        memset(text, '[', (size_t)n);
        memset(text + n, ']', (size_t)n);
        text[2 * n] = 0;
        CHECK_EQ(valid(text), n <= WEFTI_JSON_DEPTH);
        text[n] = 0;
        CHECK(!valid(text));
    }
}

TEST(members_and_items_come_in_order_and_strings_unescaped)
{
    char *copy;
    wefti_json_t j =
        reader("{\"a\":[1,\"-2\",3],\"b\\u0063\":\"x\\ty\\u00e9\\ud83d\\ude00\\u0000z\",\"d\":true,\"e\":{}}", &copy);
    wefti_json_text_t key;
    int64_t sum = 0;
    int items = 0;
    wefti_json_object(&j);
    CHECK(wefti_json_member(&j, &key) && wefti_json_is(&key, "a"));
    for (wefti_json_array(&j); wefti_json_item(&j); items++)
        sum = 10 * sum + wefti_json_i64(&j);
    CHECK_EQ(items, 3);
    CHECK_EQ(sum, 83);
    CHECK(wefti_json_member(&j, &key) && wefti_json_is(&key, "bc") && !wefti_json_is(&key, "b"));
    CHECK_EQ(wefti_json_next(&j), '"');
    wefti_json_text_t t = wefti_json_string(&j);
    CHECK_EQ(t.n, 11);
    CHECK(!memcmp(t.p, "x\ty\xc3\xa9\xf0\x9f\x98\x80\0z", 12));
    CHECK(wefti_json_member(&j, &key) && wefti_json_bool(&j));
    CHECK(wefti_json_member(&j, &key));
    wefti_json_object(&j);
    CHECK(!wefti_json_member(&j, &key));
    CHECK(!wefti_json_member(&j, &key));
    CHECK(wefti_json_end(&j));
    free(copy);
}

TEST(numbers_keep_64_bits_or_are_refused)
{
    static const struct {
        const char *text;
        int64_t value;
        bool ok;
    } all[] = {
        {"9223372036854775807", INT64_MAX, true},
        {"\"9223372036854775807\"", INT64_MAX, true},
        {"-9223372036854775808", INT64_MIN, true},
        {"\"0\"", 0, true},
        {"9223372036854775808", 0, false},
        {"-9223372036854775809", 0, false},
        {"99999999999999999999999", 0, false},
        {"1.0", 0, false},
        {"1e3", 0, false},
        {"\"\"", 0, false},
        {"\" 1\"", 0, false},
        {"\"1 \"", 0, false},
        {"\"x\"", 0, false},
        {"true", 0, false},
        {"\"\\\"1\\\"\"", 0, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *copy;
        wefti_json_t j = reader(all[i].text, &copy);
        int64_t v = wefti_json_i64(&j);
        if (wefti_json_end(&j) != all[i].ok || v != all[i].value)
            FAIL("%s came to %lld", all[i].text, (long long)v);
        free(copy);
    }
}

TEST(a_bad_reader_gives_nothing_more_and_ends_every_loop)
{
    char *copy;
    wefti_json_t j = reader("{\"a\":oops,\"b\":[1,2]}", &copy);
    wefti_json_text_t key;
    int rounds = 0;
    for (wefti_json_object(&j); wefti_json_member(&j, &key) && rounds < 10; rounds++)
        CHECK_EQ(wefti_json_i64(&j), 0);
    CHECK_EQ(rounds, 1);
    wefti_json_array(&j);
    CHECK(!wefti_json_item(&j));
    CHECK_EQ(wefti_json_string(&j).n, 0);
    CHECK_EQ(wefti_json_next(&j), 0);
    CHECK(!wefti_json_end(&j));
    free(copy);
    j = wefti_json(NULL, 0);
    wefti_json_skip(&j);
    CHECK(!wefti_json_end(&j));
}

TEST(raw_values_and_keys_stay_as_they_are)
{
    char text[] = "{\"\\u0061\": \"x\\ny\", \"b\" : [ 1, {\"c\": \"\\\\\"} ] }", before[sizeof text];
    memcpy(before, text, sizeof text);
    wefti_json_t j = wefti_json(text, strlen(text));
    wefti_json_text_t key, value;
    wefti_json_object(&j);
    CHECK(wefti_json_member_raw(&j, &key));
    value = wefti_json_raw(&j);
    CHECK(key.n == 8 && !memcmp(key.p, "\"\\u0061\"", 8) && value.n == 6 && !memcmp(value.p, "\"x\\ny\"", 6));
    CHECK(wefti_json_member_raw(&j, &key));
    value = wefti_json_raw(&j);
    CHECK(value.n == strlen("[ 1, {\"c\": \"\\\\\"} ]") && *value.p == '[');
    CHECK(!wefti_json_member_raw(&j, &key));
    CHECK(wefti_json_end(&j) && !memcmp(text, before, sizeof text));
}

TEST(depth_and_half_pairs_are_the_readers_choice)
{
    char deep[2 * 500 + 1], half[] = "[\"\\ud800\", \"a\\udc00\\u0041\"]";
    memset(deep, '[', 500);
    memset(deep + 500, ']', 500);
    for (unsigned deepest = 499; deepest <= 500; deepest++) {
        wefti_json_t j = wefti_json(deep, 1000);
        j.deepest = deepest;
        wefti_json_skip(&j);
        CHECK_EQ(wefti_json_end(&j), deepest == 500);
    }
    wefti_json_t j = wefti_json(half, strlen(half));
    j.halves = true;
    wefti_json_array(&j);
    CHECK(wefti_json_item(&j));
    CHECK_STR(wefti_json_string(&j).p, "\xef\xbf\xbd");
    CHECK(wefti_json_item(&j));
    CHECK_STR(wefti_json_string(&j).p, "a\xef\xbf\xbd"
                                       "A");
    CHECK(!wefti_json_item(&j));
    CHECK(wefti_json_end(&j));
}
