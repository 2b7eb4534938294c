/* rpc/bind_ask.c - the client's side of binding: it asks a server for the slot of a function, before the first call goes there.
 *
 *     NONE --a call wants it--> ASKED --BOUND, code 0--> BOUND (its calls go)
 *                                 \--BOUND, a code--> NONE (its calls end with it; the next call asks again)
 *     any --the endpoint is down, or a call was answered "no such slot"--> NONE
 *
 * It is asked once per method and endpoint. The answer has the server's signature, for a method that was known by name only.
 * bind_answer.c is the other side. */
#include "rpc/client.h"

rpc_binding_t *wefti_rpc_binding(rpc_server_t *s, weft_method_t *m)
{
    if (m->index >= s->n_bindings) {
        uint32_t n = m->index + 8;
        rpc_binding_t **more = (rpc_binding_t **)wefti_realloc(s->bindings, n * sizeof *more);
        if (!more)
            return NULL;
        memset(more + s->n_bindings, 0, (n - s->n_bindings) * sizeof *more);
        s->bindings = more;
        s->n_bindings = n;
    }
    rpc_binding_t *b = s->bindings[m->index];
    if (b)
        return b;
    b = (rpc_binding_t *)wefti_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->server = s;
    b->method = m;
    wefti_list_init(&b->waiting);
    return s->bindings[m->index] = b;
}

static bool can_rpc(weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    return !weft_ep_get_info(ep, &info) && info.peer_capabilities & WEFT_CAN_RPC;
}

weft_status_t wefti_rpc_bind_ask(rpc_binding_t *b)
{
    weft_ep_t *ep = b->server->ep;
    const weft_method_t *m = b->method;
    const weft_client_t *c = m->client;
    const weft_sig_t *sig = atomic_load_explicit(&b->method->sig, memory_order_relaxed);
    const char *text = sig ? weft_sig_text(sig) : m->number ? "" : m->text;
    rpc_msg_t msg;
    rpc_out_t *out;
    if (!can_rpc(ep))
        return WEFT_ERR_UNSUPPORTED;
    weft_status_t st = wefti_slots_add(&rpc_ep(ep)->binds, b, &b->id);
    if (st)
        return st;
    rpc_bind_t bind = {.hash = sig ? weft_sig_hash(sig) : 0,
                       .number = m->number,
                       .service_len = (uint8_t)strlen(c->service),
                       .instance_len = (uint8_t)strlen(b->server->instance),
                       .text_len = (uint16_t)strlen(text)};
    rpc_msg_init(&msg, rpc_head(RPC_BIND, b->id));
    rpc_msg_put(&msg, &bind, sizeof bind);
    rpc_msg_put(&msg, c->service, bind.service_len);
    rpc_msg_put(&msg, b->server->instance, bind.instance_len);
    _Static_assert(sizeof(rpc_head_t) + sizeof(rpc_bind_t) + 2 * RPC_NAME + WEFT_SIG_TEXT <= RPC_HEADER_CAP + 64, "a BIND fits");
    if (msg.len + bind.text_len > sizeof msg.header)
        st = WEFT_ERR_LIMIT;
    if (!st) {
        rpc_msg_put(&msg, text, bind.text_len);
        st = wefti_rpc_send(ep, RPC_AM_TO_SERVER, &msg, 0, NULL, NULL, &out);
    }
    if (st) {
        wefti_slots_remove(&rpc_ep(ep)->binds, b->id);
        b->id = 0;
        return st;
    }
    b->state = BINDING_ASKED;
    return WEFT_OK;
}

void wefti_rpc_binding_reset(rpc_binding_t *b, wefti_list_t *waiting_out)
{
    if (b->id && b->server->ep)
        wefti_slots_remove(&rpc_ep(b->server->ep)->binds, b->id);
    b->id = 0;
    b->state = BINDING_NONE;
    wefti_list_each(l, &b->waiting)
        wefti_rpc_waits_no_more(wefti_op_of_link(l));
    wefti_list_splice(waiting_out, &b->waiting);
}

