/* A peer that passed the hello and then sends malformed records of active messages straight on its lane: short ones, lengths
 * beyond the record, credit nobody gave, more messages than it was granted, answers about nothing, headers that never end,
 * payloads of absurd lengths, chunks nobody asked for. Its endpoint fails with WEFT_ERR_PROTOCOL, or is held by its window
 * where the bytes are legal; a third peer of the same runtime notices nothing.
 *
 * ctest: tls-long timeout=600 */
#define TEST_SECONDS 280
#include "am/state.h"
#include "lib/offender.h"
#include "test.h"

enum { PLAIN = 1, KEEP, PULL, RECV, TAKE, UNKNOWN = 1000 };
enum { KEPT = 100, WINDOW = 512 << 10, MESSAGES = 4096 };

static weft_op_t recv_op, take_op;
static uint64_t n_plain, pulls_out;
static weft_am_t *kept[KEPT];
static unsigned n_kept;

#define UNTIL(cond, seconds) \
    do { \
        double until_end = test_now() + (seconds); \
        while (!(cond)) { \
            offender_drive(); \
            if (test_now() > until_end) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)

/* --- our side: everything an active message can meet ---------------------------------------------------------------------- */

static void on_plain(weft_am_t *am, void *user)
{
    volatile uint8_t sum = 0; /* every byte it claims to have is there to be read */
    (void)user;
    for (uint32_t i = 0; i < am->header_len; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)am->header)[i]);
    for (uint64_t i = 0; am->data && i < am->len; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)am->data)[i]);
    n_plain++;
}

static void on_keep(weft_am_t *am, void *user)
{
    (void)user;
    if (n_kept < KEPT && (kept[n_kept] = weft_am_keep(am)))
        n_kept++;
}

static void pull_done(weft_op_t *op, void *user)
{
    (void)user;
    if (!op->status)
        weft_mem_free(NULL, op->buf, op->len);
    pulls_out--;
    free(op);
}

static void on_pull(weft_am_t *am, void *user)
{
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    weft_op_t *op = calloc(1, sizeof *op);
    (void)user;
    op->fn = pull_done;
    if (weft_am_pull_with(am, &o, op))
        free(op);
    else
        pulls_out++;
}

static void begin(const char *transports)
{
    offender_begin(transports);
    CHECK_OK(weft_am_handle(off.witness.rt, PLAIN, on_plain, NULL, NULL));
    CHECK_OK(weft_am_handle(off.witness.rt, KEEP, on_keep, NULL, NULL));
    CHECK_OK(weft_am_handle(off.witness.rt, PULL, on_pull, NULL, NULL));
}

static void join(void)
{
    weft_am_recv_opts_t ro = WEFT_AM_RECV_OPTS_INIT;
    offender_join(false);
    memset(&recv_op, 0, sizeof recv_op);
    memset(&take_op, 0, sizeof take_op);
    ro.ep = off.victim;
    ro.id = RECV;
    CHECK_OK(weft_am_recv(off.witness.rt, &ro, &recv_op));
    CHECK_OK(weft_am_take(off.witness.rt, off.victim, TAKE, &take_op));
}

static void part(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    while (n_kept)
        weft_am_release(kept[--n_kept]);
    offender_part();
    CHECK(weft_op_done(&recv_op) && weft_op_done(&take_op));
    if (!recv_op.status)
        weft_mem_free(NULL, recv_op.buf, recv_op.len);
    if (!take_op.status)
        weft_am_release(take_op.buf);
    offender_drive_for(0.001);
    CHECK_EQ(pulls_out, 0);
    weft_runtime_get_stats(off.witness.rt, &s);
    CHECK_EQ(s.am_held, 0);
    CHECK_EQ(s.am_held_bytes, 0);
}

/* A new connection in place of one that stands. */
static void rejoin(void)
{
    CHECK_EQ(weft_ep_get_state(off.victim), WEFT_EP_UP);
    part();
    join();
}

/* --- records -------------------------------------------------------------------------------------------------------------- */

