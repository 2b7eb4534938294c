/* store/store.c - the room: what it tells conn and core about itself.
 *
 * It has no records of its own: requests and replies are active messages, and to conn it is traffic that only wants to know when endpoints
 * come and go. */
#include "store/store.h"

#include "store/mirror_state.h"
#include "store/state.h"

static void ep_new(weft_ep_t *ep)
{
    store_ep_t *e = store_ep(ep);
    wefti_slots_init(&e->asked, UINT32_MAX - 1);
    wefti_list_init(&e->waiting);
    wefti_list_init(&e->sent);
    wefti_list_init(&e->stores);
    wefti_list_init(&e->clients);
}

static void ep_up(weft_ep_t *ep)
{
    store_ep(ep)->owed = 0;
    wefti_store_asks_up(ep);
}

static void ep_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    store_state_t *ss = store_state(ep->rt);
    (void)discard;
    wefti_store_stores_down(ep, why);
    wefti_store_asks_down(ep, why);
    pthread_mutex_lock(&ss->lock);
    wefti_store_clients_down(ep);
    pthread_mutex_unlock(&ss->lock);
}

static void ep_free(weft_ep_t *ep)
{
    wefti_slots_free(&store_ep(ep)->asked);
}

static const wefti_traffic_t traffic = {
    .first_kind = 1,
    .last_kind = 0,
    .capability = WEFT_CAN_STORE,
    .ep_state_size = sizeof(store_ep_t),
    .ep_new = ep_new,
    .ep_up = ep_up,
    .ep_down = ep_down,
    .ep_free = ep_free,
};

/* --- the room, for core -------------------------------------------------------------------------------------------------------- */

static void shutdown(weft_runtime_t *rt)
{
    wefti_mirror_shutdown(rt);
    wefti_store_stores_shutdown(store_state(rt));
    wefti_store_server_shutdown(store_state(rt));
}

static bool idle(weft_runtime_t *rt)
{
    return !atomic_load(&store_state(rt)->under_way) && wefti_mirror_idle(rt);
}

static void room_free(weft_runtime_t *rt)
{
    store_state_t *ss = store_state(rt);
    wefti_store_stores_free(ss);
    wefti_store_server_gone(ss);
    pthread_mutex_destroy(&ss->lock);
    wefti_free(ss);
}

static const wefti_room_t room = {shutdown, idle, room_free, NULL};

weft_status_t wefti_store_attach(weft_runtime_t *rt)
{
    store_state_t *ss = (store_state_t *)wefti_calloc(1, sizeof *ss);
    if (!ss)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the stores of a runtime");
    ss->rt = rt;
    pthread_mutex_init(&ss->lock, NULL);
    wefti_list_init(&ss->mirrors);
    wefti_list_init(&ss->stores);
    rt->fabric->ops->random(rt->fabric, ss->secret, sizeof ss->secret);
    wefti_runtime_attach(rt, WEFTI_ROOM_STORE, &room, ss);
    wefti_conn_traffic(rt, WEFTI_TRAFFIC_STORE, &traffic);
    weft_status_t st = weft_am_handle(rt, STORE_AM_REQUEST, wefti_store_request, ss, &ss->handle_op[0]);
    return st ? st : weft_am_handle(rt, STORE_AM_REPLY, wefti_store_replied, ss, &ss->handle_op[1]);
}
