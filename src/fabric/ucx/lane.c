/* fabric/ucx/lane.c - the life of a lane, and which UCX endpoint is whose.
 *
 *     NEW --connect--> UP --close--> CLOSING --progress--> DRAINING --progress--> (lane_closed, freed)
 *        \--connect--> WAITING --the peer's first frame--> UP
 *
 * Only the calls of fabric.h and progress move it. In DRAINING the endpoint is forced down and UCX completes what it still has;
 * the lane is freed when the last of that is told.
 *
 * Why WAITING: UCX pairs endpoints by counting. The third endpoint that worker A creates to worker B is joined to the third that
 * B creates to A, whatever we use them for. Frames would still arrive, since tokens name lanes, but closing one lane would close
 * another lane's endpoint at the peer. So of two workers the one with the larger id leads: it creates the endpoint when it
 * connects and its first frame says which one that was; the other waits for that frame and creates its own in the same order.
 * Numbers that it must create before their lanes are known wait as spares. A worker connected to itself creates both endpoints
 * of a pair one after the other, when the second lane connects. tests/wire/fabric_ucx.c:
 * lanes_connected_in_opposite_orders_close_alone. */
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/ucx/internal.h"

#define ADDR_VERSION 2
#define ADDR_HEAD 20   /* version and zeroes, transport id, token */
#define ADDR_SLACK 256 /* zeroes behind a peer's address: UCX is not told how long it is */

/* --- endpoints ---------------------------------------------------------------------------------------------------- */

static void ep_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ux_ep_t *e = arg;
    (void)ep;
    e->failed = true;
    if (e->closing)
        return;
    if (e->lane) {
        wefti_ux_fail(e->lane, WEFT_ERR_PEER, ucs_status_string(status));
    } else {
        wefti_list_remove(&e->link);
        e->peer->n_spare--;
        wefti_list_push_back(&e->transport->ep_events, &e->link);
    }
}

static weft_status_t ep_create(ux_transport_t *r, ux_peer_t *peer, const void *addr, ux_ep_t **ep_out)
{
    ux_ep_t *e = wefti_calloc(1, sizeof *e);
    if (!e)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an endpoint");
    e->transport = r;
    wefti_list_init(&e->link);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = addr,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = ep_failed, .arg = e},
    };
    ucs_status_t st = ucp_ep_create(r->worker, &params, &e->ucp);
    if (st != UCS_OK) {
        wefti_free(e);
        return wefti_fail(wefti_ux_status(st), "UCX has no way to the peer with transports \"%s\": %s", wefti_ux_tls(r),
                          ucs_status_string(st));
    }
    e->peer = peer;
    e->number = peer->n_eps++;
    r->n_eps++;
    r->base.live++;
    *ep_out = e;
    return WEFT_OK;
}

static void ep_gone(ux_ep_t *e)
{
    e->transport->n_eps--;
    e->transport->base.live--;
    if (e->lane) {
        e->lane->ep = NULL;
        wefti_half_event(&e->lane->half, WEFTI_EV_CLOSE);
    }
    wefti_free(e);
}

static void ep_closed(void *request, ucs_status_t status, void *user)
{
    (void)status;
    ucp_request_free(request);
    ep_gone(user);
}

/* Force it down. From progress only, and not from inside UCX. */
void wefti_ux_ep_close(ux_ep_t *e)
{
    e->closing = true;
    ucp_request_param_t param = ux_then(ep_closed, e);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t p = ucp_ep_close_nbx(e->ucp, &param);
    if (UCS_PTR_IS_PTR(p))
        return;
    if (UCS_PTR_IS_ERR(p))
        wefti_debug("ucx: closing an endpoint: %s", ucs_status_string(UCS_PTR_STATUS(p)));
    ep_gone(e);
}

static ux_peer_t *peer_of(ux_transport_t *r, uint64_t id)
{
    ux_peer_t *p = wefti_map_get(&r->peers, id);
    if (p)
        return p;
    p = wefti_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->id = id;
    wefti_list_init(&p->spare);
    if (wefti_map_put(&r->peers, id, p)) {
        wefti_free(p);
        return NULL;
    }
    return p;
}

/* --- making and joining ------------------------------------------------------------------------------------------- */

