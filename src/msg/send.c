/* msg/send.c - sends: from the post to the lane, in order.
 *
 * A send is PENDING (waits for the connection, for credit, or for room on the lane), ANNOUNCED (its payload waits for the peer), or
 * complete. A message that fits a record is copied there and is complete at once. Order is kept because nobody passes the pending list: a
 * send goes straight to the lane only while that list is empty.
 *
 * Cancelling: a pending send ends at once; an announced one is withdrawn, and ends when the fabric has let go of its buffer. */
#include "msg/state.h"

#define DETACHED_MAX (UINT64_C(1) << 20) /* bytes of fire-and-forget copies that may wait */

static void finish(weft_op_t *op, weft_status_t status)
{
    wefti_pieces_release(&msg_send(op)->payload);
    if (__builtin_expect(status, 0))
        wefti_ep_complete(msg_send(op)->ep, op, status);
    else
        wefti_op_complete(op, status);
}

static void announce_done(wefti_out_t *out, weft_status_t status)
{
    weft_op_t *op = (weft_op_t *)out->user;
    msg_send_t *s = msg_send(op);
    weft_ep_t *ep = s->ep;
    wefti_out_free(ep->rt, out);
    wefti_list_remove(&wefti_opx(op)->link);
    if (status == WEFT_ERR_CANCELLED) /* our own doing, or the lane's end: someone noted why */
        status = s->why ? s->why : wefti_ep_why(ep, status);
    else if (status == WEFT_ERR_REFUSED)
        status = WEFT_ERR_CLOSED;
    finish(op, status);
    wefti_ep_drained(ep);
}

static weft_status_t announce(weft_ep_t *ep, weft_op_t *op)
{
    msg_send_t *s = msg_send(op);
    wefti_flow_t *f = &msg_ep(ep)->flow;
    wefti_out_t *out = wefti_out_new(ep->rt);
    if (!out)
        return WEFT_ERR_NOMEM;
    out->done = announce_done;
    out->user = op;
    wefti_out_set(out, ep, &s->payload, op->len);
    msg_offer_t offer = {.word = wefti_flow_piggyback(f, REC_ANNOUNCE), .tag = op->tag};
    weft_status_t st = wefti_out_announce(out, &offer, sizeof offer);
    if (st) {
        wefti_flow_unpiggyback(f, offer.word);
        wefti_out_free(ep->rt, out);
        return st;
    }
    s->out = out;
    f->credit -= MSG_COST;
    return WEFT_OK;
}

/* Put a message on the lane. WEFT_OK: it is there; `copied` tells whether its buffer is free already. WEFT_ERR_AGAIN: not now. */
static weft_status_t put(weft_ep_t *ep, weft_op_t *op, bool *copied)
{
    msg_ep_t *m = msg_ep(ep);
    wefti_flow_t *f = &m->flow;
    wefti_lane_t *lane = ep->lane;
    uint64_t len = op->len, cost = MSG_COST + len;
    if (!lane)
        return WEFT_ERR_AGAIN;
    if (len <= m->eager_max && (f->credit >= cost + f->reserve || (!len && f->held_up && f->credit >= cost))) {
        msg_head_t *head = (msg_head_t *)lane->ops->reserve(lane, sizeof *head + len);
        if (!head)
            return WEFT_ERR_AGAIN;
        weft_status_t st = wefti_pieces_gather(&msg_send(op)->payload, (uint8_t *)(head + 1));
        if (st) { /* the device failed, and something has to go: still here */
            head->word = (wefti_word_t){.kind = WEFTI_REC_NOTHING};
            lane->ops->commit(lane, sizeof head->word);
            return st;
        }
        head->word = wefti_flow_piggyback(f, REC_EAGER);
        head->tag = op->tag;
        lane->ops->commit(lane, sizeof *head + len);
        f->credit -= cost;
        *copied = true;
    } else if (len && f->credit >= MSG_COST && (len > m->eager_max || f->held_up)) {
        weft_status_t st = announce(ep, op);
        if (st)
            return st;
        *copied = false;
    } else {
        wefti_flow_starved(ep, f);
        return WEFT_ERR_AGAIN;
    }
    wefti_count_up(&m->count.sent, 1);
    wefti_count_up(&m->count.bytes_sent, len);
    return WEFT_OK;
}

