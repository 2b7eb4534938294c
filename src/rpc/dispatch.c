/* rpc/dispatch.c - calls that arrive at a server: which function they are for, and where it runs.
 *
 * If the arguments are here and the function needs neither a thread nor a stream, the call is decoded where it lies and runs at
 * once, on the stack of its arrival. Every other call becomes a request on the heap (request.c), and so does one that its
 * function keeps. The message lies in memory of ours: active messages hand the library copies (am/am.h), which no peer can change
 * after they were checked.
 *
 * Promise: every request that is not `oneway` is answered once, or its caller is gone. A function runs at most once, and not
 * after its request was cancelled while it waited. Nothing a peer sends is used before it was checked. tests/wire/rpc_service.c,
 * tests/wire/rpc_once.c. */
#include <stddef.h>

#include "base/bytes.h"
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

/* --- turned away ---------------------------------------------------------------------------------------------------------- */

/* Answer that the call does not become a request. f NULL: there is no function. */
static void turn_away(weft_am_t *am, const rpc_function_t *f, uint64_t call, bool am_gone, const rpc_no_t *no)
{
    rpc_msg_t msg;
    if (f && no->code == WEFT_CODE_RESOURCE_EXHAUSTED)
        rpc_count(&f->service->stats.exhausted, 1);
    if (f && f->oneway)
        return;
    wefti_rpc_failure(&msg, call, no);
    (void)wefti_rpc_send_back(am, am_gone, &msg);
}

/* There is no such slot and check. The answer names both, for clients that wait for no reply. */
static void unbound(const rpc_state_t *rs, weft_am_t *am, const rpc_head_t *head)
{
    rpc_msg_t msg;
    rpc_no_t no = rpc_no(RPC_F_NOT_RUN | RPC_F_UNBOUND, WEFT_CODE_UNIMPLEMENTED, "the function is not there any more");
    for (uint32_t i = 0; i < RPC_CHECKS; i++)
        if (head->check && rs->checks[i] == head->check) { /* a caller that has sent on its stream cannot ask again */
            no.code = WEFT_CODE_UNAVAILABLE;
            no.message = "the service takes no more calls: it was closed";
        }
    wefti_rpc_failure(&msg, head->call, &no);
    rpc_head_t answer = rpc_head(RPC_REPLY_EXT, head->call);
    answer.slot = head->slot;
    answer.check = head->check;
    memcpy(msg.header, &answer, sizeof answer);
    (void)wefti_rpc_send_back(am, false, &msg);
}

/* --- running -------------------------------------------------------------------------------------------------------------- */

/* A request on the heap does not begin. */
static void refuse(rpc_request_t *r, const rpc_no_t *no)
{
    wefti_rpc_request_not_run(r);
    if (no->code == WEFT_CODE_RESOURCE_EXHAUSTED)
        rpc_count(&r->fn->service->stats.exhausted, 1);
    if (!atomic_exchange(&r->answered, true))
        wefti_rpc_answer_no(r, no);
    wefti_rpc_request_drop(r);
}

