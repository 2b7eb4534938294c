/* A client that sends whatever it likes to a memory server: bytes that are no request, lengths that overflow, names with odd
 * bytes, blocks and ids of others, requests without end whose replies it never takes, clients without end; and a server that
 * answers so. The worst that happens is that it loses its own connection: an honest client keeps its blocks, their bytes, and
 * the server's attention.
 *
 * ctest: tls-long timeout=300 */
#define TEST_SECONDS 120
#include "base/rng.h"
#include "store/wire.h"
#include "ports.h"
#include "test.h"
#include "weft/elements.h"
#include "weft/weft.h"

#define PAGE 4096u

enum { SERVER, HONEST, HOSTILE, ALL };
static weft_runtime_t *rt[ALL];
static weft_listener_t *listener;
static weft_store_server_t *server;
static weft_ep_t *ep[ALL]; /* to the server */
static weft_store_t *store;
static weft_block_t *block;
static uint8_t me[WEFT_STORE_ID]; /* the hostile one's id */
static bool deaf;                 /* it does not make progress */

static void drive(void)
{
    for (int i = 0; i < ALL; i++)
        if (i != HOSTILE || !deaf)
            weft_runtime_progress(rt[i]);
}

static weft_status_t done(weft_status_t st, weft_op_t *op)
{
    if (st)
        return st;
    for (double end = test_now() + 20; !weft_op_done(op);) {
        drive();
        CHECK(test_now() < end);
    }
    return op->status;
}

static void take(weft_listener_t *l, weft_ep_t *accepted, void *user)
{
    (void)l, (void)accepted, (void)user;
}

static void connect_to_server(int who)
{
    weft_op_t op = WEFT_OP_INIT;
    if (ep[who])
        weft_ep_abort(ep[who], NULL);
    CHECK_OK(done(weft_ep_open(rt[who], weft_listener_uri(listener), NULL, &op, &ep[who]), &op));
}

static void begin(const char *transports)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_block_opts_t bo = WEFT_BLOCK_OPTS_INIT;
    o.transports = transports;
    o.progress = WEFT_PROGRESS_CALLER;
    so.bytes = 4 << 20;
    so.client_bytes = 1 << 20;
    so.clients = 100;
    lo.accept = take;
    for (int i = 0; i < ALL; i++)
        CHECK_OK(weft_runtime_open(&o, &rt[i]));
    CHECK_OK(weft_listen(rt[SERVER], ports_tcp(), &lo, &listener));
    CHECK_OK(weft_store_serve(rt[SERVER], &so, &server));
    connect_to_server(HONEST);
    connect_to_server(HOSTILE);
    CHECK_OK(done(weft_store_open(ep[HONEST], NULL, &op), &op));
    store = op.buf;
    bo.len = 2 * PAGE;
    bo.name = "mine";
    CHECK_OK(done(weft_block_alloc(store, &bo, &op), &op));
    block = op.buf;
    CHECK_OK(done(weft_rma_write(weft_block_remote(block), 0, "value", 6, &op), &op));
    memset(me, 0x66, sizeof me);
}

/* The honest one notices nothing. */
static void check_honest(void)
{
    weft_op_t op = WEFT_OP_INIT;
    char in[6] = "";
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    CHECK_OK(weft_store_get_info(store, &info));
    CHECK_OK(info.state);
    CHECK_OK(done(weft_rma_read(weft_block_remote(block), 0, in, sizeof in, &op), &op));
    CHECK_STR(in, "value");
    CHECK_OK(done(weft_store_renew(store, &op), &op));
    CHECK_OK(done(weft_block_open(store, "mine", &op), &op));
    CHECK_EQ(op.len, 2 * PAGE);
    weft_block_drop(op.buf);
}