static uint8_t rec[WEFTI_REC_MAX];
/* An eager record with `tail` bytes behind its head. */
static size_t eager(uint8_t flags, uint32_t id, uint32_t header_len, size_t tail)
{
    am_head_t head = {.word = {.kind = REC_EAGER, .flags = flags}, .id = id, .header_len = header_len};
    memset(rec, 0x5a, sizeof rec);
    memcpy(rec, &head, sizeof head);
    return sizeof head + tail;
}
static size_t announcement(uint8_t kind, uint8_t flags, uint32_t id, uint32_t header_len, size_t tail)
{
    am_announce_t a = {.word = {.kind = kind, .flags = flags}, .payload = 0x1234567, .id = id, .header_len = header_len};
    memset(rec, 0x5a, sizeof rec);
    memcpy(rec, &a, sizeof a);
    return sizeof a + tail;
}
static size_t word(uint8_t kind, uint8_t flags, uint16_t msgs, uint32_t bytes)
{
    wefti_word_t w = {.kind = kind, .flags = flags, .msgs = msgs, .bytes = bytes};
    memset(rec, 0x5a, sizeof rec);
    memcpy(rec, &w, sizeof w);
    return sizeof w;
}
static size_t answer(uint8_t flags, uint64_t about, uint32_t reason)
{
    am_answer_t a = {.word = {.kind = REC_ANSWER, .flags = flags}, .about = about, .reason = reason};
    memcpy(rec, &a, sizeof a);
    return sizeof a;
}

/* --- the attacks, each over both transports on a connection of its own ---------------------------------------------------- */

static void judge(const char *what, verdict_t verdict)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    offender_judge(what, verdict);
    CHECK(!weft_op_done(&off.ours) || (weft_op_done(&recv_op) && weft_op_done(&take_op)));
    weft_runtime_get_stats(off.witness.rt, &s);
    CHECK(s.am_held_bytes <= 2 * WINDOW); /* the offender's window and the witness's */
}

#define ATTACK(what, verdict, ...) \
    do { \
        join(); \
        __VA_ARGS__ \
        judge(what, verdict); \
        part(); \
    } while (0)
#define EACH_TRANSPORT for (unsigned transport = 0; transport < 2; transport++)
static const char *const transports[] = {"shm", "tcp"};

TEST(records_that_are_short_or_of_no_kind_fail_their_endpoint_alone)
{
    static const struct {
        uint8_t kind;
        size_t lens[6];
    } cut[] = {
        {REC_EAGER, {1, 7, 8, 15}}, {REC_HEAD, {1, 7}},     {REC_ANSWER, {1, 8, 16, 23, 25}},
        {REC_CREDIT, {1, 7, 9}},    {REC_STARVED, {4, 12}}, {WEFTI_REC_AM_LAST, {1, 8, 64}},
    };
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        for (unsigned i = 0; i < sizeof cut / sizeof *cut; i++) {
            for (unsigned k = 0; k < 6 && cut[i].lens[k]; k++) {
                char what[64];
                snprintf(what, sizeof what, "kind 0x%02x of %zu bytes", cut[i].kind, cut[i].lens[k]);
                ATTACK(what, FAILS, {
                    memset(rec, 0, 64);
                    rec[0] = cut[i].kind;
                    offender_put(rec, cut[i].lens[k]);
                });
            }
        }
        offender_end();
    }
}

