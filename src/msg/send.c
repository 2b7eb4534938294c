/* msg/send.c - how a tag message becomes a record, or an announcement, and the calls that send. conn/outbox.h has the life of
 * a send. */
#include "msg/state.h"

/* --- onto the lane --------------------------------------------------------------------------------------------------------- */

static weft_status_t put_eager(weft_ep_t *ep, weft_op_t *op)
{
    wefti_flow_t *f = &msg_ep(ep)->box.flow;
    wefti_lane_t *lane = ep->lane;
    uint64_t len = op->len;
    msg_head_t *head = (msg_head_t *)lane->ops->reserve(lane, sizeof *head + len);
    if (!head)
        return WEFT_ERR_AGAIN;
    weft_status_t st = wefti_outbox_copy(ep, op, head, head + 1);
    if (st)
        return st;
    head->word = wefti_flow_piggyback(f, REC_EAGER);
    head->tag = op->tag;
    lane->ops->commit(lane, sizeof *head + len);
    f->credit -= MSG_COST + len;
    return WEFT_OK;
}

static weft_status_t put(weft_ep_t *ep, weft_op_t *op)
{
    msg_ep_t *m = msg_ep(ep);
    wefti_flow_t *f = &m->box.flow;
    uint64_t len = op->len, cost = MSG_COST + len;
    if (len <= m->eager_max && (f->credit >= cost + f->reserve || (!len && f->held_up && f->credit >= cost)))
        return put_eager(ep, op);
    if (len && f->credit >= MSG_COST && (len > m->eager_max || f->held_up)) {
        msg_offer_t offer = {.word.kind = REC_ANNOUNCE, .tag = op->tag};
        return wefti_outbox_announce(ep, op, &offer, sizeof offer, MSG_COST);
    }
    wefti_flow_starved(ep, f);
    return WEFT_ERR_AGAIN;
}

const wefti_outbox_kind_t wefti_msg_sends = {.flow = {.rec_credit = REC_CREDIT, .rec_starved = REC_STARVED, .in_hello = true},
                                             .op = WEFTI_SEND_OP("msg send"),
                                             .traffic = WEFTI_TRAFFIC_MSG,
                                             .put = put};

/* Nearly every small message goes this way: the endpoint is up, no send waits, there is credit and space. False: nothing
 * happened. */
static inline bool send_at_once(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag)
{
    msg_ep_t *m = msg_ep(ep);
    wefti_lane_t *lane = ep->lane;
    if (__builtin_expect(!lane || !wefti_ep_is_up(ep) || len > m->eager_max ||
                             m->box.flow.credit < MSG_COST + len + m->box.flow.reserve || !wefti_list_empty(&m->box.pending),
                         0))
        return false;
    msg_head_t *head = (msg_head_t *)lane->ops->reserve(lane, sizeof *head + len);
    if (__builtin_expect(!head, 0))
        return false;
    head->word = wefti_flow_piggyback(&m->box.flow, REC_EAGER);
    head->tag = tag;
    if (len)
        memcpy(head + 1, buf, len);
    lane->ops->commit(lane, sizeof *head + len);
    m->box.flow.credit -= MSG_COST + len;
    wefti_outbox_count(&m->box, len);
    return true;
}

/* --- posting --------------------------------------------------------------------------------------------------------------- */

static wefti_send_t describe(weft_ep_t *ep, const weft_msg_send_opts_t *o, const weft_mem_kind_t *device)
{
    wefti_send_t s = {.ep = ep, .kind = &wefti_msg_sends, .no_wait = o->no_wait};
    wefti_pieces_set(&s.payload, o->buf, o->len, o->iov, o->iov_n, device);
    s.payload.release = o->release;
    s.payload.release_user = o->release_user;
    return s;
}

/* What may have to wait. Not inline: weft_msg_send() needs no such stack. prepared: op is, on the driver. */
static __attribute__((noinline)) weft_status_t post(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, weft_op_t *op,
                                                    bool prepared)
{
    weft_msg_send_opts_t o = {.buf = buf, .len = len};
    wefti_send_t s = describe(ep, &o, wefti_mem_device_of(buf, NULL));
    return prepared ? wefti_outbox_start_prepared(&s, len, tag, op) : wefti_outbox_post(&s, len, tag, op);
}

/* On the driver, for one that has somebody to tell. */
static weft_status_t send_and_tell(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare(ep->rt, op, &wefti_msg_sends.op);
    if (__builtin_expect(st, 0))
        return st;
    if (__builtin_expect(wefti_op_stopped(op) || !send_at_once(ep, buf, len, tag), 0))
        return post(ep, buf, len, tag, op, true);
    wefti_outbox_describe(op, ep, len, tag);
    wefti_op_begin_done(op);
    return WEFT_OK;
}

weft_status_t weft_msg_send(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, weft_op_t *op)
{
    if (__builtin_expect(!ep || (!buf && len), 0))
        return wefti_fail(WEFT_ERR_INVALID, !ep ? "the endpoint is NULL" : "the buffer is NULL with a length of %zu", len);
    weft_runtime_t *rt = ep->rt, *was;
    const weft_mem_kind_t *device = wefti_mem_device_of(buf, NULL);
    if (__builtin_expect(op && !device && wefti_op_plain(rt, op) && wefti_enter(rt, &was), 1)) {
        bool sent = wefti_may_pass_inbox(rt, was) && send_at_once(ep, buf, len, tag);
        if (sent) {
            wefti_outbox_describe(op, ep, len, tag);
            wefti_op_plain_done(rt, op);
        }
        wefti_leave(rt, was);
        if (__builtin_expect(sent, 1))
            return WEFT_OK;
    }
    if (__builtin_expect(device || !wefti_ep_is_there(ep) || !wefti_enter_to_post(rt, &was), 0))
        return post(ep, buf, len, tag, op, false);
    weft_status_t st = WEFT_OK;
    if (op)
        st = send_and_tell(ep, buf, len, tag, op);
    else if (!send_at_once(ep, buf, len, tag))
        st = post(ep, buf, len, tag, NULL, false);
    wefti_leave(rt, was);
    return st;
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
    wefti_send_t s = describe(ep, &opts, device);
    return wefti_outbox_post(&s, len, opts.tag, op);
}
