/* fabric/shm/guest.c - lanes that use the rings of another: the second, third, thousandth lane between the same two runtimes.
 *
 * The first lane to a peer has two rings of its own. When a second one is made, the first gives its rings to a carrier (a lane
 * that nobody outside of this transport holds) and becomes one of its guests, as the second does. A guest has everything that a
 * lane has (transfers, arenas, an end) but rings, a bell and a place among those that are polled: those are the carrier's.
 *
 *     plain lane --a second one is made--> carrier <-- guest 0 (the first lane), guest, guest, ...
 *
 * A record's head word says whose it is (ring.h): the number of the channel, which the RECEIVER of the record gave it: a seat in
 * its table (low 10 bits) and a generation (14 bits). The first lane has number 0, which is what plain lanes send; so the two
 * sides need not become carriers at the same moment. Numbers are told in the addresses:
 *
 *     JOIN, LANE {flags GUEST, index: the number for records to us, ring_ino: what the peer calls the carrier}
 *
 * and each is signed with a key made of the door's (door.c) and of the nonces of the carrier's two rings, which only its two
 * ends know. So nobody else can become a guest there. FLAG_SHARES in the address of a plain lane says that its owner knows all
 * this; without it the lane never becomes a carrier.
 *
 * The end of a guest: `ended` of its channel is written first (as `closed` is, and for the same reason: lane.c), with the
 * generation, so that an end that comes late is not taken for that of the next guest in the same seat. Then END goes through the
 * ring, behind its records, and fails the peer's half. Its transfers end here without waiting for the peer. A seat is free at
 * once: records for an earlier generation are passed over, those for a seat that never was break the protocol. The carrier ends
 * with its last guest.
 *
 * A guest sends nothing but END before the peer has connected: conn's listener waits for the dialler's first record
 * (conn/trunk.c). Another record for a guest that is not connected breaks the protocol. A guest that found no space stands in a
 * queue, and the first in it is the first to be called.
 *
 * tests/wire/fabric_shm_guest.c, fabric_shm_guest_hostile.c, conn_shared.c; tests/fault/conn_shared.c. */
#include "fabric/shm/guest.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"

/* --- offers ------------------------------------------------------------------------------------------------------- */

/* Of a runtime, and of its door where we know that, as the dialler does: runtimes with several drivers have one for each. */
static uint64_t offer_key(const uint8_t *peer, uint64_t door)
{
    uint64_t key;
    memcpy(&key, peer, sizeof key);
    return key ^ door;
}

uint64_t wefti_shm_door_of(const wefti_meeting_t *with)
{
    return with->side == WEFTI_SIDE_DIALLER && with->caps_n == WEFTI_SHM_CAPS_SIZE + WEFTI_SHM_DOOR_SIZE
               ? wefti_hash_bytes((const uint8_t *)with->caps + WEFTI_SHM_CAPS_SIZE, WEFTI_SHM_DOOR_SIZE)
               : 0;
}

static bool is_full(const wefti_shm_lane_t *lane)
{
    return lane->guests && lane->guests->n == WEFTI_SHM_SEATS && !lane->guests->free_first;
}

void wefti_shm_unoffer(wefti_shm_lane_t *lane)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    uint64_t key = offer_key(lane->peer_uuid, lane->peer_door);
    if (wefti_map_get(&r->offers, key) == lane)
        wefti_map_take(&r->offers, key);
}

void wefti_shm_offer_by(wefti_shm_lane_t *lane, wefti_shm_lane_t *by)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    uint64_t key = offer_key(lane->peer_uuid, lane->peer_door);
    if (wefti_map_get(&r->offers, key) == lane)
        (void)wefti_map_put(&r->offers, key, by); /* that key is there: it needs no memory */
}

void wefti_shm_offer(wefti_lane_t *l, const uint8_t *peer)
{
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)l;
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    if (!peer) {
        wefti_shm_unoffer(lane);
        return;
    }
    if (lane->carrier != lane || lane->state != WEFTI_SHM_LANE_UP || !lane->shares ||
        memcmp(peer, lane->peer_uuid, sizeof lane->peer_uuid))
        return;
    uint64_t key = offer_key(peer, lane->peer_door);
    const wefti_shm_lane_t *other = wefti_map_get(&r->offers, key);
    if (!other || is_full(other))
        (void)wefti_map_put(&r->offers, key, lane);
}

/* --- seats -------------------------------------------------------------------------------------------------------- */

static bool seat_take(wefti_shm_lane_t *c, wefti_shm_lane_t *lane)
{
    wefti_shm_guests_t *g = c->guests;
    uint32_t at = g->free_first;
    if (at) {
        g->free_first = g->seats[at].next_free;
        if (!g->free_first)
            g->free_last = 0;
    } else {
        if (g->n == WEFTI_SHM_SEATS || !wefti_grow(&g->seats, &g->cap, g->n + 1, sizeof g->seats[0]))
            return false;
        at = g->n++;
        g->seats[at].generation = 0;
    }
    wefti_shm_seat_t *s = &g->seats[at];
    s->generation = (uint16_t)((s->generation + 1) % WEFTI_SHM_GENERATIONS);
    if (!s->generation)
        s->generation = 1;
    s->lane = lane;
    lane->carrier = c;
    lane->lane.carrier = &c->lane;
    lane->rx_number = at | (uint32_t)s->generation * WEFTI_SHM_SEATS;
    g->n_open++;
    return true;
}

