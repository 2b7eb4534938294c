/* rpc/answer.c - answers to requests: made where the function runs, sent by the driver.
 *
 * A request on the stack is answered from the stack. For a block the values become bytes on the thread that answers, and what
 * they view is copied there or stays borrowed; the message then goes to the driver, waits for the request's stream if there is
 * one, is remembered if the call was made with `once`, and is sent.
 *
 * An answer that has to wait for the peer's window holds on to what asked for it: the message, where there is only that, or the
 * request. So a peer that does not take its answers is not read from any more, and a service's limits count what waits.
 *
 * Promise: of all who answer one wins, and the others are told so; nothing is sent after that, but a failure where the results cannot leave: no
 * caller that is there waits for nothing. tests/wire/rpc_service.c, tests/wire/rpc_threads.c, tests/fault/rpc_service_nomem.c. */
#include <stddef.h>
#include <stdio.h>

#include "rpc/serve.h"

/* --- messages ------------------------------------------------------------------------------------------------------------- */

void wefti_rpc_failure(rpc_msg_t *msg, uint64_t call, const rpc_no_t *no)
{
    rpc_ext_t ext = {.flags = (uint16_t)(RPC_F_FAILED | no->ran)};
    rpc_failure_t failure = {no->code, no->category, no->value, 0};
    rpc_msg_init(msg, rpc_head(RPC_REPLY_EXT, call));
    rpc_msg_put(msg, &ext, sizeof ext);
    rpc_msg_put(msg, &failure, sizeof failure);
    if (no->message)
        rpc_msg_put(msg, no->message, strnlen(no->message, RPC_MESSAGE_MAX));
}

static bool failed(const rpc_msg_t *msg)
{
    rpc_head_t head;
    rpc_ext_t ext;
    memcpy(&head, msg->header, sizeof head);
    if (rpc_kind(&head) != RPC_REPLY_EXT)
        return false;
    memcpy(&ext, msg->header + sizeof head, sizeof ext);
    return ext.flags & RPC_F_FAILED;
}

static void set_call(rpc_msg_t *msg, uint64_t call)
{
    memcpy(msg->header + offsetof(rpc_head_t, call), &call, sizeof call);
}

/* The number of a block's call may change until its answer is sent: then it is set. */
static uint64_t call_of(const rpc_request_t *r)
{
    return r->block ? 0 : r->call;
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
        rpc_ext_t none = {0};
        rpc_msg_init(msg, rpc_head(RPC_REPLY_EXT, call_of(r)));
        rpc_ext_t *ext = (rpc_ext_t *)rpc_msg_put(msg, &none, sizeof none);
        st = wefti_rpc_pack(msg, codec, values, n, ext);
        if (!st)
            return WEFT_OK;
    }
    rpc_no_t no = {.code = WEFT_CODE_RESOURCE_EXHAUSTED, .message = "there is no memory for the reply"};
    if (st != WEFT_ERR_NOMEM) {
        no = (rpc_no_t){.code = WEFT_CODE_INTERNAL, .category = WEFT_CATEGORY_WEFT, .value = st, .message = words};
        snprintf(words, sizeof words, "the function's results are not those of %s: %s", weft_sig_text(r->fn->sig),
                 weft_last_error());
    }
    wefti_rpc_failure(msg, call_of(r), &no);
    return st;
}

static void no_memory(rpc_msg_t *msg, uint64_t call)
{
    rpc_no_t no = {.code = WEFT_CODE_RESOURCE_EXHAUSTED, .message = "there is no memory for the reply"};
    wefti_rpc_msg_free(msg);
    wefti_rpc_failure(msg, call, &no);
}

/* Results cannot leave, though their caller is there: what it hears instead. false: this status says that nobody is there. */
static bool instead(weft_status_t st, rpc_no_t *no_out)
{
    *no_out = (rpc_no_t){.code = WEFT_CODE_RESOURCE_EXHAUSTED, .message = "there is no memory for the reply"};
    if (st == WEFT_ERR_SYSTEM)
        *no_out = (rpc_no_t){.code = WEFT_CODE_INTERNAL,
                             .category = WEFT_CATEGORY_WEFT,
                             .value = st,
                             .message = "the memory of the function's results cannot be read"};
    else if (st == WEFT_ERR_CANCELLED)
        *no_out = (rpc_no_t){.code = WEFT_CODE_CANCELLED, .message = "the server took its reply back"};
    return st == WEFT_ERR_NOMEM || st == WEFT_ERR_SYSTEM || st == WEFT_ERR_CANCELLED;
}

