/* rma/mapped.c - accesses to memory of a peer that is mapped here, unless post.c carried them out at once.
 *
 * They are carried out one after the other, in steps: a long one takes several rounds of progress, so that it keeps its deadline,
 * others get their turn, and an owner that revokes the region does not wait long for us. Between two steps the slot is free, and
 * each step checks anew that the memory may be touched. If not, the owner is asked to do the access, so that the program gets the
 * same status as on the checked path. A write that notifies sends a request over the lane when its bytes are there. Idle threads
 * copy a part of a very long access (window.c).
 *
 * An access may find the slot's busy word set: by another thread of ours, for moments, or by a peer that scribbles on the page,
 * for ever. Such an access is HELD, with all later ones of its remote, which keep their order; other remotes go on. The word is
 * looked at in each round at first, then once a millisecond. If it stays set for STUCK, the owner is asked to do what is held
 * and what comes after it (weft_remote_t.asks), until all of it has ended and the slot is free.
 *
 * A buffer in device memory is reached by way of a carry (carried.c). A write that waits for its bytes is set aside, with all
 * later ones of its remote. A long access would wait for the device: so it does not take steps, and in its turn the owner is
 * asked, for it and what comes after it.
 *
 * Promise: nothing is touched after the slot's stamp was changed and busy was seen to be 0: tests/fault/rma_peer_lost.c. A slot
 * that stays busy delays its own remote alone: tests/wire/rma_flow.c. */
#include "rma/mapped.h"

#include "rma/carried.h"

uint64_t wefti_rma_step_bytes = UINT64_C(256) << 10; /* others wait for a step: 200 us at most */
#define STEP_COST 1024u                              /* of an access, beside its bytes */

#define STUCK WEFT_SECOND /* a thread of ours takes microseconds, but may have to wait for a processor or a page */
#define LOOK WEFT_MILLISECOND
#define EAGER (2 * WEFT_MILLISECOND) /* for so long there is a look in each round: most copies take less */
#define LATE (20 * LOOK)             /* a look that late: this process was stopped, and so was the thread inside */

/* --- one step ---------------------------------------------------------------------------------------------------------- */

static weft_status_t touch(rma_acc_t *acc, uint64_t n)
{
    weft_remote_t *r = acc->remote;
    uint8_t *there = r->bytes + acc->offset + acc->stepped;
    if (acc->what == ACC_READ)
        return wefti_rma_scatter(acc, acc->stepped, there, n);
    if (acc->what == ACC_WRITE)
        return wefti_rma_gather(acc, acc->stepped, there, n);
    wefti_op_of_scratch(acc)->value = rma_atomic_apply(there, acc->which, acc->width, acc->operand, acc->compare);
    return WEFT_OK;
}

/* Some of it, `most` bytes, and what others copy meanwhile. WEFT_ERR_PENDING: there is more to do. WEFT_ERR_AGAIN: somebody is
 * there, and nothing was done. */
static weft_status_t step(rma_acc_t *acc, uint64_t most)
{
    weft_remote_t *r = acc->remote;
    uint64_t left = acc->len - acc->stepped;
    uint64_t n = left < most || acc->what == ACC_ATOMIC ? left : most; /* an atomic is done whole: cut, it would be done twice */
    bool inside = r->rs->window.acc == acc;
    weft_status_t st = inside ? WEFT_OK : rma_enter(r);
    if (st)
        return st;
    r->held_since = 0;
    if (!inside && !acc->stepped)
        wefti_rma_count(acc);
    if (inside || wefti_rma_window_open(acc)) {
        if (!wefti_rma_window_work(acc, most, &n))
            return WEFT_ERR_PENDING;
    } else if (acc->len) {
        st = touch(acc, n);
    }
    weft_status_t left_behind = rma_leave(r);
    if (!st)
        st = left_behind;
    acc->stepped += n;
    return st ? st : n < left ? WEFT_ERR_PENDING : WEFT_OK;
}

/* Its bytes are there, or it failed: do the rest. */
static void stepped(rma_acc_t *acc, weft_status_t st)
{
    if (st == WEFT_ERR_STALE ? acc->remote->ep != NULL : !st && acc->notify) {
        /* Only the owner, or the end of the connection, can say why the slot is not ours: revoked, or given up. */
        if (!st) {
            acc->what = ACC_NOTIFY;
            wefti_rma_big_free(acc); /* with the carry that its bytes came from */
        }
        acc->id = 0;
        st = wefti_rma_ask(acc);
        if (!st)
            return;
    } else if (!st) {
        st = wefti_rma_carry_place(acc);
    }
    if (st != WEFT_ERR_PENDING)
        wefti_rma_end(acc, st);
}

