/* tests/simnet/world.c - worlds and hosts: making them, linking them, and what happens to them.
 *
 * A host is running, paused (and back), dead, or closed. Dead and closed are for ever; a dead one still lets go of what is
 * closed on it, so that the runtime that stood on it can be closed.
 *
 * Promise: a fabric that is closed has nothing open, and a world that is freed has no fabric open: anything else is a
 * violation. tests/sim/fabric_checks.c shows them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "simnet/world.h"

void *wefti_sim_mem(size_t n)
{
    void *p = calloc(1, n);
    if (!p) {
        fputs("sim: the machine itself is out of memory\n", stderr);
        abort();
    }
    return p;
}

/* --- chance ------------------------------------------------------------------------------------------------------- */

uint64_t wefti_sim_delay(sim_host_t *from, sim_host_t *to)
{
    wefti_sim_t *w = from->world;
    const wefti_sim_link_t *l = &w->links[from->index][to->index];
    if (sim_chance(w, l->slow_ppm))
        return l->min_ns + sim_below(w, l->slow_ns + 1);
    return l->min_ns + sim_below(w, l->max_ns - l->min_ns + 1);
}

weft_status_t wefti_sim_fault(sim_host_t *h, int at, uint32_t ppm, const weft_status_t *statuses)
{
    weft_status_t st = WEFT_OK;
    if (h->forced[at].times) {
        h->forced[at].times--;
        st = h->forced[at].status;
    } else if (sim_chance(h->world, ppm)) {
        unsigned n = 1; /* there is one at least */
        while (statuses[n])
            n++;
        st = statuses[sim_below(h->world, n)];
    }
    if (st)
        wefti_sim_trace(h->world, h, SIM_T_FAIL_NOW, (uint64_t)at, (uint64_t)(int64_t)st);
    return st;
}

/* --- what happens to hosts ------------------------------------------------------------------------------------------- */

/* Its acknowledgements that were not out yet are lost with it. */
static void lose_acks(sim_host_t *h)
{
    for (unsigned i = 0; i < h->world->n_hosts; i++)
        wefti_list_each_safe(it, &h->world->hosts[i]->events) {
            sim_event_t *ev = wefti_container_of(it, sim_event_t, link);
            if (ev->kind == SIM_EV_ACK && ev->via == h && sim_below(h->world, 2)) {
                wefti_list_remove(&ev->link);
                free(ev);
            }
        }
}

void wefti_sim_kill(wefti_fabric_t *f)
{
    sim_host_t *h = sim_host_of(f);
    if (h->dead || h->closed)
        return;
    wefti_sim_trace(h->world, h, SIM_T_KILL, 0, 0);
    sim_each_fabric(i, h) {
        sim_host_t *x = h->world->hosts[i];
        x->paused = x->stalled = false;
        if (x->closed)
            continue;
        wefti_sim_lanes_die(x);
        wefti_sim_wires_die(x);
        lose_acks(x);
        x->dead = true;
    }
    wefti_sim_wires_away_die(h);
}

void wefti_sim_stall(wefti_fabric_t *f, bool stalled)
{
    sim_host_of(f)->stalled = stalled;
}

void wefti_sim_pause(wefti_fabric_t *f)
{
    sim_host_t *h = sim_host_of(f);
    sim_each_fabric(i, h)
        h->world->hosts[i]->paused = !h->world->hosts[i]->dead && !h->world->hosts[i]->closed;
    wefti_sim_trace(h->world, h, SIM_T_PAUSE, 0, 0);
}

void wefti_sim_resume(wefti_fabric_t *f)
{
    sim_host_t *h = sim_host_of(f);
    sim_each_fabric(i, h)
        h->world->hosts[i]->paused = false;
    wefti_sim_trace(h->world, h, SIM_T_RESUME, 0, 0);
}

bool wefti_sim_alive(const wefti_fabric_t *f)
{
    return !sim_host_of(f)->dead;
}
bool wefti_sim_paused(const wefti_fabric_t *f)
{
    return sim_host_of(f)->paused;
}

