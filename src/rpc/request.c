/* rpc/request.c - requests on the heap: made, ended early, handed to the driver by other threads, freed.
 *
 * rpc/serve.h has their states. What another thread asks for is done at once if that thread can drive. Otherwise it becomes bits
 * in `work`, and the request goes onto a list (base/mpsc.h) that the driver works off. While the driver works on a request, it
 * keeps it: a function that answers and returns at once is released together with its answer, and is not handed in twice.
 * respond.c has the program's calls.
 *
 * Promise: whoever claims `answered` brings the request to its end, and nobody else does. It is freed once: when it is over,
 * released, and nothing of ours refers to it. tests/wire/rpc_service.c, tests/wire/rpc_threads.c,
 * tests/fault/rpc_caller_lost.c. */
#include <stddef.h>

#include "rpc/serve.h"

/* Where `in` is, and how long it may be there. */
#define IN_AT ((sizeof(rpc_request_t) + RPC_SMALL + 15) & ~(size_t)15)
#define IN_SPACE (sizeof(rpc_in_t) + 192)
#ifdef __SANITIZE_ADDRESS__ /* it is to see what is used after it was freed */
#define SPARE_MOST 0u
#else
#define SPARE_MOST 256u /* a peer that has so many calls open costs no allocations */
#endif

/* The memory of a request: together with that of its arguments, or, where those are long or not here yet, alone. Not zero. */
static rpc_request_t *memory_new(rpc_state_t *rs, bool whole)
{
    rpc_request_t *r = whole ? rs->spare : NULL;
    if (!r)
        return (rpc_request_t *)wefti_malloc(whole ? IN_AT + IN_SPACE : sizeof *r + RPC_SMALL);
    rs->spare = r->moved;
    rs->spare_n--;
    return r;
}

static void memory_keep(rpc_state_t *rs, rpc_request_t *r)
{
    if (!r->whole || rs->spare_n >= SPARE_MOST) {
        wefti_free(r);
        return;
    }
    r->moved = rs->spare;
    rs->spare = r;
    rs->spare_n++;
}

void wefti_rpc_requests_spare(rpc_state_t *rs)
{
    for (rpc_request_t *r; (r = rs->spare);) {
        rs->spare = r->moved;
        wefti_free(r);
    }
}

static void late(wefti_timer_t *t)
{
    wefti_rpc_request_end(wefti_container_of(t, rpc_request_t, timer), END_LATE);
}

/* The runtime has nothing more to do with it: what is left is the program's, and can be freed on any thread. */
static void leave(rpc_request_t *r)
{
    wefti_rpc_request_detach(r);
    wefti_list_remove(&r->service_link);
    rpc_request_waits_no_more(r);
    if (r->in && !(r->in->fetch && r->in->fetch->under_way)) /* a fetch holds its buffer until it ends */
        wefti_rpc_in_charge(r->in, NULL, 0);
    r->share->requests--;
    wefti_rpc_share_put(r->share);
    rpc_under_way_add(r->fn->service, -1);
    if (r->pub.stream)
        wefti_stream_over(r->pub.stream, WEFT_ERR_CLOSED);
}

static void parts_free(rpc_request_t *r)
{
    wefti_rpc_in_free(r->in);
    if (r->pub.stream)
        wefti_stream_drop(r->pub.stream); /* it is over */
    wefti_rpc_kept_free(r->answer);
}

static void request_free(rpc_request_t *r)
{
    rpc_function_t *f = r->fn;
    weft_service_t *service = f->service;
    service->busy++; /* it is not freed before the request */
    leave(r);
    parts_free(r);
    memory_keep(service->rs, r);
    wefti_rpc_function_unref(f);
    service->busy--;
    wefti_rpc_service_step(service);
}

/* --- with the runtime, and after it --------------------------------------------------------------------------------------- */

static void orphan_left(rpc_request_t *r, uint32_t by)
{
    rpc_function_t *f = r->fn;
    if (!atomic_fetch_or(&r->left, by))
        return;
    parts_free(r);
    wefti_free(r);
    wefti_rpc_function_unorphan(f);
}

/* Let go of arguments that nobody fetches any more: their caller waits for that. */
static void drop_unfetched(rpc_request_t *r)
{
    rpc_fetch_t *f = r->in ? r->in->fetch : NULL;
    if (!f || f->under_way || !f->am)
        return;
    weft_am_release(f->am);
    f->am = NULL;
}

