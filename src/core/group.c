/* core/group.c - one operation that completes as a function of others.
 *
 * A group has one record per member, made in weft_group_start(). On the driver it becomes the watch of each member, and is
 * told of each completion once; members that were done before count at once. It touches a member only while its record says
 * so: after the completion its owner may free it. When the outcome is decided, the other members are cancelled, and the group
 * completes when all have ended. A member that was never posted when the rest is cancelled counts as cancelled, and leaves the
 * group.
 *
 * A member that is posted after weft_group_start() returned could complete before the driver has started the group, without a
 * look at its watch: some posts need no driver. So the thread that starts the group marks it as GROUPED, and its post goes
 * through the driver, behind the group.
 *
 * On a runtime with several shards a group is the head's, and its members are anybody's. What is said of a member's completion
 * comes to the head by a call. A member that is under way becomes a member by a call to its shard, and is asked to end as by
 * weft_op_cancel(). One that was not posted yet is watched from weft_group_start() on, and whether its post or the group's end
 * comes first is decided by who takes GROUPED off:
 *
 *     GROUPED --its post--> (none) --begun--> POSTED ...       a post that fails puts GROUPED on again
 *        |                    \--the group ends--> UNWANTED    begun: cancelled; a post that fails: it leaves the group
 *        \--the group ends--> LEAVING --> (none)               it has left
 *
 * Promise: a group completes once, after its last member, whatever the order. tests/unit/core_group.c,
 * tests/wire/shards_group.c. */
#include <sched.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "core/local.h"

/* What a member has on a runtime with several shards, beside the rest. */
typedef struct away {
    struct member *m;
    wefti_call_t call; /* to its shard, so that it is watched; and to the head when it is done */
    weft_status_t status;
    uint64_t detail;
    bool early; /* it is watched since weft_group_start() */
    bool asked; /* the head's: it was told that the group is over */
} away_t;

typedef struct member {
    weft_op_t *op; /* NULL once it is done */
    weft_op_t *group;
    away_t *away; /* NULL: one shard */
} member_t;

typedef struct group {
    member_t *members;
    size_t n, left, ok, winner;
    weft_group_mode_t mode;
    weft_status_t first, last;          /* failures */
    uint64_t first_detail, last_detail; /* and why: base/detail.h */
    weft_status_t why;                  /* it was asked to end */
    bool decided;                       /* the rest was cancelled */
    bool starting;                      /* of several shards: members are counted, and nothing else */
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

static void unwatch(weft_op_t *op)
{
    wefti_opx(op)->watch = NULL;
    wefti_opx(op)->watch_arg = NULL;
}

/* The group is over: a member that is not posted yet leaves it (true), one that is being posted is told. False: it will say when
 * it is done. */
static bool dismiss_away(away_t *a, weft_op_t *op, const weft_runtime_t *rt, weft_status_t why)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = wefti_op_state(op);
    while ((state & WEFTI_OP_STATE) == WEFTI_OP_IDLE) {
        bool leaves = state & WEFTI_OP_GROUPED;
        uint32_t next =
            leaves ? (state & ~(uint32_t)WEFTI_OP_GROUPED) | WEFTI_OP_LEAVING : state | WEFTI_OP_STOPPED | WEFTI_OP_UNWANTED;
        if (!leaves && a->asked)
            return false;
        if (!atomic_compare_exchange_weak_explicit(&x->state, &state, next, memory_order_acq_rel, memory_order_acquire))
            continue;
        a->asked = true;
        if (!leaves)
            return false;
        unwatch(op);
        atomic_fetch_and_explicit(&x->state, ~(uint32_t)WEFTI_OP_LEAVING, memory_order_acq_rel);
        return true;
    }
    a->asked = true;
    if ((state & WEFTI_OP_STATE) == WEFTI_OP_DONE)
        return false; /* it has said so, or its shard will */
    if (x->rt == rt)
        wefti_op_ask(op, why);
    else
        weft_op_cancel(op);
    return false;
}

