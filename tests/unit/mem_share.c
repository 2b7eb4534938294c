/* tests/unit/mem_share.c - device memory of other processes, against a driver made of paper: names, what is kept of imports and
 * for how long, exports that are lies, owners that free their memory or die. ctest: label=thread timeout=180 */
#include "test.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "fake_fabric.h"
#include "lib/cuda/use.h"
#include "mem/cuda.h"

enum { SIZE = 5000 };

static weft_runtime_t *rt;
static const weft_mem_kind_t *cuda;

static void say_nothing(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
}

static void use_cuda(void)
{
    use_paper();
    cuda = weft_mem_kind_find("cuda");
    CHECK(cuda);
    weft_log_set_sink(say_nothing, NULL);
}

/* Time passes when the test says so. */
static void begin(void)
{
    use_cuda();
    rt = fake_open_virtual();
    CHECK_OK(wefti_mem_attach(rt));
}

static void end(void)
{
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
}

static void pass(uint64_t ns)
{
    fake_of(rt)->now += ns;
    wefti_now(rt); /* it is not read while no timer runs */
    for (unsigned i = 0; i < 10; i++)
        weft_runtime_progress(rt);
}

static void *device_alloc(size_t n)
{
    void *p = NULL;
    CHECK_OK(weft_mem_alloc(cuda, n, &p));
    return p;
}

static void poke(void *to, const void *from, size_t n)
{
    bool pushed;
    CHECK(!wefti_cuda_enter_for(to, &pushed));
    CHECK_EQ(cu.MemcpyHtoD((uintptr_t)to, from, n), 0);
    wefti_cuda_leave(pushed);
}

static void pattern(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 5 + i / 253 + seed * 77);
}

static weft_status_t copied;
static bool copy_over;
static void copy_done(wefti_copy_t *copy, weft_status_t status)
{
    (void)copy;
    copied = status;
    copy_over = true;
}

/* Copy it to memory of ours, as a receiver does; `to` NULL: to the host. Is it what is expected? */
static weft_status_t fetch(void *to, const void *from, size_t n, unsigned seed)
{
    static uint8_t out[SIZE * 4], want[SIZE * 4];
    wefti_copy_t copy = {.done = copy_done};
    copy_over = false;
    memset(out, 0, n);
    CHECK_OK(wefti_copy_begin(rt, &copy));
    wefti_copy_add(rt, &copy, cuda, to ? to : out, from, n, to ? WEFTI_COPY_WITHIN : WEFTI_COPY_FROM);
    wefti_copy_end(rt, &copy);
    for (double until = test_now() + 20; !copy_over && test_now() < until;) {
        (void)cu.EventQuery(NULL);
        weft_runtime_progress(rt);
    }
    CHECK(copy_over);
    if (copied)
        return copied;
    if (to) {
        bool pushed;
        CHECK(!wefti_cuda_enter_for(to, &pushed));
        CHECK_EQ(cu.MemcpyDtoH(out, (uintptr_t)to, n), 0);
        wefti_cuda_leave(pushed);
    }
    pattern(want, n, seed);
    if (memcmp(out, want, n))
        FAIL("%zu bytes of an import are not the exporter's", n);
    return WEFT_OK;
}

static bool same_name(const wefti_export_t *a, const wefti_export_t *b)
{
    return !memcmp(a->name, b->name, sizeof a->name);
}

/* --- an exporter in a process of its own --------------------------------------------------------------------------------- */

enum { ALLOC, AGAIN, FREE, CONTENTS };
typedef struct order {
    int what;
    unsigned slot, seed;
    size_t n, offset;
} order_t;
typedef struct answer {
    wefti_export_t x;
    bool ok;
    uintptr_t at;
} answer_t;

static void obey(int fd)
{
    static struct {
        void *p;
        size_t n;
    } slot[400];
    static uint8_t bytes[SIZE * 4];
    order_t o;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    use_cuda();
    while (read(fd, &o, sizeof o) == sizeof o) {
        answer_t a = {.ok = true};
        if (o.what == ALLOC) {
            slot[o.slot].p = device_alloc(o.n);
            slot[o.slot].n = o.n;
        }
        if (o.what == ALLOC || o.what == CONTENTS) {
            pattern(bytes, slot[o.slot].n, o.seed);
            poke(slot[o.slot].p, bytes, slot[o.slot].n);
        }
        if (o.what == FREE)
            weft_mem_free(cuda, slot[o.slot].p, slot[o.slot].n);
        else
            a.ok = wefti_mem_export(cuda, (char *)slot[o.slot].p + o.offset, slot[o.slot].n - o.offset, &a.x);
        a.at = (uintptr_t)slot[o.slot].p;
        CHECK_EQ(write(fd, &a, sizeof a), sizeof a);
    }
    _exit(0);
}

