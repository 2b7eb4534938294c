/* fabric/shm/bulk.c - payloads that stay with the sender until the receiver wants them.
 *
 *     sender                                 receiver
 *     announce: RTS {id, total, pieces} -->  announced(p)
 *                                            pull: reads the sender's memory (copy.c)
 *     x done OK                         <--  DONE {id, OK}
 *
 * A sender of much is asked to help meanwhile (relay.c). Where reading is not allowed, or WEFT_SHM_COPY says so, pull sends PULL
 * {id, want} and the sender streams DATA {id, bytes} through the ring. refuse: DONE {id, taken or refused}. So each announcement
 * gets exactly one answer. lend: like an announcement that waits.
 *
 * The sender's ids are slots with a generation, per lane: an id that is not under way, or an answer that does not fit its state,
 * breaks the protocol.
 *
 * A control record lies in an object that exists anyway (a pull, an arena that was told), so that an answer never needs memory.
 * Those that find no space wait in lane->out, in order. Transfers that have ended are kept to be used again, WEFTI_SHM_SPARES of
 * each kind.
 *
 * Only progress moves these states, except that pull, refuse and announce start them. tests/wire/fabric_lanes.c and
 * tests/wire/fabric_shm.c hold us to "each transfer is done exactly once". */
#include <string.h>

#include "base/alloc.h"
#include "base/copy.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

typedef struct rts_record {
    uint64_t id, total, pieces_at;
    uint32_t n_pieces, n_rec;
    /* then min(n_pieces, WEFTI_SHM_PIECES) pieces, then the record */
} rts_record_t;

typedef struct ctl_record {
    uint64_t id, arg;
} ctl_record_t;
enum { ANSWER_OK = 0, ANSWER_REFUSED = 1, ANSWER_N = 2 };

_Static_assert(sizeof(wefti_shm_piece_t) == sizeof(weft_iov_t), "the sender's iov array is read as pieces");
_Static_assert(sizeof(rts_record_t) + WEFTI_SHM_PIECES * sizeof(wefti_shm_piece_t) + WEFTI_REC_MAX / 2 <= WEFTI_REC_MAX,
               "an announcement fits the smallest frame");

/* --- objects ------------------------------------------------------------------------------------------------------ */

static void send_free(wefti_shm_lane_t *lane, wefti_shm_send_t *s)
{
    if (wefti_list_linked(&s->link))
        wefti_list_remove(&s->link);
    if (wefti_list_linked(&s->help_link))
        wefti_list_remove(&s->help_link);
    wefti_slots_remove(&lane->send_ids, s->id);
    wefti_spares_put(&wefti_shm_transport_of(lane)->spare_sends, s, WEFTI_SHM_SPARES);
}

/* Take it off everything but lane->out. */
static void pull_unlink(wefti_shm_pull_t *p)
{
    if (wefti_list_linked(&p->link))
        wefti_list_remove(&p->link);
    if (p->arena)
        wefti_shm_arena_drop(p->arena);
    p->arena = NULL;
    wefti_map_take(&p->lane->pull_ids, p->id);
}

static void pull_free(wefti_shm_pull_t *p)
{
    pull_unlink(p);
    if (wefti_list_linked(&p->ctl.link))
        wefti_list_remove(&p->ctl.link);
    wefti_spares_put(&wefti_shm_transport_of(p->lane)->spare_pulls, p, WEFTI_SHM_SPARES);
}

/* --- control records ---------------------------------------------------------------------------------------------- */

static bool ctl_put(wefti_shm_lane_t *lane, const wefti_shm_ctl_t *ctl)
{
    ctl_record_t *rec = wefti_shm_lane_reserve(lane, sizeof *rec);
    if (!rec)
        return false;
    rec->id = ctl->id;
    rec->arg = ctl->arg;
    wefti_shm_lane_commit(lane, sizeof *rec, ctl->type);
    return true;
}

/* It was sent, or will never be: end what ends with it. Not inline: gcc would warn of a branch that is never taken there. */
__attribute__((noinline)) static void ctl_sent(wefti_shm_lane_t *lane, wefti_shm_ctl_t *ctl)
{
    if (ctl->ends == WEFTI_SHM_ENDS_PULL) {
        pull_free(wefti_container_of(ctl, wefti_shm_pull_t, ctl));
    } else if (ctl->ends == WEFTI_SHM_ENDS_TOLD) {
        lane->n_gone_out--;
        wefti_free(wefti_container_of(ctl, wefti_shm_told_t, ctl));
    }
}

