/* tests/unit/mem_kind.c - kinds of memory: found by name, added, replaced, recognised, and copied between.
 * ctest: label=thread timeout=120 */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "fakedev.h"
#include "mem/mem.h"

static int fails_always(size_t n)
{
    (void)n;
    return 1;
}

/* --- the log ---------------------------------------------------------------------------------------------------------------- */

static char lines[16][512];
static unsigned n_lines;

static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level <= WEFT_LOG_INFO && n_lines < 16)
        snprintf(lines[n_lines++], sizeof lines[0], "%s", line);
}

static void listen_to_log(void)
{
    n_lines = 0;
    weft_log_set_level(WEFT_LOG_DEBUG);
    weft_log_set_sink(sink, NULL);
}

/* --- the library's kinds -------------------------------------------------------------------------------------------------- */

static const char *const host_kinds[] = {"host", "huge", "pinned"};
static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 4097, (3u << 20) + 1};

TEST(memory_of_every_host_kind_is_aligned_and_can_be_written)
{
    for (size_t k = 0; k < 3; k++) {
        const weft_mem_kind_t *kind = weft_mem_kind_find(host_kinds[k]);
        CHECK(kind);
        CHECK_STR(kind->name, host_kinds[k]);
        CHECK(kind->flags & WEFT_MEM_CPU);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            void *p = NULL;
            CHECK_OK(weft_mem_alloc(kind, sizes[i], &p));
            CHECK_EQ((uintptr_t)p % 64, 0);
            memset(p, 0x5a, sizes[i]);
            CHECK_STR(weft_mem_kind_of(p)->name, "host");
            weft_mem_free(kind, p, sizes[i]);
        }
    }
    CHECK(weft_mem_kind_find("host") == weft_mem_host());
    weft_mem_free(weft_mem_host(), NULL, 5);
    void *p;
    CHECK_OK(weft_mem_alloc(NULL, 10, &p));
    weft_mem_free(NULL, p, 10);
}

TEST(a_kind_that_is_not_there_says_why)
{
    CHECK(!weft_mem_kind_find("hsot"));
    CHECK(strstr(weft_last_error(), "hsot"));
    CHECK(!weft_mem_kind_find(NULL));
    CHECK(strstr(weft_last_error(), "NULL"));
    CHECK(!weft_mem_kind_find(""));
}

TEST(cuda_is_absent_without_a_trace)
{
    listen_to_log();
    if (weft_mem_kind_find("cuda"))
        SKIP("this machine has CUDA");
    CHECK(strstr(weft_last_error(), "CUDA"));
    CHECK(!weft_mem_kind_find("cuda-managed") && !weft_mem_kind_find("cuda-async") && !weft_mem_kind_find("cuda-vmm"));
    CHECK_EQ(n_lines, 0);
    CHECK_EQ(atomic_load(&wefti_mem_devices), 0);
}

TEST(cuda_switched_off_says_so)
{
    CHECK(!setenv("WEFT_CUDA", "off", 1));
    CHECK(!weft_mem_kind_find("cuda"));
    CHECK(strstr(weft_last_error(), "WEFT_CUDA"));
    CHECK_EQ(atomic_load(&wefti_mem_devices), 0);
}

static void names(const weft_mem_kind_t *kind, void *user)
{
    strcat(user, kind->name);
    strcat(user, " ");
}

TEST(kinds_are_listed_in_order_and_a_replaced_one_once)
{
    char text[512] = "";
    CHECK(!setenv("WEFT_CUDA", "off", 1));
    fakedev_install();
    weft_mem_kind_each(names, text);
    CHECK_STR(text, "host huge pinned fakedev ");
    weft_mem_kind_t mine = *weft_mem_host();
    mine.name = "huge";
    CHECK_OK(weft_mem_kind_add(&mine));
    *text = '\0';
    weft_mem_kind_each(names, text);
    CHECK_STR(text, "host pinned fakedev huge ");
    CHECK(weft_mem_kind_find("huge") == &mine);
    wefti_mem_kinds_text(text, sizeof text);
    CHECK_STR(text, "host, pinned, fakedev, huge");
    wefti_mem_kinds_text(text, 10);
    CHECK_STR(text, "host, pin");
    CHECK_OK(weft_mem_kind_remove(&mine));
    CHECK(weft_mem_kind_find("huge") != &mine);
    weft_mem_kind_each(NULL, NULL);
}

