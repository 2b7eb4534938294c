/* conn/chunks.h - a payload on its way in chunks, either side of it: what payload.c, chunk_out.c, chunk_in.c and chunks.c
 * share. */
#ifndef WEFTI_CONN_CHUNKS_H
#define WEFTI_CONN_CHUNKS_H

#include "conn/ep.h"
#include "conn/relay.h"

#define WEFTI_CHUNKS_OPEN 4   /* announced and not yet pulled, per payload: enough for the copies to overlap the transfer */
#define WEFTI_CHUNKS_KEPT 8   /* by the receiver: the sender may learn that a chunk was pulled, and announce the next, before
                                 we do */
#define WEFTI_CHUNK_PIECES 8  /* of a buffer in host memory that a chunk names itself; scattered more finely, it is staged */

/* Bytes of a chunk (a peer accepts up to WEFTI_STAGING_BYTES), and how many stages senders may have, and receivers. Tests make
 * them small. */
extern uint32_t wefti_chunk_bytes, wefti_chunk_stages;
/* Payloads this long go by bounce buffers, if they are in device memory that cannot be exported, or in page-locked memory. */
extern uint64_t wefti_bounce_min, wefti_bounce_min_pinned;

/* A position in an array of pieces. */
typedef struct wefti_place {
    const weft_iov_t *at;
    size_t skip; /* bytes of *at that are behind us */
} wefti_place_t;

enum {
    WEFTI_CHUNK_FREE,
    WEFTI_CHUNK_COPIES, /* a device copies between its stage and the buffer */
    WEFTI_CHUNK_WAITS,
    WEFTI_CHUNK_BUSY, /* its memory is with the fabric, or out: with the peer */
    WEFTI_CHUNK_TELLS /* in: EMPTIED waits for space on the lane */
};

enum { WEFTI_BY_FABRIC, WEFTI_BY_RELAY, WEFTI_BY_BOUNCE }; /* how a chunk travels */
enum { WEFTI_TO_DEVICE = 1, WEFTI_CAN_IMPORT = 2 };        /* what CHUNKS says of the receiver */

typedef struct wefti_chunk {
    struct wefti_chunks *of;
    wefti_xfer_t x;
    wefti_copy_t copy;
    wefti_in_t *in;         /* in: its announcement, while it WAITS for a stage */
    void *stage;            /* where its bytes pass through; NULL: it goes from or to the buffer itself */
    uint8_t by;             /* WEFTI_BY_*; other than by the fabric: `stage` is the sender's */
    uint32_t number;        /* out: slot of the relay; in: what the sender calls it */
    wefti_relay_t *relay;   /* held while it is in there */
    wefti_import_t *import; /* in: the same */
    bool cannot;            /* in: EMPTIED says that it was of no use */
    wefti_place_t place;    /* of its bytes in the buffer */
    uint64_t offset;        /* out */
    uint32_t len;
    uint8_t state;
    uint32_t n;
    weft_iov_t iov[WEFTI_CHUNK_PIECES];
} wefti_chunk_t;

struct wefti_chunks {
    wefti_conn_t *conn;
    wefti_out_t *out;        /* one of these two */
    wefti_in_t *in;
    const weft_mem_kind_t *device;
    wefti_place_t first, place; /* of the payload; of the next chunk */
    uint64_t want, next;     /* bytes asked for; offset of the next chunk */
    uint64_t told;           /* out: offset of the next chunk to be announced */
    uint64_t done;           /* in: bytes in place */
    uint64_t name;           /* in: what the sender calls this pull */
    wefti_xfer_t *x;         /* in: whom to tell */
    weft_status_t status;    /* in: why it failed */
    wefti_fault_t fault;     /* in: and what is to be said about it */
    uint8_t flags;           /* of the receiver: WEFTI_TO_DEVICE, WEFTI_CAN_IMPORT */
    bool imports;            /* in: some of it was read out of the sender's own device memory */
    bool bouncing;           /* out: it goes by bounce buffers */
    bool again;              /* in: some were refused, and are to be sent in another way */
    uint64_t again_at;       /* the first byte that was refused; out: UINT64_MAX for none */
    bool stopped;            /* no more chunks */
    bool given_up;           /* in: the sender cannot go on */
    bool down;               /* in: the lane is about to be closed: nothing may be asked of it */
    uint32_t stages;         /* that it has */
    wefti_list_t wait;       /* on the list of those who wait for a stage */
    wefti_chunk_t chunk[WEFTI_CHUNKS_KEPT];
};
typedef struct wefti_chunks wefti_chunks_t;

/* --- chunks.c -------------------------------------------------------------------------------------------------------------- */

