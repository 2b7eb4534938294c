/* rpc/balance.c - which server the next call goes to.
 *
 * The better of two servers that are chosen at random. The best of all would be the same server for every client, for as long as
 * what they know of it is old. Of two at random each server gets its share, and one that is slow or busy loses nearly every
 * comparison.
 *
 * What is compared is the number of our own calls under way, which is exact, times a weight. The registry's load widens the range
 * of that weight. The load is up to a second old and the same for all clients, so the weight is drawn anew each time, from 500 up
 * to 1000 (idle) or 2000 (full): a server with twice as many calls always loses against an equal one, a full server loses against
 * an idle one five times in six.
 *
 * Promise: a server that is down or draining is not chosen; O(servers of the client), no allocation. tests/unit/rpc_balance.c. */
#include "base/rng.h"
#include "rpc/client.h"

enum { WEIGHT_LEAST = 500 };

static bool usable(const rpc_server_t *s)
{
    return rpc_server_up(s) && !s->draining;
}

/* luck: 32 random bits. */
static uint64_t cost(const rpc_server_t *s, uint32_t luck)
{
    uint64_t more = ((uint64_t)(WEIGHT_LEAST + s->load) * luck) >> 32;
    return (s->under_way + UINT64_C(1)) * (WEIGHT_LEAST + more);
}

static rpc_server_t *better(rpc_server_t *a, rpc_server_t *b, wefti_rng_t *rng)
{
    uint64_t luck = wefti_rng_next(rng);
    return cost(a, (uint32_t)luck) <= cost(b, (uint32_t)(luck >> 32)) ? a : b;
}

typedef struct two {
    rpc_server_t *a, *b;
} two_t;

static bool every(const rpc_server_t *s, const rpc_server_t *except)
{
    (void)s;
    (void)except;
    return true;
}

static bool other_and_usable(const rpc_server_t *s, const rpc_server_t *except)
{
    return s != except && usable(s);
}

/* Two different ones of the n that fit, at random; both the same if n is 1. */
static inline two_t two_of(const weft_client_t *client, uint32_t n,
                           bool (*fits)(const rpc_server_t *s, const rpc_server_t *except), const rpc_server_t *except,
                           wefti_rng_t *rng)
{
    two_t two = {NULL, NULL};
    uint64_t luck = wefti_rng_next(rng);
    uint32_t i = (uint32_t)(((luck & UINT32_MAX) * n) >> 32), j = (uint32_t)(((luck >> 32) * (n - 1)) >> 32), at = 0;
    j += j >= i && n > 1;
    wefti_list_each(l, &client->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, link);
        if (!fits(s, except))
            continue;
        if (at == i)
            two.a = s;
        if (at == j)
            two.b = s;
        if (two.a && two.b)
            break;
        at++;
    }
    return two;
}

/* One of the two is not usable: choose among those that are. */
static rpc_server_t *pick_slow(const weft_client_t *client, const rpc_server_t *except, wefti_rng_t *rng)
{
    uint32_t n = 0;
    wefti_list_each(l, &client->servers)
        n += other_and_usable(wefti_container_of(l, rpc_server_t, link), except);
    if (!n) {
        rpc_server_t *last = (rpc_server_t *)(uintptr_t)except;
        return last && usable(last) ? last : NULL;
    }
    two_t two = two_of(client, n, other_and_usable, except, rng);
    return better(two.a, two.b, rng);
}

rpc_server_t *wefti_rpc_pick(weft_client_t *client, const rpc_server_t *except)
{
    wefti_rng_t *rng = &client->rs->rt->rng;
    if (__builtin_expect(client->n_servers == 1, 1)) {
        rpc_server_t *only = wefti_container_of(client->servers.next, rpc_server_t, link);
        return usable(only) ? only : NULL;
    }
    if (!client->n_servers)
        return NULL;
    two_t two = two_of(client, client->n_servers, every, except, rng);
    if (__builtin_expect(two.a != except && two.b != except && usable(two.a) && usable(two.b), 1))
        return better(two.a, two.b, rng);
    return pick_slow(client, except, rng);
}
