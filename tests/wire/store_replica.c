/* What a server keeps for a member of a mirror: its record is changed by one writer at a time, everything given out before is
 * stale when a set is complete, readers are served only while the writer's lease runs or after it has left.
 *
 * ctest: tls-long long waits */
#include <weft/elements.h>

#include "lib/keeper.h"
#include "store/state.h"
#include "test.h"

#define LEASE WEFT_SECOND /* long enough for a busy machine */

static keeper_t k;
static wefti_replica_answer_t out;

static wefti_replica_t record(uint64_t epoch, uint8_t writer)
{
    wefti_replica_t rec = {.epoch = epoch, .len = 4096, .lease_ns = LEASE, .n_members = 2};
    memset(rec.members[0], 0xaa, WEFT_STORE_ID);
    memset(rec.members[1], 0xbb, WEFT_STORE_ID);
    memset(rec.writer, writer, WEFT_STORE_ID);
    return rec;
}

static weft_status_t done(weft_status_t st, weft_op_t *op)
{
    return st ? st : keeper_wait(&k, op);
}
static weft_status_t ask(store_request_t q)
{
    weft_op_t op = WEFT_OP_INIT;
    return done(wefti_store_replica_ask(k.store, "m", &q, &out, &op), &op);
}
static weft_status_t make_as(wefti_replica_t rec)
{
    return ask((store_request_t){.kind = STORE_R_MAKE, .len = 8192, .rec = rec});
}
static weft_status_t make(uint64_t epoch)
{
    return make_as(record(epoch, 1));
}
static weft_status_t get(void)
{
    return ask((store_request_t){.kind = STORE_R_GET});
}
static weft_status_t set_to(uint64_t expected, wefti_replica_t rec, uint64_t stamp)
{
    return ask((store_request_t){.kind = STORE_R_SET, .epoch = expected, .rec = rec, .stamp = stamp});
}
static weft_status_t ask_as(uint8_t kind, uint64_t epoch, uint8_t writer, uint64_t stamp)
{
    store_request_t q = {.kind = kind, .epoch = epoch, .stamp = stamp};
    memset(q.writer, writer, sizeof q.writer);
    return ask(q);
}
static weft_status_t set(uint64_t expected, uint64_t epoch, uint8_t writer, uint32_t flags, uint64_t stamp)
{
    wefti_replica_t rec = record(epoch, writer);
    rec.flags = flags;
    return set_to(expected, rec, stamp);
}
static weft_status_t renew(uint64_t epoch, uint8_t writer, uint64_t stamp)
{
    return ask_as(STORE_R_RENEW, epoch, writer, stamp);
}
static weft_status_t seal(uint64_t epoch, uint8_t writer)
{
    return ask_as(STORE_R_SEAL, epoch, writer, 0);
}
static weft_remote_t *attach(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK(out.key_len > 0);
    CHECK_OK(weft_remote_attach(k.pair.ep[1], out.key, out.key_len, NULL, &op));
    CHECK_OK(keeper_wait(&k, &op));
    return (weft_remote_t *)op.buf;
}

/* Who has asked, and comes back when one was unmade and another made in its place, finds the same epoch there. */
TEST(a_set_is_for_the_mirror_that_was_asked_for)
{
    each_way(way) {
        keeper_open(&k, way, NULL, 0);
        wefti_replica_t first = record(1, 1), other = record(1, 2), next = record(2, 3);
        first.origin = next.origin = 11;
        other.origin = 22;
        CHECK_OK(make_as(first));
        CHECK_OK(ask_as(STORE_R_UNMAKE, 1, 1, 0));
        CHECK_OK(make_as(other));
        for (uint32_t flags = 0; flags <= WEFTI_REPLICA_REFILLING; flags += WEFTI_REPLICA_REFILLING) {
            next.flags = flags;
            CHECK_EQ(set_to(1, next, out.stamp), WEFT_ERR_STALE);
            CHECK_EQ(out.rec.origin, 22);
            CHECK_EQ(out.rec.epoch, 1);
        }
        next.origin = 22;
        CHECK_OK(set_to(1, next, out.stamp));
        keeper_close(&k);
    }
}

