/* tests/wire/fabric_shm.c - the shm transport: endings, copies by both paths, many lanes, and what it leaves behind (nothing).
 *
 * What every transport must do is in fabric_lanes.c; what happens to a process on the other side in fabric_shm_faults.c;
 * sleep in fabric_shm_sleep.c.
 *
 * ctest: timeout=600 */
#define SHM_SECONDS 150 /* 5 GiB on a busy machine */
#define TEST_SECONDS 200
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "test.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "lib/shm_side.h"

#define RING 65536u
#define SMALLEST WEFTI_RING_SMALLEST

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static const char *const both_copies[] = {"kernel", "ring"};

/* --- records ------------------------------------------------------------------------------------------------------------ */

typedef struct counter {
    uint64_t next;
} counter_t;

static void expect_next(shm_end_t *e, const void *rec, size_t n)
{
    counter_t *c = e->user;
    uint64_t seq;
    CHECK(n >= 8);
    memcpy(&seq, rec, 8);
    CHECK_EQ(seq, c->next);
    c->next++;
}

TEST(records_sent_before_the_other_side_connected_arrive)
{
    shm_side_t a, b;
    shm_end_t ea, eb;
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_end_call(&a, &ea, &b);
    shm_end_new(&b, &eb);
    CHECK_OK(ea.lane->ops->lane_connect(ea.lane, eb.addr, eb.addr_n));
    for (int i = 0; i < 10; i++)
        CHECK(shm_send(&ea, "early", 5));
    for (int i = 0; i < 10; i++)
        shm_progress(&b);
    CHECK_EQ(eb.records, 0);
    CHECK_OK(eb.lane->ops->lane_connect(eb.lane, ea.addr, ea.addr_n));
    SHM_UNTIL2(&a, &b, eb.records == 10);
    shm_end_close(&ea);
    shm_end_close(&eb);
    shm_side_close(&a);
    shm_side_close(&b);
}

TEST(a_full_ring_ends_with_room_and_nothing_is_lost)
{
    for (int way = 0; way < 2; way++) {
        shm_side_t a, b;
        shm_end_t ea, eb;
        counter_t c = {0};
        uint8_t rec[8192] = {0};
        wefti_rng_t rng = {5};
        uint64_t sent = 0;
        shm_side_open(&a, way ? RING : SMALLEST, "auto");
        shm_side_open(&b, way ? SMALLEST : RING, "auto");
        shm_join(&a, &ea, &b, &eb);
        CHECK_EQ(ea.lane->frame_max, WEFTI_REC_MAX); /* the smaller ring decides */
        CHECK_EQ(eb.lane->frame_max, WEFTI_REC_MAX);
        eb.on_record = expect_next;
        eb.user = &c;
        while (sent < 100000) {
            size_t n = 8 + wefti_rng_below(&rng, wefti_rng_below(&rng, 20) ? 64 : WEFTI_REC_MAX - 7);
            memcpy(rec, &sent, 8);
            if (shm_send(&ea, rec, n)) {
                sent++;
                continue;
            }
            unsigned before = ea.rooms;
            SHM_UNTIL2(&b, &a, ea.rooms > before);
        }
        SHM_UNTIL(&b, c.next == sent);
        CHECK(ea.rooms > 100);
        shm_end_close(&ea);
        SHM_UNTIL(&b, eb.failed);
        CHECK_EQ(eb.why, WEFT_ERR_PEER);
        shm_end_close(&eb);
        shm_side_close(&a);
        shm_side_close(&b);
    }
}

static void drive_other(shm_end_t *e, const void *rec, size_t n)
{
    (void)rec;
    (void)n;
    for (int i = 0; i < 20; i++) /* a bell that was answered is not looked at for a while */
        shm_progress(e->user);
}

/* Whoever found no room for a long record may still send short ones, and whatever these fill has to be empty before there is
 * room. */
