/* wire/rma_ends.c - how operations on remote memory end early, and what stays: cancelled, too late, the remote dropped, the
 * connection closed by either side, lost, come back; many remotes on one connection; a runtime that is its own peer. Every
 * operation ends once, a buffer is not touched after that, and a write that said WEFT_OK is there. ctest: timeout=600 long */
#define TEST_SECONDS 280
#include <netinet/in.h>
#include <sys/socket.h>

#include "lib/far.h"
#include "lib/two.h"
#include "ports.h"
#include "test.h"

enum { MB = 1 << 20, LEN = 3 * MB, N = 240, SIZES = 6 };

static const size_t sizes[SIZES] = {8, 1000, 5000, 9000, 70000, 2 * MB};
static weft_op_t ops[N];
static weft_status_t posted[N];
static uint8_t *bufs[N];

/* Every operation has a range of its own, if it is small; in its own buffer, which for reads holds 0xa5. */
static size_t len_of(unsigned i)
{
    return i % 40 == 39 ? sizes[5] : sizes[i % 5];
}
static bool is_read(unsigned i)
{
    return i % 2;
}
static uint64_t at_of(unsigned i)
{
    return len_of(i) > 4 * 70000 ? 0 : (uint64_t)i * 8192 % (LEN - 2 * 70000);
}
static void post_all(weft_remote_t *r, uint64_t timeout_ns)
{
    memset(ops, 0, sizeof ops);
    for (unsigned i = 0; i < N; i++) {
        size_t n = len_of(i);
        bufs[i] = (uint8_t *)malloc(n);
        memset(bufs[i], is_read(i) ? 0xa5 : 0x40 + (int)(i % 64), n);
        ops[i].timeout_ns = timeout_ns;
        posted[i] =
            is_read(i) ? weft_rma_read(r, at_of(i), bufs[i], n, &ops[i]) : weft_rma_write(r, at_of(i), bufs[i], n, &ops[i]);
    }
}

/* All end, with success or one of these; how many with success. */
static unsigned end_all(weft_status_t a, weft_status_t b, weft_status_t c)
{
    unsigned well = 0;
    for (unsigned i = 0; i < N; i++) {
        weft_status_t st = far_end(posted[i], &ops[i]);
        if (st && st != a && st != b && st != c)
            FAIL("operation %u of %zu bytes ended with %s", i, len_of(i), weft_status_name(st));
        if (!st && !posted[i])
            CHECK_EQ(ops[i].len, len_of(i));
        well += !st;
    }
    return well;
}

/* From now on nobody writes to the buffers: drive for a while, and see. */
static void free_all(void)
{
    for (unsigned i = 0; i < N; i++)
        memset(bufs[i], 0x3c, len_of(i));
    if (far.pair.rt[0] || far.pair.rt[1])
        pair_run(&far.pair, 0.01);
    for (unsigned i = 0; i < N; i++) {
        for (size_t k = 0; k < len_of(i); k++)
            CHECK_EQ(bufs[i][k], 0x3c);
        free(bufs[i]);
    }
}

