/* tests/wire/fabric_shm_door.c - addresses of lanes over shared memory that are nonsense, not the peer's, or name what is not
 * its own.
 *
 * Promise held here: an address that was not signed for this meeting is not read; one that was, and lies, makes us open nothing
 * but memory of Weft's; and whatever comes of it, nothing is left behind. fabric_shm_hostile.c has what a peer can do once it
 * has a lane. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "test.h"
#include "base/rng.h"
#include "lib/shm_side.h"

#define RING WEFTI_RING_SMALLEST

static wefti_shm_lane_t *lane_of(shm_end_t *e)
{
    return (wefti_shm_lane_t *)e->lane;
}

/* Where things stand in an address. */
enum {
    AT_PID = 4,
    AT_BELL_FD = 8,
    AT_WAKE_FD = 12,
    AT_BELL_INO = 16,
    AT_WAKE_INO = 24,
    AT_NONCE = 32,
    AT_PROBE = 40,
    AT_FLAGS = 48
};
enum { AT_RING_FD = 56, AT_RING_INO = 64 };

static void put32(uint8_t *addr, size_t at, uint32_t v)
{
    memcpy(addr + at, &v, sizeof v);
}

static void put64(uint8_t *addr, size_t at, uint64_t v)
{
    memcpy(addr + at, &v, sizeof v);
}

TEST(addresses_that_are_nonsense_are_refused_and_leave_nothing)
{
    shm_side_t a, b;
    shm_end_t ea, eb;
    wefti_rng_t rng = {77};
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_end_new(&b, &eb);
    shm_end_call(&a, &ea, &b); /* opens the transport */
    unsigned fds = shm_open_fds(), maps = shm_maps();
    for (int i = 0; i < 2000; i++) {
        shm_end_t e;
        uint8_t addr[256];
        memcpy(addr, eb.addr, eb.addr_n);
        size_t n = i % 4 ? eb.addr_n : wefti_rng_below(&rng, eb.addr_n + 8);
        /* Everything but the process number, which would make this test look at what belongs to others. */
        size_t at = 8 + wefti_rng_below(&rng, WEFTI_SHM_ADDR_SIZE - 8);
        if ((at >= AT_FLAGS && at < AT_RING_FD) || (at >= AT_NONCE && at < AT_PROBE))
            continue; /* any flags and any index will do; and a nonce is what the peer calls itself */
        if (at >= AT_PROBE && at < AT_FLAGS)
            put64(addr, AT_PROBE, at); /* not random: the nonce stands in several places of this process */
        else
            addr[at] ^= (uint8_t)(1 + wefti_rng_below(&rng, 255));
        shm_end_sign(&eb, addr); /* by one who is in his right, and lies all the same */
        shm_end_call(&a, &e, &b);
        weft_status_t st = e.lane->ops->lane_connect(e.lane, addr, n);
        if (st != WEFT_ERR_PROTOCOL && st != WEFT_ERR_UNREACHABLE)
            FAIL("byte %zu: %s (%s)", at, weft_status_name(st), weft_last_error());
        CHECK(*weft_last_error());
        CHECK(!e.lane->ops->reserve(e.lane, 8));
        shm_end_close(&e);
    }
    CHECK_EQ(shm_open_fds(), fds);
    CHECK_EQ(shm_maps(), maps);
    shm_end_close(&ea);
    shm_end_close(&eb);
    shm_side_close(&a);
    shm_side_close(&b);
}

