/* A peer that changes its records in shared memory while they are read, at every moment there is: between any two instructions
 * of ours that touch them. Calls, replies, items of streams, questions for functions, requests to a store, accesses to remote
 * memory and their answers, active messages, tag messages, announcements.
 *
 * Promise: nothing that was checked is read again. What functions see is what was checked, as long as they look; the names that
 *          a store shows are names; nothing crashes (run it under asan); a third party is served.
 *
 * ctest: tls-long timeout=600 long */
#define TEST_SECONDS 550
#include <limits.h>
#include <weft/elements.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "conn/conn.h"
#include "fabric/shm/internal.h"
#include "flip.h"
#include "seen.h"
#include "ports.h"
#include "test.h"

enum { VICTIM, HOSTILE, WITNESS, PARTIES };
enum { OPS = 8, SMALL = 64, BIG = 40000, RECORD = 8192 };
#define TAKE "take(s: string, b: [bool], t: tensor, n: [u32]) -> string"
#define GIVE "give(n: i32) -> (s: string, b: [bool], t: tensor)"
#define JOIN "join(v: stream string) -> string"

static weft_runtime_t *rt[PARTIES];
static weft_listener_t *listener;
static weft_service_t *service[2];
static weft_store_server_t *server;
static weft_region_t *region;
static weft_ep_t *victim_ep, *hostile_ep, *witness_ep;
static weft_client_t *client[PARTIES];
static weft_method_t *take_method, *give_method, *join_method, *witness_method;
static weft_store_t *store[PARTIES];
static weft_remote_t *remote;
static weft_block_t *block;
static weft_stream_t *stream;
static weft_op_t ops[OPS], received;
static weft_reply_t replies[OPS];
static weft_store_stats_t stats;
static unsigned n_ops, runs, names;
static uint8_t buf[BIG], received_bytes[BIG];
static bool failed;

static void drive(void)
{
    for (unsigned i = 0; i < PARTIES; i++)
        weft_runtime_progress(rt[i]);
}

static weft_status_t finish(weft_op_t *op)
{
    for (double end = test_now() + 20; !weft_op_done(op);) {
        drive();
        if (test_now() > end)
            FAIL("an operation did not end");
    }
    return op->status;
}

/* --- what is seen --------------------------------------------------------------------------------------------------------- */

static void watch_values(const weft_value_t *values, size_t n)
{
    seen_values(values, n);
    runs++;
}

static void take(weft_request_t *request, void *user)
{
    weft_value_t answer = weft_text("seen", 4);
    (void)user;
    watch_values(request->args, request->n);
    weft_request_reply(request, &answer, 1);
}

static const uint8_t bools[8] = {1, 0, 1, 1, 0, 0, 1, 0};
static const uint32_t numbers[4] = {1, 2, 3, 4};
static int64_t shape[2] = {4, 6}, strides[2] = {1, 4};
static float floats[24];
static char text[3000];
static weft_tensor_t tensor;

static void give(weft_request_t *request, void *user)
{
    weft_value_t v[3] = {weft_text(text, (size_t)request->args[0].i32), weft_vector(WEFT_T_BOOL, bools, 8), weft_tensor(&tensor)};
    (void)user;
    weft_request_reply(request, v, 3);
}

static weft_request_t *joined;
static weft_item_t item;
static weft_op_t item_op;

static void next_item(weft_op_t *op, void *user)
{
    (void)user;
    if (!op->status && op->len) {
        watch_values(&item.value, 1);
        weft_item_release(&item);
        if (!weft_stream_recv(joined->stream, &item, &item_op))
            return;
    }
    weft_request_release(joined);
    joined = NULL;
}

static void join(weft_request_t *request, void *user)
{
    (void)user;
    CHECK(!joined);
    joined = weft_request_keep(request);
    memset(&item_op, 0, sizeof item_op);
    item_op.fn = next_item;
    CHECK_OK(weft_stream_recv(joined->stream, &item, &item_op));
}

static void notified(weft_region_t *r, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    (void)r, (void)value, (void)from, (void)user;
    CHECK(offset <= BIG && len <= BIG - offset);
    runs++;
}

/* A handler of the program's reads in place, each byte once. */
static void on_message(weft_am_t *am, void *user)
{
    volatile uint8_t sum = 0;
    (void)user;
    for (uint32_t i = 0; i < am->header_len; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)am->header)[i]);
    for (uint64_t i = 0; am->data && i < am->len; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)am->data)[i]);
    runs++;
}

