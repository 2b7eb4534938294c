/* wire/rma_native.c - remote memory by one-sided operations of the fabric: who gets that path, what goes over it, and how an
 * owner gets its memory back. What all paths share is tested for this one too where the others are (rma_basic.c, rma_rules.c,
 * rma_ends.c). Over UCX's TCP, which emulates it, so that it has to be asked for by name. ctest: timeout=240 */
#define TEST_SECONDS 120
#include <stdatomic.h>

#include "lib/far.h"
#include "test.h"

enum { LEN = 1 << 20, N = 200 };

static const far_way_t native = {&pair_ways[4], WEFT_RMA_NATIVE};

static weft_runtime_stats_t stats(int side)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(far.pair.rt[side], &s);
    return s;
}

/* A pair over UCX's TCP in which each side is given these. */
static void open_two(const char *trusted_owner, const char *trusted_user, const char *key)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    pair_t *p = &far.pair;
    *p = (pair_t){.listener = NULL};
    o.transports = "ucx_tcp";
    o.progress = WEFT_PROGRESS_CALLER;
    o.key = key;
    o.key_len = key ? 16 : 0;
    setenv("WEFT_TRUSTED", trusted_owner, 1);
    CHECK_OK(weft_runtime_open(&o, &p->rt[0]));
    setenv("WEFT_TRUSTED", trusted_user, 1);
    CHECK_OK(weft_runtime_open(&o, &p->rt[1]));
    CHECK_OK(weft_listen(p->rt[0], "tcp://127.0.0.1:0", NULL, &p->listener));
    CHECK_OK(weft_listener_accept(p->listener, &accept));
    CHECK_OK(weft_ep_open(p->rt[1], weft_listener_uri(p->listener), NULL, &connect, &p->ep[1]));
    CHECK_OK(pair_wait(p, &connect, 10));
    CHECK_OK(pair_wait(p, &accept, 10));
    p->ep[0] = (weft_ep_t *)accept.buf;
}

TEST(only_those_who_both_trust_the_fabric_get_it_and_only_if_it_gains_something_or_they_insist)
{
    static const struct {
        const char *owner, *user, *key;
        bool can;
    } cases[] = {
        {"off", "off", "0123456789abcdef", false},
        {"off", "emulated", "0123456789abcdef", false},
        {"emulated", "off", "0123456789abcdef", false},
        {"on", "on", "0123456789abcdef", false}, /* UCX would only emulate it */
        {"emulated", "on", "0123456789abcdef", false},
        {"on", "emulated", "0123456789abcdef", false},
        {"off", "off", NULL, false},
        {"emulated", "emulated", "0123456789abcdef", true},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_two(cases[i].owner, cases[i].user, cases[i].key);
        weft_region_t *region = far_region(LEN);
        far_key_t t = far_key(region, NULL);
        weft_remote_t *r = NULL;
        CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_NATIVE, &r), cases[i].can ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
        if (r)
            CHECK_EQ(far_info(r).path, WEFT_RMA_NATIVE);
        weft_remote_drop(r);
        CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &r));
        CHECK_EQ(far_info(r).path, WEFT_RMA_CHECKED); /* emulation gains nothing */
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(trusting_without_a_key_is_an_error_that_says_what_to_do)
{
    weft_runtime_t *rt = NULL;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    unsetenv("WEFT_TRUSTED");
    o.trusted = true;
    CHECK_EQ(weft_runtime_open(&o, &rt), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "WEFT_KEY_FILE") && !rt);
}

TEST(accesses_are_the_fabrics_and_counted_as_such)
{
    static uint8_t buf[100000];
    far_open(&native, NULL);
    weft_region_t *region = far_region(LEN);
    weft_remote_t *r = far_attach(region, NULL);
    uint64_t served = stats(0).rma_served;
    for (int i = 0; i < 10; i++) {
        CHECK_OK(far_write(r, 8, buf, i % 2 ? 64 : sizeof buf));
        CHECK_OK(far_read(r, 8, buf, i % 2 ? 64 : sizeof buf));
    }
    CHECK_EQ(stats(1).rma_native, 20);
    CHECK_EQ(stats(1).rma_checked, 0);
    CHECK_EQ(stats(0).rma_served, served); /* the owner's program has no part in it */
    for (int i = 0; i < 10; i++) {
        CHECK_OK(far_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0)); /* these are its, to be atomic to its processor */
        CHECK_EQ(far.op.tag, i);
    }
    CHECK_EQ(stats(1).rma_native, 20);
    CHECK_EQ(stats(1).rma_checked, 10);
    CHECK_EQ(far_region_info(region).reads, 0);
    weft_remote_info_t info = far_info(r);
    CHECK(info.reads == 10 && info.writes == 10 && info.atomics == 10 && info.bytes_read == 5 * (sizeof buf + 64));
    weft_remote_drop(r);
    far_free(region);
    far_close();
}

