/* tests/simnet/run.c - time, and who gets what when.
 *
 * A host runs only inside its progress(): there, one thing after the other is picked by the seed among all that are due and
 * may happen, and is handed to the user. A channel gives its packets in order; everything else may overtake everything else.
 * Time stands still while hosts run, and moves only in wefti_sim_advance(), where the kernel's events happen.
 *
 * Promise: nothing here depends on a clock, an address or the order of a hash table. tests/sim/fabric_order.c compares runs. */
#include <stdlib.h>
#include <string.h>

#include "simnet/world.h"

/* A host that is driven this often without time passing waits for something that will not come by driving. */
#define IDLE_CALLS_MAX 2000000
/* One that is driven this often in a row for nothing is driven by a loop that waits. */
#define IDLES_MAX 64
#define IDLE_NS (100 * WEFT_MICROSECOND)

/* --- packets and events ------------------------------------------------------------------------------------------- */

sim_packet_t *wefti_sim_packet(int kind, const void *bytes, size_t n)
{
    sim_packet_t *pk = wefti_sim_mem(sizeof *pk + n + 8); /* 8: for the guard behind a reserved record */
    pk->kind = (uint8_t)kind;
    pk->n = (uint32_t)n;
    if (bytes && n)
        memcpy(pk->bytes, bytes, n);
    return pk;
}

void wefti_sim_packet_free(sim_packet_t *pk)
{
    memset(pk->bytes, 0xdd, pk->n); /* whoever kept a pointer into it reads this, sanitizer or not */
    free(pk);
}

void wefti_sim_channel_init(sim_channel_t *c, sim_host_t *from, sim_host_t *to)
{
    wefti_list_init(&c->link);
    wefti_list_init(&c->queue);
    c->from = from;
    c->to = to;
}

void wefti_sim_channel_push(sim_channel_t *c, sim_packet_t *pk)
{
    uint64_t at = c->to->world->now + wefti_sim_delay(c->from, c->to);
    pk->at = c->last_at = at > c->last_at ? at : c->last_at;
    c->cost += pk->cost;
    wefti_list_push_back(&c->queue, &pk->link);
    if (!wefti_list_linked(&c->link))
        wefti_list_push_back(&c->to->channels, &c->link);
}

sim_packet_t *wefti_sim_channel_pop(sim_channel_t *c)
{
    wefti_list_t *first = wefti_list_pop(&c->queue);
    if (!first)
        return NULL;
    sim_packet_t *pk = wefti_container_of(first, sim_packet_t, link);
    c->cost -= pk->cost;
    if (wefti_list_empty(&c->queue))
        wefti_list_remove(&c->link);
    return pk;
}

void wefti_sim_channel_purge(sim_channel_t *c)
{
    for (sim_packet_t *pk; (pk = wefti_sim_channel_pop(c));)
        wefti_sim_packet_free(pk);
}

void wefti_sim_channel_lose_tail(sim_channel_t *c)
{
    size_t length = 0;
    wefti_list_each(it, &c->queue)
        length++;
    size_t lost = length ? sim_below(c->to->world, 2 * length + 1) : 0;
    for (lost = lost > length ? 0 : lost; lost; lost--) {
        sim_packet_t *pk = wefti_container_of(c->queue.prev, sim_packet_t, link);
        wefti_list_remove(&pk->link);
        c->cost -= pk->cost;
        wefti_sim_packet_free(pk);
    }
    if (wefti_list_empty(&c->queue) && wefti_list_linked(&c->link))
        wefti_list_remove(&c->link);
}

sim_event_t *wefti_sim_event(wefti_sim_t *w, sim_host_t *host, sim_host_t *via, int kind, uint64_t at)
{
    sim_event_t *ev = wefti_sim_mem(sizeof *ev);
    ev->host = host;
    ev->via = via;
    ev->kind = (uint8_t)kind;
    ev->at = at;
    wefti_list_push_back(host ? &host->events : &w->kernel, &ev->link);
    return ev;
}

/* --- what is due -------------------------------------------------------------------------------------------------- */

