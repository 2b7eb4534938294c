/* weft/element.h - elements: programs cut into memory and compute, and the transports between them, as in Scad. Of
 * libweft-elements.
 *
 * A memory element is some memory in a process of its own. A compute element is a program that was given an action: it asks the
 * action for a transport to a memory element by name, registers a buffer with it, and moves bytes between that buffer and the
 * element's memory.
 *
 *     memory:   weft_memory_open(rt, &opts, &memory);  weft_memory_durl(memory, text, &len);
 *     runtime:  weft_action_open(rt, "id", NULL, &action);  weft_action_add(action, "mem;rdma_tcp;");
 *               weft_action_configure(action, "mem", text);      (later, from any thread)
 *     program:  weft_action_get(action, "mem", "rdma", &trans);
 *               weft_transport_reg(trans, 4096, NULL);
 *               weft_transport_read(trans, 4096, 0, 0, &op);  weft_op_wait(&op, WEFT_FOREVER);
 *
 * A transport may be used before it is usable. Its states, which weft_transport_state() tells:
 *
 *     WAITING --configured--> CONNECTING --> READY --the element is lost--> LOST --it is there again--> READY
 *                                  \--it does not answer--> LOST               \--its memory is gone--> FAILED
 *     any --weft_action_release()--> RELEASED
 *
 * Transports here are element transports, not those of libweft (shm, tcp, ucx). Calls on a transport that is WAITING or
 * CONNECTING wait until it is READY, in order, within their deadline. On one that is LOST, FAILED or RELEASED they fail at once.
 * A LOST transport is dialled again meanwhile; LOST and FAILED ones can be configured anew. So a memory element that died never
 * leaves anyone blocked: WEFT_ERR_PEER at once if its process is gone, within the heartbeat bound if it fell silent, or
 * WEFT_ERR_TIMEOUT.
 *
 *     WEFT_ERR_STATE     no buffer is registered, and one is needed. Said before anything else, and before any waiting
 *     WEFT_ERR_RANGE     outside of the buffer, or of the element's memory. Nothing was touched
 *     WEFT_ERR_PEER      the element is lost; before it was ever reached also WEFT_ERR_REFUSED, _UNREACHABLE, _ADDRESS
 *     WEFT_ERR_STALE     its memory is gone, though something answers in its place: configure the transport anew
 *     WEFT_ERR_AUTH      the region key is not for it, or the runtimes' authentication keys differ
 *     WEFT_ERR_TIMEOUT   the operation's deadline, or the durl's timeout_ms if it has none
 *     WEFT_ERR_CANCELLED it was cancelled, or the action was terminated while it waited for a transport to become READY
 *     WEFT_ERR_CLOSED    the transport was released, or its action is closed
 *     WEFT_ERR_CORRUPT   no replica has a copy that is as it was written
 *
 * Replicas. With `replicas` in its durl the memory is a mirror (weft/mirror.h) on the stores of two or three memory elements
 * that were opened with `mirrored`. Reads go to another element when one is lost. There is one writer at a time: a transport
 * becomes the writer with its first write, until another one writes, or a second after its last write. Passing that on takes
 * milliseconds, so replicas do not suit a program in which many elements write all the time. There are no atomics.
 *
 * The first transport makes the memory, and needs all of the elements for that: while one is missing it is CONNECTING, and after
 * connect_ns LOST, with the reason. Later an element may be missing. A transport that is not the writer yet and wants to write
 * then waits until the host of a dead element has refused connections for two seconds. It also waits for an element that is only
 * silent, and is LOST after 20 s.
 *
 * Every 4 KiB of replicas has a checksum, made by the writer: a copy that was damaged is passed over, and mended.
 * WEFT_ERR_CORRUPT: every copy was. Without replicas only the network checks bytes, and on one host nothing does.
 *
 * Endings: calls with an action, a transport or a memory element that was closed, by any thread or with its runtime, return
 * WEFT_ERR_CLOSED. Buffers that the program holds stay until it drops them, which may be after that.
 *
 * Threads: any, for everything here. Blocking calls drive a caller-driven runtime, as weft_op_wait() does; one that is driven
 * by nobody else does not notice that elements were lost, so give elements a runtime with WEFT_PROGRESS_THREAD. */
#ifndef WEFT_ELEMENT_H
#define WEFT_ELEMENT_H

#include <weft/mirror.h>
#include <weft/op.h>
#include <weft/rma.h>
#include <weft/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- durls: where a memory element is, as text ----------------------------------------------------------------------------- */

#define WEFT_DURL_MAX      8191u /* bytes of the longest */
#define WEFT_DURL_NAME_MAX 127u  /* bytes of the longest name */