static void finish(void)
{
    weft_op_t op = WEFT_OP_INIT;
    check_honest();
    CHECK_OK(done(weft_block_free(block, &op), &op));
    CHECK_OK(done(weft_store_close(store, &op), &op));
    CHECK_OK(done(weft_store_server_close(server, &op), &op));
    for (int i = 1; i < ALL; i++)
        weft_ep_abort(ep[i], NULL);
    CHECK_OK(weft_listener_close(listener, NULL));
    for (int i = ALL - 1; i >= 0; i--)
        CHECK_OK(weft_runtime_close(rt[i]));
    memset(ep, 0, sizeof ep);
}

static weft_status_t raw_send(const void *bytes, size_t n)
{
    return weft_am_send(ep[HOSTILE], STORE_AM_REQUEST, bytes, n, NULL, 0, NULL);
}

static weft_status_t send_request(store_request_t q)
{
    uint8_t bytes[STORE_REQUEST_MAX];
    memcpy(q.client, me, sizeof me);
    size_t n = wefti_store_put_request(&q, bytes, sizeof bytes);
    CHECK(n > 0);
    return raw_send(bytes, n);
}

static bool hostile_is_up(void)
{
    return weft_ep_get_state(ep[HOSTILE]) == WEFT_EP_UP;
}

static void run(double seconds)
{
    for (double end = test_now() + seconds; test_now() < end;)
        drive();
}

static weft_store_stats_t stats(void)
{
    weft_store_stats_t s = WEFT_STORE_STATS_INIT;
    CHECK_OK(weft_store_server_get_stats(server, &s));
    return s;
}

TEST(bytes_that_are_no_request_cost_the_connection_and_nothing_else)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        begin(transports[t]);
        wefti_rng_t rng = {7};
        uint8_t junk[2000];
        for (int i = 0; i < 60; i++) {
            for (size_t k = 0; k < sizeof junk; k++)
                junk[k] = (uint8_t)wefti_rng_next(&rng);
            junk[8] = (uint8_t)(1 + i % (STORE_KINDS - 1));
            junk[9] = 0x80;
            if (raw_send(junk, i % 3 ? wefti_rng_below(&rng, 60) : wefti_rng_below(&rng, sizeof junk)))
                break;
            double end = test_now() + 10;
            while (hostile_is_up()) {
                drive();
                CHECK(test_now() < end);
            }
            connect_to_server(HOSTILE);
        }
        /* a request with a payload behind it is none either */
        store_request_t q = {.kind = STORE_OPEN};
        size_t n = wefti_store_put_request(&q, junk, sizeof junk);
        CHECK_OK(weft_am_send(ep[HOSTILE], STORE_AM_REQUEST, junk, n, "payload", 7, NULL));
        for (double end = test_now() + 10; hostile_is_up();) {
            drive();
            CHECK(test_now() < end);
        }
        finish();
    }
}

/* Well-formed as far as it can be told, and otherwise anything. */
TEST(requests_with_any_numbers_in_them_do_no_harm)
{
    begin("tcp");
    wefti_rng_t rng = {11};
    static const uint64_t numbers[] = {0,
                                       1,
                                       4095,
                                       4096,
                                       1 << 20,
                                       (1 << 20) + 1,
                                       UINT64_C(1) << 32,
                                       UINT64_C(1) << 56,
                                       UINT64_C(1) << 63,
                                       UINT64_MAX - 4095,
                                       UINT64_MAX};
    static const char *const names[] = {"", "mine", "a", "m\n", "\xff\xfe", "theirs", "mine2"};
#define NUMBER() \
    (wefti_rng_below(&rng, 4) ? numbers[wefti_rng_below(&rng, sizeof numbers / sizeof *numbers)] : wefti_rng_next(&rng))
    for (int i = 0; i < 6000; i++) {
        store_request_t q = {.id = (uint64_t)i, .kind = (uint8_t)(1 + wefti_rng_below(&rng, STORE_KINDS - 1))};
        if (q.kind == STORE_ALLOC)
            q.flags = (uint8_t)wefti_rng_below(&rng, 2);
        q.lease_ns = NUMBER();
        q.block = wefti_rng_below(&rng, 2) ? NUMBER() : (wefti_rng_below(&rng, 6) << 32 | wefti_rng_below(&rng, 6));
        q.len = NUMBER();
        q.max_len = wefti_rng_below(&rng, 2) ? 0 : NUMBER();
        q.epoch = NUMBER();
        q.stamp = NUMBER();
        q.name = names[wefti_rng_below(&rng, 7)];
        q.name_len = (uint8_t)strlen(q.name);
        q.after = names[wefti_rng_below(&rng, 7)];
        q.after_len = (uint8_t)strlen(q.after);
        q.rec = (wefti_replica_t){
            .epoch = NUMBER(), .len = NUMBER(), .lease_ns = WEFT_MILLISECOND, .flags = (uint32_t)wefti_rng_below(&rng, 16)};
        if (q.kind == STORE_CLOSE && wefti_rng_below(&rng, 8))
            q.kind = STORE_OPEN;
        /* "mine" is not shared: nobody else removes it */
        if (send_request(q))
            connect_to_server(HOSTILE);
        drive();
        if (i % 500 == 0)
            check_honest();
    }
    run(0.2);
    CHECK(stats().used_bytes <= 4 << 20);
    CHECK(stats().refused > 100);
    finish();
}