TEST(cancelled_accesses_end_once_and_let_go_of_their_buffers)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        unsigned well = 0;
        for (unsigned round = 0; round < 6; round++) {
            post_all(r, 0);
            for (unsigned i = 0; i < 3 * round; i++)
                pair_drive(&far.pair);
            for (unsigned i = 0; i < N; i++)
                weft_op_cancel(&ops[(i * 7 + round) % N]);
            well += end_all(WEFT_ERR_CANCELLED, WEFT_ERR_CANCELLED, WEFT_ERR_CANCELLED);
            free_all();
            uint64_t word = round, got = 0; /* and it goes on */
            CHECK_OK(far_write(r, 8, &word, 8));
            CHECK_OK(far_read(r, 8, &got, 8));
            CHECK_EQ(got, round);
        }
        printf("# %s, %s: %u of %u were sooner\n", way->pair->transports, weft_rma_path_name(way->path), well, 6 * N);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(accesses_to_an_owner_that_does_not_answer_end_by_their_deadline)
{
    each_far(way) {
        if (way->pair->mode != WEFT_PROGRESS_CALLER || way->path == WEFT_RMA_MAPPED)
            continue;
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        for (unsigned round = 0; round < 3; round++) {
            post_all(r, 5 * WEFT_MILLISECOND);
            for (double end = test_now() + 0.1; test_now() < end;) /* the owner is asleep */
                weft_runtime_progress(far.pair.rt[1]);
            for (unsigned i = 0; i < N; i++) {
                /* a payload that is with the fabric may have to wait for it to let go */
                if (!posted[i] && len_of(i) <= 5000 && !weft_op_done(&ops[i]))
                    FAIL("operation %u of %zu bytes is not over", i, len_of(i));
            }
            unsigned well = end_all(WEFT_ERR_TIMEOUT, WEFT_ERR_TIMEOUT, WEFT_ERR_TIMEOUT);
            CHECK(well < N / 2);
            free_all(); /* answers that come now are nobody's */
            uint64_t word = round + 50, got = 0;
            CHECK_OK(far_write(r, 8, &word, 8));
            CHECK_OK(far_read(r, 8, &got, 8));
            CHECK_EQ(got, round + 50);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(an_attach_can_be_cancelled_or_be_too_late_and_leaves_no_grant)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(4096);
        far_key_t t = far_key(region, NULL);
        for (unsigned round = 0; round < 20; round++) {
            weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
            weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
            o.path = way->path;
            op[1].timeout_ns = 1 + round * 50 * WEFT_MICROSECOND;
            weft_status_t st[2];
            for (unsigned i = 0; i < 2; i++)
                st[i] = weft_remote_attach(far.pair.ep[1], t.bytes, t.len, &o, &op[i]);
            for (unsigned i = 0; i < round; i++)
                pair_drive(&far.pair);
            weft_op_cancel(&op[0]);
            for (unsigned i = 0; i < 2; i++) {
                st[i] = far_end(st[i], &op[i]);
                CHECK(st[i] == WEFT_OK || st[i] == (i ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED));
                if (!st[i])
                    weft_remote_drop(op[i].buf);
            }
        }
        PAIR_UNTIL(&far.pair, far_region_info(region).attached == 0, 5);
        CHECK_EQ(far_region_info(region).mapped, 0);
        far_free(region);
        far_close();
    }
}

TEST(a_remote_that_is_dropped_lets_its_operations_go_on)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        const uint8_t *base = weft_region_base(region);
        for (unsigned round = 0; round < 4; round++) {
            weft_remote_t *r = far_attach(region, NULL);
            weft_op_t flush = WEFT_OP_INIT;
            post_all(r, 0);
            for (unsigned i = 0; i < round; i++)
                pair_drive(&far.pair);
            CHECK_OK(weft_rma_flush(r, &flush));
            weft_remote_drop(r);
            CHECK_EQ(end_all(WEFT_OK, WEFT_OK, WEFT_OK), N);
            CHECK_OK(far_end(WEFT_OK, &flush));
            for (unsigned i = N - 8; i < N - 1; i++) { /* the last ones that nothing overlaps */
                if (!is_read(i) && len_of(i) <= 8192)
                    CHECK_EQ(memcmp(base + at_of(i), bufs[i], len_of(i) < 8192 ? len_of(i) : 8192), 0);
            }
            free_all();
            PAIR_UNTIL(&far.pair, far_region_info(region).attached == 0, 5);
        }
        far_free(region);
        far_close();
    }
}

/* --- the connection ends -------------------------------------------------------------------------------------------------- */

static void is_over(const char *what, weft_status_t st, weft_status_t a, weft_status_t b)
{
    if (st != a && st != b)
        FAIL("%s of a remote whose connection is gone: %s", what, weft_status_name(st));
}

static void all_over(weft_remote_t *r, weft_status_t a, weft_status_t b)
{
    uint8_t byte = 1;
    for (double end = test_now() + 5; far_info(r).state != a && far_info(r).state != b && test_now() < end;)
        pair_drive(&far.pair); /* until it has noticed */
    is_over("the state", far_info(r).state, a, b);
    is_over("a write", far_write(r, 0, &byte, 1), a, b);
    is_over("a read", far_read(r, 0, &byte, 1), a, b);
    is_over("an atomic", far_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0), a, b);
    CHECK_OK(far_flush(r));
}

TEST(closing_the_connection_ends_what_is_under_way_whichever_side_closes)
{
    each_far(way) {
        for (int side = 0; side < 2; side++) {
            for (int force = 0; force < 2; force++) {
                far_open(way, NULL);
                weft_region_t *region = far_region(LEN);
                uint8_t *base = weft_region_base(region);
                weft_remote_t *r = far_attach(region, NULL);
                weft_op_t op = WEFT_OP_INIT;
                post_all(r, 0);
                for (unsigned i = 0; i < 4; i++)
                    pair_drive(&far.pair);
                CHECK_OK(force ? weft_ep_abort(far.pair.ep[side], &op) : weft_ep_close(far.pair.ep[side], &op));
                far.pair.ep[side] = NULL;
                unsigned well = end_all(WEFT_ERR_CLOSED, WEFT_ERR_PEER, force ? WEFT_ERR_CANCELLED : WEFT_ERR_CLOSED);
                far_end(WEFT_OK, &op);
                if (well == N && !force)
                    CHECK_OK(op.status);
                if (side == 1)
                    all_over(r, WEFT_ERR_CLOSED, force ? WEFT_ERR_CANCELLED : WEFT_ERR_CLOSED);
                else
                    all_over(r, WEFT_ERR_PEER, WEFT_ERR_CLOSED);
                /* the owner has its memory for itself: a mapped peer that let go, or was thrown out, writes no more */
                far_revoke(region);
                pattern_fill(base, LEN, 3);
                free_all();
                CHECK_EQ(pattern_check(base, LEN, 3), LEN);
                CHECK_EQ(far_region_info(region).attached, 0);
                weft_remote_drop(r); /* it may outlive its endpoint */
                far_free(region);
                far_close();
            }
        }
    }
}

