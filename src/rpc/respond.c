/* rpc/respond.c - what the program answers: weft_request_reply(), weft_request_reply_from(), weft_request_fail().
 *
 * A request on the stack is answered from the stack. For one on the heap the values become bytes on the thread that answers, and
 * what they view is copied there or stays borrowed; then the message goes to the driver (answer.c).
 *
 * Promise: of all threads that answer a request one wins, and the others are told so. tests/wire/rpc_service.c,
 * tests/wire/rpc_threads.c. */
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
    const wefti_codec_t *codec = r->fn->results;
    char words[RPC_MESSAGE_MAX];
    rpc_msg_init(msg, rpc_head(RPC_REPLY, call_of(r)));
    weft_status_t st = wefti_rpc_pack(msg, codec, values, n, NULL);
    if (__builtin_expect(!st && !msg->iov_n, 1))
        return WEFT_OK;
    if (!st || st == WEFT_ERR_LIMIT) {
        rpc_msg_init(msg, rpc_head(RPC_REPLY_EXT, call_of(r)));
        st = wefti_rpc_pack(msg, codec, values, n, rpc_msg_put_ext(msg));
        if (!st)
            return WEFT_OK;
    }
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
    if (wefti_rpc_msg_own(msg))
        no_memory(r, msg);
    r->answer = wefti_rpc_answer_new(msg);
    if (!r->answer)
        wefti_rpc_msg_free(msg);
    wefti_rpc_hand_in(r, WORK_ANSWER);
    return WEFT_OK;
}

weft_status_t weft_request_reply(weft_request_t *request, const weft_value_t *values, size_t n)
{
    rpc_msg_t msg;
    if (!request || (n && !values))
        return wefti_fail(WEFT_ERR_INVALID, "%s", request ? "the results are NULL" : "the request is NULL");
    rpc_request_t *r = rpc_request(request);
    weft_status_t st = claim(r);
    if (st)
        return st;
    weft_status_t packed = pack(r, values, n, &msg);
    st = put(r, &msg);
    return packed ? packed : st;
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
    rpc_answer_t *answer;
    weft_am_t *am; /* on the stack: the message of the call, and the reply */
    rpc_out_t *out;
} from_t;

static weft_status_t from_start(weft_op_t *op)
{
    from_t *f = wefti_op_scratch(op, from_t);
    rpc_msg_t msg;
    (void)wefti_op_track(op); /* without memory for that it has no deadline, but it is sent */
    wefti_rpc_answer_take(f->answer, &msg);
    wefti_rpc_answer(f->r, &msg, 0, op);
    return WEFT_OK;
}

static void from_cancel(weft_op_t *op, weft_status_t why)
{
    from_t *f = wefti_op_scratch(op, from_t);
    rpc_request_t *r = f->r;
    rpc_out_t *out = r ? r->out : f->out;
    if (out) {
        wefti_rpc_out_cancel(out);
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
    rpc_answer_t *a = wefti_rpc_answer_new(&msg);
    if (!a) {
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for the reply");
        no_memory(r, &msg);
        (void)put(r, &msg);
        goto err_op;
    }
    *wefti_op_scratch(op, from_t) = (from_t){.r = r, .answer = a};
    st = wefti_op_go(rt, op);
    if (st) { /* it was not started: the runtime is closed */
        wefti_free(a->bytes);
        wefti_free(a);
    }
    return st;

err_op:
    wefti_op_unprepare(op);
    return st;
}
