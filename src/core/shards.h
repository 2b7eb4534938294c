/* core/shards.h - the shards of a runtime: several runtimes that are one to the program.
 *
 * Each shard is a whole weft_runtime_t: a fabric, timers, rooms, a thread. The program has the first one, the head, which knows
 * all of them. Nothing that a message touches on its way is shared between two. What the program makes once and every peer can
 * reach (listeners, handlers, services, regions) belongs to the head, and each room has its way to bring it to the others:
 * docs/design/shards.md.
 *
 * The memory of a runtime stays a runtime (base/handle.h), so all of this can be read when it is closed. */
#ifndef WEFTI_CORE_SHARDS_H
#define WEFTI_CORE_SHARDS_H

#include "core/op.h"
#include "core/runtime.h"

static inline weft_runtime_t *wefti_head(const weft_runtime_t *rt)
{
    return atomic_load_explicit(&rt->head, memory_order_relaxed);
}
static inline uint32_t wefti_n_shards(const weft_runtime_t *rt)
{
    return atomic_load_explicit(&wefti_head(rt)->n_shards, memory_order_acquire);
}
static inline bool wefti_sharded(const weft_runtime_t *rt) { return wefti_n_shards(rt) > 1; }
static inline uint32_t wefti_shard_number(const weft_runtime_t *rt)
{
    return atomic_load_explicit(&rt->shard, memory_order_relaxed);
}
/* k < wefti_n_shards(rt). */
static inline weft_runtime_t *wefti_shard(const weft_runtime_t *rt, uint32_t k)
{
    return atomic_load_explicit(&wefti_head(rt)->shards[k], memory_order_relaxed);
}
/* Are they shards of one runtime? */
static inline bool wefti_same_runtime(const weft_runtime_t *a, const weft_runtime_t *b) { return wefti_head(a) == wefti_head(b); }
/* The shard of it that this thread drives; NULL: none. */
static inline weft_runtime_t *wefti_shard_here(const weft_runtime_t *rt)
{
    return wefti_driven && wefti_same_runtime(wefti_driven, rt) ? wefti_driven : NULL;
}
/* Where a callback's own timers and functions run: on its shard. Elsewhere it is the runtime that was named. */
static inline weft_runtime_t *wefti_shard_or(weft_runtime_t *rt)
{
    weft_runtime_t *here = wefti_shard_here(rt);
    return here ? here : rt;
}

/* The head's shard k, opened before its thread starts; and when all are there. */
void wefti_shard_join(weft_runtime_t *rt, weft_runtime_t *head, uint32_t k);
void wefti_shards_opened(weft_runtime_t *head, uint32_t n);
/* How many a runtime with these options is to have. WEFT_ERR_INVALID: more than one, and not driven by a thread. */
weft_status_t wefti_shards_wanted(const weft_runtime_opts_t *opts, const wefti_config_t *config, uint32_t *n_out);

/* The one with the least to do: for a connection that comes. Any thread. */
weft_runtime_t *wefti_shard_least(const weft_runtime_t *rt);
/* For one that the program opens: the shard whose callback this is, else the one with the least to do. */
static inline weft_runtime_t *wefti_shard_for_new(weft_runtime_t *rt)
{
    if (__builtin_expect(!wefti_sharded(rt), 1))
        return rt;
    weft_runtime_t *here = wefti_shard_here(rt);
    return here ? here : wefti_shard_least(rt);
}
/* Thousandths of the time that its thread has used a processor lately. Any thread. */
uint32_t wefti_shard_busy(weft_runtime_t *rt);

/* --- one operation of the program, done by every shard ---------------------------------------------------------------------- */

/* `post` posts part->op, whose fn and user are set, on a shard. Each shard has one, and `whole` completes on the head, with the
 * first failure, when all have. */
typedef struct wefti_part {
    weft_op_t op;
    weft_runtime_t *rt;
    void *arg;
} wefti_part_t;
typedef weft_status_t (*wefti_part_fn)(wefti_part_t *part);
/* whole NULL: nobody waits. WEFT_ERR_NOMEM, _CLOSED and what preparing an operation says: nothing was posted. */
weft_status_t wefti_on_all_shards(weft_runtime_t *head, weft_op_t *whole, wefti_part_fn post, void *arg);

#endif
