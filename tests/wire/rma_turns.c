/* tests/wire/rma_turns.c - a region in CUDA memory whose owner does not wait for the GPU, against a driver made of paper: other
 * traffic goes on, requests take effect in their order, atomics of two peers are atomic, and whatever ends meanwhile ends well.
 * ctest: timeout=300 gpu long */
#define TEST_SECONDS 280
#include "test.h"

#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <weft/weft.h>

#include "lib/cuda/use.h"
#include "lib/two.h"
#include "rma/serve.h"

enum { LEN = 256 << 10, PEERS = 2, OPS = 200 };

static const char *const transports[] = {"shm", "tcp"};
#define EACH_TRANSPORT(t) for (int t = 0; t < 2; t++)

static weft_region_t *region;
static uint8_t *memory; /* the GPU's */
static uint8_t model[LEN], back[LEN];
static weft_ep_t *ep[PEERS];
static weft_remote_t *remote[PEERS];
static weft_op_t op[OPS];
static uint8_t buf[OPS][20000];

/* --- the owner and its peers ----------------------------------------------------------------------------------------------- */

static unsigned n_told;
static uint64_t told[OPS];
static void (*when_told)(uint64_t offset, uint64_t len, uint64_t value);

static void notified(weft_region_t *r, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    (void)r, (void)from, (void)user;
    CHECK(n_told < OPS);
    told[n_told++] = value;
    if (when_told)
        when_told(offset, len, value);
}

static void cuda_begin(void)
{
    void *ctx;
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&ctx, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(ctx), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&memory, LEN), 0);
    CHECK_EQ(cu.MemsetD8((uintptr_t)memory, 0, LEN), 0);
    use_settle();
}

static void expose(void)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.buf = memory;
    o.len = LEN;
    o.name = "mem";
    o.notify = notified;
    CHECK_OK(weft_region_new(two.server, &o, &region));
    CHECK(region->by_turns);
}

/* Every access asks the owner. */
static weft_remote_t *find(weft_ep_t *at)
{
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    weft_op_t found = WEFT_OP_INIT;
    o.path = WEFT_RMA_CHECKED;
    CHECK_OK(weft_remote_find(at, "mem", &o, &found));
    CHECK_OK(two_wait(&found, 10));
    return weft_op_remote(&found);
}

static void begin(int t, weft_on_failure_t on_failure)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    cuda_begin();
    o.transports = transports[t];
    two_open(&o, &o);
    two.answer[0] = two.answer[1] = on_failure;
    expose();
    weft_ep_opts_t eo = two_ep_opts();
    eo.reconnect_first_ns = 10 * WEFT_MILLISECOND;
    for (int i = 0; i < PEERS; i++) {
        ep[i] = two_connect(&eo);
        remote[i] = find(ep[i]);
    }
    CHECK(ep[0] != ep[1]);
    for (int i = 0; i < OPS; i++)
        op[i] = (weft_op_t)WEFT_OP_INIT;
    n_told = 0;
    when_told = NULL;
    memset(model, 0, sizeof model);
}

/* Free what is left, and see that nothing is. */
static void end(void)
{
    weft_op_t freed = WEFT_OP_INIT;
    cu.paper->copy_ns = 0;
    for (int i = 0; i < PEERS; i++)
        weft_remote_drop(remote[i]);
    if (region) {
        CHECK_OK(weft_region_free(region, &freed));
        CHECK_OK(two_wait(&freed, 10));
    }
    two_close();
    CHECK_EQ(cu.MemFree((uintptr_t)memory), 0);
    SEEN(free_waits, 0);
}

static uint32_t running(void)
{
    return region->turns.n;
}

/* Does what is given to the GPU from now on take a second? What comes behind such a copy waits for it. */
static void slow(bool is)
{
    cu.paper->copy_ns = is ? 1000000000 : 1000000;
}

static void check_memory(void)
{
    CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)memory, LEN), 0);
    CHECK(!memcmp(back, model, LEN));
}