static void cancel_rest(weft_op_t *group, weft_status_t why)
{
    group_t *g = wefti_op_scratch(group, group_t);
    g->decided = true;
    for (size_t i = 0; i < g->n; i++) {
        weft_op_t *op = g->members[i].op;
        if (!op)
            continue;
        if (g->members[i].away) {
            if (dismiss_away(g->members[i].away, op, wefti_opx(group)->rt, why))
                count(g, i, WEFT_ERR_CANCELLED, 0);
        } else if ((wefti_op_state(op) & WEFTI_OP_STATE) == WEFTI_OP_IDLE) {
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
    if (g->starting)
        return;
    if (!g->decided && is_decided(g))
        cancel_rest(op, WEFT_ERR_CANCELLED);
    if (!g->left)
        finish(op);
}

/* On the head. */
static void away_done(wefti_call_t *call)
{
    const away_t *a = wefti_container_of(call, away_t, call);
    weft_op_t *group = a->m->group;
    group_t *g = wefti_op_scratch(group, group_t);
    count(g, (size_t)(a->m - g->members), a->status, a->detail);
    settle(group);
}

/* The head is closed after the others, and not before its groups are complete. */
static void tell_head(away_t *a, weft_status_t st, uint64_t detail)
{
    a->status = st;
    a->detail = detail;
    a->call.fn = away_done;
    (void)wefti_call_on_driver(wefti_opx(a->m->group)->rt, &a->call);
}

static void member_done(weft_op_t *op, void *arg)
{
    member_t *m = (member_t *)arg;
    group_t *g = wefti_op_scratch(m->group, group_t);
    (void)op; /* may be freed by now */
    const weft_runtime_t *rt = wefti_opx(m->group)->rt;
    if (__builtin_expect(m->away != NULL && wefti_driven != rt, 0)) {
        tell_head(m->away, wefti_driven->told, wefti_driven->told_detail);
        return;
    }
    count(g, (size_t)(m - g->members), rt->told, rt->told_detail);
    settle(m->group);
}

/* It was not started: the first n members leave it. */
static void let_go(group_t *g, size_t n)
{
    while (n--) {
        if (g->members[n].away && g->members[n].away->early)
            unwatch(g->members[n].op);
        ungroup(g->members[n].op);
    }
    wefti_free(g->members);
    g->members = NULL;
}

/* On the shard of a member that was under way when the group was started. */
static void watch_away(wefti_call_t *call)
{
    away_t *a = wefti_container_of(call, away_t, call);
    weft_op_t *op = a->m->op;
    wefti_opx_t *x = wefti_opx(op);
    if ((wefti_op_state(op) & WEFTI_OP_STATE) == WEFTI_OP_DONE) {
        tell_head(a, op->status, op->status ? x->detail : 0);
    } else if (x->watch) {
        tell_head(a, WEFT_ERR_STATE, wefti_detail_format("a member belongs to a group already"));
    } else {
        x->watch_arg = a->m;
        x->watch = member_done;
    }
}

/* Members may be on their way already, so it ends when they have, whatever happens. */
static weft_status_t start_away(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    group_t *g = wefti_op_scratch(op, group_t);
    weft_status_t st = wefti_op_track(op);
    wefti_list_push_back(&x->rt->own, &x->link);
    for (size_t i = 0; i < g->n; i++) {
        away_t *a = g->members[i].away;
        weft_op_t *m = g->members[i].op;
        if (a->early)
            continue;
        bool done = (wefti_op_state(m) & WEFTI_OP_STATE) == WEFTI_OP_DONE;
        a->call.fn = watch_away;
        if (!done && wefti_call_on_driver(wefti_opx(m)->rt, &a->call))
            continue;
        count(g, i, m->status, m->status ? wefti_opx(m)->detail : 0); /* else its shard is closed: it is done, too */
    }
    if (st) {
        g->why = st;
        cancel_rest(op, WEFT_ERR_CANCELLED);
    }
    g->starting = false;
    settle(op);
    return WEFT_OK;
}

static weft_status_t group_start(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    group_t *g = wefti_op_scratch(op, group_t);
    size_t watched = 0;
    weft_status_t st = WEFT_OK;
    if (g->n && g->members[0].away)
        return start_away(op);
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
    cancel_rest(op, why);
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
        if (!weft_op_done(members[i]) && !wefti_same_runtime(wefti_opx(members[i])->rt, rt))
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
        records[i] = (member_t){members[i], group, NULL};
    return !twice;
}

/* The records of n members; of a runtime with several shards each has its part behind them. */
static member_t *records_new(const weft_runtime_t *rt, size_t n)
{
    bool shards = wefti_sharded(rt);
    size_t size = sizeof(member_t) + (shards ? sizeof(away_t) : 0);
    return n > SIZE_MAX / 2 / size ? NULL : wefti_calloc(n ? n : 1, size);
}

static void records_link(member_t *records, size_t n)
{
    away_t *away = (away_t *)(void *)(records + n);
    for (size_t i = 0; i < n; i++) {
        away[i].m = &records[i];
        records[i].away = &away[i];
    }
}

/* The members that were not posted yet are marked. WEFT_ERR_STATE: one was already, and none is. */
static weft_status_t mark(group_t *g)
{
    for (size_t i = 0; i < g->n; i++) {
        wefti_opx_t *x = wefti_opx(g->members[i].op);
        uint32_t state = atomic_load_explicit(&x->state, memory_order_acquire);
        while ((state & WEFTI_OP_STATE) == WEFTI_OP_IDLE) {
            if (state & WEFTI_OP_GROUPED || (g->members[i].away && x->watch)) {
                let_go(g, i);
                return wefti_fail(WEFT_ERR_STATE, "member %zu belongs to a group already", i);
            }
            if (!atomic_compare_exchange_weak_explicit(&x->state, &state, state | WEFTI_OP_GROUPED, memory_order_acq_rel,
                                                       memory_order_acquire))
                continue;
            if (g->members[i].away) { /* its post, which comes later, may be on any shard */
                x->watch_arg = &g->members[i];
                x->watch = member_done;
                g->members[i].away->early = true;
            }
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
    rt = wefti_head(rt);
    member_t *records = records_new(rt, n);
    if (!records)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a group of %zu", n);
    st = fill(records, members, n, group) ? wefti_op_prepare(rt, group, &group_kind)
                                          : wefti_fail(WEFT_ERR_STATE, "a member is in the group twice");
    if (st)
        goto err_records;
    if (wefti_sharded(rt))
        records_link(records, n);
    group_t *g = wefti_op_scratch(group, group_t);
    *g = (group_t){.members = records, .n = n, .left = n, .mode = mode, .starting = n && records->away};
    st = mark(g);
    if (st) {
        wefti_op_unprepare(group);
        return st;
    }
    st = wefti_op_post(rt, group);
    if (st && g->members) /* the runtime was closed before it came to the driver */
        let_go(g, n);
    return st;

err_records:
    wefti_free(records);
    return st;
}

/* --- members that are posted, on any thread -------------------------------------------------------------------------------- */

bool wefti_group_post(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = wefti_op_state(op);
    while (state & (WEFTI_OP_GROUPED | WEFTI_OP_LEAVING)) {
        if (state & WEFTI_OP_LEAVING) {
            sched_yield();
            state = wefti_op_state(op);
        } else if (atomic_compare_exchange_weak_explicit(&x->state, &state, state & ~(uint32_t)WEFTI_OP_GROUPED,
                                                         memory_order_acq_rel, memory_order_acquire)) {
            return true;
        }
    }
    return false;
}

void wefti_group_left(weft_op_t *op)
{
    away_t *a = ((member_t *)wefti_opx(op)->watch_arg)->away;
    unwatch(op);
    tell_head(a, WEFT_ERR_CANCELLED, 0);
}

void wefti_group_unpost(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = wefti_op_state(op), next;
    do {
        next = state & WEFTI_OP_UNWANTED ? state & ~(uint32_t)(WEFTI_OP_UNWANTED | WEFTI_OP_STOPPED) : state | WEFTI_OP_GROUPED;
    } while (!atomic_compare_exchange_weak_explicit(&x->state, &state, next, memory_order_acq_rel, memory_order_acquire));
    if (state & WEFTI_OP_UNWANTED)
        wefti_group_left(op);
}
