/* tests/wire/policy_store.c - a policy at a memory server: who may allocate, read and write which names, and how much.
 * ctest: label=thread */
#include <weft/elements.h>
#include <weft/weft.h>

#include "lib/keeper.h"
#include "test.h"

static keeper_t k;

static void rule(const char *text)
{
    CHECK_OK(weft_runtime_set_policy(k.pair.rt[0], text, text ? strlen(text) : 0));
}

static uint64_t refused(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(k.pair.rt[0], &s));
    return s.policy_refused;
}

static unsigned listed;

static void counts(const weft_block_info_t *info, void *user)
{
    (void)info, (void)user;
    listed++;
}

static unsigned list(weft_store_t *store)
{
    weft_op_t op = WEFT_OP_INIT;
    listed = 0;
    CHECK_OK(weft_store_list(store, NULL, counts, NULL, &op));
    CHECK_OK(keeper_wait(&k, &op));
    return listed;
}

static weft_status_t alloc(weft_store_t *store, const char *name, uint64_t len)
{
    weft_status_t st;
    weft_block_t *b = keeper_alloc(&k, store, name, len, false, &st);
    weft_block_drop(b);
    return st;
}

TEST(names_that_may_be_allocated_and_how_much)
{
    each_way(way) {
        keeper_open(&k, way, NULL, 0);
        rule("allow * connect\nallow anonymous mem-allocate scratch-* 64k\nallow * mem-allocate big-*\ndefault deny\n");
        CHECK_OK(alloc(k.store, "scratch-1", 40000));
        CHECK_EQ(alloc(k.store, "other", 1), WEFT_ERR_PERMISSION);
        CHECK_OK(alloc(k.store, NULL, 1)); /* it may allocate some names, so it may fill a block before it has one */
        CHECK_EQ(alloc(k.store, "scratch-2", 40000), WEFT_ERR_LIMIT); /* of the policy, not of the server */
        weft_store_t *second = keeper_store(&k, NULL);
        CHECK_EQ(alloc(second, "scratch-2", 40000), WEFT_ERR_LIMIT); /* another client with the same identity */
        CHECK_OK(alloc(second, "scratch-2", 20000));
        CHECK_OK(alloc(k.store, "big-1", 1 << 20)); /* another rule, without a limit */
        CHECK_EQ(alloc(k.store, "scratch-3", 1), WEFT_ERR_LIMIT);
        CHECK_EQ(refused(), 1);
        weft_block_t *b = keeper_alloc(&k, k.store, "big-2", 10, false, NULL);
        CHECK_OK(keeper_extend(&k, b, 100));
        CHECK_OK(keeper_free(&k, b));
        weft_store_leave(second);
        keeper_close(&k);
    }
}

TEST(a_sentence_says_what_the_policy_did_not_allow)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    keeper_open(&k, &pair_ways[0], NULL, 0);
    rule("allow * connect\ndefault deny\n");
    o.len = 10;
    o.name = "mine";
    CHECK_OK(weft_block_alloc(k.store, &o, &op));
    CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_PERMISSION);
    if (!strstr(weft_op_error(&op), "the policy of the memory server does not allow this client to allocate a block \"mine\""))
        FAIL("%s", weft_op_error(&op));
    keeper_close(&k);
}

TEST(who_may_read_may_not_write)
{
    each_way(way) {
        weft_status_t st;
        char buf[6] = "";
        keeper_open(&k, way, NULL, 0);
        weft_block_t *a = keeper_alloc(&k, k.store, "greeting", 100, true, NULL);
        weft_block_t *secret = keeper_alloc(&k, k.store, "secret", 100, true, NULL);
        CHECK_OK(keeper_write(&k, weft_block_remote(a), 0, "hello", 6));
        rule("allow * connect\nallow * mem-read greet*\ndefault deny\n");
        weft_store_t *other = keeper_store(&k, NULL);
        keeper_find(&k, other, "secret", &st);
        CHECK_EQ(st, WEFT_ERR_PERMISSION);
        keeper_find(&k, other, "nothing", &st); /* it is not told whether there is one */
        CHECK_EQ(st, WEFT_ERR_PERMISSION);
        rule("allow * connect\nallow * mem-read greet*\nallow * mem-allocate *\ndefault deny\n");
        keeper_find(&k, other, "nothing", &st); /* it could find that out by allocating it */
        CHECK_EQ(st, WEFT_ERR_NOTFOUND);
        keeper_find(&k, other, "secret", &st);
        CHECK_EQ(st, WEFT_ERR_PERMISSION);
        CHECK_EQ(alloc(other, NULL, 1), WEFT_OK);
        rule("allow * connect\nallow * mem-read greet*\ndefault deny\n");
        CHECK_EQ(alloc(other, NULL, 1), WEFT_ERR_PERMISSION);
        weft_block_t *b = keeper_find(&k, other, "greeting", NULL);
        CHECK_OK(keeper_read(&k, weft_block_remote(b), 0, buf, 6));
        CHECK_STR(buf, "hello");
        CHECK_EQ(keeper_write(&k, weft_block_remote(b), 0, "other", 6), WEFT_ERR_RIGHTS);
        CHECK_EQ(keeper_extend(&k, b, 200), WEFT_ERR_PERMISSION);
        CHECK_EQ(keeper_remove(&k, other, "greeting"), WEFT_ERR_PERMISSION);
        CHECK_EQ(keeper_free(&k, b), WEFT_ERR_PERMISSION);
        CHECK_EQ(list(other), 1);
        CHECK_EQ(list(k.store), 1); /* what it shared is no longer its own */
        rule("allow * connect\nallow * mem-write greet*\ndefault deny\n");
        b = keeper_find(&k, other, "greeting", NULL);
        CHECK_OK(keeper_write(&k, weft_block_remote(b), 0, "other", 6));
        weft_block_drop(b);
        CHECK_OK(keeper_remove(&k, other, "greeting"));
        CHECK_EQ(keeper_remove(&k, other, "secret"), WEFT_ERR_PERMISSION);
        weft_block_drop(secret);
        weft_block_drop(a);
        weft_store_leave(other);
        keeper_close(&k);
    }
}

