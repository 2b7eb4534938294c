/* tests/simnet/beats.c - heartbeats of simulated wires.
 *
 * The kernel's clock ticks for every wire that beats, whether its host is driven or not: a process that runs is heard whatever
 * its program does. A host that is paused or dead neither sends nor judges; a beat on a link that is cut waits for the link, as
 * a retransmission would. What silence means is fabric/pulse.h's, as on real sockets. tests/sim holds us to it. */
#include "base/log.h"
#include "simnet/world.h"

static void next_tick(sim_wire_t *wire)
{
    wefti_sim_t *w = wire->host->world;
    uint64_t at = wire->pulse.due > w->now ? wire->pulse.due : w->now + wire->pulse.every;
    wefti_sim_event(w, NULL, NULL, SIM_EV_TICK, at)->wire = wire;
}

static void send_beat(sim_wire_t *wire)
{
    sim_host_t *h = wire->host;
    if (wire->beat_flying || !wire->peer || wire->peer->state == SIM_WIRE_GONE)
        return;
    wire->beat_flying = true;
    wefti_sim_event(h->world, NULL, NULL, SIM_EV_BEAT, h->world->now + wefti_sim_delay(h, wire->peer->host))->wire = wire;
}

/* The wire is shut down, and the host's progress hears of it. */
static void give_up(sim_wire_t *wire)
{
    wefti_sim_t *w = wire->host->world;
    wefti_sim_trace(w, wire->host, SIM_T_SILENT, wire->id, 0);
    wire->beats = false;
    sim_event_t *ev = wefti_sim_event(w, wire->host, NULL, SIM_EV_WIRE_END, w->now);
    ev->wire = wire;
    ev->status = WEFT_ERR_TIMEOUT;
    wefti_sim_wire_end_peer(wire, WEFT_ERR_PEER);
}

static void tick(sim_wire_t *wire)
{
    sim_host_t *h = wire->host;
    if (!wire->beats || h->dead || h->closed)
        return;
    if (!h->paused && wire->pulse.due <= h->world->now) {
        bool heard = wire->heard;
        wire->heard = false;
        if (wefti_pulse_tick(&wire->pulse, h->world->now, heard)) {
            give_up(wire);
            return;
        }
        if (!wire->by_hand)
            send_beat(wire);
    }
    next_tick(wire);
}

/* A beat of `wire` reaches the other end, or waits for the link. */
static void arrive(sim_wire_t *wire)
{
    wefti_sim_t *w = wire->host->world;
    sim_wire_t *peer = wire->peer;
    if (peer->state != SIM_WIRE_GONE && !sim_linked(wire->host, peer->host) && !wire->host->dead) {
        wefti_sim_event(w, NULL, NULL, SIM_EV_BEAT, w->now + wire->pulse.every)->wire = wire;
        return;
    }
    wire->beat_flying = false;
    peer->heard = true;
}

void wefti_sim_beat_event(sim_event_t *ev)
{
    if (ev->kind == SIM_EV_BEAT)
        arrive(ev->wire);
    else if (ev->wire->state != SIM_WIRE_GONE)
        tick(ev->wire);
}

weft_status_t wefti_sim_wire_beat(wefti_wire_t *base, uint64_t every_ns, bool by_hand)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_ERR_LIMIT, WEFT_OK};
    sim_wire_t *wire = wefti_sim_wire_of(base, "beat");
    sim_host_t *h = wire->host;
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_WIRE_SEND, h->world->faults.wire_send_fails, statuses);
    if (st)
        return wefti_fail(st, "no thread for heartbeats on the simulated host %s", h->name);
    if (wire->beats)
        return WEFT_OK;
    wire->beats = true;
    wire->by_hand = by_hand;
    wefti_pulse_start(&wire->pulse, every_ns, h->world->now);
    next_tick(wire);
    return WEFT_OK;
}

void wefti_sim_wire_watch(wefti_wire_t *base, uint64_t bound_ns)
{
    sim_wire_t *wire = wefti_sim_wire_of(base, "watch");
    wefti_pulse_watch(&wire->pulse, bound_ns, wire->host->world->now);
}

void wefti_sim_wire_beat_once(wefti_wire_t *base)
{
    send_beat(wefti_sim_wire_of(base, "beat"));
}
