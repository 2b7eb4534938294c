/* rpc/client.c - clients, their methods, and the servers that they have.
 *
 *     new --join--> part of the runtime --close--> closing: its calls end --> the last of them is complete, nobody holds it --> freed
 *
 * Whoever calls with a client, or a method of it, that was closed finds a closed one: both are handles (base/handle.h).
 *
 * A server belongs to one client and one endpoint. It is the client's list and the endpoint's; whoever goes first takes it off the other's.
 *
 * Promise: after its close operation completed nothing of a client is touched any more. tests/wire/rpc_call.c, tests/fault/rpc_lost.c. */
#include <stddef.h>
#include <stdio.h>

#include "rpc/state.h"

/* --- making ---------------------------------------------------------------------------------------------------------------------- */

static weft_status_t copy_name(char out[RPC_NAME], const char *name, const char *what)
{
    size_t n = name ? strnlen(name, RPC_NAME) : 0;
    if (n >= RPC_NAME)
        return wefti_fail(WEFT_ERR_INVALID, "the name of %s has more than %u bytes", what, RPC_NAME - 1);
    if (n)
        memcpy(out, name, n);
    out[n] = 0;
    return WEFT_OK;
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_client_t, lock);
static wefti_handles_t methods = WEFTI_HANDLES_INIT(weft_method_t, kind);

static weft_client_t *client_new(void)
{
    weft_client_t *c = (weft_client_t *)wefti_handle_take(&handles);
    if (!c)
        return NULL;
    if (c->handle.uses == 1)
        pthread_mutex_init(&c->lock, NULL);
    memset(&c->link, 0, sizeof *c - offsetof(weft_client_t, link));
    return c;
}

weft_status_t wefti_rpc_client_lock(weft_client_t *c)
{
    if (wefti_gone(c->rt)) /* before the lock: another thread may have held it when we were forked */
        return wefti_fail_gone(c->rt);
    pthread_mutex_lock(&c->lock);
    if (wefti_is_open(&c->handle))
        return WEFT_OK;
    pthread_mutex_unlock(&c->lock);
    return wefti_fail(WEFT_ERR_CLOSED, "the client was closed");
}

static void out_of_patience(wefti_timer_t *t);

weft_status_t wefti_rpc_client_new(weft_runtime_t *rt, const weft_client_opts_t *opts, const char *service, const char *instance,
                                   weft_client_t **client_out)
{
    weft_client_t *c = client_new();
    if (!c)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client");
    c->rt = rt;
    c->rs = rpc_state(rt);
    wefti_list_init(&c->servers);
    wefti_list_init(&c->waiting);
    wefti_list_init(&c->once);
    c->tries = opts && opts->tries ? opts->tries : 3;
    c->tries = c->tries < UINT8_MAX ? c->tries : UINT8_MAX; /* as far as a call counts */
    c->timeout_ns = opts ? opts->timeout_ns : 0;
    c->stall_ns = opts && opts->stall_ns ? opts->stall_ns : RPC_STALL_NS;
    c->patience.fn = out_of_patience;
    weft_status_t st = copy_name(c->service, service, "a service");
    if (!st)
        st = copy_name(c->instance, instance, "an instance");
    if (st) {
        wefti_rpc_client_discard(c);
        return st;
    }
    rt->fabric->ops->random(rt->fabric, &c->id, sizeof c->id);
    c->id |= 1; /* never 0 */
    atomic_store_explicit(&c->handle.open, 1, memory_order_release);
    *client_out = c;
    return WEFT_OK;
}

static void method_free(weft_method_t *m)
{
    weft_sig_free((weft_sig_t *)(uintptr_t)atomic_exchange(&m->sig, NULL));
    wefti_free(m->text);
    m->text = NULL;
    wefti_handle_free(&methods, m);
}

void wefti_rpc_client_discard(weft_client_t *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->handle.open, 0);
    for (uint32_t i = 0; i < c->n_methods; i++)
        method_free(c->methods[i]);
    pthread_mutex_unlock(&c->lock);
    wefti_free(c->methods);
    wefti_rpc_typed_free(c);
    wefti_handle_free(&handles, c);
}

