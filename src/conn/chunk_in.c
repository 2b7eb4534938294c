/* conn/chunk_in.c - the receiver's side of a payload in chunks.
 *
 * A pull that the fabric cannot do asks the sender for chunks, under a name that each chunk carries. Chunks come in order,
 * without gaps, at most WEFTI_CHUNKS_KEPT at a time and no larger than a stage; anything else under a name in use breaks the
 * protocol. A chunk is FREE, WAITS (for a stage; its announcement is kept), or BUSY (the fabric writes).
 *
 * The pull ends when all bytes are in place, or when something failed and no chunk is BUSY. The sender is told by a refusal of
 * its announcement, or by STAGED_END. Chunks that come after the end find a used name, and are refused.
 *
 * Promise: x is done exactly once, and nobody writes to the buffer after that. tests/sim/msg_exactly_once.c,
 * tests/wire/msg_device.c, tests/fuzz/records.c. */
#include "conn/chunks.h"

#include <string.h>

/* Was this ever a name? Then what comes under it was sent before its sender knew of the end. */
static bool used_up(const wefti_slots_t *names, uint64_t name)
{
    uint32_t i = (uint32_t)name, generation = (uint32_t)(name >> 32);
    return i < names->n && (generation & 1) && generation < names->at[i].generation;
}

static wefti_in_t *find(wefti_epx_t *ep, uint64_t name)
{
    wefti_in_t *in = wefti_slots_get(&ep->conn->payloads.in_ids, name);
    return in && in->ep == &ep->pub ? in : NULL;
}

static void fail(wefti_chunks_t *c, weft_status_t why)
{
    if (!c->status)
        c->status = why;
    wefti_chunks_stop(c);
}

/* Tell both sides, if it is over. The last word about `in`. */
static void settle(wefti_in_t *in)
{
    wefti_chunks_t *c = in->chunks;
    if (c->status ? wefti_chunks_in(c, WEFTI_CHUNK_BUSY) != NULL : c->done < c->want)
        return;
    weft_status_t status = c->status;
    wefti_xfer_t *x = c->x;
    bool down = c->down;
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
    x->done(x, status);
}

static void chunk_done(wefti_xfer_t *x, weft_status_t status)
{
    wefti_chunk_t *k = wefti_container_of(x, wefti_chunk_t, x);
    wefti_chunks_t *c = k->of;
    if (!status && k->stage && !c->status)
        status = wefti_chunk_copy(k, false);
    wefti_chunk_free(k);
    if (status)
        fail(c, status);
    else
        c->done += k->len;
    settle(c->in);
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

void wefti_chunk_in_step(wefti_in_t *in)
{
    wefti_chunks_t *c = in->chunks;
    for (int i = 0; i < WEFTI_CHUNKS_KEPT && !c->stopped; i++) {
        if (c->chunk[i].state != WEFTI_CHUNK_WAITS)
            continue;
        weft_status_t st = start(&c->chunk[i]);
        if (st == WEFT_ERR_AGAIN)
            return;
        if (st)
            fail(c, st);
    }
    settle(in);
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
    in->chunks = c;
    in->user = NULL;
    in->state = WEFTI_IN_CHUNKS;
    in->owes = WEFTI_OWES_CHUNKS;
    wefti_in_flush(in);
    return WEFT_OK;
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
    if (w[0] == WEFTI_REC_CHUNK && (in ? c->stopped : used_up(&ep->conn->payloads.in_ids, w[1]))) {
        p->ops->refuse(p, false);
        return;
    }
    wefti_chunk_t *k = c ? wefti_chunks_in(c, WEFTI_CHUNK_FREE) : NULL;
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

void wefti_chunk_in_given_up(wefti_epx_t *ep, uint64_t id, uint64_t name)
{
    wefti_in_t *in = find(ep, name);
    if (!in && used_up(&ep->conn->payloads.in_ids, name))
        return;
    if (!in || in->id != id) {
        wefti_ep_protocol_error(&ep->pub, "chunks are taken back that nobody asked for");
        return;
    }
    fail(in->chunks, WEFT_ERR_PEER);
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
