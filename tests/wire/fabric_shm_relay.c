/* tests/wire/fabric_shm_relay.c - long payloads of which the sender copies the back while the receiver reads the front: every
 * byte arrives once, by one of the two ways, and nobody waits for a sender that does not help. */
#include <sys/resource.h>

#include "test.h"
#include "base/rng.h"
#include "lib/relayed.h"

#define BIG (UINT64_C(24) << 20)

/* --- both sides in this process ---------------------------------------------------------------------------------------- */

TEST(a_long_payload_comes_by_both_ways_and_is_whole)
{
    pair_t s;
    needs_two_processors();
    pair_open(&s, "auto");
    const uint64_t sizes[] = {WEFTI_SHM_RELAY_MIN, WEFTI_SHM_RELAY_MIN + 1, (1 << 20) - 7, BIG, BIG + 4095, 3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        CHECK(move(&s, sizes[i]) > 0);
    CHECK_EQ(move(&s, WEFTI_SHM_RELAY_MIN - 1), 0);
    pair_close(&s);
}

TEST(kernel_means_that_nobody_helps)
{
    pair_t s;
    pair_open(&s, "kernel");
    CHECK_EQ(move(&s, BIG), 0);
    CHECK(!lane_of(&s.ea)->relay_in);
    pair_close(&s);
}

TEST(a_peer_that_does_not_know_of_help_is_not_asked)
{
    pair_t s;
    pair_open(&s, "auto");
    lane_of(&s.ea)->helps_us = false; /* as its address says */
    CHECK_EQ(move(&s, BIG), 0);
    pair_close(&s);
}

TEST(one_processor_for_both_is_not_asked_to_help)
{
    pair_t s;
    cpu_set_t one, was;
    CHECK(!sched_getaffinity(0, sizeof was, &was));
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one));
    pair_open(&s, "auto");
    CHECK_EQ(move(&s, BIG), 0);
    CHECK(!sched_setaffinity(0, sizeof was, &was));
    pair_close(&s);
}

TEST(without_a_descriptor_it_is_read_as_before)
{
    pair_t s;
    struct rlimit was, none;
    needs_two_processors();
    pair_open(&s, "auto");
    CHECK(!getrlimit(RLIMIT_NOFILE, &was));
    none = was;
    none.rlim_cur = 3;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    CHECK_EQ(move(&s, BIG), 0);
    CHECK(!setrlimit(RLIMIT_NOFILE, &was));
    CHECK(move(&s, BIG) > 0); /* it is asked again */
    pair_close(&s);
}

TEST(a_transport_has_so_many_relays_and_the_rest_of_its_lanes_do_without)
{
    pair_t s;
    shm_end_t more_a[WEFTI_SHM_RELAYS_MAX + 1], more_b[WEFTI_SHM_RELAYS_MAX + 1];
    needs_two_processors();
    pair_open(&s, "auto");
    const shm_end_t ea = s.ea, eb = s.eb;
    const wefti_shm_transport_t *r = (wefti_shm_transport_t *)s.a.transport;
    for (unsigned i = 0; i <= WEFTI_SHM_RELAYS_MAX; i++)
        shm_join(&s.a, &more_a[i], &s.b, &more_b[i]);
    for (unsigned i = 0; i <= WEFTI_SHM_RELAYS_MAX; i++) {
        shm_xfer_t out, in;
        weft_iov_t from = {marked(1 << 20), 1 << 20}, to = {memory(1 << 20), 1 << 20};
        CHECK_OK(shm_announce(&more_b[i], &from, 1, &out));
        SHM_UNTIL2(&s.a, &s.b, more_a[i].announced);
        shm_pull(&more_a[i], 0, &to, 1, 1 << 20, &in);
        for (int turns = 0; turns < 40; turns++)
            shm_progress(&s.b);
        SHM_UNTIL2(&s.a, &s.b, out.done && in.done);
        CHECK_OK(in.status);
        check_marks(to.base, 1 << 20);
        CHECK_EQ(taken(&more_a[i]) > 0, i < WEFTI_SHM_RELAYS_MAX);
        munmap(from.base, 1 << 20);
        munmap(to.base, 1 << 20);
    }
    CHECK_EQ(r->n_relays, WEFTI_SHM_RELAYS_MAX);
    shm_end_close(&more_a[0]); /* its relay goes with it */
    CHECK_EQ(r->n_relays, WEFTI_SHM_RELAYS_MAX - 1);
    for (unsigned i = 0; i <= WEFTI_SHM_RELAYS_MAX; i++) {
        if (i)
            shm_end_close(&more_a[i]);
        shm_end_close(&more_b[i]);
    }
    s.ea = ea;
    s.eb = eb;
    pair_close(&s);
}

