/* tests/unit/rma_grant.c - grants: what is let through and what is not, when they end, and what becomes of
 * a region whose peer stops in the middle. */
#include "test.h"

#include <sys/mman.h>

#include "owner.h"

static weft_runtime_t *rt;
static weft_ep_t *peer;
static weft_region_t *region;

static void begin(uint64_t len)
{
    rt = owner_open_virtual();
    peer = owner_peer(rt);
    region = owner_region(rt, len, NULL);
}

static void finish(void)
{
    owner_peer_free(peer);
    CHECK_OK(weft_runtime_close(rt));
}

static weft_region_info_t info(void)
{
    weft_region_info_t i = WEFT_REGION_INFO_INIT;
    CHECK_OK(weft_region_get_info(region, &i));
    return i;
}

static rma_slot_t *slot_of(const rma_grant_t *g)
{
    CHECK(g->slot >= 0);
    return &region->share.control->slots[g->slot];
}

/* What a peer has: a mapping of the memfd as it is now. */
static rma_control_t *map(void)
{
    void *p = mmap(NULL, region->share.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->share.fd, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* --- what is let through ---------------------------------------------------------------------------------------------------- */

TEST(only_what_lies_in_the_part_with_the_rights)
{
    begin(1000);
    rma_claim_t c = owner_claim(region);
    rma_grant_t *g;
    c.offset = 100;
    c.len = 50;
    c.rights = WEFT_RMA_READ | WEFT_RMA_ATOMIC;
    CHECK_OK(wefti_rma_grant_new(peer, &c, 0, &g));
    uint64_t values[] = {
        0, 1, 2, 49, 50, 51, 99, 1000, 1001, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX - 50, UINT64_MAX - 1, UINT64_MAX};
    size_t n = sizeof values / sizeof values[0];
    uint64_t refused = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            uint8_t *at = NULL;
            bool inside = values[i] <= 50 && values[k] <= 50 && values[i] + values[k] <= 50;
            weft_status_t st = wefti_rma_grant_check(g, WEFT_RMA_READ, values[i], values[k], &at);
            CHECK_EQ(st, inside ? WEFT_OK : WEFT_ERR_RANGE);
            CHECK(at == (inside ? region->base + 100 + values[i] : NULL));
            refused += !inside;
        }
    uint8_t *at;
    CHECK_EQ(wefti_rma_grant_check(g, WEFT_RMA_WRITE, 0, 1, &at), WEFT_ERR_RIGHTS);
    CHECK_EQ(wefti_rma_grant_check(g, WEFT_RMA_READ | WEFT_RMA_WRITE, 0, 1, &at), WEFT_ERR_RIGHTS);
    CHECK_OK(wefti_rma_grant_check(g, WEFT_RMA_READ | WEFT_RMA_ATOMIC, 0, 1, &at));
    CHECK_EQ(info().refused, refused + 2);
    CHECK_EQ(rma_state(rt)->refused, refused + 2);
    finish();
}

TEST(a_claim_is_looked_at_when_it_comes)
{
    begin(1000);
    rma_claim_t good = owner_claim(region), c = good;
    rma_grant_t *g = NULL;
    c.generation++;
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_STALE);
    c.generation = 0;
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_STALE);
    c = good;
    c.region ^= 1;
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_STALE);
    c = good;
    c.len++;
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_RANGE);
    c.offset = 1001;
    c.len = 0;
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_RANGE);
    c.offset = UINT64_MAX;
    c.len = 2;
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_RANGE);
    c = good;
    c.expires = weft_now(rt);
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_STALE);
    CHECK(!g && !info().attached && !rma_ep(peer)->grants.taken);
    CHECK_OK(wefti_rma_grant_new(peer, &good, F_MAP, &g));
    CHECK(info().attached == 1 && info().mapped == 1 && wefti_slots_get(&rma_ep(peer)->grants, g->id) == g);
    CHECK(g->stamp && atomic_load(&slot_of(g)->stamp) == g->stamp);
    wefti_rma_grant_drop(g, false);
    CHECK(!info().attached && !info().mapped && !region->share.taken);
    finish();
}

