/* conn/payload.c - payloads that are announced and pulled: their objects, their names, and who hears of their ends.
 *
 * out:  NEW -> PLAIN (the fabric has the announcement)                                  -> OVER, when its chunks have come back
 *           -> STAGED (a record of ours has told of it; the bytes are in device memory) -> OVER
 * in:   WAITING (the traffic's, until it pulls or refuses) -> gone, if the fabric moves the whole of it at once
 *           -> LENT (the traffic's still) -> gone
 *           -> CHUNKS -> OVER, until the peer has been told
 *
 * chunk_out.c and chunk_in.c move what does not go in one piece. A sender takes a payload back by a record to the receiver
 * (TAKE_BACK), not through the fabric: only the receiver knows whether a pull has begun. So a message that met a receive is
 * never taken back.
 *
 * When an endpoint goes down, what only records hold ends at once; what the fabric holds ends when it lets go.
 *
 * Promise: each `out` that was announced is done exactly once, after the fabric has let go of its memory; each `in` is pulled,
 * refused or withdrawn exactly once. Names that a peer makes up find nothing. tests/sim/msg_exactly_once.c,
 * tests/wire/msg_device.c, tests/fuzz/records.c. */
#include <string.h>

#include "conn/chunks.h"
#include "conn/direct.h"

#define SPARE_MAX 1024
#define HEAD 16 /* what every record that is announced begins with: the traffic's word, the id */

static wefti_payloads_t *payloads_of(weft_runtime_t *rt)
{
    return &wefti_conn_of(rt)->payloads;
}

/* --- objects --------------------------------------------------------------------------------------------------------------- */

void wefti_payloads_init(wefti_payloads_t *all)
{
    wefti_list_init(&all->lost_outs);
    wefti_list_init(&all->lost_ins);
    wefti_list_init(&all->taken_back);
    wefti_list_init(&all->relays_due);
    wefti_list_init(&all->bounce_wait);
    wefti_list_init(&all->stage_wait[0]);
    wefti_list_init(&all->stage_wait[1]);
    wefti_slots_init(&all->out_ids, UINT32_MAX);
    wefti_slots_init(&all->in_ids, UINT32_MAX);
}

void wefti_payloads_free(wefti_payloads_t *all)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&all->lost_outs));) /* empty, but in a forked child */
        wefti_free(wefti_container_of(l, wefti_out_t, link));
    for (wefti_list_t *l; (l = wefti_list_pop(&all->lost_ins));)
        wefti_free(wefti_container_of(l, wefti_in_t, link));
    wefti_spares_free(&all->spare_outs);
    wefti_spares_free(&all->spare_ins);
    wefti_spares_free(&all->spare_chunks);
    wefti_spares_free(&all->spare_directs);
    wefti_slots_free(&all->out_ids);
    wefti_slots_free(&all->in_ids);
}

wefti_out_t *wefti_out_new(weft_runtime_t *rt)
{
    wefti_out_t *out = wefti_spares_get(&payloads_of(rt)->spare_outs, sizeof *out);
    return out ? memset(out, 0, sizeof *out) : NULL;
}

void wefti_out_free(weft_runtime_t *rt, wefti_out_t *out)
{
    wefti_spares_put(&payloads_of(rt)->spare_outs, out, SPARE_MAX);
}

wefti_in_t *wefti_in_new(wefti_epx_t *ep, uint64_t total, wefti_pull_t *p)
{
    wefti_in_t *in = wefti_spares_get(&ep->conn->payloads.spare_ins, sizeof *in);
    if (!in)
        return NULL;
    memset(in, 0, sizeof *in);
    in->ep = &ep->pub;
    in->rt = ep->pub.rt;
    in->total = total;
    in->p = p;
    if (p)
        p->user = in;
    wefti_list_push_back(&ep->payloads.ins, &in->link);
    return in;
}

void wefti_in_free(wefti_in_t *in)
{
    wefti_list_remove(&in->link);
    if (wefti_list_linked(&in->owes_link))
        wefti_list_remove(&in->owes_link);
    if (in->direct)
        wefti_direct_free(in);
    wefti_spares_put(&payloads_of(in->rt)->spare_ins, in, SPARE_MAX);
}