static weft_status_t send_start(weft_op_t *op)
{
    msg_send_t *s = msg_send(op);
    weft_ep_t *ep = s->ep;
    msg_ep_t *m = msg_ep(ep);
    bool copied = false;
    weft_status_t st = wefti_ep_may_wait(ep);
    if (st)
        return st;
    st = wefti_list_empty(&m->pending) ? put(ep, op, &copied) : WEFT_ERR_AGAIN;
    if (st == WEFT_OK && copied) {
        finish(op, WEFT_OK);
        return WEFT_OK;
    }
    if (st == WEFT_OK) {
        wefti_list_push_back(&m->announced, &wefti_opx(op)->link);
        wefti_op_track(op); /* without memory for its deadline it still ends with the peer or the endpoint */
        return WEFT_OK;
    }
    if (st != WEFT_ERR_AGAIN || s->no_wait)
        return st;
    st = wefti_op_track(op);
    if (st)
        return st;
    wefti_list_push_back(&m->pending, &wefti_opx(op)->link);
    return WEFT_OK;
}

void wefti_msg_send_flush(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    for (wefti_list_t *l; (l = wefti_list_first(&m->pending));) {
        weft_op_t *op = wefti_op_of_link(l);
        bool copied = false;
        weft_status_t st = put(ep, op, &copied);
        if (st == WEFT_ERR_AGAIN)
            return;
        wefti_list_remove(l);
        if (st == WEFT_OK && !copied)
            wefti_list_push_back(&m->announced, l);
        else
            finish(op, st);
    }
    wefti_ep_drained(ep);
}

static void send_cancel(weft_op_t *op, weft_status_t why)
{
    msg_send_t *s = msg_send(op);
    weft_ep_t *ep = s->ep;
    if (s->out) { /* announced */
        if (!s->why)
            s->why = why;
        if (ep->lane)
            wefti_out_withdraw(s->out);
        return;
    }
    wefti_list_remove(&wefti_opx(op)->link);
    finish(op, why);
    wefti_ep_drained(ep);
}

static const wefti_op_kind_t send_kind = {
    .name = "msg send", .start = send_start, .cancel = send_cancel, .failed = finish, .stops = true};
static const wefti_op_kind_t detached_kind = {
    .name = "msg send", .start = send_start, .cancel = send_cancel, .failed = finish, .stops = true, .by_post = true};

void wefti_msg_send_down(weft_ep_t *ep, weft_status_t why)
{
    msg_ep_t *m = msg_ep(ep);
    wefti_list_each(l, &m->announced) {
        msg_send_t *s = msg_send(wefti_op_of_link(l));
        if (!s->why)
            s->why = why;
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&m->pending));)
        finish(wefti_op_of_link(l), why);
}

/* --- posting ------------------------------------------------------------------------------------------------------------------ */

/* The way of nearly every small message: the endpoint is up, nobody waits, there is credit and room. False: take the long way. */
static inline bool send_at_once(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag)
{
    msg_ep_t *m = msg_ep(ep);
    wefti_lane_t *lane = ep->lane;
    if (__builtin_expect(!lane || atomic_load_explicit(&ep->state, memory_order_relaxed) != WEFT_EP_UP || len > m->eager_max ||
                             m->flow.credit < MSG_COST + len + m->flow.reserve || !wefti_list_empty(&m->pending),
                         0))
        return false;
    msg_head_t *head = (msg_head_t *)lane->ops->reserve(lane, sizeof *head + len);
    if (__builtin_expect(!head, 0))
        return false;
    head->word = wefti_flow_piggyback(&m->flow, REC_EAGER);
    head->tag = tag;
    if (len)
        memcpy(head + 1, buf, len);
    lane->ops->commit(lane, sizeof *head + len);
    m->flow.credit -= MSG_COST + len;
    wefti_count_up(&m->count.sent, 1);
    wefti_count_up(&m->count.bytes_sent, len);
    return true;
}

