/* weft/runtime.h - a runtime: one progress engine with its fabrics, timers and endpoints.
 *
 * A process may have several (one per core is a good number); they share nothing but the log sink.
 *
 * Three ways to be driven:
 *   WEFT_PROGRESS_CALLER  no thread. Whoever waits, or calls weft_runtime_progress(), drives. Lowest latency. Nothing moves
 *                         unless one of them does: of several messages posted in a row the first leaves at once, the others
 *                         may leave together with the next progress. Peers do not lose a program that does not drive:
 *                         heartbeats come from a thread of the process (see heartbeat_ns).
 *   WEFT_PROGRESS_THREAD  a thread of the runtime's own drives: it spins for spin_ns after the last event, then sleeps
 *                         until the kernel wakes it. Callbacks run on it. An idle runtime uses no CPU.
 *   WEFT_PROGRESS_LOOP    a foreign event loop drives: poll weft_runtime_fd(), call weft_runtime_progress() until it
 *                         returns 0, then weft_runtime_arm(); if that says WEFT_ERR_AGAIN, progress again. Poll no longer
 *                         than weft_runtime_next_timeout().
 *
 * Shards: a runtime with a thread of its own may have several, each with a thread and connections of its own, so that a service
 * uses as many cores as the machine has. It stays one object: one address, one set of services, handlers and regions, one close.
 * A new connection goes to the shard that has the least to do, and stays there. Its callbacks, hooks, handlers and functions run
 * on the thread of that shard, and those of other shards at the same time: what they share needs locks, or is kept once for each
 * shard (weft_runtime_shard()). What one endpoint sends arrives in its order, as ever; between endpoints there is no order.
 * Operations of all shards share queues, tokens and groups, and can be waited for together.
 *
 * Other threads hand what they post to the thread that drives. If they post faster than it can follow, they are slowed down:
 * with more than 8,192 posts waiting, each further one takes up to a millisecond. */
#ifndef WEFT_RUNTIME_H
#define WEFT_RUNTIME_H

#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_progress_mode {
    WEFT_PROGRESS_DEFAULT = 0, /* as configured (WEFT_PROGRESS), caller if not */
    WEFT_PROGRESS_CALLER = 1,
    WEFT_PROGRESS_THREAD = 2,
    WEFT_PROGRESS_LOOP = 3
} weft_progress_mode_t;

/* What TLS proves with: certificates of our own, in files in PEM. For a runtime (then also for all that it listens at and calls),
 * or for one listener or endpoint. NULL in a field: what the runtime has, or the variable says. A key that the runtime has
 * serves beside them. docs/design/tls.md. */
typedef struct weft_tls_opts {
    size_t size;
    const char *cert;            /* WEFT_TLS_CERT: our certificate and those between it and the authority */
    const char *key;             /* WEFT_TLS_KEY: its private key */
    const char *ca;              /* WEFT_TLS_CA: the authorities whose certificates are believed */
    const char *mode;            /* of a runtime, NULL elsewhere. WEFT_TLS: "auto", "off" or "required". Default is: auto, TLS
                                    at tcp:// with peers elsewhere if there is a key or certificates */
} weft_tls_opts_t;
#define WEFT_TLS_OPTS_INIT WEFT_INIT(weft_tls_opts_t)

/* Zero in any field means: as configured by environment or file, and the stated default if it is not configured.
 * Strength: this struct, then the environment (WEFT_*), then the file named by WEFT_CONFIG_FILE. `weft info` lists all. */
