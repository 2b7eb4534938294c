/* A memory server and its clients: allocating, finding, extending, freeing; leases, quotas, keys for others; over every
 * transport, driven by the caller and by threads.
 *
 * ctest: tls label=thread shards */
#include <sys/resource.h>
#include <weft/elements.h>

#include "lib/keeper.h"
#include "test.h"

#define PAGE 4096u

static keeper_t k;

TEST(a_block_is_allocated_zero_written_read_and_freed)
{
    each_way(way) {
        uint8_t out[5000], in[5000];
        keeper_open(&k, way, NULL, 0);
        weft_block_t *b = keeper_alloc(&k, k.store, NULL, sizeof out, false, NULL);
        keeper_zero(&k, weft_block_remote(b), 0, sizeof out);
        pattern_fill(out, sizeof out, 7);
        CHECK_OK(keeper_write(&k, weft_block_remote(b), 0, out, sizeof out));
        CHECK_OK(keeper_read(&k, weft_block_remote(b), 0, in, sizeof in));
        CHECK_EQ(pattern_check(in, sizeof in, 7), sizeof in);
        CHECK_EQ(keeper_write(&k, weft_block_remote(b), 1, out, sizeof out), WEFT_ERR_RANGE);
        CHECK_EQ(keeper_stats(&k).used_bytes, 2 * PAGE);
        CHECK_EQ(keeper_stats(&k).blocks, 1);
        CHECK_EQ(keeper_stats(&k).clients, 1);
        CHECK_OK(keeper_free(&k, b));
        CHECK_EQ(keeper_stats(&k).used_bytes, 0);
        CHECK_EQ(keeper_stats(&k).blocks, 0);
        CHECK_EQ(keeper_stats(&k).frees, 1);
        /* the next one has the same amount of memory, and nothing of what was in it */
        b = keeper_alloc(&k, k.store, NULL, sizeof out, false, NULL);
        keeper_zero(&k, weft_block_remote(b), 0, sizeof out);
        weft_block_drop(b);
        keeper_close(&k);
    }
}

TEST(blocks_are_found_by_name_and_names_are_taken_once)
{
    each_way(way) {
        weft_status_t st;
        char in[6] = "";
        keeper_open(&k, way, NULL, 0);
        weft_block_t *a = keeper_alloc(&k, k.store, "greeting", 100, false, NULL);
        CHECK_OK(keeper_write(&k, weft_block_remote(a), 10, "hello", 6));
        keeper_alloc(&k, k.store, "greeting", 100, false, &st);
        CHECK_EQ(st, WEFT_ERR_STATE);
        weft_store_t *other = keeper_store(&k, NULL);
        weft_block_t *b = keeper_find(&k, other, "greeting", NULL);
        CHECK_OK(keeper_read(&k, weft_block_remote(b), 10, in, sizeof in));
        CHECK_STR(in, "hello");
        keeper_find(&k, other, "greetings", &st);
        CHECK_EQ(st, WEFT_ERR_NOTFOUND);
        /* it is not the other's to change */
        CHECK_EQ(keeper_extend(&k, b, 200), WEFT_ERR_STATE);
        CHECK_EQ(keeper_remove(&k, other, "greeting"), WEFT_ERR_STATE);
        CHECK_EQ(keeper_free(&k, b), WEFT_ERR_STATE);
        CHECK_OK(keeper_remove(&k, k.store, "greeting"));
        CHECK_EQ(keeper_remove(&k, k.store, "greeting"), WEFT_ERR_NOTFOUND);
        CHECK_EQ(keeper_read(&k, weft_block_remote(a), 0, in, 1), WEFT_ERR_STALE);
        weft_block_drop(a);
        a = keeper_alloc(&k, k.store, "greeting", 100, false, NULL); /* the name is free again */
        weft_block_drop(a);
        weft_store_leave(other);
        keeper_close(&k);
    }
}

