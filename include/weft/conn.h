/* weft/conn.h - listeners and endpoints: finding a peer, knowing who it is, and learning that it is gone.
 *
 * An endpoint is one connection to one peer, seen from one side. Its states:
 *
 *     CONNECTING -> UP -> (CLOSING | PEER_CLOSED) -> GONE
 *                    \-> FAILED -> (RECONNECTING -> UP) | GONE
 *
 * Operations may be posted from CONNECTING on: they wait for the peer. A lost peer completes every operation on the endpoint with
 * WEFT_ERR_PEER: at once if its process or host says so, within the heartbeat bound if it only falls silent.
 *
 * Endings: a listener and an endpoint stay known after they were closed, by the program or with their runtime: calls on them
 * return WEFT_ERR_CLOSED, the state is WEFT_EP_GONE, and weft_listener_uri() is NULL. A second close returns WEFT_ERR_CLOSED,
 * or its operation completes with that.
 *
 * Threads: every call here may be made from any thread; callbacks run in progress. */
#ifndef WEFT_CONN_H
#define WEFT_CONN_H

#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_listener weft_listener_t;
typedef struct weft_ep weft_ep_t;

typedef enum weft_ep_state {
    WEFT_EP_CONNECTING = 1,
    WEFT_EP_UP = 2,
    WEFT_EP_CLOSING = 3,      /* weft_ep_close() was called here */
    WEFT_EP_PEER_CLOSED = 4,  /* the peer closed: what it sent can still be received, nothing can be sent */
    WEFT_EP_RECONNECTING = 5,
    WEFT_EP_FAILED = 6,       /* lost for good; receives of what had already arrived still work */
    WEFT_EP_GONE = 7
} weft_ep_state_t;

/* --- listening ------------------------------------------------------------------------------------------------------------- */

/* A new endpoint, once per peer that connected and passed the hello. It is yours to close. Runs in progress. */
typedef void (*weft_accept_fn)(weft_listener_t *listener, weft_ep_t *ep, void *user);

/* Decides on a peer after its hello and before it gets an endpoint: WEFT_OK takes it, any error refuses it, and the peer
 * is told that status. `name` is the peer's instance name, `address` where it comes from. Runs in progress. */
typedef weft_status_t (*weft_admit_fn)(const char *name, const char *address, void *user);

/* Who wants to become an endpoint. Strings are valid during the call. */
typedef struct weft_newcomer {
    size_t size;
    const char *name, *address; /* as weft_admit_fn has them: what it says of itself, and where it comes from */
    const char *identity;       /* what it proved: as in weft_ep_info_t */
    const char *cipher;         /* of TLS; "": it did not come over tls:// */
    bool authenticated;         /* it proved the key, or its certificate */
} weft_newcomer_t;
/* As weft_admit_fn, and knows more of the peer. Runs in progress. */
typedef weft_status_t (*weft_admit_peer_fn)(const weft_newcomer_t *peer, void *user);

typedef struct weft_listen_opts {
    size_t size;
    weft_accept_fn accept;   /* NULL: take endpoints with weft_listener_accept() */
    weft_admit_fn admit;     /* NULL: everyone who passes authentication */
    void *user;
    uint32_t backlog;        /* connections in their hello, and endpoints that wait to be accepted, at one time. When there are
                                so many, an endpoint whose peer is gone, or an old connection that has shown no key, makes way
                                for a new one. Default is: 1024 */
    const struct weft_ep_hooks *hooks; /* for every accepted endpoint; copied */
    uint64_t reconnect_ns;   /* how long a lost endpoint is kept for its peer's return, if its hook says so. Default is: 30 s */
    weft_admit_peer_fn admit_peer; /* asked after `admit`: both have to take the peer. NULL: nobody more is asked */
    const struct weft_tls_opts *tls; /* certificates of this listener's own (weft_tls_opts_t of weft/runtime.h); read during the
                                call. NULL: the runtime's */
} weft_listen_opts_t;
#define WEFT_LISTEN_OPTS_INIT WEFT_INIT(weft_listen_opts_t)