TEST(memory_of_the_programs_has_it_too_and_memory_whose_accesses_must_be_checked_has_not)
{
    static _Alignas(64) uint8_t own[65536];
    far_open(&native, NULL);
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.len = sizeof own;
    o.buf = own;
    weft_region_t *region = far_region_with(&o);
    weft_remote_t *r = far_attach(region, NULL);
    CHECK_OK(far_write(r, 100, "hello", 5));
    CHECK(!memcmp(own + 100, "hello", 5));
    weft_remote_drop(r);
    far_free(region);
    for (int buf = 0; buf < 2; buf++) {
        o.buf = buf ? own : NULL;
        o.unmapped = true;
        region = far_region_with(&o);
        far_key_t t = far_key(region, NULL);
        CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_NATIVE, &r), WEFT_ERR_UNSUPPORTED);
        far_free(region);
    }
    far_close();
}

/* --- order ------------------------------------------------------------------------------------------------------------------ */

static uint64_t told[N];
static unsigned n_told;
static void on_notify(weft_region_t *region, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    (void)from;
    (void)user;
    const uint8_t *base = weft_region_base(region);
    for (uint64_t i = 0; i < len; i++)
        CHECK_EQ(base[offset + i], (uint8_t)value); /* after the bytes are there */
    CHECK(n_told < N);
    told[n_told++] = value;
}

TEST(notifications_come_in_order_with_other_accesses_waiting_between_them)
{
    static uint8_t bufs[N][9000];
    static weft_op_t ops[N], between[N];
    far_open(&native, NULL);
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.len = LEN;
    o.notify = on_notify;
    weft_region_t *region = far_region_with(&o);
    weft_remote_t *r = far_attach(region, NULL);
    static uint8_t got[N];
    n_told = 0;
    memset(ops, 0, sizeof ops);
    memset(between, 0, sizeof between);
    for (unsigned i = 0; i < N; i++) {
        size_t n = i % 4 == 0 ? 9000 : i % 4 == 1 ? 0 : 100;
        memset(bufs[i], (int)i, sizeof bufs[i]);
        CHECK_OK(weft_rma_write_notify(r, (i % 3) * 50, bufs[i], n, i, &ops[i])); /* the same bytes again and again */
        if (i == N / 2)
            CHECK_OK(weft_rma_fence(r));
        CHECK_OK(weft_rma_read(r, (i % 3) * 50, &got[i], 1, &between[i]));
    }
    for (unsigned i = 0; i < N; i++) {
        CHECK_OK(pair_wait(&far.pair, &ops[i], 20));
        CHECK_OK(pair_wait(&far.pair, &between[i], 20));
        if (i % 4 != 1)
            CHECK_EQ(got[i], (uint8_t)i); /* its own write, and none that came later */
    }
    CHECK_EQ(n_told, N);
    for (unsigned i = 0; i < N; i++)
        CHECK_EQ(told[i], i);
    weft_remote_drop(r);
    far_free(region);
    far_close();
}

/* --- taking it back ------------------------------------------------------------------------------------------------------- */

static weft_op_t many[N];
static uint8_t many_buf[N][20000];

static void post_many(weft_remote_t *r)
{
    memset(many, 0, sizeof many);
    for (unsigned i = 0; i < N; i++) {
        size_t n = i % 3 ? 64 : sizeof many_buf[i];
        memset(many_buf[i], 0x77, n);
        weft_status_t st = i % 2 ? weft_rma_read(r, i * 4096u, many_buf[i], n, &many[i])
                                 : weft_rma_write(r, i * 4096u, many_buf[i], n, &many[i]);
        CHECK_OK(st);
    }
}

