/* Memory that is allocated at an element for a lease: it goes when its user is gone for that long, and not what has a longer
 * one; and it goes with the transport, at whatever moment.
 *
 * ctest: label=thread shards */
#include "lib/elements.h"
#include "test.h"

static elements_t e;
enum { BYTES = 4096, SPARE = 1 << 20 };
#define LEASE (400 * WEFT_MILLISECOND)

static void open_with_spare(const pair_way_t *way)
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    o.spare = SPARE;
    elements_open(&e, way, BYTES, &o, NULL);
}

static weft_status_t post_alloc(weft_transport_t *t, uint64_t len, uint64_t lease_ns, weft_op_t *op)
{
    weft_transport_alloc_opts_t o = WEFT_TRANSPORT_ALLOC_OPTS_INIT;
    o.lease_ns = lease_ns;
    return weft_transport_alloc(t, len, &o, op);
}

static weft_block_t *alloc(weft_transport_t *t, uint64_t len, uint64_t lease_ns)
{
    CHECK_OK(elements_end(&e, post_alloc(t, len, lease_ns, &e.op)));
    CHECK_EQ(e.op.len, len);
    return (weft_block_t *)e.op.buf;
}

static weft_status_t put(weft_block_t *block, uint64_t at, const char *text)
{
    return elements_end(&e, weft_rma_write(weft_block_remote(block), at, text, strlen(text) + 1, &e.op));
}

TEST(what_is_allocated_stays_with_its_user_and_outlives_one_that_is_gone_for_its_lease_and_no_longer)
{
    each_way(way) {
        if (way->mode == WEFT_PROGRESS_THREAD) /* the user has to be able to do nothing */
            continue;
        open_with_spare(way);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        weft_block_t *longer = alloc(t, 10000, 0), *brief = alloc(t, 200000, LEASE);
        weft_block_t *too = alloc(t, 20000, LEASE); /* the same lease */
        CHECK_OK(put(longer, 9000, "longer"));
        /* several times its lease, and nobody drives it: but it is there */
        for (double until = test_now() + 1.5; test_now() < until;)
            weft_runtime_progress(e.pair.rt[0]);
        CHECK(elements_memory_stats(&e).used_bytes >= BYTES + 230000);
        CHECK_OK(put(brief, 199000, "brief"));
        weft_block_drop(longer);
        weft_block_drop(brief);
        weft_block_drop(too);
        /* its process is gone, and said nothing about its leases */
        CHECK_OK(weft_runtime_close(e.pair.rt[1]));
        double until = test_now() + 20; /* its lease is over long before the other's 30 s */
        while (elements_memory_stats(&e).used_bytes >= BYTES + 20000 && test_now() < until) /* it goes in pieces */
            weft_runtime_progress(e.pair.rt[0]);
        CHECK(elements_memory_stats(&e).used_bytes < BYTES + 20000);
        CHECK(elements_memory_stats(&e).used_bytes >= BYTES + 10000);
        CHECK_OK(weft_runtime_close(e.pair.rt[0]));
    }
}

TEST(a_transport_has_a_few_different_leases)
{
    each_way(way) {
        weft_block_t *blocks[18];
        weft_transport_alloc_opts_t bad = WEFT_TRANSPORT_ALLOC_OPTS_INIT;
        open_with_spare(way);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        bad.size = 1;
        CHECK_EQ(weft_transport_alloc(t, 100, &bad, &e.op), WEFT_ERR_INVALID);
        for (unsigned i = 0; i < 16; i++)
            blocks[i] = alloc(t, 100, i * WEFT_SECOND);
        CHECK_EQ(elements_end(&e, post_alloc(t, 100, 16 * WEFT_SECOND, &e.op)), WEFT_ERR_LIMIT);
        CHECK(!e.op.buf);
        blocks[16] = alloc(t, 100, 15 * WEFT_SECOND);
        blocks[17] = alloc(t, 100, 0);
        for (unsigned i = 0; i < 18; i++)
            CHECK_OK(put(blocks[i], 0, "here"));
        weft_transport_t *other = elements_add(&e, "other", 100); /* another one has its own */
        CHECK_OK(elements_end(&e, weft_block_free(alloc(other, 100, WEFT_FOREVER), &e.op)));
        CHECK_OK(weft_action_release(e.action, "mem"));
        PAIR_UNTIL(&e.pair, elements_memory_stats(&e).used_bytes == BYTES, 10);
        for (unsigned i = 0; i < 18; i++)
            weft_block_drop(blocks[i]);
        elements_close(&e);
    }
}

TEST(allocations_that_are_under_way_end_with_the_transport)
{
    each_way(way) {
        for (int round = 0; round < 12; round++) {
            weft_op_t ops[6];
            bool posted[6];
            memset(ops, 0, sizeof ops);
            open_with_spare(way);
            weft_transport_t *t = elements_add(&e, "mem", 100);
            if (round % 2)
                CHECK_OK(elements_ready(&e, t));
            for (unsigned i = 0; i < 6; i++)
                posted[i] = !post_alloc(t, 1000, i % 3 * WEFT_SECOND, &ops[i]);
            for (int i = 0; i < round; i++)
                pair_drive(&e.pair);
            if (round % 3 == 0)
                weft_op_cancel(&ops[1]);
            if (round % 3 == 1)
                elements_memory_close(&e);
            CHECK_OK(weft_action_release(e.action, "mem"));
            for (unsigned i = 0; i < 6; i++) {
                weft_status_t st = posted[i] ? pair_wait(&e.pair, &ops[i], 15) : WEFT_ERR_CLOSED;
                if (st && st != WEFT_ERR_CLOSED && st != WEFT_ERR_CANCELLED && st != WEFT_ERR_PEER && st != WEFT_ERR_STALE)
                    FAIL("%s, round %d: allocation %u ended with %s", way->transports, round, i, weft_status_name(st));
                CHECK(!st == !!ops[i].buf);
                weft_block_drop((weft_block_t *)ops[i].buf);
            }
            if (e.memory)
                PAIR_UNTIL(&e.pair, elements_memory_stats(&e).used_bytes == BYTES, 10);
            elements_close(&e);
        }
    }
}