#define MANY 12

TEST(many_payloads_in_odd_pieces_are_all_whole)
{
    needs_two_processors();
    for (uint64_t seed = 1; seed <= 12; seed++) {
        pair_t s;
        wefti_rng_t rng = {seed};
        shm_xfer_t out[MANY], in[MANY];
        weft_iov_t from[MANY][8], to[MANY][8];
        uint64_t size[MANY], want[MANY];
        uint8_t *src[MANY], *dst[MANY];
        pair_open(&s, "auto");
        for (unsigned i = 0; i < MANY; i++) {
            size[i] = WEFTI_SHM_RELAY_MIN + wefti_rng_next(&rng) % (2u << 20);
            want[i] = i % 3 ? size[i] : size[i] - wefti_rng_next(&rng) % 70000;
            src[i] = marked(size[i]);
            dst[i] = memory(size[i]);
            for (int side = 0; side < 2; side++) {
                uint64_t at = 0;
                for (unsigned k = 0; k < 8; k++) {
                    uint64_t n = k == 7 ? size[i] - at : k == 3 ? 0 : wefti_rng_next(&rng) % ((size[i] - at) / 2 + 1);
                    (side ? to : from)[i][k] = (weft_iov_t){(side ? dst : src)[i] + at, n};
                    at += n;
                }
            }
            CHECK_OK(shm_announce(&s.eb, from[i], 8, &out[i]));
        }
        SHM_UNTIL2(&s.a, &s.b, s.ea.announced == MANY);
        for (unsigned i = 0; i < MANY; i++)
            shm_pull(&s.ea, i, to[i], 8, want[i], &in[i]);
        for (unsigned i = 0; i < MANY; i++) {
            /* One side may get more turns than the other. */
            while (!(out[i].done && in[i].done)) {
                shm_side_t *side = wefti_rng_next(&rng) % 3 == 0 ? &s.a : &s.b;
                for (uint64_t turns = wefti_rng_next(&rng) % 4; turns; turns--)
                    shm_progress(side);
            }
            CHECK_OK(in[i].status);
            CHECK_OK(out[i].status);
            check_marks(dst[i], want[i]);
            munmap(src[i], size[i]);
            munmap(dst[i], size[i]);
        }
        CHECK(taken(&s.ea) > 0);
        pair_close(&s);
    }
}

TEST(a_lane_closed_midway_ends_both_transfers_once)
{
    needs_two_processors();
    for (int turns = 0; turns < 24; turns++) {
        for (int who = 0; who < 2; who++) {
            pair_t s;
            shm_xfer_t out, in;
            weft_iov_t from = {marked(BIG), BIG}, to = {memory(BIG), BIG};
            pair_open(&s, "auto");
            CHECK_OK(shm_announce(&s.eb, &from, 1, &out));
            SHM_UNTIL2(&s.a, &s.b, s.ea.announced);
            shm_pull(&s.ea, 0, &to, 1, BIG, &in);
            for (int i = 0; i < turns; i++)
                shm_progress(i % 2 ? &s.a : &s.b);
            shm_end_t *first = who ? &s.ea : &s.eb;
            shm_end_close(first);
            CHECK_EQ((who ? in : out).done, 1);
            memset(from.base, 0xee, BIG); /* it is ours again, or the receiver's memory is nobody's */
            if (!who)
                SHM_UNTIL(&s.a, in.done && s.ea.failed);
            CHECK(in.done != 1 || in.status != WEFT_OK || who);
            shm_end_close(who ? &s.eb : &s.ea);
            CHECK_EQ(out.done, 1);
            CHECK_EQ(in.done, 1);
            munmap(from.base, BIG);
            munmap(to.base, BIG);
            shm_side_close(&s.a);
            shm_side_close(&s.b);
            CHECK_EQ(shm_maps(), 0);
        }
    }
}

/* --- the sender in another process ------------------------------------------------------------------------------------- */

enum { HELPS, IDLES };

static void sender(int fd, void *arg)
{
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    weft_iov_t iov = {marked(BIG), BIG};
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    CHECK_OK(shm_announce(&e, &iov, 1, &x));
    if (*(const int *)arg == IDLES)
        shm_hear(fd); /* its program computes */
    for (double end = shm_now() + 60; shm_now() < end && !x.done;)
        shm_progress(&s);
    CHECK_OK(x.status);
    shm_hear(fd);
    shm_end_close(&e);
    shm_side_close(&s);
}

