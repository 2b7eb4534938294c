/* fabric/tcp/internal.h - what the files of the tcp transport share.
 *
 *   transport.c    progress, sleep, and everything the transport has to tell
 *   port.c    where it listens, and strangers until they have proved to be a lane's peer
 *   greet.c   what the two ends of a connection say before it is a lane's
 *   dial.c    from two addresses to one connection
 *   lane.c    the life of a lane
 *   out.c     records and chunks of payloads to the socket
 *   in.c      the same from the socket: the one place that reads what a peer wrote
 *   xfer.c    announcements, pulls, refusals
 *   bulk.c    the second connection, for large payloads
 *   tls.c     TLS below a lane's connections
 *   sums.c    checksums there, where there is no TLS
 *   acks.c    connections whose peer acknowledges nothing any more
 *
 * docs/design/wire.md has the bytes. In short: a connection begins with a challenge, a greeting that names a lane of the
 * receiver and proves whose it is, and an answer that proves the same; then it carries items, each a multiple of 8 bytes: u32
 * length, u32 kind, the bytes, zeroes. */
#ifndef WEFTI_TCP_INTERNAL_H
#define WEFTI_TCP_INTERNAL_H

#include <netinet/in.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/list.h"
#include "base/rarely.h"
#include "base/spares.h"
#include "fabric/pulse.h"
#include "fabric/tcp/tcp.h"
#include "fabric/transfers.h"

#define TP_KIND 4
#define TP_REC_MAX 8448          /* bytes of the longest record: 8 KiB of payload, and what rooms put before it */
#define TP_HEAD 8                /* u32 length, u32 kind */
#define TP_FRAME 16320           /* bytes of records gathered for one send() */
#define TP_FRAMES_KEPT 64        /* unused ones */
#define TP_QUEUE 8               /* frames of a lane that may wait for the socket before reserve() says no */
#define TP_QUEUE_FORCED 128      /* control records included: a peer that reads none of them is given up */
#define TP_IN (128u << 10)       /* bytes of one recv() */
#define TP_CHUNK 65536u          /* of a payload between two records */
#define TP_BULK_MIN 65536u       /* a payload that goes over the second connection */
#define TP_PIECES 16
#define TP_ADDRS 8
#define TP_TOKEN 16
#define TP_NONCE 16
#define TP_CHALLENGE_N (8 + TP_NONCE)                         /* magic, nonce */
#define TP_GREETING_N (16 + TP_NONCE + WEFTI_SECRET_SIZE)     /* magic, u64 id of the receiving lane, nonce, MAC */
#define TP_ANSWER_N (8 + WEFTI_SECRET_SIZE)                   /* magic, MAC */
#define TP_STRANGERS 512         /* connections that have proved nothing yet; at most a quarter of the descriptors */
#define TP_LINGERS 256
#define TP_HOT 4                 /* lanes polled on every progress while records flow on them */
#define TP_QUIET 512             /* polls that found nothing before a lane is left to epoll */
#define TP_WARM 32               /* polls that found something before it is taken out of epoll, which costs on every packet */
_Static_assert(TP_REC_MAX >= WEFTI_REC_MAX, "a lane takes what every lane takes");

#define TP_CHALLENGE UINT64_C(0x324f485753544657)  /* "WFTSWHO2" */
#define TP_GREET_LANE UINT64_C(0x32454e414c544657) /* "WFTLANE2" */
#define TP_GREET_BULK UINT64_C(0x324b4c5542544657) /* "WFTBULK2" */
#define TP_ANSWER_OK UINT64_C(0x3359414b4f544657)  /* "WFTOKAY3" */

/* Kinds of items. USER belongs to the rooms above. */
enum {
    TP_USER = 0,
    TP_OFFER = 1,     /* sender: u64 id, u64 total, the record */
    TP_PULL = 2,      /* receiver: u64 id, u64 slot, u64 want, u64 1 to have it over the second connection */
    TP_DATA = 3,      /* sender: u64 slot, then as many bytes of payload as the length says */
    TP_TAKEN = 4,     /* receiver: u64 id; it has the bytes, or needs none */
    TP_REFUSED = 5,   /* receiver: u64 id */
    TP_NO_BULK = 8    /* either: u64 0; there is no second connection, send in between */
};