typedef struct other {
    pid_t pid;
    int fd;
} other_t;

/* Before CUDA is used here. */
static other_t other_start(void)
{
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        close(ends[0]);
        obey(ends[1]);
    }
    close(ends[1]);
    return (other_t){pid, ends[0]};
}

static answer_t ask(const other_t *o, order_t order)
{
    answer_t a;
    CHECK_EQ(write(o->fd, &order, sizeof order), sizeof order);
    CHECK_EQ(read(o->fd, &a, sizeof a), sizeof a);
    CHECK(a.ok);
    return a;
}

static void other_end(other_t *o, int sig)
{
    int status;
    if (sig)
        CHECK(!kill(o->pid, sig));
    close(o->fd);
    CHECK_EQ(waitpid(o->pid, &status, 0), o->pid);
    CHECK(sig ? WIFSIGNALED(status) : WIFEXITED(status) && !WEXITSTATUS(status));
}

/* --- names --------------------------------------------------------------------------------------------------------------- */

TEST(an_allocation_has_one_name_until_it_is_freed)
{
    begin();
    uint8_t *a = device_alloc(SIZE), *b = device_alloc(SIZE);
    wefti_export_t x, y, z;
    CHECK(wefti_mem_export(cuda, a, SIZE, &x));
    CHECK(wefti_mem_export(cuda, a + 1000, SIZE - 1000, &y));
    CHECK(wefti_mem_export(cuda, b, 1, &z));
    CHECK(same_name(&x, &y) && !same_name(&x, &z));
    CHECK_EQ(x.sort, WEFTI_EXPORT_CUDA_IPC);
    CHECK(x.offset == 0 && y.offset == 1000 && x.size == SIZE && y.size == SIZE);
    CHECK(!wefti_mem_export(cuda, a, SIZE + 1, &x));
    CHECK(!wefti_mem_export(cuda, a + 1, SIZE, &x));
    for (unsigned i = 0; i < 3000; i++) { /* the same address, another allocation */
        weft_mem_free(cuda, a, SIZE);
        uint8_t *again = device_alloc(SIZE);
        CHECK(again == a);
        CHECK(wefti_mem_export(cuda, a, SIZE, &y));
        CHECK(!same_name(&x, &y));
        x = y;
        CHECK(wefti_mem_export(cuda, a, SIZE, &y));
        CHECK(same_name(&x, &y));
    }
    weft_mem_free(cuda, a, SIZE);
    weft_mem_free(cuda, b, SIZE);
    end();
}

TEST(what_cannot_be_exported_is_not)
{
    begin();
    wefti_export_t x;
    void *s, *managed;
    uintptr_t pool;
    int local;
    uint8_t *a = device_alloc(10);
    CHECK(!wefti_cuda_enter_primary(0));
    CHECK_EQ(cu.StreamCreate(&s, 1), 0);
    CHECK_EQ(cu.MemAllocAsync(&pool, SIZE, s), 0);
    wefti_cuda_leave(true);
    CHECK(!wefti_mem_export(cuda, (void *)pool, SIZE, &x));
    CHECK_OK(weft_mem_alloc(weft_mem_kind_find("cuda-managed"), SIZE, &managed));
    CHECK(!wefti_mem_export(weft_mem_kind_find("cuda-managed"), managed, SIZE, &x));
    CHECK(!wefti_mem_export(cuda, &local, 4, &x));
    CHECK(!wefti_mem_export(weft_mem_host(), a, 10, &x));
    static const char *const calls[] = {"cuIpcGetMemHandle", "cuDeviceGetUuid_v2", "cuPointerGetAttributes",
                                        "cuCtxPushCurrent_v2"};
    for (unsigned i = 0; i < 4; i++) {
        cu.fail(calls[i], 0, 999, 1);
        CHECK(!wefti_mem_export(cuda, a, 10, &x));
        cu.fail(calls[i], 0, 0, 0);
    }
    CHECK(wefti_mem_export(cuda, a, 10, &x));
    weft_mem_free(cuda, a, 10);
    end();
}