void wefti_payload_new(wefti_epx_t *ep)
{
    wefti_list_init(&ep->payloads.outs);
    wefti_list_init(&ep->payloads.ins);
    wefti_list_init(&ep->payloads.out_owes);
    wefti_list_init(&ep->payloads.in_owes);
}

/* Put a node on the list of those that wait for space, or take it off. */
static void owes(wefti_list_t *list, wefti_list_t *link, bool any)
{
    if (any && !wefti_list_linked(link))
        wefti_list_push_back(list, link);
    else if (!any && wefti_list_linked(link))
        wefti_list_remove(link);
}

/* One of conn's own records, of n words. false: no space now. */
static bool send_words(wefti_epx_t *ep, const uint64_t *words, size_t n)
{
    wefti_lane_t *lane = ep->link->lane;
    void *rec = lane->ops->reserve(lane, n * sizeof *words);
    if (!rec)
        return false;
    memcpy(rec, words, n * sizeof *words);
    lane->ops->commit(lane, n * sizeof *words);
    return true;
}

/* --- out ------------------------------------------------------------------------------------------------------------------- */

static void unhold(wefti_out_t *out)
{
    wefti_mem_unhold(out->ep->rt, out->held);
    out->held = NULL;
}

void wefti_out_over(wefti_out_t *out, weft_status_t status)
{
    weft_runtime_t *rt = out->ep->rt;
    wefti_fault_t was;
    unhold(out);
    wefti_slots_remove(&payloads_of(rt)->out_ids, out->id);
    wefti_list_remove(&out->link);
    if (wefti_list_linked(&out->owes_link))
        wefti_list_remove(&out->owes_link);
    was = wefti_fault(rt, out->fault);
    out->done(out, status);
    wefti_fault(rt, was);
}

/* The peer said it does without: if we had asked for it back, that is the answer. */
static weft_status_t refused(wefti_out_t *out)
{
    out->failed = out->failed || out->asked_by; /* it had begun */
    return out->withdrawn ? WEFT_ERR_CANCELLED : WEFT_ERR_REFUSED;
}

static void announce_done(wefti_xfer_t *x, weft_status_t status)
{
    wefti_out_t *out = wefti_container_of(x, wefti_out_t, x);
    wefti_chunk_out_end(out, status == WEFT_ERR_REFUSED ? refused(out) : status);
}

static bool export_it(wefti_out_t *out, wefti_export_t *export_out)
{
    const void *ptr = out->iov->base;
    if (wefti_mem_export(out->device, ptr, out->total, export_out))
        return true;
    out->held = wefti_mem_export_held(out->ep->rt, out->device, ptr, out->total, export_out);
    return out->held;
}

static weft_status_t announce_staged(wefti_out_t *out, const void *traffic_rec, size_t n)
{
    wefti_lane_t *lane = out->ep->lane;
    wefti_export_t export;
    out->exported = wefti_direct_wanted(out) && export_it(out, &export);
    size_t more = out->exported ? sizeof export : 0;
    uint8_t *rec = lane->ops->reserve(lane, WEFTI_STAGED_HEAD + more + n);
    if (!rec) {
        unhold(out);
        return WEFT_ERR_AGAIN;
    }
    uint64_t head[2] = {WEFTI_REC_STAGED | (uint64_t)out->exported << 8, out->total};
    memcpy(rec, head, sizeof head);
    if (more)
        memcpy(rec + WEFTI_STAGED_HEAD, &export, more);
    memcpy(rec + WEFTI_STAGED_HEAD + more, traffic_rec, n);
    lane->ops->commit(lane, WEFTI_STAGED_HEAD + more + n);
    return WEFT_OK;
}

/* Memory of a device that the fabric itself moves, whole and in one piece. */
static bool fabric_takes(const wefti_lane_t *lane, const weft_mem_kind_t *device, size_t pieces, bool whole)
{
    return lane->takes_cuda && pieces == 1 && whole && wefti_device_known(device);
}

