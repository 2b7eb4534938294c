/* tests/wire/fabric_shm_hostile.c - a peer on the shm transport that writes whatever it likes into the memory it shares with us.
 *
 * Promise held here: its own lane fails with WEFT_ERR_PROTOCOL (or _PEER where its memory is not what it said), every
 * transfer is done once, other lanes do not notice, and nothing outside the ring is touched (run it under asan). */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "test.h"
#include "base/rng.h"
#include "lib/shm_side.h"

#define RING WEFTI_RING_SMALLEST

/* a is the honest side; b lies on ea/eb and is honest on fa/fb. */
typedef struct scene {
    shm_side_t a, b;
    shm_end_t ea, eb, fa, fb;
} scene_t;

static wefti_shm_lane_t *lane_of(shm_end_t *e)
{
    return (wefti_shm_lane_t *)e->lane;
}

/* The id of what it announced last. */
static uint64_t last_sent(shm_end_t *e)
{
    return wefti_container_of(lane_of(e)->sends.prev, wefti_shm_send_t, link)->id;
}

static void scene_open(scene_t *s, const char *copy)
{
    shm_side_open(&s->a, RING, copy);
    shm_side_open(&s->b, RING, copy);
    shm_join(&s->a, &s->ea, &s->b, &s->eb);
    shm_join(&s->a, &s->fa, &s->b, &s->fb);
    for (int i = 0; i < 4; i++) {
        shm_progress(&s->a);
        shm_progress(&s->b);
    }
}

/* The honest lane still works, and everything goes away. */
static void scene_close(scene_t *s)
{
    uint64_t before = s->fa.records;
    for (int i = 0; i < 3; i++)
        CHECK(shm_send(&s->fb, "still here", 10));
    SHM_UNTIL2(&s->a, &s->b, s->fa.records == before + 3);
    CHECK(!s->fa.failed);
    shm_end_close(&s->ea);
    shm_end_close(&s->eb);
    shm_end_close(&s->fa);
    shm_end_close(&s->fb);
    shm_side_close(&s->a);
    shm_side_close(&s->b);
    CHECK_EQ(shm_maps(), 0);
}

static void put(shm_end_t *e, uint32_t type, const void *bytes, size_t n)
{
    void *at = wefti_shm_lane_reserve(lane_of(e), n);
    CHECK(at);
    memcpy(at, bytes, n);
    wefti_shm_lane_commit(lane_of(e), n, type);
}

static void put_ctl(shm_end_t *e, uint32_t type, uint64_t id, uint64_t arg)
{
    uint64_t words[2] = {id, arg};
    put(e, type, words, sizeof words);
}

typedef struct rts {
    uint64_t id, total, pieces_at;
    uint32_t n_pieces, n_rec;
    wefti_shm_piece_t piece[WEFTI_SHM_PIECES];
} rts_t;

typedef struct arena {
    uint64_t id, base, n, ino;
    uint32_t fd, zero;
} arena_t;

static int memfd_of(size_t n, int seals)
{
    int fd = memfd_create("weft-hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)n) && !fcntl(fd, F_ADD_SEALS, seals));
    return fd;
}

static arena_t arena_of(uint64_t id, const void *base, uint64_t n, int fd)
{
    struct stat info;
    CHECK(!fstat(fd, &info));
    return (arena_t){id, (uint64_t)(uintptr_t)base, n, (uint64_t)info.st_ino, (uint32_t)fd, 0};
}

static size_t rts_size(uint32_t n_pieces)
{
    return offsetof(rts_t, piece) + (n_pieces < WEFTI_SHM_PIECES ? n_pieces : WEFTI_SHM_PIECES) * sizeof(wefti_shm_piece_t);
}

TEST(garbage_in_the_ring_fails_that_lane_alone)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        scene_t s;
        wefti_rng_t rng = {seed};
        scene_open(&s, "auto");
        uint8_t *ring = lane_of(&s.eb)->tx.base;
        for (size_t i = 0; i < RING; i += 8) {
            uint64_t word = wefti_rng_next(&rng);
            memcpy(ring + i, &word, 8);
        }
        wefti_bell_ring(lane_of(&s.eb)->peer, lane_of(&s.eb)->peer_index);
        SHM_UNTIL(&s.a, s.ea.failed);
        CHECK_EQ(s.ea.why, WEFT_ERR_PROTOCOL);
        scene_close(&s);
    }
}