/* --- slots that are busy ----------------------------------------------------------------------------------------------- */

static bool busy(const weft_remote_t *r)
{
    return atomic_load_explicit(&r->slot->busy, memory_order_relaxed);
}

bool wefti_rma_asks(weft_remote_t *r)
{
    if (__builtin_expect(r->asks, 0) && !r->n_live && !busy(r)) /* nothing is left that could be overtaken */
        r->asks = false;
    return r->asks && wefti_list_empty(&r->held);
}

/* Let the owner do what is held. */
static void ask_owner(weft_remote_t *r)
{
    if (wefti_list_linked(&r->held_link))
        wefti_list_remove(&r->held_link);
    r->asks = true; /* before the first request, so that what comes meanwhile keeps its place */
    r->refs++;
    for (wefti_list_t *l; (l = wefti_list_pop(&r->held));) {
        rma_acc_t *acc = wefti_container_of(l, rma_acc_t, link);
        if (!acc->stepped)
            wefti_rma_count(acc);
        stepped(acc, WEFT_ERR_STALE);
    }
    wefti_rma_remote_unref(r);
}

static void let_go(weft_remote_t *r)
{
    rma_state_t *rs = r->rs;
    bool first = wefti_list_empty(&rs->stepping.list);
    wefti_list_splice(&rs->stepping.list, &r->held);
    if (first)
        wefti_rma_rounds_go(&rs->stepping);
}

/* The next look. WEFT_ERR_NOMEM. */
static weft_status_t look_again(rma_state_t *rs, bool eager)
{
    if (!eager && wefti_heap_linked(&rs->look.node))
        return WEFT_OK; /* it is near enough */
    weft_status_t st = wefti_timer_at(rs->rt, &rs->look, eager ? rs->rt->now : wefti_now(rs->rt) + LOOK);
    if (!st && eager)
        rs->rt->until_clock = 0;
    return st;
}

static void on_look(wefti_timer_t *t)
{
    rma_state_t *rs = wefti_container_of(t, rma_state_t, look);
    uint64_t now = wefti_now(rs->rt), late = now - rs->looked > LATE ? now - rs->looked : 0;
    wefti_list_t remotes, *l;
    bool eager = false;
    rs->looked = now;
    wefti_list_init(&remotes);
    wefti_list_splice(&remotes, &rs->held);
    while ((l = wefti_list_pop(&remotes))) {
        weft_remote_t *r = wefti_container_of(l, weft_remote_t, held_link);
        if (wefti_list_empty(&r->held)) /* all were cancelled */
            continue;
        r->held_since += late;
        if (!busy(r)) {
            let_go(r);
        } else if (now >= r->held_since + STUCK) {
            wefti_info("rma: the slot of a mapped region stays busy, so that its owner is asked for accesses");
            ask_owner(r);
        } else {
            eager = now - r->held_since < EAGER || eager;
            wefti_list_push_back(&rs->held, &r->held_link);
        }
    }
    while ((l = wefti_list_first(&rs->held)) && look_again(rs, eager)) /* no memory for a timer: nobody would look */
        ask_owner(wefti_container_of(l, weft_remote_t, held_link));
}

/* All of it waits. */
static void set_aside(weft_remote_t *r)
{
    wefti_list_t aside;
    wefti_list_init(&aside);
    wefti_list_each_safe(l, &r->rs->stepping.list) {
        if (wefti_container_of(l, rma_acc_t, link)->remote != r)
            continue;
        wefti_list_remove(l);
        wefti_list_push_back(&aside, l);
    }
    wefti_list_splice(&aside, &r->held); /* what was set aside before came later */
    wefti_list_splice(&r->held, &aside);
}

void wefti_rma_steps_go(weft_remote_t *r)
{
    if (!wefti_list_linked(&r->held_link))
        let_go(r);
}

/* Somebody has its slot. */
static void hold(weft_remote_t *r)
{
    rma_state_t *rs = r->rs;
    set_aside(r);
    uint64_t now = wefti_now(rs->rt);
    if (!r->held_since) /* else no thread of ours was inside since it was last held */
        r->held_since = now | 1;
    if (wefti_list_empty(&rs->held))
        rs->looked = now;
    wefti_list_push_back(&rs->held, &r->held_link);
    if (look_again(rs, now - r->held_since < EAGER)) /* nobody would look */
        ask_owner(r);
}

