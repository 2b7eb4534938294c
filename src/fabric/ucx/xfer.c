/* fabric/ucx/xfer.c - announcements out and in, their payloads over UCX's rendezvous (chunk.c has the other way).
 *
 * Sender:    announce() gives UCX the pieces in one rendezvous active message. UCX's completion ends it, whatever its reason; what that
 *            completion means, the peer has said in a record sent before it (REFUSED, BYE), or else it means delivered. UCX keeps the
 *            order between the two: both travel on the endpoint's one active-message lane.
 * Receiver:  UCX's descriptor is kept as an offer until pull(), refuse(), or the end of the lane. UCX cannot
 *            receive less than the whole: pull() of less lets the rest fall into one small buffer, again and again.
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

/* --- out -------------------------------------------------------------------------------------------------------------------- */

/* It is over: progress will tell. */
void wefti_ux_announce_end(ux_announce_t *a, weft_status_t status)
{
    ux_lane_t *l = a->lane;
    a->status = status;
    wefti_slots_remove(&l->transport->announces, a->id);
    wefti_list_remove(&a->link);
    wefti_list_push_back(&l->transport->sent, &a->link);
    l->untold++; /* the lane must outlive what is told of it */
}

static void announce_end(ux_announce_t *a, ucs_status_t status)
{
    ux_lane_t *l = a->lane;
    weft_status_t st;
    if (status != UCS_OK)
        st = l->state >= UX_CLOSING ? WEFT_ERR_CANCELLED : status == UCS_ERR_NO_MEMORY ? WEFT_ERR_NOMEM : WEFT_ERR_PEER;
    else if (a->refused)
        st = WEFT_ERR_REFUSED;
    else
        st = l->bye ? WEFT_ERR_PEER : WEFT_OK;
    wefti_ux_announce_end(a, st);
}

static void announce_sent(void *request, ucs_status_t status, void *user)
{
    ucp_request_free(request);
    announce_end(user, status);
}

weft_status_t wefti_ux_announce_new(ux_lane_t *l, wefti_xfer_t *x, size_t head, ux_announce_t **announce_out)
{
    ux_announce_t *a = wefti_calloc(1, sizeof *a + head);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an announcement");
    weft_status_t st = wefti_slots_add(&l->transport->announces, a, &a->id);
    if (st) {
        wefti_free(a);
        return st;
    }
    a->lane = l;
    a->x = x;
    *announce_out = a;
    return WEFT_OK;
}

weft_status_t wefti_ux_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                uint64_t total, wefti_xfer_t *x)
{
    ux_lane_t *l = ux_lane(lane);
    ux_transport_t *r = l->transport;
    if (r->chunked)
        return wefti_ux_offer(l, rec, n, iov, iov_n, total, x);
    /* Not before the peer has its half of the endpoint: its answers must go the way this goes. */
    if (l->state != UX_UP || !l->answered || l->in_flight >= UX_IN_FLIGHT || l->failed) {
        l->want_space = true;
        return WEFT_ERR_AGAIN;
    }
    ux_announce_t *a;
    weft_status_t st = wefti_ux_announce_new(l, x, UX_ANNOUNCE_HEAD + n, &a);
    if (st)
        return st;
    wefti_ux_flush(l); /* the records before it go before it */
    uint32_t head[6] = {0, 0, l->tx_seq++, (uint32_t)n, 0, 0};
    memcpy(head, &l->peer_token, 8);
    memcpy(head + 4, &a->id, 8);
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
    wefti_list_push_back(&l->announces, &a->link);
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
    ux_announce_t *a = wefti_slots_get(&l->transport->announces, id);
    if (!a || a->lane != l)
        return; /* it has ended otherwise, or is not this peer's to speak of */
    if (!a->chunked)
        a->refused = true;
    else if (!a->pulled)
        wefti_ux_announce_end(a, WEFT_ERR_REFUSED);
    else
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a refusal of what is being pulled");
}

/* --- in --------------------------------------------------------------------------------------------------------------------- */

