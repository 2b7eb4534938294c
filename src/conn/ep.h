/* conn/ep.h - what the files of this room share: the room, endpoints, links, listeners.
 *
 *   endpoint  what the program holds: an id, a state, hooks. It lives from open or accept until its close has completed; its
 *             memory stays an endpoint, GONE (base/handle.h).
 *   link      one connection, or one attempt at one: a wire, the handshake over it, the lane that came of it. An endpoint has at
 *             most one, and each reconnect makes a new one. An accepted wire is a link without an endpoint until its peer has
 *             proved itself.
 *   listener  acceptors, and the links that arrived there and are still in their hello.
 *
 * States of an endpoint (pub.state), and who moves it, always on the driver:
 *
 *     CONNECTING --(ep.c: the peer's UP arrived)--> UP
 *     CONNECTING --(dial.c: no address answered)--> FAILED
 *     UP --(ep.c: wire or lane lost, silence, protocol)--> FAILED --(ep.c: the hook says so)--> RECONNECTING --> UP
 *     UP --(close.c: CLOSE arrived)--> PEER_CLOSED
 *     any --(close.c: closed or aborted here)--> CLOSING --> GONE
 *
 * Nothing here is freed, and no hook is called, from inside an upcall, a traffic's call, or an API call: those only mark and call
 * wefti_conn_kick(); the work runs from the list of completions (conn.c), behind the completions it must follow. */
#ifndef WEFTI_CONN_EP_H
#define WEFTI_CONN_EP_H

#include <pthread.h>

#include "base/alloc.h"
#include "base/map.h"
#include "base/slots.h"
#include "base/spares.h"
#include "conn/auth.h"
#include "conn/conn.h"
#include "conn/hello.h"
#include "conn/identity.h"

typedef struct wefti_conn wefti_conn_t;
typedef struct wefti_epx wefti_epx_t;
typedef struct wefti_link wefti_link_t;

/* --- payloads -------------------------------------------------------------------------------------------------------------- */

/* Of the runtime: what payload.c keeps to use again, and names. */
typedef struct wefti_relay wefti_relay_t;

typedef struct wefti_payloads {
    wefti_spares_t spare_outs, spare_ins, spare_chunks, spare_directs;
    wefti_list_t lost_outs, lost_ins; /* whose endpoint is down or gone, and which the fabric still has */
    wefti_list_t relays_due;     /* wefti_relay_t.due */
    wefti_list_t bounce_wait;    /* wefti_chunks_t.wait, of those out that wait for a bounce buffer */
    wefti_list_t taken_back;     /* outs that end in the next work, when their lane is closed: owes_link */
    wefti_slots_t out_ids;       /* of what we announced, and tell the peer */
    wefti_slots_t in_ids;        /* of pulls in chunks: we tell the peer to put it on them */
    uint32_t stages[2];          /* out: to senders, to receivers */
    wefti_list_t stage_wait[2];  /* who waits for one */
    uint64_t direct_pulls;       /* payloads copied out of a peer's device memory */
    uint64_t relayed, bounced;   /* chunks sent through shared memory; through device memory */
    uint64_t staged;             /* chunks of a device's payloads here that went through a staging buffer, either way */
} wefti_payloads_t;

/* Of an endpoint. */
typedef struct wefti_ep_payloads {
    wefti_list_t outs, ins;          /* announced by us; waiting at the peer or under way from it */
    wefti_list_t out_owes, in_owes;  /* those of them with something that waits for space on the lane */
    struct wefti_relay *relay_out, *relay_in; /* NULL: none */
    uint32_t bounces;                /* out: chunks of it that are in bounce buffers */
    bool relay_asked;                /* out: it was made, or could not be */
    bool relay_owes, relay_answers;  /* RELAY, RELAY_ANSWER waits for space on the lane */
} wefti_ep_payloads_t;

