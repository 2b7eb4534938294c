/* am/send.c - sends: from the post to the lane, in order.
 *
 * A send is PENDING (waits for the connection, for the window, or for room on the lane), ANNOUNCED (its payload waits for the peer),
 * CONFIRMING (on its way, and its answer is awaited), or complete. A message that fits a record is copied there and is complete at once
 * unless an answer is wanted. Order is kept because nobody passes the pending list, except those that asked to: the urgent, which have a
 * list of their own.
 *
 * A header that does not fit the record of its message goes ahead of it in parts. They cost nothing of the window: the receiver has one
 * buffer for them, and the message that follows pays.
 *
 * Cancelling: a pending send ends at once, and so does a confirming one, whose buffers are free; an announced one is withdrawn, and ends
 * when the fabric has let go of its buffer. */
#include "am/am.h"
#include "am/state.h"

#define DETACHED_MAX (UINT64_C(1) << 20) /* bytes of fire-and-forget copies that may wait */
#define URGENT_MAX (WEFTI_REC_MAX - 64)  /* header and payload of an urgent message: it fits a record of any lane */

/* --- endings ------------------------------------------------------------------------------------------------------------------ */

static void finish(weft_op_t *op, weft_status_t status)
{
    wefti_pieces_release(&am_send(op)->payload);
    if (__builtin_expect(status, 0))
        wefti_ep_complete(am_send(op)->ep, op, status);
    else
        wefti_op_complete(op, status);
}

static void announce_done(wefti_out_t *out, weft_status_t status)
{
    weft_op_t *op = (weft_op_t *)out->user;
    am_send_t *s = am_send(op);
    weft_ep_t *ep = s->ep;
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_out_free(ep->rt, out);
    if (status == WEFT_ERR_CANCELLED) /* our own doing, or the lane's end: someone noted why */
        status = s->why ? s->why : wefti_ep_why(ep, status);
    else if (status == WEFT_ERR_REFUSED)
        status = op->reason ? WEFT_ERR_REJECTED : WEFT_ERR_CLOSED;
    finish(op, status);
    wefti_ep_drained(ep);
}

static void unconfirm(weft_op_t *op)
{
    am_send_t *s = am_send(op);
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_slots_remove(&am_ep(s->ep)->confirms, s->confirm_id);
    s->confirm_id = 0;
}

void wefti_am_answered(weft_ep_t *ep, const am_answer_t *answer)
{
    if (!(answer->word.flags & F_CONFIRM)) {
        /* It refuses the payload next; one that is taken needs no answer. */
        wefti_out_t *out = wefti_out_find(ep, answer->about);
        if (out && out->done == announce_done)
            ((weft_op_t *)out->user)->reason = answer->reason;
        return;
    }
    weft_op_t *op = (weft_op_t *)wefti_slots_get(&am_ep(ep)->confirms, answer->about);
    if (!op)
        return; /* it was cancelled */
    unconfirm(op);
    op->reason = answer->reason;
    finish(op, answer->reason ? WEFT_ERR_REJECTED : WEFT_OK);
    wefti_ep_drained(ep);
}

void wefti_am_send_down(weft_ep_t *ep, weft_status_t why)
{
    am_ep_t *e = am_ep(ep);
    wefti_list_each(l, &e->announced) {
        am_send_t *s = am_send(wefti_op_of_link(l));
        if (!s->why)
            s->why = why;
    }
    wefti_list_splice(&e->urgent, &e->pending);
    for (wefti_list_t *l; (l = wefti_list_pop(&e->urgent));)
        finish(wefti_op_of_link(l), why);
    for (wefti_list_t *l; (l = wefti_list_first(&e->confirming));) {
        weft_op_t *op = wefti_op_of_link(l);
        unconfirm(op);
        finish(op, why);
    }
}

/* --- onto the lane ------------------------------------------------------------------------------------------------------------- */

enum { PUT_DONE, PUT_ANNOUNCED, PUT_CONFIRMING };

