/* fabric/shm/lane.c - a lane: two rings, the peer's bell, and the order in which things end.
 *
 * States: NEW --connect--> UP --fail--> FAILED; CLOSING from any of them by lane_close() alone; the next progress frees it. A
 * lane found broken inside a call (a consumer position that makes no sense) is marked FAILED there and reported from the work
 * list, since upcalls come from progress only.
 *
 * A lane is born parked, so that the first record rings. It is polled (hot) after its bell rang, as long as there is a place;
 * without a place it stays parked and every record rings: then the bell batches them.
 *
 * Closing writes `closed` into the region the PEER reads (its inbound one) before any transfer ends here. So a peer that
 * finished reading our memory and then still finds closed == 0 has read bytes that nobody had taken back. The peer delivers
 * what was in the ring before it reports the lane lost.
 *
 * Promise: no upcall but lane_closed, done and withdrawn after lane_close(), nothing touched after lane_closed.
 * tests/wire/fabric_lanes.c and tests/wire/fabric_shm.c hold us to it. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/shm/guest.h"

#define REGION_MAGIC UINT64_C(0x31676e7274666577)
#define ADDR_VERSION 2u
#define FLAG_BARRIERS 1u
#define FLAG_HELPS 2u  /* it understands RELAY and HELP */
#define FLAG_SHARES 8u /* we know of guests: guest.c; 4 is WEFTI_SHM_FLAG_GUEST */

static void pass_free(wefti_shm_lane_t *lane)
{
    if (lane->pass)
        explicit_bzero(lane->pass, sizeof *lane->pass);
    wefti_free(lane->pass);
    lane->pass = NULL;
}

size_t wefti_shm_sign_address(const wefti_shm_lane_t *lane, wefti_shm_addr_t *addr, uint8_t *buf)
{
    addr->peer.version = ADDR_VERSION;
    memcpy(buf, addr, sizeof *addr);
    wefti_shm_pass_sign(lane->pass, lane->pass->side, buf, sizeof *addr, buf + sizeof *addr);
    return sizeof *addr + WEFTI_SECRET_SIZE;
}

weft_status_t wefti_shm_read_address(wefti_shm_lane_t *lane, const void *bytes, size_t n, wefti_shm_addr_t *addr_out)
{
    wefti_shm_addr_t to;
    if (n != sizeof to + WEFTI_SECRET_SIZE)
        return wefti_fail(WEFT_ERR_PROTOCOL, "an shm lane address of %zu bytes is none of ours", n);
    memcpy(&to, bytes, sizeof to);
    bool good = wefti_shm_pass_good(lane->pass, &to, sizeof to, (const uint8_t *)bytes + sizeof to);
    pass_free(lane);
    if (!good)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the peer has not shown that it is of this host and this user");
    if (to.peer.version != ADDR_VERSION)
        return wefti_fail(WEFT_ERR_PROTOCOL, "an shm lane address of version %u is none of ours", to.peer.version);
    *addr_out = to;
    return WEFT_OK;
}

/* Our half, as the peer is told of it, signed. */
static size_t put_address(const wefti_shm_transport_t *r, const wefti_shm_lane_t *lane, uint8_t *buf)
{
    wefti_shm_addr_t addr = {
        .peer = r->self.at,
        .flags = (r->barriers ? FLAG_BARRIERS : 0) | FLAG_HELPS | (r->sharing ? FLAG_SHARES : 0),
        .index = wefti_shm_lane_index(lane),
        .ring_fd = lane->region.fd,
        .ring_bytes = r->ring_bytes,
        .ring_ino = lane->region.ino,
        .ring_nonce = lane->nonce,
    };
    return wefti_shm_sign_address(lane, &addr, buf);
}

