/* msg/msg.c - the room: what it tells conn and core about itself. */
#include "msg/msg.h"

#include "msg/state.h"

/* Records up to this size are copied; what is longer is announced and read in place. Two copies through the ring cost more
 * than one system call from about here on. */
#define EAGER_LIMIT 8192

static void ep_new(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    wefti_outbox_init(&m->box, &wefti_msg_sends, ep->rt->config.recv_window, 0);
    wefti_list_init(&m->posted);
    wefti_list_init(&m->masked);
    wefti_list_init(&m->arrived);
    wefti_list_init(&m->claimed);
}

static void ep_up(weft_ep_t *ep)
{
    msg_ep_t *m = msg_ep(ep);
    uint32_t max = ep->lane->frame_max - (uint32_t)sizeof(msg_head_t);
    m->eager_max = max < EAGER_LIMIT ? max : EAGER_LIMIT;
    m->box.flow.cost_max = MSG_COST + m->eager_max;
}

static void ep_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    wefti_msg_recv_down(ep, why);
    wefti_msg_arrive_down(ep, discard);
}

static void ep_free(weft_ep_t *ep)
{
    wefti_msg_arrive_down(ep, true);
    wefti_msg_arrive_orphan(ep);
}

/* Any thread: the counters may be a little old. */
static void ep_info(weft_ep_t *ep, weft_ep_info_t *info)
{
    wefti_count_t c = wefti_count_read(&msg_ep(ep)->box.count);
    info->msgs_sent = c.sent;
    info->msgs_received = c.received;
    info->bytes_sent = c.bytes_sent;
    info->bytes_received = c.bytes_received;
}

static const wefti_traffic_t traffic = {
    .first_kind = WEFTI_REC_MSG_FIRST,
    .last_kind = WEFTI_REC_MSG_LAST,
    .capability = WEFT_CAN_MSG,
    .ep_state_size = sizeof(msg_ep_t),
    .outbox = true,
    .ep_new = ep_new,
    .ep_up = ep_up,
    .record = wefti_msg_record,
    .announced = wefti_msg_announced,
    .ahead = wefti_msg_ahead,
    .withdrawn = wefti_msg_withdrawn,
    .ep_down = ep_down,
    .ep_free = ep_free,
    .ep_info = ep_info,
};

/* --- the room, for core ---------------------------------------------------------------------------------------------------- */

static void shutdown(weft_runtime_t *rt)
{
    wefti_msg_recv_shutdown(msg_state(rt));
    wefti_wants_shutdown(msg_state(rt)->wants, rt);
}

static bool idle(weft_runtime_t *rt)
{
    return wefti_list_empty(&msg_state(rt)->of_any) && wefti_wants_idle(msg_state(rt)->wants, rt);
}

static void room_free(weft_runtime_t *rt)
{
    msg_state_t *ms = msg_state(rt);
    for (wefti_list_t *l; (l = wefti_list_pop(&ms->claimed));) {
        weft_msg_t *msg = wefti_container_of(l, weft_msg_t, all_link);
        if (atomic_exchange(&msg->parted, true))
            wefti_free(msg);
    }
    wefti_spares_free(&ms->spares);
    wefti_msg_match_free(ms);
    wefti_wants_holds(ms->wants, rt, false);
    if (wefti_head(rt) == rt)
        wefti_wants_free(ms->wants);
    wefti_free(ms);
}

static void stats(weft_runtime_t *rt, weft_runtime_stats_t *out)
{
    wefti_count_t c = wefti_outbox_sum(rt, WEFTI_TRAFFIC_MSG);
    out->msgs_sent = c.sent;
    out->msgs_received = c.received;
    out->bytes_sent = c.bytes_sent;
    out->bytes_received = c.bytes_received;
    out->unexpected_bytes = msg_state(rt)->held_bytes;
}

static const wefti_room_t room = {shutdown, idle, room_free, stats};

weft_status_t wefti_msg_attach(weft_runtime_t *rt)
{
    msg_state_t *ms = (msg_state_t *)wefti_calloc(1, sizeof *ms);
    if (!ms)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the message room");
    ms->rt = rt;
    wefti_list_init(&ms->claimed);
    weft_status_t st = WEFT_OK;
    if (wefti_head(rt) != rt)
        st = wefti_wants_attach(rt, &wefti_msg_wants, &msg_state(wefti_head(rt))->wants, &ms->wants);
    if (!st)
        st = wefti_msg_match_init(ms);
    if (st) {
        wefti_free(ms);
        return st;
    }
    wefti_runtime_attach(rt, WEFTI_ROOM_MSG, &room, ms);
    wefti_conn_traffic(rt, WEFTI_TRAFFIC_MSG, &traffic);
    return WEFT_OK;
}
