/* tests/simnet/wires.c - acceptors and wires of the simulated network.
 *
 * A dialled wire is DIALING until the kernel of the other host has answered (which needs no running program there), then
 * OPEN; the other end is PENDING until its host accepts it, then OPEN. Either end turns GONE by wire_close(), by wire_closed,
 * or with its host. Messages of a wire arrive in order, then its end; what a dying or closing end had sent last may be lost,
 * as with a socket.
 *
 * Promise: wire_accepted, then messages, then wire_closed once, and nothing after wire_close(). tests/sim/fabric_order.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "simnet/world.h"

sim_wire_t *wefti_sim_wire_of(wefti_wire_t *base, const char *what)
{
    sim_wire_t *wire = wefti_container_of(base, sim_wire_t, base);
    if (wire->state >= SIM_WIRE_AWAY)
        wefti_sim_violation(wire->host->world, "%s on wire %u of host %s, which is closed or was handed over", what, wire->id,
                            wire->host->name);
    return wire;
}

/* --- acceptors ---------------------------------------------------------------------------------------------------- */

static bool is_any(const char *host)
{
    return !strcmp(host, "0.0.0.0") || !strcmp(host, "::") || !*host;
}
static bool is_self(const char *host)
{
    return !strcmp(host, "127.0.0.1") || !strcmp(host, "::1") || !strcmp(host, "localhost");
}

static wefti_acceptor_t *find_acceptor(sim_host_t *h, const wefti_uri_t *uri)
{
    wefti_list_each(it, &h->acceptors) {
        wefti_acceptor_t *acceptor = wefti_container_of(it, wefti_acceptor_t, link);
        if (acceptor->uri.scheme == uri->scheme &&
            (uri->scheme == WEFTI_URI_TCP ? acceptor->uri.port == uri->port : !strcmp(acceptor->uri.host, uri->host)))
            return acceptor;
    }
    return NULL;
}

/* The host an address leads to; NULL: there is no such name. */
static sim_host_t *find_host(sim_host_t *h, const wefti_uri_t *uri)
{
    wefti_sim_t *w = h->world;
    if (uri->scheme == WEFTI_URI_TCP && is_self(uri->host))
        return h->process;
    for (unsigned i = 0; i < w->n_hosts; i++)
        if (uri->scheme == WEFTI_URI_TCP ? !strcmp(uri->host, w->hosts[i]->name) : find_acceptor(w->hosts[i], uri) != NULL)
            return w->hosts[i];
    return uri->scheme == WEFTI_URI_UNIX ? h : NULL; /* a socket that is not there refuses */
}

weft_status_t wefti_sim_acceptor_open(wefti_fabric_t *f, const wefti_uri_t *uri, struct wefti_guard *guard, unsigned backlog,
                                      void *user, wefti_acceptor_t **acceptor_out)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_ERR_LIMIT, WEFT_ERR_ADDRESS, WEFT_OK};
    sim_host_t *h = sim_host_of(f);
    wefti_sim_t *w = h->world;
    (void)guard;
    if (!h->base.up || h->closed)
        wefti_sim_violation(w, "an acceptor is opened on host %s, which is %s", h->name,
                            h->closed ? "closed" : "without upcalls");
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_ACCEPTOR_OPEN, w->faults.acceptor_fails, statuses);
    if (st)
        return wefti_fail(st, "the simulated host %s does not want to listen", h->name);
    wefti_uri_t bound = *uri;
    if (uri->scheme == WEFTI_URI_TCP) {
        if (!is_any(uri->host) && !is_self(uri->host) && strcmp(uri->host, h->name))
            return wefti_fail(WEFT_ERR_ADDRESS, "%s is no address of host %s", uri->host, h->name);
        snprintf(bound.host, sizeof bound.host, "%s", h->name);
        if (!bound.port)
            bound.port = ++w->next_port;
    }
    sim_host_t *owner = find_host(h, &bound);
    if (owner && find_acceptor(owner, &bound))
        return wefti_fail(WEFT_ERR_ADDRESS, "%s port %u is in use", bound.host, bound.port);
    wefti_acceptor_t *acceptor = wefti_calloc(1, sizeof *acceptor);
    if (!acceptor)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an acceptor");
    acceptor->host = h;
    acceptor->uri = bound;
    acceptor->user = user;
    acceptor->backlog = backlog ? backlog : 1;
    wefti_uri_format(&bound, acceptor->text, sizeof acceptor->text);
    wefti_list_push_back(&h->acceptors, &acceptor->link);
    wefti_sim_trace(w, h, SIM_T_ACCEPTOR, bound.port, 0);
    *acceptor_out = acceptor;
    return WEFT_OK;
}

