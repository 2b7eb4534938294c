/* rpc/respond.c - what a program does with a request: answer, keep, release, cancel, fetch its arguments.
 *
 * A request on the stack is answered from the stack. For one on the heap the values become bytes on the thread that answers, and
 * what they view is copied there or stays borrowed; then the message goes to the driver (answer.c).
 *
 * Promise: of all threads that answer a request one wins, and the others are told so. tests/wire/rpc_service.c,
 * tests/wire/rpc_threads.c, tests/wire/rpc_memory.c. */
#include <stdio.h>

#include "rpc/serve.h"

/* The number of the call of a request on the heap may change until its answer is sent: it is set then. */
static uint64_t call_of(const rpc_request_t *r)
{
    return r->on_heap ? 0 : r->call;
}

/* Results as a message. Values that are not what the signature says become a failure, and the status says so. */
static weft_status_t pack(const rpc_request_t *r, const weft_value_t *values, size_t n, rpc_msg_t *msg)
{
    char words[RPC_MESSAGE_MAX];
    weft_status_t st = rpc_pack_whole(msg, call_of(r), r->fn->results, values, n);
    if (__builtin_expect(!st, 1))
        return WEFT_OK;
    rpc_no_t no = rpc_no_memory();
    if (st != WEFT_ERR_NOMEM) {
        no = (rpc_no_t){.code = WEFT_CODE_INTERNAL, .category = WEFT_CATEGORY_WEFT, .value = st, .message = words};
        snprintf(words, sizeof words, "the function's results are not those of %s: %s", weft_sig_text(r->fn->sig),
                 weft_last_error());
    }
    wefti_rpc_failure(msg, call_of(r), &no);
    return st;
}

/* The first to claim it answers. */
static weft_status_t claim(rpc_request_t *r)
{
    bool before = atomic_load_explicit(&r->answered, memory_order_relaxed);
    if (r->on_heap && wefti_gone(r->rt))
        return wefti_fail_gone(r->rt);
    if (!r->on_heap)
        atomic_store_explicit(&r->answered, true, memory_order_relaxed);
    else if (!before)
        before = atomic_exchange(&r->answered, true);
    if (__builtin_expect(!before, 1))
        return WEFT_OK;
    if (r->on_heap && atomic_load(&r->cancelled))
        return wefti_fail(WEFT_ERR_CANCELLED, "nobody waits for the answer any more");
    return wefti_fail(WEFT_ERR_STATE, "the request was answered before");
}

static void no_memory(const rpc_request_t *r, rpc_msg_t *msg)
{
    rpc_no_t no = rpc_no_memory();
    wefti_rpc_msg_free(msg);
    wefti_rpc_failure(msg, call_of(r), &no);
}

/* Keep the answer for the driver. Most are small, and lie in the request: memory that one thread takes and another gives back
 * costs both. */
static void keep(rpc_request_t *r, rpc_msg_t *msg)
{
    rpc_kept_t *small = (rpc_kept_t *)(void *)(r + 1);
    if (!msg->iov_n && wefti_rpc_kept_size(msg, 0) <= RPC_SMALL) {
        (void)wefti_rpc_keep_at(small, msg, 0); /* nothing is copied that could fail */
        small->lent = true;
        r->answer = small;
    } else if (wefti_rpc_keep(msg, RPC_SEND_COPY, &r->answer)) {
        no_memory(r, msg);
        (void)wefti_rpc_keep(msg, 0, &r->answer); /* without memory for that too, the driver makes it */
    }
}

/* Answer a request that was claimed; the message's pieces are copied. */
static weft_status_t put(rpc_request_t *r, rpc_msg_t *msg)
{
    weft_runtime_t *rt, *was;
    if (__builtin_expect(!r->on_heap, 1)) {
        weft_service_t *service = r->fn->service;
        rpc_count(&service->stats.answered, 1);
        if (__builtin_expect(wefti_rpc_failed(msg), 0))
            rpc_count(&service->stats.failed, 1);
        if (__builtin_expect(!r->fn->oneway, 1))
            return wefti_rpc_send_back(r->am, false, msg);
        wefti_rpc_msg_free(msg);
        return WEFT_OK;
    }
    rt = r->rt;
    if (!atomic_load(&r->work) && wefti_enter(rt, &was)) {
        wefti_rpc_answer(r, msg, RPC_SEND_COPY, NULL);
        wefti_leave(rt, was);
        return WEFT_OK;
    }
    keep(r, msg);
    wefti_rpc_hand_in(r, WORK_ANSWER);
    return WEFT_OK;
}

/* Any answer, as a message that is made first. Apart, since its stack is large. */
static __attribute__((noinline)) weft_status_t reply_made(rpc_request_t *r, const weft_value_t *values, size_t n)
{
    rpc_msg_t msg;
    weft_status_t st = claim(r);
    if (st)
        return st;
    weft_status_t packed = pack(r, values, n, &msg);
    st = put(r, &msg);
    return packed ? packed : st;
}