/* A send nobody waits for, with its own copy of the bytes. */
typedef struct detached {
    weft_op_t op;
    msg_state_t *ms;
    size_t len;
    uint8_t bytes[];
} detached_t;

static void detached_done(weft_op_t *op, void *user)
{
    detached_t *d = (detached_t *)user;
    (void)op;
    atomic_fetch_sub_explicit(&d->ms->detached_bytes, d->len + sizeof *d, memory_order_relaxed);
    wefti_free(d);
}

static void fill(weft_op_t *op, weft_ep_t *ep, uint64_t len, uint64_t tag)
{
    msg_send_t *s = msg_send(op);
    op->len = len;
    op->tag = tag;
    op->from = ep->id;
    s->ep = ep;
    s->no_wait = false;
    s->why = WEFT_OK;
    s->out = NULL;
}

/* By a thread that is inside. */
static weft_status_t detach_and_send(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, weft_release_fn rel,
                                     void *rel_user, const weft_iov_t *iov, size_t iov_n, const weft_mem_kind_t *device)
{
    msg_state_t *ms = msg_state(ep->rt);
    size_t copy = rel ? 0 : len;
    uint64_t bytes = copy + sizeof(detached_t);
    if (atomic_fetch_add_explicit(&ms->detached_bytes, bytes, memory_order_relaxed) + bytes > DETACHED_MAX && !rel) {
        atomic_fetch_sub_explicit(&ms->detached_bytes, bytes, memory_order_relaxed);
        return wefti_fail(WEFT_ERR_AGAIN, "%zu bytes without an operation would have to wait, and too many such wait already",
                          len);
    }
    weft_status_t st = WEFT_ERR_NOMEM;
    detached_t *d = (detached_t *)wefti_calloc(1, bytes);
    if (!d)
        goto err_count;
    d->ms = ms;
    d->len = copy;
    d->op.fn = detached_done;
    d->op.user = d;
    st = !rel && len ? wefti_mem_move(device, d->bytes, buf, len) : WEFT_OK;
    if (!st)
        st = wefti_op_prepare(ep->rt, &d->op, &detached_kind);
    if (st)
        goto err_d;
    fill(&d->op, ep, len, tag);
    msg_send_t *s = msg_send(&d->op);
    wefti_pieces_set(&s->payload, rel ? buf : d->bytes, len, iov, iov_n, rel ? device : NULL);
    s->payload.release = rel;
    s->payload.release_user = rel_user;
    st = wefti_op_go_by(ep->rt, &d->op, send_start);
    if (st)
        goto err_d;
    return WEFT_OK;

err_d:
    wefti_free(d);
err_count:
    atomic_fetch_sub_explicit(&ms->detached_bytes, bytes, memory_order_relaxed);
    return st;
}

static weft_status_t send_detached(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, weft_release_fn rel, void *rel_user,
                                   const weft_iov_t *iov, size_t iov_n, const weft_mem_kind_t *device)
{
    weft_runtime_t *rt = ep->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_ep_lost(ep);
    if (!st)
        st = detach_and_send(ep, buf, len, tag, rel, rel_user, iov, iov_n, device);
    wefti_part(rt);
    return st;
}

/* On the driver, for one that has somebody to tell, or that may have to wait. */
static weft_status_t post_here(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, const weft_mem_kind_t *device,
                               weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare_here(ep->rt, op, &send_kind);
    if (__builtin_expect(st, 0))
        return st;
    fill(op, ep, len, tag);
    wefti_pieces_set(&msg_send(op)->payload, buf, len, NULL, 0, device);
    if (!device && !wefti_op_stopped(op) && send_at_once(ep, buf, len, tag)) {
        wefti_op_begin_done(op);
        return WEFT_OK;
    }
    return wefti_op_start(op, send_start);
}

