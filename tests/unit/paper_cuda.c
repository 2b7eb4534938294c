/* tests/unit/paper_cuda.c - the CUDA driver made of paper that other tests run on: what is done when, memory, other processes,
 * failures. ctest: label=thread timeout=120 */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "lib/cuda/use.h"

#define MS ((uint64_t)1000000)
#define NEVER ((uint64_t)3600 * 1000 * MS)

enum { NOT_READY = 600, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };

/* Load it, start it, and have the primary context of a device. */
static void begin(int device)
{
    void *ctx;
    use_paper();
    CHECK_EQ(cu.Init(0), 0);
    CHECK_EQ(cu.PrimaryRetain(&ctx, device), 0);
    CHECK_EQ(cu.CtxPushCurrent(ctx), 0);
}

static uintptr_t alloc(size_t n)
{
    uintptr_t p = 0;
    CHECK_EQ(cu.MemAlloc(&p, n), 0);
    return p;
}

static uint64_t attribute(int which, uintptr_t p)
{
    uint64_t value = 0;
    CHECK_EQ(cu.PointerGetAttribute(&value, which, p), 0);
    return value;
}

static void *stream(void)
{
    void *s;
    CHECK_EQ(cu.StreamCreate(&s, 1), 0);
    return s;
}

static void *event(void)
{
    void *e;
    CHECK_EQ(cu.EventCreate(&e, 2), 0);
    return e;
}

/* Is all of it that byte? */
static bool all(uintptr_t p, size_t n, uint8_t byte)
{
    uint8_t *is = malloc(n);
    bool same = true;
    CHECK_EQ(cu.MemcpyDtoH(is, p, n), 0);
    for (size_t i = 0; i < n; i++)
        same = same && is[i] == byte;
    free(is);
    return same;
}

/* --- when it is done ------------------------------------------------------------------------------------------------------ */

TEST(a_copy_is_done_when_somebody_looks)
{
    begin(0);
    uint8_t in[100], out[100] = {0};
    uintptr_t p = alloc(100);
    void *s = stream();
    memset(in, 1, sizeof in);
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)in, 100, s), 0);
    CHECK_EQ(cu.MemcpyAsync((uintptr_t)out, p, 100, s), 0);
    CHECK(!out[0] && !cu.paper->copies);
    memset(in, 2, sizeof in); /* too early: the copy reads it only now */
    CHECK_EQ(cu.StreamQuery(s), 0);
    CHECK(out[0] == 2 && out[99] == 2);
    CHECK(memcmp((void *)p, out, 100)); /* encoded */
    CHECK(cu.paper->copies == 2 && cu.paper->copies_by_kernel == 2 && !cu.paper->waits);
    CHECK(cu.paper->bytes_h2d == 100 && cu.paper->bytes_d2h == 100 && !cu.paper->bytes_d2d);
    CHECK_EQ(cu.StreamDestroy(s), 0);
    CHECK_EQ(cu.StreamQuery(s), INVALID_HANDLE);
    CHECK_EQ(cu.MemFree(p), 0);
    CHECK(!cu.paper->live && !cu.paper->live_streams);
}

TEST(copies_take_the_time_they_are_told)
{
    begin(0);
    uint8_t in[4096] = {0};
    uintptr_t p = alloc(4096);
    void *s = stream(), *e = event();
    cu.paper->copy_ns_per_kib = 5 * MS;
    double start = test_now();
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)in, 4096, s), 0);
    CHECK_EQ(cu.EventRecord(e, s), 0);
    CHECK_EQ(cu.EventQuery(e), NOT_READY);
    CHECK_EQ(cu.StreamQuery(s), NOT_READY);
    CHECK_EQ(cu.EventSynchronize(e), 0);
    CHECK(test_now() - start >= 0.02);
    CHECK_EQ(cu.StreamQuery(s), 0);
    CHECK_EQ(cu.paper->waits, 1);
    cu.paper->copy_ns_per_kib = 0;
    cu.paper->copy_ns = NEVER;
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)in, 4096, s), 0);
    CHECK_EQ(cu.StreamQuery(s), NOT_READY);
    CHECK_EQ(cu.EventQuery(e), 0); /* recorded before it */
}

