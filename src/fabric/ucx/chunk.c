/* fabric/ucx/chunk.c - payloads in chunks of our own.
 *
 * Where TCP is all there is, UCX's rendezvous is not used: when a peer dies while UCX (1.13.1) sends it bytes in place, UCX may
 * end the request twice, and then aborts the process. So UCX is opened without that way of sending (transport.c), and we cut
 * payloads ourselves into messages that UCX hands to the socket at once, straight from the user's memory, copying only what the
 * socket does not take. An endpoint with error handling has no better way over TCP in UCX either. (The transport of fabric/tcp
 * has, and is what "tcp" means.)
 *
 * Sender:    OFFER goes out as a record. PULL starts the chunks. UCX has at most UX_CHUNKS of a lane at a time, and the
 *            announcements of a lane go one after the other. TAKEN ends it, once UCX has given the last chunk back. REFUSED ends
 *            what was not pulled.
 * Receiver:  an offer is pulled under a slot. Chunks must come in order, and are copied as they come. TAKEN answers the last
 *            one.
 *
 * The buffers of a pull are touched by nobody but chunk_arrived, so a pull can end at any moment; those of an announcement are
 * UCX's while a->chunks is not 0. tests/wire/fabric_lanes.c holds this to fabric.h's promises. */
#include <string.h>

#include "fabric/ucx/internal.h"

#define PUMP_ROUND 16 /* chunks of a lane in a row: the others' messages must not wait for a whole payload */

typedef struct chunk {
    ux_announce_t *a;
    uint64_t head[3];
} chunk_t;

/* --- out ---------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_ux_offer(ux_lane_t *l, const void *rec, size_t n, const weft_iov_t *iov, uint64_t total, wefti_xfer_t *x)
{
    if (l->half.failed)
        return WEFT_ERR_AGAIN;
    uint8_t *at = wefti_ux_make_space(l, WEFTI_OFFER_HEAD + n, false);
    if (!at)
        return WEFT_ERR_AGAIN;
    wefti_outgoing_t *o;
    weft_status_t st = wefti_outgoing_new(&l->half, iov, total, x, sizeof(ux_announce_t), &o);
    if (st)
        return st;
    wefti_outgoing_offer(o, at, rec, n);
    wefti_ux_put(l, UX_REC_OFFER, WEFTI_OFFER_HEAD + n);
    return WEFT_OK;
}

static void may_pump(ux_lane_t *l)
{
    if (l->chunks < UX_CHUNKS && l->state == UX_UP && !l->half.failed && !wefti_list_empty(&l->half.sending) &&
        !wefti_list_linked(&l->pump_link))
        wefti_list_push_back(&l->transport->pumps, &l->pump_link);
}

/* What the end of a lane means to a transfer. */
static weft_status_t cut_off(const ux_lane_t *l)
{
    return l->half.failed ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED;
}

/* End it, if neither UCX nor the peer has to say anything more of it. */
static void may_end(ux_lane_t *l, ux_announce_t *a)
{
    if (a->chunks)
        return;
    if (a->taken)
        wefti_outgoing_end(&a->out, WEFT_OK);
    else if (l->state == UX_DRAINING)
        wefti_outgoing_end(&a->out, cut_off(l));
}

static void chunk_done(ux_lane_t *l, chunk_t *c)
{
    c->a->chunks--;
    l->chunks--;
    wefti_spares_put(&l->transport->spare_chunks, c, UINT32_MAX);
}

static void chunk_sent(void *request, ucs_status_t status, void *user)
{
    chunk_t *c = user;
    ux_announce_t *a = c->a;
    ux_lane_t *l = ux_lane(&a->out.job.of->base);
    ucp_request_free(request);
    chunk_done(l, c);
    if (status != UCS_OK)
        wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(status));
    may_end(l, a);
    may_pump(l);
    if (l->state == UX_DRAINING)
        wefti_half_event(&l->half, WEFTI_EV_CLOSE);
}

