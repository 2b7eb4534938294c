/* tests/wire/msg_streams.c - operations that take their turn in streams of a GPU, against a driver made of paper: they begin
 * behind a stream's work and hold its later work back, and no end of theirs leaves a stream behind. ctest: label=thread */
#include "test.h"

#include <weft/weft.h>

#include "base/alloc.h"
#include "lib/cuda/use.h"
#include "lib/pair.h"

enum { N = 3000, LONG = 1 << 20 };
#define DELAY (20 * WEFT_MILLISECOND)

static pair_t pair;
static void *context, *stream, *other_stream;
static uint8_t *from, *into, *seen; /* device, device, page-locked */

static void begin(void)
{
    void *page = NULL;
    setenv("PAPER_THREAD", "10", 1);
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&context, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(context), 0);
    CHECK_EQ(cu.StreamCreate(&stream, 1), 0);
    CHECK_EQ(cu.StreamCreate(&other_stream, 1), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&from, LONG), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&into, LONG), 0);
    CHECK(!posix_memalign(&page, 4096, LONG));
    CHECK_EQ(cu.MemHostRegister(page, LONG, 1), 0);
    seen = page;
    CHECK_EQ(cu.MemsetD8((uintptr_t)from, 1, LONG), 0);
    CHECK_EQ(cu.MemsetD8((uintptr_t)into, 2, LONG), 0);
    pair_open(&pair, &(pair_way_t){"shm", WEFT_PROGRESS_CALLER}, NULL);
}

static void end(void)
{
    pair_close(&pair);
    SEEN(live_events, 0);
}

static weft_op_t op_in(const weft_op_streams_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    op.streams = s;
    return op;
}

static weft_status_t wait_for(weft_op_t *op)
{
    return pair_wait(&pair, op, 30);
}

static bool all_are(const uint8_t *device, size_t n, uint8_t value)
{
    static uint8_t host[LONG];
    CHECK_EQ(cu.MemcpyDtoH(host, (uintptr_t)device, n), 0);
    for (size_t i = 0; i < n; i++)
        if (host[i] != value)
            return false;
    return true;
}

static void kernel(void *on, uint8_t *to, size_t n, int byte)
{
    CHECK_EQ(cu.kernel(on, (uintptr_t)to, n, byte, DELAY), 0);
}

static void send_behind(size_t n, bool by_event)
{
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    void *event = NULL;
    kernel(stream, from, n, 9);
    if (by_event) {
        CHECK_EQ(cu.EventCreate(&event, 2), 0);
        CHECK_EQ(cu.EventRecord(event, stream), 0);
        s.before_event = event;
    } else {
        s.before = stream;
    }
    unsigned waits = cu.paper->waits;
    weft_op_t send = op_in(&s), recv = WEFT_OP_INIT;
    CHECK_OK(weft_msg_recv(pair.ep[1], into, n, 1, UINT64_MAX, &recv));
    CHECK_OK(weft_msg_send(pair.ep[0], from, n, 1, &send));
    CHECK(!weft_op_done(&send));
    CHECK_OK(wait_for(&recv));
    CHECK_OK(wait_for(&send));
    CHECK(all_are(into, n, 9));
    CHECK_EQ(cu.paper->waits, waits);
    if (event)
        CHECK_EQ(cu.EventDestroy(event), 0);
}

TEST(a_send_begins_behind_the_work_of_a_stream)
{
    begin();
    send_behind(N, false);
    end();
}

TEST(and_a_long_one)
{
    begin();
    send_behind(LONG, false);
    end();
}

TEST(and_one_behind_an_event)
{
    begin();
    send_behind(N, true);
    end();
}

TEST(a_send_that_nobody_holds_back_does_not_wait)
{
    begin();
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    kernel(stream, from, N, 9);
    CHECK_OK(weft_msg_recv(pair.ep[1], into, N, 1, UINT64_MAX, &recv));
    CHECK_OK(weft_msg_send(pair.ep[0], from, N, 1, &send));
    CHECK_OK(wait_for(&recv));
    CHECK(all_are(into, N, 1)); /* what was there before the kernel: so the tests above show something */
    CHECK_OK(wait_for(&send));
    end();
}

