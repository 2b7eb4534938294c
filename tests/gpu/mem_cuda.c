/* tests/gpu/mem_cuda.c - CUDA's kinds on a real GPU: allocated, recognised, copied, pooled, pinned, from threads with and
 * without a context.
 *
 * What lies in device memory is also looked at past the library, with the driver's own calls.
 * ctest: timeout=300 */
#include "test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <weft/weft.h>

#include "mem/mem.h"

#define MIB ((size_t)1 << 20)

/* The driver, as a program would use it beside the library. */
static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *out, int ordinal);
    int (*retain)(void **out, int device);
    int (*current)(void **out);
    int (*set_current)(void *ctx);
    int (*to_host)(void *dst, unsigned long long src, size_t n);
    int (*to_device)(unsigned long long dst, const void *src, size_t n);
    int (*alloc)(unsigned long long *out, size_t n);
    int (*free)(unsigned long long ptr);
    int (*context_new)(void **out, unsigned flags, int device);
    int (*context_free)(void *ctx);
    int (*attribute)(void *out, int attribute, unsigned long long ptr);
} cu;

static void load(void)
{
    static const struct {
        const char *name;
        void *to;
    } all[] = {{"cuInit", &cu.init},
               {"cuDeviceGet", &cu.device_get},
               {"cuDevicePrimaryCtxRetain", &cu.retain},
               {"cuCtxGetCurrent", &cu.current},
               {"cuCtxSetCurrent", &cu.set_current},
               {"cuMemcpyDtoH_v2", &cu.to_host},
               {"cuMemcpyHtoD_v2", &cu.to_device},
               {"cuMemAlloc_v2", &cu.alloc},
               {"cuMemFree_v2", &cu.free},
               {"cuCtxCreate_v2", &cu.context_new},
               {"cuCtxDestroy_v2", &cu.context_free},
               {"cuPointerGetAttribute", &cu.attribute}};
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib)
        SKIP("no CUDA driver here");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *found = dlsym(lib, all[i].name);
        if (!found)
            FAIL("the CUDA driver has no %s", all[i].name);
        memcpy(all[i].to, &found, sizeof found);
    }
}

/* CUDA is there: the kind, or the end of the test. */
static const weft_mem_kind_t *cuda(void)
{
    const weft_mem_kind_t *kind = weft_mem_kind_find("cuda");
    if (!kind)
        SKIP("%s", weft_last_error());
    load();
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
    CHECK_EQ((uintptr_t)p % 64, 0);
    return p;
}

static void round_trip(const weft_mem_kind_t *kind, void *p, size_t n, unsigned seed)
{
    uint8_t *in = malloc(n), *out = malloc(n);
    fill(in, n, seed);
    memset(out, 0, n);
    CHECK_OK(weft_mem_copy(p, kind, in, NULL, n));
    CHECK_OK(weft_mem_copy(out, NULL, p, NULL, n));
    CHECK(!memcmp(in, out, n));
    free(in);
    free(out);
}

/* A context for this thread, as the CUDA runtime makes it current. */
static void *use_primary(void)
{
    int device;
    void *ctx;
    CHECK(!cu.init(0) && !cu.device_get(&device, 0) && !cu.retain(&ctx, device) && !cu.set_current(ctx));
    return ctx;
}

TEST(device_memory_is_recognised_and_host_memory_is_not)
{
    const weft_mem_kind_t *kind = cuda();
    int local;
    char *h = malloc(100), *p = alloc(kind, MIB);
    CHECK(!(kind->flags & WEFT_MEM_CPU));
    CHECK_EQ(atomic_load(&wefti_mem_devices), 1);
    CHECK(weft_mem_kind_of(p) == kind);
    CHECK(weft_mem_kind_of(p + MIB - 1) == kind);
    CHECK(weft_mem_kind_of(h) == weft_mem_host());
    CHECK(weft_mem_kind_of(&local) == weft_mem_host());
    CHECK(weft_mem_kind_of(NULL) == weft_mem_host());
    CHECK(wefti_mem_device_of(p, NULL) == kind);
    weft_mem_free(kind, p, MIB);
    void *pinned = alloc(weft_mem_kind_find("pinned"), 100000);
    CHECK(weft_mem_kind_of(pinned) == weft_mem_host());
    weft_mem_free(weft_mem_kind_find("pinned"), pinned, 100000);
    free(h);
}

TEST(bytes_arrive_in_every_direction)
{
    const weft_mem_kind_t *kind = cuda();
    static const size_t sizes[] = {1, 7, 64, 4095, 65536, MIB + 3, 64 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        void *a = alloc(kind, n), *b = alloc(kind, n), *now;
        uint8_t *in = malloc(n), *out = malloc(n);
        round_trip(kind, a, n, (unsigned)i);
        fill(in, n, (unsigned)i);
        CHECK_OK(weft_mem_copy(b, NULL, a, NULL, n));
        CHECK_OK(weft_mem_copy(out, NULL, b, kind, n));
        CHECK(!memcmp(in, out, n));
        CHECK(!cu.current(&now) && !now); /* this thread had no context, and has none */
        weft_mem_free(kind, a, n);
        weft_mem_free(kind, b, n);
        free(in);
        free(out);
    }
}