TEST(a_stream_waits_for_an_event_of_another)
{
    begin(0);
    uintptr_t p = alloc(10), q = alloc(10);
    void *a = stream(), *b = stream(), *e = event();
    CHECK_EQ(cu.MemsetD8(p, 1, 10), 0);
    CHECK_EQ(cu.EventQuery(e), 0); /* never recorded */
    CHECK_EQ(cu.hold(a), 0);
    CHECK_EQ(cu.kernel(a, p, 10, 2, 0), 0);
    CHECK_EQ(cu.EventRecord(e, a), 0);
    CHECK_EQ(cu.StreamWaitEvent(b, e, 0), 0);
    CHECK_EQ(cu.EventDestroy(e), 0); /* what waits for it still does */
    CHECK_EQ(cu.EventQuery(e), INVALID_HANDLE);
    CHECK_EQ(cu.MemcpyAsync(q, p, 10, b), 0);
    CHECK_EQ(cu.StreamQuery(b), NOT_READY);
    CHECK_EQ(cu.release(a), 0);
    CHECK_EQ(cu.StreamQuery(b), 0);
    CHECK(all(q, 10, 2));
    CHECK(cu.paper->events == 1 && !cu.paper->live_events && cu.paper->bytes_d2d == 10);
}

TEST(a_wait_is_for_the_recording_before_it)
{
    begin(0);
    void *a = stream(), *b = stream(), *e = event();
    uintptr_t p = alloc(1);
    CHECK_EQ(cu.EventRecord(e, a), 0);
    CHECK_EQ(cu.StreamWaitEvent(b, e, 0), 0);
    CHECK_EQ(cu.kernel(a, p, 1, 1, NEVER), 0);
    CHECK_EQ(cu.EventRecord(e, a), 0);
    CHECK_EQ(cu.StreamQuery(b), 0);
    CHECK_EQ(cu.EventQuery(e), NOT_READY);
}

TEST(values_are_waited_for_and_written)
{
    begin(0);
    static _Atomic uint32_t host;
    uintptr_t p = alloc(64);
    void *a = stream(), *b = stream();
    CHECK_EQ(cu.MemsetD8(p, 0, 64), 0);
    CHECK_EQ(cu.StreamWaitValue32(a, (uintptr_t)&host, 1, 0), INVALID_VALUE); /* not registered */
    CHECK_EQ(cu.MemHostRegister(&host, sizeof host, 1), 0);
    CHECK_EQ(cu.StreamWaitValue32(a, (uintptr_t)&host, 5, 0), 0);
    CHECK_EQ(cu.StreamWriteValue32(a, p + 4, 7, 0), 0);
    CHECK_EQ(cu.StreamWaitValue32(b, p + 4, 7, 1), 0);
    CHECK_EQ(cu.StreamWriteValue32(b, (uintptr_t)&host, 100, 0), 0);
    CHECK_EQ(cu.StreamQuery(b), NOT_READY);
    atomic_store(&host, 5);
    CHECK_EQ(cu.StreamQuery(b), 0);
    CHECK_EQ(atomic_load(&host), 100);
    CHECK_EQ(cu.StreamWaitValue32(b, p + 3, 7, 1), INVALID_VALUE);
    CHECK_EQ(cu.MemHostUnregister(&host), 0);
}

static int inside;
static void host_function(void *arg)
{
    inside = cu.StreamQuery(NULL);
    ++*(int *)arg;
}

TEST(host_functions_run_in_order_and_may_make_no_calls)
{
    begin(0);
    int calls = 0;
    void *s = stream();
    uintptr_t p = alloc(8);
    CHECK_EQ(cu.kernel(s, p, 8, 1, 5 * MS), 0);
    CHECK_EQ(cu.LaunchHostFunc(s, host_function, &calls), 0);
    CHECK_EQ(cu.StreamQuery(s), NOT_READY);
    CHECK_EQ(calls, 0);
    CHECK_EQ(cu.StreamSynchronize(s), 0);
    CHECK_EQ(calls, 1);
    CHECK_EQ(inside, 800);
}

TEST(the_default_stream_and_blocking_ones_wait_for_each_other)
{
    begin(0);
    void *blocking, *s = stream();
    uintptr_t p = alloc(8);
    CHECK_EQ(cu.StreamCreate(&blocking, 0), 0);
    CHECK_EQ(cu.kernel((void *)1, p, 8, 1, NEVER), 0);
    CHECK_EQ(cu.StreamQuery(blocking), 0); /* it has nothing to do */
    CHECK_EQ(cu.kernel(blocking, p, 8, 2, 0), 0);
    CHECK_EQ(cu.kernel((void *)2, p, 8, 2, 0), 0);
    CHECK_EQ(cu.kernel(s, p, 8, 3, 0), 0);
    CHECK_EQ(cu.StreamQuery(s), 0);
    CHECK_EQ(cu.StreamQuery(blocking), NOT_READY);
    CHECK_EQ(cu.StreamQuery((void *)2), NOT_READY);
    CHECK_EQ(cu.StreamQuery(NULL), NOT_READY);
}

