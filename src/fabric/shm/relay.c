/* fabric/shm/relay.c - the sender helps: while the receiver reads the front of a long payload, its sender copies the back.
 *
 *     receiver                                     sender
 *     RELAY {fd, ino, bytes}  -->                  maps it; once per lane
 *     HELP {id, want}         -->                  copies chunks {id, offset, bytes} into the relay, from the last byte on down
 *     reads the front (copy.c), and
 *     takes what is in the relay
 *     DONE {id, OK}           -->                  forgets it
 *
 * The relay is a second ring of the lane, made by the consumer like the first: one side copies into it, the other out of it, and
 * both are plain copies, which move twice as many bytes as the kernel's copy between processes. So even one processor loses
 * nothing, and two are busy where the sender would have waited. (Payloads that the caches hold are another matter, so nobody
 * asks where there is one processor for both.)
 *
 * Help is never waited for. The receiver takes what is there, and reads a piece of the front itself where nothing is; the two
 * meet somewhere in the middle. A sender that computes, sleeps deeply, or is stopped in the middle of a chunk delays nobody: the
 * receiver reads that chunk too. What arrives for a payload that is whole is dropped. So that little is copied
 * for nothing, the receiver says how far it has come (wefti_ring_page_t.front), which is a hint: a lie makes the sender stop, or
 * copy for nothing.
 *
 * Nobody writes to memory of the other's program: a sender that was stopped, given up, and goes on years later writes to a
 * relay that nobody has mapped any more.
 *
 * States of a lane's half: the receiver has none, or one (lane->relay_in) until the lane ends; at most WEFTI_SHM_RELAYS_MAX of a
 * transport, since each is WEFTI_SHM_RELAY_BYTES. The sender maps it when it is told of it, if it can. Only progress and pull
 * move them.
 *
 * Promise: a payload is whole when every byte of it came by one of the two ways, and no byte of a chunk is copied to anywhere but
 * its place in the payload, whatever the chunk says. tests/wire/fabric_shm_relay.c. */
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/copy.h"
#include "base/log.h"
#include "fabric/shm/guest.h"

#define CHUNK (64u << 10) /* bytes of a chunk: it stays in the cache of the processor that made it */
#define SMALLEST (4 * CHUNK)
#define PIECES_MAX 64u /* of a payload, on either side: a chunk finds its place by walking along them */

typedef struct relay_record {
    uint64_t ino;
    int32_t fd;
    uint32_t bytes;
} relay_record_t;

typedef struct help_record {
    uint64_t id, want;
} help_record_t;

typedef struct chunk_head {
    uint64_t id, off;
} chunk_head_t;

static wefti_cursor_t cursor_at(const weft_iov_t *iov, uint64_t off)
{
    wefti_cursor_t c = {.iov = iov};
    wefti_cursor_advance(&c, off);
    return c;
}

static uint64_t front_of(const wefti_shm_pull_t *p)
{
    return p->back - p->left;
}

/* --- the receiver ------------------------------------------------------------------------------------------------- */

/* May the two processes use more than one processor between them? If not, help is only another thing to do. */
static bool two_processors(pid_t peer)
{
    cpu_set_t ours, theirs;
    if (sched_getaffinity(0, sizeof ours, &ours) || sched_getaffinity(peer, sizeof theirs, &theirs))
        return true; /* there are more than a set takes */
    CPU_OR(&ours, &ours, &theirs);
    return CPU_COUNT(&ours) > 1;
}

/* Make the relay, and tell the sender. False: not now, or never. */
static bool relay_open(wefti_shm_lane_t *lane)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    if (!two_processors(lane->peer->at.pid)) {
        lane->helps_us = false;
        return false;
    }
    relay_record_t *rec = r->n_relays < WEFTI_SHM_RELAYS_MAX ? wefti_shm_lane_reserve(lane, sizeof *rec) : NULL;
    if (!rec)
        return false;
    wefti_shm_relay_in_t *in = wefti_calloc(1, sizeof *in);
    if (!in || wefti_region_new("weft-relay", WEFTI_RING_PAGE + WEFTI_SHM_RELAY_BYTES, &in->region, &in->map)) {
        wefti_free(in); /* what was reserved is not committed, and so is nothing */
        return false;
    }
    wefti_ring_rx_init(&in->rx, in->map, WEFTI_SHM_RELAY_BYTES, sizeof(chunk_head_t) + CHUNK);
    *rec = (relay_record_t){in->region.ino, in->region.fd, WEFTI_SHM_RELAY_BYTES};
    wefti_shm_lane_commit(lane, sizeof *rec, WEFTI_SHM_RELAY);
    lane->relay_in = in;
    r->n_relays++;
    return true;
}

