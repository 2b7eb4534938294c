/* fault/rma_hostile.c - a peer that passed the hello and then puts records of remote memory of its own making on its lane: as
 * one who uses our region (forged, foreign and stale grants, ranges that wrap, rights it does not have, lengths that lie,
 * windows exceeded, keys changed and replayed), and as the owner of memory that we use (answers to nothing, of the wrong kind
 * or length, mappings that cannot be). What is malformed fails its endpoint with WEFT_ERR_PROTOCOL; what is well-formed is
 * refused; the region and the secret around it stay as they are, and a third peer of the same runtime notices nothing.
 *
 * ctest: tls-long timeout=600 */
#define TEST_SECONDS 280
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/offender.h"
#include "rma/state.h"
#include "test.h"

enum { REGION = 16384, SECRET = 4096 };
static uint8_t memory[SECRET + REGION + SECRET]; /* secret, the region, secret */
static weft_region_t *region;
static uint8_t rec[WEFTI_REC_MAX];
static uint64_t grant;

#define EACH_TRANSPORT for (unsigned transport = 0; transport < 2; transport++)
static const char *const transports[] = {"shm", "tcp"};

static void fill(void)
{
    memset(memory, 0x5e, sizeof memory);
    for (size_t i = 0; i < REGION; i++)
        memory[SECRET + i] = (uint8_t)(i * 7 + 1);
}

static void untouched(const char *what)
{
    for (size_t i = 0; i < sizeof memory; i++) {
        bool inside = i >= SECRET && i < SECRET + REGION;
        if (memory[i] != (inside ? (uint8_t)((i - SECRET) * 7 + 1) : 0x5e))
            FAIL("%s: byte %zd of the region was changed", what, (ssize_t)i - SECRET);
    }
}

static void notified(weft_region_t *r, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    (void)r, (void)from, (void)user;
    if (value != 1 || offset > REGION || len > REGION - offset)
        FAIL("a notification of %llu bytes at %llu", (unsigned long long)len, (unsigned long long)offset);
}

static void begin(const char *with)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    offender_begin(with);
    fill();
    o.len = REGION;
    o.buf = memory + SECRET;
    o.name = "mem";
    o.notify = notified;
    CHECK_OK(weft_region_new(off.witness.rt, &o, &region));
}

static void end(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_region_free(region, &op));
    peer_wait(&off.witness, &op, 10);
    CHECK_OK(op.status);
    offender_end();
}

/* --- records -------------------------------------------------------------------------------------------------------------- */

static size_t request(uint8_t kind, uint8_t what, uint64_t of, uint64_t offset, uint64_t len, uint32_t width)
{
    rma_request_t r = {.kind = kind, .what = what, .width = width, .id = 77, .grant = of, .offset = offset, .len = len};
    memset(rec, 0xee, sizeof rec);
    memcpy(rec, &r, sizeof r);
    return sizeof r;
}
static size_t atomic(uint8_t kind, uint8_t what, uint64_t of, uint64_t offset, uint64_t len, uint32_t width)
{
    rma_atomic_t a;
    request(kind, what, of, offset, len, width);
    memset(&a, 0, sizeof a);
    memcpy(&a.req, rec, sizeof a.req);
    a.operand = 1;
    memcpy(rec, &a, sizeof a);
    return sizeof a;
}
static size_t big(uint8_t what, uint64_t of, uint64_t offset, uint64_t value)
{
    rma_big_t b = {
        .kind = REC_WRITE_BIG, .what = what, .payload = 0x1234567, .id = 77, .grant = of, .offset = offset, .value = value};
    memcpy(rec, &b, sizeof b);
    return sizeof b;
}
static size_t reply(uint8_t kind, int status, uint64_t id, size_t tail)
{
    rma_reply_t r = {.kind = kind, .status = (int16_t)status, .id = id};
    memset(rec, 0xee, sizeof rec);
    memcpy(rec, &r, sizeof r);
    return sizeof r + tail;
}
static size_t attach(uint8_t flags, const void *claim, uint32_t len, size_t n)
{
    rma_attach_t a = {.kind = REC_ATTACH, .flags = flags, .len = len, .id = 5};
    memset(rec, 0, sizeof rec);
    memcpy(rec, &a, sizeof a);
    memcpy(rec + sizeof a, claim, n);
    return sizeof a + n;
}