/* Everything that its function asked for is here. */
static void begin(rpc_request_t *r)
{
    rpc_function_t *f = r->fn;
    rpc_pool_t *pool = f->threads ? f->service->pool : f->elsewhere ? f->service->serial : NULL;
    if (pool) {
        if (!wefti_rpc_pool_put(pool, r, f->service->opts.queue, f->service->peer_queue)) {
            rpc_no_t no = rpc_exhausted("too many requests wait for a thread of the service: try again later");
            refuse(r, &no);
        }
        return;
    }
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

/* Begin it, or fetch its arguments first. */
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

static void run_on_heap(rpc_function_t *f, weft_am_t *am, const arrival_t *a, rpc_once_entry_t *once)
{
    rpc_no_t no;
    bool am_gone = false;
    rpc_request_t *r = wefti_rpc_request_new(f, am, a->head.call, a->left_ns, &a->where, &no, &am_gone);
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

/* Everything is here, and the function answers now, or keeps the request. */
static void run_on_stack(rpc_function_t *f, weft_am_t *am, const arrival_t *a)
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
    r.pub = (weft_request_t){.args = values,
                             .n = f->args->n,
                             .sig = f->sig,
                             .service = rpc_service_of(f->service),
                             .from = am->from,
                             .left_ns = a->left_ns,
                             .shard = wefti_shard_number(f->service->rt)};
    r.fn = f;
    r.ep = am->ep;
    r.call = a->head.call;
    r.moved = NULL;
    r.am = am;
    r.where = a->where;
    atomic_init(&r.answered, false);
    r.on_heap = false;
    f->refs++;
    f->fn(&r.pub, f->user);
    if (__builtin_expect(!r.moved && !atomic_load_explicit(&r.answered, memory_order_relaxed) && !f->oneway, 0)) {
        rpc_no_t no = rpc_no(0, WEFT_CODE_INTERNAL, "the function neither answered nor kept its request");
        (void)wefti_rpc_request_no(&r, &no);
    }
    wefti_decoded_free(&d);
    wefti_rpc_function_unref(f);
}

/* --- exactly once --------------------------------------------------------------------------------------------------------- */

/* A repeat of a call that runs: the reply goes where the call came from last. */
static void move_here(rpc_request_t *r, weft_am_t *am, uint64_t call)
{
    rpc_ep_t *e = rpc_ep(am->ep);
    if (r->out || r->over)
        return; /* its reply is being sent, and was remembered */
    wefti_rpc_request_detach(r);
    if (wefti_map_get(&e->requests, call)) {
        wefti_ep_protocol_error(am->ep, "two calls under one number");
        return;
    }
    r->mapped = !wefti_map_put(&e->requests, call, r); /* without memory for it, it only cannot be cancelled */
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
        no = rpc_no(RPC_F_NOT_RUN, WEFT_CODE_INVALID_ARGUMENT,
                    "a call with a stream, or one that nobody waits for, cannot be made with `once`");
        turn_away(am, NULL, a->head.call, false, &no);
        return;
    }
    if (a->once.epoch && a->once.epoch != service->epoch) {
        no = rpc_no(RPC_F_MAYBE, WEFT_CODE_ABORTED, "the call was made to another opening of the service, which may have run it");
        turn_away(am, f, a->head.call, false, &no);
        return;
    }
    rpc_share_t *share = wefti_rpc_share(service->budget, am->ep->id);
    rpc_once_found_t found =
        share ? wefti_once_find(&service->book, &a->once, share, wefti_now(service->rs->rt), &entry) : ONCE_FULL;
    service->busy++; /* its function may close it */
    if (found == ONCE_RUNNING || found == ONCE_ANSWERED)
        rpc_count(&service->stats.repeated, 1);
    if (found == ONCE_GONE)
        no = rpc_no(RPC_F_MAYBE, WEFT_CODE_ABORTED, "the service does not remember the call any more; it may have run");
    if (found == ONCE_NEW)
        run_on_heap(f, am, a, entry);
    else if (found == ONCE_RUNNING)
        move_here(entry->request, am, a->head.call);
    else if (found == ONCE_ANSWERED)
        wefti_rpc_answer_again(am, a->head.call, entry);
    else
        turn_away(am, f, a->head.call, false, &no);
    wefti_rpc_share_put(share);
    wefti_rpc_service_remember(service);
    service->busy--;
    wefti_rpc_service_step(service);
}

/* --- arrival -------------------------------------------------------------------------------------------------------------- */

/* Copy the next n bytes. */
static void get(wefti_reader_t *r, void *to, size_t n)
{
    const void *p = wefti_get_bytes(r, n);
    if (p)
        memcpy(to, p, n);
}