/* The record of a whole small message. in_parts: its header went ahead. */
static weft_status_t put_eager(weft_ep_t *ep, weft_op_t *op, bool in_parts, int *how)
{
    am_ep_t *e = am_ep(ep);
    am_send_t *s = am_send(op);
    uint64_t len = op->len;
    uint32_t header_len = in_parts ? 0 : s->header_len;
    bool confirm = s->flags & F_CONFIRM;
    size_t size = sizeof(am_head_t) + (confirm ? 8u : 0u) + am_pad(header_len) + len;
    weft_status_t st = WEFT_OK;
    if (confirm && !s->confirm_id && (st = wefti_slots_add(&e->confirms, op, &s->confirm_id)))
        return st;
    uint8_t *at = (uint8_t *)ep->lane->ops->reserve(ep->lane, size);
    if (!at) {
        if (confirm) {
            wefti_slots_remove(&e->confirms, s->confirm_id);
            s->confirm_id = 0;
        }
        return WEFT_ERR_AGAIN;
    }
    am_head_t *head = (am_head_t *)(void *)at;
    st = wefti_pieces_gather(&s->payload, at + size - len);
    if (st) { /* the device failed, and something has to take the place that was reserved */
        head->word = (wefti_word_t){.kind = WEFTI_REC_NOTHING};
        ep->lane->ops->commit(ep->lane, sizeof head->word);
        if (confirm) {
            wefti_slots_remove(&e->confirms, s->confirm_id);
            s->confirm_id = 0;
        }
        return st;
    }
    head->word = wefti_flow_piggyback(&e->flow, REC_EAGER);
    head->word.flags = s->flags | (in_parts ? F_PARTS : 0);
    head->id = (uint32_t)op->tag;
    head->header_len = s->header_len;
    at += sizeof *head;
    if (confirm) {
        memcpy(at, &s->confirm_id, 8);
        at += 8;
    }
    if (header_len) {
        memset(at + am_pad(header_len) - 8, 0, 8);
        memcpy(at, s->header, header_len);
    }
    ep->lane->ops->commit(ep->lane, size);
    wefti_flow_spend(&e->flow, AM_COST + s->header_len + len);
    *how = confirm ? PUT_CONFIRMING : PUT_DONE;
    return WEFT_OK;
}

static weft_status_t put_announced(weft_ep_t *ep, weft_op_t *op, bool in_parts, int *how)
{
    am_ep_t *e = am_ep(ep);
    am_send_t *s = am_send(op);
    struct {
        am_announce_t head;
        uint8_t header[AM_HEADER_INLINE];
    } rec;
    uint32_t header_len = in_parts ? 0 : s->header_len;
    wefti_out_t *out = wefti_out_new(ep->rt);
    if (!out)
        return WEFT_ERR_NOMEM;
    rec.head = (am_announce_t){
        .word = wefti_flow_piggyback(&e->flow, REC_ANNOUNCE), .id = (uint32_t)op->tag, .header_len = s->header_len};
    wefti_word_t word = rec.head.word;
    rec.head.word.flags = (s->flags & F_REPLY) | (in_parts ? F_PARTS : 0);
    if (header_len)
        memcpy(rec.header, s->header, header_len);
    out->done = announce_done;
    out->user = op;
    wefti_out_set(out, ep, &s->payload, op->len);
    weft_status_t st = wefti_out_announce(out, &rec, sizeof rec.head + header_len);
    if (st) {
        wefti_flow_unpiggyback(&e->flow, word);
        wefti_out_free(ep->rt, out);
        return st;
    }
    s->out = out;
    wefti_flow_spend(&e->flow, AM_COST + s->header_len);
    *how = PUT_ANNOUNCED;
    return WEFT_OK;
}

