/* tests/unit/mem_cuda.c - CUDA's kinds against a driver made of paper: when it is started, in which context what is done,
 * streams, pinning, forks. ctest: label=thread timeout=120 */
#include "test.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>

#include "base/alloc.h"
#include "fake_fabric.h"
#include "lib/cuda/paper.h"
#include "mem/mem.h"

static paper_t *drv;
static void *(*context_new)(int device);
static void (*context_destroy)(void *ctx);
static int (*stack_depth)(void);
static int (*to_host)(void *dst, uintptr_t src, size_t n);
static void (*fail)(const char *function, unsigned after, int error, int times);
static int (*ctx_push)(void *ctx), (*ctx_pop)(void **out), (*ctx_current)(void **out);

static void *symbol(void *lib, const char *name)
{
    void *p = dlsym(lib, name);
    if (!p)
        FAIL("the paper driver has no %s", name);
    return p;
}
#define TAKE(to, name) \
    do { \
        void *found = symbol(lib, name); \
        memcpy(&(to), &found, sizeof found); \
    } while (0)

/* Load it: from then on whoever asks for libcuda.so.1 gets it, since that is its name. */
static void load(const char *folder)
{
    char exe[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    CHECK(n > 0);
    exe[n] = '\0';
    snprintf(path, sizeof path, "%s/../%s/libcuda.so.1", dirname(exe), folder);
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib)
        FAIL("%s", dlerror());
    TAKE(drv, "paper");
    TAKE(context_new, "paper_context_new");
    TAKE(context_destroy, "paper_context_destroy");
    TAKE(stack_depth, "paper_depth");
    TAKE(fail, "paper_fail");
    TAKE(to_host, "cuMemcpyDtoH_v2");
    TAKE(ctx_push, "cuCtxPushCurrent_v2");
    TAKE(ctx_pop, "cuCtxPopCurrent_v2");
    TAKE(ctx_current, "cuCtxGetCurrent");
}

static const weft_mem_kind_t *cuda(void)
{
    const weft_mem_kind_t *kind = weft_mem_kind_find("cuda");
    if (!kind)
        FAIL("%s", weft_last_error());
    return kind;
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 13 + i / 255 + seed);
}

static void *alloc(const weft_mem_kind_t *kind, size_t n)
{
    void *p = NULL;
    CHECK_OK(weft_mem_alloc(kind, n, &p));
    return p;
}

/* Into memory of the device and out again. */
static void round_trip(const weft_mem_kind_t *kind, void *p, size_t n, unsigned seed)
{
    uint8_t *in = malloc(n), *out = malloc(n);
    fill(in, n, seed);
    CHECK_OK(weft_mem_copy(p, kind, in, NULL, n));
    CHECK_OK(weft_mem_copy(out, NULL, p, NULL, n));
    CHECK(!memcmp(in, out, n));
    free(in);
    free(out);
}

/* --- when it is started --------------------------------------------------------------------------------------------------- */

static unsigned lines;
static void count_lines(weft_log_level_t level, const char *line, void *user)
{
    (void)line;
    (void)user;
    lines += level < WEFT_LOG_DEBUG;
}

TEST(nobody_starts_it_who_is_not_asked_for_it)
{
    load("paper");
    weft_log_set_level(WEFT_LOG_DEBUG);
    weft_log_set_sink(count_lines, NULL);
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(wefti_mem_attach(rt));
    int local;
    weft_mem_free(weft_mem_kind_find("pinned"), alloc(weft_mem_kind_find("pinned"), 100), 100);
    CHECK(weft_mem_kind_of(&local) == weft_mem_host());
    wefti_staging_put(rt, wefti_staging_get(rt));
    CHECK_EQ(drv->inits, 0);
    CHECK_OK(weft_runtime_close(rt));
    const weft_mem_kind_t *kind = cuda();
    CHECK_EQ(drv->inits, 1);
    CHECK_EQ(drv->contexts, 0); /* nor is a context made before it is needed */
    CHECK(!(kind->flags & WEFT_MEM_CPU));
    CHECK_EQ(atomic_load(&wefti_mem_devices), 1);
    CHECK(weft_mem_kind_find("cuda-managed")->flags & WEFT_MEM_CPU);
    CHECK(weft_mem_kind_of(&local) == weft_mem_host());
    CHECK_EQ(drv->inits, 1);
    char text[128];
    wefti_mem_kinds_text(text, sizeof text);
    CHECK_STR(text, "host, huge, pinned, cuda, cuda-managed, cuda-async, cuda-vmm, cuda-fd");
    CHECK_EQ(lines, 0);
}