weft_status_t wefti_shm_lane_make(wefti_shm_transport_t *r, const wefti_meeting_t *with, void *user, wefti_shm_lane_t **lane_out)
{
    wefti_shm_lane_t *lane = wefti_aligned_alloc(64, sizeof *lane);
    if (!lane)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a lane");
    memset(lane, 0, sizeof *lane);
    lane->pass = wefti_calloc(1, sizeof *lane->pass);
    weft_status_t st = lane->pass ? wefti_shm_door_meet(r, with, lane->pass) : wefti_fail(WEFT_ERR_NOMEM, "no memory for a lane");
    if (!st && !r->bell)
        st = wefti_bell_open(r);
    if (!st)
        st = wefti_slots_add(&r->lanes, lane, &lane->id);
    if (st) {
        pass_free(lane);
        wefti_free(lane);
        return st;
    }
    lane->region.fd = -1;
    lane->carrier = lane;
    lane->lane = (wefti_lane_t){.ops = r->transport.ops, .transport = &r->transport, .user = user, .frame_max = r->frame_max};
    memcpy(lane->peer_uuid, with->peer, sizeof lane->peer_uuid);
    lane->peer_door = wefti_shm_door_of(with);
    wefti_list_t *lists[] = {&lane->cool_link, &lane->work_link, &lane->close_link, &lane->out,   &lane->sends,
                             &lane->streams,   &lane->helps,     &lane->waiting,    &lane->pulls, &lane->wait_link};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        wefti_list_init(lists[i]);
    wefti_slots_init(&lane->send_ids, UINT32_C(1) << 24);
    *lane_out = lane;
    return WEFT_OK;
}

void wefti_shm_lane_unmake(wefti_shm_lane_t *lane)
{
    wefti_slots_remove(&wefti_shm_transport_of(lane)->lanes, lane->id);
    pass_free(lane);
    wefti_free(lane);
}

static weft_status_t lane_new(wefti_transport_t *transport, const wefti_meeting_t *with, void *user, void *addr_buf,
                              size_t *n_out, wefti_lane_t **lane_out)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    wefti_shm_lane_t *lane;
    weft_status_t st = wefti_shm_guest_new(r, with, user, addr_buf, n_out, lane_out);
    if (st != WEFT_ERR_AGAIN)
        return st;
    st = wefti_shm_lane_make(r, with, user, &lane);
    if (st)
        return st;
    lane->rx_map_size = WEFTI_RING_PAGE + (size_t)r->ring_bytes;
    st = wefti_region_new("weft-ring", lane->rx_map_size, &lane->region, &lane->rx_map);
    if (st) {
        wefti_shm_lane_unmake(lane);
        return st;
    }
    transport->fabric->ops->random(transport->fabric, &lane->nonce, sizeof lane->nonce);
    wefti_ring_page_t *page = lane->rx_map;
    page->magic = REGION_MAGIC;
    page->nonce = lane->nonce;
    atomic_store(&page->parked, 1);
    wefti_ring_rx_init(&lane->rx, lane->rx_map, r->ring_bytes, r->frame_max);
    *n_out = put_address(r, lane, addr_buf);
    *lane_out = &lane->lane;
    return WEFT_OK;
}

static weft_status_t lane_connect(wefti_lane_t *l, const void *addr, size_t n)
{
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)l;
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    wefti_shm_addr_t to;
    assert(lane->state == WEFTI_SHM_LANE_NEW);

    weft_status_t st = wefti_shm_read_address(lane, addr, n, &to);
    if (st)
        return st;
    uint32_t ring = to.ring_bytes;
    if (ring < WEFTI_RING_SMALLEST || ring > WEFTI_RING_LARGEST || (ring & (ring - 1)))
        return wefti_fail(WEFT_ERR_PROTOCOL, "the peer's ring of %u bytes is not a power of two between %u and %u", ring,
                          WEFTI_RING_SMALLEST, WEFTI_RING_LARGEST);
    if (to.peer.pid <= 0 || to.ring_fd < 0 || to.peer.bell_fd < 0 || to.peer.wake_fd < 0)
        return wefti_fail(WEFT_ERR_PROTOCOL, "the peer's process %u or descriptor %u cannot be", (unsigned)to.peer.pid,
                          (unsigned)to.ring_fd);

    st = wefti_shm_peer_hold(r, &to.peer, &lane->peer);
    if (st)
        return st;
    size_t size = WEFTI_RING_PAGE + (size_t)ring;
    void *map;
    st = wefti_region_view(to.peer.pid, to.ring_fd, to.ring_ino, size, true, &map);
    if (st)
        goto err_peer;
    wefti_ring_page_t *page = map;
    if (page->magic != REGION_MAGIC || page->nonce != to.ring_nonce || atomic_load(&page->mapped)) {
        st = wefti_fail(WEFT_ERR_PROTOCOL, "descriptor %d of process %d is not the ring of this lane", to.ring_fd, to.peer.pid);
        goto err_unmap;
    }
    lane->tx_map = map;
    lane->tx_map_size = size;
    wefti_ring_tx_init(&lane->tx, map, ring);
    lane->light = lane->tx.light = r->barriers && (to.flags & FLAG_BARRIERS);
    lane->helps_us = lane->peer->readable && (to.flags & FLAG_HELPS) && !r->copy_alone;
    lane->peer_index = to.index;
    lane->peer_nonce = to.ring_nonce;
    lane->shares = r->sharing && (to.flags & FLAG_SHARES);
    uint32_t theirs = wefti_shm_frame_max(ring);
    if (theirs < lane->lane.frame_max)
        lane->lane.frame_max = theirs;
    lane->state = WEFTI_SHM_LANE_UP;
    atomic_store(&page->mapped, 1);
    wefti_bell_ring(lane->peer, to.index);
    /* Records may be there already. */
    wefti_bell_ring(&r->self, wefti_shm_lane_index(lane));
    return WEFT_OK;