TEST(a_kind_without_memory_says_so)
{
    for (size_t k = 0; k < 3; k++) {
        const weft_mem_kind_t *kind = weft_mem_kind_find(host_kinds[k]);
        void *p = &p;
        wefti_alloc_fails = fails_always;
        weft_status_t st = weft_mem_alloc(kind, 1000, &p);
        wefti_alloc_fails = NULL;
        CHECK_EQ(st, WEFT_ERR_NOMEM);
        CHECK(strstr(weft_last_error(), "1000 bytes"));
        CHECK(p == &p);
        CHECK_EQ(weft_mem_alloc(kind, SIZE_MAX - 100, &p), WEFT_ERR_NOMEM);
        CHECK_EQ(weft_mem_alloc(kind, (size_t)1 << 55, &p), WEFT_ERR_NOMEM);
    }
    CHECK_EQ(weft_mem_alloc(NULL, 1, NULL), WEFT_ERR_INVALID);
}

TEST(pinned_memory_beyond_the_limit_is_ordinary_memory_and_said_once)
{
    const struct rlimit limit = {64 << 10, 64 << 10};
    const weft_mem_kind_t *kind = weft_mem_kind_find("pinned");
    void *p[2];
    CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
    if (!getuid() && setuid(65534))
        SKIP("root may lock any amount, and cannot become somebody else here");
    void *probe = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(probe != MAP_FAILED);
    if (!mlock(probe, 1 << 20))
        SKIP("more can be locked than is allowed: a sanitizer leaves mlock() out");
    listen_to_log();
    for (int i = 0; i < 2; i++) {
        CHECK_OK(weft_mem_alloc(kind, 1 << 20, &p[i]));
        memset(p[i], 1, 1 << 20);
    }
    CHECK_EQ(n_lines, 1);
    CHECK(strstr(lines[0], "ulimit"));
    for (int i = 0; i < 2; i++)
        weft_mem_free(kind, p[i], 1 << 20);
}

/* --- a program's own ------------------------------------------------------------------------------------------------------ */

TEST(an_unfit_kind_is_refused_with_a_sentence)
{
    weft_mem_kind_t k = *fakedev();
    CHECK_EQ(weft_mem_kind_add(NULL), WEFT_ERR_INVALID);
    k.size = 8;
    CHECK_EQ(weft_mem_kind_add(&k), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "WEFT_MEM_KIND_INIT"));
    k = *fakedev();
    static const char *const bad[] = {NULL, "", "a b", "caf\xc3\xa9", "0123456789012345678901234567890x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        k.name = bad[i];
        CHECK_EQ(weft_mem_kind_add(&k), WEFT_ERR_INVALID);
        CHECK(strstr(weft_last_error(), "name"));
    }
    k.name = "0123456789-1234567890_23456789x"; /* 31 */
    CHECK_OK(weft_mem_kind_add(&k));
    CHECK_OK(weft_mem_kind_remove(&k));
    k.alloc = NULL;
    CHECK_EQ(weft_mem_kind_add(&k), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "alloc"));
    k = *fakedev();
    k.free = NULL;
    CHECK_EQ(weft_mem_kind_add(&k), WEFT_ERR_INVALID);
    k = *fakedev();
    k.copy = NULL;
    CHECK_EQ(weft_mem_kind_add(&k), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "copy"));
    k.flags = WEFT_MEM_CPU;
    CHECK_OK(weft_mem_kind_add(&k));
    CHECK_EQ(atomic_load(&wefti_mem_devices), 0);
    CHECK_OK(weft_mem_kind_remove(&k));
    CHECK_EQ(weft_mem_kind_remove(&k), WEFT_ERR_NOTFOUND);
    CHECK_EQ(weft_mem_kind_remove(NULL), WEFT_ERR_INVALID);
}