/* Listen on `uri`: "tcp://127.0.0.1:13337", "tcp://[::1]:0" (0 picks a port), "tcp://0.0.0.0:0", "tcp://eth0:0" (a device's
 * addresses), "tls://" in place of "tcp://" (encrypted: docs/design/tls.md), "unix:///path" or "unix://@name" (this machine
 * only), or several joined by commas. The listener binds nothing but what is named. But a runtime, of a server or a client,
 * opens one more port with the first peer that it reaches over the transport tcp: for data, picked by the system, on all network
 * devices or those of `interfaces` (docs/guide/configuration.md).
 *
 * Owns:    *listener_out is yours until weft_listener_close().
 * Fails:   WEFT_ERR_INVALID (malformed uri, certificates that cannot be used), WEFT_ERR_UNSUPPORTED (TLS, without OpenSSL),
 *          WEFT_ERR_ADDRESS (in use, not of this machine, no such device),
 *          WEFT_ERR_LIMIT, WEFT_ERR_NOMEM, WEFT_ERR_STATE (inside a callback of another runtime), WEFT_ERR_CLOSED.
 *          *listener_out is untouched and nothing stays bound. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_listen(weft_runtime_t *rt, const char *uri, const weft_listen_opts_t *opts,
                                                   weft_listener_t **listener_out);

/* The addresses bound, as URIs joined by commas, with the ports that were picked. Valid until the listener is closed. */
WEFT_API const char *weft_listener_uri(const weft_listener_t *listener);
/* The same, copied, for a thread beside which another may close the listener or its runtime: to buf, which has room for *len
 * bytes, the terminator included; *len is then the length without it. With buf NULL only the length.
 * Fails: WEFT_ERR_INVALID, WEFT_ERR_LIMIT (*len says how long it is), WEFT_ERR_CLOSED, WEFT_ERR_FORKED. Any thread. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_listener_copy_uri(weft_listener_t *listener, char *buf, size_t *len);
/* The port of the first TCP address, 0 if there is none. */
WEFT_API uint16_t weft_listener_port(const weft_listener_t *listener);

/* Take the next endpoint: completes with its id in op->from, and the endpoint, weft_op_ep(op) (not to be
 * passed to weft_buf_free). Only for listeners without an accept callback. Several may be posted: a batch. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_listener_accept(weft_listener_t *listener, weft_op_t *op);
/* The endpoint of an operation that is complete; NULL if it failed. */
static inline weft_ep_t *weft_op_ep(const weft_op_t *op) { return op->status ? NULL : (weft_ep_t *)op->buf; }

/* Wait for the next endpoint: WEFT_OK and it, or WEFT_ERR_TIMEOUT, _CLOSED, _STATE (inside a callback). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_listener_accept_wait(weft_listener_t *listener, uint64_t timeout_ns,
                                                                 weft_ep_t **ep_out);

/* Stop listening. Endpoints already accepted live on; hellos under way are dropped; pending accepts complete with
 * WEFT_ERR_CLOSED; no callback comes after it returns if called on the driving thread, or after op completes. op may be NULL. */
WEFT_API weft_status_t weft_listener_close(weft_listener_t *listener, weft_op_t *op);

/* --- connecting ------------------------------------------------------------------------------------------------------------ */

typedef enum weft_on_failure { WEFT_GIVE_UP = 0, WEFT_RECONNECT = 1 } weft_on_failure_t;

/* Asked once per failure. The endpoint's operations have completed with `why` by then. Runs in progress. On the accepting side
 * WEFT_RECONNECT means: keep the endpoint for the peer's return, for the listener's reconnect_ns at most. */
typedef weft_on_failure_t (*weft_ep_failed_fn)(weft_ep_t *ep, weft_status_t why, void *user);
/* Called once, when the endpoint is of no more use: `why` is WEFT_OK after a close by either side (see the state), or the error.
 * Not called for an endpoint whose connect never succeeded: its connect operation says so. Runs in progress. */