typedef struct weft_runtime_opts {
    size_t size;                 /* sizeof(weft_runtime_opts_t); WEFT_RUNTIME_OPTS_INIT sets it */
    weft_progress_mode_t progress;
    uint64_t spin_ns;            /* WEFT_SPIN: how long to spin before sleeping. Default is: 50 us on a runtime's own thread,
                                    2 ms in a caller's wait */
    const char *name;            /* WEFT_NAME: instance name shown to peers. Default is: program-pid */
    const char *transports;      /* WEFT_TRANSPORTS: "all", "shm", "tcp", or a list of those and of UCX transport names.
                                    Default is: all */
    const char *interfaces;      /* WEFT_INTERFACES: network devices that may be used, comma separated. Default is: all */
    const void *key;             /* WEFT_KEY_FILE: pre-shared key, 16 to 65536 bytes; NULL for none. A key from "weft key new" is
                                    used as it is, and there may be several lines of them, each with a name behind it: the
                                    first is proved to those who are called, and all are accepted. Anything else counts as
                                    typed by a person, and is stretched with Argon2id, which takes 60 ms and 32 MiB once per
                                    process (docs/design/security.md). Copied, wiped on close. The file is read again when it
                                    changes: connections of a key that is no longer in it end. */
    size_t key_len;
    uint64_t heartbeat_ns;       /* WEFT_HEARTBEAT: a silent peer is lost within this time, perhaps before all of it has
                                    passed. Default is: 5 s. One thread of the process sends heartbeats, whatever the program
                                    does: a process that runs is not lost, and one that was killed or stopped, or whose host is
                                    cut off, is */
    uint64_t connect_timeout_ns; /* WEFT_CONNECT_TIMEOUT: Default is: 10 s */
    uint64_t close_timeout_ns;   /* WEFT_CLOSE_TIMEOUT: a graceful close that takes longer is forced. Default is: 10 s */
    size_t recv_window;          /* WEFT_RECV_WINDOW: bytes of messages nobody asked for yet that one peer may leave here.
                                    Default is: 256 KiB */
    size_t shm_ring;             /* WEFT_SHM_RING: bytes of shared-memory ring per direction. Default is: 64 KiB */
    uint32_t max_endpoints;      /* WEFT_MAX_ENDPOINTS: Default is: 65536 */
    size_t am_window;            /* WEFT_AM_WINDOW: bytes of active messages that one peer may leave here, waiting or kept.
                                    Default is: 1 MiB */
    uint32_t am_messages;        /* WEFT_AM_MESSAGES: how many of them. Default is: 2048 */
    uint64_t am_hold_ns;         /* WEFT_AM_HOLD: how long the payload of one may wait at its sender to be pulled. Default is:
                                    30 s */
    bool trusted;                /* WEFT_TRUSTED: the fabric under UCX is trusted: peers that proved the key, which is needed, may
                                    use its one-sided operations, which check nothing (docs/design/security.md). Default is:
                                    not */
    bool heartbeat_by_program;   /* WEFT_HEARTBEAT_BY=program: heartbeats of this runtime are sent only while the program
                                    drives it, so that peers lose a program that hangs. Then drive it a few times per bound, the
                                    smaller of both sides'. Default is: not */
    bool key_random;             /* `key` is 32 random bytes, used as they are. Both sides must set it */
    uint32_t shards;             /* WEFT_SHARDS: threads that drive it, each with connections of its own: 1 to WEFT_SHARDS_MAX, or
                                    WEFT_SHARDS_AUTO for one on each core that the process may use. More than one need
                                    WEFT_PROGRESS_THREAD, which is then the default; WEFT_SHARDS counts for no other.
                                    Default is: 1 */
    const weft_tls_opts_t *tls;  /* certificates; copied, and read when TLS is first needed. NULL: as the variables say */
} weft_runtime_opts_t;

#define WEFT_SHARDS_MAX 128u
#define WEFT_SHARDS_AUTO UINT32_MAX

#define WEFT_RUNTIME_OPTS_INIT WEFT_INIT(weft_runtime_opts_t)

/* Open a runtime. opts may be NULL.
 *
 * Owns:    *rt_out is yours until weft_runtime_close(). Everything in opts is copied.
 * Threads: any.
 * Fails:   WEFT_ERR_INVALID (a value out of range, a malformed variable: weft_last_error() names it), WEFT_ERR_NOMEM
 *          (also for stretching the key), WEFT_ERR_LIMIT (no file descriptors), WEFT_ERR_SYSTEM. *rt_out is untouched. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_runtime_open(const weft_runtime_opts_t *opts, weft_runtime_t **rt_out);

/* Close a runtime: forces every endpoint and listener that is still open down, completes every operation that is still under
 * way (WEFT_ERR_CLOSED), delivers those completions, stops the thread, and frees it. Close endpoints first to lose nothing.
 *
 * Threads: any, while others use it: their waits end, with WEFT_ERR_CLOSED where nothing better came, and their calls return
 *          WEFT_ERR_CLOSED. Objects of the runtime that are used after that say the same, until some more runtimes were closed.
 * Fails:   WEFT_ERR_STATE inside a callback of any runtime, and if a callback of another thread does not return for ten
 *          seconds: then it stays open, though of several shards some may be closed; call it again. The same if an extension
 *          does not leave it (weft_ext_leave()) for as long: then everything has ended, and it has to be called again.
 *          WEFT_ERR_CLOSED: it is closed, or another thread closes it. In a forked child it frees what it can and returns
 *          WEFT_ERR_FORKED. NULL is allowed. */
WEFT_API weft_status_t weft_runtime_close(weft_runtime_t *rt);

/* Drive a caller-driven or loop-driven runtime once; how many events it handled (0: nothing to do). Any thread; if
 * another thread is driving it returns 0 at once. Runs callbacks. On a thread-driven runtime it does nothing and returns 0. */
WEFT_API unsigned weft_runtime_progress(weft_runtime_t *rt);

/* Run fn(user) once in the runtime's progress: on its thread, or on the thread that drives it, as a callback of it; never
 * inside this call. Of several shards it is the one whose callback calls this, else the first. For what has to be done where
 * callbacks run: looking up an endpoint, a step of a scheduler. op (may be NULL) completes after fn returned; if it is cancelled
 * or its time is over before its turn, fn is not called, and op says why.
 *
 * Threads: any.
 * Fails:   WEFT_ERR_INVALID, WEFT_ERR_NOMEM, WEFT_ERR_CLOSED, WEFT_ERR_FORKED: fn is not called. */
