/* tests/unit/rma_region.c - regions from their making to their end: memory, names, generations, threads, forks, and no memory
 * at every step. ctest: label=thread timeout=180 */
#include "test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_fabric.h"
#include "fakedev.h"
#include "owner.h"

static weft_region_info_t info(const weft_region_t *region)
{
    weft_region_info_t i = WEFT_REGION_INFO_INIT;
    CHECK_OK(weft_region_get_info(region, &i));
    return i;
}

static void wait_for(weft_runtime_t *rt, weft_op_t *op, weft_status_t want)
{
    (void)rt;
    weft_status_t st = weft_op_wait(op, 20 * WEFT_SECOND);
    if (st != want)
        FAIL("%s, not %s", weft_status_name(st), weft_status_name(want));
}

/* --- memory --------------------------------------------------------------------------------------------------------------- */

TEST(memory_that_the_library_made_is_zero_and_as_long_as_it_may_get)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    for (int unmapped = 0; unmapped < 2; unmapped++) {
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *region = NULL;
        o.len = 5000;
        o.max_len = UINT64_C(1) << 34;
        o.unmapped = unmapped;
        CHECK_OK(weft_region_new(rt, &o, &region));
        uint8_t *base = weft_region_base(region);
        CHECK(base && (region->share.fd >= 0) == !unmapped && region->own && !region->device);
        for (int i = 0; i < 5000; i++)
            CHECK_EQ(base[i], 0);
        base[4999] = 1;
        CHECK(info(region).len == 5000 && info(region).max_len == UINT64_C(1) << 34 && info(region).generation == 1);
        CHECK_OK(weft_region_extend(region, UINT64_C(1) << 34));
        CHECK(weft_region_base(region) == base && base[4999] == 1 && base[5000] == 0 && base[(UINT64_C(1) << 34) - 1] == 0);
        CHECK_EQ(weft_region_extend(region, (UINT64_C(1) << 34) + 1), WEFT_ERR_RANGE);
        CHECK_EQ(weft_region_extend(region, 5000), WEFT_ERR_RANGE);
        CHECK_EQ(info(region).len, UINT64_C(1) << 34);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_region_free(region, &op));
        wait_for(rt, &op, WEFT_OK);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(memory_that_is_kept_is_there_after_the_region_and_after_the_runtime)
{
    for (int unmapped = 0; unmapped < 2; unmapped++)
        for (int with_runtime = 0; with_runtime < 2; with_runtime++) {
            weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
            weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
            weft_region_t *region = NULL;
            void *map = NULL, *again = NULL;
            size_t n = 0;
            o.len = 5000;
            o.max_len = 100000;
            o.unmapped = unmapped;
            CHECK_OK(weft_region_new(rt, &o, &region));
            uint8_t *base = weft_region_base(region);
            memcpy(base, "still here", 11);
            CHECK_OK(weft_region_keep(region, &map, &n));
            CHECK_OK(weft_region_keep(region, &again, &n));
            CHECK(map == again && (uint8_t *)map <= base && (uint8_t *)map + n >= base + 100000);
            weft_op_t op = WEFT_OP_INIT;
            if (!with_runtime) {
                CHECK_OK(weft_region_free(region, &op));
                wait_for(rt, &op, WEFT_OK);
            }
            CHECK_OK(weft_runtime_close(rt));
            CHECK(!strcmp((char *)base, "still here"));
            base[4999] = 1;
            pid_t child = fork();
            if (!child) {
                base[4999] = 2;
                _exit(0);
            }
            CHECK_EQ(waitpid(child, NULL, 0), child);
            CHECK_EQ(base[4999], 1);
            CHECK_EQ(munmap(map, n), 0);
        }
}

