/* fabric/tcp/xfer.c - announcements, pulls, refusals.
 *
 * Sender:    OFFER goes out as an item. PULL starts the bytes: between records (out.c), or over the second connection (bulk.c)
 *            if they are many. TAKEN ends it, and may not come before the last byte has left. REFUSED ends what was not pulled.
 * Receiver:  an offer is pulled under a slot. Its bytes must come in order, and are put where they belong as they come. TAKEN
 *            answers the last one.
 *
 * The buffers of a pull are touched by reading only, those of an announcement by sending only; so either can end at any moment.
 * Each answer comes once: one that names nothing of this lane's, or comes at the wrong time, fails the lane. Promise: each
 * transfer is done once, from progress. tests/wire/fabric_lanes.c, tests/wire/fabric_tcp_hostile.c. */
#include <string.h>

#include "base/log.h"
#include "fabric/tcp/internal.h"

/* --- out ---------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_tp_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                uint64_t total, wefti_xfer_t *x)
{
    tp_lane_t *l = tp_lane(lane);
    (void)iov_n; /* `total` says where it ends */
    if (l->half.failed || l->mute)
        return WEFT_ERR_AGAIN;
    uint8_t *at = wefti_tp_make_space(l, WEFTI_OFFER_HEAD + n, false);
    if (!at)
        return WEFT_ERR_AGAIN;
    wefti_outgoing_t *o;
    weft_status_t st = wefti_outgoing_new(&l->half, iov, total, x, sizeof *o, &o);
    if (st)
        return st;
    wefti_outgoing_offer(o, at, rec, n);
    wefti_tp_put(l, TP_OFFER, WEFTI_OFFER_HEAD + n);
    return WEFT_OK;
}

static void pull_arrived(tp_lane_t *l, const uint8_t *bytes, uint32_t n)
{
    uint64_t nums[4];
    if (n == sizeof nums)
        memcpy(nums, bytes, sizeof nums);
    if (n != sizeof nums || nums[3] > 1) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a pull of the wrong length, or over no connection there is");
        return;
    }
    wefti_outgoing_t *o = wefti_outgoing_pulled(&l->half, nums);
    if (!o)
        return;
    if (!nums[3] || l->no_bulk) {
        wefti_half_later(&l->half);
        return;
    }
    wefti_list_remove(&o->job.link);
    wefti_list_push_back(&l->bulk_out, &o->job.link);
    wefti_tp_bulk_want(l);
    wefti_tp_bulk_busy(l);
}

static void answer_arrived(tp_lane_t *l, uint64_t id, uint32_t kind)
{
    wefti_outgoing_t *o = wefti_outgoing_find(&l->half, id);
    bool whole = o && o->pulled && o->sent == o->want && l->chunk != o;
    if (!o || (o->pulled && !(whole && kind == TP_TAKEN))) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "an answer to what was not offered or not sent");
        return;
    }
    wefti_outgoing_end(o, kind == TP_TAKEN ? WEFT_OK : WEFT_ERR_REFUSED);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* It does not come over the second connection, or no more. */
static void not_bulk(tp_lane_t *l, tp_pull_t *p)
{
    l->bulk_in -= p->bulk;
    p->bulk = false;
}

static void pull_end(tp_lane_t *l, tp_pull_t *p, weft_status_t status)
{
    not_bulk(l, p);
    wefti_incoming_end(&p->in, status);
}

weft_status_t wefti_tp_pull(wefti_pull_t *pull, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    tp_pull_t *p = wefti_container_of(pull, tp_pull_t, in.base);
    tp_lane_t *l = tp_lane(&p->in.job.of->base);
    weft_status_t st = wefti_incoming_pull(&p->in, iov, iov_n, want, x);
    if (st)
        return st;
    if (l->half.failed || l->state >= TP_LANE_CLOSING) {
        pull_end(l, p, l->half.failed ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED);
        return WEFT_OK;
    }
    p->bulk = want >= TP_BULK_MIN && !l->no_bulk;
    if (p->bulk) {
        l->bulk_in++;
        wefti_tp_bulk_want(l);
        wefti_tp_bulk_busy(l);
    }
    uint64_t nums[4] = {p->in.id, p->in.slot, want, p->bulk}; /* there may have turned out to be none */
    wefti_tp_control(l, TP_PULL, nums, sizeof nums);
    return WEFT_OK;
}

void wefti_tp_refuse(wefti_pull_t *pull, bool taken)
{
    wefti_incoming_t *p = wefti_container_of(pull, wefti_incoming_t, base);
    wefti_tp_control_id(tp_lane(&p->job.of->base), taken ? TP_TAKEN : TP_REFUSED, p->id);
    wefti_incoming_drop(p);
}

tp_pull_t *wefti_tp_chunk_begins(tp_lane_t *l, uint64_t slot, uint32_t n)
{
    tp_pull_t *p = tp_pull(wefti_incoming_find(&l->half, slot, n));
    if (!p)
        return NULL;
    if (n > TP_CHUNK || (l->bulk && l->bulk->pull == p)) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a chunk that is too long, or comes over two connections");
        return NULL;
    }
    not_bulk(l, p);
    return p;
}

bool wefti_tp_pull_came(tp_pull_t *p, size_t n)
{
    if (!wefti_incoming_came(&p->in, n))
        return false;
    pull_end(tp_lane(&p->in.job.of->base), p, WEFT_OK);
    return true;
}

void wefti_tp_item(tp_lane_t *l, uint32_t kind, const uint8_t *bytes, uint32_t n)
{
    uint64_t value;
    if (kind == TP_OFFER) {
        wefti_offer_arrived(&l->half, bytes, n, sizeof(tp_pull_t));
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

/* --- the end ------------------------------------------------------------------------------------------------------ */

void wefti_tp_abandon(tp_lane_t *l)
{
    weft_status_t why = l->half.failed || l->mute ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED;
    wefti_outgoing_end_all(&l->half.announced, why);
    wefti_outgoing_end_all(&l->half.sending, why);
    wefti_outgoing_end_all(&l->bulk_out, why);
    for (wefti_list_t *it; (it = wefti_list_first(&l->half.pulling));)
        pull_end(l, wefti_container_of(it, tp_pull_t, in.job.link), why);
    l->rx_pull = NULL;
    l->rx_left = l->rx_pad = 0;
}

static void fail(wefti_lane_t *lane, weft_status_t why, const char *what)
{
    wefti_tp_fail(tp_lane(lane), why, what);
}

static void pull_ends(wefti_incoming_t *p)
{
    if (!p->job.status)
        wefti_tp_control_id(tp_lane(&p->job.of->base), TP_TAKEN, p->id);
}

static void told(wefti_lane_t *lane)
{
    if (tp_lane(lane)->state == TP_LANE_ENDED)
        wefti_half_event(&tp_lane(lane)->half, WEFTI_EV_CLOSE);
}

const wefti_transfers_ops_t wefti_tp_transfers = {
    .fail = fail,
    .pull_ends = pull_ends,
    .told = told,
    .lane_event = wefti_tp_lane_event,
};