void wefti_payloads_init(wefti_payloads_t *all);
void wefti_payloads_free(wefti_payloads_t *all);
void wefti_payload_new(wefti_epx_t *ep);                  /* with the endpoint */
void wefti_payload_down(wefti_epx_t *ep);                 /* its lane is about to be closed; the traffic knows */
void wefti_payload_free(wefti_epx_t *ep);                 /* nothing is left of them, but in a forked child */
void wefti_payload_space(wefti_epx_t *ep);                /* the lane has space again */
/* Upcalls that concern payloads: the link delivers. */
void wefti_payload_announced(wefti_epx_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, uint64_t total, wefti_pull_t *p);
void wefti_payload_withdrawn(wefti_pull_t *p);
/* one of conn's own; false: none of payload.h's */
bool wefti_payload_record(wefti_epx_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n);
void wefti_payload_work(wefti_conn_t *conn);              /* the work's */

/* The payloads that come in, as payload.c, chunk_in.c and direct.c see them. */
enum {
    WEFTI_IN_WAITING, WEFTI_IN_LENT, WEFTI_IN_CHUNKS, WEFTI_IN_CHUNK /* an announcement of one */, WEFTI_IN_DIRECT,
    WEFTI_IN_OVER
};
enum { WEFTI_OWES_CHUNKS = 1, WEFTI_OWES_TAKEN = 2, WEFTI_OWES_REFUSED = 4, WEFTI_OWES_EMPTIED = 8, WEFTI_OWES_FAILED = 16 };
wefti_in_t *wefti_in_new(wefti_epx_t *ep, uint64_t total, wefti_pull_t *p); /* NULL: no memory */
void wefti_in_free(wefti_in_t *in);
/* Send what is owed to the peer about it; what finds no space waits for it. One that is over and owes nothing is freed. */
void wefti_in_flush(wefti_in_t *in);

/* --- the room, one per runtime --------------------------------------------------------------------------------------------- */

struct wefti_conn {
    wefti_conn_pub_t pub; /* first, so that the two pointers are one */
    weft_runtime_t *rt;
    wefti_fabric_t *fabric;
    const wefti_traffic_t *by_kind[256]; /* of a record's first byte */
    const wefti_traffic_t *traffic[WEFTI_TRAFFIC_N];
    wefti_list_t eps;       /* every started endpoint */
    wefti_list_t links;     /* every link not yet freed */
    wefti_list_t dead;      /* links to be freed by the work */
    wefti_list_t listeners; /* every listener not yet freed */
    wefti_list_t joining, waiting, spent; /* links, by `turn`: trunk.c */
    _Atomic uint32_t n_newcomers; /* links in their hello, at all of them; the head's counts those of all shards */
    wefti_list_t work;      /* endpoints to be looked at by the work */
    weft_op_t work_op;
    bool work_queued;
    bool shut;              /* the runtime closes: nothing new begins */
    uint64_t shut_at;
    wefti_timer_t beat;
    uint64_t beat_at;       /* when it fires; 0: it does not */
    uint8_t uuid[WEFTI_UUID_SIZE], host[WEFTI_UUID_SIZE];
    uint8_t nonce_key[32];  /* of all shards of a runtime: how they know each other's nonces */
    uint64_t n_failed, n_reconnects;
    wefti_count_t gone[WEFTI_TRAFFIC_N]; /* of endpoints that are no more */
    weft_listener_t *own;   /* behind weft_runtime_address() */
    char *own_uris;
    wefti_payloads_t payloads;
    wefti_rechecks_t rechecks;
    bool watches;           /* identity.c is one of them */
    bool keys_due;          /* TLS has not been told yet of the keys that are new: there was no memory */
    uint64_t guard_changes; /* how often the files of guards were others when they were last looked at */
    struct wefti_rules *rules; /* policy.c: the head's, of all shards */
    uint64_t rules_seen;       /* which of them the endpoints here were judged by */
    _Atomic uint64_t refused;  /* by the policy */

