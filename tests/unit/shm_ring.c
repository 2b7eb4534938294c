/* tests/unit/shm_ring.c - the ring alone: against a model, at its edges, with a producer and a consumer that lie, and with
 * two threads.
 *
 * ctest: label=thread */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "test.h"
#include "base/rng.h"
#include "fabric/shm/ring.h"

#define RING WEFTI_RING_SMALLEST
#define MAX WEFTI_RING_LONGEST(RING)
#define REC WEFTI_RING_TYPE_MIN

/* A ring with pages around it that nobody may touch. */
typedef struct ring {
    uint8_t *region;
    wefti_ring_tx_t tx;
    wefti_ring_rx_t rx;
} ring_t;

static void ring_open(ring_t *r, uint32_t size)
{
    size_t guard = 4096, all = WEFTI_RING_PAGE + (size_t)size;
    uint8_t *at = mmap(NULL, all + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    r->region = at + guard;
    CHECK(!mprotect(r->region, all, PROT_READ | PROT_WRITE));
    wefti_ring_tx_init(&r->tx, r->region, size);
    wefti_ring_rx_init(&r->rx, r->region, size, MAX);
}

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(seed * 31 + i * 7);
}

static bool is_filled(const uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (uint8_t)(seed * 31 + i * 7))
            return false;
    return true;
}

static bool put(ring_t *r, uint64_t seq, size_t reserve, size_t n)
{
    uint8_t *p = wefti_ring_reserve(&r->tx, reserve);
    if (!p)
        return false;
    CHECK_EQ((uintptr_t)p % 8, 0);
    fill(p, n, seq);
    wefti_ring_commit(&r->tx, n, REC + (uint32_t)(seq % 3));
    return true;
}

TEST(records_of_any_size_arrive_whole_and_in_order)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        ring_t r;
        wefti_rng_t rng = {seed};
        uint32_t lens[1024];
        uint64_t sent = 0, got = 0, bias = seed % 5;
        ring_open(&r, RING << (seed % 3));
        for (int step = 0; step < 4000; step++) {
            if (wefti_rng_below(&rng, 10) < 3 + bias) {
                size_t reserve = 1 + wefti_rng_below(&rng, wefti_rng_below(&rng, 4) ? 200 : MAX);
                size_t n = wefti_rng_below(&rng, 3) ? reserve : 1 + wefti_rng_below(&rng, reserve);
                if (sent - got < 1024 && put(&r, sent, reserve, n))
                    lens[sent++ % 1024] = (uint32_t)n;
            } else {
                wefti_ring_rec_t rec;
                wefti_ring_got_t k = wefti_ring_peek(&r.rx, &rec);
                CHECK_EQ(k, got < sent ? WEFTI_RING_RECORD : WEFTI_RING_EMPTY);
                CHECK_EQ(wefti_ring_empty(&r.rx), k == WEFTI_RING_EMPTY);
                if (k == WEFTI_RING_EMPTY)
                    continue;
                CHECK_EQ(rec.n, lens[got % 1024]);
                CHECK_EQ(rec.type, REC + got % 3);
                CHECK(is_filled(rec.bytes, rec.n, got));
                wefti_ring_pop(&r.rx);
                got++;
            }
        }
        CHECK(sent > 500);
    }
}

/* Bytes that look like heads stay bytes: the word that is polled was zeroed. */
TEST(stale_bytes_that_look_like_records_are_never_seen)
{
    ring_t r;
    wefti_rng_t rng = {7};
    uint64_t sent = 0, got = 0;
    ring_open(&r, RING);
    for (int step = 0; step < 200000; step++) {
        wefti_ring_rec_t rec;
        size_t n = 8 * (1 + wefti_rng_below(&rng, MAX / 8));
        uint64_t *p = wefti_rng_below(&rng, 2) ? wefti_ring_reserve(&r.tx, n) : NULL;
        if (p) {
            for (size_t i = 0; i < n / 8; i++)
                p[i] = 100 | (uint64_t)REC << 32;
            p[0] = sent++;
            wefti_ring_commit(&r.tx, n, REC + 1);
        }
        while (wefti_rng_below(&rng, 3)) {
            wefti_ring_got_t k = wefti_ring_peek(&r.rx, &rec);
            CHECK_EQ(k, got < sent ? WEFTI_RING_RECORD : WEFTI_RING_EMPTY);
            if (!k)
                break;
            uint64_t seq;
            memcpy(&seq, rec.bytes, 8);
            CHECK_EQ(rec.type, REC + 1);
            CHECK_EQ(seq, got);
            got++;
            wefti_ring_pop(&r.rx);
        }
    }
    CHECK(got > 50000);
}

