/* A peer that passed the hello and lies about payloads that move in chunks: memory of a device at our side, sent or pulled
 * into. Chunks nobody asked for, out of order, too long, under names of others; questions for more than there is; ends that
 * come early or twice. Its endpoint fails with WEFT_ERR_PROTOCOL or stands, our operations end, every stage comes back, and a
 * third peer notices nothing.
 *
 * ctest: tls timeout=600 */
#define TEST_SECONDS 280
#include "am/state.h"
#include "lib/fakedev.h"
#include "lib/offender.h"
#include "test.h"

enum { ID = 1, NAME = 0x4d, TOTAL = 3000 };

#define UNTIL(cond, seconds) \
    do { \
        double until_end = test_now() + (seconds); \
        while (!(cond)) { \
            offender_drive(); \
            if (test_now() > until_end) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)
#define EACH_TRANSPORT for (unsigned transport = 0; transport < 2; transport++)
static const char *const transports[] = {"shm", "tcp"};

/* --- our side ------------------------------------------------------------------------------------------------------------- */

static weft_op_t pull_op, send_op;
static void *source; /* device memory */

static void on_message(weft_am_t *am, void *user)
{
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    (void)user;
    o.kind = fakedev();
    if (weft_op_done(&pull_op) && !pull_op.buf)
        CHECK_OK(weft_am_pull_with(am, &o, &pull_op));
}

static void begin(const char *with)
{
    offender_begin(with);
    fakedev_install();
    CHECK_OK(weft_mem_alloc(fakedev(), OFFENDER_PAYLOAD, &source));
    CHECK_OK(weft_am_handle(off.witness.rt, ID, on_message, NULL, NULL));
}

static void end(void)
{
    offender_end();
    weft_mem_free(fakedev(), source, OFFENDER_PAYLOAD);
    CHECK_EQ(fakedev_live(), 0);
    fakedev_remove();
}

static void join(void)
{
    memset(&pull_op, 0, sizeof pull_op);
    memset(&send_op, 0, sizeof send_op);
    offender_join(true);
}

static void part(void)
{
    offender_part();
    UNTIL(weft_op_done(&pull_op) && weft_op_done(&send_op), 5);
    if (!pull_op.status && pull_op.buf)
        weft_mem_free(fakedev(), pull_op.buf, pull_op.len);
}

/* --- what the offender says ----------------------------------------------------------------------------------------------- */

static bool say(uint64_t kind, uint64_t a, uint64_t b, uint64_t c, size_t n)
{
    uint64_t rec[4] = {kind, a, b, c};
    return offender_put(rec, n);
}

static bool chunk(uint64_t name, uint64_t offset, uint64_t total)
{
    uint64_t rec[3] = {WEFTI_REC_CHUNK, name, offset};
    return offender_announce(rec, sizeof rec, total);
}

/* The first record of that kind it was told: its word number i. */
static uint64_t told(uint8_t kind, unsigned i)
{
    uint64_t word = 0;
    unsigned k = 0;
    for (double until = test_now() + 5; test_now() < until; offender_drive()) {
        for (k = 0; k < off.n_heard && off.heard[k].bytes[0] != kind; k++)
            ;
        if (k < off.n_heard)
            break;
    }
    CHECK(k < off.n_heard);
    memcpy(&word, off.heard[k].bytes + 8 * i, 8);
    return word;
}

/* Announce a payload of `total` bytes, which is pulled into device memory: what the pull is called, from the question for its
 * chunks. */
static uint64_t begin_pull(uint64_t total)
{
    am_announce_t a = {.word = {.kind = REC_ANNOUNCE}, .payload = NAME, .id = ID};
    CHECK(offender_announce(&a, sizeof a, total));
    CHECK_EQ(told(WEFTI_REC_CHUNKS, 1), NAME);
    CHECK_EQ(told(WEFTI_REC_CHUNKS, 3), total);
    return told(WEFTI_REC_CHUNKS, 2);
}

/* Send from device memory: what the payload is called. */
static uint64_t begin_send(void)
{
    weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
    o.id = 5;
    o.buf = source;
    o.len = OFFENDER_PAYLOAD;
    o.kind = fakedev();
    CHECK_OK(weft_am_send_with(off.victim, &o, &send_op));
    return told(WEFTI_REC_STAGED, 3); /* the room's record has its place behind two words, the name in its second */
}

#define ATTACK(what, verdict, ...) \
    do { \
        join(); \
        __VA_ARGS__ \
        offender_judge(what, verdict); \
        part(); \
    } while (0)

TEST(chunks_that_were_not_asked_for_fail_their_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("a chunk as it should be", STANDS, {
            uint64_t name = begin_pull(TOTAL);
            CHECK(chunk(name, 0, TOTAL));
            UNTIL(weft_op_done(&pull_op), 5);
            CHECK_OK(pull_op.status);
            CHECK_EQ(pull_op.len, TOTAL);
            chunk(name, 0, TOTAL); /* late: refused */
        });
        ATTACK("chunks as they should be", STANDS, {
            uint64_t name = begin_pull(TOTAL);
            CHECK(chunk(name, 0, 1000) && chunk(name, 1000, 1999) && chunk(name, 2999, 1));
            UNTIL(weft_op_done(&pull_op), 5);
            CHECK_OK(pull_op.status);
        });
        ATTACK("a chunk of nothing that was asked for", FAILS, { chunk(0x100000001, 0, 1000); });
        ATTACK("a chunk under name 0", FAILS, { chunk(0, 0, 1000); });
        ATTACK("a chunk longer than what was asked for", FAILS, { chunk(begin_pull(TOTAL), 0, TOTAL + 1); });
        ATTACK("a chunk longer than a stage", FAILS, { chunk(begin_pull(UINT64_C(4) << 20), 0, (512 << 10) + 1); });
        ATTACK("a chunk of 2^63 bytes", FAILS, { chunk(begin_pull(TOTAL), 0, UINT64_C(1) << 63); });
        ATTACK("a chunk from the middle", FAILS, { chunk(begin_pull(TOTAL), 500, 1000); });
        ATTACK("the same chunk twice", FAILS, {
            uint64_t name = begin_pull(TOTAL);
            if (chunk(name, 0, 1000))
                chunk(name, 0, 1000);
        });
        ATTACK("chunks beyond the end", FAILS, {
            uint64_t name = begin_pull(TOTAL);
            if (chunk(name, 0, 2000))
                chunk(name, 2000, 1001);
        });
        ATTACK("a chunk under another name", FAILS, { chunk(begin_pull(TOTAL) + 1, 0, 1000); });
        ATTACK("a chunk as a plain record", FAILS, { say(WEFTI_REC_CHUNK, begin_pull(TOTAL), 0, 0, 24); });
        ATTACK("a chunk's record that is too long", FAILS, {
            uint64_t rec[4] = {WEFTI_REC_CHUNK, begin_pull(TOTAL), 0, 0};
            offender_announce(rec, sizeof rec, 1000);
        });
        ATTACK("chunks given up by their sender", STANDS, {
            uint64_t name = begin_pull(TOTAL);
            CHECK(chunk(name, 0, 1000) && say(WEFTI_REC_TAKE_BACK, NAME, name, 0, 24));
            UNTIL(weft_op_done(&pull_op), 5);
            CHECK_EQ(pull_op.status, WEFT_ERR_SYSTEM);
        });
        ATTACK("chunks of another payload given up", FAILS, { say(WEFTI_REC_TAKE_BACK, NAME + 1, begin_pull(TOTAL), 0, 24); });
        ATTACK("a question, and then silence", STANDS, { begin_pull(TOTAL); });
        ATTACK("half of it, and then silence", STANDS, { CHECK(chunk(begin_pull(TOTAL), 0, 1500)); });
        end();
    }
}

