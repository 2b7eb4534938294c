/* tests/simnet/shards.c - wires that go from one fabric of a process to another.
 *
 * A wire that arrived, or that is open and has said nothing, can be handed over as a descriptor: a number that names it. It is
 * AWAY until a fabric adopts it, which makes a new wire of it, or until it is dropped. What the peer says meanwhile waits. The
 * object of before stays, GONE, so that a call on it is seen.
 *
 * Promise: a descriptor is adopted or dropped once; one that is forgotten is a violation when its process closes.
 * tests/sim/shards_*.c. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/log.h"
#include "simnet/world.h"

#define FD_BASE (1 << 24) /* no descriptor of the machine */

static sim_wire_t *find_away(const sim_host_t *h, int fd, const char *what)
{
    wefti_list_each(it, &h->world->away) {
        sim_wire_t *wire = wefti_container_of(it, sim_wire_t, link);
        if ((int)wire->id + FD_BASE == fd && wire->host->process == h->process)
            return wire;
    }
    wefti_sim_violation(h->world, "%s of descriptor %d, which host %s has not", what, fd, h->name);
}

static int go_away(sim_wire_t *wire)
{
    wire->state = SIM_WIRE_AWAY;
    wire->base.user = NULL;
    wefti_list_remove(&wire->link);
    wefti_list_push_back(&wire->host->world->away, &wire->link);
    return (int)wire->id + FD_BASE;
}

static void drop(sim_wire_t *wire)
{
    if (!wire->host->dead)
        wefti_sim_wire_end_peer(wire, WEFT_ERR_PEER);
    wefti_sim_wire_gone(wire);
}

bool wefti_sim_wire_elsewhere(sim_wire_t *wire, const char *from)
{
    sim_host_t *h = wire->host;
    if (!sim_up(h)->wire_elsewhere)
        return false;
    if (!sim_up(h)->wire_elsewhere(wire->acceptor->user, &(wefti_loose_t){.fd = go_away(wire)}, 0, from))
        return false; /* and it is the caller's again */
    wefti_sim_trace(h->world, h, SIM_T_WIRE_AWAY, wire->id, 0);
    return true;
}

weft_status_t wefti_sim_wire_adopt(wefti_fabric_t *f, const wefti_loose_t *loose, uint64_t source, wefti_wire_t **wire_out)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_ERR_LIMIT, WEFT_OK};
    sim_host_t *h = sim_host_of(f);
    wefti_sim_t *w = h->world;
    sim_wire_t *old = find_away(h, loose->fd, "adoption");
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_ADOPT, w->faults.adopt_fails, statuses);
    sim_wire_t *wire = st ? NULL : wefti_calloc(1, sizeof *wire);
    if (!wire) {
        drop(old);
        return wefti_fail(st ? st : WEFT_ERR_NOMEM, "the simulated host %s cannot adopt a wire", h->name);
    }
    wefti_sim_wire_setup(wire, h, SIM_WIRE_OPEN);
    wire->told_opened = true;
    wire->base.source = source;
    wire->peer = old->peer;
    wire->in.from = old->in.from;
    wire->in.last_at = old->in.last_at;
    wire->peer->peer = wire;
    wire->peer->in.from = h;
    wefti_list_push_back(&h->wires, &wire->link);
    for (wefti_list_t *it; (it = wefti_list_pop(&old->in.queue));)
        wefti_list_push_back(&wire->in.queue, it);
    if (!wefti_list_empty(&wire->in.queue)) {
        wefti_list_remove(&old->in.link);
        wefti_list_push_back(&h->channels, &wire->in.link);
    }
    wefti_sim_trace(w, h, SIM_T_WIRE_ADOPT, old->id, wire->id);
    wefti_sim_wire_gone(old);
    *wire_out = &wire->base;
    return WEFT_OK;
}

bool wefti_sim_wire_release(wefti_wire_t *base, wefti_loose_t *loose_out)
{
    sim_wire_t *wire = wefti_sim_wire_of(base, "release");
    wefti_sim_t *w = wire->host->world;
    if (wire->state != SIM_WIRE_OPEN || wire->beats || sim_chance(w, w->faults.release_fails))
        return false;
    wefti_sim_trace(w, wire->host, SIM_T_WIRE_AWAY, wire->id, 0);
    *loose_out = (wefti_loose_t){.fd = go_away(wire)};
    return true;
}

void wefti_sim_wire_drop(wefti_fabric_t *f, const wefti_loose_t *loose)
{
    sim_host_t *h = sim_host_of(f);
    sim_wire_t *wire = find_away(h, loose->fd, "drop");
    wefti_sim_trace(h->world, h, SIM_T_WIRE_CLOSE, wire->id, 0);
    drop(wire);
}

unsigned wefti_sim_wires_away(const sim_host_t *h)
{
    unsigned n = 0;
    wefti_list_each(it, &h->world->away)
        n += wefti_container_of(it, sim_wire_t, link)->host->process == h->process;
    return n;
}

void wefti_sim_wires_away_die(sim_host_t *h)
{
    wefti_list_each(it, &h->world->away) {
        sim_wire_t *wire = wefti_container_of(it, sim_wire_t, link);
        if (wire->host->process != h->process || !wire->peer || wire->peer->state == SIM_WIRE_GONE)
            continue;
        wefti_sim_channel_lose_tail(&wire->peer->in);
        wefti_sim_wire_end_peer(wire, WEFT_ERR_PEER);
    }
}