TEST(a_revoke_waits_for_what_is_under_way_and_nothing_comes_after_it)
{
    for (int frees = 0; frees < 2; frees++) {
        for (int rounds = 0; rounds < 8; rounds++) {
            far_open(&native, NULL);
            static uint8_t own[LEN];
            weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
            o.len = LEN;
            o.buf = own;
            weft_region_t *region = far_region_with(&o);
            weft_remote_t *r = far_attach(region, NULL);
            weft_op_t end = WEFT_OP_INIT;
            uint64_t word = 0;
            post_many(r);
            for (int i = 0; i < rounds * rounds; i++)
                pair_drive(&far.pair);
            CHECK_OK(frees ? weft_region_free(region, &end) : weft_region_revoke(region, &end));
            /* not while its user does not move */
            for (int i = 0; i < 200; i++)
                weft_runtime_progress(far.pair.rt[0]);
            CHECK(!weft_op_done(&end));
            CHECK_OK(pair_wait(&far.pair, &end, 20));
            memset(own, 0x11, sizeof own);
            unsigned well = 0;
            for (unsigned i = 0; i < N; i++) {
                weft_status_t st = pair_wait(&far.pair, &many[i], 20);
                CHECK(st == WEFT_OK || st == WEFT_ERR_STALE);
                well += !st;
            }
            pair_run(&far.pair, 0.01);
            for (size_t i = 0; i < sizeof own; i++)
                CHECK_EQ(own[i], 0x11);
            CHECK_EQ(far_info(r).state, WEFT_ERR_STALE);
            CHECK_EQ(far_read(r, 0, &word, 8), WEFT_ERR_STALE);
            printf("# %s: %u of %u came before\n", frees ? "free" : "revoke", well, (unsigned)N);
            weft_remote_drop(r);
            if (!frees) {
                weft_remote_t *again = far_attach(region, NULL); /* new keys are good */
                CHECK_OK(far_write(again, 0, &word, 8));
                weft_remote_drop(again);
                far_free(region);
            }
            far_close();
        }
    }
}

TEST(a_key_whose_time_is_over_is_stale_on_this_path_too)
{
    far_open(&native, NULL);
    weft_region_t *region = far_region(4096);
    weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
    uint64_t word = 0;
    o.lifetime_ns = 300 * WEFT_MILLISECOND;
    weft_remote_t *r = far_attach(region, &o);
    weft_remote_t *other = far_attach(region, NULL);
    CHECK_OK(far_read(r, 0, &word, 8));
    PAIR_UNTIL(&far.pair, far_info(r).state == WEFT_ERR_STALE, 10);
    CHECK_EQ(far_read(r, 0, &word, 8), WEFT_ERR_STALE);
    CHECK_OK(far_read(other, 0, &word, 8));
    PAIR_UNTIL(&far.pair, far_region_info(region).attached == 1, 10); /* its user has said that it is done */
    weft_remote_drop(r);
    weft_remote_drop(other);
    far_free(region);
    far_close();
}

TEST(an_owner_gets_its_memory_back_when_the_connection_is_aborted)
{
    for (int side = 0; side < 2; side++) {
        static uint8_t own[LEN];
        far_open(&native, NULL);
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        o.len = LEN;
        o.buf = own;
        weft_region_t *region = far_region_with(&o);
        weft_remote_t *r = far_attach(region, NULL);
        weft_op_t end = WEFT_OP_INIT, aborted = WEFT_OP_INIT;
        if (!side)
            post_many(r); /* on the user's side UCX 1.13 may abort: see rma_ends.c */
        CHECK_OK(weft_region_revoke(region, &end));
        CHECK_OK(weft_ep_abort(far.pair.ep[side], &aborted));
        far.pair.ep[side] = NULL;
        CHECK_OK(pair_wait(&far.pair, &end, 20));
        pair_wait(&far.pair, &aborted, 20);
        for (unsigned i = 0; i < N && !side; i++) {
            weft_status_t st = pair_wait(&far.pair, &many[i], 20);
            CHECK(st == WEFT_OK || st == WEFT_ERR_STALE || st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED);
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}
