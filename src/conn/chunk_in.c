/* conn/chunk_in.c - the receiver's side of a payload in chunks.
 *
 * A pull that the fabric cannot do asks the sender for chunks, under a name that each chunk carries. Chunks come in order,
 * without gaps, at most WEFTI_CHUNKS_KEPT at a time and no larger than a stage; anything else under a name in use breaks the
 * protocol. A chunk is FREE, WAITS (for a stage; its announcement is kept), BUSY (the fabric writes), or COPIES (from its stage
 * into place).
 *
 * The pull ends when all bytes are in place, or when something failed and no chunk is BUSY or COPIES. The sender is told by a
 * refusal of its announcement, or by STAGED_END. Chunks that come after the end find a used name, and are refused.
 *
 * Promise: x is done exactly once, and nobody writes to the buffer after that. tests/sim/msg_exactly_once.c,
 * tests/wire/msg_device.c, tests/fuzz/records.c. */
#include "conn/chunks.h"

#include <string.h>

#include "base/log.h"

static wefti_in_t *find(wefti_epx_t *ep, uint64_t name)
{
    wefti_in_t *in = wefti_slots_get(&ep->conn->payloads.in_ids, name);
    return in && in->ep == &ep->pub ? in : NULL;
}

static void fail(wefti_chunks_t *c, weft_status_t why)
{
    if (!c->status) {
        c->status = why;
        c->fault = c->in->rt->fault;
    }
    wefti_chunks_stop(c);
}

/* Tell both sides, if it is over. The last word about `in`. */
static void settle(wefti_in_t *in)
{
    wefti_chunks_t *c = in->chunks;
    if (c->status ? wefti_chunks_busy(c) : c->done < c->want)
        return;
    weft_status_t status = c->status;
    weft_runtime_t *rt = in->rt;
    wefti_fault_t fault = c->fault;
    wefti_xfer_t *x = c->x;
    weft_ep_t *in_ep = in->ep;
    bool down = c->down, given_up = c->given_up && !down;
    wefti_lane_t *lane = down ? NULL : wefti_epx(in->ep)->link->lane;
    if (!status && c->imports && !lane->ops->peer_open(lane))
        status = WEFT_ERR_PEER; /* the sender may have used that memory for something else meanwhile */
    wefti_slots_remove(&c->conn->payloads.in_ids, c->name);
    in->chunks = NULL;
    wefti_chunks_free(c);
    in->state = WEFTI_IN_OVER;
    in->owes = 0;
    if (in->p && !down) {
        in->p->ops->refuse(in->p, !status);
        wefti_in_free(in);
    } else if (!down) {
        in->owes = status ? WEFTI_OWES_REFUSED : WEFTI_OWES_TAKEN;
        wefti_in_flush(in);
    } else if (!in->p) {
        wefti_in_free(in);
    } /* else the fabric has yet to withdraw it */
    if (given_up)
        wefti_ep_says(in_ep, "it could not go on sending the payload: its device failed, or it has no memory");
    fault = wefti_fault(rt, fault);
    x->done(x, status);
    wefti_fault(rt, fault);
}

/* Its bytes are in place, or will never be. */
static void chunk_over(wefti_chunk_t *k, weft_status_t status)
{
    wefti_chunks_t *c = k->of;
    bool tells = k->by != WEFTI_BY_FABRIC && !c->down;
    wefti_chunk_free(k);
    if (status)
        fail(c, status);
    else
        c->done += k->len;
    if (tells && c->done < c->want) { /* else the end of all says it */
        k->state = WEFTI_CHUNK_TELLS;
        c->in->owes |= WEFTI_OWES_EMPTIED;
        wefti_in_flush(c->in);
    }
    wefti_chunk_in_step(c->in); /* one that waits, or the end */
}

static void copy_done(wefti_copy_t *copy, weft_status_t status)
{
    chunk_over(wefti_container_of(copy, wefti_chunk_t, copy), status);
}

static void chunk_done(wefti_xfer_t *x, weft_status_t status)
{
    wefti_chunk_t *k = wefti_container_of(x, wefti_chunk_t, x);
    if (!status && k->stage && !k->of->status) {
        k->copy.done = copy_done;
        status = wefti_chunk_copy(k, false);
        if (status == WEFT_ERR_PENDING)
            return;
    }
    chunk_over(k, status);
}

/* Pull a chunk that waits. WEFT_ERR_AGAIN: it goes on waiting. */
static weft_status_t start(wefti_chunk_t *k)
{
    weft_status_t st = wefti_chunk_place(k);
    if (st)
        return st;
    wefti_in_t *one = k->in;
    k->x.done = chunk_done;
    st = one->p->ops->pull(one->p, k->iov, k->n, k->len, &k->x);
    if (st)
        return st;
    k->in = NULL;
    wefti_in_free(one);
    k->state = WEFTI_CHUNK_BUSY;
    return WEFT_OK;
}

/* Chunks that the fabric or a device has. The sender hears of a chunk's end when it was pulled, and announces the next while a
 * device may still be copying: with more than so many, there would be no place for what is announced. */