TEST(records_that_make_no_sense_fail_the_lane)
{
    enum {
        DONE_UNKNOWN,
        DONE_ODD,
        PULL_UNKNOWN,
        PULL_TOO_MUCH,
        PULL_NOTHING,
        PULL_TWICE,
        DATA_UNASKED,
        DATA_SHORT,
        RTS_SHORT,
        RTS_LONG_REC,
        RTS_WRONG_SIZE,
        RTS_TWICE,
        CTL_SHORT,
        CTL_LONG,
        TYPE_UNKNOWN,
        N
    };
    for (int what = 0; what < N; what++) {
        scene_t s;
        shm_xfer_t x;
        static uint8_t src[20000];
        weft_iov_t iov = {src, sizeof src};
        scene_open(&s, "ring");
        CHECK_OK(shm_announce(&s.ea, &iov, 1, &x));
        SHM_UNTIL(&s.b, s.eb.announced);
        uint64_t id = last_sent(&s.ea);
        rts_t rts = {.id = 7, .total = 100, .n_pieces = 1, .n_rec = 0, .piece = {{(uint64_t)(uintptr_t)src, 100}}};
        switch (what) {
        case DONE_UNKNOWN:
            put_ctl(&s.eb, WEFTI_SHM_DONE, id + 1, 0);
            break;
        case DONE_ODD:
            put_ctl(&s.eb, WEFTI_SHM_DONE, id, 77);
            break;
        case PULL_UNKNOWN:
            put_ctl(&s.eb, WEFTI_SHM_PULL, id ^ UINT64_C(2) << 32, 10);
            break;
        case PULL_TOO_MUCH:
            put_ctl(&s.eb, WEFTI_SHM_PULL, id, sizeof src + 1);
            break;
        case PULL_NOTHING:
            put_ctl(&s.eb, WEFTI_SHM_PULL, id, 0);
            break;
        case PULL_TWICE:
            put_ctl(&s.eb, WEFTI_SHM_PULL, id, 10);
            put_ctl(&s.eb, WEFTI_SHM_PULL, id, 10);
            break;
        case DATA_UNASKED:
            put_ctl(&s.eb, WEFTI_SHM_DATA, id, 0);
            break;
        case DATA_SHORT:
            put(&s.eb, WEFTI_SHM_DATA, &id, 8);
            break;
        case RTS_SHORT:
            put(&s.eb, WEFTI_SHM_RTS, &rts, 12);
            break;
        case RTS_LONG_REC:
            rts.n_rec = UINT32_MAX;
            put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
            break;
        case RTS_WRONG_SIZE:
            rts.n_pieces = UINT32_MAX;
            put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
            break;
        case RTS_TWICE:
            put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
            put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
            break;
        case CTL_SHORT:
            put(&s.eb, WEFTI_SHM_DONE, &id, 8);
            break;
        case CTL_LONG:
            put(&s.eb, WEFTI_SHM_DONE, src, 24);
            break;
        case TYPE_UNKNOWN:
            put_ctl(&s.eb, WEFTI_RING_TYPE_MAX, id, 0);
            break;
        }
        SHM_UNTIL(&s.a, s.ea.failed);
        if (s.ea.why != WEFT_ERR_PROTOCOL)
            FAIL("case %d: %s", what, weft_status_name(s.ea.why));
        CHECK_EQ(x.done, 0);
        scene_close(&s);
        CHECK_EQ(x.done, 1);
        CHECK_EQ(x.status, WEFT_ERR_CANCELLED);
        CHECK_EQ(s.ea.withdrawn, what == RTS_TWICE);
    }
}

TEST(bytes_for_a_pull_that_was_not_sent_yet_fail_the_lane)
{
    scene_t s;
    shm_xfer_t x;
    static uint8_t src[100], dst[100];
    weft_iov_t iov = {dst, sizeof dst};
    uint64_t data[1 + sizeof src / 8 + 1] = {7};
    rts_t rts = {.id = 7, .total = sizeof src, .n_pieces = 1, .n_rec = 0, .piece = {{(uint64_t)(uintptr_t)src, sizeof src}}};
    scene_open(&s, "ring");
    for (size_t n = 1024; n >= 8; n /= 2) /* b reads nothing: its ring is full to the last word */
        while (shm_send(&s.ea, src, n < sizeof src ? n : sizeof src))
            ;
    put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
    SHM_UNTIL(&s.a, s.ea.announced);
    shm_xfer_init(&x);
    shm_pull(&s.ea, 0, &iov, 1, sizeof dst, &x);
    CHECK(!wefti_list_empty(&lane_of(&s.ea)->out)); /* what asks for the bytes waits for room */
    put(&s.eb, WEFTI_SHM_DATA, data, 8 + sizeof src);
    SHM_UNTIL(&s.a, s.ea.failed);
    CHECK_EQ(s.ea.why, WEFT_ERR_PROTOCOL);
    scene_close(&s);
    CHECK_EQ(x.done, 1);
    CHECK(x.status != WEFT_OK);
}

