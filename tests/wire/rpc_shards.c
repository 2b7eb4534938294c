/* Services on a runtime with several shards: their functions run on the shard of the caller, one at a time, or on threads; what
 * was added once is handed back once; ends come while calls run. ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 260
#include "ports.h"
#include "test.h"
#include "lib/spread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <weft/weft.h>

enum { SHARDS = 4, PEERS = 8, CALLS = 400 }; /* the last test has twice as many shards */
#define ADD "add(a: i32, b: i32) -> i32"
#define SLOW "slow(a: i32, b: i32) -> i32"

static weft_runtime_t *server, *caller;
static weft_listener_t *listener;
static weft_service_t *service;
static weft_client_t *clients[PEERS];
static weft_method_t *methods[PEERS];

static void begin(const char *transports, uint32_t shards, const weft_service_opts_t *so)
{
    server = spread_runtime(shards, transports, WEFT_PROGRESS_THREAD);
    caller = spread_runtime(1, transports, WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &listener));
    CHECK_OK(weft_service_open(server, "calc", so, &service));
}

static void bind_all(const char *signature)
{
    for (int i = 0; i < PEERS; i++) {
        weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
        weft_ep_t *ep;
        CHECK_OK(weft_ep_connect(caller, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &ep));
        co.service = "calc";
        CHECK_OK(weft_client_on(ep, &co, &clients[i]));
        CHECK_OK(weft_client_method(clients[i], signature, &methods[i]));
    }
}

static void end(void)
{
    CHECK_OK(weft_runtime_close(caller));
    CHECK_OK(weft_runtime_close(server));
}

static weft_service_stats_t stats(void)
{
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(service, &s));
    return s;
}

static const char *const ways[] = {"tcp", "shm"};
#define each_way(way) for (const char *const *way = ways; way < ways + 2; way++)

static void call_all(void)
{
    static weft_op_t ops[PEERS][CALLS];
    static weft_reply_t replies[PEERS][CALLS];
    static weft_value_t args[PEERS][CALLS][2];
    memset(ops, 0, sizeof ops);
    memset(replies, 0, sizeof replies);
    for (int k = 0; k < CALLS; k++)
        for (int i = 0; i < PEERS; i++) {
            args[i][k][0] = weft_i32(k);
            args[i][k][1] = weft_i32(1000 * i);
            CHECK_OK(weft_call(methods[i], args[i][k], 2, &replies[i][k], &ops[i][k]));
        }
    for (int k = 0; k < CALLS; k++)
        for (int i = 0; i < PEERS; i++) {
            CHECK_OK(weft_op_wait(&ops[i][k], 60 * WEFT_SECOND));
            CHECK_EQ(replies[i][k].code, 0);
            CHECK_EQ(replies[i][k].values[0].i32, k + 1000 * i);
            weft_reply_release(&replies[i][k]);
        }
}

/* --- where functions run -------------------------------------------------------------------------------------------------- */

/* The runtime may be closing. */
static void answer(weft_request_t *request, const weft_value_t *sum)
{
    weft_status_t st = weft_request_reply(request, sum, 1);
    if (st && st != WEFT_ERR_CANCELLED)
        FAIL("an answer: %s (%s)", weft_status_name(st), weft_last_error());
}

static _Atomic unsigned ran_on[2 * SHARDS], inside, most;

static void add(weft_request_t *request, void *user)
{
    CHECK(request->service == service);
    CHECK(request->shard < weft_runtime_shards(server));
    CHECK_EQ(weft_runtime_shard(server), request->shard);
    (void)user;
    atomic_fetch_add(&ran_on[request->shard], 1);
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    answer(request, &sum);
}

TEST(a_function_runs_on_the_shard_of_its_caller)
{
    each_way(way) {
        memset((void *)ran_on, 0, sizeof ran_on);
        begin(*way, SHARDS, NULL);
        CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
        bind_all(ADD);
        call_all();
        for (int k = 0; k < SHARDS; k++)
            CHECK(atomic_load(&ran_on[k]) > 0);
        CHECK_EQ(stats().requests, PEERS * CALLS);
        CHECK_EQ(stats().answered, PEERS * CALLS);
        end();
    }
}

