/* Listing what a server has: in order, by the beginning of names, page by page, ten thousand of them; and a list that is
 * cancelled or whose store is closed from inside its own function.
 *
 * ctest: tls-long timeout=180 */
#include <weft/elements.h>

#include "lib/keeper.h"
#include "test.h"

static keeper_t k;

typedef struct seen {
    unsigned n, stop_at;
    bool sorted;
    char last[WEFT_RMA_NAME_MAX + 1];
    weft_block_info_t info; /* the last; its name is `last` */
    weft_op_t *cancel;
    bool close;
} seen_t;

static void on_block(const weft_block_info_t *info, void *user)
{
    seen_t *seen = (seen_t *)user;
    if (seen->n && strcmp(seen->last, info->name) >= 0)
        seen->sorted = false;
    snprintf(seen->last, sizeof seen->last, "%s", info->name);
    seen->info = *info;
    seen->n++;
    if (seen->n == seen->stop_at && seen->cancel)
        weft_op_cancel(seen->cancel);
    if (seen->n == seen->stop_at && seen->close) {
        CHECK_OK(weft_store_close(k.store, NULL));
        k.store = NULL;
    }
}

static seen_t list(const char *prefix)
{
    weft_op_t op = WEFT_OP_INIT;
    seen_t seen = {.sorted = true};
    CHECK_OK(weft_store_list(k.store, prefix, on_block, &seen, &op));
    CHECK_OK(keeper_wait(&k, &op));
    CHECK_EQ(op.len, seen.n);
    CHECK(seen.sorted);
    return seen;
}

TEST(names_are_listed_in_order_and_by_their_beginning)
{
    static const char *const names[] = {"b", "a", "ab", "abc", "b/2", "b/10", "\xc3\xa4", "zz"};
    each_way(way) {
        keeper_open(&k, way, NULL, 0);
        CHECK_EQ(list(NULL).n, 0);
        for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
            weft_block_drop(keeper_alloc(&k, k.store, names[i], 100 + i, i & 1, NULL));
        weft_block_drop(keeper_alloc(&k, k.store, NULL, 100, false, NULL)); /* without a name: in no list */
        seen_t seen = list(NULL);
        CHECK_EQ(seen.n, 8);
        CHECK_STR(seen.last, "\xc3\xa4");
        CHECK_EQ(list("a").n, 3);
        CHECK_EQ(list("b/").n, 2);
        CHECK_EQ(list("c").n, 0);
        CHECK_EQ(list("").n, 8);
        seen = list("abc");
        CHECK_EQ(seen.n, 1);
        CHECK_EQ(seen.info.len, 103);
        CHECK(seen.info.max_len >= 103);
        CHECK(seen.info.shared && !seen.info.ours);
        CHECK(list("ab").n == 2);
        seen = list("zz");
        CHECK(seen.info.shared);
        seen = list("b/2");
        CHECK(!seen.info.shared && seen.info.ours);
        weft_block_t *b = keeper_find(&k, k.store, "b/2", NULL);
        CHECK_EQ(list("b/2").info.attached, 1);
        weft_block_drop(b);
        weft_store_t *mine = k.store, *other = keeper_store(&k, NULL);
        k.store = other;
        CHECK(!list("b/2").info.ours);
        k.store = mine;
        weft_store_leave(other);
        keeper_close(&k);
    }
}

#define MANY 10000

TEST(ten_thousand_names_are_listed)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    enum { AT_ONCE = 200 };
    o.bytes = UINT64_C(1) << 30;
    o.client_blocks = MANY + 10;
    keeper_open(&k, &pair_ways[1], &o, 0);
    for (unsigned at = 0; at < MANY; at += AT_ONCE) { /* more of them at once than may be under way */
        static weft_op_t ops[AT_ONCE];
        for (unsigned i = 0; i < AT_ONCE; i++) {
            char name[64];
            weft_block_opts_t b = WEFT_BLOCK_OPTS_INIT;
            snprintf(name, sizeof name, "block %u %s", (at + i) * 7919 % MANY, i % 3 ? "" : "with a rather long name behind it");
            b.name = name;
            b.len = 1;
            b.max_len = 4096;
            ops[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_block_alloc(k.store, &b, &ops[i]));
        }
        for (unsigned i = 0; i < AT_ONCE; i++) {
            CHECK_OK(keeper_wait(&k, &ops[i]));
            weft_block_drop((weft_block_t *)ops[i].buf);
        }
    }
    CHECK_EQ(list(NULL).n, MANY);
    CHECK_EQ(list("block 77").n, 111); /* 77, 77x, 77xx */
    keeper_close(&k);
}

TEST(a_list_can_be_cancelled_and_its_store_closed_from_inside_it)
{
    each_way(way) {
        for (int what = 0; what < 2; what++) {
            weft_op_t op = WEFT_OP_INIT;
            seen_t seen = {.sorted = true, .stop_at = 300};
            keeper_open(&k, way, NULL, 0);
            for (unsigned i = 0; i < 500; i++) {
                char name[64];
                snprintf(name, sizeof name, "a name that is not short, so that there are several pages: %u", i);
                weft_block_drop(keeper_alloc(&k, k.store, name, 1, false, NULL));
            }
            if (what)
                seen.close = true;
            else
                seen.cancel = &op;
            CHECK_OK(weft_store_list(k.store, NULL, on_block, &seen, &op));
            weft_status_t st = keeper_wait(&k, &op);
            if (what) {
                CHECK(st == WEFT_ERR_STALE || st == WEFT_ERR_CLOSED || st == WEFT_OK);
            } else {
                CHECK(st == WEFT_ERR_CANCELLED);
                CHECK(seen.n >= 300 && seen.n < 500);
            }
            CHECK(seen.sorted);
            keeper_close(&k);
        }
    }
}