/* How Scad reached the element. Weft reaches all of them by its own remote memory: mapped on one host, over the network
 * elsewhere. */
typedef enum weft_impl {
    WEFT_IMPL_LOCAL = 1,      /* rdma_local: without a url, memory of this process */
    WEFT_IMPL_SHARED = 2,     /* rdma_shared: on this host; shm_id is where, without a url */
    WEFT_IMPL_TCP = 3,        /* rdma_tcp */
    WEFT_IMPL_UVERBS = 4,     /* rdma_uverbs */
    WEFT_IMPL_UVERBS_PROXY = 5 /* rdma_uverbs_proxy; it has no server form */
} weft_impl_t;

/* "NAME;IMPL;[KEY,VALUE;]*", taken apart. A field that the text does not have is empty or 0. */
typedef struct weft_durl {
    size_t size;                             /* of this struct; WEFT_DURL_INIT sets it */
    char name[WEFT_DURL_NAME_MAX + 1];
    weft_impl_t impl;
    bool server;                             /* IMPL ended in _server: this side has the memory */
    uint64_t bytes;                          /* size: of the memory */
    char url[512];                           /* where the element listens: URIs as weft_ep_open() takes them, joined by commas */
    char shm_id[64];                         /* letters, digits, '-', '_' and '.' */
    char peerinfo[512];                      /* kept, and of no meaning here */
    uint8_t region_key[WEFT_REGION_KEY_MAX]; /* token, in hexadecimal digits in the text: opens the memory (weft/rma.h). A
                                                secret */
    size_t region_key_len;
    uint64_t timeout_ms;                     /* for operations without a deadline */
    size_t n_replicas;
    char replica[WEFT_MIRROR_MAX][512];      /* replicas: where each is, separated by '|' in the text */
} weft_durl_t;
#define WEFT_DURL_INIT WEFT_INIT(weft_durl_t)

/* Read a durl; the text may come from anywhere. Numbers may have units as in "64k". The last ';' may be missing; a key without
 * a value counts as not there. Fails: WEFT_ERR_INVALID (weft_last_error() names the part), *durl_out untouched. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_durl_parse(const char *text, weft_durl_t *durl_out);
/* Write it back: to buf, which has room for *len bytes, the terminator included; *len is then the length without it. With buf
 * NULL only the length. Fails: WEFT_ERR_LIMIT (*len says how long it is), WEFT_ERR_INVALID (what is in it could not be read
 * back). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_durl_format(const weft_durl_t *durl, char *buf, size_t *len);
/* "rdma_local", ... with "_server" if so; "?" for what is none. */
WEFT_API const char *weft_impl_name(weft_impl_t impl, bool server);

/* --- memory elements -------------------------------------------------------------------------------------------------------- */

typedef struct weft_memory weft_memory_t;

typedef struct weft_memory_opts {
    size_t size;
    const char *name;         /* of the element. Needed */
    uint64_t bytes;           /* of its memory, which begins as zero. Needed */
    const char *uri;          /* where to listen. Default is: "tcp://127.0.0.1:0"; users on this host map the memory whatever it
                                 is */
    uint64_t spare;           /* bytes beyond that, for weft_transport_alloc(). Default is: none */
    uint64_t lease_ns;        /* of those: how long they outlive a user that was lost. Default is: 30 s */
    bool mirrored;            /* it is one of several replicas: its memory is a block that its users make, keep alike and find
                                 by `name` */
    bool named;               /* whoever is connected reaches the memory without a region key: at its address, under any name, and
                                 by its name */
    bool unmapped;            /* users on this host do not map it: every access is checked by this process */
} weft_memory_opts_t;
#define WEFT_MEMORY_OPTS_INIT WEFT_INIT(weft_memory_opts_t)

/* Open a memory element on a runtime: it listens and serves until weft_memory_close(). A runtime has at most one with spare
 * bytes or mirrored (WEFT_ERR_STATE). What is left at weft_runtime_close() goes with it. Fails: WEFT_ERR_INVALID,
 * WEFT_ERR_ADDRESS, WEFT_ERR_STATE, WEFT_ERR_LIMIT, WEFT_ERR_NOMEM. *memory_out is untouched. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_memory_open(weft_runtime_t *rt, const weft_memory_opts_t *opts,
                                                        weft_memory_t **memory_out);
/* Stop serving, hang up, give the memory back: op (may be NULL) completes when all of that is done. Do not use `memory` after
 * this call. */
WEFT_API weft_status_t weft_memory_close(weft_memory_t *memory, weft_op_t *op);

