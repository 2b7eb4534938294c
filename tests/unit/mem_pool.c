/* tests/unit/mem_pool.c - pools: buffers that never overlap, waste and bounds, reuse, trimming, sharing, forks, threads, no
 * memory. ctest: label=thread timeout=180 */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "fake_fabric.h"
#include "fakedev.h"
#include "mem/mem.h"

#define MIB ((size_t)1 << 20)

static weft_runtime_t *open_rt(void)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(wefti_mem_attach(rt));
    return rt;
}

static weft_pool_t *new_pool(weft_runtime_t *rt, size_t max_bytes, size_t arena_bytes)
{
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    weft_pool_t *pool;
    o.max_bytes = max_bytes;
    o.arena_bytes = arena_bytes;
    CHECK_OK(weft_pool_new(rt, &o, &pool));
    return pool;
}

static weft_pool_stats_t stats(weft_pool_t *pool)
{
    weft_pool_stats_t s = WEFT_POOL_STATS_INIT;
    weft_pool_get_stats(pool, &s);
    return s;
}

static void *get(weft_pool_t *pool, size_t n)
{
    void *p = NULL;
    CHECK_OK(weft_pool_get(pool, n, &p));
    CHECK_EQ((uintptr_t)p % 64, 0);
    return p;
}

static void end(weft_runtime_t *rt, weft_pool_t *pool)
{
    CHECK_EQ(stats(pool).used, 0);
    CHECK_EQ(stats(pool).used_bytes, 0);
    CHECK_OK(weft_pool_free(pool));
    CHECK_EQ(fake_of(rt)->shared, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(no_more_than_a_quarter_is_wasted)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 0, 0);
    for (size_t n = 0; n < 40 * MIB; n += n < 2000 ? 1 : n / 97) {
        void *p = get(pool, n);
        size_t takes = stats(pool).used_bytes;
        CHECK(takes >= n);
        CHECK(takes <= (n < 256 ? n + 64 : n + n / 4 + 4096 * (n > 8 * MIB)));
        memset(p, 1, n < 70000 ? n : 70000);
        if (n)
            ((char *)p)[n - 1] = 1;
        weft_pool_put(pool, p);
    }
    /* and of arenas that are full of one size little is lost at the end */
    static const size_t sizes[] = {64, 96, 1000, 5000, 10240, 14000, 20000, 24576, 40960, 81920, 98304, 327680, MIB, 5 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        weft_pool_t *full = new_pool(rt, 16 * MIB, 16 * MIB);
        size_t n = 0;
        void *p, *all[8192];
        while (n < 8192 && !weft_pool_get(full, sizes[i], &p))
            all[n++] = p;
        if (n < 8192)
            CHECK(stats(full).used_bytes >= 16 * MIB - 16 * MIB / 8 - 10 * MIB / 2 * (sizes[i] > MIB));
        while (n)
            weft_pool_put(full, all[--n]);
        CHECK_OK(weft_pool_free(full));
    }
    end(rt, pool);
}

/* --- against a model ------------------------------------------------------------------------------------------------------ */

typedef struct held {
    uint8_t *p;
    size_t n;
    uint64_t mark;
} held_t;

static void mark(held_t *h, wefti_rng_t *rng)
{
    h->mark = wefti_rng_next(rng) | 1;
    for (size_t at = 0; at + 8 <= h->n; at += 8 + h->n / 64 / 8 * 8)
        memcpy(h->p + at, &h->mark, 8);
    h->p[h->n - 1] = (uint8_t)h->mark;
}

static void still_there(const held_t *h)
{
    for (size_t at = 0; at + 8 <= h->n - 1; at += 8 + h->n / 64 / 8 * 8)
        CHECK(!memcmp(h->p + at, &h->mark, 8));
    CHECK_EQ(h->p[h->n - 1], (uint8_t)h->mark);
}