static void talk(void)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char got[8] = "";
    CHECK_OK(weft_msg_recv(two.accepted[0], got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(ep[0], "again", 6, 1, &send));
    CHECK_OK(two_wait(&recv, 5));
    CHECK_OK(two_wait(&send, 5));
    CHECK_STR(got, "again");
}

/* --- the GPU is slow ------------------------------------------------------------------------------------------------------- */

TEST(a_slow_gpu_holds_up_no_other_traffic)
{
    use_only_paper();
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_GIVE_UP);
        for (int what = 0; what < 3; what++) {
            cu.paper->copy_ns = 300000000; /* each copy takes 0.3 s */
            op[0] = (weft_op_t)WEFT_OP_INIT;
            memset(buf[0], 5 + what, 1000);
            if (what == 0)
                CHECK_OK(weft_rma_write(remote[0], 8, buf[0], 1000, &op[0]));
            else if (what == 1)
                CHECK_OK(weft_rma_read(remote[0], 8, buf[0], 1000, &op[0]));
            else
                CHECK_OK(weft_rma_atomic(remote[0], WEFT_RMA_ADD, 0, 8, 7, 0, &op[0]));
            TWO_UNTIL(running() == 1, 5);
            int talks = 0;
            for (; !weft_op_done(&op[0]); talks++)
                talk();
            CHECK(talks > 3); /* thousands */
            CHECK_OK(op[0].status);
            CHECK_EQ(running(), 0);
            if (what == 1)
                CHECK(buf[0][0] == 5 && buf[0][999] == 5);
        }
        CHECK_EQ(op[0].value, 0);
        SEEN(waits, 0);
        model[0] = 7;
        memset(model + 8, 5, 1000);
        check_memory();
        weft_region_info_t info = WEFT_REGION_INFO_INIT;
        CHECK_OK(weft_region_get_info(region, &info));
        CHECK(info.reads == 1 && info.bytes_read == 1000 && info.writes == 1 && info.bytes_written == 1000 && info.atomics == 1);
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        weft_runtime_get_stats(two.server, &stats);
        CHECK_EQ(stats.rma_served, 3 + PEERS);
        CHECK_EQ(stats.rma_refused, 0);
        end();
    }
}

TEST(reads_run_beside_reads_and_writes_beside_writes)
{
    use_only_paper();
    begin(0, WEFT_GIVE_UP);
    for (int i = 0; i < 100; i++) {
        slow(i == 0);
        CHECK_OK(weft_rma_write(remote[i % PEERS], (uint64_t)i * 100, buf[i], 100, &op[i]));
        TWO_UNTIL(i || running(), 5);
    }
    TWO_UNTIL(running() == 64, 5);
    for (int i = 0; i < 100; i++)
        CHECK_OK(two_wait(&op[i], 30));
    for (int i = 0; i < 10; i++) {
        op[i] = (weft_op_t)WEFT_OP_INIT;
        slow(i == 0);
        CHECK_OK(weft_rma_read(remote[i % PEERS], 0, buf[i], 100, &op[i]));
        TWO_UNTIL(i || running(), 5);
    }
    TWO_UNTIL(running() == 10, 5);
    op[10] = op[11] = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_rma_write(remote[0], 0, buf[20], 100, &op[10]));
    CHECK_OK(weft_rma_read(remote[0], 0, buf[21], 100, &op[11]));
    TWO_UNTIL(rma_ep(two.accepted[0])->n_turns == 7, 5);
    CHECK_EQ(running(), 10);
    for (int i = 0; i < 12; i++)
        CHECK_OK(two_wait(&op[i], 30));
    SEEN(waits, 0);
    end();
}

/* --- order ----------------------------------------------------------------------------------------------------------------- */

static uint32_t rnd_state = 1;
static uint32_t rnd(uint32_t n)
{
    rnd_state = rnd_state * 1664525u + 1013904223u;
    return (rnd_state >> 8) % n;
}

static void apply(uint64_t offset, uint64_t operand)
{
    uint64_t word;
    memcpy(&word, model + offset, 8);
    word += operand;
    memcpy(model + offset, &word, 8);
}

