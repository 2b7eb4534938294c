/* store/store.c - the room as an extension of libweft: its state per runtime and per endpoint.
 *
 * Requests and replies are active messages. Every shard of a runtime has a state: a client's store belongs to the shard of its
 * endpoint. The server and the mirrors are in the head's. From weft/extend.h the room has to know when endpoints come and go and
 * when the runtime closes. It is registered when the library is loaded, so that every runtime of the program answers requests,
 * also one that serves nothing. */
#include "store/store.h"

#include "store/mirror_state.h"
#include "store/state.h"

static void ep_new(weft_ep_t *ep, void *state)
{
    store_ep_t *e = (store_ep_t *)state;
    (void)ep;
    wefti_slots_init(&e->asked, UINT32_MAX - 1);
    wefti_list_init(&e->waiting);
    wefti_list_init(&e->sent);
    wefti_list_init(&e->stores);
    wefti_list_init(&e->clients);
}

static void ep_up(weft_ep_t *ep, void *state)
{
    ((store_ep_t *)state)->owed = 0;
    wefti_store_asks_flush(ep);
}

static void ep_down(weft_ep_t *ep, void *state, weft_status_t why)
{
    store_state_t *ss = store_state(weft_ep_runtime(ep)); /* the head's */
    (void)state;
    wefti_store_stores_down(ep, why);
    wefti_store_asks_down(ep, why);
    pthread_mutex_lock(&ss->lock);
    wefti_store_clients_down(ep);
    pthread_mutex_unlock(&ss->lock);
}

static void ep_free(weft_ep_t *ep, void *state)
{
    (void)ep;
    wefti_slots_free(&((store_ep_t *)state)->asked);
}

/* Of several shards the others set theirs a moment later, before any peer can be there. */
static void handles(weft_op_t *op, void *user)
{
    (void)user;
    if (op->status && op->status != WEFT_ERR_CLOSED)
        weft_log(WEFT_LOG_ERROR, "not every shard can serve and reach memory: %s", weft_op_error(op));
}

static weft_status_t set_handlers(store_state_t *ss)
{
    ss->handle_op[0].fn = ss->handle_op[1].fn = handles;
    weft_status_t st = weft_am_handle(ss->rt, STORE_AM_REQUEST, wefti_store_request, ss, &ss->handle_op[0]);
    return st ? st : weft_am_handle(ss->rt, STORE_AM_REPLY, wefti_store_replied, ss, &ss->handle_op[1]);
}

static weft_status_t open(weft_runtime_t *rt, void *state)
{
    store_state_t *ss = (store_state_t *)state;
    ss->rt = rt;
    ss->head = rt == weft_ext_head(rt) ? ss : store_state(weft_ext_head(rt));
    ss->break_call.fn = wefti_store_break_called;
    wefti_list_init(&ss->alarms);
    wefti_list_init(&ss->mirrors);
    wefti_list_init(&ss->stores);
    weft_ext_random(rt, ss->secret, sizeof ss->secret);
    weft_ext_random(rt, &ss->rng, sizeof ss->rng);
    weft_status_t st = WEFT_OK;
    if (ss->head == ss)
        st = set_handlers(ss);
    if (st)
        return st;
    pthread_mutex_init(&ss->lock, NULL);
    ss->head->shards[weft_runtime_shard(rt)] = ss;
    return WEFT_OK;
}

static void shutdown(weft_runtime_t *rt, void *state)
{
    wefti_mirror_shutdown(rt);
    wefti_store_stores_shutdown((store_state_t *)state);
    wefti_store_server_shutdown((store_state_t *)state);
}

static bool idle(weft_runtime_t *rt, void *state)
{
    store_state_t *ss = (store_state_t *)state;
    (void)rt;
    return !atomic_load(&ss->under_way) && wefti_list_empty(&ss->mirrors);
}

static void closed(weft_runtime_t *rt, void *state)
{
    store_state_t *ss = (store_state_t *)state;
    (void)rt;
    wefti_store_stores_free(ss);
    wefti_store_alarms_free(ss);
    wefti_store_server_gone(ss);
    pthread_mutex_destroy(&ss->lock);
}

const weft_ext_t wefti_store_ext = {
    .size = sizeof wefti_store_ext,
    .name = "the store",
    .capability = WEFT_CAN_STORE,
    .state_size = sizeof(store_state_t),
    .ep_state_size = sizeof(store_ep_t),
    .shards = true,
    .open = open,
    .shutdown = shutdown,
    .idle = idle,
    .closed = closed,
    .ep_new = ep_new,
    .ep_up = ep_up,
    .ep_down = ep_down,
    .ep_free = ep_free,
};

__attribute__((constructor)) void wefti_store_register(void)
{
    if (weft_ext_register(&wefti_store_ext))
        weft_log(WEFT_LOG_ERROR, "libweft-elements is of another version than libweft, and does nothing: %s", weft_last_error());
}

weft_status_t wefti_store_no_state(const weft_runtime_t *rt)
{
    return weft_fail(WEFT_ERR_STATE, "the runtime \"%s\" was opened before libweft-elements was loaded", weft_runtime_name(rt));
}