/* What its users are configured with, as weft_durl_format() writes it: a secret, since the key of the memory is in it. Of a
 * mirrored one it has one replica, itself: put those of several into one weft_durl_t. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_memory_durl(weft_memory_t *memory, char *buf, size_t *len);
/* Where it listens; valid until it is closed. */
WEFT_API const char *weft_memory_uri(const weft_memory_t *memory);
/* Its first byte, the same until it is closed; NULL for a mirrored one. */
WEFT_API void *weft_memory_base(const weft_memory_t *memory);

typedef struct weft_memory_stats {
    size_t size;
    uint64_t bytes, used_bytes;       /* of memory and spare; of them, what is in use: all of the memory, and blocks in the
                                         spare */
    uint64_t users, mapped;           /* transports attached now; of them, those that map it. Mirrored: clients with a lease */
    /* Since it was opened, as far as this process did them. Those through mapped memory happen without it: each user's
     * transport has counted them (weft_transport_get_stats()), and `weft run` adds those up. */
    uint64_t reads, writes, atomics, bytes_read, bytes_written;
    uint64_t refused;                 /* out of range, no right, no memory left */
    uint64_t connections;             /* now */
    uint64_t accepted;                /* connections since it was opened */
} weft_memory_stats_t;
#define WEFT_MEMORY_STATS_INIT WEFT_INIT(weft_memory_stats_t)
WEFT_API weft_status_t weft_memory_get_stats(weft_memory_t *memory, weft_memory_stats_t *stats_out);

/* --- actions: what a compute element is given  ------------------------------------------------------------------------ */

typedef struct weft_action weft_action_t;
typedef struct weft_transport weft_transport_t;

typedef struct weft_action_opts {
    size_t size;
    uint64_t connect_ns;      /* how long a transport that is configured stays CONNECTING at most. Default is: 10 s */
    uint64_t retry_ns;        /* the first pause between two tries; doubles up to 2 s. Default is: 20 ms */
    uint64_t spare;           /* of the memory that `_server` transports serve: see weft_memory_opts_t */
} weft_action_opts_t;
#define WEFT_ACTION_OPTS_INIT WEFT_INIT(weft_action_opts_t)

/* Open an action; id is for people, at most 127 bytes. opts may be NULL. Yours until weft_action_close(). Fails:
 * WEFT_ERR_INVALID, WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_action_open(weft_runtime_t *rt, const char *id, const weft_action_opts_t *opts,
                                                        weft_action_t **action_out);
/* Close it with all of its transports: operations under way end with WEFT_ERR_CLOSED, and op (may be NULL) completes when
 * nothing of it is under way any more. Neither it nor its transports may be used after this call; buffers that are held stay. */
WEFT_API weft_status_t weft_action_close(weft_action_t *action, weft_op_t *op);
/* The id it was opened with; valid until it is closed. */
WEFT_API const char *weft_action_id(const weft_action_t *action);

/* Add a transport. One with a place to go (url, shm_id, a region key that has one, replicas; a size, for rdma_local and for
 * servers) connects at once; any other waits for weft_action_configure(). Fails: WEFT_ERR_INVALID (the durl), WEFT_ERR_STATE
 * (there is one of that name), WEFT_ERR_NOMEM, and what opening a server's memory came to. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_action_add(weft_action_t *action, const char *durl);
/* Say where a transport leads, or that it now leads elsewhere: operations under way end where they began. The durl's own name
 * is the element's; `name` is the transport's. The durl may also be its keys alone, "url,tcp://host:7000;size,4096;": the rest
 * is then the transport's own. Fails: WEFT_ERR_NOTFOUND, WEFT_ERR_INVALID (the durl; a server for a client; one with no place
 * in it), WEFT_ERR_CLOSED (released), WEFT_ERR_STATE (a server that serves, rdma_local that has its memory), WEFT_ERR_NOMEM,
 * and what opening a server's memory came to. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_action_configure(weft_action_t *action, const char *name, const char *durl);

/* The transport of that name: the same one every time, the action's. type is "rdma" or "rdma_server". It may be WAITING.
 * Fails: WEFT_ERR_INVALID (no such type, or the transport is of the other one), WEFT_ERR_NOTFOUND. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_action_get(weft_action_t *action, const char *name, const char *type,
                                                       weft_transport_t **trans_out);

/* Let go of an element: of the transport of that name and of all "name@i". Operations under way end, and every use from then on
 * fails, with WEFT_ERR_CLOSED; the name is free for weft_action_add(). Fails: WEFT_ERR_NOTFOUND. */