/* One after the other on one remote, none waited for; what a read has to see is known when it is posted. */
TEST(requests_of_one_remote_take_effect_in_the_order_of_their_posts)
{
    static uint8_t seen[60][20000];
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_GIVE_UP);
        for (int round = 0; round < 60; round++) {
            struct {
                int what;
                size_t len;
                uint64_t word;
            } post[60];
            if (!use_real)
                cu.paper->copy_ns = rnd(3) * 20000;
            for (int i = 0; i < 60; i++) {
                post[i].what = (int)rnd(4);
                post[i].len = rnd(4) ? 1 + rnd(600) : rnd(2) ? 8192 : 9000 + rnd(11000); /* some are long */
                uint64_t at = rnd(1000) & ~UINT64_C(7);
                op[i] = (weft_op_t)WEFT_OP_INIT;
                if (post[i].what == 0) {
                    memcpy(seen[i], model + at, post[i].len);
                    CHECK_OK(weft_rma_read(remote[0], at, buf[i], post[i].len, &op[i]));
                } else if (post[i].what == 1) {
                    memcpy(&post[i].word, model + at, 8);
                    apply(at, 3);
                    CHECK_OK(weft_rma_atomic(remote[0], WEFT_RMA_ADD, at, 8, 3, 0, &op[i]));
                } else {
                    memset(buf[i], (int)rnd(256), post[i].len);
                    memcpy(model + at, buf[i], post[i].len);
                    CHECK_OK(weft_rma_write(remote[0], at, buf[i], post[i].len, &op[i]));
                }
                if (rnd(4) == 0)
                    two_drive();
            }
            for (int i = 0; i < 60; i++) {
                CHECK_OK(two_wait(&op[i], 30));
                if (post[i].what == 0)
                    CHECK(!memcmp(buf[i], seen[i], post[i].len));
                if (post[i].what == 1)
                    CHECK_EQ(op[i].value, post[i].word);
            }
        }
        check_memory();
        SEEN(waits, 0);
        end();
    }
}

TEST(atomics_of_two_peers_at_once_are_atomic)
{
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_GIVE_UP);
        static bool had[OPS];
        memset(had, 0, sizeof had);
        for (int i = 0; i < OPS; i++)
            CHECK_OK(weft_rma_atomic(remote[i % PEERS], WEFT_RMA_ADD, 64, i % 3 ? 8 : 4, 1, 0, &op[i]));
        for (int i = 0; i < OPS; i++)
            CHECK_OK(two_wait(&op[i], 30));
        for (int i = 0; i < OPS; i++) { /* each saw another value */
            CHECK(op[i].value < OPS && !had[op[i].value]);
            had[op[i].value] = true;
        }
        model[64] = OPS;
        op[0] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_rma_atomic(remote[0], WEFT_RMA_CAS, 64, 8, 1, OPS, &op[0]));
        op[1] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_rma_atomic(remote[0], WEFT_RMA_CAS, 64, 8, 2, OPS, &op[1])); /* too late */
        CHECK_OK(two_wait(&op[0], 30));
        CHECK_OK(two_wait(&op[1], 30));
        CHECK(op[0].value == OPS && op[1].value == 1);
        model[64] = 1;
        check_memory();
        end();
    }
}

/* The bytes are what this write left: later writes to the same place wait. */
static void look_there(uint64_t offset, uint64_t len, uint64_t value)
{
    CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)memory + offset, len), 0);
    for (uint64_t i = 0; i < len; i++)
        CHECK_EQ(back[i], (uint8_t)value);
}

