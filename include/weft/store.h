/* weft/store.h - memory of servers: blocks that clients allocate, find by name, make longer and free. Of libweft-elements.
 *
 * A server gives out memory of its own over every endpoint of its runtime. A client opens a store over an endpoint to the
 * server. A store is a lease: the server keeps it while the endpoint is up. A client that is lost, and does not come back within
 * its lease, loses its blocks; those that it made `shared` stay until someone removes them. A block is a region of the server
 * (weft/rma.h): the client reads and writes it through its remote, and can give keys of it to others.
 *
 *     server:  weft_store_serve(rt, &opts, &server);   (the program listens)
 *     client:  weft_store_open(ep, NULL, &op);  store = weft_op_store(&op);
 *              weft_block_alloc(store, &opts, &op);  block = weft_op_block(&op);
 *              weft_rma_write(weft_block_remote(block), 0, "hello", 5, &op);
 *
 * Memory is zero when it is given out. Every connected peer may open blocks by their names: the authentication key of the
 * runtime (weft/runtime.h) keeps strangers out. A block without a name is reached by a region key.
 *
 *     WEFT_ERR_LIMIT     a quota, or no memory left at the server
 *     WEFT_ERR_NOTFOUND  no block of that name
 *     WEFT_ERR_STATE     the name is taken; or the block is another client's
 *     WEFT_ERR_STALE     the lease is over: its blocks are gone. Open the store again. Or its id was opened over another endpoint
 *     WEFT_ERR_PEER      the server is lost. Within the lease a client can come back to its blocks: weft_store_open() with its id
 *     WEFT_ERR_UNSUPPORTED the peer is no server, or its program lacks libweft-elements
 *     WEFT_ERR_REJECTED  the server is of a newer version and refused it for a reason that is not known here; op->reason is its
 *                        number
 *
 * A call on a server, a store or a block that was closed, left, freed or dropped returns WEFT_ERR_CLOSED, or NULL; also when
 * another thread closes the runtime. Blocks may be dropped after that.
 *
 * Threads: any, for everything here. */
#ifndef WEFT_STORE_H
#define WEFT_STORE_H

#include <weft/rma.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_STORE_ID  16u         /* bytes of a client's id */
#define WEFT_CAN_STORE UINT64_C(8) /* of weft_ep_info_t.peer_capabilities: the peer has libweft-elements */

/* --- the server -------------------------------------------------------------------------------------------------------- */

typedef struct weft_store_server weft_store_server_t;

typedef struct weft_store_server_opts {
    size_t size;
    uint64_t bytes;          /* to give out in all. Needed */
    uint64_t client_bytes;   /* to one client. Default is: bytes */
    uint32_t client_blocks;  /* to one client. Default is: 4096 */
    uint32_t blocks;         /* in all. Default is: 65536 */
    uint32_t clients;        /* at one time, those that were lost and whose lease runs included. Default is: 1024 */
    uint64_t lease_ns;       /* the longest lease. Default is: 30 s */
    bool unmapped;           /* clients on this host may not map blocks */
} weft_store_server_opts_t;
#define WEFT_STORE_SERVER_OPTS_INIT WEFT_INIT(weft_store_server_opts_t)

/* Serve on every endpoint of the runtime, those to come included. One per runtime: WEFT_ERR_STATE. Fails: WEFT_ERR_INVALID,
 * WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_store_serve(weft_runtime_t *rt, const weft_store_server_opts_t *opts,
                                                        weft_store_server_t **server_out);
/* Stop serving, free every block. op (may be NULL) completes when the memory is back. Before the runtime closes. */
WEFT_API weft_status_t weft_store_server_close(weft_store_server_t *server, weft_op_t *op);

typedef struct weft_store_stats {
    size_t size;
    uint64_t bytes, used_bytes;       /* given to it; given out now */
    uint64_t blocks, shared_blocks;   /* now; of them, those that belong to nobody */
    uint64_t clients;                 /* now, with a lease */
    uint64_t allocs, frees, extends, opens, renewals; /* since it began */
    uint64_t expired_clients, expired_blocks;         /* leases that ran out, and what went with them */
    uint64_t refused;                 /* because of a quota, a lack of memory or of rights */
    uint64_t uptime_ns;
    uint64_t reads, writes, atomics, bytes_read, bytes_written; /* over the checked path, to blocks that are here now or were */
} weft_store_stats_t;
#define WEFT_STORE_STATS_INIT WEFT_INIT(weft_store_stats_t)
WEFT_API weft_status_t weft_store_server_get_stats(weft_store_server_t *server, weft_store_stats_t *stats_out);

/* --- a client ---------------------------------------------------------------------------------------------------------- */

typedef struct weft_store weft_store_t;

typedef struct weft_store_opts {
    size_t size;
    uint64_t lease_ns;       /* Default is: the server's longest; it never gives more than that */
    const uint8_t *id;       /* WEFT_STORE_ID bytes: who we were before. Default is: a new client, with a random one */
    bool manual;             /* the lease runs while the endpoint is up, too: the program calls weft_store_renew() */
} weft_store_opts_t;
#define WEFT_STORE_OPTS_INIT WEFT_INIT(weft_store_opts_t)