static void one_at_a_time(weft_request_t *request, void *user)
{
    unsigned n = atomic_fetch_add(&inside, 1) + 1;
    (void)user;
    CHECK_EQ(weft_runtime_shard(server), 0);
    if (n > atomic_load(&most))
        atomic_store(&most, n);
    sched_yield();
    atomic_fetch_add(&ran_on[request->shard], 1);
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    atomic_fetch_sub(&inside, 1);
    answer(request, &sum);
}

TEST(a_serial_function_runs_one_at_a_time_whatever_shard_its_callers_have)
{
    each_way(way) {
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        memset((void *)ran_on, 0, sizeof ran_on);
        atomic_store(&most, 0);
        begin(*way, SHARDS, NULL);
        fo.serial = true;
        CHECK_OK(weft_service_add(service, ADD, one_at_a_time, NULL, &fo));
        fo.threads = true;
        CHECK_EQ(weft_service_add(service, SLOW, one_at_a_time, NULL, &fo), WEFT_ERR_INVALID);
        bind_all(ADD);
        call_all();
        CHECK_EQ(atomic_load(&most), 1);
        for (int k = 0; k < SHARDS; k++)
            CHECK(atomic_load(&ran_on[k]) > 0);
        end();
    }
}

static void on_a_thread(weft_request_t *request, void *user)
{
    (void)user;
    CHECK_EQ(weft_runtime_shard(server), UINT32_MAX);
    usleep(10);
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    answer(request, &sum);
}

TEST(all_shards_use_the_threads_of_the_service)
{
    each_way(way) {
        weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        so.threads = 3;
        fo.threads = true;
        begin(*way, SHARDS, &so);
        CHECK_OK(weft_service_add(service, ADD, on_a_thread, NULL, &fo));
        bind_all(ADD);
        call_all();
        TEST_UNTIL(!stats().under_way, 30);
        CHECK_EQ(stats().answered, PEERS * CALLS);
        end();
    }
}

/* Calls with -1 hold their thread until they are let go. */
static _Atomic bool let_go;
static _Atomic unsigned n_held;
static void may_hold(weft_request_t *request, void *user)
{
    (void)user;
    if (request->args[0].i32 < 0) {
        atomic_fetch_add(&n_held, 1);
        while (!atomic_load(&let_go))
            usleep(100);
    }
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    answer(request, &sum);
}

TEST(a_thread_that_is_held_up_stops_no_shard)
{
    each_way(way) {
        weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        static weft_op_t ops[PEERS];
        static weft_reply_t replies[PEERS];
        const weft_value_t two[2] = {weft_i32(-1), weft_i32(0)};
        memset(ops, 0, sizeof ops);
        memset(replies, 0, sizeof replies);
        atomic_store(&let_go, false);
        atomic_store(&n_held, 0);
        so.threads = PEERS + 1;
        fo.threads = true;
        begin(*way, SHARDS, &so);
        CHECK_OK(weft_service_add(service, ADD, may_hold, NULL, &fo));
        bind_all(ADD);
        for (int i = 0; i < PEERS; i++) /* all but one thread, from all shards */
            CHECK_OK(weft_call(methods[i], two, 2, &replies[i], &ops[i]));
        call_all(); /* among them and after them */
        TEST_UNTIL(atomic_load(&n_held) == PEERS, 30);
        call_all();
        for (int i = 0; i < PEERS; i++)
            CHECK(!weft_op_done(&ops[i]));
        atomic_store(&let_go, true);
        for (int i = 0; i < PEERS; i++) {
            CHECK_OK(weft_op_wait(&ops[i], 60 * WEFT_SECOND));
            weft_reply_release(&replies[i]);
        }
        end();
    }
}

