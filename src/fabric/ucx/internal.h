/* fabric/ucx/internal.h - what the files of the ucx transport share.
 *
 *   transport.c    UCX's context and worker; progress, arm; what waits for an upcall
 *   lane.c    the life of a lane, and which UCX endpoint is whose
 *   frame.c   records out and in
 *   xfer.c    announcements out and in; payloads by UCX's rendezvous
 *   chunk.c   payloads in chunks of our own, where UCX's rendezvous is not safe
 *   onesided.c access to the peer's memory, where the fabric is trusted
 *   facts.c   what UCX is and has
 *   mem.c     ranges registered ahead of time, from any thread
 *   process.c its signal handlers, its log, its need for file descriptors
 *
 * Upcalls: `record` and `announced` run inside UCX's active-message callback, which UCX calls from its progress only (the self
 * transport would call it from inside a send, and is therefore not allowed). Everything else that UCX says (a send is done, an
 * endpoint failed) is put on a list and told at the end of progress, since UCX may say it from inside any
 * call.
 *
 * On the wire: every frame is one active message without header,
 *     u64 token of the receiving lane, u32 sequence number, u32 zero, then records: u32 length, u32 kind, bytes, padding to 8
 * Every announcement by rendezvous is one active message whose header is
 *     u64 token, u32 sequence number, u32 length, u64 id, the record
 * and counts in the same sequence. A chunk of payload is an active message of its own kind, outside the sequence, with the
 * header
 *     u64 token, u64 slot of the pull, u64 offset */
#ifndef WEFTI_UX_H
#define WEFTI_UX_H

#include <pthread.h>
#include <ucp/api/ucp.h>

#include "base/list.h"
#include "base/spares.h"
#include "fabric/module.h"
#include "fabric/transfers.h"

#define UX_AM_ID 0
#define UX_AM_CHUNK 1
#define UX_FRAME 8128           /* bytes of a whole frame: with UCX's headers still one segment of its TCP (8 KiB) */
#define UX_FRAMES_KEPT 256      /* unused ones */
#define UX_FRAME_HEAD 16
#define UX_RECORD_HEAD 8
#define UX_ANNOUNCE_HEAD 24
#define UX_CHUNK_HEAD 24
#define UX_CHUNK 65024          /* bytes of payload: with the headers one segment of UCX's TCP (64 KiB) */
#define UX_CHUNKS 4             /* of one lane that UCX may hold */
#define UX_IN_FLIGHT 8          /* frames of one lane that UCX may hold; more means the peer does not keep up */
#define UX_TOKEN_INDEX_BITS 24  /* the rest is random */
#define UX_BYE_NS 50000000u     /* how long a close waits for its last frames to leave */
#define UX_SPARE_MAX 1024       /* endpoints a peer may make us create ahead (see lane.c) */
_Static_assert(UX_FRAME - UX_FRAME_HEAD - UX_RECORD_HEAD >= WEFTI_REC_MAX, "a lane takes what every lane takes");

/* Kinds of records: 0 belongs to the rooms above, the others are ours, and carry a u64 unless they say otherwise. */
enum {
    UX_REC_USER = 0,
    UX_REC_HELLO = 1,     /* which of our endpoints this lane is: the first record of a leader */
    UX_REC_REFUSED = 3,   /* receiver: an id; the completion that follows means WEFT_ERR_REFUSED */
    UX_REC_BYE = 5,       /* the lane is closed: completions that follow mean WEFT_ERR_PEER */
    UX_REC_TAKEN = 6,     /* receiver: an id; it has the bytes, or needs none (chunks only) */
    UX_REC_OFFER = 7,     /* sender: u64 id, u64 total, the record (chunks only) */
    UX_REC_PULL = 8       /* receiver: u64 id, u64 slot, u64 want (chunks only) */
};

typedef struct ux_transport ux_transport_t;
typedef struct ux_lane ux_lane_t;
typedef struct ux_ep ux_ep_t;
typedef struct ux_pull ux_pull_t;

