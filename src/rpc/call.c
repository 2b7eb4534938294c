/* rpc/call.c - calls: posting, starting and cancelling them.
 *
 * The states are in client.h. A call is on one list at a time (client.waiting, binding.waiting, rpc_ep_t.sent), or on none while
 * its reply is fetched or one of its buffers is still with the fabric (ENDING). call_send.c sends and completes
 * calls, server.c chooses the server.
 *
 * Promise: every call completes once: within its deadline, and when its server is lost and it may not be sent again.
 * tests/wire/rpc_call.c, tests/sim/rpc_once.c, tests/fault/rpc_lost.c. */
#include <weft/function.h>

#include "rpc/client.h"

/* --- operations --------------------------------------------------------------------------------------------------------- */

static inline void count_in(weft_client_t *client, int by)
{
    client->calls += (uint32_t)by;
    rpc_count(&client->stats.calls, by);
    rpc_count(&client->stats.under_way, by);
}

/* Say now what is wrong with the arguments of a call that has to wait. */
static weft_status_t try_encode(const rpc_call_t *c)
{
    wefti_encoded_t e;
    weft_iov_t iov[WEFTI_CODEC_PIECES];
    uint8_t none;
    weft_status_t st = wefti_encode(c->method->args, c->args, c->n, RPC_OUT_OF_LINE, &none, 0, iov, &e);
    return st == WEFT_ERR_LIMIT ? WEFT_OK : st;
}

static weft_status_t start(weft_op_t *op)
{
    rpc_call_t *c = rpc_call(op);
    if (__builtin_expect(!wefti_is_open(&c->method->handle), 0))
        return wefti_rpc_client_closed();
    weft_client_t *client = c->method->client;
    if (__builtin_expect(client->closing || client->lost, 0))
        return client->closing ? wefti_rpc_client_closed()
                               : wefti_fail(client->lost, "the endpoint of the client is lost or closed; open another");
    weft_status_t st = wefti_op_track(op);
    if (__builtin_expect(st != WEFT_OK, 0))
        return st;
    if (__builtin_expect(c->once, 0)) {
        c->seq = ++client->seq;
        wefti_list_push_back(&client->once, &c->once_link);
    }
    count_in(client, 1);
    rpc_server_t *s = wefti_rpc_pick(client, NULL);
    rpc_binding_t *b = s && c->method->index < s->n_bindings ? s->bindings[c->method->index] : NULL;
    if (__builtin_expect(b && b->state == BINDING_BOUND && c->kind != CALL_CHECK, 1)) {
        st = wefti_rpc_call_send(op, b);
        if (__builtin_expect(!st, 1))
            return WEFT_OK;
    } else if (c->kind != CALL_CHECK && c->kind != CALL_PACKED) {
        st = try_encode(c);
    }
    if (!st) {
        wefti_rpc_route(op, NULL);
        return WEFT_OK;
    }
    if (c->seq)
        wefti_list_remove(&c->once_link);
    count_in(client, -1);
    return st;
}

static void failed(weft_op_t *op, weft_status_t st)
{
    rpc_call_t *c = rpc_call(op);
    if (!wefti_is_open(&c->method->handle)) { /* there is no client any more */
        wefti_rpc_fill_reply(op, WEFT_ERR_CLOSED, "the client was closed");
        if (c->stream)
            wefti_stream_drop(c->stream);
        wefti_op_complete(op, WEFT_ERR_CLOSED);
        return;
    }
    c->seq = 0;
    count_in(c->method->client, 1);
    wefti_rpc_call_end(op, st, wefti_rpc_send_words(st));
}

