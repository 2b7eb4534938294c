/* conn/chunk_out.c - the sender's side of a payload in chunks.
 *
 * The peer has asked (CHUNKS). A chunk is FREE, WAITS (in its stage, for space on the lane), or BUSY (announced, until the
 * peer has pulled it). Chunks are announced in order, WEFTI_CHUNKS_OPEN at a time.
 *
 * The payload ends when the peer says so: it pulls or refuses the announcement of a PLAIN one, or sends STAGED_END for a
 * STAGED one. Then the open chunks still have to come back. If we cannot go on (no memory, a failed copy) we send TAKE_BACK,
 * and the peer's answer is the end. Promise: as in payload.c. tests/sim/msg_exactly_once.c, tests/wire/msg_device.c. */
#include "conn/chunks.h"

static void chunk_done(wefti_xfer_t *x, weft_status_t status);

/* It cannot go on from here. */
static void give_up(wefti_out_t *out, weft_status_t why)
{
    wefti_chunk_out_stop(out);
    out->status = why;
    out->owes |= WEFTI_OWES_GIVE_UP;
    wefti_out_flush(out);
}

/* Fill a free chunk with what comes next. */
static weft_status_t prepare(wefti_chunks_t *c, wefti_chunk_t *k)
{
    uint64_t left = c->want - c->next;
    k->len = (uint32_t)(left < wefti_chunk_bytes ? left : wefti_chunk_bytes);
    k->place = c->place;
    k->offset = c->next;
    weft_status_t st = wefti_chunk_place(k);
    if (st)
        return st;
    if (k->stage) {
        st = wefti_chunk_copy(k, true);
        if (st) {
            wefti_chunk_free(k);
            return st;
        }
    }
    wefti_place_skip(&c->place, k->len);
    c->next += k->len;
    k->state = WEFTI_CHUNK_WAITS;
    return WEFT_OK;
}

static weft_status_t announce(wefti_out_t *out, wefti_chunk_t *k)
{
    wefti_lane_t *lane = wefti_epx(out->ep)->link->lane;
    uint64_t rec[3] = {WEFTI_REC_CHUNK, out->asked_by, k->offset};
    k->x.done = chunk_done;
    weft_status_t st = lane->ops->announce(lane, rec, sizeof rec, k->iov, k->n, k->len, &k->x);
    if (!st)
        k->state = WEFTI_CHUNK_BUSY;
    return st;
}

void wefti_chunk_out_step(wefti_out_t *out)
{
    wefti_chunks_t *c = out->chunks;
    while (!c->stopped) {
        wefti_chunk_t *k = wefti_chunks_in(c, WEFTI_CHUNK_WAITS);
        weft_status_t st = WEFT_OK;
        if (!k) {
            k = c->next < c->want ? wefti_chunks_in(c, WEFTI_CHUNK_FREE) : NULL;
            if (!k)
                return;
            st = prepare(c, k);
            if (st == WEFT_ERR_AGAIN)
                return; /* in line for a stage */
        }
        if (!st)
            st = announce(out, k);
        if (st == WEFT_ERR_AGAIN) {
            out->owes |= WEFTI_OWES_CHUNK;
            wefti_out_flush(out);
            return;
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
    if (out->state != WEFTI_OUT_OVER || (c && wefti_chunks_in(c, WEFTI_CHUNK_BUSY)))
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

void wefti_chunk_out_asked(wefti_epx_t *ep, uint64_t id, uint64_t asked_by, uint64_t want)
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
    out->chunks = c;
    wefti_chunk_out_step(out);
}