/* Send it now, or when there is space. */
static void ctl_send(wefti_shm_lane_t *lane, wefti_shm_ctl_t *ctl, uint32_t type, uint64_t id, uint64_t arg)
{
    ctl->type = type;
    ctl->id = id;
    ctl->arg = arg;
    if (wefti_list_empty(&lane->out) && ctl_put(lane, ctl))
        ctl_sent(lane, ctl);
    else
        wefti_list_push_back(&lane->out, &ctl->link);
}

/* Send those that wait, as far as there is space; how many. */
static unsigned ctl_flush(wefti_shm_lane_t *lane)
{
    unsigned n = 0;
    wefti_list_t *it;
    while ((it = wefti_list_first(&lane->out))) {
        wefti_shm_ctl_t *ctl = wefti_container_of(it, wefti_shm_ctl_t, link);
        if (!ctl_put(lane, ctl))
            break;
        wefti_list_remove(it);
        ctl_sent(lane, ctl);
        n++;
    }
    return n;
}

/* Answer a pull. It is freed, or waits for space: the caller has it no more. */
static void pull_answer(wefti_shm_pull_t *p, uint64_t answer)
{
    pull_unlink(p);
    p->state = WEFTI_SHM_ANSWERED;
    if (p->lane->state != WEFTI_SHM_LANE_UP) {
        pull_free(p);
        return;
    }
    p->ctl.ends = WEFTI_SHM_ENDS_PULL;
    ctl_send(p->lane, &p->ctl, WEFTI_SHM_DONE, p->id, answer);
}

/* --- the sender's calls ------------------------------------------------------------------------------------------- */

/* What the peer knows of our arenas is brought up to date before it reads an address: false if there is no space to do so. */
static bool arenas_told(wefti_shm_lane_t *lane, const weft_iov_t *iov, size_t iov_n)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    if (WEFTI_UNLIKELY(atomic_load_explicit(&r->n_gone, memory_order_acquire)))
        wefti_shm_shares_gone(r);
    if (WEFTI_UNLIKELY(lane->n_gone_out)) {
        ctl_flush(lane);
        if (lane->n_gone_out)
            return false;
    }
    if (atomic_load_explicit(&r->n_shares, memory_order_relaxed))
        wefti_shm_tell(lane, iov, iov_n);
    return true;
}