TEST(the_default_stream_is_waited_for)
{
    begin(0);
    void *blocking;
    uintptr_t p = alloc(8);
    CHECK_EQ(cu.StreamCreate(&blocking, 0), 0);
    CHECK_EQ(cu.kernel(blocking, p, 8, 1, 5 * MS), 0);
    CHECK_EQ(cu.StreamSynchronize((void *)1), 0);
    CHECK_EQ(cu.StreamQuery(blocking), 0);
    CHECK_EQ(cu.kernel(blocking, p, 8, 2, 5 * MS), 0);
    CHECK(all(p, 8, 2)); /* a blocking copy goes behind it */
    CHECK_EQ(cu.kernel((void *)2, p, 8, 3, 5 * MS), 0);
    CHECK_EQ(cu.CtxSynchronize(), 0);
    CHECK_EQ(cu.StreamQuery((void *)2), 0);
    CHECK(cu.paper->waits == 2 && cu.paper->default_waits == 1 && cu.paper->context_waits == 1);
}

static void *looks(void *arg)
{
    void *ctx;
    CHECK_EQ(cu.PrimaryRetain(&ctx, 0), 0);
    CHECK_EQ(cu.CtxSetCurrent(ctx), 0);
    uint8_t in[512], out[512];
    uintptr_t p = alloc(512);
    void *s = stream(), *e = event();
    for (int i = 0; i < 500; i++) {
        memset(in, i, sizeof in);
        CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)in, sizeof in, s), 0);
        CHECK_EQ(cu.MemcpyAsync((uintptr_t)out, p, sizeof in, s), 0);
        CHECK_EQ(cu.EventRecord(e, s), 0);
        while (cu.EventQuery(e) == NOT_READY)
            ;
        CHECK(!memcmp(in, out, sizeof in));
    }
    CHECK_EQ(cu.EventDestroy(e), 0);
    CHECK_EQ(cu.StreamDestroy(s), 0);
    CHECK_EQ(cu.MemFree(p), 0);
    return arg;
}

TEST(threads_do_each_others_work)
{
    begin(0);
    pthread_t t[4];
    cu.paper->copy_ns = 1000;
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], NULL, looks, NULL));
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    CHECK(!cu.paper->live && !cu.paper->live_events && !cu.paper->live_streams);
    CHECK_EQ(cu.paper->copies, 4 * 1000);
}

/* --- copies in two dimensions --------------------------------------------------------------------------------------------- */

TEST(rows_are_copied_with_their_pitches)
{
    begin(0);
    uint8_t in[8 * 10], out[4 * 6];
    uintptr_t p = alloc(4 * 32);
    void *s = stream();
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)i;
    CHECK_EQ(cu.MemsetD8(p, 0xff, 4 * 32), 0);
    use_rows_t rows = {.src = {.type = 1, .host = in, .pitch = 10, .x = 2, .y = 1},
                       .dst = {.type = 2, .device = p, .pitch = 32, .x = 5},
                       .width = 6,
                       .height = 4};
    CHECK_EQ(cu.Memcpy2DAsync(&rows, s), 0);
    use_rows_t back = {.src = rows.dst, .dst = {.type = 1, .host = out, .pitch = 6}, .width = 6, .height = 4};
    CHECK_EQ(cu.Memcpy2DAsync(&back, s), 0);
    CHECK_EQ(cu.StreamSynchronize(s), 0);
    for (size_t y = 0; y < 4; y++)
        for (size_t x = 0; x < 6; x++)
            CHECK_EQ(out[y * 6 + x], (y + 1) * 10 + x + 2);
    CHECK(all(p, 5, 0xff) && all(p + 11, 26, 0xff) && all(p + 3 * 32 + 11, 21, 0xff));
    CHECK(cu.paper->copies_by_engine == 2 && cu.paper->bytes_h2d == 24 && cu.paper->bytes_d2h == 24);
    rows.height = 5; /* beyond its end */
    CHECK_EQ(cu.Memcpy2DAsync(&rows, s), INVALID_VALUE);
    rows.height = 4;
    rows.dst.pitch = 10;
    rows.dst.x = 5; /* rows longer than the pitch */
    CHECK_EQ(cu.Memcpy2DAsync(&rows, s), INVALID_VALUE);
    rows.dst = (use_side_t){.type = 1, .host = (void *)p, .pitch = 32};
    CHECK_EQ(cu.Memcpy2DAsync(&rows, s), INVALID_VALUE);
}

TEST(large_copies_of_host_memory_are_the_engines)
{
    begin(0);
    uint8_t *host = calloc(1, 1 << 17);
    uintptr_t p = alloc(1 << 17);
    void *s = stream();
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)host, 65536, s), 0);
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)host, 65535, s), 0);
    CHECK_EQ(cu.MemcpyAsync(p + 65536, p, 65536, s), 0);
    CHECK_EQ(cu.MemcpyAsync(p + 1, (uintptr_t)host, 1 << 17, s), INVALID_VALUE);
    CHECK_EQ(cu.StreamSynchronize(s), 0);
    CHECK(cu.paper->copies_by_engine == 1 && cu.paper->copies_by_kernel == 2 && cu.paper->copies == 3);
    CHECK_EQ(cu.MemFree(p), 0);
    free(host);
}