/* --- what a deaf offender was told ---------------------------------------------------------------------------------------- */

/* The next record of remote memory it hears from now on. */
static const uint8_t *answer(void)
{
    unsigned i = off.n_heard;
    for (double until = test_now() + 5; test_now() < until;) {
        for (; i < off.n_heard; i++)
            if (off.heard[i].bytes[0] >= WEFTI_REC_RMA_FIRST && off.heard[i].bytes[0] <= WEFTI_REC_RMA_LAST)
                return off.heard[i].bytes;
        offender_drive();
    }
    FAIL("no answer");
}

static weft_status_t status_of(const uint8_t *bytes)
{
    rma_reply_t r;
    memcpy(&r, bytes, sizeof r);
    return (weft_status_t)r.status;
}

/* Put it and hear what comes of it: past what was heard before. */
static weft_status_t ask(size_t n)
{
    off.n_heard = 0;
    CHECK(offender_put(rec, n));
    /* the answer may have come within the put */
    for (unsigned i = 0; i < off.n_heard; i++)
        if (off.heard[i].bytes[0] >= WEFTI_REC_RMA_FIRST && off.heard[i].bytes[0] <= WEFTI_REC_RMA_LAST)
            return status_of(off.heard[i].bytes);
    return status_of(answer());
}

/* A grant with these rights, by a key. */
static uint64_t granted(uint32_t rights)
{
    weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t len = sizeof key;
    uint64_t got;
    o.rights = rights;
    CHECK_OK(weft_region_key(region, &o, key, &len));
    CHECK_OK(ask(attach(0, key, (uint32_t)len, len)));
    for (unsigned i = 0;; i++) {
        CHECK(i < off.n_heard);
        if (off.heard[i].bytes[0] == REC_ATTACHED) {
            memcpy(&got, off.heard[i].bytes + offsetof(rma_attached_t, grant), 8);
            return got;
        }
    }
}

#define ATTACK(what, verdict, ...) \
    do { \
        offender_join(true); \
        grant = granted(WEFT_RMA_ALL); \
        __VA_ARGS__ \
        offender_judge(what, verdict); \
        offender_part(); \
        untouched(what); \
    } while (0)

/* --- as one who uses our region ------------------------------------------------------------------------------------------- */

TEST(records_that_are_short_long_or_of_no_kind_fail_their_endpoint_alone)
{
    static const struct {
        uint8_t kind;
        size_t lens[8];
    } cut[] = {
        {REC_ATTACH, {1, 8, 15, 16}},
        {REC_ATTACHED, {1, 16, 40, 71}},
        {REC_DROP, {1, 8, 15, 17}},
        {REC_READ, {1, 16, 39, 41, 64}},
        {REC_WRITE, {1, 8, 39}},
        {REC_ATOMIC, {1, 40, 55, 57}},
        {REC_NOTIFY, {1, 40, 55, 57}},
        {REC_DONE, {1, 8, 15, 16, 17, 24}},
        {REC_DATA, {1, 15, 16, 24}},
        {REC_VALUE, {1, 16, 23, 24, 25}},
        {REC_PAYLOAD, {1, 24, 32}},
        {REC_WRITE_BIG, {1, 48, 64}},
        {WEFTI_REC_RMA_LAST, {1, 16, 40, 64}},
    };
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        for (unsigned i = 0; i < sizeof cut / sizeof *cut; i++) {
            for (unsigned k = 0; k < 8 && cut[i].lens[k]; k++) {
                char what[64];
                snprintf(what, sizeof what, "kind 0x%02x of %zu bytes", cut[i].kind, cut[i].lens[k]);
                ATTACK(what, FAILS, {
                    request(cut[i].kind, 0, grant, 0, 8, 0);
                    offender_put(rec, cut[i].lens[k]);
                });
            }
        }
        end();
    }
}

