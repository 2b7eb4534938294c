/* tests/wire/rma_carried.c - accesses to remote memory whose buffer is CUDA memory of ours, against a driver made of paper: no
 * call waits for the GPU, on the mapped and on the checked path; accesses keep their order; and what is cancelled, fails or
 * loses its endpoint in the middle ends once.
 * ctest: timeout=300 gpu long */
#define TEST_SECONDS 280
#include "test.h"

#include <weft/weft.h>

#include "lib/cuda/use.h"
#include "lib/says.h"
#include "lib/two.h"
#include "rma/carried.h"

enum { LEN = 128 << 10, OPS = 200, STEP = 20000 };

/* The region is host memory: mapped by its user, or asked for. */
static const struct {
    const char *transports;
    weft_rma_path_t path;
} ways[] = {{"shm", WEFT_RMA_MAPPED}, {"shm", WEFT_RMA_CHECKED}, {"tcp", WEFT_RMA_CHECKED}};
#define EACH_WAY(w) for (int w = 0; w < 3; w++)

static weft_region_t *region;
static uint8_t *theirs; /* the region's bytes */
static uint8_t *mine;   /* the GPU's: STEP bytes for each operation */
static uint8_t model[LEN], back[STEP], host[OPS][STEP];
static weft_ep_t *ep;
static weft_remote_t *remote;
static weft_op_t op[OPS];
static unsigned n_told;

static void notified(weft_region_t *r, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    (void)r, (void)from, (void)user;
    CHECK_EQ(theirs[offset + len - 1], (uint8_t)value);
    n_told++;
}

static uint8_t *gpu(int i)
{
    return mine + (size_t)i * STEP;
}

static void put(int i, int byte, size_t n)
{
    CHECK_EQ(cu.MemsetD8((uintptr_t)gpu(i), (unsigned char)byte, n), 0);
    use_settle();
}

static const uint8_t *get(int i, size_t n)
{
    CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)gpu(i), n), 0);
    return back;
}

static void begin(int w)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_remote_opts_t to = WEFT_REMOTE_OPTS_INIT;
    weft_op_t found = WEFT_OP_INIT;
    void *ctx;
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&ctx, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(ctx), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&mine, OPS * STEP), 0);
    o.transports = ways[w].transports;
    two_open(&o, &o);
    ro.len = LEN;
    ro.name = "mem";
    ro.notify = notified;
    CHECK_OK(weft_region_new(two.server, &ro, &region));
    theirs = weft_region_base(region);
    ep = two_connect(NULL);
    to.path = ways[w].path;
    CHECK_OK(weft_remote_find(ep, "mem", &to, &found));
    CHECK_OK(two_wait(&found, 10));
    remote = weft_op_remote(&found);
    for (int i = 0; i < OPS; i++)
        op[i] = (weft_op_t)WEFT_OP_INIT;
    memset(model, 0, sizeof model);
    n_told = 0;
}

static void end(void)
{
    cu.paper->copy_ns = 0;
    weft_remote_drop(remote);
    two_close();
    CHECK_EQ(cu.MemFree((uintptr_t)mine), 0);
    SEEN(free_waits, 0);
}

static weft_status_t done(int i)
{
    return two_wait(&op[i], 20);
}

static void talk(void)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char got[8] = "";
    CHECK_OK(weft_msg_recv(two.accepted[0], got, sizeof got, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(ep, "again", 6, 1, &send));
    CHECK_OK(two_wait(&recv, 5));
    CHECK_OK(two_wait(&send, 5));
    CHECK_STR(got, "again");
}

/* --- what moves ------------------------------------------------------------------------------------------------------------ */