TEST(room_for_a_long_record_comes_though_short_ones_went_meanwhile)
{
    static const uint32_t rings[] = {SMALLEST, 2 * SMALLEST, RING};
    uint8_t rec[8192] = {0};
    for (int i = 0; i < 3; i++) {
        shm_side_t a, b;
        shm_end_t ea, eb;
        wefti_rng_t rng = {(uint64_t)i + 1};
        shm_side_open(&a, rings[i], "auto");
        shm_side_open(&b, rings[i], "auto");
        shm_join(&a, &ea, &b, &eb);
        eb.on_record = drive_other; /* it looks whenever there might be room */
        eb.user = &a;
        const wefti_ring_tx_t *tx = &((wefti_shm_lane_t *)ea.lane)->tx;
        for (int lap = 0; lap < 2000; lap++) {
            uint64_t goal = 1 + wefti_rng_below(&rng, 40);
            unsigned before = ea.rooms;
            while (shm_send(&ea, rec, ea.lane->frame_max))
                for (uint64_t n = wefti_rng_below(&rng, 30); n && tx->limit - tx->tail > 512; n--)
                    CHECK(shm_send(&ea, rec, 200));
            /* As many short ones as fit, or fewer: none of them fails, or it would wait for room itself. */
            while (goal-- && tx->limit - tx->tail > 512)
                CHECK(shm_send(&ea, rec, 200));
            SHM_UNTIL2(&b, &a, ea.rooms > before);
        }
        shm_end_close(&ea);
        shm_end_close(&eb);
        shm_side_close(&a);
        shm_side_close(&b);
    }
}

TEST(what_was_sent_before_a_close_arrives_before_the_failure)
{
    shm_side_t a, b;
    shm_end_t ea, eb;
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_join(&a, &ea, &b, &eb);
    for (int i = 0; i < 500; i++)
        CHECK(shm_send(&ea, "last words", 10));
    shm_end_close(&ea);
    SHM_UNTIL(&b, eb.failed);
    CHECK_EQ(eb.records, 500);
    CHECK_EQ(eb.why, WEFT_ERR_PEER);
    CHECK(!eb.lane->ops->reserve(eb.lane, 8));
    shm_end_close(&eb);
    shm_side_close(&a);
    shm_side_close(&b);
}

/* --- payloads ----------------------------------------------------------------------------------------------------------- */

/* Cut bytes into pieces at random, some of them empty. */
static void cut(wefti_rng_t *rng, uint8_t *bytes, size_t total, weft_iov_t *iov, size_t n)
{
    for (size_t i = 0, at = 0; i < n; i++) {
        size_t left = total - at, here = wefti_rng_below(rng, 4) ? wefti_rng_below(rng, 2 * left / n + 1) : 0;
        iov[i] = (weft_iov_t){bytes + at, i + 1 == n ? left : here};
        at += iov[i].len;
    }
}

TEST(payloads_of_many_pieces_arrive_by_either_path)
{
    for (int way = 0; way < 2; way++) {
        shm_side_t a, b;
        shm_end_t ea, eb;
        wefti_rng_t rng = {11};
        shm_side_open(&a, RING, both_copies[way]);
        shm_side_open(&b, RING, both_copies[way]);
        shm_join(&a, &ea, &b, &eb);
        CHECK_EQ(((wefti_shm_lane_t *)eb.lane)->peer->readable, way == 0);
        for (int round = 0; round < 60; round++) {
            weft_iov_t from[300], to[300];
            shm_xfer_t send, recv;
            size_t n_from = 1 + wefti_rng_below(&rng, round % 2 ? 300 : 4), n_to = 1 + wefti_rng_below(&rng, round % 3 ? 300 : 4);
            size_t total = n_from + wefti_rng_below(&rng, 3 << 20);
            uint8_t *src = malloc(total), *dst = calloc(1, total + 1);
            fill(src, total, (uint64_t)round);
            cut(&rng, src, total, from, n_from);
            uint64_t want = wefti_rng_below(&rng, 3) ? total : 1 + wefti_rng_below(&rng, total);
            cut(&rng, dst, want, to, n_to);
            unsigned offer = eb.announced = 0;
            CHECK_OK(shm_announce(&ea, from, n_from, &send));
            SHM_UNTIL2(&a, &b, eb.announced == 1);
            CHECK_EQ(eb.offer_total[0], total);
            CHECK(eb.last_n == 9 && !memcmp(eb.last, "announced", 9));
            shm_pull(&eb, offer, to, n_to, want, &recv);
            CHECK_EQ(recv.done, 0);
            SHM_UNTIL2(&a, &b, send.done && recv.done);
            CHECK_EQ(send.status, WEFT_OK);
            CHECK_EQ(recv.status, WEFT_OK);
            CHECK(!memcmp(src, dst, want));
            CHECK_EQ(dst[want], 0);
            free(src);
            free(dst);
        }
        shm_end_close(&ea);
        shm_end_close(&eb);
        shm_side_close(&a);
        shm_side_close(&b);
    }
}