typedef void (*weft_ep_closed_fn)(weft_ep_t *ep, weft_status_t why, void *user);

typedef struct weft_ep_hooks {
    weft_ep_failed_fn failed; /* NULL: give up */
    weft_ep_closed_fn closed; /* NULL: nobody is told */
    void *user;
} weft_ep_hooks_t;

typedef struct weft_ep_opts {
    size_t size;
    const char *source;           /* local address to connect from, "192.0.2.7" or "[2001:db8::1]:0"; NULL: any */
    weft_ep_hooks_t hooks;
    uint64_t reconnect_ns;        /* how long to try after a failure. Default is: 30 s */
    uint64_t reconnect_first_ns;  /* first pause between tries; doubles up to 5 s, with jitter. Default is: 50 ms */
    const void *address;          /* weft_runtime_address() of the peer, instead of a uri */
    size_t address_len;
    bool shared;                  /* give the cached endpoint to the same uri if there is one: each open is paired with
                                     a close, and the last one closes it. Default is: a connection of its own */
    bool no_retry;                /* fail at once when nobody is there. Default is: try again until the connect timeout, with
                                     pauses from 50 ms to 1 s, since the server may only be about to start */
    uint32_t shard;               /* on which shard of the runtime it is: 1 for the first, and so on. Default is: the shard whose
                                     callback this is, else the one with the least to do; the first if it is `shared` */
    const struct weft_tls_opts *tls; /* certificates of this endpoint's own (weft_tls_opts_t of weft/runtime.h); read during the
                                     call, and used by each reconnect. Not with `shared`. NULL: the runtime's */
} weft_ep_opts_t;
#define WEFT_EP_OPTS_INIT WEFT_INIT(weft_ep_opts_t)

/* Open an endpoint to `uri` ("tcp://host:port", "tcp://[::1]:port", "tls://host:port", "unix://@name"; several joined by
 * commas are tried in order), or to opts->address with uri NULL. opts may be NULL.
 *
 * Returns at once. `op` completes when the peer has answered, or the connect timeout is over, with WEFT_OK, WEFT_ERR_REFUSED
 * (nobody listens there, or the listener said no), _UNREACHABLE, _AUTH, _VERSION, _TIMEOUT, _ADDRESS (no such name),
 * _PROTOCOL; op->from is the endpoint's id. op may be NULL: operations posted on the endpoint then tell. Operations posted
 * before the peer has answered wait for it; if it never does they complete with the error the connect completed with.
 *
 * Owns:    *ep_out is yours until weft_ep_close(). `uri` and `opts` are copied.
 * Fails:   WEFT_ERR_INVALID (malformed uri or address, certificates that cannot be used), WEFT_ERR_UNSUPPORTED (certificates,
 *          without OpenSSL), WEFT_ERR_LIMIT, WEFT_ERR_NOMEM. Nothing was started and *ep_out is untouched. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_ep_open(weft_runtime_t *rt, const char *uri, const weft_ep_opts_t *opts,
                                                    weft_op_t *op, weft_ep_t **ep_out);

/* Open an endpoint and wait until the peer has answered, for timeout_ns at most, and for the connect timeout. An error leaves
 * nothing open. Not inside a callback: WEFT_ERR_STATE. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_ep_connect(weft_runtime_t *rt, const char *uri, const weft_ep_opts_t *opts,
                                                       uint64_t timeout_ns, weft_ep_t **ep_out);

/* Close gracefully: no new operations; sends already posted are finished and everything sent reaches the peer; then op completes
 * with WEFT_OK and op->count = how many of our messages the peer holds that its program has not yet received. Receives still
 * posted on it complete with WEFT_ERR_CLOSED at once. Closing before the peer has answered gives the connection up: what waits
 * for it completes with WEFT_ERR_CANCELLED. If the peer does not cooperate within close_timeout_ns, or op->timeout_ns, it is
 * forced and op completes with WEFT_ERR_TIMEOUT; if the peer is lost, with WEFT_ERR_PEER. The endpoint is gone when op
 * completes. op may be NULL. */
