/* fabric/ucx/chunk.c - payloads in chunks of our own.
 *
 * Where TCP is all there is, UCX's rendezvous is not used: when a peer dies while UCX (1.13.1) sends it bytes in place, UCX may end
 * the request twice, and then aborts the process. So UCX is opened without that way of sending (transport.c), and we cut payloads ourselves
 * into messages that UCX hands to the socket at once, straight from the user's memory, copying only what the socket does not take.
 * An endpoint with error handling has no better way over TCP in UCX either. (The transport of fabric/tcp has, and is what "tcp" means.)
 *
 * Sender:    OFFER goes out as a record. PULL begins the chunks: at most UX_CHUNKS of a lane are UCX's at a time, the announcements of a
 *            lane go one after the other. TAKEN ends it, once UCX has given the last chunk back; REFUSED ends what was not pulled.
 * Receiver:  an offer is pulled under a slot; chunks must come in order, and are copied as they come. The last one is answered with TAKEN.
 *
 * The buffers of a pull are touched by nobody but chunk_arrived, so a pull can end at any moment; those of an announcement are
 * UCX's while a->chunks is not 0. tests/wire/fabric_lanes.c holds this to fabric.h's promises. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/ucx/internal.h"

#define PUMP_ROUND 16 /* chunks of a lane in a row: the others' messages must not wait for a whole payload */

typedef struct chunk {
    wefti_list_t link; /* first: transport.c frees the unused ones by it */
    ux_announce_t *a;
    uint64_t head[3];
} chunk_t;

/* --- out -------------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_ux_offer(ux_lane_t *l, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n, uint64_t total,
                             wefti_xfer_t *x)
{
    if (l->failed)
        return WEFT_ERR_AGAIN;
    uint8_t *at = wefti_ux_make_room(l, 16 + n, false);
    if (!at)
        return WEFT_ERR_AGAIN;
    ux_announce_t *a;
    weft_status_t st = wefti_ux_announce_new(l, x, 0, &a);
    if (st)
        return st;
    a->chunked = true;
    a->iov = iov;
    a->iov_n = iov_n;
    a->total = total;
    wefti_list_push_back(&l->announces, &a->link);
    memcpy(at, &a->id, 8);
    memcpy(at + 8, &total, 8);
    memcpy(at + 16, rec, n);
    wefti_ux_put(l, UX_REC_OFFER, 16 + n);
    return WEFT_OK;
}

static void may_pump(ux_lane_t *l)
{
    if (l->chunks < UX_CHUNKS && l->state == UX_UP && !l->failed && !wefti_list_empty(&l->pumping) &&
        !wefti_list_linked(&l->pump_link))
        wefti_list_push_back(&l->transport->pumps, &l->pump_link);
}

/* All of it is said and done? */
static void may_end(ux_announce_t *a)
{
    ux_lane_t *l = a->lane;
    if (a->chunks)
        return;
    if (a->taken)
        wefti_ux_announce_end(a, WEFT_OK);
    else if (l->state == UX_DRAINING)
        wefti_ux_announce_end(a, l->failed ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED);
}

static void chunk_done(ux_transport_t *r, chunk_t *c)
{
    c->a->chunks--;
    c->a->lane->chunks--;
    wefti_list_push_front(&r->free_chunks, &c->link);
}

static void chunk_sent(void *request, ucs_status_t status, void *user)
{
    chunk_t *c = user;
    ux_announce_t *a = c->a;
    ux_lane_t *l = a->lane;
    ucp_request_free(request);
    chunk_done(l->transport, c);
    if (status != UCS_OK)
        wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(status));
    may_end(a);
    may_pump(l);
    if (l->state == UX_DRAINING)
        wefti_ux_event(l, UX_EV_DRAINED);
}

static chunk_t *chunk_get(ux_transport_t *r)
{
    wefti_list_t *it = wefti_list_pop(&r->free_chunks);
    return it ? wefti_container_of(it, chunk_t, link) : wefti_malloc(sizeof(chunk_t));
}

