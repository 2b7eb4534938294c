/* Memory runs out at every single allocation of a call with streams, one after the other, on both sides: every operation ends
 * with a status that is true, no value is lost in silence, and afterwards the same runtimes do all of it.
 *
 * ctest: timeout=300 */
#define TEST_SECONDS 280
#include <weft/service.h>
#include <weft/weft.h>

#include "lib/couple.h"
#include "lib/nomem.h"
#include "test.h"

enum { N = 60, LARGE = 70000 };
#define CHAT "chat(lines: stream string) -> stream string"

static weft_service_t *service;
static weft_client_t *client;
static char text[LARGE];

/* --- the function: everything comes back --------------------------------------------------------------------------- */

typedef struct echoing {
    weft_request_t *request;
    weft_op_t recv, send;
    weft_item_t item;
} echoing_t;
static unsigned running;

static void over(echoing_t *e, weft_status_t st)
{
    weft_item_release(&e->item);
    if (st)
        weft_request_fail(e->request, WEFT_CODE_RESOURCE_EXHAUSTED, "its stream failed");
    else
        weft_request_reply(e->request, NULL, 0);
    weft_request_release(e->request);
    free(e);
    running--;
}

static void received(weft_op_t *op, void *user)
{
    echoing_t *e = (echoing_t *)user;
    weft_status_t st = op->status;
    if (!st && op->len) {
        st = weft_stream_send(e->request->stream, &e->item.value, &e->send);
        if (!st)
            return;
    }
    over(e, st);
}

static void sent(weft_op_t *op, void *user)
{
    echoing_t *e = (echoing_t *)user;
    weft_status_t st = op->status;
    weft_item_release(&e->item);
    if (!st)
        st = weft_stream_recv(e->request->stream, &e->item, &e->recv);
    if (st)
        over(e, st);
}

static void chat(weft_request_t *request, void *user)
{
    weft_request_t *kept = weft_request_keep(request);
    (void)user;
    if (!kept)
        return; /* it has been answered */
    echoing_t *e = (echoing_t *)calloc(1, sizeof *e);
    e->request = kept;
    e->recv.fn = received;
    e->send.fn = sent;
    e->recv.user = e->send.user = e;
    running++;
    weft_status_t st = weft_stream_recv(kept->stream, &e->item, &e->recv);
    if (st)
        over(e, st);
}

/* --- both ---------------------------------------------------------------------------------------------------------- */

static void open_all(const char *transports)
{
    couple_open(transports);
    CHECK_OK(weft_service_open(couple.rt[0], "talk", NULL, &service));
    CHECK_OK(weft_service_add(service, CHAT, chat, NULL, NULL));
    CHECK_OK(weft_client_on(couple.ep, NULL, &client));
}

static void close_all(void)
{
    couple_close_with(client, service);
}

static size_t len_of(unsigned i)
{
    return i % 10 == 9 ? LARGE : i % 4 == 3 ? 2000 : i;
}

/* Say N things, and hear them again. Whatever is heard is what was said, in order; all of it if nothing failed. */
static weft_status_t talk(void)
{
    weft_op_t op = WEFT_OP_INIT, recv = WEFT_OP_INIT, end = WEFT_OP_INIT;
    static weft_op_t sends[N];
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_stream_t *stream;
    weft_item_t item;
    weft_method_t *method;
    bool posted[N] = {false};
    weft_status_t st = weft_client_method(client, CHAT, &method), failed = WEFT_OK;
    if (!st)
        st = weft_call_stream(method, NULL, 0, NULL, &reply, &op, &stream);
    if (st)
        return st;
    for (unsigned i = 0; i < N && !failed; i++) {
        weft_value_t value = weft_text(text, len_of(i));
        failed = weft_stream_send(stream, &value, &sends[i]);
        posted[i] = !failed;
    }
    if (!failed)
        failed = weft_stream_end(stream, &end);
    bool ended = !failed;
    unsigned heard = 0;
    for (;;) {
        st = weft_stream_recv(stream, &item, &recv);
        if (!st)
            st = couple_finish(&recv);
        if (st || !recv.len)
            break;
        CHECK(heard < N);
        CHECK_EQ(item.value.view.n, len_of(heard));
        CHECK(!len_of(heard) || !memcmp(item.value.view.data, text, len_of(heard)));
        weft_item_release(&item);
        heard++;
        if (failed)
            break;
    }
    if (failed || st)
        weft_op_cancel(&op);
    weft_status_t called = couple_finish(&op);
    for (unsigned i = 0; i < N; i++) {
        weft_status_t how = posted[i] ? couple_finish(&sends[i]) : WEFT_OK;
        failed = failed ? failed : how;
    }
    if (ended)
        couple_finish(&end);
    if (!failed && !st && !called)
        CHECK_EQ(heard, N);
    weft_reply_release(&reply);
    weft_stream_release(stream);
    return failed ? failed : st ? st : called;
}

