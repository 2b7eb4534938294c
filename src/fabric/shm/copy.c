/* fabric/shm/copy.c - bytes from the sender's memory into the receiver's pieces.
 *
 * The receiver reads with process_vm_readv, a bounded number of bytes at a time, so that other lanes and heartbeats live
 * meanwhile. The last call of a payload also reads the word that names the sender's runtime, after the payload: a process that
 * died and whose number was given to another, or that became another program, does not have it. So bytes of another process are
 * never reported as good, and the check costs nothing. A sender that takes its buffer back by closing the lane sets `closed`
 * first; we look at it after the last byte.
 *
 * The sender's list of pieces is read like everything else: lengths are clamped to what is left, and each look at more of the
 * list costs budget, so that a list of empty pieces cannot keep us busy for ever.
 *
 * The sender may help (relay.c): then bytes also come from the other end of the payload.
 *
 * Pieces that lie in an arena we can map (arena.c) are copied from there: there is no system call, and the bytes stay even if
 * the sender dies meanwhile. Large ones go past the cache (20 GB/s, on a machine where process_vm_readv makes 8).
 *
 * tests/wire/fabric_share.c and tests/wire/fabric_shm_faults.c (killed and stopped senders, senders that close midway, many
 * pieces) hold us to it. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "base/copy.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

#define IOV_MANY 32
#define LIST_COST 4096u /* of the budget, for one look at more of the sender's list */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void wefti_shm_scatter(wefti_cursor_t *to, const uint8_t *bytes, size_t n, bool past_cache)
{
    if (!past_cache) {
        wefti_cursor_scatter(to, bytes, n);
        return;
    }
    for (uint8_t *at; n;) {
        size_t here = wefti_cursor_next(to, n, &at);
        wefti_copy_past_cache(at, bytes, here);
        bytes += here;
        n -= here;
    }
}

/* The sender's side, of the pieces that are known here, up to one that can be had without the kernel. */
static uint64_t fill_remote(const wefti_shm_pull_t *p, uint64_t most, struct iovec *v, unsigned *n_out)
{
    uint64_t sum = 0, off = p->piece_off;
    unsigned n = 0;
    for (uint32_t i = p->at_here; i < p->n_here && sum < most; i++, off = 0) {
        uint64_t here = min_u64(p->piece[i].len - off, most - sum);
        if (!here)
            continue;
        if (n && p->lane->known.n && wefti_shm_arena_find(p->lane, p->piece[i].base, p->piece[i].len))
            break;
        v[n].iov_base = (void *)(uintptr_t)(p->piece[i].base + off);
        v[n++].iov_len = here;
        sum += here;
    }
    *n_out = n;
    return sum;
}

static void advance_remote(wefti_shm_pull_t *p, uint64_t n)
{
    while (n) {
        uint64_t here = min_u64(n, p->piece[p->at_here].len - p->piece_off);
        n -= here;
        p->piece_off += here;
        if (p->piece_off == p->piece[p->at_here].len) {
            p->at_here++;
            p->piece_off = 0;
        }
    }
}

static weft_status_t status_of_read(int err)
{
    return err == ENOMEM || err == EINTR || err == EAGAIN ? WEFT_ERR_AGAIN : WEFT_ERR_PEER;
}

/* Read the next few entries of the sender's list. */
static weft_status_t more_pieces(wefti_shm_pull_t *p)
{
    uint32_t n = p->n_pieces - p->next_piece;
    if (!n)
        return WEFT_ERR_PEER; /* the list is shorter than the payload */
    if (n > WEFTI_SHM_PIECES)
        n = WEFTI_SHM_PIECES;
    size_t bytes = n * sizeof p->piece[0];
    struct iovec local = {p->piece, bytes};
    struct iovec remote = {(void *)(uintptr_t)(p->pieces_at + (uint64_t)p->next_piece * sizeof p->piece[0]), bytes};
    ssize_t got = process_vm_readv(p->lane->peer->at.pid, &local, 1, &remote, 1, 0);
    if (got != (ssize_t)bytes)
        return got < 0 ? status_of_read(errno) : WEFT_ERR_PEER;
    p->next_piece += n;
    p->n_here = n;
    p->at_here = 0;
    p->piece_off = 0;
    return WEFT_OK;
}