TEST(questions_for_chunks_that_are_not_there_fail_their_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("a question as it should be, and its end", STANDS, {
            uint64_t name = begin_send();
            CHECK(say(WEFTI_REC_CHUNKS, name, 7, OFFENDER_PAYLOAD, 32));
            CHECK_EQ(told(WEFTI_REC_CHUNK, 1), 7);
            CHECK(say(WEFTI_REC_STAGED_END | 1 << 8, name, 0, 0, 16));
        });
        ATTACK("taken without a question", STANDS, {
            CHECK(say(WEFTI_REC_STAGED_END | 1 << 8, begin_send(), 0, 0, 16));
            UNTIL(weft_op_done(&send_op), 5);
            CHECK_OK(send_op.status);
        });
        ATTACK("refused without a reason", STANDS, {
            CHECK(say(WEFTI_REC_STAGED_END, begin_send(), 0, 0, 16));
            UNTIL(weft_op_done(&send_op), 5);
            CHECK(send_op.status != WEFT_OK);
        });
        ATTACK("an end that comes twice", FAILS, {
            uint64_t name = begin_send();
            if (say(WEFTI_REC_STAGED_END | 1 << 8, name, 0, 0, 16))
                say(WEFTI_REC_STAGED_END | 1 << 8, name, 0, 0, 16);
        });
        ATTACK("a question for more than there is", FAILS, { say(WEFTI_REC_CHUNKS, begin_send(), 7, OFFENDER_PAYLOAD + 1, 32); });
        ATTACK("a question for 2^64 - 1 bytes", FAILS, { say(WEFTI_REC_CHUNKS, begin_send(), 7, UINT64_MAX, 32); });
        ATTACK("a question for nothing", FAILS, { say(WEFTI_REC_CHUNKS, begin_send(), 7, 0, 32); });
        ATTACK("a question without a name", FAILS, { say(WEFTI_REC_CHUNKS, begin_send(), 0, 100, 32); });
        ATTACK("the same question twice", FAILS, {
            uint64_t name = begin_send();
            if (say(WEFTI_REC_CHUNKS, name, 7, 100, 32))
                say(WEFTI_REC_CHUNKS, name, 7, 100, 32);
        });
        ATTACK("a question about another payload", FAILS, { say(WEFTI_REC_CHUNKS, begin_send() + 1, 7, 100, 32); });
        ATTACK("an end of another payload", FAILS, { say(WEFTI_REC_STAGED_END, begin_send() + 1, 0, 0, 16); });
        ATTACK("a question, and then silence", STANDS, { CHECK(say(WEFTI_REC_CHUNKS, begin_send(), 7, OFFENDER_PAYLOAD, 32)); });
        end();
    }
}

