/* fabric/fabric.h - what a network must offer. The only door to it.
 *
 * A fabric has two kinds of thing:
 *
 *   wires   ordered byte-message channels for the first minute of an acquaintance: hello, authentication, the exchange of
 *           addresses. Slow and careful; a wire stays open for the life of the connection, because the kernel closes it
 *           at once when the peer's process dies. fabric/sock makes them of TCP and Unix sockets.
 *   transports  fast ways to move records and payloads: fabric/shm (memory shared on one host), fabric/tcp (our own), fabric/ucx
 *           (everything UCX can do). A connection over a transport is a lane. The hello chooses which transport is used.
 *
 * fabric/real.c joins sock, shm, tcp and ucx into the fabric a runtime uses. tests/simnet is a second implementation, with
 * virtual time and one seed.
 *
 * Threads:  everything here is called by the one thread that drives the runtime, upcalls included, except wake() and
 *           what is said to be for any thread.
 * Upcalls:  only from inside progress() unless a function says otherwise. An upcall may call any function here on any object,
 *           close() of the very lane or wire it came from included; after close() no upcall but `lane_closed` comes.
 *
 * Promises (tests/sim and tests/wire hold each implementation to them):
 *   - records and announcements of one lane arrive in the order they were committed or announced, each once or not at all,
 *     and not at all only at the end: when the lane fails or is closed;
 *   - every transfer started (announce, pull, get, put: WEFT_OK) is done exactly once, and only after the fabric has let go of
 *     the buffers;
 *   - bytes from a peer never make the fabric touch memory outside what it was given: a peer that breaks the protocol
 *     fails its own lane or wire with WEFT_ERR_PROTOCOL. */
#ifndef WEFTI_FABRIC_H
#define WEFTI_FABRIC_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/op.h> /* weft_iov_t */
#include <weft/status.h>

#include "base/config.h"
#include "base/list.h"
#include "base/keys.h"
#include "base/uri.h"

typedef struct wefti_fabric wefti_fabric_t;
typedef struct wefti_transport wefti_transport_t;
typedef struct wefti_lane wefti_lane_t;
typedef struct wefti_pull wefti_pull_t;
typedef struct wefti_wire wefti_wire_t;
typedef struct wefti_acceptor wefti_acceptor_t; /* a bound address where wires arrive */
struct wefti_guard; /* of fabric/tls */

/* A wire that is in no fabric: on its way from one shard to another. */
typedef struct wefti_loose {
    int fd;
    bool tls;                    /* it speaks TLS, or will */
    bool unasked;                /* it has to, since it comes from another host; its address does not say so */
    bool either;                 /* or it may: its first byte says so */
    struct wefti_stream *stream; /* its TLS; NULL: that has not begun, or there is none */
    struct wefti_guard *guard;   /* what it proves with, the loose wire's own share of it; NULL: the runtime's */
} wefti_loose_t;

/* One transfer under way, embedded by whoever starts it. */
typedef struct wefti_xfer wefti_xfer_t;
struct wefti_xfer {
    void (*done)(wefti_xfer_t *x, weft_status_t status); /* set by the starter */
};

/* --- upcalls: filled in by conn ----------------------------------------------------------------------------------- */

#define WEFTI_AHEAD_MAX 16u /* records that are told of together */
typedef struct wefti_ahead {
    const void *rec;
    size_t n;
} wefti_ahead_t;

