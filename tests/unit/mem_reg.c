/* tests/unit/mem_reg.c - the registration cache: found by containment, bounded, each registration undone once, by a fabric that
 * counts. ctest: label=thread timeout=180 */
#include "test.h"

#include <pthread.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "fake_fabric.h"
#include "fakedev.h"
#include "mem/mem.h"

#define PAGE ((size_t)4096)
#define PAGES 20000

/* Addresses to register: nobody touches what is there. */
static char *space(void)
{
    char *p = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static weft_runtime_t *open_rt(uint64_t reg_cache)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    rt->config.reg_cache = reg_cache;
    CHECK_OK(wefti_mem_attach(rt));
    return rt;
}

static weft_mem_reg_stats_t stats(weft_runtime_t *rt)
{
    weft_mem_reg_stats_t s = WEFT_MEM_REG_STATS_INIT;
    weft_mem_get_reg_stats(rt, &s);
    CHECK_EQ(s.ranges, fake_of(rt)->registered);
    CHECK_EQ(s.bytes, fake_of(rt)->registered_bytes);
    return s;
}

static weft_mem_reg_t *reg(weft_runtime_t *rt, void *p, size_t n)
{
    weft_mem_reg_t *r = NULL;
    CHECK_OK(weft_mem_register(rt, p, n, &r));
    CHECK(r);
    return r;
}

TEST(whole_pages_are_registered_and_what_lies_in_them_is_found)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    char *p = space();
    weft_mem_reg_t *a = reg(rt, p + 100, 2 * PAGE); /* touches three pages */
    CHECK_EQ(stats(rt).bytes, 3 * PAGE);
    weft_mem_reg_t *b = reg(rt, p, 3 * PAGE), *c = reg(rt, p + PAGE, 1);
    CHECK(a == b && b == c);
    CHECK_EQ(stats(rt).hits, 2);
    weft_mem_reg_t *d = reg(rt, p + 3 * PAGE - 1, 2); /* a page further */
    CHECK(d != a);
    CHECK_EQ(stats(rt).misses, 2);
    CHECK_EQ(stats(rt).ranges, 2);
    weft_mem_unregister(a, false);
    weft_mem_unregister(b, false);
    weft_mem_unregister(c, false);
    weft_mem_unregister(d, false);
    CHECK_EQ(stats(rt).ranges, 2); /* kept */
    a = reg(rt, p + 5, 7);
    CHECK_EQ(fake_of(rt)->registers, 2);
    weft_mem_unregister(a, true);
    CHECK_EQ(stats(rt).ranges, 1);
    weft_mem_unregister(NULL, true);
    CHECK_OK(weft_runtime_close(rt)); /* the fabric looks that nothing is left */
}