TEST(weft_cuda_says_on_and_off)
{
    load("paper");
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK(!setenv("WEFT_CUDA", "off", 1));
    rt->config.cuda = "off";
    CHECK_OK(wefti_mem_attach(rt));
    CHECK_OK(weft_runtime_close(rt));
    CHECK(!weft_mem_kind_find("cuda"));
    CHECK(strstr(weft_last_error(), "WEFT_CUDA"));
    CHECK_EQ(drv->inits, 0);
    rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    rt->config.cuda = "on";
    CHECK_OK(wefti_mem_attach(rt));
    CHECK_EQ(drv->inits, 1);
    CHECK_EQ(atomic_load(&wefti_mem_devices), 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_driver_that_does_not_start_is_said_and_not_tried_again)
{
    load("paper");
    drv->init_fails = 100;
    CHECK(!weft_mem_kind_find("cuda"));
    CHECK(strstr(weft_last_error(), "CUDA_ERROR_NO_DEVICE"));
    drv->init_fails = 0;
    CHECK(!weft_mem_kind_find("cuda-managed"));
    CHECK_EQ(drv->inits, 1);
    CHECK_EQ(atomic_load(&wefti_mem_devices), 0);
}

TEST(a_driver_without_managed_memory_has_the_other_kind)
{
    load("paper");
    drv->no_managed = 1;
    CHECK(weft_mem_kind_find("cuda"));
    CHECK(!weft_mem_kind_find("cuda-managed"));
    CHECK(strstr(weft_last_error(), "managed"));
}

TEST(a_driver_without_devices_is_as_good_as_none)
{
    load("paper");
    drv->no_devices = 1;
    CHECK(!weft_mem_kind_find("cuda"));
    CHECK(strstr(weft_last_error(), "no device"));
}

TEST(a_driver_that_is_too_old_says_what_it_lacks)
{
    load("paper_old");
    CHECK(!weft_mem_kind_find("cuda"));
    CHECK(strstr(weft_last_error(), "cuMemAllocManaged"));
    CHECK_EQ(drv->inits, 0);
}

TEST(a_driver_that_lacks_what_can_be_done_without_has_fewer_kinds)
{
    load("paper_bare");
    weft_mem_free(cuda(), alloc(cuda(), 100), 100);
    CHECK(weft_mem_kind_find("cuda-managed"));
    CHECK(!weft_mem_kind_find("cuda-async"));
    CHECK(strstr(weft_last_error(), "cuMemAllocAsync"));
    CHECK(!weft_mem_kind_find("cuda-vmm") && !weft_mem_kind_find("cuda-fd"));
    CHECK(strstr(weft_last_error(), "cuMemCreate"));
    char text[128];
    wefti_mem_kinds_text(text, sizeof text);
    CHECK_STR(text, "host, huge, pinned, cuda, cuda-managed");
}

TEST(devices_without_pools_and_mapping_have_the_other_kinds)
{
    load("paper");
    cuda();
    fail("cuDeviceGetAttribute", 0, 999, -1);
    CHECK(!weft_mem_kind_find("cuda-async"));
    CHECK(strstr(weft_last_error(), "pools"));
    CHECK(!weft_mem_kind_find("cuda-vmm"));
    CHECK(strstr(weft_last_error(), "map"));
    fail("cuDeviceGetAttribute", 0, 0, 0);
    fail("cuDeviceGetAttribute", 1, 999, -1); /* it maps memory, and has no descriptors of it */
    CHECK(!weft_mem_kind_find("cuda-fd"));
    fail("cuDeviceGetAttribute", 0, 0, 0);
    CHECK(weft_mem_kind_find("cuda-fd"));
    CHECK(cuda());
}

/* --- contexts ------------------------------------------------------------------------------------------------------------- */

TEST(a_thread_without_a_context_has_none_afterwards)
{
    load("paper");
    const weft_mem_kind_t *kind = cuda();
    void *now, *p = alloc(kind, 100000);
    CHECK_EQ(drv->alloc_device, 0);
    CHECK(weft_mem_kind_of(p) == kind);
    CHECK(wefti_mem_device_of((char *)p + 99999, NULL) == kind);
    round_trip(kind, p, 100000, 1);
    void *q = alloc(kind, 100000);
    CHECK_OK(weft_mem_copy(q, NULL, p, NULL, 100000)); /* device to device */
    uint8_t *in = malloc(100000), *out = malloc(100000);
    fill(in, 100000, 1);
    CHECK_OK(weft_mem_copy(out, NULL, q, NULL, 100000));
    CHECK(!memcmp(in, out, 100000));
    weft_mem_free(kind, p, 100000);
    weft_mem_free(kind, q, 100000);
    CHECK_EQ(drv->live, 0);
    CHECK_EQ(stack_depth(), 0);
    CHECK(!ctx_current(&now) && !now);
    CHECK_EQ(drv->contexts, 1);
    free(in);
    free(out);
}

TEST(a_thread_with_a_context_allocates_in_it_and_keeps_it)
{
    load("paper");
    const weft_mem_kind_t *kind = cuda();
    void *now, *mine = context_new(1), *other = context_new(0);
    CHECK(!ctx_push(mine));
    void *p = alloc(kind, 5000);
    CHECK_EQ(drv->alloc_device, 1);
    CHECK(!ctx_push(other)); /* from here on with another one current: what is done to p is done in its own */
    round_trip(kind, p, 5000, 2);
    CHECK(!ctx_current(&now) && now == other);
    weft_mem_free(kind, p, 5000);
    CHECK_EQ(drv->live, 0);
    CHECK(!ctx_current(&now) && now == other);
    CHECK_EQ(stack_depth(), 2);
    CHECK_EQ(drv->contexts, 2); /* those of the test */
}

TEST(memory_of_no_context_is_used_in_the_primary_one_of_its_device)
{
    load("paper");
    const weft_mem_kind_t *kind = cuda();
    void *mine = context_new(1), *gone;
    CHECK(!ctx_push(mine));
    drv->no_context = 1;
    void *p = alloc(kind, 5000);
    CHECK(!ctx_pop(&gone));
    round_trip(kind, p, 5000, 3);
    weft_mem_free(kind, p, 5000);
    CHECK_EQ(drv->live, 0);
    CHECK_EQ(stack_depth(), 0);
}

static void *uses(void *p)
{
    round_trip(cuda(), p, 3000, 4);
    weft_mem_free(cuda(), p, 3000);
    CHECK_EQ(stack_depth(), 0);
    return NULL;
}

TEST(memory_of_a_device_is_not_taken_for_the_hosts_when_the_driver_does_not_answer)
{
    setenv("PAPER_STRICT", "1", 1); /* so that the processor cannot read it, as with a real device */
    load("paper");
    char local[64];
    void *p = alloc(cuda(), 1000);
    fail("cuPointerGetAttributes", 0, 700, -1);
    CHECK(wefti_mem_device_of(p, NULL) == cuda());
    CHECK(!wefti_mem_device_of(local, NULL));
    fail("cuPointerGetAttributes", 0, 0, 0);
    weft_mem_free(cuda(), p, 1000);
}

TEST(any_thread_uses_memory_of_any_other)
{
    load("paper");
    pthread_t t;
    cuda();
    CHECK(!ctx_push(context_new(1)));
    CHECK(!pthread_create(&t, NULL, uses, alloc(cuda(), 3000)));
    pthread_join(t, NULL);
    CHECK_EQ(drv->live, 0);
}

/* --- managed memory ------------------------------------------------------------------------------------------------------- */

TEST(what_the_program_gave_to_a_gpu_is_waited_for_where_its_memory_is)
{
    load("paper");
    char local;
    CHECK_EQ(weft_mem_device(&local), -1);
    CHECK_OK(weft_mem_settle(&local, true));
    CHECK_EQ(drv->inits, 0);
    void *first = alloc(cuda(), 100), *second, *ctx = context_new(1);
    CHECK_EQ(ctx_push(ctx), 0);
    second = alloc(cuda(), 100);
    CHECK_EQ(ctx_pop(&ctx), 0);
    CHECK(weft_mem_device(first) == 0 && weft_mem_device(second) == 1 && weft_mem_device(&local) == -1);
    CHECK_OK(weft_mem_settle(&local, true));
    CHECK(!drv->default_waits && !drv->context_waits);
    CHECK_OK(weft_mem_settle(first, false));
    CHECK_OK(weft_mem_settle((char *)second + 99, false));
    CHECK_OK(weft_mem_settle(second, true));
    CHECK(drv->default_waits == 2 && drv->context_waits == 1 && stack_depth() == 0);
    drv->push_fails = 999;
    CHECK_EQ(weft_mem_settle(second, true), WEFT_ERR_SYSTEM);
    drv->push_fails = 0;
    weft_mem_free(cuda(), first, 100);
    weft_mem_free(cuda(), second, 100);
}

TEST(managed_memory_is_the_processors_too)
{
    load("paper");
    const weft_mem_kind_t *kind = weft_mem_kind_find("cuda-managed");
    uint8_t *p = alloc(kind, 1000);
    CHECK(weft_mem_kind_of(p) == kind);
    CHECK(!wefti_mem_device_of(p, NULL));
    memset(p, 7, 1000);
    round_trip(kind, p, 1000, 5);
    void *d = alloc(cuda(), 1000);
    fill(p, 1000, 6);
    CHECK_OK(weft_mem_copy(d, NULL, p, NULL, 1000));
    memset(p, 0, 1000);
    CHECK_OK(weft_mem_copy(p, NULL, d, NULL, 1000));
    uint8_t want[1000];
    fill(want, 1000, 6);
    CHECK(!memcmp(p, want, 1000));
    weft_mem_free(kind, p, 1000);
    weft_mem_free(cuda(), d, 1000);
    CHECK_EQ(drv->live, 0);
}

/* --- pools of CUDA's, and memory that is mapped by hand -------------------------------------------------------------------- */

static const char *const more[] = {"cuda-async", "cuda-vmm", "cuda-fd"};

/* A free of a pool's memory is done when the device comes to it. */
static void is_gone(void)
{
    weft_mem_free(cuda(), alloc(cuda(), 1), 1);
    CHECK_EQ(drv->live, 0);
    CHECK_EQ(drv->live_physical, 0);
    CHECK_EQ(stack_depth(), 0);
}

TEST(memory_of_a_pool_and_mapped_memory_are_cuda_to_everybody)
{
    load("paper");
    cuda();
    for (int i = 0; i < 3; i++) {
        const weft_mem_kind_t *kind = weft_mem_kind_find(more[i]);
        CHECK_STR(kind->name, more[i]);
        CHECK(!kind->flags && !kind->owns);
        void *p = alloc(kind, 100001);
        CHECK_EQ((uintptr_t)p % 64, 0);
        CHECK(weft_mem_kind_of((char *)p + 100000) == cuda());
        CHECK(wefti_mem_device_of(p, NULL) == cuda() && wefti_mem_device_of(p, kind) == kind);
        CHECK_EQ(weft_mem_device(p), 0);
        CHECK_OK(weft_mem_settle(p, true));
        round_trip(kind, p, 100001, 1);
        wefti_export_t export;
        CHECK(!wefti_mem_export(kind, p, 100001, &export));
        weft_mem_free(kind, p, 100001);
        is_gone();
    }
    CHECK_EQ(drv->contexts, 1);
}

TEST(every_kind_of_cuda_copies_to_every_other)
{
    load("paper");
    static const char *const all[] = {"cuda", "cuda-managed", "cuda-async", "cuda-vmm", "cuda-fd"};
    uint8_t *in = malloc(70000), *out = malloc(70000);
    fill(in, 70000, 3);
    for (int i = 0; i < 25; i++) {
        const weft_mem_kind_t *from = weft_mem_kind_find(all[i / 5]), *to = weft_mem_kind_find(all[i % 5]);
        void *a = alloc(from, 70000), *b = alloc(to, 70000);
        CHECK_OK(weft_mem_copy(a, from, in, NULL, 70000));
        unsigned before = drv->copies;
        CHECK_OK(weft_mem_copy(b, to, a, from, 70000));
        CHECK_EQ(drv->copies, before + 1); /* not through host memory */
        memset(out, 0, 70000);
        CHECK_OK(weft_mem_copy(out, NULL, b, to, 70000));
        CHECK(!memcmp(in, out, 70000));
        weft_mem_free(from, a, 70000);
        weft_mem_free(to, b, 70000);
    }
    is_gone();
    free(in);
    free(out);
}

TEST(memory_of_a_pool_and_mapped_memory_are_of_the_threads_device)
{
    load("paper");
    cuda();
    void *now, *mine = context_new(1);
    for (int i = 0; i < 3; i++) {
        const weft_mem_kind_t *kind = weft_mem_kind_find(more[i]);
        CHECK(!ctx_push(mine));
        void *p = alloc(kind, 5000);
        CHECK(!ctx_current(&now) && now == mine);
        CHECK_EQ(weft_mem_device(p), 1);
        CHECK(!ctx_pop(&now));
        round_trip(kind, p, 5000, 4);
        weft_mem_free(kind, p, 5000);
        is_gone();
    }
}

TEST(memory_that_is_mapped_is_reached_from_other_devices_where_they_can)
{
    load("paper");
    cuda();
    void *gone, *other = context_new(1);
    for (drv->no_peer = 0; drv->no_peer < 2; drv->no_peer++) {
        const weft_mem_kind_t *kind = weft_mem_kind_find("cuda-vmm");
        char local[8] = "";
        void *p = alloc(kind, 5000);
        round_trip(kind, p, 5000, 5);
        CHECK(!ctx_push(other));
        CHECK_EQ(to_host(local, (uintptr_t)p, 8) != 0, drv->no_peer);
        CHECK(!ctx_pop(&gone));
        weft_mem_free(kind, p, 5000);
    }
    is_gone();
}

TEST(allocations_that_fail_half_way_leave_nothing)
{
    load("paper");
    static const char *const calls[] = {"cuMemAllocAsync", "cuStreamSynchronize", "cuMemGetAllocationGranularity",
                                        "cuMemCreate",     "cuMemAddressReserve", "cuMemMap",
                                        "cuMemSetAccess"};
    cuda();
    weft_log_set_level(WEFT_LOG_NONE);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        const weft_mem_kind_t *kind = weft_mem_kind_find(i < 2 ? "cuda-async" : "cuda-vmm");
        void *p = NULL;
        for (int error = 2; error < 1000; error += 997) {
            fail(calls[i], 0, error, 1);
            CHECK_EQ(weft_mem_alloc(kind, 1000, &p), error == 2 ? WEFT_ERR_NOMEM : WEFT_ERR_SYSTEM);
            CHECK(strstr(weft_last_error(), error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN"));
        }
        CHECK(!p);
    }
    is_gone();
    CHECK_EQ(weft_mem_alloc(weft_mem_kind_find("cuda-vmm"), SIZE_MAX - 10, &(void *){NULL}), WEFT_ERR_NOMEM);
}

TEST(a_stream_that_was_lost_is_made_again)
{
    load("paper");
    const weft_mem_kind_t *kind = weft_mem_kind_find("cuda-async");
    void *p = alloc(kind, 1000);
    CHECK_EQ(drv->streams, 1);
    fail("cuMemAllocAsync", 0, 400, 1);
    void *q = alloc(kind, 1000);
    CHECK_EQ(drv->streams, 2);
    fail("cuMemFreeAsync", 0, 709, 1);
    weft_mem_free(kind, p, 1000);
    weft_mem_free(kind, q, 1000);
    CHECK_EQ(drv->streams, 3);
    is_gone();
}

static void *allocates(void *arg)
{
    for (int i = 0; i < 100; i++) {
        void *p = alloc(weft_mem_kind_find(more[i % 2]), 3000);
        round_trip(cuda(), p, 3000, (unsigned)i);
        weft_mem_free(weft_mem_kind_find(more[i % 2]), p, 3000);
    }
    return arg;
}

TEST(threads_allocate_from_a_pool_beside_each_other)
{
    load("paper");
    pthread_t t[4];
    cuda();
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], NULL, allocates, NULL));
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    is_gone();
}

