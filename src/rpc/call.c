/* rpc/call.c - calls: from the post to a server, to another if that may be, and to their end.
 *
 * The states are in state.h. A call is on one list at a time: client.waiting, binding.waiting, rpc_ep_t.sent; or on none, while its reply is fetched
 * or a buffer of its is still with the fabric (ENDING).
 *
 * At most once: `ran` says what is known. A call whose request certainly did not leave, or was turned away, goes to whichever server is there; one
 * that may have run goes again only if its function is idempotent, or if it has a number by which its server knows it (`once`), and then to that
 * server, as long as it remembers.
 *
 * Promise: every call completes once; after its buffers are free; within its deadline, and when its server is lost and it may not be sent again.
 * tests/wire/rpc_call.c, tests/sim/rpc_once.c, tests/fault/rpc_lost.c. */
#include "rpc/state.h"

#include "base/clock.h"

/* --- endings --------------------------------------------------------------------------------------------------------------------- */

weft_code_t wefti_rpc_code_of(weft_status_t status)
{
    switch (status) {
    case WEFT_OK:
        return WEFT_CODE_OK;
    case WEFT_ERR_TIMEOUT:
        return WEFT_CODE_DEADLINE_EXCEEDED;
    case WEFT_ERR_CANCELLED:
        return WEFT_CODE_CANCELLED;
    case WEFT_ERR_INVALID:
        return WEFT_CODE_INVALID_ARGUMENT;
    case WEFT_ERR_NOMEM:
    case WEFT_ERR_LIMIT:
    case WEFT_ERR_TRUNCATED:
        return WEFT_CODE_RESOURCE_EXHAUSTED;
    case WEFT_ERR_UNSUPPORTED:
        return WEFT_CODE_UNIMPLEMENTED;
    case WEFT_ERR_AUTH:
        return WEFT_CODE_UNAUTHENTICATED;
    case WEFT_ERR_PROTOCOL:
        return WEFT_CODE_INTERNAL;
    default:
        return WEFT_CODE_UNAVAILABLE;
    }
}

static inline void count(uint64_t *n, int64_t by)
{
    __atomic_store_n(n, *n + (uint64_t)by, __ATOMIC_RELAXED);
}

/* What it says when it failed: the function, and the message of its reply, where somebody wants that. */
static uint64_t explain(weft_op_t *op, weft_status_t status)
{
    const rpc_call_t *c = rpc_call(op);
    const char *message = c->reply ? c->reply->message : NULL;
    if (wefti_opx(op)->rt->why) /* its endpoint ends, and says why */
        return 0;
    return wefti_detail_format("%.100s: %s", c->method->text, message && *message ? message : weft_status_text(status));
}

/* Nothing of it is with anyone any more. */
static void complete(weft_op_t *op, weft_status_t status)
{
    rpc_call_t *c = rpc_call(op);
    weft_client_t *client = c->method->client;
    weft_client_stats_t *s = &client->stats;
    count(status == WEFT_OK              ? &s->ok
          : status == WEFT_ERR_CANCELLED ? &s->cancelled
          : status == WEFT_ERR_TIMEOUT   ? &s->timed_out
                                         : &s->failed,
          1);
    count(&s->under_way, -1);
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
    if (__builtin_expect(c->out != NULL, 0)) {
        c->state = CALL_ENDING;
        c->why = status;
        if (status)
            wefti_rpc_out_cancel(c->out);
        return;
    }
    complete(op, status);
}

/* What the caller gets to know of it. */
static void fill_reply(weft_op_t *op, weft_status_t status, const char *message)
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
        fill_reply(op, status, message);
    } else { /* the rest of it was filled when it was posted */
        c->reply->tries = c->tries;
        c->reply->ran = (weft_ran_t)c->ran;
    }
    wefti_rpc_finish(op, status);
}

