/* conn/listener.c - listening: acceptors, the backlog of hellos, and handing over the endpoints.
 *
 * A wire that arrives becomes a link in its hello, a newcomer. It counts against the backlog until it is up or gone. Endpoints
 * that nobody has taken count, too; those whose peer is gone only until their place is needed. All newcomers of a runtime have
 * at most half of the descriptors of the process. A newcomer that says nothing is dropped after connect_timeout.
 *
 * When there is no place, a newcomer that has not shown the key goes: the oldest from the newest one's address if those are
 * more than half, else the oldest of all. So a flood drives out itself. If all have shown the key, the newest is turned away
 * with a sentence.
 *
 * Promise: nobody who has not shown the key keeps out one who has it; each peer that passed the hello is handed over once;
 * after a close on the driving thread no callback comes. The memory goes with the work, since the close may come from the
 * listener's own callbacks. tests/wire/conn_connect.c, conn_hooks.c; tests/fault/conn_flood.c, conn_garbage.c, conn_fds.c. */
#include <string.h>
#include <sys/resource.h>

#include "base/uri.h"
#include "conn/ep.h"

#define BACKLOG_DEFAULT 1024
#define ACCEPTORS_MOST 64
#define NEWCOMERS_LEAST 8 /* however few descriptors there are */

/* --- arrivals -------------------------------------------------------------------------------------------------------------- */

/* The limits are those of the process and of the program's listener, whichever shard has the newcomers. */
#define first(l) wefti_conn_of(wefti_head((l)->rt))

static void count_newcomer(weft_listener_t *l, int by)
{
    l->hellos += (uint32_t)by;
    atomic_fetch_add_explicit(&first(l)->n_newcomers, (uint32_t)by, memory_order_relaxed);
    atomic_fetch_add_explicit(&(l->of ? l->of : l)->all_hellos, (uint32_t)by, memory_order_relaxed);
}

void wefti_listener_leave(wefti_link_t *link)
{
    if (!link->listener)
        return;
    wefti_list_remove(&link->newcomer);
    count_newcomer(link->listener, -1);
    link->listener = NULL;
}

/* Only a peer that has the key gets that far. */
static bool has_shown_key(const wefti_link_t *link)
{
    return link->conn->rt->has_key && link->shake->got_peer;
}

/* Let one go for a newcomer from `source`. False: there is none that could. */
static bool let_go(weft_listener_t *l, uint64_t source)
{
    wefti_link_t *any = NULL, *own = NULL;
    unsigned n = 0, n_own = 0;
    wefti_list_each(it, &l->newcomers) {
        wefti_link_t *link = wefti_container_of(it, wefti_link_t, newcomer);
        bool same = link->source == source;
        if (n == WEFTI_LOOK_MOST)
            break;
        n++;
        n_own += same;
        if (has_shown_key(link))
            continue;
        any = any ? any : link;
        own = own || !same ? own : link;
    }
    wefti_link_t *who = own && n_own > n / 2 ? own : any;
    if (who)
        wefti_link_lost(who, WEFT_ERR_AGAIN, "the listener has many newcomers, and this one was too slow; try again");
    return who;
}

static weft_listener_t *most_crowded(wefti_conn_t *conn)
{
    weft_listener_t *found = NULL;
    wefti_list_each(it, &conn->listeners) {
        weft_listener_t *l = wefti_container_of(it, weft_listener_t, all);
        if (!found || l->hellos > found->hellos)
            found = l;
    }
    return found;
}

/* As many as all listeners together may have. */
static uint32_t newcomers_most(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur / 2 > UINT32_MAX)
        return UINT32_MAX;
    return limit.rlim_cur / 2 < NEWCOMERS_LEAST ? NEWCOMERS_LEAST : (uint32_t)(limit.rlim_cur / 2);
}

bool wefti_listener_make_way(void *listener)
{
    return let_go(most_crowded(((weft_listener_t *)listener)->conn), 0);
}

/* An endpoint whose program never knew it ends. */
static void end_untaken(wefti_epx_t *ep)
{
    ep->hooks = (weft_ep_hooks_t){0};
    wefti_close_end(ep, WEFT_ERR_CLOSED, WEFT_ERR_CLOSED);
}

/* Let the oldest endpoint go that nobody has taken and whose peer is gone. False: there is none. */
static bool let_dead_go(weft_listener_t *l)
{
    unsigned n = 0;
    wefti_list_each(it, &l->ready) {
        wefti_epx_t *ep = wefti_container_of(it, wefti_epx_t, ready);
        weft_ep_state_t state = wefti_ep_state(ep);
        if (state == WEFT_EP_FAILED || state == WEFT_EP_PEER_CLOSED) {
            end_untaken(ep);
            return true;
        }
        if (++n == WEFTI_LOOK_MOST)
            break;
    }
    return false;
}

