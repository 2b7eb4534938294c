/* conn/payload.c - payloads that are announced and pulled: their objects, their names, and who hears of their ends.
 *
 * out:  NEW -> PLAIN (the fabric has the announcement) -> over
 *           -> STAGED (a record of ours has told of it; the bytes are in device memory) -> over
 * in:   WAITING (the traffic's, until it pulls or refuses) -> gone, where the fabric moves the whole of it at once
 *                -> LENT (the traffic's still) -> gone
 *
 * chunk_out.c and chunk_in.c move what does not go in one piece. Who takes a payload back asks the receiver by a record (TAKE_BACK), and not the
 * fabric: only the receiver knows whether a pull has begun that the fabric has not heard of, and its answer is the announcement's refusal.
 * So a message that met a receive is never taken back from under it.
 *
 * When an endpoint goes down, what only records hold ends at once; what the fabric holds ends when it lets go. The objects are kept by the
 * runtime and used again: in steady state nothing is allocated.
 *
 * Promise: each `out` that was announced is done exactly once, after the fabric has let go of its memory; each `in` is pulled, refused or
 * withdrawn exactly once. Names that a peer makes up find nothing. tests/sim/msg_exactly_once.c, tests/wire/msg_device.c,
 * tests/fuzz/records.c. */
#include <string.h>

#include "base/bytes.h"
#include "conn/ep.h"

#define SPARE_MAX 1024
#define HEAD 16 /* what every record that is announced begins with: the room's word, the id */

enum { OUT_NEW, OUT_PLAIN };
enum { IN_WAITING, IN_LENT };
enum { OWES_TAKE_BACK = 1 };

static wefti_payloads_t *payloads_of(weft_runtime_t *rt)
{
    return &wefti_conn_of(rt)->payloads;
}

/* --- objects --------------------------------------------------------------------------------------------------------------- */

void wefti_payloads_init(wefti_payloads_t *all)
{
    wefti_list_init(&all->spare_outs);
    wefti_list_init(&all->spare_ins);
    wefti_list_init(&all->lost_outs);
    wefti_list_init(&all->lost_ins);
    wefti_slots_init(&all->out_ids, UINT32_MAX);
}

void wefti_payloads_free(wefti_payloads_t *all)
{
    wefti_list_splice(&all->spare_outs, &all->lost_outs); /* empty, but in a forked child */
    wefti_list_splice(&all->spare_ins, &all->lost_ins);
    for (wefti_list_t *l; (l = wefti_list_pop(&all->spare_outs));)
        wefti_free(wefti_container_of(l, wefti_out_t, link));
    for (wefti_list_t *l; (l = wefti_list_pop(&all->spare_ins));)
        wefti_free(wefti_container_of(l, wefti_in_t, link));
    wefti_slots_free(&all->out_ids);
}

wefti_out_t *wefti_out_new(weft_runtime_t *rt)
{
    wefti_payloads_t *all = payloads_of(rt);
    wefti_list_t *spare = wefti_list_pop(&all->spare_outs);
    wefti_out_t *out = spare ? wefti_container_of(spare, wefti_out_t, link) : wefti_malloc(sizeof *out);
    if (!out)
        return NULL;
    all->n_spare_outs -= spare != NULL;
    memset(out, 0, sizeof *out);
    return out;
}

void wefti_out_free(weft_runtime_t *rt, wefti_out_t *out)
{
    wefti_payloads_t *all = payloads_of(rt);
    if (all->n_spare_outs >= SPARE_MAX) {
        wefti_free(out);
        return;
    }
    wefti_list_push_front(&all->spare_outs, &out->link);
    all->n_spare_outs++;
}

