/* rpc/request.c - requests: how they arrive, where they run, and how they end early.
 *
 * A call whose arguments are here and whose function needs neither a thread nor a stream is decoded where it lies and runs at once, on the stack of
 * its arrival. Every other becomes a block (rpc/serve.h has its states), and so does one that its function keeps.
 *
 * What other threads ask for is done at once if they can drive, else it is handed in: bits in `work`, and the request on a stack that the driver works
 * off.
 *
 * Promise: every request that is not `oneway` is answered once, or its caller is gone; functions run at most once, and not after their request was
 * cancelled while it waited; nothing a peer sends is believed before it was checked. tests/wire/rpc_service.c, tests/wire/rpc_cancel.c. */
#include <stddef.h>

#include "rpc/serve.h"

/* A call as it came: copied from the message, which its sender may still be writing to. */
typedef struct arrival {
    rpc_head_t head;
    rpc_ext_t ext;
    rpc_once_t once;
    uint64_t left_ns; /* UINT64_MAX: no deadline */
    rpc_where_t where;
    bool is_once;
} arrival_t;

static void nonsense(const weft_am_t *am)
{
    wefti_ep_protocol_error(am->ep, "a call of an unknown kind, length or flags");
}

/* --- turned away ------------------------------------------------------------------------------------------------------------------- */

/* It does not become a request. f NULL: there is no function. */
static void turn_away(weft_am_t *am, const rpc_function_t *f, uint64_t call, bool am_gone, const rpc_no_t *no)
{
    rpc_msg_t msg;
    if (f && no->code == WEFT_CODE_RESOURCE_EXHAUSTED)
        rpc_count(&f->service->stats.exhausted, 1);
    if (f && f->oneway)
        return;
    wefti_rpc_failure(&msg, call, no);
    wefti_rpc_send_back(am, am_gone, &msg);
}

/* There is no such slot and check. Both are said again: whoever waits for no answer knows them by that. */
static void unbound(weft_am_t *am, const rpc_head_t *head)
{
    rpc_msg_t msg;
    rpc_no_t no = {
        .ran = RPC_F_NOT_RUN | RPC_F_UNBOUND, .code = WEFT_CODE_UNIMPLEMENTED, .message = "the function is not there any more"};
    wefti_rpc_failure(&msg, head->call, &no);
    rpc_head_t answer = rpc_head(RPC_REPLY_EXT, head->call);
    answer.slot = head->slot;
    answer.check = head->check;
    memcpy(msg.header, &answer, sizeof answer);
    wefti_rpc_send_back(am, false, &msg);
}

static rpc_no_t exhausted(const char *message)
{
    return (rpc_no_t){.ran = RPC_F_NOT_RUN, .code = WEFT_CODE_RESOURCE_EXHAUSTED, .message = message};
}

/* --- blocks ------------------------------------------------------------------------------------------------------------------------ */

static void late(wefti_timer_t *t)
{
    wefti_rpc_request_end(wefti_container_of(t, rpc_request_t, timer), END_LATE);
}

static void request_free(rpc_request_t *r)
{
    rpc_function_t *f = r->fn;
    weft_service_t *service = f->service;
    service->busy++; /* until we are done with it */
    wefti_rpc_request_detach(r);
    wefti_list_remove(&r->service_link);
    wefti_rpc_in_free(r->in);
    rpc_count(&service->stats.bytes, -(int64_t)r->counted);
    rpc_count(&service->stats.under_way, -1);
    if (r->pub.stream)
        wefti_stream_drop(r->pub.stream);
    wefti_free(r);
    wefti_rpc_function_unref(f);
    service->busy--;
    wefti_rpc_service_step(service);
}

void wefti_rpc_request_discard(rpc_request_t *r)
{
    request_free(r);
}

static void free_if_done(rpc_request_t *r)
{
    if (r->over && r->released && !r->refs)
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
    service->busy++;
    free_if_done(r);
    service->busy--;
    wefti_rpc_service_step(service);
}

