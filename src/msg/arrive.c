/* msg/arrive.c - what comes from the peer: messages that meet a receive, and messages that have to wait for one.
 *
 * The peer wrote every field read here, and may still change it in shared memory: each is read once (base/wild.h). A record
 * that is too short, of an unknown kind, or beyond the window we granted fails the endpoint with WEFT_ERR_PROTOCOL; nothing
 * else happens. */
#include "msg/state.h"

#define SPARE_BYTES 256 /* payload of the blocks kept for reuse */
#define SPARE_MAX 1024  /* and how many of them */

static weft_msg_t *block_new(msg_state_t *ms, uint64_t bytes)
{
    bool spare = bytes <= SPARE_BYTES;
    weft_msg_t *msg =
        (weft_msg_t *)(spare ? wefti_spares_get(&ms->spares, sizeof *msg + SPARE_BYTES) : wefti_malloc(sizeof *msg + bytes));
    if (msg)
        *msg = (weft_msg_t){.ms = ms, .rt = ms->rt, .spare = spare};
    return msg;
}

/* Off the lists, window freed. Returns the endpoint whose window it was, or NULL if that is gone. */
static weft_ep_t *unlist(weft_msg_t *msg, uint64_t cost)
{
    msg_state_t *ms = msg->ms;
    if (msg->claimed) {
        wefti_list_remove(&msg->all_link);
        if (msg->ep)
            wefti_list_remove(&msg->ep_link);
    } else {
        wefti_msg_unhold(ms, msg);
    }
    ms->held_bytes -= cost;
    if (__builtin_expect(ms->wants != NULL, 0))
        wefti_wants_holds(ms->wants, ms->rt, ms->held_bytes);
    if (msg->ep) {
        wefti_flow_unhold(&msg_ep(msg->ep)->box.flow, cost);
        msg_ep(msg->ep)->box.unreceived--;
    }
    return msg->ep;
}

void wefti_msg_let_go(weft_msg_t *msg)
{
    uint64_t cost = msg_cost(msg);
    weft_ep_t *ep = unlist(msg, cost);
    if (msg->spare)
        wefti_spares_put(&msg->ms->spares, msg, SPARE_MAX);
    else
        wefti_free(msg);
    if (ep)
        msg_consumed(ep, cost);
}

/* NULL: there is no memory, and the endpoint ends. */
static weft_msg_t *hold(weft_ep_t *ep, uint64_t tag, const void *bytes, uint64_t len, wefti_in_t *in)
{
    msg_state_t *ms = msg_state(ep->rt);
    msg_ep_t *m = msg_ep(ep);
    weft_msg_t *msg = block_new(ms, bytes ? len : 0);
    if (!msg) {
        if (in)
            wefti_in_refuse(in, false);
        wefti_ep_cannot(ep, "no memory to keep a message until it is asked for");
        return NULL;
    }
    msg->ep = ep;
    msg->from = ep->id;
    msg->tag = tag;
    msg->len = len;
    msg->in = in;
    if (in)
        in->user = msg;
    else if (len)
        memcpy(msg_bytes(msg), bytes, len);
    uint64_t cost = msg_cost(msg);
    wefti_flow_hold(&m->box.flow, cost);
    m->box.unreceived++;
    ms->held_bytes += cost;
    wefti_msg_hold(ms, msg);
    return msg;
}

/* The same on one of several shards: perhaps a receive from any endpoint waits for it. If its endpoint closes, nobody else can
 * have it. */
__attribute__((cold, noinline)) static void hold_for_all(weft_ep_t *ep, uint64_t tag, const void *bytes, uint64_t len,
                                                         wefti_in_t *in)
{
    msg_state_t *ms = msg_state(ep->rt);
    bool closing = wefti_ep_is_closing(ep);
    if (wefti_wants_some(ms->wants))
        wefti_wants_before(ms->wants, ms->rt);
    weft_msg_t *msg = hold(ep, tag, bytes, len, in);
    if (!msg)
        return;
    wefti_wants_holds(ms->wants, ms->rt, true);
    if (wefti_wants_offer(ms->wants, ms->rt, tag, msg) || !closing)
        return;
    if (msg->in)
        wefti_in_refuse(msg->in, false);
    wefti_msg_let_go(msg);
}

/* Take `cost` from what we granted, and count the message. */
static bool admit(weft_ep_t *ep, uint64_t cost, uint64_t len)
{
    msg_ep_t *m = msg_ep(ep);
    if (!msg_admit(ep, &m->box.flow, cost))
        return false;
    wefti_count_up(&m->box.count.received, 1);
    wefti_count_up(&m->box.count.bytes_received, len);
    return true;
}

/* After it, look at ep->lane: the program may have ended the endpoint. */
static void credit_came(weft_ep_t *ep, const wefti_word_t *word)
{
    msg_ep_t *m = msg_ep(ep);
    if (wefti_outbox_credit(ep, &m->box, word) && word->kind == REC_STARVED &&
        (!wefti_list_empty(&m->posted) || !wefti_list_empty(&msg_state(ep->rt)->of_any) ||
         wefti_wants_some(msg_state(ep->rt)->wants)))
        wefti_flow_waits(ep, &m->box.flow);
}