typedef struct tp_transport tp_transport_t;
typedef struct tp_lane tp_lane_t;
typedef struct tp_pull tp_pull_t;

typedef struct tp_frame {
    wefti_list_t link; /* of a lane's queue */
    uint32_t at, n;    /* in a queue: sent so far, bytes in all */
    _Alignas(16) uint8_t bytes[TP_FRAME];
} tp_frame_t;

/* WAIT -> DIALING -> CALLING -> GREETING -> UP for who dials; STRANGER -> (HELD ->) UP for who accepts; LINGER after a lane has
 * closed, until the peer has too. */
typedef enum tp_conn_state {
    TP_WAIT,      /* dials when its time has come */
    TP_DIALING,
    TP_CALLING,   /* is connected; the challenge is awaited */
    TP_GREETING,  /* has greeted; the answer is awaited */
    TP_STRANGER,
    TP_HELD,      /* has proved to be the lane's peer; see dial.c for what is decided when */
    TP_UP,
    TP_LINGER,
    TP_DEAD
} tp_conn_state_t;

typedef struct tp_conn {
    tp_transport_t *transport;
    tp_lane_t *lane;     /* NULL: stranger, linger, dead */
    tp_conn_state_t state;
    bool listener;       /* none of the above: a place where strangers arrive */
    bool bulk;           /* the lane's second connection */
    int fd;              /* -1: none */
    uint32_t events;     /* what epoll watches for; 0: not in it */
    uint64_t deadline;   /* of WAIT, DIALING, CALLING, GREETING, STRANGER, LINGER */
    wefti_list_t link;   /* transport->dials, ->strangers, ->lingers or ->dead */
    wefti_stream_t *stream; /* of a lane whose wire has TLS, or that has checksums; NULL: none */
    bool tls;            /* of a listener: who comes speaks TLS */
    bool shaking;        /* the stream is in its handshake */
    uint8_t in[TP_GREETING_N];
    size_t in_n;
    uint8_t challenge[TP_NONCE], nonce[TP_NONCE]; /* of the acceptor, of the dialler */
    uint64_t source;     /* of a stranger: the same for all from one address */
    /* acks */
    wefti_list_t unacked; /* transport->unacked: something was sent, and not all of it was seen to be acknowledged */
    wefti_pulse_t acks;
    uint64_t looked;
    /* bulk */
    wefti_list_t busy;   /* transport->bulk_busy */
    tp_pull_t *pull;     /* whose bytes come now */
    uint64_t out[2];     /* head of the payload being sent, as far as it has not gone */
    size_t out_at, out_n;
} tp_conn_t;

typedef enum tp_lane_state {
    TP_LANE_NEW,      /* has an address */
    TP_LANE_JOINING,  /* knows the peer's; no connection yet */
    TP_LANE_UP,
    TP_LANE_CLOSING,  /* lane_close() was called; the last records leave, if they can soon */
    TP_LANE_ENDED     /* all transfers are over; told and freed by progress */
} tp_lane_state_t;

typedef struct tp_peer_addr {
    struct in6_addr ip;
    uint16_t port;
} tp_peer_addr_t;

struct tp_lane {
    wefti_half_t half;      /* `sending`: those that go between records */
    tp_transport_t *transport;
    int fd;                 /* of conn, once UP */
    tp_lane_state_t state;
    bool mute;              /* the socket takes no more: reading finds out why */
    bool hot;

    /* out */
    tp_frame_t *frame;      /* being filled; NULL: none */
    uint32_t used;          /* bytes of it */
    uint32_t queued;        /* frames in queue */
    wefti_list_t queue;     /* of tp_frame_t, waiting for the socket */
    wefti_list_t stuck_link; /* transport->stuck: the socket was full */
    wefti_outgoing_t *chunk; /* whose chunk is partly out, and so must go on first; NULL: none */
    uint64_t chunk_head[2];
    uint32_t chunk_head_at, chunk_left, chunk_pad;

    /* in */
    tp_frame_t *carry;      /* the beginning of an item whose end has not come */
    uint32_t carry_n;
    uint32_t rx_left, rx_pad; /* of a chunk that is coming in */
    tp_pull_t *rx_pull;
    uint32_t quiet;         /* polls in a row that found nothing */
    uint32_t warm;          /* polls that found something, since it became hot or was slept on */

    uint64_t close_until;