TEST(refused_taken_and_pulled_announcements_have_one_answer_each)
{
    for (int way = 0; way < 2; way++) {
        shm_side_t a, b;
        shm_end_t ea, eb;
        shm_xfer_t x[3], recv;
        static uint8_t src[100000], dst[100000];
        weft_iov_t from = {src, sizeof src}, to = {dst, sizeof dst};
        shm_side_open(&a, RING, both_copies[way]);
        shm_side_open(&b, RING, both_copies[way]);
        shm_join(&a, &ea, &b, &eb);
        for (int i = 0; i < 3; i++)
            CHECK_OK(shm_announce(&ea, &from, 1, &x[i]));
        SHM_UNTIL2(&a, &b, eb.announced == 3);
        eb.offer[0]->ops->refuse(eb.offer[0], false);
        eb.offer[1]->ops->refuse(eb.offer[1], true);
        shm_pull(&eb, 2, &to, 1, sizeof dst, &recv);
        SHM_UNTIL2(&a, &b, x[0].done && x[1].done && x[2].done && recv.done);
        CHECK_EQ(x[0].status, WEFT_ERR_REFUSED);
        CHECK_EQ(x[1].status, WEFT_OK);
        CHECK_EQ(x[2].status, WEFT_OK);
        CHECK_EQ(recv.status, WEFT_OK);
        CHECK_EQ(eb.withdrawn, 0);
        shm_end_close(&ea);
        shm_end_close(&eb);
        shm_side_close(&a);
        shm_side_close(&b);
    }
}

TEST(closing_with_everything_under_way_ends_each_transfer_once)
{
    for (int round = 0; round < 200; round++) {
        shm_side_t a, b;
        shm_end_t ea, eb;
        shm_xfer_t send[16], recv[16];
        wefti_rng_t rng = {(uint64_t)round + 1};
        static uint8_t src[300000], dst[16][300000];
        weft_iov_t from = {src, sizeof src}, to[16];
        unsigned pulled = 0;
        uint8_t rec[100] = {0};
        shm_side_open(&a, SMALLEST, both_copies[round % 2]);
        shm_side_open(&b, SMALLEST, both_copies[round % 2]);
        shm_join(&a, &ea, &b, &eb);
        for (int i = 0; i < 16; i++) {
            CHECK_OK(shm_announce(&ea, &from, 1, &send[i]));
            shm_progress(&b);
            shm_progress(&b);
        }
        CHECK_EQ(eb.announced, 16);
        if (round % 3 == 0) /* no room for answers */
            while (shm_send(&eb, rec, sizeof rec))
                ;
        for (int i = 0; i < 16; i++) {
            to[i] = (weft_iov_t){dst[i], sizeof dst[i]};
            if (wefti_rng_below(&rng, 3) == 0)
                shm_pull(&eb, (unsigned)i, &to[i], 1, sizeof dst[i], &recv[pulled++]);
            else if (wefti_rng_below(&rng, 4) == 0) {
                eb.offer[i]->ops->refuse(eb.offer[i], false);
                eb.offer[i] = NULL;
            }
        }
        for (uint64_t i = wefti_rng_below(&rng, 12); i; i--)
            shm_progress(wefti_rng_below(&rng, 2) ? &a : &b);
        shm_end_t *first = round % 4 < 2 ? &ea : &eb, *second = first == &ea ? &eb : &ea;
        shm_end_close(first);
        if (wefti_rng_below(&rng, 2))
            SHM_UNTIL(second->side, second->failed);
        shm_end_close(second);
        for (int i = 0; i < 16; i++)
            CHECK_EQ(send[i].done, 1);
        for (unsigned i = 0; i < pulled; i++) {
            CHECK_EQ(recv[i].done, 1);
            CHECK(recv[i].status == WEFT_OK || recv[i].status == WEFT_ERR_PEER || recv[i].status == WEFT_ERR_CANCELLED);
        }
        for (int i = 0; i < 16; i++)
            CHECK(!eb.offer[i]); /* pulled, refused or withdrawn */
        shm_side_close(&a);
        shm_side_close(&b);
    }
}

