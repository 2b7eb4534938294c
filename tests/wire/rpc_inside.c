/* Functions and callbacks that end what they are called for: their own service, its function, the caller's connection from either
 * end, the client, the stream, the listener. From inside a function that answers at once, one that was called `once`, that keeps
 * its request, has a stream, large arguments or a thread; from inside a cancel, a release, a completion. Nothing is touched after
 * its end (run it under asan), every operation completes, and everything closes.
 *
 * ctest: tls timeout=300 label=thread */
#define TEST_SECONDS 280
#include <stdatomic.h>
#include <weft/service.h>

#include "pair.h"
#include "test.h"

enum { LARGE = 100000, WAITING = 2000 };
#define PLAIN "plain(v: i32) -> i32"
#define KEEP "keep(v: i32) -> i32"
#define WAITS "waits(v: i32) -> i32"
#define SUM "sum(v: stream i32) -> i32"
#define COUNT "count(n: i32) -> stream i32"
#define TAKE "take(v: [u8]) -> i32"
#define THREAD "thread(v: i32) -> i32"

/* Where it is done. */
enum {
    IN_PLAIN,
    IN_ONCE,
    IN_KEEP,
    BEFORE_KEEP, /* it keeps its request after that */
    IN_WAITS,    /* the same, and it waits to be told of its end */
    IN_SUM,
    IN_COUNT,
    IN_TAKE,
    IN_THREAD,
    IN_CANCEL,  /* of a kept request, when its caller cancels */
    IN_RELEASE, /* of a function that is removed */
    IN_ITEM,    /* a value arrived at the server */
    AT_CLIENT,  /* a call is complete */
    AT_ITEM,    /* a value arrived at the client */
    AT_SENT,    /* one was sent there */
    IN_MESSAGE, /* a handler of active messages */
    PLACES
};
static const char *const places[PLACES] = {"plain",      "once",          "keep",   "before keep", "waits",   "sum",
                                           "count",      "take",          "thread", "cancel",      "release", "item",
                                           "completion", "client's item", "sent",   "message"};

/* What is done. */
enum {
    CLOSE,
    CLOSE_OP,
    DRAIN,
    REMOVE,
    ABORT,
    CLOSE_EP,
    ABORT_OURS,
    CLOSE_CLIENT,
    CLOSE_CLIENT_OP,
    RELEASE_STREAM,
    CLOSE_LISTENER,
    DEEDS
};
static const char *const deeds[DEEDS] = {"close",
                                         "close, with an operation",
                                         "drain",
                                         "remove the function",
                                         "abort the caller",
                                         "close the caller",
                                         "abort our end",
                                         "close the client",
                                         "close the client, with an operation",
                                         "release the stream",
                                         "close the listener"};

static pair_t pair;
static weft_service_t *service;
static weft_client_t *client;
static weft_stream_t *stream;
static _Atomic int place, deed;
static _Atomic bool begun, done;
static bool service_gone, client_gone, stream_gone;
static weft_op_t deed_op;
static weft_item_t item, item_there;
static weft_op_t item_op_there;
static weft_request_t *summing;
static uint8_t large[LARGE];

/* --- the deeds --------------------------------------------------------------------------------------------------------- */

static void do_it(const char *function)
{
    if (atomic_exchange(&begun, true))
        return;
    switch (atomic_load(&deed)) {
    case CLOSE:
        service_gone = true;
        CHECK_OK(weft_service_close(service, NULL));
        break;
    case CLOSE_OP:
        service_gone = true;
        CHECK_OK(weft_service_close(service, &deed_op));
        break;
    case DRAIN:
        CHECK_OK(weft_service_drain(service, &deed_op));
        break;
    case REMOVE: { /* which IN_RELEASE has done */
        weft_status_t st = weft_service_remove(service, function, &deed_op);
        CHECK(!st || st == WEFT_ERR_NOTFOUND);
        break;
    }
    case ABORT:
        CHECK_OK(weft_ep_abort(pair.ep[0], &deed_op));
        pair.ep[0] = NULL;
        break;
    case CLOSE_EP:
        CHECK_OK(weft_ep_close(pair.ep[0], &deed_op));
        pair.ep[0] = NULL;
        break;
    case ABORT_OURS:
        CHECK_OK(weft_ep_abort(pair.ep[1], &deed_op));
        pair.ep[1] = NULL;
        break;
    case CLOSE_CLIENT:
        client_gone = true;
        CHECK_OK(weft_client_close(client, NULL));
        break;
    case CLOSE_CLIENT_OP:
        client_gone = true;
        CHECK_OK(weft_client_close(client, &deed_op));
        break;
    case RELEASE_STREAM:
        stream_gone = true;
        weft_stream_release(stream);
        break;
    default:
        CHECK_OK(weft_listener_close(pair.listener, &deed_op));
        pair.listener = NULL;
    }
    atomic_store(&done, true);
}

