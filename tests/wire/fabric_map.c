/* tests/wire/fabric_map.c - memory that the peer of a lane maps: two processes on one memory, what outlives what, and
 * map handles that are invalid.
 *
 * Held here: both sides see what either writes; a mapping stays, whatever becomes of lane, transport and owner; a map_handle
 * that is nonsense, or whose memory is gone, too short or could shrink, gives a status and leaves neither mapping nor
 * descriptor behind. Who is another user by the time it maps is turned away by the kernel; that needs root, and is skipped
 * without. */
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "test.h"
#include "lanes.h"
#include "lib/ranges.h"

#define MAPPED (1 * MB + 4096)

/* --- two processes ------------------------------------------------------------------------------------------------------ */

typedef struct map_handle {
    uint8_t bytes[WEFTI_MAP_HANDLE_MAX];
    size_t n;
} map_handle_t;

static map_handle_t expose(const shm_end_t *e, const range_t *r)
{
    map_handle_t t;
    memset(&t, 0, sizeof t);
    t.n = e->lane->ops->expose(e->lane, r->fd, r->n, t.bytes);
    CHECK(t.n && t.n <= WEFTI_MAP_HANDLE_MAX);
    return t;
}

static weft_status_t map(const shm_end_t *e, const map_handle_t *t, size_t n, uint8_t **at_out)
{
    void *at = NULL;
    weft_status_t st = e->lane->ops->map(e->lane, t->bytes, t->n, n, &at);
    CHECK(!st == (at != NULL));
    *at_out = at;
    return st;
}

/* Exposes memory, says so, and answers: 'f' fill it anew, 'c' close the descriptor, 'l' the lane, 'r' the transport too, 'q'
 * quit. */
static void owner(int fd, void *arg)
{
    static shm_side_t s; /* it ends without closing them: they are not lost */
    static shm_end_t e;
    range_t r;
    char what = 0;
    (void)arg;
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    range_map(&r, MAPPED, NULL, 1);
    map_handle_t t = expose(&e, &r);
    CHECK(write(fd, &t, sizeof t) == (ssize_t)sizeof t);
    while (read(fd, &what, 1) == 1 && what != 'q') {
        if (what == 'f') {
            CHECK_EQ(r.at[MAPPED - 1], 0x5a); /* the peer's */
            fill(r.at, MAPPED, 2);
        } else if (what == 'c') {
            close(r.fd);
        } else if (what == 'l') {
            shm_end_close(&e);
        } else if (what == 'r') {
            shm_side_close(&s);
            munmap(r.at, MAPPED);
        }
        shm_tell(fd);
    }
}

static void ask(int fd, char what)
{
    CHECK(write(fd, &what, 1) == 1);
    shm_hear(fd);
}

static bool holds(const uint8_t *at, unsigned seed)
{
    static uint8_t same[MAPPED];
    fill(same, MAPPED, seed);
    return !memcmp(at, same, MAPPED);
}

typedef struct mapper {
    shm_side_t s;
    shm_end_t e;
    map_handle_t map_handle;
    pid_t pid;
    int fd;
} mapper_t;

static void mapper_open(mapper_t *m)
{
    m->pid = shm_child(owner, NULL, &m->fd);
    shm_side_open(&m->s, RING, "auto");
    shm_meet(&m->s, &m->e, m->fd);
    CHECK(recv(m->fd, &m->map_handle, sizeof m->map_handle, MSG_WAITALL) == (ssize_t)sizeof m->map_handle);
}

static void mapper_close(mapper_t *m)
{
    shm_end_close(&m->e);
    shm_side_close(&m->s);
    CHECK_EQ(shm_maps(), 0);
}

TEST(both_processes_see_what_either_writes)
{
    mapper_t m;
    uint8_t *at, *again;
    mapper_open(&m);
    unsigned maps = shm_maps(), fds = shm_open_fds();
    CHECK_OK(map(&m.e, &m.map_handle, MAPPED, &at));
    CHECK_EQ(shm_open_fds(), fds);
    CHECK_EQ(shm_maps(), maps + 1);
    CHECK(holds(at, 1));
    at[MAPPED - 1] = 0x5a;
    ask(m.fd, 'f');
    CHECK(holds(at, 2));
    /* A map_handle is good for more than one mapping, and they are one memory. */
    CHECK_OK(map(&m.e, &m.map_handle, MAPPED, &again));
    CHECK(again != at && holds(again, 2));
    again[7] ^= 1;
    CHECK_EQ(at[7], again[7]);
    m.e.lane->ops->unmap(again, MAPPED);
    at[9] ^= 1;
    m.e.lane->ops->unmap(at, MAPPED);
    CHECK_EQ(shm_maps(), maps);
    CHECK(write(m.fd, "q", 1) == 1);
    shm_child_end(m.pid);
    mapper_close(&m);
}

