/* rpc/stream_out.c - what one side of a stream sends: items in order, as far as the other side's credit goes, and the end.
 *
 *     posted --credit, and none before it--> sent, complete          a small item: from the stack, nothing is kept
 *        |                              \----> flying --> complete   its payload is being taken, or active messages have to wait
 *        \--> waiting --credit--> as above
 *                \--cancel, deadline--> complete: it was not sent
 *
 * An item that flies has its number: it cannot be taken back, and completes when active messages are done with it.
 *
 * Promise: items have the numbers 0, 1, 2 ... without a gap, in the order of their posts. If one that has its number cannot leave
 * (a device does not give its bytes, memory runs out), nothing follows it, and an END tells the other side how many there should
 * have been. The same holds for a value or an end that was posted without an operation. Without memory for that END the
 * connection ends. tests/wire/rpc_stream.c, tests/fault/rpc_stream_nomem.c. */
#include "rpc/stream.h"

typedef struct stream_send {
    weft_stream_t *s;
    weft_value_t value;
    const rpc_kept_t *packed; /* instead of value: a message with copies of everything */
    rpc_out_t *out;           /* while it flies */
    bool end;
} stream_send_t;
_Static_assert(sizeof(stream_send_t) <= WEFTI_OP_SCRATCH_SIZE, "enlarge the scratch of operations");

static stream_send_t *stream_send(weft_op_t *op)
{
    return wefti_op_scratch(op, stream_send_t);
}

/* What a send ends with when the call is over. */
static weft_status_t over_status(const weft_stream_t *s)
{
    return stream_answered(s->why) ? WEFT_ERR_CLOSED : s->why;
}

/* WEFT_OK: it may be sent, now or later. */
static weft_status_t refused(const weft_stream_t *s)
{
    return s->out.status ? s->out.status : s->over ? over_status(s) : WEFT_OK;
}

static bool may_go(const weft_stream_t *s, bool end)
{
    return s->ep && (end || (s->out.items < s->out.may_items && s->out.bytes < s->out.may_bytes));
}

/* --- sending ------------------------------------------------------------------------------------------------------- */

static weft_status_t pack(const weft_stream_t *s, const weft_value_t *value, rpc_msg_t *msg)
{
    rpc_msg_init(msg, rpc_head(RPC_ITEM, 0)); /* number and call come when it goes */
    return wefti_rpc_pack(msg, &s->out.codec, value, 1, rpc_msg_put_ext(msg));
}

static void number(const weft_stream_t *s, rpc_msg_t *msg)
{
    rpc_head_t head = rpc_head(RPC_ITEM, s->call);
    head.check = (uint32_t)s->out.items;
    memcpy(msg->header, &head, sizeof head);
}

static void count(weft_stream_t *s, uint64_t bytes)
{
    s->out.items++;
    s->out.bytes += bytes;
}

static uint64_t bytes_of(const rpc_msg_t *msg)
{
    return msg->len - STREAM_ITEM_HEAD + msg->payload;
}

static weft_status_t put_end(weft_stream_t *s, rpc_out_fn done, void *user, rpc_out_t **out_out)
{
    rpc_msg_t msg;
    rpc_head_t head = rpc_head(RPC_END, s->call);
    head.check = (uint32_t)s->out.items;
    rpc_msg_init(&msg, head);
    weft_status_t st = wefti_rpc_send(s->ep, s->to_peer, &msg, 0, done, user, out_out);
    if (!st)
        s->out.end_sent = true;
    return st;
}

/* Something that has a number, or that nobody here waits for, did not leave. */
static void broken(weft_stream_t *s, weft_status_t status)
{
    rpc_out_t *out;
    if (s->out.status || s->over)
        return;
    /* without an END the other side would wait, maybe for ever */
    if (s->ep && !s->out.end_sent && put_end(s, NULL, NULL, &out) == WEFT_ERR_NOMEM)
        wefti_ep_cannot(s->ep, "no memory to end a stream");
    wefti_stream_out_fail(s, status);
}

/* The answer ends the stream at the client, which does not count values: it must not take a stream with a missing value for a
 * whole one. */
static void missing_before_answer(weft_stream_t *s)
{
    weft_ep_t *ep = s->at_server && stream_answered(s->why) ? weft_ep_find(s->rt, s->peer) : NULL;
    if (ep && ep->lane)
        wefti_ep_cannot(ep, "a value of a stream cannot be sent, and its call was answered");
}

