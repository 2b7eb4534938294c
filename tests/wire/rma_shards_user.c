/* Remotes on a runtime with several shards: each belongs to the shard of its endpoint, and any thread uses it; they outlive the
 * runtime. ctest: tls timeout=120 label=thread */
#define TEST_SECONDS 100
#include "ports.h"
#include "test.h"
#include "lib/spread.h"

#include <weft/weft.h>

enum { SHARDS = 4, EACH = 60 };

typedef struct way {
    const char *transports;
    weft_rma_path_t path;
} way_t;
static const way_t ways[] = {{"tcp", WEFT_RMA_CHECKED}, {"shm", WEFT_RMA_CHECKED}, {"shm", WEFT_RMA_MAPPED}};
#define each_way(w) for (const way_t *w = ways; w < ways + sizeof ways / sizeof ways[0]; w++)

TEST(remotes_on_endpoints_of_any_shard)
{
    each_way(w) {
        weft_listener_t *listener;
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *region;
        weft_op_t op = WEFT_OP_INIT;
        weft_runtime_t *owner = spread_runtime(SHARDS, w->transports, WEFT_PROGRESS_THREAD);
        CHECK_OK(weft_listen(owner, ports_tcp(), NULL, &listener));
        o.len = 4096;
        o.name = "mem";
        CHECK_OK(weft_region_new(owner, &o, &region));
        weft_runtime_t *user = spread_runtime(SHARDS, w->transports, WEFT_PROGRESS_THREAD);
        weft_ep_t *eps[2 * SHARDS];
        weft_remote_t *remotes[2 * SHARDS];
        static weft_op_t ops[2 * SHARDS][EACH];
        memset(ops, 0, sizeof ops);
        for (unsigned i = 0; i < 2 * SHARDS; i++) {
            CHECK_OK(weft_ep_connect(user, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &eps[i]));
            CHECK_OK(spread_attach(eps[i], "mem", w->path, &remotes[i]));
        }
        for (unsigned k = 0; k < EACH; k++)
            for (unsigned i = 0; i < 2 * SHARDS; i++)
                CHECK_OK(weft_rma_atomic(remotes[i], WEFT_RMA_ADD, 0, 8, i + 1, 0, &ops[i][k]));
        for (unsigned k = 0; k < EACH; k++)
            for (unsigned i = 0; i < 2 * SHARDS; i++)
                CHECK_OK(spread_done(WEFT_OK, &ops[i][k]));
        CHECK_OK(weft_region_revoke(region, &op));
        CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
        CHECK_EQ(*(uint64_t *)weft_region_base(region), (uint64_t)EACH * SHARDS * (2 * SHARDS + 1));
        for (unsigned i = 0; i < 2 * SHARDS; i += 2)
            weft_remote_drop(remotes[i]);
        CHECK_OK(weft_runtime_close(user));
        for (unsigned i = 1; i < 2 * SHARDS; i += 2)
            weft_remote_drop(remotes[i]);
        CHECK_OK(weft_runtime_close(owner));
    }
}