static wefti_in_t *in_new(wefti_epx_t *ep)
{
    wefti_payloads_t *all = &ep->conn->payloads;
    wefti_list_t *spare = wefti_list_pop(&all->spare_ins);
    wefti_in_t *in = spare ? wefti_container_of(spare, wefti_in_t, link) : wefti_malloc(sizeof *in);
    if (!in)
        return NULL;
    all->n_spare_ins -= spare != NULL;
    memset(in, 0, sizeof *in);
    in->ep = &ep->pub;
    in->rt = ep->pub.rt;
    wefti_list_push_back(&ep->payloads.ins, &in->link);
    return in;
}

static void in_free(wefti_in_t *in)
{
    wefti_payloads_t *all = payloads_of(in->rt);
    if (wefti_list_linked(&in->link))
        wefti_list_remove(&in->link);
    if (all->n_spare_ins >= SPARE_MAX) {
        wefti_free(in);
        return;
    }
    wefti_list_push_front(&all->spare_ins, &in->link);
    all->n_spare_ins++;
}

void wefti_payload_new(wefti_epx_t *ep)
{
    wefti_list_init(&ep->payloads.outs);
    wefti_list_init(&ep->payloads.ins);
    wefti_list_init(&ep->payloads.out_owes);
}

/* --- out ------------------------------------------------------------------------------------------------------------------- */

static void out_over(wefti_out_t *out, weft_status_t status)
{
    wefti_slots_remove(&payloads_of(out->ep->rt)->out_ids, out->id);
    wefti_list_remove(&out->link);
    if (wefti_list_linked(&out->owes_link))
        wefti_list_remove(&out->owes_link);
    out->done(out, status);
}

static void announce_done(wefti_xfer_t *x, weft_status_t status)
{
    wefti_out_t *out = wefti_container_of(x, wefti_out_t, x);
    if (status == WEFT_ERR_REFUSED && out->withdrawn)
        status = WEFT_ERR_CANCELLED;
    out_over(out, status);
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
    out->x.done = announce_done;
    st = lane->ops->announce(lane, rec, n, out->iov, out->iov_n, out->total, &out->x);
    if (st) {
        wefti_slots_remove(ids, out->id);
        return st;
    }
    out->state = OUT_PLAIN;
    wefti_list_push_back(&ep->payloads.outs, &out->link);
    return WEFT_OK;
}

wefti_out_t *wefti_out_find(const weft_ep_t *ep, uint64_t id)
{
    wefti_out_t *out = wefti_slots_get(&payloads_of(ep->rt)->out_ids, id);
    return out && out->ep == ep ? out : NULL;
}

/* Send what is owed to the peer about it; what finds no room waits for it. */
static void out_flush(wefti_epx_t *ep, wefti_out_t *out)
{
    wefti_lane_t *lane = ep->link->lane;
    if (out->owes & OWES_TAKE_BACK) {
        uint64_t *rec = lane->ops->reserve(lane, 24);
        if (rec) {
            rec[0] = WEFTI_REC_TAKE_BACK;
            rec[1] = out->id;
            rec[2] = out->asked_by;
            lane->ops->commit(lane, 24);
            ep->pub.spoke = 1;
            out->owes &= (uint8_t)~OWES_TAKE_BACK;
        }
    }
    if (out->owes && !wefti_list_linked(&out->owes_link))
        wefti_list_push_back(&ep->payloads.out_owes, &out->owes_link);
    else if (!out->owes && wefti_list_linked(&out->owes_link))
        wefti_list_remove(&out->owes_link);
}

void wefti_out_withdraw(wefti_out_t *out)
{
    if (out->withdrawn)
        return;
    out->withdrawn = true;
    out->owes |= OWES_TAKE_BACK;
    out_flush(wefti_epx(out->ep), out);
}

/* --- in -------------------------------------------------------------------------------------------------------------------- */