/* It ran out of time while nobody was there to take it: say who was looked for. */
static void end_waiting(weft_op_t *op, weft_status_t why)
{
    rpc_call_t *c = rpc_call(op);
    const weft_client_t *client = c->method->client;
    char words[400];
    if (why == WEFT_ERR_TIMEOUT && client->reach && !c->server && c->reply) {
        wefti_rpc_reach_words(client, words, sizeof words);
        wefti_rpc_call_end(op, why, words);
    } else {
        wefti_rpc_call_end(op, why, NULL);
    }
}

/* --- sending --------------------------------------------------------------------------------------------------------------------- */

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

/* The request has left, or cannot. Its buffers are free. */
static void request_sent(void *user, weft_status_t status)
{
    weft_op_t *op = (weft_op_t *)user;
    rpc_call_t *c = rpc_call(op);
    c->out = NULL;
    if (c->state == CALL_ENDING) {
        c->state = CALL_NEW;
        if (c->why == WEFT_ERR_AGAIN)
            wefti_rpc_call_again(op, op->status, NULL);
        else
            complete(op, c->why);
        return;
    }
    if (c->state != CALL_SENT) /* its reply is being fetched */
        return;
    if (status == WEFT_ERR_REJECTED && c->kind != CALL_ONEWAY)
        return; /* the server does not want the payload, and says why in its reply */
    if (status) {
        if (status == WEFT_ERR_NOMEM || status == WEFT_ERR_LIMIT || status == WEFT_ERR_SYSTEM) {
            wefti_rpc_unsend(op);
            wefti_rpc_call_end(op, status, NULL);
        } else if (c->kind == CALL_ONEWAY) {
            wefti_rpc_unsend(op);
            wefti_rpc_call_end(op, status, NULL);
        } /* else the endpoint is down, and will say so */
        return;
    }
    c->ran = WEFT_MAY_HAVE_RUN;
    if (c->kind == CALL_ONEWAY) {
        wefti_rpc_unsend(op);
        wefti_rpc_call_end(op, WEFT_OK, NULL);
    }
}

/* Nobody waits for it any more. */
static void tell_server(weft_op_t *op)
{
    const rpc_call_t *c = rpc_call(op);
    rpc_msg_t msg;
    rpc_out_t *out;
    if (!c->id || !rpc_server_up(c->server))
        return;
    rpc_msg_init(&msg, rpc_head(RPC_CANCEL, c->id));
    /* without memory for it the function would go on for nobody, maybe for ever: it hears that its caller is gone */
    if (wefti_rpc_send(c->server->ep, RPC_AM_TO_SERVER, &msg, RPC_SEND_URGENT, NULL, NULL, &out) == WEFT_ERR_NOMEM)
        wefti_ep_cannot(c->server->ep, "no memory to cancel a call");
}

/* What goes between the head and the arguments. */
static rpc_ext_t *put_ext(rpc_msg_t *msg, weft_op_t *op, const rpc_binding_t *b)
{
    const rpc_call_t *c = rpc_call(op);
    const weft_client_t *client = c->method->client;
    rpc_ext_t ext = {0};
    rpc_ext_t *at = (rpc_ext_t *)rpc_msg_put(msg, &ext, sizeof ext);
    if (wefti_opx(op)->flags & WEFTI_OPF_TIMED) {
        uint64_t now = wefti_now(client->rs->rt), when = wefti_opx(op)->timer.key, left = when > now ? when - now : 0;
        rpc_msg_put(msg, &left, sizeof left);
        at->flags |= RPC_F_DEADLINE;
    }
    if (c->seq) {
        rpc_once_t once = {
            client->id, c->seq,
            rpc_call(wefti_op_of_scratch(wefti_container_of(wefti_list_first(&client->once), rpc_call_t, once_link)))->seq,
            b->epoch};
        rpc_msg_put(msg, &once, sizeof once);
        at->flags |= RPC_F_ONCE;
    }
    return at;
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

/* NEW: send it to where b is. On an error nothing changed. */
static weft_status_t send_call(weft_op_t *op, rpc_binding_t *b)
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
    if (c->kind == CALL_ONEWAY && !c->out) {
        c->ran = WEFT_MAY_HAVE_RUN;
        wefti_rpc_call_end(op, WEFT_OK, NULL);
        return WEFT_OK;
    }
    if (!c->out)
        c->ran = WEFT_MAY_HAVE_RUN;
    c->state = CALL_SENT;
    c->server = s;
    s->under_way++;
    wefti_list_push_back(&e->sent, &wefti_opx(op)->link);
    if (__builtin_expect(c->stream != NULL, 0))
        wefti_stream_connect(c->stream, ep, c->id, op); /* what waits on it follows the request */
    return WEFT_OK;
}

