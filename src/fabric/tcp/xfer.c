/* fabric/tcp/xfer.c - announcements, pulls, refusals.
 *
 * Sender:    OFFER goes out as an item. PULL begins the bytes: between records (out.c), or over the second connection (bulk.c) if they are many.
 *            TAKEN ends it, and not before the last byte has left; REFUSED ends what was not pulled.
 * Receiver:  an offer is pulled under a slot; its bytes must come in order and are laid where they belong as they come. The last one is answered
 *            with TAKEN.
 *
 * The buffers of a pull are touched by reading only, those of an announcement by sending only; so either can end at any moment. Each answer
 * comes once: one that names nothing of this lane's, or comes at the wrong time, fails the lane.
 * Promise: each transfer is done once, from progress. tests/wire/fabric_lanes.c, tests/wire/fabric_tcp_hostile.c. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/tcp/internal.h"

int wefti_tp_pieces(const weft_iov_t *iov, size_t at, size_t skip, uint64_t most, struct iovec *v, int n)
{
    for (; most && n < TP_PIECES; at++, skip = 0) {
        size_t len = iov[at].len - skip;
        if (len > most)
            len = (size_t)most;
        if (!len)
            continue;
        v[n++] = (struct iovec){(uint8_t *)iov[at].base + skip, len};
        most -= len;
    }
    return n;
}

void wefti_tp_advance(const weft_iov_t *iov, size_t *at, size_t *skip, size_t n)
{
    while (n) {
        size_t left = iov[*at].len - *skip, part = n < left ? n : left;
        *skip += part;
        n -= part;
        if (*skip == iov[*at].len) {
            ++*at;
            *skip = 0;
        }
    }
}

/* --- out -------------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_tp_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                uint64_t total, wefti_xfer_t *x)
{
    tp_lane_t *l = tp_lane(lane);
    (void)iov_n; /* `total` says where it ends */
    if (l->failed || l->mute)
        return WEFT_ERR_AGAIN;
    uint8_t *at = wefti_tp_make_room(l, 16 + n, false);
    if (!at)
        return WEFT_ERR_AGAIN;
    tp_send_t *s = wefti_calloc(1, sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an announcement");
    weft_status_t st = wefti_slots_add(&l->transport->sends, s, &s->id);
    if (st) {
        wefti_free(s);
        return st;
    }
    s->lane = l;
    s->x = x;
    s->iov = iov;
    s->total = total;
    wefti_list_push_back(&l->announces, &s->link);
    memcpy(at, &s->id, 8);
    memcpy(at + 8, &total, 8);
    memcpy(at + 16, rec, n);
    wefti_tp_put(l, TP_OFFER, 16 + n);
    return WEFT_OK;
}

/* It is over: progress will tell. */
static void send_end(tp_send_t *s, weft_status_t status)
{
    tp_lane_t *l = s->lane;
    s->status = status;
    wefti_slots_remove(&l->transport->sends, s->id);
    wefti_list_remove(&s->link);
    wefti_list_push_back(&l->transport->sent, &s->link);
    l->untold++; /* the lane must outlive what is told of it */
}

void wefti_tp_send_left(tp_send_t *s)
{
    wefti_list_remove(&s->link);
    wefti_list_push_back(&s->lane->announces, &s->link);
}

static void pull_arrived(tp_lane_t *l, const uint8_t *bytes, uint32_t n)
{
    uint64_t nums[4];
    if (n != sizeof nums) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a pull of the wrong length");
        return;
    }
    memcpy(nums, bytes, sizeof nums);
    tp_send_t *s = wefti_slots_get(&l->transport->sends, nums[0]);
    if (!s || s->lane != l || s->pulled || !nums[2] || nums[2] > s->total || nums[3] > 1) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a pull of what was not offered");
        return;
    }
    s->pulled = true;
    s->slot = nums[1];
    s->want = nums[2];
    wefti_list_remove(&s->link);
    if (nums[3] && !l->no_bulk) {
        wefti_list_push_back(&l->bulk_out, &s->link);
        wefti_tp_bulk_want(l);
        wefti_tp_bulk_busy(l);
        return;
    }
    wefti_list_push_back(&l->pumping, &s->link);
    wefti_tp_later(l);
}