static void here(int where, const char *function)
{
    if (atomic_load(&place) == where)
        do_it(function);
}

/* --- functions --------------------------------------------------------------------------------------------------------- */

static void answer(weft_request_t *request)
{
    weft_value_t v = weft_i32(7);
    (void)weft_request_reply(request, &v, 1); /* whatever became of its caller */
}

static void plain(weft_request_t *request, void *user)
{
    here(request->once ? IN_ONCE : IN_PLAIN, "plain");
    (void)user;
    answer(request);
}

static void keep(weft_request_t *request, void *user)
{
    here(BEFORE_KEEP, "keep");
    (void)user;
    weft_request_t *kept = weft_request_keep(request);
    if (!kept)
        return;
    here(IN_KEEP, "keep");
    answer(kept);
    weft_request_release(kept);
}

static void cancelled(weft_request_t *request, void *user)
{
    here(IN_CANCEL, "waits");
    (void)user;
    weft_request_release(request);
}

static void waits(weft_request_t *request, void *user)
{
    here(IN_WAITS, "waits");
    (void)user;
    weft_request_t *kept = weft_request_keep(request);
    if (kept)
        weft_request_on_cancel(kept, cancelled, NULL);
}

static void summed(weft_op_t *op, void *user)
{
    (void)user;
    if (!op->status && op->len) {
        weft_item_release(&item_there);
        here(IN_ITEM, "sum");
        if (!weft_stream_recv(summing->stream, &item_there, &item_op_there))
            return;
    }
    answer(summing);
    weft_request_release(summing);
    summing = NULL;
}

static void sum(weft_request_t *request, void *user)
{
    (void)user;
    summing = weft_request_keep(request);
    memset(&item_op_there, 0, sizeof item_op_there);
    item_op_there.fn = summed;
    CHECK_OK(weft_stream_recv(summing->stream, &item_there, &item_op_there));
    here(IN_SUM, "sum");
}

static void count(weft_request_t *request, void *user)
{
    here(IN_COUNT, "count");
    (void)user;
    for (int32_t i = 0; i < 3; i++) {
        weft_value_t v = weft_i32(i);
        if (weft_stream_send(request->stream, &v, NULL))
            break; /* whatever became of its caller */
    }
    (void)weft_request_reply(request, NULL, 0);
}

static void take(weft_request_t *request, void *user)
{
    here(IN_TAKE, "take");
    (void)user;
    answer(request);
}

static void on_thread(weft_request_t *request, void *user)
{
    here(IN_THREAD, "thread");
    (void)user;
    answer(request);
}

static void released(void *buf, void *user)
{
    (void)buf, (void)user;
    here(IN_RELEASE, "plain");
}

static void on_message(weft_am_t *am, void *user)
{
    (void)am, (void)user;
    here(IN_MESSAGE, "plain");
}

/* --- the client's side ------------------------------------------------------------------------------------------------- */

static void call_done(weft_op_t *op, void *user)
{
    (void)op, (void)user;
    here(AT_CLIENT, "plain");
}

static void item_done(weft_op_t *op, void *user)
{
    (void)user;
    if (op->status || !op->len)
        return;
    weft_item_release(&item);
    here(AT_ITEM, "count");
}

static void sent_done(weft_op_t *op, void *user)
{
    (void)op, (void)user;
    here(AT_SENT, "sum");
}

static weft_method_t *method(const char *text)
{
    weft_method_t *m;
    CHECK_OK(weft_client_method(client, text, &m));
    return m;
}

static void open_scene(void)
{
    static const struct {
        const char *sig;
        weft_function_fn fn;
    } functions[] = {{PLAIN, plain}, {KEEP, keep}, {WAITS, waits}, {SUM, sum}, {COUNT, count}, {TAKE, take}, {THREAD, on_thread}};
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    pair_open(&pair, &pair_ways[0], NULL);
    so.threads = atomic_load(&place) == IN_THREAD ? 2 : 0; /* which outlive the last request */
    CHECK_OK(weft_service_open(pair.rt[0], "inside", &so, &service));
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        if (functions[i].fn == on_thread && !so.threads)
            continue;
        fo.threads = functions[i].fn == on_thread;
        fo.release = functions[i].fn == plain ? released : NULL;
        CHECK_OK(weft_service_add(service, functions[i].sig, functions[i].fn, NULL, &fo));
    }
    CHECK_OK(weft_am_handle(pair.rt[0], 9, on_message, NULL, NULL));
    CHECK_OK(weft_client_on(pair.ep[1], NULL, &client));
    service_gone = client_gone = false;
    stream = NULL;
    stream_gone = true;
    memset(&deed_op, 0, sizeof deed_op);
    atomic_store(&begun, false);
    atomic_store(&done, false);
}

