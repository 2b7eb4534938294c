/* tests/simnet/world.h - what the files of the simulator share. Nobody else includes it.
 *
 * Three kinds of thing wait for their time:
 *   packets   on a channel, in order: into a lane or a wire, from one host to another;
 *   events    alone, in no order among each other: acknowledgements, `space`, steps of a pull, wires that open. They belong to
 *             the host whose progress runs them, or to the kernel (host NULL), which runs whenever time passes;
 *   closing   lanes that were closed. Progress takes them down step by step, without time passing, because closing a runtime
 *             drives it until it is down, and nobody moves the clock meanwhile.
 *
 * Objects stay until the world goes, in state GONE, so that a call on one that is gone is seen instead of guessed at. The
 * simulator's own memory does not come from base/alloc.h: an allocation failure is an event of the run, to be injected where the
 * door has a status for it. */
#ifndef WEFTI_SIM_WORLD_H
#define WEFTI_SIM_WORLD_H

#include <pthread.h>

#include "base/list.h"
#include "fabric/pulse.h"
#include "simnet/simnet.h"

typedef struct sim_host sim_host_t;
typedef struct sim_lane sim_lane_t;
typedef struct sim_wire sim_wire_t;
typedef struct sim_offer sim_offer_t;
typedef struct sim_reg sim_reg_t;
typedef struct sim_map sim_map_t;

/*    code          what it says, with a and b */
#define SIM_TRACE_LIST(X) \
    X(NOTE,         "") \
    X(ADVANCE,      "time passes") \
    X(KILL,         "killed") \
    X(PAUSE,        "paused") \
    X(RESUME,       "resumed") \
    X(CUT,          "link from here to a: cut if b") \
    X(ACCEPTOR,     "acceptor opened on port a") \
    X(ACCEPTOR_CLOSE, "acceptor closed on port a") \
    X(DIAL,         "wire a dials port b") \
    X(SYN,          "wire a reached, status b") \
    X(ACCEPT,       "wire a accepted, the other end is b") \
    X(OPENED,       "wire a opened") \
    X(WIRE_SEND,    "wire a sends b bytes") \
    X(WIRE_MSG,     "wire a gets b bytes") \
    X(WIRE_AWAY,    "wire a leaves for another fabric of its process") \
    X(WIRE_ADOPT,   "wire a goes on as wire b") \
    X(WIRE_END,     "wire a ended, status b") \
    X(SILENT,       "wire a: its peer has been silent for its bound") \
    X(WIRE_CLOSE,   "wire a closed here") \
    X(LANE_NEW,     "lane a made") \
    X(LANE_JOIN,    "lane a joined to lane b") \
    X(LANE_CLOSE,   "lane a closed here") \
    X(LANE_CLOSED,  "lane a is down") \
    X(LANE_FAIL,    "lane a failed, status b") \
    X(LANE_BREAK,   "lane a breaks") \
    X(FULL,         "lane a has no space for b bytes") \
    X(SPACE,         "lane a has space") \
    X(COMMIT,       "lane a sends a record of b bytes") \
    X(RECORD,       "lane a gets a record of b bytes") \
    X(ANNOUNCE,     "lane a announces offer b") \
    X(ANNOUNCED,    "lane a is offered b") \
    X(WITHDRAWN,    "offer a withdrawn") \
    X(PULL,         "offer a is pulled, b bytes") \
    X(PULL_STEP,    "offer a: b bytes copied") \
    X(PULL_DONE,    "offer a pulled, status b") \
    X(REFUSE,       "offer a refused, taken if b") \
    X(ANNOUNCE_DONE,"offer a is done for its sender, status b") \
    X(LEND,         "offer a is lent, status b") \
    X(UNLEND,       "offer a is given back by its borrower") \
    X(FAIL_NOW,     "call of kind a fails with b") \
    X(REGISTER,     "range a registered, b bytes") \
    X(UNREGISTER,   "range a unregistered") \
    X(EXPOSE,       "lane a: a map_handle for b bytes") \
    X(MAP,          "mapping a made, b bytes") \
    X(UNMAP,        "mapping a undone") \
    X(FABRIC_CLOSE, "fabric closed")

