/* The small-message path neither allocates nor enters the kernel on shared memory. Allocations are counted by standing in front
 * of malloc; system calls by a parent that traces a child through a ping-pong between two runtimes. */
#define TEST_SECONDS 120
#include "lib/pair.h"
#include "lib/quiet.h"
#include "test.h"

enum { ROUNDS = 20000 };
static pair_t pair;

static void ping_pong(unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        weft_op_t recv[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, send[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
        uint64_t out = i, in[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            CHECK_OK(weft_msg_recv(pair.ep[side], &in[side], 8, i, WEFT_TAG_FULL, &recv[side]));
            CHECK_OK(weft_msg_send(pair.ep[1 - side], &out, 8, i, &send[side]));
            while (!weft_op_done(&recv[side]))
                weft_runtime_progress(pair.rt[side]);
        }
        CHECK(in[0] == i && in[1] == i);
    }
}

TEST(a_small_message_over_shared_memory_allocates_nothing)
{
    if (QUIET_SANITIZED)
        SKIP("the sanitizer has its own malloc");
    pair_open(&pair, &pair_ways[0], NULL);
    ping_pong(ROUNDS);
    uint64_t before = quiet_allocations();
    ping_pong(ROUNDS);
    uint64_t made = quiet_allocations() - before;
    printf("# %" PRIu64 " allocations in %d messages\n", made, 2 * ROUNDS);
    CHECK_EQ(made, 0);
    pair_close(&pair);
}

static void traced(void)
{
    pair_open(&pair, &pair_ways[0], NULL);
    ping_pong(ROUNDS);
    quiet_mark(true);
    ping_pong(ROUNDS);
    quiet_mark(false);
    pair_close(&pair);
}

TEST(a_small_message_over_shared_memory_makes_no_system_call)
{
    if (QUIET_SANITIZED)
        SKIP("not under a sanitizer");
    int64_t calls = quiet_calls(traced, NULL, 0);
    if (calls == -1)
        SKIP("tracing is not permitted here");
    CHECK(calls >= 0);
    printf("# %" PRId64 " system calls in %d messages (the wires are looked at every few milliseconds)\n", calls, 2 * ROUNDS);
    /* The stretch lasts tens of milliseconds: a look at the sockets every millisecond is allowed, one per hundred messages is
     * not. */
    CHECK(calls < 2 * ROUNDS / 100);
}
