/* rpc/route.c - which server a call goes to, where it waits, and whether it goes again after a failure.
 *
 * At most once: a call whose request certainly did not leave, or was turned away, goes to any server. One that may have run goes
 * again only if its function is idempotent, or if it has a number by which its server knows it (`once`); then it goes to that
 * server, as long as that remembers it. tests/wire/rpc_call.c, tests/sim/rpc_once.c, tests/fault/rpc_lost.c. */
#include "rpc/client.h"

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
           (!c->fresh && c->tries < client->tries && c->kind != CALL_ONEWAY && (c->seq || (sig && weft_sig_idempotent(sig))));
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
        wefti_rpc_out_cancel(c->out);
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