WEFT_API weft_status_t weft_action_release(weft_action_t *action, const char *name);
/* The action's time is over: operations that wait for a transport to become READY end with WEFT_ERR_CANCELLED, from now on none
 * waits, and weft_transport_serve() ends with WEFT_OK. What is READY still works. Any number of times. */
WEFT_API void weft_action_terminate(weft_action_t *action);
WEFT_API bool weft_action_terminated(const weft_action_t *action);

/* --- transports  ------------------------------------------------------------------------------------------------------ */

typedef enum weft_transport_state {
    WEFT_TRANSPORT_WAITING = 1,
    WEFT_TRANSPORT_CONNECTING = 2,
    WEFT_TRANSPORT_READY = 3,
    WEFT_TRANSPORT_LOST = 4,
    WEFT_TRANSPORT_FAILED = 5,
    WEFT_TRANSPORT_RELEASED = 6
} weft_transport_state_t;

/* Its state; *why_out (may be NULL) is what an operation would now end with in LOST, FAILED and RELEASED, what the last try to
 * connect came to in CONNECTING, and WEFT_OK otherwise. In a forked child it is RELEASED, with WEFT_ERR_FORKED. */
WEFT_API weft_transport_state_t weft_transport_state(const weft_transport_t *trans, weft_status_t *why_out);
/* "waiting", "connecting", ... */
WEFT_API const char *weft_transport_state_name(weft_transport_state_t state);

/* Complete when it is READY: op->len is how long the element's memory is. Otherwise as any operation on it. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_ready(weft_transport_t *trans, weft_op_t *op);
/* The same, for a thread that waits for it: WEFT_ERR_TIMEOUT after timeout_ns. */
WEFT_API weft_status_t weft_transport_wait(weft_transport_t *trans, uint64_t timeout_ns);

/* Buffers. Memory that peers on this host can read in place, zero at first, counted: whoever holds one keeps it, transports and
 * operations included. It may outlive the runtime. */
typedef struct weft_buffer weft_buffer_t;
WEFT_API void weft_buffer_hold(weft_buffer_t *buffer);
WEFT_API void weft_buffer_drop(weft_buffer_t *buffer); /* NULL is allowed */
WEFT_API void *weft_buffer_base(const weft_buffer_t *buffer);
WEFT_API size_t weft_buffer_len(const weft_buffer_t *buffer);
/* How many hold it now: transports with which it is registered, operations under way, whoever called weft_buffer_hold(). */
WEFT_API size_t weft_buffer_holds(const weft_buffer_t *buffer);

/* Register a buffer of `size` bytes (0 is allowed) with a transport, or, with `other`, the one that is registered there, which
 * is then shared and must have at least `size`. In place of the one before, if there was one: operations that are under way
 * keep it until they are over. Does not wait. Fails: WEFT_ERR_STATE (the other has none), WEFT_ERR_RANGE (the other's is too
 * short), WEFT_ERR_INVALID (of another runtime; a server), WEFT_ERR_CLOSED (released), WEFT_ERR_NOMEM. The one before stays. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_reg(weft_transport_t *trans, size_t size, weft_transport_t *other);
/* The registered buffer, and its length; NULL: there is none. Good until another one is registered or the action is closed. Of a
 * server: its memory. */
WEFT_API void *weft_transport_buf(weft_transport_t *trans, size_t *len_out);
/* The same with a hold on it, for who keeps pointers into it. NULL: there is none. A server's memory stays where it is until
 * the hold is dropped, with what was in it when it stopped being served. */
WEFT_API weft_buffer_t *weft_transport_buffer(weft_transport_t *trans);

/* Move `size` bytes between [addr, addr+size) of the element's memory and [offset, offset+size) of the buffer: op, which is
 * needed, completes with op->len, the size. The local range is checked at once, the remote one as soon as it is known. At most
 * 1 MiB of memory that is mapped is moved when this returns. Two operations that touch the same bytes take effect in the order
 * of their posts, but not on replicas. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_read(weft_transport_t *trans, size_t size, uint64_t addr, size_t offset,
                                                           weft_op_t *op);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_write(weft_transport_t *trans, size_t size, uint64_t addr, size_t offset,
                                                            weft_op_t *op);

/* Many of them in one post, as weft_rma_batch(): op->count is how many succeeded, op->status that of the first in the array that
 * did not. The array is borrowed until op completes. A range outside of the buffer fails all of it at once. At most 65536. An
 * item with `own` moves between the element's memory and that memory of the caller's, which is borrowed as well; with replicas
 * it is memory of the host. If all items have it no buffer need be registered. */