/* --- streams -------------------------------------------------------------------------------------------------------------- */

static void *copies(void *arg)
{
    void *p = alloc(cuda(), 2000);
    for (int i = 0; i < 300; i++)
        round_trip(cuda(), p, 2000, (unsigned)i);
    weft_mem_free(cuda(), p, 2000);
    return arg;
}

TEST(streams_are_used_again_and_threads_have_their_own)
{
    load("paper");
    cuda();
    copies(NULL);
    CHECK_EQ(drv->streams, 1);
    CHECK_EQ(drv->copies, 600);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], NULL, copies, NULL));
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    CHECK(drv->streams <= 5);
    CHECK_EQ(drv->copies, 5 * 600);
    CHECK_EQ(drv->live, 0);
}

TEST(a_context_that_was_destroyed_does_not_stop_copies_elsewhere)
{
    load("paper");
    const weft_mem_kind_t *kind = cuda();
    void *mine = context_new(0), *gone;
    CHECK(!ctx_push(mine));
    void *p = alloc(kind, 1000);
    round_trip(kind, p, 1000, 1);
    CHECK(!ctx_pop(&gone));
    context_destroy(mine);
    char local[8] = "";
    weft_log_set_level(WEFT_LOG_NONE);
    CHECK_EQ(weft_mem_copy(local, NULL, p, NULL, 8), WEFT_ERR_SYSTEM);
    weft_mem_free(kind, p, 1000); /* nothing to be done, and nothing is */
    void *q = alloc(kind, 1000);
    round_trip(kind, q, 1000, 2);
    weft_mem_free(kind, q, 1000);
    CHECK_EQ(drv->live, 1);
    CHECK_EQ(stack_depth(), 0);
}