/* --- contexts and devices ------------------------------------------------------------------------------------------------- */

TEST(contexts_are_made_and_take_their_memory_with_them)
{
    begin(0);
    void *mine, *now, *primary;
    int peer = -1;
    uint8_t uuid[2][16];
    CHECK_EQ(cu.CtxGetCurrent(&primary), 0);
    CHECK_EQ(cu.CtxCreate(&mine, 0, 1), 0);
    CHECK(!cu.CtxGetCurrent(&now) && now == mine);
    uintptr_t p = alloc(100);
    CHECK_EQ(attribute(1, p), (uintptr_t)mine);
    CHECK_EQ(attribute(9, p), 1);
    void *s = stream(), *e = event();
    CHECK_EQ(cu.kernel(s, p, 100, 1, NEVER), 0);
    CHECK_EQ(cu.EventRecord(e, s), 0);
    CHECK_EQ(cu.CtxEnablePeerAccess(primary, 0), 0);
    CHECK_EQ(cu.CtxEnablePeerAccess(primary, 0), 704);
    CHECK_EQ(cu.CtxSetCurrent(primary), 0);
    CHECK_EQ(cu.MemFree(p), INVALID_CONTEXT);
    CHECK_EQ(cu.kernel(s, p, 100, 1, 0), INVALID_HANDLE);
    CHECK_EQ(cu.CtxDestroy(primary), INVALID_CONTEXT);
    CHECK_EQ(cu.CtxDestroy(mine), 0);
    CHECK_EQ(cu.CtxPushCurrent(mine), 709);
    CHECK_EQ(cu.EventQuery(e), INVALID_HANDLE);
    CHECK_EQ(cu.StreamQuery(s), INVALID_HANDLE);
    CHECK(!cu.paper->live && !cu.paper->live_streams && !cu.paper->live_events);
    CHECK_EQ(cu.PointerGetAttribute(&now, 1, p), INVALID_VALUE);
    CHECK(!cu.DeviceCanAccessPeer(&peer, 0, 1) && peer == 1);
    CHECK(!cu.DeviceCanAccessPeer(&peer, 0, 0) && peer == 0);
    CHECK(!cu.DeviceGetUuid(uuid[0], 0) && !cu.DeviceGetUuid(uuid[1], 1) && memcmp(uuid[0], uuid[1], 16));
    CHECK_EQ(cu.DeviceGetUuid(uuid[0], 2), 101);
}

TEST(the_environment_says_how_many_devices_and_how_much_memory)
{
    int count, peer = -1;
    size_t available, total;
    setenv("PAPER_DEVICES", "5", 1);
    setenv("PAPER_MEMORY", "10000", 1);
    setenv("PAPER_NO_PEER", "1", 1);
    setenv("PAPER_COPY_NS", "7", 1);
    setenv("PAPER_COPY_NS_PER_KIB", "8", 1);
    begin(4);
    CHECK(!cu.DeviceGetCount(&count) && count == 5);
    CHECK(!cu.DeviceCanAccessPeer(&peer, 0, 4) && peer == 0);
    CHECK(cu.paper->copy_ns == 7 && cu.paper->copy_ns_per_kib == 8);
    uintptr_t p = alloc(9000), q;
    CHECK(!cu.MemGetInfo(&available, &total) && available == 1000 && total == 10000);
    CHECK_EQ(cu.MemAlloc(&q, 1001), OUT_OF_MEMORY);
    CHECK_EQ(cu.MemFree(p), 0);
    CHECK_EQ(cu.MemFree(alloc(10000)), 0);
}

/* --- memory --------------------------------------------------------------------------------------------------------------- */

TEST(an_address_is_used_again_and_an_id_never)
{
    begin(0);
    uintptr_t first = alloc(1000), p = alloc(5000), last = alloc(1000), base;
    uint64_t id = attribute(7, p);
    size_t n;
    CHECK(attribute(2, p) == 2 && !attribute(8, p) && attribute(10, p) == 1 && attribute(13, p) == 1 && !attribute(17, p));
    CHECK(attribute(11, p + 4999) == p && attribute(12, p) == 5000 && attribute(14, p) == 0);
    CHECK(!cu.MemGetAddressRange(&base, &n, p + 7) && base == p && n == 5000);
    CHECK_EQ(cu.MemGetAddressRange(&base, &n, p + 5000), 500);
    CHECK_EQ(cu.MemFree(first), 0);
    CHECK_EQ(cu.MemFree(p), 0);
    CHECK_EQ(cu.MemFree(p), INVALID_VALUE);
    CHECK_EQ(alloc(5000), p);
    CHECK(attribute(7, p) != id && attribute(7, last) != attribute(7, p));
    CHECK_EQ(alloc(1000), first);
    int which[] = {1, 2, 7, 9, 11, 12, 17};
    uint64_t values[7];
    void *outs[7];
    for (int i = 0; i < 7; i++) {
        values[i] = 99;
        outs[i] = &values[i];
    }
    values[1] = values[3] = 0;
    CHECK_EQ(cu.PointerGetAttributes(7, which, outs, (uintptr_t)&id), 0);
    CHECK(!values[0] && !values[1] && !values[2] && (int)values[3] == -2 && !values[4] && !values[5] && !values[6]);
}

