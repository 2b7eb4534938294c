/* am/message.c - the life of a message: on the stack while its handler looks at it, in a block of its own if it stays.
 *
 * A block is ARRIVED (waits for a handler or a receive) or the program's (kept, taken), until its last reference goes: the
 * program's, and one for each pull or view that was posted and not yet started. Then its payload is refused at the sender,
 * returned if it was lent, or freed if it was pulled for a view.
 *
 * Other threads only set `claimed`, count references, and hand a message in with work for the driver. A message that the
 * program still has when the runtime closes is left to it: header, data and view stay until it is released.
 *
 * Promise: every announced message is answered exactly once (pulled, refused, returned) or lost with its lane; every
 * confirmation wanted is answered once; the window gets back what it was charged. tests/sim/am_exactly_once.c. */
#include "am/state.h"

/* --- blocks ---------------------------------------------------------------------------------------------------------------- */

#define CLASS_LEAST 256u

static uint8_t class_of(uint64_t bytes)
{
    uint8_t c = 0;
    while (c < AM_CLASSES && bytes > (uint64_t)CLASS_LEAST << c)
        c++;
    return c;
}

static am_msg_t *block_new(am_state_t *as, uint64_t bytes)
{
    uint8_t c = class_of(bytes);
    am_msg_t *m = (am_msg_t *)(c < AM_CLASSES ? wefti_spares_get(&as->spares[c], sizeof *m + (CLASS_LEAST << c))
                                              : wefti_malloc(sizeof *m + bytes));
    if (m)
        m->size_class = c;
    return m;
}

static void block_free(am_msg_t *m)
{
    if (m->size_class < AM_CLASSES)
        wefti_spares_put(&m->as->spares[m->size_class], m, AM_SPARES);
    else
        wefti_free(m);
}

/* One that has no runtime any more. */
static void free_late(am_msg_t *m)
{
    if (m->at == AT_LENT)
        wefti_unlend(&m->lent);
    wefti_free(m->own);
    wefti_free(m);
}

/* The runtime is closed: the message is the program's alone, unless it has released it already. */
static void part_with(am_msg_t *m)
{
    if (m->at == AT_LENT && !wefti_lent_part(&m->lent)) {
        wefti_unlend(&m->lent);
        m->at = AT_LOST;
    }
    if (atomic_exchange(&m->parted, true))
        free_late(m);
}

void wefti_am_blocks_free(am_state_t *as)
{
    for (wefti_mpsc_node_t *at = wefti_mpsc_take(&as->handed_in), *next; at; at = next) { /* too late for the driver */
        am_msg_t *m = wefti_container_of(at, am_msg_t, handed);
        next = wefti_mpsc_next(at);
        if (atomic_load(&m->work) & WORK_RELEASE)
            atomic_store(&m->parted, true);
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&as->arrived));)
        free_late(wefti_container_of(l, am_msg_t, all_link));
    for (wefti_list_t *l; (l = wefti_list_pop(&as->kept));)
        part_with(wefti_container_of(l, am_msg_t, all_link));
    for (unsigned c = 0; c < AM_CLASSES; c++)
        wefti_spares_free(&as->spares[c]);
}

/* Announced only because the window was full: it would have come whole. */
static bool small(const am_msg_t *m)
{
    return sizeof(am_head_t) + am_pad(m->pub.header_len) + m->pub.len <= am_ep(m->ep)->record_max;
}

static void hold_over(wefti_timer_t *t)
{
    am_msg_t *m = wefti_container_of(t, am_msg_t, hold);
    if (m->arrived &&
        small(m)) { /* those wait for as long as it takes; what a program has and does not pull is too late next time */
        (void)wefti_timer_at(m->as->rt, t, wefti_now(m->as->rt) + m->as->rt->config.am_hold);
        return;
    }
    wefti_am_turn_down(m, WEFT_AM_TOO_LATE);
    m->at = AT_LOST;
    m->lost = WEFT_ERR_TIMEOUT;
    if (m->arrived)
        wefti_am_let_go(m);
}

