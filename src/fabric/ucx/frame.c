/* fabric/ucx/frame.c - records out and in.
 *
 * A lane has at most one open frame. The first record since the last progress leaves at once, as a frame of its own; later ones
 * are gathered and leave when the frame is full or with the next progress. A frame that UCX could not send on the spot is UCX's
 * until its callback; UX_IN_FLIGHT of those and reserve() says there is no space.
 *
 * In: a frame's token names its lane, its sequence number must be the next one. Lengths are checked before they are used, and
 * the frame is dropped at the first record after which the lane is closing. */
#include <string.h>

#include "base/log.h"
#include "fabric/ucx/internal.h"

static inline uint32_t round8(uint32_t n)
{
    return (n + 7u) & ~7u;
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

/* Hand one whole frame to UCX; true if it is ours again. */
static bool send_frame(ux_lane_t *l, ux_frame_t *f)
{
    ux_transport_t *r = l->transport;
    uint32_t head[4] = {0, 0, l->tx_seq++, 0};
    memcpy(head, &l->peer_token, 8);
    memcpy(f->bytes, head, sizeof head);
    f->lane = l;
    r->frame_param.user_data = f;
    f->piece = (ucp_dt_iov_t){f->bytes, f->n};
    ucs_status_ptr_t p = r->chunked ? ucp_am_send_nbx(l->ep->ucp, UX_AM_ID, NULL, 0, &f->piece, 1, &r->frame_param)
                                    : ucp_am_send_nbx(l->ep->ucp, UX_AM_ID, NULL, 0, f->bytes, f->n, &r->frame_param);
    if (__builtin_expect(p == NULL, 1))
        return true;
    if (UCS_PTR_IS_ERR(p)) {
        wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(UCS_PTR_STATUS(p)));
        return true;
    }
    return false;
}

void wefti_ux_flush(ux_lane_t *l)
{
    ux_frame_t *f = l->frame;
    if (!f || l->used == UX_FRAME_HEAD)
        return;
    f->n = l->used;
    if (l->state == UX_WAITING || l->state == UX_NEW) {
        f->lane = l;
        wefti_list_push_back(&l->backlog, &f->link);
    } else if (l->half.failed || send_frame(l, f)) {
        l->used = UX_FRAME_HEAD;
        return;
    }
    l->in_flight++;
    l->frame = NULL;
}

void wefti_ux_flush_backlog(ux_lane_t *l)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&l->backlog))) {
        ux_frame_t *f = wefti_container_of(it, ux_frame_t, link);
        if (l->half.failed || send_frame(l, f)) {
            ux_frame_free(l->transport, f);
            l->in_flight--;
        }
    }
    if (l->half.want_space)
        wefti_half_event(&l->half, WEFTI_EV_SPACE);
}

/* Where a record of n bytes goes; NULL when UCX has enough of this lane's (unless forced) or there is no memory. */
uint8_t *wefti_ux_make_space(ux_lane_t *l, size_t n, bool force)
{
    uint32_t need = UX_RECORD_HEAD + (uint32_t)n;
    l->used = l->frame ? round8(l->used) : UX_FRAME_HEAD;
    if (l->frame && l->used + need > UX_FRAME)
        wefti_ux_flush(l);
    if (!l->frame) {
        if (l->in_flight < UX_IN_FLIGHT || force)
            l->frame = wefti_spares_get(&l->transport->spare_frames, sizeof(ux_frame_t));
        if (!l->frame)
            return wefti_half_no_space(&l->half, !l->in_flight);
        l->used = UX_FRAME_HEAD;
    }
    return l->frame->bytes + l->used + UX_RECORD_HEAD;
}

static void put_record(ux_lane_t *l, uint32_t kind, size_t n)
{
    uint32_t head[2] = {(uint32_t)n, kind};
    uint8_t *at = l->frame->bytes + l->used;
    memcpy(at, head, sizeof head);
    l->used += UX_RECORD_HEAD + (uint32_t)n;
    /* The padding is sent if another record follows, and must not be what was in memory before. */
    for (uint8_t *p = l->frame->bytes + l->used; (uintptr_t)p & 7u; p++)
        *p = 0;
}

void *wefti_ux_reserve(wefti_lane_t *lane, size_t n)
{
    ux_lane_t *l = ux_lane(lane);
    if (__builtin_expect(l->half.failed, 0))
        return NULL; /* for good: the failure is told instead of space */
    return wefti_ux_make_space(l, n, false);
}