TEST(accesses_of_every_length_wait_for_no_gpu)
{
    static const size_t lens[] = {1, 2, 7, 4095, 4161, 8192, 8200, 8704, 8705, 20000};
    EACH_WAY(w)
    {
        begin(w);
        for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
            size_t n = lens[k];
            for (int i = 0; i < 4; i++)
                op[i] = (weft_op_t)WEFT_OP_INIT;
            put(0, (int)k + 1, n);
            CHECK_OK(weft_rma_write(remote, 3, gpu(0), n, &op[0]));
            CHECK_OK(weft_rma_read(remote, 3, gpu(1), n, &op[1]));
            CHECK_OK(done(0));
            CHECK_OK(done(1));
            CHECK(theirs[3] == k + 1 && theirs[2 + n] == k + 1);
            CHECK(get(1, n)[0] == k + 1 && back[n - 1] == k + 1);
            put(2, (int)k + 50, n);
            CHECK_OK(weft_rma_write_notify(remote, 5, gpu(2), n, k + 50, &op[2]));
            weft_iov_t iov[3] = {{gpu(3), n / 3}, {gpu(4), 0}, {gpu(5), n - n / 3}};
            CHECK_OK(weft_rma_readv(remote, 5, iov, 3, &op[3]));
            CHECK_OK(done(2));
            CHECK_OK(done(3));
            CHECK_EQ(n_told, k + 1);
            CHECK_EQ(get(5, n - n / 3)[n - n / 3 - 1], k + 50);
        }
        weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
        CHECK_OK(weft_remote_get_info(remote, &info));
        CHECK_EQ(info.path, ways[w].path);
        CHECK_EQ(info.reads, 2 * sizeof lens / sizeof *lens);
        SEEN(waits, 0);
        end();
    }
}

TEST(a_slow_gpu_holds_up_no_other_traffic)
{
    use_only_paper();
    EACH_WAY(w)
    {
        begin(w);
        for (int write = 0; write < 2; write++) {
            cu.paper->copy_ns = 0;
            put(0, 9, 1000);
            cu.paper->copy_ns = 300000000;
            op[0] = (weft_op_t)WEFT_OP_INIT;
            if (write)
                CHECK_OK(weft_rma_write(remote, 0, gpu(0), 1000, &op[0]));
            else
                CHECK_OK(weft_rma_read(remote, 0, gpu(0), 1000, &op[0]));
            int talks = 0;
            for (; !weft_op_done(&op[0]); talks++)
                talk();
            CHECK(talks > 3); /* thousands */
            CHECK_OK(op[0].status);
        }
        SEEN(waits, 0);
        end();
    }
}

static uint32_t rnd_state = 7;
static uint32_t rnd(uint32_t n)
{
    rnd_state = rnd_state * 1664525u + 1013904223u;
    return (rnd_state >> 8) % n;
}

TEST(accesses_keep_their_order_whatever_memory_their_buffers_are_in)
{
    static uint8_t seen[OPS][STEP];
    EACH_WAY(w)
    {
        begin(w);
        for (int round = 0; round < 40; round++) {
            struct {
                bool device, read;
                size_t len;
            } post[40];
            if (!use_real)
                cu.paper->copy_ns = rnd(3) * 20000;
            for (int i = 0; i < 40; i++) {
                uint64_t at = rnd(1000);
                int byte = (int)rnd(256);
                post[i].device = rnd(3);
                post[i].read = rnd(2);
                post[i].len = rnd(4) ? 1 + rnd(600) : rnd(2) ? 8192 : 9000 + rnd(11000);
                op[i] = (weft_op_t)WEFT_OP_INIT;
                void *buf = post[i].device ? gpu(i) : host[i];
                if (post[i].read) {
                    memcpy(seen[i], model + at, post[i].len);
                    CHECK_OK(weft_rma_read(remote, at, buf, post[i].len, &op[i]));
                } else {
                    if (post[i].device)
                        put(i, byte, post[i].len);
                    else
                        memset(buf, byte, post[i].len);
                    memset(model + at, byte, post[i].len);
                    CHECK_OK(weft_rma_write(remote, at, buf, post[i].len, &op[i]));
                }
                if (rnd(4) == 0)
                    two_drive();
            }
            for (int i = 0; i < 40; i++) {
                CHECK_OK(done(i));
                if (post[i].read)
                    CHECK(!memcmp(post[i].device ? get(i, post[i].len) : host[i], seen[i], post[i].len));
            }
            CHECK(!memcmp(theirs, model, LEN));
        }
        SEEN(waits, 0);
        end();
    }
}