TEST(a_mapping_outlives_descriptor_lane_transport_and_owner)
{
    mapper_t m;
    uint8_t *at;
    mapper_open(&m);
    CHECK_OK(map(&m.e, &m.map_handle, MAPPED, &at));
    ask(m.fd, 'c');
    CHECK(holds(at, 1));
    ask(m.fd, 'l');
    CHECK(holds(at, 1));
    SHM_UNTIL(&m.s, m.e.failed);
    ask(m.fd, 'r');
    CHECK(holds(at, 1));
    kill_now(m.pid);
    CHECK(holds(at, 1));
    shm_end_close(&m.e);
    shm_side_close(&m.s);
    CHECK(holds(at, 1));
    fill(at, MAPPED, 3);
    CHECK(holds(at, 3));
    CHECK_EQ(shm_maps(), 1);
    wefti_shm_ops.unmap(at, MAPPED);
    CHECK_EQ(shm_maps(), 0);
}

TEST(a_map_handle_of_memory_that_is_gone_maps_nothing)
{
    for (int how = 0; how < 3; how++) {
        mapper_t m;
        uint8_t *at;
        mapper_open(&m);
        if (how == 0)
            ask(m.fd, 'c');
        else if (how == 1)
            ask(m.fd, 'l');
        else
            kill_now(m.pid);
        if (how == 1)
            SHM_UNTIL(&m.s, m.e.failed);
        unsigned maps = shm_maps(), fds = shm_open_fds();
        CHECK_EQ(map(&m.e, &m.map_handle, MAPPED, &at), WEFT_ERR_UNREACHABLE);
        if (how == 1) {
            range_t r;
            uint8_t map_handle[WEFTI_MAP_HANDLE_MAX];
            range_map(&r, MB, NULL, 1);
            CHECK_EQ(m.e.lane->ops->expose(m.e.lane, r.fd, r.n, map_handle), 0); /* nobody is there to map it */
            close(r.fd);
            munmap(r.at, r.n);
        }
        CHECK_EQ(shm_open_fds(), fds);
        CHECK_EQ(shm_maps(), maps);
        if (how < 2) {
            CHECK(write(m.fd, "q", 1) == 1);
            shm_child_end(m.pid);
        }
        mapper_close(&m);
    }
}

static void other_user(int fd, void *arg)
{
    static shm_side_t s;
    static shm_end_t e;
    map_handle_t t;
    uint8_t *at;
    (void)arg;
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    CHECK(recv(fd, &t, sizeof t, MSG_WAITALL) == (ssize_t)sizeof t);
    CHECK_OK(map(&e, &t, MAPPED, &at));
    e.lane->ops->unmap(at, MAPPED);
    CHECK(!setgid(65534) && !setuid(65534));
    unsigned maps = shm_maps();
    CHECK_EQ(map(&e, &t, MAPPED, &at), WEFT_ERR_UNREACHABLE);
    CHECK(strstr(weft_last_error(), "Permission denied"));
    CHECK_EQ(shm_maps(), maps);
}

TEST(another_user_maps_nothing)
{
    if (geteuid())
        SKIP("needs root to become another user");
    shm_side_t s;
    shm_end_t e;
    range_t r;
    int fd;
    pid_t pid = shm_child(other_user, NULL, &fd);
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    range_map(&r, MAPPED, NULL, 1);
    map_handle_t t = expose(&e, &r);
    CHECK(write(fd, &t, sizeof t) == (ssize_t)sizeof t);
    shm_child_end(pid);
    shm_end_close(&e);
    shm_side_close(&s);
}

/* --- map handles that are invalid ---------------------------------------------------------------------------------- */

/* As expose.c writes it: what a peer that lies would send. */
static map_handle_t forge(int fd, uint64_t ino, uint64_t n)
{
    map_handle_t t = {.n = 24};
    uint32_t magic = 0x314b4354, fd32 = (uint32_t)fd;
    memcpy(t.bytes, &magic, 4);
    memcpy(t.bytes + 4, &fd32, 4);
    memcpy(t.bytes + 8, &ino, 8);
    memcpy(t.bytes + 16, &n, 8);
    return t;
}

