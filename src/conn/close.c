/* conn/close.c - closing an endpoint without losing anyone's completion.
 *
 * A close here goes through stages (ep->close_stage):
 *
 *     NOT --close--> DRAIN (sends go on) --none left--> SENT (CLOSE is out) --CLOSE_ACK--> DOWN --all let go--> freed
 *      \--abort, timeout, lost, never up ----------------------------------------------^
 *
 * The peer answers CLOSE with CLOSE_ACK and becomes PEER_CLOSED. Its link LINGERs until the closer's wire ends, because
 * closing a lane drops what was not yet sent. When both close at once, each answers the other's CLOSE; the end of the wire
 * then counts as an answer, too, and op->count is 0.
 *
 * Promise: after a graceful close with WEFT_OK everything that was sent has arrived. The operation always completes once,
 * after the operations on the endpoint and its closed hook, and within close_timeout. Then the endpoint's memory is free.
 * tests/wire/conn_close.c, tests/fault/conn_stop.c, tests/sim. */
#include <string.h>

#include "conn/ep.h"

void wefti_close_tell(wefti_epx_t *ep)
{
    if (ep->told || !ep->was_up)
        return;
    ep->told = true;
    /* A close here has its status; otherwise it was the peer's (OK) or a failure. */
    weft_status_t why = ep->close_stage == WEFTI_CLOSE_DOWN         ? ep->close_status
                        : wefti_ep_state(ep) == WEFT_EP_PEER_CLOSED ? WEFT_OK
                                                                    : ep->pub.why;
    if (ep->hooks.closed)
        ep->hooks.closed(&ep->pub, why, ep->hooks.user);
}

/* From here on it only waits for others to let go. A link that lingers is left to it; one that was up stays until its lane is
 * closed. */
void wefti_close_end(wefti_epx_t *ep, weft_status_t ops_why, weft_status_t status)
{
    wefti_link_t *link = ep->link;
    if (ep->close_stage == WEFTI_CLOSE_DOWN)
        return;
    if (wefti_ep_state(ep) != WEFT_EP_FAILED && !ep->conn->rt->why)
        ep->pub.why_detail = 0; /* it ends in another way than it began to */
    ep->close_stage = WEFTI_CLOSE_DOWN;
    ep->close_status = status;
    ep->dying = false;
    ep->asking = false;
    ep->pub.lane = NULL;
    ep->pub.why = status;
    wefti_timer_stop(ep->conn->rt, &ep->timer);
    wefti_cache_forget(ep);
    wefti_ep_set_state(ep, WEFT_EP_CLOSING);
    wefti_ep_connects_done(ep, ops_why);
    if (link)
        link->deliver = false;
    wefti_ep_down(ep, ops_why, true);
    if (link && link->state < WEFTI_LINK_UP) {
        if (link->wire && link->state != WEFTI_LINK_DIALLING)
            wefti_shake_refuse(link, WEFT_ERR_CLOSED, "the endpoint was closed during the hello");
        wefti_link_detach(link);
    }
    if (link && link->state != WEFTI_LINK_LINGER)
        wefti_link_drop(link);
    if (wefti_list_linked(&ep->ready)) { /* nobody took it from its listener */
        wefti_list_remove(&ep->ready);
        ep->listener->n_ready--;
        ep->listener = NULL;
    }
    wefti_ep_kick(ep);
}

static void finish(wefti_epx_t *ep)
{
    weft_op_t *op = ep->close_op;
    weft_status_t status = ep->close_status;
    uint64_t len = ep->close_len, detail = wefti_ep_detail(&ep->pub, status);
    wefti_ep_set_state(ep, WEFT_EP_GONE);
    wefti_close_tell(ep);
    if (ep->link)
        wefti_link_detach(ep->link); /* it lingers on alone */
    wefti_ep_free(ep);
    if (op) {
        op->len = len;
        wefti_op_complete_why(op, status, detail);
    }
}

static uint64_t unreceived(wefti_epx_t *ep)
{
    uint64_t n = 0;
    EACH_TRAFFIC(ep, t)
        n += t->outbox ? ((const wefti_outbox_t *)ep->pub.traffic[t_i])->unreceived : 0;
    return n;
}

