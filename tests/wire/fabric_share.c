/* tests/wire/fabric_share.c - memory shared on one host: payloads copied out of a mapping instead of through the kernel.
 *
 * Held here: the mapping is really used, and only where the bytes at that address are that memory; whatever cannot be mapped
 * arrives another way; mappings are bounded and none is left. ctest: timeout=300 label=thread */
#include <poll.h>
#include <pthread.h>

#include "test.h"
#include "base/alloc.h"
#include "lib/lanes.h"
#include "lib/ranges.h"

/* --- copying ------------------------------------------------------------------------------------------------------------ */

TEST(a_payload_in_shared_memory_is_copied_out_of_a_mapping)
{
    const char *copies[] = {"kernel", "ring"};
    for (int way = 0; way < 2; way++) {
        scene_t s;
        range_t r;
        scene_open(&s, copies[way]);
        range_new(&s.a, &r, 24 * MB, 1);
        CHECK_EQ(transport_of(&s.b)->n_mapped, 0);
        CHECK_EQ(move1(&s, r.at + 100, 20 * KB), 20 * KB);
        CHECK_EQ(transport_of(&s.b)->n_mapped, 1);
        CHECK_EQ(move1(&s, r.at, r.n), r.n); /* the whole of it, past the cache */
        CHECK_EQ(move1(&s, r.at + r.n - 9001, 9001), 9001);
        CHECK_EQ(move1(&s, r.at + 17, 18 * MB + 3), 18 * MB + 3);
        CHECK_EQ(transport_of(&s.b)->n_mapped, 1);
        CHECK_EQ(known(&s), 1);
        range_free(&s.a, &r);
        SHM_UNTIL2(&s.a, &s.b, transport_of(&s.b)->n_mapped == 0);
        CHECK_EQ(known(&s), 0);
        scene_close(&s);
    }
}

TEST(pieces_in_and_out_of_shared_memory_mix)
{
    const char *copies[] = {"kernel", "ring"};
    for (uint64_t seed = 1; seed <= 60; seed++) {
        scene_t s;
        range_t r[3];
        weft_iov_t iov[40];
        wefti_rng_t rng = {seed};
        bool ring = seed % 4 == 0;
        uint8_t *plain = malloc(MB);
        fill(plain, MB, 99);
        scene_open(&s, copies[ring]);
        for (unsigned i = 0; i < 3; i++)
            range_new(&s.a, &r[i], MB, i + 1);
        for (int round = 0; round < 6; round++) {
            size_t n = 1 + wefti_rng_below(&rng, 40);
            uint64_t at_least = 0, at_most = 0;
            for (size_t i = 0; i < n; i++) {
                size_t len = wefti_rng_below(&rng, 6) ? wefti_rng_below(&rng, 40 * KB) : 0;
                unsigned which = (unsigned)wefti_rng_below(&rng, 4);
                iov[i].base = (which < 3 ? r[which].at : plain) + wefti_rng_below(&rng, MB - 40 * KB);
                iov[i].len = len;
                at_most += which < 3 ? len : 0;
                at_least += which < 3 && len >= WEFTI_SHM_TELL_MIN ? len : 0;
            }
            iov[0].len += !iov[0].len;
            uint64_t mapped = move(&s, iov, n);
            if (!ring && (mapped < at_least || mapped > at_most + 1))
                FAIL("seed %d: %d bytes out of mappings, not %d to %d", (int)seed, (int)mapped, (int)at_least, (int)at_most);
        }
        for (unsigned i = 0; i < 3; i++)
            range_free(&s.a, &r[i]);
        free(plain);
        scene_close(&s);
    }
}

