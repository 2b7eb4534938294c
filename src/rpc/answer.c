/* rpc/answer.c - answers on the driver: failures as messages, sending, waiting for streams.
 *
 * An answer waits for the stream of its request, is remembered if the call was made with `once`, and is sent. One that has to
 * wait for the peer's window keeps its request, or, where there is none, the message that asked for it. So a peer that does not
 * take its answers is not read from any more, and the limits of a service count what waits. respond.c makes answers out of what
 * the program says.
 *
 * Promise: nothing is sent after the answer, except a failure when its results cannot leave: no caller that is there waits in
 * vain. tests/wire/rpc_service.c, tests/wire/rpc_threads.c, tests/fault/rpc_service_nomem.c. */
#include <stddef.h>

#include "rpc/serve.h"

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

static void set_call(rpc_msg_t *msg, uint64_t call)
{
    memcpy(msg->header + offsetof(rpc_head_t, call), &call, sizeof call);
}

bool wefti_rpc_instead(weft_status_t st, rpc_no_t *no_out)
{
    *no_out = rpc_no_memory();
    if (st == WEFT_ERR_SYSTEM)
        *no_out = (rpc_no_t){.code = WEFT_CODE_INTERNAL,
                             .category = WEFT_CATEGORY_WEFT,
                             .value = st,
                             .message = "the memory of the function's results cannot be read"};
    else if (st == WEFT_ERR_CANCELLED)
        *no_out = rpc_no(0, WEFT_CODE_CANCELLED, "the server took its reply back");
    return st == WEFT_ERR_NOMEM || st == WEFT_ERR_SYSTEM || st == WEFT_ERR_CANCELLED;
}

/* It could not be sent. Only results are replaced by a failure. A failure is not (it says whether the function ran), nor is a
 * BOUND (its number is not that of a call). */
static __attribute__((noinline)) weft_status_t send_instead(weft_ep_t *ep, rpc_msg_t *msg, weft_status_t st, rpc_out_fn done,
                                                            void *user, rpc_out_t **out_out)
{
    rpc_head_t head;
    rpc_no_t no;
    weft_status_t again = st;
    if (!wefti_rpc_instead(st, &no))
        return st;
    memcpy(&head, msg->header, sizeof head);
    if (rpc_kind(&head) != RPC_BOUND && !wefti_rpc_failed(msg)) {
        wefti_rpc_failure(msg, head.call, &no);
        again = wefti_rpc_send(ep, RPC_AM_TO_CLIENT, msg, 0, done, user, out_out);
    }
    if (again == WEFT_ERR_NOMEM) /* not even to say so: the connection ends, so that the caller does not wait for ever */
        wefti_ep_cannot(ep, "no memory for a reply");
    return again ? again : st;
}

/* Send it. If results cannot leave, their caller is told so, and the status says why. */
static inline weft_status_t send(weft_ep_t *ep, rpc_msg_t *msg, unsigned how, rpc_out_fn done, void *user, rpc_out_t **out_out)
{
    weft_status_t st = wefti_rpc_send(ep, RPC_AM_TO_CLIENT, msg, how, done, user, out_out);
    return __builtin_expect(!st, 1) ? st : send_instead(ep, msg, st, done, user, out_out);
}

void wefti_rpc_reply_unsent(weft_ep_t *ep, uint64_t call, weft_status_t why)
{
    rpc_msg_t msg;
    rpc_out_t *out;
    rpc_msg_init(&msg, rpc_head(RPC_REPLY, call));
    (void)send_instead(ep, &msg, why, NULL, NULL, &out);
}

static void sent_back(void *user, weft_status_t st)
{
    (void)st; /* its caller was told, or is gone */
    weft_am_release((weft_am_t *)user);
}

weft_status_t wefti_rpc_send_back(weft_am_t *am, bool am_gone, rpc_msg_t *msg)
{
    rpc_out_t *out;
    weft_status_t st = send(am->ep, msg, RPC_SEND_COPY, sent_back, NULL, &out);
    if (__builtin_expect(out != NULL, 0) && !am_gone)
        out->user = weft_am_keep(am);
    return !st || st == WEFT_ERR_NOMEM ? st : WEFT_ERR_CANCELLED;
}

void wefti_rpc_answer_again(weft_am_t *am, uint64_t call, const rpc_once_entry_t *e)
{
    rpc_msg_t msg;
    wefti_rpc_kept_view(e->reply, &msg);
    set_call(&msg, call);
    (void)wefti_rpc_send_back(am, false, &msg);
}

static void sent(void *user, weft_status_t st)
{
    rpc_request_t *r = (rpc_request_t *)user;
    weft_op_t *op = r->answer_op;
    r->out = NULL;
    r->answer_op = NULL;
    if (op)
        wefti_op_complete(op, st);
    wefti_rpc_request_over(r); /* not freed: we have a reference */
    wefti_rpc_request_unref(r);
}

/* The stream has sent what was posted before: the answer may follow. */
static void drained(void *owner)
{
    rpc_request_t *r = (rpc_request_t *)owner;
    rpc_msg_t msg;
    if (!r->waiting)
        return;
    weft_op_t *op = r->answer_op;
    wefti_rpc_kept_take(r->answer, &msg);
    r->answer = NULL;
    r->answer_op = NULL;
    r->waiting = false;
    wefti_rpc_answer(r, &msg, 0, op);
}

/* Keep it until its stream has sent what was posted before. False: no memory; msg is a failure now. */
static bool hold(rpc_request_t *r, rpc_msg_t *msg, unsigned how, weft_op_t *op)
{
    if (wefti_rpc_keep(msg, how, &r->answer)) {
        rpc_no_t no = rpc_no_memory();
        wefti_rpc_msg_free(msg);
        wefti_rpc_failure(msg, r->call, &no);
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
    bool no = wefti_rpc_failed(msg);
    if (r->once) {
        wefti_once_answered(&service->book, r->once, msg, wefti_rpc_space(r->share), wefti_now(service->rs->rt));
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
    rpc_no_t no = rpc_no_memory();
    if (r->answer)
        wefti_rpc_kept_take(r->answer, &msg);
    else
        wefti_rpc_failure(&msg, r->call, &no);
    r->answer = NULL;
    wefti_rpc_answer(r, &msg, 0, NULL);
}

void wefti_rpc_answer_unheld(rpc_request_t *r, weft_status_t why)
{
    weft_op_t *op = r->answer_op;
    wefti_rpc_kept_free(r->answer);
    r->answer = NULL;
    r->answer_op = NULL;
    r->waiting = false;
    if (op)
        wefti_op_complete(op, why);
}