TEST(requests_that_contradict_themselves_fail_their_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("a write that is longer than its record", FAILS,
               { offender_put(rec, request(REC_WRITE, 0, grant, 0, 100, 0) + 99); });
        ATTACK("a write that is shorter than its record", FAILS,
               { offender_put(rec, request(REC_WRITE, 0, grant, 0, 100, 0) + 101); });
        ATTACK("a write of all there is", FAILS, { offender_put(rec, request(REC_WRITE, 0, grant, 0, UINT64_MAX, 0) + 8); });
        ATTACK("a write without its value", FAILS, { offender_put(rec, request(REC_WRITE, F_TELL, grant, 0, 0, 0) + 7); });
        ATTACK("a write whose value is counted as bytes", FAILS,
               { offender_put(rec, request(REC_WRITE, F_TELL, grant, 0, 8, 0) + 8); });
        ATTACK("an unknown flag", FAILS, { offender_put(rec, request(REC_WRITE, 0x80, grant, 0, 8, 0) + 8); });
        ATTACK("a read with a flag", FAILS, { offender_put(rec, request(REC_READ, F_TELL, grant, 0, 8, 0)); });
        ATTACK("a read with a width", FAILS, { offender_put(rec, request(REC_READ, 0, grant, 0, 8, 8)); });
        static const uint32_t widths[] = {0, 1, 2, 3, 5, 16, UINT32_MAX};
        for (unsigned i = 0; i < 7; i++)
            ATTACK("an atomic of no width", FAILS,
                   { offender_put(rec, atomic(REC_ATOMIC, WEFT_RMA_ADD, grant, 0, widths[i], widths[i])); });
        ATTACK("an atomic of two widths", FAILS, { offender_put(rec, atomic(REC_ATOMIC, WEFT_RMA_ADD, grant, 0, 4, 8)); });
        ATTACK("an atomic of no kind", FAILS, { offender_put(rec, atomic(REC_ATOMIC, 0, grant, 0, 8, 8)); });
        ATTACK("an atomic of another kind", FAILS, { offender_put(rec, atomic(REC_ATOMIC, 7, grant, 0, 8, 8)); });
        ATTACK("a notification with more", FAILS, {
            size_t n = atomic(REC_NOTIFY, 0, grant, 0, 8, 0);
            rec[n - 8] = 1;
            offender_put(rec, n);
        });
        ATTACK("a claim of nothing", FAILS, { offender_put(rec, attach(0, "x", 0, 0)); });
        ATTACK("a claim longer than its record", FAILS, { offender_put(rec, attach(0, "xxxxxxxx", 9, 8)); });
        ATTACK("a claim of all there is", FAILS, { offender_put(rec, attach(0, "xxxxxxxx", UINT32_MAX, 8)); });
        ATTACK("a claim with flags", FAILS, { offender_put(rec, attach(0xf8, "xxxxxxxx", 8, 8)); });
        ATTACK("an announced write that is no write", FAILS, {
            size_t n = big(0, grant, 0, 0);
            rec[0] = REC_READ;
            offender_announce(rec, n, 5000);
        });
        ATTACK("an announced write of another length", FAILS, { offender_announce(rec, big(0, grant, 0, 0) - 8, 5000); });
        ATTACK("an announced write with a value that is not to be told", FAILS,
               { offender_announce(rec, big(0, grant, 0, 9), 5000); });
        ATTACK("an announced write with a flag", FAILS, { offender_announce(rec, big(1, grant, 0, 0), 5000); });
        end();
    }
}