static size_t any_size(wefti_rng_t *rng)
{
    switch (wefti_rng_below(rng, 8)) {
    case 0:
        return 1 + wefti_rng_below(rng, 3 * MIB);
    case 1:
    case 2:
        return 1 + wefti_rng_below(rng, 100000);
    default:
        return 1 + wefti_rng_below(rng, 3000);
    }
}

/* Random gets and puts by one thread; buffers that overlap break each other's marks. */
static void churn(weft_pool_t *pool, uint64_t seed, unsigned steps, uint64_t max_bytes)
{
    enum { MANY = 300 };
    static _Thread_local held_t held[MANY];
    wefti_rng_t rng = {seed};
    unsigned refused = 0;
    for (unsigned i = 0; i < steps; i++) {
        held_t *h = &held[wefti_rng_below(&rng, MANY)];
        if (h->p) {
            still_there(h);
            weft_pool_put(pool, h->p);
            h->p = NULL;
        } else {
            h->n = any_size(&rng);
            weft_status_t st = weft_pool_get(pool, h->n, (void **)&h->p);
            CHECK(!st || st == WEFT_ERR_LIMIT);
            if (st) {
                refused++;
                CHECK(strstr(weft_last_error(), "max_bytes"));
            } else {
                CHECK_EQ((uintptr_t)h->p % 64, 0);
                mark(h, &rng);
            }
        }
        if (i % 1000 == 999) {
            CHECK(stats(pool).arena_bytes <= max_bytes);
            if (i % 5000 == 4999)
                weft_pool_trim(pool);
        }
    }
    CHECK(refused < steps / 2);
    for (unsigned i = 0; i < MANY; i++)
        if (held[i].p) {
            still_there(&held[i]);
            weft_pool_put(pool, held[i].p);
            held[i].p = NULL;
        }
}

TEST(buffers_never_overlap_and_arenas_stay_within_their_bound)
{
    static const struct {
        size_t max, arena;
    } shapes[] = {{64 * MIB, 4 * MIB}, {24 * MIB, 16 * MIB}, {20 * MIB, 64 << 10}, {0, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        weft_runtime_t *rt = open_rt();
        weft_pool_t *pool = new_pool(rt, shapes[i].max, shapes[i].arena);
        churn(pool, 42 + i, 20000, shapes[i].max ? shapes[i].max : (uint64_t)4 << 30);
        CHECK(fake_of(rt)->shared_bytes == stats(pool).arena_bytes);
        uint64_t held = stats(pool).arena_bytes;
        CHECK_EQ(weft_pool_trim(pool), held);
        CHECK_EQ(fake_of(rt)->shared, 0);
        end(rt, pool);
    }
}

typedef struct worker {
    pthread_t thread;
    weft_pool_t *pool;
    uint64_t seed;
} worker_t;

static void *work(void *arg)
{
    worker_t *w = arg;
    churn(w->pool, w->seed, 8000, 256 * MIB);
    return NULL;
}

TEST(threads_share_a_pool)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 256 * MIB, 4 * MIB);
    worker_t w[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (worker_t){.pool = pool, .seed = 7 + (uint64_t)i};
        CHECK(!pthread_create(&w[i].thread, NULL, work, &w[i]));
    }
    for (int i = 0; i < 4; i++)
        pthread_join(w[i].thread, NULL);
    end(rt, pool);
}

/* --- reuse, bounds -------------------------------------------------------------------------------------------------------- */

static unsigned allocations;
static int counts(size_t n)
{
    (void)n;
    allocations++;
    return 0;
}

TEST(what_was_given_back_is_given_out_again_without_an_allocation)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 0, 0);
    static const size_t sizes[] = {8, 4096, 65536, MIB, 9 * MIB, 64 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *p = get(pool, sizes[i]);
        weft_pool_put(pool, p);
        weft_pool_stats_t before = stats(pool);
        allocations = 0;
        wefti_alloc_fails = counts;
        for (int round = 0; round < 100; round++) {
            CHECK(get(pool, sizes[i]) == p);
            weft_pool_put(pool, p);
        }
        wefti_alloc_fails = NULL;
        weft_pool_stats_t after = stats(pool);
        CHECK_EQ(allocations, 0);
        CHECK_EQ(after.arenas, before.arenas);
        CHECK_EQ(after.reused, before.reused + 100);
        CHECK_EQ(after.gets, before.gets + 100);
    }
    end(rt, pool);
}