TEST(a_block_of_ours_can_be_given_to_everyone_whole_and_in_place_of_another)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st;
        char in[6] = "";
        keeper_open(&k, way, NULL, 0);
        weft_store_t *other = keeper_store(&k, NULL);
        weft_block_t *old = keeper_alloc(&k, k.store, "thing", 100, true, NULL);
        weft_block_t *b = keeper_alloc(&k, other, NULL, 100, false, NULL),
                     *mine = keeper_alloc(&k, k.store, "mine", 100, false, NULL);
        CHECK_OK(keeper_write(&k, weft_block_remote(b), 0, "hello", 6));
        CHECK_OK(weft_block_share(b, "thing", false, &op));
        CHECK_EQ(pair_wait(&k.pair, &op, 5), WEFT_ERR_STATE);
        CHECK_OK(weft_block_share(b, "mine", true, &op)); /* it belongs to another client */
        CHECK_EQ(pair_wait(&k.pair, &op, 5), WEFT_ERR_STATE);
        CHECK_EQ(weft_block_share(b, "", true, &op), WEFT_ERR_INVALID);
        CHECK_OK(weft_block_share(b, "thing", true, &op));
        CHECK_OK(pair_wait(&k.pair, &op, 5));
        CHECK_EQ(keeper_read(&k, weft_block_remote(old), 0, in, 1), WEFT_ERR_STALE);
        CHECK_OK(weft_block_share(b, "again", true, &op));
        CHECK_EQ(pair_wait(&k.pair, &op, 5), WEFT_ERR_STATE);
        CHECK_EQ(keeper_stats(&k).shared_blocks, 1);
        /* it outlives its maker */
        CHECK_OK(weft_store_close(other, &op));
        CHECK_OK(pair_wait(&k.pair, &op, 5));
        weft_block_t *found = keeper_find(&k, k.store, "thing", NULL);
        CHECK_OK(keeper_read(&k, weft_block_remote(found), 0, in, 6));
        CHECK_STR(in, "hello");
        /* one that has a name can have another */
        CHECK_OK(weft_block_share(mine, "yours", false, &op));
        CHECK_OK(pair_wait(&k.pair, &op, 5));
        keeper_find(&k, k.store, "mine", &st);
        CHECK_EQ(st, WEFT_ERR_NOTFOUND);
        CHECK_OK(keeper_remove(&k, k.store, "yours"));
        CHECK_OK(keeper_remove(&k, k.store, "thing"));
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == 0, 5);
        weft_block_drop(old);
        weft_block_drop(b);
        weft_block_drop(mine);
        weft_block_drop(found);
        keeper_close(&k);
    }
}

TEST(who_opens_a_name_while_its_block_is_replaced_gets_the_one_or_the_other)
{
    each_way(way) {
        keeper_open(&k, way, NULL, 0);
        weft_block_drop(keeper_alloc(&k, k.store, "thing", 100, true, NULL));
        for (int i = 0; i < 20; i++) {
            weft_op_t open = WEFT_OP_INIT, share = WEFT_OP_INIT;
            weft_block_t *b = keeper_alloc(&k, k.store, NULL, 100, false, NULL);
            CHECK_OK(weft_block_open(k.store, "thing", &open)); /* it is found, and gone before it is attached */
            CHECK_OK(weft_block_share(b, "thing", true, &share));
            CHECK_OK(keeper_wait(&k, &open));
            CHECK_OK(keeper_wait(&k, &share));
            weft_block_drop(weft_op_block(&open));
            weft_block_drop(b);
        }
        CHECK_OK(keeper_remove(&k, k.store, "thing"));
        keeper_close(&k);
    }
}