static void close_now(weft_client_t *c);

bool wefti_rpc_client_join(weft_client_t *c)
{
    c->joined = true;
    wefti_list_push_back(&c->rs->clients, &c->link);
    if (!wefti_closing(c->rt))
        return true;
    close_now(c);
    return false;
}

static void join_over_ep(wefti_call_t *call)
{
    weft_client_t *c = wefti_container_of(call, weft_client_t, join_call);
    rpc_server_t *server;
    if (!wefti_rpc_client_join(c))
        return;
    weft_status_t st = wefti_ep_may_wait(c->join_ep);
    if (!st)
        st = wefti_rpc_server_add(c, c->join_ep, NULL, &server);
    c->lost = st;
}

weft_status_t weft_client_on(weft_ep_t *ep, const weft_client_opts_t *given, weft_client_t **client_out)
{
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    weft_client_t *c;
    if (!ep || !client_out)
        return wefti_fail(WEFT_ERR_INVALID, ep ? "there is nowhere to put the client" : "the endpoint is NULL");
    weft_status_t st = wefti_opts_read(given, &o, sizeof o, "weft_client_opts_t");
    if (st)
        return st;
    weft_runtime_t *rt = ep->rt;
    st = wefti_join(rt);
    if (st)
        return st;
    if (wefti_closing(rt))
        st = wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", rt->name);
    if (!st)
        st = wefti_ep_check(ep);
    if (!st)
        st = wefti_rpc_client_new(rt, &o, o.service, o.instance, &c);
    if (!st) {
        c->join_ep = ep;
        c->join_call.fn = join_over_ep;
        *client_out = c;
        if (!wefti_call_on_driver(rt, &c->join_call)) {
            wefti_rpc_client_discard(c);
            st = wefti_fail_gone(rt);
        }
    }
    wefti_part(rt);
    return st;
}

/* --- methods --------------------------------------------------------------------------------------------------------------------- */

void wefti_rpc_method_learn(weft_method_t *m, const weft_sig_t *sig)
{
    bool stream = wefti_sig_codec(sig, WEFTI_SIG_ARG_ITEM)->n || wefti_sig_codec(sig, WEFTI_SIG_RESULT_ITEM)->n;
    m->args = wefti_sig_codec(sig, WEFTI_SIG_ARGS);
    m->results = wefti_sig_codec(sig, WEFTI_SIG_RESULTS);
    m->kind = stream ? CALL_STREAM : weft_sig_oneway(sig) ? CALL_ONEWAY : CALL_UNARY;
    atomic_store_explicit(&m->sig, sig, memory_order_release);
}

/* "add(a: i32) -> i32", "add" or "#7". */
static weft_status_t read_text(weft_method_t *m)
{
    weft_sig_t *sig = NULL;
    if (m->text[0] == '#') {
        uint64_t number = 0;
        const char *p = m->text + 1;
        for (; *p >= '0' && *p <= '9' && number <= UINT32_MAX; p++)
            number = number * 10 + (uint64_t)(*p - '0');
        if (*p || p == m->text + 1 || !number || number > UINT32_MAX)
            return wefti_fail(WEFT_ERR_INVALID, "\"%.80s\" is no number of a function; write # and a number from 1 on", m->text);
        m->number = (uint32_t)number;
        return WEFT_OK;
    }
    if (!strchr(m->text, '(')) {
        char whole[WEFT_SIG_TEXT + 16];
        int n = snprintf(whole, sizeof whole, "%s() -> void", m->text); /* a name alone: is it one? */
        weft_status_t st = n < 0 || (size_t)n >= sizeof whole ? wefti_fail(WEFT_ERR_INVALID, "the name of a function is too long")
                                                              : weft_sig_parse(whole, &sig);
        weft_sig_free(st ? NULL : sig);
        return st;
    }
    weft_status_t st = weft_sig_parse(m->text, &sig);
    if (st)
        return st;
    wefti_rpc_method_learn(m, sig);
    return WEFT_OK;
}

