/* conn/dial.c - opening an endpoint: its addresses, tried in order, under one deadline.
 *
 * A round tries each address with a link of its own and an even share of the time that is left. If nobody was there, another
 * round follows after a pause, until the connect timeout: servers start when they can. Any other failure of a round ends the
 * connect, or counts as one failed try of a reconnect.
 *
 * Promise: weft_ep_open() that returns an error has left nothing behind; otherwise the connect operation completes once, within
 * connect_timeout, and operations posted meanwhile end as it does. tests/wire/conn_connect.c, tests/fault/conn_refused.c,
 * conn_nomem.c. */
#include <string.h>

#include "base/uri.h"
#include "conn/ep.h"

#define FIRST_PAUSE (50 * WEFT_MILLISECOND)
#define PAUSE_MOST WEFT_SECOND

/* --- trying ---------------------------------------------------------------------------------------------------------------- */

bool wefti_ep_dial_is_final(weft_status_t why)
{
    return why == WEFT_ERR_AUTH || why == WEFT_ERR_VERSION || why == WEFT_ERR_INVALID || why == WEFT_ERR_PERMISSION;
}

static unsigned uris_left(const char *at)
{
    unsigned n = *at ? 1 : 0;
    for (; *at; at++)
        n += *at == ',';
    return n;
}

static weft_status_t try_one(wefti_epx_t *ep, const wefti_uri_t *uri, uint64_t give_up_at)
{
    wefti_conn_t *conn = ep->conn;
    char where[WEFTI_URI_TEXT];
    wefti_uri_format(uri, where, sizeof where);
    wefti_link_t *link = wefti_link_new(conn, WEFTI_SIDE_DIALLER, where);
    if (!link)
        return WEFT_ERR_NOMEM;
    weft_status_t st = wefti_timer_at(conn->rt, &link->timer, give_up_at);
    if (!st)
        st = conn->fabric->ops->wire_dial(conn->fabric, uri, ep->dial->guard, ep->dial->source, link, &link->wire);
    if (st) {
        const char *text = weft_last_error()[0] ? weft_last_error() : weft_status_text(st);
        wefti_info("cannot call %s: %s", where, text);
        wefti_ep_explain(ep, where, st, text);
        wefti_link_drop(link);
        return st;
    }
    link->ep = ep;
    ep->link = link;
    return WEFT_OK;
}

/* Somebody may be there later. False: nobody, or there is no time for that. */
static bool pause_then_try(wefti_epx_t *ep)
{
    weft_runtime_t *rt = ep->conn->rt;
    wefti_dial_t *d = ep->dial;
    if (d->once || !d->nobody || (d->why != WEFT_ERR_REFUSED && d->why != WEFT_ERR_UNREACHABLE && d->why != WEFT_ERR_PEER))
        return false;
    uint64_t at = wefti_now(rt) + wefti_rng_jitter(&rt->rng, d->pause_ns);
    d->pause_ns = d->pause_ns < PAUSE_MOST / 2 ? d->pause_ns * 2 : PAUSE_MOST;
    return at < ep->until && !wefti_timer_at(rt, &ep->timer, at);
}

static void try_next(wefti_epx_t *ep)
{
    wefti_dial_t *d = ep->dial;
    while (*d->at) {
        uint64_t now = wefti_now(ep->conn->rt);
        unsigned left = uris_left(d->at);
        const char *at = d->at;
        wefti_uri_t uri;
        weft_status_t st = now >= d->deadline ? WEFT_ERR_TIMEOUT : wefti_uri_parse(&at, &uri);
        if (st)
            break;
        d->at = d->uris + (at - d->uris);
        st = try_one(ep, &uri, now + (d->deadline - now) / left);
        if (!st)
            return;
        d->why = st;
        d->nobody = true;
    }
    if (wefti_ep_state(ep) == WEFT_EP_RECONNECTING)
        wefti_reconnect_failed(ep, d->why);
    else if (!pause_then_try(ep))
        wefti_ep_give_up(ep, d->why);
}