static weft_on_failure_t on_failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)user;
    if (ep == victim_ep) {
        failed = true;
        CHECK(why == WEFT_ERR_PROTOCOL || why == WEFT_ERR_PEER);
    }
    return WEFT_GIVE_UP;
}

/* --- the scene ------------------------------------------------------------------------------------------------------------ */

static void serve(unsigned who)
{
    static const struct {
        const char *sig;
        weft_function_fn fn;
    } functions[] = {{TAKE, take}, {GIVE, give}, {JOIN, join}};
    CHECK_OK(weft_service_open(rt[who], "flips", NULL, &service[who]));
    for (unsigned i = 0; i < sizeof functions / sizeof functions[0]; i++)
        CHECK_OK(weft_service_add(service[who], functions[i].sig, functions[i].fn, NULL, NULL));
}

static void connect_to(unsigned who, weft_ep_t **ep_out, weft_ep_t **victim_out)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    CHECK_OK(weft_listener_accept(listener, &accept));
    CHECK_OK(weft_ep_open(rt[who], weft_listener_uri(listener), NULL, &connect, ep_out));
    CHECK_OK(finish(&connect));
    CHECK_OK(finish(&accept));
    *victim_out = (weft_ep_t *)accept.buf;
}

static weft_store_t *open_store(weft_ep_t *ep)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_store_open(ep, NULL, &op));
    CHECK_OK(finish(&op));
    return (weft_store_t *)op.buf;
}

static void scene_open(void)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    static const weft_ep_hooks_t hooks = {on_failed, NULL, NULL};
    weft_ep_t *unused;
    weft_log_set_level(WEFT_LOG_NONE);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i % 26);
    tensor = (weft_tensor_t){.data = floats, .device_type = 1, .ndim = 2, .code = 2, .bits = 32, .lanes = 1};
    tensor.shape = shape;
    tensor.strides = strides;
    o.progress = WEFT_PROGRESS_CALLER;
    o.transports = "shm";
    for (unsigned i = 0; i < PARTIES; i++)
        CHECK_OK(weft_runtime_open(&o, &rt[i]));
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(rt[VICTIM], ports_tcp(), &lo, &listener));
    serve(VICTIM);
    serve(HOSTILE);
    so.bytes = 64 << 20;
    CHECK_OK(weft_store_serve(rt[VICTIM], &so, &server));
    ro.len = BIG;
    ro.name = "memory";
    ro.unmapped = true;
    ro.notify = notified;
    CHECK_OK(weft_region_new(rt[VICTIM], &ro, &region));
    ro.name = "other";
    weft_region_t *of_hostile;
    CHECK_OK(weft_region_new(rt[HOSTILE], &ro, &of_hostile));
    CHECK_OK(weft_am_handle(rt[VICTIM], 5, on_message, NULL, NULL));
    connect_to(WITNESS, &witness_ep, &unused);
    CHECK_OK(weft_client_on(witness_ep, NULL, &client[WITNESS]));
    CHECK_OK(weft_client_method(client[WITNESS], TAKE, &witness_method));
    store[WITNESS] = open_store(witness_ep);
}

/* What an act left. */
static void clear(void)
{
    weft_stream_release(stream);
    stream = NULL;
    for (unsigned i = 0; i < n_ops; i++) {
        finish(&ops[i]);
        if (!ops[i].status)
            seen_values(replies[i].values, replies[i].n);
        weft_reply_release(&replies[i]);
        if (!ops[i].status && ops[i].user == &remote)
            weft_remote_drop((weft_remote_t *)ops[i].buf);
        if (!ops[i].status && ops[i].user == &block)
            weft_block_drop((weft_block_t *)ops[i].buf);
    }
    n_ops = 0;
}

static void part(void)
{
    weft_op_t closed[4] = {WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT};
    weft_remote_drop(remote);
    weft_block_drop(block);
    weft_store_leave(store[HOSTILE]);
    remote = NULL;
    block = NULL;
    for (unsigned i = 0; i < 2; i++)
        CHECK_OK(weft_client_close(client[i], &closed[i]));
    CHECK_OK(weft_ep_abort(victim_ep, &closed[2]));
    CHECK_OK(weft_ep_abort(hostile_ep, &closed[3]));
    for (unsigned i = 0; i < 4; i++)
        finish(&closed[i]);
    clear();
    finish(&received);
    victim_ep = hostile_ep = NULL;
}