/* Whoever waits for an answer that there is no memory for must not do so for ever. */
static void unanswerable(weft_ep_t *ep, weft_status_t st)
{
    if (st == WEFT_ERR_NOMEM)
        wefti_ep_cannot(ep, "no memory for a reply");
}

/* It could not be sent. What has no results (a failure, which says whether the function ran; a BOUND, whose number is no call's) is not replaced:
 * it would not get smaller, and say something else. */
static __attribute__((noinline)) weft_status_t send_instead(weft_ep_t *ep, rpc_msg_t *msg, weft_status_t st, rpc_out_fn done,
                                                            void *user, rpc_out_t **out_out)
{
    rpc_head_t head;
    rpc_no_t no;
    weft_status_t again = st;
    if (!instead(st, &no))
        return st;
    memcpy(&head, msg->header, sizeof head);
    if (rpc_kind(&head) != RPC_BOUND && !failed(msg)) {
        wefti_rpc_failure(msg, head.call, &no);
        again = wefti_rpc_send(ep, RPC_AM_TO_CLIENT, msg, 0, done, user, out_out);
    }
    unanswerable(ep, again);
    return again ? again : st;
}

/* Send it; where results cannot leave (there is no memory for them), their caller hears so, and the status says why. */
static inline weft_status_t send(weft_ep_t *ep, rpc_msg_t *msg, unsigned how, rpc_out_fn done, void *user, rpc_out_t **out_out)
{
    weft_status_t st = wefti_rpc_send(ep, RPC_AM_TO_CLIENT, msg, how, done, user, out_out);
    return __builtin_expect(!st, 1) ? st : send_instead(ep, msg, st, done, user, out_out);
}

void wefti_rpc_reply_unsent(weft_ep_t *ep, uint64_t call, weft_status_t why)
{
    rpc_msg_t msg;
    rpc_out_t *out;
    rpc_no_t no;
    if (!instead(why, &no))
        return;
    wefti_rpc_failure(&msg, call, &no);
    unanswerable(ep, wefti_rpc_send(ep, RPC_AM_TO_CLIENT, &msg, 0, NULL, NULL, &out));
}

/* --- of what is no block -------------------------------------------------------------------------------------------------- */

static void sent_back(void *user, weft_status_t st)
{
    (void)st; /* its caller was told, or the peer is gone */
    weft_am_release((weft_am_t *)user);
}

static weft_status_t send_back(weft_am_t *am, bool am_gone, rpc_msg_t *msg)
{
    rpc_out_t *out;
    weft_status_t st = send(am->ep, msg, RPC_SEND_COPY, sent_back, NULL, &out);
    if (__builtin_expect(out != NULL, 0) && !am_gone)
        wefti_rpc_out_user(out, weft_am_keep(am));
    return !st || st == WEFT_ERR_NOMEM ? st : WEFT_ERR_CANCELLED;
}

void wefti_rpc_send_back(weft_am_t *am, bool am_gone, rpc_msg_t *msg)
{
    (void)send_back(am, am_gone, msg);
}

void wefti_rpc_answer_again(weft_am_t *am, uint64_t call, const rpc_once_entry_t *e)
{
    rpc_msg_t msg;
    rpc_msg_init(&msg, rpc_head(RPC_REPLY, call));
    msg.len = e->header_len;
    memcpy(msg.header, e->reply, e->header_len);
    set_call(&msg, call);
    msg.iov[0] = (weft_iov_t){e->reply + ((e->header_len + 7u) & ~7u), e->payload_len};
    msg.iov_n = e->payload_len ? 1 : 0;
    msg.payload = e->payload_len;
    (void)send_back(am, false, &msg);
}

/* --- of blocks, on the driver --------------------------------------------------------------------------------------------- */