TEST(staged_payloads_that_are_none_fail_their_endpoint_alone)
{
    static const uint64_t totals[] = {0, UINT64_C(1) << 40, UINT64_C(1) << 63, UINT64_MAX};
    struct {
        uint64_t kind, total;
        am_announce_t a;
    } rec = {WEFTI_REC_STAGED, TOTAL, {.payload = NAME, .id = ID}};
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        for (unsigned kind = 0; kind < 256; kind += kind < 0x28 ? 1 : 17) {
            char what[64];
            snprintf(what, sizeof what, "a staged payload of kind 0x%02x", kind);
            rec.total = TOTAL;
            rec.a.word.kind = (uint8_t)kind;
            if (kind != REC_ANNOUNCE && kind != WEFTI_REC_MSG_FIRST + 1)
                ATTACK(what, FAILS, { offender_put(&rec, sizeof rec); });
        }
        rec.a.word.kind = REC_ANNOUNCE;
        for (unsigned i = 0; i < sizeof totals / sizeof *totals; i++)
            ATTACK("a staged payload of an absurd length", totals[i] ? STANDS : FAILS, {
                rec.total = totals[i];
                offender_put(&rec, sizeof rec);
            });
        rec.total = TOTAL;
        for (size_t n = 8; n < sizeof rec; n += 8)
            ATTACK("a short one", FAILS, { offender_put(&rec, n); });
        ATTACK("two with one name", EITHER, {
            if (offender_put(&rec, sizeof rec))
                offender_put(&rec, sizeof rec);
        });
        struct {
            uint64_t kind, total;
            wefti_export_t export;
            am_announce_t a;
        } far = {WEFTI_REC_STAGED | 1 << 8, TOTAL, {.sort = WEFTI_EXPORT_CUDA_IPC, .size = TOTAL}, rec.a};
        for (uint32_t sort = 0; sort < 4; sort++) /* from another host it means nothing; on this one it is just not opened */
            ATTACK("an export", strcmp(transports[transport], "shm") ? FAILS : STANDS, {
                far.export.sort = sort;
                offender_put(&far, sizeof far);
            });
        end();
    }
}
