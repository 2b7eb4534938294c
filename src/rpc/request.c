/* rpc/request.c - requests: how they arrive, and where they run.
 *
 * A call whose arguments are here and whose function needs neither a thread nor a stream is decoded where it lies and runs at
 * once, on the stack of its arrival. Every other becomes a block (block.c), and so does one that its function keeps. Where it
 * lies is memory of ours: active messages hand the library copies (am/am.h), which no peer can change after they were checked.
 *
 * Promise: every request that is not `oneway` is answered once, or its caller is gone; functions run at most once, and not
 * after their request was cancelled while it waited; nothing a peer sends is believed before it was checked.
 * tests/wire/rpc_service.c, tests/wire/rpc_once.c. */
#include <stddef.h>

#include "rpc/serve.h"

/* A call as it came. */
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

/* --- turned away ---------------------------------------------------------------------------------------------------------- */

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
static void unbound(const rpc_state_t *rs, weft_am_t *am, const rpc_head_t *head)
{
    rpc_msg_t msg;
    rpc_no_t no = {
        .ran = RPC_F_NOT_RUN | RPC_F_UNBOUND, .code = WEFT_CODE_UNIMPLEMENTED, .message = "the function is not there any more"};
    for (uint32_t i = 0; i < RPC_CHECKS; i++)
        if (head->check && rs->checks[i] == head->check) { /* for a caller that cannot ask again: it has sent on its stream */
            no.code = WEFT_CODE_UNAVAILABLE;
            no.message = "the service takes no more calls: it was closed";
        }
    wefti_rpc_failure(&msg, head->call, &no);
    rpc_head_t answer = rpc_head(RPC_REPLY_EXT, head->call);
    answer.slot = head->slot;
    answer.check = head->check;
    memcpy(msg.header, &answer, sizeof answer);
    wefti_rpc_send_back(am, false, &msg);
}

/* --- running -------------------------------------------------------------------------------------------------------------- */

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
        if (!wefti_rpc_pool_put(f->service->pool, r, f->service->opts.queue, f->service->peer_queue)) {
            rpc_no_t no = rpc_exhausted("too many requests wait for a thread of the service: try again later");
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
    rpc_no_t no = rpc_exhausted("there is no memory for the arguments");
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
    weft_status_t st = wefti_rpc_in_fetch(r->in, NULL, 0, NULL, r->fn->service->opts.stall_ns, fetched, r);
    if (st)
        fetched(r, st);
}

static void run_block(rpc_function_t *f, weft_am_t *am, const arrival_t *a, rpc_once_entry_t *once)
{
    rpc_no_t no;
    bool am_gone = false;
    rpc_request_t *r = wefti_rpc_block_new(f, am, a->head.call, a->left_ns, &a->where, &no, &am_gone);
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
    weft_status_t st = WEFT_OK;
    d.more = NULL;
    if (__builtin_expect(
            am->len || a->where.ext ||
                !wefti_decode_small(f->args, (const uint8_t *)am->header + a->where.at, am->header_len - a->where.at, values),
            0))
        st = wefti_rpc_values_here(am, &a->where, values, &d);
    if (__builtin_expect(st, 0)) {
        rpc_no_t no = rpc_exhausted("there is no memory for the arguments");
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

/* --- exactly once --------------------------------------------------------------------------------------------------------- */

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
    rpc_no_t no = rpc_exhausted("the service remembers too many calls already: try again later");
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
    rpc_share_t *share = wefti_rpc_share(service->budget, am->ep->id);
    if (!share) {
        turn_away(am, f, a->head.call, false, &no);
        return;
    }
    service->busy++; /* its function may close it */
    switch (wefti_once_find(&service->book, &a->once, share, wefti_now(service->rs->rt), &entry)) {
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
    wefti_rpc_share_put(share);
    wefti_rpc_service_remember(service);
    service->busy--;
    wefti_rpc_service_step(service);
}

/* --- arrival -------------------------------------------------------------------------------------------------------------- */

/* What follows the head of a CALL_EXT. */
static bool read_ext(const weft_am_t *am, arrival_t *a)
{
    const uint8_t *at = (const uint8_t *)am->header + sizeof a->head;
    size_t left = am->header_len - sizeof a->head;
    if (left < sizeof a->ext)
        return false;
    memcpy(&a->ext, at, sizeof a->ext);
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
        unbound(rs, am, &a->head);
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
        no = rpc_exhausted("the service has too many requests under way: try again later");
        turn_away(am, f, a->head.call, false, &no);
    } else if (__builtin_expect(am->len > service->opts.payload_max, 0)) {
        no = rpc_exhausted("the arguments are longer than the service allows (payload_max)");
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
