/* store/replica.h - what a server keeps for a block that is a member of a mirror, and the requests about it.
 *
 * The server's half is replica.c, the client's is request.c; mirror*.c is built on the calls below. A replica is a shared block
 * that cannot be mapped, with a record. Only the one who wrote the record last, the writer, has a key to write with; everyone
 * else gets one to read with, while the replica can be served:
 *
 *     REFILLING --set--> LEASED --seal--> SEALED
 *                       |   ^               |
 *             lease over|   +------set------+      (a set leads from every state to LEASED, or to REFILLING if its record says
 *                           so:
 *                       v   |                       then there is no lease, and who has its key is its writer all the same)
 *                      LAPSED                      served to readers: LEASED and SEALED; to nobody: REFILLING (but its writer),
 *                      LAPSED
 *
 * The lease is what the writer grants to the server: "serve for lease_ns, unless you hear from me". To be of use when the
 * server is out of reach it must end by a time that the writer can know, however late its words arrive. So it does not count
 * from when they arrive: every answer carries a stamp (the server's clock when it made the answer), the writer hands the last
 * one back, and the lease ends at stamp + lease_ns. The stamp was made before the writer had it, so:
 *
 *     a server answers nobody once lease_ns has passed since the writer last SENT it a set or a renew, whether that was
 *     answered or not.
 *
 * (The writer's clock may run slower than the server's: wait for an eighth more.) The server looks at its clock for every
 * access and every request about the replica, not only when a timer says so: one that was stopped and goes on serves nothing
 * that its lease does not cover.
 *
 * wefti_replica_* are calls for any thread, each one operation; *out is borrowed until op, which is needed, completes. It is
 * filled in with WEFT_OK, and its `rec` and `stamp` also where the status says (+rec): then key_len is 0. Every one can end
 * with what weft/store.h says as well: WEFT_ERR_PEER, _CLOSED, _STALE (the lease of the store: get_info tells), _NOTFOUND (no
 * block of that name), _STATE (that block is no replica), _TIMEOUT, _CANCELLED (it may have happened, or happen later). */
#ifndef WEFTI_STORE_REPLICA_H
#define WEFTI_STORE_REPLICA_H

#include <weft/mirror.h>

enum {
    WEFTI_REPLICA_CHECKSUMS = 1, /* the writer's: kept, not looked at */
    WEFTI_REPLICA_REFILLING = 2, /* given with make, or with a set: a writer that takes over fences a member so, before it is
                                    sure of the others, and a former member that is to be refilled is taken so. A set without it
                                    ends it */
    WEFTI_REPLICA_SEALED = 4,    /* the server's: ignored in what it is given */
    WEFTI_REPLICA_LAPSED = 8     /* the server's */
};

#define WEFTI_REPLICA_LEASE_MIN WEFT_MILLISECOND
#define WEFTI_REPLICA_LEASE_MAX (3600 * WEFT_SECOND)

typedef struct wefti_replica {
    uint64_t epoch;
    uint64_t len;                /* of the mirror: the writer's, kept, not looked at */
    uint64_t origin;             /* which mirror of that name: made up by who makes it; a set does not change it. Two may be
                                    made at once, on servers that are not all the same; one may be unmade, and another made in
                                    its place */
    uint64_t lease_ns;           /* WEFTI_REPLICA_LEASE_MIN to _MAX */
    uint32_t flags;              /* WEFTI_REPLICA_* */
    uint32_t n_members;          /* 0 to WEFT_MIRROR_MAX */
    uint8_t members[WEFT_MIRROR_MAX][WEFT_STORE_ID]; /* weft_store_info_t.server of each; those beyond n_members are zero */
    uint8_t writer[WEFT_STORE_ID]; /* made up by each writer, at random */
} wefti_replica_t;

typedef struct wefti_replica_answer {
    wefti_replica_t rec;
    uint64_t stamp;              /* for the next set or renew at this server */
    uint64_t bytes;              /* of the block */
    uint32_t key_len;            /* 0: none, it is not served */
    uint8_t key[WEFT_REGION_KEY_MAX]; /* attach it with path = WEFT_RMA_CHECKED */
} wefti_replica_answer_t;

/* Allocate a replica of `bytes` bytes, all zero, with this record; it is REFILLING whatever rec says, and has no lease until a
 * set. The key has all rights. WEFT_ERR_STATE (+rec if that is a replica): the name is taken; WEFT_ERR_LIMIT. */
weft_status_t wefti_replica_make(weft_store_t *store, const char *name, uint64_t bytes, const wefti_replica_t *rec,
                                 wefti_replica_answer_t *out, weft_op_t *op);
/* Free a replica that is still as this writer made or set it last: what weft_store_remove() cannot know. WEFT_ERR_STALE: it is
 * another's by now. *out is not filled in. */
weft_status_t wefti_replica_unmake(weft_store_t *store, const char *name, uint64_t epoch, const uint8_t writer[WEFT_STORE_ID],
                                   wefti_replica_answer_t *out, weft_op_t *op);
/* Its record, and a key to read with while it is served. */
weft_status_t wefti_replica_get(weft_store_t *store, const char *name, wefti_replica_answer_t *out, weft_op_t *op);
/* If its epoch is `expected`, and its origin that of rec: become its writer, with a new record whose epoch is higher.
 * Everything given out for it before is stale, and no access made with that is under way any more, when op completes; the key
 * has all rights. `stamp`: from an earlier answer of this server about this name, less than lease_ns old; with
 * WEFTI_REPLICA_REFILLING in rec->flags it is not looked at, and there is no lease: however late such a set arrives, it lets
 * nobody read. WEFT_ERR_STALE (+rec): the epoch is not `expected`, or the origin is another: nothing was changed; or another
 * set came while this one waited. WEFT_ERR_AGAIN (+rec): the stamp is too old or no stamp of this server, nothing was changed:
 * again with out->stamp. WEFT_ERR_INVALID: rec is not valid. */
weft_status_t wefti_replica_set(weft_store_t *store, const char *name, uint64_t expected, const wefti_replica_t *rec,
                                uint64_t stamp, wefti_replica_answer_t *out, weft_op_t *op);
/* The writer is still there. No key. WEFT_ERR_STALE (+rec): the epoch or the writer is another, or the lease is over: it stays
 * over until a set; WEFT_ERR_AGAIN (+rec): as above, but the lease still runs. On a sealed one WEFT_ERR_STATE (+rec). */
weft_status_t wefti_replica_renew(weft_store_t *store, const char *name, uint64_t epoch, const uint8_t writer[WEFT_STORE_ID],
                                  uint64_t stamp, wefti_replica_answer_t *out, weft_op_t *op);
/* The writer leaves: its key is stale when op completes (so are the readers', who ask again), and readers are served without a
 * lease. WEFT_ERR_STALE (+rec), as for renew. */
weft_status_t wefti_replica_seal(weft_store_t *store, const char *name, uint64_t epoch, const uint8_t writer[WEFT_STORE_ID],
                                 wefti_replica_answer_t *out, weft_op_t *op);

#endif