TEST(memory_that_is_kept_shows_nothing_of_a_peer_that_is_in_the_middle_of_an_access)
{
    uint64_t usual = wefti_rma_step_bytes;
    wefti_rma_step_bytes = 16384; /* it takes more than one round */
    for (int with_runtime = 0; with_runtime < 2; with_runtime++) {
        enum { LEN = 200000, MAX = 300000 };
        weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
        weft_ep_t *peer = owner_peer(rt);
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *region = NULL;
        weft_op_t op = WEFT_OP_INIT;
        void *map = NULL;
        size_t n = 0;
        o.len = LEN;
        o.max_len = MAX;
        CHECK_OK(weft_region_new(rt, &o, &region));
        uint8_t *base = weft_region_base(region);
        memset(base, 0x18, MAX);
        CHECK_OK(weft_region_keep(region, &map, &n));
        rma_grant_t *g = owner_grant(peer, region, true);
        CHECK(g->slot >= 0);
        rma_control_t *theirs = mmap(NULL, region->share.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->share.fd, 0);
        size_t theirs_n = region->share.bytes;
        CHECK(theirs != MAP_FAILED);
        atomic_store(&theirs->slots[g->slot].busy, 1); /* stopped here */
        if (!with_runtime) {
            CHECK_OK(weft_region_free(region, &op));
            wait_for(rt, &op, WEFT_OK);
            owner_peer_free(peer);
        } else {
            owner_peer_free(peer); /* it is lost, and its slot stays busy */
        }
        CHECK_OK(weft_runtime_close(rt));
        memset((uint8_t *)theirs + RMA_CONTROL, 0xbb, MAX); /* it goes on */
        for (size_t i = 0; i < MAX; i++)
            CHECK_EQ(base[i], 0x18);
        CHECK_EQ(munmap(map, n), 0);
        CHECK_EQ(munmap(theirs, theirs_n), 0);
    }
    wefti_rma_step_bytes = usual;
}

TEST(memory_of_the_programs_stays_the_programs)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    static char mine[1000];
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_region_t *region = NULL;
    o.buf = mine;
    o.len = 1000;
    mine[7] = 'x';
    CHECK_OK(weft_region_new(rt, &o, &region));
    CHECK(weft_region_base(region) == mine && region->share.fd == -1 && !region->own && !region->device);
    CHECK_EQ(weft_region_keep(region, (void *[1]){0}, (size_t[1]){0}), WEFT_ERR_STATE);
    CHECK_OK(weft_region_free(region, NULL));
    CHECK(wefti_rma_regions_idle(rma_state(rt)));
    CHECK_EQ(mine[7], 'x');
    void *dev;
    fakedev_install();
    CHECK_OK(weft_mem_alloc(fakedev(), 4096, &dev));
    o.buf = dev;
    o.len = 4096;
    for (int said = 0; said < 2; said++) {
        o.kind = said ? fakedev() : NULL;
        CHECK_OK(weft_region_new(rt, &o, &region));
        CHECK(region->device == fakedev() && weft_region_base(region) == dev);
        CHECK_OK(weft_region_free(region, NULL));
    }
    weft_mem_free(fakedev(), dev, 4096);
    fakedev_remove();
    CHECK_OK(weft_runtime_close(rt));
}