const char *wefti_sim_acceptor_uri(wefti_acceptor_t *acceptor)
{
    if (acceptor->gone)
        wefti_sim_violation(acceptor->host->world, "address of a closed acceptor of host %s", acceptor->host->name);
    return acceptor->text;
}

void wefti_sim_acceptor_close(wefti_acceptor_t *acceptor)
{
    if (acceptor->gone)
        wefti_sim_violation(acceptor->host->world, "an acceptor of host %s closed twice", acceptor->host->name);
    wefti_sim_trace(acceptor->host->world, acceptor->host, SIM_T_ACCEPTOR_CLOSE, acceptor->uri.port, 0);
    acceptor->gone = true;
    wefti_list_remove(&acceptor->link);
    wefti_list_push_back(&acceptor->host->world->grave_acceptors, &acceptor->link);
}

/* --- wires -------------------------------------------------------------------------------------------------------- */

void wefti_sim_wire_setup(sim_wire_t *wire, sim_host_t *h, int state)
{
    wire->base.fabric = &h->base;
    wire->host = h;
    wire->id = ++h->world->next_wire;
    wire->state = (uint8_t)state;
    wire->since = h->world->now;
    wefti_list_init(&wire->early);
    wefti_sim_channel_init(&wire->in, h, h);
    wire->in.wire = wire;
}

void wefti_sim_wire_gone(sim_wire_t *wire)
{
    wire->state = SIM_WIRE_GONE;
    wefti_sim_channel_purge(&wire->in);
    wefti_list_remove(&wire->link);
    wefti_list_push_back(&wire->host->world->grave_wires, &wire->link);
}

/* The other end learns, after everything that is still on its way, that this one is no more. */
void wefti_sim_wire_end_peer(sim_wire_t *wire, weft_status_t why)
{
    if (!wire->peer || wire->peer->state == SIM_WIRE_GONE)
        return;
    sim_packet_t *pk = wefti_sim_packet(SIM_PK_END, NULL, 0);
    pk->why = why;
    wefti_sim_channel_push(&wire->peer->in, pk);
}

weft_status_t wefti_sim_wire_dial(wefti_fabric_t *f, const wefti_uri_t *uri, struct wefti_guard *guard, const char *source,
                                  void *user, wefti_wire_t **wire_out)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_ERR_LIMIT, WEFT_OK};
    sim_host_t *h = sim_host_of(f);
    wefti_sim_t *w = h->world;
    (void)guard;
    if (!h->base.up || h->closed)
        wefti_sim_violation(w, "host %s dials and is %s", h->name, h->closed ? "closed" : "without upcalls");
    if (source && *source && strncmp(source, h->name, strlen(h->name)) && !is_self(source))
        return wefti_fail(WEFT_ERR_INVALID, "%s is no address of host %s", source, h->name);
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_WIRE_DIAL, w->faults.dial_fails, statuses);
    sim_wire_t *wire = st ? NULL : wefti_calloc(1, sizeof *wire);
    if (!wire)
        return wefti_fail(st ? st : WEFT_ERR_NOMEM, "the simulated host %s cannot dial", h->name);
    wefti_sim_wire_setup(wire, h, SIM_WIRE_DIALING);
    wire->base.user = user;
    wire->to = *uri;
    wire->patience = WEFT_SECOND + sim_below(w, 20 * WEFT_SECOND);
    wefti_list_push_back(&h->wires, &wire->link);
    wefti_sim_trace(w, h, SIM_T_DIAL, wire->id, uri->port);
    sim_host_t *target = find_host(h, uri);
    bool lost = sim_chance(w, w->faults.unreachable);
    sim_event_t *ev;
    if (!target || lost) {
        ev = wefti_sim_event(w, h, NULL, SIM_EV_WIRE_END, w->now + sim_below(w, lost ? WEFT_SECOND : WEFT_MILLISECOND));
        ev->status = !lost ? WEFT_ERR_ADDRESS : sim_below(w, 2) ? WEFT_ERR_UNREACHABLE : WEFT_ERR_TIMEOUT;
    } else {
        ev = wefti_sim_event(w, NULL, NULL, SIM_EV_SYN, w->now + wefti_sim_delay(h, target));
    }
    ev->wire = wire;
    *wire_out = &wire->base;
    return WEFT_OK;
}

static void break_wire(sim_wire_t *wire)
{
    sim_wire_t *peer = wire->peer;
    if (!peer || peer->state == SIM_WIRE_GONE)
        return; /* its end is on the way already, and must not be lost */
    wefti_sim_channel_lose_tail(&wire->in);
    wefti_sim_channel_lose_tail(&peer->in);
    wefti_sim_wire_end_peer(wire, WEFT_ERR_PEER);
    wefti_sim_wire_end_peer(peer, WEFT_ERR_PEER);
}