static void scene_close(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_client_close(client[WITNESS], &op));
    CHECK_OK(finish(&op));
    weft_store_leave(store[WITNESS]);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_OK(weft_service_close(service[i], &op));
        CHECK_OK(finish(&op));
    }
    CHECK_OK(weft_store_server_close(server, &op));
    CHECK_OK(finish(&op));
    for (unsigned i = PARTIES; i-- > 0;)
        CHECK_OK(weft_runtime_close(rt[i]));
}

/* Everything that the acts use is there, so that each of them is one record. */
static void join_anew(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_block_opts_t bo = WEFT_BLOCK_OPTS_INIT;
    connect_to(HOSTILE, &hostile_ep, &victim_ep);
    failed = false;
    CHECK_OK(weft_client_on(hostile_ep, NULL, &client[HOSTILE]));
    CHECK_OK(weft_client_on(victim_ep, NULL, &client[VICTIM]));
    CHECK_OK(weft_client_method(client[HOSTILE], TAKE, &take_method));
    CHECK_OK(weft_client_method(client[VICTIM], GIVE, &give_method));
    CHECK_OK(weft_client_method(client[HOSTILE], JOIN, &join_method));
    weft_method_t *asked[] = {take_method, give_method, join_method};
    for (unsigned i = 0; i < 3; i++) {
        CHECK_OK(weft_method_check(asked[i], NULL, &op));
        CHECK_OK(finish(&op));
    }
    store[HOSTILE] = open_store(hostile_ep);
    bo.len = 4096;
    CHECK_OK(weft_block_alloc(store[HOSTILE], &bo, &op));
    CHECK_OK(finish(&op));
    block = (weft_block_t *)op.buf;
    CHECK_OK(weft_remote_find(hostile_ep, "memory", NULL, &op));
    CHECK_OK(finish(&op));
    remote = (weft_remote_t *)op.buf;
    memset(&received, 0, sizeof received);
    CHECK_OK(weft_msg_recv(victim_ep, received_bytes, sizeof received_bytes, 0, WEFT_TAG_ANY, &received));
}

/* A third party is served, and what it is shown makes sense. */
static void no_block(const weft_block_info_t *info, void *user)
{
    (void)user;
    CHECK(wefti_utf8_ok(info->name, strlen(info->name)));
}

static void witness(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t args[4] = {weft_text("a third party", 13), weft_vector(WEFT_T_BOOL, bools, 8), weft_tensor(&tensor),
                            weft_vector(WEFT_T_U32, numbers, 4)};
    CHECK_OK(weft_call(witness_method, args, 4, &reply, &op));
    CHECK_OK(finish(&op));
    weft_reply_release(&reply);
    CHECK_OK(weft_store_list(store[WITNESS], "", no_block, NULL, &op));
    CHECK_OK(finish(&op));
}

/* --- the acts: each puts a record on its way to the victim ---------------------------------------------------------------- */

static weft_op_t *next_op(void)
{
    weft_op_t *op = &ops[n_ops];
    memset(op, 0, sizeof *op);
    memset(&replies[n_ops], 0, sizeof replies[0]);
    CHECK(n_ops < OPS);
    n_ops++;
    return op;
}

static weft_value_t args[4];

static void call_with(size_t text_len, bool once)
{
    weft_call_opts_t o = WEFT_CALL_OPTS_INIT;
    static weft_call_opts_t kept;
    weft_op_t *op = next_op();
    o.once = once;
    kept = o;
    if (once)
        op->timeout_ns = 5 * WEFT_SECOND;
    args[0] = weft_text(text, text_len);
    args[1] = weft_vector(WEFT_T_BOOL, bools, 8);
    args[2] = weft_tensor(&tensor);
    args[3] = weft_vector(WEFT_T_U32, numbers, 4);
    CHECK_OK(weft_call_with(take_method, args, 4, &kept, &replies[n_ops - 1], op));
}

static void act_call(void)
{
    call_with(20, false);
}

static void act_call_payload(void)
{
    call_with(2000, false);
}

static void act_call_once(void)
{
    call_with(20, true);
}

static void act_bind(void)
{
    char name[40];
    weft_method_t *m;
    snprintf(name, sizeof name, "take%u(s: string) -> string", names++ % 60000);
    weft_op_t *op = next_op();
    CHECK_OK(weft_client_method(client[HOSTILE], name, &m));
    CHECK_OK(weft_method_check(m, &replies[n_ops - 1], op));
}

static void ask_back(int32_t n)
{
    weft_op_t *op = next_op();
    args[0] = weft_i32(n);
    CHECK_OK(weft_call(give_method, args, 1, &replies[n_ops - 1], op));
}

static void act_reply(void)
{
    ask_back(12);
}

static void act_reply_payload(void)
{
    ask_back(1100);
}