typedef struct wefti_fabric_up {
    /* wires */
    /* A wire arrives at an acceptor. True: it is taken elsewhere, and is the callee's from now on, for wire_adopt() or
     * wire_drop(). False, or NULL here: wire_accepted comes next. */
    bool (*wire_elsewhere)(void *acceptor_user, const wefti_loose_t *loose, uint64_t source, const char *from);
    /* A wire arrived at an acceptor. Set wire->user, or wefti_wire_close() it. from: the peer's address as a URI. */
    void (*wire_accepted)(void *acceptor_user, wefti_wire_t *wire, const char *from);
    /* There is no descriptor left for a newcomer at this acceptor. True: a wire was closed to make space for it. May be NULL. */
    bool (*make_way)(void *acceptor_user);
    void (*wire_opened)(void *wire_user);                                  /* a dialled wire is connected */
    void (*wire_message)(void *wire_user, const void *bytes, size_t n);    /* one whole message; valid during the call */
    /* The wire is over: never connected (REFUSED, UNREACHABLE, TIMEOUT, ADDRESS), ended by the peer or its death (PEER), the
     * peer was silent for the bound of wire_watch() (TIMEOUT), bytes that are not ours (PROTOCOL). The wire is gone when this
     * returns: do not close it. It comes once for each wire that we did not close. Where TLS failed, since one does not believe
     * the other (AUTH), does not speak it (PROTOCOL) or cannot (UNSUPPORTED, INVALID), weft_last_error() has a sentence. */
    void (*wire_closed)(void *wire_user, weft_status_t why);

    /* lanes */
    void (*record)(void *lane_user, const void *rec, size_t n);            /* valid during the call */
    /* These records are here, and come next, unless something ends the lane: time to fetch the memory they will need. Only
     * while wefti_fabric_t.look_ahead, and only from transports that can. The bytes may change until record(). */
    void (*ahead)(void *lane_user, const wefti_ahead_t *recs, unsigned n);
    /* A payload of `total` bytes waits at the peer. `p` is ours until pull() or refuse(). */
    void (*announced)(void *lane_user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p);
    /* The lane was closed: p (neither pulled nor refused) is gone when this returns. */
    void (*withdrawn)(wefti_pull_t *p);
    void (*space)(void *lane_user);                                        /* reserve() and announce() may have space again */
    void (*lane_failed)(void *lane_user, weft_status_t why);               /* at most once; close() it */
    void (*lane_closed)(void *lane_user);                                  /* the last upcall: everything is done and released */
} wefti_fabric_up_t;

/* --- the fabric --------------------------------------------------------------------------------------------------- */

struct wefti_fabric {
    const struct wefti_fabric_ops *ops;
    const wefti_fabric_up_t *up; /* set by conn before any acceptor, wire or lane exists */
    wefti_transport_t *transports[4];      /* in order of preference */
    unsigned n_transports;
    bool look_ahead;             /* up->ahead is wanted: what records need is spread over more memory than a cache holds */
    uint64_t changed;            /* times that a checksum did not match */
    uint64_t secured, resumed;   /* handshakes of TLS of wires, and those among them that were short ones */
};