weft_status_t wefti_sim_wire_send(wefti_wire_t *base, const void *bytes, size_t n)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_OK};
    sim_wire_t *wire = wefti_sim_wire_of(base, "send");
    sim_host_t *h = wire->host;
    wefti_sim_t *w = h->world;
    if (!n || n > WEFTI_WIRE_MAX)
        wefti_sim_violation(w, "a wire message of %zu bytes", n);
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_WIRE_SEND, w->faults.wire_send_fails, statuses);
    void *charge = st ? NULL : wefti_malloc(n);
    if (!charge)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a message of %zu bytes", n);
    wefti_free(charge);
    wefti_sim_trace(w, h, SIM_T_WIRE_SEND, wire->id, n);
    sim_packet_t *pk = wefti_sim_packet(SIM_PK_MESSAGE, bytes, n);
    if (wire->state == SIM_WIRE_DIALING)
        wefti_list_push_back(&wire->early, &pk->link);
    else if (wire->peer->state == SIM_WIRE_GONE || h->dead)
        wefti_sim_packet_free(pk);
    else
        wefti_sim_channel_push(&wire->peer->in, pk);
    if (sim_chance(w, w->faults.wire_breaks) && !h->dead)
        break_wire(wire);
    return WEFT_OK;
}

void wefti_sim_wire_close(wefti_wire_t *base)
{
    sim_wire_t *wire = wefti_sim_wire_of(base, "close");
    wefti_sim_t *w = wire->host->world;
    wefti_sim_trace(w, wire->host, SIM_T_WIRE_CLOSE, wire->id, 0);
    if (wire->peer && wire->peer->state != SIM_WIRE_GONE && !wire->host->dead) {
        if (sim_chance(w, w->faults.wire_tail_lost))
            wefti_sim_channel_lose_tail(&wire->peer->in);
        wefti_sim_wire_end_peer(wire, WEFT_ERR_PEER);
    }
    wefti_sim_wire_gone(wire);
}

/* --- what the kernel and progress do ------------------------------------------------------------------------------ */

static void dial_ends(sim_wire_t *wire, sim_host_t *via, weft_status_t status)
{
    wefti_sim_t *w = wire->host->world;
    sim_event_t *ev = wefti_sim_event(w, wire->host, via, SIM_EV_WIRE_END, w->now + (via ? wefti_sim_delay(via, wire->host) : 0));
    ev->wire = wire;
    ev->status = status;
    wefti_sim_trace(w, wire->host, SIM_T_SYN, wire->id, (uint64_t)(int64_t)status);
}

/* A request to connect reaches the other host, or does not. */
static void syn(sim_wire_t *wire)
{
    static const weft_status_t statuses[] = {WEFT_ERR_REFUSED, WEFT_OK};
    sim_host_t *h = wire->host;
    wefti_sim_t *w = h->world;
    if (wire->state != SIM_WIRE_DIALING || h->dead || h->closed)
        return;
    sim_host_t *target = find_host(h, &wire->to);
    wefti_acceptor_t *acceptor = target ? find_acceptor(target, &wire->to) : NULL;
    bool away = !sim_linked(h, target) || !sim_linked(target, h);
    if (away || (acceptor && !target->dead && acceptor->pending >= acceptor->backlog)) {
        uint64_t waited = w->now - wire->since;
        if (waited >= wire->patience || (away && sim_below(w, 8) == 0)) {
            dial_ends(wire, NULL, waited >= wire->patience ? WEFT_ERR_TIMEOUT : WEFT_ERR_UNREACHABLE);
            return;
        }
        sim_event_t *ev =
            wefti_sim_event(w, NULL, NULL, SIM_EV_SYN, w->now + (waited > WEFT_MILLISECOND ? waited : WEFT_MILLISECOND));
        ev->wire = wire;
        return;
    }
    if (target->dead || target->closed || !acceptor) {
        dial_ends(wire, target, target->dead && sim_below(w, 4) == 0 ? WEFT_ERR_UNREACHABLE : WEFT_ERR_REFUSED);
        return;
    }
    weft_status_t st = wefti_sim_fault(target, WEFTI_SIM_AT_ACCEPT, w->faults.refuse, statuses);
    if (st) {
        dial_ends(wire, target, st);
        return;
    }
    sim_wire_t *other = wefti_sim_mem(sizeof *other);
    wefti_sim_wire_setup(other, target, SIM_WIRE_PENDING);
    wefti_list_push_back(&w->grave_wires, &other->link); /* nobody's until it is accepted */
    other->peer = wire;
    other->acceptor = acceptor;
    acceptor->pending++;
    other->in.from = h;
    wire->peer = other;
    wire->in.from = target;
    wire->state = SIM_WIRE_OPEN;
    for (wefti_list_t *it; (it = wefti_list_pop(&wire->early));)
        wefti_sim_channel_push(&other->in, wefti_container_of(it, sim_packet_t, link));
    wefti_sim_event(w, target, NULL, SIM_EV_ACCEPT, w->now)->wire = other;
    wefti_sim_event(w, h, target, SIM_EV_OPENED, w->now + wefti_sim_delay(target, h))->wire = wire;
    wefti_sim_trace(w, target, SIM_T_SYN, wire->id, 0);
}