TEST(thousands_of_blocks)
{
    enum { MANY = 3000 };
    begin(0);
    static uintptr_t p[MANY];
    for (unsigned i = 0; i < MANY; i++)
        p[i] = alloc(100 + i);
    for (unsigned i = 0; i < MANY; i++)
        CHECK_EQ(attribute(12, p[i] + 99), 100 + i);
    for (unsigned i = 0; i < MANY; i++)
        CHECK_EQ(cu.MemFree(p[i * 7 % MANY]), 0);
    CHECK_EQ(cu.paper->live, 0);
}

TEST(memory_of_a_pool_belongs_to_no_context)
{
    begin(1);
    void *s = stream(), *none;
    uintptr_t p, q;
    use_ipc_t handle;
    CHECK_EQ(cu.MemAllocAsync(&p, 1000, s), 0);
    CHECK_EQ(cu.PointerGetAttribute(&none, 1, p), INVALID_VALUE);
    CHECK(attribute(9, p) == 1 && attribute(17, p) && !attribute(10, p));
    CHECK_EQ(cu.IpcGetMemHandle(&handle, p), INVALID_VALUE);
    CHECK_EQ(cu.kernel(s, p, 1000, 5, 5 * MS), 0);
    CHECK_EQ(cu.MemFreeAsync(p, s), 0);
    CHECK_EQ(cu.MemFreeAsync(p, s), INVALID_VALUE);
    CHECK_EQ(cu.paper->live, 1);
    CHECK_EQ(cu.StreamSynchronize(s), 0);
    CHECK_EQ(cu.paper->live, 0);
    CHECK_EQ(cu.MemAllocAsync(&q, 1000, s), 0);
    CHECK_EQ(q, p);
    CHECK_EQ(cu.MemFree(q), 0);
    CHECK_EQ(cu.MemAllocAsync(&q, 1000, (void *)0x1234), INVALID_HANDLE);
}

TEST(freeing_waits_for_what_still_names_it)
{
    begin(0);
    uint8_t out[1000] = {0};
    uintptr_t p = alloc(1000);
    void *s = stream();
    CHECK_EQ(cu.kernel(s, p, 1000, 9, 10 * MS), 0);
    CHECK_EQ(cu.MemcpyAsync((uintptr_t)out, p, 1000, s), 0);
    CHECK_EQ(cu.MemFree(p), 0);
    CHECK(out[0] == 9 && out[999] == 9);
    CHECK(cu.paper->free_waits == 1 && !cu.paper->waits);
}

/* The signal that a processor's access to device memory ends with; 0: none. */
static int touch(int strict)
{
    pid_t pid = fork();
    if (!pid) {
        setenv("PAPER_STRICT", strict ? "1" : "0", 1);
        begin(0);
        signal(SIGSEGV, SIG_DFL);
        uintptr_t p = alloc(100);
        CHECK_EQ(cu.MemsetD8(p, 1, 100), 0);
        CHECK(all(p, 100, 1));
        CHECK_EQ(*(volatile uint8_t *)p, 1 ^ 0x3c);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) ? -1 : 0;
}

TEST(a_processor_that_touches_device_memory_crashes_if_that_is_asked_for)
{
    CHECK_EQ(touch(0), 0);
    CHECK_EQ(touch(1), SIGSEGV);
}

/* --- virtual memory ------------------------------------------------------------------------------------------------------- */

static const use_properties_t shareable = {.type = 1, .handle_types = 1, .location = {1, 0}};
static const use_access_t by_device_0 = {.location = {1, 0}, .flags = 3};

