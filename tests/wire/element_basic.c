/* A memory element and a transport to it: bytes there and back, ranges, buffers, batches, atomics, allocations; over every
 * transport, driven by the caller and by threads.
 *
 * ctest: label=thread timeout=600 shards */
#define TEST_SECONDS 200
#include "lib/elements.h"
#include "test.h"

static elements_t e;

TEST(bytes_go_there_and_come_back)
{
    each_way(way) {
        elements_open(&e, way, 100000, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 50000);
        size_t len;
        uint8_t *buf = weft_transport_buf(t, &len);
        CHECK_EQ(len, 50000);
        CHECK_OK(elements_read(&e, t, 50000, 50000, 0)); /* zero at first */
        for (size_t i = 0; i < len; i++)
            CHECK_EQ(buf[i], 0);
        pattern_fill(buf, 4096, 7);
        CHECK_OK(elements_write(&e, t, 4096, 1001, 0));
        CHECK_EQ(e.op.len, 4096);
        CHECK_EQ(pattern_check((uint8_t *)weft_memory_base(e.memory) + 1001, 4096, 7), 4096);
        CHECK_OK(elements_read(&e, t, 4096, 1001, 40000));
        CHECK_EQ(pattern_check(buf + 40000, 4096, 7), 4096);
        CHECK_OK(elements_read(&e, t, 0, 100000, 50000)); /* nothing, at both ends */
        weft_transport_stats_t s = elements_stats(t);
        CHECK_EQ(s.reads, 3);
        CHECK_EQ(s.writes, 1);
        CHECK_EQ(s.bytes_written, 4096);
        CHECK_EQ(s.len, 100000);
        CHECK_EQ(s.connects, 1);
        CHECK_EQ(s.failed, 0);
        bool mapped = !strcmp(way->transports, "shm");
        CHECK_EQ(s.path, mapped ? WEFT_RMA_MAPPED : WEFT_RMA_CHECKED);
        CHECK(mapped ? s.at_once >= 2 : s.at_once == 0);
        weft_memory_stats_t m = elements_memory_stats(&e);
        CHECK_EQ(m.users, 1);
        CHECK_EQ(m.mapped, mapped);
        CHECK_EQ(m.connections, 1);
        CHECK_EQ(m.used_bytes, 100000);
        CHECK(mapped ? m.writes == 0 : m.writes == 1 && m.bytes_written == 4096);
        elements_close(&e);
    }
}

TEST(without_a_buffer_nothing_is_moved_and_nobody_waits)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        elements_open(&e, way, 1000, NULL, NULL);
        CHECK_OK(weft_action_add(e.action, "later;rdma_tcp;")); /* it would wait for ever */
        weft_transport_t *t = elements_get(&e, "later", "rdma");
        CHECK(!weft_transport_buf(t, NULL));
        CHECK(!weft_transport_buffer(t));
        CHECK_EQ(weft_transport_read(t, 10, 0, 0, &op), WEFT_ERR_STATE);
        CHECK_EQ(weft_transport_write(t, 10, 0, 0, &op), WEFT_ERR_STATE);
        weft_transport_item_t item = {.what = WEFT_RMA_DO_READ, .size = 10};
        CHECK_EQ(weft_transport_batch(t, &item, 1, &op), WEFT_ERR_STATE);
        CHECK(strstr(weft_last_error(), "weft_transport_reg"));
        elements_close(&e);
    }
}