void wefti_ep_dial_round(wefti_epx_t *ep)
{
    wefti_dial_t *d = ep->dial;
    weft_runtime_t *rt = ep->conn->rt;
    d->at = d->uris;
    d->why = WEFT_ERR_TIMEOUT;
    d->nobody = false;
    d->deadline = wefti_now(rt) + rt->config.connect_timeout;
    if (d->deadline > ep->until)
        d->deadline = ep->until;
    try_next(ep);
}

void wefti_ep_dial_next(wefti_epx_t *ep, weft_status_t why)
{
    if (!wefti_ep_dial_is_final(ep->dial->why)) /* a wrong key at the first says more than a closed port at the second */
        ep->dial->why = why;
    try_next(ep);
}

/* --- the connect operation ------------------------------------------------------------------------------------------------- */

typedef struct connect_scratch {
    wefti_epx_t *ep;
    weft_status_t early; /* cancelled before the driver knew of it */
    bool waits;          /* on ep->connect_ops */
} connect_scratch_t;

static void connect_cancel(weft_op_t *op, weft_status_t why)
{
    connect_scratch_t *r = wefti_op_scratch(op, connect_scratch_t);
    wefti_epx_t *ep = r->ep;
    if (!r->waits) {
        r->early = why;
        return;
    }
    if (wefti_ep_state(ep) == WEFT_EP_CONNECTING && !ep->dial->cache_key) { /* the connect itself ends */
        if (ep->link)
            wefti_link_abandon(ep->link);
        ep->pub.why_detail = wefti_detail_format("%s: %s", ep->dial->uris, weft_status_text(why));
        wefti_ep_give_up(ep, why);
        return;
    }
    wefti_list_remove(&wefti_opx(op)->link); /* others want the endpoint all the same */
    op->from = ep->pub.id;
    wefti_op_complete(op, why);
}

static const wefti_op_kind_t connect_kind = {.name = "connect", .cancel = connect_cancel};

/* The operation waits for the endpoint, or need not. */
static void connect_join(wefti_epx_t *ep, weft_op_t *op)
{
    connect_scratch_t *r = wefti_op_scratch(op, connect_scratch_t);
    weft_ep_state_t state = wefti_ep_state(ep);
    op->from = ep->pub.id;
    if (wefti_op_stopped(op))
        r->early = WEFT_ERR_CANCELLED;
    if (state == WEFT_EP_UP && !r->early) {
        wefti_op_complete(op, WEFT_OK);
    } else if (state == WEFT_EP_UP || state == WEFT_EP_CONNECTING || state == WEFT_EP_RECONNECTING || ep->asking) {
        weft_status_t st = wefti_op_track(op);
        if (st) {
            wefti_op_complete(op, st);
            return;
        }
        r->waits = true;
        wefti_list_push_back(&ep->connect_ops, &wefti_opx(op)->link);
        if (r->early)
            connect_cancel(op, r->early);
    } else {
        wefti_op_complete(op, ep->pub.why ? ep->pub.why : WEFT_ERR_CLOSED);
    }
}

/* A new endpoint begins. */
static weft_status_t run_begin(const wefti_conn_call_t *c)
{
    wefti_epx_t *ep = c->ep;
    wefti_conn_t *conn = ep->conn;
    ep->starting = false;
    wefti_list_push_back(&conn->eps, &ep->all);
    if (c->user_op)
        connect_join(ep, c->user_op);
    if (ep->closed_early)
        wefti_close_begin(ep, ep->closed_hard);
    else if (conn->shut)
        wefti_close_end(ep, WEFT_ERR_CLOSED, WEFT_ERR_CLOSED);
    else if (wefti_ep_state(ep) == WEFT_EP_CONNECTING) {
        uint64_t now = wefti_now(conn->rt), timeout = conn->rt->config.connect_timeout;
        ep->until = timeout < UINT64_MAX - now ? now + timeout : UINT64_MAX;
        ep->dial->pause_ns = FIRST_PAUSE;
        wefti_ep_dial_round(ep);
    }
    return WEFT_OK;
}