/* Make a block. NULL: why not is in *no_out, but code 0: the peer broke the rules, and the endpoint fails. */
static rpc_request_t *block_new(rpc_function_t *f, weft_am_t *am, uint64_t call, uint64_t left_ns, rpc_where_t where,
                                rpc_no_t *no_out, bool *am_gone_out)
{
    weft_service_t *service = f->service;
    rpc_state_t *rs = service->rs;
    rpc_ep_t *e = rpc_ep(am->ep);
    weft_status_t why;
    bool ours = !am->len || am->data || !f->fetch || (where.ext && where.ext->flags & RPC_F_BYTES); /* we bring the data */
    *no_out = exhausted("there is no memory for the request");
    if (service->stats.bytes + am->header_len + (ours ? am->len : 0) > service->opts.bytes) {
        no_out->message = "the requests of the service take too much memory: try again later";
        return NULL;
    }
    if (!f->oneway && wefti_map_get(&e->requests, call)) {
        wefti_ep_protocol_error(am->ep, "two calls under one number");
        no_out->code = WEFT_CODE_OK;
        return NULL;
    }
    rpc_request_t *r = (rpc_request_t *)wefti_calloc(1, sizeof *r);
    if (!r)
        return NULL;
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
    if (f->streams && wefti_stream_new(rs, f->sig, true, &r->pub.stream))
        goto err_timer;
    r->in = wefti_rpc_in_new(rs, am, where, &why);
    if (!r->in) {
        if (why == WEFT_ERR_PROTOCOL) {
            wefti_ep_protocol_error(am->ep, "arguments that are not what the function's signature says");
            no_out->code = WEFT_CODE_OK;
        }
        goto err_stream;
    }
    *am_gone_out = r->in->am;
    r->block = true;
    r->fn = f;
    r->ep = am->ep;
    r->call = call;
    r->mapped = !f->oneway;
    atomic_init(&r->holds, 1);
    r->pub.args = r->in->values;
    r->pub.n = where.codec->n;
    r->pub.sig = f->sig;
    r->pub.service = service;
    r->pub.from = am->ep->id;
    r->pub.left_ns = left_ns;
    r->pub.fetch_len = ours ? 0 : r->in->room;
    r->counted = r->in->held + (r->in->missing && ours ? r->in->room : 0);
    f->refs++;
    rpc_count(&service->stats.bytes, (int64_t)r->counted);
    rpc_count(&service->stats.under_way, 1);
    rpc_count(&service->unanswered, 1);
    wefti_list_push_back(&e->request_list, &r->ep_link);
    wefti_list_push_back(&service->requests, &r->service_link);
    if (r->pub.stream) {
        wefti_stream_item_max(r->pub.stream, service->opts.payload_max);
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
    return NULL;
}

/* --- running ----------------------------------------------------------------------------------------------------------------------- */

/* It never began: nobody will, and it may come again. */
static void refuse(rpc_request_t *r, const rpc_no_t *no)
{
    weft_service_t *service = r->fn->service;
    if (r->once) {
        wefti_once_forget(&service->book, r->once, rpc_request_rt(r)->now);
        r->once = NULL;
        wefti_rpc_service_remember(service);
    }
    if (no->code == WEFT_CODE_RESOURCE_EXHAUSTED)
        rpc_count(&service->stats.exhausted, 1);
    if (!atomic_exchange(&r->answered, true))
        wefti_rpc_answer_no(r, no);
    wefti_rpc_request_drop(r);
}

/* Everything its function asked for is here. */
static void begin(rpc_request_t *r)
{
    rpc_function_t *f = r->fn;
    if (f->threads) {
        if (!wefti_rpc_pool_put(f->service->pool, r, f->service->opts.queue)) {
            rpc_no_t no = exhausted("too many requests wait for a thread of the service: try again later");
            refuse(r, &no);
        }
        return;
    }
    r->begun = true;
    f->fn(&r->pub, f->user);
    wefti_rpc_request_drop(r);
}

static void fetched(void *user, weft_status_t st)
{
    rpc_request_t *r = (rpc_request_t *)user;
    r->fetching = false;
    if (!st) {
        begin(r);
        return;
    }
    rpc_no_t no = exhausted("there is no memory for the arguments");
    if (st == WEFT_ERR_PROTOCOL && r->ep)
        wefti_ep_protocol_error(r->ep, "arguments that are not what the function's signature says");
    if (st != WEFT_ERR_NOMEM)
        no = (rpc_no_t){.ran = RPC_F_NOT_RUN,
                        .code = WEFT_CODE_UNAVAILABLE,
                        .category = WEFT_CATEGORY_WEFT,
                        .value = st,
                        .message = "the data of the arguments could not be brought here"};
    refuse(r, &no);
}

/* A block, ready to go as far as it can. */
static void advance(rpc_request_t *r)
{
    if (!r->in->missing || r->pub.fetch_len) {
        begin(r);
        return;
    }
    r->fetching = true;
    weft_status_t st = wefti_rpc_in_fetch(r->in, NULL, 0, NULL, fetched, r);
    if (st)
        fetched(r, st);
}

static void run_block(rpc_function_t *f, weft_am_t *am, const arrival_t *a, rpc_once_entry_t *once)
{
    rpc_no_t no;
    bool am_gone = false;
    rpc_request_t *r = block_new(f, am, a->head.call, a->left_ns, a->where, &no, &am_gone);
    if (!r) {
        if (once)
            wefti_once_forget(&f->service->book, once, f->service->rs->rt->now);
        if (no.code)
            turn_away(am, f, a->head.call, am_gone, &no);
        return;
    }
    if (once) {
        r->once = once;
        r->pub.once = true;
        once->request = r;
    }
    advance(r);
}

/* On the stack: everything is here, and the function answers now, or keeps it. */
static void run_here(rpc_function_t *f, weft_am_t *am, const arrival_t *a)
{
    rpc_request_t r;
    weft_value_t values[WEFT_SIG_PARAMS];
    wefti_decoded_t d;
    weft_status_t st = wefti_rpc_values_here(am, a->where, values, &d);
    if (__builtin_expect(st, 0)) {
        rpc_no_t no = exhausted("there is no memory for the arguments");
        if (st == WEFT_ERR_PROTOCOL)
            wefti_ep_protocol_error(am->ep, "arguments that are not what the function's signature says");
        else
            turn_away(am, f, a->head.call, false, &no);
        return;
    }
    r.pub = (weft_request_t){
        .args = values, .n = f->args->n, .sig = f->sig, .service = f->service, .from = am->from, .left_ns = a->left_ns};
    r.fn = f;
    r.ep = am->ep;
    r.call = a->head.call;
    r.moved = NULL;
    r.am = am;
    r.where = a->where;
    atomic_init(&r.answered, false);
    r.block = false;
    f->refs++;
    f->fn(&r.pub, f->user);
    if (__builtin_expect(!r.moved && !atomic_load_explicit(&r.answered, memory_order_relaxed) && !f->oneway, 0)) {
        rpc_no_t no = {.code = WEFT_CODE_INTERNAL, .message = "the function neither answered nor kept its request"};
        (void)wefti_rpc_request_no(&r, &no);
    }
    wefti_decoded_free(&d);
    wefti_rpc_function_unref(f);
}

/* --- exactly once ------------------------------------------------------------------------------------------------------------------- */

/* The reply goes where the call came from last. */
static void move_here(rpc_request_t *r, weft_am_t *am, uint64_t call)
{
    rpc_ep_t *e = rpc_ep(am->ep);
    if (r->out || r->over)
        return; /* its reply is just being sent, and was remembered */
    wefti_rpc_request_detach(r);
    if (wefti_map_get(&e->requests, call)) {
        wefti_ep_protocol_error(am->ep, "two calls under one number");
        return;
    }
    r->mapped = !wefti_map_put(&e->requests, call, r); /* else it can only not be cancelled */
    r->ep = am->ep;
    r->call = call;
    wefti_list_push_back(&e->request_list, &r->ep_link);
}

static void run_once(rpc_function_t *f, weft_am_t *am, const arrival_t *a)
{
    weft_service_t *service = f->service;
    rpc_once_entry_t *entry;
    rpc_no_t no = exhausted("the service remembers too many calls already: try again later");
    if (f->streams || f->oneway) {
        no = (rpc_no_t){.ran = RPC_F_NOT_RUN,
                        .code = WEFT_CODE_INVALID_ARGUMENT,
                        .message = "a call with a stream, or one that nobody waits for, cannot be made with `once`"};
        turn_away(am, NULL, a->head.call, false, &no);
        return;
    }
    if (a->once.epoch && a->once.epoch != service->epoch) {
        no = (rpc_no_t){.ran = RPC_F_MAYBE,
                        .code = WEFT_CODE_ABORTED,
                        .message = "the call was made to another opening of the service, which may have run it"};
        turn_away(am, f, a->head.call, false, &no);
        return;
    }
    switch (wefti_once_find(&service->book, &a->once, wefti_now(service->rs->rt), &entry)) {
    case ONCE_NEW:
        run_block(f, am, a, entry);
        break;
    case ONCE_RUNNING:
        rpc_count(&service->stats.repeated, 1);
        move_here(entry->request, am, a->head.call);
        break;
    case ONCE_ANSWERED:
        rpc_count(&service->stats.repeated, 1);
        wefti_rpc_answer_again(am, a->head.call, entry);
        break;
    case ONCE_GONE:
        no = (rpc_no_t){.ran = RPC_F_MAYBE,
                        .code = WEFT_CODE_ABORTED,
                        .message = "the service does not remember the call any more; it may have run"};
        turn_away(am, f, a->head.call, false, &no);
        break;
    case ONCE_FULL:
        turn_away(am, f, a->head.call, false, &no);
        break;
    }
    wefti_rpc_service_remember(service);
}

/* --- arrival ----------------------------------------------------------------------------------------------------------------------- */

/* What follows the head of a CALL_EXT. */
static bool read_ext(const weft_am_t *am, arrival_t *a)
{
    const uint8_t *at = (const uint8_t *)am->header + sizeof a->head;
    size_t left = am->header_len - sizeof a->head;
    if (left < sizeof a->ext)
        return false;
    memcpy(&a->ext, at, sizeof a->ext);
    __asm__ volatile("" : : : "memory"); /* from here on the copy, whatever the peer does to the original */
    at += sizeof a->ext;
    left -= sizeof a->ext;
    unsigned flags = a->ext.flags;
    if (flags & ~(RPC_F_DEADLINE | RPC_F_ONCE | RPC_F_BYTES) || a->ext.zero || (a->ext.bytes_len && !(flags & RPC_F_BYTES)))
        return false;
    if (flags & RPC_F_DEADLINE) {
        if (left < sizeof a->left_ns)
            return false;
        memcpy(&a->left_ns, at, sizeof a->left_ns);
        at += sizeof a->left_ns;
        left -= sizeof a->left_ns;
    }
    if (flags & RPC_F_ONCE) {
        if (left < sizeof a->once)
            return false;
        memcpy(&a->once, at, sizeof a->once);
        at += sizeof a->once;
        left -= sizeof a->once;
        a->is_once = true;
        if (!a->once.client || !a->once.seq)
            return false;
    }
    a->where = (rpc_where_t){NULL, am->header_len - left, &a->ext};
    return true;
}

static void call(rpc_state_t *rs, weft_am_t *am, arrival_t *a)
{
    rpc_function_t *f = rpc_function(rs, a->head.slot);
    rpc_no_t no = {
        .ran = RPC_F_NOT_RUN, .code = WEFT_CODE_UNAVAILABLE, .message = "the service takes no more calls: it is closing"};
    if (__builtin_expect(!f || f->check != a->head.check, 0)) {
        unbound(am, &a->head);
        return;
    }
    weft_service_t *service = f->service;
    rpc_count(&service->stats.requests, 1);
    a->where.codec = f->args;
    if (__builtin_expect(service->draining, 0)) {
        turn_away(am, f, a->head.call, false, &no);
    } else if (__builtin_expect(!a->left_ns, 0)) {
        rpc_count(&service->stats.late, 1);
        no.code = WEFT_CODE_DEADLINE_EXCEEDED;
        no.message = "its deadline had passed when it arrived";
        turn_away(am, f, a->head.call, false, &no);
    } else if (__builtin_expect(service->stats.under_way >= service->opts.requests, 0)) {
        no = exhausted("the service has too many requests under way: try again later");
        turn_away(am, f, a->head.call, false, &no);
    } else if (__builtin_expect(am->len > service->opts.payload_max, 0)) {
        no = exhausted("the arguments are longer than the service allows (payload_max)");
        turn_away(am, f, a->head.call, false, &no);
    } else if (__builtin_expect(a->is_once, 0)) {
        run_once(f, am, a);
    } else if (__builtin_expect(f->plain && (!am->len || am->data), 1)) {
        run_here(f, am, a);
    } else {
        run_block(f, am, a, NULL);
    }
}

static void for_stream(weft_am_t *am, const rpc_head_t *head, unsigned kind)
{
    rpc_request_t *r = (rpc_request_t *)wefti_map_get(&rpc_ep(am->ep)->requests, head->call);
    if (!r)
        return; /* it was answered meanwhile */
    if (!r->pub.stream)
        wefti_ep_protocol_error(am->ep, "a value for a call that has no stream");
    else
        wefti_stream_record(r->pub.stream, kind, am, head);
}

void wefti_rpc_to_server(weft_am_t *am, void *user)
{
    rpc_state_t *rs = (rpc_state_t *)user;
    arrival_t a;
    rpc_request_t *r;
    if (__builtin_expect(am->header_len < sizeof a.head, 0)) {
        nonsense(am);
        return;
    }
    memcpy(&a.head, am->header, sizeof a.head);
    __asm__ volatile("" : : : "memory");
    a.left_ns = UINT64_MAX;
    a.is_once = false;
    unsigned kind = rpc_kind(&a.head);
    switch (kind) {
    case RPC_CALL:
        a.where = (rpc_where_t){NULL, sizeof a.head, NULL};
        call(rs, am, &a);
        break;
    case RPC_CALL_EXT:
        if (read_ext(am, &a))
            call(rs, am, &a);
        else
            nonsense(am);
        break;
    case RPC_BIND:
        wefti_rpc_bind(rs, am, &a.head);
        break;
    case RPC_CANCEL:
        r = (rpc_request_t *)wefti_map_get(&rpc_ep(am->ep)->requests, a.head.call);
        if (am->header_len != sizeof a.head || am->len)
            nonsense(am);
        else if (r)
            wefti_rpc_request_end(r, END_CANCELLED);
        break;
    case RPC_ITEM:
    case RPC_END:
    case RPC_CREDIT:
        for_stream(am, &a.head, kind);
        break;
    default:
        nonsense(am);
    }
}

/* --- ended early ------------------------------------------------------------------------------------------------------------------- */

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
        wefti_rpc_answer_unheld(r, WEFT_ERR_CANCELLED);
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

/* --- from other threads ------------------------------------------------------------------------------------------------------------- */

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
    rpc_state_t *rs = r->fn->service->rs;
    weft_runtime_t *was;
    if (!atomic_load(&r->work) && wefti_enter(rs->rt, &was)) {
        do_work(r, work);
        wefti_leave(rs->rt, was);
        return;
    }
    if (atomic_fetch_or(&r->work, work))
        return; /* it is on its way already */
    rpc_request_t *head = atomic_load_explicit(&rs->handed_in, memory_order_relaxed);
    do
        r->next = head;
    while (!atomic_compare_exchange_weak_explicit(&rs->handed_in, &head, r, memory_order_release, memory_order_relaxed));
    if (!atomic_exchange(&rs->called, true))
        wefti_call_on_driver(rs->rt, &rs->call);
}

