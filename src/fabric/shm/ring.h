/* fabric/shm/ring.h - one direction of a lane: records from one producer to one consumer through shared memory.
 *
 * A region is one page of words (wefti_ring_page_t) and then the ring, a power of two of bytes. Records start at multiples of
 * WEFTI_RING_GRAIN; the first 8 bytes are the head word: length (low 32 bits), type (next 8) and channel (the rest: zero, but
 * where several lanes use the ring). The head
 * word is stored last, so the consumer polls exactly one word, and a small record moves in the very cache line that is
 * polled: a tail pointer would be a second line per record. The grain is half a line because lines are what costs: a tagged
 * message of 8 bytes takes one grain, and two share a line (39 M/s where one per line gives 24 and raw UCX 20).
 *
 * Why the bytes of an earlier lap do no harm: before a head word is published the NEXT one is zeroed, so the word the
 * consumer polls is always zero or a head of this lap. A record never wraps: where it does not fit before the end, a SKIP
 * record fills the rest.
 *
 * Positions count bytes for ever and never wrap in practice. The producer keeps `limit`, what it knows it may fill, and looks
 * at the consumer's position only when that is used up; the consumer publishes its position only every 1/8 of the ring. Since
 * a record and a skip take little more than 1/2 of the smallest ring, what is consumed and not yet published never keeps a
 * record from fitting for ever. A producer without space leaves the position it waits for in `want_at`; the consumer that
 * passes it says so (the caller rings).
 *
 * Who writes what: consumer: consumed, parked, front. Producer: the ring, want_at (the consumer takes it back to 0), mapped,
 * closed, ended. Neither believes the other: the consumer reads a head word once and checks it against the ring before it uses
 * it, and the producer checks `consumed`; all other state is private. tests/unit/shm_ring.c holds both to it. */
#ifndef WEFTI_SHM_RING_H
#define WEFTI_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEFTI_RING_GRAIN 32u
#define WEFTI_RING_PAGE 4096u /* bytes before the ring */
#define WEFTI_RING_HEAD 8u    /* bytes of the head word */
#define WEFTI_RING_AHEAD 512u /* bytes fetched ahead of the producer */
#define WEFTI_RING_SMALLEST 16384u /* bytes of a ring */
#define WEFTI_RING_LARGEST (64u << 20)
#define WEFTI_RING_CHANNELS 1024u  /* that one ring can have */
#define WEFTI_RING_LONGEST(size) ((size) / 64 * 17) /* bytes of a record */

enum { WEFTI_RING_SKIP = 1, WEFTI_RING_TYPE_MIN = 2, WEFTI_RING_TYPE_MAX = 15 };

#define WEFTI_LIKELY(x) __builtin_expect(!!(x), 1)
#define WEFTI_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Each writer has lines of its own, two apart: processors fetch them in pairs. */
typedef struct wefti_ring_page {
    uint64_t magic, nonce;                     /* written once, before anyone knows of the region */
    _Alignas(128) _Atomic uint64_t consumed;
    _Alignas(128) _Atomic uint32_t parked;     /* the consumer does not poll this ring: ring its bell after publishing */
    _Alignas(128) _Atomic uint64_t want_at;    /* the producer has no space until this much is consumed; 0: it has */
    _Atomic uint32_t mapped;                   /* the producer has mapped the region */
    _Atomic uint32_t closed;                   /* the producer's process has closed the lane */
    _Alignas(128) _Atomic uint64_t front_id;   /* of a relay (relay.c): of this payload the consumer has read, */
    _Atomic uint64_t front;                    /* or is about to read, so many bytes itself */
    _Alignas(2048) _Atomic uint16_t ended[WEFTI_RING_CHANNELS]; /* the producer has closed that channel: see guest.c */
} wefti_ring_page_t;
_Static_assert(sizeof(wefti_ring_page_t) <= WEFTI_RING_PAGE, "the words of a ring fit their page");

typedef struct wefti_ring_tx {
    uint8_t *base;    /* first byte of the ring */
    uint64_t tail;    /* where the next record begins */
    uint64_t limit;   /* it may be filled up to here */
    uint64_t size;    /* 0: no ring: nothing ever fits */
    wefti_ring_page_t *page;
    bool bad;         /* the consumer's position made no sense */
    bool light;       /* publish without a barrier: the consumer makes us execute one when it needs it */
} wefti_ring_tx_t;

typedef struct wefti_ring_rx {
    uint8_t *base;
    uint64_t pos;
    uint64_t size;
    uint32_t max;       /* longest record taken */
    uint32_t step;      /* bytes of the ring the record last peeked at takes */
    uint64_t published; /* what page->consumed says */
    wefti_ring_page_t *page;
    uint32_t shared;    /* not 0: several lanes use the ring, this is the longest record taken, and max is 0 */
} wefti_ring_rx_t;

typedef struct wefti_ring_rec {
    const uint8_t *bytes;
    uint32_t n;
    uint32_t type;
} wefti_ring_rec_t;

/* SHARED: only of wefti_ring_peek(): look with wefti_ring_peek_shared(). */
typedef enum wefti_ring_got {
    WEFTI_RING_EMPTY = 0, WEFTI_RING_RECORD = 1, WEFTI_RING_BAD = 2, WEFTI_RING_SHARED = 3
} wefti_ring_got_t;

static inline uint64_t wefti_ring_span(uint64_t n)
{
    return (n + WEFTI_RING_HEAD + WEFTI_RING_GRAIN - 1) & ~(uint64_t)(WEFTI_RING_GRAIN - 1);
}

