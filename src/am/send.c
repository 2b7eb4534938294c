/* am/send.c - how an active message becomes records, or an announcement, and the calls that send. conn/outbox.h has the life
 * of a send.
 *
 * A header that does not fit the record of its message goes ahead of it in parts. They cost nothing of the window: the
 * receiver has one buffer for them, and the message that follows pays. */
#include "am/am.h"
#include "am/state.h"

#define URGENT_MAX (WEFTI_REC_MAX - 64) /* header and payload of an urgent message: it fits a record of any lane */

/* --- onto the lane --------------------------------------------------------------------------------------------------------- */

static inline void put_header(uint8_t *to, const void *header, uint32_t len)
{
    if (!len)
        return;
    memset(to + am_pad(len) - 8, 0, 8);
    memcpy(to, header, len);
}

/* The record of a whole small message. in_parts: its header went ahead. */
static weft_status_t put_record(weft_ep_t *ep, weft_op_t *op, bool in_parts)
{
    am_ep_t *e = am_ep(ep);
    const wefti_send_t *s = wefti_send(op);
    uint64_t len = op->len;
    uint32_t header_len = in_parts ? 0 : s->header_len;
    bool confirm = s->flags & F_CONFIRM;
    size_t size = sizeof(am_head_t) + (confirm ? 8u : 0u) + am_pad(header_len) + len;
    uint8_t *at = (uint8_t *)ep->lane->ops->reserve(ep->lane, size);
    if (!at)
        return WEFT_ERR_AGAIN;
    am_head_t *head = (am_head_t *)(void *)at;
    weft_status_t st = wefti_outbox_copy(ep, op, head, at + size - len);
    if (st)
        return st;
    head->word = wefti_flow_piggyback(&e->box.flow, REC_EAGER);
    head->word.flags = s->flags | (in_parts ? F_PARTS : 0);
    head->id = (uint32_t)op->tag;
    head->header_len = s->header_len;
    at += sizeof *head;
    if (confirm) {
        memcpy(at, &s->confirm_id, 8);
        at += 8;
    }
    put_header(at, s->header, header_len);
    ep->lane->ops->commit(ep->lane, size);
    wefti_flow_spend(&e->box.flow, AM_COST + s->header_len + len);
    return WEFT_OK;
}

static weft_status_t put_eager(weft_ep_t *ep, weft_op_t *op, bool in_parts)
{
    wefti_outbox_t *box = &am_ep(ep)->box;
    if (!(wefti_send(op)->flags & F_CONFIRM))
        return put_record(ep, op, in_parts);
    weft_status_t st = wefti_outbox_confirm(box, op);
    if (st)
        return st;
    st = put_record(ep, op, in_parts);
    if (st)
        wefti_outbox_unconfirm(box, op);
    return st;
}

static weft_status_t put_announced(weft_ep_t *ep, weft_op_t *op, bool in_parts)
{
    const wefti_send_t *s = wefti_send(op);
    struct {
        am_announce_t head;
        uint8_t header[AM_HEADER_INLINE];
    } rec;
    uint32_t header_len = in_parts ? 0 : s->header_len;
    rec.head = (am_announce_t){.word.kind = REC_ANNOUNCE, .id = (uint32_t)op->tag, .header_len = s->header_len};
    rec.head.word.flags = (s->flags & F_REPLY) | (in_parts ? F_PARTS : 0);
    if (header_len)
        memcpy(rec.header, s->header, header_len);
    return wefti_outbox_announce(ep, op, &rec, sizeof rec.head + header_len, AM_COST + s->header_len);
}

/* The header ahead of its message, as far as there is space. */
static weft_status_t put_parts(weft_ep_t *ep, wefti_send_t *s)
{
    am_ep_t *e = am_ep(ep);
    while (s->header_sent < s->header_len) {
        uint32_t n = s->header_len - s->header_sent, most = e->record_max - (uint32_t)sizeof(wefti_word_t);
        if (n > most)
            n = most;
        wefti_word_t *word = (wefti_word_t *)ep->lane->ops->reserve(ep->lane, sizeof *word + n);
        if (!word)
            return WEFT_ERR_AGAIN;
        *word = wefti_flow_piggyback(&e->box.flow, REC_HEAD);
        word->flags = s->header_sent ? F_PARTS : 0;
        memcpy(word + 1, (const uint8_t *)s->header + s->header_sent, n);
        ep->lane->ops->commit(ep->lane, sizeof *word + n);
        s->header_sent += n;
    }
    return WEFT_OK;
}