weft_status_t wefti_ux_lane_new(wefti_transport_t *transport, const wefti_meeting_t *with, void *user, void *addr_buf,
                                size_t *n_out, wefti_lane_t **lane_out)
{
    (void)with;
    ux_transport_t *r = ux_transport(transport);
    weft_status_t st = wefti_ux_spare_fds(r->worker ? UX_FDS_LANE : UX_FDS_WORKER);
    if (!st)
        st = wefti_ux_start(r);
    if (st)
        return st;
    ux_lane_t *l = wefti_calloc(1, sizeof *l);
    if (!l)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a lane");
    st = wefti_slots_add(&r->lanes, l, &l->id);
    if (st) {
        wefti_free(l);
        return wefti_fail(st, "no place for one more lane; one transport has %u at most", 1u << UX_TOKEN_INDEX_BITS);
    }
    uint64_t random;
    transport->fabric->ops->random(transport->fabric, &random, sizeof random);
    l->token = random << UX_TOKEN_INDEX_BITS | (uint32_t)l->id;
    wefti_half_init(&l->half, &r->transfers, transport, user, UX_FRAME - UX_FRAME_HEAD - UX_RECORD_HEAD);
    l->half.base.emulates = r->chunked;
    l->half.base.takes_cuda = r->takes_cuda;
    l->transport = r;
    wefti_list_t *lists[] = {&l->backlog, &l->pump_link, &l->keys, &l->ones, &l->unflushed, &l->waiting, &l->flush_link};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        wefti_list_init(lists[i]);
    r->base.live++;

    wefti_writer_t w = wefti_writer(addr_buf, WEFTI_LANE_ADDR_MAX);
    wefti_put_u32(&w, ADDR_VERSION);
    wefti_put_u64(&w, r->id);
    wefti_put_u64(&w, l->token);
    wefti_put_bytes(&w, r->address, r->address_n);
    *n_out = (size_t)(w.at - (uint8_t *)addr_buf);
    *lane_out = &l->half.base;
    return WEFT_OK;
}

static void lane_up(ux_lane_t *l, ux_ep_t *e)
{
    l->ep = e;
    e->lane = l;
    l->state = UX_UP;
    wefti_free(l->peer_addr);
    l->peer_addr = NULL;
    if (e->failed)
        wefti_ux_fail(l, WEFT_ERR_PEER, "its endpoint had failed");
}

/* Both ends are in this worker: the second to connect makes the pair. */
static weft_status_t connect_self(ux_lane_t *l)
{
    ux_lane_t *other = wefti_ux_lane_of(l->transport, l->peer_token);
    if (!other || other == l || other->state != UX_WAITING || other->peer_token != l->token)
        return WEFT_OK;
    ux_ep_t *a, *b;
    weft_status_t st = ep_create(l->transport, l->peer, l->peer_addr, &a);
    if (st)
        return st;
    st = ep_create(l->transport, l->peer, l->peer_addr, &b);
    if (st) {
        wefti_list_push_back(&l->transport->ep_events, &a->link);
        return st;
    }
    lane_up(other, a);
    lane_up(l, b);
    other->answered = l->answered = true;
    wefti_ux_flush_backlog(other);
    return WEFT_OK;
}

static weft_status_t connect_leader(ux_lane_t *l)
{
    ux_ep_t *e;
    weft_status_t st = ep_create(l->transport, l->peer, l->peer_addr, &e);
    if (st)
        return st;
    lane_up(l, e);
    wefti_ux_control(l, UX_REC_HELLO, e->number);
    wefti_ux_flush_backlog(l);
    return WEFT_OK;
}

weft_status_t wefti_ux_lane_connect(wefti_lane_t *lane, const void *addr, size_t n)
{
    ux_lane_t *l = ux_lane(lane);
    ux_transport_t *r = l->transport;
    wefti_reader_t rd = wefti_reader(addr, n);
    uint32_t version = wefti_get_u32(&rd);
    uint64_t id = wefti_get_u64(&rd);
    uint64_t token = wefti_get_u64(&rd);
    if (rd.bad || version != ADDR_VERSION || wefti_reader_left(&rd) < 16 || n > WEFTI_LANE_ADDR_MAX)
        return wefti_fail(WEFT_ERR_PROTOCOL, "a lane's address of %zu bytes is not one of ours", n);
    if (l->state != UX_NEW)
        return wefti_fail(WEFT_ERR_STATE, "the lane is connected");
    weft_status_t spare = wefti_ux_spare_fds(UX_FDS_LANE);
    if (spare)
        return spare;
    size_t left = wefti_reader_left(&rd);
    l->peer = peer_of(r, id);
    l->peer_addr = wefti_calloc(1, left + ADDR_SLACK);
    if (!l->peer || !l->peer_addr)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a peer's address of %zu bytes", left);
    memcpy(l->peer_addr, rd.at, left);
    l->peer_token = token;
    l->state = UX_WAITING;
    if (id == r->id)
        return connect_self(l);
    if (id < r->id)
        return connect_leader(l);
    if (l->hello_seen)
        wefti_half_event(&l->half, UX_EV_HELLO);
    return WEFT_OK;
}

static weft_status_t spare_up_to(ux_lane_t *l, uint64_t number)
{
    ux_peer_t *p = l->peer;
    if (number > UINT32_MAX || (number >= p->n_eps && number - p->n_eps + p->n_spare > UX_SPARE_MAX))
        return WEFT_ERR_PROTOCOL;
    while (p->n_eps <= number) {
        ux_ep_t *e;
        weft_status_t st = ep_create(l->transport, p, l->peer_addr, &e);
        if (st)
            return st;
        wefti_list_push_back(&p->spare, &e->link);
        p->n_spare++;
    }
    return WEFT_OK;
}