TEST(pieces_that_are_not_there_fail_the_pull)
{
    static uint8_t src[4096], dst[1 << 20];
    /* 4096 empty pieces, and then nothing. */
    uint8_t *empty = mmap(NULL, 2 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(empty != MAP_FAILED && !mprotect(empty, 1 << 16, PROT_READ | PROT_WRITE));
    enum { NOWHERE, TOO_FEW, NONE, LIST_NOWHERE, LIST_EMPTY, LIST_ENDLESS, N };
    for (int what = 0; what < N; what++) {
        scene_t s;
        shm_xfer_t x;
        weft_iov_t to = {dst, sizeof dst};
        scene_open(&s, "kernel");
        rts_t rts = {.id = 9, .total = sizeof dst, .n_pieces = 1, .piece = {{(uint64_t)(uintptr_t)src, sizeof src}}};
        switch (what) {
        case NOWHERE:
            rts.piece[0] = (wefti_shm_piece_t){4096, sizeof dst};
            break;
        case TOO_FEW:
            break;
        case NONE:
            rts.n_pieces = 0;
            break;
        case LIST_NOWHERE:
            rts.n_pieces = 1000;
            rts.pieces_at = 64;
            break;
        case LIST_EMPTY:
            rts.n_pieces = 4096;
            rts.pieces_at = (uint64_t)(uintptr_t)empty;
            rts.piece[0].len = 0;
            break;
        case LIST_ENDLESS:
            rts.n_pieces = UINT32_MAX;
            rts.pieces_at = (uint64_t)(uintptr_t)empty;
            break;
        }
        put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(rts.n_pieces));
        SHM_UNTIL(&s.a, s.ea.announced);
        shm_pull(&s.ea, 0, &to, 1, sizeof dst, &x);
        shm_progress(&s.a); /* one progress is bounded, whatever the list says */
        SHM_UNTIL2(&s.a, &s.b, x.done);
        CHECK_EQ(x.status, WEFT_ERR_PEER);
        CHECK(s.ea.failed);
        scene_close(&s);
    }
}

TEST(a_consumer_position_that_cannot_be_fails_the_lane)
{
    scene_t s;
    scene_open(&s, "auto");
    atomic_store(&lane_of(&s.eb)->rx.page->consumed, UINT64_MAX / 2);
    for (int i = 0; i < 1000 && shm_send(&s.ea, "x", 1); i++)
        ;
    CHECK(!s.ea.failed); /* not from inside a call */
    SHM_UNTIL(&s.a, s.ea.failed);
    CHECK_EQ(s.ea.why, WEFT_ERR_PROTOCOL);
    scene_close(&s);
    /* The same to someone who waits for room and sends nothing. */
    scene_open(&s, "auto");
    while (shm_send(&s.ea, "x", 1))
        ;
    atomic_store(&lane_of(&s.eb)->rx.page->consumed, UINT64_MAX / 2);
    wefti_bell_ring(lane_of(&s.eb)->peer, lane_of(&s.eb)->peer_index);
    SHM_UNTIL(&s.a, s.ea.failed);
    CHECK_EQ(s.ea.why, WEFT_ERR_PROTOCOL);
    CHECK_EQ(s.ea.rooms, 0);
    scene_close(&s);
}

TEST(scribbling_on_bell_and_flags_does_no_harm)
{
    scene_t s;
    wefti_rng_t rng = {21};
    scene_open(&s, "auto");
    wefti_bell_t *bell = lane_of(&s.eb)->peer->bell;
    uint64_t sent = 0;
    for (int i = 0; i < 20000; i++) {
        atomic_store(&bell->top, wefti_rng_next(&rng));
        atomic_store(&bell->word[wefti_rng_below(&rng, WEFTI_BELL_BITS / 64)], wefti_rng_next(&rng));
        atomic_store(&bell->sleeping, (uint32_t)wefti_rng_below(&rng, 2));
        atomic_store(&lane_of(&s.eb)->tx.page->want_at, wefti_rng_next(&rng));
        atomic_store(&lane_of(&s.eb)->tx.page->parked, (uint32_t)wefti_rng_next(&rng));
        atomic_store(&lane_of(&s.eb)->tx.page->mapped, (uint32_t)wefti_rng_next(&rng));
        atomic_store(&lane_of(&s.eb)->tx.page->consumed, wefti_rng_next(&rng));
        sent += shm_send(&s.fb, "record", 6);
        shm_progress(&s.a);
        shm_progress(&s.b);
    }
    SHM_UNTIL2(&s.a, &s.b, s.fa.records == sent || !shm_send(&s.fb, "again", 5) || !++sent);
    CHECK(!s.fa.failed);
    scene_close(&s);
}