TEST(a_sender_that_closes_midway_never_gives_a_good_pull)
{
    for (int way = 0; way < 2; way++) {
        shm_side_t a, b;
        shm_end_t ea, eb;
        shm_xfer_t send, recv;
        size_t size = 32 << 20;
        uint8_t *src = malloc(size), *dst = malloc(size);
        weft_iov_t from = {src, size}, to = {dst, size};
        memset(src, 1, size);
        shm_side_open(&a, RING, both_copies[way]);
        shm_side_open(&b, RING, both_copies[way]);
        shm_join(&a, &ea, &b, &eb);
        CHECK_OK(shm_announce(&ea, &from, 1, &send));
        SHM_UNTIL2(&a, &b, eb.announced);
        shm_pull(&eb, 0, &to, 1, size, &recv);
        for (int i = 0; i < 6; i++) {
            shm_progress(&b);
            shm_progress(&a);
        }
        CHECK(!recv.done);
        shm_end_close(&ea);
        CHECK_EQ(send.done, 1);
        CHECK_EQ(send.status, WEFT_ERR_CANCELLED);
        memset(src, 2, size);
        SHM_UNTIL(&b, recv.done && eb.failed);
        CHECK_EQ(recv.status, WEFT_ERR_PEER);
        CHECK_EQ(eb.why, WEFT_ERR_PEER);
        shm_end_close(&eb);
        shm_side_close(&a);
        shm_side_close(&b);
        free(src);
        free(dst);
    }
}