    pthread_mutex_t lock;   /* of what follows: any thread opens, finds and closes */
    wefti_slots_t slots;
    wefti_map_t cache;      /* hash of key -> first endpoint of a chain */
    char reach[WEFTI_REACH_MAX]; /* see wefti_conn_reach() */
};

static inline wefti_conn_t *wefti_conn_of(weft_runtime_t *rt) { return rt->room_state[WEFTI_ROOM_CONN]; }

/* Have the work run soon. Driver. */
void wefti_conn_kick(wefti_conn_t *conn);
/* Have `run` run on the driver: here, if this thread is or can become it without passing what it posted before, else later.
 * *what is copied. user_op, if there is one, is begun already; what run() fails with is returned, or ends user_op.
 * WEFT_ERR_NOMEM, _CLOSED: it does not run, and user_op is as before its post. */
typedef struct wefti_conn_call {
    wefti_call_t call; /* carries it through the inbox */
    weft_status_t (*run)(const struct wefti_conn_call *c);
    wefti_epx_t *ep;
    weft_listener_t *listener;
    weft_op_t *user_op;
    bool force;
} wefti_conn_call_t;
weft_status_t wefti_conn_do(weft_runtime_t *rt, const wefti_conn_call_t *what);

/* --- links ----------------------------------------------------------------------------------------------------------------- */

enum {
    WEFTI_LINK_DIALLING = 1, /* dialler: the wire is not open yet */
    WEFTI_LINK_HELLO,        /* dialler: hello sent; listener: none arrived yet */
    WEFTI_LINK_JOIN,         /* dialler: join sent; listener: welcome sent */
    WEFTI_LINK_RISING,       /* lane connected, waiting for the peer's UP over it */
    WEFTI_LINK_UP,
    WEFTI_LINK_LINGER,       /* CLOSE_ACK sent: waiting for the peer to go first, so that it gets it */
    WEFTI_LINK_TRUNK,        /* no endpoint, no lane: it has the wire of several links (trunk.c) */
    WEFTI_LINK_DEAD
};

enum { WEFTI_OWE_UP = 1, WEFTI_OWE_CLOSE = 2, WEFTI_OWE_ACK = 4 }; /* records that found no space yet */

/* The part of a link that is only needed until it is up. */
typedef struct wefti_shake {
    wefti_auth_t auth;
    uint8_t nonce[WEFTI_NONCE_SIZE];
    wefti_key_t key; /* the one that is proved, where the runtime has keys: its own may be others meanwhile */
    uint8_t *hello; /* the dialler's first message: part of the transcript; NULL: not sent, or not needed any more */
    size_t hello_len;
    uint8_t attempt;
    uint8_t transport_at;      /* dialler: next of our transports to try */
    bool got_peer;        /* the peer's hello was accepted */
    bool held;            /* listener: the join waits for the old link of its endpoint to be gone */
    bool alone;           /* dialler: the lane may share nothing; it was tried */
    uint8_t *held_join;
    size_t held_len;
    weft_status_t why_not; /* of the last transport that failed */
    bool in_the_clear;     /* one was left out, since it cannot be encrypted */
    wefti_hello_t peer;    /* last, and its transports are last in it: one that waits has no more of them than it needs */
} wefti_shake_t;