static weft_status_t run_join(const wefti_conn_call_t *c)
{
    if (!wefti_ep_is_there(&c->ep->pub))
        return WEFT_ERR_CLOSED; /* by the runtime, which closes */
    connect_join(c->ep, c->user_op);
    return WEFT_OK;
}

/* --- the call -------------------------------------------------------------------------------------------------------------- */

/* Canonical text of a list of addresses that can be called. */
static weft_status_t canonical(const char *text, char **out)
{
    size_t cap = uris_left(text) * WEFTI_URI_TEXT;
    if (!*text)
        return wefti_fail(WEFT_ERR_INVALID, "the uri is empty");
    char one[WEFTI_URI_TEXT], *all = wefti_calloc(1, cap);
    if (!all)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a uri of %zu bytes", cap);
    for (const char *at = text; *at;) {
        wefti_uri_t uri;
        weft_status_t st = wefti_uri_parse(&at, &uri);
        if (!st && wefti_uri_has_port(&uri) && !uri.port)
            st = wefti_fail(WEFT_ERR_INVALID, "\"%s\" has port 0: that picks a port to listen on; nobody can be called there",
                            text);
        if (st) {
            wefti_free(all);
            return st;
        }
        wefti_uri_format(&uri, one, sizeof one);
        wefti_uris_add(all, cap, one);
    }
    *out = all;
    return WEFT_OK;
}

static weft_status_t targets(wefti_conn_t *conn, const char *uri, const weft_ep_opts_t *o, char **uris_out, wefti_blob_t *blob)
{
    if (!uri == !o->address)
        return wefti_fail(WEFT_ERR_INVALID,
                          uri ? "both a uri and an address are given" : "neither a uri nor an address is given");
    if (o->shared && o->tls)
        return wefti_fail(WEFT_ERR_INVALID,
                          "a shared endpoint has the certificates of its runtime: give them to that one, or do not "
                          "share it");
    if (o->source && strlen(o->source) > 255)
        return wefti_fail(WEFT_ERR_INVALID, "the source address is %zu bytes long", strlen(o->source));
    if (uri)
        return canonical(uri, uris_out);
    weft_status_t st = wefti_blob_decode(o->address, o->address_len, blob);
    return st ? st : wefti_blob_targets(blob, conn->host, uris_out);
}

static weft_status_t new_dial(const char *uris, const weft_ep_opts_t *o, const uint8_t *uuid, wefti_dial_t **dial_out)
{
    size_t n = strlen(uris) + 1;
    wefti_dial_t *d = wefti_calloc(1, sizeof *d + n);
    if (!d)
        goto err_nomem;
    memcpy(d->uris, uris, n);
    d->at = d->uris;
    d->first_pause_ns = o->reconnect_first_ns ? o->reconnect_first_ns : FIRST_PAUSE;
    d->shares = 1;
    d->once = o->no_retry;
    if (uuid) {
        d->has_uuid = true;
        memcpy(d->uuid, uuid, sizeof d->uuid);
    }
    if (o->source && !(d->source = wefti_strdup(o->source)))
        goto err_dial;
    *dial_out = d;
    return WEFT_OK;

err_dial:
    wefti_free(d);
err_nomem:
    return wefti_fail(WEFT_ERR_NOMEM, "no memory for the address of an endpoint");
}

static weft_status_t new_endpoint(wefti_conn_t *conn, const char *uris, const weft_ep_opts_t *o, const uint8_t *uuid, char **key,
                                  wefti_epx_t **ep_out)
{
    wefti_dial_t *d = NULL;
    wefti_epx_t *ep;
    weft_status_t st = new_dial(uris, o, uuid, &d);
    if (st)
        return st;
    st = wefti_guard_own(conn->rt, o->tls, &d->guard);
    if (st)
        goto err_dial;
    st = wefti_ep_new(conn, &o->hooks, o->reconnect_ns, true, &ep);
    if (st)
        goto err_dial;
    ep->dial = d;
    d->cache_key = *key;
    *key = NULL;
    *ep_out = ep;
    return WEFT_OK;

err_dial:
    wefti_guard_drop(conn->rt, d->guard);
    wefti_free(d->source);
    wefti_free(d);
    return st;
}