TEST(an_address_that_was_changed_or_is_of_another_meeting_or_comes_back_is_refused_unread)
{
    shm_side_t a, b, c;
    shm_end_t eb, ec;
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_side_open(&c, RING, "auto");
    shm_end_new(&b, &eb);
    shm_end_new(&c, &ec);
    enum { CHANGED_BITS = 8 * (WEFTI_SHM_ADDR_SIZE + WEFTI_SECRET_SIZE), OF_ANOTHER, OWN, CROSSED, MET_BEFORE, N };
    for (int what = 0; what < N; what++) {
        shm_end_t e, other;
        uint8_t addr[256];
        shm_end_call(&a, &e, &b);
        shm_end_call(&a, &other, &b);
        memcpy(addr, eb.addr, eb.addr_n);
        if (what < CHANGED_BITS)
            addr[what / 8] ^= (uint8_t)(1u << what % 8);
        else if (what == OF_ANOTHER)
            memcpy(addr, ec.addr, ec.addr_n);
        else if (what == OWN)
            memcpy(addr, e.addr, e.addr_n);
        else if (what == CROSSED)
            memcpy(addr, other.addr, other.addr_n);
        else
            lane_of(&e)->pass->binding[0] ^= 1;
        CHECK_EQ(e.lane->ops->lane_connect(e.lane, addr, eb.addr_n), WEFT_ERR_UNREACHABLE);
        CHECK(strstr(weft_last_error(), "has not shown"));
        shm_end_close(&e);
        shm_end_close(&other);
    }
    shm_side_close(&a);
    shm_side_close(&b);
    shm_side_close(&c);
}

/* --- what is not ours is not opened --------------------------------------------------------------------------------------- */

/* Closing any descriptor of a file ends this process's POSIX locks on it, so a lock that stays says that it was not opened. */
static int locked_file(void)
{
    char path[] = "/tmp/weft-locked-XXXXXX";
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = mkstemp(path);
    CHECK(fd >= 0 && !unlink(path) && !ftruncate(fd, 1 << 20) && !fcntl(fd, F_SETLK, &lock));
    return fd;
}

static bool still_locked(int fd)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(fd, F_GETLK, &lock) || lock.l_type == F_UNLCK);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return !WEXITSTATUS(status);
}

static uint64_t inode_of(int fd)
{
    struct stat info;
    CHECK(!fstat(fd, &info));
    return (uint64_t)info.st_ino;
}