static void accept_wire(sim_wire_t *wire)
{
    sim_host_t *h = wire->host;
    wefti_acceptor_t *acceptor = wire->acceptor;
    acceptor->pending--;
    if (acceptor->gone) {
        wefti_sim_wire_end_peer(wire, WEFT_ERR_PEER);
        wefti_sim_wire_gone(wire);
        return;
    }
    char from[64];
    snprintf(from, sizeof from, "tcp://%s:%u", wire->peer->host->name, 30000 + wire->peer->id % 30000);
    if (wefti_sim_wire_elsewhere(wire, from))
        return;
    wire->state = SIM_WIRE_OPEN;
    wire->told_opened = true;
    wefti_list_remove(&wire->link);
    wefti_list_push_back(&h->wires, &wire->link);
    wefti_sim_trace(h->world, h, SIM_T_ACCEPT, wire->id, wire->peer->id);
    sim_up(h)->wire_accepted(acceptor->user, &wire->base, from);
    if (wire->state != SIM_WIRE_GONE && !wire->base.user)
        wefti_sim_violation(h->world, "wire %u was accepted by host %s without an owner", wire->id, h->name);
}

void wefti_sim_wire_event(sim_event_t *ev)
{
    sim_wire_t *wire = ev->wire;
    sim_host_t *h = wire->host;
    if (ev->kind == SIM_EV_SYN) {
        syn(wire);
    } else if (wire->state == SIM_WIRE_GONE) {
        if (ev->kind == SIM_EV_ACCEPT)
            wire->acceptor->pending--;
    } else if (ev->kind == SIM_EV_ACCEPT) {
        accept_wire(wire);
    } else if (ev->kind == SIM_EV_OPENED) {
        wire->told_opened = true;
        wefti_sim_trace(h->world, h, SIM_T_OPENED, wire->id, 0);
        sim_up(h)->wire_opened(wire->base.user);
    } else {
        wefti_sim_trace(h->world, h, SIM_T_WIRE_END, wire->id, (uint64_t)(int64_t)ev->status);
        wefti_sim_wire_gone(wire);
        sim_up(h)->wire_closed(wire->base.user, ev->status);
    }
}

void wefti_sim_wire_packet(sim_wire_t *wire, sim_packet_t *pk)
{
    sim_host_t *h = wire->host;
    if (pk->kind == SIM_PK_MESSAGE) {
        wefti_sim_trace(h->world, h, SIM_T_WIRE_MSG, wire->id, pk->n);
        sim_up(h)->wire_message(wire->base.user, pk->bytes, pk->n);
        return;
    }
    wefti_sim_trace(h->world, h, SIM_T_WIRE_END, wire->id, (uint64_t)(int64_t)pk->why);
    wefti_sim_wire_gone(wire);
    sim_up(h)->wire_closed(wire->base.user, pk->why);
}

void wefti_sim_wires_die(sim_host_t *h)
{
    wefti_list_each(it, &h->wires) {
        sim_wire_t *wire = wefti_container_of(it, sim_wire_t, link);
        if (wire->peer && wire->peer->state != SIM_WIRE_GONE) {
            wefti_sim_channel_lose_tail(&wire->peer->in);
            wefti_sim_wire_end_peer(wire, WEFT_ERR_PEER);
        }
    }
    wefti_list_each(it, &h->events) {
        sim_event_t *ev = wefti_container_of(it, sim_event_t, link);
        if (ev->kind == SIM_EV_ACCEPT && ev->wire->state == SIM_WIRE_PENDING) {
            wefti_sim_wire_end_peer(ev->wire, WEFT_ERR_PEER);
            wefti_sim_wire_gone(ev->wire);
        }
    }
}

void wefti_sim_break_wires(wefti_fabric_t *a, wefti_fabric_t *b)
{
    const sim_host_t *h = sim_host_of(a);
    sim_each_fabric(i, h)
        wefti_list_each(it, &h->world->hosts[i]->wires) {
            sim_wire_t *wire = wefti_container_of(it, sim_wire_t, link);
            if (wire->peer && wire->peer->host->process == sim_host_of(b)->process)
                break_wire(wire);
        }
}
