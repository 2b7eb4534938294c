/* A region in CUDA memory on a runtime with several shards, against a driver made of paper: atomics of all shards add up,
 * short accesses are whole, and a free waits for all. ctest: timeout=200 gpu */
#define TEST_SECONDS 180
#include "test.h"
#include "lib/spread.h"

#include <pthread.h>
#include <weft/weft.h>

#include "lib/cuda/use.h"

enum { SHARDS = 4, PEERS = 8, EACH = 40, BLOCK = 4096, BIG = 100000, BIGS = 2 * BLOCK, LEN = BIGS + PEERS * BIG };

typedef struct peer {
    unsigned i;
    const char *transports;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_remote_t *remote;
    pthread_t thread;
    weft_status_t ended;
} peer_t;

static weft_runtime_t *server;
static weft_region_t *region;
static uint8_t *memory, back[LEN]; /* memory: the GPU's */
static peer_t peers[PEERS];

static void begin(const char *transports)
{
    void *ctx;
    weft_listener_t *l;
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&ctx, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(ctx), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&memory, LEN), 0);
    CHECK_EQ(cu.MemsetD8((uintptr_t)memory, 0, LEN), 0);
    use_settle();
    server = spread_runtime(SHARDS, transports, WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_listen(server, "tcp://127.0.0.1:0", NULL, &l));
    o.buf = memory;
    o.len = LEN;
    o.name = "mem";
    CHECK_OK(weft_region_new(server, &o, &region));
    for (unsigned i = 0; i < PEERS; i++) {
        peer_t *p = &peers[i];
        weft_remote_opts_t ro = WEFT_REMOTE_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        ro.path = WEFT_RMA_CHECKED;
        *p = (peer_t){.i = i, .transports = transports, .rt = spread_runtime(1, transports, WEFT_PROGRESS_CALLER)};
        CHECK_OK(weft_ep_connect(p->rt, weft_listener_uri(l), NULL, 20 * WEFT_SECOND, &p->ep));
        CHECK_OK(spread_done(weft_remote_find(p->ep, "mem", &ro, &op), &op));
        p->remote = weft_op_remote(&op);
    }
}

static void end(void)
{
    for (unsigned i = 0; i < PEERS; i++) {
        weft_remote_drop(peers[i].remote);
        CHECK_OK(weft_runtime_close(peers[i].rt));
    }
    CHECK_OK(weft_runtime_close(server));
    use_settle();
    CHECK_EQ(cu.MemFree((uintptr_t)memory), 0);
}

static void all_do(void *(*fn)(void *arg))
{
    for (unsigned i = 0; i < PEERS; i++)
        CHECK(!pthread_create(&peers[i].thread, NULL, fn, &peers[i]));
}

static void join_all(void)
{
    for (unsigned i = 0; i < PEERS; i++)
        pthread_join(peers[i].thread, NULL);
}

/* Many at a time, so that the shards are busy with it at the same time. */
static void *everything(void *arg)
{
    enum { WINDOW = 8 };
    peer_t *p = arg;
    static _Thread_local weft_op_t ops[WINDOW];
    static _Thread_local uint8_t blocks[WINDOW][BLOCK], mine[BLOCK], big[BIG], again[BIG];
    memset(mine, (int)(p->i + 1), sizeof mine);
    for (unsigned i = 0; i < EACH; i++) {
        weft_op_t op = WEFT_OP_INIT;
        memset(ops, 0, sizeof ops);
        for (unsigned k = 0; k < WINDOW; k++)
            CHECK_OK(k % 4 == 0   ? weft_rma_atomic(p->remote, WEFT_RMA_ADD, 0, 8, p->i + 1, 0, &ops[k])
                     : k % 4 == 1 ? weft_rma_write(p->remote, BLOCK, mine, BLOCK, &ops[k])
                     : k % 4 == 2 ? weft_rma_read(p->remote, BLOCK, blocks[k], BLOCK, &ops[k])
                                  : weft_rma_atomic(p->remote, WEFT_RMA_ADD, 8, 4, 1, 0, &ops[k]));
        for (unsigned k = 0; k < WINDOW; k++) {
            CHECK_OK(spread_done(WEFT_OK, &ops[k]));
            for (size_t n = 1; k % 4 == 2 && n < BLOCK; n++)
                if (blocks[k][n] != blocks[k][0])
                    FAIL("byte %zu is %u, and the first is %u", n, blocks[k][n], blocks[k][0]);
        }
        if (i % 8)
            continue;
        memset(big, (int)(p->i * 16 + i), sizeof big);
        CHECK_OK(spread_done(weft_rma_write(p->remote, BIGS + (uint64_t)p->i * BIG, big, BIG, &op), &op));
        CHECK_OK(spread_done(weft_rma_read(p->remote, BIGS + (uint64_t)p->i * BIG, again, BIG, &op), &op));
        CHECK(!memcmp(big, again, BIG));
    }
    return NULL;
}

static void freed(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_region_free(region, &op));
    CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
}

static const char *const ways[] = {"tcp", "shm"};
#define each_way(way) for (const char *const *way = ways; way < ways + 2; way++)

TEST(peers_of_all_shards_use_memory_of_a_device)
{
    each_way(way) {
        uint64_t sum;
        uint32_t n;
        begin(*way);
        cu.paper->copy_ns = 20000;
        all_do(everything);
        join_all();
        cu.paper->copy_ns = 0;
        freed();
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)memory, LEN), 0);
        memcpy(&sum, back, sizeof sum);
        memcpy(&n, back + 8, sizeof n);
        CHECK_EQ(sum, (uint64_t)2 * EACH * PEERS * (PEERS + 1) / 2);
        CHECK_EQ(n, 2 * EACH * PEERS);
        end();
    }
}

static void *until_it_fails(void *arg)
{
    peer_t *p = arg;
    static _Thread_local uint8_t buf[BIG];
    for (unsigned i = 0; !p->ended; i++) {
        weft_op_t op = WEFT_OP_INIT;
        p->ended = spread_done(i % 3 == 0   ? weft_rma_atomic(p->remote, WEFT_RMA_ADD, 0, 8, 1, 0, &op)
                               : i % 3 == 1 ? weft_rma_write(p->remote, BIGS + (uint64_t)p->i * BIG, buf, i % 4 ? 100 : BIG, &op)
                                            : weft_rma_read(p->remote, BIGS + (uint64_t)p->i * BIG, buf, i % 4 ? 100 : BIG, &op),
                               &op);
    }
    return NULL;
}

TEST(a_free_waits_for_the_device)
{
    each_way(way) {
        begin(*way);
        cu.paper->copy_ns = 50000;
        all_do(until_it_fails);
        usleep(50000);
        freed();
        CHECK_EQ(cu.MemsetD8((uintptr_t)memory, 0, LEN), 0);
        join_all();
        cu.paper->copy_ns = 0;
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)memory, LEN), 0);
        for (size_t i = 0; i < LEN; i++)
            CHECK_EQ(back[i], 0);
        for (unsigned i = 0; i < PEERS; i++)
            CHECK_EQ(peers[i].ended, WEFT_ERR_STALE);
        end();
    }
}