/* The first record since the last progress leaves now, the others together. */
void wefti_ux_put(ux_lane_t *l, uint32_t kind, size_t n)
{
    put_record(l, kind, n);
    if (wefti_half_leaves(&l->half))
        wefti_ux_flush(l);
}

void wefti_ux_commit(wefti_lane_t *lane, size_t n)
{
    wefti_ux_put(ux_lane(lane), UX_REC_USER, n);
}

bool wefti_ux_control_space(ux_lane_t *l, const void *bytes, size_t n)
{
    uint8_t *at = wefti_ux_make_space(l, n, true);
    if (at)
        memcpy(at, bytes, n);
    else
        wefti_ux_fail(l, WEFT_ERR_NOMEM, "no memory for a control record");
    return at;
}

void wefti_ux_control_bytes(ux_lane_t *l, uint32_t kind, const void *bytes, size_t n)
{
    if (!wefti_ux_control_space(l, bytes, n))
        return;
    put_record(l, kind, n);
    wefti_ux_flush(l);
}

void wefti_ux_control(ux_lane_t *l, uint32_t kind, uint64_t value)
{
    wefti_ux_control_bytes(l, kind, &value, sizeof value);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static void control_arrived(ux_lane_t *l, uint32_t kind, const void *bytes, uint32_t n)
{
    uint64_t value;
    if (kind == UX_REC_OFFER) {
        wefti_offer_arrived(&l->half, bytes, n, sizeof(ux_pull_t));
        return;
    }
    if (kind == UX_REC_PULL) {
        wefti_ux_pull_arrived(l, bytes, n);
        return;
    }
    if (n != sizeof value) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a control record of the wrong length");
        return;
    }
    memcpy(&value, bytes, sizeof value);
    switch (kind) {
    case UX_REC_HELLO:
        if (l->ep && !l->answered) { /* the follower's, to say that it has followed */
            l->answered = true;
            if (l->half.want_space)
                wefti_half_event(&l->half, WEFTI_EV_SPACE);
            return;
        }
        if (l->hello_seen || l->ep) {
            wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a second hello");
            return;
        }
        l->hello_seen = true;
        l->hello_number = value;
        wefti_half_event(&l->half, UX_EV_HELLO);
        return;
    case UX_REC_REFUSED:
        wefti_ux_peer_refused(l, value);
        return;
    case UX_REC_TAKEN:
        wefti_ux_taken_arrived(l, value);
        return;
    case UX_REC_BYE:
        l->bye = true;
        wefti_ux_fail(l, WEFT_ERR_PEER, "the peer closed its half");
        return;
    default:
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a record of no known kind");
    }
}

void wefti_ux_frame_arrived(ux_transport_t *r, const void *data, size_t n)
{
    const uint8_t *at = data, *end = at + n;
    uint64_t token;
    uint32_t head[2];
    if (__builtin_expect(n < UX_FRAME_HEAD, 0)) {
        r->strangers++;
        return;
    }
    memcpy(&token, at, sizeof token);
    ux_lane_t *l = wefti_ux_lane_of(r, token);
    if (__builtin_expect(!l, 0)) {
        r->strangers++;
        return;
    }
    memcpy(head, at + 8, sizeof head);
    if (__builtin_expect(head[0] != l->rx_seq || n > UX_FRAME, 0)) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a frame is missing or too long");
        return;
    }
    l->rx_seq++;
    const wefti_fabric_up_t *up = r->base.fabric->up;
    for (at += UX_FRAME_HEAD; (size_t)(end - at) >= UX_RECORD_HEAD;) {
        if (l->state >= UX_CLOSING || l->half.failed)
            return;
        memcpy(head, at, sizeof head);
        at += UX_RECORD_HEAD;
        if (__builtin_expect(!head[0] || head[0] > (size_t)(end - at), 0)) {
            wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a record runs over the end of its frame");
            return;
        }
        if (__builtin_expect(head[1] == UX_REC_USER, 1))
            up->record(l->half.base.user, at, head[0]);
        else
            control_arrived(l, head[1], at, head[0]);
        uint32_t step = round8(head[0]);
        at = step < (size_t)(end - at) ? at + step : end;
    }
}
