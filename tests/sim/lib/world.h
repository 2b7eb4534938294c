/* tests/sim/lib/world.h - several runtimes on a simulated network, driven in an order that the seed decides.
 *
 * The harness stands where programs and the kernel's clock would: it lets runtimes run in turns, and when none has anything
 * to do it moves time to whatever comes first, a packet or a timer. Nothing here waits, so a seed takes as long as its work
 * does. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <weft/weft.h>

#include "base/rng.h"
#include "simnet/simnet.h"

#define SIM_NODES_MAX 6
#define SIM_SHARDS_MAX 4

/* A shard of a node's runtime. Its thread is the harness: one step at a time, when the seed says so. */
typedef struct sim_shard {
    wefti_fabric_t *f;
    weft_runtime_t *rt;
    uint64_t stalled_until; /* 0: it runs */
} sim_shard_t;

typedef struct sim_node {
    wefti_fabric_t *f;
    weft_runtime_t *rt; /* NULL: closed */
    int index;
    bool dead;
    uint64_t paused_at;    /* 0: it runs */
    uint64_t stopped_ns;   /* time it has spent stopped, earlier pauses */
    unsigned stops;        /* how often it went on after one */
    sim_shard_t shards[SIM_SHARDS_MAX]; /* the first is f and rt */
    uint32_t n_shards;     /* more than one: each step of each is the seed's choice. Else the node drives its runtime itself */
} sim_node_t;

typedef struct sim_net {
    wefti_sim_t *w;
    wefti_rng_t rng; /* of the actors; the network has its own */
    sim_node_t nodes[SIM_NODES_MAX];
    int n;
    void (*each_round)(void *user); /* called between turns; may post */
    uint64_t (*due)(void *user);    /* when the program wants the next of them at the latest; NULL: it waits for what happens */
    void *user;
    bool nested;              /* the shards of a runtime that is being closed run, inside a step of it */
    int closing;              /* the node whose runtime is being closed, or -1 */
    uint32_t alloc_fails_ppm; /* in the library, while it is set */
    uint32_t stalls_ppm;      /* how often, in a round, a shard gets no steps for a while: up to stall_ns */
    uint64_t stall_ns;
} sim_net_t;

/* A world of n hosts h0, h1, ... without runtimes. */
void sim_net_init(sim_net_t *net, uint64_t seed, int n);
/* Open the runtime of a node, with all rooms. opts->name is set to the host's. With --shards (seeds.h) it has up to so many
 * shards, by the seed. */
weft_status_t sim_net_open(sim_net_t *net, int node, const weft_runtime_opts_t *opts);
/* The same with this many shards, at most SIM_SHARDS_MAX. A program of several shards can wait: they run meanwhile. */
weft_status_t sim_net_open_shards(sim_net_t *net, int node, const weft_runtime_opts_t *opts, uint32_t shards);
/* Close it; a dead node's too. */
void sim_net_close(sim_net_t *net, int node);
/* Close what is open and free the world; the hash of the run. */
uint64_t sim_net_free(sim_net_t *net);

uint64_t sim_now(const sim_net_t *net);
/* Drive everyone until that time has come. */
void sim_net_run(sim_net_t *net, uint64_t until);
/* Drive until done(user) or until that time; what done() said last. */
bool sim_net_run_until(sim_net_t *net, uint64_t until, bool (*done)(void *user), void *user);

void sim_net_kill(sim_net_t *net, int node);
void sim_net_pause(sim_net_t *net, int node);
void sim_net_resume(sim_net_t *net, int node);
/* The thread of this shard does nothing until then, as if one of its callbacks took so long. */
void sim_net_stall(sim_net_t *net, int node, uint32_t shard, uint64_t until);
/* Can this node's program do anything now? */
static inline bool sim_node_runs(const sim_node_t *node) { return node->rt && !node->dead && !node->paused_at; }
/* How long it was stopped so far. */
uint64_t sim_net_stopped(const sim_net_t *net, int node);

static inline uint64_t sim_below(sim_net_t *net, uint64_t n) { return wefti_rng_below(&net->rng, n); }
/* True in `percent` of 100 cases. */
static inline bool sim_odds(sim_net_t *net, unsigned percent) { return wefti_rng_below(&net->rng, 100) < percent; }

#define sim_bad(net, ...) wefti_sim_violation((net)->w, __VA_ARGS__)

#endif