typedef struct wefti_fabric_ops {
    const char *name;
    /* Free it. Everything has been closed by then. */
    void (*close)(wefti_fabric_t *f);
    /* Move everything that can move without waiting; number of events. Polls sockets only now and then: a system call costs
     * more than a message; `idle` says that nothing happened lately, so that there is time to look at everything. */
    unsigned (*progress)(wefti_fabric_t *f, bool idle);
    /* Prepare to sleep on event_fd: WEFT_OK, or WEFT_ERR_AGAIN when there is something to do. */
    weft_status_t (*arm)(wefti_fabric_t *f);
    /* Awake again after a successful arm (whether slept or not). */
    void (*disarm)(wefti_fabric_t *f);
    int (*event_fd)(wefti_fabric_t *f); /* pollable; -1 where there is none (sim) */
    /* Make event_fd readable. The one function for other threads. */
    void (*wake)(wefti_fabric_t *f);
    uint64_t (*now)(wefti_fabric_t *f);
    /* Unpredictable bytes (seeded in sim). Any thread. */
    void (*random)(wefti_fabric_t *f, void *buf, size_t n);

    /* Wires. */
    /* Bind one address. `user` comes back with each wire_accepted. A tcp uri whose host is a device name or has several
     * addresses binds them all, on one port. `guard`: what its wires prove with, NULL: as the runtime does; the caller's.
     * WEFT_ERR_ADDRESS, _LIMIT, _NOMEM, _INVALID, _UNSUPPORTED with wefti_fail() detail. */
    weft_status_t (*acceptor_open)(wefti_fabric_t *f, const wefti_uri_t *uri, struct wefti_guard *guard, unsigned backlog,
                                   void *user, wefti_acceptor_t **acceptor_out);
    /* Bound addresses as URIs joined by commas. */
    const char *(*acceptor_uri)(wefti_acceptor_t *acceptor);
    void (*acceptor_close)(wefti_acceptor_t *acceptor);
    /* Connect a wire; source may be NULL ("host" or "host:port" text), guard as above. Result by wire_opened or wire_closed. At
     * once: INVALID, NOMEM, LIMIT. */
    weft_status_t (*wire_dial)(wefti_fabric_t *f, const wefti_uri_t *uri, struct wefti_guard *guard, const char *source,
                               void *user, wefti_wire_t **wire_out);
    /* A wire that arrived elsewhere, open, without an upcall. WEFT_ERR_NOMEM, _LIMIT: it is closed. */
    weft_status_t (*wire_adopt)(wefti_fabric_t *f, const wefti_loose_t *loose, uint64_t source, wefti_wire_t **wire_out);
    /* An open wire is to be adopted elsewhere: it is gone, and no upcall follows. False: it cannot be had, since something was
     * read or is to be written; the wire is as before. */
    bool (*wire_release)(wefti_wire_t *wire, wefti_loose_t *loose_out);
    /* Close one that nobody is to adopt. */
    void (*wire_drop)(wefti_fabric_t *f, const wefti_loose_t *loose);
    /* Queue one message (at most WEFTI_WIRE_MAX). WEFT_ERR_NOMEM; a broken wire says so by wire_closed. */
    weft_status_t (*wire_send)(wefti_wire_t *wire, const void *bytes, size_t n);
    /* Close after what was queued is written, as far as that goes without waiting. No upcall follows. */
    void (*wire_close)(wefti_wire_t *wire);

    /* Heartbeats on an open wire. They go on whatever the program does: a thread of the process sends them, reads the peer's,
     * and ends the wire of a peer that fell silent (fabric/pulse.h). Messages may still be sent and received beside them. */
    /* Send one every `every_ns` from now on: the smaller of both sides' bounds, divided by WEFTI_BEATS. `by_hand`: only
     * wire_beat_once() sends. Once per wire. WEFT_ERR_NOMEM, _LIMIT (no thread). */
    weft_status_t (*wire_beat)(wefti_wire_t *wire, uint64_t every_ns, bool by_hand);
    /* From now on the peer counts as lost if it is silent for bound_ns. After wire_beat(). */
    void (*wire_watch)(wefti_wire_t *wire, uint64_t bound_ns);
    void (*wire_beat_once)(wefti_wire_t *wire);

    /* The runtime's keys, for TLS, copied; NULL: it has none. Before the first wire and acceptor, and when there are others: who
     * meets from then on proves one of them. WEFT_ERR_NOMEM: it has those from before. NULL here: there is no TLS. */
    weft_status_t (*guard_keys)(wefti_fabric_t *f, const wefti_keys_t *keys);
    /* The name in our certificate by which peers know us; "": it has none, or was not read yet. NULL where guard_keys is. */
    void (*guard_name)(wefti_fabric_t *f, char *buf, size_t cap);
    /* Look at the files with certificates, and what belongs to them, of the whole process: how often they were others until now.
     * NULL where guard_keys is. */
    uint64_t (*guards_look)(void);
    /* What one listener or endpoint proves with: the certificates that `config` names, and the runtime's keys if it has any. They
     * are read now. WEFT_ERR_INVALID, _UNSUPPORTED, _NOMEM, with a sentence. Any thread. NULL here: there is no TLS. */
    weft_status_t (*guard_new)(wefti_fabric_t *f, const wefti_config_t *config, struct wefti_guard **out);
    void (*guard_free)(struct wefti_guard *guard); /* wires that have it keep it */
    /* Of a wire whose stream is not NULL. */
    void (*wire_secret)(wefti_wire_t *wire, uint8_t out[WEFTI_SECRET_SIZE]); /* only the two ends can make it */
    const char *(*wire_cipher)(wefti_wire_t *wire);
    weft_status_t (*wire_welcome)(wefti_wire_t *wire); /* would its peer's certificate be believed today, but for its time?
                                                          WEFT_ERR_AUTH, with a sentence */
    const char *(*wire_peer)(wefti_wire_t *wire); /* who it is by its certificate; "": it proved the key */

    /* Memory. All of it from any thread; NULL where the fabric has no use for it. */
    /* This range is the memfd `fd`, from its first byte on, sealed against shrinking: peers on this host may map it to read
     * payloads out of it, all of it. It stays so, and fd open, until unshare(), which the caller does before it unmaps the
     * range, and when no payload in it is announced any more. *id_out 0: of no use to anybody (huge pages, no transport for it).
     * WEFT_ERR_INVALID, _NOMEM, _LIMIT. */
    weft_status_t (*share)(wefti_fabric_t *f, void *base, size_t n, int fd, uint64_t *id_out);
    void (*unshare)(wefti_fabric_t *f, uint64_t id);
    /* Register a range with the hardware; *reg_out may be NULL where there is nothing to do. WEFT_ERR_NOMEM, _SYSTEM. */
    weft_status_t (*mem_register)(wefti_fabric_t *f, void *base, size_t n, void **reg_out);
    void (*mem_unregister)(wefti_fabric_t *f, void *reg);
} wefti_fabric_ops_t;