void wefti_close_step(wefti_epx_t *ep)
{
    wefti_link_t *link = ep->link;
    if (ep->close_stage == WEFTI_CLOSE_DRAIN && !ep->dying && link && link->deliver && !wefti_ep_any_sends(ep)) {
        uint64_t sent = 0;
        EACH_TRAFFIC(ep, t)
            sent += t->outbox ? wefti_outbox_sent(ep->pub.traffic[t_i]) : 0;
        ep->close_stage = WEFTI_CLOSE_SENT;
        ep->pub.lane = NULL;
        link->close_count = sent;
        wefti_link_owe(link, WEFTI_OWE_CLOSE);
    }
    if (ep->close_stage != WEFTI_CLOSE_DOWN || (link && link->state != WEFTI_LINK_LINGER) || wefti_ep_any_busy(ep))
        return;
    if (ep->resumer)
        return; /* the step that lets it go comes when the link is gone */
    if (link && unreceived(ep))
        return; /* a peer closed with announcements open: they go with the lane, and need the endpoint until then */
    if (!ep->settled) {
        ep->settled = true; /* completions that are queued behind this work come first */
        wefti_ep_kick(ep);
        return;
    }
    finish(ep);
}

/* --- the other side -------------------------------------------------------------------------------------------------------- */

static void answer(wefti_epx_t *ep, uint64_t count)
{
    ep->link->ack_count = count;
    wefti_link_owe(ep->link, WEFTI_OWE_ACK);
}

/* The peer is done with it: keep the link only until it has read our answer. */
static void linger(wefti_epx_t *ep)
{
    wefti_link_t *link = ep->link;
    weft_runtime_t *rt = ep->conn->rt;
    link->state = WEFTI_LINK_LINGER;
    link->deliver = false;
    ep->pub.lane = NULL;
    wefti_timer_stop(rt, &ep->timer);
    if (ep->dying || wefti_timer_at(rt, &link->timer, wefti_now(rt) + rt->config.close_timeout))
        wefti_link_drop(link); /* its wire has ended already; or no memory to bound the wait, and so none */
    ep->dying = false;
}

void wefti_close_record(wefti_epx_t *ep, uint64_t count)
{
    if (ep->close_stage == WEFTI_CLOSE_SENT) {
        if (ep->peer_closed) {
            wefti_ep_protocol_error(&ep->pub, "a second CLOSE");
            return;
        }
        ep->peer_closed = true;
        answer(ep, 0);
        return;
    }
    if (ep->close_stage == WEFTI_CLOSE_DRAIN) { /* our sends have lost their receiver, and fail; the close does not */
        answer(ep, 0);
        linger(ep);
        wefti_close_end(ep, WEFT_ERR_CLOSED, WEFT_OK);
        return;
    }
    if (wefti_ep_state(ep) != WEFT_EP_UP)
        return;
    uint64_t left = unreceived(ep);
    wefti_debug("%s closed after %llu messages; %llu not received yet", ep->link->where, (unsigned long long)count,
                (unsigned long long)left);
    answer(ep, left);
    wefti_cache_forget(ep);
    ep->pub.lane = NULL;
    ep->link->deliver = false;
    wefti_ep_set_state(ep, WEFT_EP_PEER_CLOSED);
    wefti_ep_down(ep, WEFT_ERR_CLOSED, false);
    linger(ep);
    ep->tell = 2;
    wefti_ep_kick(ep);
}

void wefti_close_ack(wefti_epx_t *ep, uint64_t count)
{
    if (ep->close_stage != WEFTI_CLOSE_SENT) {
        wefti_ep_protocol_error(&ep->pub, "a CLOSE_ACK that answers nothing");
        return;
    }
    ep->close_len = ep->peer_closed ? 0 : count;
    wefti_close_end(ep, WEFT_ERR_CLOSED, WEFT_OK);
}

void wefti_close_lost(wefti_epx_t *ep, weft_status_t why)
{
    if (ep->close_stage == WEFTI_CLOSE_SENT && ep->peer_closed)
        wefti_close_end(ep, WEFT_ERR_CLOSED, WEFT_OK);
    else
        wefti_close_end(ep, why, why);
}

void wefti_close_timeout(wefti_epx_t *ep)
{
    if (ep->close_stage == WEFTI_CLOSE_DOWN || ep->close_stage == WEFTI_CLOSE_NOT)
        return;
    wefti_info("closing the endpoint to %s took too long: forced", ep->link ? ep->link->where : "?");
    wefti_close_end(ep, WEFT_ERR_CANCELLED, WEFT_ERR_TIMEOUT);
}

/* --- the calls ------------------------------------------------------------------------------------------------------------- */

typedef struct close_scratch {
    wefti_epx_t *ep;
    weft_status_t early; /* cancelled before it began: on its way to the driver */
    bool begun;
} close_scratch_t;

/* Someone waits for buffers that only the end of a lingering lane sets free: that is worth more than the answer it lingers
 * for. */
