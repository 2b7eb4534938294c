/* store/client.c - stores: a client's lease at a server.
 *
 *     (open) --> OK --lease over--> STALE
 *                 \--endpoint down--> PEER, CLOSED ...        state: what its operations end with from then on
 *
 * While the runtime is driven, the store renews its lease three times per lease, with a request that nobody waits for. That is
 * how it learns that the lease is over; the server keeps the lease anyway while the endpoint is up. A close and a leave tell the
 * server, and the lease runs from then on. The store is freed with its last request and its last block, since blocks may be
 * dropped later.
 *
 * If an open was cancelled and succeeds all the same, its lease is given back, unless the program knows its id.
 *
 * tests/wire/store_basic.c, tests/sim/store_life.c. */
#include <sodium.h>

#include "store/state.h"

#define LEASE_MIN WEFT_MILLISECOND

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_store_t, rt);

/* --- life  ------------------------------------------------------------------------------------------------------------ */

void wefti_store_unref(weft_store_t *store)
{
    if (atomic_fetch_sub_explicit(&store->refs, 1, memory_order_acq_rel) != 1)
        return;
    wefti_free(store->bye);
    wefti_handle_free(&handles, store);
}

weft_status_t wefti_store_there(const weft_store_t *store)
{
    weft_status_t st = weft_ext_check(store->rt);
    if (st)
        return st;
    return weft_ext_use(store->rt) == store->rt_use ? WEFT_OK : weft_fail(WEFT_ERR_CLOSED, "the runtime of the store is closed");
}

weft_status_t wefti_store_enter(const weft_store_t *store)
{
    if (!store)
        return weft_fail(WEFT_ERR_INVALID, "the store is NULL");
    if (!wefti_handle_enter(&((weft_store_t *)(uintptr_t)store)->handle))
        return weft_fail(WEFT_ERR_CLOSED, "the store was closed");
    weft_status_t st = wefti_store_there(store);
    if (st)
        wefti_store_leave(store);
    return st;
}

weft_status_t wefti_store_hold(weft_store_t *store, const weft_runtime_t *rt)
{
    weft_status_t st = wefti_store_enter(store);
    if (st)
        return st;
    if (weft_ext_head(store->rt) == rt)
        atomic_fetch_add_explicit(&store->refs, 1, memory_order_relaxed);
    else
        st = weft_fail(WEFT_ERR_INVALID, "the store is of another runtime than the mirror");
    wefti_store_leave(store);
    return st;
}

/* It is closed, and the program has no use for it any more: nobody inside takes a reference that was not there when the last
 * one goes. */
void wefti_store_closing(weft_store_t *store)
{
    wefti_handle_quiet(&store->handle);
    weft_ext_timer_stop(store->rt, &store->renew);
    wefti_list_remove(&store->all_link);
    if (wefti_list_linked(&store->ep_link))
        wefti_list_remove(&store->ep_link);
    wefti_store_unref(store); /* the program's; the request has one */
}

/* One that is not among those of its endpoint (it is not open yet; or the program has closed it or left it, and blocks and
 * mirrors still have it) is not told when that goes: it is looked for. */
weft_ep_t *wefti_store_ep(weft_store_t *store)
{
    if (store->ep && !wefti_list_linked(&store->ep_link) && weft_ep_find(store->rt, store->ep_id) != store->ep)
        store->ep = NULL;
    return store->ep;
}

weft_ep_t *wefti_store_find_ep(const weft_store_t *store)
{
    int32_t state = atomic_load(&store->state);
    return state && state != WEFT_ERR_STALE ? NULL : weft_ep_find(store->rt, store->ep_id);
}

void wefti_store_stores_down(weft_ep_t *ep, weft_status_t why)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&store_ep(ep)->stores));) {
        weft_store_t *store = wefti_container_of(l, weft_store_t, ep_link);
        int32_t ok = WEFT_OK;
        weft_ext_timer_stop(store->rt, &store->renew);
        atomic_compare_exchange_strong(&store->state, &ok, (int32_t)why);
        store->ep = NULL;
    }
}

void wefti_store_stores_shutdown(store_state_t *ss)
{
    wefti_list_each(l, &ss->stores)
        weft_ext_timer_stop(ss->rt, &wefti_container_of(l, weft_store_t, all_link)->renew);
}

/* Those that the program did not close. */
void wefti_store_stores_free(store_state_t *ss)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&ss->stores));) {
        weft_store_t *store = wefti_container_of(l, weft_store_t, all_link);
        wefti_handle_shut(&store->handle);
        wefti_store_unref(store);
    }
}

/* --- the lease  ------------------------------------------------------------------------------------------------------- */

static weft_status_t renew_later(weft_store_t *store)
{
    if (store->manual || atomic_load(&store->state))
        return WEFT_OK;
    return weft_ext_timer_set(store->rt, &store->renew, weft_now(store->rt) + store->lease_ns / 3);
}

