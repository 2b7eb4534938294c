/* core/scope.c - counting what is alive, refusing newcomers, completing when the last has left.
 *
 * One word: CLOSED, ENDING, FREED, STARTING, and the count in steps of ONE. Closing sets CLOSED and STARTING; the driver takes STARTING away when
 * the close operation has started, so that the scope does not end before that. Whoever leaves nothing but CLOSED
 * turns on ENDING and tells the driver, which turns it off again and completes the operation; from then on nothing of ours
 * touches the scope.
 *
 * It may outlive its runtime: then whoever leaves it last finds the runtime closed, and its close has ended with that.
 *
 * Promise: the close completes once, after the last leave and not before. tests/unit/core_scope.c holds us to it. */
#include "core/local.h"

enum { CLOSED = 1, ENDING = 2, FREED = 4, STARTING = 8, ONE = 16 };

struct weft_scope {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    uint32_t fork_generation; /* of the process that made it */
    _Atomic uint64_t word;
    weft_op_t *op; /* the driver's: the close under way */
    wefti_call_t call;
};

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_scope_t, word);

typedef struct closing {
    weft_scope_t *scope;
} closing_t;

static weft_status_t usable(const weft_scope_t *scope)
{
    if (!wefti_is_open(&scope->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the scope was freed");
    return scope->fork_generation == wefti_fork_generation
               ? WEFT_OK
               : wefti_fail(WEFT_ERR_FORKED, "the scope belongs to the parent process");
}

/* --- the end --------------------------------------------------------------------------------------------------------------- */

static void end(wefti_call_t *call)
{
    weft_scope_t *scope = wefti_container_of(call, weft_scope_t, call);
    weft_op_t *op = scope->op;
    scope->op = NULL;
    atomic_store_explicit(&scope->word, CLOSED, memory_order_release); /* may be freed now */
    if (!op)
        return; /* its close was cancelled, or the runtime closed */
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, WEFT_OK);
}

/* Take ONE or STARTING away. */
static void take(weft_scope_t *scope, uint64_t what)
{
    uint64_t word = atomic_load_explicit(&scope->word, memory_order_relaxed), next;
    do {
        if (what == ONE && word < ONE) {
            assert((word & CLOSED || wefti_gone(scope->rt)) && "a scope was left more often than entered");
            return;
        }
        next = word - what;
        if (next == CLOSED)
            next |= ENDING;
    } while (!atomic_compare_exchange_weak_explicit(&scope->word, &word, next, memory_order_acq_rel, memory_order_relaxed));
    if (next & ENDING && !wefti_call_on_driver(scope->rt, &scope->call))
        atomic_store(&scope->word, CLOSED); /* the runtime is closed, and so its close has ended */
}

void weft_scope_leave(weft_scope_t *scope)
{
    if (scope && !usable(scope))
        take(scope, ONE);
}

weft_status_t weft_scope_enter(weft_scope_t *scope)
{
    if (!scope)
        return wefti_fail(WEFT_ERR_INVALID, "the scope is NULL");
    weft_status_t st = usable(scope);
    if (st)
        return st;
    if (wefti_gone(scope->rt))
        return wefti_fail_gone(scope->rt);
    uint64_t word = atomic_load_explicit(&scope->word, memory_order_relaxed);
    do {
        if (word & (CLOSED | FREED))
            return wefti_fail(WEFT_ERR_CLOSED, "the scope is closed");
    } while (!atomic_compare_exchange_weak_explicit(&scope->word, &word, word + ONE, memory_order_acq_rel, memory_order_relaxed));
    return WEFT_OK;
}

/* --- closing --------------------------------------------------------------------------------------------------------------- */

static weft_status_t close_start(weft_op_t *op)
{
    weft_scope_t *scope = wefti_op_scratch(op, closing_t)->scope;
    weft_status_t st = wefti_op_track(op);
    if (st)
        return st;
    scope->op = op;
    wefti_list_push_back(&scope->rt->own, &wefti_opx(op)->link);
    take(scope, STARTING);
    return WEFT_OK;
}

/* Nothing was started: it is open as before. */
static void unclose(weft_scope_t *scope)
{
    atomic_fetch_sub(&scope->word, STARTING + CLOSED);
}

static void close_failed(weft_op_t *op, weft_status_t st)
{
    unclose(wefti_op_scratch(op, closing_t)->scope);
    wefti_op_complete(op, st);
}

/* The scope stays closed; nobody is told any more when it is empty. */
static void close_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_op_scratch(op, closing_t)->scope->op = NULL;
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, why);
}

static const wefti_op_kind_t close_kind = {
    .name = "scope close", .start = close_start, .cancel = close_cancel, .failed = close_failed};

weft_status_t weft_scope_close(weft_scope_t *scope, weft_op_t *op)
{
    if (!scope || !op)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", scope ? "the operation" : "the scope");
    weft_runtime_t *rt = scope->rt;
    weft_status_t st = usable(scope);
    if (!st)
        st = wefti_op_prepare(rt, op, &close_kind);
    if (st)
        return st;
    uint64_t word = atomic_load_explicit(&scope->word, memory_order_relaxed);
    do {
        if (word & (CLOSED | FREED)) {
            wefti_op_unprepare(op);
            return word & FREED ? wefti_fail(WEFT_ERR_CLOSED, "the scope was freed")
                                : wefti_fail(WEFT_ERR_STATE, "the scope was closed before");
        }
    } while (!atomic_compare_exchange_weak_explicit(&scope->word, &word, word | CLOSED | STARTING, memory_order_acq_rel,
                                                    memory_order_relaxed));
    wefti_op_scratch(op, closing_t)->scope = scope;
    st = wefti_op_go_by(rt, op, close_start);
    if (st)
        unclose(scope);
    return st;
}

/* --- life ------------------------------------------------------------------------------------------------------------------ */

weft_status_t weft_scope_new(weft_runtime_t *rt, weft_scope_t **scope_out)
{
    if (!rt || !scope_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "scope_out" : "the runtime");
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    weft_scope_t *scope = wefti_handle_new(&handles);
    if (!scope)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a scope");
    scope->rt = rt;
    scope->fork_generation = wefti_fork_generation;
    scope->call.fn = end;
    *scope_out = scope;
    return WEFT_OK;
}

weft_status_t weft_scope_free(weft_scope_t *scope)
{
    if (!scope)
        return WEFT_OK;
    weft_status_t st = usable(scope);
    if (st)
        return st;
    uint64_t word = atomic_load_explicit(&scope->word, memory_order_acquire);
    do {
        if (word & FREED)
            return wefti_fail(WEFT_ERR_CLOSED, "the scope was freed");
        if (word >= ONE)
            return wefti_fail(WEFT_ERR_STATE, "the scope has %llu inside", (unsigned long long)(word / ONE));
        if (word & (ENDING | STARTING))
            return wefti_fail(WEFT_ERR_STATE, "the end of the scope is on its way");
    } while (
        !atomic_compare_exchange_weak_explicit(&scope->word, &word, word | FREED, memory_order_acq_rel, memory_order_acquire));
    wefti_handle_free(&handles, scope);
    return WEFT_OK;
}
