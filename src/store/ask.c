/* store/ask.c - requests of a client: from the post to the reply.
 *
 *     NEW --> WAITING --the endpoint is up, and fewer than STORE_ASKS are sent--> SENT --reply--> answered
 *
 * client.c, block.c and list.c handle the answers. A cancel or a deadline completes the operation at once. If the
 * request was sent, it stays without an operation until its reply comes; what the reply gives (a block, a lease) is given
 * back. When the endpoint goes down, all of its requests end.
 *
 * Promise: every operation completes once, also if the server never answers. The memory of a request is freed when neither the
 * network nor an operation of this library uses it. tests/sim/store_life.c, tests/fault/store_kill.c. */
#include "store/state.h"

/* --- one request  ----------------------------------------------------------------------------------------------------- */

store_ask_t *wefti_store_ask_new(weft_store_t *store, uint8_t kind, const char *name)
{
    store_ask_t *a = (store_ask_t *)wefti_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->kind = a->q.kind = kind;
    a->q.name = a->names[0];
    a->q.after = a->names[1];
    if (name) {
        a->q.name_len = (uint8_t)strlen(name);
        memcpy(a->names[0], name, a->q.name_len);
    }
    if (store)
        wefti_store_ask_of(a, store);
    return a;
}

void wefti_store_ask_of(store_ask_t *a, weft_store_t *store)
{
    a->store = store;
    memcpy(a->q.client, store->id, sizeof store->id);
    atomic_fetch_add_explicit(&store->refs, 1, memory_order_relaxed);
}

weft_status_t wefti_store_ask_for(weft_store_t *store, const weft_op_t *op, uint8_t kind, const char *name, store_ask_t **ask_out)
{
    if (!op)
        return weft_fail(WEFT_ERR_INVALID, "the operation is NULL");
    weft_status_t st = wefti_store_enter(store);
    if (st)
        return st;
    *ask_out = wefti_store_ask_new(store, kind, name);
    wefti_store_leave(store);
    return *ask_out ? WEFT_OK : weft_fail(WEFT_ERR_NOMEM, "no memory for a request");
}

weft_status_t wefti_store_ask_name(weft_store_t *store, uint8_t kind, const char *name, const char *what, weft_op_t *op)
{
    store_ask_t *a;
    weft_status_t st = wefti_store_check_name(name, what);
    if (!st)
        st = wefti_store_ask_for(store, op, kind, name, &a);
    return st ? st : wefti_store_ask_go(a, op);
}

void wefti_store_ask_drop(store_ask_t *a)
{
    if (a->block)
        wefti_store_block_unref(a->block);
    if (a->store)
        wefti_store_unref(a->store);
    wefti_free(a->reach);
    wefti_free(a);
}

static void let_go(store_ask_t *a)
{
    if (a->over && !a->sending && !a->owning && a->state != ASK_ATTACHING)
        wefti_store_ask_drop(a);
}

void wefti_store_ask_end(store_ask_t *a, weft_status_t status)
{
    weft_op_t *op = a->op;
    uint64_t sentence = a->sentence;
    a->op = NULL;
    a->over = true;
    if (a->renewal)
        a->store->renewing = false;
    let_go(a);
    if (op)
        weft_ext_op_complete(op, status, sentence);
}

static void own_done(weft_op_t *op, void *user)
{
    store_ask_t *a = (store_ask_t *)user;
    (void)op;
    store_end(a->store->ss);
    a->owning = false;
    let_go(a);
}

/* --- sending  --------------------------------------------------------------------------------------------------------- */

static bool can_store(weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    return !weft_ep_get_info(ep, &info) && info.peer_capabilities & WEFT_CAN_STORE;
}

/* Stop waiting for its reply. */
static void unsend(store_ask_t *a, weft_ep_t *ep)
{
    wefti_slots_remove(&store_ep(ep)->asked, a->id);
    wefti_list_remove(&a->link);
    a->state = ASK_NEW;
}

static void sent(weft_op_t *op, void *user)
{
    store_ask_t *a = (store_ask_t *)user;
    weft_status_t st = op->status;
    store_end(a->store->ss);
    a->sending = false;
    if (st && a->state == ASK_SENT) { /* the endpoint may be down, and will say so; or there was no memory for it */
        weft_ep_t *ep = wefti_store_ep(a->store);
        if (ep) {
            unsend(a, ep);
            wefti_store_ask_end(a, st);
            wefti_store_asks_flush(ep);
            return;
        }
    }
    if (!a->repeat) {
        let_go(a);
        return;
    }
    a->repeat = false;
    if (a->op)
        wefti_store_ask_send(a);
    else
        wefti_store_ask_end(a, WEFT_ERR_CANCELLED); /* it was cancelled meanwhile */
}

