/* conn/chunk_out.c - the sender's side of a payload in chunks.
 *
 * The peer has asked (CHUNKS). A chunk is FREE, COPIES (to its stage), WAITS (in its stage, for space on the lane, or for one
 * before it that still copies), or BUSY (announced, until the peer has pulled it). Chunks are announced in order,
 * WEFTI_CHUNKS_OPEN at a time.
 *
 * The payload ends when the peer says so: it pulls or refuses the announcement of a PLAIN one, or sends STAGED_END for a
 * STAGED one. Then the open chunks still have to come back. If we cannot go on (no memory, a failed copy) we send TAKE_BACK,
 * and the peer's answer is the end. Promise: as in payload.c. tests/sim/msg_exactly_once.c, tests/wire/msg_device.c. */
#include "conn/chunks.h"

#include <string.h>

uint64_t wefti_bounce_min = 16u << 20, wefti_bounce_min_pinned = 1u << 20;

static void chunk_done(wefti_xfer_t *x, weft_status_t status);
static void copy_done(wefti_copy_t *copy, weft_status_t status);

/* It cannot go on from here. */
static void give_up(wefti_out_t *out, weft_status_t why)
{
    wefti_chunk_out_stop(out);
    out->status = why;
    out->fault = out->ep->rt->fault;
    out->owes |= WEFTI_OWES_GIVE_UP;
    wefti_out_flush(out);
}

/* Is any chunk with the peer, whose return makes us go on? */
static bool some_out(const wefti_chunks_t *c, uint8_t by)
{
    for (int i = 0; i < WEFTI_CHUNKS_OPEN; i++)
        if (c->chunk[i].state != WEFTI_CHUNK_FREE && c->chunk[i].by == by)
            return true;
    return false;
}

static bool bounce(wefti_chunks_t *c, wefti_chunk_t *k, uint64_t left)
{
    wefti_export_t export;
    size_t n;
    k->stage = wefti_bounce_get(c->conn->rt, c->out->iov->base, &n);
    if (!k->stage)
        return false;
    if (!wefti_mem_export(wefti_device_kind(), k->stage, n, &export)) { /* this system lets no process have it */
        wefti_bounce_put(c->conn->rt, k->stage);
        k->stage = NULL;
        return c->bouncing = false;
    }
    k->by = WEFTI_BY_BOUNCE;
    k->number = 0; /* it has no slot */
    k->len = (uint32_t)(left < n ? left : n);
    c->out->exported = true;
    c->conn->payloads.bounced++;
    wefti_epx(c->out->ep)->payloads.bounces++;
    return true;
}

/* All are out, and some of them at the same peer: then it is worth to wait, because what goes past the processor meanwhile takes
 * their share of the bus. Those at other peers may be out for long. */
static bool bounces_later(wefti_chunks_t *c)
{
    if (!wefti_epx(c->out->ep)->payloads.bounces)
        return false;
    if (!wefti_list_linked(&c->wait))
        wefti_list_push_back(&c->conn->payloads.bounce_wait, &c->wait);
    return true;
}

static bool relay(wefti_chunks_t *c, wefti_chunk_t *k)
{
    int slot = wefti_relay_take(wefti_epx(c->out->ep), &k->relay);
    if (slot < 0)
        return false;
    if (c->device)
        wefti_relay_pin(k->relay);
    k->by = WEFTI_BY_RELAY;
    k->number = (uint32_t)slot;
    k->stage = wefti_relay_slot(k->relay, k->number);
    c->conn->payloads.relayed++;
    return true;
}

/* Where it passes through. WEFT_ERR_AGAIN: step is called when there is such a place; _NOMEM. */
static weft_status_t find_stage(wefti_chunks_t *c, wefti_chunk_t *k)
{
    if (c->again_at != UINT64_MAX)
        return WEFT_ERR_AGAIN; /* some are still with the peer: again() */
    uint64_t left = c->want - c->next;
    k->len = (uint32_t)(left < wefti_chunk_bytes ? left : wefti_chunk_bytes);
    if (c->bouncing && bounce(c, k, left))
        return WEFT_OK;
    if (c->bouncing && (some_out(c, WEFTI_BY_BOUNCE) || bounces_later(c)))
        return WEFT_ERR_AGAIN;
    if (c->device || c->flags & WEFTI_TO_DEVICE) {
        if (relay(c, k))
            return WEFT_OK;
        if (wefti_relay_wait(wefti_epx(c->out->ep), &c->wait))
            return WEFT_ERR_AGAIN;
    }
    return wefti_chunk_place(k);
}