/* The header ahead of its message, as far as there is room. */
static weft_status_t put_parts(weft_ep_t *ep, am_send_t *s)
{
    am_ep_t *e = am_ep(ep);
    while (s->header_sent < s->header_len) {
        uint32_t n = s->header_len - s->header_sent, most = e->record_max - (uint32_t)sizeof(wefti_word_t);
        if (n > most)
            n = most;
        wefti_word_t *word = (wefti_word_t *)ep->lane->ops->reserve(ep->lane, sizeof *word + n);
        if (!word)
            return WEFT_ERR_AGAIN;
        *word = wefti_flow_piggyback(&e->flow, REC_HEAD);
        word->flags = s->header_sent ? F_PARTS : 0;
        memcpy(word + 1, (const uint8_t *)s->header + s->header_sent, n);
        ep->lane->ops->commit(ep->lane, sizeof *word + n);
        s->header_sent += n;
    }
    return WEFT_OK;
}

/* Put a message on the lane. WEFT_ERR_AGAIN: not now. */
static weft_status_t put(weft_ep_t *ep, weft_op_t *op, int *how)
{
    am_ep_t *e = am_ep(ep);
    am_send_t *s = am_send(op);
    const wefti_flow_t *f = &e->flow;
    uint64_t len = op->len, cost = AM_COST + s->header_len + len;
    if (!ep->lane)
        return WEFT_ERR_AGAIN;
    size_t head = sizeof(am_head_t) + (s->flags & F_CONFIRM ? 8u : 0u);
    bool fits = !len || cost <= AM_EAGER_COST; /* else a window may never have room for all of it */
    bool whole = fits && head + am_pad(s->header_len) + len <= e->record_max; /* it fits one record, header and all */
    bool parts = !whole && (s->header_len > AM_HEADER_INLINE || !len);
    bool eager = parts ? fits && head + len <= e->record_max : whole;
    /* The last of the window is for announcements and urgent ones, and for others when the peer says that it is all there is. */
    if (eager && !s->urgent && !wefti_flow_can(f, cost, false)) {
        bool announce = f->held_up && len && !(s->flags & F_CONFIRM);
        if (!announce && !(f->held_up && wefti_flow_can(f, cost, true)))
            goto starved;
        if (announce) {
            eager = false;
            parts = s->header_len > AM_HEADER_INLINE;
        }
    }
    if (!wefti_flow_can(f, AM_COST + s->header_len + (eager ? len : 0), true))
        goto starved;
    weft_status_t st = parts ? put_parts(ep, s) : WEFT_OK;
    if (!st)
        st = eager ? put_eager(ep, op, parts, how) : put_announced(ep, op, parts, how);
    if (st)
        return st;
    wefti_count_up(&e->count.sent, 1);
    wefti_count_up(&e->count.bytes_sent, len + s->header_len);
    return WEFT_OK;

starved:
    wefti_flow_starved(ep, &e->flow);
    return WEFT_ERR_AGAIN;
}

/* It is on its way: put it where it belongs. */
static void placed(weft_ep_t *ep, weft_op_t *op, int how)
{
    am_ep_t *e = am_ep(ep);
    if (how == PUT_DONE)
        finish(op, WEFT_OK);
    else
        wefti_list_push_back(how == PUT_ANNOUNCED ? &e->announced : &e->confirming, &wefti_opx(op)->link);
}

static weft_status_t send_start(weft_op_t *op)
{
    am_send_t *s = am_send(op);
    weft_ep_t *ep = s->ep;
    am_ep_t *e = am_ep(ep);
    int how = PUT_DONE;
    weft_status_t st = wefti_ep_may_wait(ep);
    if (st)
        return st;
    bool first = wefti_list_empty(&e->urgent) && (s->urgent || wefti_list_empty(&e->pending));
    st = first ? put(ep, op, &how) : WEFT_ERR_AGAIN;
    if (st == WEFT_OK) {
        if (how != PUT_DONE)
            wefti_op_track(op); /* without memory for its deadline it still ends with the peer or the endpoint */
        placed(ep, op, how);
        return WEFT_OK;
    }
    if (st != WEFT_ERR_AGAIN || s->no_wait)
        return st;
    st = wefti_op_track(op);
    if (st)
        return st;
    wefti_list_push_back(s->urgent ? &e->urgent : &e->pending, &wefti_opx(op)->link);
    return WEFT_OK;
}