struct wefti_link {
    wefti_epx_t *ep;          /* NULL: none yet, or none any more */
    wefti_conn_t *conn;
    bool is_trunk;            /* it stands for others (trunk.c), and is no connection of its own */
    bool deliver;             /* records go to the traffic */
    uint8_t state;
    uint8_t side;             /* WEFTI_SIDE_* */
    uint8_t owed;
    bool got_up;              /* the peer's UP arrived */
    uint32_t lanes;           /* lanes not yet closed for good: the link stays as long */
    wefti_lane_t *lane;
    wefti_wire_t *wire;
    wefti_shake_t *shake;
    weft_listener_t *listener; /* while it counts against the backlog of one */
    wefti_list_t newcomer;     /* its list, as long */
    uint64_t source;           /* of its wire */
    uint64_t close_count;      /* of CLOSE, while owed */
    uint64_t ack_count;
    uint64_t beat_ns;          /* between two heartbeats; 0: none yet */
    uint64_t beat_due;         /* when our own timer sends the next one; 0: it sends none */
    wefti_timer_t timer;       /* end of patience: hello, connect, linger */
    wefti_list_t all;          /* conn->links or conn->dead */
    char *where;               /* the peer's address as a URI */
    wefti_link_t *trunk;       /* whose wire stands for ours; NULL: our own does */
    wefti_list_t member;       /* its list, as long; of a trunk: that list */
    wefti_list_t turn;         /* conn->joining, ->waiting, ->spent */
    wefti_lane_t *carrier;     /* of a trunk */
    bool guest;                /* its lane was made as a guest of that of another link */
};

wefti_link_t *wefti_link_new(wefti_conn_t *conn, int side, const char *where); /* NULL: no memory */
/* Close what is open of it. It is freed by the work once its lanes are closed; its endpoint is kicked then. */
void wefti_link_drop(wefti_link_t *link);
/* Part it from its endpoint (not if it was ever up: its traffic needs the endpoint until the lane is closed). */
void wefti_link_detach(wefti_link_t *link);
void wefti_link_abandon(wefti_link_t *link); /* both */
/* The link is of no more use, `why`: does what that means in its state. `text` goes to the peer if it can still be told, and to
 * the log. */
void wefti_link_lost(wefti_link_t *link, weft_status_t why, const char *text);
/* The wire that stands for it has ended. */
void wefti_link_wire_ended(wefti_link_t *link, weft_status_t why);
/* Close the lane of a link that lives on. */
void wefti_link_close_lane(wefti_link_t *link);
/* Send one of conn's own records now or as soon as there is space. */
void wefti_link_owe(wefti_link_t *link, uint8_t what);
void wefti_link_flush(wefti_link_t *link);
void wefti_link_free_now(wefti_link_t *link); /* the work's */

/* --- handshake ------------------------------------------------------------------------------------------------------------- */

void wefti_shake_opened(void *link);                                       /* upcall. Dialler: the wire is open */
void wefti_shake_message(wefti_link_t *link, const void *bytes, size_t n); /* a message, in any state before UP */
void wefti_shake_rise(wefti_link_t *link);                                 /* UP if everything is there for it */
void wefti_shake_lane_failed(wefti_link_t *link, weft_status_t why);       /* before UP */
void wefti_shake_unheld(wefti_link_t *link);                               /* the endpoint it wants to resume is free for it */
void wefti_shake_refuse(wefti_link_t *link, weft_status_t status, const char *text);
void wefti_shake_free(wefti_shake_t *shake);
/* Refuse a wire that never gets a link. */
void wefti_shake_turn_away(wefti_conn_t *conn, wefti_wire_t *wire, weft_status_t status, const char *text);


void wefti_shake_join(wefti_link_t *link); /* dialler: our half of a lane over the next transport */

/* half.c: our half of a lane, for the handshake. False: there is none, and why_not says why. */
bool wefti_half_make(wefti_link_t *link, wefti_transport_t *transport, const wefti_hello_transport_t *caps,
                     const wefti_lane_msg_t *join, uint8_t *addr, size_t *n); /* join: the dialler's, on the listener's side */
bool wefti_half_connect(wefti_link_t *link, const uint8_t *addr, size_t n);
void wefti_half_give_up(wefti_link_t *link); /* it comes to nothing: the next one will not be a guest, if this was */

/* trunk.c: links whose lanes share rings, and so a wire. */
bool wefti_trunk_join(wefti_link_t *link);  /* its lane is a guest. False: it cannot be */
void wefti_trunk_leave(wefti_link_t *link); /* its lane is closed. It may be in none */
void wefti_trunk_up(wefti_link_t *link, const uint8_t *uuid); /* of the peer */
void wefti_trunk_lost(wefti_link_t *trunk, weft_status_t why, const char *text); /* text: NULL where the wire ended */
bool wefti_trunk_wait(wefti_link_t *link);  /* dialler: another one is about to have a lane that this one may share */
void wefti_trunk_joins(wefti_link_t *link); /* dialler: its own lane is being made */
void wefti_trunk_work(wefti_conn_t *conn);  /* the work's: those whose turn has come */

