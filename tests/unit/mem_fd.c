/* tests/unit/mem_fd.c - device memory that other processes have by a file descriptor, against a driver made of paper: what is
 * exported, how long a descriptor is open, numbers that are lies, and what is left when a call fails. ctest: label=thread */
#include "test.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "fake_fabric.h"
#include "lib/cuda/use.h"
#include "mem/cuda.h"

enum { SIZE = 200000, MAPPED = 4 * 65536 }; /* MAPPED: what the driver makes of it */

static weft_runtime_t *rt;
static const weft_mem_kind_t *kind;

static void say_nothing(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
}

static void begin(void)
{
    use_paper();
    kind = weft_mem_kind_find("cuda-fd");
    CHECK(kind);
    weft_log_set_sink(say_nothing, NULL);
    rt = fake_open_virtual();
    CHECK_OK(wefti_mem_attach(rt));
}

static void pass(uint64_t ns)
{
    fake_of(rt)->now += ns;
    wefti_now(rt);
    for (unsigned i = 0; i < 10; i++)
        weft_runtime_progress(rt);
}

static uint8_t *device_alloc(void)
{
    void *p = NULL;
    CHECK_OK(weft_mem_alloc(kind, SIZE, &p));
    return p;
}

static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* --- an exporter in a process of its own ------------------------------------------------------------------------------------ */

static pid_t other;
static int line;

static void live(int fd)
{
    wefti_export_t x;
    uint8_t bytes[1000];
    char letter;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    begin();
    uint8_t *p = device_alloc();
    memset(bytes, 0x5a, sizeof bytes);
    CHECK_OK(weft_mem_copy(p + 100, kind, bytes, NULL, sizeof bytes));
    wefti_held_t *held = wefti_mem_export_held(rt, kind, p + 100, 1000, &x);
    CHECK(held);
    CHECK_EQ(write(fd, &x, sizeof x), sizeof x);
    CHECK_EQ(read(fd, &letter, 1), 1);
    wefti_mem_unhold(rt, held); /* the importer has it */
    weft_mem_free(kind, p, SIZE);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(cu.paper->live_physical, 0);
    CHECK_EQ(write(fd, &letter, 1), 1);
    _exit(0);
}

static wefti_export_t begin_with_other(void)
{
    wefti_export_t x;
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    other = fork();
    CHECK(other >= 0);
    if (!other)
        live(ends[1]);
    close(ends[1]);
    line = ends[0];
    CHECK_EQ(read(line, &x, sizeof x), sizeof x);
    begin();
    return x;
}