static void renew_due(weft_ext_timer_t *t)
{
    weft_store_t *store = wefti_container_of(t, weft_store_t, renew);
    store_ask_t *a = store->renewing ? NULL : wefti_store_ask_new(store, STORE_RENEW, NULL);
    (void)renew_later(store); /* without memory now, try again the next time */
    if (!a)
        return;
    store->renewing = true;
    a->renewal = true;
    wefti_store_ask_send(a);
}

/* --- replies  --------------------------------------------------------------------------------------------------------- */

void wefti_store_give_back(weft_store_t *store, uint8_t kind, uint64_t block)
{
    store_ask_t *a = wefti_store_ask_new(store, kind, NULL);
    if (!a)
        return; /* the lease runs out, and its blocks that are not shared go with it */
    a->q.block = block;
    wefti_store_ask_send(a);
}

static void opened(store_ask_t *a, const store_reply_t *p)
{
    weft_store_t *store = a->store;
    weft_op_t *op = a->op;
    if (p->status || !op) {
        if (!p->status && store->fresh)
            wefti_store_give_back(store, STORE_CLOSE, 0);
        wefti_store_ask_end(a, p->status);
        return;
    }
    /* a lower value would let a server make us send renewals at any rate */
    store->lease_ns = p->lease_ns > LEASE_MIN ? p->lease_ns : LEASE_MIN;
    memcpy(store->server, p->server, sizeof store->server);
    weft_status_t st = renew_later(store);
    if (st) {
        if (store->fresh)
            wefti_store_give_back(store, STORE_CLOSE, 0);
        wefti_store_ask_end(a, st);
        return;
    }
    atomic_fetch_add_explicit(&store->refs, 1, memory_order_relaxed);
    wefti_list_push_back(&store->ss->stores, &store->all_link);
    wefti_list_push_back(&store_ep(store->ep)->stores, &store->ep_link);
    op->buf = store;
    op->from = store->ep_id;
    wefti_store_ask_end(a, WEFT_OK);
}

static void queried(store_ask_t *a, const store_reply_t *p)
{
    weft_store_stats_t *out = (weft_store_stats_t *)a->out;
    weft_store_stats_t all = WEFT_STORE_STATS_INIT;
    if (!p->status && a->op) {
        memcpy(&all.bytes, p->stats, sizeof p->stats);
        wefti_opts_write(out, &all, sizeof all);
    }
    wefti_store_ask_end(a, p->status);
}

static void replica_answered(store_ask_t *a, const store_reply_t *p)
{
    wefti_replica_answer_t *out = (wefti_replica_answer_t *)a->out;
    if (a->op && p->flags & STORE_BODY) {
        out->rec = p->rec;
        out->stamp = p->stamp;
        out->bytes = p->len;
        out->key_len = p->status ? 0 : p->key_len;
        memcpy(out->key, p->key, out->key_len);
    }
    wefti_store_ask_end(a, p->status);
}

/* Those whose reply says more than whether it was done. */
static void (*const answers[STORE_KINDS])(store_ask_t *a, const store_reply_t *p) = {
    [STORE_OPEN] = opened,
    [STORE_QUERY] = queried,
    [STORE_ALLOC] = wefti_store_block_answer,
    [STORE_FIND] = wefti_store_block_answer,
    [STORE_EXTEND] = wefti_store_block_answer,
    [STORE_LIST] = wefti_store_list_answer,
    [STORE_R_MAKE] = replica_answered,
    [STORE_R_GET] = replica_answered,
    [STORE_R_SET] = replica_answered,
    [STORE_R_RENEW] = replica_answered,
    [STORE_R_SEAL] = replica_answered,
};

void wefti_store_answer(store_ask_t *a, const store_reply_t *p)
{
    if (answers[a->kind])
        answers[a->kind](a, p);
    else
        wefti_store_ask_end(a, p->status);
}

/* --- calls  ----------------------------------------------------------------------------------------------------------- */

void wefti_store_random_id(store_state_t *ss, uint8_t id_out[WEFT_STORE_ID])
{
    uint64_t n = atomic_fetch_add(&ss->ids, 1);
    crypto_generichash(id_out, WEFT_STORE_ID, (const uint8_t *)&n, sizeof n, ss->secret, sizeof ss->secret);
}

static weft_status_t open_on(store_state_t *ss, weft_ep_t *ep, const weft_store_opts_t *o, weft_op_t *op)
{
    weft_store_t *store = (weft_store_t *)wefti_handle_new(&handles);
    store_ask_t *bye = wefti_store_ask_new(NULL, STORE_CLOSE, NULL);
    if (!store || !bye)
        goto err_store;
    store->rt = ss->rt;
    store->rt_use = weft_ext_use(ss->rt);
    store->ss = ss;
    store->ep = ep;
    store->ep_id = weft_ep_id(ep);
    store->manual = o->manual;
    store->fresh = !o->id;
    store->renew.fn = renew_due;
    if (o->id)
        memcpy(store->id, o->id, sizeof store->id);
    else
        wefti_store_random_id(store->ss, store->id);
    store_ask_t *a = wefti_store_ask_new(store, STORE_OPEN, NULL); /* has the only reference */
    if (!a)
        goto err_store;
    store->bye = bye;
    a->q.lease_ns = o->lease_ns;
    a->q.flags = o->manual ? STORE_TIMED : 0;
    return wefti_store_ask_go(a, op);

err_store:
    wefti_handle_free(&handles, store);
    wefti_free(bye);
    return weft_fail(WEFT_ERR_NOMEM, "no memory for a store");
}