static inline _Atomic uint64_t *wefti_ring_head(uint8_t *base, uint64_t at)
{
    return (_Atomic uint64_t *)(void *)(base + at);
}

/* Fetch a line for writing, early: otherwise the store of a head word waits for the consumer's copy of the line to die. */
static inline void wefti_ring_prefetch_write(const void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

/* --- producer ----------------------------------------------------------------------------------------------------- */

void wefti_ring_tx_init(wefti_ring_tx_t *tx, void *region, uint64_t size);
void *wefti_ring_reserve_slow(wefti_ring_tx_t *tx, uint64_t n);
/* After a reserve that failed: ask the consumer to say when most of the ring is free, then try once more. */
void *wefti_ring_reserve_or_want(wefti_ring_tx_t *tx, uint64_t n);
/* Is there space for any record? If not, ask the consumer to say when there is, as above. */
bool wefti_ring_space_or_want(wefti_ring_tx_t *tx);

/* Space for a record of n bytes (n <= WEFTI_RING_LONGEST(size)), 8-byte aligned; NULL: none now. Nothing is visible before the
 * commit. */
static inline void *wefti_ring_reserve(wefti_ring_tx_t *tx, uint64_t n)
{
    uint64_t need = wefti_ring_span(n), at = tx->tail & (tx->size - 1);
    if (WEFTI_LIKELY(tx->tail + need + WEFTI_RING_GRAIN <= tx->limit && need <= tx->size - at))
        return tx->base + at + WEFTI_RING_HEAD;
    return wefti_ring_reserve_slow(tx, n);
}

/* Publish the first n bytes of what was reserved; the look at `parked` follows. Not light: that look is never done early.
 * Light: it may be, and park.c says why that does no harm. The difference is whether the next record waits until this one's
 * cache line has been taken back from the consumer that polls it: light moves half as many records again. */
static inline void wefti_ring_commit(wefti_ring_tx_t *tx, uint64_t n, uint32_t type)
{
    uint64_t at = tx->tail & (tx->size - 1), head = n | (uint64_t)type << 32;
    tx->tail += wefti_ring_span(n);
    uint64_t next = tx->tail & (tx->size - 1);
    atomic_store_explicit(wefti_ring_head(tx->base, next), 0, memory_order_relaxed);
    if (WEFTI_LIKELY(tx->light)) {
        atomic_store_explicit(wefti_ring_head(tx->base, at), head, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
    } else {
        atomic_exchange_explicit(wefti_ring_head(tx->base, at), head, memory_order_seq_cst);
    }
    wefti_ring_prefetch_write(tx->base + ((next + WEFTI_RING_AHEAD) & (tx->size - 1)));
}

/* --- consumer ----------------------------------------------------------------------------------------------------- */

void wefti_ring_rx_init(wefti_ring_rx_t *rx, void *region, uint64_t size, uint32_t max);
/* The head word is not that of a plain record: `head` is all that was read of it. */
wefti_ring_got_t wefti_ring_peek_slow(wefti_ring_rx_t *rx, uint64_t head, wefti_ring_rec_t *rec);
bool wefti_ring_publish(wefti_ring_rx_t *rx);
/* From now on several lanes use the ring: the low byte of a record's type is what it was, the rest is the channel. */
void wefti_ring_rx_share(wefti_ring_rx_t *rx);
wefti_ring_got_t wefti_ring_peek_shared(wefti_ring_rx_t *rx, wefti_ring_rec_t *rec);

static inline bool wefti_ring_empty(const wefti_ring_rx_t *rx)
{
    return !atomic_load_explicit(wefti_ring_head(rx->base, rx->pos & (rx->size - 1)), memory_order_seq_cst);
}

/* Look at the next record. Its length has been checked; its bytes are the peer's, which may still change them. */
static inline wefti_ring_got_t wefti_ring_peek(wefti_ring_rx_t *rx, wefti_ring_rec_t *rec)
{
    uint64_t at = rx->pos & (rx->size - 1);
    uint64_t head = atomic_load_explicit(wefti_ring_head(rx->base, at), memory_order_acquire);
    if (!head)
        return WEFTI_RING_EMPTY;
    uint32_t n = (uint32_t)head, type = (uint32_t)(head >> 32);
    uint64_t step = wefti_ring_span(n);
    if (WEFTI_UNLIKELY(n - 1 >= rx->max || step > rx->size - at ||
                       type - WEFTI_RING_TYPE_MIN > WEFTI_RING_TYPE_MAX - WEFTI_RING_TYPE_MIN))
        return wefti_ring_peek_slow(rx, head, rec);
    rx->step = (uint32_t)step;
    rec->bytes = rx->base + at + WEFTI_RING_HEAD;
    if (step > 64) { /* the lines of a short one come while the first is read */
        __builtin_prefetch(rx->base + at + 64);
        __builtin_prefetch(rec->bytes + (n < 192 ? n - 1 : 128));
    }
    rec->n = n;
    rec->type = type;
    return WEFTI_RING_RECORD;
}

/* Done with the record last peeked at. True: the producer waits for space, and now has it: ring its bell. */
static inline bool wefti_ring_pop(wefti_ring_rx_t *rx)
{
    rx->pos += rx->step;
    return WEFTI_UNLIKELY(rx->pos - rx->published >= rx->size / 8) ? wefti_ring_publish(rx) : false;
}

#endif