TEST(notifications_come_in_order_when_the_bytes_are_there)
{
    begin(0, WEFT_GIVE_UP);
    when_told = look_there;
    for (int i = 0; i < 60; i++) {
        size_t n = i % 7 == 3 ? 0 : i % 5 == 4 ? 12000 : 100 + (size_t)i;
        memset(buf[i], i, n);
        memset(model + 32, i, n);
        CHECK_OK(weft_rma_write_notify(remote[0], 32, buf[i], n, (uint64_t)i, &op[i]));
        if (i % 4 == 0) { /* and one that nobody is told of */
            memset(buf[100 + i], 0xaa, 10);
            memset(model + 32, 0xaa, 10);
            CHECK_OK(weft_rma_write(remote[0], 32, buf[100 + i], 10, &op[100 + i]));
        }
    }
    for (int i = 0; i < 60; i++)
        CHECK_OK(two_wait(&op[i], 30));
    for (int i = 0; i < 60; i += 4)
        CHECK_OK(two_wait(&op[100 + i], 30));
    CHECK_EQ(n_told, 60);
    for (unsigned i = 0; i < 60; i++)
        CHECK_EQ(told[i], i);
    check_memory();
    end();
}

/* --- ends ------------------------------------------------------------------------------------------------------------------ */

/* Eight writes, four of each peer, of which the first runs and is told of. All else waits. */
static void pile_up(void)
{
    for (int i = 0; i < 8; i++) {
        memset(buf[i], 1 + i, 100);
        slow(i == 0);
        if (i == 0)
            CHECK_OK(weft_rma_write_notify(remote[0], 0, buf[i], 100, 1, &op[i]));
        else
            CHECK_OK(weft_rma_write(remote[i / 4], 0, buf[i], 100, &op[i]));
        if (i == 0)
            TWO_UNTIL(running() == 1, 5);
        if (i == 3)
            TWO_UNTIL(rma_ep(two.accepted[0])->n_turns == 4, 5);
    }
    memset(buf[8], 9, 20000);
    CHECK_OK(weft_rma_write(remote[1], 0, buf[8], 20000, &op[8]));     /* long */
    CHECK_OK(weft_rma_read(remote[1], 100000, buf[9], 20000, &op[9])); /* the same */
    CHECK_OK(weft_rma_atomic(remote[1], WEFT_RMA_ADD, 50000, 8, 1, 0, &op[10]));
    TWO_UNTIL(rma_ep(two.accepted[1])->n_turns == 7, 5);
    CHECK(running() == 1 && rma_ep(two.accepted[0])->n_turns == 4); /* the first takes its time */
}

TEST(a_revoke_waits_for_what_runs_and_refuses_what_waits)
{
    use_only_paper();
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_GIVE_UP);
        weft_op_t revoked = WEFT_OP_INIT;
        pile_up();
        CHECK_OK(weft_region_revoke(region, &revoked));
        CHECK(!weft_op_done(&revoked));
        CHECK_OK(two_wait(&revoked, 10));
        CHECK_EQ(running(), 0);
        for (int i = 0; i < 11; i++)
            CHECK_EQ(two_wait(&op[i], 10), WEFT_ERR_STALE); /* the first, because its owner is not told any more */
        CHECK_EQ(n_told, 0);
        memset(model, 1, 100);
        check_memory();
        talk();
        end();
    }
}

TEST(a_region_is_freed_under_requests)
{
    use_only_paper();
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_GIVE_UP);
        weft_op_t freed = WEFT_OP_INIT;
        pile_up();
        CHECK_OK(weft_region_free(region, &freed));
        region = NULL;
        CHECK_OK(two_wait(&freed, 10));
        for (int i = 0; i < 11; i++)
            CHECK_EQ(two_wait(&op[i], 10), WEFT_ERR_STALE);
        memset(model, 1, 100);
        check_memory(); /* the memory is ours: nobody writes to it */
        talk();
        end();
    }
}

static void free_it(uint64_t offset, uint64_t len, uint64_t value)
{
    (void)offset, (void)len, (void)value;
    CHECK_OK(weft_region_free(region, NULL));
    region = NULL;
}

static uint64_t abort_at;
static void abort_them(uint64_t offset, uint64_t len, uint64_t value)
{
    (void)offset, (void)len;
    for (int i = 0; i < PEERS && value == abort_at; i++)
        CHECK_OK(weft_ep_abort(two.accepted[i], NULL));
}

