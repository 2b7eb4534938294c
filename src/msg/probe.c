/* msg/probe.c - looking at messages that have arrived, and taking one out of the matching.
 *
 * The answer has to be given at once, so a thread that does not drive the runtime asks the driver (wefti_ask) and waits for
 * it. Of several shards those are asked that hold something, one after the other. */
#include "msg/state.h"

typedef struct question {
    weft_runtime_t *rt;
    weft_ep_t *ep;
    uint64_t tag, mask;
    bool claim, driving; /* driving: who asks is the driver already */
    weft_msg_t *msg;
    weft_msg_envelope_t envelope;
} question_t;

static void take_out(msg_state_t *ms, weft_msg_t *msg)
{
    wefti_msg_unhold(ms, msg);
    msg->claimed = true;
    wefti_list_push_back(&ms->claimed, &msg->all_link);
    wefti_list_push_back(&msg_ep(msg->ep)->claimed, &msg->ep_link);
}

static weft_status_t look(void *arg)
{
    question_t *q = arg;
    weft_runtime_t *rt = q->rt;
    msg_state_t *ms = msg_state(rt);
    if (!q->driving)
        wefti_progress(rt);
    if (q->ep && !wefti_ep_is_there(q->ep))
        return wefti_fail(WEFT_ERR_CLOSED, "the endpoint is closed");
    weft_msg_t *msg = wefti_msg_find_held(ms, q->ep, q->tag, q->mask);
    if (!msg) {
        if (wefti_flow_n_starving(rt)) /* who asks in a loop waits too */
            wefti_outbox_tell_starving(rt, q->ep, WEFTI_TRAFFIC_MSG);
        return wefti_fail_plain(WEFT_ERR_NOTFOUND);
    }
    q->envelope = (weft_msg_envelope_t){msg->tag, msg->len, msg->from};
    q->msg = msg;
    if (q->claim)
        take_out(ms, msg);
    return WEFT_OK;
}

/* Inside a callback only the shard of that callback can be asked; inside one of another runtime none. */
static weft_status_t ask_all(question_t *q)
{
    weft_runtime_t *head = q->rt, *holders[WEFT_SHARDS_MAX + 1];
    uint32_t n = 0, i = 0;
    weft_status_t st = wefti_join(head);
    if (st)
        return st;
    wefti_wants_t *wants = msg_state(head)->wants;
    for (uint32_t first = wefti_wants_turn(wants); (holders[n] = wefti_wants_holder(wants, first, &i));)
        n++;
    wefti_part(head);
    st = wefti_fail_plain(WEFT_ERR_NOTFOUND);
    for (i = 0; i < n && st == WEFT_ERR_NOTFOUND; i++) {
        q->rt = holders[i];
        st = wefti_ask(q->rt, look, q);
    }
    return st;
}

static weft_status_t ask(question_t *q)
{
    if (!q->rt)
        return wefti_fail(WEFT_ERR_INVALID, "the runtime is NULL");
    weft_status_t st = wefti_ep_check_of(q->ep, &q->rt);
    if (st)
        return st;
    if (!q->ep && wefti_sharded(q->rt)) {
        if (!wefti_driven)
            return ask_all(q);
        if (wefti_shard_here(q->rt))
            q->rt = wefti_driven;
    }
    q->driving = wefti_driven == q->rt;
    return wefti_ask(q->rt, look, q);
}

weft_status_t weft_msg_probe(weft_runtime_t *rt, weft_ep_t *ep, uint64_t tag, uint64_t mask, weft_msg_envelope_t *envelope_out)
{
    question_t q = {.rt = rt, .ep = ep, .tag = tag, .mask = mask};
    weft_status_t st = ask(&q);
    if (!st && envelope_out)
        *envelope_out = q.envelope;
    return st;
}

weft_status_t weft_msg_claim(weft_runtime_t *rt, weft_ep_t *ep, uint64_t tag, uint64_t mask, weft_msg_envelope_t *envelope_out,
                             weft_msg_t **msg_out)
{
    question_t q = {.rt = rt, .ep = ep, .tag = tag, .mask = mask, .claim = true};
    if (!msg_out)
        return wefti_fail(WEFT_ERR_INVALID, "a claim needs somewhere to put the message");
    weft_status_t st = ask(&q);
    if (st)
        return st;
    if (envelope_out)
        *envelope_out = q.envelope;
    *msg_out = q.msg;
    return WEFT_OK;
}

/* --- giving a claim up ----------------------------------------------------------------------------------------------------- */

void wefti_msg_drop(weft_msg_t *msg)
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
    wefti_msg_drop(later->msg);
    wefti_free(later);
}

/* By a thread that is inside. What the driver does not do any more, the end of the runtime does. */
static void drop_by_driver(weft_runtime_t *rt, weft_msg_t *msg)
{
    drop_later_t *later = (drop_later_t *)wefti_calloc(1, sizeof *later);
    if (later) {
        later->call.fn = drop_on_driver;
        later->msg = msg;
        if (wefti_call_on_driver(rt, &later->call))
            return;
        wefti_free(later);
    } else {
        wefti_warn("no memory to drop a claimed message now; it goes with its runtime");
    }
    atomic_store(&msg->parted, true);
}

void weft_msg_drop_claimed(weft_msg_t *msg)
{
    if (!msg)
        return;
    weft_runtime_t *rt = msg_runtime(msg), *was;
    if (rt && wefti_enter(rt, &was)) {
        wefti_msg_drop(msg);
        wefti_leave(rt, was);
    } else if (rt && !wefti_join(rt)) {
        drop_by_driver(rt, msg);
        wefti_part(rt);
    } else if (atomic_exchange(&msg->parted, true)) {
        wefti_free(msg);
    }
}
