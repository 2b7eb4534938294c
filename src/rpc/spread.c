/* rpc/spread.c - clients of a runtime with several shards: a part on each of them, with connections of its own.
 *
 * The program has the first shard's client and its methods. A call goes to the part of the shard whose callback this is; from
 * other threads to that of two parts, taken at random, which has fewer calls under way. From there on it is an operation of that
 * shard. Only clients that find their servers themselves have parts: one over an endpoint belongs to the shard of that.
 *
 * Promise: what closes the client closes all of its parts, and its operation completes after them. tests/wire/rpc_shards.c. */
#include <stddef.h>

#include "base/rng.h"
#include "rpc/client.h"
#include "rpc/reach.h"

struct rpc_spread {
    wefti_handle_t handle; /* a thread that comes too late may read it in its memory's next life */
    _Atomic uint32_t n;
    _Atomic(weft_method_t *) at[WEFT_SHARDS_MAX];
};

static wefti_handles_t spreads = WEFTI_HANDLES_INIT(struct rpc_spread, at);
static pthread_mutex_t spreading = PTHREAD_MUTEX_INITIALIZER; /* first uses of methods only */

/* The parts of a client that is open. WEFT_ERR_CLOSED. */
static weft_status_t parts_of(weft_client_t *c, weft_client_t *parts_out[WEFT_SHARDS_MAX], uint32_t *n_out)
{
    weft_status_t st = wefti_rpc_client_lock(c);
    if (st)
        return st;
    *n_out = c->parts ? wefti_n_shards(c->rt) : 1;
    parts_out[0] = c;
    for (uint32_t k = 1; k < *n_out; k++)
        parts_out[k] = c->parts[k];
    wefti_rpc_unlock(c->rt);
    return WEFT_OK;
}

/* --- methods ---------------------------------------------------------------------------------------------------------------- */

/* Give it one of each part. WEFT_ERR_NOMEM, _CLOSED. */
static weft_status_t spread(weft_method_t *m, const char *text)
{
    weft_client_t *parts[WEFT_SHARDS_MAX];
    uint32_t n;
    weft_status_t st = parts_of(m->client, parts, &n);
    if (st || n == 1)
        return st;
    pthread_mutex_lock(&spreading);
    if (atomic_load(&m->spread)) {
        pthread_mutex_unlock(&spreading);
        return WEFT_OK;
    }
    struct rpc_spread *s = (struct rpc_spread *)wefti_handle_new(&spreads);
    if (!s)
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for a method on %u shards", n);
    for (uint32_t k = 0; k < n && !st; k++) {
        weft_method_t *part = m;
        if (k)
            st = wefti_rpc_client_method(parts[k], text, &part);
        atomic_store(&s->at[k], part);
    }
    if (s && !st) {
        atomic_store(&s->n, n);
        atomic_store_explicit(&m->spread, s, memory_order_release);
    } else {
        wefti_rpc_spread_free(s);
    }
    pthread_mutex_unlock(&spreading);
    return st;
}

void wefti_rpc_spread_free(struct rpc_spread *s)
{
    if (s)
        wefti_handle_free(&spreads, s);
}

static uint64_t under_way(const weft_method_t *m)
{
    return rpc_read(&m->client->stats.under_way);
}

weft_method_t *wefti_rpc_spread_pick(weft_method_t *m, struct rpc_spread *s)
{
    static _Thread_local wefti_rng_t rng;
    const weft_runtime_t *here = wefti_shard_here(m->rt);
    uint32_t n = atomic_load_explicit(&s->n, memory_order_relaxed);
    if (here && wefti_shard_number(here) < n)
        return atomic_load_explicit(&s->at[wefti_shard_number(here)], memory_order_relaxed);
    if (!n || m->rt->virtual_time) /* it is closed; or a simulation, in which chance comes from its seed */
        return m;
    if (!rng.state)
        rng.state = (uint64_t)(uintptr_t)&rng;
    uint64_t luck = wefti_rng_next(&rng);
    weft_method_t *a = atomic_load_explicit(&s->at[(uint32_t)luck % n], memory_order_relaxed);
    weft_method_t *b = atomic_load_explicit(&s->at[(uint32_t)(luck >> 32) % n], memory_order_relaxed);
    weft_method_t *best = under_way(a) <= under_way(b) ? a : b;
    return rpc_method_sig(best) ? best : m; /* only its name is known there yet */
}

