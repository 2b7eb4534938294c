/* rpc/block.c - requests that stay: made, ended early, answered and released from any thread, freed.
 *
 * rpc/serve.h has their states. What other threads ask for is done at once if they can drive, else it is handed in: bits in
 * `work`, and the request on a list (base/mpsc.h) that the driver works off.
 *
 * Promise: whoever claims `answered` brings the request to its end, and nobody else does; it is freed once, when it is over,
 * released, and nothing of ours refers to it. tests/wire/rpc_service.c, tests/wire/rpc_threads.c,
 * tests/fault/rpc_caller_lost.c. */
#include <stddef.h>

#include "rpc/serve.h"

/* --- blocks --------------------------------------------------------------------------------------------------------------- */

static void late(wefti_timer_t *t)
{
    wefti_rpc_request_end(wefti_container_of(t, rpc_request_t, timer), END_LATE);
}

/* The room has nothing more to do with it: what is left is the program's, and can go on any thread. */
static void leave_room(rpc_request_t *r)
{
    wefti_rpc_request_detach(r);
    wefti_list_remove(&r->service_link);
    if (r->in && !(r->in->fetch && r->in->fetch->under_way)) /* else its buffer is held, whatever becomes of the request */
        wefti_rpc_in_charge(r->in, NULL, 0);
    r->share->requests--;
    wefti_rpc_share_put(r->share);
    rpc_count(&r->fn->service->stats.under_way, -1);
    if (r->pub.stream)
        wefti_stream_over(r->pub.stream, WEFT_ERR_CLOSED);
}

static void memory_free(rpc_request_t *r)
{
    wefti_rpc_in_free(r->in);
    if (r->pub.stream)
        wefti_stream_drop(r->pub.stream); /* it is over */
    wefti_rpc_answer_free(r);
    wefti_free(r);
}

static void request_free(rpc_request_t *r)
{
    rpc_function_t *f = r->fn;
    weft_service_t *service = f->service;
    service->busy++; /* until we are done with it */
    leave_room(r);
    memory_free(r);
    wefti_rpc_function_unref(f);
    service->busy--;
    wefti_rpc_service_step(service);
}

/* --- after the runtime ------------------------------------------------------------------------------------------------------ */

static void orphan_left(rpc_request_t *r, uint32_t by)
{
    rpc_function_t *f = r->fn;
    if (!atomic_fetch_or(&r->left, by))
        return;
    memory_free(r);
    wefti_rpc_function_unorphan(f);
}

void wefti_rpc_request_discard(rpc_request_t *r)
{
    rpc_fetch_t *left = r->in ? r->in->fetch : NULL;
    if (left && !left->under_way && left->am) {
        weft_am_release(left->am);
        left->am = NULL;
    }
    leave_room(r);
    if (r->released)
        atomic_store(&r->left, LEFT_BY_PROGRAM);
    orphan_left(r, LEFT_BY_ROOM);
}

void wefti_rpc_handed_in_late(rpc_state_t *rs)
{
    for (wefti_mpsc_node_t *at = wefti_mpsc_take(&rs->handed_in), *next; at; at = next) {
        rpc_request_t *r = wefti_container_of(at, rpc_request_t, handed);
        next = wefti_mpsc_next(at);
        if (atomic_exchange(&r->work, 0) & WORK_RELEASE)
            r->released = true;
    }
}

static void free_if_done(rpc_request_t *r)
{
    if (r->over && r->released && !r->refs && !atomic_load(&r->coming))
        request_free(r);
}

void wefti_rpc_request_unref(rpc_request_t *r)
{
    r->refs--;
    free_if_done(r);
}

void wefti_rpc_request_detach(rpc_request_t *r)
{
    if (!r->ep)
        return;
    if (r->mapped)
        wefti_map_take(&rpc_ep(r->ep)->requests, r->call);
    r->mapped = false;
    wefti_list_remove(&r->ep_link);
    r->ep = NULL;
}