TEST(the_bound_is_kept_and_idle_arenas_make_room)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 16 * MIB, 4 * MIB);
    void *p, *a = get(pool, 10 * MIB);
    CHECK_EQ(weft_pool_get(pool, 10 * MIB, &p), WEFT_ERR_LIMIT);
    CHECK(strstr(weft_last_error(), "max_bytes"));
    CHECK_EQ(weft_pool_get(pool, 17 * MIB, &p), WEFT_ERR_LIMIT);
    CHECK_EQ(weft_pool_get(pool, SIZE_MAX, &p), WEFT_ERR_LIMIT);
    weft_pool_put(pool, a);
    CHECK_EQ(stats(pool).arena_bytes, 10 * MIB);
    a = get(pool, 14 * MIB); /* the idle one has to go for it */
    CHECK_EQ(stats(pool).arena_bytes, 14 * MIB);
    CHECK_EQ(stats(pool).arenas, 1);
    void *small = get(pool, 100); /* what is left makes a smaller arena */
    CHECK_EQ(stats(pool).arena_bytes, 16 * MIB);
    weft_pool_put(pool, small);
    weft_pool_put(pool, a);
    a = get(pool, 16 * MIB); /* all of it, though sizes go up in steps */
    CHECK_EQ(weft_pool_trim(pool), 0);
    weft_pool_put(pool, a);
    CHECK_EQ(weft_pool_trim(pool), 16 * MIB);
    CHECK_EQ(stats(pool).arenas, 0);
    end(rt, pool);
}

TEST(a_size_nobody_uses_any_more_makes_room_for_another)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, MIB, MIB);
    static void *all[16384];
    static const size_t sizes[2] = {64, 640};
    for (int round = 0; round < 6; round++) {
        size_t n = 0, size = sizes[round % 2];
        while (n < 16384 && !weft_pool_get(pool, size, &all[n]))
            n++;
        CHECK(n * size > MIB - MIB / 8 - 1);
        CHECK_EQ(stats(pool).arenas, 1);
        while (n)
            weft_pool_put(pool, all[--n]);
    }
    end(rt, pool);
}

TEST(options_that_cannot_be_are_refused)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    weft_pool_t *pool = NULL;
    CHECK_EQ(weft_pool_new(NULL, NULL, &pool), WEFT_ERR_INVALID);
    CHECK_EQ(weft_pool_new(rt, NULL, NULL), WEFT_ERR_INVALID);
    o.max_bytes = 1000;
    CHECK_EQ(weft_pool_new(rt, &o, &pool), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "max_bytes"));
    o.max_bytes = MIB;
    o.arena_bytes = 2 * MIB;
    CHECK_EQ(weft_pool_new(rt, &o, &pool), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "arena_bytes"));
    o.size = 0;
    CHECK_EQ(weft_pool_new(rt, &o, &pool), WEFT_ERR_INVALID);
    CHECK(!pool);
    CHECK_OK(weft_pool_new(rt, NULL, &pool));
    void *p = get(pool, 5);
    CHECK_EQ(weft_pool_free(pool), WEFT_ERR_STATE);
    CHECK(strstr(weft_last_error(), "1 buffers"));
    weft_pool_put(pool, p);
    weft_pool_put(pool, NULL);
    weft_pool_put(NULL, p);
    CHECK_EQ(weft_pool_get(pool, 1, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_pool_get(NULL, 1, &p), WEFT_ERR_INVALID);
    CHECK_EQ(weft_pool_trim(NULL), 0);
    CHECK_OK(weft_pool_free(NULL));
    end(rt, pool);
}