/* Of `want` bytes of these pieces. NULL: no memory. */
wefti_chunks_t *wefti_chunks_new(wefti_conn_t *conn, const weft_iov_t *iov, const weft_mem_kind_t *device, uint64_t want);
void wefti_chunks_free(wefti_chunks_t *c);            /* no chunk is open */
wefti_chunk_t *wefti_chunks_in(wefti_chunks_t *c, uint8_t state); /* one in this state, or NULL */
/* Give the next `len` bytes to a free chunk: from the buffer itself, if that is possible, or through a stage. WEFT_ERR_AGAIN:
 * no stage now; chunk_out's or chunk_in's step is called when there is one. WEFT_ERR_NOMEM. */
weft_status_t wefti_chunk_place(wefti_chunk_t *k);
void wefti_place_skip(wefti_place_t *p, uint64_t len);
/* No more chunks: those that wait are over. */
void wefti_chunks_stop(wefti_chunks_t *c);
/* Copy a staged chunk between its stage and the buffer. WEFT_OK: it is there. WEFT_ERR_PENDING: it COPIES, and k->copy.done is
 * called from progress. The kind's status, or WEFT_ERR_NOMEM. */
weft_status_t wefti_chunk_copy(wefti_chunk_t *k, bool to_stage);
/* Is any memory of it with the fabric, or with a device? */
bool wefti_chunks_busy(wefti_chunks_t *c);
/* It is over: its stage goes back. */
void wefti_chunk_free(wefti_chunk_t *k);
/* Who waited for a stage goes on. The work's. */
void wefti_chunks_serve(wefti_conn_t *conn);

/* --- payload.c ------------------------------------------------------------------------------------------------------------- */

#define WEFTI_STAGED_HEAD 16 /* bytes that a STAGED record begins with: its kind, the total */

/* A payload waits at the peer: `rec` is the traffic's. p NULL: it was STAGED, perhaps with an export. */
void wefti_in_arrived(wefti_epx_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, uint64_t total, wefti_pull_t *p,
                      const wefti_export_t *export);
/* The sender wants it back. If it is not there (any more), or somebody uses it, the sender hears of its end in another way. */
void wefti_in_take_back(wefti_epx_t *ep, uint64_t id);
enum { WEFTI_END_TAKEN = 1, WEFTI_END_FAILED = 2 };
bool wefti_out_staged_end(wefti_epx_t *ep, uint64_t id, uint64_t how); /* STAGED_END came; false: there is no such payload */

enum { WEFTI_OUT_NEW, WEFTI_OUT_PLAIN, WEFTI_OUT_STAGED, WEFTI_OUT_OVER /* but for its chunks */ };
enum { WEFTI_OWES_TAKE_BACK = 1, WEFTI_OWES_GIVE_UP = 2, WEFTI_OWES_CHUNK = 4 };

/* Send what is owed to the peer about it; what finds no space waits for it. */
void wefti_out_flush(wefti_out_t *out);
void wefti_out_over(wefti_out_t *out, weft_status_t status); /* done, exactly now */

/* --- chunk_out.c ----------------------------------------------------------------------------------------------------------- */

void wefti_chunk_out_asked(wefti_epx_t *ep, uint64_t id, uint64_t asked_by, uint64_t want, uint8_t flags); /* CHUNKS came */
/* EMPTIED came. of_no_use: the peer cannot import it. false: there is no such chunk */
bool wefti_chunk_out_emptied(wefti_epx_t *ep, uint64_t id, uint64_t number, bool of_no_use);
void wefti_chunk_out_step(wefti_out_t *out);                         /* go on as far as it goes */
void wefti_chunk_out_end(wefti_out_t *out, weft_status_t status);    /* the peer is done with it, or will never be */
void wefti_chunk_out_stop(wefti_out_t *out);                         /* no more chunks */

/* --- chunk_in.c ------------------------------------------------------------------------------------------------------------ */

weft_status_t wefti_chunk_in_pull(wefti_in_t *in, const weft_iov_t *iov, uint64_t want, const weft_mem_kind_t *device,
                                  wefti_xfer_t *x);
/* CHUNK came */
void wefti_chunk_in_announced(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n, uint64_t total, wefti_pull_t *p);
/* PLACED, BOUNCED came. false: it is too short */
bool wefti_chunk_in_placed(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n);
bool wefti_chunk_in_bounced(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n);
void wefti_chunk_in_step(wefti_in_t *in);
void wefti_chunk_in_given_up(wefti_epx_t *ep, uint64_t id, uint64_t name); /* TAKE_BACK of chunks came */
void wefti_chunk_in_withdrawn(wefti_in_t *in);                        /* the lane is closed: an announcement of a chunk, or the
                                                                         payload's, is gone */
void wefti_chunk_in_down(wefti_in_t *in);                             /* the lane is about to be closed */

#endif