TEST(physical_memory_is_mapped_where_addresses_are_reserved)
{
    begin(0);
    size_t g;
    uintptr_t p, at;
    unsigned long long a, b, again;
    void *s = stream(), *none;
    uint64_t mapped = 9;
    CHECK(!cu.MemGetAllocationGranularity(&g, &shareable, 0) && g >= 4096);
    CHECK_EQ(cu.MemCreate(&a, g - 1, &shareable, 0), INVALID_VALUE);
    CHECK_EQ(cu.MemCreate(&a, g, &shareable, 0), 0);
    CHECK_EQ(cu.MemCreate(&b, 2 * g, &shareable, 0), 0);
    CHECK_EQ(cu.MemAddressReserve(&p, 4 * g, 0, 0, 0), 0);
    CHECK_EQ(cu.PointerGetAttribute(&mapped, 13, p), 0);
    CHECK_EQ((int)mapped, 0);
    CHECK_EQ(cu.MemMap(p, g, 0, a, 0), 0);
    CHECK_EQ(cu.MemMap(p, g, 0, a, 0), INVALID_VALUE);
    CHECK_EQ(cu.MemMap(p + 3 * g, 2 * g, 0, b, 0), INVALID_VALUE);
    CHECK_EQ(cu.MemMap(p + g, 2 * g, 0, b, 0), 0);
    CHECK_EQ(cu.kernel(s, p, g, 1, 0), INVALID_CONTEXT); /* no device has access */
    CHECK_EQ(cu.MemSetAccess(p, 3 * g, &by_device_0, 1), 0);
    CHECK_EQ(cu.MemsetD8(p, 3, 3 * g), 0); /* over both */
    CHECK(all(p + g - 10, 20, 3));
    CHECK(attribute(11, p + g) == p && attribute(12, p + g) == 4 * g && attribute(14, p) == 1 && !attribute(10, p));
    CHECK_EQ(cu.PointerGetAttribute(&none, 1, p), INVALID_VALUE);
    CHECK_EQ(cu.MemFree(p), INVALID_VALUE);
    CHECK_EQ(cu.MemRetainAllocationHandle(&again, (void *)(p + g + 1)), 0);
    CHECK_EQ(again, b);
    CHECK(!cu.MemRelease(a) && !cu.MemRelease(b) && !cu.MemRelease(again));
    CHECK_EQ(cu.MemRelease(a), INVALID_VALUE);
    CHECK_EQ(cu.paper->live_physical, 2);
    CHECK_EQ(cu.MemUnmap(p, 2 * g), INVALID_VALUE);
    CHECK_EQ(cu.MemAddressFree(p, 4 * g), INVALID_VALUE);
    CHECK_EQ(cu.MemRetainAllocationHandle(&again, (void *)p), 0); /* after its last handle was released */
    CHECK_EQ(cu.MemUnmap(p, 3 * g), 0);
    CHECK_EQ(cu.paper->live_physical, 1);
    CHECK_EQ(cu.MemMap(p + g, g, 0, again, 0), 0);
    CHECK_EQ(cu.MemSetAccess(p + g, g, &by_device_0, 1), 0);
    CHECK(all(p + g, g, 3));
    CHECK_EQ(cu.MemcpyAsync(p + g, p + g, 1, s), 0);
    CHECK_EQ(cu.MemUnmap(p + g, g), 0);
    CHECK_EQ(cu.StreamQuery(s), 700); /* the copy found nothing there */
    CHECK_EQ(cu.MemRelease(again), 0);
    CHECK_EQ(cu.MemAddressFree(p, 4 * g), 0);
    CHECK_EQ(cu.MemAddressReserve(&at, 4 * g, 0, 0, 0), 0);
    CHECK_EQ(at, p);
    CHECK(!cu.paper->live_physical && !cu.paper->live);
}

/* --- other processes ------------------------------------------------------------------------------------------------------ */

static int line; /* the way to the other process */

static void say(const void *p, size_t n)
{
    CHECK_EQ(write(line, p, n), n);
}

static void hear(void *p, size_t n)
{
    CHECK_EQ(recv(line, p, n, MSG_WAITALL), n);
}

/* Begin a second process. Neither waits for one that has ended. */
static pid_t split(void)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    line = ends[!pid];
    close(ends[!!pid]);
    return pid;
}

static void join(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
}

/* The process that gives memory away: it does what it is told in letters. */
static void exporter(void)
{
    char c;
    begin(1);
    uintptr_t other = alloc(10), p = alloc(100000), again;
    use_ipc_t handle;
    CHECK_EQ(cu.MemsetD8(p, 1, 100000), 0);
    do {
        hear(&c, 1);
        if (c == 'h') {
            CHECK_EQ(cu.IpcGetMemHandle(&handle, p + 5), 0);
            CHECK_EQ(cu.IpcOpenMemHandle(&again, handle, 1), INVALID_CONTEXT); /* one's own */
            say(&handle, sizeof handle);
        } else if (c == 'f') { /* free it, and have other memory at the same address */
            CHECK_EQ(cu.MemFree(p), 0);
            CHECK_EQ(alloc(100000), p);
            CHECK_EQ(cu.MemsetD8(p, 9, 100000), 0);
        } else if (c >= '0' && c <= '9') { /* is it all that byte? */
            c = all(p, 100000, (uint8_t)(c - '0'));
        }
        say(&c, 1);
    } while (c != 'x');
    CHECK_EQ(cu.MemFree(other), 0);
    _exit(0);
}