/* Under the client's lock. */
static weft_status_t method_new(weft_client_t *c, const char *text, weft_method_t **method_out)
{
    size_t n = strnlen(text, WEFT_SIG_TEXT + 1);
    weft_method_t *m = (weft_method_t *)wefti_handle_take(&methods);
    weft_method_t **more = NULL;
    weft_status_t st = WEFT_ERR_NOMEM;
    if (!m)
        goto err;
    memset(&m->handle + 1, 0, sizeof *m - sizeof m->handle);
    m->rt = c->rt;
    m->client = c;
    m->index = c->n_methods;
    m->text = (char *)wefti_malloc(n + 1);
    more = (weft_method_t **)wefti_malloc((c->n_methods + 1) * sizeof *more);
    if (!m->text || !more)
        goto err;
    memcpy(m->text, text, n);
    m->text[n] = 0;
    st = read_text(m);
    if (st)
        goto err;
    if (c->n_methods)
        memcpy(more, c->methods, c->n_methods * sizeof *more);
    wefti_free(c->methods);
    c->methods = more;
    c->methods[c->n_methods++] = m;
    atomic_store_explicit(&m->handle.open, 1, memory_order_release);
    *method_out = m;
    return WEFT_OK;

err:
    if (m)
        method_free(m);
    wefti_free(more);
    return st == WEFT_ERR_NOMEM ? wefti_fail(st, "no memory for a method") : st;
}

weft_status_t weft_client_method(weft_client_t *c, const char *signature, weft_method_t **method_out)
{
    if (!c || !signature || !method_out)
        return wefti_fail(WEFT_ERR_INVALID, "a method needs a client, a signature, and somewhere to put it");
    if (strnlen(signature, WEFT_SIG_TEXT + 1) > WEFT_SIG_TEXT)
        return wefti_fail(WEFT_ERR_INVALID, "a signature has at most %d bytes", WEFT_SIG_TEXT);
    weft_status_t st = wefti_rpc_client_lock(c);
    if (st)
        return st;
    weft_method_t *m = NULL;
    for (uint32_t i = 0; i < c->n_methods && !m; i++)
        m = strcmp(c->methods[i]->text, signature) ? NULL : c->methods[i];
    if (!m)
        st = c->n_methods < UINT16_MAX ? method_new(c, signature, &m)
                                       : wefti_fail(WEFT_ERR_LIMIT, "a client has at most %d methods", UINT16_MAX);
    pthread_mutex_unlock(&c->lock);
    if (!st)
        *method_out = m;
    return st;
}

const weft_sig_t *weft_method_sig(const weft_method_t *m)
{
    return m && wefti_is_open(&m->handle) ? atomic_load_explicit(&((weft_method_t *)(uintptr_t)m)->sig, memory_order_acquire)
                                          : NULL;
}