/* May the first packet of this channel be handed over, once its time has come? */
static bool channel_open(const sim_channel_t *c)
{
    if (!sim_linked(c->from, c->to))
        return false;
    if (c->lane)
        return c->lane->state == SIM_LANE_JOINED || (c->lane->state == SIM_LANE_NEW && c->lane->early);
    return c->wire->state == SIM_WIRE_OPEN && c->wire->told_opened;
}

static bool event_open(const sim_event_t *ev)
{
    if (ev->kind == SIM_EV_PULL)
        return wefti_sim_pull_can_run(ev->offer);
    return !ev->via || sim_linked(ev->via, ev->host);
}

static uint64_t host_next(const sim_host_t *h)
{
    uint64_t next = WEFT_FOREVER;
    if (h->closed || h->paused || h->stalled)
        return next;
    if (!wefti_list_empty(&h->closing))
        return h->world->now;
    if (h->dead)
        return next;
    wefti_list_each(it, &h->channels) {
        const sim_channel_t *c = wefti_container_of(it, sim_channel_t, link);
        const sim_packet_t *pk = wefti_container_of(c->queue.next, sim_packet_t, link);
        if (pk->at < next && channel_open(c))
            next = pk->at;
    }
    wefti_list_each(it, &h->events) {
        const sim_event_t *ev = wefti_container_of(it, sim_event_t, link);
        if (ev->at < next && event_open(ev))
            next = ev->at;
    }
    return next;
}

bool wefti_sim_ready(wefti_fabric_t *f)
{
    sim_host_t *h = sim_host_of(f);
    return host_next(h) <= h->world->now;
}

static bool is_wire_event(const sim_event_t *ev)
{
    return ev->kind <= SIM_EV_WIRE_END;
}

static void run_event(sim_event_t *ev)
{
    wefti_list_remove(&ev->link);
    if (is_wire_event(ev))
        wefti_sim_wire_event(ev);
    else if (ev->kind == SIM_EV_TICK || ev->kind == SIM_EV_BEAT)
        wefti_sim_beat_event(ev);
    else if (ev->kind == SIM_EV_SPACE || ev->kind == SIM_EV_LANE_FAIL)
        wefti_sim_lane_event(ev);
    else
        wefti_sim_offer_event(ev);
    free(ev);
}

/* Pick one of the things that are due and do it; false: there is none. */
static bool run_one(sim_host_t *h, bool wires_too)
{
    wefti_sim_t *w = h->world;
    wefti_list_t *due[32];
    unsigned n = 0, n_channels;
    wefti_list_each(it, &h->channels) {
        const sim_channel_t *c = wefti_container_of(it, sim_channel_t, link);
        const sim_packet_t *pk = wefti_container_of(c->queue.next, sim_packet_t, link);
        if (n < 16 && pk->at <= w->now && (wires_too || !c->wire) && channel_open(c))
            due[n++] = it;
    }
    n_channels = n;
    wefti_list_each(it, &h->events) {
        const sim_event_t *ev = wefti_container_of(it, sim_event_t, link);
        if (n < 32 && ev->at <= w->now && (wires_too || !is_wire_event(ev)) && event_open(ev))
            due[n++] = it;
    }
    if (!n)
        return false;
    unsigned i = n > 1 ? (unsigned)sim_below(w, n) : 0;
    h->delivered++;
    if (i >= n_channels) {
        run_event(wefti_container_of(due[i], sim_event_t, link));
        return true;
    }
    sim_channel_t *c = wefti_container_of(due[i], sim_channel_t, link);
    /* to the end, so that a long list of channels does not starve the later ones */
    wefti_list_remove(&c->link);
    wefti_list_push_back(&h->channels, &c->link);
    sim_packet_t *pk = wefti_sim_channel_pop(c);
    if (c->lane)
        wefti_sim_lane_packet(c->lane, pk);
    else
        wefti_sim_wire_packet(c->wire, pk);
    wefti_sim_packet_free(pk);
    return true;
}

