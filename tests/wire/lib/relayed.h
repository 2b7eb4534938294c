/* tests/wire/lib/relayed.h - two sides of the shm transport in this process, and long payloads between them of which the sender
 * copies a part. Needs test.h, which comes first. */
#ifndef WEFT_TESTS_RELAYED_H
#define WEFT_TESTS_RELAYED_H

#include <sched.h>
#include <sys/mman.h>

#include "shm_side.h"

#define RING 65536u

static inline wefti_shm_lane_t *lane_of(const shm_end_t *e)
{
    return (wefti_shm_lane_t *)e->lane;
}

/* Bytes that came through the relay, of this lane. */
static inline uint64_t taken(const shm_end_t *e)
{
    return lane_of(e)->relay_in ? lane_of(e)->relay_in->taken : 0;
}

static inline void needs_two_processors(void)
{
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) < 2)
        SKIP("there is one processor, and so nobody asks for help");
}

static inline uint8_t *memory(uint64_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* A byte that says where it is. */
static inline uint8_t mark(uint64_t i)
{
    return (uint8_t)(i * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

static inline uint8_t *marked(uint64_t n)
{
    uint8_t *p = memory(n);
    for (uint64_t i = 0; i < n; i++)
        p[i] = mark(i);
    return p;
}

static inline void check_marks(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != mark(i))
            CHECK_EQ(i, n); /* says where */
}

typedef struct pair {
    shm_side_t a, b; /* a receives */
    shm_end_t ea, eb;
} pair_t;

static inline void pair_open(pair_t *s, const char *copy)
{
    shm_side_open(&s->a, RING, copy);
    shm_side_open(&s->b, RING, copy);
    shm_join(&s->a, &s->ea, &s->b, &s->eb);
}

static inline void pair_close(pair_t *s)
{
    shm_end_close(&s->ea);
    shm_end_close(&s->eb);
    shm_side_close(&s->a);
    shm_side_close(&s->b);
    CHECK_EQ(shm_maps(), 0);
}

/* Send n bytes and receive them; how many came through the relay. */
static inline uint64_t move(pair_t *s, uint64_t n)
{
    shm_xfer_t out, in;
    weft_iov_t from = {marked(n), n}, to = {memory(n), n};
    unsigned i = s->ea.announced;
    uint64_t before = taken(&s->ea);
    CHECK_OK(shm_announce(&s->eb, &from, 1, &out));
    SHM_UNTIL2(&s->a, &s->b, s->ea.announced == i + 1);
    shm_pull(&s->ea, i, &to, 1, n, &in);
    for (int turns = 0; turns < 40; turns++) /* before the first byte is read here: a short one is read in one turn */
        shm_progress(&s->b);
    SHM_UNTIL2(&s->a, &s->b, out.done && in.done);
    CHECK_OK(out.status);
    CHECK_OK(in.status);
    check_marks(to.base, n);
    munmap(from.base, n);
    munmap(to.base, n);
    return taken(&s->ea) - before;
}

#endif