static void answer_arrived(tp_lane_t *l, uint64_t id, uint32_t kind)
{
    tp_send_t *s = wefti_slots_get(&l->transport->sends, id);
    bool whole = s && s->pulled && s->sent == s->want && l->chunk != s;
    if (!s || s->lane != l || (s->pulled && !(whole && kind == TP_TAKEN))) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "an answer to what was not offered or not sent");
        return;
    }
    send_end(s, kind == TP_TAKEN ? WEFT_OK : WEFT_ERR_REFUSED);
}

/* --- in --------------------------------------------------------------------------------------------------------------------- */

static void pull_free(tp_pull_t *p)
{
    if (p->iov != p->own_iov)
        wefti_free(p->iov);
    wefti_free(p);
}

static void offer_arrived(tp_lane_t *l, const uint8_t *bytes, uint32_t n)
{
    uint64_t id, total;
    if (n <= 16 || n > 16 + WEFTI_REC_MAX / 2) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "an offer of the wrong length");
        return;
    }
    memcpy(&id, bytes, 8);
    memcpy(&total, bytes + 8, 8);
    if (!total || wefti_map_get(&l->offer_ids, id)) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "an offer that makes no sense");
        return;
    }
    tp_pull_t *p = wefti_calloc(1, sizeof *p);
    if (!p || wefti_map_put(&l->offer_ids, id, p)) {
        wefti_free(p);
        wefti_tp_fail(l, WEFT_ERR_NOMEM, "no memory for an offer");
        return;
    }
    p->base.ops = l->base.ops;
    p->lane = l;
    p->id = id;
    p->total = total;
    p->iov = p->own_iov;
    wefti_list_push_back(&l->offers, &p->link);
    l->transport->base.fabric->up->announced(l->base.user, bytes + 16, n - 16, total, &p->base);
}

static void pull_end(tp_pull_t *p, weft_status_t status)
{
    tp_lane_t *l = p->lane;
    p->status = status;
    if (p->slot)
        wefti_slots_remove(&l->transport->pulls, p->slot);
    p->slot = 0;
    l->bulk_in -= p->bulk;
    p->bulk = false;
    wefti_list_remove(&p->link);
    wefti_list_push_back(&l->transport->pulled, &p->link);
    l->untold++;
}

weft_status_t wefti_tp_pull(wefti_pull_t *pull, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    tp_pull_t *p = wefti_container_of(pull, tp_pull_t, base);
    tp_lane_t *l = p->lane;
    weft_iov_t *pieces = iov_n <= sizeof p->own_iov / sizeof p->own_iov[0] ? p->own_iov : wefti_malloc(iov_n * sizeof *pieces);
    if (!pieces)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %zu pieces", iov_n);
    uint64_t slot;
    weft_status_t st = wefti_slots_add(&l->transport->pulls, p, &slot);
    if (st) {
        if (pieces != p->own_iov)
            wefti_free(pieces);
        return st;
    }
    memcpy(pieces, iov, iov_n * sizeof *pieces);
    p->iov = pieces;
    p->slot = slot;
    p->want = want;
    p->x = x;
    wefti_map_take(&l->offer_ids, p->id);
    wefti_list_remove(&p->link);
    wefti_list_push_back(&l->pulling, &p->link);
    if (l->failed || l->state >= TP_LANE_CLOSING) {
        pull_end(p, l->failed ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED);
        return WEFT_OK;
    }
    p->bulk = want >= TP_BULK_MIN && !l->no_bulk;
    uint64_t nums[4] = {p->id, slot, want, p->bulk};
    if (p->bulk) {
        l->bulk_in++;
        wefti_tp_bulk_want(l);
        wefti_tp_bulk_busy(l);
        nums[3] = p->bulk; /* there may turn out to be none */
    }
    wefti_tp_control(l, TP_PULL, nums, sizeof nums);
    return WEFT_OK;
}

void wefti_tp_refuse(wefti_pull_t *pull, bool taken)
{
    tp_pull_t *p = wefti_container_of(pull, tp_pull_t, base);
    wefti_map_take(&p->lane->offer_ids, p->id);
    wefti_list_remove(&p->link);
    wefti_tp_control_id(p->lane, taken ? TP_TAKEN : TP_REFUSED, p->id);
    pull_free(p);
}