TEST(a_notify_function_may_free_the_region_or_abort_its_peers)
{
    use_only_paper();
    for (unsigned k = 0; k < 3; k++) {
        begin(0, WEFT_GIVE_UP);
        when_told = k ? abort_them : free_it;
        abort_at = k; /* at the first that is told, or at the last, which has no bytes */
        pile_up();
        CHECK_OK(weft_rma_write_notify(remote[1], 0, NULL, 0, 2, &op[11]));
        CHECK_OK(weft_rma_write(remote[1], 60000, buf[0], 10, &op[12]));
        for (int i = 0; i < 13; i++) {
            weft_status_t st = two_wait(&op[i], 10);
            if (k == 0)
                CHECK_EQ(st, i ? WEFT_ERR_STALE : WEFT_OK);
            else if (k == 1)
                CHECK_EQ(st, WEFT_ERR_PEER);
            else
                CHECK_EQ(st, i < 8 || i == 10 ? WEFT_OK : i > 10 ? WEFT_ERR_PEER : st); /* long ones may end before it or after */
        }
        CHECK_EQ(n_told, k < 2 ? 1 : 2);
        end();
    }
}

TEST(a_peer_that_is_lost_leaves_the_others_their_turns)
{
    use_only_paper();
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_GIVE_UP);
        pile_up();
        CHECK_OK(weft_ep_abort(ep[0], NULL)); /* whose request runs */
        TWO_UNTIL(weft_ep_get_state(two.accepted[0]) != WEFT_EP_UP, 5);
        CHECK_EQ(rma_ep(two.accepted[0])->n_turns, 0);
        for (int i = 0; i < 11; i++)
            CHECK_EQ(two_wait(&op[i], 10), i < 4 ? WEFT_ERR_CANCELLED : WEFT_OK);
        CHECK_EQ(n_told, 0);
        memset(model, 9, 20000);
        model[50000] = 1;
        check_memory();
        remote[0] = NULL; /* it went with its endpoint; dropped below */
        end();
    }
}

TEST(an_endpoint_closes_after_its_requests_were_answered)
{
    use_only_paper();
    begin(1, WEFT_GIVE_UP);
    weft_op_t closed = WEFT_OP_INIT;
    pile_up();
    CHECK_OK(weft_ep_close(two.accepted[1], &closed));
    CHECK_OK(two_wait(&closed, 20));
    for (int i = 0; i < 11; i++)
        CHECK_OK(two_wait(&op[i], 10));
    end();
}

TEST(a_runtime_closes_under_requests)
{
    use_only_paper();
    for (int k = 0; k < 2; k++) {
        begin(k, WEFT_GIVE_UP);
        pile_up();
        CHECK_OK(weft_runtime_close(two.server)); /* with its region */
        two.server = NULL;
        region = NULL;
        for (int i = 0; i < 11; i++)
            (void)two_wait(&op[i], 10);
        CHECK_EQ(cu.MemFree((uintptr_t)memory), 0);
        CHECK_EQ(cu.paper->free_waits, 0);
        for (int i = 0; i < PEERS; i++)
            weft_remote_drop(remote[i]);
        CHECK_OK(weft_runtime_close(two.client));
    }
}

/* Break every connection to the listener, as a cable would. */
static void cut(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in a;
        socklen_t len = sizeof a;
        if (!getpeername(fd, (struct sockaddr *)&a, &len) && a.sin_family == AF_INET &&
            ntohs(a.sin_port) == weft_listener_port(two.listener))
            shutdown(fd, SHUT_RDWR);
    }
}

TEST(what_came_over_a_lane_that_is_gone_is_not_answered_over_the_next)
{
    use_only_paper();
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_RECONNECT);
        pile_up();
        for (int i = 0; i < 4; i++) {
            CHECK_OK(weft_rma_read(remote[0], 0, buf[20 + i], 8, &op[20 + i]));
            two_drive();
        }
        cut();
        TWO_UNTIL(two.failed[0] == PEERS && two.failed[1] == PEERS, 5);
        TWO_UNTIL(weft_ep_get_state(ep[0]) == WEFT_EP_UP && weft_ep_get_state(two.accepted[0]) == WEFT_EP_UP, 5);
        for (int i = 0; i < 11; i++)
            CHECK_EQ(two_wait(&op[i], 10), WEFT_ERR_PEER);
        weft_remote_t *anew = find(ep[0]);
        cu.paper->copy_ns = 0;
        for (int i = 0; i < 4; i++) {
            op[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_rma_read(anew, 0, buf[i], 8, &op[i]));
            CHECK_OK(two_wait(&op[i], 10));
        }
        two_run(0.2);
        CHECK(weft_ep_get_state(ep[0]) == WEFT_EP_UP && two.failed[1] == PEERS);
        weft_remote_drop(anew);
        end();
    }
}