TEST(a_piece_that_leaves_its_range_is_not_read_from_the_mapping)
{
    scene_t s;
    range_t r;
    scene_open(&s, "kernel");
    /* Plain memory on both sides of the range. */
    uint8_t *all = mmap(NULL, 3 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    fill(all, 3 * MB, 5);
    range_map(&r, MB, all + MB, 6);
    CHECK_OK(wefti_shm_share(s.a.transport, r.at, r.n, r.fd, &r.id));
    CHECK_EQ(move1(&s, r.at, r.n), r.n);
    CHECK_EQ(move1(&s, r.at - 1, r.n), 0);
    CHECK_EQ(move1(&s, r.at + 1, r.n), 0);
    CHECK_EQ(move1(&s, all, 3 * MB), 0);
    wefti_shm_unshare(s.a.transport, r.id);
    close(r.fd);
    munmap(all, 3 * MB);
    scene_close(&s);
}

TEST(what_cannot_be_mapped_arrives_another_way)
{
    const char *copies[] = {"kernel", "ring"};
    enum { CLOSED, ANOTHER_MEMFD, ANOTHER_FILE, N };
    for (int what = 0; what < N; what++) {
        for (int way = 0; way < 2; way++) {
            scene_t s;
            range_t r;
            shm_xfer_t x;
            scene_open(&s, copies[way]);
            range_new(&s.a, &r, MB, 7);
            int other = what == ANOTHER_MEMFD ? memfd_new(MB) : open("/dev/zero", O_RDWR | O_CLOEXEC);
            CHECK(other >= 0);
            if (what == CLOSED)
                close(r.fd);
            else
                CHECK_EQ(dup3(other, r.fd, O_CLOEXEC), r.fd);
            CHECK_EQ(move1(&s, r.at, MB), 0);
            CHECK_EQ(move1(&s, r.at + 5, MB / 2), 0);
            weft_iov_t iov = {r.at, MB};
            const void *ptr;
            void *lent;
            unsigned i = offer(&s, &iov, 1, &x);
            CHECK_EQ(s.eb.offer[i]->ops->lend(s.eb.offer[i], &ptr, &lent), WEFT_ERR_UNSUPPORTED);
            s.eb.offer[i]->ops->refuse(s.eb.offer[i], false);
            SHM_UNTIL2(&s.a, &s.b, x.done);
            CHECK_EQ(x.status, WEFT_ERR_REFUSED);
            CHECK_EQ(transport_of(&s.b)->n_mapped, 0);
            close(other);
            if (what == CLOSED)
                r.fd = -1;
            range_free(&s.a, &r);
            scene_close(&s);
        }
    }
}

TEST(a_mapping_serves_all_lanes_to_its_peer)
{
    scene_t s;
    range_t r;
    shm_end_t fa, fb;
    shm_xfer_t sent, got;
    scene_open(&s, "kernel");
    shm_join(&s.a, &fa, &s.b, &fb);
    range_new(&s.a, &r, MB, 8);
    weft_iov_t iov = {r.at, MB}, to = {malloc(MB), MB};
    CHECK_EQ(move1(&s, r.at, MB), MB);
    CHECK_OK(shm_announce(&fa, &iov, 1, &sent));
    SHM_UNTIL(&s.b, fb.announced);
    shm_pull(&fb, 0, &to, 1, MB, &got);
    SHM_UNTIL2(&s.a, &s.b, got.done && sent.done);
    CHECK_OK(got.status);
    CHECK_EQ(transport_of(&s.b)->mapped_copies, 2 * MB);
    CHECK_EQ(transport_of(&s.b)->n_mapped, 1);
    /* One lane goes: the other still has it. */
    shm_end_close(&fa);
    shm_end_close(&fb);
    CHECK_EQ(transport_of(&s.b)->n_mapped, 1);
    CHECK_EQ(move1(&s, r.at, MB), MB);
    free(to.base);
    range_free(&s.a, &r);
    scene_close(&s);
}

/* --- taking back -------------------------------------------------------------------------------------------------------- */

TEST(an_address_that_means_something_else_later_is_not_read_from_the_old_mapping)
{
    const char *copies[] = {"kernel", "ring"};
    for (int way = 0; way < 2; way++) {
        scene_t s;
        range_t r;
        scene_open(&s, copies[way]);
        range_new(&s.a, &r, MB, 10);
        void *where = r.at;
        for (unsigned round = 0; round < 20; round++) {
            CHECK_EQ(move1(&s, r.at, MB), MB);
            wefti_shm_unshare(s.a.transport, r.id);
            close(r.fd);
            if (round % 2) { /* plain memory for a while */
                CHECK(mmap(where, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == where);
                fill(where, MB, 100 + round);
                CHECK_EQ(move1(&s, where, MB), 0);
            }
            range_map(&r, MB, where, 200 + round);
            CHECK_OK(wefti_shm_share(s.a.transport, r.at, r.n, r.fd, &r.id));
        }
        range_free(&s.a, &r);
        scene_close(&s);
    }
}

TEST(an_announcement_never_overtakes_the_word_that_its_memory_is_another)
{
    scene_t s;
    range_t r;
    shm_xfer_t x, got;
    uint64_t sent = 0;
    scene_open(&s, "kernel");
    range_new(&s.a, &r, MB, 11);
    CHECK_EQ(move1(&s, r.at, MB), MB);
    while (shm_send(&s.ea, "a record that fills the ring", 28))
        sent++;
    wefti_shm_unshare(s.a.transport, r.id);
    close(r.fd);
    range_map(&r, MB, r.at, 12);
    weft_iov_t iov = {r.at, MB}, to = {malloc(MB), MB};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(shm_announce(&s.ea, &iov, 1, &x), WEFT_ERR_AGAIN);
        shm_progress(&s.a);
    }
    /* There is room now, and the word still waits for the sender's next progress. */
    SHM_UNTIL(&s.b, s.eb.records == sent);
    CHECK_EQ(known(&s), 1);
    unsigned i = offer(&s, &iov, 1, &x);
    shm_pull(&s.eb, i, &to, 1, MB, &got);
    SHM_UNTIL2(&s.a, &s.b, got.done && x.done);
    CHECK_OK(got.status);
    CHECK(!memcmp(to.base, r.at, MB));
    CHECK_EQ(transport_of(&s.b)->mapped_copies, MB);
    CHECK_EQ(transport_of(&s.b)->n_mapped, 0);
    free(to.base);
    close(r.fd);
    munmap(r.at, r.n);
    scene_close(&s);
}

TEST(unsharing_wakes_a_sleeping_runtime_which_tells_its_peers)
{
    lanes_t l;
    lanes_xfer_t sent, got;
    range_t r;
    lanes_open(&l, "shm");
    range_map(&r, MB, NULL, 13);
    CHECK_OK(l.a.fabric->ops->share(l.a.fabric, r.at, r.n, r.fd, &r.id));
    CHECK(r.id);
    weft_iov_t iov = {r.at, MB};
    lanes_xfer_init(&sent);
    CHECK_OK(l.a.lane->ops->announce(l.a.lane, "rec", 3, &iov, 1, MB, &sent.x));
    LANES_UNTIL(&l, l.b.announced);
    uint8_t *to = malloc(MB);
    lanes_pull(&l.b, 0, to, MB, &got);
    LANES_UNTIL(&l, got.done && sent.done);
    wefti_shm_transport_t *rb = (wefti_shm_transport_t *)l.b.transport;
    CHECK_EQ(rb->mapped_copies, MB);
    CHECK_EQ(rb->n_mapped, 1);
    double end = lanes_now() + LANES_SECONDS;
    while (l.a.fabric->ops->arm(l.a.fabric)) {
        lanes_side_progress(&l.a);
        CHECK(lanes_now() < end);
    }
    struct pollfd p = {.fd = l.a.fabric->ops->event_fd(l.a.fabric), .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 0), 0);
    l.a.fabric->ops->unshare(l.a.fabric, r.id);
    CHECK_EQ(poll(&p, 1, 10000), 1);
    l.a.fabric->ops->disarm(l.a.fabric);
    LANES_UNTIL(&l, rb->n_mapped == 0);
    free(to);
    close(r.fd);
    munmap(r.at, r.n);
    lanes_close(&l);
}