/* What was wrong with a call that could not be sent: whoever said so just now, on this thread, had words for it. */
static const char *words_for(weft_status_t st)
{
    return st == WEFT_ERR_INVALID || st == WEFT_ERR_UNSUPPORTED ? weft_last_error() : NULL;
}

void wefti_rpc_transmit(weft_op_t *op, rpc_binding_t *b)
{
    weft_status_t st = WEFT_OK;
    if (rpc_call(op)->kind == CALL_CHECK) {
        op->from = b->server->ep->id;
        wefti_rpc_call_end(op, WEFT_OK, NULL);
    } else {
        st = send_call(op, b);
    }
    if (st)
        wefti_rpc_call_end(op, st, words_for(st));
}

/* --- finding a server ------------------------------------------------------------------------------------------------------------ */

static void wait_in(weft_op_t *op, wefti_list_t *list, rpc_server_t *server)
{
    rpc_call_t *c = rpc_call(op);
    c->state = CALL_WAITING;
    c->server = server;
    wefti_list_push_back(list, &wefti_opx(op)->link);
    count(&c->method->client->stats.waiting, 1);
}

void wefti_rpc_waits_no_more(weft_op_t *op)
{
    rpc_call_t *c = rpc_call(op);
    c->state = CALL_NEW;
    c->server = NULL;
    count(&c->method->client->stats.waiting, -1);
}

static void take_out(weft_op_t *op)
{
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_rpc_waits_no_more(op);
}

/* To this server: on its way, or waiting for the number of its function there. */
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

/* The server that remembers the call, if it is there. Those that did not say yet who they are are asked. *gone_out: it will not come back. */
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

