/* core/runtime.c - a runtime from its opening on: the object, its rooms, its counters.
 *
 * Opening goes bottom up: core on a fabric (here), then the rooms attach (src/open.c), then what drives it starts. How it is
 * driven is in progress.c, wait.c and thread.c; how it ends is in close.c. */
#include <string.h>

#include "base/alloc.h"
#include "base/opts.h"
#include "core/local.h"

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_runtime_t, ops_posted);

/* Zero, but for what threads of its memory's life before may still touch: those find a closed runtime until `start`. */
static weft_runtime_t *runtime_new(void)
{
    weft_runtime_t *rt = wefti_handle_take(&handles);
    if (!rt)
        return NULL;
    atomic_store_explicit(&rt->driver, 1, memory_order_relaxed);
    atomic_store_explicit(&rt->fork_generation, WEFTI_CLOSED_GENERATION, memory_order_relaxed);
    atomic_store_explicit(&rt->mode, 0, memory_order_relaxed);
    atomic_store_explicit(&rt->closing, false, memory_order_relaxed);
    atomic_store_explicit(&rt->ended, false, memory_order_relaxed);
    atomic_store_explicit(&rt->head, rt, memory_order_relaxed);
    atomic_store_explicit(&rt->n_shards, 1, memory_order_relaxed);
    atomic_store_explicit(&rt->shard, 0, memory_order_relaxed);
    atomic_store_explicit(&rt->shards[0], rt, memory_order_relaxed);
    memset((char *)rt + offsetof(weft_runtime_t, quiet), 0,
           offsetof(weft_runtime_t, handed_in) - offsetof(weft_runtime_t, quiet));
    memset((char *)rt + offsetof(weft_runtime_t, ops_posted), 0, sizeof *rt - offsetof(weft_runtime_t, ops_posted));
    return rt;
}

/* Free what it holds. The thread that closes it is its driver for good, so that a thread that comes too late cannot become it. */
void wefti_runtime_release(weft_runtime_t *rt)
{
    wefti_fork_unlist(rt);
    wefti_hands_end(&rt->hands);
    wefti_keys_free(rt->keys);
    rt->keys = NULL;
    wefti_heap_free(&rt->timers);
    wefti_config_free(&rt->config);
    atomic_store(&rt->fork_generation, WEFTI_CLOSED_GENERATION);
    wefti_handle_free(&handles, rt);
}

weft_status_t wefti_runtime_open_on(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                    weft_runtime_t **rt_out)
{
    weft_status_t st = WEFT_ERR_NOMEM;
    weft_runtime_t *rt = runtime_new();
    if (!rt) {
        wefti_fail(st, "no memory for a runtime");
        wefti_config_free(config);
        goto err_fabric;
    }
    rt->fabric = fabric;
    rt->config = *config;
    memset(config, 0, sizeof *config);
    wefti_list_init(&rt->ready);
    wefti_list_init(&rt->own);
    wefti_list_init(&rt->queues);
    wefti_fork_watch();
    rt->virtual_time = fabric->ops->event_fd(fabric) < 0;
    rt->until_clock = 1;
    fabric->ops->random(fabric, &rt->rng.state, sizeof rt->rng.state);
    wefti_now(rt);
    st = wefti_runtime_configure(rt, opts);
    if (st) {
        wefti_runtime_release(rt);
        goto err_fabric;
    }
    atomic_store(&rt->fork_generation, wefti_fork_generation);
    wefti_fork_list(rt);
    wefti_hands_begin(&rt->hands, wefti_mode(rt) == WEFT_PROGRESS_THREAD);
    atomic_store(&rt->handle.open, 1);
    atomic_store(&rt->driver, 0);
    *rt_out = rt;
    return WEFT_OK;

err_fabric:
    fabric->ops->close(fabric);
    return st;
}

weft_status_t wefti_runtime_start(weft_runtime_t *rt)
{
    return wefti_mode(rt) == WEFT_PROGRESS_THREAD ? wefti_thread_start(rt) : WEFT_OK;
}

void wefti_runtime_attach(weft_runtime_t *rt, int room, const wefti_room_t *ops, void *state)
{
    rt->rooms[room] = ops;
    rt->room_state[room] = state;
}

const char *weft_runtime_name(const weft_runtime_t *rt)
{
    return rt ? rt->name : "";
}

/* --- counters --------------------------------------------------------------------------------------------------------------- */

typedef struct asked {
    weft_runtime_t *rt;
    weft_runtime_stats_t stats;
} asked_t;

static weft_status_t collect(void *arg)
{
    weft_runtime_t *rt = ((asked_t *)arg)->rt;
    weft_runtime_stats_t *stats = &((asked_t *)arg)->stats;
    stats->ops_posted = atomic_load_explicit(&rt->ops_posted, memory_order_relaxed) + rt->ops_at_once;
    stats->ops_completed = rt->ops_completed;
    stats->sleeps = rt->sleeps;
    stats->wakeups = rt->wakeups;
    stats->rescued_wakeups = rt->rescued_wakeups + atomic_load_explicit(&rt->rescued_waits, memory_order_relaxed);
    for (int i = 0; i < WEFTI_ROOM_N; i++)
        if (rt->rooms[i] && rt->rooms[i]->stats)
            rt->rooms[i]->stats(rt, stats);
    stats->shards = 1;
    stats->connections = atomic_load_explicit(&rt->connections, memory_order_relaxed);
    stats->busy = wefti_shard_busy(rt);
    return WEFT_OK;
}

/* All counters behind `size` are numbers of one type. */
static void add(weft_runtime_stats_t *sum, const weft_runtime_stats_t *stats)
{
    const uint64_t *from = &stats->ops_posted;
    uint64_t *to = &sum->ops_posted;
    for (size_t i = 0; i < (sizeof *sum - offsetof(weft_runtime_stats_t, ops_posted)) / sizeof *to; i++)
        to[i] += from[i];
}

static weft_status_t stats_of(weft_runtime_t *head, uint32_t first, uint32_t n, weft_runtime_stats_t *stats_out)
{
    weft_runtime_stats_t sum = WEFT_RUNTIME_STATS_INIT;
    for (uint32_t k = first; k < first + n; k++) {
        asked_t a = {.rt = wefti_shard(head, k)};
        weft_status_t st = wefti_ask(a.rt, collect, &a);
        if (st)
            return st;
        add(&sum, &a.stats);
    }
    wefti_opts_write(stats_out, &sum, sizeof sum);
    return WEFT_OK;
}

weft_status_t weft_runtime_get_stats(weft_runtime_t *rt, weft_runtime_stats_t *stats_out)
{
    if (!rt || !stats_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "stats_out" : "the runtime");
    if (wefti_sharded(rt) && wefti_shard_here(rt))
        return wefti_fail(WEFT_ERR_STATE, "a callback cannot wait for the other shards of its runtime");
    return stats_of(rt, 0, wefti_n_shards(rt), stats_out);
}

weft_status_t weft_runtime_get_shard_stats(weft_runtime_t *rt, uint32_t shard, weft_runtime_stats_t *stats_out)
{
    if (!rt || !stats_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "stats_out" : "the runtime");
    if (shard >= wefti_n_shards(rt))
        return wefti_fail(WEFT_ERR_RANGE, "there is no shard %u: the runtime \"%s\" has %u", shard, rt->name, wefti_n_shards(rt));
    return stats_of(rt, shard, 1, stats_out);
}