void wefti_rpc_unbound(weft_ep_t *ep, const rpc_head_t *head)
{
    wefti_list_each(l, &rpc_ep(ep)->servers) {
        const rpc_server_t *s = wefti_container_of(l, rpc_server_t, ep_link);
        for (uint32_t i = 0; i < s->n_bindings; i++) {
            rpc_binding_t *b = s->bindings[i];
            if (b && b->state == BINDING_BOUND && b->slot == head->slot && b->check == head->check)
                b->state = BINDING_NONE;
        }
    }
}

/* --- the answer ------------------------------------------------------------------------------------------------------------- */

/* The server's signature, for a method that has none; the server has compared that of any other. */
static weft_status_t learn(weft_method_t *m, const char *text, size_t len)
{
    char copy[WEFT_SIG_TEXT + 1];
    weft_sig_t *sig;
    if (atomic_load_explicit(&m->sig, memory_order_relaxed))
        return WEFT_OK;
    memcpy(copy, text, len);
    copy[len] = 0;
    weft_status_t st = strlen(copy) == len ? weft_sig_parse(copy, &sig) : WEFT_ERR_INVALID;
    if (st)
        return st;
    wefti_rpc_method_learn(m, sig);
    return WEFT_OK;
}

static void refused(weft_op_t *op, weft_code_t code, const char *text, size_t len)
{
    rpc_call_t *c = rpc_call(op);
    c->state = CALL_NEW;
    if (c->reply) {
        wefti_rpc_reply_fail(c->reply, code, (weft_ran_t)c->ran, text, len);
        c->reply->tries = c->tries;
    }
    wefti_rpc_finish(op, WEFT_ERR_CALL);
}

/* The instance drains or is gone: a client by name has others, or waits for one. Not for a call that only one server can
 * answer. */
static bool may_go_elsewhere(weft_op_t *op)
{
    rpc_call_t *c = rpc_call(op);
    if (!wefti_rpc_reach_by_name(c->method->client) || (c->seq && c->ran))
        return false;
    c->state = CALL_NEW;
    return true;
}

void wefti_rpc_bound(weft_ep_t *ep, weft_am_t *am, const rpc_head_t *head)
{
    rpc_bound_t bound;
    wefti_list_t waiting;
    if (am->header_len < sizeof *head + sizeof bound || am->len) {
        wefti_ep_protocol_error(ep, "an answer about a function that is none");
        return;
    }
    memcpy(&bound, (const uint8_t *)am->header + sizeof *head, sizeof bound);
    bound.code = wefti_rpc_code_told(bound.code);
    const char *text = (const char *)am->header + sizeof *head + sizeof bound;
    size_t len = am->header_len - sizeof *head - sizeof bound;
    rpc_binding_t *b = (rpc_binding_t *)wefti_slots_get(&rpc_ep(ep)->binds, head->call);
    if (!b)
        return; /* nobody waits for it any more */
    weft_method_t *m = b->method;
    weft_status_t st = len > WEFT_SIG_TEXT ? WEFT_ERR_PROTOCOL : bound.code ? WEFT_OK : learn(m, text, len);
    if (st == WEFT_ERR_PROTOCOL || st == WEFT_ERR_INVALID) {
        wefti_ep_protocol_error(ep, "an answer about a function without a signature or a code");
        return;
    }
    wefti_list_init(&waiting);
    wefti_rpc_binding_reset(b, &waiting);
    weft_client_t *client = m->client;
    wefti_rpc_client_hold(client);
    if (!st && !bound.code) {
        b->state = BINDING_BOUND;
        b->slot = head->slot;
        b->check = head->check;
        b->epoch = bound.epoch;
    }
    if (bound.code == WEFT_CODE_UNAVAILABLE)
        wefti_rpc_reach_turned_away(b->server);
    for (wefti_list_t *l; (l = wefti_list_pop(&waiting));) {
        weft_op_t *op = wefti_op_of_link(l);
        if (st)
            wefti_rpc_call_end(op, st, NULL);
        else if (bound.code == WEFT_CODE_UNAVAILABLE && may_go_elsewhere(op))
            wefti_rpc_route(op, b->server);
        else if (bound.code)
            refused(op, (weft_code_t)bound.code, text, len);
        else if (b->state == BINDING_BOUND && b->server->ep)
            wefti_rpc_transmit(op, b);
        else
            wefti_rpc_route(op, NULL);
    }
    wefti_rpc_client_kick(client); /* for calls that wait for the one server that remembers them */
    wefti_rpc_client_unhold(client);
}
