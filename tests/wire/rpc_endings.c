/* Calls that end in unusual ways: their service closes while the reply waits for a stream that nobody reads; they are answered
 * while their large arguments were never fetched; they are cancelled beside a call of the peer's that has the same number; their
 * function is replaced while large calls and calls with streams are on their way. ctest: tls timeout=120 shards */
#include <stdatomic.h>

#include "lib/desk.h"
#include "ports.h"
#include "test.h"

enum { LARGE = 300000, MANY = 40 };
static desk_t desk;
static uint8_t bytes[LARGE];

static void flood_sent(weft_op_t *op, void *user)
{
    (void)user;
    free(op);
}

/* More than a client that does not read has credit for, and the answer behind it. */
static void floods(weft_request_t *request, void *user)
{
    weft_request_t *kept = weft_request_keep(request);
    (void)user;
    for (uint64_t i = 0; i < 200; i++) {
        weft_value_t v = weft_u64(i);
        weft_op_t *op = (weft_op_t *)calloc(1, sizeof *op);
        op->fn = flood_sent;
        CHECK_OK(weft_stream_send(kept->stream, &v, op));
    }
    CHECK_OK(weft_request_reply(kept, NULL, 0));
    weft_request_release(kept);
}

TEST(a_reply_that_waits_for_its_stream_when_the_service_closes)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT, close = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_stream_t *stream;
        weft_service_stats_t stats = WEFT_SERVICE_STATS_INIT;
        desk_open(&desk, way, NULL);
        desk_add(&desk, "flood() -> stream u64", floods, NULL);
        CHECK_OK(weft_call_stream(desk_method(&desk, "flood() -> stream u64"), NULL, 0, NULL, &reply, &op, &stream));
        PAIR_UNTIL(&desk.pair, weft_service_get_stats(desk.service, &stats) == WEFT_OK && stats.requests == 1, 20);
        pair_run(&desk.pair, 0.02);
        CHECK(!weft_op_done(&op));
        CHECK_OK(weft_service_close(desk.service, &close));
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        CHECK_EQ(pair_wait(&desk.pair, &op, 20), WEFT_ERR_CALL);
        CHECK_EQ(reply.code, WEFT_CODE_UNAVAILABLE);
        CHECK(reply.ran != WEFT_NOT_RUN);
        weft_reply_release(&reply);
        weft_stream_release(stream);
        CHECK_OK(weft_service_open(desk.pair.rt[0], "calc", NULL, &desk.service)); /* for desk_close() */
        desk_close(&desk);
    }
}

static _Atomic(weft_request_t *) kept;

static void answers_without_looking(weft_request_t *request, void *user)
{
    weft_value_t v = weft_u64(request->fetch_len);
    (void)user;
    weft_request_t *r = weft_request_keep(request);
    CHECK_OK(weft_request_reply(r, &v, 1));
    atomic_store(&kept, r); /* and has it still */
}

TEST(an_answer_to_arguments_that_are_never_fetched)
{
    each_way(way) {
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t v = weft_vector(WEFT_T_U8, bytes, sizeof bytes);
        desk_open(&desk, way, NULL);
        fo.fetch = true;
        atomic_store(&kept, NULL);
        CHECK_OK(weft_service_add(desk.service, "size(v: [u8]) -> u64", answers_without_looking, NULL, &fo));
        op.timeout_ns = WEFT_SECOND;
        double begin = test_now();
        CHECK_OK(weft_call(desk_method(&desk, "size(v: [u8]) -> u64"), &v, 1, &reply, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20)); /* the answer is here; the deadline lets go of the arguments */
        CHECK(test_now() - begin < 10);
        CHECK(reply.values[0].u64 >= sizeof bytes);
        weft_reply_release(&reply);
        PAIR_UNTIL(&desk.pair, atomic_load(&kept) != NULL, 20);
        weft_request_release(atomic_load(&kept));
        desk_close(&desk);
    }
}

static void keeps(weft_request_t *request, void *user)
{
    atomic_store((_Atomic(weft_request_t *) *)user, weft_request_keep(request));
}

/* Two sides call each other over one endpoint, and the first call of each has the same number. */
TEST(a_request_that_is_taken_back_ends_no_call_of_the_peer)
{
    each_way(way) {
        static _Atomic(weft_request_t *) theirs;
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT, peers = WEFT_OP_INIT, close = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT, peers_reply = WEFT_REPLY_INIT;
        weft_service_t *service;
        weft_client_t *client;
        weft_method_t *method;
        weft_value_t v = weft_vector(WEFT_T_U8, bytes, sizeof bytes), args[2] = {weft_i32(1), weft_i32(2)};
        desk_open(&desk, way, NULL);
        desk_add(&desk, DESK_ADD, desk_adds, NULL);
        fo.fetch = true;
        atomic_store(&kept, NULL);
        atomic_store(&theirs, NULL);
        CHECK_OK(weft_service_add(desk.service, "size(v: [u8]) -> u64", keeps, (void *)&kept, &fo));
        CHECK_OK(weft_service_open(desk.pair.rt[1], "back", NULL, &service));
        CHECK_OK(weft_service_add(service, "wait() -> u64", keeps, (void *)&theirs, NULL));
        CHECK_OK(weft_client_on(desk.pair.ep[0], NULL, &client));
        CHECK_OK(weft_client_method(client, "wait() -> u64", &method));
        CHECK_OK(weft_call(method, NULL, 0, &peers_reply, &peers));
        PAIR_UNTIL(&desk.pair, atomic_load(&theirs) != NULL, 20);
        CHECK_OK(weft_call(desk_method(&desk, "size(v: [u8]) -> u64"), &v, 1, &reply, &op));
        PAIR_UNTIL(&desk.pair, atomic_load(&kept) != NULL, 20); /* its data still waits at the caller */
        weft_op_cancel(&op);
        CHECK_EQ(pair_wait(&desk.pair, &op, 20), WEFT_ERR_CANCELLED);
        CHECK_OK(desk_call(&desk, desk_method(&desk, DESK_ADD), args, 2)); /* what was said before it has arrived */
        CHECK(!weft_op_done(&peers));
        v = weft_u64(7);
        CHECK_OK(weft_request_reply(atomic_load(&theirs), &v, 1));
        CHECK_OK(pair_wait(&desk.pair, &peers, 20));
        CHECK_EQ(peers_reply.values[0].u64, 7);
        weft_request_release(atomic_load(&theirs));
        weft_request_release(atomic_load(&kept));
        weft_reply_release(&peers_reply);
        weft_reply_release(&reply);
        CHECK_OK(weft_client_close(client, &close));
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        CHECK_OK(weft_service_close(service, &close));
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        desk_close(&desk);
    }
}