static void close_scene(void)
{
    weft_op_t op = WEFT_OP_INIT;
    if (!stream_gone)
        weft_stream_release(stream);
    if (!client_gone) {
        CHECK_OK(weft_client_close(client, &op));
        pair_wait(&pair, &op, 20);
    }
    PAIR_UNTIL(&pair, weft_op_done(&deed_op), 20);
    if (!service_gone) {
        CHECK_OK(weft_service_close(service, &op));
        CHECK_OK(pair_wait(&pair, &op, 20));
    }
    pair_close(&pair);
}

/* --- every deed in every place ----------------------------------------------------------------------------------------- */

static void begin_stream(const char *text, const weft_value_t *args, size_t n, weft_reply_t *reply, weft_op_t *op)
{
    CHECK_OK(weft_call_stream(method(text), args, n, NULL, reply, op, &stream));
    stream_gone = false;
}

static void play(weft_op_t *op, weft_op_t *more, weft_reply_t *reply)
{
    static weft_value_t v;
    static weft_call_opts_t once;
    once = (weft_call_opts_t)WEFT_CALL_OPTS_INIT;
    once.once = true;
    v = weft_i32(1);
    switch (atomic_load(&place)) {
    case IN_ONCE:
        CHECK_OK(weft_call_with(method(PLAIN), &v, 1, &once, reply, op));
        break;
    case IN_KEEP:
    case BEFORE_KEEP:
        CHECK_OK(weft_call(method(KEEP), &v, 1, reply, op));
        break;
    case IN_TAKE:
        v = weft_vector(WEFT_T_U8, large, sizeof large);
        CHECK_OK(weft_call(method(TAKE), &v, 1, reply, op));
        break;
    case IN_THREAD:
        CHECK_OK(weft_call(method(THREAD), &v, 1, reply, op));
        break;
    case IN_CANCEL: {
        weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
        CHECK_OK(weft_call(method(WAITS), &v, 1, reply, op));
        PAIR_UNTIL(&pair, !weft_service_get_stats(service, &s) && s.under_way, 20);
        weft_op_cancel(op);
        break;
    }
    case IN_WAITS:
        CHECK_OK(weft_call(method(WAITS), &v, 1, reply, op));
        break;
    case IN_RELEASE:
        CHECK_OK(weft_service_remove(service, "plain", more));
        break;
    case IN_SUM:
    case IN_ITEM:
    case AT_SENT:
        begin_stream(SUM, NULL, 0, reply, op);
        more->fn = sent_done;
        CHECK_OK(weft_stream_send(stream, &v, more));
        break;
    case IN_COUNT:
    case AT_ITEM:
        begin_stream(COUNT, &v, 1, reply, op);
        more->fn = item_done;
        CHECK_OK(weft_stream_recv(stream, &item, more));
        break;
    case IN_MESSAGE:
        CHECK_OK(weft_am_send(pair.ep[1], 9, "x", 1, NULL, 0, NULL));
        break;
    default:
        op->fn = call_done;
        CHECK_OK(weft_call(method(PLAIN), &v, 1, reply, op));
    }
}

TEST(whoever_is_called_may_end_what_it_is_called_for)
{
    weft_log_set_level(WEFT_LOG_NONE);
    for (int p = 0; p < PLACES; p++) {
        for (int d = 0; d < DEEDS; d++) {
            static weft_op_t op, more;
            static weft_reply_t reply;
            bool streams = p == IN_SUM || p == IN_COUNT || p == IN_ITEM || p == AT_SENT || p == AT_ITEM;
            if (d == RELEASE_STREAM && !streams)
                continue;
            memset(&op, 0, sizeof op);
            memset(&more, 0, sizeof more);
            memset(&reply, 0, sizeof reply);
            atomic_store(&place, p);
            atomic_store(&deed, d);
            open_scene();
            play(&op, &more, &reply);
            for (double end = test_now() + 20; !atomic_load(&done);) {
                pair_drive(&pair);
                if (test_now() > end)
                    FAIL("%s in %s: it was never called", deeds[d], places[p]);
            }
            close_scene();
            if (!weft_op_done(&op) || !weft_op_done(&more))
                FAIL("%s in %s: an operation did not end", deeds[d], places[p]);
            if (reply.more)
                weft_reply_release(&reply);
        }
    }
}

