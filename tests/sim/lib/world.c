/* tests/sim/lib/world.c - turns and time for several runtimes on one simulated network. */
#include "world.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "core/local.h"
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

/* Nothing can be done by whoever is here: the others run, and time passes. False: nothing will happen any more. */
static bool let_pass(sim_net_t *net)
{
    uint64_t now = sim_now(net);
    if (turns(net))
        return true;
    uint64_t next = next_time(net);
    bool more = next != WEFT_FOREVER;
    next = next < now + WEFT_MILLISECOND ? next : now + WEFT_MILLISECOND;
    wefti_sim_advance(net->w, next > now ? next : now);
    return more;
}

/* Someone waits in a loop: closing a runtime does, for peers that still have to read its last word. */
static void on_idle(void *user)
{
    sim_net_t *net = user;
    if (net->closing >= 0)
        let_pass(net);
}

/* The other shards of a runtime that is being closed run between any two steps of it. */
static void before_step(wefti_fabric_t *f, void *user)
{
    sim_net_t *net = user;
    (void)f;
    if (net->closing >= 0 && net->nodes[net->closing].n_shards > 1 && !net->nested && sim_odds(net, 40)) {
        net->nested = true;
        turns(net);
        net->nested = false;
    }
}

/* A program that waits sleeps here, on a thread of its own: the shards run meanwhile. Linked in the place of the library's. */
bool __real_wefti_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
bool __wrap_wefti_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
bool __wrap_wefti_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    if (!current || wefti_driven)
        return __real_wefti_futex_wait(word, seen, ns);
    for (unsigned rounds = 0; atomic_load(word) == seen; rounds++) {
        if (rounds > TURNS_MAX)
            sim_bad(current, "a program waits, and what it waits for does not come");
        let_pass(current);
    }
    return true;
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
    wefti_sim_before_step(net->w, before_step, net);
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

/* From here on only its own steps drive it: what others want of it goes through the inbox, as with a thread. */
static void becomes_thread(sim_shard_t *shard)
{
    atomic_store(&shard->rt->mode, WEFT_PROGRESS_THREAD);
}

static weft_status_t open_shards(sim_net_t *net, sim_node_t *n, const weft_runtime_opts_t *opts, uint32_t shards)
{
    weft_status_t st = WEFT_OK;
    n->n_shards = shards;
    n->shards[0] = (sim_shard_t){n->f, n->rt, 0};
    for (uint32_t k = 1; k < shards && !st; k++) {
        wefti_config_t config;
        if (wefti_sim_shard(n->f, &n->shards[k].f))
            sim_bad(net, "no fabric for a shard");
        st = wefti_config_read(&config);
        if (!st)
            st = wefti_open_shard_on_fabric(opts, &config, n->shards[k].f, n->rt, k);
        n->shards[k].rt = wefti_shard(n->rt, k);
    }
    for (uint32_t k = 0; k < shards && shards > 1 && !st; k++)
        becomes_thread(&n->shards[k]);
    return st;
}

weft_status_t sim_net_open(sim_net_t *net, int node, const weft_runtime_opts_t *given)
{
    uint32_t shards = sim_shards > SIM_SHARDS_MAX ? SIM_SHARDS_MAX : sim_shards;
    return sim_net_open_shards(net, node, given, shards > 1 ? 1 + (uint32_t)sim_below(net, shards) : 1);
}

weft_status_t sim_net_open_shards(sim_net_t *net, int node, const weft_runtime_opts_t *given, uint32_t shards)
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
    if (!st)
        st = open_shards(net, &net->nodes[node], &opts, shards);
    net->alloc_fails_ppm = ppm;
    if (st)
        sim_bad(net, "runtime %d does not open: %s (%s)", node, weft_status_name(st), weft_last_error());
    return st;
}

static void go_on(sim_shard_t *shard)
{
    shard->stalled_until = 0;
    wefti_sim_stall(shard->f, false);
}