typedef struct weft_transport_item {
    weft_rma_what_t what;
    weft_status_t status; /* out */
    size_t size;
    uint64_t addr;
    size_t offset;        /* in the buffer */
    void *own;            /* not NULL: `size` bytes of the caller's, instead of the buffer's; offset is not looked at. Writes
                             only read it */
} weft_transport_item_t;
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_batch(weft_transport_t *trans, weft_transport_item_t *items, size_t n,
                                                            weft_op_t *op);

/* As weft_rma_atomic(), on a word of the element's memory; no buffer is needed. op->value is the value before. fetch_add and
 * compare_swap are on 8 bytes; compare_swap stores `desired` if the value is `expected`. WEFT_ERR_UNSUPPORTED: with replicas. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_atomic(weft_transport_t *trans, weft_rma_atomic_t which, uint64_t addr,
                                                             size_t width, uint64_t operand, uint64_t compare, weft_op_t *op);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_fetch_add(weft_transport_t *trans, uint64_t addr, uint64_t value,
                                                                weft_op_t *op);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_compare_swap(weft_transport_t *trans, uint64_t addr, uint64_t expected,
                                                                   uint64_t desired, weft_op_t *op);

/* Complete when everything posted on this transport before is complete, however it ended. Does not wait for READY beyond that. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_flush(weft_transport_t *trans, weft_op_t *op);

typedef struct weft_transport_alloc_opts {
    size_t size;
    uint64_t lease_ns;        /* how long it outlives us when we are lost. Default is: the element's lease, which is also the
                                 most it gives; the least is a millisecond */
} weft_transport_alloc_opts_t;
#define WEFT_TRANSPORT_ALLOC_OPTS_INIT WEFT_INIT(weft_transport_alloc_opts_t)

/* Allocate more memory at the same element, from its spare bytes: op completes with weft_op_block(op) (weft/store.h), and
 * op->len. It is zero, and ours under a lease, which stands for as long as the element is connected with us. So it goes
 * when it is freed, when the transport is released or configured anew, when its action is closed, and lease_ns after the
 * element has lost us: we were killed, stopped or cut off, or the transport is LOST. Operations on it then end with
 * WEFT_ERR_STALE, or _PEER; its bytes are given to others, zero. With replicas it is at one of the elements. Drop or free the
 * handle, also after the runtime was closed; its weft_block_remote() is for weft_rma_*(). opts may be NULL. Completes with
 * WEFT_ERR_LIMIT (nothing left; or more than 16 different leases on one transport), WEFT_ERR_UNSUPPORTED (the element has no
 * spare). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_alloc(weft_transport_t *trans, uint64_t len,
                                                            const weft_transport_alloc_opts_t *opts, weft_op_t *op);

/* The element's memory as a remote, for weft_rma_*(): of a READY transport without replicas, else NULL (weft_last_error() says
 * why). Good until the transport is configured anew or released, or the action closed; on one that is lost it fails. */
WEFT_API weft_remote_t *weft_transport_remote(weft_transport_t *trans);

/* Serve: complete with WEFT_OK when the action is terminated. For type rdma_server; its memory answers from READY on, and needs
 * this call for nothing. Completes with WEFT_ERR_CLOSED (released, closed). Fails at once: WEFT_ERR_INVALID (not a server). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_transport_serve(weft_transport_t *trans, weft_op_t *op);
/* The memory that a server which is READY serves, else NULL; the transport's. */
WEFT_API weft_memory_t *weft_transport_memory(weft_transport_t *trans);

typedef struct weft_transport_stats {
    size_t size;
    uint64_t len;                                /* of the element's memory; 0 before it is known */
    weft_rma_path_t path;                        /* 0 before it is known, and with replicas */
    uint64_t reads, writes, atomics, bytes_read, bytes_written; /* that succeeded */
    uint64_t at_once;                            /* of the reads and writes, those that were complete when their post returned */
    uint64_t waits;                              /* operations that had to wait for READY */
    uint64_t failed;                             /* operations that did not succeed, whatever the reason */
    uint64_t connects, losses;                   /* how often it became READY; how often it was lost */
    uint64_t replicas, failovers, takeovers;     /* elements that are connected now; reads that went to another; how often it
                                                    became the writer */
    uint64_t ready_at;                           /* when it became READY last, a time of weft_now(); 0: never */
} weft_transport_stats_t;
#define WEFT_TRANSPORT_STATS_INIT WEFT_INIT(weft_transport_stats_t)
WEFT_API weft_status_t weft_transport_get_stats(weft_transport_t *trans, weft_transport_stats_t *stats_out);

#ifdef __cplusplus
}
#endif
#endif