enum {
#define SIM_TRACE_ENUM(code, text) SIM_T_##code,
    SIM_TRACE_LIST(SIM_TRACE_ENUM)
#undef SIM_TRACE_ENUM
    SIM_T_N
};

typedef struct sim_trace {
    uint64_t at, a, b;
    const char *text; /* of a NOTE */
    int16_t host;
    uint16_t code;
} sim_trace_t;
#ifndef SIM_TRACE_KEPT
#define SIM_TRACE_KEPT 256 /* more for a replay: -DSIM_TRACE_KEPT=100000 */
#endif

/* --- things under way --------------------------------------------------------------------------------------------- */

enum { SIM_PK_RECORD, SIM_PK_OFFER, SIM_PK_BREAK, SIM_PK_MESSAGE, SIM_PK_END };

typedef struct sim_packet {
    wefti_list_t link;
    uint64_t at;
    sim_offer_t *offer;
    weft_status_t why;
    uint32_t n, cost; /* bytes; what it takes of the ring */
    uint8_t kind;
    _Alignas(8) uint8_t bytes[];
} sim_packet_t;

typedef struct sim_channel {
    wefti_list_t link; /* on the host's `channels` while something is queued */
    wefti_list_t queue;
    sim_host_t *from, *to;
    sim_lane_t *lane; /* the receiving one */
    sim_wire_t *wire; /* or this */
    uint64_t last_at;
    size_t cost; /* of what is queued */
} sim_channel_t;

enum {
    SIM_EV_SYN, SIM_EV_ACCEPT, SIM_EV_OPENED, SIM_EV_WIRE_END, /* wires */
    SIM_EV_TICK, SIM_EV_BEAT,                                  /* heartbeats of wires: the kernel's, whoever runs */
    SIM_EV_SPACE, SIM_EV_LANE_FAIL,                             /* lanes */
    SIM_EV_PULL, SIM_EV_ACK                                    /* offers */
};

typedef struct sim_event {
    wefti_list_t link;
    uint64_t at;
    sim_host_t *host; /* whose progress runs it; NULL: the kernel */
    sim_host_t *via;  /* it comes from there and needs the link; NULL: it does not */
    sim_lane_t *lane;
    sim_wire_t *wire;
    sim_offer_t *offer;
    weft_status_t status;
    uint8_t kind;
} sim_event_t;

/* --- objects ------------------------------------------------------------------------------------------------------ */

/* A range of memory that peers may map, as far as they believe. */
typedef struct sim_share {
    wefti_list_t link;
    const uint8_t *base;
    size_t n;
    uint64_t id;
} sim_share_t;

/* A payload that was lent: the borrower sees this copy. */
typedef struct sim_loan {
    wefti_list_t link;
    sim_offer_t *offer;
    uint64_t hash;
    uint8_t *bytes;
} sim_loan_t;

struct sim_host {
    wefti_fabric_t base;
    wefti_transport_t transport;
    wefti_sim_t *world;
    unsigned index;
    char name[32];
    sim_host_t *process; /* the first fabric of its process: itself, unless it is a shard's */
    bool dead, paused, closed, armed, in_progress, stalled;
    wefti_rng_t secrets; /* for random() */
    wefti_list_t channels, events, closing;
    wefti_list_t acceptors, wires, lanes; /* open ones */
    sim_reg_t *regs;                  /* all there ever were, newest first */
    unsigned registered;              /* of them, now */
    sim_map_t *maps;                  /* likewise */
    unsigned mapped;
    unsigned transfers;
    wefti_list_t shares;         /* under share_lock, since any thread shares */
    pthread_mutex_t share_lock;
    uint64_t last_share;
    wefti_list_t loans;          /* what it has borrowed */
    uint64_t delivered;
    struct {
        weft_status_t status;
        unsigned times;
    } forced[WEFTI_SIM_AT_N];
};