weft_status_t weft_store_open(weft_ep_t *ep, const weft_store_opts_t *opts, weft_op_t *op)
{
    weft_store_opts_t o;
    if (!ep || !op)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", ep ? "the operation" : "the endpoint");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_store_opts_t");
    if (st)
        return st;
    weft_runtime_t *rt = weft_ext_ep_shard(ep); /* what the endpoint's store does, its driver does */
    st = weft_ext_enter(rt);
    if (st)
        return st;
    store_state_t *ss = store_state(rt);
    if (weft_ep_get_state(ep) == WEFT_EP_GONE)
        st = weft_fail(WEFT_ERR_CLOSED, "the endpoint %llu was closed", (unsigned long long)weft_ep_id(ep));
    else
        st = ss ? open_on(ss, ep, &o, op) : wefti_store_no_state(rt);
    weft_ext_leave(rt);
    return st;
}
/* Close the handle, for the one who is first; the runtime stays until weft_ext_leave(store->rt). WEFT_ERR_INVALID, _CLOSED,
 * _FORKED. */
static weft_status_t close_handle(weft_store_t *store)
{
    weft_status_t st = wefti_store_enter(store);
    if (st)
        return st;
    weft_runtime_t *rt = store->rt;
    st = weft_ext_enter(rt);
    if (!st && !wefti_handle_close(&store->handle)) {
        weft_ext_leave(rt);
        st = weft_fail(WEFT_ERR_CLOSED, "the store is being closed already");
    }
    wefti_store_leave(store);
    return st;
}

/* flags: of the last request, STORE_LEAVE or none */
static weft_status_t say_bye(weft_store_t *store, uint8_t flags, weft_op_t *op)
{
    weft_status_t st = close_handle(store);
    if (st)
        return st;
    weft_runtime_t *rt = store->rt;
    store_ask_t *bye = store->bye;
    store->bye = NULL;
    wefti_store_ask_of(bye, store);
    bye->q.flags = flags;
    st = wefti_store_ask_post(bye, op);
    if (st) { /* nothing was started: undo */
        bye->store = NULL;
        store->bye = bye;
        wefti_handle_reopen(&store->handle);
        wefti_store_unref(store);
    }
    weft_ext_leave(rt);
    return st;
}

weft_status_t weft_store_close(weft_store_t *store, weft_op_t *op)
{
    return say_bye(store, 0, op);
}

void weft_store_leave(weft_store_t *store)
{
    if (store)
        (void)say_bye(store, STORE_LEAVE, NULL); /* too late: the end of the runtime frees it */
}

weft_status_t weft_store_renew(weft_store_t *store, weft_op_t *op)
{
    store_ask_t *a;
    weft_status_t st = wefti_store_ask_for(store, op, STORE_RENEW, NULL, &a);
    return st ? st : wefti_store_ask_go(a, op);
}

weft_status_t weft_store_get_info(const weft_store_t *store, weft_store_info_t *info_out)
{
    weft_store_info_t all = WEFT_STORE_INFO_INIT;
    if (!store || !info_out || !info_out->size)
        return weft_fail(WEFT_ERR_INVALID, store ? "info goes to a struct made with WEFT_STORE_INFO_INIT" : "the store is NULL");
    weft_status_t st = wefti_store_enter(store);
    if (st)
        return st;
    memcpy(all.id, store->id, sizeof all.id);
    memcpy(all.server, store->server, sizeof all.server);
    all.lease_ns = store->lease_ns;
    all.state = (weft_status_t)atomic_load(&store->state);
    wefti_store_leave(store);
    wefti_opts_write(info_out, &all, sizeof all);
    return WEFT_OK;
}

weft_status_t weft_store_query(weft_store_t *store, weft_store_stats_t *stats_out, weft_op_t *op)
{
    store_ask_t *a;
    if (!stats_out || stats_out->size < sizeof stats_out->size)
        return weft_fail(WEFT_ERR_INVALID, "statistics go to a struct made with WEFT_STORE_STATS_INIT");
    weft_status_t st = wefti_store_ask_for(store, op, STORE_QUERY, NULL, &a);
    if (st)
        return st;
    a->out = stats_out;
    return wefti_store_ask_go(a, op);
}

weft_status_t weft_store_remove(weft_store_t *store, const char *name, weft_op_t *op)
{
    return wefti_store_ask_name(store, STORE_REMOVE, name, "a block to remove", op);
}
