/* tests/simnet/lanes.c - lanes of the simulated network: records, space, failure, closing.
 *
 * A lane is NEW until lane_connect(), then JOINED; lane_close() makes it CLOSING, and progress lets go of its transfers one
 * by one, says lane_closed, and it is GONE. `broken` means that nothing sent on it arrives any more, `failed` that its user
 * was or will be told.
 *
 * What is queued towards a lane counts against the sender's ring; when that is full, reserve() and announce() say so and
 * `space` comes once half of it is free. A peer that is gone frees nothing (shm) or swallows everything (ucx).
 *
 * Promise: records in order, each once, or missing only at the end; lane_failed at most once; lane_closed last.
 * tests/sim/fabric_order.c. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "simnet/world.h"

#define CAPS_MAGIC UINT32_C(0x5349574d)
#define ADDR_MAGIC UINT32_C(0x4c414e45)
#define GUARD UINT64_C(0xfeedfacecafebeef)
#define RECORD_COST 16

static sim_lane_t *lane_of(wefti_lane_t *base, const char *what)
{
    sim_lane_t *lane = wefti_container_of(base, sim_lane_t, base);
    wefti_sim_t *w = lane->host->world;
    if (lane->state >= SIM_LANE_CLOSING)
        wefti_sim_violation(w, "%s on lane %u of host %s, which is closed", what, lane->id, lane->host->name);
    if (lane->reserved)
        wefti_sim_violation(w, "%s on lane %u of host %s between reserve and commit", what, lane->id, lane->host->name);
    return lane;
}

void wefti_sim_lane_usable(sim_lane_t *lane, const char *what)
{
    lane_of(&lane->base, what);
    if (lane->state != SIM_LANE_JOINED)
        wefti_sim_violation(lane->host->world, "%s on lane %u of host %s, which is not connected", what, lane->id,
                            lane->host->name);
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static size_t transport_caps(wefti_transport_t *transport, int side, void *buf)
{
    (void)side;
    wefti_writer_t wr = wefti_writer(buf, WEFTI_CAPS_MAX);
    wefti_put_u32(&wr, CAPS_MAGIC);
    wefti_put_u32(&wr, sim_host_of(transport->fabric)->index);
    return 8;
}

static bool transport_match(wefti_transport_t *transport, const void *caps, size_t n)
{
    wefti_reader_t rd = wefti_reader(caps, n);
    uint32_t magic = wefti_get_u32(&rd), index = wefti_get_u32(&rd);
    return !rd.bad && !wefti_reader_left(&rd) && magic == CAPS_MAGIC && index < sim_host_of(transport->fabric)->world->n_hosts;
}

static weft_status_t lane_new(wefti_transport_t *transport, const wefti_meeting_t *with, void *user, void *addr_buf,
                              size_t *n_out, wefti_lane_t **lane_out)
{
    (void)with;
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_ERR_LIMIT, WEFT_ERR_SYSTEM, WEFT_OK};
    sim_host_t *h = sim_host_of(transport->fabric);
    wefti_sim_t *w = h->world;
    if (!h->base.up || h->closed)
        wefti_sim_violation(w, "a lane is made on host %s, which is %s", h->name, h->closed ? "closed" : "without upcalls");
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_LANE_NEW, w->faults.lane_new_fails, statuses);
    sim_lane_t *lane = st ? NULL : wefti_calloc(1, sizeof *lane);
    if (!lane)
        return wefti_fail(st ? st : WEFT_ERR_NOMEM, "the simulated host %s makes no lane", h->name);
    if (w->next_lane == w->lanes_cap) {
        w->lanes_cap = w->lanes_cap ? 2 * w->lanes_cap : 16;
        sim_lane_t **more = wefti_sim_mem(w->lanes_cap * sizeof *more);
        if (w->next_lane)
            memcpy(more, w->lanes, w->next_lane * sizeof *more);
        free(w->lanes);
        w->lanes = more;
    }
    w->lanes[w->next_lane++] = lane;
    lane->id = w->next_lane;
    lane->base.ops = &wefti_sim_transport_ops;
    lane->base.transport = transport;
    lane->base.user = user;
    lane->base.frame_max = WEFTI_REC_MAX + 8 * (uint32_t)sim_below(w, 512);
    lane->host = h;
    lane->token = wefti_rng_next(&h->secrets);
    lane->ring = 2 * (lane->base.frame_max + RECORD_COST) + sim_below(w, 60000);
    lane->early = sim_below(w, 2);
    wefti_sim_channel_init(&lane->in, h, h);
    lane->in.lane = lane;
    wefti_list_init(&lane->sent);
    wefti_list_init(&lane->offered);
    wefti_list_init(&lane->pulling);
    wefti_list_init(&lane->closing_link);
    wefti_list_push_back(&h->lanes, &lane->link);
    wefti_writer_t wr = wefti_writer(addr_buf, WEFTI_LANE_ADDR_MAX);
    wefti_put_u32(&wr, ADDR_MAGIC);
    wefti_put_u32(&wr, lane->id);
    wefti_put_u64(&wr, lane->token);
    wefti_sim_trace(w, h, SIM_T_LANE_NEW, lane->id, 0);
    *n_out = 16;
    *lane_out = &lane->base;
    return WEFT_OK;
}

static weft_status_t lane_connect(wefti_lane_t *base, const void *addr, size_t n)
{
    static const weft_status_t statuses[] = {WEFT_ERR_UNREACHABLE, WEFT_ERR_NOMEM, WEFT_ERR_SYSTEM, WEFT_OK};
    sim_lane_t *lane = lane_of(base, "connect");
    sim_host_t *h = lane->host;
    wefti_sim_t *w = h->world;
    if (lane->state != SIM_LANE_NEW)
        wefti_sim_violation(w, "lane %u of host %s is connected twice", lane->id, h->name);
    wefti_reader_t rd = wefti_reader(addr, n);
    uint32_t magic = wefti_get_u32(&rd), id = wefti_get_u32(&rd);
    uint64_t token = wefti_get_u64(&rd);
    sim_lane_t *peer =
        !rd.bad && !wefti_reader_left(&rd) && magic == ADDR_MAGIC && id && id <= w->next_lane ? w->lanes[id - 1] : NULL;
    if (!peer || peer->token != token || peer->feeder || (lane->feeder && lane->feeder != peer))
        return wefti_fail(WEFT_ERR_PROTOCOL, "%zu bytes that are no address of a simulated lane for us", n);
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_LANE_CONNECT, w->faults.lane_connect_fails, statuses);
    void *charge = st ? NULL : wefti_malloc(64);
    if (!charge)
        return wefti_fail(st ? st : WEFT_ERR_NOMEM, "the simulated lane %u cannot be connected", lane->id);
    wefti_free(charge);
    lane->peer = peer;
    peer->feeder = lane;
    peer->in.from = h;
    lane->state = SIM_LANE_JOINED;
    wefti_sim_trace(w, h, SIM_T_LANE_JOIN, lane->id, peer->id);
    return WEFT_OK;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static void space_comes(sim_lane_t *lane, uint64_t in_ns)
{
    wefti_sim_t *w = lane->host->world;
    if (lane->space_coming || lane->state != SIM_LANE_JOINED)
        return;
    lane->space_coming = true;
    wefti_sim_event(w, lane->host, NULL, SIM_EV_SPACE, w->now + sim_below(w, in_ns + 1))->lane = lane;
}

bool wefti_sim_lane_full(sim_lane_t *lane, size_t cost)
{
    wefti_sim_t *w = lane->host->world;
    bool full = lane->peer->in.cost + cost > lane->ring;
    if (!full && !sim_chance(w, w->faults.no_space))
        return false;
    lane->want_space = true;
    if (!full)
        space_comes(lane, 200 * WEFT_MICROSECOND);
    wefti_sim_trace(w, lane->host, SIM_T_FULL, lane->id, cost);
    return true;
}

void wefti_sim_lane_put(sim_lane_t *lane, sim_packet_t *pk, size_t cost)
{
    sim_host_t *h = lane->host;
    sim_lane_t *peer = lane->peer;
    pk->cost = (uint32_t)cost;
    if (lane->broken || h->dead || peer->state >= SIM_LANE_CLOSING || peer->host->closed) {
        /* a ring that nobody reads fills up; a network swallows */
        if (h->world->faults.style == WEFTI_SIM_SHM)
            peer->in.cost += cost;
        wefti_sim_packet_free(pk);
        return;
    }
    wefti_sim_channel_push(&peer->in, pk);
    if (sim_chance(h->world, h->world->faults.lane_breaks))
        wefti_sim_lane_break(lane, sim_below(h->world, 4) ? WEFT_ERR_PEER : WEFT_ERR_SYSTEM);
}

