/* The path of a small active message neither allocates nor enters the kernel, kept messages included once there were some; over
 * TCP those posted in a row travel together, and a lone one does not wait for company or for progress. */
#define TEST_SECONDS 120
#include <stdatomic.h>
#include <sys/syscall.h>

#include "base/alloc.h"
#include "lib/pair.h"
#include "lib/quiet.h"
#include "test.h"

enum { ROUNDS = 20000, ROW = 1000 };
static pair_t pair;

/* What the handlers do with a message. */
static enum { LOOK, KEEP, KEEP_SOME } how;
static uint64_t seen[2], sum[2];
enum { SHELF = 32 };
static weft_am_t *shelf[SHELF]; /* kept, the oldest makes room for the next */

static void handler(weft_am_t *am, void *user)
{
    int side = (int)(intptr_t)user;
    uint64_t word;
    memcpy(&word, am->header, sizeof word);
    sum[side] += word;
    if (how != LOOK) {
        weft_am_t **place = &shelf[how == KEEP ? 0 : seen[side] % SHELF];
        weft_am_release(*place);
        *place = weft_am_keep(am);
        if (!*place)
            abort();
    }
    seen[side]++;
}

static void begin(const char *transports)
{
    pair_way_t way = {transports, WEFT_PROGRESS_CALLER};
    pair_open(&pair, &way, NULL);
    for (int side = 0; side < 2; side++)
        CHECK_OK(weft_am_handle(pair.rt[side], 5, handler, (void *)(intptr_t)side, NULL));
    seen[0] = seen[1] = sum[0] = sum[1] = 0;
    how = LOOK;
    /* the first message may have to wait for its sender's part of the new connection, and so for its progress */
    for (int side = 0; side < 2; side++) {
        uint64_t word = 0;
        CHECK_OK(weft_am_send(pair.ep[1 - side], 5, &word, sizeof word, NULL, 0, NULL));
        PAIR_UNTIL(&pair, seen[side] == 1, 20);
    }
}

static void finish(void)
{
    for (unsigned i = 0; i < SHELF; i++) {
        weft_am_release(shelf[i]);
        shelf[i] = NULL;
    }
    pair_close(&pair);
}

/* One message each way and again: 8 bytes of header, `len` of payload; with an operation or none. */
static void ping_pong(unsigned rounds, size_t len, bool with_op)
{
    static const uint8_t out[2048];
    for (uint64_t i = 0; i < rounds; i++) {
        for (int side = 0; side < 2; side++) {
            weft_op_t send = WEFT_OP_INIT;
            uint64_t before = seen[side];
            CHECK_OK(weft_am_send(pair.ep[1 - side], 5, &i, sizeof i, out, len, with_op ? &send : NULL));
            CHECK(!with_op || weft_op_done(&send)); /* done when the post returns */
            while (seen[side] == before)
                weft_runtime_progress(pair.rt[side]);
        }
    }
}

/* The same into one-shot receives that were posted before, and into takes. */
static void ping_pong_received(unsigned rounds, bool take)
{
    for (uint64_t i = 0; i < rounds; i++) {
        for (int side = 0; side < 2; side++) {
            weft_op_t recv = WEFT_OP_INIT;
            weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
            uint64_t got = 0, word = i;
            want.id = 6;
            want.buf = &got;
            want.cap = sizeof got;
            CHECK_OK(take ? weft_am_take(pair.rt[side], NULL, 6, &recv) : weft_am_recv(pair.rt[side], &want, &recv));
            CHECK_OK(weft_am_send(pair.ep[1 - side], 6, NULL, 0, &word, sizeof word, NULL));
            while (!weft_op_done(&recv))
                weft_runtime_progress(pair.rt[side]);
            CHECK_OK(recv.status);
            CHECK(take || got == i);
            if (take)
                weft_am_release((weft_am_t *)recv.buf);
        }
    }
}

static void everything(unsigned rounds)
{
    how = LOOK;
    ping_pong(rounds, 0, true);
    ping_pong(rounds, 8, true);
    ping_pong(rounds, 1000, false);
    how = KEEP;
    ping_pong(rounds, 8, true);
    how = KEEP_SOME;
    ping_pong(rounds, 1000, false);
    ping_pong(rounds, 8, true);
    ping_pong_received(rounds, false);
    ping_pong_received(rounds, true);
}

