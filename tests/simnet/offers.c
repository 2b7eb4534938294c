/* tests/simnet/offers.c - payloads that are announced, pulled, lent, refused, withdrawn.
 *
 * An offer has two sides that end independently. The receiver's: FLYING -> THERE -> PULLING -> OVER, or THERE -> OVER by
 * refuse(), or when its lane is closed: then it is withdrawn. The sender's: under way until an acknowledgement arrives or its
 * lane has let go.
 *
 * A pull copies at once or in pieces as time passes, from the sender's own pieces, so that memory freed too early is read by a
 * sanitizer's witness. The payload is hashed when it is announced and again when it is let go: it may not change between. The
 * receiver's pieces are filled with a pattern that has to be there still when the bytes come.
 *
 * What is lent is a copy, so that a borrower that reads on after giving it back reads freed memory, and one that writes to it is
 * found out; the sender's own bytes have to be as they were for as long as it has not been told that they are its own again. Not
 * everything that could be lent is: whoever borrows must be able to pull.
 *
 * Promise: each transfer is done once, after nobody looks at its memory any more. tests/sim/fabric_order.c. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "simnet/world.h"

#define POISON 0xa5
#define OFFER_COST 64

static uint64_t hash_piece(uint64_t h, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    for (; n; p++, n--)
        h = (h ^ *p) * UINT64_C(0x100000001b3);
    return h;
}

/* The hash depends on how the payload is cut into pieces, which does not change while it is announced. */
static uint64_t hash_pieces(const weft_iov_t *iov, size_t iov_n, uint64_t total)
{
    uint64_t h = total + 1;
    for (size_t i = 0; i < iov_n && total; i++) {
        size_t n = iov[i].len < total ? iov[i].len : (size_t)total;
        h = hash_piece(h, iov[i].base, n);
        total -= n;
    }
    return h;
}

static uint64_t pieces_length(const weft_iov_t *iov, size_t iov_n)
{
    uint64_t n = 0;
    for (size_t i = 0; i < iov_n; i++)
        n += iov[i].len;
    return n;
}

/* The longest stretch that begins at `skip`: its address, and in *n its length. */
static uint8_t *stretch(const weft_iov_t *iov, size_t iov_n, uint64_t skip, size_t *n)
{
    for (size_t i = 0; i < iov_n; i++) {
        if (skip < iov[i].len) {
            *n = iov[i].len - (size_t)skip;
            return (uint8_t *)iov[i].base + skip;
        }
        skip -= iov[i].len;
    }
    *n = 0;
    return NULL;
}

static void fill(const weft_iov_t *iov, size_t iov_n, uint64_t from, uint64_t to, int byte)
{
    while (from < to) {
        size_t n;
        uint8_t *p = stretch(iov, iov_n, from, &n);
        n = n < to - from ? n : (size_t)(to - from);
        memset(p, byte, n);
        from += n;
    }
}

/* Copy `n` bytes of the payload, from where the pull has got to. */
static void copy(sim_offer_t *o, uint64_t n)
{
    wefti_sim_t *w = o->to->host->world;
    wefti_sim_trace(w, o->to->host, SIM_T_PULL_STEP, o->id, n);
    while (n) {
        size_t sn, dn;
        const uint8_t *s = stretch(o->iov, o->iov_n, o->have, &sn);
        uint8_t *d = stretch(o->pull_iov, o->pull_iov_n, o->have, &dn);
        size_t k = sn < dn ? sn : dn;
        k = k < n ? k : (size_t)n;
        for (size_t i = 0; i<k; i += k> 64 ? 61 : 1)
            if (d[i] != POISON && !w->payloads_change)
                wefti_sim_violation(w, "the buffer of pull %u was written to before the bytes came", o->id);
        memcpy(d, s, k);
        o->have += k;
        n -= k;
    }
}

/* --- shared ranges ------------------------------------------------------------------------------------------------ */