/* The leader has said which endpoint is this lane's: take it. */
static void adopt(ux_lane_t *l)
{
    if (l->state != UX_WAITING || l->half.failed)
        return; /* not connected yet: connecting asks again */
    if (l->peer->id < l->transport->id || l->peer->id == l->transport->id) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a hello from a peer that does not lead");
        return;
    }
    weft_status_t st = spare_up_to(l, l->hello_number);
    if (st) {
        wefti_ux_fail(l, st, "no endpoint for the peer's");
        return;
    }
    wefti_list_each(it, &l->peer->spare) {
        ux_ep_t *e = wefti_container_of(it, ux_ep_t, link);
        if (e->number == l->hello_number) {
            wefti_list_remove(it);
            l->peer->n_spare--;
            lane_up(l, e);
            l->answered = true;
            wefti_ux_flush_backlog(l);
            wefti_ux_control(l, UX_REC_HELLO, l->hello_number);
            return;
        }
    }
    wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "the peer named an endpoint that is not free");
}

/* --- closing ------------------------------------------------------------------------------------------------------ */

void wefti_ux_lane_close(wefti_lane_t *lane)
{
    ux_lane_t *l = ux_lane(lane);
    if (l->state >= UX_CLOSING)
        return;
    /* What was committed before is not held back by the close. */
    if (l->state == UX_UP)
        wefti_ux_flush(l);
    l->state = UX_CLOSING;
    wefti_half_event(&l->half, WEFTI_EV_CLOSE);
}

/* UCX does not tell the peer of a forced close on every transport, so BYE does; and what UCX still queues, a forced close would
 * drop. */
static bool said_bye(ux_lane_t *l)
{
    if (!l->ep || l->ep->failed || l->half.failed)
        return true;
    if (!l->bye_until) {
        wefti_ux_control(l, UX_REC_BYE, 0);
        l->bye_until = wefti_clock_ns() + UX_BYE_NS;
    }
    /* An access that UCX emulates is better answered before we go: onesided.c. */
    return (!l->in_flight && (!l->half.base.emulates || wefti_list_empty(&l->ones))) || wefti_clock_ns() >= l->bye_until;
}

static void begin_close(ux_lane_t *l)
{
    wefti_list_t *it;
    if (!l->ep && l->hello_seen && l->peer_addr) {
        /* Closed before its endpoint was taken: take it, or the peer would never hear. */
        l->state = UX_WAITING;
        adopt(l);
        l->state = UX_CLOSING;
    }
    wefti_ux_ones_abandon(l);
    if (!said_bye(l)) {
        wefti_half_event(&l->half, WEFTI_EV_CLOSE);
        return;
    }
    wefti_list_remove(&l->half.open_link);
    wefti_list_remove(&l->pump_link);
    l->state = UX_DRAINING;
    if (l->frame)
        ux_frame_free(l->transport, l->frame);
    l->frame = NULL;
    while ((it = wefti_list_pop(&l->backlog))) {
        ux_frame_free(l->transport, wefti_container_of(it, ux_frame_t, link));
        l->in_flight--;
    }
    /* Descriptors go back while their endpoint lives; BYE, sent before, tells the sender not to take that for a delivery. */
    wefti_ux_release_offers(l);
    wefti_ux_chunks_abandon(l);
    if (l->ep)
        wefti_ux_ep_close(l->ep);
    wefti_tell_withdrawn(&l->half);
}

static bool drained(const ux_lane_t *l)
{
    const wefti_half_t *t = &l->half;
    return !l->ep && !l->in_flight && !l->chunks && !t->untold && wefti_list_empty(&t->announced) &&
           wefti_list_empty(&t->sending) && wefti_list_empty(&t->pulling) && wefti_list_empty(&t->offers) &&
           wefti_list_empty(&l->ones);
}

static void lane_free(ux_lane_t *l)
{
    ux_transport_t *r = l->transport;
    wefti_slots_remove(&r->lanes, l->id);
    r->base.live--;
    wefti_half_free(&l->half);
    wefti_free(l->peer_addr);
    wefti_free(l);
}

bool wefti_ux_lane_event(wefti_lane_t *lane, unsigned events)
{
    ux_lane_t *l = ux_lane(lane);
    void *user = lane->user;
    if (l->state == UX_CLOSING)
        begin_close(l);
    if (l->state == UX_DRAINING && drained(l)) {
        const wefti_fabric_up_t *up = lane->transport->fabric->up;
        wefti_ux_keys_end(l);
        lane_free(l);
        up->lane_closed(user);
        return false;
    }
    if (events & UX_EV_HELLO)
        adopt(l);
    return l->state < UX_CLOSING;
}
