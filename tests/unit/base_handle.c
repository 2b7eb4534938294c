/* tests/unit/base_handle.c - the memory of a closed object stays readable and says so; it is used again only after others were freed. */
#include "test.h"

#include "base/alloc.h"
#include "base/handle.h"

typedef struct thing {
    wefti_handle_t handle;
    int remembered;
    int body[100];
} thing_t;

static wefti_handles_t things = WEFTI_HANDLES_INIT(thing_t, remembered);

TEST(a_new_one_is_open_zero_and_aligned)
{
    thing_t *t = wefti_handle_new(&things);
    CHECK(t && wefti_is_open(&t->handle));
    CHECK_EQ((uintptr_t)t % 64, 0);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(t->body[i], 0);
    t->body[3] = 7;
    wefti_handle_free(&things, t);
}

TEST(a_closed_one_can_be_read_and_its_memory_is_not_given_to_the_next)
{
    thing_t *t = wefti_handle_new(&things);
    t->remembered = 42;
    wefti_handle_free(&things, t);
    CHECK(!wefti_is_open(&t->handle));
    for (int i = 0; i < 60; i++) {
        thing_t *other = wefti_handle_new(&things);
        CHECK(other != t);
        wefti_handle_free(&things, other);
        CHECK_EQ(t->remembered, 42);
    }
}

TEST(memory_is_used_again_after_a_while_and_is_zero_then)
{
    for (int i = 0; i < 10000; i++) {
        thing_t *t = wefti_handle_new(&things);
        for (int k = 0; k < 100; k++) {
            CHECK_EQ(t->body[k], 0);
            t->body[k] = k;
        }
        wefti_handle_free(&things, t);
    }
    CHECK(things.n_all < 1000);
}

static int always(size_t n)
{
    (void)n;
    return 1;
}

TEST(without_memory_there_is_none)
{
    wefti_alloc_fails = always;
    CHECK(wefti_handle_new(&things) == NULL);
    wefti_alloc_fails = NULL;
}