/* The next piece of memory, at most one chunk long. */
static size_t next_piece(ux_announce_t *a, const void **at_out)
{
    while (a->piece_at == a->iov[a->iov_at].len) {
        a->iov_at++;
        a->piece_at = 0;
    }
    size_t n = a->iov[a->iov_at].len - a->piece_at;
    if (n > UX_CHUNK)
        n = UX_CHUNK;
    if (n > a->want - a->sent)
        n = (size_t)(a->want - a->sent);
    *at_out = (const uint8_t *)a->iov[a->iov_at].base + a->piece_at;
    return n;
}

/* False when the lane can send no more now. */
static bool send_chunk(ux_lane_t *l, ux_announce_t *a)
{
    const void *at;
    chunk_t *c = chunk_get(l->transport);
    if (!c)
        return false; /* its next chunk, or the next progress, tries again */
    size_t n = next_piece(a, &at);
    c->a = a;
    c->head[0] = l->peer_token;
    c->head[1] = a->slot;
    c->head[2] = a->sent;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = chunk_sent,
        .user_data = c,
    };
    a->piece_at += n;
    a->sent += n;
    a->chunks++;
    l->chunks++;
    ucs_status_ptr_t p = ucp_am_send_nbx(l->ep->ucp, UX_AM_CHUNK, c->head, UX_CHUNK_HEAD, at, n, &param);
    if (UCS_PTR_IS_PTR(p))
        return true;
    chunk_done(l->transport, c);
    if (!UCS_PTR_IS_ERR(p))
        return true;
    wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(UCS_PTR_STATUS(p)));
    return false;
}

static void pump_lane(ux_lane_t *l)
{
    for (int i = 0; i < PUMP_ROUND && l->chunks < UX_CHUNKS && !l->failed; i++) {
        wefti_list_t *it = wefti_list_first(&l->pumping);
        if (!it)
            return;
        ux_announce_t *a = wefti_container_of(it, ux_announce_t, link);
        bool more = send_chunk(l, a);
        if (a->sent == a->want) { /* the rest is up to UCX and the peer */
            wefti_list_remove(&a->link);
            wefti_list_push_back(&l->announces, &a->link);
        }
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
    if (n != sizeof nums) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a pull of the wrong length");
        return;
    }
    memcpy(nums, bytes, sizeof nums);
    ux_announce_t *a = wefti_slots_get(&l->transport->announces, nums[0]);
    if (!a || a->lane != l || !a->chunked || a->pulled || !nums[2] || nums[2] > a->total) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a pull of what was not offered");
        return;
    }
    a->pulled = true;
    a->slot = nums[1];
    a->want = nums[2];
    wefti_list_remove(&a->link);
    wefti_list_push_back(&l->pumping, &a->link);
    may_pump(l);
}

void wefti_ux_taken_arrived(ux_lane_t *l, uint64_t id)
{
    ux_announce_t *a = wefti_slots_get(&l->transport->announces, id);
    if (!a || a->lane != l || !a->chunked || (a->pulled && a->sent != a->want)) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "thanks for what was not sent");
        return;
    }
    a->taken = true;
    may_end(a);
}

void wefti_ux_chunks_abandon(ux_lane_t *l)
{
    wefti_list_splice(&l->announces, &l->pumping);
    wefti_list_each_safe(it, &l->announces) {
        ux_announce_t *a = wefti_container_of(it, ux_announce_t, link);
        if (a->chunked)
            may_end(a);
    }
    wefti_list_each_safe(it, &l->pulling) {
        ux_pull_t *p = wefti_container_of(it, ux_pull_t, link);
        if (p->chunked)
            wefti_ux_pull_end(p, l->failed ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED);
    }
}

/* --- in ---------------------------------------------------------------------------------------------------------------------- */