/* It is counted already: of two that come to two shards at once, each sees the other. */
static bool has_place(weft_listener_t *l, uint64_t source)
{
    uint32_t hellos = atomic_load_explicit(&(l->of ? l->of : l)->all_hellos, memory_order_relaxed);
    if (hellos + l->n_ready + l->n_ready_away > l->backlog && !let_dead_go(l) && !wefti_away_let_dead_go(l))
        return let_go(l, source);
    return atomic_load_explicit(&first(l)->n_newcomers, memory_order_relaxed) <= newcomers_most() ||
           let_go(most_crowded(l->conn), source);
}

wefti_link_t *wefti_listener_take(weft_listener_t *l, wefti_wire_t *wire, const char *from)
{
    count_newcomer(l, 1);
    bool place = has_place(l, wire->source);
    wefti_link_t *link = place ? wefti_link_new(l->conn, WEFTI_SIDE_LISTENER, from) : NULL;
    if (!link) {
        count_newcomer(l, -1);
        wefti_info("turned %s away: %u connections are in their hello or wait to be accepted", from, l->hellos + l->n_ready);
        wefti_shake_turn_away(l->conn, wire, place ? WEFT_ERR_NOMEM : WEFT_ERR_AGAIN,
                              place ? "the listener has no memory for one more"
                                    : "the listener has as many newcomers as it can take; try again");
        return NULL;
    }
    wire->user = link;
    link->wire = wire;
    link->source = wire->source;
    if (wefti_timer_at(l->rt, &link->timer, wefti_now(l->rt) + l->rt->config.connect_timeout)) {
        count_newcomer(l, -1);
        wefti_link_lost(link, WEFT_ERR_NOMEM, "the listener has no memory for one more");
        return NULL;
    }
    link->listener = l;
    wefti_list_push_back(&l->newcomers, &link->newcomer);
    return link;
}

void wefti_listener_wire(void *listener, wefti_wire_t *wire, const char *from)
{
    (void)wefti_listener_take(listener, wire, from);
}

static void give(weft_op_t *op, wefti_epx_t *ep)
{
    op->from = ep->pub.id;
    op->buf = &ep->pub;
    wefti_op_complete(op, WEFT_OK);
}

void wefti_listener_deliver(weft_listener_t *l, wefti_epx_t *ep)
{
    ep->listener = NULL;
    if (l->accept) {
        l->accept(l->of ? l->of : l, &ep->pub, l->user);
        return;
    }
    if (l->of) {
        if (!wefti_away_deliver(l, ep))
            end_untaken(ep);
        return;
    }
    wefti_list_t *n = wefti_list_pop(&l->accept_ops);
    if (n) {
        give(wefti_op_of_link(n), ep);
        return;
    }
    ep->listener = l;
    l->n_ready++;
    wefti_list_push_back(&l->ready, &ep->ready);
}

void wefti_listener_offer(weft_listener_t *l)
{
    while (l->n_ready_away && !wefti_list_empty(&l->accept_ops))
        give(wefti_op_of_link(wefti_list_pop(&l->accept_ops)), wefti_away_take(l));
}

/* --- opening and closing --------------------------------------------------------------------------------------------------- */

static weft_status_t add_uris(weft_listener_t *l, const char *uris)
{
    size_t m = l->uri ? strlen(l->uri) : 0, size = m + strlen(uris) + 2;
    char *all = wefti_realloc(l->uri, size);
    if (!all)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the addresses of a listener");
    l->uri = all;
    all[m] = 0;
    wefti_uris_add(all, size, uris);
    for (const char *at = uris; *at && !l->port;) {
        wefti_uri_t uri;
        if (wefti_uri_parse(&at, &uri))
            break;
        if (wefti_uri_has_port(&uri))
            l->port = uri.port;
    }
    return WEFT_OK;
}

static void close_acceptors(weft_listener_t *l)
{
    while (l->n_acceptors)
        l->conn->fabric->ops->acceptor_close(l->acceptors[--l->n_acceptors]);
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_listener_t, port);

/* Without acceptors, and on no list. NULL: no memory. */
static weft_listener_t *listener_new(wefti_conn_t *conn, uint32_t backlog)
{
    weft_listener_t *l = wefti_handle_new(&handles);
    if (!l)
        return NULL;
    l->rt = conn->rt;
    l->conn = conn;
    l->backlog = backlog;
    wefti_list_init(&l->newcomers);
    wefti_list_init(&l->accept_ops);
    wefti_list_init(&l->ready);
    wefti_list_init(&l->ready_away);
    return l;
}