weft_status_t wefti_shm_announce(wefti_lane_t *l, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n, uint64_t total,
                                 wefti_xfer_t *x)
{
    wefti_shm_lane_t *lane = (wefti_shm_lane_t *)l;
    if (iov_n > UINT32_MAX || n > WEFTI_REC_MAX / 2)
        return wefti_fail(WEFT_ERR_INVALID, "an announcement of %zu pieces and a record of %zu bytes", iov_n, n);
    if (lane->state != WEFTI_SHM_LANE_UP)
        return WEFT_ERR_AGAIN;
    if (!arenas_told(lane, iov, iov_n)) {
        lane->starved = true;
        return WEFT_ERR_AGAIN;
    }
    wefti_shm_send_t *s = wefti_spares_get(&wefti_shm_transport_of(lane)->spare_sends, sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an announcement");
    *s = (wefti_shm_send_t){.x = x, .total = total, .from.iov = iov, .iov_n = iov_n};
    weft_status_t st = wefti_slots_add(&lane->send_ids, s, &s->id);
    if (st) {
        wefti_spares_put(&wefti_shm_transport_of(lane)->spare_sends, s, WEFTI_SHM_SPARES);
        return wefti_fail(st, "no place for one more announcement");
    }
    size_t n_here = iov_n < WEFTI_SHM_PIECES ? iov_n : WEFTI_SHM_PIECES;
    size_t size = sizeof(rts_record_t) + n_here * sizeof(wefti_shm_piece_t) + n;
    uint8_t *at = wefti_shm_lane_reserve(lane, size);
    if (!at) {
        lane->starved = true;
        send_free(lane, s);
        return WEFT_ERR_AGAIN;
    }
    wefti_list_push_back(&lane->sends, &s->link);

    rts_record_t rts = {s->id, total, (uint64_t)(uintptr_t)iov, (uint32_t)iov_n, (uint32_t)n};
    memcpy(at, &rts, sizeof rts);
    at += sizeof rts;
    for (size_t i = 0; i < n_here; i++, at += sizeof(wefti_shm_piece_t)) {
        wefti_shm_piece_t piece = {(uint64_t)(uintptr_t)iov[i].base, iov[i].len};
        memcpy(at, &piece, sizeof piece);
    }
    if (n)
        memcpy(at, rec, n);
    wefti_shm_lane_commit(lane, size, WEFTI_SHM_RTS);
    return WEFT_OK;
}

static void send_done(wefti_shm_lane_t *lane, wefti_shm_send_t *s, weft_status_t status)
{
    wefti_xfer_t *x = s->x;
    send_free(lane, s);
    x->done(x, status);
}

/* --- the receiver's calls ----------------------------------------------------------------------------------------- */

/* Does all that is wanted lie in one arena? Then it is held for the whole of the pull. */
static bool in_one_arena(wefti_shm_pull_t *p, uint64_t want)
{
    wefti_shm_arena_t *a = NULL;
    for (uint32_t i = 0; i < p->n_here && want; i++) {
        const wefti_shm_piece_t *piece = &p->piece[i];
        if (!piece->len)
            continue;
        if (!a)
            a = p->arena = wefti_shm_arena_hold(p->lane, piece->base, piece->len);
        if (!a || !wefti_shm_range_has(&a->range, piece->base, piece->len))
            break;
        want -= piece->len < want ? piece->len : want;
    }
    if (!want)
        return true;
    if (a)
        wefti_shm_arena_drop(a);
    p->arena = NULL;
    return false;
}

weft_status_t wefti_shm_pull(wefti_pull_t *pull, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    wefti_shm_pull_t *p = (wefti_shm_pull_t *)pull;
    wefti_shm_lane_t *lane = p->lane;
    uint64_t sum = 0;
    for (size_t i = 0; i < iov_n && sum < want; i++)
        sum += iov[i].len;
    if (!want || want > p->total || sum < want)
        return wefti_fail(WEFT_ERR_INVALID, "a pull of %llu of %llu bytes into %llu", (unsigned long long)want,
                          (unsigned long long)p->total, (unsigned long long)sum);
    /* A short list is kept here, so that a caller may make it on its stack. */
    if (iov_n <= sizeof p->own_iov / sizeof p->own_iov[0]) {
        memcpy(p->own_iov, iov, iov_n * sizeof *iov);
        iov = p->own_iov;
    }
    p->to.iov = iov;
    p->left = p->back = want;
    p->stream = want >= WEFTI_PAST_CACHE;
    p->x = x;
    wefti_list_remove(&p->link);
    wefti_list_push_back(&lane->pulls, &p->link);
    p->state = lane->peer->readable || in_one_arena(p, want) ? WEFTI_SHM_COPYING : WEFTI_SHM_ARRIVING;
    if (lane->state == WEFTI_SHM_LANE_UP && p->state == WEFTI_SHM_ARRIVING)
        ctl_send(lane, &p->ctl, WEFTI_SHM_PULL, p->id, want);
    else if (lane->state != WEFTI_SHM_LANE_CLOSING)
        wefti_shm_work(lane);
    if (want >= WEFTI_SHM_RELAY_MIN)
        wefti_shm_help_wanted(p, iov_n);
    return WEFT_OK;
}

void wefti_shm_refuse(wefti_pull_t *pull, bool taken)
{
    pull_answer((wefti_shm_pull_t *)pull, taken ? ANSWER_OK : ANSWER_REFUSED);
}

static void pull_done(wefti_shm_pull_t *p)
{
    wefti_xfer_t *x = p->x;
    pull_answer(p, ANSWER_OK);
    x->done(x, WEFT_OK);
}

/* --- records from the peer ---------------------------------------------------------------------------------------- */

static weft_status_t on_rts(wefti_shm_lane_t *lane, const uint8_t *bytes, uint32_t n)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    rts_record_t rts;
    if (n < sizeof rts)
        return WEFT_ERR_PROTOCOL;
    memcpy(&rts, bytes, sizeof rts);
    wefti_shm_copied();
    uint32_t n_here = rts.n_pieces < WEFTI_SHM_PIECES ? rts.n_pieces : WEFTI_SHM_PIECES;
    size_t rec_at = sizeof rts + n_here * sizeof(wefti_shm_piece_t);
    if (rts.n_rec > n || rec_at + rts.n_rec != n || wefti_map_get(&lane->pull_ids, rts.id))
        return WEFT_ERR_PROTOCOL;
    wefti_shm_pull_t *p = wefti_spares_get(&r->spare_pulls, sizeof *p);
    if (!p)
        return WEFT_ERR_NOMEM;
    if (wefti_map_put(&lane->pull_ids, rts.id, p)) {
        wefti_spares_put(&r->spare_pulls, p, WEFTI_SHM_SPARES);
        return WEFT_ERR_NOMEM;
    }
    *p = (wefti_shm_pull_t){
        .pull.ops = lane->lane.ops,
        .lane = lane,
        .id = rts.id,
        .total = rts.total,
        .state = WEFTI_SHM_WAITING,
        .n_pieces = rts.n_pieces,
        .next_piece = n_here,
        .n_here = n_here,
        .pieces_at = rts.pieces_at,
    };
    memcpy(p->piece, bytes + sizeof rts, n_here * sizeof p->piece[0]);
    wefti_list_push_back(&lane->waiting, &p->link);
    r->transport.fabric->up->announced(lane->lane.user, bytes + rec_at, rts.n_rec, rts.total, &p->pull);
    return WEFT_OK;
}

