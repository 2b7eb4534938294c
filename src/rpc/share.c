/* rpc/share.c - how much memory peers make a service hold: the budget of a service, and the share of each peer.
 *
 * A share exists as long as anything refers to it: requests, their arguments, values of streams that nobody took, remembered
 * replies. It belongs to the id of an endpoint, so that what outlives the connection still counts. A budget outlives its service
 * while it has shares: bytes that the fabric still writes are held, whoever asked for them.
 *
 * Promise: what is held is counted once, until it is given back, and one peer never has more than its part of the whole.
 * tests/unit/rpc_share.c, tests/fault/rpc_greedy.c. */
#include "rpc/serve.h"

struct rpc_budget {
    uint64_t used; /* bytes. Written by the driver, read by any thread */
    uint64_t max, peer_max;
    wefti_map_t shares; /* by endpoint id */
    bool left;          /* its service is gone */
    rpc_total_t *total; /* of all shards: it counts in the place of `used`. NULL: there is one */
};

uint64_t wefti_rpc_part(uint64_t whole, uint32_t percent)
{
    return whole / 100 * percent + (whole % 100 * percent + 99) / 100;
}

rpc_budget_t *wefti_rpc_budget_new(uint64_t bytes, uint32_t percent)
{
    rpc_budget_t *b = (rpc_budget_t *)wefti_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->max = bytes;
    b->peer_max = wefti_rpc_part(bytes, percent);
    return b;
}

static void gone_if_empty(rpc_budget_t *b)
{
    if (!b->left || b->shares.n)
        return;
    wefti_map_free(&b->shares);
    if (b->total && atomic_fetch_sub(&b->total->refs, 1) == 1)
        wefti_free(b->total);
    wefti_free(b);
}

void wefti_rpc_budget_join(rpc_budget_t *b, rpc_total_t *total)
{
    b->total = total;
    atomic_fetch_add(&total->refs, 1);
}

void wefti_rpc_budget_leave(rpc_budget_t *b)
{
    if (!b)
        return;
    b->left = true;
    gone_if_empty(b);
}

uint64_t wefti_rpc_budget_used(const rpc_budget_t *b)
{
    return b->total ? atomic_load_explicit(&b->total->bytes, memory_order_relaxed) : rpc_read(&b->used);
}

static void count(rpc_budget_t *b, int64_t n)
{
    if (b->total)
        atomic_fetch_add_explicit(&b->total->bytes, (uint64_t)n, memory_order_relaxed);
    else
        rpc_count(&b->used, n);
}

rpc_share_t *wefti_rpc_share(rpc_budget_t *b, weft_ep_id_t who)
{
    rpc_share_t *s = (rpc_share_t *)wefti_map_get(&b->shares, who);
    if (s) {
        s->refs++;
        return s;
    }
    s = (rpc_share_t *)wefti_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    if (wefti_map_put(&b->shares, who, s)) {
        wefti_free(s);
        return NULL;
    }
    s->budget = b;
    s->who = who;
    wefti_list_init(&s->waits[0]);
    wefti_list_init(&s->waits[1]);
    s->refs = 1;
    return s;
}

void wefti_rpc_share_put(rpc_share_t *s)
{
    if (!s || --s->refs)
        return;
    rpc_budget_t *b = s->budget;
    wefti_map_take(&b->shares, s->who);
    wefti_free(s);
    gone_if_empty(b);
}

static uint64_t left_of(uint64_t max, uint64_t used)
{
    return used < max ? max - used : 0;
}

uint64_t wefti_rpc_space(const rpc_share_t *s)
{
    uint64_t all = left_of(s->budget->max, wefti_rpc_budget_used(s->budget)), mine = left_of(s->budget->peer_max, s->bytes);
    return all < mine ? all : mine;
}

bool wefti_rpc_charge(rpc_share_t *s, uint64_t n, const char **why_out)
{
    if (n > left_of(s->budget->peer_max, s->bytes)) {
        *why_out = n > s->budget->peer_max ? "the arguments are longer than what one peer may have of the service's memory"
                                           : "the peer has as much of the service's memory as one may have: try again later";
        return false;
    }
    if (n > left_of(s->budget->max, wefti_rpc_budget_used(s->budget))) {
        *why_out = "the requests of the service take too much memory: try again later";
        return false;
    }
    wefti_rpc_charge_more(s, n);
    return true;
}

void wefti_rpc_charge_more(rpc_share_t *s, uint64_t n)
{
    s->bytes += n;
    count(s->budget, (int64_t)n);
}

void wefti_rpc_uncharge(rpc_share_t *s, uint64_t n)
{
    s->bytes -= n;
    count(s->budget, -(int64_t)n);
}