TEST(nonsense_is_refused)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    char name[WEFT_RMA_NAME_MAX + 2], byte = 0;
    memset(name, 'n', sizeof name);
    name[WEFT_RMA_NAME_MAX + 1] = 0;
    weft_region_opts_t o[9], good = WEFT_REGION_OPTS_INIT;
    weft_region_t *region = NULL;
    good.len = 10;
    for (int i = 0; i < 9; i++)
        o[i] = good;
    o[0].len = 0;
    o[1].max_len = 9;
    o[2].rights = 8;
    o[3].rights = WEFT_RMA_READ, o[3].name_rights = WEFT_RMA_WRITE;
    o[4].name = "";
    o[5].name = name;
    o[6].kind = weft_mem_host();
    o[7].buf = &byte, o[7].max_len = UINT64_MAX;
    o[8].size = 3;
    for (int i = 0; i < 9; i++) {
        CHECK_EQ(weft_region_new(rt, &o[i], &region), WEFT_ERR_INVALID);
        CHECK(!region && *weft_last_error());
    }
    CHECK_EQ(weft_region_new(NULL, &good, &region), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_new(rt, NULL, &region), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_new(rt, &good, NULL), WEFT_ERR_INVALID);
    good.max_len = UINT64_MAX;
    CHECK_EQ(weft_region_new(rt, &good, &region), WEFT_ERR_NOMEM);
    good.unmapped = true;
    CHECK_EQ(weft_region_new(rt, &good, &region), WEFT_ERR_NOMEM);
    CHECK_EQ(weft_region_extend(NULL, 1), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_keep(NULL, (void *[1]){0}, (size_t[1]){0}), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_revoke(NULL, NULL), WEFT_ERR_INVALID);
    CHECK_OK(weft_region_free(NULL, NULL));
    CHECK(!weft_region_base(NULL) && wefti_rma_regions_idle(rma_state(rt)));
    name[WEFT_RMA_NAME_MAX] = 0;
    good = (weft_region_opts_t)WEFT_REGION_OPTS_INIT;
    good.len = 1;
    good.name = name;
    CHECK_OK(weft_region_new(rt, &good, &region));
    CHECK_OK(weft_runtime_close(rt));
}

/* --- names ---------------------------------------------------------------------------------------------------------------- */

TEST(names_are_found_taken_and_given_back_with_the_call)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    rma_state_t *rs = rma_state(rt);
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_region_t *a = NULL, *b = NULL;
    weft_ep_t *peer = owner_peer(rt);
    rma_claim_t c;
    o.len = 100;
    o.max_len = 200;
    o.name = "numbers";
    o.name_rights = WEFT_RMA_READ;
    CHECK_EQ(wefti_rma_named(rs, "numbers", 7, &c), WEFT_ERR_NOTFOUND);
    CHECK_OK(weft_region_new(rt, &o, &a));
    CHECK_EQ(weft_region_new(rt, &o, &b), WEFT_ERR_STATE);
    CHECK(!b);
    CHECK_OK(wefti_rma_named(rs, "numbers", 7, &c));
    CHECK(c.region == a->id && c.generation == 1 && !c.offset && c.len == 100 && c.rights == WEFT_RMA_READ && !c.expires);
    CHECK_OK(weft_region_revoke(a, NULL));
    CHECK_OK(weft_region_extend(a, 150));
    CHECK_OK(wefti_rma_named(rs, "numbers", 7, &c));
    CHECK(c.generation == 2 && c.len == 150);
    CHECK_EQ(wefti_rma_named(rs, "number", 6, &c), WEFT_ERR_NOTFOUND);
    CHECK_EQ(wefti_rma_named(rs, "numbers\0", 8, &c), WEFT_ERR_NOTFOUND);
    CHECK_EQ(wefti_rma_named(rs, "", 0, &c), WEFT_ERR_NOTFOUND);
    rma_grant_t *g = owner_grant(peer, a, false);
    wefti_rma_grant_begin(g); /* so that the end of a takes a while */
    CHECK_OK(weft_region_free(a, NULL));
    CHECK_EQ(wefti_rma_named(rs, "numbers", 7, &c), WEFT_ERR_NOTFOUND);
    CHECK_OK(weft_region_new(rt, &o, &b));
    CHECK_OK(wefti_rma_named(rs, "numbers", 7, &c));
    CHECK(c.region == b->id && !wefti_rma_region(rs, a->id));
    wefti_rma_grant_end(g);
    owner_peer_free(peer);
    CHECK_OK(weft_runtime_close(rt));
}

/* The next name of the same hash: what a name begins with. */
static rma_name_t *next_of(const weft_region_t *region)
{
    rma_name_t *next;
    memcpy(&next, region->names, sizeof next);
    return next;
}