TEST(so_many_and_no_more)
{
    begin(10);
    rma_grant_t *g, *last = NULL;
    rma_claim_t c = owner_claim(region);
    uint64_t mapped = 0;
    for (unsigned i = 0; i < RMA_GRANTS; i++) {
        last = owner_grant(peer, region, true);
        mapped += last->slot >= 0;
        CHECK((last->slot < 0) == !last->stamp);
    }
    CHECK_EQ(mapped, RMA_SLOTS);
    CHECK(info().attached == RMA_GRANTS && info().mapped == RMA_SLOTS);
    CHECK_EQ(wefti_rma_grant_new(peer, &c, F_MAP, &g), WEFT_ERR_LIMIT);
    wefti_rma_grant_drop(last, false);
    CHECK_OK(wefti_rma_grant_new(peer, &c, F_MAP, &g));
    weft_ep_t *other = owner_peer(rt);
    owner_grant(other, region, false);
    wefti_rma_grants_down(peer);
    CHECK(info().attached == 1 && info().mapped == 0 && !region->share.taken);
    owner_peer_free(other);
    finish();
}

TEST(memory_that_is_not_shared_is_not_mapped)
{
    begin(10);
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_region_t *r;
    static char mine[10];
    for (int i = 0; i < 2; i++) {
        o.len = 10;
        o.buf = i ? mine : NULL;
        o.unmapped = !i;
        CHECK_OK(weft_region_new(rt, &o, &r));
        rma_grant_t *g = owner_grant(peer, r, true);
        uint8_t *at;
        CHECK(g->slot == -1 && !g->stamp);
        CHECK_OK(wefti_rma_grant_check(g, WEFT_RMA_WRITE, 9, 1, &at));
        CHECK(at == (uint8_t *)weft_region_base(r) + 9);
    }
    finish();
}

TEST(a_grant_ends_with_the_time_of_its_key)
{
    begin(10);
    rma_claim_t c = owner_claim(region);
    rma_grant_t *g, *h;
    uint8_t *at;
    c.expires = weft_now(rt) + 10 * WEFT_MILLISECOND;
    CHECK_OK(wefti_rma_grant_new(peer, &c, F_MAP, &g));
    CHECK_OK(wefti_rma_grant_new(peer, &c, F_MAP, &h));
    owner_pass(rt, 9 * WEFT_MILLISECOND);
    CHECK_OK(wefti_rma_grant_check(g, WEFT_RMA_READ, 0, 1, &at));
    CHECK_EQ(atomic_load(&slot_of(g)->stamp), g->stamp);
    wefti_rma_grant_drop(h, false); /* its timer with it */
    owner_pass(rt, 2 * WEFT_MILLISECOND);
    CHECK_EQ(wefti_rma_grant_check(g, WEFT_RMA_READ, 0, 1, &at), WEFT_ERR_STALE);
    CHECK_EQ(atomic_load(&slot_of(g)->stamp), 0);
    CHECK_EQ(wefti_rma_grant_new(peer, &c, F_MAP, &h), WEFT_ERR_STALE);
    c.expires = UINT64_MAX;
    CHECK_OK(wefti_rma_grant_new(peer, &c, F_MAP, &h));
    owner_pass(rt, 100 * WEFT_MILLISECOND);
    CHECK_OK(wefti_rma_grant_check(h, WEFT_RMA_READ, 0, 1, &at));
    finish();
}

TEST(a_revoke_counts_from_its_call_on_whoever_drives)
{
    begin(10);
    rma_grant_t *g = owner_grant(peer, region, false);
    uint8_t *at;
    atomic_fetch_add(&region->generation, 1); /* what the call does on its own thread; the driver has not heard yet */
    CHECK(!g->stale);
    CHECK_EQ(wefti_rma_grant_check(g, WEFT_RMA_READ, 0, 1, &at), WEFT_ERR_STALE);
    finish();
}