static weft_status_t put(weft_ep_t *ep, weft_op_t *op)
{
    am_ep_t *e = am_ep(ep);
    wefti_send_t *s = wefti_send(op);
    const wefti_flow_t *f = &e->box.flow;
    uint64_t len = op->len, cost = AM_COST + s->header_len + len;
    size_t head = sizeof(am_head_t) + (s->flags & F_CONFIRM ? 8u : 0u);
    bool fits = !len || cost <= AM_EAGER_COST; /* else a window may never have space for all of it */
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
    if (st)
        return st;
    return eager ? put_eager(ep, op, parts) : put_announced(ep, op, parts);

starved:
    wefti_flow_starved(ep, &e->box.flow);
    return WEFT_ERR_AGAIN;
}

const wefti_outbox_kind_t wefti_am_sends = {.flow = {.rec_credit = REC_CREDIT, .rec_starved = REC_STARVED, .counts_msgs = true},
                                            .op = WEFTI_SEND_OP("am send"),
                                            .traffic = WEFTI_TRAFFIC_AM,
                                            .put = put};

/* Nearly every small message goes this way: the endpoint is up, no send waits, there is credit and space. begin: the head of its
 * record is written, and header and payload follow it; NULL: nothing happened. */
static inline __attribute__((always_inline)) am_head_t *begin(weft_ep_t *ep, uint32_t id, uint32_t header_len, size_t len)
{
    am_ep_t *e = am_ep(ep);
    wefti_lane_t *lane = ep->lane;
    if (__builtin_expect(
            !lane || !wefti_ep_is_up(ep) || len > e->record_max || sizeof(am_head_t) + am_pad(header_len) + len > e->record_max ||
                !wefti_flow_can(&e->box.flow, AM_COST + header_len + (uint64_t)len, false) || !wefti_outbox_nobody_waits(&e->box),
            0))
        return NULL;
    am_head_t *head = (am_head_t *)lane->ops->reserve(lane, sizeof *head + am_pad(header_len) + len);
    if (__builtin_expect(!head, 0))
        return NULL;
    /* Two stores of eight bytes, which the receiver loads as such: on one core a load of what several stores made has to wait. */
    const wefti_word_t word = wefti_flow_piggyback(&e->box.flow, REC_EAGER);
    const uint64_t first = word.kind | (uint64_t)word.msgs << 16 | (uint64_t)word.bytes << 32,
                   second = id | (uint64_t)header_len << 32;
    memcpy(&head->word, &first, sizeof first);
    memcpy(&head->id, &second, sizeof second);
    return head;
}

static inline void end(weft_ep_t *ep, uint32_t header_len, size_t len)
{
    am_ep_t *e = am_ep(ep);
    ep->lane->ops->commit(ep->lane, sizeof(am_head_t) + am_pad(header_len) + len);
    wefti_flow_spend(&e->box.flow, AM_COST + header_len + (uint64_t)len);
    wefti_outbox_count(&e->box, len + header_len);
}

/* False: nothing happened. */
static inline bool send_at_once(weft_ep_t *ep, uint32_t id, const void *header, uint32_t header_len, const void *buf, size_t len)
{
    am_head_t *head = __builtin_expect(len && wefti_mem_device_of(buf, NULL), 0) ? NULL : begin(ep, id, header_len, len);
    if (__builtin_expect(!head, 0))
        return false;
    put_header((uint8_t *)(head + 1), header, header_len);
    if (len)
        memcpy((uint8_t *)(head + 1) + am_pad(header_len), buf, len);
    end(ep, header_len, len);
    return true;
}

bool wefti_am_send_now(weft_ep_t *ep, uint32_t id, const void *header, uint32_t header_len)
{
    return !wefti_closing(ep->rt) && send_at_once(ep, id, header, header_len, NULL, 0);
}