weft_listener_t *wefti_listener_twin(wefti_conn_t *conn, weft_listener_t *of, uint64_t serial)
{
    weft_listener_t *l = listener_new(conn, of->backlog);
    if (!l)
        return NULL;
    l->of = of;
    l->serial = serial;
    l->accept = of->accept;
    l->admits = of->admits;
    l->user = of->user;
    l->hooks = of->hooks;
    l->reconnect_ns = of->reconnect_ns;
    l->port = of->port;
    wefti_list_push_back(&conn->listeners, &l->all);
    return l;
}

static weft_status_t bind_all(weft_listener_t *l, const char *uris, unsigned n, const weft_tls_opts_t *tls)
{
    const wefti_fabric_ops_t *ops = l->conn->fabric->ops;
    struct wefti_guard *guard;
    weft_status_t st = wefti_guard_own(l->rt, tls, &guard);
    l->acceptors = st ? NULL : wefti_calloc(n ? n : 1, sizeof *l->acceptors); /* n is 1 or more, which clang-tidy cannot see */
    if (!st && !l->acceptors)
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for a listener");
    for (const char *at = uris; !st && *at;) {
        wefti_uri_t one;
        st = wefti_uri_parse(&at, &one);
        if (!st)
            st = ops->acceptor_open(l->conn->fabric, &one, guard, l->backlog, l, &l->acceptors[l->n_acceptors]);
        if (!st)
            st = add_uris(l, ops->acceptor_uri(l->acceptors[l->n_acceptors++]));
    }
    wefti_guard_drop(l->rt, guard);
    return st;
}

weft_status_t wefti_listener_open(wefti_conn_t *conn, const char *uri, const weft_listen_opts_t *o, weft_listener_t **out)
{
    unsigned n = 0;
    wefti_uri_t one;
    weft_status_t st = *uri ? WEFT_OK : wefti_fail(WEFT_ERR_INVALID, "the uri to listen on is empty");
    for (const char *at = uri; *at && !st; n++) /* all of it is well-formed before anything is bound */
        st = wefti_uri_parse(&at, &one);
    if (st)
        return st;
    if (n > ACCEPTORS_MOST)
        return wefti_fail(WEFT_ERR_LIMIT, "%u addresses are more than the %d one listener can have", n, ACCEPTORS_MOST);
    if (conn->shut)
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed");
    static _Atomic uint64_t serial;
    weft_listener_t *l = listener_new(conn, o->backlog ? o->backlog : BACKLOG_DEFAULT);
    if (!l)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a listener");
    l->serial = ++serial;
    l->accept = o->accept;
    l->admits = (struct wefti_admits){o->admit, o->admit_peer};
    l->user = o->user;
    if (o->hooks)
        l->hooks = *o->hooks;
    l->reconnect_ns = o->reconnect_ns;
    st = wefti_away_new(l);
    if (!st)
        st = bind_all(l, uri, n, o->tls);
    if (st)
        goto err_listener;
    wefti_list_push_back(&conn->listeners, &l->all);
    wefti_address_changed(conn);
    *out = l;
    return WEFT_OK;

err_listener:
    close_acceptors(l);
    wefti_free(l->acceptors);
    wefti_free(l->uri);
    wefti_away_freed(l);
    wefti_handle_free(&handles, l);
    return st;
}

void wefti_listener_shut(weft_listener_t *l)
{
    wefti_list_t *n;
    if (l->closed)
        return;
    l->closed = true;
    close_acceptors(l);
    wefti_list_each_safe(it, &l->conn->links) {
        wefti_link_t *link = wefti_container_of(it, wefti_link_t, all);
        if (link->listener == l)
            wefti_link_lost(link, WEFT_ERR_CLOSED, "the listener closed");
    }
    while ((n = wefti_list_pop(&l->accept_ops)))
        wefti_op_complete(wefti_op_of_link(n), WEFT_ERR_CLOSED);
    wefti_list_each_safe(it, &l->ready)
        end_untaken(wefti_container_of(it, wefti_epx_t, ready));
    wefti_away_shut(l);
    if (l->conn->own == l)
        l->conn->own = NULL;
    wefti_address_changed(l->conn);
    wefti_conn_kick(l->conn);
}

void wefti_listener_free(weft_listener_t *l)
{
    weft_op_t *op = l->close_op;
    wefti_list_remove(&l->all);
    wefti_handle_shut(&l->handle);
    wefti_away_freed(l);
    wefti_free(l->acceptors);
    wefti_free(l->uri);
    wefti_handle_free(&handles, l);
    if (op)
        wefti_op_complete(op, WEFT_OK);
}

/* --- the calls ------------------------------------------------------------------------------------------------------------- */

typedef struct listen_call {
    weft_runtime_t *rt;
    const char *uri;
    const weft_listen_opts_t *opts;
    weft_listener_t *listener;
} listen_call_t;