static void flown(void *user, weft_status_t status)
{
    weft_op_t *op = (weft_op_t *)user;
    weft_stream_t *s = stream_send(op)->s;
    wefti_list_remove(&wefti_opx(op)->link);
    if (s->over && (status == WEFT_ERR_CANCELLED || status == WEFT_ERR_REJECTED))
        status = over_status(s); /* this side ended it, or the other side did, which knew it before */
    else if (s->over && status)
        missing_before_answer(s);
    else if (status && status != WEFT_ERR_REJECTED)
        broken(s, status);
    wefti_op_complete(op, status);
    wefti_stream_unref(s);
}

static weft_status_t put_item(weft_op_t *op, rpc_msg_t *msg)
{
    stream_send_t *w = stream_send(op);
    weft_stream_t *s = w->s;
    uint64_t bytes = bytes_of(msg);
    number(s, msg);
    weft_status_t st = wefti_rpc_send(s->ep, s->to_peer, msg, 0, flown, op, &w->out);
    if (!st)
        count(s, bytes);
    return st;
}

static weft_status_t pack_and_put_item(weft_op_t *op)
{
    const stream_send_t *w = stream_send(op);
    rpc_msg_t msg;
    weft_status_t st = WEFT_OK;
    if (w->packed)
        wefti_rpc_kept_view(w->packed, &msg);
    else
        st = pack(w->s, &w->value, &msg);
    return st ? st : put_item(op, &msg);
}

/* Send it: it may go. Then it is complete or flies; on an error it is neither. */
static weft_status_t put(weft_op_t *op)
{
    stream_send_t *w = stream_send(op);
    weft_stream_t *s = w->s;
    weft_status_t st = w->end ? put_end(s, flown, op, &w->out) : pack_and_put_item(op);
    if (st)
        return st;
    if (w->out) {
        wefti_list_push_back(&s->out.flying, &wefti_opx(op)->link);
        stream_ref(s);
    } else {
        wefti_op_complete(op, WEFT_OK);
    }
    return WEFT_OK;
}

/* An end that is not sent is none: another may be posted. */
static void not_ended(weft_op_t *op)
{
    stream_send_t *w = stream_send(op);
    if (w->end)
        atomic_store_explicit(&w->s->out.ended, 0, memory_order_relaxed);
}

/* It cannot be sent. If the program gave no operation it is not told, so the other side is: that a value is missing, or that
 * there are no more. Only then does the operation hold the stream; with an operation of the program the stream may be gone. */
static void failed(weft_op_t *op, weft_status_t st)
{
    stream_send_t *w = stream_send(op);
    weft_stream_t *s = w->s;
    if (w->packed && !s->out.status && !s->over)
        s->out.items++;
    if (w->packed || op == &s->out.end_op)
        broken(s, st);
    wefti_op_complete(op, st);
}

static void look_drained(weft_stream_t *s)
{
    void (*drained)(void *user) = s->out.drained;
    if (!drained || !wefti_stream_drained(s))
        return;
    s->out.drained = NULL;
    drained(s->out.drained_user);
}

static void send_waiting(weft_stream_t *s)
{
    wefti_list_t *l;
    while ((l = wefti_list_first(&s->out.waiting))) {
        weft_op_t *op = wefti_op_of_link(l);
        if (!may_go(s, stream_send(op)->end))
            return;
        wefti_list_remove(l);
        weft_status_t st = put(op);
        if (st) {
            not_ended(op);
            failed(op, st);
        }
    }
    look_drained(s);
}

void wefti_stream_out_kick(weft_stream_t *s)
{
    stream_ref(s); /* an answer that waited for the last item may free the stream */
    send_waiting(s);
    wefti_stream_unref(s);
}

/* --- posting ------------------------------------------------------------------------------------------------------- */

static weft_status_t put_or_wait(weft_op_t *op)
{
    stream_send_t *w = stream_send(op);
    weft_stream_t *s = w->s;
    weft_status_t st = refused(s);
    if (!st && !w->end)
        st = wefti_op_may_start(op);
    if (st)
        return st;
    if (wefti_list_empty(&s->out.waiting) && may_go(s, w->end))
        return put(op);
    st = wefti_op_track(op);
    if (!st)
        wefti_list_push_back(&s->out.waiting, &wefti_opx(op)->link);
    return st;
}