void *wefti_am_begin_now(weft_ep_t *ep, uint32_t id, uint32_t header_len)
{
    am_head_t *head = __builtin_expect(wefti_closing(ep->rt), 0) ? NULL : begin(ep, id, header_len, 0);
    return head ? head + 1 : NULL;
}

void wefti_am_end_now(weft_ep_t *ep, uint32_t header_len)
{
    end(ep, header_len, 0);
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

static wefti_send_t describe(weft_ep_t *ep, const weft_am_send_opts_t *o, const weft_mem_kind_t *device)
{
    wefti_send_t s = {.ep = ep,
                      .kind = &wefti_am_sends,
                      .header = o->header,
                      .header_len = (uint32_t)o->header_len,
                      .urgent = o->urgent,
                      .no_wait = o->no_wait,
                      .flags = (uint8_t)((o->confirm ? F_CONFIRM : 0) | (o->reply ? F_REPLY : 0))};
    wefti_pieces_set(&s.payload, o->buf, o->len, o->iov, o->iov_n, device);
    s.payload.release = o->release;
    s.payload.release_user = o->release_user;
    return s;
}

/* What could not be sent at once, or has somebody to tell. Not inline: weft_am_send() needs no such stack. */
static __attribute__((noinline)) weft_status_t post(weft_ep_t *ep, const weft_am_send_opts_t *o, weft_op_t *op)
{
    weft_runtime_t *rt = ep->rt, *was;
    const weft_mem_kind_t *device = o->len ? wefti_mem_device_of(o->buf, NULL) : NULL;
    if (device || !op || !wefti_ep_is_there(ep) || !wefti_enter_to_post(rt, &was)) {
        wefti_send_t s = describe(ep, o, device);
        return wefti_outbox_post(&s, o->len, o->id, op);
    }
    weft_status_t st = wefti_op_prepare(rt, op, &wefti_am_sends.op);
    if (!st && !wefti_op_stopped(op) && send_at_once(ep, o->id, o->header, (uint32_t)o->header_len, o->buf, o->len)) {
        wefti_outbox_describe(op, ep, o->len, o->id);
        op->reason = 0;
        wefti_op_begin_done(op);
    } else if (!st) {
        wefti_send_t s = describe(ep, o, NULL);
        st = wefti_outbox_start_prepared(&s, o->len, o->id, op);
    }
    wefti_leave(rt, was);
    return st;
}

weft_status_t weft_am_send(weft_ep_t *ep, uint32_t id, const void *header, size_t header_len, const void *buf, size_t len,
                           weft_op_t *op)
{
    weft_runtime_t *was;
    if (__builtin_expect(
            !ep || id == WEFT_AM_ANY_ID || (!header && header_len) || (!buf && len) || header_len > WEFT_AM_HEADER_MAX, 0))
        return check(ep, id, header, header_len, buf, len);
    weft_runtime_t *rt = ep->rt;
    if (__builtin_expect((op ? wefti_op_plain(rt, op) : !rt->closing && !wefti_gone(rt)) && wefti_enter(rt, &was), 1)) {
        bool sent = wefti_may_pass_inbox(rt, was) && send_at_once(ep, id, header, (uint32_t)header_len, buf, len);
        if (sent && op) {
            wefti_outbox_describe(op, ep, len, id);
            op->reason = 0;
            wefti_op_plain_done(rt, op);
        }
        wefti_leave(rt, was);
        if (__builtin_expect(sent, 1))
            return WEFT_OK;
    }
    weft_am_send_opts_t o = {.id = id, .header = header, .header_len = header_len, .buf = buf, .len = len};
    return post(ep, &o, op);
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
    if (!op && o.confirm)
        return wefti_fail(WEFT_ERR_INVALID, "a send that is to be confirmed needs an operation");
    if (o.urgent && o.header_len + len > URGENT_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "an urgent message has at most %d bytes of header and payload, not %zu",
                          (int)URGENT_MAX, (size_t)(o.header_len + len));
    wefti_send_t s = describe(ep, &o, device);
    return wefti_outbox_post(&s, len, o.id, op);
}