TEST(what_is_out_of_range_touches_nothing)
{
    each_way(way) {
        uint8_t before[64];
        elements_open(&e, way, 64, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 4096);
        CHECK_OK(elements_ready(&e, t));
        CHECK_EQ(e.op.len, 64);
        uint8_t *buf = weft_transport_buf(t, NULL), *there = weft_memory_base(e.memory);
        memset(buf, 'x', 4096);
        memset(there, 'y', 64);
        memcpy(before, there, 64);
        /* here: at once, wherever the other end is */
        CHECK_EQ(weft_transport_write(t, 4097, 0, 0, &e.op), WEFT_ERR_RANGE);
        CHECK_EQ(weft_transport_write(t, 1, 0, 4096, &e.op), WEFT_ERR_RANGE);
        CHECK_EQ(weft_transport_write(t, SIZE_MAX, 0, 2, &e.op), WEFT_ERR_RANGE);
        CHECK_EQ(weft_transport_read(t, 2, 0, SIZE_MAX, &e.op), WEFT_ERR_RANGE);
        /* there: 4 KiB into 64 bytes */
        CHECK_EQ(elements_write(&e, t, 4096, 0, 0), WEFT_ERR_RANGE);
        CHECK_EQ(elements_write(&e, t, 1, 64, 0), WEFT_ERR_RANGE);
        CHECK_EQ(elements_write(&e, t, 2, UINT64_MAX, 0), WEFT_ERR_RANGE);
        CHECK_EQ(elements_read(&e, t, 65, 0, 0), WEFT_ERR_RANGE);
        CHECK(!memcmp(before, there, 64));
        for (size_t i = 0; i < 4096; i++)
            CHECK_EQ(buf[i], 'x');
        CHECK_EQ(elements_stats(t).failed, 8);
        CHECK_OK(elements_read(&e, t, 64, 0, 4032)); /* and it goes on */
        CHECK(!memcmp(before, buf + 4032, 64));
        elements_close(&e);
    }
}

