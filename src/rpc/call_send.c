/* rpc/call_send.c - a call on its way: which server it goes to, its message, whether it goes again, and its end.
 *
 * `ran` says what is known of the function: a request that certainly did not leave has not run; from the moment that it may have
 * left, it may have run.
 *
 * At most once: a call whose request certainly did not leave, or was turned away, goes to any server. One that may have run goes
 * again only if its function is idempotent, or if it has a number by which its server knows it (`once`); then it goes to that
 * server, as long as that remembers it.
 *
 * Promise: every call completes once, after its buffers are free: until then it is ENDING. tests/wire/rpc_call.c,
 * tests/sim/rpc_once.c, tests/fault/rpc_lost.c. */
#include "rpc/client.h"

/* --- the end ------------------------------------------------------------------------------------------------------------- */

weft_code_t wefti_rpc_code_of(weft_status_t status)
{
    static const struct {
        weft_status_t status;
        weft_code_t code;
    } codes[] = {
        {WEFT_OK, WEFT_CODE_OK},
        {WEFT_ERR_TIMEOUT, WEFT_CODE_DEADLINE_EXCEEDED},
        {WEFT_ERR_CANCELLED, WEFT_CODE_CANCELLED},
        {WEFT_ERR_INVALID, WEFT_CODE_INVALID_ARGUMENT},
        {WEFT_ERR_NOMEM, WEFT_CODE_RESOURCE_EXHAUSTED},
        {WEFT_ERR_LIMIT, WEFT_CODE_RESOURCE_EXHAUSTED},
        {WEFT_ERR_TRUNCATED, WEFT_CODE_RESOURCE_EXHAUSTED},
        {WEFT_ERR_UNSUPPORTED, WEFT_CODE_UNIMPLEMENTED},
        {WEFT_ERR_AUTH, WEFT_CODE_UNAUTHENTICATED},
        {WEFT_ERR_PROTOCOL, WEFT_CODE_INTERNAL},
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].status == status)
            return codes[i].code;
    return WEFT_CODE_UNAVAILABLE;
}

/* The sentence for weft_last_error(): the function, and the message of its reply. */
static uint64_t explain(weft_op_t *op, weft_status_t status)
{
    const rpc_call_t *c = rpc_call(op);
    const char *message = c->reply ? c->reply->message : NULL;
    if (wefti_opx(op)->rt->why) /* its endpoint ends, and says why */
        return 0;
    return wefti_detail_format("%.100s: %s", c->method->text, message && *message ? message : weft_status_text(status));
}

/* Its buffers are free. */
static inline void complete(weft_op_t *op, weft_status_t status)
{
    rpc_call_t *c = rpc_call(op);
    weft_client_t *client = c->method->client;
    weft_client_stats_t *s = &client->stats;
    rpc_count(status == WEFT_OK              ? &s->ok
              : status == WEFT_ERR_CANCELLED ? &s->cancelled
              : status == WEFT_ERR_TIMEOUT   ? &s->timed_out
                                             : &s->failed,
              1);
    rpc_count(&s->under_way, -1);
    if (c->seq)
        wefti_list_remove(&c->once_link);
    if (__builtin_expect(c->stream != NULL, 0)) {
        wefti_stream_over(c->stream, status);
        wefti_stream_drop(c->stream);
    }
    client->calls--;
    if (__builtin_expect(status != WEFT_OK, 0))
        wefti_op_complete_why(op, status, explain(op, status));
    else
        wefti_op_complete(op, status);
    if (__builtin_expect(client->closing, 0)) {
        wefti_rpc_client_hold(client);
        wefti_rpc_client_unhold(client);
    }
}

void wefti_rpc_finish(weft_op_t *op, weft_status_t status)
{
    rpc_call_t *c = rpc_call(op);
    if (__builtin_expect(c->out == NULL, 1)) {
        complete(op, status);
        return;
    }
    c->state = CALL_ENDING;
    c->why = status;
    if (status)
        weft_op_cancel(&c->out->op);
}

void wefti_rpc_fill_reply(weft_op_t *op, weft_status_t status, const char *message)
{
    const rpc_call_t *c = rpc_call(op);
    weft_reply_t *r = c->reply;
    if (!r)
        return;
    r->tries = c->tries;
    if (message) {
        wefti_rpc_reply_fail(r, wefti_rpc_code_of(status), (weft_ran_t)c->ran, message, strlen(message));
    } else {
        r->code = wefti_rpc_code_of(status);
        r->ran = (weft_ran_t)c->ran;
        r->message = status ? weft_status_text(status) : "";
    }
    if (status && status != WEFT_ERR_CALL) {
        r->category = WEFT_CATEGORY_WEFT;
        r->value = status;
    }
}

