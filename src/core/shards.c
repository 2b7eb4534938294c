/* core/shards.c - the shards of a runtime: how many there are, which one gets a connection, and what all of them do.
 *
 * A connection goes to the shard that has the least to do: to the one with the fewest connections, of those whose thread does not
 * use a whole processor; if all do, of all. What a thread uses below that says little: it spins before it sleeps, and a burst of
 * connections keeps it busy with their hellos. Connections on their way count as well, so a burst is spread evenly.
 *
 * Promise: what wefti_on_all_shards() posts completes once, when every shard is done or closed. tests/wire/shards.c. */
#include "core/shards.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/opts.h"
#include "core/local.h"

#define LOOK_NS (100 * WEFT_MILLISECOND) /* the processor time of a thread is looked at once in this time */
#define FULL_PERMILLE 900u               /* a thread that uses so much of a processor has no more to give */

/* --- how many ------------------------------------------------------------------------------------------------------------- */

static uint32_t cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return n < 1 ? 1 : n > (int)WEFT_SHARDS_MAX ? WEFT_SHARDS_MAX : (uint32_t)n;
}

weft_status_t wefti_shards_wanted(const weft_runtime_opts_t *opts, const wefti_config_t *config, uint32_t *n_out)
{
    weft_runtime_opts_t o;
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_runtime_opts_t");
    if (st)
        return st;
    if (o.shards > WEFT_SHARDS_MAX && o.shards != WEFT_SHARDS_AUTO)
        return wefti_fail(WEFT_ERR_INVALID, "shards is %u, but should be from 1 to %u, or WEFT_SHARDS_AUTO", o.shards,
                          WEFT_SHARDS_MAX);
    uint32_t n = o.shards ? o.shards : (uint32_t)config->shards;
    if (!n || n == WEFT_SHARDS_AUTO)
        n = cores();
    bool thread = config->progress && !strcmp(config->progress, "thread");
    if (n > 1 && !thread && o.shards && o.shards != WEFT_SHARDS_AUTO)
        return wefti_fail(WEFT_ERR_INVALID, "%u shards are driven by threads of the runtime: progress is \"%s\", not \"thread\"",
                          n, config->progress ? config->progress : "caller");
    *n_out = thread ? n : 1;
    return WEFT_OK;
}

void wefti_shard_join(weft_runtime_t *rt, weft_runtime_t *head, uint32_t k)
{
    atomic_store(&rt->head, head);
    atomic_store(&rt->shard, k);
    atomic_store(&head->shards[k], rt);
}

void wefti_shards_opened(weft_runtime_t *head, uint32_t n)
{
    atomic_store(&head->n_shards, n);
}

uint32_t weft_runtime_shards(const weft_runtime_t *rt)
{
    return rt ? wefti_n_shards(rt) : 0;
}

uint32_t weft_runtime_shard(const weft_runtime_t *rt)
{
    const weft_runtime_t *here = rt ? wefti_shard_here(rt) : NULL;
    return here ? wefti_shard_number(here) : UINT32_MAX;
}

/* --- which one ------------------------------------------------------------------------------------------------------------ */

static pthread_mutex_t busy_lock = PTHREAD_MUTEX_INITIALIZER; /* of rt->busy, of all runtimes: it is asked for seldom */

uint32_t wefti_shard_busy(weft_runtime_t *rt)
{
    pthread_mutex_lock(&busy_lock);
    wefti_busy_t *b = &rt->busy;
    struct timespec ts;
    uint64_t now = wefti_clock_ns();
    if (b->has_clock && now - b->at >= LOOK_NS && !clock_gettime(b->clock, &ts)) {
        uint64_t used = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
        uint64_t permille = b->at && used > b->used ? (used - b->used) * 1000 / (now - b->at) : 0;
        b->permille = permille < 1000 ? (uint32_t)permille : 1000;
        b->at = now;
        b->used = used;
    }
    uint32_t permille = b->permille;
    pthread_mutex_unlock(&busy_lock);
    return permille;
}

weft_runtime_t *wefti_shard_least(const weft_runtime_t *rt)
{
    weft_runtime_t *least = wefti_head(rt);
    uint64_t least_load = UINT64_MAX;
    for (uint32_t k = 0, n = wefti_n_shards(rt); k < n; k++) {
        weft_runtime_t *shard = wefti_shard(rt, k);
        if (wefti_gone(shard))
            continue;
        uint64_t load = (uint64_t)(wefti_shard_busy(shard) >= FULL_PERMILLE) << 32 |
                        atomic_load_explicit(&shard->connections, memory_order_relaxed);
        if (load < least_load) {
            least_load = load;
            least = shard;
        }
    }
    return least;
}

/* --- what all of them do -------------------------------------------------------------------------------------------------- */

typedef struct all {
    weft_runtime_t *head;
    weft_op_t *whole; /* NULL: nobody waits for it */
    _Atomic uint32_t left;
    _Atomic int32_t status; /* of the first that failed */
    _Atomic uint64_t detail;
    wefti_call_t call;
    uint32_t n;
    wefti_part_t parts[];
} all_t;

static const wefti_op_kind_t all_kind = {.name = "on all shards", .cancel = wefti_op_no_cancel};

static void all_done(wefti_call_t *call)
{
    all_t *a = wefti_container_of(call, all_t, call);
    if (a->whole)
        wefti_op_complete_why(a->whole, (weft_status_t)atomic_load(&a->status), atomic_load(&a->detail));
    wefti_free(a);
}

static void part_over(all_t *a, weft_status_t st, uint64_t detail)
{
    int32_t ok = WEFT_OK;
    if (st && atomic_compare_exchange_strong(&a->status, &ok, (int32_t)st))
        atomic_store(&a->detail, detail);
    if (atomic_fetch_sub(&a->left, 1) == 1 && !wefti_call_on_driver(a->head, &a->call))
        wefti_free(a); /* the head is closed: `whole` ended with it */
}

static void part_done(weft_op_t *op, void *user)
{
    part_over(user, op->status, wefti_opx(op)->detail);
}

weft_status_t wefti_on_all_shards(weft_runtime_t *head, weft_op_t *whole, wefti_part_fn post, void *arg)
{
    uint32_t n = wefti_n_shards(head);
    all_t *a = wefti_calloc(1, sizeof *a + n * sizeof a->parts[0]);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to tell %u shards", n);
    if (whole) {
        weft_status_t st = wefti_op_prepare(head, whole, &all_kind);
        if (st) {
            wefti_free(a);
            return st;
        }
        wefti_op_begin(whole);
    }
    a->head = head;
    a->whole = whole;
    a->n = n;
    a->call.fn = all_done;
    atomic_init(&a->left, n + 1);
    for (uint32_t k = 0; k < n; k++) {
        wefti_part_t *part = &a->parts[k];
        *part = (wefti_part_t){.op = {.fn = part_done, .user = a}, .rt = wefti_shard(head, k), .arg = arg};
        weft_status_t st = post(part);
        if (st)
            part_over(a, st, 0);
    }
    part_over(a, WEFT_OK, 0);
    return WEFT_OK;
}