TEST(many_contexts_come_and_go)
{
    load("paper");
    const weft_mem_kind_t *kind = cuda();
    for (int i = 0; i < 40; i++) { /* more than streams are kept */
        void *mine = context_new(i % 2), *gone;
        CHECK(!ctx_push(mine));
        void *p = alloc(kind, 1000);
        round_trip(kind, p, 1000, 1);
        weft_mem_free(kind, p, 1000);
        CHECK(!ctx_pop(&gone));
    }
    CHECK(drv->live_streams <= 32);
    CHECK_EQ(drv->live, 0);
}

/* --- failures ------------------------------------------------------------------------------------------------------------- */

TEST(failures_of_the_driver_are_said)
{
    load("paper");
    const weft_mem_kind_t *kind = cuda();
    void *q, *p = alloc(kind, 1000);
    char local[8] = "";
    weft_log_set_level(WEFT_LOG_NONE);
    drv->alloc_fails = 2;
    CHECK_EQ(weft_mem_alloc(kind, 1000, &q), WEFT_ERR_NOMEM);
    CHECK(strstr(weft_last_error(), "CUDA_ERROR_OUT_OF_MEMORY"));
    drv->alloc_fails = 999;
    CHECK_EQ(weft_mem_alloc(weft_mem_kind_find("cuda-managed"), 1000, &q), WEFT_ERR_SYSTEM);
    CHECK(strstr(weft_last_error(), "managed"));
    drv->copy_fails = 999;
    CHECK_EQ(weft_mem_copy(local, NULL, p, NULL, 8), WEFT_ERR_SYSTEM);
    CHECK(strstr(weft_last_error(), "CUDA_ERROR_UNKNOWN"));
    CHECK_EQ(drv->streams, 1);
    drv->copy_fails = 400; /* as if the stream had gone: one new one is tried */
    CHECK_EQ(weft_mem_copy(local, NULL, p, NULL, 8), WEFT_ERR_SYSTEM);
    drv->copy_fails = 0;
    CHECK_OK(weft_mem_copy(local, NULL, p, NULL, 8));
    drv->push_fails = 999;
    CHECK_EQ(weft_mem_copy(local, NULL, p, NULL, 8), WEFT_ERR_SYSTEM);
    CHECK_EQ(weft_mem_alloc(kind, 1000, &q), WEFT_ERR_SYSTEM);
    drv->push_fails = 0;
    CHECK_EQ(stack_depth(), 0);
    weft_mem_free(kind, p, 1000);
    CHECK_EQ(drv->live, 0);
}