static void seat_leave(wefti_shm_lane_t *lane)
{
    wefti_shm_guests_t *g = lane->carrier->guests;
    uint32_t at = lane->rx_number % WEFTI_SHM_SEATS;
    g->seats[at].lane = NULL;
    if (!at)
        return; /* number 0 is never given again */
    g->seats[at].next_free = 0;
    if (g->free_last)
        g->seats[g->free_last].next_free = (uint16_t)at;
    else
        g->free_first = (uint16_t)at;
    g->free_last = (uint16_t)at;
}

/* --- making one --------------------------------------------------------------------------------------------------- */

static void own_key(wefti_shm_pass_t *pass, const wefti_shm_lane_t *c)
{
    uint64_t nonces[2] = {c->nonce < c->peer_nonce ? c->nonce : c->peer_nonce,
                          c->nonce < c->peer_nonce ? c->peer_nonce : c->nonce};
    uint8_t key[WEFTI_SECRET_SIZE];
    wefti_mac(pass->key, "weft shm guest", nonces, sizeof nonces, key);
    memcpy(pass->key, key, sizeof key);
    explicit_bzero(key, sizeof key);
    explicit_bzero(nonces, sizeof nonces);
}

/* The lane of ours that a dialler wants to be a guest of. Everything it says may be a lie. */
static wefti_shm_lane_t *find_named(const wefti_shm_transport_t *r, const wefti_meeting_t *with, const wefti_shm_addr_t *join)
{
    if (with->alone || join->ring_ino >= r->lanes.n)
        return NULL;
    wefti_shm_lane_t *lane = wefti_shm_lane_at(r, (uint32_t)join->ring_ino);
    return lane && lane->carrier == lane && lane->state == WEFTI_SHM_LANE_UP && lane->shares &&
                   !memcmp(&lane->peer->at, &join->peer, sizeof join->peer) &&
                   !memcmp(lane->peer_uuid, with->peer, sizeof lane->peer_uuid)
               ? lane
               : NULL;
}

/* One that we dialled at the same door; else one that the peer dialled, whose door we do not know. */
static wefti_shm_lane_t *find_offered(const wefti_shm_transport_t *r, const wefti_meeting_t *with)
{
    uint64_t doors[] = {wefti_shm_door_of(with), 0};
    for (int i = 0; i < 2 && !with->alone; i++) {
        wefti_shm_lane_t *lane = wefti_map_get(&r->offers, offer_key(with->peer, doors[i]));
        if (lane && lane->state == WEFTI_SHM_LANE_UP && !is_full(lane) && lane->peer_door == doors[i] &&
            !memcmp(lane->peer_uuid, with->peer, sizeof lane->peer_uuid))
            return lane;
    }
    return NULL;
}

static size_t put_address(const wefti_shm_transport_t *r, const wefti_shm_lane_t *lane, uint8_t *buf)
{
    wefti_shm_addr_t addr = {
        .peer = r->self.at,
        .flags = WEFTI_SHM_FLAG_GUEST,
        .index = lane->rx_number,
        .ring_fd = -1,
        .ring_ino = lane->carrier->peer_index,
    };
    return wefti_shm_sign_address(lane, &addr, buf);
}

weft_status_t wefti_shm_guest_new(wefti_shm_transport_t *r, const wefti_meeting_t *with, void *user, void *addr_buf,
                                  size_t *n_out, wefti_lane_t **lane_out)
{
    wefti_shm_addr_t join = {0};
    wefti_shm_lane_t *lane, *c = NULL;
    if (with->side == WEFTI_SIDE_LISTENER) {
        if (with->join_n == sizeof join + WEFTI_SECRET_SIZE)
            memcpy(&join, with->join, sizeof join);
        if (!(join.flags & WEFTI_SHM_FLAG_GUEST))
            return WEFT_ERR_AGAIN;
        c = r->sharing ? find_named(r, with, &join) : NULL;
        if (!c)
            return wefti_fail(WEFT_ERR_UNREACHABLE, "there is no lane %llu that others may use",
                              (unsigned long long)join.ring_ino);
    } else {
        c = r->sharing ? find_offered(r, with) : NULL;
        if (!c)
            return WEFT_ERR_AGAIN;
    }
    weft_status_t st = wefti_shm_lane_make(r, with, user, &lane);
    if (st)
        return st;
    own_key(lane->pass, c);
    if (with->side == WEFTI_SIDE_LISTENER &&
        !wefti_shm_pass_good(lane->pass, &join, sizeof join, (const uint8_t *)with->join + sizeof join)) {
        wefti_shm_lane_unmake(lane); /* before anything is done for it */
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the peer has not shown that it is the other end of the lane it wants to share");
    }
    if (!c->guests)
        c = wefti_shm_carrier_make(c);
    if (!c || !seat_take(c, lane)) {
        wefti_shm_lane_unmake(lane);
        return wefti_fail(c && is_full(c) ? WEFT_ERR_LIMIT : WEFT_ERR_NOMEM, "no place for one more lane in a ring");
    }
    lane->lane.ops = &wefti_shm_guest_ops;
    lane->lane.frame_max = c->lane.frame_max;
    lane->peer = c->peer;
    lane->peer->refs++;
    lane->peer_index = c->peer_index;
    lane->helps_us = c->helps_us;
    *n_out = put_address(r, lane, addr_buf);
    *lane_out = &lane->lane;
    return WEFT_OK;
}

