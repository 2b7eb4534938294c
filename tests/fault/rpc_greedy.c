/* A peer that takes what it can of a service: calls and values of streams whose data it announces and never sends, calls that it
 * cancels while their data is awaited, more calls than it may have. It gets its part, and others are served; what it does not
 * send costs it its connection, and then nothing of it is left. A peer that is slow and goes on is waited for.
 *
 * ctest: long timeout=300 */
#define TEST_SECONDS 280
#include "lib/peer.h"
#include "rpc/client.h"
#include "ports.h"
#include "test.h"
#include <weft/weft.h>

enum { VICTIM, GREEDY, WITNESS, PARTIES };
enum { PIECE = 16 << 20, BUDGET = 64 << 20 };
#define TAKE "take(v: [u8]) -> u64"
#define KEEP "keep(v: i32) -> i32"
#define SUM "sum(v: stream [u8]) -> u64"

static const char *const transports[] = {"shm", "tcp"};
static weft_runtime_t *rt[PARTIES];
static weft_listener_t *listener;
static weft_service_t *service;
static weft_ep_t *ep[PARTIES]; /* of VICTIM: the greedy one's, as it was accepted */
static weft_client_t *client[PARTIES];
static weft_method_t *take_method[PARTIES];
static weft_request_t *kept[64];
static unsigned n_kept;
static bool failed;
static weft_status_t failed_why;
static uint8_t *large;

static void drive(void)
{
    for (unsigned i = 0; i < PARTIES; i++)
        weft_runtime_progress(rt[i]);
}

#define UNTIL(cond, seconds) \
    do { \
        double until_end = test_now() + (seconds); \
        while (!(cond)) { \
            drive(); \
            if (test_now() > until_end) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)

static weft_status_t finish(weft_op_t *op)
{
    UNTIL(weft_op_done(op), 60);
    return op->status;
}

static weft_service_stats_t stats(void)
{
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(service, &s));
    return s;
}

/* --- the service ------------------------------------------------------------------------------------------------------- */

static void take(weft_request_t *request, void *user)
{
    weft_value_t n = weft_u64(request->args[0].view.n);
    (void)user;
    weft_request_reply(request, &n, 1);
}

static void keep(weft_request_t *request, void *user)
{
    weft_request_t *r = weft_request_keep(request);
    (void)user;
    if (r && n_kept < 64)
        kept[n_kept++] = r;
}

static void let_go(void)
{
    while (n_kept)
        weft_request_release(kept[--n_kept]);
}

static weft_on_failure_t on_failed(weft_ep_t *which, weft_status_t why, void *user)
{
    (void)user;
    if (which == ep[VICTIM]) {
        failed = true;
        failed_why = why;
    }
    return WEFT_GIVE_UP;
}

/* --- the greedy one: its library hears nothing about payloads, of which it knows nothing ------------------------------- */

static const wefti_fabric_up_t *up;
static wefti_fabric_up_t deaf_up;
static unsigned wanted;

static void deaf_record(void *lane_user, const void *rec, size_t n)
{
    uint8_t kind = *(const uint8_t *)rec;
    if (kind < WEFTI_REC_STAGED || kind > WEFTI_REC_TAKE_BACK)
        up->record(lane_user, rec, n);
    wanted += kind == WEFTI_REC_CHUNKS;
}

static void be_deaf(void)
{
    up = rt[GREEDY]->fabric->up;
    deaf_up = *up;
    deaf_up.record = deaf_record;
    rt[GREEDY]->fabric->up = &deaf_up;
    wanted = 0;
}

/* An active message to the service whose payload, `len` bytes in memory that only the sender can touch, is announced. */
static void announce(const void *header, uint32_t header_len, uint64_t len)
{
    struct {
        uint64_t kind, total;
        struct {
            wefti_word_t word;
            uint64_t payload;
            uint32_t id, header_len;
        } am;
        uint8_t header[256];
    } rec = {.kind = WEFTI_REC_STAGED, .total = len};
    static uint64_t payload = 1000;
    rec.am.word.kind = WEFTI_REC_AM_FIRST + 1;
    rec.am.payload = ++payload;
    rec.am.id = RPC_AM_TO_SERVER;
    rec.am.header_len = header_len;
    memcpy(rec.header, header, header_len);
    size_t n = offsetof(__typeof__(rec), header) + header_len;
    void *at = NULL;
    UNTIL(!ep[GREEDY]->lane || (at = ep[GREEDY]->lane->ops->reserve(ep[GREEDY]->lane, n)), 20);
    CHECK(at);
    memcpy(at, &rec, n);
    ep[GREEDY]->lane->ops->commit(ep[GREEDY]->lane, n);
}