/* false: what is left has to wait. */
static bool flush_list(weft_ep_t *ep, wefti_list_t *list)
{
    for (wefti_list_t *l; (l = wefti_list_first(list));) {
        weft_op_t *op = wefti_op_of_link(l);
        int how = PUT_DONE;
        weft_status_t st = put(ep, op, &how);
        if (st == WEFT_ERR_AGAIN)
            return false;
        wefti_list_remove(l);
        if (st == WEFT_OK)
            placed(ep, op, how);
        else
            finish(op, st);
    }
    return true;
}

void wefti_am_send_flush(weft_ep_t *ep)
{
    if (flush_list(ep, &am_ep(ep)->urgent) && flush_list(ep, &am_ep(ep)->pending))
        wefti_ep_drained(ep);
}

static void send_cancel(weft_op_t *op, weft_status_t why)
{
    am_send_t *s = am_send(op);
    weft_ep_t *ep = s->ep;
    if (s->out) {
        if (!s->why)
            s->why = why;
        if (ep->lane)
            wefti_out_withdraw(s->out);
        return;
    }
    if (s->confirm_id)
        unconfirm(op);
    else
        wefti_list_remove(&wefti_opx(op)->link);
    finish(op, why);
    wefti_ep_drained(ep);
}

static const wefti_op_kind_t send_kind = {
    .name = "am send", .start = send_start, .cancel = send_cancel, .failed = finish, .stops = true};
static const wefti_op_kind_t detached_kind = {
    .name = "am send", .start = send_start, .cancel = send_cancel, .failed = finish, .stops = true, .by_post = true};

/* --- posting ------------------------------------------------------------------------------------------------------------------ */

/* The way of nearly every small message: the endpoint is up, nobody waits, there is credit and room. False: take the long way. */
static inline bool send_at_once(weft_ep_t *ep, uint32_t id, const void *header, uint32_t header_len, const void *buf, size_t len)
{
    am_ep_t *e = am_ep(ep);
    wefti_lane_t *lane = ep->lane;
    uint64_t cost = AM_COST + header_len + (uint64_t)len;
    if (__builtin_expect(!lane || atomic_load_explicit(&ep->state, memory_order_relaxed) != WEFT_EP_UP || len > e->record_max ||
                             sizeof(am_head_t) + am_pad(header_len) + len > e->record_max ||
                             !wefti_flow_can(&e->flow, cost, false) || !wefti_list_empty(&e->pending) ||
                             !wefti_list_empty(&e->urgent) || (len && wefti_mem_device_of(buf, NULL)),
                         0))
        return false;
    size_t size = sizeof(am_head_t) + am_pad(header_len) + len;
    am_head_t *head = (am_head_t *)lane->ops->reserve(lane, size);
    if (__builtin_expect(!head, 0))
        return false;
    head->word = wefti_flow_piggyback(&e->flow, REC_EAGER);
    head->id = id;
    head->header_len = header_len;
    uint8_t *at = (uint8_t *)(head + 1);
    if (header_len) {
        memset(at + am_pad(header_len) - 8, 0, 8);
        memcpy(at, header, header_len);
        at += am_pad(header_len);
    }
    if (len)
        memcpy(at, buf, len);
    lane->ops->commit(lane, size);
    wefti_flow_spend(&e->flow, cost);
    wefti_count_up(&e->count.sent, 1);
    wefti_count_up(&e->count.bytes_sent, len + header_len);
    return true;
}

bool wefti_am_send_now(weft_ep_t *ep, uint32_t id, const void *header, uint32_t header_len)
{
    return !ep->rt->closing && send_at_once(ep, id, header, header_len, NULL, 0);
}

static void fill(weft_op_t *op, weft_ep_t *ep, const weft_am_send_opts_t *o, uint64_t len, const weft_mem_kind_t *device)
{
    am_send_t *s = am_send(op);
    *s = (am_send_t){.ep = ep,
                     .header = o->header,
                     .header_len = (uint32_t)o->header_len,
                     .urgent = o->urgent,
                     .no_wait = o->no_wait,
                     .flags = (uint8_t)((o->confirm ? F_CONFIRM : 0) | (o->reply ? F_REPLY : 0))};
    wefti_pieces_set(&s->payload, o->buf, o->len, o->iov, o->iov_n, device);
    s->payload.release = o->release;
    s->payload.release_user = o->release_user;
    op->len = len;
    op->tag = o->id;
    op->from = ep->id;
    op->reason = 0;
}

