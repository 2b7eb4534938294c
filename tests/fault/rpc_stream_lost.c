/* The peer of a call with streams is killed, or stopped, in the middle of it: while values come, while they go, while large ones
 * are being fetched, with receives that wait and values that nobody took. Every operation ends within the heartbeat bound, with
 * the call's status; a function whose caller is gone is told; and nobody takes what arrived for the whole.
 *
 * ctest: timeout=300 */
#define TEST_SECONDS 120
#include <signal.h>
#include <weft/service.h>

#include "lib/peer.h"
#include "test.h"

#define BOUND_NS (700 * WEFT_MILLISECOND)
#define BOUND_S (0.7 * 2.6 + 2.5) /* as in am_kill.c */
enum { BIG = 4 << 20 };

#define FLOOD "flood(len: u64) -> stream [u8]"
#define SINK "sink(values: stream [u8]) -> u64"

static const char *const transports[] = {"shm", "tcp"};
static const int signals[] = {SIGKILL, SIGSTOP};
#define EACH_LOSS(t, s) \
    for (unsigned t = 0; t < 2; t++) \
        for (unsigned s = 0; s < 2; s++)

static uint8_t bytes[BIG];

/* --- functions: they never answer ---------------------------------------------------------------------------------- */

typedef struct running {
    weft_request_t *request;
    weft_op_t op[4];
    weft_item_t item;
    uint64_t len;
} running_t;

static unsigned ended, received;
static weft_status_t ended_with;

static void flood_on(weft_op_t *op, void *user)
{
    running_t *r = (running_t *)user;
    weft_value_t value = weft_vector(WEFT_T_U8, bytes, r->len);
    weft_status_t st = op->status ? op->status : weft_stream_send(r->request->stream, &value, op);
    ended += st != WEFT_OK;
    ended_with = st ? st : ended_with;
}

static running_t flooding, sinking;
static void flood(weft_request_t *request, void *user)
{
    (void)user;
    memset(&flooding, 0, sizeof flooding);
    flooding.request = weft_request_keep(request);
    flooding.len = request->args[0].u64;
    for (unsigned i = 0; i < 4; i++) {
        flooding.op[i].fn = flood_on;
        flooding.op[i].user = &flooding;
        flood_on(&flooding.op[i], &flooding);
    }
}

static void sink_on(weft_op_t *op, void *user)
{
    running_t *r = (running_t *)user;
    weft_status_t st = op->status;
    received += !st && op->len;
    if (!st && op->len)
        weft_item_release(&r->item);
    if (!st)
        st = weft_stream_recv(r->request->stream, &r->item, op);
    ended += st != WEFT_OK;
    ended_with = st ? st : ended_with;
}

static void sink(weft_request_t *request, void *user)
{
    memset(&sinking, 0, sizeof sinking);
    sinking.request = weft_request_keep(request);
    sinking.op[0].fn = sink_on;
    sinking.op[0].user = &sinking;
    if (!user) /* else nobody takes anything */
        sink_on(&sinking.op[0], &sinking);
}

static weft_service_t *offer(weft_runtime_t *rt, bool takes)
{
    static int nobody;
    weft_service_t *service;
    CHECK_OK(weft_service_open(rt, "streams", NULL, &service));
    CHECK_OK(weft_service_add(service, FLOOD, flood, NULL, NULL));
    CHECK_OK(weft_service_add(service, SINK, sink, takes ? NULL : &nobody, NULL));
    return service;
}

static void life_serves(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    offer(rt, false);
    peer_live(rt);
}

/* --- we call, and lose the server ---------------------------------------------------------------------------------- */

static weft_method_t *find(peer_t *peer, weft_client_t *client, const char *signature)
{
    weft_method_t *method;
    CHECK_OK(weft_client_method(client, signature, &method));
    weft_status_t st = WEFT_ERR_CALL;
    for (double end = test_now() + 10; st == WEFT_ERR_CALL && test_now() < end;) { /* it may not offer it yet */
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_method_check(method, NULL, &op));
        st = peer_wait(peer, &op, 10);
    }
    CHECK_OK(st);
    return method;
}

static void close_client(peer_t *peer, weft_client_t *client)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_client_close(client, &op));
    CHECK_OK(peer_wait(peer, &op, 10));
}

TEST(a_server_that_sends_is_lost)
{
    static const uint64_t lens[] = {8, 100000, BIG};
    EACH_LOSS(t, s)
    {
        for (unsigned k = 0; k < 3; k++) {
            peer_t peer;
            weft_client_t *client;
            weft_op_t op = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            weft_reply_t reply = WEFT_REPLY_INIT;
            weft_item_t item;
            weft_stream_t *stream;
            weft_value_t len = weft_u64(lens[k]);
            peer_start(&peer, transports[t], BOUND_NS, life_serves);
            CHECK_OK(weft_client_on(peer.ep, NULL, &client));
            weft_method_t *method = find(&peer, client, FLOOD);
            CHECK_OK(weft_call_stream(method, &len, 1, NULL, &reply, &op, &stream));
            for (unsigned i = 0; i < 7; i++) {
                CHECK_OK(weft_stream_recv(stream, &item, &recv));
                CHECK_OK(peer_wait(&peer, &recv, 10));
                CHECK_EQ(item.value.view.n, lens[k]);
                weft_item_release(&item);
            }
            peer_signal(&peer, signals[s]);
            double lost = test_now();
            weft_status_t st = WEFT_OK;
            unsigned more = 0;
            while (!st) { /* what was on its way may still come; never an end */
                st = weft_stream_recv(stream, &item, &recv);
                if (st)
                    break;
                st = peer_wait(&peer, &recv, BOUND_S);
                CHECK(st || recv.len);
                weft_item_release(&item);
                CHECK(more++ < 200);
            }
            CHECK_EQ(st, WEFT_ERR_PEER);
            CHECK_EQ(peer_wait(&peer, &op, BOUND_S), WEFT_ERR_PEER);
            CHECK(test_now() - lost < 2 * BOUND_S);
            CHECK_EQ(reply.code, WEFT_CODE_UNAVAILABLE);
            CHECK_EQ(reply.ran, WEFT_MAY_HAVE_RUN);
            weft_reply_release(&reply);
            weft_stream_release(stream);
            close_client(&peer, client);
            peer_end(&peer);
        }
    }
}