/* --- servers --------------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_rpc_server_add(weft_client_t *c, weft_ep_t *ep, const char *instance, rpc_server_t **server_out)
{
    rpc_server_t *s = (rpc_server_t *)wefti_calloc(1, sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a server of a client");
    s->client = c;
    s->ep = ep;
    weft_status_t st = copy_name(s->instance, instance ? instance : c->instance, "an instance");
    if (st) {
        wefti_free(s);
        return st;
    }
    wefti_list_push_back(&c->servers, &s->link);
    wefti_list_push_back(&rpc_ep(ep)->servers, &s->ep_link);
    __atomic_store_n(&c->n_servers, c->n_servers + 1, __ATOMIC_RELAXED);
    *server_out = s;
    if (ep->lane) {
        wefti_rpc_server_heard(s, true);
        wefti_rpc_client_kick(c);
    }
    return WEFT_OK;
}

void wefti_rpc_server_heard(rpc_server_t *s, bool up)
{
    uint32_t *n = &s->client->stats.connected;
    if (s->up != up)
        __atomic_store_n(n, up ? *n + 1 : *n - 1, __ATOMIC_RELAXED);
    s->up = up;
    s->draining = false;
}

void wefti_rpc_server_remove(rpc_server_t *s, weft_status_t why)
{
    weft_client_t *c = s->client;
    wefti_list_t again;
    wefti_list_init(&again);
    wefti_rpc_server_heard(s, false);
    for (uint32_t i = 0; i < s->n_bindings; i++)
        if (s->bindings[i])
            wefti_rpc_binding_reset(s->bindings[i], &again);
    if (s->ep) {
        wefti_list_each_safe(l, &rpc_ep(s->ep)->sent) {
            weft_op_t *op = wefti_op_of_link(l);
            if (rpc_call(op)->server != s)
                continue;
            wefti_rpc_unsend(op);
            wefti_list_push_back(&again, l);
        }
        wefti_list_remove(&s->ep_link);
        s->ep = NULL;
    }
    wefti_list_remove(&s->link);
    __atomic_store_n(&c->n_servers, c->n_servers - 1, __ATOMIC_RELAXED);
    wefti_rpc_client_hold(c); /* the last call that ends here must not take the client with it */
    for (wefti_list_t *l; (l = wefti_list_pop(&again));)
        wefti_rpc_call_again(wefti_op_of_link(l), why, NULL);
    wefti_rpc_bindings_free(s);
    wefti_free(s);
    wefti_rpc_client_unhold(c);
}

/* --- the end --------------------------------------------------------------------------------------------------------------------- */

static void settle(weft_client_t *c)
{
    if (!c->closing || c->calls || c->holds)
        return;
    weft_op_t *op = c->close_op;
    rpc_state_t *rs = c->rs;
    wefti_timer_stop(rs->rt, &c->patience);
    wefti_list_remove(&c->link);
    wefti_rpc_client_discard(c);
    rpc_end(rs);
    if (op)
        wefti_op_complete(op, WEFT_OK);
}

void wefti_rpc_client_hold(weft_client_t *c)
{
    c->holds++;
}

void wefti_rpc_client_unhold(weft_client_t *c)
{
    c->holds--;
    settle(c);
}

/* On the driver, once. */
static void close_now(weft_client_t *c)
{
    c->closing = true;
    rpc_begin(c->rs);
    wefti_rpc_client_hold(c);
    wefti_rpc_client_fail(c, WEFT_ERR_CLOSED);
    for (wefti_list_t *l; (l = wefti_list_first(&c->servers));)
        wefti_rpc_server_remove(wefti_container_of(l, rpc_server_t, link), WEFT_ERR_CLOSED);
    if (c->reach)
        wefti_rpc_reach_close(c);
    wefti_rpc_client_unhold(c);
}

typedef struct closing {
    weft_client_t *client;
} closing_t;

static weft_status_t close_start(weft_op_t *op)
{
    weft_client_t *c = wefti_op_scratch(op, closing_t)->client;
    if (!wefti_is_open(&c->handle) || c->closing)
        return wefti_fail(WEFT_ERR_CLOSED, "the client was closed before");
    wefti_op_track(op); /* without memory for its deadline it ends when it ends */
    c->close_op = op;
    close_now(c);
    return WEFT_OK;
}

/* Whoever waits for it waits no longer; it goes on. */
static void close_cancel(weft_op_t *op, weft_status_t why)
{
    weft_client_t *c = wefti_op_scratch(op, closing_t)->client;
    c->close_op = NULL;
    wefti_op_complete(op, why);
}

static const wefti_op_kind_t close_kind = {.name = "client close", .start = close_start, .cancel = close_cancel};

typedef struct close_alone {
    wefti_call_t call;
    weft_client_t *client;
} close_alone_t;

static void close_unwatched(wefti_call_t *call)
{
    close_alone_t *a = wefti_container_of(call, close_alone_t, call);
    weft_client_t *c = a->client;
    wefti_free(a);
    if (wefti_is_open(&c->handle) && !c->closing)
        close_now(c);
}

