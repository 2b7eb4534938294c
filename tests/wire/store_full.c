/* A server that is full, and gives memory back: who asks for that memory before it is there waits for it and is not refused;
 * who asks for more than will ever be there is refused at once; who goes away meanwhile leaves nothing.
 *
 * ctest: tls-long label=thread shards */
#include <weft/elements.h>

#include "lib/keeper.h"
#include "rma/state.h"
#include "store/state.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define LARGE (24 * MIB) /* given back in more than one step */

static keeper_t k;

static void open_with_lease(const pair_way_t *way, uint64_t bytes, uint64_t lease_ns)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    o.bytes = bytes;
    keeper_open(&k, way, &o, lease_ns);
}

static void open_with(const pair_way_t *way, uint64_t bytes)
{
    open_with_lease(way, bytes, 0);
}

static weft_block_t *fill(weft_block_t *b)
{
    static uint8_t some[LARGE];
    memset(some, 7, sizeof some);
    CHECK_OK(keeper_write(&k, weft_block_remote(b), 0, some, sizeof some));
    return b;
}

/* A block with bytes in it: one without costs nothing to give back. */
static weft_block_t *full_block(void)
{
    return fill(keeper_alloc(&k, k.store, NULL, LARGE, false, NULL));
}

static void post_alloc(weft_op_t *op, uint64_t len)
{
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    o.len = len;
    *op = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_block_alloc(k.store, &o, op));
}

/* It was cancelled or lost while it waited; or, where threads drive, the memory came back before that. */
static void check_cancelled(const pair_way_t *way, weft_op_t *op)
{
    weft_status_t st = keeper_wait(&k, op);
    if (st || way->mode == WEFT_PROGRESS_CALLER)
        CHECK_EQ(st, WEFT_ERR_CANCELLED);
    else if (weft_block_free(weft_op_block(op), NULL)) /* the endpoint is gone: the server takes it back by itself */
        weft_block_drop(weft_op_block(op));
}

/* A full block after a request was cancelled, which may still get the memory: it gives that back when its reply comes. */
static weft_block_t *full_block_in_time(void)
{
    weft_op_t op;
    weft_status_t st = WEFT_ERR_LIMIT;
    for (double end = test_now() + 20; st == WEFT_ERR_LIMIT && test_now() < end;) {
        post_alloc(&op, LARGE);
        st = keeper_wait(&k, &op);
    }
    CHECK_OK(st);
    return fill(weft_op_block(&op));
}

TEST(one_block_is_replaced_again_and_again_where_there_is_room_for_two)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        open_with(way, 2 * LARGE);
        for (int i = 0; i < 6; i++) {
            weft_block_t *b = full_block();
            CHECK_OK(weft_block_share(b, "the one", true, &op));
            CHECK_OK(keeper_wait(&k, &op));
            weft_block_drop(b);
        }
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == LARGE, 20);
        CHECK_EQ(keeper_stats(&k).refused, 0);
        keeper_close(&k);
    }
}

TEST(who_frees_and_asks_again_without_waiting_gets_it)
{
    each_way(way) {
        open_with(way, LARGE);
        weft_block_t *b = full_block();
        for (int i = 0; i < 6; i++) {
            weft_op_t gone = WEFT_OP_INIT, op;
            CHECK_OK(weft_block_free(b, &gone));
            post_alloc(&op, LARGE);
            CHECK_OK(keeper_wait(&k, &op));
            CHECK_OK(keeper_wait(&k, &gone));
            b = weft_op_block(&op);
            keeper_zero(&k, weft_block_remote(b), 0, LARGE);
        }
        weft_block_drop(b);
        CHECK_EQ(keeper_stats(&k).refused, 0);
        keeper_close(&k);
    }
}

TEST(a_block_is_made_longer_with_what_another_gives_back)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        open_with(way, LARGE + 2 * MIB);
        weft_block_t *small = keeper_alloc(&k, k.store, NULL, MIB, false, NULL);
        CHECK_OK(weft_block_free(full_block(), NULL));
        CHECK_OK(weft_block_extend(small, LARGE, &op));
        CHECK_OK(keeper_wait(&k, &op));
        keeper_zero(&k, weft_block_remote(small), MIB, LARGE - MIB);
        weft_block_drop(small);
        keeper_close(&k);
    }
}