struct wefti_acceptor {
    wefti_list_t link; /* of its host while open, then of the world's graveyard */
    sim_host_t *host;
    wefti_uri_t uri;
    char text[320];
    void *user;
    unsigned backlog, pending;
    bool gone;
};

/* AWAY: it is on its way between two fabrics of a process, a descriptor that the library has */
enum { SIM_WIRE_DIALING, SIM_WIRE_PENDING, SIM_WIRE_OPEN, SIM_WIRE_AWAY, SIM_WIRE_GONE };

struct sim_wire {
    wefti_wire_t base;
    wefti_list_t link;
    sim_host_t *host;
    sim_wire_t *peer;
    wefti_acceptor_t *acceptor; /* where it arrived */
    sim_channel_t in;
    wefti_list_t early; /* sent before it was connected */
    wefti_uri_t to;
    uint64_t since, patience;
    uint32_t id;
    uint8_t state;
    bool told_opened;
    wefti_pulse_t pulse;
    bool beats, by_hand; /* the pulse ticks; only wire_beat_once() sends */
    bool heard;          /* a beat arrived since the last tick */
    bool beat_flying;    /* one of ours is on its way */
};

enum { SIM_LANE_NEW, SIM_LANE_JOINED, SIM_LANE_CLOSING, SIM_LANE_GONE };

struct sim_lane {
    wefti_lane_t base;
    wefti_list_t link, closing_link;
    sim_host_t *host;
    sim_lane_t *peer;     /* what we send arrives there */
    sim_lane_t *feeder;   /* who sends to us; set before `peer` when the other side joins first */
    sim_channel_t in;
    sim_packet_t *reserved;
    size_t reserved_n;
    wefti_list_t sent;    /* offers of ours not done */
    wefti_list_t offered; /* offers to us neither pulled nor refused */
    wefti_list_t pulling; /* and those being pulled */
    uint64_t token;
    size_t ring;
    uint32_t id;
    uint8_t state;
    bool early;           /* records arrive before we are joined */
    bool broken;          /* nothing sent arrives any more */
    bool failed;          /* lane_failed was called or is on its way */
    bool want_space, space_coming;
};

/* An announcement, seen by both ends. */
struct sim_offer {
    wefti_pull_t base;
    wefti_list_t sent_link, recv_link, all_link;
    sim_lane_t *from, *to;
    uint32_t id;
    /* the sender's side */
    wefti_xfer_t *x;
    const weft_iov_t *iov;
    size_t iov_n;
    uint64_t total, hash;
    bool sent_done;      /* done was called: its memory may not be looked at */
    bool shared;         /* in one piece, in a range that is shared */
    /* the receiver's side */
    enum { SIM_OFFER_FLYING, SIM_OFFER_THERE, SIM_OFFER_PULLING, SIM_OFFER_OVER } state;
    wefti_xfer_t *pull_x;
    const weft_iov_t *pull_iov;
    size_t pull_iov_n;
    uint64_t want, have;
    bool lent;           /* once: its bytes are looked at again when it is refused */
};

struct wefti_sim {
    uint64_t seed, now;
    wefti_rng_t rng;
    sim_host_t *hosts[WEFTI_SIM_HOSTS];
    unsigned n_hosts;
    wefti_sim_link_t links[WEFTI_SIM_HOSTS][WEFTI_SIM_HOSTS];
    bool cut[WEFTI_SIM_HOSTS][WEFTI_SIM_HOSTS];
    bool one_memory[WEFTI_SIM_HOSTS][WEFTI_SIM_HOSTS]; /* they can map each other's; symmetric */
    bool payloads_change;
    wefti_sim_faults_t faults;
    wefti_list_t kernel; /* events */
    wefti_list_t away; /* wires that are AWAY */
    wefti_list_t grave_acceptors, grave_wires, grave_lanes, offers;
    uint32_t next_wire, next_lane, next_offer;
    uint16_t next_port;
    sim_lane_t **lanes; /* by id - 1 */
    size_t lanes_cap;
    unsigned idle_calls; /* progress calls since time last passed */
    const sim_host_t *idler; /* whoever was driven last, */
    unsigned idles;          /* and how often in a row for nothing */
    void (*on_idle)(void *user);
    void *idle_user;
    void (*before_step)(wefti_fabric_t *f, void *user);
    void *before_user;
    uint64_t hash, trace_n;
    sim_trace_t trace[SIM_TRACE_KEPT];
    void (*on_violation)(uint64_t seed, const char *what);
};