void wefti_shm_help_wanted(wefti_shm_pull_t *p, size_t iov_n)
{
    wefti_shm_lane_t *lane = p->lane;
    if (lane->state != WEFTI_SHM_LANE_UP || p->state != WEFTI_SHM_COPYING || !lane->helps_us)
        return;
    if (p->left < WEFTI_SHM_RELAY_MIN || iov_n > PIECES_MAX || p->n_pieces > PIECES_MAX)
        return;
    if (lane->known.n && wefti_shm_arena_find(lane, p->piece[0].base, p->piece[0].len))
        return; /* it can be copied without the kernel */
    if (!lane->relay_in && !relay_open(lane))
        return;
    help_record_t *rec = wefti_shm_lane_reserve(lane, sizeof *rec);
    if (!rec)
        return;
    *rec = (help_record_t){p->id, p->left};
    wefti_shm_lane_commit(lane, sizeof *rec, WEFTI_SHM_HELP);
    p->helped = true;
}

/* One chunk into its place, as far as it is not there yet. */
static weft_status_t chunk_in(wefti_shm_lane_t *lane, const wefti_ring_rec_t *rec, uint64_t *budget)
{
    chunk_head_t head;
    if (rec->n <= sizeof head || rec->type != WEFTI_SHM_DATA)
        return WEFT_ERR_PROTOCOL;
    memcpy(&head, rec->bytes, sizeof head);
    wefti_shm_copied();
    uint64_t n = rec->n - sizeof head;
    wefti_shm_pull_t *p = wefti_map_get(&lane->pull_ids, head.id);
    if (!p || p->state != WEFTI_SHM_COPYING || !p->helped || !p->left)
        return WEFT_OK; /* it came too late */
    if (head.off > p->back || p->back - head.off != n)
        return WEFT_ERR_PROTOCOL;
    uint64_t front = front_of(p), skip = head.off < front ? front - head.off : 0;
    wefti_cursor_t to = cursor_at(p->to.iov, head.off + skip);
    n -= skip;
    wefti_shm_scatter(&to, rec->bytes + sizeof head + skip, n, p->stream);
    p->back -= n;
    p->left -= n;
    p->unhelped = 0;
    lane->relay_in->taken += n;
    *budget -= n < *budget ? n : *budget;
    return WEFT_OK;
}

weft_status_t wefti_shm_relay_take(wefti_shm_lane_t *lane, uint64_t *budget)
{
    wefti_shm_relay_in_t *in = lane->relay_in;
    wefti_ring_rec_t rec;
    while (*budget) {
        wefti_ring_got_t got = wefti_ring_peek(&in->rx, &rec);
        if (got == WEFTI_RING_EMPTY)
            break;
        weft_status_t st = got == WEFTI_RING_BAD ? WEFT_ERR_PROTOCOL : chunk_in(lane, &rec, budget);
        if (st) {
            wefti_info("shm: process %d put a chunk into its relay that makes no sense", lane->peer->at.pid);
            return st;
        }
        if (wefti_ring_pop(&in->rx))
            wefti_bell_ring(lane->peer, lane->peer_index);
    }
    if (in->region.fd >= 0 && atomic_load_explicit(&in->rx.page->mapped, memory_order_relaxed)) {
        close(in->region.fd);
        in->region.fd = -1;
    }
    return WEFT_OK;
}

uint64_t wefti_shm_front_next(wefti_shm_pull_t *p, uint64_t most)
{
    /* Small at first, so that what the sender puts into the relay does not lie there for long; without help, ever larger. */
    uint64_t piece = (uint64_t)CHUNK << (p->unhelped / 2);
    wefti_ring_page_t *page = p->lane->relay_in->rx.page;
    most = piece < most ? piece : most;
    if (piece < WEFTI_SHM_COPY_BUDGET)
        p->unhelped++;
    atomic_store_explicit(&page->front_id, p->id, memory_order_relaxed);
    atomic_store_explicit(&page->front, front_of(p) + most, memory_order_relaxed);
    return most;
}

/* --- the sender --------------------------------------------------------------------------------------------------- */