static weft_status_t listen_here(void *arg)
{
    listen_call_t *c = arg;
    return wefti_closing(c->rt) ? wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed")
                                : wefti_listener_open(wefti_conn_of(c->rt), c->uri, c->opts, &c->listener);
}

weft_status_t weft_listen(weft_runtime_t *rt, const char *uri, const weft_listen_opts_t *opts, weft_listener_t **listener_out)
{
    weft_listen_opts_t o;
    if (!rt || !uri || !listener_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "rt" : !uri ? "uri" : "listener_out");
    listen_call_t c = {.rt = rt, .uri = uri, .opts = &o};
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_listen_opts_t");
    if (!st)
        st = wefti_ask(rt, listen_here, &c);
    if (!st)
        *listener_out = c.listener;
    return st;
}

const char *weft_listener_uri(const weft_listener_t *l)
{
    return l && wefti_is_open(&l->handle) ? l->uri : NULL;
}

weft_status_t weft_listener_copy_uri(weft_listener_t *l, char *buf, size_t *len)
{
    if (!l || !len)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", l ? "len" : "listener");
    if (wefti_is_open(&l->handle) && wefti_gone(l->rt))
        return wefti_fail_gone(l->rt);
    if (!wefti_handle_enter(&l->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the listener is closed");
    size_t room = *len;
    *len = strlen(l->uri);
    if (buf && *len < room)
        memcpy(buf, l->uri, *len + 1);
    wefti_handle_leave(&l->handle);
    return !buf || *len < room ? WEFT_OK : wefti_fail(WEFT_ERR_LIMIT, "the addresses of the listener are %zu bytes", *len + 1);
}

uint16_t weft_listener_port(const weft_listener_t *l)
{
    return l && wefti_is_open(&l->handle) ? l->port : 0;
}

typedef struct accept_scratch {
    weft_listener_t *listener;
} accept_scratch_t;

static weft_status_t accept_start(weft_op_t *op)
{
    weft_listener_t *l = wefti_op_scratch(op, accept_scratch_t)->listener;
    if (!wefti_is_open(&l->handle) || l->closed)
        return wefti_fail(WEFT_ERR_CLOSED, "the listener is closed");
    wefti_list_t *n = wefti_list_pop(&l->ready);
    if (n) {
        wefti_epx_t *ep = wefti_container_of(n, wefti_epx_t, ready);
        l->n_ready--;
        ep->listener = NULL;
        give(op, ep);
        return WEFT_OK;
    }
    if (l->n_ready_away) {
        give(op, wefti_away_take(l));
        return WEFT_OK;
    }
    weft_status_t st = wefti_op_track(op);
    if (st)
        return st;
    wefti_list_push_back(&l->accept_ops, &wefti_opx(op)->link);
    return WEFT_OK;
}

static void accept_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, why);
}

static const wefti_op_kind_t accept_kind = {.name = "accept", .start = accept_start, .cancel = accept_cancel, .stops = true};

weft_status_t weft_listener_accept(weft_listener_t *l, weft_op_t *op)
{
    if (!l || !op)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", l ? "op" : "listener");
    if (wefti_gone(l->rt))
        return wefti_fail_gone(l->rt);
    if (!wefti_is_open(&l->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the listener is closed");
    if (l->accept)
        return wefti_fail(WEFT_ERR_INVALID, "the listener on port %u hands its endpoints to its accept callback", l->port);
    weft_status_t st = wefti_op_prepare(l->rt, op, &accept_kind);
    if (st)
        return st;
    wefti_op_scratch(op, accept_scratch_t)->listener = l;
    op->buf = NULL;
    op->from = 0;
    return wefti_op_post(l->rt, op);
}

static const wefti_op_kind_t close_kind = {.name = "listener close", .cancel = wefti_op_no_cancel};

static weft_status_t run_close(const wefti_conn_call_t *c)
{
    weft_listener_t *l = c->listener;
    if (!wefti_is_open(&l->handle) || l->closed)
        return wefti_fail(WEFT_ERR_CLOSED, "the listener was closed before");
    l->close_op = c->user_op;
    wefti_listener_shut(l);
    return WEFT_OK;
}

weft_status_t weft_listener_close(weft_listener_t *l, weft_op_t *op)
{
    if (!l)
        return wefti_fail(WEFT_ERR_INVALID, "there is no listener to close: it is NULL");
    weft_runtime_t *rt = l->rt;
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (!wefti_is_open(&l->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the listener was closed before");
    if (op) {
        weft_status_t st = wefti_op_prepare(rt, op, &close_kind);
        if (st)
            return st;
        wefti_op_begin(op);
    }
    return wefti_conn_do(rt, &(wefti_conn_call_t){.run = run_close, .listener = l, .user_op = op});
}