static const rpc_binding_t *binding_of(weft_method_t *m)
{
    rpc_server_t *s = wefti_container_of(wefti_list_first(&m->client->servers), rpc_server_t, link);
    return s->bindings[m->index];
}

/* A [u8] of so many bytes that are in the payload: what the codec writes for it. */
static size_t put_vector(uint8_t *at, uint64_t len)
{
    uint32_t count = UINT32_MAX, zero = 0;
    memcpy(at, &count, 4);
    memcpy(at + 4, &zero, 4);
    memcpy(at + 8, &len, 8);
    return 16;
}

static void announce_call(weft_method_t *m, uint64_t call, uint64_t len)
{
    uint8_t header[64];
    rpc_head_t head = rpc_head(RPC_CALL, call);
    head.slot = binding_of(m)->slot;
    head.check = binding_of(m)->check;
    memcpy(header, &head, sizeof head);
    announce(header, (uint32_t)(sizeof head + put_vector(header + sizeof head, len)), len);
}

static void cancel_call(uint64_t call)
{
    weft_op_t op = WEFT_OP_INIT;
    rpc_head_t head = rpc_head(RPC_CANCEL, call);
    CHECK_OK(weft_am_send(ep[GREEDY], RPC_AM_TO_SERVER, &head, sizeof head, NULL, 0, &op));
    CHECK_OK(finish(&op));
}

/* --- scenes ------------------------------------------------------------------------------------------------------------ */

static void connect_to(unsigned who)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    CHECK_OK(weft_listener_accept(listener, &accept));
    CHECK_OK(weft_ep_open(rt[who], weft_listener_uri(listener), NULL, &connect, &ep[who]));
    CHECK_OK(finish(&connect));
    CHECK_OK(finish(&accept));
    if (who == GREEDY)
        ep[VICTIM] = (weft_ep_t *)accept.buf;
    CHECK_OK(weft_client_on(ep[who], NULL, &client[who]));
    CHECK_OK(weft_client_method(client[who], TAKE, &take_method[who]));
    CHECK_OK(weft_method_check(take_method[who], NULL, &connect));
    CHECK_OK(finish(&connect));
}

static void begin(const char *transport, uint64_t stall_ns)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    static const weft_ep_hooks_t hooks = {on_failed, NULL, NULL};
    weft_log_set_level(WEFT_LOG_NONE);
    large = large ? large : calloc(1, BUDGET);
    failed = false;
    o.progress = WEFT_PROGRESS_CALLER;
    o.transports = transport;
    o.heartbeat_ns = 60 * WEFT_SECOND; /* a busy machine is not what is tested here */
    for (unsigned i = 0; i < PARTIES; i++)
        CHECK_OK(weft_runtime_open(&o, &rt[i]));
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(rt[VICTIM], ports_tcp(), &lo, &listener));
    so.bytes = BUDGET;
    so.requests = 16;
    so.stall_ns = stall_ns;
    CHECK_OK(weft_service_open(rt[VICTIM], "greed", &so, &service));
    CHECK_OK(weft_service_add(service, TAKE, take, NULL, NULL));
    CHECK_OK(weft_service_add(service, KEEP, keep, NULL, NULL));
    CHECK_OK(weft_service_add(service, SUM, keep, NULL, NULL));
    connect_to(WITNESS);
    connect_to(GREEDY);
}

static void end(void)
{
    weft_op_t op = WEFT_OP_INIT;
    let_go();
    for (unsigned i = GREEDY; i <= WITNESS; i++) {
        CHECK_OK(weft_client_close(client[i], &op));
        finish(&op);
    }
    CHECK_OK(weft_service_close(service, &op));
    CHECK_OK(finish(&op));
    if (up)
        rt[GREEDY]->fabric->up = up;
    up = NULL;
    for (unsigned i = PARTIES; i-- > 0;)
        CHECK_OK(weft_runtime_close(rt[i]));
}