static int under_way(const wefti_chunks_t *c)
{
    int n = 0;
    for (int i = 0; i < WEFTI_CHUNKS_KEPT; i++)
        n += c->chunk[i].by == WEFTI_BY_FABRIC &&
             (c->chunk[i].state == WEFTI_CHUNK_BUSY || c->chunk[i].state == WEFTI_CHUNK_COPIES);
    return n;
}

void wefti_chunk_in_step(wefti_in_t *in)
{
    wefti_chunks_t *c = in->chunks;
    for (int i = 0; i < WEFTI_CHUNKS_KEPT && !c->stopped; i++) {
        if (c->chunk[i].state != WEFTI_CHUNK_WAITS)
            continue;
        if (under_way(c) >= WEFTI_CHUNKS_OPEN)
            return; /* chunk_over() goes on */
        weft_status_t st = start(&c->chunk[i]);
        if (st == WEFT_ERR_AGAIN)
            return;
        if (st)
            fail(c, st);
    }
    settle(in);
}

/* Could a device copy from memory of the sender's to these pieces? */
static bool can_import(const wefti_in_t *in, const weft_iov_t *iov, uint64_t want, const weft_mem_kind_t *device)
{
    return wefti_epx(in->ep)->link->lane->ops->peer_open && wefti_mem_imports() &&
           (device ? wefti_device_known(device) : wefti_mem_are_pinned(iov, want));
}

weft_status_t wefti_chunk_in_pull(wefti_in_t *in, const weft_iov_t *iov, uint64_t want, const weft_mem_kind_t *device,
                                  wefti_xfer_t *x)
{
    wefti_conn_t *conn = wefti_conn_of(in->rt);
    wefti_chunks_t *c = wefti_chunks_new(conn, iov, device, want);
    if (!c)
        return WEFT_ERR_NOMEM;
    if (wefti_slots_add(&conn->payloads.in_ids, in, &c->name)) {
        wefti_chunks_free(c);
        return WEFT_ERR_NOMEM;
    }
    c->in = in;
    c->x = x;
    c->flags = (uint8_t)((device ? WEFTI_TO_DEVICE : 0) | (can_import(in, iov, want, device) ? WEFTI_CAN_IMPORT : 0));
    in->chunks = c;
    in->user = NULL;
    in->state = WEFTI_IN_CHUNKS;
    in->owes = WEFTI_OWES_CHUNKS;
    wefti_in_flush(in);
    return WEFT_OK;
}

/* What was refused is sent again, from its first byte on. */
static void comes_again(wefti_chunks_t *c, uint64_t offset)
{
    if (!c->again || offset != c->again_at)
        return;
    c->again = false;
    c->next = offset;
    c->place = c->first;
    wefti_place_skip(&c->place, offset);
}

void wefti_chunk_in_announced(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    uint64_t w[3] = {0};
    if (n == sizeof w) {
        wefti_wild_take(w, rec, sizeof w);
        w[0] = (w[0] & ~UINT64_C(0xff)) | WEFTI_REC_CHUNK; /* which it was when its kind was read */
    }
    wefti_in_t *in = find(ep, w[1]), *one = NULL;
    wefti_chunks_t *c = in ? in->chunks : NULL;
    if (w[0] == WEFTI_REC_CHUNK && (in ? c->stopped : wefti_slots_used_up(&ep->conn->payloads.in_ids, w[1]))) {
        p->ops->refuse(p, false);
        return;
    }
    wefti_chunk_t *k = c ? wefti_chunks_in(c, WEFTI_CHUNK_FREE) : NULL;
    if (k)
        comes_again(c, w[2]);
    if (w[0] != WEFTI_REC_CHUNK || !k || !total || total > WEFTI_STAGING_BYTES || w[2] != c->next || total > c->want - c->next ||
        (in->owes & WEFTI_OWES_CHUNKS)) {
        p->ops->refuse(p, false);
        wefti_ep_protocol_error(&ep->pub, "a chunk that nobody asked for");
        return;
    }
    one = wefti_in_new(ep, total, p);
    if (!one) {
        p->ops->refuse(p, false);
        fail(c, WEFT_ERR_NOMEM);
        settle(in);
        return;
    }
    one->state = WEFTI_IN_CHUNK;
    one->user = k;
    k->in = one;
    k->state = WEFTI_CHUNK_WAITS;
    k->len = (uint32_t)total;
    k->place = c->place;
    wefti_place_skip(&c->place, total);
    c->next += total;
    wefti_chunk_in_step(in);
}

/* --- chunks that are copied where they lie --------------------------------------------------------------------------------- */

typedef struct told {
    uint64_t kind, name, offset, len, number; /* number: of the chunk, and above that of the slot */
} told_t;