static void *lane_reserve(wefti_lane_t *base, size_t n)
{
    sim_lane_t *lane = wefti_container_of(base, sim_lane_t, base);
    wefti_sim_lane_usable(lane, "reserve");
    if (!n || n > base->frame_max)
        wefti_sim_violation(lane->host->world, "a record of %zu bytes on a lane whose frames hold %u", n, base->frame_max);
    if (wefti_sim_lane_full(lane, n + RECORD_COST))
        return NULL;
    lane->reserved = wefti_sim_packet(SIM_PK_RECORD, NULL, n);
    lane->reserved_n = n;
    memset(lane->reserved->bytes, 0xee, n);
    uint64_t guard = GUARD;
    memcpy(lane->reserved->bytes + n, &guard, sizeof guard);
    return lane->reserved->bytes;
}

static void lane_commit(wefti_lane_t *base, size_t n)
{
    sim_lane_t *lane = wefti_container_of(base, sim_lane_t, base);
    wefti_sim_t *w = lane->host->world;
    sim_packet_t *pk = lane->reserved;
    uint64_t guard = 0;
    if (!pk || lane->state != SIM_LANE_JOINED)
        wefti_sim_violation(w, "commit without reserve on lane %u of host %s", lane->id, lane->host->name);
    memcpy(&guard, pk->bytes + lane->reserved_n, sizeof guard);
    if (!n || n > lane->reserved_n || guard != GUARD)
        wefti_sim_violation(w, "%zu bytes committed on lane %u, where %zu were reserved%s", n, lane->id, lane->reserved_n,
                            guard != GUARD ? ", and more was written" : "");
    lane->reserved = NULL;
    pk->n = (uint32_t)n;
    wefti_sim_trace(w, lane->host, SIM_T_COMMIT, lane->id, n);
    wefti_sim_lane_put(lane, pk, n + RECORD_COST);
}