TEST(to_wait_for_a_stream_is_no_copy)
{
    begin();
    weft_runtime_stats_t before = WEFT_RUNTIME_STATS_INIT, after = WEFT_RUNTIME_STATS_INIT;
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    char text[] = "text", got[8];
    s.before = stream;
    weft_op_t send = op_in(&s), recv = WEFT_OP_INIT;
    CHECK_OK(weft_runtime_get_stats(pair.rt[0], &before));
    kernel(stream, from, N, 9);
    CHECK_OK(weft_msg_recv(pair.ep[1], got, sizeof got, 1, UINT64_MAX, &recv));
    CHECK_OK(weft_msg_send(pair.ep[0], text, sizeof text, 1, &send));
    CHECK(!weft_op_done(&send));
    CHECK_OK(wait_for(&recv));
    CHECK_OK(wait_for(&send));
    CHECK_OK(weft_runtime_get_stats(pair.rt[0], &after));
    CHECK_EQ(after.device_copies, before.device_copies);
    end();
}

TEST(sends_keep_their_order_also_behind_one_that_waits_for_a_stream)
{
    begin();
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.before = stream;
    char got[4][8];
    weft_op_t send[4], recv[4];
    kernel(stream, from, N, 9);
    for (int i = 0; i < 4; i++) {
        recv[i] = op_in(NULL);
        CHECK_OK(weft_msg_recv(pair.ep[1], got[i], sizeof got[i], 1, UINT64_MAX, &recv[i]));
    }
    for (int i = 0; i < 4; i++) {
        static const char *const text[] = {"first", "second", "third", "fourth"};
        send[i] = op_in(i == 1 ? &s : NULL);
        CHECK_OK(weft_msg_send(pair.ep[0], text[i], strlen(text[i]) + 1, 1, &send[i]));
    }
    for (int i = 0; i < 4; i++)
        CHECK_OK(wait_for(&recv[i]));
    CHECK_STR(got[0], "first");
    CHECK_STR(got[1], "second");
    CHECK_STR(got[2], "third");
    CHECK_STR(got[3], "fourth");
    for (int i = 0; i < 4; i++)
        CHECK_OK(wait_for(&send[i]));
    end();
}

TEST(a_receive_begins_behind_the_work_of_a_stream)
{
    begin();
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.before = stream;
    kernel(stream, into, N, 9); /* a kernel that still uses the buffer */
    weft_op_t recv = op_in(&s), send = WEFT_OP_INIT;
    CHECK_OK(weft_msg_recv(pair.ep[1], into, N, 1, UINT64_MAX, &recv));
    CHECK_OK(weft_msg_send(pair.ep[0], from, N, 1, &send));
    CHECK_OK(wait_for(&recv));
    CHECK_OK(wait_for(&send));
    CHECK(all_are(into, N, 1));
    end();
}

TEST(a_stream_goes_on_when_a_receive_is_complete)
{
    begin();
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.after = stream;
    weft_op_t recv = op_in(&s), send = WEFT_OP_INIT;
    CHECK_OK(weft_msg_recv(pair.ep[1], into, N, 1, UINT64_MAX, &recv));
    CHECK_EQ(cu.MemcpyAsync((uintptr_t)seen, (uintptr_t)into, N, stream), 0); /* what a kernel would read */
    for (int i = 0; i < 2000; i++)
        pair_drive(&pair);
    CHECK_EQ(cu.StreamQuery(stream), 600);
    CHECK_OK(weft_msg_send(pair.ep[0], from, N, 1, &send));
    CHECK_OK(wait_for(&recv));
    CHECK_EQ(cu.StreamSynchronize(stream), 0);
    for (int i = 0; i < N; i++)
        CHECK_EQ(seen[i], 1);
    CHECK_OK(wait_for(&send));
    end();
}