TEST(what_cannot_be_registered_is_refused)
{
    weft_runtime_t *rt = open_rt(1 << 20);
    weft_mem_reg_t *r = NULL;
    CHECK_EQ(weft_mem_register(NULL, rt, 1, &r), WEFT_ERR_INVALID);
    CHECK_EQ(weft_mem_register(rt, NULL, 1, &r), WEFT_ERR_INVALID);
    CHECK_EQ(weft_mem_register(rt, rt, 0, &r), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "empty"));
    CHECK_EQ(weft_mem_register(rt, rt, 1, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_mem_register(rt, rt, SIZE_MAX, &r), WEFT_ERR_INVALID);
    CHECK_EQ(weft_mem_register(rt, space(), (1 << 20) + 1, &r), WEFT_ERR_LIMIT);
    CHECK(strstr(weft_last_error(), "WEFT_REG_CACHE"));
    CHECK(!r);
    CHECK_OK(weft_runtime_close(rt));
    rt = open_rt(0);
    CHECK_EQ(weft_mem_register(rt, space(), 1, &r), WEFT_ERR_LIMIT);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(the_longest_unused_goes_first_and_what_is_in_use_stays)
{
    weft_runtime_t *rt = open_rt(4 * PAGE);
    char *p = space();
    weft_mem_reg_t *r[4], *x;
    for (int i = 0; i < 4; i++)
        r[i] = reg(rt, p + 2 * i * PAGE, PAGE);
    CHECK_EQ(weft_mem_register(rt, p + 100 * PAGE, 1, &x), WEFT_ERR_LIMIT);
    CHECK(strstr(weft_last_error(), "in use"));
    weft_mem_unregister(r[2], false);
    weft_mem_unregister(r[0], false);
    x = reg(rt, p + 100 * PAGE, 1); /* in the place of r[2] */
    CHECK_EQ(stats(rt).evictions, 1);
    CHECK_EQ(stats(rt).bytes, 4 * PAGE);
    CHECK(reg(rt, p, 1) == r[0]);
    CHECK_EQ(stats(rt).misses, 6);
    weft_mem_unregister(r[0], false);
    weft_mem_unregister(x, false);
    weft_mem_unregister(r[1], false);
    weft_mem_unregister(r[3], false);
    x = reg(rt, p + 200 * PAGE, 4 * PAGE); /* in the place of all, and given back too late: the runtime's end undoes it */
    CHECK_EQ(stats(rt).ranges, 1);
    weft_log_set_level(WEFT_LOG_NONE);
    CHECK_OK(weft_runtime_close(rt));
    weft_mem_unregister(x, false);
}

TEST(so_many_ranges_and_no_more)
{
    weft_runtime_t *rt = open_rt((uint64_t)1 << 40);
    char *p = space();
    static weft_mem_reg_t *r[4096];
    weft_mem_reg_t *x;
    for (int i = 0; i < 4096; i++)
        r[i] = reg(rt, p + 2 * i * PAGE, PAGE);
    CHECK_EQ(weft_mem_register(rt, p + 10000 * PAGE, 1, &x), WEFT_ERR_LIMIT);
    CHECK(strstr(weft_last_error(), "4096"));
    weft_mem_unregister(r[1000], false);
    x = reg(rt, p + 10000 * PAGE, 1);
    CHECK_EQ(stats(rt).ranges, 4096);
    weft_mem_unregister(x, false);
    for (int i = 0; i < 4096; i++)
        if (i != 1000)
            weft_mem_unregister(r[i], i % 2);
    CHECK_EQ(stats(rt).ranges, 2048);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(what_is_to_be_forgotten_goes_with_its_last_holder)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    char *p = space();
    weft_mem_reg_t *a = reg(rt, p, 10 * PAGE), *b = reg(rt, p + PAGE, PAGE);
    CHECK(a == b);
    weft_mem_unregister(a, true);
    CHECK_EQ(stats(rt).ranges, 1);
    weft_mem_unregister(b, false);
    CHECK_EQ(stats(rt).ranges, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_new_range_replaces_unused_ones_and_lies_beside_those_in_use)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    char *p = space();
    weft_mem_reg_t *held = reg(rt, p + 4 * PAGE, PAGE), *idle = reg(rt, p + 8 * PAGE, PAGE);
    weft_mem_unregister(idle, false);
    weft_mem_reg_t *wide = reg(rt, p, 20 * PAGE);
    CHECK_EQ(stats(rt).ranges, 2);
    CHECK_EQ(stats(rt).evictions, 1);
    weft_mem_reg_t *in = reg(rt, p + 15 * PAGE, 1); /* past a narrow one that begins later */
    CHECK(in == wide);
    weft_mem_unregister(in, false);
    in = reg(rt, p + 4 * PAGE, 2 * PAGE); /* the narrow one has only half of it */
    CHECK(in == wide);
    weft_mem_unregister(in, false);
    weft_mem_unregister(held, true);
    weft_mem_unregister(wide, true);
    CHECK_EQ(stats(rt).ranges, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_fabric_that_fails_leaves_nothing_in_the_cache)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    char *p = space();
    weft_mem_reg_t *r = NULL;
    fake_of(rt)->register_fails = WEFT_ERR_SYSTEM;
    CHECK_EQ(weft_mem_register(rt, p, 1, &r), WEFT_ERR_SYSTEM);
    CHECK(!r);
    CHECK_EQ(stats(rt).ranges, 0);
    fake_of(rt)->register_fails = WEFT_OK;
    weft_mem_unregister(reg(rt, p, 1), true);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_fabric_that_had_nothing_to_do_is_asked_again)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    char *p = space();
    fake_of(rt)->registers_nothing = true;
    weft_mem_reg_t *a = reg(rt, p, 1), *b = reg(rt, p, 1);
    CHECK(a == b);
    CHECK_EQ(fake_of(rt)->registers, 2);
    CHECK_EQ(fake_of(rt)->registered, 0);
    fake_of(rt)->registers_nothing = false;
    weft_mem_unregister(a, false);
    weft_mem_unregister(b, false);
    a = reg(rt, p, 1);
    CHECK_EQ(stats(rt).ranges, 1);
    weft_mem_unregister(a, false);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_fabric_that_cannot_register_is_fine)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    wefti_fabric_ops_t without = *rt->fabric->ops;
    const wefti_fabric_ops_t *had = rt->fabric->ops;
    without.mem_register = NULL;
    without.mem_unregister = NULL;
    rt->fabric->ops = &without;
    weft_mem_unregister(reg(rt, space(), 1), true);
    rt->fabric->ops = had;
    CHECK_OK(weft_runtime_close(rt));
}

