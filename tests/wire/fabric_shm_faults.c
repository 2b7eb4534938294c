/* tests/wire/fabric_shm_faults.c - the shm transport when the process on the other side is killed, stopped, becomes another
 * program, or may not be read.
 *
 * The wire tells a runtime that its peer died; here there is none, so these tests close the lane where a runtime would. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "test.h"
#include "lib/shm_side.h"

#define RING 65536u
#define BIG (UINT64_C(96) << 20)

typedef struct story {
    const char *copy;
    void (*then)(shm_side_t *s, shm_end_t *e, int fd); /* what the sender does after announcing */
} story_t;

static void *big_memory(void)
{
    void *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* A child that announces BIG bytes. */
static void sender(int fd, void *arg)
{
    const story_t *story = arg;
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    weft_iov_t iov = {big_memory(), BIG};
    shm_side_open(&s, RING, story->copy);
    shm_meet(&s, &e, fd);
    CHECK_OK(shm_announce(&e, &iov, 1, &x));
    story->then(&s, &e, fd);
}

/* A child that pulls BIG bytes, and says so after the first ones. */
static void receiver(int fd, void *arg)
{
    const story_t *story = arg;
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    weft_iov_t iov = {big_memory(), BIG};
    shm_side_open(&s, RING, story->copy);
    shm_meet(&s, &e, fd);
    SHM_UNTIL(&s, e.announced);
    shm_pull(&e, 0, &iov, 1, BIG, &x);
    for (int i = 0; i < 3; i++)
        shm_progress(&s);
    shm_tell(fd);
    shm_hear(fd); /* stopped or killed here, or told to go on */
    SHM_UNTIL(&s, x.done && e.failed);
    CHECK_EQ(x.status, WEFT_ERR_PEER);
    CHECK_EQ(e.why, WEFT_ERR_PEER);
    shm_end_close(&e);
    shm_side_close(&s);
}

static void drive_for_ever(shm_side_t *s, shm_end_t *e, int fd)
{
    (void)e;
    (void)fd;
    for (double end = shm_now() + 60; shm_now() < end;)
        shm_progress(s);
}

static void become_another(shm_side_t *s, shm_end_t *e, int fd)
{
    (void)s;
    (void)e;
    shm_hear(fd);
    execlp("sleep", "sleep", "30", (char *)NULL);
}

typedef struct pulled {
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    weft_iov_t iov;
    pid_t pid;
    int fd;
} pulled_t;

/* Begin to pull BIG bytes from a child that then does `then`. */
static void pull_from(pulled_t *p, const char *copy, void (*then)(shm_side_t *s, shm_end_t *e, int fd))
{
    static story_t story;
    story = (story_t){copy, then};
    p->iov = (weft_iov_t){big_memory(), BIG};
    p->pid = shm_child(sender, &story, &p->fd);
    shm_side_open(&p->s, RING, copy);
    shm_meet(&p->s, &p->e, p->fd);
    SHM_UNTIL(&p->s, p->e.announced);
    shm_pull(&p->e, 0, &p->iov, 1, BIG, &p->x);
    for (int i = 0; i < 3; i++)
        shm_progress(&p->s);
    CHECK_EQ(p->x.done, 0);
}

static void pulled_close(pulled_t *p)
{
    shm_end_close(&p->e);
    CHECK_EQ(p->x.done, 1);
    shm_side_close(&p->s);
    CHECK_EQ(shm_maps(), 0);
}

static void kill_now(pid_t pid)
{
    CHECK(!kill(pid, SIGKILL));
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

TEST(a_sender_killed_mid_copy_ends_the_pull_with_peer_error)
{
    pulled_t p;
    pull_from(&p, "kernel", drive_for_ever);
    kill_now(p.pid);
    SHM_UNTIL(&p.s, p.x.done && p.e.failed);
    CHECK_EQ(p.x.status, WEFT_ERR_PEER);
    CHECK_EQ(p.e.why, WEFT_ERR_PEER);
    pulled_close(&p);
}

TEST(a_sender_killed_mid_stream_leaves_the_pull_to_the_close)
{
    pulled_t p;
    pull_from(&p, "ring", drive_for_ever);
    for (int i = 0; i < 100; i++)
        shm_progress(&p.s);
    kill_now(p.pid);
    for (int i = 0; i < 1000; i++)
        shm_progress(&p.s);
    /* Sending to the dead does no harm either. */
    for (int i = 0; i < 5000 && shm_send(&p.e, "anyone there?", 13); i++)
        ;
    pulled_close(&p);
    CHECK_EQ(p.x.status, WEFT_ERR_CANCELLED);
}

TEST(a_sender_stopped_mid_copy_does_not_hold_up_the_copy)
{
    pulled_t p;
    pull_from(&p, "kernel", drive_for_ever);
    CHECK(!kill(p.pid, SIGSTOP));
    SHM_UNTIL(&p.s, p.x.done);
    CHECK_EQ(p.x.status, WEFT_OK);
    kill_now(p.pid);
    pulled_close(&p);
}

TEST(a_sender_stopped_mid_stream_is_given_up_by_the_close)
{
    pulled_t p;
    pull_from(&p, "ring", drive_for_ever);
    CHECK(!kill(p.pid, SIGSTOP));
    for (int i = 0; i < 1000; i++)
        shm_progress(&p.s);
    CHECK_EQ(p.x.done, 0);
    pulled_close(&p);
    CHECK_EQ(p.x.status, WEFT_ERR_CANCELLED);
    kill_now(p.pid);
}

TEST(a_sender_that_became_another_program_gives_no_good_bytes)
{
    pulled_t p;
    char path[64], exe[64];
    pull_from(&p, "kernel", become_another);
    snprintf(path, sizeof path, "/proc/%d/comm", (int)p.pid);
    shm_tell(p.fd);
    for (double end = shm_now() + 5; shm_now() < end;) {
        FILE *f = fopen(path, "r");
        bool is = f && fgets(exe, sizeof exe, f) && !strncmp(exe, "sleep", 5);
        if (f)
            fclose(f);
        if (is)
            break;
    }
    SHM_UNTIL(&p.s, p.x.done && p.e.failed);
    CHECK_EQ(p.x.status, WEFT_ERR_PEER);
    kill_now(p.pid);
    pulled_close(&p);
}

/* The other way round: this process sends. */
static void send_to(pulled_t *p, const char *copy)
{
    static story_t story;
    story = (story_t){copy, NULL};
    p->iov = (weft_iov_t){big_memory(), BIG};
    p->pid = shm_child(receiver, &story, &p->fd);
    shm_side_open(&p->s, RING, copy);
    shm_meet(&p->s, &p->e, p->fd);
    CHECK_OK(shm_announce(&p->e, &p->iov, 1, &p->x));
    shm_hear(p->fd);
    shm_progress(&p->s);
    CHECK_EQ(p->x.done, 0);
}

TEST(a_receiver_killed_midway_leaves_the_send_to_the_close)
{
    const char *copies[] = {"kernel", "ring"};
    for (int way = 0; way < 2; way++) {
        pulled_t p;
        send_to(&p, copies[way]);
        kill_now(p.pid);
        for (int i = 0; i < 1000; i++)
            shm_progress(&p.s);
        CHECK_EQ(p.x.done, 0);
        pulled_close(&p);
        CHECK_EQ(p.x.status, WEFT_ERR_CANCELLED);
    }
}

TEST(a_receiver_stopped_midway_finds_the_sender_gone_when_it_goes_on)
{
    const char *copies[] = {"kernel", "ring"};
    for (int way = 0; way < 2; way++) {
        pulled_t p;
        send_to(&p, copies[way]);
        CHECK(!kill(p.pid, SIGSTOP));
        CHECK_EQ(waitpid(p.pid, NULL, WUNTRACED), p.pid);
        for (int i = 0; i < 1000; i++)
            shm_progress(&p.s);
        shm_end_close(&p.e);
        CHECK_EQ(p.x.done, 1);
        CHECK_EQ(p.x.status, WEFT_ERR_CANCELLED);
        memset(p.iov.base, 0xff, 4096);
        shm_tell(p.fd);
        CHECK(!kill(p.pid, SIGCONT));
        shm_side_close(&p.s);
        shm_child_end(p.pid);
    }
}

/* --- who may --------------------------------------------------------------------------------------------------------------- */

static void stranger(int fd, void *arg)
{
    (void)arg;
    shm_side_t s;
    uint8_t caps[WEFTI_CAPS_MAX], theirs[WEFTI_CAPS_MAX], addr[WEFTI_LANE_ADDR_MAX];
    wefti_lane_t *lane;
    void *map;
    uint32_t door[2];
    uint64_t ino;
    if (setgid(65534) || setuid(65534))
        exit(1);
    prctl(PR_SET_DUMPABLE, 1);
    shm_side_open(&s, RING, "auto");
    size_t n = s.transport->ops->caps(s.transport, WEFTI_SIDE_DIALLER, caps);
    CHECK(n > 1);
    CHECK(write(fd, caps, n) == (ssize_t)n);
    ssize_t got = read(fd, theirs, sizeof theirs);
    CHECK_EQ(got, WEFTI_SHM_CAPS_SIZE + WEFTI_SHM_DOOR_SIZE);
    /* neither the key behind the door, nor anything else of that process */
    wefti_meeting_t with = {.side = WEFTI_SIDE_DIALLER, .caps = theirs, .caps_n = (size_t)got};
    CHECK_EQ(s.transport->ops->lane_new(s.transport, &with, NULL, addr, &n, &lane), WEFT_ERR_UNREACHABLE);
    CHECK(strstr(weft_last_error(), "Permission denied"));
    memcpy(door, theirs + WEFTI_SHM_CAPS_SIZE, sizeof door);
    memcpy(&ino, theirs + WEFTI_SHM_CAPS_SIZE + sizeof door, sizeof ino);
    CHECK_EQ(wefti_region_view((pid_t)door[0], (int)door[1], ino, 8, false, &map), WEFT_ERR_UNREACHABLE);
    shm_side_close(&s);
}

TEST(another_user_neither_matches_nor_gets_in)
{
    if (geteuid())
        SKIP("needs root to become another user");
    shm_side_t s;
    uint8_t theirs[WEFTI_CAPS_MAX], own[WEFTI_CAPS_MAX];
    int fd;
    pid_t pid = shm_child(stranger, NULL, &fd);
    shm_side_open(&s, RING, "auto");
    ssize_t n = read(fd, theirs, sizeof theirs);
    CHECK(n > 1);
    CHECK(!s.transport->ops->match(s.transport, theirs, (size_t)n));
    for (int side = 0; side < 2; side++) {
        size_t own_n = s.transport->ops->caps(s.transport, side, own);
        CHECK(s.transport->ops->match(s.transport, own, own_n));
        CHECK(!s.transport->ops->match(s.transport, own, own_n - 1));
        CHECK(!s.transport->ops->match(s.transport, own, 0));
    }
    CHECK(write(fd, own, WEFTI_SHM_CAPS_SIZE + WEFTI_SHM_DOOR_SIZE) == WEFTI_SHM_CAPS_SIZE + WEFTI_SHM_DOOR_SIZE);
    shm_child_end(pid);
    shm_side_close(&s);
}

TEST(a_process_that_may_not_be_looked_into_says_so_in_its_caps)
{
    shm_side_t s;
    uint8_t caps[WEFTI_CAPS_MAX];
    shm_side_open(&s, RING, "auto");
    CHECK(s.transport->ops->caps(s.transport, WEFTI_SIDE_DIALLER, caps) > 1);
    CHECK(!prctl(PR_SET_DUMPABLE, 0));
    CHECK_EQ(s.transport->ops->caps(s.transport, WEFTI_SIDE_DIALLER, caps), 1);
    CHECK_EQ(s.transport->ops->caps(s.transport, WEFTI_SIDE_LISTENER, caps), 1);
    CHECK(!s.transport->ops->match(s.transport, caps, 1));
    shm_side_close(&s);
}

static bool forbid_reading(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof code[0], code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

TEST(where_memory_may_not_be_read_payloads_go_through_the_ring)
{
    static story_t story = {"auto", drive_for_ever};
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    weft_iov_t iov = {big_memory(), BIG};
    int fd;
    if (!forbid_reading())
        SKIP("seccomp is not available");
    pid_t pid = shm_child(sender, &story, &fd);
    memset(iov.base, 0xff, BIG);
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    CHECK(!((wefti_shm_lane_t *)e.lane)->peer->readable);
    SHM_UNTIL(&s, e.announced);
    shm_pull(&e, 0, &iov, 1, BIG, &x);
    SHM_UNTIL(&s, x.done);
    CHECK_EQ(x.status, WEFT_OK);
    uint8_t *bytes = iov.base;
    for (size_t i = 0; i < BIG; i++)
        if (bytes[i])
            FAIL("byte %zu did not arrive", i);
    kill_now(pid);
    shm_end_close(&e);
    shm_side_close(&s);
}

/* A listener that says where its door is, and its half of a lane. */
static void half_met(int fd, void *arg)
{
    (void)arg;
    shm_side_t s;
    shm_end_t e;
    uint8_t caps[WEFTI_CAPS_MAX];
    shm_side_open(&s, RING, "auto");
    size_t n = s.transport->ops->caps(s.transport, WEFTI_SIDE_LISTENER, caps);
    shm_end_new(&s, &e);
    CHECK(write(fd, caps, n) == (ssize_t)n && write(fd, e.addr, e.addr_n) == (ssize_t)e.addr_n);
    shm_hear(fd);
}

TEST(a_peer_that_is_gone_before_the_lane_was_connected_is_unreachable)
{
    for (int way = 0; way < 2; way++) {
        shm_side_t s;
        shm_end_t e = {.side = &s};
        uint8_t caps[WEFTI_SHM_CAPS_SIZE + WEFTI_SHM_DOOR_SIZE], theirs[WEFTI_SHM_ADDR_SIZE + WEFTI_SECRET_SIZE];
        uint8_t addr[WEFTI_LANE_ADDR_MAX];
        wefti_meeting_t with = {.side = WEFTI_SIDE_DIALLER, .binding = "met", .caps = caps, .caps_n = sizeof caps};
        int fd;
        shm_side_open(&s, RING, "auto");
        pid_t pid = shm_child(half_met, NULL, &fd);
        CHECK_EQ(recv(fd, caps, sizeof caps, MSG_WAITALL), sizeof caps);
        CHECK_EQ(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
        if (way)
            kill_now(pid);
        weft_status_t st = s.transport->ops->lane_new(s.transport, &with, &e, addr, &e.addr_n, &e.lane);
        CHECK_EQ(st, way ? WEFT_ERR_UNREACHABLE : WEFT_OK);
        if (!way) {
            kill_now(pid);
            CHECK_EQ(e.lane->ops->lane_connect(e.lane, theirs, sizeof theirs), WEFT_ERR_UNREACHABLE);
            CHECK(!strstr(weft_last_error(), "not shown"));
            shm_end_close(&e);
        }
        shm_side_close(&s);
        CHECK_EQ(shm_maps(), 0);
    }
}