void wefti_rpc_request_over(rpc_request_t *r)
{
    weft_service_t *service = r->fn->service;
    if (r->over)
        return;
    r->over = true;
    wefti_timer_stop(service->rs->rt, &r->timer);
    wefti_rpc_request_detach(r);
    rpc_count(&service->unanswered, -1);
    if (r->pub.stream)
        wefti_stream_over(r->pub.stream, WEFT_ERR_CANCELLED); /* unless its answer was sent */
    rpc_fetch_t *left = r->in ? r->in->fetch : NULL;
    if (left && !left->under_way) { /* arguments that nobody fetched: their caller waits for nothing else any more */
        weft_am_release(left->am);
        left->am = NULL;
    }
    service->busy++;
    free_if_done(r);
    service->busy--;
    wefti_rpc_service_step(service);
}

/* Make a block. NULL: why not is in *no_out, but code 0: the peer broke the rules, and the endpoint fails. */
rpc_request_t *wefti_rpc_block_new(rpc_function_t *f, weft_am_t *am, uint64_t call, uint64_t left_ns, const rpc_where_t *where,
                                   rpc_no_t *no_out, bool *am_gone_out)
{
    weft_service_t *service = f->service;
    rpc_state_t *rs = service->rs;
    rpc_ep_t *e = rpc_ep(am->ep);
    weft_status_t why;
    bool ours = !am->len || am->data || !f->fetch || (where->ext && where->ext->flags & RPC_F_BYTES); /* we bring the data */
    uint64_t cost = sizeof(rpc_request_t) + (f->streams ? wefti_stream_cost() : 0) + wefti_rpc_in_cost(am, where);
    *no_out = rpc_exhausted("there is no memory for the request");
    if (!f->oneway && wefti_map_get(&e->requests, call)) {
        wefti_ep_protocol_error(am->ep, "two calls under one number");
        no_out->code = WEFT_CODE_OK;
        return NULL;
    }
    rpc_share_t *share = wefti_rpc_share(service->budget, am->ep->id);
    if (!share)
        return NULL;
    if (share->requests >= service->peer_requests) {
        no_out->message = "the peer has as many requests under way as one may have: try again later";
        goto err_share;
    }
    if (ours && !am->data)
        cost += am->len;
    if (!wefti_rpc_charge(share, cost, &no_out->message))
        goto err_share;
    rpc_request_t *r = (rpc_request_t *)wefti_calloc(1, sizeof *r);
    if (!r)
        goto err_charge;
    if (!f->oneway && wefti_map_put(&e->requests, call, r))
        goto err_r;
    r->timer.fn = late;
    r->deadline = UINT64_MAX;
    if (left_ns != UINT64_MAX) {
        uint64_t now = wefti_now(rs->rt);
        r->deadline = left_ns < UINT64_MAX - 1 - now ? now + left_ns : UINT64_MAX - 1;
        if (wefti_timer_at(rs->rt, &r->timer, r->deadline))
            goto err_map;
    }
    if (f->streams && wefti_stream_new(rs, rs->rt, f->sig, true, &r->pub.stream))
        goto err_timer;
    r->in = wefti_rpc_in_new(rs, am, where, &why);
    if (!r->in) {
        if (why == WEFT_ERR_PROTOCOL) {
            wefti_ep_protocol_error(am->ep, "arguments that are not what the function's signature says");
            no_out->code = WEFT_CODE_OK;
        }
        goto err_stream;
    }
    *am_gone_out = r->in->fetch;
    r->block = true;
    r->rt = rs->rt;
    r->fn = f;
    r->ep = am->ep;
    r->call = call;
    r->mapped = !f->oneway;
    atomic_init(&r->holds, 1);
    r->pub.args = r->in->values;
    r->pub.n = where->codec->n;
    r->pub.sig = f->sig;
    r->pub.service = service;
    r->pub.from = am->ep->id;
    r->pub.left_ns = left_ns;
    r->pub.fetch_len = ours ? 0 : r->in->room;
    r->share = share;
    share->refs++; /* the arguments' own: what is on its way stays theirs when the request is gone */
    share->requests++;
    wefti_rpc_in_charge(r->in, share, cost);
    f->refs++;
    rpc_count(&service->stats.under_way, 1);
    rpc_count(&service->unanswered, 1);
    wefti_list_push_back(&e->request_list, &r->ep_link);
    wefti_list_push_back(&service->requests, &r->service_link);
    if (r->pub.stream) {
        wefti_stream_limits(r->pub.stream, service->opts.payload_max, service->budget, service->opts.stall_ns);
        wefti_stream_connect(r->pub.stream, am->ep, call, r);
    }
    return r;

err_stream:
    if (r->pub.stream)
        wefti_stream_drop(r->pub.stream);
err_timer:
    wefti_timer_stop(rs->rt, &r->timer);
err_map:
    if (!f->oneway)
        wefti_map_take(&e->requests, call);
err_r:
    wefti_free(r);
err_charge:
    wefti_rpc_uncharge(share, cost);
err_share:
    wefti_rpc_share_put(share);
    return NULL;
}