static void *export_all(void *arg)
{
    uint8_t **p = arg;
    static wefti_export_t first[8];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < 400; i++) {
        wefti_export_t x;
        unsigned k = i % 8;
        CHECK(wefti_mem_export(cuda, p[k] + i % 100, 1, &x));
        pthread_mutex_lock(&lock);
        if (!first[k].sort)
            first[k] = x;
        CHECK(same_name(&x, &first[k]));
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

TEST(threads_export_the_same_memory)
{
    begin();
    uint8_t *p[8];
    pthread_t t[4];
    for (unsigned i = 0; i < 8; i++)
        p[i] = device_alloc(100);
    for (unsigned i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], NULL, export_all, p));
    for (unsigned i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (unsigned i = 0; i < 8; i++)
        weft_mem_free(cuda, p[i], 100);
    end();
}

/* --- within one process -------------------------------------------------------------------------------------------------- */

TEST(memory_of_this_process_is_found_by_its_name)
{
    begin();
    uint8_t bytes[SIZE], *a = device_alloc(SIZE);
    wefti_export_t x, old;
    wefti_import_t *i, *k;
    void *at, *at2;
    for (unsigned round = 0; round < 2000; round++) {
        pattern(bytes, SIZE, round);
        poke(a, bytes, SIZE);
        CHECK(wefti_mem_export(cuda, a + 10, 100, &x));
        if (round)
            CHECK_EQ(wefti_mem_import(rt, &old, 100, NULL, NULL, NULL, &i, &at), WEFT_ERR_UNSUPPORTED); /* freed meanwhile */
        CHECK_OK(wefti_mem_import(rt, &x, 100, NULL, NULL, NULL, &i, &at));
        CHECK(at == a + 10);
        CHECK_OK(wefti_mem_import(rt, &x, SIZE - 10, NULL, NULL, NULL, &k, &at2));
        CHECK(at2 == at);
        CHECK_EQ(wefti_mem_import(rt, &x, SIZE - 9, NULL, NULL, NULL, &k, &at2), WEFT_ERR_RANGE);
        wefti_mem_unimport(rt, i);
        wefti_mem_unimport(rt, k);
        CHECK_EQ(wefti_mem_of(rt)->imports.keeper.n, 0); /* nothing is kept of it */
        old = x;
        weft_mem_free(cuda, a, SIZE);
        CHECK(device_alloc(SIZE) == a);
    }
    SEEN(imports, 0);
    weft_mem_free(cuda, a, SIZE);
    end();
}

/* --- between two --------------------------------------------------------------------------------------------------------- */

TEST(an_address_that_is_used_again_is_never_taken_for_the_old_one)
{
    other_t o = other_start();
    begin();
    void *mine = device_alloc(SIZE);
    uintptr_t at = 0;
    wefti_export_t last = {0};
    for (unsigned round = 0; round < 3000; round++) {
        answer_t a = ask(&o, (order_t){.what = ALLOC, .n = SIZE, .seed = round});
        wefti_import_t *i;
        void *p;
        CHECK(!round || (a.at == at && !same_name(&a.x, &last)));
        at = a.at;
        last = a.x;
        CHECK_OK(wefti_mem_import(rt, &a.x, SIZE, mine, NULL, NULL, &i, &p));
        CHECK_OK(fetch(round % 2 ? mine : NULL, p, SIZE, round));
        wefti_mem_unimport(rt, i);
        if (round % 3 == 0) { /* the same again: it is there still, and what is new in it is seen */
            answer_t b = ask(&o, (order_t){.what = CONTENTS, .seed = round + 1});
            uint64_t opened = wefti_mem_of(rt)->imports.opened;
            CHECK(same_name(&b.x, &a.x));
            CHECK_OK(wefti_mem_import(rt, &b.x, SIZE, mine, NULL, NULL, &i, &p));
            CHECK_EQ(wefti_mem_of(rt)->imports.opened, opened);
            CHECK_OK(fetch(mine, p, SIZE, round + 1));
            wefti_mem_unimport(rt, i);
        }
        ask(&o, (order_t){.what = FREE});
        CHECK(wefti_mem_of(rt)->imports.keeper.n <= wefti_imports_max);
    }
    weft_mem_free(cuda, mine, SIZE);
    end();
    other_end(&o, 0);
}

