/* A service's budget, and what each peer has of it. */
#include "base/alloc.h"
#include "base/rng.h"
#include "rpc/serve.h"
#include "test.h"

enum { PEERS = 8 };

static bool charge(rpc_share_t *s, uint64_t n)
{
    const char *why = NULL;
    bool ok = wefti_rpc_charge(s, n, &why);
    CHECK(ok == !why);
    return ok;
}

TEST(one_peer_has_its_part_and_no_more)
{
    rpc_budget_t *b = wefti_rpc_budget_new(1000, 50);
    rpc_share_t *s = wefti_rpc_share(b, 7), *t = wefti_rpc_share(b, 8);
    const char *why;
    CHECK_EQ(wefti_rpc_space(s), 500);
    CHECK(!wefti_rpc_charge(s, 501, &why) && strstr(why, "longer"));
    CHECK(charge(s, 400));
    CHECK(!wefti_rpc_charge(s, 101, &why) && strstr(why, "try again"));
    CHECK(charge(s, 100));
    CHECK(!charge(s, 1));
    CHECK(charge(t, 450)); /* the other one has its own */
    CHECK_EQ(wefti_rpc_space(t), 50);
    wefti_rpc_charge_more(s, 100); /* what was not known before */
    CHECK_EQ(wefti_rpc_space(t), 0);
    CHECK(!wefti_rpc_charge(t, 1, &why) && strstr(why, "too much memory"));
    CHECK_EQ(wefti_rpc_budget_used(b), 1050);
    wefti_rpc_uncharge(s, 600);
    wefti_rpc_uncharge(t, 450);
    CHECK_EQ(wefti_rpc_budget_used(b), 0);
    CHECK(wefti_rpc_share(b, 7) == s); /* the same, as long as somebody refers to it */
    wefti_rpc_share_put(s);
    wefti_rpc_share_put(s);
    wefti_rpc_share_put(t);
    wefti_rpc_budget_leave(b);
}

TEST(no_number_is_too_large)
{
    rpc_budget_t *b = wefti_rpc_budget_new(UINT64_MAX, 100);
    rpc_share_t *s = wefti_rpc_share(b, 1);
    CHECK_EQ(wefti_rpc_space(s), UINT64_MAX);
    CHECK(charge(s, UINT64_MAX - 5));
    CHECK(!charge(s, 6));
    CHECK(charge(s, 5));
    wefti_rpc_uncharge(s, UINT64_MAX);
    wefti_rpc_share_put(s);
    wefti_rpc_budget_leave(b);
    CHECK_EQ(wefti_rpc_part(UINT32_MAX, 50), UINT32_MAX / 2 + 1);
    CHECK_EQ(wefti_rpc_part(UINT32_MAX, 100), UINT32_MAX);
    CHECK_EQ(wefti_rpc_part(1, 50), 1);
    CHECK_EQ(wefti_rpc_part(3, 1), 1);
    CHECK_EQ(wefti_rpc_part(3, 50), 2);
    CHECK_EQ(wefti_rpc_part(8, 50), 4);
}

/* Peers that come and go, and a service that goes before them. */
TEST(what_is_charged_is_the_sum_of_the_shares)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        wefti_rng_t rng = {seed};
        rpc_budget_t *b = wefti_rpc_budget_new(10000, 1 + (uint32_t)wefti_rng_below(&rng, 100));
        rpc_share_t *held[PEERS] = {NULL};
        uint64_t bytes[PEERS] = {0}, sum = 0;
        for (unsigned i = 0; i < 500; i++) {
            unsigned p = (unsigned)wefti_rng_below(&rng, PEERS);
            uint64_t n = wefti_rng_below(&rng, 2000);
            if (!held[p])
                held[p] = wefti_rpc_share(b, 100 + p);
            if (wefti_rng_below(&rng, 2) && charge(held[p], n)) {
                bytes[p] += n;
                sum += n;
            } else if (wefti_rng_below(&rng, 2)) {
                wefti_rpc_uncharge(held[p], bytes[p]);
                sum -= bytes[p];
                bytes[p] = 0;
                wefti_rpc_share_put(held[p]);
                held[p] = NULL;
            }
            CHECK_EQ(wefti_rpc_budget_used(b), sum);
            CHECK(sum <= 10000);
        }
        wefti_rpc_budget_leave(b); /* what is held stays counted until it is given back */
        for (unsigned p = 0; p < PEERS; p++)
            if (held[p]) {
                wefti_rpc_uncharge(held[p], bytes[p]);
                wefti_rpc_share_put(held[p]);
            }
    }
}
