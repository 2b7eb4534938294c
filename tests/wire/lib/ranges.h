/* tests/wire/lib/ranges.h - ranges of shared memory, and two sides of the shm transport between which payloads in them move.
 *
 * Functions for the tests of shared memory; test.h comes first. Failures end the test. */
#ifndef WEFT_TESTS_RANGES_H
#define WEFT_TESTS_RANGES_H

#include <fcntl.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "shm_side.h"

#define RING 65536u
#define KB ((size_t)1024)
#define MB ((size_t)1 << 20)

typedef struct range {
    uint8_t *at;
    size_t n;
    int fd;
    uint64_t id;
} range_t;

static inline wefti_shm_transport_t *transport_of(shm_side_t *s)
{
    return (wefti_shm_transport_t *)s->transport;
}

static inline int memfd_new(size_t n)
{
    int fd = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)n) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    return fd;
}

static inline void fill(void *p, size_t n, unsigned seed)
{
    wefti_rng_t rng = {seed};
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = wefti_rng_next(&rng);
        memcpy((uint8_t *)p + i, &word, n - i < 8 ? n - i : 8);
    }
}

static inline void range_map(range_t *r, size_t n, void *where, unsigned seed)
{
    r->n = n;
    r->fd = memfd_new(n);
    r->at = mmap(where, n, PROT_READ | PROT_WRITE, MAP_SHARED | (where ? MAP_FIXED : 0), r->fd, 0);
    CHECK(r->at != MAP_FAILED);
    fill(r->at, n, seed);
}

static inline void range_new(shm_side_t *s, range_t *r, size_t n, unsigned seed)
{
    range_map(r, n, NULL, seed);
    CHECK_OK(wefti_shm_share(s->transport, r->at, n, r->fd, &r->id));
    CHECK(r->id);
}

static inline void range_free(shm_side_t *s, range_t *r)
{
    wefti_shm_unshare(s->transport, r->id);
    close(r->fd);
    munmap(r->at, r->n);
}

static inline void kill_now(pid_t pid)
{
    CHECK(!kill(pid, SIGKILL));
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* a sends, b receives. */
typedef struct scene {
    shm_side_t a, b;
    shm_end_t ea, eb;
} scene_t;

static inline void scene_open(scene_t *s, const char *copy)
{
    memset(s, 0, sizeof *s);
    shm_side_open(&s->a, RING, copy);
    shm_side_open(&s->b, RING, copy);
    shm_join(&s->a, &s->ea, &s->b, &s->eb);
}

static inline void scene_close(scene_t *s)
{
    shm_end_close(&s->ea);
    shm_end_close(&s->eb);
    CHECK(transport_of(&s->b)->n_mapped == 0);
    CHECK(transport_of(&s->b)->mapped_bytes == 0);
    shm_side_close(&s->a);
    shm_side_close(&s->b);
    CHECK_EQ(shm_maps(), 0);
}

/* Ranges the receiver knows of. */
static inline unsigned known(scene_t *s)
{
    return ((wefti_shm_lane_t *)s->eb.lane)->known.n;
}

static inline unsigned offer(scene_t *s, const weft_iov_t *iov, size_t iov_n, shm_xfer_t *x)
{
    unsigned before = s->eb.announced;
    CHECK_OK(shm_announce(&s->ea, iov, iov_n, x));
    SHM_UNTIL(&s->b, s->eb.announced > before);
    if (s->eb.announced == SHM_OFFERS)
        s->eb.announced = 0;
    return before;
}

/* Send the pieces and compare; how many of the bytes came out of mappings. */
static inline uint64_t move(scene_t *s, const weft_iov_t *iov, size_t iov_n)
{
    shm_xfer_t sent, got;
    uint64_t total = 0, before = transport_of(&s->b)->mapped_copies;
    for (size_t i = 0; i < iov_n; i++)
        total += iov[i].len;
    uint8_t *to = malloc(total);
    CHECK(to);
    memset(to, 0xee, total);
    weft_iov_t cut[3] = {{to, total / 3}, {to + total / 3, 1}, {to + total / 3 + 1, total - total / 3 - 1}};
    unsigned i = offer(s, iov, iov_n, &sent);
    shm_pull(&s->eb, i, cut, 3, total, &got);
    SHM_UNTIL2(&s->a, &s->b, got.done && sent.done);
    CHECK_EQ(got.status, WEFT_OK);
    CHECK_EQ(sent.status, WEFT_OK);
    uint8_t *at = to;
    for (size_t k = 0; k < iov_n; at += iov[k++].len)
        if (memcmp(at, iov[k].base, iov[k].len))
            FAIL("piece %zu of %zu is not what was sent", k, iov_n);
    free(to);
    return transport_of(&s->b)->mapped_copies - before;
}

static inline uint64_t move1(scene_t *s, void *p, size_t n)
{
    weft_iov_t iov = {p, n};
    return move(s, &iov, 1);
}

#endif