    /* connections */
    bool tls;               /* all of them have TLS */
    bool only_here;         /* they have none, and must not leave this host */
    bool sums;              /* all of them have checksums, from UP on */
    wefti_stream_t *stream; /* of conn, once UP; NULL: none */
    uint8_t tls_secret[WEFTI_SECRET_SIZE];
    wefti_list_t more_link; /* transport->more: the stream has what the socket no longer has */
    tp_conn_t *conn;        /* the lane's, or our dial for it */
    tp_conn_t *held;        /* the peer's, that we may take */
    int reserve_fd;         /* keeps a descriptor for the connection until there is one; -1: none */
    wefti_list_t reserve_link; /* transport->reserved */
    bool leads;             /* dials first */
    bool dialled;           /* conn was dialled by us, to peer[peer_at] */
    uint8_t n_peer, peer_at, tries;
    tp_peer_addr_t peer[TP_ADDRS];
    uint64_t id, peer_id;
    uint8_t side;           /* of the wire, ours */
    uint8_t token[TP_TOKEN], peer_token[TP_TOKEN];
    uint8_t key[WEFTI_SECRET_SIZE]; /* of its connections; in NEW the meeting's secret, of which it is made */

    /* bulk */
    tp_conn_t *bulk;
    bool no_bulk;           /* there is none, and will be none */
    wefti_list_t bulk_out;  /* of wefti_outgoing_t to send over it */
    unsigned bulk_in;       /* pulls that come over it */
};

/* One of the peer's announcements. */
struct tp_pull {
    wefti_incoming_t in;
    bool bulk; /* is to come over the second connection */
};

/* Where strangers arrive; plain ones and those with TLS have nothing in common. */
typedef struct tp_port {
    tp_conn_t listeners[TP_ADDRS];
    unsigned n_listeners, n_addrs;
    tp_peer_addr_t addrs[TP_ADDRS]; /* ours, as peers are told */
} tp_port_t;

struct tp_transport {
    wefti_transport_t base;
    char *devices;          /* NULL: all */
    int timer_fd, spare_fd; /* base.fd is an epoll instance */
    uint64_t timer_at;      /* 0: not set */
    uint64_t looked, look_wait; /* ticks */
    uint64_t paused_until;  /* listeners are out of epoll; 0: they are in it */
    unsigned n_lanes, n_hot;
    tp_lane_t *hot[TP_HOT];
    wefti_slots_t lanes;
    wefti_transfers_t transfers;

    wefti_guard_t *guard;
    bool sums;              /* lanes without TLS shall have checksums */
    wefti_spares_t buffers; /* of sums.c */
    wefti_rarely_t rarely;
    tp_port_t ports[2];     /* [1]: for lanes with TLS */

    wefti_list_t dials;     /* conns in WAIT, DIALING, CALLING, GREETING */
    wefti_list_t strangers; /* oldest first */
    wefti_list_t lingers;   /* oldest first */
    wefti_list_t dead;      /* to free after the batch of events */
    unsigned n_strangers, max_strangers, n_lingers;
    wefti_list_t reserved;  /* lanes with a reserve_fd */
    wefti_list_t unacked;   /* conns in UP */
    uint64_t bound;         /* ns: a peer that acknowledges nothing for so long is lost */

    wefti_list_t stuck, bulk_busy, more;
    wefti_spares_t frames;
    _Alignas(16) uint8_t in[TP_IN];
};

static inline tp_transport_t *tp_transport(wefti_transport_t *r) { return (tp_transport_t *)(void *)r; }
static inline tp_lane_t *tp_lane(wefti_lane_t *l) { return (tp_lane_t *)(void *)l; }
static inline tp_pull_t *tp_pull(wefti_incoming_t *p) { return (tp_pull_t *)(void *)p; }
static inline tp_frame_t *tp_frame_get(tp_transport_t *r) { return wefti_spares_get(&r->frames, sizeof(tp_frame_t)); }
static inline void tp_frame_free(tp_transport_t *r, tp_frame_t *f) { wefti_spares_put(&r->frames, f, TP_FRAMES_KEPT); }
static inline uint32_t tp_round8(uint32_t n) { return (n + 7u) & ~7u; }

