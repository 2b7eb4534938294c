/* fabric/shm/carrier.c - the rings that several lanes use: whose record it is, who gets space, and how it ends. guest.c has the
 * rest, and what it is all about.
 *
 * States are those of a lane (lane.c), without NEW: a carrier is made of a lane that is up, takes its place in the bell and
 * among those that are polled, and is closed with its last guest. No upcall is about it. What breaks the ring itself, or names a
 * channel that never was, fails the carrier, and so each guest; what only one guest's records break fails that guest.
 *
 * Promise: each record is delivered to the lane it was sent on, or passed over if that is closed; a guest that waits for space is
 * called in its turn, whatever the others do. tests/wire/fabric_shm_guest.c. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/shm/guest.h"

/* --- becoming a carrier ------------------------------------------------------------------------------------------- */

/* Give the rings of a plain lane to a carrier, of which it is the first guest from now on. NULL: no memory. */
wefti_shm_lane_t *wefti_shm_carrier_make(wefti_shm_lane_t *lane)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    uint64_t id;
    wefti_shm_lane_t *c = wefti_aligned_alloc(64, sizeof *c);
    wefti_shm_guests_t *g = wefti_calloc(1, sizeof *g);
    if (!c || !g || !wefti_grow(&g->seats, &g->cap, 4, sizeof g->seats[0]) || wefti_slots_add(&r->lanes, lane, &id)) {
        if (g)
            wefti_free(g->seats);
        wefti_free(g);
        wefti_free(c);
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->lane = lane->lane;
    c->lane.carrier = NULL;
    c->rx = lane->rx;
    c->tx = lane->tx;
    wefti_ring_rx_share(&c->rx);
    c->state = WEFTI_SHM_LANE_UP;
    c->peer = lane->peer;
    c->peer->refs++;
    c->peer_index = lane->peer_index;
    c->light = lane->light;
    c->id = lane->id;
    c->nonce = lane->nonce;
    c->peer_nonce = lane->peer_nonce;
    c->rx_map = lane->rx_map;
    c->tx_map = lane->tx_map;
    c->rx_map_size = lane->rx_map_size;
    c->tx_map_size = lane->tx_map_size;
    c->region = lane->region;
    c->shares = true;
    memcpy(c->peer_uuid, lane->peer_uuid, sizeof c->peer_uuid);
    c->peer_door = lane->peer_door;
    c->helps_us = lane->helps_us;
    c->carrier = c;
    c->guests = g;
    wefti_list_t *lists[] = {&c->cool_link, &c->work_link, &c->close_link, &c->out,       &c->sends,    &c->streams,
                             &c->helps,     &c->waiting,   &c->pulls,      &c->wait_link, &g->starving, &g->ends};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        wefti_list_init(lists[i]);
    g->seats[0] = (wefti_shm_seat_t){.lane = lane};
    g->n = g->n_open = 1;
    wefti_slots_put(&r->lanes, c->id, c);
    wefti_shm_replace(lane, c);
    wefti_shm_offer_by(lane, c);

    lane->id = id;
    lane->rx_map = lane->tx_map = NULL;
    lane->region.fd = -1;
    lane->rx = (wefti_ring_rx_t){0};
    lane->tx = (wefti_ring_tx_t){0};
    lane->carrier = c;
    lane->lane.ops = &wefti_shm_guest_ops;
    lane->lane.carrier = &c->lane;
    if (lane->starved || wefti_shm_bulk_waits_for_space(lane))
        wefti_shm_guest_starves(lane);
    wefti_bell_ring(&r->self, wefti_shm_lane_index(c));
    return c;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

/* Say that nothing follows; false: there is no space to say it. */
bool wefti_shm_send_end(wefti_shm_lane_t *lane)
{
    uint8_t *at = wefti_shm_lane_reserve(lane->carrier, 16);
    if (!at)
        return false;
    memset(at, 0, 16);
    wefti_shm_lane_commit(lane, 16, WEFTI_SHM_END);
    return true;
}

unsigned wefti_shm_carrier_space(wefti_shm_lane_t *c)
{
    wefti_shm_guests_t *g = c->guests;
    const wefti_fabric_up_t *up = c->lane.transport->fabric->up;
    wefti_list_t *it;
    unsigned n = 0;
    while ((it = wefti_list_first(&g->ends))) {
        wefti_shm_lane_t *lane = wefti_container_of(it, wefti_shm_lane_t, wait_link);
        if (!wefti_shm_send_end(lane))
            return n;
        wefti_list_remove(it);
        n++;
        if (lane->gone)
            wefti_free(lane);
    }
    /* Those that find no space again stand at the end of the queue. */
    for (uint32_t most = g->n_open; most && (it = wefti_list_first(&g->starving)); most--) {
        if (!wefti_ring_space_or_want(&c->tx))
            break;
        wefti_shm_lane_t *lane = wefti_container_of(it, wefti_shm_lane_t, wait_link);
        wefti_list_remove(it);
        n++;
        if (wefti_shm_bulk_waits_for_space(lane))
            wefti_shm_work(lane);
        if (lane->starved && lane->state == WEFTI_SHM_LANE_UP) {
            lane->starved = false;
            up->space(lane->lane.user);
        }
    }
    return n;
}

bool wefti_shm_carrier_owes(const wefti_shm_lane_t *c)
{
    return !wefti_list_empty(&c->guests->starving) || !wefti_list_empty(&c->guests->ends);
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

/* One record of a carrier's ring. WEFT_ERR_NOMEM: leave it there; _PROTOCOL: the carrier's end. */
static weft_status_t deliver(wefti_shm_lane_t *c, wefti_ring_rec_t *rec)
{
    const wefti_shm_guests_t *g = c->guests;
    uint32_t number = rec->type >> 8, at = number % WEFTI_SHM_SEATS;
    rec->type &= 0xff;
    if (WEFTI_UNLIKELY(at >= g->n || (!at && number)))
        return WEFT_ERR_PROTOCOL;
    wefti_shm_lane_t *lane = g->seats[at].lane;
    if (WEFTI_UNLIKELY(!lane || lane->rx_number != number))
        return WEFT_OK; /* of one that is closed here; the peer does not know it yet */
    if (WEFTI_UNLIKELY(lane->ended || (lane->state == WEFTI_SHM_LANE_NEW && rec->type != WEFTI_SHM_END)))
        return WEFT_ERR_PROTOCOL; /* a listener may close its half before the dialler has joined its own, and say so here */
    if (WEFTI_LIKELY(rec->type == WEFTI_SHM_REC)) {
        if (WEFTI_LIKELY(lane->state == WEFTI_SHM_LANE_UP))
            c->lane.transport->fabric->up->record(lane->lane.user, rec->bytes, rec->n);
        return WEFT_OK;
    }
    if (rec->type == WEFTI_SHM_END) {
        lane->ended = true;
        wefti_shm_lane_fail(lane, WEFT_ERR_PEER);
        return WEFT_OK;
    }
    weft_status_t st = lane->state == WEFTI_SHM_LANE_UP ? wefti_shm_control(lane, rec) : WEFT_OK;
    if (st != WEFT_ERR_PROTOCOL)
        return st;
    wefti_info("shm: process %d sent a record of type %u that makes no sense here", c->peer->at.pid, rec->type);
    wefti_shm_lane_fail(lane, st); /* only this one: the others may know better */
    return WEFT_OK;
}

/* Tell of the records that come next, those of one lane that follow each other together; they stay where they are. */
static void look_ahead(const wefti_shm_lane_t *c)
{
    const wefti_shm_guests_t *g = c->guests;
    wefti_ring_rx_t rx = c->rx; /* a position of our own */
    wefti_ahead_t ahead[WEFTI_AHEAD_MAX];
    wefti_ring_rec_t rec;
    const wefti_shm_lane_t *last = NULL;
    unsigned n = 0;
    for (unsigned i = 0; i < WEFTI_AHEAD_MAX && wefti_ring_peek_shared(&rx, &rec) == WEFTI_RING_RECORD; i++) {
        uint32_t number = rec.type >> 8, at = number % WEFTI_SHM_SEATS;
        const wefti_shm_lane_t *lane = at < g->n ? g->seats[at].lane : NULL;
        if ((rec.type & 0xff) != WEFTI_SHM_REC || !lane || lane->rx_number != number || lane->state != WEFTI_SHM_LANE_UP)
            break;
        if (n && lane != last) {
            c->lane.transport->fabric->up->ahead(last->lane.user, ahead, n);
            n = 0;
        }
        last = lane;
        ahead[n++] = (wefti_ahead_t){rec.bytes, rec.n};
        rx.pos += rx.step;
    }
    if (n)
        c->lane.transport->fabric->up->ahead(last->lane.user, ahead, n);
}

unsigned wefti_shm_carrier_poll(wefti_shm_lane_t *c, unsigned n)
{
    const bool ahead = c->lane.transport->fabric->look_ahead;
    wefti_ring_rec_t rec;
    while (n < WEFTI_SHM_POLL_BUDGET) {
        if (WEFTI_UNLIKELY(ahead) && n % WEFTI_AHEAD_MAX == 0)
            look_ahead(c);
        wefti_ring_got_t got = wefti_ring_peek_shared(&c->rx, &rec);
        if (got == WEFTI_RING_EMPTY)
            break;
        weft_status_t st = got == WEFTI_RING_BAD ? WEFT_ERR_PROTOCOL : deliver(c, &rec);
        if (WEFTI_UNLIKELY(st)) {
            if (st == WEFT_ERR_NOMEM) { /* it stays where it is until there is memory */
                wefti_bell_ring(&wefti_shm_transport_of(c)->self, wefti_shm_lane_index(c));
                break;
            }
            wefti_info("shm: process %d wrote a record that cannot be", c->peer->at.pid);
            wefti_shm_lane_fail(c, WEFT_ERR_PROTOCOL);
            break;
        }
        n++;
        if (WEFTI_UNLIKELY(c->state != WEFTI_SHM_LANE_UP))
            break;
        if (WEFTI_UNLIKELY(wefti_ring_pop(&c->rx)))
            wefti_bell_ring(c->peer, c->peer_index);
    }
    return n;
}

/* --- endings ------------------------------------------------------------------------------------------------------ */

void wefti_shm_carrier_fail(wefti_shm_lane_t *c, weft_status_t why)
{
    wefti_shm_unoffer(c);
    for (uint32_t i = 0; i < c->guests->n; i++)
        if (c->guests->seats[i].lane)
            wefti_shm_lane_fail(c->guests->seats[i].lane, why);
}

void wefti_shm_carrier_end(wefti_shm_lane_t *c)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&c->guests->ends)))
        wefti_free(wefti_container_of(it, wefti_shm_lane_t, wait_link)); /* gone: they were closed before it */
    wefti_free(c->guests->seats);
    wefti_free(c->guests);
}
