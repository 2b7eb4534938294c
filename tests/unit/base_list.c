/* tests/unit/base_list.c - intrusive lists: order, splicing, and nodes that know whether they are on one. */
#include "base/list.h"

#include "../test.h"
#include "base/rng.h"

typedef struct item {
    int id;
    wefti_list_t link;
} item_t;

static item_t *item_of(wefti_list_t *n)
{
    return wefti_container_of(n, item_t, link);
}

static size_t length(const wefti_list_t *l)
{
    size_t n = 0;
    wefti_list_each(it, l) {
        CHECK(it->next->prev == it && it->prev->next == it);
        n++;
    }
    return n;
}

TEST(a_zeroed_node_and_a_removed_one_are_on_no_list)
{
    wefti_list_t l, n = {0};
    wefti_list_init(&l);
    CHECK(!wefti_list_linked(&n));
    wefti_list_push_back(&l, &n);
    CHECK(wefti_list_linked(&n));
    wefti_list_remove(&n);
    CHECK(!wefti_list_linked(&n));
    CHECK(wefti_list_empty(&l));
    wefti_list_remove(&n); /* once more does no harm */
    CHECK(!wefti_list_linked(&n));
}

TEST(an_empty_list_gives_no_first_and_pops_nothing)
{
    wefti_list_t l;
    wefti_list_init(&l);
    CHECK(!wefti_list_first(&l));
    CHECK(!wefti_list_pop(&l));
}

TEST(pushing_at_both_ends_keeps_the_order)
{
    item_t items[4] = {{.id = 0}, {.id = 1}, {.id = 2}, {.id = 3}};
    wefti_list_t l;
    wefti_list_init(&l);
    wefti_list_push_back(&l, &items[2].link);
    wefti_list_push_front(&l, &items[1].link);
    wefti_list_push_back(&l, &items[3].link);
    wefti_list_push_front(&l, &items[0].link);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(item_of(wefti_list_pop(&l))->id, i);
    CHECK(wefti_list_empty(&l));
}

TEST(splicing_moves_everything_to_the_end_and_empties_the_source)
{
    item_t items[4] = {{.id = 0}, {.id = 1}, {.id = 2}, {.id = 3}};
    wefti_list_t a, b;
    wefti_list_init(&a);
    wefti_list_init(&b);
    wefti_list_splice(&a, &b);
    CHECK(wefti_list_empty(&a) && wefti_list_empty(&b));
    wefti_list_push_back(&b, &items[0].link);
    wefti_list_push_back(&b, &items[1].link);
    wefti_list_splice(&a, &b);
    wefti_list_push_back(&b, &items[2].link);
    wefti_list_push_back(&b, &items[3].link);
    wefti_list_splice(&a, &b);
    CHECK(wefti_list_empty(&b));
    CHECK_EQ(length(&a), 4);
    int expected = 0;
    wefti_list_each(it, &a)
        CHECK_EQ(item_of(it)->id, expected++);
}

TEST(the_current_node_may_be_removed_during_a_safe_walk)
{
    item_t items[10];
    wefti_list_t l;
    wefti_list_init(&l);
    for (int i = 0; i < 10; i++) {
        items[i].id = i;
        wefti_list_push_back(&l, &items[i].link);
    }
    wefti_list_each_safe(it, &l) {
        if (item_of(it)->id % 2)
            wefti_list_remove(it);
    }
    CHECK_EQ(length(&l), 5);
    wefti_list_each_safe(it, &l)
        wefti_list_remove(it);
    CHECK(wefti_list_empty(&l));
}

TEST(random_operations_agree_with_an_array)
{
    enum { N = 40 };
    for (uint64_t seed = 1; seed <= 200; seed++) {
        wefti_rng_t rng = {seed};
        item_t items[N] = {0};
        int order[N], n = 0;
        wefti_list_t l;
        wefti_list_init(&l);
        for (int i = 0; i < N; i++)
            items[i].id = i;
        for (int step = 0; step < 300; step++) {
            item_t *item = &items[wefti_rng_below(&rng, N)];
            int at = 0;
            while (at < n && order[at] != item->id)
                at++;
            CHECK_EQ(wefti_list_linked(&item->link), at < n);
            if (at < n) {
                wefti_list_remove(&item->link);
                memmove(order + at, order + at + 1, (size_t)(n - at - 1) * sizeof *order);
                n--;
            } else {
                at = n ? (int)wefti_rng_below(&rng, (uint64_t)n + 1) : 0;
                wefti_list_insert_before(at == n ? &l : &items[order[at]].link, &item->link);
                memmove(order + at + 1, order + at, (size_t)(n - at) * sizeof *order);
                order[at] = item->id;
                n++;
            }
            CHECK_EQ(length(&l), n);
            int i = 0;
            wefti_list_each(it, &l)
                CHECK_EQ(item_of(it)->id, order[i++]);
        }
    }
}