/* False when the lane can send no more now. */
static bool send_chunk(ux_lane_t *l, ux_announce_t *a)
{
    uint8_t *at;
    chunk_t *c = wefti_spares_get(&l->transport->spare_chunks, sizeof *c);
    if (!c)
        return false; /* its next chunk, or the next progress, tries again */
    uint64_t left = a->out.want - a->out.sent;
    size_t n = wefti_cursor_next(&a->out.from, left < UX_CHUNK ? (size_t)left : UX_CHUNK, &at);
    c->a = a;
    c->head[0] = l->peer_token;
    c->head[1] = a->out.slot;
    c->head[2] = a->out.sent;
    ucp_request_param_t param = ux_then(chunk_sent, c);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    a->out.sent += n;
    a->chunks++;
    l->chunks++;
    ucs_status_ptr_t p = ucp_am_send_nbx(l->ep->ucp, UX_AM_CHUNK, c->head, UX_CHUNK_HEAD, at, n, &param);
    if (UCS_PTR_IS_PTR(p))
        return true;
    chunk_done(l, c);
    if (!UCS_PTR_IS_ERR(p))
        return true;
    wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(UCS_PTR_STATUS(p)));
    return false;
}

static void pump_lane(ux_lane_t *l)
{
    for (int i = 0; i < PUMP_ROUND && l->chunks < UX_CHUNKS && !l->half.failed; i++) {
        wefti_list_t *it = wefti_list_first(&l->half.sending);
        if (!it)
            return;
        wefti_outgoing_t *o = wefti_container_of(it, wefti_outgoing_t, job.link);
        bool more = send_chunk(l, ux_announce(o));
        if (o->sent == o->want) /* the rest is up to UCX and the peer */
            wefti_outgoing_left(o);
        if (!more)
            return;
    }
}

void wefti_ux_pump(ux_transport_t *r)
{
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &r->pumps);
    while ((it = wefti_list_pop(&now))) {
        ux_lane_t *l = wefti_container_of(it, ux_lane_t, pump_link);
        pump_lane(l);
        may_pump(l);
    }
}

void wefti_ux_pull_arrived(ux_lane_t *l, const uint8_t *bytes, size_t n)
{
    uint64_t nums[3];
    if (n != sizeof nums || !l->transport->chunked) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a pull of the wrong length or kind");
        return;
    }
    memcpy(nums, bytes, sizeof nums);
    if (wefti_outgoing_pulled(&l->half, nums))
        may_pump(l);
}

void wefti_ux_taken_arrived(ux_lane_t *l, uint64_t id)
{
    wefti_outgoing_t *o = wefti_outgoing_find(&l->half, id);
    if (!o || !l->transport->chunked || (o->pulled && o->sent != o->want)) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "thanks for what was not sent");
        return;
    }
    ux_announce(o)->taken = true;
    may_end(l, ux_announce(o));
}

void wefti_ux_chunks_abandon(ux_lane_t *l)
{
    wefti_list_splice(&l->half.announced, &l->half.sending);
    if (l->transport->chunked) {
        wefti_list_each_safe(it, &l->half.announced)
            may_end(l, wefti_container_of(it, ux_announce_t, out.job.link));
    }
    wefti_list_each_safe(it, &l->half.pulling) {
        ux_pull_t *p = wefti_container_of(it, ux_pull_t, in.job.link);
        if (!p->rendezvous)
            wefti_incoming_end(&p->in, cut_off(l));
    }
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_ux_chunk_pull(ux_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    ux_lane_t *l = ux_lane(&p->in.job.of->base);
    weft_status_t st = wefti_incoming_pull(&p->in, iov, iov_n, want, x);
    if (st)
        return st;
    if (l->half.failed || l->state >= UX_CLOSING) {
        wefti_incoming_end(&p->in, cut_off(l));
        return WEFT_OK;
    }
    uint64_t nums[3] = {p->in.id, p->in.slot, want};
    wefti_ux_control_bytes(l, UX_REC_PULL, nums, sizeof nums);
    return WEFT_OK;
}

void wefti_ux_chunk_arrived(ux_transport_t *r, const void *head, size_t head_n, const void *data, size_t n)
{
    uint64_t nums[3] = {0};
    if (head_n == sizeof nums)
        memcpy(nums, head, sizeof nums);
    ux_lane_t *l = wefti_ux_lane_of(r, nums[0]);
    if (head_n != sizeof nums || !l) {
        r->strangers++;
        return;
    }
    if (l->state >= UX_CLOSING || l->half.failed)
        return;
    wefti_incoming_t *p = wefti_incoming_find(&l->half, nums[1], n);
    if (!p)
        return;
    if (nums[2] != p->got) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a chunk is missing");
        return;
    }
    wefti_cursor_scatter(&p->to, data, n);
    if (wefti_incoming_came(p, n))
        wefti_incoming_end(p, WEFT_OK);
}