/* --- pinning -------------------------------------------------------------------------------------------------------------- */

TEST(pinned_memory_is_pinned_by_the_driver_once_it_is_in_use)
{
    load("paper");
    const weft_mem_kind_t *kind = weft_mem_kind_find("pinned");
    void *early = alloc(kind, 5000);
    cuda();
    void *late = alloc(kind, 5000);
    CHECK_EQ(drv->registered, 1);
    CHECK_EQ(drv->registered_bytes, 8192);
    weft_mem_free(kind, early, 5000);
    CHECK_EQ(drv->registered, 1);
    weft_mem_free(kind, late, 5000);
    CHECK_EQ(drv->registered, 0);
    drv->register_fails = 999;
    void *never = alloc(kind, 5000);
    memset(never, 1, 5000);
    weft_mem_free(kind, never, 5000);
    CHECK_EQ(stack_depth(), 0);
}

TEST(stages_arenas_and_registered_ranges_are_pinned_and_let_go)
{
    load("paper");
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(wefti_mem_attach(rt));
    void *stage = wefti_staging_get(rt), *buf;
    weft_pool_t *pool;
    weft_mem_reg_t *reg;
    CHECK_OK(weft_pool_new(rt, NULL, &pool));
    char *range = aligned_alloc(4096, 8 * 4096);
    CHECK_OK(weft_mem_register(rt, range, 8 * 4096, &reg));
    cuda();
    CHECK_EQ(drv->registered, 0);
    wefti_staging_put(rt, stage);
    CHECK(wefti_staging_get(rt) == stage);
    CHECK_EQ(drv->registered, 1);
    CHECK_OK(weft_pool_get(pool, 1000, &buf));
    CHECK_EQ(drv->registered, 2);
    weft_mem_unregister(reg, false);
    CHECK_OK(weft_mem_register(rt, range, 100, &reg)); /* it is there, and is pinned only now */
    CHECK_EQ(drv->registered, 3);
    CHECK(weft_mem_kind_of(buf) == weft_mem_host()); /* the driver knows it, but it is no device's */
    wefti_staging_put(rt, stage);
    weft_pool_put(pool, buf);
    CHECK_OK(weft_pool_free(pool));
    CHECK_EQ(drv->registered, 2);
    weft_mem_unregister(reg, false);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(drv->registered, 0);
    free(range);
}