/* Random records of every type, with ids that are sometimes right, while the honest side has transfers of its own. */
static unsigned fuzz_lent;
static volatile unsigned fuzz_sum;

static void fuzz_announced(shm_end_t *e, wefti_pull_t *p, uint64_t total)
{
    static uint8_t dst[65536];
    static weft_iov_t iov = {dst, sizeof dst};
    static shm_xfer_t xfers[64];
    shm_xfer_t *x = &xfers[e->announced % 64];
    const void *ptr;
    void *lent;
    if (!p->ops->lend(p, &ptr, &lent)) {
        fuzz_lent++;
        fuzz_sum += ((const uint8_t *)ptr)[0] + ((const uint8_t *)ptr)[total - 1];
        e->side->transport->ops->unlend(e->side->transport, lent);
    }
    if (e->announced % 3 == 0 || !total || (x->x.done && !x->done)) {
        p->ops->refuse(p, e->announced % 2);
        return;
    }
    shm_xfer_init(x);
    uint64_t want = total < sizeof dst ? total : sizeof dst;
    CHECK_OK(p->ops->pull(p, &iov, 1, want, &x->x));
}

TEST(random_records_never_do_more_than_fail_the_lane)
{
    static uint8_t src[2 * 65536];
    unsigned failed = 0;
    int fd = memfd_of(65536, F_SEAL_SHRINK);
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        scene_t s;
        shm_xfer_t x[4];
        uint64_t ids[4];
        weft_iov_t iov = {src, 30000};
        wefti_rng_t rng = {seed};
        scene_open(&s, seed % 2 ? "ring" : "kernel");
        s.ea.on_announced = fuzz_announced;
        for (int i = 0; i < 4; i++) {
            CHECK_OK(shm_announce(&s.ea, &iov, 1, &x[i]));
            ids[i] = last_sent(&s.ea);
        }
        if (seed % 3) {
            arena_t a = arena_of(0, src, 65536, fd);
            put(&s.eb, WEFTI_SHM_ARENA, &a, sizeof a);
        }
        for (int i = 0; i < 40 && !s.ea.failed; i++) {
            rts_t r;
            uint64_t *words = (uint64_t *)(void *)&r;
            for (size_t k = 0; k < sizeof r / 8; k++)
                words[k] = wefti_rng_below(&rng, 3) ? wefti_rng_below(&rng, 40) : wefti_rng_next(&rng);
            r.id = wefti_rng_below(&rng, 2) ? ids[wefti_rng_below(&rng, 4)] : wefti_rng_below(&rng, 30);
            uint32_t type = WEFTI_SHM_REC + (uint32_t)wefti_rng_below(&rng, 8);
            size_t n = type == WEFTI_SHM_ARENA ? sizeof(arena_t) : 16;
            if (type == WEFTI_SHM_RTS) {
                r.n_pieces = (uint32_t)wefti_rng_below(&rng, 20);
                r.total = wefti_rng_below(&rng, 100000);
                r.n_rec = 0;
                r.pieces_at = (uint64_t)(uintptr_t)src;
                for (uint32_t k = 0; k < WEFTI_SHM_PIECES; k++)
                    r.piece[k] = (wefti_shm_piece_t){(uint64_t)(uintptr_t)src + wefti_rng_below(&rng, 4) * 32768,
                                                     wefti_rng_below(&rng, 65536)};
                if (wefti_rng_below(&rng, 2)) {
                    r.n_pieces = 1;
                    r.total = 1 + wefti_rng_below(&rng, r.piece[0].len + 1);
                }
                n = rts_size(r.n_pieces);
            }
            if (type == WEFTI_SHM_ARENA && wefti_rng_below(&rng, 4)) {
                uint64_t k = wefti_rng_below(&rng, 4);
                arena_t a = arena_of(k, src + k * 32768, 1 + wefti_rng_below(&rng, 40000), fd);
                memcpy(&r, &a, sizeof a);
            }
            if (type == WEFTI_SHM_ARENA_GONE)
                r.id = wefti_rng_below(&rng, 4);
            if (wefti_rng_below(&rng, 10) == 0)
                n = 1 + wefti_rng_below(&rng, sizeof r);
            if (type == WEFTI_SHM_PULL)
                ((uint64_t *)(void *)&r)[1] = wefti_rng_below(&rng, 40000);
            put(&s.eb, type, &r, n);
            shm_progress(&s.a);
        }
        failed += s.ea.failed;
        scene_close(&s);
        for (int i = 0; i < 4; i++)
            CHECK_EQ(x[i].done, 1);
    }
    CHECK(failed > 1000);
    if (fuzz_lent < 40)
        FAIL("only %u lent", fuzz_lent);
    close(fd);
}