weft_status_t wefti_out_announce(wefti_out_t *out, void *rec, size_t n)
{
    wefti_epx_t *ep = wefti_epx(out->ep);
    wefti_lane_t *lane = out->ep->lane;
    wefti_slots_t *ids = &ep->conn->payloads.out_ids;
    weft_status_t st = wefti_slots_add(ids, out, &out->id);
    if (st)
        return st;
    memcpy((uint8_t *)rec + 8, &out->id, sizeof out->id);
    if (!out->device && out->iov_n == 1)
        out->device = wefti_mem_mover_of(out->iov->base, out->total);
    if (out->device && !fabric_takes(lane, out->device, out->iov_n, true)) {
        out->state = WEFTI_OUT_STAGED;
        st = announce_staged(out, rec, n);
    } else {
        out->state = WEFTI_OUT_PLAIN;
        out->x.done = announce_done;
        st = lane->ops->announce(lane, rec, n, out->iov, out->iov_n, out->total, &out->x);
    }
    if (st) {
        wefti_slots_remove(ids, out->id);
        return st;
    }
    wefti_list_push_back(&ep->payloads.outs, &out->link);
    return WEFT_OK;
}

wefti_out_t *wefti_out_find(const weft_ep_t *ep, uint64_t id)
{
    wefti_out_t *out = wefti_slots_get(&payloads_of(ep->rt)->out_ids, id);
    return out && out->ep == ep ? out : NULL;
}

void wefti_out_flush(wefti_out_t *out)
{
    wefti_epx_t *ep = wefti_epx(out->ep);
    if ((out->owes & WEFTI_OWES_TAKE_BACK) && send_words(ep, (uint64_t[]){WEFTI_REC_TAKE_BACK, out->id, 0}, 3))
        out->owes &= (uint8_t)~WEFTI_OWES_TAKE_BACK;
    if ((out->owes & WEFTI_OWES_GIVE_UP) && send_words(ep, (uint64_t[]){WEFTI_REC_TAKE_BACK, out->id, out->asked_by}, 3))
        out->owes &= (uint8_t)~WEFTI_OWES_GIVE_UP;
    owes(&ep->payloads.out_owes, &out->owes_link, out->owes);
}

void wefti_out_withdraw(wefti_out_t *out)
{
    if (out->withdrawn || out->asked_by || out->state == WEFTI_OUT_OVER)
        return;
    out->withdrawn = true;
    out->owes |= WEFTI_OWES_TAKE_BACK;
    wefti_out_flush(out);
}

bool wefti_out_staged_end(wefti_epx_t *ep, uint64_t id, uint64_t how)
{
    wefti_out_t *out = wefti_out_find(&ep->pub, id);
    if (!out || out->state != WEFTI_OUT_STAGED)
        return false;
    out->failed = how == WEFTI_END_FAILED;
    wefti_chunk_out_end(out, how == WEFTI_END_TAKEN ? WEFT_OK : refused(out));
    return true;
}

/* --- in -------------------------------------------------------------------------------------------------------------------- */

void wefti_in_arrived(wefti_epx_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, uint64_t total, wefti_pull_t *p,
                      const wefti_export_t *export)
{
    const wefti_traffic_t *t = n >= HEAD && total ? ep->conn->by_kind[kind] : NULL;
    wefti_in_t *in = t ? wefti_in_new(ep, total, p) : NULL;
    if (!in) {
        if (p)
            p->ops->refuse(p, false);
        if (t)
            wefti_ep_cannot(&ep->pub, "no memory to keep an announcement");
        else
            wefti_ep_protocol_error(&ep->pub, "an announcement of an unknown kind or length");
        return;
    }
    in->traffic = t;
    if (export)
        in->direct = wefti_direct_new(in, export);
    wefti_wild_take(&in->id, wefti_wild_skip(rec, 8), sizeof in->id);
    t->announced(&ep->pub, kind, rec, n, in);
}

void wefti_payload_announced(wefti_epx_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    if (kind == WEFTI_REC_CHUNK)
        wefti_chunk_in_announced(ep, rec, n, total, p);
    else
        wefti_in_arrived(ep, kind, rec, n, total, p, NULL);
}

void wefti_payload_withdrawn(wefti_pull_t *p)
{
    wefti_in_t *in = p->user;
    if (in->state == WEFTI_IN_CHUNKS || in->state == WEFTI_IN_CHUNK) {
        wefti_chunk_in_withdrawn(in);
        return;
    }
    if (in->user)
        in->traffic->withdrawn(in);
    wefti_in_free(in);
}

