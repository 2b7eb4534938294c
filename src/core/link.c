/* core/link.c - weft_op_then(): post the next operation when the one before succeeded.
 *
 * `next` is POSTED from weft_op_then() on, with a kind of its own (link): it can be waited for and cancelled, its deadline and
 * token work. When `first` succeeded, next becomes LINKED, which lets exactly one thing happen to it: that the program's post
 * function posts it, on the driver. To everyone else it looks under way all the time. If the post function fails, or first did,
 * it completes with that status.
 *
 * The post function runs in progress only: if first was done already, next goes to the ready list as a step that is due.
 *
 * Promise: next completes once, whatever first does. tests/unit/core_group.c holds us to it. */
#include "core/local.h"

typedef struct link {
    weft_op_t *first; /* NULL once it is done */
    weft_post_fn post;
    void *user;
    weft_status_t told; /* first's */
    uint64_t detail;    /* and why it failed: base/detail.h */
    weft_status_t why;  /* next was asked to end */
} link_t;

static void first_done(weft_op_t *op, void *arg)
{
    weft_op_t *next = (weft_op_t *)arg;
    link_t *l = wefti_op_scratch(next, link_t);
    (void)op; /* perhaps freed by now */
    l->first = NULL;
    l->told = wefti_opx(next)->rt->told;
    l->detail = wefti_opx(next)->rt->told_detail;
    wefti_link_step(next);
}

/* POSTED -> LINKED, unless someone asked for its end. */
static bool become_linked(wefti_opx_t *x, bool *waited)
{
    uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire);
    while ((state & WEFTI_OP_STATE) == WEFTI_OP_POSTED)
        if (atomic_compare_exchange_weak_explicit(&x->state, &state, WEFTI_OP_LINKED, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *waited = state & WEFTI_OP_WAITED;
            return true;
        }
    return false;
}

/* What next says (weft_op_error) where the post function has not posted it, and returned st. */
static uint64_t why_not_posted(weft_status_t st)
{
    if (!st)
        return wefti_detail_put("the post function of weft_op_then() returned WEFT_OK without posting the operation");
    if (weft_last_error_status() == st)
        return wefti_detail_put(weft_last_error());
    return wefti_detail_format("the post function of weft_op_then() returned %s: %s", weft_status_name(st), weft_status_text(st));
}

void wefti_link_step(weft_op_t *next)
{
    wefti_opx_t *x = wefti_opx(next);
    link_t l = *wefti_op_scratch(next, link_t);
    weft_runtime_t *rt = x->rt;
    bool waited = false;
    x->flags &= ~(uint32_t)WEFTI_OPF_STEP;
    if (l.told || l.why || !become_linked(x, &waited)) {
        wefti_op_complete_why(next, l.why ? l.why : l.told ? l.told : WEFT_ERR_CANCELLED, l.why ? 0 : l.detail);
        return;
    }
    /* The post counts it, its deadline and its token anew; until then the token is ours to keep. */
    weft_token_t *token = next->token;
    if (token)
        weft_token_hold(token);
    wefti_op_untrack(next);
    if (next->queue)
        wefti_queue_count(next->queue, -1);
    atomic_fetch_sub_explicit(&rt->ops_posted, 1, memory_order_relaxed);
    rt->linking = next;
    weft_status_t st = l.post(next, l.user);
    bool posted = !rt->linking; /* then it may be complete and gone already */
    rt->linking = NULL;
    if (token)
        weft_token_drop(token);
    if (waited)
        rt->leave_due |= WEFTI_DUE_WAKE; /* the mark went with the post: let them look again */
    if (posted) {
        if (st)
            wefti_error("a post function of weft_op_then() returned %s although it had posted the operation",
                        weft_status_name(st));
        return;
    }
    if (!st)
        wefti_error("a post function of weft_op_then() returned WEFT_OK without posting the operation");
    if (next->queue)
        wefti_queue_count(next->queue, 1);
    atomic_fetch_add_explicit(&rt->ops_posted, 1, memory_order_relaxed);
    x->flags = 0;
    atomic_store_explicit(&x->state, WEFTI_OP_POSTED, memory_order_release);
    wefti_op_complete_why(next, st ? st : WEFT_ERR_STATE, why_not_posted(st));
}

static weft_status_t link_start(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    link_t *l = wefti_op_scratch(op, link_t);
    wefti_opx_t *fx = wefti_opx(l->first);
    if (fx->watch)
        return wefti_fail(WEFT_ERR_STATE, "the first operation belongs to a group or a link already");
    weft_status_t st = wefti_op_track(op);
    if (st)
        return st;
    if ((wefti_op_state(l->first) & WEFTI_OP_STATE) == WEFTI_OP_DONE) {
        l->told = l->first->status;
        l->detail = wefti_opx(l->first)->detail;
        l->first = NULL;
        x->flags |= WEFTI_OPF_STEP;
        wefti_list_push_back(&x->rt->ready, &x->link);
    } else {
        fx->watch = first_done;
        fx->watch_arg = op;
    }
    return WEFT_OK;
}

static void link_cancel(weft_op_t *op, weft_status_t why)
{
    link_t *l = wefti_op_scratch(op, link_t);
    if (!l->why)
        l->why = why;
    if (l->first)
        wefti_op_ask(l->first, why); /* or it is on the ready list: the step sees why */
}

const wefti_op_kind_t wefti_link_kind = {.name = "link", .start = link_start, .cancel = link_cancel};

weft_status_t weft_op_then(weft_runtime_t *rt, weft_op_t *first, weft_post_fn post, void *user, weft_op_t *next)
{
    if (!rt || !first || !post || !next)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL",
                          !rt      ? "the runtime"
                          : !first ? "first"
                          : !post  ? "the post function"
                                   : "next");
    if (first == next)
        return wefti_fail(WEFT_ERR_INVALID, "first and next are the same operation");
    if (first->fn || first->queue)
        return wefti_fail(WEFT_ERR_INVALID, "first has fn or queue set; the link is told instead");
    if ((wefti_op_state(first) & WEFTI_OP_STATE) == WEFTI_OP_IDLE)
        return wefti_fail(WEFT_ERR_INVALID, "first was not posted");
    if (!weft_op_done(first) && wefti_opx(first)->rt != rt)
        return wefti_fail(WEFT_ERR_INVALID, "first belongs to another runtime");
    weft_status_t st = wefti_op_prepare(rt, next, &wefti_link_kind);
    if (st)
        return st;
    *wefti_op_scratch(next, link_t) = (link_t){.first = first, .post = post, .user = user};
    return wefti_op_go(rt, next);
}