void wefti_rpc_route(weft_op_t *op, const rpc_server_t * not )
{
    rpc_call_t *c = rpc_call(op);
    weft_client_t *client = c->method->client;
    bool gone = false;
    bool home = c->seq && c->epoch && c->ran;
    rpc_server_t *s = home ? find_home(op, &gone) : wefti_rpc_pick(client, not );
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

void wefti_rpc_call_again(weft_op_t *op, weft_status_t why, const rpc_server_t * not )
{
    rpc_call_t *c = rpc_call(op);
    const weft_client_t *client = c->method->client;
    const weft_sig_t *sig = atomic_load_explicit(&c->method->sig, memory_order_relaxed);
    bool may = !c->ran ||
               (!c->fresh && c->tries < client->tries && c->kind != CALL_ONEWAY && (c->seq || (sig && weft_sig_idempotent(sig))));
    if (c->stream && wefti_stream_used(c->stream))
        may = false;
    if (client->closing || client->lost || !may || (c->kind == CALL_ONEWAY && c->ran)) {
        wefti_rpc_call_end(op, why, NULL);
        return;
    }
    if (c->out) { /* it is made anew when the old one is gone */
        c->state = CALL_ENDING;
        c->why = WEFT_ERR_AGAIN;
        op->status = why;
        wefti_rpc_out_cancel(c->out);
        return;
    }
    if (c->ran) {
        c->left_open = true;
        count(&c->method->client->stats.retried, 1);
        if (c->seq && !c->give_up)
            c->give_up = wefti_now(client->rs->rt) + RPC_PATIENCE;
    }
    wefti_rpc_route(op, not );
}

void wefti_rpc_client_kick(weft_client_t *client)
{
    wefti_list_t all;
    wefti_list_init(&all);
    if (wefti_list_empty(&client->waiting))
        return;
    wefti_list_splice(&all, &client->waiting);
    wefti_rpc_client_hold(client);
    for (wefti_list_t *l; (l = wefti_list_first(&all));) {
        take_out(wefti_op_of_link(l));
        wefti_rpc_route(wefti_op_of_link(l), NULL);
    }
    wefti_rpc_client_unhold(client);
}

/* --- what the endpoint says --------------------------------------------------------------------------------------------------------- */

void wefti_rpc_calls_up(weft_ep_t *ep)
{
    wefti_list_each_safe(l, &rpc_ep(ep)->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
        wefti_rpc_server_heard(s, true);
        wefti_rpc_client_kick(s->client);
    }
}

void wefti_rpc_calls_down(weft_ep_t *ep, weft_status_t why)
{
    rpc_ep_t *e = rpc_ep(ep);
    weft_status_t over = wefti_ep_may_wait(ep);
    wefti_list_t again, lost;
    wefti_list_init(&again);
    wefti_list_init(&lost);
    wefti_list_each(l, &e->servers) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
        wefti_rpc_server_heard(s, false);
        for (uint32_t i = 0; i < s->n_bindings; i++)
            if (s->bindings[i])
                wefti_rpc_binding_reset(s->bindings[i], &again);
    }
    for (wefti_list_t *l; (l = wefti_list_first(&e->sent));) {
        wefti_rpc_unsend(wefti_op_of_link(l));
        wefti_list_push_back(&again, l);
    }
    if (over) {
        wefti_list_splice(&lost, &e->servers);
        wefti_list_each(l, &lost) {
            rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
            s->ep = NULL;
            if (!s->client->reach)
                s->client->lost = over;
        }
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&again));)
        wefti_rpc_call_again(wefti_op_of_link(l), why, NULL);
    for (wefti_list_t *l; (l = wefti_list_pop(&lost));) {
        rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
        if (s->client->reach)
            wefti_rpc_reach_down(s, why);
        else
            wefti_rpc_client_kick(s->client); /* nobody else comes: they end */
    }
}

void wefti_rpc_client_fail(weft_client_t *client, weft_status_t why)
{
    wefti_list_t all;
    wefti_list_init(&all);
    for (wefti_list_t *l; (l = wefti_list_first(&client->waiting));) {
        take_out(wefti_op_of_link(l));
        wefti_list_push_back(&all, l);
    }
    wefti_list_each(at, &client->servers) {
        rpc_server_t *s = wefti_container_of(at, rpc_server_t, link);
        for (uint32_t i = 0; i < s->n_bindings; i++)
            if (s->bindings[i])
                wefti_rpc_binding_reset(s->bindings[i], &all);
        if (s->ep) {
            wefti_list_each_safe(l, &rpc_ep(s->ep)->sent) {
                weft_op_t *op = wefti_op_of_link(l);
                if (rpc_call(op)->server != s)
                    continue;
                tell_server(op);
                wefti_rpc_unsend(op);
                wefti_list_push_back(&all, l);
            }
        }
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&all));)
        wefti_rpc_call_end(wefti_op_of_link(l), why, NULL);
}

/* --- operations ------------------------------------------------------------------------------------------------------------------ */

/* Is its client gone? */
static bool too_late(weft_op_t *op)
{
    return !wefti_is_open(&rpc_call(op)->method->handle);
}