TEST(header_lengths_beyond_the_record_fail_their_endpoint_alone)
{
    static const uint32_t lens[] = {1, 9, 100, WEFT_AM_HEADER_MAX + 1, 0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff};
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
            ATTACK("a header longer than its record", FAILS, { offender_put(rec, eager(0, PLAIN, lens[i], i == 1 ? 8 : 0)); });
            ATTACK("a header longer than its announcement", FAILS,
                   { offender_announce(rec, announcement(REC_ANNOUNCE, 0, KEEP, lens[i], i == 1 ? 8 : 0), OFFENDER_PAYLOAD); });
            ATTACK("a header longer than its record with the answer's id", FAILS,
                   { offender_put(rec, eager(F_CONFIRM, PLAIN, lens[i], 8)); });
        }
        ATTACK("no place for the answer's id", FAILS, { offender_put(rec, eager(F_CONFIRM, PLAIN, 0, 4)); });
        ATTACK("an unknown flag", FAILS, { offender_put(rec, eager(0x80, PLAIN, 0, 8)); });
        ATTACK("the id that is none", FAILS, { offender_put(rec, eager(0, WEFT_AM_ANY_ID, 0, 8)); });
        ATTACK("the id that is none, announced", FAILS,
               { offender_announce(rec, announcement(REC_ANNOUNCE, 0, WEFT_AM_ANY_ID, 0, 0), OFFENDER_PAYLOAD); });
        ATTACK("an honest record", STANDS, {
            uint64_t was = n_plain;
            offender_put(rec, eager(0, PLAIN, 13, 16 + 100));
            UNTIL(n_plain == was + 1, 5);
        });
        offender_end();
    }
}

TEST(credit_that_cannot_be_fails_its_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("more bytes than a window has", FAILS, {
            for (int i = 0; i < 64 && offender_put(rec, word(REC_CREDIT, 0, 1, UINT32_MAX)); i++)
                ;
        });
        ATTACK("more messages than a window has", FAILS, {
            for (int i = 0; i < 100000 && offender_put(rec, word(REC_CREDIT, 0, UINT16_MAX, 1)); i++)
                ;
        });
        ATTACK("more credit on messages than a window has", FAILS, {
            for (int i = 0; i < 64; i++) {
                size_t n = eager(0, PLAIN, 0, 8);
                ((wefti_word_t *)(void *)rec)->bytes = UINT32_MAX;
                if (!offender_put(rec, n))
                    break;
            }
        });
        ATTACK("a flood of credits of nothing", EITHER, {
            for (int i = 0; i < 20000 && offender_put(rec, word(REC_CREDIT, 0, 0, 0)); i++)
                ;
        });
        ATTACK("a flood of questions for credit", EITHER, {
            for (int i = 0; i < 20000 && offender_put(rec, word(REC_STARVED, 0, 0, 0)); i++)
                ;
        });
        offender_end();
    }
}

TEST(more_messages_than_were_granted_fail_their_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("unknown ids beyond the window of messages or bytes", FAILS, {
            for (unsigned i = 0; i < 2 * MESSAGES && offender_put(rec, eager(0, UNKNOWN + i, 0, 0)); i++)
                ;
        });
        ATTACK("unknown ids beyond the window of bytes", FAILS, {
            for (unsigned i = 0; i < 2 * WINDOW / 2000 && offender_put(rec, eager(0, UNKNOWN + i, 8, 2000)); i++)
                ;
        });
        ATTACK("announcements beyond the window", FAILS, {
            for (unsigned i = 0; i < 2 * MESSAGES; i++) {
                if (!offender_announce(rec, announcement(REC_ANNOUNCE, 0, UNKNOWN + i, 0, 0), OFFENDER_PAYLOAD))
                    break;
            }
        });
        /* within it they are merely held; handled ones need no window at all */
        ATTACK("unknown ids within the window", STANDS, {
            for (unsigned i = 0; i < 500; i++)
                CHECK(offender_put(rec, eager(0, UNKNOWN + i * 77, 8, 200)));
            offender_drive_for(0.05);
        });
        ATTACK("honest sends of unknown ids until they wait", STANDS, {
            static weft_op_t ops[MESSAGES + 1];
            unsigned waiting = 0;
            memset(ops, 0, sizeof ops);
            for (unsigned i = 0; i <= MESSAGES; i++) {
                CHECK_OK(weft_am_send(off.ep, UNKNOWN + i, NULL, 0, off.payload, 100, &ops[i]));
                offender_drive();
            }
            offender_drive_for(0.05);
            for (unsigned i = 0; i <= MESSAGES; i++)
                waiting += !weft_op_done(&ops[i]);
            CHECK(waiting > 0);
            CHECK(!weft_op_done(&off.ours));
            rejoin(); /* they are all ended before the array goes */
            for (unsigned i = 0; i <= MESSAGES; i++)
                CHECK(weft_op_done(&ops[i]));
        });
        offender_end();
    }
}

