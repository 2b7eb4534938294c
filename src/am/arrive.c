/* am/arrive.c - what comes from the peer: messages, parts of headers, answers, credit.
 *
 * The peer wrote every field read here, and may still change it in shared memory: each is read once (base/wild.h). A record
 * that is too short, of an unknown kind or with unknown flags, or beyond the window we granted fails the endpoint with
 * WEFT_ERR_PROTOCOL.
 *
 * The program's handlers see a small message in the transport's own memory, without a copy, and are told that the bytes may
 * change (weft/am.h). The library's own handlers get a copy, since they rely on what they have checked. */
#include "am/state.h"

/* --- delivery -------------------------------------------------------------------------------------------------------------- */

/* The peer has more that it may not send, and a receive waits for something that is not here: it may be among that. */
static void waits_still(weft_ep_t *ep)
{
    am_ep_t *e = am_ep(ep);
    if (__builtin_expect(e->box.flow.peer_starving, 0) &&
        (!wefti_list_empty(&e->posted) || !wefti_list_empty(&am_state(ep->rt)->posted_of_any) ||
         wefti_wants_some(am_state(ep->rt)->wants)))
        wefti_flow_waits(ep, &e->box.flow);
}

/* Nobody is there for it: it waits, in a block of its own. If its endpoint closes, only a receive from any endpoint that waits
 * on another shard can still have it. */
static void wait_here(am_msg_t *m, bool closing)
{
    if (wefti_wants_some(m->as->wants))
        wefti_wants_before(m->as->wants, m->as->rt);
    am_msg_t *block = wefti_am_block(m);
    if (block && wefti_am_hold(block)) {
        if (!wefti_am_offer(block) && closing) {
            wefti_am_turn_down(block, WEFT_AM_NOT_TAKEN);
            wefti_am_let_go(block);
        }
        return;
    }
    wefti_am_turn_down(block ? block : m, WEFT_AM_NOT_TAKEN);
    if (block)
        wefti_am_let_go(block);
    else
        wefti_am_finish(m);
    wefti_ep_cannot(m->ep, "no memory to keep a message until it is asked for");
}

#define COPY_MAX 8320u /* of a record that our own sender writes: am.c has its length; what is longer is copied to a block */

/* The parts of a message, where they are not to change: its header and what of its payload is here. */
static inline void take_parts(am_msg_t *m, uint8_t *to, size_t data_n)
{
    uint32_t header_n = m->pub.header_len;
    if (header_n)
        wefti_wild_take(to, wefti_wild(m->pub.header), header_n);
    m->pub.header = header_n ? to : NULL;
    to += am_pad(header_n);
    if (data_n)
        wefti_wild_take(to, wefti_wild(m->pub.data), data_n);
    m->pub.data = data_n ? to : NULL;
}

static inline void handle(am_msg_t *m, const am_port_t *port)
{
    port->fn(&m->pub, port->user);
    if (!m->moved)
        wefti_am_finish(m);
    else if (m->borrowed)
        wefti_am_unref(m->moved);
}

static __attribute__((noinline)) void handle_large_copy(am_msg_t *m, const am_port_t *port, size_t n, size_t data_n)
{
    uint8_t *copy = (uint8_t *)wefti_malloc(n);
    if (!copy) {
        wefti_ep_cannot(m->ep, "no memory for a copy of a message to the library");
        wefti_am_finish(m);
        return;
    }
    take_parts(m, copy, data_n);
    handle(m, port);
    wefti_free(copy);
}

/* In a function of its own, so that others pay for no such stack. */
static __attribute__((noinline)) void handle_copy(am_msg_t *m, const am_port_t *port)
{
    _Alignas(64) uint8_t here[COPY_MAX];
    size_t data_n = m->at == AT_HERE ? m->pub.len : 0, n = am_pad(m->pub.header_len) + data_n;
    if (__builtin_expect(n > sizeof here, 0)) {
        handle_large_copy(m, port, n, data_n);
        return;
    }
    take_parts(m, here, data_n);
    handle(m, port);
}

enum { SHORT_MIN = 16, SHORT_MAX = 128, SHORT_WORDS = 40 };

/* A small call or reply: a header, from SHORT_MIN to SHORT_MAX bytes, behind which there is padding to the next word. A few words
 * cost no call of memcpy; and where sender and receiver are one core, a word that was just stored is loaded at once, and a
 * longer piece that several stores have made is not. */
static inline void take_short(uint8_t *to, const wefti_wild_t *from, uint32_t n)
{
    if (__builtin_expect(n > SHORT_WORDS, 0)) {
        wefti_wild_take(to, from, n);
        return;
    }
    wefti_wild_take(to, from, 8);
    wefti_wild_take(to + 8, wefti_wild_skip(from, 8), 8);
    for (uint32_t at = 16; at < n; at += 8)
        wefti_wild_take(to + at, wefti_wild_skip(from, at), 8);
}