err_unmap:
    wefti_region_unmap(map, size);
err_peer:
    wefti_shm_peer_drop(r, lane->peer);
    lane->peer = NULL;
    return st;
}

bool wefti_shm_peer_open(wefti_lane_t *l)
{
    const wefti_shm_lane_t *lane = (const wefti_shm_lane_t *)l;
    atomic_thread_fence(memory_order_seq_cst);
    return lane->state == WEFTI_SHM_LANE_UP && !wefti_shm_peer_closed(lane);
}

void wefti_shm_lane_close(wefti_lane_t *l)
{
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)l;
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    if (lane->state == WEFTI_SHM_LANE_CLOSING)
        return;
    if (lane->carrier != lane) {
        wefti_shm_guest_close(lane);
        return;
    }
    wefti_shm_unoffer(lane);
    if (lane->tx_map) {
        atomic_exchange(&lane->tx.page->closed, 1);
        wefti_bell_ring(lane->peer, lane->peer_index);
    }
    lane->state = WEFTI_SHM_LANE_CLOSING;
    lane->tx.size = lane->tx.limit = 0;
    wefti_list_push_back(&r->closing, &lane->close_link);
    if (r->armed)
        wefti_bell_wake(&r->self);
}

void wefti_shm_lane_end(wefti_shm_lane_t *lane, bool quietly)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    const wefti_fabric_up_t *up = r->transport.fabric->up;
    wefti_list_remove(&lane->close_link);
    if (wefti_list_linked(&lane->work_link))
        wefti_list_remove(&lane->work_link);
    wefti_shm_bulk_end(lane, quietly);
    wefti_shm_arenas_lane_end(lane);
    wefti_shm_relays_end(lane);
    wefti_shm_forget(lane);
    if (lane->region.fd >= 0)
        close(lane->region.fd);
    wefti_region_unmap(lane->rx_map, lane->rx_map_size);
    wefti_region_unmap(lane->tx_map, lane->tx_map_size);
    if (lane->peer)
        wefti_shm_peer_drop(r, lane->peer);
    wefti_slots_remove(&r->lanes, lane->id);
    wefti_slots_free(&lane->send_ids);
    wefti_map_free(&lane->pull_ids);
    void *user = lane->lane.user;
    bool carrier = lane->guests;
    pass_free(lane);
    if (carrier)
        wefti_shm_carrier_end(lane);
    if (lane->carrier == lane || wefti_shm_guest_end(lane))
        wefti_free(lane);
    if (!quietly && !carrier)
        up->lane_closed(user);
}

void wefti_shm_lane_fail(wefti_shm_lane_t *lane, weft_status_t why)
{
    if (lane->state != WEFTI_SHM_LANE_UP && (lane->state != WEFTI_SHM_LANE_NEW || lane->carrier == lane))
        return;
    lane->state = WEFTI_SHM_LANE_FAILED;
    lane->why = why;
    lane->tx.size = lane->tx.limit = 0; /* nothing fits any more, and the hot path need not ask why */
    wefti_shm_unoffer(lane);
    wefti_shm_work(lane);
    if (lane->guests)
        wefti_shm_carrier_fail(lane, why);
}