void wefti_sim_cut(wefti_fabric_t *from, wefti_fabric_t *to, bool cut)
{
    sim_host_t *a = sim_host_of(from), *b = sim_host_of(to);
    sim_each_fabric(i, a)
        sim_each_fabric(k, b)
            a->world->cut[i][k] = cut;
    wefti_sim_trace(a->world, a, SIM_T_CUT, b->index, cut);
}

void wefti_sim_partition(wefti_fabric_t *a, wefti_fabric_t *b)
{
    wefti_sim_cut(a, b, true);
    wefti_sim_cut(b, a, true);
}

void wefti_sim_heal(wefti_fabric_t *a, wefti_fabric_t *b)
{
    wefti_sim_cut(a, b, false);
    wefti_sim_cut(b, a, false);
}

void wefti_sim_link(wefti_fabric_t *from, wefti_fabric_t *to, const wefti_sim_link_t *link)
{
    sim_host_t *a = sim_host_of(from), *b = sim_host_of(to);
    if (link->max_ns < link->min_ns)
        wefti_sim_violation(a->world, "a link whose longest delay is shorter than its shortest");
    sim_each_fabric(i, a)
        sim_each_fabric(k, b)
            a->world->links[i][k] = *link;
}

wefti_sim_faults_t *wefti_sim_faults(wefti_sim_t *w)
{
    return &w->faults;
}

void wefti_sim_fail_next(wefti_fabric_t *f, int at, weft_status_t status, unsigned times)
{
    sim_host_t *h = sim_host_of(f);
    h->forced[at].status = status;
    h->forced[at].times = times;
}

static unsigned list_length(const wefti_list_t *l)
{
    unsigned n = 0;
    wefti_list_each(it, l)
        n++;
    return n;
}

void wefti_sim_count(wefti_fabric_t *f, wefti_sim_counts_t *counts_out)
{
    const sim_host_t *h = sim_host_of(f);
    counts_out->acceptors = list_length(&h->acceptors);
    counts_out->wires = list_length(&h->wires);
    counts_out->lanes = list_length(&h->lanes);
    counts_out->transfers = h->transfers;
    counts_out->shares = list_length(&h->shares);
    counts_out->loans = list_length(&h->loans);
    counts_out->delivered = h->delivered;
    counts_out->registered = h->registered;
    counts_out->mapped = h->mapped;
}

/* --- the fabric --------------------------------------------------------------------------------------------------- */

static void host_close(wefti_fabric_t *f)
{
    sim_host_t *h = sim_host_of(f);
    wefti_sim_counts_t c;
    wefti_sim_count(f, &c);
    wefti_sim_trace(h->world, h, SIM_T_FABRIC_CLOSE, 0, 0);
    if (h->closed || h->in_progress)
        wefti_sim_violation(h->world, "host %s closed %s", h->name, h->closed ? "twice" : "from inside an upcall");
    if (c.acceptors || c.wires || c.lanes || c.transfers)
        wefti_sim_violation(h->world, "host %s closed with %u acceptors, %u wires, %u lanes, %u transfers still open", h->name,
                            c.acceptors, c.wires, c.lanes, c.transfers);
    if (h->process == h && wefti_sim_wires_away(h))
        wefti_sim_violation(h->world, "host %s closed with %u wires between its fabrics that nobody closed", h->name,
                            wefti_sim_wires_away(h));
    if (c.registered || c.mapped)
        wefti_sim_violation(h->world, "host %s closed with %u ranges still registered and %u of peers still mapped", h->name,
                            c.registered, c.mapped);
    if (c.shares || c.loans)
        wefti_sim_violation(h->world, "host %s closed with %u ranges still shared and %u payloads still borrowed", h->name,
                            c.shares, c.loans);
    wefti_sim_wires_die(h); /* connections that nobody has accepted */
    h->closed = true;
}