/* Where the count is what is short, and not the bytes. */
TEST(more_messages_than_were_counted_fail_their_endpoint_alone)
{
    setenv("WEFT_AM_MESSAGES", "64", 1);
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("as many messages as were granted", STANDS, {
            for (unsigned i = 0; i < 64; i++)
                CHECK(offender_put(rec, eager(0, UNKNOWN + i, 0, 0)));
        });
        ATTACK("one message more than was granted", FAILS, {
            for (unsigned i = 0; i < 65 && offender_put(rec, eager(0, UNKNOWN + i, 0, 0)); i++)
                ;
        });
        ATTACK("many more than that", FAILS, {
            for (unsigned i = 0; i < 1000 && offender_put(rec, eager(0, KEEP, 0, 0)); i++)
                ;
        });
        offender_end();
    }
    unsetenv("WEFT_AM_MESSAGES");
}

TEST(answers_about_nothing_change_nothing)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("answers about confirmations that nobody waits for", EITHER, {
            for (uint64_t i = 0; i < 200 && offender_put(rec, answer(F_CONFIRM, i * UINT64_C(0x100000001), (uint32_t)i)); i++)
                ;
        });
        ATTACK("answers about payloads that nobody announced", EITHER, {
            for (uint64_t i = 0; i < 200 && offender_put(rec, answer(0, i * UINT64_C(0x100000001), (uint32_t)i)); i++)
                ;
        });
        ATTACK("an answer with unknown flags", EITHER, { offender_put(rec, answer(0xf0, 1, 1)); });
        /* answers with all ids there could be, to messages that are there: each send ends once */
        ATTACK("answers to messages before they were received", EITHER, {
            enum { N = 8 };
            weft_op_t ops[N];
            memset(ops, 0, sizeof ops);
            for (unsigned i = 0; i < N; i++) {
                weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
                o.id = UNKNOWN;
                o.buf = off.payload;
                o.len = i % 2 ? 100 : OFFENDER_PAYLOAD;
                o.confirm = true;
                CHECK_OK(weft_am_send_with(off.victim, &o, &ops[i]));
            }
            offender_drive_for(0.02);
            for (uint64_t gen = 0; gen < 4 && off.ep->lane; gen++) {
                for (uint64_t i = 0; i < 2 * N; i++) {
                    if (!offender_put(rec, answer(F_CONFIRM, gen << 32 | i, 9)) ||
                        !offender_put(rec, answer(0, gen << 32 | i, 0)) || !offender_put(rec, answer(0, gen << 32 | i, 7)))
                        break;
                }
            }
            offender_drive_for(0.02);
            if (!weft_op_done(&off.ours))
                rejoin();
            for (unsigned i = 0; i < N; i++)
                UNTIL(weft_op_done(&ops[i]), 5);
            for (unsigned i = 0; i < N; i++)
                CHECK(ops[i].status == WEFT_OK || ops[i].status == WEFT_ERR_REJECTED || ops[i].status == WEFT_ERR_PEER ||
                      ops[i].status == WEFT_ERR_PROTOCOL || ops[i].status == WEFT_ERR_CANCELLED);
        });
        offender_end();
    }
}

/* n bytes of a header; not the first: more of it. */
static bool head_part(bool first, size_t n)
{
    return offender_put(rec, word(REC_HEAD, first ? 0 : F_PARTS, 0, 0) + n);
}

