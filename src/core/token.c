/* core/token.c - cancellation tokens with children.
 *
 * Whether a token is cancelled is its own flag or that of an ancestor, so it is true for everyone at once, from any thread.
 * Ending the operations that joined is the driver's part. A token has a part for each shard of its runtime on which an operation
 * joined; the part is also a node of that shard's inbox (call). The first cancel goes to the head, which visits the children and
 * calls the parts of other shards; a shard on which an operation joins after that calls itself.
 *
 *   parts     of the head: in the token; of others: made by their driver, and freed with the token
 *   part.ops  joined operations, the driver's of that shard only
 *   children  guarded by `lock`, since tokens are made and dropped on any thread; a child holds its parent, never the reverse
 *   refs      handles, children, joined operations, and one for each part whose call is in an inbox
 *
 * Promise: an operation with a token that is cancelled is asked to end once, whichever of post and cancel comes first.
 * tests/unit/core_token.c, tests/wire/shards_ops.c. */
#include <pthread.h>

#include "base/alloc.h"
#include "core/local.h"

typedef struct part {
    weft_token_t *token;
    _Atomic uint32_t called; /* the call is in the inbox */
    wefti_list_t ops;
    wefti_call_t call;
} part_t;

struct weft_token {
    weft_runtime_t *rt; /* the head */
    weft_token_t *parent;
    _Atomic uint32_t refs;
    _Atomic uint32_t cancelled;
    part_t part; /* of the head */
    pthread_mutex_t lock;
    wefti_list_t children;
    wefti_list_t sibling;
    wefti_list_t todo; /* the head's: children still to be cancelled */
    uint32_t n_others;
    part_t *_Atomic others[]; /* of the other shards, from the second on; NULL: no operation of that one has joined */
};

bool wefti_token_takes(const weft_token_t *token, const weft_runtime_t *rt)
{
    return token->rt == wefti_head(rt);
}

/* Before a look at the parts in one order of all threads: a part that the cancel does not see sees the cancel. */
bool wefti_token_cancelled(const weft_token_t *token)
{
    for (; token; token = token->parent)
        if (atomic_load(&token->cancelled))
            return true;
    return false;
}

bool weft_token_cancelled(const weft_token_t *token)
{
    return token && wefti_token_cancelled(token);
}

/* --- counting --------------------------------------------------------------------------------------------------------------- */

void weft_token_hold(weft_token_t *token)
{
    if (token)
        atomic_fetch_add_explicit(&token->refs, 1, memory_order_relaxed);
}

/* Hold it unless it is being freed. */
static bool try_hold(weft_token_t *token)
{
    uint32_t refs = atomic_load_explicit(&token->refs, memory_order_relaxed);
    while (refs)
        if (atomic_compare_exchange_weak_explicit(&token->refs, &refs, refs + 1, memory_order_relaxed, memory_order_relaxed))
            return true;
    return false;
}

void weft_token_drop(weft_token_t *token)
{
    while (token && atomic_fetch_sub_explicit(&token->refs, 1, memory_order_acq_rel) == 1) {
        weft_token_t *parent = token->parent;
        if (parent) {
            pthread_mutex_lock(&parent->lock);
            wefti_list_remove(&token->sibling);
            pthread_mutex_unlock(&parent->lock);
        }
        for (uint32_t i = 0; i < token->n_others; i++)
            wefti_free(atomic_load_explicit(&token->others[i], memory_order_relaxed));
        pthread_mutex_destroy(&token->lock);
        wefti_free(token);
        token = parent;
    }
}

/* --- cancelling ------------------------------------------------------------------------------------------------------------- */

/* On the driver of its shard: cancel what joined there. */
static void cancel_part(part_t *part)
{
    wefti_list_t asked;
    wefti_list_init(&asked);
    wefti_list_splice(&asked, &part->ops);
    /* Each leaves the list before it is asked: asking may complete it. It stays joined, by its flag, until it is complete. */
    for (wefti_list_t *l; (l = wefti_list_pop(&asked));)
        wefti_op_ask(wefti_op_of(l, token_link), WEFT_ERR_CANCELLED);
}

static void cancel_away(wefti_call_t *call)
{
    part_t *part = wefti_container_of(call, part_t, call);
    atomic_store(&part->called, 0);
    cancel_part(part);
    weft_token_drop(part->token);
}

/* Have the driver of another shard cancel its part. If that shard is closed, nothing is left there. */
static void call_part(weft_token_t *token, uint32_t shard)
{
    part_t *part = atomic_load(&token->others[shard - 1]);
    if (!part || atomic_exchange(&part->called, 1))
        return;
    weft_token_hold(token);
    if (!wefti_call_on_driver(wefti_shard(token->rt, shard), &part->call))
        weft_token_drop(token);
}