static weft_status_t transmit(store_ask_t *a, weft_ep_t *ep)
{
    store_ep_t *e = store_ep(ep);
    if (a->kind == STORE_OPEN && !can_store(ep)) {
        a->sentence = weft_ext_sentence(ep, "its program cannot serve memory: libweft-elements is not in it");
        return WEFT_ERR_UNSUPPORTED;
    }
    weft_status_t st = wefti_slots_add(&e->asked, a, &a->id);
    if (st)
        return st;
    a->q.id = a->id;
    size_t n = wefti_store_put_request(&a->q, a->bytes, sizeof a->bytes);
    a->am.fn = sent;
    a->am.user = a;
    a->sending = true;
    store_begin(a->store->ss);
    st = weft_am_send(ep, STORE_AM_REQUEST, a->bytes, n, NULL, 0, &a->am);
    if (st) {
        store_end(a->store->ss);
        a->sending = false;
        wefti_slots_remove(&e->asked, a->id);
        return st;
    }
    a->state = ASK_SENT;
    wefti_list_push_back(&e->sent, &a->link);
    return WEFT_OK;
}

void wefti_store_asks_flush(weft_ep_t *ep)
{
    store_ep_t *e = store_ep(ep);
    while (weft_ep_get_state(ep) == WEFT_EP_UP && e->asked.taken < STORE_ASKS && !wefti_list_empty(&e->waiting)) {
        store_ask_t *a = wefti_container_of(wefti_list_pop(&e->waiting), store_ask_t, link);
        a->state = ASK_NEW;
        weft_status_t st = transmit(a, ep);
        if (st)
            wefti_store_ask_end(a, st);
    }
}

void wefti_store_ask_send(store_ask_t *a)
{
    weft_ep_t *ep = wefti_store_ep(a->store);
    weft_status_t st = ep ? weft_ext_ep_usable(ep) : (weft_status_t)atomic_load(&a->store->state);
    if (st || !ep) {
        wefti_store_ask_end(a, st ? st : WEFT_ERR_CLOSED);
        return;
    }
    a->state = ASK_WAITING;
    wefti_list_push_back(&store_ep(ep)->waiting, &a->link);
    wefti_store_asks_flush(ep);
}

void wefti_store_ask_again(store_ask_t *a)
{
    if (a->sending)
        a->repeat = true;
    else
        wefti_store_ask_send(a);
}

/* --- operations  ------------------------------------------------------------------------------------------------------ */

static store_ask_t *ask_of(weft_op_t *op)
{
    return *weft_ext_scratch(op, store_ask_t *);
}

static weft_status_t start(weft_op_t *op)
{
    store_ask_t *a = ask_of(op);
    weft_store_t *store = a->store;
    bool must = a->kind == STORE_CLOSE || a->kind == STORE_FREE; /* these end something here, whatever the server answers */
    weft_status_t st = must ? WEFT_OK : weft_ext_op_may_start(op);
    if (!st)
        st = weft_ext_op_track(op);
    if (st && !must)
        return st;
    weft_status_t state = (weft_status_t)atomic_load_explicit(&store->state, memory_order_relaxed);
    if (!state)
        state = wefti_store_ep(store) ? weft_ext_ep_usable(store->ep) : WEFT_ERR_CLOSED;
    if (state && !must)
        return weft_fail(state, a->kind == STORE_OPEN ? "the endpoint is closed or lost; open another one"
                                                      : "the store cannot be used any more; open it again");
    a->op = op;
    if (a->kind == STORE_CLOSE)
        wefti_store_closing(store);
    if (state)
        wefti_store_ask_end(a, state);
    else
        wefti_store_ask_send(a);
    return WEFT_OK;
}

static void failed(weft_op_t *op, weft_status_t st)
{
    ask_of(op)->op = op;
    wefti_store_ask_end(ask_of(op), st);
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    store_ask_t *a = ask_of(op);
    uint64_t sentence = 0;
    a->op = NULL;
    if (a->state == ASK_WAITING) {
        wefti_list_remove(&a->link);
        a->state = ASK_NEW;
        wefti_store_ask_end(a, why);
    } else if (a->state == ASK_ATTACHING) {
        weft_op_cancel(&a->attach);
    } else if (a->state == ASK_SENT && why == WEFT_ERR_TIMEOUT && wefti_store_ep(a->store)) {
        sentence = weft_ext_sentence(wefti_store_ep(a->store), "the memory server has not answered in time");
    }
    weft_ext_op_complete(op, why, sentence);
}