/* It waited until its deadline and no server was there: say where servers were looked for. */
static void end_waiting(weft_op_t *op, weft_status_t why)
{
    rpc_call_t *c = rpc_call(op);
    const weft_client_t *client = c->method->client;
    bool alone = !c->server;
    char words[400];
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_rpc_waits_no_more(op);
    bool explained = why == WEFT_ERR_TIMEOUT && client->reach && alone && c->reply;
    if (explained)
        wefti_rpc_reach_words(client, words, sizeof words);
    wefti_rpc_call_end(op, why, explained ? words : NULL);
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    rpc_call_t *c = rpc_call(op);
    switch (c->state) {
    case CALL_WAITING:
        end_waiting(op, why);
        break;
    case CALL_SENT:
        wefti_rpc_call_abandon(op);
        wefti_rpc_call_end(op, why, NULL);
        break;
    case CALL_FETCHING:
        if (c->into) /* it ends when nothing is written to the program's memory any more */
            break;
        wefti_rpc_in_free(c->in);
        c->in = NULL;
        c->state = CALL_NEW;
        wefti_rpc_call_end(op, why, NULL);
        break;
    default: /* it is ending: do not send it again, and do not wait until the server has taken its arguments */
        if (c->why == WEFT_ERR_AGAIN) {
            c->state = CALL_NEW;
            wefti_rpc_call_end(op, why, NULL);
        } else if (c->out) {
            weft_op_cancel(&c->out->op);
        }
        break;
    }
}

static const wefti_op_kind_t call_kind = {.name = "call", .start = start, .cancel = cancel, .failed = failed, .stops = true};

/* For a thread that may have to leave the start to the driver. */
static weft_status_t prepare(weft_method_t *m, weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare(m->rt, op, &call_kind);
    if (!st && __builtin_expect(!wefti_is_open(&m->handle), 0)) {
        wefti_op_unprepare(op);
        st = wefti_rpc_client_closed();
    }
    return st;
}

/* --- posting ---------------------------------------------------------------------------------------------------------------- */

/* known: opts as this version has them; NULL: there are none. */
static inline void fill(weft_op_t *op, weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                        const weft_call_opts_t *known, weft_reply_t *reply, unsigned kind)
{
    rpc_call_t *c = rpc_call(op);
    op->from = 0;
    /* one by one: zeroing all of it first takes longer than the rest of the post */
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

/* Why it cannot be called in this way. */
static weft_status_t refuse(const weft_method_t *m, bool stream)
{
    weft_status_t st = wefti_rpc_method_lock(m);
    if (st)
        return st;
    const weft_sig_t *sig = rpc_method_sig(m);
    st = sig ? wefti_fail(WEFT_ERR_STATE, "%s has %s; call it with %s", weft_sig_text(sig), stream ? "no stream" : "a stream",
                          stream ? "weft_call()" : "weft_call_stream()")
             : wefti_fail(WEFT_ERR_STATE, "only the name of \"%s\" is known; weft_method_check() asks a server for its signature",
                          m->text);
    wefti_rpc_unlock(m->rt);
    return st;
}

/* What can be checked without a server. After WEFT_OK, m->kind is the kind of call. */
static inline weft_status_t check(const weft_method_t *m, const weft_value_t *args, size_t n, const weft_op_t *op, bool stream)
{
    if (!m || (!args && n))
        return wefti_fail(WEFT_ERR_INVALID, m ? "the arguments are NULL" : "the method is NULL");
    const weft_sig_t *sig = rpc_method_sig(m);
    if (__builtin_expect(!sig || (m->kind == CALL_STREAM) != stream, 0))
        return refuse(m, stream);
    if (!op && m->kind != CALL_ONEWAY)
        return wefti_fail(WEFT_ERR_INVALID, "a call needs an operation, unless its function is marked oneway");
    return WEFT_OK;
}

/* --- without an operation of the program ------------------------------------------------------------------------------------ */

#define DETACHED_MAX (UINT64_C(1) << 20) /* bytes of such calls on a runtime */

/* An operation that goes the way of any call. A copy of the call's message follows. */
typedef struct detached {
    weft_op_t op;
    rpc_state_t *rs;
    uint64_t bytes;
} detached_t;

static void detached_done(weft_op_t *op, void *user)
{
    detached_t *d = (detached_t *)user;
    (void)op;
    atomic_fetch_sub_explicit(&d->rs->detached, d->bytes, memory_order_relaxed);
    rpc_end(d->rs);
    wefti_free(d);
}

static weft_status_t post_detached(rpc_state_t *rs, weft_method_t *m, rpc_msg_t *msg)
{
    weft_status_t st = WEFT_OK;
    uint64_t bytes = sizeof(detached_t) + wefti_rpc_kept_size(msg, RPC_KEEP_ALL);
    if (msg->iov_n && wefti_mem_device_of(msg->iov[msg->iov_n - 1].base, NULL))
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "a tensor of a device needs a call with an operation");
    if (bytes > DETACHED_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "too much to be copied for a call without an operation; use one");
    if (atomic_fetch_add_explicit(&rs->detached, bytes, memory_order_relaxed) + bytes > DETACHED_MAX)
        st = wefti_fail(WEFT_ERR_AGAIN, "too many calls without an operation wait already");
    detached_t *d = st ? NULL : (detached_t *)wefti_malloc(bytes);
    if (!st && !d)
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for a call");
    if (!st) {
        *d = (detached_t){.op = {.fn = detached_done, .user = d}, .rs = rs, .bytes = bytes};
        (void)wefti_rpc_keep_at((rpc_kept_t *)(void *)(d + 1), msg, RPC_KEEP_ALL); /* memory of the host can be read */
        rpc_begin(rs);
        st = prepare(m, &d->op);
        if (!st) {
            fill(&d->op, m, NULL, 0, NULL, NULL, NULL, CALL_PACKED);
            rpc_call(&d->op)->packed = (const rpc_kept_t *)(const void *)(d + 1);
            st = wefti_op_post_by(m->rt, &d->op, start);
        }
        if (!st)
            return WEFT_OK;
        rpc_end(rs);
        wefti_free(d);
    }
    atomic_fetch_sub_explicit(&rs->detached, bytes, memory_order_relaxed);
    return st;
}