/* The arena of the piece at hand, held until another one is at hand. */
static wefti_shm_arena_t *arena_here(wefti_shm_pull_t *p)
{
    const wefti_shm_piece_t *piece = &p->piece[p->at_here];
    if (p->arena && wefti_shm_range_has(&p->arena->range, piece->base, piece->len))
        return p->arena;
    if (p->arena)
        wefti_shm_arena_drop(p->arena);
    p->arena = p->lane->known.n ? wefti_shm_arena_hold(p->lane, piece->base, piece->len) : NULL;
    return p->arena;
}

/* Every byte is here: were they still the sender's to give? */
static weft_status_t whole(const wefti_shm_pull_t *p)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (wefti_shm_peer_closed(p->lane))
        return WEFT_ERR_PEER;
    return p->unproved && wefti_shm_probe(&p->lane->peer->at) ? WEFT_ERR_PEER : WEFT_OK;
}

/* More of the piece at hand, out of its arena. */
static weft_status_t copy_mapped(wefti_shm_pull_t *p, wefti_shm_arena_t *a, uint64_t *budget)
{
    const wefti_shm_piece_t *piece = &p->piece[p->at_here];
    uint64_t n = min_u64(min_u64(p->left, *budget), piece->len - p->piece_off);
    wefti_shm_scatter(&p->to, a->map + (piece->base - a->range.base) + p->piece_off, n, p->stream);
    wefti_shm_transport_of(p->lane)->mapped_copies += n;
    p->left -= n;
    *budget -= n;
    if (p->left) {
        advance_remote(p, n);
        return WEFT_ERR_AGAIN;
    }
    return whole(p);
}

weft_status_t wefti_shm_copy(wefti_shm_pull_t *p, uint64_t *budget)
{
    const wefti_shm_peer_t *peer = p->lane->peer;
    struct iovec local[IOV_MANY + 1], remote[WEFTI_SHM_PIECES + 1];
    while (*budget) {
        uint64_t probe = 0;
        unsigned n_local = 0, n_remote;
        weft_status_t helped = p->helped ? wefti_shm_relay_take(p->lane, budget) : WEFT_OK;
        if (helped)
            return helped;
        if (!p->left)
            return whole(p);
        if (!*budget)
            break;
        while (p->at_here < p->n_here && p->piece_off == p->piece[p->at_here].len) {
            p->at_here++;
            p->piece_off = 0;
        }
        wefti_shm_arena_t *a = p->at_here < p->n_here ? arena_here(p) : NULL;
        if (a) {
            weft_status_t st = copy_mapped(p, a, budget);
            if (st != WEFT_ERR_AGAIN)
                return st;
            continue;
        }
        if (!peer->readable)
            return WEFT_ERR_PEER;
        if (p->at_here == p->n_here) {
            weft_status_t st = more_pieces(p);
            *budget -= min_u64(*budget, LIST_COST);
            if (st)
                return st;
            continue;
        }
        uint64_t most = min_u64(p->left, *budget);
        if (p->helped)
            most = wefti_shm_front_next(p, most);
        most = fill_remote(p, most, remote, &n_remote);
        uint64_t sum = wefti_cursor_pieces(p->to, most, local, IOV_MANY, &n_local);
        if (sum < most)
            fill_remote(p, sum, remote, &n_remote);
        bool last = sum == p->left;
        if (last) {
            local[n_local++] = (struct iovec){&probe, sizeof probe};
            remote[n_remote++] = (struct iovec){(void *)(uintptr_t)peer->at.probe_at, sizeof probe};
        }
        ssize_t got = process_vm_readv(peer->at.pid, local, n_local, remote, n_remote, 0);
        if (got <= 0)
            return got < 0 ? status_of_read(errno) : WEFT_ERR_PEER;
        uint64_t moved = min_u64((uint64_t)got, sum);
        *budget -= moved;
        if (last && moved == sum)
            return probe == peer->at.nonce && !wefti_shm_peer_closed(p->lane) ? WEFT_OK : WEFT_ERR_PEER;
        p->unproved = true;
        wefti_cursor_advance(&p->to, moved);
        advance_remote(p, moved);
        p->left -= moved;
    }
    return WEFT_ERR_AGAIN;
}
