/* rma/mapped.c - accesses to memory of a peer that is mapped here, as far as post.c could not carry them out at once.
 *
 * They are carried out one after the other, in steps: a long one takes several rounds of progress, so that its deadline is kept, others get their
 * turn, and an owner that revokes the region does not wait long for us. Between two steps the slot is free, and each looks anew whether the
 * memory may still be touched. If not, the owner is asked to do it, so that the program hears the same as over the checked path. A write that
 * notifies sends its notification when its bytes are there, as a request over the lane.
 *
 * Promise: nothing is touched after the slot's stamp was changed and busy was seen to be 0. tests/fault/rma_peer_lost.c holds us to it. */
#include "rma/state.h"

uint64_t wefti_rma_step_bytes = UINT64_C(1) << 20;
#define STEP_COST 1024u /* of an access, beside its bytes */

/* --- one step ------------------------------------------------------------------------------------------------------------------ */

static weft_status_t touch(rma_acc_t *acc, uint64_t n)
{
    weft_remote_t *r = acc->remote;
    uint8_t *there = r->bytes + acc->offset + acc->stepped;
    if (acc->what == ACC_READ)
        return wefti_rma_scatter(acc, acc->stepped, there, n);
    if (acc->what == ACC_WRITE)
        return wefti_rma_gather(acc, acc->stepped, there, n);
    wefti_op_of_room(acc)->tag = rma_atomic_apply(there, acc->which, acc->width, acc->operand, acc->compare);
    return WEFT_OK;
}

/* Some of it, `most` bytes. WEFT_ERR_AGAIN: there is more to do, or somebody is there. */
static weft_status_t step(rma_acc_t *acc, uint64_t most)
{
    weft_remote_t *r = acc->remote;
    uint64_t left = acc->len - acc->stepped;
    uint64_t n = left < most || acc->what == ACC_ATOMIC ? left : most; /* an atomic is done whole: cut, it would be done twice */
    weft_status_t st = rma_enter(r);
    if (st)
        return st;
    st = acc->len ? touch(acc, n) : WEFT_OK;
    if (!acc->stepped)
        wefti_rma_count(acc);
    weft_status_t left_behind = rma_leave(r);
    if (!st)
        st = left_behind;
    acc->stepped += n;
    return st ? st : n < left ? WEFT_ERR_AGAIN : WEFT_OK;
}

/* Its bytes are there (or it failed): what is left to do. */
static void stepped(rma_acc_t *acc, weft_status_t st)
{
    if (st == WEFT_ERR_STALE ? acc->remote->ep != NULL : !st && acc->notify) {
        /* Why the slot is not ours any more only the owner can say, or the end of the connection: it was revoked, or we were given up. */
        if (!st)
            acc->what = ACC_NOTIFY;
        acc->id = 0;
        st = wefti_rma_ask(acc);
        if (!st)
            return;
    }
    wefti_rma_end(acc, st);
}

/* --- turns --------------------------------------------------------------------------------------------------------------------- */

/* One step for the first in line, and what is short for those behind it. */
static void turn(rma_state_t *rs)
{
    uint64_t done = 0;
    for (wefti_list_t *l; done < wefti_rma_step_bytes && (l = wefti_list_first(&rs->stepping));) {
        rma_acc_t *acc = wefti_container_of(l, rma_acc_t, link);
        uint64_t left = acc->len - acc->stepped;
        weft_status_t st = step(acc, wefti_rma_step_bytes - done);
        if (st == WEFT_ERR_AGAIN)
            return;
        done += left + STEP_COST;
        wefti_list_remove(l);
        stepped(acc, st);
    }
}

/* The next step comes with the next round of progress, and not in this one: who is looked at in each has to wait for every round. */
static void next_round(rma_state_t *rs)
{
    while (!wefti_list_empty(&rs->stepping)) {
        if (!wefti_timer_at(rs->rt, &rs->turn, rs->rt->now)) {
            rs->rt->until_clock = 0;
            return;
        }
        turn(rs); /* no memory for a timer: the others have to wait */
    }
}

static void on_turn(wefti_timer_t *t)
{
    rma_state_t *rs = wefti_container_of(t, rma_state_t, turn);
    if (!wefti_list_empty(&rs->stepping))
        turn(rs);
    next_round(rs);
}

void wefti_rma_steps_init(rma_state_t *rs)
{
    wefti_list_init(&rs->stepping);
    rs->turn.fn = on_turn;
}

void wefti_rma_step(rma_acc_t *acc)
{
    rma_state_t *rs = acc->remote->rs;
    weft_status_t st = wefti_list_empty(&rs->stepping) && !rs->later ? step(acc, wefti_rma_step_bytes) : WEFT_ERR_AGAIN;
    acc->state = ACC_STEPS;
    if (st != WEFT_ERR_AGAIN) {
        stepped(acc, st);
        return;
    }
    bool first = wefti_list_empty(&rs->stepping);
    wefti_list_push_back(&rs->stepping, &acc->link);
    if (!acc->batch)
        (void)wefti_op_track(rma_op(acc)); /* without memory for its deadline it still ends with its last step */
    if (first)
        next_round(rs);
}

void wefti_rma_steps_down(weft_remote_t *r, weft_status_t why)
{
    wefti_list_each_safe(l, &r->rs->stepping) {
        rma_acc_t *acc = wefti_container_of(l, rma_acc_t, link);
        if (acc->remote != r)
            continue;
        wefti_list_remove(l);
        wefti_rma_end(acc, why);
    }
}