/* What most functions answer: scalars, from the stack of the arrival. */
static inline bool reply_at_once(rpc_request_t *r, const weft_value_t *values, size_t n)
{
    const rpc_function_t *f = r->fn;
    if (r->on_heap || f->oneway || atomic_load_explicit(&r->answered, memory_order_relaxed) ||
        !wefti_rpc_send_scalars(r->ep, RPC_AM_TO_CLIENT, rpc_head(RPC_REPLY, r->call), f->results, values, n))
        return false;
    atomic_store_explicit(&r->answered, true, memory_order_relaxed);
    rpc_count(&f->service->stats.answered, 1);
    return true;
}

weft_status_t weft_request_reply(weft_request_t *request, const weft_value_t *values, size_t n)
{
    if (__builtin_expect(!request || (n && !values), 0))
        return wefti_fail(WEFT_ERR_INVALID, "%s", request ? "the results are NULL" : "the request is NULL");
    rpc_request_t *r = rpc_request(request);
    return __builtin_expect(reply_at_once(r, values, n), 1) ? WEFT_OK : reply_made(r, values, n);
}

weft_status_t wefti_rpc_request_no(rpc_request_t *r, const rpc_no_t *no)
{
    rpc_msg_t msg;
    weft_status_t st = claim(r);
    if (st)
        return st;
    wefti_rpc_failure(&msg, call_of(r), no);
    return put(r, &msg);
}

weft_status_t weft_request_fail_with(weft_request_t *request, weft_code_t code, uint32_t category, int32_t value,
                                     const char *message)
{
    if (!request)
        return wefti_fail(WEFT_ERR_INVALID, "the request is NULL");
    if (code <= WEFT_CODE_OK || code > WEFT_CODE_UNAUTHENTICATED)
        code = WEFT_CODE_UNKNOWN;
    rpc_no_t no = {.code = code, .category = category, .value = value, .message = message};
    return wefti_rpc_request_no(rpc_request(request), &no);
}

weft_status_t weft_request_fail(weft_request_t *request, weft_code_t code, const char *message)
{
    return weft_request_fail_with(request, code, WEFT_CATEGORY_NONE, 0, message);
}

/* The scratch of the operation of weft_request_reply_from(). */
typedef struct from {
    rpc_request_t *r; /* on the heap: this and its answer */
    rpc_kept_t *answer;
    weft_am_t *am; /* on the stack: the message of the call, and the reply */
    rpc_out_t *out;
} from_t;

static weft_status_t from_start(weft_op_t *op)
{
    from_t *f = wefti_op_scratch(op, from_t);
    rpc_msg_t msg;
    (void)wefti_op_track(op); /* without memory for that it has no deadline, but it is sent */
    wefti_rpc_kept_take(f->answer, &msg);
    wefti_rpc_answer(f->r, &msg, 0, op);
    return WEFT_OK;
}

static void from_cancel(weft_op_t *op, weft_status_t why)
{
    from_t *f = wefti_op_scratch(op, from_t);
    rpc_request_t *r = f->r;
    rpc_out_t *out = r ? r->out : f->out;
    if (out) {
        weft_op_cancel(&out->op);
    } else if (r && r->waiting) {
        rpc_no_t no = {.code = WEFT_CODE_CANCELLED, .message = "the server took its reply back"};
        wefti_rpc_answer_unheld(r, why);
        wefti_rpc_answer_no(r, &no);
    }
}

static const wefti_op_kind_t from_kind = {.name = "reply", .start = from_start, .cancel = from_cancel};

static void from_sent(void *user, weft_status_t st)
{
    weft_op_t *op = (weft_op_t *)user;
    weft_am_release(wefti_op_scratch(op, from_t)->am);
    wefti_op_complete(op, st);
}

static weft_status_t from_stack(rpc_request_t *r, rpc_msg_t *msg, weft_op_t *op)
{
    from_t *f = wefti_op_scratch(op, from_t);
    *f = (from_t){0};
    wefti_op_begin(op);
    rpc_count(&r->fn->service->stats.answered, 1);
    weft_status_t st = wefti_rpc_send(r->ep, RPC_AM_TO_CLIENT, msg, 0, from_sent, op, &f->out);
    if (st) {
        rpc_no_t no;
        if (wefti_rpc_instead(st, &no)) {
            wefti_rpc_failure(msg, r->call, &no);
            (void)wefti_rpc_send_back(r->am, false, msg);
        }
        return wefti_op_take_back(op, st == WEFT_ERR_NOMEM ? st : WEFT_ERR_CANCELLED);
    }
    if (f->out) {
        (void)wefti_op_track(op);
        f->am = weft_am_keep(r->am);
    } else {
        wefti_op_complete(op, WEFT_OK);
    }
    return WEFT_OK;
}