TEST(what_never_fits_is_refused_while_memory_is_on_its_way_back)
{
    each_way(way) {
        weft_op_t gone = WEFT_OP_INIT, op;
        open_with(way, LARGE + MIB);
        weft_block_t *small = keeper_alloc(&k, k.store, NULL, MIB, false, NULL);
        CHECK_OK(weft_block_free(full_block(), &gone));
        post_alloc(&op, LARGE + 1);
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_LIMIT);
        CHECK_OK(keeper_wait(&k, &gone));
        CHECK_EQ(keeper_stats(&k).refused, 1);
        weft_block_drop(small);
        keeper_close(&k);
    }
}

TEST(one_that_waits_ends_when_the_server_closes)
{
    each_way(way) {
        weft_op_t op, close = WEFT_OP_INIT;
        open_with(way, LARGE);
        CHECK_OK(weft_block_free(full_block(), NULL));
        post_alloc(&op, LARGE);
        CHECK_OK(weft_store_server_close(k.server, &close));
        k.server = NULL;
        weft_status_t st = keeper_wait(&k, &op);
        CHECK(st == WEFT_ERR_UNSUPPORTED || st == WEFT_ERR_STALE || st == WEFT_OK);
        CHECK_OK(keeper_wait(&k, &close));
        if (!st)
            weft_block_drop(weft_op_block(&op));
        keeper_close(&k);
    }
}

TEST(one_that_is_cancelled_or_whose_client_leaves_while_it_waits_leaves_nothing)
{
    each_way(way) {
        weft_op_t op;
        open_with(way, LARGE);
        CHECK_OK(weft_block_free(full_block(), NULL));
        post_alloc(&op, LARGE);
        weft_op_cancel(&op);
        check_cancelled(way, &op);
        CHECK_OK(weft_block_free(full_block_in_time(), NULL));
        post_alloc(&op, LARGE);
        CHECK_OK(weft_store_close(k.store, NULL));
        k.store = NULL;
        weft_status_t st = keeper_wait(&k, &op);
        CHECK(st == WEFT_ERR_CLOSED || st == WEFT_ERR_STALE || st == WEFT_OK);
        if (!st)
            weft_block_drop(weft_op_block(&op));
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == 0 && keeper_stats(&k).clients == 0, 20);
        keeper_close(&k);
    }
}

TEST(one_whose_client_is_lost_while_it_waits_leaves_nothing)
{
    each_way(way) {
        weft_op_t op;
        open_with_lease(way, LARGE, 300 * WEFT_MILLISECOND);
        CHECK_OK(weft_block_free(full_block(), NULL));
        post_alloc(&op, LARGE);
        pair_drive(&k.pair); /* it is at the server */
        CHECK_OK(weft_ep_abort(k.pair.ep[1], NULL));
        k.pair.ep[1] = NULL;
        check_cancelled(way, &op);
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == 0 && keeper_stats(&k).blocks == 0, 20);
        keeper_close(&k);
    }
}

/* The server keeps nothing for a client that is gone, also while the memory that it asked for is still on its way back. */
TEST(requests_that_wait_go_with_their_connection)
{
    uint64_t usual = wefti_rma_step_bytes;
    wefti_rma_step_bytes = 256; /* a page a round: it takes thousands of them */
    each_way(way) {
        enum { ASKS = 20 };
        weft_op_t ops[ASKS];
        if (way->mode != WEFT_PROGRESS_CALLER)
            continue;
        open_with(way, LARGE);
        CHECK_OK(weft_block_free(full_block(), NULL));
        for (int i = 0; i < ASKS; i++)
            post_alloc(&ops[i], LARGE);
        PAIR_UNTIL(&k.pair, !wefti_list_empty(&k.server->later), 20);
        CHECK_OK(weft_ep_abort(k.pair.ep[1], NULL));
        k.pair.ep[1] = NULL;
        PAIR_UNTIL(&k.pair, weft_ep_get_state(k.pair.ep[0]) != WEFT_EP_UP, 20);
        CHECK(k.server->n_freeing); /* else nothing would be shown */
        CHECK(wefti_list_empty(&k.server->later));
        for (int i = 0; i < ASKS; i++)
            CHECK_EQ(keeper_wait(&k, &ops[i]), WEFT_ERR_CANCELLED);
        PAIR_UNTIL(&k.pair, keeper_stats(&k).used_bytes == 0, 100);
        keeper_close(&k);
    }
    wefti_rma_step_bytes = usual;
}