/* What follows the head of a CALL_EXT. False: it breaks the rules. */
static __attribute__((noinline)) bool read_ext(const weft_am_t *am, arrival_t *a)
{
    wefti_reader_t r = wefti_reader((const uint8_t *)am->header + sizeof a->head, am->header_len - sizeof a->head);
    get(&r, &a->ext, sizeof a->ext);
    if (r.bad)
        return false;
    unsigned flags = a->ext.flags;
    if (flags & ~(RPC_F_DEADLINE | RPC_F_ONCE | RPC_F_BYTES) || a->ext.zero || (a->ext.bytes_len && !(flags & RPC_F_BYTES)))
        return false;
    a->is_once = flags & RPC_F_ONCE;
    if (flags & RPC_F_DEADLINE)
        get(&r, &a->left_ns, sizeof a->left_ns);
    if (a->is_once)
        get(&r, &a->once, sizeof a->once);
    a->where = (rpc_where_t){NULL, am->header_len - wefti_reader_left(&r), &a->ext};
    return !r.bad && (!a->is_once || (a->once.client && a->once.seq));
}

/* Why a service does not take a call. False: it takes it. */
static inline bool refuses(weft_service_t *service, const weft_am_t *am, const arrival_t *a, rpc_no_t *no_out)
{
    if (__builtin_expect(service->draining, 0)) {
        *no_out = rpc_no(RPC_F_NOT_RUN, WEFT_CODE_UNAVAILABLE, "the service takes no more calls: it is closing");
    } else if (__builtin_expect(!a->left_ns, 0)) {
        rpc_count(&service->stats.late, 1);
        *no_out = rpc_no(RPC_F_NOT_RUN, WEFT_CODE_DEADLINE_EXCEEDED, "its deadline had passed when it arrived");
    } else if (__builtin_expect(rpc_under_way(service) >= service->opts.requests, 0)) {
        *no_out = rpc_exhausted("the service has too many requests under way: try again later");
    } else if (__builtin_expect(am->len > service->opts.payload_max, 0)) {
        *no_out = rpc_exhausted("the arguments are longer than the service allows (payload_max)");
    } else {
        return false;
    }
    return true;
}

static inline void call(rpc_state_t *rs, weft_am_t *am, arrival_t *a)
{
    rpc_function_t *f = rpc_function(rs, a->head.slot);
    rpc_no_t no;
    if (__builtin_expect(!f || f->check != a->head.check, 0)) {
        f = wefti_rpc_rules_find(rs, am->ep, a->head.slot, a->head.check);
        if (!f) {
            unbound(rs, am, &a->head);
            return;
        }
    }
    rpc_count(&f->service->stats.requests, 1);
    a->where.codec = f->args;
    if (__builtin_expect(refuses(f->service, am, a, &no), 0))
        turn_away(am, f, a->head.call, false, &no);
    else if (__builtin_expect(a->is_once, 0))
        run_once(f, am, a);
    else if (__builtin_expect(f->plain && (!am->len || am->data), 1))
        run_on_stack(f, am, a);
    else
        run_on_heap(f, am, a, NULL);
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
    bool ok = am->header_len >= sizeof a.head;
    if (__builtin_expect(ok, 1)) {
        memcpy(&a.head, am->header, sizeof a.head);
        a.left_ns = UINT64_MAX;
        a.is_once = false;
        unsigned kind = rpc_kind(&a.head);
        switch (kind) {
        case RPC_CALL:
        case RPC_CALL_EXT:
            a.where = (rpc_where_t){NULL, sizeof a.head, NULL};
            ok = __builtin_expect(kind == RPC_CALL, 1) || read_ext(am, &a);
            if (ok)
                call(rs, am, &a);
            break;
        case RPC_BIND:
            wefti_rpc_bind(rs, am, &a.head);
            break;
        case RPC_CANCEL:
            ok = am->header_len == sizeof a.head && !am->len;
            r = (rpc_request_t *)wefti_map_get(&rpc_ep(am->ep)->requests, a.head.call);
            if (ok && r)
                wefti_rpc_request_end(r, END_CANCELLED);
            break;
        case RPC_ITEM:
        case RPC_END:
        case RPC_CREDIT:
            for_stream(am, &a.head, kind);
            break;
        default:
            ok = false;
        }
    }
    if (__builtin_expect(!ok, 0))
        wefti_ep_protocol_error(am->ep, "a call of an unknown kind, length or flags");
}
