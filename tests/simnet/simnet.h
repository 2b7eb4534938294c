/* tests/simnet/simnet.h - a network of several hosts in one process, with one seed and virtual time.
 *
 * A world has hosts; each host is one fabric (one runtime stands on it) with one transport, kind 3, "sim". Nothing happens by
 * itself: the harness lets a host run (progress, or the runtime's progress) and moves time. Every choice (delays, interleavings,
 * faults) comes from the seed, none from a clock or an address, so the same seed and the same calls give the same run.
 *
 * The world also watches whoever uses the door: a call on a closed thing, a payload changed while it was announced or lent,
 * something left open or mapped at close. A violation prints the seed and the last events, and aborts (or calls the harness'
 * hook). tests/sim/fabric_order.c holds the world itself to the promises of fabric.h. */
#ifndef WEFTI_SIM_H
#define WEFTI_SIM_H

#include "base/rng.h"
#include "fabric/fabric.h"

typedef struct wefti_sim wefti_sim_t;

#define WEFTI_SIM_HOSTS 32
#define WEFTI_SIM_TRANSPORT 3

/* --- the world ---------------------------------------------------------------------------------------------------- */

weft_status_t wefti_sim_new(uint64_t seed, wefti_sim_t **world_out);
/* Every fabric has been closed by then: one that has not is a violation. */
void wefti_sim_free(wefti_sim_t *w);

/* A new host. It is reached as tcp://NAME:port; unix:// names are shared by all hosts. WEFT_ERR_LIMIT, WEFT_ERR_NOMEM. */
weft_status_t wefti_sim_host(wefti_sim_t *w, const char *name, wefti_fabric_t **fabric_out);

/* One more fabric of the same process, for a shard of the runtime on `head`. It has no acceptors. What happens to one fabric of a
 * process (it is killed, paused, cut off) happens to all of them. */
weft_status_t wefti_sim_shard(wefti_fabric_t *head, wefti_fabric_t **fabric_out);

/* --- time --------------------------------------------------------------------------------------------------------- */

uint64_t wefti_sim_now(const wefti_sim_t *w);
/* When the network next has something for a host that runs (neither dead nor paused): now or earlier if it has something
 * already, WEFT_FOREVER if nothing is under way. */
uint64_t wefti_sim_next(wefti_sim_t *w);
/* Does progress() of this host have something to deliver now? */
bool wefti_sim_ready(wefti_fabric_t *f);
/* Let time pass until `to`, which is not in the past. Delivers nothing: that is for progress(). */
void wefti_sim_advance(wefti_sim_t *w, uint64_t to);
/* Move time to the next event of the network and say whether there was one. For harnesses without timers. */
bool wefti_sim_step(wefti_sim_t *w);

/* Who drives a host in a loop and finds nothing to do lets time pass without saying so: closing a runtime does. After some such
 * calls in a row fn is called, once per call, from inside that progress(): to let other hosts run, and to move time. Without
 * fn, time moves by itself then, and nobody else runs. */
void wefti_sim_on_idle(wefti_sim_t *w, void (*fn)(void *user), void *user);

/* Called before each progress(), with the fabric that is driven: to let others run between two steps of a loop. */
void wefti_sim_before_step(wefti_sim_t *w, void (*fn)(wefti_fabric_t *f, void *user), void *user);

/* --- what happens to hosts and links --------------------------------------------------------------------------------- */

/* The process dies: peers see its wires close after a while (if they can be reached), pulls from it fail, what it had sent
 * arrives only in part. Its fabric delivers nothing more, but lets go of everything that is closed on it, so that the runtime
 * on it can be closed. */
void wefti_sim_kill(wefti_fabric_t *f);
/* Stopped: it delivers nothing, its peers see silence; its kernel still accepts connections. */
void wefti_sim_pause(wefti_fabric_t *f);
void wefti_sim_resume(wefti_fabric_t *f);
/* The thread of this one fabric gets no processor: it delivers nothing, while its process lives and its heartbeats go on. */
void wefti_sim_stall(wefti_fabric_t *f, bool stalled);
bool wefti_sim_alive(const wefti_fabric_t *f);
bool wefti_sim_paused(const wefti_fabric_t *f);

/* Nothing travels from one to the other until it is mended; nothing is lost, only late. */
void wefti_sim_cut(wefti_fabric_t *from, wefti_fabric_t *to, bool cut);
void wefti_sim_partition(wefti_fabric_t *a, wefti_fabric_t *b);
void wefti_sim_heal(wefti_fabric_t *a, wefti_fabric_t *b);

typedef struct wefti_sim_link {
    uint64_t min_ns, max_ns; /* usual delay */
    uint32_t slow_ppm;       /* how often it takes up to slow_ns instead */
    uint64_t slow_ns;
} wefti_sim_link_t;
void wefti_sim_link(wefti_fabric_t *from, wefti_fabric_t *to, const wefti_sim_link_t *link);