TEST(batches)
{
    EACH_WAY(w)
    {
        begin(w);
        static weft_rma_item_t items[OPS];
        for (int i = 0; i < OPS; i++) {
            if (i % 2 == 0)
                put(i, i, 100);
            items[i] = (weft_rma_item_t){.remote = remote,
                                         .what = i % 2 ? WEFT_RMA_DO_READ : WEFT_RMA_DO_WRITE,
                                         .offset = (uint64_t)(i / 2) * 60, /* each overlaps the next */
                                         .buf = gpu(i),
                                         .len = 100};
        }
        CHECK_OK(weft_rma_batch(items, OPS, &op[0]));
        CHECK_OK(done(0));
        for (int i = 1; i < OPS; i += 2)
            CHECK(get(i, 100)[0] == i - 1 && back[99] == i - 1);
        SEEN(waits, 0);
        end();
    }
}

/* --- ends ------------------------------------------------------------------------------------------------------------------ */

/* Reads whose bytes are on their way to the GPU, writes whose bytes are on their way here, and an access behind them that needs
 * no GPU. The first copy of each way takes a second, and the others wait for it. */
static void pile_up(void)
{
    cu.paper->copy_ns = 0;
    for (int i = 0; i < 8; i++)
        put(i, 7, 100);
    for (int i = 0; i < 4; i++) {
        cu.paper->copy_ns = i ? 1000000 : 1000000000;
        CHECK_OK(weft_rma_read(remote, 1000, gpu(i), 100, &op[i]));
        TWO_UNTIL(rma_acc(&op[i])->state == ACC_CARRY, 5);
    }
    for (int i = 4; i < 8; i++) {
        cu.paper->copy_ns = i > 4 ? 1000000 : 1000000000;
        CHECK_OK(weft_rma_write(remote, 0, gpu(i), 100, &op[i]));
        CHECK(rma_carrying(rma_acc(&op[i])));
    }
    CHECK_OK(weft_rma_read(remote, 0, host[8], 100, &op[8]));
}

TEST(what_is_cancelled_ends_when_the_gpu_has_let_go_of_its_buffer)
{
    use_only_paper();
    EACH_WAY(w)
    {
        begin(w);
        pile_up();
        for (int i = 0; i < 8; i += 2)
            weft_op_cancel(&op[i]);
        two_run(0.02);
        for (int i = 0; i < 8; i++)
            CHECK(!weft_op_done(&op[i]));
        for (int i = 0; i < 4; i++)
            CHECK_OK(done(i)); /* it had its bytes */
        for (int i = 4; i < 8; i++)
            CHECK_EQ(done(i), i % 2 ? WEFT_OK : WEFT_ERR_CANCELLED);
        CHECK_OK(done(8));
        CHECK_EQ(host[8][99], 7);
        CHECK_EQ(get(0, 100)[0], 0);
        end();
    }
}

TEST(an_endpoint_is_lost_while_the_gpu_copies)
{
    use_only_paper();
    EACH_WAY(w)
    {
        for (int k = 0; k < 3; k++) {
            begin(w);
            pile_up();
            if (k == 0)
                CHECK_OK(weft_ep_abort(ep, NULL));
            else if (k == 1)
                CHECK_OK(weft_ep_abort(two.accepted[0], NULL));
            else
                weft_remote_drop(remote); /* what is under way goes on */
            for (int i = 0; i < 4; i++)
                CHECK_OK(done(i));
            for (int i = 4; i < 9; i++)
                CHECK_EQ(done(i), k == 0 ? WEFT_ERR_CANCELLED : k == 1 ? WEFT_ERR_PEER : WEFT_OK);
            CHECK_EQ(theirs[0], k < 2 ? 0 : 7);
            if (k == 2)
                remote = NULL;
            end();
        }
    }
}

