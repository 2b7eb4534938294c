/* tests/wire/msg_stream_queues.c - streams of a program that wait for operations, on a device that has fewer queues than the
 * program has streams, against a driver made of paper: what they wait for goes on, one too many is refused, and nothing is freed
 * meanwhile. ctest: label=thread gpu */
#include "test.h"

#include <weft/weft.h>

#include "conn/chunks.h"
#include "lib/cuda/use.h"
#include "lib/pair.h"

enum { SHORT = 3000, LONG = 1 << 20, STREAMS = 8, MAY = STREAMS - 1 };

static pair_t pair;
static void *context, *streams[STREAMS];
static uint8_t *from, *into[STREAMS], *seen; /* device, device, page-locked */

static void begin(void)
{
    void *page = NULL;
    setenv("PAPER_THREAD", "10", 1);
    setenv("PAPER_QUEUES", "8", 1);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&context, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(context), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&from, LONG), 0);
    CHECK_EQ(cu.MemsetD8((uintptr_t)from, 1, LONG), 0);
    for (int i = 0; i < STREAMS; i++) {
        CHECK_EQ(cu.StreamCreate(&streams[i], 1), 0);
        CHECK_EQ(cu.MemAlloc((uintptr_t *)&into[i], LONG), 0);
        CHECK_EQ(cu.MemsetD8((uintptr_t)into[i], 2, LONG), 0);
    }
    CHECK(!posix_memalign(&page, 4096, LONG));
    CHECK_EQ(cu.MemHostRegister(page, LONG, 1), 0);
    seen = page;
    use_settle();
    pair_open(&pair, &(pair_way_t){"shm", WEFT_PROGRESS_CALLER}, NULL);
}

static void end(void)
{
    pair_close(&pair);
    SEEN(live_events, 0);
    SEEN(stuck_frees, 0);
}

static weft_status_t wait_for(weft_op_t *op)
{
    return pair_wait(&pair, op, 30);
}

static weft_op_streams_t after(int i)
{
    weft_op_streams_t s = WEFT_OP_STREAMS_INIT;
    s.after = streams[i];
    return s;
}

static void expect(const uint8_t *device, size_t n, uint8_t value)
{
    static uint8_t host[LONG];
    CHECK_EQ(cu.MemcpyDtoH(host, (uintptr_t)device, n), 0);
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(host[i], value);
}

/* Receives that `count` streams wait for, then what they receive. `busy`: what the streams did last is a copy to the device, and
 * then from it. */
static void receive_in(int count, size_t n, bool busy)
{
    weft_op_t recv[STREAMS], send[STREAMS];
    weft_op_streams_t at[STREAMS];
    for (int i = 0; i < count; i++) {
        recv[i] = send[i] = (weft_op_t)WEFT_OP_INIT;
        at[i] = after(i);
        recv[i].streams = &at[i];
        if (busy && i & 1)
            CHECK_EQ(cu.MemcpyAsync((uintptr_t)seen, (uintptr_t)from, 64, streams[i]), 0);
        else if (busy)
            CHECK_EQ(cu.MemcpyAsync((uintptr_t)into[i], (uintptr_t)seen, 64, streams[i]), 0);
        if (busy) /* what waits is in the queue of the work before it, also when that is done */
            CHECK_EQ(cu.StreamSynchronize(streams[i]), 0);
        CHECK_OK(weft_msg_recv(pair.ep[1], into[i], n, (uint64_t)i, UINT64_MAX, &recv[i]));
    }
    for (int i = count; i--;)
        CHECK_OK(weft_msg_send(pair.ep[0], from, n, (uint64_t)i, &send[i]));
    for (int i = 0; i < count; i++) {
        CHECK_OK(wait_for(&recv[i]));
        CHECK_OK(wait_for(&send[i]));
    }
    for (int i = 0; i < count; i++)
        CHECK_EQ(cu.StreamSynchronize(streams[i]), 0);
    for (int i = 0; i < count; i++)
        expect(into[i], n, 1);
}

/* A kernel of the program's has the queue that is left: a copy within the device would come behind a stream that waits. */
TEST(as_many_streams_wait_as_may)
{
    begin();
    if (!use_real) {
        CHECK_EQ(cu.hold(streams[MAY]), 0);
        CHECK_EQ(cu.kernel(streams[MAY], (uintptr_t)into[MAY], 1, 7, 0), 0);
    }
    receive_in(MAY, LONG, false);
    receive_in(MAY, SHORT, false);
    if (!use_real)
        CHECK_EQ(cu.release(streams[MAY]), 0);
    end();
}

TEST(also_after_copies_of_their_own)
{
    begin();
    receive_in(MAY, SHORT, true);
    receive_in(MAY, LONG, true);
    end();
}

TEST(where_queues_are_left_copies_stay_within_the_device)
{
    begin();
    receive_in(STREAMS / 2, LONG, false);
    if (!use_real)
        CHECK_EQ(cu.paper->bytes_d2h, 0);
    end();
}