static weft_status_t start(weft_op_t *op)
{
    weft_status_t st = put_or_wait(op);
    if (st)
        not_ended(op); /* not in failed(): the stream may be gone by then */
    return st;
}

static weft_status_t start_inbox(weft_op_t *op)
{
    weft_stream_t *s = stream_send(op)->s;
    weft_status_t st = start(op);
    atomic_fetch_sub(&s->out.coming, 1);
    look_drained(s);
    wefti_stream_unref(s);
    return st;
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    stream_send_t *w = stream_send(op);
    weft_stream_t *s = w->s;
    if (w->out)
        return;
    wefti_list_remove(&wefti_opx(op)->link);
    not_ended(op);
    wefti_op_complete(op, why);
    wefti_stream_out_kick(s); /* an end needs no credit */
}

static const wefti_op_kind_t send_kind = {.name = "stream send", .start = start_inbox, .cancel = cancel, .failed = failed};
static const wefti_op_kind_t own_kind = {
    .name = "stream send", .start = start_inbox, .cancel = cancel, .failed = failed, .by_post = true};

static weft_status_t check(weft_stream_t *s, const void *value)
{
    if (!s || !value)
        return wefti_fail(WEFT_ERR_INVALID, "the %s is NULL", s ? "value" : "stream");
    if (!s->out.codec.n)
        return wefti_fail(WEFT_ERR_STATE, "the signature has no stream in this direction; this side only receives");
    return WEFT_OK;
}

static weft_status_t post(weft_stream_t *s, stream_send_t what, weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare(s->rt, op, what.packed || op == &s->out.end_op ? &own_kind : &send_kind);
    if (st)
        return st;
    what.s = s;
    *stream_send(op) = what;
    return wefti_rpc_go(s->rt, op, start, &s->refs, &s->out.coming);
}

/* A send without an operation of the program. A copy of its message follows. */
typedef struct copied {
    weft_op_t op;
    weft_stream_t *s;
} copied_t;

static void copied_free(weft_stream_t *s, copied_t *c)
{
    atomic_fetch_sub_explicit(&s->out.copies, 1, memory_order_relaxed);
    wefti_free(c);
}

static void copied_done(weft_op_t *op, void *user)
{
    copied_t *c = (copied_t *)user;
    weft_stream_t *s = c->s;
    (void)op;
    copied_free(s, c);
    wefti_stream_unref(s);
}

static weft_status_t send_copied(weft_stream_t *s, const weft_value_t *value)
{
    if (atomic_fetch_add_explicit(&s->out.copies, 1, memory_order_relaxed) >= RPC_STREAM_ITEMS) {
        copied_free(s, NULL);
        return wefti_fail(WEFT_ERR_AGAIN, "%u values without an operation are under way already", RPC_STREAM_ITEMS);
    }
    copied_t *c = NULL;
    rpc_msg_t msg;
    weft_status_t st = pack(s, value, &msg);
    if (!st) {
        c = (copied_t *)wefti_malloc(sizeof *c + wefti_rpc_kept_size(&msg, RPC_KEEP_ALL));
        st = c ? wefti_rpc_keep_at((rpc_kept_t *)(void *)(c + 1), &msg, RPC_KEEP_ALL)
               : wefti_fail(WEFT_ERR_NOMEM, "no memory to copy a value");
        wefti_rpc_msg_free(&msg);
    }
    if (!st) {
        *c = (copied_t){.op = {.fn = copied_done, .user = c}, .s = s};
        stream_ref(s);
        st = post(s, (stream_send_t){.packed = (const rpc_kept_t *)(const void *)(c + 1)}, &c->op);
        if (!st)
            return WEFT_OK;
        stream_ref_undo(s);
    }
    copied_free(s, c);
    return st;
}

/* Send a small value now, from the stack. WEFT_ERR_LIMIT: it has to be copied first. */
static weft_status_t send_here(weft_stream_t *s, const weft_value_t *value)
{
    rpc_msg_t msg;
    weft_status_t st = refused(s);
    if (st)
        return st;
    if (!wefti_list_empty(&s->out.waiting) || !may_go(s, false))
        return wefti_fail(WEFT_ERR_AGAIN, "the other side has to take some first; use an operation to wait for it");
    st = pack(s, value, &msg);
    if (st)
        return st;
    number(s, &msg);
    if (!msg.iov_n && wefti_am_send_now(s->ep, s->to_peer, msg.header, msg.len)) {
        count(s, bytes_of(&msg));
        return WEFT_OK;
    }
    wefti_rpc_msg_free(&msg);
    return WEFT_ERR_LIMIT;
}

