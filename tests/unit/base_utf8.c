/* tests/unit/base_utf8.c - what is UTF-8 and what only looks like it, at every place in a text. */
#include "base/utf8.h"

#include "test.h"

static const struct {
    const char *bytes;
    uint32_t c; /* 0: not a character */
} cases[] = {
    {"a", 'a'},
    {"\x7f", 0x7f},
    {"\xc2\x80", 0x80},
    {"\xdf\xbf", 0x7ff},
    {"\xe0\xa0\x80", 0x800},
    {"\xed\x9f\xbf", 0xd7ff},
    {"\xee\x80\x80", 0xe000},
    {"\xef\xbf\xbf", 0xffff},
    {"\xf0\x90\x80\x80", 0x10000},
    {"\xf4\x8f\xbf\xbf", 0x10ffff},
    {"\x80", 0},
    {"\xbf", 0},
    {"\xc0\x80", 0},
    {"\xc1\xbf", 0},
    {"\xc2", 0},
    {"\xc2\x41", 0},
    {"\xe0\x9f\xbf", 0},
    {"\xe0\xa0", 0},
    {"\xed\xa0\x80", 0},
    {"\xed\xbf\xbf", 0},
    {"\xf0\x8f\xbf\xbf", 0},
    {"\xf0\x90\x80", 0},
    {"\xf4\x90\x80\x80", 0},
    {"\xf8\x88\x80\x80\x80", 0},
    {"\xff", 0},
};

TEST(characters_have_one_form)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t c = 0;
        size_t n = strlen(cases[i].bytes);
        CHECK_EQ(wefti_utf8_char((const uint8_t *)cases[i].bytes, n, &c), cases[i].c ? n : 0);
        CHECK_EQ(c, cases[i].c);
    }
}

TEST(a_text_is_as_good_as_its_worst_character)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].bytes);
        for (size_t before = 0; before < 20; before++) {
            for (size_t after = 0; after < 20; after++) {
                /* exactly as long, so that a sanitizer sees the first byte past the end */
                uint8_t *text = malloc(before + n + after);
                CHECK(text);
                memset(text, 'x', before + n + after);
                memcpy(text + before, cases[i].bytes, n);
                CHECK_EQ(wefti_utf8_ok(text, before + n + after), cases[i].c != 0);
                free(text);
            }
        }
    }
    CHECK(wefti_utf8_ok(NULL, 0));
    CHECK(wefti_utf8_ok("\0\0", 2));
}