TEST(a_program_with_a_context_keeps_it_and_sees_the_same_bytes)
{
    const weft_mem_kind_t *kind = cuda();
    void *now, *ctx = use_primary();
    uint8_t in[10000], out[10000];
    unsigned long long theirs;
    char *p = alloc(kind, sizeof in);
    fill(in, sizeof in, 1);
    CHECK_OK(weft_mem_copy(p, NULL, in, NULL, sizeof in));
    CHECK(!cu.to_host(out, (unsigned long long)(uintptr_t)p, sizeof out)); /* past the library */
    CHECK(!memcmp(in, out, sizeof in));
    CHECK(!cu.alloc(&theirs, sizeof in)); /* memory that the library has never seen */
    void *t = (void *)(uintptr_t)theirs;
    fill(in, sizeof in, 2);
    CHECK(!cu.to_device(theirs, in, sizeof in));
    CHECK_OK(weft_mem_settle(t, false)); /* it may return before the bytes are there */
    CHECK(weft_mem_kind_of(t) == kind);
    memset(out, 0, sizeof out);
    CHECK_OK(weft_mem_copy(out, NULL, t, NULL, sizeof out));
    CHECK(!memcmp(in, out, sizeof in));
    CHECK(!cu.current(&now) && now == ctx);
    CHECK(!cu.free(theirs));
    weft_mem_free(kind, p, sizeof in);
    CHECK(!cu.current(&now) && now == ctx);
}

typedef struct foreign {
    void *p;
    const weft_mem_kind_t *kind;
} foreign_t;

static void *uses(void *arg)
{
    foreign_t *f = arg;
    for (unsigned i = 0; i < 20; i++) {
        CHECK(weft_mem_kind_of(f->p) == f->kind);
        round_trip(f->kind, f->p, 300000, i);
    }
    return NULL;
}