/* --- world.c and run.c -------------------------------------------------------------------------------------------- */

void *wefti_sim_mem(size_t n); /* zeroed, never NULL */
uint64_t wefti_sim_delay(sim_host_t *from, sim_host_t *to);
/* Is this call to fail? WEFT_OK if not. `statuses` are those to choose from, ended by WEFT_OK. */
weft_status_t wefti_sim_fault(sim_host_t *h, int at, uint32_t ppm, const weft_status_t *statuses);
void wefti_sim_trace(wefti_sim_t *w, const sim_host_t *h, int code, uint64_t a, uint64_t b);

void wefti_sim_channel_init(sim_channel_t *c, sim_host_t *from, sim_host_t *to);
void wefti_sim_channel_push(sim_channel_t *c, sim_packet_t *pk);
sim_packet_t *wefti_sim_channel_pop(sim_channel_t *c);
/* Lose some number of the packets that were pushed last, by chance: none, some or all. */
void wefti_sim_channel_lose_tail(sim_channel_t *c);
void wefti_sim_channel_purge(sim_channel_t *c);
sim_packet_t *wefti_sim_packet(int kind, const void *bytes, size_t n);
void wefti_sim_packet_free(sim_packet_t *pk);

unsigned wefti_sim_progress(wefti_fabric_t *f, bool idle);
sim_event_t *wefti_sim_event(wefti_sim_t *w, sim_host_t *host, sim_host_t *via, int kind, uint64_t at);

static inline bool sim_chance(wefti_sim_t *w, uint32_t ppm) { return ppm && wefti_rng_below(&w->rng, 1000000) < ppm; }
static inline uint64_t sim_below(wefti_sim_t *w, uint64_t n) { return wefti_rng_below(&w->rng, n); }
static inline sim_host_t *sim_host_of(const wefti_fabric_t *f) { return (sim_host_t *)(uintptr_t)f; }
/* The fabrics of the process of host h, one after the other. */
#define sim_each_fabric(i, h) \
    for (unsigned i = 0; i < (h)->world->n_hosts; i++) \
        if ((h)->world->hosts[i]->process == (h)->process)
static inline const wefti_fabric_up_t *sim_up(const sim_host_t *h) { return h->base.up; }
static inline bool sim_linked(const sim_host_t *from, const sim_host_t *to) { return !from->world->cut[from->index][to->index]; }

/* --- wires.c ------------------------------------------------------------------------------------------------------ */

extern const wefti_fabric_ops_t wefti_sim_fabric_ops; /* in world.c, made of these */
weft_status_t wefti_sim_acceptor_open(wefti_fabric_t *f, const wefti_uri_t *uri, struct wefti_guard *guard, unsigned backlog,
                                      void *user, wefti_acceptor_t **acceptor_out);
const char *wefti_sim_acceptor_uri(wefti_acceptor_t *acceptor);
void wefti_sim_acceptor_close(wefti_acceptor_t *acceptor);
weft_status_t wefti_sim_wire_dial(wefti_fabric_t *f, const wefti_uri_t *uri, struct wefti_guard *guard, const char *source,
                                  void *user, wefti_wire_t **wire_out);
