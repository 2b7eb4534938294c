/* conn/outbox.c - the sends of one traffic on one endpoint: waiting, going, ending. outbox.h has the states.
 *
 * Promise: each send completes once, after the fabric has let go of its buffers; sends that are not urgent arrive in the order
 * of their posts. tests/sim/msg_exactly_once.c and am_exactly_once.c hold us to it. */
#include <string.h>

#include "conn/ep.h"

static wefti_outbox_t *box_of(const wefti_send_t *s)
{
    return s->ep->traffic[s->kind->traffic];
}

void wefti_outbox_init(wefti_outbox_t *box, const wefti_outbox_kind_t *kind, uint64_t window, uint32_t window_msgs)
{
    box->kind = kind;
    wefti_flow_init(&box->flow, &kind->flow, window, window_msgs);
    wefti_list_init(&box->pending);
    wefti_list_init(&box->urgent);
    wefti_list_init(&box->announced);
    wefti_list_init(&box->confirming);
    wefti_slots_init(&box->confirms, UINT32_MAX - 1);
}

static void flush(weft_ep_t *ep, wefti_outbox_t *box);

/* --- endings --------------------------------------------------------------------------------------------------------------- */

void wefti_outbox_finish(weft_op_t *op, weft_status_t status)
{
    wefti_send_t *s = wefti_send(op);
    if (__builtin_expect(s->carry != NULL, 0)) {
        wefti_carry_put(s->ep->rt, s->carry);
        s->carry = NULL;
    }
    wefti_pieces_release(&s->payload);
    if (__builtin_expect(status, 0))
        wefti_ep_complete(wefti_send(op)->ep, op, status);
    else
        wefti_op_complete(op, status);
}

static void announce_done(wefti_out_t *out, weft_status_t status)
{
    weft_op_t *op = out->user;
    wefti_send_t *s = wefti_send(op);
    weft_ep_t *ep = s->ep;
    bool failed = out->failed;
    wefti_out_free(ep->rt, out);
    wefti_list_remove(&wefti_opx(op)->link);
    if (status == WEFT_ERR_CANCELLED) /* by us, or because the lane ended: s->why was set then */
        status = s->why ? s->why : wefti_ep_why(ep, status);
    else if (status == WEFT_ERR_REFUSED && !op->reason && failed) {
        status = WEFT_ERR_SYSTEM;
        wefti_ep_says(ep, "it had begun to take the payload, and could not go on: its device failed, or it has no memory");
    } else if (status == WEFT_ERR_REFUSED)
        status = op->reason ? WEFT_ERR_REJECTED : WEFT_ERR_CLOSED;
    wefti_outbox_finish(op, status);
    wefti_ep_drained(ep);
}

void wefti_outbox_unconfirm(wefti_outbox_t *box, weft_op_t *op)
{
    wefti_send_t *s = wefti_send(op);
    wefti_slots_remove(&box->confirms, s->confirm_id);
    s->confirm_id = 0;
}

static void end_confirming(wefti_outbox_t *box, weft_op_t *op, weft_status_t status)
{
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_outbox_unconfirm(box, op);
    wefti_outbox_finish(op, status);
}

void wefti_outbox_answered(weft_ep_t *ep, wefti_outbox_t *box, uint64_t confirm_id, uint32_t reason)
{
    weft_op_t *op = wefti_slots_get(&box->confirms, confirm_id);
    if (!op)
        return; /* it was cancelled */
    op->reason = reason;
    end_confirming(box, op, reason ? WEFT_ERR_REJECTED : WEFT_OK);
    wefti_ep_drained(ep);
}

void wefti_outbox_refusal(weft_ep_t *ep, const wefti_outbox_t *box, uint64_t payload_id, uint32_t reason)
{
    wefti_out_t *out = wefti_out_find(ep, payload_id);
    weft_op_t *op = out && out->done == announce_done ? out->user : NULL;
    if (op && wefti_send(op)->kind == box->kind)
        op->reason = reason;
}

void wefti_outbox_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_send_t *s = wefti_send(op);
    weft_ep_t *ep = s->ep;
    if (s->out || s->carrying) {
        if (!s->why)
            s->why = why;
        if (s->out && ep->lane)
            wefti_out_withdraw(s->out);
        return; /* it ends when its buffers are free */
    }
    wefti_outbox_t *box = box_of(s);
    bool gated = s->gated;
    if (gated)
        wefti_gate_forget(op);
    if (s->confirm_id) {
        end_confirming(box, op, why);
    } else {
        wefti_list_remove(&wefti_opx(op)->link);
        wefti_outbox_finish(op, why);
    }
    wefti_ep_drained(ep);
    if (gated)
        flush(ep, box); /* what waited behind it */
}

