/* tests/wire/fabric_shm_sleep.c - the shm transport asleep: no record is slept through, whoever publishes when.
 * ctest: long */
#include <sys/mman.h>

#include "test.h"
#include "base/rng.h"
#include "lib/shm_side.h"

#define RING 65536u

#define SLEEPS 200000 /* round trips; more than half of them sleep, on each side */

static void answer(shm_end_t *e, const void *rec, size_t n)
{
    (void)rec;
    (void)n;
    (*(uint64_t *)e->user)++;
}

/* Ping-pong over a few lanes, where each side sleeps at random points and only the peer's bell can wake it. */
static void sleepy(int fd, bool first, bool barriers)
{
    shm_side_t s;
    shm_end_t e[12], unused;
    uint64_t got = 0, sent = 0;
    wefti_rng_t rng = {first ? 1 : 2};
    shm_side_open(&s, WEFTI_RING_SMALLEST, "auto");
    shm_end_new(&s, &unused); /* opens the transport */
    if (!barriers)
        ((wefti_shm_transport_t *)s.transport)->barriers = false;
    for (int i = 0; i < 12; i++) {
        shm_meet(&s, &e[i], fd);
        CHECK(barriers || !((wefti_shm_lane_t *)e[i].lane)->tx.light);
        e[i].on_record = answer;
        e[i].user = &got;
    }
    double end = shm_now() + 50;
    while (got < SLEEPS) {
        if (sent < SLEEPS && (first ? sent <= got : sent < got))
            if (shm_send(&e[wefti_rng_below(&rng, 12)], "x", 1))
                sent++;
        if (wefti_rng_below(&rng, 8) == 0)
            for (uint64_t spin = wefti_rng_below(&rng, 300); spin; spin--)
                shm_progress(&s);
        uint64_t had = got;
        if (!shm_progress(&s) && (first ? sent > got : sent == got)) {
            shm_sleep(&s, 5000);
            if (s.slept_out) {
                shm_progress(&s);
                FAIL("slept through a record: %" PRIu64 " before, %" PRIu64 " after", had, got);
            }
        }
        if (shm_now() > end)
            break; /* a slow machine: what was slept counts */
    }
    while (!first && sent < got && shm_send(&e[0], "x", 1))
        sent++;
    printf("# %" PRIu64 " round trips, %" PRIu64 " sleeps\n", got, s.sleeps);
    shm_tell(fd);
    shm_hear(fd);
    for (int i = 0; i < 12; i++)
        shm_end_close(&e[i]);
    shm_side_close(&s);
}

static void sleepy_child(int fd, void *arg)
{
    sleepy(fd, false, *(bool *)arg);
}

static void sleep_on_both_sides(bool barriers)
{
    int fd;
    pid_t pid = shm_child(sleepy_child, &barriers, &fd);
    sleepy(fd, true, barriers);
    shm_child_end(pid);
}

TEST(no_wake_up_is_lost_in_200000_random_sleeps)
{
    sleep_on_both_sides(true);
}

TEST(no_wake_up_is_lost_without_barriers_either)
{
    sleep_on_both_sides(false);
}

/* The same race without the kernel in between, a million times: one side arms while the other publishes. Either the record is
 * seen by the last look before the sleep, or the bell is rung. */
typedef struct race {
    _Atomic uint64_t got;
    bool barriers;
} race_t;

#define RACES 1000000
#define RACE_SECONDS 3

static void race_open(shm_side_t *s, shm_end_t *e, int fd, const race_t *race)
{
    shm_end_t unused;
    shm_side_open(s, RING, "auto");
    shm_end_new(s, &unused);
    if (!race->barriers)
        ((wefti_shm_transport_t *)s->transport)->barriers = false;
    shm_meet(s, e, fd);
}

static void racing_sender(int fd, void *arg)
{
    race_t *race = arg;
    shm_side_t s;
    shm_end_t e;
    wefti_rng_t rng = {8};
    race_open(&s, &e, fd, race);
    double end = shm_now() + RACE_SECONDS;
    uint64_t i = 0;
    for (; i < RACES && (i % 256 || shm_now() < end); i++) {
        while (atomic_load_explicit(&race->got, memory_order_relaxed) < i)
            ;
        for (volatile uint64_t spin = wefti_rng_below(&rng, 300); spin; spin--)
            ;
        while (!shm_send(&e, "x", 1))
            shm_progress(&s);
    }
    while (!shm_send(&e, "end", 3))
        shm_progress(&s);
    shm_hear(fd);
    shm_side_close(&s);
}

static void race_once(bool barriers)
{
    race_t *race = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shm_side_t s;
    shm_end_t e;
    int fd;
    uint64_t armed = 0;
    race->barriers = barriers;
    pid_t pid = shm_child(racing_sender, race, &fd);
    race_open(&s, &e, fd, race);
    wefti_bell_t *bell = ((wefti_shm_transport_t *)s.transport)->bell;
    while (e.last_n != 3) {
        if (shm_progress(&s)) {
            atomic_store_explicit(&race->got, e.records, memory_order_relaxed);
            continue;
        }
        if (wefti_shm_arm(s.transport))
            continue;
        armed++;
        uint64_t spins = 0;
        double end = 0;
        while (atomic_load_explicit(&bell->sleeping, memory_order_relaxed))
            if (++spins % 65536 == 0) {
                end = end ? end : shm_now() + 5;
                if (shm_now() > end)
                    FAIL("record %" PRIu64 " was published and nobody rang", e.records);
            }
        wefti_shm_disarm(s.transport);
    }
    printf("# %" PRIu64 " records, armed %" PRIu64 " times\n", e.records, armed);
    shm_tell(fd);
    shm_child_end(pid);
    shm_side_close(&s);
}

TEST(a_record_published_while_the_other_side_parks_is_never_missed)
{
    race_once(true);
}

TEST(a_record_published_while_the_other_side_parks_is_never_missed_without_barriers)
{
    race_once(false);
}

TEST(an_armed_transport_is_woken_by_its_own_work_too)
{
    shm_side_t a, b;
    shm_end_t ea, eb;
    shm_xfer_t send, recv;
    static uint8_t src[100000], dst[100000];
    weft_iov_t from = {src, sizeof src}, to = {dst, sizeof dst};
    shm_side_open(&a, RING, "kernel");
    shm_side_open(&b, RING, "kernel");
    CHECK_EQ(a.transport->fd, -1);
    shm_join(&a, &ea, &b, &eb);
    CHECK_OK(shm_announce(&ea, &from, 1, &send));
    SHM_UNTIL2(&a, &b, eb.announced);
    SHM_UNTIL(&b, !wefti_shm_arm(b.transport));
    shm_pull(&eb, 0, &to, 1, sizeof dst, &recv);
    char byte;
    CHECK_EQ(read(b.transport->fd, &byte, 1), 1);
    CHECK_EQ(wefti_shm_arm(b.transport), WEFT_ERR_AGAIN);
    wefti_shm_disarm(b.transport);
    SHM_UNTIL2(&a, &b, recv.done && send.done);
    SHM_UNTIL(&b, !wefti_shm_arm(b.transport));
    eb.lane->ops->lane_close(eb.lane);
    CHECK_EQ(read(b.transport->fd, &byte, 1), 1);
    wefti_shm_disarm(b.transport);
    SHM_UNTIL(&b, eb.closed);
    shm_end_close(&ea);
    shm_side_close(&a);
    shm_side_close(&b);
}