void sim_net_stall(sim_net_t *net, int node, uint32_t shard, uint64_t until)
{
    sim_node_t *n = &net->nodes[node];
    if (n->n_shards < 2 || !sim_node_runs(n) || node == net->closing)
        return;
    wefti_sim_note(net->w, node, "stalls shard, until", shard, until);
    n->shards[shard].stalled_until = until;
    wefti_sim_stall(n->shards[shard].f, true);
}

void sim_net_close(sim_net_t *net, int node)
{
    sim_node_t *n = &net->nodes[node];
    if (!n->rt)
        return;
    if (n->paused_at)
        sim_net_resume(net, node);
    for (uint32_t k = 0; k < n->n_shards; k++)
        go_on(&n->shards[k]);
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

/* Can its thread do a step? Not while it is inside one, which is where we are called from. */
static bool shard_runs(sim_net_t *net, sim_shard_t *shard)
{
    if (wefti_gone(shard->rt) || shard->rt->delivering || shard->rt->ending)
        return false;
    if (shard->stalled_until && shard->stalled_until <= sim_now(net))
        go_on(shard);
    return !shard->stalled_until;
}

/* What its thread does: it is the driver, for this step alone in this process. */
static unsigned step(sim_shard_t *shard)
{
    weft_runtime_t *was = wefti_driven;
    wefti_driven = shard->rt;
    unsigned n = wefti_progress(shard->rt);
    wefti_driven = was;
    return n;
}

/* Some steps of some shards, in any order. */
static bool shards_turn(sim_net_t *net, sim_node_t *node)
{
    bool any = false;
    for (uint64_t times = 1 + sim_below(net, 2 * node->n_shards); times && node->rt; times--) {
        sim_shard_t *shard = &node->shards[sim_below(net, node->n_shards)];
        if (shard_runs(net, shard))
            any |= step(shard) != 0;
    }
    for (uint32_t k = 0; k < node->n_shards && node->rt; k++)
        any |= shard_runs(net, &node->shards[k]) && wefti_sim_ready(node->shards[k].f);
    if (net->stalls_ppm && sim_below(net, 1000000) < net->stalls_ppm)
        sim_net_stall(net, node->index, (uint32_t)sim_below(net, node->n_shards),
                      sim_now(net) + 1 + sim_below(net, net->stall_ns));
    return any;
}

/* One round of turns, in an order that starts anywhere; was there anything to do? */
static bool turns(sim_net_t *net)
{
    bool any = false;
    uint64_t choice = wefti_rng_next(&net->rng);
    for (int k = 0; k < net->n; k++) {
        sim_node_t *node = &net->nodes[(k + (int)(choice & 7)) % net->n];
        if (node->n_shards > 1 && (sim_node_runs(node) || node->index == net->closing)) {
            any |= shards_turn(net, node);
            continue;
        }
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

/* The same for the shards of a node, each of which is its own driver. */
static uint64_t shards_next(sim_net_t *net, sim_node_t *node, uint64_t next)
{
    uint64_t now = sim_now(net);
    for (uint32_t k = 0; k < node->n_shards; k++) {
        sim_shard_t *shard = &node->shards[k];
        if (!shard_runs(net, shard)) {
            if (shard->stalled_until && shard->stalled_until < next)
                next = shard->stalled_until;
            continue;
        }
        if (has_work(shard->rt))
            return now;
        weft_runtime_t *was = wefti_driven;
        wefti_driven = shard->rt;
        uint64_t t = wefti_timers_next(shard->rt);
        wefti_driven = was;
        next = t != WEFT_FOREVER && now + t < next ? now + t : next;
    }
    return next;
}

/* When something happens next: a packet, a timer, a turn. */
static uint64_t next_time(sim_net_t *net)
{
    uint64_t next = wefti_sim_next(net->w), now = sim_now(net);
    for (int i = 0; i < net->n; i++) {
        if (net->nodes[i].n_shards > 1 && (sim_node_runs(&net->nodes[i]) || i == net->closing)) {
            next = shards_next(net, &net->nodes[i], next);
            continue;
        }
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