/* --- ended early ---------------------------------------------------------------------------------------------------------- */

static void tell(rpc_request_t *r)
{
    rpc_state_t *rs = r->fn->service->rs;
    weft_cancel_fn fn = NULL;
    void *user = NULL;
    pthread_mutex_lock(&rs->lock);
    if (r->on_cancel && !r->told && atomic_load(&r->holds)) {
        fn = r->on_cancel;
        user = r->on_cancel_user;
        r->told = true;
    }
    pthread_mutex_unlock(&rs->lock);
    if (fn)
        fn(&r->pub, user);
}

static const char *const end_words[] = {
    [END_CANCELLED] = "the caller cancelled the call",
    [END_LATE] = "the deadline passed",
    [END_PEER] = "the caller is gone",
    [END_CLOSED] = "the service was closed",
};
static const weft_code_t end_codes[] = {
    [END_CANCELLED] = WEFT_CODE_CANCELLED,
    [END_LATE] = WEFT_CODE_DEADLINE_EXCEEDED,
    [END_PEER] = WEFT_CODE_CANCELLED,
    [END_CLOSED] = WEFT_CODE_UNAVAILABLE,
};

void wefti_rpc_request_end(rpc_request_t *r, rpc_end_why_t why)
{
    rpc_function_t *f = r->fn;
    bool begun = !r->fetching, waited = r->fetching;
    if (why == END_PEER)
        wefti_rpc_request_detach(r);
    if (r->over || r->out || atomic_load(&r->cancelled))
        return;
    if (why == END_PEER && r->once && begun)
        return; /* it will be asked for again, over another endpoint */
    r->refs++;
    atomic_store(&r->cancelled, true);
    rpc_count(why == END_LATE ? &f->service->stats.late : &f->service->stats.cancelled, 1);
    if (r->fetching) {
        wefti_rpc_in_free(r->in); /* what is on its way arrives nowhere */
        r->in = NULL;
        r->pub.args = NULL;
        r->pub.n = 0;
        r->fetching = false;
    } else if (f->threads) {
        waited = wefti_rpc_pool_take_back(f->service->pool, r, &begun);
    }
    if (!begun && r->once) {
        wefti_once_forget(&f->service->book, r->once, rpc_request_rt(r)->now);
        r->once = NULL;
        wefti_rpc_service_remember(f->service);
    }
    if (!atomic_exchange(&r->answered, true)) {
        rpc_no_t no = {.ran = begun ? RPC_F_MAYBE : RPC_F_NOT_RUN, .code = end_codes[why], .message = end_words[why]};
        if (why == END_CANCELLED)
            wefti_rpc_request_detach(r); /* nobody wants to hear it, but a repeat may ask */
        wefti_rpc_answer_no(r, &no);
    } else if (r->waiting) {
        rpc_no_t no = {.code = WEFT_CODE_UNAVAILABLE, .message = "the service was closed before its stream was read"};
        wefti_rpc_answer_unheld(r, WEFT_ERR_CANCELLED);
        if (why == END_CLOSED)
            wefti_rpc_answer_no(r, &no); /* else its caller knows */
        wefti_rpc_request_over(r);
    }
    tell(r);
    if (waited)
        wefti_rpc_request_drop(r); /* for who would have run it */
    wefti_rpc_request_unref(r);
}

void wefti_rpc_requests_down(weft_ep_t *ep, weft_status_t why)
{
    rpc_ep_t *e = rpc_ep(ep);
    (void)why;
    for (wefti_list_t *l; (l = wefti_list_first(&e->request_list));)
        wefti_rpc_request_end(wefti_container_of(l, rpc_request_t, ep_link), END_PEER);
}

/* --- from other threads --------------------------------------------------------------------------------------------------- */