void wefti_rpc_call_end(weft_op_t *op, weft_status_t status, const char *message)
{
    const rpc_call_t *c = rpc_call(op);
    if (__builtin_expect(status || message || !c->reply, 0)) {
        wefti_rpc_fill_reply(op, status, message);
    } else { /* the rest of it was filled in when it was posted */
        c->reply->tries = c->tries;
        c->reply->ran = (weft_ran_t)c->ran;
    }
    wefti_rpc_finish(op, status);
}

/* --- the message --------------------------------------------------------------------------------------------------------- */

static inline void unsend(weft_op_t *op)
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

void wefti_rpc_unsend(weft_op_t *op)
{
    unsend(op);
}

void wefti_rpc_call_ok(weft_op_t *op)
{
    rpc_call_t *c = rpc_call(op);
    weft_reply_t *r = c->reply;
    unsend(op);
    c->ran = WEFT_RAN;
    if (__builtin_expect(r != NULL, 1)) { /* the rest of it was filled in when it was posted */
        r->tries = c->tries;
        r->ran = WEFT_RAN;
    }
    if (__builtin_expect(c->out == NULL, 1))
        complete(op, WEFT_OK);
    else
        wefti_rpc_finish(op, WEFT_OK);
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
    bool oneway = c->kind >= CALL_ONEWAY;
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

static inline rpc_head_t head_of(const rpc_call_t *c, const rpc_binding_t *b, unsigned kind)
{
    rpc_head_t head = rpc_head(kind, c->id);
    head.slot = b->slot;
    head.check = b->check;
    return head;
}

static weft_status_t make(rpc_msg_t *msg, weft_op_t *op, const rpc_binding_t *b, bool with_ext)
{
    const rpc_call_t *c = rpc_call(op);
    rpc_msg_init(msg, head_of(c, b, with_ext ? RPC_CALL_EXT : RPC_CALL));
    return wefti_rpc_pack(msg, c->method->args, c->args, c->n, with_ext ? put_ext(msg, op, b) : NULL);
}

static weft_status_t unpack(rpc_msg_t *msg, const rpc_call_t *c, const rpc_binding_t *b)
{
    wefti_rpc_kept_view(c->packed, msg);
    memcpy(msg->header + offsetof(rpc_head_t, slot), &b->slot, sizeof b->slot);
    memcpy(msg->header + offsetof(rpc_head_t, check), &b->check, sizeof b->check);
    return WEFT_OK;
}

/* Any call, as a message that is made first. Apart, since its stack is large. */
static __attribute__((noinline)) weft_status_t send_made(weft_op_t *op, const rpc_binding_t *b, bool ext)
{
    rpc_call_t *c = rpc_call(op);
    rpc_msg_t msg;
    weft_status_t st = c->kind == CALL_PACKED ? unpack(&msg, c, b) : make(&msg, op, b, ext);
    if (__builtin_expect(st == WEFT_ERR_LIMIT && !ext, 0))
        st = make(&msg, op, b, true);
    return st ? st : wefti_rpc_send(b->server->ep, RPC_AM_TO_SERVER, &msg, 0, request_sent, op, &c->out);
}

weft_status_t wefti_rpc_call_send(weft_op_t *op, rpc_binding_t *b)
{
    rpc_call_t *c = rpc_call(op);
    rpc_server_t *s = b->server;
    weft_ep_t *ep = s->ep;
    rpc_ep_t *e = rpc_ep(ep);
    weft_status_t st = WEFT_OK;
    if (c->kind < CALL_ONEWAY) {
        st = wefti_slots_add(&e->calls, op, &c->id);
        if (__builtin_expect(st, 0))
            return st;
    }
    bool ext = wefti_opx(op)->flags & WEFTI_OPF_TIMED || c->seq;
    if (ext || c->kind == CALL_PACKED ||
        !wefti_rpc_send_scalars(ep, RPC_AM_TO_SERVER, head_of(c, b, RPC_CALL), c->method->args, c->args, c->n))
        st = send_made(op, b, ext);
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
    if (c->kind >= CALL_ONEWAY && !c->out) {
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

/* --- the server ---------------------------------------------------------------------------------------------------------- */

static void wait_in(weft_op_t *op, wefti_list_t *list, rpc_server_t *server)
{
    rpc_call_t *c = rpc_call(op);
    c->state = CALL_WAITING;
    c->server = server;
    wefti_list_push_back(list, &wefti_opx(op)->link);
    rpc_count(&c->method->client->stats.waiting, 1);
}

void wefti_rpc_waits_no_more(weft_op_t *op)
{
    rpc_call_t *c = rpc_call(op);
    c->state = CALL_NEW;
    c->server = NULL;
    rpc_count(&c->method->client->stats.waiting, -1);
}

/* Send it to this server, or let it wait for the slot of its function there. */
static void place(weft_op_t *op, rpc_server_t *s)
{
    rpc_binding_t *b = wefti_rpc_binding(s, rpc_call(op)->method);
    if (b && b->state == BINDING_BOUND) {
        wefti_rpc_transmit(op, b);
        return;
    }
    weft_status_t st = !b ? WEFT_ERR_NOMEM : b->state == BINDING_NONE ? wefti_rpc_bind_ask(b) : WEFT_OK;
    if (st)
        wefti_rpc_call_end(op, st, st == WEFT_ERR_UNSUPPORTED ? "the peer's library has no calls; it is too old" : NULL);
    else
        wait_in(op, &b->waiting, s);
}

/* The server that remembers the call, if it is there. Servers that did not say yet who they are are asked. *gone_out: it will not
 * come back. */
static rpc_server_t *find_home(weft_op_t *op, bool *gone_out)
{
    rpc_call_t *c = rpc_call(op);
    const weft_client_t *client = c->method->client;
    uint32_t others = 0;
    wefti_list_each(l, &client->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, link);
        rpc_binding_t *b = rpc_server_up(s) ? wefti_rpc_binding(s, c->method) : NULL;
        if (!b)
            continue;
        if (b->state == BINDING_BOUND && b->epoch == c->epoch)
            return s;
        if (b->state == BINDING_NONE)
            wefti_rpc_bind_ask(b);
        others += b->state == BINDING_BOUND;
    }
    *gone_out = others == 1 && client->n_servers == 1;
    return NULL;
}

void wefti_rpc_route(weft_op_t *op, const rpc_server_t *except)
{
    rpc_call_t *c = rpc_call(op);
    weft_client_t *client = c->method->client;
    bool gone = false;
    bool home = c->seq && c->epoch && c->ran;
    rpc_server_t *s = home ? find_home(op, &gone) : wefti_rpc_pick(client, except);
    if (s) {
        place(op, s);
    } else if (client->lost) {
        wefti_rpc_call_end(op, client->lost, NULL);
    } else if (gone) {
        wefti_rpc_call_end(op, WEFT_ERR_PEER, "the server that it was sent to was restarted and does not remember it");
    } else {
        wait_in(op, &client->waiting, NULL);
        if (home && (!client->patience.node.slot || client->patience.node.key > c->give_up))
            wefti_timer_at(client->rs->rt, &client->patience, c->give_up);
    }
}

static bool may_go_again(const rpc_call_t *c)
{
    const weft_client_t *client = c->method->client;
    const weft_sig_t *sig = atomic_load_explicit(&c->method->sig, memory_order_relaxed);
    if (client->closing || client->lost || (c->stream && wefti_stream_used(c->stream)))
        return false;
    return !c->ran ||
           (!c->fresh && c->tries < client->tries && c->kind < CALL_ONEWAY && (c->seq || (sig && weft_sig_idempotent(sig))));
}

void wefti_rpc_call_again(weft_op_t *op, weft_status_t why, const rpc_server_t *except)
{
    rpc_call_t *c = rpc_call(op);
    weft_client_t *client = c->method->client;
    if (!may_go_again(c)) {
        wefti_rpc_call_end(op, why, NULL);
        return;
    }
    if (c->out) { /* it is made anew when the old one is gone */
        c->state = CALL_ENDING;
        c->why = WEFT_ERR_AGAIN;
        op->status = why;
        weft_op_cancel(&c->out->op);
        return;
    }
    if (c->ran) {
        c->left_open = true;
        rpc_count(&client->stats.retried, 1);
        if (c->seq && !c->give_up)
            c->give_up = wefti_now(client->rs->rt) + RPC_PATIENCE;
    }
    wefti_rpc_route(op, except);
}
