/* am/am.c - the room: what it tells conn and core about itself. */
#include "am/am.h"

#include "am/state.h"

/* Records up to this size are copied; what is longer is announced and read in place. Two copies through the ring cost more than one
 * system call from about here on. */
#define RECORD_LIMIT (8192u + 32u)

static const wefti_flow_kind_t flow_kind = {.rec_credit = REC_CREDIT, .rec_starved = REC_STARVED, .counts_msgs = true};

static void ep_new(weft_ep_t *ep)
{
    am_ep_t *e = am_ep(ep);
    wefti_flow_init(&e->flow, &flow_kind, ep->rt->am_window, ep->rt->am_messages);
    wefti_list_init(&e->urgent);
    wefti_list_init(&e->pending);
    wefti_list_init(&e->announced);
    wefti_list_init(&e->confirming);
    wefti_slots_init(&e->confirms, UINT32_MAX - 1);
    wefti_list_init(&e->posted);
    wefti_list_init(&e->arrived);
    wefti_list_init(&e->kept);
    wefti_list_init(&e->answers);
}

/* A send whose header went ahead on the lane that is gone begins anew. */
static void forget_parts(wefti_list_t *list)
{
    wefti_list_each(l, list)
        am_send(wefti_op_of_link(l))->header_sent = 0;
}

static void ep_up(weft_ep_t *ep)
{
    am_ep_t *e = am_ep(ep);
    e->record_max = ep->lane->frame_max < RECORD_LIMIT ? ep->lane->frame_max : RECORD_LIMIT;
    e->sent_before = e->count.sent;
    e->parts_len = 0;
    forget_parts(&e->pending);
    e->flow.cost_max = AM_COST + WEFT_AM_HEADER_MAX + e->record_max;
    wefti_flow_up(ep, &e->flow);
    wefti_am_send_flush(ep);
}

static void ep_room(weft_ep_t *ep)
{
    wefti_flow_room(ep, &am_ep(ep)->flow);
    wefti_am_answers_flush(ep);
    wefti_am_send_flush(ep);
}

static void ep_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    wefti_am_recv_down(ep, why);
    wefti_flow_down(ep, &am_ep(ep)->flow);
    if (!ep->lane) { /* with a lane, it closes gracefully: sends and answers go on */
        wefti_am_send_down(ep, why);
        wefti_am_answers_down(ep);
    }
    wefti_am_messages_down(ep, why, discard);
}

/* Answers count as sends: a peer waits for them. */
static bool ep_sends_pending(weft_ep_t *ep)
{
    const am_ep_t *e = am_ep(ep);
    return !wefti_list_empty(&e->pending) || !wefti_list_empty(&e->urgent) || !wefti_list_empty(&e->announced) ||
           !wefti_list_empty(&e->confirming) || !wefti_list_empty(&e->answers);
}

static bool ep_busy(weft_ep_t *ep)
{
    return ep_sends_pending(ep) || am_ep(ep)->pulling;
}

static uint64_t ep_sent(weft_ep_t *ep)
{
    return am_ep(ep)->count.sent - am_ep(ep)->sent_before;
}

static uint64_t ep_unreceived(weft_ep_t *ep)
{
    return am_ep(ep)->n_arrived;
}

static void ep_free(weft_ep_t *ep)
{
    am_ep_t *e = am_ep(ep);
    wefti_count_sum(&am_state(ep->rt)->gone, &e->count);
    wefti_am_messages_down(ep, ep->why ? ep->why : WEFT_ERR_CLOSED, true);
    wefti_am_messages_orphan(ep);
    wefti_slots_free(&e->confirms);
    wefti_free(e->parts);
}

/* Any thread: the counters may be a little old. */
static void ep_info(weft_ep_t *ep, weft_ep_info_t *info)
{
    const am_ep_t *e = am_ep(ep);
    wefti_count_t c = wefti_count_read(&e->count);
    info->ams_sent = c.sent;
    info->ams_received = c.received;
    info->am_bytes_sent = c.bytes_sent;
    info->am_bytes_received = c.bytes_received;
    info->am_held = __atomic_load_n(&e->flow.held_msgs, __ATOMIC_RELAXED);
    info->am_held_bytes = __atomic_load_n(&e->flow.held, __ATOMIC_RELAXED);
}

static const wefti_traffic_t traffic = {
    .first_kind = WEFTI_REC_AM_FIRST,
    .last_kind = WEFTI_REC_AM_LAST,
    .capability = WEFT_CAN_AM,
    .ep_state_size = sizeof(am_ep_t),
    .ep_new = ep_new,
    .ep_up = ep_up,
    .ep_room = ep_room,
    .record = wefti_am_record,
    .announced = wefti_am_announced,
    .withdrawn = wefti_am_withdrawn,
    .ep_down = ep_down,
    .ep_sends_pending = ep_sends_pending,
    .ep_sent = ep_sent,
    .ep_unreceived = ep_unreceived,
    .ep_busy = ep_busy,
    .ep_free = ep_free,
    .ep_info = ep_info,
};

/* --- the room, for core ------------------------------------------------------------------------------------------------------ */

static void shutdown(weft_runtime_t *rt)
{
    wefti_am_recv_shutdown(am_state(rt));
}

static bool idle(weft_runtime_t *rt)
{
    const am_state_t *as = am_state(rt);
    return wefti_list_empty(&as->posted_of_any) && !as->draining && !atomic_load(&as->called);
}

static void room_free(weft_runtime_t *rt)
{
    am_state_t *as = am_state(rt);
    wefti_am_blocks_free(as);
    wefti_am_ports_free(as);
    wefti_free(as);
}

static void stats(weft_runtime_t *rt, weft_runtime_stats_t *out)
{
    const am_state_t *as = am_state(rt);
    wefti_count_t sum = as->gone;
    uint32_t at = 0;
    for (weft_ep_t *ep; (ep = wefti_ep_next(rt, &at));)
        wefti_count_sum(&sum, &am_ep(ep)->count);
    out->ams_sent = sum.sent;
    out->ams_received = sum.received;
    out->am_bytes_sent = sum.bytes_sent;
    out->am_bytes_received = sum.bytes_received;
    out->am_held = as->held_msgs;
    out->am_held_bytes = as->held_bytes;
}

static const wefti_room_t room = {shutdown, idle, room_free, stats};

weft_status_t wefti_am_attach(weft_runtime_t *rt)
{
    am_state_t *as = (am_state_t *)wefti_calloc(1, sizeof *as);
    if (!as)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the active messages of a runtime");
    as->rt = rt;
    wefti_list_init(&as->posted);
    wefti_list_init(&as->posted_of_any);
    wefti_list_init(&as->arrived);
    wefti_list_init(&as->kept);
    wefti_am_drain_init(as);
    as->call.fn = wefti_am_handed_in;
    wefti_runtime_attach(rt, WEFTI_ROOM_AM, &room, as);
    wefti_conn_traffic(rt, WEFTI_TRAFFIC_AM, &traffic);
    return WEFT_OK;
}
