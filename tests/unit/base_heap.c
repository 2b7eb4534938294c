/* tests/unit/base_heap.c - the timer heap against a plain array. */
#include "base/heap.h"

#include "../test.h"
#include "base/alloc.h"
#include "base/rng.h"

static int always_fails(size_t n)
{
    (void)n;
    return 1;
}

/* Every node knows its place, and no child is smaller than its parent (whatever the arity, the smallest is first). */
static void check_places(const wefti_heap_t *h)
{
    for (size_t i = 0; i < h->n; i++) {
        CHECK_EQ(h->at[i]->slot, i + 1);
        CHECK(h->at[0]->key <= h->at[i]->key);
    }
}

TEST(an_empty_heap_has_no_smallest)
{
    wefti_heap_t h = {0};
    CHECK(!wefti_heap_min(&h));
    wefti_heap_free(&h);
}

TEST(nodes_leave_in_the_order_of_their_keys)
{
    enum { N = 5000 };
    static wefti_heap_node_t nodes[N];
    wefti_heap_t h = {0};
    wefti_rng_t rng = {7};
    for (int i = 0; i < N; i++) {
        nodes[i].key = wefti_rng_below(&rng, N / 2); /* many are equal */
        CHECK_OK(wefti_heap_insert(&h, &nodes[i]));
    }
    uint64_t last = 0;
    for (int i = 0; i < N; i++) {
        wefti_heap_node_t *min = wefti_heap_min(&h);
        CHECK(min && min->key >= last);
        last = min->key;
        wefti_heap_remove(&h, min);
        CHECK(!wefti_heap_linked(min));
    }
    CHECK_EQ(h.n, 0);
    wefti_heap_free(&h);
}

TEST(the_largest_key_is_a_key_like_any_other)
{
    wefti_heap_t h = {0};
    wefti_heap_node_t most = {.key = UINT64_MAX}, least = {.key = 0};
    CHECK_OK(wefti_heap_insert(&h, &most));
    CHECK_OK(wefti_heap_insert(&h, &least));
    CHECK(wefti_heap_min(&h) == &least);
    wefti_heap_remove(&h, &least);
    CHECK(wefti_heap_min(&h) == &most);
    wefti_heap_free(&h);
}

TEST(removing_a_node_that_is_in_no_heap_does_nothing)
{
    wefti_heap_t h = {0};
    wefti_heap_node_t in = {.key = 1}, out = {.key = 0};
    CHECK_OK(wefti_heap_insert(&h, &in));
    wefti_heap_remove(&h, &out);
    CHECK_EQ(h.n, 1);
    wefti_heap_free(&h);
}

TEST(an_insert_without_memory_leaves_the_heap_as_it_was)
{
    wefti_heap_t h = {0};
    wefti_heap_node_t nodes[100] = {0};
    size_t in = 0;
    wefti_alloc_fails = always_fails;
    CHECK_EQ(wefti_heap_insert(&h, &nodes[0]), WEFT_ERR_NOMEM);
    wefti_alloc_fails = NULL;
    CHECK(!wefti_heap_linked(&nodes[0]));
    for (; in < 3 || h.n < h.cap; in++) {
        nodes[in].key = in;
        CHECK_OK(wefti_heap_insert(&h, &nodes[in]));
    }
    wefti_alloc_fails = always_fails;
    CHECK_EQ(wefti_heap_insert(&h, &nodes[in]), WEFT_ERR_NOMEM);
    wefti_alloc_fails = NULL;
    CHECK_EQ(h.n, in);
    CHECK(!wefti_heap_linked(&nodes[in]));
    check_places(&h);
    wefti_heap_free(&h);
}

TEST(random_operations_agree_with_a_scan_of_all_nodes)
{
    enum { N = 60 };
    for (uint64_t seed = 1; seed <= 300; seed++) {
        wefti_rng_t rng = {seed};
        wefti_heap_t h = {0};
        wefti_heap_node_t nodes[N] = {0};
        bool in[N] = {0};
        size_t n = 0;
        for (int step = 0; step < 400; step++) {
            size_t i = (size_t)wefti_rng_below(&rng, N);
            if (in[i]) {
                wefti_heap_remove(&h, &nodes[i]);
            } else {
                nodes[i].key = wefti_rng_below(&rng, 1 + seed % 50);
                CHECK_OK(wefti_heap_insert(&h, &nodes[i]));
            }
            in[i] = !in[i];
            n += in[i] ? 1 : (size_t)-1;
            CHECK_EQ(h.n, n);
            check_places(&h);
            uint64_t least = UINT64_MAX;
            for (int k = 0; k < N; k++) {
                CHECK_EQ(wefti_heap_linked(&nodes[k]), in[k]);
                if (in[k] && nodes[k].key < least)
                    least = nodes[k].key;
            }
            CHECK(n ? wefti_heap_min(&h)->key == least : !wefti_heap_min(&h));
        }
        wefti_heap_free(&h);
    }
}

/* Not a benchmark: only that twice the nodes do not cost four times the time, with much air. */
TEST(a_hundred_thousand_timers_come_and_go_quickly)
{
    enum { N = 100000 };
    wefti_heap_node_t *nodes = calloc(N, sizeof *nodes);
    CHECK(nodes);
    wefti_heap_t h = {0};
    wefti_rng_t rng = {3};
    double start = test_now();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            nodes[i].key = wefti_rng_next(&rng);
            CHECK_OK(wefti_heap_insert(&h, &nodes[i]));
        }
        for (int i = 0; i < N; i++)
            wefti_heap_remove(&h, round == 1 ? wefti_heap_min(&h) : &nodes[i]);
        CHECK_EQ(h.n, 0);
    }
    CHECK(test_now() - start < 20);
    wefti_heap_free(&h);
    free(nodes);
}