TEST(a_long_write_that_waits_is_taken_back)
{
    use_only_paper();
    EACH_TRANSPORT(t)
    {
        begin(t, WEFT_GIVE_UP);
        pile_up();
        weft_op_cancel(&op[8]);
        CHECK_EQ(two_wait(&op[8], 10), WEFT_ERR_CANCELLED);
        CHECK_EQ(running(), 1); /* long before its turn */
        for (int i = 0; i < 11; i++)
            CHECK_EQ(two_wait(&op[i], 10), i == 8 ? WEFT_ERR_CANCELLED : WEFT_OK);
        memset(model, 8, 100);
        model[50000] = 1;
        check_memory();
        two_run(0.05);
        CHECK_EQ(rma_ep(ep[1])->n_asked, 0); /* it was answered all the same */
        end();
    }
}

/* --- failures -------------------------------------------------------------------------------------------------------------- */

TEST(a_copy_that_fails_ends_its_request_alone)
{
    use_only_paper();
    begin(0, WEFT_GIVE_UP);
    static const unsigned after[] = {0, 1, 2, 3};
    for (unsigned k = 0; k < 4; k++) { /* the write, the read, the atomic's word on its way here, and back */
        cu.fail("cuMemcpy2DAsync_v2", after[k], 1, 1);
        for (int i = 0; i < 3; i++)
            op[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_rma_write(remote[0], 0, buf[0], 100, &op[0]));
        CHECK_OK(weft_rma_read(remote[0], 0, buf[1], 100, &op[1]));
        CHECK_OK(weft_rma_atomic(remote[0], WEFT_RMA_ADD, 0, 8, 1, 0, &op[2]));
        for (unsigned i = 0; i < 3; i++)
            CHECK_EQ(two_wait(&op[i], 10), (k < 3 ? k : 2) == i ? WEFT_ERR_SYSTEM : WEFT_OK);
        cu.fail("cuMemcpy2DAsync_v2", 0, 0, 0);
        CHECK_EQ(running(), 0);
    }
    talk();
    end();
}

TEST(a_gpu_that_fails_under_requests_ends_them)
{
    use_only_paper();
    begin(0, WEFT_GIVE_UP);
    pile_up();
    cu.fail("copy", 0, 700, -1); /* when it is done; the context is of no use from then on */
    for (int i = 0; i < 11; i++)
        CHECK(two_wait(&op[i], 10));
    CHECK_EQ(running(), 0);
    talk();
    for (int i = 0; i < PEERS; i++)
        weft_remote_drop(remote[i]);
    two_close();
}

TEST(without_carries_the_gpu_is_waited_for)
{
    begin(0, WEFT_GIVE_UP);
    static wefti_carry_t *carry[WEFTI_CARRIES_MAX];
    unsigned n = 0;
    while (n < WEFTI_CARRIES_MAX && (carry[n] = wefti_carry_get(two.server, 8)))
        n++;
    CHECK_EQ(n, WEFTI_CARRIES_MAX);
    memset(buf[0], 3, 1000);
    memset(model, 3, 1000);
    for (unsigned left = 0; left < 3; left++) { /* none; one, which is used by turns; two */
        for (int i = 0; i < 30; i += 3) {
            for (int k = 0; k < 3; k++)
                op[i + k] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_rma_write(remote[0], 0, buf[0], 1000, &op[i]));
            CHECK_OK(weft_rma_read(remote[1], 0, buf[i + 1], 1000, &op[i + 1]));
            CHECK_OK(weft_rma_atomic(remote[1], WEFT_RMA_ADD, 1000, 8, 1, 0, &op[i + 2]));
        }
        for (int i = 0; i < 30; i++)
            CHECK_OK(two_wait(&op[i], 10));
        for (int i = 3; i < 30; i += 3)
            CHECK(!memcmp(buf[i + 1], buf[0], 1000));
        model[1000] = (uint8_t)(10 * (left + 1));
        check_memory();
        if (!use_real)
            CHECK(left || cu.paper->waits);
        wefti_carry_put(two.server, carry[--n]);
    }
    while (n)
        wefti_carry_put(two.server, carry[--n]);
    end();
}