static void counts(weft_request_t *request, void *user)
{
    weft_value_t v = weft_u64(request->args[0].view.n);
    (void)user;
    weft_request_reply(request, &v, 1);
}

TEST(functions_that_are_replaced_under_large_calls)
{
    each_way(way) {
        static weft_op_t ops[MANY];
        static weft_reply_t replies[MANY];
        weft_value_t v = weft_vector(WEFT_T_U8, bytes, sizeof bytes);
        desk_open(&desk, way, NULL);
        desk_add(&desk, "size(v: [u8]) -> u64", counts, NULL);
        weft_method_t *size = desk_method(&desk, "size(v: [u8]) -> u64");
        CHECK_OK(desk_call(&desk, size, &v, 1));
        for (unsigned round = 0; round < 5; round++) {
            for (unsigned i = 0; i < MANY; i++) {
                memset(&ops[i], 0, sizeof ops[i]);
                CHECK_OK(weft_call(size, &v, 1, &replies[i], &ops[i]));
                if (i % 13 == 5) {
                    CHECK_OK(weft_service_remove(desk.service, "size", NULL));
                    desk_add(&desk, "size(v: [u8]) -> u64", counts, NULL);
                    pair_drive(&desk.pair);
                }
            }
            for (unsigned i = 0; i < MANY; i++) {
                if (pair_wait(&desk.pair, &ops[i], 30)) { /* the service's own thread looked in between */
                    CHECK_EQ(way->mode, WEFT_PROGRESS_THREAD);
                    CHECK_EQ(replies[i].code, WEFT_CODE_UNIMPLEMENTED);
                    CHECK_EQ(replies[i].ran, WEFT_NOT_RUN);
                } else {
                    CHECK_EQ(replies[i].values[0].u64, sizeof bytes);
                }
                weft_reply_release(&replies[i]);
            }
        }
        desk_close(&desk);
    }
}

/* The server always says, having begun, that it is gone: an idempotent call is tried as often as it may be, and no more. */
static _Atomic unsigned begun;

static void goes_away(weft_request_t *request, void *user)
{
    (void)user;
    atomic_fetch_add(&begun, 1);
    CHECK_OK(weft_ep_abort(weft_ep_find(desk.pair.rt[0], request->from), NULL));
}

static void accepted(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener, (void)ep, (void)user;
}

TEST(there_is_an_end_to_trying)
{
    static const uint32_t tries[] = {1, 3, 300};
    for (unsigned i = 0; i < 3; i++) {
        weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
        weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
        weft_listener_t *listener;
        weft_client_t *client;
        weft_method_t *m;
        weft_op_t op = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        desk_open(&desk, &pair_ways[0], NULL);
        desk_add(&desk, "leave() -> void idempotent", goes_away, NULL);
        lo.accept = accepted;
        CHECK_OK(weft_listen(desk.pair.rt[0], ports_tcp(), &lo, &listener));
        o.tries = tries[i];
        o.reconnect_ns = 1;
        atomic_store(&begun, 0);
        CHECK_OK(weft_client_open(desk.pair.rt[1], weft_listener_uri(listener), &o, &client));
        CHECK_OK(weft_client_method(client, "leave() -> void idempotent", &m));
        op.timeout_ns = tries[i] > 255 ? 300 * WEFT_MILLISECOND : 0;
        CHECK_OK(weft_call(m, NULL, 0, &reply, &op));
        weft_status_t st = pair_wait(&desk.pair, &op, 30);
        CHECK_EQ(reply.ran, WEFT_MAY_HAVE_RUN);
        if (tries[i] < 255 || st != WEFT_ERR_TIMEOUT) { /* pauses grow: it may not get that far */
            CHECK_EQ(st, WEFT_ERR_PEER);
            CHECK_EQ(reply.tries, tries[i] < 255 ? tries[i] : 255);
        }
        CHECK(atomic_load(&begun) <= reply.tries);
        weft_reply_release(&reply);
        CHECK_OK(weft_client_close(client, &op));
        CHECK_OK(pair_wait(&desk.pair, &op, 20));
        desk_close(&desk);
    }
}