TEST(no_memory_leaves_no_grant)
{
    begin(10);
    rma_claim_t c = owner_claim(region);
    rma_grant_t *g = NULL;
    c.expires = weft_now(rt) + WEFT_SECOND;
    uint64_t n = 0;
    for (; !g; n++) {
        CHECK(n < 20);
        owner_allocs(n);
        weft_status_t st = wefti_rma_grant_new(peer, &c, F_MAP, &g);
        owner_allocs(UINT64_MAX);
        CHECK_EQ(st, g ? WEFT_OK : WEFT_ERR_NOMEM);
        CHECK(g || (!info().attached && !info().mapped && !region->share.taken && !rma_ep(peer)->grants.taken));
    }
    CHECK(n > 2);
    finish();
}

/* --- under a mapping ------------------------------------------------------------------------------------------------------ */

TEST(a_revoke_waits_for_a_mapped_access_and_looks_again)
{
    begin(1000);
    weft_op_t op = WEFT_OP_INIT;
    rma_grant_t *g = owner_grant(peer, region, true), *idle = owner_grant(peer, region, true);
    rma_control_t *old = map();
    int fd = region->share.fd;
    atomic_store(&slot_of(g)->busy, 1);
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK_EQ(atomic_load(&slot_of(g)->stamp), 0);
    CHECK_EQ(atomic_load(&slot_of(idle)->stamp), 0);
    /* one that was seen idle is done, whatever its peer does to the word afterwards */
    atomic_store(&slot_of(idle)->busy, 1);
    owner_pass(rt, 500 * WEFT_MILLISECOND);
    CHECK(!weft_op_done(&op));
    rma_grant_t *young = owner_grant(peer, region, true);
    CHECK(young->slot == -1); /* the memory may be about to go */
    atomic_store(&slot_of(g)->busy, 0);
    owner_pass(rt, 2 * WEFT_MILLISECOND);
    CHECK(weft_op_done(&op) && op.status == WEFT_OK);
    ((uint8_t *)old)[RMA_CONTROL + 5] = 77;
    CHECK(region->share.fd == fd && region->base[5] == 77); /* it stayed where it is */
    CHECK(owner_grant(peer, region, true)->slot >= 0);
    finish();
}

TEST(a_peer_that_stops_in_the_middle_keeps_the_old_memory)
{
    begin(1000);
    weft_op_t op = WEFT_OP_INIT, next = WEFT_OP_INIT;
    uint8_t *base = region->base, *at;
    rma_grant_t *g = owner_grant(peer, region, true);
    rma_control_t *old = map();
    base[5] = 5;
    atomic_store(&slot_of(g)->busy, 1);
    CHECK_OK(weft_region_revoke(region, &op));
    owner_pass(rt, 900 * WEFT_MILLISECOND);
    CHECK(!weft_op_done(&op));
    rma_grant_t *young = owner_grant(peer, region, true);
    owner_pass(rt, 200 * WEFT_MILLISECOND);
    CHECK(weft_op_done(&op) && op.status == WEFT_OK);
    CHECK(region->base == base && base[5] == 5 && !region->share.taken && !info().mapped && info().attached == 2);
    ((uint8_t *)old)[RMA_CONTROL + 5] = 77;
    CHECK_EQ(base[5], 5);
    CHECK_EQ(atomic_load(&old->slots[g->slot < 0 ? 0 : g->slot].stamp), 0);
    CHECK_OK(wefti_rma_grant_check(young, WEFT_RMA_WRITE, 0, 1, &at)); /* a key of after the revoke is good all the same */
    rma_grant_t *mapped = owner_grant(peer, region, true);
    CHECK(mapped->slot >= 0 && atomic_load(&slot_of(mapped)->stamp) == mapped->stamp);
    /* the next one has its own second */
    atomic_store(&slot_of(mapped)->busy, 1);
    CHECK_OK(weft_region_revoke(region, &next));
    owner_pass(rt, 900 * WEFT_MILLISECOND);
    CHECK(!weft_op_done(&next));
    weft_op_cancel(&next);
    CHECK_EQ(next.status, WEFT_ERR_CANCELLED);
    owner_pass(rt, WEFT_SECOND); /* nobody waits: nothing moves */
    CHECK_EQ(info().mapped, 1);
    CHECK_OK(weft_region_revoke(region, &next));
    owner_pass(rt, 900 * WEFT_MILLISECOND);
    CHECK(!weft_op_done(&next));
    owner_pass(rt, 200 * WEFT_MILLISECOND);
    CHECK(weft_op_done(&next) && next.status == WEFT_OK);
    finish();
}

