/* conn/flow.h - how much a peer may leave here: the window, and the credit that refills it. One per traffic and endpoint; part
 * of the door conn/conn.h.
 *
 * The window is counted in bytes and, where the traffic says so, in messages too. Every byte of it is in one of four places:
 * granted (the peer may use it), held (messages nobody took), owed (taken, not yet returned), or on its way to us. Credit
 * travels in a wefti_word_t at the head of the traffic's records, or as a record of its own.
 *
 * A sender that is down to its reserve (the last quarter) says STARVED and waits. Usually the answer is credit. If the program
 * there waits for a message that is not here, while the window is full of others, the answer is a credit of zero: `held_up`;
 * the reserve is then used for announcements, among which the wanted one may be.
 *
 * Driver only. */
#ifndef WEFTI_FLOW_H
#define WEFTI_FLOW_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/op.h>

typedef struct weft_ep weft_ep_t;

/* The first eight bytes of a record of traffic. */
typedef struct wefti_word {
    uint8_t kind;
    uint8_t flags;   /* the traffic's own */
    uint16_t msgs;   /* window returned, in messages */
    uint32_t bytes;  /* and in bytes */
} wefti_word_t;

/* What the traffic says about its window; static const. */
typedef struct wefti_flow_kind {
    uint8_t rec_credit, rec_starved;                 /* kinds of its two records, both a bare wefti_word_t */
    bool counts_msgs;                                /* the window has a bound in messages too */
    bool in_hello;                                   /* ep->peer_window is what the peer grants: its hello said so */
} wefti_flow_kind_t;

typedef struct wefti_flow {
    /* ours to use, at the peer */
    uint64_t credit;         /* bytes left */
    uint64_t reserve;        /* the last of them */
    uint32_t credit_msgs;    /* messages left; UINT32_MAX / 2 where they are not counted */
    uint32_t reserve_msgs;
    bool starving;           /* we told the peer that sends wait for credit */
    bool held_up;            /* it answered that its window is full and its program waits for something else */
    /* the peer's to use, here */
    bool peer_starving;      /* it told us, and we owed nothing */
    bool peer_told;          /* and we told it that the window is full of what nobody asked for */
    bool credit_blocked;     /* credit is due and found no space on the lane */
    uint32_t counts;         /* 1: messages are counted; else 0, and so are the next four */
    uint32_t granted_msgs, owed_msgs, held_msgs, window_msgs;
    uint32_t return_at_msgs; /* owed so much, it is returned in a record of its own */
    uint64_t granted, owed, held, window, return_at;
    uint64_t cost_max;       /* the most that one message without a payload can cost, set by the traffic; 0: nobody knows */
    const wefti_flow_kind_t *kind;
} wefti_flow_t;

/* In ep_new: our window (at most 2^32 - 1 bytes and 2^16 - 1 messages), for as long as the endpoint lives. window_msgs is
 * ignored where messages are not counted. */
void wefti_flow_init(wefti_flow_t *f, const wefti_flow_kind_t *kind, uint64_t window, uint32_t window_msgs);
/* In ep_up: a new lane. Grant our window less what is still held. The reserve is a quarter of the peer's window where its
 * hello says it, else of the most credit there has been on this lane, which is the first grant unless the peer still held
 * something. */
void wefti_flow_up(weft_ep_t *ep, wefti_flow_t *f);
/* The lane has space again: send credit that found none. */
void wefti_flow_space(weft_ep_t *ep, wefti_flow_t *f);
/* In ep_down: the peer asks for nothing any more. */
void wefti_flow_down(weft_ep_t *ep, wefti_flow_t *f);

/* Return what is owed as a record of its own; nothing owed says that the window is full. For the functions below. */
void wefti_flow_return(weft_ep_t *ep, wefti_flow_t *f);
void wefti_flow_exceeded(weft_ep_t *ep);

/* A message of this cost arrived. false: the peer was not granted that; the endpoint has been failed. It is then neither
 * granted nor held: the caller counts it as held (wefti_flow_hold) or consumed. */