tp_pull_t *wefti_tp_chunk_begins(tp_lane_t *l, uint64_t slot, uint32_t n)
{
    tp_pull_t *p = wefti_slots_get(&l->transport->pulls, slot);
    if (!p || p->lane != l || !n || n > TP_CHUNK || n > p->want - p->got || (l->bulk && l->bulk->pull == p)) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a chunk of what is not being pulled");
        return NULL;
    }
    l->bulk_in -= p->bulk;
    p->bulk = false;
    return p;
}

bool wefti_tp_pull_advance(tp_pull_t *p, size_t n)
{
    p->got += n;
    wefti_tp_advance(p->iov, &p->iov_at, &p->piece_at, n);
    if (p->got < p->want)
        return false;
    pull_end(p, WEFT_OK);
    return true;
}

void wefti_tp_item(tp_lane_t *l, uint32_t kind, const uint8_t *bytes, uint32_t n)
{
    uint64_t value;
    if (kind == TP_OFFER) {
        offer_arrived(l, bytes, n);
        return;
    }
    if (kind == TP_PULL) {
        pull_arrived(l, bytes, n);
        return;
    }
    if (n != sizeof value) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a control record of the wrong length");
        return;
    }
    memcpy(&value, bytes, sizeof value);
    switch (kind) {
    case TP_TAKEN:
    case TP_REFUSED:
        answer_arrived(l, value, kind);
        return;
    case TP_NO_BULK:
        wefti_tp_bulk_none(l, false);
        return;
    default:
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a record of no known kind");
    }
}

/* --- the end ------------------------------------------------------------------------------------------------------------------ */

/* The lane closes: end all that is under way. Offers stay until they are told. */
void wefti_tp_abandon(tp_lane_t *l)
{
    weft_status_t why = l->failed || l->mute ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED;
    wefti_list_t *lists[] = {&l->announces, &l->pumping, &l->bulk_out}, *it;
    for (int i = 0; i < 3; i++) {
        while ((it = wefti_list_first(lists[i])))
            send_end(wefti_container_of(it, tp_send_t, link), why);
    }
    while ((it = wefti_list_first(&l->pulling)))
        pull_end(wefti_container_of(it, tp_pull_t, link), why);
    l->rx_pull = NULL;
    l->rx_left = l->rx_pad = 0;
}

void wefti_tp_tell_withdrawn(tp_lane_t *l)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&l->offers))) {
        tp_pull_t *p = wefti_container_of(it, tp_pull_t, link);
        wefti_map_take(&l->offer_ids, p->id);
        l->transport->base.fabric->up->withdrawn(&p->base);
        pull_free(p);
    }
}

static void told(tp_lane_t *l)
{
    l->untold--;
    if (l->state == TP_LANE_ENDED)
        wefti_tp_event(l, TP_EV_CLOSE);
}

unsigned wefti_tp_tell_done(tp_transport_t *r)
{
    unsigned n = 0;
    wefti_list_t sent, pulled, *it;
    wefti_list_init(&sent);
    wefti_list_init(&pulled);
    wefti_list_splice(&sent, &r->sent);
    wefti_list_splice(&pulled, &r->pulled);
    while ((it = wefti_list_pop(&sent))) {
        tp_send_t *s = wefti_container_of(it, tp_send_t, link);
        tp_lane_t *l = s->lane;
        wefti_xfer_t *x = s->x;
        weft_status_t st = s->status;
        wefti_free(s);
        told(l);
        x->done(x, st);
        n++;
    }
    while ((it = wefti_list_pop(&pulled))) {
        tp_pull_t *p = wefti_container_of(it, tp_pull_t, link);
        tp_lane_t *l = p->lane;
        wefti_xfer_t *x = p->x;
        weft_status_t st = p->status;
        /* Not before: whoever pulled must know of the end before anything that the sender does upon it. */
        if (!st)
            wefti_tp_control_id(l, TP_TAKEN, p->id);
        pull_free(p);
        told(l);
        x->done(x, st);
        n++;
    }
    return n;
}
