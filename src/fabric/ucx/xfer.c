/* fabric/ucx/xfer.c - announcements out and in, their payloads over UCX's rendezvous (chunk.c has the other way).
 *
 * Sender:    announce() gives UCX the pieces in one rendezvous active message. UCX's completion ends it. If the peer has sent
 *            REFUSED or BYE before, the completion means that; otherwise it means delivered. UCX keeps the order of the two:
 *            both travel on the endpoint's one active-message lane.
 * Receiver:  UCX's descriptor is kept as an offer until pull(), refuse(), or the end of the lane. UCX cannot receive less than
 *            the whole: a pull() of less lets the rest fall into one small buffer, again and again.
 *
 * Promise: each transfer is done once, from progress. tests/wire/fabric_lanes.c, tests/wire/fabric_ucx.c. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/ucx/internal.h"

#define REST_PIECE (256u << 10)

/* The public type and UCX's are the same two words, so that arrays of one need no copy. */
_Static_assert(sizeof(weft_iov_t) == sizeof(ucp_dt_iov_t) && offsetof(weft_iov_t, len) == offsetof(ucp_dt_iov_t, length),
               "iov layout");

/* --- out ---------------------------------------------------------------------------------------------------------- */

static void announce_end(ux_announce_t *a, ucs_status_t status)
{
    ux_lane_t *l = ux_lane(&a->out.job.of->base);
    weft_status_t st;
    if (status != UCS_OK)
        st = l->state >= UX_CLOSING ? WEFT_ERR_CANCELLED : ux_nomem_or(status, WEFT_ERR_PEER);
    else if (a->refused)
        st = WEFT_ERR_REFUSED;
    else
        st = l->bye ? WEFT_ERR_PEER : WEFT_OK;
    wefti_outgoing_end(&a->out, st);
}

static void announce_sent(void *request, ucs_status_t status, void *user)
{
    ucp_request_free(request);
    announce_end(user, status);
}

weft_status_t wefti_ux_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                uint64_t total, wefti_xfer_t *x)
{
    ux_lane_t *l = ux_lane(lane);
    ux_transport_t *r = l->transport;
    if (r->chunked)
        return wefti_ux_offer(l, rec, n, iov, total, x);
    /* Not before the peer has its half of the endpoint: its answers must go the way this goes. */
    if (l->state != UX_UP || !l->answered || l->in_flight >= UX_IN_FLIGHT || l->half.failed) {
        l->half.want_space = true;
        return WEFT_ERR_AGAIN;
    }
    wefti_outgoing_t *o;
    weft_status_t st = wefti_outgoing_new(&l->half, iov, total, x, sizeof(ux_announce_t) + UX_ANNOUNCE_HEAD + n, &o);
    if (st)
        return st;
    ux_announce_t *a = ux_announce(o);
    wefti_ux_flush(l); /* the records before it go before it */
    uint32_t head[6] = {0, 0, l->tx_seq++, (uint32_t)n, 0, 0};
    memcpy(head, &l->peer_token, 8);
    memcpy(head + 4, &o->id, 8);
    memcpy(a->head, head, sizeof head);
    memcpy(a->head + sizeof head, rec, n);

    bool contig = iov_n == 1;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE,
        .flags = UCP_AM_SEND_FLAG_RNDV,
        .datatype = contig ? ucp_dt_make_contig(1) : ucp_dt_make_iov(),
        .cb.send = announce_sent,
        .user_data = a,
    };
    const void *buffer = contig ? iov[0].base : (const void *)iov;
    ucs_status_ptr_t p =
        ucp_am_send_nbx(l->ep->ucp, UX_AM_ID, a->head, UX_ANNOUNCE_HEAD + n, buffer, contig ? (size_t)total : iov_n, &param);
    if (!UCS_PTR_IS_PTR(p)) {
        announce_end(a, UCS_PTR_STATUS(p));
        if (UCS_PTR_IS_ERR(p))
            wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(UCS_PTR_STATUS(p)));
    }
    return WEFT_OK;
}