TEST(a_small_message_over_shared_memory_allocates_nothing)
{
    if (QUIET_SANITIZED)
        SKIP("the sanitizer has its own malloc");
    begin("shm");
    everything(ROUNDS / 4);
    uint64_t before = quiet_allocations();
    everything(ROUNDS / 4);
    uint64_t made = quiet_allocations() - before;
    printf("# %" PRIu64 " allocations in %d messages\n", made, 8 * 2 * (ROUNDS / 4));
    CHECK_EQ(made, 0);
    finish();
}

/* UCX allocates as it likes: over TCP only our own are counted. */
static uint64_t ours;
static int count_ours(size_t n)
{
    (void)n;
    ours++;
    return 0;
}

TEST(a_small_message_over_tcp_allocates_nothing_of_ours)
{
    begin("tcp");
    everything(500);
    wefti_alloc_fails = count_ours;
    everything(500);
    wefti_alloc_fails = NULL;
    printf("# %" PRIu64 " allocations in %d messages\n", ours, 8 * 2 * 500);
    CHECK_EQ(ours, 0);
    finish();
}

static void traced(void)
{
    begin("shm");
    everything(ROUNDS / 4);
    quiet_mark(true);
    everything(ROUNDS / 4);
    quiet_mark(false);
    finish();
}

TEST(a_small_message_over_shared_memory_makes_no_system_call)
{
    if (QUIET_SANITIZED)
        SKIP("not under a sanitizer");
    int64_t calls = quiet_calls(traced, NULL, 0);
    if (calls == -1)
        SKIP("tracing is not permitted here");
    CHECK(calls >= 0);
    printf("# %" PRId64 " system calls in %d messages (the wires are looked at every few milliseconds)\n", calls,
           8 * 2 * (ROUNDS / 4));
    CHECK(calls < 8 * 2 * (ROUNDS / 4) / 100);
}

/* --- packing -------------------------------------------------------------------------------------------------------------- */

static void in_a_row(void)
{
    begin("tcp");
    how = LOOK;
    ping_pong(100, 8, true);
    uint64_t before = seen[0];
    double end = test_now() + 30;
    quiet_mark(true);
    for (uint64_t i = 0; i < ROW; i++)
        CHECK_OK(weft_am_send(pair.ep[1], 5, &i, sizeof i, &i, sizeof i, NULL));
    for (; seen[0] < before + ROW && test_now() < end; pair_drive(&pair))
        ;
    quiet_mark(false);
    CHECK_EQ(seen[0], before + ROW);
    finish();
}

TEST(messages_posted_in_a_row_over_tcp_travel_together)
{
    static const long sends[] = {SYS_write, SYS_writev, SYS_sendto, SYS_sendmsg, SYS_sendmmsg};
    if (QUIET_SANITIZED)
        SKIP("not under a sanitizer");
    int64_t calls = quiet_calls(in_a_row, sends, sizeof sends / sizeof *sends);
    if (calls == -1)
        SKIP("tracing is not permitted here");
    CHECK(calls >= 0);
    printf("# %" PRId64 " sends for %d messages\n", calls, ROW);
    CHECK(calls > 0 && calls < ROW / 20);
}

TEST(a_lone_message_leaves_at_once_and_needs_no_progress_of_its_sender)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        begin(transports[t]);
        how = LOOK;
        ping_pong(10, 8, true);
        for (unsigned i = 0; i < 20; i++) {
            weft_op_t send = WEFT_OP_INIT;
            uint64_t word = i, before = seen[0];
            double end = test_now() + 5;
            pair_run(&pair, 0.001);
            CHECK_OK(weft_am_send(pair.ep[1], 5, &word, sizeof word, &word, sizeof word, &send));
            CHECK(weft_op_done(&send));
            while (seen[0] == before && test_now() < end) /* only the receiver is driven */
                weft_runtime_progress(pair.rt[0]);
            CHECK_EQ(seen[0], before + 1);
        }
        finish();
    }
}