TEST(however_an_operation_ends_its_stream_goes_on)
{
    begin();
    for (int how = 0; how < 4; how++) {
        weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
        s.after = stream;
        if (how == 1) { /* cancelled before it began: it waits for a stream that never comes so far */
            CHECK_EQ(cu.hold(other_stream), 0);
            kernel(other_stream, into, N, 3);
            s.before = other_stream;
        }
        weft_op_t recv = op_in(&s);
        if (how == 2)
            recv.timeout_ns = 5 * WEFT_MILLISECOND;
        CHECK_OK(weft_msg_recv(pair.ep[1], into, N, 7, UINT64_MAX, &recv));
        CHECK_EQ(cu.StreamQuery(stream), 600);
        if (how < 2)
            weft_op_cancel(&recv);
        if (how == 3) { /* refused by the post itself */
            weft_op_t again = op_in(&s);
            CHECK_EQ(weft_msg_recv(pair.ep[1], NULL, N, 7, UINT64_MAX, &again), WEFT_ERR_INVALID);
            weft_op_cancel(&recv);
        }
        CHECK_EQ(wait_for(&recv), how == 2 ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED);
        CHECK_EQ(cu.StreamSynchronize(stream), 0);
        if (how == 1)
            CHECK_EQ(cu.release(other_stream), 0);
    }
    end();
}

TEST(a_send_that_is_cancelled_behind_a_stream_lets_others_pass)
{
    begin();
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.before = stream;
    CHECK_EQ(cu.hold(stream), 0);
    kernel(stream, from, N, 3);
    weft_op_t held = op_in(&s), send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    CHECK_OK(weft_msg_send(pair.ep[0], from, N, 1, &held));
    CHECK_OK(weft_msg_send(pair.ep[0], from, N, 2, &send));
    CHECK_OK(weft_msg_recv(pair.ep[1], into, N, 2, UINT64_MAX, &recv));
    for (int i = 0; i < 2000; i++)
        pair_drive(&pair);
    CHECK(!weft_op_done(&held) && !weft_op_done(&recv));
    weft_op_cancel(&held);
    CHECK_EQ(wait_for(&held), WEFT_ERR_CANCELLED);
    CHECK_OK(wait_for(&recv));
    CHECK_OK(wait_for(&send));
    CHECK_EQ(cu.release(stream), 0);
    end();
}

TEST(a_runtime_closes_over_operations_that_wait_for_streams)
{
    begin();
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.before = stream;
    s.after = other_stream;
    CHECK_EQ(cu.hold(stream), 0);
    kernel(stream, from, N, 3);
    weft_op_t send = op_in(&s), recv = op_in(&s);
    CHECK_OK(weft_msg_send(pair.ep[0], from, N, 1, &send));
    CHECK_OK(weft_msg_recv(pair.ep[0], into, N, 1, UINT64_MAX, &recv));
    end(); /* the stream never comes so far */
    CHECK(weft_op_done(&send) && weft_op_done(&recv));
    CHECK_EQ(cu.StreamSynchronize(other_stream), 0);
}

/* --- pulls of handlers ------------------------------------------------------------------------------------------------------ */

typedef struct taker {
    weft_op_t *op;
    bool keep, cancel;
    weft_am_t *kept;
    unsigned runs, failed;
} taker_t;

static void take(weft_am_t *am, void *user)
{
    taker_t *t = user;
    t->runs++;
    CHECK_OK(weft_am_pull(am, into, LONG, t->op));
    CHECK(!weft_op_done(t->op));
    if (t->keep)
        CHECK((t->kept = weft_am_keep(am)));
    weft_op_t again = WEFT_OP_INIT;
    CHECK_EQ(weft_am_pull(am, into, LONG, &again), WEFT_ERR_STATE);
    if (t->cancel)
        weft_op_cancel(t->op);
}