/* --- pointers that are not out -------------------------------------------------------------------------------------------- */

static weft_pool_t *victim;
static void *not_out;
static unsigned errors;

static void count_errors(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    errors += level == WEFT_LOG_ERROR && strstr(line, "given back");
}

/* In a child: giving it back is an error in the log, and where assertions are on it ends there; elsewhere the pool is as it
 * was. */
static void is_refused(void *p)
{
    not_out = p;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        weft_log_set_sink(count_errors, NULL);
        signal(SIGABRT, SIG_DFL);
#ifndef NDEBUG
        if (!freopen("/dev/null", "w", stderr))
            _exit(3);
#endif
        /* the runtime is the parent's, but the pool must look for this */
        wefti_fork_generation--;
        weft_pool_stats_t before = stats(victim);
        weft_pool_put(victim, not_out);
        weft_pool_stats_t after = stats(victim);
        _exit(errors == 1 && !memcmp(&before, &after, sizeof before) ? 0 : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
#ifdef NDEBUG
    CHECK_EQ(status, 0);
#else
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#endif
}

TEST(a_pointer_that_is_not_out_is_refused)
{
    weft_runtime_t *rt = open_rt();
    victim = new_pool(rt, 0, 0);
    char local[64], *small = get(victim, 100), *back = get(victim, 100), *large = get(victim, 20 * MIB);
    weft_pool_put(victim, back);
    is_refused(local);
    is_refused(small + 1);
    is_refused(small + 64);
    is_refused(back);          /* twice */
    is_refused(small + 65536); /* a unit nobody has */
    is_refused(large + 64);
    weft_pool_put(victim, small);
    weft_pool_put(victim, large);
    is_refused(large);
    end(rt, victim);
}

/* --- kinds ---------------------------------------------------------------------------------------------------------------- */

TEST(a_pool_of_a_device_never_touches_its_memory)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    weft_pool_t *pool;
    void *p[100], *again;
    char text[100], seen[100];
    fakedev_install();
    o.kind = fakedev();
    CHECK_OK(weft_pool_new(rt, &o, &pool));
    const weft_mem_kind_t *kind = weft_pool_kind(pool);
    CHECK(!(kind->flags & WEFT_MEM_CPU));
    for (int i = 0; i < 100; i++) {
        CHECK_OK(weft_mem_alloc(kind, 100, &p[i]));
        CHECK(weft_mem_kind_of(p[i]) == fakedev());
        CHECK(kind->owns(kind, p[i]));
        snprintf(text, sizeof text, "buffer %d", i);
        CHECK_OK(weft_mem_copy(p[i], i % 2 ? kind : NULL, text, NULL, sizeof text));
    }
    CHECK_EQ(fakedev_live(), 1);
    CHECK_EQ(fake_of(rt)->shares, 0);
    uint64_t copies = fakedev_copies();
    for (int i = 0; i < 100; i += 2)
        weft_mem_free(kind, p[i], 100);
    for (int i = 0; i < 100; i += 2)
        CHECK_OK(weft_mem_alloc(kind, 100, &p[i]));
    CHECK_EQ(fakedev_copies(), copies);
    for (int i = 1; i < 100; i += 2) {
        snprintf(text, sizeof text, "buffer %d", i);
        fakedev_peek(p[i], seen, sizeof seen);
        CHECK_STR(seen, text);
    }
    /* between the pool and its kind, and between two buffers of it */
    CHECK_OK(weft_mem_alloc(fakedev(), 100, &again));
    CHECK_OK(weft_mem_copy(again, fakedev(), p[1], kind, 100));
    CHECK_OK(weft_mem_copy(p[3], kind, again, NULL, 100));
    fakedev_peek(p[3], seen, sizeof seen);
    CHECK_STR(seen, "buffer 1");
    CHECK_OK(kind->copy(kind, seen, p[5], sizeof seen));
    CHECK_STR(seen, "buffer 5");
    weft_mem_free(fakedev(), again, 100);
    for (int i = 0; i < 100; i++)
        weft_mem_free(kind, p[i], 100);
    end(rt, pool);
    CHECK_EQ(fakedev_live(), 0);
    fakedev_remove();
}