static void released(rpc_request_t *r)
{
    r->released = true;
    if (atomic_exchange(&r->answered, true)) {
        free_if_done(r);
        return;
    }
    rpc_no_t no = {.code = WEFT_CODE_INTERNAL, .message = "the function let go of its request without an answer"};
    if (r->fn->oneway)
        wefti_rpc_request_over(r);
    else
        wefti_rpc_answer_no(r, &no);
}

static void do_work(rpc_request_t *r, uint32_t work)
{
    if (work & WORK_ANSWER)
        wefti_rpc_answer_handed_in(r);
    if (work & WORK_LATE)
        wefti_rpc_request_end(r, END_LATE);
    if (work & WORK_TELL)
        tell(r);
    if (work & WORK_RELEASE)
        released(r); /* the last: it may be gone now */
}

void wefti_rpc_hand_in(rpc_request_t *r, uint32_t work)
{
    weft_runtime_t *rt = r->rt, *was;
    bool orphan = atomic_load(&r->left); /* then its memory may be that of a later runtime, which knows nothing of the request */
    if (!orphan && !atomic_load(&r->work) && wefti_enter(rt, &was)) {
        do_work(r, work);
        wefti_leave(rt, was);
        return;
    }
    if (orphan || wefti_join(rt)) { /* there is nobody to do it any more, and nobody to tell */
        if (work & WORK_RELEASE)
            orphan_left(r, LEFT_BY_PROGRAM);
        return;
    }
    rpc_state_t *rs = rpc_state(rt);
    if (!atomic_fetch_or(&r->work, work) && /* else it is on its way already */
        wefti_mpsc_push(&rs->handed_in, &r->handed) == WEFTI_MPSC_FIRST)
        (void)wefti_call_on_driver(rt, &rs->call); /* a runtime that closes takes what is left itself */
    wefti_part(rt);
}

void wefti_rpc_handed_in(wefti_call_t *c)
{
    rpc_state_t *rs = wefti_container_of(c, rpc_state_t, call);
    for (wefti_mpsc_node_t *at = wefti_mpsc_take(&rs->handed_in), *next; at;
         at = next) { /* answers leave in the order they were given */
        rpc_request_t *r = wefti_container_of(at, rpc_request_t, handed);
        next = wefti_mpsc_next(at);
        do_work(r, atomic_exchange(&r->work, 0));
    }
}

void wefti_rpc_request_drop(rpc_request_t *r)
{
    if (atomic_fetch_sub_explicit(&r->holds, 1, memory_order_acq_rel) == 1)
        wefti_rpc_hand_in(r, WORK_RELEASE);
}

/* --- the program's calls -------------------------------------------------------------------------------------------------- */

weft_request_t *weft_request_keep(weft_request_t *request)
{
    rpc_request_t *r = (rpc_request_t *)(void *)request;
    rpc_no_t no;
    bool am_gone = false;
    if (!r)
        return NULL;
    if (!r->block && !r->moved) {
        bool answered = atomic_load_explicit(&r->answered, memory_order_relaxed);
        rpc_request_t *block = wefti_rpc_block_new(r->fn, r->am, r->call, r->pub.left_ns, &r->where, &no, &am_gone);
        if (!block) {
            no.ran = 0; /* it has begun */
            if (!answered)
                (void)wefti_rpc_request_no(r, &no);
            return NULL;
        }
        atomic_store(&block->kept, true);
        block->begun = true;
        r->moved = block;
        if (answered) {
            atomic_store(&block->answered, true);
            wefti_rpc_request_over(block); /* not freed: it is not released */
        } else if (!block->ep->lane || block->fn->service->closing) {
            /* its function has ended the one or the other before it kept it: nobody else ends the request for that any more */
            wefti_rpc_request_end(block, block->ep->lane ? END_CLOSED : END_PEER);
        }
    }
    r = rpc_request(request);
    if (!atomic_exchange(&r->kept, true))
        atomic_fetch_add(&r->holds, 1);
    return &r->pub;
}

void weft_request_release(weft_request_t *request)
{
    if (!request)
        return;
    rpc_request_t *r = rpc_request(request);
    if (r->block && r->kept)
        wefti_rpc_request_drop(r);
}

bool weft_request_cancelled(const weft_request_t *request)
{
    if (!request) /* and nobody waits for it */
        return true;
    rpc_request_t *r = rpc_request(request);
    return r->block && atomic_load(&r->cancelled);
}