/* --- buffers that are the library's ------------------------------------------------------------------------------------ */

static _Atomic unsigned given_back;
static unsigned heard;
static bool ends_it;

/* From progress: credit came, on a record that is being read, and with it the turn of a send that waited. */
static void give_back(void *buf, void *user)
{
    (void)buf, (void)user;
    atomic_fetch_add(&given_back, 1);
    if (ends_it && pair.ep[0]) {
        weft_ep_t *ep = pair.ep[0];
        pair.ep[0] = NULL;
        CHECK_OK(weft_ep_abort(ep, &deed_op));
    }
}

/* The other side calls back for each message, so that what it says brings credit along. */
static void calls_back(weft_am_t *am, void *user)
{
    static weft_op_t ops[WAITING];
    static weft_reply_t replies[WAITING];
    static weft_value_t v;
    (void)am, (void)user;
    static weft_call_opts_t once;
    once = (weft_call_opts_t)WEFT_CALL_OPTS_INIT;
    once.once = true;
    v = weft_i32(1);
    if (heard >= WAITING)
        return;
    memset(&ops[heard], 0, sizeof ops[heard]);
    if (!weft_call_with((weft_method_t *)user, &v, 1, &once, &replies[heard], &ops[heard]))
        heard++;
}

TEST(a_buffer_that_is_given_back_ends_the_connection_whose_credit_brought_it_back)
{
    weft_log_set_level(WEFT_LOG_NONE);
    for (int tags = 0; tags < 2; tags++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        static char byte = 'x';
        char got[8];
        o.am_window = 16384;
        o.recv_window = 16384;
        atomic_store(&place, -1);
        ends_it = false;
        heard = 0;
        atomic_store(&given_back, 0);
        memset(&deed_op, 0, sizeof deed_op);
        pair_open(&pair, &pair_ways[0], &o);
        CHECK_OK(weft_service_open(pair.rt[0], "inside", NULL, &service));
        CHECK_OK(weft_service_add(service, WAITS, waits, NULL, NULL));
        CHECK_OK(weft_client_on(pair.ep[1], NULL, &client));
        CHECK_OK(weft_method_check(method(WAITS), NULL, &op));
        CHECK_OK(pair_wait(&pair, &op, 20));
        CHECK_OK(weft_am_handle(pair.rt[1], 9, calls_back, method(WAITS), NULL));
        for (unsigned i = 0; i < WAITING; i++) {
            weft_am_send_opts_t ao = WEFT_AM_SEND_OPTS_INIT;
            weft_msg_send_opts_t mo = WEFT_MSG_SEND_OPTS_INIT;
            ao.id = 9;
            ao.buf = mo.buf = &byte;
            ao.len = mo.len = 1;
            ao.release = mo.release = give_back;
            CHECK_OK(tags ? weft_msg_send_with(pair.ep[0], &mo, NULL) : weft_am_send_with(pair.ep[0], &ao, NULL));
        }
        CHECK(atomic_load(&given_back) < WAITING);
        ends_it = true;
        for (unsigned i = 0; tags && i < 200 && pair.ep[1]; i++) { /* each is answered by a message, with the credit */
            weft_op_t r = WEFT_OP_INIT;
            CHECK_OK(weft_msg_recv(pair.ep[1], got, sizeof got, 0, WEFT_TAG_ANY, &r));
            for (double end = test_now() + 20; !weft_op_done(&r) && test_now() < end;)
                weft_runtime_progress(pair.rt[1]);
            if (r.status || weft_msg_send(pair.ep[1], got, 1, 5, NULL))
                break;
            weft_runtime_progress(pair.rt[0]);
        }
        PAIR_UNTIL(&pair, !pair.ep[0] && weft_op_done(&deed_op), 20);
        CHECK_EQ(atomic_load(&given_back), WAITING);
        CHECK_OK(weft_client_close(client, &op));
        pair_wait(&pair, &op, 20);
        CHECK_OK(weft_service_close(service, &op)); /* and nothing of the caller is left */
        CHECK_OK(pair_wait(&pair, &op, 20));
        pair_close(&pair);
    }
}