TEST(threads_without_a_context_use_memory_of_one_that_the_program_made)
{
    const weft_mem_kind_t *kind = cuda();
    int device;
    void *ctx, *now;
    foreign_t f[4];
    pthread_t t[4];
    CHECK(!cu.init(0) && !cu.device_get(&device, 0));
    if (cu.context_new(&ctx, 0, device)) /* makes it current */
        SKIP("no second context can be made on this device");
    for (int i = 0; i < 4; i++) {
        f[i] = (foreign_t){alloc(kind, 300000), kind};
        CHECK(!pthread_create(&t[i], NULL, uses, &f[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        weft_mem_free(kind, f[i].p, 300000);
    }
    CHECK(!cu.current(&now) && now == ctx);
    CHECK(!cu.context_free(ctx));
    void *p = alloc(kind, 1000); /* the primary one does as well afterwards */
    round_trip(kind, p, 1000, 1);
    weft_mem_free(kind, p, 1000);
}

TEST(managed_memory_is_the_processors_too)
{
    const weft_mem_kind_t *device = cuda(), *kind = weft_mem_kind_find("cuda-managed");
    if (!kind)
        SKIP("%s", weft_last_error());
    uint8_t *p = alloc(kind, 100000), want[1000];
    CHECK(weft_mem_kind_of(p) == kind);
    CHECK(kind->flags & WEFT_MEM_CPU);
    CHECK(!wefti_mem_device_of(p, NULL));
    fill(p, 100000, 1);
    void *d = alloc(device, 100000);
    CHECK_OK(weft_mem_copy(d, NULL, p, NULL, 100000));
    memset(p, 0, 100000);
    CHECK_OK(weft_mem_copy(p, NULL, d, NULL, 100000));
    fill(want, sizeof want, 1);
    CHECK(!memcmp(p, want, sizeof want));
    weft_mem_free(kind, p, 100000);
    weft_mem_free(device, d, 100000);
}

TEST(memory_of_a_pool_and_mapped_memory_are_cuda_to_everybody)
{
    static const char *const names[] = {"cuda-async", "cuda-vmm", "cuda-fd"};
    const weft_mem_kind_t *device = cuda();
    void *between = alloc(device, 300001);
    for (int i = 0; i < 3; i++) {
        const weft_mem_kind_t *kind = weft_mem_kind_find(names[i]);
        if (!kind)
            SKIP("%s", weft_last_error());
        for (int round = 0; round < 3; round++) {
            void *p = alloc(kind, 300001);
            CHECK(weft_mem_kind_of((char *)p + 300000) == device);
            CHECK_EQ(weft_mem_device(p), weft_mem_device(between));
            round_trip(kind, p, 300001, (unsigned)round);
            CHECK_OK(weft_mem_copy(between, NULL, p, kind, 300001));
            CHECK_OK(weft_mem_copy(p, kind, between, NULL, 300001));
            wefti_export_t export;
            CHECK(!wefti_mem_export(kind, p, 300001, &export));
            weft_mem_free(kind, p, 300001);
        }
        void *none = NULL;
        CHECK_EQ(weft_mem_alloc(kind, (size_t)1 << 46, &none), WEFT_ERR_NOMEM);
        CHECK(!none);
    }
    weft_mem_free(device, between, 300001);
}

TEST(more_than_the_device_has_is_no_memory)
{
    const weft_mem_kind_t *kind = cuda();
    void *p = NULL;
    CHECK_EQ(weft_mem_alloc(kind, (size_t)1 << 46, &p), WEFT_ERR_NOMEM);
    CHECK(strstr(weft_last_error(), "CUDA_ERROR_OUT_OF_MEMORY"));
    CHECK(!p);
    p = alloc(kind, 1000);
    round_trip(kind, p, 1000, 3);
    weft_mem_free(kind, p, 1000);
}

/* --- with a runtime ------------------------------------------------------------------------------------------------------- */

/* Does CUDA know it as its own, page-locked host memory? */
static bool is_pinned(const void *p)
{
    unsigned type = 0;
    return !cu.attribute(&type, 2, (unsigned long long)(uintptr_t)p) && type == 1;
}

TEST(stages_pools_and_registered_ranges_are_pinned)
{
    weft_runtime_t *rt;
    weft_pool_t *pool, *host;
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    weft_mem_reg_t *reg;
    void *buf;
    const weft_mem_kind_t *kind = cuda();
    CHECK_OK(weft_runtime_open(NULL, &rt));
    void *stage = wefti_staging_get(rt);
    CHECK(is_pinned(stage));
    CHECK_OK(weft_pool_new(rt, NULL, &host));
    CHECK_OK(weft_pool_get(host, 3 * MIB, &buf));
    CHECK(is_pinned(buf)); /* a memfd, and page-locked */
    char *range = aligned_alloc(4096, MIB);
    memset(range, 1, MIB);
    CHECK(!is_pinned(range));
    CHECK_OK(weft_mem_register(rt, range, MIB, &reg));
    CHECK(is_pinned(range));

    o.kind = kind;
    CHECK_OK(weft_pool_new(rt, &o, &pool));
    void *p[50];
    for (unsigned i = 0; i < 50; i++) {
        CHECK_OK(weft_pool_get(pool, 1000 + 5000 * i, &p[i]));
        CHECK(weft_mem_kind_of(p[i]) == kind);
        fill(stage, 1000, i);
        CHECK_OK(wefti_mem_move(kind, p[i], stage, 1000));
    }
    for (unsigned i = 0; i < 50; i++) {
        uint8_t want[1000];
        fill(want, sizeof want, i);
        CHECK_OK(wefti_mem_move(kind, buf, p[i], 1000));
        CHECK(!memcmp(buf, want, 1000));
        CHECK_OK(weft_mem_copy(range, NULL, p[i], weft_pool_kind(pool), 1000));
        CHECK(!memcmp(range, want, 1000));
        weft_pool_put(pool, p[i]);
    }
    CHECK_OK(weft_pool_free(pool));
    weft_pool_put(host, buf);
    CHECK_OK(weft_pool_free(host));
    weft_mem_unregister(reg, true);
    CHECK(!is_pinned(range));
    wefti_staging_put(rt, stage);
    CHECK_OK(weft_runtime_close(rt));
    free(range);
}

TEST(device_memory_can_be_registered)
{
    weft_runtime_t *rt;
    weft_mem_reg_t *reg;
    void *p = alloc(cuda(), MIB);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_OK(weft_mem_register(rt, p, MIB, &reg));
    weft_mem_unregister(reg, true);
    CHECK_OK(weft_runtime_close(rt));
    weft_mem_free(cuda(), p, MIB);
}

TEST(a_child_is_refused_and_its_parent_goes_on)
{
    const weft_mem_kind_t *kind = cuda();
    void *q, *p = alloc(kind, 1000);
    round_trip(kind, p, 1000, 1);
    pid_t pid = fork();
    if (!pid) {
        CHECK(!weft_mem_kind_find("cuda"));
        CHECK(strstr(weft_last_error(), "forked"));
        CHECK_EQ(weft_mem_alloc(kind, 8, &q), WEFT_ERR_FORKED);
        weft_mem_free(kind, p, 1000);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    round_trip(kind, p, 1000, 2);
    weft_mem_free(kind, p, 1000);
}