TEST(what_is_outside_forged_foreign_or_stale_is_refused_and_nothing_is_touched)
{
    static const uint64_t places[][2] = {{REGION, 1},
                                         {REGION - 1, 2},
                                         {0, REGION + 1},
                                         {UINT64_MAX, 1},
                                         {UINT64_MAX - 7, 16},
                                         {UINT64_MAX, UINT64_MAX},
                                         {1, UINT64_MAX},
                                         {REGION / 2, UINT64_MAX - REGION / 2 + 1},
                                         {UINT64_C(1) << 63, UINT64_C(1) << 63},
                                         {(uint64_t)-SECRET, 64}};
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        ATTACK("places outside", STANDS, {
            for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
                CHECK_EQ(ask(request(REC_READ, 0, grant, places[i][0], places[i][1], 0)), WEFT_ERR_RANGE);
                if (places[i][1] <= 2000)
                    CHECK_EQ(ask(request(REC_WRITE, 0, grant, places[i][0], places[i][1], 0) + places[i][1]), WEFT_ERR_RANGE);
                CHECK_EQ(ask(atomic(REC_NOTIFY, 0, grant, places[i][0], places[i][1], 0)), WEFT_ERR_RANGE);
                CHECK_EQ(ask(atomic(REC_ATOMIC, WEFT_RMA_ADD, grant, places[i][0] & ~UINT64_C(7), 8, 8)),
                         (places[i][0] & ~UINT64_C(7)) <= REGION - 8 ? WEFT_OK : WEFT_ERR_RANGE);
                fill(); /* one of them was inside */
            }
            CHECK_EQ(ask(atomic(REC_ATOMIC, WEFT_RMA_ADD, grant, 4, 8, 8)), WEFT_ERR_INVALID);
        });
        ATTACK("announced writes outside", STANDS, {
            for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
                off.n_heard = 0;
                CHECK(offender_announce(rec, big(0, grant, places[i][0], 0), OFFENDER_PAYLOAD));
                offender_drive_for(0.005);
                CHECK_EQ(status_of(off.heard[0].bytes), WEFT_ERR_RANGE);
            }
        });
        ATTACK("grants that nobody gave", STANDS, {
            for (unsigned i = 0; i < 600; i++) {
                uint64_t forged = i < 512 ? grant ^ (UINT64_C(1) << i % 64) ^ (i / 64 ? UINT64_C(1) << i % 61 : 0)
                                          : (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
                if (forged == grant)
                    continue;
                CHECK_EQ(ask(request(REC_READ, 0, forged, 0, 8, 0)), WEFT_ERR_STALE);
                CHECK_EQ(ask(request(REC_WRITE, 0, forged, 0, 8, 0) + 8), WEFT_ERR_STALE);
            }
            CHECK_EQ(ask(request(REC_READ, 0, 0, 0, 8, 0)), WEFT_ERR_STALE);
            CHECK_EQ(ask(request(REC_READ, 0, UINT64_MAX, 0, 8, 0)), WEFT_ERR_STALE);
        });
        for (uint32_t rights = 1; rights < WEFT_RMA_ALL; rights++)
            ATTACK("rights it does not have", STANDS, {
                uint64_t few = granted(rights);
                if (!(rights & WEFT_RMA_READ))
                    CHECK_EQ(ask(request(REC_READ, 0, few, 0, 8, 0)), WEFT_ERR_RIGHTS);
                if (!(rights & WEFT_RMA_WRITE)) {
                    CHECK_EQ(ask(request(REC_WRITE, 0, few, 0, 8, 0) + 8), WEFT_ERR_RIGHTS);
                    CHECK_EQ(ask(atomic(REC_NOTIFY, 0, few, 0, 8, 0)), WEFT_ERR_RIGHTS);
                    off.n_heard = 0;
                    CHECK(offender_announce(rec, big(0, few, 0, 0), 10000));
                    offender_drive_for(0.005);
                    CHECK_EQ(status_of(off.heard[0].bytes), WEFT_ERR_RIGHTS);
                }
                if (!(rights & WEFT_RMA_ATOMIC))
                    CHECK_EQ(ask(atomic(REC_ATOMIC, WEFT_RMA_ADD, few, 0, 8, 8)), WEFT_ERR_RIGHTS);
            });
        /* of another endpoint: the one before, which had the same number or another */
        ATTACK("a grant", STANDS, {});
        uint64_t before = grant;
        ATTACK("a grant of another endpoint", STANDS, {
            if (before != grant)
                CHECK_EQ(ask(request(REC_READ, 0, before, 0, 8, 0)), WEFT_ERR_STALE);
        });
        ATTACK("a grant that was let go", STANDS, {
            rma_drop_t drop = {.kind = REC_DROP, .grant = grant};
            CHECK(offender_put(&drop, sizeof drop));
            CHECK_EQ(ask(request(REC_WRITE, 0, grant, 0, 8, 0) + 8), WEFT_ERR_STALE);
            CHECK(offender_put(&drop, sizeof drop)); /* and again */
            drop.grant = 12345;
            CHECK(offender_put(&drop, sizeof drop));
        });
        end();
    }
}