weft_status_t wefti_sim_wire_send(wefti_wire_t *wire, const void *bytes, size_t n);
void wefti_sim_wire_close(wefti_wire_t *wire);
weft_status_t wefti_sim_wire_beat(wefti_wire_t *wire, uint64_t every_ns, bool by_hand);
void wefti_sim_wire_watch(wefti_wire_t *wire, uint64_t bound_ns);
void wefti_sim_wire_beat_once(wefti_wire_t *wire);
void wefti_sim_beat_event(sim_event_t *ev);
sim_wire_t *wefti_sim_wire_of(wefti_wire_t *base, const char *what); /* a violation if it is closed */
void wefti_sim_wire_end_peer(sim_wire_t *wire, weft_status_t why);   /* the other end learns that this one is no more */
void wefti_sim_wire_event(sim_event_t *ev);
void wefti_sim_wire_setup(sim_wire_t *wire, sim_host_t *h, int state);
void wefti_sim_wire_gone(sim_wire_t *wire);
void wefti_sim_wire_packet(sim_wire_t *wire, sim_packet_t *pk);
void wefti_sim_wires_die(sim_host_t *h);

/* --- shards.c ------------------------------------------------------------------------------------------------------ */

/* It arrived. True: the library took it to another fabric. */
bool wefti_sim_wire_elsewhere(sim_wire_t *wire, const char *from);
weft_status_t wefti_sim_wire_adopt(wefti_fabric_t *f, const wefti_loose_t *loose, uint64_t source, wefti_wire_t **wire_out);
bool wefti_sim_wire_release(wefti_wire_t *wire, wefti_loose_t *loose_out);
void wefti_sim_wire_drop(wefti_fabric_t *f, const wefti_loose_t *loose);
/* Wires between two fabrics: how many this process has; and it dies. */
unsigned wefti_sim_wires_away(const sim_host_t *h);
void wefti_sim_wires_away_die(sim_host_t *h);

/* --- regs.c ------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_sim_mem_register(wefti_fabric_t *f, void *base, size_t n, void **reg_out);
void wefti_sim_mem_unregister(wefti_fabric_t *f, void *reg);
void wefti_sim_regs_free(sim_host_t *h);

/* --- maps.c ------------------------------------------------------------------------------------------------------- */

size_t wefti_sim_expose(wefti_lane_t *lane, int fd, size_t n, void *map_handle);
weft_status_t wefti_sim_map(wefti_lane_t *lane, const void *map_handle, size_t map_handle_n, size_t n, void **ptr_out);
void wefti_sim_unmap(void *ptr, size_t n);
void wefti_sim_maps_free(sim_host_t *h);

/* --- lanes.c ------------------------------------------------------------------------------------------------------ */

extern const wefti_transport_ops_t wefti_sim_transport_ops;
void wefti_sim_lane_event(sim_event_t *ev);
void wefti_sim_lane_packet(sim_lane_t *lane, sim_packet_t *pk);
bool wefti_sim_lane_step(sim_lane_t *lane); /* one step of a lane that is being closed */
void wefti_sim_lane_break(sim_lane_t *lane, weft_status_t why);
void wefti_sim_lanes_die(sim_host_t *h);
void wefti_sim_lane_usable(sim_lane_t *lane, const char *what); /* a violation if it is not */
bool wefti_sim_lane_full(sim_lane_t *lane, size_t cost);        /* no space, and `space` will come */
void wefti_sim_lane_put(sim_lane_t *lane, sim_packet_t *pk, size_t cost);

/* --- offers.c ----------------------------------------------------------------------------------------------------- */

weft_status_t wefti_sim_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                 uint64_t total, wefti_xfer_t *x);
weft_status_t wefti_sim_pull(wefti_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
void wefti_sim_refuse(wefti_pull_t *p, bool taken);
weft_status_t wefti_sim_lend(wefti_pull_t *p, const void **ptr_out, void **lent_out);
void wefti_sim_unlend(wefti_transport_t *transport, void *lent);
weft_status_t wefti_sim_share(wefti_fabric_t *f, void *base, size_t n, int fd, uint64_t *id_out);
void wefti_sim_unshare(wefti_fabric_t *f, uint64_t id);
void wefti_sim_offer_event(sim_event_t *ev);
void wefti_sim_offer_arrives(sim_lane_t *lane, sim_packet_t *pk);
bool wefti_sim_offers_step(sim_lane_t *lane); /* let go of one transfer of a lane that is being closed; false: none left */
/* May the event run now? Pulls wait for their sender. */
bool wefti_sim_pull_can_run(const sim_offer_t *o);

#endif