TEST(a_peer_that_is_lost_in_the_middle_is_not_waited_for)
{
    begin(1000);
    weft_op_t op = WEFT_OP_INIT;
    uint8_t *base = region->base;
    weft_ep_t *lost = owner_peer(rt), *later = owner_peer(rt);
    rma_grant_t *g = owner_grant(lost, region, true), *h = owner_grant(lost, region, true), *k = owner_grant(later, region, true);
    rma_control_t *old = map();
    base[5] = 5;
    int32_t taken = g->slot;
    atomic_store(&slot_of(g)->busy, 1);
    CHECK(g->slot != h->slot);
    owner_peer_free(lost);
    CHECK(region->share.taken >> taken & 1); /* nobody's, and nobody gets it */
    CHECK_EQ(atomic_load(&old->slots[taken].stamp), 0);
    CHECK_EQ(info().mapped, 1);
    rma_grant_t *m = owner_grant(peer, region, true);
    CHECK(m->slot >= 0 && m->slot != taken && m->slot != k->slot);
    /* before the revoke */
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(weft_op_done(&op) && op.status == WEFT_OK);
    CHECK(region->base == base && base[5] == 5 && !region->share.taken);
    ((uint8_t *)old)[RMA_CONTROL + 5] = 77;
    CHECK_EQ(base[5], 5);
    CHECK(m->stale && k->stale && atomic_load(&old->slots[2].stamp) == 0);
    /* and while it waits */
    k = owner_grant(later, region, true);
    atomic_store(&slot_of(k)->busy, 1);
    old = map();
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(!weft_op_done(&op));
    owner_peer_free(later);
    CHECK(weft_op_done(&op) && op.status == WEFT_OK);
    ((uint8_t *)old)[RMA_CONTROL + 5] = 77;
    CHECK(base[5] == 5 && !region->share.taken);
    finish();
}

TEST(a_revoke_that_cannot_replace_the_memory_says_so_and_the_next_one_tries_again)
{
    begin(1000);
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *lost = owner_peer(rt);
    rma_grant_t *g = owner_grant(lost, region, true);
    atomic_store(&slot_of(g)->busy, 1);
    owner_peer_free(lost);
    owner_allocs(0);
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(weft_op_done(&op) && op.status == WEFT_ERR_NOMEM);
    owner_allocs(UINT64_MAX);
    CHECK(region->share.taken);
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(weft_op_done(&op) && op.status == WEFT_OK && !region->share.taken);
    /* no memory for a timer to look with */
    g = owner_grant(peer, region, true);
    atomic_store(&slot_of(g)->busy, 1);
    CHECK_EQ(rt->timers.n, 0);
    wefti_heap_free(&rt->timers);
    owner_allocs(0);
    CHECK_OK(weft_region_revoke(region, &op));
    owner_allocs(UINT64_MAX);
    CHECK(weft_op_done(&op) && op.status == WEFT_ERR_NOMEM && g->stale);
    atomic_store(&slot_of(g)->busy, 0);
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(weft_op_done(&op) && op.status == WEFT_OK);
    finish();
}

#define MIB (UINT64_C(1) << 20)

/* A timer that counts rounds of progress. */
static uint64_t rounds;
static void round_passed(wefti_timer_t *t)
{
    rounds++;
    CHECK_OK(wefti_timer_at(rt, t, rt->now));
    rt->until_clock = 0;
}