/* Get a lease, or come back to one: op, which is needed, completes with weft_op_store(op). opts may be NULL. The
 * endpoint stays the program's and must outlive the store. Completes with WEFT_ERR_UNSUPPORTED, WEFT_ERR_LIMIT (clients),
 * WEFT_ERR_PEER. An id whose lease is over is a new client. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_store_open(weft_ep_t *ep, const weft_store_opts_t *opts, weft_op_t *op);
/* The store of an operation that is complete; NULL if it failed. */
static inline weft_store_t *weft_op_store(const weft_op_t *op) { return op->status ? NULL : (weft_store_t *)op->buf; }
/* End the lease: blocks that are not shared are freed at once. `store` may not be used any more, and its blocks' handles only
 * be dropped. op may be NULL. */
WEFT_API weft_status_t weft_store_close(weft_store_t *store, weft_op_t *op);
/* Forget the store here, and leave the lease to run out at the server: for a program that will come back with its id. */
WEFT_API void weft_store_leave(weft_store_t *store);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_store_renew(weft_store_t *store, weft_op_t *op);

typedef struct weft_store_info {
    size_t size;
    uint8_t id[WEFT_STORE_ID];
    uint8_t server[WEFT_STORE_ID]; /* which server: another one after a restart */
    uint64_t lease_ns;
    weft_status_t state;           /* WEFT_OK; _STALE: the lease is over; _PEER, _CLOSED: the endpoint is */
} weft_store_info_t;
#define WEFT_STORE_INFO_INIT WEFT_INIT(weft_store_info_t)
WEFT_API weft_status_t weft_store_get_info(const weft_store_t *store, weft_store_info_t *info_out);

/* The server's statistics, over the network, into *stats_out when op completes. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_store_query(weft_store_t *store, weft_store_stats_t *stats_out, weft_op_t *op);

/* --- blocks ------------------------------------------------------------------------------------------------------------ */

typedef struct weft_block weft_block_t;

typedef struct weft_block_opts {
    size_t size;
    uint64_t len;            /* 0 is allowed: a name, and something to extend; its remote cannot be used yet */
    uint64_t max_len;        /* how far it may be extended. Default is: as far as the server has memory */
    const char *name;        /* at most WEFT_RMA_NAME_MAX bytes. Default is: none, only region keys */
    bool shared;             /* it belongs to nobody and outlives our lease; needs a name */
} weft_block_opts_t;
#define WEFT_BLOCK_OPTS_INIT WEFT_INIT(weft_block_opts_t)

/* Allocate a block, or open one by its name: op, which is needed, completes with weft_op_block(op), which is attached and
 * yours until weft_block_drop() or weft_block_free(), and op->len, its length. If the server is full only until blocks are freed
 * that are being freed now, the request waits for that. If it does not fit even then, it completes with WEFT_ERR_LIMIT. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_block_alloc(weft_store_t *store, const weft_block_opts_t *opts, weft_op_t *op);
/* The block of an operation that is complete; NULL if it failed. */
static inline weft_block_t *weft_op_block(const weft_op_t *op) { return op->status ? NULL : (weft_block_t *)op->buf; }
WEFT_API WEFT_MUST_CHECK weft_status_t weft_block_open(weft_store_t *store, const char *name, weft_op_t *op);

/* Its memory, for weft_rma_*(); the block's, until that is dropped. After an extension it is another one. */
WEFT_API weft_remote_t *weft_block_remote(const weft_block_t *block);
/* A region key for it, with all rights, to give to others; as weft_region_key(). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_block_key(const weft_block_t *block, void *buf, size_t *len);

/* Make it longer; the new bytes are zero. The remote from before stays good for what it reached. op->len is the new length.
 * Only what is ours, or shared. Completes with WEFT_ERR_LIMIT, WEFT_ERR_STATE, WEFT_ERR_RANGE (shorter than it is). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_block_extend(weft_block_t *block, uint64_t len, weft_op_t *op);
/* Give a block of ours to everyone, whole, under a name: from then on it is found by it, belongs to nobody and outlives our
 * lease. replace: a block of that name, ours or shared, is freed in the same moment: whoever opens the name finds one of the
 * two. Completes with WEFT_ERR_STATE (the name is taken, or the block is not ours or shared already), WEFT_ERR_INVALID (the
 * name). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_block_share(weft_block_t *block, const char *name, bool replace, weft_op_t *op);
/* Free it at the server, and drop the handle: all keys and remotes of it are stale. Only what is ours, or shared. op may be
 * NULL. */
WEFT_API weft_status_t weft_block_free(weft_block_t *block, weft_op_t *op);
/* Forget the handle; the block stays. NULL is allowed. It may outlive the runtime. */
WEFT_API void weft_block_drop(weft_block_t *block);
/* Free a block of that name, ours or shared. WEFT_ERR_NOTFOUND. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_store_remove(weft_store_t *store, const char *name, weft_op_t *op);

typedef struct weft_block_info {
    size_t size;
    const char *name;        /* "" for none */
    uint64_t len, max_len;
    uint64_t age_ns;         /* since it was allocated */
    uint64_t attached;       /* remotes of it now */
    bool shared, ours;
} weft_block_info_t;
#define WEFT_BLOCK_INFO_INIT WEFT_INIT(weft_block_info_t)

/* Called for each block with a name, in the order of names; *info is valid during the call. Runs in progress. */
typedef void (*weft_block_fn)(const weft_block_info_t *info, void *user);
/* List the blocks whose names begin with `prefix` (NULL: all). op->count is how many there were. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_store_list(weft_store_t *store, const char *prefix, weft_block_fn fn, void *user,
                                                       weft_op_t *op);

#ifdef __cplusplus
}
#endif
#endif