void wefti_ux_offer_arrived(ux_lane_t *l, const uint8_t *bytes, size_t n)
{
    uint64_t id, total;
    if (n <= 16) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "an offer of nothing");
        return;
    }
    memcpy(&id, bytes, 8);
    memcpy(&total, bytes + 8, 8);
    if (!total || wefti_map_get(&l->offer_ids, id)) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "an offer that makes no sense");
        return;
    }
    ux_pull_t *p = wefti_calloc(1, sizeof *p);
    if (!p || wefti_map_put(&l->offer_ids, id, p)) {
        wefti_free(p);
        wefti_ux_fail(l, WEFT_ERR_NOMEM, "no memory for an offer");
        return;
    }
    p->base.ops = l->base.ops;
    p->lane = l;
    p->id = id;
    p->total = total;
    p->chunked = true;
    wefti_list_push_back(&l->offers, &p->link);
    l->transport->base.fabric->up->announced(l->base.user, bytes + 16, n - 16, total, &p->base);
}

weft_status_t wefti_ux_chunk_pull(ux_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    ux_lane_t *l = p->lane;
    ucp_dt_iov_t *pieces = wefti_malloc(iov_n * sizeof *pieces);
    if (!pieces)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %zu pieces", iov_n);
    uint64_t slot;
    weft_status_t st = wefti_slots_add(&l->transport->pulls, p, &slot);
    if (st) {
        wefti_free(pieces);
        return st;
    }
    memcpy(pieces, iov, iov_n * sizeof *pieces);
    p->iov = pieces;
    p->iov_n = iov_n;
    p->slot = slot;
    p->want = want;
    p->x = x;
    wefti_map_take(&l->offer_ids, p->id);
    wefti_list_remove(&p->link);
    wefti_list_push_back(&l->pulling, &p->link);
    if (l->failed || l->state >= UX_CLOSING) {
        wefti_ux_pull_end(p, l->failed ? WEFT_ERR_PEER : WEFT_ERR_CANCELLED);
        return WEFT_OK;
    }
    uint64_t nums[3] = {p->id, slot, want};
    wefti_ux_control_bytes(l, UX_REC_PULL, nums, sizeof nums);
    return WEFT_OK;
}

static void copy_in(const ux_pull_t *p, const uint8_t *from, size_t n)
{
    for (size_t at = p->iov_at, skip = p->piece_at; n; at++, skip = 0) {
        size_t left = p->iov[at].length - skip, part = n < left ? n : left;
        if (part)
            memcpy((uint8_t *)p->iov[at].buffer + skip, from, part);
        from += part;
        n -= part;
    }
}

/* n more bytes are where they belong. */
static void pull_advance(ux_pull_t *p, size_t n)
{
    ux_lane_t *l = p->lane;
    p->got += n;
    while (n) {
        size_t left = p->iov[p->iov_at].length - p->piece_at, part = n < left ? n : left;
        p->piece_at += part;
        n -= part;
        if (p->piece_at == p->iov[p->iov_at].length) {
            p->iov_at++;
            p->piece_at = 0;
        }
    }
    if (p->got < p->want)
        return;
    wefti_ux_pull_end(p, WEFT_OK);
    uint8_t *at = wefti_ux_make_room(l, 8, true);
    if (at) {
        memcpy(at, &p->id, 8);
        wefti_ux_put(l, UX_REC_TAKEN, 8);
    } else {
        wefti_ux_fail(l, WEFT_ERR_NOMEM, "no memory for a control record");
    }
}

void wefti_ux_chunk_arrived(ux_transport_t *r, const void *head, size_t head_n, const void *data, size_t n)
{
    uint64_t nums[3];
    if (head_n != sizeof nums) {
        r->strangers++;
        return;
    }
    memcpy(nums, head, sizeof nums);
    ux_lane_t *l = wefti_ux_lane_of(r, nums[0]);
    if (!l) {
        r->strangers++;
        return;
    }
    if (l->state >= UX_CLOSING || l->failed)
        return;
    ux_pull_t *p = wefti_slots_get(&r->pulls, nums[1]);
    if (!p || p->lane != l || nums[2] != p->got || !n || n > p->want - p->got) {
        wefti_ux_fail(l, WEFT_ERR_PROTOCOL, "a chunk of what is not being pulled");
        return;
    }
    copy_in(p, data, n);
    pull_advance(p, n);
}