TEST(a_server_that_receives_is_lost)
{
    static const uint64_t lens[] = {8, 100000, BIG};
    EACH_LOSS(t, s)
    {
        for (unsigned k = 0; k < 3; k++) {
            enum { N = 100 };
            peer_t peer;
            weft_client_t *client;
            weft_op_t op = WEFT_OP_INIT, *sends = (weft_op_t *)calloc(N, sizeof *sends), end = WEFT_OP_INIT;
            weft_reply_t reply = WEFT_REPLY_INIT;
            weft_stream_t *stream;
            weft_value_t value = weft_vector(WEFT_T_U8, bytes, lens[k]);
            unsigned lost = 0;
            peer_start(&peer, transports[t], BOUND_NS, life_serves);
            CHECK_OK(weft_client_on(peer.ep, NULL, &client));
            weft_method_t *method = find(&peer, client, SINK);
            CHECK_OK(weft_call_stream(method, NULL, 0, NULL, &reply, &op, &stream));
            for (unsigned i = 0; i < N; i++)
                CHECK_OK(weft_stream_send(stream, &value, &sends[i]));
            CHECK_OK(weft_stream_end(stream, &end));
            CHECK_OK(peer_wait(&peer, &sends[0], 10));
            peer_signal(&peer, signals[s]);
            for (unsigned i = 0; i < N; i++) {
                weft_status_t st = peer_wait(&peer, &sends[i], BOUND_S);
                CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
                CHECK(!lost || st);
                lost += st != WEFT_OK;
            }
            CHECK(lost >= N - 64);
            CHECK_EQ(peer_wait(&peer, &end, BOUND_S), WEFT_ERR_PEER);
            CHECK_EQ(peer_wait(&peer, &op, BOUND_S), WEFT_ERR_PEER);
            weft_reply_release(&reply);
            weft_stream_release(stream);
            close_client(&peer, client);
            peer_end(&peer);
            free(sends);
        }
    }
}

/* --- we serve, and lose the caller --------------------------------------------------------------------------------- */

/* Calls both functions of ours, takes some, sends much. */
static void life_calls(weft_runtime_t *rt, weft_ep_t *ep)
{
    static weft_op_t ops[2], sends[8], recv;
    static weft_reply_t replies[2];
    weft_client_t *client;
    weft_method_t *m[2];
    weft_stream_t *streams[2];
    weft_item_t item;
    weft_value_t len = weft_u64(300000), value = weft_vector(WEFT_T_U8, bytes, 300000);
    weft_op_t served = WEFT_OP_INIT;
    char word;
    CHECK_OK(weft_msg_recv(ep, &word, 1, 1, WEFT_TAG_FULL, &served)); /* there is a service now */
    CHECK_OK(weft_op_wait(&served, WEFT_FOREVER));
    CHECK_OK(weft_client_on(ep, NULL, &client));
    CHECK_OK(weft_client_method(client, FLOOD, &m[0]));
    CHECK_OK(weft_client_method(client, SINK, &m[1]));
    for (unsigned i = 0; i < 2; i++)
        CHECK_OK(weft_call_stream(m[i], &len, i == 0, NULL, &replies[i], &ops[i], &streams[i]));
    for (uint64_t i = 0;; i++) {
        CHECK_OK(weft_op_wait(&sends[i % 8], WEFT_FOREVER));
        CHECK_OK(weft_stream_send(streams[1], &value, &sends[i % 8]));
        if (i < 10 && weft_op_done(&recv)) {
            CHECK_OK(weft_stream_recv(streams[0], &item, &recv));
            CHECK_OK(weft_op_wait(&recv, WEFT_FOREVER));
            weft_item_release(&item);
        }
        weft_runtime_progress(rt);
    }
}

TEST(a_caller_is_lost)
{
    EACH_LOSS(t, s)
    {
        peer_t peer;
        weft_op_t close = WEFT_OP_INIT;
        weft_service_stats_t stats = WEFT_SERVICE_STATS_INIT;
        ended = received = 0;
        ended_with = WEFT_OK;
        peer_start(&peer, transports[t], BOUND_NS, life_calls);
        weft_service_t *service = offer(peer.rt, true);
        CHECK_OK(weft_msg_send(peer.ep, "x", 1, 1, NULL));
        for (double end = test_now() + 20; received < 20 && test_now() < end;)
            weft_runtime_progress(peer.rt);
        CHECK(received >= 20);
        CHECK_EQ(ended, 0);
        peer_signal(&peer, signals[s]);
        for (double end = test_now() + BOUND_S; ended < 5 && test_now() < end;)
            weft_runtime_progress(peer.rt);
        CHECK_EQ(ended, 5); /* four sends and a receive */
        CHECK(ended_with == WEFT_ERR_PEER || ended_with == WEFT_ERR_CANCELLED);
        CHECK(weft_request_cancelled(sinking.request));
        CHECK_OK(weft_service_get_stats(service, &stats));
        CHECK_EQ(stats.cancelled, 2);
        weft_request_release(sinking.request);
        weft_request_release(flooding.request);
        CHECK_OK(weft_service_close(service, &close));
        CHECK_OK(peer_wait(&peer, &close, 10));
        peer_end(&peer);
    }
}
