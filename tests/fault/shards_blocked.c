/* A handler holds up its shard for ten seconds, ten times as long as a peer may be silent: no peer is lost, no other shard waits,
 * and what came meanwhile is done afterwards.
 * ctest: tls-long long timeout=300 label=thread */
#define TEST_SECONDS 200
#include "ports.h"
#include "test.h"

#include <stdatomic.h>
#include <weft/weft.h>

enum { SHARDS = 4, PEERS = 12, ROUNDS = 20 };
#define ADD "add(a: i32, b: i32) -> i32"
#define BLOCKED 10.0 /* seconds */

static weft_runtime_t *server, *client;
static weft_ep_t *eps[PEERS];
static weft_method_t *methods[PEERS];
static _Atomic unsigned shard_of[PEERS]; /* 1 more than its number */
static _Atomic bool blocks, over;

static void handler(weft_am_t *am, void *user)
{
    uint32_t from;
    (void)user;
    CHECK_EQ(am->header_len, sizeof from);
    memcpy(&from, am->header, sizeof from);
    if (from < PEERS) {
        atomic_store(&shard_of[from], weft_runtime_shard(server) + 1);
        return;
    }
    atomic_store(&blocks, true);
    for (double end = test_now() + BLOCKED; test_now() < end;)
        usleep(100000);
    atomic_store(&over, true);
}

static void add(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    CHECK_OK(weft_request_reply(request, &sum, 1));
}

static void tell(weft_ep_t *ep, uint32_t what)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_am_send(ep, 5, &what, sizeof what, NULL, 0, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
}

static weft_runtime_t *opens(uint32_t shards, const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.shards = shards;
    o.progress = WEFT_PROGRESS_THREAD;
    o.heartbeat_ns = WEFT_SECOND;
    o.transports = transports;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static void begin(const char *transports)
{
    weft_listener_t *listener;
    weft_service_t *service;
    server = opens(SHARDS, transports);
    client = opens(1, transports);
    CHECK_OK(weft_am_handle(server, 5, handler, NULL, NULL));
    CHECK_OK(weft_service_open(server, "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &listener));
    for (uint32_t i = 0; i < PEERS; i++) {
        weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
        weft_client_t *c;
        co.service = "calc";
        CHECK_OK(weft_ep_connect(client, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &eps[i]));
        CHECK_OK(weft_client_on(eps[i], &co, &c));
        CHECK_OK(weft_client_method(c, ADD, &methods[i]));
        tell(eps[i], i);
    }
    for (int i = 0; i < PEERS; i++)
        TEST_UNTIL(atomic_load(&shard_of[i]), 30);
}

static void call(int i, weft_op_t *op, weft_reply_t *reply, weft_value_t args[2])
{
    args[0] = weft_i32(i);
    args[1] = weft_i32(1000);
    *op = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_call(methods[i], args, 2, reply, op));
}

static void answered(int i, weft_op_t *op, weft_reply_t *reply)
{
    CHECK_OK(weft_op_wait(op, 60 * WEFT_SECOND));
    CHECK_EQ(reply->code, 0);
    CHECK_EQ(reply->values[0].i32, i + 1000);
    weft_reply_release(reply);
}

static void blocked(const char *transports)
{
    static weft_op_t ops[PEERS];
    static weft_reply_t replies[PEERS];
    static weft_value_t args[PEERS][2];
    unsigned others = 0, held = 0;
    begin(transports);
    unsigned which = atomic_load(&shard_of[PEERS / 2]);
    tell(eps[PEERS / 2], PEERS);
    TEST_UNTIL(atomic_load(&blocks), 30);
    for (int i = 0; i < PEERS; i++) /* what waits for the blocked one is there the whole time */
        if (atomic_load(&shard_of[i]) == which) {
            call(i, &ops[i], &replies[i], args[i]);
            held++;
        }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PEERS; i++) {
            weft_op_t op;
            weft_reply_t reply;
            weft_value_t two[2];
            if (atomic_load(&shard_of[i]) == which)
                continue;
            call(i, &op, &reply, two);
            answered(i, &op, &reply);
            others++;
        }
        usleep(50000);
    }
    CHECK(!atomic_load(&over)); /* all of that while it was blocked */
    CHECK(others >= ROUNDS && held >= 1);
    TEST_UNTIL(atomic_load(&over), BLOCKED + 30);
    for (int i = 0; i < PEERS; i++)
        if (atomic_load(&shard_of[i]) == which)
            answered(i, &ops[i], &replies[i]);
    for (int i = 0; i < PEERS; i++)
        CHECK_EQ(weft_ep_get_state(eps[i]), WEFT_EP_UP);
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(server, &s));
    CHECK_EQ(s.endpoints_failed, 0);
    CHECK_OK(weft_runtime_get_stats(client, &s));
    CHECK_EQ(s.endpoints_failed, 0);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

TEST(a_handler_that_blocks_over_tcp)
{
    blocked("tcp");
}

TEST(a_handler_that_blocks_over_shared_memory)
{
    blocked("shm");
}