/* The handler has returned long before its pull begins. */
static void pull_behind(size_t n, bool keep, bool cancel)
{
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.before = stream;
    weft_op_t pull = op_in(&s), send = WEFT_OP_INIT, set = WEFT_OP_INIT;
    taker_t t = {.op = &pull, .keep = keep, .cancel = cancel};
    CHECK_OK(weft_am_handle(pair.rt[1], 5, take, &t, &set));
    CHECK_OK(wait_for(&set));
    CHECK_EQ(cu.hold(stream), 0);
    kernel(stream, into, n, 3);
    CHECK_OK(weft_am_send(pair.ep[0], 5, "head", 5, from, n, &send));
    for (int i = 0; i < 100000 && !t.runs; i++)
        pair_drive(&pair);
    for (int i = 0; i < 2000; i++)
        pair_drive(&pair);
    CHECK_EQ(t.runs, 1);
    CHECK_EQ(weft_op_done(&pull), cancel);
    CHECK_EQ(cu.release(stream), 0);
    CHECK_EQ(wait_for(&pull), cancel ? WEFT_ERR_CANCELLED : WEFT_OK);
    CHECK_EQ(pull.len, n);
    if (keep) {
        CHECK(!memcmp(t.kept->header, "head", 5));
        if (cancel) { /* it is there for another */
            weft_op_t other = WEFT_OP_INIT;
            CHECK_EQ(cu.StreamSynchronize(stream), 0); /* its kernel writes there, too */
            CHECK_OK(weft_am_pull(t.kept, into, LONG, &other));
            CHECK_OK(wait_for(&other));
        }
        weft_am_release(t.kept);
    }
    if (keep || !cancel) {
        CHECK_OK(wait_for(&send));
        CHECK(all_are(into, n, 1));
    }
    weft_op_t gone = WEFT_OP_INIT;
    CHECK_OK(weft_am_handle(pair.rt[1], 5, NULL, NULL, &gone));
    CHECK_OK(wait_for(&gone));
    weft_runtime_stats_t held = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(pair.rt[1], &held));
    CHECK_EQ(held.am_held, 0);
    CHECK_EQ(held.am_held_bytes, 0);
    if (!weft_op_done(&send))
        (void)wait_for(&send);
}

TEST(a_pull_of_a_handler_may_wait_for_a_stream)
{
    begin();
    pull_behind(8, false, false);
    pull_behind(N, false, false);
    pull_behind(LONG, false, false);
    end();
}

TEST(and_its_message_may_be_kept_all_the_same)
{
    begin();
    pull_behind(N, true, false);
    pull_behind(LONG, true, false);
    end();
}

TEST(and_it_may_be_cancelled_in_the_handler)
{
    begin();
    pull_behind(N, false, true);
    pull_behind(LONG, false, true);
    pull_behind(N, true, true);
    pull_behind(LONG, true, true);
    end();
}

static long allocations; /* that succeed until one fails */

static int runs_out(size_t n)
{
    (void)n;
    return !allocations--;
}

static void take_without_memory(weft_am_t *am, void *user)
{
    taker_t *t = user;
    weft_status_t st = WEFT_ERR_NOMEM;
    t->runs++;
    for (long at = 0; at < 100 && st; at++) {
        allocations = at;
        wefti_alloc_fails = runs_out;
        st = weft_am_pull(am, into, LONG, t->op);
        wefti_alloc_fails = NULL;
        if (st)
            CHECK_EQ(st, WEFT_ERR_NOMEM);
        t->failed += st != WEFT_OK;
    }
    CHECK_OK(st);
}

TEST(and_it_may_find_no_memory)
{
    begin();
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.before = stream;
    weft_op_t pull = op_in(&s), send = WEFT_OP_INIT, set = WEFT_OP_INIT;
    taker_t t = {.op = &pull};
    CHECK_OK(weft_am_handle(pair.rt[1], 5, take_without_memory, &t, &set));
    CHECK_OK(wait_for(&set));
    CHECK_EQ(cu.hold(stream), 0); /* so that the gate is closed, however long this takes */
    kernel(stream, into, N, 3);
    CHECK_OK(weft_am_send(pair.ep[0], 5, NULL, 0, from, N, &send));
    CHECK_OK(wait_for(&send));
    for (int i = 0; i < 100000 && !t.runs; i++)
        pair_drive(&pair);
    CHECK_EQ(t.runs, 1);
    CHECK(t.failed >= 2); /* the gate, the message */
    CHECK_EQ(cu.release(stream), 0);
    CHECK_OK(wait_for(&pull));
    CHECK(all_are(into, N, 1));
    end();
}