/* Another caller is served, with as much as is its own part. */
static void others_are_served(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t v = weft_vector(WEFT_T_U8, large, PIECE + PIECE / 2);
    CHECK_OK(weft_call(take_method[WITNESS], &v, 1, &reply, &op));
    CHECK_OK(finish(&op));
    CHECK_EQ(reply.values[0].u64, PIECE + PIECE / 2);
    weft_reply_release(&reply);
}

#define EACH_TRANSPORT for (unsigned transport = 0; transport < 2; transport++)

/* --- tests ------------------------------------------------------------------------------------------------------------- */

TEST(data_that_is_announced_and_never_sent_takes_one_part_of_the_service)
{
    EACH_TRANSPORT
    {
        begin(transports[transport], UINT64_MAX);
        be_deaf();
        for (unsigned i = 0; i < 10; i++)
            announce_call(take_method[GREEDY], 500 + i, PIECE - 65536);
        UNTIL(stats().exhausted == 8, 20); /* half of the budget: two of them */
        CHECK_EQ(wanted, 2);
        CHECK(stats().bytes >= 2 * (PIECE - 65536) && stats().bytes <= BUDGET / 2);
        for (unsigned i = 0; i < 5; i++)
            others_are_served();
        announce_call(take_method[GREEDY], 600, UINT64_C(1) << 29); /* one alone that is more than a peer can have */
        UNTIL(stats().exhausted == 9, 20);
        CHECK(!failed);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_ep_abort(ep[GREEDY], &op));
        finish(&op);
        UNTIL(!stats().bytes && !stats().under_way, 20); /* with the connection everything goes */
        others_are_served();
        end();
    }
}

TEST(a_call_that_is_cancelled_while_its_data_is_awaited_still_counts)
{
    EACH_TRANSPORT
    {
        begin(transports[transport], UINT64_MAX);
        be_deaf();
        for (unsigned i = 0; i < 20; i++) {
            uint64_t refused = stats().exhausted;
            announce_call(take_method[GREEDY], 500 + i, PIECE - 65536);
            UNTIL(stats().under_way || stats().exhausted > refused, 20);
            cancel_call(500 + i);
            UNTIL(!stats().under_way, 20);
        }
        CHECK_EQ(stats().exhausted, 18); /* the memory of the first two is with the network */
        CHECK(stats().bytes >= 2 * (PIECE - 65536) && stats().bytes <= BUDGET / 2);
        others_are_served();
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_service_close(service, &op)); /* which does not wait for it */
        CHECK_OK(finish(&op));
        CHECK_OK(weft_service_open(rt[VICTIM], "greed", NULL, &service));
        end();
    }
}

TEST(values_of_streams_that_are_announced_count_too)
{
    EACH_TRANSPORT
    {
        begin(transports[transport], UINT64_MAX);
        weft_op_t ops[6], op = WEFT_OP_INIT;
        weft_reply_t replies[6];
        weft_stream_t *streams[6];
        weft_method_t *sum;
        memset(ops, 0, sizeof ops);
        memset(replies, 0, sizeof replies);
        CHECK_OK(weft_client_method(client[GREEDY], SUM, &sum));
        for (unsigned i = 0; i < 6; i++)
            CHECK_OK(weft_call_stream(sum, NULL, 0, NULL, &replies[i], &ops[i], &streams[i]));
        UNTIL(n_kept == 6, 20);
        be_deaf();
        for (unsigned i = 0; i < 6; i++) { /* one item each, which may go beyond what a stream holds */
            uint8_t header[64];
            rpc_head_t head = rpc_head(RPC_ITEM, rpc_call(&ops[i])->id);
            rpc_ext_t ext = {0};
            memcpy(header, &head, sizeof head);
            memcpy(header + sizeof head, &ext, sizeof ext);
            size_t n = sizeof head + sizeof ext;
            announce(header, (uint32_t)(n + put_vector(header + n, PIECE - 65536)), PIECE - 65536);
        }
        UNTIL(wanted == 2, 20);
        for (unsigned i = 0; i < 1000; i++)
            drive();
        CHECK_EQ(wanted, 2);
        CHECK(stats().bytes <= BUDGET / 2);
        others_are_served();
        CHECK_OK(weft_ep_abort(ep[GREEDY], &op));
        finish(&op);
        for (unsigned i = 0; i < 6; i++) {
            finish(&ops[i]);
            weft_reply_release(&replies[i]);
            weft_stream_release(streams[i]);
        }
        let_go();
        UNTIL(!stats().bytes, 20);
        end();
    }
}