/* The consumer's position made no sense. */
static void fail_liar(wefti_shm_lane_t *lane)
{
    wefti_info("shm: process %d says it has read what was never sent", lane->peer->at.pid);
    wefti_shm_lane_fail(lane, WEFT_ERR_PROTOCOL);
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

void *wefti_shm_lane_reserve(wefti_shm_lane_t *lane, size_t n)
{
    wefti_shm_lane_t *c = lane->carrier;
    void *at = wefti_ring_reserve(&c->tx, n);
    if (WEFTI_LIKELY(at != NULL))
        return at;
    at = wefti_ring_reserve_or_want(&c->tx, n);
    if (c->tx.bad)
        fail_liar(c);
    if (!at && c != lane)
        wefti_shm_guest_starves(lane);
    return at;
}

static void *reserve(wefti_lane_t *l, size_t n)
{
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)l;
    void *at = wefti_ring_reserve(&lane->tx, n);
    if (WEFTI_LIKELY(at != NULL))
        return at;
    at = wefti_shm_lane_reserve(lane, n);
    if (!at)
        lane->starved = true;
    return at;
}

static void commit(wefti_lane_t *l, size_t n)
{
    wefti_shm_ring_commit((wefti_shm_lane_t *)l, n, WEFTI_SHM_REC);
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

/* Tell of the records that come next; they stay where they are. Apart, so that lanes without need do not pay for it. */
__attribute__((noinline)) static void look_ahead(const wefti_shm_lane_t *lane)
{
    wefti_ring_rx_t rx = lane->rx; /* a position of our own */
    wefti_ahead_t ahead[WEFTI_AHEAD_MAX];
    wefti_ring_rec_t rec;
    unsigned n = 0;
    while (n < WEFTI_AHEAD_MAX && wefti_ring_peek(&rx, &rec) == WEFTI_RING_RECORD && rec.type == WEFTI_SHM_REC) {
        ahead[n++] = (wefti_ahead_t){rec.bytes, rec.n};
        rx.pos += rx.step;
    }
    if (n > 1)
        lane->lane.transport->fabric->up->ahead(lane->lane.user, ahead, n);
}

unsigned wefti_shm_lane_poll(wefti_shm_lane_t *lane)
{
    const bool ahead = lane->lane.transport->fabric->look_ahead;
    wefti_ring_rec_t rec;
    unsigned n = 0;
    while (n < WEFTI_SHM_POLL_BUDGET) {
        if (WEFTI_UNLIKELY(ahead) && n % WEFTI_AHEAD_MAX == 0)
            look_ahead(lane);
        wefti_ring_got_t got = wefti_ring_peek(&lane->rx, &rec);
        if (got == WEFTI_RING_EMPTY)
            break;
        if (WEFTI_UNLIKELY(got != WEFTI_RING_RECORD)) {
            if (got == WEFTI_RING_SHARED)
                return wefti_shm_carrier_poll(lane, n);
            wefti_info("shm: process %d wrote a record that cannot be", lane->peer->at.pid);
            wefti_shm_lane_fail(lane, WEFT_ERR_PROTOCOL);
            break;
        }
        if (WEFTI_LIKELY(rec.type == WEFTI_SHM_REC)) {
            lane->lane.transport->fabric->up->record(lane->lane.user, rec.bytes, rec.n);
        } else {
            weft_status_t st = wefti_shm_control(lane, &rec);
            if (WEFTI_UNLIKELY(st == WEFT_ERR_NOMEM)) {
                /* It stays where it is until there is memory. */
                wefti_bell_ring(&wefti_shm_transport_of(lane)->self, wefti_shm_lane_index(lane));
                break;
            }
            if (WEFTI_UNLIKELY(st)) {
                wefti_info("shm: process %d sent a record of type %u that makes no sense here", lane->peer->at.pid, rec.type);
                wefti_shm_lane_fail(lane, WEFT_ERR_PROTOCOL);
                break;
            }
        }
        n++;
        if (WEFTI_UNLIKELY(lane->state != WEFTI_SHM_LANE_UP))
            break;
        if (WEFTI_UNLIKELY(wefti_ring_pop(&lane->rx)))
            wefti_bell_ring(lane->peer, lane->peer_index);
    }
    return n;
}

bool wefti_shm_lane_has_something(wefti_shm_lane_t *lane)
{
    const wefti_ring_page_t *page = lane->rx.page;
    if (lane->carrier != lane)
        return false; /* the carrier has */
    if (lane->region.fd >= 0 && atomic_load_explicit(&page->mapped, memory_order_relaxed))
        return true;
    if (lane->state != WEFTI_SHM_LANE_UP)
        return false;
    return !wefti_ring_empty(&lane->rx) || atomic_load_explicit(&page->closed, memory_order_relaxed) || lane->starved ||
           wefti_shm_bulk_waits_for_space(lane) || (lane->guests && wefti_shm_carrier_owes(lane));
}

unsigned wefti_shm_lane_visit(wefti_shm_lane_t *lane)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    wefti_ring_page_t *page = lane->rx.page;
    if (lane->carrier != lane)
        return 0; /* only a hostile peer rings for a guest */
    if (lane->region.fd >= 0 && atomic_load_explicit(&page->mapped, memory_order_relaxed)) {
        close(lane->region.fd);
        lane->region.fd = -1;
    }
    if (lane->state != WEFTI_SHM_LANE_UP)
        return 0;
    /* Read before the ring: what was sent before the close is delivered before the lane fails. */
    bool closed = atomic_load(&page->closed);
    unsigned n = wefti_shm_lane_poll(lane);
    if (lane->state != WEFTI_SHM_LANE_UP)
        return n;
    if (n == WEFTI_SHM_POLL_BUDGET || (closed && !wefti_ring_empty(&lane->rx))) {
        wefti_bell_ring(&r->self, wefti_shm_lane_index(lane));
        return n;
    }
    if (closed) {
        wefti_shm_lane_fail(lane, WEFT_ERR_PEER);
        return n + 1;
    }
    if (wefti_shm_bulk_waits_for_space(lane))
        wefti_shm_work(lane);
    if (lane->starved && wefti_ring_space_or_want(&lane->tx)) {
        lane->starved = false;
        r->transport.fabric->up->space(lane->lane.user);
        n++;
    } else if (lane->guests && wefti_shm_carrier_owes(lane)) {
        n += wefti_shm_carrier_space(lane);
    }
    if (WEFTI_UNLIKELY(lane->tx.bad))
        fail_liar(lane);
    return n;
}