TEST(an_extended_block_keeps_its_bytes_and_its_new_ones_are_zero)
{
    each_way(way) {
        uint8_t bytes[PAGE];
        keeper_open(&k, way, NULL, 0);
        weft_block_t *b = keeper_alloc(&k, k.store, NULL, 1000, false, NULL);
        weft_remote_t *before = weft_block_remote(b);
        pattern_fill(bytes, 1000, 3);
        CHECK_OK(keeper_write(&k, before, 0, bytes, 1000));
        CHECK_EQ(keeper_write(&k, before, 1000, bytes, 1), WEFT_ERR_RANGE);
        CHECK_OK(keeper_extend(&k, b, 3 * PAGE));
        CHECK(weft_block_remote(b) != before);
        keeper_zero(&k, weft_block_remote(b), 1000, 3 * PAGE - 1000);
        CHECK_OK(keeper_read(&k, weft_block_remote(b), 0, bytes, 1000));
        CHECK_EQ(pattern_check(bytes, 1000, 3), 1000);
        CHECK_OK(keeper_write(&k, before, 0, "x", 1)); /* good for what it reached */
        CHECK_EQ(keeper_write(&k, before, 1000, bytes, 1), WEFT_ERR_RANGE);
        CHECK_OK(keeper_read(&k, weft_block_remote(b), 0, bytes, 1));
        CHECK_EQ(bytes[0], 'x');
        CHECK_EQ(keeper_extend(&k, b, PAGE), WEFT_ERR_RANGE);
        CHECK_EQ(keeper_extend(&k, b, UINT64_MAX), WEFT_ERR_LIMIT);
        CHECK_EQ(keeper_stats(&k).used_bytes, 3 * PAGE);
        CHECK_OK(keeper_free(&k, b));
        keeper_close(&k);
    }
}

static void refuses_all(keeper_t *keeper, weft_remote_t *remote)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    char byte = 'x';
    CHECK_OK(weft_remote_get_info(remote, &info));
    CHECK_EQ(info.len, 0);
    CHECK_EQ(keeper_read(keeper, remote, 0, &byte, 1), WEFT_ERR_RANGE);
    CHECK_EQ(keeper_write(keeper, remote, 0, &byte, 1), WEFT_ERR_RANGE);
    CHECK_OK(keeper_read(keeper, remote, 0, &byte, 0));
    CHECK_EQ(byte, 'x');
}

TEST(an_empty_block_is_a_name_and_is_zero_when_it_is_extended)
{
    each_way(way) {
        uint8_t key[WEFT_REGION_KEY_MAX];
        size_t n = sizeof key;
        weft_op_t op = WEFT_OP_INIT;
        char in[4] = "abc";
        keeper_open(&k, way, NULL, 0);
        weft_block_t *b = keeper_alloc(&k, k.store, "empty", 0, true, NULL);
        CHECK_OK(weft_block_open(k.store, "empty", &op));
        CHECK_OK(keeper_wait(&k, &op));
        CHECK_EQ(op.len, 0);
        refuses_all(&k, weft_block_remote(op.buf));
        refuses_all(&k, weft_block_remote(b));
        CHECK_OK(weft_block_key(b, key, &n));
        weft_block_drop(op.buf);
        CHECK_OK(weft_remote_attach(k.pair.ep[1], key, n, NULL, &op));
        CHECK_OK(keeper_wait(&k, &op));
        CHECK_EQ(op.len, 0);
        refuses_all(&k, op.buf);
        weft_remote_drop(op.buf);
        CHECK_OK(keeper_extend(&k, b, 0));
        CHECK_OK(keeper_extend(&k, b, sizeof in));
        keeper_zero(&k, weft_block_remote(b), 0, sizeof in);
        CHECK_OK(keeper_write(&k, weft_block_remote(b), 0, in, sizeof in));
        CHECK_OK(keeper_free(&k, b));
        CHECK_EQ(keeper_stats(&k).used_bytes, 0);
        keeper_close(&k);
    }
}

TEST(a_key_of_a_block_is_good_for_others)
{
    uint8_t key[WEFT_REGION_KEY_MAX];
    char in[3] = "";
    size_t n = 3;
    weft_op_t op = WEFT_OP_INIT;
    keeper_open(&k, &pair_ways[0], NULL, 0);
    weft_block_t *b = keeper_alloc(&k, k.store, NULL, 100, false, NULL);
    CHECK_EQ(weft_block_key(b, key, &n), WEFT_ERR_LIMIT);
    CHECK(n > 3);
    n = sizeof key;
    CHECK_OK(weft_block_key(b, key, &n));
    CHECK_OK(weft_remote_attach(k.pair.ep[1], key, n, NULL, &op));
    CHECK_OK(keeper_wait(&k, &op));
    weft_remote_t *remote = (weft_remote_t *)op.buf;
    CHECK_OK(keeper_write(&k, remote, 0, "hi", 3));
    CHECK_OK(keeper_read(&k, weft_block_remote(b), 0, in, 3));
    CHECK_STR(in, "hi");
    CHECK_OK(keeper_free(&k, b));
    CHECK_EQ(keeper_write(&k, remote, 0, "hi", 3), WEFT_ERR_STALE);
    weft_remote_drop(remote);
    keeper_close(&k);
}

