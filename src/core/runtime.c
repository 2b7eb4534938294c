/* core/runtime.c - a runtime from its opening on: the object, its rooms, its counters.
 *
 * Opening goes bottom up: core on a fabric (here), then the rooms attach (src/open.c), then what drives it starts. How it is
 * driven is in progress.c, wait.c and thread.c; how it ends is in close.c. */
#include <string.h>

#include "base/alloc.h"
#include "core/local.h"

weft_status_t wefti_runtime_open_on(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                    weft_runtime_t **rt_out)
{
    weft_status_t st = WEFT_ERR_NOMEM;
    weft_runtime_t *rt = wefti_aligned_alloc(_Alignof(weft_runtime_t), sizeof *rt);
    if (!rt) {
        wefti_fail(st, "no memory for a runtime");
        wefti_config_free(config);
        goto err_fabric;
    }
    memset(rt, 0, sizeof *rt);
    rt->fabric = fabric;
    rt->config = *config;
    memset(config, 0, sizeof *config);
    wefti_list_init(&rt->ready);
    wefti_list_init(&rt->own);
    wefti_list_init(&rt->queues);
    wefti_fork_watch();
    rt->fork_generation = wefti_fork_generation;
    rt->virtual_time = fabric->ops->event_fd(fabric) < 0;
    rt->until_clock = 1;
    fabric->ops->random(fabric, &rt->rng.state, sizeof rt->rng.state);
    wefti_now(rt);
    st = wefti_runtime_configure(rt, opts);
    if (st)
        goto err_rt;
    *rt_out = rt;
    return WEFT_OK;

err_rt:
    wefti_config_free(&rt->config);
    wefti_free(rt);
err_fabric:
    fabric->ops->close(fabric);
    return st;
}

weft_status_t wefti_runtime_start(weft_runtime_t *rt)
{
    return rt->mode == WEFT_PROGRESS_THREAD ? wefti_thread_start(rt) : WEFT_OK;
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

/* --- counters -------------------------------------------------------------------------------------------------------------- */

typedef struct asked {
    wefti_call_t call;
    weft_runtime_t *rt;
    weft_runtime_stats_t stats;
    _Atomic uint32_t answered;
} asked_t;

static void collect(weft_runtime_t *rt, weft_runtime_stats_t *stats)
{
    stats->ops_posted = atomic_load_explicit(&rt->ops_posted, memory_order_relaxed) + rt->ops_at_once;
    stats->ops_completed = rt->ops_completed;
    stats->sleeps = rt->sleeps;
    stats->wakeups = rt->wakeups;
    stats->rescued_wakeups = rt->rescued_wakeups + atomic_load_explicit(&rt->rescued_waits, memory_order_relaxed);
    for (int i = 0; i < WEFTI_ROOM_N; i++)
        if (rt->rooms[i] && rt->rooms[i]->stats)
            rt->rooms[i]->stats(rt, stats);
}

static void answer(wefti_call_t *call)
{
    asked_t *a = wefti_container_of(call, asked_t, call);
    collect(a->rt, &a->stats);
    atomic_store(&a->answered, 1);
    wefti_futex_wake(&a->answered, 1); /* harmless if it has seen the answer and gone */
}

void weft_runtime_get_stats(weft_runtime_t *rt, weft_runtime_stats_t *stats_out)
{
    weft_runtime_t *was;
    if (!rt || !stats_out || wefti_forked(rt))
        return;
    asked_t a = {.call.fn = answer, .rt = rt};
    if (wefti_enter(rt, &was)) {
        collect(rt, &a.stats);
        wefti_leave_quietly(rt, was);
    } else { /* the counters are the driver's */
        wefti_opx(&a.call.op)->kind = &wefti_call_kind;
        wefti_inbox_push(rt, &a.call.op);
        while (!atomic_load(&a.answered))
            wefti_futex_wait(&a.answered, 0, WEFTI_SAFETY_NS);
    }
    a.stats.size = stats_out->size;
    if (stats_out->size > sizeof a.stats)
        memset((char *)stats_out + sizeof a.stats, 0, stats_out->size - sizeof a.stats);
    memcpy(stats_out, &a.stats, stats_out->size < sizeof a.stats ? stats_out->size : sizeof a.stats);
}