TEST(more_allocations_than_names_are_kept)
{
    enum { N = 300 };
    other_t o = other_start();
    begin();
    static wefti_export_t x[N];
    for (unsigned k = 0; k < N; k++)
        x[k] = ask(&o, (order_t){.what = ALLOC, .slot = k, .n = 100, .seed = k}).x;
    for (unsigned k = 0; k < N; k++) {
        wefti_import_t *i;
        void *p;
        wefti_export_t again = ask(&o, (order_t){.what = AGAIN, .slot = k}).x;
        CHECK_OK(wefti_mem_import(rt, &x[k], 100, NULL, NULL, NULL, &i, &p));
        CHECK_OK(fetch(NULL, p, 100, k));
        wefti_import_t *j; /* by a new name, while the old one is held */
        void *q;
        CHECK_OK(wefti_mem_import(rt, &again, 100, NULL, NULL, NULL, &j, &q));
        CHECK_OK(fetch(NULL, q, 100, k));
        wefti_mem_unimport(rt, i);
        CHECK_OK(fetch(NULL, q, 100, k));
        wefti_mem_unimport(rt, j);
    }
    end();
    other_end(&o, 0);
}

TEST(so_many_are_kept_and_no_more)
{
    other_t o = other_start();
    begin();
    wefti_imports_max = 3;
    wefti_export_t x[6];
    wefti_import_t *i[6], *none = NULL;
    void *p[6];
    for (unsigned k = 0; k < 6; k++)
        x[k] = ask(&o, (order_t){.what = ALLOC, .slot = k, .n = SIZE, .seed = k}).x;
    for (unsigned k = 0; k < 3; k++)
        CHECK_OK(wefti_mem_import(rt, &x[k], SIZE, NULL, NULL, NULL, &i[k], &p[k]));
    CHECK_EQ(wefti_mem_import(rt, &x[3], SIZE, NULL, NULL, NULL, &none, &p[3]), WEFT_ERR_LIMIT);
    CHECK(!none);
    CHECK_OK(wefti_mem_import(rt, &x[1], SIZE, NULL, NULL, NULL, &i[3], &p[3])); /* that is there */
    CHECK(p[3] == p[1] && i[3] == i[1]);
    wefti_mem_unimport(rt, i[1]);
    CHECK_EQ(wefti_mem_import(rt, &x[3], SIZE, NULL, NULL, NULL, &none, &p[3]), WEFT_ERR_LIMIT);
    wefti_mem_unimport(rt, i[1]);
    wefti_mem_unimport(rt, i[0]);
    SEEN(live_imports, 3);
    CHECK_OK(wefti_mem_import(rt, &x[1], SIZE, NULL, NULL, NULL, &i[1], &p[1])); /* used after 0 was */
    wefti_mem_unimport(rt, i[1]);
    CHECK_OK(wefti_mem_import(rt, &x[3], SIZE, NULL, NULL, NULL, &i[3], &p[3])); /* takes the place of 0 */
    SEEN(live_imports, 3);
    uint64_t opened = wefti_mem_of(rt)->imports.opened;
    CHECK_OK(wefti_mem_import(rt, &x[1], SIZE, NULL, NULL, NULL, &i[1], &p[1]));
    CHECK_EQ(wefti_mem_of(rt)->imports.opened, opened);
    CHECK_OK(fetch(NULL, p[1], SIZE, 1));
    CHECK_OK(fetch(NULL, p[2], SIZE, 2));
    CHECK_OK(fetch(NULL, p[3], SIZE, 3));
    for (unsigned k = 1; k < 4; k++)
        wefti_mem_unimport(rt, i[k]);
    for (unsigned round = 0; round < 200; round++) {
        unsigned k = round * 5 % 6;
        CHECK_OK(wefti_mem_import(rt, &x[k], SIZE, NULL, NULL, NULL, &i[k], &p[k]));
        CHECK_OK(fetch(NULL, p[k], SIZE, k));
        wefti_mem_unimport(rt, i[k]);
        CHECK(cu.paper->live_imports <= 3);
    }
    end();
    other_end(&o, 0);
}