static unsigned taken;
static int take(void *arg, int fd)
{
    int process = (int)syscall(SYS_pidfd_open, other, 0);
    CHECK(process >= 0);
    CHECK(arg == &other);
    int got = (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    close(process);
    taken++;
    return got;
}

static weft_status_t import(const wefti_export_t *x, size_t n, wefti_import_t **out, void **p)
{
    return wefti_mem_import(rt, x, n, NULL, take, &other, out, p);
}

static void check_bytes(const void *p)
{
    uint8_t back[1000] = {0};
    CHECK_OK(weft_mem_copy(back, NULL, p, kind, sizeof back));
    for (size_t i = 0; i < sizeof back; i++)
        CHECK_EQ(back[i], 0x5a);
}

TEST(memory_is_mapped_by_its_descriptor_and_stays_when_its_owner_ends)
{
    wefti_export_t x = begin_with_other();
    wefti_import_t *a, *b;
    void *p, *q;
    CHECK_EQ(x.sort, WEFTI_EXPORT_CUDA_FD);
    CHECK_EQ(x.size, MAPPED);
    CHECK_EQ(x.offset, 100);
    CHECK_EQ(wefti_mem_import(rt, &x, 1000, NULL, NULL, NULL, &a, &p), WEFT_ERR_UNSUPPORTED); /* nobody gives us descriptors */
    unsigned before = descriptors();
    CHECK_OK(import(&x, 1000, &a, &p));
    check_bytes(p);
    CHECK_OK(import(&x, MAPPED - 100, &b, &q)); /* the same, without asking again */
    CHECK(p == q && a == b);
    CHECK_EQ(taken, 1);
    CHECK_EQ(descriptors(), before + 1); /* the driver's own, as long as it is mapped */
    CHECK_EQ(import(&x, MAPPED - 99, &b, &q), WEFT_ERR_RANGE);
    CHECK_EQ(write(line, "x", 1), 1);
    CHECK_EQ(read(line, &(char){0}, 1), 1);
    CHECK_EQ(waitpid(other, NULL, 0), other);
    check_bytes(p);
    wefti_mem_unimport(rt, a);
    wefti_mem_unimport(rt, a);
    CHECK_EQ(cu.paper->live_imports, 1); /* for a second */
    pass(3 * WEFT_SECOND);
    CHECK_EQ(cu.paper->live_imports, 0);
    CHECK_EQ(cu.paper->live_physical, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(what_is_distrusted_is_opened_anew)
{
    wefti_export_t x = begin_with_other();
    wefti_import_t *a, *b;
    void *p, *q;
    CHECK_OK(import(&x, 1000, &a, &p));
    wefti_mem_distrust(a);
    CHECK_OK(import(&x, 1000, &b, &q));
    CHECK(a != b && p != q);
    CHECK_EQ(taken, 2);
    wefti_mem_unimport(rt, a);
    CHECK_EQ(cu.paper->live_imports, 1); /* it is gone at once */
    wefti_mem_unimport(rt, b);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(cu.paper->live_imports, 0);
}

TEST(exports_that_are_lies_open_nothing)
{
    wefti_export_t x = begin_with_other(), y;
    wefti_import_t *i;
    void *p;
    unsigned before = descriptors();
    const int numbers[] = {-1, 0, 1, 2, 12345, INT_MAX, INT_MIN};
    for (unsigned k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        y = x;
        y.fd = numbers[k];
        y.name[0] = (uint8_t)(x.name[0] + 1 + k);
        CHECK_EQ(import(&y, 1000, &i, &p), WEFT_ERR_UNSUPPORTED);
    }
    const uint64_t longer[] = {MAPPED + 1, 2 * MAPPED, UINT64_MAX, 0};
    for (unsigned k = 0; k < sizeof longer / sizeof *longer; k++) {
        y = x;
        y.size = longer[k];
        CHECK_EQ(import(&y, 1000, &i, &p), WEFT_ERR_UNSUPPORTED);
    }
    y = x;
    y.sort = 3;
    CHECK_EQ(import(&y, 1000, &i, &p), WEFT_ERR_UNSUPPORTED);
    CHECK_EQ(descriptors(), before);
    CHECK_EQ(cu.paper->live_imports, 0);
    CHECK_EQ(cu.paper->live_physical, 0);
    CHECK_OK(import(&x, 1000, &i, &p));
    check_bytes(p);
    wefti_mem_unimport(rt, i);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(calls_that_fail_leave_nothing)
{
    wefti_export_t x = begin_with_other();
    static const char *const importing[] = {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
                                            "cuMemSetAccess"};
    static const char *const exporting[] = {"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle",
                                            "cuPointerGetAttribute", "cuDeviceGetUuid_v2"};
    wefti_import_t *i;
    wefti_export_t y;
    void *p;
    unsigned before = descriptors();
    for (unsigned k = 0; k < sizeof importing / sizeof *importing; k++) {
        cu.fail(importing[k], 0, 999, 1);
        CHECK_EQ(import(&x, 1000, &i, &p), WEFT_ERR_UNSUPPORTED);
        cu.fail(importing[k], 0, 0, 0);
    }
    uint8_t *mine = device_alloc();
    for (unsigned k = 0; k < sizeof exporting / sizeof *exporting; k++) {
        cu.fail(exporting[k], 0, 999, 1);
        CHECK(!wefti_mem_export_held(rt, kind, mine, 100, &y));
        cu.fail(exporting[k], 0, 0, 0);
    }
    CHECK_EQ(descriptors(), before + 1); /* the memory itself: the driver's */
    CHECK_EQ(cu.paper->live_imports, 0);
    weft_mem_free(kind, mine, SIZE);
    CHECK_EQ(cu.paper->live_physical, 0);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- what is exported ------------------------------------------------------------------------------------------------------ */

TEST(only_what_was_made_for_it_has_a_descriptor)
{
    static const char *const others[] = {"cuda", "cuda-async", "cuda-vmm", "cuda-managed"};
    wefti_export_t x;
    void *p;
    int local = 0;
    begin();
    uint8_t *mine = device_alloc();
    CHECK(!wefti_mem_export(kind, mine, SIZE, &x)); /* it has no other handle */
    wefti_held_t *held = wefti_mem_export_held(rt, kind, mine, MAPPED, &x);
    CHECK(held);
    CHECK(!wefti_mem_export_held(rt, kind, mine, MAPPED + 1, &x));
    CHECK(!wefti_mem_export_held(rt, kind, &local, 4, &x));
    for (unsigned k = 0; k < sizeof others / sizeof *others; k++) {
        const weft_mem_kind_t *of = weft_mem_kind_find(others[k]);
        CHECK_OK(weft_mem_alloc(of, SIZE, &p));
        CHECK(!wefti_mem_export_held(rt, of, p, SIZE, &x));
        weft_mem_free(of, p, SIZE);
    }
    wefti_mem_unhold(rt, held);
    wefti_mem_unhold(rt, NULL);
    weft_mem_free(kind, mine, SIZE);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_descriptor_is_open_as_long_as_somebody_holds_it_and_a_moment_longer)
{
    wefti_export_t x, y;
    begin();
    uint8_t *mine = device_alloc();
    unsigned before = descriptors();
    wefti_held_t *a = wefti_mem_export_held(rt, kind, mine, 10, &x), *b = wefti_mem_export_held(rt, kind, mine + 500, 10, &y);
    CHECK(a && a == b);
    CHECK(x.fd == y.fd && !memcmp(x.name, y.name, sizeof x.name) && y.offset == 500);
    CHECK_EQ(descriptors(), before + 1);
    wefti_mem_unhold(rt, a);
    pass(WEFT_SECOND);
    CHECK_EQ(descriptors(), before + 1);
    wefti_mem_unhold(rt, b);
    CHECK_EQ(descriptors(), before + 1);
    b = wefti_mem_export_held(rt, kind, mine, 10, &y); /* the next one finds it */
    CHECK_EQ(y.fd, x.fd);
    pass(WEFT_SECOND);
    CHECK_EQ(descriptors(), before + 1);
    wefti_mem_unhold(rt, b);
    weft_mem_free(kind, mine, SIZE);
    pass(WEFT_SECOND / 10);
    CHECK_EQ(descriptors(), before - 1); /* and the driver's own */
    CHECK_OK(weft_runtime_close(rt));
}

TEST(memory_that_is_mapped_again_at_the_same_address_has_another_name)
{
    wefti_export_t first = {0}, x;
    begin();
    for (int round = 0; round < 100; round++) {
        uint8_t *mine = device_alloc();
        wefti_held_t *held = wefti_mem_export_held(rt, kind, mine, SIZE, &x);
        CHECK(held);
        CHECK(memcmp(first.name, x.name, sizeof x.name));
        first = x;
        wefti_mem_unhold(rt, held);
        weft_mem_free(kind, mine, SIZE);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(so_many_are_held_and_no_more)
{
    wefti_held_t *held[4];
    wefti_export_t x;
    uint8_t *p[5];
    begin();
    wefti_held_max = 4;
    unsigned before = descriptors();
    for (int k = 0; k < 5; k++)
        p[k] = device_alloc();
    for (int k = 0; k < 4; k++)
        CHECK(held[k] = wefti_mem_export_held(rt, kind, p[k], 10, &x));
    CHECK(!wefti_mem_export_held(rt, kind, p[4], 10, &x));
    CHECK(wefti_mem_export_held(rt, kind, p[3], 10, &x) == held[3]);
    wefti_mem_unhold(rt, held[3]);
    wefti_mem_unhold(rt, held[1]);
    CHECK(held[1] = wefti_mem_export_held(rt, kind, p[4], 10, &x)); /* in the place of one that nobody uses */
    CHECK_EQ(descriptors(), before + 5 + 4);
    for (int k = 0; k < 4; k++)
        wefti_mem_unhold(rt, held[k]);
    for (int k = 0; k < 5; k++)
        weft_mem_free(kind, p[k], SIZE);
    CHECK_OK(weft_runtime_close(rt)); /* also what it only keeps */
    CHECK_EQ(descriptors(), before);
}

TEST(two_runtimes_of_one_process_need_no_descriptor)
{
    wefti_export_t x;
    wefti_import_t *i;
    void *p;
    begin();
    uint8_t *mine = device_alloc();
    wefti_held_t *held = wefti_mem_export_held(rt, kind, mine + 7, 100, &x);
    CHECK(held);
    CHECK_OK(wefti_mem_import(rt, &x, 100, NULL, NULL, NULL, &i, &p));
    CHECK(p == mine + 7);
    wefti_mem_unimport(rt, i);
    wefti_mem_unhold(rt, held);
    weft_mem_free(kind, mine, SIZE);
    CHECK_EQ(wefti_mem_import(rt, &x, 100, NULL, NULL, NULL, &i, &p), WEFT_ERR_UNSUPPORTED);
    CHECK_OK(weft_runtime_close(rt));
}