TEST(keys_that_were_changed_and_keys_and_grants_that_were_revoked_are_refused)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        uint8_t key[WEFT_REGION_KEY_MAX];
        uint8_t forged[WEFT_REGION_KEY_MAX];
        size_t len = sizeof key;
        CHECK_OK(weft_region_key(region, NULL, key, &len));
        ATTACK("keys with a byte changed", STANDS, {
            for (size_t i = 0; i < 3 * len; i++) {
                memcpy(forged, key, len);
                forged[i % len] ^= (uint8_t)(i < len ? 0xff : i < 2 * len ? 1 : 0x80);
                weft_status_t st = ask(attach(0, forged, (uint32_t)len, len));
                if (st != WEFT_ERR_AUTH && st != WEFT_ERR_INVALID && st != WEFT_ERR_STALE)
                    FAIL("byte %zu changed: %s", i % len, weft_status_name(st));
                if (i < len)
                    CHECK(ask(attach(0, key, (uint32_t)i + 1, i + 1)) != WEFT_OK || i + 1 == len);
            }
        });
        ATTACK("names that nobody has", STANDS, {
            CHECK_EQ(ask(attach(F_NAME, "mem", 3, 3)) != WEFT_OK, false); /* that one is */
            CHECK_EQ(ask(attach(F_NAME, "mem\0", 4, 4)), WEFT_ERR_NOTFOUND);
            CHECK_EQ(ask(attach(F_NAME, "me", 2, 2)), WEFT_ERR_NOTFOUND);
            CHECK_EQ(ask(attach(F_NAME, key, (uint32_t)len, len)), WEFT_ERR_NOTFOUND);
            memset(forged, 'm', sizeof forged);
            CHECK_EQ(ask(attach(F_NAME, forged, sizeof forged, sizeof forged)), WEFT_ERR_NOTFOUND);
        });
        ATTACK("a revoked grant and its key", STANDS, {
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(ask(request(REC_READ, 0, grant, 0, 8, 0)));
            CHECK_OK(weft_region_revoke(region, &op));
            for (double until = test_now() + 5; !weft_op_done(&op) && test_now() < until;)
                offender_drive();
            CHECK_OK(op.status);
            CHECK_EQ(ask(request(REC_READ, 0, grant, 0, 8, 0)), WEFT_ERR_STALE);
            CHECK_EQ(ask(request(REC_WRITE, 0, grant, 0, 8, 0) + 8), WEFT_ERR_STALE);
            CHECK_EQ(ask(atomic(REC_ATOMIC, WEFT_RMA_ADD, grant, 0, 8, 8)), WEFT_ERR_STALE);
            off.n_heard = 0;
            CHECK(offender_announce(rec, big(0, grant, 0, 0), 10000));
            offender_drive_for(0.005);
            CHECK_EQ(status_of(off.heard[0].bytes), WEFT_ERR_STALE);
            CHECK_EQ(ask(attach(0, key, (uint32_t)len, len)), WEFT_ERR_STALE);
        });
        end();
    }
}

/* --- more than was agreed ------------------------------------------------------------------------------------------------- */

static size_t in_use(void)
{
    struct mallinfo2 i = mallinfo2();
    return i.uordblks + i.hblkhd;
}

