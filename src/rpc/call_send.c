/* rpc/call_send.c - a call becomes a message to a server, and may be taken back.
 *
 * `ran` says what is known of the function: a request that certainly did not leave has not run; from the moment that it may have
 * left, it may have run. */
#include "rpc/client.h"

void wefti_rpc_unsend(weft_op_t *op)
{
    rpc_call_t *c = rpc_call(op);
    rpc_server_t *s = c->server;
    wefti_list_remove(&wefti_opx(op)->link);
    if (c->id && s->ep)
        wefti_slots_remove(&rpc_ep(s->ep)->calls, c->id);
    c->id = 0;
    s->under_way--;
    c->server = NULL;
    c->state = CALL_NEW;
    if (!c->out || !wefti_rpc_out_unsent(c->out))
        c->ran = WEFT_MAY_HAVE_RUN;
    if (__builtin_expect(c->stream != NULL, 0))
        wefti_stream_connect(c->stream, NULL, 0, op);
}

void wefti_rpc_call_abandon(weft_op_t *op)
{
    const rpc_call_t *c = rpc_call(op);
    rpc_msg_t msg;
    rpc_out_t *out;
    if (c->id && rpc_server_up(c->server)) {
        rpc_msg_init(&msg, rpc_head(RPC_CANCEL, c->id));
        /* without memory for it the function would run on, maybe for ever: end the connection, so that it is told */
        if (wefti_rpc_send(c->server->ep, RPC_AM_TO_SERVER, &msg, RPC_SEND_URGENT, NULL, NULL, &out) == WEFT_ERR_NOMEM)
            wefti_ep_cannot(c->server->ep, "no memory to cancel a call");
    }
    wefti_rpc_unsend(op);
}

/* The request has left, or cannot. Its buffers are free. */
static void request_sent(void *user, weft_status_t status)
{
    weft_op_t *op = (weft_op_t *)user;
    rpc_call_t *c = rpc_call(op);
    bool oneway = c->kind == CALL_ONEWAY;
    c->out = NULL;
    if (c->state == CALL_ENDING) {
        c->state = CALL_NEW;
        if (c->why == WEFT_ERR_AGAIN)
            wefti_rpc_call_again(op, op->status, NULL);
        else
            wefti_rpc_finish(op, c->why);
        return;
    }
    if (c->state != CALL_SENT) /* its reply is being fetched */
        return;
    if (!status)
        c->ran = WEFT_MAY_HAVE_RUN;
    /* else a reply says why the payload was rejected, or the endpoint is down and ends its calls */
    if (oneway || status == WEFT_ERR_NOMEM || status == WEFT_ERR_LIMIT || status == WEFT_ERR_SYSTEM) {
        wefti_rpc_unsend(op);
        wefti_rpc_call_end(op, status, NULL);
    }
}

/* What goes between the head and the arguments. */
static rpc_ext_t *put_ext(rpc_msg_t *msg, weft_op_t *op, const rpc_binding_t *b)
{
    const rpc_call_t *c = rpc_call(op);
    const weft_client_t *client = c->method->client;
    rpc_ext_t *ext = rpc_msg_put_ext(msg);
    if (wefti_opx(op)->flags & WEFTI_OPF_TIMED) {
        uint64_t now = wefti_now(client->rs->rt), when = wefti_opx(op)->timer.key, left = when > now ? when - now : 0;
        rpc_msg_put(msg, &left, sizeof left);
        ext->flags |= RPC_F_DEADLINE;
    }
    if (c->seq) {
        const rpc_call_t *oldest = wefti_container_of(wefti_list_first(&client->once), rpc_call_t, once_link);
        rpc_once_t once = {client->id, c->seq, oldest->seq, b->epoch};
        rpc_msg_put(msg, &once, sizeof once);
        ext->flags |= RPC_F_ONCE;
    }
    return ext;
}

static weft_status_t make(rpc_msg_t *msg, weft_op_t *op, const rpc_binding_t *b, bool with_ext)
{
    const rpc_call_t *c = rpc_call(op);
    rpc_head_t head = rpc_head(with_ext ? RPC_CALL_EXT : RPC_CALL, c->id);
    head.slot = b->slot;
    head.check = b->check;
    rpc_msg_init(msg, head);
    return wefti_rpc_pack(msg, c->method->args, c->args, c->n, with_ext ? put_ext(msg, op, b) : NULL);
}

weft_status_t wefti_rpc_call_send(weft_op_t *op, rpc_binding_t *b)
{
    rpc_call_t *c = rpc_call(op);
    rpc_server_t *s = b->server;
    weft_ep_t *ep = s->ep;
    rpc_ep_t *e = rpc_ep(ep);
    rpc_msg_t msg;
    if (c->kind != CALL_ONEWAY) {
        weft_status_t st = wefti_slots_add(&e->calls, op, &c->id);
        if (st)
            return st;
    }
    bool ext = wefti_opx(op)->flags & WEFTI_OPF_TIMED || c->seq;
    weft_status_t st = make(&msg, op, b, ext);
    if (__builtin_expect(st == WEFT_ERR_LIMIT && !ext, 0))
        st = make(&msg, op, b, true);
    if (!st)
        st = wefti_rpc_send(ep, RPC_AM_TO_SERVER, &msg, 0, request_sent, op, &c->out);
    if (__builtin_expect(st != WEFT_OK, 0)) {
        if (c->id)
            wefti_slots_remove(&e->calls, c->id);
        c->id = 0;
        return st;
    }
    c->tries += c->tries < UINT8_MAX;
    c->epoch = b->epoch;
    op->from = ep->id;
    if (!c->out)
        c->ran = WEFT_MAY_HAVE_RUN;
    if (c->kind == CALL_ONEWAY && !c->out) {
        wefti_rpc_call_end(op, WEFT_OK, NULL);
        return WEFT_OK;
    }
    c->state = CALL_SENT;
    c->server = s;
    s->under_way++;
    wefti_list_push_back(&e->sent, &wefti_opx(op)->link);
    if (__builtin_expect(c->stream != NULL, 0))
        wefti_stream_connect(c->stream, ep, c->id, op); /* what waits on it follows the request */
    return WEFT_OK;
}

const char *wefti_rpc_send_words(weft_status_t status)
{
    return status == WEFT_ERR_INVALID || status == WEFT_ERR_UNSUPPORTED ? weft_last_error() : NULL;
}

void wefti_rpc_transmit(weft_op_t *op, rpc_binding_t *b)
{
    weft_status_t st = WEFT_OK;
    if (rpc_call(op)->kind != CALL_CHECK) {
        st = wefti_rpc_call_send(op, b);
        if (!st)
            return;
    } else {
        op->from = b->server->ep->id;
    }
    wefti_rpc_call_end(op, st, wefti_rpc_send_words(st));
}
