/* rpc/rpc.c - what rpc is to conn and core.
 *
 * It has no records of its own: calls and replies are active messages. To conn it is traffic that only wants to know when
 * endpoints come and go. */
#include "rpc/rpc.h"

#include "rpc/client.h"
#include "rpc/serve.h"

weft_status_t wefti_rpc_go(weft_runtime_t *rt, weft_op_t *op, weft_status_t (*start)(weft_op_t *op), _Atomic uint32_t *hold,
                           _Atomic uint32_t *coming)
{
    weft_runtime_t *was;
    weft_status_t st = WEFT_OK;
    bool driver = wefti_enter(rt, &was);
    if (driver && wefti_may_pass_inbox(rt, was)) {
        st = wefti_op_start(op, start);
    } else {
        atomic_fetch_add(hold, 1);
        if (coming)
            atomic_fetch_add(coming, 1);
        st = wefti_op_inbox(op);
        if (st) { /* the runtime is closed: only the program has the object, so nobody misses the count */
            if (coming)
                atomic_fetch_sub(coming, 1);
            atomic_fetch_sub(hold, 1);
        }
    }
    if (driver)
        wefti_leave(rt, was);
    return st;
}

weft_status_t wefti_rpc_lock(weft_runtime_t *rt, const wefti_handle_t *handle, const char *what)
{
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    pthread_mutex_lock(&rpc_state(rt)->lock);
    if (wefti_is_open(handle))
        return WEFT_OK;
    wefti_rpc_unlock(rt);
    return wefti_fail(WEFT_ERR_CLOSED, "the %s was closed", what);
}

void wefti_rpc_unlock(weft_runtime_t *rt)
{
    pthread_mutex_unlock(&rpc_state(rt)->lock);
    wefti_part(rt);
}

/* --- ending a client, a service or a function ------------------------------------------------------------------------------ */

void wefti_rpc_ended(rpc_state_t *rs, rpc_ending_t *ending, weft_status_t st)
{
    weft_op_t *op = ending->op;
    ending->op = NULL;
    if (!op)
        return;
    rpc_end(rs);
    wefti_op_complete(op, st);
}

static weft_status_t end_start(weft_op_t *op)
{
    rpc_ending_t *ending = *wefti_op_scratch(op, rpc_ending_t *);
    (void)wefti_op_track(op); /* without memory for that it has no deadline, but the object ends */
    ending->op = op;
    rpc_begin(rpc_state(wefti_opx(op)->rt)); /* rpc is not idle while it waits */
    ending->call.fn(&ending->call);
    return WEFT_OK;
}

/* The object goes on ending. */
static void end_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_rpc_ended(rpc_state(wefti_opx(op)->rt), *wefti_op_scratch(op, rpc_ending_t *), why);
}

static const wefti_op_kind_t end_kinds[] = {
    [ENDS_CLIENT] = {.name = "client close", .start = end_start, .cancel = end_cancel},
    [ENDS_SERVICE] = {.name = "close", .start = end_start, .cancel = end_cancel},
    [ENDS_FUNCTION] = {.name = "remove", .start = end_start, .cancel = end_cancel},
};

weft_status_t wefti_rpc_end(weft_runtime_t *rt, unsigned what, weft_op_t *op,
                            weft_status_t (*claim)(void *arg, rpc_ending_t **out), void *arg)
{
    rpc_ending_t *ending;
    weft_status_t st = wefti_join(rt); /* until the driver has it */
    if (st)
        return st;
    st = op ? wefti_op_prepare(rt, op, &end_kinds[what]) : WEFT_OK;
    if (!st) {
        st = claim(arg, &ending);
        if (st && op) {
            wefti_op_unprepare(op);
        } else if (!st && op) {
            *wefti_op_scratch(op, rpc_ending_t *) = ending;
            st = wefti_op_post(rt, op);
        } else if (!st && !wefti_call_on_driver(rt, &ending->call)) {
            st = wefti_fail_gone(rt);
        }
    }
    wefti_part(rt);
    return st;
}

/* --- for conn and core ----------------------------------------------------------------------------------------------------- */

static void ep_new(weft_ep_t *ep)
{
    rpc_ep_t *e = rpc_ep(ep);
    wefti_slots_init(&e->calls, UINT32_MAX - 1);
    wefti_slots_init(&e->binds, UINT32_MAX - 1);
    wefti_list_init(&e->sent);
    wefti_list_init(&e->servers);
    wefti_list_init(&e->request_list);
    wefti_rpc_watch_init(ep);
}

static void ep_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    (void)discard;
    wefti_rpc_watch_down(ep);
    wefti_rpc_calls_down(ep, why);
    wefti_rpc_requests_down(ep);
    wefti_map_free(&rpc_ep(ep)->may); /* who comes back is judged anew */
}

static void ep_free(weft_ep_t *ep)
{
    rpc_ep_t *e = rpc_ep(ep);
    wefti_rpc_watch_down(ep);
    wefti_slots_free(&e->calls);
    wefti_slots_free(&e->binds);
    wefti_map_free(&e->requests);
    wefti_map_free(&e->may);
}

static const wefti_traffic_t traffic = {
    .first_kind = 1,
    .last_kind = 0,
    .capability = WEFT_CAN_RPC,
    .ep_state_size = sizeof(rpc_ep_t),
    .ep_new = ep_new,
    .ep_up = wefti_rpc_calls_up,
    .ep_down = ep_down,
    .ep_free = ep_free,
};

static void shutdown(weft_runtime_t *rt)
{
    wefti_rpc_clients_shutdown(rpc_state(rt));
    wefti_rpc_services_shutdown(rpc_state(rt));
}

static bool idle(weft_runtime_t *rt)
{
    return !atomic_load(&rpc_state(rt)->under_way);
}

static void room_free(weft_runtime_t *rt)
{
    rpc_state_t *rs = rpc_state(rt);
    wefti_rpc_clients_free(rs);
    wefti_rpc_strays_free(rs);
    wefti_rpc_services_free(rs);
    wefti_rpc_requests_spare(rs);
    wefti_pool_leave(rs->pool); /* it stays as long as programs have replies and items from it */
    pthread_mutex_destroy(&rs->lock);
    pthread_mutex_destroy(&rs->finding);
    wefti_free(rs);
}

static const wefti_room_t room = {shutdown, idle, room_free, NULL};

weft_status_t wefti_rpc_attach(weft_runtime_t *rt)
{
    rpc_state_t *rs = (rpc_state_t *)wefti_calloc(1, sizeof *rs);
    if (!rs)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the calls of a runtime");
    rs->rt = rt;
    pthread_mutex_init(&rs->lock, NULL);
    pthread_mutex_init(&rs->finding, NULL);
    wefti_list_init(&rs->strays);
    wefti_list_init(&rs->services);
    wefti_list_init(&rs->clients);
    rt->fabric->ops->random(rt->fabric, &rs->random, sizeof rs->random);
    wefti_runtime_attach(rt, WEFTI_ROOM_RPC, &room, rs);
    wefti_conn_traffic(rt, WEFTI_TRAFFIC_RPC, &traffic);
    rs->call.fn = wefti_rpc_handed_in;
    weft_status_t st = wefti_rpc_rules_open(rs);
    if (!st)
        st = wefti_rpc_reflect(rs);
    if (!st)
        st = wefti_am_handle(rt, RPC_AM_TO_SERVER, wefti_rpc_to_server, rs, &rs->handle_op[0]);
    return st ? st : wefti_am_handle(rt, RPC_AM_TO_CLIENT, wefti_rpc_to_client, rs, &rs->handle_op[1]);
}
