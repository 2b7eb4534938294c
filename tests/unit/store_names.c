/* The names of a server's blocks: found, in order, taken once, whatever comes and goes. */
#include "base/rng.h"
#include "store/state.h"
#include "test.h"

static store_held_t *held(const char *name)
{
    size_t n = strlen(name);
    store_held_t *b = calloc(1, sizeof *b + n);
    b->name_len = (uint8_t)n;
    memcpy(b->name, name, n);
    return b;
}

static void check_order(const store_names_t *names)
{
    for (size_t i = 1; i < names->n; i++) {
        const store_held_t *a = names->at[i - 1], *b = names->at[i];
        size_t n = a->name_len < b->name_len ? a->name_len : b->name_len;
        int order = memcmp(a->name, b->name, n);
        CHECK(order < 0 || (!order && a->name_len < b->name_len));
    }
}

TEST(names_come_and_go_in_order)
{
    enum { MANY = 2000 };
    static store_held_t *all[MANY];
    store_names_t names = {0};
    wefti_rng_t rng = {5};
    unsigned there = 0;
    for (int step = 0; step < 20000; step++) {
        unsigned i = (unsigned)wefti_rng_below(&rng, MANY);
        char name[32];
        int n = snprintf(name, sizeof name, "%x", i * 1009 % MANY);
        store_held_t *b = wefti_store_names_find(&names, name, (size_t)n);
        CHECK(b == all[i]);
        if (b) {
            wefti_store_names_remove(&names, b);
            wefti_store_names_remove(&names, b); /* it is not there: nothing happens */
            free(b);
            all[i] = NULL;
            there--;
        } else {
            all[i] = held(name);
            CHECK_OK(wefti_store_names_add(&names, all[i]));
            store_held_t *twin = held(name);
            CHECK_EQ(wefti_store_names_add(&names, twin), WEFT_ERR_STATE);
            wefti_store_names_remove(&names, twin);
            free(twin);
            there++;
        }
        CHECK_EQ(names.n, there);
        if (step % 1000 == 0)
            check_order(&names);
    }
    check_order(&names);
    for (int i = 0; i < MANY; i++)
        free(all[i]);
    free(names.at);
}

TEST(where_a_prefix_begins)
{
    static const char *const in[] = {"b", "a", "ab", "abc", "ac"};
    store_names_t names = {0};
    store_held_t *all[5];
    bool exact;
    for (int i = 0; i < 5; i++)
        CHECK_OK(wefti_store_names_add(&names, all[i] = held(in[i])));
    CHECK_EQ(wefti_store_names_from(&names, "", 0, &exact), 0);
    CHECK(!exact);
    CHECK_EQ(wefti_store_names_from(&names, "ab", 2, &exact), 1);
    CHECK(exact);
    CHECK_EQ(wefti_store_names_from(&names, "abb", 3, &exact), 2);
    CHECK(!exact);
    CHECK_EQ(wefti_store_names_from(&names, "zz", 2, NULL), 5);
    for (int i = 0; i < 5; i++)
        free(all[i]);
    free(names.at);
}