/* --- handed over and back ------------------------------------------------------------------------------------------------- */

static _Atomic unsigned released;

static void release(void *buf, void *user)
{
    CHECK(buf == &released);
    CHECK(!user);
    atomic_fetch_add(&released, 1);
}

static void removed_while_called(bool remove)
{
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    atomic_store(&released, 0);
    begin("tcp", SHARDS, NULL);
    fo.release = release;
    CHECK_OK(weft_service_add(service, ADD, add, &released, &fo));
    CHECK_EQ(weft_service_add(service, ADD, add, &released, &fo), WEFT_ERR_STATE);
    CHECK_EQ(atomic_load(&released), 0);
    bind_all(ADD);
    call_all();
    if (remove) {
        CHECK_EQ(weft_service_remove(service, "other", NULL), WEFT_ERR_NOTFOUND);
        CHECK_OK(weft_service_remove(service, "add", &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        CHECK_EQ(atomic_load(&released), 1);
        CHECK_OK(weft_service_add(service, ADD, add, &released, &fo)); /* it can come again */
        CHECK_OK(weft_service_close(service, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        CHECK_EQ(atomic_load(&released), 2);
        CHECK_EQ(weft_service_add(service, ADD, add, NULL, NULL), WEFT_ERR_CLOSED);
        weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
        CHECK_EQ(weft_service_get_stats(service, &s), WEFT_ERR_CLOSED);
    }
    end();
    CHECK_EQ(atomic_load(&released), remove ? 2 : 1);
}

TEST(what_was_handed_over_once_is_handed_back_once)
{
    removed_while_called(true);
    removed_while_called(false);
}

TEST(a_service_with_a_name_that_is_taken_is_refused_and_the_first_one_lives)
{
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_service_t *other;
    so.instance = "one";
    begin("tcp", SHARDS, &so);
    CHECK_EQ(weft_service_open(server, "calc", &so, &other), WEFT_ERR_STATE);
    CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
    bind_all(ADD);
    call_all();
    end();
}

/* --- draining and closing ------------------------------------------------------------------------------------------------- */

static _Atomic bool go_on;

static void waits(weft_request_t *request, void *user)
{
    (void)user;
    while (!atomic_load(&go_on))
        usleep(200);
    weft_value_t sum = weft_i32(request->args[0].i32);
    (void)weft_request_reply(request, &sum, 1);
}

TEST(a_drain_waits_for_the_requests_of_every_shard)
{
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_op_t ops[PEERS], drain = WEFT_OP_INIT;
    weft_reply_t replies[PEERS];
    weft_value_t args[PEERS][2];
    so.threads = PEERS;
    fo.threads = true;
    atomic_store(&go_on, false);
    begin("tcp", SHARDS, &so);
    CHECK_OK(weft_service_add(service, SLOW, waits, NULL, &fo));
    bind_all(SLOW);
    for (int i = 0; i < PEERS; i++) {
        args[i][0] = weft_i32(i);
        args[i][1] = weft_i32(0);
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_call(methods[i], args[i], 2, &replies[i], &ops[i]));
    }
    TEST_UNTIL(stats().under_way == PEERS, 30);
    CHECK_OK(weft_service_drain(service, &drain));
    CHECK_EQ(weft_op_wait(&drain, 100 * WEFT_MILLISECOND), WEFT_ERR_PENDING);
    weft_reply_t refused;
    for (int i = 0; i < PEERS; i++) {
        weft_op_t late = WEFT_OP_INIT;
        CHECK_OK(weft_call(methods[i], args[0], 2, &refused, &late));
        (void)weft_op_wait(&late, 30 * WEFT_SECOND);
        CHECK_EQ(refused.code, WEFT_CODE_UNAVAILABLE);
        weft_reply_release(&refused);
    }
    atomic_store(&go_on, true);
    CHECK_OK(weft_op_wait(&drain, 30 * WEFT_SECOND));
    for (int i = 0; i < PEERS; i++) {
        CHECK_OK(weft_op_wait(&ops[i], 30 * WEFT_SECOND));
        CHECK_EQ(replies[i].values[0].i32, i);
        weft_reply_release(&replies[i]);
    }
    end();
}

/* --- limits --------------------------------------------------------------------------------------------------------------- */

TEST(a_limit_of_requests_counts_over_all_shards)
{
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_op_t ops[PEERS];
    weft_reply_t replies[PEERS];
    weft_value_t args[PEERS][2];
    unsigned exhausted = 0;
    so.threads = PEERS;
    so.requests = 3;
    so.peer_percent = 100;
    fo.threads = true;
    atomic_store(&go_on, false);
    begin("tcp", SHARDS, &so);
    CHECK_OK(weft_service_add(service, SLOW, waits, NULL, &fo));
    bind_all(SLOW);
    for (int i = 0; i < PEERS; i++) { /* one after the other, so that the count is exact */
        args[i][0] = weft_i32(i);
        args[i][1] = weft_i32(0);
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_call(methods[i], args[i], 2, &replies[i], &ops[i]));
        if (i < 3)
            TEST_UNTIL(stats().under_way == (unsigned)i + 1, 30);
        else
            (void)weft_op_wait(&ops[i], 30 * WEFT_SECOND);
    }
    atomic_store(&go_on, true);
    for (int i = 0; i < PEERS; i++) {
        (void)weft_op_wait(&ops[i], 30 * WEFT_SECOND);
        exhausted += replies[i].code == WEFT_CODE_RESOURCE_EXHAUSTED;
        weft_reply_release(&replies[i]);
    }
    CHECK_EQ(exhausted, PEERS - 3);
    CHECK_EQ(stats().exhausted, PEERS - 3);
    end();
}

/* --- a shard that is held up ---------------------------------------------------------------------------------------------- */

static void blocks(weft_request_t *request, void *user)
{
    (void)user;
    usleep(3000000); /* it should not: it holds up its shard */
    weft_value_t sum = weft_i32(request->args[0].i32);
    (void)weft_request_reply(request, &sum, 1);
}

TEST(a_function_that_blocks_its_shard_loses_no_peer_and_stops_no_other_shard)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.shards = SHARDS;
    opts.progress = WEFT_PROGRESS_THREAD;
    opts.transports = "tcp";
    opts.heartbeat_ns = WEFT_SECOND;
    CHECK_OK(weft_runtime_open(&opts, &server));
    opts.shards = 1;
    CHECK_OK(weft_runtime_open(&opts, &caller));
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &listener));
    CHECK_OK(weft_service_open(server, "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
    CHECK_OK(weft_service_add(service, SLOW, blocks, NULL, NULL));
    bind_all(ADD);
    weft_method_t *slow;
    weft_op_t held = WEFT_OP_INIT;
    weft_reply_t reply;
    weft_value_t args[2] = {weft_i32(77), weft_i32(0)};
    CHECK_OK(weft_client_method(clients[0], SLOW, &slow));
    CHECK_OK(weft_call(slow, args, 2, &reply, &held));
    usleep(100000);
    unsigned answered = 0;
    for (int i = 1; i < PEERS; i++) { /* those of other shards are answered meanwhile */
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t r;
        op.timeout_ns = WEFT_SECOND;
        CHECK_OK(weft_call(methods[i], args, 2, &r, &op));
        answered += !weft_op_wait(&op, 30 * WEFT_SECOND);
        weft_reply_release(&r);
    }
    CHECK(answered >= PEERS - PEERS / SHARDS - 1); /* all but those that share its shard */
    CHECK_OK(weft_op_wait(&held, 30 * WEFT_SECOND));
    CHECK_EQ(reply.values[0].i32, 77);
    weft_reply_release(&reply);
    call_all();
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(server, &s));
    CHECK_EQ(s.endpoints_failed, 0);
    end();
}