static weft_status_t guest_connect(wefti_lane_t *l, const void *addr, size_t n)
{
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)l;
    wefti_shm_lane_t *c = lane->carrier;
    wefti_shm_addr_t to;
    weft_status_t st = wefti_shm_read_address(lane, addr, n, &to);
    if (st)
        return st;
    if (!(to.flags & WEFTI_SHM_FLAG_GUEST) || to.ring_ino != wefti_shm_lane_index(c) ||
        memcmp(&to.peer, &c->peer->at, sizeof to.peer) || to.index < WEFTI_SHM_SEATS ||
        to.index >= WEFTI_SHM_SEATS * WEFTI_SHM_GENERATIONS || !(to.index % WEFTI_SHM_SEATS))
        return wefti_fail(WEFT_ERR_PROTOCOL, "an address that is not of a guest of this lane");
    if (lane->state != WEFTI_SHM_LANE_NEW)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the rings of the lane are lost");
    lane->tx_number = to.index;
    lane->state = WEFTI_SHM_LANE_UP;
    return WEFT_OK;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

void wefti_shm_guest_starves(wefti_shm_lane_t *lane)
{
    if (!wefti_list_linked(&lane->wait_link))
        wefti_list_push_back(&lane->carrier->guests->starving, &lane->wait_link);
}

static void *guest_reserve(wefti_lane_t *l, size_t n)
{
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)l;
    if (WEFTI_UNLIKELY(lane->state != WEFTI_SHM_LANE_UP))
        return NULL;
    void *at = wefti_ring_reserve(&lane->carrier->tx, n);
    if (WEFTI_LIKELY(at != NULL))
        return at;
    at = wefti_shm_lane_reserve(lane, n);
    if (!at)
        lane->starved = true;
    return at;
}

static void guest_commit(wefti_lane_t *l, size_t n)
{
    wefti_shm_lane_commit((wefti_shm_lane_t *)l, n, WEFTI_SHM_REC);
}

/* --- endings ------------------------------------------------------------------------------------------------------ */

/* Write that our half of a channel is closed, unless that is known of a later one in the same seat. */
static void mark_ended(wefti_shm_lane_t *lane)
{
    _Atomic uint16_t *ended = &lane->carrier->tx.page->ended[lane->tx_number % WEFTI_SHM_SEATS];
    uint32_t mine = lane->tx_number / WEFTI_SHM_SEATS + 1, there = atomic_load(ended);
    if (!there || (mine - there) % WEFTI_SHM_GENERATIONS < WEFTI_SHM_GENERATIONS / 2)
        atomic_exchange(ended, (uint16_t)mine);
}

void wefti_shm_guest_close(wefti_shm_lane_t *lane)
{
    wefti_shm_lane_t *c = lane->carrier;
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    bool connected = !lane->rx_number || lane->tx_number;
    if (wefti_list_linked(&lane->wait_link))
        wefti_list_remove(&lane->wait_link);
    lane->state = WEFTI_SHM_LANE_CLOSING;
    seat_leave(lane);
    wefti_list_push_back(&r->closing, &lane->close_link);
    bool last = !--c->guests->n_open;
    if (connected && c->state == WEFTI_SHM_LANE_UP && !last) {
        mark_ended(lane);
        if (!wefti_shm_send_end(lane) && c->state == WEFTI_SHM_LANE_UP)
            wefti_list_push_back(&c->guests->ends, &lane->wait_link);
    }
    if (last)
        wefti_shm_lane_close(&c->lane); /* behind it: the list is in order */
    if (r->armed)
        wefti_bell_wake(&r->self);
}

bool wefti_shm_guest_end(wefti_shm_lane_t *lane)
{
    lane->gone = true;
    return !wefti_list_linked(&lane->wait_link);
}

const wefti_transport_ops_t wefti_shm_guest_ops = {
    .close = wefti_shm_close,
    .arm = wefti_shm_arm,
    .caps = wefti_shm_caps,
    .match = wefti_shm_match,
    .lane_new = NULL, /* a transport's, and so are those above: not asked of a lane */
    .lane_connect = guest_connect,
    .lane_offer = wefti_shm_offer,
    .lane_close = wefti_shm_lane_close,
    .reserve = guest_reserve,
    .commit = guest_commit,
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
