/* What the other side refused, or did not answer in time, says what was asked for and of whom: remote memory, memory servers,
 * mirrors, calls and registries. tests/fault/conn_sentences.c has those of lost peers. */
#include <weft/elements.h>

#include "lib/desk.h"
#include "lib/keeper.h"
#include "places.h"
#include "test.h"

#include "says.h"

#define MIB (UINT64_C(1) << 20)

static keeper_t k;
static desk_t desk;

TEST(an_access_that_its_owner_refuses)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *region;
        pair_t p;
        char in[8];
        pair_open(&p, way, NULL);
        o.len = 4096;
        o.name = "table";
        o.unmapped = true;
        CHECK_OK(weft_region_new(p.rt[0], &o, &region));
        CHECK_OK(weft_remote_find(p.ep[1], "chair", NULL, &op));
        CHECK_EQ(pair_wait(&p, &op, 20), WEFT_ERR_NOTFOUND);
        SAYS(&op, "attach", "://", "the peer \"", "no region of that name");
        CHECK_OK(weft_remote_find(p.ep[1], "table", NULL, &op));
        CHECK_OK(pair_wait(&p, &op, 20));
        weft_remote_t *remote = weft_op_remote(&op);
        weft_op_t gone = WEFT_OP_INIT;
        CHECK_OK(weft_region_free(region, &gone));
        CHECK_OK(pair_wait(&p, &gone, 20));
        CHECK_OK(weft_rma_read(remote, 0, in, sizeof in, &op));
        CHECK_EQ(pair_wait(&p, &op, 20), WEFT_ERR_STALE);
        SAYS(&op, "the peer \"", "a read of 8 bytes", "freed or revoked");
        weft_remote_drop(remote);
        pair_close(&p);
    }
}

TEST(a_request_that_a_memory_server_refuses)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
        keeper_open(&k, way, NULL, 0);
        CHECK_OK(weft_block_open(k.store, "nothing", &op));
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_NOTFOUND);
        SAYS(&op, "://", "the peer \"", "there is no block \"nothing\"");
        o.len = 1000 * MIB;
        CHECK_OK(weft_block_alloc(k.store, &o, &op));
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_LIMIT);
        SAYS(&op, "the peer \"", "no room for a block of 1048576000 bytes");
        weft_block_t *b = keeper_alloc(&k, k.store, "thing", 100, false, NULL);
        o.len = 1;
        o.name = "thing";
        CHECK_OK(weft_block_alloc(k.store, &o, &op));
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_STATE);
        SAYS(&op, "the name \"thing\" is taken");
        CHECK_OK(weft_block_extend(b, 50, &op));
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_RANGE);
        SAYS(&op, "longer");
        weft_block_drop(b);
        CHECK_OK(weft_store_open(k.pair.ep[0], NULL, &op)); /* the client's runtime serves none */
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_UNSUPPORTED);
        SAYS(&op, "serves no memory");
        keeper_close(&k);
    }
}

TEST(a_mirror_that_is_not_there)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    keeper_open(&k, &pair_ways[0], NULL, 0);
    weft_store_t *stores[] = {k.store};
    o.name = "copies";
    o.stores = stores;
    o.n_stores = 1;
    CHECK_OK(weft_mirror_open(k.pair.rt[1], &o, &op));
    CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_NOTFOUND);
    SAYS(&op, "mirror open", "the mirror \"copies\"", "no member");
    keeper_close(&k);
}

static void says_no(weft_request_t *request, void *user)
{
    (void)user;
    CHECK_OK(weft_request_fail(request, WEFT_CODE_NOT_FOUND, "no such book"));
}

TEST(a_call_that_fails_says_what_its_function_said)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t one = weft_i32(1);
        desk_open(&desk, way, NULL);
        desk_add(&desk, "get(v: i32) -> i32", says_no, NULL);
        weft_method_t *get = desk_method(&desk, "get(v: i32) -> i32"), *put = desk_method(&desk, "put(v: i32) -> i32");
        CHECK_OK(weft_call(get, &one, 1, &reply, &op));
        CHECK_EQ(pair_wait(&desk.pair, &op, 20), WEFT_ERR_CALL);
        SAYS(&op, "call", "get(v: i32) -> i32", "no such book");
        weft_reply_release(&reply);
        CHECK_OK(weft_call(put, &one, 1, &reply, &op));
        CHECK_EQ(pair_wait(&desk.pair, &op, 20), WEFT_ERR_CALL);
        SAYS(&op, "call", "put(v: i32) -> i32", "put");
        weft_reply_release(&reply);
        desk_close(&desk);
    }
}

TEST(a_registry_says_what_it_has_and_has_not)
{
    place_t a, b;
    char uri[128];
    weft_op_t op = WEFT_OP_INIT;
    weft_entry_t e = WEFT_ENTRY_INIT;
    e.service = "books";
    e.instance = "one";
    e.address = "tcp://127.0.0.1:1";
    place_new(uri);
    place_open(&a, uri, WEFT_PROGRESS_THREAD);
    place_open(&b, uri, WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_registry_leave(a.registry, "books", "one", &op));
    CHECK_EQ(place_wait(&op), WEFT_ERR_NOTFOUND);
    SAYS(&op, "registry", uri, "books@one");
    CHECK_OK(weft_registry_enter(a.registry, &e, &op));
    CHECK_OK(place_wait(&op));
    CHECK_OK(weft_registry_enter(b.registry, &e, &op));
    CHECK_EQ(place_wait(&op), WEFT_ERR_STATE);
    SAYS(&op, "registry", uri, "another process has entered books@one");
    place_close(&a);
    place_close(&b);
    place_remove(uri);
}

TEST(a_registry_that_cannot_be_reached_says_why)
{
    place_t a;
    weft_op_t op = WEFT_OP_INIT;
    weft_entry_t e = WEFT_ENTRY_INIT;
    e.service = "books";
    e.instance = "one";
    e.address = "tcp://127.0.0.1:1";
    place_open(&a, "dir:///proc/no-such-place", WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_registry_enter(a.registry, &e, &op));
    CHECK_EQ(place_wait(&op), WEFT_ERR_UNREACHABLE);
    SAYS(&op, "registry", "dir:///proc/no-such-place", "cannot");
    place_close(&a);
}
