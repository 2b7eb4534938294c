/* tests/wire/fabric_shm_turns.c - large payloads in turns: a progress of the shm transport moves a bounded number of bytes, for
 * whomever they are, and lanes take turns. */
#include <sys/mman.h>

#include "test.h"
#include "lib/shm_side.h"

#define RING 65536u
#define LONG (UINT64_C(8) << 20)
#define LANES 5u
#define PULLS 6u

typedef struct scene {
    shm_side_t a, b; /* a receives */
    shm_end_t ea[LANES], eb[LANES];
    shm_xfer_t out[LANES][PULLS], in[LANES][PULLS];
    weft_iov_t from, to[LANES][PULLS];
} scene_t;

static void *memory(uint64_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* One payload on each lane but the first, which has PULLS of them. */
static unsigned pulls_of(unsigned lane)
{
    return lane ? 1 : PULLS;
}

static void begin(scene_t *s, const char *copy)
{
    memset(s, 0, sizeof *s);
    shm_side_open(&s->a, RING, copy);
    shm_side_open(&s->b, RING, copy);
    s->from = (weft_iov_t){memory(LONG), LONG};
    memset(s->from.base, 7, LONG);
    for (unsigned i = 0; i < LANES; i++) {
        shm_join(&s->a, &s->ea[i], &s->b, &s->eb[i]);
        for (unsigned k = 0; k < pulls_of(i); k++)
            CHECK_OK(shm_announce(&s->eb[i], &s->from, 1, &s->out[i][k]));
    }
    for (unsigned i = 0; i < LANES; i++) {
        SHM_UNTIL2(&s->a, &s->b, s->ea[i].announced == pulls_of(i));
        for (unsigned k = 0; k < pulls_of(i); k++) {
            s->to[i][k] = (weft_iov_t){memory(LONG), LONG};
            shm_pull(&s->ea[i], k, &s->to[i][k], 1, LONG, &s->in[i][k]);
        }
    }
}

/* Bytes that are here, of all of them. */
static uint64_t arrived(scene_t *s)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < LANES; i++) {
        const wefti_shm_lane_t *lane = (wefti_shm_lane_t *)s->ea[i].lane;
        for (unsigned k = 0; k < pulls_of(i); k++)
            n += s->in[i][k].done ? LONG : 0;
        wefti_list_each(it, &lane->pulls) {
            const wefti_shm_pull_t *p = wefti_container_of(it, wefti_shm_pull_t, link);
            n += p->total - p->left;
        }
    }
    return n;
}

static void end(scene_t *s)
{
    for (unsigned i = 0; i < LANES; i++) {
        for (unsigned k = 0; k < pulls_of(i); k++) {
            SHM_UNTIL2(&s->a, &s->b, s->in[i][k].done && s->out[i][k].done);
            CHECK_OK(s->in[i][k].status);
            CHECK(!memcmp(s->to[i][k].base, s->from.base, LONG));
            munmap(s->to[i][k].base, LONG);
        }
        shm_end_close(&s->ea[i]);
        shm_end_close(&s->eb[i]);
    }
    munmap(s->from.base, LONG);
    shm_side_close(&s->a);
    shm_side_close(&s->b);
    CHECK_EQ(shm_maps(), 0);
}

static const char *const ways[] = {"auto", "kernel", "ring"};

TEST(a_progress_moves_so_many_bytes_and_no_more)
{
    for (unsigned way = 0; way < 2; way++) {
        scene_t s;
        begin(&s, ways[way]);
        for (uint64_t before = arrived(&s), now; before < LANES * LONG; before = now) {
            shm_progress(&s.b);
            shm_progress(&s.a);
            now = arrived(&s);
            CHECK(now - before <= WEFTI_SHM_COPY_BUDGET + (64u << 10)); /* the last chunk of a relay may be more than is left */
        }
        end(&s);
    }
}

TEST(a_lane_with_many_payloads_does_not_keep_others_waiting)
{
    for (unsigned way = 0; way < 3; way++) {
        scene_t s;
        begin(&s, ways[way]);
        for (unsigned i = 1; i < LANES; i++)
            SHM_UNTIL2(&s.a, &s.b, s.in[i][0].done);
        /* Each lane had as many turns as the others, give or take a few. */
        CHECK(!s.in[0][2].done);
        end(&s);
    }
}