void wefti_payload_announced(wefti_epx_t *ep, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    const wefti_traffic_t *t = n >= HEAD ? ep->conn->by_kind[*(const uint8_t *)rec] : NULL;
    if (!t || !total) {
        p->ops->refuse(p, false);
        wefti_ep_protocol_error(&ep->pub, "an announcement of an unknown kind or length");
        return;
    }
    wefti_in_t *in = in_new(ep);
    if (!in) {
        p->ops->refuse(p, false);
        wefti_ep_protocol_error(&ep->pub, "no memory to keep an announcement");
        return;
    }
    in->traffic = t;
    in->total = total;
    in->p = p;
    p->user = in;
    memcpy(&in->id, (const uint8_t *)rec + 8, sizeof in->id);
    t->announced(&ep->pub, rec, n, in);
}

void wefti_payload_withdrawn(wefti_pull_t *p)
{
    wefti_in_t *in = p->user;
    if (in->user) {
        in->ep->heard = 1;
        in->traffic->withdrawn(in);
    }
    in_free(in);
}

weft_status_t wefti_in_pull(wefti_in_t *in, const weft_iov_t *iov, size_t iov_n, uint64_t want, const weft_mem_kind_t *device,
                            wefti_xfer_t *x)
{
    (void)device;
    weft_status_t st = in->p->ops->pull(in->p, iov, iov_n, want, x);
    if (!st)
        in_free(in);
    return st;
}

void wefti_in_refuse(wefti_in_t *in, bool taken)
{
    in->p->ops->refuse(in->p, taken);
    in_free(in);
}

weft_status_t wefti_in_lend(wefti_in_t *in, wefti_lent_t *lent_out)
{
    wefti_lent_t lent = {.rail = wefti_epx(in->ep)->link->lane->rail};
    if (!in->p->ops->lend)
        return WEFT_ERR_UNSUPPORTED;
    weft_status_t st = in->p->ops->lend(in->p, &lent.ptr, &lent.handle);
    if (st)
        return st;
    in->state = IN_LENT;
    *lent_out = lent;
    return WEFT_OK;
}

void wefti_unlend(const wefti_lent_t *lent)
{
    lent->rail->ops->unlend(lent->rail, lent->handle);
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

/* The sender wants it back. If it is not there (any more), or somebody uses it, the sender hears of its end in another way. */
static void take_back(wefti_epx_t *ep, uint64_t id)
{
    wefti_in_t *in = in_find(ep, id);
    if (!in || in->state != IN_WAITING || !in->user)
        return;
    in->traffic->withdrawn(in);
    wefti_in_refuse(in, false);
}

/* --- records --------------------------------------------------------------------------------------------------------------- */

bool wefti_payload_record(wefti_epx_t *ep, const void *rec, size_t n)
{
    uint64_t w[4] = {0};
    if (n > sizeof w || n % 8)
        return false;
    memcpy(w, rec, n);
    switch (w[0]) { /* the bytes behind the kind are zero */
    case WEFTI_REC_TAKE_BACK:
        if (n != 24 || w[2])
            return false;
        take_back(ep, w[1]);
        return true;
    default:
        return false;
    }
}

/* --- the endpoint ---------------------------------------------------------------------------------------------------------- */

void wefti_payload_room(wefti_epx_t *ep)
{
    wefti_list_t owes;
    wefti_list_init(&owes);
    wefti_list_splice(&owes, &ep->payloads.out_owes);
    for (wefti_list_t *l; (l = wefti_list_pop(&owes));)
        out_flush(ep, wefti_container_of(l, wefti_out_t, owes_link));
}

void wefti_payload_down(wefti_epx_t *ep)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&ep->payloads.out_owes));)
        wefti_container_of(l, wefti_out_t, owes_link)->owes = 0;
    /* The fabric withdraws each of them when the lane is closed, perhaps when the endpoint is gone: a lane may linger. */
    wefti_list_splice(&ep->conn->payloads.lost_ins, &ep->payloads.ins);
}

/* After everything has let go of it; or in a forked child, where nothing ever does. */
void wefti_payload_free(wefti_epx_t *ep)
{
    wefti_payload_down(ep);
    wefti_list_splice(&ep->conn->payloads.lost_outs, &ep->payloads.outs);
}