/* To a handler of the library's own: bytes that stay as they are. */
static void handle_own(am_msg_t *m, const am_port_t *port)
{
    _Alignas(16) uint8_t here[SHORT_MAX];
    if (__builtin_expect(m->at != AT_HERE || m->pub.len || m->pub.header_len - SHORT_MIN > SHORT_MAX - SHORT_MIN, 0)) {
        handle_copy(m, port);
        return;
    }
    take_short(here, wefti_wild(m->pub.header), m->pub.header_len);
    m->pub.header = here;
    handle(m, port);
}

/* Nobody takes it now. Apart, so that messages for a handler do not pay for it. */
static __attribute__((noinline)) void nobody_takes(am_msg_t *m)
{
    bool closing = wefti_ep_is_closing(m->ep);
    if (closing && !wefti_wants_some(m->as->wants)) {
        wefti_am_turn_down(m, WEFT_AM_NOT_TAKEN);
        wefti_am_finish(m);
        return;
    }
    wait_here(m, closing);
    waits_still(m->ep);
}

/* m is on our caller's stack. */
static void deliver(am_msg_t *m)
{
    am_state_t *as = m->as;
    am_port_t *port = am_port(as, m->pub.id);
    if (__builtin_expect(port && port->fn && wefti_list_empty(&port->arrived), 1)) {
        if (m->pub.id >= WEFT_AM_RESERVED) {
            handle_own(m, port);
            return;
        }
        handle(m, port);
        return;
    }
    if (!port || !port->fn) {
        for (weft_op_t *op; (op = wefti_am_take_posted(as, m->ep, m->pub.id));)
            if (wefti_am_meet(op, m)) {
                if (!m->moved)
                    wefti_am_finish(m);
                return;
            }
    }
    nobody_takes(m);
}

/* --- records --------------------------------------------------------------------------------------------------------------- */

/* As wefti_outbox_credit(). */
static __attribute__((noinline)) bool credit_came(weft_ep_t *ep, const wefti_word_t *word)
{
    if (!wefti_outbox_credit(ep, &am_ep(ep)->box, word))
        return false;
    waits_still(ep);
    return true;
}

/* Where the header of a message is: in the n bytes of the record that follow its head, or in parts that came before. false:
 * nonsense. */
static bool header_of(am_ep_t *e, uint8_t flags, uint32_t header_len, const wefti_wild_t *rest, size_t n, const void **header_out,
                      uint32_t *inline_out)
{
    if (__builtin_expect(flags & F_PARTS, 0)) {
        if (!e->parts || e->parts_len != header_len)
            return false;
        e->parts_len = 0; /* it is not overwritten before the next HEAD, which comes after this record */
        *header_out = e->parts;
        *inline_out = 0;
        return true;
    }
    *header_out = header_len ? wefti_wild_bare(rest) : NULL;
    *inline_out = header_len;
    return header_len <= WEFT_AM_HEADER_MAX && header_len <= n;
}

static void message(am_msg_t *m, weft_ep_t *ep, uint32_t id, const void *header, uint32_t header_len, uint8_t flags)
{
    m->pub.id = id;
    m->pub.header_len = header_len;
    m->pub.header = header;
    m->pub.from = ep->id;
    m->pub.ep = ep;
    m->pub.reply = flags & F_REPLY ? ep : NULL;
    m->as = am_state(ep->rt);
    m->ep = ep;
    m->in = NULL;
    m->moved = NULL;
    m->confirm = 0;
    m->arrived = m->borrowed = false;
    atomic_init(&m->claimed, false);
    m->lost = WEFT_OK;
    m->block = false;
}

static inline void count(am_ep_t *e, uint64_t bytes)
{
    wefti_count_up(&e->box.count.received, 1);
    wefti_count_up(&e->box.count.bytes_received, bytes);
}

static void nonsense(weft_ep_t *ep)
{
    wefti_ep_protocol_error(ep, "an active message's record of an unknown kind, length or flags");
}

static void eager(weft_ep_t *ep, const wefti_wild_t *rec, size_t n)
{
    am_ep_t *e = am_ep(ep);
    am_head_t head;
    am_msg_t m;
    uint64_t confirm = 0;
    const void *header;
    uint32_t in_record;
    wefti_wild_take(&head.word, rec, sizeof head.word);
    wefti_wild_take(&head.id, wefti_wild_skip(rec, offsetof(am_head_t, id)), 8); /* and header_len */
    head.word.kind = REC_EAGER;
    size_t at = sizeof head;
    if (__builtin_expect(head.word.flags & F_CONFIRM, 0)) {
        if (n >= at + sizeof confirm)
            wefti_wild_take(&confirm, wefti_wild_skip(rec, at), sizeof confirm);
        at += sizeof confirm;
        if (!confirm) {
            nonsense(ep);
            return;
        }
    }
    if (__builtin_expect(
            head.word.flags & ~F_ALL || head.id == WEFT_AM_ANY_ID || n < at ||
                !header_of(e, head.word.flags, head.header_len, wefti_wild_skip(rec, at), n - at, &header, &in_record) ||
                n < at + am_pad(in_record),
            0)) {
        nonsense(ep);
        return;
    }
    at += am_pad(in_record);
    const wefti_lane_t *lane = ep->lane;
    if ((head.word.bytes || head.word.msgs) && (!credit_came(ep, &head.word) || ep->lane != lane))
        return;
    uint64_t len = n - at;
    message(&m, ep, head.id, header, head.header_len, head.word.flags);
    m.at = AT_HERE;
    m.pub.len = len;
    m.pub.data = len ? wefti_wild_bare(wefti_wild_skip(rec, at)) : NULL;
    m.confirm = confirm;
    m.cost = AM_COST + head.header_len + (uint32_t)len;
    if (!wefti_flow_admit(ep, &e->box.flow, m.cost))
        return;
    count(e, len + head.header_len);
    deliver(&m);
}