/* --- clients ---------------------------------------------------------------------------------------------------------------- */

weft_status_t weft_client_open(weft_runtime_t *rt, const char *uri, const weft_client_opts_t *opts, weft_client_t **client_out)
{
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    if (!rt || !uri || !client_out)
        return wefti_fail(WEFT_ERR_INVALID, "there is no runtime, no uri, or nowhere to put the client");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_client_opts_t");
    if (st)
        return st;
    uint32_t n = o.registry ? 1 : wefti_n_shards(rt); /* a registry of the program's has one driver */
    if (n == 1)
        return wefti_rpc_reach_open(wefti_head(rt), uri, &o, client_out);
    weft_client_t **parts = (weft_client_t **)wefti_calloc(n, sizeof *parts);
    if (!parts)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client on %u shards", n);
    for (uint32_t k = n; k-- > 0 && !st;) /* the first one last: it has the others */
        st = wefti_rpc_reach_open(wefti_shard(rt, k), uri, &o, &parts[k]);
    if (st) {
        for (uint32_t k = 0; k < n; k++)
            if (parts[k])
                (void)wefti_rpc_client_close(parts[k], NULL);
        wefti_free(parts);
        return st;
    }
    parts[0]->parts = parts;
    *client_out = parts[0];
    return WEFT_OK;
}

static weft_status_t close_part(wefti_part_t *part)
{
    weft_client_t **parts = (weft_client_t **)part->arg;
    return wefti_rpc_client_close(parts[wefti_shard_number(part->rt)], &part->op);
}

weft_status_t weft_client_close(weft_client_t *c, weft_op_t *op)
{
    weft_client_t *parts[WEFT_SHARDS_MAX];
    uint32_t n;
    if (!c)
        return wefti_fail(WEFT_ERR_INVALID, "the client is NULL");
    if (!wefti_sharded(c->rt))
        return wefti_rpc_client_close(c, op);
    weft_status_t st = parts_of(c, parts, &n);
    if (st)
        return st;
    return n == 1 ? wefti_rpc_client_close(c, op) : wefti_on_all_shards(c->rt, op, close_part, parts);
}

weft_status_t weft_client_get_stats(weft_client_t *c, weft_client_stats_t *out)
{
    weft_client_t *parts[WEFT_SHARDS_MAX];
    weft_client_stats_t sum = {0}, s;
    uint32_t n = 0;
    if (!c || !out || !out->size)
        return wefti_fail(WEFT_ERR_INVALID, "statistics need a client, and a struct made with WEFT_CLIENT_STATS_INIT");
    weft_status_t st = parts_of(c, parts, &n);
    for (uint32_t k = 0; k < n && !st; k++) {
        st = wefti_rpc_client_get_stats(parts[k], &s);
        rpc_add_all(&sum.calls, &s.calls, offsetof(weft_client_stats_t, instances) - offsetof(weft_client_stats_t, calls));
        sum.instances = s.instances > sum.instances ? s.instances : sum.instances;
        sum.connected += s.connected;
    }
    if (!st)
        wefti_opts_write(out, &sum, sizeof sum);
    return st;
}

weft_status_t weft_client_method(weft_client_t *c, const char *signature, weft_method_t **method_out)
{
    weft_method_t *m;
    if (!c || !signature || !method_out)
        return wefti_fail(WEFT_ERR_INVALID, "a method needs a client, a signature, and somewhere to put it");
    weft_status_t st = wefti_rpc_client_method(c, signature, &m);
    if (!st && wefti_sharded(c->rt) && !atomic_load(&m->spread))
        st = spread(m, signature);
    if (!st)
        *method_out = m;
    return st;
}