void wefti_rpc_request_discard(rpc_request_t *r)
{
    drop_unfetched(r);
    leave(r);
    if (r->released)
        atomic_store(&r->left, LEFT_BY_PROGRAM);
    orphan_left(r, LEFT_BY_RUNTIME);
}

void wefti_rpc_request_free_if_done(rpc_request_t *r)
{
    if (r->over && r->released && !r->refs && !atomic_load(&r->coming))
        request_free(r);
}

void wefti_rpc_request_unref(rpc_request_t *r)
{
    r->refs--;
    wefti_rpc_request_free_if_done(r);
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
    drop_unfetched(r);
    service->busy++;
    wefti_rpc_request_free_if_done(r);
    service->busy--;
    wefti_rpc_service_step(service);
}

/* --- making one ------------------------------------------------------------------------------------------------------------ */

rpc_request_t *wefti_rpc_request_new(rpc_function_t *f, weft_am_t *am, uint64_t call, uint64_t left_ns, const rpc_where_t *where,
                                     rpc_no_t *no_out, bool *am_gone_out)
{
    weft_service_t *service = f->service;
    rpc_state_t *rs = service->rs;
    rpc_ep_t *e = rpc_ep(am->ep);
    weft_status_t why;
    bool ours = !am->len || am->data || !f->fetch || (where->ext && where->ext->flags & RPC_F_BYTES); /* we fetch the data */
    uint64_t in_cost = wefti_rpc_in_cost(am, where);
    bool whole = in_cost <= IN_SPACE && (!am->len || am->data);
    uint64_t cost = whole ? IN_AT + IN_SPACE : sizeof(rpc_request_t) + RPC_SMALL + in_cost;
    cost += f->streams ? sizeof(weft_stream_t) : 0;
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
    rpc_request_t *r = memory_new(rs, whole);
    if (!r)
        goto err_charge;
    memset(r, 0, sizeof *r);
    r->whole = whole;
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
    if (f->streams && wefti_stream_new(rs, f->sig, true, service->opts.stall_ns, &r->pub.stream))
        goto err_timer;
    r->in = wefti_rpc_in_new(rs, am, where, whole ? (uint8_t *)r + IN_AT : NULL, &why);
    if (!r->in) {
        if (why == WEFT_ERR_PROTOCOL) {
            wefti_ep_protocol_error(am->ep, "arguments that are not what the function's signature says");
            no_out->code = WEFT_CODE_OK;
        }
        goto err_stream;
    }
    *am_gone_out = r->in->fetch;
    r->on_heap = true;
    r->rt = rs->rt;
    r->fn = f;
    r->ep = am->ep;
    r->call = call;
    r->mapped = !f->oneway;
    atomic_init(&r->holds, 1);
    r->pub.args = r->in->values;
    r->pub.n = where->codec->n;
    r->pub.sig = f->sig;
    r->pub.service = rpc_service_of(service);
    r->pub.shard = wefti_shard_number(rs->rt);
    r->pub.from = am->ep->id;
    r->pub.left_ns = left_ns;
    r->pub.fetch_len = ours ? 0 : r->in->space;
    r->share = share;
    share->refs++; /* for the arguments: they pay for a fetch under way after the request is freed */
    share->requests++;
    wefti_rpc_in_charge(r->in, share, cost);
    f->refs++;
    rpc_under_way_add(service, 1);
    rpc_count(&service->unanswered, 1);
    wefti_list_push_back(&e->request_list, &r->ep_link);
    wefti_list_push_back(&service->requests, &r->service_link);
    if (r->pub.stream) {
        r->pub.stream->in.item_max = service->opts.payload_max;
        r->pub.stream->in.budget = service->budget;
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
    memory_keep(rs, r);
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

void wefti_rpc_request_not_run(rpc_request_t *r)
{
    weft_service_t *service = r->fn->service;
    if (!r->once)
        return;
    wefti_once_forget(&service->book, r->once, rpc_request_rt(r)->now);
    r->once = NULL;
    wefti_rpc_service_remember(service);
}

static const rpc_no_t ends[] = {
    [END_CANCELLED] = {.code = WEFT_CODE_CANCELLED, .message = "the caller cancelled the call"},
    [END_LATE] = {.code = WEFT_CODE_DEADLINE_EXCEEDED, .message = "the deadline passed"},
    [END_PEER] = {.code = WEFT_CODE_CANCELLED, .message = "the caller is gone"},
    [END_CLOSED] = {.code = WEFT_CODE_UNAVAILABLE, .message = "the service was closed"},
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
        return; /* its caller will repeat the call over another endpoint */
    r->refs++;
    atomic_store(&r->cancelled, true);
    rpc_count(why == END_LATE ? &f->service->stats.late : &f->service->stats.cancelled, 1);
    if (r->fetching) {
        wefti_rpc_in_free(r->in);
        r->in = NULL;
        r->pub.args = NULL;
        r->pub.n = 0;
        r->fetching = false;
    } else if (f->threads || f->elsewhere) {
        waited = wefti_rpc_pool_take_back(f->threads ? f->service->pool : f->service->serial, r, &begun);
    }
    if (!begun)
        wefti_rpc_request_not_run(r);
    if (!atomic_exchange(&r->answered, true)) {
        rpc_no_t no = rpc_no(begun ? RPC_F_MAYBE : RPC_F_NOT_RUN, ends[why].code, ends[why].message);
        if (why == END_CANCELLED)
            wefti_rpc_request_detach(r); /* the caller wants no answer, but a repeat may ask for it */
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
        wefti_rpc_request_drop(r); /* the hold of the thread that would have run it */
    wefti_rpc_request_unref(r);
}

void wefti_rpc_requests_down(weft_ep_t *ep)
{
    rpc_ep_t *e = rpc_ep(ep);
    for (wefti_list_t *l; (l = wefti_list_first(&e->request_list));)
        wefti_rpc_request_end(wefti_container_of(l, rpc_request_t, ep_link), END_PEER);
}

/* --- from other threads --------------------------------------------------------------------------------------------------- */

static void released(rpc_request_t *r)
{
    r->released = true;
    if (atomic_exchange(&r->answered, true)) {
        wefti_rpc_request_free_if_done(r);
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
        released(r); /* the last: it may be freed now */
}

void wefti_rpc_hand_in(rpc_request_t *r, uint32_t work)
{
    weft_runtime_t *rt = r->rt, *was;
    bool pool = wefti_rpc_running == r; /* then the runtime stays, and is that of the request */
    if (pool && work & WORK_RELEASE)
        wefti_rpc_running = NULL;                 /* it may be gone, and another in its memory, while this thread drives */
    bool orphan = !pool && atomic_load(&r->left); /* then rt may be a later runtime in the same memory */
    if (!orphan && !atomic_load(&r->work) && wefti_enter(rt, &was)) {
        do_work(r, work);
        wefti_leave(rt, was);
        return;
    }
    if (!pool && (orphan || wefti_join(rt))) { /* the runtime is closed */
        if (work & WORK_RELEASE)
            orphan_left(r, LEFT_BY_PROGRAM);
        return;
    }
    rpc_state_t *rs = rpc_state(rt);
    if (!atomic_fetch_or(&r->work, work) && /* else it is on the list already */
        wefti_mpsc_push(&rs->handed_in, &r->handed) == WEFTI_MPSC_FIRST)
        (void)wefti_call_on_driver(rt, &rs->call); /* a runtime that closes takes the list itself */
    if (!pool)
        wefti_part(rt);
}

/* oldest first: answers leave in the order they were given */
static void work_off(rpc_state_t *rs, void (*work_on)(rpc_request_t *r))
{
    for (wefti_mpsc_node_t *at = wefti_mpsc_take(&rs->handed_in), *next; at; at = next) {
        next = wefti_mpsc_next(at);
        work_on(wefti_container_of(at, rpc_request_t, handed));
    }
}

static void work_on(rpc_request_t *r)
{
    uint32_t work = 0;
    do {
        work = atomic_exchange(&r->work, WORK_BUSY) & ~(uint32_t)WORK_BUSY;
        if (work & WORK_RELEASE) { /* nobody else has it, so nothing comes after this */
            atomic_store(&r->work, 0);
            do_work(r, work);
            return;
        }
        do_work(r, work);
        work = WORK_BUSY;
    } while (!atomic_compare_exchange_strong(&r->work, &work, 0));
}

void wefti_rpc_handed_in(wefti_call_t *c)
{
    work_off(wefti_container_of(c, rpc_state_t, call), work_on);
}

static void only_release(rpc_request_t *r)
{
    r->released = atomic_exchange(&r->work, 0) & WORK_RELEASE || r->released;
}

void wefti_rpc_handed_in_late(rpc_state_t *rs)
{
    work_off(rs, only_release);
}

void wefti_rpc_request_drop(rpc_request_t *r)
{
    if (atomic_fetch_sub_explicit(&r->holds, 1, memory_order_acq_rel) == 1)
        wefti_rpc_hand_in(r, WORK_RELEASE);
}