void weft_request_on_cancel(weft_request_t *request, weft_cancel_fn fn, void *user)
{
    rpc_request_t *r = request ? rpc_request(request) : NULL;
    if (!r || !r->block)
        return;
    weft_runtime_t *rt = r->rt;
    if (wefti_join(rt))
        return;
    rpc_state_t *rs = rpc_state(rt);
    pthread_mutex_lock(&rs->lock);
    r->on_cancel = fn;
    r->on_cancel_user = user;
    pthread_mutex_unlock(&rs->lock);
    wefti_part(rt);
    if (fn && atomic_load(&r->cancelled))
        wefti_rpc_hand_in(r, WORK_TELL);
}

/* --- arguments that the function fetches itself --------------------------------------------------------------------------- */

typedef struct fetch {
    rpc_request_t *r;
    void *buf;
    size_t cap;
    const weft_mem_kind_t *kind;
} fetch_t;

static void fetch_done(void *user, weft_status_t st)
{
    rpc_request_t *r = (rpc_request_t *)user;
    weft_op_t *op = r->fetch_op;
    r->fetch_op = NULL;
    wefti_op_complete(op, st);
    wefti_rpc_request_unref(r);
}

static weft_status_t fetch_start(weft_op_t *op)
{
    fetch_t *f = wefti_op_scratch(op, fetch_t);
    rpc_request_t *r = f->r;
    op->len = r->pub.fetch_len;
    if (!r->in->missing || r->fetch_op || !r->in->fetch->am)
        return wefti_fail(WEFT_ERR_STATE, "the arguments are here, or on their way, or the request was answered without them");
    weft_status_t st = wefti_op_track(op);
    if (!st)
        st = wefti_rpc_in_fetch(r->in, f->buf, f->cap, f->kind, r->fn->service->opts.stall_ns, fetch_done, r);
    if (st)
        return st;
    r->fetch_op = op;
    r->refs++;
    return WEFT_OK;
}

/* It was posted by a thread that could not drive, and its request was kept for it. */
static weft_status_t fetch_start_inbox(weft_op_t *op)
{
    rpc_request_t *r = wefti_op_scratch(op, fetch_t)->r;
    weft_status_t st = fetch_start(op);
    atomic_fetch_sub(&r->coming, 1);
    free_if_done(r);
    return st;
}

static void fetch_cancel(weft_op_t *op, weft_status_t why)
{
    (void)why;
    weft_op_cancel(&wefti_op_scratch(op, fetch_t)->r->in->fetch->op); /* it ends when nothing writes to the buffer any more */
}

static const wefti_op_kind_t fetch_kind = {.name = "fetch", .start = fetch_start_inbox, .cancel = fetch_cancel};

/* Until it is started nobody but the program has the request, which may release it meanwhile: in on_cancel. */
static weft_status_t fetch_go(rpc_request_t *r, weft_op_t *op)
{
    weft_runtime_t *rt = r->rt, *was;
    weft_status_t st = WEFT_OK;
    bool driver = wefti_enter(rt, &was);
    if (driver && wefti_may_pass_inbox(rt, was)) {
        st = wefti_op_start(op, fetch_start);
    } else {
        atomic_fetch_add(&r->coming, 1);
        st = wefti_op_inbox(op);
        if (st) /* the runtime is closed, and the program has the request */
            atomic_fetch_sub(&r->coming, 1);
    }
    if (driver)
        wefti_leave(rt, was);
    return st;
}

weft_status_t weft_request_fetch(weft_request_t *request, void *buf, size_t cap, const weft_mem_kind_t *kind, weft_op_t *op)
{
    if (!request || !op || !buf)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !request ? "the request" : op ? "the buffer" : "the operation");
    rpc_request_t *r = rpc_request(request);
    if (!r->block || !r->pub.fetch_len)
        return wefti_fail(WEFT_ERR_STATE, "all arguments are here: fetch_len is 0");
    weft_status_t st = wefti_op_prepare(rpc_request_rt(r), op, &fetch_kind);
    if (st)
        return st;
    *wefti_op_scratch(op, fetch_t) = (fetch_t){r, buf, cap, kind};
    return fetch_go(r, op);
}