am_msg_t *wefti_am_block(am_msg_t *from)
{
    uint64_t data_at = am_pad(from->pub.header_len), data_n = from->at == AT_HERE ? from->pub.len : 0;
    am_state_t *as = from->as;
    am_msg_t *m = block_new(as, data_at + data_n);
    if (!m)
        return NULL;
    uint8_t *bytes = (uint8_t *)(m + 1), c = m->size_class;
    memset(m, 0, sizeof *m);
    m->block = true;
    m->size_class = c;
    m->pub = from->pub;
    m->as = as;
    m->rt = as->rt;
    m->ep = from->ep;
    m->confirm = from->confirm;
    m->cost = from->cost;
    m->at = from->at;
    m->lost = from->lost;
    atomic_init(&m->refs, 1);
    atomic_init(&m->claimed, atomic_load_explicit(&from->claimed, memory_order_relaxed));
    m->pub.header = from->pub.header_len ? memcpy(bytes, from->pub.header, from->pub.header_len) : NULL;
    m->pub.data = data_n ? memcpy(bytes + data_at, from->pub.data, data_n) : NULL;
    if (from->in) {
        wefti_list_remove(&from->ep_link);
        m->in = from->in;
        m->in->user = m;
        from->in = NULL;
        m->hold.fn = hold_over;
        /* Without memory for its timer it waits until it is pulled, released, or its sender is gone. */
        (void)wefti_timer_at(as->rt, &m->hold, wefti_now(as->rt) + as->rt->config.am_hold);
    }
    from->moved = m;
    wefti_flow_hold(&am_ep(m->ep)->box.flow, m->cost);
    as->held_bytes += m->cost;
    as->held_msgs++;
    wefti_wants_holds(as->wants, as->rt, true);
    return m;
}

void wefti_am_give(am_msg_t *m)
{
    m->kept = true;
    wefti_list_push_back(&m->as->kept, &m->all_link);
    if (m->ep)
        wefti_list_push_back(&am_ep(m->ep)->kept, &m->ep_link);
}

void wefti_am_detach(am_msg_t *m, uint8_t at)
{
    m->in = NULL;
    m->at = at;
    if (m->block)
        wefti_timer_stop(m->as->rt, &m->hold);
    else
        wefti_list_remove(&m->ep_link);
}

/* --- answers --------------------------------------------------------------------------------------------------------------- */

static bool answer_put(weft_ep_t *ep, const am_answer_t *answer)
{
    am_answer_t *rec = (am_answer_t *)ep->lane->ops->reserve(ep->lane, sizeof *rec);
    if (!rec)
        return false;
    *rec = *answer;
    rec->word = wefti_flow_piggyback(&am_ep(ep)->box.flow, REC_ANSWER);
    rec->word.flags = answer->word.flags;
    ep->lane->ops->commit(ep->lane, sizeof *rec);
    return true;
}

/* Tell the sender what became of its message, and refuse the payload if it is one that was announced. */
static void answer(weft_ep_t *ep, uint8_t flags, uint64_t about, uint32_t reason, wefti_in_t *in)
{
    am_ep_t *e = am_ep(ep);
    am_answer_t a = {.word.flags = flags, .about = about, .reason = reason};
    bool over = !ep->lane || (wefti_list_empty(&e->answers) && answer_put(ep, &a));
    am_owed_t *owed = over ? NULL : (am_owed_t *)wefti_malloc(sizeof *owed);
    if (owed) {
        owed->answer = a;
        owed->in = in;
        if (in)
            in->user = (void *)((uintptr_t)owed | AM_OWED);
        wefti_list_push_back(&e->answers, &owed->link);
    } else if (in) {
        wefti_in_refuse(in, false); /* if there was no memory to keep the answer, the sender does not learn the reason */
    } else if (!over) {
        wefti_ep_cannot(ep, "no memory for the answer to a message");
    }
}

void wefti_am_answers_flush(weft_ep_t *ep)
{
    for (wefti_list_t *l; ep->lane && (l = wefti_list_first(&am_ep(ep)->answers));) {
        am_owed_t *owed = wefti_container_of(l, am_owed_t, link);
        if (!answer_put(ep, &owed->answer))
            return;
        wefti_list_remove(l);
        if (owed->in)
            wefti_in_refuse(owed->in, false);
        wefti_free(owed);
    }
}