/* A send nobody waits for. It has its own copy of the header, and of the payload or, where it owns that, of the list of its pieces. */
typedef struct detached {
    weft_op_t op;
    am_state_t *as;
    uint64_t bytes;
    _Alignas(8) uint8_t copy[];
} detached_t;

static void detached_done(weft_op_t *op, void *user)
{
    detached_t *d = (detached_t *)user;
    (void)op;
    atomic_fetch_sub_explicit(&d->as->detached_bytes, d->bytes, memory_order_relaxed);
    wefti_free(d);
}

/* Lay the copies into d, and let o and device be of them. */
static weft_status_t detach(detached_t *d, weft_am_send_opts_t *o, uint64_t len, const weft_mem_kind_t **device)
{
    uint8_t *at = d->copy;
    if (o->release && o->iov) {
        o->iov = (const weft_iov_t *)memcpy(at, o->iov, o->iov_n * sizeof *o->iov);
        at += o->iov_n * sizeof *o->iov;
    } else if (!o->release && len) {
        wefti_pieces_t all;
        wefti_pieces_set(&all, o->buf, o->len, o->iov, o->iov_n, *device);
        weft_status_t st = wefti_pieces_gather(&all, at);
        if (st)
            return st;
        o->iov = NULL;
        o->buf = at;
        o->len = len;
        *device = NULL;
        at += len;
    }
    if (o->header_len)
        o->header = memcpy(at, o->header, o->header_len);
    return WEFT_OK;
}

/* By a thread that is inside. */
static weft_status_t detach_and_send(weft_ep_t *ep, weft_am_send_opts_t o, uint64_t len, const weft_mem_kind_t *device)
{
    am_state_t *as = am_state(ep->rt);
    uint64_t bytes = sizeof(detached_t) + o.header_len + (!o.release ? len : o.iov ? o.iov_n * sizeof *o.iov : 0);
    if (!o.release && bytes > DETACHED_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "%zu bytes are too many to be copied for a send without an operation; use one",
                          (size_t)len);
    if (atomic_fetch_add_explicit(&as->detached_bytes, bytes, memory_order_relaxed) + bytes > DETACHED_MAX && !o.release) {
        atomic_fetch_sub_explicit(&as->detached_bytes, bytes, memory_order_relaxed);
        return wefti_fail(WEFT_ERR_AGAIN, "%zu bytes without an operation would have to wait, and too many such wait already",
                          (size_t)len);
    }
    weft_status_t st = WEFT_ERR_NOMEM;
    detached_t *d = (detached_t *)wefti_malloc(bytes);
    if (!d)
        goto err_count;
    memset(d, 0, sizeof *d);
    d->as = as;
    d->bytes = bytes;
    d->op.fn = detached_done;
    d->op.user = d;
    st = detach(d, &o, len, &device);
    if (!st)
        st = wefti_op_prepare(ep->rt, &d->op, &detached_kind);
    if (st)
        goto err_d;
    fill(&d->op, ep, &o, len, device);
    st = wefti_op_go_by(ep->rt, &d->op, send_start);
    if (st)
        goto err_d;
    return WEFT_OK;

err_d:
    wefti_free(d);
err_count:
    atomic_fetch_sub_explicit(&as->detached_bytes, bytes, memory_order_relaxed);
    return st;
}

static weft_status_t send_detached(weft_ep_t *ep, const weft_am_send_opts_t *o, uint64_t len, const weft_mem_kind_t *device)
{
    weft_runtime_t *rt = ep->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_ep_lost(ep);
    if (!st)
        st = detach_and_send(ep, *o, len, device);
    wefti_part(rt);
    return st;
}

