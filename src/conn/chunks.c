/* conn/chunks.c - what both sides of a payload in chunks need: positions in scattered buffers, and stages.
 *
 * A chunk in few pieces of host memory needs no stage: the fabric reads or writes the buffer itself. All others are copied
 * through one. On one host that may be a slot of a relay (relay.h), or a bounce buffer on the device, which the receiver reads
 * where it is. Else it is one of the runtime's own. Senders have half of the stages and receivers the other half. A receiver's
 * stage always comes back; a sender's only when its peer has a stage to receive with. If senders could take all, two runtimes
 * that send to each other would wait for ever. A payload that finds no stage waits in line and goes on in the next work; one
 * that has some goes first, because its end sets more free.
 *
 * If no stage is out on a side and still none can be had, there is no memory, and the transfer fails: nobody would wake it.
 *
 * Promise: every stage comes back; nobody waits while nothing that could wake it is under way. tests/sim/msg_exactly_once.c. */
#include "conn/chunks.h"

#include <string.h>

#define SPARE_MAX 64

uint32_t wefti_chunk_bytes = WEFTI_STAGING_BYTES;
uint32_t wefti_chunk_stages = WEFTI_STAGING_MAX / 2;

wefti_chunks_t *wefti_chunks_new(wefti_conn_t *conn, const weft_iov_t *iov, const weft_mem_kind_t *device, uint64_t want)
{
    wefti_chunks_t *c = wefti_spares_get(&conn->payloads.spare_chunks, sizeof *c);
    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->conn = conn;
    c->first = c->place = (wefti_place_t){iov, 0};
    c->device = device;
    c->want = want;
    for (int i = 0; i < WEFTI_CHUNKS_KEPT; i++)
        c->chunk[i].of = c;
    return c;
}

void wefti_chunks_free(wefti_chunks_t *c)
{
    if (wefti_list_linked(&c->wait))
        wefti_list_remove(&c->wait);
    wefti_spares_put(&c->conn->payloads.spare_chunks, c, SPARE_MAX);
}

/* Let go of the announcement of a chunk that waits. */
static void drop_announcement(wefti_chunk_t *k)
{
    wefti_in_t *one = k->in;
    k->in = NULL;
    one->user = NULL;
    if (!k->of->down) { /* else it goes with the lane */
        one->p->ops->refuse(one->p, false);
        wefti_in_free(one);
    }
}

void wefti_chunks_stop(wefti_chunks_t *c)
{
    c->stopped = true;
    if (wefti_list_linked(&c->wait))
        wefti_list_remove(&c->wait);
    for (wefti_chunk_t *k; (k = wefti_chunks_in(c, WEFTI_CHUNK_WAITS));) {
        if (k->in)
            drop_announcement(k);
        wefti_chunk_free(k);
    }
}

wefti_chunk_t *wefti_chunks_in(wefti_chunks_t *c, uint8_t state)
{
    for (int i = 0, n = c->out ? WEFTI_CHUNKS_OPEN : WEFTI_CHUNKS_KEPT; i < n; i++)
        if (c->chunk[i].state == state)
            return &c->chunk[i];
    return NULL;
}

/* --- places ---------------------------------------------------------------------------------------------------------------- */

/* The next bytes of the piece we are in, at most `len` of them, and on. */
static weft_iov_t advance(wefti_place_t *p, uint64_t len)
{
    while (p->at->len == p->skip) {
        p->at++;
        p->skip = 0;
    }
    size_t left = p->at->len - p->skip;
    weft_iov_t piece = {(char *)p->at->base + p->skip, left < len ? left : len};
    p->skip += piece.len;
    return piece;
}

/* Name the pieces of the next `len` bytes; false: they are too many. */
static bool name_pieces(wefti_chunk_t *k, wefti_place_t p)
{
    uint64_t left = k->len;
    for (k->n = 0; left && k->n < WEFTI_CHUNK_PIECES; k->n++) {
        k->iov[k->n] = advance(&p, left);
        left -= k->iov[k->n].len;
    }
    return !left;
}

weft_status_t wefti_chunk_copy(wefti_chunk_t *k, bool to_stage)
{
    const weft_mem_kind_t *device = k->of->device;
    weft_runtime_t *rt = k->of->conn->rt;
    wefti_place_t p = k->place;
    char *stage = k->stage;
    int way = k->by == WEFTI_BY_BOUNCE && k->of->device ? WEFTI_COPY_WITHIN
              : to_stage == (k->by == WEFTI_BY_BOUNCE)  ? WEFTI_COPY_TO
                                                        : WEFTI_COPY_FROM;
    if (k->by == WEFTI_BY_BOUNCE && !device)
        device = wefti_device_kind(); /* between a bounce buffer and page-locked memory */
    weft_status_t st = device ? wefti_copy_begin(rt, &k->copy) : WEFT_OK;
    if (st)
        return st;
    for (uint64_t left = k->len; left;) {
        weft_iov_t piece = advance(&p, left);
        void *to = to_stage ? stage : piece.base, *from = to_stage ? piece.base : stage;
        if (device)
            wefti_copy_add(rt, &k->copy, device, to, from, piece.len, way);
        else
            memcpy(to, from, piece.len);
        stage += piece.len;
        left -= piece.len;
    }
    if (!device)
        return WEFT_OK;
    wefti_copy_end(rt, &k->copy);
    k->state = WEFTI_CHUNK_COPIES;
    return WEFT_ERR_PENDING;
}