/* A chunk that is next, and free to take it; NULL: nobody wants it, or the protocol is broken. */
static wefti_chunk_t *expect(wefti_epx_t *ep, const wefti_wild_t *rec, uint64_t most, told_t *t)
{
    wefti_wild_take(t, rec, sizeof *t);
    wefti_in_t *in = find(ep, t->name);
    wefti_chunks_t *c = in ? in->chunks : NULL;
    if (in ? c->stopped : wefti_slots_used_up(&ep->conn->payloads.in_ids, t->name))
        return NULL; /* it was sent before the sender knew of the end */
    wefti_chunk_t *k = c ? wefti_chunks_in(c, WEFTI_CHUNK_FREE) : NULL;
    if (k)
        comes_again(c, t->offset);
    if (!k || !t->len || t->len > most || t->offset != c->next || t->len > c->want - c->next ||
        (uint32_t)t->number >= WEFTI_CHUNKS_OPEN || (in->owes & WEFTI_OWES_CHUNKS)) {
        wefti_ep_protocol_error(&ep->pub, "a chunk that nobody asked for");
        return NULL;
    }
    k->len = (uint32_t)t->len;
    k->number = (uint32_t)t->number;
    k->cannot = false;
    k->place = c->place;
    wefti_place_skip(&c->place, t->len);
    c->next += t->len;
    return k;
}

/* It cannot be had where it lies: let the sender send it again, in another way. What was sent behind it comes to the same end. */
static void refuse(wefti_chunk_t *k)
{
    wefti_chunks_t *c = k->of;
    c->flags &= (uint8_t)~WEFTI_CAN_IMPORT;
    if (!c->again)
        c->again_at = c->next - k->len;
    c->again = true;
    k->state = WEFTI_CHUNK_TELLS;
    k->cannot = true;
    c->in->owes |= WEFTI_OWES_EMPTIED;
    wefti_in_flush(c->in);
}

/* Copy it from where it lies. */
static void take(wefti_chunk_t *k)
{
    k->copy.done = copy_done;
    weft_status_t st = wefti_chunk_copy(k, false);
    if (st != WEFT_ERR_PENDING)
        chunk_over(k, st);
}

bool wefti_chunk_in_placed(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n)
{
    told_t t;
    if (n != sizeof t)
        return false;
    wefti_chunk_t *k = expect(ep, rec, WEFTI_STAGING_BYTES, &t);
    if (!k)
        return true;
    uint64_t slot = t.number >> 32;
    k->relay = slot < WEFTI_RELAY_SLOTS ? wefti_relay_hold(ep) : NULL;
    if (!k->relay) {
        wefti_ep_protocol_error(&ep->pub, "a chunk in shared memory that is not there");
        return true;
    }
    k->by = WEFTI_BY_RELAY;
    k->stage = wefti_relay_slot(k->relay, (uint32_t)slot);
    if (k->of->device)
        wefti_relay_pin(k->relay);
    take(k);
    return true;
}

bool wefti_chunk_in_bounced(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n)
{
    told_t t;
    wefti_export_t export;
    if (n != sizeof t + sizeof export)
        return false;
    wefti_chunk_t *k = expect(ep, rec, UINT32_MAX, &t);
    if (!k)
        return true;
    wefti_chunks_t *c = k->of;
    if (!(c->flags & WEFTI_CAN_IMPORT)) {
        refuse(k); /* as those before it */
        return true;
    }
    wefti_wild_take(&export, wefti_wild_skip(rec, sizeof t), sizeof export);
    if (wefti_ep_import(&ep->pub, &export, k->len, k->place.at->base, &k->import, &k->stage)) {
        wefti_info("conn: a chunk in memory of a peer's device is asked for in another way: %s", weft_last_error());
        k->stage = NULL;
        refuse(k);
        return true;
    }
    k->by = WEFTI_BY_BOUNCE;
    c->imports = true;
    take(k);
    return true;
}

void wefti_chunk_in_given_up(wefti_epx_t *ep, uint64_t id, uint64_t name)
{
    wefti_in_t *in = find(ep, name);
    if (!in && wefti_slots_used_up(&ep->conn->payloads.in_ids, name))
        return;
    if (!in || in->id != id) {
        wefti_ep_protocol_error(&ep->pub, "chunks are taken back that nobody asked for");
        return;
    }
    in->chunks->given_up = !in->chunks->status;
    fail(in->chunks, WEFT_ERR_SYSTEM); /* the peer is there, and its device failed, or it had no memory */
    settle(in);
}

void wefti_chunk_in_withdrawn(wefti_in_t *in)
{
    wefti_chunk_t *k = in->user;
    if (in->state == WEFTI_IN_CHUNKS) {
        in->p = NULL;
        fail(in->chunks, WEFT_ERR_PEER);
        settle(in);
        return;
    }
    wefti_in_free(in);
    if (!k)
        return;
    k->in = NULL;
    wefti_chunk_free(k);
    fail(k->of, WEFT_ERR_PEER);
    settle(k->of->in);
}

void wefti_chunk_in_down(wefti_in_t *in)
{
    in->chunks->down = true;
    fail(in->chunks, WEFT_ERR_CANCELLED);
    settle(in);
}
