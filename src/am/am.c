/* am/am.c - the room: what it tells conn and core about itself. */
#include "am/am.h"

#include "am/state.h"

/* Records up to this size are copied; what is longer is announced and read in place. Two copies through the ring cost more
 * than one system call from about here on. */
#define RECORD_LIMIT (8192u + 32u)

static void ep_new(weft_ep_t *ep)
{
    am_ep_t *e = am_ep(ep);
    wefti_outbox_init(&e->box, &wefti_am_sends, ep->rt->config.am_window, (uint32_t)ep->rt->config.am_messages);
    wefti_list_init(&e->posted);
    wefti_list_init(&e->arrived);
    wefti_list_init(&e->kept);
    wefti_list_init(&e->answers);
}

static void ep_up(weft_ep_t *ep)
{
    am_ep_t *e = am_ep(ep);
    e->record_max = ep->lane->frame_max < RECORD_LIMIT ? ep->lane->frame_max : RECORD_LIMIT;
    e->parts_len = 0;
    e->box.flow.cost_max = AM_COST + WEFT_AM_HEADER_MAX + e->record_max;
}

static void ep_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    wefti_am_recv_down(ep, why);
    if (!ep->lane) /* with a lane, it closes gracefully: answers go on */
        wefti_am_answers_down(ep);
    wefti_am_messages_down(ep, why, discard);
}

/* Answers count as sends: a peer waits for them. */
static bool answers_wait(weft_ep_t *ep)
{
    return !wefti_list_empty(&am_ep(ep)->answers);
}

static void ep_free(weft_ep_t *ep)
{
    wefti_am_messages_down(ep, ep->why ? ep->why : WEFT_ERR_CLOSED, true);
    wefti_am_messages_orphan(ep);
    wefti_free(am_ep(ep)->parts);
}

/* Any thread: the counters may be a little old. */
static void ep_info(weft_ep_t *ep, weft_ep_info_t *info)
{
    const am_ep_t *e = am_ep(ep);
    wefti_count_t c = wefti_count_read(&e->box.count);
    info->ams_sent = c.sent;
    info->ams_received = c.received;
    info->am_bytes_sent = c.bytes_sent;
    info->am_bytes_received = c.bytes_received;
    info->am_held = __atomic_load_n(&e->box.flow.held_msgs, __ATOMIC_RELAXED);
    info->am_held_bytes = __atomic_load_n(&e->box.flow.held, __ATOMIC_RELAXED);
}

static const wefti_traffic_t traffic = {
    .first_kind = WEFTI_REC_AM_FIRST,
    .last_kind = WEFTI_REC_AM_LAST,
    .capability = WEFT_CAN_AM,
    .ep_state_size = sizeof(am_ep_t),
    .outbox = true,
    .ep_new = ep_new,
    .ep_up = ep_up,
    .record = wefti_am_record,
    .announced = wefti_am_announced,
    .withdrawn = wefti_am_withdrawn,
    .ep_down = ep_down,
    .ep_free = ep_free,
    .ep_space = wefti_am_answers_flush,
    .ep_sends_pending = answers_wait,
    .ep_busy = answers_wait,
    .ep_info = ep_info,
};

/* --- the room, for core ---------------------------------------------------------------------------------------------------- */

static void shutdown(weft_runtime_t *rt)
{
    wefti_am_recv_shutdown(am_state(rt));
    wefti_wants_shutdown(am_state(rt)->wants, rt);
}

static bool idle(weft_runtime_t *rt)
{
    const am_state_t *as = am_state(rt);
    return wefti_list_empty(&as->posted_of_any) && wefti_wants_idle(as->wants, rt) && !as->draining && !atomic_load(&as->called);
}

static void room_free(weft_runtime_t *rt)
{
    am_state_t *as = am_state(rt);
    wefti_am_blocks_free(as);
    wefti_am_ports_free(as);
    wefti_wants_holds(as->wants, rt, false);
    if (wefti_head(rt) == rt)
        wefti_wants_free(as->wants);
    wefti_free(as);
}

static void stats(weft_runtime_t *rt, weft_runtime_stats_t *out)
{
    const am_state_t *as = am_state(rt);
    wefti_count_t c = wefti_outbox_sum(rt, WEFTI_TRAFFIC_AM);
    out->ams_sent = c.sent;
    out->ams_received = c.received;
    out->am_bytes_sent = c.bytes_sent;
    out->am_bytes_received = c.bytes_received;
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
    if (wefti_head(rt) != rt) {
        weft_status_t st = wefti_wants_attach(rt, &wefti_am_wants, &am_state(wefti_head(rt))->wants, &as->wants);
        if (st) {
            wefti_free(as);
            return st;
        }
    }
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