TEST(a_fabric_without_the_transport_shares_nothing_and_is_content)
{
    lanes_side_t side;
    range_t r;
    lanes_side_open(&side, "ucx", NULL);
    range_map(&r, MB, NULL, 14);
    r.id = 77;
    CHECK_OK(side.fabric->ops->share(side.fabric, r.at, r.n, r.fd, &r.id));
    CHECK_EQ(r.id, 0);
    side.fabric->ops->unshare(side.fabric, 0);
    lanes_side_close(&side);
}

TEST(ranges_that_cannot_be_shared_are_refused)
{
    shm_side_t s;
    range_t r;
    uint64_t id = 5, other;
    shm_side_open(&s, RING, "auto");
    range_new(&s, &r, MB, 15);
    int open_fd = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(open_fd >= 0 && !ftruncate(open_fd, MB));
    int fd = memfd_new(MB);
    CHECK_EQ(wefti_shm_share(s.transport, NULL, MB, fd, &id), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_shm_share(s.transport, r.at + MB, 0, fd, &id), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_shm_share(s.transport, r.at + MB, MB, -1, &id), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_shm_share(s.transport, r.at + MB, SIZE_MAX, fd, &id), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_shm_share(s.transport, r.at + MB, MB, open_fd, &id), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "sealed"));
    CHECK_EQ(wefti_shm_share(s.transport, r.at + MB, MB + 1, fd, &id), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_shm_share(s.transport, r.at, MB, fd, &id), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_shm_share(s.transport, r.at + MB - 1, MB, fd, &id), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_shm_share(s.transport, r.at - MB + 1, MB, fd, &id), WEFT_ERR_INVALID);
    CHECK_EQ(id, 5);
    /* Side by side is fine; and what is no memfd is no use, but no mistake. */
    CHECK_OK(wefti_shm_share(s.transport, r.at + MB, MB, fd, &id));
    CHECK_OK(wefti_shm_share(s.transport, r.at - MB, MB, fd, &other));
    CHECK(id && other && id != other);
    wefti_shm_unshare(s.transport, id);
    wefti_shm_unshare(s.transport, other);
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
    CHECK_OK(wefti_shm_share(s.transport, r.at + MB, MB, zero, &id));
    CHECK_EQ(id, 0);
    range_free(&s, &r);
    shm_side_close(&s);
}

