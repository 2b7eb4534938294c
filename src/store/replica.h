/* store/replica.h - what a server keeps for a block that is a member of a mirror, and the requests about it.
 *
 * The server's half is replica.c; mirror*.c is the client's. A replica is a shared block
 * that cannot be mapped, with a record. Only the one who wrote the record last, the writer, has a key to write with; everyone
 * else gets one to read with, while the replica can be served:
 *
 *     REFILLING --set--> LEASED --seal--> SEALED
 *                       |   ^               |
 *             lease over|   +------set------+
 *                       v   |
 *                      LAPSED
 *
 * A set leads from every state to LEASED, or to REFILLING if its record says so: then there is no lease, and who has its key is
 * its writer all the same. Readers are served by LEASED and SEALED ones; a REFILLING one serves its writer alone, a LAPSED one
 * nobody.
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
 * The requests, each of which is one operation (wefti_store_replica_ask()):
 *
 * STORE_R_MAKE: allocate a replica of `len` bytes, all zero, with the record `rec`. It is REFILLING whatever rec says, and has
 * no lease until a set. The key has all rights. WEFT_ERR_STATE (+rec if that is a replica): the name is taken; WEFT_ERR_LIMIT.
 *
 * STORE_R_UNMAKE: free a replica that is still as `writer` made or set it last, with `epoch`: what weft_store_remove() cannot
 * know. WEFT_ERR_STALE: it is another's by now. The answer is not filled in.
 *
 * STORE_R_GET: its record, and a key to read with while it is served.
 *
 * STORE_R_SET: if its epoch is `epoch`, and its origin that of `rec`: become its writer, with this record, whose epoch is
 * higher. Everything given out for it before is stale, and no access made with that is under way any more, when the operation
 * completes; the key has all rights. `stamp`: from an earlier answer of this server about this name, less than lease_ns old;
 * with WEFTI_REPLICA_REFILLING in rec.flags it is not looked at, and there is no lease: however late such a set arrives, it lets
 * nobody read. WEFT_ERR_STALE (+rec): the epoch or the origin is another, and nothing was changed; or another set came while
 * this one waited. WEFT_ERR_AGAIN (+rec): the stamp is too old or no stamp of this server, and nothing was changed: again with
 * the stamp of the answer. WEFT_ERR_INVALID: rec is not valid.
 *
 * STORE_R_RENEW: `writer`, with `epoch`, is still there, and has `stamp`. No key. WEFT_ERR_STALE (+rec): the epoch or the writer
 * is another, or the lease is over: it stays over until a set; WEFT_ERR_AGAIN (+rec): as above, but the lease still runs. On a
 * sealed one WEFT_ERR_STATE (+rec).
 *
 * STORE_R_SEAL: `writer`, with `epoch`, leaves. Its key is stale when the operation completes (so are the readers', who ask
 * again), and readers are served without a lease. WEFT_ERR_STALE (+rec), as for renew.
 *
 * The answer is filled in with WEFT_OK; its `rec` and `stamp` also where it says (+rec): then key_len is 0. Every one can end
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

#endif