TEST(active_messages_and_remote_memory_take_their_turn_too)
{
    begin();
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.before = stream;
    kernel(stream, from, N, 9);
    weft_op_t send = op_in(&s), recv = WEFT_OP_INIT, attach = WEFT_OP_INIT;
    weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
    want.ep = pair.ep[1];
    want.id = 5;
    want.buf = into;
    want.cap = N;
    CHECK_OK(weft_am_recv(pair.rt[1], &want, &recv));
    CHECK_OK(weft_am_send(pair.ep[0], 5, NULL, 0, from, N, &send));
    CHECK_OK(wait_for(&recv));
    CHECK_OK(wait_for(&send));
    CHECK(all_are(into, N, 9));
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t key_n = sizeof key;
    weft_region_t *region;
    o.len = N;
    CHECK_OK(weft_region_new(pair.rt[1], &o, &region));
    CHECK_OK(weft_region_key(region, NULL, key, &key_n));
    CHECK_OK(weft_remote_attach(pair.ep[0], key, key_n, NULL, &attach));
    CHECK_OK(wait_for(&attach));
    weft_remote_t *remote = weft_op_remote(&attach);
    kernel(stream, from, N, 4);
    weft_op_t write = op_in(&s), bad = op_in(&s);
    CHECK_OK(weft_rma_write(remote, 0, from, N, &write));
    CHECK_OK(wait_for(&write));
    for (int i = 0; i < N; i++)
        CHECK_EQ(((uint8_t *)weft_region_base(region))[i], 4);
    CHECK_EQ(weft_timer_start(pair.rt[0], 1, &bad), WEFT_ERR_UNSUPPORTED);
    weft_remote_drop(remote);
    end();
}

/* --- handles that are none -------------------------------------------------------------------------------------------------- */

static void refused(const weft_op_streams_t *s, const char *field)
{
    weft_op_t op = op_in(s);
    CHECK_EQ(weft_msg_send(pair.ep[0], from, N, 1, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_last_error_status(), WEFT_ERR_INVALID);
    if (!strstr(weft_last_error(), field) || !strstr(weft_last_error(), "CUDA_ERROR_"))
        FAIL("\"%s\" does not name %s", weft_last_error(), field);
}

TEST(a_handle_that_is_none_is_refused_and_its_field_named)
{
    begin();
    use_only_paper(); /* a real driver may do anything with them */
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    void *event;
    CHECK_EQ(cu.EventCreate(&event, 2), 0);
    CHECK_EQ(cu.EventDestroy(event), 0);
    CHECK_EQ(cu.StreamDestroy(other_stream), 0);
    s.before = other_stream;
    refused(&s, "`before`");
    s.before = NULL;
    s.before_event = event;
    refused(&s, "`before_event`");
    s.before_event = NULL;
    s.after = other_stream;
    refused(&s, "`after`");
    s.before = stream;
    refused(&s, "`after`");
    static const int handles[] = {1, 201, 400, 709};
    for (unsigned i = 0; i < 4; i++) {
        s.after = NULL;
        s.before = stream;
        cu.fail("cuEventRecord", 0, handles[i], 1);
        refused(&s, "`before`");
    }
    cu.fail("cuEventRecord", 0, 999, 1); /* that is no word about the handle */
    weft_op_t op = op_in(&s);
    CHECK_EQ(weft_msg_send(pair.ep[0], from, N, 1, &op), WEFT_ERR_SYSTEM);
    CHECK(strstr(weft_last_error(), "`before`: CUDA_ERROR_UNKNOWN"));
    send_behind(N, false);
    end();
}