/* --- endpoints ------------------------------------------------------------------------------------------------------------- */

enum { WEFTI_CLOSE_NOT = 0, WEFTI_CLOSE_DRAIN, WEFTI_CLOSE_SENT, WEFTI_CLOSE_DOWN };

/* Who the peer is. Strings given to the program stay until the endpoint goes, so a changed peer gets a new one of these. */
typedef struct wefti_peer {
    struct wefti_peer *older;
    uint64_t capabilities;
    const char *transport;
    bool authenticated, same_host;
    char *address, *cipher, *identity; /* behind name */
    bool by_key;                       /* it proved a key in the hello, and of which name, if it is not its certificate's */
    uint8_t key[WEFTI_KEY_PRINT_SIZE];
    char key_name[WEFTI_KEY_NAME_MAX + 1];
    char name[];
} wefti_peer_t;

/* How to reach it: on the dialling side only. */
typedef struct wefti_dial {
    char *source; /* NULL: any */
    char *at;     /* next of uris to try, in this round */
    uint64_t deadline;
    uint64_t pause_ns, first_pause_ns;
    bool has_uuid, once; /* once: opts.no_retry */
    bool nobody;         /* in this round someone may come yet: an address that nobody answered at, or a listener that was too
                            busy */
    uint8_t uuid[WEFTI_UUID_SIZE];
    weft_status_t why; /* of the last address that failed */
    char *cache_key;   /* NULL: not shared */
    wefti_epx_t *cache_next;
    uint32_t shares;   /* under conn->lock */
    bool cached, forgotten; /* forgotten: never to be cached (again) */
    weft_ep_id_t beside;    /* an endpoint of the peer on whose shard it should be; 0: any */
    struct wefti_guard *guard; /* what its wires prove with; NULL: the runtime's */
    char uris[];
} wefti_dial_t;

struct wefti_epx {
    weft_ep_t pub; /* first, so that the two pointers are one */
    void *traffic; /* the memory behind pub.traffic */
    wefti_conn_t *conn;
    wefti_link_t *link;
    wefti_dial_t *dial; /* NULL: it was accepted */
    weft_op_t *close_op;
    wefti_list_t all, work, ready; /* ready: on its listener's list, until taken */
    wefti_list_t connect_ops;
    wefti_timer_t timer; /* close timeout; pause of a connect; pause or patience of a reconnect; look-around of a dying one */
    weft_listener_t *listener; /* accepting side: whom to tell when up, and while it waits there to be taken */
    wefti_link_t *resumer;     /* a link that waits to become ours */
    wefti_ep_payloads_t payloads;
    _Atomic(wefti_peer_t *) peer;
    weft_ep_hooks_t hooks;
    uint64_t reconnect_ns, until;
    uint64_t resume_id;                    /* dialler: what the listener calls us */
    uint64_t close_len;
    uint8_t cookie[WEFTI_COOKIE_SIZE];
    weft_status_t close_status, doom;      /* doom: fail with this at the next work */
    const char *doom_text;
    bool doomed_by_peer;                   /* it broke the protocol; else this side cannot go on */
    uint8_t close_stage;
    bool has_cookie;
    bool starting;     /* opened on another thread; the driver has not begun */
    bool closed_early; /* closed while starting; closed_hard: aborted */
    bool closed_hard;
    bool was_up;
    bool told;         /* the closed hook was called */
    uint8_t tell;      /* works until it is called; 0: not to be */
    bool settled;      /* completions of its operations had their turn before its end */
    bool asking;       /* failed: the hook has not been asked yet */
    bool dying;        /* the wire is gone; looking for what arrived before */
    bool peer_closed;  /* CLOSE arrived while closing */
    bool owner_closed;
    bool unsure;       /* the work asks whether its peer is still welcome */
};

