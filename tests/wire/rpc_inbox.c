/* Operations of other threads that sit in the inbox while the driver lets go of what they belong to: a stream that is released, a
 * request that its on_cancel releases. Only a sanitizer sees memory that is used after it was freed.
 * ctest: tls timeout=120 label=thread shards */
#include <stdatomic.h>
#include <unistd.h>

#include "lib/desk.h"
#include "test.h"

#define each_threaded_way(way) \
    each_way(way) \
        if (way->mode == WEFT_PROGRESS_THREAD)

static desk_t desk;
static _Atomic(weft_request_t *) kept;
static _Atomic unsigned inside, posted;

static void keeps(weft_request_t *request, void *user)
{
    (void)user;
    atomic_store(&kept, weft_request_keep(request));
}

/* Hold the driver until the other thread has posted. */
static void hold_driver(void)
{
    atomic_store(&inside, 1);
    while (!atomic_load(&posted))
        usleep(100);
}

static void run_on(weft_runtime_t *rt, weft_run_fn fn, void *user, weft_op_t *op)
{
    atomic_store(&inside, 0);
    atomic_store(&posted, 0);
    CHECK_OK(weft_runtime_call(rt, fn, user, op));
    while (!atomic_load(&inside))
        usleep(100);
}

static void releases_stream(void *user)
{
    hold_driver();
    weft_stream_release((weft_stream_t *)user);
}

TEST(an_end_that_waits_to_be_started_while_its_stream_is_released)
{
    each_threaded_way(way)
    {
        weft_op_t op = WEFT_OP_INIT, run = WEFT_OP_INIT, end = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_stream_t *stream;
        desk_open(&desk, way, NULL);
        desk_add(&desk, "sum(v: stream u64) -> u64", keeps, NULL);
        atomic_store(&kept, NULL);
        CHECK_OK(weft_call_stream(desk_method(&desk, "sum(v: stream u64) -> u64"), NULL, 0, NULL, &reply, &op, &stream));
        PAIR_UNTIL(&desk.pair, atomic_load(&kept) != NULL, 20);
        run_on(desk.pair.rt[1], releases_stream, stream, &run);
        CHECK_OK(weft_stream_end(stream, &end));
        atomic_store(&posted, 1);
        CHECK_EQ(pair_wait(&desk.pair, &end, 20), WEFT_ERR_CANCELLED);
        CHECK_EQ(pair_wait(&desk.pair, &op, 20), WEFT_ERR_CANCELLED);
        CHECK_OK(pair_wait(&desk.pair, &run, 20));
        weft_reply_release(&reply);
        weft_request_release(atomic_load(&kept));
        desk_close(&desk);
    }
}

static void releases(weft_request_t *request, void *user)
{
    atomic_fetch_add((_Atomic unsigned *)user, 1);
    weft_request_release(request);
}

static void closes_service(void *user)
{
    (void)user;
    hold_driver();
    CHECK_OK(weft_service_close(desk.service, NULL));
}

TEST(a_fetch_that_waits_to_be_started_while_its_request_is_released)
{
    static uint8_t bytes[300000], room[300064];
    each_threaded_way(way)
    {
        _Atomic unsigned told = 0;
        weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT, run = WEFT_OP_INIT, fetch = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t v = weft_vector(WEFT_T_U8, bytes, sizeof bytes);
        desk_open(&desk, way, NULL);
        fo.fetch = true;
        CHECK_OK(weft_service_add(desk.service, "size(v: [u8]) -> u64", keeps, NULL, &fo));
        atomic_store(&kept, NULL);
        CHECK_OK(weft_call(desk_method(&desk, "size(v: [u8]) -> u64"), &v, 1, &reply, &op));
        PAIR_UNTIL(&desk.pair, atomic_load(&kept) != NULL, 20);
        weft_request_on_cancel(atomic_load(&kept), releases, (void *)&told);
        run_on(desk.pair.rt[0], closes_service, NULL, &run);
        CHECK_OK(weft_request_fetch(atomic_load(&kept), room, sizeof room, NULL, &fetch));
        atomic_store(&posted, 1);
        CHECK_EQ(pair_wait(&desk.pair, &fetch, 20), WEFT_ERR_STATE); /* it was answered without them */
        CHECK_EQ(atomic_load(&told), 1);
        CHECK_EQ(pair_wait(&desk.pair, &op, 20), WEFT_ERR_CALL);
        CHECK_EQ(reply.code, WEFT_CODE_UNAVAILABLE);
        CHECK_OK(pair_wait(&desk.pair, &run, 20));
        weft_reply_release(&reply);
        CHECK_OK(weft_service_open(desk.pair.rt[0], "calc", NULL, &desk.service)); /* for desk_close() */
        desk_close(&desk);
    }
}
