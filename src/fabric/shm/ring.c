/* fabric/shm/ring.c - the rare paths of ring.h: the end of the ring, no space, and heads that are not plain records.
 *
 * Promise: whatever the other side writes, nothing here reads or writes outside the ring, and no loop is longer than one
 * step. Space is never missed: the producer stores want_at and then reads `consumed`, the consumer stores `consumed` and then
 * reads want_at, all sequentially consistent, so at least one of them sees the other. tests/unit/shm_ring.c holds us to both. */
#include "fabric/shm/ring.h"

void wefti_ring_tx_init(wefti_ring_tx_t *tx, void *region, uint64_t size)
{
    tx->page = region;
    tx->base = (uint8_t *)region + WEFTI_RING_PAGE;
    tx->tail = 0;
    tx->limit = size;
    tx->size = size;
    tx->bad = false;
    tx->light = false;
}

void wefti_ring_rx_init(wefti_ring_rx_t *rx, void *region, uint64_t size, uint32_t max)
{
    rx->page = region;
    rx->base = (uint8_t *)region + WEFTI_RING_PAGE;
    rx->pos = rx->published = 0;
    rx->size = size;
    rx->max = max;
    rx->step = 0;
    rx->shared = 0;
}

/* No record is short enough for wefti_ring_peek() any more: lanes that have a ring of their own need not ask. */
void wefti_ring_rx_share(wefti_ring_rx_t *rx)
{
    if (rx->shared)
        return;
    rx->shared = rx->max;
    rx->max = 0;
}

/* Read the consumer's position. It only grows, and never past what was written: anything else is not a consumer of ours. */
static void look(wefti_ring_tx_t *tx)
{
    uint64_t consumed = atomic_load_explicit(&tx->page->consumed, memory_order_seq_cst);
    if (consumed > tx->tail || consumed + tx->size < tx->limit) {
        tx->bad = true;
        return;
    }
    tx->limit = consumed + tx->size;
}

void *wefti_ring_reserve_slow(wefti_ring_tx_t *tx, uint64_t n)
{
    if (!tx->size || tx->bad)
        return NULL;
    uint64_t need = wefti_ring_span(n), at = tx->tail & (tx->size - 1);
    uint64_t skip = need > tx->size - at ? tx->size - at : 0;
    uint64_t end = tx->tail + skip + need + WEFTI_RING_GRAIN;
    if (end > tx->limit) {
        look(tx);
        if (end > tx->limit || tx->bad)
            return NULL;
    }
    if (skip) {
        /* Nobody needs to be told of a skip: the commit that follows does that. */
        atomic_store_explicit(wefti_ring_head(tx->base, 0), 0, memory_order_relaxed);
        atomic_store_explicit(wefti_ring_head(tx->base, at), (skip - WEFTI_RING_HEAD) | (uint64_t)WEFTI_RING_SKIP << 32,
                              memory_order_release);
        tx->tail += skip;
        at = 0;
    }
    return tx->base + at + WEFTI_RING_HEAD;
}

/* 9/16 of the ring are what the longest record, a skip before it and the next head word take. */
static bool has_space(wefti_ring_tx_t *tx)
{
    uint64_t most = tx->size / 16 * 9;
    if (tx->tail + most > tx->limit)
        look(tx);
    return !tx->bad && tx->tail + most <= tx->limit;
}

/* At least 7/16 of the ring are in use, or there would be space; so this is a position the consumer has yet to publish. */
static void want(wefti_ring_tx_t *tx)
{
    atomic_store_explicit(&tx->page->want_at, tx->tail - tx->size / 4, memory_order_seq_cst);
}

bool wefti_ring_space_or_want(wefti_ring_tx_t *tx)
{
    if (!tx->size || tx->bad)
        return false;
    if (has_space(tx))
        return true;
    want(tx); /* anew: records that were shorter may have gone since the wish that was granted */
    return has_space(tx);
}

void *wefti_ring_reserve_or_want(wefti_ring_tx_t *tx, uint64_t n)
{
    if (!tx->size || tx->bad)
        return NULL;
    want(tx);
    return wefti_ring_reserve_slow(tx, n);
}

/* Pass over a skip, if that is what this is. It ends at the end of the ring and does not begin at its beginning, so that no two
 * follow each other. */
static bool skip(wefti_ring_rx_t *rx, uint64_t head)
{
    uint64_t at = rx->pos & (rx->size - 1);
    if (at == 0 || head != ((rx->size - at - WEFTI_RING_HEAD) | (uint64_t)WEFTI_RING_SKIP << 32))
        return false;
    rx->pos += rx->size - at;
    return true;
}

wefti_ring_got_t wefti_ring_peek_slow(wefti_ring_rx_t *rx, uint64_t head, wefti_ring_rec_t *rec)
{
    if (rx->shared)
        return WEFTI_RING_SHARED;
    return skip(rx, head) ? wefti_ring_peek(rx, rec) : WEFTI_RING_BAD;
}

wefti_ring_got_t wefti_ring_peek_shared(wefti_ring_rx_t *rx, wefti_ring_rec_t *rec)
{
    for (;;) {
        uint64_t at = rx->pos & (rx->size - 1);
        uint64_t head = atomic_load_explicit(wefti_ring_head(rx->base, at), memory_order_acquire);
        if (!head)
            return WEFTI_RING_EMPTY;
        uint32_t n = (uint32_t)head, type = (uint32_t)(head >> 32) & 0xff;
        uint64_t step = wefti_ring_span(n);
        if (WEFTI_LIKELY(n - 1 < rx->shared && step <= rx->size - at &&
                         type - WEFTI_RING_TYPE_MIN <= WEFTI_RING_TYPE_MAX - WEFTI_RING_TYPE_MIN)) {
            rx->step = (uint32_t)step;
            *rec = (wefti_ring_rec_t){rx->base + at + WEFTI_RING_HEAD, n, (uint32_t)(head >> 32)};
            if (step > 64) /* as wefti_ring_peek() */
                __builtin_prefetch(rx->base + at + 64);
            return WEFTI_RING_RECORD;
        }
        if (!skip(rx, head))
            return WEFTI_RING_BAD;
    }
}

bool wefti_ring_publish(wefti_ring_rx_t *rx)
{
    rx->published = rx->pos;
    atomic_exchange_explicit(&rx->page->consumed, rx->pos, memory_order_seq_cst);
    uint64_t want = atomic_load_explicit(&rx->page->want_at, memory_order_seq_cst);
    /* Compare and exchange: a wish stored meanwhile is for a later position and must stay. */
    return want && want <= rx->pos && atomic_compare_exchange_strong(&rx->page->want_at, &want, 0);
}