typedef struct ux_frame {
    wefti_list_t link; /* of a lane's backlog */
    ux_lane_t *lane;
    uint32_t n;
    ucp_dt_iov_t piece; /* all of it, as UCX is given it over TCP: an array of one makes it copy and send(), which costs less
                           than the sendmsg() of its short messages. It has to live as long as the send */
    _Alignas(16) uint8_t bytes[UX_FRAME];
} ux_frame_t;

/* A peer's worker: both sides must create their endpoints to each other in the same order (lane.c says why). */
typedef struct ux_peer {
    uint64_t id;
    uint32_t n_eps;      /* created so far */
    wefti_list_t spare;  /* of ux_ep_t: created, and no lane's yet */
    unsigned n_spare;
} ux_peer_t;

struct ux_ep {
    ux_transport_t *transport;
    ux_lane_t *lane;     /* NULL: spare */
    ux_peer_t *peer;
    ucp_ep_h ucp;
    uint32_t number;     /* it is the n-th to this peer, from 0 */
    bool failed;         /* UCX said so */
    bool closing;
    wefti_list_t link;   /* peer's spare, then transport->ep_events */
};

typedef enum ux_state {
    UX_NEW,      /* has an address */
    UX_WAITING,  /* connected, but its endpoint is chosen by the peer's first frame */
    UX_UP,       /* has its endpoint */
    UX_CLOSING,  /* lane_close() was called; the last frames leave, if they can within UX_BYE_NS */
    UX_DRAINING  /* the endpoint is being forced down; UCX still owes completions */
} ux_state_t;

enum { UX_EV_HELLO = WEFTI_EV_OWN }; /* the peer has said which endpoint is this lane's */

struct ux_lane {
    wefti_half_t half;
    ux_transport_t *transport;
    uint64_t id;            /* in transport->lanes */
    uint64_t token, peer_token;
    ux_ep_t *ep;
    ux_state_t state;
    ux_frame_t *frame;      /* being filled; NULL: none taken */
    uint32_t used;          /* bytes of it */
    uint32_t tx_seq, rx_seq;
    unsigned in_flight;     /* frames UCX or the backlog has */
    unsigned chunks;        /* UCX has */
    bool bye;               /* the peer has closed */
    bool hello_seen;
    bool answered;          /* the peer has its half of the endpoint */
    uint64_t bye_until;     /* CLOSING: not 0 once BYE is sent */
    uint64_t hello_number;
    wefti_list_t backlog;   /* frames committed before there was an endpoint */
    wefti_list_t pump_link; /* transport->pumps */
    wefti_list_t keys;      /* of ux_key_t: what the peer may reach */
    wefti_list_t ones;      /* of ux_one_t that UCX has */
    wefti_list_t unflushed; /* of ux_one_t: puts after which no flush was posted */
    wefti_list_t waiting;   /* of ux_one_t: not done, in order, where they go one by one */
    wefti_list_t flush_link; /* transport->flushes */
    ux_pull_t *in_callback; /* the offer that `announced` is being told of */
    ux_peer_t *peer;
    void *peer_addr;        /* while WAITING */
};

typedef struct ux_announce {
    wefti_outgoing_t out;
    bool refused;    /* the peer said that this is what UCX's completion means (rendezvous only) */
    bool taken;      /* the peer has the bytes (chunks only) */
    unsigned chunks; /* UCX has */
    uint8_t head[];  /* UCX may read it until the send is done */
} ux_announce_t;

struct ux_pull {
    wefti_incoming_t in;
    bool rendezvous;  /* by UCX's rendezvous, else in chunks */
    bool in_callback; /* UCX still looks at desc: leave giving it back to the callback's return value */
    void *desc;       /* UCX's; NULL once given back */
};