weft_status_t wefti_in_pull(wefti_in_t *in, const weft_iov_t *iov, size_t iov_n, uint64_t want, const weft_mem_kind_t *device,
                            wefti_xfer_t *x)
{
    if (!device && iov_n == 1)
        device = wefti_mem_mover_of(iov->base, want);
    weft_status_t st = in->direct ? wefti_direct_pull(in, iov, want, device, x) : WEFT_ERR_UNSUPPORTED;
    if (st != WEFT_ERR_UNSUPPORTED)
        return st;
    if (!in->p || (device && !fabric_takes(wefti_epx(in->ep)->link->lane, device, iov_n, want == in->total)))
        return wefti_chunk_in_pull(in, iov, want, device, x);
    st = in->p->ops->pull(in->p, iov, iov_n, want, x);
    if (!st)
        wefti_in_free(in);
    return st;
}

/* Tell of chunks that are not needed any more. */
static void empty(wefti_epx_t *ep, wefti_in_t *in)
{
    for (wefti_chunk_t *k; (k = wefti_chunks_in(in->chunks, WEFTI_CHUNK_TELLS)); k->state = WEFTI_CHUNK_FREE)
        if (!send_words(ep, (uint64_t[]){WEFTI_REC_EMPTIED | (uint64_t)k->cannot << 8, in->id, k->number}, 3))
            return;
    in->owes &= (uint8_t)~WEFTI_OWES_EMPTIED;
}

void wefti_in_flush(wefti_in_t *in)
{
    wefti_epx_t *ep = wefti_epx(in->ep);
    if ((in->owes & WEFTI_OWES_CHUNKS) &&
        send_words(
            ep, (uint64_t[]){WEFTI_REC_CHUNKS | (uint64_t)in->chunks->flags << 8, in->id, in->chunks->name, in->chunks->want}, 4))
        in->owes &= (uint8_t)~WEFTI_OWES_CHUNKS;
    if (in->owes & WEFTI_OWES_EMPTIED)
        empty(ep, in);
    if (in->owes & (WEFTI_OWES_TAKEN | WEFTI_OWES_REFUSED | WEFTI_OWES_FAILED)) {
        uint64_t how = in->owes & WEFTI_OWES_TAKEN ? WEFTI_END_TAKEN : in->owes & WEFTI_OWES_FAILED ? WEFTI_END_FAILED : 0;
        if (send_words(ep, (uint64_t[]){WEFTI_REC_STAGED_END | how << 8, in->id}, 2)) {
            wefti_in_free(in);
            return;
        }
    }
    owes(&ep->payloads.in_owes, &in->owes_link, in->owes);
}

void wefti_in_refuse(wefti_in_t *in, bool taken)
{
    if (in->p) {
        in->p->ops->refuse(in->p, taken);
        wefti_in_free(in);
        return;
    }
    in->user = NULL;
    in->state = WEFTI_IN_OVER;
    in->owes = taken ? WEFTI_OWES_TAKEN : WEFTI_OWES_REFUSED;
    wefti_in_flush(in);
}

weft_status_t wefti_in_lend(wefti_in_t *in, wefti_lent_t *lent_out)
{
    wefti_lent_t lent = {.transport = wefti_epx(in->ep)->link->lane->transport};
    if (!in->p || !in->p->ops->lend)
        return WEFT_ERR_UNSUPPORTED;
    weft_status_t st = in->p->ops->lend(in->p, &lent.ptr, &lent.handle);
    if (st)
        return st;
    in->state = WEFTI_IN_LENT;
    lent.ops = lent.transport->ops;
    *lent_out = lent;
    return WEFT_OK;
}

void wefti_unlend(const wefti_lent_t *lent)
{
    if (lent->import) {
        wefti_mem_unimport(lent->rt, lent->import);
        return;
    }
    lent->ops->unlend(lent->transport, lent->handle);
}

bool wefti_lent_part(const wefti_lent_t *lent)
{
    if (!lent->import)
        return lent->ops->lent_outlives;
    wefti_mem_import_part(lent->rt, lent->import);
    return true;
}

/* The newest first: a payload is taken back soon, or after its time ran out. */
static wefti_in_t *in_find(wefti_epx_t *ep, uint64_t id)
{
    for (wefti_list_t *l = ep->payloads.ins.prev; l != &ep->payloads.ins; l = l->prev) {
        wefti_in_t *in = wefti_container_of(l, wefti_in_t, link);
        if (in->id == id)
            return in;
    }
    return NULL;
}