/* The receiver says that the completion that follows means a refusal. */
void wefti_ux_peer_refused(ux_lane_t *l, uint64_t id)
{
    wefti_outgoing_t *o = wefti_outgoing_find(&l->half, id);
    if (!o)
        return; /* it has ended otherwise, or is not this peer's to speak of */
    if (!l->transport->chunked)
        ux_announce(o)->refused = true;
    else if (!o->pulled)
        wefti_outgoing_end(o, WEFT_ERR_REFUSED);
    else
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a refusal of what is being pulled");
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* Give the descriptor back: UCX then completes the sender's request. */
static void desc_release(ux_pull_t *p)
{
    if (!p->desc || p->in_callback)
        return; /* in the callback, its return value does it, or the end of the transfer */
    ucp_am_data_release(ux_lane(&p->in.job.of->base)->transport->worker, p->desc);
    p->desc = NULL;
}

ucs_status_t wefti_ux_announce_arrived(ux_transport_t *r, const void *head, size_t head_n, void *desc, size_t total)
{
    uint64_t token = 0, id;
    uint32_t nums[2];
    if (head_n >= UX_ANNOUNCE_HEAD)
        memcpy(&token, head, 8);
    ux_lane_t *l = wefti_ux_lane_of(r, token);
    if (head_n < UX_ANNOUNCE_HEAD || !l) {
        r->strangers++;
        return UCS_ERR_REJECTED;
    }
    memcpy(nums, (const uint8_t *)head + 8, 8);
    memcpy(&id, (const uint8_t *)head + 16, 8);
    if (nums[0] != l->rx_seq) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a frame is missing before an announcement");
        return UCS_ERR_REJECTED;
    }
    l->rx_seq++;
    if (l->state >= UX_CLOSING || l->half.failed)
        return UCS_ERR_REJECTED;
    if (l->state != UX_UP || !nums[1] || nums[1] != head_n - UX_ANNOUNCE_HEAD) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "an announcement that makes no sense");
        return UCS_ERR_REJECTED;
    }
    ux_pull_t *p = ux_pull(wefti_incoming_new(&l->half, id, total, sizeof *p));
    if (!p)
        return UCS_ERR_REJECTED;
    p->desc = desc;
    p->rendezvous = p->in_callback = true;
    l->in_callback = p;
    r->base.fabric->up->announced(l->half.base.user, (const uint8_t *)head + UX_ANNOUNCE_HEAD, nums[1], total, &p->in.base);
    bool refused = !l->in_callback; /* refused by `announced` itself: p is gone, and UCX ends it when we return */
    l->in_callback = NULL;
    if (refused)
        return UCS_OK;
    p->in_callback = false;
    return UCS_INPROGRESS;
}

static void pull_received(void *request, ucs_status_t status, size_t n, void *user)
{
    ux_pull_t *p = user;
    ucp_request_free(request);
    weft_status_t st = WEFT_OK;
    if (status != UCS_OK)
        st = ux_lane(&p->in.job.of->base)->state >= UX_CLOSING ? WEFT_ERR_CANCELLED : ux_nomem_or(status, WEFT_ERR_PEER);
    else if (n != p->in.total)
        st = WEFT_ERR_PEER;
    wefti_incoming_end(&p->in, st);
}

/* UCX's pieces for want bytes into iov and the rest of the payload into one small buffer, over and over. */
static weft_status_t lay_out(ux_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, size_t *n_out)
{
    uint64_t rest = p->in.total - want;
    size_t rest_n = (size_t)((rest + REST_PIECE - 1) / REST_PIECE), n = 0;
    weft_iov_t *at = wefti_malloc((iov_n + rest_n) * sizeof *at + (rest < REST_PIECE ? (size_t)rest : REST_PIECE));
    if (!at)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %zu pieces", iov_n + rest_n);
    void *buf = at + iov_n + rest_n;
    for (size_t i = 0; i < iov_n && want; i++) {
        size_t len = iov[i].len < want ? iov[i].len : (size_t)want;
        if (!len)
            continue;
        at[n++] = (weft_iov_t){iov[i].base, len};
        want -= len;
    }
    for (; rest; n++) {
        size_t len = rest < REST_PIECE ? (size_t)rest : REST_PIECE;
        at[n] = (weft_iov_t){buf, len};
        rest -= len;
    }
    p->in.pieces = at;
    *n_out = n;
    return WEFT_OK;
}