typedef void (*weft_run_fn)(void *user);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_runtime_call(weft_runtime_t *rt, weft_run_fn fn, void *user, weft_op_t *op);

/* For WEFT_PROGRESS_LOOP (works in CALLER too): an fd that is readable when there is something to do, valid until close. */
WEFT_API int weft_runtime_fd(weft_runtime_t *rt);
/* Prepare to sleep on the fd: WEFT_OK, or WEFT_ERR_AGAIN when there is work to do first. */
WEFT_API weft_status_t weft_runtime_arm(weft_runtime_t *rt);
/* Nanoseconds until the next timer, 0 if one is due, WEFT_FOREVER if there is none. */
WEFT_API uint64_t weft_runtime_next_timeout(weft_runtime_t *rt);

/* The runtime's clock, nanoseconds. The same for all runtimes of a process, and NULL. */
WEFT_API uint64_t weft_now(weft_runtime_t *rt);

/* The instance name this runtime shows to peers. Valid until close. */
WEFT_API const char *weft_runtime_name(const weft_runtime_t *rt);

/* Counters since open, for people and for tests. */
typedef struct weft_runtime_stats {
    size_t size;
    uint64_t ops_posted, ops_completed;
    uint64_t sleeps, wakeups, rescued_wakeups; /* rescued: found by the safety timer, not by the event. Should stay 0 */
    uint64_t endpoints, endpoints_failed, reconnects;
    uint64_t msgs_sent, msgs_received, bytes_sent, bytes_received;
    uint64_t unexpected_bytes;                 /* held now for receives not yet posted */
    uint64_t ams_sent, ams_received, am_bytes_sent, am_bytes_received; /* active messages, headers included */
    uint64_t am_held, am_held_bytes;           /* of them, waiting or kept now, and what of the windows that takes */
    uint64_t rma_mapped, rma_checked, rma_native; /* operations on remote memory of others, by the path that each took */
    uint64_t rma_served, rma_refused;          /* accesses of peers to regions here that were checked: done, and refused */
    /* Memory of GPUs, and what way payloads in it took: */
    uint64_t device_copies;                    /* copies handed to a GPU without waiting for it; several pieces count as one */
    uint64_t device_direct;                    /* payloads copied here straight out of a peer's device memory; mapped reads of a
                                                  region are in rma_mapped */
    uint64_t device_relayed;                   /* pieces sent through host memory that is shared with the peer */
    uint64_t device_bounced;                   /* pieces sent through device memory of the library's own */
    uint64_t device_staged;                    /* pieces sent or received through page-locked memory and the transport */
    uint64_t device_imports;                   /* times that device memory of a peer was opened */
    /* Shards: */
    uint64_t shards;                           /* how many these counters are the sum of */
    uint64_t connections;                      /* open ones, those in their hello included */
    uint64_t busy;                             /* thousandths of one processor that its own threads have used lately */
    uint64_t checksum_errors;                  /* times that bytes were changed on the way, and WEFT_CHECKSUM found it */
    uint64_t policy_refused;                   /* what the policy did not allow to peers: connections, bindings, requests */
    /* TLS: */
    uint64_t tls_handshakes;                   /* of connections, made here or by peers, in which each proved who it is */
    uint64_t tls_resumed;                      /* of them, short ones: they had shown their certificates within the last hour */
} weft_runtime_stats_t;
#define WEFT_RUNTIME_STATS_INIT WEFT_INIT(weft_runtime_stats_t)
/* The sums of all shards: each is asked, and it waits until every one has answered, so a callback that blocks keeps it waiting.
 * Fails: WEFT_ERR_INVALID (a NULL), _STATE (inside a callback of another runtime, or of one with several shards), _CLOSED,
 * _FORKED: *stats_out is untouched. */
WEFT_API weft_status_t weft_runtime_get_stats(weft_runtime_t *rt, weft_runtime_stats_t *stats_out);

/* How many shards it has; 0 for NULL. */
WEFT_API uint32_t weft_runtime_shards(const weft_runtime_t *rt);
/* The shard of it whose callback this is: 0 to weft_runtime_shards() - 1. UINT32_MAX: this thread is in no callback of it. */
WEFT_API uint32_t weft_runtime_shard(const weft_runtime_t *rt);
/* Counters of one shard alone. Fails: as weft_runtime_get_stats(); _RANGE: it has no such shard; _STATE: inside a callback of
 * another shard. */
WEFT_API weft_status_t weft_runtime_get_shard_stats(weft_runtime_t *rt, uint32_t shard, weft_runtime_stats_t *stats_out);

#ifdef __cplusplus
}
#endif
#endif