/* Put without letting the offender hear anything. */
static bool put_blind(size_t n)
{
    wefti_lane_t *lane = off.ep->lane;
    void *at = NULL;
    for (unsigned i = 0; i < 2000 && (lane = off.ep->lane) && !(at = lane->ops->reserve(lane, n)); i++) {
        weft_runtime_progress(off.witness.rt);
        if (i > 500)
            weft_runtime_progress(off.rt); /* a transport may need it to write */
    }
    if (!lane || !at)
        return false;
    memcpy(at, rec, n);
    lane->ops->commit(lane, n);
    weft_runtime_progress(off.witness.rt);
    return true;
}

TEST(more_requests_than_may_be_unanswered_are_not_kept)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        static const struct {
            const char *what;
            uint64_t len;
        } loads[] = {
            {"reads of 4000 bytes that nobody hears", 4000}, {"reads of 8 bytes", 8}, {"reads that are announced", REGION}};
        for (unsigned k = 0; k < 3; k++) {
            ATTACK(loads[k].what, EITHER, {
                double before = (double)in_use();
                size_t n = request(REC_READ, 0, grant, 0, loads[k].len, 0);
                for (unsigned i = 0; i < 30000 && put_blind(n); i++)
                    ;
                double held = (double)in_use() - before;
                printf("# %s, %s: %.1f MiB held, %u payloads\n", transports[transport], loads[k].what, held / (1 << 20),
                       rma_ep(off.victim)->serving);
                CHECK(held < 16 << 20);
                CHECK(rma_ep(off.victim)->serving <= RMA_SERVING);
            });
        }
        ATTACK("announced writes whose bytes do not come", EITHER, {
            size_t n = big(0, grant, 0, 0);
            for (unsigned i = 0; i < 8000 && offender_announce(rec, n, REGION); i++)
                CHECK(rma_ep(off.victim)->serving <= RMA_SERVING);
            offender_drive_for(0.1);
            fill(); /* these were allowed to write */
        });
        ATTACK("more remotes than a connection has", STANDS, {
            weft_status_t st = WEFT_OK;
            unsigned n = 0;
            for (; n < 2 * RMA_GRANTS && !st; n++)
                st = ask(attach(F_NAME, "mem", 3, 3));
            CHECK_EQ(st, WEFT_ERR_LIMIT);
            CHECK(n <= RMA_GRANTS + 1);
        });
        end();
    }
}

/* --- as the owner of memory that we use ----------------------------------------------------------------------------------- */

static weft_op_t op;
static weft_remote_t *remote;
static uint8_t mine[9000];

/* The victim asks for a region, by name; the id of its request. */
static uint64_t finds(void)
{
    uint64_t id;
    op = (weft_op_t)WEFT_OP_INIT;
    off.n_heard = 0;
    CHECK_OK(weft_remote_find(off.victim, "theirs", NULL, &op));
    offender_drive_for(0.002);
    const uint8_t *heard = off.n_heard ? off.heard[off.n_heard - 1].bytes : answer();
    CHECK_EQ(heard[0], REC_ATTACH);
    memcpy(&id, heard + offsetof(rma_attach_t, id), 8);
    return id;
}

static size_t attached(uint64_t id, uint64_t len, uint32_t rights, uint64_t stamp, uint32_t slot, uint64_t map_bytes,
                       uint64_t map_offset, size_t map_handle)
{
    rma_attached_t a = {.reply = {.kind = REC_ATTACHED, .id = id},
                        .grant = 9,
                        .len = len,
                        .generation = 1,
                        .rights = rights,
                        .slot = slot,
                        .stamp = stamp,
                        .map_bytes = map_bytes,
                        .map_offset = map_offset};
    memset(rec, 0x41, sizeof rec);
    memcpy(rec, &a, sizeof a);
    return sizeof a + map_handle;
}

static void has_remote(void)
{
    CHECK(offender_put(rec, attached(finds(), 8192, WEFT_RMA_ALL, 0, 0, 0, 0, 0)));
    for (double until = test_now() + 5; !weft_op_done(&op) && test_now() < until;)
        offender_drive();
    CHECK_OK(op.status);
    remote = op.buf;
}