static inline bool wefti_flow_admit(weft_ep_t *ep, wefti_flow_t *f, uint64_t cost)
{
    if (__builtin_expect(cost > f->granted || f->counts > f->granted_msgs, 0)) {
        wefti_flow_exceeded(ep);
        return false;
    }
    f->granted -= cost;
    f->granted_msgs -= f->counts;
    return true;
}
static inline void wefti_flow_hold(wefti_flow_t *f, uint64_t cost)
{
    __atomic_store_n(&f->held, f->held + cost, __ATOMIC_RELAXED); /* weft_ep_get_info() looks, from any thread */
    __atomic_store_n(&f->held_msgs, f->held_msgs + f->counts, __ATOMIC_RELAXED);
}
static inline void wefti_flow_unhold(wefti_flow_t *f, uint64_t cost)
{
    __atomic_store_n(&f->held, f->held - cost, __ATOMIC_RELAXED);
    __atomic_store_n(&f->held_msgs, f->held_msgs - f->counts, __ATOMIC_RELAXED);
}
/* It is consumed (and not, or no longer, held): owe its cost, and return it when due. */
static inline void wefti_flow_consumed(weft_ep_t *ep, wefti_flow_t *f, uint64_t cost)
{
    f->owed += cost;
    f->owed_msgs += f->counts;
    if (__builtin_expect(f->owed >= f->return_at || f->owed_msgs >= f->return_at_msgs || f->peer_starving, 0))
        wefti_flow_return(ep, f);
}
/* A receive waits for something that is not here: tell the peer if it starves. */
static inline void wefti_flow_waits(weft_ep_t *ep, wefti_flow_t *f)
{
    if (f->peer_starving && !f->peer_told)
        wefti_flow_return(ep, f);
}
/* How many flows of the runtime have peer_starving set, so that a receive from any peer knows whether to look:
 * wefti_flow_n_starving(), in conn.h. */

/* May a message of this cost go? `deep`: it may use the reserve. */
static inline bool wefti_flow_can(const wefti_flow_t *f, uint64_t cost, bool deep)
{
    return f->credit >= cost + (deep ? 0 : f->reserve) && f->credit_msgs >= 1 + (deep ? 0 : f->reserve_msgs);
}
static inline void wefti_flow_spend(wefti_flow_t *f, uint64_t cost)
{
    f->credit -= cost;
    f->credit_msgs -= f->counts;
}
/* Sends wait for credit: tell the peer. false: no space on the lane to say so; it is said when there is. */
bool wefti_flow_starved(weft_ep_t *ep, wefti_flow_t *f);
/* Credit or a question that came in a record's word. false: more than a window can have; the endpoint has been failed.
 * Otherwise the caller flushes what waits, and calls wefti_flow_waits() if it was the question and a receive waits. */
bool wefti_flow_word(weft_ep_t *ep, wefti_flow_t *f, const wefti_word_t *word);

/* All that is owed, for a record that goes out. */
static inline wefti_word_t wefti_flow_owed(wefti_flow_t *f, uint8_t kind)
{
    wefti_word_t word = {.kind = kind, .msgs = (uint16_t)f->owed_msgs, .bytes = (uint32_t)f->owed};
    f->granted += f->owed;
    f->granted_msgs += f->owed_msgs;
    f->owed = f->owed_msgs = 0;
    return word;
}
/* Owed so much, it travels on the next record that goes out anyway. Less is not worth the peer's adding it up: a peer that
 * needs it says so. */
static inline bool wefti_flow_worth(const wefti_flow_t *f)
{
    return f->owed >= f->return_at / 8 || f->owed_msgs > f->return_at_msgs / 8;
}
/* The credit to put into a record that goes out anyway. unpiggyback: it did not go after all. */
static inline wefti_word_t wefti_flow_piggyback(wefti_flow_t *f, uint8_t kind)
{
    return __builtin_expect(wefti_flow_worth(f), 0) ? wefti_flow_owed(f, kind) : (wefti_word_t){.kind = kind};
}
static inline void wefti_flow_unpiggyback(wefti_flow_t *f, wefti_word_t word)
{
    f->granted -= word.bytes;
    f->granted_msgs -= word.msgs;
    f->owed += word.bytes;
    f->owed_msgs += word.msgs;
}

/* --- counting -------------------------------------------------------------------------------------------------------------- */

/* What went and came; what came is counted when it arrives. Written by the driver, read by any thread. */
typedef struct wefti_count {
    uint64_t sent, bytes_sent, received, bytes_received;
} wefti_count_t;

static inline void wefti_count_up(uint64_t *counter, uint64_t n) { __atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED); }
static inline wefti_count_t wefti_count_read(const wefti_count_t *c)
{
    return (wefti_count_t){__atomic_load_n(&c->sent, __ATOMIC_RELAXED), __atomic_load_n(&c->bytes_sent, __ATOMIC_RELAXED),
                           __atomic_load_n(&c->received, __ATOMIC_RELAXED),
                           __atomic_load_n(&c->bytes_received, __ATOMIC_RELAXED)};
}
static inline void wefti_count_sum(wefti_count_t *to, const wefti_count_t *c)
{
    if (!(c->sent | c->received))
        return; /* of an endpoint that the driver never knew, which any thread frees: only the driver may write `to` */
    to->sent += c->sent;
    to->bytes_sent += c->bytes_sent;
    to->received += c->received;
    to->bytes_received += c->bytes_received;
}

#endif