static void idle_again(sim_host_t *h)
{
    wefti_sim_t *w = h->world;
    if (w->idler != h)
        w->idles = 0;
    w->idler = h;
    if (++w->idles <= IDLES_MAX)
        return;
    if (w->on_idle)
        w->on_idle(w->idle_user);
    else
        wefti_sim_advance(w, w->now + IDLE_NS);
    w->idler = h; /* whoever ran meanwhile */
    w->idles = IDLES_MAX;
}

unsigned wefti_sim_progress(wefti_fabric_t *f, bool idle)
{
    sim_host_t *h = sim_host_of(f);
    wefti_sim_t *w = h->world;
    if (h->closed || h->in_progress)
        wefti_sim_violation(w, "progress of host %s %s", h->name, h->closed ? "after it was closed" : "from inside an upcall");
    if (++w->idle_calls > IDLE_CALLS_MAX)
        wefti_sim_violation(w, "host %s is driven for ever and time does not pass", h->name);
    if (w->before_step) {
        const sim_host_t *idler = w->idler;
        unsigned idles = w->idles;
        w->before_step(f, w->before_user);
        w->idler = idler; /* whoever ran meanwhile */
        w->idles = idles;
    }
    if (h->paused || h->stalled)
        return 0;
    unsigned quota = 1 + (unsigned)sim_below(w, 8), done = 0;
    h->in_progress = true;
    while (done < quota && !wefti_list_empty(&h->closing) && sim_below(w, 3)) {
        wefti_list_t *first = wefti_list_first(&h->closing);
        if (sim_below(w, 2)) { /* let another one have its turn */
            wefti_list_remove(first);
            wefti_list_push_back(&h->closing, first);
            first = wefti_list_first(&h->closing);
        }
        done += wefti_sim_lane_step(wefti_container_of(first, sim_lane_t, closing_link));
    }
    bool wires_too = idle || sim_below(w, 4) == 0;
    while (!h->dead && done < quota && run_one(h, wires_too))
        done++;
    h->in_progress = false;
    if (done)
        w->idles = 0;
    else
        idle_again(h);
    return done;
}

/* --- time --------------------------------------------------------------------------------------------------------- */

uint64_t wefti_sim_now(const wefti_sim_t *w)
{
    return w->now;
}

static sim_event_t *kernel_next(const wefti_sim_t *w)
{
    sim_event_t *first = NULL;
    wefti_list_each(it, &w->kernel) {
        sim_event_t *ev = wefti_container_of(it, sim_event_t, link);
        if (!first || ev->at < first->at)
            first = ev;
    }
    return first;
}

uint64_t wefti_sim_next(wefti_sim_t *w)
{
    const sim_event_t *ev = kernel_next(w);
    uint64_t next = ev ? ev->at : WEFT_FOREVER;
    for (unsigned i = 0; i < w->n_hosts; i++) {
        uint64_t t = w->hosts[i]->dead ? WEFT_FOREVER : host_next(w->hosts[i]); /* the dead run only when they are buried */
        next = t < next ? t : next;
    }
    return next;
}

void wefti_sim_advance(wefti_sim_t *w, uint64_t to)
{
    if (to < w->now)
        wefti_sim_violation(w, "time cannot go back to %llu", (unsigned long long)to);
    for (sim_event_t *ev; (ev = kernel_next(w)) && ev->at <= to;) {
        w->now = ev->at > w->now ? ev->at : w->now;
        run_event(ev);
    }
    if (to > w->now)
        w->idle_calls = 0;
    w->now = to;
}

void wefti_sim_on_idle(wefti_sim_t *w, void (*fn)(void *user), void *user)
{
    w->on_idle = fn;
    w->idle_user = user;
}

void wefti_sim_before_step(wefti_sim_t *w, void (*fn)(wefti_fabric_t *f, void *user), void *user)
{
    w->before_step = fn;
    w->before_user = user;
}

bool wefti_sim_step(wefti_sim_t *w)
{
    uint64_t next = wefti_sim_next(w);
    if (next == WEFT_FOREVER)
        return false;
    wefti_sim_advance(w, next > w->now ? next : w->now);
    return true;
}