/* --- arenas ------------------------------------------------------------------------------------------------------------- */

TEST(arenas_that_make_no_sense_fail_the_lane)
{
    enum {
        EMPTY,
        WRAPS,
        WRAPS_TO_0,
        ENORMOUS,
        FD,
        ID_TWICE,
        SAME_TWICE,
        OVERLAP_LOW,
        OVERLAP_HIGH,
        AROUND,
        INSIDE,
        SHORT,
        LONG,
        GONE_UNKNOWN,
        GONE_TWICE,
        TOO_MANY,
        N
    };
    int fd = memfd_of(1 << 20, F_SEAL_SHRINK);
    for (int what = 0; what < N; what++) {
        scene_t s;
        scene_open(&s, "auto");
        arena_t a = arena_of(1, (void *)(uintptr_t)0x10000000, 1 << 20, fd), b = a;
        put(&s.eb, WEFTI_SHM_ARENA, &a, sizeof a);
        b.id = 2;
        b.base += 1 << 20;
        switch (what) {
        case EMPTY:
            b.n = 0;
            break;
        case WRAPS:
            b.n = UINT64_MAX - b.base + 2;
            break;
        case WRAPS_TO_0:
            b.n = UINT64_MAX - b.base + 1;
            break;
        case ENORMOUS:
            b.n = UINT64_C(1) << 63;
            break;
        case FD:
            b.fd = UINT32_MAX;
            break;
        case ID_TWICE:
            b.id = 1;
            break;
        case SAME_TWICE:
            b = a;
            break;
        case OVERLAP_LOW:
            b.base--;
            break;
        case OVERLAP_HIGH:
            b.base = a.base - b.n + 1;
            break;
        case AROUND:
            b.base = a.base - 1;
            b.n = a.n + 2;
            break;
        case INSIDE:
            b.base = a.base + 4096;
            b.n = 1;
            break;
        case SHORT:
            put(&s.eb, WEFTI_SHM_ARENA, &b, sizeof b - 1);
            break;
        case LONG: {
            arena_t two[2] = {b, b};
            put(&s.eb, WEFTI_SHM_ARENA, two, sizeof b + 1);
            break;
        }
        case GONE_UNKNOWN:
            put_ctl(&s.eb, WEFTI_SHM_ARENA_GONE, 2, 0);
            break;
        case GONE_TWICE:
            put_ctl(&s.eb, WEFTI_SHM_ARENA_GONE, 1, 0);
            put_ctl(&s.eb, WEFTI_SHM_ARENA_GONE, 1, 0);
            break;
        case TOO_MANY:
            for (uint64_t i = 0; i < WEFTI_SHM_TOLD_MAX + 10 && !s.ea.failed; i++, b.id++, b.base += b.n) {
                put(&s.eb, WEFTI_SHM_ARENA, &b, sizeof b);
                shm_progress(&s.a);
            }
            CHECK_EQ(lane_of(&s.ea)->known.n, WEFTI_SHM_TOLD_MAX);
            break;
        }
        if (what < SHORT)
            put(&s.eb, WEFTI_SHM_ARENA, &b, sizeof b);
        SHM_UNTIL(&s.a, s.ea.failed);
        if (s.ea.why != WEFT_ERR_PROTOCOL)
            FAIL("case %d: %s", what, weft_status_name(s.ea.why));
        CHECK_EQ(((wefti_shm_transport_t *)s.a.transport)->n_mapped, 0);
        scene_close(&s);
    }
    close(fd);
}