/* --- clients with several connections ------------------------------------------------------------------------------------- */

static weft_client_t *opens_client(uint32_t connections)
{
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    weft_client_t *c;
    co.service = "calc";
    co.connections = connections;
    CHECK_OK(weft_client_open(caller, weft_listener_uri(listener), &co, &c));
    return c;
}

static uint32_t connected(weft_client_t *c)
{
    weft_client_stats_t s = WEFT_CLIENT_STATS_INIT;
    CHECK_OK(weft_client_get_stats(c, &s));
    return s.connected;
}

TEST(a_client_with_several_connections_uses_several_shards)
{
    each_way(way) {
        memset((void *)ran_on, 0, sizeof ran_on);
        begin(*way, SHARDS, NULL);
        CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
        weft_client_t *c = opens_client(SHARDS);
        TEST_UNTIL(connected(c) == SHARDS, 30);
        for (int i = 0; i < PEERS; i++)
            CHECK_OK(weft_client_method(c, ADD, &methods[i]));
        call_all();
        unsigned shards = 0;
        for (int k = 0; k < SHARDS; k++)
            shards += atomic_load(&ran_on[k]) > 0;
        CHECK(shards > 1); /* SHARDS, unless some thread was busy when they connected */
        weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
        weft_client_t *none;
        co.connections = 65;
        CHECK_EQ(weft_client_open(caller, weft_listener_uri(listener), &co, &none), WEFT_ERR_INVALID);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_client_close(c, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        TEST_UNTIL(!weft_runtime_get_stats(server, &s) && !s.connections, 30);
        end();
    }
}

TEST(a_client_of_a_runtime_with_shards_has_a_part_on_each)
{
    each_way(way) {
        memset((void *)ran_on, 0, sizeof ran_on);
        begin(*way, SHARDS, NULL);
        CHECK_OK(weft_runtime_close(caller));
        caller = spread_runtime(3, *way, WEFT_PROGRESS_THREAD);
        CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
        weft_client_t *c = opens_client(1);
        TEST_UNTIL(connected(c) == 3, 30);
        for (int i = 0; i < PEERS; i++)
            CHECK_OK(weft_client_method(c, ADD, &methods[i]));
        CHECK(methods[0] == methods[1]);
        call_all();
        weft_client_stats_t s = WEFT_CLIENT_STATS_INIT;
        CHECK_OK(weft_client_get_stats(c, &s));
        CHECK_EQ(s.calls, PEERS * CALLS);
        CHECK_EQ(s.ok, PEERS * CALLS);
        CHECK_EQ(s.instances, 1);
        for (uint32_t k = 0; k < 3; k++) {
            weft_runtime_stats_t one = WEFT_RUNTIME_STATS_INIT;
            CHECK_OK(weft_runtime_get_shard_stats(caller, k, &one));
            CHECK(one.ams_sent > 0);
        }
        weft_method_t *by_name; /* its signature is the server's */
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t reply;
        weft_value_t args[2] = {weft_i32(1), weft_i32(2)};
        CHECK_OK(weft_client_method(c, "add", &by_name));
        CHECK_OK(weft_method_check(by_name, NULL, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        for (int i = 0; i < 20; i++) {
            CHECK_OK(weft_call_wait(by_name, args, 2, NULL, 30 * WEFT_SECOND, &reply));
            CHECK_EQ(reply.values[0].i32, 3);
            weft_reply_release(&reply);
        }
        CHECK_OK(weft_client_close(c, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        CHECK_EQ(weft_call(methods[0], args, 2, &reply, &op), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_client_close(c, NULL), WEFT_ERR_CLOSED);
        end();
    }
}

/* Cut every connection of this process. */
static void cut_all(void)
{
    for (int fd = 3; fd < 512; fd++) {
        int type;
        socklen_t n = sizeof type, peer_n = sizeof(struct sockaddr_storage);
        struct sockaddr_storage peer;
        if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) && type == SOCK_STREAM &&
            !getpeername(fd, (struct sockaddr *)&peer, &peer_n))
            shutdown(fd, SHUT_RDWR);
    }
}

static _Atomic unsigned once_ran;

static void once(weft_request_t *request, void *user)
{
    atomic_fetch_add(&once_ran, 1);
    waits(request, user);
}

TEST(a_call_made_once_finds_the_shard_that_remembers_it)
{
    for (int round = 0; round < 6; round++) {
        weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        weft_call_opts_t call = WEFT_CALL_OPTS_INIT;
        weft_method_t *m;
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t reply;
        weft_value_t args[2] = {weft_i32(round), weft_i32(0)};
        weft_ep_t *others[3];
        so.threads = 2;
        fo.threads = true;
        call.once = true;
        atomic_store(&once_ran, 0);
        atomic_store(&go_on, false);
        begin("tcp", SHARDS, &so);
        CHECK_OK(weft_service_add(service, SLOW, once, NULL, &fo));
        for (int i = 0; i < round % SHARDS; i++) /* so that the client is on another shard each time */
            CHECK_OK(weft_ep_connect(caller, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &others[i]));
        weft_client_t *c = opens_client(1);
        CHECK_OK(weft_client_method(c, SLOW, &m));
        CHECK_OK(weft_call_with(m, args, 2, &call, &reply, &op));
        TEST_UNTIL(atomic_load(&once_ran) == 1, 30);
        cut_all();
        TEST_UNTIL(connected(c) == 0 || stats().repeated, 30);
        TEST_UNTIL(stats().repeated == 1, 30);
        atomic_store(&go_on, true);
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        CHECK_EQ(reply.values[0].i32, round);
        CHECK_EQ(atomic_load(&once_ran), 1);
        weft_reply_release(&reply);
        end();
    }
}

/* --- closing under load --------------------------------------------------------------------------------------------------- */

static _Atomic bool enough;

static void *calls(void *arg)
{
    weft_method_t *m = arg;
    while (!atomic_load(&enough)) {
        weft_op_t ops[16];
        weft_reply_t replies[16];
        weft_value_t args[16][2];
        memset(ops, 0, sizeof ops);
        memset(replies, 0, sizeof replies);
        int n = 0;
        for (; n < 16; n++) {
            args[n][0] = weft_i32(n);
            args[n][1] = weft_i32(1);
            if (weft_call(m, args[n], 2, &replies[n], &ops[n]))
                break;
        }
        for (int i = 0; i < n; i++) {
            (void)weft_op_wait(&ops[i], 60 * WEFT_SECOND);
            CHECK(weft_op_done(&ops[i]));
            weft_reply_release(&replies[i]);
        }
    }
    return NULL;
}

TEST(a_runtime_of_eight_shards_closes_under_load_many_times)
{
    int rounds = getenv("TEST_WEFT_ROUNDS") ? atoi(getenv("TEST_WEFT_ROUNDS")) : 40;
    for (int round = 0; round < rounds; round++) {
        weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        pthread_t threads[PEERS];
        so.threads = 2;
        begin(round & 1 ? "shm" : "tcp", 8, &so);
        fo.threads = round % 3 == 1;
        fo.serial = round % 3 == 2;
        CHECK_OK(weft_service_add(service, ADD, fo.threads ? on_a_thread : fo.serial ? one_at_a_time : add, NULL, &fo));
        bind_all(ADD);
        atomic_store(&enough, false);
        for (int i = 0; i < PEERS; i++)
            CHECK(!pthread_create(&threads[i], NULL, calls, methods[i]));
        usleep((useconds_t)(round * 997 % 20000));
        if (round & 4) {
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_service_close(service, round & 8 ? &op : NULL));
            if (round & 8)
                CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        }
        CHECK_OK(weft_runtime_close(server));
        atomic_store(&enough, true);
        CHECK_OK(weft_runtime_close(caller));
        for (int i = 0; i < PEERS; i++)
            pthread_join(threads[i], NULL);
    }
}