TEST(a_peer_that_sends_nothing_of_what_it_announced_loses_its_connection)
{
    EACH_TRANSPORT
    {
        begin(transports[transport], 300 * WEFT_MILLISECOND);
        be_deaf();
        announce_call(take_method[GREEDY], 500, PIECE);
        announce_call(take_method[GREEDY], 501, 100000);
        UNTIL(wanted == 2, 20);
        others_are_served();
        UNTIL(failed, 60);
        CHECK_EQ(failed_why, WEFT_ERR_PROTOCOL);
        UNTIL(!stats().bytes && !stats().under_way, 20);
        others_are_served();
        end();
    }
}

/* It is driven now and then only, so that its data comes in pieces, with pauses: all in all for longer than a silence may
 * last. */
TEST(a_peer_that_is_slow_and_goes_on_is_waited_for)
{
    begin("tcp", 800 * WEFT_MILLISECOND);
    weft_op_t ops[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    weft_reply_t replies[2] = {WEFT_REPLY_INIT, WEFT_REPLY_INIT};
    weft_value_t v = weft_vector(WEFT_T_U8, large, PIECE - 65536);
    double begun = test_now(), drove = 0, most = 0;
    for (unsigned i = 0; i < 2; i++)
        CHECK_OK(weft_call(take_method[GREEDY], &v, 1, &replies[i], &ops[i]));
    while (!weft_op_done(&ops[0]) || !weft_op_done(&ops[1])) {
        double t = test_now();
        weft_runtime_progress(rt[VICTIM]);
        weft_runtime_progress(rt[WITNESS]);
        if (t - drove > 0.1) {
            weft_runtime_progress(rt[GREEDY]);
            drove = t;
        }
        most = test_now() - begun;
        CHECK(most < 200);
    }
    printf("# %.1f s for two calls\n", most);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_OK(ops[i].status);
        weft_reply_release(&replies[i]);
    }
    CHECK(!failed);
    end();
}

static unsigned refused(const weft_op_t *ops, const weft_reply_t *replies, unsigned n)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < n; i++)
        sum += weft_op_done(&ops[i]) && replies[i].code == WEFT_CODE_RESOURCE_EXHAUSTED;
    return sum;
}

TEST(one_peer_has_half_of_the_requests)
{
    begin("shm", 0);
    weft_op_t ops[16], op = WEFT_OP_INIT;
    weft_reply_t replies[16];
    weft_method_t *m[PARTIES];
    weft_value_t v = weft_i32(1);
    memset(ops, 0, sizeof ops);
    memset(replies, 0, sizeof replies);
    for (unsigned i = GREEDY; i <= WITNESS; i++)
        CHECK_OK(weft_client_method(client[i], KEEP, &m[i]));
    for (unsigned i = 0; i < 16; i++)
        CHECK_OK(weft_call(m[GREEDY], &v, 1, &replies[i], &ops[i]));
    UNTIL(n_kept == 8 && refused(ops, replies, 16) == 8, 20);
    others_are_served();
    weft_reply_t reply = WEFT_REPLY_INIT;
    CHECK_OK(weft_call(m[WITNESS], &v, 1, &reply, &op));
    UNTIL(n_kept == 9, 20);
    let_go();
    finish(&op);
    weft_reply_release(&reply);
    for (unsigned i = 0; i < 16; i++) {
        finish(&ops[i]);
        weft_reply_release(&replies[i]);
    }
    UNTIL(!stats().bytes, 20);
    end();
}