TEST(memory_of_a_device_is_not_for_the_fabric)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    void *p;
    fakedev_install();
    CHECK_OK(weft_mem_alloc(fakedev(), 1 << 20, &p));
    weft_mem_reg_t *r = reg(rt, p, 1 << 20);
    CHECK_EQ(fake_of(rt)->registers, 0);
    weft_mem_unregister(r, true);
    weft_mem_free(fakedev(), p, 1 << 20);
    fakedev_remove();
    CHECK_OK(weft_runtime_close(rt));
}

/* --- against a model ------------------------------------------------------------------------------------------------------ */

static void churn(weft_runtime_t *rt, char *p, uint64_t seed, unsigned steps)
{
    enum { MANY = 60 };
    weft_mem_reg_t *held[MANY] = {0};
    wefti_rng_t rng = {seed};
    for (unsigned i = 0; i < steps; i++) {
        weft_mem_reg_t **h = &held[wefti_rng_below(&rng, MANY)];
        if (*h) {
            weft_mem_unregister(*h, wefti_rng_below(&rng, 8) == 0);
            *h = NULL;
        } else {
            size_t at = wefti_rng_below(&rng, 4000 * PAGE), n = 1 + wefti_rng_below(&rng, 64 * PAGE);
            weft_status_t st = weft_mem_register(rt, p + at, n, h);
            CHECK(!st || st == WEFT_ERR_LIMIT);
        }
    }
    for (unsigned i = 0; i < MANY; i++)
        if (held[i])
            weft_mem_unregister(held[i], false);
}

TEST(the_bound_holds_over_many_ranges)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t bound = (200 + 300 * (seed % 5)) * PAGE;
        weft_runtime_t *rt = open_rt(bound);
        char *p = space();
        for (unsigned i = 0; i < 50; i++) {
            churn(rt, p, seed * 1000 + i, 100);
            CHECK(stats(rt).bytes <= bound);
        }
        weft_mem_reg_stats_t s = stats(rt);
        CHECK(s.hits && s.misses && s.evictions);
        munmap(p, PAGES * PAGE);
        CHECK_OK(weft_runtime_close(rt));
    }
}

typedef struct worker {
    pthread_t thread;
    weft_runtime_t *rt;
    char *p;
    uint64_t seed;
} worker_t;

static void *work(void *arg)
{
    worker_t *w = arg;
    churn(w->rt, w->p, w->seed, 10000);
    return NULL;
}

TEST(threads_share_the_cache)
{
    weft_runtime_t *rt = open_rt(3000 * PAGE);
    char *p = space();
    worker_t w[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (worker_t){.rt = rt, .p = p, .seed = 11 + (uint64_t)i};
        CHECK(!pthread_create(&w[i].thread, NULL, work, &w[i]));
    }
    for (int i = 0; i < 4; i++)
        pthread_join(w[i].thread, NULL);
    CHECK(stats(rt).bytes <= 3000 * PAGE);
    CHECK_OK(weft_runtime_close(rt));
}

static unsigned fail_at;
static int fails_at(size_t n)
{
    (void)n;
    return fail_at && --fail_at == 0;
}

TEST(no_memory_is_said_and_leaves_the_cache_as_it_was)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    char *p = space();
    weft_mem_reg_t *r;
    for (unsigned at = 1; at <= 2; at++) {
        fail_at = at;
        wefti_alloc_fails = fails_at;
        weft_status_t st = weft_mem_register(rt, p, 1, &r);
        wefti_alloc_fails = NULL;
        CHECK_EQ(st, WEFT_ERR_NOMEM);
        CHECK_EQ(stats(rt).ranges, 0);
        fail_at = 0;
        if (at == 2)
            weft_mem_unregister(reg(rt, p, 1), true);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_child_leaves_its_parents_registrations_alone)
{
    weft_runtime_t *rt = open_rt(1 << 30);
    char *p = space();
    weft_mem_reg_t *r = reg(rt, p, 1), *x;
    pid_t pid = fork();
    if (!pid) {
        CHECK_EQ(weft_mem_register(rt, p, 1, &x), WEFT_ERR_FORKED);
        weft_mem_unregister(r, true);
        CHECK_EQ(fake_of(rt)->registered, 1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    weft_mem_unregister(r, true);
    CHECK_OK(weft_runtime_close(rt));
}