/* On the driver of the head: cancel what joined; put the children that are alive on `todo`, held. */
static void cancel_one(weft_token_t *token, wefti_list_t *todo)
{
    cancel_part(&token->part);
    for (uint32_t i = 0; i < token->n_others; i++)
        call_part(token, i + 1);
    pthread_mutex_lock(&token->lock);
    wefti_list_each(l, &token->children) {
        weft_token_t *child = wefti_container_of(l, weft_token_t, sibling);
        if (!wefti_list_linked(&child->todo) && try_hold(child))
            wefti_list_push_back(todo, &child->todo);
    }
    pthread_mutex_unlock(&token->lock);
}

static void cancel_all(wefti_call_t *call)
{
    weft_token_t *token = wefti_container_of(call, part_t, call)->token;
    wefti_list_t todo;
    wefti_list_init(&todo);
    atomic_store(&token->part.called, 0);
    cancel_one(token, &todo);
    for (wefti_list_t *l; (l = wefti_list_pop(&todo));) {
        weft_token_t *child = wefti_container_of(l, weft_token_t, todo);
        atomic_store(&child->cancelled, 1);
        cancel_one(child, &todo);
        weft_token_drop(child);
    }
    weft_token_drop(token);
}

void weft_token_cancel(weft_token_t *token)
{
    if (!token || wefti_gone(token->rt) || atomic_exchange(&token->cancelled, 1) || atomic_exchange(&token->part.called, 1))
        return;
    weft_token_hold(token);
    if (!wefti_call_on_driver(token->rt, &token->part.call))
        weft_token_drop(token); /* the runtime is closed: nothing is left to cancel */
}

/* --- operations ------------------------------------------------------------------------------------------------------------- */

static void part_init(part_t *part, weft_token_t *token, void (*cancel)(wefti_call_t *call))
{
    part->token = token;
    part->call.fn = cancel;
    wefti_list_init(&part->ops);
}

/* The part of the shard that this thread drives. NULL: no memory. */
static part_t *part_here(weft_token_t *token, const weft_runtime_t *rt)
{
    if (__builtin_expect(token->rt == rt, 1))
        return &token->part;
    part_t *_Atomic *at = &token->others[wefti_shard_number(rt) - 1];
    part_t *part = atomic_load_explicit(at, memory_order_relaxed);
    if (part)
        return part;
    part = wefti_calloc(1, sizeof *part);
    if (part) {
        part_init(part, token, cancel_away);
        atomic_store(at, part);
    }
    return part;
}

weft_status_t wefti_token_join(weft_token_t *token, weft_op_t *op)
{
    weft_runtime_t *rt = wefti_opx(op)->rt;
    part_t *part = part_here(token, rt);
    if (!part)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a token on one more shard");
    weft_token_hold(token);
    wefti_list_push_back(&part->ops, &wefti_opx(op)->token_link);
    /* Cancelled since it was posted: not here, where its start() is still running, but through the inbox. */
    if (__builtin_expect(wefti_token_cancelled(token), 0) && !atomic_exchange(&part->called, 1)) {
        weft_token_hold(token);
        wefti_opx(&part->call.op)->kind = &wefti_call_kind;
        (void)wefti_inbox_push(rt, &part->call.op); /* we drive it: it is not closed */
    }
    return WEFT_OK;
}

void wefti_token_part(weft_token_t *token, weft_op_t *op)
{
    wefti_list_remove(&wefti_opx(op)->token_link);
    weft_token_drop(token);
}

weft_status_t weft_token_new(weft_runtime_t *rt, weft_token_t *parent, weft_token_t **token_out)
{
    if (!rt || !token_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "token_out" : "the runtime");
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    rt = wefti_head(rt);
    if (parent && parent->rt != rt)
        return wefti_fail(WEFT_ERR_INVALID, "the parent token belongs to another runtime");
    uint32_t n_others = wefti_n_shards(rt) - 1;
    weft_token_t *token = wefti_calloc(1, sizeof *token + n_others * sizeof token->others[0]);
    if (!token)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a token");
    token->rt = rt;
    token->refs = 1;
    token->n_others = n_others;
    part_init(&token->part, token, cancel_all);
    wefti_list_init(&token->children);
    wefti_list_init(&token->sibling);
    wefti_list_init(&token->todo);
    pthread_mutex_init(&token->lock, NULL);
    if (parent) {
        weft_token_hold(parent);
        token->parent = parent;
        pthread_mutex_lock(&parent->lock);
        wefti_list_push_back(&parent->children, &token->sibling);
        pthread_mutex_unlock(&parent->lock);
    }
    *token_out = token;
    return WEFT_OK;
}