static void act_item(void)
{
    weft_value_t v = weft_text(text, 30);
    weft_op_t *op = next_op();
    CHECK_OK(weft_call_stream(join_method, NULL, 0, NULL, &replies[n_ops - 1], op, &stream));
    for (double end = test_now() + 20; !joined && test_now() < end;)
        drive();
    CHECK(joined);
    CHECK_OK(weft_stream_send(stream, &v, NULL));
}

static void block_name(char out[32])
{
    snprintf(out, 32, "block/%u/\xc3\xa4\xc3\xb6", names++);
}

static void act_alloc(void)
{
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    char name[32];
    weft_op_t *op = next_op();
    block_name(name);
    o.len = 100;
    o.name = name;
    op->user = &block;
    CHECK_OK(weft_block_alloc(store[HOSTILE], &o, op));
}

static void act_share(void)
{
    char name[32];
    block_name(name);
    CHECK_OK(weft_block_share(block, name, true, next_op()));
}

static void act_list(void)
{
    CHECK_OK(weft_store_list(store[HOSTILE], "block/", no_block, NULL, next_op()));
}

static void act_find(void)
{
    weft_op_t *op = next_op();
    op->user = &block;
    CHECK_OK(weft_block_open(store[HOSTILE], "block/0", op));
}

static void act_query(void)
{
    stats = (weft_store_stats_t)WEFT_STORE_STATS_INIT;
    CHECK_OK(weft_store_query(store[HOSTILE], &stats, next_op()));
}

static void act_read(void)
{
    CHECK_OK(weft_rma_read(remote, 8, buf, SMALL, next_op()));
}

static void act_read_big(void)
{
    CHECK_OK(weft_rma_read(remote, 0, buf, BIG, next_op()));
}

static void act_write(void)
{
    CHECK_OK(weft_rma_write_notify(remote, 8, buf, SMALL, 7, next_op()));
}

static void act_write_big(void)
{
    CHECK_OK(weft_rma_write(remote, 0, buf, BIG, next_op()));
}

static void act_atomic(void)
{
    CHECK_OK(weft_rma_atomic(remote, WEFT_RMA_ADD, 16, 8, 1, 0, next_op()));
}

static void act_attach(void)
{
    weft_op_t *op = next_op();
    op->user = &remote;
    CHECK_OK(weft_remote_find(hostile_ep, "memory", NULL, op));
}

static void act_attached(void)
{
    weft_op_t *op = next_op();
    op->user = &remote;
    CHECK_OK(weft_remote_find(victim_ep, "other", NULL, op));
}

static void act_tag(void)
{
    CHECK_OK(weft_msg_send(hostile_ep, buf, SMALL, 5, next_op()));
}

static void act_tag_big(void)
{
    CHECK_OK(weft_msg_send(hostile_ep, buf, BIG, 5, next_op()));
}

static void act_am(void)
{
    weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
    o.id = 5;
    o.header = text;
    o.header_len = 40;
    o.buf = buf;
    o.len = SMALL;
    o.confirm = true;
    CHECK_OK(weft_am_send_with(hostile_ep, &o, next_op()));
}

static void act_am_big(void)
{
    CHECK_OK(weft_am_send(hostile_ep, 5, text, 40, buf, BIG, next_op()));
}

/* --- rounds --------------------------------------------------------------------------------------------------------------- */

typedef struct found {
    uint8_t *at; /* in the hostile side's mapping */
    size_t n;
} found_t;

/* The longest record between two positions of the ring. */
static found_t longest(const wefti_shm_lane_t *lane, uint64_t from)
{
    found_t best = {0};
    while (from < lane->tx.tail) {
        uint8_t *at = lane->tx.base + (from & (lane->tx.size - 1));
        uint64_t head = atomic_load((_Atomic uint64_t *)(void *)at);
        size_t n = (uint32_t)head;
        if (head >> 32 != WEFTI_RING_SKIP && n > best.n)
            best = (found_t){at + WEFTI_RING_HEAD, n};
        from += head >> 32 == WEFTI_RING_SKIP ? lane->tx.size - (from & (lane->tx.size - 1)) : wefti_ring_span(n);
    }
    return best;
}