void wefti_am_answers_down(weft_ep_t *ep)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&am_ep(ep)->answers));) {
        am_owed_t *owed = wefti_container_of(l, am_owed_t, link);
        if (owed->in)
            owed->in->user = NULL; /* `withdrawn` comes for it, and finds nobody */
        wefti_free(owed);
    }
}

void wefti_am_turn_down(am_msg_t *m, uint32_t reason)
{
    if (m->at == AT_SENDER) {
        wefti_in_t *in = m->in;
        wefti_am_detach(m, AT_TAKEN);
        answer(m->ep, 0, in->id, reason, in);
    } else if (m->confirm && m->ep) {
        answer(m->ep, F_CONFIRM, m->confirm, reason, NULL);
        m->confirm = 0;
    }
}

/* --- endings --------------------------------------------------------------------------------------------------------------- */

void wefti_am_finish(am_msg_t *m)
{
    if (m->at == AT_SENDER)
        wefti_am_turn_down(m, WEFT_AM_NOT_TAKEN);
    if (__builtin_expect(m->confirm != 0, 0))
        wefti_am_turn_down(m, 0);
    wefti_flow_consumed(m->ep, &am_ep(m->ep)->box.flow, m->cost);
}

void wefti_am_let_go(am_msg_t *m)
{
    am_state_t *as = m->as;
    weft_ep_t *ep = m->ep;
    if (m->arrived) {
        wefti_am_unhold(m);
    } else {
        if (wefti_list_linked(&m->all_link))
            wefti_list_remove(&m->all_link);
        if (wefti_list_linked(&m->ep_link))
            wefti_list_remove(&m->ep_link);
    }
    if (m->at == AT_SENDER)
        wefti_am_turn_down(m, WEFT_AM_NOT_TAKEN);
    if (m->confirm && ep)
        wefti_am_turn_down(m, 0);
    if (m->at == AT_LENT) {
        if (m->in)
            wefti_in_refuse(m->in, true);
        wefti_unlend(&m->lent);
    }
    wefti_free(m->own);
    as->held_bytes -= m->cost;
    as->held_msgs--;
    wefti_wants_holds(as->wants, as->rt, as->held_msgs);
    uint32_t cost = m->cost;
    block_free(m);
    if (ep) {
        wefti_flow_unhold(&am_ep(ep)->box.flow, cost);
        wefti_flow_consumed(ep, &am_ep(ep)->box.flow, cost);
    }
}

void wefti_am_unref(am_msg_t *m)
{
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1)
        wefti_am_let_go(m);
}

/* The sender took it back, or the lane is closed. */
void wefti_am_withdrawn(wefti_in_t *in)
{
    uintptr_t user = (uintptr_t)in->user;
    if (user & AM_OWED) {
        am_owed_t *owed = (am_owed_t *)(user & ~AM_OWED); /* nobody waits for that answer any more */
        wefti_list_remove(&owed->link);
        wefti_free(owed);
        return;
    }
    am_msg_t *m = (am_msg_t *)user;
    if (m->at == AT_LENT) {
        m->in = NULL;
        return;
    }
    wefti_am_detach(m, AT_LOST);
    m->lost = WEFT_ERR_CANCELLED;
    if (m->block && m->arrived)
        wefti_am_let_go(m);
}

/* Out of reach, with `why`: the lane is going, or the endpoint closes here and says so to the sender. */
static void lose(am_msg_t *m, weft_status_t why, bool alive)
{
    wefti_in_t *in = m->in;
    if (!alive)
        m->confirm = 0; /* its sender has been told that the peer is lost; a new lane may lead to a sender who never asked */
    if (m->at == AT_LENT && !alive && in) {
        in->user = NULL;
        m->in = NULL;
    }
    if (m->at != AT_SENDER)
        return;
    wefti_am_detach(m, AT_LOST);
    m->lost = why;
    if (alive)
        wefti_in_refuse(in, false);
    else
        in->user = NULL; /* `withdrawn` comes for it, and finds nobody */
}