static void pool_of(const char *name)
{
    load("paper");
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(wefti_mem_attach(rt));
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    weft_pool_t *pool;
    o.kind = weft_mem_kind_find(name);
    CHECK_OK(weft_pool_new(rt, &o, &pool));
    void *a = alloc(weft_pool_kind(pool), 3000), *b = alloc(weft_pool_kind(pool), 20u << 20);
    CHECK_EQ(drv->live + drv->live_physical, 2);
    CHECK_EQ(drv->registered, 0);
    round_trip(weft_pool_kind(pool), a, 3000, 1);
    round_trip(weft_pool_kind(pool), b, 70000, 2);
    weft_mem_free(weft_pool_kind(pool), a, 3000);
    weft_mem_free(weft_pool_kind(pool), b, 20u << 20);
    CHECK_OK(weft_pool_free(pool));
    is_gone();
    CHECK_OK(weft_runtime_close(rt));
}

TEST(pools_of_cuda_memory)
{
    pool_of("cuda");
}
TEST(pools_of_memory_of_cudas_pools)
{
    pool_of("cuda-async");
}
TEST(pools_of_mapped_cuda_memory)
{
    pool_of("cuda-vmm");
}
TEST(pools_of_cuda_memory_with_descriptors)
{
    pool_of("cuda-fd");
}

