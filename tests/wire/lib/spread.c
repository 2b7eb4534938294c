/* tests/wire/lib/spread.c - a runtime with several shards, and a peer with one connection or more to each of them. */
#include "spread.h"

#include <string.h>

#include "must.h"
#include "ports.h"

weft_runtime_t *spread_runtime(uint32_t shards, const char *transports, weft_progress_mode_t progress)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    opts.shards = shards;
    opts.progress = progress;
    opts.transports = transports;
    must(weft_runtime_open(&opts, &rt), "weft_runtime_open");
    return rt;
}

weft_status_t spread_done(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : weft_op_wait(op, 60 * WEFT_SECOND);
}

weft_status_t spread_attach(weft_ep_t *ep, const char *name, weft_rma_path_t path, weft_remote_t **remote_out)
{
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.path = path;
    weft_status_t st = spread_done(weft_remote_find(ep, name, &o, &op), &op);
    *remote_out = st ? NULL : weft_op_remote(&op);
    return st;
}

unsigned spread_shard(const weft_ep_t *ep)
{
    return (unsigned)(weft_ep_id(ep) >> 24) & 0xff;
}

static void connect_one(spread_t *s, weft_listener_t *listener, int i)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_listener_accept(listener, &op), "weft_listener_accept");
    must(weft_ep_connect(s->client, weft_listener_uri(listener), NULL, 30 * WEFT_SECOND, &s->ours[i]), "weft_ep_connect");
    must(weft_op_wait(&op, 30 * WEFT_SECOND), "weft_op_wait");
    s->theirs[i] = weft_op_ep(&op);
}

/* On a busy machine some shard may get none: then one more connection is given up for another. */
static unsigned one_missing(const spread_t *s)
{
    for (unsigned k = 0; k < SPREAD_SHARDS; k++) {
        int n = 0;
        for (int i = 0; i < SPREAD_PEERS; i++)
            n += spread_shard(s->theirs[i]) == k;
        if (!n)
            return k;
    }
    return SPREAD_SHARDS;
}

void spread_open(spread_t *s, const char *way)
{
    weft_listener_t *listener;
    memset(s, 0, sizeof *s);
    s->server = spread_runtime(SPREAD_SHARDS, way, WEFT_PROGRESS_THREAD);
    s->client = spread_runtime(1, way, WEFT_PROGRESS_THREAD);
    must(weft_listen(s->server, ports_tcp(), NULL, &listener), "weft_listen");
    for (int i = 0; i < SPREAD_PEERS; i++)
        connect_one(s, listener, i);
    for (int tries = 0; one_missing(s) < SPREAD_SHARDS && tries < 100; tries++) {
        int i = tries % SPREAD_PEERS;
        (void)weft_ep_abort(s->ours[i], NULL);
        connect_one(s, listener, i);
    }
    if (one_missing(s) < SPREAD_SHARDS) {
        fprintf(stderr, "shard %u gets no connection\n", one_missing(s));
        exit(1);
    }
}

void spread_close(spread_t *s)
{
    must(weft_runtime_close(s->client), "weft_runtime_close");
    must(weft_runtime_close(s->server), "weft_runtime_close");
}

void spread_check_wakeups(weft_runtime_t *rt)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    must(weft_runtime_get_stats(rt, &stats), "weft_runtime_get_stats");
    if (stats.rescued_wakeups) {
        fprintf(stderr, "%llu sleeps ended only because their time was over\n", (unsigned long long)stats.rescued_wakeups);
        exit(1);
    }
}