/* Whoever is of the same user can say that it is another runtime: what it says on its lane is its own. */
TEST(an_arena_means_on_each_lane_what_was_said_there)
{
    const uint64_t n = 1 << 20, at = UINT64_C(0x7000000000);
    scene_t s;
    int fds[2] = {memfd_of(n, F_SEAL_SHRINK), memfd_of(n, F_SEAL_SHRINK)};
    shm_end_t *from[2], *to[2];
    scene_open(&s, "kernel");
    from[0] = &s.eb, from[1] = &s.fb, to[0] = &s.ea, to[1] = &s.fa;
    for (int i = 0; i < 2; i++) {
        char c = (char)('a' + i);
        const void *ptr;
        void *lent;
        CHECK_EQ(pwrite(fds[i], &c, 1, 0), 1);
        arena_t a = arena_of(1, (void *)(uintptr_t)at, n, fds[i]); /* the same id and addresses, and another memory */
        put(from[i], WEFTI_SHM_ARENA, &a, sizeof a);
        rts_t rts = {.id = 9, .total = n, .n_pieces = 1, .piece = {{at, n}}};
        put(from[i], WEFTI_SHM_RTS, &rts, rts_size(1));
        SHM_UNTIL(&s.a, to[i]->announced || to[i]->failed);
        CHECK(!to[i]->failed);
        CHECK_OK(to[i]->offer[0]->ops->lend(to[i]->offer[0], &ptr, &lent));
        CHECK_EQ(*(const char *)ptr, c);
        s.a.transport->ops->unlend(s.a.transport, lent);
    }
    put_ctl(&s.eb, WEFTI_SHM_ARENA_GONE, 1, 0);
    SHM_UNTIL(&s.a, !lane_of(&s.ea)->known.n);
    CHECK_EQ(lane_of(&s.fa)->known.n, 1);
    put_ctl(&s.fb, WEFTI_SHM_ARENA_GONE, 1, 0);
    SHM_UNTIL(&s.a, !lane_of(&s.fa)->known.n);
    CHECK_EQ(((wefti_shm_transport_t *)s.a.transport)->n_mapped, 0);
    scene_close(&s);
    close(fds[0]);
    close(fds[1]);
}

/* Ranges that are not what they seem: nothing is mapped, nothing outside a mapping is read, and the lane goes on. */
TEST(arenas_that_are_not_what_they_seem_are_not_mapped)
{
    enum { UNSEALED, TOO_SHORT, NO_MEMFD, NOT_OPEN, PIPE, WRONG_INODE, N };
    static uint8_t src[1 << 20], dst[1 << 20];
    memset(src, 0x5a, sizeof src);
    for (int what = 0; what < N; what++) {
        for (int way = 0; way < 2; way++) {
            scene_t s;
            shm_xfer_t x;
            int ends[2];
            weft_iov_t to = {dst, sizeof dst};
            scene_open(&s, way ? "ring" : "kernel");
            CHECK(!pipe(ends));
            int fd = what == NO_MEMFD
                         ? open("/proc/self/exe", O_RDONLY | O_CLOEXEC)
                         : memfd_of(sizeof src - (what == TOO_SHORT), what == UNSEALED ? F_SEAL_GROW : F_SEAL_SHRINK);
            arena_t a = arena_of(1, src, sizeof src, what == PIPE ? ends[0] : fd);
            a.ino += what == WRONG_INODE;
            if (what == NOT_OPEN)
                close(fd);
            put(&s.eb, WEFTI_SHM_ARENA, &a, sizeof a);
            rts_t rts = {.id = 9, .total = sizeof src, .n_pieces = 1, .piece = {{(uint64_t)(uintptr_t)src, sizeof src}}};
            put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
            SHM_UNTIL(&s.a, s.ea.announced);
            const void *ptr;
            void *lent;
            CHECK_EQ(s.ea.offer[0]->ops->lend(s.ea.offer[0], &ptr, &lent), WEFT_ERR_UNSUPPORTED);
            memset(dst, 0, sizeof dst);
            shm_pull(&s.ea, 0, &to, 1, sizeof dst, &x);
            if (!way) {
                SHM_UNTIL(&s.a, x.done);
                CHECK_OK(x.status);
                CHECK(!memcmp(src, dst, sizeof src)); /* the kernel read what is at that address */
            } else {
                for (int i = 0; i < 10; i++)
                    shm_progress(&s.a);
                CHECK(!x.done); /* it asked for the bytes through the ring, and nobody sends them */
            }
            CHECK(!s.ea.failed);
            CHECK_EQ(((wefti_shm_transport_t *)s.a.transport)->n_mapped, 0);
            if (what != NOT_OPEN)
                close(fd);
            close(ends[0]);
            close(ends[1]);
            scene_close(&s);
            CHECK_EQ(x.done, 1);
        }
    }
}