TEST(what_is_idle_is_given_back_within_two_seconds)
{
    other_t o = other_start();
    begin();
    wefti_export_t x[3];
    wefti_import_t *i[3];
    void *p[3];
    for (unsigned k = 0; k < 3; k++) {
        x[k] = ask(&o, (order_t){.what = ALLOC, .slot = k, .n = SIZE, .seed = k}).x;
        CHECK_OK(wefti_mem_import(rt, &x[k], SIZE, NULL, NULL, NULL, &i[k], &p[k]));
    }
    pass(10 * WEFT_SECOND);
    SEEN(live_imports, 3); /* in use */
    wefti_mem_unimport(rt, i[0]);
    pass(WEFT_SECOND / 2);
    wefti_mem_unimport(rt, i[1]);
    SEEN(live_imports, 3);
    pass(WEFT_SECOND / 4);
    SEEN(live_imports, 3);
    pass(WEFT_SECOND / 4);
    SEEN(live_imports, 2);
    pass(WEFT_SECOND);
    pass(WEFT_SECOND / 2);
    SEEN(live_imports, 1);
    CHECK_OK(fetch(NULL, p[2], SIZE, 2));
    CHECK_OK(wefti_mem_import(rt, &x[0], SIZE, NULL, NULL, NULL, &i[0], &p[0]));
    CHECK_OK(fetch(NULL, p[0], SIZE, 0));
    wefti_mem_unimport(rt, i[0]);
    wefti_mem_unimport(rt, i[2]);
    pass(2 * WEFT_SECOND);
    SEEN(live_imports, 0);
    end();
    other_end(&o, 0);
}

TEST(the_owner_frees_what_is_imported_or_dies)
{
    other_t o = other_start();
    begin();
    wefti_export_t x[2];
    wefti_import_t *i[2];
    void *p[2], *mine = device_alloc(SIZE);
    for (unsigned k = 0; k < 2; k++) {
        x[k] = ask(&o, (order_t){.what = ALLOC, .slot = k, .n = SIZE, .seed = k + 40}).x;
        CHECK_OK(wefti_mem_import(rt, &x[k], SIZE, mine, NULL, NULL, &i[k], &p[k]));
    }
    ask(&o, (order_t){.what = FREE, .slot = 0});
    ask(&o, (order_t){.what = ALLOC, .slot = 0, .n = SIZE, .seed = 99}); /* at the same address */
    CHECK_OK(fetch(mine, p[0], SIZE, 40));
    CHECK_OK(fetch(mine, p[1], SIZE, 41));
    other_end(&o, SIGKILL);
    CHECK_OK(fetch(mine, p[0], SIZE, 40));
    CHECK_OK(fetch(mine, p[1], SIZE, 41));
    wefti_mem_unimport(rt, i[0]);
    wefti_mem_unimport(rt, i[1]);
    pass(WEFT_SECOND);
    pass(WEFT_SECOND);
    SEEN(live_imports, 0);
    CHECK_EQ(wefti_mem_import(rt, &x[1], SIZE, mine, NULL, NULL, &i[1], &p[1]), WEFT_ERR_UNSUPPORTED);
    weft_mem_free(cuda, mine, SIZE);
    end();
}

/* --- lies and failures --------------------------------------------------------------------------------------------------- */

