/* tests/unit/rpc_balance.c - Which server a call goes to: equal ones share, a slow one gets little, a full one less than an idle
 * one but something, a dead or draining one nothing. */
#include "rpc/client.h"
#include "test.h"

enum { SERVERS = 8, LEAST = 20000 };

/* A client, and servers of it that never send anything: to be chosen they need an endpoint with a lane, and nobody looks into
 * either. */
typedef struct world {
    weft_runtime_t rt;
    rpc_state_t rs;
    weft_client_t client;
    rpc_server_t server[SERVERS];
    weft_ep_t ep[SERVERS];
    wefti_lane_t *lane;
    unsigned got[SERVERS];
} world_t;

static world_t *world_new(unsigned n)
{
    world_t *w = calloc(1, sizeof *w);
    CHECK(w);
    w->rt.rng.state = 7;
    w->rs.rt = &w->rt;
    w->client.rs = &w->rs;
    w->lane = calloc(1, sizeof *w->lane);
    CHECK(w->lane);
    wefti_list_init(&w->client.servers);
    for (unsigned i = 0; i < n; i++) {
        w->ep[i].lane = w->lane;
        w->server[i].client = &w->client;
        w->server[i].ep = &w->ep[i];
        wefti_list_push_back(&w->client.servers, &w->server[i].link);
        w->client.n_servers++;
    }
    return w;
}

static void world_free(world_t *w)
{
    free(w->lane);
    free(w);
}

static void pick_many(world_t *w, unsigned n, const rpc_server_t * not )
{
    memset(w->got, 0, sizeof w->got);
    for (unsigned i = 0; i < n; i++) {
        rpc_server_t *s = wefti_rpc_pick(&w->client, not );
        CHECK(s);
        w->got[s - w->server]++;
    }
}

TEST(nobody_is_chosen_where_nobody_is)
{
    world_t *w = world_new(0);
    CHECK(!wefti_rpc_pick(&w->client, NULL));
    world_free(w);
}

TEST(the_only_one_is_chosen_if_it_is_up_and_takes_calls)
{
    world_t *w = world_new(1);
    CHECK(wefti_rpc_pick(&w->client, NULL) == &w->server[0]);
    CHECK(wefti_rpc_pick(&w->client, &w->server[0]) == &w->server[0]);
    w->server[0].draining = true;
    CHECK(!wefti_rpc_pick(&w->client, NULL));
    w->server[0].draining = false;
    w->ep[0].lane = NULL;
    CHECK(!wefti_rpc_pick(&w->client, NULL));
    w->server[0].ep = NULL;
    CHECK(!wefti_rpc_pick(&w->client, NULL));
    world_free(w);
}

TEST(equal_ones_share)
{
    for (unsigned n = 2; n <= SERVERS; n++) {
        world_t *w = world_new(n);
        pick_many(w, n * LEAST, NULL);
        for (unsigned i = 0; i < n; i++)
            CHECK(w->got[i] > LEAST * 9 / 10 && w->got[i] < LEAST * 11 / 10);
        world_free(w);
    }
}

TEST(dead_and_draining_ones_get_nothing_and_the_others_share)
{
    world_t *w = world_new(5);
    w->ep[1].lane = NULL;
    w->server[3].draining = true;
    pick_many(w, 3 * LEAST, NULL);
    CHECK_EQ(w->got[1], 0);
    CHECK_EQ(w->got[3], 0);
    for (unsigned i = 0; i < 5; i += 2)
        CHECK(w->got[i] > LEAST * 9 / 10 && w->got[i] < LEAST * 11 / 10);
    world_free(w);
}

TEST(where_a_call_failed_it_does_not_go_again_if_there_is_another)
{
    world_t *w = world_new(3);
    pick_many(w, LEAST, &w->server[1]);
    CHECK_EQ(w->got[1], 0);
    CHECK(w->got[0] && w->got[2]);
    w->ep[0].lane = NULL;
    w->server[2].draining = true;
    pick_many(w, 10, &w->server[1]);
    CHECK_EQ(w->got[1], 10);
    w->server[1].draining = true;
    CHECK(!wefti_rpc_pick(&w->client, &w->server[1]));
    world_free(w);
}

TEST(twice_as_many_calls_under_way_lose_always)
{
    world_t *w = world_new(2);
    w->server[1].under_way = 1;
    pick_many(w, LEAST, NULL);
    CHECK_EQ(w->got[1], 0);
    w->server[0].under_way = 49;
    w->server[1].under_way = 100;
    pick_many(w, LEAST, NULL);
    CHECK_EQ(w->got[1], 0);
    world_free(w);
}

/* The registry's word is old and everyone hears the same: it must not send all to one. */
TEST(a_full_one_gets_fewer_calls_and_not_none)
{
    world_t *w = world_new(2);
    w->server[1].load = 1000;
    pick_many(w, LEAST, NULL);
    CHECK(w->got[1] > LEAST / 10 && w->got[1] < LEAST / 4);
    world_free(w);
}

/* 64 calls are always under way; of eight servers one needs ten times as long for each. */
TEST(a_slow_one_gets_few_calls)
{
    enum { UNDER_WAY = 64, TICKS = 20000 };
    world_t *w = world_new(SERVERS);
    unsigned until[UNDER_WAY] = {0}, at[UNDER_WAY] = {0}, total = 0;
    for (unsigned now = 1; now <= TICKS; now++)
        for (unsigned c = 0; c < UNDER_WAY; c++) {
            if (until[c] > now)
                continue;
            if (until[c])
                w->server[at[c]].under_way--;
            rpc_server_t *s = wefti_rpc_pick(&w->client, NULL);
            CHECK(s);
            at[c] = (unsigned)(s - w->server);
            s->under_way++;
            w->got[at[c]]++;
            total++;
            until[c] = now + (at[c] == 0 ? 100 : 10);
        }
    unsigned fair = total / SERVERS;
    CHECK(w->got[0] < fair / 4);
    for (unsigned i = 1; i < SERVERS; i++)
        CHECK(w->got[i] > fair * 9 / 10 && w->got[i] < fair * 13 / 10);
    world_free(w);
}