static weft_status_t call_detached(weft_method_t *m, const weft_value_t *args, size_t n)
{
    rpc_msg_t msg;
    weft_runtime_t *rt = m->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_rpc_method_lock(m);
    if (!st) {
        st = rpc_pack_whole(&msg, 0, m->args, args, n);
        wefti_rpc_unlock(rt);
        if (!st) {
            st = post_detached(rpc_state(rt), m, &msg);
            wefti_rpc_msg_free(&msg);
        }
    }
    wefti_part(rt);
    return st;
}

/* --- with one -------------------------------------------------------------------------------------------------------------- */

static inline weft_status_t call_with(weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                                      const weft_call_opts_t *known, weft_reply_t *reply, weft_op_t *op)
{
    weft_status_t st = check(m, args, n, op, false);
    if (__builtin_expect(st != WEFT_OK, 0))
        return st;
    if (!op)
        return call_detached(m, args, n);
    weft_runtime_t *was, *rt = m->rt;
    if (__builtin_expect(wefti_enter_to_post(rt, &was), 1)) {
        st = wefti_op_prepare(rt, op, &call_kind);
        if (__builtin_expect(!st, 1)) {
            fill(op, m, args, n, opts, known, reply, m->kind);
            st = wefti_op_start(op, start);
        }
        wefti_leave(rt, was);
        return st;
    }
    st = prepare(m, op);
    if (__builtin_expect(st != WEFT_OK, 0))
        return st;
    fill(op, m, args, n, opts, known, reply, m->kind);
    return wefti_op_post_by(rt, op, start);
}

weft_status_t weft_call(weft_method_t *m, const weft_value_t *args, size_t n, weft_reply_t *reply, weft_op_t *op)
{
    return call_with(rpc_method_for_call(m), args, n, NULL, NULL, reply, op);
}

