/* msg/flow.c - how much a peer may leave here: the window, and the credit that refills it.
 *
 * Every byte of our window is in one of four places: granted (the peer may use it), held (messages nobody asked for), owed (consumed,
 * not yet returned), or on its way to us. A message that costs more than what is granted breaks the protocol. When credit is returned:
 * on the next message that goes to the peer anyway; when a quarter of the window is owed; at once when the peer starves.
 *
 * A sender that is down to the last quarter says so (STARVED) and waits. The answer is credit, or the word that none is owed because the
 * program there has not received what arrived (CREDIT 0): then the last quarter is used for announcements of 128 bytes each, so that a
 * receive for a later tag still finds its message. A receiver that merely lags behind never gets there, which matters: pulling a small
 * message costs ten times what copying it does.
 *
 * Promise: a receiver never holds more than its window per peer, and two peers never wait for each other's credit while one of them
 * owes any. tests/sim/msg_exactly_once.c and tests/wire/msg_window.c hold us to it. */
#include "msg/state.h"

/* Send the window we owe as a record of its own. */
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
    m->peer_starving = m->peer_starving && !word->credit;
    ep->lane->ops->commit(ep->lane, sizeof *word);
    ep->spoke = 1;
}

void wefti_msg_flow_up(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    uint64_t window = ep->rt->recv_window;
    m->credit = 0;
    m->reserve = ep->peer_window / 4;
    m->starving = m->peer_starving = m->held_up = false;
    m->granted = 0;
    m->owed = window > m->held ? window - m->held : 0;
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
    if (word->kind == REC_STARVED) {
        bool none = !m->owed;
        return_credit(ep); /* what is owed, or the word that nothing is */
        m->peer_starving = none;
    }
    return true;
}
