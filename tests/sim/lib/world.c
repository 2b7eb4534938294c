/* tests/sim/lib/world.c - turns and time for several runtimes on one simulated network. */
#include "world.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "core/core.h"
#include "open.h"
#include "seeds.h"

#define TURNS_MAX 200000 /* without time passing: more is a livelock */

static sim_net_t *current; /* the allocation hook has no argument */

static int alloc_fails(size_t n)
{
    (void)n;
    return current && current->alloc_fails_ppm && sim_below(current, 1000000) < current->alloc_fails_ppm;
}

static bool turns(sim_net_t *net);
static uint64_t next_time(sim_net_t *net);

/* Someone waits in a loop (closing a runtime does, for peers that still have to read its last word): the others run, and time
 * passes. */
static void on_idle(void *user)
{
    sim_net_t *net = user;
    uint64_t now = sim_now(net);
    if (net->closing < 0 || turns(net))
        return;
    uint64_t next = next_time(net);
    next = next < now + WEFT_MILLISECOND ? next : now + WEFT_MILLISECOND;
    wefti_sim_advance(net->w, next > now ? next : now);
}

void sim_net_init(sim_net_t *net, uint64_t seed, int n)
{
    memset(net, 0, sizeof *net);
    if (wefti_sim_new(seed, &net->w))
        sim_seed_failed(seed, "no world");
    wefti_sim_on_violation(net->w, sim_seed_failed);
    net->rng.state = seed * UINT64_C(0x2545f4914f6cdd1d) + 7;
    net->n = n;
    net->closing = -1;
    wefti_sim_on_idle(net->w, on_idle, net);
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "h%d", i);
        net->nodes[i].index = i;
        if (wefti_sim_host(net->w, name, &net->nodes[i].f))
            sim_bad(net, "no host");
    }
    current = net;
    wefti_alloc_fails = alloc_fails;
}

weft_status_t sim_net_open(sim_net_t *net, int node, const weft_runtime_opts_t *given)
{
    weft_runtime_opts_t opts = *given;
    wefti_config_t config;
    char name[16];
    snprintf(name, sizeof name, "h%d", node);
    opts.name = name;
    uint32_t ppm = net->alloc_fails_ppm;
    net->alloc_fails_ppm = 0; /* a world without its runtimes tests nothing */
    weft_status_t st = wefti_config_read(&config);
    if (!st)
        st = wefti_open_on_fabric(&opts, &config, net->nodes[node].f, &net->nodes[node].rt);
    net->alloc_fails_ppm = ppm;
    if (st)
        sim_bad(net, "runtime %d does not open: %s (%s)", node, weft_status_name(st), weft_last_error());
    return st;
}

void sim_net_close(sim_net_t *net, int node)
{
    sim_node_t *n = &net->nodes[node];
    if (!n->rt)
        return;
    if (n->paused_at)
        sim_net_resume(net, node);
    net->closing = node;
    weft_status_t st = weft_runtime_close(n->rt);
    net->closing = -1;
    n->rt = NULL;
    if (st)
        sim_bad(net, "runtime %d does not close: %s", node, weft_status_name(st));
}

uint64_t sim_net_free(sim_net_t *net)
{
    for (int i = 0; i < net->n; i++)
        sim_net_close(net, i);
    uint64_t hash = wefti_sim_hash(net->w);
    wefti_alloc_fails = NULL;
    current = NULL;
    wefti_sim_free(net->w);
    return hash;
}

uint64_t sim_now(const sim_net_t *net)
{
    return wefti_sim_now(net->w);
}

/* One round of turns, in an order that starts anywhere; was there anything to do? */
static bool turns(sim_net_t *net)
{
    bool any = false;
    uint64_t choice = wefti_rng_next(&net->rng);
    for (int k = 0; k < net->n; k++) {
        sim_node_t *node = &net->nodes[(k + (int)(choice & 7)) % net->n];
        if (!sim_node_runs(node) || node->index == net->closing)
            continue;
        for (unsigned times = 1 + (choice >> (8 + 2 * k) & 1); times && node->rt; times--)
            any |= weft_runtime_progress(node->rt) != 0;
        any |= wefti_sim_ready(node->f);
    }
    return any;
}

/* Work that only waits for its runtime's next turn: a program posts between turns as well, and weft_runtime_next_timeout()
 * speaks of timers alone. A loop would hear of it from weft_runtime_arm(), and not sleep. */
static bool has_work(const weft_runtime_t *rt)
{
    return !wefti_list_empty(&rt->ready) || !wefti_mpsc_empty(&rt->inbox);
}

/* When something happens next: a packet, a timer, a turn. */
static uint64_t next_time(sim_net_t *net)
{
    uint64_t next = wefti_sim_next(net->w), now = sim_now(net);
    for (int i = 0; i < net->n; i++) {
        if (!sim_node_runs(&net->nodes[i]) || i == net->closing)
            continue;
        if (has_work(net->nodes[i].rt))
            return now;
        uint64_t t = weft_runtime_next_timeout(net->nodes[i].rt);
        if (t != WEFT_FOREVER && now + t < next)
            next = now + t;
    }
    return next;
}

bool sim_net_run_until(sim_net_t *net, uint64_t until, bool (*done)(void *user), void *user)
{
    for (unsigned idle = 0;;) {
        bool any = turns(net);
        if (net->each_round)
            net->each_round(net->user);
        if (done && done(user))
            return true;
        uint64_t now = sim_now(net), next = any ? now : next_time(net), due = net->due ? net->due(net->user) : UINT64_MAX;
        next = due < next ? due : next;
        if (next <= now) {
            if (++idle > TURNS_MAX)
                sim_bad(net, "turns without end: a timer that is due does not run, or work that does not get less");
            continue;
        }
        idle = 0;
        if (next > until || now >= until) {
            if (now < until)
                wefti_sim_advance(net->w, until);
            return done ? done(user) : true;
        }
        wefti_sim_advance(net->w, next);
    }
}

void sim_net_run(sim_net_t *net, uint64_t until)
{
    sim_net_run_until(net, until, NULL, NULL);
}

void sim_net_kill(sim_net_t *net, int node)
{
    sim_node_t *n = &net->nodes[node];
    if (n->paused_at)
        sim_net_resume(net, node);
    n->dead = true;
    wefti_sim_kill(n->f);
}

void sim_net_pause(sim_net_t *net, int node)
{
    if (net->nodes[node].paused_at || net->nodes[node].dead)
        return;
    net->nodes[node].paused_at = sim_now(net);
    wefti_sim_pause(net->nodes[node].f);
}

void sim_net_resume(sim_net_t *net, int node)
{
    sim_node_t *n = &net->nodes[node];
    if (!n->paused_at)
        return;
    n->stopped_ns += sim_now(net) - n->paused_at;
    n->paused_at = 0;
    n->stops++;
    wefti_sim_resume(n->f);
}

uint64_t sim_net_stopped(const sim_net_t *net, int node)
{
    const sim_node_t *n = &net->nodes[node];
    return n->stopped_ns + (n->paused_at ? sim_now(net) - n->paused_at : 0);
}