/* Fill a free chunk with what comes next. */
static weft_status_t prepare(wefti_chunks_t *c, wefti_chunk_t *k)
{
    k->place = c->place;
    k->offset = c->next;
    weft_status_t st = find_stage(c, k);
    if (st)
        return st;
    k->copy.done = copy_done;
    st = k->stage ? wefti_chunk_copy(k, true) : WEFT_OK;
    if (st && st != WEFT_ERR_PENDING) {
        wefti_chunk_free(k);
        return st;
    }
    wefti_place_skip(&c->place, k->len);
    c->next += k->len;
    if (!st)
        k->state = WEFTI_CHUNK_WAITS;
    return WEFT_OK;
}

/* Tell the peer where a chunk lies that the fabric has nothing to do with. */
static weft_status_t tell(wefti_lane_t *lane, const wefti_out_t *out, const wefti_chunk_t *k)
{
    uint64_t head[5] = {k->by == WEFTI_BY_RELAY ? WEFTI_REC_PLACED : WEFTI_REC_BOUNCED, out->asked_by, k->offset, k->len,
                        (uint64_t)(k - k->of->chunk) | (uint64_t)k->number << 32};
    wefti_export_t export;
    size_t more = k->by == WEFTI_BY_BOUNCE ? sizeof export : 0;
    if (more && !wefti_mem_export(wefti_device_kind(), k->stage, k->len, &export))
        return WEFT_ERR_SYSTEM;
    uint8_t *rec = lane->ops->reserve(lane, sizeof head + more);
    if (!rec)
        return WEFT_ERR_AGAIN;
    memcpy(rec, head, sizeof head);
    if (more)
        memcpy(rec + sizeof head, &export, more);
    lane->ops->commit(lane, sizeof head + more);
    return WEFT_OK;
}

static weft_status_t announce(wefti_out_t *out, wefti_chunk_t *k)
{
    wefti_lane_t *lane = wefti_epx(out->ep)->link->lane;
    uint64_t rec[3] = {WEFTI_REC_CHUNK, out->asked_by, k->offset};
    k->x.done = chunk_done;
    weft_status_t st =
        k->by == WEFTI_BY_FABRIC ? lane->ops->announce(lane, rec, sizeof rec, k->iov, k->n, k->len, &k->x) : tell(lane, out, k);
    if (!st) {
        k->state = WEFTI_CHUNK_BUSY;
        k->of->told += k->len;
    }
    return st;
}

/* The one that is next to be announced, if it is ready. */
static wefti_chunk_t *next_to_tell(wefti_chunks_t *c)
{
    for (int i = 0; i < WEFTI_CHUNKS_OPEN; i++)
        if (c->chunk[i].state == WEFTI_CHUNK_WAITS && c->chunk[i].offset == c->told)
            return &c->chunk[i];
    return NULL;
}

void wefti_chunk_out_step(wefti_out_t *out)
{
    wefti_chunks_t *c = out->chunks;
    while (!c->stopped) {
        wefti_chunk_t *k = next_to_tell(c);
        weft_status_t st;
        if (k) {
            st = announce(out, k);
            if (st == WEFT_ERR_AGAIN) {
                out->owes |= WEFTI_OWES_CHUNK;
                wefti_out_flush(out);
                return;
            }
        } else {
            k = c->next < c->want ? wefti_chunks_in(c, WEFTI_CHUNK_FREE) : NULL;
            if (!k)
                return;
            st = prepare(c, k);
            if (st == WEFT_ERR_AGAIN)
                return; /* in line for a stage */
        }
        if (st) {
            give_up(out, st);
            return;
        }
    }
}

void wefti_chunk_out_stop(wefti_out_t *out)
{
    out->owes &= (uint8_t)~WEFTI_OWES_CHUNK;
    if (out->chunks)
        wefti_chunks_stop(out->chunks);
}

/* Done, if nothing of it is with the fabric any more. */
static void settle(wefti_out_t *out)
{
    wefti_chunks_t *c = out->chunks;
    if (out->state != WEFTI_OUT_OVER || (c && wefti_chunks_busy(c)))
        return;
    if (c) {
        out->chunks = NULL;
        wefti_chunks_free(c);
    }
    wefti_out_over(out, out->status);
}