TEST(headers_in_parts_that_never_end_fail_their_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("parts beyond the longest header", FAILS, {
            for (unsigned i = 0; i < 10000 && head_part(i == 0, 1000); i++)
                ;
        });
        ATTACK("parts of one byte beyond the longest header", FAILS, {
            for (unsigned i = 0; i < 20000 && head_part(i == 0, 1); i++)
                ;
        });
        ATTACK("a part of nothing", FAILS, { head_part(true, 0); });
        ATTACK("more of a header that was not begun", FAILS, { head_part(false, 100); });
        ATTACK("a part with an unknown flag", FAILS, { offender_put(rec, word(REC_HEAD, 0x10, 0, 0) + 100); });
        ATTACK("a message in parts without any", FAILS, { offender_put(rec, eager(F_PARTS, PLAIN, 3000, 0)); });
        ATTACK("a message in parts without any, announced", FAILS,
               { offender_announce(rec, announcement(REC_ANNOUNCE, F_PARTS, KEEP, 3000, 0), OFFENDER_PAYLOAD); });
        ATTACK("less of a header than the message says", FAILS, {
            if (head_part(true, 1000))
                offender_put(rec, eager(F_PARTS, PLAIN, 3000, 0));
        });
        ATTACK("the same parts for a second message", FAILS, {
            if (head_part(true, 1000) && offender_put(rec, eager(F_PARTS, PLAIN, 1000, 0)))
                offender_put(rec, eager(F_PARTS, PLAIN, 1000, 0));
        });
        ATTACK("parts, and then a message with a header of its own", EITHER, {
            if (head_part(true, 1000))
                offender_put(rec, eager(0, PLAIN, 8, 8));
        });
        ATTACK("first parts for ever", EITHER, {
            for (unsigned i = 0; i < 20000 && head_part(true, 1000); i++)
                ;
        });
        ATTACK("a part, and then nothing", STANDS, { head_part(true, 1000); });
        ATTACK("an honest header in parts", STANDS, {
            uint64_t was = n_plain;
            CHECK(head_part(true, 1000) && head_part(false, 2000) && offender_put(rec, eager(F_PARTS, PLAIN, 3000, 10)));
            UNTIL(n_plain == was + 1, 5);
        });
        offender_end();
    }
}

TEST(announcements_that_are_none_fail_their_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("an announcement's record without a payload", FAILS,
               { offender_put(rec, announcement(REC_ANNOUNCE, 0, KEEP, 0, 0)); });
        for (uint8_t kind = REC_EAGER; kind <= WEFTI_REC_AM_LAST; kind++) {
            if (kind != REC_ANNOUNCE)
                ATTACK("a payload announced with another record", FAILS,
                       { offender_announce(rec, announcement(kind, 0, KEEP, 0, 0), OFFENDER_PAYLOAD); });
        }
        for (size_t n = 1; n < sizeof(am_announce_t); n += 3)
            ATTACK("a short announcement", FAILS, {
                announcement(REC_ANNOUNCE, 0, KEEP, 0, 0);
                offender_announce(rec, n, OFFENDER_PAYLOAD);
            });
        ATTACK("an announcement with an unknown flag", FAILS,
               { offender_announce(rec, announcement(REC_ANNOUNCE, 0x40, KEEP, 0, 0), OFFENDER_PAYLOAD); });
        ATTACK("an honest announcement", STANDS, {
            unsigned was = off.n_done;
            offender_announce(rec, announcement(REC_ANNOUNCE, 0, PULL, 0, 0), OFFENDER_PAYLOAD);
            UNTIL(off.n_done == was + 1, 5);
        });
        offender_end();
    }
}

