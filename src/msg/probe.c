/* msg/probe.c - looking at messages that have arrived, and taking one out of the matching.
 *
 * The answer has to be given at once, so a thread that cannot drive the runtime sends a question through the inbox and waits for it. */
#include <sched.h>

#include "msg/state.h"

typedef struct question {
    weft_ep_t *ep;
    uint64_t mask;
    bool claim;
    weft_msg_t *msg;
    weft_msg_envelope_t envelope;
} question_t;

_Static_assert(sizeof(question_t) <= WEFTI_OP_ROOM_SIZE, "enlarge wefti_opx_t.room");

static void take_out(msg_state_t *ms, weft_msg_t *msg)
{
    wefti_msg_unhold(ms, msg);
    msg->claimed = true;
    wefti_list_push_back(&ms->claimed, &msg->all_link);
    wefti_list_push_back(&msg_ep(msg->ep)->claimed, &msg->ep_link);
}

static weft_status_t look(weft_runtime_t *rt, uint64_t tag, question_t *q)
{
    msg_state_t *ms = msg_state(rt);
    weft_msg_t *msg = wefti_msg_find_held(ms, q->ep, tag, q->mask);
    if (!msg) {
        if (wefti_flow_n_starving(rt)) /* who asks in a loop waits too */
            wefti_msg_tell_starving(ms, q->ep);
        return WEFT_ERR_NOTFOUND;
    }
    q->envelope = (weft_msg_envelope_t){msg->tag, msg->len, msg->from};
    q->msg = msg;
    if (q->claim)
        take_out(ms, msg);
    return WEFT_OK;
}

static weft_status_t question_start(weft_op_t *op)
{
    wefti_op_complete(op, look(wefti_opx(op)->rt, op->tag, wefti_op_room(op, question_t)));
    return WEFT_OK;
}

static void question_cancel(weft_op_t *op, weft_status_t why)
{
    (void)op; /* answered where it is started: there is nothing to cancel */
    (void)why;
}

static const wefti_op_kind_t question_kind = {"msg probe", question_start, question_cancel};

static weft_status_t ask(weft_runtime_t *rt, uint64_t tag, question_t *q)
{
    weft_runtime_t *was;
    if (!rt)
        return wefti_fail(WEFT_ERR_INVALID, "the runtime is NULL");
    if (wefti_forked(rt))
        return wefti_fail(WEFT_ERR_FORKED, "this process was forked after the runtime was opened");
    if (wefti_enter(rt, &was)) {
        weft_ep_id_t id = q->ep ? q->ep->id : 0;
        if (was != rt)
            wefti_progress(rt);
        /* A callback in there may have closed the endpoint, and it may be gone by now. */
        weft_status_t st = id && weft_ep_find(rt, id) != q->ep ? WEFT_ERR_NOTFOUND : look(rt, tag, q);
        wefti_leave(rt, was);
        return st;
    }
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = wefti_op_prepare(rt, &op, &question_kind);
    if (st)
        return st;
    op.tag = tag;
    *wefti_op_room(&op, question_t) = *q;
    wefti_op_inbox(&op);
    /* Inside a callback of another runtime waiting is refused; the driver of this one answers all the same. */
    while ((void)weft_op_wait(&op, WEFT_FOREVER), !weft_op_done(&op))
        sched_yield();
    *q = *wefti_op_room(&op, question_t);
    return op.status;
}

weft_status_t weft_msg_probe(weft_runtime_t *rt, weft_ep_t *ep, uint64_t tag, uint64_t mask, weft_msg_envelope_t *envelope_out)
{
    question_t q = {.ep = ep, .mask = mask};
    weft_status_t st = ask(rt, tag, &q);
    if (!st && envelope_out)
        *envelope_out = q.envelope;
    return st;
}

weft_status_t weft_msg_claim(weft_runtime_t *rt, weft_ep_t *ep, uint64_t tag, uint64_t mask, weft_msg_envelope_t *envelope_out,
                             weft_msg_t **msg_out)
{
    question_t q = {.ep = ep, .mask = mask, .claim = true};
    if (!msg_out)
        return wefti_fail(WEFT_ERR_INVALID, "a claim needs somewhere to put the message");
    weft_status_t st = ask(rt, tag, &q);
    if (st)
        return st;
    if (envelope_out)
        *envelope_out = q.envelope;
    *msg_out = q.msg;
    return WEFT_OK;
}

/* --- giving a claim up ------------------------------------------------------------------------------------------------------ */

static void drop(weft_msg_t *msg)
{
    if (msg->in)
        wefti_in_refuse(msg->in, true);
    wefti_msg_let_go(msg);
}

typedef struct drop_later {
    wefti_call_t call;
    weft_msg_t *msg;
} drop_later_t;

static void drop_on_driver(wefti_call_t *call)
{
    drop_later_t *later = wefti_container_of(call, drop_later_t, call);
    drop(later->msg);
    wefti_free(later);
}

void weft_msg_drop_claimed(weft_msg_t *msg)
{
    weft_runtime_t *rt = msg ? msg->ms->rt : NULL, *was;
    if (!msg || wefti_forked(rt))
        return;
    if (wefti_enter(rt, &was)) {
        drop(msg);
        wefti_leave(rt, was);
        return;
    }
    drop_later_t *later = (drop_later_t *)wefti_calloc(1, sizeof *later);
    if (!later) {
        wefti_warn("no memory to drop a claimed message of %llu bytes now; it goes with its endpoint",
                   (unsigned long long)msg->len);
        return;
    }
    later->call.fn = drop_on_driver;
    later->msg = msg;
    wefti_call_on_driver(rt, &later->call);
}