/* --- bounds ------------------------------------------------------------------------------------------------------------- */

TEST(mappings_are_bounded_and_those_in_use_stay)
{
    enum { RANGES = 12 };
    scene_t s;
    range_t r[RANGES];
    shm_xfer_t x[RANGES];
    void *lent[RANGES];
    const uint8_t *ptr[RANGES];
    scene_open(&s, "kernel");
    wefti_shm_transport_t *rb = transport_of(&s.b);
    rb->max_mapped = 4;
    for (unsigned i = 0; i < RANGES; i++)
        range_new(&s.a, &r[i], MB, 40 + i);
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < RANGES; i++) {
            CHECK_EQ(move1(&s, r[i].at, MB), MB);
            CHECK(rb->n_mapped <= 4);
        }
    CHECK_EQ(rb->n_mapped, 4);
    /* The least recently used one goes: 8 to 11 are there. */
    CHECK_EQ(move1(&s, r[8].at, MB), MB);
    CHECK_EQ(move1(&s, r[0].at, MB), MB); /* instead of 9 */
    wefti_shm_lane_t *lb = (wefti_shm_lane_t *)s.eb.lane;
    unsigned there = 0;
    for (unsigned i = 0; i < RANGES; i++) {
        wefti_shm_arena_t *a = wefti_shm_arena_find(lb, (uintptr_t)r[i].at, MB);
        CHECK(a);
        there |= a->map ? 1u << i : 0;
    }
    CHECK_EQ(there, 1u << 8 | 1u << 10 | 1u << 11 | 1u << 0);
    /* Four are lent: the others cannot be mapped, and arrive all the same. */
    s.eb.announced = 0;
    for (unsigned i = 0; i < 6; i++) {
        weft_iov_t iov = {r[i].at, MB};
        const void *p;
        unsigned o = offer(&s, &iov, 1, &x[i]);
        weft_status_t st = s.eb.offer[o]->ops->lend(s.eb.offer[o], &p, &lent[i]);
        CHECK_EQ(st, i < 4 ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
        ptr[i] = p;
        s.eb.offer[o]->ops->refuse(s.eb.offer[o], true);
    }
    CHECK_EQ(move1(&s, r[7].at, MB), 0);
    for (unsigned i = 0; i < 4; i++) {
        CHECK(!memcmp(ptr[i], r[i].at, MB));
        s.b.transport->ops->unlend(s.b.transport, lent[i]);
    }
    CHECK_EQ(move1(&s, r[7].at, MB), MB);
    /* Bytes are bounded too. */
    rb->max_mapped_bytes = 2 * MB + 4096;
    CHECK_EQ(move1(&s, r[6].at, MB), MB);
    CHECK_EQ(rb->n_mapped, 2);
    CHECK_EQ(rb->mapped_bytes, 2 * MB);
    rb->max_mapped_bytes = MB - 1;
    CHECK_EQ(move1(&s, r[5].at, MB), 0);
    for (unsigned i = 0; i < RANGES; i++)
        range_free(&s.a, &r[i]);
    scene_close(&s);
}