TEST(memory_runs_out_at_each_place)
{
    static const char *const transports[] = {"shm", "tcp"};
    memset(text, 'm', sizeof text);
    for (unsigned t = 0; t < 2; t++) {
        unsigned failures = 0;
        open_all(transports[t]);
        CHECK_OK(talk());
        for (long at = 0;; at++) {
            nomem_at(at, 1);
            weft_status_t st = talk();
            bool all = nomem_still_ahead();
            nomem_off();
            failures += st != WEFT_OK;
            for (double end = test_now() + 20; running && test_now() < end;)
                couple_drive();
            CHECK_EQ(running, 0);
            if (weft_ep_get_state(couple.ep) !=
                WEFT_EP_UP) { /* a reply that had no memory ends the connection: its caller must not wait */
                close_all();
                open_all(transports[t]);
            }
            CHECK_OK(talk());
            if (all) {
                CHECK_OK(st);
                break;
            }
            CHECK(at < 5000);
        }
        CHECK(failures > 10);
        close_all();
    }
}

/* --- an end that nobody waits for ---------------------------------------------------------------------------------- */

#define SINK "sink(values: stream u64) -> u64"
enum { CREDIT = 64, CROWD = 5000, CROWD_ID = 77 };

static weft_status_t sink_saw;

static void swallowed(weft_op_t *op, void *user)
{
    echoing_t *e = (echoing_t *)user;
    weft_status_t st = op->status;
    weft_value_t value = weft_u64(1);
    if (!st && op->len)
        st = weft_stream_recv(e->request->stream, &e->item, &e->recv);
    else if (!st)
        st = weft_request_reply(e->request, &value, 1) ? WEFT_ERR_CLOSED : WEFT_ERR_DONE;
    if (!st)
        return;
    sink_saw = st;
    if (st != WEFT_ERR_DONE)
        weft_request_fail(e->request, WEFT_CODE_RESOURCE_EXHAUSTED, "its stream failed");
    weft_request_release(e->request);
    free(e);
    running--;
}

static void sink(weft_request_t *request, void *user)
{
    (void)user;
    echoing_t *e = (echoing_t *)calloc(1, sizeof *e);
    e->request = weft_request_keep(request);
    CHECK(e->request);
    e->recv.fn = swallowed;
    e->recv.user = e;
    running++;
    CHECK_OK(weft_stream_recv(e->request->stream, &e->item, &e->recv));
}

static void ignored(weft_am_t *am, void *user)
{
    (void)am, (void)user;
}

/* The end waits behind a value that waits for credit. When that comes there is no space in the window, and `times` allocations
 * fail. */
static weft_status_t end_without_memory(weft_method_t *method, long times)
{
    static weft_op_t crowd[CROWD], sends[CREDIT + 1];
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_stream_t *stream;
    weft_value_t value = weft_u64(7);
    memset(sends, 0, sizeof sends);
    memset(crowd, 0, sizeof crowd);
    CHECK_OK(weft_call_stream(method, NULL, 0, NULL, &reply, &op, &stream));
    for (unsigned i = 0; i <= CREDIT; i++)
        CHECK_OK(weft_stream_send(stream, &value, &sends[i]));
    CHECK(!weft_op_done(&sends[CREDIT]));
    CHECK_OK(weft_stream_end(stream, NULL));
    for (unsigned i = 0; i < 100; i++)
        weft_runtime_progress(couple.rt[0]); /* it takes them, and gives credit */
    for (unsigned i = 0; i < CROWD; i++)
        CHECK_OK(weft_am_send(couple.ep, CROWD_ID, NULL, 0, "x", 1, &crowd[i]));
    CHECK(!weft_op_done(&crowd[CROWD - 1]));
    if (times)
        nomem_at(0, times);
    weft_runtime_progress(couple.rt[1]);
    nomem_off();
    weft_status_t st = couple_finish(&op);
    for (unsigned i = 0; i < CROWD; i++)
        (void)couple_finish(&crowd[i]);
    CHECK_EQ(couple_finish(&sends[CREDIT]) != WEFT_OK, times > 0);
    weft_reply_release(&reply);
    weft_stream_release(stream);
    return st;
}