void wefti_outbox_down(weft_ep_t *ep, wefti_outbox_t *box, weft_status_t why)
{
    wefti_flow_down(ep, &box->flow);
    if (ep->lane)
        return; /* a graceful close: sends go on */
    wefti_list_each(l, &box->announced) {
        wefti_send_t *s = wefti_send(wefti_op_of_link(l));
        if (!s->why)
            s->why = why;
    }
    wefti_list_splice(&box->urgent, &box->pending);
    for (wefti_list_t *l; (l = wefti_list_pop(&box->urgent));) {
        weft_op_t *op = wefti_op_of_link(l);
        if (wefti_send(op)->carrying) { /* a device reads its buffers: it ends with that */
            wefti_send(op)->why = why;
            wefti_list_push_back(&box->announced, l);
        } else {
            if (wefti_send(op)->gated)
                wefti_gate_forget(op);
            wefti_outbox_finish(op, why);
        }
    }
    for (wefti_list_t *l; (l = wefti_list_first(&box->confirming));)
        end_confirming(box, wefti_op_of_link(l), why);
}

bool wefti_outbox_busy(const wefti_outbox_t *box)
{
    return !wefti_outbox_nobody_waits(box) || !wefti_list_empty(&box->announced) || !wefti_list_empty(&box->confirming);
}

/* --- onto the lane --------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_outbox_copy(weft_ep_t *ep, weft_op_t *op, void *rec, void *to)
{
    wefti_send_t *s = wefti_send(op);
    if (__builtin_expect(s->carry != NULL, 0)) {
        memcpy(to, s->carry->iov.base, op->len);
        return WEFT_OK;
    }
    weft_status_t st = wefti_pieces_gather(&s->payload, to);
    if (st) {
        *(wefti_word_t *)rec = (wefti_word_t){.kind = WEFTI_REC_NOTHING};
        ep->lane->ops->commit(ep->lane, sizeof(wefti_word_t));
    }
    return st;
}

weft_status_t wefti_outbox_confirm(wefti_outbox_t *box, weft_op_t *op)
{
    return wefti_slots_add(&box->confirms, op, &wefti_send(op)->confirm_id);
}

weft_status_t wefti_outbox_announce(weft_ep_t *ep, weft_op_t *op, void *rec, size_t n, uint64_t cost)
{
    wefti_send_t *s = wefti_send(op);
    wefti_flow_t *f = &box_of(s)->flow;
    wefti_word_t *word = rec, credit = wefti_flow_piggyback(f, word->kind);
    wefti_out_t *out = wefti_out_new(ep->rt);
    if (!out) {
        wefti_flow_unpiggyback(f, credit);
        return WEFT_ERR_NOMEM;
    }
    word->bytes = credit.bytes;
    word->msgs = credit.msgs;
    out->done = announce_done;
    out->user = op;
    wefti_out_set(out, ep, &s->payload, op->len);
    if (s->carry) {
        out->iov = &s->carry->iov;
        out->iov_n = 1;
        out->device = NULL;
    }
    weft_status_t st = wefti_out_announce(out, rec, n);
    if (st) {
        wefti_flow_unpiggyback(f, credit);
        wefti_out_free(ep->rt, out);
        return st;
    }
    s->out = out;
    wefti_flow_spend(f, cost);
    return WEFT_OK;
}

static weft_status_t put(wefti_outbox_t *box, weft_ep_t *ep, weft_op_t *op)
{
    const wefti_send_t *s = wefti_send(op);
    weft_status_t st = ep->lane && !s->carrying && !s->gated ? box->kind->put(ep, op) : WEFT_ERR_AGAIN;
    if (!st)
        wefti_outbox_count(box, op->len + wefti_send(op)->header_len);
    return st;
}

/* It is on its way: put it where it belongs. */
static void placed(wefti_outbox_t *box, weft_op_t *op)
{
    const wefti_send_t *s = wefti_send(op);
    if (s->out)
        wefti_list_push_back(&box->announced, &wefti_opx(op)->link);
    else if (s->confirm_id)
        wefti_list_push_back(&box->confirming, &wefti_opx(op)->link);
    else
        wefti_outbox_finish(op, WEFT_OK);
}

static void carry_done(wefti_carry_t *carry, weft_status_t status)
{
    weft_op_t *op = carry->user;
    wefti_send_t *s = wefti_send(op);
    weft_ep_t *ep = s->ep;
    wefti_outbox_t *box = box_of(s);
    s->carrying = false;
    if (!status)
        status = s->why;
    if (status) {
        wefti_list_remove(&wefti_opx(op)->link);
        wefti_outbox_finish(op, status);
        wefti_ep_drained(ep);
    }
    flush(ep, box); /* it, or what waited behind it */
}

/* A short payload of a device: let its bytes come here, where a record can take them. false: the device is waited for in put(),
 * or the payload is announced. */
static bool carry(weft_op_t *op)
{
    wefti_send_t *s = wefti_send(op);
    weft_runtime_t *rt = s->ep->rt;
    s->carry = wefti_carry_get(rt, op->len);
    if (!s->carry)
        return false;
    s->carry->done = carry_done;
    s->carry->user = op;
    if (wefti_carry_from(rt, s->carry, s->payload.device, wefti_pieces_iov(&s->payload))) {
        wefti_carry_put(rt, s->carry);
        s->carry = NULL;
        return false;
    }
    return s->carrying = true;
}