void wefti_chunk_out_end(wefti_out_t *out, weft_status_t status)
{
    if (!out->status)
        out->status = status;
    out->state = WEFTI_OUT_OVER;
    wefti_chunk_out_stop(out);
    for (int i = 0; out->chunks && i < WEFTI_CHUNKS_OPEN; i++) { /* what the peer was told of it has let go of as well */
        wefti_chunk_t *k = &out->chunks->chunk[i];
        if (k->state == WEFTI_CHUNK_BUSY && k->by != WEFTI_BY_FABRIC)
            wefti_chunk_free(k);
    }
    settle(out);
}

static void chunk_done(wefti_xfer_t *x, weft_status_t status)
{
    wefti_chunk_t *k = wefti_container_of(x, wefti_chunk_t, x);
    wefti_out_t *out = k->of->out;
    wefti_chunk_free(k);
    if (status) /* the peer does without the rest, or the lane is closed: either way an end follows */
        wefti_chunk_out_stop(out);
    else
        wefti_chunk_out_step(out);
    settle(out);
}

static void copy_done(wefti_copy_t *copy, weft_status_t status)
{
    wefti_chunk_t *k = wefti_container_of(copy, wefti_chunk_t, copy);
    wefti_out_t *out = k->of->out;
    if (status || k->of->stopped) {
        bool stopped = k->of->stopped;
        wefti_chunk_free(k);
        if (!stopped)
            give_up(out, status);
    } else {
        k->state = WEFTI_CHUNK_WAITS;
        wefti_chunk_out_step(out);
    }
    settle(out);
}

/* The peer could not use a bounce buffer. When all are back, what was in them goes in another way. */
static void again(wefti_chunks_t *c, uint64_t offset)
{
    c->bouncing = false;
    if (offset < c->again_at)
        c->again_at = offset;
    if (some_out(c, WEFTI_BY_BOUNCE))
        return;
    c->next = c->told = c->again_at;
    c->again_at = UINT64_MAX;
    c->place = c->first;
    wefti_place_skip(&c->place, c->next);
}

bool wefti_chunk_out_emptied(wefti_epx_t *ep, uint64_t id, uint64_t number, bool of_no_use)
{
    wefti_out_t *out = wefti_out_find(&ep->pub, id);
    if (!out)
        return wefti_slots_used_up(&ep->conn->payloads.out_ids, id); /* it ended in the fabric meanwhile */
    if (out->state == WEFTI_OUT_OVER)
        return true;
    wefti_chunk_t *k = out->chunks && number < WEFTI_CHUNKS_OPEN ? &out->chunks->chunk[number] : NULL;
    if (!k || k->state != WEFTI_CHUNK_BUSY || k->by == WEFTI_BY_FABRIC || (of_no_use && k->by != WEFTI_BY_BOUNCE))
        return false;
    if (of_no_use) {
        wefti_chunk_free(k);
        again(k->of, k->offset);
        wefti_chunk_out_step(out);
    } else if (k->of->again_at != UINT64_MAX) { /* the last that was of use: now those that were not */
        wefti_chunk_free(k);
        again(k->of, k->of->again_at);
        wefti_chunk_out_step(out);
    } else {
        chunk_done(&k->x, WEFT_OK);
    }
    return true;
}

void wefti_chunk_out_asked(wefti_epx_t *ep, uint64_t id, uint64_t asked_by, uint64_t want, uint8_t flags)
{
    wefti_out_t *out = wefti_out_find(&ep->pub, id);
    if (!out || out->asked_by || !asked_by || !want || want > out->total || out->state == WEFTI_OUT_OVER) {
        wefti_ep_protocol_error(&ep->pub, "a question for chunks of a payload that is not there, or for too many of them");
        return;
    }
    out->asked_by = asked_by;
    out->owes &= (uint8_t)~WEFTI_OWES_TAKE_BACK; /* too late */
    wefti_chunks_t *c = wefti_chunks_new(ep->conn, out->iov, out->device, want);
    if (!c) {
        give_up(out, WEFT_ERR_NOMEM);
        return;
    }
    c->out = out;
    c->flags = flags;
    c->again_at = UINT64_MAX;
    out->chunks = c;
    if ((c->device || flags & WEFTI_TO_DEVICE) && ep->link->lane->ops->peer_open && flags & WEFTI_CAN_IMPORT)
        c->bouncing = c->device ? want >= wefti_bounce_min && wefti_device_known(c->device)
                                : want >= wefti_bounce_min_pinned &&
                                      wefti_mem_are_pinned(out->iov, want); /* faster than past the processor */
    if (c->device || flags & WEFTI_TO_DEVICE)
        wefti_relay_want(ep);
    wefti_chunk_out_step(out);
}