void wefti_am_messages_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    am_ep_t *e = am_ep(ep);
    bool alive = ep->lane; /* a graceful close of ours: the peer waits to hear of its sends */
    wefti_list_each_safe(l, &e->arrived) {
        am_msg_t *m = wefti_container_of(l, am_msg_t, ep_link);
        bool gone = m->at == AT_SENDER;
        if (gone && !discard && alive)
            continue;
        lose(m, why, alive);
        if (m->confirm && discard)
            wefti_am_turn_down(m, WEFT_AM_NOT_TAKEN); /* nobody received it: do not let its sender believe so */
        if (gone || discard)
            wefti_am_let_go(m);
    }
    wefti_list_each_safe(l, &e->kept)
        lose(wefti_container_of(l, am_msg_t, ep_link), why, alive);
}

void wefti_am_messages_orphan(weft_ep_t *ep)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&am_ep(ep)->kept));) {
        am_msg_t *m = wefti_container_of(l, am_msg_t, ep_link);
        m->ep = m->pub.ep = m->pub.reply = NULL;
        m->confirm = 0;
    }
}

/* --- the program's calls --------------------------------------------------------------------------------------------------- */

weft_am_t *weft_am_keep(weft_am_t *am)
{
    if (!am)
        return NULL;
    am_msg_t *m = am_msg_now(am);
    if (m->block) {
        if (m != am_msg(am) && am_msg(am)->borrowed && !m->kept)
            atomic_fetch_add(&m->refs, 1); /* the program's */
        m->kept = true;
        return &m->pub;
    }
    am_msg_t *block = wefti_am_block(m);
    if (!block)
        return NULL;
    wefti_am_give(block);
    return &block->pub;
}

/* Have the driver do `work`; if the runtime closes before, its end does what is left to do. The caller is inside. */
static void hand_in(am_msg_t *m, uint32_t work)
{
    am_state_t *as = m->as;
    if (atomic_fetch_or(&m->work, work))
        return; /* it is on its way already */
    wefti_mpsc_push(&as->handed_in, &m->handed);
    if (!atomic_exchange(&as->called, true) && !wefti_call_on_driver(as->rt, &as->call))
        atomic_store(&as->called, false);
}

void wefti_am_handed_in(wefti_call_t *call)
{
    am_state_t *as = wefti_container_of(call, am_state_t, call);
    atomic_store(&as->called, false);
    for (wefti_mpsc_node_t *at = wefti_mpsc_take(&as->handed_in), *next; at; at = next) {
        am_msg_t *m = wefti_container_of(at, am_msg_t, handed);
        next = wefti_mpsc_next(at);
        uint32_t work = atomic_exchange(&m->work, 0);
        if (work & WORK_REJECT)
            wefti_am_turn_down(m, m->reason);
        if (work & WORK_RELEASE)
            wefti_am_unref(m);
    }
}

void weft_am_release(weft_am_t *am)
{
    weft_runtime_t *was;
    if (!am)
        return;
    am_msg_t *m = am_msg_now(am);
    if (!m->block || !m->kept)
        return; /* a handler's, that was not kept: over when the handler returns */
    weft_runtime_t *rt = am_msg_runtime(m);
    if (rt && !atomic_load(&m->work) && wefti_enter(rt, &was)) {
        wefti_am_unref(m);
        wefti_leave(rt, was);
    } else if (rt && !wefti_join(rt)) {
        hand_in(m, WORK_RELEASE);
        wefti_part(rt);
    } else if (atomic_exchange(&m->parted, true)) {
        free_late(m);
    }
}

weft_status_t weft_am_reject(weft_am_t *am, uint32_t reason)
{
    weft_runtime_t *was;
    if (!am || !reason)
        return wefti_fail(WEFT_ERR_INVALID, am ? "a rejection needs a reason other than 0" : "the message is NULL");
    am_msg_t *m = am_msg_now(am);
    weft_runtime_t *rt = am_msg_runtime(m);
    weft_status_t st = rt ? wefti_join(rt) : wefti_fail(WEFT_ERR_CLOSED, "the runtime of the message is closed");
    if (st)
        return st;
    if (atomic_exchange(&m->claimed, true)) {
        st = wefti_fail(WEFT_ERR_STATE, "the message was pulled, viewed or rejected before");
    } else if (wefti_enter(rt, &was)) {
        wefti_am_turn_down(m, reason);
        wefti_leave(rt, was);
    } else {
        m->reason = reason;
        hand_in(m, WORK_REJECT);
    }
    wefti_part(rt);
    return st;
}
