/* tests/unit/base_slots.c - ids of index and generation: stale ones find nothing, none is given twice. */
#include "base/slots.h"

#include "../test.h"
#include "base/alloc.h"
#include "base/rng.h"

static int always_fails(size_t n)
{
    (void)n;
    return 1;
}

static int some[1000];

TEST(an_id_finds_its_value_until_it_is_removed)
{
    wefti_slots_t s;
    uint64_t id = 0;
    wefti_slots_init(&s, 10);
    CHECK_OK(wefti_slots_add(&s, &some[0], &id));
    CHECK(id != 0);
    CHECK(wefti_slots_get(&s, id) == &some[0]);
    wefti_slots_remove(&s, id);
    CHECK(!wefti_slots_get(&s, id));
    CHECK_EQ(s.taken, 0);
    wefti_slots_remove(&s, id); /* stale: nothing happens */
    CHECK_EQ(s.taken, 0);
    wefti_slots_free(&s);
}

TEST(an_id_of_nobody_finds_nothing)
{
    wefti_slots_t s;
    uint64_t id;
    wefti_slots_init(&s, 10);
    CHECK(!wefti_slots_get(&s, 0));
    CHECK(!wefti_slots_get(&s, UINT64_MAX));
    CHECK_OK(wefti_slots_add(&s, &some[0], &id));
    CHECK(!wefti_slots_get(&s, 0));
    CHECK(!wefti_slots_get(&s, id + 1));
    CHECK(!wefti_slots_get(&s, id + (UINT64_C(1) << 32)));
    wefti_slots_remove(&s, id);
    CHECK(!wefti_slots_get(&s, id + (UINT64_C(1) << 32))); /* the generation a free slot has */
    CHECK(!wefti_slots_get(&s, 0));
    wefti_slots_free(&s);
}

TEST(more_than_max_at_one_time_are_refused_and_room_comes_back)
{
    wefti_slots_t s;
    uint64_t ids[3], id = 77;
    wefti_slots_init(&s, 3);
    for (int i = 0; i < 3; i++)
        CHECK_OK(wefti_slots_add(&s, &some[i], &ids[i]));
    CHECK_EQ(wefti_slots_add(&s, &some[3], &id), WEFT_ERR_LIMIT);
    CHECK_EQ(id, 77);
    wefti_slots_remove(&s, ids[1]);
    CHECK_OK(wefti_slots_add(&s, &some[3], &id));
    CHECK(id != ids[1]);
    CHECK(wefti_slots_get(&s, id) == &some[3]);
    wefti_slots_free(&s);
    wefti_slots_init(&s, 0);
    CHECK_EQ(wefti_slots_add(&s, &some[0], &id), WEFT_ERR_LIMIT);
    wefti_slots_free(&s);
}

TEST(an_add_without_memory_leaves_the_table_as_it_was)
{
    wefti_slots_t s;
    uint64_t id = 77, ids[100];
    uint32_t n = 0;
    wefti_slots_init(&s, 1000);
    wefti_alloc_fails = always_fails;
    CHECK_EQ(wefti_slots_add(&s, &some[0], &id), WEFT_ERR_NOMEM);
    CHECK_EQ(id, 77);
    wefti_alloc_fails = NULL;
    do
        CHECK_OK(wefti_slots_add(&s, &some[n], &ids[n]));
    while (++n < s.cap);
    wefti_alloc_fails = always_fails;
    CHECK_EQ(wefti_slots_add(&s, &some[n], &id), WEFT_ERR_NOMEM);
    wefti_slots_remove(&s, ids[0]);
    CHECK_OK(wefti_slots_add(&s, &some[0], &ids[0])); /* a slot that was used before needs no memory */
    wefti_alloc_fails = NULL;
    CHECK_EQ(s.taken, n);
    for (uint32_t i = 0; i < n; i++)
        CHECK(wefti_slots_get(&s, ids[i]) == &some[i]);
    wefti_slots_free(&s);
}

TEST(a_slot_whose_generation_would_wrap_is_never_used_again)
{
    wefti_slots_t s;
    uint64_t first, last, next;
    wefti_slots_init(&s, 1);
    CHECK_OK(wefti_slots_add(&s, &some[0], &first));
    uint32_t i = (uint32_t)first;
    wefti_slots_remove(&s, first);
    s.at[i].generation = UINT32_MAX - 1; /* as if it had been used two thousand million times */
    CHECK_OK(wefti_slots_add(&s, &some[1], &last));
    CHECK_EQ(last >> 32, UINT32_MAX);
    CHECK(wefti_slots_get(&s, last) == &some[1]);
    wefti_slots_remove(&s, last);
    CHECK(!wefti_slots_get(&s, last));
    CHECK(!wefti_slots_get(&s, i)); /* generation 0 */
    CHECK_EQ(s.taken, 0);
    CHECK_OK(wefti_slots_add(&s, &some[2], &next)); /* a retired slot does not count towards max */
    CHECK((uint32_t)next != i);
    CHECK(!wefti_slots_get(&s, first));
    CHECK(!wefti_slots_get(&s, last));
    CHECK(wefti_slots_get(&s, next) == &some[2]);
    wefti_slots_free(&s);
}

TEST(random_operations_agree_with_a_list_of_all_ids_ever_given)
{
    enum { STEPS = 400 };
    for (uint64_t seed = 1; seed <= 150; seed++) {
        wefti_rng_t rng = {seed};
        wefti_slots_t s;
        uint64_t ids[STEPS];
        void *values[STEPS]; /* NULL: removed */
        uint32_t n = 0, alive = 0, max = 1 + (uint32_t)wefti_rng_below(&rng, 60);
        wefti_slots_init(&s, max);
        for (int step = 0; step < STEPS; step++) {
            if (!n || wefti_rng_below(&rng, 2)) {
                weft_status_t st = wefti_slots_add(&s, &some[step], &ids[n]);
                CHECK_EQ(st, alive == max ? WEFT_ERR_LIMIT : WEFT_OK);
                if (!st) {
                    CHECK(ids[n] != 0 && ids[n] >> 32 != 0);
                    for (uint32_t k = 0; k < n; k++)
                        CHECK(ids[k] != ids[n]);
                    values[n++] = &some[step];
                    alive++;
                }
            } else {
                uint32_t k = (uint32_t)wefti_rng_below(&rng, n);
                wefti_slots_remove(&s, ids[k]);
                alive -= values[k] != NULL;
                values[k] = NULL;
            }
            CHECK_EQ(s.taken, alive);
            for (uint32_t k = 0; k < n; k++)
                CHECK(wefti_slots_get(&s, ids[k]) == values[k]);
        }
        CHECK(s.n <= max);
        wefti_slots_free(&s);
    }
}