weft_status_t weft_request_reply_from(weft_request_t *request, const weft_value_t *values, size_t n, weft_op_t *op)
{
    rpc_msg_t msg;
    if (!request || !op || (n && !values))
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL",
                          !request ? "the request"
                          : op     ? "an array of results"
                                   : "the operation");
    rpc_request_t *r = rpc_request(request);
    weft_runtime_t *rt = rpc_request_rt(r);
    weft_status_t st = wefti_op_prepare(rt, op, &from_kind);
    if (st)
        return st;
    st = claim(r);
    if (st)
        goto err_op;
    st = pack(r, values, n, &msg);
    if (st) {
        (void)put(r, &msg);
        goto err_op;
    }
    if (!r->on_heap && !r->fn->oneway)
        return from_stack(r, &msg, op);
    if (!r->on_heap) { /* oneway: nobody gets the results */
        (void)put(r, &msg);
        wefti_op_begin(op);
        wefti_op_complete(op, WEFT_OK);
        return WEFT_OK;
    }
    rpc_kept_t *a;
    st = wefti_rpc_keep(&msg, 0, &a);
    if (st) {
        no_memory(r, &msg);
        (void)put(r, &msg);
        goto err_op;
    }
    *wefti_op_scratch(op, from_t) = (from_t){.r = r, .answer = a};
    st = wefti_op_post(rt, op);
    if (st) /* it was not started: the runtime is closed */
        wefti_rpc_kept_free(a);
    return st;

err_op:
    wefti_op_unprepare(op);
    return st;
}

/* --- beside the answer --------------------------------------------------------------------------------------------------- */

weft_request_t *weft_request_keep(weft_request_t *request)
{
    rpc_request_t *r = (rpc_request_t *)(void *)request;
    rpc_no_t no;
    bool am_gone = false;
    if (!r)
        return NULL;
    if (r->on_heap || r->moved) {
        r = rpc_request(request);
        if (!atomic_exchange(&r->kept, true))
            atomic_fetch_add(&r->holds, 1);
        return &r->pub;
    }
    bool answered = atomic_load_explicit(&r->answered, memory_order_relaxed);
    rpc_request_t *kept = wefti_rpc_request_new(r->fn, r->am, r->call, r->pub.left_ns, &r->where, &no, &am_gone);
    if (!kept) {
        no.ran = 0; /* it has begun */
        if (!answered)
            (void)wefti_rpc_request_no(r, &no);
        return NULL;
    }
    atomic_store(&kept->kept, true);
    r->moved = kept;
    if (answered) {
        atomic_store(&kept->answered, true);
        wefti_rpc_request_over(kept); /* not freed: it is not released */
    } else if (!kept->ep->lane || kept->fn->service->closing) {
        /* its function closed the endpoint or the service before it kept the request, so nothing else ends it */
        wefti_rpc_request_end(kept, kept->ep->lane ? END_CLOSED : END_PEER);
    }
    return &kept->pub;
}

void weft_request_release(weft_request_t *request)
{
    if (!request)
        return;
    rpc_request_t *r = rpc_request(request);
    if (r->on_heap && r->kept)
        wefti_rpc_request_drop(r);
}

size_t weft_request_identity(const weft_request_t *request, char *buf, size_t cap)
{
    if (!request || (cap && !buf))
        return 0;
    return wefti_ep_identity(wefti_head(rpc_request(request)->fn->service->rt), request->from, buf, cap);
}

bool weft_request_cancelled(const weft_request_t *request)
{
    if (!request)
        return true;
    rpc_request_t *r = rpc_request(request);
    return r->on_heap && atomic_load(&r->cancelled);
}

void weft_request_on_cancel(weft_request_t *request, weft_cancel_fn fn, void *user)
{
    rpc_request_t *r = request ? rpc_request(request) : NULL;
    if (!r || !r->on_heap)
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

/* Through the inbox: `coming` has kept the request. */
static weft_status_t fetch_start_inbox(weft_op_t *op)
{
    rpc_request_t *r = wefti_op_scratch(op, fetch_t)->r;
    weft_status_t st = fetch_start(op);
    atomic_fetch_sub(&r->coming, 1);
    wefti_rpc_request_free_if_done(r);
    return st;
}

static void fetch_cancel(weft_op_t *op, weft_status_t why)
{
    (void)why;
    weft_op_cancel(&wefti_op_scratch(op, fetch_t)->r->in->fetch->op); /* it ends when nothing is written to the buffer any more */
}

static const wefti_op_kind_t fetch_kind = {.name = "fetch", .start = fetch_start_inbox, .cancel = fetch_cancel};

weft_status_t weft_request_fetch(weft_request_t *request, void *buf, size_t cap, const weft_mem_kind_t *kind, weft_op_t *op)
{
    if (!request || !op || !buf)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !request ? "the request" : op ? "the buffer" : "the operation");
    rpc_request_t *r = rpc_request(request);
    if (!r->on_heap || !r->pub.fetch_len)
        return wefti_fail(WEFT_ERR_STATE, "all arguments are here: fetch_len is 0");
    weft_status_t st = wefti_op_prepare(rpc_request_rt(r), op, &fetch_kind);
    if (st)
        return st;
    *wefti_op_scratch(op, fetch_t) = (fetch_t){r, buf, cap, kind};
    /* until it is started only the program has the request, and may release it in on_cancel: `coming` keeps it */
    return wefti_rpc_go(r->rt, op, fetch_start, &r->coming, NULL);
}