static rpc_answer_t *answer_new(rpc_msg_t *msg)
{
    size_t header = (msg->len + 7u) & ~7u;
    rpc_answer_t *a = (rpc_answer_t *)wefti_malloc(sizeof *a + header + msg->iov_n * sizeof *msg->iov);
    if (!a)
        return NULL;
    a->len = msg->len;
    a->iov_n = msg->iov_n;
    a->payload = msg->payload;
    a->bytes = msg->bytes;
    a->iov = (weft_iov_t *)(void *)(a->header + header);
    memcpy(a->header, msg->header, msg->len);
    memcpy(a->iov, msg->iov, msg->iov_n * sizeof *msg->iov);
    msg->bytes = NULL;
    return a;
}

/* A message again. a is freed. */
static void answer_take(rpc_answer_t *a, rpc_msg_t *msg)
{
    msg->len = a->len;
    msg->iov_n = a->iov_n;
    msg->payload = a->payload;
    msg->bytes = a->bytes;
    memcpy(msg->header, a->header, a->len);
    memcpy(msg->iov, a->iov, a->iov_n * sizeof *a->iov);
    wefti_free(a);
}

void wefti_rpc_answer_free(rpc_request_t *r)
{
    rpc_answer_t *a = r->answer;
    if (a)
        wefti_free(a->bytes);
    wefti_free(a);
    r->answer = NULL;
}

static void sent(void *user, weft_status_t st)
{
    rpc_request_t *r = (rpc_request_t *)user;
    weft_op_t *op = r->answer_op;
    r->out = NULL;
    r->answer_op = NULL;
    if (op)
        wefti_op_complete(op, st);
    wefti_rpc_request_over(r); /* not freed: we refer to it */
    wefti_rpc_request_unref(r);
}

/* The stream has sent what was posted: the answer may follow. */
static void drained(void *owner)
{
    rpc_request_t *r = (rpc_request_t *)owner;
    rpc_msg_t msg;
    if (!r->waiting)
        return;
    weft_op_t *op = r->answer_op;
    answer_take(r->answer, &msg);
    r->answer = NULL;
    r->answer_op = NULL;
    r->waiting = false;
    wefti_rpc_answer(r, &msg, 0, op);
}

/* Keep it until its stream has sent what was posted before. false: no memory; msg is a failure now. */
static bool hold(rpc_request_t *r, rpc_msg_t *msg, unsigned how, weft_op_t *op)
{
    if (!(how & RPC_SEND_COPY) || !wefti_rpc_msg_own(msg))
        r->answer = answer_new(msg);
    if (!r->answer) {
        no_memory(msg, r->call);
        return false;
    }
    r->answer_op = op;
    r->waiting = true;
    wefti_stream_when_drained(r->pub.stream, drained, r);
    return true;
}

void wefti_rpc_answer(rpc_request_t *r, rpc_msg_t *msg, unsigned how, weft_op_t *op)
{
    weft_service_t *service = r->fn->service;
    rpc_out_t *out = NULL;
    weft_status_t st = WEFT_ERR_CANCELLED;
    if (r->pub.stream && !atomic_load(&r->cancelled) && !wefti_stream_drained(r->pub.stream)) {
        if (hold(r, msg, how, op))
            return;
        if (op)
            wefti_op_complete(op, WEFT_ERR_NOMEM);
        op = NULL;
    }
    set_call(msg, r->call);
    bool no = failed(msg);
    if (r->once) {
        wefti_once_answered(&service->book, r->once, msg, wefti_rpc_room(r->share), wefti_now(service->rs->rt));
        r->once = NULL;
        wefti_rpc_service_remember(service);
    }
    if (r->ep && !r->fn->oneway) {
        st = send(r->ep, msg, how, sent, r, &out);
    } else {
        wefti_rpc_msg_free(msg);
        st = r->fn->oneway ? WEFT_OK : st;
    }
    if (!st && !atomic_load(&r->cancelled)) {
        rpc_count(&service->stats.answered, 1);
        rpc_count(&service->stats.failed, no);
    }
    if (r->pub.stream)
        wefti_stream_over(r->pub.stream, no && !st ? WEFT_ERR_CALL : st); /* nothing follows the answer */
    if (op && (st || !out)) {
        wefti_op_complete(op, st);
        op = NULL;
    }
    if (out) {
        r->out = out;
        r->answer_op = op;
        r->refs++;
        wefti_timer_stop(service->rs->rt, &r->timer);
        return;
    }
    wefti_rpc_request_over(r);
}