/* The thread is inside (wefti_join()), so that the runtime stays. */
static weft_status_t open_inside(weft_runtime_t *rt, const char *uri, const weft_ep_opts_t *o, weft_ep_id_t beside, weft_op_t *op,
                                 weft_ep_t **ep_out)
{
    wefti_blob_t blob;
    wefti_epx_t *ep = NULL;
    char *uris = NULL, *key = NULL;
    if (wefti_closing(rt))
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed");
    wefti_conn_t *conn = wefti_conn_of(rt);
    weft_status_t st = targets(conn, uri, o, &uris, &blob);
    if (st)
        return st;
    if (op) {
        st = wefti_op_prepare(rt, op, &connect_kind);
        if (st)
            goto err_uris;
    }
    bool fresh = true;
    if (o->shared) {
        st = wefti_cache_key(uris, o->source, uri ? NULL : blob.uuid, &key);
        if (st)
            goto err_op;
        ep = wefti_cache_take(conn, key);
        fresh = !ep;
    }
    if (fresh) {
        st = new_endpoint(conn, uris, o, uri ? NULL : blob.uuid, &key, &ep);
        if (st)
            goto err_key;
        ep->dial->beside = beside;
    }
    if (op) {
        *wefti_op_scratch(op, connect_scratch_t) = (connect_scratch_t){.ep = ep};
        wefti_op_begin(op);
    }
    if (fresh || op)
        st = wefti_conn_do(rt, &(wefti_conn_call_t){.run = fresh ? run_begin : run_join, .ep = ep, .user_op = op});
    if (st)
        goto err_ep;
    if (fresh && o->shared)
        wefti_cache_put(conn, ep); /* not before it was sure to begin: another thread could get it */
    wefti_free(key);
    wefti_free(uris);
    *ep_out = &ep->pub;
    return WEFT_OK;

err_ep:
    if (fresh)
        wefti_ep_free(ep);
    else
        (void)weft_ep_close(&ep->pub, NULL); /* our share; if even that cannot be posted, the runtime's close takes it */
    op = NULL;                               /* wefti_conn_do() has undone its post */
err_key:
    wefti_free(key);
err_op:
    if (op)
        wefti_op_unprepare(op);
err_uris:
    wefti_free(uris);
    return st;
}

weft_status_t wefti_ep_open(weft_runtime_t *rt, const char *uri, const weft_ep_opts_t *opts, weft_ep_id_t beside, weft_op_t *op,
                            weft_ep_t **ep_out)
{
    weft_ep_opts_t o;
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_ep_opts_t");
    if (!st)
        st = wefti_join(rt);
    if (st)
        return st;
    st = open_inside(rt, uri, &o, beside, op, ep_out);
    wefti_part(rt);
    return st;
}

weft_ep_id_t wefti_ep_of_peer(const weft_ep_t *ep)
{
    return wefti_epx(ep)->has_cookie ? wefti_epx(ep)->resume_id : 0;
}

weft_status_t weft_ep_open(weft_runtime_t *rt, const char *uri, const weft_ep_opts_t *opts, weft_op_t *op, weft_ep_t **ep_out)
{
    weft_ep_opts_t o;
    if (!rt || !ep_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "ep_out" : "rt");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_ep_opts_t");
    if (st)
        return st;
    uint32_t n = wefti_n_shards(rt);
    if (o.shard > n || (o.shared && o.shard > 1)) /* shared ones are where all look for them */
        return wefti_fail(WEFT_ERR_INVALID,
                          o.shard > n ? "there is no shard %u: the runtime has %u"
                                      : "a shared endpoint is on the first shard, not on shard %u of %u",
                          o.shard, n);
    rt = o.shard || o.shared ? wefti_shard(rt, o.shared ? 0 : o.shard - 1) : wefti_shard_for_new(rt);
    return wefti_ep_open(rt, uri, &o, 0, op, ep_out);
}