static inline wefti_epx_t *wefti_epx(const weft_ep_t *ep) { return (wefti_epx_t *)(uintptr_t)ep; }
static inline weft_ep_state_t wefti_ep_state(const wefti_epx_t *ep)
{
    return (weft_ep_state_t)atomic_load_explicit(&ep->pub.state, memory_order_relaxed);
}
static inline void wefti_ep_set_state(wefti_epx_t *ep, weft_ep_state_t s) { atomic_store(&ep->pub.state, (uint32_t)s); }

/* For each traffic of the runtime: t, and its index t_i. */
#define EACH_TRAFFIC(ep, t) \
    for (int t##_i = 0; t##_i < WEFTI_TRAFFIC_N; t##_i++) \
        for (const wefti_traffic_t *t = (ep)->conn->traffic[t##_i]; t; t = NULL)

/* A new endpoint with an id, CONNECTING. Any thread; one that is `starting` is hidden from the driver, and may be freed by any
 * thread, until the driver begins it. WEFT_ERR_NOMEM, _LIMIT with detail. */
weft_status_t wefti_ep_new(wefti_conn_t *conn, const weft_ep_hooks_t *hooks, uint64_t reconnect_ns, bool starting,
                           wefti_epx_t **ep_out);
/* Free one that nothing refers to any more. Driver, or the opener before anyone knows of it. */
void wefti_ep_free(wefti_epx_t *ep);
void wefti_ep_kick(wefti_epx_t *ep); /* look at it in the next work */
void wefti_ep_step(wefti_epx_t *ep); /* the work: may free it */
void wefti_ep_down(wefti_epx_t *ep, weft_status_t why, bool discard);
bool wefti_ep_any_sends(wefti_epx_t *ep);
bool wefti_ep_any_busy(wefti_epx_t *ep);
weft_status_t wefti_ep_know_peer(wefti_epx_t *ep, wefti_link_t *link); /* from its hello; WEFT_ERR_NOMEM */
/* Remember why the endpoint is lost or was not reached, as operations on it say it: the detail's number. */
uint64_t wefti_ep_explain(wefti_epx_t *ep, const char *where, weft_status_t why, const char *text);
void wefti_ep_went_up(wefti_epx_t *ep);
void wefti_ep_fail(wefti_epx_t *ep, weft_status_t why);  /* the connection is lost; the hook decides what follows */
void wefti_ep_dying(wefti_epx_t *ep);                    /* the wire ended: fail once what arrived before was seen */
void wefti_ep_give_up(wefti_epx_t *ep, weft_status_t why); /* FAILED for good */
void wefti_ep_connects_done(wefti_epx_t *ep, weft_status_t status);
void wefti_ep_patience(wefti_timer_t *t); /* ep->timer */

/* dial.c */
void wefti_ep_dial_round(wefti_epx_t *ep);                       /* try the addresses from the first on */
void wefti_ep_dial_next(wefti_epx_t *ep, weft_status_t why);     /* one failed */
bool wefti_ep_dial_is_final(weft_status_t why);                  /* trying again cannot help */

/* close.c */
void wefti_close_begin(wefti_epx_t *ep, bool force);          /* the owner closes it */
void wefti_close_step(wefti_epx_t *ep);
void wefti_close_end(wefti_epx_t *ep, weft_status_t ops_why, weft_status_t status); /* force it down */
void wefti_close_record(wefti_epx_t *ep, uint64_t count);
void wefti_close_ack(wefti_epx_t *ep, uint64_t count);
void wefti_close_lost(wefti_epx_t *ep, weft_status_t why);    /* the connection is lost while closing */
void wefti_close_timeout(wefti_epx_t *ep);
void wefti_close_tell(wefti_epx_t *ep);                       /* the closed hook, once */

/* reconnect.c */
void wefti_reconnect_begin(wefti_epx_t *ep);
void wefti_reconnect_failed(wefti_epx_t *ep, weft_status_t why); /* dialler: one round came to nothing */
void wefti_reconnect_timer(wefti_epx_t *ep);
/* Listener: what becomes of a hello that asks for an endpoint of ours: the endpoint (RECONNECTING), or NULL with *wait_out set
 * when it will be free in a moment, or NULL and the peer is a new one. */
wefti_epx_t *wefti_reconnect_find(wefti_link_t *link, bool *wait_out);

/* beat.c */
weft_status_t wefti_beat_begin(wefti_link_t *link); /* the lane is connected: heartbeats are sent from now on */
void wefti_beat_watch(wefti_link_t *link);          /* it is up: the peer's are missed from now on */

/* cache.c: keys are canonical. */
weft_status_t wefti_cache_key(const char *uris, const char *source, const uint8_t *uuid, char **key_out);
wefti_epx_t *wefti_cache_take(wefti_conn_t *conn, const char *key); /* one more share of it, or NULL */
void wefti_cache_put(wefti_conn_t *conn, wefti_epx_t *ep); /* a failure only means that the next open finds none */
void wefti_cache_forget(wefti_epx_t *ep);
bool wefti_cache_release(wefti_epx_t *ep); /* one share less; true: it was the last */

/* --- listeners ------------------------------------------------------------------------------------------------------------- */

struct weft_listener {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    char *uri;
    weft_accept_fn accept;
    uint16_t port; /* up to here it can be read when it was freed */
    wefti_conn_t *conn;
    wefti_list_t all;
    wefti_acceptor_t **acceptors;
    unsigned n_acceptors;
    struct wefti_admits {
        weft_admit_fn fn;
        weft_admit_peer_fn peer;
    } admits;
    void *user;
    weft_ep_hooks_t hooks;
    uint64_t reconnect_ns; /* of its endpoints; 0: the default */
    uint32_t backlog, hellos, n_ready;
    _Atomic uint32_t all_hellos; /* of it and its twins; a twin counts at the listener it is of */
    wefti_list_t newcomers; /* links in their hello, oldest first: `hellos` of them */
    wefti_list_t accept_ops;
    wefti_list_t ready; /* endpoints nobody took yet */
    weft_op_t *close_op;
    bool closed;
    /* shards.c. The program's listener is the head's; on other shards it has twins, which have no acceptors */
    weft_listener_t *of;      /* of a twin: the head's; NULL: it is that */
    uint64_t serial;          /* the same in a listener and its twins, and in no other */
    struct wefti_away *away;  /* of the head's: one for each shard; NULL: there is one shard only */
    uint32_t n_away;          /* of them, those whose end is awaited */
    wefti_list_t ready_away;  /* endpoints of other shards that nobody took yet */
    uint32_t n_ready_away;
    _Atomic uint32_t n_coming; /* endpoints of other shards on their way here: it is not freed before they came */
    struct wefti_away *answer; /* of a twin: to be told when it is freed; NULL: nobody waits */
};

/* Upcall: a wire arrived at one of its acceptors. */
void wefti_listener_wire(void *listener, wefti_wire_t *wire, const char *from);
/* The same. NULL: it was turned away. */
wefti_link_t *wefti_listener_take(weft_listener_t *l, wefti_wire_t *wire, const char *from);
#define WEFTI_LOOK_MOST 1024 /* among so many newcomers or endpoints one is looked for that can go */
/* A twin of the head's listener, on this shard. NULL: no memory. */
weft_listener_t *wefti_listener_twin(wefti_conn_t *conn, weft_listener_t *of, uint64_t serial);

/* guard.c: what a listener or an endpoint of these options proves with; NULL: the runtime's. As weft_listen() fails. */
weft_status_t wefti_guard_own(weft_runtime_t *rt, const weft_tls_opts_t *given, struct wefti_guard **out);
void wefti_guard_drop(weft_runtime_t *rt, struct wefti_guard *guard); /* NULL is allowed */

/* shards.c */
#define WEFTI_ID_SHARD 24 /* in the id of an endpoint, which shard it is of: eight bits from this one on */
static inline uint64_t wefti_id_slot(weft_ep_id_t id) { return id & ~(UINT64_C(0xff) << WEFTI_ID_SHARD); }
static inline uint32_t wefti_id_shard(weft_ep_id_t id) { return (uint32_t)(id >> WEFTI_ID_SHARD) & 0xff; }
weft_status_t wefti_away_new(weft_listener_t *l);          /* for a listener of a runtime with several shards. WEFT_ERR_NOMEM */
/* Upcall: does a wire that arrives go to another shard? */
bool wefti_away_wire(void *listener, const wefti_loose_t *loose, uint64_t source, const char *from);
/* A newcomer wants an endpoint back that another shard has: it goes there, with its hello. False: it cannot. */
bool wefti_away_resume(wefti_link_t *link, uint32_t shard, const void *hello, size_t n);
bool wefti_away_deliver(weft_listener_t *twin, wefti_epx_t *ep); /* give an endpoint to the head's listener. False: no memory */
/* Let the oldest of them go whose peer is gone. False: there is none. */
bool wefti_away_let_dead_go(weft_listener_t *l);
wefti_epx_t *wefti_away_take(weft_listener_t *l);          /* the oldest endpoint of another shard that nobody took; NULL: none */
void wefti_away_shut(weft_listener_t *l);                  /* the head's closes: its twins do, too */
void wefti_away_freed(weft_listener_t *l);                 /* either is freed */
void wefti_nonce_make(wefti_conn_t *conn, uint8_t *nonce);
bool wefti_peer_is_us_or_another(const wefti_link_t *link); /* false: it shows our id, and is not us */
/* One of its links is up, or gone: it no longer counts as someone in the hello. */
void wefti_listener_leave(wefti_link_t *link);
/* Upcall: no descriptor for a newcomer: let one go that has proved nothing. False: there is none. */
bool wefti_listener_make_way(void *listener);
void wefti_listener_deliver(weft_listener_t *l, wefti_epx_t *ep); /* it is up */
void wefti_listener_offer(weft_listener_t *l);                    /* an endpoint of another shard is there for who accepts */
void wefti_listener_shut(weft_listener_t *l);                     /* stop; freed by the work */
void wefti_listener_free(weft_listener_t *l);                     /* the work's */
/* On the driver; opts are whole. */
weft_status_t wefti_listener_open(wefti_conn_t *conn, const char *uri, const weft_listen_opts_t *opts, weft_listener_t **out);

/* address.c */
#define WEFTI_URI_TEXT 320 /* bytes of the text of one URI */
void wefti_uris_add(char *out, size_t cap, const char *text); /* join them by commas; one that does not fit is left out */
void wefti_address_host(uint8_t out[WEFTI_UUID_SIZE]);
void wefti_address_changed(wefti_conn_t *conn); /* a listener came or went */
#define WEFTI_BLOB_TEXT_MAX 4000
typedef struct wefti_blob {
    uint8_t uuid[WEFTI_UUID_SIZE], host[WEFTI_UUID_SIZE];
    char uris[WEFTI_BLOB_TEXT_MAX + 1]; /* joined by commas; each parses */
} wefti_blob_t;
/* The length it has, which is written if cap is enough for it. */
size_t wefti_blob_encode(const uint8_t *uuid, const uint8_t *host, const char *uris, void *buf, size_t cap);
weft_status_t wefti_blob_decode(const void *bytes, size_t n, wefti_blob_t *out); /* WEFT_ERR_INVALID with detail */
/* The addresses to try for a blob, in order, joined by commas. */
weft_status_t wefti_blob_targets(const wefti_blob_t *b, const uint8_t *own_host, char **uris_out);

#endif