TEST(closing_a_store_frees_what_is_not_shared)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st;
        keeper_open(&k, way, NULL, 0);
        weft_store_t *mine = keeper_store(&k, NULL);
        weft_block_t *own = keeper_alloc(&k, mine, "own", 100, false, NULL),
                     *shared = keeper_alloc(&k, mine, "all", 100, true, NULL);
        CHECK_OK(keeper_write(&k, weft_block_remote(shared), 0, "kept", 5));
        CHECK_OK(weft_store_close(mine, &op));
        CHECK_OK(keeper_wait(&k, &op));
        keeper_find(&k, k.store, "own", &st);
        CHECK_EQ(st, WEFT_ERR_NOTFOUND);
        weft_block_drop(own);
        weft_block_drop(shared);
        shared = keeper_find(&k, k.store, "all", NULL);
        char in[5];
        CHECK_OK(keeper_read(&k, weft_block_remote(shared), 0, in, 5));
        CHECK_STR(in, "kept");
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == PAGE, 10);
        CHECK_EQ(keeper_stats(&k).shared_blocks, 1);
        CHECK_EQ(keeper_stats(&k).clients, 1);
        CHECK_EQ(keeper_stats(&k).expired_clients, 0);
        CHECK_OK(keeper_free(&k, shared)); /* anyone may */
        CHECK_EQ(keeper_stats(&k).used_bytes, 0);
        keeper_close(&k);
    }
}

TEST(a_lease_that_is_not_renewed_runs_out_and_one_that_is_does_not)
{
    weft_store_opts_t o = WEFT_STORE_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    keeper_open(&k, &pair_ways[1], NULL, 600 * WEFT_MILLISECOND);
    weft_block_t *kept = keeper_alloc(&k, k.store, "kept", 100, false, NULL);
    o.lease_ns = 100 * WEFT_MILLISECOND;
    o.manual = true;
    weft_store_t *silent = keeper_store(&k, &o);
    weft_block_t *lost = keeper_alloc(&k, silent, "lost", 100, false, NULL),
                 *all = keeper_alloc(&k, silent, "all", 100, true, NULL);
    CHECK_OK(weft_store_get_info(silent, &info));
    CHECK_EQ(info.lease_ns, o.lease_ns);
    PAIR_UNTIL(&k.pair, keeper_stats(&k).expired_clients == 1, 10);
    pair_run(&k.pair, 1.3); /* two leases of the other */
    CHECK_EQ(keeper_stats(&k).expired_clients, 1);
    CHECK_EQ(keeper_stats(&k).expired_blocks, 1);
    CHECK(keeper_stats(&k).renewals > 2);
    CHECK_OK(keeper_write(&k, weft_block_remote(kept), 0, "x", 1));
    CHECK_EQ(keeper_write(&k, weft_block_remote(lost), 0, "x", 1), WEFT_ERR_STALE);
    CHECK_OK(keeper_write(&k, weft_block_remote(all), 0, "x", 1));
    CHECK_OK(weft_store_renew(silent, &op));
    CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_STALE);
    CHECK_OK(weft_store_get_info(silent, &info));
    CHECK_EQ(info.state, WEFT_ERR_STALE);
    CHECK_OK(weft_store_renew(silent, &op));
    CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_STALE);
    weft_block_drop(kept);
    weft_block_drop(lost);
    weft_block_drop(all);
    weft_op_t bye = WEFT_OP_INIT;
    CHECK_OK(weft_store_close(silent, &bye));
    CHECK_EQ(keeper_wait(&k, &bye), WEFT_ERR_STALE);
    weft_block_drop(keeper_find(&k, k.store, "kept", NULL));
    keeper_close(&k);
}