static weft_status_t start(weft_op_t *op)
{
    if (__builtin_expect(too_late(op), 0))
        return wefti_fail(WEFT_ERR_CLOSED, "the client was closed");
    rpc_call_t *c = rpc_call(op);
    weft_client_t *client = c->method->client;
    if (__builtin_expect(client->closing || client->lost, 0))
        return wefti_fail(client->closing ? WEFT_ERR_CLOSED : client->lost,
                          client->closing ? "the client is closed"
                                          : "the endpoint of the client is lost or closed; open another");
    weft_status_t st = wefti_op_track(op);
    if (__builtin_expect(st != WEFT_OK, 0))
        return st;
    if (__builtin_expect(c->once, 0)) {
        c->seq = ++client->seq;
        wefti_list_push_back(&client->once, &c->once_link);
    }
    client->calls++;
    count(&client->stats.calls, 1);
    count(&client->stats.under_way, 1);
    rpc_server_t *s = wefti_rpc_pick(client, NULL);
    rpc_binding_t *b = s && c->method->index < s->n_bindings ? s->bindings[c->method->index] : NULL;
    if (__builtin_expect(b && b->state == BINDING_BOUND && c->kind != CALL_CHECK, 1)) {
        st = send_call(op, b);
        if (__builtin_expect(!st, 1))
            return WEFT_OK;
    } else if (c->kind != CALL_CHECK) { /* it waits: what is wrong with it is to be said now */
        wefti_encoded_t e;
        weft_iov_t iov[WEFTI_CODEC_PIECES];
        uint8_t none;
        st = wefti_encode(c->method->args, c->args, c->n, RPC_OUT_OF_LINE, &none, 0, iov, &e);
        if (st == WEFT_ERR_LIMIT)
            st = WEFT_OK;
    }
    if (!st) {
        wefti_rpc_route(op, NULL);
        return WEFT_OK;
    }
    if (c->seq)
        wefti_list_remove(&c->once_link);
    client->calls--;
    count(&client->stats.calls, -1);
    count(&client->stats.under_way, -1);
    return st;
}

static void failed(weft_op_t *op, weft_status_t st)
{
    rpc_call_t *c = rpc_call(op);
    if (too_late(op)) {
        fill_reply(op, WEFT_ERR_CLOSED, "the client was closed");
        if (c->stream)
            wefti_stream_drop(c->stream);
        wefti_op_complete(op, WEFT_ERR_CLOSED);
        return;
    }
    weft_client_t *client = c->method->client;
    c->seq = 0;
    client->calls++;
    count(&client->stats.calls, 1);
    count(&client->stats.under_way, 1);
    wefti_rpc_call_end(op, st, words_for(st));
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    rpc_call_t *c = rpc_call(op);
    switch (c->state) {
    case CALL_WAITING: {
        rpc_server_t *s = c->server;
        take_out(op);
        c->server = s;
        end_waiting(op, why);
        break;
    }
    case CALL_SENT:
        tell_server(op);
        wefti_rpc_unsend(op);
        wefti_rpc_call_end(op, why, NULL);
        break;
    case CALL_FETCHING:
        if (c->into) /* bytes on their way to the program's memory end it, as anywhere */
            break;
        wefti_rpc_in_free(c->in);
        c->in = NULL;
        c->state = CALL_NEW;
        wefti_rpc_call_end(op, why, NULL);
        break;
    default: /* its end is near already; but it is not sent again, nor does it wait until the server lets go of its arguments */
        if (c->why == WEFT_ERR_AGAIN) {
            c->state = CALL_NEW;
            wefti_rpc_call_end(op, why, NULL);
        } else if (c->out) {
            wefti_rpc_out_cancel(c->out);
        }
        break;
    }
}

static const wefti_op_kind_t call_kind = {.name = "call", .start = start, .cancel = cancel, .failed = failed, .stops = true};

/* By a thread that may have to leave the rest to the driver: what can be said now is. */
static weft_status_t prepare(weft_method_t *m, weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare(m->rt, op, &call_kind);
    if (!st && __builtin_expect(!wefti_is_open(&m->handle), 0)) {
        wefti_op_unprepare(op);
        st = wefti_fail(WEFT_ERR_CLOSED, "the client was closed");
    }
    return st;
}

/* --- posting --------------------------------------------------------------------------------------------------------------------- */