TEST(pools_of_every_host_kind_work)
{
    static const char *const kinds[] = {"host", "huge", "pinned"};
    for (int i = 0; i < 6; i++) {
        weft_runtime_t *rt = open_rt();
        weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
        weft_pool_t *pool;
        o.kind = weft_mem_kind_find(kinds[i % 3]);
        o.unshared = i >= 3;
        o.arena_bytes = 4 * MIB; /* what may be locked is little */
        CHECK_OK(weft_pool_new(rt, &o, &pool));
        void *a = get(pool, 1000), *b = get(pool, 3 * MIB);
        memset(a, 1, 1000);
        memset(b, 2, 3 * MIB);
        CHECK_EQ(fake_of(rt)->shared, i == 0 ? 2 : 0);
        weft_pool_put(pool, a);
        weft_pool_put(pool, b);
        end(rt, pool);
    }
}

/* --- sharing -------------------------------------------------------------------------------------------------------------- */

TEST(an_arena_is_a_sealed_memfd_that_another_mapping_can_read)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 0, 0);
    fake_fabric_t *f = fake_of(rt);
    char *p = get(pool, 1000);
    strcpy(p, "here");
    CHECK_EQ(f->shared, 1);
    CHECK_EQ(f->share_n, 16 * MIB);
    int seals = fcntl(f->share_fd, F_GET_SEALS);
    CHECK((seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    CHECK(ftruncate(f->share_fd, 4096) < 0);
    CHECK(fcntl(f->share_fd, F_GETFD) & FD_CLOEXEC);
    char *seen = mmap(NULL, f->share_n, PROT_READ, MAP_SHARED, f->share_fd, 0);
    CHECK(seen != MAP_FAILED);
    CHECK_STR(seen + (p - (char *)f->share_base), "here");
    weft_pool_put(pool, p);
    CHECK_EQ(weft_pool_trim(pool), 16 * MIB);
    CHECK_EQ(f->shared, 0);
    CHECK(fcntl(f->share_fd, F_GETFD) < 0); /* closed */
    munmap(seen, f->share_n);
    f->share_fails = WEFT_ERR_LIMIT; /* no harm: it is copied like any other memory */
    weft_log_set_level(WEFT_LOG_NONE);
    p = get(pool, 1000);
    CHECK_EQ(f->shared, 0);
    weft_pool_put(pool, p);
    end(rt, pool);
}

/* Whoever may open it, as any process of the same user may through /proc: what was checked in it stays as it was. */
TEST(nobody_else_can_write_to_an_arena)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 0, 0);
    fake_fabric_t *f = fake_of(rt);
    char *p = get(pool, 1000), path[64];
    strcpy(p, "ours");
    snprintf(path, sizeof path, "/proc/self/fd/%d", f->share_fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    if (!(fcntl(fd, F_GET_SEALS) & 0x10))
        SKIP("the kernel has no F_SEAL_FUTURE_WRITE");
    CHECK(mmap(NULL, f->share_n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(pwrite(fd, "theirs", 6, 0) < 0);
    strcpy(p, "still ours");
    CHECK_STR(p, "still ours");
    close(fd);
    weft_pool_put(pool, p);
    end(rt, pool);
}

TEST(a_pool_that_outlives_its_runtime_gives_nothing_out)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 0, 0);
    void *q, *p = get(pool, 1000);
    weft_log_set_level(WEFT_LOG_NONE);
    CHECK_OK(weft_runtime_close(rt)); /* the fabric looks that nothing is shared */
    memset(p, 1, 1000);
    CHECK_EQ(weft_pool_get(pool, 1000, &q), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_pool_free(pool), WEFT_ERR_STATE);
    weft_pool_put(pool, p);
    CHECK_OK(weft_pool_free(pool));
}