static void twist(wefti_rng_t *rng, uint8_t *rec, size_t n)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      5,
                                      0x7f,
                                      0xff,
                                      0x100,
                                      0x1000,
                                      0xffff,
                                      UINT32_MAX,
                                      UINT64_C(1) << 33,
                                      UINT64_C(1) << 40,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX};
    for (unsigned i = 0, k = 1 + (unsigned)(wefti_rng_next(rng) % 3); i < k; i++) {
        size_t width = (size_t)1 << wefti_rng_next(rng) % 4, places = n / width;
        uint64_t v = values[wefti_rng_next(rng) % (sizeof values / sizeof values[0])];
        size_t at = places ? width * (wefti_rng_next(rng) % places) : 0;
        if (wefti_rng_next(rng) % 4 == 0)
            v = wefti_rng_next(rng);
        if (n)
            memcpy(rec + at, &v, width < n - at ? width : n - at);
    }
}

/* One act, whose record becomes another at the `when`th touch. How often it was touched. */
static unsigned play(void (*act)(void), wefti_rng_t *rng, unsigned when)
{
    static uint8_t evil[RECORD];
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)hostile_ep->lane, *theirs = (wefti_shm_lane_t *)victim_ep->lane;
    for (unsigned i = 0; i < 20; i++)
        drive();
    uint64_t from = lane->tx.tail;
    act();
    for (double end = test_now() + 20; lane->tx.tail == from && test_now() < end;)
        weft_runtime_progress(rt[HOSTILE]);
    if (theirs->rx.pos > from) /* some of it was read on the way */
        from = theirs->rx.pos;
    found_t rec = longest(lane, from);
    CHECK(rec.n && rec.n <= sizeof evil);
    memcpy(evil, rec.at, rec.n);
    twist(rng, evil, rec.n);
    flip_watch(theirs->rx.base + (rec.at - lane->tx.base), rec.at, rec.n, evil, when);
    for (unsigned i = 0; i < 20 && (i < 4 || theirs->rx.pos == from) && !failed; i++)
        weft_runtime_progress(rt[VICTIM]);
    unsigned touched = flip_unwatch();
    for (unsigned i = 0; i < 20; i++)
        drive();
    return touched;
}

static bool settled(void)
{
    for (unsigned i = 0; i < n_ops; i++)
        if (!weft_op_done(&ops[i]) || (ops[i].status && ops[i].status != WEFT_ERR_NOTFOUND && ops[i].status != WEFT_ERR_CALL))
            return false;
    return !failed && !weft_op_done(&received) && !joined;
}

static void rounds(void (*act)(void), unsigned n)
{
    wefti_rng_t rng = {0x5eed};
    if (!flip_works())
        SKIP("touches of memory can be counted on x86-64 only");
    scene_open();
    join_anew();
    unsigned touches = play(act, &rng, UINT_MAX);
    CHECK(touches);
    CHECK(!failed);
    if (getenv("FLIPS_SHOW"))
        printf("# touched %u times\n", touches);
    for (unsigned i = 0; i < n; i++) {
        if (settled()) {
            clear();
        } else {
            part();
            join_anew();
        }
        play(act, &rng, 1 + (unsigned)(wefti_rng_next(&rng) % touches));
        if (i % 16 == 0)
            witness();
    }
    part();
    witness();
    CHECK(runs);
    scene_close();
}

#define FLIPS(name, act, n) \
    TEST(name) \
    { \
        rounds(act, n); \
    }

FLIPS(arguments_in_a_header_change, act_call, 400)
FLIPS(arguments_in_a_payload_change, act_call_payload, 400)
FLIPS(a_call_made_once_changes, act_call_once, 300)
FLIPS(a_question_for_a_function_changes, act_bind, 200)
FLIPS(results_in_a_header_change, act_reply, 400)
FLIPS(results_in_a_payload_change, act_reply_payload, 60)
FLIPS(an_item_of_a_stream_changes, act_item, 200)
FLIPS(an_allocation_changes, act_alloc, 300)
FLIPS(the_name_of_a_shared_block_changes, act_share, 300)
FLIPS(a_list_changes, act_list, 150)
FLIPS(a_search_changes, act_find, 150)
FLIPS(a_query_changes, act_query, 100)
FLIPS(a_read_changes, act_read, 200)
FLIPS(a_long_read_changes, act_read_big, 150)
FLIPS(a_write_changes, act_write, 200)
FLIPS(a_long_write_changes, act_write_big, 150)
FLIPS(an_atomic_changes, act_atomic, 200)
FLIPS(an_attach_changes, act_attach, 200)
FLIPS(an_answer_to_an_attach_changes, act_attached, 200)
FLIPS(a_tag_message_changes, act_tag, 200)
FLIPS(a_long_tag_message_changes, act_tag_big, 150)
FLIPS(an_active_message_changes, act_am, 200)
FLIPS(a_long_active_message_changes, act_am_big, 150)
