/* rma/rma.c - the room: what it tells conn and core about itself. */
#include "rma/rma.h"

#include "rma/serve.h"
#include "rma/twins.h"

/* Records up to this size are copied; what is longer is announced. */
#define RECORD_LIMIT (RMA_INLINE + sizeof(rma_request_t) + 8u)

static void ep_new(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_slots_init(&e->requests, RMA_REQUESTS);
    wefti_slots_init(&e->grants, RMA_GRANTS);
    wefti_list_init(&e->pending);
    wefti_list_init(&e->asked);
    wefti_list_init(&e->remotes);
    wefti_list_init(&e->owed);
    wefti_list_init(&e->turns);
}

static void ep_up(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    e->record_max = ep->lane->frame_max < RECORD_LIMIT ? ep->lane->frame_max : (uint32_t)RECORD_LIMIT;
    wefti_rma_pending_flush(ep);
}

static void ep_space(weft_ep_t *ep)
{
    wefti_rma_owed_flush(ep);
    if (ep->lane)
        wefti_rma_pending_flush(ep);
}

/* DROP: the peer does not need a grant of ours any more. REVOKED: it took back what it granted us. */
static void let_go(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *bytes, size_t n)
{
    rma_drop_t rec;
    if (n != sizeof rec) {
        wefti_rma_nonsense(ep);
        return;
    }
    wefti_wild_take(&rec, bytes, sizeof rec);
    rma_grant_t *grant = kind == REC_DROP ? wefti_slots_get(&rma_ep(ep)->grants, rec.grant) : NULL;
    if (grant)
        wefti_rma_grant_drop(grant, false);
    else if (kind == REC_REVOKED)
        wefti_rma_revoked(ep, rec.grant);
}

static void record(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n)
{
    switch (kind) {
    case REC_DONE:
    case REC_DATA:
    case REC_VALUE:
    case REC_ATTACHED:
        wefti_rma_answer(ep, kind, rec, n);
        return;
    case REC_ATTACH:
        wefti_rma_attach_asked(ep, rec, n);
        return;
    case REC_DROP:
    case REC_REVOKED:
        let_go(ep, kind, rec, n);
        return;
    default:
        wefti_rma_serve(ep, kind, rec, n);
    }
}

static void announced(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, wefti_in_t *in)
{
    if (kind == REC_WRITE_BIG) {
        wefti_rma_serve_big(ep, rec, n, in);
    } else if (kind == REC_PAYLOAD) {
        wefti_rma_payload(ep, rec, n, in);
    } else {
        wefti_in_refuse(in, false);
        wefti_rma_nonsense(ep);
    }
}

static void withdrawn(wefti_in_t *in)
{
    wefti_rma_turn_withdrawn(in); /* all others are pulled or refused as they come */
}

static void ep_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    (void)discard;
    wefti_rma_remotes_down(ep, why);
    if (ep->lane)
        return; /* it closes gracefully: requests and answers go on */
    wefti_rma_asked_down(ep, why);
    wefti_rma_turns_down(ep);
    wefti_rma_owed_down(ep);
    wefti_rma_grants_down(ep);
}

/* Answers count as sends: a peer waits for them. */
static bool ep_sends_pending(weft_ep_t *ep)
{
    const rma_ep_t *e = rma_ep(ep);
    if (!wefti_list_empty(&e->pending) || !wefti_list_empty(&e->asked) || !wefti_list_empty(&e->owed) ||
        !wefti_list_empty(&e->turns) || e->serving || e->pulling || e->n_native)
        return true;
    wefti_list_each(l, &e->remotes)
        if (wefti_container_of(l, weft_remote_t, ep_link)->n_live)
            return true;
    return false;
}

static bool ep_busy(weft_ep_t *ep)
{
    const rma_ep_t *e = rma_ep(ep);
    return e->serving || e->pulling || e->n_native || !wefti_list_empty(&e->asked) || !wefti_list_empty(&e->pending) ||
           !wefti_list_empty(&e->turns);
}

static void ep_free(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_rma_remotes_down(ep, ep->why ? ep->why : WEFT_ERR_CLOSED);
    wefti_rma_grants_down(ep);
    wefti_slots_free(&e->requests);
    wefti_slots_free(&e->grants);
}

static const wefti_traffic_t traffic = {
    .first_kind = WEFTI_REC_RMA_FIRST,
    .last_kind = WEFTI_REC_RMA_LAST,
    .capability = WEFT_CAN_RMA,
    .ep_state_size = sizeof(rma_ep_t),
    .ep_new = ep_new,
    .ep_up = ep_up,
    .ep_space = ep_space,
    .record = record,
    .announced = announced,
    .withdrawn = withdrawn,
    .ep_down = ep_down,
    .ep_sends_pending = ep_sends_pending,
    .ep_busy = ep_busy,
    .ep_free = ep_free,
};

/* --- the room, for core ------------------------------------------------------------------------------------------------ */

static void shutdown(weft_runtime_t *rt)
{
    wefti_timer_stop(rt, &rma_state(rt)->stepping.timer); /* what takes steps ends with its endpoint */
    wefti_timer_stop(rt, &rma_state(rt)->look);
    wefti_rma_regions_shutdown(rma_state(rt));
}

static bool idle(weft_runtime_t *rt)
{
    const rma_state_t *rs = rma_state(rt);
    return wefti_rma_regions_idle(rs) && wefti_list_empty(&rs->stepping.list) && wefti_list_empty(&rs->held);
}

static void room_free(weft_runtime_t *rt)
{
    rma_state_t *rs = rma_state(rt);
    wefti_rma_remotes_part(rs);
    wefti_rma_twins_part(rs);
    wefti_rma_regions_free(rs);
    wefti_rma_key_end(rs);
    wefti_spares_free(&rs->spare_turns);
    wefti_free(rs);
}

static void stats(weft_runtime_t *rt, weft_runtime_stats_t *out)
{
    const rma_state_t *rs = rma_state(rt);
    uint64_t fast = 0;
    wefti_list_each(l, &rs->remotes)
        fast += __atomic_load_n(&wefti_container_of(l, weft_remote_t, all_link)->fast, __ATOMIC_RELAXED);
    out->rma_mapped = rs->mapped + fast;
    out->rma_checked = rs->checked;
    out->rma_native = rs->native;
    out->rma_served = rs->served;
    out->rma_refused = rs->refused;
    out->ops_posted += rs->fast_gone + fast;
    out->ops_completed += rs->fast_gone + fast;
}

static const wefti_room_t room = {shutdown, idle, room_free, stats};

weft_status_t wefti_rma_attach(weft_runtime_t *rt)
{
    rma_state_t *rs = (rma_state_t *)wefti_calloc(1, sizeof *rs);
    if (!rs)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the remote memory of a runtime");
    rs->rt = rt;
    weft_status_t st = wefti_rma_key_init(rs);
    if (st) {
        wefti_free(rs);
        return st;
    }
    wefti_rma_regions_init(rs);
    wefti_list_init(&rs->remotes);
    wefti_rma_steps_init(rs);
    wefti_runtime_attach(rt, WEFTI_ROOM_RMA, &room, rs);
    wefti_conn_traffic(rt, WEFTI_TRAFFIC_RMA, &traffic);
    return WEFT_OK;
}