TEST(a_long_region_moves_in_rounds_between_which_others_are_served)
{
    begin(8 * MIB);
    weft_op_t op = WEFT_OP_INIT;
    wefti_timer_t t = {.fn = round_passed};
    weft_ep_t *lost = owner_peer(rt);
    rma_grant_t *g = owner_grant(lost, region, true);
    memset(region->base, 3, 8 * MIB);
    atomic_store(&slot_of(g)->busy, 1);
    owner_peer_free(lost);
    CHECK_OK(wefti_timer_at(rt, &t, rt->now));
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(!weft_op_done(&op));
    rma_grant_t *young = owner_grant(peer, region, true);
    CHECK(young->slot == -1);
    uint64_t served = 0, moved = 0;
    for (uint8_t *at; !weft_op_done(&op); served++) {
        CHECK(served < 1000 && region->share.mem.moved <= moved + MIB + 2 * RMA_CONTROL);
        moved = region->share.mem.moved;
        for (uint64_t k = 0; k < 8; k++) { /* what is done between two rounds stays, wherever it is */
            CHECK_OK(wefti_rma_grant_check(young, WEFT_RMA_WRITE, k * MIB + served, 1, &at));
            *at = (uint8_t)(100 + served);
        }
        weft_runtime_progress(rt);
    }
    CHECK(op.status == WEFT_OK && served >= 7 && rounds >= 7);
    for (uint64_t k = 0; k < 8; k++)
        for (uint64_t i = 0; i < MIB; i++)
            CHECK_EQ(region->base[k * MIB + i], i < served ? 100 + i : 3);
    CHECK(owner_grant(peer, region, true)->slot >= 0);
    wefti_timer_stop(rt, &t);
    finish();
}

TEST(a_long_region_whose_revoke_is_cancelled_or_finds_no_memory_on_the_way_stays_whole)
{
    begin(8 * MIB);
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *lost = owner_peer(rt);
    rma_grant_t *g = owner_grant(lost, region, true);
    memset(region->base, 3, 8 * MIB);
    atomic_store(&slot_of(g)->busy, 1);
    owner_peer_free(lost);
    CHECK_OK(weft_region_revoke(region, &op));
    weft_runtime_progress(rt);
    weft_op_cancel(&op);
    CHECK_EQ(op.status, WEFT_ERR_CANCELLED);
    CHECK(owner_grant(peer, region, true)->slot == -1); /* it would be the wrong memory, in part */
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(!weft_op_done(&op));
    owner_pass(rt, 500 * WEFT_MILLISECOND);
    CHECK(weft_op_done(&op) && op.status == WEFT_OK && region->base[0] == 3 && region->base[8 * MIB - 1] == 3);
    /* freed on the way */
    g = owner_grant(peer, region, true);
    atomic_store(&slot_of(g)->busy, 1);
    wefti_rma_grant_drop(g, true);
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(!weft_op_done(&op));
    weft_op_t freed = WEFT_OP_INIT;
    CHECK_OK(weft_region_free(region, &freed));
    owner_pass(rt, 500 * WEFT_MILLISECOND);
    CHECK(weft_op_done(&op) && op.status == WEFT_OK && weft_op_done(&freed) && freed.status == WEFT_OK);
    finish();
}

TEST(the_memory_of_a_long_region_is_given_back_in_rounds)
{
    begin(10);
    for (int mapped = 0; mapped < 2; mapped++) {
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *long_one;
        weft_op_t op = WEFT_OP_INIT;
        unsigned n = 0;
        o.len = 32 * MIB;
        o.unmapped = !mapped;
        CHECK_OK(weft_region_new(rt, &o, &long_one));
        memset(weft_region_base(long_one), 1, o.len);
        CHECK_OK(weft_region_free(long_one, &op));
        for (; !weft_op_done(&op); n++) {
            CHECK(n < 1000);
            weft_runtime_progress(rt);
        }
        CHECK(op.status == WEFT_OK && n >= 5);
        /* one that is on the way when the runtime closes goes with it */
        CHECK_OK(weft_region_new(rt, &o, &long_one));
        memset(weft_region_base(long_one), 1, o.len);
        CHECK_OK(weft_region_free(long_one, NULL));
    }
    finish();
}

TEST(an_endpoint_that_goes_down_leaves_payloads_to_end)
{
    begin(1000);
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *lost = owner_peer(rt);
    rma_grant_t *g = owner_grant(lost, region, true);
    wefti_rma_grant_begin(g);
    owner_peer_free(lost);
    CHECK(!g->ep && g->stale && g->slot == -1 && !info().attached);
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(!weft_op_done(&op));
    wefti_rma_grant_end(g);
    CHECK(weft_op_done(&op) && op.status == WEFT_OK && wefti_list_empty(&region->grants));
    finish();
}