TEST(sixteen_kinds_of_its_own_and_no_more)
{
    weft_mem_kind_t k[17];
    char name[17][16];
    for (int i = 0; i < 17; i++) {
        k[i] = *fakedev();
        snprintf(name[i], sizeof name[i], "k%d", i);
        k[i].name = name[i];
        CHECK_EQ(weft_mem_kind_add(&k[i]), i < 16 ? WEFT_OK : WEFT_ERR_LIMIT);
    }
    CHECK_EQ(weft_mem_kind_add(&k[3]), WEFT_ERR_STATE);
    CHECK(strstr(weft_last_error(), "k3"));
    CHECK_EQ(atomic_load(&wefti_mem_devices), 16);
    CHECK_OK(weft_mem_kind_remove(&k[3]));
    CHECK(!weft_mem_kind_find("k3"));
    CHECK(weft_mem_kind_find("k15") == &k[15]);
    CHECK_OK(weft_mem_kind_add(&k[16]));
    for (int i = 0; i < 17; i++)
        CHECK_EQ(weft_mem_kind_remove(&k[i]), i == 3 ? WEFT_ERR_NOTFOUND : WEFT_OK);
    CHECK_EQ(atomic_load(&wefti_mem_devices), 0);
}

TEST(addresses_are_recognised_while_their_kind_is_there)
{
    char *p, *h = malloc(100);
    fakedev_install();
    CHECK_EQ(atomic_load(&wefti_mem_devices), 1);
    CHECK_OK(weft_mem_alloc(fakedev(), 100, (void **)&p));
    CHECK(weft_mem_kind_of(p) == fakedev());
    CHECK(weft_mem_kind_of(p + 99) == fakedev());
    CHECK(weft_mem_kind_of(p + 100) == weft_mem_host());
    CHECK(weft_mem_kind_of(h) == weft_mem_host());
    CHECK(weft_mem_kind_of(NULL) == weft_mem_host());
    CHECK(wefti_mem_device_of(p, NULL) == fakedev());
    CHECK(!wefti_mem_device_of(h, NULL));
    CHECK(wefti_mem_device_of(h, fakedev()) == fakedev()); /* what the program says goes */
    CHECK(!wefti_mem_device_of(p, weft_mem_host()));
    weft_mem_free(fakedev(), p, 100);
    CHECK(weft_mem_kind_of(p) == weft_mem_host());
    fakedev_remove();
    CHECK_EQ(atomic_load(&wefti_mem_devices), 0);
    free(h);
}

/* --- copies --------------------------------------------------------------------------------------------------------------- */

/* A second device, whose bytes are inverted. It only knows its own memory and the processor's. */
static uint8_t flip_mem[1 << 20] __attribute__((aligned(64)));

static bool flip_owns(const weft_mem_kind_t *kind, const void *p)
{
    (void)kind;
    return (const uint8_t *)p >= flip_mem && (const uint8_t *)p < flip_mem + sizeof flip_mem;
}

static weft_status_t flip_alloc(const weft_mem_kind_t *kind, size_t n, void **out)
{
    (void)kind;
    if (n > sizeof flip_mem)
        return WEFT_ERR_NOMEM;
    *out = flip_mem;
    return WEFT_OK;
}

static void flip_free(const weft_mem_kind_t *kind, void *p, size_t n)
{
    (void)kind;
    (void)p;
    (void)n;
}

static weft_status_t flip_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    const uint8_t *from = src;
    uint8_t *to = dst, key = flip_owns(kind, dst) != flip_owns(kind, src) ? 0xff : 0;
    CHECK(!fakedev()->owns(fakedev(), dst) && !fakedev()->owns(fakedev(), src));
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] ^ key;
    return WEFT_OK;
}

static const weft_mem_kind_t flip = {
    .size = sizeof flip, .name = "flip", .alloc = flip_alloc, .free = flip_free, .copy = flip_copy, .owns = flip_owns};

static void fill(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 7 + i / 251);
}

