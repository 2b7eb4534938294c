/* conn/flow.c - how much a peer may leave here: the window, and the credit that refills it. flow.h has the rules.
 *
 * Credit is returned on a record that goes to the peer anyway, once a thirty-second of the window is owed; in a record of its
 * own, once a quarter is; at once when the peer starves. The last quarter is used for announcements only if the peer's program
 * waits for something else, because pulling a small message costs ten times what copying it does.
 *
 * What a peer says of its window counts up to a bound only, so that no sum here overflows.
 *
 * Promise: a receiver never holds more than its window per peer and traffic, and two peers never wait for each other's credit
 * while one of them owes any. tests/unit/conn_flow.c, tests/sim/msg_exactly_once.c and tests/wire/msg_window.c. */
#include "conn/ep.h"

#define MSGS_MAX UINT16_MAX
#define UNCOUNTED (UINT32_MAX / 2)

/* The peer does not starve (any more). */
static void fed(weft_ep_t *ep, wefti_flow_t *f)
{
    wefti_conn_of(ep->rt)->pub.n_starving -= f->peer_starving;
    f->peer_starving = f->peer_told = false;
}

void wefti_flow_init(wefti_flow_t *f, const wefti_flow_kind_t *kind, uint64_t window, uint32_t window_msgs)
{
    *f = (wefti_flow_t){.kind = kind};
    f->counts = kind->counts_msgs;
    f->window = window < UINT32_MAX ? window : UINT32_MAX;
    f->window_msgs = !f->counts ? 0 : window_msgs < MSGS_MAX ? window_msgs : MSGS_MAX;
    f->return_at = f->window / 4;
    f->return_at_msgs = !f->counts ? UINT32_MAX : f->window_msgs < 4 ? 1 : f->window_msgs / 4;
    f->credit_msgs = f->counts ? 0 : UNCOUNTED;
}

void wefti_flow_exceeded(weft_ep_t *ep)
{
    wefti_ep_protocol_error(ep, "a message exceeds the window it was granted");
}

void wefti_flow_return(weft_ep_t *ep, wefti_flow_t *f)
{
    if (!ep->lane)
        return;
    wefti_word_t *word = (wefti_word_t *)ep->lane->ops->reserve(ep->lane, sizeof *word);
    f->credit_blocked = !word;
    if (!word)
        return;
    bool any = f->owed || f->owed_msgs;
    *word = wefti_flow_owed(f, f->kind->rec_credit);
    if (any)
        fed(ep, f);
    else
        f->peer_told = true;
    ep->lane->ops->commit(ep->lane, sizeof *word);
}

void wefti_flow_up(weft_ep_t *ep, wefti_flow_t *f)
{
    f->credit = 0;
    f->credit_msgs = f->counts ? 0 : UNCOUNTED;
    f->reserve = f->kind->in_hello ? ep->peer_window / 4 : 0;
    f->reserve_msgs = 0;
    f->starving = f->held_up = f->credit_blocked = false;
    fed(ep, f);
    f->granted = f->granted_msgs = 0;
    f->owed = f->window > f->held ? f->window - f->held : 0;
    f->owed_msgs = f->window_msgs > f->held_msgs ? f->window_msgs - f->held_msgs : 0;
    if (f->owed || f->owed_msgs)
        wefti_flow_return(ep, f);
}

void wefti_flow_space(weft_ep_t *ep, wefti_flow_t *f)
{
    if (f->credit_blocked)
        wefti_flow_return(ep, f);
}

void wefti_flow_down(weft_ep_t *ep, wefti_flow_t *f)
{
    fed(ep, f);
}

bool wefti_flow_starved(weft_ep_t *ep, wefti_flow_t *f)
{
    if (f->starving)
        return true; /* one question at a time */
    wefti_word_t *word = (wefti_word_t *)ep->lane->ops->reserve(ep->lane, sizeof *word);
    if (!word)
        return false;
    *word = wefti_flow_owed(f, f->kind->rec_starved);
    ep->lane->ops->commit(ep->lane, sizeof *word);
    f->starving = true;
    return true;
}

/* Has the peer, which says that it starves, seen all the credit there is? Else the answer is on its way to it already. */
static bool seen_all(const wefti_flow_t *f)
{
    return !f->cost_max || f->granted <= f->window / 4 + f->cost_max || (f->counts && f->granted_msgs <= f->window_msgs / 4 + 1);
}

static bool take_credit(const weft_ep_t *ep, wefti_flow_t *f, const wefti_word_t *word)
{
    f->credit += word->bytes;
    if (f->credit > (f->kind->in_hello ? ep->peer_window : UINT32_MAX))
        return false;
    if (f->counts) {
        f->credit_msgs += word->msgs;
        if (f->credit_msgs > MSGS_MAX)
            return false;
        if (f->credit_msgs / 4 > f->reserve_msgs)
            f->reserve_msgs = f->credit_msgs / 4;
    }
    if (!f->kind->in_hello && f->credit / 4 > f->reserve)
        f->reserve = f->credit / 4;
    f->starving = false;
    /* a little credit is one receive of a program that has just begun: no need to ask again */
    if (f->credit >= f->reserve && f->credit_msgs >= f->reserve_msgs)
        f->held_up = false;
    return true;
}

bool wefti_flow_word(weft_ep_t *ep, wefti_flow_t *f, const wefti_word_t *word)
{
    if (word->bytes || word->msgs) {
        if (!take_credit(ep, f, word)) {
            wefti_ep_protocol_error(ep, "more credit than a window has");
            return false;
        }
    } else if (word->kind == f->kind->rec_credit) {
        f->held_up = true;
    }
    if (word->kind != f->kind->rec_starved)
        return true;
    if (f->owed || f->owed_msgs) {
        wefti_flow_return(ep, f);
    } else if (seen_all(f)) {
        wefti_conn_of(ep->rt)->pub.n_starving += !f->peer_starving;
        f->peer_starving = true;
        f->peer_told = false;
    }
    return true;
}