void wefti_am_announced(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, wefti_in_t *in)
{
    am_ep_t *e = am_ep(ep);
    am_announce_t head;
    am_msg_t m;
    const void *header;
    uint32_t in_record;
    memset(&head, 0, sizeof head);
    if (n >= sizeof head)
        wefti_wild_take(&head, rec, sizeof head);
    head.word.kind = kind;
    if (n < sizeof head || kind != REC_ANNOUNCE || head.word.flags & ~(F_REPLY | F_PARTS) || head.id == WEFT_AM_ANY_ID ||
        !in->total ||
        !header_of(e, head.word.flags, head.header_len, wefti_wild_skip(rec, sizeof head), n - sizeof head, &header,
                   &in_record) ||
        n != sizeof head + in_record) {
        wefti_in_refuse(in, false);
        nonsense(ep);
        return;
    }
    message(&m, ep, head.id, header, head.header_len, head.word.flags);
    m.cost = AM_COST + head.header_len;
    const wefti_lane_t *lane = ep->lane;
    bool sound = (!head.word.bytes && !head.word.msgs) || credit_came(ep, &head.word);
    if (ep->lane != lane)
        return; /* the payload goes with the lane */
    if (!sound || !wefti_flow_admit(ep, &e->box.flow, m.cost)) {
        wefti_in_refuse(in, false);
        return;
    }
    m.at = AT_SENDER;
    m.pub.len = in->total;
    m.pub.data = NULL;
    m.in = in;
    /* cppcheck-suppress autoVariables ; deliver() has let go of m when it returns */
    in->user = &m;
    wefti_list_push_back(&e->kept, &m.ep_link);
    count(e, in->total + head.header_len);
    deliver(&m);
}

/* Bytes of a header that is too long for its message's record. */
static void head_part(weft_ep_t *ep, const wefti_wild_t *rec, size_t n)
{
    am_ep_t *e = am_ep(ep);
    wefti_word_t word;
    wefti_wild_take(&word, rec, sizeof word);
    word.kind = REC_HEAD;
    size_t bytes = n - sizeof word;
    bool first = !(word.flags & F_PARTS);
    if (first)
        e->parts_len = 0;
    if (word.flags & ~F_PARTS || !bytes || (!first && !e->parts_len) || bytes > WEFT_AM_HEADER_MAX - e->parts_len) {
        nonsense(ep);
        return;
    }
    if (!e->parts && !(e->parts = (uint8_t *)wefti_malloc(WEFT_AM_HEADER_MAX))) {
        wefti_ep_cannot(ep, "no memory for a long header");
        return;
    }
    wefti_wild_take(e->parts + e->parts_len, wefti_wild_skip(rec, sizeof word), bytes);
    e->parts_len += (uint32_t)bytes;
    if (word.bytes || word.msgs)
        credit_came(ep, &word);
}

static void answered(weft_ep_t *ep, const am_answer_t *a)
{
    wefti_outbox_t *box = &am_ep(ep)->box;
    if (a->word.flags & F_CONFIRM)
        wefti_outbox_answered(ep, box, a->about, a->reason);
    else
        wefti_outbox_refusal(ep, box, a->about,
                             a->reason); /* the refusal itself follows; a payload that is taken needs no answer */
}

void wefti_am_record(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n)
{
    if (__builtin_expect(kind == REC_EAGER && n >= sizeof(am_head_t), 1)) {
        eager(ep, rec, n);
        return;
    }
    if (kind == REC_HEAD && n > sizeof(wefti_word_t)) {
        head_part(ep, rec, n);
    } else if (kind == REC_ANSWER && n == sizeof(am_answer_t)) {
        am_answer_t a;
        wefti_wild_take(&a, rec, sizeof a);
        a.word.kind = kind;
        if (a.word.flags & ~F_CONFIRM || a.zero)
            nonsense(ep);
        else if ((!a.word.bytes && !a.word.msgs) || credit_came(ep, &a.word))
            answered(ep, &a);
    } else if ((kind == REC_CREDIT || kind == REC_STARVED) && n == sizeof(wefti_word_t)) {
        wefti_word_t word;
        wefti_wild_take(&word, rec, sizeof word);
        word.kind = kind;
        credit_came(ep, &word);
    } else {
        nonsense(ep);
    }
}