TEST(pieces_around_the_ends_of_an_arena_never_leave_the_mapping)
{
    const uint64_t n = 1 << 20, at = UINT64_C(0x7000000000); /* nothing is there in this process */
    static uint8_t dst[1 << 20];
    int fd = memfd_of(n, F_SEAL_SHRINK);
    struct {
        uint64_t base, len;
        bool good;
    } cases[] = {{at, n, true},      {at + n - 1, 1, true},      {at + n, 1, false},          {at - 1, 2, false},
                 {at + 1, n, false}, {at, n + 1, false},         {at + 5, UINT64_MAX, false}, {at, UINT64_MAX - at + 1, false},
                 {at - 1, 1, false}, {UINT64_MAX - 3, 4, false}, {0, UINT64_MAX, false},      {at + n - 4096, 4097, false}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        scene_t s;
        shm_xfer_t x;
        const void *ptr;
        void *lent;
        scene_open(&s, "kernel");
        arena_t a = arena_of(1, (void *)(uintptr_t)at, n, fd);
        put(&s.eb, WEFTI_SHM_ARENA, &a, sizeof a);
        uint64_t total = cases[c].len < n ? cases[c].len : n;
        rts_t rts = {.id = 9, .total = total, .n_pieces = 1, .piece = {{cases[c].base, cases[c].len}}};
        put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
        SHM_UNTIL(&s.a, s.ea.announced);
        weft_status_t st = s.ea.offer[0]->ops->lend(s.ea.offer[0], &ptr, &lent);
        if (st != (cases[c].good ? WEFT_OK : WEFT_ERR_UNSUPPORTED))
            FAIL("case %zu: lent with %s", c, weft_status_name(st));
        if (!st) {
            CHECK_EQ(((const uint8_t *)ptr)[0] | ((const uint8_t *)ptr)[total - 1], 0);
            s.a.transport->ops->unlend(s.a.transport, lent);
        }
        weft_iov_t to = {dst, total};
        shm_pull(&s.ea, 0, &to, 1, total, &x);
        SHM_UNTIL(&s.a, x.done);
        if (x.status != (cases[c].good ? WEFT_OK : WEFT_ERR_PEER))
            FAIL("case %zu: pulled with %s", c, weft_status_name(x.status));
        scene_close(&s);
    }
    /* A total that is more than the piece is not lent either. */
    scene_t s;
    const void *ptr;
    void *lent;
    scene_open(&s, "kernel");
    arena_t a = arena_of(1, (void *)(uintptr_t)at, n, fd);
    put(&s.eb, WEFTI_SHM_ARENA, &a, sizeof a);
    rts_t rts = {.id = 9, .total = n + 1, .n_pieces = 1, .piece = {{at, n}}};
    put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
    SHM_UNTIL(&s.a, s.ea.announced);
    CHECK_EQ(s.ea.offer[0]->ops->lend(s.ea.offer[0], &ptr, &lent), WEFT_ERR_UNSUPPORTED);
    scene_close(&s);
    close(fd);
}

TEST(an_arena_taken_away_in_the_middle_of_a_copy_or_a_loan_stays_until_it_is_over)
{
    const uint64_t n = 16 << 20, at = UINT64_C(0x7000000000);
    int fd = memfd_of(n, F_SEAL_SHRINK);
    for (int way = 0; way < 2; way++) {
        scene_t s;
        shm_xfer_t x;
        const void *ptr;
        void *lent;
        weft_iov_t to = {malloc(n), n};
        scene_open(&s, way ? "ring" : "kernel");
        arena_t a = arena_of(1, (void *)(uintptr_t)at, n, fd);
        put(&s.eb, WEFTI_SHM_ARENA, &a, sizeof a);
        rts_t rts = {.id = 9, .total = n, .n_pieces = 1, .piece = {{at, n}}};
        put(&s.eb, WEFTI_SHM_RTS, &rts, rts_size(1));
        SHM_UNTIL(&s.a, s.ea.announced);
        CHECK_OK(s.ea.offer[0]->ops->lend(s.ea.offer[0], &ptr, &lent));
        shm_pull(&s.ea, 0, &to, 1, n, &x);
        shm_progress(&s.a);
        CHECK(!x.done);
        put_ctl(&s.eb, WEFTI_SHM_ARENA_GONE, 1, 0);
        SHM_UNTIL(&s.a, !lane_of(&s.ea)->known.n);
        SHM_UNTIL(&s.a, x.done);
        CHECK_OK(x.status);
        CHECK_EQ(((const uint8_t *)ptr)[n - 1], 0);
        s.a.transport->ops->unlend(s.a.transport, lent);
        CHECK_EQ(((wefti_shm_transport_t *)s.a.transport)->n_mapped, 0);
        scene_close(&s);
        free(to.base);
    }
    close(fd);
}