static weft_status_t host_arm(wefti_fabric_t *f)
{
    sim_host_t *h = sim_host_of(f);
    if (wefti_sim_ready(f))
        return WEFT_ERR_AGAIN;
    if (h->armed)
        wefti_sim_violation(h->world, "host %s armed twice", h->name);
    h->armed = true;
    return WEFT_OK;
}

static void host_disarm(wefti_fabric_t *f)
{
    sim_host_t *h = sim_host_of(f);
    if (!h->armed)
        wefti_sim_violation(h->world, "host %s disarmed without being armed", h->name);
    h->armed = false;
}

static int host_event_fd(wefti_fabric_t *f)
{
    (void)f;
    return -1;
}

static void host_wake(wefti_fabric_t *f)
{
    (void)f;
}
static uint64_t host_now(wefti_fabric_t *f)
{
    return sim_host_of(f)->world->now;
}

static void host_random(wefti_fabric_t *f, void *buf, size_t n)
{
    uint8_t *at = buf;
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)wefti_rng_next(&sim_host_of(f)->secrets);
}

const wefti_fabric_ops_t wefti_sim_fabric_ops = {
    .name = "sim",
    .close = host_close,
    .progress = wefti_sim_progress,
    .arm = host_arm,
    .disarm = host_disarm,
    .event_fd = host_event_fd,
    .wake = host_wake,
    .now = host_now,
    .random = host_random,
    .acceptor_open = wefti_sim_acceptor_open,
    .acceptor_uri = wefti_sim_acceptor_uri,
    .acceptor_close = wefti_sim_acceptor_close,
    .wire_dial = wefti_sim_wire_dial,
    .wire_adopt = wefti_sim_wire_adopt,
    .wire_release = wefti_sim_wire_release,
    .wire_drop = wefti_sim_wire_drop,
    .wire_send = wefti_sim_wire_send,
    .wire_close = wefti_sim_wire_close,
    .wire_beat = wefti_sim_wire_beat,
    .wire_watch = wefti_sim_wire_watch,
    .wire_beat_once = wefti_sim_wire_beat_once,
    .mem_register = wefti_sim_mem_register,
    .mem_unregister = wefti_sim_mem_unregister,
    .share = wefti_sim_share,
    .unshare = wefti_sim_unshare,
};

/* --- making and freeing ------------------------------------------------------------------------------------------- */

/* From a generator of its own: what else a seed means does not depend on it. */
static void pair_memories(wefti_sim_t *w)
{
    wefti_rng_t rng = {w->seed ^ UINT64_C(0x6d656d6f72696573)};
    for (unsigned i = 0; i < WEFTI_SIM_HOSTS; i++)
        for (unsigned j = 0; j <= i; j++)
            w->one_memory[i][j] = w->one_memory[j][i] = wefti_rng_below(&rng, 2);
}

weft_status_t wefti_sim_new(uint64_t seed, wefti_sim_t **world_out)
{
    wefti_sim_t *w = wefti_sim_mem(sizeof *w);
    w->seed = seed;
    w->rng.state = seed * UINT64_C(0xd1342543de82ef95) + 1;
    w->now = WEFT_SECOND; /* not 0: a time of 0 often means none */
    w->next_port = 20000;
    w->hash = seed;
    w->faults.style = sim_below(w, 2) ? WEFTI_SIM_SHM : WEFTI_SIM_UCX;
    for (unsigned i = 0; i < WEFTI_SIM_HOSTS; i++)
        for (unsigned j = 0; j < WEFTI_SIM_HOSTS; j++)
            w->links[i][j] = (wefti_sim_link_t){1000, 50000, 10000, 2 * WEFT_MILLISECOND};
    pair_memories(w);
    wefti_list_init(&w->kernel);
    wefti_list_init(&w->away);
    wefti_list_init(&w->grave_acceptors);
    wefti_list_init(&w->grave_wires);
    wefti_list_init(&w->grave_lanes);
    wefti_list_init(&w->offers);
    *world_out = w;
    return WEFT_OK;
}