#define WEFTI_WIRE_MAX 65536
#define WEFTI_BEATS 8 /* heartbeats in the smaller of both sides' bounds */

struct wefti_wire {
    wefti_fabric_t *fabric;
    void *user;
    /* Of an accepted wire: the same for all wires from one address, or over a Unix socket from one process. */
    uint64_t source;
    /* Its TLS, from wire_opened or the first wire_message on; NULL: there is none. The handle of fabric/tls. */
    struct wefti_stream *stream;
    /* What leaves this host must be encrypted: if there is no stream, the peer is of this host, and its lane stays on it. */
    bool guarded;
};

/* Which side of its wire somebody is. */
enum { WEFTI_SIDE_DIALLER = 0, WEFTI_SIDE_LISTENER = 1 };

/* --- transports and lanes ----------------------------------------------------------------------------------------- */

#define WEFTI_CAPS_MAX 128     /* bytes of a transport's capabilities */
#define WEFTI_LANE_ADDR_MAX 16384 /* bytes of a lane's address */
#define WEFTI_MAP_HANDLE_MAX 64
#define WEFTI_KEY_MAX 1024
#define WEFTI_REC_MAX 4224     /* every lane's frame_max is at least this */
#define WEFTI_PEER_ID_SIZE 16

/* What conn knows from the hello when it makes a lane: each side gives the same, but for `side` and `caps`. */
typedef struct wefti_meeting {
    uint8_t side;                       /* ours */
    uint8_t secret[WEFTI_SECRET_SIZE];  /* known to the two sides only, if they proved a key or have TLS; else zeroes */
    bool tls;                           /* nothing of the lane may be in the clear on a network: it has TLS */
    bool only_here;                     /* nor if it has none: it must not leave this host */
    uint8_t binding[WEFTI_SECRET_SIZE]; /* hash over both hellos, new in each meeting: a MAC over it is good once */
    const void *caps;                   /* the peer's capabilities for this transport */
    size_t caps_n;
    uint8_t peer[WEFTI_PEER_ID_SIZE];   /* the runtime that the peer says it is */
    bool alone;                         /* the lane may not share what another one has */
    const void *join;                   /* listener: the address of the dialler's half; NULL: not known yet */
    size_t join_n;
} wefti_meeting_t;

