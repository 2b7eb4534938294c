/* core/token.c - cancellation tokens with children.
 *
 * Whether a token is cancelled is its own flag or that of an ancestor, so it is true for everyone at once, from any thread.
 * Ending the operations that joined is the driver's part: the token is also a node of the inbox (call), pushed by the first
 * cancel, and again when an operation joins too late to have been seen by it.
 *
 *   ops       joined operations, the driver's only
 *   children  guarded by `lock`, since tokens are made and dropped on any thread; a child holds its parent, never the reverse
 *   refs      handles, children, joined operations, and the call while it is in the inbox
 *
 * Promise: an operation with a token that is cancelled is asked to end once, whichever of post and cancel comes first.
 * tests/unit/core_token.c holds us to it. */
#include <pthread.h>

#include "base/alloc.h"
#include "core/local.h"

struct weft_token {
    weft_runtime_t *rt;
    weft_token_t *parent;
    _Atomic uint32_t refs;
    _Atomic uint32_t cancelled;
    _Atomic uint32_t called; /* the call is in the inbox */
    wefti_list_t ops;
    pthread_mutex_t lock;
    wefti_list_t children;
    wefti_list_t sibling;
    wefti_list_t todo; /* the driver's: children still to be cancelled */
    wefti_call_t call;
};

weft_runtime_t *wefti_token_runtime(const weft_token_t *token)
{
    return token->rt;
}

bool wefti_token_cancelled(const weft_token_t *token)
{
    for (; token; token = token->parent)
        if (atomic_load_explicit(&token->cancelled, memory_order_acquire))
            return true;
    return false;
}

bool weft_token_cancelled(const weft_token_t *token)
{
    return token && wefti_token_cancelled(token);
}

/* --- counting -------------------------------------------------------------------------------------------------------------- */

void weft_token_hold(weft_token_t *token)
{
    if (token)
        atomic_fetch_add_explicit(&token->refs, 1, memory_order_relaxed);
}

/* Hold it unless it is on its way out. */
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
        pthread_mutex_destroy(&token->lock);
        wefti_free(token);
        token = parent;
    }
}

/* --- cancelling ------------------------------------------------------------------------------------------------------------ */

/* Ask what joined; put the children that are alive on `todo`, held. */
static void cancel_one(weft_token_t *token, wefti_list_t *todo)
{
    wefti_list_t asked;
    wefti_list_init(&asked);
    wefti_list_splice(&asked, &token->ops);
    /* Each leaves the list before it is asked: asking may complete it. It stays joined, by its flag, until it is complete. */
    for (wefti_list_t *l; (l = wefti_list_pop(&asked));)
        wefti_op_ask(wefti_op_of(l, token_link), WEFT_ERR_CANCELLED);
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
    weft_token_t *token = wefti_container_of(call, weft_token_t, call);
    wefti_list_t todo;
    wefti_list_init(&todo);
    atomic_store(&token->called, 0);
    cancel_one(token, &todo);
    for (wefti_list_t *l; (l = wefti_list_pop(&todo));) {
        weft_token_t *child = wefti_container_of(l, weft_token_t, todo);
        atomic_store_explicit(&child->cancelled, 1, memory_order_release);
        cancel_one(child, &todo);
        weft_token_drop(child);
    }
    weft_token_drop(token);
}

void weft_token_cancel(weft_token_t *token)
{
    if (!token || wefti_gone(token->rt) || atomic_exchange(&token->cancelled, 1) || atomic_exchange(&token->called, 1))
        return;
    weft_token_hold(token);
    if (!wefti_call_on_driver(token->rt, &token->call))
        weft_token_drop(token); /* the runtime is closed: nothing is left to cancel */
}

/* --- operations ------------------------------------------------------------------------------------------------------------ */

void wefti_token_join(weft_token_t *token, weft_op_t *op)
{
    weft_token_hold(token);
    wefti_list_push_back(&token->ops, &wefti_opx(op)->token_link);
    /* Cancelled since it was posted: not here, where its room is not ready for it, but through the inbox. */
    if (__builtin_expect(wefti_token_cancelled(token), 0) && !atomic_exchange(&token->called, 1)) {
        weft_token_hold(token);
        wefti_opx(&token->call.op)->kind = &wefti_call_kind;
        (void)wefti_inbox_push(token->rt, &token->call.op); /* we drive it: it is not closed */
    }
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
    if (parent && parent->rt != rt)
        return wefti_fail(WEFT_ERR_INVALID, "the parent token belongs to another runtime");
    weft_token_t *token = wefti_calloc(1, sizeof *token);
    if (!token)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a token");
    token->rt = rt;
    token->refs = 1;
    token->call.fn = cancel_all;
    wefti_list_init(&token->ops);
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
