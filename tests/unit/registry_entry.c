/* Entries of a registry: which names and addresses there can be, how they are written in a file, and what is refused. */
#include "registry/state.h"
#include "test.h"

static reg_entry_t *make(const char *service, const char *instance, const void *data, size_t n)
{
    weft_entry_t e = WEFT_ENTRY_INIT;
    reg_entry_t *out = NULL;
    e.service = service;
    e.address = "tcp://a:1,unix:///b";
    e.load = 7;
    e.data = data;
    e.data_len = n;
    CHECK_OK(wefti_reg_entry_new(&e, instance, &out));
    return out;
}

TEST(names_are_letters_digits_dots_dashes_and_underscores)
{
    char longest[65];
    memset(longest, 'a', 64);
    longest[64] = 0;
    CHECK(!wefti_reg_name_ok(longest));
    CHECK(wefti_reg_name_ok(longest + 1));
    CHECK(wefti_reg_name_ok("A-z_0.9"));
    CHECK(!wefti_reg_name_ok(NULL) && !wefti_reg_name_ok("") && !wefti_reg_name_ok("a/b") && !wefti_reg_name_ok("a@b") &&
          !wefti_reg_name_ok("a b") && !wefti_reg_name_ok("a\n") && !wefti_reg_name_ok("\xc3\xa4"));
}

TEST(what_cannot_be_entered_is_refused_with_a_sentence)
{
    static char big[REG_DATA_MAX + 1];
    weft_entry_t good = WEFT_ENTRY_INIT, e;
    reg_entry_t *out = NULL;
    good.service = "s";
    good.address = "a";
    for (int i = 0; i < 7; i++) {
        char address[REG_ADDRESS_MAX + 2];
        memset(address, 'x', sizeof address - 1);
        address[sizeof address - 1] = 0;
        e = good;
        if (i == 0)
            e.service = "no/service";
        if (i == 1)
            e.address = NULL;
        if (i == 2)
            e.address = "two words";
        if (i == 3)
            e.address = address;
        if (i == 4)
            e.load = REG_LOAD_MAX + 1;
        if (i == 5)
            e.data = big, e.data_len = sizeof big;
        if (i == 6)
            e.data_len = 1;
        CHECK_EQ(wefti_reg_entry_new(&e, "i", &out), WEFT_ERR_INVALID);
        CHECK(*weft_last_error());
        CHECK(!out);
    }
    CHECK_EQ(wefti_reg_entry_new(&good, "../i", &out), WEFT_ERR_INVALID);
}

TEST(an_entry_comes_back_from_its_bytes_and_from_no_others)
{
    static uint8_t data[REG_DATA_MAX], bytes[REG_BYTES_MAX + 1];
    const size_t sizes[] = {0, 1, 300, REG_DATA_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        reg_entry_t *e = make("service", "instance", data, sizes[i]), *back = NULL;
        size_t n = wefti_reg_entry_encode(e, bytes, sizeof bytes);
        CHECK_EQ(n, REG_HEAD + 7 + 8 + 19 + sizes[i]);
        CHECK_OK(wefti_reg_entry_decode(bytes, n, &back));
        CHECK(wefti_reg_entry_same(e, back));
        wefti_reg_entry_unref(back);
        back = NULL;
        CHECK_EQ(wefti_reg_entry_decode(bytes, n + 1, &back), WEFT_ERR_PROTOCOL);
        for (size_t less = 0; less < n && less < 100; less++) {
            uint8_t *exact = malloc(less + 1); /* so that a sanitizer sees a read past the end */
            memcpy(exact, bytes, less);
            CHECK_EQ(wefti_reg_entry_decode(exact, less, &back), WEFT_ERR_PROTOCOL);
            free(exact);
        }
        for (size_t at = 0; at < REG_HEAD; at++) {
            if (at >= 8 && at < 10)
                continue; /* the load may be another */
            bytes[at] ^= 0x80;
            CHECK_EQ(wefti_reg_entry_decode(bytes, n, &back), WEFT_ERR_PROTOCOL);
            bytes[at] ^= 0x80;
        }
        bytes[REG_HEAD] = '/';
        CHECK_EQ(wefti_reg_entry_decode(bytes, n, &back), WEFT_ERR_PROTOCOL);
        CHECK(!back);
        wefti_reg_entry_unref(e);
    }
}

TEST(lists_are_in_order_and_have_each_once)
{
    reg_found_t *f = wefti_reg_found_new(), *g = wefti_reg_found_new();
    const char *names[] = {"b", "a", "c", "a", "b"};
    for (int i = 0; i < 5; i++)
        CHECK_OK(wefti_reg_found_add(f, make("s", names[i], "x", 1)));
    for (int i = 0; i < 3; i++)
        CHECK_OK(wefti_reg_found_add(g, make("s", names[i], "x", 1)));
    wefti_reg_found_sort(f);
    wefti_reg_found_sort(g);
    CHECK_EQ(f->n, 3);
    CHECK_STR(f->at[0]->instance, "a");
    CHECK_STR(f->at[2]->instance, "c");
    CHECK(wefti_reg_found_same(f, g));
    wefti_reg_entry_unref(g->at[1]);
    g->at[1] = make("s", "b", "y", 1);
    CHECK(!wefti_reg_found_same(f, g));
    wefti_reg_found_unref(f);
    wefti_reg_found_unref(g);
}
