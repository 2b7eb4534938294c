/* core/group.c - one operation that completes as a function of others.
 *
 * A group has one record per member, made in weft_group_start(). On the driver it becomes the watch of each member, and is told
 * of each completion once; members that were done before count at once. It touches a member only while its record says so: after
 * the completion its owner may free it. What is left when the fate is decided is cancelled, and the group completes when all have
 * let go. A member that was never posted when the rest is cancelled counts as cancelled, and is the group's no longer.
 *
 * A member that is posted after weft_group_start() returned could complete before the driver has started the group, without a look at its watch:
 * some posts need no driver. So it is GROUPED, by the thread that starts the group, and its post takes the way over the driver, behind the group.
 *
 * Promise: a group completes once, after its last member, whatever the order. tests/unit/core_group.c holds us to it. */
#include <stdlib.h>

#include "base/alloc.h"
#include "core/local.h"

typedef struct member {
    weft_op_t *op; /* NULL once it is done */
    weft_op_t *group;
} member_t;

typedef struct group {
    member_t *members;
    size_t n, left, ok, winner;
    weft_group_mode_t mode;
    weft_status_t first, last;          /* failures */
    uint64_t first_detail, last_detail; /* and why: base/detail.h */
    weft_status_t why;                  /* it was asked to end */
    bool decided;                       /* the rest was cancelled */
} group_t;

static weft_status_t outcome(const group_t *g)
{
    bool won = g->mode == WEFT_GROUP_ANY ? g->ok > 0 : g->ok == g->n;
    if (won)
        return WEFT_OK;
    return g->why ? g->why : g->mode == WEFT_GROUP_ANY ? g->last : g->first;
}

/* What its outcome says: what the member said that it comes from. */
static uint64_t outcome_detail(const group_t *g)
{
    return g->why ? 0 : g->mode == WEFT_GROUP_ANY ? g->last_detail : g->first_detail;
}

static void finish(weft_op_t *op)
{
    group_t *g = wefti_op_scratch(op, group_t);
    op->count = g->ok;
    op->winner = g->winner;
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_free(g->members);
    g->members = NULL;
    wefti_op_complete_why(op, outcome(g), outcome_detail(g));
}

static void count(group_t *g, size_t i, weft_status_t st, uint64_t detail)
{
    g->members[i].op = NULL;
    g->left--;
    if (!st) {
        if (!g->ok++)
            g->winner = i;
    } else {
        g->last = st;
        g->last_detail = detail;
        if (!g->first) {
            g->first = st;
            g->first_detail = detail;
        }
    }
}

static bool is_decided(const group_t *g)
{
    return g->mode == WEFT_GROUP_ANY ? g->ok > 0 : g->mode == WEFT_GROUP_ALL_OR_NONE && g->first;
}

static void ungroup(weft_op_t *op)
{
    atomic_fetch_and_explicit(&wefti_opx(op)->state, ~(uint32_t)WEFTI_OP_GROUPED, memory_order_acq_rel);
}

static void cancel_rest(group_t *g, weft_status_t why)
{
    g->decided = true;
    for (size_t i = 0; i < g->n; i++) {
        weft_op_t *op = g->members[i].op;
        if (!op)
            continue;
        if ((wefti_op_state(op) & WEFTI_OP_STATE) == WEFTI_OP_IDLE) {
            wefti_opx(op)->watch = NULL;
            ungroup(op);
            count(g, i, WEFT_ERR_CANCELLED, 0);
        } else {
            wefti_op_ask(op, why); /* its watch comes from the ready list, not from in here */
        }
    }
}

static void settle(weft_op_t *op)
{
    group_t *g = wefti_op_scratch(op, group_t);
    if (!g->decided && is_decided(g))
        cancel_rest(g, WEFT_ERR_CANCELLED);
    if (!g->left)
        finish(op);
}

static void member_done(weft_op_t *op, void *arg)
{
    member_t *m = (member_t *)arg;
    group_t *g = wefti_op_scratch(m->group, group_t);
    (void)op; /* perhaps freed by now */
    const weft_runtime_t *rt = wefti_opx(m->group)->rt;
    count(g, (size_t)(m - g->members), rt->told, rt->told_detail);
    settle(m->group);
}

/* It was not started: the first n members are nobody's. */
static void let_go(group_t *g, size_t n)
{
    while (n--)
        ungroup(g->members[n].op);
    wefti_free(g->members);
    g->members = NULL;
}