static void hurry(wefti_epx_t *ep)
{
    if (ep->link && ep->link->state == WEFTI_LINK_LINGER && wefti_ep_any_busy(ep))
        wefti_link_drop(ep->link);
}

void wefti_close_begin(wefti_epx_t *ep, bool force)
{
    weft_runtime_t *rt = ep->conn->rt;
    weft_ep_state_t state = wefti_ep_state(ep);
    if (ep->close_stage != WEFTI_CLOSE_NOT) { /* the runtime is closing it */
        wefti_ep_kick(ep);
    } else if (force) {
        wefti_close_end(ep, WEFT_ERR_CANCELLED, WEFT_OK);
        hurry(ep);
    } else if (state == WEFT_EP_UP) {
        wefti_cache_forget(ep);
        ep->close_stage = WEFTI_CLOSE_DRAIN;
        wefti_ep_set_state(ep, WEFT_EP_CLOSING);
        wefti_ep_down(ep, WEFT_ERR_CLOSED, true); /* with the lane still there: receives only */
        if (!ep->dying && wefti_timer_at(rt, &ep->timer, wefti_now(rt) + rt->config.close_timeout))
            wefti_close_end(ep, WEFT_ERR_CANCELLED, WEFT_ERR_NOMEM);
        wefti_ep_kick(ep);
    } else if (state == WEFT_EP_CONNECTING) {
        wefti_close_end(ep, WEFT_ERR_CANCELLED, WEFT_OK);
    } else if (state == WEFT_EP_RECONNECTING) {
        wefti_close_end(ep, WEFT_ERR_PEER, WEFT_ERR_PEER);
    } else { /* PEER_CLOSED, FAILED: only what has arrived is left of it */
        wefti_close_end(ep, WEFT_ERR_CLOSED, state == WEFT_EP_FAILED && ep->was_up ? ep->pub.why : WEFT_OK);
    }
}

static weft_status_t run_close(const wefti_conn_call_t *c)
{
    wefti_epx_t *ep = c->ep;
    weft_op_t *op = c->user_op;
    if (!wefti_ep_is_there(&ep->pub) || ep->owner_closed)
        return wefti_fail(WEFT_ERR_CLOSED, "the endpoint was closed before");
    if (!wefti_cache_release(ep)) { /* others share it */
        if (op)
            wefti_op_complete(op, WEFT_OK);
        return WEFT_OK;
    }
    ep->owner_closed = true;
    ep->close_op = op;
    weft_status_t early = WEFT_OK;
    if (op) {
        early = wefti_op_scratch(op, close_scratch_t)->early;
        wefti_op_scratch(op, close_scratch_t)->begun = true;
        (void)wefti_op_track(op); /* no memory for its own deadline: close_timeout bounds it, too */
    }
    if (ep->starting) { /* its start is on its way to the driver, and must find it */
        ep->closed_early = true;
        ep->closed_hard = c->force;
    } else if (early && ep->close_stage != WEFTI_CLOSE_DOWN) {
        wefti_close_end(ep, WEFT_ERR_CANCELLED, early);
    } else {
        wefti_close_begin(ep, c->force);
    }
    return WEFT_OK;
}

static void close_cancel(weft_op_t *op, weft_status_t why)
{
    close_scratch_t *r = wefti_op_scratch(op, close_scratch_t);
    if (!r->begun) {
        r->early = why;
    } else if (!r->ep->starting) {
        wefti_close_end(r->ep, WEFT_ERR_CANCELLED, why);
        hurry(r->ep);
    }
}

static const wefti_op_kind_t close_kind = {.name = "close", .cancel = close_cancel};

static weft_status_t post_close(weft_ep_t *pub, weft_op_t *op, bool force)
{
    if (!pub)
        return wefti_fail(WEFT_ERR_INVALID, "there is no endpoint to close: ep is NULL");
    weft_runtime_t *rt = pub->rt;
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    weft_status_t st = wefti_ep_check(pub);
    if (!st && op)
        st = wefti_op_prepare(rt, op, &close_kind);
    if (st)
        return st;
    wefti_epx_t *ep = wefti_epx(pub);
    if (op) {
        op->len = 0;
        *wefti_op_scratch(op, close_scratch_t) = (close_scratch_t){.ep = ep};
        wefti_op_begin(op);
    }
    return wefti_conn_do(rt, &(wefti_conn_call_t){.run = run_close, .ep = ep, .user_op = op, .force = force});
}

weft_status_t weft_ep_close(weft_ep_t *ep, weft_op_t *op)
{
    return post_close(ep, op, false);
}

weft_status_t weft_ep_abort(weft_ep_t *ep, weft_op_t *op)
{
    return post_close(ep, op, true);
}