TEST(a_lane_tells_of_a_bounded_number_of_ranges)
{
    enum { RANGES = WEFTI_SHM_TOLD_MAX + 20 };
    static range_t r[RANGES];
    scene_t s;
    size_t n = 16 * KB;
    scene_open(&s, "kernel");
    int fd = memfd_new(n);
    for (unsigned i = 0; i < RANGES; i++) { /* one memfd serves: here nobody looks at its bytes twice */
        r[i] = (range_t){.n = n, .fd = fd};
        r[i].at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(r[i].at != MAP_FAILED);
        CHECK_OK(wefti_shm_share(s.a.transport, r[i].at, n, fd, &r[i].id));
    }
    for (unsigned i = 0; i < RANGES; i++)
        CHECK_EQ(move1(&s, r[i].at, n), i < WEFTI_SHM_TOLD_MAX ? n : 0);
    CHECK_EQ(known(&s), WEFTI_SHM_TOLD_MAX);
    CHECK(!s.eb.failed);
    /* Room for others when some are gone. */
    for (unsigned i = 0; i < 20; i++)
        wefti_shm_unshare(s.a.transport, r[i].id);
    for (unsigned i = WEFTI_SHM_TOLD_MAX; i < RANGES; i++)
        CHECK_EQ(move1(&s, r[i].at, n), n);
    for (unsigned i = 20; i < RANGES; i++)
        wefti_shm_unshare(s.a.transport, r[i].id);
    for (unsigned i = 0; i < RANGES; i++)
        munmap(r[i].at, n);
    SHM_UNTIL2(&s.a, &s.b, known(&s) == 0);
    close(fd);
    scene_close(&s);
}

static unsigned fail_at, allocations;
static int fails(size_t n)
{
    (void)n;
    return ++allocations == fail_at;
}

TEST(no_memory_for_any_of_it_costs_the_mapping_at_most)
{
    bool more = true;
    for (fail_at = 1; more; fail_at++) {
        scene_t s;
        range_t r = {0};
        scene_open(&s, "kernel");
        range_map(&r, MB, NULL, 50);
        allocations = 0;
        wefti_alloc_fails = fails;
        weft_status_t st = wefti_shm_share(s.a.transport, r.at, r.n, r.fd, &r.id);
        if (!st) {
            shm_xfer_t x, got;
            weft_iov_t iov = {r.at, MB}, to = {malloc(MB), MB};
            for (int i = 0; (st = shm_announce(&s.ea, &iov, 1, &x)) && i < 3; i++)
                CHECK_EQ(st, WEFT_ERR_NOMEM);
            CHECK_OK(st);
            SHM_UNTIL(&s.b, s.eb.announced);
            shm_pull(&s.eb, 0, &to, 1, MB, &got);
            SHM_UNTIL2(&s.a, &s.b, got.done && x.done);
            CHECK_OK(got.status);
            CHECK(!memcmp(to.base, r.at, MB));
            free(to.base);
            wefti_shm_unshare(s.a.transport, r.id);
        } else {
            CHECK_EQ(st, WEFT_ERR_NOMEM);
        }
        more = allocations >= fail_at;
        wefti_alloc_fails = NULL;
        close(r.fd);
        munmap(r.at, r.n);
        scene_close(&s);
    }
    CHECK(fail_at > 6);
}

/* --- threads ------------------------------------------------------------------------------------------------------------ */

typedef struct sharer {
    pthread_t thread;
    wefti_transport_t *transport;
    unsigned seed;
} sharer_t;

static void *share_and_unshare(void *arg)
{
    sharer_t *t = arg;
    range_t r[4] = {0};
    for (unsigned i = 0; i < 400; i++) {
        range_t *at = &r[i % 4];
        if (at->id) {
            wefti_shm_unshare(t->transport, at->id);
            close(at->fd);
            munmap(at->at, at->n);
        }
        range_map(at, 16 * KB, NULL, t->seed + i);
        CHECK_OK(wefti_shm_share(t->transport, at->at, at->n, at->fd, &at->id));
    }
    for (unsigned i = 0; i < 4; i++) {
        wefti_shm_unshare(t->transport, r[i].id);
        close(r[i].fd);
        munmap(r[i].at, r[i].n);
    }
    return NULL;
}

TEST(threads_share_and_unshare_while_payloads_move)
{
    scene_t s;
    range_t r;
    sharer_t t[3];
    scene_open(&s, "kernel");
    for (unsigned i = 0; i < 3; i++) {
        t[i] = (sharer_t){.transport = s.a.transport, .seed = 1000 * i};
        CHECK(!pthread_create(&t[i].thread, NULL, share_and_unshare, &t[i]));
    }
    for (unsigned i = 0; i < 200; i++) {
        range_new(&s.a, &r, 64 * KB, i);
        CHECK_EQ(move1(&s, r.at + i, 32 * KB), 32 * KB);
        range_free(&s.a, &r);
    }
    for (unsigned i = 0; i < 3; i++)
        CHECK(!pthread_join(t[i].thread, NULL));
    SHM_UNTIL2(&s.a, &s.b, known(&s) == 0);
    scene_close(&s);
}