void wefti_in_take_back(wefti_epx_t *ep, uint64_t id)
{
    wefti_in_t *in = in_find(ep, id);
    if (!in || in->state != WEFTI_IN_WAITING || !in->user)
        return;
    in->traffic->withdrawn(in);
    wefti_in_refuse(in, false);
}

/* --- the endpoint ---------------------------------------------------------------------------------------------------------- */

void wefti_payload_space(wefti_epx_t *ep)
{
    wefti_list_t batch;
    wefti_relay_flush(ep);
    wefti_list_init(&batch);
    wefti_list_splice(&batch, &ep->payloads.in_owes);
    for (wefti_list_t *l; (l = wefti_list_pop(&batch));)
        wefti_in_flush(wefti_container_of(l, wefti_in_t, owes_link));
    wefti_list_splice(&batch, &ep->payloads.out_owes);
    for (wefti_list_t *l; (l = wefti_list_pop(&batch));) {
        wefti_out_t *out = wefti_container_of(l, wefti_out_t, owes_link);
        bool chunk = out->owes & WEFTI_OWES_CHUNK;
        out->owes &= (uint8_t)~WEFTI_OWES_CHUNK;
        wefti_out_flush(out);
        if (chunk)
            wefti_chunk_out_step(out);
    }
}

static void out_down(wefti_out_t *out)
{
    out->owes = 0;
    owes(NULL, &out->owes_link, false);
    if (out->state == WEFTI_OUT_STAGED && out->exported) {
        /* The peer may be reading the memory. It looks whether the lane is open when it has: so that is closed before the
         * program has its memory back. */
        wefti_chunk_out_stop(out); /* there will be no lane to tell of the next chunk */
        wefti_list_push_back(&wefti_epx(out->ep)->conn->payloads.taken_back, &out->owes_link);
        wefti_conn_kick(wefti_epx(out->ep)->conn);
    } else if (out->state == WEFTI_OUT_STAGED)
        wefti_chunk_out_end(out, WEFT_ERR_CANCELLED);
    else
        wefti_chunk_out_stop(out); /* the fabric has it, and is about to let go */
}

static void in_down(wefti_in_t *in)
{
    in->owes = 0;
    owes(NULL, &in->owes_link, false);
    if (in->state == WEFTI_IN_CHUNKS) {
        wefti_chunk_in_down(in);
    } else if (in->state == WEFTI_IN_DIRECT) {
        wefti_direct_down(in);
    } else if (!in->p) {
        if (in->user)
            in->traffic->withdrawn(in);
        wefti_in_free(in);
    } /* else the fabric withdraws it, perhaps when the endpoint is gone: a lane may linger */
}

/* Whatever is told of an end may end something else: so each is taken from the lists first. */
void wefti_payload_down(wefti_epx_t *ep)
{
    wefti_payloads_t *all = &ep->conn->payloads;
    wefti_list_t batch;
    wefti_list_init(&batch);
    wefti_list_splice(&batch, &ep->payloads.outs);
    for (wefti_list_t *l; (l = wefti_list_pop(&batch));) {
        wefti_list_push_back(&all->lost_outs, l);
        out_down(wefti_container_of(l, wefti_out_t, link));
    }
    wefti_list_splice(&batch, &ep->payloads.ins);
    for (wefti_list_t *l; (l = wefti_list_pop(&batch));) {
        wefti_list_push_back(&all->lost_ins, l);
        in_down(wefti_container_of(l, wefti_in_t, link));
    }
    wefti_relay_down(ep);
}

void wefti_payload_work(wefti_conn_t *conn)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&conn->payloads.taken_back));)
        wefti_chunk_out_end(wefti_container_of(l, wefti_out_t, owes_link), WEFT_ERR_CANCELLED);
    for (wefti_list_t *l; (l = wefti_relay_next(conn));)
        wefti_chunk_out_step(wefti_container_of(l, wefti_chunks_t, wait)->out);
    wefti_chunks_serve(conn);
}

void wefti_payload_free(wefti_epx_t *ep)
{
    wefti_list_splice(&ep->conn->payloads.lost_outs, &ep->payloads.outs);
    wefti_list_splice(&ep->conn->payloads.lost_ins, &ep->payloads.ins);
}