void wefti_msg_record(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n)
{
    msg_head_t head;
    if (__builtin_expect(n >= sizeof head && kind == REC_EAGER, 1)) {
        uint64_t len = n - sizeof head, cost = MSG_COST + len;
        const void *bytes = wefti_wild_bare(wefti_wild_skip(rec, sizeof head)); /* for a receive, or to be kept: not looked at */
        msg_state_t *ms = msg_state(ep->rt);
        wefti_wild_take(&head, rec, sizeof head);
        head.word.kind = kind;
        const wefti_lane_t *lane = ep->lane;
        if (head.word.bytes)
            credit_came(ep, &head.word);
        if (ep->lane != lane || !admit(ep, cost, len))
            return;
        for (weft_op_t *op; (op = wefti_msg_take_posted(ms, ep, head.tag));) {
            if (wefti_msg_deliver_bytes(op, ep->id, head.tag, len, bytes, ep)) {
                msg_consumed(ep, cost);
                return;
            }
        }
        if (__builtin_expect(ms->wants != NULL, 0))
            hold_for_all(ep, head.tag, bytes, len, NULL);
        else if (wefti_ep_is_closing(ep))
            msg_consumed(ep, cost);
        else
            hold(ep, head.tag, bytes, len, NULL);
        return;
    }
    wefti_word_t word;
    if (n != sizeof word || (kind != REC_CREDIT && kind != REC_STARVED)) {
        wefti_ep_protocol_error(ep, "a message record of an unknown kind or length");
        return;
    }
    wefti_wild_take(&word, rec, sizeof word);
    word.kind = kind;
    credit_came(ep, &word);
}

void wefti_msg_ahead(weft_ep_t *ep, const wefti_ahead_t *recs, unsigned n)
{
    uint64_t tags[WEFTI_AHEAD_MAX];
    unsigned n_tags = 0;
    for (unsigned i = 0; i < n; i++) {
        const wefti_wild_t *rec = wefti_wild(recs[i].rec);
        msg_head_t head;
        if (recs[i].n < sizeof head || wefti_wild_u8(rec) != REC_EAGER)
            continue;
        wefti_wild_take(&head, rec, sizeof head);
        tags[n_tags++] = head.tag;
    }
    wefti_msg_fetch_posted(msg_state(ep->rt), ep, tags, n_tags);
}

void wefti_msg_announced(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, wefti_in_t *in)
{
    msg_offer_t offer = {.tag = 0};
    if (n == sizeof offer)
        wefti_wild_take(&offer, rec, sizeof offer);
    offer.word.kind = kind;
    if (n != sizeof offer || kind != REC_ANNOUNCE) {
        wefti_in_refuse(in, false);
        wefti_ep_protocol_error(ep, "an announcement of an unknown kind or length");
        return;
    }
    const wefti_lane_t *lane = ep->lane;
    if (offer.word.bytes)
        credit_came(ep, &offer.word);
    if (ep->lane != lane)
        return; /* the payload goes with the lane */
    if (!admit(ep, MSG_COST, in->total)) {
        wefti_in_refuse(in, false);
        return;
    }
    for (weft_op_t *op; (op = wefti_msg_take_posted(msg_state(ep->rt), ep, offer.tag));) {
        if (wefti_msg_deliver_pull(op, offer.tag, in)) {
            msg_consumed(ep, MSG_COST);
            return;
        }
    }
    if (__builtin_expect(msg_state(ep->rt)->wants != NULL, 0)) {
        hold_for_all(ep, offer.tag, NULL, in->total, in);
        return;
    }
    if (wefti_ep_is_closing(ep)) {
        wefti_in_refuse(in, false);
        msg_consumed(ep, MSG_COST);
        return;
    }
    hold(ep, offer.tag, NULL, in->total, in);
}

/* The payload of a held or claimed message is out of reach: its sender took it back, or the lane is down and nothing may be
 * asked of it. */
static void payload_lost(weft_msg_t *msg)
{
    msg->in->user = NULL;
    if (msg->claimed) { /* its claimer learns it when it asks for the bytes; MSG_COST stays held until then */
        msg->in = NULL;
        msg->len = 0;
        msg->lost = true;
    } else {
        wefti_msg_let_go(msg);
    }
}

void wefti_msg_withdrawn(wefti_in_t *in)
{
    payload_lost((weft_msg_t *)in->user);
}

static void lose_payloads(wefti_list_t *list)
{
    wefti_list_each_safe(l, list) {
        weft_msg_t *msg = wefti_container_of(l, weft_msg_t, ep_link);
        if (msg->in)
            payload_lost(msg);
    }
}

void wefti_msg_arrive_down(weft_ep_t *ep, bool discard)
{
    msg_ep_t *m = msg_ep(ep);
    bool alive = ep->lane; /* a graceful close of ours: the peer waits to hear of its sends */
    wefti_list_each_safe(l, &m->arrived) {
        weft_msg_t *msg = wefti_container_of(l, weft_msg_t, ep_link);
        if (!discard)
            break;
        if (msg->in && !alive)
            continue;
        if (msg->in)
            wefti_in_refuse(msg->in, false);
        wefti_msg_let_go(msg);
    }
    if (!alive) {
        lose_payloads(&m->arrived);
        lose_payloads(&m->claimed);
    }
}

void wefti_msg_arrive_orphan(weft_ep_t *ep)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&msg_ep(ep)->claimed));)
        wefti_container_of(l, weft_msg_t, ep_link)->ep = NULL;
}