TEST(large_transfers_arrive_whole)
{
    each_way(way) {
        enum { N = 20 << 20 };
        elements_open(&e, way, N, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", N);
        uint8_t *buf = weft_transport_buf(t, NULL);
        pattern_fill(buf, N, 3);
        CHECK_OK(elements_write(&e, t, N, 0, 0));
        CHECK_EQ(pattern_check(weft_memory_base(e.memory), N, 3), N);
        memset(buf, 0, N);
        CHECK_OK(elements_read(&e, t, N - 1, 1, 0));
        pattern_fill(buf + N - 1, 1, 0);
        CHECK(!memcmp(buf, (uint8_t *)weft_memory_base(e.memory) + 1, N - 1));
        elements_close(&e);
    }
}

TEST(buffers_are_shared_replaced_and_kept)
{
    each_way(way) {
        elements_open(&e, way, 1000, NULL, NULL);
        weft_transport_t *a = elements_add(&e, "mem", 100), *b = elements_add(&e, "other", 0);
        CHECK_EQ(weft_transport_reg(b, 101, a), WEFT_ERR_RANGE);
        CHECK_OK(weft_transport_reg(b, 50, a));
        CHECK(weft_transport_buf(a, NULL) == weft_transport_buf(b, NULL));
        memcpy(weft_transport_buf(a, NULL), "hello", 6);
        CHECK_OK(elements_write(&e, b, 6, 0, 0)); /* what one wrote the other sends */
        CHECK_STR((char *)weft_memory_base(e.memory), "hello");
        /* a hold on the old one outlives a new one, and everything else */
        weft_buffer_t *held = weft_transport_buffer(a);
        CHECK_EQ(weft_buffer_len(held), 100);
        CHECK_EQ(weft_buffer_holds(held), 3); /* both transports, and we: the write is over, and holds it no more */
        CHECK_OK(weft_transport_reg(a, 200, NULL));
        CHECK(weft_transport_buf(a, NULL) != weft_transport_buf(b, NULL));
        CHECK_EQ(((char *)weft_transport_buf(a, NULL))[0], 0);
        CHECK_OK(weft_transport_reg(a, 10, a)); /* its own, again */
        CHECK_OK(weft_transport_reg(b, 0, NULL));
        CHECK_EQ(weft_buffer_holds(held), 1);
        CHECK_EQ(weft_buffer_holds(NULL), 0);
        CHECK_EQ(weft_transport_read(b, 1, 0, 0, &e.op), WEFT_ERR_RANGE);
        CHECK_OK(elements_read(&e, b, 0, 0, 0));
        CHECK_EQ(weft_transport_reg(a, SIZE_MAX, NULL), WEFT_ERR_NOMEM);
        CHECK_EQ(weft_transport_reg(a, SIZE_MAX / 16, NULL), WEFT_ERR_NOMEM);
        CHECK_OK(elements_read(&e, a, 200, 0, 0)); /* the one before stayed */
        elements_close(&e);
        CHECK_STR((char *)weft_buffer_base(held), "hello");
        memset(weft_buffer_base(held), 1, 100);
        weft_buffer_drop(held);
    }
}

TEST(a_buffer_that_is_replaced_stays_until_its_operations_are_over)
{
    each_way(way) {
        enum { N = 8 << 20 };
        weft_op_t ops[4];
        elements_open(&e, way, 4 * N, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", N);
        CHECK_OK(elements_ready(&e, t));
        memset(ops, 0, sizeof ops);
        for (int i = 0; i < 4; i++) {
            pattern_fill(weft_transport_buf(t, NULL), N, (uint64_t)i);
            CHECK_OK(weft_transport_write(t, N, (uint64_t)i * N, 0, &ops[i]));
            CHECK_OK(weft_transport_reg(t, N, NULL));
        }
        for (int i = 0; i < 4; i++)
            CHECK_OK(pair_wait(&e.pair, &ops[i], 20));
        for (uint64_t i = 0; i < 4; i++)
            CHECK_EQ(pattern_check((uint8_t *)weft_memory_base(e.memory) + i * N, N, i), N);
        elements_close(&e);
    }
}

TEST(a_batch_moves_all_and_says_what_did_not)
{
    each_way(way) {
        weft_transport_item_t items[100];
        elements_open(&e, way, 100 * 64, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 100 * 64);
        uint8_t *buf = weft_transport_buf(t, NULL), *there = weft_memory_base(e.memory);
        pattern_fill(buf, 100 * 64, 5);
        for (size_t i = 0; i < 100; i++)
            items[i] = (weft_transport_item_t){.what = WEFT_RMA_DO_WRITE, .size = 64, .addr = (99 - i) * 64, .offset = i * 64};
        CHECK_OK(elements_end(&e, weft_transport_batch(t, items, 100, &e.op)));
        CHECK_EQ(e.op.len, 100);
        for (size_t i = 0; i < 100; i++)
            CHECK(!memcmp(there + (99 - i) * 64, buf + i * 64, 64));
        memset(buf, 0, 100 * 64);
        for (size_t i = 0; i < 100; i++)
            items[i].what = WEFT_RMA_DO_READ;
        items[7].addr = 100 * 64 - 63;
        items[50].addr = UINT64_MAX;
        CHECK_EQ(elements_end(&e, weft_transport_batch(t, items, 100, &e.op)), WEFT_ERR_RANGE);
        CHECK_EQ(e.op.len, 98);
        for (size_t i = 0; i < 100; i++) {
            CHECK_EQ(items[i].status, i == 7 || i == 50 ? WEFT_ERR_RANGE : WEFT_OK);
            if (i != 7 && i != 50)
                CHECK(!memcmp(there + (99 - i) * 64, buf + i * 64, 64));
        }
        items[99].offset = 100 * 64 - 63; /* here: nothing of it is begun */
        memset(buf, 0, 100 * 64);
        CHECK_EQ(weft_transport_batch(t, items, 100, &e.op), WEFT_ERR_RANGE);
        CHECK_EQ(buf[0], 0);
        items[99].offset = 0;
        items[98].what = (weft_rma_what_t)9;
        CHECK_EQ(weft_transport_batch(t, items, 100, &e.op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_transport_batch(t, items, 65537, &e.op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_transport_batch(t, NULL, 1, &e.op), WEFT_ERR_INVALID);
        CHECK_OK(elements_end(&e, weft_transport_batch(t, NULL, 0, &e.op)));
        elements_close(&e);
    }
}

TEST(a_batch_moves_memory_of_the_caller)
{
    each_way(way) {
        enum { N = 50, SIZE = 100 };
        static uint8_t mine[N * SIZE], back[N * SIZE];
        weft_transport_item_t items[N + 1];
        elements_open(&e, way, N * SIZE, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 0);
        uint8_t *there = weft_memory_base(e.memory);
        pattern_fill(mine, sizeof mine, 6);
        memset(back, 0, sizeof back);
        for (size_t i = 0; i < N; i++)
            items[i] = (weft_transport_item_t){
                .what = WEFT_RMA_DO_WRITE, .size = SIZE, .addr = (N - 1 - i) * SIZE, .offset = SIZE_MAX, .own = mine + i * SIZE};
        CHECK_OK(elements_end(&e, weft_transport_batch(t, items, N, &e.op))); /* no buffer is registered */
        CHECK_EQ(e.op.len, N);
        for (size_t i = 0; i < N; i++) {
            CHECK(!memcmp(there + (N - 1 - i) * SIZE, mine + i * SIZE, SIZE));
            items[i].what = WEFT_RMA_DO_READ;
            items[i].own = back + i * SIZE;
        }
        items[3].addr = N * SIZE - SIZE + 1;
        CHECK_EQ(elements_end(&e, weft_transport_batch(t, items, N, &e.op)), WEFT_ERR_RANGE);
        CHECK_EQ(items[3].status, WEFT_ERR_RANGE);
        for (size_t i = 0; i < SIZE; i++)
            CHECK_EQ(back[3 * SIZE + i], 0);
        memcpy(back + 3 * SIZE, mine + 3 * SIZE, SIZE);
        CHECK(!memcmp(back, mine, sizeof mine));
        /* beside the buffer, which an item without memory of its own needs */
        items[3].addr = 0;
        items[N] = (weft_transport_item_t){.what = WEFT_RMA_DO_READ, .size = 10, .addr = 7, .offset = 1};
        CHECK_EQ(weft_transport_batch(t, items, N + 1, &e.op), WEFT_ERR_STATE);
        CHECK_OK(weft_transport_reg(t, 11, NULL));
        CHECK_OK(elements_end(&e, weft_transport_batch(t, items, N + 1, &e.op)));
        CHECK(!memcmp((uint8_t *)weft_transport_buf(t, NULL) + 1, there + 7, 10));
        items[N].offset = 2;
        CHECK_EQ(weft_transport_batch(t, items, N + 1, &e.op), WEFT_ERR_RANGE);
        CHECK_EQ(elements_stats(t).reads, N - 1 + N + 1);
        elements_close(&e);
    }
}

TEST(atomics_count_and_swap)
{
    each_way(way) {
        elements_open(&e, way, 64, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 0); /* they need no buffer */
        CHECK_OK(elements_end(&e, weft_transport_fetch_add(t, 8, 5, &e.op)));
        CHECK_EQ(e.op.tag, 0);
        CHECK_OK(elements_end(&e, weft_transport_fetch_add(t, 8, 37, &e.op)));
        CHECK_EQ(e.op.tag, 5);
        CHECK_OK(elements_end(&e, weft_transport_compare_swap(t, 8, 41, 1, &e.op)));
        CHECK_EQ(e.op.tag, 42);
        CHECK_OK(elements_end(&e, weft_transport_compare_swap(t, 8, 42, 1, &e.op)));
        CHECK_EQ(e.op.tag, 42);
        CHECK_OK(elements_end(&e, weft_transport_atomic(t, WEFT_RMA_SWAP, 8, 4, 7, 0, &e.op)));
        CHECK_EQ(e.op.tag, 1);
        uint64_t there;
        memcpy(&there, (uint8_t *)weft_memory_base(e.memory) + 8, 8);
        CHECK_EQ(there, 7);
        CHECK_EQ(weft_transport_fetch_add(t, 4, 1, &e.op), WEFT_ERR_INVALID);
        CHECK_EQ(weft_transport_atomic(t, (weft_rma_atomic_t)99, 8, 8, 1, 0, &e.op), WEFT_ERR_INVALID);
        CHECK_EQ(elements_end(&e, weft_transport_fetch_add(t, 64, 1, &e.op)), WEFT_ERR_RANGE);
        CHECK_EQ(elements_stats(t).atomics, 5);
        elements_close(&e);
    }
}

TEST(a_flush_comes_after_all_that_was_posted_before)
{
    each_way(way) {
        enum { N = 64 };
        weft_op_t ops[N], flush = WEFT_OP_INIT;
        elements_open(&e, way, 1 << 20, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 1 << 20);
        CHECK_OK(elements_ready(&e, t));
        memset(ops, 0, sizeof ops);
        pattern_fill(weft_transport_buf(t, NULL), 1 << 20, 11);
        for (size_t i = 0; i < N; i++)
            CHECK_OK(weft_transport_write(t, 16384, i * 16384, i * 16384, &ops[i]));
        CHECK_OK(weft_transport_flush(t, &flush));
        CHECK_OK(pair_wait(&e.pair, &flush, 20));
        CHECK_EQ(pattern_check(weft_memory_base(e.memory), 1 << 20, 11), 1 << 20);
        for (size_t i = 0; i < N; i++)
            CHECK(weft_op_done(&ops[i]) && !ops[i].status);
        CHECK_OK(weft_transport_flush(t, &flush)); /* nothing is under way */
        CHECK_OK(pair_wait(&e.pair, &flush, 20));
        elements_close(&e);
    }
}

TEST(a_small_write_does_not_pass_a_large_one_before_it)
{
    each_way(way) {
        enum { N = 4 << 20 };
        weft_op_t large = WEFT_OP_INIT, small = WEFT_OP_INIT;
        elements_open(&e, way, N, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", N + 8);
        uint8_t *buf = weft_transport_buf(t, NULL), *there = weft_memory_base(e.memory);
        CHECK_OK(elements_ready(&e, t));
        memset(buf, 'l', N);
        memset(buf + N, 's', 8);
        for (int i = 0; i < 30; i++) {
            CHECK_OK(weft_transport_write(t, N, 0, 0, &large));
            CHECK_OK(weft_transport_write(t, 8, N - 8, N, &small)); /* it could be done at once */
            CHECK_OK(pair_wait(&e.pair, &small, 20));
            CHECK_OK(pair_wait(&e.pair, &large, 20));
            CHECK_EQ(there[N - 9], 'l');
            CHECK_EQ(there[N - 1], 's');
        }
        elements_close(&e);
    }
}

TEST(memory_is_allocated_from_the_spare_and_goes_with_the_transport)
{
    each_way(way) {
        weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
        char in[6] = "";
        o.spare = 1 << 20;
        elements_open(&e, way, 4096, &o, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        CHECK_OK(elements_end(&e, weft_transport_alloc(t, 10000, NULL, &e.op)));
        weft_block_t *block = e.op.buf;
        CHECK_EQ(e.op.len, 10000);
        CHECK_OK(elements_end(&e, weft_rma_write(weft_block_remote(block), 9000, "hello", 6, &e.op)));
        CHECK_OK(elements_end(&e, weft_rma_read(weft_block_remote(block), 9000, in, 6, &e.op)));
        CHECK_STR(in, "hello");
        CHECK(elements_memory_stats(&e).used_bytes >= 4096 + 10000);
        CHECK_EQ(elements_end(&e, weft_transport_alloc(t, 2 << 20, NULL, &e.op)), WEFT_ERR_LIMIT);
        CHECK(!e.op.buf);
        CHECK_OK(weft_action_release(e.action, "mem"));
        PAIR_UNTIL(&e.pair, elements_memory_stats(&e).used_bytes == 4096, 10);
        weft_block_drop(block);
        elements_close(&e);
    }
}

TEST(an_element_without_spare_says_so)
{
    each_way(way) {
        elements_open(&e, way, 4096, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        CHECK_EQ(elements_end(&e, weft_transport_alloc(t, 100, NULL, &e.op)), WEFT_ERR_UNSUPPORTED);
        CHECK_OK(elements_read(&e, t, 100, 0, 0)); /* and nothing else is the matter */
        elements_close(&e);
    }
}

TEST(completions_come_as_the_caller_chose)
{
    each_way(way) {
        weft_queue_t *queue;
        weft_op_t op = WEFT_OP_INIT, *popped;
        elements_open(&e, way, 4096, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 4096);
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(weft_queue_new(e.pair.rt[1], &queue));
        op.queue = queue;
        CHECK_OK(weft_transport_read(t, 4096, 0, 0, &op));
        size_t n = 0;
        PAIR_UNTIL(&e.pair, (n = weft_queue_pop(queue, &popped, 1, 0)) == 1, 10);
        CHECK(popped == &op && !op.status && op.len == 4096);
        CHECK_OK(weft_queue_free(queue));
        elements_close(&e);
    }
}

TEST(arguments_that_make_no_sense_are_refused)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    weft_memory_t *m;
    weft_transport_t *t;
    weft_action_t *a;
    char durl[10];
    size_t len = sizeof durl;
    elements_open(&e, &pair_ways[0], 100, NULL, NULL);
    CHECK_EQ(weft_memory_open(e.pair.rt[0], NULL, &m), WEFT_ERR_INVALID);
    CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &m), WEFT_ERR_INVALID);
    o.name = "x;y";
    o.bytes = 1;
    CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &m), WEFT_ERR_INVALID);
    o.name = "x";
    o.uri = "http://x";
    CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &m), WEFT_ERR_INVALID);
    o.uri = NULL;
    o.bytes = 0;
    CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &m), WEFT_ERR_INVALID);
    CHECK_EQ(weft_memory_durl(e.memory, durl, &len), WEFT_ERR_LIMIT);
    CHECK(len > sizeof durl);
    CHECK_EQ(weft_memory_close(NULL, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_open(e.pair.rt[1], NULL, NULL, &a), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_add(e.action, "nonsense"), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_add(NULL, "m;rdma_tcp;"), WEFT_ERR_INVALID);
    CHECK_OK(weft_action_add(e.action, "m;rdma_tcp;"));
    CHECK_EQ(weft_action_add(e.action, "m;rdma_tcp;"), WEFT_ERR_STATE);
    CHECK_EQ(weft_action_get(e.action, "n", "rdma", &t), WEFT_ERR_NOTFOUND);
    CHECK_EQ(weft_action_get(e.action, "m", "rdma_server", &t), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_get(e.action, "m", "tcp", &t), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_get(e.action, NULL, "rdma", &t), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_configure(e.action, "n", e.durl), WEFT_ERR_NOTFOUND);
    CHECK_EQ(weft_action_configure(e.action, "m", "m;rdma_tcp;"), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_configure(e.action, "m", "m;rdma_tcp_server;size,10;"), WEFT_ERR_INVALID);
    CHECK_EQ(weft_action_release(e.action, "n"), WEFT_ERR_NOTFOUND);
    t = elements_get(&e, "m", "rdma");
    weft_transport_t *again = elements_get(&e, "m", "rdma");
    CHECK(t == again);
    CHECK_EQ(weft_transport_read(NULL, 1, 0, 0, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_transport_read(t, 1, 0, 0, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_transport_serve(t, &op), WEFT_ERR_INVALID);
    CHECK(!weft_transport_remote(t));
    CHECK(!weft_transport_memory(t));
    CHECK_EQ(weft_transport_reg(NULL, 1, NULL), WEFT_ERR_INVALID);
    CHECK_STR(weft_action_id(e.action), "test");
    elements_close(&e);
}