TEST(names_with_the_same_hash_are_kept_apart)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    rma_state_t *rs = rma_state(rt);
    rma_claim_t c;
    /* Two that collide are not to be had: put one where the other will look. */
    weft_region_t *a = owner_region(rt, 1, "a"), *b, *d;
    CHECK_OK(wefti_map_put(&rs->by_name, wefti_hash_bytes("b", 1), a->names));
    CHECK_EQ(wefti_rma_named(rs, "b", 1, &c), WEFT_ERR_NOTFOUND);
    b = owner_region(rt, 1, "b");
    CHECK(next_of(b) == a->names);
    CHECK_OK(wefti_rma_named(rs, "b", 1, &c));
    CHECK_EQ(c.region, b->id);
    CHECK_OK(weft_region_free(b, NULL));
    CHECK_EQ(wefti_rma_named(rs, "b", 1, &c), WEFT_ERR_NOTFOUND);
    CHECK(wefti_map_get(&rs->by_name, wefti_hash_bytes("b", 1)) == a->names);
    /* and one that goes out of the middle */
    b = owner_region(rt, 1, "b");
    CHECK_OK(wefti_map_put(&rs->by_name, wefti_hash_bytes("d", 1), b->names));
    d = owner_region(rt, 1, "d"); /* d, b, a */
    CHECK_OK(wefti_map_put(&rs->by_name, wefti_hash_bytes("b", 1), d->names));
    CHECK_OK(wefti_rma_named(rs, "b", 1, &c));
    CHECK_EQ(c.region, b->id);
    CHECK_OK(weft_region_free(b, NULL));
    CHECK(next_of(d) == a->names);
    CHECK_EQ(wefti_rma_named(rs, "b", 1, &c), WEFT_ERR_NOTFOUND);
    CHECK_OK(wefti_rma_named(rs, "d", 1, &c));
    CHECK_OK(wefti_rma_named(rs, "a", 1, &c));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_region_goes_by_every_name_it_was_given_until_it_is_freed)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    rma_state_t *rs = rma_state(rt);
    rma_claim_t c;
    weft_region_t *a = owner_region(rt, 1, NULL), *b = owner_region(rt, 1, "b");
    char name[WEFT_RMA_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[WEFT_RMA_NAME_MAX + 1] = 0;
    CHECK_OK(weft_region_name(a, "one"));
    CHECK_OK(weft_region_name(a, "two"));
    CHECK_EQ(weft_region_name(a, "two"), WEFT_ERR_STATE);
    CHECK_EQ(weft_region_name(a, "b"), WEFT_ERR_STATE);
    CHECK_EQ(weft_region_name(b, "one"), WEFT_ERR_STATE);
    CHECK_EQ(weft_region_name(a, ""), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_name(a, name), WEFT_ERR_INVALID);
    CHECK_OK(wefti_rma_named(rs, "one", 3, &c));
    CHECK(c.region == a->id && c.rights == a->name_rights);
    CHECK_OK(wefti_rma_named(rs, "two", 3, &c));
    CHECK_EQ(c.region, a->id);
    CHECK_OK(wefti_rma_named(rs, "b", 1, &c));
    CHECK_EQ(c.region, b->id);
    CHECK_OK(weft_region_free(a, NULL));
    CHECK_EQ(weft_region_name(a, "late"), WEFT_ERR_CLOSED);
    CHECK_EQ(wefti_rma_named(rs, "one", 3, &c), WEFT_ERR_NOTFOUND);
    CHECK_EQ(wefti_rma_named(rs, "two", 3, &c), WEFT_ERR_NOTFOUND);
    CHECK_OK(weft_region_name(b, "one"));
    CHECK_OK(wefti_rma_named(rs, "one", 3, &c));
    CHECK_EQ(c.region, b->id);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- revoking and freeing ------------------------------------------------------------------------------------------------- */

TEST(a_revoke_waits_for_payloads_of_older_generations_only)
{
    weft_runtime_t *rt = owner_open_virtual();
    weft_ep_t *peer = owner_peer(rt);
    weft_region_t *region = owner_region(rt, 100, NULL);
    weft_op_t first = WEFT_OP_INIT, second = WEFT_OP_INIT, third = WEFT_OP_INIT;
    uint8_t *at;
    CHECK_OK(weft_region_revoke(region, &first));
    CHECK(weft_op_done(&first) && first.status == WEFT_OK && info(region).generation == 2); /* nobody had it */
    rma_grant_t *old = owner_grant(peer, region, false), *idle = owner_grant(peer, region, false);
    wefti_rma_grant_begin(old);
    wefti_rma_grant_begin(old);
    CHECK_OK(weft_region_revoke(region, &first));
    CHECK(!weft_op_done(&first) && old->stale && idle->stale);
    CHECK_EQ(wefti_rma_grant_check(idle, WEFT_RMA_READ, 0, 1, &at), WEFT_ERR_STALE);
    rma_grant_t *young = owner_grant(peer, region, false);
    CHECK_OK(wefti_rma_grant_check(young, WEFT_RMA_READ, 0, 1, &at));
    wefti_rma_grant_begin(young);
    CHECK_OK(weft_region_revoke(region, &second));
    rma_grant_t *youngest = owner_grant(peer, region, false);
    wefti_rma_grant_begin(youngest);
    wefti_rma_grant_end(old);
    CHECK(!weft_op_done(&first) && !weft_op_done(&second));
    wefti_rma_grant_end(old);
    CHECK(weft_op_done(&first) && first.status == WEFT_OK && !weft_op_done(&second));
    wefti_rma_grant_drop(young, false); /* its peer lets go; the payload goes on */
    CHECK(!weft_op_done(&second));
    wefti_rma_grant_end(young);
    CHECK(weft_op_done(&second) && second.status == WEFT_OK);
    CHECK_OK(wefti_rma_grant_check(youngest, WEFT_RMA_READ, 0, 1, &at));
    /* cancelled, and out of time: it stands all the same */
    CHECK_OK(weft_region_revoke(region, &second));
    third.timeout_ns = 5 * WEFT_MILLISECOND;
    CHECK_OK(weft_region_revoke(region, &third));
    CHECK_EQ(wefti_rma_grant_check(youngest, WEFT_RMA_READ, 0, 1, &at), WEFT_ERR_STALE);
    weft_op_cancel(&second);
    CHECK(weft_op_done(&second) && second.status == WEFT_ERR_CANCELLED && !weft_op_done(&third));
    owner_pass(rt, 10 * WEFT_MILLISECOND);
    CHECK(weft_op_done(&third) && third.status == WEFT_ERR_TIMEOUT);
    CHECK_EQ(info(region).generation, 6);
    CHECK_EQ(info(region).refused, 2);
    wefti_rma_grant_end(youngest);
    owner_peer_free(peer);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_free_waits_for_payloads_and_leaves_grants_that_are_stale)
{
    weft_runtime_t *rt = owner_open_virtual();
    rma_state_t *rs = rma_state(rt);
    weft_ep_t *peer = owner_peer(rt);
    weft_region_t *region = owner_region(rt, 100, NULL);
    weft_op_t freed = WEFT_OP_INIT, revoked = WEFT_OP_INIT;
    uint8_t *at;
    rma_grant_t *g = owner_grant(peer, region, true), *moving = owner_grant(peer, region, true);
    rma_claim_t c = owner_claim(region);
    atomic_store(&region->share.control->slots[g->slot].busy, 1); /* no matter: the memory goes */
    wefti_rma_grant_begin(moving);
    CHECK_OK(weft_region_revoke(region, &revoked));
    CHECK_OK(weft_region_free(region, &freed));
    CHECK(!weft_op_done(&freed) && !weft_op_done(&revoked));
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_STALE);
    wefti_rma_grant_end(moving);
    CHECK(weft_op_done(&freed) && freed.status == WEFT_OK && weft_op_done(&revoked) && revoked.status == WEFT_OK);
    CHECK(!g->region && !moving->region && wefti_rma_regions_idle(rs));
    CHECK_EQ(wefti_rma_grant_check(g, 0, 0, 0, &at), WEFT_ERR_STALE);
    CHECK_EQ(wefti_rma_grant_new(peer, &c, 0, &g), WEFT_ERR_STALE);
    wefti_rma_grant_drop(g, false);
    owner_peer_free(peer); /* the other one */
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_free_that_is_cancelled_goes_on_and_waits_for_the_programs_memory)
{
    weft_runtime_t *rt = owner_open_virtual();
    rma_state_t *rs = rma_state(rt);
    weft_ep_t *peer = owner_peer(rt);
    static char mine[100];
    for (int own = 0; own < 2; own++) {
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *region = NULL;
        weft_op_t op = WEFT_OP_INIT;
        o.len = 100;
        o.buf = own ? NULL : mine;
        op.timeout_ns = WEFT_MILLISECOND;
        CHECK_OK(weft_region_new(rt, &o, &region));
        rma_grant_t *g = owner_grant(peer, region, false);
        wefti_rma_grant_begin(g);
        CHECK_OK(weft_region_free(region, &op));
        owner_pass(rt, 3 * WEFT_MILLISECOND);
        weft_op_cancel(&op);
        CHECK_EQ(weft_op_done(&op), own);
        CHECK(!own || op.status == WEFT_ERR_TIMEOUT);
        CHECK(!wefti_rma_regions_idle(rs));
        wefti_rma_grant_end(g);
        CHECK(weft_op_done(&op) && wefti_rma_regions_idle(rs));
        CHECK(own || op.status == WEFT_OK);
    }
    owner_peer_free(peer);
    CHECK_OK(weft_runtime_close(rt));
}