void wefti_ux_pull_end(ux_pull_t *p, weft_status_t status)
{
    p->status = status;
    if (p->slot)
        wefti_slots_remove(&p->lane->transport->pulls, p->slot);
    p->slot = 0;
    wefti_list_remove(&p->link);
    wefti_list_push_back(&p->lane->transport->pulled, &p->link);
    p->lane->untold++;
}

static void pull_free(ux_pull_t *p)
{
    wefti_free(p->iov);
    wefti_free(p->rest);
    wefti_free(p);
}

/* Give the descriptor back: UCX then completes the sender's request. */
static void desc_release(ux_pull_t *p)
{
    if (!p->desc || p->in_callback)
        return; /* in the callback, its return value does it, or the end of the transfer */
    ucp_am_data_release(p->lane->transport->worker, p->desc);
    p->desc = NULL;
}

ucs_status_t wefti_ux_announce_arrived(ux_transport_t *r, const void *head, size_t head_n, void *desc, size_t total)
{
    uint64_t token, id;
    uint32_t nums[2];
    if (head_n < UX_ANNOUNCE_HEAD) {
        r->strangers++;
        return UCS_ERR_REJECTED;
    }
    memcpy(&token, head, 8);
    memcpy(nums, (const uint8_t *)head + 8, 8);
    memcpy(&id, (const uint8_t *)head + 16, 8);
    ux_lane_t *l = wefti_ux_lane_of(r, token);
    if (!l) {
        r->strangers++;
        return UCS_ERR_REJECTED;
    }
    if (nums[0] != l->rx_seq) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a frame is missing before an announcement");
        return UCS_ERR_REJECTED;
    }
    l->rx_seq++;
    if (l->state >= UX_CLOSING || l->failed)
        return UCS_ERR_REJECTED;
    if (l->state != UX_UP || !nums[1] || nums[1] != head_n - UX_ANNOUNCE_HEAD || !total || wefti_map_get(&l->offer_ids, id)) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "an announcement that makes no sense");
        return UCS_ERR_REJECTED;
    }
    ux_pull_t *p = wefti_calloc(1, sizeof *p);
    if (!p || wefti_map_put(&l->offer_ids, id, p)) {
        wefti_free(p);
        wefti_ux_fail(l, WEFT_ERR_NOMEM, "no memory for an announcement");
        return UCS_ERR_REJECTED;
    }
    p->base.ops = l->base.ops;
    p->lane = l;
    p->desc = desc;
    p->id = id;
    p->total = total;
    p->in_callback = true;
    wefti_list_push_back(&l->offers, &p->link);
    l->in_callback = p;
    r->base.fabric->up->announced(l->base.user, (const uint8_t *)head + UX_ANNOUNCE_HEAD, nums[1], total, &p->base);
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
    if (p->lane->state >= UX_CLOSING && status != UCS_OK)
        st = WEFT_ERR_CANCELLED;
    else if (status != UCS_OK)
        st = status == UCS_ERR_NO_MEMORY ? WEFT_ERR_NOMEM : WEFT_ERR_PEER;
    else if (n != p->total)
        st = WEFT_ERR_PEER;
    wefti_ux_pull_end(p, st);
}

/* UCX's pieces for want bytes into iov and the rest of the payload into one small buffer, over and over. */
static weft_status_t lay_out(ux_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, size_t *n_out)
{
    uint64_t rest = p->total - want;
    size_t rest_n = (size_t)((rest + REST_PIECE - 1) / REST_PIECE), n = 0;
    ucp_dt_iov_t *at = wefti_malloc((iov_n + rest_n) * sizeof *at);
    void *buf = rest ? wefti_malloc(rest < REST_PIECE ? (size_t)rest : REST_PIECE) : NULL;
    if (!at || (rest && !buf)) {
        wefti_free(at);
        wefti_free(buf);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %zu pieces", iov_n + rest_n);
    }
    for (size_t i = 0; i < iov_n && want; i++) {
        size_t len = iov[i].len < want ? iov[i].len : (size_t)want;
        if (!len)
            continue;
        at[n++] = (ucp_dt_iov_t){iov[i].base, len};
        want -= len;
    }
    for (; rest; n++) {
        size_t len = rest < REST_PIECE ? (size_t)rest : REST_PIECE;
        at[n] = (ucp_dt_iov_t){buf, len};
        rest -= len;
    }
    p->iov = at;
    p->rest = buf;
    *n_out = n;
    return WEFT_OK;
}