TEST(blocks_and_clients_of_others_are_out_of_reach)
{
    begin("tcp");
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    CHECK_OK(weft_store_get_info(store, &info));
    CHECK_OK(send_request((store_request_t){.kind = STORE_OPEN, .id = 1}));
    for (uint64_t generation = 0; generation < 8; generation++)
        for (uint64_t index = 0; index < 16; index++) {
            CHECK_OK(send_request((store_request_t){.kind = STORE_FREE, .block = generation << 32 | index}));
            CHECK_OK(send_request((store_request_t){.kind = STORE_EXTEND, .block = generation << 32 | index, .len = 9 * PAGE}));
            run(0.001);
        }
    CHECK_OK(send_request((store_request_t){.kind = STORE_REMOVE, .name = "mine", .name_len = 4}));
    /* even who knows another's id is refused over its own endpoint */
    memcpy(me, info.id, sizeof me);
    CHECK_OK(send_request((store_request_t){.kind = STORE_REMOVE, .name = "mine", .name_len = 4}));
    CHECK_OK(send_request((store_request_t){.kind = STORE_CLOSE}));
    run(0.1);
    CHECK(hostile_is_up());
    CHECK_EQ(stats().blocks, 1);
    CHECK_EQ(stats().frees, 0);
    finish();
}

TEST(requests_without_end_whose_replies_are_not_taken_cost_the_connection)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        begin(transports[t]);
        CHECK_OK(send_request((store_request_t){.kind = STORE_OPEN, .id = 1}));
        run(0.05);
        deaf = true;
        uint64_t sent = 0;
        for (double end = test_now() + 30; hostile_is_up() && sent < 200000 && test_now() < end; sent++) {
            store_request_t q = {.kind = STORE_QUERY, .id = sent};
            weft_status_t st = send_request(q);
            if (st == WEFT_ERR_AGAIN && sent > 50000)
                break; /* it is held by its window: that is an end too */
            drive();
            if (sent % 2000 == 0) {
                weft_runtime_progress(rt[HOSTILE]); /* enough to send, not enough to be served well */
                check_honest();
            }
        }
        deaf = false;
        finish();
    }
}

TEST(clients_without_end_do_not_use_up_the_places_of_others)
{
    begin("tcp");
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 200; i++) {
            memset(me, i, sizeof me);
            me[0] = (uint8_t)round;
            CHECK_OK(send_request((store_request_t){.kind = STORE_OPEN, .id = (uint64_t)i, .lease_ns = WEFT_SECOND * 3600}));
            if (i % 16 == 0)
                run(0.002);
        }
        run(0.05);
        CHECK_EQ(stats().clients, 1 + 64);
        weft_op_t op = WEFT_OP_INIT; /* there is room for others */
        CHECK_OK(done(weft_store_open(ep[HONEST], NULL, &op), &op));
        CHECK_OK(done(weft_store_close(op.buf, &op), &op));
        connect_to_server(HOSTILE);
        for (double end = test_now() + 10; stats().clients > 1;) {
            drive();
            CHECK(test_now() < end);
        }
    }
    finish();
}