TEST(a_client_that_does_nothing_for_longer_than_its_lease_keeps_its_blocks_while_it_is_connected)
{
    weft_store_opts_t o = WEFT_STORE_OPTS_INIT;
    o.lease_ns = 100 * WEFT_MILLISECOND;
    each_way(way) {
        if (way->mode != WEFT_PROGRESS_CALLER)
            continue;
        weft_op_t timer = WEFT_OP_INIT;
        keeper_open(&k, way, NULL, o.lease_ns);
        weft_block_t *b = keeper_alloc(&k, k.store, "kept", 100, false, NULL);
        CHECK_OK(weft_timer_start(k.pair.rt[0], 500 * WEFT_MILLISECOND, &timer));
        CHECK_OK(weft_op_wait(&timer, 60 * WEFT_SECOND)); /* nobody drives the client */
        CHECK_EQ(keeper_stats(&k).expired_clients, 0);
        CHECK_OK(keeper_write(&k, weft_block_remote(b), 0, "x", 1));
        CHECK_OK(keeper_extend(&k, b, 200));
        /* from the loss of its endpoint on it is another thing, and when it has left */
        weft_store_t *left = keeper_store(&k, &o);
        weft_block_drop(keeper_alloc(&k, left, "left", 100, false, NULL));
        weft_store_leave(left);
        PAIR_UNTIL(&k.pair, keeper_stats(&k).expired_clients == 1, 20);
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == PAGE, 20);
        weft_ep_abort(k.pair.ep[1], NULL);
        k.pair.ep[1] = NULL;
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == 0, 20);
        CHECK_EQ(keeper_stats(&k).expired_clients, 2);
        weft_block_drop(b);
        keeper_close(&k);
    }
}

TEST(a_client_comes_back_to_its_blocks_with_its_id)
{
    weft_store_opts_t o = WEFT_STORE_OPTS_INIT;
    weft_store_info_t info = WEFT_STORE_INFO_INIT, again = WEFT_STORE_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    keeper_open(&k, &pair_ways[1], NULL, 0);
    weft_store_t *first = keeper_store(&k, NULL);
    weft_block_t *b = keeper_alloc(&k, first, "mine", 100, false, NULL);
    CHECK_OK(weft_store_get_info(first, &info));
    weft_store_leave(first);
    o.id = info.id;
    weft_store_t *second = keeper_store(&k, &o);
    CHECK_OK(weft_store_get_info(second, &again));
    CHECK(!memcmp(info.id, again.id, WEFT_STORE_ID) && !memcmp(info.server, again.server, WEFT_STORE_ID));
    CHECK_EQ(keeper_stats(&k).clients, 2);
    weft_block_drop(b);
    b = keeper_find(&k, second, "mine", NULL);
    CHECK_OK(keeper_extend(&k, b, 200)); /* it is its own */
    CHECK_OK(keeper_free(&k, b));
    CHECK_OK(weft_store_close(second, &op));
    CHECK_OK(keeper_wait(&k, &op));
    keeper_close(&k);
}

TEST(quotas_hold)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    o.bytes = 100 * PAGE;
    o.client_bytes = 10 * PAGE;
    o.client_blocks = 3;
    o.clients = 2;
    o.blocks = 5;
    keeper_open(&k, &pair_ways[0], &o, 0);
    keeper_alloc(&k, k.store, NULL, 11 * PAGE, false, &st);
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    keeper_alloc(&k, k.store, NULL, 101 * PAGE, false, &st);
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    keeper_alloc(&k, k.store, NULL, UINT64_MAX, false, &st);
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    weft_block_t *b[4];
    b[0] = keeper_alloc(&k, k.store, NULL, 9 * PAGE, false, NULL);
    keeper_alloc(&k, k.store, NULL, PAGE + 1, false, &st); /* two pages */
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    CHECK_OK(keeper_extend(&k, b[0], 10 * PAGE));
    CHECK_EQ(keeper_extend(&k, b[0], 10 * PAGE + 1), WEFT_ERR_LIMIT);
    CHECK_OK(keeper_free(&k, b[0]));
    for (int i = 0; i < 3; i++)
        b[i] = keeper_alloc(&k, k.store, NULL, 1, false, NULL);
    keeper_alloc(&k, k.store, NULL, 1, false, &st);
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    weft_store_t *other = keeper_store(&k, NULL);
    CHECK_OK(weft_store_open(k.pair.ep[1], NULL, &op));
    CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_LIMIT);
    for (int i = 0; i < 2; i++)
        weft_block_drop(keeper_alloc(&k, other, NULL, 1, false, NULL));
    keeper_alloc(&k, other, NULL, 1, false, &st); /* five in all */
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    CHECK_EQ(keeper_stats(&k).refused, 8);
    CHECK_EQ(keeper_stats(&k).used_bytes, 5 * PAGE);
    for (int i = 0; i < 3; i++)
        weft_block_drop(b[i]);
    weft_store_leave(other);
    keeper_close(&k);
}