static weft_status_t on_relay(wefti_shm_lane_t *lane, const uint8_t *bytes, uint32_t n)
{
    relay_record_t rec;
    if (n != sizeof rec || lane->relay_told)
        return WEFT_ERR_PROTOCOL;
    memcpy(&rec, bytes, sizeof rec);
    wefti_shm_copied();
    if (rec.fd < 0 || rec.bytes < SMALLEST || rec.bytes > WEFTI_RING_LARGEST || (rec.bytes & (rec.bytes - 1)))
        return WEFT_ERR_PROTOCOL;
    lane->relay_told = true;
    wefti_shm_relay_out_t *out = wefti_calloc(1, sizeof *out);
    if (!out)
        return WEFT_OK; /* they do without */
    out->map_size = WEFTI_RING_PAGE + (size_t)rec.bytes;
    weft_status_t st = wefti_region_view(lane->peer->at.pid, rec.fd, rec.ino, out->map_size, true, &out->map);
    if (st) {
        wefti_free(out);
        return st == WEFT_ERR_PROTOCOL ? st : WEFT_OK;
    }
    wefti_ring_tx_init(&out->tx, out->map, rec.bytes);
    atomic_store(&out->tx.page->mapped, 1);
    lane->relay_out = out;
    return WEFT_OK;
}

static weft_status_t on_help(wefti_shm_lane_t *lane, const uint8_t *bytes, uint32_t n)
{
    help_record_t rec;
    if (n != sizeof rec)
        return WEFT_ERR_PROTOCOL;
    memcpy(&rec, bytes, sizeof rec);
    wefti_shm_copied();
    wefti_shm_send_t *s = wefti_slots_get(&lane->send_ids, rec.id);
    if (!lane->relay_told || !s || s->streamed || s->helped || !rec.want || rec.want > s->total)
        return WEFT_ERR_PROTOCOL;
    s->helped = true;
    if (!lane->relay_out || s->iov_n > PIECES_MAX)
        return WEFT_OK;
    s->left = rec.want;
    wefti_list_push_back(&lane->helps, &s->help_link);
    wefti_shm_work(lane);
    return WEFT_OK;
}

weft_status_t wefti_shm_relay_control(wefti_shm_lane_t *lane, const wefti_ring_rec_t *rec)
{
    return rec->type == WEFTI_SHM_RELAY ? on_relay(lane, rec->bytes, rec->n) : on_help(lane, rec->bytes, rec->n);
}

/* What the receiver has not read itself, as far as it says. */
static uint64_t help_left(const wefti_shm_send_t *s, const wefti_ring_page_t *page)
{
    if (atomic_load_explicit(&page->front_id, memory_order_relaxed) != s->id)
        return s->left;
    uint64_t front = atomic_load_explicit(&page->front, memory_order_relaxed);
    return front < s->left ? s->left - front : 0;
}

unsigned wefti_shm_relay_help(wefti_shm_lane_t *lane, uint64_t *budget)
{
    unsigned n = 0;
    wefti_list_t *it;
    while (lane->state == WEFTI_SHM_LANE_UP && (it = wefti_list_first(&lane->helps))) {
        wefti_shm_send_t *s = wefti_container_of(it, wefti_shm_send_t, help_link);
        wefti_ring_tx_t *tx = &lane->relay_out->tx;
        uint64_t left = help_left(s, tx->page), bytes = left < CHUNK ? left : CHUNK;
        if (!bytes) {
            wefti_list_remove(it);
            continue;
        }
        if (*budget < bytes) {
            wefti_shm_work(lane);
            break;
        }
        uint8_t *at = wefti_ring_reserve(tx, sizeof(chunk_head_t) + bytes);
        if (!at)
            at = wefti_ring_reserve_or_want(tx, sizeof(chunk_head_t) + bytes);
        if (!at) {
            if (tx->bad)
                wefti_shm_lane_fail(lane, WEFT_ERR_PROTOCOL);
            else if (lane->carrier != lane)
                wefti_shm_guest_starves(lane);
            break; /* its bell rings when there is space */
        }
        chunk_head_t head = {s->id, s->left - bytes};
        wefti_cursor_t from = cursor_at(s->from.iov, head.off);
        memcpy(at, &head, sizeof head);
        wefti_cursor_gather(&from, at + sizeof head, bytes);
        wefti_ring_commit(tx, sizeof head + bytes, WEFTI_SHM_DATA);
        s->left -= bytes;
        *budget -= bytes;
        n++;
    }
    return n;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

void wefti_shm_relays_end(wefti_shm_lane_t *lane)
{
    wefti_shm_relay_in_t *in = lane->relay_in;
    wefti_shm_relay_out_t *out = lane->relay_out;
    if (in) {
        if (in->region.fd >= 0)
            close(in->region.fd);
        wefti_region_unmap(in->map, WEFTI_RING_PAGE + WEFTI_SHM_RELAY_BYTES);
        wefti_shm_transport_of(lane)->n_relays--;
    }
    if (out)
        wefti_region_unmap(out->map, out->map_size);
    wefti_free(in);
    wefti_free(out);
    lane->relay_in = NULL;
    lane->relay_out = NULL;
}