struct ux_transport {
    wefti_transport_t base;
    wefti_transport_ops_t ops;
    char *tls, *devices;
    uint64_t id;            /* random: one per worker */
    pid_t pid;              /* who opened it: in a forked child UCX cannot even be closed */
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_n;
    wefti_slots_t lanes;    /* by index in the token */
    bool chunked;           /* payloads go in chunks of our own */
    bool takes_cuda;        /* UCX knows what CUDA memory is, and moves payloads itself */
    wefti_transfers_t transfers;
    wefti_list_t pumps;     /* lanes that could send chunks now */
    wefti_map_t peers;      /* by id */
    wefti_list_t ep_events; /* endpoints without a lane to close */
    unsigned n_eps;
    bool trusted, rendezvous; /* see wefti_ucx_params_t */
    wefti_list_t flushes;   /* lanes with one-sided operations to go on with */
    wefti_spares_t spare_frames, spare_chunks, spare_ones;
    uint64_t strangers;     /* frames with no token of ours */
    ucp_request_param_t frame_param;
    pthread_mutex_t mem_lock; /* of mem_context, and of the calls made with it */
    ucp_context_h mem_context; /* `context` once it is there to stay */
};

/* For sentences. */
static inline const char *wefti_ux_tls(const ux_transport_t *r) { return r->tls[0] ? r->tls : "all of UCX's"; }
static inline ux_transport_t *ux_transport(wefti_transport_t *r) { return (ux_transport_t *)(void *)r; }
static inline ux_lane_t *ux_lane(wefti_lane_t *l) { return (ux_lane_t *)(void *)l; }
static inline ux_announce_t *ux_announce(wefti_outgoing_t *o) { return (ux_announce_t *)(void *)o; }
static inline void ux_frame_free(ux_transport_t *r, ux_frame_t *f) { wefti_spares_put(&r->spare_frames, f, UX_FRAMES_KEPT); }
static inline ux_pull_t *ux_pull(wefti_incoming_t *p) { return (ux_pull_t *)(void *)p; }

/* transport.c; what fabric/module.h has is said there */
weft_status_t wefti_ux_open(wefti_fabric_t *f, const wefti_ucx_params_t *params, wefti_transport_t **transport_out);
unsigned wefti_ux_progress(wefti_transport_t *transport);
weft_status_t wefti_ux_start(ux_transport_t *r);
void wefti_ux_fail(ux_lane_t *l, weft_status_t why, const char *what);
weft_status_t wefti_ux_status(ucs_status_t st);
static inline weft_status_t ux_nomem_or(ucs_status_t st, weft_status_t otherwise)
{
    return st == UCS_ERR_NO_MEMORY ? WEFT_ERR_NOMEM : otherwise;
}
/* Of a call whose end is this callback's. */
static inline ucp_request_param_t ux_then(ucp_send_nbx_callback_t fn, void *user)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = fn,
        .user_data = user,
    };
}

/* facts.c */
void wefti_ux_transports(char *buf, size_t cap);
bool wefti_ux_only_tcp(ucp_context_h context);

/* mem.c */
/* WEFT_ERR_NOMEM, otherwise `refused`, with detail. */
weft_status_t wefti_ux_mem_map(ucp_context_h context, void *base, size_t n, weft_status_t refused, ucp_mem_h *mem_out);
weft_status_t wefti_ux_mem_register(wefti_transport_t *transport, void *base, size_t n, void **reg_out);
void wefti_ux_mem_unregister(wefti_transport_t *transport, void *reg);
void wefti_ux_mem_context(ux_transport_t *r, ucp_context_h context); /* NULL: it is about to go */

/* process.c */
void wefti_ux_hush(void);
/* What UCX opens for a context and worker, and for one more endpoint over TCP, with some to spare. */
enum { UX_FDS_WORKER = 32, UX_FDS_LANE = 8, UX_SPARE_FDS_MAX = 32 };
/* WEFT_ERR_LIMIT: there are not that many (at most UX_SPARE_FDS_MAX). */
weft_status_t wefti_ux_spare_fds(unsigned need);