static uint64_t inode(int fd)
{
    struct stat info;
    CHECK(!fstat(fd, &info));
    return (uint64_t)info.st_ino;
}

/* Nothing but the status is to be seen of it. */
static void fails(const scene_t *s, const map_handle_t *t, size_t n, weft_status_t status)
{
    uint8_t *at;
    unsigned maps = shm_maps(), fds = shm_open_fds();
    weft_status_t st = map(&s->eb, t, n, &at);
    CHECK_EQ(st, status);
    CHECK(*weft_last_error());
    CHECK_EQ(shm_maps(), maps);
    CHECK_EQ(shm_open_fds(), fds);
}

TEST(a_forged_map_handle_that_is_right_is_a_map_handle)
{
    scene_t s;
    range_t r;
    uint8_t *at;
    scene_open(&s, "kernel");
    range_map(&r, MB, NULL, 4);
    map_handle_t t = forge(r.fd, inode(r.fd), MB), real = expose(&s.ea, &r);
    CHECK(t.n == real.n && !memcmp(t.bytes, real.bytes, t.n)); /* or the tests below prove nothing */
    CHECK_OK(map(&s.eb, &t, MB, &at));
    s.eb.lane->ops->unmap(at, MB);
    close(r.fd);
    munmap(r.at, MB);
    scene_close(&s);
}

TEST(bytes_that_are_no_map_handle_map_nothing)
{
    scene_t s;
    range_t r;
    scene_open(&s, "kernel");
    range_map(&r, MB, NULL, 4);
    map_handle_t good = expose(&s.ea, &r), t;
    for (size_t n = 0; n <= WEFTI_MAP_HANDLE_MAX; n++) {
        t = good;
        t.n = n;
        if (n != good.n)
            fails(&s, &t, MB, WEFT_ERR_PROTOCOL);
    }
    for (size_t bit = 0; bit < 8 * good.n; bit++) {
        t = good;
        t.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        bool place = bit >= 32 && bit < 128; /* which descriptor, which inode: a place where it is not */
        fails(&s, &t, MB, place && bit != 63 ? WEFT_ERR_UNREACHABLE : WEFT_ERR_PROTOCOL);
    }
    wefti_rng_t rng = {11};
    for (int i = 0; i < 2000; i++) {
        for (size_t k = 0; k < sizeof t.bytes; k++)
            t.bytes[k] = (uint8_t)wefti_rng_next(&rng);
        t.n = wefti_rng_below(&rng, sizeof t.bytes + 1);
        fails(&s, &t, MB, WEFT_ERR_PROTOCOL);
    }
    static const size_t lengths[] = {0, 1, MB - 1, MB + 1, 2 * MB, SIZE_MAX, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        fails(&s, &good, lengths[i], WEFT_ERR_PROTOCOL);
    close(r.fd);
    munmap(r.at, MB);
    scene_close(&s);
}

TEST(a_number_that_means_something_else_by_now_maps_nothing)
{
    scene_t s;
    range_t r;
    int ends[2];
    scene_open(&s, "kernel");
    range_map(&r, MB, NULL, 4);
    map_handle_t t = expose(&s.ea, &r);
    CHECK(!pipe(ends));
    int others[] = {memfd_new(MB),
                    ends[0],
                    ends[1],
                    socket(AF_UNIX, SOCK_STREAM, 0),
                    epoll_create1(0),
                    open("/dev/null", O_RDWR),
                    open("/dev/zero", O_RDWR),
                    open("/proc/self/exe", O_RDONLY),
                    open("/tmp", O_RDONLY | O_DIRECTORY)};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        CHECK(others[i] >= 0 && dup2(others[i], r.fd) == r.fd);
        fails(&s, &t, MB, WEFT_ERR_UNREACHABLE);
        /* Nor does it with the inode of what it is now, unless that is memory. */
        map_handle_t same = forge(r.fd, inode(r.fd), MB);
        if (i)
            fails(&s, &same, MB, WEFT_ERR_UNREACHABLE);
    }
    close(r.fd);
    fails(&s, &t, MB, WEFT_ERR_UNREACHABLE);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        close(others[i]);
    munmap(r.at, MB);
    scene_close(&s);
}

static int memfd_of(size_t n, int flags, int seals)
{
    int fd = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | (unsigned)flags);
    if (fd < 0)
        return -1;
    CHECK(!ftruncate(fd, (off_t)n) && (!seals || !fcntl(fd, F_ADD_SEALS, seals)));
    return fd;
}