/* The victim reads; the id of its request. */
static uint64_t reads(uint64_t len)
{
    uint64_t id;
    op = (weft_op_t)WEFT_OP_INIT;
    off.n_heard = 0;
    memset(mine, 0x33, sizeof mine);
    CHECK_OK(weft_rma_read(remote, 0, mine, len, &op));
    offender_drive_for(0.002);
    const uint8_t *heard = off.n_heard ? off.heard[off.n_heard - 1].bytes : answer();
    CHECK_EQ(heard[0], REC_READ);
    memcpy(&id, heard + offsetof(rma_request_t, id), 8);
    return id;
}

/* A copy that nothing can be read behind. */
static const void *at_the_end(const void *bytes, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(two != MAP_FAILED && !mprotect(two + page, page, PROT_NONE));
    return memcpy(two + page - n, bytes, n);
}

#define BETRAYAL(what, verdict, ...) \
    do { \
        offender_join(true); \
        remote = NULL; \
        __VA_ARGS__ \
        offender_judge(what, verdict); \
        if (verdict == FAILS) \
            CHECK(weft_op_done(&op) && op.status); \
        weft_remote_drop(remote); \
        offender_part(); \
        CHECK(weft_op_done(&op)); \
    } while (0)

TEST(an_owner_whose_answers_cannot_be_fails_its_endpoint_alone)
{
    EACH_TRANSPORT
    {
        begin(transports[transport]);
        BETRAYAL("rights that are none", FAILS, { offender_put(rec, attached(finds(), 64, 0xff, 0, 0, 0, 0, 0)); });
        BETRAYAL("a slot beyond the page", FAILS, { offender_put(rec, attached(finds(), 64, 7, 1, RMA_SLOTS, 8192, 4096, 8)); });
        BETRAYAL("a part before the page's end", FAILS, { offender_put(rec, attached(finds(), 64, 7, 1, 0, 8192, 100, 8)); });
        BETRAYAL("a part beyond the mapping", FAILS, { offender_put(rec, attached(finds(), 5000, 7, 1, 0, 8192, 4096, 8)); });
        BETRAYAL("a part that wraps", FAILS, { offender_put(rec, attached(finds(), UINT64_MAX, 7, 1, 0, 8192, 4096, 8)); });
        BETRAYAL("a mapping of all there is", FAILS, { offender_put(rec, attached(finds(), 64, 7, 1, 0, UINT64_MAX, 4096, 8)); });
        BETRAYAL("a map_handle that is too long", FAILS,
                 { offender_put(rec, attached(finds(), 64, 7, 1, 0, 8192, 4096, WEFTI_MAP_HANDLE_MAX + 1)); });
        BETRAYAL("a map_handle that is none", EITHER, {
            offender_put(rec, attached(finds(), 64, 7, 1, 0, 8192, 4096, 24)); /* not mapped, then */
            offender_drive_for(0.01);
            remote = weft_op_done(&op) && !op.status ? op.buf : NULL;
        });
        BETRAYAL("a word where there should be a remote", FAILS, { offender_put(rec, reply(REC_VALUE, 0, finds(), 8)); });
        BETRAYAL("success where there should be a remote", FAILS, { offender_put(rec, reply(REC_DONE, 0, finds(), 0)); });
        static const int64_t lies[] = {-100, -99, -1, 1, 8, 100};
        for (unsigned i = 0; i < 6; i++)
            BETRAYAL("data of another length", FAILS, {
                has_remote();
                offender_put(rec, reply(REC_DATA, 0, reads(100), (size_t)(100 + lies[i])));
                CHECK_EQ(mine[100], 0x33);
            });
        BETRAYAL("data with a status", FAILS, {
            has_remote();
            offender_put(rec, reply(REC_DATA, WEFT_ERR_RANGE, reads(100), 100));
        });
        BETRAYAL("success without data", FAILS, {
            has_remote();
            offender_put(rec, reply(REC_DONE, 0, reads(100), 0));
        });
        BETRAYAL("a word for a read", FAILS, {
            has_remote();
            offender_put(rec, reply(REC_VALUE, 0, reads(8), 8));
        });
        static const int statuses[] = {1, 100, 32767};
        for (unsigned i = 0; i < 3; i++)
            BETRAYAL("a status that is none", FAILS, {
                has_remote();
                offender_put(rec, reply(REC_DONE, statuses[i], reads(100), 0));
            });
        static const int newer[] = {-100, -1000, -32768};
        for (unsigned i = 0; i < 3; i++)
            BETRAYAL("a failure that only a newer owner knows", STANDS, {
                has_remote();
                CHECK(offender_put(rec, reply(REC_DONE, newer[i], reads(100), 0)));
                for (double until = test_now() + 10; !weft_op_done(&op) && test_now() < until;)
                    offender_drive();
                CHECK(weft_op_done(&op));
                CHECK_EQ(op.status, WEFT_ERR_REJECTED);
                CHECK_EQ(op.reason, -newer[i]);
                CHECK(offender_put(rec, reply(REC_DATA, 0, reads(100), 100))); /* and the next is as good as any */
                for (double until = test_now() + 10; !weft_op_done(&op) && test_now() < until;)
                    offender_drive();
                CHECK(weft_op_done(&op));
                CHECK_OK(op.status);
            });
        BETRAYAL("a remote refused for a reason that only a newer owner knows", STANDS, {
            CHECK(offender_put(rec, reply(REC_DONE, -99, finds(), 0)));
            for (double until = test_now() + 10; !weft_op_done(&op) && test_now() < until;)
                offender_drive();
            CHECK(weft_op_done(&op));
            CHECK_EQ(op.status, WEFT_ERR_REJECTED);
            CHECK_EQ(op.reason, 99);
        });
        BETRAYAL("an answer to another", FAILS, {
            has_remote();
            offender_put(rec, reply(REC_DATA, 0, reads(100) + 1, 100));
        });
        BETRAYAL("a payload of another length", FAILS, {
            has_remote();
            rma_payload_t p = {.kind = REC_PAYLOAD, .payload = 1, .id = reads(8000)};
            offender_announce(&p, sizeof p, 8001);
        });
        BETRAYAL("a payload for nothing", FAILS, {
            has_remote();
            rma_payload_t p = {.kind = REC_PAYLOAD, .payload = 1, .id = reads(8000) + 9};
            offender_announce(&p, sizeof p, 8000);
        });
        BETRAYAL("the same answer twice", EITHER, { /* the second is for nobody */
                                                    has_remote();
                                                    size_t n = reply(REC_DATA, 0, reads(100), 100);
                                                    if (offender_put(rec, n))
                                                        offender_put(rec, n);
                                                    offender_drive_for(0.02);
                                                    CHECK_EQ(weft_ep_get_state(off.victim), WEFT_EP_FAILED);
                                                    CHECK_OK(op.status);
        });
        static const size_t cut[] = {sizeof(rma_reply_t), 40, sizeof(rma_attached_t) - 1};
        for (unsigned i = 0; i < 3; i++)
            BETRAYAL("a remote cut short, for one that does not want it any more", FAILS, {
                uint64_t id = finds();
                weft_op_cancel(&op);
                offender_drive_for(0.002);
                attached(id, 64, WEFT_RMA_ALL, 0, 0, 0, 0, 0);
                offender_put(rec, cut[i]);
            });
        BETRAYAL("the same at the end of what can be read", FAILS, {
            uint64_t id = finds();
            weft_op_cancel(&op);
            offender_drive_for(0.002);
            attached(id, 64, WEFT_RMA_ALL, 0, 0, 0, 0, 0);
            wefti_rma_answer(off.victim, REC_ATTACHED, wefti_wild(at_the_end(rec, sizeof(rma_reply_t))), sizeof(rma_reply_t));
        });
        BETRAYAL("an honest answer", STANDS, {
            has_remote();
            CHECK(offender_put(rec, reply(REC_DATA, 0, reads(100), 100)));
            offender_drive_for(0.01);
            CHECK(weft_op_done(&op) && !op.status && mine[0] == 0xee && mine[99] == 0xee && mine[100] == 0x33);
        });
        end();
    }
}