TEST(a_full_ring_says_so_and_the_consumer_rings_once_there_is_room)
{
    for (size_t n = 1; n <= MAX; n = n < MAX && n * 3 + 1 > MAX ? MAX : n * 3 + 1) {
        ring_t r;
        wefti_ring_rec_t rec;
        uint64_t seq = 0;
        ring_open(&r, RING);
        for (int lap = 0; lap < 50; lap++) {
            while (put(&r, seq, n, n))
                seq++;
            CHECK(!r.tx.bad);
            CHECK(wefti_ring_reserve_or_want(&r.tx, n) == NULL);
            CHECK(!wefti_ring_space_or_want(&r.tx));
            unsigned rings = 0;
            while (wefti_ring_peek(&r.rx, &rec)) {
                bool ring = wefti_ring_pop(&r.rx);
                rings += ring;
                if (ring)
                    CHECK(wefti_ring_space_or_want(&r.tx));
            }
            CHECK_EQ(rings, 1);
            CHECK(wefti_ring_space_or_want(&r.tx));
            CHECK(put(&r, seq, MAX, 1)); /* any record fits an empty ring */
            seq++;
            while (wefti_ring_peek(&r.rx, &rec))
                wefti_ring_pop(&r.rx);
        }
    }
}

TEST(heads_that_cannot_be_are_refused)
{
    struct {
        uint64_t at, head;
    } bad[] = {
        {0, UINT64_C(0xffffffffffffffff)},
        {0, 1},                                             /* no type */
        {0, (uint64_t)REC << 32},                           /* no length */
        {0, (MAX + 1) | (uint64_t)REC << 32},               /* too long */
        {0, 8 | (uint64_t)(WEFTI_RING_TYPE_MAX + 1) << 32}, /* no such type */
        {0, 8 | (uint64_t)REC << 32 | UINT64_C(1) << 63},   /* bits that must be zero */
        {RING - 64, 57 | (uint64_t)REC << 32},              /* over the end */
        {RING - 4096, 4096 | (uint64_t)REC << 32},          /* over the end */
        {0, (RING - 8) | (uint64_t)WEFTI_RING_SKIP << 32},  /* a skip of everything */
        {64, 56 | (uint64_t)WEFTI_RING_SKIP << 32},         /* a skip that is too short */
        {64, (RING - 8) | (uint64_t)WEFTI_RING_SKIP << 32}, /* a skip that is too long */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ring_t r;
        wefti_ring_rec_t rec;
        ring_open(&r, RING);
        r.rx.pos = r.rx.published = bad[i].at;
        memcpy(r.region + WEFTI_RING_PAGE + bad[i].at, &bad[i].head, 8);
        CHECK_EQ(wefti_ring_peek(&r.rx, &rec), WEFTI_RING_BAD);
    }
    /* Two skips in a row. */
    ring_t r;
    wefti_ring_rec_t rec;
    ring_open(&r, RING);
    uint64_t skip = 56 | (uint64_t)WEFTI_RING_SKIP << 32;
    r.rx.pos = RING - 64;
    memcpy(r.region + WEFTI_RING_PAGE + RING - 64, &skip, 8);
    memcpy(r.region + WEFTI_RING_PAGE, &skip, 8);
    CHECK_EQ(wefti_ring_peek(&r.rx, &rec), WEFTI_RING_BAD);
}