/* Break every lane (with `why`) or every wire between two hosts. */
void wefti_sim_break_lanes(wefti_fabric_t *a, wefti_fabric_t *b, weft_status_t why);
void wefti_sim_break_wires(wefti_fabric_t *a, wefti_fabric_t *b);

/* Can these two (or one with itself) map each other's memory? By the seed, for each pair, unless it is said; what is mapped
 * stays. */
void wefti_sim_shares_memory(wefti_fabric_t *a, wefti_fabric_t *b, bool yes);
/* Payloads may change while they are announced, and what they are pulled into while they are: both lie in memory that others
 * write to. That is no violation any more, and a pull that fails leaves the bytes it had got, not just any. */
void wefti_sim_payloads_change(wefti_sim_t *w);

/* How the transport behaves where the real ones differ. */
typedef enum wefti_sim_style {
    WEFTI_SIM_SHM = 1, /* a lost peer is not noticed, its ring stays full; a stopped peer's memory can be read */
    WEFTI_SIM_UCX = 2  /* a lost peer is noticed, sometimes; pulls need a peer that runs */
} wefti_sim_style_t;

/* Faults by chance, in millionths per occasion. All zero in a new world. */
typedef struct wefti_sim_faults {
    wefti_sim_style_t style;   /* by the seed unless set before the first lane */
    uint32_t refuse;           /* a dial is refused */
    uint32_t unreachable;      /* a dial ends with UNREACHABLE or TIMEOUT */
    uint32_t dial_fails;       /* wire_dial() fails at once, with NOMEM or LIMIT */
    uint32_t acceptor_fails;       /* acceptor_open() fails at once */
    uint32_t wire_send_fails;  /* wire_send() fails with NOMEM */
    uint32_t wire_breaks;      /* per message sent on a wire */
    uint32_t wire_tail_lost;   /* per wire_close(): what was queued does not all arrive */
    uint32_t adopt_fails;      /* wire_adopt() fails with NOMEM or LIMIT, and the wire is closed */
    uint32_t release_fails;    /* wire_release() gives false */
    uint32_t lane_new_fails;   /* NOMEM, LIMIT, SYSTEM */
    uint32_t lane_connect_fails; /* UNREACHABLE, NOMEM, SYSTEM */
    uint32_t lane_breaks;      /* per record or announcement */
    uint32_t no_space;          /* reserve() gives NULL or announce() AGAIN though there is space */
    uint32_t false_space;       /* `space` that nobody asked for, per record delivered */
    uint32_t pull_fails;       /* pull() fails at once with NOMEM */
    uint32_t pull_slow;        /* a pull takes up to pull_slow_ns */
    uint64_t pull_slow_ns;
    uint32_t mem_register_fails; /* NOMEM, SYSTEM */
    uint32_t map_fails;        /* NOMEM, LIMIT, UNREACHABLE */
} wefti_sim_faults_t;
wefti_sim_faults_t *wefti_sim_faults(wefti_sim_t *w);

/* Make the next `times` calls of one kind on this host fail with a chosen status. */
enum {
    WEFTI_SIM_AT_ACCEPTOR_OPEN, WEFTI_SIM_AT_WIRE_DIAL, WEFTI_SIM_AT_WIRE_SEND, WEFTI_SIM_AT_LANE_NEW, WEFTI_SIM_AT_LANE_CONNECT,
    WEFTI_SIM_AT_PULL, WEFTI_SIM_AT_ACCEPT, /* the dialler sees the status */
    WEFTI_SIM_AT_MEM_REGISTER, WEFTI_SIM_AT_MAP, WEFTI_SIM_AT_ADOPT,
    WEFTI_SIM_AT_N
};
void wefti_sim_fail_next(wefti_fabric_t *f, int at, weft_status_t status, unsigned times);

/* --- the record of a run ------------------------------------------------------------------------------------------ */

/* A hash over everything that happened so far: equal for equal runs. */
uint64_t wefti_sim_hash(const wefti_sim_t *w);
uint64_t wefti_sim_seed(const wefti_sim_t *w);
/* Put a line of the harness into the trace (`text` is kept by pointer: a literal). */
void wefti_sim_note(wefti_sim_t *w, int host, const char *text, uint64_t a, uint64_t b);
/* The last events, oldest first, to stderr. */
void wefti_sim_dump(const wefti_sim_t *w);
/* Report a broken promise. Does not return. */
void wefti_sim_violation(wefti_sim_t *w, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
/* Called by a violation after the trace was printed, instead of abort(); must not return. */
void wefti_sim_on_violation(wefti_sim_t *w, void (*fn)(uint64_t seed, const char *what));

/* What there is now, for tests. */
typedef struct wefti_sim_counts {
    unsigned acceptors, wires, lanes, transfers; /* open at the host */
    unsigned shares, loans;                  /* ranges it shares; payloads it has borrowed */
    uint64_t delivered;                      /* events handed to the host so far */
    unsigned registered;                     /* ranges registered */
    unsigned mapped;                         /* mappings of peers' memory */
} wefti_sim_counts_t;
void wefti_sim_count(wefti_fabric_t *f, wefti_sim_counts_t *counts_out);

#endif