weft_status_t wefti_ux_pull(wefti_pull_t *pull, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    ux_pull_t *p = wefti_container_of(pull, ux_pull_t, in.base);
    ux_lane_t *l = ux_lane(&p->in.job.of->base);
    if (!p->rendezvous)
        return wefti_ux_chunk_pull(p, iov, iov_n, want, x);
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .datatype = ucp_dt_make_contig(1),
        .cb.recv_am = pull_received,
        .user_data = p,
    };
    void *buffer = iov[0].base;
    size_t count = (size_t)want;
    if (iov_n != 1 || want != p->in.total) {
        weft_status_t st = lay_out(p, iov, iov_n, want, &count);
        if (st)
            return st;
        buffer = p->in.pieces;
        param.datatype = ucp_dt_make_iov();
    }
    wefti_incoming_begin(&p->in, x);
    if (l->half.failed || l->state >= UX_CLOSING) {
        /* UCX would wait for an answer that nobody gives. */
        desc_release(p);
        wefti_incoming_end(&p->in, WEFT_ERR_PEER);
        return WEFT_OK;
    }
    ucs_status_ptr_t req = ucp_am_recv_data_nbx(l->transport->worker, p->desc, buffer, count, &param);
    p->desc = NULL; /* UCX's from here on */
    if (!UCS_PTR_IS_PTR(req))
        wefti_incoming_end(&p->in, UCS_PTR_IS_ERR(req) ? WEFT_ERR_PEER : WEFT_OK);
    return WEFT_OK;
}

/* Take it off the lane, say why, give the descriptor back. */
void wefti_ux_refuse(wefti_pull_t *pull, bool taken)
{
    ux_pull_t *p = wefti_container_of(pull, ux_pull_t, in.base);
    ux_lane_t *l = ux_lane(&p->in.job.of->base);
    uint32_t kind = !taken ? UX_REC_REFUSED : p->rendezvous ? 0 : UX_REC_TAKEN;
    if (kind && !l->half.failed && l->state < UX_CLOSING)
        wefti_ux_control(l, kind, p->in.id);
    desc_release(p);
    if (l->in_callback == p)
        l->in_callback = NULL;
    wefti_incoming_drop(&p->in);
}

void wefti_ux_release_offers(ux_lane_t *l)
{
    wefti_list_each(it, &l->half.offers)
        desc_release(wefti_container_of(it, ux_pull_t, in.job.link));
}

/* --- telling ------------------------------------------------------------------------------------------------------ */

static void fail(wefti_lane_t *lane, weft_status_t why, const char *what)
{
    wefti_ux_fail(ux_lane(lane), why, what);
}

static void pull_ends(wefti_incoming_t *p)
{
    ux_lane_t *l = ux_lane(&p->job.of->base);
    desc_release(ux_pull(p));
    if (ux_pull(p)->rendezvous || p->job.status || l->half.failed || !l->ep || l->state >= UX_DRAINING)
        return;
    if (wefti_ux_control_space(l, &p->id, sizeof p->id))
        wefti_ux_put(l, UX_REC_TAKEN, sizeof p->id);
}

static void told(wefti_lane_t *lane)
{
    if (ux_lane(lane)->state == UX_DRAINING)
        wefti_half_event(&ux_lane(lane)->half, WEFTI_EV_CLOSE);
}

const wefti_transfers_ops_t wefti_ux_transfers = {
    .fail = fail,
    .pull_ends = pull_ends,
    .told = told,
    .lane_event = wefti_ux_lane_event,
};