static void *close_it(void *rt)
{
    CHECK_OK(weft_runtime_close(rt));
    return NULL;
}

TEST(closing_the_runtime_frees_what_is_left_and_ends_who_waits)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    weft_ep_t *peer = owner_peer(rt);
    weft_region_t *left = owner_region(rt, 100, "left"), *waited = owner_region(rt, 100, "waited");
    weft_op_t revoke = WEFT_OP_INIT, freed = WEFT_OP_INIT;
    rma_grant_t *g = owner_grant(peer, left, true), *h = owner_grant(peer, waited, false);
    wefti_rma_grant_begin(g);
    wefti_rma_grant_begin(h);
    CHECK_OK(weft_region_revoke(left, &revoke));
    CHECK_OK(weft_region_free(waited, &freed));
    CHECK(!weft_op_done(&revoke) && !weft_op_done(&freed));
    /* as conn does when the lanes go down */
    owner_peer_free(peer);
    wefti_rma_grant_end(h);
    CHECK(weft_op_done(&freed) && freed.status == WEFT_OK);
    wefti_rma_regions_shutdown(rma_state(rt));
    CHECK(weft_op_done(&revoke) && revoke.status == WEFT_ERR_CLOSED);
    CHECK(!wefti_rma_regions_idle(rma_state(rt)));
    wefti_rma_grant_end(g);
    CHECK(wefti_rma_regions_idle(rma_state(rt)));
    owner_region(rt, 100, "another");
    close_it(rt);
}