static const weft_op_kind_t ask_kind = {.name = "store request", .start = start, .cancel = cancel, .failed = failed};
static const weft_op_kind_t own_kind = {
    .name = "store request", .start = start, .cancel = cancel, .failed = failed, .by_post = true};

static weft_status_t post(store_ask_t *a, weft_op_t *op)
{
    store_state_t *ss = a->store->ss;
    const weft_op_kind_t *kind = op ? &ask_kind : &own_kind;
    if (!op) {
        op = &a->own;
        op->fn = own_done;
        op->user = a;
        a->owning = true;
        store_begin(ss);
    }
    weft_status_t st = weft_ext_op_prepare(ss->rt, op, kind);
    if (!st) {
        *weft_ext_scratch(op, store_ask_t *) = a;
        st = weft_ext_op_start(op);
    }
    if (st && a->owning) {
        a->owning = false;
        store_end(ss);
    }
    return st;
}

weft_status_t wefti_store_ask_post(store_ask_t *a, weft_op_t *op)
{
    weft_runtime_t *rt = a->store->rt;
    weft_status_t st = weft_ext_enter(rt); /* so that its state stays */
    if (st)
        return st;
    st = wefti_store_there(a->store);
    if (!st)
        st = post(a, op); /* it is gone then, perhaps */
    weft_ext_leave(rt);
    return st;
}

weft_status_t wefti_store_ask_go(store_ask_t *a, weft_op_t *op)
{
    weft_status_t st = wefti_store_ask_post(a, op);
    if (st)
        wefti_store_ask_drop(a);
    return st;
}

weft_status_t wefti_store_replica_ask(weft_store_t *store, const char *name, const store_request_t *q,
                                      wefti_replica_answer_t *out, weft_op_t *op)
{
    store_ask_t *a = wefti_store_ask_new(store, q->kind, name);
    if (!a)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a request");
    a->q.len = q->len;
    a->q.epoch = q->epoch;
    a->q.stamp = q->stamp;
    a->q.rec = q->rec;
    memcpy(a->q.writer, q->writer, sizeof q->writer);
    a->out = out;
    return wefti_store_ask_go(a, op);
}

/* --- what the endpoint says  ------------------------------------------------------------------------------------------ */

void wefti_store_replied(weft_am_t *am, void *user)
{
    weft_ep_t *ep = am->ep;
    store_reply_t p;
    (void)user;
    if (am->len || !wefti_store_get_reply(am->header, am->header_len, &p)) {
        weft_ext_ep_break(ep, WEFT_ERR_PROTOCOL, "a reply of a store that is none");
        return;
    }
    store_ask_t *a = (store_ask_t *)wefti_slots_get(&store_ep(ep)->asked, p.id);
    if (!a) /* of a connection before this one */
        return;
    if (a->kind != p.kind) {
        weft_ext_ep_break(ep, WEFT_ERR_PROTOCOL, "a reply of a store to something else");
        return;
    }
    unsend(a, ep);
    if (p.reason && a->op)
        a->op->reason = p.reason;
    if (p.flags & STORE_LEASE_OVER)
        atomic_store(&a->store->state, WEFT_ERR_STALE);
    if (p.status && a->op)
        a->sentence = wefti_store_refusal(a, ep, &p);
    wefti_store_answer(a, &p);
    wefti_store_asks_flush(ep);
}

void wefti_store_asks_down(weft_ep_t *ep, weft_status_t why)
{
    store_ep_t *e = store_ep(ep);
    for (wefti_list_t *l; (l = wefti_list_first(&e->sent));) {
        store_ask_t *a = wefti_container_of(l, store_ask_t, link);
        unsend(a, ep);
        wefti_store_ask_end(a, why);
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&e->waiting));) {
        store_ask_t *a = wefti_container_of(l, store_ask_t, link);
        a->state = ASK_NEW;
        wefti_store_ask_end(a, why);
    }
}

/* --- checks of what the program gave  --------------------------------------------------------------------------------- */

weft_status_t wefti_store_check_name(const char *name, const char *what)
{
    if (!name)
        return weft_fail(WEFT_ERR_INVALID, "the name of %s is NULL", what);
    size_t n = strnlen(name, WEFT_RMA_NAME_MAX + 1);
    if (!wefti_store_name_ok(name, n))
        return weft_fail(WEFT_ERR_INVALID, "the name of %s is 1 to %u bytes of UTF-8 without control characters", what,
                         WEFT_RMA_NAME_MAX);
    return WEFT_OK;
}