TEST(exports_that_are_lies_are_refused)
{
    other_t o = other_start();
    begin();
    wefti_export_t x = ask(&o, (order_t){.what = ALLOC, .n = SIZE, .seed = 5}).x, y;
    wefti_import_t *i;
    void *p;
    for (uint32_t sort = 0; sort < 5; sort++) {
        y = x;
        y.sort = sort == WEFTI_EXPORT_CUDA_IPC ? UINT32_MAX : sort;
        CHECK_EQ(wefti_mem_import(rt, &y, 1, NULL, NULL, NULL, &i, &p), WEFT_ERR_UNSUPPORTED);
    }
    y = x;
    y.device[3] ^= 1;
    CHECK_EQ(wefti_mem_import(rt, &y, 1, NULL, NULL, NULL, &i, &p), WEFT_ERR_UNSUPPORTED);
    for (unsigned at = 0; at < 36; at += 4) { /* each part of a paper handle, but the end of its length */
        if (at == 16)
            continue;
        y = x;
        y.handle[at] ^= 0x55;
        y.name[0] ^= (uint8_t)(at + 1);
        CHECK_EQ(wefti_mem_import(rt, &y, 1, NULL, NULL, NULL, &i, &p), WEFT_ERR_UNSUPPORTED);
    }
    memset(y.handle, 0, sizeof y.handle);
    CHECK_EQ(wefti_mem_import(rt, &y, 1, NULL, NULL, NULL, &i, &p), WEFT_ERR_UNSUPPORTED);
    CHECK_EQ(wefti_mem_of(rt)->imports.keeper.n, 0);
    /* a size that is not the device's is not believed */
    static const uint64_t offsets[] = {SIZE, SIZE + 1, UINT64_MAX, UINT64_MAX - SIZE + 1, UINT64_C(1) << 63, 4096 * 2};
    for (unsigned k = 0; k < 6; k++) {
        y = x;
        y.size = UINT64_MAX;
        y.offset = offsets[k];
        CHECK_EQ(wefti_mem_import(rt, &y, 1, NULL, NULL, NULL, &i, &p), WEFT_ERR_RANGE);
        y.offset = SIZE - 3;
        CHECK_EQ(wefti_mem_import(rt, &y, 4, NULL, NULL, NULL, &i, &p), WEFT_ERR_RANGE);
        CHECK_EQ(wefti_mem_import(rt, &x, SIZE + 1, NULL, NULL, NULL, &i, &p), WEFT_ERR_RANGE);
        CHECK_EQ(wefti_mem_import(rt, &x, SIZE_MAX, NULL, NULL, NULL, &i, &p), WEFT_ERR_RANGE);
    }
    y.size = 1;
    y.offset = 10;
    CHECK_OK(wefti_mem_import(rt, &y, SIZE - 10, NULL, NULL, NULL, &i, &p));
    wefti_mem_unimport(rt, i);
    pass(2 * WEFT_SECOND);
    SEEN(live_imports, 0);
    end();
    other_end(&o, 0);
}

TEST(an_import_of_which_no_range_was_had_is_given_back_as_well)
{
    other_t o = other_start();
    begin();
    wefti_export_t x = ask(&o, (order_t){.what = ALLOC, .n = SIZE}).x;
    wefti_import_t *i;
    void *p, *mine = device_alloc(10);
    CHECK_EQ(wefti_mem_import(rt, &x, SIZE + 1, NULL, NULL, NULL, &i, &p), WEFT_ERR_RANGE);
    pass(WEFT_SECOND);
    pass(WEFT_SECOND);
    pass(WEFT_SECOND);
    SEEN(live_imports, 0);
    CHECK(wefti_mem_export(cuda, mine, 10, &x)); /* the same with memory of this process */
    CHECK_EQ(wefti_mem_import(rt, &x, 11, NULL, NULL, NULL, &i, &p), WEFT_ERR_RANGE);
    weft_mem_free(cuda, mine, 10);
    CHECK_EQ(wefti_mem_import(rt, &x, 10, NULL, NULL, NULL, &i, &p), WEFT_ERR_UNSUPPORTED);
    end();
    other_end(&o, 0);
}

TEST(an_import_that_the_driver_refuses_is_unsupported)
{
    static const struct {
        const char *call;
        int error;
    } why[] = {{"cuIpcOpenMemHandle_v2", 1},
               {"cuIpcOpenMemHandle_v2", 2},
               {"cuIpcOpenMemHandle_v2", 304},
               {"cuCtxPushCurrent_v2", 999},
               {"cuDeviceGetUuid_v2", 999}};
    other_t o = other_start();
    begin();
    wefti_export_t x = ask(&o, (order_t){.what = ALLOC, .n = SIZE, .seed = 3}).x;
    wefti_import_t *i;
    void *p, *mine = device_alloc(SIZE);
    for (unsigned k = 0; k < sizeof why / sizeof *why; k++) {
        cu.fail(why[k].call, 0, why[k].error, 2);
        CHECK_EQ(wefti_mem_import(rt, &x, SIZE, mine, NULL, NULL, &i, &p), WEFT_ERR_UNSUPPORTED);
        cu.fail(why[k].call, 0, 0, 0);
    }
    CHECK_EQ(wefti_mem_of(rt)->imports.keeper.n, 0);
    CHECK_OK(wefti_mem_import(rt, &x, SIZE, mine, NULL, NULL, &i, &p));
    CHECK_OK(fetch(mine, p, SIZE, 3));
    wefti_mem_unimport(rt, i);
    cu.fail("cuIpcCloseMemHandle", 0, 999, 1); /* it is gone for us */
    pass(2 * WEFT_SECOND);
    CHECK_EQ(wefti_mem_of(rt)->imports.keeper.n, 0);
    CHECK_OK(weft_runtime_close(rt));
    other_end(&o, 0);
}