TEST(an_end_that_nobody_waits_for_is_not_lost)
{
    for (long times = 0; times < 5; times++) {
        weft_method_t *method;
        weft_op_t checked = WEFT_OP_INIT;
        open_all("shm");
        CHECK_OK(weft_service_add(service, SINK, sink, NULL, NULL));
        CHECK_OK(weft_am_handle(couple.rt[0], CROWD_ID, ignored, NULL, NULL));
        CHECK_OK(weft_client_method(client, SINK, &method));
        CHECK_OK(weft_method_check(method, NULL, &checked));
        CHECK_OK(couple_finish(&checked));
        weft_status_t st = end_without_memory(method, times);
        for (double end = test_now() + 20; running && test_now() < end;)
            couple_drive();
        CHECK_EQ(running, 0);
        CHECK(st == WEFT_OK ? sink_saw == WEFT_ERR_DONE : times > 2 && sink_saw == WEFT_ERR_CANCELLED);
        close_all();
    }
}

/* --- values that wait while their call is answered ----------------------------------------------------------------------- */

#define POUR "pour() -> stream string"
enum { POURS = 8, VALUES = 5 };

static weft_op_t pouring[POURS][VALUES];
static unsigned pours;

static void pour(weft_request_t *request, void *user)
{
    weft_value_t value = weft_text(text, LARGE);
    weft_status_t st = WEFT_OK;
    (void)user;
    CHECK(pours < POURS);
    for (unsigned i = 0; i < VALUES && !st; i++) {
        pouring[pours][i] = (weft_op_t)WEFT_OP_INIT;
        st = weft_stream_send(request->stream, &value, &pouring[pours][i]);
    }
    pours++;
    if (st)
        weft_request_fail(request, WEFT_CODE_RESOURCE_EXHAUSTED, "its stream failed");
    else
        weft_request_reply(request, NULL, 0);
}

/* How many values came; -1: the stream or its call failed, and says so. */
static int drink(weft_stream_t *stream, weft_op_t *op)
{
    weft_op_t recv = WEFT_OP_INIT;
    weft_item_t item;
    int n = 0;
    for (;; n++) {
        weft_status_t st = weft_stream_recv(stream, &item, &recv);
        if (!st)
            st = couple_finish(&recv);
        if (st)
            weft_op_cancel(op);
        if (st || !recv.len)
            return couple_finish(op) || st ? -1 : n;
        CHECK_EQ(item.value.view.n, LARGE);
        weft_item_release(&item);
    }
}

/* Several at once, so that values wait for the window. All of them came: true. */
static bool pour_all(weft_method_t *method)
{
    static weft_op_t ops[POURS];
    static weft_reply_t replies[POURS];
    weft_stream_t *streams[POURS] = {NULL};
    bool whole = true;
    pours = 0;
    for (unsigned i = 0; i < POURS; i++) {
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        replies[i] = (weft_reply_t)WEFT_REPLY_INIT;
        if (weft_call_stream(method, NULL, 0, NULL, &replies[i], &ops[i], &streams[i]))
            streams[i] = NULL;
    }
    for (unsigned i = 0; i < POURS; i++) {
        int n = streams[i] ? drink(streams[i], &ops[i]) : -1;
        CHECK(n < 0 || n == VALUES);
        whole = whole && n == VALUES;
        weft_reply_release(&replies[i]);
        weft_stream_release(streams[i]);
    }
    for (unsigned i = 0; i < pours * VALUES; i++)
        (void)couple_finish(&pouring[i / VALUES][i % VALUES]);
    return whole;
}

static weft_method_t *open_pour(void)
{
    weft_method_t *method;
    open_all("tcp");
    CHECK_OK(weft_service_add(service, POUR, pour, NULL, NULL));
    CHECK_OK(weft_client_method(client, POUR, &method));
    CHECK(pour_all(method));
    return method;
}

TEST(a_stream_that_lacks_a_value_is_not_taken_for_a_whole_one)
{
    unsigned failures = 0;
    memset(text, 'm', sizeof text);
    CHECK_EQ(setenv("WEFT_AM_MESSAGES", "16", 1), 0);
    weft_method_t *method = open_pour();
    for (long at = 0, all = 0; !all; at++) {
        CHECK(at < 5000);
        nomem_at(at, 1);
        failures += !pour_all(method);
        all = nomem_still_ahead();
        nomem_off();
        if (weft_ep_get_state(couple.ep) != WEFT_EP_UP) {
            close_all();
            method = open_pour();
        }
    }
    CHECK(failures > 20);
    close_all();
}