weft_status_t weft_call_with(weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                             weft_reply_t *reply, weft_op_t *op)
{
    weft_call_opts_t o;
    weft_status_t st = opts ? wefti_opts_read(opts, &o, sizeof o, "weft_call_opts_t") : WEFT_OK;
    return st ? st : call_with(rpc_method_for_call(m), args, n, opts, opts ? &o : NULL, reply, op);
}

size_t weft_call_many(weft_method_t *m, const weft_call_item_t *items, size_t n, weft_status_t *why_out)
{
    m = rpc_method_for_call(m);
    weft_runtime_t *was = NULL, *rt = m ? m->rt : NULL;
    bool there = m && (items || !n);
    weft_status_t st = there ? WEFT_OK : wefti_fail(WEFT_ERR_INVALID, "%s NULL", m ? "the calls are" : "the method is");
    size_t i = 0;
    bool drives = rt && wefti_enter(rt, &was); /* once for all of them */
    while (i < n && !st) {
        st = call_with(m, items[i].args, items[i].n, NULL, NULL, items[i].reply, items[i].op);
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
    weft_runtime_t *rt = m->rt; /* the first part's: weft_method_sig() has its signature afterwards */
    weft_status_t st = prepare(m, op);
    if (st)
        return st;
    fill(op, m, NULL, 0, NULL, NULL, reply, CALL_CHECK);
    return wefti_op_post_by(rt, op, start);
}

static weft_status_t stream_for(weft_method_t *m, weft_stream_t **stream_out)
{
    const weft_client_t *client = m->client;
    weft_status_t st = wefti_rpc_method_lock(m);
    if (st)
        return st;
    st = wefti_stream_new(client->rs, rpc_method_sig(m), false, client->stall_ns, stream_out);
    wefti_rpc_unlock(m->rt);
    return st;
}

weft_status_t weft_call_stream(weft_method_t *m, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                               weft_reply_t *reply, weft_op_t *op, weft_stream_t **stream_out)
{
    weft_stream_t *stream;
    weft_call_opts_t o;
    m = rpc_method_for_call(m);
    weft_status_t st = check(m, args, n, op, true);
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
        fill(op, m, args, n, opts, &o, reply, m->kind);
        rpc_call(op)->stream = stream;
        wefti_stream_connect(stream, NULL, 0, op);
        *stream_out = stream;
        st = wefti_op_post_by(rt, op, start);
    }
    if (st) {
        *stream_out = NULL;
        wefti_free(stream); /* nobody has seen it */
    }
    return st;
}

/* --- calls that wait ------------------------------------------------------------------------------------------------------- */

weft_status_t weft_call_wait(weft_method_t *method, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                             uint64_t timeout_ns, weft_reply_t *reply)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t own = WEFT_REPLY_INIT;
    weft_reply_t *r = reply ? reply : &own;
    weft_status_t st;
    memset(r, 0, sizeof *r);
    r->message = "";
    if (!method)
        st = wefti_fail(WEFT_ERR_INVALID, "the method is NULL");
    else if (wefti_driven)
        st = wefti_fail(WEFT_ERR_STATE, "waiting for a call is not allowed inside a callback; post it");
    else {
        op.timeout_ns = timeout_ns ? timeout_ns : method->client->timeout_ns;
        if (op.timeout_ns == WEFT_FOREVER)
            op.timeout_ns = 0;
        st = weft_call_with(method, args, n, opts, r, &op);
    }
    if (st) { /* nothing was sent */
        const char *words = weft_last_error();
        wefti_rpc_reply_fail(r, wefti_rpc_code_of(st), WEFT_NOT_RUN, words, strlen(words));
        r->category = WEFT_CATEGORY_WEFT;
        r->value = st;
    } else {
        while (weft_op_wait(&op, WEFT_FOREVER), !weft_op_done(&op)) /* a simulated network on which nothing happens */
            weft_op_cancel(&op);
        st = op.status;
        if (st)
            st = wefti_fail(st, "%s: %s", weft_code_name(r->code), r->message);
    }
    if (!reply)
        weft_reply_release(&own);
    return st;
}