weft_status_t wefti_sim_share(wefti_fabric_t *f, void *base, size_t n, int fd, uint64_t *id_out)
{
    sim_host_t *h = sim_host_of(f);
    (void)fd;
    if (!base || !n)
        wefti_sim_violation(h->world, "host %s shares %zu bytes at %p", h->name, n, base);
    sim_share_t *s = wefti_malloc(sizeof *s); /* the door has a status for it */
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to share a range");
    *s = (sim_share_t){.base = base, .n = n};
    pthread_mutex_lock(&h->share_lock);
    *id_out = s->id = ++h->last_share;
    wefti_list_push_back(&h->shares, &s->link);
    pthread_mutex_unlock(&h->share_lock);
    return WEFT_OK;
}

static bool share_has(const sim_share_t *s, const weft_iov_t *piece)
{
    const uint8_t *at = piece->base;
    return at >= s->base && (size_t)(at - s->base) <= s->n && piece->len <= s->n - (size_t)(at - s->base);
}

/* Whoever unshares a range unmaps it next: nothing of it may be announced any more. */
static void none_announced(sim_host_t *h, const sim_share_t *s)
{
    wefti_list_each(at, &h->lanes) {
        sim_lane_t *lane = wefti_container_of(at, sim_lane_t, link);
        wefti_list_each(it, &lane->sent) {
            sim_offer_t *o = wefti_container_of(it, sim_offer_t, sent_link);
            for (size_t i = 0; i < o->iov_n; i++)
                if (o->iov[i].len && share_has(s, &o->iov[i]))
                    wefti_sim_violation(h->world, "host %s unshares range %llu while offer %u is in it", h->name,
                                        (unsigned long long)s->id, o->id);
        }
    }
}

void wefti_sim_unshare(wefti_fabric_t *f, uint64_t id)
{
    sim_host_t *h = sim_host_of(f);
    sim_share_t *s = NULL;
    if (!id)
        return;
    pthread_mutex_lock(&h->share_lock);
    wefti_list_each(it, &h->shares)
        if (wefti_container_of(it, sim_share_t, link)->id == id)
            s = wefti_container_of(it, sim_share_t, link);
    if (s)
        wefti_list_remove(&s->link);
    pthread_mutex_unlock(&h->share_lock);
    if (!s)
        wefti_sim_violation(h->world, "host %s unshares range %llu, which it does not share", h->name, (unsigned long long)id);
    none_announced(h, s);
    wefti_free(s);
}

/* The one piece of a payload that is not empty; NULL: there are several. */
static const weft_iov_t *only_piece(const weft_iov_t *iov, size_t iov_n)
{
    const weft_iov_t *piece = NULL;
    for (size_t i = 0; i < iov_n; i++) {
        if (iov[i].len && piece)
            return NULL;
        if (iov[i].len)
            piece = &iov[i];
    }
    return piece;
}

static bool is_shared(sim_host_t *h, const weft_iov_t *iov, size_t iov_n)
{
    const weft_iov_t *piece = only_piece(iov, iov_n);
    bool found = false;
    pthread_mutex_lock(&h->share_lock);
    if (piece)
        wefti_list_each(it, &h->shares)
            found = found || share_has(wefti_container_of(it, sim_share_t, link), piece);
    pthread_mutex_unlock(&h->share_lock);
    return found;
}

/* --- the sender --------------------------------------------------------------------------------------------------- */

void wefti_sim_payloads_change(wefti_sim_t *w)
{
    w->payloads_change = true;
}

static void sender_done(sim_offer_t *o, weft_status_t status)
{
    sim_host_t *h = o->from->host;
    wefti_xfer_t *x = o->x;
    if (!h->world->payloads_change && hash_pieces(o->iov, o->iov_n, o->total) != o->hash)
        wefti_sim_violation(h->world, "the payload of offer %u of host %s changed while it was announced", o->id, h->name);
    o->sent_done = true;
    o->x = NULL;
    wefti_list_remove(&o->sent_link);
    h->transfers--;
    wefti_sim_trace(h->world, h, SIM_T_ANNOUNCE_DONE, o->id, (uint64_t)(int64_t)status);
    x->done(x, status);
}