TEST(a_runtime_can_be_closed_in_the_middle_of_everything)
{
    each_far(way) {
        /* not the user's on the native path: where UCX 1.13 emulates, it aborts an owner that meets the last request after its
         * user has gone */
        for (int side = 0; side < (way->path == WEFT_RMA_NATIVE ? 1 : 2); side++) {
            far_open(way, NULL);
            weft_region_t *region = far_region(LEN);
            weft_remote_t *r = far_attach(region, NULL);
            post_all(r, 0);
            if (side)
                weft_remote_drop(r); /* has to be before its runtime goes */
            CHECK_OK(weft_ep_abort(far.pair.ep[side], NULL));
            far.pair.ep[side] = NULL;
            if (side == 0)
                CHECK_OK(weft_listener_close(far.pair.listener, NULL));
            if (side == 0)
                far.pair.listener = NULL;
            CHECK_OK(weft_runtime_close(far.pair.rt[side]));
            far.pair.rt[side] = NULL;
            end_all(WEFT_ERR_CLOSED, WEFT_ERR_PEER, WEFT_ERR_CANCELLED);
            if (side == 0) {
                all_over(r, WEFT_ERR_PEER, WEFT_ERR_CLOSED);
                weft_remote_drop(r);
            } else {
                far_free(region);
            }
            free_all();
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_ep_abort(far.pair.ep[!side], &op));
            far_end(WEFT_OK, &op);
            if (far.pair.listener)
                CHECK_OK(weft_listener_close(far.pair.listener, NULL));
            CHECK_OK(weft_runtime_close(far.pair.rt[!side]));
        }
    }
}

/* As when a cable or a middlebox breaks the connection. */
static void cut(uint16_t port)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in a;
        socklen_t len = sizeof a;
        if (!getpeername(fd, (struct sockaddr *)&a, &len) && a.sin_family == AF_INET && ntohs(a.sin_port) == port)
            shutdown(fd, SHUT_RDWR);
    }
}

static weft_status_t two_end(weft_status_t st, weft_op_t *op)
{
    return st ? st : two_wait(op, 10);
}

TEST(a_remote_ends_with_its_connection_and_is_attached_anew_after_a_reconnect)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        o.transports = transports[t];
        two_open(&o, &o);
        two.answer[0] = two.answer[1] = WEFT_RECONNECT;
        weft_ep_opts_t eo = two_ep_opts();
        eo.reconnect_first_ns = 10 * WEFT_MILLISECOND;
        weft_ep_t *ep = two_connect(&eo);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        weft_region_t *region;
        far_key_t key = {.len = WEFT_REGION_KEY_MAX};
        ro.len = 4096;
        CHECK_OK(weft_region_new(two.server, &ro, &region));
        CHECK_OK(weft_region_key(region, NULL, key.bytes, &key.len));
        weft_remote_t *olds[4] = {NULL};
        for (int round = 1; round <= 4; round++) {
            weft_op_t op = WEFT_OP_INIT;
            uint64_t word = (uint64_t)round, got = 0;
            CHECK_OK(two_end(weft_remote_attach(ep, key.bytes, key.len, NULL, &op), &op));
            weft_remote_t *r = olds[round - 1] = op.buf;
            CHECK_OK(two_end(weft_rma_write(r, 0, &word, 8, &op), &op));
            cut(weft_listener_port(two.listener));
            TWO_UNTIL(two.failed[0] == round && two.failed[1] == round, 5);
            TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_UP && weft_ep_get_state(two.accepted[0]) == WEFT_EP_UP, 5);
            for (int k = 0; k < round; k++) {
                CHECK_EQ(two_end(weft_rma_read(olds[k], 0, &got, 8, &op), &op), WEFT_ERR_PEER);
                CHECK_EQ(two_end(weft_rma_write(olds[k], 0, &got, 8, &op), &op), WEFT_ERR_PEER);
            }
            CHECK_EQ(got, 0);
            weft_region_info_t info = WEFT_REGION_INFO_INIT;
            CHECK_OK(weft_region_get_info(region, &info));
            CHECK_EQ(info.attached, 0);
            uint64_t *there = weft_region_base(region);
            CHECK_EQ(*there, round);
        }
        for (int k = 0; k < 4; k++)
            weft_remote_drop(olds[k]);
        CHECK_OK(weft_region_free(region, NULL));
        two_close();
    }
}