bool wefti_chunks_busy(wefti_chunks_t *c)
{
    return wefti_chunks_in(c, WEFTI_CHUNK_BUSY) || wefti_chunks_in(c, WEFTI_CHUNK_COPIES);
}

/* --- stages ---------------------------------------------------------------------------------------------------------------- */

static weft_status_t get_stage(wefti_chunk_t *k)
{
    wefti_chunks_t *c = k->of;
    wefti_payloads_t *all = &c->conn->payloads;
    int side = c->in != NULL;
    if (wefti_list_linked(&c->wait))
        return WEFT_ERR_AGAIN;
    if (all->stages[side] < wefti_chunk_stages && (c->stages || wefti_list_empty(&all->stage_wait[side]))) {
        k->stage = wefti_staging_get(c->conn->rt);
        if (!k->stage && !all->stages[side])
            return WEFT_ERR_NOMEM;
    }
    if (!k->stage) {
        wefti_list_push_back(&all->stage_wait[side], &c->wait);
        return WEFT_ERR_AGAIN;
    }
    all->stages[side]++;
    all->staged += c->device != NULL;
    c->stages++;
    return WEFT_OK;
}

weft_status_t wefti_chunk_place(wefti_chunk_t *k)
{
    wefti_chunks_t *c = k->of;
    if (c->device || !name_pieces(k, k->place)) {
        weft_status_t st = get_stage(k);
        if (st)
            return st;
        k->iov[0] = (weft_iov_t){k->stage, k->len};
        k->n = 1;
    }
    return WEFT_OK;
}

void wefti_place_skip(wefti_place_t *p, uint64_t len)
{
    while (len)
        len -= advance(p, len).len;
}

static void bounce_back(wefti_chunks_t *c, void *stage)
{
    wefti_bounce_put(c->conn->rt, stage);
    wefti_epx(c->out->ep)->payloads.bounces--;
    if (!wefti_list_empty(&c->conn->payloads.bounce_wait))
        wefti_conn_kick(c->conn);
}

void wefti_chunk_free(wefti_chunk_t *k)
{
    wefti_chunks_t *c = k->of;
    wefti_payloads_t *all = &c->conn->payloads;
    int side = c->in != NULL;
    weft_runtime_t *rt = c->conn->rt;
    k->state = WEFTI_CHUNK_FREE;
    if (!k->stage)
        return;
    if (k->by != WEFTI_BY_FABRIC) {
        if (k->by == WEFTI_BY_RELAY && c->out)
            wefti_relay_give(c->conn, k->relay, (int)k->number);
        else if (k->by == WEFTI_BY_RELAY)
            wefti_relay_drop(k->relay);
        else if (c->out)
            bounce_back(c, k->stage);
        else
            wefti_mem_unimport(rt, k->import);
        k->stage = NULL;
        k->by = WEFTI_BY_FABRIC;
        return;
    }
    wefti_staging_put(c->conn->rt, k->stage);
    k->stage = NULL;
    c->stages--;
    all->stages[side]--;
    if (!wefti_list_empty(&all->stage_wait[side]))
        wefti_conn_kick(c->conn);
}

void wefti_chunks_serve(wefti_conn_t *conn)
{
    wefti_payloads_t *all = &conn->payloads;
    wefti_list_t bouncing; /* who finds no bounce buffer joins the line again, or goes another way */
    wefti_list_init(&bouncing);
    wefti_list_splice(&bouncing, &all->bounce_wait);
    for (wefti_list_t *l; (l = wefti_list_pop(&bouncing));)
        wefti_chunk_out_step(wefti_container_of(l, wefti_chunks_t, wait)->out);
    for (int side = 0; side < 2; side++) {
        wefti_list_t line;
        wefti_list_init(&line);
        wefti_list_splice(&line, &all->stage_wait[side]);
        while (all->stages[side] < wefti_chunk_stages) {
            wefti_list_t *first = wefti_list_pop(&line);
            if (!first)
                break;
            wefti_chunks_t *c = wefti_container_of(first, wefti_chunks_t, wait);
            if (c->in)
                wefti_chunk_in_step(c->in);
            else
                wefti_chunk_out_step(c->out);
        }
        /* those who still wait were there before those who have come meanwhile */
        wefti_list_splice(&line, &all->stage_wait[side]);
        wefti_list_splice(&all->stage_wait[side], &line);
    }
}