weft_status_t wefti_sim_announce(wefti_lane_t *base, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                 uint64_t total, wefti_xfer_t *x)
{
    sim_lane_t *lane = wefti_container_of(base, sim_lane_t, base);
    sim_host_t *h = lane->host;
    wefti_sim_t *w = h->world;
    wefti_sim_lane_usable(lane, "announce");
    if (!n || n > WEFTI_REC_MAX / 2 || !x->done || pieces_length(iov, iov_n) < total)
        wefti_sim_violation(w, "announce on lane %u: a record of %zu bytes, %llu bytes in pieces of %llu%s", lane->id, n,
                            (unsigned long long)total, (unsigned long long)pieces_length(iov, iov_n),
                            x->done ? "" : ", no done()");
    wefti_list_each(it, &lane->sent)
        if (wefti_container_of(it, sim_offer_t, sent_link)->x == x)
            wefti_sim_violation(w, "announce on lane %u with a transfer that is under way", lane->id);
    if (wefti_sim_lane_full(lane, n + OFFER_COST))
        return WEFT_ERR_AGAIN;
    sim_offer_t *o = wefti_sim_mem(sizeof *o);
    o->base.ops = &wefti_sim_transport_ops;
    o->id = ++w->next_offer;
    o->from = lane;
    o->to = lane->peer;
    o->x = x;
    o->iov = iov;
    o->iov_n = iov_n;
    o->total = total;
    o->hash = hash_pieces(iov, iov_n, total);
    o->shared = is_shared(h, iov, iov_n);
    wefti_list_init(&o->recv_link);
    wefti_list_push_back(&lane->sent, &o->sent_link);
    wefti_list_push_back(&w->offers, &o->all_link);
    h->transfers++;
    wefti_sim_trace(w, h, SIM_T_ANNOUNCE, lane->id, o->id);
    sim_packet_t *pk = wefti_sim_packet(SIM_PK_OFFER, rec, n);
    pk->offer = o;
    wefti_sim_lane_put(lane, pk, n + OFFER_COST);
    return WEFT_OK;
}

static void acknowledge(sim_offer_t *o, weft_status_t status)
{
    wefti_sim_t *w = o->from->host->world;
    if (o->to->host->dead)
        return;
    sim_event_t *ev =
        wefti_sim_event(w, o->from->host, o->to->host, SIM_EV_ACK, w->now + wefti_sim_delay(o->to->host, o->from->host));
    ev->offer = o;
    ev->status = status;
}

/* --- the receiver ------------------------------------------------------------------------------------------------- */

void wefti_sim_offer_arrives(sim_lane_t *lane, sim_packet_t *pk)
{
    sim_host_t *h = lane->host;
    sim_offer_t *o = pk->offer;
    o->state = SIM_OFFER_THERE;
    wefti_list_push_back(&lane->offered, &o->recv_link);
    wefti_sim_trace(h->world, h, SIM_T_ANNOUNCED, lane->id, o->id);
    sim_up(h)->announced(lane->base.user, pk->bytes, pk->n, o->total, &o->base);
}

static void offer_withdrawn(sim_offer_t *o)
{
    sim_host_t *h = o->to->host;
    o->state = SIM_OFFER_OVER;
    wefti_list_remove(&o->recv_link);
    wefti_sim_trace(h->world, h, SIM_T_WITHDRAWN, o->id, 0);
    sim_up(h)->withdrawn(&o->base);
}

static sim_offer_t *offer_there(wefti_pull_t *p, const char *what)
{
    sim_offer_t *o = wefti_container_of(p, sim_offer_t, base);
    wefti_sim_t *w = o->to->host->world;
    if (o->state != SIM_OFFER_THERE)
        wefti_sim_violation(w, "%s of offer %u, which is not there (any more)", what, o->id);
    if (o->to->state >= SIM_LANE_CLOSING)
        wefti_sim_violation(w, "%s of offer %u on lane %u, which is closed", what, o->id, o->to->id);
    return o;
}

/* The sender's memory can be reached no more, and the receiver can know it. */
static bool sender_lost(const sim_offer_t *o)
{
    return o->sent_done || o->from->broken || o->from->host->dead || o->from->state == SIM_LANE_GONE;
}

