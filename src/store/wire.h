/* store/wire.h - requests to a server and its replies, as bytes.
 *
 * Both are the header of an active message without payload, so that they arrive whole. Every kind has its fields, in the order
 * of the HAS_* bits; all numbers are little-endian, nothing is aligned. docs/design/wire.md has them byte by byte. */
#ifndef WEFTI_STORE_WIRE_H
#define WEFTI_STORE_WIRE_H

#include <stdbool.h>
#include <weft/am.h>
#include <weft/store.h>

#include "base/bytes.h"
#include "store/replica.h"

#define STORE_AM_REQUEST WEFT_AM_RESERVED
#define STORE_AM_REPLY (WEFT_AM_RESERVED + 1)

enum {
    STORE_OPEN = 1,  /* lease */
    STORE_RENEW,
    STORE_CLOSE,
    STORE_QUERY,
    STORE_ALLOC,     /* name (may be empty), len, max_len */
    STORE_FIND,      /* name */
    STORE_EXTEND,    /* block, len */
    STORE_FREE,      /* block */
    STORE_REMOVE,    /* name */
    STORE_LIST,      /* name: the prefix; after */
    STORE_R_MAKE,    /* replica.h */
    STORE_R_GET,
    STORE_R_SET,
    STORE_R_RENEW,
    STORE_R_SEAL,
    STORE_R_UNMAKE,
    STORE_SHARE,     /* block, name */
    STORE_KINDS
};

/* Flags of a request, of a reply, of an entry. */
enum {
    STORE_SHARED = 1,  /* ALLOC */
    STORE_REPLACE = 2, /* SHARE */
    STORE_TIMED = 4,   /* OPEN: the lease runs while the endpoint is up, too */
    STORE_LEAVE = 8    /* CLOSE: the lease runs from now on, and ends nothing at once */
};
enum {
    STORE_BODY = 1,       /* the fields are there: with WEFT_OK always, with others where replica.h says (+rec) */
    STORE_LEASE_OVER = 2, /* why it is WEFT_ERR_STALE */
    STORE_MORE = 4        /* LIST: it goes on after the last entry */
};
enum { STORE_E_SHARED = 1, STORE_E_OURS = 2 };

#define STORE_STATS_N 19     /* numbers of weft_store_stats_t that travel, in its order */

/* A request or a reply: wire.c has a table of the fields that each kind has. */
typedef struct store_packet {
    uint64_t id;             /* the client's, for the reply */
    uint8_t kind, flags;
    uint64_t lease_ns, block, len, max_len, epoch, stamp;
    wefti_replica_t rec;
    /* of requests */
    uint8_t client[WEFT_STORE_ID];
    const char *name, *after; /* not terminated; in the bytes it was read from */
    uint8_t name_len, after_len;
    uint8_t writer[WEFT_STORE_ID];
    /* of replies */
    weft_status_t status;
    uint32_t reason;         /* of WEFT_ERR_REJECTED, which is none of a server's: it is newer, and failed with this */
    uint8_t server[WEFT_STORE_ID];
    uint64_t stats[STORE_STATS_N];
    const uint8_t *key;
    uint32_t key_len;        /* at most WEFT_REGION_KEY_MAX */
    const uint8_t *entries;  /* LIST: see store_entry_t */
    uint32_t entries_len;
} store_request_t, store_reply_t;

typedef struct store_entry {
    const char *name;        /* not terminated */
    uint8_t name_len, flags;
    uint64_t len, max_len, age_ns, attached;
} store_entry_t;
#define STORE_ENTRY_MAX (2u + WEFT_RMA_NAME_MAX + 4u * 8u)

#define STORE_REQUEST_MAX 1024u /* bytes of the longest */
#define STORE_REPLY_MAX 8192u
#define STORE_ENTRIES_MAX (STORE_REPLY_MAX - 64u)
_Static_assert(STORE_REPLY_MAX <= WEFT_AM_HEADER_MAX, "a reply is the header of an active message");

/* Bytes of it, 0 if it does not fit or is of no kind. */
size_t wefti_store_put_request(const store_request_t *q, void *buf, size_t cap);
size_t wefti_store_put_reply(const store_reply_t *p, void *buf, size_t cap);
/* false: that is none. Of a kind that is not known only id, kind and client are read: the sender may be newer. Names are not
 * looked at. */
bool wefti_store_get_request(const void *bytes, size_t n, store_request_t *q_out);
bool wefti_store_get_reply(const void *bytes, size_t n, store_reply_t *p_out);

void wefti_store_put_entry(wefti_writer_t *w, const store_entry_t *e);
/* false: the end, or (r->bad) not an entry. */
bool wefti_store_get_entry(wefti_reader_t *r, store_entry_t *e_out);

/* 1 to WEFT_RMA_NAME_MAX bytes of UTF-8 without control characters. */
bool wefti_store_name_ok(const char *name, size_t n);
bool wefti_replica_ok(const wefti_replica_t *rec);

#endif