weft_status_t wefti_ux_pull(wefti_pull_t *pull, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    ux_pull_t *p = wefti_container_of(pull, ux_pull_t, base);
    ux_lane_t *l = p->lane;
    if (p->chunked)
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
    if (iov_n != 1 || want != p->total) {
        weft_status_t st = lay_out(p, iov, iov_n, want, &count);
        if (st)
            return st;
        buffer = p->iov;
        param.datatype = ucp_dt_make_iov();
    }
    p->x = x;
    wefti_map_take(&l->offer_ids, p->id);
    wefti_list_remove(&p->link);
    wefti_list_push_back(&l->pulling, &p->link);
    if (l->failed || l->state >= UX_CLOSING) {
        /* UCX would wait for an answer that nobody gives. */
        desc_release(p);
        wefti_ux_pull_end(p, WEFT_ERR_PEER);
        return WEFT_OK;
    }
    ucs_status_ptr_t req = ucp_am_recv_data_nbx(l->transport->worker, p->desc, buffer, count, &param);
    p->desc = NULL; /* UCX's from here on */
    if (!UCS_PTR_IS_PTR(req))
        wefti_ux_pull_end(p, UCS_PTR_IS_ERR(req) ? WEFT_ERR_PEER : WEFT_OK);
    return WEFT_OK;
}

/* Take it off the lane, say why, give the descriptor back. */
void wefti_ux_refuse(wefti_pull_t *pull, bool taken)
{
    ux_pull_t *p = wefti_container_of(pull, ux_pull_t, base);
    ux_lane_t *l = p->lane;
    uint32_t kind = !taken ? UX_REC_REFUSED : p->chunked ? UX_REC_TAKEN : 0;
    wefti_map_take(&l->offer_ids, p->id);
    wefti_list_remove(&p->link);
    if (kind && !l->failed && l->state < UX_CLOSING)
        wefti_ux_control(l, kind, p->id);
    desc_release(p);
    if (l->in_callback == p)
        l->in_callback = NULL;
    pull_free(p);
}

void wefti_ux_release_offers(ux_lane_t *l)
{
    wefti_list_each(it, &l->offers)
        desc_release(wefti_container_of(it, ux_pull_t, link));
}

void wefti_ux_tell_withdrawn(ux_lane_t *l)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&l->offers))) {
        ux_pull_t *p = wefti_container_of(it, ux_pull_t, link);
        wefti_map_take(&l->offer_ids, p->id);
        l->transport->base.fabric->up->withdrawn(&p->base);
        pull_free(p);
    }
}

/* --- telling ----------------------------------------------------------------------------------------------------------------- */

void wefti_ux_told(ux_lane_t *l)
{
    l->untold--;
    if (l->state == UX_DRAINING)
        wefti_ux_event(l, UX_EV_DRAINED);
}

unsigned wefti_ux_tell_done(ux_transport_t *r)
{
    unsigned n = 0;
    wefti_list_t sent, pulled, *it;
    wefti_list_init(&sent);
    wefti_list_init(&pulled);
    wefti_list_splice(&sent, &r->sent);
    wefti_list_splice(&pulled, &r->pulled);
    while ((it = wefti_list_pop(&sent))) {
        ux_announce_t *a = wefti_container_of(it, ux_announce_t, link);
        ux_lane_t *l = a->lane;
        wefti_xfer_t *x = a->x;
        weft_status_t st = a->status;
        wefti_free(a);
        wefti_ux_told(l);
        x->done(x, st);
        n++;
    }
    while ((it = wefti_list_pop(&pulled))) {
        ux_pull_t *p = wefti_container_of(it, ux_pull_t, link);
        ux_lane_t *l = p->lane;
        wefti_xfer_t *x = p->x;
        weft_status_t st = p->status;
        desc_release(p);
        pull_free(p);
        wefti_ux_told(l);
        x->done(x, st);
        n++;
    }
    return n;
}