/* By expose() at the owner, who should know better, and by map() at whoever is lied to. */
TEST(memory_that_could_shrink_or_is_too_short_is_neither_exposed_nor_mapped)
{
    static const struct {
        size_t bytes;
        int flags, seals;
        weft_status_t status;
    } cases[] = {
        {MB, 0, 0, WEFT_ERR_PROTOCOL},
        {MB, 0, F_SEAL_GROW, WEFT_ERR_PROTOCOL},
        {MB - 1, 0, F_SEAL_SHRINK, WEFT_ERR_PROTOCOL},
        {0, 0, F_SEAL_SHRINK, WEFT_ERR_PROTOCOL},
        {MB, 0, F_SEAL_SHRINK | F_SEAL_WRITE, WEFT_ERR_PROTOCOL},
        {MB, 0, F_SEAL_SHRINK | 0x10 /* F_SEAL_FUTURE_WRITE */, WEFT_ERR_PROTOCOL},
        {2 * MB, MFD_HUGETLB, F_SEAL_SHRINK, WEFT_ERR_UNREACHABLE},
        {MB, 0, F_SEAL_SHRINK, WEFT_OK},
        {2 * MB, 0, F_SEAL_SHRINK, WEFT_OK}, /* the beginning of it */
    };
    scene_t s;
    scene_open(&s, "kernel");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t map_handle[WEFTI_MAP_HANDLE_MAX], *at;
        int fd = memfd_of(cases[i].bytes, cases[i].flags, cases[i].seals);
        if (fd < 0)
            continue; /* a kernel without huge pages */
        CHECK(!s.ea.lane->ops->expose(s.ea.lane, fd, MB, map_handle) == (cases[i].status != WEFT_OK));
        map_handle_t t = forge(fd, inode(fd), MB);
        if (cases[i].status) {
            fails(&s, &t, MB, cases[i].status);
        } else {
            CHECK_OK(map(&s.eb, &t, MB, &at));
            memset(at, 1, MB);
            s.eb.lane->ops->unmap(at, MB);
        }
        close(fd);
    }
    uint8_t map_handle[WEFTI_MAP_HANDLE_MAX];
    int fd = memfd_new(MB);
    CHECK_EQ(s.ea.lane->ops->expose(s.ea.lane, fd, 0, map_handle), 0);
    CHECK_EQ(s.ea.lane->ops->expose(s.ea.lane, -1, MB, map_handle), 0);
    close(fd);
    CHECK_EQ(s.ea.lane->ops->expose(s.ea.lane, fd, MB, map_handle), 0);
    scene_close(&s);
}

TEST(where_descriptors_or_addresses_run_out_the_status_says_so)
{
    scene_t s;
    range_t r;
    struct rlimit was, none = {0, 0};
    uint8_t *at;
    scene_open(&s, "kernel");
    range_map(&r, MB, NULL, 4);
    map_handle_t t = expose(&s.ea, &r);
    unsigned maps = shm_maps();
    CHECK(!getrlimit(RLIMIT_NOFILE, &was));
    none.rlim_max = was.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    CHECK_EQ(map(&s.eb, &t, MB, &at), WEFT_ERR_LIMIT);
    CHECK(!setrlimit(RLIMIT_NOFILE, &was));
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    CHECK(!getrlimit(RLIMIT_AS, &was));
    none.rlim_max = was.rlim_max;
    CHECK(!setrlimit(RLIMIT_AS, &none));
    CHECK_EQ(map(&s.eb, &t, MB, &at), WEFT_ERR_NOMEM);
    CHECK(!setrlimit(RLIMIT_AS, &was));
#endif
    CHECK_EQ(shm_maps(), maps);
    CHECK_OK(map(&s.eb, &t, MB, &at));
    s.eb.lane->ops->unmap(at, MB);
    close(r.fd);
    munmap(r.at, MB);
    scene_close(&s);
}

/* --- other transports ----------------------------------------------------------------------------------------------------- */

TEST(transports_of_a_network_map_nothing)
{
    static const char *const transports[] = {"shm", "tcp", "ucx"};
    for (int i = 0; i < 3; i++) {
        lanes_side_t s;
        lanes_side_open(&s, transports[i], NULL);
        const wefti_transport_ops_t *ops = s.transport->ops;
        CHECK_EQ(ops->expose != NULL, i == 0);
        CHECK_EQ(ops->map != NULL, i == 0);
        CHECK_EQ(ops->unmap != NULL, i == 0);
        lanes_side_close(&s);
    }
}