TEST(a_record_is_made_set_read_and_sealed)
{
    each_way(way) {
        char in[3] = "";
        weft_status_t st;
        keeper_open(&k, way, NULL, 0);
        CHECK_EQ(get(), WEFT_ERR_NOTFOUND);
        CHECK_OK(make(1));
        CHECK_EQ(out.bytes, 8192);
        CHECK_EQ(out.rec.flags, WEFTI_REPLICA_REFILLING);
        weft_remote_t *maker = attach();
        weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
        CHECK_OK(weft_remote_get_info(maker, &info));
        CHECK_EQ(info.path, WEFT_RMA_CHECKED); /* it cannot be mapped */
        keeper_zero(&k, maker, 0, 8192);
        CHECK_OK(keeper_write(&k, maker, 0, "ab", 3));
        CHECK_EQ(make(1), WEFT_ERR_STATE);
        CHECK_EQ(out.rec.epoch, 1);
        CHECK_OK(get());
        CHECK_EQ(out.key_len, 0); /* refilling: for nobody else */
        CHECK_EQ(set(2, 3, 1, 0, out.stamp), WEFT_ERR_STALE);
        CHECK_EQ(out.rec.epoch, 1);
        CHECK_EQ(set(1, 1, 1, 0, out.stamp), WEFT_ERR_INVALID);
        CHECK_OK(set(1, 2, 1, WEFTI_REPLICA_CHECKSUMS, out.stamp));
        CHECK_EQ(out.rec.epoch, 2);
        CHECK_EQ(out.rec.flags, WEFTI_REPLICA_CHECKSUMS);
        CHECK_EQ(keeper_write(&k, maker, 0, "x", 1), WEFT_ERR_STALE);
        weft_remote_t *writer = attach();
        CHECK_OK(get());
        weft_remote_t *reader = attach();
        CHECK_OK(keeper_read(&k, reader, 0, in, 3));
        CHECK_STR(in, "ab");
        CHECK_EQ(keeper_write(&k, reader, 0, "x", 1), WEFT_ERR_RIGHTS);
        CHECK_OK(keeper_write(&k, writer, 0, "cd", 3));
        CHECK_EQ(renew(2, 9, out.stamp), WEFT_ERR_STALE);
        CHECK_EQ(renew(1, 1, out.stamp), WEFT_ERR_STALE);
        CHECK_OK(renew(2, 1, out.stamp));
        CHECK_EQ(seal(2, 9), WEFT_ERR_STALE);
        CHECK_OK(seal(2, 1));
        CHECK_EQ(keeper_write(&k, writer, 0, "x", 1), WEFT_ERR_STALE);
        CHECK_EQ(keeper_read(&k, reader, 0, in, 1), WEFT_ERR_STALE);
        CHECK_OK(get());
        CHECK(out.rec.flags & WEFTI_REPLICA_SEALED);
        weft_remote_drop(reader);
        reader = attach();
        pair_run(&k.pair, 1.5 * LEASE / WEFT_SECOND); /* without a lease */
        CHECK_OK(keeper_read(&k, reader, 0, in, 3));
        CHECK_STR(in, "cd");
        CHECK_EQ(renew(2, 1, out.stamp), WEFT_ERR_STATE);
        /* it is a block for nobody else */
        keeper_find(&k, k.store, "m", &st);
        CHECK_EQ(st, WEFT_ERR_STATE);
        CHECK_OK(keeper_remove(&k, k.store, "m"));
        CHECK_EQ(get(), WEFT_ERR_NOTFOUND);
        weft_remote_drop(maker);
        weft_remote_drop(writer);
        weft_remote_drop(reader);
        weft_block_drop(keeper_alloc(&k, k.store, "m", 100, false, NULL));
        CHECK_EQ(get(), WEFT_ERR_STATE);
        CHECK_EQ(keeper_stats(&k).used_bytes, 4096);
        keeper_close(&k);
    }
}