/* The stream that it waits for has come so far. */
static void opened(weft_op_t *op, weft_status_t status)
{
    wefti_send_t *s = wefti_send(op);
    weft_ep_t *ep = s->ep;
    wefti_outbox_t *box = box_of(s);
    s->gated = false;
    if (status) {
        wefti_list_remove(&wefti_opx(op)->link);
        wefti_outbox_finish(op, status);
        wefti_ep_drained(ep);
    } else if (s->payload.device && carry(op)) {
        return;
    }
    flush(ep, box);
}

weft_status_t wefti_outbox_start(weft_op_t *op)
{
    wefti_send_t *s = wefti_send(op);
    weft_ep_t *ep = s->ep;
    weft_status_t st = wefti_ep_may_wait(ep);
    if (st)
        return st;
    wefti_outbox_t *box = box_of(s);
    if (wefti_gate_closed(op)) {
        if (s->no_wait)
            return WEFT_ERR_AGAIN;
        st = wefti_gate_watch(op, opened);
        if (st)
            return st;
        s->gated = true;
    }
    if (__builtin_expect(s->gated || (s->payload.device && !s->no_wait && carry(op)), 0)) {
        (void)wefti_op_track(op);
        wefti_list_push_back(s->urgent ? &box->urgent : &box->pending, &wefti_opx(op)->link);
        return WEFT_OK;
    }
    bool first = wefti_list_empty(&box->urgent) && (s->urgent || wefti_list_empty(&box->pending));
    st = first ? put(box, ep, op) : WEFT_ERR_AGAIN;
    if (st == WEFT_OK) {
        if (s->out || s->confirm_id)
            (void)wefti_op_track(op); /* without memory for its deadline it still ends with the peer or the endpoint */
        placed(box, op);
        return WEFT_OK;
    }
    if (st != WEFT_ERR_AGAIN || s->no_wait)
        return st;
    st = wefti_op_track(op);
    if (!st)
        wefti_list_push_back(s->urgent ? &box->urgent : &box->pending, &wefti_opx(op)->link);
    return st;
}

/* false: what is left has to wait. */
static bool flush_list(weft_ep_t *ep, wefti_outbox_t *box, wefti_list_t *list)
{
    for (wefti_list_t *l; (l = wefti_list_first(list));) {
        weft_op_t *op = wefti_op_of_link(l);
        weft_status_t st = put(box, ep, op);
        if (st == WEFT_ERR_AGAIN)
            return false;
        wefti_list_remove(l);
        if (st)
            wefti_outbox_finish(op, st);
        else
            placed(box, op);
    }
    return true;
}

static void flush(weft_ep_t *ep, wefti_outbox_t *box)
{
    if (flush_list(ep, box, &box->urgent) && flush_list(ep, box, &box->pending))
        wefti_ep_drained(ep);
}

void wefti_outbox_up(weft_ep_t *ep, wefti_outbox_t *box)
{
    box->sent_before = box->count.sent;
    wefti_list_each(l, &box->pending) /* a header that went ahead on the lane before this one is sent anew */
        wefti_send(wefti_op_of_link(l))->header_sent = 0;
    wefti_flow_up(ep, &box->flow);
    flush(ep, box);
}

void wefti_outbox_space(weft_ep_t *ep, wefti_outbox_t *box)
{
    wefti_flow_space(ep, &box->flow);
    flush(ep, box);
}

bool wefti_outbox_credit(weft_ep_t *ep, wefti_outbox_t *box, const wefti_word_t *word)
{
    if (!wefti_flow_word(ep, &box->flow, word))
        return false;
    if (!wefti_outbox_nobody_waits(box))
        flush(ep, box);
    return true;
}

void wefti_outbox_tell_starving(weft_runtime_t *rt, weft_ep_t *ep, int traffic)
{
    uint32_t at = 0;
    if (ep) {
        wefti_flow_waits(ep, &((wefti_outbox_t *)ep->traffic[traffic])->flow);
        return;
    }
    while ((ep = wefti_ep_next(rt, &at)))
        wefti_flow_waits(ep, &((wefti_outbox_t *)ep->traffic[traffic])->flow);
}

/* --- counting -------------------------------------------------------------------------------------------------------------- */

void wefti_outbox_free(weft_ep_t *ep, wefti_outbox_t *box)
{
    wefti_count_sum(&wefti_conn_of(ep->rt)->gone[box->kind->traffic], &box->count);
    wefti_slots_free(&box->confirms);
}

wefti_count_t wefti_outbox_sum(weft_runtime_t *rt, int traffic)
{
    wefti_count_t sum = wefti_conn_of(rt)->gone[traffic];
    uint32_t at = 0;
    for (weft_ep_t *ep; (ep = wefti_ep_next(rt, &at));)
        wefti_count_sum(&sum, &((wefti_outbox_t *)ep->traffic[traffic])->count);
    return sum;
}