void wefti_rpc_handed_in(wefti_call_t *c)
{
    rpc_state_t *rs = wefti_container_of(c, rpc_state_t, call);
    atomic_store(&rs->called, false);
    rpc_request_t *r = atomic_exchange_explicit(&rs->handed_in, NULL, memory_order_acquire);
    while (r) {
        rpc_request_t *next = r->next;
        do_work(r, atomic_exchange(&r->work, 0));
        r = next;
    }
}

void wefti_rpc_request_drop(rpc_request_t *r)
{
    if (atomic_fetch_sub_explicit(&r->holds, 1, memory_order_acq_rel) == 1)
        wefti_rpc_hand_in(r, WORK_RELEASE);
}

/* --- the program's calls ------------------------------------------------------------------------------------------------------------- */

weft_request_t *weft_request_keep(weft_request_t *request)
{
    rpc_request_t *r = (rpc_request_t *)(void *)request;
    rpc_no_t no;
    bool am_gone = false;
    if (!r)
        return NULL;
    if (!r->block && !r->moved) {
        bool answered = atomic_load_explicit(&r->answered, memory_order_relaxed);
        rpc_request_t *block = block_new(r->fn, r->am, r->call, r->pub.left_ns, r->where, &no, &am_gone);
        if (!block) {
            no.ran = 0; /* it has begun */
            if (!answered)
                (void)wefti_rpc_request_no(r, &no);
            return NULL;
        }
        block->kept = block->begun = true;
        r->moved = block;
        if (answered) {
            atomic_store(&block->answered, true);
            wefti_rpc_request_over(block); /* not freed: it is not released */
        }
    }
    r = rpc_request(request);
    if (!r->kept) {
        r->kept = true;
        atomic_fetch_add(&r->holds, 1);
    }
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
    rpc_request_t *r = rpc_request(request);
    return r->block && atomic_load(&r->cancelled);
}