struct wefti_transport {
    const struct wefti_transport_ops *ops;
    wefti_fabric_t *fabric;
    uint8_t kind;       /* on the wire: 1 shm, 2 ucx, 3 sim, 4 tcp */
    const char *name;   /* "shm", "ucx", "tcp" */
    int fd;             /* readable when an armed transport has something to do; -1 until its first lane, then always the same */
    bool watched;       /* the fabric has fd in its own epoll instance */
    unsigned live;      /* ucx: lanes and endpoints; 0: there is nothing that progress could move */
    bool in_the_clear;  /* what it sends may cross a network, and it cannot encrypt it */
};

struct wefti_lane {
    const struct wefti_transport_ops *ops;
    wefti_transport_t *transport;
    void *user;
    uint32_t frame_max; /* largest record */
    bool emulates;      /* get and put are done by the peer's processor, and slowly: there is no gain in them */
    bool takes_cuda;    /* CUDA memory, in one piece and whole, is announced and pulled as host memory is */
    /* Not NULL: it is a guest of that one, which lives as long, and moves its records together with those of others. The carrier
     * is nobody's to use, but for `user`: that was the first lane's, and is the caller's to set; no upcall has it. */
    wefti_lane_t *carrier;
};

struct wefti_pull {
    const struct wefti_transport_ops *ops;
    void *user; /* the receiver's: set in `announced` */
};