static weft_status_t check(const weft_ep_t *ep, uint32_t id, const void *header, size_t header_len, const void *buf, size_t len)
{
    if (!ep || id == WEFT_AM_ANY_ID)
        return wefti_fail(WEFT_ERR_INVALID, ep ? "WEFT_AM_ANY_ID is no id of a message" : "the endpoint is NULL");
    if ((!header && header_len) || (!buf && len))
        return wefti_fail(WEFT_ERR_INVALID, "the %s is NULL with a length of %zu", header || !header_len ? "buffer" : "header",
                          header || !header_len ? len : header_len);
    if (header_len > WEFT_AM_HEADER_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "the header has %zu bytes and at most %d are carried; put the rest into the payload",
                          header_len, WEFT_AM_HEADER_MAX);
    return WEFT_OK;
}

weft_status_t weft_am_send(weft_ep_t *ep, uint32_t id, const void *header, size_t header_len, const void *buf, size_t len,
                           weft_op_t *op)
{
    weft_status_t st = WEFT_OK;
    weft_runtime_t *was;
    if (__builtin_expect(
            !ep || id == WEFT_AM_ANY_ID || (!header && header_len) || (!buf && len) || header_len > WEFT_AM_HEADER_MAX, 0))
        return check(ep, id, header, header_len, buf, len);
    weft_runtime_t *rt = ep->rt;
    if (__builtin_expect((op ? wefti_op_plain(rt, op) : !rt->closing && !wefti_gone(rt)) && wefti_enter(rt, &was), 1)) {
        bool sent = wefti_may_pass_inbox(rt, was) && send_at_once(ep, id, header, (uint32_t)header_len, buf, len);
        if (sent && op) {
            op->len = len;
            op->tag = id;
            op->from = ep->id;
            op->reason = 0;
            wefti_op_plain_done(rt, op);
        }
        wefti_leave(rt, was);
        if (__builtin_expect(sent, 1))
            return WEFT_OK;
    }
    st = wefti_ep_check(ep);
    if (st)
        return st;
    weft_am_send_opts_t o = {.size = sizeof o, .id = id, .header = header, .header_len = header_len, .buf = buf, .len = len};
    const weft_mem_kind_t *device = len ? wefti_mem_device_of(buf, NULL) : NULL;
    if (!op)
        return send_detached(ep, &o, len, device);
    st = wefti_op_prepare(rt, op, &send_kind);
    if (st)
        return st;
    fill(op, ep, &o, len, device);
    return wefti_op_go_by(rt, op, send_start);
}

weft_status_t weft_am_send_with(weft_ep_t *ep, const weft_am_send_opts_t *given, weft_op_t *op)
{
    weft_am_send_opts_t o;
    if (!given)
        return wefti_fail(WEFT_ERR_INVALID, "a send needs options made with WEFT_AM_SEND_OPTS_INIT");
    weft_status_t st = wefti_opts_read(given, &o, sizeof o, "weft_am_send_opts_t");
    if (!st)
        st = check(ep, o.id, o.header, o.header_len, o.iov ? "" : o.buf, o.iov ? 0 : o.len);
    if (st)
        return st;
    uint64_t len = o.len;
    const weft_mem_kind_t *device = len && !o.iov ? wefti_mem_device_of(o.buf, o.kind) : NULL;
    if (o.iov && (st = wefti_pieces_check("a send", false, o.iov, o.buf ? 0 : o.iov_n, o.kind, &len, &device)))
        return st;
    st = wefti_ep_check(ep);
    if (st)
        return st;
    if (!op && o.confirm)
        return wefti_fail(WEFT_ERR_INVALID, "a send that is to be confirmed needs an operation");
    if (o.urgent && o.header_len + len > URGENT_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "an urgent message has at most %d bytes of header and payload, not %zu",
                          (int)URGENT_MAX, (size_t)(o.header_len + len));
    if (!op)
        return send_detached(ep, &o, len, device);
    st = wefti_op_prepare(ep->rt, op, &send_kind);
    if (st)
        return st;
    fill(op, ep, &o, len, device);
    return wefti_op_go_by(ep->rt, op, send_start);
}