weft_status_t weft_msg_send(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, weft_op_t *op)
{
    if (__builtin_expect(!ep || (!buf && len), 0))
        return wefti_fail(WEFT_ERR_INVALID, !ep ? "the endpoint is NULL" : "the buffer is NULL with a length of %zu", len);
    weft_runtime_t *rt = ep->rt, *was;
    weft_status_t st = WEFT_OK;
    const weft_mem_kind_t *device = wefti_mem_device_of(buf, NULL);
    if (__builtin_expect(op && !device && wefti_op_plain(rt, op) && wefti_enter(rt, &was), 1)) {
        bool sent = wefti_may_pass_inbox(rt, was) && send_at_once(ep, buf, len, tag);
        if (sent) {
            op->len = len;
            op->tag = tag;
            op->from = ep->id;
            wefti_op_plain_done(rt, op);
        }
        wefti_leave(rt, was);
        if (__builtin_expect(sent, 1))
            return WEFT_OK;
    }
    st = wefti_ep_check(ep);
    if (__builtin_expect(st != WEFT_OK, 0))
        return st;
    if (wefti_enter_to_post(rt, &was)) {
        if (op)
            st = post_here(ep, buf, len, tag, device, op);
        else if (device || !send_at_once(ep, buf, len, tag))
            st = send_detached(ep, buf, len, tag, NULL, NULL, NULL, 0, device);
        wefti_leave(rt, was);
        return st;
    }
    if (!op)
        return wefti_gone(rt) ? wefti_fail_gone(rt) : send_detached(ep, buf, len, tag, NULL, NULL, NULL, 0, device);
    st = wefti_op_prepare(rt, op, &send_kind);
    if (st)
        return st;
    fill(op, ep, len, tag);
    wefti_pieces_set(&msg_send(op)->payload, buf, len, NULL, 0, device);
    return wefti_op_inbox(op);
}

weft_status_t weft_msg_send_with(weft_ep_t *ep, const weft_msg_send_opts_t *given, weft_op_t *op)
{
    weft_msg_send_opts_t opts;
    if (!ep || !given)
        return wefti_fail(WEFT_ERR_INVALID, "a send needs an endpoint and options made with WEFT_MSG_SEND_OPTS_INIT");
    weft_status_t st = wefti_opts_read(given, &opts, sizeof opts, "weft_msg_send_opts_t");
    if (st)
        return st;
    uint64_t len = opts.len;
    const weft_mem_kind_t *device = len && !opts.iov ? wefti_mem_device_of(opts.buf, NULL) : NULL;
    if (!opts.iov && !opts.buf && opts.len)
        return wefti_fail(WEFT_ERR_INVALID, "the buffer is NULL with a length of %zu", opts.len);
    if (opts.iov && (st = wefti_pieces_check("a send", false, opts.iov, opts.buf ? 0 : opts.iov_n, NULL, &len, &device)))
        return st;
    if (!op && !opts.release)
        return wefti_fail(WEFT_ERR_INVALID, "a send without an operation needs a release function");
    st = wefti_ep_check(ep);
    if (st)
        return st;
    if (!op)
        return send_detached(ep, opts.buf, len, opts.tag, opts.release, opts.release_user, opts.iov, opts.iov_n, device);
    st = wefti_op_prepare(ep->rt, op, &send_kind);
    if (st)
        return st;
    fill(op, ep, len, opts.tag);
    msg_send_t *s = msg_send(op);
    wefti_pieces_set(&s->payload, opts.buf, opts.len, opts.iov, opts.iov_n, device);
    s->payload.release = opts.release;
    s->payload.release_user = opts.release_user;
    s->no_wait = opts.no_wait;
    return wefti_op_go_by(ep->rt, op, send_start);
}