/* known: opts as this version has them; NULL where there are none. */
static inline void fill(weft_op_t *op, weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                        const weft_call_opts_t *known, weft_reply_t *reply, unsigned kind)
{
    rpc_call_t *c = rpc_call(op);
    op->from = 0;
    /* one by one: zeroing the whole first takes longer than the rest of the post */
    c->method = m;
    c->server = NULL;
    c->args = args;
    c->opts = opts;
    c->reply = reply;
    c->stream = NULL;
    c->out = NULL;
    c->in = NULL;
    c->id = c->seq = c->epoch = c->give_up = 0;
    c->once_link.next = c->once_link.prev = NULL;
    c->n = (uint32_t)n;
    c->why = WEFT_OK;
    c->state = CALL_NEW;
    c->kind = (uint8_t)kind;
    c->ran = WEFT_NOT_RUN;
    c->tries = 0;
    c->left_open = c->once = c->fresh = c->into = false;
    if (__builtin_expect(known != NULL, 0)) {
        c->once = known->once;
        c->fresh = known->fresh;
        c->into = known->into;
    }
    if (reply) {
        reply->code = WEFT_CODE_OK;
        reply->ran = WEFT_NOT_RUN;
        reply->category = reply->holds = reply->tries = 0;
        reply->value = 0;
        reply->message = "";
        reply->values = NULL;
        reply->n = 0;
        reply->more = NULL;
    }
}

/* Why it cannot be called, or not so. */
static weft_status_t refuse(const weft_method_t *m, bool stream)
{
    weft_client_t *client = m->client;
    weft_status_t st = wefti_rpc_client_lock(client);
    if (st)
        return st;
    const weft_sig_t *sig = weft_method_sig(m);
    if (!wefti_is_open(&m->handle))
        st = wefti_fail(WEFT_ERR_CLOSED, "the client was closed");
    else if (!sig)
        st = wefti_fail(WEFT_ERR_STATE, "only the name of \"%s\" is known; weft_method_check() asks a server for its signature",
                        m->text);
    else
        st = wefti_fail(WEFT_ERR_STATE, "%s has %s; call it with %s", weft_sig_text(sig), stream ? "no stream" : "a stream",
                        stream ? "weft_call()" : "weft_call_stream()");
    wefti_rpc_client_unlock(client);
    return st;
}

/* What can be said without a server. The kind of call it is. */
static weft_status_t check(const weft_method_t *m, const weft_value_t *args, size_t n, const weft_op_t *op, bool stream,
                           unsigned *kind)
{
    if (!m || (!args && n))
        return wefti_fail(WEFT_ERR_INVALID, m ? "the arguments are NULL" : "the method is NULL");
    const weft_sig_t *sig = atomic_load_explicit(&((weft_method_t *)(uintptr_t)m)->sig, memory_order_acquire);
    *kind = m->kind;
    if (__builtin_expect(!sig || (*kind == CALL_STREAM) != stream, 0))
        return refuse(m, stream);
    if (!op && *kind != CALL_ONEWAY)
        return wefti_fail(WEFT_ERR_INVALID, "a call needs an operation, unless its function is marked oneway");
    return WEFT_OK;
}

static inline weft_status_t call_with(weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                                      const weft_call_opts_t *known, weft_reply_t *reply, weft_op_t *op)
{
    unsigned kind;
    weft_status_t st = check(m, args, n, op, false, &kind);
    if (__builtin_expect(st != WEFT_OK, 0))
        return st;
    if (!op)
        return wefti_rpc_call_detached(m, args, n);
    weft_runtime_t *was, *rt = m->rt;
    if (__builtin_expect(wefti_enter_to_post(rt, &was), 1)) {
        st = wefti_op_prepare_here(rt, op, &call_kind);
        if (__builtin_expect(!st, 1)) {
            fill(op, m, args, n, opts, known, reply, kind);
            st = wefti_op_start(op, start);
        }
        wefti_leave(rt, was);
        return st;
    }
    st = prepare(m, op);
    if (__builtin_expect(st != WEFT_OK, 0))
        return st;
    fill(op, m, args, n, opts, known, reply, kind);
    return wefti_op_go_by(rt, op, start);
}

