/* tests/unit/base_handle.c - the memory of a closed object stays readable and says so; it is used again only after others were
 * freed. ctest: label=thread */
#include <pthread.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/handle.h"
#include "test.h"

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

/* --- who is inside -------------------------------------------------------------------------------------------------------- */

TEST(only_an_open_one_can_be_entered_and_only_one_closes_it)
{
    thing_t *t = wefti_handle_new(&things);
    CHECK(wefti_handle_enter(&t->handle));
    wefti_handle_leave(&t->handle);
    CHECK(wefti_handle_close(&t->handle));
    CHECK(!wefti_handle_close(&t->handle));
    CHECK(!wefti_handle_enter(&t->handle));
    wefti_handle_free(&things, t);
    CHECK(!wefti_handle_enter(&t->handle));
}

static thing_t *shared;
static _Atomic int wrong, over;

/* While it is inside, what it sees is not changed by whoever frees it. */
static void *looks(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        if (!wefti_handle_enter(&shared->handle))
            continue;
        for (int i = 0; i < 100; i++)
            wrong += shared->body[i] != 1;
        wefti_handle_leave(&shared->handle);
    }
    return NULL;
}

TEST(nobody_frees_it_under_whoever_is_inside)
{
    pthread_t threads[2];
    for (int round = 0; round < 50; round++) {
        shared = wefti_handle_new(&things);
        wefti_handle_close(&shared->handle);
        for (int i = 0; i < 100; i++)
            shared->body[i] = 1;
        atomic_store(&shared->handle.open, 1);
        atomic_store(&over, 0);
        for (int i = 0; i < 2; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, looks, NULL), 0);
        usleep(50);
        wefti_handle_close(&shared->handle);
        wefti_handle_quiet(&shared->handle);
        for (int i = 0; i < 100; i++)
            shared->body[i] = 2;
        wefti_handle_free(&things, shared);
        atomic_store(&over, 1);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    CHECK_EQ(wrong, 0);
}

/* Closes it, finds that it cannot, and opens it again, all from inside. */
static void *thinks_again(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        if (!wefti_handle_enter(&shared->handle))
            continue;
        if (wefti_handle_close(&shared->handle))
            wefti_handle_reopen(&shared->handle);
        wefti_handle_leave(&shared->handle);
    }
    return NULL;
}

TEST(one_that_is_shut_stays_closed_whoever_thought_again)
{
    pthread_t threads[2];
    for (int round = 0; round < 50; round++) {
        shared = wefti_handle_new(&things);
        atomic_store(&over, 0);
        for (int i = 0; i < 2; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, thinks_again, NULL), 0);
        usleep(50);
        wefti_handle_shut(&shared->handle);
        CHECK(!wefti_is_open(&shared->handle));
        usleep(50);
        CHECK(!wefti_is_open(&shared->handle));
        atomic_store(&over, 1);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        wefti_handle_free(&things, shared);
    }
}