/* lane.c */
weft_status_t wefti_ux_lane_new(wefti_transport_t *transport, const wefti_meeting_t *with, void *user, void *addr_buf,
                                size_t *n_out, wefti_lane_t **lane_out);
weft_status_t wefti_ux_lane_connect(wefti_lane_t *lane, const void *addr, size_t n);
void wefti_ux_lane_close(wefti_lane_t *lane);
bool wefti_ux_lane_event(wefti_lane_t *lane, unsigned events); /* see wefti_transfers_ops_t */
void wefti_ux_ep_close(ux_ep_t *e);

/* The lane a token is for, or NULL. */
static inline ux_lane_t *wefti_ux_lane_of(ux_transport_t *r, uint64_t token)
{
    uint32_t i = (uint32_t)(token & ((1u << UX_TOKEN_INDEX_BITS) - 1));
    ux_lane_t *l = i < r->lanes.n ? r->lanes.at[i].value : NULL;
    return __builtin_expect(l && l->token == token, 1) ? l : NULL;
}

/* chunk.c */
weft_status_t wefti_ux_offer(ux_lane_t *l, const void *rec, size_t n, const weft_iov_t *iov, uint64_t total, wefti_xfer_t *x);
weft_status_t wefti_ux_chunk_pull(ux_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
void wefti_ux_pull_arrived(ux_lane_t *l, const uint8_t *bytes, size_t n);
void wefti_ux_taken_arrived(ux_lane_t *l, uint64_t id);
void wefti_ux_chunk_arrived(ux_transport_t *r, const void *head, size_t head_n, const void *data, size_t n);
/* The lane closes: end what no callback of UCX will end. */
void wefti_ux_chunks_abandon(ux_lane_t *l);
void wefti_ux_pump(ux_transport_t *r);

/* onesided.c */
/* Add the one-sided operations. */
void wefti_ux_onesided(wefti_transport_ops_t *ops);
/* The lane's endpoint is gone: take its keys back. */
void wefti_ux_keys_end(ux_lane_t *l);
/* Go on with what the lanes have to post. */
void wefti_ux_flush_puts(ux_transport_t *r);
/* The lane closes: end what no callback of UCX will end. */
void wefti_ux_ones_abandon(ux_lane_t *l);

/* frame.c */
void *wefti_ux_reserve(wefti_lane_t *lane, size_t n);
void wefti_ux_commit(wefti_lane_t *lane, size_t n);
/* Send what the open frame has. */
void wefti_ux_flush(ux_lane_t *l);
void wefti_ux_flush_backlog(ux_lane_t *l);
/* Send a record of our own at once, in order, space or not. */
void wefti_ux_control(ux_lane_t *l, uint32_t kind, uint64_t value);
void wefti_ux_control_bytes(ux_lane_t *l, uint32_t kind, const void *bytes, size_t n);
/* Space for a record of any kind, and its commit: as reserve and commit, which see. */
uint8_t *wefti_ux_make_space(ux_lane_t *l, size_t n, bool force);
void wefti_ux_put(ux_lane_t *l, uint32_t kind, size_t n);
/* The same for a record of our own: space with these bytes in it. False: the lane has failed. */
bool wefti_ux_control_space(ux_lane_t *l, const void *bytes, size_t n);
void wefti_ux_frame_arrived(ux_transport_t *r, const void *data, size_t n);

/* xfer.c */
weft_status_t wefti_ux_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                uint64_t total, wefti_xfer_t *x);
weft_status_t wefti_ux_pull(wefti_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
void wefti_ux_refuse(wefti_pull_t *p, bool taken);
ucs_status_t wefti_ux_announce_arrived(ux_transport_t *r, const void *head, size_t head_n, void *desc, size_t total);
void wefti_ux_peer_refused(ux_lane_t *l, uint64_t id);
/* Give every waiting offer back to UCX; they stay on lane->offers until told. */
void wefti_ux_release_offers(ux_lane_t *l);
extern const wefti_transfers_ops_t wefti_ux_transfers;

#endif