bool wefti_sim_pull_can_run(const sim_offer_t *o)
{
    const sim_host_t *from = o->from->host, *to = o->to->host;
    if (o->state != SIM_OFFER_PULLING)
        return true; /* it is over: the event only has to go */
    if (!sim_linked(from, to) || !sim_linked(to, from))
        return false;
    return sender_lost(o) || !from->paused || to->world->faults.style == WEFTI_SIM_SHM;
}

static void pull_later(sim_offer_t *o)
{
    sim_host_t *to = o->to->host;
    wefti_sim_t *w = to->world;
    uint64_t in_ns = wefti_sim_delay(o->from->host, to);
    if (sim_chance(w, w->faults.pull_slow))
        in_ns += sim_below(w, w->faults.pull_slow_ns + 1);
    wefti_sim_event(w, to, NULL, SIM_EV_PULL, w->now + in_ns)->offer = o;
}

weft_status_t wefti_sim_pull(wefti_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_OK};
    sim_offer_t *o = offer_there(p, "pull");
    sim_host_t *h = o->to->host;
    wefti_sim_t *w = h->world;
    if (!want || want > o->total || pieces_length(iov, iov_n) < want || !x->done)
        wefti_sim_violation(w, "pull of %llu bytes of offer %u, which has %llu, into %llu%s", (unsigned long long)want, o->id,
                            (unsigned long long)o->total, (unsigned long long)pieces_length(iov, iov_n),
                            x->done ? "" : ", no done()");
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_PULL, w->faults.pull_fails, statuses);
    void *charge = st ? NULL : wefti_malloc(32);
    if (!charge)
        return wefti_fail(st ? st : WEFT_ERR_NOMEM, "no memory for a pull of %llu bytes", (unsigned long long)want);
    wefti_free(charge);
    wefti_sim_trace(w, h, SIM_T_PULL, o->id, want);
    o->state = SIM_OFFER_PULLING;
    o->pull_x = x;
    o->pull_iov = iov;
    o->pull_iov_n = iov_n;
    o->want = want;
    wefti_list_remove(&o->recv_link);
    wefti_list_push_back(&o->to->pulling, &o->recv_link);
    h->transfers++;
    if (!o->to->host->world->payloads_change)
        fill(iov, iov_n, 0, want, POISON);
    if (sim_below(w, 3) == 0 && !sender_lost(o) && wefti_sim_pull_can_run(o))
        copy(o, want);
    pull_later(o);
    return WEFT_OK;
}

static void pull_done(sim_offer_t *o, weft_status_t status)
{
    sim_host_t *h = o->to->host;
    wefti_xfer_t *x = o->pull_x;
    if (status)
        fill(o->pull_iov, o->pull_iov_n, 0, h->world->payloads_change ? 0 : o->want, (int)sim_below(h->world, 256));
    o->state = SIM_OFFER_OVER;
    o->pull_x = NULL;
    wefti_list_remove(&o->recv_link);
    h->transfers--;
    wefti_sim_trace(h->world, h, SIM_T_PULL_DONE, o->id, (uint64_t)(int64_t)status);
    x->done(x, status);
}

static void pull_step(sim_offer_t *o)
{
    wefti_sim_t *w = o->to->host->world;
    if (o->state != SIM_OFFER_PULLING || o->to->state >= SIM_LANE_CLOSING)
        return; /* closing it is what ends it then */
    if (o->have < o->want && sender_lost(o)) {
        pull_done(o, WEFT_ERR_PEER);
        return;
    }
    if (o->have < o->want) {
        uint64_t left = o->want - o->have;
        copy(o, left > 1 && sim_below(w, 3) == 0 ? 1 + sim_below(w, left) : left);
        if (o->have < o->want) {
            pull_later(o);
            return;
        }
    }
    if (!o->sent_done && !o->from->broken)
        acknowledge(o, WEFT_OK);
    pull_done(o, WEFT_OK);
}

/* The sender's bytes stay what they were while they are lent, unless its lane has told it that they are its own again. */
static void check_lent(const sim_offer_t *o)
{
    if (!o->sent_done && hash_pieces(o->iov, o->iov_n, o->total) != o->hash)
        wefti_sim_violation(o->to->host->world, "the payload of offer %u of host %s changed while it was lent", o->id,
                            o->from->host->name);
}