TEST(files_that_a_peer_names_are_not_opened_and_keep_their_locks)
{
    shm_side_t a, b;
    shm_end_t eb;
    void *map;
    char byte;
    int fd = locked_file();
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_end_new(&b, &eb);
    CHECK(still_locked(fd));
    const size_t at[] = {AT_BELL_FD, AT_WAKE_FD, AT_RING_FD}, ino_at[] = {AT_BELL_INO, AT_WAKE_INO, AT_RING_INO};
    for (int i = 0; i < 3; i++) {
        shm_end_t e;
        uint8_t addr[256];
        memcpy(addr, eb.addr, eb.addr_n);
        put32(addr, at[i], (uint32_t)fd);
        put64(addr, ino_at[i], inode_of(fd));
        shm_end_sign(&eb, addr);
        shm_end_call(&a, &e, &b);
        CHECK_EQ(e.lane->ops->lane_connect(e.lane, addr, eb.addr_n), WEFT_ERR_UNREACHABLE);
        shm_end_close(&e);
        CHECK(still_locked(fd));
    }
    for (int write = 0; write < 2; write++)
        CHECK_EQ(wefti_region_view(getpid(), fd, inode_of(fd), 1, write, &map), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(wefti_region_read(getpid(), fd, inode_of(fd), &byte, 1), WEFT_ERR_UNREACHABLE);
    /* nor as a door */
    uint8_t caps[WEFTI_CAPS_MAX], addr[WEFTI_LANE_ADDR_MAX];
    size_t n = b.transport->ops->caps(b.transport, WEFTI_SIDE_LISTENER, caps);
    put32(caps, WEFTI_SHM_CAPS_SIZE + 4, (uint32_t)fd);
    put64(caps, WEFTI_SHM_CAPS_SIZE + 8, inode_of(fd));
    wefti_meeting_t with = {.side = WEFTI_SIDE_DIALLER, .caps = caps, .caps_n = n};
    wefti_lane_t *lane;
    CHECK_EQ(a.transport->ops->lane_new(a.transport, &with, NULL, addr, &n, &lane), WEFT_ERR_UNREACHABLE);
    CHECK(still_locked(fd));
    close(dup(fd));
    CHECK(!still_locked(fd)); /* that is how it would have been noticed */
    close(fd);
    shm_side_close(&a);
    shm_side_close(&b);
}

TEST(a_pipe_that_is_not_the_peers_is_not_written_to)
{
    shm_side_t a, b;
    shm_end_t e, eb;
    int ends[2];
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_end_new(&b, &eb);
    CHECK(!pipe(ends));
    put32(eb.addr, AT_WAKE_FD, (uint32_t)ends[0]); /* with the inode of its own */
    shm_end_sign(&eb, eb.addr);
    shm_end_call(&a, &e, &b);
    CHECK_EQ(e.lane->ops->lane_connect(e.lane, eb.addr, eb.addr_n), WEFT_ERR_UNREACHABLE);
    shm_side_close(&a);
    shm_side_close(&b);
}

TEST(memory_that_could_shrink_is_not_mapped)
{
    shm_side_t a, b;
    shm_end_t ea, honest;
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_end_new(&b, &honest);
    shm_end_call(&a, &ea, &b);
    int fd = memfd_create("weft-unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, WEFTI_RING_PAGE + RING));
    put32(honest.addr, AT_RING_FD, (uint32_t)fd);
    put64(honest.addr, AT_RING_INO, inode_of(fd));
    shm_end_sign(&honest, honest.addr);
    CHECK_EQ(ea.lane->ops->lane_connect(ea.lane, honest.addr, honest.addr_n), WEFT_ERR_PROTOCOL);
    CHECK(strstr(weft_last_error(), "sealed"));
    close(fd);
    shm_side_close(&a);
    shm_side_close(&b);
}

TEST(a_ring_has_one_producer_only)
{
    shm_side_t a, b;
    shm_end_t ea, eb, thief;
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_join(&a, &ea, &b, &eb);
    shm_end_call(&a, &thief, &b);
    CHECK_EQ(thief.lane->ops->lane_connect(thief.lane, eb.addr, eb.addr_n), WEFT_ERR_PROTOCOL);
    shm_side_close(&a);
    shm_side_close(&b);
}

/* The name of a runtime is a number that others can say. */
TEST(a_peer_that_takes_the_name_of_another_keeps_nobody_out)
{
    shm_side_t a, liar, honest;
    shm_end_t el, eh, ea1, ea2;
    static uint64_t name;
    shm_side_open(&a, RING, "auto");
    shm_side_open(&liar, RING, "auto");
    shm_side_open(&honest, RING, "auto");
    shm_end_new(&honest, &eh);
    shm_end_new(&liar, &el);
    memcpy(&name, eh.addr + AT_NONCE, sizeof name);
    put64(el.addr, AT_NONCE, name);
    put64(el.addr, AT_PROBE, (uint64_t)(uintptr_t)&name);
    shm_end_sign(&el, el.addr);
    shm_end_call(&a, &ea1, &liar);
    shm_end_call(&a, &ea2, &honest);
    CHECK_OK(ea1.lane->ops->lane_connect(ea1.lane, el.addr, el.addr_n));
    CHECK_OK(ea2.lane->ops->lane_connect(ea2.lane, eh.addr, eh.addr_n));
    CHECK(lane_of(&ea1)->peer != lane_of(&ea2)->peer);
    CHECK_OK(eh.lane->ops->lane_connect(eh.lane, ea2.addr, ea2.addr_n));
    CHECK(shm_send(&ea2, "you", 3));
    SHM_UNTIL2(&a, &honest, eh.records == 1);
    for (int i = 0; i < 2; i++) /* in either order */
        shm_end_close(i ? &ea2 : &ea1);
    shm_side_close(&a);
    shm_side_close(&liar);
    shm_side_close(&honest);
    CHECK_EQ(shm_maps(), 0);
}