void wefti_rpc_answer_no(rpc_request_t *r, const rpc_no_t *no)
{
    rpc_msg_t msg;
    wefti_rpc_failure(&msg, r->call, no);
    wefti_rpc_answer(r, &msg, RPC_SEND_COPY, NULL);
}

void wefti_rpc_answer_handed_in(rpc_request_t *r)
{
    rpc_msg_t msg;
    if (r->answer)
        answer_take(r->answer, &msg);
    else
        wefti_rpc_failure(&msg, r->call,
                          &(rpc_no_t){.code = WEFT_CODE_RESOURCE_EXHAUSTED, .message = "there is no memory for the reply"});
    r->answer = NULL;
    wefti_rpc_answer(r, &msg, 0, NULL);
}

void wefti_rpc_answer_unheld(rpc_request_t *r, weft_status_t why)
{
    weft_op_t *op = r->answer_op;
    wefti_rpc_answer_free(r);
    r->answer_op = NULL;
    r->waiting = false;
    if (op)
        wefti_op_complete(op, why);
}

/* --- the program's calls -------------------------------------------------------------------------------------------------- */

/* Who answers first. */
static weft_status_t claim(rpc_request_t *r)
{
    bool before = atomic_load_explicit(&r->answered, memory_order_relaxed);
    if (r->block && wefti_gone(r->rt))
        return wefti_fail_gone(r->rt);
    if (!r->block)
        atomic_store_explicit(&r->answered, true, memory_order_relaxed);
    else if (!before)
        before = atomic_exchange(&r->answered, true);
    if (__builtin_expect(!before, 1))
        return WEFT_OK;
    if (r->block && atomic_load(&r->cancelled))
        return wefti_fail(WEFT_ERR_CANCELLED, "nobody waits for the answer any more");
    return wefti_fail(WEFT_ERR_STATE, "the request was answered before");
}

/* The answer to a request that was claimed: the message's pieces are copied. */
static weft_status_t put(rpc_request_t *r, rpc_msg_t *msg)
{
    weft_runtime_t *rt, *was;
    if (__builtin_expect(!r->block, 1)) {
        weft_service_t *service = r->fn->service;
        rpc_count(&service->stats.answered, 1);
        if (__builtin_expect(failed(msg), 0))
            rpc_count(&service->stats.failed, 1);
        if (__builtin_expect(!r->fn->oneway, 1))
            return send_back(r->am, false, msg);
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
        no_memory(msg, call_of(r));
    r->answer = answer_new(msg);
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

/* --- without a copy ------------------------------------------------------------------------------------------------------- */

/* The room of the operation of weft_request_reply_from(). */
typedef struct from {
    rpc_request_t *r; /* a block, */
    rpc_answer_t *answer;
    weft_am_t *am; /* or what was on the stack */
    rpc_out_t *out;
} from_t;

static weft_status_t from_start(weft_op_t *op)
{
    from_t *f = wefti_op_scratch(op, from_t);
    rpc_msg_t msg;
    (void)wefti_op_track(op); /* without memory for that it has no deadline, but it goes */
    answer_take(f->answer, &msg);
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
        if (instead(st, &no)) {
            wefti_rpc_failure(msg, r->call, &no);
            (void)send_back(r->am, false, msg);
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
    if (!r->block && !r->fn->oneway)
        return from_stack(r, &msg, op);
    rpc_answer_t *a = r->block ? answer_new(&msg) : NULL;
    if (!a) {
        st = r->block ? wefti_fail(WEFT_ERR_NOMEM, "no memory for the reply") : WEFT_OK;
        if (st)
            no_memory(&msg, call_of(r));
        (void)put(r, &msg);
        if (!st) {
            wefti_op_begin(op);
            wefti_op_complete(op, WEFT_OK);
            return WEFT_OK;
        }
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