weft_status_t weft_call(weft_method_t *m, const weft_value_t *args, size_t n, weft_reply_t *reply, weft_op_t *op)
{
    return call_with(m, args, n, NULL, NULL, reply, op);
}

weft_status_t weft_call_with(weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                             weft_reply_t *reply, weft_op_t *op)
{
    weft_call_opts_t o;
    weft_status_t st = opts ? wefti_opts_read(opts, &o, sizeof o, "weft_call_opts_t") : WEFT_OK;
    return st ? st : call_with(m, args, n, opts, opts ? &o : NULL, reply, op);
}

size_t weft_call_many(weft_method_t *m, const weft_call_item_t *items, size_t n, weft_status_t *why_out)
{
    weft_runtime_t *was = NULL, *rt = m ? m->rt : NULL;
    bool there = m && (items || !n);
    weft_status_t st = there ? WEFT_OK : wefti_fail(WEFT_ERR_INVALID, "%s NULL", m ? "the calls are" : "the method is");
    size_t i = 0;
    bool drives = rt && wefti_enter(rt, &was); /* once for all of them */
    while (i < n && !st) {
        st = weft_call(m, items[i].args, items[i].n, items[i].reply, items[i].op);
        i += !st;
    }
    if (drives)
        wefti_leave(rt, was);
    if (why_out)
        *why_out = st;
    return i;
}

weft_status_t weft_method_check(weft_method_t *m, weft_reply_t *reply, weft_op_t *op)
{
    if (!m || !op)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", m ? "the operation" : "the method");
    weft_runtime_t *rt = m->rt;
    weft_status_t st = prepare(m, op);
    if (st)
        return st;
    fill(op, m, NULL, 0, NULL, NULL, reply, CALL_CHECK);
    return wefti_op_go_by(rt, op, start);
}

static weft_status_t stream_for(weft_method_t *m, weft_stream_t **stream_out)
{
    weft_client_t *client = m->client;
    weft_status_t st = wefti_rpc_client_lock(client);
    if (st)
        return st;
    st = wefti_is_open(&m->handle) ? wefti_stream_new(client->rs, m->rt, weft_method_sig(m), false, stream_out)
                                   : wefti_fail(WEFT_ERR_CLOSED, "the client was closed");
    wefti_rpc_client_unlock(client);
    if (!st)
        wefti_stream_limits(*stream_out, 0, NULL, client->stall_ns);
    return st;
}

weft_status_t weft_call_stream(weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                               weft_reply_t *reply, weft_op_t *op, weft_stream_t **stream_out)
{
    unsigned kind;
    weft_stream_t *stream;
    weft_call_opts_t o;
    weft_status_t st = check(m, args, n, op, true, &kind);
    if (!st)
        st = wefti_opts_read(opts, &o, sizeof o, "weft_call_opts_t");
    if (st)
        return st;
    if (!op || !stream_out)
        return wefti_fail(WEFT_ERR_INVALID, "a call with a stream needs an operation, and somewhere to put the stream");
    if (o.once)
        return wefti_fail(WEFT_ERR_UNSUPPORTED,
                          "a call with a stream cannot be made `once`: what was sent on it is not remembered");
    weft_runtime_t *rt = m->rt;
    st = stream_for(m, &stream);
    if (st)
        return st;
    st = prepare(m, op);
    if (!st) {
        fill(op, m, args, n, opts, &o, reply, kind);
        rpc_call(op)->stream = stream;
        wefti_stream_connect(stream, NULL, 0, op);
        *stream_out = stream;
        st = wefti_op_go_by(rt, op, start);
    }
    if (st) {
        *stream_out = NULL;
        wefti_stream_discard(stream);
    }
    return st;
}