static void tell(char c)
{
    char answer;
    say(&c, 1);
    hear(&answer, 1);
    CHECK_EQ(answer, c >= '0' && c <= '9' ? 1 : c);
}

static use_ipc_t handle_of(void)
{
    use_ipc_t handle;
    char answer;
    say("h", 1);
    hear(&handle, sizeof handle);
    hear(&answer, 1);
    return handle;
}

TEST(another_process_opens_a_handle)
{
    pid_t pid = split();
    if (!pid)
        exporter();
    begin(1);
    uintptr_t p = 0, q = 0, r;
    use_ipc_t handle = handle_of(), same = handle_of(), none = {"nothing"};
    void *s = stream(), *mine;
    CHECK(!memcmp(&handle, &same, sizeof handle));
    CHECK_EQ(cu.IpcOpenMemHandle(&p, none, 1), INVALID_VALUE);
    CHECK_EQ(cu.IpcOpenMemHandle(&p, handle, 0), INVALID_VALUE);
    CHECK_EQ(cu.IpcOpenMemHandle(&p, handle, 1), 0);
    CHECK_EQ(cu.IpcOpenMemHandle(&q, handle, 1), 0);
    CHECK_EQ(p, q);
    CHECK(cu.paper->imports == 2 && cu.paper->live_imports == 1 && !cu.paper->live);
    CHECK(attribute(12, p) == 100000 && attribute(9, p) == 1 && attribute(10, p) == 0);
    CHECK(all(p, 100000, 1) && *(uint8_t *)p != 1);
    CHECK_EQ(cu.IpcGetMemHandle(&same, p), INVALID_VALUE);
    CHECK_EQ(cu.MemFree(p), INVALID_VALUE);
    CHECK_EQ(cu.kernel(s, p, 100000, 2, 0), 0);
    CHECK_EQ(cu.StreamSynchronize(s), 0);
    tell('2'); /* the other one sees it */
    tell('f');
    CHECK(all(p, 100000, 2)); /* what was there */
    CHECK_EQ(cu.CtxCreate(&mine, 0, 1), 0);
    CHECK_EQ(cu.IpcOpenMemHandle(&r, handle, 1), INVALID_CONTEXT); /* another context of the device has it */
    CHECK_EQ(cu.CtxDestroy(mine), 0);
    use_ipc_t next = handle_of();
    CHECK(memcmp(&handle, &next, sizeof handle));
    CHECK_EQ(cu.IpcOpenMemHandle(&r, next, 1), 0);
    CHECK(r != p && all(r, 100000, 9) && attribute(7, r) != attribute(7, p));
    CHECK_EQ(cu.IpcOpenMemHandle(&q, handle, 1), 0); /* gone there, but open here */
    CHECK_EQ(cu.IpcCloseMemHandle(p), 0);
    CHECK_EQ(cu.IpcCloseMemHandle(p), 0);
    CHECK(all(p, 10, 2));
    CHECK_EQ(cu.IpcCloseMemHandle(p), 0);
    CHECK_EQ(cu.IpcCloseMemHandle(p), INVALID_VALUE);
    CHECK_EQ(cu.IpcOpenMemHandle(&p, handle, 1), INVALID_VALUE); /* gone */
    tell('x');
    join(pid);
    CHECK(all(r, 100000, 9)); /* its process has ended */
    CHECK_EQ(cu.IpcCloseMemHandle(r), 0);
    CHECK_EQ(cu.IpcOpenMemHandle(&r, next, 1), INVALID_VALUE);
    CHECK_EQ(cu.paper->live_imports, 0);
}

TEST(without_peers_a_handle_opens_only_on_its_own_device)
{
    setenv("PAPER_NO_PEER", "1", 1);
    pid_t pid = split();
    if (!pid)
        exporter();
    begin(0);
    uintptr_t p;
    void *ctx;
    use_ipc_t handle = handle_of();
    CHECK_EQ(cu.IpcOpenMemHandle(&p, handle, 1), 217);
    CHECK_EQ(cu.PrimaryRetain(&ctx, 1), 0);
    CHECK_EQ(cu.CtxSetCurrent(ctx), 0);
    CHECK_EQ(cu.IpcOpenMemHandle(&p, handle, 1), 0);
    CHECK_EQ(cu.IpcCloseMemHandle(p), 0);
    tell('x');
    join(pid);
}

static void send_fd(int fd)
{
    char byte = 'd', room[CMSG_SPACE(sizeof fd)];
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    memset(room, 0, sizeof room);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    CHECK_EQ(sendmsg(line, &m, 0), 1);
}