static weft_status_t send_detached(weft_stream_t *s, const weft_value_t *value)
{
    weft_runtime_t *rt = s->rt, *was;
    weft_status_t st = WEFT_ERR_LIMIT;
    if (!wefti_closing(rt) && wefti_enter(rt, &was)) {
        if (wefti_may_pass_inbox(rt, was))
            st = send_here(s, value);
        wefti_leave(rt, was);
    }
    return st == WEFT_ERR_LIMIT ? send_copied(s, value) : st;
}

weft_status_t weft_stream_send(weft_stream_t *stream, const weft_value_t *value, weft_op_t *op)
{
    weft_status_t st = check(stream, value);
    if (st)
        return st;
    if (atomic_load_explicit(&stream->out.ended, memory_order_relaxed))
        return wefti_fail(WEFT_ERR_STATE, "the stream was ended: nothing can be sent after weft_stream_end()");
    if (!op)
        return send_detached(stream, value);
    return post(stream, (stream_send_t){.value = *value}, op);
}

static void end_done(weft_op_t *op, void *user)
{
    (void)op;
    wefti_stream_unref((weft_stream_t *)user);
}

weft_status_t weft_stream_end(weft_stream_t *stream, weft_op_t *op)
{
    weft_status_t st = check(stream, stream);
    if (st)
        return st;
    if (atomic_exchange_explicit(&stream->out.ended, 1, memory_order_relaxed))
        return wefti_fail(WEFT_ERR_STATE, "the stream was ended before");
    bool own = !op;
    if (own) {
        op = &stream->out.end_op;
        op->fn = end_done;
        op->user = stream;
        stream_ref(stream);
    }
    st = post(stream, (stream_send_t){.end = true}, op);
    if (!st)
        return WEFT_OK;
    atomic_store_explicit(&stream->out.ended, 0, memory_order_relaxed);
    if (own)
        stream_ref_undo(stream);
    return st;
}

/* --- credit and the end -------------------------------------------------------------------------------------------- */

void wefti_stream_out_credit(weft_stream_t *s, weft_am_t *am)
{
    rpc_credit_t credit;
    if (!s->out.codec.n || am->len || am->header_len != sizeof(rpc_head_t) + sizeof credit) {
        wefti_ep_protocol_error(s->ep, "a CREDIT of a stream that is none");
        return;
    }
    memcpy(&credit, (const uint8_t *)am->header + sizeof(rpc_head_t), sizeof credit);
    if (credit.items < s->out.may_items || credit.bytes < s->out.may_bytes) {
        wefti_ep_protocol_error(s->ep, "a CREDIT of a stream takes back what was given");
        return;
    }
    s->out.may_items = credit.items;
    s->out.may_bytes = credit.bytes;
    wefti_stream_out_kick(s);
}

static void end_waiting(weft_stream_t *s, weft_status_t status)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&s->out.waiting));)
        wefti_op_complete(wefti_op_of_link(l), status);
}

void wefti_stream_out_fail(weft_stream_t *s, weft_status_t status)
{
    if (s->out.status)
        return;
    s->out.status = status;
    end_waiting(s, status);
    look_drained(s);
}

void wefti_stream_out_over(weft_stream_t *s, weft_status_t status)
{
    s->out.drained = NULL;
    end_waiting(s, over_status(s));
    if (s->at_server && stream_answered(status))
        return; /* what was sent before the answer still goes */
    wefti_list_each_safe(l, &s->out.flying)
        weft_op_cancel(&stream_send(wefti_op_of_link(l))->out->op);
}

/* A reply may overtake what its thread posted before, if both go through the inbox: so that counts too. */
bool wefti_stream_drained(const weft_stream_t *s)
{
    return wefti_list_empty(&s->out.waiting) && !atomic_load(&s->out.coming);
}

void wefti_stream_when_drained(weft_stream_t *s, void (*drained)(void *user), void *user)
{
    s->out.drained = drained;
    s->out.drained_user = user;
}