/* --- arriving ----------------------------------------------------------------------------------------------------- */

static void lane_fails(sim_lane_t *lane, weft_status_t why)
{
    sim_host_t *h = lane->host;
    if (lane->state >= SIM_LANE_CLOSING)
        return;
    wefti_sim_trace(h->world, h, SIM_T_LANE_FAIL, lane->id, (uint64_t)(int64_t)why);
    sim_up(h)->lane_failed(lane->base.user, why);
}

void wefti_sim_lane_packet(sim_lane_t *lane, sim_packet_t *pk)
{
    sim_host_t *h = lane->host;
    wefti_sim_t *w = h->world;
    sim_lane_t *feeder = lane->feeder;
    if (feeder->want_space && lane->in.cost <= feeder->ring / 2)
        space_comes(feeder, 50 * WEFT_MICROSECOND);
    if (sim_chance(w, w->faults.false_space))
        space_comes(feeder, 50 * WEFT_MICROSECOND);
    switch (pk->kind) {
    case SIM_PK_RECORD:
        wefti_sim_trace(w, h, SIM_T_RECORD, lane->id, pk->n);
        sim_up(h)->record(lane->base.user, pk->bytes, pk->n);
        break;
    case SIM_PK_OFFER:
        wefti_sim_offer_arrives(lane, pk);
        break;
    default: /* the sender is no more */
        if (!lane->failed) {
            lane->failed = lane->broken = true;
            lane_fails(lane, pk->why);
        }
    }
}

