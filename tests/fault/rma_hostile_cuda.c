/* fault/rma_hostile_cuda.c - a peer that passed the hello and then asks more of a region in CUDA memory than it may, while the
 * GPU (a driver made of paper) is busy: what is kept for it has a bound, and its endpoint alone fails; what may not be is refused
 * without waiting for the GPU.
 *
 * ctest: timeout=300 */
#define TEST_SECONDS 280
#include "test.h"

#include <malloc.h>

#include "lib/cuda/use.h"
#include "lib/offender.h"
#include "rma/serve.h"

enum { REGION = 65536 };
static uint8_t *memory; /* the GPU's */
static weft_region_t *region;
static uint8_t rec[WEFTI_REC_MAX];
static uint64_t grant;

static const char *const transports[] = {"shm", "tcp"};
#define EACH_TRANSPORT for (unsigned transport = 0; transport < 2; transport++)

static void begin(const char *with)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    void *ctx;
    use_only_paper();
    offender_begin(with); /* it forks: before CUDA */
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    CHECK_EQ(cu.PrimaryRetain(&ctx, 0), 0);
    CHECK_EQ(cu.CtxPushCurrent(ctx), 0);
    CHECK_EQ(cu.MemAlloc((uintptr_t *)&memory, REGION), 0);
    CHECK_EQ(cu.MemsetD8((uintptr_t)memory, 1, REGION), 0);
    o.len = REGION;
    o.buf = memory;
    o.name = "mem";
    CHECK_OK(weft_region_new(off.witness.rt, &o, &region));
    CHECK(region->by_turns);
}

static void end(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_region_free(region, &op));
    peer_wait(&off.witness, &op, 10);
    CHECK_OK(op.status);
    CHECK_EQ(cu.MemFree((uintptr_t)memory), 0);
    CHECK_EQ(cu.paper->free_waits, 0);
    offender_end();
}

static void join(void)
{
    rma_attach_t a = {.kind = REC_ATTACH, .flags = F_NAME, .len = 3, .id = 5};
    offender_join(true);
    off.n_heard = 0;
    memcpy(rec, &a, sizeof a);
    memcpy(rec + sizeof a, "mem", 3);
    CHECK(offender_put(rec, sizeof a + 3));
    for (double until = test_now() + 5; test_now() < until;) {
        for (unsigned i = 0; i < off.n_heard; i++) {
            if (off.heard[i].bytes[0] != REC_ATTACHED)
                continue;
            memcpy(&grant, off.heard[i].bytes + offsetof(rma_attached_t, grant), 8);
            return;
        }
        offender_drive();
    }
    FAIL("no grant");
}

static size_t request(uint8_t kind, uint64_t offset, uint64_t len)
{
    rma_request_t r = {.kind = kind, .id = 77, .grant = grant, .offset = offset, .len = len};
    memset(rec, 0xee, sizeof rec);
    memcpy(rec, &r, sizeof r);
    return sizeof r + (kind == REC_WRITE ? len : 0);
}

static size_t announced(void)
{
    rma_big_t b = {.kind = REC_WRITE_BIG, .payload = 0x1234567, .id = 77, .grant = grant};
    memcpy(rec, &b, sizeof b);
    return sizeof b;
}

static size_t in_use(void)
{
    struct mallinfo2 i = mallinfo2();
    return i.uordblks + i.hblkhd;
}

TEST(more_requests_than_may_be_unanswered_are_not_kept)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        for (int what = 0; what < 4; what += transport ? 3 : 1) {
            join();
            cu.paper->copy_ns = 2000000000u;
            CHECK(offender_put(rec, request(REC_READ, 0, 8)));
            for (double until = test_now() + 5; !region->turns.n && test_now() < until;)
                offender_drive();
            CHECK_EQ(region->turns.n, 1); /* and the GPU is busy for two seconds */
            cu.paper->copy_ns = 0;
            double before = (double)in_use(), most = 0;
            uint32_t kept = 0;
            for (unsigned i = 0; i < 4000; i++) {
                size_t n = what == 0  ? request(REC_WRITE, 0, 2000)
                           : what < 3 ? request(REC_READ, 0, what == 1 ? 8 : 40000)
                                      : announced();
                if (!(what == 3 ? offender_announce(rec, n, 40000) : offender_put(rec, n)))
                    break;
                const rma_ep_t *e = rma_ep(off.victim);
                kept = e && e->n_turns > kept ? e->n_turns : kept;
                most = (double)in_use() - before > most ? (double)in_use() - before : most;
            }
            printf("# %s: %u kept, %.1f MiB\n", transports[transport], kept, most / (1 << 20));
            CHECK(kept > 500 && kept <= RMA_REQUESTS);
            CHECK(most < 16 << 20);
            offender_judge("more than may be unanswered", FAILS);
            offender_part();
            CHECK(wefti_list_empty(&region->turns.waiting)); /* they went with the endpoint; the one that runs is let end */
            for (double until = test_now() + 5; region->turns.n && test_now() < until;)
                weft_runtime_progress(off.witness.rt);
            CHECK_EQ(region->turns.n, 0);
        }
        end();
    }
}

TEST(what_is_outside_or_misaligned_is_refused_in_no_time)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        join();
        cu.paper->copy_ns = 1000000000u;
        CHECK(offender_put(rec, request(REC_READ, 0, 8)));
        off.n_heard = 0;
        static const struct {
            uint8_t kind;
            uint64_t offset, len;
            weft_status_t st;
        } bad[] = {{REC_READ, REGION, 1, WEFT_ERR_RANGE},
                   {REC_READ, UINT64_MAX, 8, WEFT_ERR_RANGE},
                   {REC_READ, 1, REGION, WEFT_ERR_RANGE},
                   {REC_WRITE, REGION - 7, 8, WEFT_ERR_RANGE},
                   {REC_ATOMIC, 4, 8, WEFT_ERR_INVALID}};
        for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
            size_t n = request(bad[i].kind, bad[i].offset, bad[i].len);
            if (bad[i].kind == REC_ATOMIC) {
                rma_atomic_t a = {.operand = 1};
                memcpy(&a.req, rec, sizeof a.req);
                a.req.what = WEFT_RMA_ADD;
                a.req.width = 8;
                memcpy(rec, &a, n = sizeof a);
            }
            CHECK(offender_put(rec, n));
            for (double until = test_now() + 1; off.n_heard <= i && test_now() < until;)
                offender_drive();
            CHECK_EQ(off.n_heard, i + 1);
            rma_reply_t r;
            memcpy(&r, off.heard[i].bytes, sizeof r);
            CHECK_EQ(r.status, bad[i].st);
        }
        offender_judge("what is refused", STANDS);
        offender_part();
        end();
    }
}
