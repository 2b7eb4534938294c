/* tests/unit/lib/copying.h - a runtime on a driver made of paper, for tests of copies: what mem_copies.c and mem_carry.c share.
 * */
#ifndef WEFT_TEST_COPYING_H
#define WEFT_TEST_COPYING_H

#include "fake_fabric.h"
#include "lib/cuda/use.h"
#include "mem/cuda.h"

#define US 1000ull
#define MS 1000000ull
enum { MIB = 1 << 20, DESTROYED = 709, UNKNOWN = 999 };

static weft_runtime_t *rt;
static const weft_mem_kind_t *cuda;

/* For what fails on purpose. */
static inline void say_nothing(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
}

static inline void begin(void)
{
    use_paper();
    cuda = weft_mem_kind_find("cuda");
    CHECK(cuda);
    rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(wefti_mem_attach(rt));
}

/* The runtime ends, and nothing of the driver's is left. */
static inline void end(void)
{
    CHECK_OK(weft_runtime_close(rt));
    rt = NULL;
    CHECK_EQ(cu.paper->live_events, 0);
    CHECK_EQ(cu.paper->registered, 0);
    CHECK_EQ(cu.paper->live_imports, 0);
}

/* The device does what is due, and the runtime looks. */
static inline void turn(void)
{
    (void)cu.EventQuery(NULL);
    weft_runtime_progress(rt);
}

static inline void turn_for(uint64_t ns)
{
    double until = test_now() + (double)ns * 1e-9;
    do
        turn();
    while (test_now() < until);
}

static inline void *device_alloc(size_t n)
{
    void *p = NULL;
    CHECK_OK(weft_mem_alloc(cuda, n, &p));
    return p;
}

static inline void poke(void *to, const void *from, size_t n)
{
    bool pushed;
    CHECK(!wefti_cuda_enter_for(to, &pushed));
    CHECK_EQ(cu.MemcpyHtoD((uintptr_t)to, from, n), 0);
    wefti_cuda_leave(pushed);
}

static inline void peek(void *to, const void *from, size_t n)
{
    bool pushed;
    CHECK(!wefti_cuda_enter_for(from, &pushed));
    CHECK_EQ(cu.MemcpyDtoH(to, (uintptr_t)from, n), 0);
    wefti_cuda_leave(pushed);
}

static inline void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 7 + i / 251 + seed);
}

#endif