typedef struct from_child {
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    weft_iov_t iov;
    pid_t pid;
    int fd;
} from_child_t;

static void pull_from_child(from_child_t *p, int how)
{
    static int story;
    story = how;
    p->iov = (weft_iov_t){memory(BIG), BIG};
    p->pid = shm_child(sender, &story, &p->fd);
    shm_side_open(&p->s, RING, "auto");
    shm_meet(&p->s, &p->e, p->fd);
    SHM_UNTIL(&p->s, p->e.announced);
    shm_pull(&p->e, 0, &p->iov, 1, BIG, &p->x);
}

static void from_child_close(from_child_t *p)
{
    shm_end_close(&p->e);
    CHECK_EQ(p->x.done, 1);
    shm_side_close(&p->s);
    CHECK_EQ(shm_maps(), 0);
}

TEST(a_sender_that_computes_is_not_waited_for)
{
    from_child_t p;
    pull_from_child(&p, IDLES);
    SHM_UNTIL(&p.s, p.x.done);
    CHECK_OK(p.x.status);
    CHECK_EQ(taken(&p.e), 0);
    check_marks(p.iov.base, BIG);
    shm_tell(p.fd);
    shm_tell(p.fd);
    shm_child_end(p.pid);
    from_child_close(&p);
}

TEST(a_sender_in_another_process_helps)
{
    from_child_t p;
    needs_two_processors();
    pull_from_child(&p, HELPS);
    SHM_UNTIL(&p.s, taken(&p.e)); /* the machine may be busy */
    SHM_UNTIL(&p.s, p.x.done);
    CHECK_OK(p.x.status);
    check_marks(p.iov.base, BIG);
    shm_tell(p.fd);
    shm_child_end(p.pid);
    from_child_close(&p);
}

TEST(a_sender_stopped_while_it_helps_delays_nobody)
{
    needs_two_processors();
    for (int i = 0; i < 10; i++) {
        from_child_t p;
        pull_from_child(&p, HELPS);
        for (int k = 0; k < i * i; k++)
            shm_progress(&p.s);
        CHECK(!kill(p.pid, SIGSTOP));
        SHM_UNTIL(&p.s, p.x.done);
        CHECK_OK(p.x.status);
        check_marks(p.iov.base, BIG);
        /* It goes on, in the middle of a chunk, when all is over: nothing of ours changes. */
        memset(p.iov.base, 0x5a, BIG);
        CHECK(!kill(p.pid, SIGCONT));
        shm_tell(p.fd);
        shm_child_end(p.pid);
        for (uint64_t at = 0; at < BIG; at++)
            if (((uint8_t *)p.iov.base)[at] != 0x5a)
                CHECK_EQ(at, BIG);
        from_child_close(&p);
    }
}

TEST(a_sender_stopped_and_given_up_writes_to_nothing_of_ours)
{
    from_child_t p;
    needs_two_processors();
    pull_from_child(&p, HELPS);
    SHM_UNTIL(&p.s, taken(&p.e) || p.x.done);
    CHECK(!kill(p.pid, SIGSTOP));
    from_child_close(&p); /* the relay is unmapped here, and still mapped there */
    memset(p.iov.base, 0x5a, BIG);
    CHECK(!kill(p.pid, SIGCONT));
    for (double end = shm_now() + 0.05; shm_now() < end;)
        ;
    for (uint64_t at = 0; at < BIG; at++)
        if (((uint8_t *)p.iov.base)[at] != 0x5a)
            CHECK_EQ(at, BIG);
    CHECK(!kill(p.pid, SIGKILL));
    CHECK_EQ(waitpid(p.pid, NULL, 0), p.pid);
}

TEST(a_sender_killed_while_it_helps_ends_the_pull)
{
    needs_two_processors();
    for (int i = 0; i < 10; i++) {
        from_child_t p;
        pull_from_child(&p, HELPS);
        for (int k = 0; k < i; k++)
            shm_progress(&p.s);
        CHECK(!kill(p.pid, SIGKILL));
        CHECK_EQ(waitpid(p.pid, NULL, 0), p.pid);
        SHM_UNTIL(&p.s, p.x.done);
        CHECK(p.x.status == WEFT_ERR_PEER || (p.x.status == WEFT_OK && i));
        if (!p.x.status)
            check_marks(p.iov.base, BIG);
        from_child_close(&p);
    }
}