/* --- the bell ------------------------------------------------------------------------------------------------------------- */

TEST(a_bell_that_was_scribbled_on_keeps_nobody_out)
{
    scene_t s;
    scene_open(&s, "auto");
    wefti_bell_t *bell = lane_of(&s.eb)->peer->bell;
    wefti_rng_t rng = {5};
    for (int round = 0; round < 20; round++) {
        shm_side_t c;
        shm_end_t ec, es, et, e2;
        if (round % 2)
            for (size_t i = 0; i < sizeof *bell; i++)
                ((volatile uint8_t *)bell)[i] = (uint8_t)wefti_rng_next(&rng);
        else
            memset((void *)bell, round % 4 ? 0 : 0xff, sizeof *bell);
        shm_side_open(&c, RING, "auto");
        shm_join(&c, &ec, &s.a, &es); /* c has not met a before: it opens its bell */
        shm_join(&s.a, &et, &c, &e2);
        CHECK(shm_send(&ec, "hi", 2) && shm_send(&es, "hi", 2) && shm_send(&et, "hi", 2) && shm_send(&e2, "hi", 2));
        SHM_UNTIL2(&s.a, &c, es.records && ec.records && et.records && e2.records);
        shm_end_close(&es);
        shm_end_close(&ec);
        shm_end_close(&et);
        shm_end_close(&e2);
        shm_side_close(&c);
    }
    scene_close(&s);
}

/* The bell says what is worth a look, and nobody depends on it. */
TEST(rings_that_somebody_takes_away_are_late_and_not_lost)
{
    for (int way = 0; way < 4; way++) {
        scene_t s;
        scene_open(&s, "auto");
        wefti_bell_t *bell = lane_of(&s.eb)->peer->bell;
        shm_xfer_t x;
        weft_iov_t iov = {&s, 1};
        uint64_t n = 0;
        if (way == 2) /* fill the ring: the other side is to say when there is room */
            while (shm_send(&s.fa, "0123456789abcdef", 16))
                n++;
        if (way == 3) { /* until it polls the lane no more */
            CHECK(shm_send(&s.fb, "hot", 3));
            SHM_UNTIL(&s.a, s.fa.records == 1);
            shm_sleep(&s.a, 0);
        }
        if (way == 2)
            SHM_UNTIL(&s.b, s.fb.records == n);
        else if (way == 1)
            CHECK_OK(shm_announce(&s.fb, &iov, 1, &x));
        else
            CHECK(shm_send(&s.fb, "record", 6));
        memset((void *)bell, 0, sizeof *bell);
        if (way == 0) /* one who sleeps whenever there is nothing to do */
            for (double end = test_now() + 30; !s.fa.records; shm_progress(&s.a)) {
                if (test_now() > end)
                    FAIL("the record is lost");
                shm_sleep(&s.a, 20);
            }
        SHM_UNTIL(&s.a, way == 2 ? s.fa.rooms : s.fa.records + s.fa.announced >= (way == 3 ? 2u : 1u));
        if (way == 1)
            s.fa.offer[0]->ops->refuse(s.fa.offer[0], true);
        scene_close(&s);
    }
}

/* --- what is kept --------------------------------------------------------------------------------------------------------- */

TEST(a_burst_of_announcements_leaves_little_behind)
{
    enum { N = 3000 };
    scene_t s;
    static shm_xfer_t x[N];
    static uint8_t byte;
    weft_iov_t iov = {&byte, 1};
    static wefti_pull_t *offers[N];
    scene_open(&s, "auto");
    for (int i = 0; i < N; i++) {
        while (shm_announce(&s.eb, &iov, 1, &x[i]))
            shm_progress(&s.a);
        SHM_UNTIL(&s.a, s.ea.announced);
        offers[i] = s.ea.offer[0];
        s.ea.announced = 0;
    }
    for (int i = 0; i < N; i++) {
        offers[i]->ops->refuse(offers[i], true);
        SHM_UNTIL2(&s.a, &s.b, x[i].done);
    }
    unsigned sends = ((wefti_shm_transport_t *)s.b.transport)->spare_sends.n;
    unsigned pulls = ((wefti_shm_transport_t *)s.a.transport)->spare_pulls.n;
    CHECK(sends && sends <= 256);
    CHECK(pulls && pulls <= 256);
    scene_close(&s);
}