static int no_memory(size_t n)
{
    (void)n;
    return 1;
}

TEST(without_memory_each_request_is_still_answered)
{
    use_only_paper();
    begin(0, WEFT_GIVE_UP);
    CHECK_OK(weft_rma_write(remote[0], 0, buf[0], 100, &op[0])); /* so that all there is to make is made */
    CHECK_OK(two_wait(&op[0], 10));
    pile_up(); /* the line is long enough for every spare one to be out */
    for (int i = 20; i < 120; i++)
        CHECK_OK(weft_rma_write(remote[0], 0, buf[i], 100, &op[i]));
    wefti_alloc_fails = no_memory;
    two_run(0.01);
    wefti_alloc_fails = NULL;
    bool refused = false;
    for (int i = 20; i < 120; i++) {
        weft_status_t st = two_wait(&op[i], 20);
        CHECK(!st || st == WEFT_ERR_NOMEM);
        refused |= st == WEFT_ERR_NOMEM;
    }
    CHECK(refused);
    talk();
    end();
}

/* --- a process that is killed ---------------------------------------------------------------------------------------------- */

TEST(a_peer_is_killed_under_its_requests)
{
    use_only_paper();
    EACH_TRANSPORT(t)
    {
        int uri[2];
        CHECK(!pipe(uri));
        pid_t user = fork(); /* before CUDA */
        CHECK(user >= 0);
        if (!user) {
            weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
            weft_runtime_t *rt;
            weft_ep_t *to;
            char text[256] = "";
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            o.transports = transports[t];
            if (read(uri[0], text, sizeof text - 1) <= 0 || weft_runtime_open(&o, &rt) ||
                weft_ep_connect(rt, text, NULL, 10 * WEFT_SECOND, &to) || weft_remote_find(to, "mem", NULL, &op[0]) ||
                weft_op_wait(&op[0], 10 * WEFT_SECOND))
                _exit(1);
            for (int i = 1; i < OPS; i++) {
                memset(buf[i], 7, 3000);
                if (weft_rma_write_notify(weft_op_remote(&op[0]), 0, buf[i], 3000, 1, &op[i]))
                    _exit(1);
            }
            for (;;)
                weft_runtime_progress(rt);
        }
        begin(t, WEFT_GIVE_UP);
        const char *at = weft_listener_uri(two.listener);
        CHECK_EQ(write(uri[1], at, strlen(at)), (ssize_t)strlen(at));
        slow(true);
        TWO_UNTIL(two.n_accepted == 3 && running() == 1 && rma_ep(two.accepted[2])->n_turns > 1, 20);
        CHECK_EQ(kill(user, SIGKILL), 0);
        CHECK_EQ(waitpid(user, NULL, 0), user);
        TWO_UNTIL(two.failed[0] == 1, 20);
        slow(false);
        TWO_UNTIL(!running(), 10); /* what ran has ended; nothing of it is left in the line */
        CHECK(wefti_list_empty(&region->turns.waiting));
        cu.paper->copy_ns = 0;
        CHECK_OK(weft_rma_read(remote[0], 0, buf[0], 3000, &op[0]));
        CHECK_OK(two_wait(&op[0], 10));
        CHECK(buf[0][0] == 7 && buf[0][2999] == 7);
        close(uri[0]);
        close(uri[1]);
        end();
    }
}