WEFT_API weft_status_t weft_ep_close(weft_ep_t *ep, weft_op_t *op);

/* Close now: operations under way complete with WEFT_ERR_CANCELLED, unsent data is dropped. The peer sees WEFT_ERR_PEER.
 * op (may be NULL) completes once the fabric has let go of everything. Cancelling the operation of weft_ep_close() does the
 * same to a close that is under way. */
WEFT_API weft_status_t weft_ep_abort(weft_ep_t *ep, weft_op_t *op);

/* --- asking ---------------------------------------------------------------------------------------------------------------- */

/* Its id: the same through reconnects, and never that of another. */
WEFT_API weft_ep_id_t weft_ep_id(const weft_ep_t *ep);
/* The endpoint with that id, or NULL if it is gone. */
WEFT_API weft_ep_t *weft_ep_find(weft_runtime_t *rt, weft_ep_id_t id);
WEFT_API weft_ep_state_t weft_ep_get_state(const weft_ep_t *ep);
WEFT_API weft_runtime_t *weft_ep_runtime(const weft_ep_t *ep);

/* What a peer can do, from its hello. Bit 3 is libweft-elements' (weft/store.h), bits 32 to 63 are extensions'
 * (weft/extend.h). */
#define WEFT_CAN_MSG UINT64_C(1) /* tag messages */
#define WEFT_CAN_AM  UINT64_C(2) /* active messages */
#define WEFT_CAN_RMA UINT64_C(4) /* remote memory: it answers, whether it has regions or not */
#define WEFT_CAN_RPC UINT64_C(16) /* calls (weft/rpc.h): it answers, whether it has services or not */
#define WEFT_CAN_DEVICE UINT64_C(32) /* memory of GPUs: it can be told where it lies, and copy it itself */

typedef struct weft_ep_info {
    size_t size;
    weft_ep_id_t id;
    weft_ep_state_t state;
    const char *peer_name;     /* instance name from the hello; "" before */
    const char *peer_address;  /* where it is, as a URI */
    const char *transport;     /* "shm", "tcp", "ucx"; "" before */
    uint64_t peer_capabilities; /* WEFT_CAN_* */
    bool authenticated;        /* both sides proved the key, or their certificates */
    bool same_host;
    uint64_t msgs_sent, msgs_received, bytes_sent, bytes_received; /* received: arrived here, taken by a receive or not */
    uint64_t ams_sent, ams_received, am_bytes_sent, am_bytes_received; /* active messages, headers included */
    uint64_t am_held, am_held_bytes; /* of them, waiting or kept here now, and what of the window that takes */
    const char *cipher;        /* of TLS, "TLS_AES_128_GCM_SHA256"; "": the two did not meet over tls:// */
    const char *identity;      /* who the peer is: the first DNS name, email address or URI in the SAN of its certificate, else
                                  the name of the key that it proved; "": neither has one */
} weft_ep_info_t;
#define WEFT_EP_INFO_INIT WEFT_INIT(weft_ep_info_t)
/* Strings are valid until the endpoint is closed. */
WEFT_API weft_status_t weft_ep_get_info(const weft_ep_t *ep, weft_ep_info_t *info_out);

/* How a peer can reach this runtime without knowing a listener: an opaque blob of at most *len bytes is written to buf and its
 * length to *len; with buf NULL only the length. The first call starts to listen on this machine's addresses that
 * WEFT_INTERFACES allows. Endpoints that come this way go to `opts->accept`; later calls ignore opts.
 * Fails: WEFT_ERR_LIMIT (buf too small, *len says how much), WEFT_ERR_INVALID (no accept callback on the first call),
 * WEFT_ERR_STATE (inside a callback of another runtime), WEFT_ERR_CLOSED. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_runtime_address(weft_runtime_t *rt, const weft_listen_opts_t *opts, void *buf,
                                                            size_t *len);

#ifdef __cplusplus
}
#endif
#endif