/* The payload is 5 GiB of address space; the receiver's is a few MiB of memory mapped again and again, but for the last ones. */
TEST(a_payload_past_4_GiB_arrives_whole)
{
    shm_side_t a, b;
    shm_end_t ea, eb;
    shm_xfer_t send, recv;
    size_t window = 32 << 20, n = 161, size = window * n;
    int fd = memfd_create("window", MFD_CLOEXEC);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)window));
    uint8_t *src = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *dst = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (src == MAP_FAILED || dst == MAP_FAILED)
        SKIP("no room for 10 GiB of addresses");
    for (size_t i = 0; i < n - 1; i++)
        CHECK(mmap(dst + i * window, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    CHECK(!mprotect(dst + (n - 1) * window, window, PROT_READ | PROT_WRITE));
    memcpy(src + size - 8, "the end", 8);
    memcpy(src + (UINT64_C(4) << 30) - 8, "4GiB ago", 8); /* what a short length would leave */
    weft_iov_t from = {src, size}, to = {dst, size};
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    shm_join(&a, &ea, &b, &eb);
    CHECK_OK(shm_announce(&ea, &from, 1, &send));
    SHM_UNTIL2(&a, &b, eb.announced);
    CHECK_EQ(eb.offer_total[0], size);
    shm_pull(&eb, 0, &to, 1, size, &recv);
    SHM_UNTIL2(&a, &b, send.done && recv.done);
    CHECK_EQ(recv.status, WEFT_OK);
    CHECK(!memcmp(dst + size - 8, "the end", 8));
    CHECK_EQ(dst[0], 0);
    shm_end_close(&ea);
    shm_end_close(&eb);
    shm_side_close(&a);
    shm_side_close(&b);
}

/* --- closing from upcalls ----------------------------------------------------------------------------------------------- */

static void close_in_upcall(shm_end_t *e, const void *rec, size_t n)
{
    (void)rec;
    (void)n;
    shm_end_t *other = e->user;
    e->lane->ops->lane_close(e->lane);
    if (other && !other->closed)
        other->lane->ops->lane_close(other->lane);
}

TEST(a_record_may_close_its_own_lane_and_its_neighbour)
{
    shm_side_t a, b;
    shm_end_t ea[12], eb[12];
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    for (int i = 0; i < 12; i++) {
        shm_join(&a, &ea[i], &b, &eb[i]);
        CHECK(shm_send(&ea[i], "up", 2));
    }
    SHM_UNTIL2(&a, &b, eb[11].records == 1);
    for (int i = 0; i < 12; i++) {
        eb[i].on_record = close_in_upcall;
        eb[i].user = i % 2 ? &eb[i - 1] : NULL;
        CHECK(shm_send(&ea[11 - i], "close", 5));
        CHECK(shm_send(&ea[11 - i], "not heard", 9));
    }
    for (int i = 0; i < 12; i++)
        SHM_UNTIL2(&a, &b, eb[i].closed && ea[i].failed);
    for (int i = 0; i < 12; i++) {
        CHECK(eb[i].records <= 2);
        shm_end_close(&ea[i]);
    }
    shm_side_close(&a);
    shm_side_close(&b);
}

/* --- many lanes --------------------------------------------------------------------------------------------------------- */

#define MANY 1000

static void many_child(int fd, void *arg)
{
    (void)arg;
    shm_side_t s;
    static shm_end_t e[MANY];
    static counter_t c[MANY];
    uint64_t all = 0;
    shm_side_open(&s, SMALLEST, "auto");
    for (int i = 0; i < MANY; i++) {
        shm_meet(&s, &e[i], fd);
        e[i].on_record = expect_next;
        e[i].user = &c[i];
    }
    double end = shm_now() + 60;
    while (all < (uint64_t)MANY * 200 && shm_now() < end) {
        if (!shm_progress(&s))
            shm_sleep(&s, 1000);
        all = 0;
        for (int i = 0; i < MANY; i++)
            all += c[i].next;
    }
    CHECK_EQ(all, (uint64_t)MANY * 200);
    CHECK_EQ(s.slept_out, 0);
    shm_tell(fd);
    for (int i = 0; i < MANY; i++) {
        SHM_UNTIL(&s, e[i].failed);
        shm_end_close(&e[i]);
    }
    shm_side_close(&s);
    CHECK_EQ(shm_maps(), 0);
}

TEST(a_thousand_lanes_between_two_processes_lose_nothing_and_keep_no_descriptors)
{
    static shm_end_t e[MANY];
    static uint64_t sent[MANY];
    shm_side_t s;
    wefti_rng_t rng = {3};
    int fd;
    pid_t pid = shm_child(many_child, NULL, &fd);
    shm_side_open(&s, SMALLEST, "auto");
    unsigned before = shm_open_fds();
    for (int i = 0; i < MANY; i++)
        shm_meet(&s, &e[i], fd);
    for (uint64_t left = (uint64_t)MANY * 200; left;) {
        /* Bursts on a few lanes, then somewhere else. */
        uint64_t lane = wefti_rng_below(&rng, MANY), burst = 1 + wefti_rng_below(&rng, 20);
        for (; burst && sent[lane] < 200; burst--) {
            if (!shm_send(&e[lane], &sent[lane], 8)) {
                unsigned rooms = e[lane].rooms;
                SHM_UNTIL(&s, e[lane].rooms > rooms);
                continue;
            }
            sent[lane]++;
            left--;
        }
        if (sent[lane] >= 200)
            for (uint64_t i = 0; i < MANY && left; i++)
                if (sent[i] < 200 && shm_send(&e[i], &sent[i], 8)) {
                    sent[i]++;
                    left--;
                }
        shm_progress(&s);
    }
    double end = shm_now() + SHM_SECONDS;
    while (shm_open_fds() > before + 4 && shm_now() < end) /* the door, the bell, the pipe, the peer's pipe */
        shm_progress(&s);
    CHECK_EQ(shm_open_fds(), before + 4);
    shm_hear(fd);
    for (int i = 0; i < MANY; i++)
        shm_end_close(&e[i]);
    shm_side_close(&s);
    CHECK_EQ(shm_open_fds(), before);
    CHECK_EQ(shm_maps(), 0);
    shm_child_end(pid);
}

/* --- no allocation, no system call -------------------------------------------------------------------------------------- */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

static unsigned allocations;

static int count_allocation(size_t n)
{
    (void)n;
    allocations++;
    return 0;
}

/* From here on any system call but write and exit ends the process. */
static bool only_memory(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof code[0], code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

TEST(small_records_need_neither_memory_nor_the_kernel)
{
    shm_side_t a, b;
    shm_end_t ea[20], eb[20];
    shm_side_open(&a, RING, "auto");
    shm_side_open(&b, RING, "auto");
    for (int i = 0; i < 20; i++)
        shm_join(&a, &ea[i], &b, &eb[i]);
    for (int i = 0; i < 1000; i++) {
        shm_progress(&a);
        shm_progress(&b);
    }
    /* Touch every page of the rings: a page fault is no system call, but would be the kernel all the same. */
    for (int lap = 0; lap < 3 * (int)RING / 64; lap++)
        for (int i = 0; i < 20; i++) {
            CHECK(shm_send(&ea[i], "warm", 4) && shm_send(&eb[i], "warm", 4));
            shm_progress(&a);
            shm_progress(&b);
        }
    wefti_alloc_fails = count_allocation;
#ifdef SANITIZED
    SKIP("a sanitizer makes system calls of its own");
#endif
    if (!only_memory())
        SKIP("seccomp is not available");
    uint64_t before = eb[0].records + ea[0].records;
    for (int i = 0; i < 200000; i++) {
        int lane = i % 7 ? 0 : i % 20;
        if (!shm_send(&ea[lane], "12345678", 8) || !shm_send(&eb[lane], "12345678", 8))
            _exit(1);
        shm_progress(&a);
        shm_progress(&b);
    }
    _exit(allocations == 0 && eb[0].records + ea[0].records > before + 300000 ? 0 : 1);
}

TEST(nothing_is_left_behind)
{
    unsigned fds = shm_open_fds();
    for (int i = 0; i < 50; i++) {
        shm_side_t a, b;
        shm_end_t ea, eb, half;
        shm_side_open(&a, RING, "auto");
        shm_side_open(&b, RING, "auto");
        shm_join(&a, &ea, &b, &eb);
        shm_end_new(&a, &half);
        if (i % 2) {
            shm_end_close(&half);
            shm_end_close(&ea);
            shm_end_close(&eb);
        }
        shm_side_close(&a); /* drops what is open */
        shm_side_close(&b);
    }
    CHECK_EQ(shm_open_fds(), fds);
    CHECK_EQ(shm_maps(), 0);
    CHECK(access("/dev/shm/weft-ring", F_OK) && access("/dev/shm/weft-bell", F_OK) && access("/dev/shm/weft-door", F_OK));
}

static int fail_at;

static int fail_nth(size_t n)
{
    (void)n;
    return --fail_at == 0;
}

TEST(running_out_of_memory_anywhere_leaves_nothing_half_made)
{
    unsigned fds = shm_open_fds();
    for (int nth = 1; nth < 40; nth++) {
        shm_side_t a, b;
        shm_end_t ea, eb;
        shm_xfer_t send, recv;
        static uint8_t src[50000], dst[50000];
        weft_iov_t from = {src, sizeof src}, to = {dst, sizeof dst};
        shm_side_open(&a, RING, "auto");
        shm_side_open(&b, RING, "auto");
        fail_at = nth;
        wefti_alloc_fails = fail_nth;
        if (shm_end_try(&a, &ea, &b) || shm_end_try(&b, &eb, NULL))
            goto close;
        if (ea.lane->ops->lane_connect(ea.lane, eb.addr, eb.addr_n) || eb.lane->ops->lane_connect(eb.lane, ea.addr, ea.addr_n))
            goto close;
        for (int round = 0; round < 2; round++) {
            eb.announced = 0;
            if (shm_announce(&ea, &from, 1, &send))
                continue;
            SHM_UNTIL2(&a, &b, eb.announced); /* the receiver tries again until there is memory */
            shm_pull(&eb, 0, &to, 1, sizeof dst, &recv);
            SHM_UNTIL2(&a, &b, send.done && recv.done);
            CHECK_EQ(recv.status, WEFT_OK);
        }
    close:
        wefti_alloc_fails = NULL;
        shm_side_close(&a);
        shm_side_close(&b);
    }
    CHECK_EQ(shm_open_fds(), fds);
    CHECK_EQ(shm_maps(), 0);
}