TEST(a_lease_that_is_over_lets_nobody_in_until_a_set)
{
    for (const pair_way_t *way = pair_ways; way < pair_ways + 2; way++) {
        char in[3];
        keeper_open(&k, way, NULL, 0);
        CHECK_OK(make(1));
        CHECK_OK(set(1, 2, 1, 0, out.stamp));
        weft_remote_t *writer = attach();
        CHECK_OK(keeper_write(&k, writer, 0, "ab", 3));
        CHECK_OK(get());
        weft_remote_t *reader = attach();
        for (int i = 0; i < 8; i++) { /* two leases, renewed */
            pair_run(&k.pair, 0.25 * LEASE / WEFT_SECOND);
            CHECK_OK(renew(2, 1, out.stamp));
        }
        CHECK_OK(keeper_read(&k, reader, 0, in, 3));
        uint64_t old = out.stamp;
        pair_run(&k.pair, 1.1 * LEASE / WEFT_SECOND);
        CHECK_EQ(keeper_read(&k, reader, 0, in, 3), WEFT_ERR_STALE);
        CHECK_EQ(keeper_write(&k, writer, 0, "x", 1), WEFT_ERR_STALE);
        CHECK_OK(get());
        CHECK_EQ(out.key_len, 0);
        CHECK(out.rec.flags & WEFTI_REPLICA_LAPSED);
        CHECK_EQ(renew(2, 1, out.stamp), WEFT_ERR_STALE);
        CHECK_EQ(seal(2, 1), WEFT_ERR_STALE);
        CHECK_EQ(set(2, 3, 2, 0, old), WEFT_ERR_AGAIN); /* the words of somebody who was away */
        CHECK_EQ(set(2, 3, 2, 0, out.stamp + WEFT_SECOND), WEFT_ERR_AGAIN);
        CHECK_EQ(out.rec.epoch, 2);
        CHECK_OK(set(2, 3, 2, 0, out.stamp));
        weft_remote_drop(writer);
        writer = attach();
        CHECK_OK(keeper_read(&k, writer, 0, in, 3));
        CHECK_STR(in, "ab");
        /* a set that leaves it refilling has no lease, and is for nobody but its writer */
        CHECK_OK(set(3, 4, 3, WEFTI_REPLICA_REFILLING, 0));
        CHECK_EQ(keeper_write(&k, writer, 0, "x", 1), WEFT_ERR_STALE);
        weft_remote_drop(writer);
        writer = attach();
        pair_run(&k.pair, 1.1 * LEASE / WEFT_SECOND);
        CHECK_OK(keeper_write(&k, writer, 0, "cd", 3));
        CHECK_OK(get());
        CHECK_EQ(out.key_len, 0);
        weft_remote_drop(writer);
        weft_remote_drop(reader);
        keeper_close(&k);
    }
}

/* A server that was stopped: what waited for it comes before its timers do. */
TEST(a_server_that_was_stopped_serves_nothing_late)
{
    char in[3];
    for (int i = 0; i < 2; i++) {
        weft_op_t op = WEFT_OP_INIT, asked = WEFT_OP_INIT;
        keeper_open(&k, &pair_ways[i & 1], NULL, 0);
        CHECK_OK(make(1));
        CHECK_OK(set(1, 2, 1, 0, out.stamp));
        CHECK_OK(get());
        weft_remote_t *reader = attach();
        CHECK_OK(keeper_read(&k, reader, 0, in, 3));
        for (double end = test_now() + 1.2 * LEASE / WEFT_SECOND; test_now() < end;)
            weft_runtime_progress(k.pair.rt[1]);
        CHECK_OK(weft_rma_read(reader, 0, in, 3, &op));
        CHECK_OK(wefti_store_replica_ask(k.store, "m", &(store_request_t){.kind = STORE_R_GET}, &out, &asked));
        for (int turns = 0; turns < 100; turns++)
            weft_runtime_progress(k.pair.rt[1]);
        CHECK_EQ(keeper_wait(&k, &op), WEFT_ERR_STALE);
        CHECK_OK(keeper_wait(&k, &asked));
        CHECK_EQ(out.key_len, 0);
        weft_remote_drop(reader);
        keeper_close(&k);
    }
}