static unsigned lines;

static void count_line(weft_log_level_t level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
    lines++;
}

TEST(a_pool_that_may_outlive_its_runtime_is_not_warned_about)
{
    for (int may = 0; may < 2; may++) {
        weft_runtime_t *rt = open_rt();
        weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
        weft_pool_t *pool;
        o.outlives = may;
        CHECK_OK(weft_pool_new(rt, &o, &pool));
        lines = 0;
        weft_log_set_level(WEFT_LOG_WARN);
        weft_log_set_sink(count_line, NULL);
        CHECK_OK(weft_runtime_close(rt));
        CHECK_EQ(lines, may ? 0 : 1);
        CHECK_OK(weft_pool_free(pool));
    }
}

/* --- forks ---------------------------------------------------------------------------------------------------------------- */

TEST(a_child_reads_its_parents_buffers_and_writes_to_its_own)
{
    weft_runtime_t *rt = open_rt();
    weft_pool_t *pool = new_pool(rt, 0, 0);
    char *p = get(pool, 100000), *large = get(pool, 20 * MIB);
    strcpy(p, "parent");
    strcpy(large, "parent");
    pid_t pid = fork();
    if (!pid) {
        void *q = NULL;
        weft_pool_t *other;
        CHECK_STR(p, "parent");
        CHECK_STR(large, "parent");
        memset(p, 'c', 100000);
        strcpy(large, "child");
        CHECK_STR(large, "child");
        CHECK_EQ(weft_pool_get(pool, 8, &q), WEFT_ERR_FORKED);
        CHECK(strstr(weft_last_error(), "forked"));
        CHECK_EQ(weft_pool_new(rt, NULL, &other), WEFT_ERR_FORKED);
        weft_pool_put(pool, p);
        CHECK_EQ(weft_pool_trim(pool), 0);
        CHECK_EQ(weft_pool_free(pool), WEFT_ERR_FORKED);
        CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_FORKED);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    CHECK_STR(p, "parent");
    CHECK_STR(large, "parent");
    CHECK_EQ(stats(pool).used, 2);
    weft_pool_put(pool, p);
    weft_pool_put(pool, large);
    end(rt, pool);
}

/* --- no memory ------------------------------------------------------------------------------------------------------------ */

static unsigned fail_at;
static int fails_at(size_t n)
{
    (void)n;
    return fail_at && --fail_at == 0;
}

TEST(every_allocation_may_fail_and_the_pool_goes_on)
{
    for (int kind = 0; kind < 2; kind++)
        for (unsigned at = 1; at < 40; at++) {
            weft_runtime_t *rt = open_rt();
            weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
            weft_pool_t *pool = NULL;
            o.arena_bytes = 128 << 10;
            o.unshared = kind;
            static const size_t sizes[] = {100, 5000, MIB, 60000, 60000, 60000, 64};
            void *p[7];
            unsigned failed = 0;
            fail_at = at;
            wefti_alloc_fails = fails_at;
            weft_status_t st = weft_pool_new(rt, &o, &pool);
            CHECK(!st || st == WEFT_ERR_NOMEM);
            for (int i = 0; pool && i < 7; i++) {
                p[i] = NULL;
                st = weft_pool_get(pool, sizes[i], &p[i]);
                CHECK(!st || (st == WEFT_ERR_NOMEM && *weft_last_error()));
                failed += st != WEFT_OK;
                if (st)
                    CHECK_OK(weft_pool_get(pool, sizes[i], &p[i]));
                memset(p[i], i, sizes[i]);
            }
            wefti_alloc_fails = NULL;
            CHECK(failed <= 1);
            for (int i = 0; pool && i < 7; i++) {
                CHECK_EQ(*(uint8_t *)p[i], i);
                weft_pool_put(pool, p[i]);
            }
            if (pool)
                end(rt, pool);
            else
                CHECK_OK(weft_runtime_close(rt));
        }
}