static int recv_fd(void)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int fd;
    CHECK_EQ(recvmsg(line, &m, 0), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

static uintptr_t map(unsigned long long handle, size_t n)
{
    uintptr_t p;
    CHECK_EQ(cu.MemAddressReserve(&p, n, 0, 0, 0), 0);
    CHECK_EQ(cu.MemMap(p, n, 0, handle, 0), 0);
    CHECK_EQ(cu.MemSetAccess(p, n, &by_device_0, 1), 0);
    return p;
}

TEST(a_file_descriptor_carries_physical_memory)
{
    enum { N = 1 << 16 };
    unsigned long long handle;
    int fd = -1;
    char c;
    pid_t pid = split();
    begin(0);
    if (!pid) {
        use_properties_t kept = shareable;
        kept.handle_types = 0;
        CHECK_EQ(cu.MemCreate(&handle, N, &kept, 0), 0);
        CHECK_EQ(cu.MemExport(&fd, handle, 1, 0), INVALID_VALUE);
        CHECK_EQ(cu.MemRelease(handle), 0);
        CHECK_EQ(cu.MemCreate(&handle, N, &shareable, 0), 0);
        uintptr_t p = map(handle, N);
        CHECK_EQ(cu.MemsetD8(p, 4, N), 0);
        CHECK_EQ(cu.MemExport(&fd, handle, 1, 0), 0);
        CHECK_EQ(cu.paper->exports, 1);
        send_fd(fd);
        hear(&c, 1);
        CHECK(all(p, N, 5));
        _exit(0);
    }
    fd = recv_fd();
    CHECK_EQ(cu.MemImport(&handle, (void *)(intptr_t)line, 1), INVALID_VALUE);
    CHECK_EQ(cu.MemImport(&handle, (void *)(intptr_t)fd, 1), 0);
    close(fd);
    uintptr_t p = map(handle, N);
    CHECK(all(p, N, 4) && *(uint8_t *)p != 4);
    CHECK(cu.paper->imports == 1 && cu.paper->live_imports == 1);
    CHECK_EQ(cu.MemsetD8(p, 5, N), 0);
    say("x", 1);
    join(pid);
    CHECK(all(p, N, 5));
    CHECK(!cu.MemUnmap(p, N) && !cu.MemRelease(handle) && !cu.MemAddressFree(p, N));
    CHECK(!cu.paper->live_imports && !cu.paper->live_physical);
}

/* --- failures ------------------------------------------------------------------------------------------------------------- */

TEST(calls_fail_as_they_are_told)
{
    setenv("PAPER_FAIL", "cuMemAlloc_v2:1:2:2,cuStreamCreate:0:999:1", 1);
    begin(0);
    uintptr_t p;
    void *s;
    CHECK_EQ(cu.MemAlloc(&p, 10), 0);
    CHECK_EQ(cu.MemAlloc(&p, 10), 2);
    CHECK_EQ(cu.MemAlloc(&p, 10), 2);
    CHECK_EQ(cu.MemAlloc(&p, 10), 0);
    CHECK_EQ(cu.StreamCreate(&s, 1), 999);
    CHECK_EQ(cu.StreamCreate(&s, 1), 0);
    cu.fail("cuMemcpyAsync", 0, 700, -1);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(cu.MemcpyAsync(p, p, 1, s), 700);
    cu.fail("cuMemcpyAsync", 0, 0, 0);
    CHECK_EQ(cu.MemcpyAsync(p, p, 1, s), 0);
    CHECK_EQ(cu.StreamSynchronize(s), 0);
}

TEST(a_copy_that_fails_later_spoils_its_context)
{
    begin(0);
    uint8_t local[8] = {0};
    void *s = stream(), *e = event(), *other, *gone, *elsewhere;
    uintptr_t p = alloc(8);
    cu.fail("copy", 1, 719, 1);
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)local, 8, s), 0);
    CHECK_EQ(cu.StreamQuery(s), 0);
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)local, 8, s), 0);
    CHECK_EQ(cu.EventRecord(e, s), 0);
    CHECK_EQ(cu.EventQuery(e), 719);
    CHECK_EQ(cu.StreamQuery(s), 719);
    CHECK_EQ(cu.StreamSynchronize(s), 719);
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)local, 8, s), 719);
    CHECK_EQ(cu.MemAlloc(&p, 8), 719);
    CHECK_EQ(cu.CtxCreate(&other, 0, 1), 0); /* another one is well */
    elsewhere = stream();
    p = alloc(8);
    CHECK_EQ(cu.MemcpyAsync(p, (uintptr_t)local, 8, elsewhere), 0);
    CHECK_EQ(cu.StreamSynchronize(elsewhere), 0);
    CHECK_EQ(cu.CtxPopCurrent(&gone), 0);
    CHECK_EQ(cu.CtxSynchronize(), 719);
}