/* --- memory runs out ------------------------------------------------------------------------------------------------------ */

TEST(no_memory_at_any_step_leaves_nothing_behind)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    rma_state_t *rs = rma_state(rt);
    rma_claim_t c;
    for (int unmapped = 0; unmapped < 2; unmapped++) {
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *region = NULL;
        uint64_t n = 0;
        o.len = 100;
        o.name = unmapped ? "unmapped" : "mapped";
        o.unmapped = unmapped;
        for (; !region; n++) {
            CHECK(n < 100);
            owner_allocs(n);
            weft_status_t st = weft_region_new(rt, &o, &region);
            owner_allocs(UINT64_MAX);
            CHECK_EQ(st, region ? WEFT_OK : WEFT_ERR_NOMEM);
            if (region)
                continue;
            CHECK_EQ(wefti_rma_named(rs, o.name, strlen(o.name), &c), WEFT_ERR_NOTFOUND);
            CHECK(unmapped || (wefti_rma_regions_idle(rs) && !rs->by_id.taken && !rs->by_name.n));
        }
        CHECK(n > 3); /* there was something to fail */
        CHECK_OK(wefti_rma_named(rs, o.name, strlen(o.name), &c));
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_revoke_or_free_without_memory_for_its_deadline_stands)
{
    weft_runtime_t *rt = owner_open_virtual();
    weft_ep_t *peer = owner_peer(rt);
    weft_region_t *region = owner_region(rt, 100, NULL);
    weft_op_t op = WEFT_OP_INIT;
    uint8_t *at;
    rma_grant_t *g = owner_grant(peer, region, false);
    op.timeout_ns = WEFT_SECOND;
    wefti_rma_grant_begin(g);
    owner_allocs(0);
    CHECK_OK(weft_region_revoke(region, &op));
    CHECK(weft_op_done(&op) && op.status == WEFT_ERR_NOMEM);
    CHECK_EQ(wefti_rma_grant_check(g, 0, 0, 0, &at), WEFT_ERR_STALE);
    CHECK_OK(weft_region_free(region, &op));
    CHECK(weft_op_done(&op) && op.status == WEFT_ERR_NOMEM);
    owner_allocs(UINT64_MAX);
    CHECK(!wefti_rma_regions_idle(rma_state(rt)));
    wefti_rma_grant_end(g);
    CHECK(wefti_rma_regions_idle(rma_state(rt)));
    owner_peer_free(peer);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- threads, forks ------------------------------------------------------------------------------------------------------- */

static weft_runtime_t *common;

static void *make_and_free(void *arg)
{
    uint64_t which = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < 400; i++) {
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *region = NULL;
        weft_op_t op = WEFT_OP_INIT;
        uint8_t key[WEFT_REGION_KEY_MAX];
        size_t n = sizeof key;
        weft_region_key_info_t t = WEFT_REGION_KEY_INFO_INIT;
        rma_claim_t c;
        char name[32];
        snprintf(name, sizeof name, "region %d of %d", i % 3, (int)which);
        o.len = 100 + (uint64_t)i;
        o.max_len = 10000;
        o.name = i % 2 ? name : NULL;
        o.unmapped = i % 5 == 0;
        CHECK_OK(weft_region_new(common, &o, &region));
        memset(weft_region_base(region), 0xff, 100);
        CHECK_OK(weft_region_key(region, NULL, key, &n));
        if (i % 3 == 0)
            CHECK_OK(weft_region_revoke(region, NULL));
        if (i % 7 == 0) {
            CHECK_OK(weft_region_revoke(region, &op));
            if (i % 2)
                wait_for(common, &op, WEFT_OK);
        }
        CHECK_OK(weft_region_extend(region, 5000));
        uint64_t want = 1 + (i % 3 == 0) + (i % 7 == 0);
        n = sizeof key;
        CHECK_OK(weft_region_key(region, NULL, key, &n));
        CHECK_OK(weft_region_key_read(key, n, &t)); /* a key made after the call is of the new generation */
        CHECK(t.generation == want && t.len == 5000);
        CHECK_EQ(info(region).generation, want);
        if (i % 7 == 0 && i % 2 == 0)
            wait_for(common, &op, WEFT_OK);
        op = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_region_free(region, i % 4 ? &op : NULL));
        if (i % 2)
            CHECK_EQ(wefti_rma_named(rma_state(common), name, strlen(name), &c), WEFT_ERR_NOTFOUND);
        if (i % 4)
            wait_for(common, &op, WEFT_OK);
    }
    return NULL;
}