TEST(one_stream_too_many_is_refused_and_takes_no_place)
{
    begin();
    weft_op_t recv[MAY], more = WEFT_OP_INIT, again = WEFT_OP_INIT, send = WEFT_OP_INIT;
    weft_op_streams_t at[MAY], one_more = after(MAY);
    for (int i = 0; i < MAY; i++) {
        recv[i] = (weft_op_t)WEFT_OP_INIT;
        at[i] = after(i);
        recv[i].streams = &at[i];
        CHECK_OK(weft_msg_recv(pair.ep[1], into[i], SHORT, (uint64_t)i, UINT64_MAX, &recv[i]));
    }
    more.streams = &one_more;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(weft_msg_recv(pair.ep[1], into[MAY], SHORT, MAY, UINT64_MAX, &more), WEFT_ERR_LIMIT);
        CHECK(strstr(weft_last_error(), "CUDA_DEVICE_MAX_CONNECTIONS"));
    }
    CHECK_EQ(cu.StreamQuery(streams[MAY]), 0); /* it waits for nothing */
    again.streams = &at[0];                    /* one that waits already */
    CHECK_OK(weft_msg_recv(pair.ep[1], into[0], SHORT, 100, UINT64_MAX, &again));
    weft_op_cancel(&again);
    CHECK_EQ(wait_for(&again), WEFT_ERR_CANCELLED);
    CHECK_EQ(weft_msg_recv(pair.ep[1], into[MAY], SHORT, MAY, UINT64_MAX, &more), WEFT_ERR_LIMIT);
    weft_op_cancel(&recv[3]);
    CHECK_EQ(wait_for(&recv[3]), WEFT_ERR_CANCELLED);
    CHECK_OK(weft_msg_recv(pair.ep[1], into[MAY], SHORT, MAY, UINT64_MAX, &more)); /* there is a place now */
    CHECK_OK(weft_msg_send(pair.ep[0], from, SHORT, MAY, &send));
    CHECK_OK(wait_for(&more));
    CHECK_OK(wait_for(&send));
    CHECK_EQ(cu.StreamSynchronize(streams[MAY]), 0);
    for (int i = 0; i < MAY; i++) {
        weft_op_cancel(&recv[i]);
        (void)wait_for(&recv[i]);
        CHECK_EQ(cu.StreamSynchronize(streams[i]), 0);
    }
    end();
}

/* Each of these calls of the driver would wait for the stream. */
TEST(nothing_is_freed_while_a_stream_waits)
{
    begin();
    weft_op_t recv = WEFT_OP_INIT, send = WEFT_OP_INIT;
    weft_op_streams_t s = after(0);
    const weft_mem_kind_t *cuda = weft_mem_kind_find("cuda"), *pinned = weft_mem_kind_find("pinned");
    void *a = NULL, *b = NULL, *c = NULL;
    CHECK_OK(weft_mem_alloc(cuda, LONG, &a));
    CHECK_OK(weft_mem_alloc(pinned, LONG, &b));
    CHECK_OK(weft_mem_alloc(cuda, LONG, &c));
    recv.streams = &s;
    CHECK_OK(weft_msg_recv(pair.ep[1], into[0], LONG, 1, UINT64_MAX, &recv));
    unsigned live = use_real ? 0 : cu.paper->live, registered = use_real ? 0 : cu.paper->registered;
    weft_mem_free(cuda, a, LONG);
    weft_mem_free(pinned, b, LONG);
    SEEN(live, live);
    SEEN(registered, registered);
    for (double until = test_now() + 2.5; test_now() < until;) /* longer than anything is kept that nobody uses */
        pair_drive(&pair);
    CHECK(!weft_op_done(&recv));
    CHECK_OK(weft_msg_send(pair.ep[0], from, LONG, 1, &send));
    CHECK_OK(wait_for(&recv));
    CHECK_OK(wait_for(&send));
    CHECK_EQ(cu.StreamSynchronize(streams[0]), 0);
    live = use_real ? 0 : cu.paper->live;
    registered = use_real ? 0 : cu.paper->registered;
    weft_mem_free(cuda, c, LONG); /* now all three go */
    SEEN(live, live - 2);
    SEEN(registered, registered - 1);
    end();
}

/* A bounce buffer that nobody uses any more goes after a second, but not then. */
TEST(what_is_kept_for_a_second_is_kept_for_longer_then)
{
    begin();
    const weft_mem_kind_t *pool = weft_mem_kind_find("cuda-async");
    void *mine = NULL;
    wefti_bounce_min = 1;
    CHECK_OK(weft_mem_alloc(pool, LONG, &mine));
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    CHECK_OK(weft_msg_recv(pair.ep[1], into[0], LONG, 1, UINT64_MAX, &recv));
    CHECK_OK(weft_msg_send(pair.ep[0], mine, LONG, 1, &send));
    CHECK_OK(wait_for(&recv));
    CHECK_OK(wait_for(&send));
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(pair.rt[0], &stats));
    CHECK(stats.device_bounced > 0);
    weft_mem_free(pool, mine, LONG);
    recv = (weft_op_t)WEFT_OP_INIT;
    weft_op_streams_t s = after(0);
    recv.streams = &s;
    CHECK_OK(weft_msg_recv(pair.ep[1], into[0], LONG, 1, UINT64_MAX, &recv));
    for (double until = test_now() + 2.5; test_now() < until;)
        pair_drive(&pair);
    SEEN(stuck_frees, 0);
    weft_op_cancel(&recv);
    CHECK_EQ(wait_for(&recv), WEFT_ERR_CANCELLED);
    end();
}