weft_status_t wefti_sim_host(wefti_sim_t *w, const char *name, wefti_fabric_t **fabric_out)
{
    if (w->n_hosts == WEFTI_SIM_HOSTS)
        return wefti_fail(WEFT_ERR_LIMIT, "a simulated world has at most %d hosts", WEFTI_SIM_HOSTS);
    sim_host_t *h = wefti_sim_mem(sizeof *h);
    h->base.ops = &wefti_sim_fabric_ops;
    h->base.transports[0] = &h->transport;
    h->base.n_transports = 1;
    h->transport.ops = &wefti_sim_transport_ops;
    h->transport.fabric = &h->base;
    h->transport.kind = WEFTI_SIM_TRANSPORT;
    h->transport.name = "sim";
    h->world = w;
    h->index = w->n_hosts;
    h->process = h;
    snprintf(h->name, sizeof h->name, "%s", name);
    h->secrets.state = wefti_rng_next(&w->rng);
    wefti_list_init(&h->channels);
    wefti_list_init(&h->events);
    wefti_list_init(&h->closing);
    wefti_list_init(&h->acceptors);
    wefti_list_init(&h->wires);
    wefti_list_init(&h->lanes);
    wefti_list_init(&h->shares);
    wefti_list_init(&h->loans);
    pthread_mutex_init(&h->share_lock, NULL);
    w->hosts[w->n_hosts++] = h;
    *fabric_out = &h->base;
    return WEFT_OK;
}

weft_status_t wefti_sim_shard(wefti_fabric_t *head, wefti_fabric_t **fabric_out)
{
    sim_host_t *first = sim_host_of(head);
    wefti_sim_t *w = first->world;
    weft_status_t st = wefti_sim_host(w, first->name, fabric_out);
    if (st)
        return st;
    sim_host_t *h = sim_host_of(*fabric_out);
    h->process = first;
    for (unsigned i = 0; i < w->n_hosts; i++) {
        w->links[h->index][i] = w->links[first->index][i];
        w->links[i][h->index] = w->links[i][first->index];
        w->cut[h->index][i] = w->cut[first->index][i];
        w->cut[i][h->index] = w->cut[i][first->index];
    }
    w->links[h->index][h->index] = w->links[first->index][first->index];
    return WEFT_OK;
}

static void free_events(wefti_list_t *l)
{
    for (wefti_list_t *it; (it = wefti_list_pop(l));)
        free(wefti_container_of(it, sim_event_t, link));
}

void wefti_sim_free(wefti_sim_t *w)
{
    for (unsigned i = 0; i < w->n_hosts; i++)
        if (!w->hosts[i]->closed)
            wefti_sim_violation(w, "host %s was never closed", w->hosts[i]->name);
    for (wefti_list_t *it; (it = wefti_list_pop(&w->grave_wires));) {
        sim_wire_t *wire = wefti_container_of(it, sim_wire_t, link);
        wefti_sim_channel_purge(&wire->in);
        for (wefti_list_t *pk; (pk = wefti_list_pop(&wire->early));)
            wefti_sim_packet_free(wefti_container_of(pk, sim_packet_t, link));
        free(wire);
    }
    for (wefti_list_t *it; (it = wefti_list_pop(&w->grave_lanes));) {
        sim_lane_t *lane = wefti_container_of(it, sim_lane_t, link);
        wefti_sim_channel_purge(&lane->in);
        free(lane);
    }
    for (wefti_list_t *it; (it = wefti_list_pop(&w->offers));)
        free(wefti_container_of(it, sim_offer_t, all_link));
    for (wefti_list_t *it; (it = wefti_list_pop(&w->grave_acceptors));)
        free(wefti_container_of(it, wefti_acceptor_t, link));
    free_events(&w->kernel);
    for (unsigned i = 0; i < w->n_hosts; i++) {
        free_events(&w->hosts[i]->events);
        wefti_sim_regs_free(w->hosts[i]);
        wefti_sim_maps_free(w->hosts[i]);
        pthread_mutex_destroy(&w->hosts[i]->share_lock);
        free(w->hosts[i]);
    }
    free(w->lanes);
    free(w);
}