weft_status_t weft_client_close(weft_client_t *c, weft_op_t *op)
{
    if (!c)
        return wefti_fail(WEFT_ERR_INVALID, "the client is NULL");
    weft_runtime_t *rt = c->rt;
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (!wefti_is_open(&c->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the client was closed before");
    if (op) {
        weft_status_t st = wefti_op_prepare(rt, op, &close_kind);
        if (st)
            return st;
        wefti_op_scratch(op, closing_t)->client = c;
        return wefti_op_go(rt, op);
    }
    close_alone_t *a = (close_alone_t *)wefti_calloc(1, sizeof *a);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to close a client");
    a->client = c;
    a->call.fn = close_unwatched;
    if (wefti_call_on_driver(rt, &a->call))
        return WEFT_OK;
    wefti_free(a);
    return wefti_fail_gone(rt);
}

void wefti_rpc_clients_shutdown(rpc_state_t *rs)
{
    wefti_list_each_safe(l, &rs->clients) {
        weft_client_t *c = wefti_container_of(l, weft_client_t, link);
        if (!c->closing)
            close_now(c);
    }
}

/* What was not settled by then waits for nothing that could still come. */
void wefti_rpc_clients_free(rpc_state_t *rs)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&rs->clients));) {
        weft_client_t *c = wefti_container_of(l, weft_client_t, link);
        if (c->reach)
            wefti_rpc_reach_free(c);
        wefti_rpc_client_discard(c);
    }
}

/* --- `once` calls that wait for their server's return ---------------------------------------------------------------------------------- */

static void out_of_patience(wefti_timer_t *t)
{
    weft_client_t *c = wefti_container_of(t, weft_client_t, patience);
    uint64_t now = wefti_now(c->rt), next = UINT64_MAX;
    wefti_list_t late;
    wefti_list_init(&late);
    wefti_list_each_safe(l, &c->waiting) {
        rpc_call_t *call = rpc_call(wefti_op_of_link(l));
        if (!call->give_up)
            continue;
        if (call->give_up <= now) {
            wefti_list_remove(l);
            wefti_rpc_waits_no_more(wefti_op_of_link(l));
            wefti_list_push_back(&late, l);
        } else if (call->give_up < next) {
            next = call->give_up;
        }
    }
    if (next < UINT64_MAX)
        wefti_timer_at(c->rt, t, next);
    wefti_rpc_client_hold(c);
    for (wefti_list_t *l; (l = wefti_list_pop(&late));)
        wefti_rpc_call_end(wefti_op_of_link(l), WEFT_ERR_PEER, "the server it was sent to did not come back in time");
    wefti_rpc_client_unhold(c);
}

/* --- statistics ------------------------------------------------------------------------------------------------------------------ */

static uint64_t look(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

weft_status_t weft_client_get_stats(weft_client_t *c, weft_client_stats_t *out)
{
    if (!c || !out || !out->size)
        return wefti_fail(WEFT_ERR_INVALID, "statistics need a client, and a struct made with WEFT_CLIENT_STATS_INIT");
    weft_status_t st = wefti_rpc_client_lock(c);
    if (st)
        return st;
    const weft_client_stats_t *in = &c->stats;
    weft_client_stats_t s = {.size = out->size,
                             .calls = look(&in->calls),
                             .ok = look(&in->ok),
                             .failed = look(&in->failed),
                             .cancelled = look(&in->cancelled),
                             .timed_out = look(&in->timed_out),
                             .retried = look(&in->retried),
                             .under_way = look(&in->under_way),
                             .waiting = look(&in->waiting),
                             .instances = __atomic_load_n(c->finds ? &in->instances : &c->n_servers, __ATOMIC_RELAXED),
                             .connected = __atomic_load_n(&in->connected, __ATOMIC_RELAXED)};
    pthread_mutex_unlock(&c->lock);
    memcpy(out, &s, out->size < sizeof s ? out->size : sizeof s);
    return WEFT_OK;
}