/* The hostile one serves. */
static weft_ep_t *victim;
static void taken(weft_listener_t *l, weft_ep_t *accepted, void *user)
{
    (void)l, (void)user;
    victim = accepted;
}

/* The honest one asks the hostile one for a store, whose answer is the test's. */
static weft_listener_t *ask_hostile(weft_op_t *open, weft_ep_t **there)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *trap;
    lo.accept = taken;
    CHECK_OK(weft_listen(rt[HOSTILE], ports_tcp(), &lo, &trap));
    victim = NULL;
    CHECK_OK(done(weft_ep_open(rt[HONEST], weft_listener_uri(trap), NULL, &op, there), &op));
    for (double end = test_now() + 10; !victim;) {
        drive();
        CHECK(test_now() < end);
    }
    deaf = true; /* its library must not answer before we do */
    CHECK_OK(weft_store_open(*there, NULL, open));
    run(0.01);
    return trap;
}

TEST(a_failure_that_only_a_newer_server_knows_is_a_failure_of_that_request)
{
    begin("tcp");
    weft_op_t open = WEFT_OP_INIT;
    weft_ep_t *there;
    weft_listener_t *trap = ask_hostile(&open, &there);
    uint8_t bytes[64];
    int16_t newer = -77;
    store_reply_t p = {.id = UINT64_C(1) << 32, .kind = STORE_OPEN, .status = WEFT_ERR_LIMIT};
    size_t n = wefti_store_put_reply(&p, bytes, sizeof bytes);
    memcpy(bytes + 10, &newer, sizeof newer);
    CHECK_OK(weft_am_send(victim, STORE_AM_REPLY, bytes, n, NULL, 0, NULL));
    deaf = false;
    for (double end = test_now() + 10; !weft_op_done(&open);) {
        drive();
        CHECK(test_now() < end);
    }
    CHECK_EQ(open.status, WEFT_ERR_REJECTED);
    CHECK_EQ(open.reason, 77);
    run(0.05);
    CHECK_EQ(weft_ep_get_state(there), WEFT_EP_UP);
    check_honest();
    weft_ep_abort(there, NULL);
    weft_ep_abort(victim, NULL);
    CHECK_OK(weft_listener_close(trap, NULL));
    finish();
}

TEST(replies_that_are_none_cost_the_connection_to_that_server_only)
{
    for (int how = 0; how < 40; how++) {
        begin("tcp");
        weft_op_t open = WEFT_OP_INIT;
        weft_ep_t *there;
        weft_listener_t *trap = ask_hostile(&open, &there);
        uint8_t bytes[256] = {0};
        wefti_rng_t rng = {(uint64_t)how};
        store_reply_t p = {.id = UINT64_C(1) << 32, .kind = (uint8_t)(1 + how % (STORE_KINDS - 1)), .flags = STORE_BODY};
        p.rec.lease_ns = WEFT_SECOND;
        size_t n = wefti_store_put_reply(&p, bytes, sizeof bytes);
        for (int k = 0; how > 20 && k < 6; k++)
            bytes[8 + wefti_rng_below(&rng, n - 8)] = (uint8_t)wefti_rng_next(&rng);
        CHECK_OK(weft_am_send(victim, STORE_AM_REPLY, bytes, n, NULL, 0, NULL));
        deaf = false;
        for (double end = test_now() + 10; !weft_op_done(&open);) {
            drive();
            CHECK(test_now() < end);
        }
        if (!open.status)
            weft_store_leave(open.buf);
        check_honest();
        weft_ep_abort(there, NULL);
        weft_ep_abort(victim, NULL);
        CHECK_OK(weft_listener_close(trap, NULL));
        finish();
    }
}