unsigned wefti_shm_lane_work(wefti_shm_lane_t *lane, uint64_t *budget)
{
    unsigned n = 0;
    if (lane->state == WEFTI_SHM_LANE_UP)
        n += wefti_shm_bulk_work(lane, budget);
    if (lane->state == WEFTI_SHM_LANE_FAILED) {
        wefti_shm_pulls_end(lane, WEFT_ERR_PEER, false);
        n++;
        if (!lane->told && lane->state == WEFTI_SHM_LANE_FAILED) {
            lane->told = true;
            wefti_shm_forget(lane);
            if (!lane->guests)
                lane->lane.transport->fabric->up->lane_failed(lane->lane.user, lane->why);
        }
    }
    return n;
}

const wefti_transport_ops_t wefti_shm_ops = {
    .close = wefti_shm_close,
    .arm = wefti_shm_arm,
    .caps = wefti_shm_caps,
    .match = wefti_shm_match,
    .lane_new = lane_new,
    .lane_connect = lane_connect,
    .lane_offer = wefti_shm_offer,
    .lane_close = wefti_shm_lane_close,
    .reserve = reserve,
    .commit = commit,
    .announce = wefti_shm_announce,
    .pull = wefti_shm_pull,
    .refuse = wefti_shm_refuse,
    .peer_open = wefti_shm_peer_open,
    .lend = wefti_shm_lend,
    .unlend = wefti_shm_unlend,
    .lent_outlives = true,
    .expose = wefti_shm_expose,
    .take_fd = wefti_shm_take_fd,
    .map = wefti_shm_map,
    .unmap = wefti_region_unmap,
};