typedef struct wefti_transport_ops {
    /* Free it. All lanes have been closed and have said so; those of shm may also be dropped silently. */
    void (*close)(wefti_transport_t *transport);
    /* Prepare to sleep on fd: WEFT_OK, or WEFT_ERR_AGAIN (and not armed) when there is something to do. */
    weft_status_t (*arm)(wefti_transport_t *transport);

    /* Write our capabilities: what a peer must know to tell whether this transport can reach us (host id, user, versions). At
     * most WEFTI_CAPS_MAX bytes; returns how many. Cheap. `side`: whose hello it is for. The listener shows its own only to a
     * dialler whose capabilities match. */
    size_t (*caps)(wefti_transport_t *transport, int side, void *buf);
    /* Could a lane to the owner of these capabilities work? Both sides give the same answer. The peer only claims them: nothing
     * of the peer's is touched because of them. */
    bool (*match)(wefti_transport_t *transport, const void *caps, size_t n);

    /* Make our half of a lane to the peer of this meeting, and its address (at most WEFTI_LANE_ADDR_MAX; *n_out how many). The
     * address proves to that peer, and only in this meeting, that it is ours. Opens the transport if it was not yet.
     * WEFT_ERR_NOMEM, _LIMIT, _SYSTEM, _UNSUPPORTED, _UNREACHABLE (the peer's capabilities are not true). */
    weft_status_t (*lane_new)(wefti_transport_t *transport, const wefti_meeting_t *with, void *user, void *addr_buf,
                              size_t *n_out, wefti_lane_t **lane_out);
    /* Join it to the peer's half. Called once. After it, records may be sent; whether the peer gets them is for the caller to
     * find out (it waits for the peer's first record). WEFT_ERR_PROTOCOL: the address is nonsense; _UNREACHABLE (it may also be
     * another's than the peer's), _NOMEM, _SYSTEM: close it. */
    weft_status_t (*lane_connect)(wefti_lane_t *lane, const void *addr, size_t n);
    /* From now on a lane that is made to the same peer, a runtime with this id, may be a guest of this one. `peer` NULL: no more,
     * of this lane or of this carrier. No memory: it has none. NULL: the transport has no guests. */
    void (*lane_offer)(wefti_lane_t *lane, const uint8_t *peer);
    /* Force the lane down. Transfers are done (WEFT_ERR_CANCELLED, or their result), waiting pulls withdrawn, then lane_closed:
     * in later progress, never from inside this call. The lane may not be used for anything after it. */
    void (*lane_close)(wefti_lane_t *lane);

    /* Space for one record of n bytes (1 <= n <= frame_max), 8-byte aligned, or NULL when there is none now: `space` is called
     * when it may be worth trying again. Exactly one commit() follows before anything else is done with the lane. */
    void *(*reserve)(wefti_lane_t *lane, size_t n);
    /* Send the reserved record, of which the first n bytes were written. A record that is alone goes out at once; those committed
     * while an earlier one is on its way may travel together, at the next progress at the latest. The bytes are the fabric's. */
    void (*commit)(wefti_lane_t *lane, size_t n);

    /* Announce a payload: the peer gets the record (n <= WEFTI_REC_MAX / 2) and `total`, and decides. The pieces stay untouched
     * and the iov array valid until x is done: WEFT_OK when the peer has the bytes, WEFT_ERR_CANCELLED after lane_close(),
     * WEFT_ERR_REFUSED when refused. WEFT_ERR_AGAIN: no space now, as with reserve(). Never calls done from inside. */
    weft_status_t (*announce)(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n, uint64_t total,
                              wefti_xfer_t *x);
    /* Fetch the first `want` bytes of the payload (0 < want <= total) into the pieces. p is consumed. Done with WEFT_OK, or
     * WEFT_ERR_PEER when the sender vanished or closed midway (the buffer then holds nothing to rely on), _CANCELLED after
     * lane_close here. A transport may do the whole copy in here, in pieces during progress, or wait for the hardware. Never
     * calls done from inside. WEFT_ERR_NOMEM: p is still ours. */
    weft_status_t (*pull)(wefti_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
    /* Do without the payload. p is consumed; the sender's transfer is done with WEFT_OK if `taken` (as good as delivered: a
     * zero-length pull, a truncated message), else WEFT_ERR_REFUSED. */
    void (*refuse)(wefti_pull_t *p, bool taken);

    /* Lend the payload where it lies: *ptr_out is readable, in memory that outlives p, the lane and the peer, until unlend().
     * Only payloads in one piece of shared memory (see share()); NULL here or WEFT_ERR_UNSUPPORTED: pull it. p stays ours:
     * refuse(p, true) says that we are done with it, if it was not withdrawn until then (a closed lane withdraws it; the memory
     * stays, though its owner may write to it again). *lent_out is for unlend(), on the driver, once. */
    weft_status_t (*lend)(wefti_pull_t *p, const void **ptr_out, void **lent_out);
    void (*unlend)(wefti_transport_t *transport, void *lent);
    /* What is lent also outlives the transport: unlend() may then come from any thread, with a transport that is gone. */
    bool lent_outlives;

    /* Has the peer left its half open until now? What was read before out of memory that the peer lets us have, by whatever way,
     * was then the peer's to give: a peer closes before it lets go of its memory. NULL where the two are not on one host. */
    bool (*peer_open)(wefti_lane_t *lane);
    /* Descriptor `fd` of the peer's process, as one of ours that the caller closes; -1: there is none, or the system does not let
     * us have it. It is the peer's own file only if the peer has it open still: peer_open() afterwards says so where the peer
     * closes its half before the file. NULL where peer_open is. */
    int (*take_fd)(wefti_lane_t *lane, int fd);

    /* Memory that the peer of a lane maps, to read and write. NULL where the transport cannot. */
    /* Write a map handle (at most WEFTI_MAP_HANDLE_MAX bytes; returns how many) with which the peer of this lane can map the
     * memfd `fd` of n bytes, sealed against shrinking, for as long as fd is open. 0: it cannot. */
    size_t (*expose)(wefti_lane_t *lane, int fd, size_t n, void *map_handle);
    /* Map what the peer's map handle is for, all n bytes, readable and writable. The mapping outlives the lane and the peer,
     * until unmap(). WEFT_ERR_PROTOCOL: the map handle is nonsense or for something else; _UNREACHABLE: its memory is not there,
     * or not any more (the peer closed it while the map handle was on its way); _NOMEM, _LIMIT, _SYSTEM. */
    weft_status_t (*map)(wefti_lane_t *lane, const void *map_handle, size_t map_handle_n, size_t n, void **ptr_out);
    void (*unmap)(void *ptr, size_t n);

    /* One-sided access to memory of the peer: nobody there checks anything, so that these are NULL where the transport cannot,
     * and where its fabric is not marked as trusted (the variable "trusted"). Both sides must have them. */
    /* Let the peer of this lane at [base, base+n), which is ordinary memory and stays until it is taken back: `buf` gets the key
     * for it, at most WEFTI_KEY_MAX bytes; *len_out says how many. WEFT_ERR_NOMEM, _UNSUPPORTED (it cannot be registered, or its
     * key is longer). */
    weft_status_t (*key_new)(wefti_lane_t *lane, void *base, size_t n, void *buf, size_t *len_out, void **key_out);
    /* Take it back. x NULL: the peer says that it is done with it, and it is gone when this returns. Else the lane is about to
     * be closed, and x is done, with WEFT_OK and before lane_closed, when the peer can touch the range no more. One or the other
     * for each key of a lane. */
    void (*key_free)(void *key, wefti_xfer_t *x);
    /* What the peer's key is for, reached over this lane. WEFT_ERR_PROTOCOL (nonsense), _NOMEM, _UNREACHABLE. */
    weft_status_t (*key_open)(wefti_lane_t *lane, const void *bytes, size_t len, void **remote_out);
    /* Transfers under way go on. The lane may be gone. */
    void (*key_close)(void *remote);
    /* Read n > 0 bytes of it, from offset on, into the pieces, or write them. Pieces are ordinary memory and stay untouched, and
     * the iov array valid, until x is done: with WEFT_OK when the bytes are here, or in the peer's memory; WEFT_ERR_PEER,
     * _CANCELLED (lane_close), _NOMEM: any part of them may be. In no order, neither among themselves nor with records. At once,
     * and x is not done: WEFT_ERR_RANGE, _NOMEM, _PEER (the lane has failed). */
    weft_status_t (*get)(wefti_lane_t *lane, void *remote, uint64_t offset, const weft_iov_t *iov, size_t iov_n, size_t n,
                         wefti_xfer_t *x);
    weft_status_t (*put)(wefti_lane_t *lane, void *remote, uint64_t offset, const weft_iov_t *iov, size_t iov_n, size_t n,
                         wefti_xfer_t *x);
} wefti_transport_ops_t;

/* The fabric of this machine: sockets, shared memory, TCP, UCX, as `config` allows ("transports"). WEFT_ERR_INVALID (no such
 * transport), _NOMEM, _LIMIT, _SYSTEM. */
weft_status_t wefti_fabric_open_real(const wefti_config_t *config, wefti_fabric_t **fabric_out);

/* LIMIT and NOMEM for those errno that mean it, whatever was tried. */
static inline weft_status_t wefti_errno_limit(int err, weft_status_t otherwise)
{
    if (err == EMFILE || err == ENFILE || err == ENOSPC)
        return WEFT_ERR_LIMIT;
    return err == ENOMEM || err == ENOBUFS ? WEFT_ERR_NOMEM : otherwise;
}

/* Look a name up without waiting for it (lookup.c). Any thread. WEFT_ERR_NOMEM, _LIMIT. */
typedef struct wefti_lookup wefti_lookup_t;
struct addrinfo;
weft_status_t wefti_lookup_start(const char *host, wefti_lookup_t **lookup_out);
int wefti_lookup_fd(const wefti_lookup_t *lookup); /* readable when it is done */
/* What was found, valid until it is dropped; once. WEFT_ERR_AGAIN (not done yet), _ADDRESS (there is no such name), _NOMEM. */
weft_status_t wefti_lookup_result(wefti_lookup_t *lookup, const struct addrinfo **found_out);
void wefti_lookup_drop(wefti_lookup_t *lookup); /* done or not */

/* Facts for `weft info`: UCX's version, transports present. ask_ucx: for its own, too. */
void wefti_fabric_info(weft_config_fn fn, void *user, bool ask_ucx);

#endif
