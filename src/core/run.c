/* core/run.c - a function of the program, run on the driver.
 *
 * It waits on the ready list with the completions, and runs in its turn: from progress, never inside weft_runtime_call(), and
 * after what completed before it. tests/unit/core_run.c. */
#include "base/alloc.h"
#include "core/local.h"
#include "core/shards.h"

typedef struct run {
    weft_run_fn fn;
    void *user;
    weft_status_t why; /* it was asked to end before its turn */
} run_t;

static weft_status_t run_start(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_status_t st = wefti_op_track(op);
    if (st)
        return st;
    x->flags |= WEFTI_OPF_STEP;
    wefti_list_push_back(&x->rt->ready, &x->link);
    return WEFT_OK;
}

static void run_cancel(weft_op_t *op, weft_status_t why)
{
    run_t *r = wefti_op_scratch(op, run_t);
    if (!r->why)
        r->why = why; /* its turn comes soon */
}

static const wefti_op_kind_t run_kind = {.name = "call on the driver", .start = run_start, .cancel = run_cancel, .stops = true};

void wefti_run_step(weft_op_t *op)
{
    run_t r = *wefti_op_scratch(op, run_t);
    wefti_opx(op)->flags &= ~(uint32_t)WEFTI_OPF_STEP;
    if (!r.why)
        r.fn(r.user);
    wefti_op_complete(op, r.why);
}

weft_status_t weft_runtime_call(weft_runtime_t *rt, weft_run_fn fn, void *user, weft_op_t *op)
{
    weft_op_t *own = NULL;
    if (!rt || !fn)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "the function" : "the runtime");
    if (!op) {
        op = own = wefti_op_own();
        if (!own)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory to hand a function to the driver; give it an operation");
    }
    rt = wefti_shard_or(rt);
    weft_status_t st = wefti_op_prepare(rt, op, &run_kind);
    if (!st) {
        *wefti_op_scratch(op, run_t) = (run_t){fn, user, WEFT_OK};
        st = wefti_op_post(rt, op);
    }
    if (st)
        wefti_free(own);
    return st;
}