static void many_threads(weft_progress_mode_t mode)
{
    pthread_t t[3];
    common = owner_open(mode);
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(!pthread_create(&t[i], NULL, make_and_free, (void *)i));
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_join(t[i], NULL));
    /* frees that nobody waits for may still be on their way */
    double end = test_now() + 20;
    while (mode == WEFT_PROGRESS_CALLER && !wefti_rma_regions_idle(rma_state(common)) && test_now() < end)
        weft_runtime_progress(common);
    CHECK_OK(weft_runtime_close(common));
}

TEST(threads_make_and_free_regions_beside_each_other)
{
    many_threads(WEFT_PROGRESS_CALLER);
}

TEST(threads_make_and_free_regions_of_a_runtime_with_its_own)
{
    many_threads(WEFT_PROGRESS_THREAD);
}

/* A region is revoked by threads that do not drive, and freed by the driver before what they posted has reached it. */
static weft_region_t *contested;
static _Atomic int posted;

static void *revoker(void *arg)
{
    weft_op_t *op = arg;
    CHECK_OK(weft_region_revoke(contested, op));
    atomic_fetch_add(&posted, 1);
    return NULL;
}

TEST(a_region_outlives_what_other_threads_have_posted_about_it)
{
    for (int round = 0; round < 50; round++) {
        weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER), *was;
        pthread_t t[3];
        weft_op_t ops[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, freed = WEFT_OP_INIT;
        contested = owner_region(rt, 10, NULL);
        atomic_store(&posted, 0);
        CHECK(wefti_enter(rt, &was)); /* nobody else drives from here on */
        for (int i = 0; i < 3; i++)
            CHECK(!pthread_create(&t[i], NULL, revoker, i < 2 ? &ops[i] : NULL));
        for (int i = 0; i < 3; i++)
            CHECK(!pthread_join(t[i], NULL));
        CHECK_EQ(atomic_load(&contested->coming), 3);
        CHECK_OK(weft_region_free(contested, round % 2 ? &freed : NULL));
        CHECK(!wefti_rma_regions_idle(rma_state(rt)));
        CHECK(!(round % 2) || !weft_op_done(&freed));
        wefti_leave(rt, was);
        for (int i = 0; i < 2; i++)
            wait_for(rt, &ops[i], WEFT_OK);
        if (round % 2)
            wait_for(rt, &freed, WEFT_OK);
        CHECK(wefti_rma_regions_idle(rma_state(rt)));
        CHECK_OK(weft_runtime_close(rt));
    }
}