/* A block is its maker's own until it is shared: then it belongs to nobody, and the policy says who may do what with it. */
TEST(what_is_shared_is_governed_by_the_rules_for_its_maker_too)
{
    each_way(way) {
        weft_status_t st;
        weft_op_t op = WEFT_OP_INIT;
        char buf[6] = "";
        keeper_open(&k, way, NULL, 0);
        rule("allow * connect\nallow * mem-allocate al-* 1M\ndefault deny\n");
        weft_block_t *own = keeper_alloc(&k, k.store, "al-own", 100, false, NULL);
        weft_block_t *made = keeper_alloc(&k, k.store, "al-made", 100, true, NULL);
        weft_block_t *later = keeper_alloc(&k, k.store, NULL, 100, false, NULL);
        CHECK_OK(weft_block_share(later, "al-later", false, &op));
        CHECK_OK(keeper_wait(&k, &op));
        CHECK_OK(keeper_write(&k, weft_block_remote(later), 0, "hello", 6)); /* it has it open */
        CHECK_OK(keeper_read(&k, weft_block_remote(later), 0, buf, 6));
        CHECK_EQ(list(k.store), 1);
        static const char *const names[] = {"al-made", "al-later"};
        for (int i = 0; i < 2; i++) {
            keeper_find(&k, k.store, names[i], &st);
            CHECK_EQ(st, WEFT_ERR_PERMISSION);
            CHECK_EQ(keeper_remove(&k, k.store, names[i]), WEFT_ERR_PERMISSION);
        }
        CHECK_EQ(keeper_extend(&k, later, 200), WEFT_ERR_PERMISSION);
        CHECK_EQ(keeper_free(&k, later), WEFT_ERR_PERMISSION); /* it lives on */
        weft_block_t *mine = keeper_alloc(&k, k.store, NULL, 10, false, NULL);
        CHECK_OK(weft_block_share(mine, "al-made", true, &op)); /* nor may it take the name from a shared one */
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_PERMISSION);
        CHECK_OK(weft_block_share(mine, "al-own", true, &op)); /* but from its own it may */
        CHECK_OK(keeper_wait(&k, &op));
        weft_block_drop(mine);
        weft_block_drop(own);
        own = keeper_alloc(&k, k.store, "al-own-2", 100, false, NULL);
        CHECK_OK(keeper_extend(&k, own, 200));
        rule("allow * connect\ndefault deny\n");
        weft_block_drop(keeper_find(&k, k.store, "al-own-2", NULL));
        CHECK_EQ(list(k.store), 1);
        CHECK_OK(keeper_remove(&k, k.store, "al-own-2"));
        keeper_find(&k, k.store, "al-made", &st);
        CHECK_EQ(st, WEFT_ERR_PERMISSION);
        rule("allow * connect\nallow * mem-write al-*\nallow * mem-allocate al-* 1k\ndefault deny\n");
        CHECK_OK(weft_block_open(k.store, "al-later", &op));
        CHECK_OK(keeper_wait(&k, &op));
        later = weft_op_block(&op);
        CHECK_EQ(keeper_extend(&k, later, 1000), WEFT_ERR_LIMIT); /* it counts what it shared: 100 and 10 more */
        CHECK_OK(keeper_extend(&k, later, 300));
        CHECK_OK(keeper_free(&k, later));
        CHECK_OK(keeper_remove(&k, k.store, "al-made"));
        weft_block_drop(own);
        weft_block_drop(made);
        keeper_close(&k);
    }
}