weft_status_t wefti_sim_lend(wefti_pull_t *p, const void **ptr_out, void **lent_out)
{
    sim_offer_t *o = offer_there(p, "loan");
    sim_host_t *h = o->to->host, *from = o->from->host;
    wefti_sim_t *w = h->world;
    bool can = o->shared && o->total && !sender_lost(o) && w->faults.style == WEFTI_SIM_SHM && sim_linked(from, h) &&
               sim_linked(h, from) && sim_below(w, 4);
    wefti_sim_trace(w, h, SIM_T_LEND, o->id, (uint64_t)(int64_t)(can ? WEFT_OK : WEFT_ERR_UNSUPPORTED));
    if (!can)
        return WEFT_ERR_UNSUPPORTED;
    sim_loan_t *loan = wefti_sim_mem(sizeof *loan);
    loan->bytes = wefti_sim_mem(o->total); /* no longer than it is: a sanitizer sees who reads on */
    memcpy(loan->bytes, only_piece(o->iov, o->iov_n)->base, o->total);
    loan->hash = hash_piece(0, loan->bytes, o->total);
    loan->offer = o;
    wefti_list_push_back(&h->loans, &loan->link);
    o->lent = true;
    *ptr_out = loan->bytes;
    *lent_out = loan;
    return WEFT_OK;
}

void wefti_sim_unlend(wefti_transport_t *transport, void *lent)
{
    sim_host_t *h = sim_host_of(transport->fabric);
    sim_loan_t *loan = NULL;
    wefti_list_each(it, &h->loans)
        if (wefti_container_of(it, sim_loan_t, link) == lent)
            loan = lent;
    if (!loan)
        wefti_sim_violation(h->world, "host %s gives back what it has not borrowed", h->name);
    wefti_sim_trace(h->world, h, SIM_T_UNLEND, loan->offer->id, 0);
    check_lent(loan->offer);
    if (hash_piece(0, loan->bytes, loan->offer->total) != loan->hash)
        wefti_sim_violation(h->world, "host %s wrote to the payload of offer %u, which it had only borrowed", h->name,
                            loan->offer->id);
    wefti_list_remove(&loan->link);
    free(loan->bytes);
    free(loan);
}

void wefti_sim_refuse(wefti_pull_t *p, bool taken)
{
    sim_offer_t *o = offer_there(p, "refusal");
    if (o->lent)
        check_lent(o);
    wefti_sim_trace(o->to->host->world, o->to->host, SIM_T_REFUSE, o->id, taken);
    o->state = SIM_OFFER_OVER;
    wefti_list_remove(&o->recv_link);
    if (!o->sent_done && !o->from->broken)
        acknowledge(o, taken ? WEFT_OK : WEFT_ERR_REFUSED);
}

void wefti_sim_offer_event(sim_event_t *ev)
{
    sim_offer_t *o = ev->offer;
    if (ev->kind == SIM_EV_PULL)
        pull_step(o);
    else if (!o->sent_done && o->from->state == SIM_LANE_JOINED)
        sender_done(o, ev->status);
}

bool wefti_sim_offers_step(sim_lane_t *lane)
{
    wefti_list_t *lists[3] = {&lane->sent, &lane->offered, &lane->pulling};
    unsigned at = (unsigned)sim_below(lane->host->world, 3);
    for (unsigned i = 0; i < 3; i++) {
        unsigned which = (at + i) % 3;
        wefti_list_t *first = wefti_list_first(lists[which]);
        if (!first)
            continue;
        if (which == 0)
            sender_done(wefti_container_of(first, sim_offer_t, sent_link), WEFT_ERR_CANCELLED);
        else if (which == 1)
            offer_withdrawn(wefti_container_of(first, sim_offer_t, recv_link));
        else
            pull_done(wefti_container_of(first, sim_offer_t, recv_link), WEFT_ERR_CANCELLED);
        return true;
    }
    return false;
}
