/* conn/wants.h - receives from any endpoint of a runtime with several shards, for the rooms above.
 *
 * Such a receive is an operation of the head. It is written down where all shards see it: a want. A shard whose message matches
 * none of its own receives keeps it, as ever, and looks whether somebody wants it; one of them takes the want out, and is the
 * only one to serve it. A room has one of these for all shards, from its second one on; with one shard it is NULL. */
#ifndef WEFTI_CONN_WANTS_H
#define WEFTI_CONN_WANTS_H

#include <pthread.h>

#include "base/spares.h"
#include "core/core.h"

typedef struct wefti_wants wefti_wants_t;
typedef struct wefti_want wefti_want_t;

/* What a room does on the driver of a shard. */
typedef struct wefti_wants_ops {
    int traffic; /* WEFTI_TRAFFIC_* */
    /* The message that has waited there longest, of those with (key ^ its key) & mask == 0. NULL: there is none. */
    void *(*find)(weft_runtime_t *rt, uint64_t key, uint64_t mask);
    /* Receive it with op, which has the scratch, tag, len and buf of the program's operation. False: op is complete, and the
     * message still waits. */
    bool (*give)(weft_op_t *op, void *msg);
} wefti_wants_ops_t;

/* One shard of it. It stays until the head is closed. */
typedef struct wefti_wants_shard {
    wefti_wants_t *wants;
    weft_runtime_t *rt;
    _Atomic bool held;   /* it has messages that nobody received, or that the program has not let go of */
    _Atomic bool called; /* `call` is in its inbox */
    uint64_t looked;     /* the last want that it has compared with what it has */
    wefti_call_t call;
} wefti_wants_shard_t;

enum { WEFTI_WANTS_CHAINS = 256 };

struct wefti_wants {
    const wefti_wants_ops_t *ops;
    weft_runtime_t *head;
    wefti_list_t under_way;    /* the head's: wants of operations that are not complete */
    _Atomic uint32_t n;        /* wants that nobody serves yet */
    _Atomic uint64_t last;     /* number of the newest want */
    _Atomic uint32_t turn;     /* which shard is asked first */
    pthread_mutex_t lock;      /* of the rest */
    wefti_list_t all;          /* in the order of their numbers */
    wefti_list_t masked;       /* those whose mask is not full */
    wefti_list_t chains[WEFTI_WANTS_CHAINS]; /* the others, by their keys */
    wefti_spares_t spares;
    wefti_wants_shard_t *_Atomic shards[WEFT_SHARDS_MAX];
};

/* When the room is attached to a shard that is not the head: *wants is the room's field in that shard, *of_head the one in the
 * head, which is made by the first. The head frees it. WEFT_ERR_NOMEM. */
weft_status_t wefti_wants_attach(weft_runtime_t *rt, const wefti_wants_ops_t *ops, wefti_wants_t **of_head,
                                 wefti_wants_t **wants);
void wefti_wants_free(wefti_wants_t *wants);

/* --- on the head's driver --------------------------------------------------------------------------------------------------- */

/* In the start of op; *want is in its scratch. WEFT_ERR_NOMEM. */
weft_status_t wefti_wants_post(wefti_wants_t *wants, weft_op_t *op, uint64_t key, uint64_t mask, wefti_want_t **want);
/* Complete its operation with `why`, or, if a shard receives for it just now, with that if the receive fails. */
void wefti_wants_cancel(wefti_want_t *want, weft_status_t why);
/* The head closes, after all other shards. */
void wefti_wants_shutdown(wefti_wants_t *wants, const weft_runtime_t *rt);
bool wefti_wants_idle(const wefti_wants_t *wants, const weft_runtime_t *rt);

/* --- on the driver of a shard ---------------------------------------------------------------------------------------------- */

/* Does a receive from any endpoint wait? */
static inline bool wefti_wants_some(const wefti_wants_t *wants)
{
    return __builtin_expect(wants != NULL, 0) && atomic_load(&wants->n);
}
/* It holds messages, or none any more. */
static inline void wefti_wants_holds(wefti_wants_t *wants, const weft_runtime_t *rt, bool holds)
{
    if (__builtin_expect(!wants, 1))
        return;
    _Atomic bool *held = &atomic_load_explicit(&wants->shards[wefti_shard_number(rt)], memory_order_relaxed)->held;
    if (atomic_load_explicit(held, memory_order_relaxed) != holds)
        atomic_store(held, holds);
}
/* Before a message is kept: wants that came since are for what was kept before it. */
void wefti_wants_before(wefti_wants_t *wants, const weft_runtime_t *rt);
/* After it was kept, and wefti_wants_holds() was called: true if it was received, and is gone. */
bool wefti_wants_offer(wefti_wants_t *wants, const weft_runtime_t *rt, uint64_t key, void *msg);

/* --- any thread that is inside the head ------------------------------------------------------------------------------------- */

/* The shards that hold messages, one after the other, beginning with another each time: for (uint32_t i = 0, first =
 * wefti_wants_turn(w); (rt = wefti_wants_holder(w, first, &i));). */
static inline uint32_t wefti_wants_turn(wefti_wants_t *wants) { return atomic_fetch_add(&wants->turn, 1); }
weft_runtime_t *wefti_wants_holder(const wefti_wants_t *wants, uint32_t first, uint32_t *i);

#endif
