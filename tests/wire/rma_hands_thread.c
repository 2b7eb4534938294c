/* wire/rma_hands_thread.c - long mapped accesses that idle threads copy a part of: every byte is in its place; one that is
 * cancelled, revoked, or ends with its runtime leaves no thread in its buffer. ctest: tls timeout=300 long */
#define TEST_SECONDS 280
#include "base/hands.h"
#include "lib/far.h"
#include "rma/state.h"
#include "test.h"

enum { MB = 1 << 20, LEN = 12 * MB + 4321 };

static uint8_t buf[LEN + 64], want[LEN];
static weft_region_t *region;
static weft_remote_t *remote;

static void fill(uint8_t *at, uint32_t seed)
{
    for (size_t i = 0; i < LEN; i++)
        at[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
}

/* Two hands, even on a machine with one processor, and whatever else it does. */
static void open_with(const char *threads)
{
    wefti_hands_processors = 6;
    wefti_hands_patient = true;
    setenv("WEFT_COPY_THREADS", threads, 1);
    far_open(&far_ways[0], NULL);
    region = far_region(LEN);
    remote = far_attach(region, NULL);
    CHECK_EQ(far_info(remote).path, WEFT_RMA_MAPPED);
}

static void end(void)
{
    weft_remote_drop(remote);
    far_free(region);
    far_close();
    CHECK_EQ(wefti_hands_n(), 0);
}

/* Begin one, and drive until hands and the driver are at it. */
static void post_read(weft_op_t *op)
{
    *op = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_rma_read(remote, 0, buf, LEN, op));
    for (int i = 0; i < 3 && !weft_op_done(op); i++)
        pair_drive(&far.pair);
}

TEST(every_byte_is_in_its_place)
{
    open_with("2");
    uint64_t before = wefti_hands_did();
    for (uint32_t i = 0; i < 20 || (wefti_hands_did() == before && i < 2000); i++) {
        uint8_t *at = buf + i % 64; /* whatever its alignment */
        fill(want, i);
        memcpy(at, want, LEN);
        CHECK_OK(far_write(remote, 0, at, LEN));
        CHECK(!memcmp(weft_region_base(region), want, LEN));
        memset(at, 0, LEN);
        CHECK_OK(far_read(remote, 0, at, LEN));
        CHECK(!memcmp(at, want, LEN));
    }
    CHECK(wefti_hands_did() > before);
    CHECK(wefti_hands_n() == 2);
    end();
}

TEST(scattered_buffers_and_parts_of_a_region_too)
{
    open_with("2");
    fill(weft_region_base(region), 7);
    fill(want, 7);
    weft_iov_t iov[3] = {{buf, 3 * MB + 1}, {buf + 4 * MB, 4 * MB - 77}, {buf + 9 * MB, 2 * MB}};
    size_t n = iov[0].len + iov[1].len + iov[2].len, at = 1001;
    for (int i = 0; i < 10; i++) {
        weft_op_t op = WEFT_OP_INIT;
        memset(buf, 0, sizeof buf);
        CHECK_OK(far_end(weft_rma_readv(remote, 1001, iov, 3, &op), &op));
        CHECK_EQ(op.len, n);
        for (int k = 0; k < 3; at += iov[k++].len)
            CHECK(!memcmp(iov[k].base, want + at, iov[k].len));
        at = 1001;
        CHECK(!buf[iov[0].len] && !buf[9 * MB - 1] && !buf[11 * MB]);
    }
    end();
}

TEST(without_hands_it_is_the_same)
{
    open_with("0");
    fill(weft_region_base(region), 3);
    fill(want, 3);
    uint64_t before = wefti_hands_did();
    CHECK_OK(far_read(remote, 0, buf, LEN));
    CHECK(!memcmp(buf, want, LEN));
    CHECK_EQ(wefti_hands_did(), before);
    CHECK_EQ(wefti_hands_n(), 0);
    end();
}

TEST(one_that_is_cancelled_in_the_middle_leaves_its_buffer_alone)
{
    open_with("2");
    fill(weft_region_base(region), 1);
    unsigned cancelled = 0;
    for (int i = 0; i < 200; i++) {
        weft_op_t op;
        post_read(&op);
        weft_op_cancel(&op);
        weft_status_t st = pair_wait(&far.pair, &op, 10);
        CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
        cancelled += st == WEFT_ERR_CANCELLED;
        CHECK(!rma_state(far.pair.rt[1])->window.acc);
        memset(buf, 0xa5, LEN); /* it is ours again: a thread that wrote to it now would be seen, by a sanitizer too */
        for (size_t k = 0; k < LEN; k += 4096)
            CHECK_EQ(buf[k], 0xa5);
    }
    CHECK(cancelled);
    CHECK_OK(far_read(remote, 0, buf, LEN));
    CHECK(!memcmp(buf, weft_region_base(region), LEN));
    end();
}

TEST(a_revoke_in_the_middle_ends_it)
{
    for (int i = 0; i < 5; i++) {
        weft_op_t op;
        open_with("2");
        post_read(&op);
        far_revoke(region);
        weft_status_t st = pair_wait(&far.pair, &op, 10);
        CHECK(st == WEFT_OK || st == WEFT_ERR_STALE);
        memset(buf, 0, LEN);
        CHECK_EQ(far_read(remote, 0, buf, LEN), WEFT_ERR_STALE);
        end();
    }
}

TEST(the_runtime_is_closed_in_the_middle)
{
    for (int i = 0; i < 5; i++) {
        weft_op_t op;
        open_with("2");
        post_read(&op);
        CHECK_OK(weft_runtime_close(far.pair.rt[1]));
        CHECK(weft_op_done(&op));
        memset(buf, 0, LEN);
        CHECK_OK(weft_runtime_close(far.pair.rt[0]));
        CHECK_EQ(wefti_hands_n(), 0);
        weft_remote_drop(remote);
    }
}
