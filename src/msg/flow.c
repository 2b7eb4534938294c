/* msg/flow.c - how much a peer may leave here: the window, and the credit that refills it.
 *
 * Every byte of our window is in one of four places: granted (the peer may use it), held (messages nobody asked for), owed (consumed,
 * not yet returned), or on its way to us. A message that costs more than what is granted breaks the protocol. When credit is returned:
 * on the next message that goes to the peer anyway; when a quarter of the window is owed; at once when the peer starves.
 *
 * A sender that is down to the last quarter says so (STARVED) and waits. Usually the answer is credit, at once or as soon as the
 * program there receives. But if that program waits for a message that is not here, while the window is full of others, it would wait for
 * ever: then the answer is a credit of zero, and the last quarter is used for announcements of 128 bytes each, among which the wanted one
 * may be. Nobody else pays for this: pulling a small message costs ten times what copying it does.
 *
 * Promise: a receiver never holds more than its window per peer, and two peers never wait for each other's credit while one of them
 * owes any. tests/sim/msg_exactly_once.c and tests/wire/msg_window.c hold us to it. */
#include "msg/state.h"

/* Send the window we owe as a record of its own; none owed says that it is full. */
static void return_credit(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    if (!ep->lane)
        return;
    msg_word_t *word = (msg_word_t *)ep->lane->ops->reserve(ep->lane, sizeof *word);
    m->credit_blocked = !word;
    if (!word)
        return;
    *word = (msg_word_t){.kind = REC_CREDIT, .credit = msg_flow_piggyback(m)};
    if (word->credit)
        wefti_msg_flow_fed(ep);
    else
        m->peer_told = true;
    ep->lane->ops->commit(ep->lane, sizeof *word);
    ep->spoke = 1;
}

void wefti_msg_flow_fed(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    msg_state(ep->rt)->n_starving -= m->peer_starving;
    m->peer_starving = m->peer_told = false;
}

void wefti_msg_flow_up(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    uint64_t window = ep->rt->recv_window;
    m->credit = 0;
    m->reserve = ep->peer_window / 4;
    m->starving = m->held_up = false;
    wefti_msg_flow_fed(ep);
    m->granted = 0;
    m->owed = window > m->held ? window - m->held : 0;
    if (m->owed)
        return_credit(ep);
}

void wefti_msg_flow_consumed(weft_ep_t *ep, uint64_t cost)
{
    msg_ep_t *m = msg_ep(ep);
    m->owed += cost;
    if (__builtin_expect(m->owed >= ep->rt->recv_window / 4 || m->peer_starving, 0))
        return_credit(ep);
}

void wefti_msg_flow_room(weft_ep_t *ep)
{
    if (msg_ep(ep)->credit_blocked)
        return_credit(ep);
}

/* A receive waits for what is not here, and the peer has more that it may not send. */
static void say_full(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    if (m->peer_starving && !m->peer_told)
        return_credit(ep);
}

void wefti_msg_flow_waits(msg_state_t *ms, weft_ep_t *ep)
{
    uint32_t at = 0;
    if (ep) {
        say_full(ep);
        return;
    }
    while ((ep = wefti_ep_next(ms->rt, &at)))
        say_full(ep);
}

bool wefti_msg_flow_starved(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    if (m->starving)
        return true; /* one question at a time */
    msg_word_t *word = (msg_word_t *)ep->lane->ops->reserve(ep->lane, sizeof *word);
    if (!word)
        return false;
    *word = (msg_word_t){.kind = REC_STARVED, .credit = msg_flow_piggyback(m)};
    ep->lane->ops->commit(ep->lane, sizeof *word);
    ep->spoke = 1;
    m->starving = true;
    return true;
}

bool wefti_msg_flow_word(weft_ep_t *ep, const msg_word_t *word)
{
    msg_ep_t *m = msg_ep(ep);
    if (word->credit) {
        m->credit += word->credit;
        m->starving = false;
        if (m->credit >= m->reserve) /* a little credit is one receive of a program that has just begun: no need to ask again */
            m->held_up = false;
        if (m->credit > ep->peer_window)
            return false;
    } else if (word->kind == REC_CREDIT) {
        m->held_up = true;
    }
    if (word->kind == REC_STARVED && m->owed) {
        return_credit(ep);
    } else if (word->kind == REC_STARVED && m->granted <= ep->rt->recv_window / 4 + MSG_COST + m->eager_max) {
        /* It has seen all the credit there is; else the answer is on its way to it already. */
        msg_state_t *ms = msg_state(ep->rt);
        ms->n_starving += !m->peer_starving;
        m->peer_starving = true;
        m->peer_told = false;
        if (!wefti_list_empty(&m->posted) || !wefti_list_empty(&ms->of_any))
            say_full(ep);
    }
    return true;
}