static weft_status_t on_pull(wefti_shm_lane_t *lane, uint64_t id, uint64_t want)
{
    wefti_shm_send_t *s = wefti_slots_get(&lane->send_ids, id);
    if (!s || s->streamed || s->helped || !want || want > s->total)
        return WEFT_ERR_PROTOCOL;
    s->streamed = true;
    s->left = want;
    wefti_list_remove(&s->link);
    wefti_list_push_back(&lane->streams, &s->link);
    wefti_shm_work(lane);
    return WEFT_OK;
}

static weft_status_t on_data(wefti_shm_lane_t *lane, const uint8_t *bytes, uint32_t n)
{
    uint64_t id;
    if (n <= sizeof id)
        return WEFT_ERR_PROTOCOL;
    memcpy(&id, bytes, sizeof id);
    wefti_shm_copied();
    n -= sizeof id;
    wefti_shm_pull_t *p = wefti_map_get(&lane->pull_ids, id);
    if (!p || p->state != WEFTI_SHM_ARRIVING || n > p->left)
        return WEFT_ERR_PROTOCOL;
    if (wefti_list_linked(&p->ctl.link)) /* our PULL has not left: these are bytes that nobody asked for, and p is on lane->out */
        return WEFT_ERR_PROTOCOL;
    wefti_cursor_scatter(&p->to, bytes + sizeof id, n);
    p->left -= n;
    if (!p->left)
        pull_done(p);
    return WEFT_OK;
}

static weft_status_t on_done(wefti_shm_lane_t *lane, uint64_t id, uint64_t answer)
{
    wefti_shm_send_t *s = wefti_slots_get(&lane->send_ids, id);
    if (!s || answer >= ANSWER_N)
        return WEFT_ERR_PROTOCOL;
    send_done(lane, s, answer == ANSWER_OK ? WEFT_OK : WEFT_ERR_REFUSED);
    return WEFT_OK;
}

weft_status_t wefti_shm_control(wefti_shm_lane_t *lane, const wefti_ring_rec_t *rec)
{
    ctl_record_t ctl;
    if (rec->type == WEFTI_SHM_RTS)
        return on_rts(lane, rec->bytes, rec->n);
    if (rec->type == WEFTI_SHM_DATA)
        return on_data(lane, rec->bytes, rec->n);
    if (rec->type == WEFTI_SHM_ARENA)
        return wefti_shm_on_arena(lane, rec->bytes, rec->n);
    if (rec->type == WEFTI_SHM_RELAY || rec->type == WEFTI_SHM_HELP)
        return wefti_shm_relay_control(lane, rec);
    if (rec->n != sizeof ctl)
        return WEFT_ERR_PROTOCOL;
    memcpy(&ctl, rec->bytes, sizeof ctl);
    wefti_shm_copied();
    switch (rec->type) {
    case WEFTI_SHM_PULL:
        return on_pull(lane, ctl.id, ctl.arg);
    case WEFTI_SHM_DONE:
        return on_done(lane, ctl.id, ctl.arg);
    case WEFTI_SHM_ARENA_GONE:
        return wefti_shm_on_arena_gone(lane, ctl.id);
    case WEFTI_SHM_END: /* the peer was about to share these rings, and closed the first lane before we heard of it */
        wefti_shm_lane_fail(lane, WEFT_ERR_PEER);
        return WEFT_OK;
    default:
        return WEFT_ERR_PROTOCOL;
    }
}