/* Guard pages around the region turn any step outside into a crash. */
TEST(a_consumer_of_random_bytes_stays_inside_the_ring)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        ring_t r;
        wefti_ring_rec_t rec;
        wefti_rng_t rng = {seed};
        uint64_t sum = 0;
        ring_open(&r, RING);
        for (int lap = 0; lap < 50; lap++) {
            for (uint64_t at = 0; at < RING; at += 64) {
                uint64_t n = wefti_rng_below(&rng, 8) ? 1 + wefti_rng_below(&rng, 4200) : wefti_rng_next(&rng);
                uint64_t head = n | wefti_rng_below(&rng, 17) << 32;
                memcpy(r.region + WEFTI_RING_PAGE + at, &head, 8);
            }
            while (wefti_ring_peek(&r.rx, &rec) == WEFTI_RING_RECORD && r.rx.pos < (uint64_t)(lap + 2) * RING) {
                CHECK(rec.n >= 1 && rec.n <= MAX);
                sum += rec.bytes[0] + rec.bytes[rec.n - 1];
                wefti_ring_pop(&r.rx);
            }
            r.rx.pos = (r.rx.pos + 64) & ~UINT64_C(63);
        }
        (void)sum;
        munmap(r.region - 4096, WEFTI_RING_PAGE + RING + 8192);
    }
}

TEST(a_consumer_that_lies_about_its_position_is_found_out)
{
    uint64_t lies[] = {UINT64_MAX, UINT64_MAX - RING, 1u << 30, 64 * 300};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        ring_t r;
        uint64_t seq = 0;
        ring_open(&r, RING);
        atomic_store(&r.tx.page->consumed, lies[i]);
        while (put(&r, seq, 8, 8))
            CHECK(seq++ < 1000);
        CHECK(r.tx.bad);
        CHECK(!wefti_ring_reserve_or_want(&r.tx, 8));
    }
    /* Backwards. */
    ring_t r;
    wefti_ring_rec_t rec;
    uint64_t seq = 0;
    ring_open(&r, RING);
    while (put(&r, seq, 8, 8))
        seq++;
    while (wefti_ring_peek(&r.rx, &rec))
        wefti_ring_pop(&r.rx);
    CHECK(put(&r, seq, 8, 8));
    atomic_store(&r.tx.page->consumed, 64);
    for (int i = 0; i < 1000 && put(&r, seq, 8, 8); i++)
        seq++;
    CHECK(r.tx.bad);
}

typedef struct pair {
    ring_t r;
    uint64_t n, seed;
    _Atomic uint64_t rings;
} pair_t;

static void *produce(void *arg)
{
    pair_t *p = arg;
    wefti_rng_t rng = {p->seed};
    uint64_t heard = 0;
    for (uint64_t i = 0; i < p->n; i++) {
        size_t n = 8 + wefti_rng_below(&rng, wefti_rng_below(&rng, 16) ? 100 : MAX - 8);
        uint8_t *at = wefti_ring_reserve(&p->r.tx, n);
        if (!at)
            at = wefti_ring_reserve_or_want(&p->r.tx, n);
        /* Only the bell may end the wait: a ring that was forgotten is a hang. */
        while (!at) {
            while (atomic_load(&p->rings) == heard)
                sched_yield();
            heard = atomic_load(&p->rings);
            at = wefti_ring_reserve(&p->r.tx, n);
            if (!at)
                at = wefti_ring_reserve_or_want(&p->r.tx, n);
        }
        fill(at, n, i);
        wefti_ring_commit(&p->r.tx, n, REC);
    }
    return NULL;
}

TEST(two_threads_lose_nothing_and_no_wish_for_room_is_forgotten)
{
    pair_t p = {.n = 300000, .seed = 99};
    pthread_t t;
    wefti_ring_rec_t rec;
    wefti_rng_t rng = {p.seed};
    ring_open(&p.r, RING);
    CHECK(!pthread_create(&t, NULL, produce, &p));
    for (uint64_t i = 0; i < p.n;) {
        wefti_ring_got_t k = wefti_ring_peek(&p.r.rx, &rec);
        if (k == WEFTI_RING_EMPTY) {
            sched_yield();
            continue;
        }
        CHECK_EQ(k, WEFTI_RING_RECORD);
        CHECK_EQ(rec.n, 8 + wefti_rng_below(&rng, wefti_rng_below(&rng, 16) ? 100 : MAX - 8));
        CHECK(is_filled(rec.bytes, rec.n, i));
        if (wefti_ring_pop(&p.r.rx))
            atomic_fetch_add(&p.rings, 1);
        i++;
    }
    pthread_join(t, NULL);
}