/* transport.c */
void wefti_tp_close(wefti_transport_t *transport);
void wefti_tp_close_fds(tp_transport_t *r);
weft_status_t wefti_tp_arm(wefti_transport_t *transport);
void wefti_tp_fail(tp_lane_t *l, weft_status_t why, const char *what);
/* See to it that deadlines are looked at by then. */
void wefti_tp_timer(tp_transport_t *r, uint64_t at);
/* Poll it on every progress from now on, if there is a place; or no longer. */
void wefti_tp_heat(tp_lane_t *l);
void wefti_tp_cool(tp_lane_t *l);

/* port.c */
/* Listen, if we do not yet. WEFT_ERR_LIMIT, _NOMEM, _UNSUPPORTED (none of the devices has an address), _SYSTEM. */
weft_status_t wefti_tp_listen(tp_transport_t *r, bool tls);
void wefti_tp_accept(tp_conn_t *listener);
void wefti_tp_stranger_spoke(tp_conn_t *c);
/* One that greeted this lane before it knew its peer; NULL: none that is its peer's. */
tp_conn_t *wefti_tp_early_bird(tp_lane_t *l);
void wefti_tp_resume(tp_transport_t *r); /* listeners that were out of epoll */
socklen_t wefti_tp_sockaddr(const tp_peer_addr_t *a, struct sockaddr_storage *out);

/* tls.c */
/* The connection is there: its handshake begins, with a stranger or with the peer of a lane. False: no memory. */
bool wefti_tp_secure(tp_conn_t *c);
/* A step of it. WEFT_OK: it is done, or there is none. WEFT_ERR_AGAIN: later. */
weft_status_t wefti_tp_shake(tp_conn_t *c);
/* As sendmsg() and recvmsg() do, through TLS where there is a stream. */
ssize_t wefti_tp_send(int fd, wefti_stream_t *s, const struct iovec *v, unsigned n);
ssize_t wefti_tp_recv(int fd, wefti_stream_t *s, const struct iovec *v, unsigned n);
/* What the stream of a lane has beyond what was read comes with the next progress. */
void wefti_tp_note_more(tp_lane_t *l);
unsigned wefti_tp_read_more(tp_transport_t *r);
static inline bool tp_waits(const wefti_stream_t *s) { return s && s->waits; }

/* sums.c */
/* One end of a connection, from now on; NULL: no memory. */
wefti_stream_t *wefti_tp_sums_new(tp_transport_t *r);
ssize_t wefti_tp_sums_send(wefti_stream_t *s, int fd, const struct iovec *v, unsigned n);
ssize_t wefti_tp_sums_recv(wefti_stream_t *s, int fd, const struct iovec *v, unsigned n);
/* As those of fabric/tls.h, for a stream of either kind. */
bool wefti_tp_stream_has(const wefti_stream_t *s);
bool wefti_tp_stream_flush(wefti_stream_t *s, int fd);
void wefti_tp_stream_end(wefti_stream_t *s, int fd);
void wefti_tp_stream_free(wefti_stream_t *s);
const char *wefti_tp_stream_bad(const wefti_stream_t *s); /* what EBADMSG means */

/* greet.c */
/* The key of a lane that knows both tokens. */
void wefti_tp_lane_key(tp_lane_t *l);
/* Each sends one of the three; false: it could not. */
bool wefti_tp_say_challenge(tp_conn_t *c);
bool wefti_tp_say_greeting(tp_lane_t *l, tp_conn_t *c); /* c->in has the challenge. False also if that is none */
bool wefti_tp_say_answer(tp_lane_t *l, tp_conn_t *c);
/* c->in has a greeting: is it by the peer of this lane, for this connection? Then c is ready for the answer. */
bool wefti_tp_greeting_good(const tp_lane_t *l, tp_conn_t *c);
/* c->in has the answer to our greeting. */
bool wefti_tp_answer_good(const tp_lane_t *l, const tp_conn_t *c);