/* Totals that no memory can hold: who would make room for them rejects them, who has a buffer is told that it is too small. */
TEST(absurd_lengths_are_turned_down)
{
    static const uint64_t totals[] = {UINT64_C(1) << 40, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 4095};
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        for (unsigned i = 0; i < sizeof totals / sizeof *totals; i++) {
            ATTACK("to a handler that pulls into memory of its own making", EITHER,
                   { offender_announce(rec, announcement(REC_ANNOUNCE, 0, PULL, 0, 0), totals[i]); });
            ATTACK("to a receive that makes its memory", EITHER, {
                offender_announce(rec, announcement(REC_ANNOUNCE, 0, RECV, 0, 0), totals[i]);
                UNTIL(weft_op_done(&recv_op), 5);
                CHECK(recv_op.status != WEFT_OK);
            });
            ATTACK("to one who takes and views", EITHER, {
                offender_announce(rec, announcement(REC_ANNOUNCE, 0, TAKE, 0, 0), totals[i]);
                UNTIL(weft_op_done(&take_op), 5);
                weft_op_t view = WEFT_OP_INIT;
                if (!take_op.status && !weft_am_view(take_op.buf, &view)) {
                    UNTIL(weft_op_done(&view), 5);
                    CHECK(view.status != WEFT_OK);
                }
            });
            ATTACK("to nobody", EITHER, { offender_announce(rec, announcement(REC_ANNOUNCE, 0, UNKNOWN, 0, 0), totals[i]); });
        }
        offender_end();
    }
}

/* Records of conn's about payloads: taking back, asking for chunks, chunks. */
TEST(records_about_payloads_that_are_not_there_change_nothing_for_others)
{
    static const uint8_t kinds[] = {WEFTI_REC_STAGED, WEFTI_REC_CHUNKS, WEFTI_REC_CHUNK, WEFTI_REC_STAGED_END,
                                    WEFTI_REC_TAKE_BACK};
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        for (unsigned i = 0; i < sizeof kinds; i++) {
            char what[64];
            for (size_t n = 1; n <= 7; n += 2) {
                snprintf(what, sizeof what, "kind 0x%02x of %zu bytes", kinds[i], n);
                ATTACK(what, FAILS, {
                    memset(rec, 0, 64);
                    rec[0] = kinds[i];
                    offender_put(rec, n);
                });
            }
            for (size_t n = 8; n <= 64; n += 8) {
                snprintf(what, sizeof what, "kind 0x%02x of %zu bytes", kinds[i], n);
                ATTACK(what, EITHER, {
                    memset(rec, 0, 64);
                    rec[0] = kinds[i];
                    for (unsigned k = 0; k < 8; k++) { /* any id, any length */
                        rec[8 + k % 4] = (uint8_t)k;
                        rec[16 + k] = 0xff;
                        if (!offender_put(rec, n))
                            break;
                    }
                });
                snprintf(what, sizeof what, "kind 0x%02x of %zu bytes, announced", kinds[i], n);
                ATTACK(what, EITHER, {
                    memset(rec, 0, 64);
                    rec[0] = kinds[i];
                    offender_announce(rec, n, OFFENDER_PAYLOAD);
                });
            }
        }
        /* payloads that are there, and wait, taken back twice and pulled */
        ATTACK("a payload taken back twice", EITHER, {
            uint64_t back[3] = {WEFTI_REC_TAKE_BACK, 0x1234567, 0};
            if (offender_announce(rec, announcement(REC_ANNOUNCE, 0, UNKNOWN, 0, 0), OFFENDER_PAYLOAD) &&
                offender_put(back, sizeof back))
                offender_put(back, sizeof back);
        });
        ATTACK("a kept payload taken back, and then released", EITHER, {
            uint64_t back[3] = {WEFTI_REC_TAKE_BACK, 0x1234567, 0};
            unsigned was = n_kept;
            if (offender_announce(rec, announcement(REC_ANNOUNCE, 0, KEEP, 0, 0), OFFENDER_PAYLOAD)) {
                UNTIL(n_kept == was + 1, 5);
                offender_put(back, sizeof back);
                offender_drive_for(0.01);
            }
        });
        ATTACK("two payloads with one name", EITHER, {
            uint64_t back[3] = {WEFTI_REC_TAKE_BACK, 0x1234567, 0};
            if (offender_announce(rec, announcement(REC_ANNOUNCE, 0, KEEP, 0, 0), OFFENDER_PAYLOAD) &&
                offender_announce(rec, announcement(REC_ANNOUNCE, 0, UNKNOWN, 0, 0), OFFENDER_PAYLOAD) &&
                offender_put(back, sizeof back))
                offender_put(back, sizeof back);
        });
        offender_end();
    }
}