void weft_request_on_cancel(weft_request_t *request, weft_cancel_fn fn, void *user)
{
    rpc_request_t *r = rpc_request(request);
    if (!r->block)
        return;
    rpc_state_t *rs = r->fn->service->rs;
    pthread_mutex_lock(&rs->lock);
    r->on_cancel = fn;
    r->on_cancel_user = user;
    pthread_mutex_unlock(&rs->lock);
    if (fn && atomic_load(&r->cancelled))
        wefti_rpc_hand_in(r, WORK_TELL);
}

/* --- arguments that the function fetches itself ---------------------------------------------------------------------------------------- */

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
    fetch_t *f = wefti_op_room(op, fetch_t);
    rpc_request_t *r = f->r;
    op->len = r->pub.fetch_len;
    if (!r->in->missing || r->fetch_op)
        return wefti_fail(WEFT_ERR_STATE, "the arguments are here, or on their way");
    weft_status_t st = wefti_op_track(op);
    if (!st)
        st = wefti_rpc_in_fetch(r->in, f->buf, f->cap, f->kind, fetch_done, r);
    if (st)
        return st;
    r->fetch_op = op;
    r->refs++;
    return WEFT_OK;
}

static void fetch_cancel(weft_op_t *op, weft_status_t why)
{
    (void)why;
    weft_op_cancel(&wefti_op_room(op, fetch_t)->r->in->op); /* it ends when nothing writes to the buffer any more */
}

static const wefti_op_kind_t fetch_kind = {"fetch", fetch_start, fetch_cancel};

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
    *wefti_op_room(op, fetch_t) = (fetch_t){r, buf, cap, kind};
    return wefti_op_go(rpc_request_rt(r), op);
}