/* --- many, and oneself ---------------------------------------------------------------------------------------------------- */

TEST(more_remotes_than_a_region_can_map_are_checked_and_there_is_an_end_to_them)
{
    enum { MANY = 5000 };
    static weft_remote_t *r[MANY];
    each_way(way) {
        unsigned n = 0, mapped = 0;
        weft_status_t st = WEFT_OK;
        bool shm = !strcmp(way->transports, "shm");
        pair_open(&far.pair, way, NULL);
        weft_region_t *region = far_region(4096);
        far_key_t t = far_key(region, NULL);
        while (n < MANY && !(st = far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &r[n]))) {
            mapped += far_info(r[n]).path == WEFT_RMA_MAPPED;
            n++;
        }
        CHECK_EQ(st, WEFT_ERR_LIMIT);
        CHECK(n >= 1000 && (shm ? mapped >= 16 && mapped < n : mapped == 0));
        CHECK_EQ(far_region_info(region).attached, n);
        CHECK_EQ(far_region_info(region).mapped, mapped);
        if (shm) {
            weft_remote_t *extra = NULL;
            weft_remote_drop(r[--n]); /* one place, and it is not a mapped one's */
            st = far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_MAPPED, &extra);
            CHECK(st == WEFT_ERR_UNSUPPORTED || st == WEFT_ERR_LIMIT);
        }
        for (unsigned i = 0; i < n; i += 37) {
            uint64_t word = i, got = ~word;
            CHECK_OK(far_write(r[i], 8 * (i % 500), &word, 8));
            CHECK_OK(far_read(r[(i + 1) % n], 8 * (i % 500), &got, 8));
            CHECK_EQ(got, i);
        }
        far_revoke(region);
        for (unsigned i = 0; i < n; i += 11)
            CHECK_EQ(far_write(r[i], 0, &n, 4), WEFT_ERR_STALE);
        for (unsigned i = 0; i < n; i++)
            weft_remote_drop(r[i]);
        PAIR_UNTIL(&far.pair, far_region_info(region).attached == 0, 10);
        t = far_key(region, NULL); /* all places are free again, those to map it too */
        for (unsigned i = 0; i < mapped; i++) {
            CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &r[i]));
            CHECK_EQ(far_info(r[i]).path, WEFT_RMA_MAPPED);
        }
        for (unsigned i = 0; i < mapped; i++)
            weft_remote_drop(r[i]);
        far_free(region);
        pair_close(&far.pair);
    }
}

TEST(a_runtime_can_be_its_own_peer)
{
    static const pair_way_t ways[] = {{"shm", WEFT_PROGRESS_CALLER},
                                      {"tcp", WEFT_PROGRESS_CALLER},
                                      {"shm", WEFT_PROGRESS_THREAD},
                                      {"all", WEFT_PROGRESS_THREAD}};
    for (unsigned w = 0; w < 4; w++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
        o.transports = ways[w].transports;
        o.progress = ways[w].mode;
        memset(&far, 0, sizeof far);
        CHECK_OK(weft_runtime_open(&o, &far.pair.rt[0]));
        CHECK_OK(weft_listen(far.pair.rt[0], ports_tcp(), NULL, &far.pair.listener));
        CHECK_OK(weft_listener_accept(far.pair.listener, &accept));
        CHECK_OK(weft_ep_open(far.pair.rt[0], weft_listener_uri(far.pair.listener), NULL, &connect, &far.pair.ep[1]));
        CHECK_OK(far_end(WEFT_OK, &connect));
        CHECK_OK(far_end(WEFT_OK, &accept));
        weft_region_t *region = far_region(LEN);
        far_key_t t = far_key(region, NULL);
        static uint8_t out[LEN], in[LEN];
        for (int path = WEFT_RMA_ANY; path <= WEFT_RMA_CHECKED; path += 2) {
            weft_remote_t *r = NULL;
            CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, (weft_rma_path_t)path, &r));
            for (unsigned i = 0; i < SIZES; i++) {
                pattern_fill(out, sizes[i], i);
                CHECK_OK(far_write(r, 100, out, sizes[i]));
                CHECK_OK(far_read(r, 100, in, sizes[i]));
                CHECK_EQ(memcmp(out, in, sizes[i]), 0);
            }
            CHECK_OK(far_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0));
            weft_remote_drop(r);
        }
        far_revoke(region);
        far_free(region);
        CHECK_OK(weft_ep_abort(far.pair.ep[1], NULL));
        CHECK_OK(weft_ep_abort(accept.buf, NULL));
        CHECK_OK(weft_listener_close(far.pair.listener, NULL));
        CHECK_OK(weft_runtime_close(far.pair.rt[0]));
    }
}