/* --- work --------------------------------------------------------------------------------------------------------- */

static wefti_shm_pull_t *first_copying(wefti_shm_lane_t *lane)
{
    wefti_list_each(it, &lane->pulls) {
        wefti_shm_pull_t *p = wefti_container_of(it, wefti_shm_pull_t, link);
        if (p->state == WEFTI_SHM_COPYING)
            return p;
    }
    return NULL;
}

static unsigned work_copies(wefti_shm_lane_t *lane, uint64_t *budget)
{
    unsigned n = 0;
    wefti_shm_pull_t *p;
    while (lane->state == WEFTI_SHM_LANE_UP && (p = first_copying(lane))) {
        if (!*budget) {
            wefti_shm_work(lane);
            break;
        }
        weft_status_t st = wefti_shm_copy(p, budget);
        n++;
        if (st == WEFT_ERR_AGAIN) {
            wefti_shm_work(lane);
            break;
        }
        if (st) {
            wefti_info("shm: the memory of process %d could not be read to its end", lane->peer->at.pid);
            wefti_shm_lane_fail(lane, st);
            break;
        }
        pull_done(p);
    }
    return n;
}

static unsigned work_streams(wefti_shm_lane_t *lane, uint64_t *budget)
{
    unsigned n = 0;
    wefti_list_t *it;
    while ((it = wefti_list_first(&lane->streams))) {
        wefti_shm_send_t *s = wefti_container_of(it, wefti_shm_send_t, link);
        uint64_t most = lane->lane.frame_max - sizeof s->id;
        uint64_t bytes = s->left < most ? s->left : most;
        if (bytes > *budget) {
            wefti_shm_work(lane);
            break;
        }
        uint8_t *at = wefti_shm_lane_reserve(lane, sizeof s->id + bytes);
        if (!at)
            break;
        memcpy(at, &s->id, sizeof s->id);
        wefti_cursor_gather(&s->from, at + sizeof s->id, bytes);
        wefti_shm_lane_commit(lane, sizeof s->id + bytes, WEFTI_SHM_DATA);
        s->left -= bytes;
        *budget -= bytes;
        n++;
        if (!s->left) {
            wefti_list_remove(&s->link);
            wefti_list_push_back(&lane->sends, &s->link);
        }
    }
    return n;
}

unsigned wefti_shm_bulk_work(wefti_shm_lane_t *lane, uint64_t *budget)
{
    unsigned n = ctl_flush(lane);
    n += work_streams(lane, budget);
    n += work_copies(lane, budget);
    return n + wefti_shm_relay_help(lane, budget);
}

bool wefti_shm_bulk_waits_for_space(const wefti_shm_lane_t *lane)
{
    return !wefti_list_empty(&lane->out) || !wefti_list_empty(&lane->streams) || !wefti_list_empty(&lane->helps);
}

/* --- endings ------------------------------------------------------------------------------------------------------ */

void wefti_shm_pulls_end(wefti_shm_lane_t *lane, weft_status_t status, bool quietly)
{
    wefti_list_t *it;
    while ((it = wefti_list_first(&lane->pulls))) {
        wefti_shm_pull_t *p = wefti_container_of(it, wefti_shm_pull_t, link);
        wefti_xfer_t *x = p->x;
        pull_free(p);
        if (!quietly)
            x->done(x, status);
    }
}

void wefti_shm_bulk_end(wefti_shm_lane_t *lane, bool quietly)
{
    wefti_list_t *it;
    wefti_shm_pulls_end(lane, WEFT_ERR_CANCELLED, quietly);
    while ((it = wefti_list_first(&lane->waiting))) {
        wefti_shm_pull_t *p = wefti_container_of(it, wefti_shm_pull_t, link);
        wefti_list_remove(it);
        if (!quietly)
            wefti_shm_transport_of(lane)->transport.fabric->up->withdrawn(&p->pull);
        pull_free(p);
    }
    wefti_list_splice(&lane->sends, &lane->streams);
    while ((it = wefti_list_first(&lane->sends))) {
        wefti_shm_send_t *s = wefti_container_of(it, wefti_shm_send_t, link);
        if (quietly)
            send_free(lane, s);
        else
            send_done(lane, s, WEFT_ERR_CANCELLED);
    }
    /* What is left in lane->out are answers nobody waits for any more. */
    while ((it = wefti_list_pop(&lane->out)))
        ctl_sent(lane, wefti_container_of(it, wefti_shm_ctl_t, link));
}