/* dial.c */
tp_conn_t *wefti_tp_conn_new(tp_transport_t *r, int fd, tp_conn_state_t state);
/* Let go of it: closed now, freed after the batch. */
void wefti_tp_conn_drop(tp_conn_t *c);
void wefti_tp_watch(tp_conn_t *c, uint32_t events);
/* Read on until c->in has `want` bytes: true when it has. c->in_n is SIZE_MAX at the end of the connection. */
bool wefti_tp_read_in(tp_conn_t *c, size_t want);
/* One more socket, non-blocking, with the options every one of ours has. -1: errno. */
int wefti_tp_socket(int family);
void wefti_tp_options(int fd);
/* The lane knows its peer now: dial, or wait to be dialled. */
weft_status_t wefti_tp_join(tp_lane_t *l);
/* A stranger has proved to be this lane's peer. */
void wefti_tp_arrived(tp_lane_t *l, tp_conn_t *c);
void wefti_tp_dial_event(tp_conn_t *c);
void wefti_tp_dial_due(tp_conn_t *c);

/* lane.c */
extern const wefti_transport_ops_t wefti_tp_ops;
void wefti_tp_lane_up(tp_lane_t *l, tp_conn_t *c);
/* CLOSING: go on to ENDED if nothing holds it, and then to the end. True: it is not closed. */
bool wefti_tp_lane_event(wefti_lane_t *lane, unsigned events);
void wefti_tp_release_reserve(tp_lane_t *l);
void wefti_tp_linger_event(tp_conn_t *c);

/* out.c */
void *wefti_tp_reserve(wefti_lane_t *lane, size_t n);
void wefti_tp_commit(wefti_lane_t *lane, size_t n);
/* Space for an item of any kind and its commit: as reserve and commit, which see. */
uint8_t *wefti_tp_make_space(tp_lane_t *l, size_t n, bool force);
void wefti_tp_put(tp_lane_t *l, uint32_t kind, size_t n);
/* One item of our own, at once if possible. */
void wefti_tp_control(tp_lane_t *l, uint32_t kind, const void *bytes, size_t n);
void wefti_tp_control_id(tp_lane_t *l, uint32_t kind, uint64_t id);
/* Give the socket what waits. */
void wefti_tp_flush(tp_lane_t *l);
bool wefti_tp_out_empty(const tp_lane_t *l);
void wefti_tp_out_drop(tp_lane_t *l);

/* in.c */
/* One recv() and all that came with it; number of bytes, 0: there was nothing. */
size_t wefti_tp_read(tp_lane_t *l);
/* The bytes of a lane's connection, as they come in; `bytes` is aligned to 8. */
void wefti_tp_parse(tp_lane_t *l, const uint8_t *bytes, size_t n);

/* xfer.c */
weft_status_t wefti_tp_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                uint64_t total, wefti_xfer_t *x);
weft_status_t wefti_tp_pull(wefti_pull_t *pull, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
void wefti_tp_refuse(wefti_pull_t *pull, bool taken);
/* An item of a kind other than USER and DATA. */
void wefti_tp_item(tp_lane_t *l, uint32_t kind, const uint8_t *bytes, uint32_t n);
/* A chunk of n bytes for this slot is coming; NULL: the lane has failed. */
tp_pull_t *wefti_tp_chunk_begins(tp_lane_t *l, uint64_t slot, uint32_t n);
/* n more bytes of a pull are where they belong; true: that was all, and it is over. */
bool wefti_tp_pull_came(tp_pull_t *p, size_t n);
/* The lane closes: end all that is under way. Offers stay until they are told. */
void wefti_tp_abandon(tp_lane_t *l);
extern const wefti_transfers_ops_t wefti_tp_transfers;

/* bulk.c */
void wefti_tp_bulk_want(tp_lane_t *l);
void wefti_tp_bulk_busy(tp_lane_t *l);
void wefti_tp_bulk_arrived(tp_lane_t *l, tp_conn_t *c);
void wefti_tp_bulk_up(tp_conn_t *c);
void wefti_tp_bulk_none(tp_lane_t *l, bool tell);
void wefti_tp_bulk_event(tp_conn_t *c);
unsigned wefti_tp_bulk_run(tp_transport_t *r);
bool wefti_tp_bulk_arm(tp_transport_t *r); /* false: there is something to do */

/* acks.c */
void wefti_tp_acks_begin(tp_conn_t *c);
/* Look at those that are due; when the next one is. 0: there is none. */
uint64_t wefti_tp_acks_look(tp_transport_t *r, uint64_t now);
/* Something was sent on it. */
static inline void tp_sent(tp_conn_t *c)
{
    if (__builtin_expect(!wefti_list_linked(&c->unacked), 0))
        wefti_tp_acks_begin(c);
}

#endif