void wefti_sim_lane_event(sim_event_t *ev)
{
    sim_lane_t *lane = ev->lane;
    sim_host_t *h = lane->host;
    if (ev->kind == SIM_EV_LANE_FAIL) {
        lane_fails(lane, ev->status);
        return;
    }
    lane->space_coming = false;
    if (lane->state != SIM_LANE_JOINED)
        return;
    lane->want_space = false;
    wefti_sim_trace(h->world, h, SIM_T_SPACE, lane->id, 0);
    sim_up(h)->space(lane->base.user);
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

static void fail_later(sim_lane_t *lane, weft_status_t why)
{
    wefti_sim_t *w = lane->host->world;
    if (lane->failed || lane->state >= SIM_LANE_CLOSING)
        return;
    lane->failed = true;
    sim_event_t *ev = wefti_sim_event(w, lane->host, NULL, SIM_EV_LANE_FAIL, w->now + sim_below(w, WEFT_MILLISECOND));
    ev->lane = lane;
    ev->status = why;
}

/* Nothing more comes from here: the peer finds that out by itself on some transports, and never on others. */
static void tell_peer(sim_lane_t *lane)
{
    sim_lane_t *peer = lane->peer;
    wefti_sim_t *w = lane->host->world;
    if (!peer || lane->broken || peer->state >= SIM_LANE_CLOSING || peer->feeder != lane)
        return;
    wefti_sim_channel_lose_tail(&peer->in);
    lane->broken = true;
    if (w->faults.style == WEFTI_SIM_UCX && sim_below(w, 10) < 7) {
        sim_packet_t *pk = wefti_sim_packet(SIM_PK_BREAK, NULL, 0);
        pk->why = WEFT_ERR_PEER;
        wefti_sim_channel_push(&peer->in, pk);
    }
}

void wefti_sim_lane_break(sim_lane_t *lane, weft_status_t why)
{
    sim_lane_t *peer = lane->peer;
    wefti_sim_t *w = lane->host->world;
    if (lane->broken || lane->state != SIM_LANE_JOINED)
        return;
    wefti_sim_trace(w, lane->host, SIM_T_LANE_BREAK, lane->id, 0);
    wefti_sim_channel_lose_tail(&peer->in);
    lane->broken = true;
    if (peer->peer == lane) {
        wefti_sim_channel_lose_tail(&lane->in);
        peer->broken = true;
        if (sim_below(w, 2))
            fail_later(peer, why);
    }
    fail_later(lane, why);
}

void wefti_sim_break_lanes(wefti_fabric_t *a, wefti_fabric_t *b, weft_status_t why)
{
    const sim_host_t *h = sim_host_of(a);
    sim_each_fabric(i, h)
        wefti_list_each(it, &h->world->hosts[i]->lanes) {
            sim_lane_t *lane = wefti_container_of(it, sim_lane_t, link);
            if (lane->peer && lane->peer->host->process == sim_host_of(b)->process)
                wefti_sim_lane_break(lane, why);
        }
}

void wefti_sim_lanes_die(sim_host_t *h)
{
    wefti_list_each(it, &h->lanes)
        tell_peer(wefti_container_of(it, sim_lane_t, link));
}

static void lane_close(wefti_lane_t *base)
{
    sim_lane_t *lane = lane_of(base, "close");
    sim_host_t *h = lane->host;
    wefti_sim_trace(h->world, h, SIM_T_LANE_CLOSE, lane->id, 0);
    if (!h->dead)
        tell_peer(lane);
    lane->state = SIM_LANE_CLOSING;
    size_t unread = lane->in.cost;
    wefti_sim_channel_purge(&lane->in);
    if (h->world->faults.style == WEFTI_SIM_SHM)
        lane->in.cost = unread;
    else if (lane->feeder && lane->feeder->want_space)
        space_comes(lane->feeder, WEFT_MILLISECOND);
    wefti_list_push_back(&h->closing, &lane->closing_link);
}

bool wefti_sim_lane_step(sim_lane_t *lane)
{
    sim_host_t *h = lane->host;
    if (wefti_sim_offers_step(lane))
        return true;
    lane->state = SIM_LANE_GONE;
    wefti_list_remove(&lane->closing_link);
    wefti_list_remove(&lane->link);
    wefti_list_push_back(&h->world->grave_lanes, &lane->link);
    wefti_sim_trace(h->world, h, SIM_T_LANE_CLOSED, lane->id, 0);
    sim_up(h)->lane_closed(lane->base.user);
    return true;
}

const wefti_transport_ops_t wefti_sim_transport_ops = {
    .caps = transport_caps,
    .match = transport_match,
    .lane_new = lane_new,
    .lane_connect = lane_connect,
    .lane_close = lane_close,
    .reserve = lane_reserve,
    .commit = lane_commit,
    .announce = wefti_sim_announce,
    .pull = wefti_sim_pull,
    .refuse = wefti_sim_refuse,
    .lend = wefti_sim_lend,
    .unlend = wefti_sim_unlend,
    .expose = wefti_sim_expose,
    .map = wefti_sim_map,
    .unmap = wefti_sim_unmap,
};
