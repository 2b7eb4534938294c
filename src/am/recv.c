/* am/recv.c - one-shot receives: the whole message, or its header first.
 *
 * A receive is POSTED (waits, on one of the lists of port.c) until it meets a message; then it is complete, or goes on as a
 * fetch. A receive that runs out of memory leaves its message where it was, for the next one. */
#include "am/state.h"

static void describe(weft_op_t *op, const am_msg_t *m)
{
    op->from = m->pub.from;
    op->tag = m->pub.id;
    op->len = m->pub.len;
    op->header_len = m->pub.header_len;
}

static bool meet_take(weft_op_t *op, am_msg_t *m)
{
    if (!m->block)
        m = wefti_am_block(m);
    if (!m) {
        wefti_op_complete(op, WEFT_ERR_NOMEM);
        return false;
    }
    if (m->arrived)
        wefti_am_unhold(m);
    wefti_am_give(m);
    describe(op, m);
    op->buf = &m->pub;
    wefti_op_complete(op, WEFT_OK);
    return true;
}

bool wefti_am_meet(weft_op_t *op, am_msg_t *m)
{
    am_recv_t *r = am_recv(op);
    if (r->take)
        return meet_take(op, m);
    am_into_t into = r->into;
    void *header = r->header;
    uint64_t header_cap = r->header_cap, cap = op->len;
    weft_status_t st = WEFT_OK;
    describe(op, m);
    if (m->pub.len > cap || (header && m->pub.header_len > header_cap)) {
        wefti_am_turn_down(m, WEFT_AM_TOO_LONG);
        wefti_op_complete(op, WEFT_ERR_TRUNCATED);
    } else {
        if (header && m->pub.header_len)
            memcpy(header, m->pub.header, m->pub.header_len);
        am_pull(op)->view = false;
        st = wefti_am_fetch(op, m, into);
        if (st)
            wefti_op_complete(op, st);
    }
    if (st)
        return false;
    if (m->block)
        wefti_am_let_go(m);
    return true;
}

/* --- posting --------------------------------------------------------------------------------------------------------------- */

static weft_status_t recv_start(weft_op_t *op)
{
    am_recv_t *r = am_recv(op);
    am_state_t *as = am_state(wefti_opx(op)->rt);
    weft_ep_t *ep = r->ep;
    weft_status_t st = ep ? wefti_ep_check(ep) : WEFT_OK;
    if (st)
        return st;
    am_msg_t *m = wefti_am_find_held(as, ep, r->id);
    if (m) {
        wefti_am_meet(op, m);
        return WEFT_OK;
    }
    if (ep) {
        st = wefti_ep_may_wait(ep);
        if (st)
            return st;
    }
    st = wefti_op_track(op);
    if (!st)
        st = wefti_am_post(as, op);
    if (st)
        return st;
    if (__builtin_expect(wefti_flow_n_starving(as->rt), 0))
        wefti_outbox_tell_starving(as->rt, ep, WEFTI_TRAFFIC_AM);
    return WEFT_OK;
}

static void recv_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_am_unpost(am_state(wefti_opx(op)->rt), op);
    wefti_ep_complete(am_recv(op)->ep, op, why);
}

static const wefti_op_kind_t recv_kind = {
    .name = "am receive", .start = recv_start, .cancel = recv_cancel, .stops = true, .streams = true};

static weft_status_t prepare(weft_runtime_t *rt, weft_ep_t *ep, uint32_t id, weft_op_t *op)
{
    weft_status_t st = wefti_ep_check_of(ep, &rt);
    if (!st)
        st = wefti_op_prepare(rt, op, !ep && wefti_sharded(rt) ? &wefti_am_any_kind : &recv_kind);
    if (st)
        return st;
    am_recv_t *r = am_recv(op);
    r->ep = ep;
    r->id = id;
    op->buf = NULL;
    return WEFT_OK;
}

weft_status_t weft_am_recv(weft_runtime_t *rt, const weft_am_recv_opts_t *given, weft_op_t *op)
{
    weft_am_recv_opts_t o;
    am_into_t into;
    uint64_t cap;
    if (!rt || !op || !given)
        return wefti_fail(WEFT_ERR_INVALID,
                          "a receive needs a runtime, an operation and options made with WEFT_AM_RECV_OPTS_INIT");
    weft_status_t st = wefti_opts_read(given, &o, sizeof o, "weft_am_recv_opts_t");
    if (st)
        return st;
    if (!o.header && o.header_cap)
        return wefti_fail(WEFT_ERR_INVALID, "the header is NULL with a capacity of %zu", o.header_cap);
    st = wefti_am_into(&into, o.buf, o.cap, o.iov, o.iov_n, o.kind, &cap);
    if (st)
        return st;
    if (!o.buf && !o.iov) {
        into.alloc = true;
        into.kind = o.kind ? o.kind : weft_mem_host();
        cap = o.max_len ? o.max_len : UINT64_C(1) << 30;
    }
    st = prepare(rt, o.ep, o.id, op);
    if (st)
        return st;
    am_recv_t *r = am_recv(op);
    r->take = false;
    r->header = o.header;
    r->header_cap = o.header_cap;
    r->into = into;
    op->len = cap;
    return wefti_op_post(wefti_opx(op)->rt, op); /* the endpoint's shard, or the head */
}

weft_status_t weft_am_take(weft_runtime_t *rt, weft_ep_t *ep, uint32_t id, weft_op_t *op)
{
    if (!rt || !op)
        return wefti_fail(WEFT_ERR_INVALID, "a receive needs a runtime and an operation");
    weft_status_t st = prepare(rt, ep, id, op);
    if (st)
        return st;
    am_recv(op)->take = true;
    return wefti_op_post(wefti_opx(op)->rt, op);
}

/* --- endings --------------------------------------------------------------------------------------------------------------- */

static void end(am_state_t *as, am_recv_t *r, weft_status_t why)
{
    weft_op_t *op = wefti_op_of_scratch(r);
    wefti_am_unpost(as, op);
    wefti_op_complete(op, why);
}

void wefti_am_recv_down(weft_ep_t *ep, weft_status_t why)
{
    for (wefti_list_t *l; (l = wefti_list_first(&am_ep(ep)->posted));)
        end(am_state(ep->rt), wefti_container_of(l, am_recv_t, owner_link), why);
}

void wefti_am_recv_shutdown(am_state_t *as)
{
    for (wefti_list_t *l; (l = wefti_list_first(&as->posted_of_any));)
        end(as, wefti_container_of(l, am_recv_t, all_link), WEFT_ERR_CLOSED);
}
