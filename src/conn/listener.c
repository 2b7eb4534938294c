/* conn/listener.c - listening: posts, the backlog of hellos, and handing over what came of them.
 *
 * A wire that arrives becomes a link in its hello, a newcomer, and counts against the backlog until it is up or gone; endpoints nobody
 * has taken yet (no accept callback, no accept operation) count too: those whose peer is gone only until the place is needed, for a program
 * that offers services may never take any. All newcomers of a runtime together have at most half of the descriptors of the process. Someone
 * who connects and says nothing is dropped after connect_timeout.
 *
 * When there is no place for one more, one that has proved nothing goes: the oldest of those from the newest one's own address, if they are
 * more than half, else the oldest of all. So whoever fills the places drives out himself, and a call that goes on takes far less time
 * than it needs to become the oldest. Silence is no worse than a hello here: anybody can say hello, and who has just come has said
 * nothing yet. With a key, who has shown it stays; if all have, the newest is turned away with a sentence.
 *
 * Promise: nobody who has not shown the key keeps out one who has it; each peer that passed the hello is handed over once; after a close
 * on the driving thread no callback comes and everything that was not handed over is gone. The memory goes with the work, since the
 * close may come from the listener's own callbacks. tests/wire/conn_connect.c, conn_hooks.c; tests/fault/conn_flood.c, conn_garbage.c,
 * conn_fds.c. */
#include <string.h>
#include <sys/resource.h>

#include "base/uri.h"
#include "conn/ep.h"

#define BACKLOG_DEFAULT 1024
#define POSTS_MOST 64
#define NEWCOMERS_LEAST 8 /* however few descriptors there are */
#define LOOK_MOST 1024    /* newcomers among whom one is looked for that can go */

weft_status_t wefti_opts_copy(const void *opts, void *out, size_t size, const char *what)
{
    memset(out, 0, size);
    if (!opts)
        return WEFT_OK;
    size_t given;
    memcpy(&given, opts, sizeof given);
    if (given < sizeof given || given > 4096)
        return wefti_fail(WEFT_ERR_INVALID, "%s.size is %zu: begin with its _INIT", what, given);
    memcpy(out, opts, given < size ? given : size);
    return WEFT_OK;
}

/* --- arrivals -------------------------------------------------------------------------------------------------------------- */

void wefti_listener_leave(wefti_link_t *link)
{
    if (!link->listener)
        return;
    wefti_list_remove(&link->newcomer);
    link->conn->n_newcomers--;
    link->listener->hellos--;
    link->listener = NULL;
}

/* Nobody else than who has the key gets that far. */
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
        if (n == LOOK_MOST)
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

bool wefti_listener_make_way(weft_listener_t *l)
{
    return let_go(most_crowded(l->conn), 0);
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
        if (++n == LOOK_MOST)
            break;
    }
    return false;
}

static bool has_place(weft_listener_t *l, uint64_t source)
{
    wefti_conn_t *conn = l->conn;
    if (l->hellos + l->n_ready >= l->backlog && !let_dead_go(l))
        return let_go(l, source);
    return conn->n_newcomers < newcomers_most() || let_go(most_crowded(conn), source);
}