TEST(a_forked_child_has_its_own_bytes_and_no_region)
{
    weft_runtime_t *rt = owner_open(WEFT_PROGRESS_CALLER);
    weft_region_t *region = owner_region(rt, 100, NULL);
    uint8_t *base = weft_region_base(region), key[WEFT_REGION_KEY_MAX];
    weft_op_t op = WEFT_OP_INIT;
    int status;
    base[0] = 1;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        size_t n = sizeof key;
        weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
        weft_region_t *other;
        o.len = 1;
        base[0] += 10;
        region->share.control->slots[0].zero = 99;
        CHECK_EQ(base[0], 11);
        CHECK_EQ(weft_region_new(rt, &o, &other), WEFT_ERR_FORKED);
        CHECK_EQ(weft_region_key(region, NULL, key, &n), WEFT_ERR_FORKED);
        CHECK_EQ(weft_region_revoke(region, NULL), WEFT_ERR_FORKED);
        CHECK_EQ(weft_region_revoke(region, &op), WEFT_ERR_FORKED);
        CHECK_EQ(weft_region_free(region, &op), WEFT_ERR_FORKED);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(base[0] == 1 && !region->share.control->slots[0].zero);
    CHECK_OK(wefti_rma_share_replace(&region->share, 100, 1 << 20)); /* and the same with memory that took the place of other */
    pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        base[0] += 10;
        _exit(base[0] != 11);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK_EQ(base[0], 1);
    CHECK_OK(weft_runtime_close(rt));
}