/* Who makes a shared block longer pays for it: nobody can use up another's quota. */
TEST(a_shared_block_is_paid_by_who_made_it_longer_last)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    weft_status_t st;
    o.bytes = 100 * PAGE;
    o.client_bytes = 10 * PAGE;
    keeper_open(&k, &pair_ways[0], &o, 0);
    weft_store_t *other = keeper_store(&k, NULL);
    weft_block_drop(keeper_alloc(&k, k.store, "all", 4 * PAGE, true, NULL));
    keeper_alloc(&k, k.store, NULL, 7 * PAGE, false, &st);
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    weft_block_t *b = keeper_find(&k, other, "all", NULL);
    CHECK_EQ(keeper_extend(&k, b, 11 * PAGE), WEFT_ERR_LIMIT);
    CHECK_OK(keeper_extend(&k, b, 9 * PAGE));
    keeper_alloc(&k, other, NULL, 2 * PAGE, false, &st);
    CHECK_EQ(st, WEFT_ERR_LIMIT);
    weft_block_drop(keeper_alloc(&k, k.store, NULL, 10 * PAGE, false, NULL));
    CHECK_EQ(keeper_stats(&k).used_bytes, 19 * PAGE);
    weft_block_drop(b);
    weft_store_leave(other);
    keeper_close(&k);
}

TEST(a_peer_that_serves_nothing_says_so)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_store_server_t *server, *second;
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    pair_open(&k.pair, &pair_ways[1], NULL);
    CHECK_OK(weft_store_open(k.pair.ep[1], NULL, &op));
    CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_UNSUPPORTED);
    CHECK_EQ(weft_store_serve(k.pair.rt[0], NULL, &server), WEFT_ERR_INVALID);
    CHECK_EQ(weft_store_serve(k.pair.rt[0], &o, &server), WEFT_ERR_INVALID); /* no bytes */
    o.bytes = 1 << 20;
    CHECK_OK(weft_store_serve(k.pair.rt[0], &o, &server));
    CHECK_EQ(weft_store_serve(k.pair.rt[0], &o, &second), WEFT_ERR_STATE);
    CHECK_OK(weft_store_open(k.pair.ep[1], NULL, &op));
    CHECK_OK(keeper_wait(&k, &op));
    weft_store_leave((weft_store_t *)op.buf);
    CHECK_OK(weft_store_server_close(server, &op));
    CHECK_OK(keeper_wait(&k, &op));
    CHECK_OK(weft_store_serve(k.pair.rt[0], &o, &server)); /* and again */
    pair_close(&k.pair);                                   /* with the server still there */
}