static weft_status_t group_start(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    group_t *g = wefti_op_scratch(op, group_t);
    size_t watched = 0;
    weft_status_t st = WEFT_OK;
    for (; watched < g->n; watched++) {
        wefti_opx_t *mx = wefti_opx(g->members[watched].op);
        if (mx->watch) {
            st = wefti_fail(WEFT_ERR_STATE, "member %zu belongs to a group already", watched);
            goto err_watch;
        }
        mx->watch = member_done;
        mx->watch_arg = &g->members[watched];
    }
    st = wefti_op_track(op);
    if (st)
        goto err_watch;
    wefti_list_push_back(&x->rt->own, &x->link);
    for (size_t i = 0; i < g->n; i++) {
        weft_op_t *m = g->members[i].op;
        if ((wefti_op_state(m) & WEFTI_OP_STATE) == WEFTI_OP_DONE) {
            wefti_opx(m)->watch = NULL;
            count(g, i, m->status, wefti_opx(m)->detail);
        }
    }
    settle(op);
    return WEFT_OK;

err_watch:
    while (watched--)
        wefti_opx(g->members[watched].op)->watch = NULL;
    let_go(g, g->n);
    return st;
}

static void group_cancel(weft_op_t *op, weft_status_t why)
{
    group_t *g = wefti_op_scratch(op, group_t);
    if (!g->why)
        g->why = why;
    cancel_rest(g, why);
    if (!g->left)
        finish(op);
}

static const wefti_op_kind_t group_kind = {.name = "group", .start = group_start, .cancel = group_cancel};

static weft_status_t check(weft_runtime_t *rt, weft_group_mode_t mode, weft_op_t *const *members, size_t n,
                           const weft_op_t *group)
{
    if (!rt || !group || (!members && n))
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "the runtime" : !group ? "the group" : "the array of members");
    if (mode < WEFT_GROUP_ALL || mode > WEFT_GROUP_ALL_OR_NONE)
        return wefti_fail(WEFT_ERR_INVALID, "%d is no group mode", (int)mode);
    if (!n && mode == WEFT_GROUP_ANY)
        return wefti_fail(WEFT_ERR_INVALID, "any of no members would never complete");
    for (size_t i = 0; i < n; i++) {
        if (!members[i] || members[i] == group)
            return wefti_fail(WEFT_ERR_INVALID, "member %zu is %s", i, members[i] ? "the group itself" : "NULL");
        if (members[i]->fn || members[i]->queue)
            return wefti_fail(WEFT_ERR_INVALID, "member %zu has fn or queue set; the group is told instead", i);
        if (!weft_op_done(members[i]) && wefti_opx(members[i])->rt != rt)
            return wefti_fail(WEFT_ERR_INVALID, "member %zu belongs to another runtime", i);
    }
    return WEFT_OK;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const member_t *)a)->op, y = (uintptr_t)((const member_t *)b)->op;
    return x < y ? -1 : x > y;
}

/* Records in the order of the members; false: one of them is there twice, which in the order of addresses are neighbours. */
static bool fill(member_t *records, weft_op_t *const *members, size_t n, weft_op_t *group)
{
    bool twice = false;
    for (size_t i = 0; i < n; i++)
        records[i].op = members[i];
    qsort(records, n, sizeof *records, by_address);
    for (size_t i = 1; i < n; i++)
        twice |= records[i].op == records[i - 1].op;
    for (size_t i = 0; i < n; i++)
        records[i] = (member_t){members[i], group};
    return !twice;
}

/* The members that were not posted yet are marked. WEFT_ERR_STATE: one was already, and none is. */
static weft_status_t mark(group_t *g)
{
    for (size_t i = 0; i < g->n; i++) {
        wefti_opx_t *x = wefti_opx(g->members[i].op);
        uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire);
        while ((state & WEFTI_OP_STATE) == WEFTI_OP_IDLE) {
            if (state & WEFTI_OP_GROUPED) {
                let_go(g, i);
                return wefti_fail(WEFT_ERR_STATE, "member %zu belongs to a group already", i);
            }
            if (atomic_compare_exchange_weak_explicit(&x->state, &state, state | WEFTI_OP_GROUPED, memory_order_acq_rel,
                                                      memory_order_acquire))
                break;
        }
    }
    return WEFT_OK;
}

weft_status_t weft_group_start(weft_runtime_t *rt, weft_group_mode_t mode, weft_op_t *const *members, size_t n, weft_op_t *group)
{
    weft_status_t st = check(rt, mode, members, n, group);
    if (st)
        return st;
    member_t *records = wefti_calloc(n ? n : 1, sizeof *records);
    if (!records)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a group of %zu", n);
    st = fill(records, members, n, group) ? wefti_op_prepare(rt, group, &group_kind)
                                          : wefti_fail(WEFT_ERR_STATE, "a member is in the group twice");
    if (st)
        goto err_records;
    group_t *g = wefti_op_scratch(group, group_t);
    *g = (group_t){.members = records, .n = n, .left = n, .mode = mode};
    st = mark(g);
    if (st) {
        wefti_op_unprepare(group);
        return st;
    }
    st = wefti_op_go(rt, group);
    if (st && g->members) /* the runtime was closed before it came to the driver */
        let_go(g, n);
    return st;

err_records:
    wefti_free(records);
    return st;
}