/* --- contexts ------------------------------------------------------------------------------------------------------------ */

TEST(two_contexts_of_a_device_copy_from_one_import)
{
    other_t o = other_start();
    begin();
    void *mine, *home = device_alloc(SIZE);
    CHECK_EQ(cu.CtxCreate(&mine, 0, 0), 0);
    void *there = device_alloc(SIZE);
    CHECK_EQ(cu.CtxPopCurrent(&mine), 0);
    wefti_export_t x = ask(&o, (order_t){.what = ALLOC, .n = SIZE, .seed = 8}).x;
    for (unsigned round = 0; round < 4; round++) {
        wefti_import_t *i, *j;
        void *p, *q;
        CHECK_OK(wefti_mem_import(rt, &x, SIZE, round % 2 ? there : home, NULL, NULL, &i, &p));
        CHECK_OK(wefti_mem_import(rt, &x, SIZE, round % 2 ? home : there, NULL, NULL, &j, &q));
        CHECK_OK(fetch(home, p, SIZE, 8));
        CHECK_OK(fetch(there, q, SIZE, 8));
        CHECK_OK(fetch(NULL, q, SIZE, 8));
        wefti_mem_unimport(rt, i);
        wefti_mem_unimport(rt, j);
        pass(round == 1 ? 3 * WEFT_SECOND : 0);
    }
    end();
    other_end(&o, 0);
}

TEST(an_import_that_went_with_its_context_is_opened_anew)
{
    other_t o = other_start();
    begin();
    void *home = device_alloc(SIZE);
    wefti_export_t x = ask(&o, (order_t){.what = ALLOC, .n = SIZE, .seed = 8}).x;
    for (unsigned round = 0; round < 3; round++) {
        void *mine, *p;
        wefti_import_t *i;
        CHECK_EQ(cu.CtxCreate(&mine, 0, 0), 0);
        void *there = device_alloc(SIZE);
        CHECK_EQ(cu.CtxPopCurrent(&mine), 0);
        CHECK_OK(wefti_mem_import(rt, &x, SIZE, there, NULL, NULL, &i, &p));
        CHECK_OK(fetch(there, p, SIZE, 8));
        wefti_mem_unimport(rt, i);
        CHECK_EQ(cu.CtxDestroy(mine), 0);
        CHECK_OK(wefti_mem_import(rt, &x, SIZE, home, NULL, NULL, &i, &p));
        CHECK_OK(fetch(home, p, SIZE, 8));
        wefti_mem_unimport(rt, i);
        pass(3 * WEFT_SECOND);
        SEEN(live_imports, 0);
    }
    weft_mem_free(cuda, home, SIZE);
    end();
    other_end(&o, 0);
}

TEST(memory_of_another_device_is_imported)
{
    other_t o = other_start();
    begin();
    CHECK(!wefti_cuda_enter_primary(1));
    void *there = device_alloc(SIZE);
    wefti_cuda_leave(true);
    wefti_export_t x = ask(&o, (order_t){.what = ALLOC, .n = SIZE, .seed = 6}).x;
    wefti_import_t *i;
    void *p;
    CHECK_OK(wefti_mem_import(rt, &x, SIZE, there, NULL, NULL, &i, &p));
    CHECK_OK(fetch(there, p, SIZE, 6));
    CHECK_OK(fetch(NULL, p, SIZE, 6));
    wefti_mem_unimport(rt, i);
    weft_mem_free(cuda, there, SIZE);
    end();
    other_end(&o, 0);
}