/* --- turns ------------------------------------------------------------------------------------------------------------- */

/* One step for the first in line, and what is short for those behind it. */
static void turn(rma_state_t *rs)
{
    uint64_t done = 0;
    for (wefti_list_t *l; done < wefti_rma_step_bytes && (l = wefti_list_first(&rs->stepping.list));) {
        /* What is in its slot goes on: an owner that revokes the region waits for it. */
        rma_acc_t *acc = rs->window.acc ? rs->window.acc : wefti_container_of(l, rma_acc_t, link);
        uint64_t left = acc->len - acc->stepped;
        if (rma_carrying(acc) || wefti_rma_carry_cannot(acc)) {
            weft_remote_t *r = acc->remote;
            bool cannot = !rma_carrying(acc);
            done += STEP_COST;
            set_aside(r);
            if (cannot)
                ask_owner(r);
            continue;
        }
        weft_status_t st = step(acc, wefti_rma_step_bytes - done);
        if (st == WEFT_ERR_PENDING)
            return;
        if (st == WEFT_ERR_AGAIN) {
            done += STEP_COST;
            hold(acc->remote);
            continue;
        }
        done += left + STEP_COST;
        wefti_list_remove(&acc->link);
        stepped(acc, st);
    }
}

/* A timer that is due now, and not a call in each round: that would cost every round something. */
void wefti_rma_rounds_go(rma_rounds_t *r)
{
    weft_runtime_t *rt = r->rs->rt;
    while (!wefti_list_empty(&r->list)) {
        if (!wefti_timer_at(rt, &r->timer, rt->now)) {
            rt->until_clock = 0;
            return;
        }
        r->piece(r->rs); /* no memory for a timer: the others have to wait */
    }
}

static void on_round(wefti_timer_t *t)
{
    rma_rounds_t *r = wefti_container_of(t, rma_rounds_t, timer);
    if (!wefti_list_empty(&r->list))
        r->piece(r->rs);
    wefti_rma_rounds_go(r);
}

void wefti_rma_rounds_init(rma_rounds_t *r, rma_state_t *rs, void (*piece)(rma_state_t *rs))
{
    r->rs = rs;
    r->piece = piece;
    r->timer.fn = on_round;
    wefti_list_init(&r->list);
}

void wefti_rma_steps_init(rma_state_t *rs)
{
    wefti_rma_rounds_init(&rs->stepping, rs, turn);
    wefti_list_init(&rs->held);
    rs->look.fn = on_look;
}

void wefti_rma_step(rma_acc_t *acc)
{
    weft_remote_t *r = acc->remote;
    rma_state_t *rs = r->rs;
    bool first = wefti_list_empty(&rs->stepping.list);
    bool waits = wefti_list_linked(&r->held_link) || !wefti_list_empty(&r->held) || rma_carrying(acc);
    bool now = first && !waits && !rs->later && !wefti_rma_carry_cannot(acc);
    acc->state = ACC_STEPS; /* before others read it: see window.c */
    weft_status_t st = now ? step(acc, wefti_rma_step_bytes) : WEFT_ERR_PENDING;
    if (st != WEFT_ERR_PENDING && st != WEFT_ERR_AGAIN) {
        stepped(acc, st);
        return;
    }
    wefti_list_push_back(waits || st == WEFT_ERR_AGAIN ? &r->held : &rs->stepping.list, &acc->link);
    if (!acc->batch)
        (void)wefti_op_track(rma_op(acc)); /* without memory for its deadline it still ends with its last step */
    if (st == WEFT_ERR_AGAIN)
        hold(r);
    else if (first && !waits)
        wefti_rma_rounds_go(&rs->stepping);
}

void wefti_rma_steps_down(weft_remote_t *r, weft_status_t why)
{
    if (wefti_list_linked(&r->held_link))
        wefti_list_remove(&r->held_link);
    wefti_rma_window_stop(r, NULL);
    set_aside(r);
    for (wefti_list_t *l; (l = wefti_list_pop(&r->held));) {
        rma_acc_t *acc = wefti_container_of(l, rma_acc_t, link);
        if (rma_carrying(acc))
            wefti_rma_carry_down(acc, why);
        else
            wefti_rma_end(acc, why);
    }
}