TEST(a_runtime_closes_while_the_gpu_copies)
{
    use_only_paper();
    EACH_WAY(w)
    {
        begin(w);
        pile_up();
        CHECK_OK(weft_runtime_close(two.client));
        two.client = NULL;
        for (int i = 0; i < 9; i++)
            CHECK(weft_op_done(&op[i]));
        weft_remote_drop(remote);
        CHECK_EQ(cu.MemFree((uintptr_t)mine), 0);
        CHECK_EQ(cu.paper->free_waits, 0);
        CHECK_OK(weft_runtime_close(two.server));
    }
}

TEST(a_revoke_is_heard_of_after_the_gpu_has_copied)
{
    use_only_paper();
    EACH_WAY(w)
    {
        begin(w);
        weft_op_t revoked = WEFT_OP_INIT;
        pile_up();
        CHECK_OK(weft_region_revoke(region, &revoked));
        CHECK_OK(two_wait(&revoked, 10));
        for (int i = 0; i < 9; i++)
            CHECK_EQ(done(i), i < 4 ? WEFT_OK : WEFT_ERR_STALE);
        CHECK_EQ(theirs[0], 0);
        end();
    }
}

/* --- failures -------------------------------------------------------------------------------------------------------------- */

TEST(a_copy_that_fails_ends_its_access_and_those_behind_it_go_on)
{
    use_only_paper();
    EACH_WAY(w)
    {
        begin(w);
        put(0, 3, 100);
        put(1, 4, 100);
        cu.fail("cuMemcpy2DAsync_v2", 0, 1, 1);
        CHECK_OK(weft_rma_write(remote, 0, gpu(0), 100, &op[0]));
        CHECK_OK(weft_rma_write(remote, 0, gpu(1), 100, &op[1]));
        CHECK_EQ(done(0), WEFT_ERR_SYSTEM);
        SAYS(&op[0], "copying CUDA memory, 100 bytes: CUDA_ERROR_INVALID_VALUE");
        CHECK_OK(done(1));
        CHECK_EQ(theirs[0], 4);
        cu.fail("cuMemcpy2DAsync_v2", 0, 1, 1);
        CHECK_OK(weft_rma_read(remote, 0, gpu(2), 100, &op[2]));
        CHECK_EQ(done(2), WEFT_ERR_SYSTEM);
        SAYS(&op[2], "copying CUDA memory, 100 bytes: CUDA_ERROR_INVALID_VALUE");
        CHECK_OK(weft_rma_read(remote, 0, gpu(3), 100, &op[3]));
        CHECK_OK(done(3));
        CHECK_EQ(get(3, 100)[99], 4);
        end();
    }
}

TEST(without_carries_the_gpu_is_waited_for)
{
    EACH_WAY(w)
    {
        begin(w);
        static wefti_carry_t *carry[WEFTI_CARRIES_MAX];
        unsigned n = 0;
        while (n < WEFTI_CARRIES_MAX && (carry[n] = wefti_carry_get(two.client, 8)))
            n++;
        CHECK_EQ(n, WEFTI_CARRIES_MAX);
        for (unsigned left = 0; left < 3; left++) {
            for (int i = 0; i < 40; i += 2) {
                op[i] = op[i + 1] = (weft_op_t)WEFT_OP_INIT;
                put(i, i + (int)left, 100);
                CHECK_OK(weft_rma_write(remote, 0, gpu(i), 100, &op[i]));
                CHECK_OK(weft_rma_read(remote, 0, gpu(i + 1), 100, &op[i + 1]));
            }
            for (int i = 0; i < 40; i += 2) {
                CHECK_OK(done(i));
                CHECK_OK(done(i + 1));
                CHECK_EQ(get(i + 1, 100)[99], (uint8_t)(i + (int)left));
            }
            if (!use_real)
                CHECK(left || cu.paper->waits);
            wefti_carry_put(two.client, carry[--n]);
        }
        while (n)
            wefti_carry_put(two.client, carry[--n]);
        end();
    }
}