TEST(what_is_not_a_name_or_a_length_is_refused_here)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    static const char *const bad[] = {"", "a\nb", "\x7f", "\xff", "\xc0\xaf", "\xed\xa0\x80", "half \xe2\x82"};
    char longest[WEFT_RMA_NAME_MAX + 2];
    keeper_open(&k, &pair_ways[0], NULL, 0);
    o.len = 2;
    o.max_len = 1;
    CHECK_EQ(weft_block_alloc(k.store, &o, &op), WEFT_ERR_INVALID);
    o.max_len = 0;
    o.shared = true;
    CHECK_EQ(weft_block_alloc(k.store, &o, &op), WEFT_ERR_INVALID);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.name = bad[i];
        CHECK_EQ(weft_block_alloc(k.store, &o, &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_block_open(k.store, bad[i], &op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_store_remove(k.store, bad[i], &op), WEFT_ERR_INVALID);
    }
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    CHECK_EQ(weft_block_open(k.store, longest, &op), WEFT_ERR_INVALID);
    longest[sizeof longest - 2] = 0;
    weft_block_drop(keeper_alloc(&k, k.store, longest, 1, true, NULL));
    weft_block_drop(keeper_alloc(&k, k.store, "Käse \xf0\x9f\xa7\x80", 1, true, NULL));
    weft_block_drop(keeper_find(&k, k.store, longest, NULL));
    CHECK_EQ(weft_store_open(NULL, NULL, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_block_open(k.store, "x", NULL), WEFT_ERR_INVALID);
    keeper_close(&k);
}

/* Cancelling completes at once; what the server did about it meanwhile is undone. */
TEST(an_allocation_that_was_cancelled_leaves_nothing)
{
    each_way(way) {
        keeper_open(&k, way, NULL, 0);
        for (int i = 0; i < 200; i++) {
            weft_op_t op = WEFT_OP_INIT;
            weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
            o.len = 100;
            o.name = "mine";
            o.shared = i & 1;
            CHECK_OK(weft_block_alloc(k.store, &o, &op));
            for (int turns = i % 20; turns; turns--)
                pair_drive(&k.pair);
            weft_op_cancel(&op);
            weft_status_t st = keeper_wait(&k, &op);
            if (!st)
                CHECK_OK(keeper_free(&k, (weft_block_t *)op.buf));
            else
                CHECK_EQ(st, WEFT_ERR_CANCELLED);
            weft_op_t renew = WEFT_OP_INIT; /* what was asked before it has been answered when it is */
            CHECK_OK(weft_store_renew(k.store, &renew));
            CHECK_OK(keeper_wait(&k, &renew));
            PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == 0, 10);
        }
        keeper_close(&k);
    }
}

TEST(what_is_allocated_beyond_the_file_descriptors_is_not_mapped)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 256;
    setrlimit(RLIMIT_NOFILE, &limit);
    weft_block_t *b[300];
    unsigned mapped = 0;
    keeper_open(&k, &pair_ways[0], NULL, 0);
    for (int i = 0; i < 300; i++) {
        weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
        b[i] = keeper_alloc(&k, k.store, NULL, 1, false, NULL);
        CHECK_OK(weft_remote_get_info(weft_block_remote(b[i]), &info));
        mapped += info.path == WEFT_RMA_MAPPED;
        CHECK_OK(keeper_write(&k, weft_block_remote(b[i]), 0, "x", 1));
    }
    CHECK(mapped >= 50 && mapped <= 192);
    for (int i = 0; i < 300; i++)
        CHECK_OK(keeper_free(&k, b[i]));
    CHECK_EQ(keeper_stats(&k).used_bytes, 0);
    keeper_close(&k);
}

TEST(statistics_over_the_network_are_those_of_the_server)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_store_stats_t here, there = WEFT_STORE_STATS_INIT;
    uint8_t bytes[3000] = {1};
    keeper_open(&k, &pair_ways[1], NULL, 0);
    weft_block_t *b = keeper_alloc(&k, k.store, "a", 5000, true, NULL);
    CHECK_OK(keeper_write(&k, weft_block_remote(b), 0, bytes, sizeof bytes));
    CHECK_OK(keeper_read(&k, weft_block_remote(b), 0, bytes, 10));
    CHECK_OK(weft_store_query(k.store, &there, &op));
    CHECK_OK(keeper_wait(&k, &op));
    here = keeper_stats(&k);
    CHECK_EQ(there.bytes, 64 << 20);
    CHECK_EQ(there.used_bytes, 2 * PAGE);
    CHECK_EQ(there.shared_blocks, 1);
    CHECK_EQ(there.bytes_written, sizeof bytes);
    CHECK_EQ(there.bytes_read, 10);
    CHECK_EQ(there.reads, 1);
    CHECK_EQ(there.writes, 1);
    CHECK(there.uptime_ns > 0 && here.uptime_ns >= there.uptime_ns);
    here.uptime_ns = there.uptime_ns;
    CHECK(!memcmp(&here, &there, sizeof here));
    CHECK_OK(keeper_free(&k, b));
    CHECK_EQ(keeper_stats(&k).bytes_written, sizeof bytes); /* of blocks that were */
    keeper_close(&k);
}