TEST(bytes_arrive_between_any_two_kinds)
{
    const size_t n = (700u << 10) + 13; /* more than passes through in one go */
    uint8_t *in = malloc(n), *out = malloc(n);
    void *dev, *other, *fl;
    fill(in, n);
    fakedev_install();
    CHECK_OK(weft_mem_kind_add(&flip));
    CHECK_OK(weft_mem_alloc(fakedev(), n, &dev));
    CHECK_OK(weft_mem_alloc(fakedev(), n, &other));
    CHECK_OK(weft_mem_alloc(&flip, n, &fl));
    for (int said = 0; said < 2; said++) {
        const weft_mem_kind_t *host = said ? weft_mem_host() : NULL, *d = said ? fakedev() : NULL, *f = said ? &flip : NULL;
        memset(out, 0, n);
        CHECK_OK(weft_mem_copy(dev, d, in, host, n)); /* host to device */
        CHECK(memcmp(dev, in, n));                    /* where a plain look shows nothing */
        CHECK_OK(weft_mem_copy(other, d, dev, d, n)); /* device to device */
        CHECK_OK(weft_mem_copy(fl, f, other, d, n));  /* to another device */
        memset(in, 1, n);
        fakedev_poke(dev, in, n);
        CHECK_OK(weft_mem_copy(dev, d, fl, f, n));     /* and back from there */
        CHECK_OK(weft_mem_copy(out, host, dev, d, n)); /* device to host */
        fill(in, n);
        CHECK(!memcmp(in, out, n));
        memset(out, 0, n);
        CHECK_OK(weft_mem_copy(out, host, in, host, n));
        CHECK(!memcmp(in, out, n));
    }
    CHECK_OK(weft_mem_copy(NULL, NULL, NULL, NULL, 0));
    CHECK_EQ(weft_mem_copy(NULL, NULL, in, NULL, 1), WEFT_ERR_INVALID);
    CHECK_EQ(weft_mem_copy(in, NULL, NULL, NULL, 1), WEFT_ERR_INVALID);

    wefti_alloc_fails = fails_always;
    weft_status_t st = weft_mem_copy(fl, NULL, other, NULL, n);
    wefti_alloc_fails = NULL;
    CHECK_EQ(st, WEFT_ERR_NOMEM);
    CHECK(strstr(weft_last_error(), "fakedev"));
    fakedev_fail_copies(1);
    CHECK_OK(weft_mem_copy(dev, NULL, in, NULL, n));
    CHECK_EQ(weft_mem_copy(dev, NULL, in, NULL, n), WEFT_ERR_SYSTEM);
    CHECK(strstr(weft_last_error(), "fakedev"));
    CHECK_EQ(weft_mem_copy(fl, NULL, dev, NULL, n), WEFT_ERR_SYSTEM);
    CHECK_EQ(weft_mem_alloc(&flip, 2u << 20, &fl), WEFT_ERR_NOMEM);
    CHECK(strstr(weft_last_error(), "flip"));
    weft_mem_free(fakedev(), dev, n);
    weft_mem_free(fakedev(), other, n);
    CHECK_EQ(fakedev_live(), 0);
    free(in);
    free(out);
}

/* A kind the processor can touch may still copy in its own way. */
static unsigned own_copies;
static weft_status_t counting_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    (void)kind;
    own_copies++;
    memcpy(dst, src, n);
    return WEFT_OK;
}

TEST(a_kind_that_is_named_copies_in_its_own_way)
{
    weft_mem_kind_t k = *weft_mem_host();
    char a[8] = "abcdefg", b[8];
    k.name = "mine";
    k.copy = counting_copy;
    CHECK_OK(weft_mem_copy(b, &k, a, NULL, 8));
    CHECK_OK(weft_mem_copy(b, NULL, a, &k, 8));
    CHECK_EQ(own_copies, 2);
    CHECK_STR(b, "abcdefg");
}

/* --- threads and forks ---------------------------------------------------------------------------------------------------- */

static _Atomic bool stop;

static void *asks(void *p)
{
    unsigned n = 0;
    while (!atomic_load(&stop) && n < 100000000) {
        const weft_mem_kind_t *kind = weft_mem_kind_of(p);
        CHECK(kind == weft_mem_host() || kind == fakedev());
        n++;
    }
    return NULL;
}

TEST(kinds_come_and_go_while_others_ask)
{
    pthread_t t[3];
    void *p;
    CHECK_OK(weft_mem_alloc(fakedev(), 100, &p));
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&t[i], NULL, asks, p));
    for (int i = 0; i < 2000; i++) {
        fakedev_install();
        CHECK(weft_mem_kind_of(p) == fakedev());
        fakedev_remove();
        CHECK(weft_mem_kind_of(p) == weft_mem_host());
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    weft_mem_free(fakedev(), p, 100);
}

TEST(a_child_has_the_kinds_of_its_parent)
{
    fakedev_install();
    pid_t pid = fork();
    if (!pid) {
        CHECK(weft_mem_kind_find("fakedev") == fakedev());
        fakedev_remove();
        fakedev_install();
        exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    fakedev_remove();
}