/* --- forks ---------------------------------------------------------------------------------------------------------------- */

TEST(a_child_never_calls_a_driver_its_parent_started)
{
    load("paper");
    const weft_mem_kind_t *kind = cuda();
    void *q, *p = alloc(kind, 1000), *pinned = alloc(weft_mem_kind_find("pinned"), 1000);
    const weft_mem_kind_t *others[2] = {weft_mem_kind_find(more[0]), weft_mem_kind_find(more[1])};
    void *theirs[2] = {alloc(others[0], 1000), alloc(others[1], 1000)};
    pid_t pid = fork();
    if (!pid) {
        char local[8] = "";
        CHECK(!weft_mem_kind_find("cuda"));
        CHECK(strstr(weft_last_error(), "forked"));
        for (int i = 0; i < 2; i++) {
            CHECK(!weft_mem_kind_find(more[i]));
            CHECK_EQ(weft_mem_alloc(others[i], 8, &q), WEFT_ERR_FORKED);
            weft_mem_free(others[i], theirs[i], 1000);
        }
        CHECK_EQ(weft_mem_alloc(kind, 8, &q), WEFT_ERR_FORKED);
        CHECK_EQ(weft_mem_copy(local, NULL, p, kind, 8), WEFT_ERR_FORKED);
        CHECK(weft_mem_kind_of(p) == weft_mem_host());
        CHECK_EQ(atomic_load(&wefti_mem_devices), 0);
        weft_mem_free(kind, p, 1000);
        weft_mem_free(weft_mem_kind_find("pinned"), pinned, 1000);
        weft_mem_free(weft_mem_kind_find("pinned"), alloc(weft_mem_kind_find("pinned"), 1000), 1000);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    weft_mem_free(kind, p, 1000);
    weft_mem_free(weft_mem_kind_find("pinned"), pinned, 1000);
    for (int i = 0; i < 2; i++)
        weft_mem_free(others[i], theirs[i], 1000);
    is_gone();
    CHECK_EQ(drv->registered, 0);
}

TEST(a_child_of_a_parent_that_never_asked_starts_its_own)
{
    load("paper");
    pid_t pid = fork();
    if (!pid) {
        weft_mem_free(cuda(), alloc(cuda(), 1000), 1000);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
}