void wefti_listener_wire(weft_listener_t *l, wefti_wire_t *wire, const char *from)
{
    wefti_conn_t *conn = l->conn;
    weft_runtime_t *rt = conn->rt;
    if (!has_place(l, wire->source)) {
        wefti_info("turned %s away: %u connections are in their hello or wait to be accepted", from, l->hellos + l->n_ready);
        wefti_shake_turn_away(conn, wire, WEFT_ERR_AGAIN, "the listener has as many newcomers as it can take; try again");
        return;
    }
    wefti_link_t *link = wefti_link_new(conn, WEFTI_SIDE_LISTENER, from);
    if (!link) {
        wefti_shake_turn_away(conn, wire, WEFT_ERR_NOMEM, "the listener has no memory for one more");
        return;
    }
    wire->user = link;
    link->wire = wire;
    link->source = wire->source;
    if (wefti_timer_at(rt, &link->timer, wefti_now(rt) + rt->connect_timeout_ns)) {
        wefti_link_lost(link, WEFT_ERR_NOMEM, "the listener has no memory for one more");
        return;
    }
    link->listener = l;
    l->hellos++;
    wefti_list_push_back(&l->newcomers, &link->newcomer);
    conn->n_newcomers++;
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
        l->accept(l, &ep->pub, l->user);
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

/* --- opening and closing --------------------------------------------------------------------------------------------------- */

static weft_status_t add_uris(weft_listener_t *l, const char *uris)
{
    size_t n = strlen(uris), m = l->uri ? strlen(l->uri) : 0;
    char *all = wefti_realloc(l->uri, m + n + 2);
    if (!all)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the addresses of a listener");
    l->uri = all;
    if (m)
        all[m++] = ',';
    memcpy(all + m, uris, n + 1);
    for (const char *at = uris; *at && !l->port;) {
        wefti_uri_t uri;
        if (wefti_uri_parse(&at, &uri))
            break;
        if (uri.scheme == WEFTI_URI_TCP)
            l->port = uri.port;
    }
    return WEFT_OK;
}

static void close_posts(weft_listener_t *l)
{
    while (l->n_posts)
        l->conn->fabric->ops->acceptor_close(l->posts[--l->n_posts]);
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_listener_t, port);

weft_status_t wefti_listener_open(wefti_conn_t *conn, const char *uri, const weft_listen_opts_t *o, weft_listener_t **out)
{
    wefti_fabric_t *f = conn->fabric;
    unsigned n = 0;
    wefti_uri_t one;
    weft_status_t st;
    if (!*uri)
        return wefti_fail(WEFT_ERR_INVALID, "the uri to listen on is empty");
    for (const char *at = uri; *at; n++) { /* all of it is well-formed before anything is bound */
        st = wefti_uri_parse(&at, &one);
        if (st)
            return st;
    }
    if (n > POSTS_MOST)
        return wefti_fail(WEFT_ERR_LIMIT, "%u addresses are more than the %d one listener can have", n, POSTS_MOST);
    if (conn->shut)
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed");
    weft_listener_t *l = wefti_handle_new(&handles);
    if (!l)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a listener");
    l->rt = conn->rt;
    l->conn = conn;
    l->accept = o->accept;
    l->admit = o->admit;
    l->user = o->user;
    l->backlog = o->backlog ? o->backlog : BACKLOG_DEFAULT;
    if (o->hooks)
        l->hooks = *o->hooks;
    l->reconnect_ns = o->reconnect_ns;
    wefti_list_init(&l->newcomers);
    wefti_list_init(&l->accept_ops);
    wefti_list_init(&l->ready);
    l->posts = wefti_calloc(n, sizeof *l->posts);
    if (!l->posts) {
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for a listener");
        goto err_listener;
    }
    for (const char *at = uri; *at;) {
        st = wefti_uri_parse(&at, &one);
        if (st)
            goto err_posts;
        st = f->ops->acceptor_open(f, &one, l->backlog, l, &l->posts[l->n_posts]);
        if (st)
            goto err_posts;
        l->n_posts++;
        st = add_uris(l, f->ops->acceptor_uri(l->posts[l->n_posts - 1]));
        if (st)
            goto err_posts;
    }
    wefti_list_push_back(&conn->listeners, &l->all);
    wefti_address_changed(conn);
    *out = l;
    return WEFT_OK;

err_posts:
    close_posts(l);
    wefti_free(l->posts);
    wefti_free(l->uri);
err_listener:
    wefti_handle_free(&handles, l);
    return st;
}

void wefti_listener_shut(weft_listener_t *l)
{
    wefti_list_t *n;
    if (l->closed)
        return;
    l->closed = true;
    close_posts(l);
    wefti_list_each_safe(it, &l->conn->links) {
        wefti_link_t *link = wefti_container_of(it, wefti_link_t, all);
        if (link->listener == l)
            wefti_link_lost(link, WEFT_ERR_CLOSED, "the listener closed");
    }
    while ((n = wefti_list_pop(&l->accept_ops)))
        wefti_op_complete(wefti_op_of_link(n), WEFT_ERR_CLOSED);
    wefti_list_each_safe(it, &l->ready)
        end_untaken(wefti_container_of(it, wefti_epx_t, ready));
    if (l->conn->own == l)
        l->conn->own = NULL;
    wefti_address_changed(l->conn);
    wefti_conn_kick(l->conn);
}

void wefti_listener_free(weft_listener_t *l)
{
    weft_op_t *op = l->close_op;
    wefti_list_remove(&l->all);
    atomic_store(&l->handle.open, 0);
    wefti_free(l->posts);
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
    weft_status_t st;
    char detail[512]; /* weft_last_error() is per thread, and it may be another's that fails */
} listen_call_t;

static void listen_run(void *arg)
{
    listen_call_t *c = arg;
    c->st = wefti_closing(c->rt) ? wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed")
                                 : wefti_listener_open(wefti_conn_of(c->rt), c->uri, c->opts, &c->listener);
    if (c->st) {
        strncpy(c->detail, weft_last_error(), sizeof c->detail - 1);
        c->detail[sizeof c->detail - 1] = 0;
    }
}

weft_status_t weft_listen(weft_runtime_t *rt, const char *uri, const weft_listen_opts_t *opts, weft_listener_t **listener_out)
{
    weft_listen_opts_t o;
    if (!rt || !uri || !listener_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "rt" : !uri ? "uri" : "listener_out");
    weft_status_t st = wefti_opts_copy(opts, &o, sizeof o, "weft_listen_opts_t");
    if (st)
        return st;
    listen_call_t c = {.rt = rt, .uri = uri, .opts = &o};
    st = wefti_ask(rt, listen_run, &c);
    if (st)
        return st;
    if (c.st)
        return wefti_fail(c.st, "%s", c.detail);
    *listener_out = c.listener;
    return WEFT_OK;
}

const char *weft_listener_uri(const weft_listener_t *l)
{
    return l && wefti_is_open(&l->handle) ? l->uri : NULL;
}

uint16_t weft_listener_port(const weft_listener_t *l)
{
    return l && wefti_is_open(&l->handle) ? l->port : 0;
}

typedef struct accept_room {
    weft_listener_t *listener;
} accept_room_t;

static weft_status_t accept_start(weft_op_t *op)
{
    weft_listener_t *l = wefti_op_scratch(op, accept_room_t)->listener;
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
    wefti_op_scratch(op, accept_room_t)->listener = l;
    op->buf = NULL;
    op->from = 0;
    return wefti_op_go(l->rt, op);
}

static void close_cancel(weft_op_t *op, weft_status_t why)
{
    (void)op, (void)why; /* there is nothing to wait for but its turn */
}

static const wefti_op_kind_t close_kind = {.name = "listener close", .cancel = close_cancel};

/* WEFT_ERR_CLOSED: it was closed before, and op was not touched. */
static weft_status_t close_now(weft_listener_t *l, weft_op_t *op)
{
    if (!wefti_is_open(&l->handle) || l->closed)
        return wefti_fail(WEFT_ERR_CLOSED, "the listener was closed before");
    l->close_op = op;
    wefti_listener_shut(l);
    return WEFT_OK;
}

static void close_posted(wefti_conn_acceptor_t *p)
{
    weft_status_t st = close_now(p->listener, p->user_op);
    if (st && p->user_op)
        wefti_op_complete(p->user_op, st);
}

weft_status_t weft_listener_close(weft_listener_t *l, weft_op_t *op)
{
    weft_runtime_t *was;
    weft_status_t st;
    if (!l)
        return wefti_fail(WEFT_ERR_INVALID, "there is no listener to close: it is NULL");
    weft_runtime_t *rt = l->rt;
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (!wefti_is_open(&l->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the listener was closed before");
    if (op) {
        st = wefti_op_prepare(rt, op, &close_kind);
        if (st)
            return st;
        wefti_op_begin(op);
    }
    if (wefti_conn_enter(rt, &was)) {
        st = close_now(l, op);
        if (st && op)
            st = wefti_op_take_back(op, st);
        wefti_leave(rt, was);
        return st;
    }
    st = wefti_conn_post(rt, &(wefti_conn_acceptor_t){.run = close_posted, .listener = l, .user_op = op});
    if (st && op)
        wefti_op_unprepare(op);
    return st;
}
